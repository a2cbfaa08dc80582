"""erfc, the cube root and log|gamma| in single precision alone, for targets without the C library."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autofusion.targets.vecmath.arithmetic import Lanes, fma, repeat
from autofusion.targets.vecmath.exponential import expm1_reduced, power, reduce, scale
from autofusion.targets.vecmath.logarithm import add_exponent, log
from autofusion.targets.vecmath.pairs import Pair, divide, multiply, ordered_sum, square
from autofusion.targets.vecmath.polynomials import COEFFICIENTS, horner, polynomial
from autofusion.targets.vecmath.remainder import mantissa_and_exponent
from autofusion.targets.vecmath.splitting import split_any
from autofusion.targets.vecmath.trigonometry import sin_of
from autofusion.targets.vecmath.values import Emitter, V

INFINITY = float("inf")
# erfc: where the form with e^(-x^2) begins, the scale of its variable, and where erfc rounds to 0.
ERFC_SPLIT, ERFC_SCALE, ERFC_HIGHEST = 0.46, 2.0, 10.5
# The bits of cbrt(m) are near a third of m's and this.
CBRT_BITS = 0x2A514067
# log|gamma|: the interval of the polynomial, its centre, where Stirling's series begins.
GAMMA_LOW, GAMMA_HIGH, GAMMA_CENTRE, STIRLING = 0.75, 2.5, 1.625, 8.0
HALF_LOG_TWO_PI = 0.9189385332046727
WHOLE = 2.0**23  # all numbers from here on are integers


def erfc(e: Emitter, x: V) -> V:
    """1 - erf(x) up to 0.46. Above, e^(-x^2) * ERFC(t) / (1 + 2x) with t = (x - 2) / (x + 2); the square, the
    polynomial's last sum and the quotient are pairs. 2 - erfc(-x) for negative x."""
    a = Lanes(e, x)
    b = a.abs()
    small = 1.0 - fma(polynomial("ERF_SMALL", a * a), a, a)
    b = b.at_most(ERFC_HIGHEST)
    t = (b - ERFC_SCALE) / (b + ERFC_SCALE)
    first, *rest = COEFFICIENTS["ERFC", "float"]
    top = ordered_sum(t.constant(first), t * horner(tuple(rest), t))
    quotient = divide(top, ordered_sum((b > 0.5).where(b + b, 1.0), (b > 0.5).where(1.0, b + b)))
    exponent = square(b)
    rounding, r = reduce(-exponent.high)
    factor = expm1_reduced(r - exponent.low)
    large = scale(quotient.high + fma(quotient.high, factor, quotient.low), rounding)
    large = (a < 0.0).where(2.0 - large, large)
    return (a.abs() < ERFC_SPLIT).where(small, large).v


def cbrt(e: Emitter, x: V) -> V:
    """cbrt(m) * 2^k, x = m * 2^(3k) with m in [1, 8): two steps of Halley's, then one of Newton's from the error of the
    cube as a pair."""
    a = Lanes(e, x)
    m, exponent = mantissa_and_exponent(a.abs())
    places = exponent.convert("sitofp", "float")
    k = ((places + 0.5) * (1 / 3)).call("floor")
    m = m * power(places - k * 3.0)
    guess = (m.as_integer().convert("sitofp", "float") * (1 / 3)).convert("fptosi", "i32")
    y = (guess + CBRT_BITS).as_float()
    for _ in range(2):
        cube = y * y * y
        y = y * ((cube + (m + m)) / (cube + cube + m))
    cubed = multiply(square(y), Pair(y, y.constant(0.0)))
    y = y + ((m - cubed.high) - cubed.low) / (y * y * 3.0)
    regular = (a.abs() > 0.0) & (a.abs() < INFINITY)
    return regular.where((y * power(k)).with_sign_of(a), a).v


def log_of_pair(p: Pair) -> Lanes:
    """log of a positive pair, accurate next to 1 too."""
    k, f = split_any(p.high)
    return add_exponent(k, f + fma(f * f, polynomial("LOG", f), p.low / p.high))


def stirling(a: Lanes) -> Lanes:
    """log(gamma(a)) for a >= 8."""
    inverse = 1.0 / a
    series = inverse * fma(inverse * inverse, -1 / 360, 1 / 12)
    logarithm = Lanes(a.e, log(a.e, a.v))
    return fma(a - 0.5, logarithm - 1.0, series + (HALF_LOG_TWO_PI - 0.5))


def lgamma(e: Emitter, x: V) -> V:
    """log|gamma(x)|: (w - 1) (w - 2) LGAMMA(w - 1.625) for w in [0.75, 2.5]; to there by w = x, x ± 1, x ± 2 …, whose
    product is a pair, since its logarithm nearly cancels next to the zeros below 0 (the error there is 2^-23).
    Stirling's series from 8 on, and its reflection from -8 on.
    """
    a = Lanes(e, x)
    far = a.abs() >= STIRLING
    zero = a.constant(0.0)
    start = far.where(1.0, a)

    def outside(w: Lanes) -> Lanes:
        return (w < GAMMA_LOW) | (w > GAMMA_HIGH)

    def step(w: Lanes, high: Lanes, low: Lanes) -> tuple[Lanes, Sequence[Lanes]]:
        down, away = w > GAMMA_HIGH, outside(w)
        following = down.where(w - 1.0, w + 1.0)
        factor = away.where(down.where(following, w), 1.0)
        product = multiply(Pair(high, low), Pair(factor, zero))
        w = away.where(following, w)
        return outside(w), [w, product.high, product.low]

    one = a.constant(1.0)
    w, high, low = repeat(9, outside(start), [start, one, zero], step)
    sign = high < 0.0
    logarithm = log_of_pair(Pair(sign.where(-high, high), sign.where(-low, low)))
    base = (w - 1.0) * (w - 2.0) * polynomial("LGAMMA", w - GAMMA_CENTRE)
    near = (base + 0.0) + (a > 1.0).where(logarithm, -logarithm)
    above = a.abs().at_least(STIRLING)
    series = stirling(above)
    turn = (above - above.call("rint")).abs()
    sine = sin_of(turn * math.pi)
    reflected = (math.log(math.pi) - Lanes(e, log(e, (sine * above).v))) - series
    result = far.where((a < 0.0).where(reflected, series), near)
    pole = (a <= 0.0) & a.equals(a.call("floor"))
    endless = pole | a.abs().equals(INFINITY)
    result = endless.where(INFINITY, result)
    return a.equals(a).where(result, a).v
