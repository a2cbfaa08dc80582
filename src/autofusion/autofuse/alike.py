"""The walk's common case, in one step: an elementwise operator on values of one group, at its own points.

Such an operator has its producers' axes and needs no others: nothing is made, unified or flagged. All that could differ
is checked first, and whatever does not hold leaves the operator to the general way, which gives the same answer
(`tests/test_partition.py` holds the two against each other).
"""

from __future__ import annotations

from autofusion.autofuse.cost import time_of
from autofusion.autofuse.forms import Feed, Form
from autofusion.autofuse.legality import Group, runs_on_host
from autofusion.autofuse.space import Space, Tile
from autofusion.kinds import Kind


def joins_alike(space: Space, group: Group, form: Form) -> bool:
    """Let the operator join the group, if this is the common case; whether it was."""
    if not _plain(space, group, form):
        return False
    axes = space.value_axes[form.feeds[0].producer]
    own = tuple([axis for axis in axes if axis is not None])
    roots = frozenset(map(space.axes.find, own))
    if roots not in group.shares or any(_roots(space, f.producer) != roots for f in form.feeds[1:]):
        return False
    values = space.graph.values
    value = Tile(form.name, form.node.output.dtype.compute.size, own)
    loads = [Tile(f.value, values[f.value].dtype.size, own) for f in _operands(form)]
    held, least = space.axes.resident(own), space.least_bytes  # of all of them: they have the same axes
    sizes = [value.size, *[space.values[f.producer].size for f in form.feeds], *[load.size for load in loads]]
    peak = group.peak + sum([max(size * held, least) for size in sizes])
    target = space.target
    alone = space.tiles(own)
    added = time_of(target, form.work, 0.0, group.parallel)
    won = sum([space.forms.bytes(f.value) for f in form.feeds]) / target.bandwidth + target.barrier_us
    if peak > target.onchip_bytes or alone < target.cores or added - time_of(target, form.work, 0.0, alone) > won:
        return False
    local = dict(zip(form.regions[0].axes, own, strict=True))
    space.adopt(form, axes, local, value, loads, alone)
    _grow(space, group, form, own, roots)
    group.peak = peak
    group.microseconds += added
    return True


def _plain(space: Space, group: Group, form: Form) -> bool:
    """Whether every operand is a literal or a value of the group, read at the operator's own point."""
    if form.node.kind is not Kind.ELEMENTWISE or not form.feeds or space.written or group.sealed or not group.steady:
        return False
    if len(group.nodes) >= space.target.group_limit or runs_on_host(space.graph, space.target, form.node):
        return False
    for feed in form.feeds:
        if feed.kind is Kind.CONTRACT or feed.producer not in group.members:
            return False
        if space.no_route(feed.kind, Kind.ELEMENTWISE):
            return False
    (region,) = form.regions
    made = {feed.value for feed in form.feeds}
    for operand in region.operands:
        if operand.value in made:
            if operand.index is not region.output and operand.index != region.output:
                return False
        elif operand.value not in space.graph.producers:
            return False  # an input or a constant: it has axes of its own
    return True


def _operands(form: Form) -> list[Feed]:
    """The feeds once for every time that they are read."""
    feeds = {feed.value: feed for feed in form.feeds}
    return [feeds[o.value] for o in form.regions[0].operands if o.value in feeds]


def _roots(space: Space, name: str) -> frozenset[int]:
    return frozenset([space.axes.find(axis) for axis in space.value_axes[name] if axis is not None])


def _grow(space: Space, group: Group, form: Form, own: tuple[int, ...], roots: frozenset[int]) -> None:
    group.nodes.append(form.node)
    group.members.add(form.name)
    for value in form.reads:
        group.sinks.pop(value, None)
    group.sinks[form.name] = tuple(map(space.axes.find, own))
    work, products = group.shares[roots]
    group.shares[roots] = work + form.work, products
