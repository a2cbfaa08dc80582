"""Contractions on register tiles: rows times vectors of columns, fused multiply-adds over packed panels.

For every panel of columns, the right operand is packed (depth by columns, in the type that is computed in), then the
micro-kernel runs over panels of rows: `rows * vectors` sums stay in registers over the whole depth of a block. Rows
past the end repeat the last one and store it again with the same value; columns past the end are masked. Sums of a
block are added to the target, block after block, in order: the split is the schedule's, never the number of workers'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autofusion.dims import Dim, coefficient_of
from autofusion.kernel.ir import Axis, Contract
from autofusion.ops.library import LIBRARY
from autofusion.target import Target
from autofusion.targets.cpu.dimension import emit_dim
from autofusion.targets.cpu.emit import Emitter
from autofusion.targets.cpu.lanes import (
    MEMORY,
    REGISTER,
    first_lanes,
    load_contiguous,
    load_scattered,
    store_contiguous,
)
from autofusion.targets.cpu.primitives import convert
from autofusion.targets.vecmath.values import V, vector

if TYPE_CHECKING:
    from autofusion.targets.cpu.loops import Memory, Ref

DEPTH = 384  # of a packed panel: with 64 columns of float32 it takes 96 KiB, and stays in the second-level cache
FEW_ROWS = 12  # up to here a panel is read too few times to be worth packing


def packing_bytes(target: Target) -> int:
    """Scratch that a packed panel takes at most."""
    return DEPTH * 8 * target.lane_bytes * 2


@dataclass(frozen=True)
class _Shape:
    """The axes of a contraction by their role, and the steps of each operand along them, in elements."""

    rows: Axis | None
    columns: Axis
    depth: Axis
    taps: tuple[Axis, ...]
    others: tuple[Axis, ...]
    left: Ref
    right: Ref
    target: Ref

    def step(self, ref: Ref, axis: Axis | None) -> Dim:
        if axis is None:
            return 0
        step = coefficient_of(ref.offset, axis.name)
        assert step is not None
        return step


def _classify(memory: Memory, statement: Contract) -> _Shape | None:
    """Roles of the axes; None where an access is not linear or the result has no contiguous axis."""
    refs = [memory.ref(a) for a in (statement.left, statement.right, statement.target)]
    axes = [a for a in statement.axes if a.extent != 1]
    steps = {a.name: [coefficient_of(r.offset, a.name) for r in refs] for a in (*axes, *statement.reduced)}
    if any(step is None for found in steps.values() for step in found):
        return None
    contiguous = next((a for a in axes if steps[a.name][2] == 1 and 0 in (steps[a.name][0], steps[a.name][1])), None)
    if contiguous is None or steps[contiguous.name][:2] == [0, 0]:
        return None
    left, right, target = refs
    side = 0
    if steps[contiguous.name][1] == 0:
        left, right, side = right, left, 1
    rows = [a for a in axes if a is not contiguous and steps[a.name][1 - side] == 0 and steps[a.name][side] != 0]
    row = max(rows, key=lambda a: a.extent if isinstance(a.extent, int) else 1 << 30, default=None)
    others = tuple(a for a in axes if a is not contiguous and a is not row)
    depth = max(statement.reduced, key=lambda a: a.extent if isinstance(a.extent, int) else 1 << 30)
    taps = tuple(a for a in statement.reduced if a is not depth)
    return _Shape(row, contiguous, depth, taps, others, left, right, target)


def emit(e: Emitter, memory: Memory, statement: Contract, values: Mapping[str, V], target: Target) -> bool:
    """Write a contraction; False where it has no shape for register tiles and must be written as a fold."""
    if any(a.extent == 0 for a in statement.axes):
        return True  # no element to write
    if statement.library and _call_library(e, memory, statement, values):
        return True
    shape = _classify(memory, statement)
    if shape is None:
        return False
    few = shape.rows is None or (isinstance(shape.rows.extent, int) and shape.rows.extent <= 4)
    if few and shape.step(shape.right, shape.columns) != 1:
        return False  # dot products along the contiguous depth are better than gathered columns
    _Kernel(e, memory, statement, shape, dict(values), target).emit()
    return True


def _call_library(e: Emitter, memory: Memory, statement: Contract, values: Mapping[str, V]) -> bool:
    """Call a hand-tuned kernel on the tile; False where an operand is not addressed linearly."""
    refs = [memory.ref(a) for a in (statement.left, statement.right, statement.target)]
    axes = [*statement.axes, *statement.reduced]
    steps = {a.name: [coefficient_of(r.offset, a.name) for r in refs] for a in axes}
    if any(step is None for found in steps.values() for step in found) or len(statement.reduced) != 1:
        return False
    depth = statement.reduced[0]
    rows = [a for a in statement.axes if a.extent != 1 and steps[a.name][0] != 0 and steps[a.name][1] == 0]
    columns = [a for a in statement.axes if a.extent != 1 and steps[a.name][1] != 0 and steps[a.name][0] == 0]
    row, column = rows[-1] if rows else None, columns[-1] if columns else None
    at = dict(values)
    tuned = LIBRARY.get(statement.library)
    e.module.globals[tuned.name] = tuned.source
    with ExitStack() as stack:
        for axis in statement.axes:
            if axis is not row and axis is not column:
                end = emit_dim(e, axis.extent, at)
                at[axis.name] = stack.enter_context(e.loop(e.i64(0), end, e.i64(1)))
        at |= {a.name: e.i64(0) for a in (row, column, depth) if a is not None}

        def step(operand: int, axis: Axis | None) -> V:
            found = steps[axis.name][operand] if axis is not None else 0
            return emit_dim(e, found if found is not None else 0, values)

        def extent(axis: Axis | None) -> V:
            return emit_dim(e, axis.extent, values) if axis is not None else e.i64(1)

        left, right, goal = (e.gep(r.base, emit_dim(e, r.offset, at), MEMORY[r.dtype]) for r in refs)
        arguments = [left, step(0, row), step(0, depth), right, step(1, depth), step(1, column)]
        arguments += [goal, step(2, row), step(2, column), extent(row), extent(column), extent(depth)]
        arguments.append(e.i64(int(statement.accumulate)))
        e.line(f"call void @{tuned.name}({', '.join(map(str, arguments))})")
    return True


class _Kernel:
    def __init__(
        self,
        e: Emitter,
        memory: Memory,
        statement: Contract,
        shape: _Shape,
        values: dict[str, V],
        target: Target,
    ) -> None:
        self.e = e
        self.memory = memory
        self.statement = statement
        self.shape = shape
        self.values = values | {a.name: e.i64(0) for a in statement.axes if a.extent == 1}
        self.scalar = REGISTER[statement.dtype]
        self.lanes = target.lane_bytes // statement.dtype.size
        self.height, self.width = self._tile(32 if target.lane_bytes == 64 or "neon" in target.features else 16)
        self.packed = self._packs()

    def _tile(self, registers: int) -> tuple[int, int]:
        """Rows and vectors of the register tile: as square as the register file allows, wasting few rows."""
        extent = 1 if self.shape.rows is None else self.shape.rows.extent
        tallest = 6
        if isinstance(extent, int):
            best = min(range(1, tallest + 1), key=lambda h: (-(-extent // h) * h * (1 + 0.25 / h), -h))
            tallest = min(best, extent)
        widest = max(w for w in range(1, 9) if tallest * w + w + 1 <= registers)
        if widest > 4:
            widest = widest // 2 * 2
        columns = self.shape.columns.extent
        if isinstance(columns, int):
            widest = min(widest, -(-columns // self.lanes))
        return tallest, widest

    def _packs(self) -> bool:
        rows = 1 if self.shape.rows is None else self.shape.rows.extent
        few = isinstance(rows, int) and rows <= FEW_ROWS
        right = self.shape.right
        return not few or self.shape.step(right, self.shape.columns) != 1 or right.dtype is not self.statement.dtype

    # -- loops -------------------------------------------------------------------------------------------------------
    def emit(self) -> None:
        e = self.e
        with ExitStack() as stack:
            for axis in self.shape.others:
                end = emit_dim(e, axis.extent, self.values)
                self.values[axis.name] = stack.enter_context(e.loop(e.i64(0), end, e.i64(1)))
            depth = emit_dim(e, self.shape.depth.extent, self.values)
            single = depth.ref.isdigit() and int(depth.ref) <= DEPTH
            if single and not self.shape.taps:
                self._columns(e.i64(0), depth, fresh=not self.statement.accumulate)
                return
            self.values |= {axis.name: e.i64(0) for axis in self.shape.taps}
            if not self.statement.accumulate:
                self._columns(e.i64(0), e.i64(0), fresh=True)
            for axis in self.shape.taps:
                end = emit_dim(e, axis.extent, self.values)
                self.values[axis.name] = stack.enter_context(e.loop(e.i64(0), end, e.i64(1)))
            if single:
                self._columns(e.i64(0), depth, fresh=False)
                return
            with e.loop(e.i64(0), depth, e.i64(DEPTH)) as begin:
                rest = e.sub(depth, begin)
                size = e.select(e.cmp("icmp slt", rest, e.i64(DEPTH)), rest, e.i64(DEPTH))
                self._columns(begin, size, fresh=False)

    def _columns(self, begin: V, size: V, fresh: bool) -> None:
        """Panels of columns: the full ones in a loop, then the rest with masks."""
        e, step = self.e, self.width * self.lanes
        end = emit_dim(e, self.shape.columns.extent, self.values)
        known = int(end.ref) if end.ref.isdigit() else None
        whole = e.i64(known // step * step) if known is not None else e.sub(end, e.op("urem", end, e.i64(step)))
        if known is None or known >= step:
            with e.loop(e.i64(0), whole, e.i64(step)) as column:
                self._panel(column, None, begin, size, fresh)
        if known is not None and known % step == 0:
            return
        rest = e.sub(end, whole)
        with ExitStack() as stack:
            if known is None:
                stack.enter_context(e.when(e.cmp("icmp sgt", rest, e.i64(0))))
            self._panel(whole, rest, begin, size, fresh)

    def _panel(self, column: V, count: V | None, begin: V, size: V, fresh: bool) -> None:
        """All rows of one panel of columns; `count` of them where the panel is not full."""
        e = self.e
        width = self.width
        if count is not None and count.ref.isdigit():
            width = -(-int(count.ref) // self.lanes)
        masks: list[V | None] = [None] * width
        if count is not None:
            masks = [self._mask(count, n) for n in range(width)]
        self.masks = masks
        load = self._right_loader(column, begin)
        if self.packed and size.ref != "0":
            load = self._pack(load, size)
        rows = self.shape.rows
        if rows is None:
            self._tile_rows([e.i64(0)], column, load, begin, size, fresh)
            return
        end = emit_dim(e, rows.extent, self.values)
        exact = end.ref.isdigit() and int(end.ref) % self.height == 0
        last = e.sub(end, e.i64(1))
        with e.loop(e.i64(0), end, e.i64(self.height)) as row:
            listed = [e.add(row, e.i64(n)) for n in range(self.height)]
            if not exact:
                listed = [e.select(e.cmp("icmp slt", r, last), r, last) for r in listed]
            self._tile_rows(listed, column, load, begin, size, fresh)

    def _mask(self, count: V, number: int) -> V:
        """The lanes of vector `number` below the count; none where the count ends before it."""
        e = self.e
        left = e.sub(count, e.i64(number * self.lanes))
        if not left.ref.lstrip("-").isdigit():
            left = e.select(e.cmp("icmp sgt", left, e.i64(0)), left, e.i64(0))
        return first_lanes(e, left, self.lanes)

    # -- the right operand -------------------------------------------------------------------------------------------
    def _right_loader(self, column: V, begin: V) -> Callable[[V, int], V]:
        """Loads vector `n` of the panel's columns at a depth (relative to the block), converted."""
        e, right = self.e, self.shape.right
        at = self.values | {self.shape.columns.name: column, self.shape.depth.name: begin}
        start = e.gep(right.base, emit_dim(e, right.offset, at), MEMORY[right.dtype])
        along = emit_dim(e, self.shape.step(right, self.shape.depth), self.values)
        across = emit_dim(e, self.shape.step(right, self.shape.columns), self.values)

        def load(depth: V, n: int) -> V:
            mask = self.masks[n]
            offset = e.add(e.mul(depth, along), e.mul(e.i64(n * self.lanes), across))
            if across.ref == "1":
                raw = load_contiguous(e, e.gep(start, offset, MEMORY[right.dtype]), right.dtype, self.lanes, mask)
            else:
                type_ = vector("i64", self.lanes)
                lanes = V(type_, "<" + ", ".join(f"i64 {k}" for k in range(self.lanes)) + ">")
                spread = e.op("mul", lanes, e.splat(across, self.lanes)) if self.lanes > 1 else e.i64(0)
                offsets = e.op("add", spread, e.splat(offset, self.lanes))
                raw = load_scattered(e, start, offsets, right.dtype, mask)
            return convert(e, raw, right.dtype, self.statement.dtype)

        return load

    def _pack(self, load: Callable[[V, int], V], size: V) -> Callable[[V, int], V]:
        """Copy the panel into scratch, depth by columns; the loader of the copy."""
        e = self.e
        area = self.memory.packing_area()
        width = len(self.masks)
        type_ = vector(self.scalar, self.lanes)
        with e.loop(e.i64(0), size, e.i64(1)) as depth:
            row = e.mul(depth, e.i64(width * self.lanes))
            for n in range(width):
                pointer = e.gep(area, e.add(row, e.i64(n * self.lanes)), self.scalar)
                e.store(load(depth, n), pointer, 16)

        def packed(depth: V, n: int) -> V:
            offset = e.add(e.mul(depth, e.i64(width * self.lanes)), e.i64(n * self.lanes))
            return e.load(type_, e.gep(area, offset, self.scalar), 16)

        return packed

    # -- the micro-kernel --------------------------------------------------------------------------------------------
    def _tile_rows(self, rows: list[V], column: V, load: Callable[[V, int], V], begin: V, size: V, fresh: bool) -> None:
        e, width = self.e, len(self.masks)
        type_ = vector(self.scalar, self.lanes)
        zero = e.const(type_, 0)
        slots = [[e.slot(type_) for _ in range(width)] for _ in rows]
        goals = [self._target(row, column) for row in rows]
        for line, goal in zip(slots, goals, strict=True):
            for n, slot in enumerate(line):
                held = zero if fresh else self._load_target(goal, n)
                e.set(slot, held)
        if size.ref != "0":
            starts = [self._left(row, begin) for row in rows]
            along = emit_dim(e, self.shape.step(self.shape.left, self.shape.depth), self.values)
            with e.loop(e.i64(0), size, e.i64(1)) as depth:
                columns = [load(depth, n) for n in range(width)]
                for line, start in zip(slots, starts, strict=True):
                    element = self._left_element(start, e.mul(depth, along))
                    for slot, each in zip(line, columns, strict=True):
                        e.set(slot, self._multiply_add(element, each, e.get(slot, type_)))
        for line, goal in zip(slots, goals, strict=True):
            for n, slot in enumerate(line):
                pointer = e.gep(goal, e.i64(n * self.lanes), self.scalar)
                store_contiguous(e, e.get(slot, type_), pointer, self.statement.dtype, self.masks[n])

    def _multiply_add(self, a: V, b: V, c: V) -> V:
        e = self.e
        if self.statement.dtype.is_float:
            return e.call("fmuladd", c.type, a, b, c)
        return e.op("add", e.op("mul", a, b), c)

    def _left(self, row: V, begin: V) -> V:
        at = self.values | {self.shape.depth.name: begin}
        if self.shape.rows is not None:
            at[self.shape.rows.name] = row
        left = self.shape.left
        return self.e.gep(left.base, emit_dim(self.e, left.offset, at), MEMORY[left.dtype])

    def _left_element(self, start: V, offset: V) -> V:
        e, left = self.e, self.shape.left
        value = load_contiguous(e, e.gep(start, offset, MEMORY[left.dtype]), left.dtype, 1, None)
        return e.splat(convert(e, value, left.dtype, self.statement.dtype), self.lanes)

    def _target(self, row: V, column: V) -> V:
        at = self.values | {self.shape.columns.name: column}
        if self.shape.rows is not None:
            at[self.shape.rows.name] = row
        ref = self.shape.target
        return self.e.gep(ref.base, emit_dim(self.e, ref.offset, at), self.scalar)

    def _load_target(self, goal: V, n: int) -> V:
        pointer = self.e.gep(goal, self.e.i64(n * self.lanes), self.scalar)
        return load_contiguous(self.e, pointer, self.statement.dtype, self.lanes, self.masks[n])
