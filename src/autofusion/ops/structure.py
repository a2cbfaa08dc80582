"""Rows that move elements: sources, views, joins, gathers; and contraction, communication."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autofusion import dims
from autofusion.dims import Bounds, Dim, Expr, Shape, at_least, floordiv, modulo, product, require_equal, show_shape
from autofusion.dtypes import Array, DType
from autofusion.errors import DTypeError, ExecutionError, GraphError, IndexOutOfRange, ShapeError
from autofusion.kinds import Kind
from autofusion.ops.elementwise import NUMBERS, cast_values
from autofusion.ops.rules import attribute, axis_of, broadcast, first, same
from autofusion.ops.table import REQUIRED, TABLE, Attrs, Axes, Op


# -- sources ---------------------------------------------------------------------------------------------------------
def _sizes(shape: Any) -> Shape:
    """A shape attribute. Raises ShapeError where an entry is no size."""
    if not isinstance(shape, tuple | list):
        raise ShapeError(f"shape {shape!r}: expected a tuple of sizes")
    for extent in shape:
        if isinstance(extent, bool) or not isinstance(extent, int | Expr) or (isinstance(extent, int) and extent < 0):
            raise ShapeError(f"shape {shape!r}: {extent!r} is no size; expected integers of at least 0")
    return tuple(shape)


def _iota_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    shape = _sizes(attrs["shape"])
    axis_of(attrs["axis"], len(shape))
    return shape


def _iota(shape: Any, axis: int, dtype: Any) -> Array:
    along = [1] * len(shape)
    along[axis] = shape[axis]
    return np.broadcast_to(np.arange(shape[axis]).reshape(along), shape).astype(DType(dtype).numpy)


TABLE.register(
    Op(
        "full",
        Kind.SOURCE,
        0,
        lambda shapes, attrs: _sizes(attrs["shape"]),
        attribute,
        lambda shape, value, dtype: cast_values(np.full(shape, value), DType(dtype)),
        attributes={"shape": REQUIRED, "value": REQUIRED, "dtype": REQUIRED},
        doc="one value everywhere; the value may be a symbolic dimension",
    )
)
TABLE.register(
    Op(
        "iota",
        Kind.SOURCE,
        0,
        _iota_shape,
        attribute,
        _iota,
        attributes={"shape": REQUIRED, "axis": 0, "dtype": DType.INT64},
        doc="the position along an axis",
    )
)


# -- views: out[i] = in[view(i)] -------------------------------------------------------------------------------------
def _view(
    name: str, shape_rule: Any, reference: Any, view: Any, attributes: Any, doc: str, kind: Kind = Kind.VIEW
) -> None:
    TABLE.register(Op(name, kind, 1, shape_rule, first, reference, view=view, attributes=attributes, doc=doc, flops=0))


def _reshape_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    wanted = list(attrs["shape"])
    if wanted.count(-1) > 1:
        raise ShapeError("only one -1 is allowed in a shape")
    size = product(shapes[0])
    if -1 in wanted:
        known = product(d for d in wanted if d != -1)
        if known == 0 or (isinstance(size, int) and isinstance(known, int) and size % known):
            raise ShapeError(f"{show_shape(shapes[0])} does not reshape to {show_shape(tuple(wanted))}")
        wanted[wanted.index(-1)] = floordiv(size, known)
    require_equal(size, product(wanted), f"{show_shape(shapes[0])} does not reshape to {show_shape(tuple(wanted))}")
    return _sizes(tuple(wanted))


def strides_of(shape: Shape) -> Shape:
    """Row-major strides in elements."""
    strides: list[Dim] = []
    stride: Dim = 1
    for extent in reversed(shape):
        strides.append(stride)
        stride = dims.multiply(stride, extent)
    return tuple(reversed(strides))


def linear(index: list[Dim], shape: Shape) -> Dim:
    """The row-major position of an index."""
    total: Dim = 0
    for position, stride in zip(index, strides_of(shape), strict=True):
        total = dims.add(total, dims.multiply(position, stride))
    return total


def _reshape_view(index: list[Dim], shapes: list[Shape], attrs: Attrs, bounds: Bounds) -> list[Dim]:
    source, target = shapes
    if 0 in source and 0 in target:  # nothing is ever read: the index stays inside the loop that never runs
        return [index[target.index(0)] if extent == 0 else 0 for extent in source]
    result: list[Dim] = []
    for taken, made in _factors(source, target):
        inside = source[taken]
        position = dims.simplify(linear(index[made], target[made]), bounds)
        for axis, (stride, extent) in enumerate(zip(strides_of(inside), inside, strict=True)):
            if extent == 1:
                result.append(0)
                continue
            part = floordiv(position, stride, bounds)
            leading = all(e == 1 for e in inside[:axis])
            result.append(part if leading else modulo(part, extent, bounds))
    return result


def _factors(source: Shape, target: Shape) -> list[tuple[slice, slice]]:
    """A reshape as reshapes side by side, the axes of each: [n, h, 2, w] from [n, h*2, w] is n from n, (h, 2) from h*2
    and w from w. So no division is by more than has to be taken apart."""
    found: list[tuple[slice, slice]] = []
    left = right = 0
    size: Dim = 1
    for end, extent in enumerate(source, 1):
        size = dims.multiply(size, extent)
        stop = next((s for s in range(right, len(target) + 1) if product(target[right:s]) == size), None)
        if stop is not None:
            found.append((slice(left, end), slice(right, stop)))
            left, right, size = end, stop, 1
    return [*found, (slice(left, None), slice(right, None))] if left < len(source) else found


def _static(shape: Any) -> tuple[int, ...]:
    return tuple(int(d) for d in shape)


_view(
    "reshape",
    _reshape_shape,
    lambda a, shape: a.reshape(_static(shape)),
    _reshape_view,
    {"shape": REQUIRED},
    "the same elements in row-major order under another shape; one -1 is inferred",
)


def _permutation(attrs: Attrs, rank: int) -> tuple[int, ...]:
    axes = attrs["axes"] if attrs["axes"] is not None else tuple(reversed(range(rank)))
    if sorted(axis_of(a, rank) for a in axes) != list(range(rank)):
        raise GraphError(f"axes {axes!r} are no permutation of {rank} axes")
    return tuple(a % rank for a in axes)


def _transpose_view(index: list[Dim], shapes: list[Shape], attrs: Attrs, bounds: Bounds) -> list[Dim]:
    result: list[Dim] = [0] * len(index)
    for position, axis in enumerate(_permutation(attrs, len(index))):
        result[axis] = index[position]
    return result


_view(
    "transpose",
    lambda shapes, attrs: tuple(shapes[0][a] for a in _permutation(attrs, len(shapes[0]))),
    lambda a, axes: np.transpose(a, axes),
    _transpose_view,
    {"axes": None},
    "axes permuted; by default reversed",
)


def _expand_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    shape = _sizes(attrs["shape"])
    if broadcast([shape, shapes[0]]) != shape:
        raise ShapeError(f"{show_shape(shapes[0])} does not expand to {show_shape(shape)}")
    return shape


def _expand_view(index: list[Dim], shapes: list[Shape], attrs: Attrs, bounds: Bounds) -> list[Dim]:
    source = shapes[0]
    tail = index[len(index) - len(source) :]
    return [0 if extent == 1 else position for position, extent in zip(tail, source, strict=True)]


_view(
    "expand",
    _expand_shape,
    lambda a, shape: np.broadcast_to(a, _static(shape)),
    _expand_view,
    {"shape": REQUIRED},
    "axes of 1 repeated, new leading axes",
    Kind.BROADCAST,
)


def slice_bounds(attrs: Attrs, shape: Shape) -> list[tuple[Dim, Dim, int]]:
    """(first, count, step) per axis, by Python's rules for ints; symbolic extents take starts and stops as they are."""
    starts, stops, steps = attrs["starts"], attrs["stops"], attrs["steps"]
    if not len(starts) == len(stops) == len(steps) == len(shape):
        raise GraphError(f"starts, stops and steps need {len(shape)} entries each")
    result: list[tuple[Dim, Dim, int]] = []
    for start, stop, step, extent in zip(starts, stops, steps, shape, strict=True):
        if not isinstance(step, int) or step == 0:
            raise GraphError(f"step {step!r}: expected a non-zero int")
        if isinstance(extent, int) and isinstance(start, int) and isinstance(stop, int):
            begin, end, _ = slice(start, stop if step > 0 or stop >= -extent else None, step).indices(extent)
            result.append((begin, len(range(begin, end, step)), step))
            continue
        if step < 0:
            raise GraphError(f"negative step over the symbolic extent {extent}: give the extent as a number")
        begin_dim = dims.maximum(dims.add(extent, start), 0) if isinstance(start, int) and start < 0 else start
        end_dim = dims.add(extent, stop) if isinstance(stop, int) and stop < 0 else stop
        if isinstance(end_dim, int) and end_dim >= 1 << 31:
            end_dim = extent
        if not at_least(extent, end_dim):
            end_dim = dims.minimum(end_dim, extent)
        count = dims.ceildiv(dims.add(end_dim, dims.multiply(begin_dim, -1)), step)
        result.append((begin_dim, dims.maximum(count, 0), step))
    return result


