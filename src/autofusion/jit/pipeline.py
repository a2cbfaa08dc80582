"""The pipeline, top to bottom: from a graph to a callable. Each stage is named, timed, and can be dumped."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar, cast

from autofusion import config, dims, text
from autofusion.autofuse import improve, partition, widening, zero_points
from autofusion.autofuse.forms import Forms
from autofusion.autofuse.partition import FusionGroup, Partition
from autofusion.dims import Dim
from autofusion.errors import TargetError
from autofusion.graph import ir as graph_ir
from autofusion.graph.ir import Graph
from autofusion.jit import cache as caching
from autofusion.jit import dump as dumping
from autofusion.kernel import lower, schedule
from autofusion.kernel.ir import STATEMENTS, Access, Contract, Gather, Kernel, Param, Statement, operands_of
from autofusion.kernel.lower import Lowered
from autofusion.kernel.schedule import Schedule
from autofusion.ops import Kind
from autofusion.ops.library import LIBRARY
from autofusion.passes import pipeline as passes
from autofusion.runtime import pool
from autofusion.runtime.executable import Executable, Function
from autofusion.superkernel import build as packing
from autofusion.superkernel.build import KernelCall
from autofusion.superkernel.options import SuperKernelOptions
from autofusion.superkernel.plan import Place, Plan, Storage
from autofusion.target import Target
from autofusion.targets.cpu import host, llvm, render
from autofusion.tile import build as tiling
from autofusion.tile import ir as tile_ir
from autofusion.tile.ir import Program

T = TypeVar("T")


class Numerics(StrEnum):
    """`DEFAULT` keeps reduced precision in float32 inside a group; `STRICT` rounds after every operator."""

    DEFAULT = "default"
    STRICT = "strict"


STAGES = ("passes", "autofuse", "lower", "codegen", "build")


@dataclass
class Options:
    """What a compile may be told. `hosted`: nodes that the host has to run, by name."""

    numerics: Numerics = Numerics.DEFAULT
    fuse: bool = True
    cpu: str = "host"
    hosted: frozenset[str] = frozenset()
    schedules: Callable[[Kernel, Target], Schedule] = schedule.propose
    superkernel: SuperKernelOptions = field(default_factory=SuperKernelOptions)


@dataclass(frozen=True)
class GroupCode:
    """One group on its way down: its kernel, schedule, program, and the number of its (shared) code."""

    group: FusionGroup
    lowered: Lowered
    schedule: Schedule
    program: Program
    code: str


@dataclass
class Code:
    """One distinct kernel: LLVM text, function names, object code, and whether the cache had it. `final`: large
    results that nothing in the graph reads."""

    name: str
    functions: tuple[str, ...]
    scratch: Dim
    program: Program
    final: frozenset[str] = frozenset()
    text: str = ""
    object: bytes = b""
    hit: bool = False


@dataclass
class Compilation:
    """Everything that a compile made, stage by stage. `source` is without the data of constants that the compiled graph
    has in another layout, or folded into others: weights are not held twice. `packed`: digests of the constants that
    were laid out for their readers."""

    source: Graph
    graph: Graph
    target: Target
    options: Options
    partition: Partition
    groups: list[GroupCode]
    codes: dict[str, Code]
    plan: Plan
    milliseconds: dict[str, float]
    packed: frozenset[str] = frozenset()

    @property
    def cache_hits(self) -> int:
        """Distinct kernels that came from the cache."""
        return sum(code.hit for code in self.codes.values())


@dataclass
class Clock:
    """Milliseconds by stage."""

    spent: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spent[name] = self.spent.get(name, 0.0) + (time.perf_counter() - start) * 1e3


Progress = Callable[[str, int, int], None]  # stage, done, of


def partition_graph(graph: Graph, target: Target, fuse: bool = True, forms: Forms | None = None) -> Partition:
    """Groups of a graph that the passes have been through."""
    if not fuse:
        return partition.unfused(graph, target, forms)
    forms = forms or Forms(graph)
    return improve.improve(partition.greedy(graph, target, forms), forms)


def compile_graph(
    graph: Graph, target: Target, options: Options | None = None, progress: Progress | None = None
) -> Compilation:
    """All stages but loading, for a CPU target; kernels that are equal are made once. Raises TargetError,
    GraphError."""
    return _Compiler(graph, target, options or Options(), progress).run(generate=True)


def lower_graph(
    graph: Graph, target: Target, options: Options | None = None, progress: Progress | None = None
) -> Compilation:
    """The stages down to tile Programs and the plan, for any target; no code is made."""
    return _Compiler(graph, target, options or Options(), progress).run(generate=False)


def forms_of(graph: Graph, target: Target, options: Options) -> Forms:
    """The index forms of a graph's nodes, as the target and the options have them."""
    return Forms(graph, options.hosted, widening.find(graph, target, options.hosted))


