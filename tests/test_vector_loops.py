"""What the CPU's loops leave out or do in another way: tests for NaN, divisions, stores through the caches, parts."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from oracle import assert_bits

from autofusion import api
from autofusion.autofuse.forms import Forms
from autofusion.dtypes import Array, DType
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.jit import pipeline
from autofusion.kernel import lower, schedule
from autofusion.ops import TABLE
from autofusion.targets.cpu import host
from autofusion.targets.cpu.nans import PROPAGATING

F32 = DType.FLOAT32
LEVELS = [name for name in ("host", "sse2", "avx2", "avx512") if host.runs(host.named(name))]
RNG = np.random.default_rng(5)
NAN, INF = math.nan, math.inf


def run(graph: Graph, level: str, *arrays: Array) -> Any:
    return api.compile_graph(graph, "cpu" if level == "host" else f"cpu:{level}")(*arrays)


def llvm(graph: Graph, cpu: str, fuse: bool = True) -> str:
    machine = host.named(cpu)
    compiled = pipeline.compile_graph(graph, host.target_of(machine), pipeline.Options(fuse=fuse, cpu=cpu))
    return "\n".join(code.text for code in compiled.codes.values())


# -- max and min -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(PROPAGATING))
def test_primitives_that_carry_nan(name: str) -> None:
    """NaN in any operand gives NaN, whatever the others are."""
    row = TABLE.get(name)
    others = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 0.5]
    count = row.arity if isinstance(row.arity, int) else row.arity[0]
    for place in range(count):
        for rest in itertools.product(others, repeat=count - 1):
            operands = [np.float32([v]) for v in (*rest[:place], NAN, *rest[place:])]
            with np.errstate(all="ignore"):
                assert np.isnan(row.reference(*operands, **row.complete({}))).all(), (name, operands)


def chain(F: GraphBuilder, x: Any, y: Any) -> Any:
    """Each max and min has an operand that is NaN wherever the other is, in either place; but the last."""
    t = F.relu(F.sub(F.mul(x, y), 0.25))
    t = F.maximum(F.maximum(t, y), F.abs(t))
    t = F.minimum(x, F.add(t, x))
    u = F.where(F.lt(x, y), x, F.mul(y, 2.0))  # not NaN wherever x is, or y
    return F.maximum(F.minimum(F.exp(t), u), F.maximum(-1.0, F.pow(y, x)))


def chain_of(n: int) -> Graph:
    F = GraphBuilder("chain")
    F.output(chain(F, F.input("x", F32, (n,)), F.input("y", F32, (n,))))
    return F.build()


@pytest.mark.parametrize("level", LEVELS)
def test_nan_passes_max_and_min_at_every_position(level: str) -> None:
    n = 37
    x, y = (RNG.standard_normal(n).astype(np.float32) for _ in range(2))
    graph = chain_of(n)
    compiled = api.compile_graph(graph, "cpu" if level == "host" else f"cpu:{level}")
    for place in range(n):
        for given in ((NAN, 1.0), (1.0, NAN), (NAN, NAN), (INF, -INF), (-INF, 2.0), (NAN, 0.0), (0.0, NAN)):
            a, b = x.copy(), y.copy()
            a[place], b[place] = given
            with np.errstate(all="ignore"):
                t = np.maximum(a * b - np.float32(0.25), np.float32(0))
                t = np.minimum(a, np.maximum(np.maximum(t, b), np.abs(t)) + a)
                u = np.where(a < b, a, b * np.float32(2))
                wanted = np.maximum(np.minimum(np.exp(t), u), np.maximum(np.float32(-1), np.power(b, a)))
            found = compiled(a, b)
            assert np.array_equal(np.isnan(found), np.isnan(wanted)), (place, given)
            np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_only_what_needs_it_is_tested_for_nan() -> None:
    """Of the chain's eight max and min two have operands of which neither is NaN wherever the other is."""
    assert llvm(chain_of(64), "avx512").count("fcmp uno <16 x float>") in (2, 3)


# -- division by one number --------------------------------------------------------------------------------------------
def quotient(rows: int, width: int, divisor: float | None = None) -> Graph:
    F = GraphBuilder("quotient")
    x = F.input("x", F32, (rows, width))
    F.output(F.div(x, F.input("s", F32, (rows, 1)) if divisor is None else divisor))
    return F.build()


def bits_between(low: int, high: int, shape: tuple[int, ...]) -> Array:
    """Floats of either sign with random mantissas and exponents of [low, high)."""
    exponents = RNG.integers(low + 127, high + 127, shape, dtype=np.uint32) << np.uint32(23)
    signs = RNG.integers(0, 2, shape, dtype=np.uint32) << np.uint32(31)
    return (exponents | signs | RNG.integers(0, 1 << 23, shape, dtype=np.uint32)).view(np.float32)


SPECIAL = np.float32([0, -0.0, INF, -INF, NAN, 1e-45, -1e-40, 3e38, 2**-96, 2**96, 2**-97, 2**97, 1, -1, 2**-126, 7])


