"""Indices of the whole from those of a tile, and what divisions in them come to.

tiles of 32 that begin at i_o: i // 64 is (i_o + i) // 64, and i_o // 64 as no tile crosses a multiple of 64
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import lcm

from autofusion import dims
from autofusion.dims import Dim, Expr, substitute, symbols

sym = dims.symbol


@dataclass(frozen=True)
class Offset:
    """Where an axis of a tile begins in the whole: a multiple of `step`. The axis itself stays below `bound`."""

    start: Dim
    step: int
    bound: int


def shifted(index: Dim, offsets: Mapping[str, Offset]) -> Dim:
    """An index of the whole, over the axes of a tile. A division that no tile crosses leaves no trace of the axis: a
    tile of 32 begins at 64 * q + r with r <= 32, and (64 * q + r + i) // 64 is q for i < 32."""
    plain = substitute(index, {n: dims.add(o.start, sym(n)) for n, o in offsets.items()})
    if not isinstance(plain, Expr) or not _divided(plain, offsets):
        return plain
    periods = {n: lcm(o.step, *dims.divisors(index, n)) for n, o in offsets.items()}
    counted: dict[str, Dim] = {n: sym(f"{n}_q") * period + sym(n) for n, period in periods.items()}
    counted |= {n: dims.add(counted[n], sym(f"{n}_r")) for n, o in offsets.items() if periods[n] != o.step}
    bounds = {n: o.bound for n, o in offsets.items()}
    bounds |= {f"{n}_r": periods[n] - o.step + 1 for n, o in offsets.items()}
    clean = substitute(index, counted, bounds)
    if not _divided_alone(clean, offsets):
        return plain
    back = {f"{n}_q": dims.floordiv(o.start, periods[n]) for n, o in offsets.items()}
    return substitute(clean, back | {f"{n}_r": dims.modulo(o.start, periods[n]) for n, o in offsets.items()})


def _divided(dim: Dim, axes: Collection[str]) -> bool:
    """Whether one of the axes stands inside a division."""
    return any(
        isinstance(atom, dims.Compound) and not symbols(dims.alone(atom)).isdisjoint(axes)
        for atoms, _ in dims.terms_of(dim)
        for atom in atoms
    )


def _divided_alone(dim: Dim, axes: Collection[str]) -> bool:
    """Whether the axes stand inside divisions with nothing else, if at all: no offset is left there."""
    inside = [
        symbols(dims.alone(atom))
        for atoms, _ in dims.terms_of(dim)
        for atom in atoms
        if isinstance(atom, dims.Compound)
    ]
    return all(found.isdisjoint(axes) or len(found) == 1 for found in inside)
