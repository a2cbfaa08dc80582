"""Contractions: the roles of their axes, and which kernel computes them: a hand-tuned one, or register tiles."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from enum import Enum

from autofusion.dims import Dim, Expr, coefficient_of, divisors, substitute, symbol
from autofusion.kernel.ir import Axis, Contract
from autofusion.ops.library import LIBRARY
from autofusion.target import Target
from autofusion.targets.cpu.dimension import emit_dim
from autofusion.targets.cpu.emit import Emitter
from autofusion.targets.cpu.gemm import STREAMED, Gemm
from autofusion.targets.cpu.lanes import MEMORY
from autofusion.targets.cpu.loops import Memory, Nest
from autofusion.targets.cpu.roles import Panels, Roles
from autofusion.targets.cpu.tiles import Epilogue
from autofusion.targets.cpu.turned import Turned, turns
from autofusion.targets.vecmath.values import V


def _classify(memory: Memory, statement: Contract, target: Target) -> Roles | None:
    """Roles of the axes; None where the result has no contiguous axis, or an access is not linear, but for an axis that
    an operand has in panels: the right one's columns, the left one's depth."""
    refs = [memory.ref(a) for a in (statement.left, statement.right, statement.target)]
    axes = [a for a in statement.axes if a.extent != 1]
    steps = {a.name: [coefficient_of(r.offset, a.name) for r in refs] for a in (*axes, *statement.reduced)}
    cuts: dict[tuple[str, int], Panels] = {}
    for name, number in [(name, n) for name, found in steps.items() for n in range(3) if found[n] is None]:
        panels = panels_of(refs[number].offset, name)
        if panels is None:
            return None
        cuts[name, number] = panels
        steps[name][number] = 1
    contiguous = next((a for a in axes if steps[a.name][2] == 1 and 0 in (steps[a.name][0], steps[a.name][1])), None)
    if contiguous is None or steps[contiguous.name][:2] == [0, 0]:
        return None
    side = 1 if steps[contiguous.name][1] == 0 else 0  # of the left operand
    rows = [a for a in axes if a is not contiguous and steps[a.name][1 - side] == 0 and steps[a.name][side] != 0]
    row = max(rows, key=lambda a: a.extent if isinstance(a.extent, int) else 1 << 30, default=None)
    others = tuple(a for a in axes if a is not contiguous and a is not row)
    depth = max(statement.reduced, key=lambda a: a.extent if isinstance(a.extent, int) else 1 << 30)
    taps = tuple(a for a in statement.reduced if a is not depth)
    lanes = target.lane_bytes // statement.dtype.size  # no vector may reach into the next panel
    if row is not None and (turned := cuts.pop((row.name, side), None)) is not None:
        found = Roles(contiguous, row, depth, taps, others, refs[1 - side], refs[side], refs[2], turned, turned=True)
        return None if cuts or turned.width % lanes else found
    columns, cut = cuts.pop((contiguous.name, 1 - side), None), cuts.pop((depth.name, side), None)
    if cuts or any(panels is not None and panels.width % lanes for panels in (columns, cut)):
        return None
    roles = Roles(row, contiguous, depth, taps, others, refs[side], refs[1 - side], refs[2], columns, cut is not None)
    if row is not None and turns(roles, statement, target):
        return Roles(contiguous, row, depth, taps, others, refs[1 - side], refs[side], refs[2], turned=True)
    return roles


def panels_of(offset: Dim, axis: str) -> Panels | None:
    """The panels that an axis is cut into: `width` neighbours, then a step. None where it is not read so."""
    widths = divisors(offset, axis)
    if len(widths) != 1:
        return None
    width = widths.pop()
    number, within = symbol("panel"), symbol("column")
    cut = substitute(offset, {axis: number * width + within}, {"column": width})
    if coefficient_of(cut, "column") != 1 or not isinstance(step := coefficient_of(cut, "panel"), int | Expr):
        return None
    return Panels(width, step)


class Emitted(Enum):
    """What of a contraction and its epilogue has been written."""

    NOTHING = "it has no shape for register tiles and must be written as a fold"
    PRODUCT = "the contraction"
    ALL = "the epilogue, too"


def emit(
    e: Emitter,
    memory: Memory,
    statement: Contract,
    values: Mapping[str, V],
    target: Target,
    epilogue: Epilogue | None = None,
) -> Emitted:
    """Write a contraction and, where it goes with register tiles, what follows it."""
    if any(a.extent == 0 for a in statement.axes):
        return Emitted.ALL  # no element to write
    if statement.library and _call_library(e, memory, statement, values):
        return Emitted.PRODUCT
    shape = _classify(memory, statement, target)
    if shape is None:
        return Emitted.NOTHING
    few = shape.rows is None or (isinstance(shape.rows.extent, int) and shape.rows.extent <= STREAMED)
    gathers = shape.panels is None and shape.step(shape.right, shape.columns) != 1
    if few and gathers and not shape.turned and not shape.taps:
        return Emitted.NOTHING  # dot products along the contiguous depth are better than gathered columns
    if epilogue is not None:
        axis = Nest(e, memory, epilogue.cluster, values, target.lane_bytes).vector_axis
        epilogue = epilogue if axis == shape.contiguous else None
    kernel = Turned if shape.turned else Gemm
    kernel(e, memory, statement, shape, dict(values), target, epilogue).emit()
    return Emitted.PRODUCT if epilogue is None else Emitted.ALL


def _call_library(e: Emitter, memory: Memory, statement: Contract, values: Mapping[str, V]) -> bool:
    """Call a hand-tuned kernel on the tile; False where an operand is not addressed linearly."""
    refs = [memory.ref(a) for a in (statement.left, statement.right, statement.target)]
    axes = [*statement.axes, *statement.reduced]
    steps = {a.name: [coefficient_of(r.offset, a.name) for r in refs] for a in axes}
    if any(step is None for found in steps.values() for step in found) or len(statement.reduced) != 1:
        return False
    depth = statement.reduced[0]
    rows = [a for a in statement.axes if a.extent != 1 and steps[a.name][0] != 0 and steps[a.name][1] == 0]
    columns = [a for a in statement.axes if a.extent != 1 and steps[a.name][1] != 0 and steps[a.name][0] == 0]
    row, column = rows[-1] if rows else None, columns[-1] if columns else None
    at = dict(values)
    tuned = LIBRARY.get(statement.library)
    e.module.globals[tuned.name] = tuned.source
    with ExitStack() as stack:
        for axis in statement.axes:
            if axis is not row and axis is not column:
                end = emit_dim(e, axis.extent, at)
                at[axis.name] = stack.enter_context(e.loop(e.i64(0), end, e.i64(1)))
        at |= {a.name: e.i64(0) for a in (row, column, depth) if a is not None}

        def step(operand: int, axis: Axis | None) -> V:
            found = steps[axis.name][operand] if axis is not None else 0
            return emit_dim(e, found if found is not None else 0, values)

        def extent(axis: Axis | None) -> V:
            return emit_dim(e, axis.extent, values) if axis is not None else e.i64(1)

        left, right, goal = (e.gep(r.base, emit_dim(e, r.offset, at), MEMORY[r.dtype]) for r in refs)
        arguments = [left, step(0, row), step(0, depth), right, step(1, depth), step(1, column)]
        arguments += [goal, step(2, row), step(2, column), extent(row), extent(column), extent(depth)]
        arguments.append(e.i64(int(statement.accumulate)))
        e.line(f"call void @{tuned.name}({', '.join(map(str, arguments))})")
    return True
