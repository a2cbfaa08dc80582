"""What an ONNX value is at import: a tensor of the graph, an array that is known, or integers over open dimensions.

Operators on known values are computed at import with the very mapping that makes nodes: `Known` computes with arrays,
`Symbolic` with dims, so that chains of Shape, Gather, Mul, Concat end in the shape that a Reshape reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from autofusion import dims
from autofusion.dims import Dim, Expr
from autofusion.dtypes import Array, DType
from autofusion.errors import AutofusionError, GraphError
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Input, Node, Value
from autofusion.kinds import Kind
from autofusion.ops import TABLE, TensorType
from autofusion.ops.reference import Evaluator
from autofusion.ops.structure import slice_bounds


class Unmapped(AutofusionError):
    """This way of making an operator does not serve here; another may."""


class DataDependent(GraphError):
    """A value decides a shape, but is only known when the graph runs. `inputs`: what it is computed from."""

    def __init__(self, text: str, value: Value, inputs: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.value = value
        self.inputs = inputs


class Undecided(GraphError):
    """Which operators run is only known when the graph runs: no one graph says it, a `Program` does."""


class Unknown(Unmapped):
    """Not computable on dims alone."""


@dataclass(frozen=True, eq=False)
class Dims:
    """Integers (int64) that are dims: an array of objects, of any rank."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)


Operand: TypeAlias = Value | Array | Dims


def of_dims(items: Any) -> Operand:
    """An int64 array where all are ints, else Dims."""
    array = np.empty(np.shape(items), object)
    array[...] = items
    if all(isinstance(each, int) for each in array.flat):
        return array.astype(np.int64)
    return Dims(array)


class Known(Evaluator):
    """Computes with arrays."""

    def constant(self, array: Array) -> Array:
        return np.asarray(array)


def _each(function: Callable[..., Dim]) -> Callable[..., Array]:
    vectorised = np.frompyfunc(function, function.__code__.co_argcount, 1)

    def apply(*arrays: Array) -> Array:
        result = np.empty(np.broadcast_shapes(*(a.shape for a in arrays)), object)
        result[...] = vectorised(*arrays)
        return result

    return apply


def _floor_divide(a: Dim, b: Dim) -> Dim:
    if isinstance(b, int) and b < 0:
        a, b = dims.multiply(a, -1), -b
    if b == 0:
        raise Unknown("division by zero")
    return dims.floordiv(a, b)


def _equal(a: Dim, b: Dim) -> bool:
    difference = dims.add(a, dims.multiply(b, -1))
    if isinstance(difference, int):
        return difference == 0
    if (isinstance(a, int) and a < 0) or (isinstance(b, int) and b < 0):
        return False  # a size is never -1
    raise Unknown(f"whether {a} is {b} is open")


def _slice(a: Array, starts: Any, stops: Any, steps: Any) -> Array:
    if a.ndim != 1:
        raise Unknown("a slice of a matrix")
    ((begin, count, step),) = slice_bounds({"starts": starts, "stops": stops, "steps": steps}, a.shape)
    if not isinstance(begin, int) or not isinstance(count, int):
        raise Unknown("a slice of an open length")
    return a[[begin + i * step for i in range(count)]]


def _fold(function: Callable[[Any], Dim]) -> Callable[..., Array]:
    def apply(a: Array, axes: Any = None, keepdims: bool = False) -> Array:
        result = np.empty((1,) * a.ndim if keepdims else (), object)
        if axes is not None and len(axes) != a.ndim:
            raise Unknown("a fold of some axes")
        result[...] = function(a.flat)
        return result

    return apply


def _total(items: Any) -> Dim:
    total: Dim = 0
    for each in items:
        total = dims.add(total, each)
    return total


_DIMS: dict[str, Callable[..., Any]] = {
    "add": _each(lambda a, b: dims.add(a, b)),
    "sub": _each(lambda a, b: dims.add(a, dims.multiply(b, -1))),
    "mul": _each(lambda a, b: dims.multiply(a, b)),
    "neg": _each(lambda a: dims.multiply(a, -1)),
    "int_floor_divide": _each(_floor_divide),
    "floor_divide": _each(_floor_divide),
    "remainder": _each(lambda a, b: dims.modulo(a, b)),
    "maximum": _each(lambda a, b: dims.maximum(a, b)),
    "minimum": _each(lambda a, b: dims.minimum(a, b)),
    "eq": _each(_equal),
    "copy": lambda a: a,
    "reshape": lambda a, shape: a.reshape(shape),
    "transpose": lambda a, axes=None: np.transpose(a, axes),
    "expand": lambda a, shape: np.broadcast_to(a, shape),
    "concat": lambda *arrays, axis=0: np.concatenate(arrays, axis=axis),
    "gather": lambda a, index, axis=0: np.asarray(np.take(a, index.astype(np.int64), axis=axis)),
    "slice": _slice,
    "sum": _fold(_total),
    "prod": _fold(lambda items: dims.product(items)),
    "where": lambda c, a, b: np.where(c.astype(bool), a, b),
}


