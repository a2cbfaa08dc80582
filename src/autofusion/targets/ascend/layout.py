"""Where every tensor of a tile Program lies: global strides, and the unified buffer's queues and work area.

A block (the body of a loop, of the chunks or of a guard) that copies in has one tile of its level's load queue, one
that copies out has one of its store queue; what is only computed lies in the work area, by lifetime. Rows are padded
to 32 bytes. A value with one element a row repeats it over a block of 32 bytes, so that it can be an operand of whole
rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autofusion.dims import Dim
from autofusion.dtypes import DType
from autofusion.errors import TargetError
from autofusion.kernel.ir import Access, Copy, Param
from autofusion.placement import Span, first_fit
from autofusion.target import GM
from autofusion.targets.ascend.dimension import coefficient_of
from autofusion.tile import memory
from autofusion.tile.ir import Buffer, Guard, Loop, Parallel, Program, Ring, Take, statements

BLOCK = 32  # bytes: what every start is aligned to
STEP = 1 << 24  # positions of one step come before those of the next
FILLED = 7 * BLOCK // 4  # float32 elements behind the last of blocks that are filled eight at once
PARTIAL = 512  # bytes: partials of different cores share no cache line


@dataclass(frozen=True)
class Place:
    """A tensor: `strides` in elements, one a dimension; `spread`: one value fills a block of 32 bytes. `extents`: of
    its dimensions, where they are known."""

    name: str
    dtype: DType
    strides: tuple[Dim, ...]
    elements: int = 0
    spread: bool = False
    extents: tuple[int, ...] = ()

    @property
    def lanes(self) -> int:
        """Elements of a block."""
        return BLOCK // self.dtype.size

    def address(self, index: Sequence[Dim]) -> Dim:
        """Elements from the start."""
        total: Dim = 0
        for position, stride in zip(index, self.strides, strict=True):
            total = total + position * stride
        return total


@dataclass
class Block:
    """A body with its own queue tiles. `loads` and `stores` are the buffers in them, with offsets in bytes."""

    level: int
    loads: dict[str, int] = field(default_factory=dict)
    stores: dict[str, int] = field(default_factory=dict)
    load_bytes: int = 0
    store_bytes: int = 0


@dataclass
class Layout:
    """Places by tensor name, blocks by the identity of their bodies, and the work area."""

    places: dict[str, Place]
    blocks: dict[int, Block]
    work: dict[str, int]
    work_bytes: int


def slot_pitch(shape: Sequence[Dim]) -> int:
    """Elements from row to row of a tile that the cube writes into the unified buffer: of 4 bytes, in whole blocks."""
    return rounded(int(str(shape[-1])) if shape else 1, BLOCK // 4)


def slot_elements(ring: Ring) -> int:
    """Elements of a slot; slots share no cache line."""
    total = slot_pitch(ring.shape) if ring.space != GM else int(str(ring.shape[-1])) if ring.shape else 1
    for extent in ring.shape[:-1]:
        total *= int(str(extent))
    return rounded(total * 4, PARTIAL) // 4


def rounded(size: int, to: int = BLOCK) -> int:
    return -(-size // to) * to


def bodies(body: Sequence[Any], level: int = 0) -> Iterator[tuple[int, Sequence[Any]]]:
    """(level, body) of a body and of all inside it."""
    yield level, body
    for line in body:
        if isinstance(line, Loop | Guard | Parallel):
            yield from bodies(line.body, level + 1)


def layout(program: Program) -> Layout:
    """The layout of a program's vector bodies. Raises TargetError for what this generator cannot place."""
    return _Layout(program).run()


