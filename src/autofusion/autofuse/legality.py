"""Can this operator join that group? Decided from dependences, iteration spaces, capacity, units and effects.

Nothing here reads an operator's name: only kinds, index forms, sizes and the target's facts. The state of a group is
small and is extended by one operator at a time, so the whole walk is linear; a refused attempt is rolled back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from autofusion.autofuse.axes import AxisSets, Use
from autofusion.autofuse.forms import Form, Forms, estimate, plain_axis
from autofusion.autofuse.verdicts import Code, Verdict
from autofusion.dims import Dim, Expr, symbols
from autofusion.graph.index import Region
from autofusion.graph.ir import Graph, Node
from autofusion.ops import Kind
from autofusion.target import GM, Target

TILES = 16  # parts that a group is cut into at least, where its axes allow it
HOST_KINDS = (Kind.OPAQUE, Kind.WINDOW, Kind.SCATTER)


@dataclass
class Group:
    """A group while it grows. `level`: longer than every path of groups that leads here."""

    number: int
    level: int
    nodes: list[Node] = field(default_factory=list)
    sinks: dict[str, None] = field(default_factory=dict)
    resident_bytes: int = 0
    microseconds: float = 0.0
    parallel: int = 1
    has_dependents: bool = False
    sealed: Code | None = None  # why nothing may join

    @property
    def name(self) -> str:
        return self.nodes[-1].name


class Space:
    """Iteration spaces of all nodes met so far, and what is the same axis in which group."""

    def __init__(self, graph: Graph, target: Target, forms: Forms) -> None:
        self.graph = graph
        self.target = target
        self.forms = forms
        self.axes = AxisSets()
        self.value_axes: dict[str, list[int | None]] = {}  # per compute node: the axis of each output dimension
        self.region_axes: dict[str, list[dict[str, int]]] = {}  # per compute node and region: axis by its local name
        self.loads: dict[str, list[list[int | None]]] = {}

    # -- a node alone -----------------------------------------------------------------------------------------------
    def add(self, form: Form) -> None:
        """Make the node's axes, with the flags that the node itself sets."""
        node = form.node
        self.region_axes[node.name] = [self._region(node.name, number, r) for number, r in enumerate(form.regions)]
        if len(form.regions) == 1:
            local = self.region_axes[node.name][0]
            names = [plain_axis(i) for i in form.regions[0].output]
            self.value_axes[node.name] = [local[name] if name else None for name in names]
        else:
            self.value_axes[node.name] = self._joined(form)
        if node.kind is Kind.CONTRACT:
            for axis in self.value_axes[node.name]:
                if axis is not None:
                    self.axes.flag(axis, Use.CONTRACTED)

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

    # -- a node inside a group ----------------------------------------------------------------------------------------
    def connect(self, form: Form, inside: Iterable[str]) -> None:
        """Unify the node's axes with those of its producers in `inside` (names of nodes)."""
        members = set(inside)
        self.axes.newcomer = form.node.name
        for local, region in zip(self.region_axes[form.node.name], form.regions, strict=True):
            for operand in region.operands:
                producer = self.forms.producer(operand.value)
                if producer is None or producer.name not in members:
                    continue
                for axis, index in zip(self.value_axes[producer.name], operand.index, strict=True):
                    if axis is not None:
                        self._align(axis, index, local)
                if operand.gathered is not None:
                    gathered = self.value_axes[producer.name][operand.gathered]
                    if gathered is not None:
                        self.axes.flag(gathered, Use.BROKEN)

    def resident_bytes(self, node: Node) -> int:
        """On-chip bytes of a node's value with every axis tiled as small as it can be."""
        size = node.output.dtype.compute.size
        for axis in self.value_axes[node.name]:
            if axis is not None and self.axes.use[self.axes.find(axis)].resident:
                size *= estimate(self.axes.extent[axis])
        return max(size, self.target.lane_bytes)

    def tiles(self, roots: Iterable[int]) -> int:
        """Tiles of one element along these axes."""
        return math.prod(estimate(self.axes.extent[root]) for root in roots)

    def parallel_roots(self, sinks: Iterable[str]) -> set[int]:
        """The axes that tiles of a group with these sinks can be cut along."""
        shared: set[int] | None = None
        for name in sinks:
            roots = {self.axes.find(a) for a in self.value_axes[name] if a is not None}
            free = {root for root in roots if self.axes.use[root].parallel}
            shared = free if shared is None else shared & free
        return shared or set()

    def roots(self, node: Node) -> set[int]:
        """All axes of a node's iteration space."""
        return {self.axes.find(axis) for local in self.region_axes[node.name] for axis in local.values()}


