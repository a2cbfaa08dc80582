"""The cost model ranks clear cases right; nothing is timed here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tiled import CPU, only_group

from autofusion import dims
from autofusion.dtypes import DType
from autofusion.errors import ArgumentError
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.jit import explain, pipeline
from autofusion.jit.pipeline import Options
from autofusion.kernel.schedule import Analysis, Schedule, Tile, propose
from autofusion.target import ASCEND_910B, Target
from autofusion.tile import build
from autofusion.tile.cost import Cost, cost
from benchmarks.cost import Way, off_by, ranks, settled, spearman, text

F32 = DType.FLOAT32


def graph(make: Callable[..., Any], *shapes: tuple[dims.Dim, ...]) -> Graph:
    """Of a function of the builder and one input for each shape."""
    F = GraphBuilder("case")
    F.output(make(F, *(F.input(f"x{n}", F32, shape) for n, shape in enumerate(shapes))))
    return F.build()


def microseconds(case: Graph, fuse: bool = True, **options: Any) -> float:
    compilation = pipeline.lower_graph(case, CPU, Options(fuse=fuse, **options))
    return explain.predicted_us(compilation)


def scheduled(case: Graph, schedule: Schedule | None = None, target: Target = CPU) -> Cost:
    """Of a graph that is one group."""
    kernel = only_group(case, target)
    return cost(build.build(kernel, schedule or propose(kernel, target), target), target)


CHAIN = graph(lambda F, x, y: F.relu(F.add(F.mul(F.exp(x), y), 1.0)), (2048, 2048), (2048, 2048))
SOFTMAX = graph(lambda F, x: F.softmax(x), (4096, 1024))
PRODUCT = graph(lambda F, x, w, b: F.relu(F.add(F.matmul(x, w), b)), (512, 512), (512, 512), (512,))


@pytest.mark.parametrize("case", [CHAIN, SOFTMAX, PRODUCT], ids=["chain", "softmax", "product"])
def test_fused_costs_less_than_unfused(case: Graph) -> None:
    assert microseconds(case) < microseconds(case, fuse=False)


def test_rows_on_chip_cost_less_than_rows_walked_in_tiles() -> None:
    kernel = only_group(SOFTMAX)
    analysis = Analysis(kernel)
    row = analysis.outer[0]
    column = next(axis for axis in analysis.streamable if axis != row)
    resident = scheduled(SOFTMAX, Schedule((Tile(row, 8),), (), 64))
    streamed = scheduled(SOFTMAX, Schedule((Tile(row, 8),), (Tile(column, 128),), 64))
    assert resident.moving < streamed.moving and resident.computing < streamed.computing
    assert resident.total < streamed.total


def test_twice_the_rows_cost_twice_as_much() -> None:
    twice = graph(lambda F, x: F.softmax(x), (8192, 1024))
    assert scheduled(twice).total == pytest.approx(2 * scheduled(SOFTMAX).total, rel=0.01)


def test_what_stays_near_costs_less_a_byte() -> None:
    small = graph(lambda F, x: F.relu(x), (64, 1024))
    large = graph(lambda F, x: F.relu(x), (4096, 1024))
    assert scheduled(small).moving * 64 < scheduled(large).moving


def test_dear_operators_cost_more() -> None:
    cheap, dear = (graph(lambda F, x, op=op: getattr(F, op)(x), (64, 1024)) for op in ("abs", "tanh"))
    assert scheduled(cheap).computing < scheduled(dear).computing
    assert scheduled(cheap).moving == scheduled(dear).moving


def test_columns_cost_more_than_rows() -> None:
    """Elements that lie apart are read one by one."""
    plain = graph(lambda F, x: F.relu(x), (512, 512))
    turned = graph(lambda F, x: F.relu(F.transpose(x, axes=(1, 0))), (512, 512))
    assert scheduled(plain).computing < scheduled(turned).computing


def test_part_of_a_vector_costs_a_whole_one() -> None:
    odd, even = (graph(lambda F, x: F.exp(F.neg(x)), (256, columns)) for columns in (17, 32))
    whole = Schedule((Tile("i0", 256),), (), 1)
    assert scheduled(odd, whole).computing == pytest.approx(scheduled(even, whole).computing)


def test_products_count_multiply_adds() -> None:
    found = scheduled(PRODUCT)
    assert found.multiplying == pytest.approx(512**3 / CPU.contract_rate)
    assert found.total >= found.multiplying


def test_few_rows_read_the_other_operand_for_nothing() -> None:
    """A row of the left operand costs more than its share of many."""
    one, many = (graph(lambda F, x, w: F.matmul(x, w), (rows, 256), (256, 256)) for rows in (1, 96))
    assert scheduled(many).multiplying < 96 * scheduled(one).multiplying / 2


def test_columns_of_a_product_fill_whole_vectors() -> None:
    narrow, wide = (graph(lambda F, x, w: F.matmul(x, w), (96, 64), (64, columns)) for columns in (33, 48))
    assert scheduled(narrow).multiplying == pytest.approx(scheduled(wide).multiplying)


def test_filters_may_fill_the_vectors_that_a_narrow_image_does_not() -> None:
    def multiplying(width: int, filters: int) -> float:
        def conv(F: GraphBuilder, x: Any, w: Any) -> Any:
            return F.conv(x, w)

        return scheduled(graph(conv, (1, 16, 18, width + 2), (filters, 16, 3, 3))).multiplying

    assert multiplying(8, 32) == pytest.approx(multiplying(16, 32) / 2)
    assert multiplying(16, 24) == pytest.approx(multiplying(16, 32) * 24 / 32)
    assert multiplying(8, 24) == pytest.approx(multiplying(16, 32) / 2), "neither fills them"


def test_constants_in_panels_are_read_in_order() -> None:
    F = GraphBuilder("weights")
    F.output(F.matmul(F.input("x", F32, (64, 256)), F.constant(np.ones((256, 256), np.float32))))
    compilation = pipeline.lower_graph(F.build(), CPU)
    assert compilation.packed
    (group,) = compilation.groups
    assert cost(group.program, CPU).computing == 0


def test_workers_share_what_has_chunks() -> None:
    compilation = pipeline.lower_graph(CHAIN, CPU)
    alone, shared = (explain.predicted_us(compilation, workers=n) for n in (1, 2))
    assert alone / 2 <= shared < alone
    small = pipeline.lower_graph(graph(lambda F, x: F.relu(x), (4, 4)), CPU)
    assert explain.predicted_us(small, workers=2) == explain.predicted_us(small)


def test_open_extents_need_a_size() -> None:
    kernel = only_group(graph(lambda F, x: F.relu(x), (dims.symbol("n"), 64)))
    program = build.build(kernel, propose(kernel, CPU), CPU)
    assert cost(program, CPU, {"n": 10}).total < cost(program, CPU, {"n": 1000}).total
    with pytest.raises(ArgumentError, match="open extent n"):
        cost(program, CPU)


def test_two_units_of_an_ascend_chip() -> None:
    found = scheduled(PRODUCT, target=ASCEND_910B)
    assert found.multiplying > 0 and found.moving > 0


# -- the benchmark's figures -------------------------------------------------------------------------------------------
def test_ranks_of_equal_values_are_shared() -> None:
    assert ranks([3.0, 1.0, 3.0, 2.0]).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_values_within_the_noise_are_equal() -> None:
    assert settled([1.0, 1.04, 1.06, 2.0, 0.5]) == [2, 2, 3, 4, 1]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3], [1, 3, 2], 0.5),
        ([1, 2, 2, 3], [1, 2, 3, 4], 0.9486832980505138),  # with a tie, as Pearson's of the ranks
        ([1, 1, 1], [1, 2, 3], math.nan),
    ],
)
def test_rank_correlation(one: list[float], other: list[float], expected: float) -> None:
    assert spearman(one, other) == pytest.approx(expected, nan_ok=True)


def test_the_report() -> None:
    ways = [
        Way("a", "partition", 1.0, 2.0),
        Way("a", "unfused", 8.0, 4.0),
        Way("b", "partition", 3.0, 3.0),
    ]
    assert off_by(ways) == pytest.approx(4 ** (1 / 3))
    shown = text(ways)
    assert "rank correlation over 2 workloads: 1.000" in shown
    assert "least 1.000 (1 workloads)" in shown and "off by a factor of 1.59 (geometric mean of 3)" in shown
