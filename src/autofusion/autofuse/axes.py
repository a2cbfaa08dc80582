"""Which axes of different operators are the same axis: union-find over axes, with flags, and an undo log.

Two axes are one where a consumer reads its producer at exactly its own position. An axis that is read in any other way
is `BROKEN`: it cannot be tiled, so what lies along it must be resident as a whole.
"""

from __future__ import annotations

from enum import IntFlag

from autofusion.autofuse.forms import estimate
from autofusion.dims import Dim


class Use(IntFlag):
    """What happens along an axis, anywhere in a group."""

    NONE = 0
    BROKEN = 1  # read at other positions than its own
    REDUCED = 2  # folded by some operator
    SCANNED = 4  # running fold
    CONTRACTED = 8  # an output axis of a contraction: recomputing it is dear

    @property
    def resident(self) -> bool:
        """Whether the whole axis must be on-chip at once."""
        return bool(self & (Use.BROKEN | Use.SCANNED)) or Use.REDUCED | Use.CONTRACTED in self

    @property
    def parallel(self) -> bool:
        """Whether tiles along it are independent of each other."""
        return not self & (Use.BROKEN | Use.SCANNED | Use.REDUCED)


# By the bits of a Use: flag arithmetic on enum members is too slow for what the walk asks most often.
RESIDENT = tuple(Use(bits).resident for bits in range(16))
PARALLEL = tuple(Use(bits).parallel for bits in range(16))


_NOBODY: dict[str, int] = {}


class AxisSets:
    """Classes of equal axes. `rollback(mark())` undoes what came after the mark. `use` holds the bits of a Use."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.extent: list[Dim] = []
        self.size: list[int] = []  # the extent, estimated where it is symbolic
        self.use: list[int] = []
        self.members: list[dict[str, int]] = []
        self.log: list[tuple[int, int, int]] = []  # (class taken in, or the same; its new class; that one's use before)
        self._resident: dict[tuple[int, ...], int] = {}  # answers of `resident`, as long as nothing changes
        self.newcomer = ""  # the owner that is being connected
        self.growth = 1  # how many times larger tiles of the others may be: axes of theirs became resident
        self.joined = False  # whether a class that others than the newcomer have is a part of another now
        self.altered = False  # whether what happens along an axis of anybody but the newcomer became more

    def new(self, owner: str, extent: Dim) -> int:
        """A new axis of an iteration space `owner`."""
        axis = len(self.parent)
        self.parent.append(axis)
        self.extent.append(extent)
        self.size.append(estimate(extent))
        self.use.append(0)
        self.members.append({owner: axis})
        return axis

    def enrol(self, axis: int, owner: str) -> None:
        """Let an axis be one of another iteration space too."""
        self.members[self.find(axis)][owner] = axis

    def find(self, axis: int) -> int:
        while self.parent[axis] != axis:
            axis = self.parent[axis]
        return axis

    def expect(self, newcomer: str) -> None:
        """From here on, watch what connecting an iteration space does to the others."""
        self.newcomer = newcomer
        self.growth, self.joined, self.altered = 1, False, False

    def mark(self) -> int:
        return len(self.log)

    def rollback(self, mark: int) -> None:
        self._resident.clear()
        while len(self.log) > mark:
            child, root, use = self.log.pop()
            self.use[root] = use
            if child != root:
                self.parent[child] = child
                for owner in self.members[child]:
                    del self.members[root][owner]

    def commit(self) -> None:
        """Forget how to undo what was done so far, and the members of classes that are parts of others now."""
        for child, root, _ in self.log:
            if child != root:
                self.members[child] = _NOBODY
        self.log.clear()

    def flag(self, axis: int, use: Use) -> None:
        root = self.find(axis)
        before = self.use[root]
        if before | use.value != before:
            self._resident.clear()
            self.use[root] = before | use.value
            self._watch(root, before)
            self.log.append((root, root, before))

    def unify(self, a: int, b: int) -> bool:
        """Make two axes one. False, changing nothing, where an iteration space would hold the axis twice."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return True
        if len(self.members[a]) < len(self.members[b]):
            a, b = b, a
        if not self.members[a].keys().isdisjoint(self.members[b]):
            return False
        self._resident.clear()
        use, other = self.use[a], self.use[b]
        both = use | other
        old_a, old_b = self._old(a), self._old(b)
        if RESIDENT[both] and ((old_a and not RESIDENT[use]) or (old_b and not RESIDENT[other])):
            self.growth *= self.size[a]
        self.joined |= old_b
        self.altered |= (old_a and both != use) or (old_b and both != other)
        self.parent[b] = a
        self.use[a] = both
        self.members[a].update(self.members[b])
        self.log.append((b, a, use))
        return True

    def resident(self, axes: tuple[int, ...]) -> int:
        """The product of the sizes of those axes that must be on-chip as a whole."""
        known = self._resident.get(axes)
        if known is not None:
            return known
        parent, use, product = self.parent, self.use, 1
        for axis in axes:
            root = axis
            while parent[root] != root:
                root = parent[root]
            if RESIDENT[use[root]]:
                product *= self.size[axis]
        self._resident[axes] = product
        return product

    def _watch(self, root: int, before: int) -> None:
        if self._old(root):
            self.altered = True
            if RESIDENT[self.use[root]] and not RESIDENT[before]:
                self.growth *= self.size[root]

    def _old(self, root: int) -> bool:
        """Whether somebody but the newcomer has this axis."""
        members = self.members[root]
        return len(members) > 1 or self.newcomer not in members
