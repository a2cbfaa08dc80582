"""`autofusion ops`: the op table, a row a line."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from autofusion import api, dtypes
from autofusion.cli import command, terminal
from autofusion.cli.command import Arguments, Command
from autofusion.dtypes import DType
from autofusion.errors import ArgumentError
from autofusion.ops import TABLE, Kind, Op
from autofusion.ops.table import REQUIRED
from autofusion.target import Target
from autofusion.targets.ascend import support
from autofusion.targets.ascend.support import Way

_SETS = {
    tuple(DType): "all",
    dtypes.FLOATS: "floats",
    dtypes.INTEGERS: "integers",
    (DType.BOOL, *dtypes.INTEGERS): "bool, integers",
    (*dtypes.INTEGERS, *dtypes.FLOATS): "numbers",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.add_argument("--kind", metavar="KIND", help=f"only these: {', '.join(Kind)}")
    parser.add_argument("--target", metavar="NAME", help="how an Ascend target computes each, by element type")
    command.add_json(parser)


def run(arguments: Arguments) -> int:
    """Print the rows, those of one kind together."""
    if arguments.kind is not None and arguments.kind not in list(Kind):
        raise ArgumentError(f"--kind {arguments.kind}: expected one of {', '.join(Kind)}")
    rows = [row for kind in Kind for row in TABLE if row.kind is kind and arguments.kind in (None, kind.value)]
    if arguments.target is not None:
        return run_support(rows, api.find_target(arguments.target), arguments.json)
    if arguments.json:
        terminal.print_json([as_json(row) for row in rows])
        return 0
    made = terminal.table(
        None, "name", "kind", "inputs", "types", "attributes", "lowered", "meaning", wide=("meaning",)
    )
    for name, width in (("types", 22), ("attributes", 26)):
        column = next(c for c in made.columns if c.header == name)
        column.no_wrap, column.max_width = False, width
    for row in rows:
        lowered = "" if row.lower is None else "yes"
        made.add_row(
            row.name, row.kind.value, arity(row), element_types(row), ", ".join(_defaults(row)), lowered, row.doc
        )
    console = terminal.console()
    console.print(made)
    lowered_count = sum(row.lower is not None for row in rows)
    console.print(f"{len(rows)} operators, {lowered_count} of them lowered to others")
    return 0


LETTERS = {Way.NATIVE: "N", Way.COMPOSED: "C", Way.CAST: "F", Way.SCALAR: "S", Way.NOT: "-"}
LEGEND = (
    "N native: one instruction of the vector or the matrix unit, or none. C composed of several. F cast: as float32 or "
    "int32, converted on the way in and out. S scalar unit, an element at a time. - not: the host computes it between "
    "launches. A row is as good as the worst of its primitives; operands are contiguous, folds run along the last axis."
)


def run_support(rows: Sequence[Op], target: Target, as_json: bool) -> int:
    """How a target computes each row, by element type. Raises ArgumentError for CPUs."""
    if target.family != "ascend":
        raise ArgumentError(f"--target {target.name}: the matrix is of Ascend targets; a CPU compiles every primitive")
    matrix = support.matrix(target, rows)
    best = Counter(each.best for each in matrix)
    if as_json:
        ways = [
            {
                "name": each.row.name,
                "kind": each.row.kind.value,
                "best": each.best.value,
                "ways": {dtype.value: found.value for dtype, found in each.ways.items()},
            }
            for each in matrix
        ]
        terminal.print_json({"target": target.name, "best": {w.value: best[w] for w in Way}, "rows": ways})
        return 0
    console = terminal.console()
    short = {dtype: _short(dtype) for dtype in DType}
    made = terminal.table(None, "name", "kind", *short.values())
    for each in matrix:
        letters = (LETTERS[each.ways[dtype]] if dtype in each.ways else "" for dtype in short)
        made.add_row(each.row.name, each.row.kind.value, *letters)
    console.print(made)
    console.print(LEGEND)
    counted = ", ".join(f"{best[found]} {found.value}" for found in Way)
    console.print(f"{len(matrix)} operators on {target.name}, each by its best type: {counted}")
    return 0


def _short(dtype: DType) -> str:
    """`f32`, `bf16`, `u8`."""
    for long, letter in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i")):
        if dtype.value.startswith(long):
            return letter + dtype.value.removeprefix(long)
    return dtype.value


def arity(row: Op) -> str:
    """`2`, `1 to 3`, `1 or more`."""
    if not isinstance(row.arity, tuple):
        return str(row.arity)
    least, most = row.arity
    return f"{least} or more" if most is None else f"{least} to {most}"


def element_types(row: Op) -> str:
    """A set's name, or the types."""
    by_members = {frozenset(members): name for members, name in _SETS.items()}
    return by_members.get(frozenset(row.dtypes), ", ".join(row.dtypes))


def _defaults(row: Op) -> list[str]:
    """`axis=-1`; a name alone has to be given."""
    return [name if value is REQUIRED else f"{name}={json.dumps(value)}" for name, value in row.attributes.items()]


def as_json(row: Op) -> dict[str, Any]:
    """A row as data; `attributes` holds defaults, and `required` the names that have none."""
    required = [name for name, value in row.attributes.items() if value is REQUIRED]
    return {
        "name": row.name,
        "kind": row.kind.value,
        "arity": list(row.arity) if isinstance(row.arity, tuple) else row.arity,
        "dtypes": [dtype.value for dtype in row.dtypes],
        "primitive": row.lower is None,
        "attributes": {n: v for n, v in row.attributes.items() if n not in required},
        "required": required,
        "tolerance": row.tolerance if math.isfinite(row.tolerance) else None,
        "doc": row.doc,
    }


COMMAND = Command("ops", "the operators: kinds, element types, attributes, meaning", configure, run)
