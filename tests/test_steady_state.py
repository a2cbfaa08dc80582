"""Once warm, calls take no memory that they do not give back, whatever they are made of and however they are called."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from steady import grown

import autofusion as af
from autofusion.dtypes import Array
from autofusion.runtime import binding, pool

pytestmark = pytest.mark.skipif(not pool.native_available(), reason="the native runtime was not built")

SLACK = 8192  # bytes: caches of the interpreter's own, a call's own objects


class Case(NamedTuple):
    """A function, and the shapes of its float32 arguments; `indices`: how many int64 ones come behind them."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    indices: int = 0

    def arguments(self) -> list[Array]:
        rng = np.random.default_rng(0)
        given: list[Array] = [rng.standard_normal(shape).astype(np.float32) for shape in self.shapes]
        return given + [rng.integers(0, self.shapes[0][0], 64) for _ in range(self.indices)]


def _chain(x: Any, y: Any) -> Any:
    return af.tanh(x * y + 1.0) - x, x + y


def _attention(q: Any, k: Any, v: Any) -> Any:
    return af.softmax(q @ k.T * 0.125, axis=-1) @ v


def _update(p: Any, g: Any) -> Any:
    p[...] = p - g * 0.1
    return g + 1.0


def _step(p: Any, g: Any, m: Any) -> Any:
    m[...] = m * 0.9 + g
    p[...] = p - m * 0.01
    return (m * m).sum()


CASES = {
    "chain": Case(_chain, ((256, 256), (256,))),
    "small": Case(_chain, ((4, 4), (4,))),
    "rows": Case(lambda x: af.softmax(x - x.mean(axis=-1, keepdims=True), axis=-1), ((200, 300),)),
    "fold": Case(lambda x: (x * x).sum(), ((300_000,),)),
    "scan": Case(lambda x: af.cumsum(x, axis=1), ((200, 300),)),
    "product": Case(lambda x, w, b: af.relu(x @ w + b), ((70, 90), (90, 300), (300,))),
    "layers": Case(lambda x, w: af.relu(af.relu(x @ w) @ w.T) @ w, ((32, 512), (512, 512))),
    "attention": Case(_attention, ((64, 64), (64, 64), (64, 64))),
    "convolution": Case(lambda x, w: af.relu(af.conv(x, w, pads=(1, 1, 1, 1))), ((1, 8, 40, 40), (8, 8, 3, 3))),
    "gather": Case(lambda table, at: af.gather(table, at, axis=0) * 2.0, ((1000, 300),), 1),
    "views": Case(lambda x, y: af.concat([x.T, y[::2]], axis=1), ((100, 300), (600, 200))),
    "updated": Case(_update, ((50_000,), (50_000,))),
    "written": Case(_step, ((50_000,), (50_000,), (50_000,))),
}


def compiled(name: str) -> tuple[af.Compiled, list[Array]]:
    given = CASES[name].arguments()
    return af.compile(CASES[name].function, given).compiled, given


def result_bytes(model: af.Compiled, given: list[Any]) -> int:
    found = model(*given)
    return sum(each.nbytes for each in (found if isinstance(found, tuple) else (found,)))


def test_the_cases_are_of_many_kinds() -> None:
    """Several launches' worth of phases, a workspace, arguments that are written."""
    plans = [compiled(name)[0].executable.plan for name in CASES]
    assert any(plan.workspace for plan in plans) and any(plan.writes for plan in plans)
    assert any(storage.within for plan in plans for storage in plan.storages.values())
    assert len({plan.calls[0].chunks for plan in plans}) > 2


@pytest.mark.parametrize("name", CASES)
def test_arrays(name: str) -> None:
    model, given = compiled(name)
    found = grown(lambda: model(*given))
    assert found.traced < SLACK and found.fresh == 0
    assert found.peak < SLACK + result_bytes(model, given)


@pytest.mark.parametrize("name", CASES)
def test_places_of_the_callers_own(name: str) -> None:
    model, given = compiled(name)
    if model.executable.plan.writes:
        pytest.skip("results are arguments")
    first = model(*given)
    out = [np.empty_like(each) for each in (first if isinstance(first, tuple) else (first,))]
    found = grown(lambda: model(*given, out=out), 200)
    assert found.traced < SLACK and found.fresh == 0
    assert found.peak < 2 * SLACK
    for place, each in zip(out, first if isinstance(first, tuple) else (first,), strict=True):
        assert np.array_equal(place, each)


