"""x modulo pi/2 in single precision alone: no fused multiply-add, no double, no wide integers.

Every product has at most 12 bits times 12 bits and is exact; sums are exact by the grids that their terms lie on.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache

from autofusion.targets.vecmath.arithmetic import Lanes, repeat
from autofusion.targets.vecmath.pairs import Pair, halves, ordered_sum, two_sum

# Below, q has at most 12 bits, and q times 12 bits of pi/2 is exact.
SMALL = 6000.0
DIGIT = 12  # bits of a digit of 1 / (2 pi)
DIGITS = 16  # 2^-192: of the largest float, all but 2^-64 of a turn
SCALE = 64  # 2^-64 keeps the largest products finite, 2^64 the last digits normal
COARSE, FINE = 18, 39  # sums of the terms: multiples of 2^-18 turns, of 2^-39 turns, and a rest


@cache
def pi() -> Fraction:
    """To 330 bits, by Machin's formula: pi/4 = 4 arctan(1/5) - arctan(1/239)."""
    one = 1 << 340

    def arctan_inverse(d: int) -> int:
        total, term, k = 0, one // d, 0
        while term:
            total += (-1) ** k * (term // (2 * k + 1))
            term //= d * d
            k += 1
        return total

    return Fraction(4 * (4 * arctan_inverse(5) - arctan_inverse(239)), one)


def parts(value: Fraction, bits: Sequence[int]) -> list[float]:
    """A number in (0, 2) as floats of so many bits each, each to nearest of what is left."""
    result = []
    for count in bits:
        exponent = 0
        while abs(value) * 2**exponent < 1:
            exponent += 1
        unit = Fraction(2) ** (exponent - count + 1) if abs(value) >= 1 else Fraction(1, 2 ** (exponent + count - 1))
        part = round(value / unit) * unit
        result.append(float(part))
        value -= part
    return result


def turn_digits() -> list[float]:
    """1 / (2 pi) in digits of 12 bits between -1/2 and 1/2, times 2^SCALE."""
    rest, digits = 1 / (2 * pi()), []
    for number in range(1, DIGITS + 1):
        unit = Fraction(1, 1 << (DIGIT * number))
        digit = round(rest / unit)
        rest -= digit * unit
        digits.append(float(digit * unit * (1 << SCALE)))
    return digits


def small_reduced(a: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """(r, a rest, q as a float) for 0 <= a <= SMALL (Cody and Waite)."""
    first, second, third, fourth, fifth = parts(pi() / 2, (12, 12, 12, 12, 24))
    q = (a * float(2 / pi())).call("rint")
    coarse = two_sum(a - q * first, -(q * second))
    fine = two_sum(coarse.high, -(q * third))
    r = two_sum(fine.high, (coarse.low - q * fourth) + (fine.low - q * fifth))
    return r.high, r.low, q


def on_grid(a: Lanes, bits: int) -> Lanes:
    """The nearest multiple of 2^-bits, for |a| small enough."""
    magic = 1.5 * 2.0 ** (23 - bits)
    return (a + magic) - magic


def huge_reduced(a: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """The same for all finite a > SMALL, exact to 2^-57 turns (Payne and Hanek): a / (2 pi) is a sum of products of
    a's two halves with digits, whose whole turns drop out one by one."""
    high, low = halves(a * 2.0**-SCALE)
    coarse = fine = rest = a.constant(0.0)
    before: float | None = None
    for digit in turn_digits():
        term = high * digit if before is None else high * digit + low * before  # both on one grid: exact
        before = digit
        term = term - term.call("rint")
        part = on_grid(term, COARSE)
        coarse = coarse + part
        term = term - part
        part = on_grid(term, FINE)
        fine = fine + part
        rest = rest + (term - part)
    assert before is not None
    rest = rest + low * before
    coarse = coarse - coarse.call("rint")
    q = (coarse * 4.0).call("rint")
    turns = two_sum(coarse - q * 0.25, fine)
    turns = two_sum(turns.high, turns.low + rest)
    # Times 2 pi.
    first, second = parts(pi() / 2, (12, 24))
    head, tail = halves(turns.high)
    low = head * (4.0 * second) + (tail * (4.0 * (first + second)) + turns.low * (4.0 * (first + second)))
    r = ordered_sum(head * (4.0 * first), low)
    return r.high, r.low, q


def reduce_narrow(a: Lanes) -> tuple[Pair, Lanes]:
    """(r, q as an integer) of |x| = a for all numbers; NaN for infinity and NaN."""
    huge = (a > SMALL) & (a < float("inf"))
    small = (a <= SMALL).where(a, a.constant(0.0))
    fast = small_reduced(small)

    def exact(*current: Lanes) -> tuple[Lanes, Sequence[Lanes]]:
        found = huge_reduced(huge.where(a, a.constant(1.0)))
        return huge, [huge.where(f, c) for f, c in zip(found, current, strict=True)]

    r, rest, q = repeat(1, huge, fast, exact)
    q = q.convert("fptosi", "i32")
    r = (a < float("inf")).where(r, float("nan"))
    return Pair((a < 0.5).where(a, r), (a < 0.5).where(0.0, rest)), q
