"""Bytes that a Program moves to and from global memory, derived from its loops and copies without running it.

The walk carries the values that tile extents depend on as arrays over all enclosing iterations. After each loop header
only the distinct combinations are kept, with how often each occurs: thousands of equal tiles are one row.

    for t from 0 to 1000:  let n = min(8, 7995 - t*8)      n = [8, 3]  times = [999, 1]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autofusion.dims import Dim, evaluate, product, symbols
from autofusion.dtypes import Array
from autofusion.errors import ArgumentError
from autofusion.kernel.ir import Access, Copy, Gather, Kernel, Param
from autofusion.target import GM
from autofusion.tile.ir import Guard, Let, Loop, Parallel, Program, Put, Take


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
    missing = [name for name in program.symbols if name not in (sizes or {})]
    if missing:
        raise ArgumentError(f"the program has the open extent {missing[0]}: give its size")
    count = _Count(program)
    env = {name: np.array([value], dtype=np.int64) for name, value in (sizes or {}).items()}
    for step in program.steps:
        for body in step.bodies:
            count.lines(body.body, env, np.ones(1, dtype=np.int64))
    return Traffic(count.read, count.written, count.intermediate)


def compulsory(kernel: Kernel | Program, sizes: Mapping[str, int] | None = None) -> int:
    """Every byte of every parameter once: what no schedule can go below."""
    return sum(int(evaluate(product(p.shape), sizes or {})) * p.dtype.size for p in kernel.params)


class _Count:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.read = self.written = self.intermediate = 0
        # By identity, with the body beside the answer: a body that is alive keeps its identity to itself.
        self._needs: dict[int, tuple[Sequence[Any], frozenset[str]]] = {}

    # -- what extents depend on --------------------------------------------------------------------------------------
    def needs(self, body: Sequence[Any]) -> frozenset[str]:
        """The names whose values decide how many bytes a body moves."""
        if id(body) not in self._needs:
            found: set[str] = set()
            for line in reversed(body):
                self._add_needs(line, found)
            self._needs[id(body)] = body, frozenset(found)
        return self._needs[id(body)][1]

    def _add_needs(self, line: Any, found: set[str]) -> None:
        if isinstance(line, Let):
            if line.name in found:
                found.discard(line.name)
                found |= symbols(line.value)
        elif isinstance(line, Loop | Parallel):
            inner = self.needs(line.body)
            if self._moves(line.body):
                begin, end, _ = _range(line)
                found |= (inner - {line.var}) | symbols(begin) | symbols(end)
        elif isinstance(line, Guard):
            if self._moves(line.body):
                found |= self.needs(line.body) | symbols(line.smaller) | symbols(line.larger)
        else:
            size = self._size(line)
            found |= symbols(size) if size is not None else set()

    def _moves(self, body: Sequence[Any]) -> bool:
        return any(
            self._moves(line.body) if isinstance(line, Loop | Parallel | Guard) else self._size(line) is not None
            for line in body
        )

    def _size(self, line: Any) -> Dim | None:
        """The bytes that a line moves to or from global memory; None for none."""
        ends = self._ends(line)
        if ends is None or GM not in map(self.program.space_of, ends):
            return None
        source, target = ends
        counted = self.program.tensors[source if self.program.space_of(source) == GM else target]
        if isinstance(line, Put | Take):
            return product(self.program.tensors[line.ring].shape) * self.program.tensors[line.ring].dtype.size
        return product(a.extent for a in line.axes) * counted.dtype.size

    @staticmethod
    def _ends(line: Any) -> tuple[str, str] | None:
        """(source, target) of a line that moves data."""
        if isinstance(line, Copy):
            return (line.source.name, line.target.name) if isinstance(line.source, Access) else None
        if isinstance(line, Gather):
            return line.source.name, line.target.name
        if isinstance(line, Put):
            return line.buffer, line.ring
        return (line.ring, line.buffer) if isinstance(line, Take) else None

    # -- the walk ----------------------------------------------------------------------------------------------------
    def lines(self, body: Sequence[Any], env: dict[str, Array], times: Array) -> None:
        """Count a body that runs once per row of `env`, `times` each."""
        for position, line in enumerate(body):
            if isinstance(line, Let):
                if line.name in self.needs_after(body, position):
                    env = {**env, line.name: _column(line.value, env, times)}
            elif isinstance(line, Loop | Parallel):
                if self._moves(line.body):
                    self._loop(line, env, times)
            elif isinstance(line, Guard):
                if self._moves(line.body):
                    ran = times * _column(line.count, env, times)
                    self.lines(line.body, *_distinct(env, ran, self.needs(line.body)))
            else:
                size = self._size(line)
                if size is not None:
                    self._add(line, int((_column(size, env, times) * times).sum()))

    def needs_after(self, body: Sequence[Any], position: int) -> set[str]:
        found: set[str] = set()
        for line in reversed(body[position + 1 :]):
            self._add_needs(line, found)
        return found

    def _loop(self, line: Loop | Parallel, env: dict[str, Array], times: Array) -> None:
        begin, end, step = _range(line)
        first = _column(begin, env, times)
        trips = np.maximum(0, -((first - _column(end, env, times)) // step))
        if line.var not in self.needs(line.body):
            self.lines(line.body, *_distinct(env, times * trips, self.needs(line.body)))
            return
        within = np.arange(int(trips.sum()), dtype=np.int64) - np.repeat(np.cumsum(trips) - trips, trips)
        inner = {name: np.repeat(column, trips) for name, column in env.items()}
        inner[line.var] = np.repeat(first, trips) + within * step
        repeated = np.repeat(times, trips)
        lets = 0  # the offsets and extents of a tile come first: what follows depends on the extents alone
        for let in line.body:
            if not isinstance(let, Let):
                break
            if let.name in self.needs_after(line.body, lets):
                inner[let.name] = _column(let.value, inner, repeated)
            lets += 1
        rest = line.body[lets:]
        self.lines(rest, *_distinct(inner, repeated, self.needs(rest)))

    def _add(self, line: Any, size: int) -> None:
        ends = self._ends(line)
        assert ends is not None
        source, target = ends
        if self.program.space_of(source) == GM:
            self.read += size
            self.intermediate += size * (not isinstance(self.program.tensors[source], Param))
        if self.program.space_of(target) == GM:
            self.written += size
            self.intermediate += size * (not isinstance(self.program.tensors[target], Param))


def _range(line: Loop | Parallel) -> tuple[Dim, Dim, int]:
    return (0, line.count, 1) if isinstance(line, Parallel) else (line.begin, line.end, line.step)


def _column(dim: Dim, env: Mapping[str, Array], times: Array) -> Array:
    """A dim for every row."""
    return np.broadcast_to(np.asarray(evaluate(dim, env), dtype=np.int64), times.shape)


def _distinct(env: dict[str, Array], times: Array, wanted: frozenset[str]) -> tuple[dict[str, Array], Array]:
    """The distinct rows of the wanted columns, and how often each occurs."""
    names = sorted(wanted & set(env))
    if not names:
        return {}, np.array([times.sum()], dtype=np.int64)
    rows, where = np.unique(np.stack([env[n] for n in names], axis=1), axis=0, return_inverse=True)
    counts = np.zeros(len(rows), dtype=np.int64)
    np.add.at(counts, where.reshape(-1), times)
    return {name: rows[:, i] for i, name in enumerate(names)}, counts
