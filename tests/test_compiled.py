"""Every row of the op table, compiled for this CPU, against its reference: element types x shapes x values.

All rows that admit an element type are outputs of one graph for each shape, and each output is a kernel of its own. The
graph is compiled once and called many times: values are rolled through it so that every pair of edge values meets, and
every edge value passes every lane, the masked tail included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from oracle import SAMPLES, At, assert_bits, assert_close, attributes_of, edges_of, error_scale, random_array, sample

from autofusion import api, dtypes
from autofusion.dtypes import Array, DType
from autofusion.errors import ShapeError
from autofusion.graph import evaluate
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Value
from autofusion.ops import TABLE, Kind, Op

Shape = tuple[int, ...]
SHAPES: tuple[Shape, ...] = ((), (1,), (7,), (64,), (3, 5), (17, 33), (2, 3, 4, 5), (0,), (3, 0, 2))
QUICK: tuple[Shape, ...] = ((), (7,), (17, 33))
QUICK_STRUCTURE: tuple[Shape, ...] = ((3, 5), (0,), (3, 0, 2))
ROUNDS = 40  # calls of one compiled graph with other values

# Rows whose result is the reference's bit for bit: exactly rounded, or no arithmetic at all.
EXACT = frozenset((
    "add", "sub", "mul", "div", "int_floor_divide", "int_remainder", "fmod", "floor_divide", "remainder", "neg",
    "abs", "copy", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not",
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "isnan", "where", "cast", "sqrt", "rsqrt", "floor",
    "ceil", "trunc", "round", "reciprocal", "square", "reshape", "transpose", "expand", "slice", "concat",
    "slice_update", "gather", "any", "all", "frac", "sign", "copysign", "signbit", "isinf", "isfinite", "nan_to_num",
    "shift_left", "shift_right", "int_truncate_divide", "int_truncate_remainder", "heaviside", "thresholded_relu",
    "argmax", "argmin", "hardmax", "count_nonzero",
))  # fmt: skip
# Of opposite zeros either may be the result.
EITHER_ZERO = frozenset((
    "maximum", "minimum", "relu", "max", "min", "fmax", "fmin", "clip", "hardtanh", "relu6", "cummax", "cummin",
    "max_pool", "global_max_pool", "window_max", "window_min",
))  # fmt: skip
SUMS = frozenset(("sum", "mean", "cumsum", "window_sum"))


def shapes(quick: Sequence[Shape]) -> list[Any]:
    return [pytest.param(s, id=str(s), marks=() if s in quick else pytest.mark.full) for s in SHAPES]


@dataclass
class Case:
    """One output: its row, the attributes, and which inputs of the graph it reads."""

    row: Op
    attrs: dict[str, Any]
    inputs: list[Value]


class Batch:
    """A graph in which every case is an output."""

    def __init__(self) -> None:
        self.F = GraphBuilder("batch")
        self.inputs: list[Value] = []
        self.cases: list[Case] = []

    def input(self, dtype: DType, shape: Shape) -> Value:
        value = self.F.input(f"x{len(self.inputs)}", dtype, shape)
        self.inputs.append(value)
        return value

    def add(self, row: Op, inputs: list[Value], attrs: dict[str, Any]) -> None:
        """Raises nothing for a fold of nothing that is an error by its row: there is no such case then."""
        try:
            self.F.output(self.F.emit(row.name, inputs, attrs))
        except ShapeError as error:
            if "of nothing" in str(error):
                return
            raise
        self.cases.append(Case(row, row.complete(attrs), inputs))

    def check(self, draws: Iterator[list[Array]], numerics: Sequence[str]) -> None:
        """Compile, call with each draw, compare every output. All draws run before the first failure is told."""
        graph = self.F.build()
        compiled = [api.compile_graph(graph, numerics=n) for n in numerics]
        wrong: dict[str, str] = {}
        for arrays in draws:
            expected = evaluate.run(graph, arrays)
            values = {v.name: a for v, a in zip(self.inputs, arrays, strict=True)}
            for each, mode in zip(compiled, numerics, strict=True):
                for case, found, wanted in zip(self.cases, each.run(arrays), expected, strict=True):
                    operands = [values[v.name] for v in case.inputs]
                    try:
                        compare(case, operands, found, wanted)
                    except AssertionError as error:
                        shown = " ".join(f"{o.dtype}{o.shape}" for o in operands)
                        wrong.setdefault(f"{mode} {case.row.name} {case.attrs} of {shown}", str(error))
        assert not wrong, "\n".join(f"{name}: {text[:600]}" for name, text in wrong.items())


def compare(case: Case, operands: list[Array], found: Array, expected: Array) -> None:
    """By the row: bits, values, the bound of a sum, or the row's tolerance."""
    row = case.row
    if row.name in EXACT:
        assert_bits(found, expected)
    elif row.name in EITHER_ZERO:
        assert_close(found, expected, 0, scale=0)
    elif math.isinf(row.tolerance) and row.name in SAMPLES:
        assert_close(found, expected, 16, error_scale(row, operands, case.attrs))
    elif row.kind is Kind.CONTRACT:
        assert_close(found, expected, operands[0].shape[-1] + 1, error_scale(row, operands, case.attrs))
    elif row.name in SUMS:
        terms = max(2, operands[0].size)
        with np.errstate(all="ignore"):
            assert_close(found, expected, math.log2(terms) + 2, error_scale(row, operands, case.attrs))
    elif row.name in ("l2_norm", "norm", "lp_pool"):
        assert_close(found, expected, row.tolerance, scale=1e-16)  # squares on the way there may underflow
    elif row.name in ("prod", "cumprod"):
        tiny = 16 * float(ml_dtypes.finfo(found.dtype).smallest_normal) if dtypes.of(found).is_float else 0
        assert_close(found, expected, max(2, operands[0].size), scale=tiny)  # products on the way there may underflow
    else:
        assert_close(found, expected, row.tolerance, scale=None if row.lower else 0)


