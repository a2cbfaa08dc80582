"""Writing LLVM IR as text: values with types, straight-line operations, structured loops.

A function is built front to back. Control flow is structured (`loop`, `when`), so every value is defined before it
is used; mutable state lives in `slot`s (stack cells in the entry block), which LLVM turns into registers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from autofusion.targets.vecmath.values import V, lanes_of, like, scalar_of, vector


def mangle(type_: str) -> str:
    """The suffix that LLVM's overloaded intrinsics use: `<16 x float>` -> `v16f32`."""
    names = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}
    scalar = scalar_of(type_)
    text = names.get(scalar, scalar)
    return f"v{lanes_of(type_)}{text}" if type_.startswith("<") else text


def bytes_of(type_: str) -> int:
    """The size of a vector of floats or doubles."""
    return lanes_of(type_) * (8 if scalar_of(type_) == "double" else 4)


def literal(scalar: str, value: float | int | bool) -> str:
    """The text of a constant of a scalar type. A `float` is rounded to single precision first."""
    if scalar in ("float", "double"):
        number = float(value)
        if scalar == "float":
            number = float32_of(number)
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    if scalar == "i1":
        return "true" if value else "false"
    return str(int(value))


def float32_of(number: float) -> float:
    """`number` rounded to single precision, with overflow to infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


class Module:
    """The text of one LLVM module: functions, and the declarations that they need."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.declarations: dict[str, str] = {}
        self.globals: dict[str, str] = {}

    def declare(self, name: str, result: str, arguments: list[str]) -> None:
        self.declarations[name] = f"declare {result} @{name}({', '.join(arguments)})"

    def text(self) -> str:
        given = "\n".join(sorted(self.globals.values()))
        known = {line.partition("@")[2].partition("(")[0] for line in given.splitlines() if line.startswith("declare")}
        declared = [text for name, text in self.declarations.items() if name not in known]
        parts = [given, *self.functions, *sorted(declared)]
        return "\n".join(parts) + "\n"


_PICKS = {
    "<4 x float>": "x86.sse.{}.ps",
    "<8 x float>": "x86.avx.{}.ps.256",
    "<16 x float>": "x86.avx512.{}.ps.512",
    "<2 x double>": "x86.sse2.{}.pd",
    "<4 x double>": "x86.avx.{}.pd.256",
    "<8 x double>": "x86.avx512.{}.pd.512",
}
_SCALES = {
    "<4 x float>": "x86.avx512.mask.scalef.ps.128",
    "<8 x float>": "x86.avx512.mask.scalef.ps.256",
    "<16 x float>": "x86.avx512.mask.scalef.ps.512",
    "<2 x double>": "x86.avx512.mask.scalef.pd.128",
    "<4 x double>": "x86.avx512.mask.scalef.pd.256",
    "<8 x double>": "x86.avx512.mask.scalef.pd.512",
}


