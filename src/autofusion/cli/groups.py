"""An explanation as tables: what `run` and `explain` show of groups, bytes and refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from autofusion.autofuse.verdicts import Verdict
from autofusion.cli import terminal
from autofusion.frontends.onnx.program import SectionedExplanation
from autofusion.jit.explain import Explanation
from autofusion.jit.pipeline import Compilation, GroupCode
from autofusion.kernel.ir import Role
from autofusion.ops import Kind

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
    fused, unfused, least = found.gm_bytes, found.gm_bytes_unfused, found.gm_bytes_compulsory
    fallbacks = ", ".join(found.fallbacks) or "none"
    rows: list[tuple[str, str | Text]] = [
        ("memory, fused", terminal.size(fused) + _ratio(fused, least, "compulsory")),
        ("memory, unfused", terminal.size(unfused) + _ratio(unfused, fused, "fused")),
        ("memory, compulsory", terminal.size(least) + ", each input and output once"),
        ("fallbacks", Text(fallbacks, style="red" if found.fallbacks else "")),
    ]
    if found.constant_bytes:
        packed = f", {terminal.size(found.packed_bytes)} of it packed" if found.packed_bytes else ""
        rows.append(("constants", terminal.size(found.constant_bytes) + packed))
    if found.sizes:
        rows.append(("sizes", ", ".join(f"{name}={size}" for name, size in found.sizes.items())))
    return rows


def _ratio(part: int, whole: int, name: str) -> str:
    return f", {part / whole:.2f}x {name}" if whole else ""


def table(found: Explanation) -> Table:
    """A line a group."""
    made = terminal.table(
        None,
        "#",
        "group",
        "runs as",
        "ops",
        "operators",
        "reads",
        "writes",
        numbers=("#", "ops", "reads", "writes"),
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


def sections(found: SectionedExplanation) -> Table:
    """A line a section of a model whose control flow depends on data."""
    made = terminal.table(
        "Sections, as control flow depends on data",
        "section",
        "made for",
        "operators",
        "launches",
        "control: ends before",
        numbers=("launches",),
        wide=("operators", "made for", "control: ends before"),
    )
    for section in found.sections:
        operators = summary(section.operators)
        made.add_row(section.name, ", ".join(section.inputs), operators, str(section.launches), section.then)
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
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in verdict.numbers)
        made.add_row(verdict.code.value, f"{verdict.producer} → {verdict.consumer}", verdict.text, numbers)
    return made


@dataclass(frozen=True)
class Part:
    """What fusion did for some of the operators. `onchip`: results that never reach global memory."""

    name: str
    operators: int
    onchip: int
    with_contraction: int
    groups: int


def parts(compilation: Compilation) -> list[Part]:
    """Contractions, which are hot, and the long tail of all others; views and scalars count in neither."""
    found = []
    written = {name for group in compilation.groups for name in _written(group)}
    for name, hot in (("contractions", True), ("long tail", False)):
        operators = onchip = beside = groups = 0
        for group in compilation.partition.groups:
            members = [node for node in group.nodes if (node.kind is Kind.CONTRACT) is hot]
            contracts = any(node.kind is Kind.CONTRACT for node in group.nodes)
            operators += len(members)
            onchip += sum(node.name not in written for node in members) if not group.host else 0
            beside += len(members) if contracts else 0
            groups += bool(members)
        found.append(Part(name, operators, onchip, beside, groups))
    return found


def _written(group: GroupCode) -> list[str]:
    """The values that a group writes to global memory."""
    names = group.lowered.names
    return [names[param.name] for param in group.lowered.kernel.params if param.role is Role.OUT]


def parts_table(listed: Sequence[Part]) -> Table:
    """A line a part."""
    made = terminal.table(
        "What fusion did",
        "part",
        "operators",
        "in groups",
        "beside a contraction",
        "results kept on-chip",
        numbers=("operators", "in groups", "beside a contraction", "results kept on-chip"),
    )
    for part in listed:
        made.add_row(part.name, str(part.operators), str(part.groups), str(part.with_contraction), str(part.onchip))
    return made
