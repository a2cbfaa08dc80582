"""Division of vectors by one number, such as a row by its sum: by the reciprocal, rounded exactly as division rounds.

    q = x * r;  q = q + r * (x - q * s);  q = q + r * (x - q * s)          with r = 1 / s, rounded

The first step brings q within a unit in the last place of x / s, so that the remainder of the second is exact and its
sum is x / s rounded to nearest (Markstein 1990; Muller et al., Handbook of Floating-Point Arithmetic, "Newton-Raphson-
based division with an FMA"). No product may leave the normal numbers: vectors with other elements, zeros among
them, are divided by the machine. A division of 16 floats takes 10 to 16 cycles, these five operations and the test
take about four; but beside an elementary function, which leaves the divider idle, the machine's costs nothing.
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
    """A divisor, its reciprocal, and whether it is none of those that the formula holds for."""

    value: V
    reciprocal: V
    misfit: V


def pays(e: Emitter, type_: str, beside: Iterable[str]) -> bool:
    """Whether vectors of a type are divided so in a loop with these primitives."""
    return e.x86 > 0 and e.fma and type_ == f"<{LANES} x float>" and LONG.isdisjoint(beside)


def prepare(e: Emitter, value: V) -> Divisor:
    """For a scalar float."""
    low, high = (e.const(value.type, 2.0**n) for n in (-DIVISOR, DIVISOR))
    misfit = e.op("or", e.cmp("fcmp ult", value, low), e.cmp("fcmp ugt", value, high))
    return Divisor(value, e.op("fdiv", e.const(value.type, 1.0), value), misfit)


def divide(e: Emitter, x: V, divisor: Divisor) -> V:
    """x / divisor, lane by lane."""
    lanes = lanes_of(x.type)
    s, r = e.splat(divisor.value, lanes), e.splat(divisor.reciprocal, lanes)
    bits = e.cast("bitcast", x, like(x.type, "i32"))
    low, high = ((BIAS + n) << (MANTISSA + 1) for n in (-DIVIDEND, DIVIDEND))
    magnitude = e.op("add", bits, bits)  # twice, which drops the sign
    outside = e.cmp("icmp ugt", e.op("sub", magnitude, e.bits(bits.type, low)), e.bits(bits.type, high - low))
    some = e.call("vector.reduce.or", "i1", outside, overload=(outside.type,))
    q = e.op("fmul", x, r)
    for _ in range(2):
        rest = e.call("fma", x.type, e.op("fneg", q), s, x)
        q = e.call("fma", x.type, rest, r, q)
    result = e.slot(x.type)
    e.set(result, q)
    with e.when(e.op("or", some, divisor.misfit)):
        hidden = e.value(s.type, f'call {s.type} asm "", "=v,0"({s})')  # else LLVM would divide beforehand, always
        e.set(result, e.op("fdiv", x, hidden))
    return e.get(result, x.type)
