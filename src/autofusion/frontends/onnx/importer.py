"""ONNX graphs to ours: a walk over the nodes, each made by the mapping, else by its function body, else on the host."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from autofusion import dims, dtypes
from autofusion.dims import Dim, Expr, Shape
from autofusion.dtypes import Array, DType
from autofusion.errors import AutofusionError, DTypeError, GraphError
from autofusion.frontends.onnx import adapter, control, host, mapping
from autofusion.frontends.onnx.adapter import GraphDef, NodeDef, TensorInfo
from autofusion.frontends.onnx.call import Call
from autofusion.frontends.onnx.values import (
    DataDependent,
    Dims,
    ImportBuilder,
    Known,
    Operand,
    Symbolic,
    Undecided,
    Unmapped,
)
from autofusion.graph.builder import RESERVED
from autofusion.graph.ir import Graph, Value

FOLDED = 1 << 20  # elements: results of known operands up to this size are computed at import
Shapes = Mapping[str, Sequence[int | str]]


def read(path: str | Path, shapes: Shapes | None = None) -> Graph:
    """The graph of an .onnx file. Raises FormatError, or what `from_model` raises, with the path."""
    with naming(path):
        return from_model(adapter.load(path), shapes, Path(path).stem)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Puts the path into the text of errors."""
    try:
        yield
    except AutofusionError as error:
        text = " ".join(str(error).split())
        kind = GraphError if isinstance(error, DataDependent) else type(error)
        raise (error if text.startswith(str(path)) else kind(f"{path}: {text}")) from None


def from_model(
    model: Any,
    shapes: Shapes | None = None,
    name: str | None = None,
    values: Mapping[str, Array] | None = None,
    specialise: bool = False,
) -> Graph:
    """The graph of an `onnx.ModelProto`.

    `shapes`: by input, sizes or names that replace the declared dimensions. Open dimensions become symbols of their
    names, or of the input's name and axis where they have none. `values`: inputs that become constants. Raises
    GraphError for what is not supported: operators that are unknown are listed in one error. Raises Undecided, a
    GraphError, where control flow depends on the data: no one graph is such a model, a `Program` is. With `specialise`,
    a shape that inputs decide raises DataDependent naming them, even where the host could run the operator.
    """
    definition = adapter.graph_of(model)
    try:
        return Importer(definition, name or definition.name, specialise).graph(shapes or {}, values or {})
    except (DataDependent, Undecided) as error:
        if isinstance(error, DataDependent) and (specialise or not has_control(definition)):
            raise
        text = "data-dependent control flow is no one graph, compile() runs it as several"
        raise Undecided(f"{error}; {text}") from None


def plain(name: str) -> str:
    """A name that every text form can hold."""
    return re.sub(r'[^!-~]|["\\]', "_", name) or "_"


