"""Elementwise ATen operators that are more than one row on their operands."""

from __future__ import annotations

import math
from typing import Any

from autofusion.dims import Expr
from autofusion.dtypes import DType
from autofusion.frontends.torch.adapter import Unmapped
from autofusion.frontends.torch.call import Call, Maker, largest
from autofusion.graph.ir import Value


def unary(row: str, floats: bool = True, **attrs: Any) -> Maker:
    """A row on one operand; `floats`: integers become the default float type first."""
    return lambda n: n.pointwise(row, n.x, floats=floats, **attrs)


def rounding(row: str) -> Maker:
    """A row that integers pass unchanged."""
    return lambda n: n.pointwise(row, n.x) if n.x.dtype.is_float else n.F.copy(n.x)


def binary(row: str, floats: bool = False, on_bool: str | None = None, on_integers: str | None = None) -> Maker:
    """A row where its two operands meet; `on_bool`, `on_integers`: others for booleans, for integers and booleans."""

    def make(n: Call) -> Value:
        left, right = list(n.given.values())[:2]
        met, chosen = n.common(left, right), row
        if on_bool and met is DType.BOOL:
            chosen = on_bool
        elif on_integers and not met.is_float:
            chosen = on_integers
        return n.pointwise(chosen, left, right, floats=floats)

    return make


def floor_divide(n: Call) -> Value:
    (a, b), dtype = n.meet(n["self"], n["other"])
    if dtype is DType.BOOL:
        raise Unmapped("integer division of booleans")
    return n.cast(n.F.floor_divide(a, n.divisor(b, n["other"])), dtype)


def remainder(n: Call) -> Value:
    """remainder: the divisor's sign; of floats a zero keeps the dividend's."""
    (a, b), dtype = n.meet(n["self"], n["other"])
    if dtype is DType.BOOL:
        raise Unmapped("the remainder of booleans")
    if not dtype.is_float:
        return n.F.remainder(a, n.divisor(b, n["other"]))
    rest, zero = n.F.fmod(a, b), n.scalar(0, a.dtype)
    turned = n.F.logical_and(n.F.ne(rest, zero), n.F.ne(n.F.lt(b, zero), n.F.lt(rest, zero)))
    return n.cast(n.F.where(turned, n.F.add(rest, b), rest), dtype)


def swapped(row: str) -> Maker:
    """A row of the second operand and the first."""

    def make(n: Call) -> Value:
        left, right = list(n.given.values())[:2]
        return n.pointwise(row, right, left)

    return make


def logical(row: str) -> Maker:
    """A row on the operands as booleans: whether they are not zero."""
    return lambda n: n.row(row)(*(truth(n, each) for each in n.given.values() if isinstance(each, Value)))


def truth(n: Call, value: Value) -> Value:
    """Whether an element is not zero; NaN is not."""
    return value if value.dtype is DType.BOOL else n.F.ne(value, n.scalar(0, value.dtype))


def with_attributes(row: str, **names: str) -> Maker:
    """A row whose attributes are arguments: ours to theirs."""
    return lambda n: n.pointwise(row, n.x, **{ours: n[theirs] for ours, theirs in names.items()})


def scaled(row: str, on_bool: str | None = None) -> Maker:
    """a + alpha · b, or with a minus; integers and alpha of a higher kind meet first."""

    def make(n: Call) -> Value:
        left, right, alpha = n["self"], n["other"], n["alpha"]
        dtype = n.result.dtype
        if dtype is DType.BOOL:
            if on_bool is None or alpha not in (1, True):
                raise Unmapped(f"{n.op} of booleans")
            return n.pointwise(on_bool, left, right)
        if alpha == 1:
            return n.pointwise(row, left, right)
        a, b, factor = _in_compute(n, n.lift(left, dtype), n.lift(right, dtype), n.held(alpha, dtype))
        return n.cast(n.row(row)(a, n.F.mul(b, factor)), dtype)

    return make


def reversed_scaled(n: Call) -> Value:
    """rsub: other − alpha · self."""
    dtype = n.result.dtype
    operands = n.lift(n["self"], dtype), n.lift(n["other"], dtype), n.held(n["alpha"], dtype)
    a, b, factor = _in_compute(n, *operands)
    return n.cast(n.F.sub(b, a if n["alpha"] == 1 else n.F.mul(a, factor)), dtype)


def _in_compute(n: Call, *values: Value) -> list[Value]:
    """Rounded values, at the type that arithmetic on theirs is done in."""
    return [n.cast(each, each.dtype.compute) if each.dtype.is_float else each for each in values]