def modes(dtype: DType) -> tuple[str, ...]:
    return ("default", "strict") if dtype.is_reduced else ("default",)


def test_digamma_beside_its_poles() -> None:
    """The distance to the pole is exact; of a fraction near 1 its tangent would have a few digits only."""
    batch = Batch()
    batch.add(TABLE.get("digamma"), [batch.input(DType.FLOAT32, (4,))], {})
    batch.check(iter([[np.float32([-3.999639, -2.0000005, -7.0001, -0.9999])]]), ("default",))


# -- elementwise -----------------------------------------------------------------------------------------------------
def rolled(dtype: DType, shape: Shape) -> Iterator[list[Array]]:
    """Operands a, b and a condition: all pairs of edge values, half of them with ordinary values among them."""
    rng = np.random.default_rng(7)
    edges, size = edges_of(dtype), math.prod(shape)
    rounds = min(ROUNDS, -(-(len(edges) ** 2) // max(size, 1)) + 1) if size else 1
    for number in range(rounds):
        at = np.arange(size) + number * (size + 1)
        a, b = edges[at % len(edges)], edges[at // len(edges) % len(edges)]
        if number % 2:
            kept = rng.integers(0, 2, (2, size)).astype(bool)
            a = np.where(kept[0], a, random_array(rng, dtype, size, (-4.0, 8.0)))
            b = np.where(kept[1], b, random_array(rng, dtype, size, (0.01, 4.0)))
        yield [a.reshape(shape), b.reshape(shape), (at % 3 == 0).reshape(shape)]


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("shape", shapes(QUICK))
def test_elementwise_rows(dtype: DType, shape: Shape) -> None:
    batch = Batch()
    a, b, condition = batch.input(dtype, shape), batch.input(dtype, shape), batch.input(DType.BOOL, shape)
    for row in TABLE:
        if row.kind is not Kind.ELEMENTWISE:
            continue
        if row.name == "where":
            batch.add(row, [condition, a, b], {})
        elif dtype in row.dtypes:
            for attrs in attributes_of(row):
                batch.add(row, [a, b, a][: int(row.arity)], attrs)  # type: ignore[call-overload]
    batch.check(rolled(dtype, shape), modes(dtype))


@pytest.mark.parametrize("dtype", (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64))
@pytest.mark.parametrize("name", ("maximum", "minimum", "relu", "max", "min", "clamped"))
def test_nan_passes_at_every_position(name: str, dtype: DType) -> None:
    """One NaN at a time, in either operand, at each of 70 positions: every lane of a full vector and of the tail."""
    F = GraphBuilder("nan")
    a, b = F.input("a", dtype, (70,)), F.input("b", dtype, (70,))
    results = {
        "maximum": lambda: F.maximum(a, b),
        "minimum": lambda: F.minimum(a, b),
        "relu": lambda: F.relu(F.add(a, b)),
        "max": lambda: F.max(F.add(a, b)),
        "min": lambda: F.min(F.add(b, a), axes=(0,), keepdims=True),
        "clamped": lambda: F.minimum(F.maximum(F.add(a, b), -1.0), 1.0),
    }
    F.output(results[name]())
    run = api.compile_graph(F.build())
    ones = np.ones(70, dtype.numpy)
    for position in range(70):
        holed = ones.copy()
        holed[position] = np.nan
        for operands in ((holed, ones), (ones, holed)):
            found = np.isnan(run(*operands).astype(np.float64))
            assert found.sum() == 1 and (found.size == 1 or found[position])


# -- broadcasting: operands of every pattern of ones -----------------------------------------------------------------
BROADCASTS: tuple[tuple[Shape, Shape], ...] = (
    ((17, 33), (33,)),
    ((17, 33), (17, 1)),
    ((17, 1), (1, 33)),
    ((33,), ()),
    ((1, 1), (5, 7)),
    ((2, 1, 4, 1), (3, 1, 70)),
    ((0, 5), (1,)),
    ((1,) * 8, (2, 1, 3, 1, 1, 2, 1, 9)),
)


@pytest.mark.parametrize(("left", "right"), BROADCASTS, ids=str)
@pytest.mark.parametrize("dtype", (DType.FLOAT32, DType.BOOL, DType.INT8, DType.BFLOAT16))
def test_broadcasting(dtype: DType, left: Shape, right: Shape) -> None:
    batch = Batch()
    a, b, condition = batch.input(dtype, left), batch.input(dtype, right), batch.input(DType.BOOL, right)
    for name in ("maximum", "lt", *(("sub", "mul") if dtype is not DType.BOOL else ("logical_xor",))):
        batch.add(TABLE.get(name), [a, b], {})
        batch.add(TABLE.get(name), [b, a], {})
    batch.add(TABLE.get("where"), [condition, a, b], {})
    rng = np.random.default_rng(3)
    batch.check(iter([[random_array(rng, v.dtype, v.shape) for v in batch.inputs]]), modes(dtype))


# -- reductions, scans, compositions ---------------------------------------------------------------------------------
def folded(row: Op, shape: Shape) -> Iterator[dict[str, Any]]:
    """Attributes for a row that takes axes, by the names of its attributes."""
    rank, names = len(shape), tuple(row.attributes)
    if "axes" in names:
        listed = [None, (), *((d,) for d in range(rank)), *([(0, -1)] if rank > 1 else [])]
        for number, axes in enumerate(listed):
            attrs = {"axes": axes, "keepdims": number % 2 == 1}
            yield attrs | ({"correction": number % 3} if "correction" in names else {})
    elif "axis" in names:
        yield from ({"axis": d} for d in range(-rank, 0))
    else:
        yield from ({"rank": r, "epsilon": 1e-3} for r in range(1, rank + 1))


def moderate(dtype: DType) -> Array:
    """Edge values whose sums do not overflow: the order of additions is not the reference's."""
    edges = edges_of(dtype)
    return edges[~(np.abs(edges.astype(np.float64)) > 1e4) | np.isinf(edges)] if dtype.is_float else edges


def fold_values(dtype: DType, inputs: Sequence[Value]) -> Iterator[list[Array]]:
    """Ordinary values; then each edge value in turn at places of its own; then edge values alone."""
    rng = np.random.default_rng(11)
    yield [signed(rng, random_array(rng, dtype, v.shape, (0.7, 1.4))) for v in inputs]
    for number, edge in enumerate(moderate(dtype)):
        arrays = [random_array(rng, dtype, v.shape, (0.5, 1.5)) for v in inputs]
        if arrays[0].size:
            arrays[0].flat[(7 * number + 3) % arrays[0].size] = edge
        yield arrays
    if not dtype.is_float:
        yield [rng.choice(edges_of(dtype), v.shape).astype(dtype.numpy) for v in inputs]


def signed(rng: np.random.Generator, values: Array) -> Array:
    """The values with random signs: sums cancel, products neither overflow nor underflow."""
    if not dtypes.of(values).is_signed:
        return values
    return np.asarray(np.where(rng.random(values.shape) < 0.5, values, -values))


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("shape", shapes(((17, 33), (), (3, 0, 2))))
def test_folding_rows(dtype: DType, shape: Shape) -> None:
    batch = Batch()
    x = batch.input(dtype, shape)
    affine = [[batch.input(dtype, shape[-r:]) for _ in range(2)] for r in range(1, len(shape) + 1)]
    for row in TABLE:
        if row.kind not in (Kind.REDUCE, Kind.SCAN) or dtype not in row.dtypes or row.name in SAMPLES:
            continue
        for attrs in folded(row, shape):
            most = row.arity[1] if isinstance(row.arity, tuple) else row.arity
            more = affine[attrs["rank"] - 1][: (most or 1) - 1] if "rank" in attrs else []
            batch.add(row, [x, *more], attrs)
    batch.check(fold_values(dtype, batch.inputs), modes(dtype))


# -- views, joins, gathers -------------------------------------------------------------------------------------------
def divided(shape: Shape) -> Iterator[Shape]:
    size = math.prod(shape)
    yield (size,)
    yield (1, size, 1)
    if len(shape) > 1:
        yield (shape[0] * shape[1], *shape[2:])
        yield tuple(reversed(shape))


def sliced(shape: Shape) -> Iterator[dict[str, Any]]:
    rank = len(shape)
    for start, stop, step in ((0, 99, 2), (-1, -99, -1), (1, -1, 1), (99, 0, -3), (2, 2, 1), (-1, 99, 1)):
        yield {"starts": (start,) * rank, "stops": (stop,) * rank, "steps": (step,) * rank}


def structural(batch: Batch, dtype: DType, shape: Shape) -> None:
    """Cases of every row that moves elements."""
    rank = len(shape)
    x, y = batch.input(dtype, shape), batch.input(dtype, shape)
    scalar = batch.input(dtype, ())
    positions = [batch.input(t, s) for t, s in ((DType.INT64, ()), (DType.INT32, (5,)), (DType.INT64, (2, 3)))]
    rows: dict[str, Callable[[], Iterator[tuple[list[Value], dict[str, Any]]]]] = {
        "reshape": lambda: (([x], {"shape": s}) for s in divided(shape)),
        "transpose": lambda: (([x], {"axes": a}) for a in (None, tuple(range(1, rank)) + tuple(range(min(rank, 1))))),
        "expand": lambda: (([v], {"shape": (2, *shape)}) for v in (x, scalar)),
        "slice": lambda: (([x], a) for a in sliced(shape)),
        "slice_update": lambda: (([x, scalar], a) for a in sliced(shape)),
        "concat": lambda: (([x, y, x], {"axis": a}) for a in range(-rank, 0)),
        "gather": lambda: (
            ([x, p], {"axis": a}) for a in range(rank) for p in positions if shape[a] or math.prod(p.shape) == 0
        ),
        "full": lambda: (([], {"shape": shape, "value": v, "dtype": dtype}) for v in (0, 1, -1, 2.5, -0.0, 300)),
        "iota": lambda: (([], {"shape": shape, "axis": a, "dtype": dtype}) for a in range(rank)),
        "eye": lambda: (([], {"rows": 5, "columns": 7, "k": k, "dtype": dtype}) for k in (0, 2, -9)),
    }
    missing = {r.name for r in TABLE if r.kind in MOVING} - set(rows) - set(SAMPLES)
    for name, cases in rows.items():
        for inputs, attrs in cases():
            batch.add(TABLE.get(name), inputs, attrs)
    for row in TABLE:
        if row.kind is Kind.COMM:
            batch.add(row, [x], {})
            missing.discard(row.name)
    assert not missing, f"no cases for {missing}"


MOVING = (Kind.SOURCE, Kind.BROADCAST, Kind.VIEW, Kind.JOIN, Kind.GATHER, Kind.COMM)
EXACT |= {row.name for row in TABLE if row.kind in MOVING}


def structural_values(dtype: DType, batch: Batch) -> Iterator[list[Array]]:
    rng = np.random.default_rng(5)
    least = min((n for v in batch.inputs[:1] for n in v.shape), default=1)
    for values in (random_array(rng, dtype, 64), edges_of(dtype)):
        arrays = []
        for value in batch.inputs:
            if value.dtype in (DType.INT32, DType.INT64) and value in batch.inputs[3:]:
                arrays.append(rng.integers(-least, max(least, 1), value.shape).astype(value.dtype.numpy))
            else:
                arrays.append(rng.choice(values, value.shape).astype(dtype.numpy))
        yield [np.asarray(a) for a in arrays]


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("shape", shapes(QUICK_STRUCTURE))
def test_moving_rows(dtype: DType, shape: Shape) -> None:
    batch = Batch()
    structural(batch, dtype, shape)
    batch.check(structural_values(dtype, batch), ("default",))


# -- rows with samples of their own ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "dtype", [pytest.param(t, marks=() if t in (DType.FLOAT32, DType.INT32) else pytest.mark.full) for t in DType]
)
def test_sampled_rows(dtype: DType) -> None:
    batch, operands = Batch(), []
    for name, cases in SAMPLES.items():
        row = TABLE.get(name)
        for given, attrs in cases if dtype in row.dtypes else ():
            shaped = [(g.dtype, g.shape) if isinstance(g, At) else (dtype, g) for g in given]
            batch.add(row, [batch.input(*each) for each in shaped], attrs)
            operands.append((row, given))
    rng = np.random.default_rng(13)

    def draws() -> Iterator[list[Array]]:
        for edges in (False, True, True):
            yield [a for row, given in operands for a in sample(row, dtype, given, rng, edges)]

    batch.check(draws(), modes(dtype))


# -- contractions ----------------------------------------------------------------------------------------------------
PRODUCTS: tuple[tuple[Shape, Shape], ...] = (
    ((1, 1), (1, 1)),
    ((3, 5), (5, 7)),
    ((17, 33), (33, 19)),
    ((1, 64), (64, 40)),
    ((40, 64), (64, 1)),
    ((13, 1), (1, 21)),
    ((0, 5), (5, 3)),
    ((3, 5), (5, 0)),
    ((3, 0), (0, 4)),
    ((2, 1, 3, 5), (4, 5, 6)),
    ((4, 9, 20), (4, 20, 70)),
    ((3, 5), (2, 5, 3)),
    ((7, 900), (900, 130)),
)


@pytest.mark.parametrize("dtype", TABLE.get("matmul").dtypes)
def test_matmul(dtype: DType) -> None:
    batch = Batch()
    for left, right in PRODUCTS:
        batch.add(TABLE.get("matmul"), [batch.input(dtype, left), batch.input(dtype, right)], {})
    for left, right in ((3, 17), (40, 5)):  # transposed operands are read in place
        a, b = batch.input(dtype, (left, right)), batch.input(dtype, (left, 12))
        batch.F.output(batch.F.matmul(batch.F.transpose(a), b))
        batch.cases.append(Case(TRANSPOSED, {}, [a, b]))
    rng = np.random.default_rng(9)

    def draws() -> Iterator[list[Array]]:
        arrays = [random_array(rng, dtype, v.shape) for v in batch.inputs]
        yield arrays
        yield [np.where(rng.random(a.shape) < 0.01, rng.choice(moderate(dtype), a.shape), a) for a in arrays]

    batch.check(draws(), modes(dtype))


def _product(a: Array, b: Array) -> Array:
    return TABLE.get("matmul").reference(a.T, b)


TRANSPOSED = Op(
    "transposed_matmul", Kind.CONTRACT, 2, lambda s, a: (s[0][1], s[1][1]), TABLE.get("matmul").dtype_rule, _product
)


# -- one row fused with others: values that stay in registers --------------------------------------------------------
@pytest.mark.parametrize("dtype", DType)
def test_chains_keep_values_in_registers(dtype: DType) -> None:
    """Each elementwise row between a producer and a consumer; 33 positions, so that lanes and tails hold operands."""
    F = GraphBuilder("chains")
    a, b = F.input("a", dtype, (3, 33)), F.input("b", dtype, (33,))
    condition = F.input("c", DType.BOOL, (3, 1))
    rows = []
    for row in TABLE:
        if row.kind is not Kind.ELEMENTWISE or (dtype not in row.dtypes and row.name != "where"):
            continue
        for attrs in attributes_of(row):
            left, right = F.maximum(a, b), F.minimum(a, b)
            inputs = [condition, left, right] if row.name == "where" else [left, right, left][: int(row.arity)]  # type: ignore[call-overload]
            made = F.emit(row.name, inputs, attrs)
            F.output(F.where(F.eq(a, b), made, F.copy(made)))
            rows.append(row)
    graph = F.build()
    run = api.compile_graph(graph, numerics="strict")
    for x, y, z in rolled(dtype, (3, 33)):
        arrays = [x, y[0], z[:, :1]]
        for row, found, expected in zip(rows, run.run(arrays), evaluate.run(graph, arrays), strict=True):
            if row.name in EXACT and row.name not in ("reciprocal", "rsqrt"):
                assert_close(found, expected, 0, scale=0)  # the operands' zeros may have either sign
            elif row.name not in ("pow", "div", "reciprocal", "rsqrt"):
                assert_close(found, expected, row.tolerance, scale=None if row.lower else 0)
