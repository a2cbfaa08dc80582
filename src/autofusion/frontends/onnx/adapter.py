"""The one file that imports `onnx`, when it is first needed: protocol buffers in, plain frozen data out."""

from __future__ import annotations

import base64
import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autofusion import dtypes
from autofusion.dtypes import Array, DType
from autofusion.errors import AutofusionError, DTypeError, FormatError, GraphError

OLDEST = 7  # the first opset that is read; older models are converted to it


@dataclass(frozen=True)
class TensorInfo:
    """A declared input: extents are ints, the names of open dimensions, or None where nothing is said."""

    name: str
    dtype: DType
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class NodeDef:
    """One operator. Attributes are Python values, arrays, or `GraphDef` for bodies; `proto` is the node as bytes."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    proto: bytes = field(repr=False, default=b"")

    @property
    def key(self) -> str:
        """`Add`, or `domain.Op` outside the default domain."""
        return f"{self.domain}.{self.op}" if self.domain else self.op

    @property
    def label(self) -> str:
        """`Add (its name)`, with its first output where it has no name."""
        return f"{self.op} ({self.name or next(iter(self.outputs), '')})"

    @property
    def bodies(self) -> dict[str, GraphDef]:
        """Sub-graphs by attribute."""
        return {name: value for name, value in self.attributes.items() if isinstance(value, GraphDef)}


@dataclass(frozen=True)
class GraphDef:
    """A graph or a body. `opsets`: version by domain; `output_types`: what is declared of the outputs, None where
    nothing is."""

    name: str
    inputs: tuple[TensorInfo | str, ...]
    initialisers: Mapping[str, Array]
    nodes: tuple[NodeDef, ...]
    outputs: tuple[str, ...]
    opsets: Mapping[str, int]
    output_types: tuple[TensorInfo | None, ...] = ()


@functools.cache
def module(name: str = "onnx") -> Any:
    """The `onnx` package or a module of it. Raises FormatError that names the extra where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise FormatError("reading ONNX needs the onnx package: pip install 'graph-autofusion[onnx]'") from None


# -- models ------------------------------------------------------------------------------------------------------------
def load(path: str | Path) -> Any:
    """The model of a file, external data included. Raises FormatError with the path."""
    onnx = module()
    if not Path(path).is_file():
        raise FormatError(f"{path}: cannot be read: no such file")
    try:
        return onnx.load(str(path))
    except FormatError:
        raise
    except Exception as error:  # protobuf's DecodeError, and whatever a damaged file brings out
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FormatError(f"{path}: not an ONNX model that can be read: {text}") from None


def graph_of(model: Any) -> GraphDef:
    """The main graph, local functions inlined. Raises FormatError for versions that are not read."""
    opsets = _opsets(model)
    newest = module("onnx.defs").onnx_opset_version()
    version = opsets.get("", newest)
    if 0 < version < OLDEST:
        model = _converted(model, version)
        opsets, version = _opsets(model), OLDEST
    if not OLDEST <= version <= newest:
        raise FormatError(f"opset {version}: expected {OLDEST} to {newest}, the newest that the onnx package knows")
    if model.functions:
        model = module("onnx.inliner").inline_local_functions(model, True)
        opsets = _opsets(model)
    if not model.graph.node and not model.graph.output:
        raise FormatError("the model has no graph")
    try:
        return _graph(model.graph, opsets)
    except AutofusionError:
        raise
    except Exception as error:  # whatever onnx raises over contents that contradict each other
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FormatError(f"the model is damaged: {text}") from None


def _text(name: Any) -> str:
    """Protocol buffers give bytes where a name is damaged."""
    if not isinstance(name, str):
        raise FormatError(f"the model is damaged: the name {name!r} is no UTF-8 text")
    return name


def _converted(model: Any, version: int) -> Any:
    """An older model in the oldest opset that is read, by ONNX's converter."""
    try:
        return module("onnx.version_converter").convert_version(model, OLDEST)
    except Exception as error:  # ConvertError, RuntimeError: not all operators have a conversion
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FormatError(f"opset {version}: cannot be converted to {OLDEST}: {text}") from None


def _opsets(model: Any) -> dict[str, int]:
    return {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}