@pytest.mark.parametrize("name", CASES)
def test_tensors(name: str) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has no exchange table")
    model, arrays = compiled(name)
    given = [torch.from_numpy(each) for each in arrays]
    found = grown(lambda: model(*given))
    assert found.traced < SLACK and found.fresh == 0
    assert found.peak < SLACK


@pytest.mark.parametrize("threads", [1, 2])
def test_several_workers(threads: int) -> None:
    """A call that says its workers goes through Python."""
    model, given = compiled("layers")
    found = grown(lambda: model(*given, threads=threads), 200)
    assert found.traced < SLACK and found.fresh == 0


def test_other_layouts_are_copied_and_given_back() -> None:
    model, (x, w, b) = compiled("product")
    turned = np.asfortranarray(x)
    found = grown(lambda: model(turned, w, b), 200)
    assert found.traced < SLACK and found.fresh == 0


def test_open_sizes() -> None:
    """Of sizes that come again."""
    model = af.compile(lambda x: af.softmax(x, axis=-1), [np.ones((8, 256), np.float32)], dynamic={"x": ("n", 256)})
    given = [np.ones((n, 256), np.float32) for n in (100, 200, 300)]
    found = grown(lambda: [model(each) for each in given], 100)
    assert found.traced < 4 * SLACK and found.fresh == 0


def test_what_grows_is_seen() -> None:
    """The measure itself: results that are kept take memory."""
    model, given = compiled("chain")
    kept: list[Any] = []
    found = grown(lambda: kept.append(model(*given)), 20)
    assert found.traced > 20 * 100 and found.fresh == 3 * 20 * 2


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", ["small", "fold", "updated"])
def test_ten_thousand_launches_leak_nothing(name: str) -> None:
    """Nor do they keep a reference to an argument."""
    model, given = compiled(name)
    for _ in range(500):
        model(*given)
    references = [sys.getrefcount(each) for each in given]
    before, fresh = resident_bytes(), binding.fresh_blocks()
    for _ in range(10_000):
        model(*given)
    assert resident_bytes() - before < 1_000_000
    assert binding.fresh_blocks() == fresh
    assert [sys.getrefcount(each) for each in given] == references


# -- threads -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("same", [True, False], ids=["one", "several"])
def test_eight_threads_while_another_compiles(same: bool) -> None:
    """Each launches the same kernel on data of its own, or one of its own, while new ones are compiled and first
    called in the background."""
    names = ["layers"] * 8 if same else ["chain", "rows", "fold", "scan", "product", "layers", "convolution", "views"]
    models = {name: compiled(name) for name in dict.fromkeys(names)}
    work = []
    for number, name in enumerate(names):
        model, given = models[name]
        own = [each * np.float32(1 + number / 8) for each in given]
        work.append((model, own, _listed(model(*own))))
    over, wrong = threading.Event(), []
    rounds = [0] * len(work)

    def launch(number: int) -> None:
        model, own, expected = work[number]
        while not over.is_set() or rounds[number] < 30:
            found = _listed(model(*own, threads=2) if rounds[number] % 3 == 0 else model(*own))
            if not all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True)):
                wrong.append(names[number])
            rounds[number] += 1

    threads = [threading.Thread(target=launch, args=(number,)) for number in range(len(work))]
    for thread in threads:
        thread.start()
    try:
        x = np.linspace(-1, 1, 1000, dtype=np.float32)
        for n in range(8):
            scale = float(n) + (0.5 if same else 0.25)  # a kernel that no cache has yet
            found = af.compile(lambda x, scale=scale: af.exp(x * scale) + scale, [x])(x)
            np.testing.assert_allclose(found, np.exp(x * np.float32(scale)) + np.float32(scale), rtol=1e-6)
    finally:
        over.set()
        for thread in threads:
            thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong and min(rounds) >= 30


def _listed(found: Any) -> tuple[Array, ...]:
    return found if isinstance(found, tuple) else (found,)