@pytest.mark.parametrize("level", LEVELS)
def test_rows_divided_by_a_number_are_rounded_as_division_rounds(level: str) -> None:
    rows, width = 512, 16 * 31 + 5
    compiled = api.compile_graph(quotient(rows, width), "cpu" if level == "host" else f"cpu:{level}")
    for dividends, divisors in (
        ((-1, 1), (-1, 1)),
        ((-96, 96), (-24, 24)),
        ((-126, 128), (-126, 128)),
        ((0, 1), (0, 1)),
    ):
        x, s = bits_between(*dividends, (rows, width)), bits_between(*divisors, (rows, 1))
        s[::2] = np.abs(s[::2])
        s[0], s[2] = np.nextafter(np.float32(2), np.float32(1)), np.float32(1) + np.float32(2**-23)  # longest mantissas
        x[::3, : len(SPECIAL)] = SPECIAL
        x[5, 17::16] = 0.0
        s[3 : 3 + len(SPECIAL), 0] = SPECIAL
        with np.errstate(all="ignore"):
            assert_bits(compiled(x, s), x / s)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("divisor", [3.0, 1.4142135, 10.0, -7.0, 1e-30, 1e30, 8.0, 0.0, INF, NAN])
def test_division_by_a_constant(level: str, divisor: float) -> None:
    x = bits_between(-20, 20, (3, 16 * 70 + 3))
    x[1, 40 : 40 + len(SPECIAL)] = SPECIAL
    with np.errstate(all="ignore"):
        assert_bits(run(quotient(*x.shape, divisor), level, x), x / np.float32(divisor))


def test_where_a_reciprocal_serves() -> None:
    """For vectors of 16 floats, in loops without elementary functions, and not by a power of two."""
    assert "call <16 x float> @llvm.fma.v16f32" in llvm(quotient(4, 64), "avx512")
    assert "call <16 x float> @llvm.fma.v16f32" in llvm(quotient(4, 64, 3.0), "avx512")
    assert "@llvm.fma" not in llvm(quotient(4, 64, 4.0), "avx512")
    assert "@llvm.fma" not in llvm(quotient(4, 64), "avx2")


# -- stores past the caches --------------------------------------------------------------------------------------------
LARGE = (1 << 21) + 5  # floats


def sums(n: int, twice: bool = False, written: bool = False) -> Graph:
    F = GraphBuilder("sums")
    x, y = F.input("x", F32, (n,)), F.input("y", F32, (n,))
    total = F.add(x, y)
    F.output(total, **({"writes": "x"} if written else {}))
    if twice:
        F.output(F.cumsum(total, axis=0))
    return F.build()


def test_which_stores_pass_the_caches() -> None:
    """Those to large results that no kernel reads; and the launch's end waits for them."""
    text = llvm(sums(LARGE), "avx512")
    assert text.count("!nontemporal") == 1
    assert text.index("!nontemporal") < text.index("call void @llvm.x86.sse.sfence()") < text.index("ret void")
    for other in (sums(LARGE // 2), sums(LARGE, written=True)):
        assert "!nontemporal" not in llvm(other, "avx512")
    # Of the sum and its running sum, in kernels of their own, the first is read again.
    assert llvm(sums(LARGE, twice=True), "avx512", fuse=False).count("!nontemporal") == 1
    assert "!nontemporal" not in llvm(sums(LARGE), "aarch64:neoverse-v1")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("offset", [0, 1, 4])
def test_large_results_at_any_address(level: str, offset: int) -> None:
    x, y = (RNG.standard_normal(LARGE).astype(np.float32) for _ in range(2))
    compiled = api.compile_graph(sums(LARGE), "cpu" if level == "host" else f"cpu:{level}")
    room = np.full(LARGE + 64, 7, np.float32)
    start = -room.ctypes.data // 4 % 16 + offset
    compiled(x, y, out=room[start : start + LARGE])
    assert_bits(room[start : start + LARGE], x + y)
    assert (room[:start] == 7).all() and (room[start + LARGE :] == 7).all()


# -- parts -------------------------------------------------------------------------------------------------------------
def parts_of(graph: Graph) -> int:
    target = host.target_of(host.named("avx512"))
    forms = Forms(graph)
    (group,) = pipeline.partition_graph(graph, target, True, forms).groups
    return schedule.propose(lower.lower(graph, group, target, forms).kernel, target).chunks


def test_work_is_shared_out_where_it_is_worth_it() -> None:
    def functions(n: int, name: str) -> Graph:
        F = GraphBuilder("functions")
        F.output(getattr(F, name)(F.input("x", F32, (n,))))
        return F.build()

    assert parts_of(functions(1 << 14, "neg")) == 1
    assert parts_of(functions(1 << 16, "neg")) == 1 < parts_of(functions(1 << 16, "tanh"))
    assert parts_of(functions(1 << 22, "neg")) == 64
