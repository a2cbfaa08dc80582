"""Activations, all composites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autofusion.dims import Shape, floordiv
from autofusion.dtypes import Array
from autofusion.errors import ShapeError
from autofusion.kinds import Kind
from autofusion.ops.elementwise import FLOATS, elementwise, sigmoid
from autofusion.ops.rules import axis_of, same
from autofusion.ops.special import wide
from autofusion.ops.table import TABLE, Attrs, Builder, Op


def _activation(
    name: str, reference: Callable[..., Array], lower: Callable[..., Any], arity: int = 1, **row: Any
) -> None:
    row.setdefault("tolerance", 8)
    row.setdefault("flops", 4)
    elementwise(name, arity, wide(reference), lower=lower, dtypes=FLOATS, **row)


def _below_zero(a: Array, other: Array) -> Array:
    return np.where(a < 0, other, a)


def _softplus(a: Array) -> Array:
    return np.maximum(a, 0) + np.log1p(np.exp(-np.abs(a)))


def _softplus_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    """max(a, 0) + log1p(exp(-|a|)), which does not overflow."""
    return F.add(F.maximum(a, 0.0), F.log1p(F.exp(F.neg(F.abs(a)))))


def _clamped(F: Builder, a: Any, low: float, high: float) -> Any:
    return F.minimum(F.maximum(a, low), high)


_activation(
    "leaky_relu",
    lambda a, alpha: _below_zero(a, alpha * a),
    lambda F, a, attrs: F.where(F.lt(a, 0.0), F.mul(a, attrs["alpha"]), a),
    attributes={"alpha": 0.01},
    doc="a, below zero alpha · a",
)
_activation(
    "prelu",
    lambda a, slope: _below_zero(a, slope * a),
    lambda F, a, slope, attrs: F.where(F.lt(a, 0.0), F.mul(a, slope), a),
    2,
    doc="a, below zero slope · a; the slope broadcasts",
)
_activation(
    "elu",
    lambda a, alpha: _below_zero(a, alpha * np.expm1(a)),
    lambda F, a, attrs: F.where(F.lt(a, 0.0), F.mul(F.expm1(a), attrs["alpha"]), a),
    attributes={"alpha": 1.0},
    flops=16,
    doc="a, below zero alpha · (exp(a) - 1)",
)
_activation(
    "selu",
    lambda a, alpha, gamma: gamma * _below_zero(a, alpha * np.expm1(a)),
    lambda F, a, attrs: F.mul(F.where(F.lt(a, 0.0), F.mul(F.expm1(a), attrs["alpha"]), a), attrs["gamma"]),
    attributes={"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    flops=17,
    doc="gamma · elu(a) (Klambauer et al. 2017)",
)
_activation(
    "celu",
    lambda a, alpha: _below_zero(a, alpha * np.expm1(a / alpha)),
    lambda F, a, attrs: F.where(F.lt(a, 0.0), F.mul(F.expm1(F.div(a, attrs["alpha"])), attrs["alpha"]), a),
    attributes={"alpha": 1.0},
    flops=20,
    doc="a, below zero alpha · (exp(a / alpha) - 1)",
)
_activation("softplus", _softplus, _softplus_lower, flops=26, doc="log(1 + exp(a))")
_activation(
    "mish",
    lambda a: a * np.tanh(_softplus(a)),
    lambda F, a, attrs: F.mul(a, F.tanh(_softplus_lower(F, a, attrs))),
    flops=40,
    tolerance=16,
    doc="a · tanh(softplus(a)) (Misra 2019)",
)
_activation(
    "softsign",
    lambda a: a / (1 + np.abs(a)),
    lambda F, a, attrs: F.div(a, F.add(F.abs(a), 1.0)),
    flops=6,
    doc="a / (1 + |a|)",
)
_activation(
    "hardsigmoid",
    lambda a, alpha, beta: np.clip(alpha * a + beta, 0, 1),
    lambda F, a, attrs: _clamped(F, F.add(F.mul(a, attrs["alpha"]), attrs["beta"]), 0.0, 1.0),
    attributes={"alpha": 0.2, "beta": 0.5},
    doc="alpha · a + beta, kept in [0, 1]",
)
_activation(
    "hardswish",
    lambda a: a * (np.clip(a + 3, 0, 6) / 6),
    lambda F, a, attrs: F.mul(a, F.div(_clamped(F, F.add(a, 3.0), 0.0, 6.0), 6.0)),
    doc="a · hardsigmoid(a) with alpha 1/6, beta 1/2",
)
_activation(
    "hardtanh",
    lambda a, low, high: np.clip(a, low, high),
    lambda F, a, attrs: _clamped(F, a, attrs["low"], attrs["high"]),
    attributes={"low": -1.0, "high": 1.0},
    doc="a, kept in [low, high]; NaN stays",
)
_activation("relu6", lambda a: np.clip(a, 0, 6), lambda F, a, attrs: _clamped(F, a, 0.0, 6.0), doc="a, kept in [0, 6]")
elementwise(
    "clip",
    3,
    lambda a, low, high: np.minimum(np.maximum(a, low), high),
    lower=lambda F, a, low, high, attrs: F.minimum(F.maximum(a, low), high),
    doc="a, kept in [low, high]; the upper bound wins; NaN stays",
)
_activation(
    "shrink",
    lambda a, bias, lambd: np.where(a < -lambd, a + bias, np.where(a > lambd, a - bias, np.where(np.isnan(a), a, 0))),
    lambda F, a, attrs: F.where(
        F.lt(a, -attrs["lambd"]),
        F.add(a, attrs["bias"]),
        F.where(F.gt(a, attrs["lambd"]), F.sub(a, attrs["bias"]), F.where(F.ne(a, a), a, 0.0)),
    ),
    attributes={"bias": 0.0, "lambd": 0.5},
    doc="toward zero by bias, and 0 in [-lambd, lambd]",
)
_activation(
    "thresholded_relu",
    lambda a, alpha: np.where(a <= alpha, 0, a),
    lambda F, a, attrs: F.where(F.le(a, attrs["alpha"]), F.scalar(0.0, F.type_of(a).dtype), a),
    attributes={"alpha": 1.0},
    doc="a where above alpha, else 0; NaN stays",
)


def _tanh_series(terms: int) -> list[float]:
    """The odd Taylor coefficients of tanh, from tanh' = 1 - tanh²."""
    found = [1.0]
    for n in range(1, terms):
        found.append(-sum(found[i] * found[n - 1 - i] for i in range(n)) / (2 * n + 1))
    return found


