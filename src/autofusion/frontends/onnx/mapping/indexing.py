"""Operators that look elements up by position, or put them there."""

from __future__ import annotations

from typing import Any

import numpy as np

from autofusion.dtypes import DType
from autofusion.errors import GraphError
from autofusion.frontends.onnx.call import Call, maps
from autofusion.ops.rules import axis_of


def _index(n: Call, position: int) -> Any:
    return n[position] if n.dtype(position) in (DType.INT32, DType.INT64) else n.cast(n[position], DType.INT64)


@maps("Gather")
def gather(n: Call) -> Any:
    """Known neighbouring positions are a slice: a view."""
    shape, axis = n.shape(0), axis_of(n.attr("axis", 0), n.rank(0))
    index, extent = n.operands[1], shape[axis]
    if isinstance(index, np.ndarray) and index.size and index.ndim <= 1 and isinstance(extent, int):
        flat = index.reshape(-1).astype(np.int64)
        if ((flat < -extent) | (flat >= extent)).any():
            raise GraphError(f"an index is outside axis {axis} of {extent}")
        flat = np.where(flat < 0, flat + extent, flat)
        if (np.diff(flat) == 1).all():
            part = n.cut(n[0], axis, int(flat[0]), int(flat[-1]) + 1)
            return n.reshape(part, (*shape[:axis], *index.shape, *shape[axis + 1 :]))
    return n.F.gather(n[0], _index(n, 1), axis=axis)


@maps("GatherElements")
def gather_elements(n: Call) -> Any:
    return n.row("gather_elements")(n[0], _index(n, 1), axis=n.attr("axis", 0))


@maps("GatherND")
def gather_nd(n: Call) -> Any:
    return n.row("gather_nd")(n[0], _index(n, 1), batch_dims=n.attr("batch_dims", 0))


@maps("ScatterElements", "Scatter")
def scatter_elements(n: Call) -> Any:
    reduction = n.attr("reduction", "none")
    return n.row("scatter_elements")(n[0], _index(n, 1), n[2], axis=n.attr("axis", 0), reduction=reduction)


@maps("ScatterND")
def scatter_nd(n: Call) -> Any:
    return n.row("scatter_nd")(n[0], _index(n, 1), n[2], reduction=n.attr("reduction", "none"))


@maps("OneHot")
def one_hot(n: Call) -> Any:
    """Negative positions count from the end; those outside are nowhere."""
    depth = int(n.known(1).reshape(-1)[0])
    shape = n.shape(0)
    axis = axis_of(n.attr("axis", -1), len(shape) + 1)
    index = n.cast(n[0], DType.INT64)
    index = n.F.where(n.F.lt(index, n.scalar(0, index)), n.F.add(index, n.scalar(depth, index)), index)
    index = n.reshape(index, (*shape[:axis], 1, *shape[axis:]))
    here = n.F.iota(shape=(*(1,) * axis, depth, *(1,) * (len(shape) - axis)), axis=axis)
    off, on = (n.reshape(n.cut(n[2], 0, i, i + 1), ()) for i in (0, 1))
    return n.F.where(n.F.eq(index, here), on, off)


@maps("TopK")
def topk(n: Call) -> Any:
    k = int(n.known(1).reshape(())) if n.has(1) else n.attr("k")
    attrs = {"k": k, "axis": n.attr("axis", -1), "largest": bool(n.attr("largest", 1))}
    return [n.row("topk_values")(n[0], **attrs), n.row("topk_indices")(n[0], **attrs)]


@maps("NonZero")
def non_zero(n: Call) -> Any:
    return n.F.constant(np.array(np.nonzero(n.known(0)), np.int64))


@maps("Compress")
def compress(n: Call) -> Any:
    chosen = np.flatnonzero(n.known(1).reshape(-1))
    axis = n.attr("axis")
    data = n[0] if axis is not None else n.reshape(n[0], (-1,))
    return n.F.gather(data, n.F.constant(chosen.astype(np.int64)), axis=axis or 0)
