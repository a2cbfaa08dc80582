"""Can this operator join that group? Decided from dependences, iteration spaces, capacity, units and effects.

Nothing here reads an operator's name: only kinds, index forms, sizes and the target's facts. The state of a group is
small and is extended by one operator at a time, so the whole walk is linear; a refused attempt is rolled back.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from autofusion.autofuse.axes import RESIDENT, Use
from autofusion.autofuse.cost import group_us, tiles_alone, time_of
from autofusion.autofuse.forms import Form, estimate, plain_axis
from autofusion.autofuse.products import Product, has_own_unit, within
from autofusion.autofuse.space import Placed, Shares, Space
from autofusion.autofuse.verdicts import Code, Verdict
from autofusion.dims import Expr, symbols
from autofusion.graph.index import Operand
from autofusion.graph.ir import Node
from autofusion.kinds import Kind

ENOUGH = 16  # rows of a tile of a contraction
ROWS = 4  # of a contraction: each vector of the columns' operand is used for so many, or loads bound it
WALKED = 16  # elements along an axis that is summed over in tiles


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
    contractions: list[Form] = field(default_factory=list)
    sealed: Code | None = None  # why nothing may join

    @property
    def name(self) -> str:
        return self.nodes[-1].name


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


def admit(space: Space, form: Form) -> None:
    """Make an operator known, with what holds for it whatever it may join."""
    space.add(form)
    space.placed[form.name].alone = tiles_alone(space, form)


def judge(space: Space, merge: Merge) -> Verdict:
    """May the groups and the operator become one? On a yes the axes are unified, and the merge holds the new group's
    figures; on a no nothing has changed."""
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
    space.connect(merge.form, merge)
    verdict = _capacity(space, merge) or _products(space, merge) or _rows(space, merge) or _profit(space, merge)
    return verdict or agreed(merge.groups[0].name, merge.form)


def agreed(group: str, form: Form) -> Verdict:
    """The verdict for an operator that joins a group."""
    return Verdict(Code.FUSED, group, form.name, "dependence, space, capacity and units agree")


def _verdict(merge: Merge, code: Code, text: str, **numbers: float) -> Verdict:
    first, *others = (group.name for group in merge.groups)
    return Verdict(code, first, merge.form.name, text, tuple(numbers.items()), tuple(others))


def _boundary(space: Space, merge: Merge) -> Verdict | None:
    sealed = [group.sealed for group in merge.groups]
    if merge.form.node.kind is Kind.COMM or Code.COMMUNICATION in sealed:
        return _verdict(merge, Code.COMMUNICATION, "communication between devices is always a boundary")
    if Code.OPAQUE in sealed or space.on_host(merge.form.node):
        return _verdict(merge, Code.OPAQUE, f"an operator that {space.target.name} does not compile runs on the host")
    return None


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


def _capacity(space: Space, merge: Merge) -> Verdict | None:
    """The smallest legal schedule's tiles must fit. A bound first; exact lifetimes only where that is too large."""
    limit = space.target.onchip_bytes
    before = sum([g.peak for g in merge.groups]) * space.axes.growth
    merge.peak = appended_peak(space, merge.form, space.placed[merge.form.name], merge, merge.groups[-1].name, before)
    if merge.peak > limit:
        merge.peak = peak_bytes(space, merge.nodes)
    if merge.peak > limit:
        return _verdict(merge, Code.CAPACITY, "intermediates do not fit on-chip", bytes=merge.peak, capacity=limit)
    return None


def appended_peak(space: Space, form: Form, known: Placed, inside: Container[str], last: str, peak: int) -> int:
    """No less than the bytes alive at once when an operator comes behind others whose bound is `peak`.

    Its own value meets only what it reads; what it reads lives longer than before, but for the value of the operator
    `last`, just before it.
    """
    now = space.tile_bytes(known.value)
    made = set()
    for feed in form.feeds:
        if feed.producer in inside:
            made.add(feed.value)
            size = space.tile_bytes(space.placed[feed.producer].value)
            now += size
            if feed.producer != last:
                peak += size
    outside = sum([space.tile_bytes(load) for load in known.loads if load.value not in made])
    return max(peak, now) + outside


