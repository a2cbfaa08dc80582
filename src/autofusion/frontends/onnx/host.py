"""Operators that nothing here computes run by ONNX's own reference, on the host, and are reported as fallbacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autofusion.dims import Expr
from autofusion.dtypes import Array, DType
from autofusion.errors import GraphError
from autofusion.frontends.onnx import adapter
from autofusion.frontends.onnx.adapter import NodeDef
from autofusion.frontends.onnx.values import DataDependent, Dims, Operand, Unmapped
from autofusion.graph.ir import Value
from autofusion.kinds import Kind
from autofusion.ops import TABLE, Op


def _reference(*arrays: Array, node: str, output: str, shape: Any, dtype: Any) -> Array:
    result = np.asarray(adapter.run_reference(node, list(arrays))[output])
    if result.shape != tuple(shape):
        raise GraphError(f"gave shape {list(result.shape)}, expected {list(shape)}")
    return result.astype(DType(dtype).numpy, copy=False)


TABLE.register(
    Op(
        "onnx_reference",
        Kind.OPAQUE,
        (0, None),
        lambda shapes, attrs: tuple(attrs["shape"]),
        lambda types, attrs: DType(attrs["dtype"]),
        _reference,
        attributes={"node": "", "output": "", "shape": (), "dtype": DType.FLOAT32},
        doc="one output of an ONNX node, by ONNX's reference on the host",
    )
)

RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")


def _ask_for_sizes(scope: Any, given: Mapping[str, Operand]) -> None:
    """Short lists of integers may be what a shape comes from: with their values it may be known."""
    for operand in given.values() if scope.importer.specialise else ():
        short = isinstance(operand, Value) and operand.dtype.is_integer and len(operand.shape) <= 1
        if isinstance(operand, Value) and short and scope.F.sources(operand):
            raise DataDependent("a shape depends on the data", operand)


def make(scope: Any, node: NodeDef, given: Mapping[str, Operand], opset: int) -> Sequence[Value | None]:
    """One host operator an output. Raises Unmapped where a shape or an element type is only known when it runs."""
    for name, operand in given.items():
        if isinstance(operand, Dims) or any(isinstance(d, Expr) for d in operand.shape):
            raise Unmapped(f"input {name!r} has open dimensions")
    if node.op in RANDOM:
        raise Unmapped("random operators are not supported")
    types = {name: (scope._dtype(each), tuple(each.shape)) for name, each in given.items()}
    known = {name: each for name, each in given.items() if isinstance(each, np.ndarray)}
    inferred = adapter.output_types(node, opset, types, known)
    packed = adapter.pack(node, opset)
    made: list[Value | None] = []
    for name, found in zip(node.outputs, inferred, strict=True):
        if not name:
            made.append(None)
            continue
        if found is None:
            _ask_for_sizes(scope, given)
            raise Unmapped(f"the shape of output {name!r} depends on the data, or its type is not supported")
        dtype, shape = found
        attrs = {"node": packed, "output": name, "shape": shape, "dtype": dtype}
        made.append(scope.F.emit("onnx_reference", [scope.lift(n) for n in given], attrs, scope.F.unique(name)))
    return made
