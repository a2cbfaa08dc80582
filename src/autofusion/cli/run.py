"""`autofusion run FILE`: compile, run, and say what happened; checked against the reference and timed on request."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.text import Text

from autofusion import api
from autofusion.cli import check, chip, command, compare, files, groups, inputs, models, terminal
from autofusion.cli.check import Difference
from autofusion.cli.command import Arguments, Command
from autofusion.dtypes import Array
from autofusion.errors import ArgumentError
from autofusion.frontends.onnx import Program, Undecided
from autofusion.frontends.onnx.program import SectionedExplanation
from autofusion.frontends.onnx.sections import Section
from autofusion.graph.ir import Graph
from autofusion.jit.explain import Explanation, explain
from autofusion.jit.pipeline import STAGES
from autofusion.runtime import pool
from autofusion.runtime.ascend import AscendExecutable, Counters
from autofusion.runtime.executable import Executable
from autofusion.superkernel.options import SuperKernelOptions

REPEAT = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    command.add_model(parser)
    command.add_input(parser)
    command.add_shape(parser)
    parser.add_argument("--check", action="store_true", help="compare with the reference; exit 1 outside tolerance")
    command.add_superkernel(parser)
    parser.add_argument("--compare", choices=["unfused"], help="time op by op too")
    parser.add_argument(
        "--repeat", type=command.positive, metavar="N", help="timed runs (10; the first one on the AI Core model)"
    )
    parser.add_argument("--threads", type=command.positive, metavar="N", help="workers of a launch")
    parser.add_argument("--save", metavar="OUT.npz", help="write the outputs, by name")
    command.add_target(parser)
    command.add_json(parser)


@dataclass
class Report:
    """What a run found out. Milliseconds; `differences` is None without --check."""

    graph: Graph
    outputs: Sequence[str]
    compiled: api.Compiled | Program
    explanation: Explanation
    arrays: list[Array]
    results: list[Array]
    stages: dict[str, float]
    launches: int
    fallbacks: int
    median_ms: float = 0.0
    repeat: int = 0
    workers: int = 1
    counters: Counters | None = None
    differences: list[Difference] | None = None
    unfused: dict[str, Any] = field(default_factory=dict)

    @property
    def chip(self) -> AscendExecutable | None:
        """What launched, on Ascend targets."""
        return chip.executable_of(self.compiled)

    @property
    def modelled(self) -> bool:
        """Whether it ran on the AI Core model: its time is no machine's."""
        return self.chip is not None and not self.chip.on_device

    @property
    def ok(self) -> bool:
        return all(d.ok for d in self.differences or ())

    @property
    def compile_ms(self) -> float:
        return sum(self.stages[name] for name in STAGES)


def run(arguments: Arguments) -> int:
    """0, or 1 where --check found an output outside its tolerance."""
    if arguments.save is not None and not arguments.save.endswith(".npz"):
        raise ArgumentError(f"--save {arguments.save}: expected a name that ends in .npz")
    if arguments.threads is not None and api.find_target(arguments.target).family != "cpu":
        raise ArgumentError(f"--threads {arguments.threads}: workers are a CPU's, not of target {arguments.target}")
    report = first_run(arguments)
    if arguments.check:
        report.differences = differences(report, arguments)
    measure(report, arguments)
    if arguments.save is not None:
        files.write(arguments.save, files.npz(dict(zip(report.outputs, report.results, strict=True))))
    if arguments.json:
        terminal.print_json(as_json(report))
    else:
        show(report, arguments)
    return 0 if report.ok else 1


def first_run(arguments: Arguments) -> Report:
    """Read, compile and launch once: the counts and the results are of this launch."""
    start = time.perf_counter()
    try:
        graph = models.read(arguments.file, arguments.shape)
    except Undecided:
        return first_run_of_program(arguments)
    read_ms = (time.perf_counter() - start) * 1e3
    arrays, sizes = inputs.prepare(graph, arguments.shape, arguments.input, arguments.seed)
    with terminal.progress(f"compiling {graph.name}") as progress:
        start = time.perf_counter()
        compiled = api.compile_graph(
            graph,
            arguments.target,
            arguments.numerics,
            progress=progress,
            superkernel=SuperKernelOptions.without(arguments.without),
        )
        if isinstance(compiled.executable, AscendExecutable):
            compiled.executable.prepare(lambda done, total: progress("launches", done, total))
        whole_ms = (time.perf_counter() - start) * 1e3
    assert compiled.compilation is not None
    stages = dict.fromkeys(STAGES, 0.0) | compiled.compilation.milliseconds
    stages["build"] += max(0.0, whole_ms - sum(stages.values()))  # linking, and what no stage claims
    start = time.perf_counter()
    results = compiled.run(fresh(graph, arrays), arguments.threads)
    first_ms = (time.perf_counter() - start) * 1e3
    counts = compiled.executable.counts
    return Report(
        graph,
        [output.name for output in graph.outputs],
        compiled,
        explain(compiled.compilation, sizes),
        arrays,
        results,
        {"read": read_ms, **stages, "first launch": first_ms},
        counts.launches,
        counts.fallbacks,
        workers=arguments.threads or pool.worker_count(),
        counters=found.counters if isinstance(found := compiled.executable, AscendExecutable) else None,
    )


