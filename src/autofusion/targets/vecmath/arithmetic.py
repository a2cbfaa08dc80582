"""Formulas over emitted values: `Lanes` has the operators of arithmetic, `Format` the facts of a float format.

Every operator writes one instruction; a Python number next to a `Lanes` is the same constant in every lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from autofusion.targets.vecmath.values import Emitter, NarrowEmitter, V, WideEmitter, like, scalar_of


@dataclass(frozen=True)
class Format:
    """Facts of an IEEE format, and the constants that argument reductions split into several numbers.

    `magic` is 1.5 * 2^mantissa: adding it rounds to an integer and leaves that integer in the low bits.
    `ln2` is (high, low): high has so few bits that its product with any exponent is exact.
    """

    scalar: str
    integer: str
    mantissa: int
    bias: int
    smallest_normal: float
    magic: float
    ln2: tuple[float, float]
    half_pi: tuple[float, float]

    @property
    def one(self) -> int:
        """The bits of 1.0."""
        return self.bias << self.mantissa


FORMATS = {
    "float": Format(
        scalar="float",
        integer="i32",
        mantissa=23,
        bias=127,
        smallest_normal=2.0**-126,
        magic=1.5 * 2.0**23,
        ln2=(0.693145751953125, 1.428606765330187e-06),
        half_pi=(1.5707963705062866, -4.3711390001862426e-08),
    ),
    "double": Format(
        scalar="double",
        integer="i64",
        mantissa=52,
        bias=1023,
        smallest_normal=2.0**-1022,
        magic=1.5 * 2.0**52,
        ln2=(0.6931471806019545, -4.2009150726810846e-11),
        half_pi=(1.5707963267948966, 6.123233995736766e-17),
    ),
}


def format_of(x: V | Lanes) -> Format:
    """The format of a value of floating type; anything but `float` and `double` is a `TypeError`."""
    type_ = x.type
    if scalar_of(type_) not in FORMATS:
        raise TypeError(f"vector math takes float or double lanes, found {type_}; convert the value first")
    return FORMATS[scalar_of(type_)]


@dataclass(frozen=True, eq=False)
class Lanes:
    """A value of floating, integer or `i1` lanes together with the emitter that its operators write to."""

    e: Emitter
    v: V

    @property
    def type(self) -> str:
        return self.v.type

    @property
    def is_float(self) -> bool:
        return scalar_of(self.type) in FORMATS

    def constant(self, value: float | int) -> Lanes:
        """The same constant in every lane of this value's type; integers wrap to its width."""
        if self.is_float:
            return Lanes(self.e, self.e.const(self.type, value))
        return Lanes(self.e, self.e.bits(self.type, int(value)))

    def lift(self, other: Lanes | float | int) -> Lanes:
        return other if isinstance(other, Lanes) else self.constant(other)

    def _op(self, floating: str, integer: str, other: Lanes | float | int) -> Lanes:
        opcode = floating if self.is_float else integer
        return Lanes(self.e, self.e.op(opcode, self.v, self.lift(other).v))

    def __add__(self, other: Lanes | float | int) -> Lanes:
        return self._op("fadd", "add", other)

    def __sub__(self, other: Lanes | float | int) -> Lanes:
        return self._op("fsub", "sub", other)

    def __rsub__(self, other: float | int) -> Lanes:
        return self.constant(other) - self

    def __mul__(self, other: Lanes | float | int) -> Lanes:
        return self._op("fmul", "mul", other)

    def __truediv__(self, other: Lanes | float | int) -> Lanes:
        return Lanes(self.e, self.e.op("fdiv", self.v, self.lift(other).v))

    def __rtruediv__(self, other: float | int) -> Lanes:
        return self.constant(other) / self

    def __neg__(self) -> Lanes:
        return Lanes(self.e, self.e.op("fneg", self.v))

    def __and__(self, other: Lanes | int) -> Lanes:
        return Lanes(self.e, self.e.op("and", self.v, self.lift(other).v))

    def __or__(self, other: Lanes | int) -> Lanes:
        return Lanes(self.e, self.e.op("or", self.v, self.lift(other).v))

    def __xor__(self, other: Lanes | int) -> Lanes:
        return Lanes(self.e, self.e.op("xor", self.v, self.lift(other).v))

    def __lshift__(self, bits: int) -> Lanes:
        return Lanes(self.e, self.e.op("shl", self.v, self.constant(bits).v))

    def __rshift__(self, bits: int) -> Lanes:
        """Arithmetic shift; `logical_shift` shifts zeros in."""
        return Lanes(self.e, self.e.op("ashr", self.v, self.constant(bits).v))

    def logical_shift(self, bits: int) -> Lanes:
        return Lanes(self.e, self.e.op("lshr", self.v, self.constant(bits).v))

    def compare(self, floating: str, integer: str, other: Lanes | float | int) -> Lanes:
        predicate = f"fcmp {floating}" if self.is_float else f"icmp {integer}"
        return Lanes(self.e, self.e.cmp(predicate, self.v, self.lift(other).v))

    def __lt__(self, other: Lanes | float | int) -> Lanes:
        """Ordered: false if either side is NaN, like all comparisons here but `differs`."""
        return self.compare("olt", "slt", other)

    def __le__(self, other: Lanes | float | int) -> Lanes:
        return self.compare("ole", "sle", other)

    def __gt__(self, other: Lanes | float | int) -> Lanes:
        return self.compare("ogt", "sgt", other)

    def __ge__(self, other: Lanes | float | int) -> Lanes:
        return self.compare("oge", "sge", other)

    def equals(self, other: Lanes | float | int) -> Lanes:
        return self.compare("oeq", "eq", other)

    def differs(self, other: Lanes | float | int) -> Lanes:
        return self.compare("une", "ne", other)

    def where(self, yes: Lanes | float | int, no: Lanes | float | int) -> Lanes:
        """`self ? yes : no` for `i1` lanes; at least one of the two is a `Lanes`."""
        model = yes if isinstance(yes, Lanes) else no
        if not isinstance(model, Lanes):
            raise TypeError("where() needs at least one operand that is a Lanes, found two constants")
        return Lanes(self.e, self.e.select(self.v, model.lift(yes).v, model.lift(no).v))

    def any(self) -> V:
        """A scalar `i1`: whether some lane of this `i1` value is set."""
        if self.type == "i1":
            return self.v
        return self.e.call("vector.reduce.or", "i1", self.v, overload=(self.type,))

    def call(self, intrinsic: str, *others: Lanes) -> Lanes:
        """An LLVM intrinsic whose operands and result have this type."""
        return Lanes(self.e, self.e.call(intrinsic, self.type, self.v, *(other.v for other in others)))

    def abs(self) -> Lanes:
        return self.call("fabs")

    def copysign(self, sign: Lanes) -> Lanes:
        return self.call("copysign", sign)

    def with_sign_of(self, other: Lanes) -> Lanes:
        """Negated where the other's sign bit is set."""
        sign = 1 << (31 if format_of(self).scalar == "float" else 63)
        return (self.as_integer() ^ (other.as_integer() & sign)).as_float()

    def at_most(self, bound: float) -> Lanes:
        """min(self, bound), written so that NaN stays NaN."""
        return Lanes(self.e, self.e.pick(False, self.constant(bound).v, self.v))

    def at_least(self, bound: float) -> Lanes:
        """max(self, bound), written so that NaN stays NaN."""
        return Lanes(self.e, self.e.pick(True, self.constant(bound).v, self.v))

    def convert(self, opcode: str, scalar: str) -> Lanes:
        """`sitofp`, `fpext`, `trunc` … to as many lanes of `scalar`."""
        return Lanes(self.e, self.e.cast(opcode, self.v, like(self.type, scalar)))

    def as_integer(self) -> Lanes:
        """The bits of a float."""
        return self.convert("bitcast", format_of(self).integer)

    def as_float(self) -> Lanes:
        """The float with these bits."""
        return self.convert("bitcast", "float" if scalar_of(self.type) == "i32" else "double")


