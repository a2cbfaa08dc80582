"""How element types live in registers and in memory, and how lanes are loaded and stored.

In registers: bool is `i1`, integers are themselves, reduced floats are `float`. In memory: bool is one byte (0 or 1),
bfloat16 and float16 are their 16 bits.
"""

from __future__ import annotations

from autofusion.dtypes import DType
from autofusion.targets.cpu.emit import Emitter, mangle
from autofusion.targets.vecmath.values import V, lanes_of, like, vector

REGISTER = {
    DType.BOOL: "i1",
    DType.INT8: "i8",
    DType.INT16: "i16",
    DType.INT32: "i32",
    DType.INT64: "i64",
    DType.UINT8: "i8",
    DType.UINT16: "i16",
    DType.UINT32: "i32",
    DType.UINT64: "i64",
    DType.FLOAT16: "float",
    DType.BFLOAT16: "float",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
}
LINE = 64  # bytes of a cache line
MEMORY = REGISTER | {DType.BOOL: "i8", DType.FLOAT16: "i16", DType.BFLOAT16: "i16"}


def from_memory(e: Emitter, raw: V, dtype: DType) -> V:
    """The register form of loaded bits."""
    if dtype is DType.BOOL:
        return e.cmp("icmp ne", raw, e.const(raw.type, 0))
    if dtype is DType.FLOAT16 and not e.half:
        return float16_value(e, raw)
    if dtype is DType.FLOAT16:
        return e.cast("fpext", e.cast("bitcast", raw, like(raw.type, "half")), like(raw.type, "float"))
    if dtype is DType.BFLOAT16:
        wide = e.cast("zext", raw, like(raw.type, "i32"))
        return e.cast("bitcast", e.op("shl", wide, e.const(wide.type, 16)), like(raw.type, "float"))
    return raw


def to_memory(e: Emitter, value: V, dtype: DType) -> V:
    """The bits to store; floats are rounded to nearest even."""
    if dtype is DType.BOOL:
        return e.cast("zext", value, like(value.type, "i8"))
    if dtype is DType.FLOAT16 and not e.half:
        return float16_bits(e, value)
    if dtype is DType.FLOAT16:
        return e.cast("bitcast", e.cast("fptrunc", value, like(value.type, "half")), like(value.type, "i16"))
    if dtype is DType.BFLOAT16:
        return bfloat16_bits(e, value)
    return value


def bfloat16_bits(e: Emitter, value: V) -> V:
    """float -> the upper half of its bits, to nearest even; NaN stays a quiet NaN; denormals are kept."""
    bits = e.cast("bitcast", value, like(value.type, "i32"))

    def number(n: int) -> V:
        return e.const(bits.type, n)

    odd = e.op("and", e.op("lshr", bits, number(16)), number(1))
    rounded = e.op("lshr", e.op("add", e.op("add", bits, number(0x7FFF)), odd), number(16))
    quiet = e.op("or", e.op("lshr", bits, number(16)), number(0x40))
    kept = e.select(e.cmp("fcmp uno", value, value), quiet, rounded)
    return e.cast("trunc", kept, like(value.type, "i16"))


def float16_value(e: Emitter, raw: V) -> V:
    """float16 bits -> float without conversion instructions: the exponent is moved by an exact multiplication."""
    bits = e.cast("zext", raw, like(raw.type, "i32"))

    def number(n: int) -> V:
        return e.bits(bits.type, n)

    magnitude = e.op("shl", e.op("and", bits, number(0x7FFF)), number(13))
    scaled = e.op(
        "fmul", e.cast("bitcast", magnitude, like(raw.type, "float")), e.const(like(raw.type, "float"), 2.0**112)
    )
    special = e.cmp("icmp uge", magnitude, number(0x0F800000))  # infinity or NaN
    finite = e.cast("bitcast", scaled, bits.type)
    value = e.select(special, e.op("or", magnitude, number(0x7F800000)), finite)
    sign = e.op("shl", e.op("and", bits, number(0x8000)), number(16))
    return e.cast("bitcast", e.op("or", value, sign), like(raw.type, "float"))


