"""Special functions that have no row, in float64: power series for small arguments, Chebyshev series for large ones.

Formulas: NIST Digital Library of Mathematical Functions, chapters 5.15 (polygamma), 7.6 and 7.12 (error functions),
10.8, 10.17, 10.25 to 10.31 and 10.40 (Bessel functions), 25.11 (Hurwitz' zeta).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from autofusion.dtypes import DType
from autofusion.frontends.torch import series
from autofusion.frontends.torch.adapter import Unmapped
from autofusion.frontends.torch.call import Call, Maker
from autofusion.frontends.torch.pointwise import integer_power
from autofusion.graph.ir import Value

EULER = 0.5772156649015329
TERMS = 30  # of a power series: those left off are below one unit in the last place for |x| up to 8
BERNOULLI = ("1/6", "-1/30", "1/42", "-1/30", "5/66", "-691/2730", "7/6", "-3617/510", "43867/798", "-174611/330")


class _Wide:
    """Arithmetic of a value in float64 with numbers and other values."""

    def __init__(self, n: Call, value: Value) -> None:
        self.n, self.value = n, value

    def _of(self, other: _Wide | float) -> Value:
        return other.value if isinstance(other, _Wide) else self.n.scalar(float(other), DType.FLOAT64)

    def row(self, name: str, *others: _Wide | float) -> _Wide:
        return _Wide(self.n, self.n.row(name)(self.value, *(self._of(each) for each in others)))

    def __add__(self, other: _Wide | float) -> _Wide:
        return self.row("add", other)

    def __sub__(self, other: _Wide | float) -> _Wide:
        return self.row("sub", other)

    def __mul__(self, other: _Wide | float) -> _Wide:
        return self.row("mul", other)

    def __truediv__(self, other: _Wide | float) -> _Wide:
        return self.row("div", other)

    def __neg__(self) -> _Wide:
        return self.row("neg")

    def number(self, value: float) -> _Wide:
        return _Wide(self.n, self.n.scalar(value, DType.FLOAT64))

    def where(self, compare: str, bound: float, yes: _Wide | float, no: _Wide | float) -> _Wide:
        """`yes` where it compares so with the bound, else `no`."""
        return _Wide(self.n, self.n.F.where(self.row(compare, bound).value, self._of(yes), self._of(no)))


Function = Callable[[_Wide], _Wide]


def unary(function: Function, doubles: bool = True) -> Maker:
    """A function of one operand; integers become the default float type. `doubles`: also for float64, where PyTorch's
    own values are right to its tolerance."""

    def make(n: Call) -> Value:
        if n.x.dtype is DType.FLOAT64 and not doubles:
            raise Unmapped(f"{n.op} of float64: PyTorch's values are right to seven digits, others would differ")
        return n.cast(function(_Wide(n, n.cast(n.x, DType.FLOAT64))).value, n.result.dtype)

    return make


def _horner(x: _Wide, coefficients: Sequence[float]) -> _Wide:
    made = x.number(coefficients[-1])
    for each in reversed(coefficients[:-1]):
        made = made * x + each
    return made


def _chebyshev(t: _Wide, coefficients: Sequence[float]) -> _Wide:
    """By Clenshaw's recurrence."""
    twice = t * 2.0
    later, last = t.number(coefficients[-1]), t.number(0.0)
    for each in reversed(coefficients[1:-1]):
        later, last = twice * later - last + each, later
    return t * later - last + coefficients[0]


def _harmonic(k: int) -> float:
    return float(sum(Fraction(1, i) for i in range(1, k + 1)))


def _factorials(order: int, k: int) -> int:
    return math.factorial(k) * math.factorial(k + order)


# -- modified Bessel functions -----------------------------------------------------------------------------------------
def _small_i(order: int, x: _Wide) -> _Wide:
    made = _horner(x * x * 0.25, [1 / _factorials(order, k) for k in range(TERMS)])
    return made * x * 0.5 if order else made


