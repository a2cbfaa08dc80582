"""Verdicts: why two things fused, or why they did not. A code, the operators, the numbers."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Code(StrEnum):
    """The reasons. All but FUSED are refusals."""

    FUSED = "fused"
    CYCLE = "cycle"  # the merge would make a group depend on itself through an operator outside
    SPACE = "space"  # iteration spaces share no axis that could be bound to cores
    CAPACITY = "capacity"  # the intermediates do not fit on-chip
    UNIT = "unit"  # the compute units have no path between them
    CONTROL = "control"  # what follows is only known when the data is
    COMMUNICATION = "communication"  # communication between devices is a boundary
    OPAQUE = "opaque"  # an operator that the target does not compile
    EFFECT = "effect"  # a written buffer is read at other places
    LIBRARY = "library"  # a hand-tuned kernel has no slot for what would be fused into it
    LIMIT = "limit"  # the target's bound on operators in a group
    PROFIT = "profit"  # it would cost more time than it saves

    @property
    def fused(self) -> bool:
        return self is Code.FUSED


class Verdict(NamedTuple):
    """The answer for a producer (or its group) and a consumer, with the numbers that decided. `others`: further groups
    that would have been merged with the two, by the name of an operator of each."""

    code: Code
    producer: str
    consumer: str
    text: str
    numbers: tuple[tuple[str, float], ...] = ()
    others: tuple[str, ...] = ()

    @property
    def fused(self) -> bool:
        return self.code.fused

    def __str__(self) -> str:
        figures = ", ".join(f"{name}={value:g}" for name, value in self.numbers)
        return f"{self.code:13s} {self.producer} -> {self.consumer}: {self.text}" + (f" ({figures})" if figures else "")
