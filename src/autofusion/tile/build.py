"""From a Kernel and a Schedule to a tile Program.

Chunks of outer tiles become the parallel loop. Inside a tile, statements run in order over on-chip buffers; parameters
are copied in once per tile, or once per chunk where they do not depend on the tile. A streamed axis is walked in
passes, one more than there are dependent folds along it; each pass recomputes what it needs. Where contractions have a
unit of their own, each step has two bodies, and the results go through a ring.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import gcd, lcm
from typing import Any, cast

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
from autofusion.tile.ir import Body, Buffer, Guard, Let, Loop, Parallel, Program, Put, Ring, Step, Take, verify

sym = dims.symbol


def build(kernel: Kernel, schedule: Schedule, target: Target) -> Program:
    """The program of a kernel. Raises VerifyError or TargetError where the schedule is not legal for the target."""
    program = _Builder(kernel, schedule, target).run()
    verify(program, target)
    return program


@dataclass
class _Block:
    """Statements being collected, and the parameter tiles already in buffers there."""

    lines: list[Any] = field(default_factory=list)
    loaded: dict[tuple[Any, ...], Access] = field(default_factory=dict)


@dataclass(frozen=True)
class _Drain:
    """How a contraction's result leaves for global memory: the first value of its accumulator, a factor and ops on the
    way, and where to."""

    bias: Access | None
    through: tuple[str, ...]
    target: Access
    scale: float = 1.0


BIAS = "BT"  # the space that accumulators can start from
SCALE_DIGITS = 11  # binary digits of a factor on the way out: the low 13 of float32's 24 are dropped
FLOAT16_MOST = 65504.0


class _Builder:
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
        self.rings: list[Ring] = []
        self.values: dict[str, str] = {}
        self.whole: set[str] = set()  # axes along which a block of the contraction at hand is the whole tile
        self.drain = self._drained() if self.divided else None

    def _legal_outer(self) -> dict[str, int]:
        """The schedule's outer axes, in the results' order."""
        wanted = {t.axis: t.size for t in self.schedule.outer}
        illegal = [n for n in wanted if n not in self.analysis.outer]
        if illegal:
            raise TargetError(f"schedule: axis {illegal[0]} cannot be bound to cores; these can: {self.analysis.outer}")
        extents = self.analysis.extents
        return {n: max(1, min(wanted[n], _int(extents[n], wanted[n]))) for n in self.analysis.outer if n in wanted}

    def _legal_stream(self) -> dict[str, int]:
        """The schedule's streamed axis. A unit of its own that contracts walks the axes of its contractions itself."""
        legal = self.analysis.streamable_with(own_contractions=not self.divided)
        illegal = [t.axis for t in self.schedule.stream if t.axis not in legal or t.axis in self.outer]
        if illegal:
            raise TargetError(f"schedule: axis {illegal[0]} cannot be streamed; these can: {legal}")
        return {t.axis: t.size for t in self.schedule.stream}

    def run(self) -> Program:
        if self.schedule.parts > 1 and self.stream and not self.divided:
            return Program(self.target.name, self._split())
        bodies = [] if self.drain else [Body(self.vector.name, (self._tile_body(self.vector, self._vector_lines),))]
        if self.divided:
            bodies.insert(0, Body(self.cube.name, (self._tile_body(self.cube, self._cube_lines),)))
        step = Step((*self.rings, *bodies))
        return Program(self.target.name, (*self.kernel.params, *self.buffers.values(), step))

    def _drained(self) -> _Drain | None:
        """What follows the only contraction, where all of it happens on the way out: a row bias as the accumulator's
        first value, and then what the path from the results to global memory performs. None where there is more."""
        if len(self.analysis.contractions) != 1 or self.stream:
            return None
        (statement,) = self.analysis.contractions
        path = self.target.paths.get((self.cube.result, GM))
        if path is None:
            return None
        value, bias, through = statement.target, None, []  # type: Access, Access | None, list[str]
        leaves, scale = statement.dtype, None  # type: DType, float | None
        for line in self.kernel.statements:
            if line is statement:
                continue
            reads = [o for o in operands_of(line) if isinstance(o, Access) and o.name == value.name]
            if len(reads) != 1 or reads[0] != value or self._readers(value.name) != 1:
                return None
            if isinstance(line, Copy):
                fits = line.target.name in self.params and self.params[line.target.name].dtype is leaves
                if leaves is not statement.dtype and not statement.dtype.is_float:
                    fits = fits and self._is_exact(statement, scale or 1.0, leaves, bias is not None)
                return _Drain(bias, tuple(through), line.target, scale or 1.0) if fits else None
            found = self._way(line, value, leaves)
            if isinstance(found, Access):
                if bias is not None or through or leaves is not statement.dtype or self.target.route(GM, BIAS) is None:
                    return None
                bias = found
            elif isinstance(found, float):
                if scale is not None or statement.dtype.is_float or found <= 0 or "scale" not in path.performs:
                    return None
                scale = found
            elif found == "cast" and found in path.performs:
                leaves = cast(Map, line).dtype  # by the type of what it is copied to
            elif found in path.performs and not through:
                through.append(found)
            elif found != "":
                return None
            value = line.target
        return None

    def _is_exact(self, statement: Contract, scale: float, leaves: DType, biased: bool) -> bool:
        """Whether an integer result that is multiplied by a number on its way out is what the graph asks for: the
        number has no more digits than the path keeps, and no result is beyond the range of float16, where the path
        stops at the greatest finite number."""
        if leaves is not DType.FLOAT16 or math.frexp(scale)[0] * 2**SCALE_DIGITS % 1 or scale < 2.0**-126:
            return False
        width = self.params[statement.left.name].dtype.size if statement.left.name in self.params else 4
        depth = dims.product(a.extent for a in statement.reduced)
        most = 2**31
        if isinstance(depth, int) and not biased and width == 1:
            most = min(most, depth << 14)
        return most * scale < FLOAT16_MOST

    def _readers(self, name: str) -> int:
        return sum(isinstance(o, Access) and o.name == name for s in self.kernel.statements for o in operands_of(s))

    def _way(self, line: Statement, value: Access, now: DType) -> Access | float | str | None:
        """What a map does to a result that is of type `now` by then, as the copy path names it; a row bias as its
        operand; a factor as a number; "" for nothing."""
        if not isinstance(line, Map) or line.target.index != value.index:
            return None
        others = [o for o in line.operands if o != value]
        if line.op == "cast":
            if line.dtype is now:
                return ""
            narrow = now in (DType.FLOAT32, DType.INT32) and line.dtype.is_reduced
            return "cast" if narrow or (now, line.dtype) == (DType.INT32, DType.FLOAT32) else None
        if line.op == "mul" and len(others) == 1 and isinstance(others[0], Literal) and line.dtype is DType.FLOAT32:
            factor = others[0].value
            return None if isinstance(factor, Expr) or now is not DType.FLOAT32 else float(factor)
        if line.op == "maximum" and others == [Literal(line.dtype, 0.0)] and line.dtype is now:
            return "relu"
        if line.op == "add" and len(others) == 1 and isinstance(others[0], Access) and line.dtype is now:
            other: Access = others[0]
            columns = {str(i) for i in value.index[-1:]}
            outside = self.params.get(other.name)
            used = {n for i in other.index for n in symbols(i)}
            types = (now, *((DType.FLOAT16,) if now is DType.FLOAT32 else ()))
            return other if outside is not None and outside.dtype in types and used == columns else None
        return None

    # -- loops over tiles --------------------------------------------------------------------------------------------
    def _tile_body(self, unit: Unit, fill: Any) -> Parallel:
        """The parallel chunks, the tiles of each chunk, the offsets and extents of a tile, and the work on it."""
        chunk, block = _Block(), _Block()
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
        moved = {n: _Offset(sym(f"{n}_o"), size, size) for n, size in self.tiles.items()}
        return tuple(_shifted(i, moved) for i in index)

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
    def operand(self, operand: Operand, statement: Statement, chunk: _Block, block: _Block) -> Operand:
        """A read inside the tile: a buffer, after the copy that fills it; literals get positions of the whole."""
        if isinstance(operand, Literal):
            value = operand.value
            return Literal(operand.dtype, self.global_index((value,))[0]) if isinstance(value, Expr) else operand
        if operand.name not in self.params:
            return Access(self.values[operand.name], operand.index)
        return self.load(operand, (*statement.axes, *reduced_of(statement)), self.vector.left, chunk, block)

    def load(self, operand: Access, axes: tuple[Axis, ...], space: str, chunk: _Block, block: _Block) -> Access:
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
    def _vector_lines(self, chunk: _Block, block: _Block) -> None:
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
            own_chunk, own = _Block(loaded=dict(chunk.loaded)), _Block(loaded=dict(block.loaded))
            before, self.values = self.values, dict(self.values)
            fill(axis, own_chunk, own)
            self.values = before
            chunk.lines += [Guard(smaller, larger, tuple(own_chunk.lines))] if own_chunk.lines else []
            block.lines.append(Guard(smaller, larger, tuple(own.lines)))

    def _whole(self, axis: str, chunk: _Block, block: _Block) -> None:
        """The variant for an open axis that fits into one tile: everything once, its values on-chip as a whole."""
        self.tiles, self.resident = self.outer, self.stream
        for statement in self.kernel.statements:
            self._emit(statement, chunk, block)
        self.tiles, self.resident = self.outer | self.stream, {}

    def _passes(self, axis: str, chunk: _Block, block: _Block) -> None:
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
            chunk, block = _Block(), _Block()
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
            chunk, block = _Block(), _Block()
            self._merge(partials, block)
            for statement in alone:
                self._emit(statement, chunk, block)
            steps.append(self._step("c", 1, chunk, block))
        return (*self.kernel.params, *self.buffers.values(), *steps)

    def _step(self, var: str, count: int, chunk: _Block, block: _Block) -> Step:
        return Step((Body(self.vector.name, (Parallel(var, count, (*chunk.lines, *block.lines)),)),))

    def _part(self, axis: str) -> tuple[Dim, Dim]:
        """First and end of the part `c` of the axis, in whole tiles."""
        extent, size = self.analysis.extents[axis], self.stream[axis]
        length = ceildiv(ceildiv(extent, size), self.schedule.parts) * size
        begin = sym("c") * length
        return begin, minimum(extent, begin + length)

    def _leave_partials(
        self, axis: str, level: int, levels: dict[int, int], partials: dict[str, str], block: _Block
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

    def _merge(self, partials: dict[str, str], block: _Block) -> None:
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

    def _pass(self, level: int, levels: dict[int, int], span: tuple[Dim, Dim], chunk: _Block, block: _Block) -> None:
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
        inner, finish = _Block(loaded=dict(block.loaded)), []  # type: _Block, list[Statement]
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

    def _accumulated(self, statement: Statement, chunk: _Block, inner: _Block, block: _Block) -> list[Statement]:
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

    def _start(self, statement: Statement, block: _Block) -> None:
        """Fill a fold's state with its identity."""
        assert isinstance(statement, Fold | Contract)
        fold = FOLDS[statement.fold] if isinstance(statement, Fold) else FOLDS["sum"]
        target = Access(self.value_buffer(statement), statement.target.index)
        identity = Literal(statement.dtype, fold.identity(statement.dtype))
        block.lines.append(Copy(target, identity, self.axes(statement.axes)))

    def _emit(self, statement: Statement, chunk: _Block, block: _Block) -> None:
        if isinstance(statement, Contract):
            if self.divided:
                self._take(statement, block)
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
    def _contract(self, statement: Contract, chunk: _Block, block: _Block) -> None:
        """On a unit that shares its memory with the vector unit: the result is the value's buffer."""
        target = Access(self.value_buffer(statement), statement.target.index)
        if not statement.reduced:
            self._product(statement, target, chunk, block)
            return
        depth = self.schedule.block[2]
        axis = statement.reduced[0]
        whole = len(statement.reduced) > 1 or (isinstance(axis.extent, int) and axis.extent <= depth)
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
        inner = self._deepened(axis, depth)
        line = self._in_tiles(statement, {axis.name: depth}, target, chunk, inner)
        inner.lines.append(replace(line, accumulate=True))
        block.lines.append(Loop(f"{axis.name}_t", 0, axis.extent, depth, tuple(inner.lines)))

    def _product(self, statement: Contract, target: Access, chunk: _Block, block: _Block) -> None:
        """A contraction over one element is a product."""
        reads = tuple(self.operand(o, statement, chunk, block) for o in operands_of(statement))
        block.lines.append(Map(target, statement.dtype, "mul", reads, self.axes(statement.axes)))

    def _deepened(self, axis: Axis, size: int) -> _Block:
        block = _Block()
        block.lines.append(Let(f"{axis.name}_o", sym(f"{axis.name}_t")))
        if not (isinstance(axis.extent, int) and axis.extent % size == 0):
            block.lines.append(Let(f"{axis.name}_n", minimum(size, axis.extent - sym(f"{axis.name}_o"))))
        return block

    def _in_tiles(
        self, statement: Contract, extra: dict[str, int], target: Access, chunk: _Block, block: _Block
    ) -> Contract:
        """The statement with further axes cut into tiles, its operands copied to where the unit reads them."""
        before = self.tiles
        self.tiles = before | extra
        left = self.contract_operand(statement, statement.left, self.cube.left, chunk, block)
        right = self.contract_operand(statement, statement.right, self.cube.right, chunk, block)
        axes, reduced = self.axes(statement.axes), self.axes(statement.reduced)
        self.tiles = before
        return replace(statement, target=target, left=left, right=right, axes=axes, reduced=reduced)

    def contract_operand(
        self, statement: Contract, operand: Access, space: str, chunk: _Block, block: _Block
    ) -> Access:
        """An operand tile in `space`, copied along the route from GM; a value of this kernel is read where it is."""
        if operand.name not in self.params:
            moved = {n: sym(f"{n}_o") + sym(n) for n in self.tiles if n not in self.outer and n not in self.stream}
            return Access(self.values[operand.name], tuple(substitute(i, moved) for i in operand.index))
        route = self.target.route(GM, space)
        if route is None:
            raise TargetError(f"{self.target.name} has no path from {GM} to {space}")
        axes = (*statement.axes, *statement.reduced)
        always = _Block(lines=block.lines, loaded=dict(block.loaded))
        access = self.load(operand, axes, route[1], always, always)
        own = tuple(a for name in map(str, access.index) for a in axes if a.name == name)
        for space_on_way in route[2:]:
            source = self.buffers[access.name]
            name = self.buffer(source.dtype, source.shape, space_on_way)
            block.lines.append(Copy(Access(name, access.index), access, self.axes(own)))
            access = Access(name, access.index)
        return access

    # -- a cube of its own -------------------------------------------------------------------------------------------
    def _cube_lines(self, chunk: _Block, block: _Block) -> None:
        """The cube's share of a tile: every contraction in blocks, each block's result put into the ring."""
        for statement in self.analysis.contractions:
            self._blocked(statement, block, put=True)

    def _take(self, statement: Contract, block: _Block) -> None:
        """The vector unit's share: collect the blocks of a contraction's result."""
        self._blocked(statement, block, put=False)

    def _blocked(self, statement: Contract, block: _Block, put: bool) -> None:
        sizes = self._block_sizes(statement)
        self.whole = {a.name for a in statement.axes if self._is_whole(a, sizes[a.name])}
        loops = [(a, sizes[a.name]) for a in statement.axes if a.name not in self.whole]
        before = self.tiles
        outer_extents = {a.name: self.extent(a) for a in statement.axes}
        inner = _Block()
        for axis, size in loops:
            inner.lines.append(Let(f"{axis.name}_b", sym(f"{axis.name}_u")))
            if self._block_extent(axis, size) != size:
                left = outer_extents[axis.name] - sym(f"{axis.name}_b")
                inner.lines.append(Let(f"{axis.name}_m", minimum(size, left)))
        (self._compute_block if put else self._collect_block)(statement, sizes, inner)
        self.tiles = before
        lines = tuple(inner.lines)
        for axis, size in reversed(loops):
            extent = outer_extents[axis.name]
            head = [x for x in lines if isinstance(x, Let) and x.name.startswith(f"{axis.name}_")]
            rest = tuple(x for x in lines if x not in head)
            lines = (Loop(f"{axis.name}_u", 0, extent, size, (*head, *rest)),)
        block.lines += lines

    def _is_whole(self, axis: Axis, size: int) -> bool:
        """Whether one block is the whole tile along an axis: tiles along an outer axis have an element at least."""
        extent, bound = self.extent(axis), self.bound(axis.name)
        fits = isinstance(bound, int) and bound <= size
        return fits and (axis.name in self.outer or (isinstance(extent, int) and extent > 0))

    def _begin(self, axis: str) -> Dim:
        """Where a block begins in its tile."""
        return 0 if axis in self.whole else sym(f"{axis}_b")

    def _block_sizes(self, statement: Contract) -> dict[str, int]:
        """Sizes of a block along the contraction's axes: rows and columns by the schedule, others one at a time."""
        names = map(str, statement.target.index[-2:])
        by_position = dict(zip(names, self.schedule.block, strict=False))
        sizes = {}
        for axis in statement.axes:
            bound = self.bound(axis.name)
            wanted = by_position.get(axis.name, 1)
            sizes[axis.name] = max(1, min(wanted, bound)) if isinstance(bound, int) else wanted
        return sizes

    def _inside(self, statement: Contract, sizes: dict[str, int]) -> tuple[Axis, ...]:
        return tuple(Axis(a.name, self._block_extent(a, sizes[a.name])) for a in statement.axes)

    def _block_extent(self, axis: Axis, size: int) -> Dim:
        """The extent of a block's axis: its size, or the least of that and what is left of the tile."""
        extent = self.extent(axis)
        if axis.name in self.whole:
            return extent
        return size if isinstance(extent, int) and extent % size == 0 else sym(f"{axis.name}_m")

    def _ring(self, statement: Contract, sizes: dict[str, int]) -> Ring:
        name = f"r{statement.target.name}"
        known = next((r for r in self.rings if r.name == name), None)
        if known is None:
            shape = tuple(sizes.get(str(i), 1) for i in statement.target.index)
            direct = (self.cube.result, self.vector.left) in self.target.paths
            space = self.vector.left if direct else GM
            known = Ring(name, statement.dtype, shape, 2, space, self.cube.name, self.vector.name)
            self.rings.append(known)
        return known

    def _compute_block(self, statement: Contract, sizes: dict[str, int], block: _Block) -> None:
        shape = tuple(sizes.get(str(i), 1) for i in statement.target.index)
        result = self.buffer(statement.dtype, shape, self.cube.result)
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
            inner = self._deepened(reduced[0], depth)
        operands = []
        for operand, space in ((statement.left, self.cube.left), (statement.right, self.cube.right)):
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
        for name in self.outer:
            moved[name] = sym(f"{name}_o") + moved.get(name, sym(name))
        goal = Access(self.drain.target.name, tuple(substitute(i, moved) for i in self.drain.target.index))
        block.lines.append(Copy(goal, target, axes, self.drain.through, self.drain.scale))

    def _depth(self, statement: Contract) -> int:
        """The schedule's depth of a block, or less where an operand's depth is made of parts (heads, say), so that no
        block crosses from one to the next."""
        axis = statement.reduced[0]
        depth = _within(self.schedule.block[2], axis)
        indices = (*statement.left.index, *statement.right.index)
        parts = gcd(*[d for i in indices for d in _divisors(i, axis.name)], 0)
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
        block: _Block,
    ) -> Access:
        route = self.target.route(GM, space)
        literal = self._literal_behind(operand)
        if route is None or (operand.name not in self.params and literal is None):
            raise TargetError(f"{self.target.name} has no path for operand {operand.name} to {space}")
        depth = {a.name for a in statement.reduced}
        used = {n for i in operand.index for n in symbols(i)}
        if space in (self.cube.left, self.cube.right):  # the unit reads what repeats, too
            used |= symbols((0, 0, *statement.target.index)[-2 if space == self.cube.left else -1]) | depth
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
        blocks = {a.name: self.outer.get(a.name, sizes[a.name]) for a in statement.axes}
        moved = {n: _Offset(self._begin(n), sizes[n], sizes[n]) for n in blocks}
        moved |= {n: _Offset(sym(f"{n}_o"), size[n], size[n]) for n in depth}
        for name, tile in self.outer.items():
            inner = moved.get(name, _Offset(0, tile, tile))
            moved[name] = _Offset(dims.add(sym(f"{name}_o"), inner.start), gcd(tile, inner.step), inner.bound)
        if literal is not None:
            value = _shifted(literal.value, moved) if isinstance(literal.value, Expr) else literal.value
            target = Access(self.buffer(literal.dtype, shape, space), index)
            block.lines.append(Copy(target, Literal(literal.dtype, value), axes))
            return target
        source = Access(operand.name, tuple(_shifted(i, moved) for i in operand.index))
        dtype = self.params[operand.name].dtype
        for stop in route[1:]:
            name = self.buffer(dtype, shape, stop)
            block.lines.append(Copy(Access(name, index), source, axes))
            source = Access(name, index)
        return source

    def _literal_behind(self, operand: Access) -> Literal | None:
        """The literal that a value holds everywhere; None for other values and for parameters."""
        made = self.analysis.definitions.get(operand.name, [None])[0]
        if isinstance(made, Map) and made.op == "copy" and isinstance(made.operands[0], Literal):
            return made.operands[0]
        return None

    def _collect_block(self, statement: Contract, sizes: dict[str, int], block: _Block) -> None:
        ring = self._ring(statement, sizes)
        slot = self.buffer(statement.dtype, ring.shape, self.vector.left)
        block.lines.append(Take(slot, ring.name))
        value = self.value_buffer(statement)
        shift = {a.name: dims.add(self._begin(a.name), sym(a.name)) for a in statement.axes}
        target = Access(value, tuple(substitute(i, shift) for i in statement.target.index))
        block.lines.append(Copy(target, Access(slot, statement.target.index), self._inside(statement, sizes)))


