"""Random graphs: several executors, several schedules, several worker counts, one answer; and one text for one graph.

    python tests/test_property.py

prints a digest of every stage of the same graphs, for the comparison between processes. Examples are derandomised: a
failure here fails everywhere, and hypothesis shrinks it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import assert_bits, assert_close, random_graph
from test_compiled import EITHER_ZERO, EXACT
from tiled import execute

from autofusion import api
from autofusion.dtypes import Array
from autofusion.graph import evaluate
from autofusion.graph.ir import Graph, Node
from autofusion.jit import pipeline
from autofusion.jit.pipeline import Numerics, Options
from autofusion.kernel.ir import Kernel
from autofusion.kernel.schedule import Analysis, Schedule, Tile
from autofusion.target import Target

ROOT = Path(__file__).resolve().parents[1]
Plan = Callable[[Kernel, Target], Schedule]


def bounded(examples: int) -> settings:
    """So many examples, the same each time; time is not what these look at."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )


# -- what may be compared --------------------------------------------------------------------------------------------
ROUNDED = EXACT | {"maximum", "minimum", "relu", "max", "min", "full", "iota"}
# Rows that turn a difference of one rounding into a large one.
STEPS = frozenset((
    "floor", "ceil", "trunc", "round", "fmod", "remainder", "floor_divide", "eq", "ne", "lt", "le", "gt", "ge",
    "cast", "int_remainder", "int_floor_divide", "gather",
))  # fmt: skip


def stability(graph: Graph) -> dict[str, str]:
    """By value: `exact` where every rounding is the reference's, `close` where tolerances apply, `loose` past a step.

    Sums of integers are exact, sums of floats close: their order is the schedule's. Where the reference leaves a zero's
    sign open, what follows is close too.
    """
    found = {v.name: "exact" for v in graph.inputs} | dict.fromkeys(graph.constant_names, "exact")
    for node in graph.nodes:
        worst = max((found[name] for name in node.inputs), key=ORDER.index, default="exact")
        found[node.name] = max(worst, _own(node, graph, worst), key=ORDER.index)
    return found


ORDER = ("exact", "close", "loose")


def _own(node: Node, graph: Graph, worst: str) -> str:
    inexact = worst != "exact"
    if node.op in STEPS and inexact:
        return "loose"
    floats = graph.values[node.inputs[0]].dtype.is_float if node.inputs else False
    if node.op in EITHER_ZERO and floats:
        return "close"
    if node.op in ROUNDED or not (floats or node.output.dtype.is_float):
        return "exact"
    return "close"