def divide(n: Call) -> Value:
    """div with a rounding mode."""
    mode = n.given.get("rounding_mode")
    left, right = n["self"], n["other"]
    if mode is None:
        return n.pointwise("div", left, right, floats=True)
    if n.common(left, right) is DType.BOOL:
        raise Unmapped("integer division of booleans")
    (a, b), dtype = n.meet(left, right)
    b = n.divisor(b, right)
    if mode == "floor":
        return n.cast(n.F.floor_divide(a, b), dtype)
    if not dtype.is_float:
        return n.F.int_truncate_divide(a, b)
    return n.cast(n.F.trunc(n.F.div(a, b)), dtype)


def c_remainder(n: Call) -> Value:
    """fmod, of floats and integers."""
    (a, b), dtype = n.meet(n["self"], n["other"])
    if dtype is DType.BOOL:
        raise Unmapped("fmod of booleans")
    b = n.divisor(b, n["other"])
    return n.cast(n.row("fmod" if dtype.is_float else "int_truncate_remainder")(a, b), dtype)


def power(n: Call) -> Value:
    """pow. As PyTorch: exponents 2 and 3 multiply, 0.5, -0.5, -1, -2 are roots and reciprocals; integers multiply."""
    base, exponent = n["self"], n["exponent"]
    dtype = n.result.dtype
    if dtype.is_float:
        known = exponent if isinstance(exponent, int | float) and not isinstance(exponent, bool) else None
        (a,) = _in_compute(n, n.lift(base, dtype))
        if known is not None:
            made = _known_power(n, a, float(known), dtype)
            if made is not None:
                return n.cast(made, dtype)
        (b,) = _in_compute(n, n.held(exponent, dtype) if dtype.is_reduced else n.lift(exponent, dtype))
        return n.cast(n.F.pow(a, b), dtype)
    if not isinstance(exponent, int) or isinstance(exponent, bool) or exponent < 0 or dtype is DType.BOOL:
        raise Unmapped("pow of integers to a power that is not a known natural number")
    return integer_power(n, n.lift(base, dtype), exponent)


def _known_power(n: Call, a: Value, exponent: float, dtype: DType) -> Value | None:
    """None where PyTorch takes the general power: of float16 for roots too, which differ at -inf and -0."""
    if exponent == 2:
        return n.F.mul(a, a)
    if exponent == 3:
        return n.F.mul(n.F.mul(a, a), a)
    if exponent in (0.5, -0.5) and dtype is DType.FLOAT16:
        return None
    if exponent == 0.5:
        return n.F.sqrt(a)
    if exponent == -0.5:
        return n.F.rsqrt(a)
    if exponent == -1:
        return n.F.reciprocal(a)
    if exponent == -2:
        return n.F.reciprocal(n.F.mul(a, a))
    if exponent == 0:
        return n.full(1, a.shape, a.dtype)
    return n.F.copy(a) if exponent == 1 else None


def integer_power(n: Call, base: Value, exponent: int) -> Value:
    """By squaring."""
    if exponent == 0:
        return n.full(1, base.shape, base.dtype)
    result: Value | None = None
    square = base
    while exponent:
        if exponent & 1:
            result = square if result is None else n.F.mul(result, square)
        exponent >>= 1
        square = n.F.mul(square, square) if exponent else square
    assert result is not None
    return n.F.copy(result) if result is base else result


def clamp(n: Call) -> Value:
    """clamp; the upper bound wins, NaN stays."""
    low, high = n.given.get("min"), n.given.get("max")
    dtype = n.result.dtype
    result = n.lift(n.x, dtype)
    for bound, row in ((low, "maximum"), (high, "minimum")):
        if bound is not None:
            result = n.row(row)(result, n.held(bound, dtype))
    return result if result is not n.x else n.F.copy(result)


def hardtanh(n: Call) -> Value:
    """A clamp to two numbers."""
    dtype = n.x.dtype
    low, high = (n.held(n[name], dtype) for name in ("min_val", "max_val"))
    return n.F.minimum(n.F.maximum(n.x, low), high)


def heaviside(n: Call) -> Value:
    """0 below zero, 1 above, the second operand at zero; NaN's is 0 in PyTorch."""
    (a, b), dtype = n.meet(n["self"], n["values"])
    zero = n.scalar(0, a.dtype)
    above = n.F.cast(n.F.gt(a, zero), dtype=a.dtype) if a.dtype is not DType.BOOL else a
    return n.cast(n.F.where(n.F.eq(a, zero), b, above), dtype)


