"""sin, cos, tan and their inverses.

x = q * pi/2 + r with |r| <= pi/4 and an integer q; the polynomials of r are swapped and negated by q's two low bits.
The reduction is Cody and Waite's (pi/2 in several parts) up to a bound, and exact integer arithmetic on the bits of
2/pi (Payne and Hanek) or libm beyond it, in a branch that is taken only if some lane needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from autofusion.targets.vecmath.arithmetic import Lanes, fma, format_of, libm, wide_emitter
from autofusion.targets.vecmath.pairs import ordered_sum
from autofusion.targets.vecmath.polynomials import COEFFICIENTS, horner, polynomial
from autofusion.targets.vecmath.reduction import pi, reduce_narrow
from autofusion.targets.vecmath.values import Emitter, V

TWO_OVER_PI = 0.6366197723675814
# Where Cody and Waite's reduction ends. Single: q * (the error of three parts) stays 2^-24 below the smallest |r| of
# any float. Double: q has 20 bits, and the products of q with the first three parts are exact.
LARGE = {"float": 2.0**16, "double": 2.0**20}
# pi/2 in parts of 24 bits (with fused multiply-add, every step but the last rounds only what survives).
HALF_PI_SINGLE = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
# pi/2 in three parts of 33 bits and a rest.
HALF_PI_DOUBLE = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32)
# Biased exponents of the floats that need the table, and its length.
FIRST_EXPONENT, LAST_EXPONENT = 127 + 16, 254


@dataclass(frozen=True)
class Reduced:
    """|x| = q * pi/2 + r; `q` holds the quadrant in its low two bits (the bits above are arbitrary)."""

    r: Lanes
    q: Lanes


def round_quotient(a: Lanes) -> tuple[Lanes, Lanes]:
    """(n, its bits): n = rint(a * 2/pi), by adding and subtracting the magic number."""
    magic = format_of(a).magic
    shifted = fma(a, TWO_OVER_PI, magic)
    return shifted - magic, shifted.as_integer()


def subtract_parts(a: Lanes, n: Lanes, parts: tuple[float, ...]) -> Lanes:
    for part in parts:
        a = fma(n, -part, a)
    return a


def reduce_single(a: Lanes, wide: bool) -> Reduced:
    """For floats below LARGE. Without fused multiply-add the products would round, so then it is done in double."""
    if a.e.fma and not wide:
        n, bits = round_quotient(a)
        return Reduced(subtract_parts(a, n, HALF_PI_SINGLE), bits)
    n, bits = round_quotient(a.convert("fpext", "double"))
    r = subtract_parts(a.convert("fpext", "double"), n, HALF_PI_DOUBLE[:3])
    return Reduced(r if wide else r.convert("fptrunc", "float"), bits.convert("trunc", "i32"))


def two_over_pi_table() -> list[tuple[int, int]]:
    """For every exponent the 96 bits of 2/pi that matter: (64 bits from 2^1 down to 2^-62, the next 32 bits).

    Entry E - FIRST_EXPONENT belongs to x = m * 2^(E - 150) with a 24-bit integer m: bits above are multiples of 4.
    """
    quotient = 2 / pi()
    table = []
    for exponent in range(FIRST_EXPONENT, LAST_EXPONENT + 1):
        bits = int(quotient * Fraction(2) ** (exponent - 150 + 62 + 32))
        table.append(((bits >> 32) & ((1 << 64) - 1), bits & ((1 << 32) - 1)))
    return table


def reduce_huge_single(a: Lanes, huge: Lanes, wide: bool) -> Reduced:
    """Payne and Hanek for the `huge` lanes: the product of the mantissa with 96 bits of 2/pi, modulo 4, as integers.

    The fraction is right to 2^-61, and no float is nearer to a multiple of pi/2 than about 2^-30.
    """
    bits = a.as_integer()
    table = two_over_pi_table()
    index = huge.where((bits >> 23) - FIRST_EXPONENT, 0).convert("zext", "i64")
    m = ((bits & 0x7FFFFF) | 0x800000).convert("zext", "i64")
    e = wide_emitter(a)
    high = Lanes(e, e.look_up("two_over_pi_high", [high for high, _ in table], index.v))
    low = Lanes(e, e.look_up("two_over_pi_low", [low for _, low in table], index.v))
    product = m * high + (m * low).logical_shift(32)  # x * 2/pi modulo 4, in units of 2^-62
    q = (product + (1 << 61)).logical_shift(62).convert("trunc", "i32")
    fraction = ((product << 2) >> 2).convert("sitofp", "double")
    r = fraction * (2.0**-62 / TWO_OVER_PI)
    return Reduced(r if wide else r.convert("fptrunc", "float"), q)


def reduce_any_single(a: Lanes, wide: bool = False) -> Reduced:
    """For every non-negative float; r of infinity and NaN is NaN. `wide`: r stays in double."""
    e = wide_emitter(a)
    fast = reduce_single(a, wide)
    huge = (a >= LARGE["float"]) & (a < float("inf"))
    slot_r, slot_q = e.slot(fast.r.type), e.slot(fast.q.type)
    e.set(slot_r, fast.r.v)
    e.set(slot_q, fast.q.v)
    with e.when(huge.any()):
        exact = reduce_huge_single(a, huge, wide)
        e.set(slot_r, huge.where(exact.r, fast.r).v)
        e.set(slot_q, huge.where(exact.q, fast.q).v)
    return Reduced(Lanes(e, e.get(slot_r, fast.r.type)), Lanes(e, e.get(slot_q, fast.q.type)))


def reduce_any(a: Lanes) -> Reduced:
    """In single precision for every number, in double below LARGE (libm replaces the results beyond)."""
    if format_of(a).scalar == "float":
        return reduce_any_single(a)
    n, bits = round_quotient(a)
    return Reduced(subtract_parts(a, n, HALF_PI_DOUBLE), bits)


def libm_where_huge(name: str, y: Lanes, x: Lanes, a: Lanes) -> V:
    """In double, replace y by libm's result in lanes with huge |x| = a."""
    if format_of(x).scalar == "float":
        return y.v
    e = wide_emitter(x)
    huge = a >= LARGE["double"]
    slot = e.slot(y.type)
    e.set(slot, y.v)
    with e.when(huge.any()):
        e.set(slot, huge.where(libm(name, x), y).v)
    return e.get(slot, y.type)


