"""Can this operator join that group? Decided from dependences, iteration spaces, capacity, units and effects.

Nothing here reads an operator's name: only kinds, index forms, sizes and the target's facts. The state of a group is
small and is extended by one operator at a time, so the whole walk is linear; a refused attempt is rolled back.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from autofusion.autofuse.axes import PARALLEL, AxisSets, Use
from autofusion.autofuse.forms import Form, Forms, estimate, plain_axis
from autofusion.autofuse.verdicts import Code, Verdict
from autofusion.dims import Dim, Expr, symbols
from autofusion.dtypes import DType
from autofusion.graph.index import Region, regions
from autofusion.graph.ir import Graph, Node
from autofusion.ops import Kind
from autofusion.ops.library import LIBRARY, LibraryKernel
from autofusion.target import GM, Target

TILES = 16  # parts that a group is cut into at least, where its axes allow it
PART = 16384  # elements of a long fold that are worth a part of their own
HOST_KINDS = (Kind.OPAQUE, Kind.SCATTER)


Shares: TypeAlias = dict[frozenset[int], tuple[float, float]]


@dataclass
class Group:
    """A group while it grows.

    `level`: longer than every path of groups that leads here. `sinks`: operators that no other of the group reads, with
    the axes of their values. `peak`: no less than the bytes alive at once. `shares`: (elementwise operations,
    multiply-adds) by the axes of the iteration space; few, as most operators of a group share theirs. `parallel`: the
    tiles that it is cut into; `steady`: more work over the same axes changes nothing about these. `written`,
    `elsewhere`: graph inputs that the group writes, and written ones that it reads at other positions.
    """

    number: int
    level: int
    nodes: list[Node] = field(default_factory=list)
    members: set[str] = field(default_factory=set)
    sinks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    peak: int = 0
    shares: Shares = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()
    microseconds: float = 0.0
    parallel: int = 1
    steady: bool = False
    has_dependents: bool = False
    sealed: Code | None = None  # why nothing may join

    @property
    def name(self) -> str:
        return self.nodes[-1].name


class Tile(NamedTuple):
    """A value or an operand in a group: bytes of an element, and its axes."""

    value: str
    size: int
    axes: tuple[int, ...]


class Space:
    """Iteration spaces of all nodes met so far, and what is the same axis in which group."""

    def __init__(self, graph: Graph, target: Target, forms: Forms) -> None:
        self.graph = graph
        self.target = target
        self.forms = forms
        self.axes = AxisSets()
        self.value_axes: dict[str, list[int | None]] = {}  # per compute node: the axis of each output dimension
        self.region_axes: dict[str, list[dict[str, int]]] = {}  # per compute node and region: axis by its local name
        self.least_bytes = target.lane_bytes
        self.values: dict[str, Tile] = {}  # per compute node: its value
        self.loads: dict[str, list[Tile]] = {}  # per compute node: its operands, as tiles copied on-chip
        self.alone: dict[str, int] = {}  # per compute node: the tiles that it can be cut into without any other
        self.on_host: set[str] = set()  # compute nodes that the target has no way to compute
        self.writes = {o.name: o.writes for o in graph.outputs if o.writes is not None}
        self.written = frozenset(self.writes.values())
        self._routes: dict[tuple[Kind, Kind], str | None] = {}

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
        self.region_axes[name] = [self._region(name, number, r) for number, r in enumerate(form.regions)]
        if len(form.regions) == 1:
            local = self.region_axes[name][0]
            plain = [plain_axis(i) for i in form.regions[0].output]
            self.value_axes[name] = [local[axis] if axis else None for axis in plain]
        else:
            self.value_axes[name] = self._joined(form)
        axes = [axis for axis in self.value_axes[name] if axis is not None]
        if node.kind is Kind.CONTRACT:
            for axis in axes:
                self.axes.flag(axis, Use.CONTRACTED)
        self.values[name] = Tile(name, node.output.dtype.compute.size, tuple(axes))
        self.loads[name] = list(self._loaded(form))
        self.alone[name] = self._tiles_alone(form)
        if runs_on_host(self.graph, self.target, node):
            self.on_host.add(name)

    def _tiles_alone(self, form: Form) -> int:
        """The tiles that an operator by itself can be cut into."""
        use = self.axes.use
        tiles = self.tiles([axis for axis in self.values[form.name].axes if PARALLEL[use[self.axes.find(axis)]]])
        if tiles >= self.target.cores:
            return tiles
        return group_us(self, self.share(form), [self.sink_axes(form.node)])[1]

    def _loaded(self, form: Form) -> Iterator[Tile]:
        """Operands that a tile copies in when they come from outside: not literals, gathered tables or the blocks of a
        contraction."""
        if form.node.kind is Kind.CONTRACT:
            return
        for local, region in zip(self.region_axes[form.name], form.regions, strict=True):
            for operand in region.operands:
                source = self.graph.producers.get(operand.value)
                if operand.gathered is None and (source is None or source.kind is not Kind.SOURCE):
                    names = dict.fromkeys([n for i in operand.index if isinstance(i, Expr) for n in _names(i)])
                    axes = tuple([local[n] for n in names if n in local])
                    yield Tile(operand.value, self.graph.values[operand.value].dtype.size, axes)

    def _region(self, owner: str, number: int, region: Region) -> dict[str, int]:
        scope = owner if number == 0 else f"{owner}#{number}"
        local = {name: self.axes.new(scope, extent) for name, extent in {**region.axes, **region.reduced}.items()}
        for name in region.reduced:
            self.axes.flag(local[name], Use.REDUCED)
        if region.scanned:
            self.axes.flag(local[region.scanned], Use.SCANNED)
        return local

    def _joined(self, form: Form) -> list[int | None]:
        """Output axes of a join: its own where pieces only cover parts, the pieces' where they span the whole."""
        node = form.node
        result: list[int | None] = []
        for d, extent in enumerate(node.output.shape):
            if extent == 1:
                result.append(None)
                continue
            axis = self.axes.new(f"{node.name}#out", extent)
            for local, region in zip(self.region_axes[node.name], form.regions, strict=True):
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
        self.axes.newcomer = form.name
        made = {feed.value: feed.producer for feed in form.feeds}
        for local, region in zip(self.region_axes[form.name], form.regions, strict=True):
            for operand in region.operands:
                producer = made.get(operand.value)
                if producer is None or producer not in inside:
                    continue
                for axis, index in zip(self.value_axes[producer], operand.index, strict=True):
                    if axis is not None:
                        self._align(axis, index, local)
                if operand.gathered is not None:
                    gathered = self.value_axes[producer][operand.gathered]
                    if gathered is not None:
                        self.axes.flag(gathered, Use.BROKEN)

    def resident_bytes(self, name: str) -> int:
        """On-chip bytes of a node's value with every axis tiled as small as it can be."""
        return self.tile_bytes(self.values[name])

    def tile_bytes(self, tile: Tile) -> int:
        """The same of any tile."""
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
        return tuple(map(self.axes.find, self.values[node.name].axes))

    def share(self, form: Form) -> Shares:
        """The node's work by its axes."""
        locals_ = self.region_axes[form.name]
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


