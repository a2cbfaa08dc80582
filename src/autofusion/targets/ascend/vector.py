"""Tile statements as Ascend C for the vector unit.

Every statement becomes loops over its outer axes around vector instructions along one axis. An operand lies along that
axis one of four ways: contiguous (read in place), the same for all elements (a block or a scalar, repeated), at a
constant distance (gathered), or anyhow (the scalar unit does the statement element by element).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from autofusion import dims
from autofusion.dims import Dim, Expr, substitute, symbols
from autofusion.dtypes import DType
from autofusion.errors import TargetError
from autofusion.kernel.ir import Access, Axis, Copy, Fold, Gather, Literal, Map, Operand, Scan
from autofusion.ops.folds import FOLDS
from autofusion.targets.ascend import gathers, integers, rows, scalar
from autofusion.targets.ascend.dimension import coefficient_of, countable, cxx, divides, enclosed
from autofusion.targets.ascend.elementwise import FLOATS, MASKS
from autofusion.targets.ascend.integers import INTEGERS, TILED, WIDE, WIDE_COMPARISONS
from autofusion.targets.ascend.layout import Place
from autofusion.targets.ascend.operands import (
    COMPUTED,
    SIGNED_VIEW,
    UNIT,
    Operands,
    castable,
    positions_of,
    small,
    sum_of,
)
from autofusion.targets.ascend.tiles import FLOAT, INT, MASK, WHOLE, Tiles, number
from autofusion.targets.vecmath.values import V

CHUNK = 1024  # elements of a temporary, at least
ELEMENTS = scalar.STORED
MOVES = {"copy": "Or", "bitwise_and": "And", "bitwise_or": "Or", "bitwise_not": "Not"}  # of bits, 16 at a time


@dataclass
class Needs:
    """What a kernel's statements use beside its buffers: float and mask temporaries, and room for reductions."""

    floats: int = 0
    masks: int = 0
    half: bool = False
    staged: bool = False
    zeros: bool = False  # rows are read with their padding
    reduce: int = 0  # elements of the longest fold's work area
    blocks: int = 0  # elements of blocks that an operand with one element a row fills
    folded: int = 0  # elements of folds that are merged into a state


@dataclass(frozen=True)
class Tiling:
    """What is known of a program's tiles: the tensors that copies fill and those that copies empty, what loop variables
    are multiples of, the open dimensions, and the tensors in global memory."""

    loaded: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    steps: Mapping[str, int] = field(default_factory=dict)
    open: frozenset[str] = frozenset()
    outside: frozenset[str] = frozenset()