class Importer:
    """What the scopes of one import share: the builder, and the symbols of open dimensions."""

    def __init__(self, definition: GraphDef, name: str, specialise: bool) -> None:
        self.definition = definition
        self.specialise = specialise
        self.F = ImportBuilder(plain(name))
        self.symbols: dict[str, str] = {}

    def graph(self, shapes: Shapes, values: Mapping[str, Array]) -> Graph:
        scope = Scope(self, self.definition.opsets)
        for name, array in values.items():
            scope.define(name, np.asarray(array))
        for name, value in self.inputs(shapes, values).items():
            scope.define(name, value)
        scope.run(self.definition)
        taken: set[str] = set()
        for name in self.definition.outputs:
            value = self._output(scope.lookup(name), plain(name), taken)
            taken.add(value.name)
            self.F.output(value)
        return self.F.build()

    def inputs(self, shapes: Shapes, known: Container[str] = ()) -> dict[str, Value]:
        """The model's inputs, but for those that are known, made and by name."""
        _refuse_unknown(self.definition)
        unknown = sorted(set(shapes) - {_name_of(each) for each in self.definition.inputs})
        if unknown:
            names = ", ".join(_name_of(each) for each in self.definition.inputs)
            raise GraphError(f"shapes: {unknown[0]!r} is no input; the inputs are {names or 'none'}")
        made: dict[str, Value] = {}
        for info in self.definition.inputs:
            if isinstance(info, str):
                raise GraphError(f"input {info!r}: its rank is not declared")
            if info.name not in known:
                shape = self._shape(info, shapes.get(info.name))
                made[info.name] = self.F.input(plain(info.name), info.dtype, shape)
        return made

    def _output(self, operand: Operand, name: str, taken: set[str]) -> Value:
        value = self.F.lift(operand, name)
        if value.name == name and name not in taken:
            return value
        return self.F.emit("copy", [value], {}, name)

    # -- open dimensions -----------------------------------------------------------------------------------------------
    def _shape(self, info: TensorInfo, given: Sequence[int | str] | None) -> Shape:
        if given is not None and len(given) != len(info.shape):
            raise GraphError(f"shapes[{info.name!r}]: {len(given)} dimensions, expected {len(info.shape)}")
        result: list[Dim] = []
        for axis, declared in enumerate(info.shape):
            extent = declared if given is None else given[axis]
            if given is not None and isinstance(declared, int) and declared != extent:
                raise GraphError(f"shapes[{info.name!r}]: axis {axis} is {extent}, the model declares {declared}")
            if isinstance(extent, int):
                result.append(extent)
            else:
                result.append(dims.symbol(self._symbol(extent, info.name, axis)))
        return tuple(result)

    def _symbol(self, wanted: str | None, name: str, axis: int) -> str:
        key = wanted if wanted is not None else f"{name}#{axis}"
        if key not in self.symbols:
            text = (
                re.sub(r"\W", "_", wanted if wanted is not None else f"{name}_{axis}", flags=re.ASCII).strip("_") or "n"
            )
            text = f"n{text}" if text[0].isdigit() else text
            if RESERVED.fullmatch(text) or text in ("min", "max"):
                text += "_"
            while text in self.symbols.values():
                text += "_"
            self.symbols[key] = text
        return self.symbols[key]


def _name_of(info: TensorInfo | str) -> str:
    return info if isinstance(info, str) else info.name


def _nodes(definition: GraphDef) -> Iterator[NodeDef]:
    for node in definition.nodes:
        yield node
        for value in node.attributes.values():
            if isinstance(value, GraphDef):
                yield from _nodes(value)


def has_control(definition: GraphDef) -> bool:
    """Whether there is an If, a Loop or a Scan."""
    return any(node.key in control.CONTROL for node in definition.nodes)


def _refuse_unknown(definition: GraphDef) -> None:
    """One error for all operators that nothing here knows."""
    found: dict[str, int] = {}
    for node in _nodes(definition):
        opset = definition.opsets.get(node.domain, 1)
        if node.key not in mapping.MAPPING and node.key not in control.CONTROL and not adapter.is_known(node, opset):
            found[node.key] = found.get(node.key, 0) + 1
    if found:
        listed = ", ".join(f"{key} ({count}x)" for key, count in sorted(found.items()))
        raise GraphError(f"operators that are not supported: {listed}")


