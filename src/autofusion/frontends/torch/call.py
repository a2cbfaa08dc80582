"""One ATen operator with its operands: what the functions of the table read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from autofusion import dtypes
from autofusion.dims import Dim, Expr, Shape, product
from autofusion.dtypes import DType
from autofusion.frontends.torch.adapter import Unmapped
from autofusion.frontends.torch.reals import Real
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Value
from autofusion.ops import TABLE, TensorType
from autofusion.ops.rules import axes_of, axis_of

Maker: TypeAlias = "Callable[[Call], Any]"
Number = bool | int | float | Expr | Real

# Operators whose second operand, where it is a number or a tensor without dimensions, eager mode takes as it is given.
# It rounds every other one to the narrow float type that it meets.
KEEPING = frozenset(("mul", "div", "floor_divide"))


DIVISOR = "divisor"  # what values are named that a check for zeros makes


class Place(NamedTuple):
    """How an argument lies in its storage. `offset`: where it begins, in elements; None where nothing tells."""

    is_row_major: bool = True
    offset: Dim | None = None


@dataclass
class Call:
    """`given`: the arguments by the schema's names, defaults filled in; tensors are values of the builder `F`, sizes
    are dims, element types are ours. `results`: what PyTorch says of each result, None for one that is no tensor.
    `used`: which results anything reads. `place`: how a tensor among the arguments lies, by its name.

    A maker returns a value or a list of them, in the order of the results; None for a result that nothing reads.
    """

    F: GraphBuilder
    op: str
    given: Mapping[str, Any]
    results: Sequence[TensorType | None]
    used: Sequence[bool] = field(default=(True,))
    place: Callable[[str], Place] = field(default=lambda name: Place())

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    @property
    def x(self) -> Value:
        """The first operand."""
        return next(iter(self.given.values()))  # type: ignore[no-any-return]

    @property
    def result(self) -> TensorType:
        found = self.results[0]
        if found is None:
            raise Unmapped(f"{self.op}: its first result is no tensor")
        return found

    # -- values --------------------------------------------------------------------------------------------------------
    def cast(self, value: Value, dtype: DType) -> Value:
        """Floats become narrow integers by way of int64, so that they wrap as PyTorch's do."""
        if value.dtype is dtype:
            return value
        if value.dtype.is_float and dtype.is_integer and dtype.numpy.itemsize < 4:
            value = self.F.cast(value, dtype=DType.INT64)
        return self.F.cast(value, dtype=dtype)

    def scalar(self, value: Any, dtype: DType) -> Value:
        """A rank-0 value. Raises Unmapped for a number that the type does not have."""
        if not isinstance(value, Number):
            raise Unmapped(f"{self.op}: {value!r} is no real number")
        if isinstance(value, Real):
            if not dtype.is_float:
                raise Unmapped(f"{self.op}: a number that is computed from open sizes as {dtype}")
            return self.cast(value.value(self.F), dtype)
        if dtype.is_integer and not isinstance(value, Expr):
            if isinstance(value, float) and not value.is_integer():
                value = math.trunc(value) if math.isfinite(value) else 0
            limits = np.iinfo(dtype.numpy)
            if not limits.min <= value <= limits.max:
                raise Unmapped(f"{self.op}: {value} does not fit {dtype}")
        return self.F.scalar(value, dtype)

    def lift(self, value: Any, dtype: DType) -> Value:
        """A value or a number at an element type."""
        if isinstance(value, Expr) and dtype.is_reduced:
            return self.cast(self.scalar(value, DType.INT64), dtype)
        return self.cast(value, dtype) if isinstance(value, Value) else self.scalar(value, dtype)

    def held(self, value: Any, dtype: DType) -> Value:
        """As `lift`. Raises Unmapped for a number above the type's range, which eager mode refuses here."""
        if dtype.is_float and isinstance(value, int | float) and largest(dtype) < abs(value) < math.inf:
            raise Unmapped(f"{self.op}: {value} does not fit {dtype}")
        return self.lift(value, dtype)

    def full(self, value: Any, shape: Shape, dtype: DType) -> Value:
        return self.F.expand(self.held(value, dtype), shape=shape)

    def reshape(self, value: Value, shape: Sequence[Dim]) -> Value:
        return value if value.shape == tuple(shape) else self.F.reshape(value, shape=tuple(shape))

    def expand(self, value: Value, shape: Sequence[Dim]) -> Value:
        """Extents that are not 1 stay as they are: max(0, n - 1) is n - 1 to PyTorch, whose guards say so."""
        lead = len(shape) - len(value.shape)
        made = (*shape[:lead], *(w if have == 1 else have for have, w in zip(value.shape, shape[lead:], strict=True)))
        return value if value.shape == made else self.F.expand(value, shape=made)

    def transpose(self, value: Value, axes: Sequence[int]) -> Value:
        return value if list(axes) == list(range(len(axes))) else self.F.transpose(value, axes=tuple(axes))

    def cut(self, value: Value, axis: int, start: Dim, stop: Dim, step: int = 1) -> Value:
        """A slice along one axis; bounds as the row takes them."""
        shape = value.shape
        starts: list[Dim] = [0] * len(shape)
        stops, steps = list(shape), [1] * len(shape)
        starts[axis], stops[axis], steps[axis] = start, stop, step
        return self.F.slice(value, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))

    def divisor(self, value: Value, given: Any) -> Value:
        """What to divide by; of integers launching raises DivisionByZero where one is 0. `given`: what it was lifted
        from. The check is a lookup among one element: 0 is at position 1, which it does not have."""
        if value.dtype.is_float or 0 in self.result.shape:
            return value
        if not isinstance(given, Value | Expr | Real):
            if given == 0:
                raise Unmapped(f"{self.op}: division by zero")
            return value
        at = self.F.cast(self.F.eq(value, self.scalar(0, value.dtype)), dtype=DType.INT64)
        none = self.full(0, (1,), value.dtype)
        return self.F.add(value, self.F.gather(none, at, axis=0, wraps=False, name=DIVISOR))

    def first(self, value: Value, axis: int, count: Dim) -> Value:
        """The first `count` along an axis that has as many; where that is open, a guard says so."""
        made = self.cut(value, axis, 0, count)
        return self.F.expand(made, shape=(*value.shape[:axis], count, *value.shape[axis + 1 :]))

    def row(self, name: str) -> Callable[..., Value]:
        if name not in TABLE:
            raise Unmapped(f"there is no row {name!r}")
        return getattr(self.F, name)  # type: ignore[no-any-return]

    # -- element types -------------------------------------------------------------------------------------------------
    def common(self, *operands: Any) -> DType:
        """The type at which operands meet, by PyTorch's categories: a tensor with dimensions comes before one without,
        and that before a number, unless the later one is of a higher kind (bool, integer, float)."""
        groups: list[list[DType]] = [[], [], []]
        for each in operands:
            if isinstance(each, Value):
                groups[0 if each.shape else 1].append(each.dtype)
            else:
                groups[2].append(_type_of_number(each))
        found: DType | None = None
        for group in groups:
            merged: DType | None = None
            for dtype in group:
                merged = dtype if merged is None else dtypes.promote(merged, dtype)
            if merged is not None and (found is None or _rank(merged) > _rank(found)):
                found = merged
        assert found is not None
        return found

    def meet(self, *operands: Any, floats: bool = False) -> tuple[list[Value], DType]:
        """The operands at the type that PyTorch computes in, and the type that the result is rounded to. `floats`:
        integers become the default float type."""
        dtype = self.common(*operands)
        if floats and not dtype.is_float:
            dtype = DType.FLOAT32
        if dtype.is_reduced and self.op.partition(".")[0] in KEEPING and not _holds(dtype, operands[1]):
            first = self.cast(self.lift(operands[0], dtype), DType.FLOAT32)
            return [first, self.lift(operands[1], DType.FLOAT32)], dtype
        return [self.lift(o, dtype) for o in operands], dtype

    def pointwise(self, row: str, *operands: Any, floats: bool = False, **attrs: Any) -> Value:
        """One elementwise row where its operands meet, rounded to the result's type."""
        values, dtype = self.meet(*operands, floats=floats)
        made = self.row(row)(*values, **attrs)
        return self.cast(made, made.dtype if made.dtype is DType.BOOL else dtype)

    # -- axes ----------------------------------------------------------------------------------------------------------
    def axis(self, name: str = "dim", value: Value | None = None) -> int:
        """The axis that an argument names; 0 for tensors without."""
        rank = len((value or self.x).shape)
        return axis_of(self[name], rank) if rank else 0

    def axes(self, name: str = "dim") -> tuple[int, ...]:
        """The axes that an argument lists; all where it lists none."""
        found = self[name]
        listed = [found] if isinstance(found, int) else list(found or ())
        rank = len(self.x.shape)
        if not rank:
            return ()
        return tuple(axes_of(tuple(listed) if listed else None, rank))

    def count(self, axes: Sequence[int]) -> Dim:
        """How many elements a fold over these axes of the first operand has."""
        return product([self.x.shape[a] for a in axes])


