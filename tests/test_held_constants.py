"""Weights are held once: packed ones without their originals, and what is held is said."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autofusion as af
from autofusion import api
from autofusion.dtypes import DType
from autofusion.graph.builder import GraphBuilder
from autofusion.target import ASCEND_910B

RNG = np.random.default_rng(0)
WIDTH, LAYERS = 512, 4
EACH = WIDTH * WIDTH * 4
X = RNG.standard_normal((8, WIDTH)).astype(np.float32)


def weights() -> list[Any]:
    return [RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 16 for _ in range(LAYERS)]


def layers(own: list[Any]) -> Any:
    def run(x: Any) -> Any:
        for weight in own:
            x = af.relu(x @ weight)
        return x

    return run


def expected(own: list[Any]) -> Any:
    found = X.astype(np.float64)
    for weight in own:
        found = np.maximum(found @ weight, 0)
    return found


def held_by(make: Any) -> tuple[Any, int]:
    """What is made, and the bytes that are alive with it and were not before."""
    gc.collect()
    tracemalloc.start()
    try:
        made = make()
        gc.collect()
        return made, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def onnx_file(folder: Path, own: list[Any]) -> str:
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    nodes = []
    for n in range(LAYERS):
        nodes.append(make.make_node("MatMul", [f"x{n}", f"w{n}"], [f"y{n}"]))
        nodes.append(make.make_node("Relu", [f"y{n}"], [f"x{n + 1}"]))
    ends = [make.make_tensor_value_info(f"x{n}", onnx.TensorProto.FLOAT, X.shape) for n in (0, LAYERS)]
    known = [onnx.numpy_helper.from_array(weight, f"w{n}") for n, weight in enumerate(own)]
    graph = make.make_graph(nodes, "layers", ends[:1], ends[1:], known)
    path = folder / "layers.onnx"
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 18)]), path)
    return str(path)


@pytest.mark.parametrize("way", ["function", "jit", "onnx"])
def test_a_models_weights_are_held_once(way: str, tmp_path: Path) -> None:
    own = weights()
    path = onnx_file(tmp_path, own) if way == "onnx" else ""
    ways = {
        "function": lambda: af.compile(layers(own), [X]),
        "jit": lambda: af.jit(layers(own)),
        "onnx": lambda: af.compile(path),
    }
    warm = ways[way]()
    warm(X)  # what compiling keeps for all models is there now
    del warm
    model, held = held_by(lambda: _called(ways[way]()))
    assert LAYERS * EACH <= held < (LAYERS + 1) * EACH
    np.testing.assert_allclose(model(X), expected(own), rtol=1e-4, atol=1e-4)


def _called(model: Any) -> Any:
    model(X)
    return model


def test_explain_says_what_is_held() -> None:
    own = weights()
    shift = RNG.standard_normal(WIDTH).astype(np.float32)
    found = af.compile(lambda x: layers(own)(x) + shift, [X]).explain()
    assert (found.constant_bytes, found.packed_bytes) == (LAYERS * EACH + shift.nbytes, LAYERS * EACH)
    assert f"constants: {found.constant_bytes:,} bytes, {found.packed_bytes:,} of them packed" in str(found)
    assert found.to_json()["packed_bytes"] == found.packed_bytes
    without = af.compile(lambda x: af.relu(x), [X]).explain()
    assert (without.constant_bytes, without.packed_bytes) == (0, 0) and "constants" not in str(without)


def test_an_original_that_something_else_reads_stays() -> None:
    """Rows of the table are looked up, and its columns are multiplied by."""
    table = weights()[0]
    at = np.array([3, 1, 200], np.int64)
    model = af.compile(lambda x, at: (x @ table, af.gather(table, at, axis=0)), [X, at])
    found = model.explain()
    assert (found.constant_bytes, found.packed_bytes) == (2 * EACH, EACH)
    product, rows = model(X, at)
    np.testing.assert_allclose(product, X.astype(np.float64) @ table, rtol=1e-4, atol=1e-4)
    assert np.array_equal(rows, table[at])


def test_weights_of_a_convolution_lie_tap_by_tap() -> None:
    """Held once, as the kernel reads them; those of one tap stay, and an original that something else reads."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 16, 12, 12)).astype(np.float32)
    for taps, packed in (((1, 1), False), ((3, 3), True)):
        weight = rng.standard_normal((24, 16, *taps)).astype(np.float32)
        model = af.compile(lambda x, w=weight: af.conv(x, w), [x])
        found = model.explain()
        assert (found.constant_bytes, found.packed_bytes) == (weight.nbytes, weight.nbytes * packed)
        windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), taps, (2, 3))
        np.testing.assert_allclose(model(x), np.einsum("nchwkl,ockl->nohw", windows, weight), rtol=1e-4, atol=1e-4)
    both = af.compile(lambda x: (af.conv(x, weight), weight * x[0, 0, 0, 0]), [x])
    found = both.explain()
    assert (found.constant_bytes, found.packed_bytes) == (2 * weight.nbytes, weight.nbytes)
    assert np.array_equal(both(x)[1], weight * x[0, 0, 0, 0])


def test_equal_weights_are_packed_once() -> None:
    weight = weights()[0]
    found = af.compile(lambda x: layers([weight, weight.copy()])(x), [X]).explain()
    assert (found.constant_bytes, found.packed_bytes) == (EACH, EACH)


def test_nothing_is_held_that_no_kernel_reads() -> None:
    """Also where int32 constants become int8 for a unit that widens them."""
    F = GraphBuilder("narrow")
    x = F.input("x", DType.INT8, (32, 64))
    weight = F.constant(RNG.integers(-5, 5, (64, 48)).astype(np.int32), "w")
    F.output(F.matmul(F.cast(x, dtype=DType.INT32), weight))
    for target in ("cpu", ASCEND_910B):
        compilation = api.lower_graph(F.build(), target)
        graph = compilation.graph
        assert graph.data.keys() == {constant.digest for constant in graph.constants}
        assert {constant.value.name for constant in graph.constants} <= compilation.plan.storages.keys()
        assert compilation.source.data.keys() <= graph.data.keys()


def test_the_callers_graph_keeps_its_data() -> None:
    F = GraphBuilder("kept")
    x = F.input("x", DType.FLOAT32, X.shape)
    own = weights()[0]
    F.output(F.matmul(x, F.constant(own, "w")))
    graph = F.build()
    one, other = api.compile_graph(graph), api.compile_graph(graph)
    assert np.array_equal(one(X), other(X)) and len(graph.data) == 1
    original = weakref.ref(next(iter(graph.data.values())))
    del F, graph, x
    gc.collect()
    assert original() is None
    np.testing.assert_allclose(one(X), X.astype(np.float64) @ own, rtol=1e-4, atol=1e-4)


def test_a_saved_model_holds_them_once(tmp_path: Path) -> None:
    own = weights()
    af.compile(layers(own), [X]).save(tmp_path / "model")
    model, held = held_by(lambda: _called(af.load(tmp_path / "model")))
    assert LAYERS * EACH <= held < (LAYERS + 1) * EACH
    np.testing.assert_allclose(model(X), expected(own), rtol=1e-4, atol=1e-4)
