"""Sums of two single-precision numbers, for what needs more than 24 bits where there is no double and no fused
multiply-add.

The second number of a pair is at most half a unit in the last place of the first. (Dekker 1971; Knuth, TAOCP 2, 4.2.2)
"""

from __future__ import annotations

from dataclasses import dataclass

from autofusion.targets.vecmath.arithmetic import Lanes

HALF_BITS = 12  # of a number's first half; the rest has at most 12 too


@dataclass(frozen=True)
class Pair:
    high: Lanes
    low: Lanes


def two_sum(a: Lanes, b: Lanes) -> Pair:
    """a + b without error."""
    total = a + b
    of_b = total - a
    return Pair(total, (a - (total - of_b)) + (b - of_b))


def ordered_sum(a: Lanes, b: Lanes) -> Pair:
    """a + b without error where |a| >= |b|, or a is 0."""
    total = a + b
    return Pair(total, b - (total - a))


def halves(a: Lanes) -> tuple[Lanes, Lanes]:
    """a = first 12 bits + the rest, both exact; products of halves are exact too, unless they leave the range."""
    high = ((a.as_integer().logical_shift(HALF_BITS)) << HALF_BITS).as_float()
    return high, a - high


def two_product(a: Lanes, b: Lanes) -> Pair:
    """a * b without error, where nothing leaves the range."""
    (ah, al), (bh, bl) = halves(a), halves(b)
    product = a * b
    return Pair(product, (((ah * bh - product) + ah * bl) + al * bh) + al * bl)


def square(a: Lanes) -> Pair:
    """a * a without error."""
    h, rest = halves(a)
    product = a * a
    return Pair(product, ((h * h - product) + (h * rest) * 2.0) + rest * rest)


def multiply(a: Pair, b: Pair) -> Pair:
    """To about 2^-45."""
    product = two_product(a.high, b.high)
    return ordered_sum(product.high, product.low + (a.high * b.low + a.low * b.high))


def add(a: Pair, b: Pair) -> Pair:
    """To about 2^-45 of the larger operand."""
    total = two_sum(a.high, b.high)
    return ordered_sum(total.high, total.low + (a.low + b.low))


def divide(a: Pair, b: Pair) -> Pair:
    """To about 2^-44: the quotient of the first numbers, corrected by its remainder."""
    quotient = a.high / b.high
    product = two_product(quotient, b.high)
    rest = ((a.high - product.high) - product.low) + (a.low - quotient * b.low)
    return ordered_sum(quotient, rest / b.high)


def constant(model: Lanes, high: float, low: float) -> Pair:
    return Pair(model.constant(high), model.constant(low))
