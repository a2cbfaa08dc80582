"""A tile Program as LLVM IR: one function a step, which runs a range of the step's chunks.

    void step(ptr buffers, ptr symbols, i64 begin, i64 end, ptr scratch, ptr status)

`buffers` holds the addresses of the parameters, of the workspace, and last the number of the group's first operator
(for failed checks). `scratch` is private to the worker and holds the buffers that are read outside the cluster that
makes them; all others live in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autofusion import dims
from autofusion.dims import Dim, Shape, coefficient_of, substitute
from autofusion.dtypes import DType
from autofusion.kernel.ir import (
    STATEMENTS,
    Access,
    Contract,
    Copy,
    Fold,
    Gather,
    Map,
    Param,
    Role,
    Scan,
    Statement,
    operands_of,
)
from autofusion.ops.structure import strides_of
from autofusion.placement import Span, first_fit
from autofusion.target import GM, Target
from autofusion.targets.cpu import contraction, scans, tiles
from autofusion.targets.cpu.clusters import Aliases, Cluster, cluster, with_epilogues
from autofusion.targets.cpu.dimension import emit_dim
from autofusion.targets.cpu.emit import Emitter, Module
from autofusion.targets.cpu.facts import NOTHING, Facts, facts_of
from autofusion.targets.cpu.loops import Nest, Ref
from autofusion.targets.vecmath.values import V, lanes_of
from autofusion.tile.ir import Guard, Let, Loop, Program, Step, checks, statements

PARAMETERS = ["ptr %buffers", "ptr %symbols", "i64 %begin", "i64 %end", "ptr %scratch", "ptr %status"]
ALIGN = 64
FAR = 1 << 20  # bytes of a tensor that no cache near a core is expected to hold
PAST = 8 << 20  # bytes of such a result
DISTANCE = 2048  # bytes ahead of the reads of a tensor that is streamed through
TILE = "t"  # the loop over tiles


@dataclass(frozen=True)
class Rendered:
    """The text of a program's functions. `scratch`: bytes that a worker needs. `clusters`: loop nests, for
    explaining."""

    text: str
    functions: tuple[str, ...]
    scratch: Dim
    clusters: int


@dataclass
class _Segment:
    """Straight-line statements between loops, in clusters, and what they tell of their values."""

    clusters: list[Cluster]
    facts: Facts = NOTHING


Plan = list[Any]  # Let | Loop or Guard with a planned body | _Segment


def render(
    program: Program,
    target: Target,
    name: str,
    symbols: Sequence[str] | None = None,
    final: frozenset[str] = frozenset(),
) -> Rendered:
    """The LLVM IR of every step; functions are called `name_0`, `name_1`, …

    `symbols`: the sizes that a launch passes, in its order; by default the program's own. `final`: parameters that no
    other kernel reads.
    """
    listed = tuple(program.symbols if symbols is None else symbols)
    module = Module()
    functions, scratch, count = [], 0, 0  # type: list[str], Dim, int
    for number, step in enumerate(program.steps):
        function = _Function(module, program, step, target, listed, final)
        functions.append(f"{name}_{number}")
        scratch = dims.maximum(scratch, function.emit(functions[-1]))
        count += function.count
    return Rendered(module.text(), tuple(functions), scratch, count)


def attributes(target: Target) -> str:
    """Function attributes: never touch floating-point semantics, use the full vector width."""
    width = target.lane_bytes * 8
    return f'nounwind "prefer-vector-width"="{width}" "min-legal-vector-width"="{width}" "no-trapping-math"="true"'


def is_past(shape: Shape, dtype: DType) -> bool:
    """Whether a result of this size is gone from the caches near a core before anything reads it."""
    size = dims.multiply(dims.product(shape), dtype.size)
    return isinstance(size, int) and size >= PAST


class _Function:
    """One step being written. It is the `Memory` of its loop nests."""

    def __init__(
        self,
        module: Module,
        program: Program,
        step: Step,
        target: Target,
        symbols: tuple[str, ...],
        final: frozenset[str],
    ) -> None:
        self.module = module
        self.program = program
        self.step = step
        self.target = target
        self.symbols = symbols
        has = target.features
        self.e = Emitter(
            module,
            fma="fma" in has,
            ldexp="avx512vl" in has,
            half="f16c" in has,
            x86=target.lane_bytes if "x86_64" in target.name else 0,
        )
        self.aliases = Aliases()
        self.outputs = {p.name for p in program.params if p.role is Role.OUT}
        self.past = self._past(final)
        self.extra: dict[str, DType] = {}
        self.lets: dict[str, Dim] = {}
        self.count = 0

    def emit(self, name: str) -> Dim:
        """Write the function; its scratch bytes."""
        (body,) = self.step.bodies
        (parallel,) = body.body
        planned = self._plan(parallel.body)
        self.resident = self._crossing(planned)
        self.offsets, scratch = self._allocate(planned)
        self.packing = dims.multiply(dims.ceildiv(scratch, ALIGN), ALIGN)
        self.packed = 0  # bytes behind the buffers
        self.private = self._private(planned)
        self.facts = NOTHING
        self._learn(planned)
        values = self._prologue()
        with self.e.loop(V("i64", "%begin"), V("i64", "%end"), self.e.i64(1)) as chunk:
            self._run(planned, values | {parallel.var: chunk})
        if self.past:
            self.e.call("x86.sse.sfence", "void", overload=())  # such stores come before the phase's end
        self.e.function(name, PARAMETERS, attributes(self.target))
        return dims.add(self.packing, self.packed) if self.packed else scratch

    def _past(self, final: frozenset[str]) -> set[str]:
        """Large results that nothing reads after: their stores need not go through the caches."""
        read = {
            o.name
            for step in self.program.steps
            for body in step.bodies
            for s in statements(body.body)
            for o in operands_of(s)
            if isinstance(o, Access)
        }
        large = {p.name for p in self.program.params if p.name in final - read and is_past(p.shape, p.dtype)}
        return large if self.e.x86 else set()

    def _prologue(self) -> dict[str, V]:
        e = self.e
        self.bases: dict[str, V] = {}
        tensors = [*(p.name for p in self.program.params), *(b.name for b in self.program.workspace)]
        for number, tensor in enumerate(tensors):
            slot = e.gep(V("ptr", "%buffers"), e.i64(number), "ptr")
            self.bases[tensor] = e.value("ptr", f"load ptr, {slot}")
        self.operator_slot = len(tensors)
        values = {}
        for number, symbol in enumerate(self.symbols):
            values[symbol] = e.load("i64", e.gep(V("ptr", "%symbols"), e.i64(number), "i64"), 8)
        self.sizes = values
        for buffer, offset in self.offsets.items():
            self.bases[buffer] = e.gep(V("ptr", "%scratch"), emit_dim(e, offset, values), "i8")
        return values

    # -- planning: aliases, clusters, what needs memory --------------------------------------------------------------
    def _plan(self, body: Sequence[Any]) -> Plan:
        planned: Plan = []
        run: list[Statement] = []

        def close() -> None:
            if run:
                planned.append(_Segment(with_epilogues(cluster(run))))
                self.count += sum(1 for _ in _clusters(planned[-1:]))
                run.clear()

        for line in body:
            if isinstance(line, STATEMENTS):
                statement = self._in_place(line)  # type: ignore[arg-type]
                if statement is not None:
                    run.append(statement)
            elif isinstance(line, Loop | Guard):
                close()
                planned.append((line, self._plan(line.body)))
            else:
                close() if not isinstance(line, Let) else None
                planned.append(line)
        close()
        return planned

    def _in_place(self, statement: Statement) -> Statement | None:
        """The statement with its reads resolved to parameters; None for a copy that needs no code."""
        if isinstance(statement, Copy) and isinstance(statement.source, Access):
            reads_param = self.program.space_of(statement.source.name) == GM
            if reads_param and statement.target.name not in self.outputs and self.aliases.add(statement):
                return None
        return _with_operands(
            statement, [self.aliases.resolve(o) if isinstance(o, Access) else o for o in operands_of(statement)]
        )

    def _crossing(self, planned: Plan) -> set[str]:
        """Buffers that must be in memory: read outside the cluster that makes them, or made by a fold."""
        home: dict[str, int] = {}
        crossing: set[str] = set()
        clusters = list(_clusters(planned))
        for number, each in enumerate(clusters):
            for statement in each.statements:
                target = statement.target.name
                if home.setdefault(target, number) != number or isinstance(statement, Fold | Scan | Contract):
                    crossing.add(target)
        for number, each in enumerate(clusters):
            for statement in each.statements:
                for operand in operands_of(statement):
                    if isinstance(operand, Access) and home.get(operand.name, number) != number:
                        crossing.add(operand.name)
                if isinstance(statement, Gather):
                    crossing.add(statement.source.name)
        return {name for name in crossing if name in self.program.buffers and self.program.buffers[name].space != GM}

    def _private(self, planned: Plan) -> set[str]:
        """Results of contractions that are read in their epilogues only."""
        made: dict[str, int] = {}
        readers: dict[str, set[int]] = {}
        for number, each in enumerate(_clusters(planned)):
            for statement in each.statements:
                made[statement.target.name] = made.get(statement.target.name, 0) + 1
                for operand in operands_of(statement):
                    if isinstance(operand, Access):
                        readers.setdefault(operand.name, set()).add(number)
        return {name for name, count in made.items() if count == 1 and len(readers.get(name, ())) == 1} & self.resident

    def _learn(self, planned: Plan) -> None:
        """Note for each segment what its statements tell of their values."""
        segments = list(_segments(planned))
        names = [{name for each in _clusters([segment]) for name in _names(each)} for segment in segments]
        far = self.outputs | {b.name for b in self.program.buffers.values() if b.space == GM}
        for number, segment in enumerate(segments):
            elsewhere = set().union(*names[:number], *names[number + 1 :])
            segment.facts = facts_of([s for each in _clusters([segment]) for s in each.statements], far | elsewhere)

    def _allocate(self, planned: Plan) -> tuple[dict[str, Dim], Dim]:
        """Scratch offsets: first fit over lifetimes in cluster order; buffers of unknown size go behind, unshared."""
        lifetimes: dict[str, list[int]] = {}
        self._lifetimes(planned, lifetimes, [0])
        spans = []
        for name in sorted(self.resident, key=lambda n: (lifetimes[n][0], n)):
            buffer = self.program.buffers[name]
            size = dims.multiply(dims.product(buffer.shape), buffer.dtype.size)
            slack = dims.add(size, ALIGN)  # a vector that begins inside may end past the buffer, its lanes masked
            spans.append(Span(name, slack, *lifetimes[name]))
        return first_fit(spans, ALIGN)

    def _lifetimes(self, planned: Plan, found: dict[str, list[int]], clock: list[int]) -> set[str]:
        """First and last use of each resident buffer; what a loop uses from outside lives through the loop."""
        touched: set[str] = set()
        for item in planned:
            if isinstance(item, _Segment):
                for each in item.clusters:
                    clock[0] += 1
                    names = _names(each) | (_names(each.epilogue) if each.epilogue is not None else set())
                    for name in names & self.resident:
                        found.setdefault(name, [clock[0], clock[0]])[1] = clock[0]
                        touched.add(name)
            elif isinstance(item, tuple):
                start = clock[0] + 1
                inside = self._lifetimes(item[1], found, clock)
                for name in inside:
                    if found[name][0] < start or self._carried(item[0], name):
                        found[name] = [min(found[name][0], start), clock[0]]
                touched |= inside
        return touched

    @staticmethod
    def _carried(loop: Loop | Guard, name: str) -> bool:
        """Whether a loop reads what an earlier iteration left: an accumulating statement on the buffer."""
        return any(getattr(s, "accumulate", False) and s.target.name == name for s in statements(loop.body))

    # -- emitting ----------------------------------------------------------------------------------------------------
    def _run(self, planned: Plan, values: dict[str, V]) -> None:
        e = self.e
        for item in planned:
            if isinstance(item, Let):
                values = values | {item.name: emit_dim(e, item.value, values)}
                self.lets[item.name] = item.value
            elif isinstance(item, _Segment):
                self.facts = item.facts
                inside = list(_clusters([item]))
                busiest = max(inside, key=lambda each: len(each.statements))
                ahead = self.ahead if len(inside) > 1 else self.near_ahead
                for each in item.clusters:
                    self._cluster(each, values, ahead if each is busiest else None)
            elif isinstance(item[0], Guard):
                guard, body = item
                with e.when(e.cmp("icmp sle", emit_dim(e, guard.smaller, values), emit_dim(e, guard.larger, values))):
                    self._run(body, values)
            else:
                loop, body = item
                begin, end = emit_dim(e, loop.begin, values), emit_dim(e, loop.end, values)
                with e.loop(begin, end, e.i64(loop.step)) as index:
                    self._run(body, values | {loop.var: index})

    def _cluster(
        self, each: Cluster, values: Mapping[str, V], ahead: Callable[[Ref], int | None] | None = None
    ) -> None:
        """One cluster; `ahead`: it asks for what will be read, while it computes."""
        first = each.statements[0]
        self.e.comment(
            "; ".join(_headline(s) for s in each.statements[:4]) + (" …" if len(each.statements) > 4 else "")
        )
        if isinstance(first, Scan):
            scans.scan(self.e, self, first, values)
        elif isinstance(first, Contract):
            self._contract(first, values, each.epilogue)
        else:
            Nest(self.e, self, each, values, self.target.lane_bytes, ahead).emit()

    def ahead(self, ref: Ref) -> int | None:
        """How many elements on the next tile reads where this one reads a large parameter; None where that is not
        known."""
        step = coefficient_of(substitute(ref.offset, self.lets), TILE) if self._is_far(ref) else None
        return step if isinstance(step, int) and step > 0 else None

    def near_ahead(self, ref: Ref) -> int | None:
        """How many elements on a loop that reads a large parameter once will soon be; None for others."""
        return DISTANCE // ref.dtype.size if self._is_far(ref) else None

    def _is_far(self, ref: Ref) -> bool:
        inputs = {self.bases[p.name].ref: p for p in self.program.params if p.role is not Role.OUT}
        param = inputs.get(ref.base.ref)
        size = dims.multiply(dims.product(param.shape), param.dtype.size) if param is not None else 0
        return isinstance(size, int) and size >= FAR

    def is_past(self, ref: Ref) -> bool:
        """Whether stores to it may pass the caches by."""
        return ref.base.ref in {self.bases[name].ref for name in self.past}

    def _contract(self, statement: Contract, values: Mapping[str, V], follows: Cluster | None) -> None:
        private = statement.target.name in self.private
        epilogue = tiles.Epilogue(follows, private) if follows is not None else None
        emitted = contraction.emit(self.e, self, statement, values, self.target, epilogue)
        if emitted is contraction.Emitted.NOTHING:
            self._fold_products(statement, values)
        if follows is not None and emitted is not contraction.Emitted.ALL:
            self._cluster(follows, values)

    def _fold_products(self, statement: Contract, values: Mapping[str, V]) -> None:
        product = Access(
            f"{statement.target.name}p", tuple(dims.symbol(a.name) for a in (*statement.axes, *statement.reduced))
        )
        self.extra[product.name] = statement.dtype
        axes = (*statement.axes, *statement.reduced)
        pair: list[Statement] = [
            Map(product, statement.dtype, "mul", (statement.left, statement.right), axes),
            Fold(
                statement.target,
                statement.dtype,
                "sum",
                product,
                statement.axes,
                statement.reduced,
                statement.accumulate,
            ),
        ]
        reduced = frozenset(a.name for a in statement.reduced)
        Nest(self.e, self, Cluster(axes, reduced, pair), values, self.target.lane_bytes).emit()

    # -- the memory of loop nests ------------------------------------------------------------------------------------
    def ref(self, access: Access) -> Ref:
        """Where an access goes: address, type, offset in elements."""
        tensor = self.program.tensors[access.name]
        strides = (
            tensor.strides if isinstance(tensor, Param) and tensor.strides is not None else strides_of(tensor.shape)
        )
        offset: Dim = 0
        for index, stride in zip(access.index, strides, strict=True):
            offset = dims.add(offset, dims.multiply(index, stride))
        return Ref(self.bases[access.name], tensor.dtype, offset)

    def in_memory(self, name: str) -> bool:
        """Whether writes to it go to memory."""
        return (
            name in self.resident
            or name in self.outputs
            or (name in self.program.buffers and self.program.buffers[name].space == GM)
        )

    def dtype(self, name: str) -> DType:
        """The element type of a parameter, a buffer or a product that lives in registers."""
        return self.extra[name] if name in self.extra else self.program.tensors[name].dtype

    def packing_area(self, size: int) -> V:
        """Behind the buffers in scratch."""
        self.packed = max(self.packed, size)
        return self.e.gep(V("ptr", "%scratch"), emit_dim(self.e, self.packing, self.sizes), "i8")

    def record(self, statement: Statement, bad: V, position: V) -> None:
        """Keep the smallest (operator, position) in the worker's status slot."""
        e = self.e
        lanes = lanes_of(bad.type)
        hit = bad if lanes == 1 else e.call("vector.reduce.or", "i1", bad, overload=(bad.type,))
        with e.when(hit):
            if lanes > 1:
                mask = e.cast("bitcast", bad, f"i{lanes}")
                wide = e.cast("zext", mask, "i64") if lanes < 64 else mask
                lane = e.value("i64", f"call i64 @llvm.cttz.i64({wide}, i1 false)")
                e.module.declare("llvm.cttz.i64", "i64", ["i64", "i1"])
                position = e.value("i64", f"extractelement {position}, {lane}")
            base = e.load("i64", e.gep(V("ptr", "%buffers"), e.i64(self.operator_slot), "ptr"), 8)
            operator = e.add(base, e.i64(self._ordinal(statement) + 1))
            status = V("ptr", "%status")
            place = e.gep(status, e.i64(1), "i64")
            old, old_position = e.load("i64", status, 8), e.load("i64", place, 8)
            same = e.op("and", e.cmp("icmp eq", operator, old), e.cmp("icmp slt", position, old_position))
            smaller = e.op("or", e.cmp("icmp slt", operator, old), same)
            with e.when(e.op("or", smaller, e.cmp("icmp eq", old, e.i64(0)))):
                e.store(operator, status, 8)
                e.store(position, place, 8)

    def _ordinal(self, statement: Statement) -> int:
        """The number of a statement that may fail, among those of the program."""
        checked = checks(self.program)
        return checked.index(statement.target.name.partition("_")[0])


def _segments(planned: Plan) -> Iterator[_Segment]:
    for item in planned:
        if isinstance(item, _Segment):
            yield item
        elif isinstance(item, tuple):
            yield from _segments(item[1])


def _clusters(planned: Plan) -> Iterator[Cluster]:
    for segment in _segments(planned):
        for each in segment.clusters:
            yield each
            if each.epilogue is not None:
                yield each.epilogue


def _names(each: Cluster) -> set[str]:
    names = {s.target.name for s in each.statements}
    return names | {o.name for s in each.statements for o in operands_of(s) if isinstance(o, Access)}


def _with_operands(statement: Statement, operands: list[Any]) -> Statement:
    if isinstance(statement, Map):
        return replace(statement, operands=tuple(operands))
    if isinstance(statement, Copy):
        return replace(statement, source=operands[0])
    if isinstance(statement, Contract):
        return replace(statement, left=operands[0], right=operands[1])
    if isinstance(statement, Gather):
        return replace(statement, source=operands[0], position=operands[1])
    return replace(statement, operand=operands[0])


def _headline(statement: Statement) -> str:
    what = getattr(statement, "op", None) or getattr(statement, "fold", None) or type(statement).__name__.lower()
    return f"{statement.target.name} = {what}"