@dataclass
class Merge:
    """What a merge would be: one group from several, plus an operator. The judge leaves here what it has found."""

    groups: tuple[Group, ...]
    form: Form
    sinks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    shares: Shares = field(default_factory=dict)
    peak: int = 0
    microseconds: float = 0.0
    parallel: int = 1
    steady: bool = False

    @property
    def nodes(self) -> list[Node]:
        return [node for group in self.groups for node in group.nodes] + [self.form.node]

    def __contains__(self, name: object) -> bool:
        """Whether an operator is in one of the groups."""
        for group in self.groups:  # noqa: SIM110 - asked for every operand
            if name in group.members:
                return True
        return False


def can_fuse(space: Space, groups: tuple[Group, ...], form: Form) -> Verdict:
    """May `form`'s node and `groups` become one group? On a yes the axes are unified; on a no nothing has changed."""
    return judge(space, Merge(groups, form))


def judge(space: Space, merge: Merge) -> Verdict:
    """`can_fuse` for a merge, which then holds the merged group's figures."""
    mark = space.axes.mark()
    verdict = _judge(space, merge)
    if not verdict.fused:
        space.axes.rollback(mark)
    space.axes.commit()
    return verdict


def _judge(space: Space, merge: Merge) -> Verdict:
    for check in (_boundary, _limit, _slots, _units, _effects):
        verdict = check(space, merge)
        if verdict:
            return verdict
    axes = space.axes
    grown, joined, altered = axes.grown, axes.joined, axes.altered
    space.connect(merge.form, merge)
    verdict = _capacity(space, merge, axes.grown != grown)
    verdict = verdict or _profit(space, merge, axes.joined != joined, axes.altered != altered)
    return verdict or _verdict(merge, Code.FUSED, "dependence, space, capacity and units agree")


