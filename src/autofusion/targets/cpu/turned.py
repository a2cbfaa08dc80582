"""Contractions whose tiles are turned on their way out: rows are taken for columns.

A convolution's result is contiguous along the image's width, which may fill no whole vectors, and whose windows begin
anywhere. Its filters can be taken in whole vectors. So here a tile's rows are pixels and its columns filters: elements
of the image are read where they lie, whatever their stride, and multiplied with vectors of filters, which lie in panels
or are packed, panel after panel, each for all of the image. Sums stay in registers over all taps; where those are many,
sums of parts of them are added up apart, which is more accurate. At the end squares of sums are transposed in
registers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property

from autofusion.dims import Dim, coefficient_of, symbol
from autofusion.kernel.ir import Contract
from autofusion.target import Target
from autofusion.targets.cpu.dimension import emit_dim
from autofusion.targets.cpu.emit import is_number
from autofusion.targets.cpu.gemm import (
    DEPTH,
    RESIDENT,
    UNROLL,
    Gemm,
    count_of,
    even,
    register_tile,
    registers_of,
    step_cycles,
)
from autofusion.targets.cpu.loops import Ref
from autofusion.targets.cpu.packing import Block, by_panels, mask_of, transposed
from autofusion.targets.cpu.roles import Roles
from autofusion.targets.cpu.tiles import FIRST_COLUMN, FIRST_ROW, Goal, Part, Tile, When
from autofusion.targets.vecmath.values import V, vector

PIXELS = 32  # from here on packing the filters pays
PACKED = 1 << 21  # bytes of a packed panel


def turns(roles: Roles, statement: Contract, target: Target) -> bool:
    """Whether it is faster to take the rows of a contraction for columns, and to turn each tile on its way out: a
    convolution's images may be narrower than whole vectors; its rows, the filters, can be chosen in whole ones."""
    size = statement.dtype.size
    lanes, registers = target.lane_bytes // size, registers_of(target)
    axes = (roles.depth, *roles.taps, roles.rows)
    if not all(axis is not None and isinstance(axis.extent, int) and axis.extent > 0 for axis in axes):
        return False
    if roles.panels is not None or roles.cut or not (roles.taps or roles.others) or lanes < 4:
        return False
    if roles.right.dtype is not statement.dtype or not isinstance(roles.step(roles.right, roles.columns), int):
        return False
    if any(coefficient_of(roles.left.offset, axis.name) != 0 for axis in roles.others):
        return False
    rows, columns, depth = (count_of(axis) for axis in (roles.rows, roles.columns, roles.depth))
    terms = depth * math.prod(map(count_of, roles.taps))
    straight_tile, turned_tile = (
        register_tile(*sides, lanes, registers) for sides in ((rows, columns), (columns, rows))
    )
    panel = turned_tile[1] * lanes
    if not _lies(roles.step(roles.left, roles.rows), rows, panel):
        often = math.prod(map(count_of, roles.others)) * columns >= PIXELS
        if not often or terms * panel * size > PACKED or depth * size > DEPTH:
            return False
    straight = step_cycles(rows, columns, lanes, *straight_tile)
    turned = step_cycles(columns, rows, lanes, *turned_tile)
    squares = -(-columns // lanes) * -(-rows // lanes)
    return terms * straight > terms * turned + squares * lanes * lanes.bit_length()


def _lies(step: Dim, filters: int, panel: int) -> bool:
    """Whether filters `step` elements apart are one panel where they lie."""
    return step == 1 and filters <= panel


class Turned(Gemm):
    """One contraction being written whose result is contiguous along the rows."""

    def _decide(self, rows: int, columns: int) -> None:
        roles, size = self.roles, self.statement.dtype.size
        lies = roles.panels is not None or _lies(roles.step(roles.right, roles.columns), columns, self.panel)
        self.packs = not lies
        self.held, self.packs_left, self.packs_right = 0, False, False
        self.inside, self.apart = roles.taps, roles.taps[: self._within()]
        self.deepest = even(roles.depth.extent, DEPTH // size, max(UNROLL, self.lanes))
        self.tallest, self.widest = -(-rows // self.height) * self.height, -(-columns // self.panel) * self.panel
        weights = columns * size * math.prod(map(count_of, (roles.depth, *roles.taps)))
        same = all(coefficient_of(roles.right.offset, axis.name) == 0 for axis in roles.others)
        if same and (self.packs or weights > RESIDENT):
            self.around = ()  # each panel of filters is read once, the image once for each of them

    @property
    def lines(self) -> tuple[int, int]:
        return self.panel, -(-self.height // self.lanes) * self.lanes

    def _block(self, begin: V, size: V, adds: When, ends: When) -> None:
        e, roles, values = self.e, self.roles, self.values
        columns = emit_dim(e, roles.columns.extent, values)

        def panel(at: V, masks: list[V | None], count: V) -> None:
            right = self._packed(at, count) if self.packs else self._operand(roles.right, begin, roles.columns, at)
            with ExitStack() as stack:
                inner = [axis for axis in roles.others if axis not in self.around]
                self.values = values | {axis.name: stack.enter_context(self._loop(axis)) for axis in inner}
                rows = emit_dim(e, roles.contiguous.extent, self.values)
                left = self._operand(roles.left, begin, roles.rows, e.i64(0))
                self._rows(Goal(e.i64(0), rows, at, adds, ends), left, right, e.i64(0), masks, count, size)
            self.values = values

        filled = not is_number(columns.ref)  # tiles of panels hold whole ones
        by_panels(e, columns, self.width, self.lanes, panel, filled)

    # -- packing filters ---------------------------------------------------------------------------------------------
    @cached_property
    def _flat(self) -> bool:
        """Whether a filter's elements lie one after another, whatever the order of its axes."""
        axes = [axis for axis in (self.roles.depth, *self.roles.taps) if axis.extent != 1]
        steps = [(self.roles.step(self.roles.right, axis), count_of(axis)) for axis in axes]
        reach = 1
        for step, extent in sorted((step, extent) for step, extent in steps if isinstance(step, int)):
            if step != reach:
                return False
            reach *= extent
        return all(isinstance(step, int) for step, _ in steps)

    def _packed(self, first: V, count: V) -> Block:
        """The panel of filters that begins with the first one. Where they are flat, steps of the depth and of taps are
        what they are where they lie, times the panel; otherwise tap comes after tap."""
        e, roles, values = self.e, self.roles, self.values
        depth, taps = count_of(roles.depth), math.prod(map(count_of, roles.taps))
        lanes, panel = self.lanes, self.panel
        bytes_of = (depth * taps + lanes) if self._flat else (depth + lanes) * taps
        area = self.memory.packing_area(bytes_of * panel * self.statement.dtype.size)
        if self._flat:
            self.values = values | {axis.name: e.i64(0) for axis in roles.taps}
            lies = replace(self._operand(roles.right, e.i64(0), roles.columns, first), along=e.i64(1))
            packed = self.packer.panels(lies, area, count, e.i64(depth * taps), self.width)
            step = emit_dim(e, roles.step(roles.right, roles.depth), values)
            packed = replace(packed, along=e.mul(step, e.i64(panel)))
        else:
            with ExitStack() as stack:
                at = {axis.name: stack.enter_context(self._loop(axis)) for axis in roles.taps}
                self.values = values | at
                lies = self._operand(roles.right, e.i64(0), roles.columns, first)
                goal = self._of_tap(area, list(at.values()))
                packed = self.packer.panels(lies, goal, count, e.i64(depth), self.width)
            packed = replace(packed, start=area)
        self.values = values
        return packed

    def _of_tap(self, area: V, taps: Sequence[V]) -> V:
        """Where a tap of a packed panel begins, where filters are not flat."""
        elements = (count_of(self.roles.depth) + self.lanes) * self.panel
        return self.e.gep(area, self.e.mul(self._number(taps), self.e.i64(elements)), self.scalar)

    def _moved(self, pointer: V, ref: Ref, taps: Sequence[V]) -> V:
        if ref is not self.roles.right or not self.packs:
            return super()._moved(pointer, ref, taps)
        if not self._flat:
            return self._of_tap(pointer, taps)
        return self.e.gep(pointer, self.e.mul(self._steps(ref, taps), self.e.i64(self.panel)), self.scalar)

    def _sum(self, tile: Tile, rows: list[V], left: Block, right: Block, size: V, sums: list[list[V]]) -> None:
        if not self.apart:
            super()._sum(tile, rows, left, right, size, sums)
            return
        e, type_ = self.e, vector(self.scalar, self.lanes)
        totals = [[e.slot(type_) for _ in line] for line in sums]
        self._clear(totals)
        pairs = [pair for lines in zip(sums, totals, strict=True) for pair in zip(*lines, strict=True)]
        with ExitStack() as outer:
            taps = {axis.name: outer.enter_context(self._loop(axis)) for axis in self.apart}
            self._clear(sums)
            with ExitStack() as stack:
                rest = self.inside[len(self.apart) :]
                taps |= {axis.name: stack.enter_context(self._loop(axis)) for axis in rest}
                tile, left = self._at_taps(taps, tile, left)
                self._multiply(tile, rows, left, right, size, sums)
            for part, total in pairs:
                e.set(total, self._plus(e.get(part, type_), e.get(total, type_)))
        for part, total in pairs:
            e.set(part, e.get(total, type_))

    def _expect(self, target: Goal, tile: Tile, rows: list[V]) -> None:
        e = self.e
        for column in range(int(tile.count.ref)):
            e.prefetch(self._goal(e.add(target.row, tile.row), e.add(tile.column, e.i64(column))))

    def _leaving(self, target: Goal, tile: Tile, rows: list[V], sums: list[list[V]]) -> list[Part]:
        """Squares of sums are transposed, and each column's are contiguous."""
        e, lanes, parts = self.e, self.lanes, []
        type_, (_, line) = vector(self.scalar, lanes), self.lines
        for first in range(0, tile.height, lanes):
            mask = mask_of(e, tile.rows, first, lanes)
            row = e.add(e.add(target.row, tile.row), e.i64(first))
            for n in range(len(tile.masks)):
                square = [e.get(each[n], type_) for each in sums[first : first + lanes]]
                square += [e.const(type_, 0)] * (lanes - len(square))
                known = int(tile.count.ref) - n * lanes
                for column, value in enumerate(transposed(e, square)[:known], n * lanes):
                    slot = e.slot(type_)
                    e.set(slot, value)
                    goal = self._goal(row, e.add(tile.column, e.i64(column)))
                    parts.append(Part(slot, goal, mask, column * line + first))
        return parts

    def _near_offset(self) -> Dim:
        _, line = self.lines
        rows, columns = self.roles.contiguous, self.roles.columns
        return (symbol(columns.name) - symbol(FIRST_COLUMN)) * line + symbol(rows.name) - symbol(FIRST_ROW)

    def _fetch(self, tile: Tile, right: Block, size: V, unroll: int) -> tuple[V, int, int] | None:
        return None  # the next panel is far ahead
