"""The op table's elementwise primitives as tile instructions in float32: one line each.

float16 and bfloat16 operands arrive converted, and the result is rounded when it is stored. What is no instruction of
the vector unit is composed of them, the elementary functions by the same formulas as on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable

from autofusion.targets.ascend.tiles import FLOAT, Tiles
from autofusion.targets.vecmath.functions import FUNCTIONS, NARROW
from autofusion.targets.vecmath.values import V

Emit = Callable[..., V]


def _op(opcode: str) -> Emit:
    return lambda e, *x: e.op(opcode, *x)


def _call(intrinsic: str) -> Emit:
    return lambda e, *x: e.call(intrinsic, FLOAT, *x)


def _compare(order: str) -> Emit:
    return lambda e, a, b: e.cmp(f"fcmp {order}", a, b)


def _extreme(name: str) -> Emit:
    """Max and Min are not promised to keep NaN ("assumed": they drop it), so an unordered operand is put back."""

    def emit(e: Tiles, a: V, b: V) -> V:
        chosen = e.commuting(name, a, b)
        for operand in (b, a):
            if e.constant_of(operand) is None:
                chosen = e.select(e.cmp("fcmp ord", operand, operand), chosen, operand)
        return chosen

    return emit


def _math(name: str) -> Emit:
    return lambda e, *x: FUNCTIONS[name].emit(e, *[e.own(v) for v in x])


def _narrow(name: str) -> Emit:
    return lambda e, *x: NARROW[name].emit(e, *[e.own(v) for v in x])


FLOATS: dict[str, Emit] = {
    "add": _op("fadd"),
    "sub": _op("fsub"),
    "mul": _op("fmul"),
    "div": _op("fdiv"),
    "neg": _op("fneg"),
    "abs": _call("fabs"),
    "copy": lambda e, x: x,
    "maximum": _extreme("Max"),
    "minimum": _extreme("Min"),
    "eq": _compare("oeq"),
    "ne": _compare("une"),
    "lt": _compare("olt"),
    "le": _compare("ole"),
    "gt": _compare("ogt"),
    "ge": _compare("oge"),
    "where": lambda e, c, a, b: e.select(c, a, b),
    "copysign": _call("copysign"),
    "sqrt": _call("sqrt"),
    "rsqrt": lambda e, x: e.op("fdiv", e.const(FLOAT, 1.0), e.call("sqrt", FLOAT, x)),
    "floor": _call("floor"),
    "ceil": _call("ceil"),
    "trunc": _call("trunc"),
    "round": _call("rint"),
    "exp": lambda e, x: e.unary("Exp", x),
    "log": lambda e, x: e.unary("Ln", x),
    "exp2": _math("exp2"),
    "expm1": _math("expm1"),
    "log2": _math("log2"),
    "log1p": _math("log1p"),
    "tanh": _math("tanh"),
    "sigmoid": _math("sigmoid"),
    "erf": _math("erf"),
    "pow": _math("pow"),
    "fmod": _narrow("fmod"),
    "erfc": _narrow("erfc"),
    "cbrt": _narrow("cbrt"),
    "lgamma": _narrow("lgamma"),
    "sin": _math("sin"),
    "cos": _math("cos"),
    "tan": _math("tan"),
    "sinh": _math("sinh"),
    "cosh": _math("cosh"),
    "asin": _math("asin"),
    "acos": _math("acos"),
    "atan": _math("atan"),
    "atan2": _math("atan2"),
}

MASKS: dict[str, Emit] = {
    "logical_and": _op("and"),
    "logical_or": _op("or"),
    "logical_xor": _op("xor"),
    "logical_not": lambda e, x: e.negated(x),
    "bitwise_and": _op("and"),
    "bitwise_or": _op("or"),
    "bitwise_xor": _op("xor"),
    "bitwise_not": lambda e, x: e.negated(x),
    "eq": lambda e, a, b: e.negated(e.op("xor", a, b)),
    "ne": _op("xor"),
    "maximum": _op("or"),
    "minimum": _op("and"),
    "lt": lambda e, a, b: e.op("and", e.negated(a), b),
    "gt": lambda e, a, b: e.op("and", a, e.negated(b)),
    "le": lambda e, a, b: e.op("or", e.negated(a), b),
    "ge": lambda e, a, b: e.op("or", a, e.negated(b)),
    "add": _op("or"),
    "mul": _op("and"),
    "copy": lambda e, x: x,
    "where": lambda e, c, a, b: e.select(c, a, b),
}