@dataclass(frozen=True)
class _Offset:
    """Where an axis of a tile begins in the whole: a multiple of `step`. The axis itself stays below `bound`."""

    start: Dim
    step: int
    bound: int


def _shifted(index: Dim, offsets: Mapping[str, _Offset]) -> Dim:
    """An index of the whole, over the axes of a tile. A division that no tile crosses leaves no trace of the axis: a
    tile of 32 begins at 64 * q + r with r <= 32, and (64 * q + r + i) // 64 is q for i < 32."""
    plain = substitute(index, {n: dims.add(o.start, sym(n)) for n, o in offsets.items()})
    if not isinstance(plain, Expr) or not _divided(plain, offsets):
        return plain
    periods = {n: lcm(o.step, *_divisors(index, n)) for n, o in offsets.items()}
    counted: dict[str, Dim] = {n: sym(f"{n}_q") * period + sym(n) for n, period in periods.items()}
    counted |= {n: dims.add(counted[n], sym(f"{n}_r")) for n, o in offsets.items() if periods[n] != o.step}
    bounds = {n: o.bound for n, o in offsets.items()}
    bounds |= {f"{n}_r": periods[n] - o.step + 1 for n, o in offsets.items()}
    clean = substitute(index, counted, bounds)
    if not _divided_alone(clean, offsets):
        return plain
    back = {f"{n}_q": dims.floordiv(o.start, periods[n]) for n, o in offsets.items()}
    return substitute(clean, back | {f"{n}_r": dims.modulo(o.start, periods[n]) for n, o in offsets.items()})


