"""Why a graph was cut as it was: groups, verdicts, bytes, launches. Data first; text is made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autofusion.autofuse import partition
from autofusion.autofuse.forms import SIZE_HINT
from autofusion.autofuse.partition import Partition
from autofusion.autofuse.verdicts import Verdict
from autofusion.dims import evaluate, product
from autofusion.graph.ir import Graph
from autofusion.jit.pipeline import Compilation, Numerics, Options, canonical_symbols, forms_of
from autofusion.kernel import lower
from autofusion.ops import Kind
from autofusion.target import Target
from autofusion.tile import build as tiling
from autofusion.tile import cost, traffic

MOST_ELEMENTS = 1 << 22  # of a value of open extents that are only assumed


@dataclass(frozen=True)
class GroupReport:
    """One group: its operators, where it runs, and bytes between global memory and the chip."""

    name: str
    operators: tuple[str, ...]
    host: bool
    kernel: str
    schedule: str
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True)
class Explanation:
    """Everything that can be asked about a compile. `constant_bytes`: held by the compiled graph; `packed_bytes`: the
    part of them that was laid out for its readers at compile time, whose originals are not held. `sizes`: what symbols
    were taken for when bytes were counted."""

    model: str
    target: str
    ops: int
    groups: tuple[GroupReport, ...]
    verdicts: tuple[Verdict, ...]
    launches: int
    fallbacks: tuple[str, ...]
    gm_bytes: int
    gm_bytes_unfused: int
    gm_bytes_compulsory: int
    constant_bytes: int
    packed_bytes: int
    sizes: Mapping[str, int]

    @property
    def refusals(self) -> tuple[Verdict, ...]:
        """The merges that were not made."""
        return tuple(v for v in self.verdicts if not v.fused)

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        data = asdict(self)
        data["verdicts"] = [v._asdict() | {"code": v.code.value, "numbers": dict(v.numbers)} for v in self.verdicts]
        return data

    def __str__(self) -> str:
        lines = [
            f"{self.model} on {self.target}: {_count(self.ops, 'operator')} -> {_count(len(self.groups), 'group')}, "
            f"{_count(self.launches, 'launch', 'es')}",
            f"global memory: {self.gm_bytes:,} bytes fused, {self.gm_bytes_unfused:,} unfused, "
            f"{self.gm_bytes_compulsory:,} compulsory",
        ]
        if self.constant_bytes:
            lines.append(f"constants: {self.constant_bytes:,} bytes, {self.packed_bytes:,} of them packed")
        for number, group in enumerate(self.groups):
            where = "host" if group.host else group.kernel
            lines.append(f"  group {number} [{where}] {group.name}: {', '.join(group.operators)}")
            lines.append(f"    reads {group.bytes_read:,} B, writes {group.bytes_written:,} B; {group.schedule}")
        lines += [f"  not fused: {verdict}" for verdict in self.refusals]
        lines += [f"  on the host: {name}" for name in self.fallbacks]
        return "\n".join(lines)


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}" + ("" if number == 1 else plural)


def _standing(partition: Partition) -> tuple[Verdict, ...]:
    """The verdicts but for refusals that later steps overcame: all that would have been merged is in one group."""
    home = {node.name: number for number, group in enumerate(partition.groups) for node in group.nodes}

    def overcome(verdict: Verdict) -> bool:
        homes = {home.get(name) for name in (verdict.producer, verdict.consumer, *verdict.others)}
        return len(homes) == 1 and None not in homes

    return tuple(v for v in partition.verdicts if v.fused or not overcome(v))


def explain(compilation: Compilation, sizes: Mapping[str, int] | None = None) -> Explanation:
    """The explanation of a compile; symbols without a size count as what `estimates` says."""
    graph = compilation.graph
    known = estimates(graph, sizes or {})
    inside = {short: known[name] for name, short in canonical_symbols(graph).items()}
    reports = []
    codes = {g.group.name: g for g in compilation.groups}
    for group in compilation.partition.groups:
        operators = tuple(node.op for node in group.nodes)
        if group.host:
            reports.append(GroupReport(group.name, operators, True, "", "", 0, 0))
            continue
        code = codes[group.name]
        moved = traffic.gm_bytes(code.program, inside)
        kernel = compilation.codes[code.code].name
        reports.append(GroupReport(group.name, operators, False, kernel, str(code.schedule), moved.read, moved.written))
    return Explanation(
        graph.name,
        compilation.target.name,
        len([n for n in compilation.source.nodes if n.kind is not Kind.SOURCE]),
        tuple(reports),
        _standing(compilation.partition),
        len(compilation.plan.launches),
        tuple(f"{n.name} ({n.op})" for g in compilation.partition.groups if g.host for n in g.nodes),
        sum(r.bytes_read + r.bytes_written for r in reports),
        unfused_bytes(graph, compilation.target, compilation.options, known),
        compulsory_bytes(graph, known),
        sum(array.nbytes for array in graph.data.values()),
        sum(graph.data[digest].nbytes for digest in compilation.packed),
        known,
    )


def predicted_us(compilation: Compilation, sizes: Mapping[str, int] | None = None, workers: int = 1) -> float:
    """What the cost model gives for one call without its host operators, in microseconds. Workers share chunks, and
    wait for each other between phases."""
    graph, target = compilation.graph, compilation.target
    known = estimates(graph, sizes or {})
    inside = {short: known[name] for name, short in canonical_symbols(graph).items()}
    total = len(compilation.plan.launches) * target.launch_us
    if workers > 1:
        total += sum(len(launch.body) - 1 for launch in compilation.plan.launches) * target.barrier_us
    costs: dict[str, float] = {}
    for group in compilation.groups:
        if group.code not in costs:
            chunks = max(int(evaluate(step.bodies[0].body[0].count, inside)) for step in group.program.steps)
            costs[group.code] = cost.cost(group.program, target, inside).total / max(1, min(workers, chunks))
        total += costs[group.code]
    return total


def estimates(graph: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    """What open dimensions are taken for where no size is known: the number that ranking uses, or a smaller one where
    several of them make a value large, for bytes are counted tile by tile."""
    hint = SIZE_HINT
    while True:
        known = dict.fromkeys(graph.symbols, hint) | dict(sizes)
        most = max((int(evaluate(product(v.shape), known)) for v in graph.values.values()), default=0)
        if most <= MOST_ELEMENTS or hint <= 8:
            return known
        hint //= 2


def unfused_bytes(graph: Graph, target: Target, options: Options, sizes: Mapping[str, int]) -> int:
    """Bytes if every operator were a group of its own: counted like the fused ones, from tile programs."""
    forms = forms_of(graph, target, options)
    strict = options.numerics is Numerics.STRICT
    known: dict[str, int] = {}
    total = 0
    for group in partition.unfused(graph, target, forms).groups:
        if group.host:
            continue
        kernel = lower.lower(graph, group, target, forms, strict).kernel
        text = str(kernel)
        if text not in known:
            program = tiling.build(kernel, options.schedules(kernel, target), target)
            known[text] = traffic.gm_bytes(program, sizes).total
        total += known[text]
    return total


def compulsory_bytes(graph: Graph, sizes: Mapping[str, int]) -> int:
    """Every input, constant and output of the graph once."""
    names = [v.name for v in graph.inputs] + [c.value.name for c in graph.constants] + [o.name for o in graph.outputs]
    return sum(int(evaluate(graph.values[name].bytes, sizes)) for name in names)
