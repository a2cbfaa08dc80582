"""On-chip memory: where each buffer of a Program lies in its space, by lifetime.

Time is the position of a line in its body. A buffer lives from its first use to its last; where it carries something
around a loop (it is used outside of it too, or read before it is written in it), it lives through the whole loop. The
slots of a ring live through their step. First fit: buffers by their start, each at the lowest free aligned offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autofusion.dims import evaluate, product
from autofusion.errors import ArgumentError
from autofusion.kernel.ir import Access, Contract, Fold, operands_of
from autofusion.placement import lowest_gap
from autofusion.target import GM, Target
from autofusion.tile.ir import Buffer, Guard, Let, Loop, Parallel, Program, Put, Ring, Step, Take


@dataclass(frozen=True)
class Lifetime:
    """A buffer from position `first` to `last`, both included, in the body of a unit (a ring belongs to no unit)."""

    name: str
    space: str
    size: int
    first: int
    last: int
    step: int
    unit: str | None

    def meets(self, other: Lifetime) -> bool:
        """Whether both may hold something at the same time. Bodies of one step run side by side."""
        if self.step != other.step:
            return False
        return self.unit != other.unit or (self.first <= other.last and other.first <= self.last)


@dataclass(frozen=True)
class Allocation:
    """`offsets` in bytes of buffers (and rings) by name, in their spaces; `bytes` in use at most, by space."""

    offsets: Mapping[str, int]
    bytes: Mapping[str, int]


@dataclass(frozen=True)
class Overflow:
    """A space that a program does not fit into."""

    space: str
    bytes: int
    capacity: int

    def __str__(self) -> str:
        return f"{self.space} holds {self.capacity} bytes, the program needs {self.bytes}"


def allocate(program: Program, target: Target, sizes: Mapping[str, int] | None = None) -> Allocation:
    """First-fit offsets of all on-chip buffers. `sizes`: open extents; ArgumentError where one is missing."""
    offsets: dict[str, int] = {}
    used = {space.name: 0 for space in target.spaces.values() if space.onchip}
    by_space: dict[str, list[Lifetime]] = {}
    for life in lifetimes(program, sizes or {}):
        by_space.setdefault(life.space, []).append(life)
    for space, lives in by_space.items():
        align = max(1, target.spaces[space].align)
        placed: list[tuple[int, Lifetime]] = []
        for life in sorted(lives, key=lambda each: (each.step, each.first, -each.size, each.name)):
            taken = sorted((at, at + other.size) for at, other in placed if life.meets(other))
            offset = lowest_gap(taken, life.size, align)
            placed.append((offset, life))
            offsets[life.name] = offset
            used[space] = max(used[space], offset + life.size)
    return Allocation(offsets, used)


def fits(program: Program, target: Target, sizes: Mapping[str, int] | None = None) -> Overflow | None:
    """None where the program's allocation fits every space; else the first that it overflows."""
    found = allocate(program, target, sizes)
    for space, size in found.bytes.items():
        capacity = target.spaces[space].bytes
        if capacity and size > capacity:
            return Overflow(space, size, capacity)
    return None


def lifetimes(program: Program, sizes: Mapping[str, int]) -> Iterator[Lifetime]:
    """The lifetime of every on-chip buffer and ring."""
    for number, step in enumerate(program.steps):
        for ring in step.rings:
            if ring.space != GM:
                yield Lifetime(ring.name, ring.space, ring.depth * _bytes(ring, sizes), 0, 0, number, None)
        for unit, spans in _spans(step):
            for name, (first, last) in spans.items():
                buffer = program.buffers.get(name)
                if buffer is not None and buffer.space != GM:
                    yield Lifetime(name, buffer.space, _bytes(buffer, sizes), first, last, number, unit)


def _bytes(tensor: Buffer | Ring, sizes: Mapping[str, int]) -> int:
    try:
        return int(evaluate(product(tensor.shape), sizes)) * tensor.dtype.size
    except KeyError as error:
        raise ArgumentError(f"buffer {tensor.name} has the open extent {error.args[0]}: give its size") from None


@dataclass(frozen=True)
class _Use:
    """A line at a position reads or writes a tensor."""

    at: int
    name: str
    reads: bool


def _spans(step: Step) -> Iterator[tuple[str, dict[str, tuple[int, int]]]]:
    """Per unit: the first and last position at which each tensor holds something."""
    for body in step.bodies:
        uses: list[_Use] = []
        loops: list[tuple[int, int]] = []  # ranges of `uses`, inner loops first
        _collect(body.body, uses, loops)
        spans: dict[str, tuple[int, int]] = {}
        for use in uses:
            first, _ = spans.get(use.name, (use.at, use.at))
            spans[use.name] = first, use.at
        for begin, end in loops:
            _carry(uses[begin:end], spans)
        yield body.unit, spans


def _collect(body: Sequence[Any], uses: list[_Use], loops: list[tuple[int, int]]) -> None:
    for line in body:
        if isinstance(line, Loop | Parallel):
            begin = len(uses)
            _collect(line.body, uses, loops)
            loops.append((begin, len(uses)))
        elif isinstance(line, Guard):
            _collect(line.body, uses, loops)
        elif not isinstance(line, Let):
            at = uses[-1].at + 1 if uses else 0
            uses += (_Use(at, name, reads) for name, reads in _touched(line))


def _touched(line: Any) -> list[tuple[str, bool]]:
    """(name, whether it is read) for every tensor of a line; reads first, as they happen first."""
    if isinstance(line, Put):
        return [(line.buffer, True)]
    if isinstance(line, Take):
        return [(line.buffer, False)]
    found = [(o.name, True) for o in operands_of(line) if isinstance(o, Access)]
    if isinstance(line, Fold | Contract) and line.accumulate:
        found.append((line.target.name, True))
    return [*found, (line.target.name, False)]


def _carry(inside: Sequence[_Use], spans: dict[str, tuple[int, int]]) -> None:
    """Widen to a loop the spans of what is used outside of it too, or read in it before it is written."""
    if not inside:
        return
    begin, end = inside[0].at, inside[-1].at
    first_use: dict[str, _Use] = {}
    for use in inside:
        first_use.setdefault(use.name, use)
    for name, use in first_use.items():
        first, last = spans[name]
        if first < begin or last > end or use.reads:
            spans[name] = min(first, begin), max(last, end)
