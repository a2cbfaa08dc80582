"""A running fold as loops: element by element, its state in a register."""

from __future__ import annotations

from collections.abc import Mapping

from autofusion.dtypes import DType
from autofusion.kernel.ir import Scan
from autofusion.ops.folds import FOLDS
from autofusion.targets.cpu.clusters import Cluster
from autofusion.targets.cpu.emit import Emitter
from autofusion.targets.cpu.lanes import REGISTER, rounded
from autofusion.targets.cpu.loops import Memory, Nest, Point
from autofusion.targets.cpu.primitives import PRIMITIVES, convert
from autofusion.targets.vecmath.values import V


def scan(e: Emitter, memory: Memory, statement: Scan, values: Mapping[str, V]) -> None:
    """A running fold, element by element along its axis; float states are kept in double precision."""
    state_type = DType.FLOAT64 if statement.dtype is DType.FLOAT32 else statement.dtype
    free = [a for a in statement.axes if a.name != statement.along]
    along = next(a for a in statement.axes if a.name == statement.along)
    nest = Nest(e, memory, Cluster((), frozenset(), [statement]), values, 1)
    with nest._loops(free):
        slot = e.slot(REGISTER[state_type])
        e.set(slot, e.const(REGISTER[state_type], FOLDS[statement.fold].identity(state_type)))
        with nest._loops([along]):
            point = Point(nest.values, 1, None)
            value = nest._operand(statement.operand, point)
            value = convert(e, value, nest._source_type(statement.operand), state_type)
            step = PRIMITIVES[FOLDS[statement.fold].step]
            state = step(e, [e.get(slot, value.type), value], state_type, state_type)
            e.set(slot, state)
            result = rounded(e, convert(e, state, state_type, statement.dtype), statement.dtype)
            nest._store(memory.ref(statement.target), result, point)
