"""Integers and booleans on the vector unit: exact against NumPy, and without a loop of the scalar unit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from ascend import compiled, fallbacks, reference, sources, together
from oracle import assert_bits, edges_of

from autofusion import dtypes
from autofusion.dtypes import Array, DType
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.ops import TABLE
from autofusion.runtime import aicore

NARROW = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)
TILED = (*NARROW, DType.INT32, DType.UINT32)
WIDE = (DType.INT64, DType.UINT64)
STORED = tuple(t for t in DType if t is not DType.FLOAT64)
BINARY = (
    *("add", "sub", "mul", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or"),
    *("bitwise_xor", "int_floor_divide", "int_remainder", "shift_left", "shift_right"),
)
UNARY = ("neg", "abs", "bitwise_not", "copy", "sign", "square")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
SIZE = 2500  # more than a chunk, with a rest


@pytest.fixture(autouse=True)
def available() -> None:
    if reason := aicore.unavailable():
        pytest.skip(reason)


def quick(types: Sequence[DType], *kept: DType) -> list[object]:
    """All types; those not kept only in the full tier."""
    return [t if t in kept else pytest.param(t, marks=pytest.mark.full) for t in types]


def numbers(dtype: DType, seed: int) -> Array:
    """Numbers of all magnitudes, and every pair of edge values where the seeds are 0 and 1."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, dtype.size * 8 + 1, SIZE)
    every = rng.integers(0, 2**64, SIZE, dtype=np.uint64)
    result = (every >> np.minimum(64 - bits, 63).astype(np.uint64)).astype(dtype.numpy)  # wraps
    if dtype.is_signed:
        result = np.where(rng.integers(0, 2, SIZE) == 1, np.negative(result), result)
    edges = edges_of(dtype)
    count = min(len(edges) ** 2, SIZE // 2)
    at = np.arange(count)
    result[:count] = edges[at % len(edges)] if seed == 0 else edges[at // len(edges) % len(edges)]
    return result


def on_vector(graph: Graph, arrays: list[Array]) -> None:
    """Right, in one launch, with no element through the scalar unit."""
    run = compiled(graph)
    assert not fallbacks(run)
    for source in sources(run):
        assert "SetValue" not in source.text, graph.name
    for found, wanted in zip(run.run(arrays), reference(graph, arrays), strict=True):
        assert_bits(found, wanted)


@pytest.mark.parametrize("dtype", quick(TILED, DType.INT8, DType.UINT16, DType.INT32))
def test_operators(dtype: DType) -> None:
    F = GraphBuilder("integers")
    x, y, c = F.input("x", dtype, (SIZE,)), F.input("y", dtype, (SIZE,)), F.input("c", DType.BOOL, (SIZE,))
    for name in BINARY:
        F.output(F.emit(name, [x, y], {}))
    for name in UNARY:
        F.output(F.emit(name, [x], {}))
    F.output(F.where(c, x, y))
    F.output(F.emit("clip", [x, F.scalar(3, dtype), F.scalar(100, dtype)], {}))
    condition = np.random.default_rng(2).integers(0, 2, SIZE).astype(bool)
    on_vector(F.build(), [numbers(dtype, 0), numbers(dtype, 1), condition])


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
def test_every_division_of_8_bits(dtype: DType) -> None:
    F = GraphBuilder("divisions")
    x, y = F.input("x", dtype, (256, 1)), F.input("y", dtype, (1, 256))
    F.output(F.emit("int_floor_divide", [x, y], {}))
    F.output(F.emit("int_remainder", [x, y], {}))
    every = np.arange(256).astype(np.uint8).view(dtype.numpy)
    graph, arrays = F.build(), [every.reshape(256, 1), every.reshape(1, 256)]
    for found, wanted in zip(compiled(graph).run(arrays), reference(graph, arrays), strict=True):
        assert_bits(found, wanted)


@pytest.mark.parametrize("dtype", [DType.INT32, DType.UINT32])
def test_quotients_next_to_whole_ones(dtype: DType) -> None:
    """a = q * b + r for r next to 0 and to b, where a rounded quotient is off by one."""
    rng = np.random.default_rng(4)
    most = np.iinfo(dtype.numpy).max
    b = np.maximum(1, (2.0 ** rng.uniform(0, np.log2(most), 4000)).astype(np.int64))
    q = (rng.uniform(0, 1, 4000) * (most // b)).astype(np.int64)
    a = np.clip(q * b + rng.integers(-2, 3, 4000), 0, most)
    if dtype.is_signed:
        a, b = a * rng.choice([-1, 1], 4000), b * rng.choice([-1, 1], 4000)
    F = GraphBuilder("quotients")
    x, y = F.input("x", dtype, (4000,)), F.input("y", dtype, (4000,))
    F.output(F.emit("int_floor_divide", [x, y], {}))
    F.output(F.emit("int_remainder", [x, y], {}))
    on_vector(F.build(), [a.astype(dtype.numpy), b.astype(dtype.numpy)])


@pytest.mark.parametrize("dtype", quick(TILED, DType.INT8, DType.UINT32))
def test_shifts_by_constants(dtype: DType) -> None:
    F = GraphBuilder("shifts")
    x = F.input("x", dtype, (SIZE,))
    width = dtype.size * 8
    for amount in (0, 1, width - 1, width, *((-1,) if dtype.is_signed else ())):
        for name in ("shift_left", "shift_right"):
            F.output(F.emit(name, [x, F.scalar(amount, dtype)], {}))
    on_vector(F.build(), [numbers(dtype, 0)])


@pytest.mark.parametrize("source", quick(STORED, DType.INT64, DType.FLOAT16, DType.UINT32))
def test_conversions(source: DType) -> None:
    """Wrapping between integers; towards zero and to the nearest end from floats; rounded once to floats."""
    goals = [DType.BOOL, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, *TILED]
    if source is DType.INT64:
        goals = [DType.BOOL, DType.FLOAT32, *TILED]
    elif source is DType.UINT64:
        goals = list(TILED)
    elif not source.is_float and source is not DType.UINT32:
        goals += WIDE
    F = GraphBuilder("conversions")
    x = F.input("x", source, (SIZE,))
    for goal in goals:
        if goal is not source:
            F.output(F.cast(x, dtype=goal))
    if source.is_integer:
        values = numbers(source, 0)
    else:
        values = np.resize(edges_of(source), SIZE)
        if source.is_float:
            spread = np.random.default_rng(5).normal(size=SIZE // 2) * 2.0 ** np.linspace(-4, 40, SIZE // 2)
            with np.errstate(over="ignore"):
                values[SIZE // 2 :] = spread.astype(source.numpy)
    with np.errstate(all="ignore"):
        on_vector(F.build(), [values])


@pytest.mark.parametrize("dtype", WIDE)
def test_comparisons_of_64_bits(dtype: DType) -> None:
    F = GraphBuilder("comparisons")
    x, y, one = F.input("x", dtype, (SIZE,)), F.input("y", dtype, (SIZE,)), F.input("one", dtype, (1,))
    for name in COMPARISONS:
        F.output(F.emit(name, [x, y], {}))
        F.output(F.emit(name, [x, F.scalar(1 << 40, dtype)], {}))
    F.output(F.lt(x, one))
    y_values = numbers(dtype, 1)
    y_values[::3] = numbers(dtype, 0)[::3]
    y_values[1::3] ^= numbers(dtype, 0)[1::3] & np.array(0xFFFFFFFF).astype(dtype.numpy)
    on_vector(F.build(), [numbers(dtype, 0), y_values, np.array([-5 if dtype.is_signed else 7], dtype.numpy)])


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.INT16, DType.UINT16, *WIDE])
def test_copies_move_bits(dtype: DType) -> None:
    """Every pattern of 16 bits, NaN payloads too. What starts inside a block is gathered, floats through float32, which
    may give NaN other bits."""
    short = dtype.size == 2
    every = np.arange(1 << 16, dtype=np.uint16) if short else np.arange(1 << 13, dtype=np.uint64) * 0x123456789ABC
    bits = every.reshape(64, -1)
    values = bits.view(dtype.numpy)
    F = GraphBuilder("copies")
    x = F.input("x", dtype, values.shape)
    F.output(F.emit("copy", [x], {}))
    part = F.emit("slice", [x], {"starts": (0, 3), "stops": (64, 100), "steps": (1, 1)})
    F.output(F.emit("concat", [part, x], {"axis": 1}))
    run = compiled(F.build())
    copied, joined = run.run([values])
    assert np.array_equal(copied.view(bits.dtype), bits)
    wanted = np.concatenate([values[:, 3:100], values], 1)
    with np.errstate(invalid="ignore"):
        number, found = wanted == wanted, joined == joined
    assert np.array_equal(found, number)
    assert np.array_equal(joined[number].view(bits.dtype), wanted[number].view(bits.dtype))


@pytest.mark.parametrize("dtype", quick(STORED, DType.INT64, DType.UINT8))
def test_what_is_made_of_nothing(dtype: DType) -> None:
    """full, iota and eye; positions beyond 32 bits are none of a tile's."""
    F = GraphBuilder("made")
    F.output(F.emit("full", [], {"shape": (3, 70), "value": 1, "dtype": dtype}))
    F.output(F.emit("eye", [], {"rows": 5, "columns": 70, "k": 1, "dtype": dtype}))
    if dtype in TABLE.get("iota").dtypes:
        F.output(F.emit("iota", [], {"shape": (3, 100), "axis": 1, "dtype": dtype}))
        F.output(F.emit("iota", [], {"shape": (40, 3), "axis": 0, "dtype": dtype}))
    graph = F.build()
    for found, wanted in zip(compiled(graph).run([]), reference(graph, []), strict=True):
        assert_bits(found, wanted)


@pytest.mark.parametrize("dtype", WIDE)
def test_bits_of_64(dtype: DType) -> None:
    F = GraphBuilder("bits")
    x, y = F.input("x", dtype, (SIZE,)), F.input("y", dtype, (SIZE,))
    for name in ("bitwise_and", "bitwise_or"):
        F.output(F.emit(name, [x, y], {}))
    F.output(F.emit("bitwise_not", [x], {}))
    on_vector(F.build(), [numbers(dtype, 0), numbers(dtype, 1)])


def test_booleans_are_ordered() -> None:
    F = GraphBuilder("booleans")
    x, y = F.input("x", DType.BOOL, (600,)), F.input("y", DType.BOOL, (600,))
    for name in COMPARISONS:
        F.output(F.emit(name, [x, y], {}))
    rng = np.random.default_rng(1)
    on_vector(F.build(), [rng.integers(0, 2, 600).astype(bool) for _ in range(2)])


def test_strided_and_repeated_operands() -> None:
    """Gathered 16-bit integers, rows that start inside a block, one number against a row."""
    graphs, arrays = [], []
    for dtype in (DType.INT16, DType.UINT16, DType.UINT32, DType.INT8, DType.INT64):
        F = GraphBuilder("strided")
        x, column = F.input("x", dtype, (37, 50)), F.input("column", dtype, (37, 1))
        turned = F.emit("transpose", [x], {"axes": (1, 0)})
        F.output(F.lt(x, column))
        F.output(F.eq(turned, F.emit("slice", [turned], {"starts": (0, 0), "stops": (50, 37), "steps": (1, 1)})))
        if dtype is not DType.INT64:
            F.output(F.maximum(turned, F.scalar(5, dtype)))
            F.output(F.add(x, column))
        graphs.append(F.build())
        arrays.append([numbers(dtype, 0)[:1850].reshape(37, 50), numbers(dtype, 1)[:37].reshape(37, 1)])
    for graph, values, run in zip(graphs, arrays, together(graphs), strict=True):
        for found, wanted in zip(run.run(values), reference(graph, values), strict=True):
            assert_bits(found, wanted)


def test_types_are_those_of_the_table() -> None:
    assert set(TILED) | set(WIDE) == set(dtypes.INTEGERS)
