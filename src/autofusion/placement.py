"""Placing things with lifetimes into memory: first fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autofusion import dims
from autofusion.dims import Dim


class Span(NamedTuple):
    """Something of `size` bytes that is alive from time `first` to time `last`, both included."""

    name: str
    size: Dim
    first: int
    last: int


class Lent(NamedTuple):
    """A place in the memory of a span, by name; None: in memory that is nobody's."""

    lender: str | None
    offset: int


def lowest_gap(taken: Sequence[tuple[int, int]], size: int, align: int) -> int:
    """The lowest aligned offset at which `size` bytes fit between the (sorted) ranges taken."""
    offset = 0
    for begin, end in taken:
        if offset + size <= begin:
            break
        offset = max(offset, -(-end // align) * align)
    return offset


class Memory:
    """What is placed in a stretch of memory so far; sizes are known, and rounded up to `align`."""

    def __init__(self, align: int) -> None:
        self.align = align
        self.placed: list[tuple[int, int, Span]] = []
        self.end = 0

    def rounded(self, span: Span) -> int:
        assert isinstance(span.size, int)
        return -(-span.size // self.align) * self.align

    def lowest(self, span: Span) -> int:
        """The lowest offset where nothing else is alive with the span."""
        meeting = sorted((b, e) for b, e, other in self.placed if other.first <= span.last and span.first <= other.last)
        return lowest_gap(meeting, self.rounded(span), self.align)

    def place(self, span: Span, offset: int) -> int:
        end = offset + self.rounded(span)
        self.placed.append((offset, end, span))
        self.end = max(self.end, end)
        return offset


def lend(spans: Sequence[Span], lenders: Mapping[str, Sequence[Span]], align: int) -> tuple[dict[str, Lent], int]:
    """As first_fit, for known sizes, where a span may also lie in the memory of one of its `lenders`, by its name:
    larger ones that are not alive before it is over.

    Those without a lender are placed first. Of the others, each goes where the bytes needed do not grow, then to a
    lender, then behind.
    """
    offsets: dict[str, Lent] = {}
    memory, lent = Memory(align), {each.name: Memory(align) for some in lenders.values() for each in some}
    for span in sorted(spans, key=lambda each: bool(lenders[each.name])):
        offset, lender = memory.lowest(span), None
        if offset + memory.rounded(span) > memory.end:
            for each in lenders[span.name]:
                found = lent[each.name].lowest(span)
                assert isinstance(each.size, int) and isinstance(span.size, int)
                if found + span.size <= each.size:
                    offset, lender = found, each.name
                    break
        (lent[lender] if lender is not None else memory).place(span, offset)
        offsets[span.name] = Lent(lender, offset)
    return offsets, memory.end


def first_fit(spans: Sequence[Span], align: int) -> tuple[dict[str, Dim], Dim]:
    """Offsets by name, and the bytes needed; sizes are rounded up to `align`.

    Spans are placed in the order given, each at the lowest offset where nothing else is alive with it. Those of unknown
    size go behind all others and share nothing.
    """
    offsets: dict[str, Dim] = {}
    memory = Memory(align)
    for span in spans:
        if isinstance(span.size, int):
            offsets[span.name] = memory.place(span, memory.lowest(span))
    total: Dim = memory.end
    for span in spans:
        if not isinstance(span.size, int):
            offsets[span.name] = total
            total = dims.add(total, dims.multiply(dims.ceildiv(span.size, align), align))
    return offsets, total
