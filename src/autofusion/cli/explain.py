"""`autofusion explain FILE`: groups, verdicts, bytes moved fused and unfused, launches."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from autofusion import api
from autofusion.cli import command, groups, inputs, models, terminal
from autofusion.cli.command import Arguments, Command
from autofusion.jit.explain import explain

REFUSALS = 25  # lines of refusals that are shown without --all


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    command.add_model(parser)
    command.add_target(parser)
    command.add_shape(parser)
    parser.add_argument("--all", action="store_true", help="every verdict, those that fused too")
    command.add_json(parser)


def run(arguments: Arguments) -> int:
    """Explain without generating code: any target will do."""
    graph = models.read(arguments.file, arguments.shape)
    sizes = inputs.sizes_of(graph, arguments.shape)
    compilation = api.lower_graph(graph, arguments.target, arguments.numerics)
    found = explain(compilation, sizes)
    parts = groups.parts(compilation)
    if arguments.json:
        terminal.print_json(found.to_json() | {"parts": [asdict(part) for part in parts]})
        return 0
    console = terminal.console()
    console.print(groups.title(found))
    console.print()
    console.print(terminal.facts(groups.memory(found)))
    console.print(groups.table(found))
    if all(part.operators for part in parts):
        console.print(groups.parts_table(parts))
    listed = found.verdicts if arguments.all else found.refusals[:REFUSALS]
    if listed:
        console.print(groups.verdicts("Verdicts" if arguments.all else "Not fused, and why", listed))
    left = 0 if arguments.all else len(found.refusals) - len(listed)
    if left:
        console.print(f"and {left:,} more: --all shows every verdict")
    return 0


COMMAND = Command("explain", "groups, verdicts, bytes moved fused and unfused, launches", configure, run)
