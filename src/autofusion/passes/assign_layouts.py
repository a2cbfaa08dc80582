"""Constants in the order in which they are read, once, at compile time: the columns of a product's weights in panels,
and a convolution's weights tap by tap, its filters in panels too, or, where they fill none, with the channels that are
summed over side by side.

    [y:float32[8,512]] = matmul [x, w]       w constant [256,512], panels of 32 columns
        →   [t:float32[256,16,32]] = transpose [p] [axes=[1, 0, 2]]      p constant [16,256,32]
            [v:float32[256,512]] = reshape [t]
            [y:float32[8,512]] = matmul [x, v]

    [y:float32[1,1,64,56,56]] = grouped_conv [x, w]       w constant [1,64,32,3,3], panels of 32 filters
        →   [t:float32[3,3,1,2,32,32]] = transpose [p] [axes=[0, 1, 2, 3, 5, 4]]      p constant [3,3,1,2,32,32]
            [u:float32[3,3,1,64,32]] = reshape [t]
            [v:float32[1,64,32,3,3]] = transpose [u] [axes=[2, 3, 4, 0, 1]]

The views cost nothing: kernels address the constants through them. Columns that fill no panel stay as they are.
"""

from __future__ import annotations

import math

import numpy as np

from autofusion import dims
from autofusion.dtypes import Array
from autofusion.graph import index
from autofusion.graph.ir import Graph, Node, Value
from autofusion.ops import Kind
from autofusion.passes.rewrite import Rewriter

LEAST_DEPTH = 8  # rows of a matrix that is worth it
LEAST_TERMS = 128  # that are summed over for a filter


def run(graph: Graph, panel_bytes: int) -> Graph:
    """The graph with panels of `panel_bytes` for the constants that contractions read by columns, and with the axes of
    those that they read by taps in order; 0: as it is."""
    if not panel_bytes:
        return graph
    rewriter = Rewriter(graph)
    constants = {c.value.name: c for c in graph.constants}
    packed: dict[str, Value] = {}
    for original in graph.nodes:
        node = rewriter.arrive(original)
        columns, taps = _by_columns(graph, original), _by_taps(graph, original)
        filters = _by_filters(graph, original)
        for name in {*columns, *taps} & set(constants):
            data = graph.data[constants[name].digest]
            if name in packed:
                pass
            elif name in taps and name in filters and (width := _filters(data, taps[name], panel_bytes)):
                packed[name] = _in_panels(rewriter, name, data, taps[name], width)
            elif name in taps:
                packed[name] = _turned(rewriter, name, data, taps[name])
            elif width := _panel(constants[name].value, panel_bytes):
                packed[name] = _repacked(rewriter, name, data, width)
            if name in packed:
                inputs = tuple(packed[name].name if each == name else each for each in node.inputs)
                node = Node(node.outputs, node.op, inputs, node.attributes)
        rewriter.append(node)
    return rewriter.finish()


def _by_columns(graph: Graph, node: Node) -> list[str]:
    """The operands of a contraction whose last axis is the result's last axis, which is the only one there."""
    if node.kind is not Kind.CONTRACT:
        return []
    (region,) = index.regions(graph, node)
    column = region.output[-1] if region.output else 0
    if isinstance(column, int):
        return []
    uses = [o for o in region.operands if any(not dims.symbols(i).isdisjoint(dims.symbols(column)) for i in o.index)]
    return [o.value for o in uses if o.value in node.inputs and o.index[-1] == column and len(uses) == 1]


