"""Sums over the runs of a Program's lines, derived from its loops without running them.

The walk carries the values that tile extents depend on as arrays over all enclosing iterations. After each loop header
only the distinct combinations are kept, with how often each occurs: thousands of equal tiles are one row.

    for t from 0 to 1000:  let n = min(8, 7995 - t*8)      n = [8, 3]  times = [999, 1]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autofusion.dims import Dim, evaluate, symbols
from autofusion.dtypes import Array
from autofusion.tile.ir import Guard, Let, Loop, Parallel, Program


class Walk:
    """Subclasses say what of a line is summed up, and take the sums."""

    def __init__(self, program: Program) -> None:
        self.program = program
        # By identity, with the body beside the answer: a body that is alive keeps its identity to itself.
        self._needs: dict[int, tuple[Sequence[Any], frozenset[str]]] = {}

    def sizes(self, line: Any) -> tuple[Dim, ...]:
        """What one run of a line adds to its sums; empty for a line that does not count."""
        raise NotImplementedError

    def add(self, line: Any, sums: tuple[int, ...]) -> None:
        """The sums over the runs of a line that have one enclosing combination of extents each."""
        raise NotImplementedError

    def count(self, body: Sequence[Any], sizes: Mapping[str, int]) -> None:
        """Count a step's body once. `sizes`: open extents."""
        env = {name: np.array([value], dtype=np.int64) for name, value in sizes.items()}
        self._lines(body, env, np.ones(1, dtype=np.int64))

    # -- what extents depend on --------------------------------------------------------------------------------------
    def needs(self, body: Sequence[Any]) -> frozenset[str]:
        """The names whose values decide what a body adds up to."""
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
            if self.counts(line.body):
                begin, end, _ = _range(line)
                found |= (inner - {line.var}) | symbols(begin) | symbols(end)
        elif isinstance(line, Guard):
            if self.counts(line.body):
                found |= self.needs(line.body) | symbols(line.smaller) | symbols(line.larger)
        else:
            for size in self.sizes(line):
                found |= symbols(size)

    def counts(self, body: Sequence[Any]) -> bool:
        """Whether any line of a body counts."""
        return any(
            self.counts(line.body) if isinstance(line, Loop | Parallel | Guard) else bool(self.sizes(line))
            for line in body
        )

    # -- the walk ----------------------------------------------------------------------------------------------------
    def _lines(self, body: Sequence[Any], env: dict[str, Array], times: Array) -> None:
        """Count a body that runs once per row of `env`, `times` each."""
        for position, line in enumerate(body):
            if isinstance(line, Let):
                if line.name in self.needs_after(body, position):
                    env = {**env, line.name: _column(line.value, env, times)}
            elif isinstance(line, Loop | Parallel):
                if self.counts(line.body):
                    self._loop(line, env, times)
            elif isinstance(line, Guard):
                if self.counts(line.body):
                    ran = times * _column(line.count, env, times)
                    self._lines(line.body, *_distinct(env, ran, self.needs(line.body)))
            else:
                sizes = self.sizes(line)
                if sizes:
                    self.add(line, tuple([int((_column(size, env, times) * times).sum()) for size in sizes]))

    def needs_after(self, body: Sequence[Any], position: int) -> set[str]:
        """The names that the lines behind `position` depend on."""
        found: set[str] = set()
        for line in reversed(body[position + 1 :]):
            self._add_needs(line, found)
        return found

    def _loop(self, line: Loop | Parallel, env: dict[str, Array], times: Array) -> None:
        begin, end, step = _range(line)
        first = _column(begin, env, times)
        trips = np.maximum(0, -((first - _column(end, env, times)) // step))
        if line.var not in self.needs(line.body):
            self._lines(line.body, *_distinct(env, times * trips, self.needs(line.body)))
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
        self._lines(rest, *_distinct(inner, repeated, self.needs(rest)))


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