class Scope:
    """Names of one graph, body or function; bodies see the names around them."""

    def __init__(self, importer: Importer, opsets: Mapping[str, int], around: Scope | None = None) -> None:
        self.importer = importer
        self.F = importer.F
        self.opsets = opsets
        self.around = around
        self.names: dict[str, Operand] = {}
        self._lifted: dict[str, Value] = {}

    def define(self, name: str, operand: Operand) -> None:
        if isinstance(operand, np.ndarray):
            if operand.dtype == object:
                raise DTypeError("strings are not supported")
            dtypes.of(operand.dtype)  # 4-bit numbers and the like: an error here names the tensor
        self.names[name] = operand

    def lookup(self, name: str) -> Operand:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.around
        raise GraphError(f"value {name!r} is not defined")

    def lift(self, name: str) -> Value:
        """The tensor of a name; known ones become constants, once."""
        scope: Scope = self
        while name not in scope.names and scope.around is not None:
            scope = scope.around
        operand = scope.lookup(name)
        if isinstance(operand, Value):
            return operand
        made = scope._lifted.get(name)
        if made is None or made.name not in self.F.names:
            made = scope._lifted[name] = self.F.lift(operand, plain(name))
        return made

    # -- walking -------------------------------------------------------------------------------------------------------
    def run(self, definition: GraphDef) -> None:
        for name, array in definition.initialisers.items():
            try:
                self.define(name, array)
            except AutofusionError as error:
                raise type(error)(f"initialiser {name!r}: {error}") from None
        for node in definition.nodes:
            self.node(node)

    def node(self, node: NodeDef) -> None:
        """Raises AutofusionError with the operator and its name."""
        try:
            made = self._make(node)
        except AutofusionError as error:
            kind = GraphError if isinstance(error, Unmapped) else type(error)
            text = str(error)
            text = text if text.startswith(f"{node.op} (") else f"{node.label}: {text}"
            if isinstance(error, DataDependent):
                raise DataDependent(text, error.value, self.F.sources(error.value)) from None
            raise kind(text) from None
        for name, operand in zip(node.outputs, made, strict=False):
            if name and operand is not None:
                self.define(name, operand)

    def _make(self, node: NodeDef) -> Sequence[Operand | None]:
        operands = [self.lookup(name) if name else None for name in node.inputs]
        opset = self.opsets.get(node.domain, 1)
        if node.key in control.CONTROL:
            return _plainly(control.CONTROL[node.key], self, node, operands)
        shape = mapping.shape_of(node, operands)
        if shape is not None:
            return [shape]
        maker = mapping.MAPPING.get(node.key)
        reasons: list[AutofusionError] = []
        if maker is not None:
            folded = self._folded(node, operands, opset, maker)
            if folded is not None:
                return folded  # type: ignore[no-any-return]
        mark = self.F.mark()
        for attempt in (self._mapped, self._body, self._on_host):
            try:
                return _plainly(attempt, node, operands, opset)
            except AutofusionError as error:
                if isinstance(error, DataDependent) and self.importer.specialise:
                    raise
                reasons.append(error)
                self.F.undo(mark)
        decided = next((error for error in reasons if isinstance(error, DataDependent)), None)
        if decided is not None:
            raise decided
        # What is wrong with the model says more than which ways were tried.
        wrong = [str(error) for error in reasons if not isinstance(error, Unmapped)]
        raise GraphError(wrong[0] if wrong else "; ".join(dict.fromkeys(filter(None, map(str, reasons)))))

    def _folded(self, node: NodeDef, operands: Sequence[Operand | None], opset: int, maker: Any) -> Any:
        """The value where all operands are known; None where one is not, or where it does not compute."""
        if any(isinstance(each, Value) for each in operands):
            return None
        symbolic = any(isinstance(each, Dims) for each in operands)
        if symbolic and any(isinstance(a, np.ndarray) and a.dtype.kind not in "iub" for a in operands):
            return None
        if sum(each.size for each in operands if isinstance(each, np.ndarray)) > FOLDED:
            return None
        lifted: list[Any] = [
            None if a is None else a.array if isinstance(a, Dims) else np.asarray(a, object if symbolic else None)
            for a in operands
        ]
        call = Call(
            Symbolic() if symbolic else Known(), node.op, opset, operands, lifted, node.attributes, node.outputs, self
        )
        try:
            made = maker(call)
        except (AutofusionError, TypeError, ValueError, AttributeError, IndexError):
            return None
        results = list(made) if isinstance(made, list | tuple) else [made]
        if any(isinstance(a, np.ndarray) and a.size > FOLDED for a in results):
            return None
        return [_settled(each) for each in results]

    def _call(self, node: NodeDef, operands: Sequence[Operand | None], opset: int) -> Call:
        lifted = [
            None if operand is None else operand if isinstance(operand, Value) else (lambda n=name: self.lift(n))
            for operand, name in zip(operands, node.inputs, strict=True)
        ]
        return Call(self.F, node.op, opset, operands, lifted, node.attributes, node.outputs, self)

    def _mapped(self, node: NodeDef, operands: Sequence[Operand | None], opset: int) -> Sequence[Operand | None]:
        maker = mapping.MAPPING.get(node.key)
        if maker is None:
            raise Unmapped("")
        self.F.hint = plain(next((o for o in node.outputs if o), node.op))
        made = maker(self._call(node, operands, opset))
        results = list(made) if isinstance(made, list | tuple) else [made]
        for position, (value, name) in enumerate(zip(results, node.outputs, strict=False)):
            if isinstance(value, Value) and name and not any(value is each for each in operands):
                renamed = self.F.rename(value, plain(name))
                results = [renamed if each is value else each for each in results]
                assert results[position] is renamed
        return results

    def inner(self, body: GraphDef, given: Mapping[str, Operand]) -> list[Operand]:
        """The outputs of a body that sees the names around it."""
        scope = Scope(self.importer, self.opsets, self)
        scope.names.update(given)
        scope.run(body)
        return [scope.lookup(name) for name in body.outputs]

    # -- the other ways -----------------------------------------------------------------------------------------------
    def _body(self, node: NodeDef, operands: Sequence[Operand | None], opset: int) -> Sequence[Operand | None]:
        """What a standard function stands for."""
        types = [None if each is None else (self._dtype(each), _open_as_none(each.shape)) for each in operands]
        found = adapter.body_of(node, opset, types)
        if found is None:
            raise Unmapped("" if node.key in mapping.MAPPING else "not supported")
        nodes, inputs, (outputs, opsets) = found
        inner = Scope(self.importer, opsets)
        for name, operand in zip(inputs, operands, strict=False):
            if operand is not None:
                inner.names[name] = operand
        absent = set(inputs[len(operands) :]) | {n for n, o in zip(inputs, operands, strict=False) if o is None}
        for each in nodes:
            names = tuple("" if name in absent else name for name in each.inputs)
            inner.node(NodeDef(each.op, each.domain, each.name, names, each.outputs, each.attributes, each.proto))
        return [inner.names.get(name) for name in outputs]

    def _on_host(self, node: NodeDef, operands: Sequence[Operand | None], opset: int) -> Sequence[Operand | None]:
        """ONNX's reference, between launches."""
        given = {name: each for name, each in zip(node.inputs, operands, strict=True) if name and each is not None}
        return host.make(self, node, given, opset)

    @staticmethod
    def _dtype(operand: Operand) -> DType:
        if isinstance(operand, Value):
            return operand.dtype
        return DType.INT64 if isinstance(operand, Dims) else dtypes.of(operand)


def _plainly(attempt: Any, *given: Any) -> Sequence[Operand | None]:
    """A model may break any of a maker's assumptions (ranks, counts, attributes): that is its fault, and said so."""
    try:
        return attempt(*given)  # type: ignore[no-any-return]
    except AutofusionError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, ZeroDivisionError, OverflowError) as error:
        raise GraphError(f"its inputs or attributes do not fit: {type(error).__name__}: {error}") from error


def _open_as_none(shape: Shape) -> list[int | None]:
    return [None if isinstance(d, Expr) else int(d) for d in shape]


def _settled(result: Any) -> Operand | None:
    """Dims that came out as numbers are an array of integers."""
    if result is None:
        return None
    array = np.asarray(result)
    if array.dtype != object:
        return array
    if all(isinstance(each, int | np.integer | bool | np.bool_) for each in array.flat):
        boolean = array.size > 0 and all(isinstance(each, bool | np.bool_) for each in array.flat)
        return array.astype(bool if boolean else np.int64)
    if any(each is None for each in array.flat):
        raise GraphError("an input or an attribute is missing")
    return Dims(array)
