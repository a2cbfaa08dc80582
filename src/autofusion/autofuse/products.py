"""Contractions on a unit of their own: which tiles of the result cost the least time.

    result [rows, columns] = left [rows, depth] * right [depth, columns]

A tile of r x c elements reads r * depth of the left operand and c * depth of the right one, so both operands are read
again for every tile: rows * columns * depth * (1/r + 1/c) elements in all. What a tile may be is bounded by the memory
for results, and by whatever consumes it on-chip.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from autofusion.kinds import Kind
from autofusion.target import Target

GRAIN = 16  # rows and columns that the unit works on at once
STATE = 4  # bytes of an accumulator
SHORTEST, LONGEST = 16, 512  # depth of a block
TILE_US = 0.2  # assumed: what a tile takes to begin and to end, whatever its size
BIAS = "BT"  # the space that accumulators can start from: a row of a block has to fit


class Product(NamedTuple):
    """The extents of a contraction; `size`: bytes of an element of its operands in global memory."""

    batch: int
    rows: int
    columns: int
    depth: int
    size: int


class Tiling(NamedTuple):
    """Tiles of `rows` x `columns`, the bytes that all of them read, and microseconds on all cores."""

    rows: int
    columns: int
    bytes: int
    microseconds: float


def has_own_unit(target: Target) -> bool:
    """Whether contractions run on another unit than elementwise work."""
    return target.unit_for(Kind.CONTRACT) not in (None, target.vector)


def block_of(target: Target, rows: int, columns: int, size: int) -> tuple[int, int, int]:
    """Rows, columns and depth of a block of a tile: its result fits the unit's memory, its operands twice."""
    unit = target.unit_for(Kind.CONTRACT)
    assert unit is not None
    left, right, result = (target.spaces[space].bytes for space in (unit.left, unit.right, unit.result))
    widest = right // 2 // (SHORTEST * size)
    if BIAS in target.spaces:
        widest = min(widest, target.spaces[BIAS].bytes // STATE)
    across, down = min(columns, widest), min(rows, left // 2 // (SHORTEST * size))
    if across < columns or down < rows or _padded(down) * _padded(across) * STATE > result:
        result //= 2  # several blocks a tile: one leaves while the next is computed
        across = min(across, max(GRAIN, result // STATE // _padded(min(down, 128)) // GRAIN * GRAIN))
        down = min(down, max(1, result // STATE // _padded(across) // GRAIN * GRAIN))
    depth = LONGEST
    while depth > SHORTEST and depth * size * max(_padded(down) * 2 / left, _padded(across) * 2 / right) > 1:
        depth //= 2
    return down, across, depth


def _padded(extent: int) -> int:
    return -(-extent // GRAIN) * GRAIN


def tiled(target: Target, product: Product, rows: int, columns: int) -> Tiling:
    """What tiles of that size cost: cores take equal numbers of tiles, and reading and computing overlap."""
    down, across, _ = block_of(target, rows, columns, product.size)
    one = (-(-columns // across) * rows + -(-rows // down) * columns) * product.depth * product.size
    tiles = product.batch * -(-product.rows // rows) * -(-product.columns // columns)
    reading = one / target.bandwidth
    computing = _padded(rows) * _padded(columns) * product.depth / target.contract_rate
    leaving = rows * columns * STATE / target.bandwidth
    rounds = -(-tiles // target.cores)
    return Tiling(rows, columns, tiles * one, rounds * (max(reading, computing, leaving) + TILE_US) + leaving)


def lengths(extent: int, less: bool = False) -> list[int]:
    """Lengths that cut an extent into equal parts, but for the last, the longest first: all of it, and whole grains.
    `less`: parts of a grain too, where what is whole along the other axis may leave no room for more."""
    grains = (min(extent, _padded(-(-extent // parts))) for parts in range(1, -(-extent // GRAIN) + 1))
    return list(dict.fromkeys((*grains, *(size for size in (8, 4, 2, 1) if less and size < extent))))


def tilings(target: Target, product: Product, rows: Sequence[int], columns: Sequence[int]) -> list[Tiling]:
    """Tiles of these rows and columns, the fastest first, of equally fast ones those that read the least."""
    found = [tiled(target, product, r, c) for r in rows for c in columns]
    return sorted(found, key=lambda t: (t.microseconds, t.bytes, -t.rows))


@lru_cache(maxsize=1 << 12)
def within(
    target: Target, product: Product, whole: tuple[bool, bool] = (False, False), most: int | None = None
) -> Tiling:
    """The fastest tiles that hold all rows or all columns, where `whole` says so, and along what is cut no more than
    `most`."""
    choices = []
    for extent, all_of_it in zip(product[1:3], whole, strict=True):
        extent = max(extent, 1)  # a tile of an empty product
        cut = lengths(extent, any(whole))
        choices.append([extent] if all_of_it else [n for n in cut if most is None or n <= most] or cut[-1:])
    return tilings(target, product, *choices)[0]
