"""Gradients of average pools: each place of the operand asks the windows that hold it.

Along an axis the windows that hold a place lie side by side, so `taps` of them from the first on are all; each tap
gathers what the window says, and zero where the window does not hold the place after all.

Those of max pools run in PyTorch: asking whether each window that holds a place has its largest there costs more than
writing what each window says to its one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autofusion.dtypes import DType
from autofusion.frontends.torch.adapter import Unmapped
from autofusion.frontends.torch.call import Call, each_axis, static
from autofusion.graph.ir import Value

TAPS = 64  # windows that hold one place


@dataclass(frozen=True)
class Axis:
    """`count` windows over `extent` places. `first`, `last`: of values of int64, the windows that hold places, not
    limited to those that are; `lengths`: how many places each window counts."""

    extent: int
    count: int
    taps: int
    first: Callable[[Value], Value]
    last: Callable[[Value], Value]
    lengths: Sequence[int]


def average_pool_gradient(n: Call) -> Value:
    """avg_pool2d_backward, avg_pool3d_backward."""
    rank = 2 if "2d" in n.op else 3
    kernel, padding = each_axis(n["kernel_size"], rank), each_axis(n["padding"], rank)
    strides = each_axis(n["stride"] or kernel, rank)
    axes = _strided(n, rank, kernel, strides, padding, bool(n["count_include_pad"]))
    return _spread(n, axes, n["divisor_override"])


def adaptive_average_pool_gradient(n: Call) -> Value:
    """_adaptive_avg_pool2d_backward, _adaptive_avg_pool3d_backward."""
    return _spread(n, _adaptive(n, 2 if "2d" in n.op else 3), None)


# -- windows -----------------------------------------------------------------------------------------------------------
def _extents(n: Call, rank: int) -> list[tuple[int, int]]:
    """Places and windows of each axis."""
    places = static(n["self"].shape[-rank:], "a pool's extent")
    return list(zip(places, static(n["grad_output"].shape[-rank:], "a pool's extent"), strict=True))


def _strided(
    n: Call, rank: int, reach: Sequence[int], strides: Sequence[int], padding: Sequence[int], include_pad: bool
) -> list[Axis]:
    """Window o holds [o · stride − padding, … + reach)."""
    made = []
    for (extent, count), r, s, p in zip(_extents(n, rank), reach, strides, padding, strict=True):
        spans = [(o * s - p, min(o * s - p + r, extent + p)) for o in range(count)]
        lengths = [b - a if include_pad else min(b, extent) - max(a, 0) for a, b in spans]
        first, last = _quotient(n, 1, p - r + s, s), _quotient(n, 1, p, s)
        made.append(Axis(extent, count, -(-r // s), first, last, lengths))
    return made


def _adaptive(n: Call, rank: int) -> list[Axis]:
    """Window o holds [o · extent // count, ceil((o + 1) · extent / count))."""
    made = []
    for extent, count in _extents(n, rank):
        lengths = [-(-(o + 1) * extent // count) - o * extent // count for o in range(count)]
        held = [-(-(i + 1) * count // extent) - i * count // extent for i in range(extent)]
        first, last = _quotient(n, count, 0, extent), _quotient(n, count, count - 1, extent)
        made.append(Axis(extent, count, max(held, default=0), first, last, lengths))
    return made


def _quotient(n: Call, factor: int, term: int, divisor: int) -> Callable[[Value], Value]:
    """(factor · i + term) // divisor"""

    def of(i: Value) -> Value:
        scaled = n.F.add(n.F.mul(i, n.scalar(factor, DType.INT64)), n.scalar(term, DType.INT64))
        return n.F.int_floor_divide(scaled, n.scalar(divisor, DType.INT64))

    return of


def _taps(n: Call, axis: Axis) -> list[tuple[Value, Value]]:
    """For each tap the window that each place asks, and whether it is one that holds the place."""
    place = n.F.iota(shape=(axis.extent,), axis=0, dtype=DType.INT64)
    zero, end = n.scalar(0, DType.INT64), n.scalar(axis.count - 1, DType.INT64)
    first = n.F.maximum(axis.first(place), zero)
    last = n.F.minimum(axis.last(place), end)
    windows = [n.F.add(first, n.scalar(tap, DType.INT64)) for tap in range(axis.taps)]
    return [(n.F.minimum(window, end), n.F.le(window, last)) for window in windows]


# -- sums over windows -------------------------------------------------------------------------------------------------
def _spread(n: Call, axes: Sequence[Axis], divisor: int | None) -> Value:
    """Of each place the windows' gradients by their sizes, an axis at a time."""
    made, shape = n.cast(n["grad_output"], n.result.dtype.compute), n.result.shape
    if 0 in shape or 0 in made.shape:
        return n.full(0, shape, n.result.dtype)
    if sum(axis.taps for axis in axes) > TAPS:
        raise Unmapped(f"{n.op} where a place lies in more than {TAPS} windows")
    if divisor is not None:
        made = n.F.div(made, n.scalar(divisor, made.dtype))
    for number, axis in enumerate(axes, len(shape) - len(axes)):
        after = (1,) * (len(shape) - number - 1)
        if divisor is None:
            lengths = np.array(axis.lengths, made.dtype.numpy)
            even = len(set(axis.lengths)) == 1
            size = n.scalar(axis.lengths[0], made.dtype) if even else n.F.constant(lengths.reshape(-1, *after))
            made = n.F.div(made, size)
        zero, total = n.scalar(0, made.dtype), None
        for window, holds in _taps(n, axis):
            each = n.F.where(n.reshape(holds, (axis.extent, *after)), n.F.gather(made, window, axis=number), zero)
            total = each if total is None else n.F.add(total, each)
        assert total is not None
        made = total
    return n.cast(made, n.result.dtype)
