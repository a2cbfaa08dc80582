"""What a check that failed in a kernel raises: by the operator that the plan names for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from autofusion.errors import ExecutionError, IndexOutOfRange


class Failures:
    """`checks`: the operators, by check. `told`: of some the error for a position, where a front end can say more."""

    def __init__(self, checks: Sequence[str]) -> None:
        self.checks = checks
        self.told: dict[str, Callable[[int], ExecutionError]] = {}

    def fail(self, check: int, position: int) -> NoReturn:
        """Raises IndexOutOfRange, or what was told."""
        operator = self.checks[check]
        tell = self.told.get(operator.partition(".")[0])  # operators that it was lowered to are named after it
        if tell is not None:
            raise tell(position)
        raise IndexOutOfRange(f"{operator}: index at position {position} is out of range")
