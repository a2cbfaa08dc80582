"""Generated Ascend C on the AI Core model: the examples, row lengths, open dimensions, mutation, views, edge values.

Every comparison is with the reference's values, and the model raises ModelViolation where a rule of the chip is broken,
so a test that runs a kernel tests both.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ascend import CHIPS, Machine, check, compiled, fallbacks, reference, reports, sources, together
from oracle import assert_bits, assert_close, random_array
from test_dynamic import KERNELS as OPEN

from autofusion import api, dims
from autofusion.dtypes import Array, DType
from autofusion.errors import IndexOutOfRange
from autofusion.frontends import opseq
from autofusion.frontends.tracer import trace
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph, Value
from autofusion.jit.ascend import ARCHITECTURES
from autofusion.runtime import aicore

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
WIDTHS = (1, 7, 31, 33, 100, 126, 127, 1000, 4097)
F32, F16, BF16 = DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16
B910, B950 = CHIPS
full = pytest.mark.full


@pytest.fixture(autouse=True)
def available() -> None:
    """Skips where the model cannot be built, and says why."""
    if reason := aicore.unavailable():
        pytest.skip(reason)


# -- the examples ----------------------------------------------------------------------------------------------------
def document(name: str) -> dict[str, Any]:
    found = json.loads((EXAMPLES / f"{name}.json").read_text())
    assert isinstance(found, dict)
    return found


def example(name: str, extents: dict[int, int] | None = None, dtype: DType = F32, **shapes: tuple[int, ...]) -> Graph:
    """An example with every extent replaced by `extents` where it is listed, single tensors by `shapes`, float32 by
    `dtype`."""
    made = document(name)
    new = extents or {}
    for tensor in made["tensors"].values():
        tensor["shape"] = [new.get(d, d) for d in tensor["shape"]]
    for op in made["ops"]:
        if "shape" in op.get("attributes", {}):
            op["attributes"]["shape"] = [new.get(d, d) for d in op["attributes"]["shape"]]
    for tensor, shape in shapes.items():
        made["tensors"][tensor]["shape"] = list(shape)
    return opseq.loads(json.dumps(made).replace('"float32"', f'"{dtype.value}"'), EXAMPLES)


def arrays_for(graph: Graph, seed: int = 0) -> list[Array]:
    """Ordinary values; not negative for what an optimiser takes the root of."""
    rng = np.random.default_rng(seed)
    made = [random_array(rng, v.dtype, tuple(int(str(d)) for d in v.shape), (-2.0, 2.0)) for v in graph.inputs]
    return [np.abs(a) if v.name == "second" else a for v, a in zip(graph.inputs, made, strict=True)]


# name -> epsilons of the result that sums may be off
TOLERANCES = {
    "softmax": 32.0,
    "layernorm_gelu": 64.0,
    "matmul_add_relu": 1024.0,
    "adamw": 8.0,
    "transformer_block": 1024.0,
    "longtail200": 64.0,
    "model200": 4096.0,
}
SMALL = ("softmax", "matmul_add_relu", "layernorm_gelu", "adamw")
REDUCED = {F32: SMALL, F16: tuple(TOLERANCES), BF16: SMALL[:3]}


def cases() -> Iterator[Any]:
    for name in TOLERANCES:
        for chip in CHIPS:
            yield pytest.param(name, chip, F32, marks=() if name in SMALL else full, id=f"{name}-{chip}-float32")
            for dtype in (F16, BF16):
                if name in REDUCED[dtype]:
                    yield pytest.param(name, chip, dtype, marks=full, id=f"{name}-{chip}-{dtype.value}")


def test_every_example_has_a_case() -> None:
    assert set(TOLERANCES) == {p.stem for p in EXAMPLES.glob("*.json")}


@pytest.mark.parametrize(("name", "chip", "dtype"), list(cases()))
def test_examples_are_one_launch(name: str, chip: str, dtype: DType) -> None:
    """Reduced types are compared with float32 over the same operands: what stays on-chip is not rounded between."""
    graph = example(name, dtype=dtype)
    arrays = arrays_for(graph)
    run = compiled(graph, chip)
    found = run.run(arrays)
    assert not fallbacks(run)
    assert (run.stats["launches_per_call"], len(sources(run)), len(reports(run))) == (1, 1, 1)
    expected = reference(example(name), [a.astype(np.float32) for a in arrays])
    tolerance = TOLERANCES[name] if dtype is F32 else 4.0 if name in SMALL else 64.0
    scale = 1.0 if name == "longtail200" else None  # one of its results is the mean of what cancels
    for result, wanted in zip(found, expected, strict=True):
        assert_close(result, wanted.astype(dtype.numpy), tolerance, scale)


# -- memory ----------------------------------------------------------------------------------------------------------
def gated(F: GraphBuilder, x: Value) -> Value:
    return F.mul(F.tanh(F.add(x, 1.0)), x)


@full
@pytest.mark.parametrize("columns", [1024, 1000])
@pytest.mark.parametrize("operators", [gated, lambda F, x: F.softmax(x, axis=-1)], ids=["elementwise", "softmax"])
@pytest.mark.parametrize("chip", CHIPS)
def test_large_tensors_fill_the_unified_buffer(
    chip: str, operators: Callable[[GraphBuilder, Value], Value], columns: int
) -> None:
    """Of tensors of 16 times the cores' buffers, 80 % of a buffer is written and read, and each element moved once."""
    usable = api.find_target(chip).spaces["UB"].bytes
    rows = -(-16 * usable * 2 * api.find_target(chip).cores // (4 * columns)) + 3
    F = GraphBuilder("large")
    F.output(operators(F, F.input("x", F32, (rows, columns))))
    graph = F.build()
    found = compiled(graph, chip)
    x = np.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32)
    (result,) = found.run([x])
    assert_close(result[::997], reference(operators_on(operators, (rows // 997 + 1, columns)), [x[::997]])[0], 256)
    (report,) = reports(found)
    assert 0.8 * usable <= report.used["UB"] <= usable
    moved = sum(report.gm_read) + sum(report.gm_written)
    assert 2 * x.nbytes <= moved <= 1.05 * 2 * x.nbytes


def operators_on(operators: Callable[[GraphBuilder, Value], Value], shape: tuple[int, ...]) -> Graph:
    F = GraphBuilder("small")
    F.output(operators(F, F.input("x", F32, shape)))
    return F.build()


# -- row lengths -----------------------------------------------------------------------------------------------------
def one_group(width: int, dtype: DType = F32) -> list[Graph]:
    """The examples that are one group, with a last dimension of `width`."""
    return [
        example("softmax", {2048: 5, 1024: width}, dtype),
        example("layernorm_gelu", {2048: 5, 1024: width}, dtype),
        example("adamw", {1048576: width}, dtype),
        example("matmul_add_relu", None, dtype, x=(5, 33), w=(33, width), b=(width,)),
        example("matmul_add_relu", None, dtype, x=(19, width), w=(width, 21), b=(21,)),
    ]


@pytest.mark.parametrize(
    ("chip", "dtype"),
    [pytest.param(c, t, marks=() if (c, t) == (B910, F32) else full) for c in CHIPS for t in (F32, F16, BF16)],
)
def test_last_dimensions(chip: str, dtype: DType) -> None:
    narrow = [graph for width in WIDTHS for graph in one_group(width, dtype)]
    wide = [graph for width in WIDTHS for graph in one_group(width)]
    for run, graph, exact in zip(together(narrow, chip), narrow, wide, strict=True):
        arrays = arrays_for(graph)
        assert (run.stats["launches_per_call"], fallbacks(run)) == (1, [])
        expected = reference(exact, [a.astype(np.float32) for a in arrays])
        for result, wanted in zip(run.run(arrays), expected, strict=True):
            tolerance = TOLERANCES[graph.name] if dtype is F32 else 4.0
            assert_close(result, wanted.astype(dtype.numpy), tolerance)


# -- the encoder block -----------------------------------------------------------------------------------------------
def encoder(rows: int) -> Graph:
    """Hidden 64, 4 heads of 16."""
    return example("transformer_block", {128: rows, 768: 64, 3072: 256, 12: 4, 64: 16})


@pytest.mark.parametrize(
    ("chip", "rows"),
    [(B910, (1, 33, 127)), pytest.param(B950, (1, 17, 127), marks=full)]
    + [pytest.param(B910, tuple(range(first, min(first + 8, 128))), marks=full) for first in range(1, 128, 8)],
)
def test_encoder_block(chip: str, rows: tuple[int, ...]) -> None:
    graphs = [encoder(n) for n in rows]
    for run, graph in zip(together(graphs, chip), graphs, strict=True):
        assert (run.stats["launches_per_call"], fallbacks(run)) == (1, [])
        check(run, graph, arrays_for(graph), lambda a, b: assert_close(a, b, 256))


# -- open dimensions -------------------------------------------------------------------------------------------------
def opened(name: str) -> tuple[Graph, list[tuple[Any, ...]], float]:
    function, shapes, tolerance = OPEN[name]
    specs = [
        (argument, F32, tuple(dims.parse(d) if isinstance(d, str) else d for d in shape))
        for argument, shape in shapes.items()
    ]
    return trace(function, specs).graph, list(shapes.values()), tolerance


@pytest.mark.parametrize(
    ("chip", "sizes"),
    [
        (B910, (1, 7, 64, 1000)),
        pytest.param(B950, (1, 7, 64, 1000), marks=full),
        pytest.param(B910, (0, 2, 16, 65, 4097), marks=full),
    ],
)
def test_one_compile_serves_all_sizes(chip: str, sizes: tuple[int, ...]) -> None:
    listed = [opened(name) for name in OPEN]
    wrong = {}
    runs = together([graph for graph, _, _ in listed], chip)
    for name, run, (graph, shapes, tolerance) in zip(OPEN, runs, listed, strict=True):
        built = len(sources(run))
        for n in sizes:
            rng = np.random.default_rng(n)
            extents = {"n": n, "m": 5}
            arrays = [random_array(rng, F32, tuple(extents.get(d, d) for d in s), (-1.0, 1.0)) for s in shapes]
            try:
                check(run, graph, arrays, lambda a, b, t=tolerance: assert_close(a, b, 4 * t))  # type: ignore[misc]
            except Exception as error:
                wrong[f"{name}, n = {n}"] = f"{type(error).__name__}: {error}"[:300]
        assert len(sources(run)) == built
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())


# -- many small graphs, one executable -------------------------------------------------------------------------------
Build = Callable[[GraphBuilder], None]


def x_of(F: GraphBuilder, dtype: DType = F32, shape: tuple[int, ...] = (9, 37), name: str = "x") -> Value:
    return F.input(name, dtype, shape)


def attention(F: GraphBuilder, dtype: DType = F32) -> None:
    q, k, v = (F.input(n, dtype, (2, 3, 19, 16)) for n in "qkv")
    scores = F.softmax(F.mul(F.matmul(q, F.transpose(k, axes=(0, 1, 3, 2))), 0.25), axis=-1)
    F.output(F.matmul(scores, v))


def shared(F: GraphBuilder) -> None:
    """Values that are inner to a group and outputs too, one of them twice."""
    x = x_of(F)
    e = F.exp(x)
    F.output(e)
    F.output(F.div(e, F.sum(e, axes=(1,), keepdims=True)))
    F.output(e)


def update(F: GraphBuilder) -> None:
    x, y = x_of(F), x_of(F, name="y")
    F.output(F.add(F.mul(x, 0.5), y), writes="x")
    F.output(F.sub(x, y))


def shifted(F: GraphBuilder) -> None:
    """x[1:] = x[:-1]."""
    x = x_of(F, shape=(37,))
    kept = F.slice(x, starts=(0,), stops=(36,), steps=(1,))
    F.output(F.slice_update(x, kept, starts=(1,), stops=(37,), steps=(1,)), writes="x")


def of(op: str, dtype: DType = F32, shape: tuple[int, ...] = (9, 37), **attributes: Any) -> Build:
    def build(F: GraphBuilder) -> None:
        F.output(F.emit(op, [x_of(F, dtype, shape)], attributes))

    return build


def joined(axis: int, dtype: DType = F32) -> Build:
    def build(F: GraphBuilder) -> None:
        x, y = x_of(F, dtype), x_of(F, dtype, (5 if axis == 0 else 9, 37 if axis == 0 else 3), "y")
        F.output(F.concat(F.maximum(x, x), y, x, axis=axis))

    return build


def split(F: GraphBuilder) -> None:
    x = F.mul(x_of(F, shape=(9, 30)), 2.0)
    for first in (0, 7, 19):
        F.output(F.slice(x, starts=(0, first), stops=(9, first + 11), steps=(1, 1)))


def repeated(F: GraphBuilder) -> None:
    """An operand whose elements are the same all along the depth, and one whose rows are."""
    rows, columns = 37, 50
    x, w = F.input("x", F16, (rows,)), F.input("w", F16, (columns, 8))
    F.output(F.matmul(F.transpose(F.expand(x, shape=(columns, rows)), axes=(1, 0)), w))
    F.output(F.matmul(F.expand(F.input("y", F16, (columns,)), shape=(rows, columns)), w))


def padded_bytes(F: GraphBuilder) -> None:
    """Rows of 7 elements into rows of 10: what follows them is no padding."""
    x = F.input("x", DType.BOOL, (5, 7))
    F.output(F.pad(x, before=(2, 0), after=(1, 3), mode="constant", value=2.0))


def rotated(F: GraphBuilder) -> None:
    """The halves of rows, swapped, as in rotary positions: half a row is no row with padding."""
    x = F.mul(x_of(F, shape=(64, 32)), x_of(F, shape=(64, 32), name="y"))
    low, high = (F.slice(x, starts=(0, first), stops=(64, first + 16), steps=(1, 1)) for first in (0, 16))
    F.output(F.add(F.mul(F.concat(F.neg(high), low, axis=1), x_of(F, shape=(32,), name="sine")), x))


def turned(F: GraphBuilder) -> None:
    x = x_of(F, shape=(2, 5, 37))
    for axes in ((0, 2, 1), (2, 1, 0), (1, 0, 2)):
        F.output(F.add(F.transpose(x, axes=axes), 1.0))


def sliced(F: GraphBuilder) -> None:
    x = x_of(F)
    for start, stop, step in ((1, 36, 1), (0, 37, 3), (36, -38, -1), (-1, 0, -2)):
        F.output(F.mul(F.slice(x, starts=(1, start), stops=(8, stop), steps=(2, step)), 3.0))


def looked_up(dtype: DType, indices: DType, wraps: bool = True) -> Build:
    def build(F: GraphBuilder) -> None:
        table, at = F.input("table", dtype, (11, 37)), F.input("at", indices, (6,))
        F.output(F.gather(table, at, axis=0, wraps=wraps))
        F.output(F.gather(table, at, axis=1, wraps=wraps))

    return build


def integers(dtype: DType) -> Build:
    def build(F: GraphBuilder) -> None:
        x, y = x_of(F, dtype), x_of(F, dtype, name="y")
        for op in ("add", "sub", "mul", "maximum", "minimum", "int_floor_divide", "int_remainder", "lt", "eq"):
            F.output(F.emit(op, [x, y], {}))
        F.output(F.sum(x, axes=(1,)))
        F.output(F.max(y, axes=(0,)))

    return build


def logic(F: GraphBuilder) -> None:
    x, y, p = x_of(F), x_of(F, name="y"), F.input("p", DType.BOOL, (9, 37))
    q = F.logical_or(F.logical_and(F.lt(x, y), p), F.logical_not(F.ge(x, 0.5)))
    F.output(q)
    F.output(F.logical_xor(q, p))
    F.output(F.where(q, x, y))
    F.output(F.any(q, axes=(1,)))
    F.output(F.all(q, axes=(0,)))
    F.output(F.cast(q, dtype=F32))


def convolved(F: GraphBuilder) -> None:
    x, w = F.input("x", F32, (2, 3, 9, 11)), F.input("w", F32, (4, 3, 3, 3))
    F.output(F.relu(F.conv(x, w, pads=(1, 1, 1, 1))))


def pooled(F: GraphBuilder) -> None:
    F.output(F.max_pool(F.input("x", F32, (2, 3, 9, 11)), kernel=(3, 3), strides=(2, 2)))


def normed(F: GraphBuilder) -> None:
    x, g, b = x_of(F), F.input("g", F32, (37,)), F.input("b", F32, (37,))
    F.output(F.layer_norm(x, g, b))
    F.output(F.rms_norm(x, g))


def product(m: int, k: int, n: int, dtype: DType = F32, epilogue: str = "") -> Build:
    def build(F: GraphBuilder) -> None:
        made = F.matmul(F.input("x", dtype, (m, k)), F.input("w", dtype, (k, n)))
        if epilogue:
            made = F.emit(epilogue, [F.add(made, F.input("b", dtype, (n,)))], {})
        F.output(made)

    return build


def residual(F: GraphBuilder) -> None:
    """A product with a matrix added and rows normalised: through the ring on 910B."""
    x, w, r = F.input("x", F32, (33, 40)), F.input("w", F32, (40, 50)), F.input("r", F32, (33, 50))
    F.output(F.softmax(F.add(F.matmul(x, w), r), axis=-1))


def two_products(F: GraphBuilder) -> None:
    x, w, v = F.input("x", F32, (33, 40)), F.input("w", F32, (40, 50)), F.input("v", F32, (50, 20))
    F.output(F.matmul(F.gelu(F.matmul(x, w)), v))


# name -> (graph, tolerance): each runs on both chips, with values from -4 to 4, or to 1 where sums are compared
GRAPHS: dict[str, tuple[Build, float]] = {
    "attention": (attention, 256),
    "attention in float16": (lambda F: attention(F, F16), 16),
    "inner values are outputs": (shared, 8),
    "an input that is written": (update, 0),
    "shifted in place": (shifted, 0),
    "concat of rows": (joined(0), 0),
    "concat of columns": (joined(1), 0),
    "concat of columns in float16": (joined(1, F16), 0),
    "split": (split, 0),
    "halves of rows swapped": (rotated, 0),
    "bytes padded by elements": (padded_bytes, 0),
    "product of what repeats along its depth": (repeated, 64),
    "transposes": (turned, 0),
    "slices": (sliced, 0),
    "gather": (looked_up(F32, DType.INT64), 0),
    "gather in bfloat16 by int32": (looked_up(BF16, DType.INT32), 0),
    "cumsum along rows": (of("cumsum", axis=1), 64),
    "cumsum along columns": (of("cumsum", axis=0), 64),
    "cummax": (of("cummax", axis=1), 0),
    "cumprod of int32": (of("cumprod", DType.INT32, axis=0), 0),
    "argmax": (of("argmax", axis=1), 0),
    "argmin of columns": (of("argmin", axis=0), 0),
    "sum of everything": (of("sum", shape=(70, 1000)), 256),
    "mean of columns": (of("mean", shape=(70, 1000), axes=(0,)), 64),
    "variance of float16": (of("var", F16, axes=(1,)), 8),
    "log_softmax of columns": (of("log_softmax", axis=0), 64),
    "int8": (integers(DType.INT8), 0),
    "int32": (integers(DType.INT32), 0),
    "uint8": (integers(DType.UINT8), 0),
    "int64": (integers(DType.INT64), 0),
    "bool logic": (logic, 0),
    "conv": (convolved, 64),
    "max_pool": (pooled, 0),
    "norms": (normed, 64),
    "matmul 1x1x1": (product(1, 1, 1), 64),
    "matmul 1x64x40": (product(1, 64, 40), 64),
    "matmul 40x64x1": (product(40, 64, 1), 64),
    "matmul 17x33x19 with relu": (product(17, 33, 19, epilogue="relu"), 64),
    "matmul in float16 with bias and relu": (product(130, 65, 47, F16, "relu"), 4),
    "matmul in bfloat16 with bias and gelu": (product(130, 65, 47, BF16, "gelu"), 8),
    "matmul of nothing": (product(3, 0, 4), 0),
    "matmul to nothing": (product(0, 5, 3), 0),
    "matmul, add, softmax": (residual, 256),
    "matmul, gelu, matmul": (two_products, 256),
    "rows of nothing": (of("softmax", shape=(0, 5), axis=1), 0),
    "sum over nothing": (of("sum", shape=(3, 0), axes=(1,)), 0),
    "rank 0": (of("exp", shape=()), 8),
    "rank 8": (of("neg", shape=(2, 1, 3, 1, 2, 1, 1, 9)), 0),
}


def graph_of(build: Build, name: str = "g") -> Graph:
    F = GraphBuilder(name)
    build(F)
    return F.build()


@functools.cache
def small_graphs(chip: str) -> dict[str, tuple[api.Compiled | Exception, Graph]]:
    """All compiled at first use; what does not compile is the exception that says so."""
    made: dict[str, tuple[api.Compiled | Exception, Graph]] = {}
    machine = Machine(ARCHITECTURES[chip])
    for name, (build, _) in GRAPHS.items():
        graph = graph_of(build)
        try:
            made[name] = compiled(graph, chip, machine), graph
        except Exception as error:
            made[name] = error, graph
    runs = [run for run, _ in made.values() if isinstance(run, api.Compiled)]
    for first in range(0, len(runs), 12):
        machine.build([source for run in runs[first : first + 12] for source in sources(run)])
    return made


def small(name: str, chip: str) -> tuple[api.Compiled, Graph]:
    run, graph = small_graphs(chip)[name]
    if isinstance(run, Exception):
        raise run
    return run, graph


@pytest.mark.parametrize("chip", [B910, pytest.param(B950, marks=full)])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str, chip: str) -> None:
    run, graph = small(name, chip)
    tolerance = GRAPHS[name][1]
    rng = np.random.default_rng(3)
    arrays = []
    for value in graph.inputs:
        shape = tuple(int(str(d)) for d in value.shape)
        array = random_array(rng, value.dtype, shape, (-1.0, 1.0) if tolerance > 8 else (-4.0, 4.0))
        if value.name == "at":
            array = rng.integers(-11, 11, shape).astype(value.dtype.numpy)
        arrays.append(array)
    check(run, graph, arrays, lambda a, b: assert_close(a, b, tolerance))


def test_what_is_written_is_written_in_place() -> None:
    for name in ("an input that is written", "shifted in place"):
        run, graph = small(name, B910)
        arrays = arrays_for(graph)
        before = [a.copy() for a in arrays]
        expected = reference(graph, before)
        found = run.run(arrays)
        assert_bits(arrays[0], expected[0])
        for result, array in zip(found[1:], arrays[1:], strict=False):
            assert not np.shares_memory(result, array)
        for array, kept in zip(arrays[1:], before[1:], strict=True):
            assert_bits(array, kept)


def test_strides_in() -> None:
    """Transposed, reversed, repeated and overlapping operands of one compiled graph."""
    run, graph = small("bool logic", B910)
    rng = np.random.default_rng(4)
    base = random_array(rng, F32, (80, 80))
    p = rng.integers(0, 2, (37, 9)).astype(bool).T
    for x in (base[:37, :9].T, base[8::-1, 36::-1], np.broadcast_to(base[3, :37], (9, 37)), base[::5, ::2][:9, :37]):
        check(run, graph, [x, base[20:29, 1:38], p], assert_bits)


@pytest.mark.parametrize("position", [11, -12, 10**9, -(10**9)])
def test_an_index_outside_is_said(position: int) -> None:
    run, graph = small("gather", B910)
    rng = np.random.default_rng(5)
    table, at = random_array(rng, F32, (11, 37)), np.array([0, -11, 10, 3, 1, 2])
    check(run, graph, [table, at], assert_bits)
    for place in (0, 5):
        bad = at.copy()
        bad[place] = position
        with pytest.raises(IndexOutOfRange, match=f"position {place} "):
            run.run([table, bad])
    check(run, graph, [table, at], assert_bits)


def test_a_negative_index_is_outside_where_nothing_wraps() -> None:
    graph = graph_of(looked_up(F32, DType.INT64, wraps=False))
    run = compiled(graph, B910, Machine(ARCHITECTURES[B910]))
    table, at = random_array(np.random.default_rng(5), F32, (11, 37)), np.array([0, 9, 10, 3, 1, 2])
    check(run, graph, [table, at], assert_bits)
    check(run, graph, [table, at], assert_bits)
    for place, position in ((0, -1), (5, -11), (2, -(2**63))):
        bad = at.copy()
        bad[place] = position
        with pytest.raises(IndexOutOfRange, match=f"position {place} "):
            run.run([table, bad])


@pytest.mark.parametrize("name", ("attention", "matmul, add, softmax", "sum of everything", "cumsum along columns"))
def test_the_order_of_the_cores_does_not_matter(name: str) -> None:
    run, graph = small(name, B910)
    arrays = arrays_for(graph)
    machine = run.executable.machine  # type: ignore[attr-defined]
    results = []
    try:
        for machine.seed in (0, 1, 2, 12345):
            results.append([r.tobytes() for r in run.run(arrays)])
    finally:
        machine.seed = 0
    assert all(each == results[0] for each in results)


# -- edge values -----------------------------------------------------------------------------------------------------
EDGES = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 1.1754944e-38, 3.4028235e38, -3.4028235e38)


def extremes(dtype: DType) -> Build:
    def build(F: GraphBuilder) -> None:
        a, b = F.input("a", dtype, (144,)), F.input("b", dtype, (144,))
        for op in ("maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"):
            F.output(F.emit(op, [a, b], {}))
        F.output(F.relu(a))
        F.output(F.minimum(F.maximum(a, -1.0), 1.0))
        F.output(F.isnan(a))
        F.output(F.abs(a))
        F.output(F.neg(a))
        F.output(F.add(a, b))
        F.output(F.mul(a, b))

    return build


def folds(F: GraphBuilder) -> None:
    x = F.input("x", F32, (70, 70))
    for op in ("max", "min"):
        F.output(F.emit(op, [x], {"axes": (0,)}))
        F.output(F.emit(op, [x], {"axes": (1,)}))
    F.output(F.argmax(x, axis=1))
    F.output(F.softmax(x, axis=1))


def matmul_relu(F: GraphBuilder) -> None:
    F.output(F.relu(F.matmul(F.input("x", F32, (70, 20)), F.input("w", F32, (20, 30)))))


def test_edge_values_meet_each_other() -> None:
    """All pairs; NaN and infinities keep their places, opposite zeros may stand for each other in max and min."""
    types = (F32, F16, BF16)
    graphs = [graph_of(extremes(t), f"extremes_{t.value}") for t in types]
    for run, graph, dtype in zip(together(graphs), graphs, types, strict=True):
        with np.errstate(over="ignore"):
            edges = np.array(EDGES).astype(dtype.numpy)
        check(run, graph, [np.repeat(edges, 12), np.tile(edges, 12)], lambda a, b: assert_close(a, b, 0, scale=0))


def test_nan_passes_at_every_position() -> None:
    """One NaN in each row and each column, at every lane of a full vector and of the tail; rows of infinities."""
    graph = graph_of(folds, "folds")
    run = compiled(graph)
    x = random_array(np.random.default_rng(6), F32, (70, 70))
    x[np.arange(70), (np.arange(70) * 3) % 70] = np.nan
    rows = np.full((3, 70, 70), -np.inf, np.float32)
    rows[1:, :, 5], rows[2, :, 9] = np.inf, -1e-40
    for array in (x, *rows):
        check(run, graph, [array], lambda a, b: assert_close(a, b, 32))


def test_relu_on_the_way_out_of_the_cube_drops_nan() -> None:
    """The target's assumption: what Fixpipe's relu makes of NaN is not documented, and the model takes the worst."""
    graph = graph_of(matmul_relu, "matmul_relu")
    rng = np.random.default_rng(7)
    x, w = random_array(rng, F32, (70, 20)), random_array(rng, F32, (20, 30))
    x[3, 5], x[41, 0], w[4, 7] = np.nan, np.inf, -np.inf
    (found,), (expected,) = compiled(graph).run([x, w]), reference(graph, [x, w])
    assert np.isnan(expected[3]).all() and not found[3].any()
    assert_close(found, np.nan_to_num(expected, nan=0.0, posinf=np.inf), 256)