def _divisors(dim: Dim, axis: str) -> set[int]:
    """The numbers that an axis is divided by."""
    return {
        atom.right
        for atoms, _ in dims.terms_of(dim)
        for atom in atoms
        if isinstance(atom, dims.Compound) and isinstance(atom.right, int) and axis in symbols(dims.alone(atom))
    }


def _divided(dim: Dim, axes: Collection[str]) -> bool:
    """Whether one of the axes stands inside a division."""
    return any(
        isinstance(atom, dims.Compound) and not symbols(dims.alone(atom)).isdisjoint(axes)
        for atoms, _ in dims.terms_of(dim)
        for atom in atoms
    )


def _divided_alone(dim: Dim, axes: Collection[str]) -> bool:
    """Whether the axes stand inside divisions with nothing else, if at all: no offset is left there."""
    inside = [
        symbols(dims.alone(atom))
        for atoms, _ in dims.terms_of(dim)
        for atom in atoms
        if isinstance(atom, dims.Compound)
    ]
    return all(found.isdisjoint(axes) or len(found) == 1 for found in inside)


def _within(size: int, axis: Axis) -> int:
    """A block size no longer than the axis, and never nothing."""
    return max(1, min(size, _int(axis.extent, size)))


def _int(extent: Dim, otherwise: int) -> int:
    return extent if isinstance(extent, int) else otherwise