def compare(graph: Graph, found: Sequence[Array], expected: Sequence[Array], exactly: bool = True) -> None:
    """Each output by its stability. Reduced types double their error at each operator: only their type is looked at."""
    known = stability(graph)
    for output, a, b in zip(graph.outputs, found, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if known[output.name] == "exact" and exactly:
            assert_bits(a, b)
        elif known[output.name] != "loose" and not graph.values[output.name].dtype.is_reduced:
            assert_close(a, b, 1e5 if a.dtype == np.float32 else 1e9)


def reference(graph: Graph, arrays: list[Array]) -> list[Array]:
    with np.errstate(all="ignore"):
        return evaluate.run(graph, arrays)


def compiled(graph: Graph, numerics: str = "strict", fuse: bool = True, plan: Plan | None = None) -> api.Compiled:
    options = Options(Numerics(numerics), fuse)
    if plan is not None:
        options.schedules = plan
    compilation = pipeline.compile_graph(graph, api.find_target("cpu"), options)
    return api.Compiled(compilation.graph, pipeline.load(compilation), compilation)


# -- schedules that a heuristic would not propose --------------------------------------------------------------------
def drawn(draw: Any) -> Plan:
    """Legal schedules by drawn numbers: some outer axes in some tile sizes, perhaps a streamed axis, 1 to 7 chunks."""
    numbers = np.random.default_rng(draw(st.integers(0, 2**31)))

    def plan(kernel: Kernel, target: Target) -> Schedule:
        analysis = Analysis(kernel)
        outer = [Tile(n, int(numbers.choice((1, 2, 3, 5, 64)))) for n in analysis.outer if numbers.random() < 0.8]
        inner = [n for n in analysis.streamable if n not in {t.axis for t in outer}]
        stream = []
        if inner and numbers.random() < 0.7:
            stream = [Tile(str(numbers.choice(inner)), int(numbers.choice((1, 2, 3, 4, 16))))]
        block = tuple(int(numbers.choice((1, 3, 16, 64))) for _ in range(3))
        return Schedule(tuple(outer), tuple(stream), int(numbers.integers(1, 8)), block)

    return plan


def smallest_tiles(kernel: Kernel, target: Target) -> Schedule:
    """Every outer axis in tiles of one, as many chunks as there may be: all that workers can share."""
    return Schedule(tuple(Tile(n, 1) for n in Analysis(kernel).outer), (), 64)


# -- the properties --------------------------------------------------------------------------------------------------
def agree(case: tuple[Graph, list[Array]]) -> None:
    """Reference, tile interpreter and compiled code."""
    graph, arrays = case
    expected = reference(graph, arrays)
    compare(graph, execute(graph, arrays, strict=True).outputs, expected)
    compare(graph, compiled(graph).run(arrays, 1), expected)


def fused_is_unfused(case: tuple[Graph, list[Array]]) -> None:
    """Strict: the same bits where every operator rounds exactly. Default: within tolerances."""
    graph, arrays = case
    expected = reference(graph, arrays)
    for fuse in (True, False):
        compare(graph, compiled(graph, "strict", fuse).run(arrays, 1), expected)
        compare(graph, compiled(graph, "default", fuse).run(arrays, 1), expected, exactly=_no_reduced(graph))


def _no_reduced(graph: Graph) -> bool:
    return not any(value.dtype.is_reduced for value in graph.values.values())


def workers_do_not_matter(case: tuple[Graph, list[Array]]) -> None:
    """Bit for bit, whatever the operators: in the heuristic's chunks and in the smallest."""
    graph, arrays = case
    for plan in (None, smallest_tiles):
        run = compiled(graph, "default", plan=plan)
        first = run.run(arrays, 1)
        for workers in (2, 3, 1):
            for a, b in zip(run.run(arrays, workers), first, strict=True):
                assert a.tobytes() == b.tobytes()


def schedules_do_not_matter(case: tuple[Graph, list[Array]], plan: Plan) -> None:
    graph, arrays = case
    expected = reference(graph, arrays)
    compare(graph, compiled(graph, plan=plan).run(arrays, 2), expected)
    compare(graph, execute(graph, arrays, planner=plan, strict=True).outputs, expected)


def text_of(graph: Graph) -> list[str]:
    """Every stage down to LLVM and the plan."""
    return [f"{stage}\n{text}" for stage, text in pipeline.stages(compiled(graph, "default").compilation)]  # type: ignore[arg-type]


def text_is_the_same_twice(case: tuple[Graph, list[Array]]) -> None:
    assert text_of(case[0]) == text_of(case[0])


PROPERTIES = (agree, fused_is_unfused, workers_do_not_matter, text_is_the_same_twice)


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda p: p.__name__)
@bounded(40)
@given(random_graph())
def test_random_graphs(holds: Any, case: tuple[Graph, list[Array]]) -> None:
    holds(case)


@bounded(60)
@given(random_graph(), st.data())
def test_random_schedules(case: tuple[Graph, list[Array]], data: Any) -> None:
    schedules_do_not_matter(case, drawn(data.draw))


@pytest.mark.full
@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda p: p.__name__)
@bounded(600)
@given(random_graph(most=20))
def test_more_random_graphs(holds: Any, case: tuple[Graph, list[Array]]) -> None:
    holds(case)


@pytest.mark.full
@bounded(600)
@given(random_graph(most=20), st.data())
def test_more_random_schedules(case: tuple[Graph, list[Array]], data: Any) -> None:
    schedules_do_not_matter(case, drawn(data.draw))


# -- one text in every process ---------------------------------------------------------------------------------------
@bounded(15)
@given(random_graph(most=20))
def print_digest(case: tuple[Graph, list[Array]]) -> None:
    print(hashlib.sha256("\n".join(text_of(case[0])).encode()).hexdigest())


def test_another_process_makes_the_same_text() -> None:
    """Whatever the seed of Python's hashes: nothing is ordered by a set or an address."""

    def digests(seed: str) -> list[str]:
        path = os.pathsep.join(p for p in sys.path if p)
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path}
        ran = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr[-2000:]
        return ran.stdout.split()

    first = digests("1")
    assert len(first) >= 10
    assert digests("20261129") == first


if __name__ == "__main__":
    print_digest()
