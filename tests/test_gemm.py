"""Contractions on register tiles: every layout of the operands, every edge, on every vector width that runs here."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from oracle import assert_close

from autofusion import api
from autofusion.dims import symbol
from autofusion.dtypes import Array, DType
from autofusion.graph import evaluate
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.passes import assign_layouts
from autofusion.passes import pipeline as passes
from autofusion.targets.cpu import host
from autofusion.targets.cpu.gemm import register_tile

LEVELS = [name for name in ("host", "sse2", "avx2", "avx512") if host.runs(host.named(name))]
RNG = np.random.default_rng(0)


def target_of(level: str) -> str:
    return "cpu" if level == "host" else f"cpu:{level}"


def product(
    m: int,
    k: int,
    n: int,
    dtype: DType = DType.FLOAT32,
    turned: tuple[bool, bool] = (False, False),
    constant: bool = False,
) -> tuple[Graph, list[Array]]:
    """relu(x @ w + b), its operands as they are or turned, w a constant or an argument; and arguments for it."""
    F = GraphBuilder("product")
    x, w, b = (RNG.standard_normal(s) for s in ((m, k), (k, n), (n,)))
    arrays = [x.T if turned[0] else x, w.T if turned[1] else w, b]
    given = [np.ascontiguousarray(a).astype(dtype.numpy) for a in arrays]
    values = [F.input("x", dtype, given[0].shape)]
    values.append(F.constant(given[1]) if constant else F.input("w", dtype, given[1].shape))
    values.append(F.input("b", dtype, given[2].shape))
    left, right = (F.transpose(v, axes=(1, 0)) if t else v for v, t in zip(values[:2], turned, strict=True))
    F.output(F.relu(F.add(F.matmul(left, right), values[2])))
    return F.build(), [a for a, v in zip(given, values, strict=True) if not (constant and v is values[1])]


def expected(graph: Graph, arrays: list[Array], turned: tuple[bool, bool]) -> tuple[Array, Array]:
    """The result in float64, and a bound of the error for each element."""
    wide = [a.astype(np.float64) for a in arrays]
    if len(wide) == 2:
        wide.insert(1, next(iter(graph.data.values())).astype(np.float64))
    x, w = (a.T if t else a for a, t in zip(wide[:2], turned, strict=True))
    epsilon = 2.0**-8 if arrays[0].dtype.itemsize == 2 else float(np.finfo(arrays[0].dtype).eps)
    exact = np.maximum(x @ w + wide[2], 0)
    return exact, epsilon * (4 * (np.abs(x) @ np.abs(w) + np.abs(wide[2])) + 1e-6)


def check(graph: Graph, arrays: list[Array], turned: tuple[bool, bool] = (False, False), target: str = "cpu") -> None:
    found = api.compile_graph(graph, target)(*arrays)
    exact, bound = expected(graph, arrays, turned)
    off = np.abs(found.astype(np.float64) - exact) > bound
    assert not off.any(), f"{off.sum()} of {off.size} elements are off, the first at {np.argwhere(off)[0]}"


SHAPES = [
    (1, 1, 1),
    (1, 64, 64),
    (2, 70, 33),
    (5, 40, 96),
    (13, 7, 31),
    (64, 400, 100),
    (130, 33, 528),
    (29, 2100, 70),
    (45, 1100, 300),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_layout(level: str, shape: tuple[int, int, int]) -> None:
    for turned in itertools.product((False, True), repeat=2):
        graph, arrays = product(*shape, turned=turned)
        check(graph, arrays, turned, target_of(level))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "shape", [(1, 300, 256), (3, 64, 64), (4, 9, 128), (70, 500, 96), (17, 64, 1056), (30, 2050, 64)], ids=str
)
def test_constants_in_panels(level: str, shape: tuple[int, int, int]) -> None:
    for turned in (False, True):
        graph, arrays = product(*shape, turned=(False, turned), constant=True)
        check(graph, arrays, (False, turned), target_of(level))


@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16], ids=str)
@pytest.mark.parametrize("constant", [False, True])
def test_types(dtype: DType, constant: bool) -> None:
    for shape in ((1, 100, 64), (9, 50, 96), (40, 420, 72), (20, 1030, 64)):
        for turned in itertools.product((False, True), repeat=2):
            graph, arrays = product(*shape, dtype, turned, constant)
            check(graph, arrays, turned)


@pytest.mark.full
@pytest.mark.parametrize("level", LEVELS)
def test_random_shapes(level: str) -> None:
    """Extents around the edges of tiles, panels and blocks."""
    edges = (1, 2, 5, 8, 12, 13, 14, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 250, 383, 384, 385, 513, 600)
    for _ in range(150):
        shape = tuple(int(RNG.choice(edges)) for _ in range(3))
        turned = bool(RNG.integers(2)), bool(RNG.integers(2))
        graph, arrays = product(*shape, turned=turned, constant=bool(RNG.integers(2)))  # type: ignore[misc]
        check(graph, arrays, turned, target_of(level))


def test_open_extents() -> None:
    """One compile for all sizes, on both sides of every edge."""
    F = GraphBuilder("open")
    m, k, n = map(symbol, "mkn")
    x, w = F.input("x", DType.FLOAT32, (m, k)), F.input("w", DType.FLOAT32, (k, n))
    F.output(F.matmul(x, w))
    compiled = api.compile_graph(F.build())
    for rows, depth, columns in ((1, 1, 1), (3, 385, 33), (13, 20, 512), (65, 384, 31), (600, 400, 520)):
        a, b = (RNG.standard_normal(s).astype(np.float32) for s in ((rows, depth), (depth, columns)))
        bound = 4 * np.finfo(np.float32).eps * (np.abs(a) @ np.abs(b) + 1e-6)
        assert (np.abs(compiled(a, b) - a.astype(np.float64) @ b) <= bound).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("heads", "size", "rows"),
    [(3, 64, 37), (12, 16, 37), (5, 48, 37), (2, 20, 37), (30, 32, 37), (64, 64, 3), (3, 64, 1)],
)
def test_heads_beside_each_other(level: str, heads: int, size: int, rows: int) -> None:
    """The depth runs over heads and their elements, which do not follow each other in memory."""
    F = GraphBuilder("projection")
    x = F.input("x", DType.FLOAT32, (2, heads, rows, size))
    w = RNG.standard_normal((heads * size, 32)).astype(np.float32)
    flat = F.reshape(F.transpose(x, axes=(0, 2, 1, 3)), shape=(2, rows, heads * size))
    F.output(F.matmul(flat, F.constant(w)))
    F.output(F.matmul(flat, F.input("v", DType.FLOAT32, w.shape)))
    given = RNG.standard_normal((2, heads, rows, size)).astype(np.float32)
    wanted = given.transpose(0, 2, 1, 3).reshape(2, rows, -1).astype(np.float64) @ w
    for found in api.compile_graph(F.build(), target_of(level))(given, w):
        assert np.allclose(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("depth", [40, 2100], ids=["in one block", "in several"])
@pytest.mark.parametrize("rows", [1, 3, 47])
def test_what_follows_on_each_tile(level: str, depth: int, rows: int) -> None:
    """Operands of every shape behind a product, whose own result is read once, or twice and is an output, too."""
    for shared in (False, True):
        F = GraphBuilder("epilogues")
        x, w = F.input("x", DType.FLOAT32, (2, rows, depth)), F.input("w", DType.FLOAT32, (depth, 75))
        row, column = F.input("row", DType.FLOAT32, (rows, 1)), F.input("column", DType.FLOAT32, (75,))
        full = F.input("full", DType.FLOAT32, (2, rows, 75))
        product = F.matmul(x, w)
        F.output(F.mul(F.tanh(F.add(F.mul(product, row), column)), full))
        if shared:
            F.output(product)
            F.output(F.sum(product, axes=(2,), keepdims=False))
        shapes = [(2, rows, depth), (depth, 75), (rows, 1), (75,), (2, rows, 75)]
        given = [RNG.standard_normal(shape).astype(np.float32) for shape in shapes]
        found = api.compile_graph(F.build(), target_of(level))(*given)
        wide = [a.astype(np.float64) for a in given]
        exact = wide[0] @ wide[1]
        wanted = [np.tanh(exact * wide[2] + wide[3]) * wide[4], exact, exact.sum(axis=2)]
        for got, want in zip(found if shared else [found], wanted, strict=False):
            assert np.allclose(got, want, rtol=1e-3, atol=3e-3)


def test_an_open_depth_may_be_nothing() -> None:
    """What follows then works on zeros."""
    F = GraphBuilder("open depth")
    x, w = F.input("x", DType.FLOAT32, (20, symbol("k"))), F.input("w", DType.FLOAT32, (symbol("k"), 40))
    F.output(F.add(F.matmul(x, w), F.input("b", DType.FLOAT32, (40,))))
    compiled = api.compile_graph(F.build())
    b = RNG.standard_normal(40).astype(np.float32)
    for depth in (0, 1, 31, 1024, 1025, 3000):
        a, c = (RNG.standard_normal(s).astype(np.float32) for s in ((20, depth), (depth, 40)))
        assert np.allclose(compiled(a, c, b), a.astype(np.float64) @ c + b, rtol=1e-4, atol=2e-3)


def test_batches_share_constants() -> None:
    F = GraphBuilder("batched")
    x = F.input("x", DType.FLOAT32, (3, 20, 40))
    shared, own = RNG.standard_normal((40, 64)), RNG.standard_normal((3, 64, 128))
    first = F.matmul(x, F.constant(shared.astype(np.float32)))
    F.output(F.matmul(first, F.constant(own.astype(np.float32))))
    graph = F.build()
    given = RNG.standard_normal((3, 20, 40)).astype(np.float32)
    assert np.allclose(api.compile_graph(graph)(given), given @ shared @ own, rtol=1e-4, atol=1e-3)


def test_nothing_leaks_from_what_lies_beside() -> None:
    """NaN in the columns and rows beside a view is not met, and NaN in an operand is."""
    x = np.full((20, 50), np.nan, np.float32)
    w = np.full((50, 70), np.nan, np.float32)
    x[:13, :33] = RNG.standard_normal((13, 33))
    w[:33, :37] = RNG.standard_normal((33, 37))
    F = GraphBuilder("views")
    a, b = F.input("x", DType.FLOAT32, x.shape), F.input("w", DType.FLOAT32, w.shape)
    F.output(
        F.matmul(
            F.slice(a, starts=(0, 0), stops=(13, 33), steps=(1, 1)),
            F.slice(b, starts=(0, 0), stops=(33, 37), steps=(1, 1)),
        )
    )
    found = api.compile_graph(F.build())(x, w)
    assert np.allclose(found, x[:13, :33] @ w[:33, :37], rtol=1e-4, atol=1e-4)
    x[4, 7] = np.nan
    assert (np.isnan(api.compile_graph(F.build())(x, w)).all(axis=1) == (np.arange(13) == 4)).all()


# -- choices ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("lanes", "registers"), [(16, 32), (8, 16), (4, 16), (4, 32)])
def test_register_tiles_fit_the_register_file(lanes: int, registers: int) -> None:
    for rows, columns in itertools.product((1, 2, 3, 4, 7, 12, 64, 100, 4096), (1, 8, 31, 64, 4096)):
        height, width = register_tile(rows, columns, lanes, registers)
        assert height * width + width + 1 <= registers
        assert 1 <= height <= rows
        assert width <= -(-columns // lanes)


def test_the_sum_of_a_large_product_is_one_tile_of_many_sums() -> None:
    assert register_tile(4096, 4096, 16, 32)[0] * register_tile(4096, 4096, 16, 32)[1] >= 16


def operators(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_layouts_are_assigned_to_constants_that_are_read_by_columns() -> None:
    graph, _ = product(8, 64, 256, constant=True)
    clean = passes.run(graph)
    laid = assign_layouts.run(clean, 128)
    (panels,) = (c for c in laid.constants if c.value.name.endswith("_panels"))
    assert panels.value.shape == (8, 64, 32)
    assert operators(laid)[:3] == ["transpose", "reshape", "matmul"]
    original, packed = clean.data[clean.constants[0].digest], laid.data[panels.digest]
    assert (packed.transpose(1, 0, 2).reshape(64, 256) == original).all()


@pytest.mark.parametrize("shape", [(8, 64, 250), (8, 4, 256)], ids=["columns that fill no panel", "too few rows"])
def test_other_constants_stay(shape: tuple[int, int, int]) -> None:
    clean = passes.run(product(*shape, constant=True)[0])
    assert assign_layouts.run(clean, 128) is clean
    assert assign_layouts.run(passes.run(product(8, 64, 256, constant=True)[0]), 0).constants[0].value.shape == (
        64,
        256,
    )


def test_one_copy_for_all_readers() -> None:
    F = GraphBuilder("shared")
    w: Any = F.constant(RNG.standard_normal((64, 64)).astype(np.float32))
    x = F.input("x", DType.FLOAT32, (16, 64))
    F.output(F.matmul(F.tanh(F.matmul(x, w)), w))
    graph = passes.lay_out(passes.run(F.build()), api.find_target("cpu"))
    assert len(graph.constants) == 1


DEEP = {  # and whether the work is worth the sharing, and its result small beside it
    (1, 65536, 64): True,
    (5, 10001, 37): True,
    (64, 16384, 64): True,
    (13, 40000, 1): True,
    (1, 1 << 20, 1): True,
    (13, 8192, 1): False,
    (48, 3000, 200): False,
}


@pytest.mark.parametrize("turned", list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("shape", DEEP)
def test_a_long_depth_is_summed_in_parts(shape: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    """Of a small result; the parts are the target's, so the numbers do not depend on the threads."""
    graph, arrays = product(*shape, turned=turned)
    check(graph, arrays, turned)
    run = api.compile_graph(graph)
    parts = " parts=" in str(run.explain())
    assert parts is DEEP[shape]  # the target counts two cores where there is one
    assert np.array_equal(run(*arrays, threads=1), run(*arrays, threads=2))


