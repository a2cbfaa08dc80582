"""`autofusion explain FILE`: groups, verdicts, bytes moved fused and unfused, launches."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from autofusion import api
from autofusion.cli import command, groups, inputs, models, terminal
from autofusion.cli.command import Arguments, Command
from autofusion.frontends.onnx import Undecided
from autofusion.frontends.onnx.program import SectionedExplanation, explained
from autofusion.jit.explain import Explanation, explain

REFUSALS = 25  # lines of refusals that are shown without --all


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    command.add_model(parser)
    command.add_target(parser)
    command.add_shape(parser)
    command.add_input(parser)
    parser.add_argument("--all", action="store_true", help="every verdict, those that fused too")
    command.add_json(parser)


def run(arguments: Arguments) -> int:
    """Explain without generating code: any target will do."""
    try:
        graph = models.read(arguments.file, arguments.shape)
    except Undecided:
        return run_sectioned(arguments)
    sizes = inputs.sizes_of(graph, arguments.shape, inputs.load(graph, arguments.input))
    compilation = api.lower_graph(graph, arguments.target, arguments.numerics)
    return _print(arguments, explain(compilation, sizes), groups.parts(compilation))


def run_sectioned(arguments: Arguments) -> int:
    """Which sections there are shows when the model runs; they are then lowered for the target."""
    program = models.read_program(arguments.file, arguments.shape, "cpu", arguments.numerics)
    arrays, _ = inputs.prepare(program.graph, arguments.shape, arguments.input, arguments.seed)
    program.run(arrays)
    target, numerics = arguments.target, arguments.numerics
    graphs = [section.graph for section in program.sections]
    lowered = [None if graph is None else api.lower_graph(graph, target, numerics) for graph in graphs]
    return _print(arguments, explained(program, program.sections, lowered), [])


def _print(arguments: Arguments, found: Explanation, parts: Sequence[groups.Part]) -> int:
    if arguments.json:
        terminal.print_json(found.to_json() | {"parts": [asdict(part) for part in parts]})
        return 0
    console = terminal.console()
    console.print(groups.title(found))
    console.print()
    console.print(terminal.facts(groups.memory(found)))
    console.print(groups.table(found))
    if isinstance(found, SectionedExplanation):
        console.print(groups.sections(found))
    if parts and all(part.operators for part in parts):
        console.print(groups.parts_table(parts))
    listed = found.verdicts if arguments.all else found.refusals[:REFUSALS]
    if listed:
        console.print(groups.verdicts("Verdicts" if arguments.all else "Not fused, and why", listed))
    left = 0 if arguments.all else len(found.refusals) - len(listed)
    if left:
        console.print(f"and {left:,} more: --all shows every verdict")
    return 0


COMMAND = Command("explain", "groups, verdicts, bytes moved fused and unfused, launches", configure, run)
