"""What became of PyTorch graphs: launches, what PyTorch ran and why, and why graphs were compiled again. `summary`
makes text of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autofusion.frontends.torch import summary
from autofusion.frontends.torch.given_up import GivenUp
from autofusion.jit.explain import Explanation

MOST_GIVEN_UP = 8  # that a text names, which is not asked for in full


@dataclass(frozen=True)
class FallbackReport:
    """An operator that PyTorch ran: how often it stands in the graph, why, and its share of the time so far (of
    launches and fallbacks), None before the first call."""

    operator: str
    count: int
    reason: str
    share: float | None

    def __str__(self) -> str:
        share = "" if self.share is None else f", {self.share:.1%} of the time"
        return f"{self.operator} x {self.count}{share}: {self.reason}"


@dataclass(frozen=True)
class ProgramReport:
    """One graph. `operators`: of ATen; `recompiled`: why it was compiled although there was another, told by the
    forward graph; `defects`: where this package failed and PyTorch runs what it should have compiled; `full`: whether
    `str()` says all, however long it is; `kernels` of the launches, `cache_hits` of which were not compiled but
    found."""

    name: str
    operators: int
    launches: tuple[Explanation, ...]
    fallbacks: tuple[FallbackReport, ...]
    calls: int
    recompiled: str = ""
    defects: tuple[str, ...] = ()
    full: bool = False
    kernels: int = 0
    cache_hits: int = 0

    def __str__(self) -> str:
        return summary.text([], [self], self.full)


@dataclass(frozen=True)
class Report:
    """All graphs of a backend, in the order of their compiles. `full`: whether `str()` says all, however long it is.
    `given_up`: what Dynamo did not trace, in this process and since the report began."""

    programs: tuple[ProgramReport, ...]
    full: bool = False
    given_up: tuple[GivenUp, ...] = ()

    @property
    def fallbacks(self) -> tuple[FallbackReport, ...]:
        return tuple(each for program in self.programs for each in program.fallbacks)

    @property
    def defects(self) -> tuple[str, ...]:
        return tuple(each for program in self.programs for each in program.defects)

    @property
    def recompiles(self) -> tuple[str, ...]:
        """Why, of each further compile; forward and backward are one."""
        return tuple(program.recompiled for program in self.programs if program.recompiled)

    @property
    def kernels(self) -> int:
        return sum(program.kernels for program in self.programs)

    @property
    def cache_hits(self) -> int:
        """Kernels that were not compiled, for the cache had them."""
        return sum(program.cache_hits for program in self.programs)

    def __str__(self) -> str:
        launches = sum(len(program.launches) for program in self.programs)
        count = summary.count
        head = (
            f"{count(len(self.programs), 'graph')}, {count(launches, 'launch', 'es')}, "
            f"{count(sum(each.count for each in self.fallbacks), 'operator')} in PyTorch, "
            f"{count(len(self.recompiles), 'recompile')}; {summary.kernels(self.kernels, self.cache_hits)}"
        ) + (f", {count(len(self.defects), 'defect')}" if self.defects else "")
        shown = len(self.given_up) if self.full else MOST_GIVEN_UP
        lines = [head, *(f"  {each}" for each in self.given_up[:shown])]
        if len(self.given_up) > shown:
            lines.append(f"  and {len(self.given_up) - shown} more that Dynamo did not trace: explain(full=True)")
        return summary.text(lines, self.programs, self.full)


def shares(seconds: Sequence[float]) -> list[float | None]:
    """Each part of the whole; None where nothing ran."""
    total = sum(seconds)
    return [each / total if total else None for each in seconds]
