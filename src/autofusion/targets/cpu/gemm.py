"""The contraction kernel: register tiles of rows times vectors of columns over packed blocks of both operands.

Loops, from the outside in, after the blocking of Goto and van de Geijn ("Anatomy of High-Performance Matrix
Multiplication", ACM TOMS 34(3), 2008):

    depth in blocks            whole where it is short: sums then stay in registers
      columns in blocks        the right operand's block is packed into panels
        rows in blocks         the left operand's block is packed; it stays in the second-level cache
          panels of columns
            tiles of rows      `height * width` sums stay in registers over the depth of the block;
                               each tile asks for its share of the next panel
              epilogue         what follows elementwise, after the last block of the depth, while the tile is near

An operand that is read too few times to pay for a copy is read where it lies. Where a convolution's weights are small,
they are packed for all taps before all else, and loops over the last taps stand inside those over tiles: sums stay in
registers over them, as far as that is accurate, and the image is read where it lies, row by row of it. Rows past the
end repeat the last one and store it again with the same value; columns past the end are masked. Sums of a block are
added to the target, block after block, in order: the split follows from the extents, never from the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace

from autofusion.dims import Dim, coefficient_of, symbol
from autofusion.kernel.ir import Axis, Contract
from autofusion.target import Target
from autofusion.targets.cpu.clusters import Cluster
from autofusion.targets.cpu.dimension import emit_dim
from autofusion.targets.cpu.emit import Emitter, is_number
from autofusion.targets.cpu.lanes import MEMORY, REGISTER, load_contiguous, store_contiguous
from autofusion.targets.cpu.loops import Memory, Nest, Ref
from autofusion.targets.cpu.packing import ALIGN, PAD, Block, Packer, by_panels
from autofusion.targets.cpu.roles import Roles
from autofusion.targets.cpu.tiles import FIRST_COLUMN, FIRST_ROW, Epilogue, Goal, Near, Part, Tile, When
from autofusion.targets.vecmath.values import V, vector

DEPTH = 4096  # bytes: of a packed block's lines, at most
WIDTH = 8192  # bytes: of the rows of a packed right operand, at most
LOW = 64  # rows up to which packing the right operand costs as much as sums that are stored and loaded again:
RESIDENT = 1 << 20  # bytes of it that are packed at once then, and found in the second-level cache,
SHALLOW = 128  # but at least such a depth
NEAR = 1 << 19  # bytes of a packed left operand: it stays in the second-level cache
TERMS = 384  # that are summed over one after another where that is more than the depth: sums of sums are more accurate
HELD = 1 << 20  # bytes of one that is packed once for all taps and all of the other axes
STEPS = 16  # depth of a block where few rows stream the right operand: so many rows of it are read side by side
STREAMED = 4  # rows up to which they do
FEW_ROWS = 12  # up to here the right operand is read too few times to be worth packing
FEW_PANELS = 2  # up to here the left one is
MANY = 1 << 12  # an open extent, for choices
MEETING = 512  # bytes: rows so far apart, or a multiple, share the sets of a first-level cache
UNROLL = 4  # steps along the depth in one turn of the loop
LINE = 64  # bytes that are fetched at once
LATENCY = 8  # multiply-adds that a core needs in flight


def register_tile(
    rows: int, columns: int, lanes: int, registers: int, widths: Sequence[int] = range(1, 9)
) -> tuple[int, int]:
    """Rows and vectors of a register tile: the fewest cycles for all of them; of equals the tallest, whose panels are
    narrow."""
    tiles = [
        (height, width)
        for width in widths
        if width <= -(-columns // lanes)
        for height in range(1, min(14, rows) + 1)
        if height * width + width + 1 <= registers
    ]
    return min(tiles, key=lambda tile: (step_cycles(rows, columns, lanes, *tile), -tile[0]))


def step_cycles(rows: int, columns: int, lanes: int, height: int, width: int) -> float:
    """Cycles that all tiles take for a step of the depth on a core with two multiply-adds and two loads a cycle, each
    tile paying for its sums' way in and out."""
    step = max(height * width, height + width, LATENCY) / 2
    return -(-rows // height) * -(-columns // (width * lanes)) * (step + 0.5)


def registers_of(target: Target) -> int:
    """Vector registers of a core."""
    return 32 if target.lane_bytes == 64 or "neon" in target.features else 16


class Gemm:
    """One contraction being written, and what follows it on each tile."""

    def __init__(
        self,
        e: Emitter,
        memory: Memory,
        statement: Contract,
        roles: Roles,
        values: dict[str, V],
        target: Target,
        epilogue: Epilogue | None = None,
    ) -> None:
        self.e = e
        self.memory = memory
        self.statement = statement
        self.roles = roles
        self.values = values | {a.name: e.i64(0) for a in statement.axes if a.extent == 1}
        self.lane_bytes = target.lane_bytes
        self.epilogue = epilogue
        self.scalar = REGISTER[statement.dtype]
        self.lanes = target.lane_bytes // statement.dtype.size
        registers = registers_of(target)
        rows, columns = (count_of(axis) for axis in (roles.rows, roles.columns))
        widths: Sequence[int] = range(1, 9)
        tiled = rows > STREAMED or roles.turned  # of few rows several panels at once; turned ones end with a panel
        if roles.panels is not None and tiled and roles.panels.width % self.lanes == 0:
            widths = _parts(min(roles.panels.width, columns) // self.lanes or 1, registers)
        self.height, self.width = register_tile(rows, columns, self.lanes, registers, widths)
        self.panel = self.width * self.lanes
        self.inside: tuple[Axis, ...] = ()  # taps that are summed over in registers
        self.around = roles.others  # loops over which stand outside of all
        self._decide(rows, columns)
        self.packer = Packer(e, self.lanes, statement.dtype)
        self.packed: Block | None = None  # the left operand of the first tap, once it is
        self.near: V | None = None
        if epilogue is not None and epilogue.private:
            self.near = e.slot(f"[{math.prod(self.lines)} x {self.scalar}]", ALIGN)

    def _decide(self, rows: int, columns: int) -> None:
        """What is packed, the sizes of blocks, and where loops over taps stand."""
        roles, size = self.roles, self.statement.dtype.size
        neighbours = roles.panels is not None or roles.step(roles.right, roles.columns) == 1
        converts = roles.right.dtype is not self.statement.dtype
        self.held = self._held(rows, columns)
        dense = neighbours or roles.step(roles.right, roles.columns) == 2
        self.inside = roles.taps[self._within() :] if self.held and dense else ()
        self.packs_right = roles.panels is None and (not neighbours or rows > (STREAMED if converts else FEW_ROWS))
        self.packs_right = self.packs_right and not self.inside
        self.packs_left = self.held > 0 or self._packs_left(rows, columns)
        most = DEPTH // size
        if self.packs_right and rows <= LOW:
            most = min(most, max(SHALLOW, RESIDENT // (min(columns, WIDTH // size) * size)))
        self.deepest = even(roles.depth.extent, most, max(UNROLL, self.lanes))
        if rows <= STREAMED and neighbours and not roles.cut:  # nothing is packed then
            self.deepest = STEPS if roles.panels is None else MANY
        self.tallest = even(
            1 if roles.rows is None else roles.rows.extent, max(1, NEAR // (self.deepest * size)), self.height
        )
        if self.held:
            self.deepest, self.tallest = count_of(roles.depth), -(-rows // self.height) * self.height
        self.widest = even(roles.columns.extent, WIDTH // size, self.panel)

    @property
    def lines(self) -> tuple[int, int]:
        """How many lines of sums are near for an epilogue, and elements of one."""
        return self.height, self.panel

    def _packs_left(self, rows: int, columns: int) -> bool:
        """Whether the left operand is read often, and where it lies its rows would meet in few sets of the cache, its
        elements lie apart, or are of another type."""
        left, size = self.roles.left, self.statement.dtype.size
        if self.roles.cut:
            return True
        if rows <= self.height or columns <= FEW_PANELS * self.panel:
            return False
        apart = self.roles.step(left, self.roles.rows)
        meets = not isinstance(apart, int) or apart * size % MEETING == 0
        return meets or left.dtype is not self.statement.dtype or self.roles.step(left, self.roles.depth) != 1

    def _held(self, rows: int, columns: int) -> int:
        """The number of taps for which the left operand, a convolution's weights, say, is packed before all else, where
        that pays: it is the same along the other axes and small, its elements lie apart or it is summed over taps. 0
        where it is packed block by block, or not."""
        roles, size = self.roles, self.statement.dtype.size
        axes = (roles.depth, *roles.taps, *([roles.rows] if roles.rows is not None else []))
        known = all(isinstance(axis.extent, int) and axis.extent > 0 for axis in axes)
        same = all(coefficient_of(roles.left.offset, axis.name) == 0 for axis in roles.others)
        if not known or not same or roles.cut or roles.panels is not None or not (roles.taps or roles.others):
            return 0
        if not roles.taps and roles.step(roles.left, roles.depth) == 1:
            return 0
        taps, depth = math.prod(map(count_of, roles.taps)), count_of(roles.depth)
        small = depth * size <= DEPTH and taps * rows * depth * size <= HELD
        often = math.prod(map(count_of, roles.others)) * columns > FEW_PANELS * self.panel
        return taps if small and often else 0

    def _within(self) -> int:
        """The first of the last taps that are summed over in registers; sums over the others are added up."""
        taps, terms = self.roles.taps, count_of(self.roles.depth)
        first = len(taps)
        while first and terms * count_of(taps[first - 1]) <= TERMS:
            first -= 1
            terms *= count_of(taps[first])
        return first

    def emit(self) -> None:
        e, roles, accumulates = self.e, self.roles, self.statement.accumulate
        if self.held:
            self._hold()
        with ExitStack() as stack:
            for axis in self.around:
                self.values[axis.name] = stack.enter_context(self._loop(axis))
            depth = emit_dim(e, roles.depth.extent, self.values)
            self._nothing(depth)
            self.values |= {axis.name: e.i64(0) for axis in self.inside}
            outside = roles.taps[: len(roles.taps) - len(self.inside)]
            ends: list[V] = []
            for axis in outside:
                end = emit_dim(e, axis.extent, self.values)
                self.values[axis.name] = stack.enter_context(e.loop(e.i64(0), end, e.i64(1)))
                ends.append(e.cmp("icmp eq", e.add(self.values[axis.name], e.i64(1)), end))
            starts = [e.cmp("icmp ne", self.values[axis.name], e.i64(0)) for axis in outside]
            single = is_number(depth.ref) and int(depth.ref) <= self.deepest
            for begin, size in self._blocks(depth, self.deepest):
                begun = [] if single else [e.cmp("icmp ne", begin, e.i64(0))]
                ended = [] if single else [e.cmp("icmp eq", e.add(begin, size), depth)]
                adds = accumulates or self._joined("or", [*starts, *begun], False)
                self._block(begin, size, adds, self._joined("and", [*ends, *ended], True))

    def _hold(self) -> None:
        """Pack the left operand for every tap."""
        e, roles, values = self.e, self.roles, self.values
        before = self._right_bytes() if self.packs_right else 0
        area = self.memory.packing_area(before + self.held * self._left_bytes())
        with ExitStack() as stack:
            taps = {axis.name: stack.enter_context(self._loop(axis)) for axis in roles.taps}
            self.values = values | taps
            goal = self._held_at(e.gep(area, e.i64(before), "i8"), list(taps.values()))
            left = self._operand(roles.left, e.i64(0), roles.rows, e.i64(0))
            stride = (self.tallest if left.is_across else self.deepest) + PAD
            rows, depth = e.i64(count_of(roles.rows)), e.i64(count_of(roles.depth))
            packed = self.packer.lines(left, goal, rows, depth, stride, self.height)
        self.packed = replace(packed, start=e.gep(area, e.i64(before), "i8"))
        self.values = values

    def _held_at(self, area: V, taps: Sequence[V]) -> V:
        """Where that of a tap begins."""
        return self.e.gep(area, self.e.mul(self._number(taps), self.e.i64(self._left_bytes())), "i8")

    def _number(self, taps: Sequence[V]) -> V:
        """Of a tap, counted through all of them."""
        e, number = self.e, self.e.i64(0)
        for axis, value in zip(self.roles.taps, taps, strict=True):
            number = e.add(e.mul(number, e.i64(count_of(axis))), value)
        return number

    def _joined(self, operation: str, conditions: list[V], otherwise: bool) -> When:
        """All conditions in one; what it is where there is none."""
        joined: When = otherwise
        for each in conditions:
            joined = each if isinstance(joined, bool) else self.e.op(operation, joined, each)
        return joined

    def _nothing(self, depth: V) -> None:
        """The sum of nothing, where an axis that is summed over may turn out empty."""
        e = self.e
        counts = [depth, *(emit_dim(e, axis.extent, self.values) for axis in self.roles.taps)]
        unknown = [count for count in counts if not is_number(count.ref) or int(count.ref) <= 0]
        if not unknown:
            return
        values = self.values
        self.values = values | {axis.name: e.i64(0) for axis in self.roles.taps}
        with ExitStack() as stack:
            if all(not is_number(count.ref) for count in unknown):
                empty = self._joined("or", [e.cmp("icmp sle", count, e.i64(0)) for count in unknown], False)
                assert isinstance(empty, V)
                stack.enter_context(e.when(empty))
            self._block(e.i64(0), e.i64(0), self.statement.accumulate, True)
        self.values = values

    def _loop(self, axis: Axis) -> AbstractContextManager[V]:
        return self.e.loop(self.e.i64(0), emit_dim(self.e, axis.extent, self.values), self.e.i64(1))

    def _when(self, condition: When) -> AbstractContextManager[None]:
        return nullcontext() if isinstance(condition, bool) else self.e.when(condition)

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
                yield first, e.least(e.sub(extent, first), e.i64(most))

    def _block(self, begin: V, size: V, adds: When, ends: When) -> None:
        """One block of the depth, for all of the result. A block of nothing only stores zeros."""
        e, roles = self.e, self.roles
        columns = emit_dim(e, roles.columns.extent, self.values)
        rows = emit_dim(e, roles.rows.extent, self.values) if roles.rows is not None else e.i64(1)
        packs_right, packs_left = (packs and size.ref != "0" for packs in (self.packs_right, self.packs_left))
        right_bytes = self._right_bytes() if packs_right else 0
        area = None
        if packs_right or packs_left:
            blocks = (self.held or 1) if packs_left else 0
            area = self.memory.packing_area(right_bytes + blocks * self._left_bytes())
        for column, width in self._blocks(columns, self.widest) if packs_right else [(e.i64(0), columns)]:
            right = self._operand(roles.right, begin, roles.columns, column)
            if packs_right:
                assert area is not None
                right = self.packer.panels(right, area, width, size, self.width)
            for row, height in self._blocks(rows, self.tallest) if packs_left else [(e.i64(0), rows)]:
                left = self._operand(roles.left, begin, roles.rows, row)
                if packs_left:
                    assert area is not None
                    goal = e.gep(area, e.i64(right_bytes), "i8")
                    if self.packed is not None:
                        at = self._held_at(self.packed.start, [self.values[axis.name] for axis in roles.taps])
                        left = replace(self.packed, start=at)
                    else:
                        stride = (self.tallest if left.is_across else self.deepest) + PAD
                        left = self.packer.lines(left, goal, height, size, stride, self.height)
                target = Goal(row, height, column, adds, ends)
                by_panels(
                    e, width, self.width, self.lanes,
                    lambda at, masks, count: self._rows(target, left, right, at, masks, count, size),  # noqa: B023
                )  # fmt: skip

    def _right_bytes(self) -> int:
        """Of the right operand's packed block."""
        columns = min(count_of(self.roles.columns), self.widest) + self.panel
        depth = min(count_of(self.roles.depth), self.deepest) + self.lanes
        return -(-columns * depth * self.statement.dtype.size // ALIGN) * ALIGN

    def _left_bytes(self) -> int:
        """Of the left operand's: its lines are its rows, or its depth."""
        tallest, deepest, slack = self.tallest + self.height, self.deepest, PAD + self.lanes
        elements = max(tallest * (deepest + slack), (deepest + 1) * (tallest + slack))
        return -(-self.statement.dtype.size * elements // ALIGN + 1) * ALIGN

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
    def _rows(self, target: Goal, left: Block, right: Block, at: V, masks: list[V | None], count: V, size: V) -> None:
        """All rows of one panel of columns."""
        e = self.e
        panel = [right.at(e, e.i64(0), e.add(at, e.i64(n * self.lanes))) for n in range(len(masks))]
        following = right.at(e, e.i64(0), e.add(at, e.i64(self.panel))) if right.panel == self.panel else None
        if self.roles.rows is None or target.height.ref == "1":
            tile = Tile(e.i64(0), e.i64(1), 1, True, e.add(target.column, at), count, masks, panel, following)
            self._tile(target, tile, left, right, size)
            return
        heights = [int(target.height.ref)] if is_number(target.height.ref) else [self.roles.rows.extent, self.tallest]
        exact = all(isinstance(height, int) and height % self.height == 0 for height in heights)
        with e.loop(e.i64(0), target.height, e.i64(self.height)) as row:
            rest = e.i64(self.height) if exact else e.least(e.sub(target.height, row), e.i64(self.height))
            column = e.add(target.column, at)
            tile = Tile(row, rest, self.height, exact, column, count, masks, panel, following)
            self._tile(target, tile, left, right, size)

    def _tile(self, target: Goal, tile: Tile, left: Block, right: Block, size: V) -> None:
        """The sums of a tile: over the depth, with what the target holds already, and out."""
        e = self.e
        type_ = vector(self.scalar, self.lanes)
        rows = self._row_numbers(tile)
        sums = [[e.slot(type_) for _ in tile.masks] for _ in rows]
        self._clear(sums)
        if target.adds is not False:
            self._expect(target, tile, rows)
        if size.ref != "0":
            self._sum(tile, rows, left, right, size, sums)
        leaving = self._leaving(target, tile, rows, sums)
        if target.adds is not False:
            with self._when(target.adds):
                self._add(leaving)
        if self.near is None or target.ends is not True:
            kept = target.ends if self.near is not None else False
            with self._when(kept if isinstance(kept, bool) else e.op("xor", kept, V("i1", "true"))):
                for part in leaving:
                    store_contiguous(e, e.get(part.slot, type_), part.pointer, self.statement.dtype, part.mask)
        if self.epilogue is not None:
            with self._when(target.ends):
                self._finish(self.epilogue.cluster, target, tile, leaving)

    def _clear(self, sums: list[list[V]]) -> None:
        for slot in (slot for line in sums for slot in line):
            self.e.set(slot, self.e.const(vector(self.scalar, self.lanes), 0))

    def _sum(self, tile: Tile, rows: list[V], left: Block, right: Block, size: V, sums: list[list[V]]) -> None:
        """The products of the block's depth, of all taps that are inside."""
        with ExitStack() as stack:
            if self.inside:
                taps = {axis.name: stack.enter_context(self._loop(axis)) for axis in self.inside}
                tile, left = self._at_taps(taps, tile, left)
            self._multiply(tile, rows, left, right, size, sums)

    def _at_taps(self, taps: dict[str, V], tile: Tile, left: Block) -> tuple[Tile, Block]:
        """The operands of one of the taps inside."""
        roles = self.roles
        numbers = [taps.get(axis.name, self.e.i64(0)) for axis in roles.taps]
        panel = [self._moved(pointer, roles.right, numbers) for pointer in tile.panel]
        return replace(tile, panel=panel), replace(left, start=self._moved(left.start, roles.left, numbers))

    def _moved(self, pointer: V, ref: Ref, taps: Sequence[V]) -> V:
        """From an operand's element at the first tap to the one at another."""
        if self.held and ref is self.roles.left:
            return self._held_at(pointer, taps)
        return self.e.gep(pointer, self._steps(ref, taps), MEMORY[ref.dtype])

    def _steps(self, ref: Ref, taps: Sequence[V]) -> V:
        """Elements from the first tap to another, where an operand lies."""
        e, moved = self.e, self.e.i64(0)
        for axis, value in zip(self.roles.taps, taps, strict=True):
            moved = e.add(moved, e.mul(value, emit_dim(e, self.roles.step(ref, axis), self.values)))
        return moved

    def _expect(self, target: Goal, tile: Tile, rows: list[V]) -> None:
        """Ask for what a tile is added to."""
        e = self.e
        for goal in [self._goal(e.add(target.row, row), tile.column) for row in rows]:
            for n in range(len(tile.masks)):
                e.prefetch(e.gep(goal, e.i64(n * self.lanes), self.scalar))

    def _leaving(self, target: Goal, tile: Tile, rows: list[V], sums: list[list[V]]) -> list[Part]:
        """Sums as they leave, each with where it goes."""
        e, parts = self.e, []
        for r, (row, line) in enumerate(zip(rows, sums, strict=True)):
            goal = self._goal(e.add(target.row, row), tile.column)
            for n, (slot, mask) in enumerate(zip(line, tile.masks, strict=True)):
                at = n * self.lanes
                parts.append(Part(slot, e.gep(goal, e.i64(at), self.scalar), mask, r * self.panel + at))
        return parts

    def _row_numbers(self, tile: Tile) -> list[V]:
        """The rows of a tile; the last one again for those past the end."""
        e = self.e
        if tile.exact:
            return [e.add(tile.row, e.i64(n)) for n in range(tile.height)]
        last = e.sub(tile.rows, e.i64(1))
        return [e.add(tile.row, e.least(e.i64(n), last)) for n in range(tile.height)]

    def _multiply(self, tile: Tile, rows: list[V], left: Block, right: Block, size: V, sums: list[list[V]]) -> None:
        """The products of the block's depth, on top of the sums."""
        e = self.e
        type_ = vector(self.scalar, self.lanes)
        together = (tile.exact or left.padded) and is_number(left.across.ref) and left.address is None
        if together:  # rows lie at known distances from the first
            starts = [left.at(e, e.i64(0), tile.row)] * len(rows)
            apart = [e.mul(e.i64(n), left.across) for n in range(len(rows))]
        else:
            starts, apart = [left.at(e, e.i64(0), row) for row in rows], [e.i64(0)] * len(rows)
        unroll = self._unroll(size)
        fetch = self._fetch(tile, right, size, unroll)
        with e.loop(e.i64(0), size, e.i64(unroll)) as first:
            if fetch is not None:
                pointer, each, lines = fetch
                start = e.gep(pointer, e.mul(first, e.i64(each)), "i8")
                for n in range(lines):
                    e.prefetch(e.gep(start, e.i64(n * LINE), "i8"))
            for step in range(unroll):
                depth = e.add(first, e.i64(step))
                line, stride = e.mul(depth, right.along), e.i64(1) if right.panel else right.across
                columns = []
                for start, mask in zip(tile.panel, tile.masks, strict=True):
                    pointer = e.gep(start, line, MEMORY[right.dtype])
                    columns.append(right.vector(e, pointer, stride, self.lanes, None if right.panel else mask))
                along = e.mul(depth, left.along)
                for line_of, start, offset in zip(sums, starts, apart, strict=True):
                    element = e.splat(left.element(e, start, e.add(along, offset)), self.lanes)
                    for slot, each_column in zip(line_of, columns, strict=True):
                        e.set(slot, self._multiply_add(element, each_column, e.get(slot, type_)))

    def _unroll(self, size: V) -> int:
        """Steps in one turn of the loop: as many as divide every block of the depth."""
        extent = self.roles.depth.extent
        counts = [int(size.ref)] if is_number(size.ref) else [extent, self.deepest] if isinstance(extent, int) else [1]
        return next(n for n in (UNROLL, UNROLL // 2, 1) if all(count % n == 0 for count in counts))

    def _fetch(self, tile: Tile, right: Block, size: V, unroll: int) -> tuple[V, int, int] | None:
        """Where a tile of rows begins to ask for its share of the next panel, bytes of it a step of the depth, and
        cache lines a turn of the loop; None where there is one tile: a panel is read once."""
        e = self.e
        rows = min(count_of(self.roles.rows), self.tallest)
        tiles = -(-rows // self.height)
        if tile.following is None or tiles < 2:
            return None
        row_bytes = self.panel * right.dtype.size
        lines = max(1, -(-row_bytes * unroll // (LINE * tiles)))
        each = max(1, lines * LINE // unroll)
        number = tile.row if tile.row.ref == "0" else e.op("udiv", tile.row, e.i64(self.height))
        return e.gep(tile.following, e.mul(e.mul(number, size), e.i64(each)), "i8"), each, lines

    def _add(self, leaving: list[Part]) -> None:
        """What the target holds, on top of the sums: all of it before a row that is repeated is stored."""
        e = self.e
        for part in leaving:
            held = load_contiguous(e, part.pointer, self.statement.dtype, self.lanes, part.mask)
            e.set(part.slot, self._plus(held, e.get(part.slot, held.type)))

    def _plus(self, a: V, b: V) -> V:
        return self.e.op("fadd" if self.statement.dtype.is_float else "add", a, b)

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

    # -- the epilogue ------------------------------------------------------------------------------------------------
    def _finish(self, cluster: Cluster, target: Goal, tile: Tile, leaving: list[Part]) -> None:
        """What follows, on one tile: on its sums in a few lines of the first-level cache, or where they were stored."""
        e, roles = self.e, self.roles
        row = e.add(target.row, tile.row)
        memory = self.memory
        if self.near is not None:
            type_ = vector(self.scalar, self.lanes)
            for part in leaving:
                pointer = e.gep(self.near, e.i64(part.near), self.scalar)
                store_contiguous(e, e.get(part.slot, type_), pointer, self.statement.dtype, None)
            offset = self._near_offset()
            memory = Near(self.memory, self.statement.target.name, Ref(self.near, self.statement.dtype, offset))
        ranges = {roles.columns.name: (tile.column, tile.count)}
        if roles.rows is not None:
            ranges[roles.rows.name] = (row, tile.rows)
        values = self.values | {FIRST_ROW: row, FIRST_COLUMN: tile.column}
        axes = tuple(a for a in cluster.axes if a.name in ranges)
        within = Cluster(axes, cluster.reduced, cluster.statements)
        Nest(e, memory, within, values, self.lane_bytes).emit(ranges)

    def _near_offset(self) -> Dim:
        """Of an element of the result in the lines near the core."""
        offset = symbol(self.roles.columns.name) - symbol(FIRST_COLUMN)
        if self.roles.rows is not None:
            offset = offset + (symbol(self.roles.rows.name) - symbol(FIRST_ROW)) * self.panel
        return offset


def _parts(vectors: int, registers: int) -> list[int]:
    """Vectors of a register tile in a panel of so many: equal parts of it, as a tile ends where the panel does."""
    parts = [n for n in range(min(2, vectors), vectors + 1) if vectors % n == 0 and 2 * n + 1 <= registers]
    return parts or [1]


def count_of(axis: Axis | None) -> int:
    """The axis's extent; of an open one many."""
    extent = 1 if axis is None else axis.extent
    return extent if isinstance(extent, int) else MANY


def even(extent: Dim, most: int, step: int) -> int:
    """The size of equal blocks of an extent, multiples of `step` of about `most` at most; of an open one the most."""
    most = max(step, most // step * step)
    if not isinstance(extent, int) or extent <= 0:
        return most
    parts = -(-extent // most)
    return -(-extent // parts // step) * step
