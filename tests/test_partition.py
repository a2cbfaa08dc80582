"""Legality and the greedy partition: one refusal for each Verdict code, no names read, no cycles, linear work."""

from __future__ import annotations

import ast
import inspect
import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import random_graph, unhurried
from tiled import CPU, MACHINES

from autofusion import dims
from autofusion.autofuse import axes, cost, forms, improve, legality, partition, space
from autofusion.autofuse.forms import Forms
from autofusion.autofuse.partition import Partition, greedy
from autofusion.autofuse.verdicts import Code, Verdict
from autofusion.dtypes import DType
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.ops import TABLE, Kind
from autofusion.passes import pipeline
from autofusion.target import ASCEND_910B, Target

F32 = DType.FLOAT32


def split(F: GraphBuilder, target: Target = CPU) -> Partition:
    return greedy(pipeline.run(F.build()), target)


def refusals(found: Partition) -> list[Verdict]:
    return [v for v in found.verdicts if not v.fused]


# -- one refusal per code --------------------------------------------------------------------------------------------
def no_axis_left(F: GraphBuilder) -> Target:
    """A cumulative sum along the only axis that the long elementwise work before it could be cut along."""
    x = F.input("x", F32, (1 << 20,))
    for _ in range(4):
        x = F.tanh(x)
    F.output(F.cumsum(x, axis=0))
    return replace(CPU, cores=64, facts=tuple(_large(f) for f in CPU.facts))


def _large(fact: object) -> object:
    return replace(fact, bytes=1 << 40) if getattr(fact, "onchip", False) and hasattr(fact, "align") else fact  # type: ignore[type-var]


def too_large(F: GraphBuilder) -> Target:
    """Rows that a transpose breaks must be resident, and are larger than the memory."""
    x = F.input("x", F32, (1024, 1024))
    F.output(F.add(F.exp(x), F.transpose(F.exp(x), axes=(1, 0))))
    return ASCEND_910B


def no_path(F: GraphBuilder) -> Target:
    """The Cube takes its operands from global memory."""
    x, w = F.input("x", F32, (64, 64)), F.input("w", F32, (64, 64))
    F.output(F.matmul(F.exp(x), w))
    return ASCEND_910B


def communicates(F: GraphBuilder) -> Target:
    F.output(F.exp(F.all_reduce(F.exp(F.input("x", F32, (64,))))))
    return CPU


def not_compiled(F: GraphBuilder) -> Target:
    F.output(F.exp(F.tanh(F.exp(F.input("x", F32, (64,))))))
    return replace(CPU, computes=("exp",))


def written_elsewhere(F: GraphBuilder) -> Target:
    """x += reversed x: each position is read after it was written, by another one."""
    x = F.input("x", F32, (64,))
    turned = F.slice(x, starts=(63,), stops=(-65,), steps=(-1,))
    F.output(F.add(F.exp(turned), x), writes="x")
    return CPU


def too_many(F: GraphBuilder) -> Target:
    x = F.input("x", F32, (64,))
    for _ in range(5):
        x = F.tanh(x)
    F.output(x)
    return replace(CPU, group_limit=4)


def does_not_pay(F: GraphBuilder) -> Target:
    """Every tile of a long contraction's rows would compute its other operand again."""
    rows, weights = F.input("rows", F32, (1 << 16, 512)), F.input("weights", F32, (512, 512))
    F.output(F.matmul(rows, F.exp(weights)))
    return CPU


REFUSED = {
    Code.SPACE: no_axis_left,
    Code.CAPACITY: too_large,
    Code.UNIT: no_path,
    Code.COMMUNICATION: communicates,
    Code.OPAQUE: not_compiled,
    Code.EFFECT: written_elsewhere,
    Code.LIMIT: too_many,
    Code.PROFIT: does_not_pay,
}
# A cycle cannot come up in the greedy walk (its levels exclude it); library kernels and control flow have tests of
# their own.
ELSEWHERE = {Code.FUSED, Code.CYCLE, Code.LIBRARY, Code.CONTROL}


@pytest.mark.parametrize("code", REFUSED)
def test_each_code_refuses(code: Code) -> None:
    F = GraphBuilder("refused")
    found = split(F, REFUSED[code](F))
    verdicts = [v for v in refusals(found) if v.code is code]
    assert verdicts, [str(v) for v in found.verdicts]
    assert verdicts[0].text and verdicts[0].producer and verdicts[0].consumer
    if code in (Code.SPACE, Code.CAPACITY, Code.LIMIT, Code.PROFIT):
        assert verdicts[0].numbers, "a refusal for a quantity gives the quantity"
    assert len(found.groups) > 1


def test_every_code_is_covered() -> None:
    assert set(Code) == set(REFUSED) | ELSEWHERE


def test_a_written_buffer_may_be_read_at_the_same_positions() -> None:
    F = GraphBuilder("update")
    x, y = F.input("x", F32, (64,)), F.input("y", F32, (64,))
    F.output(F.add(F.mul(x, 0.9), y), writes="x")
    assert len(split(F).groups) == 1