class _Compiler:
    """One compile: what its stages share."""

    def __init__(self, graph: Graph, target: Target, options: Options, progress: Progress | None) -> None:
        self.source = graph
        self.target = target
        self.options = options
        self.progress = progress
        self.clock = Clock()
        self.dump = dumping.from_environment()
        self.machine = host.named(options.cpu)
        self.codes: dict[str, Code] = {}

    def run(self, generate: bool) -> Compilation:
        if self.dump.folder is not None:
            self.dump.write("source", str(self.source))
        _check_world(self.source)
        with self.clock.stage("passes"):
            graph = zero_points.multiply_out(passes.run(self.source), self.target)
            graph = widening.narrow_constants(graph, self.target)
            known, graph = graph.data.keys(), passes.lay_out(graph, self.target)
            packed = frozenset(graph.data.keys() - known)
            graph = self.dump.through("graph", graph, lambda text: graph_ir.parse(text, graph.data))
        self.graph, self.forms = graph, forms_of(graph, self.target, self.options)
        self.symbols = tuple(canonical_symbols(graph).values())
        with self.clock.stage("autofuse"):
            groups = partition_graph(graph, self.target, self.options.fuse, self.forms)
        device = [g for g in groups.groups if not g.host]
        made = []
        for number, group in enumerate(device):
            if self.progress:
                self.progress("kernels", number, len(device))
            made.append(self._group(group, generate))
        plan = plan_of(graph, groups, made, self.codes, self.options.superkernel, self.target.family == "cpu")
        source = replace(
            self.source, data={digest: graph.data[digest] for digest in self.source.data.keys() & graph.data}
        )
        compilation = Compilation(
            source, graph, self.target, self.options, groups, made, self.codes, plan, self.clock.spent, packed
        )
        if self.dump.folder is not None:
            self.dump.write("groups", group_list(groups))
            self.dump.write("plan", str(plan))
        _narrate(compilation)
        return compilation

    def _group(self, group: FusionGroup, generate: bool) -> GroupCode:
        """One group down to a program and, if it is new, to code."""
        name = f"k{len(self.codes)}"
        with self.clock.stage("lower"):
            strict = self.options.numerics is Numerics.STRICT
            lowered = lower.lower(self.graph, group, self.target, self.forms, strict)
            lowered = replace(lowered, kernel=renamed(lowered.kernel, canonical_symbols(self.graph)))
            chosen = self.options.schedules(lowered.kernel, self.target)
            results = lower.final_outputs(self.graph, group)
            final = frozenset(
                p.name
                for p in lowered.kernel.params
                if p.role == "out" and lowered.names[p.name] in results and render.is_past(p.shape, p.dtype)
            )
            key = _key(lowered.kernel, chosen, final, self.symbols, self.target, self.machine)
            if key in self.codes:
                return GroupCode(group, lowered, chosen, self.codes[key].program, key)
            if self.dump.folder is not None:
                self.dump.write("kernel", str(lowered.kernel), name)
            overrides = len(self.dump.overridden)
            chosen = self.dump.through("schedule", chosen, schedule.parse, name)
            program = tiling.build(lowered.kernel, chosen, self.target)
            program = self.dump.through("tile", program, self._parse_program, name)
        code = Code(name, (), 0, program, final)
        if generate:
            self._generate(code, key, overrides)
        self.codes[key] = code
        return GroupCode(group, lowered, chosen, program, key)

    def _parse_program(self, text: str) -> Program:
        program = tile_ir.parse(text)
        tile_ir.verify(program, self.target)
        return program

    def _generate(self, code: Code, key: str, overrides: int) -> None:
        """LLVM text and object code; an edited stage never meets the cache."""
        with self.clock.stage("codegen"):
            rendered = render.render(code.program, self.target, FUNCTION, self.symbols, code.final)
            code.scratch = rendered.scratch
            code.functions = tuple(own_name(name, key) for name in rendered.functions)
            code.text = self.dump.through("llvm", rendered.text, str, code.name)
        with self.clock.stage("build"):
            if len(self.dump.overridden) > overrides:
                code.object = _object(code, key, self.machine)
                return
            meta = {"target": host.identity(self.machine)}
            build = partial(_object, code, key, self.machine)
            code.object, code.hit = caching.default_cache().get_or_build(key, build, meta)


