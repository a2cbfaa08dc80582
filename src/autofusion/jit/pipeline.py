"""The pipeline, top to bottom: from a graph to a callable. Each stage is named, timed, and can be dumped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from autofusion import config
from autofusion.autofuse import improve, partition
from autofusion.autofuse.forms import Forms
from autofusion.autofuse.partition import FusionGroup, Partition
from autofusion.dims import Dim
from autofusion.graph.ir import Graph
from autofusion.jit import cache as caching
from autofusion.kernel import lower, schedule
from autofusion.kernel.ir import Kernel
from autofusion.kernel.lower import Lowered
from autofusion.kernel.schedule import Schedule
from autofusion.passes import pipeline as passes
from autofusion.runtime import pool
from autofusion.runtime.executable import Executable, Function
from autofusion.superkernel import build as packing
from autofusion.superkernel.build import KernelCall
from autofusion.superkernel.plan import Place, Plan, Storage
from autofusion.target import Target
from autofusion.targets.cpu import host, llvm, render
from autofusion.tile import build as tiling
from autofusion.tile.ir import Program


class Numerics(StrEnum):
    """`DEFAULT` keeps reduced precision in float32 inside a group; `STRICT` rounds after every operator."""

    DEFAULT = "default"
    STRICT = "strict"


STAGES = ("passes", "autofuse", "lower", "codegen", "build")


@dataclass
class Options:
    """What a compile may be told."""

    numerics: Numerics = Numerics.DEFAULT
    fuse: bool = True
    cpu: str = "host"
    schedules: Callable[[Kernel, Target], Schedule] = schedule.propose


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
    """One distinct kernel: LLVM text, function names, object code, and whether the cache had it."""

    name: str
    functions: tuple[str, ...]
    scratch: Dim
    program: Program
    text: str = ""
    object: bytes = b""
    hit: bool = False


@dataclass
class Compilation:
    """Everything that a compile made, stage by stage."""

    source: Graph
    graph: Graph
    target: Target
    options: Options
    partition: Partition
    groups: list[GroupCode]
    codes: dict[str, Code]
    plan: Plan
    milliseconds: dict[str, float]

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
        return partition.unfused(graph, target)
    forms = forms or Forms(graph)
    return improve.improve(partition.greedy(graph, target, forms), forms)


def compile_graph(
    graph: Graph, target: Target, options: Options | None = None, progress: Progress | None = None
) -> Compilation:
    """All stages but loading. `target` is a CPU; kernels that are equal are made once."""
    options = options or Options()
    clock = Clock()
    machine = host.named(options.cpu)
    with clock.stage("passes"):
        lowered_graph = passes.run(graph)
    forms = Forms(lowered_graph)
    with clock.stage("autofuse"):
        groups = partition_graph(lowered_graph, target, options.fuse, forms)
    made: list[GroupCode] = []
    codes: dict[str, Code] = {}
    cache = caching.default_cache()
    device = [g for g in groups.groups if not g.host]
    for number, group in enumerate(device):
        if progress:
            progress("kernels", number, len(device))
        made.append(_compile_group(lowered_graph, group, target, options, forms, clock, codes, cache, machine))
    plan = _plan(lowered_graph, groups, made, codes)
    compilation = Compilation(graph, lowered_graph, target, options, groups, made, codes, plan, clock.spent)
    dump(compilation)
    return compilation


def _compile_group(
    graph: Graph,
    group: FusionGroup,
    target: Target,
    options: Options,
    forms: Forms,
    clock: Clock,
    codes: dict[str, Code],
    cache: caching.Cache,
    machine: host.Machine,
) -> GroupCode:
    with clock.stage("lower"):
        strict = options.numerics is Numerics.STRICT
        lowered = lower.lower(graph, group, target, forms, strict)
        chosen = options.schedules(lowered.kernel, target)
        key = _key(lowered.kernel, chosen, graph.symbols, target, machine)
        if key in codes:
            return GroupCode(group, lowered, chosen, codes[key].program, key)
        program = tiling.build(lowered.kernel, chosen, target)
    name = f"k{len(codes)}"
    with clock.stage("codegen"):
        rendered = render.render(program, target, "kernel", graph.symbols)
    code = Code(name, rendered.functions, rendered.scratch, program, rendered.text)
    with clock.stage("build"):
        code.object, code.hit = cache.get_or_build(
            key, lambda: llvm.compile_object(rendered.text, machine), {"target": host.identity(machine)}
        )
    codes[key] = code
    return GroupCode(group, lowered, chosen, program, key)


def _key(kernel: Kernel, chosen: Schedule, symbols: tuple[str, ...], target: Target, machine: host.Machine) -> str:
    return caching.key_of(
        {
            "kernel": str(kernel),
            "schedule": str(chosen),
            "symbols": ",".join(symbols),
            "target": repr(target),
            "machine": host.identity(machine),
            "source": caching.source_hash(),
        }
    )


def _plan(graph: Graph, groups: Partition, made: list[GroupCode], codes: Mapping[str, Code]) -> Plan:
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
        chunks = tuple(step.bodies[0].body[0].count for step in code.program.steps)
        checks = tuple(names.get(target, target) for target in render.checks(code.program))
        partials = tuple(
            Storage(f"{group.name}.{b.name}", b.dtype, b.shape, Place.WORKSPACE) for b in code.program.workspace
        )
        call = KernelCall(
            group, compiled.name, code.lowered.arguments, tuple(written), chunks, compiled.scratch, checks, partials
        )
        calls.append(call)
    return packing.build(graph, calls)


def load(compilation: Compilation) -> Executable:
    """Link the code into this process and bind it to the plan."""
    functions: dict[tuple[str, int], Function] = {}
    for code in compilation.codes.values():
        loaded = llvm.load(code.object, code.functions)
        for step, function in enumerate(code.functions):
            functions[code.name, step] = Function(loaded.addresses[function], loaded)
    return Executable(compilation.plan, compilation.graph, functions, pool.worker_count())


def dump(compilation: Compilation) -> None:
    """Write the numbered stages to the dump folder, where one is set."""
    folder = config.dump_dir()
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for number, (stage, text) in enumerate(stages(compilation)):
        (folder / f"{number:02d}-{stage}.txt").write_text(text + "\n")


def stages(compilation: Compilation) -> Iterator[tuple[str, str]]:
    """Every stage's text, in order."""
    yield "source", str(compilation.source)
    yield "graph", str(compilation.graph)
    yield "groups", "\n".join(f"{g.name}: {' '.join(n.name for n in g.nodes)}" for g in compilation.partition.groups)
    yield "kernel", "\n".join(_titled(g, str(g.lowered.kernel)) for g in compilation.groups)
    yield "schedule", "\n".join(_titled(g, str(g.schedule)) for g in compilation.groups)
    yield "tile", "\n".join(_titled(g, str(g.program)) for g in compilation.groups)
    yield "plan", str(compilation.plan)
    yield "llvm", "\n".join(f"; {code.name}\n{code.text}" for code in compilation.codes.values())


def _titled(group: GroupCode, text: str) -> str:
    return f"# {group.group.name}: {', '.join(n.op for n in group.group.nodes)}\n{text}"


def assembly(compilation: Compilation) -> str:
    """The assembly of every distinct kernel, for the machine that it was compiled for."""
    machine = host.named(compilation.options.cpu)
    return "\n".join(f"# {c.name}\n{llvm.assembly(c.text, machine)}" for c in compilation.codes.values())
