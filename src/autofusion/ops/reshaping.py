"""Rows that place elements elsewhere: flips, stacks, tiles, pads, diagonals; composites of views and joins."""

from __future__ import annotations

from typing import Any

import numpy as np

from autofusion import dims
from autofusion.dims import Bounds, Dim, Shape, add, floordiv, modulo, multiply, require_equal, show_shape
from autofusion.dtypes import Array, DType
from autofusion.errors import GraphError, ShapeError
from autofusion.kinds import Kind
from autofusion.ops.rules import attribute, axes_of, axis_of, same
from autofusion.ops.table import REQUIRED, TABLE, Attrs, Builder, Op


def _row(
    name: str,
    kind: Kind,
    arity: Any,
    shape_rule: Any,
    reference: Any,
    lower: Any,
    attributes: Any,
    doc: str,
    **row: Any,
) -> None:
    rule = row.pop("dtype_rule", same)
    TABLE.register(
        Op(
            name,
            kind,
            arity,
            shape_rule,
            rule,
            reference,
            lower=lower,
            attributes=attributes,
            doc=doc,
            flops=0,
            tolerance=0,
            **row,
        )
    )


def part(F: Builder, a: Any, axis: int, start: Dim, stop: Dim, step: int = 1) -> Any:
    """a[start:stop:step] along one axis."""
    shape = F.type_of(a).shape
    starts = tuple(start if d == axis else 0 for d in range(len(shape)))
    stops = tuple(stop if d == axis else extent for d, extent in enumerate(shape))
    return F.slice(a, starts=starts, stops=stops, steps=tuple(step if d == axis else 1 for d in range(len(shape))))


def _numbers(attrs: Attrs, name: str, count: int, least: int | None = None) -> tuple[int, ...]:
    values = attrs[name]
    fits = isinstance(values, tuple) and len(values) == count
    if not fits or any(isinstance(v, int) and least is not None and v < least for v in values):
        bound = "" if least is None else f" of at least {least}"
        raise GraphError(f"{name}={values!r}: expected {count} integers{bound}")
    return tuple(values)


# -- flip, roll, stack, tile -------------------------------------------------------------------------------------------
def _flip_view(index: list[Dim], shapes: list[Shape], attrs: Attrs, bounds: Bounds) -> list[Dim]:
    flipped = axes_of(attrs["axes"], len(shapes[0]))
    return [
        add(add(extent, -1), multiply(i, -1)) if d in flipped else i
        for d, (i, extent) in enumerate(zip(index, shapes[0], strict=True))
    ]


def _flip_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    axes_of(attrs["axes"], len(shapes[0]))
    return shapes[0]


_row(
    "flip",
    Kind.VIEW,
    1,
    _flip_shape,
    lambda a, axes: np.flip(a, axes_of(axes, a.ndim)),
    None,
    {"axes": REQUIRED},
    "axes in reverse order (None: all)",
    view=_flip_view,
)


def _roll_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    axes = attrs["axes"]
    if not isinstance(axes, tuple) or not isinstance(attrs["shifts"], tuple) or len(axes) != len(attrs["shifts"]):
        raise GraphError(f"shifts={attrs['shifts']!r} and axes={axes!r}: expected tuples of one length")
    for axis in axes:
        axis_of(axis, len(shapes[0]))
    return shapes[0]


def _counting(F: Builder, count: Dim, first: int) -> Any:
    """first, first + 1, …"""
    return F.add(F.iota(shape=(count,), axis=0, dtype=DType.INT64), F.scalar(first, DType.INT64))


def _roll_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    shape = F.type_of(a).shape
    for shift, each in zip(attrs["shifts"], attrs["axes"], strict=True):
        axis = axis_of(each, len(shape))
        if shape[axis] in (0, 1):
            continue
        extent = shape[axis]
        if not isinstance(extent, int):
            a = F.gather(a, F.int_remainder(_counting(F, extent, -shift), extent), axis=axis)
            continue
        cut = -shift % extent
        if cut != 0:
            a = F.concat(part(F, a, axis, cut, shape[axis]), part(F, a, axis, 0, cut), axis=axis)
    return F.copy(a) if not attrs["axes"] else a


_row(
    "roll",
    Kind.JOIN,
    1,
    _roll_shape,
    lambda a, shifts, axes: np.roll(a, shifts, axes),
    _roll_lower,
    {"shifts": REQUIRED, "axes": REQUIRED},
    "elements shifted along axes; what leaves at one end comes in at the other",
)


