"""The op table's elementwise primitives as LLVM IR: one line each.

Operands arrive in register form (see `lanes`), all of one type but for `where`; the result is in register form, not yet
rounded to a reduced type.
"""

from __future__ import annotations

from collections.abc import Callable

from autofusion.dtypes import DType
from autofusion.targets.cpu.emit import Emitter
from autofusion.targets.cpu.lanes import REGISTER
from autofusion.targets.vecmath.functions import FUNCTIONS
from autofusion.targets.vecmath.values import V, like, scalar_of, vector

Emit = Callable[[Emitter, list[V], DType, DType], V]  # operands, operand type, result type


def _by_kind(for_float: str, for_int: str, for_unsigned: str | None = None) -> Emit:
    def emit(e: Emitter, x: list[V], source: DType, result: DType) -> V:
        opcode = for_float if source.is_float else for_int
        if for_unsigned and not source.is_signed and not source.is_float:
            opcode = for_unsigned
        return e.op(opcode, x[0], x[1])

    return emit


def _compare(for_float: str, for_signed: str, for_unsigned: str) -> Emit:
    def emit(e: Emitter, x: list[V], source: DType, result: DType) -> V:
        if source.is_float:
            return e.cmp(f"fcmp {for_float}", x[0], x[1])
        return e.cmp(f"icmp {for_signed if source.is_signed else for_unsigned}", x[0], x[1])

    return emit


def _extreme(greater: bool) -> Emit:
    """max or min; NaN if either is. (Loop nests leave the test for NaN out where they can: see `nans`.)"""

    def emit(e: Emitter, x: list[V], source: DType, result: DType) -> V:
        a, b = x
        if not source.is_float:
            if source is DType.BOOL:
                return e.op("or" if greater else "and", a, b)
            order = ("s" if source.is_signed else "u") + ("gt" if greater else "lt")
            return e.select(e.cmp(f"icmp {order}", a, b), a, b)
        return e.select(e.cmp("fcmp uno", a, a), a, e.pick(greater, a, b))

    return emit


def _safe_divisor(e: Emitter, a: V, b: V, source: DType) -> V:
    """b, or 1 where the hardware would trap: division by zero, and of the least integer by -1."""
    one = e.const(b.type, 1)
    bad = e.cmp("icmp eq", b, e.const(b.type, 0))
    if source.is_signed:
        least = e.bits(a.type, 1 << (int(scalar_of(a.type)[1:]) - 1))
        overflow = e.op("and", e.cmp("icmp eq", b, e.const(b.type, -1)), e.cmp("icmp eq", a, least))
        bad = e.op("or", bad, overflow)
    return e.select(bad, one, b)


def _int_floor_divide(e: Emitter, x: list[V], source: DType, result: DType) -> V:
    a, b = x
    zero = e.const(b.type, 0)
    safe = _safe_divisor(e, a, b, source)
    if not source.is_signed:
        return e.select(e.cmp("icmp eq", b, zero), e.bits(b.type, -1), e.op("udiv", a, safe))
    quotient, rest = e.op("sdiv", a, safe), e.op("srem", a, safe)
    down = e.op("and", e.cmp("icmp ne", rest, zero), e.cmp("icmp slt", e.op("xor", rest, safe), zero))
    floored = e.op("sub", quotient, e.cast("zext", down, b.type))
    return e.select(e.cmp("icmp eq", b, zero), e.const(b.type, -1), floored)


def _int_remainder(e: Emitter, x: list[V], source: DType, result: DType) -> V:
    a, b = x
    zero = e.const(b.type, 0)
    safe = _safe_divisor(e, a, b, source)
    if not source.is_signed:
        return e.select(e.cmp("icmp eq", b, zero), a, e.op("urem", a, safe))
    rest = e.op("srem", a, safe)
    up = e.op("and", e.cmp("icmp ne", rest, zero), e.cmp("icmp slt", e.op("xor", rest, safe), zero))
    wrapped = e.select(up, e.op("add", rest, safe), rest)
    return e.select(e.cmp("icmp eq", b, zero), a, wrapped)


def _library(function: str) -> Emit:
    """By the C library lane by lane."""

    def emit(e: Emitter, x: list[V], source: DType, result: DType) -> V:
        return e.library(f"{function}f" if scalar_of(x[0].type) == "float" else function, *x)

    return emit


def _shift(opcode: str) -> Emit:
    """A shift by an amount outside the width (LLVM's has no value there) is one by the width: 0, or all sign bits."""

    def emit(e: Emitter, x: list[V], source: DType, result: DType) -> V:
        a, amount = x
        width = int(scalar_of(a.type)[1:])
        inside = e.cmp("icmp ult", amount, e.const(amount.type, width))
        if opcode == "shr" and source.is_signed:
            return e.op("ashr", a, e.select(inside, amount, e.const(amount.type, width - 1)))
        shifted = e.op("shl" if opcode == "shl" else "lshr", a, e.select(inside, amount, e.const(amount.type, 0)))
        return e.select(inside, shifted, e.const(a.type, 0))

    return emit


def _neg(e: Emitter, x: list[V], source: DType, result: DType) -> V:
    return e.op("fneg", x[0]) if source.is_float else e.op("sub", e.const(x[0].type, 0), x[0])


def _abs(e: Emitter, x: list[V], source: DType, result: DType) -> V:
    if source.is_float:
        return e.call("fabs", x[0].type, x[0])
    if not source.is_signed:
        return x[0]
    return e.select(e.cmp("icmp slt", x[0], e.const(x[0].type, 0)), e.op("sub", e.const(x[0].type, 0), x[0]), x[0])