def sin_reduced(r: Lanes, square: Lanes) -> Lanes:
    """r + r^3 * SIN(r^2)."""
    return fma(square * r, polynomial("SIN", square), r)


def cos_reduced(square: Lanes) -> Lanes:
    """1 - r^2/2 + r^4 * COS(r^2)."""
    return fma(square * square, polynomial("COS", square), fma(square, -0.5, 1.0))


def flip(y: Lanes, q: Lanes) -> Lanes:
    """-y where bit 1 of q is set."""
    to_sign = 30 if format_of(y).scalar == "float" else 62
    return (y.as_integer() ^ ((q & 2) << to_sign)).as_float()


def sine_of_quadrant(reduced: Lanes, q: Lanes) -> Lanes:
    """sin(q * pi/2 + r)."""
    square = reduced * reduced
    return flip((q & 1).equals(0).where(sin_reduced(reduced, square), cos_reduced(square)), q)


def narrow_sine(a: Lanes, ahead: int) -> Lanes:
    """sin(a + ahead * pi/2), a >= 0, of r in two numbers: sin(r) + low and cos(r) - r * low."""
    reduced, q = reduce_narrow(a)
    r, low = reduced.high, reduced.low
    square = r * r
    sine = r + (square * r * polynomial("SIN", square) + low)
    cosine = 1.0 - (square * 0.5 - (square * square * polynomial("COS", square) - r * low))
    q = q + ahead
    return flip((q & 1).equals(0).where(sine, cosine), q)


def sin_of(r: Lanes) -> Lanes:
    """sin(r) for 0 <= r <= pi/2, without a reduction."""
    square = r * r
    rest = 1.5707963267948966 - r
    return (r < 0.8).where(sin_reduced(r, square), cos_reduced(rest * rest))


def sin(e: Emitter, x: V) -> V:
    """The sine of |x| with the sign of x."""
    a = Lanes(e, x)
    magnitude = a.abs()
    if not e.wide:
        return narrow_sine(magnitude, 0).with_sign_of(a).v
    reduced = reduce_any(magnitude)
    y = sine_of_quadrant(reduced.r, reduced.q)
    return libm_where_huge("sin", y.with_sign_of(a), a, magnitude)


def cos(e: Emitter, x: V) -> V:
    """The sine a quadrant further on."""
    a = Lanes(e, x)
    magnitude = a.abs()
    if not e.wide:
        return narrow_sine(magnitude, 1).v
    reduced = reduce_any(magnitude)
    return libm_where_huge("cos", sine_of_quadrant(reduced.r, reduced.q + 1), a, magnitude)


def narrow_tan(a: Lanes) -> Lanes:
    """The same in single precision: t = r + (r^3 * TAN(r^2) + (1 + r^2) * low) as a pair."""
    reduced, q = reduce_narrow(a)
    r, odd = reduced.high, (q & 1).differs(0)
    square = r * r
    t = ordered_sum(r, square * r * polynomial("TAN", square) + fma(square, reduced.low, reduced.low))
    quotient = -1.0 / t.high
    return odd.where(fma(-quotient, t.low / t.high, quotient), t.high)