@dataclass(frozen=True)
class Merge:
    """What a merge would be: one group from several, plus an operator."""

    groups: tuple[Group, ...]
    form: Form

    @property
    def nodes(self) -> list[Node]:
        return [node for group in self.groups for node in group.nodes] + [self.form.node]


def can_fuse(space: Space, groups: tuple[Group, ...], form: Form) -> Verdict:
    """May `form`'s node and `groups` become one group? On a yes the axes are unified; on a no nothing has changed."""
    mark = space.axes.mark()
    verdict = _judge(space, Merge(groups, form))
    if not verdict.fused:
        space.axes.rollback(mark)
    return verdict


def _judge(space: Space, merge: Merge) -> Verdict:
    for check in (_boundary, _limit, _units, _effects):
        verdict = check(space, merge)
        if verdict:
            return verdict
    before = [g.parallel for g in merge.groups]
    members = {node.name for group in merge.groups for node in group.nodes}
    grown = space.axes.grown
    space.connect(merge.form, members)
    verdict = _capacity(space, merge, space.axes.grown != grown) or _profit(space, merge, before, members)
    return verdict or _verdict(merge, Code.FUSED, "dependence, space, capacity and units agree")


def _verdict(merge: Merge, code: Code, text: str, **numbers: float) -> Verdict:
    return Verdict(code, merge.groups[0].name, merge.form.node.name, text, tuple(numbers.items()))


def _boundary(space: Space, merge: Merge) -> Verdict | None:
    node = merge.form.node
    if node.kind is Kind.COMM or any(g.sealed is Code.COMMUNICATION for g in merge.groups):
        return _verdict(merge, Code.COMMUNICATION, "communication between devices is always a boundary")
    if any(g.sealed is Code.OPAQUE for g in merge.groups) or runs_on_host(space.target, node):
        return _verdict(merge, Code.OPAQUE, f"an operator that {space.target.name} does not compile runs on the host")
    return None


def runs_on_host(target: Target, node: Node) -> bool:
    """Whether the target has no way to compute it."""
    types = [node.output.dtype]
    return (
        node.kind in HOST_KINDS
        or node.op in target.unsupported
        or (node.kind is not Kind.COMM and target.unit_for(node.kind) is None)
        or any(t not in target.dtypes for t in types)
    )


def _limit(space: Space, merge: Merge) -> Verdict | None:
    count = sum(len(g.nodes) for g in merge.groups) + 1
    if count > space.target.group_limit:
        return _verdict(merge, Code.LIMIT, "more operators than a group may hold", ops=count, limit=space.target.group_limit)
    return None


def _units(space: Space, merge: Merge) -> Verdict | None:
    """Tiles must be able to go from the producers' unit to the consumer's."""
    target, node = space.target, merge.form.node
    there = target.unit_for(node.kind)
    assert there is not None
    inside = {n.name for g in merge.groups for n in g.nodes}
    for value in merge.form.reads:
        producer = space.forms.producer(value)
        if producer is None or producer.name not in inside:
            continue
        here = target.unit_for(producer.kind)
        assert here is not None
        if here is there:
            if target.route(here.result, there.left) is None:
                return _verdict(merge, Code.UNIT, f"{target.name} has no path {here.result} -> {there.left}")
        elif there is not target.vector:
            return _verdict(merge, Code.UNIT, f"{there.name} takes its operands from {GM}, not from {here.name}")
        elif target.route(here.result, there.left, through_gm=True) is None:
            return _verdict(merge, Code.UNIT, f"{target.name} has no path for tiles from {here.name} to {there.name}")
    return None


def _effects(space: Space, merge: Merge) -> Verdict | None:
    """A buffer that one operator of the group writes may be read by the others only at the same positions."""
    writes = {o.name: o.writes for o in space.graph.outputs if o.writes is not None}
    if not writes:
        return None
    written = {writes[n.name]: n for n in merge.nodes if n.name in writes}
    for node in merge.nodes:
        for region in space.forms.of(node).regions:
            for operand in region.operands:
                if operand.value in written and (operand.index != region.output or operand.gathered is not None):
                    return _verdict(merge, Code.EFFECT, f"{operand.value} is written here and read at other positions")
    return None


def _capacity(space: Space, merge: Merge, changed: bool) -> Verdict | None:
    """The smallest legal schedule's tiles must fit. Sums first; exact lifetimes only where the sum is too large."""
    limit = space.target.onchip_bytes
    own = space.resident_bytes(merge.form.node)
    if changed:
        total = own + sum(space.resident_bytes(n) for g in merge.groups for n in g.nodes)
    else:
        total = own + sum(g.resident_bytes for g in merge.groups)
    if total <= limit:
        return None
    peak = _peak(space, merge.nodes)
    if peak > limit:
        return _verdict(merge, Code.CAPACITY, "intermediates do not fit on-chip", bytes=peak, capacity=limit)
    return None


