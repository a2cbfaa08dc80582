"""Convolutions on a CPU: the channels of the result are the rows of its tiles, whatever else the kernel holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle import assert_close
from tiled import CPU, execute, only_group

from autofusion import api
from autofusion.dtypes import DType
from autofusion.graph import evaluate
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.jit import pipeline
from autofusion.kernel.ir import Contract
from autofusion.kernel.schedule import Analysis, propose

F32 = DType.FLOAT32


def convolution(batch: int, channels: int, side: int, filters: int, tap: int = 3, **options: Any) -> Graph:
    """relu(conv(x) + b), with a residual where the sizes are the same."""
    F = GraphBuilder("convolution")
    groups = options.get("groups", 1)
    x = F.input("x", F32, (batch, channels, side, side))
    w, b = F.input("w", F32, (filters, channels // groups, tap, tap)), F.input("b", F32, (filters, 1, 1))
    F.output(F.relu(F.add(F.conv(x, w, pads=(tap // 2,) * 4, **options), b)))
    return F.build()


def block(channels: int, side: int) -> Graph:
    """Two convolutions around which the input goes."""
    F = GraphBuilder("block")
    x = F.input("x", F32, (1, channels, side, side))
    w, v = (F.input(name, F32, (channels, channels, 3, 3)) for name in "wv")
    inner = F.relu(F.conv(x, w, pads=(1, 1, 1, 1)))
    F.output(F.relu(F.add(F.conv(inner, v, pads=(1, 1, 1, 1)), x)))
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
    "block": block(16, 14),
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


@pytest.mark.parametrize("name", ["square", "strided", "grouped", "depthwise", "pointwise", "block"])
def test_interpreted(name: str) -> None:
    graph = CASES[name]
    given = arrays_for(graph)
    for each, expected in zip(execute(graph, given).outputs, evaluate.run(graph, given), strict=True):
        assert_close(each, expected, 4096)


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


def test_rows_of_a_product_are_rows() -> None:
    """The last but one axis of the result, of a batch as well."""
    F = GraphBuilder("products")
    x, w = F.input("x", F32, (300, 128, 64)), F.input("w", F32, (300, 64, 256))
    F.output(F.relu(F.matmul(x, w)))
    kernel = only_group(F.build())
    (main,) = [s for s in kernel.statements if isinstance(s, Contract)]
    batch, rows, columns = (str(i) for i in main.target.index)
    assert {t.axis: t.size for t in propose(kernel, CPU).outer} == {batch: 1, rows: 128, columns: 256}
