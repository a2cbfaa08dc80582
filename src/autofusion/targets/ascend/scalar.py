"""Statements by the scalar unit, one element at a time: what no vector instruction addresses or computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autofusion import dims
from autofusion.dims import Expr
from autofusion.dtypes import DType
from autofusion.errors import TargetError
from autofusion.kernel.ir import Access, Fold, Gather, Literal, Operand, Scan
from autofusion.ops.folds import FOLDS
from autofusion.targets.ascend.dimension import cxx

TYPES = {
    DType.BOOL: "bool",
    DType.FLOAT16: "float",
    DType.BFLOAT16: "float",
    DType.FLOAT32: "float",
    **{t: f"{t.value}_t" for t in DType if t.is_integer},
}
STORED = {
    DType.BOOL: "uint8_t",
    DType.FLOAT16: "half",
    DType.BFLOAT16: "bfloat16_t",
    DType.FLOAT32: "float",
    **{t: f"{t.value}_t" for t in DType if t.is_integer},
}

# {0}, {1}, {2}: operands in their scalar types; {T}: the result's; {U}: the unsigned type of the same width.
EXPRESSIONS = {
    "copy": "static_cast<{T}>({0})",
    "cast": "static_cast<{T}>({0})",
    "add": "Wrapped<{T}>(Bits({0}) + Bits({1}))",
    "sub": "Wrapped<{T}>(Bits({0}) - Bits({1}))",
    "mul": "Wrapped<{T}>(Bits({0}) * Bits({1}))",
    "neg": "Wrapped<{T}>(0 - Bits({0}))",
    "abs": "Magnitude({0})",
    "int_floor_divide": "FlooredQuotient({0}, {1})",
    "int_remainder": "FlooredRemainder({0}, {1})",
    "maximum": "({0} > {1} ? {0} : {1})",
    "minimum": "({0} < {1} ? {0} : {1})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "logical_and": "({0} && {1})",
    "logical_or": "({0} || {1})",
    "logical_xor": "({0} != {1})",
    "logical_not": "(!{0})",
    "bitwise_and": "static_cast<{T}>({0} & {1})",
    "bitwise_or": "static_cast<{T}>({0} | {1})",
    "bitwise_xor": "static_cast<{T}>({0} ^ {1})",
    "bitwise_not": "static_cast<{T}>(~{0})",
    "shift_left": "ShiftedLeft({0}, {1})",
    "shift_right": "ShiftedRight({0}, {1})",
    "where": "({0} ? {1} : {2})",
}
FLOATING = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "neg": "(-{0})",
    "maximum": "GreatestNumber({0}, {1})",
    "minimum": "LeastNumber({0}, {1})",
    **{op: EXPRESSIONS[op] for op in ("copy", "eq", "ne", "lt", "le", "gt", "ge", "where")},
}


def as_float(element: str) -> str:
    """An element as a C++ `float`."""
    return f"ToFloat({element})"


def read(places: Any, operand: Operand) -> str:
    """An operand's element in its scalar type."""
    if isinstance(operand, Literal):
        value = operand.value
        text = cxx(value) if isinstance(value, Expr) else constant(operand.dtype, value)
        return f"static_cast<{TYPES[operand.dtype]}>({text})"
    place = places.places[operand.name]
    element = f"{place.name}.GetValue({cxx(place.address(operand.index))})"
    if place.dtype is DType.BOOL:
        return f"({element} != 0)"
    return as_float(element) if place.dtype.is_reduced else element


def constant(dtype: DType, value: Any) -> str:
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype.is_float:
        number = float(value)
        if number != number:
            return "QUIET_NAN"
        if number in (float("inf"), float("-inf")):
            return "-INFINITE" if number < 0 else "INFINITE"
        return f"{number.hex()}f"
    return f"{int(value)}LL" if int(value) > -(1 << 63) else "INT64_MIN"


def write(places: Any, target: Access, value: str) -> str:
    place = places.places[target.name]
    address = cxx(place.address(target.index))
    stored = STORED[place.dtype]
    made = f"FromFloat<{stored}>({value})" if place.dtype.is_reduced else f"static_cast<{stored}>({value})"
    if place.spread:
        return f"Fill({place.name}, {address}, {made});"
    return f"{place.name}.SetValue({address}, {made});"


