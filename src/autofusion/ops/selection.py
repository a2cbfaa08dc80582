"""Rows that choose elements: positions of extremes, running extremes, sorting, gathers and scatters by index."""

from __future__ import annotations

from typing import Any

import numpy as np

from autofusion import dtypes
from autofusion.dims import Dim, Shape, at_least, product, require_equal, show_shape
from autofusion.dtypes import Array, DType
from autofusion.errors import DTypeError, GraphError, IndexOutOfRange, ShapeError
from autofusion.kinds import Kind
from autofusion.ops.elementwise import NUMBERS
from autofusion.ops.folds import FOLDS
from autofusion.ops.rules import axis_of, first, same
from autofusion.ops.structure import strides_of
from autofusion.ops.table import REQUIRED, TABLE, Attrs, Builder, Op

POSITIONS = (DType.INT32, DType.INT64)


def _along(shapes: list[Shape], attrs: Attrs) -> Shape:
    axis_of(attrs["axis"], len(shapes[0]))
    return shapes[0]


def _int64(types: list[DType], attrs: Attrs) -> DType:
    return DType.INT64


# -- the position of the largest or smallest ---------------------------------------------------------------------------
def _arg_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    shape = shapes[0]
    axis = axis_of(attrs["axis"], len(shape))
    if shape[axis] == 0:
        raise ShapeError(f"axis {axis} is empty: the position of an extreme of nothing has no value")
    return (*shape[:axis], *((1,) if attrs["keepdims"] else ()), *shape[axis + 1 :])


def _arg(largest: bool) -> Any:
    def reference(a: Array, axis: int, keepdims: bool, select_last: bool) -> Array:
        find = np.argmax if largest else np.argmin
        values = a.astype(np.float64) if dtypes.of(a).is_float else a
        if not select_last:
            return np.asarray(find(values, axis=axis, keepdims=keepdims)).astype(np.int64)
        found = find(np.flip(values, axis), axis=axis, keepdims=keepdims)
        return np.asarray(a.shape[axis] - 1 - found).astype(np.int64)

    return reference


def _arg_lower(largest: bool) -> Any:
    def lower(F: Builder, a: Any, attrs: Attrs) -> Any:
        """The first (or last) position that holds the extreme; a NaN is one."""
        dtype, shape = F.type_of(a)
        axis = axis_of(attrs["axis"], len(shape))
        fold = F.max if largest else F.min
        hit = F.eq(a, fold(a, axes=(axis,), keepdims=True))
        if dtype.is_float:
            hit = F.logical_or(hit, F.ne(a, a))
        along = F.iota(shape=tuple(n if d == axis else 1 for d, n in enumerate(shape)), axis=axis, dtype=DType.INT64)
        none = -1 if attrs["select_last"] else np.iinfo(np.int64).max
        chosen = F.where(hit, along, F.scalar(none, DType.INT64))
        choose = F.max if attrs["select_last"] else F.min
        return choose(chosen, axes=(axis,), keepdims=attrs["keepdims"])

    return lower


for _name, _largest in {"argmax": True, "argmin": False}.items():
    TABLE.register(
        Op(
            _name,
            Kind.REDUCE,
            1,
            _arg_shape,
            _int64,
            _arg(_largest),
            lower=_arg_lower(_largest),
            attributes={"axis": 0, "keepdims": False, "select_last": False},
            flops=4,
            doc=f"position of the {'largest' if _largest else 'smallest'} along an axis, first or last; NaN wins",
        )
    )


# -- running extremes --------------------------------------------------------------------------------------------------
def _running(fold: str) -> Any:
    return lambda a, axis: np.asarray(FOLDS[fold].running(a, axis=axis)).astype(a.dtype)


for _name, _fold in {"cummax": "max", "cummin": "min"}.items():
    TABLE.register(
        Op(
            _name,
            Kind.SCAN,
            1,
            _along,
            same,
            _running(_fold),
            fold=_fold,
            attributes={"axis": REQUIRED},
            dtypes=NUMBERS,
            doc=f"running {_fold} along an axis; NaN from the first on",
        )
    )


def _hardmax(a: Array, axis: int) -> Array:
    if a.shape[axis] == 0:
        return a.copy()
    result = np.zeros_like(a)
    np.put_along_axis(result, np.argmax(a.astype(np.float64), axis=axis, keepdims=True), 1, axis)
    return result


def _hardmax_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    dtype, shape = F.type_of(a)
    axis = axis_of(attrs["axis"], len(shape))
    if shape[axis] == 0:
        return F.copy(a)
    along = F.iota(shape=tuple(n if d == axis else 1 for d, n in enumerate(shape)), axis=axis, dtype=DType.INT64)
    return F.cast(F.eq(along, F.argmax(a, axis=axis, keepdims=True)), dtype=dtype)


