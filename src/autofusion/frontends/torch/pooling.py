"""ATen pools."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from autofusion import dims
from autofusion.dims import product
from autofusion.dtypes import DType
from autofusion.frontends.torch.adapter import Unmapped
from autofusion.frontends.torch.call import Call, each_axis, lowest, static
from autofusion.graph.ir import Value

TAPS = 64  # of a window whose positions are compared one by one


def max_pool(n: Call) -> list[Value | None]:
    """max_pool2d_with_indices, max_pool3d_with_indices."""
    x = n["self"]
    rank = 2 if "2d" in n.op else 3
    kernel, padding, dilation = (each_axis(n[name], rank) for name in ("kernel_size", "padding", "dilation"))
    strides = each_axis(n["stride"] or kernel, rank)
    result = n.result
    if n.used[1]:
        return [*_with_positions(n, kernel, strides, padding, dilation)]
    lead = len(x.shape) - rank
    made = n.F.max_pool(
        n.reshape(x, (1, *x.shape)) if lead == 1 else x,
        kernel=kernel,
        strides=strides,
        pads=(*padding, *padding),
        dilations=dilation,
        ceil_mode=bool(n["ceil_mode"]),
    )
    return [n.reshape(made, result.shape), None]


def _with_positions(
    n: Call, kernel: Sequence[int], strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> tuple[Value, Value]:
    """The largest of each window and where it lies in the flattened plane: the first of equal ones, a NaN before all.

    The taps of a window are slices of the padded operand.
    """
    x, rank, dtype = n["self"], len(kernel), n["self"].dtype
    extents, counts = static(x.shape[-rank:], "a pool's extent"), static(n.result.shape[-rank:], "a pool's extent")
    if math.prod(kernel) > TAPS:
        raise Unmapped(f"the positions in windows of more than {TAPS} elements are not compiled")
    reach = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(counts, strides, kernel, dilation, strict=True)]
    after = [max(0, r - e - p) for r, e, p in zip(reach, extents, padding, strict=True)]
    lead = len(x.shape) - rank
    zeros = (0,) * lead
    padded = x
    if any(padding) or any(after):
        value = float(lowest(dtype))
        padded = n.F.pad(x, before=(*zeros, *padding), after=(*zeros, *after), mode="constant", value=value)
    starts = [_starts(n, axis, counts, strides, padding) for axis in range(rank)]
    first = [_inside(n, start, d) for start, d in zip(starts, dilation, strict=True)]
    best = n.full(lowest(dtype), n.result.shape, dtype)
    position = _flat(n, first, extents)
    for tap in itertools.product(*(range(k) for k in kernel)):
        at = [t * d for t, d in zip(tap, dilation, strict=True)]
        stops = [a + (o - 1) * s + 1 for a, o, s in zip(at, counts, strides, strict=True)]
        each = n.F.slice(
            padded,
            starts=(*zeros, *at),
            stops=(*padded.shape[:lead], *stops),
            steps=(*(1,) * lead, *strides),
        )
        better = n.F.gt(each, best)
        if dtype.is_float:
            better = n.F.logical_or(better, n.F.isnan(each))
        best = n.F.where(better, each, best)
        here = [n.F.add(s, n.scalar(a, DType.INT64)) for s, a in zip(starts, at, strict=True)]
        position = n.F.where(better, _flat(n, here, extents), position)
    return best, n.expand(position, n.result.shape)


def _starts(n: Call, axis: int, counts: Sequence[int], strides: Sequence[int], padding: Sequence[int]) -> Value:
    """Where along an axis each window begins; negative in the padding."""
    shape = tuple(count if a == axis else 1 for a, count in enumerate(counts))
    along = n.F.iota(shape=shape, axis=axis, dtype=DType.INT64)
    stepped = n.F.mul(along, n.scalar(strides[axis], DType.INT64))
    return n.F.sub(stepped, n.scalar(padding[axis], DType.INT64))


def _inside(n: Call, start: Value, dilation: int) -> Value:
    """The first tap that is not in the padding."""
    step = n.scalar(dilation, DType.INT64)
    missing = n.F.maximum(n.F.neg(start), n.scalar(0, DType.INT64))
    taps = n.F.int_floor_divide(n.F.add(missing, n.scalar(dilation - 1, DType.INT64)), step)
    return n.F.add(start, n.F.mul(taps, step))


def _flat(n: Call, positions: Sequence[Value], extents: Sequence[int]) -> Value:
    made = positions[0]
    for position, extent in zip(positions[1:], extents[1:], strict=True):
        made = n.F.add(n.F.mul(made, n.scalar(extent, DType.INT64)), position)
    return made


def average_pool(n: Call) -> Value:
    """avg_pool2d, avg_pool3d; with a divisor of its own the sums divided by that, over zeros up to the last window."""
    x = n["self"]
    rank = 2 if "2d" in n.op else 3
    kernel, padding = each_axis(n["kernel_size"], rank), each_axis(n["padding"], rank)
    strides, after = each_axis(n["stride"] or kernel, rank), padding
    divisor, up = n["divisor_override"], bool(n["ceil_mode"])
    if divisor is not None and up:
        extents, counts = static(x.shape[-rank:], "a pool's extent"), static(n.result.shape[-rank:], "a pool's extent")
        windows = zip(extents, counts, kernel, strides, padding, strict=True)
        after, up = tuple(max(0, (o - 1) * s + k - e - p) for e, o, k, s, p in windows), False
    wide = n.cast(x, x.dtype.compute)
    made = n.F.average_pool(
        n.reshape(wide, (1, *x.shape)) if len(x.shape) == rank + 1 else wide,
        kernel=kernel,
        strides=strides,
        pads=(*padding, *after),
        ceil_mode=up,
        count_include_pad=bool(n["count_include_pad"]) or divisor is not None,
    )
    if divisor is not None:
        made = n.F.mul(made, n.scalar(math.prod(kernel) / divisor, wide.dtype))
    return n.cast(n.reshape(made, n.result.shape), x.dtype)


# -- adaptive pools: window i of an axis is [i · extent // count, ceil((i + 1) · extent / count)) ----------------------
def _windows(n: Call, x: Value, axis: int, count: int, filler: float | int | bool) -> Value:
    """The windows of an axis on two, filled up to the longest, or where the extent is open to what none exceeds."""
    extent = x.shape[axis]
    lengths: list[int] = []
    longest = dims.add(dims.ceildiv(extent, count), 1)
    if isinstance(extent, int):
        lengths = [-(-(i + 1) * extent // count) - i * extent // count for i in range(count)]
        longest = max(lengths, default=0)
    shape = (count, longest)
    number = n.F.iota(shape=shape, axis=0, dtype=DType.INT64)
    tap = n.F.iota(shape=shape, axis=1, dtype=DType.INT64)

    def edge(i: Value, more: int) -> Value:
        scaled = n.F.add(n.F.mul(i, n.scalar(extent, DType.INT64)), n.scalar(more, DType.INT64))
        return n.F.int_floor_divide(scaled, n.scalar(count, DType.INT64))

    at = n.F.add(edge(number, 0), tap)
    ends = edge(n.F.add(number, n.scalar(1, DType.INT64)), count - 1)
    safe = n.F.minimum(at, n.scalar(dims.add(extent, -1), DType.INT64))
    made = n.F.gather(x, safe, axis=axis)
    if len(set(lengths)) == 1:
        return made
    valid = n.reshape(n.F.lt(at, ends), (*shape, *(1,) * (len(x.shape) - axis - 1)))
    return n.F.where(valid, made, n.scalar(filler, x.dtype))


def adaptive_average_pool(n: Call) -> Value:
    """_adaptive_avg_pool2d, _adaptive_avg_pool3d: along each axis in turn the sums, then the quotients."""
    x, counts = n["self"], static(n["output_size"], "a pool's size")
    if 0 in n.result.shape:
        return n.full(0, n.result.shape, x.dtype)
    made, rank = n.cast(x, x.dtype.compute), len(counts)
    for axis, count in enumerate(counts, len(x.shape) - rank):
        extent = x.shape[axis]
        if extent == count:
            continue
        apart = _windows(n, made, axis, count, 0.0)
        ones = n.full(1.0, (*(1,) * axis, extent, *(1,) * (len(x.shape) - axis - 1)), made.dtype)
        lengths = n.F.sum(_windows(n, ones, axis, count, 0.0), axes=(axis + 1,), keepdims=False)
        made = n.F.div(n.F.sum(apart, axes=(axis + 1,), keepdims=False), lengths)
    return n.cast(made, x.dtype) if made.dtype is not x.dtype or made is not x else n.F.copy(x)


def adaptive_max_pool(n: Call) -> list[Value | None]:
    """adaptive_max_pool2d, adaptive_max_pool3d: values, and positions in the flattened plane."""
    x, counts = n["self"], static(n["output_size"], "a pool's size")
    if 0 in n.result.shape:
        return [n.full(0, n.result.shape, dtype) for dtype in (x.dtype, DType.INT64)]
    rank, lead = len(counts), len(x.shape) - len(counts)
    apart, dtype = x, x.dtype
    for number, count in enumerate(counts):
        apart = _windows(n, apart, lead + 2 * number, count, lowest(dtype))
    axes = [*range(lead), *(lead + 2 * i for i in range(rank)), *(lead + 2 * i + 1 for i in range(rank))]
    taps = n.transpose(apart, axes)
    flat = n.reshape(taps, (*n.result.shape, product(taps.shape[lead + rank :])))
    values = n.F.max(flat, axes=(-1,), keepdims=False)
    if not n.used[1]:
        return [values, None]
    plane = static(x.shape[lead:], "a pool's extent")
    where = n.reshape(n.F.iota(shape=(math.prod(plane),), axis=0, dtype=DType.INT64), plane)
    for number, count in enumerate(counts):
        where = _windows(n, where, 2 * number, count, math.prod(plane))
    axes = [*(2 * i for i in range(rank)), *(2 * i + 1 for i in range(rank))]
    where = n.reshape(n.transpose(where, axes), (*counts, product(taps.shape[lead + rank :])))
    hit = n.F.eq(flat, n.F.unsqueeze(values, axes=(len(values.shape),)))
    if dtype.is_float:
        hit = n.F.logical_or(hit, n.F.isnan(flat))
    first = n.F.min(n.F.where(hit, where, n.scalar(math.prod(plane), DType.INT64)), axes=(-1,), keepdims=False)
    return [values, first]
