"""ATen operators that write at positions which tensors of integers name.

Each place of the result asks which of the indices name it: the work is the product of the two, so only small ones are
compiled, and larger ones run in PyTorch.
"""

from __future__ import annotations

from typing import Any

from autofusion.dims import Dim, product
from autofusion.dtypes import DType
from autofusion.frontends.torch.adapter import Unmapped
from autofusion.frontends.torch.call import Call, highest, lowest
from autofusion.frontends.torch.shapes import broadcast
from autofusion.graph.ir import Value
from autofusion.ops.rules import axis_of

WORK = 1 << 17  # comparisons: what they cost is about what a call of PyTorch's operator does
FEW = 64  # of the one, where how many there are of the other is open: the work is linear in that


def _bounded(places: Dim, indices: Dim, rows: Dim = 1, words: tuple[str, str] = ("places", "indices")) -> None:
    """Raises Unmapped where comparing each place with each index, in each row, is too much work."""
    asked = product([places, indices, rows])
    text = f"{_amount(places)} {words[0]} with {_amount(indices)} {words[1]}"
    if isinstance(asked, int):
        if asked > WORK:
            again = "" if rows == 1 else f", {_amount(rows)} times"
            raise Unmapped(f"it would compare {text}{again}; at most {WORK:,} comparisons are compiled")
    elif not any(isinstance(each, int) and each <= FEW for each in (places, indices)):
        raise Unmapped(f"it would compare {text}; of open sizes that is compiled where one is at most {FEW}")


def _amount(dim: Dim) -> str:
    return f"{dim:,}" if isinstance(dim, int) else str(dim)


def _positions(n: Call, index: Value, extent: Dim, wraps: bool) -> Value:
    """Indices counted from the start; launching raises IndexOutOfRange for one outside. `wraps`: negative ones count
    from the end."""
    wide = n.cast(index, DType.INT64)
    return n.F.gather(n.F.iota(shape=(extent,), axis=0, dtype=DType.INT64), wide, axis=0, wraps=wraps)


def _combined(n: Call, x: Value, hit: Value, source: Value, reduce: str, include: bool) -> Value:
    """x[…, e] with every source[…, 1, j] where hit[…, e, j]."""
    dtype = x.dtype
    inner = dtype.compute if dtype.is_float else dtype
    wide, source = n.cast(x, inner), n.cast(source, inner)

    def fold(row: str, neutral: Any) -> Value:
        return n.row(row)(n.F.where(hit, source, n.scalar(neutral, inner)), axes=(-1,), keepdims=False)

    if dtype is DType.BOOL:
        raise Unmapped(f"{n.op} of booleans")
    neutral: float | int | bool
    if reduce in ("sum", "add", "mean"):
        folded, combine, neutral = fold("sum", 0), "add", 0
    elif reduce in ("prod", "multiply"):
        folded, combine, neutral = fold("prod", 1), "mul", 1
    elif reduce == "amax":
        folded, combine, neutral = fold("max", lowest(inner)), "maximum", lowest(inner)
    elif reduce == "amin":
        folded, combine, neutral = fold("min", highest(inner)), "minimum", highest(inner)
    else:
        raise Unmapped(f"{n.op} by {reduce!r}")
    named = n.expand(n.F.any(hit, axes=(-1,), keepdims=False), x.shape)
    start = wide if include else n.F.where(named, n.scalar(neutral, inner), wide)
    made = n.row(combine)(start, folded)
    if reduce == "mean":
        counts = n.F.sum(n.cast(hit, DType.INT64), axes=(-1,), keepdims=False)
        counts = n.F.maximum(n.F.add(counts, n.scalar(int(include), DType.INT64)), n.scalar(1, DType.INT64))
        made = n.row("div" if inner.is_float else "int_floor_divide")(made, n.cast(counts, inner))
    return n.cast(n.F.where(named, made, wide), dtype)


def _last(n: Call, hit: Value) -> Value:
    """Of each place the last index that names it, or −1."""
    count = hit.shape[-1]
    along = n.F.iota(shape=(count,), axis=0, dtype=DType.INT64)
    return n.F.max(n.F.where(hit, along, n.scalar(-1, DType.INT64)), axes=(-1,), keepdims=False)


