"""Common subexpressions: the same operator on the same inputs with the same attributes is computed once.

    [p:float32[n]] = add [x, y]
    [q:float32[n]] = add [x, y]           →     [p:float32[n]] = add [x, y]
    [r:float32[n]] = mul [p, q]                 [r:float32[n]] = mul [p, p]

Two outputs of the graph that become one value here are given storage of their own by `materialise_outputs`.
"""

from __future__ import annotations

from typing import Any

from autofusion.graph.ir import Graph, Node, Value
from autofusion.ops import Kind
from autofusion.passes.rewrite import Rewriter

_EFFECTS = (Kind.COMM, Kind.OPAQUE)  # done as often as they are written


def run(graph: Graph) -> Graph:
    """The graph with equal nodes and equal constants merged into the first of each."""
    rewriter = Rewriter(graph)
    first: dict[Any, Value] = {}
    for constant in graph.constants:
        rewriter.stand(constant.value.name, first.setdefault(constant.digest, constant.value))
    for original in graph.nodes:
        node = rewriter.arrive(original)
        twin = node.output if node.kind in _EFFECTS else first.setdefault(_key(node), node.output)
        if twin is node.output:
            rewriter.append(node)
        else:
            rewriter.stand(node.name, twin)
    return rewriter.finish()


def _key(node: Node) -> tuple[Any, ...]:
    # repr, because 0.0 == -0.0 == False to Python; the output's type, because dims that a guard equates differ.
    return node.op, node.inputs, tuple((a.name, repr(a.value)) for a in node.attributes), node.output.type