def angle(n: Call) -> Value:
    """Of real numbers: π below zero, else 0; NaN stays."""
    x = n.cast(n.x, n.result.dtype)
    turned = n.F.where(n.F.lt(x, n.scalar(0, x.dtype)), n.scalar(math.pi, x.dtype), n.scalar(0, x.dtype))
    return n.F.where(n.F.isnan(x), x, turned)


def convert(n: Call) -> Value:
    """_to_copy, convert_element_type: a fresh tensor of another element type."""
    wanted = n.result.dtype
    return n.F.copy(n.x) if n.x.dtype is wanted else n.cast(n.x, wanted)


def copy(n: Call) -> Value:
    return n.F.copy(n.x)


def copy_into(n: Call) -> Value:
    """copy: the source in the operand's type and shape."""
    dtype, shape = n.result
    source = n.cast(n["src"], dtype)
    made = n.expand(source, shape)
    return n.F.copy(source) if made is source else made


def where(n: Call) -> Value:
    condition = truth(n, n["condition"])
    (a, b), dtype = n.meet(n["self"], n["other"])
    return n.cast(n.F.where(condition, a, b), dtype)


def masked_fill(n: Call) -> Value:
    x = n["self"]
    return n.F.where(n["mask"], n.held(n["value"], x.dtype), x)


def predicate(row: str, integers: bool) -> Maker:
    """A question to floats; of integers the answer is known."""

    def make(n: Call) -> Value:
        if n.x.dtype.is_float:
            return n.row(row)(n.x)
        return n.full(integers, n.x.shape, DType.BOOL)

    return make


def signbit(n: Call) -> Value:
    if n.x.dtype.is_float:
        return n.F.signbit(n.x)
    if n.x.dtype is DType.BOOL or not n.x.dtype.is_signed:
        return n.full(False, n.x.shape, DType.BOOL)
    return n.F.lt(n.x, n.scalar(0, n.x.dtype))


def sign(n: Call) -> Value:
    """sign; NaN's is 0 in PyTorch."""
    if n.x.dtype is DType.BOOL:
        return n.F.copy(n.x)
    if not n.x.dtype.is_float:
        return n.F.sign(n.x)
    return n.F.where(n.F.isnan(n.x), n.scalar(0, n.x.dtype), n.F.sign(n.x))


def gelu(n: Call) -> Value:
    return n.F.gelu(n.x, approximate=n["approximate"])


def leaky_relu(n: Call) -> Value:
    return n.pointwise("leaky_relu", n.x, alpha=float(n["negative_slope"]))


def elu(n: Call) -> Value:
    """scale · a above zero, alpha · scale · (exp(input_scale · a) − 1) below."""
    alpha, scale, input_scale = (float(n[name]) for name in ("alpha", "scale", "input_scale"))
    dtype = n.result.dtype
    x = n.cast(n.x, dtype.compute)
    below = n.F.mul(n.F.expm1(_times(n, x, input_scale)), n.scalar(alpha * scale, x.dtype))
    above = _times(n, x, scale)
    return n.cast(n.F.where(n.F.gt(x, n.scalar(0, x.dtype)), above, below), dtype)


def _times(n: Call, x: Value, factor: float) -> Value:
    return x if factor == 1 else n.F.mul(x, n.scalar(factor, x.dtype))


def softplus(n: Call) -> Value:
    """log(1 + exp(beta · a)) / beta; a itself where beta · a is above the threshold."""
    beta, threshold = float(n["beta"]), float(n["threshold"])
    x = n.cast(n.x, n.x.dtype.compute)
    inner = _times(n, x, beta)
    soft = n.F.log1p(n.F.exp(inner))
    soft = soft if beta == 1 else n.F.div(soft, n.scalar(beta, x.dtype))
    return n.cast(n.F.where(n.F.gt(inner, n.scalar(threshold, x.dtype)), x, soft), n.x.dtype)


def nan_to_num(n: Call) -> Value:
    """By default NaN becomes 0 and infinities the type's limits."""
    dtype = n.x.dtype
    if not dtype.is_float:
        return n.F.copy(n.x)
    limit = largest(dtype)
    given = {"nan": n["nan"], "posinf": n["posinf"], "neginf": n["neginf"]}
    defaults = {"nan": 0.0, "posinf": limit, "neginf": -limit}
    return n.F.nan_to_num(n.x, **{k: float(defaults[k] if v is None else v) for k, v in given.items()})


def relu(n: Call) -> Value:
    if n.x.dtype is DType.BOOL:
        raise Unmapped("relu of booleans")
    return n.F.relu(n.x)


