"""What a target's code generator refuses runs on the host: lowered again with those operators there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autofusion.errors import TargetError
from autofusion.graph.ir import Graph
from autofusion.jit import pipeline
from autofusion.jit.pipeline import Compilation, GroupCode, Options, Progress
from autofusion.kinds import Kind
from autofusion.target import Target


def lower(
    graph: Graph,
    target: Target,
    options: Options,
    generate: Callable[[GroupCode], object],
    progress: Progress | None = None,
) -> Compilation:
    """The stages down to the plan. `generate` makes a group's code, or raises TargetError: then the group's
    contractions, or where it has none all its operators, run on the host. Each round has more there than the last."""
    while True:
        compilation = pipeline.lower_graph(graph, target, options, progress)
        refused: set[str] = set()
        tried: set[str] = set()
        for group in compilation.groups:
            if group.code in tried and group.code not in refused:
                continue
            tried.add(group.code)
            try:
                generate(group)
            except TargetError:
                contractions = {n.name for n in group.group.nodes if n.kind is Kind.CONTRACT}
                refused |= contractions or {n.name for n in group.group.nodes}
        if not refused:
            return compilation
        assert not refused <= options.hosted, "what the host runs has no code to be refused"
        options = replace(options, hosted=options.hosted | refused)
