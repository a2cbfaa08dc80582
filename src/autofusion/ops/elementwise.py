"""Elementwise rows: arithmetic, comparison, selection, casts, transcendental functions, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from autofusion import dtypes
from autofusion.dtypes import Array, DType
from autofusion.errors import DTypeError
from autofusion.kinds import Kind
from autofusion.ops.rules import attribute, boolean, broadcast, same
from autofusion.ops.table import REQUIRED, TABLE, Attrs, Builder, Op

NUMBERS = tuple(t for t in DType if t is not DType.BOOL)
FLOATS = dtypes.FLOATS
LOGICAL = (DType.BOOL, *dtypes.INTEGERS)


def elementwise(name: str, arity: int, reference: Callable[..., Array], **row: Any) -> Op:
    """Add an elementwise row: broadcasting, one common type unless the row says otherwise."""
    row.setdefault("dtype_rule", same)
    return TABLE.register(Op(name, Kind.ELEMENTWISE, arity, broadcast, reference=reference, **row))


# -- arithmetic: integers wrap, NaN propagates -----------------------------------------------------------------------
def _safe_divisor(a: Array, b: Array) -> Array:
    """Integer divisors with 0, and -1 where it would overflow, replaced by 1."""
    bad = b == 0
    if np.issubdtype(a.dtype, np.signedinteger):
        bad = bad | ((b == -1) & (a == np.iinfo(a.dtype).min))
    return np.where(bad, np.ones_like(b), b)


def _floor_divide(a: Array, b: Array) -> Array:
    """Python's floor division. Integers: x // 0 is -1 (0 for unsigned: all bits set), INT_MIN // -1 wraps."""
    if np.issubdtype(a.dtype, np.integer):
        a, b = np.broadcast_arrays(a, b)
        result = a // _safe_divisor(a, b)
        return np.where(b == 0, np.array(-1).astype(a.dtype), result)
    return np.floor_divide(a, b)