def first_run_of_program(arguments: Arguments) -> Report:
    """The same where sections are compiled as the run reaches them."""
    if arguments.compare:
        raise ArgumentError(f"--compare {arguments.compare}: not for a model with data-dependent control flow")
    if arguments.without:
        raise ArgumentError(f"--without {arguments.without[0]}: not for a model with data-dependent control flow")
    start = time.perf_counter()
    program = models.read_program(arguments.file, arguments.shape, arguments.target, arguments.numerics)
    read_ms = (time.perf_counter() - start) * 1e3
    arrays, _ = inputs.prepare(program.graph, arguments.shape, arguments.input, arguments.seed)
    with terminal.progress(f"compiling {program.graph.name}") as progress:
        program.progress = progress
        start = time.perf_counter()
        results = program.run(arrays, arguments.threads)
        whole_ms = (time.perf_counter() - start) * 1e3
        program.progress = None
    stats = program.stats
    stages = dict.fromkeys(STAGES, 0.0) | stats["stages_ms"]
    return Report(
        program.graph,
        program.outputs,
        program,
        program.explain(),
        arrays,
        results,
        {"read": read_ms, **stages, "first launch": max(0.0, whole_ms - sum(stages.values()))},
        stats["launches"],
        stats["fallbacks"],
        workers=arguments.threads or pool.worker_count(),
    )


def differences(report: Report, arguments: Arguments) -> list[Difference]:
    """Every output against the reference; of a Program those of every launch, for what it was given."""
    if isinstance(report.compiled, api.Compiled):
        return check.compare(report.graph, report.arrays, report.results, arguments.seed)
    found: list[Difference] = []

    def observe(section: Section, arrays: list[Array], results: list[Array]) -> None:
        assert section.graph is not None
        found.extend(check.compare(section.graph, arrays, results, arguments.seed))

    report.compiled.run(report.arrays, arguments.threads, observe)
    return found


