"""What an Ascend run adds to a report: which machine ran it, and what the AI Core model counted."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.text import Text

from autofusion import api
from autofusion.cli import terminal
from autofusion.frontends.onnx import Program
from autofusion.runtime.ascend import AscendExecutable, Counters

MODEL, DEVICE = "model", "device"


def executable_of(compiled: api.Compiled | Program) -> AscendExecutable | None:
    """The executable of an Ascend target, a Program's first; None for CPUs."""
    made = [compiled] if isinstance(compiled, api.Compiled) else [section.compiled for section in compiled.sections]
    for each in made:
        if each is not None and isinstance(each.executable, AscendExecutable):
            return each.executable
    return None


def machine_of(executable: AscendExecutable) -> str:
    """`device`, or `model`."""
    return DEVICE if executable.on_device else MODEL


def as_json(executable: AscendExecutable, found: Counters | None) -> dict[str, Any]:
    """The keys that docs/cli.md lists for Ascend targets."""
    return {
        "machine": machine_of(executable),
        "no_device": executable.why,
        "model_us": None if found is None else found.microseconds,
        "counters": None if found is None else counted(found),
    }


def counted(found: Counters) -> dict[str, Any]:
    """The model's counters as data."""
    data = asdict(found) | {"gm_bytes": found.gm_bytes}
    del data["microseconds"]
    return data


def rows(executable: AscendExecutable, found: Counters | None) -> list[tuple[str, str | Text]]:
    """For people."""
    if executable.on_device:
        return [("machine", "an Ascend device; this path is untested on hardware: check its results")]
    lines: list[tuple[str, str | Text]] = [
        ("machine", "on the AI Core model; untested on hardware"),
        ("no device", executable.why or ""),
    ]
    if found is None:
        return lines
    return [*lines, ("modelled", modelled(found)), ("counted", traffic(found))]


def modelled(found: Counters) -> str:
    """`39.7 µs, 1 launch, 0 barriers, 40 cores`."""
    parts = [
        terminal.plural(found.launches, "launch"),
        terminal.plural(found.barriers, "barrier"),
        terminal.plural(found.cores, "core"),
    ]
    return f"{found.microseconds:,.1f} µs, {', '.join(parts)}"


def traffic(found: Counters) -> str:
    """Bytes by direction, and what was in use on the chip."""
    through = f", {terminal.size(found.workspace_bytes)} of it workspace" if found.workspace_bytes else ""
    peak = ", ".join(f"{space} {terminal.size(size)}" for space, size in found.onchip_peak.items() if size)
    read, written = terminal.size(found.gm_read), terminal.size(found.gm_written)
    return f"{read} read, {written} written{through}; at most {peak or 'nothing'} on-chip"
