"""Contractions on a unit of their own: a tile of the result in blocks, each computed there and collected here.

    the cube      for each block: start the accumulator, walk the depth, put the result into the ring
    the vector    for each block: take it from the ring, into the value's buffer

Where everything behind a contraction happens on its way out (`drain`), the cube stores the blocks itself.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING

from autofusion import dims
from autofusion.dims import Dim, Expr, minimum, substitute, symbols
from autofusion.errors import TargetError
from autofusion.kernel.ir import Access, Axis, Contract, Copy, Literal, Map, Operand
from autofusion.target import GM
from autofusion.tile.block import Block, deepened, within
from autofusion.tile.drain import BIAS, Drain
from autofusion.tile.ir import Let, Loop, Put, Ring, Take
from autofusion.tile.offsets import Offset, shifted

if TYPE_CHECKING:
    from autofusion.tile.build import Builder

sym = dims.symbol


class Products:
    """Writes blocks. `of`: the program being built; `drain`: how results leave, where not through a ring."""

    def __init__(self, of: Builder, drain: Drain | None) -> None:
        self.of = of
        self.drain = drain
        self.rings: list[Ring] = []
        self.whole: set[str] = set()  # axes along which a block of the contraction at hand is the whole tile

    def lines(self, chunk: Block, block: Block) -> None:
        """The cube's share of a tile: every contraction in blocks, each block's result put into the ring."""
        for statement in self.of.analysis.contractions:
            self._blocked(statement, block, put=True)

    def take(self, statement: Contract, block: Block) -> None:
        """The vector unit's share: collect the blocks of a contraction's result."""
        self._blocked(statement, block, put=False)

    def _blocked(self, statement: Contract, block: Block, put: bool) -> None:
        sizes = self._block_sizes(statement)
        self.whole = {a.name for a in statement.axes if self._is_whole(a, sizes[a.name])}
        loops = [(a, sizes[a.name]) for a in statement.axes if a.name not in self.whole]
        outer_extents = {a.name: self.of.extent(a) for a in statement.axes}
        inner = Block()
        for axis, size in loops:
            inner.lines.append(Let(f"{axis.name}_b", sym(f"{axis.name}_u")))
            if self._block_extent(axis, size) != size:
                left = outer_extents[axis.name] - sym(f"{axis.name}_b")
                inner.lines.append(Let(f"{axis.name}_m", minimum(size, left)))
        (self._compute_block if put else self._collect_block)(statement, sizes, inner)
        lines = tuple(inner.lines)
        for axis, size in reversed(loops):
            extent = outer_extents[axis.name]
            head = [x for x in lines if isinstance(x, Let) and x.name.startswith(f"{axis.name}_")]
            rest = tuple(x for x in lines if x not in head)
            lines = (Loop(f"{axis.name}_u", 0, extent, size, (*head, *rest)),)
        block.lines += lines

    def _is_whole(self, axis: Axis, size: int) -> bool:
        """Whether one block is the whole tile along an axis: tiles along an outer axis have an element at least."""
        extent, bound = self.of.extent(axis), self.of.bound(axis.name)
        fits = isinstance(bound, int) and bound <= size
        return fits and (axis.name in self.of.outer or (isinstance(extent, int) and extent > 0))

    def _begin(self, axis: str) -> Dim:
        """Where a block begins in its tile."""
        return 0 if axis in self.whole else sym(f"{axis}_b")

    def _block_sizes(self, statement: Contract) -> dict[str, int]:
        """Sizes of a block along the contraction's axes: rows and columns by the schedule, others one at a time."""
        names = map(str, statement.target.index[-2:])
        by_position = dict(zip(names, self.of.schedule.block, strict=False))
        sizes = {}
        for axis in statement.axes:
            bound = self.of.bound(axis.name)
            wanted = by_position.get(axis.name, 1)
            sizes[axis.name] = max(1, min(wanted, bound)) if isinstance(bound, int) else wanted
        return sizes

    def _inside(self, statement: Contract, sizes: dict[str, int]) -> tuple[Axis, ...]:
        return tuple(Axis(a.name, self._block_extent(a, sizes[a.name])) for a in statement.axes)

    def _block_extent(self, axis: Axis, size: int) -> Dim:
        """The extent of a block's axis: its size, or the least of that and what is left of the tile."""
        extent = self.of.extent(axis)
        if axis.name in self.whole:
            return extent
        return size if isinstance(extent, int) and extent % size == 0 else sym(f"{axis.name}_m")

    def _ring(self, statement: Contract, sizes: dict[str, int]) -> Ring:
        name = f"r{statement.target.name}"
        known = next((r for r in self.rings if r.name == name), None)
        if known is None:
            shape = tuple(sizes.get(str(i), 1) for i in statement.target.index)
            direct = (self.of.cube.result, self.of.vector.left) in self.of.target.paths
            space = self.of.vector.left if direct else GM
            known = Ring(name, statement.dtype, shape, 2, space, self.of.cube.name, self.of.vector.name)
            self.rings.append(known)
        return known

    def _compute_block(self, statement: Contract, sizes: dict[str, int], block: Block) -> None:
        shape = tuple(sizes.get(str(i), 1) for i in statement.target.index)
        result = self.of.buffer(statement.dtype, shape, self.of.cube.result)
        ring = self._ring(statement, sizes) if self.drain is None else None
        target = Access(result, statement.target.index)
        axes = self._inside(statement, sizes)
        depth = 1
        inner, reduced = block, statement.reduced
        shift = {a.name: dims.add(self._begin(a.name), sym(a.name)) for a in statement.axes}
        first: Operand = Literal(statement.dtype, 0.0 if statement.dtype.is_float else 0)
        if self.drain is not None and self.drain.bias is not None:
            first = self._block_operand(statement, self.drain.bias, BIAS, sizes, shift, block)
        block.lines.append(Copy(target, first, axes))
        if reduced:
            depth = self._depth(statement)
            inner = deepened(reduced[0], depth)
        operands = []
        for operand, space in ((statement.left, self.of.cube.left), (statement.right, self.of.cube.right)):
            operands.append(self._block_operand(statement, operand, space, sizes, shift, inner))
        size = depth if reduced else 1
        folded = tuple(Axis(a.name, self._depth_extent(a, size)) for a in reduced)
        line = replace(
            statement, target=target, left=operands[0], right=operands[1], axes=axes, reduced=folded, accumulate=True
        )
        inner.lines.append(line)
        if reduced:
            block.lines.append(Loop(f"{reduced[0].name}_t", 0, reduced[0].extent, size, tuple(inner.lines)))
        if ring is not None:
            block.lines.append(Put(ring.name, result))
            return
        assert self.drain is not None
        moved = dict(shift)
        for name in self.of.outer:
            moved[name] = sym(f"{name}_o") + moved.get(name, sym(name))
        goal = Access(self.drain.target.name, tuple(substitute(i, moved) for i in self.drain.target.index))
        block.lines.append(Copy(goal, target, axes, self.drain.through, self.drain.scale))

    def _depth(self, statement: Contract) -> int:
        """The schedule's depth of a block, or less where an operand's depth is made of parts (heads, say), so that no
        block crosses from one to the next."""
        axis = statement.reduced[0]
        depth = within(self.of.schedule.block[2], axis)
        indices = (*statement.left.index, *statement.right.index)
        parts = gcd(*[d for i in indices for d in dims.divisors(i, axis.name)], 0)
        while parts and parts % depth:
            depth -= 1
        return depth

    def _depth_extent(self, axis: Axis, size: int) -> Dim:
        exact = isinstance(axis.extent, int) and axis.extent % size == 0
        return size if exact else sym(f"{axis.name}_n")

    def _block_operand(
        self,
        statement: Contract,
        operand: Access,
        space: str,
        sizes: dict[str, int],
        shift: dict[str, Dim],
        block: Block,
    ) -> Access:
        route = self.of.target.route(GM, space)
        literal = self._literal_behind(operand)
        if route is None or (operand.name not in self.of.params and literal is None):
            raise TargetError(f"{self.of.target.name} has no path for operand {operand.name} to {space}")
        depth = {a.name for a in statement.reduced}
        used = {n for i in operand.index for n in symbols(i)}
        if space in (self.of.cube.left, self.of.cube.right):  # the unit reads what repeats, too
            used |= symbols((0, 0, *statement.target.index)[-2 if space == self.of.cube.left else -1]) | depth
        own = [a for a in (*statement.axes, *statement.reduced) if a.name in used]
        size = {a.name: self._depth(statement) for a in statement.reduced}
        shape = tuple(size[a.name] if a.name in depth else sizes[a.name] for a in own)
        axes = tuple(
            Axis(
                a.name,
                self._depth_extent(a, size[a.name]) if a.name in depth else self._block_extent(a, sizes[a.name]),
            )
            for a in own
        )
        index = tuple(sym(a.name) for a in own)
        blocks = {a.name: self.of.outer.get(a.name, sizes[a.name]) for a in statement.axes}
        moved = {n: Offset(self._begin(n), sizes[n], sizes[n]) for n in blocks}
        moved |= {n: Offset(sym(f"{n}_o"), size[n], size[n]) for n in depth}
        for name, tile in self.of.outer.items():
            inner = moved.get(name, Offset(0, tile, tile))
            moved[name] = Offset(dims.add(sym(f"{name}_o"), inner.start), gcd(tile, inner.step), inner.bound)
        if literal is not None:
            value = shifted(literal.value, moved) if isinstance(literal.value, Expr) else literal.value
            target = Access(self.of.buffer(literal.dtype, shape, space), index)
            block.lines.append(Copy(target, Literal(literal.dtype, value), axes))
            return target
        source = Access(operand.name, tuple(shifted(i, moved) for i in operand.index))
        dtype = self.of.params[operand.name].dtype
        for stop in route[1:]:
            name = self.of.buffer(dtype, shape, stop)
            block.lines.append(Copy(Access(name, index), source, axes))
            source = Access(name, index)
        return source

    def _literal_behind(self, operand: Access) -> Literal | None:
        """The literal that a value holds everywhere; None for other values and for parameters."""
        made = self.of.analysis.definitions.get(operand.name, [None])[0]
        if isinstance(made, Map) and made.op == "copy" and isinstance(made.operands[0], Literal):
            return made.operands[0]
        return None

    def _collect_block(self, statement: Contract, sizes: dict[str, int], block: Block) -> None:
        ring = self._ring(statement, sizes)
        slot = self.of.buffer(statement.dtype, ring.shape, self.of.vector.left)
        block.lines.append(Take(slot, ring.name))
        value = self.of.value_buffer(statement)
        shift = {a.name: dims.add(self._begin(a.name), sym(a.name)) for a in statement.axes}
        target = Access(value, tuple(substitute(i, shift) for i in statement.target.index))
        block.lines.append(Copy(target, Access(slot, statement.target.index), self._inside(statement, sizes)))
