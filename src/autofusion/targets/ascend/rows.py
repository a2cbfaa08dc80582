"""Statements over rows that are few instructions however many rows there are: operations with one block a row, folds.

    Sub  v1[i0, i1] = p0[i0, i1] - v0[i0, 0]      ByRows<Minus, Along::ROW, Along::ROW, Along::BLOCK>(…)
    fold v0[i0, 0]  = max p0[i0, i1] along i1     FoldRows<Larger, true>(…)

The functions are in `prelude_rows`: an instruction's repeat is a vector (256 bytes) of each row, or the next vector of
one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autofusion import dims
from autofusion.dims import Dim, substitute, symbols
from autofusion.dtypes import DType
from autofusion.kernel.ir import Access, Axis, Fold, Literal, Operand, Scan
from autofusion.ops.folds import FOLDS
from autofusion.targets.ascend.dimension import coefficient_of, cxx, divides
from autofusion.targets.ascend.layout import Place, rounded

if TYPE_CHECKING:
    from autofusion.targets.ascend.vector import Vector

# By the type of the elements: what is one instruction of two operands and asks for nothing else.
OPERATIONS = {
    DType.FLOAT32: {"add": "Plus", "sub": "Minus", "mul": "Times", "div": "Over"},
    DType.INT32: {"add": "Plus", "sub": "Minus", "mul": "Times"},
}
SCANS = {"sum": "Plus", "prod": "Times", "max": "Larger", "min": "Smaller"}
REDUCTIONS = {"sum": "Plus", "max": "Larger", "min": "Smaller"}
VECTOR = 64  # float32 elements of a repeat
PARTS = {"Plus": 16 * VECTOR, "Larger": 255 * VECTOR, "Smaller": 255 * VECTOR}  # `MOST` of the functions
GROUP = 64  # rows that are folded at once
SCANNED = 2048  # elements of a row that are scanned at once, and as many again in other rows
LONGEST = 20000  # elements of a row beside which there is room for its scan
OFFSETS = 2048  # elements of a scan's work area that hold offsets
BLOCKS = "blocks"  # elements that stand for rows, each in a block
FOLDED = "folded"  # folds on their way into a state


@dataclass(frozen=True)
class Joined:
    """Axes that count on from one another in every address as one: i0<4, i1<8 of 8 * i0 + i1 is i1<32."""

    axes: tuple[Axis, ...]
    addresses: tuple[Dim, ...]
    parts: dict[str, tuple[str, ...]]  # the axes that one is made of


def join(axes: Sequence[Axis], addresses: Sequence[Dim]) -> Joined:
    kept = [axis for axis in axes if axis.extent != 1]
    zero = {axis.name: 0 for axis in axes if axis.extent == 1}
    found = [substitute(address, zero) for address in addresses]
    parts: dict[str, tuple[str, ...]] = {axis.name: (axis.name,) for axis in kept}
    for position in reversed(range(1, len(kept))):
        outer, inner = kept[position - 1 : position + 1]
        steps = [(coefficient_of(a, outer.name), coefficient_of(a, inner.name)) for a in found]
        if not isinstance(inner.extent, int):
            continue
        if all(far is not None and near is not None and far == inner.extent * near for far, near in steps):
            kept[position - 1 : position + 1] = [Axis(inner.name, dims.multiply(outer.extent, inner.extent))]
            found = [substitute(address, {outer.name: 0}) for address in found]
            parts[inner.name] = (*parts.pop(outer.name), *parts[inner.name])
    return Joined(tuple(kept), tuple(found), parts)


# -- two operands ----------------------------------------------------------------------------------------------------
def operate(v: Vector, target: Access, op: str, operands: Sequence[Operand], axes: Sequence[Axis], along: Axis) -> bool:
    """Whether the statement was written so. `along`: the axis along which the target is contiguous."""
    accesses = [target, *(o for o in operands if isinstance(o, Access))]
    places = [v.places[access.name] for access in accesses]
    name = OPERATIONS.get(places[0].dtype, {}).get(op)
    if name is None or len(accesses) != 3 or len({place.dtype for place in places}) != 1:
        return False
    order = [axis for axis in axes if axis is not along]
    joined = join([*order, along], [p.address(a.index) for p, a in zip(places, accesses, strict=True)])
    if not joined.axes or along.extent == 1:
        return False
    *outer, along = joined.axes

    def lying(row: Axis | None) -> list[tuple[str, int]]:
        return [_lying(p, a, along, row) for p, a in zip(places, joined.addresses, strict=True)]

    row = next((a for a in reversed(outer) if ("", 0) not in lying(a)), None)
    forms = [form for form, _ in lying(row)]
    pitches = [pitch for _, pitch in lying(row)]
    starts = [substitute(a, {x.name: 0 for x in (along, row) if x}) for a in joined.addresses]
    if (outer and row is None) or forms[0] != "ROW" or "" in forms or forms.count("PACKED") > 1:
        return False
    if not all(divides(p.lanes, start, v.steps) for p, start in zip(places, starts, strict=True)):
        return False
    count = cxx(row.extent if row else 1)
    tensors = list(map(_tensor, places, starts))
    filled = ""
    if "PACKED" in forms and row is not None:
        n = forms.index("PACKED")
        if places[n].name in v.stored:
            return False  # whole blocks are read
        v.needs.zeros = True
        v.needs.blocks = max(v.needs.blocks, 8 * rounded(most(places[n], accesses[n], joined.parts[row.name]), 8))
        blocks = BLOCKS if places[n].dtype is DType.FLOAT32 else f"{BLOCKS}.ReinterpretCast<int32_t>()"
        filled = f"FillBlocks({blocks}, {tensors[n]}, {count});"
        tensors[n], forms[n], pitches[n] = blocks, "BLOCK", 8
    kinds = ", ".join(f"Along::{form}" for form in forms)
    sizes = ", ".join((count, cxx(along.extent), *map(str, pitches)))
    with v._loops([a for a in outer if a is not row]):
        if filled:
            v.w.line(filled)
        v.w.line(f"ByRows<{name}, {kinds}>({', '.join(tensors)}, {sizes});")
    return True


def _tensor(place: Place, start: Dim) -> str:
    return f"{place.name}[{cxx(start)}]"


def _lying(place: Place, address: Dim, along: Axis, row: Axis | None) -> tuple[str, int]:
    """How an operand lies along its rows, and from one row to the next in elements: `PACKED` is an element a row."""
    factor = coefficient_of(address, along.name)
    pitch = coefficient_of(address, row.name) if row else 0
    if pitch is not None and pitch >= 0 and pitch % place.lanes == 0:
        if factor == 1:
            return "ROW", pitch
        if factor == 0 and place.spread:
            return "BLOCK", pitch
    return ("PACKED", 1) if (factor, pitch, place.spread) == (0, 1, False) else ("", 0)


def _pitches(joined: Joined, row: Axis, places: Sequence[Place]) -> tuple[int, ...] | None:
    """From one row to the next, in elements: whole blocks."""
    found = [coefficient_of(address, row.name) for address in joined.addresses]
    whole = [f for f, p in zip(found, places, strict=True) if f is not None and f >= 0 and f % p.lanes == 0]
    return tuple(whole) if len(whole) == len(found) else None


# -- scans -----------------------------------------------------------------------------------------------------------
def scan(v: Vector, line: Scan) -> bool:
    """Whether the statement was written as scans of contiguous rows."""
    if not isinstance(line.operand, Access) or line.fold not in SCANS:
        return False
    accesses = (line.target, line.operand)
    places = [v.places[access.name] for access in accesses]
    if {line.dtype, *(p.dtype for p in places)} not in ({DType.FLOAT32}, {DType.INT32}):
        return False
    along = next(a for a in line.axes if a.name == line.along)
    addresses = [p.address(a.index) for p, a in zip(places, accesses, strict=True)]
    if any(p.spread or coefficient_of(a, along.name) != 1 for p, a in zip(places, addresses, strict=True)):
        return False
    if any(axis.extent == 0 for axis in line.axes):
        return False
    joined = join([a for a in line.axes if a is not along], addresses)
    row = next((a for a in reversed(joined.axes) if _pitches(joined, a, places)), None)
    pitches = (row and _pitches(joined, row, places)) or (0, 0)
    starts = [substitute(a, {x.name: 0 for x in (along, row) if x}) for a in joined.addresses]
    if not all(divides(p.lanes, start, v.steps) for p, start in zip(places, starts, strict=True)):
        return False
    length = most(places[0], line.target, (along.name,))
    if length > LONGEST:
        return False
    width = rounded(min(length, SCANNED), VECTOR // 8)
    rows = most(places[0], line.target, joined.parts[row.name]) if row else 1
    group = max(1, min(rows, 2 * SCANNED // width)) if width < SCANNED else 1
    v.needs.reduce = max(v.needs.reduce, OFFSETS + 2 * group * width)
    v.needs.zeros = True  # what lies between rows is moved with them
    tensors = ", ".join(map(_tensor, places, starts))
    sizes = ", ".join(cxx(x) for x in (row.extent if row else 1, along.extent, *pitches))
    with v._loops([a for a in joined.axes if a is not row]):
        v.w.line(f"ScanRows<{SCANS[line.fold]}>({tensors}, {sizes}, reduction, {group}, {width});")
    return True


# -- folds -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Rows:
    """Rows to be folded: along which axis, over which loops; `pitch` from row to row, in elements."""

    name: str
    source: str
    along: Axis
    others: tuple[Axis, ...]  # reduced too
    row: Axis | None
    loops: tuple[Axis, ...]
    start: Dim
    goal: Dim
    pitch: int
    length: int  # of a row, at most
    count: int  # of rows, at most


def folded(v: Vector, line: Fold) -> Rows | None:
    """The rows of a fold; None where they are not contiguous float32."""
    if not isinstance(line.operand, Access) or line.fold not in REDUCTIONS:
        return None
    place, goal = v.places[line.operand.name], v.places[line.target.name]
    if not place.dtype is goal.dtype is line.dtype is DType.FLOAT32:
        return None
    if any(axis.extent == 0 for axis in (*line.axes, *line.reduced)):
        return None
    inside = join(line.reduced, [place.address(line.operand.index)])
    along = next((a for a in inside.axes if coefficient_of(inside.addresses[0], a.name) == 1), None)
    if along is None:
        return None
    start = substitute(inside.addresses[0], {along.name: 0})
    outside = join(line.axes, [start, goal.address(line.target.index)])
    step = goal.lanes if goal.spread else 1

    def is_row(axis: Axis) -> bool:
        away, here = (coefficient_of(address, axis.name) for address in outside.addresses)
        return away is not None and away > 0 and away % place.lanes == 0 and here == step

    row = next((axis for axis in reversed(outside.axes) if is_row(axis)), None)
    first: dict[str, Dim] = {row.name: 0} if row else {}
    start, result = (substitute(address, first) for address in outside.addresses)
    if not divides(place.lanes, start, v.steps):
        return None
    return Rows(
        REDUCTIONS[line.fold],
        place.name,
        along,
        tuple(a for a in inside.axes if a is not along),
        row,
        tuple(a for a in outside.axes if a is not row),
        start,
        result,
        (coefficient_of(outside.addresses[0], row.name) or 0) if row else 0,
        most(place, line.operand, inside.parts[along.name]),
        most(place, line.operand, outside.parts[row.name]) if row else 1,
    )


def most(place: Place, access: Access, axes: Sequence[str]) -> int:
    """What axes count to at most, by the extents of the tensor that they walk."""
    total = 1
    for axis in axes:
        found = [e for e, index in zip(place.extents, access.index, strict=True) if coefficient_of(index, axis)]
        total *= min(found, default=place.elements)
    return min(total, place.elements)


def fold(v: Vector, line: Fold, rows: Rows) -> None:
    """Into the target, or into `folded` and from there into the state."""
    goal = v.places[line.target.name]
    identity = Literal(line.dtype, FOLDS[line.fold].identity(line.dtype))
    if not rows.others and not line.accumulate:
        if symbols(rows.along.extent).isdisjoint(v.open):
            _written(v, rows, goal, goal.name)
            return
        with v.w.block(f"if ({cxx(rows.along.extent)} > 0)"):
            _written(v, rows, goal, goal.name)
        with v.w.block("else"):
            v._map(line.target, line.dtype, "copy", (identity,), line.axes)
        return
    v.places[FOLDED] = replace(goal, name=FOLDED)
    v.needs.folded = max(v.needs.folded, goal.elements)
    if not line.accumulate:
        v._map(line.target, line.dtype, "copy", (identity,), line.axes)
    step = FOLDS[line.fold].step
    with v._loops(rows.others), v._unless_empty(rows.along.extent):
        _written(v, rows, goal, FOLDED)
        v._map(line.target, line.dtype, step, (line.target, Access(FOLDED, line.target.index)), line.axes)


def _written(v: Vector, rows: Rows, goal: Place, name: str) -> None:
    group = _group(rows)
    v.needs.reduce = max(v.needs.reduce, room(rows.name, rows.length, group))
    v.needs.zeros = True  # whole blocks of folds are read
    source = f"{rows.source}[{cxx(rows.start)}]"
    count = rows.row.extent if rows.row else 1
    sizes = ", ".join(cxx(x) for x in (count, rows.along.extent, rows.pitch))
    blocks = "true" if goal.spread else "false"
    with v._loops(rows.loops):
        v.w.line(f"FoldRows<{rows.name}, {blocks}>({name}[{cxx(rows.goal)}], {source}, {sizes}, reduction, {group});")


def _group(rows: Rows) -> int:
    """Rows that are folded at once: as many as there are, at most GROUP, fewer where they are long."""
    parts = -(-rows.length // PARTS[rows.name])
    return min(rounded(rows.count, 8), max(8, GROUP // parts // 8 * 8)) if rows.count > 1 else 1


def room(name: str, length: int, group: int) -> int:
    """Elements that `FoldRows` needs: a sum, the folds of a group, and vectors of each row."""
    vectors = 0
    while length > VECTOR:
        length = -(-length // PARTS[name]) * VECTOR
        vectors += group * length
    return 8 + rounded(group, 8) + max(vectors, 2 * VECTOR)
