"""Numbered stages in a folder, and edited ones read back in.

With `AUTOFUSION_DUMP=DIR`, every stage of a compile is written to `DIR/NN-stage[-kernel].txt`. A file
`NN-stage[-kernel].override.txt` beside it takes that stage's place in the next compile: for the graph, and for each
kernel's schedule, tile program and LLVM text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from autofusion import config
from autofusion.errors import AutofusionError, FormatError

T = TypeVar("T")
NUMBERS = {"source": 0, "graph": 1, "groups": 2, "kernel": 3, "schedule": 4, "tile": 5, "llvm": 6, "plan": 7}


class Dump:
    """The dump folder of one compile; without a folder, everything passes through."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.overridden: list[str] = []

    def write(self, stage: str, text: str, kernel: str = "") -> None:
        """Write a stage."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file(stage, kernel, ".txt").write_text(text + "\n")

    def through(self, stage: str, value: T, parse: Callable[[str], T], kernel: str = "") -> T:
        """Write a stage's text; the value, or what its override reads as. Raises FormatError naming the file."""
        if self.folder is None:
            return value
        self.write(stage, str(value), kernel)
        override = self._file(stage, kernel, ".override.txt")
        if not override.exists():
            return value
        self.overridden.append(override.name)
        try:
            return parse(override.read_text())
        except AutofusionError as error:
            raise FormatError(f"{override}: {error}") from None

    def _file(self, stage: str, kernel: str, ending: str) -> Path:
        assert self.folder is not None
        return self.folder / (f"{NUMBERS[stage]:02d}-{stage}" + (f"-{kernel}" if kernel else "") + ending)


def from_environment() -> Dump:
    """The dump that `AUTOFUSION_DUMP` asks for."""
    return Dump(config.dump_dir())
