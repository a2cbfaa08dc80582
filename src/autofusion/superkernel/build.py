"""Packing groups into SuperKernels: phases by dependence, workspace by lifetime, host calls where they must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autofusion.autofuse.forms import Forms
from autofusion.autofuse.partition import FusionGroup
from autofusion.dims import Dim, evaluate
from autofusion.graph.ir import Graph, Node, Output
from autofusion.kinds import Kind
from autofusion.placement import Span, first_fit, lend
from autofusion.superkernel.options import SuperKernelOptions
from autofusion.superkernel.plan import (
    Call,
    Check,
    HostCall,
    Launch,
    Phase,
    Place,
    Plan,
    Storage,
    WriteBack,
    verify,
)

ALIGN = 4096  # workspace storages start on pages: no two of them share one
LENDERS = 16  # results, the largest, that may hold values between groups


@dataclass(frozen=True)
class KernelCall:
    """What a group needs to be called: per step chunks and the values it touches; `written` are its results, `last` of
    them those that are stored after every read of an argument that they are written to."""

    group: FusionGroup
    kernel: str
    arguments: tuple[str, ...]
    written: tuple[str, ...]
    chunks: tuple[Dim, ...]
    scratch: Dim
    checks: tuple[str, ...]
    workspace: tuple[Storage, ...] = ()
    last: frozenset[str] = frozenset()


def build(
    graph: Graph,
    groups: Sequence[KernelCall | FusionGroup],
    options: SuperKernelOptions | None = None,
    lend_results: bool = False,
) -> Plan:
    """The plan of a graph; device groups come as `KernelCall`, host groups as they are, in an order of execution.
    `lend_results`: values between groups may lie in results that are not written yet."""
    segments: list[list[KernelCall] | FusionGroup] = []
    for group in groups:
        if isinstance(group, FusionGroup):
            segments.append(group)
        elif segments and isinstance(segments[-1], list):
            segments[-1].append(group)
        else:
            segments.append([group])
    checks: list[Check] = []
    lines: list[Launch | HostCall] = []
    for segment in segments:
        if isinstance(segment, FusionGroup):
            node = segment.nodes[0]
            lines.append(HostCall(node.name, _stored(graph, node), node.name))
        else:
            lines.append(_launch(segment, checks))
    partials = {s.name: s for g in groups if isinstance(g, KernelCall) for s in g.workspace}
    reuse = (options or SuperKernelOptions()).workspace_reuse
    storages, workspace = _storages(graph, lines, partials, reuse, reuse and lend_results)
    calls = [g for g in groups if isinstance(g, KernelCall)]
    alone = len(lines) == 1 and not checks  # nothing may fail once an argument has changed
    writes = [
        WriteBack(o.writes, o.name, alone and _in_place(graph, o, lines, calls))
        for o in graph.outputs
        if o.writes is not None
    ]
    plan = Plan(graph.name, workspace, graph.symbols, (*storages, *checks, *lines, *writes))
    verify(plan)
    return plan


def _in_place(graph: Graph, output: Output, lines: Sequence[Launch | HostCall], calls: Sequence[KernelCall]) -> bool:
    """Whether an output can be stored right where it is to be written in the end."""
    (launch,) = lines
    argument = next(v for v in graph.inputs if v.name == output.writes)
    named = [o for o in graph.outputs if output.writes in (o.writes, o.name) or o.name == output.name]
    writer = next((c for c in calls if output.name in c.written), None)
    if writer is None or len(named) > 1 or argument.strides is not None or not isinstance(launch, Launch):
        return False
    phases = [[call.arguments for call in phase.body] for phase in launch.body]
    (made,) = [n for n, phase in enumerate(phases) if any(output.name in a for a in phase)][:1]
    readers = [n for n, phase in enumerate(phases) for a in phase if argument.name in a and output.name not in a]
    return len(writer.chunks) == 1 and output.name in writer.last and all(n < made for n in readers)


def _stored(graph: Graph, node: Node) -> tuple[str, ...]:
    """The storages behind a node's inputs: the host makes views and sources itself."""
    reads = Forms(graph).of(node).reads
    return tuple(n for n in reads if n not in graph.producers or graph.producers[n].kind is not Kind.SOURCE)