FUNCTION = "kernel"  # what the text of every kernel calls its functions


def own_name(function: str, key: str) -> str:
    """The name of a function in object code: no other kernel's, so that all can be linked together."""
    return f"{function}_{key[:16]}"


def _object(code: Code, key: str, machine: host.Machine) -> bytes:
    text = re.sub(rf"@({FUNCTION}_\d+)\(", lambda found: f"@{own_name(found[1], key)}(", code.text)
    return llvm.compile_object(text, machine)


def canonical_symbols(graph: Graph) -> dict[str, str]:
    """A graph's open dimensions by the names that its kernels have for them: no name of a user's meets one of ours."""
    return {name: f"s{number}" for number, name in enumerate(graph.symbols)}


def renamed(node: T, names: Mapping[str, str]) -> T:
    """A kernel with its symbols renamed."""
    if not names:
        return node
    values: dict[str, Dim] = {old: dims.symbol(new) for old, new in names.items()}
    return text.map_dims(node, lambda dim: dims.substitute(dim, values))


def _narrate(compilation: Compilation) -> None:
    """What `AUTOFUSION_DEBUG` asks for, on stderr: 1 the stages' times, 2 also every verdict."""
    level = config.debug_level()
    if level >= 1:
        spent = ", ".join(f"{stage} {ms:.1f} ms" for stage, ms in compilation.milliseconds.items())
        counts = f"{len(compilation.partition.groups)} groups, {len(compilation.codes)} kernels"
        print(f"autofusion: {compilation.graph.name}: {counts}; {spent}", file=sys.stderr)
    if level >= 2:
        for verdict in compilation.partition.verdicts:
            print(f"autofusion: {verdict}", file=sys.stderr)


def _check_world(graph: Graph) -> None:
    """Communication runs here only in a world of one device, where it is the identity."""
    for node in graph.nodes:
        if node.kind is Kind.COMM and node.attrs["world_size"] != 1:
            size = node.attrs["world_size"]
            raise TargetError(
                f"{node.name} ({node.op}): communication over {size} devices; this machine is a world of 1"
            )


def _key(
    kernel: Kernel,
    chosen: Schedule,
    final: frozenset[str],
    symbols: tuple[str, ...],
    target: Target,
    machine: host.Machine,
) -> str:
    return caching.key_of(
        {
            "kernel": str(kernel),
            "schedule": str(chosen),
            "final": ",".join(sorted(final)),
            "symbols": ",".join(symbols),
            "library": "\n".join(
                LIBRARY.get(s.library).source for s in kernel.statements if isinstance(s, Contract) and s.library
            ),
            "target": repr(target),
            "machine": host.identity(machine),
            "source": caching.source_hash(),
        }
    )


