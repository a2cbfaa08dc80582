"""The AI Core model: right kernels run, a kernel with one fault fires exactly its rule, the numbers are the chip's.

The kernels of `tests/aicore` are right. A broken kernel is one of them with the edits of one entry of `faults.txt`; the
kernel as it stands is its twin.
"""

from __future__ import annotations

import functools
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from autofusion.errors import ArgumentError, ExecutionError
from autofusion.runtime import aicore

pytestmark = pytest.mark.skipif(aicore.unavailable() is not None, reason=f"AI Core model: {aicore.unavailable()}")

KERNELS = Path(__file__).parent / "aicore"
Array = np.ndarray[Any, Any]
bfloat16 = np.dtype(ml_dtypes.bfloat16)


def source(name: str) -> str:
    return (KERNELS / f"{name}.cpp").read_text()


class Launch(NamedTuple):
    """Buffers, tiling and blocks of one kernel, and what its buffers must hold afterwards."""

    buffers: list[Array]
    tiling: bytes
    blocks: int
    expected: list[Array | None]


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def launch_add(cores: int = 4, per_core: int = 1000, tile: int = 256) -> Launch:
    x, y = floats(cores * per_core), floats(cores * per_core, seed=1)
    return Launch([x, y, np.zeros_like(x)], struct.pack("<II", per_core, tile), cores, [None, None, x + y])


def launch_level0() -> Launch:
    x, y = floats(512), floats(512, seed=1)
    tail = np.concatenate([np.full(1, x.max()), np.zeros(7), tree(x[:64].reshape(8, 8))])
    return Launch(
        [x, y, np.zeros(528, np.float32)], b"", 1, [None, None, np.concatenate([np.where(x < y, x + y, y), tail])]
    )


def launch_phases(cores: int = 4) -> Launch:
    x = np.round(floats(cores, 64) * 8)
    z = np.broadcast_to((2 * x).sum(0)[:8], (cores, 8))
    empty = [np.zeros(shape, np.float32) for shape in ((cores, 64), (cores, 8), (64,))]
    return Launch([x, *empty], b"", cores, [None, 2 * x, z, x.sum(0)])


