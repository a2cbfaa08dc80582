"""Integers of 32 bits and fewer on the vector unit: as int32 tiles, wrapped to their width where they are stored.

8 bits come in and go out through half, 16 bits through float32 (in) and int32 (out): the conversions that the unit has,
all exact for such values. uint32 is the same bits as int32; comparisons of it flip the sign bit first.

    int8 add     int8 -> half -> int32, Add, wrap (shift left by 24, right by 24), int32 -> float -> half -> int8
"""

from __future__ import annotations

from collections.abc import Callable

from autofusion.dtypes import DType
from autofusion.targets.ascend.tiles import COUNT, FLOAT, INT, Tiles
from autofusion.targets.vecmath.values import V

# What an int32 tile stands for.
NARROW = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)
TILED = (DType.INT32, DType.UINT32, *NARROW)
Emit = Callable[..., V]  # (tiles, element type of the operands, operands …)
LEAST = -(1 << 31)


def limits(dtype: DType) -> tuple[int, int]:
    bits = dtype.size * 8
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.is_signed else (0, (1 << bits) - 1)


def constant(e: Tiles, value: int) -> V:
    return e.bits(INT, value)


# -- in and out ------------------------------------------------------------------------------------------------------
def loaded(e: Tiles, dtype: DType, tensor: str) -> V:
    """A contiguous row of integers as an int32 tile."""
    if dtype is DType.INT32:
        return e.buffer(INT, tensor)
    if dtype is DType.UINT32:
        return e.buffer(INT, f"{tensor}.ReinterpretCast<int32_t>()")
    if dtype.size == 1:
        text = f"Cast(h0, {tensor}, RoundMode::CAST_NONE, {COUNT}); Cast({{d}}, h0, RoundMode::CAST_RINT, {COUNT})"
        return e.emit(INT, text)
    view = "" if dtype.is_signed else ".ReinterpretCast<int16_t>()"
    return extended(e, dtype, e.emit(FLOAT, f"Cast({{d}}, {tensor}{view}, RoundMode::CAST_NONE, {COUNT})"))


def extended(e: Tiles, dtype: DType, wide: V) -> V:
    """16-bit integers, given as float32 with a sign, as int32."""
    value = e.cast("fptosi", wide, INT)
    return value if dtype.is_signed else e.op("and", value, constant(e, 0xFFFF))


def wrapped(e: Tiles, dtype: DType, value: V) -> V:
    """The low bits, as a number of the type; of uint16 as one of int16, which is what it is converted to."""
    if dtype not in NARROW:
        return value
    if dtype is DType.UINT8:
        return e.op("and", value, constant(e, 0xFF))
    places = constant(e, 32 - dtype.size * 8)
    return e.op("ashr", e.op("shl", value, places), places)


def stored(e: Tiles, dtype: DType, value: V) -> tuple[V, str]:
    """(the tile to convert, the text of the conversion into `{goal}`) of an int32 tile."""
    value = wrapped(e, dtype, value)
    if dtype.size == 1:
        text = f"Cast(h0, {{0}}, RoundMode::CAST_NONE, {COUNT}); Cast({{goal}}, h0, RoundMode::CAST_TRUNC, {COUNT});"
        return e.cast("sitofp", value, FLOAT), text
    if dtype.size == 2:
        return value, f"Cast({{goal}}, {{0}}, RoundMode::CAST_NONE, {COUNT});"
    return value, f"Cast({{goal}}, {{0}}, RoundMode::CAST_NONE, {COUNT});"


# -- 64 bits ---------------------------------------------------------------------------------------------------------
WIDE = (DType.INT64, DType.UINT64)
Halves = tuple[V, V]  # the low and the high 32 bits


def _same(e: Tiles, dtype: DType, a: Halves, b: Halves) -> V:
    return e.op("and", e.cmp("icmp eq", a[0], b[0]), e.cmp("icmp eq", a[1], b[1]))


def _less(e: Tiles, dtype: DType, a: Halves, b: Halves) -> V:
    """By the high halves, by the low ones where those are equal."""
    high = DType.INT32 if dtype.is_signed else DType.UINT32
    below = e.cmp("icmp slt", ordered(e, DType.UINT32, a[0]), ordered(e, DType.UINT32, b[0]))
    below = e.op("and", e.cmp("icmp eq", a[1], b[1]), below)
    return e.op("or", e.cmp("icmp slt", ordered(e, high, a[1]), ordered(e, high, b[1])), below)


