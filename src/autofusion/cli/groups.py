"""An explanation as tables: what `run` and `explain` show of groups, bytes and refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from autofusion.autofuse.verdicts import Verdict
from autofusion.cli import terminal
from autofusion.jit.explain import Explanation

LISTED = 8  # operators of a group that are listed one by one; longer groups are counted


def title(found: Explanation) -> Text:
    """`softmax on cpu:…: 5 operators → 1 group → 1 launch`."""
    flow = " → ".join(
        [
            terminal.plural(found.ops, "operator"),
            terminal.plural(len(found.groups), "group"),
            terminal.plural(found.launches, "launch"),
        ]
    )
    return Text.assemble((found.model, "bold"), " on ", found.target, ": ", (flow, "bold"))


def memory(found: Explanation) -> list[tuple[str, str | Text]]:
    """Bytes through global memory: fused, op by op, and what cannot be avoided."""
    rows = [
        ("memory, fused", terminal.size(found.gm_bytes) + _ratio(found.gm_bytes, found.gm_bytes_compulsory)),
        ("memory, unfused", terminal.size(found.gm_bytes_unfused) + _ratio(found.gm_bytes_unfused, found.gm_bytes)),
        ("memory, compulsory", terminal.size(found.gm_bytes_compulsory) + ", each input and output once"),
    ]
    rows[1] = (rows[1][0], rows[1][1].replace("compulsory", "fused"))
    fallbacks = ", ".join(found.fallbacks) if found.fallbacks else "none"
    listed: list[tuple[str, str | Text]] = [*rows]
    listed.append(("fallbacks", Text(fallbacks, style="red" if found.fallbacks else "")))
    if found.sizes:
        listed.append(("sizes", ", ".join(f"{name}={size}" for name, size in found.sizes.items())))
    return listed


def _ratio(part: int, whole: int) -> str:
    return f", {part / whole:.2f}x compulsory" if whole else ""


def table(found: Explanation) -> Table:
    """A line a group."""
    made = terminal.table(
        None, "#", "group", "runs as", "ops", "operators", "reads", "writes", numbers=("#", "ops", "reads", "writes"),
        wide=("operators", "group"),
    )
    for number, group in enumerate(found.groups):
        where = Text("host", style="red") if group.host else Text(group.kernel)
        made.add_row(
            str(number),
            group.name,
            where,
            str(len(group.operators)),
            summary(group.operators),
            terminal.size(group.bytes_read),
            terminal.size(group.bytes_written),
        )
    return made


def summary(operators: Sequence[str]) -> str:
    """The operators in order, or counted where they are many."""
    if len(operators) <= LISTED:
        return ", ".join(operators)
    counts = Counter(operators).most_common()
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts)


def verdicts(title: str, listed: Sequence[Verdict]) -> Table:
    """A line a verdict."""
    made = terminal.table(title, "code", "producer → consumer", "why", "numbers", wide=("producer → consumer", "why"))
    for verdict in listed:
        numbers = ", ".join(f"{name} {value:g}" for name, value in verdict.numbers)
        made.add_row(verdict.code.value, f"{verdict.producer} → {verdict.consumer}", verdict.text, numbers)
    return made
