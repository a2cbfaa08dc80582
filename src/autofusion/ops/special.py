"""Elementwise rows beyond arithmetic: signs, trigonometry, special functions, shifts, truncating division."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from autofusion import dtypes
from autofusion.dtypes import Array, DType
from autofusion.ops.elementwise import FLOATS, NUMBERS, elementwise
from autofusion.ops.rules import boolean
from autofusion.ops.table import Attrs, Builder


def wide(function: Callable[..., Array]) -> Callable[..., Array]:
    """The function in double precision, rounded once to the type of the first operand."""

    def reference(*arrays: Array, **attrs: Any) -> Array:
        return np.asarray(function(*(a.astype(np.float64) for a in arrays), **attrs)).astype(arrays[0].dtype)

    return reference


def one_by_one(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A scalar function of the `math` module on doubles, NaN where it refuses."""

    def guarded(x: float) -> float:
        try:
            return function(x)
        except (ValueError, OverflowError):
            return math.nan

    vectorised = np.vectorize(guarded, otypes=[np.float64])
    return lambda a: np.asarray(vectorised(a)) if a.size else a.copy()


def _function(name: str, reference: Callable[..., Array], arity: int = 1, **row: Any) -> None:
    row.setdefault("flops", 20)
    elementwise(name, arity, wide(reference), dtypes=FLOATS, **row)


# -- signs and classes -------------------------------------------------------------------------------------------------
def _sign_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    """NaN stays; zeros give +0."""
    dtype = F.type_of(a).dtype
    one, least = F.scalar(1, dtype), F.scalar(-1, dtype)
    if not dtype.is_signed:
        return F.minimum(a, one)
    negative = F.where(F.lt(a, 0), least, F.where(F.eq(a, 0), F.scalar(0, dtype), a))
    return F.where(F.gt(a, 0), one, negative)


elementwise("sign", 1, np.sign, lower=_sign_lower, dtypes=NUMBERS, doc="-1, 0 or 1; NaN stays")
elementwise("copysign", 2, np.copysign, dtypes=FLOATS, doc="a's magnitude with b's sign")
elementwise(
    "signbit",
    1,
    np.signbit,
    dtype_rule=boolean,
    dtypes=FLOATS,
    lower=lambda F, a, attrs: F.lt(F.copysign(F.scalar(1.0, F.type_of(a).dtype), a), 0.0),
    doc="whether the sign bit is set, of zeros and NaN too",
)


def _isinf(a: Array, detect_negative: bool, detect_positive: bool) -> Array:
    return np.asarray((detect_negative & (a == -np.inf)) | (detect_positive & (a == np.inf)))


def _isinf_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    if attrs["detect_negative"] and attrs["detect_positive"]:
        return F.eq(F.abs(a), math.inf)
    if attrs["detect_negative"] or attrs["detect_positive"]:
        return F.eq(a, math.inf if attrs["detect_positive"] else -math.inf)
    return F.logical_and(F.lt(a, 0.0), F.gt(a, 0.0))


elementwise(
    "isinf",
    1,
    _isinf,
    lower=_isinf_lower,
    dtype_rule=boolean,
    dtypes=FLOATS,
    attributes={"detect_negative": True, "detect_positive": True},
    doc="whether an infinity (of a detected sign)",
)
elementwise(
    "isfinite",
    1,
    np.isfinite,
    lower=lambda F, a, attrs: F.lt(F.abs(a), math.inf),
    dtype_rule=boolean,
    dtypes=FLOATS,
    doc="whether neither NaN nor an infinity",
)
_LARGEST = float(np.finfo(np.float32).max)
elementwise(
    "nan_to_num",
    1,
    lambda a, nan, posinf, neginf: np.nan_to_num(a, nan=nan, posinf=posinf, neginf=neginf),
    lower=lambda F, a, attrs: F.where(
        F.ne(a, a),
        F.scalar(attrs["nan"], F.type_of(a).dtype),
        F.where(
            F.eq(a, math.inf),
            F.scalar(attrs["posinf"], F.type_of(a).dtype),
            F.where(F.eq(a, -math.inf), F.scalar(attrs["neginf"], F.type_of(a).dtype), a),
        ),
    ),
    dtypes=FLOATS,
    attributes={"nan": 0.0, "posinf": _LARGEST, "neginf": -_LARGEST},
    doc="NaN and infinities replaced by numbers; by default float32's limits",
)


