"""From a Kernel and a Schedule to a tile Program.

Chunks of outer tiles become the parallel loop. Inside a tile, statements run in order over on-chip buffers; parameters
are copied in once per tile, or once per chunk where they do not depend on the tile. A streamed axis is walked in
passes, one more than there are dependent folds along it; each pass recomputes what it needs. Where contractions have a
unit of their own, each step has two bodies (`products`), and the results go through a ring.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autofusion import dims
from autofusion.dims import Dim, Expr, ceildiv, minimum, range_of, substitute, symbols
from autofusion.dtypes import DType
from autofusion.errors import TargetError
from autofusion.kernel.ir import (
    Access,
    Axis,
    Contract,
    Copy,
    Fold,
    Gather,
    Kernel,
    Literal,
    Map,
    Operand,
    Scan,
    Statement,
    operands_of,
    reduced_of,
)
from autofusion.kernel.schedule import Analysis, Schedule
from autofusion.ops import Kind
from autofusion.ops.folds import FOLDS
from autofusion.target import GM, Target, Unit
from autofusion.tile.block import Block, deepened, extent_or
from autofusion.tile.drain import drained
from autofusion.tile.ir import Body, Buffer, Guard, Let, Loop, Parallel, Program, Step, verify
from autofusion.tile.offsets import Offset, shifted
from autofusion.tile.products import Products

sym = dims.symbol


def build(kernel: Kernel, schedule: Schedule, target: Target) -> Program:
    """The program of a kernel. Raises VerifyError or TargetError where the schedule is not legal for the target."""
    program = Builder(kernel, schedule, target).run()
    verify(program, target)
    return program


class Builder:
    """A program being built: `values` names the buffers of the kernel's values, `tiles` sizes what is cut."""

    def __init__(self, kernel: Kernel, schedule: Schedule, target: Target) -> None:
        self.kernel = kernel
        self.schedule = schedule
        self.target = target
        self.analysis = Analysis(kernel)
        self.vector = target.vector
        self.cube: Unit = target.unit_for(Kind.CONTRACT) or target.vector
        self.divided = self.cube is not self.vector and bool(self.analysis.contractions)
        self.params = {p.name: p for p in kernel.params}
        self.outer = self._legal_outer()
        self.stream = self._legal_stream()
        self.tiles = self.outer | self.stream
        self.resident: dict[str, int] = {}  # of an open axis that is on-chip as a whole: the most that it can be
        self.buffers: dict[str, Buffer] = {}
        self.values: dict[str, str] = {}
        drain = drained(kernel, self.analysis, target) if self.divided and not self.stream else None
        self.products = Products(self, drain)

    def _legal_outer(self) -> dict[str, int]:
        """The schedule's outer axes, in the results' order."""
        wanted = {t.axis: t.size for t in self.schedule.outer}
        illegal = [n for n in wanted if n not in self.analysis.outer]
        if illegal:
            raise TargetError(f"schedule: axis {illegal[0]} cannot be bound to cores; these can: {self.analysis.outer}")
        extents = self.analysis.extents
        return {n: max(1, min(wanted[n], extent_or(extents[n], wanted[n]))) for n in self.analysis.outer if n in wanted}

    def _legal_stream(self) -> dict[str, int]:
        """The schedule's streamed axis. A unit of its own that contracts walks the axes of its contractions itself."""
        legal = self.analysis.streamable_with(own_contractions=not self.divided)
        if self.schedule.parts > 1 and not self.divided:
            legal += self.analysis.depths
        illegal = [t.axis for t in self.schedule.stream if t.axis not in legal or t.axis in self.outer]
        if illegal:
            raise TargetError(f"schedule: axis {illegal[0]} cannot be streamed; these can: {legal}")
        return {t.axis: t.size for t in self.schedule.stream}

    def run(self) -> Program:
        if self.schedule.parts > 1 and self.stream and not self.divided:
            return Program(self.target.name, self._split())
        bodies = []
        if self.products.drain is None:
            bodies.append(Body(self.vector.name, (self._tile_body(self._vector_lines),)))
        if self.divided:
            bodies.insert(0, Body(self.cube.name, (self._tile_body(self.products.lines),)))
        step = Step((*self.products.rings, *bodies))
        return Program(self.target.name, (*self.kernel.params, *self.buffers.values(), step))

    # -- loops over tiles --------------------------------------------------------------------------------------------
    def _tile_body(self, fill: Any) -> Parallel:
        """The parallel chunks, the tiles of each chunk, the offsets and extents of a tile, and the work on it."""
        chunk, block = Block(), Block()
        counts = {n: ceildiv(self.analysis.extents[n], size) for n, size in self.outer.items()}
        total = dims.product(counts.values())
        if total == 0:
            return Parallel("c", 0, ())  # nothing to write
        fill(chunk, block)
        if total == 1:
            lets = self._lets(0, counts)
            return Parallel("c", 1, (*chunk.lines, *lets, *block.lines))
        parts = min(self.schedule.chunks, total) if isinstance(total, int) else self.schedule.chunks
        per = dims.maximum(ceildiv(total, parts), 1)  # an open axis may turn out empty
        first = sym("c") * per
        lets = self._lets(sym("t"), counts)
        loop = Loop("t", first, minimum(total, first + per), 1, (*lets, *block.lines))
        return Parallel("c", ceildiv(total, per), (*chunk.lines, loop))

    def _lets(self, tile: Dim, counts: dict[str, Dim]) -> list[Let]:
        lets: list[Let] = []
        strides: dict[str, Dim] = {}
        stride: Dim = 1
        for name in reversed(self.outer):
            strides[name] = stride
            stride = dims.multiply(stride, counts[name])
        for name, size in self.outer.items():
            lets.append(Let(f"{name}_o", dims.multiply(dims.floordiv(tile, strides[name]), size)))
            tile = dims.modulo(tile, strides[name])
            if not self._divides(name):
                left = self.analysis.extents[name] - sym(f"{name}_o")
                lets.append(Let(f"{name}_n", minimum(size, left)))
        return lets

    def _divides(self, name: str) -> bool:
        """Whether every tile along the axis is a whole one: of one element, say, whatever the extent is."""
        return dims.modulo(self.analysis.extents[name], self.tiles[name]) == 0

    def extent(self, axis: Axis) -> Dim:
        """The extent of an axis inside a tile."""
        if axis.name not in self.tiles:
            return axis.extent
        return self.tiles[axis.name] if self._divides(axis.name) else sym(f"{axis.name}_n")

    def bound(self, name: str) -> Dim:
        """The most that `extent` can be."""
        return self.tiles.get(name, self.resident.get(name, self.analysis.extents[name]))

    def global_index(self, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Tile axes -> axes of the whole: i0 -> i0_o + i0."""
        moved = {n: Offset(sym(f"{n}_o"), size, size) for n, size in self.tiles.items()}
        return tuple(shifted(i, moved) for i in index)

    # -- buffers -----------------------------------------------------------------------------------------------------
    def buffer(self, dtype: DType, shape: tuple[Dim, ...], space: str, name: str | None = None) -> str:
        name = name or f"b{len(self.buffers)}"
        self.buffers[name] = Buffer(name, dtype, shape, space)
        return name

    def value_buffer(self, statement: Statement) -> str:
        """The buffer of the value that a statement defines."""
        name = statement.target.name
        if name not in self.values:
            assert not isinstance(statement, Copy)
            shape = tuple(self._span(name, d) for d in range(len(statement.target.index)))
            free = name if name not in self.buffers else f"{name}_tiled"
            self.values[name] = self.buffer(statement.dtype, shape, self.vector.result, free)
        return self.values[name]

    def _span(self, name: str, position: int) -> Dim:
        axis = self.analysis.value_axis(name, position)
        if axis is not None:
            return self.bound(axis)
        bounds = {a: self.bound(a) for a in self.analysis.extents}
        span: Dim = 1
        for definition in self.analysis.definitions[name]:
            high = range_of(definition.target.index[position], bounds)[1]
            assert high is not None, f"{name}: the extent of dimension {position} has no bound"
            span = dims.maximum(span, dims.add(high, 1))
        return span

    def axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(a.name, self.extent(a)) for a in axes)

    # -- operands ----------------------------------------------------------------------------------------------------
    def operand(self, operand: Operand, statement: Statement, chunk: Block, block: Block) -> Operand:
        """A read inside the tile: a buffer, after the copy that fills it; literals get positions of the whole."""
        if isinstance(operand, Literal):
            value = operand.value
            return Literal(operand.dtype, self.global_index((value,))[0]) if isinstance(value, Expr) else operand
        if operand.name not in self.params:
            return Access(self.values[operand.name], operand.index)
        return self.load(operand, (*statement.axes, *reduced_of(statement)), self.vector.left, chunk, block)

    def load(self, operand: Access, axes: tuple[Axis, ...], space: str, chunk: Block, block: Block) -> Access:
        """Copy the part of a parameter that the axes run over to a buffer, once; per chunk if no tile axis matters."""
        used = {n for index in operand.index for n in symbols(index)}
        order = [str(n) for index in operand.index for n in sorted(symbols(index))]
        own = tuple(sorted((a for a in axes if a.name in used), key=lambda a: order.index(a.name)))
        moves = any(a.name in self.tiles for a in own)
        where = block if moves else chunk
        key = (operand, tuple(a.name for a in own), space)
        for known in (chunk, block):
            if key in known.loaded:
                return known.loaded[key]
        shape = tuple(self.bound(a.name) for a in own)
        index = tuple(sym(a.name) for a in own)
        name = self.buffer(self.params[operand.name].dtype, shape, space)
        target = Access(name, index)
        source = Access(operand.name, self.global_index(operand.index))
        where.lines.append(Copy(target, source, self.axes(own)))
        where.loaded[key] = target
        return target

    # -- the vector unit's work --------------------------------------------------------------------------------------
    def _vector_lines(self, chunk: Block, block: Block) -> None:
        if not self.stream:
            for statement in self.kernel.statements:
                self._emit(statement, chunk, block)
            return
        ((axis, size),) = self.stream.items()
        extent = self.analysis.extents[axis]
        if isinstance(extent, int) or self.analysis.contractions:
            self._passes(axis, chunk, block)
            return
        for fill, smaller, larger in ((self._whole, extent, size), (self._passes, size + 1, extent)):
            own_chunk, own = Block(loaded=dict(chunk.loaded)), Block(loaded=dict(block.loaded))
            before, self.values = self.values, dict(self.values)
            fill(axis, own_chunk, own)
            self.values = before
            chunk.lines += [Guard(smaller, larger, tuple(own_chunk.lines))] if own_chunk.lines else []
            block.lines.append(Guard(smaller, larger, tuple(own.lines)))

    def _whole(self, axis: str, chunk: Block, block: Block) -> None:
        """The variant for an open axis that fits into one tile: everything once, its values on-chip as a whole."""
        self.tiles, self.resident = self.outer, self.stream
        for statement in self.kernel.statements:
            self._emit(statement, chunk, block)
        self.tiles, self.resident = self.outer | self.stream, {}

    def _passes(self, axis: str, chunk: Block, block: Block) -> None:
        """The variant for an axis of any length: what lies along it is walked in tiles, once per dependent fold."""
        levels = self._levels(axis)
        for level in range(max(levels.values(), default=0) + 1):
            for statement in self.kernel.statements:
                if not self._along(statement, axis) and levels[id(statement)] == level:
                    self._emit(statement, chunk, block)
            self._pass(level, levels, (0, self.analysis.extents[axis]), chunk, block)

    # -- an axis shared between cores --------------------------------------------------------------------------------
    def _split(self) -> tuple[Any, ...]:
        """A step per level of folds along the streamed axis: each part leaves partial states in GM, the next step
        merges them in order. What does not run along the axis is computed again by every part, and stored by a last
        step."""
        (axis,) = self.stream
        levels = self._levels(axis)
        last = max(levels.values(), default=0)
        alone = [s for s in self.kernel.statements if not self._along(s, axis)]
        partials: dict[str, str] = {}
        steps: list[Step] = []
        for level in range(last + 1):
            chunk, block = Block(), Block()
            self._merge(partials, block)
            for statement in alone:
                if levels[id(statement)] <= level and statement.target.name not in self.params:
                    self._emit(statement, chunk, block)
            before = len(block.lines)
            self._pass(level, levels, self._part(axis), chunk, block)
            if len(block.lines) > before:
                self._leave_partials(axis, level, levels, partials, block)
                steps.append(self._step("c", self.schedule.parts, chunk, block))
        if any(s.target.name in self.params for s in alone):
            chunk, block = Block(), Block()
            self._merge(partials, block)
            for statement in alone:
                self._emit(statement, chunk, block)
            steps.append(self._step("c", 1, chunk, block))
        return (*self.kernel.params, *self.buffers.values(), *steps)

    def _step(self, var: str, count: int, chunk: Block, block: Block) -> Step:
        return Step((Body(self.vector.name, (Parallel(var, count, (*chunk.lines, *block.lines)),)),))

    def _part(self, axis: str) -> tuple[Dim, Dim]:
        """First and end of the part `c` of the axis, in whole tiles."""
        extent, size = self.analysis.extents[axis], self.stream[axis]
        length = ceildiv(ceildiv(extent, size), self.schedule.parts) * size
        begin = sym("c") * length
        return begin, minimum(extent, begin + length)

    def _leave_partials(
        self, axis: str, level: int, levels: dict[int, int], partials: dict[str, str], block: Block
    ) -> None:
        for statement in self.kernel.statements:
            folds = axis in {a.name for a in reduced_of(statement)}
            if folds and levels[id(statement)] == level:
                value = self.buffers[self.values[statement.target.name]]
                name = self.buffer(value.dtype, (self.schedule.parts, *value.shape), GM, f"{value.name}_parts")
                index = (sym("c"), *statement.target.index)
                source = Access(value.name, statement.target.index)
                block.lines.append(Copy(Access(name, index), source, self.axes(statement.axes)))
                partials[statement.target.name] = name

    def _merge(self, partials: dict[str, str], block: Block) -> None:
        """The whole axis's states from those of the parts."""
        for statement in self.kernel.statements:
            if statement.target.name not in partials:
                continue
            assert isinstance(statement, Fold | Contract)
            partial = self.buffers[partials[statement.target.name]]
            part = Axis("part", self.schedule.parts)
            axes = self.axes(statement.axes)
            index = (sym("part"), *statement.target.index)
            local = Access(self.buffer(partial.dtype, partial.shape, self.vector.left), index)
            block.lines.append(Copy(local, Access(partial.name, index), (part, *axes)))
            fold = statement.fold if isinstance(statement, Fold) else "sum"
            target = Access(self.value_buffer(statement), statement.target.index)
            block.lines.append(Fold(target, statement.dtype, fold, local, axes, (part,)))

    @staticmethod
    def _along(statement: Statement, axis: str) -> bool:
        return axis in {a.name for a in (*statement.axes, *reduced_of(statement))}

    def _levels(self, axis: str) -> dict[int, int]:
        """By statement: how many folds along the axis must be complete before it can run."""
        levels: dict[int, int] = {}
        ready: dict[str, int] = {}
        for statement in self.kernel.statements:
            reads = [ready[o.name] for o in operands_of(statement) if isinstance(o, Access) and o.name in ready]
            level = max(reads, default=0)
            levels[id(statement)] = level
            folds = axis in {a.name for a in reduced_of(statement)}
            ready[statement.target.name] = max(ready.get(statement.target.name, 0), level + folds)
        self._delay_stores(axis, levels)
        return levels

    def _delay_stores(self, axis: str, levels: dict[int, int]) -> None:
        """What runs along the axis is stored in its last walk: an output may be the storage of an input, which earlier
        walks would leave written for the later ones to read."""
        stores = [s for s in self.kernel.statements if self._along(s, axis) and s.target.name in self.params]
        folds = [s for s in self.kernel.statements if axis in {a.name for a in reduced_of(s)}]
        last = max((levels[id(s)] for s in (*stores, *folds)), default=0)
        for statement in stores:
            levels[id(statement)] = last

    def _pass(self, level: int, levels: dict[int, int], span: tuple[Dim, Dim], chunk: Block, block: Block) -> None:
        """One walk along the axis: the folds and stores of this level, and what they need, computed again."""
        ((axis, size),) = self.stream.items()
        along = [s for s in self.kernel.statements if self._along(s, axis)]
        wanted = [
            s
            for s in along
            if levels[id(s)] == level and (axis in {a.name for a in reduced_of(s)} or s.target.name in self.params)
        ]
        if not wanted:
            return
        needed = {id(s) for s in wanted}
        names = {o.name for s in wanted for o in operands_of(s) if isinstance(o, Access)}
        for statement in reversed(along):
            folds = axis in {a.name for a in reduced_of(statement)}
            if statement.target.name in names and not folds and statement.target.name not in self.params:
                needed.add(id(statement))
                names |= {o.name for o in operands_of(statement) if isinstance(o, Access)}
        inner, finish = Block(loaded=dict(block.loaded)), []  # type: Block, list[Statement]
        for statement in along:
            if id(statement) not in needed:
                continue
            if axis in {a.name for a in reduced_of(statement)}:
                finish += self._accumulated(statement, chunk, inner, block)
            else:
                self._emit(statement, chunk, inner)
        extent = self.analysis.extents[axis]
        lets: list[Any] = [Let(f"{axis}_o", sym(f"{axis}_t"))]
        if not self._divides(axis):
            lets.append(Let(f"{axis}_n", minimum(size, extent - sym(f"{axis}_o"))))
        block.lines.append(Loop(f"{axis}_t", *span, size, (*lets, *inner.lines)))
        block.lines += finish

    def _accumulated(self, statement: Statement, chunk: Block, inner: Block, block: Block) -> list[Statement]:
        """A fold tile by tile into one state. Long sums of float32 keep their state in float64, where the target has
        it; what then rounds the state is returned, to follow the loop."""
        assert isinstance(statement, Fold | Contract)
        wide = isinstance(statement, Fold) and FOLDS[statement.fold].compensated and statement.dtype is DType.FLOAT32
        if not wide or DType.FLOAT64 not in self.target.dtypes:
            self._start(statement, block)
            self._emit(replace(statement, accumulate=True), chunk, inner)
            return []
        assert isinstance(statement, Fold)
        self._emit(statement, chunk, inner)
        tile = self.buffers[self.values[statement.target.name]]
        name = f"{tile.name}_wide"
        if name not in self.buffers:
            self.buffer(DType.FLOAT64, tile.shape, tile.space, name)
        state, value = Access(name, statement.target.index), Access(tile.name, statement.target.index)
        axes = self.axes(statement.axes)
        block.lines.append(Copy(state, Literal(DType.FLOAT64, 0.0), axes))
        inner.lines.append(Fold(state, DType.FLOAT64, statement.fold, value, axes, (), accumulate=True))
        return [Map(value, statement.dtype, "cast", (state,), axes)]

    def _start(self, statement: Statement, block: Block) -> None:
        """Fill a fold's state with its identity."""
        assert isinstance(statement, Fold | Contract)
        fold = FOLDS[statement.fold] if isinstance(statement, Fold) else FOLDS["sum"]
        target = Access(self.value_buffer(statement), statement.target.index)
        identity = Literal(statement.dtype, fold.identity(statement.dtype))
        block.lines.append(Copy(target, identity, self.axes(statement.axes)))

    def _emit(self, statement: Statement, chunk: Block, block: Block) -> None:
        if isinstance(statement, Contract):
            if self.divided:
                self.products.take(statement, block)
            else:
                self._contract(statement, chunk, block)
            return
        if isinstance(statement, Copy):
            assert isinstance(statement.source, Access)
            source = Access(self.values[statement.source.name], statement.source.index)
            target = Access(statement.target.name, self.global_index(statement.target.index))
            block.lines.append(Copy(target, source, self.axes(statement.axes)))
            return
        target = Access(self.value_buffer(statement), statement.target.index)
        axes = self.axes(statement.axes)
        if isinstance(statement, Gather):
            position = self.operand(statement.position, statement, chunk, block)
            source = statement.source
            if source.name in self.params:
                source = Access(source.name, self.global_index(source.index))
            else:
                source = Access(self.values[source.name], source.index)
            (ordinal,) = self.global_index((statement.ordinal,))
            made: Statement = replace(
                statement, target=target, source=source, position=position, axes=axes, ordinal=ordinal
            )
        else:
            reads = tuple(self.operand(o, statement, chunk, block) for o in operands_of(statement))
            made = self._placed(statement, target, reads, axes)
        block.lines.append(made)

    def _placed(
        self, statement: Statement, target: Access, reads: tuple[Operand, ...], axes: tuple[Axis, ...]
    ) -> Statement:
        if isinstance(statement, Map):
            return replace(statement, target=target, operands=reads, axes=axes)
        if isinstance(statement, Fold):
            reduced = self.axes(statement.reduced)
            return replace(statement, target=target, operand=reads[0], axes=axes, reduced=reduced)
        assert isinstance(statement, Scan)
        return replace(statement, target=target, operand=reads[0], axes=axes)

    # -- contractions ------------------------------------------------------------------------------------------------
    def _contract(self, statement: Contract, chunk: Block, block: Block) -> None:
        """On a unit that shares its memory with the vector unit: the result is the value's buffer."""
        target = Access(self.value_buffer(statement), statement.target.index)
        if not statement.reduced:
            self._product(statement, target, chunk, block)
            return
        depth = self.schedule.block[2]
        axis = statement.reduced[0]
        whole = len(statement.reduced) > 1 or depth == 0 or (isinstance(axis.extent, int) and axis.extent <= depth)
        if whole or axis.name in self.stream:
            left = self.contract_operand(statement, statement.left, self.cube.left, chunk, block)
            right = self.contract_operand(statement, statement.right, self.cube.right, chunk, block)
            block.lines.append(
                replace(
                    statement,
                    target=target,
                    left=left,
                    right=right,
                    axes=self.axes(statement.axes),
                    reduced=self.axes(statement.reduced),
                )
            )
            return
        self._start(statement, block)
        inner = deepened(axis, depth)
        line = self._in_tiles(statement, {axis.name: depth}, target, chunk, inner)
        inner.lines.append(replace(line, accumulate=True))
        block.lines.append(Loop(f"{axis.name}_t", 0, axis.extent, depth, tuple(inner.lines)))

    def _product(self, statement: Contract, target: Access, chunk: Block, block: Block) -> None:
        """A contraction over one element is a product."""
        reads = tuple(self.operand(o, statement, chunk, block) for o in operands_of(statement))
        block.lines.append(Map(target, statement.dtype, "mul", reads, self.axes(statement.axes)))

    def _in_tiles(
        self, statement: Contract, extra: dict[str, int], target: Access, chunk: Block, block: Block
    ) -> Contract:
        """The statement with further axes cut into tiles, its operands copied to where the unit reads them."""
        before = self.tiles
        self.tiles = before | extra
        left = self.contract_operand(statement, statement.left, self.cube.left, chunk, block)
        right = self.contract_operand(statement, statement.right, self.cube.right, chunk, block)
        axes, reduced = self.axes(statement.axes), self.axes(statement.reduced)
        self.tiles = before
        return replace(statement, target=target, left=left, right=right, axes=axes, reduced=reduced)

    def contract_operand(self, statement: Contract, operand: Access, space: str, chunk: Block, block: Block) -> Access:
        """An operand tile in `space`, copied along the route from GM; a value of this kernel is read where it is."""
        if operand.name not in self.params:
            moved = {n: sym(f"{n}_o") + sym(n) for n in self.tiles if n not in self.outer and n not in self.stream}
            return Access(self.values[operand.name], tuple(substitute(i, moved) for i in operand.index))
        route = self.target.route(GM, space)
        if route is None:
            raise TargetError(f"{self.target.name} has no path from {GM} to {space}")
        axes = (*statement.axes, *statement.reduced)
        always = Block(lines=block.lines, loaded=dict(block.loaded))
        access = self.load(operand, axes, route[1], always, always)
        own = tuple(a for name in map(str, access.index) for a in axes if a.name == name)
        for space_on_way in route[2:]:
            source = self.buffers[access.name]
            name = self.buffer(source.dtype, source.shape, space_on_way)
            block.lines.append(Copy(Access(name, access.index), access, self.axes(own)))
            access = Access(name, access.index)
        return access