def _graph(graph: Any, opsets: Mapping[str, int], bound: Mapping[str, Any] | None = None) -> GraphDef:
    initialisers = {_text(tensor.name): array_of(tensor) for tensor in graph.initializer}
    for sparse in graph.sparse_initializer:
        initialisers[_text(sparse.values.name)] = _dense(sparse)
    inputs = tuple(_info(value) for value in graph.input if value.name not in initialisers)
    nodes = tuple(_node(node, opsets, bound or {}) for node in graph.node)
    outputs = tuple(_text(o.name) for o in graph.output)
    types = tuple(_declared(value) for value in graph.output)
    return GraphDef(_text(graph.name) or "graph", inputs, initialisers, nodes, outputs, opsets, types)


def _info(value: Any) -> TensorInfo | str:
    """The declaration; only the name where it is not said, as in bodies. Raises GraphError for what is no tensor."""
    name = _text(value.name)
    kind = value.type.WhichOneof("value")
    if kind is None:
        return name
    if kind != "tensor_type":
        raise GraphError(f"input {value.name!r}: {kind.removesuffix('_type')}s are not supported, only tensors are")
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return name
    return TensorInfo(name, dtype_of(tensor.elem_type), tuple(map(_extent, tensor.shape.dim)))


def _declared(value: Any) -> TensorInfo | None:
    """An output's declaration; None where it does not say a tensor's element type and rank."""
    try:
        found = _info(value)
    except GraphError:
        return None
    return found if isinstance(found, TensorInfo) else None


def _extent(dim: Any) -> int | str | None:
    """Exporters write -1, "" and "?" where they say nothing."""
    if dim.WhichOneof("value") == "dim_value":
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    said = _text(dim.dim_param)
    return said if any(c.isalnum() for c in said) else None


def _node(node: Any, opsets: Mapping[str, int], bound: Mapping[str, Any]) -> NodeDef:
    """`bound`: the attributes of the function's call, as protocol buffers, for those that refer to them."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    if any(attribute.ref_attr_name for attribute in node.attribute):
        node = _bind(node, bound)
    attributes = {attribute.name: _attribute(attribute, opsets, bound) for attribute in node.attribute}
    return NodeDef(
        _text(node.op_type),
        _text(domain),
        _text(node.name),
        tuple(map(_text, node.input)),
        tuple(map(_text, node.output)),
        attributes,
        node.SerializeToString(),
    )


def _bind(node: Any, bound: Mapping[str, Any]) -> Any:
    """A copy whose attributes are those that they refer to."""
    made = module().NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            made.attribute.append(attribute)
        elif attribute.ref_attr_name in bound:
            copy = made.attribute.add()
            copy.CopyFrom(bound[attribute.ref_attr_name])
            copy.name = attribute.name
    return made


def _attribute(attribute: Any, opsets: Mapping[str, int], bound: Mapping[str, Any]) -> Any:
    onnx = module()
    kinds = onnx.AttributeProto
    if attribute.type == kinds.TENSOR:
        return array_of(attribute.t)
    if attribute.type == kinds.SPARSE_TENSOR:
        return _dense(attribute.sparse_tensor)
    if attribute.type == kinds.GRAPH:
        return _graph(attribute.g, opsets, bound)
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == kinds.STRING:
        return value.decode("utf-8", "replace")
    if attribute.type == kinds.STRINGS:
        return tuple(each.decode("utf-8", "replace") for each in value)
    return tuple(value) if isinstance(value, list | tuple) or hasattr(value, "extend") else value


def array_of(tensor: Any) -> Array:
    """The tensor as an array of its own element type. Strings stay an array of objects, which nothing takes."""
    array: Array = module("onnx.numpy_helper").to_array(tensor)
    return array


def _dense(sparse: Any) -> Array:
    values, indices, shape = array_of(sparse.values), array_of(sparse.indices), tuple(sparse.dims)
    result = np.zeros(shape, values.dtype)
    at = tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, shape)
    result[at] = values
    return result


def dtype_of(code: int) -> DType:
    """The element type of ONNX's number for it. Raises DTypeError."""
    onnx = module()
    try:
        return dtypes.of(onnx.helper.tensor_dtype_to_np_dtype(code))
    except (DTypeError, KeyError):
        known = onnx.TensorProto.DataType.Name(code) if code in onnx.TensorProto.DataType.values() else code
        raise DTypeError(f"element type {str(known).lower()} is not supported") from None


