"""Constants in the order in which they are read, once, at compile time: the columns of a product's weights in panels.

    [y:float32[8,512]] = matmul [x, w]       w constant [256,512], panels of 32 columns
        →   [t:float32[256,16,32]] = transpose [p] [axes=[1, 0, 2]]      p constant [16,256,32]
            [v:float32[256,512]] = reshape [t]
            [y:float32[8,512]] = matmul [x, v]

The views cost nothing: kernels address the panels through them. Columns that fill no panel stay as they are.
"""

from __future__ import annotations

import numpy as np

from autofusion import dims
from autofusion.dtypes import Array
from autofusion.graph import index
from autofusion.graph.ir import Graph, Node, Value
from autofusion.ops import Kind
from autofusion.passes.rewrite import Rewriter

LEAST_DEPTH = 8  # rows of a matrix that is worth it


def run(graph: Graph, panel_bytes: int) -> Graph:
    """The graph with panels of `panel_bytes` for the constants that contractions read by columns; 0: as it is."""
    if not panel_bytes:
        return graph
    rewriter = Rewriter(graph)
    constants = {c.value.name: c for c in graph.constants}
    packed: dict[str, Value] = {}
    for original in graph.nodes:
        node = rewriter.arrive(original)
        for name in set(_by_columns(graph, original)) & set(constants):
            if name not in packed and (width := _panel(constants[name].value, panel_bytes)):
                packed[name] = _repacked(rewriter, name, graph.data[constants[name].digest], width)
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


def _panel(value: Value, panel_bytes: int) -> int:
    """Columns of a panel; 0 where panels would not help."""
    width = panel_bytes // value.dtype.size
    *_, depth, columns = (1, *value.shape)
    assert isinstance(depth, int) and isinstance(columns, int)
    worth = value.dtype.is_float and not value.dtype.is_reduced
    return width if worth and depth >= LEAST_DEPTH and columns and columns % width == 0 else 0


def _repacked(rewriter: Rewriter, name: str, array: Array, width: int) -> Value:
    """A constant in panels, and the views that undo it."""
    *leading, depth, columns = array.shape
    apart = array.reshape(*leading, depth, columns // width, width)
    rank = len(leading)
    order = (*range(rank), rank + 1, rank, rank + 2)
    constant = rewriter.constant(np.transpose(apart, order), f"{name}_panels")
    return rewriter.reshape(rewriter.transpose(constant, axes=order), shape=array.shape)
