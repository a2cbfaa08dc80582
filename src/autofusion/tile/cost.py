"""What a Program costs on one core, in microseconds, derived from its loops and statements without running it.

A step takes as long as its arithmetic or as what it moves, whichever is more, and a share of the lesser. Arithmetic is
counted in whole vectors along the axis that accesses are contiguous along; bytes by what holds them. Costs only
rank: no result ever depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofusion.dims import Dim, ceildiv, coefficient_of, evaluate, multiply, product
from autofusion.kernel.ir import Access, Contract, Copy, Gather, Map, Scan, accesses, reduced_of
from autofusion.ops import TABLE
from autofusion.target import GM, Target
from autofusion.tile.count import Walk
from autofusion.tile.ir import Let, Program, Put, Step, Take
from autofusion.tile.traffic import ends_of, moved_bytes, require


@dataclass(frozen=True)
class Cost:
    """Microseconds of a Program on one core: `computing` elementwise work, `multiplying` contractions, `moving` bytes
    from and to global memory; `total`: all of it, as far as it does not overlap."""

    computing: float = 0.0
    multiplying: float = 0.0
    moving: float = 0.0
    total: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.computing + other.computing,
            self.multiplying + other.multiplying,
            self.moving + other.moving,
            self.total + other.total,
        )


def cost(program: Program, target: Target, sizes: Mapping[str, int] | None = None) -> Cost:
    """What one run costs. `sizes`: open extents; ArgumentError without."""
    require(program, sizes)
    known = dict(sizes or {})
    total = Cost()
    for step in program.steps:
        for body in step.bodies:
            sums = _Sums(program, target, step)
            sums.count(body.body, known)
            total += sums.cost(known)
    return total


class _Sums(Walk):
    """What one unit does in a step: vector operations, multiply-adds, bytes by the tensor in global memory."""

    def __init__(self, program: Program, target: Target, step: Step) -> None:
        super().__init__(program)
        self.target = target
        self.operations = 0.0
        self.products = 0.0
        self.bytes: dict[str, list[float]] = {}
        self._weights: dict[int, tuple[Any, float]] = {}

    # -- what a line adds ------------------------------------------------------------------------------------------
    def sizes(self, line: Any) -> tuple[Dim, ...]:
        """Vectors of a statement's iteration space, or multiply-adds; runs of its innermost loop; bytes moved."""
        if isinstance(line, Let):
            return ()
        if isinstance(line, Put | Take):
            moved = moved_bytes(self.program, line)
            return () if moved is None else (0, 0, moved)
        axes = (*line.axes, *reduced_of(line))
        if isinstance(line, Contract):
            return product(a.extent for a in axes), 0, 0
        lanes = self._lanes(line)
        inner = self._inner(line)
        outer = product(a.extent for a in axes if a.name != inner)
        vectors = product(ceildiv(a.extent, lanes) for a in axes if a.name == inner)
        moved = moved_bytes(self.program, line)
        return multiply(outer, vectors), outer, 0 if moved is None else moved

    def add(self, line: Any, sums: tuple[int, ...]) -> None:
        points, rows, moved = sums
        if isinstance(line, Contract):
            self.products += points
        elif not isinstance(line, Put | Take):
            weight = self._weight(line)
            self.operations += points * weight + rows * (self.target.row_ops if weight else 0)
        if moved:
            ends = ends_of(line)
            assert ends is not None
            for name, position in zip(ends, (0, 1), strict=True):
                if self.program.space_of(name) == GM:
                    self.bytes.setdefault(name, [0.0, 0.0])[position] += moved

    def _lanes(self, line: Any) -> int:
        size = max(self.program.tensors[access.name].dtype.size for access in accesses(line))
        return max(1, self.target.lane_bytes // max(size, 4))

    def _inner(self, line: Any) -> str:
        """The axis that most accesses are contiguous along."""
        axes = (*line.axes, *reduced_of(line))
        scores = {a.name: (sum(_step(access, a.name) for access in accesses(line)), n) for n, a in enumerate(axes)}
        return max(scores, key=lambda name: scores[name], default="")

    def _weight(self, line: Any) -> float:
        """Operations a vector costs."""
        inner = self._inner(line)
        scattered = sum(_step(access, inner) < 0 for access in accesses(line)) * self._lanes(line)
        if isinstance(line, Copy):
            return float(scattered)
        if isinstance(line, Map):
            return max(TABLE.get(line.op).flops, 0.25) + scattered
        if isinstance(line, Gather):
            chosen = isinstance(line.position, Access) and _step(line.position, inner) != 0
            return 2.0 + self._lanes(line) * (2 if chosen else 0)
        return (8.0 if isinstance(line, Scan) else 2.0) + scattered

    # -- microseconds ------------------------------------------------------------------------------------------------
    def cost(self, sizes: Mapping[str, int]) -> Cost:
        target = self.target
        vectors = target.lane_bytes / 4
        computing = self.operations * vectors / target.rate
        multiplying = self.products / target.contract_rate
        held = {name: self._held(name, sizes) for name in self.bytes}
        near = sum(held.values()) <= target.onchip_bytes
        moving = 0.0
        for name, (read, written) in self.bytes.items():
            fast = near or held[name] <= target.onchip_bytes // 2
            moving += (read + written) / (target.near_bandwidth if fast else target.bandwidth)
        busy = computing + multiplying
        return Cost(computing, multiplying, moving, max(busy, moving))

    def _held(self, name: str, sizes: Mapping[str, int]) -> int:
        tensor = self.program.tensors[name]
        return int(evaluate(product(tensor.shape), sizes)) * tensor.dtype.size


def _step(access: Access, axis: str) -> int:
    """1 where an access is contiguous along the axis, 0 where it does not move, -2 where it jumps."""
    if not access.index:
        return 0
    *rest, last = access.index
    if any(coefficient_of(index, axis) != 0 for index in rest):
        return -2
    found = coefficient_of(last, axis)
    return 0 if found == 0 else 1 if found == 1 else -2
