"""How well the cost model ranks: `python -m benchmarks cost [--small] [NAME …]`.

Each workload is compiled as the compiler does it, and in other ways: with other groupings, and with other schedules of
the same groups. Every way is timed in turn, in rounds of which the least counts, as what disturbs only adds, and set
beside what the model gives. Printed are milliseconds, the rank correlation (Spearman's; times within 5 % of each other
have one rank) over the workloads and over the ways of each, and the geometric mean of the factors that predictions are
off by.

partition   as the compiler does it
unfused     every operator a group of its own
fused       whatever may legally be fused, at any cost
finer       outer tiles of a quarter of their size
coarser     outer tiles of four times their size
streamed    rows walked in tiles where they would stay on-chip as a whole
blocks      blocks of contractions of half their size
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.command import Parser
from benchmarks.export import case_of
from benchmarks.workloads import WORKLOADS

SAMPLE = 2e-3  # seconds that a sample lasts at least
ROUNDS = 7
NOISE = 0.05  # values closer than that have no order
ANY_COST = 1e9  # microseconds: a barrier that every merge is worth


@dataclass(frozen=True)
class Way:
    """One way to compute a workload: milliseconds as the model has them and as measured."""

    workload: str
    name: str
    predicted: float
    measured: float


def ranks(values: Sequence[float]) -> Any:
    """Ranks from 1; equal values share the mean of theirs."""
    array = np.asarray(values, float)
    smaller = (array[:, None] > array).sum(axis=1)
    equal = (array[:, None] == array).sum(axis=1)
    return smaller + (equal + 1) / 2


def settled(values: Sequence[float], share: float = NOISE) -> list[int]:
    """The values in classes by size: one that is beyond the smallest of its class by no more than `share` is in it."""
    order = sorted(range(len(values)), key=lambda n: values[n])
    classes = [0] * len(values)
    least, number = 0.0, 0
    for n in order:
        if values[n] > least * (1 + share):
            least, number = values[n], number + 1
        classes[n] = number
    return classes


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """The correlation of the ranks of settled values; NaN where either has no order."""
    a, b = (each - each.mean() for each in (ranks(settled(one)), ranks(settled(other))))
    norm = math.sqrt(float((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / norm if norm else math.nan


def off_by(ways: Sequence[Way], scale: float = 1.0) -> float:
    """The geometric mean of the factors that predictions, times `scale`, are off by."""
    return math.exp(statistics.fmean(abs(math.log(way.predicted * scale / way.measured)) for way in ways))


# -- the ways ----------------------------------------------------------------------------------------------------------
def _resized(factor: float) -> Callable[[Any, Any], Any]:
    """The proposed schedule with outer tiles of another size."""

    def schedule(kernel: Any, target: Any) -> Any:
        from autofusion.kernel import schedule as schedules

        found = schedules.propose(kernel, target)
        outer = tuple(replace(tile, size=max(1, int(tile.size * factor))) for tile in found.outer)
        return replace(found, outer=outer)

    return schedule


def _streamed(kernel: Any, target: Any) -> Any:
    """The proposed schedule with the longest inner axis walked in tiles."""
    from autofusion.kernel import schedule as schedules

    found = schedules.propose(kernel, target)
    bound = {tile.axis for tile in found.outer}
    inner = [axis for axis in schedules.Analysis(kernel).streamable if axis not in bound]
    return found if found.stream or not inner else replace(found, stream=(schedules.Tile(inner[0], 128),))


def _half_blocks(kernel: Any, target: Any) -> Any:
    from autofusion.kernel import schedule as schedules

    found = schedules.propose(kernel, target)
    return replace(found, block=tuple(size // 2 for size in found.block))


def compilations(graph: Any, target: Any) -> dict[str, Any]:
    """The ways of a graph by name; those that come to the same code as one before are left out."""
    from autofusion.jit import pipeline
    from autofusion.jit.pipeline import Options

    eager = replace(target, barrier_us=ANY_COST)
    wanted = {
        "partition": (target, Options()),
        "unfused": (target, Options(fuse=False)),
        "fused": (eager, Options()),
        "finer": (target, Options(schedules=_resized(1 / 4))),
        "coarser": (target, Options(schedules=_resized(4))),
        "streamed": (target, Options(schedules=_streamed)),
        "blocks": (target, Options(schedules=_half_blocks)),
    }
    made: dict[str, Any] = {}
    seen = set()
    for name, (machine, options) in wanted.items():
        compilation = pipeline.compile_graph(graph, machine, options)
        programs = tuple(str(group.program) for group in compilation.groups)
        if programs not in seen:
            seen.add(programs)
            made[name] = replace(compilation, target=target)  # costs are the machine's
    return made


def measure(name: str, small: bool = False, rounds: int = ROUNDS) -> list[Way]:
    """The ways of a workload, timed in turn. Raises ImportError where PyTorch is missing and the case is not stored."""
    import autofusion
    from autofusion import api
    from autofusion.frontends import onnx
    from autofusion.jit import explain, pipeline
    from autofusion.runtime import pool

    case = case_of(name, small)
    made = compilations(onnx.read(str(case.model)), api.find_target("cpu"))
    workers = pool.worker_count()
    runs: dict[str, Callable[[], object]] = {}
    for each, compilation in made.items():
        model = autofusion.Compiled(compilation.graph, pipeline.load(compilation), compilation)
        runs[each] = _call(model, case.inputs)
    counts = {each: _repeats(run) for each, run in runs.items()}
    samples: dict[str, list[float]] = {each: [] for each in runs}
    for _ in range(rounds):
        for each, run in runs.items():
            samples[each].append(_milliseconds(run, counts[each]))
    return [
        Way(name, each, explain.predicted_us(compilation, workers=workers) / 1e3, min(samples[each]))
        for each, compilation in made.items()
    ]


def _call(model: Any, inputs: Any) -> Callable[[], object]:
    return lambda: model(*inputs)


def _milliseconds(run: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count * 1e3


def _repeats(run: Callable[[], object]) -> int:
    """Calls that take about a sample's time."""
    run()
    once = min(_milliseconds(run, 1) for _ in range(3)) / 1e3
    return max(1, min(10_000, int(SAMPLE / once)))