class Writer:
    """C++ lines with indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text if text else "")

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Iterator[None]:
        self.line(f"{head} {{".lstrip())
        self.depth += 1
        yield
        self.depth -= 1
        self.line(tail)


class Vector:
    """Writes statements; `places` says where tensors lie, `checks` which values have positions that may be wrong."""

    def __init__(
        self,
        writer: Writer,
        places: Mapping[str, Place],
        needs: Needs,
        checks: Sequence[str] = (),
        tiling: Tiling | None = None,
    ) -> None:
        self.w = writer
        self.places = dict(places)
        self.needs = needs
        self.checks = list(checks)
        tiling = tiling or Tiling()
        self.loaded, self.stored, self.steps, self.open = tiling.loaded, tiling.stored, tiling.steps, tiling.open
        self.outside = tiling.outside
        self.operands = Operands(self.places, self.steps)

    # -- statements --------------------------------------------------------------------------------------------------
    def statement(self, line: Any) -> None:
        if isinstance(line, Copy):
            self._map(line.target, self.places[line.target.name].dtype, "copy", (line.source,), line.axes)
        elif isinstance(line, Map):
            self._map(line.target, line.dtype, line.op, line.operands, line.axes)
        elif isinstance(line, Fold):
            self._fold(line)
        elif isinstance(line, Scan):
            self._scan(line)
        elif isinstance(line, Gather):
            check = self.checks.index(line.target.name.partition("_")[0])
            if not gathers.gather(self, line, check):
                self._by_element(line.axes, scalar.gather(self, line, check))
        else:
            raise TargetError(f"the vector unit has no {type(line).__name__}")

    @contextmanager
    def _loops(self, axes: Sequence[Axis]) -> Iterator[None]:
        if not axes:
            yield
            return
        first, *rest = axes
        name = first.name
        with self.w.block(f"for (int64_t {name} = 0; {name} < {cxx(first.extent)}; ++{name})"), self._loops(rest):
            yield

    def _by_element(self, axes: Sequence[Axis], lines: Sequence[str]) -> None:
        """The scalar unit, element by element."""
        with self._loops(axes):
            for text in lines:
                self.w.line(text)

    # -- maps --------------------------------------------------------------------------------------------------------
    def _map(self, target: Access, dtype: DType, op: str, operands: Sequence[Operand], axes: Sequence[Axis]) -> None:
        if any(axis.extent == 0 for axis in axes):
            return
        kind = self._kind(dtype, op, operands)
        along = self._vector_axis(target, axes) if kind is not None else None
        if kind == "move" and along is not None and not all(self._movable(target, o, along) for o in operands):
            kind = self._computing(dtype, op, operands)
        if kind is None or along is None or not self._addressable(operands, along, kind):
            self._by_element(axes, [scalar.assign(self, target, dtype, op, operands)])
            return
        outer = [a for a in axes if a is not along]
        place = self.places[target.name]
        positions = positions_of(operands)
        curved = any(coefficient_of(p, along.name) is None for p in positions)
        if place.dtype.size == 8 and (curved or not self._aligned(place, target, along)):
            self._by_element(axes, [scalar.assign(self, target, dtype, op, operands)])
            return
        if along.name == UNIT:
            count: Dim = place.lanes
        else:
            count = along.extent
        kept, count = self._merged(target, operands, outer, along, count)
        if (kept or self._blocks(operands, along)) and rows.operate(self, target, op, operands, axes, along):
            return
        first: dict[str, Dim] = {a.name: 0 for a in outer if a not in kept}
        target, operands = _at(target, first), [_at(o, first) if isinstance(o, Access) else o for o in operands]
        with self._loops(kept):
            self._row(target, dtype, op, operands, along, count, kind)

    def _blocks(self, operands: Sequence[Operand], along: Axis) -> bool:
        """Whether an operand is an element that stands for a whole row."""
        places = [(self.places[o.name], o) for o in operands if isinstance(o, Access)]
        return along.name != UNIT and any(coefficient_of(p.address(o.index), along.name) == 0 for p, o in places)

    def _kind(self, dtype: DType, op: str, operands: Sequence[Operand]) -> str | None:
        """Which table computes it on tiles; "move": bits from one place to another; None for the scalar unit."""
        if op in MOVES and dtype.size in (2, 8) and all(self._dtype(o) is dtype for o in operands):
            return "move"
        return self._computing(dtype, op, operands)

    def _computing(self, dtype: DType, op: str, operands: Sequence[Operand]) -> str | None:
        types = [self._dtype(o) for o in operands]
        wide = types[0] in WIDE and all(t is types[0] for t in types) and not positions_of(operands)
        if wide and (op in WIDE_COMPARISONS or (op == "cast" and dtype in TILED)):
            return "wide"
        if op == "cast":
            return "cast" if castable(types[0], dtype) else None
        if dtype.is_integer and dtype.size == 8:
            return "integer" if op == "copy" and all(small(o) for o in operands) else None
        if all(t is DType.BOOL for t in types):
            return "mask" if op in MASKS and dtype in COMPUTED else None
        if all(t in COMPUTED for t in (dtype, *types)):
            return "float" if op in FLOATS else None
        numbers = types[1:] if op == "where" else types
        if op in INTEGERS and numbers[0] in TILED and all(t is numbers[0] for t in numbers):
            return "integer" if types[0] in (DType.BOOL, numbers[0]) and dtype in (DType.BOOL, numbers[0]) else None
        return None

    def _movable(self, target: Access, operand: Operand, along: Axis) -> bool:
        """Whether rows of equal types lie contiguously and start at blocks on both sides."""
        if not isinstance(operand, Access) or along.name == UNIT:
            return False
        place, goal = self.places[operand.name], self.places[target.name]
        contiguous = coefficient_of(place.address(operand.index), along.name) == 1
        aligned = self._aligned(place, operand, along) and self._aligned(goal, target, along)
        return place.dtype is goal.dtype and contiguous and aligned

    def _dtype(self, operand: Operand) -> DType:
        return operand.dtype if isinstance(operand, Literal) else self.places[operand.name].dtype

    def _vector_axis(self, target: Access, axes: Sequence[Axis]) -> Axis | None:
        """The axis along which the target is contiguous, or the lanes of a block where one element fills one."""
        place = self.places[target.name]
        address = place.address(target.index)
        if place.spread:
            return Axis(UNIT, place.lanes)
        for axis in reversed(axes):
            if coefficient_of(address, axis.name) == 1:
                return axis
        return None

    def _addressable(self, operands: Sequence[Operand], along: Axis, kind: str = "") -> bool:
        for operand in operands:
            if isinstance(operand, Literal):
                if isinstance(operand.value, Expr) and not countable(operand.value, along.name):
                    return False
                continue
            place = self.places[operand.name]
            factor = coefficient_of(place.address(operand.index), along.name)
            if factor is None and not countable(place.address(operand.index), along.name):
                return False
            if kind == "wide":
                continue  # gathered in any case
            if factor not in (0, 1) and place.dtype.size not in (2, 4):
                return False
            if factor == 1 and not self._aligned(place, operand, along) and place.dtype.size not in (2, 4):
                return False
        return True

    def _aligned(self, place: Place, access: Access, along: Axis) -> bool:
        """Whether a row starts at a block, whatever the other axes are."""
        start = substitute(place.address(access.index), {along.name: 0})
        return divides(place.lanes, start, self.steps)

    def _merged(
        self, target: Access, operands: Sequence[Operand], outer: list[Axis], along: Axis, count: Dim
    ) -> tuple[list[Axis], Dim]:
        """Rows that lie behind each other in all tensors are one long row, padding included."""
        reads = [o for o in operands if isinstance(o, Access)]
        if any(isinstance(o, Literal) and isinstance(o.value, Expr) for o in operands):
            return outer, count
        accesses, original = [target, *reads], outer
        while outer:
            axis = outer[-1]
            steps = []
            for access in accesses:
                place = self.places[access.name]
                address = place.address(access.index)
                contiguous = place.spread if along.name == UNIT else coefficient_of(address, along.name) == 1
                steps.append(coefficient_of(address, axis.name) if contiguous else None)
                if not self._aligned(place, access, along):
                    steps.append(None)
            (step,) = set(steps) if len(set(steps)) == 1 else (None,)
            # A row is padded by less than a block: what is further apart is a part of a longer row.
            block = min(self.places[access.name].lanes for access in accesses)
            if step is None or step <= 0 or not isinstance(count, int) or not count <= step < count + block:
                return outer, count
            if step != count and not all(self._padded(access.name, along, step) for access in reads):
                return outer, count
            if step != count and outer is original and not self._fills(target, along, count):
                return outer, count
            outer = outer[:-1]
            total = dims.multiply(axis.extent, step)
            if not isinstance(total, int):
                return outer, total
            count = total
        return outer, count

    def _fills(self, target: Access, along: Axis, count: int) -> bool:
        """Whether a row that is written is all of the tensor's: what follows it is padding, and not elements."""
        extents = self.places[target.name].extents
        own = [d for d, index in enumerate(target.index) if along.name in symbols(index)]
        return len(own) == 1 and own[0] < len(extents) and extents[own[0]] == count

    def _padded(self, name: str, along: Axis, step: int) -> bool:
        """Whether the padding of a row may be read: a copy fills a block, the work area starts as zeros, and of a
        store's tile nothing but the rows is sure to be there."""
        place = self.places[name]
        short = step - (int(along.extent) if isinstance(along.extent, int) else step)
        if along.name == UNIT or short == 0:
            return True
        if name in self.loaded:
            return short < place.lanes
        self.needs.zeros = True
        return name not in self.stored

    def _row(
        self, target: Access, dtype: DType, op: str, operands: Sequence[Operand], along: Axis, count: Dim, kind: str
    ) -> None:
        """One row: the instructions. Positions of 64 bits are made as int32 where the row's first and last are some."""
        positions = positions_of(operands)
        if self.places[target.name].dtype.size < 8 or not positions:
            self._instructions(target, dtype, op, operands, along, count, kind)
            return
        ends = [substitute(positions[0], {along.name: at}) for at in (0, dims.add(count, -1))]
        fits = " && ".join(f"{enclosed(end)} == static_cast<int32_t>({cxx(end)})" for end in ends)
        with self.w.block(f"if ({fits})"):
            self._instructions(target, dtype, op, operands, along, count, kind)
        axes = [] if along.name == UNIT else [Axis(along.name, count)]
        with self.w.block("else"):
            self._by_element(axes, [scalar.assign(self, target, dtype, op, operands)])

    def _instructions(
        self, target: Access, dtype: DType, op: str, operands: Sequence[Operand], along: Axis, count: Dim, kind: str
    ) -> None:
        """In chunks where temporaries are needed."""
        place = self.places[target.name]
        start = substitute(place.address(target.index), {along.name: 0})
        aligned = divides(place.lanes, start, self.steps)
        probe = self._listing(target, dtype, op, operands, along, kind, "0", direct=aligned)
        if aligned and not probe.chunked:
            with self._unless_empty(count):
                for text in self._with_count(probe.lines, cxx(count)):
                    self.w.line(text)
            return
        listed = self._listing(target, dtype, op, operands, along, kind, "j", direct=aligned)
        self._use(listed)
        total = cxx(count)
        short = isinstance(count, int) and count <= CHUNK
        if short:
            with self.w.block("", "}"):
                self.w.line("constexpr int64_t j = 0;")
                self.w.line(f"constexpr int32_t n = {total};")
                self._whole(listed)
                self._lines(listed, target, along, start)
            return
        with self.w.block(f"for (int64_t j = 0; j < {total}; j += CHUNK)"):
            self.w.line(f"const int32_t n = static_cast<int32_t>(Least(CHUNK, {total} - j));")
            self._whole(listed)
            self._lines(listed, target, along, start)

    @contextmanager
    def _unless_empty(self, count: Dim) -> Iterator[None]:
        """An instruction over nothing is not promised to do nothing on every chip; of a tile's rest there is always
        some."""
        if isinstance(count, int) or symbols(count).isdisjoint(self.open):
            yield
            return
        with self.w.block(f"if ({cxx(count)} > 0)"):
            yield

    def _whole(self, listed: _Listed) -> None:
        if any("whole" in text for text in listed.lines):
            self.w.line("const int32_t whole = RoundUp(n, 64);")

    @staticmethod
    def _with_count(lines: Sequence[str], count: str) -> list[str]:
        return [re.sub(r"\bn\b", count if count.isidentifier() or count.isdigit() else f"({count})", t) for t in lines]

    def _lines(self, listed: _Listed, target: Access, along: Axis, start: Dim) -> None:
        for text in listed.lines:
            self.w.line(text)
        if listed.scattered:
            place = self.places[target.name]
            address = f"{enclosed(start)} + j + k"
            with self.w.block("for (int32_t k = 0; k < n; ++k)"):
                self.w.line(f"{place.name}.SetValue({address}, {listed.result}.GetValue(k));")

    def _use(self, listed: _Listed) -> None:
        self.needs.floats = max(self.needs.floats, listed.floats)
        self.needs.masks = max(self.needs.masks, listed.masks)
        self.needs.half |= any("h0" in text for text in listed.lines)
        self.needs.staged |= listed.result.startswith("staged")

    def _listing(
        self,
        target: Access,
        dtype: DType,
        op: str,
        operands: Sequence[Operand],
        along: Axis,
        kind: str,
        offset: str,
        direct: bool,
    ) -> _Listed:
        tiles = Tiles()
        place = self.places[target.name]
        start = substitute(place.address(target.index), {along.name: 0})
        goal = f"{place.name}[{sum_of(start, offset)}]"
        if kind == "move":
            bits = [goal]
            for operand in operands:
                assert isinstance(operand, Access)
                source = self.places[operand.name]
                first = substitute(source.address(operand.index), {along.name: 0})
                bits.append(f"{source.name}[{sum_of(first, offset)}]")
            bits += bits[1:] if op == "copy" else []
            tensors = ", ".join(f"{each}.ReinterpretCast<uint16_t>()" for each in bits)
            text = f"{MOVES[op]}({tensors}, n{f' * {dtype.size // 2}' if dtype.size > 2 else ''});"
            return _Listed([text], goal, 0, 0, False)
        values = [] if kind == "wide" else [self.operands.value(tiles, o, along, offset) for o in operands]
        if kind == "wide":
            halves = [self.operands.halves(tiles, o, along, offset) for o in operands]
            compare = WIDE_COMPARISONS.get(op)
            value = compare(tiles, self._dtype(operands[0]), *halves) if compare else halves[0][0]
        elif kind == "cast":
            value = self._cast(tiles, values[0], self._dtype(operands[0]), dtype)
        elif kind == "integer":
            value = INTEGERS[op](tiles, self._dtype(operands[-1]), *values)
        else:
            value = {"float": FLOATS, "mask": MASKS}[kind][op](tiles, *values)
        if value.type == MASK:
            value = tiles.select(value, tiles.const(FLOAT, 1.0), tiles.const(FLOAT, 0.0))
        stored = "" if value.type == FLOAT else f".ReinterpretCast<{ELEMENTS[place.dtype]}>()"
        matches = place.dtype in ((DType.INT32, DType.UINT32) if value.type == INT else (DType.FLOAT32,))
        if place.dtype is DType.UINT32 and direct:
            goal += ".ReinterpretCast<int32_t>()"
        conversion = None
        if value.type == INT and not matches:
            value, conversion = integers.stored(tiles, place.dtype, value)
        if direct and matches:
            made = tiles.made.get(value.ref)
            if value.ref in tiles.direct or tiles.constant_of(value) is not None or (made and WHOLE in made.text):
                value = self._moved(tiles, value)
            lines, result, floats, masks = tiles.listing(value, goal)
            return _Listed(lines, result, floats, masks, False)
        if not direct or value.ref not in tiles.direct:
            value = tiles.own(value)
        lines, result, floats, masks = tiles.listing(value)
        if not direct:
            if matches:
                return _Listed(lines, f"{result}{stored}", floats, masks, True)
            goal = f"staged.ReinterpretCast<{ELEMENTS[place.dtype]}>()"
            floats = max(floats, 1)
        if conversion is None:
            lines.append(self._stored(place.dtype, goal, result))
        else:
            view = ".ReinterpretCast<int32_t>()" if value.type == INT else ""
            signed = SIGNED_VIEW.get(place.dtype, "")
            lines.append(conversion.format(f"{result}{view}", goal=f"{goal}{signed}"))
        if not direct:
            return _Listed(lines, goal, floats, masks, True)
        return _Listed(lines, goal, floats, masks, False)

    @staticmethod
    def _moved(tiles: Tiles, value: V) -> V:
        """A copy of a value: bit by bit for what is in a buffer."""
        if tiles.constant_of(value) is not None:
            kind = value.type
            constant = tiles.constant_of(value)
            assert constant is not None
            return tiles.emit(kind, f"Duplicate({{d}}, {number(constant, kind)}, n)")
        return (
            tiles.emit(value.type, "Adds({d}, {0}, 0, n)", value)
            if value.type == INT
            else tiles.emit(value.type, "Muls({d}, {0}, 1.0f, n)", value)
        )

    def _stored(self, dtype: DType, goal: str, result: str) -> str:
        """Convert a float32 tile to what the target holds."""
        if dtype in (DType.FLOAT16, DType.BFLOAT16):
            return f"Cast({goal}, {result}, RoundMode::CAST_RINT, n);"
        if dtype is DType.BOOL:
            return f"Cast(h0, {result}, RoundMode::CAST_NONE, n); Cast({goal}, h0, RoundMode::CAST_TRUNC, n);"
        raise TargetError(f"no conversion of a tile to {dtype}")

    def _cast(self, tiles: Tiles, value: V, source: DType, dtype: DType) -> V:
        """User-written conversions; an integer is wrapped where it is stored."""
        if dtype is DType.BOOL:
            if value.type == INT:
                return tiles.cmp("icmp ne", value, tiles.const(INT, 0))
            return value if value.type == MASK else tiles.cmp("fcmp une", value, tiles.const(FLOAT, 0.0))
        if dtype.is_integer:
            if value.type == MASK:
                return integers.of_mask(tiles, value)
            return value if value.type == INT else integers.from_float(tiles, dtype, value)
        if value.type == MASK:
            return tiles.select(value, tiles.const(FLOAT, 1.0), tiles.const(FLOAT, 0.0))
        return integers.to_float(tiles, source, value, dtype.is_reduced) if value.type == INT else value

    # -- folds -------------------------------------------------------------------------------------------------------
    def _fold(self, line: Fold) -> None:
        kept = self._vector_axis(line.target, line.axes)
        if (found := rows.folded(self, line)) is not None:
            rows.fold(self, line, found)
        elif kept is not None and kept.name != UNIT and self._tiled_fold(line):
            self._fold_rows(line)
        else:
            self._by_element(line.axes, scalar.fold(self, line))

    def _tiled_fold(self, line: Fold) -> bool:
        """Whether rows can be folded into a row by an instruction each."""
        step = FOLDS[line.fold].step
        target = Access(line.target.name, line.target.index)
        kind = self._kind(line.dtype, step, (target, line.operand))
        along = self._vector_axis(target, line.axes)
        return kind is not None and along is not None and self._addressable((target, line.operand), along)

    def _fold_rows(self, line: Fold) -> None:
        step = FOLDS[line.fold].step
        if not line.accumulate:
            identity = Literal(line.dtype, FOLDS[line.fold].identity(line.dtype))
            self._map(line.target, line.dtype, "copy", (identity,), line.axes)
        if not line.reduced:
            self._map(line.target, line.dtype, step, (line.target, line.operand), line.axes)
            return
        with self._loops(line.reduced):
            self._map(line.target, line.dtype, step, (line.target, line.operand), line.axes)

    # -- scans -------------------------------------------------------------------------------------------------------
    def _scan(self, line: Scan) -> None:
        if rows.scan(self, line):
            return
        step = FOLDS[line.fold].step
        target = line.target
        along = next(a for a in line.axes if a.name == line.along)
        rest = [a for a in line.axes if a is not along]
        vector = self._vector_axis(target, line.axes)
        before = _at(target, {line.along: dims.symbol(line.along) - 1})
        kind = self._kind(line.dtype, step, (target, line.operand))
        if vector is None or vector is along or vector.name == UNIT or kind is None:
            self._by_element([*rest, along], scalar.scan(self, line, before))
            return
        with self._loops([along]):
            with self.w.block(f"if ({line.along} == 0)"):
                self._map(target, line.dtype, "copy", (line.operand,), rest)
            with self.w.block("else"):
                self._map(target, line.dtype, step, (before, line.operand), rest)


def _at(access: Access, values: Mapping[str, Dim]) -> Access:
    """An access with some axes at fixed positions."""
    return Access(access.name, tuple(substitute(index, values) for index in access.index))


@dataclass
class _Listed:
    """Instructions of a row; `scattered`: the result is in a temporary, to be stored element by element."""

    lines: list[str]
    result: str
    floats: int
    masks: int
    scattered: bool

    @property
    def chunked(self) -> bool:
        return bool(self.floats or self.masks or self.scattered or any("h0" in text for text in self.lines))