# Comparisons of 64-bit integers by their halves.
WIDE_COMPARISONS: dict[str, Callable[[Tiles, DType, Halves, Halves], V]] = {
    "eq": _same,
    "ne": lambda e, dtype, a, b: e.negated(_same(e, dtype, a, b)),
    "lt": _less,
    "gt": lambda e, dtype, a, b: _less(e, dtype, b, a),
    "le": lambda e, dtype, a, b: e.negated(_less(e, dtype, b, a)),
    "ge": lambda e, dtype, a, b: e.negated(_less(e, dtype, a, b)),
}


# -- conversions -----------------------------------------------------------------------------------------------------
def from_float(e: Tiles, dtype: DType, value: V) -> V:
    """Towards zero, to the nearest end where it does not fit, NaN to 0."""
    least, greatest = limits(dtype)
    value = e.select(e.cmp("fcmp ord", value, value), value, e.const(FLOAT, 0.0))
    if dtype is DType.UINT32:
        value = e.commuting("Max", value, e.const(FLOAT, 0.0))
        upper = e.cmp("fcmp oge", value, e.const(FLOAT, 2.0**31))
        low = e.cast("fptosi", e.select(upper, e.op("fsub", value, e.const(FLOAT, 2.0**31)), value), INT)
        over = e.cmp("fcmp oge", value, e.const(FLOAT, 2.0**32))
        return e.select(over, constant(e, -1), e.select(upper, e.op("add", low, constant(e, LEAST)), low))
    if dtype is not DType.INT32:
        value = e.commuting("Max", value, e.const(FLOAT, float(least)))
        value = e.commuting("Min", value, e.const(FLOAT, float(greatest)))
    return e.cast("fptosi", value, INT)


def to_float(e: Tiles, dtype: DType, value: V, reduced: bool) -> V:
    """To nearest, ties to even; uint32 as the sum of its halves, which rounds once. `reduced`: the result is rounded
    again, so numbers of more than 24 bits have their low 8 made one bit, that says whether one of them was set."""
    if reduced and dtype in (DType.INT32, DType.UINT32):
        inexact = e.cmp("icmp ne", e.op("and", value, constant(e, 0xFF)), constant(e, 0))
        kept = e.op("and", value, constant(e, -0x100))
        sticky = e.select(inexact, e.op("or", kept, constant(e, 0x80)), kept)
        large = e.cmp("fcmp oge", e.call("fabs", FLOAT, to_float(e, dtype, value, False)), e.const(FLOAT, 2.0**24))
        value = e.select(large, sticky, value)
    if dtype is not DType.UINT32:
        return e.cast("sitofp", value, FLOAT)
    high = e.cast("sitofp", e.op("lshr", value, constant(e, 16)), FLOAT)
    low = e.cast("sitofp", e.op("and", value, constant(e, 0xFFFF)), FLOAT)
    return e.op("fadd", e.op("fmul", high, e.const(FLOAT, 65536.0)), low)


def of_mask(e: Tiles, value: V) -> V:
    """0 or 1."""
    return e.cast("fptosi", e.select(value, e.const(FLOAT, 1.0), e.const(FLOAT, 0.0)), INT)


# -- operators -------------------------------------------------------------------------------------------------------
def _op(opcode: str) -> Emit:
    return lambda e, dtype, *x: e.op(opcode, *x)


def ordered(e: Tiles, dtype: DType, value: V) -> V:
    """A tile whose order as int32 is the order of the type."""
    known = e.constant_of(value)
    if known is not None and dtype is DType.UINT32:
        return constant(e, int(known) + LEAST)
    return e.op("add", value, constant(e, LEAST)) if dtype is DType.UINT32 else value


def _compare(order: str) -> Emit:
    def emit(e: Tiles, dtype: DType, a: V, b: V) -> V:
        if order in ("eq", "ne"):
            return e.cmp(f"icmp {order}", a, b)
        return e.cmp(f"icmp s{order}", ordered(e, dtype, a), ordered(e, dtype, b))

    return emit


def _extreme(name: str) -> Emit:
    def emit(e: Tiles, dtype: DType, a: V, b: V) -> V:
        return ordered(e, dtype, e.commuting(name, ordered(e, dtype, a), ordered(e, dtype, b)))

    return emit


def _abs(e: Tiles, dtype: DType, x: V) -> V:
    return e.commuting("Max", x, e.by_scalar("Muls", x, -1)) if dtype.is_signed else x


