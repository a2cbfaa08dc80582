"""The text of a report: in full, or short enough to be read, with what is alike said once.

region1 to region11, alike, on cpu:…: 78 operators -> 8 groups, 1 launch each
  group 4 and 1 more alike [k4] t_44: matmul, add
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from autofusion.autofuse.verdicts import Verdict
from autofusion.jit.explain import Explanation, GroupReport

LINES = 100  # of a text that is not asked for in full

T = TypeVar("T")


@dataclass(frozen=True)
class Detail:
    """At most so many names of operators of a group, groups of a region, kinds of fallbacks of a graph. `schedules`:
    whether groups say how they are tiled."""

    operators: int
    groups: int
    fallbacks: int
    schedules: bool


# From much to little: the first whose text is short enough is taken, or the last.
DETAILS = (Detail(16, 1000, 1000, True), Detail(12, 6, 12, True), Detail(12, 6, 12, False), Detail(0, 0, 8, False))


def text(head: Sequence[str], programs: Sequence[Any], full: bool) -> str:
    """Of ProgramReports, after the lines of `head`."""
    everything = [*head, *(line for program in programs for line in _in_full(program))]
    if full:
        return "\n".join(everything)
    made: list[str] = []
    for detail in DETAILS:
        made = [*head, *_in_short(programs, detail)]
        if len(made) < LINES:
            break
    return "\n".join(made if made == everything else [*made, "shortened; explain(full=True) says all"])


def count(number: int, what: str, plural: str = "s") -> str:
    return f"{number:,} {what}{'' if number == 1 else plural}"


def kernels(number: int, hits: int) -> str:
    return f"{count(number, 'kernel')}, {hits:,} from the cache"


def _title(program: Any) -> str:
    launches = count(len(program.launches), "launch", "es")
    operators, calls = count(program.operators, "operator"), count(program.calls, "call")
    return f"{program.name}: {operators} -> {launches}, {calls}; {kernels(program.kernels, program.cache_hits)}"


def _in_full(program: Any) -> list[str]:
    lines = [_title(program)]
    if program.recompiled:
        lines.append(f"  compiled again: {program.recompiled}")
    lines += [f"  defect, please report it: {each}" for each in program.defects]
    lines += [f"  in PyTorch: {each}" for each in program.fallbacks]
    for each in program.launches:
        lines += ["  " + line for line in str(each).splitlines()]
    return lines


# -- what is alike -----------------------------------------------------------------------------------------------------
def _alike(items: Iterable[T], key: Any) -> list[list[T]]:
    """Those of equal keys together, in the order of the first of each."""
    found: dict[Hashable, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def _of_group(group: GroupReport) -> Hashable:
    return (group.operators, group.host, group.kernel, group.schedule, group.bytes_read, group.bytes_written)


def _of_region(region: Explanation) -> Hashable:
    """All that is said of it but for names."""
    refused = Counter(verdict.code for verdict in region.refusals)
    sums = (region.gm_bytes, region.gm_bytes_unfused, region.gm_bytes_compulsory, region.constant_bytes)
    groups = tuple(_of_group(each) for each in region.groups)
    return (region.target, region.ops, groups, sums, region.packed_bytes, frozenset(refused.items()))


def _of_program(program: Any) -> Hashable:
    fallbacks = tuple((each.operator, each.count, each.reason) for each in program.fallbacks)
    return (program.operators, tuple(map(_of_region, program.launches)), fallbacks, program.defects)


# -- in short ----------------------------------------------------------------------------------------------------------
def _in_short(programs: Sequence[Any], detail: Detail) -> Iterator[str]:
    first: dict[Hashable, str] = {}
    for program in programs:
        same = first.setdefault(_of_program(program), program.name)
        yield _title(program) + ("" if same == program.name else f"; alike {same}")
        if program.recompiled:
            yield f"  compiled again: {' '.join(program.recompiled.splitlines()[0].split())}"
        if same != program.name:
            continue
        yield from (f"  defect, please report it: {each}" for each in program.defects)
        yield from (f"  in PyTorch: {each}" for each in program.fallbacks[: detail.fallbacks])
        rest = program.fallbacks[detail.fallbacks :]
        if rest:
            yield f"  in PyTorch: {count(sum(each.count for each in rest), 'operator')} more of {len(rest)} kinds"
        for regions in _alike(program.launches, _of_region):
            yield from _regions(regions, detail)


def _regions(regions: Sequence[Explanation], detail: Detail) -> Iterator[str]:
    """Regions that are alike."""
    region, each = regions[0], " each" if len(regions) > 1 else ""
    groups, launches = count(len(region.groups), "group"), count(region.launches, "launch", "es")
    yield (
        f"  {_names([r.model for r in regions])} on {region.target}: {count(region.ops, 'operator')} -> {groups}, "
        f"{launches}{each}"
    )
    yield (
        f"  global memory: {region.gm_bytes:,} bytes fused, {region.gm_bytes_unfused:,} unfused, "
        f"{region.gm_bytes_compulsory:,} compulsory{each}"
    )
    if region.constant_bytes:
        yield f"  constants: {region.constant_bytes:,} bytes, {region.packed_bytes:,} of them packed{each}"
    yield from _groups(region, detail)
    yield from _refusals(region.refusals, detail)
    yield from (f"    on the host: {name}" for name in region.fallbacks)


def _names(names: Sequence[str]) -> str:
    """region1 to region11, alike"""
    if len(names) == 1:
        return names[0]
    numbers = [int("0" + "".join(c for c in name if c.isdigit())) for name in names]
    in_a_row = len(names) > 2 and numbers == list(range(numbers[0], numbers[0] + len(names)))
    return (f"{names[0]} to {names[-1]}" if in_a_row else ", ".join(names)) + ", alike,"


def _groups(region: Explanation, detail: Detail) -> Iterator[str]:
    """Those that move the most bytes, in the order of the graph."""
    numbers = {id(group): number for number, group in enumerate(region.groups)}
    kinds = _alike(region.groups, _of_group)
    largest = sorted(kinds, key=lambda kind: -sum(map(_moved, kind)))[: detail.groups]
    shown = {id(kind) for kind in largest}
    for kind in kinds:
        if id(kind) not in shown:
            continue
        group, more = kind[0], f" and {len(kind) - 1} more alike" if len(kind) > 1 else ""
        where = "host" if group.host else group.kernel
        listed = ", ".join(group.operators[: detail.operators])
        if len(group.operators) > detail.operators:
            listed += f", and {len(group.operators) - detail.operators} more"
        moved = f"reads {group.bytes_read:,} B, writes {group.bytes_written:,} B"
        yield f"    group {numbers[id(group)]}{more} [{where}] {group.name}: {listed}" + (
            "" if detail.schedules else f"; {moved}"
        )
        if detail.schedules:
            yield f"      {moved}; {group.schedule}"
    rest = [group for kind in kinds if id(kind) not in shown for group in kind]
    if rest and detail.groups:
        yield f"    and {count(len(rest), 'group')} of {sum(map(_moved, rest)):,} B together"


def _moved(group: GroupReport) -> int:
    return group.bytes_read + group.bytes_written


def _refusals(refusals: Sequence[Verdict], detail: Detail) -> Iterator[str]:
    """One of each kind, with how many there are."""
    if not detail.groups:
        return
    for verdicts in _alike(refusals, lambda verdict: (verdict.code, verdict.text)):
        more = f"; {len(verdicts) - 1} more" if len(verdicts) > 1 else ""
        yield f"    not fused: {verdicts[0]}{more}"