def _tanhshrink_small(a: Any, add: Any, mul: Any) -> Any:
    """-(c1 a³ + c2 a⁵ + …), which does not cancel for |a| < 1/4."""
    square = mul(a, a)
    *rest, total = (-c for c in _tanh_series(11)[1:])
    for coefficient in reversed(rest):
        total = add(mul(square, total), coefficient)
    return mul(mul(total, square), a)


_activation(
    "tanhshrink",
    lambda a: np.where(np.abs(a) < 0.25, _tanhshrink_small(a, np.add, np.multiply), a - np.tanh(a)),
    lambda F, a, attrs: F.where(F.lt(F.abs(a), 0.25), _tanhshrink_small(a, F.add, F.mul), F.sub(a, F.tanh(a))),
    flops=40,
    tolerance=64,
    doc="a - tanh(a)",
)
_activation(
    "log_sigmoid",
    lambda a: -_softplus(-a),
    lambda F, a, attrs: F.neg(_softplus_lower(F, F.neg(a), attrs)),
    flops=26,
    doc="log(sigmoid(a))",
)
_activation(
    "swish",
    lambda a, alpha: a * sigmoid(alpha * a),
    lambda F, a, attrs: F.mul(a, F.sigmoid(F.mul(a, attrs["alpha"]))),
    attributes={"alpha": 1.702},
    flops=14,
    doc="a · sigmoid(alpha · a)",
)


def _glu_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    shape = list(shapes[0])
    axis = axis_of(attrs["axis"], len(shape))
    extent = shape[axis]
    if isinstance(extent, int) and extent % 2:
        raise ShapeError(f"axis {axis} is {extent}, expected an even extent")
    shape[axis] = floordiv(extent, 2)
    return tuple(shape)


def half(F: Builder, a: Any, axis: int, second: bool) -> Any:
    """The first or second half along an axis."""
    shape = F.type_of(a).shape
    axis = axis_of(axis, len(shape))
    middle = floordiv(shape[axis], 2)
    starts = tuple(middle if d == axis and second else 0 for d in range(len(shape)))
    stops = tuple(middle if d == axis and not second else extent for d, extent in enumerate(shape))
    return F.slice(a, starts=starts, stops=stops, steps=(1,) * len(shape))


def _glu(a: Array, axis: int) -> Array:
    left, right = np.split(a.astype(np.float64), 2, axis=axis)
    return np.asarray(left * sigmoid(right)).astype(a.dtype)


TABLE.register(
    Op(
        "glu",
        Kind.WINDOW,
        1,
        _glu_shape,
        same,
        _glu,
        lower=lambda F, a, attrs: F.mul(half(F, a, attrs["axis"], False), F.sigmoid(half(F, a, attrs["axis"], True))),
        attributes={"axis": -1},
        dtypes=FLOATS,
        tolerance=8,
        flops=14,
        doc="the first half along an axis · sigmoid of the second",
    )
)
