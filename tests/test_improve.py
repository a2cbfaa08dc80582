"""The pass after the greedy walk: merges that the walk could not see, none that makes a cycle or costs time."""

from __future__ import annotations

import numpy as np
import pytest
from test_partition import CPU, F32, check_order, dag

from autofusion.autofuse.forms import Forms
from autofusion.autofuse.improve import improve
from autofusion.autofuse.partition import Partition, greedy
from autofusion.graph import evaluate
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.jit import pipeline as jit
from autofusion.passes import pipeline


def both(graph: Graph) -> tuple[Partition, Partition]:
    forms = Forms(graph)
    found = greedy(graph, CPU, forms)
    return found, improve(found, forms)


def test_readers_of_one_input_become_one_group() -> None:
    F = GraphBuilder("two folds")
    x = F.input("x", F32, (512, 256))
    F.output(F.sum(x, axes=(1,)))
    F.output(F.max(x, axes=(1,)))
    before, after = both(pipeline.run(F.build()))
    assert (len(before.groups), len(after.groups)) == (2, 1)
    (verdict,) = [v for v in after.verdicts[len(before.verdicts) :] if v.fused]
    assert verdict.text == "improved after the walk"


def test_a_group_between_the_two_is_a_cycle() -> None:
    F = GraphBuilder("around")
    x = F.input("x", F32, (64, 64))
    first = F.exp(x)
    F.output(F.add(first, F.all_reduce(first)))
    before, after = both(pipeline.run(F.build()))
    assert len(after.groups) == len(before.groups) == 3
    assert "cycle" in {v.code.value for v in after.verdicts if not v.fused}


def test_groups_that_share_nothing_stay_apart() -> None:
    F = GraphBuilder("apart")
    for name in "ab":
        F.output(F.exp(F.input(name, F32, (64, 64))))
    before, after = both(pipeline.run(F.build()))
    assert len(after.groups) == len(before.groups) == 2


@pytest.mark.parametrize("seed", range(12))
def test_the_result_is_a_legal_partition_and_no_larger(seed: int) -> None:
    before, after = both(pipeline.run(dag(seed).build()))
    check_order(after)
    assert len(after.groups) <= len(before.groups)
    assert after.verdicts[: len(before.verdicts)] == before.verdicts


@pytest.mark.parametrize("seed", range(3))
def test_improved_graphs_compute_the_same(seed: int) -> None:
    graph = dag(seed, 40).build()
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
    results = jit.load(jit.compile_graph(graph, jit.host.target_of(jit.host.host())))(arrays)
    for found, wanted in zip(results, evaluate.run(graph, arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)


def test_the_search_is_bounded() -> None:
    """Many groups that share one input: the visits that the pass may make are linear in the graph."""
    F = GraphBuilder("many")
    x = F.input("x", F32, (64, 64))
    for number in range(400):
        F.output(F.cumsum(F.mul(x, float(number + 2)), axis=number % 2))
    before, after = both(pipeline.run(F.build()))
    check_order(after)
    assert len(after.groups) <= len(before.groups)