# -- the report --------------------------------------------------------------------------------------------------------
def text(ways: Sequence[Way]) -> str:
    """The table, and what it comes to."""
    lines = [f"{'ms':26s}{'':11s}{'predicted':>11s}{'measured':>11s}{'ratio':>8s}"]
    names = list(dict.fromkeys(way.workload for way in ways))
    within = {}
    for name in names:
        own = [way for way in ways if way.workload == name]
        for way in own:
            ratio = way.predicted / way.measured
            lines.append(f"{way.workload:26s}{way.name:11s}{way.predicted:11.4f}{way.measured:11.4f}{ratio:8.2f}")
        if len(own) > 1:
            within[name] = spearman([w.predicted for w in own], [w.measured for w in own])
            lines.append(f"{name:26s}{'rank correlation':22s}{within[name]:11.2f}")
    chosen = [way for way in ways if way.name == "partition"]
    known = [value for value in within.values() if not math.isnan(value)]
    lines.append("")
    if len(chosen) > 1:
        overall = spearman([w.predicted for w in chosen], [w.measured for w in chosen])
        lines.append(f"rank correlation over {len(chosen)} workloads: {overall:.3f}")
    if known:
        lines.append(
            f"rank correlation within a workload: mean {statistics.fmean(known):.3f}, median "
            f"{statistics.median(known):.3f}, least {min(known):.3f} ({len(known)} workloads)"
        )
    lines.append(f"predictions are off by a factor of {off_by(ways):.2f} (geometric mean of {len(ways)})")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = Parser("cost", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads (all)")
    parser.add_argument("--small", action="store_true", help="the reduced sizes")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"of timing ({ROUNDS})")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in WORKLOADS]
    if unknown:
        parser.error(f"workload {unknown[0]!r}: expected one of {', '.join(WORKLOADS)}")
    ways: list[Way] = []
    for name in given.names or WORKLOADS:
        try:
            ways += measure(name, given.small, given.rounds)
        except ImportError as error:
            print(f"python -m benchmarks cost: error: {error}; python -m pip install '.[bench]'", file=sys.stderr)
            return 2
    print(text(ways))
    return 0
