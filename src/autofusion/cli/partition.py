"""`autofusion partition FILE -o plan.json`: the cut as data, for use inside another graph compiler."""

from __future__ import annotations

import argparse
import json
from typing import Any

from autofusion import api
from autofusion.cli import command, files, groups, models, terminal
from autofusion.cli.command import Arguments, Command
from autofusion.dtypes import DType
from autofusion.graph.ir import Graph, Node, Value
from autofusion.jit.explain import Explanation, explain
from autofusion.jit.pipeline import Compilation
from autofusion.ops import Kind
from autofusion.superkernel.plan import HostCall

FORMAT, VERSION = "autofusion-partition", 1


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    command.add_model(parser)
    parser.add_argument("-o", "--output", metavar="PLAN.json", help="where to write it (standard output)")
    command.add_target(parser)
    command.add_json(parser)


def run(arguments: Arguments) -> int:
    """Write the plan; without --output print it."""
    compilation = api.lower_graph(models.read(arguments.file), arguments.target, arguments.numerics)
    found = explain(compilation)
    text = document_text(as_json(compilation, found))
    if arguments.output is None:
        print(text, end="")
        return 0
    files.write(arguments.output, text.encode())
    if arguments.json:
        terminal.print_json({"output": arguments.output, "groups": len(found.groups), "launches": found.launches})
        return 0
    console = terminal.console()
    console.print(groups.title(found))
    console.print(groups.table(found))
    console.print(f"written to {arguments.output}")
    return 0


def as_json(compilation: Compilation, found: Explanation) -> dict[str, Any]:
    """The document; docs/cli.md describes its keys."""
    graph = compilation.graph
    number_of = {node.name: n for n, group in enumerate(compilation.partition.groups) for node in group.nodes}
    compute = [node for node in graph.nodes if node.kind is not Kind.SOURCE]
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": found.model,
        "target": found.target,
        "inputs": [_tensor(value) for value in graph.inputs],
        "constants": [_tensor(c.value) | {"digest": c.digest} for c in graph.constants],
        "outputs": [{"name": o.name, "writes": o.writes} if o.writes else {"name": o.name} for o in graph.outputs],
        "operators": [_operator(node, _source_of(compilation.source, node)) for node in compute],
        "scalars": [_operator(node, None) for node in graph.nodes if node.kind is Kind.SOURCE],
        "groups": _groups(compilation, found, number_of),
        "order": _order(compilation),
        "launches": found.launches,
        "gm_bytes": found.gm_bytes,
        "gm_bytes_unfused": found.gm_bytes_unfused,
        "sizes": dict(found.sizes),
        "verdicts": found.to_json()["verdicts"],
    }


def document_text(document: dict[str, Any]) -> str:
    """One entry a line: it reads, it diffs, and it stays small."""
    parts = []
    for key, value in terminal.plain(document).items():
        if isinstance(value, list) and value:
            lines = ",\n".join(f"  {json.dumps(each, ensure_ascii=False)}" for each in value)
            parts.append(f"{json.dumps(key)}: [\n{lines}\n]")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _tensor(value: Value) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": value.name, "dtype": value.dtype.value, "shape": _plain(value.shape)}
    return entry if value.strides is None else entry | {"strides": _plain(value.strides)}


def _operator(node: Node, source: str | None) -> dict[str, Any]:
    """One primitive; `source`: the operator of the file that it came from, where its name tells."""
    entry = _tensor(node.output) | {"type": node.op, "inputs": list(node.inputs)}
    attributes = {name: _plain(value) for name, value in node.attrs.items()}
    return entry | ({"attributes": attributes} if attributes else {}) | ({"source": source} if source else {})


def _plain(item: Any) -> Any:
    if isinstance(item, tuple):
        return [_plain(each) for each in item]
    if isinstance(item, DType):
        return item.value
    return item if isinstance(item, bool | int | float | str | None) else str(item)


def _source_of(source: Graph, node: Node) -> str | None:
    """Lowerings name what they make after the operator that they stand for: `softmax.exp` is part of `softmax`."""
    name = node.name
    while name not in source.producers and "." in name:
        name = name.rpartition(".")[0]
    return name if name in source.producers else None


def _groups(compilation: Compilation, found: Explanation, number_of: dict[str, int]) -> list[dict[str, Any]]:
    graph = compilation.graph
    arguments = {g.group.name: g for g in compilation.groups}
    listed = []
    for number, (group, report) in enumerate(zip(compilation.partition.groups, found.groups, strict=True)):
        inside = [node.name for node in group.nodes]
        if group.host:
            reads, writes = list(dict.fromkeys(group.nodes[0].inputs)), inside
        else:
            lowered = arguments[group.name].lowered
            made = {lowered.names[p.name] for p in lowered.kernel.params if p.role == "out"}
            reads = [name for name in lowered.arguments if name not in made]
            writes = [name for name in lowered.arguments if name in made]
        sources = [s for node in group.nodes if (s := _source_of(compilation.source, node))]
        listed.append(
            {
                "group": number,
                "name": group.name,
                "runs_on": "host" if group.host else "device",
                "kernel": report.kernel,
                "operators": inside,
                "sources": list(dict.fromkeys(sources)),
                "reads": reads,
                "writes": writes,
                "after": sorted({number_of[n] for n in reads if n in graph.producers and n in number_of}),
                "schedule": report.schedule,
                "bytes_read": report.bytes_read,
                "bytes_written": report.bytes_written,
            }
        )
    return listed


def _order(compilation: Compilation) -> list[dict[str, Any]]:
    """Launches and host calls in order; in a launch, the groups of a phase are independent of each other."""
    by_arguments = {(compilation.codes[g.code].name, g.lowered.arguments): g.group.name for g in compilation.groups}
    numbers = {group.name: number for number, group in enumerate(compilation.partition.groups)}
    order: list[dict[str, Any]] = []
    for segment in compilation.plan.segments:
        if isinstance(segment, HostCall):
            order.append({"host": numbers[segment.operator]})
            continue
        phases = [[numbers[by_arguments[call.kernel, call.arguments]] for call in phase.body] for phase in segment.body]
        order.append({"launch": phases})
    return order


COMMAND = Command("partition", "write groups, verdicts and order as JSON, for another graph compiler", configure, run)
