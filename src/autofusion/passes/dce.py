"""Dead code: what reaches no output goes. Inputs stay, all of them; so does communication, which others wait for.

graph g:                              →     graph g:
  [p:float32[n]] = add [x, y]                 [p:float32[n]] = add [x, y]
  [q:float32[n]] = mul [x, y]                 output p
  output p
"""

from __future__ import annotations

from dataclasses import replace

from autofusion.graph.ir import Constant, Graph, Node
from autofusion.ops import Kind


def run(graph: Graph) -> Graph:
    """The graph with live nodes and constants only, and only their data."""
    live = {output.name for output in graph.outputs}
    for node in reversed(graph.nodes):
        if node.kind is Kind.COMM or any(value.name in live for value in node.outputs):
            live.update(node.inputs)
            live.add(node.name)
    body = tuple(line for line in graph.body if _is_live(line, live))
    if len(body) == len(graph.body):
        return graph
    digests = {line.digest for line in body if isinstance(line, Constant)}
    return replace(graph, body=body, data={digest: array for digest, array in graph.data.items() if digest in digests})


def _is_live(line: object, live: set[str]) -> bool:
    if isinstance(line, Constant):
        return line.value.name in live
    return not isinstance(line, Node) or any(value.name in live for value in line.outputs)