def peak_bytes(space: Space, nodes: Sequence[Node]) -> int:
    """The most bytes alive at once when the nodes run in order: their values, and operands from outside."""
    sizes: dict[str, int] = {}
    last: dict[str, int] = {}
    born: list[int] = []
    for position, node in enumerate(nodes):
        name = node.name
        known = space.placed[name]
        sizes[name] = new = space.tile_bytes(known.value)
        for load in known.loads:
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


def _profit(space: Space, merge: Merge) -> Verdict | None:
    """Microseconds won (bytes that stay on-chip, a barrier) against those lost (idle cores, operands read again)."""
    target, form, axes = space.target, merge.form, space.axes
    alone = space.placed[form.name].alone
    merge.sinks = merged_sinks(space, merge)
    merge.shares = _merged_shares(space, merge)
    crossing = sum([space.forms.bytes(feed.value) for feed in form.feeds if feed.producer in merge])
    won = crossing / target.bandwidth + target.barrier_us
    if not (axes.joined or axes.altered) and _is_more_of_the_same(space, merge):
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


def _products(space: Space, merge: Merge) -> Verdict | None:
    """A contraction on a unit of its own reads its operands again for every tile of its result, and consumers that
    need whole rows leave it small tiles: the time of that against what the values between them would move."""
    target = space.target
    if not has_own_unit(target) or not space.axes.altered:
        return None
    crossing = sum([2 * space.forms.bytes(feed.value) for feed in merge.form.feeds if feed.producer in merge])
    won = crossing / target.bandwidth / target.cores + target.barrier_us
    lost, read, read_apart = 0.0, 0, crossing
    for form in [form for group in merge.groups for form in group.contractions]:
        shape, whole = _shape(space, form)
        if any(whole):
            apart = within(target, shape)
            together = within(target, shape, whole, _room(space, merge, form))
            lost += together.microseconds - apart.microseconds
            read, read_apart = read + together.bytes, read_apart + apart.bytes
    if lost <= won:
        return None
    text = "whole rows leave the contraction small tiles, and its operands are read again for each"
    return _verdict(merge, Code.PROFIT, text, lost_us=lost, won_us=won, bytes=read, bytes_apart=read_apart)