class Emitter:
    """One function being written into a `Module`.

    `fma`, `ldexp` and `half` say what the target does in one vector instruction: fused multiply-add (FMA3, NEON),
    scaling by a power of two (AVX-512 `vscalef`), and conversion from and to float16 (F16C, NEON). Without it LLVM
    would call a library lane by lane, so other code is written then. `x86`: bytes of its vectors, if it is one; those
    of 64 can be chosen from (AVX-512 `vpermps`).
    `wide`: the vector math may use double precision.
    """

    wide = True

    def __init__(
        self, module: Module, fma: bool = False, ldexp: bool = False, half: bool = False, x86: int = 0
    ) -> None:
        self.module = module
        self.x86 = x86
        self.fma = fma
        self.ldexp = ldexp
        self.half = half
        self.entry: list[str] = []
        self.lines: list[str] = []
        self.counter = 0
        self.label = "entry"

    @property
    def chooses(self) -> bool:
        return self.x86 >= 64

    # -- names and lines ------------------------------------------------------------------------------------------
    def fresh(self, prefix: str = "v") -> str:
        self.counter += 1
        return f"%{prefix}{self.counter}"

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def comment(self, text: str) -> None:
        self.lines.append("  ; " + text.replace("\n", " "))

    def value(self, type_: str, text: str) -> V:
        name = self.fresh()
        self.line(f"{name} = {text}")
        return V(type_, name)

    # -- constants ------------------------------------------------------------------------------------------------
    def const(self, type_: str, value: float | int | bool) -> V:
        """A constant of a scalar type, or the same constant in every lane of a vector type."""
        scalar = scalar_of(type_)
        text = literal(scalar, value)
        return V(type_, text if scalar == type_ else f"splat ({scalar} {text})")

    def i64(self, value: int) -> V:
        return V("i64", str(value))

    def bits(self, type_: str, pattern: int) -> V:
        """A constant of an integer type from its bit pattern (wrapped to the signed range)."""
        width = int(scalar_of(type_)[1:])
        pattern &= (1 << width) - 1
        return self.const(type_, pattern - (1 << width) if pattern >> (width - 1) else pattern)

    # -- straight-line operations ---------------------------------------------------------------------------------
    def op(self, opcode: str, a: V, b: V | None = None) -> V:
        """`fadd`, `mul`, `xor`, `fneg` …: operands and result have one type."""
        return self.value(a.type, f"{opcode} {a}" + (f", {b.ref}" if b is not None else ""))

    def cmp(self, predicate: str, a: V, b: V) -> V:
        """`fcmp olt`, `icmp slt` …: the result has `i1` lanes."""
        return self.value(like(a.type, "i1"), f"{predicate} {a}, {b.ref}")

    def select(self, condition: V, a: V, b: V) -> V:
        return self.value(a.type, f"select {condition}, {a}, {b}")

    def cast(self, opcode: str, a: V, type_: str) -> V:
        """`sitofp`, `fptosi`, `bitcast`, `zext` …"""
        return a if a.type == type_ and opcode == "bitcast" else self.value(type_, f"{opcode} {a} to {type_}")

    def call(self, intrinsic: str, result: str, *arguments: V, overload: tuple[str, ...] | None = None) -> V:
        """Call `llvm.<intrinsic>.<overload>`; the overload is the result's type unless it is given."""
        suffix = "".join("." + mangle(t) for t in (overload if overload is not None else (result,)))
        name = f"llvm.{intrinsic}{suffix}"
        self.module.declare(name, result, [a.type for a in arguments])
        text = f"call {result} @{name}({', '.join(map(str, arguments))})"
        if result == "void":
            self.line(text)
            return V("void", "")
        return self.value(result, text)

    def splat(self, a: V, lanes: int) -> V:
        """A scalar in every lane."""
        if lanes == 1:
            return a
        type_ = vector(a.type, lanes)
        first = self.value(type_, f"insertelement {type_} poison, {a}, i64 0")
        return self.value(type_, f"shufflevector {first}, {type_} poison, <{lanes} x i32> zeroinitializer")

    def shuffle(self, a: V, b: V | None, lanes: Sequence[int]) -> V:
        """The lanes of a, then of b, by number; numbers beyond give any value."""
        known = lanes_of(a.type) * (2 if b else 1)
        mask = ", ".join(f"i32 {lane if lane < known else 'poison'}" for lane in lanes)
        other = b or V(a.type, "poison")
        return self.value(
            vector(scalar_of(a.type), len(lanes)), f"shufflevector {a}, {other}, <{len(lanes)} x i32> <{mask}>"
        )

    def extract(self, a: V, lane: int) -> V:
        return self.value(scalar_of(a.type), f"extractelement {a}, i64 {lane}")

    def insert(self, a: V, b: V, lane: int) -> V:
        return self.value(a.type, f"insertelement {a}, {b}, i64 {lane}")

    def pick(self, greater: bool, a: V, b: V) -> V:
        """The greater or the lesser of two floats; `b` where either is NaN.

        LLVM would merge a comparison with the one for NaN that follows, into more instructions than x86 has for both.
        """
        name = _PICKS.get(a.type) if self.x86 >= bytes_of(a.type) else None
        if name is None:
            return self.select(self.cmp("fcmp ogt" if greater else "fcmp olt", a, b), a, b)
        current = [V("i32", "4")] if "avx512" in name else []  # the rounding mode as it is
        return self.call(name.format("max" if greater else "min"), a.type, a, b, *current, overload=())

    def scale(self, a: V, n: V) -> V:
        """a * 2^n for a whole number n, a float."""
        name = _SCALES.get(a.type) if self.x86 >= bytes_of(a.type) else None
        if name is None:
            whole = self.op("freeze", self.cast("fptosi", n, like(n.type, "i32")))  # of NaN: any
            return self.call("ldexp", a.type, a, whole, overload=(a.type, whole.type))
        mask = V(f"i{max(8, lanes_of(a.type))}", "-1")
        current = [V("i32", "4")] if name.endswith("512") else []
        return self.call(name, a.type, a, n, a, mask, *current, overload=())

    # -- functions and tables -------------------------------------------------------------------------------------
    def library(self, name: str, *arguments: V) -> V:
        """The C library's function of the arguments' scalar type, called lane by lane."""
        type_ = arguments[0].type
        scalar = scalar_of(type_)
        self.module.declare(name, scalar, [scalar] * len(arguments))
        if scalar == type_:
            return self.value(scalar, f"call {scalar} @{name}({', '.join(map(str, arguments))})")
        result = V(type_, "poison")
        for lane in range(lanes_of(type_)):
            values = ", ".join(str(self.extract(a, lane)) for a in arguments)
            result = self.insert(result, self.value(scalar, f"call {scalar} @{name}({values})"), lane)
        return result

    def look_up(self, name: str, words: list[int], index: V) -> V:
        """words[index] lane by lane, from a constant array of i64 in the module."""
        text = ", ".join(f"i64 {word - (1 << 64) if word >> 63 else word}" for word in words)
        self.module.globals[name] = f"@{name} = private unnamed_addr constant [{len(words)} x i64] [{text}]"
        base = V("ptr", f"@{name}")
        if lanes_of(index.type) == 1:
            return self.load("i64", self.gep(base, index, "i64"), 8)
        result = V(index.type, "poison")
        for lane in range(lanes_of(index.type)):
            result = self.insert(result, self.load("i64", self.gep(base, self.extract(index, lane), "i64"), 8), lane)
        return result

    def choose(self, table: Sequence[float], index: V) -> V:
        """table[index % 16] lane by lane, of 16 floats; the indices are i32."""
        lanes = lanes_of(index.type)
        if lanes > 16:
            low = self.choose(table, self.shuffle(index, None, range(lanes // 2)))
            high = self.choose(table, self.shuffle(index, None, range(lanes // 2, lanes)))
            return self.shuffle(low, high, range(lanes))
        if lanes < 16:
            found = self.choose(table, self.splat(index, 16) if lanes == 1 else self.shuffle(index, None, range(16)))
            return self.extract(found, 0) if lanes == 1 else self.shuffle(found, None, range(lanes))
        type_ = like(index.type, "float")
        constant = V(type_, "<" + ", ".join(f"float {literal('float', number)}" for number in table) + ">")
        return self.call("x86.avx512.permvar.sf.512", type_, constant, index, overload=())

    # -- memory ---------------------------------------------------------------------------------------------------
    def gep(self, base: V, offset: V, scalar: str) -> V:
        """`base + offset * sizeof(scalar)`."""
        return self.value("ptr", f"getelementptr {scalar}, {base}, {offset}")

    def load(self, type_: str, pointer: V, align: int) -> V:
        return self.value(type_, f"load {type_}, {pointer}, align {align}")

    def store(self, value: V, pointer: V, align: int, nontemporal: bool = False) -> None:
        self.line(f"store {value}, {pointer}, align {align}" + (", !nontemporal !{i32 1}" if nontemporal else ""))

    def prefetch(self, pointer: V) -> None:
        """Ask for the cache line of an address that will be read; any address is allowed."""
        self.call("prefetch", "void", pointer, V("i32", "0"), V("i32", "3"), V("i32", "1"), overload=("ptr",))

    def slot(self, type_: str, align: int = 0) -> V:
        """A stack cell in the entry block; `load` and `store` it. LLVM promotes it to a register."""
        name = self.fresh("s")
        self.entry.append(f"  {name} = alloca {type_}" + (f", align {align}" if align else ""))
        return V("ptr", name)

    def get(self, slot: V, type_: str) -> V:
        return self.value(type_, f"load {type_}, {slot}")

    def set(self, slot: V, value: V) -> None:
        self.line(f"store {value}, {slot}")

    # -- integer index arithmetic (constant-folded) -----------------------------------------------------------------
    def add(self, a: V, b: V) -> V:
        if a.ref == "0":
            return b
        if b.ref == "0":
            return a
        return self._fold("add", a, b, lambda x, y: x + y)

    def sub(self, a: V, b: V) -> V:
        return a if b.ref == "0" else self._fold("sub", a, b, lambda x, y: x - y)

    def mul(self, a: V, b: V) -> V:
        if a.ref == "1":
            return b
        if b.ref == "1":
            return a
        return self.i64(0) if "0" in (a.ref, b.ref) else self._fold("mul", a, b, lambda x, y: x * y)

    def least(self, a: V, b: V) -> V:
        """The smaller of two signed integers."""
        if is_number(a.ref) and is_number(b.ref):
            return self.i64(min(int(a.ref), int(b.ref)))
        return self.select(self.cmp("icmp slt", a, b), a, b)

    def _fold(self, opcode: str, a: V, b: V, rule: object) -> V:
        if is_number(a.ref) and is_number(b.ref):
            return self.i64(rule(int(a.ref), int(b.ref)))  # type: ignore[operator]
        return self.op(opcode, a, b)

    # -- control flow -----------------------------------------------------------------------------------------------
    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label

    def jump(self, label: str) -> None:
        self.line(f"br label %{label}")

    def branch(self, condition: V, yes: str, no: str) -> None:
        self.line(f"br {condition}, label %{yes}, label %{no}")

    @contextmanager
    def loop(self, begin: V, end: V, step: V) -> Iterator[V]:
        """`for (index = begin; index < end; index += step)`; the index is an `i64`."""
        self.counter += 1
        number = self.counter
        head, body, latch, done = (f"{part}{number}" for part in ("head", "body", "latch", "done"))
        before = self.label
        self.jump(head)
        self.start(head)
        index = V("i64", f"%i{number}")
        self.line(f"{index.ref} = phi i64 [ {begin.ref}, %{before} ], [ %n{number}, %{latch} ]")
        inside = self.cmp("icmp slt", index, end)
        self.branch(inside, body, done)
        self.start(body)
        yield index
        self.jump(latch)
        self.start(latch)
        self.line(f"%n{number} = add i64 {index.ref}, {step.ref}")
        self.jump(head)
        self.start(done)

    @contextmanager
    def when(self, condition: V) -> Iterator[None]:
        """Run the body only if `condition` (a scalar `i1`) holds."""
        self.counter += 1
        yes, done = f"then{self.counter}", f"join{self.counter}"
        self.branch(condition, yes, done)
        self.start(yes)
        yield
        self.jump(done)
        self.start(done)

    def function(self, name: str, parameters: list[str], attributes: str = "") -> None:
        """Close the function (it returns void) and add its text to the module."""
        text = [f"define void @{name}({', '.join(parameters)}) {attributes} {{".replace("  ", " "), "entry:"]
        text += self.entry + self.lines + ["  ret void", "}"]
        self.module.functions.append("\n".join(text))


def is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()
