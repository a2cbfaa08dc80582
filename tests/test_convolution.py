"""Convolutions on a CPU: the channels of the result are the rows of its tiles, whatever else the kernel holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from oracle import assert_close
from tiled import CPU, execute, only_group

from autofusion import api
from autofusion.dims import symbol
from autofusion.dtypes import DType
from autofusion.graph import evaluate
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.jit import pipeline
from autofusion.kernel.ir import Contract
from autofusion.kernel.schedule import Analysis, propose
from autofusion.targets.cpu import host
from autofusion.targets.cpu.gemm import Gemm
from autofusion.targets.cpu.turned import Turned

F32 = DType.FLOAT32


def convolution(
    batch: int,
    channels: int,
    side: int,
    filters: int,
    tap: int = 3,
    rank: int = 2,
    constant: bool = False,
    **options: Any,
) -> Graph:
    """relu(conv(x) + b), over images of `rank` axes."""
    F = GraphBuilder("convolution")
    groups, pad = options.get("groups", 1), 0 if options.pop("unpadded", False) else tap // 2
    x = F.input("x", F32, (batch, channels, *(side,) * rank))
    shape = (filters, channels // groups, *(tap,) * rank)
    weights = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    w = F.constant(weights) if constant else F.input("w", F32, shape)
    b = F.input("b", F32, (filters, *(1,) * rank))
    F.output(F.relu(F.add(F.conv(x, w, pads=(pad,) * 2 * rank, **options), b)))
    return F.build()


def transposed(channels: int, side: int, filters: int) -> Graph:
    F = GraphBuilder("transposed")
    x, w = F.input("x", F32, (1, channels, side, side)), F.input("w", F32, (channels, filters, 3, 3))
    F.output(F.conv_transpose(x, w, strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 1)))
    return F.build()


def block(channels: int, side: int) -> Graph:
    """Two convolutions around which the input goes."""
    F = GraphBuilder("block")
    x = F.input("x", F32, (1, channels, side, side))
    w, v = (F.input(name, F32, (channels, channels, 3, 3)) for name in "wv")
    inner = F.relu(F.conv(x, w, pads=(1, 1, 1, 1)))
    F.output(F.relu(F.add(F.conv(inner, v, pads=(1, 1, 1, 1)), x)))
    return F.build()


def separable(channels: int, side: int, filters: int) -> Graph:
    """A convolution of each channel, and one of one tap over all of them."""
    F, rng = GraphBuilder("separable"), np.random.default_rng(1)
    x = F.input("x", F32, (1, channels, side, side))
    each, across = (
        F.constant(rng.standard_normal(shape).astype(np.float32))
        for shape in ((channels, 1, 3, 3), (filters, channels, 1, 1))
    )
    deep = F.relu(F.conv(x, each, pads=(1, 1, 1, 1), groups=channels))
    F.output(F.conv(deep, across))
    return F.build()


def pooled(side: int, filters: int) -> Graph:
    """The first layers of a ResNet."""
    F = GraphBuilder("pooled")
    x, w = F.input("x", F32, (1, 3, side, side)), F.input("w", F32, (filters, 3, 7, 7))
    deep = F.relu(F.conv(x, w, pads=(3, 3, 3, 3), strides=(2, 2)))
    F.output(F.max_pool(deep, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)))
    return F.build()


CASES = {
    "square": convolution(1, 16, 14, 16),
    "wide": convolution(1, 8, 40, 24),
    "batch": convolution(3, 8, 9, 20),
    "large": convolution(1, 64, 56, 64),
    "strided": convolution(1, 8, 21, 16, strides=(2, 2)),
    "grouped": convolution(1, 12, 15, 24, groups=3),
    "depthwise": convolution(1, 16, 15, 16, groups=16),
    "pointwise": convolution(2, 32, 13, 48, tap=1),
    "one filter": convolution(1, 16, 20, 1),
    "one channel": convolution(1, 1, 28, 32, tap=5),
    "three channels": convolution(2, 3, 32, 30),
    "many filters": convolution(1, 64, 16, 128),
    "many weights": convolution(1, 130, 6, 300),
    "very many weights": convolution(1, 300, 7, 300),
    "even taps": convolution(1, 8, 17, 20, tap=4),
    "dilated": convolution(1, 24, 19, 40, dilations=(2, 3)),
    "strided along columns": convolution(1, 24, 33, 40, strides=(1, 2)),
    "strided along rows": convolution(1, 24, 33, 40, strides=(2, 1)),
    "far strided": convolution(1, 24, 40, 40, strides=(1, 3)),
    "groups of many": convolution(2, 64, 18, 96, groups=2),
    "of one axis": convolution(2, 20, 100, 44, tap=5, rank=1),
    "of three axes": convolution(1, 6, 11, 20, rank=3),
    "constant": convolution(2, 32, 20, 48, constant=True),
    "constant, of one tap": convolution(2, 32, 20, 48, tap=1, constant=True),
    "constant, in panels": convolution(2, 32, 20, 64, constant=True),
    "constant, narrow": convolution(3, 64, 8, 128, constant=True),
    "constant, one pixel wide": convolution(1, 16, 3, 64, constant=True, unpadded=True),
    "constant, of many panels": convolution(1, 40, 7, 320, constant=True),
    "constant, an odd number of panels": convolution(1, 24, 30, 160, constant=True),
    "constant, an odd number of panels, narrow": convolution(1, 128, 3, 160, constant=True),
    "constant, filters tiled": convolution(1, 64, 60, 96, constant=True),
    "constant, groups": convolution(2, 64, 18, 128, groups=2, constant=True),
    "constant, far strided": convolution(1, 24, 40, 64, strides=(1, 3), constant=True),
    "constant, dilated": convolution(1, 24, 19, 64, dilations=(2, 3), constant=True),
    "constant, of a line": convolution(2, 32, 100, 64, tap=5, rank=1, constant=True),
    "constant, of three axes": convolution(1, 16, 9, 32, rank=3, constant=True),
    "constant, of many channels": convolution(1, 1100, 5, 32, constant=True),
    "transposed": transposed(24, 12, 20),
    "block": block(16, 14),
    "separable": separable(24, 14, 40),
    "large separable": separable(576, 14, 96),
    "pooled": pooled(40, 12),
    "four filters": convolution(1, 3, 41, 4, tap=7, strides=(2, 2)),
    "large block": block(64, 56),
}


def arrays_for(graph: Graph) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(value.shape).astype(np.float32) for value in graph.inputs]


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", CASES)
def test_compiled(name: str, fuse: bool) -> None:
    """Against the reference; on one worker and on several to the bit."""
    graph = CASES[name]
    model, given = api.compile_graph(graph, fuse=fuse), arrays_for(graph)
    found = model.run(given)
    for each, expected in zip(found, evaluate.run(graph, given), strict=True):
        assert_close(each, expected, 4096)
    for threads in (1, 2):
        for each, other in zip(found, model.run(given, threads), strict=True):
            assert np.array_equal(each, other)


@pytest.mark.parametrize("level", [n for n in ("sse2", "avx2", "avx512") if host.runs(host.named(n))])
@pytest.mark.parametrize(
    "name",
    [
        "three channels",
        "strided",
        "strided along columns",
        "dilated",
        "many filters",
        "groups of many",
        "constant",
        "constant, in panels",
        "constant, narrow",
        "constant, an odd number of panels",
    ],
)
def test_levels(name: str, level: str) -> None:
    """Registers of other widths and counts."""
    graph = CASES[name]
    given = arrays_for(graph)
    (found,) = api.compile_graph(graph, target=f"cpu:{level}").run(given)
    (expected,) = evaluate.run(graph, given)
    assert_close(found, expected, 4096)


@pytest.mark.parametrize("name", ["square", "strided", "grouped", "depthwise", "pointwise", "block"])
def test_interpreted(name: str) -> None:
    graph = CASES[name]
    given = arrays_for(graph)
    for each, expected in zip(execute(graph, given).outputs, evaluate.run(graph, given), strict=True):
        assert_close(each, expected, 4096)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[Gemm]:
    """The products that are emitted; nothing is found in a cache."""
    monkeypatch.setenv("AUTOFUSION_CACHE_DIR", "")
    made: list[Gemm] = []
    emit = Gemm.emit
    monkeypatch.setattr(Gemm, "emit", lambda self: (made.append(self), emit(self))[1])
    return made


def summed(kernel: Gemm) -> tuple[bool, bool, int]:
    """Whether tiles are turned; whether weights are packed for all taps; taps that are summed over in a row."""
    turned = isinstance(kernel, Turned)
    taps = [axis for axis in kernel.inside if not turned or axis not in kernel.apart]
    return turned, kernel.packs if turned else kernel.held > 0, math.prod(int(str(axis.extent)) for axis in taps)


@pytest.mark.parametrize(
    ("graph", "taps"),
    [
        (convolution(1, 16, 32, 30), (False, True, 9)),
        (convolution(1, 16, 14, 30), (True, True, 9)),
        (convolution(1, 3, 31, 30, constant=True), (False, True, 9)),
        (convolution(1, 60, 58, 32, unpadded=True), (True, True, 3)),  # 180 terms, 540 with all taps
        (convolution(1, 64, 56, 64, constant=True, unpadded=True), (True, False, 3)),  # in panels
        (convolution(1, 24, 33, 20, strides=(2, 2)), (True, True, 9)),
        (convolution(1, 24, 34, 30, unpadded=True, strides=(1, 3)), (True, True, 9)),
        (
            convolution(1, 24, 98, 30, unpadded=True, strides=(1, 3)),
            (False, True, 1),
        ),  # columns are packed, tap after tap
        (convolution(1, 16, 14, 30, tap=1), (False, False, 1)),
        (convolution(1, 16, 6, 64), (True, True, 9)),
        (convolution(1, 16, 5, 64), (False, False, 1)),  # 25 pixels do not pay for packing filters
    ],
)
def test_taps_are_summed_over_in_registers(kernels: list[Gemm], graph: Graph, taps: tuple[bool, bool, int]) -> None:
    given = arrays_for(graph)
    (found,) = api.compile_graph(graph).run(given)
    assert [summed(kernel) for kernel in kernels] == [taps]
    (expected,) = evaluate.run(graph, given)
    assert_close(found, expected, 4096)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("constant, ") and "one" not in name])
def test_constant_filters_are_read_where_they_lie(kernels: list[Gemm], name: str) -> None:
    api.compile_graph(CASES[name])
    assert kernels
    assert all(isinstance(kernel, Turned) and not kernel.packs for kernel in kernels)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=str)
@pytest.mark.parametrize("width", range(1, 34, 4))
def test_images_of_any_width(width: int, dtype: DType) -> None:
    """Tiles of pixels and what is left of them; sums of small integers."""
    F = GraphBuilder("width")
    rng = np.random.default_rng(0)
    x = F.input("x", dtype, (2, 16, 9, width + 2))
    w = F.constant(rng.integers(-1, 2, (64, 16, 3, 3)).astype(dtype.numpy))
    F.output(F.conv(x, w))
    graph = F.build()
    given = [rng.integers(-1, 2, graph.inputs[0].shape).astype(dtype.numpy)]
    (found,) = api.compile_graph(graph).run(given)
    assert np.array_equal(found, evaluate.run(graph, given)[0])


@pytest.mark.parametrize(("channels", "tap", "filters"), [(128, 7, 40), (32, 14, 32), (300, 3, 16)])
def test_long_sums_are_accurate(channels: int, tap: int, filters: int) -> None:
    """Of thousands of terms that all are positive, so that nothing cancels."""
    F = GraphBuilder("long")
    x, w = F.input("x", F32, (1, channels, 20, 20)), F.input("w", F32, (filters, channels, tap, tap))
    F.output(F.conv(x, w, pads=(tap // 2,) * 4))
    graph = F.build()
    rng = np.random.default_rng(0)
    given = [rng.random(value.shape, np.float32) for value in graph.inputs]
    (found,) = api.compile_graph(graph).run(given)
    (expected,) = evaluate.run(graph, [each.astype(np.float64) for each in given])
    assert np.max(np.abs(found - expected) / expected) < 2e-6


@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16, DType.INT32], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [3, 40])
def test_other_types(dtype: DType, stride: int, channels: int) -> None:
    F = GraphBuilder("types")
    x, w = F.input("x", dtype, (2, channels, 18, 18)), F.input("w", dtype, (33, channels, 3, 3))
    F.output(F.conv(x, w, pads=(1, 1, 1, 1), strides=(stride, stride)))
    graph = F.build()
    rng = np.random.default_rng(0)
    given = [rng.integers(-1, 2, value.shape).astype(dtype.numpy) for value in graph.inputs]
    (found,) = api.compile_graph(graph).run(given)
    (expected,) = evaluate.run(graph, given)
    assert np.array_equal(found, expected)  # sums of small integers


@pytest.mark.parametrize("stride", [1, 2])
def test_open_sizes(stride: int) -> None:
    """Of the batch and of the image."""
    F = GraphBuilder("open")
    n, h = symbol("n"), symbol("h")
    x, w = F.input("x", F32, (n, 16, h, h)), F.input("w", F32, (40, 16, 3, 3))
    F.output(F.relu(F.conv(x, w, pads=(1, 1, 1, 1), strides=(stride, stride))))
    graph = F.build()
    model, rng = api.compile_graph(graph), np.random.default_rng(0)
    for batch, side in ((1, 5), (3, 20), (2, 33)):
        given = [rng.standard_normal(shape).astype(np.float32) for shape in ((batch, 16, side, side), (40, 16, 3, 3))]
        for found, expected in zip(model.run(given), evaluate.run(graph, given), strict=True):
            assert_close(found, expected, 4096)


@pytest.mark.parametrize("name", ["large", "large block"])
def test_a_tile_has_many_channels(name: str) -> None:
    """An input that is padded on-chip is walked through in tiles; then each is read for many channels, too."""
    compilation = pipeline.lower_graph(CASES[name], CPU)
    made = [g.lowered.kernel for g in compilation.groups if Analysis(g.lowered.kernel).contractions]
    assert made
    for kernel in made:
        (main,) = Analysis(kernel).contractions
        channel = str(main.target.index[2])
        tiles = {tile.axis: tile.size for tile in propose(kernel, CPU).outer}
        assert tiles.get(channel, 64) >= 16


@pytest.mark.parametrize("size", [(24, 14, 40), (576, 14, 96)], ids=["small", "large"])
def test_what_a_tile_would_do_again_is_not_cut(size: tuple[int, int, int]) -> None:
    """All filters read what the first convolution made, which no smaller tile makes smaller."""
    kernels = [g.lowered.kernel for g in pipeline.lower_graph(separable(*size), CPU).groups]
    for kernel in kernels:
        if len(Analysis(kernel).contractions) == 2:
            tiles = {tile.axis: tile.size for tile in propose(kernel, CPU).outer}
            main = Analysis(kernel).contractions[-1]
            assert all(tiles.get(str(index), 96) >= 20 for index in main.target.index[1:3])


def test_few_filters_are_a_product(kernels: list[Gemm]) -> None:
    """Not dot products of windows, though columns lie two elements apart."""
    graph = CASES["four filters"]
    given = arrays_for(graph)
    (found,) = api.compile_graph(graph).run(given)
    assert len(kernels) == 1
    assert_close(found, evaluate.run(graph, given)[0], 4096)


def test_rows_of_a_product_are_rows() -> None:
    """The last but one axis of the result, of a batch as well."""
    F = GraphBuilder("products")
    x, w = F.input("x", F32, (300, 128, 64)), F.input("w", F32, (300, 64, 256))
    F.output(F.relu(F.matmul(x, w)))
    kernel = only_group(F.build())
    (main,) = [s for s in kernel.statements if isinstance(s, Contract)]
    batch, rows, columns = (str(i) for i in main.target.index)
    assert {t.axis: t.size for t in propose(kernel, CPU).outer} == {batch: 1, rows: 128, columns: 256}


def test_a_square_product_is_halved_along_its_columns() -> None:
    """So that the right operand is packed once."""
    F = GraphBuilder("square")
    F.output(F.matmul(F.input("x", F32, (1024, 512)), F.input("w", F32, (512, 1024))))
    kernel = only_group(F.build())
    (main,) = [s for s in kernel.statements if isinstance(s, Contract)]
    rows, columns = (str(i) for i in main.target.index)
    tiles = {t.axis: t.size for t in propose(kernel, CPU).outer}
    assert tiles[rows] == 1024 and tiles[columns] == 1024 // CPU.cores


def test_a_tile_has_many_rows_of_an_image() -> None:
    """Without padding: cores share the rows of the image, whose filters they all have."""
    kernel = only_group(convolution(1, 64, 58, 64, unpadded=True))
    (main,) = [s for s in kernel.statements if isinstance(s, Contract)]
    _, _, channels, height, width = (str(i) for i in main.target.index)
    tiles = {t.axis: t.size for t in propose(kernel, CPU).outer}
    assert (tiles[channels], tiles[height], tiles[width]) == (64, 56 // CPU.cores, 56)
