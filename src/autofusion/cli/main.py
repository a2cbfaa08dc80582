"""`autofusion COMMAND …`: takes the arguments apart, runs the command, turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from autofusion.cli import cache, emit, env, explain, ops, partition, run, targets, terminal
from autofusion.cli.command import Command
from autofusion.errors import AutofusionError
from autofusion.version import __version__

COMMANDS: tuple[Command, ...] = (
    run.COMMAND,
    explain.COMMAND,
    partition.COMMAND,
    emit.COMMAND,
    ops.COMMAND,
    targets.COMMAND,
    env.COMMAND,
    cache.COMMAND,
)
DESCRIPTION = "Fuses tensor operators automatically and runs the result in one launch."
FAILED, INTERRUPTED = 2, 130


class Parser(argparse.ArgumentParser):
    """Errors on one line, like all others."""

    def error(self, message: str) -> NoReturn:
        terminal.say("error", f"{message} (see `{self.prog} --help`)")
        sys.exit(FAILED)


def parser() -> argparse.ArgumentParser:
    """All commands."""
    debug = Parser(add_help=False)
    debug.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    made = Parser(prog="autofusion", description=DESCRIPTION, parents=[debug], allow_abbrev=False)
    made.add_argument("--version", action="version", version=f"autofusion {__version__}")
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for command in COMMANDS:
        each = commands.add_parser(
            command.name, help=command.help, description=command.help, parents=[debug], allow_abbrev=False
        )
        command.configure(each)
        each.set_defaults(run=command.run)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 where a check failed, 2 for an error, 130 for Ctrl-C."""
    arguments = parser().parse_args(argv)
    debug = getattr(arguments, "debug", False)
    try:
        with terminal.one_line_warnings():
            code: int = arguments.run(arguments)
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has gone (`| head`). Python's own flush at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        terminal.say("error", describe(error))
        return FAILED


def describe(error: Exception) -> str:
    """The error in words. Ours say what is wrong; others are faults of this program, and named so."""
    if isinstance(error, AutofusionError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"out of memory: {error}" if str(error) else "out of memory"
    if isinstance(error, OSError):
        return f"{error.filename or 'input or output'}: {error.strerror or error}"
    return f"internal fault, {type(error).__name__}: {error} (--debug shows where)"


if __name__ == "__main__":
    sys.exit(main())