def _fmax(F: Builder, a: Any, b: Any, attrs: Attrs) -> Any:
    return F.where(F.ne(a, a), b, F.where(F.ne(b, b), a, F.maximum(a, b)))


def _fmin(F: Builder, a: Any, b: Any, attrs: Attrs) -> Any:
    return F.where(F.ne(a, a), b, F.where(F.ne(b, b), a, F.minimum(a, b)))


elementwise("fmax", 2, np.fmax, lower=_fmax, dtypes=FLOATS, doc="the larger; a NaN is passed over")
elementwise("fmin", 2, np.fmin, lower=_fmin, dtypes=FLOATS, doc="the smaller; a NaN is passed over")
elementwise(
    "frac",
    1,
    lambda a: a - np.trunc(a),
    lower=lambda F, a, attrs: F.sub(a, F.trunc(a)),
    dtypes=FLOATS,
    doc="a - trunc(a); NaN for infinities",
)
elementwise(
    "heaviside",
    2,
    np.heaviside,
    lower=lambda F, a, b, attrs: F.where(
        F.eq(a, 0.0), b, F.where(F.ne(a, a), a, F.cast(F.gt(a, 0.0), dtype=F.type_of(a).dtype))
    ),
    dtypes=FLOATS,
    doc="0 below zero, b at zero, 1 above; NaN stays",
)

# -- trigonometry ------------------------------------------------------------------------------------------------------
_function("tan", np.tan, doc="tangent")
_function("asin", np.arcsin, domain=(-1.0, 1.0), doc="inverse sine")
_function("acos", np.arccos, domain=(-1.0, 1.0), doc="inverse cosine")
_function("atan", np.arctan, doc="inverse tangent")
_function("atan2", np.arctan2, 2, doc="the angle of (b, a): atan(a / b) in all four quadrants")
_function("sinh", np.sinh, doc="hyperbolic sine")
_function("cosh", np.cosh, doc="hyperbolic cosine")


def _asinh_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    """log1p(x + x² / (1 + sqrt(x² + 1))) of |a|; log(x) + log(2) where x² + 1 rounds to x²."""
    x = F.abs(a)
    square = F.mul(x, x)
    near = F.log1p(F.add(x, F.div(square, F.add(F.sqrt(F.add(square, 1.0)), 1.0))))
    far = F.add(F.log(x), math.log(2))
    return F.copysign(F.where(F.lt(x, 1e9), near, far), a)


def _acosh_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    """log1p(t + sqrt(2t + t²)), t = a - 1; NaN below 1."""
    t = F.sub(a, 1.0)
    near = F.log1p(F.add(t, F.sqrt(F.mul(t, F.add(t, 2.0)))))
    far = F.add(F.log(a), math.log(2))
    return F.where(F.lt(a, 1.0), F.scalar(math.nan, F.type_of(a).dtype), F.where(F.lt(a, 1e9), near, far))


def _atanh_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    """log1p(2x / (1 - x)) / 2 of |a|; NaN above 1."""
    x = F.abs(a)
    return F.copysign(F.mul(F.log1p(F.div(F.mul(x, 2.0), F.sub(1.0, x))), 0.5), a)


_function("asinh", np.arcsinh, lower=_asinh_lower, tolerance=8, doc="inverse hyperbolic sine")
_function("acosh", np.arccosh, lower=_acosh_lower, domain=(1.0, 8.0), tolerance=8, doc="inverse hyperbolic cosine")
_function("atanh", np.arctanh, lower=_atanh_lower, domain=(-0.9, 0.9), tolerance=8, doc="inverse hyperbolic tangent")


def _sinc(a: Array) -> Array:
    turns = np.rint(a)
    return np.where(np.abs(a) < 1e-10, 1.0, np.cos(np.pi * (turns % 2)) * np.sin(np.pi * (a - turns)) / (np.pi * a))


