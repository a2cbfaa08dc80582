"""Placing things with lifetimes into memory: first fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from autofusion import dims
from autofusion.dims import Dim


class Span(NamedTuple):
    """Something of `size` bytes that is alive from time `first` to time `last`, both included."""

    name: str
    size: Dim
    first: int
    last: int


def lowest_gap(taken: Sequence[tuple[int, int]], size: int, align: int) -> int:
    """The lowest aligned offset at which `size` bytes fit between the (sorted) ranges taken."""
    offset = 0
    for begin, end in taken:
        if offset + size <= begin:
            break
        offset = max(offset, -(-end // align) * align)
    return offset


def first_fit(spans: Sequence[Span], align: int) -> tuple[dict[str, Dim], Dim]:
    """Offsets by name, and the bytes needed; sizes are rounded up to `align`.

    Spans are placed in the order given, each at the lowest offset where nothing else is alive with it. Those of unknown
    size go behind all others and share nothing.
    """
    offsets: dict[str, Dim] = {}
    placed: list[tuple[int, int, Span]] = []
    for span in spans:
        if isinstance(span.size, int):
            size = -(-span.size // align) * align
            meeting = sorted((b, e) for b, e, other in placed if other.first <= span.last and span.first <= other.last)
            offset = lowest_gap(meeting, size, align)
            placed.append((offset, offset + size, span))
            offsets[span.name] = offset
    total: Dim = max((end for _, end, _ in placed), default=0)
    for span in spans:
        if not isinstance(span.size, int):
            offsets[span.name] = total
            total = dims.add(total, dims.multiply(dims.ceildiv(span.size, align), align))
    return offsets, total