def bessel_i(order: int, scaled: bool) -> Function:
    """I0, I1; scaled: times exp(-|x|)."""

    def function(x: _Wide) -> _Wide:
        size = x.row("abs")
        near, far = size.row("minimum", 8.0), size.row("maximum", 8.0)
        small = _small_i(order, near)
        large = _chebyshev(x.number(16.0) / far - 1.0, series.I1 if order else series.I0) / far.row("sqrt")
        if scaled:
            small = small * (-near).row("exp")
        else:
            large = large * far.row("exp")
        made = size.where("le", 8.0, small, large)
        made = size.where("eq", math.inf, 0.0 if scaled else math.nan, made)  # NaN is what PyTorch gives
        return x.where("lt", 0.0, -made, made) if order else made

    return function


def bessel_k(order: int, scaled: bool) -> Function:
    """K0, K1; scaled: times exp(x). Infinite at 0, NaN below."""

    def function(x: _Wide) -> _Wide:
        near, far = x.row("minimum", 2.0), x.row("maximum", 2.0)
        y = near * near * 0.25
        logarithm = (near * 0.5).row("log")
        if order:
            psi = [-2 * EULER + _harmonic(k) + _harmonic(k + 1) for k in range(TERMS)]
            tail = _horner(y, [p / _factorials(1, k) for k, p in enumerate(psi)])
            small = near.row("reciprocal") + logarithm * _small_i(1, near) - near * 0.25 * tail
        else:
            tail = _horner(y, [_harmonic(k) / _factorials(0, k) for k in range(TERMS)])
            small = tail - (logarithm + EULER) * _small_i(0, near)
        large = _chebyshev(x.number(4.0) / far - 1.0, series.K1 if order else series.K0) / far.row("sqrt")
        if scaled:
            small = small * near.row("exp")
        else:
            large = large * (-far).row("exp")
        made = x.where("le", 2.0, small, large)
        made = x.where("eq", 0.0, math.inf, made)
        return x.where("lt", 0.0, math.nan, made)

    return function


# -- Bessel functions --------------------------------------------------------------------------------------------------
def _hankel(order: int, x: _Wide) -> tuple[_Wide, _Wide, _Wide, _Wide]:
    """sqrt(2 / (π x)), P, Q, and x less its phase, for x of at least 8."""
    inverse = x.number(8.0) / x
    t = inverse * inverse * 2.0 - 1.0
    p = _chebyshev(t, series.P1 if order else series.P0)
    q = _chebyshev(t, series.Q1 if order else series.Q0) * inverse
    return (x.number(2 / math.pi) / x).row("sqrt"), p, q, x - (2 * order + 1) * math.pi / 4


def _small_j(order: int, x: _Wide) -> _Wide:
    made = _horner(x * x * 0.25, [(-1) ** k / _factorials(order, k) for k in range(TERMS)])
    return made * x * 0.5 if order else made


def bessel_j(order: int) -> Function:
    def function(x: _Wide) -> _Wide:
        size = x.row("abs")
        scale, p, q, phase = _hankel(order, size.row("maximum", 8.0))
        large = scale * (p * phase.row("cos") - q * phase.row("sin"))
        made = size.where("le", 8.0, _small_j(order, size.row("minimum", 8.0)), large)
        return x.where("lt", 0.0, -made, made) if order else made

    return function


def bessel_y(order: int) -> Function:
    """Y0, Y1: -infinity at 0, NaN below."""

    def function(x: _Wide) -> _Wide:
        near = x.row("minimum", 8.0)
        y = near * near * 0.25
        logarithm = (near * 0.5).row("log")
        if order:
            psi = [-2 * EULER + _harmonic(k) + _harmonic(k + 1) for k in range(TERMS)]
            tail = _horner(y, [(-1) ** k * p / _factorials(1, k) for k, p in enumerate(psi)])
            pole = near.number(-2 / math.pi) / near
            small = pole + logarithm * _small_j(1, near) * (2 / math.pi) - near * tail * (0.5 / math.pi)
        else:
            tail = _horner(y, [(-1) ** (k + 1) * _harmonic(k) / _factorials(0, k) for k in range(TERMS)])
            small = ((logarithm + EULER) * _small_j(0, near) + tail) * (2 / math.pi)
        scale, p, q, phase = _hankel(order, x.row("maximum", 8.0))
        large = scale * (p * phase.row("sin") + q * phase.row("cos"))
        made = x.where("le", 8.0, small, large)
        made = x.where("eq", 0.0, -math.inf, made)
        return x.where("lt", 0.0, math.nan, made)

    return function


