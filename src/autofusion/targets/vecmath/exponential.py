"""exp, exp2, expm1 and what is made of them: sigmoid, tanh, sinh, cosh.

All reduce x = n * ln2 + r with |r| <= ln2/2 and an integer n, so that e^x = 2^n * e^r, and have one polynomial:
e^r = 1 + r + r^2 * EXP(r) (Taylor's form of the exponential, with the tail fitted).
"""

from __future__ import annotations

from autofusion.targets.vecmath.arithmetic import FORMATS, Format, Lanes, fma, format_of
from autofusion.targets.vecmath.piecewise import piecewise
from autofusion.targets.vecmath.polynomials import polynomial
from autofusion.targets.vecmath.values import Emitter, V

LOG2_E = 1.4426950408889634


def scale(x: Lanes, rounding: Lanes, shift: int = 0) -> Lanes:
    """x * 2^(n + shift) for x near 1, where `rounding` holds the bits of magic + n.

    Overflows to infinity and underflows gradually: the result is rounded once, by the last multiplication. The power
    is applied in two halves, since 2^n itself need not be a normal number.
    """
    facts = format_of(x)
    if x.e.ldexp:
        return Lanes(x.e, x.e.scale(x.v, (rounding.as_float() - (facts.magic - shift)).v))
    if shift:
        rounding = rounding + shift
    half = rounding >> 1  # the bits of magic leave at the top in the shifts below
    first = power_of_two(half, facts)
    second = power_of_two(rounding - half, facts)
    return x * first * second


def power_of_two(rounding: Lanes, facts: Format, shift: int = 0) -> Lanes:
    """2^(n + shift), if that is a normal number, for `rounding` = the bits of magic + n."""
    return ((rounding << facts.mantissa) + (facts.one + (shift << facts.mantissa))).as_float()


def power(n: Lanes) -> Lanes:
    """2^n, if that is a normal number, of a whole number: a float or an integer."""
    facts = FORMATS["float"] if not n.is_float else format_of(n)
    whole = n.convert("fptosi", facts.integer) if n.is_float else n
    return ((whole + facts.bias) << facts.mantissa).as_float()