def _verdict(merge: Merge, code: Code, text: str, **numbers: float) -> Verdict:
    return Verdict(code, merge.groups[0].name, merge.form.name, text, tuple(numbers.items()))


def _boundary(space: Space, merge: Merge) -> Verdict | None:
    sealed = [group.sealed for group in merge.groups]
    if merge.form.node.kind is Kind.COMM or Code.COMMUNICATION in sealed:
        return _verdict(merge, Code.COMMUNICATION, "communication between devices is always a boundary")
    if Code.OPAQUE in sealed or merge.form.name in space.on_host:
        return _verdict(merge, Code.OPAQUE, f"an operator that {space.target.name} does not compile runs on the host")
    return None


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


def _slots(space: Space, merge: Merge) -> Verdict | None:
    """A hand-tuned kernel fuses with its producers and its consumers only through the slots that it has."""
    tuned = space.library(merge.form.node)
    for feed in merge.form.feeds:
        if feed.producer not in merge:
            continue
        if tuned is not None and not tuned.prologue:
            return _verdict(merge, Code.LIBRARY, f"library kernel {tuned.name} has no prologue slot")
        feeding = space.library(space.graph.producers[feed.value]) if feed.kind is Kind.CONTRACT else None
        if feeding is not None and not feeding.epilogue:
            return _verdict(merge, Code.LIBRARY, f"library kernel {feeding.name} has no epilogue slot")
    return None


def _limit(space: Space, merge: Merge) -> Verdict | None:
    count = sum([len(g.nodes) for g in merge.groups]) + 1
    if count > space.target.group_limit:
        limit = space.target.group_limit
        return _verdict(merge, Code.LIMIT, "more operators than a group may hold", ops=count, limit=limit)
    return None


def _units(space: Space, merge: Merge) -> Verdict | None:
    """Tiles must be able to go from the producers' unit to the consumer's."""
    kind = merge.form.node.kind
    for feed in merge.form.feeds:
        if feed.producer in merge:
            problem = space.no_route(feed.kind, kind)
            if problem:
                return _verdict(merge, Code.UNIT, f"{space.target.name} {problem}")
    return None


def _effects(space: Space, merge: Merge) -> Verdict | None:
    """A buffer that one operator of the group writes may be read by the others only at the same positions."""
    if not space.written:
        return None
    written, elsewhere = effects(space, merge.form)
    written = written.union(*(g.written for g in merge.groups))
    elsewhere = elsewhere.union(*(g.elsewhere for g in merge.groups))
    for name in sorted(written & elsewhere):
        return _verdict(merge, Code.EFFECT, f"{name} is written here and read at other positions")
    return None


def effects(space: Space, form: Form) -> tuple[frozenset[str], frozenset[str]]:
    """(inputs of the graph that the node's value is written to, written inputs that it reads at other positions)."""
    if not space.written:
        return frozenset(), frozenset()
    elsewhere = {
        operand.value
        for region in form.regions
        for operand in region.operands
        if operand.value in space.written and (operand.index != region.output or operand.gathered is not None)
    }
    goal = space.writes.get(form.name)
    return frozenset(() if goal is None else (goal,)), frozenset(elsewhere)


