"""The walk's common case, in one step: an elementwise operator or a fold whose axes the group has already.

Such an operator needs no axes of its own: nothing is made, unified or flagged, and the group is cut as it was. All that
could differ is checked first, and whatever does not hold leaves the operator to the general way, which gives the same
answer (`tests/test_partition.py` holds the two against each other).
"""

from __future__ import annotations

from typing import TypeAlias

from autofusion.autofuse.axes import PARALLEL, Use
from autofusion.autofuse.cost import time_of
from autofusion.autofuse.forms import Feed, Form, plain_axis
from autofusion.autofuse.legality import Group, appended_peak
from autofusion.autofuse.space import Placed, Space, Tile
from autofusion.dims import Dim
from autofusion.graph.index import Index
from autofusion.kinds import Kind

Local: TypeAlias = dict[str, int]
Made: TypeAlias = dict[str, Feed]  # the operands that the group makes, by value


def joins_alike(space: Space, group: Group, form: Form) -> bool:
    """Let the operator join the group, if this is the common case; whether it was."""
    made = {feed.value: feed for feed in form.feeds if feed.producer in group.members}
    if not _may(space, group, form, made):
        return False
    local = _axes(space, form, made)
    if local is None:
        return False
    roots = frozenset(local.values())
    if roots not in group.shares:
        return False
    known = _placed(space, form, local, made)
    own = known.value.axes
    if not _keeps_the_cut(space, group, form, own):
        return False
    target = space.target
    peak = appended_peak(space, form, known, group.members, group.name, group.peak)
    added = time_of(target, form.work, 0.0, group.parallel)
    won = sum(map(space.forms.bytes, made)) / target.bandwidth + target.barrier_us
    if peak > target.onchip_bytes or known.alone < target.cores:
        return False
    if added - time_of(target, form.work, 0.0, known.alone) > won:
        return False
    space.adopt(form, known)
    _grow(group, form, own, roots)
    group.peak = peak
    group.microseconds += added
    return True


def _may(space: Space, group: Group, form: Form, made: Made) -> bool:
    """Whether kind, group and routes allow it."""
    kind = form.node.kind
    if kind is not Kind.ELEMENTWISE and kind is not Kind.REDUCE:
        return False
    if not made or space.written or group.sealed or not group.steady:
        return False
    if len(group.nodes) >= space.target.group_limit or space.on_host(form.node):
        return False
    return not any(feed.kind is Kind.CONTRACT or space.no_route(feed.kind, kind) for feed in made.values())


def _axes(space: Space, form: Form, made: Made) -> Local | None:
    """The group's axis for each axis of the operator; None where the operands that the group makes disagree, or are
    read in another way than at plain axes, or something would happen along an axis that does not yet."""
    (region,) = form.regions
    axes, find = space.axes, space.axes.find
    local: Local = {}
    for operand in region.operands:
        feed = made.get(operand.value)
        if feed is None:
            continue  # from outside the group, or a literal
        known = space.placed[feed.producer]
        names = region.axes if operand.index is region.output else map(plain_axis, _spread(known, operand.index))
        for name, axis in zip(names, known.value.axes, strict=True):
            root = find(axis)
            if name is None or local.setdefault(name, root) != root:
                return None
    if len(local) != len(region.axes) + len(region.reduced) or len(set(local.values())) != len(local):
        return None
    for name, extent in (*region.axes.items(), *region.reduced.items()):
        if axes.extent[local[name]] != extent:
            return None
    if any(not axes.use[local[name]] & Use.REDUCED.value for name in region.reduced):
        return None
    return local


def _spread(known: Placed, index: Index) -> list[Dim]:
    """An index without its positions in dimensions of one element."""
    return [i for i, axis in zip(index, known.outputs, strict=True) if axis is not None]


def _placed(space: Space, form: Form, local: Local, made: Made) -> Placed:
    """What is known of the operator with these axes."""
    (region,) = form.regions
    outputs = [local[name] if (name := plain_axis(i)) else None for i in region.output]
    own = tuple([axis for axis in outputs if axis is not None])
    value = Tile(form.name, form.node.output.dtype.compute.size, own)
    inside = len(made) == len(form.reads)
    loads = [] if inside else [tile for tile in space.loaded(form, [local]) if tile.value not in made]
    return Placed(value, outputs, [local], loads, space.tiles(own))


def _keeps_the_cut(space: Space, group: Group, form: Form, own: tuple[int, ...]) -> bool:
    """Whether the value has the parallel axes of those sinks of the group that it takes the place of."""
    free: set[int] | None = None
    for value in form.reads:
        axes = group.sinks.get(value)
        if axes is not None and axes != own:
            free = _free(space, own) if free is None else free
            if _free(space, axes) != free:
                return False
    return True


def _free(space: Space, axes: tuple[int, ...]) -> set[int]:
    return {root for root in map(space.axes.find, axes) if PARALLEL[space.axes.use[root]]}


def _grow(group: Group, form: Form, own: tuple[int, ...], roots: frozenset[int]) -> None:
    group.nodes.append(form.node)
    group.members.add(form.name)
    for value in form.reads:
        group.sinks.pop(value, None)
    group.sinks[form.name] = own
    work, products = group.shares[roots]
    group.shares[roots] = work + form.work, products
