"""log, log2, log1p and pow.

x = 2^k * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)): no cancellation against k * ln2, and f is exact.
log(1 + f) = f + f^2 * LOG(f); log2(1 + f) = f * LOG2(f).
"""

from __future__ import annotations

from autofusion.targets.vecmath.arithmetic import Lanes, fma, format_of, libm
from autofusion.targets.vecmath.polynomials import polynomial
from autofusion.targets.vecmath.powers import exp2_of_product
from autofusion.targets.vecmath.splitting import integer_to_float, split, split_any
from autofusion.targets.vecmath.values import Emitter, V

INFINITY = float("inf")
NAN = float("nan")


def with_edges(y: Lanes, x: Lanes, pole: float) -> Lanes:
    """The edges of a logarithm y of x: -inf at the pole, NaN below it, +inf and NaN as they are."""
    y = (x < INFINITY).where(y, x)
    y = x.equals(pole).where(-INFINITY, y)
    return (x < pole).where(NAN, y)


def add_exponent(k: Lanes, y: Lanes) -> Lanes:
    """k * ln2 + y, with ln2 in two parts (k * high is exact)."""
    high, low = format_of(y).ln2
    return fma(k, high, fma(k, low, y))


def log(e: Emitter, x: V) -> V:
    """k * ln2 + log(1 + f)."""
    a = Lanes(e, x)
    k, f = split_any(a)
    return with_edges(add_exponent(k, fma(f * f, polynomial("LOG", f), f)), a, 0.0).v


def log2(e: Emitter, x: V) -> V:
    """k + log2(1 + f); exact for powers of two."""
    a = Lanes(e, x)
    k, f = split_any(a)
    return with_edges(fma(f, polynomial("LOG2", f), k), a, 0.0).v


def log1p(e: Emitter, x: V) -> V:
    """k is taken from u = fl(1 + x), and f = 2^-k * x + (2^-k - 1), which does not see the rounding of u.

    The product is exact: k differs from 0 only where x is far from 0. The sign of the result is that of x.
    """
    facts = format_of(x)
    a = Lanes(e, x)
    k, _ = split(a + 1.0, facts)
    power = k << facts.mantissa
    limit = k.constant(2 * facts.mantissa)  # 2^-k - 1 rounds to -1 long before
    inverse = (facts.one - (k.call("smin", limit) << facts.mantissa)).as_float()
    f = (a.as_integer() - power).as_float() + (inverse - 1.0)
    y = add_exponent(integer_to_float(k, facts), fma(f * f, polynomial("LOG", f), f))
    return with_edges(y.copysign(a), a, -1.0).v


def log2_of_float(x: Lanes) -> Lanes:
    """log2 of a non-negative single-precision number given in double, to about 35 bits; -inf at 0, +inf at +inf."""
    facts = format_of(x)
    k, m = split(x, facts)  # a denormal float is a normal double
    f = m - 1.0
    y = fma(f, polynomial("POW_LOG2", f), integer_to_float(k, facts))
    y = (x < INFINITY).where(y, x)
    return x.equals(0.0).where(-INFINITY, y)


def pow(e: Emitter, x: V, y: V) -> V:
    """2^(y * log2|x|) in double precision for single (the product needs 8 more bits than the result), rounded once;
    with a pair for the logarithm where there is no double.

    The special cases are those of C99 F.9.4.4. Most fall out of the arithmetic of infinities. For double: libm.
    """
    a, b = Lanes(e, x), Lanes(e, y)
    if format_of(x).scalar == "double":
        return libm("pow", a, b).v
    if e.wide:
        product = log2_of_float(a.abs().convert("fpext", "double")) * b.convert("fpext", "double")
        magnitude = exp2_to_float(product)
    else:
        magnitude = exp2_of_product(a.abs(), b)
    # Numbers from 2^24 on, infinity too, are even integers; b is even if b/2 is whole.
    bounded = b.abs().at_most(2.0**24)
    whole, even = is_whole(bounded.at_most(2.0**23)), is_whole(bounded * 0.5)
    sign_bit = a.as_integer() & 0x80000000
    odd = whole & even.differs(1)
    signed = (magnitude.as_integer() | odd.where(sign_bit, 0)).as_float()
    # A finite negative base with a fraction in the exponent has no real power.
    negative = (a < 0.0) & (a > -INFINITY)
    result = (negative & whole.differs(1)).where(NAN, signed)
    # 1^y and x^0 are 1 even for NaN, and so is (-1)^±inf, where the arithmetic above has 0 * inf.
    is_one = a.equals(1.0) | b.equals(0.0) | (a.equals(-1.0) & b.abs().equals(INFINITY))
    return is_one.where(1.0, result).v


def is_whole(x: Lanes) -> Lanes:
    """Whether a float in [0, 2^23] is an integer: adding 2^23 rounds to one. (llvm.trunc calls libm on SSE2.)"""
    return ((x + 2.0**23) - 2.0**23).equals(x)


def exp2_to_float(x: Lanes) -> Lanes:
    """2^x of a double, to about 28 bits, rounded to single precision: overflow and gradual underflow come from that."""
    facts = format_of(x)
    a = x.at_most(200.0).at_least(-200.0)
    shifted = a + facts.magic
    r = a - (shifted - facts.magic)
    power = ((shifted.as_integer() << facts.mantissa) + facts.one).as_float()
    return (fma(polynomial("POW_EXP2", r), r, 1.0) * power).convert("fptrunc", "float")