def _capacity(space: Space, merge: Merge, changed: bool) -> Verdict | None:
    """The smallest legal schedule's tiles must fit. A bound first; exact lifetimes only where that is too large, or
    where the merge made an axis of its groups resident (`changed`)."""
    limit = space.target.onchip_bytes
    inside = [feed.producer for feed in merge.form.feeds if feed.producer in merge]
    # What the operator reads may live longer than it did before.
    merge.peak = sum([g.peak for g in merge.groups]) + sum(map(space.resident_bytes, (merge.form.name, *inside)))
    merge.peak += sum(map(space.tile_bytes, space.loads[merge.form.name]))
    if changed or merge.peak > limit:
        merge.peak = peak_bytes(space, merge.nodes)
    if merge.peak > limit:
        return _verdict(merge, Code.CAPACITY, "intermediates do not fit on-chip", bytes=merge.peak, capacity=limit)
    return None


def peak_bytes(space: Space, nodes: Sequence[Node]) -> int:
    """The most bytes alive at once when the nodes run in order: their values, and operands from outside."""
    sizes: dict[str, int] = {}
    last: dict[str, int] = {}
    born: list[int] = []
    for position, node in enumerate(nodes):
        name = node.name
        sizes[name] = new = space.tile_bytes(space.values[name])
        for load in space.loads[name]:
            if load.value not in sizes:
                sizes[load.value] = size = space.tile_bytes(load)
                new += size
        last[name] = position
        for value in space.forms.of(node).reads:
            last[value] = position
        born.append(new)
    dying = [0] * len(nodes)
    for name, position in last.items():
        dying[position] += sizes.get(name, 0)
    alive = peak = 0
    for new, gone in zip(born, dying, strict=True):
        alive += new
        peak = max(peak, alive)
        alive -= gone
    return peak


def _profit(space: Space, merge: Merge, joined: bool, altered: bool) -> Verdict | None:
    """Microseconds won (bytes that stay on-chip, a barrier) against those lost (idle cores, operands read again).

    `joined`: whether axes of the groups became one; `altered`: whether more happens along one of them.
    """
    target, form = space.target, merge.form
    alone = space.alone[form.name]
    merge.sinks = merged_sinks(space, merge)
    merge.shares = _merged_shares(space, merge, joined)
    crossing = sum([space.forms.bytes(feed.value) for feed in form.feeds if feed.producer in merge])
    won = crossing / target.bandwidth + target.barrier_us
    if not (joined or altered) and _is_more_of_the_same(space, merge):
        (group,) = merge.groups
        merge.microseconds = group.microseconds + time_of(target, form.work, form.products, group.parallel)
        merge.parallel, merge.steady = group.parallel, True
    else:
        merge.microseconds, merge.parallel, merge.steady = group_us(space, merge.shares, merge.sinks.values())
    apart = sum(g.microseconds for g in merge.groups) + time_of(target, form.work, form.products, alone)
    lost = merge.microseconds - apart + operand_again_us(space, merge)
    if lost <= won:
        return None
    if merge.parallel == 1 and max(alone, *(g.parallel for g in merge.groups)) > 1:
        return _verdict(merge, Code.SPACE, "no axis is left to cut tiles along", lost_us=lost, won_us=won)
    return _verdict(merge, Code.PROFIT, "it would cost more than it saves", lost_us=lost, won_us=won)


def _is_more_of_the_same(space: Space, merge: Merge) -> bool:
    """Whether the group's cut stays what it is, so that its time only grows by the operator's.

    One group, cut along axes of all its operators into enough tiles, or not at all; the new operator has the axes of
    one of them, and its value those of the sinks that it takes the place of.
    """
    if len(merge.groups) > 1 or not merge.groups[0].steady or len(merge.shares) > len(merge.groups[0].shares):
        return False
    own = set(merge.sinks[merge.form.name])
    for feed in merge.form.feeds:
        axes = merge.groups[0].sinks.get(feed.value)
        if axes is not None and set(map(space.axes.find, axes)) != own:
            return False
    return True


def _merged_shares(space: Space, merge: Merge, joined: bool) -> Shares:
    """The groups' shares and the operator's. Where the groups' axes are what they were, so are the keys."""
    own = space.share(merge.form)
    if joined or len(merge.groups) > 1:
        return space.added([*(g.shares for g in merge.groups), own])
    total = dict(merge.groups[0].shares)
    for axes, (work, products) in own.items():
        before = total.get(axes, (0.0, 0.0))
        total[axes] = before[0] + work, before[1] + products
    return total


def time_of(target: Target, work: float, products: float, parallel: int) -> float:
    """Microseconds of arithmetic on as many cores as there are independent tiles."""
    return (work / target.rate + products / target.contract_rate) / max(1, min(target.cores, parallel))


