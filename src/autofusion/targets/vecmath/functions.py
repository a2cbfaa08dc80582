"""The vector math library: every elementary function as LLVM IR for any number of lanes, `float` and `double`.

`FUNCTIONS` is the table. A function writes straight-line code (sin, cos and tan have one branch for huge arguments)
into an `Emitter`; single precision never calls libm, double precision calls it lane by lane where the row says so.
No fast-math flags: NaN, infinities, signed zeros and denormals are those of IEEE 754 and C99 Annex F.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofusion.targets.vecmath.arithmetic import Lanes, fma, format_of, libm
from autofusion.targets.vecmath.exponential import cosh, exp, exp2, expm1, sigmoid, sinh, tanh
from autofusion.targets.vecmath.logarithm import log, log1p, log2, pow
from autofusion.targets.vecmath.piecewise import piecewise
from autofusion.targets.vecmath.polynomials import polynomial
from autofusion.targets.vecmath.remainder import fmod
from autofusion.targets.vecmath.special import cbrt, erfc, lgamma
from autofusion.targets.vecmath.trigonometry import acos, asin, atan, atan2, cos, sin, tan
from autofusion.targets.vecmath.values import Emitter, V

INFINITY = float("inf")
# Where erf changes its polynomial, the centre of the second one, and where erf rounds to 1 in single precision.
ERF_SPLIT, ERF_CENTRE, ERF_HIGHEST = 1.0, 2.25, 3.92


@dataclass(frozen=True)
class MathFunction:
    """One row: `emit(emitter, *arguments)` writes the function; arguments and result have one type.

    `ulp32` and `ulp64` bound the error in units in the last place, over the whole domain, with and without FMA;
    `narrow32` does where single precision is all that there is.
    `libm64` says that double precision is the C library's function.
    """

    name: str
    arity: int
    emit: Callable[..., V]
    ulp32: float
    ulp64: float
    libm64: bool = False
    narrow32: float = 2.0


def erf(e: Emitter, x: V) -> V:
    """|x| + |x| * ERF_SMALL(x^2) for |x| < 1, ERF_LARGE(|x| - 2.25) up to 3.92, where erf rounds to 1; the sign of x.

    Two polynomials and a select take fewer operations than the form with exp(-x^2), which divides or needs exp. Pieces
    take fewer still.
    """
    a = Lanes(e, x)
    if format_of(x).scalar == "double":
        return libm("erf", a).v
    b = a.abs()
    if e.chooses:
        return piecewise("ERF", b.at_most(ERF_HIGHEST)).copysign(a).v
    small = fma(polynomial("ERF_SMALL", a * a), b, b)
    large = polynomial("ERF_LARGE", b.at_most(ERF_HIGHEST) - ERF_CENTRE)
    return (b < ERF_SPLIT).where(small, large).copysign(a).v


def sqrt(e: Emitter, x: V) -> V:
    """The hardware's correctly rounded root."""
    return e.call("sqrt", x.type, x)


def rsqrt(e: Emitter, x: V) -> V:
    """1 / sqrt(x), both steps correctly rounded; +-0 give +-inf."""
    return (1.0 / Lanes(e, sqrt(e, x))).v


def floor(e: Emitter, x: V) -> V:
    return e.call("floor", x.type, x)


def ceil(e: Emitter, x: V) -> V:
    return e.call("ceil", x.type, x)


def trunc(e: Emitter, x: V) -> V:
    return e.call("trunc", x.type, x)


def rint(e: Emitter, x: V) -> V:
    """To nearest, ties to even."""
    return e.call("rint", x.type, x)


# Of single precision alone: for targets without the C library. No other emitter is given them.
NARROW: dict[str, MathFunction] = {
    row.name: row
    for row in (
        MathFunction("fmod", 2, fmod, INFINITY, INFINITY, narrow32=0.0),
        MathFunction("erfc", 1, erfc, INFINITY, INFINITY, narrow32=2.0),
        MathFunction("cbrt", 1, cbrt, INFINITY, INFINITY, narrow32=0.51),
        MathFunction("lgamma", 1, lgamma, INFINITY, INFINITY, narrow32=5.0),  # above 0
    )
}

FUNCTIONS: dict[str, MathFunction] = {
    row.name: row
    for row in (
        MathFunction("exp", 1, exp, ulp32=1.25, ulp64=1.5),
        MathFunction("exp2", 1, exp2, ulp32=1.25, ulp64=1.5),
        MathFunction("expm1", 1, expm1, ulp32=1.5, ulp64=2.0),
        MathFunction("sigmoid", 1, sigmoid, ulp32=2.0, ulp64=2.5),
        MathFunction("tanh", 1, tanh, ulp32=2.0, ulp64=2.5),
        MathFunction("sinh", 1, sinh, ulp32=1.75, ulp64=2.0),
        MathFunction("cosh", 1, cosh, ulp32=1.75, ulp64=2.0),
        MathFunction("log", 1, log, ulp32=1.25, ulp64=1.75),
        MathFunction("log2", 1, log2, ulp32=1.75, ulp64=2.0),
        MathFunction("log1p", 1, log1p, ulp32=2.0, ulp64=2.5),
        MathFunction("pow", 2, pow, ulp32=1.0, ulp64=1.0, libm64=True),
        MathFunction("erf", 1, erf, ulp32=1.75, ulp64=1.5, libm64=True),
        MathFunction("sin", 1, sin, ulp32=1.75, ulp64=2.0),
        MathFunction("cos", 1, cos, ulp32=1.75, ulp64=2.0),
        MathFunction("tan", 1, tan, ulp32=1.0, ulp64=3.0),
        MathFunction("asin", 1, asin, ulp32=1.25, ulp64=1.5),
        MathFunction("acos", 1, acos, ulp32=1.25, ulp64=1.5),
        MathFunction("atan", 1, atan, ulp32=1.75, ulp64=2.0),
        MathFunction("atan2", 2, atan2, ulp32=2.0, ulp64=2.5),
        MathFunction("sqrt", 1, sqrt, ulp32=0.5, ulp64=0.5),
        MathFunction("rsqrt", 1, rsqrt, ulp32=1.5, ulp64=1.5),
        MathFunction("floor", 1, floor, ulp32=0.0, ulp64=0.0),
        MathFunction("ceil", 1, ceil, ulp32=0.0, ulp64=0.0),
        MathFunction("trunc", 1, trunc, ulp32=0.0, ulp64=0.0),
        MathFunction("rint", 1, rint, ulp32=0.0, ulp64=0.0),
    )
}