def negate(n: Call) -> Value:
    if n.x.dtype is DType.BOOL:
        raise Unmapped("the negative of booleans")
    return n.F.neg(n.x)


def magnitude(n: Call) -> Value:
    return n.F.copy(n.x) if n.x.dtype is DType.BOOL else n.F.abs(n.x)


def shift(row: str) -> Maker:
    """Shifts; amounts outside the width give what PyTorch gives: nothing, or the sign."""

    def make(n: Call) -> Value:
        left, right = list(n.given.values())[:2]
        (a, b), _ = n.meet(left, right)
        if not a.dtype.is_integer:
            raise Unmapped(f"{n.op} of {a.dtype}")
        return n.row(row)(a, b)

    return make


def round_to(n: Call) -> Value:
    """round to a number of decimals."""
    decimals = int(n["decimals"])
    if not n.x.dtype.is_float:
        raise Unmapped("round of integers to decimals")
    if decimals == 0:
        return n.F.round(n.x)
    factor = n.scalar(10.0 ** abs(decimals), n.x.dtype.compute)
    x = n.cast(n.x, n.x.dtype.compute)
    down, up = (n.F.div, n.F.mul) if decimals > 0 else (n.F.mul, n.F.div)
    return n.cast(down(n.F.round(up(x, factor)), factor), n.x.dtype)


def lerp(n: Call) -> Value:
    """start + weight · (end − start), from the end for weights of at least a half, as PyTorch does."""
    start, end, weight = n["self"], n["end"], n["weight"]
    dtype = n.result.dtype
    inner = dtype.compute
    a, b, w = n.lift(start, inner), n.lift(end, inner), n.lift(weight, inner)
    apart = n.F.sub(b, a)
    low = n.F.add(a, n.F.mul(w, apart))
    one = n.scalar(1, inner)
    high = n.F.sub(b, n.F.mul(apart, n.F.sub(one, w)))
    return n.cast(n.F.where(n.F.lt(n.F.abs(w), n.scalar(0.5, inner)), low, high), dtype)


def addcmul(n: Call) -> Value:
    """self + value · tensor1 · tensor2."""
    return _added(n, "mul")


def addcdiv(n: Call) -> Value:
    """self + value · tensor1 / tensor2."""
    return _added(n, "div")


def _added(n: Call, row: str) -> Value:
    dtype = n.result.dtype
    if row == "div" and not dtype.is_float:
        raise Unmapped("addcdiv of integers")
    inner = dtype.compute
    x, a, b = (n.lift(n[name], inner) for name in ("self", "tensor1", "tensor2"))
    first = a if n["value"] == 1 else n.F.mul(n.scalar(n["value"], inner), a)
    return n.cast(n.F.add(x, n.row(row)(first, b)), dtype)


def multiply_add(n: Call) -> Value:
    """prims.fma: a · b + c. Two roundings, as where PyTorch runs it on a CPU; of narrow types one."""
    dtype = n.result.dtype
    a, b, c = (n.lift(n[name], dtype.compute) for name in ("a", "b", "c"))
    return n.cast(n.F.add(n.F.mul(a, b), c), dtype)


def logit(n: Call) -> Value:
    """log(x / (1 − x)) of x between eps and 1 − eps, both rounded to the type."""
    dtype = n.result.dtype
    x = n.cast(n.x, dtype)
    if n["eps"] is not None:
        low = n.held(n["eps"], dtype)
        high = n.cast(n.F.sub(n.scalar(1, dtype), low), dtype)
        x = n.F.minimum(n.F.maximum(x, low), high)
    return n.F.logit(x)


def full(n: Call) -> Value:
    """full, full_like, zeros, ones …: one value."""
    dtype, shape = n.result
    value = n.given.get("fill_value", 0)
    if isinstance(value, Value):
        return n.expand(n.cast(value, dtype), shape) if shape else n.F.copy(n.cast(value, dtype))
    if isinstance(value, float) and not math.isfinite(value) and not dtype.is_float:
        raise Unmapped(f"{value} as {dtype}")
    made = n.held(bool(value) if dtype is DType.BOOL and not isinstance(value, Expr) else value, dtype)
    return n.F.expand(made, shape=shape) if shape else n.F.copy(made)


def constant(value: int) -> Maker:
    def make(n: Call) -> Value:
        dtype, shape = n.result
        made = n.scalar(bool(value) if dtype is DType.BOOL else value, dtype)
        return n.F.expand(made, shape=shape) if shape else n.F.copy(made)

    return make