def _by_taps(graph: Graph, node: Node) -> dict[str, tuple[int, ...]]:
    """Operands of a contraction that are summed over along several axes, the longest of which is not the last: by name,
    their axes in the order that is better, the other ones summed over first and the longest last."""
    if node.kind is not Kind.CONTRACT:
        return {}
    (region,) = index.regions(graph, node)
    extents = {name: extent for name, extent in region.reduced.items() if isinstance(extent, int)}
    if len(region.reduced) < 2 or len(extents) < len(region.reduced) or max(extents.values()) < LEAST_DEPTH:
        return {}
    depth = max(extents, key=lambda name: extents[name])
    found = {}
    for operand in region.operands:
        axes = [i.name if isinstance(i, dims.Expr) else "0" for i in operand.index]
        if operand.value not in node.inputs or depth not in axes[:-1] or not all(axes):
            continue
        last = axes.index(depth)
        taps = [d for d, name in enumerate(axes) if name in region.reduced and d != last]
        rest = [d for d in range(len(axes)) if d != last and d not in taps]
        found[operand.value] = (*taps, *rest, last)
    return found


def _panel(value: Value, panel_bytes: int) -> int:
    """Columns of a panel; 0 where panels would not help."""
    width = panel_bytes // value.dtype.size
    *_, depth, columns = (1, *value.shape)
    assert isinstance(depth, int) and isinstance(columns, int)
    worth = value.dtype.is_float and not value.dtype.is_reduced
    return width if worth and depth >= LEAST_DEPTH and columns and columns % width == 0 else 0


def _by_filters(graph: Graph, node: Node) -> list[str]:
    """Operands of a contraction in which one axis is of the result and of no other operand, and is the last of those
    that are not summed over."""
    if node.kind is not Kind.CONTRACT:
        return []
    (region,) = index.regions(graph, node)
    found = []
    for operand in region.operands:
        others = {name for o in region.operands if o is not operand for i in o.index for name in dims.symbols(i)}
        kept = [i for i in operand.index if dims.symbols(i) and dims.symbols(i).isdisjoint(region.reduced)]
        own = [i for i in kept if dims.symbols(i).isdisjoint(others)]
        if len(own) == 1 and own[0] is kept[-1] and isinstance(own[0], dims.Expr) and own[0] in region.output[:-1]:
            found.append(operand.value)
    return found


def _filters(array: Array, order: tuple[int, ...], panel_bytes: int) -> int:
    """Filters of a panel, where they are summed over enough terms; 0 otherwise. `order`: of the axes, the filters last
    but one, the longest that is summed over last."""
    width, shape = panel_bytes // array.dtype.itemsize, [array.shape[d] for d in order]
    filters, terms = shape[-2], math.prod(shape) // max(1, shape[-2])
    worth = array.dtype in (np.float32, np.float64)
    return width if worth and terms >= LEAST_TERMS and filters and filters % width == 0 else 0


def _in_panels(rewriter: Rewriter, name: str, array: Array, order: tuple[int, ...], width: int) -> Value:
    """A constant in the given order of its axes, its filters in panels, and the views that undo it."""
    *leading, filters, depth = (array.shape[d] for d in order)
    apart = np.transpose(array, order).reshape(*leading, filters // width, width, depth)
    constant = rewriter.constant(np.ascontiguousarray(np.swapaxes(apart, -1, -2)), f"{name}_panels")
    rank = len(leading)
    back = rewriter.transpose(constant, axes=(*range(rank + 1), rank + 2, rank + 1))
    whole = rewriter.reshape(back, shape=(*leading, filters, depth))
    return rewriter.transpose(whole, axes=tuple(int(d) for d in np.argsort(order)))


def _repacked(rewriter: Rewriter, name: str, array: Array, width: int) -> Value:
    """A constant in panels, and the views that undo it."""
    *leading, depth, columns = array.shape
    apart = array.reshape(*leading, depth, columns // width, width)
    rank = len(leading)
    order = (*range(rank), rank + 1, rank, rank + 2)
    constant = rewriter.constant(np.transpose(apart, order), f"{name}_panels")
    return rewriter.reshape(rewriter.transpose(constant, axes=order), shape=array.shape)


def _turned(rewriter: Rewriter, name: str, array: Array, order: tuple[int, ...]) -> Value:
    """A constant with its axes in another order, and the view that undoes it."""
    constant = rewriter.constant(np.ascontiguousarray(np.transpose(array, order)), f"{name}_taps")
    return rewriter.transpose(constant, axes=tuple(int(d) for d in np.argsort(order)))