def launch_matmul(m: int = 33, n: int = 17, k: int = 150) -> Launch:
    a, b = (np.round(floats(*shape) * 4).astype(np.float16) for shape in ((m, k), (k, n)))
    bias = np.zeros(-(-n // 16) * 16, np.float32)
    bias[:n] = np.round(floats(n) * 100)
    c = np.maximum(a.astype(np.float32) @ b.astype(np.float32) + bias[:n], 0)
    return Launch([a, b, bias, np.zeros((m, n), np.float32)], struct.pack("<III", m, n, k), 1, [None, None, None, c])


def launch_accumulate(m: int = 32, n: int = 16) -> Launch:
    a, b = (np.round(floats(*shape) * 4).astype(np.float16) for shape in ((m, 16), (16, n)))
    c = 2 * (a.astype(np.float32) @ b.astype(np.float32))
    return Launch([a, b, np.zeros_like(c)], struct.pack("<II", m, n), 1, [None, None, c])


def launch_ring(steps: int = 4) -> Launch:
    a, b = (np.round(floats(steps, 16, 16, seed=s) * 4).astype(np.float16) for s in (0, 1))
    z = 2 * (a.astype(np.float32) @ b.astype(np.float32))
    return Launch(
        [a, b, np.zeros((16, 16), np.float32), np.zeros_like(z)], struct.pack("<I", steps), 1, [None, None, None, z]
    )


def launch_vector() -> Launch:
    x = floats(256)
    z = x.copy()
    z[:64] = x[40:104] + 1
    return Launch([x, np.zeros_like(x), np.full(8, 40, np.int32)], b"", 1, [None, z, None])


LAUNCHES: dict[str, Callable[..., Launch]] = {
    "add": launch_add,
    "level0": launch_level0,
    "phases": launch_phases,
    "matmul": launch_matmul,
    "accumulate": launch_accumulate,
    "ring": launch_ring,
    "vector": launch_vector,
}


def tree(rows: Array) -> Array:
    """Sums along the last axis, neighbours first, rounded to the array's type at each step."""
    while rows.shape[-1] > 1:
        odd = rows[..., rows.shape[-1] // 2 * 2 :]
        pairs = rows[..., 0 : rows.shape[-1] // 2 * 2 : 2] + rows[..., 1::2]
        rows = np.concatenate([pairs.astype(rows.dtype), odd], axis=-1)
    return rows[..., 0]


def run(text: str, kernel: str, launch: Launch, *, seed: int = 0, arch: int = 2201) -> aicore.Report:
    report = aicore.build(text, [kernel], arch).run(kernel, launch.buffers, launch.tiling, launch.blocks, seed=seed)
    for position, expected in enumerate(launch.expected):
        if expected is not None:
            np.testing.assert_array_equal(
                launch.buffers[position].ravel(), expected.ravel().astype(launch.buffers[position].dtype)
            )
    return report


# Right kernels


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kernel", LAUNCHES)
def test_right_kernels(kernel: str, seed: int) -> None:
    report = run(source(kernel), kernel, LAUNCHES[kernel](), seed=seed)
    assert report.microseconds > 0 and report.launches == 1


def test_a_cross_core_flag_of_the_storing_pipe_is_enough() -> None:
    text = source("phases").replace("SyncAll();", "CrossCoreSetFlag<0, PIPE_MTE3>(3);\n    CrossCoreWaitFlag(3);")
    report = run(text, "phases", launch_phases())
    assert report.synchronisation["CrossCoreSetFlag"] == 4 and report.synchronisation["SyncAll"] == 0


@pytest.mark.parametrize("shape", [(16, 16, 16), (2, 1, 1), (5, 40, 7), (33, 17, 150), (64, 48, 129)], ids=str)
def test_matmul_of_any_shape(shape: tuple[int, int, int]) -> None:
    run(source("matmul"), "matmul", launch_matmul(*shape))


@pytest.mark.parametrize(
    "dtype,quant", [(np.dtype(np.float16), "F322F16"), (bfloat16, "F322BF16")], ids=["half", "bfloat16"]
)
def test_fixpipe_casts_on_the_way_out(dtype: np.dtype[Any], quant: str) -> None:
    launch = launch_matmul(20, 24, 30)
    expected = np.asarray(launch.expected[3]).astype(dtype)
    name = "half" if dtype == np.float16 else "bfloat16_t"
    text = source("matmul").replace(
        "#ifndef TOUT\n#define TOUT float\n#define QUANT NoQuant\n#endif", f"#define TOUT {name}\n#define QUANT {quant}"
    )
    buffers = [*launch.buffers[:3], np.zeros((20, 24), np.uint16)]
    run(text, "matmul", Launch(buffers, launch.tiling, 1, [None, None, None, expected.view(np.uint16)]))


def test_float_and_int8_on_the_cube() -> None:
    a, b = (np.round(floats(16, 16, seed=s) * 4) for s in (0, 1))
    run(source("cube"), "in_float", Launch([a, b, np.zeros((16, 16), np.float32)], b"", 1, [None, None, a @ b]))
    rng = np.random.default_rng(0)
    left, right = rng.integers(-128, 128, (16, 32)).astype(np.int8), rng.integers(-128, 128, (32, 32)).astype(np.int8)
    product = left.astype(np.int32) @ right.astype(np.int32)[:, :16]
    run(source("cube"), "in_int8", Launch([left, right, np.zeros((16, 16), np.int32)], b"", 1, [None, None, product]))


def test_a_large_accumulator_needs_no_barrier() -> None:
    """Documented: from ten fractals on, hardware keeps Mmads into one accumulator in order."""
    text = source("accumulate").replace("PipeBarrier<PIPE_M>();", "")
    run(text, "accumulate", launch_accumulate(64, 48))


SYNCHRONISES = re.compile(r"EnQue|SetFlag|WaitFlag|PipeBarrier|SyncAll|CrossCore|FreeTensor|SetAtomic")


@pytest.mark.full
@pytest.mark.parametrize("kernel", LAUNCHES)
def test_no_synchronisation_can_go(kernel: str) -> None:
    """Each line that synchronises, taken out alone, is missed."""
    lines = source(kernel).splitlines()
    for number, line in enumerate(lines):
        if SYNCHRONISES.search(line) and not line.startswith("//"):
            text = "\n".join([*lines[:number], "", *lines[number + 1 :]])
            with pytest.raises(aicore.ModelViolation):
                run(text, kernel, LAUNCHES[kernel]())
                pytest.fail(f"{kernel}.cpp:{number + 1}: {line.strip()} was not missed")


def test_two_products_in_a_row_stay_on_chip() -> None:
    a, b = (np.round(floats(16, 16, seed=s) * 2).astype(np.float16) for s in (0, 1))
    first = np.maximum(a.astype(np.float32) @ b.astype(np.float32), 0).astype(np.float16)
    second = first.astype(np.float32) @ b.astype(np.float32)
    report = run(source("cube"), "chain", Launch([a, b, np.zeros((16, 16), np.float32)], b"", 1, [None, None, second]))
    assert report.moved["L0C->L1"] == 512 and report.moved["L0C->GM"] == 1024


# Kernels with one fault


class Fault(NamedTuple):
    """One entry of aicore/faults.txt: the edits that break a kernel, the rule that must fire and what it says."""

    rule: int
    kernel: str
    name: str
    says: str
    arguments: tuple[int, ...]  # of the kernel's launch
    edits: tuple[tuple[str, str], ...]


def faults() -> list[Fault]:
    """The entries: a head, `says` and `launch` lines, then edits (`- old`, `+ new`) apart by `~`."""
    found = []
    for entry in (KERNELS / "faults.txt").read_text().strip("\n").split("\n\n"):
        head, *lines = entry.splitlines()
        rule, kernel, name = re.fullmatch(r"# rule (\d+), (\w+): (.*)", head).groups()  # type: ignore[union-attr]
        said = [line[5:] for line in lines if line.startswith("says ")]
        sizes = [line[7:].split() for line in lines if line.startswith("launch ")]
        edits: list[tuple[list[str], list[str]]] = [([], [])]
        for line in lines:
            if line == "~":
                edits.append(([], []))
            elif line[:2] in ("- ", "+ "):
                edits[-1][line[0] == "+"].append(line[2:])
        changes = tuple(("\n".join(old), "\n".join(new)) for old, new in edits if old)
        found.append(Fault(int(rule), kernel, name, *said or [""], tuple(map(int, *sizes or [()])), changes))
    return found


FAULTS = faults()


def test_every_rule_has_a_fault() -> None:
    """Rule 12 shows in numbers, not as a violation."""
    assert {fault.rule for fault in FAULTS} == set(range(1, 12))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.rule}-{fault.kernel}-{fault.name}")
def test_one_fault_fires_its_rule(fault: Fault) -> None:
    text = source(fault.kernel)
    for old, new in fault.edits:
        assert old in text, f"{fault.kernel}.cpp has no {old!r}"
        text = text.replace(old, new)
    launch = LAUNCHES[fault.kernel](*fault.arguments)
    with pytest.raises(aicore.ModelViolation) as raised:
        run(text, fault.kernel, launch)
    error = raised.value
    assert error.rule == fault.rule and error.name == aicore.RULES[fault.rule], str(error)
    assert fault.says in str(error)
    assert 0 < error.line <= text.count("\n") and error.core[:3] in ("AIV", "AIC", "hos"), str(error)


def test_the_cleaned_cache_reads_what_is_there() -> None:
    """The twin of the stale scalar read."""
    fault = next(fault for fault in FAULTS if "scalar read" in fault.name)
    text = source("phases")
    for old, new in fault.edits:
        clean = "DataCacheCleanAndInvalid<float, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(old);\n    "
        text = text.replace(old, new.replace("    before = old", f"    {clean}before = old"))
    run(text, "phases", launch_phases())


@pytest.mark.parametrize("seed", range(4))
def test_a_race_is_found_in_every_order(seed: int) -> None:
    with pytest.raises(aicore.ModelViolation, match="rule 10"):
        run(source("phases").replace("SyncAll();", "PipeBarrier<PIPE_ALL>();"), "phases", launch_phases(), seed=seed)


def test_a_violation_names_the_line() -> None:
    text = source("level0").replace("(uint64_t)64, 8, Bin", "(uint64_t)64, 300, Bin")
    with pytest.raises(aicore.ModelViolation) as raised:
        run(text, "level0", launch_level0())
    assert "(uint64_t)64, 300" in text.splitlines()[raised.value.line - 1] and raised.value.api == "Add"


VECTOR = """
#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void f(GM_ADDR x) {{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 1024);
    {body}
}}
"""
REFUSED = {
    "bfloat16 Add on 2201": ("auto t = buffer.Get<bfloat16_t>(); Add(t, t, t, 16);", 2201),
    "int64 Mul": ("auto t = buffer.Get<int64_t>(); Mul(t, t, t, 16);", 2201),
    "int8 -> float Cast": ("Cast(buffer.Get<float>(), buffer.Get<int8_t>(), RoundMode::CAST_NONE, 16);", 2201),
    "float Exp of int32": ("auto t = buffer.Get<int32_t>(); Exp(t, t, 16);", 3510),
    "int32 And at level 0": (
        "auto t = buffer.Get<int32_t>(); And(t, t, t, (uint64_t)64, 1, {1, 1, 1, 8, 8, 8});",
        2201,
    ),
    "an instruction outside the subset": ("auto t = buffer.Get<float>(); Tanh(t, t);", 2201),
    "a depth of 0": ("TQue<TPosition::VECIN, 0> queue; pipe.InitBuffer(queue, 1, 32);", 2201),
    "PipeBarrier<PIPE_S>": ("PipeBarrier<PIPE_S>();", 2201),
    "L0C to UB on 2201": (
        "FixpipeParamsArch3510<CO2Layout::ROW_MAJOR> p; auto t = buffer.Get<float>(); Fixpipe(t, t, p);",
        2201,
    ),
    "int8 Mmad into float": ("auto t = buffer.Get<int8_t>(); Mmad(buffer.Get<float>(), t, t, MmadParams());", 2201),
    "a flag of one vector core on 2201": ("CrossCoreSetFlag<4, PIPE_MTE3>(0);", 2201),
    "a wait for one vector core on 2201": ("CrossCoreWaitFlag<4>(0);", 2201),
    "float into L1 by Fixpipe": ("auto t = buffer.Get<float>(); Fixpipe(t, t, FixpipeParamsV220());", 2201),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_chip_does_not_have_does_not_compile(case: str) -> None:
    body, arch = REFUSED[case]
    with pytest.raises(aicore.ModelBuildError, match="error:"):
        aicore.build(VECTOR.format(body=body), ["f"], arch)


def test_bfloat16_add_compiles_on_3510() -> None:
    aicore.build(VECTOR.format(body=REFUSED["bfloat16 Add on 2201"][0]), ["f"], 3510)


def test_l0c_to_ub_fails_on_2201_with_old_parameters() -> None:
    text = source("ring").replace(
        "Fixpipe(wGm, c, fix);",
        "fix.quantPre = F322F16; TBuf<> ub; pipe.InitBuffer(ub, 512); Fixpipe(ub.Get<half>(), c, fix);",
    )
    with pytest.raises(aicore.ModelViolation, match="rule 6"):
        run(text, "ring", launch_ring())


# Numbers


@functools.cache
def numbers(arch: int) -> aicore.Model:
    text = source("numbers")
    names = [
        line.split("(")[1].split(",")[0] for line in text.splitlines() if line.startswith(("KERNEL_OF(", "KERNEL2_OF("))
    ] + ["pad_rows"]
    return aicore.build(text, names, arch)


def apply(
    kernel: str,
    *arrays: Array,
    out: np.dtype[Any],
    count: int | None = None,
    n: int,
    option: int = 0,
    arch: int = 2201,
) -> Array:
    """Run a kernel of numbers.cpp over whole arrays: inputs, then `count` outputs."""
    result = np.zeros(count or n, out)
    padded = [np.ascontiguousarray(array).view(np.uint8).ravel().copy() for array in (*arrays, result)]
    numbers(arch).run(kernel, padded, struct.pack("<II", n, option), 1)
    return padded[-1].view(out)


EDGES = [
    0.0,
    -0.0,
    0.5,
    1.5,
    2.5,
    -0.5,
    -1.5,
    -2.5,
    1e-8,
    -1e-8,
    65504.0,
    65519.0,
    65520.0,
    -65520.0,
    6.1e-5,
    3e-8,
    1e30,
    -1e30,
    np.inf,
    -np.inf,
    np.nan,
]
MODES = {"NONE": 0, "RINT": 1, "FLOOR": 2, "CEIL": 3, "ROUND": 4, "TRUNC": 5, "ODD": 6}


def samples(dtype: np.dtype[Any], n: int = 1024) -> Array:
    rng = np.random.default_rng(7)
    values = np.concatenate(
        [np.array(EDGES), rng.standard_normal(n - len(EDGES)) * 10.0 ** rng.integers(-9, 6, n - len(EDGES))]
    )
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32).astype(dtype)


@np.errstate(all="ignore")
def narrow(values: Array, dtype: np.dtype[Any], mode: str) -> Array:
    """Float32 to a 16-bit float in a RoundMode, from the two neighbours of each value."""
    exact = values.astype(np.float64)
    near = values.astype(dtype)
    if mode in ("RINT", "NONE"):
        return near
    bits = near.view(np.uint16).astype(np.int64)
    finite = np.isfinite(exact)
    too_far = finite & (np.abs(near.astype(np.float64)) > np.abs(exact))
    toward = np.where(too_far, bits - 1, bits)
    value = toward.astype(np.uint16).view(dtype).astype(np.float64)
    away = toward + 1
    limit = float(ml_dtypes.finfo(dtype).max)
    beyond = away.astype(np.uint16).view(dtype).astype(np.float64)
    beyond = np.where(np.isinf(beyond), np.sign(exact) * limit * (2 if dtype == np.float16 else 1), beyond)
    rest, gap = np.abs(exact - value), np.abs(beyond - value)
    inexact = finite & (rest > 0)
    take = {
        "FLOOR": inexact & (exact < 0),
        "CEIL": inexact & (exact > 0),
        "ROUND": inexact & (rest * 2 >= gap),
        "TRUNC": np.zeros_like(inexact),
        "ODD": inexact & (toward % 2 == 0),
    }[mode]
    if mode == "ROUND" and dtype == np.float16:
        take = inexact & np.where(np.abs(exact) > limit, np.abs(exact) >= 65520.0, rest * 2 >= gap)
    if mode == "ODD":
        take &= np.abs(exact) <= limit
    return np.where(finite, np.where(take, away, toward), bits).astype(np.uint16).view(dtype)


def same_bits(found: Array, expected: Array) -> None:
    both_nan = np.isnan(found.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[found.dtype.itemsize]
    wrong = np.flatnonzero((found.view(kind) != expected.view(kind)) & ~both_nan)
    assert not wrong.size, (
        f"{wrong.size} differ, first at {wrong[0]}: {found[wrong[0]]!r}, expected {expected[wrong[0]]!r}"
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["half", "float"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_arithmetic_rounds_once(op: str, dtype: Any) -> None:
    x, y = samples(np.dtype(dtype)), np.roll(samples(np.dtype(dtype)), 17)
    with np.errstate(all="ignore"):
        expected = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[op](x, y)
    name = "half" if dtype == np.float16 else "float"
    same_bits(apply(f"{op}_{name}", x, y, out=np.dtype(dtype), n=1024), expected)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "NONE"])
def test_float_to_half_in_every_mode(mode: str) -> None:
    x = samples(np.dtype(np.float32))
    same_bits(
        apply("float_to_half", x, out=np.dtype(np.float16), n=1024, option=MODES[mode]),
        narrow(x, np.dtype(np.float16), mode),
    )


@pytest.mark.parametrize("mode", ["RINT", "FLOOR", "CEIL", "ROUND", "TRUNC"])
def test_float_to_bfloat16_in_every_mode(mode: str) -> None:
    x = samples(np.dtype(np.float32))
    same_bits(apply("float_to_bf16", x, out=bfloat16, n=1024, option=MODES[mode]), narrow(x, bfloat16, mode))


INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "RINT": np.rint,
    "FLOOR": np.floor,
    "CEIL": np.ceil,
    "TRUNC": np.trunc,
    "ROUND": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}


@pytest.mark.parametrize("mode", INTEGRAL)
@pytest.mark.parametrize("kernel,bits", [("float_to_i32", 32), ("float_to_i16", 16), ("float_to_i64", 64)])
def test_float_to_integers_saturates(kernel: str, bits: int, mode: str) -> None:
    x = samples(np.dtype(np.float32))
    out = np.dtype(f"int{bits}")
    whole = INTEGRAL[mode](np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    limits = np.iinfo(out)
    expected = [limits.min if v <= limits.min else limits.max if v >= limits.max else int(v) for v in whole]
    same_bits(apply(kernel, x, out=out, n=1024, option=MODES[mode]), np.array(expected, out))


def test_exact_casts() -> None:
    half = samples(np.dtype(np.float16))
    same_bits(apply("half_to_float", half, out=np.dtype(np.float32), n=1024), half.astype(np.float32))
    b = samples(bfloat16)
    same_bits(apply("bf16_to_float", b, out=np.dtype(np.float32), n=1024), b.astype(np.float32))
    i = np.random.default_rng(0).integers(-(2**31), 2**31, 1024).astype(np.int32)
    same_bits(apply("i32_to_float", i, out=np.dtype(np.float32), n=1024, option=MODES["RINT"]), i.astype(np.float32))


def test_a_mode_that_the_pair_does_not_take() -> None:
    with pytest.raises(aicore.ModelViolation, match="rule 3"):
        apply("float_to_bf16", samples(np.dtype(np.float32)), out=bfloat16, n=1024, option=MODES["NONE"])


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["half", "float"])
@pytest.mark.parametrize("n", [1, 64, 100, 1024])
def test_sums_are_trees(dtype: Any, n: int) -> None:
    x = np.random.default_rng(3).standard_normal(n).astype(dtype)
    lanes = 256 // x.itemsize
    rows = np.zeros(-(-n // lanes) * lanes, dtype)
    rows[:n] = x
    partial = tree(rows.reshape(-1, lanes))
    total = functools.reduce(lambda a, b: (a + b).astype(dtype), partial)
    padded = np.zeros(1024, dtype)
    padded[:n] = x
    name = "half" if dtype == np.float16 else "float"
    assert apply(f"sum_{name}", padded, out=np.dtype(dtype), count=16, n=1024, option=n)[0] == total


def test_a_sum_in_half_is_not_a_sum_in_float() -> None:
    """Rule 12: a kernel that adds up in the narrow type shows it."""
    x = np.full(1024, 0.1, np.float16)
    assert apply("sum_half", x, out=np.dtype(np.float16), count=16, n=1024, option=1024)[0] != np.float16(
        x.astype(np.float32).sum()
    )


def test_reciprocal_of_2201_is_inexact() -> None:
    x = np.linspace(1, 9, 1024).astype(np.float32)
    error = np.abs(apply("reciprocal", x, out=np.dtype(np.float32), n=1024) * x - 1)
    assert 1e-4 < error.max() < 1e-3


def test_sums_of_3510_are_trees_all_the_way() -> None:
    x = np.random.default_rng(3).standard_normal(1024).astype(np.float32)
    found = apply("sum_float", x, out=np.dtype(np.float32), count=16, n=1024, option=1024, arch=3510)
    assert found[0] == tree(tree(x.reshape(16, 64)))


def test_max_drops_nan_and_comparisons_with_it_are_false() -> None:
    x = np.array([np.nan, 1, -1, 3] * 256, np.float32)
    y = np.array([0, np.nan, 2, 2] * 256, np.float32)
    np.testing.assert_array_equal(apply("max_float", x, y, out=np.dtype(np.float32), n=1024)[:4], [0, 1, 2, 3])
    for code, expected in enumerate(("0010", "0001", "0000", "0010", "0001", "0011")):  # LT GT EQ LE GE NE
        found = np.unpackbits(
            apply("compare", x, y, out=np.dtype(np.uint8), count=128, n=1024, option=code), bitorder="little"
        )
        assert "".join(map(str, found[:4])) == expected


def test_compare_then_select() -> None:
    x, y = floats(1024), floats(1024, seed=1)
    np.testing.assert_array_equal(apply("choose", x, y, out=np.dtype(np.float32), n=1024), np.where(x > y, x, y))
    np.testing.assert_array_equal(
        apply("choose_scalar", x, y, out=np.dtype(np.float32), n=1024), np.where(x > y, x, np.float32(-1))
    )


def test_gather_and_transpose() -> None:
    x = floats(1024)
    order = np.random.default_rng(5).permutation(1024).astype(np.uint32)
    np.testing.assert_array_equal(apply("gather_float", x, order * 4, out=np.dtype(np.float32), n=1024), x[order])
    square = np.arange(256, dtype=np.float16)
    found = apply("transpose", np.resize(square, 1024), out=np.dtype(np.float16), count=256, n=1024)
    np.testing.assert_array_equal(found.reshape(16, 16), square.reshape(16, 16).T)


@pytest.mark.parametrize("columns", [1, 7, 8, 13, 30])
def test_rows_of_any_length_by_data_copy_pad(columns: int) -> None:
    rows = 9
    x = floats(rows, columns)
    buffers = [x.copy(), np.zeros_like(x), np.zeros(rows * 8, np.float32)]
    numbers(2201).run("pad_rows", buffers, struct.pack("<II", rows, columns), 1)
    np.testing.assert_array_equal(buffers[1], x * 2)
    width = -(-columns // 8) * 8
    filled = np.full((rows, 64), -np.inf, np.float32)
    filled[:, :width] = -9.0
    filled[:, :columns] = x
    np.testing.assert_array_equal(buffers[2].reshape(rows, 8)[:, 0], filled[:, :width].max(1))


def test_reduce_per_repeat_finds_the_first_extreme() -> None:
    x = np.round(floats(1024) * 2)
    found = apply("whole_max", x, out=np.dtype(np.float32), count=64, n=1024)[:32].reshape(16, 2)
    rows = x.reshape(16, 64)
    np.testing.assert_array_equal(found[:, 0], rows.max(1))
    np.testing.assert_array_equal(found[:, 1].copy().view(np.uint32), rows.argmax(1))


def test_and_of_32_bits_counts_16_bits_on_2201() -> None:
    """Documented: the count of a 32-bit And must be doubled."""
    x, y = (np.random.default_rng(s).integers(0, 2**32, 1024).astype(np.uint32) for s in (0, 1))
    np.testing.assert_array_equal(apply("and_u32", x, y, out=np.dtype(np.uint32), n=1024, option=2048), x & y)
    assert (apply("and_u32", x, y, out=np.dtype(np.uint32), n=1024, option=1024) != (x & y)).any()


@pytest.mark.parametrize("seed", range(24))
def test_masks_repeats_and_strides(seed: int) -> None:
    """Level 0 against a loop over lanes: blocks of 32 bytes, any mask, any strides that do not make dst overlap."""
    rng = np.random.default_rng(seed)
    dtype: Any = (np.float16, np.float32)[seed % 2]
    per_block = 32 // np.dtype(dtype).itemsize
    lanes = 8 * per_block
    repeat = int(rng.integers(1, 6))
    blocks = [int(rng.integers(1, 4)), *rng.integers(0, 4, 2).tolist()]
    steps = [blocks[0] * 8 + int(rng.integers(0, 5)), *rng.integers(0, 20, 2).tolist()]
    mask = rng.random(lanes) < rng.choice([0.2, 0.5, 1.0])
    mask[rng.integers(lanes)] = True
    words = [int("".join("01"[int(b)] for b in mask[w : w + 64][::-1]) or "0", 2) for w in (0, 64)]
    x, y, z = (rng.standard_normal(4096).astype(dtype) for _ in range(3))
    expected = z.copy()
    for r in range(repeat):
        for lane in np.flatnonzero(mask):
            d, a, b = (
                (r * step + lane // per_block * block) * per_block + lane % per_block
                for block, step in zip(blocks, steps, strict=True)
            )
            expected[d] = x[a] + y[b]
    tiling = struct.pack("<QQ7i4x", *words, repeat, *blocks, *steps)
    name = "masked_half" if dtype == np.float16 else "masked_float"
    run(source("masked"), name, Launch([x, y, z], tiling, 1, [x, y, expected]))


@pytest.mark.parametrize("arch", aicore.ARCHES)
def test_every_vector_instruction_compiles_and_runs(arch: int) -> None:
    """One kernel that calls each remaining instruction once; its checks are inside."""
    result = apply("everything", floats(1024), out=np.dtype(np.float32), n=1024, arch=arch)
    assert result[0] == 1.0, f"check {int(-result[0])} failed"


# The harness


def test_counters() -> None:
    launch = launch_add(4, 1024, 256)
    report = run(source("add"), "add", launch)
    bytes_each = 4 * 1024 * 4
    assert report.moved == {"GM->UB": 2 * bytes_each, "UB->GM": bytes_each}
    assert report.gm_read == (bytes_each, bytes_each, 0) and report.gm_written == (0, 0, bytes_each)
    assert report.bytes_read == 2 * bytes_each and report.bytes_written == bytes_each
    assert report.instructions["V"] == 16 and report.instructions["MTE2"] == 32 and report.instructions["MTE3"] == 16
    assert report.allocated["UB"] == 188160 and report.used["UB"] == 6 * 1024
    assert report.cores == {"AIC": 0, "AIV": 4}


def test_double_buffering_overlaps_copies_and_vector_work() -> None:
    heavy = source("add").replace(
        "Add(z, x, y, count);", "Add(z, x, y, count); for (int i = 0; i < 40; ++i) Adds(z, z, 0.0f, count);"
    )
    single = heavy.replace("(inX, 2,", "(inX, 1,").replace("(inY, 2,", "(inY, 1,").replace("(out, 2,", "(out, 1,")
    size = (1, 1 << 16, 4096)
    once, twice = (run(text, "add", launch_add(*size)).cycles for text in (single, heavy))
    assert twice < 0.8 * once


def test_a_few_megabytes_take_little_time() -> None:
    launch = launch_add(8, 1 << 17, 4096)
    report = run(source("add"), "add", launch)
    assert report.bytes_read == 8 << 20


def test_several_kernels_share_an_executable() -> None:
    other = VECTOR.partition("using namespace AscendC;\n")[2].format(body="")
    model = aicore.build(f"{source('add')}namespace second {{{other}}}", ["add", "second::f"])
    model.run("second::f", [np.zeros(8, np.float32)], b"", 2)
    launch = launch_add()
    model.run("add", launch.buffers, launch.tiling, launch.blocks)
    np.testing.assert_array_equal(launch.buffers[2], launch.expected[2])


def test_one_array_for_two_parameters() -> None:
    launch = launch_add()
    x = launch.buffers[0]
    expected = x + launch.buffers[1]
    run(
        source("add"),
        "add",
        Launch([x, launch.buffers[1], x], launch.tiling, launch.blocks, [expected, None, expected]),
    )
    with pytest.raises(ArgumentError, match="overlaps another"):
        aicore.build(source("add"), ["add"]).run("add", [x, x[8:], launch.buffers[1]], launch.tiling, 1)


def test_wrong_arguments() -> None:
    model, launch = aicore.build(source("add"), ["add"]), launch_add()
    with pytest.raises(ArgumentError, match="8 bytes of tiling, 4 were given"):
        model.run("add", launch.buffers, b"1234", 1)
    with pytest.raises(ArgumentError, match="3 GM_ADDR, 2 buffers"):
        model.run("add", launch.buffers[:2], launch.tiling, 1)
    with pytest.raises(ArgumentError, match="C-contiguous"):
        model.run("add", [launch.buffers[0][::2], *launch.buffers[1:]], launch.tiling, 1)
    with pytest.raises(ArgumentError, match="built with add"):
        model.run("sub", [], b"", 1)
    with pytest.raises(ArgumentError, match="arch 910"):
        aicore.build(source("add"), ["add"], 910)
    with pytest.raises(aicore.ModelBuildError, match="does not include"):
        aicore.build("void f() {}", ["f"])


def test_a_crash_and_a_hang_stay_outside() -> None:
    crash = VECTOR.format(body="*(volatile int*)nullptr = 1;")
    with pytest.raises(ExecutionError, match="SIGSEGV"):
        aicore.build(crash, ["f"]).run("f", [np.zeros(8, np.float32)], b"", 1)
    hang = VECTOR.format(body="for (volatile int i = 0;; i = 1) {}")
    with pytest.raises(ExecutionError, match="was stopped"):
        aicore.build(hang, ["f"]).run("f", [np.zeros(8, np.float32)], b"", 1, timeout=0.3)


def test_arrays_stay_as_they_were_after_a_violation() -> None:
    launch = launch_phases()
    before = [buffer.copy() for buffer in launch.buffers]
    with pytest.raises(aicore.ModelViolation):
        run(source("phases").replace("SyncAll();", ""), "phases", launch)
    for now, then in zip(launch.buffers, before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_builds_at_once_share_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFUSION_CACHE_DIR", str(tmp_path))
    text = VECTOR.format(body="")
    with ThreadPoolExecutor(2) as pool:
        models = list(pool.map(lambda _: aicore.build(text, ["f"]), range(2)))
    assert models[0].executable == models[1].executable and models[0].executable.is_file()
    engine = models[0].executable.parent
    assert not [p for p in engine.iterdir() if p.name.startswith(".new-")]
    assert sorted(p.name for p in engine.parent.iterdir()) == [engine.name]


def test_a_damaged_executable_is_built_again() -> None:
    model = aicore.build(VECTOR.format(body="// damaged"), ["f"])
    model.executable.write_bytes(model.executable.read_bytes()[:1000])
    again = aicore.build(VECTOR.format(body="// damaged"), ["f"])
    again.run("f", [np.zeros(8, np.float32)], b"", 1)


def test_old_executables_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = aicore.build(VECTOR.format(body="// old"), ["f"])
    monkeypatch.setenv("AUTOFUSION_CACHE_BYTES", "1")
    second = aicore.build(VECTOR.format(body="// new"), ["f"])
    assert second.executable.is_file() and not first.executable.is_file()


def test_no_compiler_is_said() -> None:
    code = "from autofusion.runtime import aicore; print(aicore.unavailable())"
    environment = {**os.environ, "PATH": "", "CXX": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert "no C++ compiler" in done.stdout


def launch_ub3510() -> Launch:
    a, b = (np.round(floats(16, 16, seed=s) * 4).astype(np.float16) for s in (0, 1))
    expected = 2 * (a.astype(np.float32) @ b.astype(np.float32))
    return Launch([a, b, np.zeros((16, 16), np.float32)], b"", 1, [None, None, expected])


def test_l0c_to_ub_on_3510() -> None:
    """The Cube's result goes straight into the vector core's UB; without the flag, it is a race."""
    text = source("ub3510")
    report = run(text, "ub3510", launch_ub3510(), arch=3510)
    assert report.moved["L0C->UB"] == 1024
    with pytest.raises(aicore.ModelViolation, match=r"rule (7|9|10)"):
        run(text.replace("CrossCoreWaitFlag(0);", ""), "ub3510", launch_ub3510(), arch=3510)


DUAL = (  # both vector cores, a half of the rows each
    ("KERNEL_TYPE_MIX_AIC_1_1", "KERNEL_TYPE_MIX_AIC_1_2"),
    ("Fixpipe<", "fix.dualDstCtrl = 1;\n        Fixpipe<"),
    (
        "CrossCoreSetFlag<2, PIPE_FIX>(0);",
        "CrossCoreSetFlag<4, PIPE_FIX>(0);\n        CrossCoreSetFlag<4, PIPE_FIX>(16);",
    ),
    ("CrossCoreWaitFlag(0);", "CrossCoreWaitFlag<4>(0);"),
    ("Muls(ub, ub, 2.0f, 256);", "Muls(ub, ub, 2.0f, 128);"),
    ("DataCopy(zGm, ub, 256);", "DataCopy(zGm[GetSubBlockIdx() * 128], ub, 128);"),
)


def dual() -> str:
    """The kernel with two destinations."""
    text = source("ub3510")
    for old, new in DUAL:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def test_l0c_to_both_vector_cores_on_3510() -> None:
    report = run(dual(), "ub3510", launch_ub3510(), arch=3510)
    assert report.moved["L0C->UB"] == 1024 and report.synchronisation["CrossCoreSetFlag"] == 2


# what is wrong -> (from, to, the rule, what it says), of the kernel with one destination or with two
BROKEN_3510: dict[str, tuple[bool, str, str, str]] = {
    "a destination that the configuration does not name": (
        False,
        "ROW_MAJOR, true",
        "ROW_MAJOR, false",
        "rule 6.*isToUB",
    ),
    "rows of no whole blocks": (False, "fix.nSize = fix.mSize", "fix.nSize = 12; fix.mSize", "rule 2.*48 bytes"),
    "a vector core that the block does not have": (
        False,
        "Fixpipe<",
        "fix.subBlockId = 1; Fixpipe<",
        "rule 4.*vector core 1",
    ),
    "a vector core that no block has": (False, "Fixpipe<", "fix.subBlockId = 2; Fixpipe<", "rule 4.*subBlockId"),
    "a flag that the second vector core cannot set": (
        False,
        "CrossCoreWaitFlag(0)",
        "CrossCoreWaitFlag<4>(16)",
        "rule 9.*id 16",
    ),
    "halves of an odd number of rows": (True, "fix.nSize = fix.mSize", "fix.mSize = 15; fix.nSize", "rule 4.*15 rows"),
    "halves of too few columns": (True, "fix.dualDstCtrl = 1", "fix.dualDstCtrl = 2", "rule 4.*multiple of 32"),
    "halves with ReLU": (True, "Fixpipe<", "fix.reluEn = true; Fixpipe<", "rule 4.*two destinations"),
    "a third way to halve": (True, "fix.dualDstCtrl = 1", "fix.dualDstCtrl = 3", "rule 4.*dualDstCtrl"),
    "a half that nobody is told of": (True, "CrossCoreSetFlag<4, PIPE_FIX>(16);", "", "rule 9.*deadlock"),
    "a flag for nobody": (
        True,
        "CrossCoreSetFlag<4, PIPE_FIX>(16)",
        "CrossCoreSetFlag<4, PIPE_FIX>(12)",
        "rule 9.*id 12",
    ),
    "the other half's flag": (True, "PIPE_FIX>(16)", "PIPE_FIX>(0)", "rule 9"),
}


@pytest.mark.parametrize("name", BROKEN_3510)
def test_what_breaks_the_way_into_ub(name: str) -> None:
    two, old, new, says = BROKEN_3510[name]
    text = dual() if two else source("ub3510")
    assert text.count(old) == 1, old
    with pytest.raises(aicore.ModelViolation, match=says):
        run(text.replace(old, new), "ub3510", launch_ub3510(), arch=3510)


def test_columns_that_fill_a_block_are_poison_in_ub() -> None:
    """Rows of 12 results are written as 16, the last four of which nothing has computed: fine until they are read."""
    text = source("ub3510").replace("mm.m = mm.n = mm.k = 16;", "mm.m = mm.k = 16; mm.n = 12;")
    with pytest.raises(aicore.ModelViolation, match="rule 7"):
        run(text, "ub3510", launch_ub3510(), arch=3510)
    launch = launch_ub3510()
    text = text.replace(
        "Muls(ub, ub, 2.0f, 256);", "for (int row = 0; row < 16; ++row) Muls(ub[row * 16], ub[row * 16], 2.0f, 12);"
    )
    text = text.replace("DataCopy(zGm, ub, 256);", "DataCopyPad(zGm, ub, DataCopyExtParams{16, 48, 0, 16, 0});")
    expected = np.asarray(launch.expected[2]).copy()
    expected[:, 12:] = 0
    run(text, "ub3510", launch._replace(expected=[None, None, expected]), arch=3510)
