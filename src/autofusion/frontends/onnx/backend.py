"""`Backend`: compiled models behind ONNX's own interface, `onnx.backend.base.Backend`."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import numpy as np

from autofusion import api
from autofusion.dtypes import Array
from autofusion.errors import ArgumentError, GraphError, TargetError
from autofusion.frontends.onnx import adapter
from autofusion.frontends.onnx.importer import from_model
from autofusion.frontends.onnx.program import Program
from autofusion.frontends.onnx.values import DataDependent, Undecided

VARIANTS = 64  # compiled variants of one model that are kept


def supports(device: str) -> bool:
    """`CPU`, with or without a number."""
    return device.partition(":")[0].upper() == "CPU"


def prepare(model: Any, device: str = "CPU", **options: Any) -> Any:
    """The compiled model: `.run(inputs)` gives its outputs by position and name; `.compiled` is what was compiled.
    `numerics`: strict unless said otherwise, as the suite's expected values round after every operator.

    Raises TargetError for another device, GraphError for what is not supported.
    """
    if not supports(device):
        raise TargetError(f"device {device!r}: only CPU runs here")
    return _representation()(model, options.get("numerics", "strict"))


def _check_small(name: str, array: Array) -> None:
    """Sizes and axes are short lists; data that decides a shape is not taken for a constant."""
    if array.ndim > 1 or array.size > 64:
        raise GraphError(f"input {name!r} {list(array.shape)} decides a shape: data-dependent shapes are not supported")


def _results(names: Sequence[str], values: Sequence[Array]) -> Any:
    return namedtuple("Outputs", names, rename=True)(*values)


@functools.cache
def _representation() -> type:
    base = adapter.module("onnx.backend.base")

    class Prepared(base.BackendRep):  # type: ignore[misc, name-defined]
        """One model; compiled anew for new values of inputs that decide shapes (axes, sizes, a Reshape's shape), and as
        a Program where its control flow depends on data."""

        def __init__(self, model: Any, numerics: str) -> None:
            self.model = model
            self.numerics = numerics
            declared = {value.name for value in model.graph.initializer}
            self.inputs = [value.name for value in model.graph.input if value.name not in declared]
            self.outputs = [value.name for value in model.graph.output]
            self.deciding: list[str] = []
            self._variants: dict[Any, tuple[api.Compiled | Program, list[str]]] = {}
            try:
                self.compiled = self._compiled({})[0]
            except DataDependent as error:
                self._decide(error)

        def _decide(self, error: DataDependent) -> None:
            """Take the inputs that a shape comes from for constants. Raises the error where there are none to take."""
            new = [name for name in error.inputs if name not in self.deciding]
            if not new:
                raise error
            self.deciding += new

        def _compiled(self, values: dict[str, Array]) -> tuple[api.Compiled | Program, list[str]]:
            key = tuple((name, a.dtype.str, a.shape, a.tobytes()) for name, a in values.items())
            if key not in self._variants:
                try:
                    graph = from_model(self.model, values=values, specialise=True)
                except Undecided:
                    self.deciding = []
                    self._variants = {(): (Program(self.model, numerics=self.numerics), self.inputs)}
                    return self._variants[()]
                left = [name for name in self.inputs if name not in values]
                if len(self._variants) >= VARIANTS:
                    self._variants.clear()
                self._variants[key] = api.compile_graph(graph, numerics=self.numerics), left
            return self._variants[key]

        def run(self, inputs: Any, **options: Any) -> Any:
            """`inputs`: a sequence in the model's order, a mapping by name, or one array. Raises ArgumentError."""
            if isinstance(inputs, np.ndarray):
                inputs = [inputs]
            if not isinstance(inputs, dict):
                if len(inputs) != len(self.inputs):
                    raise ArgumentError(f"{len(inputs)} inputs given, expected {', '.join(self.inputs) or 'none'}")
                inputs = dict(zip(self.inputs, inputs, strict=True))
            missing = [name for name in self.inputs if name not in inputs]
            if missing:
                raise ArgumentError(f"input {missing[0]!r} is missing")
            arrays = {name: np.asarray(inputs[name]) for name in self.inputs}
            while True:
                for name in self.deciding:
                    _check_small(name, arrays[name])
                try:
                    self.compiled, names = self._compiled({name: arrays[name] for name in self.deciding})
                    break
                except DataDependent as error:
                    self._decide(error)
            return _results(self.outputs, self.compiled.run([arrays[name] for name in names]))

    return Prepared


@functools.cache
def backend() -> type:
    """The class; made when it is first asked for, so that nothing else needs the onnx package."""
    base = adapter.module("onnx.backend.base")
    helper = adapter.module("onnx.helper")

    class Backend(base.Backend):  # type: ignore[misc, name-defined]
        """graph-autofusion as a backend of ONNX."""

        @classmethod
        def is_compatible(cls, model: Any, device: str = "CPU", **options: Any) -> bool:
            return supports(device)

        @classmethod
        def prepare(cls, model: Any, device: str = "CPU", **options: Any) -> Any:
            return prepare(model, device, **options)

        @classmethod
        def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **options: Any) -> Any:
            return prepare(model, device).run(inputs)

        @classmethod
        def run_node(cls, node: Any, inputs: Any, device: str = "CPU", outputs_info: Any = None, **options: Any) -> Any:
            """One node on arrays, of the newest opset or the one that `opset_version` gives."""
            names = [name for name in node.input if name]
            if isinstance(inputs, dict):
                inputs = [inputs[name] for name in names]
            arrays = [np.asarray(a) for a in inputs]
            if len(arrays) != len(names):
                raise ArgumentError(f"{node.op_type}: {len(arrays)} inputs given, the node reads {len(names)}")
            types = [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for name, a in dict(zip(names, arrays, strict=True)).items()
            ]
            outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
            version = options.get("opset_version", adapter.module("onnx.defs").onnx_opset_version())
            opsets = [helper.make_operatorsetid(node.domain, version if not node.domain else 1)]
            model = helper.make_model(helper.make_graph([node], "node", types, outputs), opset_imports=opsets)
            return prepare(model, device).run(list(dict(zip(names, arrays, strict=True)).values()))

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return supports(device)

    return Backend
