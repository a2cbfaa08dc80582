"""Fold rows: how many values become one. A fold has an identity, a step, and an associative merge of two states.

Reductions and scans name their row here; a kernel asks the row, never the operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from autofusion.dtypes import Array, DType


@dataclass(frozen=True)
class Fold:
    """One row.

    `step`: the elementwise op that takes a state and an element (also the merge of two states, as all rows here are
    associative up to rounding). `identity`: the state of nothing. `reference`: the NumPy fold over axes.
    `compensated`: long folds of floats keep a second state word with the rounding error (Neumaier 1974).
    """

    name: str
    step: str
    identity: Callable[[DType], Any]
    reference: Callable[..., Array]
    running: Callable[..., Array]
    compensated: bool = False


def least(dtype: DType) -> Any:
    """The identity of max."""
    if dtype is DType.BOOL:
        return False
    return float("-inf") if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def greatest(dtype: DType) -> Any:
    """The identity of min."""
    if dtype is DType.BOOL:
        return True
    return float("inf") if dtype.is_float else int(np.iinfo(dtype.numpy).max)


FOLDS = {
    fold.name: fold
    for fold in (
        Fold("sum", "add", lambda t: 0.0 if t.is_float else 0, np.sum, np.cumsum, compensated=True),
        Fold("prod", "mul", lambda t: 1.0 if t.is_float else 1, np.prod, np.cumprod),
        Fold("max", "maximum", least, np.max, np.maximum.accumulate),
        Fold("min", "minimum", greatest, np.min, np.minimum.accumulate),
        Fold("any", "logical_or", lambda t: False, np.any, np.logical_or.accumulate),
        Fold("all", "logical_and", lambda t: True, np.all, np.logical_and.accumulate),
    )
}
