"""`autofusion targets`: machines that graphs can be cut for, and what can be done on each."""

from __future__ import annotations

import argparse
from typing import Any

from autofusion import api
from autofusion.cli import command, terminal
from autofusion.cli.command import Arguments, Command
from autofusion.runtime import acl, aicore
from autofusion.target import Target
from autofusion.targets.cpu import host

NAMES = ("cpu", "cpu:sse2", "cpu:avx2", "cpu:avx512", "cpu:aarch64:neoverse-v1", "ascend910b", "ascend950")


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    command.add_json(parser)


def run(arguments: Arguments) -> int:
    """Print them."""
    rows = [as_json(name, api.find_target(name)) for name in NAMES]
    if arguments.json:
        terminal.print_json(rows)
        return 0
    made = terminal.table(
        None,
        "--target",
        "machine",
        "here",
        "cores",
        "vector",
        "features",
        "on-chip",
        numbers=("cores",),
        wide=("features", "on-chip"),
    )
    for row in rows:
        onchip = ", ".join(f"{s['name']} {terminal.size(s['bytes'])}" for s in row["spaces"] if s["onchip"])
        vector = f"{row['lane_bytes'] * 8} bit"
        made.add_row(
            row["name"], row["machine"], row["does"], str(row["cores"]), vector, ", ".join(row["features"]), onchip
        )
    console = terminal.console()
    console.print(made)
    console.print("cpu:ARCH:CPU names any other x86-64 or aarch64 CPU that LLVM knows, to emit code for.")
    console.print("Ascend targets run on a device where there is one, else on the AI Core model; untested on hardware.")
    return 0


def as_json(name: str, target: Target) -> dict[str, Any]:
    """A target as data. `does`: runs, is modelled (its code runs on the AI Core model), or emits code that is not run
    here."""
    does = "runs"
    if target.family == "cpu" and not host.runs(
        host.named(target.name.removeprefix("cpu:") if name != "cpu" else "host")
    ):
        does = "emits"
    if target.family == "ascend":
        does = "runs" if acl.unavailable() is None else "modelled" if aicore.unavailable() is None else "emits"
    return {
        "name": name,
        "machine": target.name.removeprefix("cpu:"),
        "family": target.family,
        "does": does,
        "cores": target.cores,
        "lane_bytes": target.lane_bytes,
        "features": list(target.features),
        "group_limit": target.group_limit,
        "spaces": [
            {"name": s.name, "bytes": s.bytes, "align": s.align, "onchip": s.onchip} for s in target.spaces.values()
        ],
        "paths": [f"{path.source} -> {path.target} by {path.unit}" for path in target.paths.values()],
    }


COMMAND = Command("targets", "the machines, as the compiler sees them", configure, run)