def _divided(e: Tiles, dtype: DType, a: V, b: V) -> tuple[V, V, V]:
    """(quotient rounded down, remainder with the divisor's sign, whether the divisor is 0)."""
    if dtype is DType.UINT32:
        return _divided_unsigned(e, a, b)
    zero = e.cmp("icmp eq", b, constant(e, 0))
    b = e.select(zero, constant(e, 1), b)
    divisor = e.cast("sitofp", b, FLOAT)
    ratio = e.op("fdiv", e.cast("sitofp", a, FLOAT), divisor)
    if dtype in NARROW:  # below 2^24, where the rounded quotient is on the right side of every integer
        quotient = e.cast("fptosi", e.rounded(ratio, "FLOOR"), INT)
        return quotient, e.op("sub", a, e.op("mul", quotient, b)), zero
    quotient = e.cast("fptosi", ratio, INT)
    rest = e.op("sub", a, e.op("mul", quotient, b))
    more = e.cast("fptosi", e.op("fdiv", e.cast("sitofp", rest, FLOAT), divisor), INT)
    quotient, rest = e.op("add", quotient, more), e.op("sub", rest, e.op("mul", more, b))
    negative = e.cmp("icmp slt", b, constant(e, 0))
    for _ in range(2):  # at most a divisor too much, then the sign
        wrong = e.op("xor", e.cmp("icmp slt", rest, constant(e, 0)), negative)
        wrong = e.op("and", wrong, e.cmp("icmp ne", rest, constant(e, 0)))
        quotient = e.select(wrong, e.op("add", quotient, constant(e, -1)), quotient)
        rest = e.select(wrong, e.op("add", rest, b), rest)
    over = e.select(negative, e.cmp("icmp sle", rest, b), e.cmp("icmp sge", rest, b))
    quotient = e.select(over, e.op("add", quotient, constant(e, 1)), quotient)
    return quotient, e.select(over, e.op("sub", rest, b), rest), zero


def _divided_unsigned(e: Tiles, a: V, b: V) -> tuple[V, V, V]:
    """Of uint32: twice the quotient of half the dividend, or one more; of divisors from 2^31 on 0, or one more."""
    large = e.cmp("icmp slt", b, constant(e, 0))
    half = e.op("lshr", a, constant(e, 1))
    quotient, _, zero = _divided(e, DType.INT32, half, e.select(large, constant(e, 1), b))
    quotient = e.select(large, constant(e, 0), e.op("shl", quotient, constant(e, 1)))
    rest = e.op("sub", a, e.op("mul", quotient, b))
    over = e.cmp("icmp sge", ordered(e, DType.UINT32, rest), ordered(e, DType.UINT32, b))
    quotient = e.select(over, e.op("add", quotient, constant(e, 1)), quotient)
    return quotient, e.select(over, e.op("sub", rest, b), rest), zero


def _floor_divide(e: Tiles, dtype: DType, a: V, b: V) -> V:
    quotient, _, zero = _divided(e, dtype, a, b)
    return e.select(zero, constant(e, -1), quotient)


def _remainder(e: Tiles, dtype: DType, a: V, b: V) -> V:
    _, rest, zero = _divided(e, dtype, a, b)
    return e.select(zero, a, rest)


def _shift(opcode: str) -> Emit:
    """By the bits of the amount, one after the other; an amount outside the width leaves 0, or the sign."""

    def emit(e: Tiles, dtype: DType, a: V, b: V) -> V:
        name = opcode if opcode == "shl" else "ashr" if dtype.is_signed else "lshr"
        width = dtype.size * 8
        sign = constant(e, 0) if name != "ashr" else e.op("ashr", a, constant(e, 31))
        amount = e.constant_of(b)
        if amount is not None:
            return e.op(name, a, b) if 0 <= int(amount) < width else sign
        inside = e.op("and", e.cmp("icmp sge", b, constant(e, 0)), e.cmp("icmp slt", b, constant(e, width)))
        for place in range(width.bit_length() - 1):
            bit = e.op("and", b, constant(e, 1 << place))
            unset = e.cmp("icmp eq", bit, constant(e, 0))
            a = e.select(unset, a, e.op(name, a, constant(e, 1 << place)))
        return e.select(inside, a, sign)

    return emit


INTEGERS: dict[str, Emit] = {
    "add": _op("add"),
    "sub": _op("sub"),
    "mul": _op("mul"),
    "neg": lambda e, dtype, x: e.by_scalar("Muls", x, -1),
    "abs": _abs,
    "maximum": _extreme("Max"),
    "minimum": _extreme("Min"),
    "eq": _compare("eq"),
    "ne": _compare("ne"),
    "lt": _compare("lt"),
    "le": _compare("le"),
    "gt": _compare("gt"),
    "ge": _compare("ge"),
    "bitwise_and": _op("and"),
    "bitwise_or": _op("or"),
    "bitwise_xor": _op("xor"),
    "bitwise_not": lambda e, dtype, x: e.inverted(x),
    "shift_left": _shift("shl"),
    "shift_right": _shift("shr"),
    "int_floor_divide": _floor_divide,
    "int_remainder": _remainder,
    "copy": lambda e, dtype, x: x,
    "where": lambda e, dtype, c, a, b: e.select(c, a, b),
}