class _Layout:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.onchip = {b.name: b for b in program.buffers.values() if b.space == "UB"}
        self.unit = BLOCK // 2 if any(b.dtype.size == 2 for b in self.onchip.values()) else 1
        self.elsewhere = {b.name for b in program.buffers.values() if b.space not in (GM, "UB")}
        self.places: dict[str, Place] = {}
        self.blocks: dict[int, Block] = {}
        self.moved: set[str] = set()  # buffers in queue tiles

    def run(self) -> Layout:
        outside: tuple[Param | Buffer, ...] = (*self.program.params, *self.program.workspace)
        for tensor in outside:
            self.places[tensor.name] = self._global(tensor)
        for step in self.program.steps:
            for unit in step.bodies:
                for parallel in unit.body if unit.unit == "vector" else ():
                    for level, body in bodies(parallel.body):
                        self._block(level, body)
        for name, buffer in self.onchip.items():
            self.places.setdefault(name, self._value(name, buffer.dtype, self._extents(name)))
        work, size = self._work()
        return Layout(self.places, self.blocks, work, size)

    def _global(self, tensor: Param | Buffer) -> Place:
        if isinstance(tensor, Param):
            strides = tensor.strides if tensor.strides is not None else _row_major(tensor.shape)
            return Place(tensor.name, tensor.dtype, tuple(strides))
        shape = tensor.shape
        inner = _row_major(shape[1:])
        per = 1
        for extent in shape[1:]:
            per *= self._int(tensor.name, extent)
        pitch = rounded(per * tensor.dtype.size, PARTIAL) // tensor.dtype.size
        return Place(tensor.name, tensor.dtype, (pitch, *inner), pitch * self._int(tensor.name, shape[0]))

    @staticmethod
    def _int(name: str, extent: Dim) -> int:
        if not isinstance(extent, int):
            raise TargetError(f"{name}: an extent of {extent} has no bound, and on-chip memory is reserved beforehand")
        return extent

    def _extents(self, name: str) -> tuple[int, ...]:
        return tuple(self._int(name, extent) for extent in self.onchip[name].shape)

    def _value(self, name: str, dtype: DType, extents: tuple[int, ...], order: Sequence[int] | None = None) -> Place:
        """Row-major in `order` (of the dimensions), the last padded to blocks: of two-byte elements where there are
        some, so that rows of all types are equally long. Blocks of one value are filled eight at once."""
        order = list(range(len(extents))) if order is None else list(order)
        lanes = BLOCK // dtype.size
        spread = not extents or extents[order[-1]] == 1
        strides = [0] * len(extents)
        size = 1
        for position, dimension in enumerate(reversed(order)):
            strides[dimension] = size
            size *= extents[dimension]
            if position == 0:
                size = lanes if spread else rounded(size, max(lanes, self.unit))
        size = max(size, lanes) + (FILLED if spread and dtype is DType.FLOAT32 else 0)
        return Place(name, dtype, tuple(strides), size, spread, extents)

    # -- queue tiles -------------------------------------------------------------------------------------------------
    def _block(self, level: int, body: Sequence[Any]) -> None:
        block = self.blocks[id(body)] = Block(level)
        for line in body:
            if isinstance(line, Copy) and self._loads(line):
                name = line.target.name
                self.places[name] = self._loaded(line)
                block.loads[name] = block.load_bytes
                block.load_bytes += rounded(self.places[name].elements * self.places[name].dtype.size)
                self.moved.add(name)
            elif isinstance(line, Take) and self.program.space_of(line.ring) != GM:
                self.places[line.buffer] = self._direct(line.buffer)
                self.moved.add(line.buffer)
            elif isinstance(line, Take):
                name = line.buffer
                self.places[name] = self._slot(name)
                block.loads[name] = block.load_bytes
                block.load_bytes += rounded(self.places[name].elements * self.places[name].dtype.size)
                self.moved.add(name)
        direct = [n for n in self.onchip if n not in self.moved and self._made_in(n, body)]
        for line in body:
            if isinstance(line, Copy) and self._stores(line):
                assert isinstance(line.source, Access)
                name = line.source.name
                if name in block.stores:
                    continue
                place = self._value(name, self.onchip[name].dtype, self._extents(name))
                if name in direct:
                    self.places[name] = place
                    self.moved.add(name)
                block.stores[name] = block.store_bytes
                block.store_bytes += rounded(place.elements * place.dtype.size)

    def _slot(self, name: str) -> Place:
        """A tile of the cube's: of a row with one element only that is there, not the block that it would fill."""
        made = self._value(name, self.onchip[name].dtype, self._extents(name))
        if not made.spread:
            return made
        pitch = slot_pitch(self.onchip[name].shape)
        strides = (*(s // made.lanes * pitch for s in made.strides[:-1]), 1)
        return Place(name, made.dtype, strides if made.strides else (), made.elements)

    def _direct(self, name: str) -> Place:
        """A tile where the cube writes it: rows of 4-byte elements, whatever else the kernel has."""
        made = self._slot(name)
        if len(made.strides) < 2:
            return made
        *outer, row, last = (int(str(stride)) for stride in made.strides)
        pitch = slot_pitch(self.onchip[name].shape)
        strides = (*(stride // row * pitch for stride in outer), pitch, last)
        return replace(made, strides=strides, elements=made.elements // row * pitch)

    def _loads(self, line: Copy) -> bool:
        return isinstance(line.source, Access) and self._in_gm(line.source.name) and not self._in_gm(line.target.name)

    def _stores(self, line: Copy) -> bool:
        return isinstance(line.source, Access) and not self._in_gm(line.source.name) and self._in_gm(line.target.name)

    def _in_gm(self, name: str) -> bool:
        return name in self.places and name not in self.onchip

    def _made_in(self, name: str, body: Sequence[Any]) -> bool:
        """Whether everything that writes a buffer stands directly in a body."""
        here = [s for s in body if getattr(getattr(s, "target", None), "name", None) == name]
        everywhere = [s for s in self._all() if s.target.name == name]
        return bool(here) and len(here) == len(everywhere)

    def _all(self) -> list[Any]:
        return [s for step in self.program.steps for unit in step.bodies for p in unit.body for s in statements(p.body)]

    def _loaded(self, line: Copy) -> Place:
        """A tile in the order of global memory, so that whole rows are copied; elements that are nowhere next to each
        other lie a block apart."""
        assert isinstance(line.source, Access)
        buffer = self.onchip[line.target.name]
        extents = self._extents(buffer.name)
        address = self.places[line.source.name].address(line.source.index)
        axes = [str(index) for index in line.target.index]
        factors = [coefficient_of(address, axis) for axis in axes]
        inner = next((d for d in reversed(range(len(axes))) if factors[d] == 1), None)
        lanes = BLOCK // buffer.dtype.size
        if inner is None:
            sparse = self._value(buffer.name, buffer.dtype, (*extents, 1))
            strides, size = sparse.strides[:-1] if extents else (), max(sparse.elements, lanes)
            return Place(buffer.name, buffer.dtype, strides, size, extents=extents)
        order = [d for d in range(len(axes)) if d != inner] + [inner]
        made = self._value(buffer.name, buffer.dtype, extents, order)
        return Place(buffer.name, buffer.dtype, made.strides, made.elements, extents=extents)

    # -- the work area -----------------------------------------------------------------------------------------------
    def _work(self) -> tuple[dict[str, int], int]:
        """Offsets of what is only computed, by lifetime; what several steps use lives through all of them."""
        lives: dict[str, tuple[int, int]] = {}
        for life in memory.lifetimes(self.program, {}):
            if life.name in self.onchip and life.name not in self.moved:
                first, last = (life.step * STEP + at for at in (life.first, life.last))
                before = lives.get(life.name, (first, last))
                lives[life.name] = min(first, before[0]), max(last, before[1])
        spans = [
            Span(name, rounded(self.places[name].elements * self.places[name].dtype.size), first, last)
            for name, (first, last) in lives.items()
        ]
        offsets, total = first_fit(spans, BLOCK)
        assert isinstance(total, int)
        return {name: int(str(offset)) for name, offset in offsets.items()}, total


def _row_major(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    strides: list[Dim] = []
    size: Dim = 1
    for extent in reversed(shape):
        strides.append(size)
        size = size * extent
    return tuple(reversed(strides))