def _sinc_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    """± sin(πr) / (πa) with r = a - round(a), which is exact; minus where round(a) is odd."""
    turns = F.round(a)
    odd = F.sub(turns, F.mul(F.floor(F.mul(turns, 0.5)), 2.0))
    ratio = F.div(F.div(F.sin(F.mul(F.sub(a, turns), math.pi)), a), math.pi)
    ratio = F.where(F.gt(odd, 0.5), F.neg(ratio), ratio)
    return F.where(F.lt(F.abs(a), 1e-10), F.scalar(1.0, F.type_of(a).dtype), ratio)  # denormals would lose digits


_function("sinc", _sinc, lower=_sinc_lower, tolerance=8, doc="sin(πa) / (πa); 1 at zero")
_function("rad2deg", np.rad2deg, lower=lambda F, a, attrs: F.mul(a, 180 / math.pi), flops=1, doc="a · 180/π")
_function("deg2rad", np.deg2rad, lower=lambda F, a, attrs: F.mul(a, math.pi / 180), flops=1, doc="a · π/180")


def _hypot_lower(F: Builder, a: Any, b: Any, attrs: Attrs) -> Any:
    """max · sqrt(1 + (min / max)²), which does not overflow; an infinity beats NaN."""
    x, y = F.abs(a), F.abs(b)
    large, small = F.maximum(x, y), F.minimum(x, y)
    ratio = F.div(small, large)
    length = F.where(F.eq(large, 0.0), large, F.mul(large, F.sqrt(F.add(F.mul(ratio, ratio), 1.0))))
    endless = F.logical_or(F.eq(x, math.inf), F.eq(y, math.inf))
    return F.where(endless, F.scalar(math.inf, F.type_of(a).dtype), length)


_function("hypot", np.hypot, 2, lower=_hypot_lower, tolerance=6, doc="sqrt(a² + b²) without overflow")

# -- roots, logarithms and their kin -----------------------------------------------------------------------------------
_function("cbrt", np.cbrt, doc="cube root")
_function(
    "log10",
    np.log10,
    lower=lambda F, a, attrs: F.mul(F.log(a), 1 / math.log(10)),
    domain=(0.0, 8.0),
    tolerance=6,
    doc="logarithm to base 10",
)


def _logaddexp_lower(F: Builder, a: Any, b: Any, attrs: Attrs) -> Any:
    """max + log1p(exp(-|a - b|)); equal operands (infinities too) give a + log(2)."""
    apart = F.add(F.maximum(a, b), F.log1p(F.exp(F.neg(F.abs(F.sub(a, b))))))
    return F.where(F.eq(a, b), F.add(a, math.log(2)), apart)


_function("logaddexp", np.logaddexp, 2, lower=_logaddexp_lower, tolerance=8, doc="log(exp(a) + exp(b))")


def _xlogy(a: Array, b: Array) -> Array:
    return np.where((a == 0) & ~np.isnan(b), 0.0, a * np.log(b))


def _xlogy_lower(F: Builder, a: Any, b: Any, attrs: Attrs) -> Any:
    nothing = F.logical_and(F.eq(a, 0.0), F.eq(b, b))
    return F.where(nothing, 0.0, F.mul(a, F.log(b)))


_function("xlogy", _xlogy, 2, lower=_xlogy_lower, domain=(0.1, 4.0), tolerance=6, doc="a · log(b); 0 where a is 0")


def _logit(a: Array, eps: float | None) -> Array:
    a = a if eps is None else np.clip(a, eps, 1 - eps)
    return np.asarray(np.log(a / (1 - a)))


def _logit_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    if attrs["eps"] is not None:
        a = F.minimum(F.maximum(a, attrs["eps"]), 1 - attrs["eps"])
    return F.log(F.div(a, F.sub(1.0, a)))


_function(
    "logit",
    _logit,
    lower=_logit_lower,
    attributes={"eps": None},
    domain=(0.05, 0.95),
    tolerance=16,
    doc="log(a / (1 - a)), a kept in [eps, 1 - eps] first",
)


def _lerp(a: Array, b: Array, weight: Array) -> Array:
    return np.asarray(np.where(np.abs(weight) < 0.5, a + weight * (b - a), b - (b - a) * (1 - weight)))