def tan(e: Emitter, x: V) -> V:
    """t = r + r^3 * TAN(r^2), and -1/t in odd quadrants.

    For single precision r and t are double: the roundings of r, t and the quotient would pass 2 ulp together.
    """
    a = Lanes(e, x)
    magnitude = a.abs()
    if not e.wide:
        return narrow_tan(magnitude).with_sign_of(a).v
    single = format_of(x).scalar == "float"
    reduced = reduce_any_single(magnitude, wide=True) if single else reduce_any(magnitude)
    r, odd = reduced.r, (reduced.q & 1).differs(0)
    square = r * r
    t = fma(square * r, horner(COEFFICIENTS["TAN", format_of(x).scalar], square), r)
    y = odd.where(-1.0, t) / odd.where(t, 1.0)
    y = y.convert("fptrunc", "float") if single else y
    return libm_where_huge("tan", y.with_sign_of(a), a, magnitude)


def atan_unit(x: Lanes) -> Lanes:
    """x + x^3 * ATAN(x^2) for |x| <= 1."""
    square = x * x
    return fma(square * x, polynomial("ATAN", square), x)


def from_half_pi(y: Lanes, multiple: float = 1.0) -> Lanes:
    """multiple * pi/2 - y, with pi/2 in two parts."""
    high, low = format_of(y).half_pi
    return (low * multiple - y) + high * multiple


def atan(e: Emitter, x: V) -> V:
    """atan(|x|) for |x| <= 1, pi/2 - atan(1/|x|) above; the sign of x."""
    a = Lanes(e, x)
    b = a.abs()
    steep = b > 1.0
    y = atan_unit(steep.where(1.0, b) / steep.where(b, 1.0))
    return steep.where(from_half_pi(y), y).copysign(a).v


def atan2(e: Emitter, y: V, x: V) -> V:
    """The angle of the point (x, y): atan of the smaller over the larger coordinate, mirrored into the octant.

    The special cases are those of C99 F.9.1.4: 0/0 counts as 0 and inf/inf as 1, signs of zeros matter.
    """
    b, a = Lanes(e, y), Lanes(e, x)
    height, width = b.abs(), a.abs()
    steep = height > width
    larger, smaller = steep.where(height, width), steep.where(width, height)
    quotient = larger.equals(0.0).where(0.0, smaller / larger)
    quotient = (smaller.equals(larger) & larger.differs(0.0)).where(1.0, quotient)
    angle, behind = atan_unit(quotient), a.as_integer() < 0
    high, low = format_of(x).half_pi
    # The octants: angle, pi/2 - angle, pi/2 + angle, pi - angle.
    turned = (steep ^ behind).where(-angle, angle)
    start = steep.where(high, behind.where(2.0 * high, a.constant(0.0)))
    rest = steep.where(low, behind.where(2.0 * low, a.constant(0.0)))
    angle = (start + (rest + turned)).copysign(b)
    return (a.differs(a) | b.differs(b)).where(a + b, angle).v


def asin_reduced(b: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """(b > 1/2, asin(s) in two terms) for b = |x|.

    s = b up to 1/2; above, s = sqrt((1 - b) / 2) and asin(b) = pi/2 - 2 asin(s). For b > 1 the root is NaN.
    asin(s) = s + s^3 * ASIN(s^2) for s <= 1/2.
    """
    upper = b > 0.5
    square = upper.where(0.5 - b * 0.5, b * b)
    s = upper.where(square.call("sqrt"), b)
    return upper, s, square * s * polynomial("ASIN", square)


def asin(e: Emitter, x: V) -> V:
    a = Lanes(e, x)
    upper, s, rest = asin_reduced(a.abs())
    high, low = format_of(x).half_pi
    # pi/2 - 2s may lie above 1 with the result below it, so its rounding error is added back.
    coarse = fma(s, -2.0, high)
    lost = fma(s, -2.0, high - coarse)
    outer = coarse + (lost + fma(rest, -2.0, low))
    return upper.where(outer, s + rest).copysign(a).v


def acos(e: Emitter, x: V) -> V:
    """pi/2 - asin(x) near 0; 2 asin(s) near 1, which does not cancel; pi - 2 asin(s) near -1."""
    a = Lanes(e, x)
    upper, s, rest = asin_reduced(a.abs())
    y = s + rest
    double = y + y
    outer = (a < 0.0).where(from_half_pi(double, multiple=2.0), double)
    return upper.where(outer, from_half_pi(y.copysign(a))).v
