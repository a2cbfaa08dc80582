"""`autofusion ops`: the op table, a row a line."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from autofusion import dtypes
from autofusion.cli import command, terminal
from autofusion.cli.command import Arguments, Command
from autofusion.dtypes import DType
from autofusion.errors import ArgumentError
from autofusion.ops import TABLE, Kind, Op
from autofusion.ops.table import REQUIRED

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
    command.add_json(parser)


def run(arguments: Arguments) -> int:
    """Print the rows, those of one kind together."""
    if arguments.kind is not None and arguments.kind not in list(Kind):
        raise ArgumentError(f"--kind {arguments.kind}: expected one of {', '.join(Kind)}")
    rows = [row for kind in Kind for row in TABLE if row.kind is kind and arguments.kind in (None, kind.value)]
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
