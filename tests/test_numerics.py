"""The floating-point, reduced-precision and integer bullets of docs/semantics, one test each, on compiled code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from oracle import assert_bits, assert_close, edges_of, random_array

import autofusion as af
from autofusion import api
from autofusion.dtypes import Array, DType
from autofusion.graph import evaluate
from autofusion.graph.builder import GraphBuilder
from autofusion.ops import TABLE, Kind

F32, F64 = np.float32, np.float64
F16, BF16 = DType.FLOAT16.numpy, DType.BFLOAT16.numpy
NAN, INF = math.nan, math.inf
FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)


def run(function: Callable[..., Any], *arrays: Any, numerics: str = "default") -> Any:
    return af.jit(function, numerics=numerics)(*arrays)


def f32(*values: float) -> Array:
    return np.array(values, F32)


# -- no algebra on user-written arithmetic ---------------------------------------------------------------------------
# name, function, the same in NumPy, operands; 19 copies of the operands pass a full vector and a tail.
ARITHMETIC: tuple[tuple[str, Callable[..., Any], tuple[Array, ...]], ...] = (
    ("no contraction", lambda a, x, b: a * x + b * x, (f32(5e10), f32(4.1234567e10), f32(-5e10))),
    ("no contraction of a product that rounds", lambda a, b: a * b - a * b, (f32(1 / 3, 1e20), f32(3.1, 1 / 3))),
    ("fma differs", lambda a, b, c: a * b + c, (f32(1 + 2**-12), f32(1 + 2**-12), f32(-(1 + 2**-11)))),
    ("no reassociation", lambda a, b, c: (a + b) + c, (f32(1e8, 1), f32(-1e8, 1e-8), f32(1e-3, -1))),
    ("no reassociation to the right", lambda a, b, c: a + (b + c), (f32(1e8, 1), f32(-1e8, 1e-8), f32(1e-3, -1))),
    ("no reassociated product", lambda a, b, c: (a * b) * c, (f32(1e30, 3), f32(1e30, 1 / 3), f32(1e-30, 7))),
    ("no distribution", lambda a, b, c: a * (b + c), (f32(INF, 1e30), f32(1, 1e30), f32(-1, -1e30))),
    ("0 * x", lambda x: x * 0.0, (f32(NAN, INF, -INF, -1, 1, -0.0),)),
    ("x + 0", lambda x: x + 0.0, (f32(-0.0, 0, 1, NAN),)),
    ("x + -0", lambda x: x + (-0.0), (f32(-0.0, 0, 1, NAN),)),
    ("x - 0", lambda x: x - 0.0, (f32(-0.0, 0, 1, NAN),)),
    ("0 - x", lambda x: 0.0 - x, (f32(-0.0, 0, 1, NAN),)),
    ("x / x", lambda x: x / x, (f32(0, -0.0, INF, NAN, 3, 1e-45),)),
    ("x - x", lambda x: x - x, (f32(INF, -INF, NAN, 3, 1e-45),)),
    ("x * 1", lambda x: x * 1.0, (f32(NAN, -0.0, 1e-45, INF),)),
    ("x / 3 is no product with 1/3", lambda x: x / 3.0, (np.arange(1, 60, dtype=F32),)),
    ("x / c of a huge c", lambda x: x / F32(1e39 / 10), (np.arange(1, 60, dtype=F32),)),
    ("x * 2 / 2", lambda x: x * 2.0 / 2.0, (f32(3e38, 1),)),
    ("(x + y) - y", lambda x, y: (x + y) - y, (f32(1, 1e-9), f32(1e9, 1))),
    ("x ** 2 by multiplication", lambda x: x * x, (f32(1e-30, 1e30, -3),)),
    ("compare with itself", lambda x: x == x, (f32(NAN, INF, 0),)),
    ("select keeps NaN", lambda x, y: af.where(x < y, x, y) if isinstance(x, af_tensor()) else np.where(x < y, x, y),
     (f32(NAN, 1, NAN), f32(1, NAN, NAN))),
    ("sums of signed zeros", lambda x, y: x + y, (f32(0, -0.0, -0.0), f32(-0.0, 0, -0.0))),
    ("denormals add", lambda x, y: x + y - y * 0.5, (f32(1e-45, 1e-40), f32(2e-45, 3e-39))),
    ("denormal product", lambda x, y: x * y, (f32(1e-30, 1e-25), f32(1e-12, 1e-20))),
)  # fmt: skip


def af_tensor() -> type:
    from autofusion.frontends.tracer import Tensor

    return Tensor


@pytest.mark.parametrize(("name", "function", "arrays"), ARITHMETIC, ids=[case[0] for case in ARITHMETIC])
@pytest.mark.parametrize("dtype", (F32, F64), ids=("float32", "float64"))
def test_arithmetic_is_as_written(name: str, function: Any, arrays: tuple[Array, ...], dtype: Any) -> None:
    wide = [np.tile(a, 19).astype(dtype) for a in arrays]
    with np.errstate(all="ignore"):
        expected = function(*wide)
    assert_bits(run(function, *wide), expected)


def test_opposite_huge_products_cancel_in_every_lane() -> None:
    rng = np.random.default_rng(0)
    a = rng.uniform(1e10, 1e11, 77).astype(F32)
    x = rng.uniform(1e10, 1e11, 77).astype(F32)
    assert_bits(run(lambda a, x, b: a * x + b * x, a, x, -a), np.zeros(77, F32))


@pytest.mark.parametrize("dtype", FLOATS)
def test_products_of_reduced_types_are_not_contracted_either(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    a, b = (random_array(rng, dtype, 77) for _ in range(2))
    assert_bits(run(lambda a, b: a * b - a * b, a, b), np.zeros(77, dtype.numpy))


# -- NaN, zeros, denormals -------------------------------------------------------------------------------------------
EDGES: tuple[tuple[str, Callable[..., Any], tuple[Array, ...], Array], ...] = (
    ("log of a denormal", af.log, (f32(1e-40, 1e-45),), f32(-92.10340371976183, -103.27892990343185)),
    ("exp to a denormal", af.exp, (f32(-100, -103.5),), f32(3.783506e-44, 1e-45)),
    ("floor division", lambda a, b: a // b, (f32(1, 0.5, 6), f32(0.1, 0.1, 0.2)), f32(9, 4, 29)),
    ("floor division by infinity", lambda a, b: a // b, (f32(-1, 1, -0.5), f32(INF, -INF, INF)), f32(-1, -1, -1)),
    ("remainder signs", lambda a, b: a % b, (f32(5, -5, 5, -5), f32(3, 3, -3, -3)), f32(2, 1, -1, -2)),
    ("remainder zeros", lambda a, b: a % b, (f32(4, -4, 4, -4), f32(2, 2, -2, -2)), f32(0, 0, -0.0, -0.0)),
    ("remainder of infinities", lambda a, b: a % b, (f32(1, -1, INF, 1), f32(INF, INF, 2, 0)), f32(1, INF, NAN, NAN)),
    ("relu", af.relu, (f32(NAN, -INF, INF, 2),), f32(NAN, 0, INF, 2)),
    ("clamp", lambda x: af.minimum(af.maximum(x, -1.0), 1.0), (f32(NAN, -9, 9, 0.5),), f32(NAN, -1, 1, 0.5)),
    ("maximum of a NaN number", lambda x: af.maximum(x, math.nan), (f32(1, 2),), f32(NAN, NAN)),
    ("minimum of a NaN number", lambda x: af.minimum(math.nan, x), (f32(1, 2),), f32(NAN, NAN)),
    ("sqrt", af.sqrt, (f32(-0.0, -1, INF, 1e-45),), f32(-0.0, NAN, INF, 3.7433923e-23)),
    ("rsqrt", af.rsqrt, (f32(0, INF, 4),), f32(INF, 0, 0.5)),
    ("sigmoid", af.sigmoid, (f32(-200, 200, INF, -INF, NAN),), f32(0, 1, 1, 0, NAN)),
    ("tanh", af.tanh, (f32(INF, -INF, -0.0, 1e-45),), f32(1, -1, -0.0, 1e-45)),
)  # fmt: skip


@pytest.mark.parametrize(("name", "function", "arrays", "expected"), EDGES, ids=[case[0] for case in EDGES])
def test_edges(name: str, function: Any, arrays: tuple[Array, ...], expected: Array) -> None:
    found = run(function, *arrays)
    assert_close(found, expected, 4, scale=0)
    assert np.signbit(found[found == 0]).tolist() == np.signbit(expected[found == 0]).tolist()


# -- rows of infinities ----------------------------------------------------------------------------------------------
ROWS: tuple[tuple[str, Callable[[Any], Any], tuple[float, ...], tuple[float, ...]], ...] = (
    ("softmax of -inf", lambda x: af.softmax(x, axis=-1), (-INF,) * 5, (NAN,) * 5),
    ("log_softmax of -inf", lambda x: af.log_softmax(x, axis=-1), (-INF,) * 5, (NAN,) * 5),
    ("logsumexp of -inf", lambda x: af.logsumexp(x, axis=-1), (-INF,) * 5, (-INF,)),
    ("softmax beside -inf", lambda x: af.softmax(x, axis=-1), (-INF, 0, -INF, 0, -INF), (0, 0.5, 0, 0.5, 0)),
    ("logsumexp of inf", lambda x: af.logsumexp(x, axis=-1), (INF, 1, 2, 3, 4), (INF,)),
    ("softmax of huge values", lambda x: af.softmax(x, axis=-1), (1e38, 1e38, 0, 0, 0), (0.5, 0.5, 0, 0, 0)),
    ("softmax of scaled values", lambda x: af.softmax(x * 1e30, axis=-1), (1e9, 1, 0, 0, 1e9), (NAN,) * 5),
    ("softmax after a negative scale", lambda x: af.softmax(x * -1e30, axis=-1), (1e8, -1e8, 0, 0, 0), (0, 1, 0, 0, 0)),
    ("NaN in a row", lambda x: af.softmax(x, axis=-1), (1, 2, NAN, 3, 4), (NAN,) * 5),
    ("max of a row", lambda x: af.max(x, axis=-1), (1, NAN, 3, INF, 0), (NAN,)),
    ("min of a row", lambda x: af.min(x, axis=-1), (1, 2, -INF, NAN, 0), (NAN,)),
)


@pytest.mark.parametrize(("name", "function", "row", "expected"), ROWS, ids=[case[0] for case in ROWS])
def test_rows_of_infinities(name: str, function: Any, row: tuple[float, ...], expected: tuple[float, ...]) -> None:
    """Among ordinary rows, which must not notice."""
    x = np.ones((3, 5), F32)
    x[1] = row
    found = np.asarray(run(function, x)).reshape(3, -1)
    assert_close(found[1], np.array(expected, F32), 32)
    assert np.isfinite(found[[0, 2]]).all()


# -- folds of nothing and of one -------------------------------------------------------------------------------------
LITTLE: tuple[tuple[str, Callable[[Any], Any], tuple[int, ...], float], ...] = (
    ("mean of nothing", lambda x: af.mean(x), (0,), NAN),
    ("mean of nothing by rows", lambda x: af.mean(x, axis=1), (3, 0), NAN),
    ("var of nothing", lambda x: af.var(x, ddof=1), (0,), NAN),
    ("var of one", lambda x: af.var(x, ddof=1), (1,), NAN),
    ("var of one, uncorrected", lambda x: af.var(x, ddof=0), (1,), 0),
    ("sum of nothing", lambda x: af.sum(x, axis=1), (3, 0), 0),
    ("prod of nothing", lambda x: af.prod(x), (0,), 1),
    ("mean of one", lambda x: af.mean(x), (1,), 1),
)


@pytest.mark.parametrize(("name", "function", "shape", "expected"), LITTLE, ids=[case[0] for case in LITTLE])
@pytest.mark.parametrize("dtype", FLOATS)
def test_folds_of_little(name: str, function: Any, shape: tuple[int, ...], expected: float, dtype: DType) -> None:
    found = np.asarray(run(function, np.ones(shape, dtype.numpy)))
    assert np.array_equal(found.astype(F64), np.full(found.shape, expected), equal_nan=True)


def test_max_of_nothing_is_an_error() -> None:
    with pytest.raises(af.AutofusionError, match="empty"):
        run(lambda x: af.max(x), np.ones(0, F32))


# -- accuracy of long sums -------------------------------------------------------------------------------------------
COUNT = 10_000_000
LONG: tuple[tuple[str, Callable[[Array], Array], Any], ...] = (
    ("all", lambda x: x, None),
    ("one long row", lambda x: x.reshape(1, -1), 1),
    ("columns of a tall matrix", lambda x: x.reshape(-1, 10), 0),
    ("rows of a wide matrix", lambda x: x.reshape(10, -1), 1),
    ("outer axes", lambda x: x.reshape(1000, 10, 1000), (0, 2)),
    ("strided", lambda x: x[::2], None),
    ("transposed", lambda x: x.reshape(1000, -1).T, 0),
    ("backwards", lambda x: x[::-1], None),
)


@pytest.mark.parametrize(("name", "shaped", "axis"), LONG, ids=[case[0] for case in LONG])
def test_long_sums_are_pairwise_accurate(name: str, shaped: Any, axis: Any) -> None:
    """|error| ≤ (log2 n + 1) · eps / 2 · Σ|x|, the bound of a pairwise sum; n ones in sequence would be off by far."""
    rng = np.random.default_rng(3)
    for values in (rng.uniform(0, 1, COUNT).astype(F32), np.full(COUNT, F32(0.1)), rng.normal(0, 1, COUNT).astype(F32)):
        x = shaped(values)
        found = np.asarray(run(lambda x: af.sum(x, axis=axis), x))
        exact = x.astype(F64).sum(axis=axis)
        size = np.abs(x.astype(F64)).sum(axis=axis)
        assert np.all(np.abs(found - exact) <= (math.log2(COUNT) + 1) * 2.0**-24 * size)


def test_a_long_mean_of_halves_is_exact_enough() -> None:
    x = np.full(COUNT, F16.type(0.1))
    assert_close(run(lambda x: af.mean(x), x), np.asarray(x.astype(F64).mean().astype(F16)), 1)


@pytest.mark.parametrize("mean", (1e4, 1e6, -1e7))
def test_variance_with_a_huge_mean(mean: float) -> None:
    rng = np.random.default_rng(4)
    x = (rng.normal(0, 1, (7, 5000)) + mean).astype(F32)
    found = run(lambda x: af.var(x, axis=1, ddof=0), x)
    exact = x.astype(F64).var(axis=1)
    assert np.all(np.abs(found - exact) <= 1e-3 * exact + 2 * (2.0**-24 * abs(mean)) ** 2)
    norm = run(lambda x: af.layer_norm(x), x)
    wide = x.astype(F64)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    assert np.abs(norm - expected).max() <= 4 * 2.0**-24 * abs(mean) + 1e-4  # the mean is a float32 itself


# -- reduced precision -----------------------------------------------------------------------------------------------
REDUCED = (DType.FLOAT16, DType.BFLOAT16)


@pytest.mark.parametrize("dtype", REDUCED)
def test_strict_equals_eager_bit_for_bit(dtype: DType) -> None:
    """A chain of exactly rounded operators, every one rounded as it goes."""
    F = GraphBuilder("chain")
    a, b = F.input("a", dtype, (5, 77)), F.input("b", dtype, (77,))
    x = F.add(a, b)
    x = F.mul(x, F.sub(b, 0.3))
    x = F.div(x, F.add(F.abs(b), 0.7))
    x = F.sqrt(F.abs(x))
    x = F.where(F.lt(x, a), F.neg(x), F.maximum(x, b))
    x = F.remainder(F.mul(x, 3.0), 0.7)
    F.output(x)
    F.output(F.add(F.floor(x), F.cast(F.cast(x, dtype=DType.INT8), dtype=dtype)))
    graph = F.build()
    strict = api.compile_graph(graph, numerics="strict")
    assert strict.stats["kernels"] == 1
    rng = np.random.default_rng(2)
    for values in (random_array(rng, dtype, (5, 77)), np.resize(edges_of(dtype), (5, 77))):
        arrays = [values, random_array(rng, dtype, (77,))]
        for found, expected in zip(strict.run(arrays), evaluate.run(graph, arrays), strict=True):
            assert_bits(found, expected)


@pytest.mark.parametrize("dtype", REDUCED)
def test_default_is_never_less_accurate_than_op_by_op(dtype: DType) -> None:
    def chain(x: Any, y: Any) -> Any:
        for _ in range(8):
            x = x * y + x
        return x

    rng = np.random.default_rng(2)
    x, y = (random_array(rng, dtype, 4000, (0.01, 0.5)) for _ in range(2))
    exact = chain(x.astype(F64), y.astype(F64))
    errors = [np.abs(run(chain, x, y, numerics=n).astype(F64) - exact) / exact for n in ("default", "strict")]
    assert errors[0].max() <= 2.0 ** (-8 if dtype is DType.BFLOAT16 else -11) * 1.01
    assert errors[0].mean() < errors[1].mean()


@pytest.mark.parametrize("numerics", ("default", "strict"))
@pytest.mark.parametrize("dtype", REDUCED)
def test_a_written_cast_always_rounds(dtype: DType, numerics: str) -> None:
    x = np.linspace(0.1, 3, 77, dtype=F32)
    found = run(lambda x: (x + 0.1).astype(dtype).astype("float32") * 3.0, x, numerics=numerics)
    assert_bits(found, (x + F32(0.1)).astype(dtype.numpy).astype(F32) * F32(3))
    twice = run(lambda x: x.astype(dtype).astype("float64").astype("float32"), x, numerics=numerics)
    assert_bits(twice, x.astype(dtype.numpy).astype(F32))


@pytest.mark.parametrize("numerics", ("default", "strict"))
def test_an_output_is_rounded_once_and_readers_outside_see_it(numerics: str) -> None:
    """The value is an output and is read again: by another call, it is what the output holds."""
    x = np.linspace(0.1, 3, 77).astype(BF16)
    first, second = run(lambda x: (x * 1.1, (x * 1.1) * 1.3), x, numerics=numerics)
    assert_bits(first, (x.astype(F32) * F32(BF16.type(1.1))).astype(BF16))
    assert second.dtype == BF16


@pytest.mark.parametrize("dtype", REDUCED)
def test_numbers_beside_reduced_arrays_are_of_their_type(dtype: DType) -> None:
    x = np.arange(1, 78).astype(dtype.numpy)
    for numerics in ("default", "strict"):
        expected = (x.astype(F32) * F32(dtype.numpy.type(0.1))).astype(dtype.numpy)
        assert_bits(run(lambda x: x * 0.1, x, numerics=numerics), expected)


# -- integers --------------------------------------------------------------------------------------------------------
INTEGERS: tuple[tuple[str, Callable[..., Any], tuple[Array, ...], Any], ...] = (
    ("200 + 100", lambda a, b: a + b, (np.uint8([200]), np.uint8([100])), np.uint8([44])),
    ("wrap before widening", lambda a, b: (a + b).astype("int32"), (np.uint8([200]), np.uint8([100])), np.int32([44])),
    ("wrap before a float", lambda a, b: (a * b).astype("float32"), (np.int8([100]), np.int8([3])), f32(44)),
    ("wrap before a comparison", lambda a, b: (a + b) < a, (np.uint8([200]), np.uint8([100])), np.array([True])),
    ("wrap before a division", lambda a, b: (a + b) // b, (np.uint8([200]), np.uint8([100])), np.uint8([0])),
    ("wrap before a maximum", lambda a, b: af.maximum(a * b, b), (np.int8([100]), np.int8([2])), np.int8([2])),
    ("negation of the least", lambda a: -a, (np.int32([-(2**31)]),), np.int32([-(2**31)])),
    ("abs of the least", lambda a: abs(a), (np.int8([-128]),), np.int8([-128])),
    ("sum of uint8", lambda a: af.sum(a), (np.full(1000, 255, np.uint8),), np.int64(255_000)),
    ("sum of booleans", lambda a: af.sum(a), (np.ones(1000, bool),), np.int64(1000)),
    ("int64 products wrap", lambda a: a * a, (np.int64([2**40 + 1]),), np.int64([(2**41 + 1)])),
    ("uint64 to float", lambda a: a.astype("float32"), (np.uint64([2**64 - 1, 2**63]),), f32(2.0**64, 2.0**63)),
    ("int64 to float", lambda a: a.astype("float32"), (np.int64([2**53 + 1, 16777217]),), f32(2.0**53, 16777216)),
)  # fmt: skip


@pytest.mark.parametrize(("name", "function", "arrays", "expected"), INTEGERS, ids=[case[0] for case in INTEGERS])
def test_integers(name: str, function: Any, arrays: tuple[Array, ...], expected: Any) -> None:
    assert_bits(np.asarray(run(function, *arrays)), np.asarray(expected))


@pytest.mark.parametrize("dtype", [t for t in DType if t.is_integer])
def test_integer_division_never_traps(dtype: DType) -> None:
    """Every pair of edge values, zero and -1 among the divisors, at every position of a vector."""
    edges = edges_of(dtype)
    a, b = (x.reshape(-1) for x in np.meshgrid(edges, edges))
    rows = [r for r in TABLE if r.kind is Kind.ELEMENTWISE and dtype in r.dtypes and "divide" in r.name]
    F = GraphBuilder("divide")
    x, y = F.input("x", dtype, a.shape), F.input("y", dtype, a.shape)
    for row in [*rows, TABLE.get("remainder"), TABLE.get("int_remainder")]:
        F.output(F.emit(row.name, [x, y], {}))
    graph = F.build()
    for shift in range(len(a)):
        arrays = [np.roll(a, shift), np.roll(b, shift)]
        if shift == 0:
            compiled = api.compile_graph(graph)
        for found, expected in zip(compiled.run(arrays), evaluate.run(graph, arrays), strict=True):
            assert_bits(found, expected)


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("result", [t for t in DType if t.is_integer])
def test_casts_to_integers_saturate(source: DType, result: DType) -> None:
    limits = np.iinfo(result.numpy)
    wanted = [NAN, INF, -INF, 0.9, -0.9, limits.max, limits.min, limits.max * 1.5, limits.min * 1.5 - 1.5]
    with np.errstate(over="ignore"):
        x = np.array([float(v) for v in wanted]).astype(source.numpy)
    found = run(lambda x: x.astype(result), np.tile(x, 5))[: len(x)]
    for value, each in zip(x.astype(F64), found, strict=True):
        low, high = int(limits.min), int(limits.max)
        exact = 0 if math.isnan(value) else high if value >= high else low if value <= low else math.trunc(value)
        assert int(each) == exact
