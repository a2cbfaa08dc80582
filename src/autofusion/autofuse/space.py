"""Iteration spaces: every operator's axes, and which of them are the same axis inside a group."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from autofusion.autofuse.axes import PARALLEL, AxisSets, Use
from autofusion.autofuse.forms import Form, Forms, plain_axis
from autofusion.dims import Dim, Expr, symbols
from autofusion.dtypes import DType
from autofusion.graph.index import Operand, Region, regions
from autofusion.graph.ir import Graph, Node
from autofusion.kinds import Kind
from autofusion.ops.library import LIBRARY, LibraryKernel
from autofusion.target import GM, Target

Shares: TypeAlias = dict[frozenset[int], tuple[float, float]]  # (elementwise operations, multiply-adds) by axes


HOST_KINDS = (Kind.OPAQUE, Kind.SCATTER)


class Tile(NamedTuple):
    """A value or an operand in a group: bytes of an element, and its axes."""

    value: str
    size: int
    axes: tuple[int, ...]


@dataclass(slots=True)
class Placed:
    """What is known of a compute node: its value as a tile; the axis of each output dimension; by region, its axes by
    their local names; its operands as tiles copied on-chip; and the tiles that it alone can be cut into."""

    value: Tile
    outputs: list[int | None]
    local: list[dict[str, int]]
    loads: list[Tile]
    alone: int = 1


class Space:
    """Iteration spaces of all nodes met so far, and what is the same axis in which group."""

    def __init__(self, graph: Graph, target: Target, forms: Forms) -> None:
        self.graph = graph
        self.target = target
        self.forms = forms
        self.axes = AxisSets()
        self.least_bytes = target.lane_bytes
        self.placed: dict[str, Placed] = {}  # by the name of the compute node
        self._on_host: dict[int, bool] = {}  # by a row's identity: whether the target lacks it, whatever its operands
        self.readers: dict[tuple[str, int], int] = {}  # per dimension of a value from outside: the first axis there
        self.writes = {o.name: o.writes for o in graph.outputs if o.writes is not None}
        self.written = frozenset(self.writes.values())
        self._routes: dict[tuple[Kind, Kind], str | None] = {}

    def on_host(self, node: Node) -> bool:
        """Whether the target has no way to compute a node."""
        if self.forms.hosted and node.name in self.forms.hosted:
            return True
        if node.kind is Kind.CONTRACT or len(self.target.dtypes) < len(DType):
            return runs_on_host(self.graph, self.target, node)
        row = id(node.row)
        if row not in self._on_host:
            self._on_host[row] = runs_on_host(self.graph, self.target, node)
        return self._on_host[row]

    def library(self, node: Node) -> LibraryKernel | None:
        """The hand-tuned kernel that a contraction is computed by; None for generated code."""
        if node.kind is not Kind.CONTRACT:
            return None
        types = tuple(self.graph.values[name].type for name in node.inputs)
        return LIBRARY.find(node.op, self.target.family, types)

    # -- a node alone -----------------------------------------------------------------------------------------------
    def add(self, form: Form) -> None:
        """Make the node's axes, with the flags that the node itself sets."""
        node, name = form.node, form.name
        local = [self._region(name, number, r) for number, r in enumerate(form.regions)]
        if len(local) == 1:
            plain = [plain_axis(i) for i in form.regions[0].output]
            outputs = [local[0][axis] if axis else None for axis in plain]
        else:
            outputs = self._joined(form, local)
        axes = tuple([axis for axis in outputs if axis is not None])
        if node.kind is Kind.CONTRACT:
            for axis in axes:
                self.axes.flag(axis, Use.CONTRACTED)
        value = Tile(name, node.output.dtype.compute.size, axes)
        self.placed[name] = Placed(value, outputs, local, list(self.loaded(form, local)))

    def adopt(self, form: Form, known: Placed) -> None:
        """Know a node by axes that its producers have already."""
        self.placed[form.name] = known
        for axis in known.local[0].values():
            self.axes.enrol(axis, form.name)

    def loaded(self, form: Form, locals_: list[dict[str, int]]) -> Iterator[Tile]:
        """Operands that a tile copies in when they come from outside: not literals, gathered tables or the blocks of a
        contraction."""
        if form.node.kind is Kind.CONTRACT:
            return
        for local, region in zip(locals_, form.regions, strict=True):
            for operand in region.operands:
                source = self.graph.producers.get(operand.value)
                if operand.gathered is None and (source is None or source.kind is not Kind.SOURCE):
                    yield self.tile(operand, local)

    def tile(self, operand: Operand, local: dict[str, int]) -> Tile:
        """An operand as a tile."""
        names = dict.fromkeys([n for i in operand.index if isinstance(i, Expr) for n in _names(i)])
        axes = tuple([local[n] for n in names if n in local])
        return Tile(operand.value, self.graph.values[operand.value].dtype.size, axes)

    def _region(self, owner: str, number: int, region: Region) -> dict[str, int]:
        scope = owner if number == 0 else f"{owner}#{number}"
        local = {name: self.axes.new(scope, extent) for name, extent in {**region.axes, **region.reduced}.items()}
        for name in region.reduced:
            self.axes.flag(local[name], Use.REDUCED)
        if region.scanned:
            self.axes.flag(local[region.scanned], Use.SCANNED)
        return local

    def _joined(self, form: Form, locals_: list[dict[str, int]]) -> list[int | None]:
        """Output axes of a join: its own where pieces only cover parts, the pieces' where they span the whole."""
        node = form.node
        result: list[int | None] = []
        for d, extent in enumerate(node.output.shape):
            if extent == 1:
                result.append(None)
                continue
            axis = self.axes.new(f"{node.name}#out", extent)
            for local, region in zip(locals_, form.regions, strict=True):
                self._align(axis, region.output[d], local)
            result.append(axis)
        return result

    def _align(self, axis: int, index: Dim, local: dict[str, int]) -> None:
        """Unify `axis` with the axis that `index` plainly is; otherwise neither can be tiled."""
        name = plain_axis(index)
        other = local.get(name) if name else None
        if other is not None and self.axes.extent[axis] == self.axes.extent[other] and self.axes.unify(axis, other):
            return
        self.axes.flag(axis, Use.BROKEN)
        for used in symbols(index) if isinstance(index, Expr) else ():
            if used in local:
                self.axes.flag(local[used], Use.BROKEN)

    # -- a node inside a group ---------------------------------------------------------------------------------------
    def connect(self, form: Form, inside: Container[str]) -> None:
        """Unify the node's axes with those of its producers in `inside` (names of nodes)."""
        self.axes.expect(form.name)
        made = {feed.value: feed.producer for feed in form.feeds}
        for local, region in zip(self.placed[form.name].local, form.regions, strict=True):
            for operand in region.operands:
                producer = made.get(operand.value)
                if producer is None or producer not in inside:
                    continue
                for axis, index in zip(self.placed[producer].outputs, operand.index, strict=True):
                    if axis is not None:
                        self._align(axis, index, local)
                if operand.gathered is not None:
                    gathered = self.placed[producer].outputs[operand.gathered]
                    if gathered is not None:
                        self.axes.flag(gathered, Use.BROKEN)

    def align_reads(self, form: Form, inside: Container[str]) -> None:
        """Axes along which several operators read one value from outside at the same positions become one, where they
        can: nothing breaks where they cannot."""
        for local, region in zip(self.placed[form.name].local, form.regions, strict=True):
            for operand in region.operands:
                producer = self.forms.producer(operand.value)
                if producer is not None and producer.name in inside:
                    continue
                for position, index in enumerate(operand.index):
                    axis = local.get(plain_axis(index) or "")
                    if axis is not None:
                        first = self.readers.setdefault((operand.value, position), axis)
                        if self.axes.extent[first] == self.axes.extent[axis]:
                            self.axes.unify(first, axis)

    def tile_bytes(self, tile: Tile) -> int:
        """On-chip bytes of a tile with every axis cut as small as it can be."""
        size = tile.size * self.axes.resident(tile.axes)
        return size if size > self.least_bytes else self.least_bytes

    def tiles(self, roots: Iterable[int]) -> int:
        """Tiles of one element along these axes."""
        return math.prod([self.axes.size[root] for root in roots])

    def parallel_roots(self, sinks: Iterable[tuple[int, ...]]) -> set[int]:
        """The axes that tiles of a group can be cut along, whose sinks have these axes."""
        shared: set[int] | None = None
        for axes in set(sinks):
            free = {root for root in map(self.axes.find, axes) if PARALLEL[self.axes.use[root]]}
            shared = free if shared is None else shared & free
            if not shared:
                break
        return shared or set()

    def sink_axes(self, node: Node) -> tuple[int, ...]:
        """The axes of a node's value."""
        return tuple(map(self.axes.find, self.placed[node.name].value.axes))

    def share(self, form: Form) -> Shares:
        """The node's work by its axes."""
        locals_ = self.placed[form.name].local
        roots = frozenset(self.axes.find(axis) for local in locals_ for axis in local.values())
        return {roots: (form.work, form.products)}

    def added(self, shares: Iterable[Shares]) -> Shares:
        """Shares together, by what the axes are by now."""
        total: Shares = {}
        for each in shares:
            for axes, (work, products) in each.items():
                roots = frozenset(map(self.axes.find, axes))
                before = total.get(roots, (0.0, 0.0))
                total[roots] = before[0] + work, before[1] + products
        return total

    def no_route(self, here: Kind, there: Kind) -> str | None:
        """Why tiles cannot go from operators of one kind to those of another; None where they can."""
        if (here, there) not in self._routes:
            self._routes[here, there] = self._find_route(here, there)
        return self._routes[here, there]

    def _find_route(self, producer: Kind, consumer: Kind) -> str | None:
        target = self.target
        here, there = target.unit_for(producer), target.unit_for(consumer)
        assert here is not None and there is not None
        if there is not target.vector:  # the tile builder gives a unit of its own nothing but parameters
            return f"feeds {there.name} from {GM}, not from {here.name}"
        if here is there:
            return None if target.route(here.result, there.left) else f"has no path {here.result} -> {there.left}"
        if target.route(here.result, there.left, through_gm=True) is None:
            return f"has no path for tiles from {here.name} to {there.name}"
        return None


def _names(index: Expr) -> Iterable[str]:
    plain = plain_axis(index)
    return symbols(index) if plain is None else (plain,)


def runs_on_host(graph: Graph, target: Target, node: Node) -> bool:
    """Whether the target has no way to compute it."""
    kind = node.kind
    return (
        kind in HOST_KINDS
        or (kind is Kind.ELEMENTWISE and target.lacks(node.op))
        or (kind is not Kind.COMM and target.unit_for(kind) is None)
        or (kind is Kind.CONTRACT and _too_deep(graph, target, node))
        or (len(target.dtypes) < len(DType) and not _types(graph, node).issubset(target.dtypes))
    )


def _types(graph: Graph, node: Node) -> set[DType]:
    return {node.output.dtype, *[graph.values[name].dtype for name in node.inputs]}


def _too_deep(graph: Graph, target: Target, node: Node) -> bool:
    """A matrix unit of its own folds one axis; sums over several need one that shares its memory with the vector
    unit."""
    return target.unit_for(node.kind) is not target.vector and len(regions(graph, node)[0].reduced) > 1
