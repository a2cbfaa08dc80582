"""Exponent and fraction: x = 2^k * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), which is exact."""

from __future__ import annotations

from autofusion.targets.vecmath.arithmetic import Format, Lanes, format_of

# The bits of sqrt(1/2), rounded down.
SQRT_HALF = {"float": 0x3F3504F3, "double": 0x3FE6A09E667F3BCC}


def split(x: Lanes, facts: Format) -> tuple[Lanes, Lanes]:
    """(k as an integer, 1 + f) of a positive normal number."""
    low = SQRT_HALF[facts.scalar]
    bits = x.as_integer() + (facts.one - low)
    k = (bits >> facts.mantissa) - facts.bias
    return k, ((bits & ((1 << facts.mantissa) - 1)) + low).as_float()


def integer_to_float(k: Lanes, facts: Format) -> Lanes:
    """Exponents fit 32 bits, and x86 before AVX-512 converts vectors of those only."""
    return (k if facts.integer == "i32" else k.convert("trunc", "i32")).convert("sitofp", facts.scalar)


def split_any(x: Lanes) -> tuple[Lanes, Lanes]:
    """(k, f) of a positive number, also of a denormal: those are multiplied by 2^mantissa first."""
    facts = format_of(x)
    denormal = x < facts.smallest_normal
    k, m = split(denormal.where(x * 2.0**facts.mantissa, x), facts)
    k = denormal.where(k - facts.mantissa, k)
    return integer_to_float(k, facts), m - 1.0
