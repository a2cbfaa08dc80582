"""What counts: right numbers, and rounds on a machine that was itself."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.export import Array
from benchmarks.probes import Reading

TIMES_EAGER = 16  # an error of up to so many times that of eager PyTorch in float32 is right,
OF_SIZE = 2e-5  # and one of up to this share of the exact output's root mean square


def share(found: Sequence[Array], exact: Sequence[Array], eager: Sequence[Array]) -> float:
    """The largest error over what is tolerated: up to 1 is right. Infinite for other shapes, and for NaN or infinity
    where the exact output has none."""
    if [x.shape for x in found] != [x.shape for x in exact]:
        return math.inf
    worst = 0.0
    for mine, right, theirs in zip(found, exact, eager, strict=True):
        error = float(np.max(np.abs(mine - right), initial=0))
        size = float(np.sqrt(np.mean(np.square(right)))) if right.size else 0.0
        limit = max(TIMES_EAGER * float(np.max(np.abs(theirs - right), initial=0)), OF_SIZE * size)
        worst = max(worst, math.inf if math.isnan(error) else error / limit if error else 0.0)
    return worst


def settle(rounds: list[dict[str, Any]], best: Reading) -> dict[str, Any]:
    """Median and minimum of the rounds that count: those with both probes near the best of the run. Where none is, all
    count, and the result says so."""
    for each in rounds:
        each["kept"] = not any(Reading(*probe).off(best) for probe in each["probes"])
    kept = [each for each in rounds if each["kept"]]
    counted = kept or rounds
    return {
        "median_ms": statistics.median(each["median_ms"] for each in counted),
        "min_ms": min(each["min_ms"] for each in counted),
        "settled": bool(kept),
    }


def over(mine: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The time of one result over that of another: the (geometric) median over the rounds that both took, each next to
    the other's, so that a machine which slows down meanwhile favours neither. Of rounds that count for both, where
    there are any; the ratio of the medians where no round is common."""
    rounds = [{each["number"]: each for each in result["rounds"] if "number" in each} for result in (mine, other)]
    common = [(rounds[0][number], rounds[1][number]) for number in rounds[0].keys() & rounds[1].keys()]
    kept = [pair for pair in common if all(each["kept"] for each in pair)]
    pairs = kept or common or [(mine, other)]
    return math.exp(statistics.median(math.log(one["median_ms"] / two["median_ms"]) for one, two in pairs))


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(math.log(r) for r in ratios) / len(ratios)) if ratios else math.nan