# -- names -----------------------------------------------------------------------------------------------------------
ALLOWED = {"target.lacks(node.op)", "LIBRARY.find(node.op, self.target.family, types)"}


@pytest.mark.parametrize("module", [axes, cost, forms, improve, legality, partition, space])
def test_no_operator_name_is_read(module: object) -> None:
    """`.op`, and a row's name, stand nowhere but in the target's own list and the look-up of hand-tuned kernels."""
    source = inspect.getsource(module)  # type: ignore[arg-type]
    tree = ast.parse(source)
    permitted = {id(n) for a in ast.walk(tree) if ast.unparse(a) in ALLOWED for n in ast.walk(a)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Attribute) and id(each) not in permitted:
            assert each.attr != "op", ast.unparse(each)
            of_row = isinstance(each.value, ast.Attribute) and each.value.attr == "row"
            assert not (of_row and each.attr in ("name", "doc")), ast.unparse(each)
    named = {row.name for row in TABLE}
    words = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    assert not words & named, words & named


def members(found: Partition) -> list[list[str]]:
    return [[node.name for node in group.nodes] for group in found.groups]


@unhurried
@given(random_graph(most=10))
def test_renamed_operators_are_partitioned_alike(case: tuple[Graph, list[np.ndarray]]) -> None:
    graph = pipeline.run(case[0])
    rows = list(TABLE)
    names = {row.name: f"row{number}" for number, row in enumerate(rows)}
    for row in rows:
        TABLE.register(replace(row, name=names[row.name]))
    try:
        renamed = graph.with_body([replace(n, op=names[n.op]) if n in graph.nodes else n for n in graph.body])
        for target in MACHINES.values():
            computes = None if target.computes is None else tuple(names[name] for name in target.computes)
            mine, theirs = greedy(graph, target), greedy(renamed, replace(target, computes=computes))
            assert members(mine) == members(theirs)
            assert mine.verdicts == theirs.verdicts
    finally:
        for row in rows:
            TABLE.remove(names[row.name])


# -- structure -------------------------------------------------------------------------------------------------------
def check_order(found: Partition) -> None:
    """Every operator is in one group; groups only read groups before them, so the quotient graph has no cycle."""
    ready = Forms(found.graph)
    placed = {node.name: number for number, group in enumerate(found.groups) for node in group.nodes}
    assert sorted(placed) == sorted(node.name for node in ready.compute_nodes())
    assert sum(len(group.nodes) for group in found.groups) == len(placed)
    for number, group in enumerate(found.groups):
        assert len(group.nodes) <= found.target.group_limit
        seen: set[str] = set()
        for node in group.nodes:
            for value in ready.of(node).reads:
                producer = ready.producer(value)
                if producer is not None:
                    assert placed[producer.name] < number or producer.name in seen
            seen.add(node.name)


@unhurried
@given(random_graph(most=24), st.sampled_from((1, 2, 3, 256)), st.sampled_from(sorted(MACHINES)))
def test_no_cycles(case: tuple[Graph, list[np.ndarray]], limit: int, machine: str) -> None:
    check_order(greedy(pipeline.run(case[0]), replace(MACHINES[machine], group_limit=limit)))


def dag(seed: int, count: int = 120) -> GraphBuilder:
    """Operators over a pool, with communication now and then, which forces paths that leave a group and come back."""
    rng = np.random.default_rng(seed)
    F = GraphBuilder("dag")
    pool = [F.input(f"x{i}", F32, (8, 8)) for i in range(6)]
    for _ in range(count):
        a, b = rng.integers(6, size=2)
        kind = rng.integers(8)
        if kind == 0:
            pool[a] = F.all_reduce(pool[b])
        elif kind == 1:
            pool[a] = F.sub(pool[b], F.sum(pool[a], axes=(int(rng.integers(2)),), keepdims=True))
        elif kind == 2:
            pool[a] = F.matmul(pool[a], F.transpose(pool[b], axes=(1, 0)))
        else:
            pool[a] = F.add(pool[a], pool[b])
    for value in pool:
        F.output(value)
    return F


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("limit", [3, 256])
@pytest.mark.parametrize("machine", MACHINES)
def test_no_cycles_around_boundaries(seed: int, limit: int, machine: str) -> None:
    check_order(split(dag(seed), replace(MACHINES[machine], group_limit=limit)))


def test_a_path_through_an_operator_outside_keeps_groups_apart() -> None:
    """a -> all_reduce -> c, and a -> c: a and c must not be one group."""
    F = GraphBuilder("outside")
    a = F.exp(F.input("x", F32, (64,)))
    F.output(F.add(a, F.all_reduce(a)))
    found = split(F)
    check_order(found)
    assert [len(g.nodes) for g in found.groups] == [1, 1, 1]


def test_the_same_graph_gives_the_same_partition() -> None:
    first, second = split(dag(3)), split(dag(3))
    assert first.groups == second.groups
    assert first.verdicts == second.verdicts


