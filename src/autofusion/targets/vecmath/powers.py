"""Powers in single precision alone: the logarithm as a pair, since the product with the exponent needs 8 bits more."""

from __future__ import annotations

from autofusion.targets.vecmath.arithmetic import Lanes, fma, format_of
from autofusion.targets.vecmath.exponential import scale
from autofusion.targets.vecmath.pairs import Pair, add, constant, divide, multiply, ordered_sum, two_product
from autofusion.targets.vecmath.polynomials import horner, polynomial
from autofusion.targets.vecmath.splitting import split_any

INFINITY = float("inf")
# atanh(s) = s + s^3 * (1/3 + s^2 * (1/5 + s^2/7 + ...)), as far as s^2 < 0.0295 needs.
ATANH = tuple(1 / n for n in (5, 7, 9, 11, 13))
THIRD = (0.3333333432674408, -9.934107758624577e-09)
TWO_OVER_LN2 = (2.885390043258667, 3.851926067819459e-08)
# 2^p is 0 or infinite beyond.
EXPONENT_LIMIT = 200.0


def log2_pair(x: Lanes) -> Pair:
    """log2 of a non-negative number to about 2^-38: k + 2/ln2 * atanh(f / (2 + f)), x = 2^k * (1 + f)."""
    k, f = split_any(x)
    zero = f.constant(0.0)
    s = divide(Pair(f, zero), ordered_sum(f.constant(2.0), f))
    square = multiply(s, s)
    third = constant(f, *THIRD)
    inner = ordered_sum(third.high, square.high * horner(ATANH, square.high))
    inner = Pair(inner.high, inner.low + third.low)
    y = multiply(add(s, multiply(s, multiply(square, inner))), constant(f, *TWO_OVER_LN2))
    y = add(Pair(k, zero), y)
    edge = x.equals(0.0).where(-INFINITY, x)
    regular = (x > 0.0) & (x < INFINITY)
    return Pair(regular.where(y.high, edge), regular.where(y.low, 0.0))


def exp2_of_product(x: Lanes, y: Lanes) -> Lanes:
    """2^(log2(x) * y)."""
    facts = format_of(x)
    logarithm = log2_pair(x)
    product = two_product(logarithm.high, y)
    inside = product.high.abs() < EXPONENT_LIMIT
    low = inside.where(product.low + logarithm.low * y, 0.0)
    bounded = product.high.at_most(EXPONENT_LIMIT).at_least(-EXPONENT_LIMIT)
    shifted = bounded + facts.magic
    r = (bounded - (shifted - facts.magic)) + low
    return scale(fma(polynomial("EXP2", r), r, 1.0), shifted.as_integer())
