"""`autofusion cache ls|verify|clear`: the compiled kernels on disk."""

from __future__ import annotations

import argparse
import datetime

from autofusion.cli import command, terminal
from autofusion.cli.command import Arguments, Command
from autofusion.jit import cache as caching

KEY = 16  # digits of a key that are shown


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))
    for name, does in (
        ("ls", "list the entries, the last used first"),
        ("verify", "read every entry and remove the damaged ones"),
        ("clear", "remove every entry"),
    ):
        command.add_json(actions.add_parser(name, help=does, description=does))


def run(arguments: Arguments) -> int:
    """One of the three."""
    cache = caching.default_cache()
    return {"ls": ls, "verify": verify, "clear": clear}[arguments.action](cache, arguments.json)


def ls(cache: caching.Cache, as_json: bool) -> int:
    """The entries; what they take together."""
    entries = cache.entries()
    total = sum(entry.bytes for entry in entries)
    folder = None if cache.folder is None else str(cache.folder)
    if as_json:
        listed = [
            {"key": e.key, "bytes": e.bytes, "age_seconds": e.age, "used": e.used, "meta": dict(e.meta)}
            for e in entries
        ]
        terminal.print_json({"folder": folder, "bytes": total, "limit_bytes": cache.limit_bytes, "entries": listed})
        return 0
    console = terminal.console()
    made = terminal.table(
        None, "key", "size", "age", "last used", "compiled for", numbers=("size", "age"), wide=("compiled for",)
    )
    for entry in entries:
        used = datetime.datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M:%S")
        machine = " ".join(entry.meta.get("target", "").split("|")[:2])
        made.add_row(entry.key[:KEY], terminal.size(entry.bytes), _age(entry.age), used, machine)
    if entries:
        console.print(made)
    count = terminal.plural(len(entries), "kernel")
    console.print(
        f"{count}, {terminal.size(total)} of {terminal.size(cache.limit_bytes)}, in {folder or 'memory only'}"
    )
    return 0


def verify(cache: caching.Cache, as_json: bool) -> int:
    """1 where an entry was damaged."""
    count = len(cache.entries())
    problems = cache.verify()
    if as_json:
        listed = [{"key": p.key, "reason": p.reason, "removed": p.removed} for p in problems]
        terminal.print_json({"entries": count, "damaged": listed, "ok": not problems})
    else:
        for problem in problems:
            state = "removed" if problem.removed else "could not be removed"
            print(f"{problem.key[:KEY]}: {problem.reason}: {state}")
        print(f"{terminal.plural(count, 'kernel')}, {len(problems)} damaged")
    return 1 if problems else 0


def clear(cache: caching.Cache, as_json: bool) -> int:
    """Remove all."""
    count = cache.clear()
    if as_json:
        terminal.print_json({"removed": count})
    else:
        print(f"{terminal.plural(count, 'kernel')} removed")
    return 0


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


COMMAND = Command("cache", "list, verify or clear the compiled kernels on disk", configure, run)
