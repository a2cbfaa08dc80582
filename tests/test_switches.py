"""Every optimisation of the CPU target on, off by itself, and all off: the same values, for any level and layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from oracle import random_array

from autofusion import api, dtypes
from autofusion.dtypes import Array, DType
from autofusion.frontends import functions as af
from autofusion.frontends import tracer
from autofusion.frontends.python import element_strides
from autofusion.graph import evaluate
from autofusion.graph.ir import Graph
from autofusion.jit import cache, pipeline
from autofusion.kernel import schedule
from autofusion.passes import pipeline as passes
from autofusion.runtime import binding
from autofusion.superkernel.options import SuperKernelOptions
from autofusion.targets.cpu import contraction, division, emit, facts, host, loops, render

F32 = DType.FLOAT32
softmax, layer_norm, exp, tanh, maximum, relu = (
    af.lookup(name) for name in ("softmax", "layer_norm", "exp", "tanh", "maximum", "relu")
)


# -- the switches ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Switch:
    """Something that makes code faster, as it is turned off: options of the compile, and names that are replaced."""

    options: dict[str, Any] = field(default_factory=dict)
    replaced: tuple[tuple[Any, str, Any], ...] = ()


def _smallest(kernel: Any, target: Any) -> Any:
    """The schedule for the least on-chip memory."""
    return list(schedule.candidates(kernel, target))[-1]


def _covers_nothing(self: Any, *operands: Any) -> bool:
    return False


KEPT_PASSES = tuple(each for each in passes.PASSES if each.name not in ("fold_constants", "cse"))
SWITCHES = {
    "fusion": Switch({"fuse": False}),
    "shared workspace": Switch({"superkernel": SuperKernelOptions(workspace_reuse=False)}),
    "schedules": Switch({"schedules": _smallest}),
    "folding and cse": Switch(replaced=((passes, "PASSES", KEPT_PASSES),)),
    "packed constants": Switch(replaced=((passes, "lay_out", lambda graph, target: graph),)),
    "contraction kernel": Switch(
        replaced=((contraction, "emit", lambda *_: contraction.Emitted.NOTHING),),
    ),
    "epilogues on register tiles": Switch(replaced=((render, "with_epilogues", list),)),
    "division by a reciprocal": Switch(replaced=((division, "pays", lambda *_: False),)),
    "what statements tell": Switch(replaced=((render, "facts_of", lambda *_: facts.NOTHING),)),
    "reads by whole lines": Switch(replaced=((loops.Nest, "_head", lambda *_: None),)),
    "functions by pieces": Switch(replaced=((emit.Emitter, "chooses", False),)),
    "max and min without a test": Switch(replaced=((loops.NanFlow, "covers", _covers_nothing),)),
    "stores past the caches": Switch(replaced=((render, "PAST", 1 << 62),)),
    "prefetch": Switch(replaced=((render, "FAR", 1 << 62),)),
    "native calls": Switch(replaced=((binding, "bind", lambda *_: None),)),
}


# -- what is computed --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Work:
    """A function, its arguments' shapes, how many of them are constants of the graph, and the element types."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[DType, ...] = (F32,)
    tolerance: float = 64.0


def _mlp(x: Any, w: Any, b: Any, v: Any) -> Any:
    return softmax(tanh(x @ w + b) @ v, axis=-1)


def _chain(x: Any, y: Any) -> Any:
    for _ in range(4):
        x = maximum(x * y + 0.5, -x) / 3.0
    return x, relu(x - y)


def _norm(x: Any, g: Any, b: Any, r: Any) -> Any:
    return exp(layer_norm(x, g, b) * 0.1) + r


def _attention(q: Any, k: Any, v: Any) -> Any:
    return softmax(q @ k.transpose(0, 2, 1) * 0.25, axis=-1) @ v


def _moved(x: Any, y: Any) -> Any:
    z = af.lookup("concat")([x.transpose(1, 0), y], axis=0)
    return z[::2, 1:] * 2.0, af.lookup("cumsum")(z, axis=1)


WORK = {
    "mlp": Work(_mlp, ((13, 70), (70, 45), (45,), (45, 33)), (F32, DType.FLOAT64, DType.BFLOAT16)),
    "chain": Work(_chain, ((37, 61), (37, 61)), (F32, DType.FLOAT64, DType.FLOAT16)),
    "large chain": Work(lambda x, y: (x * y + 1.0) / 7.0, ((1031, 2053), (2053,))),
    "norm": Work(_norm, ((19, 83), (83,), (83,), (19, 83))),
    "attention": Work(_attention, ((3, 17, 16), (3, 29, 16), (3, 29, 24))),
    "moved": Work(_moved, ((21, 35), (14, 21)), (F32, DType.INT32)),
    "products": Work(lambda x, w, b: relu(x @ w.transpose(1, 0) + b) * 2.0, ((130, 517), (75, 517), (75,))),
}
CASES = [(name, dtype) for name, work in WORK.items() for dtype in work.types]


