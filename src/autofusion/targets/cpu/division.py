"""Division of vectors by one number, such as a row by its sum: by the reciprocal, rounded exactly as division rounds.

    q = x * r + x * t;  q = q + r * (x - q * s)          with r = 1 / s, rounded, and t the rest of 1 / s

The first step brings q within a unit in the last place of x / s, so that the remainder of the second is exact and its
sum is x / s rounded to nearest (Markstein 1990; Muller et al., Handbook of Floating-Point Arithmetic, "Newton-Raphson-
based division with an FMA"). No product may leave the normal numbers: vectors with other elements, zeros among
them, are divided by the machine; where x is known to be from 0 to 1, zeros are not. A division of 16 floats takes 10 to
16 cycles, these four operations and the test take about four; but beside an elementary function, which leaves the
divider idle, the machine's costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autofusion.targets.cpu.emit import Emitter
from autofusion.targets.vecmath.functions import FUNCTIONS
from autofusion.targets.vecmath.values import V, lanes_of, like

LANES = 16  # floats of a vector whose division is slow
DIVISOR = 24  # divisors are between 2^-24 and 2^24
DIVIDEND = 96  # dividends between 2^-96 and 2^96, so that remainders are multiples of 2^-149
BIAS, MANTISSA = 127, 23
LONG = frozenset(FUNCTIONS) - {"sqrt", "rsqrt", "floor", "ceil", "trunc", "rint"}


@dataclass(frozen=True)
class Divisor:
    """A divisor, its reciprocal and what that lacks, and whether it is none of those that the formula holds for."""

    value: V
    reciprocal: V
    rest: V
    misfit: V


def pays(e: Emitter, type_: str, beside: Iterable[str]) -> bool:
    """Whether vectors of a type are divided so in a loop with these primitives."""
    return e.x86 > 0 and e.fma and type_ == f"<{LANES} x float>" and LONG.isdisjoint(beside)


def prepare(e: Emitter, value: V) -> Divisor:
    """For a scalar float."""
    low, high = (e.const(value.type, 2.0**n) for n in (-DIVISOR, DIVISOR))
    misfit = e.op("or", e.cmp("fcmp ult", value, low), e.cmp("fcmp ugt", value, high))
    one = e.const(value.type, 1.0)
    reciprocal = e.op("fdiv", one, value)
    lacking = e.call("fma", value.type, e.op("fneg", reciprocal), value, one)
    return Divisor(value, reciprocal, e.op("fmul", lacking, reciprocal), misfit)


def divide(e: Emitter, x: V, divisor: Divisor, fraction: bool = False) -> V:
    """x / divisor, lane by lane; `fraction`: 0 <= x <= 1, or NaN."""
    lanes = lanes_of(x.type)
    s, r, t = (e.splat(each, lanes) for each in (divisor.value, divisor.reciprocal, divisor.rest))
    some = e.call("vector.reduce.or", "i1", outside(e, x, fraction), overload=(like(x.type, "i1"),))
    q = e.call("fma", x.type, x, r, e.op("fmul", x, t))
    remainder = e.call("fma", x.type, e.op("fneg", q), s, x)
    result = e.slot(x.type)
    e.set(result, e.call("fma", x.type, remainder, r, q))
    with e.when(e.op("or", some, divisor.misfit)):
        hidden = e.value(s.type, f'call {s.type} asm "", "=v,0"({s})')  # else LLVM would divide beforehand, always
        e.set(result, e.op("fdiv", x, hidden))
    return e.get(result, x.type)


def outside(e: Emitter, x: V, fraction: bool) -> V:
    """Lanes that the formula does not hold for."""
    bits = e.cast("bitcast", x, like(x.type, "i32"))
    low, high = ((BIAS + n) << (MANTISSA + 1) for n in (-DIVIDEND, DIVIDEND))
    if fraction:  # a zero becomes the greatest of numbers, a NaN gives NaN
        return e.cmp("icmp ult", e.op("sub", bits, e.bits(bits.type, 1)), e.bits(bits.type, (low >> 1) - 1))
    magnitude = e.op("add", bits, bits)  # twice, which drops the sign
    return e.cmp("icmp ugt", e.op("sub", magnitude, e.bits(bits.type, low)), e.bits(bits.type, high - low))