def _stack_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    axis = axis_of(attrs["axis"], len(shapes[0]) + 1)
    for shape in shapes[1:]:
        if len(shape) != len(shapes[0]):
            raise ShapeError(f"shapes {show_shape(shapes[0])} and {show_shape(shape)} differ")
        for d, (one, other) in enumerate(zip(shapes[0], shape, strict=True)):
            require_equal(one, other, f"axis {d}")
    return (*shapes[0][:axis], len(shapes), *shapes[0][axis:])


def _stack_lower(F: Builder, *operands: Any) -> Any:
    *arrays, attrs = operands
    axis = axis_of(attrs["axis"], len(F.type_of(arrays[0]).shape) + 1)
    return F.concat(*(F.unsqueeze(a, axes=(axis,)) for a in arrays), axis=axis)


_row(
    "stack",
    Kind.JOIN,
    (1, None),
    _stack_shape,
    lambda *arrays, axis: np.stack(arrays, axis),
    _stack_lower,
    {"axis": 0},
    "inputs one after another along a new axis",
)


def _tile_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    repeats = _numbers(attrs, "repeats", len(shapes[0]), 0)
    return tuple(multiply(extent, count) for extent, count in zip(shapes[0], repeats, strict=True))


def _tile_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    """[a, b] → [1, a, 1, b] → [m, a, n, b] → [m·a, n·b]: repeats as broadcasts."""
    shape, repeats = F.type_of(a).shape, attrs["repeats"]
    single = tuple(each for extent in shape for each in (1, extent))
    apart = tuple(each for extent, count in zip(shape, repeats, strict=True) for each in (count, extent))
    return F.reshape(F.expand(F.reshape(a, shape=single), shape=apart), shape=_tile_shape([shape], attrs))


_row(
    "tile",
    Kind.BROADCAST,
    1,
    _tile_shape,
    lambda a, repeats: np.tile(a, repeats),
    _tile_lower,
    {"repeats": REQUIRED},
    "the whole repeated along every axis",
)


# -- squeeze, unsqueeze, unfold, as_strided, diagonal: views -----------------------------------------------------------
def _squeeze_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    axes = _squeezed(shapes[0], attrs)
    for axis in axes:
        if shapes[0][axis] != 1:
            raise ShapeError(f"axis {axis} is {shapes[0][axis]}, expected 1")
    return tuple(extent for d, extent in enumerate(shapes[0]) if d not in axes)


def _squeezed(shape: Shape, attrs: Attrs) -> tuple[int, ...]:
    if attrs["axes"] is None:
        return tuple(d for d, extent in enumerate(shape) if extent == 1)
    return axes_of(attrs["axes"], len(shape))


_row(
    "squeeze",
    Kind.VIEW,
    1,
    _squeeze_shape,
    lambda a, axes: np.squeeze(a, None if axes is None else axes_of(axes, a.ndim)),
    lambda F, a, attrs: F.reshape(a, shape=_squeeze_shape([F.type_of(a).shape], attrs)),
    {"axes": None},
    "axes of 1 taken away (None: all of them)",
)


def _unsqueezed(shape: Shape, attrs: Attrs) -> tuple[int, ...]:
    if not isinstance(attrs["axes"], tuple):
        raise GraphError(f"axes={attrs['axes']!r}: expected a tuple")
    return axes_of(attrs["axes"], len(shape) + len(attrs["axes"]))


def _unsqueeze_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    axes, rest = _unsqueezed(shapes[0], attrs), iter(shapes[0])
    return tuple(1 if d in axes else next(rest) for d in range(len(shapes[0]) + len(axes)))


_row(
    "unsqueeze",
    Kind.VIEW,
    1,
    _unsqueeze_shape,
    lambda a, axes: np.expand_dims(a, axes_of(axes, a.ndim + len(axes))),
    lambda F, a, attrs: F.reshape(a, shape=_unsqueeze_shape([F.type_of(a).shape], attrs)),
    {"axes": REQUIRED},
    "new axes of 1 at these positions of the result",
)


def _unfold_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    shape = list(shapes[0])
    axis, size, step = axis_of(attrs["axis"], len(shape)), attrs["size"], attrs["step"]
    if not isinstance(size, int) or not isinstance(step, int) or size < 1 or step < 1:
        raise GraphError(f"size={size!r}, step={step!r}: expected positive integers")
    if isinstance(shape[axis], int) and shape[axis] < size:  # type: ignore[operator]
        raise ShapeError(f"pieces of {size} do not fit axis {axis} of {shape[axis]}")
    shape[axis] = add(floordiv(add(shape[axis], -size), step), 1)
    return (*shape, size)


