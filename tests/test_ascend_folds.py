"""Folds, scans and operations over rows on the AI Core model: every length of row that takes a path of its own.

A row is part of a vector (64 float32), some vectors and a tail, or longer than what one repeat stride reaches (2040
elements); there are fewer rows than vectors of a row, or more, or more than one instruction repeats (255).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from ascend import CHIPS, check, compiled, fallbacks, reference, sources, together
from oracle import assert_close, random_array

from autofusion import api
from autofusion.dtypes import Array, DType
from autofusion.errors import IndexOutOfRange
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.runtime import aicore

B910, B950 = CHIPS
F32 = DType.FLOAT32
full = pytest.mark.full
WIDTHS = (1, 7, 31, 33, 64, 65, 100, 126, 127, 128, 1000, 1024, 1025, 2040, 2048, 4097, 20000)
HEIGHTS = (1, 7, 300)


@pytest.fixture(autouse=True)
def available() -> None:
    if reason := aicore.unavailable():
        pytest.skip(reason)


def built(name: str, build: Callable[[GraphBuilder], Any]) -> Graph:
    F = GraphBuilder(name)
    build(F)
    return F.build()


def folding(shape: tuple[int, ...], dtype: DType = F32) -> Iterator[Graph]:
    """Folds of the last axis: kept in a block a row for what reads them beside whole rows, and one behind the other."""

    def kept(F: GraphBuilder, fold: str) -> None:
        x = F.input("x", dtype, shape)
        F.output(F.sub(x, F.emit(fold, [x], {"axes": (-1,), "keepdims": True})))

    def packed(F: GraphBuilder, fold: str) -> None:
        F.output(F.emit(fold, [F.input("x", dtype, shape)], {"axes": (-1,)}))

    for fold in ("sum", "max", "min"):
        for build in (kept, packed):
            yield built(f"{fold}_{build.__name__}", lambda F, fold=fold, build=build: build(F, fold))


def values(graph: Graph, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [random_array(rng, v.dtype, tuple(int(str(d)) for d in v.shape), (-2.0, 2.0)) for v in graph.inputs]


def held(run: api.Compiled, graph: Graph, arrays: list[Array]) -> None:
    """Against the reference: exact but for sums, whose rounding is relative to the sum of absolute values."""
    if "sum" not in str(graph):
        check(run, graph, arrays, np.testing.assert_array_equal)
        return
    magnitudes = reference(graph, [np.abs(a) for a in arrays])
    for found, wanted, size in zip(run.run(arrays), reference(graph, arrays), magnitudes, strict=True):
        assert_close(found, wanted, 4, np.abs(size))


@pytest.mark.parametrize("chip", [B910, pytest.param(B950, marks=full)])
@pytest.mark.parametrize("height", [7, *(pytest.param(h, marks=full) for h in HEIGHTS if h != 7)])
def test_folds_of_rows(chip: str, height: int) -> None:
    graphs = [graph for width in WIDTHS for graph in folding((height, width))]
    for run, graph in zip(together(graphs, chip), graphs, strict=True):
        assert not fallbacks(run)
        held(run, graph, values(graph))


def test_folds_are_vector_instructions() -> None:
    """Nothing goes through the scalar unit element by element, and no row is written alone."""
    for graph in folding((300, 100)):
        (source,) = sources(compiled(graph))
        step = source.text[source.text.index("Step0") :]
        assert "FoldRows<" in step
        assert not any(word in step for word in ("GetValue", "SetValue", "for (int64_t i0"))


@pytest.mark.parametrize("chip", [B910, pytest.param(B950, marks=full)])
def test_folds_of_several_axes_and_in_passes(chip: str) -> None:
    """Axes that are no single row are folded one after the other into a state, as are the parts of a long row."""
    cases = [
        ((3, 5, 4, 70), (1, 3)),
        ((3, 4, 70), (1, 2)),
        ((3, 4, 64), (1, 2)),
        ((6, 33, 5), (0, 2)),
        ((2, 90000), (1,)),
    ]
    graphs = [
        built(
            f"{fold} {shape}",
            lambda F, f=fold, s=shape, a=axes: F.output(F.emit(f, [F.input("x", F32, s)], {"axes": a})),
        )
        for shape, axes in cases
        for fold in ("sum", "max")
    ]
    graphs.append(built("softmax", lambda F: F.output(F.softmax(F.input("x", F32, (2, 90000)), axis=-1))))
    *folds, last = together(graphs, chip)
    for run, graph in zip(folds, graphs, strict=False):
        held(run, graph, values(graph))
    check(last, graphs[-1], values(graphs[-1]), lambda a, b: assert_close(a, b, 32))


@pytest.mark.parametrize("fold", ["max", "min"])
@pytest.mark.parametrize("width", [7, 100, 1025])
def test_nan_and_both_infinities_in_a_row(fold: str, width: int) -> None:
    """A row with a NaN, one with infinities of both signs (its sum is NaN too), and rows of one infinity."""
    graph = next(g for g in folding((4, width)) if g.name == f"{fold}_packed")
    (x,) = values(graph)
    x[0, -1] = np.nan
    x[1, 0], x[1, -1] = np.inf, -np.inf
    x[2], x[3] = -np.inf, np.inf
    run = compiled(graph)
    for arrays in ([x], [np.ascontiguousarray(x[::-1])]):
        check(run, graph, arrays, np.testing.assert_array_equal)


@pytest.mark.parametrize("chip", CHIPS)
def test_long_sums_are_pairwise_accurate(chip: str) -> None:
    """A million tenths: added one after the other they would be off by some hundreds."""
    graphs = [
        built("sum", lambda F, n=n: F.output(F.sum(F.input("x", F32, (1 << 20 >> n, 1 << n)), axes=(1,))))
        for n in (10, 14, 20)
    ]
    for run, graph in zip(together(graphs, chip), graphs, strict=True):
        shape = tuple(int(str(d)) for d in graph.inputs[0].shape)
        x = np.full(shape, 0.1, np.float32)
        (found,) = run.run([x])
        np.testing.assert_allclose(found, x.astype(np.float64).sum(axis=1), rtol=2e-6)


# -- operations with one block a row, or with the same row for all ----------------------------------------------------
def operations(height: int, width: int, dtype: DType = F32) -> Graph:
    def build(F: GraphBuilder) -> None:
        x, row = F.input("x", dtype, (height, width)), F.input("row", dtype, (width,))
        ones = [F.input("one", dtype, (height, 1))]
        ones += [F.sum(x, axes=(1,), keepdims=True)] * (dtype is F32)
        for op in ("add", "sub", "mul", *(("div",) if dtype.is_float else ())):
            for one in ones:
                F.output(F.emit(op, [x, one], {}))
                F.output(F.emit(op, [one, x], {}))
            F.output(F.emit(op, [x, row], {}))

    return built("operations", build)


@pytest.mark.parametrize("chip", [B910, pytest.param(B950, marks=full)])
@pytest.mark.parametrize("height", [7, *(pytest.param(h, marks=full) for h in HEIGHTS if h != 7)])
def test_operations_of_rows(chip: str, height: int) -> None:
    graphs = [operations(height, width, t) for t in (F32, DType.INT32) for width in WIDTHS if width < 5000]
    for run, graph in zip(together(graphs, chip), graphs, strict=True):
        assert not fallbacks(run)
        arrays = [a + np.asarray(3, a.dtype) for a in values(graph)]  # quotients stay moderate
        check(run, graph, arrays, lambda a, b: assert_close(a, b, 64))


# -- scans -----------------------------------------------------------------------------------------------------------
SCANNED = (1, 2, 7, 31, 33, 64, 65, 100, 127, 1000, 1025, 2041, 2049, 4097)


def scans(height: int, width: int, dtype: DType) -> Iterator[Graph]:
    for op in ("cumsum", "cumprod", "cummax", "cummin"):
        if op in ("cummax", "cummin") or dtype is F32:  # sums and products of integers are int64
            yield built(op, lambda F, op=op: F.output(F.emit(op, [F.input("x", dtype, (height, width))], {"axis": 1})))


@pytest.mark.parametrize("chip", [B910, pytest.param(B950, marks=full)])
@pytest.mark.parametrize("dtype", [F32, pytest.param(DType.INT32, marks=full)])
@pytest.mark.parametrize("height", [7, *(pytest.param(h, marks=full) for h in HEIGHTS if h != 7)])
def test_scans_of_rows(chip: str, dtype: DType, height: int) -> None:
    graphs = [g for width in SCANNED for g in scans(height, width, dtype)]
    for run, graph in zip(together(graphs, chip), graphs, strict=True):
        assert not fallbacks(run)
        (x,) = values(graph)
        if graph.name == "cumprod" and dtype is F32:
            x = np.exp(x / 64)  # products stay moderate
        assert x.shape[1] == 1 or "ScanRows<" in sources(run)[0].text
        magnitudes = reference(graph, [np.abs(x)])[0] if graph.name == "cumsum" else None
        tolerance = {"cumsum": 4, "cumprod": 256}.get(graph.name, 0)
        assert_close(run.run([x])[0], reference(graph, [x])[0], tolerance, magnitudes)


@pytest.mark.parametrize("width", [33, 2100])
def test_nan_goes_on_to_the_end_of_a_scanned_row(width: int) -> None:
    graphs = list(scans(4, width, F32))
    for run, graph in zip(together(graphs), graphs, strict=True):
        (x,) = values(graph)
        x = np.abs(x) / 8 + 0.9
        x[0, 5] = x[2, -1] = np.nan
        x[1, 0], x[1, -1], x[3, 3] = np.inf, -np.inf, -np.inf
        check(run, graph, [x], lambda a, b: assert_close(a, b, 4096, np.maximum(1, np.abs(b))))


# -- gathers ---------------------------------------------------------------------------------------------------------
GATHERED = (7, 64, 127, 1000, 5000)


def embedded(width: int, dtype: DType, wide: bool) -> Graph:
    """Rows of a table, as they are or on the way into arithmetic."""

    def build(F: GraphBuilder) -> None:
        table, at = F.input("table", dtype, (50, width)), F.input("at", DType.INT32, (3, 7))
        rows = F.gather(table, at, axis=0)
        F.output(F.cast(F.mul(F.cast(rows, dtype=F32), 0.5), dtype=dtype) if wide else rows)

    return built("embedded", build)


@pytest.mark.parametrize("chip", [B910, pytest.param(B950, marks=full)])
def test_gathers_of_rows(chip: str) -> None:
    """A copy a row; one position of each graph is outside afterwards, and is said."""
    types = (F32, DType.FLOAT16, DType.BFLOAT16)
    graphs = [embedded(width, t, wide) for width in GATHERED for t in types for wide in (False, True)]
    rng = np.random.default_rng(5)
    for run, graph in zip(together(graphs, chip), graphs, strict=True):
        assert not fallbacks(run)
        step = sources(run)[0].text.split("Step0(")[1]
        assert "Load(" in step.split("position =")[1] and "p0.GetValue" not in step
        table = random_array(rng, graph.inputs[0].dtype, tuple(int(str(d)) for d in graph.inputs[0].shape), (-2.0, 2.0))
        at = rng.integers(-50, 50, (3, 7)).astype(np.int32)
        check(run, graph, [table, at], np.testing.assert_array_equal)
        at[2, 3] = 50
        with pytest.raises(IndexOutOfRange, match="position 17 "):
            run.run([table, at])
