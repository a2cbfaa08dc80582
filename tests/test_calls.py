"""Calls from several threads and processes at once, and what a failed check tells."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autofusion as af
from autofusion import api
from autofusion.dtypes import Array, DType
from autofusion.errors import IndexOutOfRange
from autofusion.graph.builder import GraphBuilder

ROOT = Path(__file__).resolve().parents[1]


def together(*bodies: Callable[[], Any]) -> list[Any]:
    """Run in threads that start at one moment; their results, or the first error."""
    gate = threading.Barrier(len(bodies))
    results: list[Any] = [None] * len(bodies)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            gate.wait()
            results[number] = bodies[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


# -- threads ---------------------------------------------------------------------------------------------------------
def test_two_threads_compile_and_call_at_once() -> None:
    def body(number: int) -> Callable[[], Any]:
        def work() -> None:
            for n in range(12):
                x = np.arange(100 + n, dtype=np.float32)
                run = af.jit(lambda x: af.exp(x * -0.01) * float(number + 1))
                expected = np.exp(x * np.float32(-0.01)) * np.float32(number + 1)
                np.testing.assert_allclose(run(x), expected, rtol=1e-6)

        return work

    together(*(body(n) for n in range(4)))


def test_one_jit_function_compiles_once_for_threads_that_meet() -> None:
    run = af.jit(lambda x: af.softmax(x, axis=-1))
    x = np.ones((64, 100), np.float32)
    results = together(*[lambda: run(x)] * 6)
    for found in results:
        assert np.array_equal(found, results[0])
    assert run.stats["variants"] == 1 and run.stats["calls"] == 6


def test_calls_of_one_executable_do_not_share_memory() -> None:
    """Two groups with a workspace between them, open sizes, other data in each thread; 70 sizes, more than are kept."""
    run = af.jit(lambda x: (x @ x.T) @ x + af.sum(x, axis=0), dynamic={"x": ("n", 8)})

    def body(number: int) -> Callable[[], Any]:
        def work() -> None:
            for n in range(1, 71):
                x = np.full((n, 8), number + 1, np.float32)
                expected = (x.astype(np.float64) @ x.T) @ x + x.sum(axis=0)
                np.testing.assert_allclose(run(x, threads=1 + n % 2), expected, rtol=1e-5)

        return work

    together(*(body(n) for n in range(4)))
    assert run.stats["variants"] == 1 and run.stats["calls"] == 4 * 70


# -- fork ------------------------------------------------------------------------------------------------------------
def _in_child(queue: Any, x: Array) -> None:
    run = af.jit(lambda x: af.softmax(x * 2, axis=-1))
    queue.put((KEPT[0](x, threads=2), run(x, threads=2)))


KEPT: list[Any] = []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_after_use_works_in_both_processes() -> None:
    """The parent's kernels run in the child, on workers of the child's own, and new ones compile there."""
    x = np.random.default_rng(0).normal(size=(500, 300)).astype(np.float32)
    run = af.jit(lambda x: af.softmax(x, axis=-1))
    KEPT[:] = [run]
    before = run(x, threads=2)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue, x))
    child.start()
    old, new = queue.get(timeout=120)
    child.join(60)
    assert child.exitcode == 0
    assert np.array_equal(old, before)
    assert np.array_equal(new, af.jit(lambda x: af.softmax(x * 2, axis=-1))(x, threads=2))
    assert np.array_equal(run(x, threads=2), before)


def test_a_process_ends_quietly_after_use() -> None:
    """No hang and no noise at exit, with resident workers and a thread that still holds kernels."""
    code = (
        "import numpy as np, autofusion as af, threading\n"
        "run = af.jit(lambda x: af.exp(x) + 1)\n"
        "x = np.ones(1_000_000, np.float32)\n"
        "run(x, threads=2)\n"
        "threading.Thread(target=lambda: [run(x, threads=2) for _ in range(20)]).start()\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-W", "error", "-c", code]
    ran = subprocess.run(command, env=environment, capture_output=True, timeout=120)
    assert ran.returncode == 0 and not ran.stderr, ran.stderr


@pytest.mark.parametrize("threads", [1, 2])
def test_a_process_ends_while_others_launch(threads: int) -> None:
    """Daemon threads launch, with workers and out= and as usual, while the interpreter shuts down; a last call comes
    from a handler at exit."""
    code = (
        "import atexit, threading, time\n"
        "import numpy as np, autofusion as af\n"
        "run = af.compile(lambda x: af.exp(x) + 1, [np.ones(200_000, np.float32)]).compiled\n"
        "x, out = np.zeros(200_000, np.float32), np.empty(200_000, np.float32)\n"
        "started = threading.Barrier(5)\n"
        "def launch(number):\n"
        "    place = np.empty_like(out)\n"
        "    run(x)\n"
        "    started.wait()\n"
        "    while True:\n"
        "        if number % 2:\n"
        "            run(x)\n"
        "        else:\n"
        f"            run(x, threads={threads}, out=place)\n"
        "for number in range(4):\n"
        "    threading.Thread(target=launch, args=(number,), daemon=True).start()\n"
        "started.wait()\n"
        "time.sleep(0.05)\n"
        f"atexit.register(lambda: print(run(x, threads={threads})[:2].tolist()))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-W", "error", "-c", code]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[2.0, 2.0]\n", "")


# -- failed checks ---------------------------------------------------------------------------------------------------
def picked(table: Any, index: Any) -> Any:
    return table[index]


Bad = tuple[str, Callable[..., Any], tuple[int, ...], dict[int, int], int]

# name, function of (table [100, 24], index), the index array's shape, bad entries by flat position, the position told
OUT_OF_RANGE: tuple[Bad, ...] = (
    ("rows", picked, (40,), {7: 100}, 7),
    ("too negative", picked, (40,), {39: -101}, 39),
    ("huge", picked, (40,), {3: 2**62, 5: -(2**62)}, 3),
    ("the smallest of several", picked, (9, 50), {449: 100, 77: 500, 300: -200}, 77),
    ("of a table of one column", lambda t, i: t[:, 0][i], (9, 50), {449: 100, 77: 500}, 77),
    ("of a transposed index", lambda t, i: t[i.T], (9, 50), {77: 500, 51: 700}, 51 % 50 * 9 + 1),
    ("of a computed index", lambda t, i: t[i * 2 - i], (9, 50), {449: 100, 77: 500}, 77),
    ("along the second axis", lambda t, i: af.gather(t, i, axis=1), (30,), {29: 24, 11: -25}, 11),
    ("fused with what follows", lambda t, i: af.softmax(t[i] * 2, axis=-1), (3, 40), {60: 100, 119: 100}, 60),
    ("of a scalar", picked, (), {0: 100}, 0),
    ("of many positions", picked, (50_000,), {49_999: 100, 31_234: 100}, 31_234),
)  # fmt: skip

NAMES = [case[0] for case in OUT_OF_RANGE]


@pytest.mark.parametrize(("name", "function", "shape", "bad", "position"), OUT_OF_RANGE, ids=NAMES)
@pytest.mark.parametrize("workers", (1, 2, 3))
def test_an_index_out_of_range_names_operator_and_position(
    name: str, function: Any, shape: Any, bad: dict[int, int], position: int, workers: int
) -> None:
    table = np.random.default_rng(1).normal(size=(100, 24)).astype(np.float32)
    good = np.random.default_rng(2).integers(-24, 24, shape)
    index = np.array(good)
    for place, value in bad.items():
        index.reshape(-1)[place] = value
    run = af.jit(function)
    with pytest.raises(IndexOutOfRange) as caught:
        run(table, index, threads=workers)
    assert str(caught.value) == f"gather: index at position {position} is out of range"
    expected = np.asarray(function(table, good))
    np.testing.assert_allclose(run(table, good, threads=workers), expected, rtol=1e-5)


def test_the_first_operator_in_order_is_named() -> None:
    """Two gathers, both bad; the one that comes first in the graph, however the workers share them."""
    F = GraphBuilder("two")
    x, i, j = F.input("x", DType.FLOAT32, (50,)), F.input("i", DType.INT64, (5000,)), F.input("j", DType.INT32, (5000,))
    first, second = F.gather(x, i, name="first"), F.gather(x, j, name="second")
    F.output(F.add(first, second))
    run = api.compile_graph(F.build())
    table, good = np.zeros(50, np.float32), np.zeros(5000, np.int64)
    for place, name in ((4000, "first"), (None, "second")):
        i_values, j_values = good.copy(), good.astype(np.int32)
        j_values[3] = 99
        if place is not None:
            i_values[place] = 99
        for workers in (1, 2):
            with pytest.raises(IndexOutOfRange, match=f"^{name}: index at position {place or 3} is out of range$"):
                run(table, i_values, j_values, threads=workers)


def test_an_empty_table_has_no_element_to_read() -> None:
    run = af.jit(picked, dynamic={"table": ("n", 4)})
    assert run(np.zeros((0, 4), np.float32), np.zeros(0, np.int64)).shape == (0, 4)
    with pytest.raises(IndexOutOfRange):
        run(np.zeros((0, 4), np.float32), np.zeros(3, np.int64))