def _unfold_view(index: list[Dim], shapes: list[Shape], attrs: Attrs, bounds: Bounds) -> list[Dim]:
    *where, tap = index
    axis = axis_of(attrs["axis"], len(where))
    where[axis] = add(multiply(where[axis], attrs["step"]), tap)
    return where


def _unfold(a: Array, axis: int, size: int, step: int) -> Array:
    view = np.lib.stride_tricks.sliding_window_view(a, size, axis=axis)
    return view[tuple(slice(None, None, step) if d == axis % a.ndim else slice(None) for d in range(view.ndim))]


_row(
    "unfold",
    Kind.VIEW,
    1,
    _unfold_shape,
    _unfold,
    None,
    {"axis": REQUIRED, "size": REQUIRED, "step": 1},
    "all pieces of `size` along an axis, `step` apart, in a new last axis",
    view=_unfold_view,
)


def _strided_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    shape, strides, offset = attrs["shape"], attrs["strides"], attrs["offset"]
    if not isinstance(shape, tuple) or not isinstance(strides, tuple) or len(shape) != len(strides):
        raise GraphError(f"shape={shape!r}, strides={strides!r}: expected tuples of one length")
    size = dims.product(shapes[0])
    known = all(isinstance(each, int) for each in (*shape, *strides, offset, size))
    if known and 0 not in shape:
        reach = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
        least, most = offset + sum(min(r, 0) for r in reach), offset + sum(max(r, 0) for r in reach)
        if least < 0 or most >= size:
            raise ShapeError(f"elements {least} to {most} are read, but there are {size}")
    return tuple(shape)


def _strided_view(index: list[Dim], shapes: list[Shape], attrs: Attrs, bounds: Bounds) -> list[Dim]:
    """Positions are those of the elements in row-major order, whatever the strides in memory."""
    source = shapes[0]
    position: Dim = attrs["offset"]
    for i, stride in zip(index, attrs["strides"], strict=True):
        position = add(position, multiply(i, stride))
    position = dims.simplify(position, bounds)
    return TABLE.get("reshape").view([position], [source, (dims.product(source),)], {}, bounds)  # type: ignore[misc]


def _as_strided(a: Array, shape: Any, strides: Any, offset: int) -> Array:
    where = np.full(shape, offset, np.int64)
    for d, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        where += (np.arange(extent) * stride).reshape([-1 if e == d else 1 for e in range(len(shape))])
    return a.reshape(-1)[where]


_row(
    "as_strided",
    Kind.VIEW,
    1,
    _strided_shape,
    _as_strided,
    None,
    {"shape": REQUIRED, "strides": REQUIRED, "offset": 0},
    "elements at offset + index · strides of the elements in row-major order",
    view=_strided_view,
)


def _diagonal_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    shape, offset = shapes[0], attrs["offset"]
    if len(shape) < 2:
        raise ShapeError(f"operand {show_shape(shape)}: expected rank 2 or more")
    rows, columns = add(shape[-2], min(offset, 0)), add(shape[-1], -max(offset, 0))
    return (*shape[:-2], dims.maximum(dims.minimum(rows, columns), 0))


def _diagonal_view(index: list[Dim], shapes: list[Shape], attrs: Attrs, bounds: Bounds) -> list[Dim]:
    *lead, i = index
    return [*lead, add(i, max(-attrs["offset"], 0)), add(i, max(attrs["offset"], 0))]


_row(
    "diagonal",
    Kind.VIEW,
    1,
    _diagonal_shape,
    lambda a, offset: np.diagonal(a, offset, -2, -1),
    None,
    {"offset": 0},
    "the diagonal of the last two axes, `offset` to the right of the main one",
    view=_diagonal_view,
)


# -- pad ---------------------------------------------------------------------------------------------------------------
MODES = ("constant", "reflect", "edge", "wrap")


def _pad_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    (shape,) = shapes
    before, after = _numbers(attrs, "before", len(shape)), _numbers(attrs, "after", len(shape))
    if attrs["mode"] not in MODES:
        raise GraphError(f"mode={attrs['mode']!r}, expected {', '.join(MODES)}")
    result: list[Dim] = []
    for axis, (extent, low, high) in enumerate(zip(shape, before, after, strict=True)):
        made, kept = add(add(extent, low), high), add(extent, min(low, 0) + min(high, 0))
        if any(isinstance(each, int) and each < 0 for each in (made, kept)):
            raise ShapeError(f"axis {axis} of {extent} cannot be padded by {low} and {high}")
        if attrs["mode"] != "constant" and max(low, high) > 0 and kept == 0:
            raise ShapeError(f"axis {axis} is empty: mode {attrs['mode']} has nothing to repeat")
        result.append(made)
    return tuple(result)