TABLE.register(
    Op(
        "hardmax",
        Kind.REDUCE,
        1,
        _along,
        same,
        _hardmax,
        lower=_hardmax_lower,
        attributes={"axis": -1},
        dtypes=dtypes.FLOATS,
        flops=5,
        doc="1 at the first largest along an axis, else 0",
    )
)


# -- sorting: by the reference, serial ---------------------------------------------------------------------------------
def _order(a: Array, axis: int, descending: bool) -> Array:
    """Positions in stable order; NaN counts as the largest."""
    values = a.astype(np.float64) if dtypes.of(a).is_float else a
    if not descending:
        return np.argsort(values, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(values, axis), axis=axis, kind="stable")
    return np.flip(a.shape[axis] - 1 - backwards, axis)


def _topk_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    shape = list(shapes[0])
    axis = axis_of(attrs["axis"], len(shape))
    k = attrs["k"]
    if isinstance(k, int) and (k < 0 or (isinstance(shape[axis], int) and k > shape[axis])):  # type: ignore[operator]
        raise ShapeError(f"k={k} of axis {axis} with {shape[axis]} elements")
    shape[axis] = k
    return tuple(shape)


def _topk(a: Array, k: int, axis: int, largest: bool) -> Array:
    return np.asarray(np.take(_order(a, axis, largest), np.arange(k), axis=axis)).astype(np.int64)


_SORT = {"axis": -1, "descending": False}
_TOPK = {"k": REQUIRED, "axis": -1, "largest": True}
_SORTS: tuple[tuple[str, Any, Any, Any, dict[str, Any], str], ...] = (
    ("argsort", _int64, _along, lambda a, axis, descending: _order(a, axis, descending).astype(np.int64), _SORT,
     "positions in stable order along an axis; NaN counts as the largest"),
    ("sort_values", first, _along,
     lambda a, axis, descending: np.take_along_axis(a, _order(a, axis, descending), axis), _SORT,
     "values in order along an axis; NaN counts as the largest"),
    ("topk_indices", _int64, _topk_shape, _topk, _TOPK, "positions of the k largest or smallest along an axis"),
    ("topk_values", first, _topk_shape,
     lambda a, k, axis, largest: np.take_along_axis(a, _topk(a, k, axis, largest), axis), _TOPK,
     "the k largest or smallest along an axis, in order"),
)  # fmt: skip
for _name, _rule, _shape, _function, _attributes, _text in _SORTS:
    TABLE.register(
        Op(_name, Kind.OPAQUE, 1, _shape, _rule, _function, attributes=_attributes, tolerance=0, flops=20, doc=_text)
    )


# -- gathers -----------------------------------------------------------------------------------------------------------
def _positions(types: list[DType], attrs: Attrs) -> DType:
    if types[1] not in POSITIONS:
        raise DTypeError(f"indices are {types[1]}, expected int32 or int64")
    if len(types) > 2 and types[2] is not types[0]:
        raise DTypeError(f"updates are {types[2]}, expected {types[0]}")
    return types[0]


def normalised(index: Array, extent: Any, what: str, wraps: bool = True) -> Array:
    """Positions counted from the front. Raises IndexOutOfRange; where nothing wraps, for negative ones too."""
    bad = (index < (-np.asarray(extent) if wraps else 0)) | (index >= np.asarray(extent))
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise IndexOutOfRange(f"{what}: index {index.flat[at]} at position {at} is outside an axis of {extent}")
    return np.where(index < 0, index + extent, index)


def _elements_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    data, index = shapes[:2]
    axis = axis_of(attrs["axis"], len(data))
    if len(index) != len(data):
        raise ShapeError(f"indices {show_shape(index)} of data {show_shape(data)}: expected the same rank")
    for d, (extent, most) in enumerate(zip(index, data, strict=True)):
        if d != axis and extent != most and not at_least(most, extent):
            raise ShapeError(f"indices {show_shape(index)} reach beyond data {show_shape(data)} along axis {d}")
    return index


def _gather_elements(data: Array, index: Array, axis: int, wraps: bool) -> Array:
    where = normalised(index, data.shape[axis], "gather_elements", wraps)
    inside = tuple(slice(None) if d == axis % data.ndim else slice(0, n) for d, n in enumerate(index.shape))
    return np.take_along_axis(data[inside], where, axis)


def _position(F: Builder, index: Any, extent: Dim, wraps: bool = True) -> tuple[Any, Any]:
    """A position counted from the front, and whether it is out of range."""
    at = F.cast(index, dtype=DType.INT64)
    if wraps:
        at = F.where(F.lt(at, 0), F.add(at, extent), at)
    return at, F.logical_or(F.lt(at, 0), F.ge(at, extent))