def _launch(calls: Sequence[KernelCall], checks: list[Check]) -> Launch:
    """Phases: a call runs one phase after the last of those that it depends on; later steps of a kernel follow on."""
    ready: dict[str, int] = {}
    phases: list[list[Call]] = []
    for call in calls:
        start = max((ready[name] for name in call.arguments if name in ready), default=0)
        first_check = len(checks)
        checks += [Check(operator) for operator in call.checks]
        for step, chunks in enumerate(call.chunks):
            while len(phases) <= start + step:
                phases.append([])
            names = (*call.arguments, *(s.name for s in call.workspace))
            phases[start + step].append(Call(call.kernel, step, names, chunks, call.scratch, first_check))
        for name in call.written:
            ready[name] = start + len(call.chunks)
    return Launch(tuple(Phase(tuple(phase)) for phase in phases))


def _storages(
    graph: Graph, lines: Sequence[Launch | HostCall], partials: Mapping[str, Storage], reuse: bool, lend_results: bool
) -> tuple[list[Storage], Dim]:
    """A storage per value that crosses groups; those of the workspace share bytes where their lifetimes do not meet, if
    they may at all."""
    results = {o.name for o in graph.outputs}
    arguments = {v.name for v in graph.inputs}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    clock = 0
    for line in lines:
        phases = (
            [[*line.inputs, line.output]]
            if isinstance(line, HostCall)
            else [[name for call in phase.body for name in call.arguments] for phase in line.body]
        )
        for names in phases:
            clock += 1
            for name in names:
                first.setdefault(name, clock)
                last[name] = clock
    storages: list[Storage] = [Storage(v.name, v.dtype, v.shape, Place.ARGUMENT, v.strides) for v in graph.inputs]
    inner: list[Storage] = []
    for name in first:
        if name in partials:
            inner.append(partials[name])
            continue
        value = graph.values[name]
        if name in arguments:
            continue
        if name in graph.constant_names:
            storages.append(Storage(name, value.dtype, value.shape, Place.CONSTANT))
        elif name in results:
            storages.append(Storage(name, value.dtype, value.shape, Place.RESULT))
        else:
            inner.append(Storage(name, value.dtype, value.shape, Place.WORKSPACE))
    if not reuse:
        first, last = dict.fromkeys(first, 0), dict.fromkeys(last, clock)
    placed, total = _place(inner, first, last)
    if lend_results and isinstance(total, int) and total > 0:
        written = {o.name for o in graph.outputs if o.writes is not None}
        made = [s for s in storages if s.place is Place.RESULT and s.name not in written and isinstance(s.bytes, int)]
        lent, less = _lend(inner, made, partials, first, last)
        if less < total:
            placed, total = lent, less
    return storages + placed, total


def _place(inner: Sequence[Storage], first: dict[str, int], last: dict[str, int]) -> tuple[list[Storage], Dim]:
    """First fit by lifetime, the largest first; storages of unknown size go behind, unshared."""
    sized = [Span(s.name, s.bytes, first[s.name], last[s.name]) for s in inner]
    largest_first = sorted(sized, key=lambda s: (-s.size if isinstance(s.size, int) else 0, s.first, s.name))
    offsets, total = first_fit(largest_first, ALIGN)
    return [replace(s, offset=offsets[s.name]) for s in inner], total


def _lend(
    inner: Sequence[Storage],
    results: Sequence[Storage],
    partials: Mapping[str, Storage],
    first: Mapping[str, int],
    last: Mapping[str, int],
) -> tuple[list[Storage], int]:
    """As _place, with the memory of results that are written later; of elements that are as large, for an array of the
    caller's own is aligned to them. Sizes are known."""
    sizes = {s.name: evaluate(s.bytes, {}) for s in (*inner, *results)}
    spans = {name: Span(name, size, first[name], last[name]) for name, size in sizes.items() if name in first}
    # the largest first; of as large ones the last, for that one is read beside the result
    largest_first = sorted(inner, key=lambda s: (-sizes[s.name], -last[s.name], s.name))
    hosts = sorted((r for r in results if r.name in first), key=lambda r: (-sizes[r.name], r.name))[:LENDERS]
    hosts.reverse()  # the smallest that fits comes first

    def lends(host: Storage, storage: Storage) -> bool:
        name = storage.name
        larger = sizes[name] <= sizes[host.name] and storage.dtype.size <= host.dtype.size
        return name not in partials and larger and last[name] < first[host.name]

    lenders = {s.name: [spans[host.name] for host in hosts if lends(host, s)] for s in inner}
    found, total = lend([spans[s.name] for s in largest_first], lenders, ALIGN)
    return [replace(s, within=found[s.name].lender, offset=found[s.name].offset) for s in inner], total
