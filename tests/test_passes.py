"""Passes: what each makes of a graph, and that no pass changes a value."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import SAMPLES, At, assert_bits, assert_close, random_array, random_graph, unhurried

from autofusion.dims import symbol
from autofusion.dtypes import Array, DType
from autofusion.errors import IndexOutOfRange, VerifyError
from autofusion.graph import evaluate, index, ir
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.ops import TABLE, Kind, Op
from autofusion.passes import (
    canonicalise,
    cse,
    dce,
    decompose,
    fold_constants,
    materialise_outputs,
    pipeline,
)

F32, F16, I32 = DType.FLOAT32, DType.FLOAT16, DType.INT32
n = symbol("n")


def graph_of(make: Callable[[GraphBuilder], Any], name: str = "g") -> Graph:
    F = GraphBuilder(name)
    made = make(F)
    for value in made if isinstance(made, tuple) else (made,):
        F.output(value)
    return F.build()


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def same(before: Graph, after: Graph, *arrays: Array) -> None:
    """The pass kept the values, and what it made is valid."""
    ir.verify(after)
    for a, b in zip(evaluate.run(after, list(arrays)), evaluate.run(before, list(arrays)), strict=True):
        assert_bits(a, b)


X = np.array([[1.5, -0.0, np.nan], [np.inf, 1e-40, -3]], np.float32)


def x_of(F: GraphBuilder, shape: Any = (2, 3), dtype: DType = F32) -> Any:
    return F.input("x", dtype, shape)


# -- every pass, on random graphs ------------------------------------------------------------------------------------
PASSES = [step for step in pipeline.PASSES if step.name != "decompose"]


@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.name)
@unhurried
@given(drawn=random_graph())
def test_pass_keeps_every_bit(step: pipeline.Pass, drawn: tuple[Graph, list[Array]]) -> None:
    graph, arrays = drawn
    text = str(graph)
    after = step.run(graph)
    same(graph, after, *arrays)
    assert str(graph) == text
    assert str(step.run(after)) == str(after), "a second run finds nothing more to do"
    assert after.inputs == graph.inputs
    assert [o.writes for o in after.outputs] == [o.writes for o in graph.outputs]


@unhurried
@given(random_graph(composites=False))
def test_pipeline_keeps_every_bit_of_primitives(drawn: tuple[Graph, list[Array]]) -> None:
    graph, arrays = drawn
    same(graph, pipeline.run(graph), *arrays)


@unhurried
@given(random_graph())
def test_pipeline_gives_what_the_next_stages_expect(drawn: tuple[Graph, list[Array]]) -> None:
    graph, _ = drawn
    after = pipeline.run(graph)
    assert str(after) == str(pipeline.run(graph)), "the same graph, the same text"
    assert all(node.row.lower is None for node in after.nodes)
    names = [output.name for output in after.outputs]
    assert len(set(names)) == len(names), "each output has storage of its own"
    for name in names:
        maker = after.producers[name]
        assert not maker.is_view and maker.kind is not Kind.SOURCE
    for node in after.nodes:
        if not node.is_view:
            assert index.regions(after, node)
    assert set(after.data) == {c.digest for c in after.constants}
    assert str(ir.parse(str(after), after.data)) == str(after)


@unhurried
@given(random_graph(most=1), st.integers(0, 1))
def test_decompose_of_one_operator_is_within_tolerance(drawn: tuple[Graph, list[Array]], _: int) -> None:
    graph, arrays = drawn
    after = decompose.run(graph)
    ir.verify(after)
    tolerance = max((node.row.tolerance for node in graph.nodes if node.row.lower), default=0)
    for a, b in zip(evaluate.run(after, arrays), evaluate.run(graph, arrays), strict=True):
        assert_close(a, b, tolerance)


# -- canonicalise ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("op", "given_attrs", "canonical"),
    [
        ("sum", {"axes": None, "keepdims": True}, {"axes": (0, 1), "keepdims": True}),
        ("sum", {"axes": (-1, 0)}, {"axes": (0, 1), "keepdims": False}),
        ("max", {"axes": -1}, {"axes": (1,), "keepdims": False}),
        ("cumsum", {"axis": -1}, {"axis": 1}),
        ("softmax", {"axis": -2}, {"axis": 0}),
        ("transpose", {"axes": None}, {"axes": (1, 0)}),
        ("transpose", {"axes": (-1, -2)}, {"axes": (1, 0)}),
        ("reshape", {"shape": (3, -1)}, {"shape": (3, 2)}),
        ("cast", {"dtype": "int8"}, {"dtype": DType.INT8}),
        (
            "slice",
            {"starts": (-9, -1), "stops": (9, -9), "steps": (3, -1)},
            {"starts": (0, 2), "stops": (1, -4), "steps": (1, -1)},
        ),
        (
            "slice",
            {"starts": (1, 0), "stops": (1, 4), "steps": (2, 2)},
            {"starts": (0, 0), "stops": (0, 3), "steps": (1, 2)},
        ),
    ],
)
def test_attributes_have_one_form(op: str, given_attrs: dict[str, Any], canonical: dict[str, Any]) -> None:
    before = graph_of(lambda F: F.emit(op, [x_of(F)], given_attrs))
    after = canonicalise.run(before)
    assert after.nodes[-1].attrs == canonical
    assert type(after.nodes[-1].attrs.get("dtype")) in (DType, type(None))
    same(before, after, X)


@pytest.mark.parametrize(
    "make",
    [
        lambda F, x: F.reshape(x, shape=(2, -1)),
        lambda F, x: F.transpose(x, axes=(0, 1)),
        lambda F, x: F.expand(x, shape=(2, 3)),
        lambda F, x: F.slice(x, starts=(0, 0), stops=(2, 99), steps=(1, 1)),
        lambda F, x: F.cast(x, dtype=F32),
        lambda F, x: F.transpose(F.transpose(x)),
        lambda F, x: F.reshape(F.reshape(x, shape=(6,)), shape=(2, 3)),
        lambda F, x: F.slice(
            F.slice(x, starts=(1, 2), stops=(-9, -9), steps=(-1, -1)), starts=(1, 2), stops=(-9, -9), steps=(-1, -1)
        ),
    ],
)
def test_operators_that_do_nothing_go(make: Callable[[GraphBuilder, Any], Any]) -> None:
    before = graph_of(lambda F: F.exp(make(F, x_of(F))))
    after = dce.run(canonicalise.run(before))
    assert ops(after) == ["exp"]
    same(before, after, X)


def test_views_of_views_are_one_view() -> None:
    def make(F: GraphBuilder) -> Any:
        x = x_of(F, (4, 6))
        one = F.slice(x, starts=(3, 1), stops=(-9, 6), steps=(-1, 2))
        two = F.slice(one, starts=(1, 2), stops=(4, -9), steps=(2, -1))
        return (
            F.exp(two),
            F.exp(F.transpose(F.transpose(F.reshape(F.reshape(x, shape=(24,)), shape=(2, 3, 4)), axes=(1, 2, 0)))),
            F.exp(F.expand(F.expand(F.sum(x, axes=0), shape=(2, 6)), shape=(3, 2, 6))),
        )

    before = graph_of(make)
    after = dce.run(canonicalise.run(before))
    assert sorted(ops(after)) == ["exp", "exp", "exp", "expand", "reshape", "slice", "sum", "transpose"]
    same(before, after, np.arange(24, dtype=np.float32).reshape(4, 6))


def test_copy_of_copy_is_one_copy() -> None:
    before = graph_of(lambda F: F.copy(F.copy(F.copy(x_of(F)))))
    after = dce.run(canonicalise.run(before))
    assert ops(after) == ["copy"]
    same(before, after, X)


def test_symbolic_views() -> None:
    def make(F: GraphBuilder) -> Any:
        x = x_of(F, (n, 4))
        flat = F.reshape(x, shape=(-1,))
        whole = F.slice(x, starts=(0, 0), stops=(1 << 62, 4), steps=(1, 1))
        return F.exp(F.reshape(flat, shape=(n, 4))), F.neg(whole), F.exp(F.transpose(F.transpose(x)))

    before = graph_of(make)
    after = dce.run(canonicalise.run(before))
    assert ops(after) == ["exp", "neg", "exp"]
    same(before, after, np.arange(12, dtype=np.float32).reshape(3, 4))


def test_collapsing_views_assumes_nothing_new() -> None:
    def make(F: GraphBuilder) -> Any:
        F.input("y", F32, (symbol("m"),))
        flat = F.reshape(x_of(F, (n, 4)), shape=(symbol("m"),))
        return F.exp(F.reshape(flat, shape=(symbol("m"), 1)))

    before = graph_of(make)
    after = pipeline.run(before)
    assert after.guards == before.guards
    ir.verify(after)


FORBIDDEN: dict[str, Callable[[GraphBuilder, Any], Any]] = {
    "0*x": lambda F, x: F.mul(x, 0.0),
    "x*1": lambda F, x: F.mul(x, 1.0),
    "x+0": lambda F, x: F.add(x, 0.0),
    "x-0": lambda F, x: F.sub(x, 0.0),
    "x/x": lambda F, x: F.div(x, x),
    "x/1": lambda F, x: F.div(x, 1.0),
    "x-x": lambda F, x: F.sub(x, x),
    "max(x,x)": lambda F, x: F.maximum(x, x),
    "x==x": lambda F, x: F.eq(x, x),
    "exp(log(x))": lambda F, x: F.exp(F.log(x)),
    "neg(neg(x))": lambda F, x: F.neg(F.neg(x)),
    "rounding cast": lambda F, x: F.cast(F.cast(x, dtype=DType.BFLOAT16), dtype=F32),
    "truncating cast": lambda F, x: F.cast(F.cast(x, dtype=I32), dtype=F32),
    "a*x+b*x": lambda F, x: F.add(F.mul(x, 1e30), F.mul(x, -1e30)),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_semantics_forbids_is_not_done(name: str) -> None:
    before = graph_of(lambda F: FORBIDDEN[name](F, x_of(F)))
    after = pipeline.run(before)
    assert [op for op in ops(after) if op != "full"] == [op for op in ops(before) if op != "full"]
    same(before, after, X)


# -- decompose -------------------------------------------------------------------------------------------------------
def test_softmax_becomes_primitives_named_after_it() -> None:
    after = decompose.run(graph_of(lambda F: F.softmax(x_of(F, (8, n)), axis=1, name="y")))
    assert [(node.name, node.op) for node in after.nodes] == [
        ("y.max", "max"),
        ("y.sub", "sub"),
        ("y.exp", "exp"),
        ("y.sum", "sum"),
        ("y", "div"),
    ]


@pytest.mark.parametrize("dtype", [F16, DType.BFLOAT16])
def test_reduced_composites_are_float32_inside(dtype: DType) -> None:
    before = graph_of(lambda F: F.layer_norm(x_of(F, (4, 8), dtype), name="y"))
    after = decompose.run(before)
    assert ops(after)[0] == ops(after)[-1] == "cast"
    assert {node.output.dtype for node in after.nodes[:-1]} == {F32}
    assert after.outputs[0].name == "y" and after.values["y"].dtype is dtype
    array = random_array(np.random.default_rng(0), dtype, (4, 8))
    assert_close(evaluate.run(after, [array])[0], evaluate.run(before, [array])[0], 1)


def test_composites_of_a_chain_stay_rounded_between() -> None:
    before = graph_of(lambda F: F.gelu(F.silu(x_of(F, (64,), F16))))
    after = pipeline.run(before)
    assert ops(after).count("cast") == 4
    array = random_array(np.random.default_rng(0), F16, (64,))
    assert_close(evaluate.run(after, [array])[0], evaluate.run(before, [array])[0], 1)


def test_every_composite_is_lowered() -> None:
    for row in TABLE:
        if row.lower is None:
            continue
        dtype = F32 if F32 in row.dtypes else row.dtypes[0]
        count = row.arity if isinstance(row.arity, int) else 1
        operands, attrs = SAMPLES.get(row.name, ((((2, 3),) * count, {}),))[0]
        if row.kind is Kind.SOURCE:
            attrs = {"rows": 2, "columns": 3}

        types = [(o.dtype, o.shape) if isinstance(o, At) else (dtype, o) for o in operands]

        def make(F: GraphBuilder, row: Op = row, types: Any = types, attrs: Any = attrs) -> Any:
            inputs = [F.input(f"x{i}", each, shape) for i, (each, shape) in enumerate(types)]
            return F.emit(row.name, inputs, attrs, "y")

        before = graph_of(make)
        after = decompose.run(before)
        assert all(node.row.lower is None for node in after.nodes)
        assert after.outputs == before.outputs, row.name


# -- fold_constants --------------------------------------------------------------------------------------------------
W = np.arange(6, dtype=np.float32).reshape(2, 3)


def folded(make: Callable[[GraphBuilder], Any]) -> Graph:
    before = graph_of(make)
    after = dce.run(fold_constants.run(before))
    same(before, after, *([X] if before.inputs else []))
    return after


def test_a_view_of_a_constant_is_a_constant() -> None:
    after = folded(lambda F: F.matmul(x_of(F), F.transpose(F.constant(W))))
    assert ops(after) == ["matmul"]
    assert after.constants[0].value.shape == (3, 2)
    assert after.data[after.constants[0].digest].flags.c_contiguous


def test_a_repeating_view_of_a_constant_stays() -> None:
    after = folded(lambda F: F.add(x_of(F), F.expand(F.constant(W[0]), shape=(2, 3))))
    assert ops(after) == ["expand", "add"]
    assert folded(lambda F: F.exp(F.expand(F.constant(W[0]), shape=(2, 3)))).constants[0].value.shape == (2, 3)


def test_one_value_stays_full() -> None:
    def make(F: GraphBuilder) -> Any:
        x = x_of(F)
        two = F.add(F.scalar(1.5, F32), F.scalar(0.5, F32))
        return F.mul(x, two), F.add(x, F.expand(F.reshape(two, shape=(1, 1)), shape=(2, 3)))

    after = folded(make)
    assert not after.constants
    assert [node.attrs["value"] for node in after.nodes if node.op == "full"] == [2.0, 2.0]


def test_zero_and_minus_zero_and_nan_keep_their_bits() -> None:
    def make(F: GraphBuilder) -> Any:
        zero = F.scalar(0.0, F32)
        return F.mul(x_of(F), F.neg(zero)), F.add(F.div(zero, zero), 1.0)

    before = graph_of(make)
    after = fold_constants.run(before)
    for a, b in zip(evaluate.run(after, [X]), evaluate.run(before, [X]), strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_large_full_is_never_made_in_memory() -> None:
    def make(F: GraphBuilder) -> Any:
        big = F.full(shape=(1 << 20, 1 << 20), value=1.0, dtype=F32)
        return F.sum(F.exp(big), axes=None)

    after = dce.run(fold_constants.run(graph_of(make)))
    assert ops(after) == ["full", "sum"] and not after.constants


def test_growth_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_constants, "LIMIT", 64)
    make = lambda F: F.add(F.expand(F.constant(W[0]), shape=(9, 3)), F.constant(W[1]))  # noqa: E731
    assert "add" in ops(folded(make))
    monkeypatch.setattr(fold_constants, "LIMIT", 4096)
    assert "add" not in ops(folded(make))


def test_what_raises_is_left_to_raise() -> None:
    before = graph_of(lambda F: F.gather(F.constant(W), F.constant(np.array([5]))))
    after = pipeline.run(before)
    assert "gather" in ops(after)
    with pytest.raises(IndexOutOfRange):
        evaluate.run(after, [])


def test_communication_and_positions_are_not_folded() -> None:
    after = folded(lambda F: (F.all_reduce(F.constant(W)), F.neg(F.iota(shape=(4,), dtype=I32))))
    assert ops(after) == ["all_reduce", "iota", "neg"]


# -- cse -------------------------------------------------------------------------------------------------------------
def test_equal_operators_are_one() -> None:
    def make(F: GraphBuilder) -> Any:
        x = x_of(F)
        a, b = (F.exp(F.add(x, F.constant(W))) for _ in range(2))
        return F.mul(a, b)

    before = graph_of(make)
    after = dce.run(cse.run(before))
    assert ops(after) == ["add", "exp", "mul"] and len(after.constants) == 1
    same(before, after, X)


def test_what_only_python_calls_equal_is_not_one() -> None:
    def make(F: GraphBuilder) -> Any:
        x = x_of(F)
        return F.add(x, 0.0), F.add(x, -0.0), F.sum(x, axes=0), F.sum(x, axes=1)

    before = graph_of(make)
    assert ops(cse.run(before)) == ops(before)


def test_communication_is_not_merged() -> None:
    before = graph_of(lambda F: F.add(*(F.all_reduce(v) for v in [x_of(F)] * 2)))
    assert ops(cse.run(before)) == ["all_reduce", "all_reduce", "add"]


# -- dce -------------------------------------------------------------------------------------------------------------
def test_dead_code_goes_and_inputs_stay() -> None:
    def make(F: GraphBuilder) -> Any:
        x, unused = x_of(F), F.input("unused", F32, (1,))
        F.exp(F.mul(unused, F.constant(np.float32(3))))
        F.all_reduce(F.neg(x))
        return F.add(x, 1.0)

    after = dce.run(graph_of(make))
    assert ops(after) == ["neg", "all_reduce", "full", "add"]
    assert [v.name for v in after.inputs] == ["x", "unused"]
    assert not after.constants and not after.data


# -- materialise_outputs ---------------------------------------------------------------------------------------------
def test_outputs_own_their_storage() -> None:
    def make(F: GraphBuilder) -> Any:
        x, w = x_of(F), F.constant(W)
        y = F.exp(x)
        return x, w, y, y, F.transpose(y), F.full(shape=(), value=1.0, dtype=F32), F.all_reduce(y)

    before = graph_of(make)
    after = materialise_outputs.run(before)
    assert ops(after).count("copy") == 5
    assert after.outputs[2].name == before.outputs[2].name
    assert len({output.name for output in after.outputs}) == 7
    same(before, after, X)


def test_merged_outputs_are_two_storages() -> None:
    before = graph_of(lambda F: tuple(F.exp(v) for v in [x_of(F)] * 2))
    after = pipeline.run(before)
    assert ops(after) == ["exp", "copy"]
    assert len({output.name for output in after.outputs}) == 2
    same(before, after, X)


def test_operands_read_whole_are_no_views() -> None:
    def make(F: GraphBuilder) -> Any:
        t = F.transpose(x_of(F))
        indices = F.constant(np.array([0, -1]))
        folds = F.gather(F.transpose(F.constant(W)), indices)
        return F.gather(t, indices), F.gather(t, indices, axis=1), F.all_reduce(t), folds

    before = graph_of(make)
    after = pipeline.run(before)
    assert ops(after).count("copy") == 2, "one for all readers of t, one for the output that folds to a constant"
    for node in after.nodes:
        if node.kind in (Kind.GATHER, Kind.COMM):
            assert not after.producers[node.inputs[0]].is_view
    same(before, after, X)


def test_mutation_is_kept() -> None:
    F = GraphBuilder("g")
    x = x_of(F)
    F.output(F.add(x, 1.0))
    F.output(x, writes="x")
    F.output(F.reshape(F.exp(x), shape=(2, 3)), writes="x")
    before = F.build()
    after = pipeline.run(before)
    assert [output.writes for output in after.outputs] == [None, "x", "x"]
    assert after.producers[after.outputs[1].name].op == "copy"
    same(before, after, X)


# -- the pipeline ----------------------------------------------------------------------------------------------------
def test_observers_see_every_pass_in_order() -> None:
    seen: list[tuple[str, int, float]] = []
    pipeline.run(graph_of(lambda F: F.gelu(x_of(F))), lambda name, graph, s: seen.append((name, len(graph.nodes), s)))
    assert [name for name, _, _ in seen] == [step.name for step in pipeline.PASSES]
    assert all(count > 0 and seconds >= 0 for _, count, seconds in seen)


def test_a_broken_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = pipeline.Pass("breaks", lambda graph: graph.with_body(list(graph.body[1:])), "drops the first input")
    monkeypatch.setattr(pipeline, "PASSES", (broken,))
    with pytest.raises(VerifyError, match="after breaks"):
        pipeline.run(graph_of(lambda F: F.exp(x_of(F))))


def test_nothing_to_do_gives_the_same_graph() -> None:
    graph = pipeline.run(graph_of(lambda F: F.gelu(x_of(F))))
    for step in pipeline.PASSES:
        assert step.run(graph) is graph


def sharing_chain(length: int) -> Graph:
    def make(F: GraphBuilder) -> Any:
        a, b = x_of(F), F.input("y", F32, (2, 3))
        for _ in range(length):
            c = F.add(a, b)
            a, b = F.mul(a, b), c
        return a, b

    return graph_of(make)


def test_sharing_is_not_duplicated() -> None:
    graph = sharing_chain(1000)
    assert len(pipeline.run(graph).nodes) == 2000


@pytest.mark.full
def test_a_hundred_thousand_operators_in_seconds() -> None:
    def seconds(length: int) -> float:
        start = time.perf_counter()
        graph = sharing_chain(length // 2)
        assert len(pipeline.run(graph).nodes) == length
        return time.perf_counter() - start

    small, large = seconds(10_000), seconds(100_000)
    assert large < 60
    assert large < 20 * small
