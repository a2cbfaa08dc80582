"""What people and machines see: tables, JSON, progress, and errors on one line."""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 120  # columns where the output is no terminal
_UNITS = ("KiB", "MiB", "GiB", "TiB")
PATIENCE = 0.5  # seconds before a progress bar appears


def console() -> Console:
    """Standard output for people."""
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    return Console(width=width, highlight=False, soft_wrap=False)


def table(title: str | None, *columns: str, numbers: Sequence[str] = (), wide: Sequence[str] = ()) -> Table:
    """An empty table; `numbers` are aligned right, `wide` columns take what room is left and fold."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        right = name in numbers
        made.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=name not in wide,
            overflow="fold",
            ratio=1 if name in wide else None,
        )
    return made


def facts(rows: Sequence[tuple[str, str | Text]]) -> Table:
    """Names and values in two columns."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made


def print_json(data: Any) -> None:
    """One object. Numbers that JSON does not have become "nan", "inf" and "-inf"."""
    print(json.dumps(plain(data), indent=2, ensure_ascii=False))


def plain(item: Any) -> Any:
    """The same data in JSON's types."""
    if isinstance(item, dict):
        return {str(key): plain(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [plain(each) for each in item]
    if isinstance(item, float) and not math.isfinite(item):
        return str(item)
    return item


def say(kind: str, message: str) -> None:
    """`autofusion: error: …` on standard error, on one line."""
    line = " ".join(message.split())
    print(f"autofusion: {kind}: {line}", file=sys.stderr, flush=True)


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Warnings look like errors do, and each is said once."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        say("warning", str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def progress(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error for work that takes long, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    start = time.perf_counter()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(what)
    shown = False

    def advance(stage: str, done: int, total: int) -> None:
        nonlocal shown
        if not shown and time.perf_counter() - start > PATIENCE:
            bar.start()
            shown = True
        bar.update(task, description=f"{what}: {stage}", completed=done, total=total)

    try:
        yield advance
    finally:
        if shown:
            bar.stop()


def size(count: float) -> str:
    """Bytes for people: `7.01 MiB`."""
    if count < 1024:
        return f"{count:,.0f} B"
    power = min(int(math.log2(count)) // 10, len(_UNITS))
    return f"{count / 1024**power:,.2f} {_UNITS[power - 1]}"


def milliseconds(value: float) -> str:
    """`0.412 ms`, with three digits that count."""
    digits = 3 if value < 10 else 1 if value < 1000 else 0
    return f"{value:,.{digits}f} ms"


def plural(count: int, noun: str) -> str:
    """`1 launch`, `2 launches`."""
    ending = "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{count:,} {noun}" + ("" if count == 1 else ending)
