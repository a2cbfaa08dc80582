"""The cube of the Ascend target: products of integers, and how results leave it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from ascend import CHIPS, check, compiled, fallbacks, reports, sources, together
from oracle import assert_bits, assert_close
from test_compiled import PRODUCTS

from autofusion import api
from autofusion.dtypes import Array, DType
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph, Value
from autofusion.runtime import aicore

B910, B950 = CHIPS
F32, F16, I8, I32 = DType.FLOAT32, DType.FLOAT16, DType.INT8, DType.INT32
# rows, depth, columns: ones, tails of fractals (16 by 32 bytes), a last block of one row, more than one block of depth
SIZES = ((1, 1, 1), (17, 33, 19), (1, 40, 5), (33, 64, 1), (129, 100, 65), (64, 1, 3), (130, 513, 47), (3, 70, 300))


@pytest.fixture(autouse=True)
def available() -> None:
    if reason := aicore.unavailable():
        pytest.skip(reason)


def numbers(graph: Graph, seed: int = 0) -> list[Array]:
    """Integers over the whole of their type, int32 within 1000 of 0; floats within 1 of 0."""
    rng = np.random.default_rng(seed)
    made = []
    for value in graph.inputs:
        shape = tuple(int(str(extent)) for extent in value.shape)
        if value.dtype.is_float:
            made.append(rng.uniform(-1, 1, shape).astype(value.dtype.numpy))
            continue
        limit = np.iinfo(value.dtype.numpy)
        low, high = (-1000, 1001) if value.dtype is I32 else (int(limit.min), int(limit.max) + 1)
        made.append(rng.integers(low, high, shape).astype(value.dtype.numpy))
    return made


def check_all(graphs: Sequence[Graph], chip: str, compare: Callable[[Array, Array], None] = assert_bits) -> list[Any]:
    """Every graph in one launch and without the host. The reports of the last calls."""
    found = []
    for run, graph in zip(together(graphs, chip), graphs, strict=True):
        assert (fallbacks(run), run.stats["launches_per_call"]) == ([], 1), graph
        check(run, graph, numbers(graph), compare)
        found += reports(run)
    return found


# -- products of bytes -----------------------------------------------------------------------------------------------
def widened(F: GraphBuilder, name: str, shape: tuple[int, ...], dtype: DType = I8) -> Value:
    return F.cast(F.input(name, dtype, shape), dtype=I32)


Epilogue = Callable[[GraphBuilder, Value, int], Value]


def plain(F: GraphBuilder, y: Value, n: int) -> Value:
    return y


def biased(F: GraphBuilder, y: Value, n: int) -> Value:
    """On the way out."""
    return F.relu(F.add(y, F.input("b", I32, (n,))))


def scaled(F: GraphBuilder, y: Value, n: int) -> Value:
    """On the vector cores: no number that Fixpipe could multiply by."""
    return F.mul(F.cast(y, dtype=F32), 0.37)


def product(m: int, k: int, n: int, turned: tuple[bool, bool], epilogue: Epilogue = plain) -> Graph:
    F = GraphBuilder("product")
    a = widened(F, "x", (k, m) if turned[0] else (m, k))
    b = widened(F, "w", (n, k) if turned[1] else (k, n))
    a = F.transpose(a, axes=(1, 0)) if turned[0] else a
    b = F.transpose(b, axes=(1, 0)) if turned[1] else b
    F.output(epilogue(F, F.matmul(a, b), n))
    return F.build()


TURNED = ((False, False), (False, True), (True, False), (True, True))


@pytest.mark.parametrize("epilogue", [plain, biased, scaled])
@pytest.mark.parametrize("chip", CHIPS)
def test_products_of_bytes(chip: str, epilogue: Epilogue) -> None:
    """Every order of both operands, at every size."""
    graphs = [product(*size, turned, epilogue) for size in SIZES for turned in TURNED]
    check_all(graphs, chip)


@pytest.mark.parametrize("chip", CHIPS)
def test_batched_products_of_bytes(chip: str) -> None:
    graphs = []
    for left, right in PRODUCTS:
        if 0 not in (*left, *right):
            F = GraphBuilder("batched")
            F.output(F.matmul(widened(F, "x", left), widened(F, "w", right)))
            graphs.append(F.build())
    check_all(graphs, chip)


def test_a_product_wraps() -> None:
    """-128 * -128 * 131072 is 2 to the 31st: the least int32."""
    F = GraphBuilder("wraps")
    F.output(F.matmul(widened(F, "x", (2, 131072)), widened(F, "w", (131072, 3))))
    graph = F.build()
    run = compiled(graph)
    x, w = np.full((2, 131072), -128, np.int8), np.full((131072, 3), -128, np.int8)
    w[0, 1] = 0
    check(run, graph, [x, w], assert_bits)
    assert not fallbacks(run) and run.run([x, w])[0][0, 0] == -(2**31)


def test_a_cast_that_others_read_too() -> None:
    """It is computed, and the product still reads the bytes."""
    F = GraphBuilder("shared")
    a, b = widened(F, "x", (17, 40)), widened(F, "w", (40, 24))
    F.output(F.matmul(a, b))
    F.output(F.add(a, 1))
    F.output(b)
    graph = F.build()
    run = compiled(graph)
    check(run, graph, numbers(graph), assert_bits)
    assert not fallbacks(run) and "left1.AllocTensor<int8_t>()" in sources(run)[0].text


def test_other_integers_are_multiplied_on_the_host() -> None:
    """The cube has no product of int16, alone or with int8."""
    for left, right in ((DType.INT16, DType.INT16), (I8, DType.INT16)):
        F = GraphBuilder("other")
        F.output(F.matmul(widened(F, "x", (5, 7), left), widened(F, "w", (7, 3), right)))
        graph = F.build()
        run = compiled(graph)
        assert fallbacks(run) == ["matmul"]
        check(run, graph, numbers(graph), assert_bits)


@pytest.mark.parametrize(("least", "hosted"), [(-128, []), (-129, ["matmul"])])
def test_constants_that_fit_stay_bytes(least: int, hosted: list[str]) -> None:
    """What the passes have folded to int32 is int8 again where all of it fits, also past a transpose."""
    F = GraphBuilder("weights")
    w = np.random.default_rng(1).integers(-127, 128, (24, 40)).astype(np.int32)
    w[3, 5] = least
    x = widened(F, "x", (17, 40))
    F.output(F.matmul(x, F.transpose(F.constant(w, "w"), axes=(1, 0))))
    graph = F.build()
    run = compiled(graph)
    assert fallbacks(run) == hosted
    check(run, graph, numbers(graph), assert_bits)


# -- zero points -----------------------------------------------------------------------------------------------------
U8 = DType.UINT8
# (left, its zero point's shape), (right, its zero point's shape); None: no zero point
ZEROED = (
    (I8, (), I8, None),
    (I8, None, I8, ()),
    (I8, (17, 1), I8, (1, 24)),
    (U8, (), I8, (24,)),
    (U8, None, I8, None),
    (U8, (1, 1), U8, ()),
)


def zeroed(left: DType, by: tuple[int, ...] | None, right: DType, by_right: tuple[int, ...] | None) -> Graph:
    F = GraphBuilder("zeroed")
    operands = []
    for name, shape, dtype, zero in (("x", (17, 40), left, by), ("w", (40, 24), right, by_right)):
        value = widened(F, name, shape, dtype)
        operands.append(value if zero is None else F.sub(value, widened(F, f"{name}0", zero, dtype)))
    F.output(F.matmul(*operands))
    return F.build()


@pytest.mark.parametrize("chip", CHIPS)
def test_zero_points_are_multiplied_out(chip: str) -> None:
    """Of either operand, of bytes with and without a sign."""
    check_all([zeroed(*case) for case in ZEROED], chip)


def test_a_zero_point_along_the_depth_stays_with_the_host() -> None:
    F = GraphBuilder("along")
    F.output(F.matmul(F.sub(widened(F, "x", (5, 7)), widened(F, "z", (7,))), widened(F, "w", (7, 3))))
    graph = F.build()
    run = compiled(graph)
    check(run, graph, numbers(graph), assert_bits)
    assert fallbacks(run) == ["matmul"]


# -- results to the vector cores -------------------------------------------------------------------------------------
def followed(batch: tuple[int, ...], m: int, k: int, n: int, kind: str) -> Graph:
    F = GraphBuilder(kind)
    y = F.matmul(F.input("x", F32, (*batch, m, k)), F.input("w", F32, (*batch, k, n)))
    if kind == "gelu":
        F.output(F.gelu(y))
    elif kind == "softmax":
        F.output(F.softmax(y, axis=-1))
    elif kind == "sum of columns":
        F.output(F.sum(y, axes=(len(batch),)))
    else:
        F.output(F.mul(F.add(y, F.input("r", F32, (*batch, m, n))), 0.5))
    return F.build()


FOLLOWED = (
    ((), 40, 64, 1),
    ((), 1, 5, 1),
    ((), 1, 7, 33),
    ((3,), 5, 9, 1),
    ((2, 3), 17, 8, 12),
    ((), 130, 40, 300),
    ((), 33, 17, 1000),
    ((2,), 3, 70, 9),
)


@pytest.mark.parametrize("kind", ["gelu", "softmax", "sum of columns", "residual"])
@pytest.mark.parametrize("chip", CHIPS)
def test_results_reach_the_vector_cores(chip: str, kind: str) -> None:
    """Through a ring in global memory on 910B; on 950 straight into the unified buffer, and global memory has no byte
    of them. Rows of 1000 that fold are better a group of their own."""
    graphs = [followed(*size, kind) for size in FOLLOWED]
    reports = check_all(graphs, chip, lambda a, b: assert_close(a, b, 512))
    for (batch, m, _, n), graph, report in zip(FOLLOWED, graphs, reports, strict=True):
        fused = len(api.lower_graph(graph, chip).partition.groups) == 1
        assert fused or (kind, n) == ("softmax", 1000)
        least = int(np.prod([*batch, m, n])) * 4
        moved = {way: size for way, size in report.moved.items() if way.startswith("L0C")}
        assert list(moved) == ["L0C->UB" if chip != B910 and fused else "L0C->GM"] and moved.popitem()[1] >= least


@pytest.mark.parametrize("chip", CHIPS)
def test_rows_of_a_tile_lie_where_the_cube_writes_them(chip: str) -> None:
    """In blocks of float32, where everything else in the kernel has rows of whole blocks of two-byte elements."""
    graphs = []
    for n in (5, 8, 12, 16, 40):
        F = GraphBuilder("pitch")
        y = F.matmul(F.input("x", F16, (7, 5, 6)), F.input("w", F16, (6, n)))
        F.output(y)
        F.output(F.add(y, F.input("r", F16, (5, n))))
        graphs.append(F.build())
    check_all(graphs, chip, lambda a, b: assert_close(a, b, 4))


def test_empty_products() -> None:
    """No rows, no columns or no depth, in front of what needs whole rows and of what the host computes."""
    for left, right in (((0, 3), (3, 5)), ((4, 3), (3, 0)), ((4, 0), (0, 5)), ((2, 0, 0), (0, 5)), ((0, 2, 3), (3, 4))):
        F = GraphBuilder("empty")
        y = F.matmul(F.input("x", F32, left), F.input("w", F32, right))
        F.output(F.add(F.sum(y, axes=(-1,), keepdims=True), y))
        F.output(F.sum(F.matmul(F.input("a", I32, left), F.input("b", I32, right)), axes=(0,)))
        graph = F.build()
        check(compiled(graph), graph, numbers(graph), lambda a, b: assert_close(a, b, 512))


def test_the_order_of_the_cores_does_not_matter() -> None:
    graph = followed((5,), 70, 33, 70, "softmax")
    run = compiled(graph, B950)
    machine = run.executable.machine  # type: ignore[attr-defined]
    results = []
    for machine.seed in range(5):
        results.append(run.run(numbers(graph))[0].tobytes())
    assert len(set(results)) == 1


# -- a factor on the way out -----------------------------------------------------------------------------------------
def dequantised(k: int, scale: float, to: DType = F16, relu: bool = False, bias: bool = False) -> Graph:
    F = GraphBuilder("dequantised")
    y = F.matmul(widened(F, "x", (33, k)), widened(F, "w", (k, 47)))
    y = F.add(y, F.input("b", I32, (47,))) if bias else y
    y = F.mul(F.cast(y, dtype=F32), scale)
    F.output(F.cast(F.relu(y) if relu else y, dtype=to))
    return F.build()


# (graph, whether the number multiplies on the way out)
FACTORS = {
    "a power of two": (dequantised(70, 2.0**-6), True),
    "eleven digits": (dequantised(70, 1025 * 2.0**-16), True),
    "with ReLU": (dequantised(130, 2.0**-7, relu=True), True),
    "with a bias": (dequantised(70, 2.0**-16, bias=True), True),
    "small results": (dequantised(70, 2.0**-30), True),
    "twelve digits": (dequantised(70, 2049 * 2.0**-17), False),
    "no number of two's powers": (dequantised(70, 0.01), False),
    "results beyond float16": (dequantised(70, 0.0625), False),
    "a bias that takes results beyond float16": (dequantised(70, 2.0**-6, bias=True), False),
    "a negative number": (dequantised(70, -(2.0**-6), relu=True), False),
    "to float32": (dequantised(70, 2.0**-6, F32), False),
    "to bfloat16": (dequantised(70, 2.0**-6, DType.BFLOAT16), False),
}


@pytest.mark.parametrize("chip", CHIPS)
def test_factors_on_the_way_out(chip: str) -> None:
    """Exactly the graph's values, whoever multiplies."""
    check_all([graph for graph, _ in FACTORS.values()], chip)
    for name, (graph, direct) in FACTORS.items():
        (source,) = sources(compiled(graph, chip))
        assert ("DrainScaled(p" in source.text, "KERNEL_TYPE_AIC_ONLY" in source.text) == (direct, direct), name


# -- as models have them ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("weights", [np.int8, np.uint8])
def test_matmul_integer_of_onnx(weights: type) -> None:
    """Activations of uint8 with a zero point at run time; weights that are constants, with one of their own."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    from autofusion.frontends.onnx import from_model

    rng = np.random.default_rng(2)
    limit = np.iinfo(weights)
    w = rng.integers(limit.min + 1, limit.max, (40, 24)).astype(weights)
    zero = np.array(0 if weights is np.int8 else 128, weights)
    node = helper.make_node("MatMulInteger", ["x", "w", "x0", "w0"], ["y"])
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.UINT8, shape) for name, shape in (("x", [17, 40]), ("x0", []))
    ]
    result = helper.make_tensor_value_info("y", TensorProto.INT32, [17, 24])
    constants = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(zero, "w0")]
    made = helper.make_graph([node], "quantised", inputs, [result], constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    graph = from_model(model)
    x, x0 = rng.integers(0, 256, (17, 40)).astype(np.uint8), np.array(131, np.uint8)
    run = compiled(graph)
    wanted = (x.astype(np.int32) - 131) @ (w.astype(np.int32) - zero.astype(np.int32))
    assert not fallbacks(run)
    assert_bits(run.run([x, x0])[0], wanted)
