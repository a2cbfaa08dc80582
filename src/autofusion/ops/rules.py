"""Shape and element-type rules that many rows share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autofusion.dims import Dim, Shape, require_equal, show_shape
from autofusion.dtypes import DType, of
from autofusion.errors import DTypeError, GraphError, ShapeError
from autofusion.ops.table import Attrs


def broadcast(shapes: Sequence[Shape], attrs: Attrs | None = None) -> Shape:
    """NumPy's broadcasting: align at the right; 1 stretches."""
    rank = max(map(len, shapes))
    result: list[Dim] = []
    for position in range(-rank, 0):
        extent: Dim = 1
        for shape in shapes:
            if -position > len(shape) or shape[position] == 1:
                continue
            dim = shape[position]
            try:
                extent = dim if extent == 1 else require_equal(extent, dim, f"axis {position}")
            except ShapeError as error:
                raise ShapeError(f"shapes {' and '.join(map(show_shape, shapes))} do not broadcast: {error}") from None
        result.append(extent)
    return tuple(result)


def same(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    """One common element type. Casts are written, not implied."""
    if len(set(dtypes)) != 1:
        raise DTypeError(f"element types {', '.join(dtypes)} differ; cast them to one type")
    return dtypes[0]


def boolean(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    """bool, from inputs of one type."""
    same(dtypes, attrs)
    return DType.BOOL


def first(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    return dtypes[0]


def attribute(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    """The type that the attribute `dtype` names."""
    return of(attrs["dtype"])


def axis_of(axis: Any, rank: int) -> int:
    """A non-negative axis. Raises GraphError where it is out of range."""
    if not isinstance(axis, int) or isinstance(axis, bool) or not -rank <= axis < rank:
        raise GraphError(f"axis {axis!r} is out of range for rank {rank}")
    return axis % rank


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Sorted distinct non-negative axes; None means all."""
    if axes is None:
        return tuple(range(rank))
    listed = tuple(axis_of(a, rank) for a in (axes if isinstance(axes, tuple) else (axes,)))
    if len(set(listed)) != len(listed):
        raise GraphError(f"axes {axes!r} name one axis twice")
    return tuple(sorted(listed))


def reduced(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    """The shape after folding `axes`; `keepdims` leaves them as 1."""
    shape = shapes[0]
    axes = axes_of(attrs["axes"], len(shape))
    if attrs["keepdims"]:
        return tuple(1 if d in axes else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in axes)


def unchanged(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    """The first input's shape."""
    return shapes[0]
