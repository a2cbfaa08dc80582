"""The cube's share of a program as Ascend C: tiles to L1 in fractals, to L0, products, and out through Fixpipe.

Queues order the pipes: A1, B1 and C1 from global memory to L1, A2 on to L0A, CO1 from the products to Fixpipe. The
right operand and the bias (B2, C2) come before the left operand is enqueued, on the same pipe: one wait is for all
three, and of their queues only AllocTensor and FreeTensor are used. Inside a tile everything is in fractals of 16 rows
by 32 bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autofusion import dims
from autofusion.dims import Dim, Expr, substitute, symbols
from autofusion.dtypes import DType
from autofusion.errors import TargetError
from autofusion.kernel.ir import Access, Axis, Contract, Copy, Literal
from autofusion.target import GM
from autofusion.targets.ascend.dimension import cxx
from autofusion.targets.ascend.layout import Place, rounded, slot_pitch
from autofusion.targets.ascend.vector import ELEMENTS, Writer
from autofusion.tile.ir import Let, Loop, Parallel, Program, Put, statements

FRACTAL_ROWS = 16
PRODUCTS = {  # the type of the operands -> of the accumulator
    DType.FLOAT16: DType.FLOAT32,
    DType.BFLOAT16: DType.FLOAT32,
    DType.FLOAT32: DType.FLOAT32,
    DType.INT8: DType.INT32,
}
QUEUES = {"left1": "A1", "left2": "A2", "right1": "B1", "right2": "B2", "bias1": "C1", "bias2": "C2", "result": "CO1"}


@dataclass
class CubeBudget:
    """Bytes of a tile by queue."""

    tiles: dict[str, int] = field(default_factory=dict)

    def need(self, queue: str, size: int) -> None:
        self.tiles[queue] = max(self.tiles.get(queue, 0), size)

    def merge(self, other: CubeBudget) -> None:
        for queue, size in other.tiles.items():
            self.need(queue, size)


@dataclass(frozen=True)
class _Operand:
    """A side of a contraction: its buffers on the way, and the axes of its rows (or columns) and of the depth."""

    side: str  # left or right
    first: str  # in L1
    second: str  # in L0
    outer: str  # the axis that is not folded; "" for one row
    depth: str


def pitch_of(address: Dim, axis: str) -> Dim | None:
    """How far apart neighbours along an axis are; None where the address is not linear in it."""
    moved = dims.add(substitute(address, {axis: dims.symbol(axis) + 1}), dims.multiply(address, -1))
    return None if axis in symbols(moved) else moved


class Cube:
    """Writes the body of the cube's unit. Raises TargetError for what it has no instructions for."""

    def __init__(
        self,
        writer: Writer,
        program: Program,
        places: Mapping[str, Place],
        parallel: Parallel,
        early: Mapping[str, str] | None = None,
    ) -> None:
        """`early`: buffers in L1 whose first tile may be on its way -> the flag that says so."""
        self.early = early or {}
        self.w = writer
        self.program = program
        self.places = places
        self.budget = CubeBudget()
        self.contracts = [s for s in statements(parallel.body) if isinstance(s, Contract)]
        self.copies = {s.target.name: s for s in statements(parallel.body) if isinstance(s, Copy)}
        self.operands: dict[str, _Operand] = {}
        self.results: dict[str, Contract] = {}
        self.turned: set[str] = set()  # operands whose rows lie along the other axis, as buffers in L1
        for statement in self.contracts:
            self._know(statement)

    def _know(self, statement: Contract) -> None:
        depth = statement.reduced[0].name if statement.reduced else ""
        rows, columns = (str(i) if isinstance(i, Expr) else "" for i in statement.target.index[-2:])
        for side, access, outer in (("left", statement.left, rows), ("right", statement.right, columns)):
            source = self.copies[access.name].source
            if not isinstance(source, Access):
                raise TargetError("a contraction with a constant operand is not generated for this target yet")
            made = _Operand(side, source.name, access.name, outer, depth)
            self.operands[source.name] = self.operands[access.name] = made
            dtype = self.program.buffers[access.name].dtype
            if PRODUCTS.get(dtype) is not statement.dtype:
                raise TargetError(f"a contraction of {dtype} to {statement.dtype} is not generated for this target yet")
        self.results[statement.target.name] = statement

    # -- lines -------------------------------------------------------------------------------------------------------
    def body(self, body: Sequence[Any]) -> None:
        for line in body:
            if isinstance(line, Let):
                self.w.line(f"const int64_t {line.name} = {cxx(line.value)};")
            elif isinstance(line, Loop):
                if line.end == 0:
                    raise TargetError("a contraction over nothing is not generated for this target")
                head = f"for (int64_t {line.var} = {cxx(line.begin)}; {line.var} < {cxx(line.end)}; "
                with self.w.block(head + (f"++{line.var})" if line.step == 1 else f"{line.var} += {line.step})")):
                    self.body(line.body)
            elif isinstance(line, Copy):
                self._copy(line)
            elif isinstance(line, Contract):
                self._multiply(line)
            elif isinstance(line, Put):
                self._put(line)
            else:
                raise TargetError(f"the cube has no {type(line).__name__}")

    def _space(self, name: str) -> str:
        return self.program.space_of(name)

    def _copy(self, line: Copy) -> None:
        target = self._space(line.target.name)
        if target == GM:
            self._drain(line)
        elif target == "L0C":
            self._start(line)
        elif target == "BT":
            self._bias_table(line)
        elif target == "L1":
            self._to_l1(line)
        else:
            self._to_l0(line)

    def _extent(self, line: Copy, axis: str) -> Dim:
        return next((a.extent for a in line.axes if a.name == axis), 1)

    def _bound(self, name: str, line: Copy, axis: str) -> int:
        """The most that an axis of a buffer can be."""
        for extent, index in zip(self.program.buffers[name].shape, line.target.index, strict=True):
            if str(index) == axis:
                assert isinstance(extent, int)
                return extent
        return 1

    def first(self, body: Sequence[Any], buffers: Collection[str]) -> None:
        """The copies that fill these buffers, and nothing else."""
        for line in body:
            if isinstance(line, Copy) and line.target.name in buffers:
                self._to_l1(line)

    # -- global memory -> L1 -----------------------------------------------------------------------------------------
    def _to_l1(self, line: Copy) -> None:
        name = line.target.name
        assert isinstance(line.source, Access)
        place = self.places[line.source.name]
        address = place.address(line.source.index)
        kind = ELEMENTS[place.dtype]
        if name not in self.operands:
            self._bias_in(line, place, address)
            return
        operand = self.operands[name]
        self._only(line, (operand.outer, operand.depth))
        along = self._contiguous(line, address, operand)
        outer, depth = self._extent(line, operand.outer), self._extent(line, operand.depth)
        turned = along == operand.outer and operand.outer != ""
        if turned:
            self.turned.add(name)
        rows, columns = (depth, outer) if turned else (outer, depth)
        axis = operand.depth if turned else operand.outer
        pitch: Dim | None = pitch_of(address, axis) if axis else columns
        if pitch is None:
            raise TargetError(f"{line.source.name}: rows of an operand lie at no constant distance")
        queue = f"{operand.side}1"
        self.budget.need(queue, self._fractal_bytes(line, operand, place.dtype, turned))
        start = cxx(substitute(address, {a.name: 0 for a in line.axes}))
        single = operand.side == "left" and not turned
        form = "Turned" if turned else "Single" if single else "Plain"
        shape = f"{cxx(rows)}, {cxx(columns)}, {cxx(pitch)}"
        flag = self.early.get(name)
        if flag is not None:
            self.w.line(f"LocalTensor<{kind}> {name};")
        with self.w.block(f"if (!{flag})") if flag is not None else nullcontext():
            declared = name if flag is not None else f"LocalTensor<{kind}> {name}"
            self.w.line(f"{declared} = {queue}.AllocTensor<{kind}>();")
            self.w.line(f"Fractals<FractalForm::{form}>({name}, {place.name}[{start}], {shape});")
            self.w.line(f"{queue}.EnQue({name});")
        if flag is not None:
            self.w.line(f"{flag} = false;")

    def _fractal_bytes(self, line: Copy, operand: _Operand, dtype: DType, turned: bool) -> int:
        """A tile in whole fractals; one that is turned in whole squares."""
        lanes = 32 // dtype.size
        square = max(FRACTAL_ROWS, lanes)
        rows = rounded(self._bound(line.target.name, line, operand.outer), square if turned else FRACTAL_ROWS)
        return rows * rounded(self._bound(line.target.name, line, operand.depth), square) * dtype.size

    def _contiguous(self, line: Copy, address: Dim, operand: _Operand) -> str:
        """The axis along which the operand's elements are neighbours."""
        for axis in (operand.depth, operand.outer):
            if axis and pitch_of(address, axis) == 1:
                return axis
        if self._extent(line, operand.depth) == 1 or not operand.depth:
            return operand.outer
        if self._extent(line, operand.outer) == 1:
            raise TargetError(f"{operand.first}: a vector with a stride is not generated for this target yet")
        raise TargetError(f"{operand.first}: an operand without contiguous rows is not generated for this target yet")

    @staticmethod
    def _only(line: Copy, axes: Sequence[str]) -> None:
        for axis in line.axes:
            if axis.name not in axes and axis.extent != 1:
                raise TargetError(f"{line.target.name}: a tile of a contraction has an axis {axis.name} beside two")

    def _bias_in(self, line: Copy, place: Place, address: Dim) -> None:
        name = line.target.name
        kind = ELEMENTS[place.dtype]
        (axis,) = [a for a in line.axes if a.extent != 1] or [Axis("", 1)]
        bound = rounded(self._bound(name, line, axis.name) * place.dtype.size, 64)
        self.budget.need("bias1", bound)
        start = cxx(substitute(address, {a.name: 0 for a in line.axes}))
        self.w.line(f"LocalTensor<{kind}> {name} = bias1.AllocTensor<{kind}>();")
        self.w.line(
            f"Fractals<FractalForm::Single>({name}, {place.name}[{start}], 1, {cxx(axis.extent)}, {cxx(axis.extent)});"
        )
        self.w.line(f"bias1.EnQue({name});")

    # -- L1 -> L0 ----------------------------------------------------------------------------------------------------
    def _to_l0(self, line: Copy) -> None:
        assert isinstance(line.source, Access)
        name, first = line.target.name, line.source.name
        operand = self.operands[name]
        loaded = self.copies[first]
        assert isinstance(loaded.source, Access)
        place = self.places[loaded.source.name]
        turned = first in self.turned
        kind = ELEMENTS[place.dtype]
        outer, depth = self._extent(line, operand.outer), self._extent(line, operand.depth)
        queue = operand.side
        self.budget.need(f"{queue}2", self._fractal_bytes(line, operand, place.dtype, turned))
        way = "" if not turned else "TurnedBytes" if place.dtype.size == 1 else "Turned"
        function = f"{queue.capitalize()}{way}"
        self.w.line(f"{first} = {queue}1.DeQue<{kind}>();")
        self.w.line(f"LocalTensor<{kind}> {name} = {queue}2.AllocTensor<{kind}>();")
        self.w.line(f"{function}({name}, {first}, {cxx(outer)}, {cxx(depth)});")
        self.w.line(f"{queue}1.FreeTensor({first});")

    def _bias_table(self, line: Copy) -> None:
        assert isinstance(line.source, Access)
        name, first = line.target.name, line.source.name
        kind = ELEMENTS[self.program.buffers[first].dtype]
        (axis,) = [a for a in line.axes if a.extent != 1] or [Axis("", 1)]
        self.budget.need("bias2", rounded(self._bound(name, line, axis.name) * 4, 64))
        self.w.line(f"{first} = bias1.DeQue<{kind}>();")
        wide = ELEMENTS[self.program.buffers[name].dtype.compute]
        self.w.line(f"LocalTensor<{wide}> {name} = bias2.AllocTensor<{wide}>();")
        self.w.line(f"ToBiasTable({name}, {first}, {cxx(axis.extent)});")
        self.w.line(f"bias1.FreeTensor({first});")

    # -- products ----------------------------------------------------------------------------------------------------
    def _start(self, line: Copy) -> None:
        """The accumulator's first value is set by the first product: zero, or the bias."""
        name = line.target.name
        kind = self._kind(name)
        self.w.line(f"LocalTensor<{kind}> {name} = result.AllocTensor<{kind}>();")
        self.w.line(f"bool {name}Fresh = true;")
        shape = self.program.buffers[name].shape
        rows, columns = (1, 1, *shape)[-2:]
        assert isinstance(rows, int) and isinstance(columns, int)
        self.budget.need("result", rounded(rows, 16) * rounded(columns, 16) * 4)
        if isinstance(line.source, Literal) and line.source.value not in (0, 0.0):
            raise TargetError("an accumulator starts from zero or a bias")

    def _kind(self, name: str) -> str:
        """The type of an accumulator."""
        return ELEMENTS[self.program.buffers[name].dtype]

    def _multiply(self, line: Contract) -> None:
        name = line.target.name
        left, right = line.left.name, line.right.name
        kind = ELEMENTS[self.program.buffers[left].dtype]
        rows, columns, depth = self._sizes(line)
        start = self.copies[name].source
        self.w.line(f"left2.EnQue({left});")
        self.w.line(f"{left} = left2.DeQue<{kind}>();")
        if self.operands[left].first in self.turned and not rows.isdigit():
            rows = f"Greatest({rows}, 2)"  # one row would be read as a vector
        if isinstance(start, Access):
            self.w.line(
                f"MultiplyOnto({name}, {left}, {right}, {start.name}, {rows}, {columns}, {depth}, {name}Fresh);"
            )
        else:
            self.w.line(f"Multiply({name}, {left}, {right}, {rows}, {columns}, {depth}, {name}Fresh);")
        self.w.line(f"{name}Fresh = false;")
        self.w.line(f"left2.FreeTensor({left});")
        self.w.line(f"right2.FreeTensor({right});")

    def _sizes(self, line: Contract) -> tuple[str, str, str]:
        extents = {a.name: a.extent for a in (*line.axes, *line.reduced)}
        rows, columns = (cxx(extents[str(i)]) if isinstance(i, Expr) else "1" for i in line.target.index[-2:])
        return rows, columns, cxx(line.reduced[0].extent) if line.reduced else "1"

    # -- out ---------------------------------------------------------------------------------------------------------
    def _finish(self, name: str) -> None:
        start = self.copies[name].source
        if isinstance(start, Access):
            self.w.line(f"bias2.FreeTensor({start.name});")
        self.w.line(f"result.EnQue({name});")
        self.w.line(f"{name} = result.DeQue<{self._kind(name)}>();")

    def _drain(self, line: Copy) -> None:
        assert isinstance(line.source, Access)
        name = line.source.name
        statement = self.results[name]
        place = self.places[line.target.name]
        address = place.address(line.target.index)
        rows, columns = (str(i) if isinstance(i, Expr) else "" for i in statement.target.index[-2:])
        if columns and pitch_of(address, columns) != 1:
            raise TargetError(f"{line.target.name}: a result that is stored transposed is not generated yet")
        pitch = pitch_of(address, rows) if rows else 1
        if pitch is None:
            raise TargetError(f"{line.target.name}: rows of a result lie at no constant distance")
        start = cxx(substitute(address, {a.name: 0 for a in line.axes}))
        self._finish(name)
        m, n = cxx(self._extent(line, rows)), cxx(self._extent(line, columns))
        relu = "true" if "relu" in line.through else "false"
        target = f"{place.name}[{start}]"
        if self._kind(name) == "int32_t" and place.dtype is not DType.INT32:
            bits = int(np.float32(line.scale).view(np.uint32))
            self.w.line(f"DrainScaled({target}, {name}, {m}, {n}, {cxx(pitch)}, {relu}, {bits:#x});  // {line.scale}")
        else:
            self.w.line(f"Drain({target}, {name}, {m}, {n}, {cxx(pitch)}, {relu});")
        self.w.line(f"result.FreeTensor({name});")

    def _put(self, line: Put) -> None:
        name, ring = line.buffer, self.program.tensors[line.ring]
        statement = self.results[name]
        extents = {a.name: a.extent for a in statement.axes}
        m, n = (cxx(extents[str(i)]) if isinstance(i, Expr) else "1" for i in statement.target.index[-2:])
        self._finish(name)
        if self._space(line.ring) == GM:
            self.w.line(f"Drain({line.ring}.ToFill(), {name}, {m}, {n}, {ring.shape[-1]}, false);")
            self.w.line(f"{line.ring}.Filled();")
        else:
            pitch = slot_pitch(ring.shape)
            self.w.line(f"DrainDirect({line.ring}.ToFill(turn), {name}, {m}, {n}, {pitch}, turn);")
            self.w.line(f"{line.ring}.Filled(turn);")
        self.w.line(f"result.FreeTensor({name});")
