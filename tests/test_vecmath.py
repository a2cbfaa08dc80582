"""The vector math library against float64 and mpmath: error bounds, edge values, lane independence, targets."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache

import llvmlite.binding as llvm
import mpmath
import numpy as np
import pytest

from autofusion.targets.cpu.emit import Emitter, Module
from autofusion.targets.vecmath.functions import FUNCTIONS, NARROW
from autofusion.targets.vecmath.values import V, vector

INF, NAN = float("inf"), float("nan")
DTYPES = {"float": np.float32, "double": np.float64}
# (fma, ldexp, bytes of x86's vectors): what the emitter may use. The first three give right results on every host, only
# at different speed; the last needs AVX-512.
FLAVOURS = {
    "portable": (False, False, 0),
    "fused": (True, False, 0),
    "native": (True, True, 0),
    "avx512": (True, True, 64),
}
PADDING = 32  # elements: a multiple of every lane count
Kernel = Callable[..., np.ndarray]


# -- harness ---------------------------------------------------------------------------------------------------------
def kernel_text(name: str, scalar: str, lanes: int, flavour: str) -> str:
    """`out[i] = f(a0[i], …)` for i < n, n a multiple of `lanes`."""
    row, module = FUNCTIONS[name], Module()
    fma, ldexp, x86 = FLAVOURS[flavour]
    e = Emitter(module, fma=fma, ldexp=ldexp, x86=x86)
    type_, align = vector(scalar, lanes), 4 if scalar == "float" else 8
    inputs = [V("ptr", f"%a{k}") for k in range(row.arity)]
    with e.loop(e.i64(0), V("i64", "%n"), e.i64(lanes)) as i:
        result = row.emit(e, *(e.load(type_, e.gep(p, i, scalar), align) for p in inputs))
        assert result.type == type_
        e.store(result, e.gep(V("ptr", "%out"), i, scalar), align)
    e.function("kernel", ["i64 %n", *(str(p) for p in inputs), "ptr %out"])
    return module.text()


def assembly(text: str, triple: str, cpu: str) -> list[str]:
    """The non-empty lines of the machine code for any target."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=2)
    module = llvm.parse_assembly(text)
    module.verify()
    return [line for line in machine.emit_assembly(module).splitlines() if line.strip()]


def needs(flavour: str) -> None:
    if flavour == "avx512" and not llvm.get_host_cpu_features().get("avx512vl"):
        pytest.skip("the machine has no AVX-512")


@cache
def compiled(name: str, scalar: str, lanes: int = 16, flavour: str = "native") -> Kernel:
    """The function on arrays of any length, compiled for the host."""
    needs(flavour)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(kernel_text(name, scalar, lanes, flavour))
    module.verify()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3)
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    signature = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * (FUNCTIONS[name].arity + 1))
    function = signature(engine.get_function_address("kernel"))

    def run(*inputs: np.ndarray, keep: object = engine) -> np.ndarray:
        size = len(inputs[0])
        padded = [np.concatenate([x, np.ones(-size % PADDING, DTYPES[scalar])]) for x in inputs]
        out = np.empty_like(padded[0])
        function(len(out), *(x.ctypes.data for x in padded), out.ctypes.data)
        return out[:size]

    return run


# -- truth -----------------------------------------------------------------------------------------------------------
FLOAT64: dict[str, Callable[..., np.ndarray]] = {
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "pow": np.power,
}

EXACT: dict[str, Callable[..., object]] = {
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "expm1": mpmath.expm1,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "log2": lambda x: mpmath.log(x) / mpmath.log(2),
    "log1p": mpmath.log1p,
    "pow": mpmath.power,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "trunc": lambda x: mpmath.floor(abs(x)) * mpmath.sign(x),
    "rint": mpmath.nint,
}


