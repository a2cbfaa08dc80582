"""Bytes that a Program moves to and from global memory, derived from its loops and copies without running it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofusion.dims import Dim, evaluate, product
from autofusion.errors import ArgumentError
from autofusion.kernel.ir import Access, Copy, Gather, Kernel, Param
from autofusion.target import GM
from autofusion.tile.count import Walk
from autofusion.tile.ir import Program, Put, Take


@dataclass(frozen=True)
class Traffic:
    """Bytes read from and written to global memory; `intermediate`: the part that is workspace's and rings'."""

    read: int = 0
    written: int = 0
    intermediate: int = 0

    @property
    def total(self) -> int:
        return self.read + self.written

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.read + other.read, self.written + other.written, self.intermediate + other.intermediate)


def gm_bytes(program: Program, sizes: Mapping[str, int] | None = None) -> Traffic:
    """The bytes of one run, as the interpreter counts them. `sizes`: open extents; ArgumentError without."""
    require(program, sizes)
    count = _Bytes(program)
    for step in program.steps:
        for body in step.bodies:
            count.count(body.body, sizes or {})
    return Traffic(count.read, count.written, count.intermediate)


def require(program: Program, sizes: Mapping[str, int] | None) -> None:
    """Raises ArgumentError for an open extent without a size."""
    missing = [name for name in program.symbols if name not in (sizes or {})]
    if missing:
        raise ArgumentError(f"the program has the open extent {missing[0]}: give its size")


def compulsory(kernel: Kernel | Program, sizes: Mapping[str, int] | None = None) -> int:
    """Every byte of every parameter once: what no schedule can go below."""
    return sum(int(evaluate(product(p.shape), sizes or {})) * p.dtype.size for p in kernel.params)


def ends_of(line: Any) -> tuple[str, str] | None:
    """(source, target) of a line that moves data."""
    if isinstance(line, Copy):
        return (line.source.name, line.target.name) if isinstance(line.source, Access) else None
    if isinstance(line, Gather):
        return line.source.name, line.target.name
    if isinstance(line, Put):
        return line.buffer, line.ring
    return (line.ring, line.buffer) if isinstance(line, Take) else None


def moved_bytes(program: Program, line: Any) -> Dim | None:
    """The bytes that a line moves to or from global memory; None for none."""
    ends = ends_of(line)
    if ends is None or GM not in map(program.space_of, ends):
        return None
    source, target = ends
    counted = program.tensors[source if program.space_of(source) == GM else target]
    if isinstance(line, Put | Take):
        return product(program.tensors[line.ring].shape) * program.tensors[line.ring].dtype.size
    return product(a.extent for a in line.axes) * counted.dtype.size


class _Bytes(Walk):
    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.read = self.written = self.intermediate = 0

    def sizes(self, line: Any) -> tuple[Dim, ...]:
        size = moved_bytes(self.program, line)
        return () if size is None else (size,)

    def add(self, line: Any, sums: tuple[int, ...]) -> None:
        ends = ends_of(line)
        assert ends is not None
        (size,), (source, target) = sums, ends
        if self.program.space_of(source) == GM:
            self.read += size
            self.intermediate += size * (not isinstance(self.program.tensors[source], Param))
        if self.program.space_of(target) == GM:
            self.written += size
            self.intermediate += size * (not isinstance(self.program.tensors[target], Param))
