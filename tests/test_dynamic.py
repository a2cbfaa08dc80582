"""One compile with symbolic extents serves every size; what the graph assumes of sizes is checked at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from oracle import assert_close, random_array

import autofusion as af
from autofusion import api, dims
from autofusion.dims import symbol
from autofusion.dtypes import Array, DType
from autofusion.errors import ArgumentError
from autofusion.graph import evaluate
from autofusion.graph.builder import GraphBuilder

F32 = DType.FLOAT32
SIZES = (0, 1, 2, 7, 16, 64, 65, 1000)
LONG = (4095, 4096, 4097, 9000)  # on both sides of the longest row that is on-chip as a whole

# name -> function, shapes with "n" and "m" for open dimensions, tolerance of the comparison with the reference
KERNELS: dict[str, tuple[Callable[..., Any], dict[str, tuple[Any, ...]], float]] = {
    "elementwise": (lambda x, y: af.relu(x * y + 1), {"x": ("n",), "y": ("n",)}, 1),
    "elementwise rows": (lambda x, y: x * y - x, {"x": ("n", 7), "y": (7,)}, 1),
    "elementwise inner": (lambda x, y: x * y - x, {"x": (5, "n"), "y": (5, 1)}, 1),
    "row softmax of open width": (lambda x: af.softmax(x, axis=-1), {"x": (4, "n")}, 32),
    "row softmax of open height": (lambda x: af.softmax(x, axis=-1), {"x": ("n", 33)}, 32),
    "column softmax": (lambda x: af.softmax(x, axis=0), {"x": ("n", 5)}, 32),
    "sum": (lambda x: af.sum(x), {"x": ("n", 3)}, 64),
    "mean and variance": (lambda x: (af.mean(x, axis=1), af.var(x, axis=1)), {"x": (3, "n")}, 64),
    "layer_norm": (lambda x, g, b: af.layer_norm(x, g, b), {"x": ("n", 40), "g": (40,), "b": (40,)}, 64),
    "layer_norm of open width": (lambda x, g, b: af.layer_norm(x, g, b), {"x": (3, "n"), "g": ("n",), "b": ("n",)}, 64),
    "matmul bias relu": (lambda x, w, b: af.relu(x @ w + b), {"x": ("n", 40), "w": (40, 24), "b": (24,)}, 64),
    "matmul of open columns": (lambda x, w: x @ w, {"x": (5, 9), "w": (9, "n")}, 64),
    "matmul of open depth": (lambda x, w: x @ w, {"x": (5, "n"), "w": ("n", 9)}, 256),
    "transposed": (lambda x: x.T + 1, {"x": ("n", 6)}, 1),
    "reversed part": (lambda x: x[1:] * 2, {"x": ("n", 6)}, 1),
    "concat": (lambda x, y: af.concat([x, y, x], axis=0) + 1, {"x": ("n", 6), "y": (3, 6)}, 1),
    "cumsum": (lambda x: af.cumsum(x, axis=0), {"x": ("n", 3)}, 64),
    "flattened": (lambda x: x.reshape(-1) * 2, {"x": ("n", 6)}, 1),
    "outer product": (lambda x, y: af.exp(x[:, None] * y[None, :]), {"x": ("n",), "y": ("m",)}, 8),
    "attention scores": (lambda q, k: af.softmax(q @ k.T, axis=-1), {"q": ("n", 16), "k": ("m", 16)}, 256),
    "a size in a value": (lambda x: af.mean(x * 3, axis=0), {"x": ("n", 4)}, 64),
}


def arrays_of(shapes: dict[str, tuple[Any, ...]], sizes: dict[str, int]) -> list[Array]:
    rng = np.random.default_rng(sizes["n"])
    return [random_array(rng, F32, tuple(sizes.get(d, d) for d in shape), (-1.0, 1.0)) for shape in shapes.values()]


def named(function: Callable[..., Any], names: Any) -> Callable[..., Any]:
    """The function with these parameter names, which `dynamic` refers to."""
    listed = ", ".join(names)
    return eval(f"lambda {listed}: function({listed})", {"function": function})  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", KERNELS)
def test_one_compile_serves_all_sizes(name: str) -> None:
    function, shapes, tolerance = KERNELS[name]
    dynamic = {argument: shape for argument, shape in shapes.items() if any(isinstance(d, str) for d in shape)}
    run = af.jit(named(function, shapes), dynamic=dynamic)
    two = any("m" in shape for shape in shapes.values())
    for n, m in ((a, b) for a in SIZES for b in ((a, 5, 0) if two else (0,))):
        arrays = arrays_of(shapes, {"n": n, "m": m})
        expected = listed(function(*arrays))
        for workers in (1, 2):
            for found, wanted in zip(listed(run(*arrays, threads=workers)), expected, strict=True):
                assert_close(found, np.asarray(wanted), tolerance)
    assert run.stats["variants"] == 1 and not run.recompiles


ROWS = 12  # enough that the rows themselves are shared between cores


@pytest.mark.parametrize("name", ["row softmax of open width", "layer_norm of open width", "mean and variance"])
def test_long_rows_of_open_width(name: str) -> None:
    function, narrow, tolerance = KERNELS[name]
    shapes = {argument: (ROWS, "n") if len(shape) == 2 else shape for argument, shape in narrow.items()}
    dynamic = {argument: shape for argument, shape in shapes.items() if any(isinstance(d, str) for d in shape)}
    run = af.jit(named(function, shapes), dynamic=dynamic)
    for n in LONG:
        arrays = arrays_of(shapes, {"n": n})
        for found, wanted in zip(listed(run(*arrays)), listed(function(*arrays)), strict=True):
            assert_close(found, np.asarray(wanted), 4 * tolerance)
    assert run.stats["variants"] == 1


def listed(result: Any) -> list[Array]:
    return list(result) if isinstance(result, tuple) else [result]


def test_two_open_dims_with_equal_sizes_are_two() -> None:
    run = af.jit(lambda x, y: (x.sum(axis=0), y.sum(axis=0)), dynamic={"x": ("n", 3), "y": ("m", 3)})
    for n, m in ((4, 4), (4, 9), (1, 1000)):
        x, y = np.ones((n, 3), np.float32), np.ones((m, 3), np.float32)
        first, second = run(x, y)
        assert first.tolist() == [n] * 3 and second.tolist() == [m] * 3
    assert run.stats["variants"] == 1


def test_sizes_that_must_agree_are_checked_at_each_call() -> None:
    run = af.jit(lambda x, y: x + y, dynamic={"x": ("n",), "y": ("m",)})
    for n in (5, 8):
        assert run(np.ones(n, np.float32), np.ones(n, np.float32)).tolist() == [2] * n
    with pytest.raises(ArgumentError, match=r"needs .* == .*5 and 6|needs .* == .*6 and 5"):
        run(np.ones(5, np.float32), np.ones(6, np.float32))


WRONG: tuple[tuple[str, tuple[Array, ...], str], ...] = (
    ("another fixed extent", (np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)), "x: axis 1 is 3, expected 2"),
    ("one symbol, two sizes", (np.ones((4, 2), np.float32), np.ones((5, 2), np.float32)), "y: axis 0 is 5, but n is 4"),
    ("another rank", (np.ones(4, np.float32), np.ones((4, 2), np.float32)), "x: rank 1, expected 2"),
    ("another type", (np.ones((4, 2)), np.ones((4, 2), np.float32)), "x: element type float64, expected float32"),
    ("too few", (np.ones((4, 2), np.float32),), "1 arguments given, expected 2: x, y"),
    ("too many", (np.ones((4, 2), np.float32),) * 3, "3 arguments given, expected 2: x, y"),
)


@pytest.mark.parametrize(("name", "arrays", "message"), WRONG, ids=[case[0] for case in WRONG])
def test_wrong_sizes_are_one_argument_error(name: str, arrays: tuple[Array, ...], message: str) -> None:
    x = np.ones((4, 2), np.float32)
    run = af.compile(lambda x, y: x + y, [x, x], dynamic={"x": ("n", 2), "y": ("n", 2)})
    with pytest.raises(ArgumentError) as caught:
        run(*arrays)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert run(x, x).tolist() == (x + x).tolist()


@pytest.mark.parametrize("n", (1, 3, 64))
@pytest.mark.parametrize("m", (1, 2, 65))
def test_two_symbols_in_one_graph_text(n: int, m: int) -> None:
    """A graph with products and sums of symbols as extents."""
    F = GraphBuilder("symbols")
    x = F.input("x", F32, (symbol("n"), symbol("m")))
    flat = F.reshape(x, shape=(-1,))
    both = F.concat(flat, flat, axis=0)
    F.output(F.mul(both, both))
    F.output(F.add(F.transpose(x), F.cast(F.iota(shape=(symbol("m"), symbol("n")), dtype=DType.INT64), dtype=F32)))
    graph = F.build()
    run = COMPILED.setdefault("symbols", api.compile_graph(graph))
    array = random_array(np.random.default_rng(0), F32, (n, m))
    for found, expected in zip(run.run([array]), evaluate.run(graph, [array]), strict=True):
        assert_close(found, expected, 0)


COMPILED: dict[str, Any] = {}


def test_an_index_may_pass_through_negative_numbers() -> None:
    """(-1) % m is m - 1, also in compiled index arithmetic."""
    F = GraphBuilder("wrapped")
    m = dims.symbol("m")
    x = F.input("x", DType.FLOAT32, (m,))
    start = dims.modulo(-1, m)
    F.output(F.copy(F.slice(x, starts=(start,), stops=(dims.add(start, 1),), steps=(1,))))
    compiled = api.compile_graph(F.build())
    for size in (1, 4, 7):
        array = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(compiled(array), array[-1:])