def fresh(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """The inputs of one call; those that the graph writes are copies, so that each call starts from the same values."""
    written = {output.writes for output in graph.outputs}
    return [
        np.copy(array, order="K") if value.name in written else array
        for value, array in zip(graph.inputs, arrays, strict=True)
    ]


def measure(report: Report, arguments: Arguments) -> None:
    """Time the fused run, and op by op beside it where that is asked for."""
    if report.modelled and arguments.repeat is None:
        measure_on_model(report, arguments)
        return
    repeat = arguments.repeat or REPEAT
    runners: list[compare.Runner] = [report.compiled.run]
    executable = unfused(report, arguments) if arguments.compare else None
    if executable is not None:
        runners.append(executable)
    times = compare.medians(runners, lambda: fresh(report.graph, report.arrays), repeat, arguments.threads)
    report.median_ms, report.repeat = times[0], repeat
    if executable is not None:
        _compared(report, executable, times[1])


def measure_on_model(report: Report, arguments: Arguments) -> None:
    """Modelled times are the same in every run, and the first one has been made."""
    report.median_ms, report.repeat = report.stages["first launch"], 1
    if arguments.compare:
        start = time.perf_counter()
        executable = unfused(report, arguments)
        _compared(report, executable, (time.perf_counter() - start) * 1e3)


def unfused(report: Report, arguments: Arguments) -> Executable:
    """The executable that launches op by op, run once; the report has its counts."""
    compiled, executable = compare.unfused(report.graph, arguments.target, arguments.numerics)
    executable(fresh(report.graph, report.arrays), arguments.threads)
    assert compiled.compilation is not None
    report.unfused = {
        "groups": len(compiled.compilation.partition.groups),
        "launches": executable.counts.launches,
        "gm_bytes": report.explanation.gm_bytes_unfused,
    }
    return executable


def _compared(report: Report, executable: Executable, median_ms: float) -> None:
    """Op by op over fused: in time, or in modelled time."""
    ratio = median_ms / report.median_ms if report.median_ms else 1.0
    report.unfused["median_ms"] = median_ms
    if isinstance(executable, AscendExecutable):
        counters = executable.counters
        report.unfused |= {"model_us": None, "counters": None}
        if counters is not None and report.counters is not None:
            report.unfused |= {"model_us": counters.microseconds, "counters": chip.counted(counters)}
            ratio = counters.microseconds / report.counters.microseconds
    report.unfused["ratio"] = ratio


def as_json(report: Report) -> dict[str, Any]:
    """The object of --json; docs/cli.md names its keys."""
    differences = report.differences
    found = report.explanation
    data = {
        "model": found.model,
        "target": found.target,
        "ok": report.ok,
        "ops": found.ops,
        "groups": len(found.groups),
        "launches": report.launches,
        "fallbacks": list(found.fallbacks),
        "compile_ms": report.compile_ms,
        "cache_hits": report.compiled.stats["cache_hits"],
        "kernels": report.compiled.stats["kernels"],
        "median_ms": report.median_ms,
        "repeat": report.repeat,
        "workers": report.workers,
        "gm_bytes": found.gm_bytes,
        "gm_bytes_unfused": found.gm_bytes_unfused,
        "gm_bytes_compulsory": found.gm_bytes_compulsory,
        "constant_bytes": found.constant_bytes,
        "packed_bytes": found.packed_bytes,
        "checked": differences is not None,
        "max_abs_err": None if differences is None else max((d.absolute for d in differences), default=0.0),
        "max_rel_err": None if differences is None else max((d.relative for d in differences), default=0.0),
        "tolerance_used": None if differences is None else max((d.share for d in differences), default=0.0),
        "stages_ms": report.stages,
        "sizes": dict(found.sizes),
        "outputs": dict(zip(report.outputs, inputs.types_of(report.results), strict=True)),
    }
    if report.chip is not None:
        data |= {"cache_hits": None, "workers": report.counters.cores if report.counters else None}
        data |= chip.as_json(report.chip, report.counters)
    return data | ({"unfused": report.unfused} if report.unfused else {})


def show(report: Report, arguments: Arguments) -> None:
    """For people."""
    console = terminal.console()
    found = report.explanation
    console.print(groups.title(found))
    console.print(groups.table(found))
    if isinstance(found, SectionedExplanation):
        console.print(groups.sections(found))
    rows: list[tuple[str, str | Text]] = [*groups.memory(found)]
    stats = report.compiled.stats
    stages = ", ".join(f"{name} {spent:.1f}" for name, spent in report.stages.items())
    kernels = terminal.plural(stats["kernels"], "kernel")
    cached = f", {stats['cache_hits']} from the cache" if report.chip is None else ""
    rows.append(("compile", f"{terminal.milliseconds(report.compile_ms)}, {kernels}{cached}"))
    rows.append(("stages, ms", stages))
    if report.chip is not None:
        rows += chip.rows(report.chip, report.counters)
    if not report.modelled:
        workers = "" if report.chip is not None else f", {terminal.plural(report.workers, 'worker')}"
        rows.append(("run", f"{terminal.milliseconds(report.median_ms)}, median of {report.repeat}{workers}"))
    if report.unfused:
        rows.append(("op by op", _unfused(report)))
    if report.differences is not None:
        rows += _check(report.differences)
    if arguments.save is not None:
        rows.append(("saved", arguments.save))
    console.print(terminal.facts(rows))


def _unfused(report: Report) -> str:
    unfused = report.unfused
    launches = terminal.plural(unfused["launches"], "launch")
    if unfused.get("counters"):
        moved = f"{terminal.size(unfused['counters']['gm_bytes'])} moved"
        return f"{unfused['model_us']:,.1f} µs, {launches}, {moved}: {unfused['ratio']:.2f} times the fused run"
    return f"{terminal.milliseconds(unfused['median_ms'])}, {launches}: {unfused['ratio']:.2f} times the fused run"


def _check(differences: Sequence[Difference]) -> list[tuple[str, str | Text]]:
    """A line an output that is wrong, or one for all that are right."""
    wrong = [d for d in differences if not d.ok]
    if not wrong:
        absolute, relative = (
            max((d.absolute for d in differences), default=0.0),
            max((d.relative for d in differences), default=0.0),
        )
        share = max((d.share for d in differences), default=0.0)
        text = f"max abs error {absolute:.3g}, max rel error {relative:.3g}, {share:.1%} of the tolerance"
        return [("check", Text.assemble(("ok", "bold green"), ", ", text))]
    rows: list[tuple[str, str | Text]] = []
    for each in wrong:
        place = f"{each.name}{list(each.position)} is {each.found:.9g}, expected {each.expected:.9g}"
        text = f"{place}; {each.share:.3g} times the tolerance"
        rows.append(("check", Text.assemble(("failed", "bold red"), ", ", text)))
    return rows


COMMAND = Command("run", "compile, run, check and time an operator sequence", configure, run)