def _lerp_lower(F: Builder, a: Any, b: Any, weight: Any, attrs: Attrs) -> Any:
    """PyTorch's form: from the nearer end."""
    way = F.sub(b, a)
    from_a, from_b = F.add(a, F.mul(weight, way)), F.sub(b, F.mul(way, F.sub(1.0, weight)))
    return F.where(F.lt(F.abs(weight), 0.5), from_a, from_b)


elementwise("lerp", 3, _lerp, lower=_lerp_lower, dtypes=FLOATS, tolerance=8, doc="a + weight · (b - a)")

# -- the error function's kin and gamma --------------------------------------------------------------------------------
_function("erfc", one_by_one(math.erfc), doc="1 - erf(a) without cancellation")


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.inf if x > 1e305 else math.lgamma(x)


# The tolerance is the reference's own error in double precision near the roots below zero.
_function("lgamma", one_by_one(_lgamma), domain=(0.1, 8.0), tolerance=1024, doc="log |Γ(a)|")


def _erfinv_of(y: float) -> float:
    """Newton on erfc in the tail and on erf in the middle, from Winitzki's approximation."""
    if abs(y) >= 1:
        return math.copysign(math.inf, y) if abs(y) == 1 else math.nan
    log = math.log1p(-y * y)
    first = 2 / (math.pi * 0.147) + log / 2
    x = math.sqrt(max(math.sqrt(first * first - log / 0.147) - first, 0.0))
    for _ in range(6):
        error = (1 - abs(y)) - math.erfc(x) if abs(y) > 0.5 else math.erf(x) - abs(y)
        x -= error * math.sqrt(math.pi) / 2 * math.exp(x * x)
    return math.copysign(x, y)


# Giles, "Approximating the erfinv function" (2011), single precision: polynomials in w - 2.5 and sqrt(w) - 3.
_NEAR = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_FAR = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def _polynomial(F: Builder, x: Any, coefficients: tuple[float, ...]) -> Any:
    """Horner's scheme, the highest power first."""
    total = F.add(F.mul(x, coefficients[0]), coefficients[1])
    for coefficient in coefficients[2:]:
        total = F.add(F.mul(total, x), coefficient)
    return total


def _erfinv_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    """Giles's polynomials, then Halley's steps on erfc(x) - (1 - |a|), which does not cancel in the tail."""
    dtype = F.type_of(a).dtype
    y = F.abs(a)
    w = F.neg(F.log(F.mul(F.sub(1.0, y), F.add(y, 1.0))))
    near = _polynomial(F, F.sub(w, 2.5), _NEAR)
    far = _polynomial(F, F.sub(F.sqrt(w), 3.0), _FAR)
    x = F.mul(F.where(F.lt(w, 5.0), near, far), y)
    if dtype is DType.FLOAT64:
        for _ in range(2):
            error = F.where(F.gt(y, 0.5), F.sub(F.sub(1.0, y), F.erfc(x)), F.sub(F.erf(x), y))
            step = F.mul(F.mul(error, math.sqrt(math.pi) / 2), F.exp(F.mul(x, x)))
            x = F.sub(x, F.div(step, F.add(F.mul(x, step), 1.0)))
    x = F.where(F.eq(y, 1.0), F.scalar(math.inf, dtype), x)
    return F.copysign(F.where(F.gt(y, 1.0), F.scalar(math.nan, dtype), x), a)


_function(
    "erfinv",
    one_by_one(_erfinv_of),
    lower=_erfinv_lower,
    domain=(-0.99, 0.99),
    tolerance=16,
    flops=60,
    doc="the inverse of erf; ±inf at ±1, NaN beyond",
)

_STEPS = 10  # recurrences before the asymptotic series of digamma is good to double precision
_SERIES = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)  # Bernoulli numbers over 2k, as Cephes


def _digamma_of(x: float) -> float:
    if x == 0:
        return math.copysign(math.inf, -x)
    if x == math.inf:
        return x
    if math.isnan(x) or (x < 0 and x == math.floor(x)):
        return math.nan
    if x < 0:
        return _digamma_of(1 - x) - math.pi / math.tan(math.pi * math.remainder(x, 1.0))
    total = 0.0
    while x < 30:
        total -= 1 / x
        x += 1
    inverse = 1 / (x * x)
    series = inverse * (1 / 12 - inverse * (1 / 120 - inverse * (1 / 252 - inverse / 240)))
    return total + math.log(x) - 0.5 / x - series


