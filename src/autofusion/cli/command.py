"""What a command is, and the arguments that several of them take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, fields

from autofusion.superkernel.options import SuperKernelOptions

Arguments = argparse.Namespace


@dataclass(frozen=True)
class Command:
    """One word of the command line. `run` gives the exit code: 0, or 1 where a check failed."""

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Arguments], int]


def add_model(parser: argparse.ArgumentParser) -> None:
    """FILE, and how it is compiled."""
    parser.add_argument("file", metavar="FILE", help="an op-sequence (.json) or an ONNX model (.onnx)")
    parser.add_argument("--numerics", default="default", metavar="MODE", help="default or strict")


def add_target(parser: argparse.ArgumentParser) -> None:
    """The machine by name; `autofusion targets` lists them."""
    parser.add_argument("--target", default="cpu", metavar="NAME", help="a machine of `autofusion targets` (cpu)")


def add_superkernel(parser: argparse.ArgumentParser) -> None:
    """What is switched off when groups are packed into launches."""
    names = ", ".join(field.name.replace("_", "-") for field in fields(SuperKernelOptions))
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help=f"{names}; repeatable")


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Sizes of open dimensions."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=SIZES",
        help="an input's shape (x=1,2048) or an open dimension's size (n=128); repeatable",
    )


def add_input(parser: argparse.ArgumentParser) -> None:
    """What the model is run with."""
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE", help="an input from a .npy file; repeatable"
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of the random inputs (0)")


def add_json(parser: argparse.ArgumentParser) -> None:
    """One JSON object instead of tables."""
    parser.add_argument("--json", action="store_true", help="print JSON for machines")


def positive(text: str) -> int:
    """An argument that counts something. Raises ArgumentTypeError."""
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a positive integer")
    return int(text)


def seed(text: str) -> int:
    """A seed of NumPy's generator. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) >= 1 << 32:
        raise argparse.ArgumentTypeError(f"{text!r}: expected an integer from 0 to 2**32-1")
    return int(text)