# -- functions ---------------------------------------------------------------------------------------------------------
def body_of(node: NodeDef, opset: int, types: Sequence[Any]) -> tuple[tuple[NodeDef, ...], tuple[str, ...], Any] | None:
    """What a standard function stands for: (nodes, their inputs' names, outputs' names, opsets); None for primitives.

    `types`: (DType, shape) or None by input; shapes may have None where open.
    """
    schema = _schema(node, opset)
    if schema is None:
        return None
    function = None
    if schema.has_function:
        function = schema.function_body
        for version in getattr(schema, "function_opset_versions", []):
            if version <= opset:
                found = schema.get_function_with_opset_version(version)
                function = module().FunctionProto.FromString(found) if isinstance(found, bytes) else found
    elif schema.has_context_dependent_function:
        onnx = module()
        packed = [_type_proto(t).SerializeToString() for t in types]
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        for version in reversed(versions):
            raw = schema.get_context_dependent_function_with_opset_version(version, node.proto, packed)
            if raw:
                function = onnx.FunctionProto.FromString(raw)
                break
    if function is None or not function.node:
        return None
    opsets = _opsets(function) or {"": opset}
    bound = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    bound |= {attribute.name: attribute for attribute in module().NodeProto.FromString(node.proto).attribute}
    nodes = tuple(_node(each, opsets, bound) for each in function.node)
    return nodes, tuple(function.input), (tuple(function.output), opsets)


def _schema(node: NodeDef, opset: int) -> Any | None:
    try:
        return module("onnx.defs").get_schema(node.op, opset, node.domain)
    except Exception:  # onnx_cpp2py_export.defs.SchemaError
        return None


def is_known(node: NodeDef, opset: int) -> bool:
    """Whether ONNX itself has the operator."""
    return _schema(node, opset) is not None


def _type_proto(given: Any) -> Any:
    onnx = module()
    if given is None:
        return onnx.TypeProto()
    dtype, shape = given
    return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(dtype.numpy), shape)


# -- the reference -----------------------------------------------------------------------------------------------------
def output_types(
    node: NodeDef, opset: int, types: Mapping[str, Any], known: Mapping[str, Array]
) -> list[tuple[DType, tuple[int, ...]] | None]:
    """Element types and shapes of a node's outputs by ONNX's shape inference; None where they stay open."""
    onnx = module()
    schema = _schema(node, opset)
    proto = onnx.NodeProto.FromString(node.proto)
    try:
        found = module("onnx.shape_inference").infer_node_outputs(
            schema,
            proto,
            {name: _type_proto(given) for name, given in types.items()},
            {name: onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in known.items()},
            opset_imports=[onnx.helper.make_operatorsetid(node.domain, opset)],
        )
    except Exception:  # InferenceError and friends: nothing is known then
        return [None] * len(node.outputs)
    return [_inferred(found.get(name)) for name in node.outputs]


def _inferred(given: Any) -> tuple[DType, tuple[int, ...]] | None:
    if given is None or given.WhichOneof("value") != "tensor_type" or not given.tensor_type.HasField("shape"):
        return None
    dims = given.tensor_type.shape.dim
    if any(d.WhichOneof("value") != "dim_value" for d in dims):
        return None
    try:
        return dtype_of(given.tensor_type.elem_type), tuple(int(d.dim_value) for d in dims)
    except DTypeError:
        return None


def pack(node: NodeDef, opset: int) -> str:
    """A node as text that `run_reference` takes."""
    return f"{opset}:{base64.b64encode(node.proto).decode('ascii')}"


@functools.lru_cache(maxsize=256)
def _evaluator(packed: str, dtypes_given: tuple[str, ...]) -> Any:
    onnx = module()
    opset, _, encoded = packed.partition(":")
    proto = onnx.NodeProto.FromString(base64.b64decode(encoded))
    inputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in dict.fromkeys(proto.input) if name]
    outputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in proto.output if name]
    graph = onnx.helper.make_graph([proto], "node", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_operatorsetid(proto.domain, int(opset))])
    return module("onnx.reference").ReferenceEvaluator(model), [i.name for i in inputs], [o.name for o in outputs]


def run_reference(packed: str, arrays: Sequence[Array]) -> dict[str, Array]:
    """All outputs of a node by ONNX's own reference. Raises GraphError where it cannot."""
    evaluator, inputs, outputs = _evaluator(packed, tuple(str(a.dtype) for a in arrays))
    try:
        results = evaluator.run(None, dict(zip(inputs, arrays, strict=True)))
    except Exception as error:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise GraphError(f"the reference of ONNX failed: {text}") from None
    return dict(zip(outputs, results, strict=True))