def float16_bits(e: Emitter, value: V) -> V:
    """float -> float16 bits without conversion instructions, to nearest even; NaN stays a quiet NaN."""
    bits = e.cast("bitcast", value, like(value.type, "i32"))

    def number(n: int) -> V:
        return e.bits(bits.type, n)

    magnitude = e.op("and", bits, number(0x7FFFFFFF))
    odd = e.op("and", e.op("lshr", magnitude, number(13)), number(1))
    raised = e.op("add", e.op("add", magnitude, number(0xFFF)), odd)
    normal = e.op("sub", e.op("lshr", raised, number(13)), number(112 << 10))
    # Adding 0.5 rounds to multiples of 2^-24, the step of float16's denormals.
    half = e.const(value.type, 0.5)
    shifted = e.op("fadd", e.cast("bitcast", magnitude, value.type), half)
    denormal = e.op("sub", e.cast("bitcast", shifted, bits.type), number(0x3F000000))
    result = e.select(e.cmp("icmp ult", magnitude, number(0x38800000)), denormal, normal)
    result = e.select(e.cmp("icmp uge", magnitude, number(0x477FF000)), number(0x7C00), result)
    quiet = e.op("or", number(0x7E00), e.op("and", e.op("lshr", magnitude, number(13)), number(0x1FF)))
    result = e.select(e.cmp("icmp ugt", magnitude, number(0x7F800000)), quiet, result)
    sign = e.op("and", e.op("lshr", bits, number(16)), number(0x8000))
    return e.cast("trunc", e.op("or", result, sign), like(value.type, "i16"))


def rounded(e: Emitter, value: V, dtype: DType) -> V:
    """A register value rounded to what `dtype` can hold."""
    return from_memory(e, to_memory(e, value, dtype), dtype) if dtype.is_reduced else value


def lane_numbers(e: Emitter, scalar: str, lanes: int) -> V:
    """<0, 1, 2, …>"""
    if lanes == 1:
        return V(scalar, "0")
    return V(vector(scalar, lanes), "<" + ", ".join(f"{scalar} {n}" for n in range(lanes)) + ">")


def first_lanes(e: Emitter, count: V, lanes: int) -> V:
    """A mask of the lanes below `count` (i64).

    A mask known to be one lane is hidden from LLVM: for AVX-512, version 22 turns such a masked store of a truncated
    vector (bfloat16 from 32 bits, say) into a store of one element of the untruncated type, past the end.
    """
    if count.ref == "1":
        count = e.value("i64", 'call i64 asm "", "=r,0"(i64 1)')
    return e.cmp("icmp ult", lane_numbers(e, "i64", lanes), e.splat(count, lanes))


def before_line(e: Emitter, pointer: V, dtype: DType) -> V:
    """How many whole elements lie between an address and the next cache line; 0 where it begins one."""
    left = e.op("and", e.sub(e.i64(0), e.cast("ptrtoint", pointer, "i64")), e.i64(LINE - 1))
    return e.op("udiv", left, e.i64(dtype.size))


def load_contiguous(e: Emitter, pointer: V, dtype: DType, lanes: int, mask: V | None) -> V:
    """`lanes` neighbours from an address of any alignment; masked-off lanes are zero and not touched."""
    type_ = vector(MEMORY[dtype], lanes)
    if mask is None or lanes == 1:
        return from_memory(e, e.load(type_, pointer, 1), dtype)
    zero = V(type_, "zeroinitializer")
    raw = _masked(e, "masked.load", type_, type_, [f"ptr align 1 {pointer.ref}", str(mask), str(zero)])
    return from_memory(e, raw, dtype)


def store_contiguous(e: Emitter, value: V, pointer: V, dtype: DType, mask: V | None) -> None:
    """Write neighbours; masked-off lanes keep their memory."""
    raw = to_memory(e, value, dtype)
    if mask is None or lanes_of(raw.type) == 1:
        e.store(raw, pointer, 1)
        return
    _masked(e, "masked.store", "void", raw.type, [str(raw), f"ptr align 1 {pointer.ref}", str(mask)])