def _pad(a: Array, before: Any, after: Any, mode: str, value: float) -> Array:
    a = a[tuple(slice(max(-b, 0), n - max(-c, 0)) for n, b, c in zip(a.shape, before, after, strict=True))]
    widths = [(max(b, 0), max(c, 0)) for b, c in zip(before, after, strict=True)]
    if mode == "constant":
        return np.pad(a, widths, constant_values=np.asarray(value).astype(a.dtype))
    return np.pad(a, widths, mode=mode)  # type: ignore[call-overload, no-any-return]


def _pad_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    """Negative amounts crop; then a constant frame with the values set into it, or pieces joined along each axis."""
    before, after = attrs["before"], attrs["after"]
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if low < 0 or high < 0:
            a = part(F, a, axis, max(-low, 0), add(F.type_of(a).shape[axis], min(high, 0)))
    low, high = tuple(max(b, 0) for b in before), tuple(max(c, 0) for c in after)
    if not any(low) and not any(high):
        return F.copy(a)
    dtype, shape = F.type_of(a)
    if attrs["mode"] == "constant":
        whole = tuple(add(add(n, b), c) for n, b, c in zip(shape, low, high, strict=True))
        frame = F.expand(F.scalar(attrs["value"], dtype), shape=whole)
        stops = tuple(add(b, n) for b, n in zip(low, shape, strict=True))
        return F.slice_update(frame, a, starts=low, stops=stops, steps=(1,) * len(shape))
    for axis, (left, right) in enumerate(zip(low, high, strict=True)):
        if left or right:
            a = _extended(F, a, axis, left, right, attrs["mode"])
    return a


def _reflected(F: Builder, extent: Dim, left: int, right: int, mode: str) -> Any:
    """Source positions along a symbolic extent, as values; reflections reach no further than once."""
    at = _counting(F, add(extent, left + right), -left)
    if mode == "wrap":
        return F.int_remainder(at, extent)
    last = add(extent, -1)
    if mode == "edge":
        return F.minimum(F.maximum(at, 0), F.scalar(last, DType.INT64))
    return F.sub(F.scalar(last, DType.INT64), F.abs(F.sub(F.scalar(last, DType.INT64), F.abs(at))))


def _extended(F: Builder, a: Any, axis: int, left: int, right: int, mode: str) -> Any:
    extent = F.type_of(a).shape[axis]
    if not isinstance(extent, int):
        return F.gather(a, _reflected(F, extent, left, right, mode), axis=axis)
    if mode == "edge" or extent == 1:
        shape = F.type_of(a).shape
        pieces = []
        for count, at in ((left, 0), (None, 0), (right, add(extent, -1))):
            if count is None:
                pieces.append(a)
            elif count:
                wanted = tuple(count if d == axis else n for d, n in enumerate(shape))
                pieces.append(F.expand(part(F, a, axis, at, add(at, 1)), shape=wanted))
        return F.concat(*pieces, axis=axis)
    # Source positions, cut into runs of step +1 or -1 (reflections) that are slices.
    if mode == "wrap":
        source = [p % extent for p in range(-left, extent + right)]
    else:
        period = 2 * (extent - 1)
        source = [min(p % period, period - p % period) for p in range(-left, extent + right)]
    pieces, start = [], 0
    while start < len(source):
        end = start + 1
        step = source[end] - source[start] if end < len(source) and abs(source[end] - source[start]) == 1 else 1
        while end < len(source) and source[end] - source[end - 1] == step:
            end += 1
        last = source[end - 1] + step
        stop = last if last >= 0 else -extent - 1
        pieces.append(part(F, a, axis, source[start], stop, step))
        start = end
    return F.concat(*pieces, axis=axis)


_row(
    "pad",
    Kind.JOIN,
    1,
    _pad_shape,
    _pad,
    _pad_lower,
    {"before": REQUIRED, "after": REQUIRED, "mode": "constant", "value": 0.0},
    "elements added before and after along every axis (negative: cropped): a constant, reflect, edge, wrap",
)


# -- triangles and the unit matrix -------------------------------------------------------------------------------------
def _trilu_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    if len(shapes[0]) < 2:
        raise ShapeError(f"operand {show_shape(shapes[0])}: expected rank 2 or more")
    return shapes[0]


def _columns_from(F: Builder, rows: Dim, columns: Dim, k: int) -> tuple[Any, Any]:
    """(columns, rows + k) as positions, of 32 bits where they fit."""
    fit = all(isinstance(n, int) and n + abs(k) < 1 << 31 for n in (rows, columns))
    dtype = DType.INT32 if fit else DType.INT64
    down = F.iota(shape=(rows, 1), axis=0, dtype=dtype)
    return F.iota(shape=(1, columns), axis=1, dtype=dtype), F.add(down, F.scalar(k, dtype))