def _rows(space: Space, merge: Merge) -> Verdict | None:
    """On a unit that shares its memory, what must be on-chip as a whole beside a contraction, a padded image that its
    windows are read from and the image of each of its filters, say, leaves room for so many of its rows: each tile of
    them reads the columns' operand again, and where they are fewer than `ROWS` they wait for it. The time of that
    against what the values between them move."""
    target, contractions = space.target, [form for group in merge.groups for form in group.contractions]
    if merge.form.node.kind is Kind.CONTRACT:
        contractions.append(merge.form)
    if has_own_unit(target) or not contractions or not (space.axes.altered or contractions[-1] is merge.form):
        return None
    won = sum([space.forms.bytes(f.value) for f in merge.form.feeds if f.producer in merge]) / target.bandwidth
    lost, fewest = 0.0, math.inf
    for form in contractions:
        rows, all_rows = _rows_that_fit(space, merge, form)
        if rows < min(ENOUGH, all_rows):
            fewest = min(fewest, rows)
            lost += time_of(target, 0.0, form.products, target.cores) * (max(1.0, ROWS / rows) - 1)
            lost += _columns_again_us(space, merge, form) * (-(-all_rows // rows) - 1)
    if lost <= won + target.barrier_us:
        return None
    text = "what must be on-chip as a whole leaves the contraction few rows"
    return _verdict(merge, Code.PROFIT, text, rows=fewest, lost_us=lost, won_us=won + target.barrier_us)


def _rows_that_fit(space: Space, merge: Merge, form: Form) -> tuple[int, int]:
    """Rows of a contraction's result that a tile may have, and all there are; as many where all of the result is
    on-chip, or nothing has to be."""
    axes, known = space.axes, space.placed[form.name]
    roots = [axes.find(axis) for axis in known.value.axes]
    columns = _columns(form)
    own = {axes.find(known.local[0][name]) for name in _axes_of(form, columns)}
    cut = [root for root in roots if not RESIDENT[axes.use[root]] and root not in own]
    if not cut or not any(RESIDENT[axes.use[root]] for root in roots):
        return 1, 1
    row = max(cut, key=lambda root: axes.size[root])
    room, each = space.target.onchip_bytes * 3 // 4, 0
    for node in merge.nodes:
        value = space.placed[node.name].value
        own = {axes.find(axis) for axis in value.axes}
        if node.kind in (Kind.CONTRACT, Kind.JOIN) and row in own:
            each += space.tile_bytes(value)
        elif node.kind in (Kind.CONTRACT, Kind.JOIN):
            walked = [axes.size[root] for root in own if axes.use[root] == Use.REDUCED]
            room -= space.tile_bytes(value) * min(WALKED, math.prod(walked))
    return max(1, min(axes.size[row], room // each)), axes.size[row]


def _columns(form: Form) -> Operand:
    """The operand of a contraction that has the last axis of its result."""
    region = form.regions[0]
    last = symbols(region.output[-1]) if region.output else frozenset()
    return next((o for o in region.operands if any(symbols(i) & last for i in o.index)), region.operands[-1])


def _axes_of(form: Form, operand: Operand) -> set[str]:
    region = form.regions[0]
    return {name for i in operand.index for name in symbols(i) if name in region.axes or name in region.reduced}


def _columns_again_us(space: Space, merge: Merge, form: Form) -> float:
    """Reading, or making, the columns' operand of a contraction once more; near the core where a tile's share of it
    fits there."""
    columns, region = _columns(form), form.regions[0]
    shared = set.intersection(*(_axes_of(form, operand) for operand in region.operands)) & set(region.axes)
    size, producer = space.forms.bytes(columns.value), space.forms.producer(columns.value)
    share = size // max(1, math.prod(estimate(region.axes[name]) for name in shared))
    near = (producer is not None and producer.name in merge) or share <= space.target.onchip_bytes // 2
    return size / (space.target.near_bandwidth if near else space.target.bandwidth)


def _shape(space: Space, form: Form) -> tuple[Product, tuple[bool, bool]]:
    """A contraction's extents, and whether whole columns and whole rows of its result have to be on-chip."""
    region, local, axes = form.regions[0], space.placed[form.name].local[0], space.axes
    names = [plain_axis(index) or "" for index in (0, 0, *region.output)]
    rows, columns = ([local[n]] if n in local else [] for n in names[-2:])
    batch = space.tiles([local[n] for n in names[:-2] if n in local])
    depth = space.tiles([local[n] for n in region.reduced])
    size = max(space.graph.values[operand.value].dtype.size for operand in region.operands)
    whole = tuple(any(RESIDENT[axes.use[axes.find(axis)]] for axis in side) for side in (rows, columns))
    return Product(batch, space.tiles(rows), space.tiles(columns), depth, size), (whole[0], whole[1])


def _room(space: Space, merge: Merge, form: Form) -> int:
    """Rows, or columns, that a tile may have where the others are whole: values, and the block that arrives."""
    arriving = space.tile_bytes(space.placed[form.name].value)
    return max(1, space.target.onchip_bytes // (peak_bytes(space, merge.nodes) + arriving))


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


def _merged_shares(space: Space, merge: Merge) -> Shares:
    """The groups' shares and the operator's. Where the groups' axes are what they were, so are the keys."""
    own = space.share(merge.form)
    if space.axes.joined or len(merge.groups) > 1:
        return space.added([*(g.shares for g in merge.groups), own])
    total = dict(merge.groups[0].shares)
    for axes, (work, products) in own.items():
        before = total.get(axes, (0.0, 0.0))
        total[axes] = before[0] + work, before[1] + products
    return total


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
            local = space.placed[form.name].local[0].get(name)
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
