"""The index forms of a graph's compute nodes, made once and shared by legality, cost and lowering."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from autofusion.dims import Dim, Expr, Shape, evaluate, symbols
from autofusion.graph.index import Operand, Region, regions, see_through
from autofusion.graph.ir import Graph, Node
from autofusion.ops import Kind

SIZE_HINT = 512  # what a symbolic extent is taken for where only a ranking is asked


def estimate(dim: Dim) -> int:
    """A number for a dim that may be symbolic."""
    return dim if isinstance(dim, int) else int(evaluate(dim, dict.fromkeys(symbols(dim), SIZE_HINT)))


@lru_cache(maxsize=1 << 12)
def _count(extents: Shape) -> float:
    """The points of an iteration space."""
    return float(math.prod(map(estimate, extents)))


class Feed(NamedTuple):
    """A value that a node reads and another compute node makes, with that node's name and kind."""

    value: str
    producer: str
    kind: Kind


class Form(NamedTuple):
    """A compute node in index form.

    `reads`: the values that it reads, past views, each once; `feeds`: those of them that compute nodes make. `work`:
    elementwise operations; `products`: multiply-adds of a contraction, which are counted apart.
    """

    node: Node
    name: str
    regions: tuple[Region, ...]
    reads: tuple[str, ...]
    feeds: tuple[Feed, ...]
    work: float
    products: float


@dataclass(frozen=True)
class Widening:
    """By name: contractions whose operands are read past the casts that widen them, and casts that nobody else
    reads."""

    contractions: frozenset[str] = frozenset()
    casts: frozenset[str] = frozenset()


class Forms:
    """Forms by node name, made when first asked for."""

    def __init__(self, graph: Graph, hosted: frozenset[str] = frozenset(), widening: Widening | None = None) -> None:
        """`hosted`: nodes that code generation had no way to compute, by name. `widening`: casts that the unit of
        contractions does itself."""
        self.graph = graph
        self.hosted = hosted
        self.widening = widening or Widening()
        self._forms: dict[str, Form] = {}
        self._bytes: dict[str, int] = {}

    def of(self, node: Node) -> Form:
        form = self._forms.get(node.name)
        if form is None:
            found = regions(self.graph, node)
            if node.name in self.widening.contractions:
                found = tuple(self._before_casts(region) for region in found)
            form = self._forms[node.name] = self._make(node, found)
        return form

    def _before_casts(self, region: Region) -> Region:
        """A contraction that reads what its operands were before they were widened."""
        axes = {**region.axes, **region.reduced}
        reads = []
        for value, index, *_ in region.operands:
            cast = self.graph.producers[value]
            reads.append(Operand(*see_through(self.graph, cast.inputs[0], list(index), axes)))
        return region._replace(operands=tuple(reads))

    def _make(self, node: Node, found: tuple[Region, ...]) -> Form:
        reads = tuple(dict.fromkeys([o.value for region in found for o in region.operands]))
        feeds = [Feed(v, p.name, p.kind) for v in reads if (p := self.producer(v)) is not None]
        if node.kind is Kind.ELEMENTWISE:
            points = _count(node.output.shape)
        else:
            points = float(sum([_count((*r.axes.values(), *r.reduced.values())) for r in found]))
        own = points * max(node.row.flops, 0.25), 0.0
        work, products = (0.0, points) if node.kind is Kind.CONTRACT else own
        return Form(node, node.name, found, reads, tuple(feeds), work, products)

    def bytes(self, value: str) -> int:
        """The size of a value, estimated where it is symbolic."""
        if value not in self._bytes:
            self._bytes[value] = estimate(self.graph.values[value].bytes)
        return self._bytes[value]

    def producer(self, value: str) -> Node | None:
        """The compute node that makes a value; None for inputs, constants and sources (which cost nothing)."""
        node = self.graph.producers.get(value)
        return None if node is None or node.kind is Kind.SOURCE else node

    def compute_nodes(self) -> Iterator[Node]:
        """All nodes but views, sources and casts that nobody has to compute, in order."""
        skipped = self.widening.casts
        return (n for n in self.graph.nodes if not n.is_view and n.kind is not Kind.SOURCE and n.name not in skipped)


def plain_axis(index: Dim) -> str | None:
    """The axis's name where an index is just an axis."""
    return index.name if isinstance(index, Expr) else None