class Symbolic:
    """Computes with dims: arrays of objects, of element type int64. Raises Unknown for what dims cannot say."""

    def __getattr__(self, op: str) -> Callable[..., Any]:
        if op.startswith("_") or op not in _DIMS:
            raise Unknown(f"{op} of open dimensions")

        def call(*operands: Any, name: str = "", **attrs: Any) -> Array:
            arrays = [a if isinstance(a, np.ndarray) else self.scalar(a, DType.INT64) for a in operands]
            return np.asarray(_DIMS[op](*arrays, **attrs), object)

        return call

    def cast(self, a: Array, dtype: Any) -> Array:
        if not DType(dtype).is_integer or DType(dtype).size < 4:
            raise Unknown(f"open dimensions as {dtype}")
        return a

    def type_of(self, value: Array) -> TensorType:
        return TensorType(DType.INT64, tuple(value.shape))

    def scalar(self, value: Any, dtype: DType) -> Array:
        result = np.empty((), object)
        result[()] = value
        return result

    def constant(self, array: Array) -> Array:
        return np.asarray(array).astype(object)


class ImportBuilder(GraphBuilder):
    """Makes nodes that are called after the ONNX value that they are for; what a failed attempt made goes again."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.hint = "t"

    def emit(self, op: str, inputs: Any, attrs: Any, name: str = "t") -> Value:
        if op not in TABLE:
            raise Unmapped(f"there is no row {op!r}")
        source = TABLE.get(op).kind is Kind.SOURCE
        return super().emit(op, inputs, attrs, name if source or name != "t" else f"{self.hint}.{op}")

    def __getattr__(self, op: str) -> Callable[..., Value]:
        if not op.startswith("_") and op not in TABLE:
            raise Unmapped(f"there is no row {op!r}")
        return super().__getattr__(op)

    def mark(self) -> Any:
        return len(self.body), dict(self.guards), dict(self._scalars), set(self.names)

    def undo(self, mark: Any) -> None:
        length, self.guards, self._scalars, self.names = mark
        del self.body[length:]

    def input_shape(self, name: str) -> Any:
        return next(line.value.shape for line in self.body if isinstance(line, Input) and line.value.name == name)

    def sources(self, value: Value) -> tuple[str, ...]:
        """The inputs that a value is computed from."""
        makers = {v.name: line for line in self.body if isinstance(line, Node) for v in line.outputs}
        inputs = {line.value.name for line in self.body if isinstance(line, Input)}
        found, pending, seen = set(), [value.name], set()
        while pending:
            name = pending.pop()
            if name in inputs:
                found.add(name)
            elif name in makers and name not in seen:
                seen.add(name)
                pending += makers[name].inputs
        return tuple(sorted(found))

    def rename(self, value: Value, name: str) -> Value:
        """The value under the name, where it is what the last node made; else the value as it is."""
        last = self.body[-1] if self.body else None
        if not isinstance(last, Node) or last.output != value or last.kind is Kind.SOURCE or name in self.names:
            return value
        self.names.discard(value.name)
        self.names.add(name)
        made = Value(name, value.dtype, value.shape)
        self.body[-1] = Node((made,), last.op, last.inputs, last.attributes)
        return made

    def lift(self, operand: Operand, name: str = "c") -> Value:
        """A tensor of the graph that holds the operand."""
        if isinstance(operand, Value):
            return operand
        if isinstance(operand, Dims):
            return self._dims(operand)
        if operand.size == 1 and not (operand.dtype.kind == "f" and np.isnan(operand).any()):
            first = operand.reshape(()).item()
            dtype = DType(operand.dtype.name)
            if not operand.ndim:
                return self.scalar(first, dtype)
            first = float(first) if dtype.is_float else first
            return self.emit("full", [], {"shape": operand.shape, "value": first, "dtype": dtype}, "k")
        return self.constant(operand, name)

    def _dims(self, operand: Dims) -> Value:
        parts = [self.scalar(each, DType.INT64) for each in operand.array.flat]
        if not operand.array.ndim:
            return parts[0]
        joined = self.concat(*(self.reshape(part, shape=(1,)) for part in parts), axis=0)
        return joined if operand.array.ndim == 1 else self.reshape(joined, shape=operand.shape)


def has_open(items: Any) -> bool:
    """Whether one of the dims is open."""
    return any(isinstance(each, Expr) for each in items)