def fma(a: Lanes, b: Lanes | float, c: Lanes | float) -> Lanes:
    """a * b + c, rounded once where the target has the instruction and twice elsewhere.

    Only for formulas whose error bound holds either way.
    """
    if a.e.fma:
        return a.call("fma", a.lift(b), a.lift(c))
    return a * b + c


def wide_emitter(x: Lanes) -> WideEmitter:
    """The emitter of a formula that needs double precision or a branch."""
    assert x.e.wide
    return cast(WideEmitter, x.e)


def repeat(
    most: int, mask: Lanes, values: Sequence[Lanes], step: Callable[..., tuple[Lanes, Sequence[Lanes]]]
) -> list[Lanes]:
    """`NarrowEmitter.repeat` on lanes."""
    e = mask.e

    def one(*current: V) -> tuple[V, Sequence[V]]:
        following, results = step(*(Lanes(e, v) for v in current))
        return following.v, [r.v for r in results]

    return [Lanes(e, v) for v in cast(NarrowEmitter, e).repeat(most, mask.v, [v.v for v in values], one)]


def libm(name: str, *arguments: Lanes) -> Lanes:
    """The C library's function of `double`, called lane by lane."""
    e = wide_emitter(arguments[0])
    return Lanes(e, e.library(name, *(a.v for a in arguments)))