def _remainder(a: Array, b: Array) -> Array:
    """Python's modulo (the divisor's sign). Integers: x % 0 is x, INT_MIN % -1 is 0."""
    if np.issubdtype(a.dtype, np.integer):
        a, b = np.broadcast_arrays(a, b)
        result = a - (a // _safe_divisor(a, b)) * b
        return np.where(b == 0, a, result)
    return np.remainder(a, b)


def _floor_divide_lower(F: Builder, a: Any, b: Any, attrs: Attrs) -> Any:
    """floor((a - mod(a, b)) / b) without the off-by-one of floor(a / b), as Python computes it."""
    if not F.type_of(a).dtype.is_float:
        return F.int_floor_divide(a, b)
    remainder = F.fmod(a, b)
    quotient = F.div(F.sub(a, remainder), b)
    wrong_sign = F.logical_and(F.ne(remainder, 0.0), F.ne(F.lt(b, 0.0), F.lt(remainder, 0.0)))
    quotient = F.where(wrong_sign, F.sub(quotient, 1.0), quotient)
    floored = F.floor(quotient)
    floored = F.where(F.gt(F.sub(quotient, floored), 0.5), F.add(floored, 1.0), floored)
    floored = F.where(F.eq(quotient, 0.0), F.mul(F.div(a, b), 0.0), floored)
    return F.where(F.eq(b, 0.0), F.div(a, b), floored)


def _remainder_lower(F: Builder, a: Any, b: Any, attrs: Attrs) -> Any:
    if not F.type_of(a).dtype.is_float:
        return F.int_remainder(a, b)
    remainder = F.fmod(a, b)
    wrong_sign = F.logical_and(F.ne(remainder, 0.0), F.ne(F.lt(b, 0.0), F.lt(remainder, 0.0)))
    zero = F.where(F.lt(b, 0.0), F.scalar(-0.0, F.type_of(b).dtype), 0.0)  # of the divisor's sign too
    return F.where(F.eq(remainder, 0.0), zero, F.where(wrong_sign, F.add(remainder, b), remainder))


elementwise("add", 2, np.add, doc="a + b; integers wrap", dtypes=NUMBERS)
elementwise("sub", 2, np.subtract, doc="a - b; integers wrap", dtypes=NUMBERS)
elementwise("mul", 2, np.multiply, doc="a * b; integers wrap", dtypes=NUMBERS)
elementwise("div", 2, np.true_divide, doc="a / b", dtypes=FLOATS, flops=4)
elementwise("int_floor_divide", 2, _floor_divide, doc="integer floor division", dtypes=dtypes.INTEGERS, flops=8)
elementwise("int_remainder", 2, _remainder, doc="integer modulo", dtypes=dtypes.INTEGERS, flops=8)
elementwise("fmod", 2, np.fmod, doc="C's fmod: exact, the dividend's sign", dtypes=FLOATS, flops=20)
elementwise(
    "floor_divide", 2, _floor_divide, lower=_floor_divide_lower, doc="Python's a // b", dtypes=NUMBERS, flops=30
)
elementwise("remainder", 2, _remainder, lower=_remainder_lower, doc="Python's a % b", dtypes=NUMBERS, flops=25)
elementwise("maximum", 2, np.maximum, doc="the larger; NaN if either is")
elementwise("minimum", 2, np.minimum, doc="the smaller; NaN if either is")
elementwise("neg", 1, np.negative, doc="-a; integers wrap", dtypes=NUMBERS)
elementwise("abs", 1, np.abs, doc="absolute value; the least integer wraps", dtypes=NUMBERS)
elementwise("copy", 1, np.copy, doc="the same values in storage of their own", flops=0)

# -- comparison and logic --------------------------------------------------------------------------------------------
for _name, _function in {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}.items():
    elementwise(_name, 2, _function, dtype_rule=boolean, doc="bool; false where a NaN is compared (ne: true)")
elementwise("logical_and", 2, np.logical_and, dtypes=(DType.BOOL,), doc="a and b")
elementwise("logical_or", 2, np.logical_or, dtypes=(DType.BOOL,), doc="a or b")
elementwise("logical_xor", 2, np.logical_xor, dtypes=(DType.BOOL,), doc="a xor b")
elementwise("logical_not", 1, np.logical_not, dtypes=(DType.BOOL,), doc="not a")
elementwise("bitwise_and", 2, np.bitwise_and, dtypes=LOGICAL, doc="a & b")
elementwise("bitwise_or", 2, np.bitwise_or, dtypes=LOGICAL, doc="a | b")
elementwise("bitwise_xor", 2, np.bitwise_xor, dtypes=LOGICAL, doc="a ^ b")
elementwise("bitwise_not", 1, np.invert, dtypes=LOGICAL, doc="~a")
elementwise(
    "isnan", 1, np.isnan, dtype_rule=boolean, dtypes=FLOATS, lower=lambda F, a, attrs: F.ne(a, a), doc="whether NaN"
)


def _where_type(types: list[DType], attrs: Attrs) -> DType:
    if types[0] is not DType.BOOL:
        raise DTypeError(f"the condition is {types[0]}, expected bool")
    return same(types[1:], attrs)


elementwise("where", 3, np.where, dtype_rule=_where_type, dtypes=(DType.BOOL,), doc="b where the condition a, else c")


def cast_values(values: Array, dtype: DType) -> Array:
    """float -> int truncates toward zero; NaN is 0, out of range saturates. int -> int wraps. x -> bool is x != 0."""
    if dtype is DType.BOOL:
        return np.asarray(values != 0)
    source = dtypes.of(values)
    if source.is_float and dtype.is_integer:
        wide = values.astype(np.float64)
        limits = np.iinfo(dtype.numpy)
        inside = np.where((wide > float(limits.min)) & (wide < float(limits.max)), wide, 0.0)
        result = np.trunc(inside).astype(dtype.numpy)
        result = np.where(wide >= float(limits.max), np.array(limits.max, dtype.numpy), result)
        return np.where(wide <= float(limits.min), np.array(limits.min, dtype.numpy), result)
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype.numpy)


elementwise(
    "cast",
    1,
    lambda a, dtype: cast_values(a, DType(dtype)),
    dtype_rule=attribute,
    attributes={"dtype": REQUIRED},
    doc="element type conversion; float to int truncates, saturates, NaN to 0",
)

# -- functions of floats ---------------------------------------------------------------------------------------------
_erf = np.vectorize(math.erf, otypes=[np.float64])


