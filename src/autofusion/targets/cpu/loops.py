"""One cluster of statements as a loop nest: which axis becomes lanes, what is loaded once, how folds accumulate.

    free loops -> [vector loop ->] fold states -> folded loops -> [vector loop ->] body -> states are merged and stored

The vector axis is the one along which most accesses are contiguous. Lanes past the end are masked. A fold keeps several
independent states, so that additions do not wait for each other; long float sums go through blocks into a compensated
pair (Knuth's TwoSum), so that the error stays below that of a pairwise sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from autofusion import dims
from autofusion.dims import Dim, Expr, coefficient_of, symbols
from autofusion.dtypes import DType
from autofusion.kernel.ir import Access, Axis, Copy, Fold, Gather, Literal, Map, Operand, Scan, Statement, operands_of
from autofusion.targets.cpu import division
from autofusion.targets.cpu.clusters import Cluster
from autofusion.targets.cpu.dimension import emit_dim, lanes_along
from autofusion.targets.cpu.emit import Emitter
from autofusion.targets.cpu.facts import EXTREMES, Facts
from autofusion.targets.cpu.lanes import (
    LINE,
    MEMORY,
    REGISTER,
    before_line,
    first_lanes,
    load_contiguous,
    load_scattered,
    rounded,
    store_contiguous,
    store_past,
    store_scattered,
)
from autofusion.targets.cpu.nans import PROPAGATING, NanFlow, is_number
from autofusion.targets.cpu.primitives import PRIMITIVES, convert
from autofusion.targets.cpu.states import State
from autofusion.targets.vecmath.exponential import exp_falling
from autofusion.targets.vecmath.values import V, lanes_of, vector

BLOCK = 64  # vectors that one fold state adds up before it goes into the compensated pair
STATES = 4  # independent fold states: the latency of an addition times its throughput
FEW = 16  # vectors of a row that is too short to be read by whole lines
LIGHT = 6  # statements up to which the loop of a fold is unrolled


@dataclass(frozen=True)
class Ref:
    """An access resolved to memory: the tensor's address and type, and the offset in elements."""

    base: V
    dtype: DType
    offset: Dim


class Memory(Protocol):
    """What a loop nest asks of the function that it stands in."""

    @property
    def facts(self) -> Facts: ...

    def ref(self, access: Access) -> Ref: ...

    def in_memory(self, name: str) -> bool:
        """Whether a buffer is read outside the cluster that makes it."""
        ...

    def is_past(self, ref: Ref) -> bool:
        """Whether stores to it may pass the caches by."""
        ...

    def dtype(self, name: str) -> DType: ...

    def packing_area(self, size: int) -> V:
        """Scratch of so many bytes for packed operands of a contraction."""
        ...

    def record(self, statement: Statement, bad: V, position: V) -> None:
        """Note a failed check in the status slot."""
        ...


@dataclass
class Point:
    """Where code is being emitted: index values, lanes, mask, and the registers filled so far."""

    values: dict[str, V]
    lanes: int
    mask: V | None
    registers: dict[str, V] = field(default_factory=dict)
    offsets: dict[Dim, V] = field(default_factory=dict)