def convert(e: Emitter, x: V, source: DType, result: DType) -> V:
    """Element type conversion in register form: truncating, saturating, NaN to 0 for float to int; wrapping for
    ints."""
    goal = like(x.type, REGISTER[result])
    if source is result or (
        x.type == goal and source.is_float == result.is_float and DType.BOOL not in (source, result)
    ):
        return x
    if result is DType.BOOL:
        test = "fcmp une" if source.is_float else "icmp ne"
        return e.cmp(test, x, e.const(x.type, 0))
    if source is DType.BOOL:
        return e.cast("uitofp" if result.is_float else "zext", x, goal)
    if source.is_float and result.is_float:
        if result.is_reduced and source is DType.FLOAT64:
            return _to_odd(e, x)
        return e.cast("fptrunc" if source is DType.FLOAT64 else "fpext", x, goal)
    if source.is_float:
        name = "fptosi.sat" if result.is_signed else "fptoui.sat"
        return e.call(name, goal, x, overload=(goal, x.type))
    if result.is_float:
        opcode = "sitofp" if source.is_signed else "uitofp"
        if result.is_reduced and source.size >= 4:
            return _to_odd(e, e.cast(opcode, x, like(x.type, "double")))
        return e.cast(opcode, x, goal)
    if result.size < source.size:
        return e.cast("trunc", x, goal)
    return e.cast("sext" if source.is_signed else "zext", x, goal)


def _to_odd(e: Emitter, x: V) -> V:
    """double -> float rounded to odd, so that rounding again to fewer bits is exact (Boldo and Melquiond 2008)."""
    near = e.cast("fptrunc", x, like(x.type, "float"))
    back = e.cast("fpext", near, x.type)
    bits = e.cast("bitcast", near, like(x.type, "i32"))
    above = e.cmp("fcmp ogt", e.call("fabs", x.type, back), e.call("fabs", x.type, x))
    bits = e.select(above, e.op("sub", bits, e.const(bits.type, 1)), bits)
    inexact = e.cmp("fcmp one", back, x)
    bits = e.select(inexact, e.op("or", bits, e.const(bits.type, 1)), bits)
    return e.cast("bitcast", bits, near.type)


def _math(name: str) -> Emit:
    return lambda e, x, source, result: FUNCTIONS[name].emit(e, *x)


def _not(e: Emitter, x: list[V], source: DType, result: DType) -> V:
    return e.op("xor", x[0], e.const(x[0].type, True if source is DType.BOOL else -1))


PRIMITIVES: dict[str, Emit] = {
    "add": _by_kind("fadd", "add"),
    "sub": _by_kind("fsub", "sub"),
    "mul": _by_kind("fmul", "mul"),
    "div": _by_kind("fdiv", "sdiv"),
    "int_floor_divide": _int_floor_divide,
    "int_remainder": _int_remainder,
    "fmod": _library("fmod"),
    "maximum": _extreme(greater=True),
    "minimum": _extreme(greater=False),
    "neg": _neg,
    "abs": _abs,
    "copy": lambda e, x, source, result: convert(e, x[0], source, result),
    "cast": lambda e, x, source, result: convert(e, x[0], source, result),
    "eq": _compare("oeq", "eq", "eq"),
    "ne": _compare("une", "ne", "ne"),
    "lt": _compare("olt", "slt", "ult"),
    "le": _compare("ole", "sle", "ule"),
    "gt": _compare("ogt", "sgt", "ugt"),
    "ge": _compare("oge", "sge", "uge"),
    "logical_and": lambda e, x, source, result: e.op("and", x[0], x[1]),
    "logical_or": lambda e, x, source, result: e.op("or", x[0], x[1]),
    "logical_xor": lambda e, x, source, result: e.op("xor", x[0], x[1]),
    "logical_not": _not,
    "bitwise_and": lambda e, x, source, result: e.op("and", x[0], x[1]),
    "bitwise_or": lambda e, x, source, result: e.op("or", x[0], x[1]),
    "bitwise_xor": lambda e, x, source, result: e.op("xor", x[0], x[1]),
    "bitwise_not": _not,
    "shift_left": _shift("shl"),
    "shift_right": _shift("shr"),
    "copysign": lambda e, x, source, result: e.call("copysign", x[0].type, x[0], x[1]),
    "where": lambda e, x, source, result: e.select(x[0], x[1], x[2]),
    "sqrt": _math("sqrt"),
    "rsqrt": _math("rsqrt"),
    "exp": _math("exp"),
    "exp2": _math("exp2"),
    "expm1": _math("expm1"),
    "log": _math("log"),
    "log2": _math("log2"),
    "log1p": _math("log1p"),
    "tanh": _math("tanh"),
    "erf": _math("erf"),
    "sin": _math("sin"),
    "cos": _math("cos"),
    "tan": _math("tan"),
    "asin": _math("asin"),
    "acos": _math("acos"),
    "atan": _math("atan"),
    "atan2": _math("atan2"),
    "sinh": _math("sinh"),
    "cosh": _math("cosh"),
    "cbrt": _library("cbrt"),
    "erfc": _library("erfc"),
    "lgamma": _library("lgamma"),
    "pow": _math("pow"),
    "sigmoid": _math("sigmoid"),
    "floor": _math("floor"),
    "ceil": _math("ceil"),
    "trunc": _math("trunc"),
    "round": _math("rint"),
}


__all__ = ["PRIMITIVES", "convert", "vector"]
