"""The op table checks itself: every row, every element type it admits, ordinary values and edge values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from oracle import SAMPLES, assert_bits, assert_close, attributes_of, edges_of, error_scale, random_array, sample

from autofusion import dtypes
from autofusion.dims import symbol
from autofusion.dtypes import Array, DType
from autofusion.errors import DTypeError, GraphError, IndexOutOfRange, ShapeError
from autofusion.graph import evaluate, ir
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.ops import TABLE, Kind, Op, TensorType, reference
from autofusion.passes import decompose

F32, F16, BF16 = np.float32, DType.FLOAT16.numpy, DType.BFLOAT16.numpy

# Attribute values to try, by the attribute's name; shapes below have rank 2 where a row takes attributes.
ATTRIBUTES: dict[str, tuple[dict[str, Any], ...]] = {
    "axes keepdims": (
        {"axes": None, "keepdims": False},
        {"axes": (1,), "keepdims": True},
        {"axes": (-2,), "keepdims": False},
        {"axes": (), "keepdims": False},
    ),
    "axes keepdims correction": (
        {"axes": None, "keepdims": False, "correction": 0},
        {"axes": (-1,), "keepdims": True, "correction": 1},
    ),
    "axis": ({"axis": 0}, {"axis": -1}),
    "axis wraps": ({"axis": 0}, {"axis": -1}, {"axis": 0, "wraps": False}),
    "rank epsilon": ({"rank": 1, "epsilon": 1e-5}, {"rank": 2, "epsilon": 0.0}),
    "shape": ({"shape": (1, 35)}, {"shape": (35, 1)}, {"shape": (5, 7)}),
    "axes": ({"axes": None}, {"axes": (0, -1)}),
    "starts stops steps": (
        {"starts": (0, 1), "stops": (5, -1), "steps": (2, 1)},
        {"starts": (-1, 6), "stops": (-9, 2), "steps": (-1, -2)},
        {"starts": (3, 0), "stops": (3, 9), "steps": (1, 3)},
    ),
    "world_size": ({"world_size": 1},),
    "": ({},),
}


def operands(row: Op, dtype: DType, attrs: dict[str, Any], rng: np.random.Generator) -> list[Array]:
    """Ordinary inputs for a row."""

    def array(*shape: int) -> Array:
        return random_array(rng, dtype, shape, row.domain)

    if row.name == "where":
        return [rng.integers(0, 2, (5, 7)).astype(bool), array(5, 7), array(7)]
    if row.kind is Kind.SOURCE:
        return []
    if row.kind is Kind.GATHER:
        return [array(5, 7), rng.integers(-5 if attrs.get("wraps", True) else 0, 5, (2, 3))]
    if row.kind is Kind.CONTRACT:
        return [array(2, 5, 7), array(7, 3)]
    if row.kind is Kind.BROADCAST:
        return [array(*(1 if extent == 35 else extent for extent in attrs["shape"]))]
    if row.kind is Kind.JOIN:
        if "axis" in attrs:
            return [array(5, 7), array(5, 7), array(5, 7)]
        return [array(5, 7), array()]
    if "rank" in attrs:
        most = row.arity[1] if isinstance(row.arity, tuple) else row.arity
        shape = (5, 7)[2 - attrs["rank"] :]
        return [array(5, 7), *(array(*shape) for _ in range((most or 1) - 1))]
    count = row.arity if isinstance(row.arity, int) else 1
    return [array(5, 7), array(7), array(5, 1)][:count]


def edge_operands(row: Op, dtype: DType) -> list[Array]:
    """Every pair of edge values for elementwise rows; rows of edge values for those that fold."""
    edges = edges_of(dtype)
    if row.kind is Kind.ELEMENTWISE:
        if row.name == "where":
            return [np.array([[True], [False]]), edges, edges[::-1]]
        return [edges[:, None], edges[None, :], edges[::-1, None]][: int(row.arity)]  # type: ignore[call-overload]
    if dtype.is_float:
        # The largest values overflow inside a composite, as in eager mode; every other edge must come out.
        edges = edges[np.isinf(edges) | ~(np.abs(edges.astype(np.float64)) > 1e4)]
    ordinary = np.linspace(0.5, 2, 3).astype(dtype.numpy)
    return [np.stack([np.concatenate([ordinary, np.full(4, edge, dtype.numpy)]) for edge in edges])]


def cases() -> Iterator[Any]:
    for row in TABLE:
        if row.kind in (Kind.SOURCE, Kind.OPAQUE) or row.name in SAMPLES:
            continue
        known = attributes_of(row) if row.kind is Kind.ELEMENTWISE else ATTRIBUTES[" ".join(row.attributes)]
        for dtype in DType if row.name == "where" else row.dtypes:
            for attrs in known:
                shown = ",".join(f"{k}={v}" for k, v in attrs.items())
                yield pytest.param(row, dtype, attrs, id=f"{row.name}-{dtype}-{shown}")


def single(row: Op, arrays: list[Array], attrs: Any) -> Graph:
    """The graph of one operator."""
    F = GraphBuilder("one")
    inputs = [F.input(f"x{i}", dtypes.of(a), a.shape) for i, a in enumerate(arrays)]
    F.output(F.emit(row.name, inputs, attrs, "y"))
    return F.build()


def check(row: Op, arrays: list[Array], attrs: dict[str, Any]) -> None:
    attrs = row.complete(attrs)
    given = [a.copy() for a in arrays]
    expected = reference.apply(row, arrays, attrs)
    inferred = row.infer([reference.type_of(a) for a in arrays], attrs)
    assert reference.type_of(expected) == inferred
    graph = decompose.run(single(row, arrays, attrs))
    ir.verify(graph)
    assert all(node.row.lower is None for node in graph.nodes)
    tolerance, scale = (row.tolerance if row.lower else 0), None
    if row.lower and math.isinf(tolerance):  # a contraction: bounded by the sum of |products|
        tolerance, scale = 16, error_scale(row, arrays, attrs)
    assert_close(evaluate.run(graph, arrays)[0], expected, tolerance, scale)
    if row.lower is not None and not dtypes.of(expected).is_reduced:
        assert_close(row.lower(reference.Evaluator(), *arrays, attrs), expected, tolerance, scale)
    for array, before in zip(arrays, given, strict=True):
        assert_bits(array, before)


@pytest.mark.parametrize(("row", "dtype", "attrs"), list(cases()))
def test_row_on_ordinary_values(row: Op, dtype: DType, attrs: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    check(row, operands(row, dtype, attrs, rng), attrs)


@pytest.mark.parametrize(("row", "dtype", "attrs"), list(cases()))
def test_row_on_edge_values(row: Op, dtype: DType, attrs: dict[str, Any]) -> None:
    if row.kind not in (Kind.ELEMENTWISE, Kind.REDUCE, Kind.SCAN) or attrs.get("epsilon") == 0:
        return
    with np.errstate(all="ignore"):
        check(row, edge_operands(row, dtype), attrs)


@pytest.mark.parametrize("edges", (False, True), ids=("ordinary", "edges"))
@pytest.mark.parametrize("name", SAMPLES)
def test_sampled_rows(name: str, edges: bool) -> None:
    row = TABLE.get(name)
    rng = np.random.default_rng(4)
    for dtype in row.dtypes:
        for operands, attrs in SAMPLES[name]:
            with np.errstate(all="ignore"):
                check(row, sample(row, dtype, operands, rng, edges), attrs)


@pytest.mark.parametrize(
    "row", [r for r in TABLE if r.kind is Kind.ELEMENTWISE and not r.attributes], ids=lambda r: r.name
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1,) * 8], ids=str)
def test_elementwise_rows_on_odd_shapes(row: Op, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    dtype = DType.FLOAT32 if DType.FLOAT32 in row.dtypes else row.dtypes[0]
    arrays = [random_array(rng, dtype, shape, row.domain) for _ in range(int(row.arity))]  # type: ignore[call-overload]
    check(row, arrays, {})


@pytest.mark.parametrize(
    "row",
    [r for r in TABLE if r.kind is Kind.REDUCE and ("rank" in r.attributes or list(r.attributes) == ["axis"])],
    ids=lambda r: r.name,
)
@pytest.mark.parametrize("shape", [(1,), (3, 1), (3, 0), (0, 3)], ids=str)
def test_composites_on_odd_shapes(row: Op, shape: tuple[int, ...]) -> None:
    for dtype in (DType.FLOAT32, DType.FLOAT16):
        check(row, [np.ones(shape, dtype.numpy)], {})


# -- what the source frameworks define -------------------------------------------------------------------------------
def apply(name: str, *arrays: Any, **attrs: Any) -> Array:
    """The reference; where the row has a lowering, that must agree."""
    row = TABLE.get(name)
    listed = [np.asarray(a) for a in arrays]
    check(row, listed, attrs)
    return reference.apply(row, listed, row.complete(attrs))


def f32(*values: float) -> Array:
    return np.array(values, F32)


def ints(dtype: Any, *values: int) -> Array:
    return np.array(values, dtype)


NAN, INF = math.nan, math.inf
MIN32 = -(2**31)

SEMANTICS: tuple[tuple[str, tuple[Any, ...], dict[str, Any], Any], ...] = (
    ("floor_divide", (f32(1, 0.5, 6), f32(0.1, 0.1, 0.2)), {}, f32(9, 4, 29)),
    ("floor_divide", (f32(-1, 1, 0, -0.5), f32(INF, -INF, 5, 1)), {}, f32(-1, -1, 0, -1)),
    ("floor_divide", (f32(1, -1, 0), f32(0, 0, 0)), {}, f32(INF, -INF, NAN)),
    ("floor_divide", (ints(np.int32, 7, -7, 5), ints(np.int32, -2, 2, 0)), {}, ints(np.int32, -4, -4, -1)),
    ("floor_divide", (ints(np.int32, MIN32), ints(np.int32, -1)), {}, ints(np.int32, MIN32)),
    ("floor_divide", (ints(np.uint8, 200), ints(np.uint8, 0)), {}, ints(np.uint8, 255)),
    ("remainder", (ints(np.int32, 7, -7, MIN32, 5), ints(np.int32, -2, 2, -1, 0)), {}, ints(np.int32, -1, 1, 0, 5)),
    ("remainder", (f32(5, -5, 5, -5, 1), f32(3, 3, -3, -3, INF)), {}, f32(2, 1, -1, -2, 1)),
    ("add", (ints(np.uint8, 200), ints(np.uint8, 100)), {}, ints(np.uint8, 44)),
    ("mul", (ints(np.int8, 100, -128), ints(np.int8, 3, -1)), {}, ints(np.int8, 44, -128)),
    ("neg", (ints(np.int8, -128, 5),), {}, ints(np.int8, -128, -5)),
    ("abs", (ints(np.int32, MIN32, -5),), {}, ints(np.int32, MIN32, 5)),
    ("mul", (f32(0, INF), f32(NAN, 0)), {}, f32(NAN, NAN)),
    ("maximum", (f32(NAN, 1, NAN), f32(1, NAN, NAN)), {}, f32(NAN, NAN, NAN)),
    ("minimum", (f32(NAN, 1, 2), f32(1, NAN, 3)), {}, f32(NAN, NAN, 2)),
    ("relu", (f32(NAN, -1, 2, -INF, INF),), {}, f32(NAN, 0, 2, 0, INF)),
    ("eq", (f32(NAN, 1), f32(NAN, 1)), {}, np.array([False, True])),
    ("ne", (f32(NAN, 1), f32(NAN, 1)), {}, np.array([True, False])),
    ("isnan", (f32(NAN, INF, 0),), {}, np.array([True, False, False])),
    ("log", (f32(0, -1, INF),), {}, f32(-INF, NAN, INF)),
    ("round", (f32(0.5, 1.5, 2.5, -0.5),), {}, f32(0, 2, 2, -0.0)),
    ("trunc", (f32(-1.7, 1.7),), {}, f32(-1, 1)),
    ("fmod", (f32(5, -5), f32(3, 3)), {}, f32(2, -2)),
    ("cast", (f32(NAN, INF, -INF, -1.9),), {"dtype": DType.INT32}, ints(np.int32, 0, 2**31 - 1, MIN32, -1)),
    ("cast", (f32(3e9, -3e9),), {"dtype": DType.INT32}, ints(np.int32, 2**31 - 1, MIN32)),
    ("cast", (f32(NAN, 300, -5, 7.9),), {"dtype": DType.UINT8}, ints(np.uint8, 0, 255, 0, 7)),
    ("cast", (f32(9.3e18, -9.3e18),), {"dtype": DType.INT64}, ints(np.int64, 2**63 - 1, -(2**63))),
    ("cast", (ints(np.int32, 300, -1),), {"dtype": DType.UINT8}, ints(np.uint8, 44, 255)),
    ("cast", (f32(0, -0.0, NAN, 0.1),), {"dtype": DType.BOOL}, np.array([False, False, True, True])),
    ("cast", (f32(1e6, 65519, 1e-8),), {"dtype": DType.FLOAT16}, np.array([INF, 65504, 0], F16)),
    ("cast", (f32(1 + 2**-8, 1 + 2**-8 + 2**-16),), {"dtype": DType.BFLOAT16}, np.array([1, 1 + 2**-7], BF16)),
    ("sum", (np.zeros((2, 0), F32),), {"axes": (1,)}, f32(0, 0)),
    ("prod", (np.zeros((0,), F32),), {}, F32(1)),
    ("sum", (np.array([True, True]),), {}, np.int64(2)),
    ("sum", (ints(np.uint8, 200, 200),), {}, np.int64(400)),
    ("mean", (np.zeros((0,), F32),), {}, F32(NAN)),
    ("var", (f32(3),), {}, F32(NAN)),
    ("var", (f32(3),), {"correction": 0}, F32(0)),
    ("var", (np.zeros((0,), F32),), {}, F32(NAN)),
    ("var", (f32(1e4, 1e4 + 1),), {}, F32(0.5)),
    ("max", (f32(1, NAN, 3),), {}, F32(NAN)),
    ("min", (f32(1, 2, NAN),), {}, F32(NAN)),
    ("any", (np.zeros(0, bool),), {}, np.bool_(False)),
    ("all", (np.zeros(0, bool),), {}, np.bool_(True)),
    ("softmax", (np.full((1, 3), -INF, F32),), {}, np.full((1, 3), NAN, F32)),
    ("log_softmax", (np.full((1, 3), -INF, F32),), {}, np.full((1, 3), NAN, F32)),
    ("logsumexp", (np.full((1, 3), -INF, F32),), {"axes": (1,)}, f32(-INF)),
    ("logsumexp", (f32(INF, 1),), {}, F32(INF)),
    ("softmax", (f32(1000, 1000),), {}, f32(0.5, 0.5)),
    ("softmax", (f32(-INF, 0),), {}, f32(0, 1)),
    ("cumsum", (ints(np.int32, 1, 2, 3),), {"axis": 0}, ints(np.int64, 1, 3, 6)),
    ("cumprod", (f32(2, NAN, 3),), {"axis": -1}, f32(2, NAN, NAN)),
    ("gather", (f32(1, 2, 3), ints(np.int64, -1, 0, -3)), {}, f32(3, 1, 1)),
    ("where", (np.array([True, False]), f32(NAN, 1), f32(2, NAN)), {}, f32(NAN, NAN)),
    ("slice", (f32(0, 1, 2, 3),), {"starts": (-1,), "stops": (-5,), "steps": (-1,)}, f32(3, 2, 1, 0)),
    ("slice", (f32(0, 1, 2, 3),), {"starts": (-9,), "stops": (-9,), "steps": (-1,)}, np.zeros(0, F32)),
    ("slice", (f32(0, 1, 2, 3),), {"starts": (1,), "stops": (99,), "steps": (2,)}, f32(1, 3)),
    ("slice_update", (f32(0, 1, 2, 3), f32(9)), {"starts": (3,), "stops": (0,), "steps": (-2,)}, f32(0, 9, 2, 9)),
    ("matmul", (np.zeros((2, 0), F32), np.zeros((0, 3), F32)), {}, np.zeros((2, 3), F32)),
    ("shift_left", (ints(np.int32, 1, 1, 1, 3), ints(np.int32, 31, 32, -1, 1)), {}, ints(np.int32, MIN32, 0, 0, 6)),
    ("shift_right", (ints(np.int8, -128, -128, -1, 64), ints(np.int8, 7, 9, -1, 3)), {}, ints(np.int8, -1, -1, -1, 8)),
    ("shift_right", (ints(np.uint8, 255, 255), ints(np.uint8, 8, 7)), {}, ints(np.uint8, 0, 1)),
    ("int_truncate_divide", (ints(np.int32, 7, -7, MIN32, 5), ints(np.int32, -2, 2, -1, 0)), {},
     ints(np.int32, -3, -3, MIN32, -1)),
    ("int_truncate_remainder", (ints(np.int32, 7, -7, MIN32, 5), ints(np.int32, -2, 2, -1, 0)), {},
     ints(np.int32, 1, -1, 0, 5)),
    ("sign", (f32(NAN, -0.0, 0, -INF, 2),), {}, f32(NAN, 0, 0, -1, 1)),
    ("isinf", (f32(INF, -INF, NAN, 1),), {"detect_negative": False}, np.array([True, False, False, False])),
    ("erfinv", (f32(1, -1, 2, 0, NAN),), {}, f32(INF, -INF, NAN, 0, NAN)),
    ("digamma", (f32(0, -0.0, -1, INF, -INF, 1),), {}, f32(-INF, INF, NAN, INF, NAN, -0.5772157)),
    ("digamma", (f32(-3.999639, -2.0000005, -7.0001),), {}, f32(-2768.8389, 2097152.9, 9988.453)),
    ("lgamma", (f32(0, -1, INF, -INF, 1),), {}, f32(INF, INF, INF, INF, 0)),
    ("hypot", (f32(INF, 3e38, 0, NAN), f32(NAN, 1, 0, 1)), {}, f32(INF, 3e38, 0, NAN)),
    ("logaddexp", (f32(-INF, INF, 0, 1000), f32(-INF, -INF, -INF, 1000)), {}, f32(-INF, INF, 0, 1000.6931)),
    ("xlogy", (f32(0, 0, 0), f32(0, NAN, INF)), {}, f32(0, NAN, 0)),
    ("clip", (f32(NAN, -5, 5, 1), F32(2), F32(0)), {}, f32(NAN, 0, 0, 0)),
    ("thresholded_relu", (f32(NAN, 1, 2),), {}, f32(NAN, 0, 2)),
    ("softplus", (f32(1000, -1000, NAN, INF),), {}, f32(1000, 0, NAN, INF)),
    ("argmax", (f32(1, NAN, NAN, 3),), {}, np.int64(1)),
    ("argmax", (f32(3, 1, 3),), {"select_last": True}, np.int64(2)),
    ("argmin", (np.full(3, INF, F32),), {}, np.int64(0)),
    ("cummax", (f32(1, NAN, 3),), {"axis": 0}, f32(1, NAN, NAN)),
    ("sort_values", (f32(2, NAN, -INF),), {"descending": True}, f32(NAN, 2, -INF)),
    ("argsort", (ints(np.int8, 3, 1, 3, 1),), {"descending": True}, ints(np.int64, 0, 2, 1, 3)),
    ("one_hot", (ints(np.int64, -1, 9), np.int64(0), np.int64(5)), {"depth": 2}, np.array([[0, 5], [0, 0]])),
    ("max_pool", (f32(NAN, 1, -INF, -INF).reshape(1, 1, 4),), {"kernel": (2,), "strides": (2,)},
     f32(NAN, -INF).reshape(1, 1, 2)),
    ("max_pool_indices", (np.full((1, 1, 2), -INF, F32),), {"kernel": (2,), "pads": (1, 0)},
     np.zeros((1, 1, 2), np.int64)),
    ("average_pool", (f32(2, 4, 9).reshape(1, 1, 3),), {"kernel": (2,), "strides": (2,), "ceil_mode": True},
     f32(3, 9).reshape(1, 1, 2)),
    ("norm", (f32(3, -4),), {"p": INF}, F32(4)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arrays", "attrs", "expected"), SEMANTICS, ids=[f"{i}-{case[0]}" for i, case in enumerate(SEMANTICS)]
)
def test_semantics(name: str, arrays: tuple[Any, ...], attrs: dict[str, Any], expected: Any) -> None:
    found = apply(name, *arrays, **attrs)
    assert_close(found, np.asarray(expected), 1 if found.dtype.kind not in "biu" else 0)


def test_denormals_are_kept() -> None:
    assert abs(float(apply("log", f32(1e-40))[0]) + 92.1) < 0.01
    assert float(apply("mul", f32(1e-40), f32(1))[0]) > 0


def test_signs_of_zero_are_kept() -> None:
    assert np.signbit(apply("mul", f32(-1), f32(0)))[0]
    assert np.signbit(apply("neg", f32(0)))[0]
    assert not np.signbit(apply("add", f32(-0.0), f32(0)))[0]
    assert np.signbit(apply("copy", f32(-0.0)))[0]


@pytest.mark.parametrize("index", [3, -4, 2**40])
def test_gather_out_of_range_raises(index: int) -> None:
    with pytest.raises(IndexOutOfRange, match=str(index)):
        apply("gather", f32(1, 2, 3), ints(np.int64, 0, index))
    for name, where, updates in (
        ("gather_elements", [0, index], []),
        ("gather_nd", [[index], [0]], []),
        ("scatter_elements", [index, 0], [f32(1, 2)]),
        ("scatter_nd", [[0], [index]], [f32(1, 2)]),
    ):
        row = TABLE.get(name)
        arrays = [f32(1, 2, 3), np.array(where), *updates]
        with pytest.raises(IndexOutOfRange, match=str(index)):
            reference.apply(row, arrays, row.complete({}))
        with pytest.raises(IndexOutOfRange):
            evaluate.run(decompose.run(single(row, arrays, {})), arrays)


@pytest.mark.parametrize("name", ["gather", "gather_elements"])
@pytest.mark.parametrize("index", [-1, -3, -(2**63)])
def test_negative_positions_are_out_of_range_where_nothing_wraps(name: str, index: int) -> None:
    row, arrays = TABLE.get(name), [f32(1, 2, 3), ints(np.int64, 0, index)]
    with pytest.raises(IndexOutOfRange, match=str(index)):
        reference.apply(row, arrays, row.complete({"wraps": False}))
    with pytest.raises(IndexOutOfRange):
        evaluate.run(decompose.run(single(row, arrays, {"wraps": False})), arrays)


def test_sources() -> None:
    full = TABLE.get("full")
    assert_bits(reference.apply(full, [], {"shape": (2,), "value": -1, "dtype": DType.UINT8}), ints(np.uint8, 255, 255))
    iota = TABLE.get("iota")
    for axis, expected in ((0, [[0, 0], [1, 1], [2, 2]]), (-1, [[0, 1]] * 3)):
        found = reference.apply(iota, [], {"shape": (3, 2), "axis": axis, "dtype": DType.FLOAT16})
        assert_bits(found, np.array(expected, F16))


# -- what does not fit is refused, with the operator's name ----------------------------------------------------------
def _t(*shape: Any, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(dtype, shape)


I64, BOOL = DType.INT64, DType.BOOL
REFUSED: tuple[tuple[str, tuple[TensorType, ...], dict[str, Any], type[GraphError]], ...] = (
    ("add", (_t(2), _t(3)), {}, ShapeError),
    ("add", (_t(2), _t(2, dtype=I64)), {}, DTypeError),
    ("add", (_t(2, dtype=BOOL), _t(2, dtype=BOOL)), {}, DTypeError),
    ("add", (_t(2),), {}, GraphError),
    ("exp", (_t(2, dtype=I64),), {}, DTypeError),
    ("logical_and", (_t(2), _t(2)), {}, DTypeError),
    ("where", (_t(2), _t(2), _t(2)), {}, DTypeError),
    ("where", (_t(2, dtype=BOOL), _t(2), _t(2, dtype=I64)), {}, DTypeError),
    ("cast", (_t(2),), {"dtype": "float99"}, DTypeError),
    ("cast", (_t(2),), {}, GraphError),
    ("cast", (_t(2),), {"dtype": DType.BOOL, "more": 1}, GraphError),
    ("sum", (_t(2),), {"axes": (1,)}, GraphError),
    ("sum", (_t(2, 2),), {"axes": (0, -2)}, GraphError),
    ("max", (_t(2, 0),), {"axes": (1,)}, ShapeError),
    ("max", (_t(0),), {}, ShapeError),
    ("logsumexp", (_t(2, 0),), {"axes": (1,)}, ShapeError),
    ("cumsum", (_t(2),), {"axis": 1}, GraphError),
    ("cumsum", (_t(),), {"axis": 0}, GraphError),
    ("layer_norm", (_t(2, 3), _t(2)), {}, ShapeError),
    ("layer_norm", (_t(2, 3),), {"rank": 3}, GraphError),
    ("reshape", (_t(6),), {"shape": (4, -1)}, ShapeError),
    ("reshape", (_t(6),), {"shape": (-1, -1)}, ShapeError),
    ("reshape", (_t(6),), {"shape": (-2, -3)}, ShapeError),
    ("reshape", (_t(6),), {"shape": (7,)}, ShapeError),
    ("transpose", (_t(2, 3),), {"axes": (0, 0)}, GraphError),
    ("transpose", (_t(2, 3),), {"axes": (0,)}, GraphError),
    ("expand", (_t(2),), {"shape": (3,)}, ShapeError),
    ("expand", (_t(2),), {"shape": (-1, 2)}, ShapeError),
    ("slice", (_t(4),), {"starts": (0,), "stops": (4,), "steps": (0,)}, GraphError),
    ("slice", (_t(4, 4),), {"starts": (0,), "stops": (4,), "steps": (1,)}, GraphError),
    ("concat", (_t(2), _t(2, 2)), {}, ShapeError),
    ("concat", (_t(2, 3), _t(2, 2)), {}, ShapeError),
    ("concat", (), {}, GraphError),
    ("slice_update", (_t(4), _t(3)), {"starts": (0,), "stops": (4,), "steps": (1,)}, ShapeError),
    ("gather", (_t(4), _t(3)), {}, DTypeError),
    ("gather", (_t(4), _t(3, dtype=I64)), {"axis": 1}, GraphError),
    ("matmul", (_t(2, 3), _t(2, 3)), {}, ShapeError),
    ("matmul", (_t(3), _t(3, 3)), {}, ShapeError),
    ("matmul", (_t(2, 2, dtype=BOOL), _t(2, 2, dtype=BOOL)), {}, DTypeError),
    ("full", (), {"shape": (-1,), "value": 0, "dtype": DType.INT8}, ShapeError),
    ("shift_left", (_t(2), _t(2)), {}, DTypeError),
    ("glu", (_t(2, 3),), {}, ShapeError),
    ("argmax", (_t(2, 0),), {"axis": 1}, ShapeError),
    ("topk_values", (_t(2, 3),), {"k": 4}, ShapeError),
    ("gather_elements", (_t(2, 3), _t(3, dtype=I64)), {}, ShapeError),
    ("gather_elements", (_t(2, 3), _t(2, 3)), {}, DTypeError),
    ("gather_elements", (_t(2, 3), _t(2, 4, dtype=I64)), {}, ShapeError),
    ("gather_nd", (_t(2, 3), _t(2, 3, dtype=I64)), {}, ShapeError),
    ("scatter_nd", (_t(2, 3), _t(2, 1, dtype=I64), _t(2, 4)), {}, ShapeError),
    ("scatter_elements", (_t(2), _t(1, dtype=I64), _t(1)), {"reduction": "mean"}, GraphError),
    ("one_hot", (_t(2, dtype=I64), _t(1), _t()), {"depth": 3}, ShapeError),
    ("stack", (_t(2), _t(3)), {}, ShapeError),
    ("tile", (_t(2),), {"repeats": (1, 2)}, GraphError),
    ("squeeze", (_t(2, 1),), {"axes": (0,)}, ShapeError),
    ("unsqueeze", (_t(2),), {"axes": (0, 0)}, GraphError),
    ("unfold", (_t(2),), {"axis": 0, "size": 3}, ShapeError),
    ("as_strided", (_t(2, 3),), {"shape": (4,), "strides": (2,)}, ShapeError),
    ("diagonal", (_t(2),), {}, ShapeError),
    ("pad", (_t(2),), {"before": (1,), "after": (0,), "mode": "mirror"}, GraphError),
    ("pad", (_t(2),), {"before": (-3,), "after": (0,)}, ShapeError),
    ("depth_to_space", (_t(1, 3, 2, 2),), {"block": 2}, ShapeError),
    ("max_pool", (_t(1, 1, 4),), {"kernel": (2, 2)}, GraphError),
    ("average_pool", (_t(1, 1, 2),), {"kernel": (4,)}, ShapeError),
    ("global_max_pool", (_t(1, 1, 0),), {}, ShapeError),
    ("resize", (_t(1, 4),), {"sizes": (1, 2), "mode": "area"}, GraphError),
    ("conv", (_t(1, 4, 5), _t(2, 3, 3)), {}, ShapeError),
    ("conv", (_t(1, 4, 5), _t(2, 4, 3)), {"groups": 3}, ShapeError),
    ("conv", (_t(1, 4, 5), _t(2, 4, 3), _t(3)), {}, ShapeError),
    ("conv_transpose", (_t(1, 4, 5), _t(3, 4, 3)), {}, ShapeError),
    ("gemm", (_t(2, 3), _t(2, 3)), {}, ShapeError),
    ("linear", (_t(2, 3), _t(2, 4)), {}, ShapeError),
    ("einsum", (_t(2, 3), _t(4, 5)), {"equation": "ij,jk->ik"}, ShapeError),
    ("einsum", (_t(2, 3),), {"equation": "ijk->i"}, GraphError),
    ("einsum", (_t(2, 3),), {"equation": "ij->ijz"}, GraphError),
    ("batch_norm", (_t(2, 3), _t(2), _t(3), _t(3), _t(3)), {}, ShapeError),
    ("group_norm", (_t(2, 3), _t(3), _t(3)), {"num_groups": 2}, GraphError),
    ("lrn", (_t(2, 3, 4),), {"size": 0}, GraphError),
    ("iota", (), {"shape": (2,), "axis": 1, "dtype": DType.INT8}, GraphError),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "types", "attrs", "error"), REFUSED, ids=[f"{i}-{case[0]}" for i, case in enumerate(REFUSED)]
)
def test_refused(name: str, types: tuple[TensorType, ...], attrs: dict[str, Any], error: type[GraphError]) -> None:
    row = TABLE.get(name)
    with pytest.raises(error, match=f"^{name}: "):
        row.infer(list(types), row.complete(attrs))


def test_unknown_operators_suggest_known_ones() -> None:
    with pytest.raises(GraphError, match="softmax"):
        TABLE.get("softmx")


# -- symbolic shapes -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [(0, 2, 1), (1, -1, 1), (-3, 9, 1), (-3, 1 << 40, 2), (2, 1 << 40, 3), (0, -3, 1), (5, 2, 1)],
)
def test_symbolic_slices_agree_with_numpy(size: int, start: int, stop: int, step: int) -> None:
    F = GraphBuilder("g")
    x = F.input("x", DType.INT32, (symbol("n"),))
    F.output(F.slice(x, starts=(start,), stops=(stop,), steps=(step,)))
    graph = F.build()
    array = np.arange(size, dtype=np.int32)
    found = evaluate.run(graph, [array])[0]
    assert found.tolist() == array[start:stop:step].tolist()
    assert evaluate.evaluate(graph.nodes[-1].output.shape[0], {"n": size}) == len(found)


@pytest.mark.parametrize("correction", [0, 1, 2])
def test_symbolic_variance(correction: int) -> None:
    F = GraphBuilder("g")
    F.output(F.var(F.input("x", DType.FLOAT32, (symbol("n"),)), correction=correction))
    graph = F.build()
    for size in (1, 2, 5):
        array = np.arange(size, dtype=F32)
        assert_close(evaluate.run(decompose.run(graph), [array])[0], evaluate.run(graph, [array])[0], 16)