def _counted(F: Builder, shape: Shape, axis: int, stride: Dim) -> Any:
    """The position along one axis of a shape, times a stride; broadcasts with the shape."""
    along = tuple(n if d == axis else 1 for d, n in enumerate(shape))
    return F.mul(F.iota(shape=along, axis=axis, dtype=DType.INT64), stride)


def _gather_elements_lower(F: Builder, data: Any, index: Any, attrs: Attrs) -> Any:
    """One gather from all of data in row-major order; what is out of range is so there too, and raises."""
    shape, wanted = F.type_of(data).shape, F.type_of(index).shape
    axis, strides = axis_of(attrs["axis"], len(shape)), strides_of(shape)
    at, bad = _position(F, index, shape[axis], attrs["wraps"])
    flat = F.mul(at, strides[axis])
    for d in range(len(shape)):
        if d != axis:
            flat = F.add(flat, _counted(F, wanted, d, strides[d]))
    size = product(shape)
    return F.gather(F.reshape(data, shape=(size,)), F.where(bad, F.scalar(size, DType.INT64), flat), axis=0)


def _gather_nd_lower(F: Builder, data: Any, index: Any, attrs: Attrs) -> Any:
    """One gather of slices, by the row-major position over the batch axes and those that the index tuples name."""
    shape, wanted, batch = F.type_of(data).shape, F.type_of(index).shape, attrs["batch_dims"]
    depth, lead = int(wanted[-1]), wanted[:-1]  # type: ignore[arg-type]
    indexed = shape[: batch + depth]
    strides = strides_of(indexed)
    flat, bad = F.expand(F.scalar(0, DType.INT64), shape=lead), F.expand(F.scalar(False, DType.BOOL), shape=lead)
    for d in range(batch):
        flat = F.add(flat, _counted(F, lead, d, strides[d]))
    for d in range(depth):
        starts, stops = (0,) * len(lead) + (d,), (*lead, d + 1)
        part = F.reshape(F.slice(index, starts=starts, stops=stops, steps=(1,) * len(wanted)), shape=lead)
        at, outside = _position(F, part, indexed[batch + d])
        flat, bad = F.add(flat, F.mul(at, strides[batch + d])), F.logical_or(bad, outside)
    size = product(indexed)
    rows = F.reshape(data, shape=(size, *shape[batch + depth :]))
    return F.gather(rows, F.where(bad, F.scalar(size, DType.INT64), flat), axis=0)


TABLE.register(
    Op(
        "gather_elements",
        Kind.GATHER,
        2,
        _elements_shape,
        _positions,
        _gather_elements,
        lower=_gather_elements_lower,
        attributes={"axis": 0, "wraps": True},
        tolerance=0,
        doc="data at one position along an axis for each element of the index; out of range raises",
    )
)


def _nd_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    data, index = shapes[:2]
    batch = attrs["batch_dims"]
    if not index or not isinstance(index[-1], int):
        raise ShapeError(f"indices {show_shape(index)}: expected a last axis of known extent")
    if not 0 <= batch < min(len(data), len(index)) or index[-1] > len(data) - batch:
        raise ShapeError(f"indices {show_shape(index)} with {batch} batch axes do not fit data {show_shape(data)}")
    for d in range(batch):
        require_equal(data[d], index[d], f"batch axis {d}")
    return (*index[:-1], *data[batch + index[-1] :])


def _gather_nd(data: Array, index: Array, batch_dims: int) -> Array:
    depth = index.shape[-1]
    lead = np.indices(index.shape[:batch_dims]).reshape(batch_dims, *index.shape[:batch_dims])
    more = (1,) * (index.ndim - 1 - batch_dims)
    batch = [each.reshape(each.shape + more) for each in lead]
    parts = [normalised(index[..., d], data.shape[batch_dims + d], "gather_nd") for d in range(depth)]
    batch = [np.broadcast_to(each, index.shape[:-1]) for each in batch]
    if not batch and not parts:
        return np.broadcast_to(data, (*index.shape[:-1], *data.shape)).copy()
    return np.asarray(data[(*batch, *parts)])


TABLE.register(
    Op(
        "gather_nd",
        Kind.GATHER,
        2,
        _nd_shape,
        _positions,
        _gather_nd,
        lower=_gather_nd_lower,
        attributes={"batch_dims": 0},
        tolerance=0,
        doc="slices of data at the index tuples along the last axis of the index; out of range raises",
    )
)