def static(shape: Sequence[Dim], what: str) -> tuple[int, ...]:
    """Numbers. Raises Unmapped for an open one."""
    if any(isinstance(d, Expr) for d in shape):
        raise Unmapped(f"{what} is open: {list(shape)}")
    return tuple(int(d) for d in shape)  # type: ignore[arg-type]


def each_axis(listed: Any, rank: int) -> tuple[int, ...]:
    """A number for each axis, where one may stand for all."""
    found = (listed,) if isinstance(listed, int) else tuple(listed)
    return found * rank if len(found) == 1 else found


def lowest(dtype: DType) -> float | int | bool:
    """What no element is below."""
    if dtype is DType.BOOL:
        return False
    return float("-inf") if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def highest(dtype: DType) -> float | int | bool:
    """What no element is above."""
    if dtype is DType.BOOL:
        return True
    return float("inf") if dtype.is_float else int(np.iinfo(dtype.numpy).max)


def largest(dtype: DType) -> float:
    """The largest finite number of a float type."""
    if dtype is DType.BFLOAT16:
        return 3.3895313892515355e38
    return float(np.finfo(dtype.numpy).max)


def _type_of_number(value: Any) -> DType:
    if isinstance(value, bool):
        return DType.BOOL
    if isinstance(value, int | Expr):
        return DType.INT64
    if isinstance(value, float | Real):
        return DType.FLOAT32
    raise Unmapped(f"{value!r} is no real number")


def _rank(dtype: DType) -> int:
    return 2 if dtype.is_float else 0 if dtype is DType.BOOL else 1


def _holds(dtype: DType, value: Any) -> bool:
    """Whether a narrow float type has the number, or the elements of a tensor that is to meet it there."""
    if isinstance(value, Value):
        return value.dtype is dtype or bool(value.shape)
    if isinstance(value, Expr | Real):
        return False
    with np.errstate(over="ignore"):
        return bool(float(np.asarray(value, np.float64).astype(dtype.numpy)) == value or value != value)
