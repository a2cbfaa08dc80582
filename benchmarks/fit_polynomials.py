"""Fit the polynomials of `autofusion.targets.vecmath.polynomials` and `.piecewise`, and print their tables.

Run `python -m benchmarks fit_polynomials > /tmp/table.txt` and compare with (or paste into) the two files.

Method: weighted least squares at Chebyshev nodes in 60-digit arithmetic, which is close to the minimax polynomial.
The coefficients are rounded to the target's precision one after another from the lowest order up, and the remaining
ones are fitted again each time, so that the rounding of the important coefficients is absorbed by the later ones.
Every row prints the largest weighted error of the rounded polynomial as a power of two.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import mpmath as mp

mp.mp.dps = 60

Function = Callable[[mp.mpf], mp.mpf]


@dataclass(frozen=True)
class Fit:
    """One row: approximate `function` on [low, high] by a polynomial of `degree`, minimising |error| * weight."""

    name: str
    scalar: str  # the precision that the coefficients are rounded to: "float" or "double"
    function: Function
    low: mp.mpf
    high: mp.mpf
    degree: int
    weight: Function


def rounded(value: mp.mpf, scalar: str) -> float:
    """The nearest number of `scalar`. (Going through double first is harmless for a fitted coefficient.)"""
    number = float(value)
    return number if scalar == "double" else float(struct.unpack("<f", struct.pack("<f", number))[0])


def chebyshev_nodes(low: mp.mpf, high: mp.mpf, count: int) -> list[mp.mpf]:
    middle, half = (low + high) / 2, (high - low) / 2
    return [middle + half * mp.cos(mp.pi * (2 * k + 1) / (2 * count)) for k in range(count)]


def fit(row: Fit) -> tuple[list[float], mp.mpf]:
    """The coefficients, lowest order first, and the largest weighted error on a fine grid."""
    nodes = chebyshev_nodes(row.low, row.high, 4 * row.degree + 8)
    values = [row.function(x) for x in nodes]
    weights = [row.weight(x) for x in nodes]
    coefficients: list[float] = []
    for fixed in range(row.degree + 1):
        rest = [
            (value - mp.polyval(coefficients[::-1], x) if coefficients else value) * w
            for x, value, w in zip(nodes, values, weights, strict=True)
        ]
        columns = range(fixed, row.degree + 1)
        matrix = mp.matrix([[x**k * w for k in columns] for x, w in zip(nodes, weights, strict=True)])
        normal = matrix.T * matrix
        solution = mp.lu_solve(normal, matrix.T * mp.matrix(rest))
        coefficients.append(rounded(solution[0], row.scalar))
    grid = chebyshev_nodes(row.low, row.high, 400)
    error = max(abs(row.function(x) - mp.polyval(coefficients[::-1], x)) * row.weight(x) for x in grid)
    return coefficients, error


def exp_tail(x: mp.mpf) -> mp.mpf:
    """(e^x - 1 - x) / x^2 by its series, which does not cancel."""
    return mp.nsum(lambda k: x**k / mp.factorial(k + 2), [0, 40])


def quotient(function: Function, order: int, known: int = 1) -> Function:
    """(f(x) - x) / x^order (or f(x) / x^order when nothing is subtracted), as a function of u = x^2."""

    def at(u: mp.mpf) -> mp.mpf:
        x = mp.sqrt(u)
        return (function(x) - known * x) / x**order

    return at


def relative(function: Function, order: int) -> Function:
    """The weight that makes the error of x^order * polynomial relative to f(x), as a function of u = x^2."""

    def at(u: mp.mpf) -> mp.mpf:
        x = mp.sqrt(u)
        return abs(x**order / function(x))

    return at


def odd(name: str, scalar: str, function: Function, high: mp.mpf, degree: int) -> Fit:
    """f(x) = x + x^3 * P(x^2) on [-high, high]."""
    tiny = mp.mpf(10) ** -14
    return Fit(name, scalar, quotient(function, 3), tiny, high**2, degree, relative(function, 3))


LN2 = mp.log(2)
HALF_LN2 = LN2 / 2 * mp.mpf("1.002")  # the reduced argument may pass ln2/2 by the rounding of x * log2(e)
QUARTER_PI = mp.pi / 4 * mp.mpf("1.01")
LOG_LOW, LOG_HIGH = mp.sqrt(0.5) - 1, mp.sqrt(2) - 1
ERF_SPLIT, ERF_END = mp.mpf(1), mp.mpf("3.95")
ERF_CENTRE = mp.mpf("2.25")
ERFC_SPLIT, ERFC_END, ERFC_SCALE = mp.mpf("0.46"), mp.mpf("10.6"), mp.mpf(2)
LGAMMA_LOW, LGAMMA_HIGH, LGAMMA_CENTRE = mp.mpf("0.75"), mp.mpf("2.5"), mp.mpf("1.625")


def log_tail(f: mp.mpf) -> mp.mpf:
    return (mp.log1p(f) - f) / f**2


def cos_tail(u: mp.mpf) -> mp.mpf:
    return (mp.cos(mp.sqrt(u)) - 1 + u / 2) / u**2


def erf_small(u: mp.mpf) -> mp.mpf:
    x = mp.sqrt(u)
    return mp.erf(x) / x - 1


def erf_large(t: mp.mpf) -> mp.mpf:
    return mp.erf(t + ERF_CENTRE)


def erfcx_of(t: mp.mpf) -> mp.mpf:
    """(1 + 2x) * e^(x^2) * erfc(x), x = ERFC_SCALE * (1 + t) / (1 - t)."""
    x = ERFC_SCALE * (1 + t) / (1 - t)
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


def lgamma_base(u: mp.mpf) -> mp.mpf:
    """log(gamma(x)) / ((x - 1) (x - 2)), x = LGAMMA_CENTRE + u."""
    x = LGAMMA_CENTRE + u
    return mp.loggamma(x) / ((x - 1) * (x - 2))


def rows() -> list[Fit]:
    tiny = mp.mpf(10) ** -14
    table: list[Fit] = []
    for scalar, exp, exp2, log, log2, sin, cos, tan, atan, asin, sinh in (
        ("float", 4, 5, 7, 9, 2, 2, 5, 7, 4, 3),
        ("double", 10, 11, 18, 19, 6, 5, 13, 18, 12, 7),
    ):
        table += [
            Fit("EXP", scalar, exp_tail, -HALF_LN2, HALF_LN2, exp, abs),
            Fit("EXP2", scalar, lambda x: mp.expm1(x * LN2) / x, -mp.mpf("0.5"), mp.mpf("0.5"), exp2, abs),
            Fit("LOG", scalar, log_tail, LOG_LOW, LOG_HIGH, log, lambda f: abs(f * f / mp.log1p(f))),
            Fit("LOG2", scalar, lambda f: mp.log1p(f) / f / LN2, LOG_LOW, LOG_HIGH, log2, lambda f: mp.mpf(1)),
            odd("SIN", scalar, mp.sin, QUARTER_PI, sin),
            Fit("COS", scalar, cos_tail, tiny, QUARTER_PI**2, cos, lambda u: u**2),
            odd("TAN", scalar, mp.tan, QUARTER_PI, tan),
            odd("ATAN", scalar, mp.atan, mp.mpf(1), atan),
            odd("ASIN", scalar, mp.asin, mp.mpf("0.5"), asin),
            odd("SINH", scalar, mp.sinh, mp.mpf(1), sinh),
        ]
    return [
        *table,
        Fit("ERF_SMALL", "float", erf_small, tiny, ERF_SPLIT**2, 6, lambda u: mp.mpf(1)),
        Fit("ERF_LARGE", "float", erf_large, ERF_SPLIT - ERF_CENTRE, ERF_END - ERF_CENTRE, 13, lambda t: mp.mpf(1)),
        Fit(
            "ERFC",
            "float",
            erfcx_of,
            (ERFC_SPLIT - ERFC_SCALE) / (ERFC_SPLIT + ERFC_SCALE),
            (ERFC_END - ERFC_SCALE) / (ERFC_END + ERFC_SCALE),
            10,
            lambda t: mp.mpf(1),
        ),
        Fit(
            "LGAMMA",
            "float",
            lgamma_base,
            LGAMMA_LOW - LGAMMA_CENTRE,
            LGAMMA_HIGH - LGAMMA_CENTRE,
            13,
            lambda u: 1 / lgamma_base(u),
        ),
        # pow of single precision works in double, to about 36 bits.
        Fit("POW_LOG2", "double", lambda f: mp.log1p(f) / f / LN2, LOG_LOW, LOG_HIGH, 12, lambda f: mp.mpf(1)),
        Fit("POW_EXP2", "double", lambda x: mp.expm1(x * LN2) / x, -mp.mpf("0.5"), mp.mpf("0.5"), 5, abs),
    ]


PIECES = 16
SEARCH = 300  # floats on either side of an interval's middle


def half_octave(number: int) -> mp.mpf:
    """The lower end of a half octave: 1, 1.5, 2, 3, 4, 6, … from number 0 on."""
    return mp.mpf(2) ** (number // 2) * (mp.mpf(3) / 2 if number % 2 else 1)


def piecewise(function: Function, last: int, degree: int) -> Iterator[tuple[list[float], mp.mpf]]:
    """An odd function on [0, the end of half octave `last`], in 16 pieces: [0, a) and the 15 half octaves from a on.

    Each piece is its centre, f(centre), and the coefficients of (f(centre + t) - f(centre)) / t, lowest order first.
    A centre is the float near the middle at which the function is closest to a float; the first is 0.
    """
    for number in range(last - PIECES + 1, last + 1):
        low, high = half_octave(number), half_octave(number + 1)
        centre, value = mp.mpf(0), 0.0
        if number > last - PIECES + 1:
            unit = mp.mpf(2) ** (mp.floor(mp.log(high, 2)) - 23)
            middle = mp.nint((low + high) / 2 / unit)
            places = [(middle + k) * unit for k in range(-SEARCH, SEARCH)]
            centre = min(places, key=lambda x: abs(function(x) - rounded(function(x), "float")))
            value = rounded(function(centre), "float")

        def slope(t: mp.mpf, centre: mp.mpf = centre, value: float = value) -> mp.mpf:
            return (function(centre + t) - value) / t

        def weight(t: mp.mpf, centre: mp.mpf = centre) -> mp.mpf:
            return abs(t / function(centre + t))

        start = low - centre if centre else mp.mpf(10) ** -14
        coefficients, error = fit(Fit("", "float", slope, start, high - centre, degree - 1, weight))
        yield [float(centre), value, *coefficients], error


def print_pieces() -> None:
    print("PIECES: dict[str, tuple[int, tuple[tuple[float, ...], ...]]] = {")
    for name, function, last, degree in (("TANH", mp.tanh, 6, 6), ("ERF", mp.erf, 3, 6)):
        pieces, errors = zip(*piecewise(function, last, degree), strict=True)
        print(f"    # degree {degree}, largest relative error 2^{mp.nstr(mp.log(max(errors), 2), 4)}")
        print(f'    "{name}": (')
        print(f"        {last},\n        (")
        for column in zip(*pieces, strict=True):
            print("            (")
            for number in column:
                print(f"                {number!r},")
            print("            ),")
        print("        ),\n    ),")
    print("}")


def main(arguments: Sequence[str] = ()) -> None:
    print("COEFFICIENTS: dict[tuple[str, str], tuple[float, ...]] = {")
    for row in rows():
        coefficients, error = fit(row)
        print(f"    # degree {row.degree}, largest weighted error 2^{mp.nstr(mp.log(error, 2), 4)}")
        print(f'    ("{row.name}", "{row.scalar}"): (')
        for number in coefficients:
            print(f"        {number!r},")
        print("    ),")
    print("}")
    print_pieces()


if __name__ == "__main__":
    main()
