"""After the greedy walk: merges and moves that it could not see, ranked by the cost model.

The walk keeps groups apart where its levels cannot rule out a cycle, and never looks at groups that only share inputs.
Here pairs of groups are tried as one, by the same legality, with an exact search for cycles. And where the walk put an
operator behind its producer, though its result is larger than what it reads (padding, a cast to a wider type), it goes
before its reader instead, so that the smaller value is what is stored between the two. Nothing is done unless the model
says that it saves time, so the result is never worse than the greedy one by the model; the work is bounded by a number
of operator visits that is linear in the graph.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, replace

from autofusion.autofuse.forms import Forms
from autofusion.autofuse.legality import Group, Merge, admit, judge
from autofusion.autofuse.partition import FusionGroup, Partition, Walk
from autofusion.autofuse.verdicts import Code, Verdict
from autofusion.autofuse.widening import source_of
from autofusion.graph.ir import Node
from autofusion.kinds import Kind

VISITS_PER_OPERATOR = 8
VISITS_AT_LEAST = 4096


@dataclass(frozen=True)
class _Pair:
    """Two groups, by number, that might be one: the first reads nothing of the second."""

    first: int
    second: int


class _Search:
    """The groups while they are merged: numbers stay, merged ones disappear."""

    def __init__(self, partition: Partition, forms: Forms) -> None:
        self.partition = partition
        self.forms = forms
        self.position = {node.name: i for i, node in enumerate(partition.graph.nodes)}
        self.groups = dict(enumerate(partition.groups))
        self.home = {node.name: number for number, group in self.groups.items() for node in group.nodes}
        self.readers: dict[str, list[str]] = {}
        for node in itertools.chain.from_iterable(group.nodes for group in partition.groups):
            for value in forms.of(node).reads:
                self.readers.setdefault(value, []).append(node.name)
        self.results = {source_of(partition.graph, output.name) for output in partition.graph.outputs}
        self.cost: dict[int, float] = {}
        self.verdicts: list[Verdict] = []
        self.visits = max(VISITS_AT_LEAST, VISITS_PER_OPERATOR * len(self.home))

    # -- the graph of groups -----------------------------------------------------------------------------------------
    def reads(self, number: int) -> set[int]:
        """The groups that a group reads."""
        found = set()
        for node in self.groups[number].nodes:
            for value in self.forms.of(node).reads:
                producer = self.forms.producer(value)
                if producer is not None and self.home[producer.name] != number:
                    found.add(self.home[producer.name])
        return found

    def reaches_around(self, first: int, second: int) -> bool:
        """Whether a path leads from `first` through another group to `second`."""
        stack = [n for n in self.reads(second) if n != first]
        seen = set(stack)
        while stack:
            number = stack.pop()
            self.visits -= len(self.groups[number].nodes)
            for before in self.reads(number):
                if before == first:
                    return True
                if before not in seen:
                    seen.add(before)
                    stack.append(before)
        return False

    # -- trying a pair -----------------------------------------------------------------------------------------------
    def together(self, nodes: list[Node], align: bool = True) -> Group | Verdict:
        """All the operators as one group, or the first refusal. `align`: with reads of one value in step, as groups are
        lowered; the walk does without."""
        walk = Walk(self.partition.graph, self.partition.target, self.forms)
        group: Group | None = None
        for node in sorted(nodes, key=lambda n: self.position[n.name]):
            self.visits -= 1
            form = self.forms.of(node)
            admit(walk.space, form)
            if align:
                walk.space.align_reads(form, walk.group_of)
            if group is None:
                walk.open(form, [])
            else:
                merge = Merge((group,), form)
                verdict = judge(walk.space, merge)
                if not verdict.fused:
                    return verdict
                walk.join(merge, [])
            group = walk.group_of[node.name]
        assert group is not None
        return group

    def microseconds(self, number: int) -> float:
        """What the model gives for a group's arithmetic."""
        if number not in self.cost:
            nodes = list(self.groups[number].nodes)
            alone = self.together(nodes)
            alone = alone if isinstance(alone, Group) else self.together(nodes, align=False)
            self.cost[number] = alone.microseconds if isinstance(alone, Group) else math.inf
        return self.cost[number]

    def lost(self, before: tuple[int, int], after: float) -> float:
        """What two groups take longer once they are others, by the model; infinite where it cannot tell what they take
        now: the walk may merge several groups at once, which adding one operator after the other cannot."""
        now = sum(map(self.microseconds, before))
        return after - now if math.isfinite(now) else math.inf

    def try_pair(self, pair: _Pair) -> None:
        """Merge the two where it is legal and saves time by the model."""
        first, second = self.groups[pair.first], self.groups[pair.second]
        if len(first.nodes) + len(second.nodes) > self.partition.target.group_limit:
            return
        if self.reaches_around(pair.first, pair.second) or self.reaches_around(pair.second, pair.first):
            text = "another group lies between the two"
            self.verdicts.append(Verdict(Code.CYCLE, first.name, second.name, text))
            return
        merged = self.together([*first.nodes, *second.nodes])
        if isinstance(merged, Verdict):
            return
        target = self.partition.target
        saved = self._shared_bytes(first, second) / target.bandwidth + target.barrier_us
        lost = self.lost((pair.first, pair.second), merged.microseconds)
        if lost >= saved:
            return
        numbers = (("lost_us", lost), ("won_us", saved))
        self.verdicts.append(Verdict(Code.FUSED, first.name, second.name, "improved after the walk", numbers))
        nodes = sorted((*first.nodes, *second.nodes), key=lambda n: self.position[n.name])
        self.groups[pair.first] = FusionGroup(tuple(nodes))
        self.cost[pair.first] = merged.microseconds
        for node in second.nodes:
            self.home[node.name] = pair.first
        del self.groups[pair.second]

    def _shared_bytes(self, first: FusionGroup, second: FusionGroup) -> int:
        """Bytes read twice, or written and read, as long as the two are apart."""
        made = {node.name for node in first.nodes}
        read = {value for node in first.nodes for value in self.forms.of(node).reads} | made
        again = {value for node in second.nodes for value in self.forms.of(node).reads}
        return sum(self.forms.bytes(value) for value in read & again)

    # -- moving an operator to its reader ----------------------------------------------------------------------------
    def hand_over(self, number: int) -> bool:
        """Move an operator whose value only one other group reads there, where that saves time by the model."""
        group = self.groups[number]
        for node in reversed(group.nodes):
            homes = {self.home[reader] for reader in self.readers.get(node.name, ())}
            if len(homes) != 1 or number in homes or node.name in self.results or len(node.outputs) > 1:
                continue
            (goal,) = homes
            spared = self.forms.bytes(node.name) - sum(map(self.forms.bytes, self._stored_without(node)))
            saved = 2 * spared / self.partition.target.bandwidth  # written, and read
            if saved > 0 and self._move(node, number, goal, saved):
                return True
        return False

    def _stored_without(self, node: Node) -> list[str]:
        """What only this operator of its group hands to others, if it is in another group."""
        number = self.home[node.name]
        found = []
        for value in self.forms.of(node).reads:
            producer = self.forms.producer(value)
            if producer is not None and self.home[producer.name] == number and value not in self.results:
                others = {self.home[reader] for reader in self.readers[value]}
                if others == {number}:
                    found.append(value)
        return found

    def _move(self, node: Node, number: int, goal: int, saved: float) -> bool:
        source, reader = self.groups[number], self.groups[goal]
        left = tuple(each for each in source.nodes if each is not node)
        fits = left and not reader.host and len(reader.nodes) < self.partition.target.group_limit
        if not fits or self.visits <= 0:
            return False
        more = tuple(sorted((node, *reader.nodes), key=lambda n: self.position[n.name]))
        fewer, grown = self.together(list(left)), self.together(list(more))
        if isinstance(fewer, Verdict) or isinstance(grown, Verdict):
            return False
        lost = self.lost((number, goal), fewer.microseconds + grown.microseconds)
        if lost >= saved:
            return False
        numbers = (("lost_us", lost), ("won_us", saved))
        text = "moved to its reader: less is stored between"
        self.verdicts.append(Verdict(Code.FUSED, node.name, reader.name, text, numbers))
        for which, nodes, made in ((number, left, fewer), (goal, more, grown)):
            self.groups[which], self.cost[which] = FusionGroup(nodes), made.microseconds
        self.home[node.name] = goal
        return True

    # -- candidates --------------------------------------------------------------------------------------------------
    def candidates(self) -> list[_Pair]:
        """Pairs that share bytes, the most bytes first: producers with consumers, and readers of one value."""
        readers: dict[str, list[int]] = {}
        for number, group in self.groups.items():
            if group.host or any(node.kind is Kind.COMM for node in group.nodes):
                continue
            for node in group.nodes:
                readers.setdefault(node.name, []).append(number)
                for value in self.forms.of(node).reads:
                    readers.setdefault(value, []).append(number)
        weights: dict[_Pair, int] = {}
        for value, numbers in readers.items():
            distinct = sorted(set(numbers))
            for first, second in itertools.pairwise(distinct):
                pair = _Pair(first, second)
                weights[pair] = weights.get(pair, 0) + self.forms.bytes(value)
        return [pair for pair, _ in sorted(weights.items(), key=lambda p: (-p[1], p[0].first, p[0].second))]

    def run(self) -> Partition:
        for pair in self.candidates():
            if self.visits <= 0:
                break
            if pair.first in self.groups and pair.second in self.groups and not self._contracts(pair):
                self.try_pair(pair)
        for number in sorted(self.groups):
            while not self.groups[number].host and self.hand_over(number):
                pass
        groups = tuple(self.groups[number] for number in self._order())
        return replace(self.partition, groups=groups, verdicts=(*self.partition.verdicts, *self.verdicts))

    def _contracts(self, pair: _Pair) -> bool:
        """Whether both hold contractions: their depths and operands differ, nothing would be shared."""
        return all(any(node.kind is Kind.CONTRACT for node in self.groups[n].nodes) for n in (pair.first, pair.second))

    def _order(self) -> list[int]:
        """Group numbers in an order of execution, the smallest free one first."""
        waiting = {number: self.reads(number) for number in self.groups}
        readers: dict[int, list[int]] = {number: [] for number in self.groups}
        for number, before in waiting.items():
            for each in before:
                readers[each].append(number)
        free = [number for number, before in waiting.items() if not before]
        heapq.heapify(free)
        order = []
        while free:
            number = heapq.heappop(free)
            order.append(number)
            for reader in readers[number]:
                waiting[reader].discard(number)
                if not waiting[reader]:
                    heapq.heappush(free, reader)
        return order


def improve(partition: Partition, forms: Forms) -> Partition:
    """The partition with further merges and moves that the model says save time."""
    if len(partition.groups) < 2:
        return partition
    return _Search(partition, forms).run()