# -- along one axis ----------------------------------------------------------------------------------------------------
def scatter(reduce: str | None = None) -> Any:
    """scatter, scatter_add, scatter_reduce. `reduce`: how, where the operator has no argument that says so."""

    def make(n: Call) -> Value:
        x, index = n["self"], n["index"]
        how = reduce or n.given.get("reduce")
        include = bool(n.given.get("include_self", True))
        source = n["src"] if "src" in n.given else n.full(n["value"], index.shape, x.dtype)
        if 0 in index.shape:  # of any rank
            return n.F.copy(x)
        if not x.shape:
            x, index, source = (n.reshape(each, (1,)) for each in (x, index, source))
        if not index.shape:
            index, source = n.reshape(index, (1,)), n.reshape(source, (1,))
        axis, rank = axis_of(n["dim"], len(x.shape)), len(x.shape)
        _bounded(x.shape[axis], index.shape[axis], product([e for a, e in enumerate(index.shape) if a != axis]))
        part = x
        for other, (have, want) in enumerate(zip(x.shape, index.shape, strict=True)):
            if other != axis and have != want:
                part = n.first(part, other, want)
        for other, (have, want) in enumerate(zip(source.shape, index.shape, strict=True)):
            if have != want:
                source = n.first(source, other, want)
        order = [*(a for a in range(rank) if a != axis), axis]
        at = _positions(n, n.transpose(index, order), x.shape[axis], wraps=False)
        made = _placed(n, n.transpose(part, order), at, n.transpose(n.cast(source, x.dtype), order), how, include)
        made = n.transpose(made, [order.index(a) for a in range(rank)])
        if part is not x:
            zeros, ones = (0,) * rank, (1,) * rank
            made = n.F.slice_update(x, made, starts=zeros, stops=made.shape, steps=ones)
        return n.reshape(made, n.result.shape)

    return make


def _placed(n: Call, x: Value, at: Value, source: Value, reduce: str | None, include: bool) -> Value:
    """Along the last axis."""
    extent = x.shape[-1]
    places = n.F.iota(shape=(extent, 1), axis=0, dtype=DType.INT64)
    hit = n.F.eq(n.F.unsqueeze(at, axes=(len(at.shape) - 1,)), places)
    if reduce is not None:
        return _combined(n, x, hit, n.F.unsqueeze(source, axes=(len(at.shape) - 1,)), reduce, include)
    last = _last(n, hit)
    safe = n.F.maximum(last, n.scalar(0, DType.INT64))
    found = n.F.gather_elements(source, safe, axis=len(x.shape) - 1)
    return n.F.where(n.F.ge(last, n.scalar(0, DType.INT64)), found, x)


def index_reduce(n: Call) -> Value:
    return _along(n, n["source"], n["reduce"], bool(n["include_self"]))


def index_add(n: Call) -> Value:
    """index_add: self with alpha · source added at the places that the index names."""
    source, alpha = n["source"], n["alpha"]
    if n.result.dtype is DType.BOOL:
        raise Unmapped(f"{n.op} of booleans")
    if alpha != 1:
        inner = source.dtype.compute if source.dtype.is_float else source.dtype
        source = n.F.mul(n.cast(source, inner), n.scalar(alpha, inner))
    return _along(n, source, "sum")


def index_copy(n: Call) -> Value:
    return _along(n, n["source"], None)


def index_fill(n: Call) -> Value:
    x, count = n["self"], product(n["index"].shape)
    shape = list(x.shape or (1,))
    shape[axis_of(n["dim"], len(shape))] = count
    return _along(n, n.expand(n.held(n["value"], x.dtype), shape), None, wraps=True)


def _along(n: Call, source: Value, reduce: str | None, include: bool = True, wraps: bool = False) -> Value:
    """One index for all rows along an axis."""
    x, source = (n.reshape(each, each.shape or (1,)) for each in (n["self"], source))
    axis, rank = axis_of(n["dim"], len(x.shape)), len(x.shape)
    order = [*(a for a in range(rank) if a != axis), axis]
    turned, source = n.transpose(x, order), n.transpose(source, order)
    made = _rows(n, turned, n["index"], source, reduce, include, wraps=wraps)
    return n.reshape(n.transpose(made, [order.index(a) for a in range(rank)]), n.result.shape)


def _rows(
    n: Call, x: Value, index: Value, source: Value, reduce: str | None, include: bool = True, *, wraps: bool
) -> Value:
    """x[…, index[j]] with source[…, j]; one index for all rows."""
    extent, count = x.shape[-1], source.shape[-1]
    if count == 0 or 0 in x.shape:
        return n.F.copy(x)
    _bounded(extent, count, product(x.shape[:-1]) if reduce is not None else 1)
    at = _positions(n, n.reshape(index, (count,)), extent, wraps)
    hit = n.F.eq(n.reshape(at, (1, count)), n.F.iota(shape=(extent, 1), axis=0, dtype=DType.INT64))
    if reduce is not None:
        wide = n.reshape(source, (*source.shape[:-1], 1, count))
        return _combined(n, x, n.reshape(hit, (*(1,) * (len(x.shape) - 1), extent, count)), wide, reduce, include)
    last = _last(n, hit)
    found = n.F.gather(source, n.F.maximum(last, n.scalar(0, DType.INT64)), axis=len(x.shape) - 1)
    return n.F.where(n.F.ge(last, n.scalar(0, DType.INT64)), found, x)


