"""Cutting a graph into FusionGroups: one topological walk, each operator joining its producers' group where it may.

A merge must never create a cycle. Every group has a level, greater than the levels of all groups that it reads. An
operator may join the groups of its producers that have the greatest level, and all of those at once (groups of one
level cannot depend on each other); groups of lower levels stay as inputs. So no path can leave a group and come back,
and the walk needs no search: its time is linear in the number of operators.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from autofusion.autofuse.alike import joins_alike
from autofusion.autofuse.cost import group_us
from autofusion.autofuse.forms import Form, Forms
from autofusion.autofuse.legality import Group, Merge, admit, agreed, effects, judge, peak_bytes
from autofusion.autofuse.space import Space, runs_on_host
from autofusion.autofuse.verdicts import Code, Verdict
from autofusion.graph.ir import Graph, Node
from autofusion.ops import Kind
from autofusion.target import Target


@dataclass(frozen=True)
class FusionGroup:
    """Operators whose intermediates stay on-chip, in execution order. `host`: the host runs it between launches."""

    nodes: tuple[Node, ...]
    host: bool = False

    @property
    def name(self) -> str:
        return self.nodes[-1].name


@dataclass(frozen=True)
class Partition:
    """The groups in execution order, and why each merge was or was not made."""

    graph: Graph
    target: Target
    groups: tuple[FusionGroup, ...]
    verdicts: tuple[Verdict, ...] = field(default=())


class Walk:
    """The state of the greedy walk."""

    def __init__(self, graph: Graph, target: Target, forms: Forms) -> None:
        self.space = Space(graph, target, forms)
        self.forms = forms
        self.target = target
        self.group_of: dict[str, Group] = {}
        self.groups: dict[int, Group] = {}
        self.verdicts: list[Verdict] = []
        self.count = 0

    def visit(self, node: Node) -> None:
        """Place one operator."""
        form = self.forms.of(node)
        producers = self._producer_groups(form)
        candidates = self._candidates(producers)
        if candidates and len(candidates[0]) == 1:
            (group,) = candidates[0]
            before = group.name
            if joins_alike(self.space, group, form):
                self.group_of[node.name] = group
                self.verdicts.append(agreed(before, form))
                self._depend(group, producers)
                return
        admit(self.space, form)
        for groups in candidates:
            merge = Merge(groups, form)
            verdict = judge(self.space, merge)
            self.verdicts.append(verdict)
            if verdict.fused:
                self.join(merge, producers)
                return
        self.open(form, producers)

    def _producer_groups(self, form: Form) -> list[Group]:
        found: dict[int, Group] = {}
        for feed in form.feeds:
            group = self.group_of[feed.producer]
            found[group.number] = group
        return list(found.values())

    def _candidates(self, producers: list[Group]) -> list[tuple[Group, ...]]:
        """Sets of groups to try, best first: all of the greatest level, then any one that nothing depends on yet."""
        if len(producers) < 2:
            return [(group,) for group in producers]
        top = max(g.level for g in producers)
        highest = tuple(g for g in producers if g.level == top)
        result = [highest]
        free = tuple(g for g in producers if not g.has_dependents)
        if len(free) > 1 and set(map(id, free)) != set(map(id, highest)):
            result.insert(0, free)
        result += [(g,) for g in free if (g,) not in result]
        return result

    def join(self, merge: Merge, producers: list[Group]) -> None:
        """The largest of the groups takes in the others and the operator."""
        groups, node = merge.groups, merge.form.node
        keep = max(groups, key=lambda g: len(g.nodes))
        for group in groups:
            if group is not keep:
                self._absorb(keep, group)
        self._add(keep, merge.form)
        keep.sinks, keep.shares, keep.peak = merge.sinks, merge.shares, merge.peak
        keep.microseconds, keep.parallel, keep.steady = merge.microseconds, merge.parallel, merge.steady
        self.group_of[node.name] = keep
        keep.level = max(g.level for g in groups)
        self._depend(keep, [g for g in producers if g not in groups])

    def _depend(self, group: Group, producers: list[Group]) -> None:
        """A group that reads others is of a greater level than they are."""
        for producer in producers:
            if producer is not group:
                producer.has_dependents = True
                group.level = max(group.level, producer.level + 1)

    def _absorb(self, keep: Group, group: Group) -> None:
        keep.nodes += group.nodes
        keep.members |= group.members
        keep.contractions += group.contractions
        keep.written |= group.written
        keep.elsewhere |= group.elsewhere
        keep.has_dependents |= group.has_dependents
        for node in group.nodes:
            self.group_of[node.name] = keep
        del self.groups[group.number]

    def _add(self, group: Group, form: Form) -> None:
        written, elsewhere = effects(self.space, form)
        group.nodes.append(form.node)
        group.members.add(form.name)
        if form.node.kind is Kind.CONTRACT:
            group.contractions.append(form)
        group.written |= written
        group.elsewhere |= elsewhere

    def open(self, form: Form, producers: list[Group]) -> None:
        """A group of its own."""
        self.count += 1
        level = 1 + max((g.level for g in producers), default=-1)
        space = self.space
        group = Group(self.count, level, sinks={form.name: space.sink_axes(form.node)}, shares=space.share(form))
        self._add(group, form)
        group.microseconds, group.parallel, group.steady = group_us(space, group.shares, group.sinks.values())
        group.peak = peak_bytes(self.space, group.nodes)
        if self.space.on_host(form.node):
            group.sealed = Code.OPAQUE
        elif form.node.kind is Kind.COMM:
            group.sealed = Code.COMMUNICATION
        for producer in producers:
            producer.has_dependents = True
        self.groups[group.number] = group
        self.group_of[form.name] = group


@contextmanager
def _uncollected() -> Iterator[None]:
    """The walk makes much and drops nothing: cycle collections in it only scan all of that, again and again. What it
    has made counts as old afterwards, so that the next collection of young objects does not scan it either."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.freeze()
            gc.unfreeze()
            gc.enable()


def greedy(graph: Graph, target: Target, forms: Forms | None = None) -> Partition:
    """The linear-time walk. `graph` is decomposed: no composites."""
    forms = forms or Forms(graph)
    walk = Walk(graph, target, forms)
    with _uncollected():
        for node in forms.compute_nodes():
            walk.visit(node)
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    groups = [
        FusionGroup(tuple(sorted(g.nodes, key=lambda n: position[n.name])), g.sealed is Code.OPAQUE)
        for g in sorted(walk.groups.values(), key=lambda g: (g.level, position[g.nodes[0].name]))
    ]
    return Partition(graph, target, tuple(groups), tuple(walk.verdicts))


def unfused(graph: Graph, target: Target, forms: Forms | None = None) -> Partition:
    """Every operator a group of its own: what fusion is measured against."""
    forms = forms or Forms(graph)
    groups = [
        FusionGroup((n,), n.name in forms.hosted or runs_on_host(graph, target, n)) for n in forms.compute_nodes()
    ]
    return Partition(graph, target, tuple(groups))
