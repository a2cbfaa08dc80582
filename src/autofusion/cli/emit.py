"""`autofusion emit FILE --stage …`: the text of a stage, for this machine or another."""

from __future__ import annotations

import argparse
from pathlib import Path

from autofusion import api
from autofusion.cli import command, files, inputs, models
from autofusion.cli.command import Arguments, Command
from autofusion.errors import ArgumentError
from autofusion.superkernel.options import SuperKernelOptions


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    command.add_model(parser)
    parser.add_argument("--stage", required=True, choices=api.STAGES, help="what to print")
    parser.add_argument(
        "--cpu", metavar="NAME", help="another CPU: host, sse2, avx2, avx512, or ARCH:CPU such as aarch64:neoverse-v1"
    )
    command.add_target(parser)
    command.add_shape(parser)
    command.add_superkernel(parser)
    parser.add_argument("--unfused", action="store_true", help="every operator a group of its own")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write it (standard output)")
    parser.add_argument(
        "--out", metavar="DIR", help="a new folder for Ascend C: kernels, tiling data, launchers and build.sh"
    )


def run(arguments: Arguments) -> int:
    """Nothing is run: code of any machine can be looked at."""
    target = arguments.target
    if arguments.cpu is not None:
        if target != "cpu":
            raise ArgumentError(f"--cpu {arguments.cpu} with --target {target}: give one of the two")
        target = "cpu" if arguments.cpu == "host" else f"cpu:{arguments.cpu}"
    if arguments.out is not None:
        _check_out(arguments, target)
    graph = models.read(arguments.file, arguments.shape)
    inputs.sizes_of(graph, arguments.shape)
    superkernel = SuperKernelOptions.without(arguments.without)
    if arguments.out is not None:
        made = api.emit_files(graph, target, arguments.numerics, not arguments.unfused, superkernel)
        files.write_folder(arguments.out, made)
        print("\n".join(str(Path(arguments.out) / name) for name in made))
        return 0
    text = api.emit(graph, arguments.stage, target, arguments.numerics, not arguments.unfused, superkernel)
    text = text.rstrip("\n") + "\n"
    if arguments.output is None:
        print(text, end="")
    else:
        files.write(arguments.output, text.encode())
    return 0


def _check_out(arguments: Arguments, target: str) -> None:
    if arguments.output is not None:
        raise ArgumentError(f"--out {arguments.out} with --output {arguments.output}: give one of the two")
    if arguments.stage != "source" or api.find_target(target).family != "ascend":
        raise ArgumentError(
            f"--out {arguments.out}: a folder is written for --stage source and an Ascend target, "
            f"not for --stage {arguments.stage} and {target}"
        )


COMMAND = Command("emit", "print a stage: graph, kernel, tile, plan, llvm, asm …", configure, run)
