"""The contraction kernel: register tiles of rows times vectors of columns over packed blocks of both operands.

Loops, from the outside in, after the blocking of Goto and van de Geijn ("Anatomy of High-Performance Matrix
Multiplication", ACM TOMS 34(3), 2008):

    depth in blocks            of which a panel of columns stays in the first-level cache
      columns in blocks        the right operand's block is packed into panels
        rows in blocks         the left operand's block is packed
          panels of columns
            tiles of rows      `height * width` sums stay in registers over the depth of the block

An operand that is read too few times to pay for a copy is read where it lies. Rows past the end repeat the last one and
store it again with the same value; columns past the end are masked. Sums of a block are added to the target, block
after block, in order: the split is the schedule's, never the number of workers'.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autofusion.dims import Dim, coefficient_of
from autofusion.kernel.ir import Axis, Contract
from autofusion.target import Target
from autofusion.targets.cpu.dimension import emit_dim
from autofusion.targets.cpu.emit import Emitter, is_number
from autofusion.targets.cpu.lanes import MEMORY, REGISTER, load_contiguous, store_contiguous
from autofusion.targets.cpu.packing import ALIGN, PAD, Block, Packer, by_panels
from autofusion.targets.vecmath.values import V, vector

if TYPE_CHECKING:
    from autofusion.targets.cpu.loops import Memory, Ref

DEPTH, ROWS, COLUMNS = 384, 512, 512  # of a packed block, at most
STEPS = 16  # depth of a block where few rows stream the right operand: so many rows of it are read side by side
STREAMED = 4  # rows up to which they do
FEW_ROWS = 12  # up to here the right operand is read too few times to be worth packing
FEW_PANELS = 2  # up to here the left one is
MANY = 1 << 12  # an open extent, for choices
MEETING = 512  # bytes: rows so far apart, or a multiple, share the sets of a first-level cache
LATENCY = 8  # multiply-adds that a core needs in flight


@dataclass(frozen=True)
class Panels:
    """Columns in panels of `width` neighbours, `step` elements from one to the next."""

    width: int
    step: Dim


@dataclass(frozen=True)
class Roles:
    """The axes of a contraction by their role; `target` is contiguous along the columns. `panels`: how the right
    operand's columns lie where its constants were put in panels; `cut`: the left operand's depth lies in panels of
    whole vectors."""

    rows: Axis | None
    columns: Axis
    depth: Axis
    taps: tuple[Axis, ...]
    others: tuple[Axis, ...]
    left: Ref
    right: Ref
    target: Ref
    panels: Panels | None = None
    cut: bool = False

    def step(self, ref: Ref, axis: Axis | None) -> Dim:
        """The step of an operand along an axis, in elements."""
        if axis is None:
            return 0
        if self.panels is not None and ref is self.right and axis is self.columns:
            return self.panels.step
        if self.cut and ref is self.left and axis is self.depth:
            return 1
        step = coefficient_of(ref.offset, axis.name)
        assert step is not None
        return step


def register_tile(rows: int, columns: int, lanes: int, registers: int) -> tuple[int, int]:
    """Rows and vectors of a register tile: the fewest cycles for all of them on a core with two multiply-adds and two
    loads a cycle, each tile paying for its sums' way in and out; of equals the tallest, whose panels are narrow."""

    def cycles(height: int, width: int) -> float:
        step = max(height * width, height + width, LATENCY) / 2
        tiles = -(-rows // height) * -(-columns // (width * lanes))
        return tiles * (step + 0.5)

    tiles = [
        (height, width)
        for width in range(1, min(8, -(-columns // lanes)) + 1)
        for height in range(1, min(14, rows) + 1)
        if height * width + width + 1 <= registers
    ]
    return min(tiles, key=lambda tile: (cycles(*tile), -tile[0]))


def packing_bytes(statement: Contract, target: Target) -> int:
    """Scratch that the packed blocks of a contraction take at most."""
    widest = max((a.extent if isinstance(a.extent, int) else MANY for a in statement.axes), default=1)
    deepest = max((a.extent if isinstance(a.extent, int) else MANY for a in statement.reduced), default=1)
    size, depth, lanes = statement.dtype.size, min(deepest, DEPTH), target.lane_bytes // statement.dtype.size
    right = (depth + lanes) * (min(widest, COLUMNS) + 8 * lanes)
    left = max((min(widest, ROWS) + 1) * (depth + PAD + lanes), (depth + 1) * (min(widest, ROWS) + PAD + lanes))
    return size * (right + left) + 2 * ALIGN


class Gemm:
    """One contraction being written."""

    def __init__(
        self, e: Emitter, memory: Memory, statement: Contract, roles: Roles, values: dict[str, V], target: Target
    ) -> None:
        self.e = e
        self.memory = memory
        self.statement = statement
        self.roles = roles
        self.values = values | {a.name: e.i64(0) for a in statement.axes if a.extent == 1}
        self.scalar = REGISTER[statement.dtype]
        self.lanes = target.lane_bytes // statement.dtype.size
        registers = 32 if target.lane_bytes == 64 or "neon" in target.features else 16
        rows, columns = (_count(axis) for axis in (roles.rows, roles.columns))
        self.height, self.width = register_tile(rows, columns, self.lanes, registers)
        neighbours = roles.panels is not None or roles.step(roles.right, roles.columns) == 1
        converts = roles.right.dtype is not statement.dtype
        self.packs_right = roles.panels is None and (not neighbours or rows > (STREAMED if converts else FEW_ROWS))
        self.packs_left = self._packs_left(rows, columns)
        self.deepest = DEPTH
        if rows <= STREAMED and neighbours and not roles.cut:  # nothing is packed then
            self.deepest = STEPS if roles.panels is None else MANY
        self.packer = Packer(e, self.lanes, statement.dtype)

    def _packs_left(self, rows: int, columns: int) -> bool:
        """Whether the left operand is read often, and where it lies its rows would meet in few sets of the cache, its
        elements lie apart, or are of another type."""
        left, size = self.roles.left, self.statement.dtype.size
        if self.roles.cut:
            return True
        if rows <= self.height or columns <= FEW_PANELS * self.width * self.lanes:
            return False
        apart = self.roles.step(left, self.roles.rows)
        meets = not isinstance(apart, int) or apart * size % MEETING == 0
        return meets or left.dtype is not self.statement.dtype or self.roles.step(left, self.roles.depth) != 1

    def emit(self) -> None:
        e = self.e
        with ExitStack() as stack:
            for axis in self.roles.others:
                self.values[axis.name] = stack.enter_context(self._loop(axis))
            depth = emit_dim(e, self.roles.depth.extent, self.values)
            single = is_number(depth.ref) and int(depth.ref) <= self.deepest
            fresh = single and not self.roles.taps and not self.statement.accumulate
            if not fresh and not self.statement.accumulate:
                self.values |= {axis.name: e.i64(0) for axis in self.roles.taps}
                self._block(e.i64(0), e.i64(0), fresh=True)  # the sum of nothing
            for axis in self.roles.taps:
                self.values[axis.name] = stack.enter_context(self._loop(axis))
            for begin, size in self._blocks(depth, self.deepest):
                self._block(begin, size, fresh)

    def _loop(self, axis: Axis):  # type: ignore[no-untyped-def]
        return self.e.loop(self.e.i64(0), emit_dim(self.e, axis.extent, self.values), self.e.i64(1))

    def _blocks(self, extent: V, most: int) -> Iterator[tuple[V, V]]:
        """First and size of the blocks of an axis: of the only one, or inside a loop over them."""
        e = self.e
        if is_number(extent.ref) and int(extent.ref) <= most:
            yield e.i64(0), extent
            return
        with e.loop(e.i64(0), extent, e.i64(most)) as first:
            if is_number(extent.ref) and int(extent.ref) % most == 0:
                yield first, e.i64(most)
            else:
                left = e.sub(extent, first)
                yield first, e.select(e.cmp("icmp slt", left, e.i64(most)), left, e.i64(most))

    def _block(self, begin: V, size: V, fresh: bool) -> None:
        """One block of the depth, for all of the result. A block of nothing only stores zeros."""
        e, roles = self.e, self.roles
        columns = emit_dim(e, roles.columns.extent, self.values)
        rows = emit_dim(e, roles.rows.extent, self.values) if roles.rows is not None else e.i64(1)
        packs_right, packs_left = (packs and size.ref != "0" for packs in (self.packs_right, self.packs_left))
        panel = self.width * self.lanes
        widest, tallest = COLUMNS // panel * panel, ROWS // self.height * self.height
        area = self.memory.packing_area()
        left_area = e.gep(area, e.i64(self._right_bytes()), "i8")
        for column, width in self._blocks(columns, widest) if packs_right else [(e.i64(0), columns)]:
            right = self._operand(roles.right, begin, roles.columns, column)
            if packs_right:
                right = self.packer.panels(right, area, width, size, self.width)
            for row, height in self._blocks(rows, tallest) if packs_left else [(e.i64(0), rows)]:
                left = self._operand(roles.left, begin, roles.rows, row)
                if packs_left:
                    left = self.packer.lines(left, left_area, height, size)
                target = _Target(row, height, column)
                by_panels(
                    e, width, self.width, self.lanes,
                    lambda at, masks: self._rows(target, left, right, at, masks, size, fresh),  # noqa: B023
                )  # fmt: skip

    def _right_bytes(self) -> int:
        """Where the left operand's copy begins."""
        columns = min(_count(self.roles.columns), COLUMNS) + self.width * self.lanes
        depth = min(_count(self.roles.depth), DEPTH) + self.lanes
        return -(-columns * depth * self.statement.dtype.size // ALIGN) * ALIGN

    def _operand(self, ref: Ref, begin: V, axis: Axis | None, first: V) -> Block:
        """A block of an operand where it lies."""
        e, depth = self.e, self.roles.depth
        at = self.values | {depth.name: begin} | ({axis.name: first} if axis is not None else {})
        start = e.gep(ref.base, emit_dim(e, ref.offset, at), MEMORY[ref.dtype])
        along, across = (emit_dim(e, self.roles.step(ref, a), self.values) for a in (depth, axis))
        if self.roles.cut and ref is self.roles.left:

            def address(down: V, right: V) -> V:
                moved = {depth.name: e.add(begin, down)}
                moved |= {axis.name: e.add(first, right)} if axis is not None else {}
                return e.gep(ref.base, emit_dim(e, ref.offset, self.values | moved), MEMORY[ref.dtype])

            return Block(start, along, across, ref.dtype, self.statement.dtype, address=address)
        width = self.roles.panels.width if ref is self.roles.right and self.roles.panels is not None else 0
        return Block(start, along, across, ref.dtype, self.statement.dtype, width)

    # -- the micro-kernel --------------------------------------------------------------------------------------------
    def _rows(
        self, target: _Target, left: Block, right: Block, at: V, masks: list[V | None], size: V, fresh: bool
    ) -> None:
        """All rows of one panel of columns."""
        e = self.e
        panel = [right.at(e, e.i64(0), e.add(at, e.i64(n * self.lanes))) for n in range(len(masks))]
        column = e.add(target.column, at)
        if self.roles.rows is None or target.height.ref == "1":
            self._tile(target, [e.i64(0)], left, right, panel, column, masks, size, fresh)
            return
        exact = is_number(target.height.ref) and int(target.height.ref) % self.height == 0
        last = e.sub(target.height, e.i64(1))
        with e.loop(e.i64(0), target.height, e.i64(self.height)) as row:
            listed = [e.add(row, e.i64(n)) for n in range(self.height)]
            if not exact:
                listed = [e.select(e.cmp("icmp slt", r, last), r, last) for r in listed]
            self._tile(target, listed, left, right, panel, column, masks, size, fresh)

    def _tile(
        self,
        target: _Target,
        rows: list[V],
        left: Block,
        right: Block,
        panel: list[V],
        column: V,
        masks: list[V | None],
        size: V,
        fresh: bool,
    ) -> None:
        """The sums of a tile: in from the target, unless they begin, over the depth, and out again."""
        e = self.e
        type_ = vector(self.scalar, self.lanes)
        goals = [self._goal(e.add(target.row, row), column) for row in rows]
        sums = [[e.slot(type_) for _ in masks] for _ in rows]
        pointers = [[e.gep(goal, e.i64(n * self.lanes), self.scalar) for n in range(len(masks))] for goal in goals]
        for line_of, places in zip(sums, pointers, strict=True):
            for slot, pointer in zip(line_of, places, strict=True):
                e.set(slot, e.const(type_, 0))
                if not fresh:
                    e.prefetch(pointer)
        if size.ref != "0":
            starts = [left.at(e, e.i64(0), row) for row in rows]
            with e.loop(e.i64(0), size, e.i64(1)) as depth:
                line, apart = e.mul(depth, right.along), e.i64(1) if right.panel else right.across
                columns = []
                for first, mask in zip(panel, masks, strict=True):
                    pointer = e.gep(first, line, MEMORY[right.dtype])
                    columns.append(right.vector(e, pointer, apart, self.lanes, None if right.panel else mask))
                along = e.mul(depth, left.along)
                for line_of, start in zip(sums, starts, strict=True):
                    element = e.splat(left.element(e, start, along), self.lanes)
                    for slot, each in zip(line_of, columns, strict=True):
                        e.set(slot, self._multiply_add(element, each, e.get(slot, type_)))
        add = "fadd" if self.statement.dtype.is_float else "add"
        leaving = []
        for line_of, places in zip(sums, pointers, strict=True):
            for slot, pointer, mask in zip(line_of, places, masks, strict=True):
                total = e.get(slot, type_)
                if not fresh:
                    total = e.op(add, load_contiguous(e, pointer, self.statement.dtype, self.lanes, mask), total)
                leaving.append((total, pointer, mask))
        for total, pointer, mask in leaving:  # after all loads: repeated rows are added to once
            store_contiguous(e, total, pointer, self.statement.dtype, mask)

    def _multiply_add(self, a: V, b: V, c: V) -> V:
        e = self.e
        if self.statement.dtype.is_float:
            return e.call("fmuladd", c.type, a, b, c)
        return e.op("add", e.op("mul", a, b), c)

    def _goal(self, row: V, column: V) -> V:
        at = self.values | {self.roles.columns.name: column}
        if self.roles.rows is not None:
            at[self.roles.rows.name] = row
        ref = self.roles.target
        return self.e.gep(ref.base, emit_dim(self.e, ref.offset, at), self.scalar)


@dataclass(frozen=True)
class _Target:
    """A block of the result: its first row and column, and how many rows."""

    row: V
    height: V
    column: V


def _count(axis: Axis | None) -> int:
    """The axis's extent; of an open one many."""
    extent = 1 if axis is None else axis.extent
    return extent if isinstance(extent, int) else MANY
