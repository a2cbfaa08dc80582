"""Which cores wait for which between the phases of a launch.

A core waits only for what some other core writes and it reads, or reads and it overwrites. Between two phases that is
known by unit: all cubes or all vector cores did their part of every phase up to some number, and a wait raises it.

    phase 0: cube writes t       wait cube -> cube       phase 1: cube reads t, vector writes u
                                 wait vector -> cube     phase 2: cube reads u
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from autofusion import text
from autofusion.dims import Dim, substitute, symbol, symbols
from autofusion.kernel.ir import Access, Copy, Gather
from autofusion.superkernel.plan import Call, Launch, Place, Plan, Storage
from autofusion.target import GM
from autofusion.targets.ascend.kernel import CUBE, VECTOR, Kernel
from autofusion.tile.ir import Body, Let, Loop, Program, Step


class Edge(NamedTuple):
    """All cores of the unit `after` wait for all of the unit `first`."""

    first: str
    after: str


@dataclass(frozen=True)
class Wait:
    """What stands before a phase; nothing where there are no edges."""

    edges: frozenset[Edge] = frozenset()

    @property
    def crosses_both_ways(self) -> bool:
        """Whether each unit waits for the other: all cores meet."""
        return {Edge(CUBE, VECTOR), Edge(VECTOR, CUBE)} <= self.edges

    def closed(self) -> frozenset[Edge]:
        """With what comes with it: a unit is waited for once all of its cores have met."""
        return self.edges | {Edge(edge.first, edge.first) for edge in self.edges}


EVERYWHERE = Wait(frozenset(Edge(a, b) for a in (CUBE, VECTOR) for b in (CUBE, VECTOR)))


@dataclass(frozen=True)
class Touch:
    """A unit's part in a call: the storages that it reads and those that it writes."""

    phase: int
    unit: str
    call: Call
    reads: frozenset[str]
    writes: frozenset[str]


@dataclass
class _Known:
    """By (unit, other unit): the phases of the other, from the first on, that every core of the unit knows done."""

    phases: dict[tuple[str, str], int] = field(default_factory=dict)

    def __call__(self, unit: str, other: str) -> int:
        return self.phases.get((unit, other), 0)

    def learn(self, wait: Wait, phase: int) -> None:
        for edge in sorted(wait.closed(), key=lambda e: e.first != e.after):
            self._raise(edge.after, edge.first, phase)
            for other in (CUBE, VECTOR):
                self._raise(edge.after, other, self(edge.first, other))

    def _raise(self, unit: str, other: str, phase: int) -> None:
        self.phases[unit, other] = max(self(unit, other), phase)


def touches(launch: Launch, kernels: Mapping[str, Kernel]) -> list[list[Touch]]:
    """By phase."""
    found: list[list[Touch]] = []
    for number, phase in enumerate(launch.body):
        found.append([])
        for call in phase.body:
            program = kernels[call.kernel].program
            storage = dict(zip(_tensors(program), call.arguments, strict=True))
            for body in program.steps[call.step].bodies:
                reads, writes = _accessed(program, body)
                sets = (frozenset(storage[n] for n in each) for each in (reads, writes))
                found[-1].append(Touch(number, body.unit, call, *sets))
    return found


def _tensors(program: Program) -> list[str]:
    """What a kernel has in global memory, in the order of a call's arguments."""
    return [*(p.name for p in program.params), *(b.name for b in program.workspace)]


def _accessed(program: Program, body: Body) -> tuple[set[str], set[str]]:
    """Tensors of global memory that a body reads and writes, rings apart."""
    reads: set[str] = set()
    writes: set[str] = set()
    for node in text.walk(body):
        if isinstance(node, Copy | Gather):
            if isinstance(node.source, Access) and program.space_of(node.source.name) == GM:
                reads.add(node.source.name)
            if program.space_of(node.target.name) == GM:
                writes.add(node.target.name)
    return reads, writes


def waits(
    plan: Plan, launch: Launch, kernels: Mapping[str, Kernel], units: Mapping[tuple[str, int], int]
) -> list[Wait]:
    """What stands before each phase. `units`: by kernel and step, how many chunks belong together."""
    overlaps = overlaps_in(plan)
    earlier: dict[str, list[Touch]] = {}  # by storage
    known = _Known()
    found = []
    for number, phase in enumerate(touches(launch, kernels)):
        edges = set()
        for touch in phase:
            for before in _conflicting(touch, earlier, overlaps):
                edge = Edge(before.unit, touch.unit)
                unknown = known(touch.unit, before.unit) <= before.phase and edge not in edges
                if unknown and not _own(before, touch, kernels, units, overlaps):
                    edges.add(edge)
        wait = Wait(frozenset(edges))
        if wait.crosses_both_ways:
            wait = EVERYWHERE
        known.learn(wait, number)
        found.append(wait)
        for touch in phase:
            for name in touch.reads | touch.writes:
                earlier.setdefault(name, []).append(touch)
    return found


def _conflicting(
    touch: Touch, earlier: Mapping[str, Sequence[Touch]], overlaps: Mapping[str, frozenset[str]]
) -> Iterator[Touch]:
    """Earlier parts that wrote what this one reads or writes, or read what it writes."""
    for name in sorted(touch.reads | touch.writes):
        for other in sorted(overlaps.get(name, frozenset()) | {name}):
            for before in earlier.get(other, ()):
                if before.phase < touch.phase and (other in before.writes or name in touch.writes):
                    yield before