def _python_slices(shape: tuple[int, ...], starts: Any, stops: Any, steps: Any) -> tuple[slice, ...]:
    found = slice_bounds({"starts": starts, "stops": stops, "steps": steps}, shape)
    result = []
    for begin, count, step in found:
        if count == 0:
            result.append(slice(0, 0, 1))  # a backward slice of nothing begins at -1, which NumPy reads as the last
            continue
        assert isinstance(begin, int) and isinstance(count, int)  # the shape of an array is
        end = begin + count * step
        result.append(slice(begin, end if end >= 0 else None, step))
    return tuple(result)


def _slice_view(index: list[Dim], shapes: list[Shape], attrs: Attrs, bounds: Bounds) -> list[Dim]:
    found = slice_bounds(attrs, shapes[0])
    return [dims.add(begin, dims.multiply(i, step)) for i, (begin, _, step) in zip(index, found, strict=True)]


_SLICE = {"starts": REQUIRED, "stops": REQUIRED, "steps": REQUIRED}
_view(
    "slice",
    lambda shapes, attrs: tuple(count for _, count, _ in slice_bounds(attrs, shapes[0])),
    lambda a, starts, stops, steps: a[_python_slices(a.shape, starts, stops, steps)],
    _slice_view,
    _SLICE,
    "Python's slice along every axis; negative steps too",
)


