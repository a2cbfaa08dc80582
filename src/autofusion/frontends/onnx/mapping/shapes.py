"""Operators that move elements, and those that make them: views, joins, pads, constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autofusion import dims
from autofusion.dims import Dim, Expr
from autofusion.dtypes import DType, of
from autofusion.errors import GraphError
from autofusion.frontends.onnx import adapter
from autofusion.frontends.onnx.adapter import NodeDef
from autofusion.frontends.onnx.call import Call, maps, numbers
from autofusion.frontends.onnx.values import Operand, of_dims
from autofusion.ops.rules import broadcast


def shape_of(node: NodeDef, operands: Sequence[Operand | None]) -> Operand | None:
    """Shape and Size look at no data: they are known at import. None for any other operator."""
    if node.domain or node.op not in ("Shape", "Size") or operands[0] is None:
        return None
    shape = list(operands[0].shape)
    if node.op == "Size":
        return of_dims(dims.product(shape))
    return of_dims(shape[slice(node.attributes.get("start", 0), node.attributes.get("end"))])


@maps("Constant")
def constant(n: Call) -> Any:
    (kind, value), *_ = n.attributes.items()
    if kind in ("value_string", "value_strings"):
        raise GraphError("strings are not supported")
    if kind in ("value", "sparse_value"):
        return n.F.constant(value)
    dtype = np.float32 if "float" in kind else np.int64
    return n.F.constant(np.array(value, dtype))


@maps("ConstantOfShape")
def constant_of_shape(n: Call) -> Any:
    value = n.attr("value", np.zeros(1, np.float32)).reshape(())
    return n.F.full(shape=n.ints(0), value=value.item(), dtype=of(value.dtype))


@maps("Range")
def range_(n: Call) -> Any:
    start, limit, delta = (n.known(i).reshape(()).item() for i in range(3))
    if not any(isinstance(each, Expr) for each in (start, limit, delta)):
        dtype = n.known(0).dtype
        count = max(math.ceil((limit - start) / delta), 0)
        return n.F.constant((start + np.arange(count) * delta).astype(dtype))
    if not isinstance(delta, int) or delta <= 0:
        raise GraphError("a range of an open length needs a positive step that is known")
    count = dims.maximum(dims.ceildiv(dims.add(limit, dims.multiply(start, -1)), delta), 0)
    steps = n.F.mul(n.F.iota(shape=(count,)), n.F.scalar(delta, DType.INT64))
    return n.F.add(steps, n.F.scalar(start, DType.INT64))


@maps("EyeLike")
def eye_like(n: Call) -> Any:
    code = n.attr("dtype")
    dtype = adapter.dtype_of(code) if code else n.dtype(0)
    row, column = (n.F.iota(shape=n.shape(0), axis=axis) for axis in (0, 1))
    return n.cast(n.F.eq(n.F.add(row, n.F.scalar(n.attr("k", 0), DType.INT64)), column), dtype)


@maps("Trilu")
def trilu(n: Call) -> Any:
    shape = n.shape(0)
    k = int(n.known(1).reshape(())) if n.has(1) else 0
    row, column = (n.F.iota(shape=shape, axis=axis) for axis in (len(shape) - 2, len(shape) - 1))
    edge = n.F.add(row, n.F.scalar(k, DType.INT64))
    kept = n.F.ge(column, edge) if n.attr("upper", 1) else n.F.le(column, edge)
    return n.F.where(kept, n[0], n.scalar(0, n[0]))


# -- views -------------------------------------------------------------------------------------------------------------
@maps("Reshape")
def reshape(n: Call) -> Any:
    source = n.shape(0)
    wanted = list(n.listed("shape", 1) or ())
    if not n.attr("allowzero", 0):
        if any(extent == 0 and axis >= len(source) for axis, extent in enumerate(wanted)):
            raise GraphError(f"shape {wanted}: 0 copies an axis that the input of rank {len(source)} does not have")
        wanted = [source[axis] if extent == 0 else extent for axis, extent in enumerate(wanted)]
    return n.reshape(n[0], wanted)


@maps("Flatten")
def flatten(n: Call) -> Any:
    shape, axis = n.shape(0), n.attr("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return n.reshape(n[0], (dims.product(shape[:axis]), dims.product(shape[axis:])))


def _axis(axis: Any, rank: int) -> int:
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise GraphError(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


@maps("Squeeze")
def squeeze(n: Call) -> Any:
    shape, axes = n.shape(0), n.listed("axes", 1)
    if axes is None:
        return n.reshape(n[0], [d for d in shape if d != 1])
    gone = {_axis(a, len(shape)) for a in axes}
    for axis in gone:
        if isinstance(shape[axis], int) and shape[axis] != 1:
            raise GraphError(f"axis {axis} is {shape[axis]}, expected 1")
    return n.reshape(n[0], [d for axis, d in enumerate(shape) if axis not in gone])


@maps("Unsqueeze")
def unsqueeze(n: Call) -> Any:
    shape, axes = list(n.shape(0)), n.listed("axes", 1) or ()
    rank = len(shape) + len(axes)
    for axis in sorted(_axis(a, rank) for a in axes):
        shape.insert(axis, 1)
    return n.reshape(n[0], shape)


@maps("Transpose")
def transpose(n: Call) -> Any:
    return n.F.transpose(n[0], axes=n.attr("perm") or tuple(reversed(range(n.rank(0)))))


@maps("Expand")
def expand(n: Call) -> Any:
    return n.F.expand(n[0], shape=broadcast([n.shape(0), n.ints(1)]))


@maps("Slice")
def slice_(n: Call) -> Any:
    shape = n.shape(0)
    given_starts, given_stops = n.listed("starts", 1) or (), n.listed("ends", 2) or ()
    axes = n.listed("axes", 3) or tuple(range(len(given_starts)))
    given_steps = n.ints(4) if n.has(4) else (1,) * len(axes)
    starts: list[Any] = [0] * len(shape)
    stops: list[Any] = list(shape)
    steps: list[Any] = [1] * len(shape)
    for axis, start, stop, step in zip(axes, given_starts, given_stops, given_steps, strict=True):
        at = _axis(axis, len(shape))
        extent = shape[at]
        if isinstance(extent, Expr) and isinstance(stop, int) and stop >= (1 << 31) - 1:
            stop = extent
        starts[at], stops[at], steps[at] = start, stop, step
    return n.F.slice(n[0], starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


@maps("Split")
def split(n: Call) -> Any:
    shape, axis = n.shape(0), _axis(n.attr("axis", 0), n.rank(0))
    parts, extent = n.listed("split", 1), shape[axis]
    if parts is None:
        count = n.attr("num_outputs", len(n.outputs))
        each = dims.ceildiv(extent, count)
        last = dims.add(extent, dims.multiply(each, 1 - count))
        parts = (*([each] * (count - 1)), last)
    results, start = [], 0
    for part in parts:
        stop = dims.add(start, part)
        results.append(n.cut(n[0], axis, start, stop))
        start = stop  # type: ignore[assignment]
    return results


@maps("DepthToSpace")
def depth_to_space(n: Call) -> Any:
    batch, channels, height, width = n.shape(0)
    block, column_first = n.attr("blocksize"), n.attr("mode", "DCR") == "CRD"
    depth = dims.floordiv(channels, block * block)
    inside = (
        (batch, depth, block, block, height, width) if column_first else (batch, block, block, depth, height, width)
    )
    order = (0, 1, 4, 2, 5, 3) if column_first else (0, 3, 4, 1, 5, 2)
    moved = n.F.transpose(n.reshape(n[0], inside), axes=order)
    return n.reshape(moved, (batch, depth, dims.multiply(height, block), dims.multiply(width, block)))


@maps("SpaceToDepth")
def space_to_depth(n: Call) -> Any:
    """Row-column-depth order of the blocks, or depth-column-row's where `mode` says CRD."""
    batch, channels, height, width = n.shape(0)
    block = n.attr("blocksize")
    high, wide = dims.floordiv(height, block), dims.floordiv(width, block)
    apart = n.reshape(n[0], (batch, channels, high, block, wide, block))
    order = (0, 1, 3, 5, 2, 4) if n.attr("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    moved = n.F.transpose(apart, axes=order)
    return n.reshape(moved, (batch, dims.multiply(channels, block * block), high, wide))


# -- joins -------------------------------------------------------------------------------------------------------------
@maps("Concat")
def concat(n: Call) -> Any:
    return n.F.concat(*n.inputs, axis=n.attr("axis", 1)) if len(n) > 1 else n[0]


@maps("Tile")
def tile(n: Call) -> Any:
    """Each axis beside a new one that repeats it, then both as one."""
    shape, repeats = n.shape(0), n.ints(1)
    apart: list[Dim] = []
    wide: list[Dim] = []
    for extent, count in zip(shape, repeats, strict=True):
        apart += [1, extent]
        wide += [count, extent]
    whole = [dims.multiply(extent, count) for extent, count in zip(shape, repeats, strict=True)]
    return n.reshape(n.F.expand(n.reshape(n[0], apart), shape=tuple(wide)), whole)


@maps("Pad")
def pad(n: Call) -> Any:
    shape = n.shape(0)
    given = n.listed("pads", 1) or ()
    axes = [_axis(a, len(shape)) for a in n.ints(3)] if n.has(3) else list(range(len(shape)))
    if len(given) != 2 * len(axes):
        raise GraphError(f"pads has {len(given)} entries, expected {2 * len(axes)}")
    before, after = [0] * len(shape), [0] * len(shape)
    amounts = numbers(given, "pads")
    for position, axis in enumerate(axes):
        before[axis], after[axis] = amounts[position], amounts[position + len(axes)]
    mode = n.attr("mode", "constant")
    if mode == "constant":
        fill = n[2] if n.has(2) else n.scalar(n.attr("value", 0.0), n[0])
        return padded(n, n[0], before, after, n.reshape(fill, ()))
    return n.row("pad")(n[0], before=tuple(before), after=tuple(after), mode=mode)


def padded(n: Call, value: Any, before: Sequence[int], after: Sequence[int], fill: Any) -> Any:
    """A tensor with a rank-0 value around it; negative amounts cut."""
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        shape = tuple(n.F.type_of(value).shape)
        if low < 0 or high < 0:
            stop = dims.add(shape[axis], min(high, 0))
            value = n.cut(value, axis, max(-low, 0), stop)
        parts = [value]
        for amount, front in ((low, True), (high, False)):
            if amount > 0:
                edge = n.F.expand(fill, shape=(*shape[:axis], amount, *shape[axis + 1 :]))
                parts = [edge, *parts] if front else [*parts, edge]
        if len(parts) > 1:
            value = n.F.concat(*parts, axis=axis)
    return value