def plan_of(
    graph: Graph,
    groups: Partition,
    made: list[GroupCode],
    codes: Mapping[str, Code],
    options: SuperKernelOptions | None = None,
    lend_results: bool = True,
) -> Plan:
    by_group = {g.group.name: g for g in made}
    calls: list[KernelCall | FusionGroup] = []
    for group in groups.groups:
        if group.host:
            calls.append(group)
            continue
        code = by_group[group.name]
        compiled = codes[code.code]
        names = code.lowered.names
        written = [names[p.name] for p in code.lowered.kernel.params if p.role == "out"]
        back: dict[str, Dim] = {short: dims.symbol(name) for name, short in canonical_symbols(graph).items()}
        chunks = tuple(dims.substitute(step.bodies[0].body[0].count, back) for step in code.program.steps)
        scratch = dims.substitute(compiled.scratch, back)
        checks = tuple(names.get(target, target) for target in tile_ir.checks(code.program))
        partials = tuple(
            Storage(
                f"{group.name}.{b.name}", b.dtype, tuple(dims.substitute(d, back) for d in b.shape), Place.WORKSPACE
            )
            for b in code.program.workspace
        )
        last = frozenset(o.name for o in graph.outputs if o.writes and _stored_last(code.lowered, o.name, o.writes))
        call = KernelCall(
            group, compiled.name, code.lowered.arguments, tuple(written), chunks, scratch, checks, partials, last
        )
        calls.append(call)
    return packing.build(graph, calls, options, lend_results)


def _stored_last(lowered: Lowered, result: str, argument: str) -> bool:
    """Whether a kernel reads an argument only at the positions that it stores a result at, and not after that."""
    params = {lowered.names[p.name]: p.name for p in lowered.kernel.params}
    statements = lowered.kernel.statements
    stores = {n: s.target.index for n, s in enumerate(statements) if s.target.name == params.get(result)}
    reads = [
        (n, operand.index)
        for n, statement in enumerate(statements)
        for operand in operands_of(statement)
        if isinstance(operand, Access) and operand.name == params.get(argument)
    ]
    gathered = any(isinstance(s, Gather) and s.source.name == params.get(argument) for s in statements)
    return not gathered and len(stores) == 1 and all(n <= m and at == stores[m] for n, at in reads for m in stores)


def load(compilation: Compilation) -> Executable:
    """Link the code into this process and bind it to the plan."""
    codes = compilation.codes.values()
    loaded = llvm.load([code.object for code in codes], [name for code in codes for name in code.functions])
    functions = {
        (code.name, step): Function(loaded.addresses[name], loaded)
        for code in codes
        for step, name in enumerate(code.functions)
    }
    return Executable(compilation.plan, compilation.graph, functions, pool.worker_count())


def stages(compilation: Compilation) -> Iterator[tuple[str, str]]:
    """Every stage's text, in order."""
    yield "source", str(compilation.source)
    yield "graph", str(compilation.graph)
    yield "groups", group_list(compilation.partition)
    yield "kernel", "\n".join(_titled(g, _noted(g, g.lowered.kernel)) for g in compilation.groups)
    yield "schedule", "\n".join(_titled(g, str(g.schedule)) for g in compilation.groups)
    yield "tile", "\n".join(_titled(g, _noted(g, g.program)) for g in compilation.groups)
    yield "plan", str(compilation.plan)
    first = {g.code: g for g in reversed(compilation.groups)}
    yield "llvm", "\n".join(f"; {c.name}: {_legend(first[key])}\n{c.text}" for key, c in compilation.codes.items())


def group_list(groups: Partition) -> str:
    """A line a group: its operators, by the graph's names."""
    return "\n".join(f"{g.name}: {' '.join(n.name for n in g.nodes)}" for g in groups.groups)


def _titled(group: GroupCode, content: str) -> str:
    return f"# {group.group.name}: {', '.join(n.op for n in group.group.nodes)}\n{content}"


def _noted(group: GroupCode, node: Kernel | Program) -> str:
    """A kernel's or program's text with the graph's names as comments; a buffer `v4_wide` holds what v4 is made of."""

    def note(line: Any) -> str:
        if isinstance(line, Param):
            return group.lowered.names.get(line.name, "")
        value = cast(Statement, line).target.name.partition("_")[0] if isinstance(line, STATEMENTS) else ""
        return group.lowered.names.get(value, "")

    return text.show(node, note)


def _legend(group: GroupCode) -> str:
    """The graph's names behind the canonical ones."""
    return ", ".join(f"{short} = {name}" for short, name in group.lowered.names.items())


def assembly(compilation: Compilation) -> str:
    """The assembly of every distinct kernel, for the machine that it was compiled for."""
    machine = host.named(compilation.options.cpu)
    return "\n".join(f"# {c.name}\n{llvm.assembly(c.text, machine)}" for c in compilation.codes.values())
