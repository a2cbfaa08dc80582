"""Comparing a run with the reference, by tolerances composed from the op rows'.

A row says by how much its operator may be off. What that means for an output depends on all that follows (a difference
of near values magnifies it, a mean averages it out), so it is not added up but tried: the reference runs several times,
and in each run but the first every operator's result is off by its row's tolerance, up or down at random. How far these
runs part is how far a right implementation may part.

    y = a - b            reference 1.0000   perturbed 0.9998, 1.0003   →   1.0005 passes, 1.01 does not
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from autofusion import dtypes
from autofusion.dtypes import Array, DType
from autofusion.graph.evaluate import bind_symbols, concrete, run_node
from autofusion.graph.ir import Graph, Node
from autofusion.ops import Kind, reference

SAMPLES = 3
MARGIN = 2.0  # how many times the perturbed runs' distance is allowed
CONTRACTION = 4.0  # epsilons of the sum of |products|: rows of contractions have no bound of their own
_ACCUMULATES = (Kind.REDUCE, Kind.SCAN, Kind.CONTRACT, Kind.WINDOW)
_COMPUTES = (*_ACCUMULATES, Kind.ELEMENTWISE)


@dataclass(frozen=True)
class Difference:
    """One output against its reference.

    `relative`: the largest error over the larger of the value and its output's mean magnitude, but for values that are
    themselves smaller than what is allowed there (the mean of centred values: nothing but rounding). `share`: the
    largest error as a share of what is allowed there; up to 1 passes. `position`: where that was.
    """

    name: str
    absolute: float
    relative: float
    share: float
    position: tuple[int, ...]
    found: float
    expected: float

    @property
    def ok(self) -> bool:
        return self.share <= 1


def compare(graph: Graph, inputs: Sequence[Array], results: Sequence[Array], seed: int = 0) -> list[Difference]:
    """Every output against the reference. `inputs` are the values before the run."""
    runs = perturbed_runs(graph, inputs, seed)
    return [
        difference(output.name, result, runs[output.name])
        for output, result in zip(graph.outputs, results, strict=True)
    ]


def perturbed_runs(graph: Graph, inputs: Sequence[Array], seed: int = 0) -> dict[str, list[Array]]:
    """Each output's value by the reference, then by the perturbed runs."""
    generator = np.random.default_rng(seed)
    sizes = bind_symbols(graph.inputs, [a.shape for a in inputs], graph.guards)
    values: dict[str, list[Array]] = {v.name: [a] * (SAMPLES + 1) for v, a in zip(graph.inputs, inputs, strict=True)}
    for constant in graph.constants:
        values[constant.value.name] = [graph.data[constant.digest]] * (SAMPLES + 1)
    last = {name: number for number, node in enumerate(graph.nodes) for name in node.inputs}
    kept = {output.name for output in graph.outputs}
    for number, node in enumerate(graph.nodes):
        values[node.name] = _run(node, [values[name] for name in node.inputs], sizes, generator)
        for name in dict.fromkeys(node.inputs):
            if last[name] == number and name not in kept:
                del values[name]
    return {name: values[name] for name in kept}


def _run(node: Node, operands: list[list[Array]], sizes: dict[str, int], generator: np.random.Generator) -> list[Array]:
    exact = run_node(node, [each[0] for each in operands], sizes)
    off = _allowed_error(node, [each[0] for each in operands], exact, sizes)
    untouched = all(sample is each[0] for each in operands for sample in each)
    if off is None and untouched:
        return [exact] * (SAMPLES + 1)
    runs = [exact]
    for number in range(1, SAMPLES + 1):
        made = exact if untouched else run_node(node, [each[number] for each in operands], sizes)
        if off is not None:
            signs = generator.integers(0, 2, made.shape) * 2.0 - 1.0
            with np.errstate(all="ignore"):
                made = (made.astype(np.float64) + signs * off).astype(made.dtype)
        runs.append(made)
    return runs


def _allowed_error(node: Node, arrays: list[Array], value: Array, sizes: dict[str, int]) -> Array | None:
    """By how much one operator may be off, elementwise, in absolute terms; None where it is exact."""
    dtype = dtypes.of(value)
    if node.kind not in _COMPUTES or not dtype.is_float:
        return None
    row = node.row
    tolerance = row.tolerance if math.isfinite(row.tolerance) else CONTRACTION
    with np.errstate(all="ignore"):
        scale = np.abs(value.astype(np.float64))
        if row.lower is not None:  # a composite may cancel: relative to its largest value, at most 1
            finite = scale[np.isfinite(scale)]
            scale = np.maximum(scale, min(1.0, float(finite.max(initial=0.0))))
        if node.kind in _ACCUMULATES and all(dtypes.of(a).is_float for a in arrays):
            wide = [np.abs(a.astype(np.float64)) for a in arrays]
            scale = np.maximum(scale, reference.apply(row, wide, concrete(node.attrs, sizes)))
    epsilon = float(_limits(dtype).eps)
    return np.where(np.isfinite(scale), tolerance * epsilon * scale, 0.0)


def _limits(dtype: DType) -> Any:
    return ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]


def difference(name: str, found: Array, runs: list[Array]) -> Difference:
    """One output against the reference and its perturbed runs."""
    wide = [run.astype(np.float64) for run in runs]
    a, e = found.astype(np.float64), wide[0]
    with np.errstate(all="ignore"):
        same = (found == runs[0]) | (np.isnan(a) & np.isnan(e))
        error = np.nan_to_num(np.abs(a - e), nan=np.inf)  # a NaN or an infinity where the other has none
        if not dtypes.of(found).is_float:
            error = np.maximum(error, 1.0)  # float64 does not tell all int64 apart
        error = np.where(same, 0.0, error)
        allowed = _allowed(dtypes.of(found), e, wide[1:])
        share = np.where((error == 0) | np.isinf(allowed), 0.0, error / allowed)
        share = np.nan_to_num(share, nan=np.inf, posinf=np.inf)
    return _worst(name, a, e, error, allowed, share)


def _allowed(dtype: DType, expected: Array, samples: list[Array]) -> Array:
    """How far a value may be off: as far as the perturbed runs are, or as they typically are in this output."""
    spread = np.zeros(expected.shape)
    for sample in samples:
        agrees = (sample == expected) | (np.isnan(sample) & np.isnan(expected))
        apart = np.nan_to_num(np.abs(sample - expected), nan=np.inf)
        spread = np.maximum(spread, np.where(agrees, 0.0, apart))
    if not dtype.is_float:
        return MARGIN * spread
    finite = spread[np.isfinite(spread)]
    typical = math.sqrt(float(np.mean(finite**2))) if finite.size else 0.0
    return MARGIN * np.maximum(spread, typical) + float(_limits(dtype).smallest_subnormal)


def _worst(name: str, a: Array, e: Array, error: Array, allowed: Array, share: Array) -> Difference:
    if not error.size:
        return Difference(name, 0.0, 0.0, 0.0, (), 0.0, 0.0)
    magnitude = np.abs(e[np.isfinite(e)])
    floor = float(magnitude.mean()) if magnitude.size else 0.0
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(np.nan_to_num(e)), floor)
        relative = np.where((error == 0) | ((size < allowed) & (share <= 1)), 0.0, error / size)
    at = np.unravel_index(int(np.argmax(share)), share.shape)
    where = tuple(int(i) for i in at)
    return Difference(
        name, float(error.max()), float(relative.max()), float(share.max()), where, float(a[at]), float(e[at])
    )
