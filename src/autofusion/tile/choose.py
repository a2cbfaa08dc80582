"""The program of a kernel: the first candidate schedule whose buffers fit on-chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autofusion.kernel.ir import Kernel
from autofusion.kernel.schedule import SIZE_HINT, Analysis, Schedule, passes_through, propose
from autofusion.target import Target
from autofusion.tile import memory
from autofusion.tile.build import build
from autofusion.tile.ir import Program


@dataclass(frozen=True)
class Choice:
    """A schedule and its program. `overflow`: what even the smallest candidate does not fit into; a budget may be
    overrun, an addressable space may not."""

    schedule: Schedule
    program: Program
    overflow: memory.Overflow | None


def choose(kernel: Kernel, target: Target, sizes: Mapping[str, int] | None = None) -> Choice:
    """Build candidates, preferred ones first, until one fits; what passes through caches always does. `sizes`: extents
    of open dimensions, where known."""
    known = dict.fromkeys(kernel.symbols, SIZE_HINT) | dict(sizes or {})
    passing = passes_through(Analysis(kernel), target)
    built: dict[Schedule, Choice] = {}

    def fits(schedule: Schedule) -> bool:
        program = build(kernel, schedule, target)
        built[schedule] = Choice(schedule, program, None if passing else memory.fits(program, target, known))
        return built[schedule].overflow is None

    return built[propose(kernel, target, fits)]
