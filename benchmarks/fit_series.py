"""The Chebyshev coefficients of the special functions that have no rows: `python -m benchmarks fit_series`.

Method: interpolation at Chebyshev nodes in 40-digit arithmetic, of each function with its asymptotic factor taken off,
over a variable that maps the interval to [-1, 1]. Prints src/autofusion/frontends/torch/series.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import mpmath as mp

SMALL = 1e-17  # of the largest coefficient: what is left off


def coefficients(function: Callable[[Any], Any], terms: int = 64) -> list[float]:
    """Of the interpolating polynomial, the first one halved."""
    nodes = [mp.cos(mp.pi * (k + mp.mpf(1) / 2) / terms) for k in range(terms)]
    values = [function(node) for node in nodes]
    made = []
    for j in range(terms):
        total = mp.fsum(v * mp.cos(mp.pi * j * (k + mp.mpf(1) / 2) / terms) for k, v in enumerate(values))
        made.append(total * (1 if j == 0 else 2) / terms)
    largest = max(abs(c) for c in made)
    while abs(made[-1]) < SMALL * largest:
        made.pop()
    return [float(c) for c in made]


def _reciprocal(function: Callable[[Any], Any], least: int) -> Callable[[Any], Any]:
    """A function of x > least as one of t = 2 · least / x - 1."""
    return lambda t: function(2 * least / (t + 1))


def _hankel(order: int, which: str) -> Callable[[Any], Any]:
    """P or Q · x / 8 of Bessel functions of x > 8, of t = 2 · 64 / x² - 1."""

    def value(t: Any) -> Any:
        x = 8 / mp.sqrt((t + 1) / 2)
        chi = x - (2 * order + 1) * mp.pi / 4
        scale = mp.sqrt(mp.pi * x / 2)
        j, y = mp.besselj(order, x), mp.bessely(order, x)
        if which == "P":
            return scale * (j * mp.cos(chi) + y * mp.sin(chi))
        return scale * (y * mp.cos(chi) - j * mp.sin(chi)) * x / 8

    return value


def _erfcx(t: Any) -> Any:
    """(1 + 2 x) exp(x²) erfc(x) of t = (x - 3.75) / (x + 3.75)."""
    x = mp.mpf("3.75") * (1 + t) / (1 - t)
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


def _quantile(t: Any) -> Any:
    """-z / r where r = sqrt(-2 log p) and p = Φ(z), of t that maps 1/r from [1/40, 1/2] to [-1, 1]."""
    r = 1 / (mp.mpf(1) / 40 + (t + 1) / 2 * (mp.mpf(1) / 2 - mp.mpf(1) / 40))
    goal = -r * r / 2

    def error(z: Any) -> Any:
        return mp.log(mp.erfc(z / mp.sqrt(2)) / 2) - goal

    return mp.findroot(error, r - mp.log(r) / r - mp.mpf("0.9") / r) / r


TABLES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "I0": (_reciprocal(lambda x: mp.exp(-x) * mp.sqrt(x) * mp.besseli(0, x), 8), "exp(-x) sqrt(x) I0, 16/x - 1"),
    "I1": (_reciprocal(lambda x: mp.exp(-x) * mp.sqrt(x) * mp.besseli(1, x), 8), "exp(-x) sqrt(x) I1, 16/x - 1"),
    "K0": (_reciprocal(lambda x: mp.exp(x) * mp.sqrt(x) * mp.besselk(0, x), 2), "exp(x) sqrt(x) K0, 4/x - 1"),
    "K1": (_reciprocal(lambda x: mp.exp(x) * mp.sqrt(x) * mp.besselk(1, x), 2), "exp(x) sqrt(x) K1, 4/x - 1"),
    "P0": (_hankel(0, "P"), "Hankel's P of order 0, 128/x² - 1"),
    "Q0": (_hankel(0, "Q"), "x/8 Q of order 0, 128/x² - 1"),
    "P1": (_hankel(1, "P"), "Hankel's P of order 1, 128/x² - 1"),
    "Q1": (_hankel(1, "Q"), "x/8 Q of order 1, 128/x² - 1"),
    "ERFCX": (_erfcx, "(1 + 2 x) erfcx(x), (x - 3.75) / (x + 3.75)"),
    "QUANTILE": (_quantile, "-z/r of the normal quantile z, r = sqrt(-2 log p), (2/r - 1/40 - 1/2) / (1/2 - 1/40)"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    argparse.ArgumentParser(prog="python -m benchmarks fit_series", description=__doc__).parse_args(arguments)
    mp.mp.dps = 40
    lines = [
        '"""Chebyshev coefficients of special functions; `python -m benchmarks fit_series` prints this file.',
        "",
        "Of each: the function with its asymptotic factor taken off, and the variable on [-1, 1].",
        '"""',
        "",
    ]
    for name, (function, about) in TABLES.items():
        lines += [f"# {about}", f"{name} = ("]
        lines += [f"    {each!r}," for each in coefficients(function)]
        lines += [")"]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