def errors_in_ulp(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """|found - truth| in units of the last place of the float32 grid at `truth` (float64).

    Overflow counts as 2^128, the next number of the grid. NaN against a number is infinitely wrong.
    """
    with np.errstate(all="ignore"):
        exponent = np.frexp(np.where(np.isfinite(truth), truth, 1.0))[1] - 1
        unit = np.ldexp(1.0, np.clip(exponent, -126, 127) - 23)
        limit = 2.0**128
        difference = np.abs(np.clip(found.astype(np.float64), -limit, limit) - np.clip(truth, -limit, limit)) / unit
    difference[np.isnan(found) & np.isnan(truth)] = 0.0
    difference[np.isnan(found) != np.isnan(truth)] = INF
    return difference


def bit_patterns(step: int) -> np.ndarray:
    """Every step-th float32, over all exponents and both signs."""
    return np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def single_inputs(name: str, step: int) -> list[np.ndarray]:
    """All exponents, and as many uniform samples of the range where most functions do something."""
    rng = np.random.default_rng(step)
    everything = bit_patterns(step)
    count = len(everything)
    moderate = np.concatenate([rng.uniform(-25, 25, count // 2), rng.uniform(-1.5, 1.5, count // 2)])
    x = np.concatenate([everything, moderate.astype(np.float32)])
    if (FUNCTIONS | NARROW)[name].arity == 1:
        return [x]
    # For pow also: bases near 1 with large exponents, and moderate ones with results in range.
    bases = np.concatenate([np.exp(rng.uniform(-0.01, 0.01, count)), np.exp(rng.uniform(-5, 5, count))])
    exponents = np.concatenate([rng.uniform(-9000, 9000, count), rng.uniform(-20, 20, count)])
    return [
        np.concatenate([x, bases.astype(np.float32)]),
        np.concatenate([rng.permutation(x), exponents.astype(np.float32)]),
    ]


def check_single(name: str, step: int, flavour: str) -> None:
    inputs = single_inputs(name, step)
    with np.errstate(all="ignore"):
        truth = FLOAT64.get(name, getattr(np, name, None))(*(x.astype(np.float64) for x in inputs))
    found = compiled(name, "float", flavour=flavour)(*inputs)
    errors = errors_in_ulp(found, truth)
    worst = int(np.argmax(errors))
    where = [float(x[worst]) for x in inputs]
    assert errors[worst] <= FUNCTIONS[name].ulp32, f"{name}{where}: {found[worst]!r}, should be {truth[worst]!r}"
    number = ~np.isnan(truth)
    assert np.array_equal(np.signbit(found[number]), np.signbit(truth[number]))


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_single_precision_bound(name: str, flavour: str) -> None:
    check_single(name, 40009, flavour)


@pytest.mark.full
@pytest.mark.parametrize("flavour", ["portable", "native", "avx512"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_single_precision_bound_dense(name: str, flavour: str) -> None:
    check_single(name, 1009, flavour)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_arguments_next_to_multiples_of_half_pi(name: str, flavour: str) -> None:
    """Where the reduction cancels most: the three floats around n * pi/2, up to 2^17 and for some huge n."""
    n = np.concatenate([np.arange(1, 2**17), 3.0 ** np.arange(11, 79)])
    nearest = (n * (math.pi / 2)).astype(np.float32)
    x = np.concatenate([nearest, np.nextafter(nearest, np.float32(0)), np.nextafter(nearest, np.float32(INF))])
    truth = getattr(np, name)(x.astype(np.float64))
    assert errors_in_ulp(compiled(name, "float", flavour=flavour)(x), truth).max() <= FUNCTIONS[name].ulp32


# -- double ----------------------------------------------------------------------------------------------------------
def double_inputs(name: str, count: int) -> list[np.ndarray]:
    """Numbers of all exponents, and uniform samples of moderate ranges."""
    rng = np.random.default_rng(count)
    patterns = rng.integers(0, 2**64, count // 4, dtype=np.uint64).view(np.float64)
    patterns = patterns[np.isfinite(patterns)]
    scale = np.exp(rng.uniform(-40, 7, count // 4)) * rng.choice([-1, 1], count // 4)
    x = np.concatenate([patterns, scale, rng.uniform(-1, 1, count // 4), rng.uniform(-750, 750, count // 4)])
    if name in ("log", "log2", "pow", "sqrt", "rsqrt"):
        x = np.abs(x) + np.float64(5e-324)
    if name == "log1p":
        x = np.where(x < -1, -x, x)
    if name in ("asin", "acos"):
        x = np.where(np.abs(x) > 1, np.frexp(x)[0], x)
    return [x] if FUNCTIONS[name].arity == 1 else [x, rng.permutation(x)]


def exact_error_in_ulp(name: str, found: float, arguments: tuple[float, ...]) -> float:
    """The error of one double result against mpmath; overflow and underflow as the format has them."""
    function = EXACT.get(name) or getattr(mpmath, name)
    truth = function(*map(mpmath.mpf, arguments))
    nearest = float(truth)
    if math.isinf(found) or math.isinf(nearest):
        return 0.0 if found == nearest else INF
    return float(abs(mpmath.mpf(found) - truth) / math.ulp(nearest))


def representable(name: str, x: np.ndarray) -> np.ndarray:
    """mpmath needs as many digits as the argument has: leave out what makes it slow, not what makes it hard."""
    finite = np.isfinite(x).all(axis=0)
    if name in ("exp", "exp2", "expm1", "sinh", "cosh", "sigmoid", "tanh"):
        return finite & (np.abs(x[0]) < 2000)
    if name == "pow":
        with np.errstate(all="ignore"):
            return finite & (np.abs(x[1] * np.log(x[0])) < 2000)
    return finite


@pytest.mark.parametrize("name", FUNCTIONS)
def test_double_precision_bound(name: str) -> None:
    inputs = double_inputs(name, 2000)
    keep = representable(name, np.stack(inputs))
    inputs = [x[keep] for x in inputs]
    flavours = {flavour: compiled(name, "double", 8, flavour)(*inputs) for flavour in ("portable", "native")}
    with mpmath.workdps(400 if name in ("sin", "cos", "tan") else 60):
        for flavour, found in flavours.items():
            for value, *arguments in zip(found.tolist(), *(x.tolist() for x in inputs), strict=True):
                error = exact_error_in_ulp(name, value, tuple(arguments))
                assert error <= FUNCTIONS[name].ulp64, f"{flavour} {name}{arguments} = {value!r}: {error} ulp"


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_double_arguments_next_to_multiples_of_half_pi(name: str) -> None:
    x = np.random.default_rng(5).integers(1, 2**20, 500) * (math.pi / 2)
    with mpmath.workdps(60):
        for flavour in ("portable", "native"):
            for value, argument in zip(compiled(name, "double", 8, flavour)(x).tolist(), x.tolist(), strict=True):
                assert exact_error_in_ulp(name, value, (argument,)) <= FUNCTIONS[name].ulp64, argument


# -- edges -----------------------------------------------------------------------------------------------------------
HALF_PI, PI = math.pi / 2, math.pi
EDGES: dict[str, list[tuple[float, ...]]] = {  # (arguments …, result), exact in both formats after rounding
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (800.0, INF), (-800.0, 0.0), (3e38, INF)],
    "exp2": [(0.0, 1.0), (INF, INF), (-INF, 0.0), (10.0, 1024.0), (-126.0, 2.0**-126), (-149.0, 2.0**-149)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (-800.0, -1.0), (1e-45, 1e-45), (800.0, INF)],
    "sigmoid": [(0.0, 0.5), (INF, 1.0), (-INF, 0.0), (-800.0, 0.0), (800.0, 1.0)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (1e-45, 1e-45), (3e38, 1.0), (-30.0, -1.0)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (1e-45, 1e-45), (800.0, INF)],
    "cosh": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (-800.0, INF)],
    "log": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-1.0, NAN), (-INF, NAN), (-1e-45, NAN)],
    "log2": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-1.0, NAN), (2.0**-149, -149.0), (2.0**99, 99.0)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (INF, INF), (-2.0, NAN), (-INF, NAN), (1e-45, 1e-45)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (7.0, 1.0), (-7.0, -1.0)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (1e-45, 1e-45)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (1e-45, 1.0)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (1e-45, 1e-45)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (1.0, HALF_PI), (-1.0, -HALF_PI), (1.5, NAN), (-INF, NAN), (1e-45, 1e-45)],
    "acos": [(1.0, 0.0), (0.0, HALF_PI), (-1.0, PI), (1.5, NAN), (-1.5, NAN), (INF, NAN)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (INF, HALF_PI), (-INF, -HALF_PI), (1e-45, 1e-45)],
    "atan2": [
        *((0.0, 0.0, 0.0), (-0.0, 0.0, -0.0), (0.0, -0.0, PI), (-0.0, -0.0, -PI), (0.0, -3.0, PI), (0.0, 3.0, 0.0)),
        *((2.0, 0.0, HALF_PI), (-2.0, -0.0, -HALF_PI), (INF, INF, PI / 4), (INF, -INF, 3 * PI / 4), (1.0, INF, 0.0)),
        *((-1.0, -INF, -PI), (INF, 1.0, HALF_PI), (-INF, 1.0, -HALF_PI), (NAN, 1.0, NAN), (1.0, NAN, NAN)),
        *((INF, NAN, NAN), (NAN, 0.0, NAN), (0.0, NAN, NAN)),
    ],
    "pow": [
        *((NAN, 0.0, 1.0), (NAN, -0.0, 1.0), (INF, 0.0, 1.0), (0.0, 0.0, 1.0), (1.0, NAN, 1.0), (1.0, INF, 1.0)),
        *((-1.0, INF, 1.0), (-1.0, -INF, 1.0), (NAN, 1.0, NAN), (2.0, NAN, NAN), (-1.0, NAN, NAN), (-8.0, 0.5, NAN)),
        *((0.0, -1.0, INF), (-0.0, -1.0, -INF), (-0.0, -3.0, -INF), (-0.0, -2.0, INF), (-0.0, -0.5, INF)),
        *((0.0, 3.0, 0.0), (-0.0, 3.0, -0.0), (-0.0, 2.0, 0.0), (-0.0, 0.5, 0.0), (0.0, 1e-30, 0.0), (0.0, INF, 0.0)),
        *((0.0, -INF, INF), (-0.0, -INF, INF), (0.5, INF, 0.0), (2.0, INF, INF), (0.5, -INF, INF), (2.0, -INF, 0.0)),
        *((-0.5, INF, 0.0), (-2.0, INF, INF), (-2.0, -INF, 0.0), (INF, 2.0, INF), (INF, -2.0, 0.0), (INF, INF, INF)),
        *((-INF, 3.0, -INF), (-INF, 2.0, INF), (-INF, 0.5, INF), (-INF, -3.0, -0.0), (-INF, -2.0, 0.0)),
        *((-INF, -0.5, 0.0), (-2.0, 3.0, -8.0), (-2.0, 2.0, 4.0), (-2.0, -1.0, -0.5), (2.0, 0.5, math.sqrt(2))),
        *((-1.0, 16777215.0, -1.0), (-1.0, 16777216.0, 1.0), (-1.0, 8388609.0, -1.0), (-1.0, 8388608.0, 1.0)),
        *((-3.0, 2.5, NAN), (2.0, -149.0, 2.0**-149), (-1.0, 1e30, 1.0), (3.0, 1.0, 3.0), (2.0, 127.0, 2.0**127)),
    ],
    "sqrt": [(0.0, 0.0), (-0.0, -0.0), (4.0, 2.0), (INF, INF), (-1.0, NAN)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (4.0, 0.5), (INF, 0.0), (-1.0, NAN)],
    "floor": [(-0.0, -0.0), (-0.5, -1.0), (2.5, 2.0), (INF, INF), (-INF, -INF)],
    "ceil": [(-0.5, -0.0), (0.5, 1.0), (2.5, 3.0), (INF, INF)],
    "trunc": [(-0.5, -0.0), (2.5, 2.0), (-2.5, -2.0), (-INF, -INF)],
    "rint": [(0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.5, -0.0), (INF, INF)],
}


def test_every_function_has_edges() -> None:
    assert EDGES.keys() == FUNCTIONS.keys()


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("scalar", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_edges(name: str, scalar: str, flavour: str) -> None:
    dtype = DTYPES[scalar]
    rows = EDGES[name] + ([(NAN, NAN)] if FUNCTIONS[name].arity == 1 else [])
    *inputs, expected = (np.array(column, dtype) for column in zip(*rows, strict=True))
    for lanes in (1, 16):
        found = compiled(name, scalar, lanes, flavour)(*inputs)
        for row, got, want in zip(rows, found, expected, strict=True):
            assert np.array_equal(got, want, equal_nan=True), f"{name}{row[:-1]} = {got!r}, should be {want!r}"
            assert np.isnan(want) or np.signbit(got) == np.signbit(want), f"{name}{row[:-1]} has the wrong sign"


def test_denormals_are_kept() -> None:
    x = np.array([-90.0, -100.0, -103.0], np.float32)
    assert (compiled("exp", "float")(x) > 0).all()
    assert (compiled("sigmoid", "float")(x) > 0).all()
    logarithm = compiled("log", "float")(np.array([1e-40, 1e-45], np.float32))
    assert np.allclose(logarithm, [-92.1034, -103.2789], rtol=1e-6)


@pytest.mark.parametrize("flavour", ["portable", "avx512"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_result_leaves_its_range(name: str, flavour: str) -> None:
    ranges = {"tanh": (-1, 1), "erf": (-1, 1), "sigmoid": (0, 1), "sin": (-1, 1), "cos": (-1, 1)}
    if name in ranges:
        found = compiled(name, "float", flavour=flavour)(*single_inputs(name, 100003))
        low, high = ranges[name]
        assert np.nanmin(found) >= low and np.nanmax(found) <= high


# -- lanes, text, targets --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("flavour", ["native", "avx512"])
@pytest.mark.parametrize("scalar", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_do_not_depend_on_lanes(name: str, scalar: str, flavour: str) -> None:
    with np.errstate(invalid="ignore"):  # the bit patterns have signalling NaNs
        inputs = [x.astype(DTYPES[scalar]) for x in single_inputs(name, 1000003)]
    integer = np.uint32 if scalar == "float" else np.uint64
    one = compiled(name, scalar, 1, flavour)(*inputs)
    for lanes in (2, 4, 8, 16, *((32,) if flavour == "avx512" and scalar == "float" else ())):
        many = compiled(name, scalar, lanes, flavour)(*inputs)
        number = ~(np.isnan(one) & np.isnan(many))
        assert np.array_equal(one[number].view(integer), many[number].view(integer)), f"{name} with {lanes} lanes"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_text_is_deterministic(name: str) -> None:
    assert kernel_text(name, "float", 16, "native") == kernel_text(name, "float", 16, "native")


ROUNDING = ("floor", "ceil", "trunc", "rint")  # one instruction, from SSE4.1 on


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ROUNDING])
@pytest.mark.parametrize(
    ("triple", "cpu", "flavour"),
    [
        ("x86_64-unknown-linux-gnu", "x86-64", "portable"),
        ("x86_64-unknown-linux-gnu", "haswell", "fused"),
        ("x86_64-unknown-linux-gnu", "skylake-avx512", "native"),
        ("x86_64-unknown-linux-gnu", "skylake-avx512", "avx512"),
        ("aarch64-unknown-linux-gnu", "generic", "fused"),
    ],
)
def test_single_precision_never_calls(name: str, triple: str, cpu: str, flavour: str) -> None:
    for lanes in (1, 2, 4, 8, 16):
        opcodes = {line.split()[0] for line in assembly(kernel_text(name, "float", lanes, flavour), triple, cpu)}
        assert not opcodes & {"call", "callq", "bl", "blr"}


def test_a_call_is_seen() -> None:
    """The opposite of the test above: double erf does call libm on both architectures."""
    for triple, cpu, opcode in (
        ("x86_64-unknown-linux-gnu", "x86-64", "callq"),
        ("aarch64-unknown-linux-gnu", "generic", "bl"),
    ):
        lines = assembly(kernel_text("erf", "double", 2, "portable"), triple, cpu)
        assert opcode in {line.split()[0] for line in lines}


def test_other_types_are_refused() -> None:
    e = Emitter(Module())
    with pytest.raises(TypeError, match="float or double"):
        FUNCTIONS["exp"].emit(e, V("<8 x half>", "%x"))
