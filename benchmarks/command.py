"""The commands' parser: what is wrong is said in one line."""

from __future__ import annotations

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """`Parser("run", what it does)`; exits with 2 and one line on standard error."""

    def __init__(self, command: str, description: str | None, epilog: str | None = None) -> None:
        super().__init__(
            prog=f"python -m benchmarks {command}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")