def overlaps_in(plan: Plan) -> dict[str, frozenset[str]]:
    """Storages that may share bytes: in the workspace by their places there, and an argument with what is written back
    to it."""
    found: dict[str, set[str]] = {}

    def meet(a: str, b: str) -> None:
        found.setdefault(a, set()).add(b)
        found.setdefault(b, set()).add(a)

    alive: list[tuple[int, str]] = []
    for first, end, name in sorted(_ranges(plan.storages.values())):
        alive = [(last, other) for last, other in alive if last > first]
        for _, other in alive:
            meet(name, other)
        alive.append((end, name))
    for write in plan.writes:
        meet(write.argument, write.storage)
    return {name: frozenset(others) for name, others in found.items()}


def _ranges(storages: Iterable[Storage]) -> Iterator[tuple[int, int, str]]:
    for storage in storages:
        offset, size = storage.offset, storage.bytes
        if storage.place is Place.WORKSPACE and isinstance(offset, int) and isinstance(size, int):
            yield offset, offset + size, storage.name


# -- what a core wrote itself ------------------------------------------------------------------------------------------
def _own(
    before: Touch,
    touch: Touch,
    kernels: Mapping[str, Kernel],
    units: Mapping[tuple[str, int], int],
    overlaps: Mapping[str, frozenset[str]],
) -> bool:
    """Whether each core touches only what it touched itself then: the same chunks, at the same places."""
    if before.unit != VECTOR or touch.unit != VECTOR:
        return False
    steps = [kernels[t.call.kernel].program.steps[t.call.step] for t in (before, touch)]
    if any(step.rings for step in steps) or before.call.chunks != touch.call.chunks:
        return False
    if units[before.call.kernel, before.call.step] != units[touch.call.kernel, touch.call.step]:
        return False
    both = (before.reads | before.writes) & (touch.reads | touch.writes)
    shared = {n for n in both if n in before.writes or n in touch.writes}
    apart = {o for n in touch.reads | touch.writes for o in overlaps.get(n, frozenset())}
    if apart & (before.reads | before.writes):
        return False
    return all(_places(before, n, kernels, steps[0]) == _places(touch, n, kernels, steps[1]) for n in shared)


def _places(touch: Touch, storage: str, kernels: Mapping[str, Kernel], step: Step) -> set[Any] | None:
    """The places of a storage that a chunk touches, in a form that equal places have alike."""
    program = kernels[touch.call.kernel].program
    tensors = {n for n, s in zip(_tensors(program), touch.call.arguments, strict=True) if s == storage}
    found: set[Any] = set()
    (body,) = step.bodies
    _collect(body.body[0].body, tensors, {}, (), found)
    return found


def _collect(
    lines: Sequence[Any], tensors: set[str], env: dict[str, Dim], loops: tuple[Any, ...], found: set[Any]
) -> None:
    """(loops around, index, extents) of each access, with lets put in and axes named by their order."""
    env = dict(env)
    for line in lines:
        if isinstance(line, Let):
            env[line.name] = substitute(line.value, env)
        elif isinstance(line, Loop):
            around = (substitute(line.begin, env), substitute(line.end, env), line.step)
            inner = env | {line.var: symbol(f"loop{len(loops)}")}
            _collect(line.body, tensors, inner, (*loops, around), found)
        elif isinstance(line, Copy):
            for access in (line.source, line.target):
                if isinstance(access, Access) and access.name in tensors:
                    found.add(_form(access, line, env, loops))
        elif any(isinstance(n, Access) and n.name in tensors for n in text.walk(line)):
            found.add(id(line))  # anywhere: equal to nothing


def _form(access: Access, line: Copy, env: Mapping[str, Dim], loops: tuple[Any, ...]) -> Any:
    extents = {a.name: substitute(a.extent, env) for a in line.axes}
    order = [a.name for i in access.index for a in line.axes if a.name in symbols(i)]
    short = {name: symbol(f"axis{n}") for n, name in enumerate(dict.fromkeys(order))}
    index = tuple(substitute(i, {**env, **short}) for i in access.index)
    return loops, index, tuple(extents[n] for n in short)


# -- in Ascend C -------------------------------------------------------------------------------------------------------
USER_FLAGS = 11  # ids 0 to 10; SyncAll has the others
LAST_PIPE = {CUBE: "PIPE_FIX", VECTOR: "PIPE_MTE3"}  # what leaves for global memory, after all that led to it


@dataclass(frozen=True)
class Flags:
    """Cross-core flags from `first` on: one for each unit to meet, one for each to tell the other."""

    first: int

    @property
    def enough(self) -> bool:
        return self.first + 4 <= USER_FLAGS

    def arrive(self, unit: str, wait: Wait) -> list[str]:
        """What a unit's cores say when their part is done."""
        if Edge(unit, unit) not in wait.closed():
            return []
        return [f"CrossCoreSetFlag<0, {LAST_PIPE[unit]}>({self._meeting(unit)});"]

    def proceed(self, unit: str, wait: Wait) -> list[str]:
        """What a unit's cores wait for; those that others wait for tell them."""
        other = VECTOR if unit == CUBE else CUBE
        lines = []
        if Edge(unit, unit) in wait.closed():
            lines.append(f"CrossCoreWaitFlag({self._meeting(unit)});")
        if Edge(unit, other) in wait.edges:
            lines.append(f"CrossCoreSetFlag<2, {LAST_PIPE[unit]}>({self._telling(unit)});")
        if Edge(other, unit) in wait.edges:
            lines.append(f"CrossCoreWaitFlag({self._telling(other)});")
        return lines

    def _meeting(self, unit: str) -> int:
        return self.first + (unit == CUBE)

    def _telling(self, unit: str) -> int:
        return self.first + 2 + (unit == CUBE)
