"""fmod in single precision: long division, exact."""

from __future__ import annotations

from collections.abc import Sequence

from autofusion.targets.vecmath.arithmetic import Lanes, format_of, repeat
from autofusion.targets.vecmath.exponential import power
from autofusion.targets.vecmath.pairs import halves
from autofusion.targets.vecmath.values import Emitter, V

DIGIT = 12  # bits of a quotient's digit: its products with halves of the divisor are exact
STEPS = 24  # digits between the largest float and the least


def mantissa_and_exponent(a: Lanes) -> tuple[Lanes, Lanes]:
    """(m, e): a = m * 2^e with m in [1, 2), e an integer, of a positive number."""
    facts = format_of(a)
    denormal = a < facts.smallest_normal
    bits = denormal.where(a * 2.0**facts.mantissa, a).as_integer()
    bias = denormal.where(bits.constant(facts.bias + facts.mantissa), facts.bias)
    exponent = bits.logical_shift(facts.mantissa) - bias
    return ((bits & ((1 << facts.mantissa) - 1)) | facts.one).as_float(), exponent


def fmod(e: Emitter, x: V, y: V) -> V:
    """The remainder of |x| / |y| with the sign of x. The mantissas are divided a digit at a time; each step takes the
    dividend's rest by up to 12 binary places further, and none of its products and differences rounds."""
    a, b = Lanes(e, x), Lanes(e, y)
    dividend, divisor = a.abs(), b.abs()
    regular = (dividend < float("inf")) & (divisor > 0.0)  # the rest is NaN, but for NaN divisors
    top, above = mantissa_and_exponent(dividend)
    bottom, below = mantissa_and_exponent(divisor)
    high, low = halves(bottom)
    inside = regular & (divisor < float("inf"))
    places = inside.where((above - below).convert("sitofp", "float"), 0.0)

    def step(rest: Lanes, places: Lanes) -> tuple[Lanes, Sequence[Lanes]]:
        now = places.at_most(DIGIT).at_least(0.0)
        shifted = rest * power(now)
        digit = (shifted / bottom).call("trunc")  # or one more
        left = (shifted - digit * high) - digit * low
        left = (left < 0.0).where(left + bottom, left)
        places = places - now
        return places > 0.0, [left, places]

    first = (top >= bottom).where(top - bottom, top)
    rest, _ = repeat(STEPS, places > 0.0, [first, places], step)
    half = below >> 1
    rest = rest * power(half) * power(below - half)
    rest = (dividend < divisor).where(dividend, rest).with_sign_of(a)
    return (regular & b.equals(b)).where(rest, float("nan")).v
