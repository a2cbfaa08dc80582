"""Random graphs on the AI Core model: no rule of the chip broken, and the reference's values.

Graphs are drawn first and compiled many at a time, since the C++ compiler takes longer than everything else. The same
graphs are drawn each time; the smallest that fails in each way is told, with its text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ascend import CHIPS, TOGETHER, Machine, compiled, fallbacks, reference, sources
from hypothesis import HealthCheck, Phase, given, seed, settings
from oracle import random_graph
from test_property import _no_reduced, compare

from autofusion import api
from autofusion.dtypes import Array
from autofusion.graph.ir import Graph
from autofusion.jit.ascend import ARCHITECTURES
from autofusion.runtime import aicore

B910, B950 = CHIPS
Case = tuple[Graph, list[Array]]


@pytest.fixture(autouse=True)
def available() -> None:
    if reason := aicore.unavailable():
        pytest.skip(reason)


def drawn(examples: int, most: int, number: int) -> list[Case]:
    """So many random graphs of up to `most` operators, the same for the same numbers."""
    found: list[Case] = []

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(random_graph(most=most))
    def draw(case: Case) -> None:
        found.append(case)

    draw()
    return found


class Failures:
    """By the error without its numbers: how many, and the smallest graph."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, str, str]] = {}
        self.counts: Counter[str] = Counter()

    def add(self, error: Exception, case: Case) -> None:
        said = f"{type(error).__name__}: {error}"
        kind = "mismatch" if isinstance(error, AssertionError) else re.sub(r"\d+", "#", said)[:100]
        size = len(case[0].nodes)
        self.counts[kind] += 1
        if kind not in self.found or size < self.found[kind][0]:
            self.found[kind] = size, said[:1000], str(case[0])

    def tell(self) -> None:
        listed = [f"{self.counts[k]} times {text}\n{graph}" for k, (_, text, graph) in self.found.items()]
        assert not listed, "\n".join(listed)


def batches(
    cases: list[Case], chip: str, numerics: str, failures: Failures
) -> Iterator[list[tuple[api.Compiled, Case]]]:
    for first in range(0, len(cases), TOGETHER):
        machine = Machine(ARCHITECTURES[chip])
        made = []
        for case in cases[first : first + TOGETHER]:
            try:
                made.append((compiled(case[0], chip, machine, numerics=numerics), case))
            except Exception as error:
                failures.add(error, case)
        machine.build([source for run, _ in made for source in sources(run)])
        yield made


def hold(cases: list[Case], chip: str, numerics: str) -> Counter[str]:
    """Runs every graph; which operators the host computed."""
    failures, host = Failures(), Counter[str]()
    for made in batches(cases, chip, numerics, failures):
        for run, (graph, arrays) in made:
            host.update(fallbacks(run))
            try:
                with np.errstate(all="ignore"):
                    found = run.run([a.copy() for a in arrays])
                compare(graph, found, reference(graph, arrays), numerics == "strict" or _no_reduced(graph))
            except Exception as error:
                failures.add(error, (graph, arrays))
    failures.tell()
    return host


def test_random_graphs() -> None:
    host = hold(drawn(48, 8, 1), B910, "strict")
    host += hold(drawn(12, 8, 2), B950, "default")
    assert sum(host.values()) < 60


@pytest.mark.full
@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("most", (5, 12, 20))
def test_more_random_graphs(most: int, number: int) -> None:
    """2,160 graphs in all, on both chips, in both numerics."""
    chip, numerics = CHIPS[number % 2], ("strict", "default")[number // 2 % 2]
    hold(drawn(60, most, 1000 * most + number), chip, numerics)


def test_a_failure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that is off by one, and an executable that does not run."""
    cases = [c for c in drawn(40, 3, 7) if any(r.dtype == np.int64 and r.size for r in reference(*c))][:2]
    assert cases
    plain = api.Compiled.run

    def off(self: Any, arguments: Any, threads: Any = None) -> list[Array]:
        return [np.asarray(a + np.ones((), a.dtype)) if a.size else a for a in plain(self, arguments, threads)]

    monkeypatch.setattr(api.Compiled, "run", off)
    with pytest.raises(AssertionError, match="times AssertionError"):
        hold(cases, B910, "strict")

    def broken(self: Any, arguments: Any, threads: Any = None) -> list[Array]:
        raise aicore.ModelViolation(7, "unwritten memory", "AIV0", 1, "Add", "x", "reads")

    monkeypatch.setattr(api.Compiled, "run", broken)
    with pytest.raises(AssertionError, match="times ModelViolation"):
        hold(cases, B910, "strict")