def store_past(e: Emitter, value: V, pointer: V, dtype: DType) -> None:
    """Write a whole vector past the caches, where its address is a multiple of its size; LLVM splits others."""
    raw = to_memory(e, value, dtype)
    size = lanes_of(raw.type) * dtype.size
    odd = e.op("and", e.cast("ptrtoint", pointer, "i64"), e.i64(size - 1))
    aligned = e.cmp("icmp eq", odd, e.i64(0))
    with e.when(aligned):
        e.store(raw, pointer, size, nontemporal=True)
    with e.when(e.op("xor", aligned, e.const("i1", True))):
        e.store(raw, pointer, 1)


def load_every_other(e: Emitter, pointer: V, dtype: DType, lanes: int, mask: V | None) -> V:
    """One element a lane, each two from the next. Nothing past the last of them is touched, and nothing of lanes that
    are masked off."""
    if lanes == 1:
        return load_contiguous(e, pointer, dtype, 1, None)
    bits, halves = vector("i1", lanes), []
    for number in range(2):
        if mask is None:
            ends = ", ".join(f"i1 {'true' if lane < lanes - 1 else 'false'}" for lane in range(lanes))
            part = None if number == 0 else V(bits, f"<{ends}>")
        else:
            chosen = [lanes if lane % 2 else (number * lanes + lane) // 2 for lane in range(lanes)]
            listed = ", ".join(f"i32 {lane}" for lane in chosen)
            part = e.value(bits, f"shufflevector {mask}, {bits} zeroinitializer, <{lanes} x i32> <{listed}>")
        start = e.gep(pointer, e.i64(number * lanes), MEMORY[dtype])
        halves.append(load_contiguous(e, start, dtype, lanes, part))
    even = ", ".join(f"i32 {2 * lane}" for lane in range(lanes))
    return e.value(halves[0].type, f"shufflevector {halves[0]}, {halves[1]}, <{lanes} x i32> <{even}>")


def load_scattered(e: Emitter, base: V, offsets: V, dtype: DType, mask: V | None) -> V:
    """One element a lane, at `base + offset` elements."""
    lanes = lanes_of(offsets.type)
    pointers = e.value(vector("ptr", lanes), f"getelementptr {MEMORY[dtype]}, {base}, {offsets}")
    if lanes == 1:
        return from_memory(e, e.load(MEMORY[dtype], pointers, 1), dtype)
    type_ = vector(MEMORY[dtype], lanes)
    mask = mask or e.const(vector("i1", lanes), True)
    zero = V(type_, "zeroinitializer")
    raw = _masked(
        e, "masked.gather", type_, type_, [f"{vector('ptr', lanes)} align 1 {pointers.ref}", str(mask), str(zero)]
    )
    return from_memory(e, raw, dtype)


def store_scattered(e: Emitter, value: V, base: V, offsets: V, dtype: DType, mask: V | None) -> None:
    """One element a lane, to `base + offset` elements."""
    lanes = lanes_of(offsets.type)
    raw = to_memory(e, value, dtype)
    pointers = e.value(vector("ptr", lanes), f"getelementptr {MEMORY[dtype]}, {base}, {offsets}")
    if lanes == 1:
        e.store(raw, pointers, 1)
        return
    mask = mask or e.const(vector("i1", lanes), True)
    _masked(
        e, "masked.scatter", "void", raw.type, [str(raw), f"{vector('ptr', lanes)} align 1 {pointers.ref}", str(mask)]
    )


def _masked(e: Emitter, name: str, result: str, data: str, arguments: list[str]) -> V:
    """Call a masked-memory intrinsic; they are overloaded by the data and the pointer type."""
    pointer = f"v{lanes_of(data)}p0" if "gather" in name or "scatter" in name else "p0"
    full = f"llvm.{name}.{mangle(data)}.{pointer}"
    types = [_type_text(a) for a in arguments]
    e.module.declare(full, result, types)
    text = f"call {result} @{full}({', '.join(arguments)})"
    if result == "void":
        e.line(text)
        return V("void", "")
    return e.value(result, text)


def _type_text(argument: str) -> str:
    """`<16 x i1> %m` -> `<16 x i1>`; `ptr align 1 %p` -> `ptr`."""
    if argument.startswith("<"):
        return argument[: argument.index(">") + 1]
    return argument.split(" ")[0]