def _digamma_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    """ψ(1 - a) - π/tan(πa) below zero; then ψ(x + 1) - 1/x up to 10; then the asymptotic series (Cephes, psi)."""
    dtype = F.type_of(a).dtype
    negative = F.lt(a, 0.0)
    x = F.where(negative, F.sub(1.0, a), a)
    total = F.scalar(0.0, dtype)
    for _ in range(_STEPS):
        small = F.lt(x, float(_STEPS))
        total = F.where(small, F.sub(total, F.div(1.0, x)), total)
        x = F.where(small, F.add(x, 1.0), x)
    inverse = F.div(1.0, F.mul(x, x))
    series = F.mul(_polynomial(F, inverse, _SERIES), inverse)
    total = F.add(total, F.sub(F.sub(F.log(x), F.div(0.5, x)), series))
    fraction = F.sub(a, F.round(a))  # exact, and small beside a pole
    reflected = F.sub(total, F.div(math.pi, F.tan(F.mul(fraction, math.pi))))
    total = F.where(negative, F.where(F.eq(fraction, 0.0), F.scalar(math.nan, dtype), reflected), total)
    return F.where(F.eq(a, 0.0), F.copysign(F.scalar(math.inf, dtype), F.neg(a)), total)


_function(
    "digamma",
    one_by_one(_digamma_of),
    lower=_digamma_lower,
    domain=(0.1, 8.0),
    tolerance=64,
    flops=80,
    doc="the derivative of lgamma; NaN at negative integers",
)


# -- integers ----------------------------------------------------------------------------------------------------------
elementwise(
    "shift_left",
    2,
    np.left_shift,
    dtypes=dtypes.INTEGERS,
    doc="a << b; amounts outside the width (negative ones too) give 0",
)
elementwise(
    "shift_right",
    2,
    np.right_shift,
    dtypes=dtypes.INTEGERS,
    doc="a >> b, the sign kept; amounts outside the width (negative ones too) leave only the sign",
)


def _truncate_divide(a: Array, b: Array) -> Array:
    """C's division. x / 0 is -1 (unsigned: all bits set), INT_MIN / -1 wraps."""
    a, b = np.broadcast_arrays(a, b)
    bad = b == 0
    if np.issubdtype(a.dtype, np.signedinteger):
        bad = bad | ((b == -1) & (a == np.iinfo(a.dtype).min))
    safe = np.where(bad, np.ones_like(b), b)
    quotient = a // safe
    quotient = quotient + ((quotient * safe != a) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, np.array(-1).astype(a.dtype), quotient)


def _truncate_remainder(a: Array, b: Array) -> Array:
    a, b = np.broadcast_arrays(a, b)
    return np.where(b == 0, a, a - _truncate_divide(a, b) * b)


def _truncate_divide_lower(F: Builder, a: Any, b: Any, attrs: Attrs) -> Any:
    quotient = F.int_floor_divide(a, b)
    if not F.type_of(a).dtype.is_signed:
        return quotient
    up = F.logical_and(F.ne(F.int_remainder(a, b), 0), F.ne(F.lt(a, 0), F.lt(b, 0)))
    up = F.logical_and(up, F.ne(b, 0))
    return F.add(quotient, F.cast(up, dtype=F.type_of(a).dtype))


def _truncate_remainder_lower(F: Builder, a: Any, b: Any, attrs: Attrs) -> Any:
    rest = F.int_remainder(a, b)
    if not F.type_of(a).dtype.is_signed:
        return rest
    over = F.logical_and(F.ne(rest, 0), F.ne(F.lt(a, 0), F.lt(b, 0)))
    over = F.logical_and(over, F.ne(b, 0))
    return F.where(over, F.sub(rest, b), rest)


elementwise(
    "int_truncate_divide",
    2,
    _truncate_divide,
    lower=_truncate_divide_lower,
    dtypes=dtypes.INTEGERS,
    flops=12,
    doc="integer division toward zero, as C's",
)
elementwise(
    "int_truncate_remainder",
    2,
    _truncate_remainder,
    lower=_truncate_remainder_lower,
    dtypes=dtypes.INTEGERS,
    flops=12,
    doc="the remainder of division toward zero: the dividend's sign",
)
