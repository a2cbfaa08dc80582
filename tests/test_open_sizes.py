"""Models of open spatial extents: views of them stay small, and one compile of many layers serves every size."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import assert_close, random_array, unhurried

from autofusion import api, dims, onnx
from autofusion.autofuse.forms import Forms
from autofusion.dims import Dim, Shape, symbol
from autofusion.dtypes import Array, DType
from autofusion.errors import ArgumentError, ShapeError
from autofusion.graph import evaluate
from autofusion.graph import ir as graph_ir
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph, Value
from autofusion.jit.explain import estimates
from autofusion.ops import TABLE
from autofusion.passes import pipeline as passes

F32 = DType.FLOAT32


# -- reshapes side by side ---------------------------------------------------------------------------------------------
n, h, w = map(symbol, "nhw")
half, wide = dims.ceildiv(h, 2), w + 1
EXTENTS: tuple[Dim, ...] = (1, 2, 3, 4, n, half, wide)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """Two shapes of as many elements: both join neighbours of one list, each in its own way."""
    parts = draw(st.lists(st.sampled_from(EXTENTS), min_size=1, max_size=6))

    def joined() -> Shape:
        shape: list[Dim] = []
        for part in parts:
            if shape and draw(st.booleans()):
                shape[-1] = dims.multiply(shape[-1], part)
            else:
                shape += [1] * draw(st.integers(0, 1)) + [part]
        return (*shape, *[1] * draw(st.integers(0, 1)))

    return joined(), joined()


@unhurried
@given(reshapes(), st.fixed_dictionaries({name: st.integers(0, 4) for name in "nhw"}))
def test_a_reshape_reads_the_element_of_the_same_position(shapes: tuple[Shape, Shape], sizes: dict[str, int]) -> None:
    _, target = shapes
    names = [f"o{d}" for d in range(len(target))]
    index: list[Dim] = [0 if extent == 1 else symbol(name) for name, extent in zip(names, target, strict=True)]
    bounds = {name: extent for name, extent in zip(names, target, strict=True) if extent != 1}
    view = TABLE.get("reshape").view
    assert view is not None
    found = view(index, list(shapes), {"shape": target}, bounds)
    given, made = (tuple(int(dims.evaluate(d, sizes)) for d in shape) for shape in shapes)
    assert math.prod(given) == math.prod(made)
    positions = np.arange(math.prod(given)).reshape(given)
    for at in np.ndindex(made):
        place = tuple(int(dims.evaluate(i, sizes | dict(zip(names, at, strict=True)))) for i in found)
        assert positions[place] == np.ravel_multi_index(at, made)


def test_a_side_that_does_not_change_is_read_as_it_is() -> None:
    """Nearest neighbours, twice as many along both open axes: no division is by an open extent."""
    view = TABLE.get("reshape").view
    assert view is not None
    tall, long = dims.ceildiv(h, 8), dims.ceildiv(w, 8)
    index: list[Dim] = [symbol(f"o{d}") for d in range(4)]
    shapes = [(n, 24, tall, 2, long, 2), (n, 24, tall * 2, long * 2)]
    bounds = dict(zip(["o0", "o1", "o2", "o3"], shapes[1], strict=True))
    o0, o1, o2, o3 = map(symbol, bounds)
    assert view(index, shapes, {"shape": shapes[1]}, bounds) == [o0, o1, o2 // 2, o2 % 2, o3 // 2, o3 % 2]


# -- layers behind each other ------------------------------------------------------------------------------------------
LAYERS = (  # channels in and out, taps, stride, padding, groups
    (3, 8, 3, 2, 1, 1),
    (8, 8, 3, 1, 1, 8),
    (8, 12, 1, 1, 0, 1),
    (12, 12, 5, 2, 2, 12),
    (12, 8, 3, 2, 0, 1),
    (8, 8, 3, 3, 1, 2),
    (8, 4, 2, 2, 1, 1),
    (4, 4, 3, 1, 1, 1),
)
SIZES = ((1, 64, 64), (2, 100, 71), (3, 33, 130), (1, 9, 17))


def convolutions(batch: Dim, rows: Dim, columns: Dim) -> Graph:
    F, rng = GraphBuilder("convolutions"), np.random.default_rng(0)
    x = F.input("x", F32, (batch, 3, rows, columns))
    for taken, made, taps, stride, pad, groups in LAYERS:
        scale = 1 / math.sqrt(taken // groups * taps * taps)
        weights = F.constant(random_array(rng, F32, (made, taken // groups, taps, taps), (-scale, scale)))
        bias = F.constant(random_array(rng, F32, (made,), (-1.0, 1.0)))
        x = F.conv(x, weights, bias, strides=(stride, stride), pads=(pad,) * 4, groups=groups)
        x = F.maximum(x, 0.0)
    F.output(x)
    return F.build()


@pytest.fixture(scope="module")
def any_size() -> api.Compiled:
    return api.compile_graph(convolutions(n, h, w))


@pytest.mark.parametrize("sizes", SIZES)
def test_many_convolutions_of_open_extents(any_size: api.Compiled, sizes: tuple[int, int, int]) -> None:
    x = image(sizes)
    (expected,) = evaluate.run(convolutions(*sizes), [x])
    assert expected.any()
    for found in (any_size(x), api.compile_graph(convolutions(*sizes))(x)):
        assert_close(found, expected, 256)


def test_an_extent_that_is_none_is_one_argument_error(any_size: api.Compiled) -> None:
    """Without padding, a window of three taps has no place in one row: the graph says so in a guard."""
    with pytest.raises(ArgumentError, match="the graph needs"):
        any_size(image((1, 0, 64)))


def image(sizes: tuple[int, int, int]) -> Array:
    batch, rows, columns = sizes
    return random_array(np.random.default_rng(1), F32, (batch, 3, rows, columns), (-1.0, 1.0))


def test_the_text_of_many_convolutions_reads_back() -> None:
    graph = passes.run(convolutions(n, h, w))
    assert graph_ir.parse(str(graph), graph.data) == graph


def pyramid(rows: Dim, columns: Dim) -> Graph:
    """Halved four times, and each back to the size above it by its neighbours, as detectors do."""
    F = GraphBuilder("pyramid")
    levels = [F.input("x", F32, (n, 4, rows, columns))]
    for _ in range(4):
        x = levels[-1]
        levels.append(F.max_pool(x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)))
    x = levels.pop()
    while levels:
        x = F.add(doubled(F, x), levels.pop())
    F.output(x)
    return F.build()


def doubled(F: GraphBuilder, x: Value) -> Value:
    batch, channels, rows, columns = x.shape
    x = F.reshape(x, shape=(batch, channels, rows, 1, columns, 1))
    x = F.expand(x, shape=(batch, channels, rows, 2, columns, 2))
    return F.reshape(x, shape=(batch, channels, dims.multiply(rows, 2), dims.multiply(columns, 2)))


def test_extents_that_go_down_and_up_again() -> None:
    compiled = api.compile_graph(pyramid(h, w))
    for rows, columns in ((32, 48), (16, 16), (80, 112)):
        x = random_array(np.random.default_rng(0), F32, (2, 4, rows, columns))
        assert_close(compiled(x), evaluate.run(pyramid(h, w), [x])[0], 4)
    with pytest.raises(ArgumentError, match="the graph needs"):
        compiled(np.zeros((2, 4, 20, 48), np.float32))


def test_indices_do_not_grow_with_the_layers() -> None:
    """What an operator reads is written in its own axes and extents, however many layers are above it."""
    for graph in (convolutions(n, h, w), pyramid(h, w)):
        forms = Forms(passes.run(graph))
        reads = [o for node in forms.compute_nodes() for region in forms.of(node).regions for o in region.operands]
        assert max(len(str(i)) for read in reads for i in read.index) <= 60


def test_an_explanation_assumes_sizes_that_can_be_counted() -> None:
    F = GraphBuilder("many")
    F.output(F.exp(F.input("x", F32, tuple(map(symbol, "abcde")))))
    graph = F.build()
    assert set(estimates(graph, {}).values()) == {16}
    assert estimates(graph, {"a": 7, "b": 1, "c": 1}) == {"a": 7, "b": 1, "c": 1, "d": 512, "e": 512}
    assert api.compile_graph(graph).explain().gm_bytes == 2 * 4 * 16**5


def test_a_tile_of_one_element_is_one_whatever_the_extent() -> None:
    """No `let i_n = min(n - i_o, 1)`: code generation knows the extents, and picks its kernels by them."""
    for group in api.lower_graph(convolutions(n, h, w)).groups:
        lets = [line for line in str(group.program).splitlines() if line.strip().startswith("let")]
        partial = {line.split()[1] for line in lets}
        assert lets and not {f"{t.axis}_n" for t in group.schedule.outer if t.size == 1} & partial


# -- a part of an open extent ------------------------------------------------------------------------------------------
def framed(rows: Dim, value: Shape, stop: Dim) -> Graph:
    F = GraphBuilder("framed")
    x, y = F.input("x", F32, (rows, 3)), F.input("y", F32, value)
    F.output(F.slice_update(x, y, starts=(1, 0), stops=(stop, 3), steps=(1, 1)))
    return F.build()


def test_a_value_fits_a_region_of_open_extent_by_a_guard() -> None:
    graph = framed(h, (w, 3), h - 1)
    assert [(str(g.left), str(g.right)) for g in graph.guards] == [("w", "max(0,h-2)")]
    compiled = api.compile_graph(graph)
    for rows in (2, 3, 9):
        x, y = (random_array(np.random.default_rng(i), F32, (size, 3)) for i, size in enumerate((rows, rows - 2)))
        np.testing.assert_array_equal(compiled(x, y), evaluate.run(graph, [x, y])[0])
    with pytest.raises(ArgumentError, match="the graph needs"):
        compiled(np.zeros((9, 3), np.float32), np.zeros((6, 3), np.float32))


@pytest.mark.parametrize("value", [(2, h, 3), (h, 4), (5, 3)])
def test_a_value_that_cannot_fit_a_region_is_refused(value: Any) -> None:
    with pytest.raises(ShapeError):
        framed(8, value, 7)


# -- real files --------------------------------------------------------------------------------------------------------
READERS = {
    "ch_ppocr_mobile_v2.0_cls_infer": ((1, 3, 48, 192), (3, 3, 48, 100)),
    "ch_PP-OCRv4_rec_infer": ((1, 3, 48, 320), (2, 3, 48, 77)),
    "ch_PP-OCRv4_det_infer": ((1, 3, 96, 96), (2, 3, 64, 160)),
}


@pytest.mark.full
@pytest.mark.parametrize("name", READERS)
def test_one_compile_of_a_text_reader_serves_images_of_all_sizes(name: str) -> None:
    """All dimensions open, against ONNX Runtime."""
    runtime = pytest.importorskip("onnxruntime")
    package = importlib.util.find_spec("rapidocr_onnxruntime")
    if package is None or not package.submodule_search_locations:
        pytest.skip("rapidocr_onnxruntime is not installed: pip install --no-deps -r tests/models.txt")
    path = Path(next(iter(package.submodule_search_locations))) / "models" / f"{name}.onnx"
    compiled = api.compile_graph(onnx.read(path))
    assert compiled.compilation is not None and compiled.compilation.milliseconds["lower"] < 20_000
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(path), options)
    for shape in READERS[name]:
        x = random_array(np.random.default_rng(0), F32, shape, (-1.0, 1.0))
        for found, expected in zip(
            compiled.run([x]), session.run(None, {session.get_inputs()[0].name: x}), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