def compute(dtype: DType, op: str, types: Sequence[DType], values: Sequence[str]) -> str:
    table = FLOATING if any(t.is_float for t in types) else EXPRESSIONS
    if op == "cast":
        return convert(types[0], dtype, values[0])
    if op not in table:
        raise TargetError(f"{op} on {', '.join(types)}: neither the vector nor the scalar unit has it")
    return table[op].format(*values, T=TYPES[dtype])


def convert(source: DType, goal: DType, value: str) -> str:
    if goal is DType.BOOL:
        return f"({value} != 0)"
    if source.is_float and not goal.is_float:
        return f"Truncated<{TYPES[goal]}>({value})"
    return f"static_cast<{TYPES[goal]}>({value})"


def assign(places: Any, target: Access, dtype: DType, op: str, operands: Sequence[Operand]) -> str:
    types = [o.dtype if isinstance(o, Literal) else places.places[o.name].dtype for o in operands]
    return write(places, target, compute(dtype, op, types, [read(places, o) for o in operands]))


def fold(places: Any, line: Fold) -> list[str]:
    """A state in a scalar, over all folded axes."""
    row = FOLDS[line.fold]
    before = (
        read(places, line.target)
        if line.accumulate
        else f"static_cast<{TYPES[line.dtype]}>(" + constant(line.dtype, row.identity(line.dtype)) + ")"
    )
    lines = ["{", f"    {TYPES[line.dtype]} state = {before};"]
    for depth, axis in enumerate(line.reduced):
        head = f"for (int64_t {axis.name} = 0; {axis.name} < {cxx(axis.extent)}; ++{axis.name}) {{"
        lines.append("    " * (depth + 1) + head)
    inner = "    " * (len(line.reduced) + 1)
    element = read(places, line.operand)
    source = line.operand.dtype if isinstance(line.operand, Literal) else places.places[line.operand.name].dtype
    if source is not line.dtype:
        element = convert(source, line.dtype, element)
    value = compute(line.dtype, row.step, [line.dtype] * 2, ["state", element])
    lines.append(f"{inner}state = {value};")
    for depth in reversed(range(len(line.reduced))):
        lines.append("    " * (depth + 1) + "}")
    return [*lines, f"    {write(places, line.target, 'state')}", "}"]


def scan(places: Any, line: Scan, before: Access) -> list[str]:
    row = FOLDS[line.fold]
    source = line.operand.dtype if isinstance(line.operand, Literal) else places.places[line.operand.name].dtype
    element = (
        convert(source, line.dtype, read(places, line.operand))
        if source is not line.dtype
        else read(places, line.operand)
    )
    value = compute(line.dtype, row.step, [line.dtype] * 2, [read(places, before), element])
    return [
        f"if ({line.along} == 0) {{",
        f"    {write(places, line.target, element)}",
        "} else {",
        f"    {write(places, line.target, value)}",
        "}",
    ]


def gather(places: Any, line: Gather, check: int) -> list[str]:
    """One element at a run-time position; one outside counts from the end, or is clamped and recorded."""
    place = places.places[line.source.name]
    index = list(line.source.index)
    index[line.axis] = dims.symbol("position")
    address = cxx(place.address(index))
    element = f"{place.name}.GetValue({address})"
    if place.dtype is DType.BOOL:
        element = f"({element} != 0)"
    elif place.dtype.is_reduced:
        element = as_float(element)
    position = read(places, line.position)
    where = f"firstCheck + {check}, {cxx(line.ordinal)}"
    return [
        "{",
        *(f"    {each}" for each in checked(line, position, where)),
        f"    {write(places, line.target, element)}",
        "}",
    ]


def checked(line: Gather, asked: str, where: str) -> list[str]:
    """`position`: what is asked for, counted from the front. Where a negative one does not count from the end, it
    becomes one past it. `where`: the check and the position's ordinal."""
    extent = cxx(line.extent)
    if line.wraps:
        return ["const int64_t position =", f"    failures->Checked({asked}, {extent}, {where});"]
    return [
        f"const int64_t asked = {asked};",
        f"const int64_t position = failures->Checked(asked < 0 ? {extent} : asked, {extent}, {where});",
    ]