def spherical_j(x: _Wide) -> _Wide:
    """sin(x) / x."""
    near = _horner(x * x, [(-1) ** k / math.factorial(2 * k + 1) for k in range(8)])
    size = x.row("abs")
    made = size.where("lt", 0.5, near, x.row("sin") / x)
    return size.where("eq", math.inf, 0.0, made)


# -- error functions ---------------------------------------------------------------------------------------------------
def erfcx(x: _Wide) -> _Wide:
    """exp(x²) erfc(x)."""
    size = x.row("abs")
    made = _chebyshev((size - 3.75) / (size + 3.75), series.ERFCX) / (size * 2.0 + 1.0)
    made = size.where("eq", math.inf, 0.0, made)
    return x.where("lt", 0.0, (x * x).row("exp") * 2.0 - made, made)


def quantile(p: _Wide) -> _Wide:
    """ndtri: where the normal distribution reaches p."""
    tail = p.row("minimum", p.number(1.0) - p)
    r = (tail.row("log") * -2.0).row("sqrt")
    least, most = 1 / 40, 1 / 2
    t = (r.row("reciprocal") * 2.0 - (least + most)) / (most - least)
    outer = -r * _chebyshev(t.row("maximum", -1.0).row("minimum", 1.0), series.QUANTILE)
    outer = p.where("gt", 0.5, -outer, outer)
    inner = (p * 2.0 - 1.0).row("erfinv") * math.sqrt(2)
    made = tail.where("lt", 0.13, outer, inner)
    made = p.where("eq", 0.0, -math.inf, p.where("eq", 1.0, math.inf, made))
    return p.where("lt", 0.0, math.nan, p.where("gt", 1.0, math.nan, made))


# -- polygamma ---------------------------------------------------------------------------------------------------------
def polygamma(n: Call) -> Value:
    """The derivatives of digamma: Hurwitz' zeta by Euler and Maclaurin above 0, reflected below."""
    order = n["n"]
    if not isinstance(order, int) or not 0 <= order <= 100:
        raise Unmapped(f"polygamma of order {order}")
    if order == 0:
        return n.pointwise("digamma", n["self"], floats=True)
    x = _Wide(n, n.cast(n["self"], DType.FLOAT64))
    sign = 1.0 if order % 2 else -1.0
    above = x.where("gt", 0.0, x, -x + 1.0)
    made = _zeta(order + 1, above) * (sign * math.factorial(order))
    below = made * (-1.0) ** order - _cotangent(order, x) * math.pi
    pole = (x - x.row("floor")).where("eq", 0.0, sign * math.inf, below)
    pole = x.where("eq", -math.inf, sign * math.inf, pole)
    return n.cast(x.where("gt", 0.0, made, pole).value, n.result.dtype)


def _zeta(s: int, q: _Wide) -> _Wide:
    """Σ (q + k)^-s over k from 0, for q above 0: ten terms and the rest by an expansion around q + 10."""

    def power(x: _Wide, exponent: int) -> _Wide:
        return _Wide(x.n, integer_power(x.n, x.row("reciprocal").value, exponent))

    total = power(q, s)
    for k in range(1, 10):
        total = total + power(q + float(k), s)
    far = q + 10.0
    inverse = far.row("reciprocal")
    last = power(far, s)
    rest, rising = [], float(s)
    for j, number in enumerate(BERNOULLI, 1):
        rest.append(float(Fraction(number)) / math.factorial(2 * j) * rising)
        rising *= (s + 2 * j - 1) * (s + 2 * j)
    tail = _horner(inverse * inverse, rest) * inverse
    return total + last * (far * (1.0 / (s - 1)) + 0.5 + tail)


def _cotangent(order: int, x: _Wide) -> _Wide:
    """The derivative of cot(π x) of this order: a polynomial in cot(π x)."""
    coefficients = [0, 1]
    for _ in range(order):
        slope = [-i * c for i, c in enumerate(coefficients)][1:]
        coefficients = [a + b for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    turn = (x - x.row("round")) * math.pi
    return _horner(turn.row("cos") / turn.row("sin"), [c * math.pi**order for c in coefficients])
