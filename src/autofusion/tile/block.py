"""Statements being collected, and the lines that say which tile of an axis they are for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autofusion import dims
from autofusion.dims import Dim, minimum
from autofusion.kernel.ir import Access, Axis
from autofusion.tile.ir import Let

sym = dims.symbol


@dataclass
class Block:
    """Statements being collected, and the parameter tiles already in buffers there."""

    lines: list[Any] = field(default_factory=list)
    loaded: dict[tuple[Any, ...], Access] = field(default_factory=dict)


def deepened(axis: Axis, size: int) -> Block:
    """A block that begins with where a tile of `size` along an axis lies, and how long it is."""
    block = Block()
    block.lines.append(Let(f"{axis.name}_o", sym(f"{axis.name}_t")))
    if not (isinstance(axis.extent, int) and axis.extent % size == 0):
        block.lines.append(Let(f"{axis.name}_n", minimum(size, axis.extent - sym(f"{axis.name}_o"))))
    return block


def within(size: int, axis: Axis) -> int:
    """A block size no longer than the axis, and never nothing."""
    return max(1, min(size, extent_or(axis.extent, size)))


def extent_or(extent: Dim, otherwise: int) -> int:
    return extent if isinstance(extent, int) else otherwise
