"""What Dynamo did not trace, from its records of compiles: functions that it left to Python, and where graphs end."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from autofusion.frontends.torch import adapter


@dataclass(frozen=True)
class GivenUp:
    """`function`: its name and place; `whole`: whether nothing of it is compiled, else its graph ends somewhere in it;
    `reason`: Dynamo's, and its first hint."""

    function: str
    whole: bool
    reason: str

    def __str__(self) -> str:
        return f"Dynamo {'left' if self.whole else 'ended a graph in'} {self.function}: {self.reason}"


def now() -> int:
    """Microseconds, on the clock of Dynamo's records."""
    return time.time_ns() // 1000


def since(start: int) -> tuple[GivenUp, ...]:
    """Of the compiles of this process that began then or later, by whatever backend; each said once. Dynamo keeps the
    last 64 compiles."""
    found: dict[GivenUp, None] = {}
    names: dict[str, str] = {}  # of the code that a compile is of, by the first part of its number
    for record in adapter.module("torch._dynamo.utils").get_compilation_metrics():
        if (record.start_time_us or 0) < start:
            continue
        number = str(record.compile_id).split("/")[0]
        if record.co_name is not None:
            names[number] = _place(record)
        name = names.get(number, "a function")
        for reason in sorted(record.restart_reasons or ()):
            if _is_break(reason):
                found[GivenUp(name, False, _short(reason))] = None
        if record.fail_reason:
            found[GivenUp(name, True, _short(record.fail_reason))] = None
    return tuple(found)


def _place(record: Any) -> str:
    return f"{record.co_name} ({os.path.basename(record.co_filename or '?')}:{record.co_firstlineno})"


def _is_break(reason: str) -> bool:
    """Dynamo begins again for other reasons too; those that end a graph explain themselves."""
    return "Explanation:" in reason


def _short(reason: str) -> str:
    """The first line, and the first hint."""
    lines = [line.strip() for line in reason.splitlines()]
    hints = [line.removeprefix("Hint: ") for line in lines if line.startswith("Hint: ")]
    return f"{lines[0]}. {hints[0]}" if hints else lines[0]
