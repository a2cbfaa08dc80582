"""Values between groups that lie in results which are not written yet."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autofusion import api
from autofusion.dtypes import DType
from autofusion.errors import VerifyError
from autofusion.graph import evaluate
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.placement import Lent, Span, lend
from autofusion.superkernel import plan as plans
from autofusion.superkernel.options import SuperKernelOptions
from autofusion.superkernel.plan import Place, Storage

F32 = DType.FLOAT32
RNG = np.random.default_rng(0)
ROWS, WIDTH = 32, 512  # whose products are groups of their own


def products(
    layers: int, rows: int = ROWS, width: int = WIDTH, early: bool = False, writes: str | None = None
) -> Graph:
    """A chain of products, each a group; `early`: one in the middle is a result, too."""
    F = GraphBuilder("products")
    t = F.input("x", F32, (rows, width))
    for number in range(layers):
        t = F.relu(F.matmul(t, F.constant(RNG.standard_normal((width, width)).astype(np.float32) / 22)))
        if early and number == layers // 2:
            F.output(t)
    F.output(t, writes=writes)
    return F.build()


def lent_in(compiled: api.Compiled) -> list[Storage]:
    return [s for s in compiled.executable.plan.storages.values() if s.within is not None]


def check(compiled: api.Compiled, graph: Graph, **options: Any) -> None:
    x = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
    wanted = evaluate.run(graph, [x.copy()])
    found = compiled(x, **options)
    for one, other in zip(found if len(wanted) > 1 else (found,), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layers", [3, 4, 5, 8])
@pytest.mark.parametrize("early", [False, True])
def test_chains_of_products(layers: int, early: bool) -> None:
    graph = products(layers, early=early)
    compiled = api.compile_graph(graph)
    plain = api.compile_graph(graph, superkernel=SuperKernelOptions(workspace_reuse=False))
    assert not lent_in(plain)
    if layers >= 4 and not early:
        assert lent_in(compiled) and compiled.executable.plan.workspace == ROWS * WIDTH * 4
    for each in (compiled, plain):
        for threads in (None, 1, 2):
            check(each, graph, threads=threads)
        check(each, graph)
        out = [np.full((ROWS, WIDTH), np.nan, np.float32) for _ in graph.outputs]
        check(each, graph, out=out)
        apart = [
            np.full(ROWS * WIDTH * 4 + 1, 255, np.uint8)[1:].view(np.float32).reshape(ROWS, WIDTH)
            for _ in graph.outputs
        ]
        check(each, graph, out=apart)


def test_a_result_that_shares_memory_with_an_argument() -> None:
    graph = products(5)
    compiled = api.compile_graph(graph)
    assert lent_in(compiled)
    x = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
    (wanted,) = evaluate.run(graph, [x.copy()])
    compiled(x, out=x)
    np.testing.assert_allclose(x, wanted, rtol=1e-4, atol=1e-4)


def test_a_result_that_an_argument_becomes_lends_nothing() -> None:
    """Its memory may be the argument's, which is read until the end."""
    graph = products(5, writes="x")
    compiled = api.compile_graph(graph)
    assert not lent_in(compiled)
    check(compiled, graph)


@pytest.mark.parametrize("dtype", [F32, DType.FLOAT64], ids=str)
def test_a_result_of_smaller_elements_lends_nothing(dtype: DType) -> None:
    F = GraphBuilder("narrow")
    t = F.input("x", DType.FLOAT64, (ROWS, WIDTH))
    for _ in range(5):
        t = F.matmul(t, F.constant(RNG.standard_normal((WIDTH, WIDTH)) / 22))
    last = F.concat(t, t, t, t, axis=1)
    F.output(F.cast(last, dtype=dtype) if dtype is F32 else last)
    assert bool(lent_in(api.compile_graph(F.build()))) is (dtype is DType.FLOAT64)


def test_the_plan_reads_back_and_is_verified() -> None:
    plan = api.compile_graph(products(5)).executable.plan
    assert plans.parse(str(plan)) == plan
    (name,) = [s.name for s in plan.storages.values() if s.place is Place.RESULT]

    def changed(**changes: Any) -> plans.Plan:
        return replace(plan, body=tuple(replace(s, **changes) if getattr(s, "within", None) else s for s in plan.body))

    first = next(s.name for s in plan.storages.values() if s.place is Place.ARGUMENT)
    last = plan.calls[-1].arguments[0]  # what the kernel reads that writes the result
    for broken in (
        changed(within=first),
        changed(offset=4096),
        replace(
            plan, body=tuple(replace(s, within=name, offset=0) if s == plan.storages[last] else s for s in plan.body[:])
        ),
    ):
        with pytest.raises(VerifyError, match=r"within|share workspace bytes"):
            plans.verify(broken)


# -- placement ---------------------------------------------------------------------------------------------------------
def test_the_place_between_two_is_lent() -> None:
    a, b, c, host = Span("a", 64, 0, 1), Span("b", 64, 1, 2), Span("c", 64, 2, 3), Span("host", 64, 3, 3)
    found, total = lend([a, b, c], {"a": [host], "b": [host], "c": []}, 64)
    assert total == 64 and found == {"a": Lent(None, 0), "b": Lent("host", 0), "c": Lent(None, 0)}


@pytest.mark.parametrize("seed", range(30))
def test_nothing_that_is_alive_at_once_meets(seed: int) -> None:
    rng = random.Random(seed)
    spans = []
    for number in range(rng.randrange(1, 30)):
        first = rng.randrange(20)
        spans.append(Span(f"s{number}", rng.randrange(1, 300), first, first + rng.randrange(6)))
    hosts = [Span(f"h{n}", rng.randrange(1, 900), first := rng.randrange(10, 25), first) for n in range(3)]
    lenders = {s.name: [h for h in hosts if s.last < h.first and s.size <= h.size] for s in spans}
    found, total = lend(spans, lenders, 64)
    sizes = {h.name: h.size for h in hosts}
    for s in spans:
        lender, offset = found[s.name]
        assert offset % 64 == 0 and isinstance(s.size, int)
        assert offset + s.size <= (total if lender is None else sizes[lender])
        assert lender is None or lender in [h.name for h in lenders[s.name]]
        for other in spans:
            if other.name != s.name and found[other.name].lender == lender:
                apart = other.last < s.first or s.last < other.first
                begin, end = found[other.name].offset, found[other.name].offset + other.size  # type: ignore[operator]
                assert apart or end <= offset or offset + s.size <= begin
