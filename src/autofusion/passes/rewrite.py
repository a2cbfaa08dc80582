"""The driver of passes that look at one node at a time: a short list of rules, tried in order on every node.

A rule gets the rewriter and a node (its inputs already renamed) and returns

    a Node     another operator for the same output; the rules after it see that one
    a Value    a value made before, which stands for the node's output from here on
    None       nothing to do
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph, Node, Output, Value


class Rewriter(GraphBuilder):
    """A graph rebuilt from another: inputs, constants and guards are there; nodes follow one by one."""

    def __init__(self, source: Graph) -> None:
        super().__init__(source.name)
        self.source = source
        self.data = dict(source.data)
        self.guards = dict.fromkeys(source.guards)
        # Every name of the source is reserved, so that a new node never takes the name of one that is still to come.
        self.names = set(source.values)
        self.known: dict[str, Value] = {}
        self.makers: dict[str, Node] = {}
        self._stands: dict[str, str] = {}
        for line in source.body:
            if not isinstance(line, Node | Output) and hasattr(line, "value"):
                self.body.append(line)
                self.known[line.value.name] = line.value

    def renamed(self, name: str) -> str:
        """The new name of a value of the source."""
        return self._stands.get(name, name)

    def value(self, name: str) -> Value:
        """A value of the new graph."""
        return self.known[name]

    def stand(self, name: str, value: Value) -> None:
        """From here on, `value` is read wherever the source reads `name`."""
        self._stands[name] = value.name

    def append(self, node: Node) -> Value:
        """Add a node as it is."""
        self.body.append(node)
        for made in node.outputs:
            self.known[made.name] = made
            self.makers[made.name] = node
        return node.output

    def arrive(self, node: Node) -> Node:
        """A node of the source, reading the new names."""
        inputs = tuple(map(self.renamed, node.inputs))
        return node if inputs == node.inputs else replace(node, inputs=inputs)

    def copy_of(self, value: Value) -> Value:
        """A `copy` of a value: the same elements in storage of their own."""
        name = self.unique(f"{value.name}_copy")
        return self.append(Node((Value(name, value.dtype, value.shape),), "copy", (value.name,)))

    def finish(self) -> Graph:
        """The new graph, with the source's outputs in their order; the source itself where nothing changed."""
        for output in self.source.outputs:
            self.output(self.renamed(output.name), output.writes)
        return self.result()

    def result(self) -> Graph:
        """What was built; the source itself, with all that it has computed about itself, where that is the same."""
        made = self.build()
        same = len(made.body) == len(self.source.body) and all(map(_is_same, made.body, self.source.body))
        return self.source if same else made


def _is_same(a: object, b: object) -> bool:
    return a is b or (isinstance(a, Output) and a == b)


Rule: TypeAlias = Callable[[Rewriter, Node], Node | Value | None]


def rewrite(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """The graph after one walk in execution order; the same object where no rule applied."""
    rewriter = Rewriter(graph)
    for original in graph.nodes:
        node = rewriter.arrive(original)
        for rule in rules:
            found = rule(rewriter, node)
            if isinstance(found, Value):
                rewriter.stand(original.name, found)
                break
            node = found or node
        else:
            rewriter.append(node)
    return rewriter.finish()