def erf(a: Array) -> Array:
    """The error function, in double precision."""
    return np.asarray(_erf(a.astype(np.float64))).astype(a.dtype) if a.size else a.copy()


def sigmoid(a: Array) -> Array:
    """1 / (1 + exp(-a)), without overflow."""
    wide = a.astype(np.float64)
    small = np.exp(-np.abs(wide))
    result: Array = np.where(wide >= 0, 1 / (1 + small), small / (1 + small)).astype(a.dtype)
    return result


def _float(name: str, reference: Callable[..., Array], **row: Any) -> Op:
    return elementwise(name, row.pop("arity", 1), reference, dtypes=FLOATS, **row)


_float("exp", np.exp, flops=10, doc="e ** a")
_float("exp2", np.exp2, flops=10, doc="2 ** a")
_float("expm1", np.expm1, flops=14, doc="e ** a - 1")
_float("log", np.log, flops=12, domain=(0.0, 8.0), doc="natural logarithm")
_float("log2", np.log2, flops=12, domain=(0.0, 8.0), doc="logarithm to base 2")
_float("log1p", np.log1p, flops=14, domain=(-0.9, 8.0), doc="log(1 + a)")
_float("tanh", np.tanh, flops=15, doc="hyperbolic tangent")
_float("erf", erf, flops=15, doc="error function")
_float("sin", np.sin, flops=15, doc="sine")
_float("cos", np.cos, flops=15, doc="cosine")
_float("sqrt", np.sqrt, flops=6, domain=(0.0, 8.0), doc="square root")
_float("rsqrt", lambda a: 1 / np.sqrt(a), flops=8, domain=(0.01, 8.0), doc="1 / sqrt(a)")
_float("floor", np.floor, doc="largest integer not above")
_float("ceil", np.ceil, doc="smallest integer not below")
_float("trunc", np.trunc, doc="integer part")
_float("round", np.rint, doc="nearest integer, halves to even")
_float("pow", np.power, arity=2, flops=30, domain=(0.01, 4.0), doc="a ** b", tolerance=8)
_float("sigmoid", sigmoid, flops=12, doc="1 / (1 + exp(-a))")
_float(
    "reciprocal",
    lambda a: np.true_divide(np.asarray(1, a.dtype), a),
    lower=lambda F, a, attrs: F.div(1.0, a),
    flops=4,
    domain=(0.1, 4.0),
    doc="1 / a",
)
elementwise("square", 1, np.square, lower=lambda F, a, attrs: F.mul(a, a), dtypes=NUMBERS, doc="a * a")

# -- activations ----------------------------------------------------------------------------------------------------
elementwise(
    "relu",
    1,
    lambda a: np.maximum(a, np.zeros((), a.dtype)),
    lower=lambda F, a, attrs: F.maximum(a, 0),
    dtypes=NUMBERS,
    doc="max(a, 0); NaN stays",
)


def _gelu(a: Array, approximate: str) -> Array:
    wide = a.astype(np.float64)
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
        return np.asarray(0.5 * wide * (1 + np.tanh(inner))).astype(a.dtype)
    return np.asarray(0.5 * wide * (1 + erf(wide / math.sqrt(2)))).astype(a.dtype)


def _gelu_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    """Both forms of Hendrycks and Gimpel (2016); 0.5·(1 + tanh u) is written sigmoid(2u), which does not cancel."""
    if attrs["approximate"] == "tanh":
        scale = 2 * math.sqrt(2 / math.pi)
        inner = F.mul(a, F.add(F.mul(F.mul(a, a), scale * 0.044715), scale))
        return F.mul(a, F.sigmoid(inner))
    if attrs["approximate"] != "none":
        raise DTypeError(f"gelu: approximate={attrs['approximate']!r}, expected none or tanh")
    return F.mul(F.mul(a, 0.5), F.add(F.erf(F.mul(a, math.sqrt(0.5))), 1.0))


_float("gelu", _gelu, lower=_gelu_lower, attributes={"approximate": "none"}, flops=20, tolerance=64, doc="a · Φ(a)")
_float(
    "silu",
    lambda a: a * sigmoid(a),
    lower=lambda F, a, attrs: F.mul(a, F.sigmoid(a)),
    flops=13,
    doc="a · sigmoid(a)",
)