# -- one-hot -----------------------------------------------------------------------------------------------------------
def _one_hot_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    index, off, on = shapes
    for name, shape in (("off", off), ("on", on)):
        if shape != ():
            raise ShapeError(f"{name} has shape {show_shape(shape)}, expected a rank-0 value")
    axis = axis_of(attrs["axis"], len(index) + 1)
    return (*index[:axis], attrs["depth"], *index[axis:])


def _one_hot_type(types: list[DType], attrs: Attrs) -> DType:
    return same(types[1:], attrs)


def _one_hot(index: Array, off: Array, on: Array, depth: int, axis: int) -> Array:
    where = np.expand_dims(index, axis)
    along = np.arange(depth).reshape([depth if d == axis % where.ndim else 1 for d in range(where.ndim)])
    return np.where(np.where(where < 0, where + depth, where) == along, on, off)


def _one_hot_lower(F: Builder, index: Any, off: Any, on: Any, attrs: Attrs) -> Any:
    shape = F.type_of(index).shape
    axis, depth = axis_of(attrs["axis"], len(shape) + 1), attrs["depth"]
    where = F.reshape(F.cast(index, dtype=DType.INT64), shape=(*shape[:axis], 1, *shape[axis:]))
    if F.type_of(index).dtype.is_signed:
        where = F.where(F.lt(where, 0), F.add(where, depth), where)
    along = (1,) * axis + (depth,) + (1,) * (len(shape) - axis)
    return F.where(F.eq(where, F.iota(shape=along, axis=axis, dtype=DType.INT64)), on, off)


TABLE.register(
    Op(
        "one_hot",
        Kind.JOIN,
        3,
        _one_hot_shape,
        _one_hot_type,
        _one_hot,
        lower=_one_hot_lower,
        attributes={"depth": REQUIRED, "axis": -1},
        dtypes=dtypes.INTEGERS,
        tolerance=0,
        doc="on where the position along a new axis is the index (negative: from the end), else off",
    )
)


# -- scatters: by the reference, in order ------------------------------------------------------------------------------
REDUCTIONS: dict[str, Any] = {"none": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scattered(result: Array, where: tuple[Any, ...], updates: Array, reduction: str) -> Array:
    """Updates placed in order; repeated positions are combined one after another."""
    step = REDUCTIONS[reduction]
    if step is None:
        result[where] = updates
    elif result.dtype == DType.BFLOAT16.numpy:
        wide = result.astype(np.float32)
        step.at(wide, where, updates.astype(np.float32))
        return wide.astype(result.dtype)
    else:
        step.at(result, where, updates)
    return result


def _check_reduction(attrs: Attrs) -> None:
    if attrs["reduction"] not in REDUCTIONS:
        raise GraphError(f"reduction={attrs['reduction']!r}, expected {', '.join(REDUCTIONS)}")


def _scatter_elements_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    _check_reduction(attrs)
    _elements_shape(shapes, attrs)
    if shapes[2] != shapes[1]:
        raise ShapeError(f"updates {show_shape(shapes[2])}, expected the shape of the indices {show_shape(shapes[1])}")
    return shapes[0]


def _scatter_elements(data: Array, index: Array, updates: Array, axis: int, reduction: str) -> Array:
    where: list[Array] = list(np.indices(index.shape))
    where[axis] = normalised(index, data.shape[axis], "scatter_elements")
    return _scattered(data.copy(), tuple(where), updates, reduction)


def _scatter_nd_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    _check_reduction(attrs)
    expected = _nd_shape(shapes, {"batch_dims": 0})
    if shapes[2] != expected:
        raise ShapeError(f"updates {show_shape(shapes[2])}, expected {show_shape(expected)}")
    return shapes[0]


def _scatter_nd(data: Array, index: Array, updates: Array, reduction: str) -> Array:
    where = tuple(normalised(index[..., d], data.shape[d], "scatter_nd") for d in range(index.shape[-1]))
    return _scattered(data.copy(), where or (...,), updates, reduction)


_SCATTERS: tuple[tuple[str, Any, Any, dict[str, Any], str], ...] = (
    ("scatter_elements", _scatter_elements_shape, _scatter_elements, {"axis": 0, "reduction": "none"},
     "data with updates at one position along an axis each"),
    ("scatter_nd", _scatter_nd_shape, _scatter_nd, {"reduction": "none"},
     "data with slices of updates at the index tuples"),
)  # fmt: skip
for _name, _shape, _function, _attributes, _text in _SCATTERS:
    TABLE.register(
        Op(
            _name,
            Kind.OPAQUE,
            3,
            _shape,
            _positions,
            _function,
            attributes=_attributes,
            dtypes=tuple(DType),
            doc=f"{_text}; repeated ones combined by the reduction (none add mul max min); out of range raises",
        )
    )
