"""Blocks of a contraction's operands: where they lie, and packed copies in the type that is computed in.

A packed right operand lies in panels, each depth by columns, so that the micro-kernel reads one stream. A packed left
one keeps its order, its lines close together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autofusion.dtypes import DType
from autofusion.targets.cpu.emit import Emitter, is_number
from autofusion.targets.cpu.lanes import (
    MEMORY,
    REGISTER,
    first_lanes,
    load_contiguous,
    load_every_other,
    load_scattered,
)
from autofusion.targets.cpu.primitives import convert
from autofusion.targets.vecmath.values import V, vector

ALIGN = 64
AHEAD = 4
PAD = 16  # elements behind a packed line, so that lines do not meet in one set of a cache


@dataclass(frozen=True)
class Block:
    """Part of an operand: its first element, and the steps along the depth and across it, in elements. `panel`: where
    it is not 0, columns lie in panels of so many neighbours, `across` apart, and blocks begin with a panel. `address`:
    of an element by its depth and what is across, where vectors along the depth are all that is contiguous. `padded`:
    rows past the end may be read up to a whole register tile."""

    start: V
    along: V
    across: V
    dtype: DType
    computed: DType
    panel: int = 0
    address: Callable[[V, V], V] | None = None
    padded: bool = False

    @property
    def is_across(self) -> bool:
        """Whether neighbours in memory are neighbours across the depth."""
        return self.across.ref == "1" and self.along.ref != "1"

    def at(self, e: Emitter, depth: V, across: V) -> V:
        """The address of an element."""
        if self.address is not None:
            return self.address(depth, across)
        offset = e.mul(depth, self.along)
        if self.panel:
            whole = multiple(e, across, self.panel)
            offset = e.add(offset, e.sub(across, whole) if whole.ref != across.ref else e.i64(0))
            across = (
                e.i64(int(whole.ref) // self.panel) if is_number(whole.ref) else e.op("udiv", whole, e.i64(self.panel))
            )
        return e.gep(self.start, e.add(offset, e.mul(across, self.across)), MEMORY[self.dtype])

    def element(self, e: Emitter, pointer: V, offset: V) -> V:
        raw = load_contiguous(e, e.gep(pointer, offset, MEMORY[self.dtype]), self.dtype, 1, None)
        return convert(e, raw, self.dtype, self.computed)

    def vector(self, e: Emitter, pointer: V, stride: V, lanes: int, mask: V | None) -> V:
        """`lanes` elements `stride` apart, converted."""
        if stride.ref == "1":
            raw = load_contiguous(e, pointer, self.dtype, lanes, mask)
        elif stride.ref == "2":
            raw = load_every_other(e, pointer, self.dtype, lanes, mask)
        else:
            numbers = V(vector("i64", lanes), "<" + ", ".join(f"i64 {k}" for k in range(lanes)) + ">")
            offsets = e.op("mul", numbers, e.splat(stride, lanes)) if lanes > 1 else e.i64(0)
            raw = load_scattered(e, pointer, offsets, self.dtype, mask)
        return convert(e, raw, self.dtype, self.computed)


def transposed(e: Emitter, vectors: Sequence[V]) -> list[V]:
    """As many vectors as they have lanes, rows for columns: in every stage, vectors half the list apart interleave."""
    count, current = len(vectors), list(vectors)
    masks = [", ".join(f"i32 {first + n // 2 + n % 2 * count}" for n in range(count)) for first in (0, count // 2)]
    for _ in range(count.bit_length() - 1):
        pairs = zip(current[: count // 2], current[count // 2 :], strict=True)
        current = [
            e.value(a.type, f"shufflevector {a}, {b}, <{count} x i32> <{mask}>") for a, b in pairs for mask in masks
        ]
    return current


class Packer:
    """Writes copies of blocks. `lanes`: of a vector of the type that is computed in."""

    def __init__(self, e: Emitter, lanes: int, computed: DType) -> None:
        self.e = e
        self.lanes = lanes
        self.scalar = REGISTER[computed]
        self.align = lanes * computed.size  # of vectors in panels

    def lines(self, block: Block, area: V, rows: V, size: V, stride: int, height: int) -> Block:
        """The left operand: its lines along whichever axis they are contiguous, `stride` apart. Rows are filled up to
        whole tiles of `height` with the last one."""
        e = self.e
        down = block.is_across
        one, apart = e.i64(1), e.i64(stride)
        whole = multiple(e, e.add(rows, e.i64(height - 1)), height)
        count, length = (size, rows) if down else (whole, size)
        last = e.sub(rows, one)
        with e.loop(e.i64(0), count, one) as number:
            line = number if down or whole.ref == rows.ref else e.least(number, last)
            following = e.add(line, e.i64(AHEAD))
            pointer, ahead = (block.at(e, n, e.i64(0)) if down else block.at(e, e.i64(0), n) for n in (line, following))
            goal = e.gep(area, e.mul(number, apart), self.scalar)
            if block.address is not None:

                def load(at: V, mask: V | None, line: V = line) -> V:
                    return block.vector(e, block.at(e, at, line), one, self.lanes, mask)

                self._line(goal, length, load)
            else:
                self._along(block, pointer, ahead, block.across if down else block.along, goal, length)
            if down and whole.ref != rows.ref:  # behind the line, where its last vector left zeros
                repeated = e.splat(block.element(e, pointer, e.mul(last, block.across)), PAD)
                e.store(repeated, e.gep(goal, rows, self.scalar), self.align // self.lanes)
        steps = (apart, one) if down else (one, apart)
        return Block(area, *steps, block.computed, block.computed, padded=True)

    def _along(self, block: Block, pointer: V, ahead: V, stride: V, goal: V, length: V) -> None:
        """One line whose elements are `stride` apart."""
        e = self.e

        def load(at: V, mask: V | None) -> V:
            offset = e.mul(at, stride)
            e.prefetch(e.gep(ahead, offset, MEMORY[block.dtype]))
            return block.vector(e, e.gep(pointer, offset, MEMORY[block.dtype]), stride, self.lanes, mask)

        self._line(goal, length, load)

    def _line(self, goal: V, length: V, load: Callable[[V, V | None], V]) -> None:
        """One line, vector by vector; the last may write beyond it."""
        e = self.e

        def copy(at: V, mask: V | None) -> None:
            e.store(load(at, mask), e.gep(goal, at, self.scalar), self.align // self.lanes)

        whole = multiple(e, length, self.lanes)
        if whole.ref != "0":
            with e.loop(e.i64(0), whole, e.i64(self.lanes)) as at:
                copy(at, None)
        if whole.ref != length.ref:
            with e.when(e.cmp("icmp slt", whole, length)):
                copy(whole, first_lanes(e, e.sub(length, whole), self.lanes))

    def panels(self, block: Block, area: V, columns: V, size: V, width: int) -> Block:
        """The right operand: panels of `width` vectors of columns, each depth by columns."""
        e = self.e
        panel = width * self.lanes
        if block.along.ref == "1" and self.lanes > 1:
            self._transposed_panels(block, area, columns, size, width)
        else:
            with e.loop(e.i64(0), size, e.i64(1)) as depth:
                line = e.gep(area, e.mul(depth, e.i64(panel)), self.scalar)

                def copy(at: V, masks: list[V | None], _: V) -> None:
                    source = block.at(e, depth, at)
                    ahead = block.at(e, e.add(depth, e.i64(AHEAD)), at)
                    goal = e.gep(line, e.mul(at, size), self.scalar)
                    for n, mask in enumerate(masks):
                        offset = e.mul(e.i64(n * self.lanes), block.across)
                        pointer = e.gep(source, offset, MEMORY[block.dtype])
                        e.prefetch(e.gep(ahead, offset, MEMORY[block.dtype]))
                        value = block.vector(e, pointer, block.across, self.lanes, mask)
                        e.store(value, e.gep(goal, e.i64(n * self.lanes), self.scalar), self.align)

                by_panels(e, columns, width, self.lanes, copy)
        return Block(area, e.i64(panel), e.mul(size, e.i64(panel)), block.computed, block.computed, panel)

    def _transposed_panels(self, block: Block, area: V, columns: V, size: V, width: int) -> None:
        """Columns whose elements lie along the depth: squares are transposed in registers. Columns past the end repeat
        the last one; what is written past the depth belongs to the next vector, or is slack."""
        e, lanes = self.e, self.lanes
        panel = e.i64(width * lanes)
        last = e.sub(columns, e.i64(1))
        with e.loop(e.i64(0), columns, panel) as first:
            goal = e.gep(area, e.mul(first, size), self.scalar)
            for n in range(width):
                listed = [e.add(first, e.i64(n * lanes + k)) for k in range(lanes)]
                listed = [e.select(e.cmp("icmp slt", c, last), c, last) for c in listed]
                sources = [block.at(e, e.i64(0), column) for column in listed]

                def square(at: V, mask: V | None) -> None:
                    rows = [
                        block.vector(e, e.gep(s, at, MEMORY[block.dtype]), e.i64(1), lanes, mask)
                        for s in sources  # noqa: B023
                    ]
                    for k, row in enumerate(transposed(e, rows)):
                        offset = e.add(e.mul(e.add(at, e.i64(k)), panel), e.i64(n * lanes))  # noqa: B023
                        e.store(row, e.gep(goal, offset, self.scalar), self.align)

                whole = multiple(e, size, lanes)
                with e.loop(e.i64(0), whole, e.i64(lanes)) as at:
                    square(at, None)
                if whole.ref != size.ref:
                    with e.when(e.cmp("icmp slt", whole, size)):
                        square(whole, first_lanes(e, e.sub(size, whole), lanes))


def multiple(e: Emitter, count: V, step: int) -> V:
    """The largest multiple of `step` up to the count: the count itself where it is one."""
    if is_number(count.ref):
        return e.i64(int(count.ref) // step * step)
    return e.sub(count, e.op("urem", count, e.i64(step)))


def by_panels(
    e: Emitter, columns: V, width: int, lanes: int, body: Callable[[V, list[V | None], V], None], filled: bool = False
) -> None:
    """`body(first column, masks, count)`: for the full panels in a loop, then for the rest, with a mask a vector.
    `filled`: there is no rest."""
    step = width * lanes
    whole = columns if filled else multiple(e, columns, step)
    if whole.ref != "0":
        with e.loop(e.i64(0), whole, e.i64(step)) as at:
            body(at, [None] * width, e.i64(step))
    if whole.ref == columns.ref:
        return
    rest = e.sub(columns, whole)
    if is_number(rest.ref):
        body(whole, [mask_of(e, rest, n * lanes, lanes) for n in range(-(-int(rest.ref) // lanes))], rest)
        return
    with e.when(e.cmp("icmp sgt", rest, e.i64(0))):
        body(whole, [mask_of(e, rest, n * lanes, lanes) for n in range(width)], rest)


def mask_of(e: Emitter, count: V, before: int, lanes: int) -> V | None:
    """The lanes of the vector behind `before` columns that lie below the count; None for all."""
    left = e.sub(count, e.i64(before))
    if is_number(left.ref):
        return None if int(left.ref) >= lanes else first_lanes(e, left, lanes)
    return first_lanes(e, e.select(e.cmp("icmp sgt", left, e.i64(0)), left, e.i64(0)), lanes)
