"""The index forms of a graph's compute nodes, made once and shared by legality, cost and lowering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from autofusion.dims import Dim, Expr, evaluate, product, symbols
from autofusion.graph.index import Region, regions
from autofusion.graph.ir import Graph, Node
from autofusion.ops import Kind

SIZE_HINT = 512  # what a symbolic extent is taken for where only a ranking is asked


def estimate(dim: Dim) -> int:
    """A number for a dim that may be symbolic."""
    return dim if isinstance(dim, int) else int(evaluate(dim, {name: SIZE_HINT for name in symbols(dim)}))


@dataclass(frozen=True)
class Form:
    """A compute node in index form."""

    node: Node
    regions: tuple[Region, ...]

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The values that it reads, past views, each once."""
        return tuple(dict.fromkeys(o.value for region in self.regions for o in region.operands))

    @cached_property
    def iterations(self) -> int:
        """Points of its iteration space."""
        return sum(
            estimate(product(r.axes.values())) * estimate(product(r.reduced.values())) for r in self.regions
        )

    @cached_property
    def work(self) -> float:
        """Elementwise operations; a contraction's multiply-adds are counted apart."""
        return 0.0 if self.node.kind is Kind.CONTRACT else self.iterations * max(self.node.row.flops, 0.25)

    @cached_property
    def products(self) -> float:
        """Multiply-adds of a contraction."""
        return float(self.iterations) if self.node.kind is Kind.CONTRACT else 0.0


class Forms:
    """Forms by node name, made when first asked for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._forms: dict[str, Form] = {}

    def of(self, node: Node) -> Form:
        if node.name not in self._forms:
            self._forms[node.name] = Form(node, regions(self.graph, node))
        return self._forms[node.name]

    def producer(self, value: str) -> Node | None:
        """The compute node that makes a value; None for inputs, constants and sources (which cost nothing)."""
        node = self.graph.producers.get(value)
        return None if node is None or node.kind is Kind.SOURCE else node

    def compute_nodes(self) -> Iterator[Node]:
        """All nodes but views and sources, in order."""
        return (n for n in self.graph.nodes if not n.is_view and n.kind is not Kind.SOURCE)


def plain_axis(index: Dim) -> str | None:
    """The axis's name where an index is just an axis."""
    if isinstance(index, Expr) and len(index.terms) == 1 and index.text.isidentifier():
        return index.text
    return None