# -- joins -----------------------------------------------------------------------------------------------------------
def _concat_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    axis = axis_of(attrs["axis"], len(shapes[0]))
    total: Dim = 0
    for shape in shapes:
        if len(shape) != len(shapes[0]):
            raise ShapeError(f"ranks differ: {' and '.join(map(show_shape, shapes))}")
        total = dims.add(total, shape[axis])
    common = list(shapes[0])
    for d in range(len(common)):
        for shape in shapes[1:]:
            if d != axis:
                common[d] = require_equal(common[d], shape[d], f"axis {d}")
    common[axis] = total
    return tuple(common)


TABLE.register(
    Op(
        "concat",
        Kind.JOIN,
        (1, None),
        _concat_shape,
        same,
        lambda *arrays, axis: np.concatenate(arrays, axis=axis),
        attributes={"axis": 0},
        doc="inputs one after another along an axis",
        flops=0,
    )
)


def _update_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    region = tuple(count for _, count, _ in slice_bounds(attrs, shapes[0]))
    found = broadcast([shapes[1], region])  # where the two are not known to agree, a guard says that they do
    if len(found) > len(region) or any(wanted == 1 != made for wanted, made in zip(region, found, strict=True)):
        raise ShapeError(f"a value of {show_shape(shapes[1])} does not fit the region {show_shape(region)}")
    return shapes[0]


def _update(a: Array, value: Array, starts: Any, stops: Any, steps: Any) -> Array:
    result = a.copy()
    result[_python_slices(a.shape, starts, stops, steps)] = value
    return result


TABLE.register(
    Op(
        "slice_update",
        Kind.JOIN,
        2,
        _update_shape,
        same,
        _update,
        attributes=_SLICE,
        doc="the first input with a region replaced by the second (broadcast)",
        flops=0,
    )
)


# -- gather ----------------------------------------------------------------------------------------------------------
def _gather_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    data, index = shapes
    axis = axis_of(attrs["axis"], len(data))
    return data[:axis] + index + data[axis + 1 :]


