"""A block of a contraction's result and its register tiles, and how a tile's sums leave: row by row, or turned where
the result is contiguous along the rows; to memory, or to a few lines near the core that an epilogue reads."""

from __future__ import annotations

from dataclasses import dataclass

from autofusion.dtypes import DType
from autofusion.kernel.ir import Access, Statement
from autofusion.targets.cpu.clusters import Cluster
from autofusion.targets.cpu.facts import Facts
from autofusion.targets.cpu.loops import Memory, Ref
from autofusion.targets.vecmath.values import V

When = V | bool  # known now, or a condition at run time


@dataclass(frozen=True)
class Epilogue:
    """What follows a contraction elementwise on its result. `private`: nothing else reads the result."""

    cluster: Cluster
    private: bool


FIRST_ROW, FIRST_COLUMN = "tile_row", "tile_column"  # of the tile that an epilogue works on


@dataclass(frozen=True)
class Near:
    """The memory of a nest that finds the sums of a tile near."""

    memory: Memory
    name: str
    sums: Ref

    @property
    def facts(self) -> Facts:
        return self.memory.facts

    def ref(self, access: Access) -> Ref:
        return self.sums if access.name == self.name else self.memory.ref(access)

    def in_memory(self, name: str) -> bool:
        return self.memory.in_memory(name)

    def is_past(self, ref: Ref) -> bool:
        return self.memory.is_past(ref)

    def dtype(self, name: str) -> DType:
        return self.memory.dtype(name)

    def packing_area(self, size: int) -> V:
        return self.memory.packing_area(size)

    def record(self, statement: Statement, bad: V, position: V) -> None:
        self.memory.record(statement, bad, position)


@dataclass(frozen=True)
class Goal:
    """A block of the result: its first row and column, how many rows, whether sums are added to what it holds, and
    whether they are complete with this block of the depth."""

    row: V
    height: V
    column: V
    adds: When
    ends: When


@dataclass(frozen=True)
class Tile:
    """A register tile: its first row in the block, how many of `height` rows there are, its first column in the result
    and how many there are, the vectors' masks, where the right operand's vectors begin, and the next panel."""

    row: V
    rows: V
    height: int
    exact: bool
    column: V
    count: V
    masks: list[V | None]
    panel: list[V]
    following: V | None


@dataclass(frozen=True)
class Part:
    """A vector of sums as it leaves: where it goes, which lanes, and where in the lines near the core."""

    slot: V
    pointer: V
    mask: V | None
    near: int