# -- at several axes ---------------------------------------------------------------------------------------------------
def index_put(n: Call) -> Value:
    """x[i, j, …] = values, or +=; a mask of all axes with one value is a choice."""
    x, values = n["self"], n["values"]
    given = list(n["indices"]) + [None] * (len(x.shape) - len(n["indices"]))
    if len(n["indices"]) == 1 and given[0] is not None and given[0].dtype is DType.BOOL:
        return _put_mask(n, x, given[0], values)
    if any(each is not None and each.dtype in (DType.BOOL, DType.UINT8) for each in given):
        raise Unmapped("masks among indices")
    at = [axis for axis, each in enumerate(given) if each is not None]
    rest = [axis for axis, each in enumerate(given) if each is None]
    if not at:
        raise Unmapped(f"{n.op} without indices")
    reduce = "sum" if n["accumulate"] else None
    indices = [_positions(n, given[axis], x.shape[axis], wraps=True) for axis in at]
    shape = broadcast(indices)
    flat = n.expand(indices[0], shape)
    for axis, each in zip(at[1:], indices[1:], strict=True):
        flat = n.F.add(n.F.mul(flat, n.scalar(x.shape[axis], DType.INT64)), n.expand(each, shape))
    adjacent = at == list(range(at[0], at[-1] + 1))
    lead = at[0] if adjacent else 0
    whole = [x.shape[a] for a in rest]
    full = (*whole[:lead], *shape, *whole[lead:])
    values = n.expand(n.cast(values, x.dtype), full)
    order = [*range(lead), *range(lead + len(shape), len(full)), *range(lead, lead + len(shape))]
    values = n.reshape(n.transpose(values, order), (product(whole), product(shape)))
    axes = [*rest, *at]
    turned = n.transpose(x, axes)
    rows = n.reshape(turned, (product(whole), product([x.shape[a] for a in at])))
    made = n.reshape(_rows(n, rows, flat, values, reduce, wraps=True), turned.shape)
    return n.transpose(made, [axes.index(a) for a in range(len(axes))])


def _put_mask(n: Call, x: Value, mask: Value, values: Value) -> Value:
    if product(values.shape) != 1 or n["accumulate"]:
        raise Unmapped("a mask whose values are several decides a shape")
    mask = n.reshape(mask, (*mask.shape, *(1,) * (len(x.shape) - len(mask.shape))))
    return n.F.where(mask, n.reshape(n.cast(values, x.dtype), ()), x)


def put(n: Call) -> Value:
    x = n["self"]
    flat = n.reshape(x, (1, product(x.shape)))
    source = n.reshape(n["source"], (1, product(n["source"].shape)))
    return n.reshape(_rows(n, flat, n["index"], source, "sum" if n["accumulate"] else None, wraps=True), x.shape)


def masked_scatter(n: Call) -> Value:
    """Where the mask is set, the next element of the source."""
    shape = n.result.shape
    x, mask = n.expand(n["self"], shape), n.expand(n["mask"], shape)
    size = product(n["source"].shape)
    if 0 in shape or size == 0:
        raise Unmapped(f"{n.op} of nothing")
    flat = n.reshape(mask, (product(shape),))
    count = n.F.cumsum(n.cast(flat, DType.INT64), axis=0)
    at = n.F.maximum(n.F.sub(count, n.scalar(1, DType.INT64)), n.scalar(0, DType.INT64))
    found = n.F.gather(n.reshape(n["source"], (size,)), n.F.where(flat, at, n.scalar(0, DType.INT64)), axis=0)
    return n.F.where(mask, n.reshape(found, shape), x)


def searchsorted(n: Call) -> Value:
    """How many boundaries are below each value (`right`: or equal)."""
    if n["sorter"] is not None:
        raise Unmapped("searchsorted by a sorter")
    right = bool(n["right"]) if n["side"] is None else n["side"] == "right"
    return _counted(n, n["sorted_sequence"], n["self"], right)


def bucketize(n: Call) -> Value:
    return _counted(n, n["boundaries"], n["self"], bool(n["right"]))


def _counted(n: Call, boundaries: Value, values: Any, right: bool) -> Value:
    (a, b), _ = n.meet(boundaries, values)
    _bounded(product(b.shape), a.shape[-1], words=("values", "boundaries"))
    a = n.reshape(a, (*a.shape[:-1], 1, a.shape[-1])) if len(a.shape) > 1 else a
    below = n.F.logical_not(n.row("gt" if right else "ge")(a, n.F.unsqueeze(b, axes=(len(b.shape),))))  # NaN is above
    counted = n.F.sum(n.cast(below, DType.INT64), axes=(-1,), keepdims=False)
    return n.cast(n.reshape(counted, n.result.shape), n.result.dtype)