def _peak(space: Space, nodes: list[Node]) -> int:
    """The most bytes alive at once when the nodes run in order."""
    last: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for value in space.forms.of(node).reads:
            last[value] = position
    alive = peak = 0
    freed: dict[int, int] = {}
    for position, node in enumerate(nodes):
        size = space.resident_bytes(node)
        alive += size
        peak = max(peak, alive)
        end = max(last.get(node.name, position), position)
        freed[end] = freed.get(end, 0) + size
        alive -= freed.pop(position, 0)
    return peak


def _profit(space: Space, merge: Merge, before: list[int], members: set[str]) -> Verdict | None:
    """Microseconds won (bytes that stay on-chip, a barrier) against those lost (idle cores, operands read again)."""
    target, form = space.target, merge.form
    sinks = merged_sinks(space, merge)
    crossing = sum(
        estimate(space.graph.values[v].bytes) for v in form.reads if (p := space.forms.producer(v)) and p.name in members
    )
    won = crossing / target.bandwidth + target.barrier_us
    merged, parallel = group_us(space, merge.nodes, sinks)
    own, alone = group_us(space, [form.node], [form.node.name])
    apart = sum(g.microseconds for g in merge.groups) + own
    lost = merged - apart + operand_again_us(space, merge, members)
    if lost <= won:
        return None
    if parallel == 1 and max(alone, *before) > 1:
        return _verdict(merge, Code.SPACE, "no axis is left to cut tiles along", lost_us=lost, won_us=won)
    return _verdict(merge, Code.PROFIT, "it would cost more than it saves", lost_us=lost, won_us=won)


def time_of(target: Target, work: float, products: float, parallel: int) -> float:
    """Microseconds of arithmetic on as many cores as there are independent tiles."""
    return (work / target.rate + products / target.contract_rate) / max(1, min(target.cores, parallel))


def group_us(space: Space, nodes: Sequence[Node], sinks: Iterable[str]) -> tuple[float, int]:
    """Microseconds of a group's arithmetic, and the tiles it is cut into.

    Two cuts are weighed: along every parallel axis, where operators that lack one of them work again in each tile; and
    along those only that all operators have.
    """
    target = space.target
    forms = [space.forms.of(node) for node in nodes]
    work, products = sum(f.work for f in forms), sum(f.products for f in forms)
    cut = space.parallel_roots(sinks)
    common, again = set(cut), 0.0
    for form in forms if cut else ():
        missing = cut - space.roots(form.node)
        if missing:
            common -= missing
            times = min(TILES, math.prod(estimate(space.axes.extent[root]) for root in missing))
            again += time_of(target, form.work, form.products, target.cores) * (times - 1)
    choices = [(time_of(target, work, products, tiles) + more, tiles) for tiles, more in (
        (space.tiles(cut), again), (space.tiles(common), 0.0)
    )]
    return min(choices)


def operand_again_us(space: Space, merge: Merge, members: set[str]) -> float:
    """A contraction fed from inside its group reads its other operand once per row tile: the time of the repeats."""
    form, target = merge.form, space.target
    if form.node.kind is not Kind.CONTRACT:
        return 0.0
    left, right = form.regions[0].operands
    fed = [o for o in (left, right) if (p := space.forms.producer(o.value)) and p.name in members]
    if not fed:
        return 0.0
    row = plain_axis(form.regions[0].output[-2])
    rows = estimate(form.regions[0].axes[row]) if row else 1
    kept = target.onchip_bytes // 2
    again = 0.0
    for operand in (left, right):
        inner = 1
        for name in {n for i in operand.index if isinstance(i, Expr) for n in symbols(i)}:
            local = space.region_axes[form.node.name][0].get(name)
            if local is not None and (name in form.regions[0].reduced or not _outer(form, name)):
                inner *= estimate(space.axes.extent[local])
        size = inner * space.graph.values[operand.value].dtype.size
        if operand not in fed and size > kept:
            tile = max(1, kept // max(1, inner // max(1, rows)) // 4)
            again += size * max(0, rows // min(rows, max(tile, 16)) - 1) / target.bandwidth
    return again


def _outer(form: Form, name: str) -> bool:
    """Whether the axis is a batch axis of the contraction."""
    return any(plain_axis(i) == name for i in form.regions[0].output[:-2])


def merged_sinks(space: Space, merge: Merge) -> dict[str, None]:
    """The operators of the merged group that no other of its operators reads."""
    read = set(merge.form.reads)
    sinks = {name: None for group in merge.groups for name in group.sinks if name not in read}
    sinks[merge.form.node.name] = None
    return sinks