def reduce_high(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """(bits of magic + n, n, x - n * high part of ln2), the last exact (Cody and Waite)."""
    facts = format_of(x)
    shifted = fma(x, LOG2_E, facts.magic)
    n = shifted - facts.magic
    return shifted.as_integer(), n, fma(n, -facts.ln2[0], x)


def reduce(x: Lanes) -> tuple[Lanes, Lanes]:
    """(bits of magic + n, r): x = n * ln2 + r."""
    rounding, n, high = reduce_high(x)
    return rounding, fma(n, -format_of(x).ln2[1], high)


def exp_reduced(r: Lanes) -> Lanes:
    """e^r for |r| <= ln2/2."""
    return fma(fma(polynomial("EXP", r), r, 1.0), r, 1.0)


def expm1_reduced(r: Lanes) -> Lanes:
    """e^r - 1 for |r| <= ln2/2, relatively accurate at 0."""
    return fma(r * r, polynomial("EXP", r), r)


# (lowest, highest): beyond these e^x is 0 or infinite, and n still fits the two halves of `scale`.
EXP_RANGE = {"float": (-104.0, 90.0), "double": (-746.0, 712.0)}
EXP2_RANGE = {"float": (-151.0, 129.0), "double": (-1076.0, 1025.0)}
# Below, e^x - 1 rounds to -1; above it is infinite, and 2^(n-1) is still finite.
EXPM1_RANGE = {"float": (-18.0, 89.0), "double": (-38.0, 710.0)}
# Below in magnitude, e^x - 1 rounds to x.
TINY = {"float": 2.0**-26, "double": 2.0**-55}
# Above, tanh(x) rounds to 1.
TANH_HIGHEST = {"float": 10.0, "double": 22.0}


def half_expm1(x: Lanes) -> Lanes:
    """(e^x - 1) / 2 = 2^(n-1) * (r + r^2 * EXP(r)) + (2^(n-1) - 1/2), relatively accurate at 0.

    The halves keep 2^n finite up to the overflow. r is added as its exact part and a small rest: near 0 there is
    cancellation for n = 1 and n = -1, which the exact part survives.
    """
    facts = format_of(x)
    rounding, n, high = reduce_high(x)
    low = n * -facts.ln2[1]
    r = high + low
    power = power_of_two(rounding, facts, shift=-1)
    exact = fma(power, high, power - 0.5)
    return fma(power, fma(r * r, polynomial("EXP", r), low), exact)


def exp(e: Emitter, x: V) -> V:
    """e^x = 2^n * e^r."""
    return exp_falling(e, Lanes(e, x).at_most(EXP_RANGE[format_of(x).scalar][1]).v)


def exp_falling(e: Emitter, x: V) -> V:
    """e^x of x that is at most 0, or no more than a result can be."""
    rounding, r = reduce(Lanes(e, x).at_least(EXP_RANGE[format_of(x).scalar][0]))
    return scale(exp_reduced(r), rounding).v


def exp2(e: Emitter, x: V) -> V:
    """2^x = 2^n * 2^r with n = rint(x), r = x - n exact in [-1/2, 1/2]; 2^r = 1 + r * EXP2(r)."""
    facts = format_of(x)
    lowest, highest = EXP2_RANGE[facts.scalar]
    a = Lanes(e, x).at_most(highest).at_least(lowest)
    shifted = a + facts.magic
    r = a - (shifted - facts.magic)
    return scale(fma(polynomial("EXP2", r), r, 1.0), shifted.as_integer()).v


def expm1(e: Emitter, x: V) -> V:
    """Twice its half; x itself near 0, where halving would lose a bit of a denormal."""
    scalar = format_of(x).scalar
    a = Lanes(e, x)
    lowest, highest = EXPM1_RANGE[scalar]
    half = half_expm1(a.at_most(highest).at_least(lowest))
    return (a.abs() < TINY[scalar]).where(a, half + half).v


def sigmoid(e: Emitter, x: V) -> V:
    """With z = e^-|x| in [0, 1] and w = z / (1 + z): 1 - w for x >= 0, z - z * w for x < 0.

    Nothing cancels or overflows, and the rounding errors of w count half or less (unlike those of z / (1 + z)).
    """
    a = Lanes(e, x)
    lowest, _ = EXP_RANGE[format_of(x).scalar]
    rounding, r = reduce((-a.abs()).at_least(lowest))
    z = scale(expm1_reduced(r) + 1.0, rounding)
    one_or_z = (a < 0.0).where(z, 1.0)
    return fma(-one_or_z, z / (z + 1.0), one_or_z).v


def tanh(e: Emitter, x: V) -> V:
    """h / (1 + h) with h = (e^2|x| - 1) / 2, which is relatively accurate at 0.

    Written as h - h * (h / (1 + h)) for h < 1, and 1 - 1 / (1 + h) elsewhere, where the rounding errors of the
    quotient count less. Both are c - c * (c / (1 + h)). By pieces where single precision can.
    """
    a = Lanes(e, x)
    scalar = format_of(x).scalar
    b = a.abs().at_most(TANH_HIGHEST[scalar])
    if e.chooses and scalar == "float":
        return piecewise("TANH", b).copysign(a).v
    h = half_expm1(b + b)
    c = (h > 1.0).where(1.0, h)
    return fma(-c, c / (h + 1.0), c).copysign(a).v


def half_exp(x: Lanes) -> Lanes:
    """e^x / 2 for x >= 0, finite as long as sinh and cosh are."""
    rounding, r = reduce(x.at_most(EXP_RANGE[format_of(x).scalar][1]))
    return scale(exp_reduced(r), rounding, shift=-1)


def sinh(e: Emitter, x: V) -> V:
    """x + x^3 * SINH(x^2) for |x| < 1; h - 1/(4h) with h = e^|x| / 2 elsewhere, where the difference loses little."""
    a = Lanes(e, x)
    b = a.abs()
    h = half_exp(b)
    square = b * b
    small = fma(square * b, polynomial("SINH", square), b)
    return (b < 1.0).where(small, h - 0.25 / h).copysign(a).v


def cosh(e: Emitter, x: V) -> V:
    """h + 1/(4h) with h = e^|x| / 2."""
    h = half_exp(Lanes(e, x).abs())
    return (h + 0.25 / h).v
