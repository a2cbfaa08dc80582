"""Every row of the op table that Ascend's vector and cube units compute, on the AI Core model against its reference.

The cases and values are those of the CPU's rows (test_compiled); a case that the host computes is left out. Cases share
a graph, so that the C++ compiler runs rarely; where a graph fails, its cases are run alone to name the row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from ascend import CHIPS, compiled, fallbacks, reference, together
from oracle import SAMPLES, At, assert_bits, attributes_of, random_array, sample
from test_compiled import (
    PRODUCTS,
    Batch,
    Case,
    Shape,
    compare,
    fold_values,
    folded,
    moderate,
    rolled,
    structural,
    structural_values,
)

from autofusion import api
from autofusion.dtypes import Array, DType
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph, Value
from autofusion.ops import TABLE, Kind
from autofusion.runtime import aicore

B910, B950 = CHIPS
SHARED = 12  # cases of one graph
QUICK = (DType.FLOAT32,)
TYPES = tuple(t for t in DType if t is not DType.FLOAT64)  # what the target stores


@pytest.fixture(autouse=True)
def available() -> None:
    if reason := aicore.unavailable():
        pytest.skip(reason)


def types(quick: Sequence[DType] = QUICK) -> list[object]:
    """Element types; on the second chip only in the full tier."""
    return [
        pytest.param(chip, t, marks=() if chip == B910 and t in quick else pytest.mark.full)
        for chip in CHIPS
        for t in TYPES
    ]


def graph_of(cases: Sequence[Case]) -> tuple[Graph, list[str]]:
    """A graph with an output a case, and the names of its inputs."""
    F = GraphBuilder("rows")
    inputs: dict[str, Value] = {}
    for case in cases:
        for value in case.inputs:
            if value.name not in inputs:
                inputs[value.name] = F.input(value.name, value.dtype, value.shape)
        F.output(F.emit(case.row.name, [inputs[v.name] for v in case.inputs], case.attrs))
    return F.build(), list(inputs)


def said(case: Case) -> str:
    return f"{case.row.name} {case.attrs} of {' '.join(f'{v.dtype.value}{list(v.shape)}' for v in case.inputs)}"


def check(batch: Batch, draws: Iterator[list[Array]], chip: str) -> None:
    """All cases of a batch, all draws, before the first failure is told."""
    wrong: dict[str, str] = {}
    ready: list[Case] = []
    for case in batch.cases:
        try:
            if not fallbacks(compiled(graph_of([case])[0], chip)):
                ready.append(case)
        except Exception as error:
            wrong[said(case)] = f"{type(error).__name__}: {error}"
    names = [value.name for value in batch.inputs]
    listed = [dict(zip(names, arrays, strict=True)) for arrays in draws]
    groups = [ready[first : first + SHARED] for first in range(0, len(ready), SHARED)]
    again: list[list[Case]] = []
    for cases, failed in tried(groups, listed, chip):
        again += [[case] for case in cases] if failed else []
    for cases, failed in tried(again, listed, chip):
        if failed:
            wrong[said(cases[0])] = failed
    shown = "\n".join(f"{name}: {text[:400]}" for name, text in wrong.items())
    assert not wrong, f"{len(wrong)} of {len(batch.cases)} cases:\n{shown}"


def tried(
    groups: Sequence[list[Case]], draws: Sequence[dict[str, Array]], chip: str
) -> Iterator[tuple[list[Case], str]]:
    """(cases, what went wrong with the first that fails or "") of each graph of cases."""
    made = [graph_of(cases) for cases in groups]
    runs: list[api.Compiled] | None
    try:
        runs = together([graph for graph, _ in made], chip)
    except Exception:
        runs = None  # cases that compile alone may not fit together
    for number, (cases, (graph, names)) in enumerate(zip(groups, made, strict=True)):
        try:
            run = runs[number] if runs else compiled(graph, chip)
            for values in draws:
                arrays = [values[name] for name in names]
                expected = reference(graph, arrays)
                with np.errstate(all="ignore"):
                    found = run.run(arrays)
                for case, result, wanted in zip(cases, found, expected, strict=True):
                    compare(case, [values[v.name] for v in case.inputs], result, wanted)
            yield cases, ""
        except Exception as error:
            yield cases, f"{type(error).__name__}: {error}"


# -- elementwise -----------------------------------------------------------------------------------------------------
def elementwise(dtype: DType, shape: Shape) -> Batch:
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
    return batch


@pytest.mark.parametrize(("chip", "dtype"), types())
def test_elementwise_rows(chip: str, dtype: DType) -> None:
    """Rows of 33 elements: full vectors, tails and padding, edge values in every pair."""
    check(elementwise(dtype, (17, 33)), rolled(dtype, (17, 33)), chip)


@pytest.mark.full
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (1,), (2100,), (3, 0, 2), (2, 3, 4, 5)], ids=str)
def test_elementwise_rows_of_other_shapes(dtype: DType, shape: Shape) -> None:
    draws = list(rolled(dtype, shape))
    check(elementwise(dtype, shape), iter(draws[:: max(1, len(draws) // 6)]), B910)


# -- folds and scans -------------------------------------------------------------------------------------------------
def folding(dtype: DType, shape: Shape) -> Batch:
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
    return batch


@pytest.mark.full
@pytest.mark.parametrize(("chip", "dtype"), types())
@pytest.mark.parametrize("shape", [(17, 33), (3, 0, 2), ()], ids=str)
def test_folding_rows(chip: str, dtype: DType, shape: Shape) -> None:
    batch = folding(dtype, shape)
    check(batch, fold_values(dtype, batch.inputs), chip)


# -- views, joins, gathers -------------------------------------------------------------------------------------------
@pytest.mark.full
@pytest.mark.parametrize(("chip", "dtype"), types())
@pytest.mark.parametrize("shape", [(3, 5), (17, 33), (3, 0, 2)], ids=str)
def test_moving_rows(chip: str, dtype: DType, shape: Shape) -> None:
    batch = Batch()
    structural(batch, dtype, shape)
    check(batch, structural_values(dtype, batch), chip)


# -- rows with samples of their own ----------------------------------------------------------------------------------
@pytest.mark.full
@pytest.mark.parametrize(("chip", "dtype"), types())
def test_sampled_rows(chip: str, dtype: DType) -> None:
    batch, operands = Batch(), []
    for name, cases in SAMPLES.items():
        row = TABLE.get(name)
        for given, attrs in cases if dtype in row.dtypes else ():
            shaped = [(g.dtype, g.shape) if isinstance(g, At) else (dtype, g) for g in given]
            batch.add(row, [batch.input(*each) for each in shaped], attrs)
            operands.append((row, given))
    rng = np.random.default_rng(13)
    draws = [[a for row, given in operands for a in sample(row, dtype, given, rng, edges)] for edges in (False, True)]
    check(batch, iter(draws), chip)


# -- contractions ----------------------------------------------------------------------------------------------------
@pytest.mark.full
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("dtype", [t for t in TABLE.get("matmul").dtypes if t in TYPES])
def test_matmul(chip: str, dtype: DType) -> None:
    batch = Batch()
    for left, right in PRODUCTS:
        batch.add(TABLE.get("matmul"), [batch.input(dtype, left), batch.input(dtype, right)], {})
    rng = np.random.default_rng(9)
    arrays = [random_array(rng, dtype, v.shape) for v in batch.inputs]
    edged = [np.where(rng.random(a.shape) < 0.01, rng.choice(moderate(dtype), a.shape), a) for a in arrays]
    check(batch, iter([arrays, edged]), chip)


# -- what the target claims ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chip", CHIPS)
def test_primitives_that_the_target_claims_stay_on_it(chip: str) -> None:
    """Each primitive of `computes`, over each type that it and the target have: no fallback, no refusal."""
    target = api.find_target(chip)
    assert target.computes is not None
    wrong = []
    for name in target.computes:
        row = TABLE.get(name)
        for dtype in row.dtypes:
            if dtype in target.dtypes:
                batch = Batch()
                x, c = batch.input(dtype, (3, 5)), batch.input(DType.BOOL, (3, 5))
                inputs = [c, x, x] if name == "where" else [x] * int(row.arity)  # type: ignore[call-overload]
                batch.add(row, inputs, {"dtype": DType.FLOAT32} if name == "cast" else {})
                try:
                    wrong += [f"{name} of {dtype.value}"] * bool(fallbacks(compiled(graph_of(batch.cases)[0], chip)))
                except Exception as error:
                    wrong.append(f"{name} of {dtype.value}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)


def test_a_wrong_result_is_seen() -> None:
    """The checks above can fail."""
    batch = elementwise(DType.FLOAT32, (3,))
    case = next(c for c in batch.cases if c.row.name == "add")
    x = np.ones(3, np.float32)
    with pytest.raises(AssertionError):
        compare(case, [x, x], x + x + np.float32(math.pi), x + x)
    assert_bits(x + x, x + x)