def _gather_type(types: list[DType], attrs: Attrs) -> DType:
    if types[1] not in (DType.INT32, DType.INT64):
        raise DTypeError(f"indices are {types[1]}, expected int32 or int64")
    return types[0]


def _gather_index(shapes: list[Shape], out: Shape, attrs: Attrs, axes: Axes) -> tuple[list[list[Dim]], list[Dim]]:
    """out[a, i, b] = data[a, positions[i], b]."""
    axis, rank = axis_of(attrs["axis"], len(shapes[0])), len(shapes[1])
    index = [axes.out(extent) for extent in out]
    return [[*index[:axis], 0, *index[axis + rank :]], index[axis : axis + rank]], index


def _gather(data: Array, index: Array, axis: int, wraps: bool) -> Array:
    extent = data.shape[axis]
    bad = (index < (-extent if wraps else 0)) | (index >= extent)
    if bad.any():
        position = int(np.flatnonzero(bad)[0])
        raise IndexOutOfRange(
            f"gather: index {index.flat[position]} at position {position} is outside axis of {extent}"
        )
    return np.take(data, np.where(index < 0, index + extent, index), axis=axis)


TABLE.register(
    Op(
        "gather",
        Kind.GATHER,
        2,
        _gather_shape,
        _gather_type,
        _gather,
        index=_gather_index,
        attributes={"axis": 0, "wraps": True},
        doc="data at integer positions along an axis; negative ones count from the end unless `wraps` is false; "
        "others out of range raise",
        flops=1,
    )
)


# -- contraction -----------------------------------------------------------------------------------------------------
def _matmul_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    a, b = shapes
    if len(a) < 2 or len(b) < 2:
        raise ShapeError(f"operands {show_shape(a)} and {show_shape(b)}: expected rank 2 or more")
    require_equal(a[-1], b[-2], f"inner extents of {show_shape(a)} and {show_shape(b)}")
    batch = broadcast([a[:-2], b[:-2]]) if len(a) > 2 or len(b) > 2 else ()
    return (*batch, a[-2], b[-1])


def _matmul_index(shapes: list[Shape], out: Shape, attrs: Attrs, axes: Axes) -> tuple[list[list[Dim]], list[Dim]]:
    """out[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]."""
    index = [axes.out(extent) for extent in out]
    depth = axes.fold(shapes[0][-1])

    def leading(shape: Shape) -> list[Dim]:
        tail = index[len(index) - len(shape) : -2]
        return [0 if extent == 1 else i for i, extent in zip(tail, shape[:-2], strict=True)]

    return [[*leading(shapes[0]), index[-2], depth], [*leading(shapes[1]), depth, index[-1]]], index


def _matmul(a: Array, b: Array) -> Array:
    wide = np.float64 if np.issubdtype(a.dtype, np.floating) or a.dtype == DType.BFLOAT16.numpy else a.dtype
    with np.errstate(invalid="ignore", over="ignore"):
        result: Array = np.matmul(a.astype(wide), b.astype(wide)).astype(a.dtype)
    return result


TABLE.register(
    Op(
        "matmul",
        Kind.CONTRACT,
        2,
        _matmul_shape,
        same,
        _matmul,
        index=_matmul_index,
        dtypes=tuple(t for t in NUMBERS if t.is_float or t in (DType.INT32, DType.INT64)),
        tolerance=math.inf,  # bounded by the sum of |products| instead: see the evaluator's `error_bound`
        flops=2,
        doc="matrix product over the last two axes, leading axes broadcast",
    )
)


# -- communication: the identity in a world of one device ------------------------------------------------------------
def _alone(a: Array, world_size: int) -> Array:
    if world_size != 1:
        raise ExecutionError(f"communication over {world_size} devices: only a world of 1 device can run here")
    return a.copy()


for _name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast_from", "all_to_all"):
    TABLE.register(
        Op(
            _name,
            Kind.COMM,
            1,
            lambda shapes, attrs: shapes[0],
            first,
            _alone,
            attributes={"world_size": 1},
            doc="communication; always a fusion boundary; the identity at world size 1",
            flops=0,
        )
    )
