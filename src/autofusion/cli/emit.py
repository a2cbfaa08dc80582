"""`autofusion emit FILE --stage …`: the text of a stage, for this machine or another."""

from __future__ import annotations

import argparse

from autofusion import api
from autofusion.cli import command, files, inputs, models
from autofusion.cli.command import Arguments, Command
from autofusion.errors import ArgumentError


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    command.add_model(parser)
    parser.add_argument("--stage", required=True, choices=api.STAGES, help="what to print")
    parser.add_argument(
        "--cpu", metavar="NAME", help="another CPU: host, sse2, avx2, avx512, or ARCH:CPU such as aarch64:neoverse-v1"
    )
    command.add_target(parser)
    command.add_shape(parser)
    parser.add_argument("--unfused", action="store_true", help="every operator a group of its own")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write it (standard output)")


def run(arguments: Arguments) -> int:
    """Nothing is run: code of any machine can be looked at."""
    target = arguments.target
    if arguments.cpu is not None:
        if target != "cpu":
            raise ArgumentError(f"--cpu {arguments.cpu} with --target {target}: give one of the two")
        target = "cpu" if arguments.cpu == "host" else f"cpu:{arguments.cpu}"
    graph = models.read(arguments.file, arguments.shape)
    inputs.sizes_of(graph, arguments.shape)
    text = api.emit(graph, arguments.stage, target, arguments.numerics, not arguments.unfused)
    text = text.rstrip("\n") + "\n"
    if arguments.output is None:
        print(text, end="")
    else:
        files.write(arguments.output, text.encode())
    return 0


COMMAND = Command("emit", "print a stage: graph, kernel, tile, plan, llvm, asm …", configure, run)