def _trilu_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    dtype, shape = F.type_of(a)
    along, first_column = _columns_from(F, shape[-2], shape[-1], attrs["k"])
    kept = F.ge(along, first_column) if attrs["upper"] else F.le(along, first_column)
    return F.where(kept, a, F.scalar(0, dtype))


_row(
    "trilu",
    Kind.JOIN,
    1,
    _trilu_shape,
    lambda a, upper, k: np.triu(a, k) if upper else np.tril(a, k),
    _trilu_lower,
    {"upper": True, "k": 0},
    "the upper (or lower) triangle from the k-th diagonal on, zeros elsewhere",
)


def _eye_lower(F: Builder, attrs: Attrs) -> Any:
    along, at = _columns_from(F, attrs["rows"], attrs["columns"], attrs["k"])
    return F.cast(F.eq(along, at), dtype=attrs["dtype"])


_row(
    "eye",
    Kind.SOURCE,
    0,
    lambda shapes, attrs: (attrs["rows"], attrs["columns"]),
    lambda rows, columns, k, dtype: np.eye(rows, columns, k).astype(DType(dtype).numpy),
    _eye_lower,
    {"rows": REQUIRED, "columns": REQUIRED, "k": 0, "dtype": DType.FLOAT32},
    "1 on the k-th diagonal, 0 elsewhere",
    dtype_rule=attribute,
)


# -- depth and space ---------------------------------------------------------------------------------------------------
def _depth_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    shape, block = shapes[0], attrs["block"]
    if len(shape) != 4 or not isinstance(block, int) or block < 1 or modulo(shape[1], block * block) != 0:
        raise ShapeError(f"operand {show_shape(shape)}: expected [n, c, h, w] with c a multiple of {block}²")
    if attrs["mode"] not in ("DCR", "CRD"):
        raise GraphError(f"mode={attrs['mode']!r}, expected DCR or CRD")
    n, c, h, w = shape
    return (n, floordiv(c, block * block), multiply(h, block), multiply(w, block))


def _depth_steps(shape: Any, block: int, mode: str) -> tuple[Any, Any, Any]:
    n, c, h, w = shape
    depth = floordiv(c, block * block)
    split = (n, block, block, depth, h, w) if mode == "DCR" else (n, depth, block, block, h, w)
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    return split, order, (n, depth, multiply(h, block), multiply(w, block))


def _depth_to_space(a: Array, block: int, mode: str) -> Array:
    split, order, result = _depth_steps(a.shape, block, mode)
    return a.reshape(split).transpose(order).reshape(result)


def _depth_to_space_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    split, order, result = _depth_steps(F.type_of(a).shape, attrs["block"], attrs["mode"])
    return F.reshape(F.transpose(F.reshape(a, shape=split), axes=order), shape=result)


_row(
    "depth_to_space",
    Kind.VIEW,
    1,
    _depth_shape,
    _depth_to_space,
    _depth_to_space_lower,
    {"block": REQUIRED, "mode": "DCR"},
    "blocks of channels laid out in space: [n, c·b², h, w] to [n, c, h·b, w·b]",
)


def _space_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    shape, block = shapes[0], attrs["block"]
    if len(shape) != 4 or modulo(shape[2], block) != 0 or modulo(shape[3], block) != 0:
        raise ShapeError(f"operand {show_shape(shape)}: expected [n, c, h, w] with h and w multiples of {block}")
    n, c, h, w = shape
    return (n, multiply(c, block * block), floordiv(h, block), floordiv(w, block))


def _space_steps(shape: Any, block: int) -> tuple[Any, Any, Any]:
    n, c, h, w = shape
    rows, columns = floordiv(h, block), floordiv(w, block)
    return (n, c, rows, block, columns, block), (0, 3, 5, 1, 2, 4), (n, multiply(c, block * block), rows, columns)


def _space_to_depth(a: Array, block: int) -> Array:
    split, order, result = _space_steps(a.shape, block)
    return a.reshape(split).transpose(order).reshape(result)


def _space_to_depth_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    split, order, result = _space_steps(F.type_of(a).shape, attrs["block"])
    return F.reshape(F.transpose(F.reshape(a, shape=split), axes=order), shape=result)


_row(
    "space_to_depth",
    Kind.VIEW,
    1,
    _space_shape,
    _space_to_depth,
    _space_to_depth_lower,
    {"block": REQUIRED},
    "blocks of space laid out as channels: [n, c, h·b, w·b] to [n, b²·c, h, w]",
)
