"""What a Program costs on one core, in microseconds, derived from its loops and statements without running it.

A step takes as long as its elementwise work or as what it moves, whichever is more, and as long as its contractions,
whose operands are packed before they are multiplied. Arithmetic is counted in whole vectors along the axis that
accesses are contiguous along; bytes by what holds them. Costs only rank: no result ever depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from autofusion.dims import Dim, Expr, add, ceildiv, coefficient_of, evaluate, minimum, multiply, product, symbols
from autofusion.kernel.ir import Access, Contract, Copy, Gather, Map, Scan, accesses, reduced_of
from autofusion.ops import TABLE
from autofusion.target import GM, Target
from autofusion.tile.count import Walk
from autofusion.tile.ir import Let, Program, Put, Step, Take, statements
from autofusion.tile.traffic import ends_of, moved_bytes, require

ROWS = 12  # of a register tile: each element of the columns' operand is read for so many rows at once


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
        self.again = 0.0
        self.bytes: dict[str, list[float]] = {}
        loads = [s for b in step.bodies for s in statements(b.body) if isinstance(s, Copy) and self._is_load(s)]
        self._loads = {load.target.name: load for load in loads}

    # -- what a line adds ------------------------------------------------------------------------------------------
    def sizes(self, line: Any) -> tuple[Dim, ...]:
        """Vectors of a statement's iteration space, or multiply-adds; runs of its innermost loop; bytes moved."""
        if isinstance(line, Let):
            return ()
        if isinstance(line, Put | Take):
            moved = moved_bytes(self.program, line)
            return () if moved is None else (0, 0, moved)
        axes = (*line.axes, *reduced_of(line))
        lanes = self._lanes(line)
        if isinstance(line, Contract):
            return self._product_sizes(line, lanes)
        inner = self._inner(line)
        outer = product(a.extent for a in axes if a.name != inner)
        vectors = product(ceildiv(a.extent, lanes) for a in axes if a.name == inner)
        moved = moved_bytes(self.program, line)
        return multiply(outer, vectors), outer, 0 if moved is None else moved

    def _product_sizes(self, line: Contract, lanes: int) -> tuple[Dim, ...]:
        """Multiply-adds, with columns in whole vectors; elements that are read again for each tile of rows, or are
        added to or packed; none from global memory. Rows, a convolution's filters, say, may be taken for columns where
        several axes are summed over."""
        axes = {a.name: a.extent for a in (*line.axes, *line.reduced)}
        columns = str(line.target.index[-1]) if line.target.index else ""
        across = next((o for o in (line.right, line.left) if any(columns in symbols(i) for i in o.index)), line.right)
        own = {name for index in across.index for name in symbols(index)} | {a.name for a in line.reduced}
        free = [name for name in axes if name not in own]
        chosen = [columns, *(free if len(line.reduced) > 1 else [])]
        rows = product(axes[name] for name in free)
        again = multiply(product(extent for name, extent in axes.items() if name in own), ceildiv(rows, ROWS))
        if line.accumulate:
            again = add(again, multiply(2, product(a.extent for a in line.axes)))
        return reduce(minimum, (self._in_vectors(axes, name, lanes) for name in chosen)), again, 0

    @staticmethod
    def _in_vectors(axes: Mapping[str, Dim], columns: str, lanes: int) -> Dim:
        """The product of all extents, that of the columns in whole vectors."""
        whole = {columns: multiply(ceildiv(axes[columns], lanes), lanes)} if columns in axes else {}
        return product({**axes, **whole}.values())

    def add(self, line: Any, sums: tuple[int, ...]) -> None:
        points, rows, moved = sums
        if isinstance(line, Contract):
            self.products += points
            self.again += rows * self.program.tensors[line.right.name].dtype.size
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
        scores = {a.name: (sum(self._steps(line, a.name)), n) for n, a in enumerate(axes)}
        return max(scores, key=lambda name: scores[name], default="")

    def _steps(self, line: Any, axis: str) -> list[int]:
        """How each access of a line moves along the axis; what was loaded is read where it lies."""
        return [self._moves(access, axis) for access in accesses(line)]

    def _moves(self, access: Access, axis: str) -> int:
        load = self._loads.get(access.name)
        if load is None:
            return _step(access, axis)
        source, places = load.source, zip(load.target.index, access.index, strict=True)
        assert isinstance(source, Access)
        own = [str(name) for name, at in places if str(at) == axis]
        return sum([_step(source, name) for name in own]) if own else _step(access, axis)

    def _is_load(self, line: Copy) -> bool:
        return isinstance(line.source, Access) and self.program.space_of(line.source.name) == GM

    def _weight(self, line: Any) -> float:
        """Operations a vector costs."""
        inner = self._inner(line)
        scattered = sum(step < 0 for step in self._steps(line, inner)) * self._lanes(line)
        if isinstance(line, Copy):
            return 0.0 if self._is_load(line) else float(scattered)
        if isinstance(line, Map):
            return max(TABLE.get(line.op).flops, 0.25) + scattered
        if isinstance(line, Gather):
            chosen = isinstance(line.position, Access) and self._moves(line.position, inner) != 0
            return 2.0 + self._lanes(line) * (2 if chosen else 0)
        return (8.0 if isinstance(line, Scan) else 2.0) + scattered

    # -- microseconds ------------------------------------------------------------------------------------------------
    def cost(self, sizes: Mapping[str, int]) -> Cost:
        target = self.target
        vectors = target.lane_bytes / 4
        computing = self.operations * vectors / target.rate
        multiplying = max(self.products / target.contract_rate, self.again / target.near_bandwidth)
        held = {name: self._held(name, sizes) for name in self.bytes}
        near = sum(held.values()) <= target.onchip_bytes
        moving = 0.0
        for name, (read, written) in self.bytes.items():
            fast = near or held[name] <= target.onchip_bytes // 2
            moving += (read + written) / (target.near_bandwidth if fast else target.bandwidth)
        return Cost(computing, multiplying, moving, multiplying + max(computing, moving))

    def _held(self, name: str, sizes: Mapping[str, int]) -> int:
        tensor = self.program.tensors[name]
        return int(evaluate(product(tensor.shape), sizes)) * tensor.dtype.size


def _step(access: Access, axis: str) -> int:
    """1 where an access is contiguous along the axis, in panels at least, 0 where it does not move, -2 where it
    jumps."""
    if not access.index:
        return 0
    *rest, last = (coefficient_of(index, axis) for index in access.index)
    if any(isinstance(step, Expr) or step for step in rest):
        return -2
    return 0 if last == 0 else -2 if isinstance(last, Expr) or (last is not None and last != 1) else 1