def group_us(space: Space, shares: Shares, sinks: Iterable[tuple[int, ...]]) -> tuple[float, int, bool]:
    """Microseconds of a group's arithmetic, the tiles it is cut into, and whether like work only adds to it.

    Three cuts are weighed: along every parallel axis, where operators that lack one of them work again in each tile;
    along those only that all operators have; and, where that leaves cores idle, along a folded axis, whose partial
    states one more step merges.
    """
    target = space.target
    work = sum([each for each, _ in shares.values()])
    products = sum([each for _, each in shares.values()])
    cut = space.parallel_roots(sinks)
    if len(shares) == 1 or all(map(cut.issubset, shares)):
        tiles = space.tiles(cut)
        plain = time_of(target, work, products, tiles), tiles
        if tiles >= target.cores:
            return *plain, True
        return *min(plain, _folded_cut(space, shares, work, products)), not cut and not _foldable(space, shares)
    common, again = set(cut), 0.0
    for axes, share in shares.items():
        missing = cut - axes
        if missing:
            common -= missing
            times = min(TILES, space.tiles(missing))
            again += time_of(target, *share, target.cores) * (times - 1)
    choices = [(time_of(target, work, products, tiles) + more, tiles) for tiles, more in (
        (space.tiles(cut), again), (space.tiles(common), 0.0)
    )]
    if choices[1][1] < target.cores:
        choices.append(_folded_cut(space, shares, work, products))
    return *min(choices), False


def _foldable(space: Space, shares: Shares) -> bool:
    """Whether an axis is long enough, and only folded, that it might be cut into parts."""
    use, size = space.axes.use, space.axes.size
    return any(use[root] == Use.REDUCED.value and size[root] >= 2 * PART for axes in shares for root in axes)


def _folded_cut(space: Space, shares: Shares, work: float, products: float) -> tuple[float, int]:
    """A group whose folded axis is cut into parts: what every operator of weight has, and nothing but folds break."""
    heaviest = max(shares, key=lambda axes: shares[axes])
    extents = [space.axes.size[root] for root in heaviest if space.axes.use[root] == Use.REDUCED]
    parts = max(extents, default=1) // PART
    if parts < 2 or products:
        return math.inf, 1
    return time_of(space.target, work, 0.0, parts) + space.target.barrier_us, parts


def operand_again_us(space: Space, merge: Merge) -> float:
    """A contraction fed from inside its group reads its other operand once per row tile: the time of the repeats."""
    form, target = merge.form, space.target
    if form.node.kind is not Kind.CONTRACT:
        return 0.0
    left, right = form.regions[0].operands
    fed = [o for o in (left, right) if (p := space.forms.producer(o.value)) and p.name in merge]
    if not fed:
        return 0.0
    row = plain_axis(form.regions[0].output[-2])
    rows = estimate(form.regions[0].axes[row]) if row else 1
    kept = target.onchip_bytes // 2
    again = 0.0
    for operand in (left, right):
        inner = 1
        for name in {n for i in operand.index if isinstance(i, Expr) for n in symbols(i)}:
            local = space.region_axes[form.name][0].get(name)
            if local is not None and (name in form.regions[0].reduced or not _outer(form, name)):
                inner *= space.axes.size[local]
        size = inner * space.graph.values[operand.value].dtype.size
        if operand not in fed and size > kept:
            tile = max(1, kept // max(1, inner // max(1, rows)) // 4)
            again += size * max(0, rows // min(rows, max(tile, 16)) - 1) / target.bandwidth
    return again


def _outer(form: Form, name: str) -> bool:
    """Whether the axis is a batch axis of the contraction."""
    return any(plain_axis(i) == name for i in form.regions[0].output[:-2])


def merged_sinks(space: Space, merge: Merge) -> dict[str, tuple[int, ...]]:
    """The operators of the merged group that no other of its operators reads, with the axes of their values."""
    read = set(merge.form.reads)
    sinks = {name: axes for group in merge.groups for name, axes in group.sinks.items() if name not in read}
    sinks[merge.form.name] = space.sink_axes(merge.form.node)
    return sinks
