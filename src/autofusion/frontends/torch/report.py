"""What became of PyTorch graphs, for people: launches, what PyTorch ran and why, and why graphs were compiled again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autofusion.jit.explain import Explanation


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
    forward graph; `defects`: where this package failed and PyTorch runs what it should have compiled."""

    name: str
    operators: int
    launches: tuple[Explanation, ...]
    fallbacks: tuple[FallbackReport, ...]
    calls: int
    recompiled: str = ""
    defects: tuple[str, ...] = ()

    def __str__(self) -> str:
        launches = _count(len(self.launches), "launch", "es")
        lines = [f"{self.name}: {self.operators} operators -> {launches}, {_count(self.calls, 'call')}"]
        if self.recompiled:
            lines.append(f"  compiled again: {self.recompiled}")
        lines += [f"  defect, please report it: {each}" for each in self.defects]
        lines += [f"  in PyTorch: {each}" for each in self.fallbacks]
        for each in self.launches:
            lines += ["  " + line for line in str(each).splitlines()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """All graphs of a backend, in the order of their compiles."""

    programs: tuple[ProgramReport, ...]

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

    def __str__(self) -> str:
        launches = sum(len(program.launches) for program in self.programs)
        head = (
            f"{_count(len(self.programs), 'graph')}, {_count(launches, 'launch', 'es')}, "
            f"{_count(sum(each.count for each in self.fallbacks), 'operator')} in PyTorch, "
            f"{_count(len(self.recompiles), 'recompile')}"
        ) + (f", {_count(len(self.defects), 'defect')}" if self.defects else "")
        return "\n".join([head, *map(str, self.programs)])


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{'' if number == 1 else plural}"


def shares(seconds: Sequence[float]) -> list[float | None]:
    """Each part of the whole; None where nothing ran."""
    total = sum(seconds)
    return [each / total if total else None for each in seconds]
