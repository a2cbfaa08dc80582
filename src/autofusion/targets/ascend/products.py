"""Schedules for contractions on the cube: the tiles that cost the least time, if their consumers can hold them."""

from __future__ import annotations

from collections.abc import Iterator

from autofusion.autofuse.products import Product, Tiling, block_of, lengths, tilings
from autofusion.dims import Dim, Expr, product, symbols
from autofusion.kernel.ir import Access, Contract, Copy, Role, Statement, operands_of, reduced_of
from autofusion.kernel.schedule import Analysis, Schedule, Tile, estimate
from autofusion.kinds import Kind
from autofusion.target import Target
from autofusion.targets.ascend.layout import BLOCK

CHUNKS = 1 << 16  # as many as there are tiles: cores take equal numbers of them
VECTOR_CORES = 2  # of an AI core
INSTRUCTION_US = 0.03  # assumed: what a vector instruction takes beside its elements
SHARES = (1.0, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # of the vector unit's memory


def candidates(analysis: Analysis, target: Target) -> Iterator[Schedule]:
    """Schedules by the time of the largest contraction, the fastest first; each of less on-chip memory than the last.

    The first does not count what is on-chip: a result that leaves by the copy path alone needs nothing there.
    """
    chosen = _Products(analysis, target)
    seen: set[Tiling] = set()
    for limit in (None, *(int(target.onchip_bytes * share) for share in SHARES)):
        tiling = next((t for t in chosen.tilings if limit is None or chosen.held(t) <= limit), None)
        if tiling is not None and tiling not in seen:
            seen.add(tiling)
            yield chosen.schedule(tiling)


class _Products:
    """The largest contraction of a kernel, and the tilings of its result, fastest first."""

    def __init__(self, analysis: Analysis, target: Target) -> None:
        self.analysis = analysis
        self.target = target
        self.main = max(analysis.contractions, key=lambda s: _points(s))
        self.rows, self.columns = (str(i) if isinstance(i, Expr) else "" for i in _sides(self.main))
        others = [n for n in analysis.cut if n not in (self.rows, self.columns)]
        self.shape = Product(
            estimate(product(analysis.extents[n] for n in others)),
            self._extent(self.rows),
            self._extent(self.columns),
            estimate(product(a.extent for a in self.main.reduced)),
            max((p.dtype.size for p in analysis.kernel.params if p.name in _operands(self.main)), default=4),
        )
        self.others = others
        sides = self._lengths(self.rows, self.columns), self._lengths(self.columns, self.rows)
        found = tilings(target, self.shape, *sides)
        self.tilings = sorted(filter(self._apart, found), key=self._microseconds)
        self._held: dict[Tiling, int] = {}

    def _extent(self, axis: str) -> int:
        """At least 1, as a tile of an empty product is."""
        return max(estimate(self.analysis.extents[axis]), 1) if axis else 1

    def _lengths(self, axis: str, other: str) -> list[int]:
        """Lengths of tiles along an axis: all of it, where tiles cannot be cut along it."""
        extent = self._extent(axis)
        return lengths(extent, other not in self.analysis.cut) if axis in self.analysis.cut else [extent]

    def _apart(self, tiling: Tiling) -> bool:
        """Whether no two tiles write one block of the result, so that any core can take any of them."""
        sizes = [p.dtype.size for p in self.analysis.kernel.params if p.role is Role.OUT]
        row, part = (columns * min(sizes, default=1) for columns in (self.shape.columns, tiling.columns))
        whole = tiling.columns == self.shape.columns or (row % BLOCK == 0 and part % BLOCK == 0)
        return whole and (tiling.rows == self.shape.rows or tiling.rows * row % BLOCK == 0)

    def _microseconds(self, tiling: Tiling) -> float:
        """The cube's time and the vector cores' overlap, but for the last tile's."""
        tiles = self._tiles(tiling)
        own = (s for s in self.analysis.kernel.statements if not isinstance(s, Contract | Copy))
        one = sum(self._consumed(statement, tiles) for statement in own)
        counts = [-(-estimate(self.analysis.extents[name]) // size) for name, size in tiles.items()]
        rounds = -(-estimate(product(counts)) // (VECTOR_CORES * self.target.cores))
        return max(tiling.microseconds, rounds * one) + one

    def _consumed(self, statement: Statement, tiles: dict[str, int]) -> float:
        """Microseconds of a statement on a tile: one instruction, or one a row where its operands are not alike."""
        axes = {a.name for a in (*statement.axes, *reduced_of(statement))}
        *rows, last = [self.analysis.extent_in(a.name, tiles) for a in (*statement.axes, *reduced_of(statement))] or [1]
        reads = [o for o in operands_of(statement) if isinstance(o, Access)]
        alike = all({n for i in o.index for n in symbols(i)} == axes for o in (*reads, statement.target))
        count = estimate(product(rows))
        return (1 if alike else count) * INSTRUCTION_US + count * last / self.target.rate

    def _tiles(self, tiling: Tiling) -> dict[str, int]:
        wanted = {self.rows: tiling.rows, self.columns: tiling.columns}
        return {name: wanted.get(name, 1) for name in self.analysis.cut}

    def held(self, tiling: Tiling) -> int:
        """Bytes in the vector unit's memory: the values of a tile, and the blocks that arrive."""
        if tiling not in self._held:
            self._held[tiling] = self.analysis.peak_bytes(self._tiles(tiling)) + self._passing(tiling)
        return self._held[tiling]

    def _passing(self, tiling: Tiling) -> int:
        unit, vector = self.target.unit_for(Kind.CONTRACT), self.target.vector
        rows, columns, _ = block_of(self.target, tiling.rows, tiling.columns, self.shape.size)
        slots = 3 if unit is not None and (unit.result, vector.left) in self.target.paths else 1
        return slots * rows * columns * max(4, self.main.dtype.size)

    def schedule(self, tiling: Tiling) -> Schedule:
        """A block a tile, or as much of it as the cube holds."""
        block = block_of(self.target, tiling.rows, tiling.columns, self.shape.size)
        outer = tuple(Tile(name, size) for name, size in self._tiles(tiling).items())
        return Schedule(outer, (), CHUNKS, block)


def _points(statement: Contract) -> int:
    return estimate(product(a.extent for a in (*statement.axes, *statement.reduced)))


def _sides(statement: Contract) -> tuple[Dim, Dim]:
    index = (0, 0, *statement.target.index)
    return index[-2], index[-1]


def _operands(statement: Contract) -> tuple[str, str]:
    return statement.left.name, statement.right.name
