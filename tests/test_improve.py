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
from autofusion.jit.explain import explain
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


def padded_between(channels: int = 16, side: int = 64) -> Graph:
    """Two convolutions, the second of which reads what the first makes with zeros around it."""
    F = GraphBuilder("padded")
    x = F.input("x", F32, (1, channels, side, side))
    first, second = (F.input(name, F32, (channels, channels, 3, 3)) for name in "vw")
    y = F.relu(F.conv(x, first, pads=(1, 1, 1, 1)))
    F.output(F.conv(y, second, pads=(1, 1, 1, 1)))
    return F.build()


def test_what_is_stored_between_groups_has_no_padding() -> None:
    graph = pipeline.run(padded_between())
    before, after = both(graph)
    assert [[n.op for n in g.nodes] for g in before.groups] == [
        ["slice_update", "grouped_conv", "maximum", "slice_update"],
        ["grouped_conv", "copy"],
    ]
    assert [[n.op for n in g.nodes] for g in after.groups] == [
        ["slice_update", "grouped_conv", "maximum"],
        ["slice_update", "grouped_conv", "copy"],
    ]
    (moved,) = [v for v in after.verdicts if v.text.startswith("moved")]
    numbers = dict(moved.numbers)
    assert numbers["won_us"] * CPU.bandwidth == 2 * 4 * 16 * (66 * 66 - 64 * 64)
    assert 0 <= numbers["lost_us"] < numbers["won_us"]


def test_a_result_or_what_two_groups_read_stays() -> None:
    """The padded image is a result too; or three convolutions read it."""
    for results, readers in ((1, 1), (0, 3)):
        F = GraphBuilder("read by others")
        x = F.input("x", F32, (1, 16, 64, 64))
        padded = F.pad(F.exp(F.conv(x, F.input("v", F32, (16, 16, 1, 1)))), before=(0, 0, 1, 1), after=(0, 0, 1, 1))
        for number in range(readers):
            F.output(F.conv(padded, F.input(f"w{number}", F32, (16, 16, 3, 3))))
        for _ in range(results):
            F.output(padded)
        _, after = both(pipeline.run(F.build()))
        assert not [v for v in after.verdicts if v.text.startswith("moved")]
        assert len(after.groups) == 1 + readers


def test_what_was_overcome_is_no_refusal() -> None:
    """The walk kept the padding and the second convolution apart, then they came together."""
    graph = padded_between()
    compiled = jit.compile_graph(graph, CPU)
    refused = [v for v in compiled.partition.verdicts if not v.fused]
    assert refused and explain(compiled).refusals == ()


def test_a_refusal_stays_where_one_of_several_groups_is_apart() -> None:
    """Both factors were refused together; then the walk put one of them behind the product."""
    F = GraphBuilder("factors")
    a, b = F.input("a", F32, (1000, 1)), F.input("b", F32, (1, 2000))
    F.output(F.matmul(F.add(F.exp(a), F.sin(b)), F.input("w", F32, (2000, 64))))
    compiled = jit.compile_graph(pipeline.run(F.build()), CPU)
    refused = [v for v in compiled.partition.verdicts if not v.fused]
    homes = {node.name: group.name for group in compiled.partition.groups for node in group.nodes}
    apart = [v for v in refused if len({homes[n] for n in (v.producer, v.consumer, *v.others)}) > 1]
    assert apart and list(explain(compiled).refusals) == apart


def test_moved_operators_compute_the_same() -> None:
    graph = padded_between(8, 64)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
    compiled = jit.compile_graph(graph, jit.host.target_of(jit.host.host()))
    assert any(v.text.startswith("moved") for v in compiled.partition.verdicts)
    for found, wanted in zip(jit.load(compiled)(arrays), evaluate.run(graph, arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)


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