class Nest:
    """The loop nest of one cluster."""

    def __init__(
        self,
        e: Emitter,
        memory: Memory,
        cluster: Cluster,
        values: Mapping[str, V],
        lane_bytes: int,
        ahead: Callable[[Ref], int | None] | None = None,
    ) -> None:
        """`ahead`: how many elements on the next tile will read; vectors that are loaded then ask for those, too."""
        self.e = e
        self.ahead = ahead
        self.ranges: dict[str, tuple[V, V]] = {}
        self.memory = memory
        self.cluster = cluster
        self.values = dict(values)
        self.own = {s.target.name for s in cluster.statements}
        self.vector_axis = self._choose_axis()
        self.lanes = self._choose_lanes(lane_bytes)
        self.hoisted: dict[str, V] = {}
        self.states = {id(f): State(e, f, f.target.name in memory.facts.blind) for f in cluster.folds}
        self.nans = NanFlow()
        self.divisors: dict[str, division.Divisor] = {}

    # -- decisions --------------------------------------------------------------------------------------------------
    def _refs(self) -> Iterator[Ref]:
        for statement in self.cluster.statements:
            for operand in operands_of(statement):
                if isinstance(operand, Access) and operand.name not in self.own:
                    yield self.memory.ref(operand)
            if not isinstance(statement, Fold) and self.memory.in_memory(statement.target.name):
                yield self.memory.ref(statement.target)

    def _choose_axis(self) -> Axis | None:
        """The axis with the most contiguous and the fewest strided accesses; the last one where they tie."""
        best, choice = -1e9, None
        refs = list(self._refs())
        for axis in self.cluster.axes:
            if axis.extent == 1:
                continue
            score = 0.0
            for ref in refs:
                step = coefficient_of(ref.offset, axis.name)
                score += 1.0 if step == 1 else 0.0 if step == 0 else -2.0
            if isinstance(axis.extent, int) and axis.extent < 8:
                score -= len(refs)
            if score >= best:
                best, choice = score, axis
        return choice

    def _choose_lanes(self, lane_bytes: int) -> int:
        if self.vector_axis is None:
            return 1
        sizes = [self._dtype_of(s).compute.size for s in self.cluster.statements]
        lanes = max(1, lane_bytes // max([4 if 4 in sizes or max(sizes) < 4 else 1, *sizes]))
        extent = self.vector_axis.extent
        while isinstance(extent, int) and lanes > 1 and lanes >= 2 * extent:
            lanes //= 2
        return lanes

    def _dtype_of(self, statement: Statement) -> DType:
        if isinstance(statement, Copy):
            return self.memory.dtype(statement.target.name)
        return statement.dtype

    # -- the nest ----------------------------------------------------------------------------------------------------
    def emit(self, ranges: Mapping[str, tuple[V, V]] | None = None) -> None:
        """Write the nest's code: for all of its axes, or of some for the `ranges` from a first element on, so many."""
        self.ranges = dict(ranges or {})
        reduced = self.cluster.reduced
        lane = self.vector_axis.name if self.vector_axis else ""
        free = [a for a in self.cluster.axes if a.name not in reduced and a.name != lane]
        folded = [a for a in self.cluster.axes if a.name in reduced and a.name != lane]
        with self._loops(free):
            if self.vector_axis is None:
                self._folding(folded, Point(self.values, 1, None))
            elif lane in reduced:
                self._fold_lanes(folded)
            else:
                self._hoist({a.name for a in folded} | {lane})
                unroll, begin, count = 1, None, None
                if lane in self.ranges:
                    begin, count = self.ranges[lane]
                    light = _known(count) and len(self.cluster.statements) <= LIGHT
                    unroll = max(1, int(count.ref) // self.lanes) if light else 1
                body = lambda point, _: self._folding(folded, point)  # noqa: E731
                self._over_lanes(self.vector_axis, body, unroll, begin, count=count)

    @contextmanager
    def _loops(self, axes: Sequence[Axis]) -> Iterator[None]:
        with ExitStack() as stack:
            for axis in axes:
                if axis.name in self.ranges:
                    begin, count = self.ranges[axis.name]
                    loop = self.e.loop(begin, self.e.add(begin, count), self.e.i64(1))
                    self.values[axis.name] = stack.enter_context(loop)
                    continue
                end = emit_dim(self.e, axis.extent, self.values)
                if end.ref == "1":
                    self.values[axis.name] = self.e.i64(0)
                    continue
                self.values[axis.name] = stack.enter_context(self.e.loop(self.e.i64(0), end, self.e.i64(1)))
            yield

    def _hoist(self, inside: set[str]) -> None:
        """Load before the vector loop what does not change in it."""
        self.hoisted = {}
        for statement in self.cluster.statements:
            for operand in operands_of(statement):
                if not isinstance(operand, Access) or operand.name in self.own or isinstance(statement, Gather):
                    continue
                ref = self.memory.ref(operand)
                if symbols(ref.offset) & inside or str(operand) in self.hoisted:
                    continue
                self.hoisted[_key(operand)] = self._load(ref, Point(self.values, 1, None))
        self._hoist_divisors()

    def _hoist_divisors(self) -> None:
        """What divides every vector of the loop is made ready before it."""
        self.divisors = {}
        maps = [s for s in self.cluster.statements if isinstance(s, Map)]
        for statement in maps:
            if statement.op != "div" or not statement.dtype.is_float:
                continue
            below = statement.operands[1]
            value = self._invariant(below)
            if value is not None and division.pays(self.e, vector(value.type, self.lanes), (s.op for s in maps)):
                self.divisors[str(below)] = division.prepare(self.e, value)

    def _invariant(self, operand: Operand) -> V | None:
        """The scalar that an operand is in all lanes of the loop, where that is known before it."""
        if isinstance(operand, Access):
            return self.hoisted.get(_key(operand))
        if isinstance(operand.value, Expr) or math.frexp(operand.value)[0] == 0.5:  # by a power of two is a product
            return None
        return self.e.const(REGISTER[operand.dtype], operand.value)

    def _over_lanes(
        self,
        axis: Axis,
        body: Callable[[Point, int], None],
        unroll: int,
        begin: V | None = None,
        end: V | None = None,
        count: V | None = None,
    ) -> None:
        """Full vectors (`unroll` at a time, each with its number), then one masked vector for the rest."""
        e, lanes = self.e, self.lanes
        first = begin or e.i64(0)
        last = e.add(first, count) if count is not None else end or emit_dim(e, axis.extent, self.values)
        span = int(last.ref) - int(first.ref) if _known(first) and _known(last) else None
        span = int(count.ref) if count is not None and _known(count) else span
        for number in {unroll: 0, 1: 0}:
            step = lanes * number
            if span is not None and span < step:
                continue
            left = e.sub(last, first)
            whole = e.i64(span // step * step) if span is not None else e.sub(left, e.op("urem", left, e.i64(step)))
            stop = e.add(first, whole)
            with e.loop(first, stop, e.i64(step)) as base:
                for part in range(number):
                    at = e.add(base, e.i64(part * lanes))
                    body(self._point(axis, at, lanes, None), part)
            first = stop
            span = None if span is None else span % step
        if lanes == 1 or span == 0:
            return
        rest = e.sub(last, first) if span is None else e.i64(span)
        with ExitStack() as stack:
            if span is None:
                stack.enter_context(e.when(e.cmp("icmp sgt", rest, e.i64(0))))
            body(self._point(axis, first, lanes, first_lanes(e, rest, lanes)), 0)

    def _point(self, axis: Axis, base: V, lanes: int, mask: V | None) -> Point:
        return Point(self.values | {axis.name: base}, lanes, mask)

    # -- folds -------------------------------------------------------------------------------------------------------
    def _folding(self, folded: Sequence[Axis], point: Point) -> None:
        """At one point of the free axes (all lanes of it): run the folded loops around the body."""
        if not self.cluster.folds:
            self._body(point, 0)
            return
        self._open_states(point.lanes, 1, self._long(folded, None))
        *outer, inner = folded if folded else [None]
        saved, self.values = self.values, point.values
        with self._loops([a for a in outer if a is not None]):
            if inner is None:
                self._body(point, 0)
            else:
                self._blocks(inner, 32, lambda lo, hi: self._serial(inner, lo, hi, point))
        self.values = saved
        for fold in self.cluster.folds:
            self._store_fold(fold, self.states[id(fold)].total(), point)

    def _serial(self, axis: Axis, begin: V, end: V, point: Point) -> None:
        with self.e.loop(begin, end, self.e.i64(1)) as index:
            inside = Point(self.values | {axis.name: index}, point.lanes, point.mask)
            self._body(inside, 0)

    def _fold_lanes(self, folded: Sequence[Axis]) -> None:
        """The vector axis itself is folded: states have lanes, which are folded at the end."""
        axis = self.vector_axis
        assert axis is not None
        unroll = STATES if len(self.cluster.statements) <= LIGHT else 2 if len(self.cluster.statements) <= 16 else 1
        self._open_states(self.lanes, unroll, self._long(folded, axis))
        with self._loops(folded):
            self._hoist({axis.name})
            block = BLOCK * self.lanes * unroll
            head = self._head(axis)
            if head is not None:
                self._over_lanes(axis, self._body, unroll, head)
            else:
                self._blocks(axis, block, lambda lo, hi: self._over_lanes(axis, self._body, unroll, lo, hi))
        point = Point(self.values, 1, None)
        for fold in self.cluster.folds:
            state = self.states[id(fold)]
            self._store_fold(fold, state.across(state.total()), point)

    def _head(self, axis: Axis) -> V | None:
        """Take the elements before the first cache line at once, in a fold whose order is free: loads across two lines
        cost twice, and NumPy's large arrays begin 16 bytes into one. How many that were; None for other folds."""
        e = self.e
        fold, *others = self.cluster.statements
        if others or not isinstance(fold, Fold) or fold.fold not in EXTREMES or not isinstance(fold.operand, Access):
            return None
        if self.memory.in_memory(fold.operand.name):  # of our own, and aligned
            return None
        ref, extent = self.memory.ref(fold.operand), axis.extent
        long = isinstance(extent, int) and extent >= FEW * self.lanes
        if not long or self.lanes * ref.dtype.size != LINE or coefficient_of(ref.offset, axis.name) != 1:
            return None
        start = self._point(axis, e.i64(0), self.lanes, None)
        head = before_line(e, e.gep(ref.base, self._offset(ref.offset, start), MEMORY[ref.dtype]), ref.dtype)
        with e.when(e.cmp("icmp sgt", head, e.i64(0))):
            self._body(self._point(axis, e.i64(0), self.lanes, first_lanes(e, head, self.lanes)), 0)
        return head

    def _long(self, folded: Sequence[Axis], lane: Axis | None) -> bool:
        """Whether a state would add up more terms than a block."""
        extents = [a.extent for a in folded]
        if lane is not None:
            extents.append(dims.ceildiv(lane.extent, self.lanes * STATES))
        total = dims.product(extents)
        return not isinstance(total, int) or total > BLOCK

    def _open_states(self, lanes: int, count: int, long: bool) -> None:
        for state in self.states.values():
            state.open(lanes, count, long)

    def _blocks(self, axis: Axis, size: int, run: Callable[[V, V], None]) -> None:
        """Run over an axis, in blocks where a compensated pair takes the states up after each."""
        e = self.e
        end = emit_dim(e, axis.extent, self.values)
        if all(state.pair is None for state in self.states.values()):
            run(e.i64(0), end)
            return
        if _known(end) and int(end.ref) <= size:
            run(e.i64(0), end)
            self._flush()
            return
        with e.loop(e.i64(0), end, e.i64(size)) as low:
            high = e.add(low, e.i64(size))
            run(low, e.select(e.cmp("icmp slt", high, end), high, end))
            self._flush()

    def _flush(self) -> None:
        for state in self.states.values():
            state.flush()

    def _store_fold(self, fold: Fold, state: V, point: Point) -> None:
        ref = self.memory.ref(fold.target)
        if fold.accumulate:
            state = self.states[id(fold)].step(self._load(ref, point), state)
        self._store(ref, state, point)

    # -- one point ---------------------------------------------------------------------------------------------------
    def _body(self, point: Point, state: int) -> None:
        """All statements of the cluster at one point; folds go into their state of that number."""
        for statement in self.cluster.statements:
            if isinstance(statement, Map):
                self._define(statement, self._map(statement, point), point)
            elif isinstance(statement, Copy):
                value = self._operand(statement.source, point)
                goal = self.memory.dtype(statement.target.name)
                self._define(statement, convert(self.e, value, self._source_type(statement.source), goal), point)
            elif isinstance(statement, Gather):
                self._define(statement, self._gather(statement, point), point)
            elif isinstance(statement, Fold):
                self._fold_in(statement, point, state)
            else:
                assert not isinstance(statement, Scan)

    def _define(self, statement: Statement, value: V, point: Point) -> None:
        point.registers[_key(statement.target)] = value
        if self.memory.in_memory(statement.target.name):
            self._store(self.memory.ref(statement.target), value, point)

    def _map(self, statement: Map, point: Point) -> V:
        types = [self._source_type(o) for o in statement.operands]
        values = [self._operand(o, point) for o in statement.operands]
        source = types[-1] if types else statement.dtype
        if statement.op in ("maximum", "minimum") and source.is_float:
            result = self._extreme(statement, values, source)
        elif statement.op == "div" and point.lanes > 1 and str(statement.operands[1]) in self.divisors:
            above, below = statement.operands
            fraction = _name(above) in self.memory.facts.fractions
            result = division.divide(self.e, values[0], self.divisors[str(below)], fraction)
        elif statement.op == "exp" and _name(statement.operands[0]) in self.memory.facts.falling:
            result = exp_falling(self.e, values[0])
        else:
            result = PRIMITIVES[statement.op](self.e, values, source, statement.dtype)
        result = rounded(self.e, result, statement.dtype)
        if statement.op in PROPAGATING and source.is_float:
            self.nans.carry(values, result)
        return result

    def _extreme(self, statement: Map, values: list[V], source: DType) -> V:
        """max or min, by one instruction where an operand is NaN wherever the other is."""
        a, b = values
        greater = statement.op == "maximum"
        first, second = (is_number(operand) for operand in statement.operands)
        if second or (not first and self.nans.covers(b, a)):
            return self.e.pick(greater, b, a)
        if first or self.nans.covers(a, b):
            return self.e.pick(greater, a, b)
        return PRIMITIVES[statement.op](self.e, values, source, statement.dtype)

    def _fold_in(self, fold: Fold, point: Point, state: int) -> None:
        value = convert(self.e, self._operand(fold.operand, point), self._source_type(fold.operand), fold.dtype)
        self.states[id(fold)].take(value, state, point.mask)

    def _source_type(self, operand: Operand) -> DType:
        return operand.dtype if isinstance(operand, Literal) else self.memory.dtype(operand.name)

    def _operand(self, operand: Operand, point: Point) -> V:
        """The operand's value in register form, in all lanes."""
        e = self.e
        if isinstance(operand, Literal):
            return self._literal(operand, point)
        key = _key(operand)
        if key in point.registers:
            return point.registers[key]
        if key in self.hoisted:
            value = e.splat(self.hoisted[key], point.lanes)
        else:
            value = self._load(self.memory.ref(operand), point)
        point.registers[key] = value
        return value

    def _literal(self, operand: Literal, point: Point) -> V:
        e = self.e
        type_ = vector(REGISTER[operand.dtype], point.lanes)
        if not isinstance(operand.value, Expr):
            return e.const(type_, operand.value)
        values = self._lane_values(point)
        number = emit_dim(e, operand.value, values)
        if lanes_of(number.type) != point.lanes:
            number = e.splat(number, point.lanes)
        return rounded(e, convert(e, number, DType.INT64, operand.dtype), operand.dtype)

    def _lane_values(self, point: Point) -> dict[str, V]:
        """Index values with the vector axis as lanes, those past the end on the last valid one."""
        if point.lanes == 1 or self.vector_axis is None:
            return point.values
        name = self.vector_axis.name
        return point.values | {name: lanes_along(self.e, point.values[name], point.lanes)}

    def _load(self, ref: Ref, point: Point) -> V:
        e, lanes = self.e, point.lanes
        step = coefficient_of(ref.offset, self.vector_axis.name) if self.vector_axis and lanes > 1 else 1
        if lanes == 1 or step == 1:
            pointer = e.gep(ref.base, self._offset(ref.offset, point), MEMORY[ref.dtype])
            on = self.ahead(ref) if self.ahead is not None and lanes > 1 and point.mask is None else None
            if on is not None:
                e.prefetch(e.gep(pointer, e.i64(on), MEMORY[ref.dtype]))
            return load_contiguous(e, pointer, ref.dtype, lanes, point.mask)
        if step == 0:
            pointer = e.gep(ref.base, self._offset(ref.offset, point), MEMORY[ref.dtype])
            return e.splat(load_contiguous(e, pointer, ref.dtype, 1, None), lanes)
        offsets = emit_dim(e, ref.offset, self._lane_values(point))
        return load_scattered(e, ref.base, offsets, ref.dtype, point.mask)

    def _offset(self, offset: Dim, point: Point) -> V:
        """An offset, computed once at a point: most tensors of a group are addressed alike."""
        if offset not in point.offsets:
            point.offsets[offset] = emit_dim(self.e, offset, point.values)
        return point.offsets[offset]

    def _store(self, ref: Ref, value: V, point: Point) -> None:
        e, lanes = self.e, lanes_of(value.type)
        step = coefficient_of(ref.offset, self.vector_axis.name) if self.vector_axis and lanes > 1 else 1
        if lanes == 1 or step == 1:
            pointer = e.gep(ref.base, self._offset(ref.offset, point), MEMORY[ref.dtype])
            if lanes > 1 and point.mask is None and self.memory.is_past(ref):
                store_past(e, value, pointer, ref.dtype)
            else:
                store_contiguous(e, value, pointer, ref.dtype, point.mask)
            return
        offsets = emit_dim(e, ref.offset, self._lane_values(point))
        store_scattered(e, value, ref.base, offsets, ref.dtype, point.mask)

    # -- gather ------------------------------------------------------------------------------------------------------
    def _gather(self, statement: Gather, point: Point) -> V:
        """Positions are wrapped if they may be negative, checked, clamped to 0 where bad (and recorded), then used."""
        e = self.e
        source = self.memory.ref(statement.source)
        stride = self._stride(statement, source)
        lanes = point.lanes if self._position_moves(statement, point) else 1
        at = replace(point, registers=dict(point.registers)) if lanes == point.lanes else Point(point.values, 1, None)
        position = convert(e, self._operand(statement.position, at), self._source_type(statement.position), DType.INT64)
        extent = e.splat(emit_dim(e, statement.extent, point.values), lanes)
        zero = e.const(position.type, 0)
        wrapped = position
        if statement.wraps:
            wrapped = e.select(e.cmp("icmp slt", position, zero), e.op("add", position, extent), position)
        bad = e.cmp("icmp uge", wrapped, extent)
        if lanes > 1 and point.mask is not None:
            bad = e.op("and", bad, point.mask)
        self.memory.record(statement, bad, self._ordinal(statement, at))
        safe = e.select(bad, zero, wrapped)
        if isinstance(statement.extent, int) and statement.extent > 0:
            return self._at_positions(source, stride, safe, point)
        found = e.slot(vector(REGISTER[source.dtype], point.lanes))  # an empty axis has no element 0 to clamp to
        e.set(found, e.const(vector(REGISTER[source.dtype], point.lanes), 0))
        with e.when(e.cmp("icmp sgt", emit_dim(e, statement.extent, point.values), e.i64(0))):
            e.set(found, self._at_positions(source, stride, safe, point))
        return e.get(found, vector(REGISTER[source.dtype], point.lanes))

    def _at_positions(self, source: Ref, stride: Dim, position: V, point: Point) -> V:
        """The elements at checked positions: a row of neighbours where all lanes have one position, else one by one."""
        e = self.e
        step = coefficient_of(source.offset, self.vector_axis.name) if self.vector_axis and point.lanes > 1 else 1
        if lanes_of(position.type) == 1 and (step == 1 or point.lanes == 1):
            offset = e.add(emit_dim(e, source.offset, point.values), e.mul(position, emit_dim(e, stride, point.values)))
            pointer = e.gep(source.base, offset, MEMORY[source.dtype])
            return load_contiguous(e, pointer, source.dtype, point.lanes, point.mask)
        return load_scattered(e, source.base, self._offsets(source, stride, position, point), source.dtype, point.mask)

    def _offsets(self, source: Ref, stride: Dim, position: V, point: Point) -> V:
        e, lanes = self.e, point.lanes
        spread = [emit_dim(e, source.offset, self._lane_values(point)), emit_dim(e, stride, point.values), position]
        base, scale, where = (x if lanes_of(x.type) == lanes else e.splat(x, lanes) for x in spread)
        moved = e.op("mul", where, scale)
        if point.mask is not None:
            moved = e.select(point.mask, moved, e.const(moved.type, 0))
        return e.op("add", base, moved)

    def _stride(self, statement: Gather, source: Ref) -> Dim:
        index = list(statement.source.index)
        index[statement.axis] = 1
        return self.memory.ref(Access(statement.source.name, tuple(index))).offset - source.offset

    def _position_moves(self, statement: Gather, point: Point) -> bool:
        if self.vector_axis is None or point.lanes == 1:
            return False
        if isinstance(statement.position, Literal):
            return isinstance(statement.position.value, Expr)
        return (
            statement.position.name in self.own
            or coefficient_of(self.memory.ref(statement.position).offset, self.vector_axis.name) != 0
        )

    def _ordinal(self, statement: Gather, point: Point) -> V:
        """Which of the operator's positions each lane has."""
        number = emit_dim(self.e, statement.ordinal, self._lane_values(point))
        return number if lanes_of(number.type) == point.lanes else self.e.splat(number, point.lanes)


def _name(operand: Operand) -> str:
    return operand.name if isinstance(operand, Access) else ""


def _key(access: Access) -> str:
    return f"{access.name}[{','.join(map(str, access.index))}]"


def _known(value: V) -> bool:
    return value.ref.lstrip("-").isdigit()
