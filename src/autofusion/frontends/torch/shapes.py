"""ATen operators on shapes and positions: views, joins, slices, index lookups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autofusion import dims
from autofusion.dims import Dim, Expr, product
from autofusion.dtypes import DType
from autofusion.frontends.torch.adapter import Unmapped
from autofusion.frontends.torch.call import Call, static
from autofusion.graph.ir import Value
from autofusion.ops.rules import axis_of


def view(n: Call) -> Value:
    """view, reshape, _unsafe_view: the shape that PyTorch found."""
    return n.F.reshape(n.x, shape=n.result.shape)


def permute(n: Call) -> Value:
    rank = len(n.x.shape)
    return n.F.transpose(n.x, axes=tuple(axis_of(a, rank) for a in n["dims"])) if rank else n.x


def swap(n: Call) -> Value:
    """transpose of two axes."""
    rank = len(n.x.shape)
    if not rank:
        return n.x
    axes = list(range(rank))
    a, b = axis_of(n["dim0"], rank), axis_of(n["dim1"], rank)
    axes[a], axes[b] = axes[b], axes[a]
    return n.F.transpose(n.x, axes=tuple(axes))


def matrix_transpose(n: Call) -> Value:
    return n.F.transpose(n.x, axes=tuple(reversed(range(len(n.x.shape))))) if len(n.x.shape) > 1 else n.x


def expand(n: Call) -> Value:
    return n.expand(n.x, n.result.shape)


def alias(n: Call) -> Value:
    return n.x


def slice_(n: Call) -> Value:
    axis = n.axis()
    extent = n.x.shape[axis]
    start, stop = _bound(n["start"], 0, extent), _bound(n["end"], extent, extent)
    step, length = n["step"], n.result.shape[axis]
    if not isinstance(step, int):
        raise Unmapped("a slice of an open step")
    if isinstance(extent, Expr) or isinstance(start, Expr) or isinstance(stop, Expr):
        stop = dims.add(start, dims.add(dims.multiply(dims.add(length, -1), step), 1))  # as PyTorch knows its sizes
    return n.cut(n.x, axis, start, stop, step)


def _bound(given: Any, default: Dim, extent: Dim) -> Dim:
    if given is None:
        return default
    if isinstance(given, int) and isinstance(extent, int):
        return max(0, given + extent) if given < 0 else min(given, extent)
    if isinstance(given, int) and given >= 2**62:
        return extent
    if isinstance(given, int) and given < 0:
        return dims.add(extent, given)
    return given  # type: ignore[no-any-return]


def select(n: Call) -> Value:
    axis, position = n.axis(), n["index"]
    if isinstance(position, int) and position < 0:
        position = dims.add(n.x.shape[axis], position)
    made = n.cut(n.x, axis, position, dims.add(position, 1))
    return n.reshape(made, made.shape[:axis] + made.shape[axis + 1 :])


def split(n: Call) -> list[Value]:
    """split_with_sizes and split, by the sizes that PyTorch found."""
    axis = n.axis()
    made, start = [], 0
    for result in n.results:
        assert result is not None
        stop = dims.add(start, result.shape[axis])
        made.append(n.cut(n.x, axis, start, stop))
        start = stop  # type: ignore[assignment]
    return made


def unbind(n: Call) -> list[Value]:
    axis = n.axis()
    made = []
    for position in range(len(n.results)):
        each = n.cut(n.x, axis, position, position + 1)
        made.append(n.reshape(each, each.shape[:axis] + each.shape[axis + 1 :]))
    return made


def unfold(n: Call) -> Value:
    if not n.x.shape:
        flat = n.reshape(n.x, (1,))
        return n.cut(flat, 0, 0, n["size"])
    return n.F.unfold(n.x, axis=n.axis("dimension"), size=n["size"], step=n["step"])


def as_strided(n: Call) -> Value:
    """Within a row-major tensor. PyTorch's offset counts from where the storage begins, ours from where the tensor
    does."""
    shape = static(n["size"], "as_strided's shape")
    strides = static(n["stride"], "as_strided's strides")
    place, offset = n.place("self"), n["storage_offset"]
    if not place.is_row_major:
        raise Unmapped("as_strided of a tensor that is not row-major")
    if offset is None:
        offset = 0
    elif place.offset is None:
        raise Unmapped("as_strided from an offset in a storage that is an argument's")
    else:
        (offset,) = static([dims.add(offset, dims.multiply(place.offset, -1))], "as_strided's offset")
    last = offset + sum((e - 1) * s for e, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
    extent = product(n.x.shape)
    if not isinstance(extent, int) or offset < 0 or last >= max(extent, 1):
        raise Unmapped("as_strided beyond the tensor")
    return n.F.as_strided(n.x, shape=shape, strides=strides, offset=offset)


def diagonal(n: Call) -> Value:
    rank = len(n.x.shape)
    a, b = axis_of(n["dim1"], rank), axis_of(n["dim2"], rank)
    rest = [axis for axis in range(rank) if axis not in (a, b)]
    return n.F.diagonal(n.transpose(n.x, [*rest, a, b]), offset=n["offset"])


def put_diagonal(n: Call) -> Value:
    """diagonal_scatter: the operand with a diagonal replaced."""
    x, source, offset = n["self"], n["src"], n["offset"]
    rank = len(x.shape)
    a, b = axis_of(n["dim1"], rank), axis_of(n["dim2"], rank)
    order = [*(axis for axis in range(rank) if axis not in (a, b)), a, b]
    turned = n.transpose(x, order)
    rows, columns = turned.shape[-2:]
    if source.shape[-1] == 0 or 0 in x.shape:
        return n.F.copy(x)
    row = n.F.iota(shape=(rows, 1), axis=0, dtype=DType.INT64)
    column = n.F.iota(shape=(1, columns), axis=1, dtype=DType.INT64)
    hit = n.F.eq(n.F.sub(column, row), n.scalar(offset, DType.INT64))
    along = n.F.iota(shape=(rows if offset >= 0 else columns,), axis=0, dtype=DType.INT64)
    safe = n.F.minimum(along, n.scalar(dims.add(source.shape[-1], -1), DType.INT64))
    found = n.F.gather(n.cast(source, x.dtype), safe, axis=rank - 2)
    made = n.F.where(hit, n.F.unsqueeze(found, axes=(rank - 1 if offset >= 0 else rank - 2,)), turned)
    return n.transpose(made, [order.index(axis) for axis in range(rank)])


def squeeze(n: Call) -> Value:
    return n.F.reshape(n.x, shape=n.result.shape)


# -- joins -------------------------------------------------------------------------------------------------------------
def concat(n: Call) -> Value:
    """cat; PyTorch passes over empty vectors among tensors of another rank."""
    dtype = n.result.dtype
    listed = [each for each in n["tensors"] if each.shape != (0,) or len(n.result.shape) == 1]
    if not listed:
        return n.F.copy(n.cast(n["tensors"][0], dtype))
    axis = axis_of(n["dim"], len(n.result.shape))
    made = n.F.concat(*(n.cast(each, dtype) for each in listed), axis=axis)
    return n.F.copy(made) if len(listed) == 1 else made


def stack(n: Call) -> Value:
    dtype = n.result.dtype
    return n.F.stack(*(n.cast(each, dtype) for each in n["tensors"]), axis=axis_of(n["dim"], len(n.result.shape)))


def pad(n: Call) -> Value:
    """constant_pad_nd."""
    before, after = (static(each, "what is padded") for each in pads(n["pad"], len(n.x.shape)))
    value = n["value"]
    n.held(value, n.x.dtype)
    return n.F.pad(n.x, before=before, after=after, mode="constant", value=_number(value, n.x.dtype))


def _number(value: Any, dtype: DType) -> float:
    if isinstance(value, Expr):
        raise Unmapped("a padding value of an open size")
    return float(value)


def pads(listed: Sequence[Dim], rank: int) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """What is added before and after each axis, from PyTorch's list, which begins with the last axis."""
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for position in range(len(listed) // 2):
        before[rank - 1 - position], after[rank - 1 - position] = listed[2 * position], listed[2 * position + 1]
    return tuple(before), tuple(after)


def mirrored(mode: str) -> Any:
    """reflection_pad, replication_pad."""

    def make(n: Call) -> Value:
        before, after = (static(each, "what is padded") for each in pads(n["padding"], len(n.x.shape)))
        if mode == "edge" and min(*before, *after) < 0:
            return _nearest(n, before, after)
        return n.F.pad(n.x, before=before, after=after, mode=mode)

    return make


def _nearest(n: Call, before: Sequence[int], after: Sequence[int]) -> Value:
    """Along each axis the nearest element, where some padding is negative."""
    made = n.x
    for axis, (extent, b, a) in enumerate(zip(static(n.x.shape, "a padded extent"), before, after, strict=True)):
        if a or b:
            along = n.F.iota(shape=(extent + b + a,), axis=0, dtype=DType.INT64)
            at = n.F.maximum(n.F.sub(along, n.scalar(b, DType.INT64)), n.scalar(0, DType.INT64))
            made = n.F.gather(made, n.F.minimum(at, n.scalar(extent - 1, DType.INT64)), axis=axis)
    return made


def flip(n: Call) -> Value:
    rank = len(n.x.shape)
    return n.F.copy(n.F.flip(n.x, axes=tuple(axis_of(a, rank) for a in n["dims"])) if rank else n.x)


def roll(n: Call) -> Value:
    shifts, axes = list(n["shifts"]), list(n["dims"])
    if not axes:
        flat = n.reshape(n.x, (product(n.x.shape),))
        return n.reshape(n.F.roll(flat, shifts=(shifts[0],), axes=(0,)), n.x.shape)
    rank = len(n.x.shape)
    return n.F.roll(n.x, shifts=tuple(shifts), axes=tuple(axis_of(a, rank) for a in axes))


def repeat(n: Call) -> Value:
    repeats = tuple(n["repeats"])
    lead = len(repeats) - len(n.x.shape)
    return n.F.copy(n.F.tile(n.reshape(n.x, (1,) * lead + n.x.shape), repeats=repeats))


def triangle(upper: bool) -> Any:
    return lambda n: n.F.trilu(n.x, upper=upper, k=n["diagonal"])


# -- positions ---------------------------------------------------------------------------------------------------------
def arange(n: Call) -> Value:
    """arange, iota: start + step · position."""
    dtype, shape = n.result
    start, step = n.given.get("start", 0), n.given.get("step", 1)
    counted = dtype if not dtype.is_float and dtype is not DType.BOOL else DType.INT64
    positions = n.F.iota(shape=shape, axis=0, dtype=counted)
    if dtype.is_float:
        wide = n.cast(positions, DType.FLOAT64)
        made = n.F.add(n.F.mul(wide, n.scalar(step, DType.FLOAT64)), n.scalar(start, DType.FLOAT64))
        return n.cast(made, dtype)
    if step != 1:
        positions = n.F.mul(positions, n.scalar(step, counted))
    if start != 0:
        positions = n.F.add(positions, n.scalar(start, counted))
    return n.cast(positions, dtype)


def linspace(n: Call) -> Value:
    """From both ends to the middle, in float64; one step is the start. Ends of integers are truncated before, what lies
    between them after, as eager PyTorch does; its decomposition truncates only after and computes in float32."""
    dtype = n.result.dtype
    one, two = n.scalar(1, DType.INT64), n.scalar(2, DType.INT64)
    start, end = (n.cast(n.lift(n[name], dtype), DType.FLOAT64) for name in ("start", "end"))
    count = n.scalar(n["steps"], DType.INT64)
    last = n.cast(n.F.maximum(n.F.sub(count, one), one), DType.FLOAT64)
    step = n.F.div(n.F.sub(end, start), last)
    position = n.F.iota(shape=n.result.shape, axis=0, dtype=DType.INT64)
    before = n.cast(position, DType.FLOAT64)
    first = n.F.lt(position, n.F.maximum(n.F.int_floor_divide(count, two), one))
    upper = n.F.sub(end, n.F.mul(step, n.F.sub(last, before)))
    return n.cast(n.F.where(first, n.F.add(start, n.F.mul(step, before)), upper), dtype)


def eye(n: Call) -> Value:
    dtype, shape = n.result
    return n.F.eye(rows=shape[0], columns=shape[1], dtype=dtype)


# Of a negative index only index, index_put, index_fill, take and put count from the end; to others it is out of range.
def embedding(n: Call) -> Value:
    return n.F.gather(n["weight"], n["indices"], axis=0, wraps=False)


def index_select(n: Call) -> Value:
    indices = n["index"]
    data = n.x if n.x.shape else n.reshape(n.x, (1,))
    made = n.F.gather(data, n.reshape(indices, (1,)) if not indices.shape else indices, axis=n.axis(), wraps=False)
    return n.reshape(made, n.result.shape)


def gather(n: Call) -> Value:
    x, indices = n.x, n["index"]
    if 0 in indices.shape:  # of any rank
        return n.full(0, n.result.shape, x.dtype)
    x, indices = n.reshape(x, x.shape or (1,)), n.reshape(indices, indices.shape or (1,))
    axis = axis_of(n["dim"], len(x.shape))
    made = n.F.gather_elements(_cut_to(n, x, indices, axis), indices, axis=axis, wraps=False)
    return n.reshape(made, n.result.shape)


def take(n: Call) -> Value:
    """Elements of the flattened operand; where there is none, PyTorch says what is wrong."""
    count = product(n.x.shape)
    if count == 0:
        raise Unmapped("elements of nothing")
    return n.reshape(
        n.F.gather(n.reshape(n.x, (count,)), n.reshape(n["index"], n["index"].shape or (1,)), axis=0), n["index"].shape
    )


def _cut_to(n: Call, made: Value, index: Value, axis: int) -> Value:
    """The part of the operand that an index may reach: PyTorch's index may be smaller along the other axes."""
    for other, (have, want) in enumerate(zip(made.shape, index.shape, strict=True)):
        if other != axis and have != want:
            made = n.first(made, other, want)
    return made


def index(n: Call) -> Value:
    """x[i, j, …] with tensors of integers, which broadcast; None for whole axes."""
    given = list(n["indices"]) + [None] * (len(n.x.shape) - len(n["indices"]))
    if any(each is not None and each.dtype is DType.BOOL for each in given):
        raise Unmapped("an index of booleans decides a shape")
    if any(each is not None and each.dtype is DType.UINT8 for each in given):
        raise Unmapped("an index of uint8 is a mask")
    at = [axis for axis, each in enumerate(given) if each is not None]
    whole = [axis for axis, each in enumerate(given) if each is None]
    if not at:
        return n.F.copy(n.x)
    indices = [n.cast(given[axis], DType.INT64) for axis in at]
    if len(at) == 1:
        return n.F.gather(n.x, indices[0], axis=at[0])
    shape = broadcast(indices)
    adjacent = at == list(range(at[0], at[-1] + 1))
    data = n.transpose(n.x, [*at, *whole])
    columns = [n.reshape(n.expand(each, shape), (*shape, 1)) for each in indices]
    made = n.F.gather_nd(data, n.F.concat(*columns, axis=-1), batch_dims=0)
    if not adjacent or at[0] == 0:
        return made
    lead, count = at[0], len(shape)
    axes = [*range(count, count + lead), *range(count), *range(count + lead, len(made.shape))]
    return n.transpose(made, axes)


def broadcast(values: Sequence[Value]) -> tuple[Dim, ...]:
    rank = max(len(v.shape) for v in values)
    shape: list[Dim] = [1] * rank
    for value in values:
        for axis, extent in enumerate(value.shape, rank - len(value.shape)):
            if extent != 1:
                shape[axis] = extent
    return tuple(shape)


def put_slice(n: Call) -> Value:
    """slice_scatter: the operand with a slice replaced."""
    axis, x = n.axis(), n["self"]
    extent = x.shape[axis]
    start, stop = _bound(n["start"], 0, extent), _bound(n["end"], extent, extent)
    return _put(n, x, axis, start, stop, n["step"], n.cast(n["src"], x.dtype))


def put_select(n: Call) -> Value:
    """select_scatter."""
    axis, x, position = n.axis(), n["self"], n["index"]
    if isinstance(position, int) and position < 0:
        position = dims.add(x.shape[axis], position)
    source = n.cast(n["src"], x.dtype)
    source = n.reshape(source, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return _put(n, x, axis, position, dims.add(position, 1), 1, source)


def _put(n: Call, x: Value, axis: int, start: Dim, stop: Dim, step: int, source: Value) -> Value:
    starts: list[Dim] = [0] * len(x.shape)
    stops, steps = list(x.shape), [1] * len(x.shape)
    starts[axis], stops[axis], steps[axis] = start, stop, step
    return n.F.slice_update(x, source, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))