def laid(array: Array, layout: str) -> Array:
    """The same values: row-major, with gaps between elements, transposed in memory, or off the alignment of vectors."""
    if layout == "apart":
        big = np.zeros((*array.shape[:-1], 3 * array.shape[-1] + 5), array.dtype)
        big[..., 2 : 2 + 3 * array.shape[-1] : 3] = array
        return big[..., 2 : 2 + 3 * array.shape[-1] : 3]
    if layout == "transposed":
        return np.ascontiguousarray(array.T).T
    if layout == "misaligned":
        raw = np.zeros(array.nbytes + 64, np.uint8)
        moved = raw[array.itemsize : array.itemsize + array.nbytes].view(array.dtype).reshape(array.shape)
        moved[...] = array
        return moved
    return array


def graph_of(work: Work, arrays: list[Array]) -> Graph:
    specs = [(f"x{n}", dtypes.of(a), a.shape, element_strides(a)) for n, a in enumerate(arrays)]
    return tracer.trace(work.function, specs).graph


def check(name: str, dtype: DType, layout: str = "plain", cpu: str = "host", **options: Any) -> None:
    """Compiled without help of any cache, against the reference."""
    work, rng = WORK[name], np.random.default_rng(3)
    span = (0.25, 2.0) if dtype.is_float else (-9, 9)
    arrays = [laid(random_array(rng, dtype, int(np.prod(s)), span).reshape(s), layout) for s in work.shapes]
    graph = graph_of(work, arrays)
    target = host.target_of(host.named(cpu))
    compilation = pipeline.compile_graph(graph, target, pipeline.Options(cpu=cpu, **options))
    found = api.Compiled(compilation.graph, pipeline.load(compilation), compilation)(*arrays)
    wanted = evaluate.run(graph, arrays)
    for ours, theirs in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if not dtype.is_float:
            assert np.array_equal(ours, theirs)
            continue
        a, e = ours.astype(np.float64), theirs.astype(np.float64)
        allowed = work.tolerance * float(dtypes_epsilon(dtype)) * np.maximum(np.abs(e), 1.0)
        assert np.all(np.abs(a - e) <= allowed), np.max(np.abs(a - e) / allowed)


def dtypes_epsilon(dtype: DType) -> float:
    return {F32: 2.0**-23, DType.FLOAT64: 2.0**-52, DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}[dtype]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that another setting made is not found."""
    monkeypatch.setenv("AUTOFUSION_CACHE_DIR", "")
    cache.default_cache().clear()


def turned_off(patch: pytest.MonkeyPatch, names: Any) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name in names:
        options |= SWITCHES[name].options
        for owner, attribute, value in SWITCHES[name].replaced:
            patch.setattr(owner, attribute, value)
    return options


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_without_one(name: str, dtype: DType, switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, dtype, **turned_off(monkeypatch, [switch]))


@pytest.mark.parametrize("cpu", ["host", "avx512", "avx2", "sse2"])
@pytest.mark.parametrize("off", ["on", "off"])
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_all_on_and_all_off(name: str, dtype: DType, off: str, cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not host.runs(host.named(cpu)):
        pytest.skip(f"this machine does not run {cpu}")
    check(name, dtype, cpu=cpu, **turned_off(monkeypatch, SWITCHES if off == "off" else ()))


@pytest.mark.parametrize("layout", ["apart", "transposed", "misaligned"])
@pytest.mark.parametrize("off", ["on", "off"])
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_any_layout(name: str, dtype: DType, off: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, dtype, layout, **turned_off(monkeypatch, SWITCHES if off == "off" else ()))


@pytest.mark.parametrize("switch", ["epilogues on register tiles", "stores past the caches", "prefetch", "fusion"])
def test_a_switch_changes_the_code(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is turned off was on: each of these leaves its trace in the code of one of the cases."""

    def code(**options: Any) -> str:
        made = []
        for name in ("large chain", "products", "mlp"):
            arrays = [np.ones(shape, np.float32) for shape in WORK[name].shapes]
            target = host.target_of(host.named("avx512"))
            made.append(
                pipeline.compile_graph(graph_of(WORK[name], arrays), target, pipeline.Options(cpu="avx512", **options))
            )
        return "\n".join(each.text for compilation in made for each in compilation.codes.values())

    before = code()
    assert code(**turned_off(monkeypatch, [switch])) != before
