"""Values that must lie in memory of their own are made by an operator of their own: `copy` where there is none.

    [t:float32[64,8]] = transpose [x] [axes=[1, 0]]        [t:float32[64,8]] = transpose [x] [axes=[1, 0]]
    output t                                         →     [t_copy:float32[64,8]] = copy [t]
    output t                                               [t_copy_1:float32[64,8]] = copy [t]
                                                           output t_copy
                                                           output t_copy_1

Outputs: fresh tensors never alias an input, a constant or each other (SEMANTICS, "Views, aliasing, mutation").
Operands that a kernel does not read by an index expression (communication, opaque operators, the data of a gather)
are looked up as whole tensors, so views among them are copied as well.
"""

from __future__ import annotations

from dataclasses import replace

from autofusion.graph.ir import Graph, Node, Value
from autofusion.ops import Kind
from autofusion.passes.rewrite import Rewriter

_ALL_OPERANDS = (Kind.COMM, Kind.OPAQUE)
_FIRST_OPERAND = (Kind.GATHER,)


def run(graph: Graph) -> Graph:
    """The graph with copies where memory is needed."""
    rewriter = Rewriter(graph)
    copies: dict[str, Value] = {}
    for node in graph.nodes:
        rewriter.append(_with_whole_operands(rewriter, node, copies))
    taken: set[str] = set()
    for output in graph.outputs:
        name = output.name
        if name in taken or _has_no_storage(rewriter, name):
            name = rewriter.copy_of(rewriter.value(name)).name
        taken.add(name)
        rewriter.output(name, output.writes)
    return rewriter.result()


def _with_whole_operands(rewriter: Rewriter, node: Node, copies: dict[str, Value]) -> Node:
    """The node reading copies of those operands that are views; one copy serves all readers."""
    count = len(node.inputs) if node.kind in _ALL_OPERANDS else 1 if node.kind in _FIRST_OPERAND else 0
    inputs = list(node.inputs)
    for position, name in enumerate(inputs[:count]):
        if name in rewriter.makers and rewriter.makers[name].is_view:
            if name not in copies:
                copies[name] = rewriter.copy_of(rewriter.value(name))
            inputs[position] = copies[name].name
    return replace(node, inputs=tuple(inputs)) if inputs != list(node.inputs) else node


def _has_no_storage(rewriter: Rewriter, name: str) -> bool:
    """Inputs and constants are somebody else's; views and sources are computed where they are read."""
    maker = rewriter.makers.get(name)
    return maker is None or maker.is_view or maker.kind is Kind.SOURCE