@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.INT32, DType.BFLOAT16, DType.FLOAT16])
def test_types_of_a_long_depth(dtype: DType) -> None:
    if dtype.is_float:
        check(*product(4, 9000, 33, dtype))
        return
    F = GraphBuilder("integers")
    x, w = (RNG.integers(-(2**31), 2**31, s, np.int32) for s in ((4, 9000), (9000, 33)))
    F.output(F.matmul(F.input("x", dtype, x.shape), F.input("w", dtype, w.shape)))
    assert np.array_equal(api.compile_graph(F.build())(x, w), x @ w)


@pytest.mark.parametrize("length", [7, 9, 16, 40, 208, 256, 320])
@pytest.mark.parametrize("side", ["columns", "rows"])
def test_an_axis_of_two_is_read_in_panels_of_any_width(side: str, length: int) -> None:
    """Batch and length are one axis of the product, two of what it reads: vectors reach into no neighbour."""
    F = GraphBuilder("merged")
    x = F.input("x", DType.FLOAT32, (2, 32, length))
    if side == "columns":
        w = F.input("w", DType.FLOAT32, (40, 32))
        F.output(F.matmul(w, F.reshape(F.transpose(x, axes=(1, 0, 2)), shape=(32, 2 * length))))
    else:
        w = F.input("w", DType.FLOAT32, (32, 40))
        F.output(F.matmul(F.reshape(F.transpose(x, axes=(0, 2, 1)), shape=(2 * length, 32)), w))
    graph = F.build()
    given = [RNG.standard_normal(value.shape).astype(np.float32) for value in graph.inputs]
    (expected,) = evaluate.run(graph, given)
    for level in LEVELS:
        (found,) = api.compile_graph(graph, target=f"cpu:{level}").run(given)
        assert_close(found, expected, 64)
