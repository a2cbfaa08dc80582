"""Straight-line arithmetic on tiles: the formulas of the vector math, as vector instructions over temporaries.

A `Tiles` takes the place of the LLVM emitter, so `Lanes` and every function written in it serve both targets. Values
are float32 or int32 tiles, or masks of one bit an element. Instructions are collected first; `listing` then gives them
temporaries by last use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autofusion.errors import TargetError
from autofusion.targets.vecmath.values import V, scalar_of

TILE = 64  # the lanes that types are written with; every tile has as many elements as its statement says
FLOAT, INT, MASK = f"<{TILE} x float>", f"<{TILE} x i32>", f"<{TILE} x i1>"
ELEMENTS = {FLOAT: "float", INT: "int32_t", MASK: "uint8_t"}

# How many of the elements an instruction handles: those asked for, or up to whole vector repeats (compares need that).
COUNT, WHOLE = "n", "whole"

# Bit by bit, to another temporary.
COPY = {
    FLOAT: f"Or({{d}}, {{0}}, {{0}}, {COUNT} * 2)",
    INT: f"Or({{d}}, {{0}}, {{0}}, {COUNT} * 2)",
    MASK: f"Or({{d}}, {{0}}, {{0}}, {WHOLE} / 16)",
}

Step = Callable[..., tuple[V, Sequence[V]]]


@dataclass(frozen=True)
class Instruction:
    """One vector instruction. `text` has `{d}` for its result and `{0}`, `{1}` … for its operands.

    `onto`: the carried value of a loop whose place the result takes. `loop`: the head or the end of one.
    """

    result: V
    text: str
    operands: tuple[V, ...]
    onto: V | None = None
    loop: Loop | None = None


@dataclass(eq=False)
class Loop:
    """Instructions that are repeated while a mask has a lane; `carried` values keep their places."""

    carried: list[V] = field(default_factory=list)


class Tiles:
    """Collects instructions. `fma`, `ldexp`, `chooses`, `wide`: what no tile instruction does here."""

    fma = ldexp = chooses = wide = False

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.constants: dict[str, float | int | bool] = {}
        self.direct: dict[str, V] = {}  # values that lie in buffers, by reference: their type and the C++ of the tensor
        self.made: dict[str, Instruction] = {}
        self.known: dict[tuple[str, tuple[V, ...]], V] = {}
        self.carried: set[str] = set()

    # -- values ------------------------------------------------------------------------------------------------------
    def const(self, type_: str, value: float | int | bool) -> V:
        ref = f"#{value!r}:{scalar_of(type_)}"
        self.constants[ref] = value
        return V(type_, ref)

    def bits(self, type_: str, pattern: int) -> V:
        width = int(scalar_of(type_)[1:])
        pattern &= (1 << width) - 1
        return self.const(type_, pattern - (1 << width) if pattern >> (width - 1) else pattern)

    def buffer(self, type_: str, tensor: str) -> V:
        """A tile in a buffer, read in place."""
        ref = f"@{tensor}"
        self.direct[ref] = V(type_, tensor)
        return V(type_, ref)

    def constant_of(self, value: V) -> float | int | bool | None:
        return self.constants.get(value.ref)

    def emit(self, type_: str, text: str, *operands: V) -> V:
        """One instruction; the same one again gives the same value."""
        key = (text + type_, operands)
        if key not in self.known:
            result = V(type_, f"%{len(self.instructions)}")
            self.made[result.ref] = Instruction(result, text, operands)
            self.instructions.append(self.made[result.ref])
            self.known[key] = result
        return self.known[key]

    def settled(self, value: V) -> V:
        """A constant as a tile; other values as they are."""
        constant = self.constant_of(value)
        if constant is None:
            return value
        if value.type == MASK:
            zero = self.settled(self.const(FLOAT, 0.0))
            return self._compare("EQ" if constant else "NE", zero, zero)
        return self.emit(value.type, f"Duplicate({{d}}, {number(constant, value.type)}, {WHOLE})")

    def own(self, value: V) -> V:
        """The value in a temporary, where all lanes of whole repeats can be read."""
        if value.ref in self.direct:
            return self.emit(
                value.type,
                f"{'Muls' if value.type == FLOAT else 'Adds'}({{d}}, {{0}}, "
                f"{number(1.0, FLOAT) if value.type == FLOAT else number(0, INT)}, {COUNT})",
                value,
            )
        return self.settled(value)

    # -- arithmetic --------------------------------------------------------------------------------------------------
    def op(self, opcode: str, a: V, b: V | None = None) -> V:
        if b is None:
            assert opcode == "fneg", opcode
            return self.by_scalar("Muls", a, -1.0)
        if a.type == MASK:
            return self._masks(opcode, a, b)
        return getattr(self, f"_{opcode}")(a, b)  # type: ignore[no-any-return]

    def by_scalar(self, name: str, a: V, constant: float | int) -> V:
        return self.emit(a.type, f"{name}({{d}}, {{0}}, {number(constant, a.type)}, {COUNT})", self.settled(a))

    def _binary(self, name: str, a: V, b: V) -> V:
        return self.emit(a.type, f"{name}({{d}}, {{0}}, {{1}}, {COUNT})", self.settled(a), self.settled(b))

    def commuting(self, name: str, a: V, b: V) -> V:
        for constant, other in ((self.constant_of(b), a), (self.constant_of(a), b)):
            if constant is not None:
                return self.by_scalar(f"{name}s", other, constant)
        return self._binary(name, a, b)

    def _fadd(self, a: V, b: V) -> V:
        return self.commuting("Add", a, b)

    def _fmul(self, a: V, b: V) -> V:
        return self.commuting("Mul", a, b)

    def _fsub(self, a: V, b: V) -> V:
        right, left = self.constant_of(b), self.constant_of(a)
        if right is not None:
            return self.by_scalar("Adds", a, -right)
        if left is not None:
            return self.by_scalar("Adds", self.by_scalar("Muls", b, -1.0), left)
        return self._binary("Sub", a, b)

    def _fdiv(self, a: V, b: V) -> V:
        return self._binary("Div", a, b)

    _add, _mul = _fadd, _fmul

    def _sub(self, a: V, b: V) -> V:
        right = self.constant_of(b)
        if right is not None:
            return self.by_scalar("Adds", a, -int(right))
        return self._binary("Sub", a, b)

    def _and(self, a: V, b: V) -> V:
        return self._bitwise("And", a, b)

    def _or(self, a: V, b: V) -> V:
        return self._bitwise("Or", a, b)

    def _bitwise(self, name: str, a: V, b: V) -> V:
        """In 16-bit halves, which is what the instructions take."""
        return self.emit(INT, f"{name}({{d}}, {{0}}, {{1}}, {COUNT} * 2)", self.settled(a), self.settled(b))

    def _xor(self, a: V, b: V) -> V:
        """a ^ b = (a | b) - (a & b)."""
        return self._sub(self._or(a, b), self._and(a, b))

    def _shift(self, name: str, view: str, a: V, b: V) -> V:
        amount = self.constant_of(b)
        assert amount is not None, "shifts are by constants"
        cast = f".ReinterpretCast<{view}>()"
        text = f"{name}({{d}}{cast}, {{0}}{cast}, static_cast<{view}>({int(amount)}), {COUNT})"
        return self.emit(INT, text, self.settled(a))

    def _shl(self, a: V, b: V) -> V:
        return self._shift("ShiftLeft", "int32_t", a, b)

    def _ashr(self, a: V, b: V) -> V:
        return self._shift("ShiftRight", "int32_t", a, b)

    def _lshr(self, a: V, b: V) -> V:
        return self._shift("ShiftRight", "uint32_t", a, b)

    def inverted(self, a: V) -> V:
        """All bits of an int32."""
        return self.emit(INT, f"Not({{d}}, {{0}}, {COUNT} * 2)", self.settled(a))

    # -- masks -------------------------------------------------------------------------------------------------------
    def _masks(self, opcode: str, a: V, b: V) -> V:
        a, b = self.settled(a), self.settled(b)
        if opcode == "xor":
            return self._masks("and", self._masks("or", a, b), self.negated(self._masks("and", a, b)))
        name = {"and": "And", "or": "Or"}[opcode]
        return self.emit(MASK, f"{name}({{d}}, {{0}}, {{1}}, {WHOLE} / 16)", a, b)

    def negated(self, mask: V) -> V:
        return self.emit(MASK, f"Not({{d}}, {{0}}, {WHOLE} / 16)", self.settled(mask))

    def _compare(self, mode: str, a: V, b: V) -> V:
        constant = self.constant_of(b)
        if constant is not None:
            text = f"CompareScalar({{d}}, {{0}}, {number(constant, FLOAT)}, CMPMODE::{mode}, {WHOLE})"
            return self.emit(MASK, text, self.own(a))
        return self.emit(MASK, f"Compare({{d}}, {{0}}, {{1}}, CMPMODE::{mode}, {WHOLE})", self.own(a), self.own(b))

    def cmp(self, predicate: str, a: V, b: V) -> V:
        kind, _, order = predicate.partition(" ")
        if a.type == MASK:
            constant = self.constant_of(b)
            assert constant is not None
            return a if bool(constant) == (order == "eq") else self.negated(a)
        if self.constant_of(a) is not None and self.constant_of(b) is None:
            mirrored = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
            plain = order[-2:]
            return self.cmp(f"{kind} {order[:-2]}{mirrored.get(plain, plain)}", b, a)
        if kind == "icmp":
            return self._integers(order, a, b)
        if order[0] == "o" and order != "ord":
            return self._compare(order[1:].upper(), a, b)
        if order in ("uno", "ord"):
            ordered = self._compare("EQ", a, a)
            if a != b and self.constant_of(b) is None:
                ordered = self._masks("and", ordered, self._compare("EQ", b, b))
            return ordered if order == "ord" else self.negated(ordered)
        opposite = {"lt": "GE", "ge": "LT", "gt": "LE", "le": "GT", "ne": "EQ", "eq": "NE"}[order[1:]]
        return self.negated(self._compare(opposite, a, b))

    def _integers(self, order: str, a: V, b: V) -> V:
        """With 0 as float32, which keeps the sign; else a >= b where the larger is a."""
        plain = order[-2:]
        if self.constant_of(b) == 0:
            predicate = {"eq": "oeq", "ne": "une"}.get(plain, f"o{plain}")
            return self.cmp(f"fcmp {predicate}", self.cast("sitofp", a, FLOAT), self.const(FLOAT, 0.0))
        if plain in ("eq", "ne"):
            same = self._same(a, b)
        else:
            same = self._same(self.commuting("Max" if plain in ("lt", "ge") else "Min", a, b), a)
        return same if plain in ("eq", "ge", "le") else self.negated(same)

    def _same(self, a: V, b: V) -> V:
        """Equality of int32, the one comparison that the unit has of them."""
        constant = self.constant_of(b)
        if constant is not None:
            text = f"CompareScalar({{d}}, {{0}}, {number(constant, INT)}, CMPMODE::EQ, {WHOLE})"
            return self.emit(MASK, text, self.own(a))
        return self.emit(MASK, f"Compare({{d}}, {{0}}, {{1}}, CMPMODE::EQ, {WHOLE})", self.own(a), self.own(b))

    def pick(self, greater: bool, a: V, b: V) -> V:
        """The greater or the lesser of two; `b` where one is NaN."""
        return self.select(self.cmp("fcmp olt" if greater else "fcmp ogt", b, a), a, b)

    def select(self, condition: V, a: V, b: V) -> V:
        chosen = self.constant_of(condition)
        if chosen is not None:
            return a if chosen else b
        if a.type == MASK:
            yes, no = self._masks("and", condition, a), self._masks("and", self.negated(condition), b)
            return self._masks("or", yes, no)
        view = "" if a.type == FLOAT else ".ReinterpretCast<float>()"
        constant = self.constant_of(b)
        if constant is not None and a.type == FLOAT:
            mode = "VSEL_TENSOR_SCALAR_MODE"
            text = f"Select({{d}}, {{0}}, {{1}}, {number(constant, FLOAT)}, SELMODE::{mode}, {COUNT})"
            return self.emit(FLOAT, text, condition, self.settled(a))
        mode = "VSEL_TENSOR_TENSOR_MODE"
        text = f"Select({{d}}{view}, {{0}}, {{1}}{view}, {{2}}{view}, SELMODE::{mode}, {COUNT})"
        return self.emit(a.type, text, condition, self.settled(a), self.settled(b))

    # -- conversions and functions -----------------------------------------------------------------------------------
    def cast(self, opcode: str, a: V, type_: str) -> V:
        if a.type == type_:
            return a
        if opcode == "bitcast":
            return V(type_, self.settled(a).ref)  # the bits stay where they are
        if opcode in ("sitofp", "uitofp") and a.type == INT:
            return self.emit(FLOAT, f"Cast({{d}}, {{0}}, RoundMode::CAST_RINT, {COUNT})", self.settled(a))
        if opcode == "fptosi" and type_ == INT:
            return self.emit(INT, f"Cast({{d}}, {{0}}, RoundMode::CAST_TRUNC, {COUNT})", self.settled(a))
        if a.type == MASK and scalar_of(type_) == "float":
            return self.select(a, self.const(FLOAT, 1.0), self.const(FLOAT, 0.0))
        raise TargetError(f"no tile instruction for {opcode} from {scalar_of(a.type)} to {scalar_of(type_)}")

    def rounded(self, a: V, mode: str) -> V:
        """To a whole number, in the same type."""
        return self.emit(FLOAT, f"Cast({{d}}, {{0}}, RoundMode::CAST_{mode}, {COUNT})", self.settled(a))

    def call(self, intrinsic: str, result: str, *arguments: V, overload: Any = None) -> V:
        functions: dict[str, Callable[..., V]] = {
            "fabs": lambda a: self.emit(FLOAT, f"Abs({{d}}, {{0}}, {COUNT})", self.settled(a)),
            "sqrt": lambda a: self.emit(FLOAT, f"Sqrt({{d}}, {{0}}, {COUNT})", self.settled(a)),
            "copysign": self._copysign,
            "floor": lambda a: self.rounded(a, "FLOOR"),
            "ceil": lambda a: self.rounded(a, "CEIL"),
            "trunc": lambda a: self.rounded(a, "TRUNC"),
            "rint": lambda a: self.rounded(a, "RINT"),
            "smin": lambda a, b: self.commuting("Min", a, b),
        }
        if intrinsic not in functions:
            raise TargetError(f"no tile instruction for {intrinsic}")
        return functions[intrinsic](*arguments)

    def unary(self, name: str, a: V) -> V:
        """A float32 instruction of one operand: Exp, Ln …"""
        return self.emit(FLOAT, f"{name}({{d}}, {{0}}, {COUNT})", self.settled(a))

    def _copysign(self, a: V, b: V) -> V:
        magnitude = self._and(self.cast("bitcast", a, INT), self.bits(INT, 0x7FFFFFFF))
        sign = self._and(self.cast("bitcast", b, INT), self.bits(INT, 0x80000000))
        return self.cast("bitcast", self._or(magnitude, sign), FLOAT)

    # -- loops -------------------------------------------------------------------------------------------------------
    def repeat(self, most: int, mask: V, values: Sequence[V], step: Step) -> list[V]:
        """The values after `step` was taken `most` times, or until no lane of the mask is left; with most = 1 that is a
        branch. A step takes the values and gives the next mask and values, of all lanes: also those out of the mask."""
        kept = [self._copied(v) for v in values]
        again = self._copied(mask) if most > 1 else self.settled(mask)
        loop = Loop([again, *kept] if most > 1 else kept)
        several = f"for (int32_t step = 0; step < {most} && AnyOf({{0}}, {COUNT}); ++step) {{{{"
        outside = dict(self.known)
        head = several if most > 1 else f"if (AnyOf({{0}}, {COUNT})) {{{{"
        self._append(Instruction(V("", ""), head, (again,), loop=loop))
        following, results = step(*kept)
        for place, value in zip(loop.carried, (following, *results) if most > 1 else results, strict=True):
            self._append(Instruction(V(place.type, ""), COPY[place.type], (self.settled(value),), onto=place))
        self._append(Instruction(V("", ""), "}}", (), loop=loop))
        self.known = outside  # what the loop made is not made where the loop is not entered
        self.carried.update(v.ref for v in loop.carried)
        return kept

    def _copied(self, value: V) -> V:
        """In a temporary of its own."""
        value = self.settled(value)
        result = V(value.type, f"%{len(self.instructions)}")
        self._append(Instruction(result, COPY[value.type], (value,)))
        return result

    def _append(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)

    # -- temporaries -------------------------------------------------------------------------------------------------
    def listing(self, result: V, into: str | None = None) -> tuple[list[str], str, int, int]:
        """C++ lines that compute a value: (lines, the tensor that holds it, float temporaries, mask temporaries).

        `into`: a float32 or int32 tensor that the last instruction may write instead of a temporary.
        """
        result = self.settled(result)
        if into is not None and result.ref in self.carried:
            result = self._copied(result)  # what a loop repeats is not written where operands may lie
        needed = self._needed(result)
        last = _last_uses(needed)
        last[result.ref] = len(needed)
        tensors = dict(self.direct)  # by reference: the type that the tensor is declared with, and its name
        free: dict[bool, list[int]] = {False: [], True: []}
        used = {False: 0, True: 0}
        place: dict[str, tuple[bool, int]] = {}
        lines: list[str] = []
        indent = ""
        for number, each in enumerate(needed):
            mask = each.result.type == MASK
            dying = [ref for ref in _uses(each) if ref in place and last[ref] == number]
            reusable = "Gather" not in each.text and "Compare" not in each.text
            for ref in dying if reusable else ():
                kind, index = place[ref]
                free[kind].append(index)
            if each.onto is not None:
                tensors[each.result.ref] = tensors[each.onto.ref]
            elif into is not None and each.result.ref == result.ref:
                tensors[each.result.ref] = V(result.type, into)
            elif each.loop is None:
                pool = free[mask]
                pool.sort()
                index = pool.pop(0) if pool else used[mask]
                used[mask] = max(used[mask], index + 1)
                place[each.result.ref] = (mask, index)
                tensors[each.result.ref] = V(MASK, f"m{index}") if mask else V(FLOAT, f"t{index}")
            for ref in dying if not reusable else ():
                kind, index = place[ref]
                free[kind].append(index)
            if each.loop is None:
                lines.append(indent + self._line(each, tensors))
            else:
                indent = "    " if each.operands else ""
                lines.append(each.text.format(*(tensors[o.ref].ref for o in each.operands)))
        return lines, tensors[result.ref].ref, used[False], used[True]

    def _needed(self, result: V) -> list[Instruction]:
        wanted = {result.ref}
        kept = []
        entered: Loop | None = None
        for each in reversed(self.instructions):
            if each.loop is not None and not each.operands and any(v.ref in wanted for v in each.loop.carried):
                entered = each.loop
                wanted |= {v.ref for v in entered.carried}
            repeated = entered is not None and (each.loop is entered or each.onto in entered.carried)
            if repeated or (each.result.ref in wanted and each.loop is None and each.onto is None):
                kept.append(each)
                wanted |= {o.ref for o in each.operands}
            if each.loop is entered and each.operands:
                entered = None
        return kept[::-1]

    @staticmethod
    def _line(each: Instruction, tensors: dict[str, V]) -> str:
        bitwise = each.text.startswith(("And(", "Or(", "Not("))

        def view(value: V) -> str:
            declared, name = tensors[value.ref]
            if bitwise:
                return f"{name}.ReinterpretCast<uint16_t>()"
            return name if declared == value.type else f"{name}.ReinterpretCast<{ELEMENTS[value.type]}>()"

        return each.text.format(*map(view, each.operands), d=view(each.result)) + ";"


def _uses(each: Instruction) -> list[str]:
    """What an instruction reads, and the place that it writes over."""
    return list(dict.fromkeys(v.ref for v in (*each.operands, *([each.onto] if each.onto else []))))


def _last_uses(instructions: Sequence[Instruction]) -> dict[str, int]:
    """By value, the number of the last instruction that uses it: what a loop finds made is used until its end."""
    last: dict[str, int] = {}
    before: set[str] = set()
    found: set[str] = set()  # what the loop uses of that
    made: set[str] = set()
    inside = False
    for number, each in enumerate(instructions):
        if each.loop is not None and each.operands:
            inside, before, found = True, set(made), {v.ref for v in each.loop.carried}
        for ref in _uses(each):
            last[ref] = number
            if inside and ref in before:
                found.add(ref)
        if each.loop is not None and not each.operands:
            inside = False
            last.update(dict.fromkeys(found, number))
        made.add(each.result.ref)
    return last


def number(value: float | int | bool, type_: str) -> str:
    """A constant as C++: exact, and of the type that the instruction wants."""
    if type_ == INT:
        return f"static_cast<int32_t>({int(value)})" if abs(int(value)) < 1 << 31 else "INT32_MIN"
    value = float(value)
    if value != value:
        return "QUIET_NAN"
    if value in (float("inf"), float("-inf")):
        return "-INFINITE" if value < 0 else "INFINITE"
    if value == int(value) and abs(value) < 1e6 and not (value == 0 and str(value).startswith("-")):
        return f"{value:.1f}f"
    return f"{value.hex()}f"
