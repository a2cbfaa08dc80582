"""Operands of vector instructions as values of the tile arithmetic.

Along the axis of an instruction an operand is contiguous, one element for all, gathered at computed offsets, or a
literal: a number, or positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autofusion import dims
from autofusion.dims import Dim, Expr, substitute, symbols
from autofusion.dtypes import DType
from autofusion.kernel.ir import Axis, Literal, Operand
from autofusion.targets.ascend import integers, scalar
from autofusion.targets.ascend.dimension import coefficient_of, cxx, divides
from autofusion.targets.ascend.integers import TILED, Halves
from autofusion.targets.ascend.layout import Place
from autofusion.targets.ascend.tiles import FLOAT, INT, MASK, Tiles
from autofusion.targets.vecmath.values import V

COMPUTED = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.BOOL)  # what float32 tiles stand for
# Unsigned types whose bits the instructions take as signed.
SIGNED = {DType.UINT16: "int16_t", DType.UINT32: "int32_t", DType.UINT64: "int64_t"}
SIGNED_VIEW = {dtype: f".ReinterpretCast<{name}>()" for dtype, name in SIGNED.items()}
UNIT = "e"  # the axis within a block of equal elements


@dataclass(frozen=True)
class Operands:
    """Where tensors lie, and what loop variables are multiples of."""

    places: Mapping[str, Place]
    steps: Mapping[str, int]

    def value(self, tiles: Tiles, operand: Operand, along: Axis, offset: str) -> V:
        """An operand along an axis, from its element `offset` on."""
        if isinstance(operand, Literal):
            return self._literal(tiles, operand, along, offset)
        place = self.places[operand.name]
        address = place.address(operand.index)
        factor = coefficient_of(address, along.name)
        start = substitute(address, {along.name: 0})
        if (
            place.spread
            and along.name == UNIT
            and place.lanes >= int(str(along.extent))
            and divides(place.lanes, start, self.steps)
        ):
            factor = 1
        if factor == 1 and divides(place.lanes, start, self.steps):
            return self._converted(tiles, place.dtype, f"{place.name}[{sum_of(start, offset)}]")
        if factor == 0:
            return self._repeated(tiles, place, start)
        return self._gathered(tiles, place, address, along, offset)

    def _converted(self, tiles: Tiles, dtype: DType, tensor: str) -> V:
        """A contiguous row as a value of the tile arithmetic."""
        if dtype is DType.FLOAT32:
            return tiles.buffer(FLOAT, tensor)
        if dtype in TILED:
            return integers.loaded(tiles, dtype, tensor)
        if dtype is DType.INT64:
            return tiles.emit(FLOAT, f"Cast({{d}}, {tensor}, RoundMode::CAST_RINT, n)")
        if dtype is DType.BOOL:
            wide = tiles.emit(
                FLOAT, f"Cast(h0, {tensor}, RoundMode::CAST_NONE, n); Cast({{d}}, h0, RoundMode::CAST_NONE, n)"
            )
            return tiles.cmp("fcmp une", wide, tiles.const(FLOAT, 0.0))
        return tiles.emit(FLOAT, f"Cast({{d}}, {tensor}, RoundMode::CAST_NONE, n)")

    def _repeated(self, tiles: Tiles, place: Place, start: Dim) -> V:
        """One element, everywhere: from its block, or through the scalar unit."""
        element = f"{place.name}.GetValue({cxx(start)})"
        if place.dtype is DType.FLOAT32:
            if place.spread and divides(place.lanes, start, self.steps):
                return tiles.emit(FLOAT, f"Spread({{d}}, {place.name}[{cxx(start)}], n)")
            return tiles.emit(FLOAT, f"Duplicate({{d}}, {element}, whole)")
        if place.dtype is DType.INT32:
            return tiles.emit(INT, f"Duplicate({{d}}, {element}, whole)")
        if place.dtype in TILED:
            return tiles.emit(INT, f"Duplicate({{d}}, static_cast<int32_t>({element}), whole)")
        if place.dtype is DType.INT64:
            return tiles.emit(FLOAT, f"Duplicate({{d}}, static_cast<float>({element}), whole)")
        wide = tiles.emit(FLOAT, f"Duplicate({{d}}, {scalar.as_float(element)}, whole)")
        return tiles.cmp("fcmp une", wide, tiles.const(FLOAT, 0.0)) if place.dtype is DType.BOOL else wide

    def _gathered(self, tiles: Tiles, place: Place, address: Dim, along: Axis, offset: str) -> V:
        """Elements that are not next to each other, by their byte offsets."""
        size = place.dtype.size
        moved = self._positions(tiles, dims.multiply(address, size), along, offset)
        offsets = "{0}.ReinterpretCast<uint32_t>()"
        if size == 4:
            kind = INT if place.dtype in TILED else FLOAT
            signed = SIGNED_VIEW.get(place.dtype, "")
            return tiles.emit(kind, f"Gather({{d}}, {place.name}{signed}, {offsets}, 0u, n)", moved)
        signed = SIGNED_VIEW.get(place.dtype, "")
        narrow = f"h0.ReinterpretCast<{SIGNED.get(place.dtype, scalar.STORED[place.dtype])}>()"
        wide = tiles.emit(
            FLOAT,
            f"Gather({narrow}, {place.name}{signed}, {offsets}, 0u, n); Cast({{d}}, {narrow}, RoundMode::CAST_NONE, n)",
            moved,
        )
        return integers.extended(tiles, place.dtype, wide) if place.dtype in TILED else wide

    def halves(self, tiles: Tiles, operand: Operand, along: Axis, offset: str) -> Halves:
        """The low and the high 32 bits of 64-bit integers."""
        if isinstance(operand, Literal):
            assert not isinstance(operand.value, Expr)
            return tiles.bits(INT, int(operand.value)), tiles.bits(INT, int(operand.value) >> 32)
        place = self.places[operand.name]
        address = place.address(operand.index)
        if coefficient_of(address, along.name) == 0:
            element = f"{place.name}.GetValue({cxx(address)})"
            low, high = (
                tiles.emit(INT, f"Duplicate({{d}}, static_cast<int32_t>({each}), whole)")
                for each in (element, f"{element} >> 32")
            )
            return low, high
        start = self._positions(tiles, dims.multiply(address, 8), along, offset)
        text = f"Gather({{d}}, {place.name}.ReinterpretCast<int32_t>(), {{0}}.ReinterpretCast<uint32_t>(), {{base}}, n)"
        low, high = (tiles.emit(INT, text.replace("{base}", f"{base}u"), start) for base in (0, 4))
        return low, high

    def _positions(self, tiles: Tiles, dim: Dim, along: Axis, offset: str) -> V:
        """The values of a dim along an axis, from its element `offset` on."""
        rest: Dim = 0
        total: V | None = None
        for atoms, coefficient in dims.terms_of(dim):
            if along.name not in symbols(Expr(((atoms, coefficient),))):
                rest = dims.add(rest, Expr(((atoms, coefficient),)) if atoms else coefficient)
                continue
            (atom,) = atoms
            if isinstance(atom, dims.Symbol):
                made = tiles.emit(INT, f"CreateVecIndex({{d}}, static_cast<int32_t>({offset}), n)")
            else:
                made = self._divided(tiles, atom, along, offset)
            made = made if coefficient == 1 else tiles.op("mul", made, tiles.const(INT, coefficient))
            total = made if total is None else tiles.op("add", total, made)
        if total is None:
            return tiles.emit(INT, f"Duplicate({{d}}, static_cast<int32_t>({cxx(rest)}), whole)")
        if rest == 0:
            return total
        return tiles.emit(INT, f"Adds({{d}}, {{0}}, static_cast<int32_t>({cxx(rest)}), n)", total)

    def _divided(self, tiles: Tiles, atom: dims.Compound, along: Axis, offset: str) -> V:
        """A quotient or a remainder: by a shift, or through float32, which is exact for positions on-chip."""
        left = self._positions(tiles, atom.left, along, offset)
        divisor = int(str(atom.right))
        if divisor & (divisor - 1) == 0:
            quotient = tiles.op("ashr", left, tiles.const(INT, divisor.bit_length() - 1))
        else:
            half = tiles.op("fadd", tiles.cast("sitofp", left, FLOAT), tiles.const(FLOAT, 0.5))
            ratio = tiles.op("fmul", half, tiles.const(FLOAT, 1.0 / divisor))
            quotient = tiles.emit(INT, "Cast({d}, {0}, RoundMode::CAST_FLOOR, n)", ratio)
        if atom.kind == "//":
            return quotient
        return tiles.op("sub", left, tiles.op("mul", quotient, tiles.const(INT, divisor)))

    def _literal(self, tiles: Tiles, operand: Literal, along: Axis, offset: str) -> V:
        value, dtype = operand.value, operand.dtype
        kind = INT if dtype.is_integer else FLOAT
        if not isinstance(value, Expr):
            if dtype is DType.BOOL:
                return tiles.const(MASK, bool(value))
            return tiles.bits(INT, int(value)) if kind == INT else tiles.const(kind, float(value))
        whole = self._positions(tiles, value, along, offset)
        if dtype is DType.BOOL:
            return tiles.cmp("icmp ne", whole, tiles.const(INT, 0))
        return whole if kind == INT else tiles.cast("sitofp", whole, FLOAT)


def castable(source: DType, goal: DType) -> bool:
    """Whether a conversion is made of the unit's. Of 64 bits only those whose numbers fit what they go through."""
    if goal in (DType.INT64, DType.UINT64):
        return source is DType.BOOL or (source in TILED and source is not DType.UINT32)
    if source is DType.INT64:
        return goal in (DType.FLOAT32, DType.BOOL)
    return all(t in (*COMPUTED, *TILED) for t in (source, goal))


def positions_of(operands: Sequence[Operand]) -> list[Expr]:
    """The literals that are positions."""
    return [o.value for o in operands if isinstance(o, Literal) and isinstance(o.value, Expr)]


def small(operand: Operand) -> bool:
    """Whether a literal is an int32, positions where their row says so."""
    if not isinstance(operand, Literal):
        return False
    value = operand.value
    return isinstance(value, Expr) or -(1 << 31) <= int(value) < 1 << 31


def sum_of(start: Dim, offset: str) -> str:
    """An address and an offset from there, as C++."""
    if offset in ("", "0"):
        return cxx(start)
    return offset if start == 0 else f"{cxx(start)} + {offset}"