# -- work ------------------------------------------------------------------------------------------------------------
def sharing_chain(steps: int) -> Graph:
    """c = a + b; d = a * b; again and again: every value is read twice."""
    F = GraphBuilder("sharing")
    a, b = F.input("a", F32, (64,)), F.input("b", F32, (64,))
    for _ in range(steps):
        a, b = F.add(a, b), F.mul(a, b)
    F.output(F.add(a, b))
    return F.build()


def work_of(graph: Graph) -> int:
    """Calls that the partition makes in its own modules: operations, not seconds."""
    calls = 0
    counted = []
    for module in (space, axes):
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ == module.__name__:
                counted += [(cls, n) for n, f in vars(cls).items() if inspect.isfunction(f) and not n.startswith("__")]

    def counting(function: object) -> object:
        def call(*arguments: object, **named: object) -> object:
            nonlocal calls
            calls += 1
            return function(*arguments, **named)  # type: ignore[operator]

        return call

    with (
        mock.patch.multiple(space.Space, **_wrapped(space.Space, counted, counting)),
        mock.patch.multiple(axes.AxisSets, **_wrapped(axes.AxisSets, counted, counting)),
    ):
        greedy(graph, CPU)
    return calls


def _wrapped(cls: type, counted: list[tuple[type, str]], counting: object) -> dict[str, object]:
    return {n: counting(vars(cls)[n]) for owner, n in counted if owner is cls}  # type: ignore[operator]


@pytest.mark.parametrize("make", [sharing_chain, lambda n: pipeline.run(dag(0, n).build())], ids=["sharing", "dag"])
def test_work_is_linear(make: object) -> None:
    small, large = (work_of(make(count)) for count in (500, 4000))  # type: ignore[operator]
    assert large <= 8 * small * 1.25


def test_the_sharing_chain_is_not_duplicated() -> None:
    found = greedy(sharing_chain(1000), CPU)
    assert sum(len(g.nodes) for g in found.groups) == 2001
    assert len(found.verdicts) <= 2 * 2001
    check_order(found)


def test_views_broadcasts_and_sources_cost_no_group() -> None:
    F = GraphBuilder("views")
    x = F.input("x", F32, (8, 6))
    turned = F.reshape(F.transpose(x, axes=(1, 0)), shape=(4, 12))
    F.output(F.add(F.mul(turned, 2.0), F.iota(shape=(12,), axis=0, dtype=F32)))
    found = split(F)
    assert len(found.groups) == 1
    assert all(not n.is_view and n.kind is not Kind.SOURCE for n in found.groups[0].nodes)


@pytest.mark.parametrize(("side", "apart"), [(56, False), (112, True)], ids=["small", "large"])
def test_a_padded_image_leaves_a_convolution_rows_enough(side: int, apart: bool) -> None:
    """Its windows need all of it on-chip; beside a large one few filters of the result would fit."""
    F = GraphBuilder("convolution")
    x, w = F.input("x", F32, (1, 64, side, side)), F.input("w", F32, (64, 64, 3, 3))
    F.output(F.relu(F.conv(x, w, pads=(1, 1, 1, 1))))
    found = split(F)
    refused = [v for v in refusals(found) if v.code is Code.PROFIT and "few rows" in v.text]
    assert bool(refused) == apart
    assert len(found.groups) == 1 + apart
    assert [node.kind for node in found.groups[-1].nodes if node.kind is Kind.CONTRACT]
    for verdict in refused:
        numbers = dict(verdict.numbers)
        assert 1 <= numbers["rows"] < 4 and numbers["lost_us"] > numbers["won_us"]
    improved = improve.improve(found, Forms(found.graph))
    assert len(improved.groups) == len(found.groups), "it is not moved back"


def test_bounded_estimates_of_open_sizes() -> None:
    """A ranking never depends on what an open extent turns out to be, so it is a number for each of them."""
    assert forms.estimate(dims.symbol("n") * 2) == 2 * forms.SIZE_HINT
    assert math.isfinite(forms.estimate(dims.symbol("n") * dims.symbol("m")))


# -- the common case in one step -------------------------------------------------------------------------------------
def the_long_way(graph: Graph, target: Target) -> Partition:
    """The walk without its shortcut."""
    with mock.patch.object(partition, "joins_alike", lambda space, group, form: False):
        return greedy(graph, target)


@pytest.mark.parametrize("machine", sorted(MACHINES))
@pytest.mark.parametrize("seed", range(8))
def test_the_shortcut_changes_nothing(seed: int, machine: str) -> None:
    graph = pipeline.run(dag(seed, 200).build())
    short, long = greedy(graph, MACHINES[machine]), the_long_way(graph, MACHINES[machine])
    assert members(short) == members(long) and short.verdicts == long.verdicts


@unhurried
@given(random_graph(most=12))
def test_the_shortcut_changes_nothing_on_random_graphs(case: tuple[Graph, list[np.ndarray]]) -> None:
    graph = pipeline.run(case[0])
    for target in MACHINES.values():
        short, long = greedy(graph, target), the_long_way(graph, target)
        assert members(short) == members(long) and short.verdicts == long.verdicts
