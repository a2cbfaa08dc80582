"""The native runtime and its fallback, on small kernels written in LLVM IR."""

from __future__ import annotations

import functools
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from autofusion.errors import AutofusionError
from autofusion.runtime import pool
from autofusion.runtime.pool import Plan, SlowRuntimeWarning, Task

# Each kernel is the body of a loop over chunks %c; %b0.. are its buffers as i64*, %s0 its first symbol.
BODIES = {
    # b0[c] += 1: every chunk exactly once
    "count": """
  %p = getelementptr i64, ptr %b0, i64 %c
  %old = atomicrmw add ptr %p, i64 1 seq_cst
  br label %next
""",
    # b0[c] = c + symbols[0]
    "mark": """
  %v = add i64 %c, %s0
  %p = getelementptr i64, ptr %b0, i64 %c
  store i64 %v, ptr %p
  br label %next
""",
    # b1[c] = 2 * b0[symbols[0] - 1 - c]: what another worker wrote, as a rule
    "mirror": """
  %last = sub i64 %s0, 1
  %i = sub i64 %last, %c
  %q = getelementptr i64, ptr %b0, i64 %i
  %x = load i64, ptr %q
  %v = mul i64 %x, 2
  %p = getelementptr i64, ptr %b1, i64 %c
  store i64 %v, ptr %p
  br label %next
""",
    # where b0[c] != 0, the check of operator b0[c] - 1 fails at position c
    "check": """
  %p = getelementptr i64, ptr %b0, i64 %c
  %operator = load i64, ptr %p
  %fails = icmp ne i64 %operator, 0
  br i1 %fails, label %compare, label %next
compare:
  %position = getelementptr i64, ptr %status, i64 1
  %o = load i64, ptr %status
  %q = load i64, ptr %position
  %free = icmp eq i64 %o, 0
  %smaller = icmp slt i64 %operator, %o
  %same = icmp eq i64 %operator, %o
  %before = icmp slt i64 %c, %q
  %tie = and i1 %same, %before
  %less = or i1 %smaller, %tie
  %record = or i1 %free, %less
  br i1 %record, label %store, label %next
store:
  store i64 %operator, ptr %status
  store i64 %c, ptr %position
  br label %next
""",
    # b0[c] = the scratch's address; fills 512 words with c, then b1[c] counts how many of them still hold it
    "scratch": """
  %address = ptrtoint ptr %scratch to i64
  %p = getelementptr i64, ptr %b0, i64 %c
  store i64 %address, ptr %p
  br label %fill
fill:
  %i = phi i64 [0, %body], [%i1, %fill]
  %w = getelementptr i64, ptr %scratch, i64 %i
  store volatile i64 %c, ptr %w
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, 512
  br i1 %more, label %fill, label %read
read:
  %j = phi i64 [0, %fill], [%j1, %read]
  %n = phi i64 [0, %fill], [%n1, %read]
  %r = getelementptr i64, ptr %scratch, i64 %j
  %x = load volatile i64, ptr %r
  %same = icmp eq i64 %x, %c
  %one = zext i1 %same to i64
  %n1 = add i64 %n, %one
  %j1 = add i64 %j, 1
  %on = icmp ult i64 %j1, 512
  br i1 %on, label %read, label %done
done:
  %q = getelementptr i64, ptr %b1, i64 %c
  store i64 %n1, ptr %q
  br label %next
""",
    # b0[0] += 1 on arrival; chunk 0 then waits until it is symbols[0], others do not; b1[c] = what it saw. Bounded.
    "meet": """
  %mine = atomicrmw add ptr %b0, i64 1 seq_cst
  %first = icmp eq i64 %c, 0
  br i1 %first, label %wait, label %done
wait:
  %i = phi i64 [0, %body], [%i1, %wait]
  %seen = load atomic i64, ptr %b0 seq_cst, align 8
  %enough = icmp sge i64 %seen, %s0
  %i1 = add i64 %i, 1
  %spent = icmp ugt i64 %i1, 4000000000
  %stop = or i1 %enough, %spent
  br i1 %stop, label %done, label %wait
done:
  %v = load atomic i64, ptr %b0 seq_cst, align 8
  %p = getelementptr i64, ptr %b1, i64 %c
  store i64 %v, ptr %p
  br label %next
""",
    # b1[c] = b0[c] * 0.5 as doubles: a denormal result shows the mode
    "halve": """
  %q = getelementptr double, ptr %b0, i64 %c
  %x = load double, ptr %q
  %v = fmul double %x, 5.0e-1
  %p = getelementptr double, ptr %b1, i64 %c
  store double %v, ptr %p
  br label %next
""",
}
KERNEL = """
define void @{name}(ptr %buffers, ptr %symbols, i64 %begin, i64 %end, ptr %scratch, ptr %status) {{
entry:
  %b0 = load ptr, ptr %buffers
  {second}
  %s0 = load i64, ptr %symbols
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %body, label %exit
body:
  %c = phi i64 [%begin, %entry], [%c1, %next]
{body}
next:
  %c1 = add i64 %c, 1
  %again = icmp slt i64 %c1, %end
  br i1 %again, label %body, label %exit
exit:
  ret void
}}
"""
SECOND = "%b1p = getelementptr ptr, ptr %buffers, i64 1\n  %b1 = load ptr, ptr %b1p"
EMPTY = "define void @empty(ptr %b, ptr %s, i64 %begin, i64 %end, ptr %scratch, ptr %status) {\n  ret void\n}\n"
FLUSH = """
declare void @llvm.x86.sse.ldmxcsr(ptr)
define void @set_mode(ptr %p) {
  call void @llvm.x86.sse.ldmxcsr(ptr %p)
  ret void
}
"""
X86 = platform.machine() in ("x86_64", "AMD64")
SYMBOLS = np.zeros(1, np.int64)
WORKERS = [1, 2, 5]
native_only = pytest.mark.skipif(not pool.native_available(), reason="the native runtime was not built")
ways = pytest.mark.parametrize(
    "native", [pytest.param(True, marks=native_only, id="native"), pytest.param(False, id="slow")]
)


@functools.cache
def engine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = EMPTY + (FLUSH if X86 else "")
    for name, body in BODIES.items():
        text += KERNEL.format(name=name, body=body, second=SECOND if "%b1" in body else "")
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1)
    built = llvm.create_mcjit_compiler(module, machine)
    built.finalize_object()
    return built


def task(name: str, buffers: tuple[int, ...] = (0,), slot: int = 0, scratch: int = 0) -> Task:
    return Task(engine().get_function_address(name), buffers, slot, scratch)


def table(*arrays: np.ndarray) -> np.ndarray:
    return np.array([array.ctypes.data for array in arrays], np.uint64)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.fixture(autouse=True)
def no_pool() -> Any:
    pool.shutdown()
    yield
    pool.shutdown()
    assert pool.pool_size() == 0


# --------------------------------------------------------------------------------------------------- chunks and phases


@ways
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("chunks", [0, 1, 2, 3, 4, 5, 7, 64, 1000])
def test_every_chunk_runs_exactly_once(native: bool, workers: int, chunks: int) -> None:
    seen = np.zeros(1001, np.int64)
    plan = Plan(((task("count"),),), native)
    for launches in range(1, 6):
        assert plan.launch(table(seen), SYMBOLS, ints(chunks), workers) is None
        assert (seen[:chunks] == launches).all() and not seen[chunks:].any()


@ways
@pytest.mark.parametrize("workers", WORKERS)
def test_tasks_of_a_phase_share_it(native: bool, workers: int) -> None:
    sizes = [3, 0, 1, 40, 0, 7, 0]
    arrays = [np.zeros(50, np.int64) for _ in sizes]
    plan = Plan((tuple(task("count", (i,), i) for i in range(len(sizes))),), native)
    plan.launch(table(*arrays), SYMBOLS, ints(*sizes), workers)
    for array, size in zip(arrays, sizes, strict=True):
        assert array.tolist() == [1] * size + [0] * (50 - size)


@ways
@pytest.mark.parametrize("workers", WORKERS)
def test_a_phase_sees_all_of_the_one_before(native: bool, workers: int) -> None:
    n = 97
    a, b, c = (np.zeros(n, np.int64) for _ in range(3))
    plan = Plan(((task("mark", (0,)),), (task("mirror", (0, 1)),), (task("mirror", (1, 2)),)), native)
    for offset in range(300):
        a[:] = b[:] = c[:] = -1
        # the first symbol is mark's offset and mirror's length, so the offset is n plus what is in `a` before
        plan.launch(table(a, b, c), ints(n), ints(n), workers)
        assert np.array_equal(a, np.arange(n) + n)
        assert np.array_equal(c, 4 * (np.arange(n) + n)), offset


@ways
def test_phases_with_nothing_to_do_are_passed_over(native: bool) -> None:
    seen = np.zeros(8, np.int64)
    plan = Plan(((), (task("count", (0,), 0),), (task("count", (0,), 1),), ()), native)
    plan.launch(table(seen), SYMBOLS, ints(0, 8), 2)
    assert (seen == 1).all()
    assert Plan((), native).launch(table(), ints(), ints(), 2) is None


@native_only
def test_more_chunks_than_one_round_counts() -> None:
    chunks = 2**24 + 5
    seen = np.zeros(chunks, np.int64)
    Plan(((task("count"),),)).launch(table(seen), SYMBOLS, ints(chunks), 2)
    assert seen.min() == seen.max() == 1


@native_only
def test_leftovers_are_stolen() -> None:
    """Chunk 0 waits for all others: those of its owner's share must go to the other worker."""
    arrived, seen = np.zeros(1, np.int64), np.zeros(8, np.int64)
    Plan(((task("meet", (0, 1)),),)).launch(table(arrived, seen), ints(8), ints(8), 2)
    assert seen[0] == 8


@native_only
def test_threads_are_made_on_demand_only() -> None:
    seen = np.zeros(64, np.int64)
    plan = Plan(((task("count"),),))
    sizes = []
    for chunks, workers in [(64, 1), (1, 5), (0, 5), (3, 5), (64, 5), (64, 2)]:
        plan.launch(table(seen), SYMBOLS, ints(chunks), workers)
        sizes.append(pool.pool_size())
    assert sizes == [0, 0, 0, 2, 4, 4]
    pool.shutdown()
    assert pool.pool_size() == 0
    plan.launch(table(seen), SYMBOLS, ints(64), 2)
    assert pool.pool_size() == 1


@native_only
def test_no_more_workers_take_part_than_asked_for() -> None:
    """Workers that are late for a launch of five come upon one of two."""
    where, fine = np.zeros(512, np.int64), np.zeros(512, np.int64)
    plan = Plan(((task("scratch", (0, 1), 0, 4096),),))
    for _ in range(200):
        plan.launch(table(where, fine), SYMBOLS, ints(5), 5)
        plan.launch(table(where, fine), SYMBOLS, ints(512), 2)
        assert len(set(where.tolist())) <= 2


# -------------------------------------------------------------------------------------------------- scratch and status


@ways
@pytest.mark.parametrize("workers", WORKERS)
def test_scratch_is_aligned_and_private(native: bool, workers: int) -> None:
    where, fine, other = (np.zeros(400, np.int64) for _ in range(3))
    for scratch in (4096, 300_000, 4097):
        plan = Plan(((task("scratch", (0, 1), 0, scratch), task("count", (2,), 1)),), native)
        for _ in range(30):
            plan.launch(table(where, fine, other), SYMBOLS, ints(400, 1), workers)
            assert (fine == 512).all()
            assert not (where % 64).any() and where.all()
            assert len(set(where.tolist())) <= workers


@ways
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    ("failures", "expected"),
    [({63: 5}, (4, 63)), ({0: 9, 63: 2, 40: 2, 31: 3}, (1, 40)), (dict.fromkeys(range(64), 7), (6, 0)), ({}, None)],
)
def test_the_smallest_status_is_returned_once(
    native: bool, workers: int, failures: dict[int, int], expected: tuple[int, int] | None
) -> None:
    fails, seen = np.zeros(64, np.int64), np.zeros(64, np.int64)
    plan = Plan(((task("check", (0,)),), (task("count", (1,)),)), native)
    for _ in range(50):
        fails[:] = seen[:] = 0
        fails[list(failures)] = list(failures.values())
        assert plan.launch(table(fails, seen), SYMBOLS, ints(64), workers) == expected
        assert (seen == (0 if failures else 1)).all()
        fails[:] = 0
        assert plan.launch(table(fails, seen), SYMBOLS, ints(64), workers) is None


# --------------------------------------------------------------------------------------------------- threads and forks


@native_only
def test_a_launch_that_finds_the_pool_busy_runs_on_its_caller() -> None:
    """The first launch holds the pool until the second, on another thread, is over."""
    gate, passed = np.zeros(1, np.int64), np.zeros(2, np.int64)
    where, fine = np.zeros(300, np.int64), np.zeros(300, np.int64)
    holding = Plan(((task("meet", (0, 1)),),))
    holder = threading.Thread(target=holding.launch, args=(table(gate, passed), ints(3), ints(2), 2))
    holder.start()
    while gate[0] < 2:
        time.sleep(0.001)
    busy = Plan(((task("scratch", (0, 1), 0, 4096),),))
    assert busy.launch(table(where, fine), SYMBOLS, ints(300), 2) is None
    assert holder.is_alive()
    assert len(set(where.tolist())) == 1 and (fine == 512).all()
    gate[0] = 3
    holder.join(60)
    assert not holder.is_alive() and passed[0] >= 3


@native_only
def test_launches_from_several_threads_at_once() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        a, b = np.zeros(32, np.int64), np.zeros(32, np.int64)
        plan = Plan(((task("mark", (0,)),), (task("mirror", (0, 1)),)))
        for _ in range(2000):
            b[:] = 0
            if plan.launch(table(a, b), ints(32), ints(32), 2) is not None or b[0] != 2 * (31 + 32) or b[31] != 64:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def _script(text: str) -> subprocess.CompletedProcess[str]:
    here = str(Path(__file__).parent)
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {here!r})\nfrom test_runtime import *\n{text}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


FORK = """
a = np.zeros(64, np.int64)
plan = Plan(((task("count"),),))
def check(times):
    a[:] = 0
    for _ in range(100):
        plan.launch(table(a), SYMBOLS, ints(64), 2)
    assert (a == 100).all() and pool.pool_size() == 1
def forked(body):
    child = os.fork()
    if child == 0:
        try:
            body()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def in_child():
    assert pool.pool_size() == 0
    check(100)
    pool.shutdown()
    check(100)
    assert forked(lambda: check(100)) == 0
"""


@native_only
def test_fork_after_use() -> None:
    done = _script(FORK + "check(100)\nassert forked(in_child) == 0\ncheck(100)\nprint('fine')")
    assert done.stdout == "fine\n", done.stderr


@native_only
def test_fork_while_another_thread_launches() -> None:
    done = _script(
        FORK
        + """
gate, passed = np.zeros(1, np.int64), np.zeros(2, np.int64)
holding = Plan(((task("meet", (0, 1)),),))
holder = threading.Thread(target=holding.launch, args=(table(gate, passed), ints(3), ints(2), 2))
holder.start()
while gate[0] < 2:
    time.sleep(0.001)
for _ in range(3):
    assert forked(in_child) == 0
gate[0] = 3
holder.join()
check(100)
print('fine')
"""
    )
    assert done.stdout == "fine\n", done.stderr


@native_only
def test_the_process_ends_with_workers_parked_or_spinning() -> None:
    done = _script("Plan(((task('empty', ()),),)).launch(table(), ints(), ints(64), 5)\nprint(pool.pool_size())")
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr


@native_only
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs an interval timer")
def test_an_interrupt_comes_after_the_launch() -> None:
    gate, passed = np.zeros(1, np.int64), np.zeros(8, np.int64)
    opener = threading.Timer(0.3, gate.__setitem__, (0, 1000))
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    plan = Plan(((task("meet", (0, 1)),),))
    try:
        opener.start()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            plan.launch(table(gate, passed), ints(1000), ints(8), 2)
    finally:
        signal.signal(signal.SIGALRM, before)
        opener.join()
    assert gate[0] >= 1000 and passed.all()
    gate[0] = 0
    assert plan.launch(table(gate, passed), ints(8), ints(8), 2) is None


@native_only
@pytest.mark.skipif(not X86, reason="sets the x86 floating-point mode")
def test_the_callers_floating_point_mode_does_not_show() -> None:
    import ctypes

    set_mode = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine().get_function_address("set_mode"))
    smallest = np.finfo(np.float64).smallest_normal
    x, y = np.full(64, smallest), np.zeros(64)
    plan = Plan(((task("halve", (0, 1)),),))
    flushing, default = np.array([0x9FC0], np.uint32), np.array([0x1F80], np.uint32)
    pointers, chunks = table(x, y), ints(64)
    for workers in WORKERS:
        y[:] = 0
        set_mode(flushing.ctypes.data)
        try:
            plan.launch(pointers, SYMBOLS, chunks, workers)
            restored = float(smallest) * 0.5 == 0.0  # the caller's own mode flushes
        finally:
            set_mode(default.ctypes.data)
        assert restored
        assert (y == smallest / 2).all() and y.all()


# ------------------------------------------------------------------------------------------------ many launches, leaks


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@native_only
@pytest.mark.parametrize("workers", [1, 2])
def test_many_launches_neither_hang_nor_leak(workers: int) -> None:
    fails, seen = np.zeros(4, np.int64), np.zeros(4, np.int64)
    fails[3] = 1
    plan = Plan(((task("count", (1,), 0, 64),), (task("check", (0,)),)))
    arguments = (table(fails, seen), SYMBOLS, ints(4), workers)
    references = [sys.getrefcount(x) for x in (*arguments, plan)]
    for _ in range(1000):
        plan.launch(*arguments)
    before = _resident_bytes() if sys.platform == "linux" else 0
    for _ in range(20_000):
        assert plan.launch(*arguments) == (0, 3)
    assert seen.tolist() == [21_000] * 4
    assert references == [sys.getrefcount(x) for x in (*arguments, plan)]
    if sys.platform == "linux":
        assert _resident_bytes() - before < 1_000_000


@native_only
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_plans_and_refused_launches_do_not_leak() -> None:
    tasks = tuple(task("count", tuple(range(50)), 0, 0) for _ in range(20))
    bad = (*tasks, Task(1, (0,), -1, 0))
    pointers, short = np.zeros(50, np.uint64), np.zeros(3, np.uint64)

    def once() -> None:
        plan = Plan((tasks, tasks))
        with pytest.raises(ValueError, match="chunk_slot"):
            Plan((bad,))
        with pytest.raises(ValueError, match="pointers"):
            plan.launch(short, SYMBOLS, ints(0), 2)
        with pytest.raises(TypeError, match="chunks"):
            plan.launch(pointers, SYMBOLS, np.zeros(1), 2)
        plan.launch(pointers, SYMBOLS, ints(0), 2)

    for _ in range(200):
        once()
    before, references = _resident_bytes(), sys.getrefcount(pointers)
    for _ in range(1000):
        once()
    assert _resident_bytes() - before < 1_000_000
    assert sys.getrefcount(pointers) == references


@native_only
def test_an_exported_array_is_released() -> None:
    pointers = np.zeros(1, np.uint64)
    Plan(((task("empty"),),)).launch(pointers, SYMBOLS, ints(1), 1)
    pointers.resize(2, refcheck=False)  # BufferError while a view of it is open


# ------------------------------------------------------------------------------------------------------- bad arguments

BAD_TASKS = [
    (Task(0, (), 0, 0), ValueError, "phase 1, task 0: kernel_address: .* found 0"),
    (Task(-1, (), 0, 0), ValueError, "kernel_address: .* found -1"),
    (Task(2**64, (), 0, 0), ValueError, "kernel_address"),
    (Task("f", (), 0, 0), TypeError, "kernel_address: expected an int, found str"),  # type: ignore[arg-type]
    (Task(1, (0, -1), 0, 0), ValueError, "buffer index: .* found -1"),
    (Task(1, (0, 2**31), 0, 0), ValueError, "buffer index"),
    (Task(1, (0.5,), 0, 0), TypeError, "buffer index: expected an int, found float"),  # type: ignore[arg-type]
    (Task(1, 3, 0, 0), TypeError, "expected a sequence of buffer indices, found int"),  # type: ignore[arg-type]
    (Task(1, (), -1, 0), ValueError, "chunk_slot: .* found -1"),
    (Task(1, (), None, 0), TypeError, "chunk_slot: expected an int, found NoneType"),  # type: ignore[arg-type]
    (Task(1, (), 0, -1), ValueError, "scratch_bytes: .* found -1"),
    (Task(1, (), 0, 2**63), ValueError, "scratch_bytes"),
]


@ways
@pytest.mark.parametrize(("bad", "error", "match"), BAD_TASKS)
def test_bad_tasks_are_refused(native: bool, bad: Task, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Plan(((task("count"),), (bad,)), native)


GOOD: dict[str, Any] = {"pointers": np.zeros(3, np.uint64), "symbols": ints(1), "chunks": ints(0, 0), "workers": 2}
BAD_LAUNCHES = [
    ("pointers", np.zeros(2, np.uint64), ValueError, "pointers: the plan needs at least 3, found 2"),
    ("pointers", np.zeros(3, np.int64), TypeError, "pointers: expected dtype uint64"),
    ("pointers", np.zeros(3, np.float64), TypeError, "pointers: expected dtype uint64"),
    ("pointers", np.zeros(6, np.uint64)[::2], ValueError, "pointers: expected a C-contiguous"),
    ("pointers", np.zeros((3, 1), np.uint64), ValueError, "pointers: expected one dimension"),
    ("pointers", np.zeros(25, np.uint8)[1:].view(np.uint64), ValueError, "pointers: .* aligned"),
    ("pointers", [0, 0, 0], TypeError, "pointers: expected an array of uint64, found list"),
    ("symbols", np.zeros(1, np.uint64), TypeError, "symbols: expected dtype int64"),
    ("symbols", np.zeros(1, np.int32), TypeError, "symbols: expected dtype int64"),
    ("symbols", None, TypeError, "symbols: expected an array of int64, found NoneType"),
    ("symbols", np.zeros(1, np.dtype(">i8")), TypeError, "symbols: expected dtype int64"),
    ("chunks", ints(0), ValueError, "chunks: the plan needs at least 2, found 1"),
    ("chunks", ints(0, -1), ValueError, r"chunks\[1\]: .* found -1"),
    ("chunks", ints(2**62, 2**62), ValueError, r"chunks\[1\]: .*overflow"),
    ("workers", 0, ValueError, "workers: expected at least 1, found 0"),
    ("workers", -3, ValueError, "workers: expected at least 1, found -3"),
    ("workers", 1.0, TypeError, "integer"),
]


@ways
@pytest.mark.parametrize(("name", "value", "error", "match"), BAD_LAUNCHES)
def test_bad_launches_are_refused(native: bool, name: str, value: object, error: type[Exception], match: str) -> None:
    plan = Plan(((task("count", (0, 2), 0), task("count", (1,), 1)),), native)
    with pytest.raises(error, match=match):
        plan.launch(**{**GOOD, name: value})
    assert plan.launch(**GOOD) is None


@native_only
def test_the_native_functions_check_their_own_arguments() -> None:
    from autofusion.runtime import _native  # type: ignore[attr-defined]

    for phases, error in [
        (None, TypeError), (3, TypeError), ([3], TypeError), ([[3]], TypeError), ([[(1, (), 0)]], ValueError),
        ([[(1, (), 0, 0, 0)]], ValueError), (["ab"], ValueError), ({}, TypeError),
    ]:  # fmt: skip
        with pytest.raises(error):
            _native.create_plan(phases)
    with pytest.raises(TypeError, match="plan: expected a Plan"):
        _native.launch(object(), *GOOD.values())
    with pytest.raises(TypeError, match="5 arguments"):
        _native.launch()
    with pytest.raises(TypeError):
        type(_native.create_plan([]))()
    assert _native.launch(_native.create_plan([]), *list(GOOD.values())[:3], 10**30) is None


@native_only
def test_a_phase_that_changes_while_it_is_read() -> None:
    from autofusion.runtime import _native  # type: ignore[attr-defined]

    phases: list[Any] = []

    class Clears:
        def __index__(self) -> int:
            for phase in phases:
                phase.clear()
            phases.clear()
            return 1

    phases[:] = [[(1, [0, Clears(), 2], 0, 0), (1, [0], 0, 0)], [(1, [5], 0, 0)]]
    _native.create_plan(phases)


# ---------------------------------------------------------------------------------------------- fallback, worker count


def test_the_fallback_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "native", lambda: None)
    pool._warn_slow.cache_clear()
    seen = np.zeros(4, np.int64)
    with pytest.warns(SlowRuntimeWarning, match="build_ext"), warnings.catch_warnings():
        warnings.simplefilter("always")
        plan = Plan(((task("count"),),))
    with warnings.catch_warnings(record=True) as later:
        warnings.simplefilter("always")
        Plan(())
    assert not later and not pool.native_available() and pool.pool_size() == 0
    assert plan.launch(table(seen), SYMBOLS, ints(4), 2) is None
    assert (seen == 1).all()
    pool._warn_slow.cache_clear()


def test_worker_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOFUSION_NUM_THREADS", raising=False)
    monkeypatch.setattr(pool, "_affinity", lambda: 8)
    for quota, expected in [(3, 3), (100, 8), (0, 1)]:
        monkeypatch.setattr(pool, "_quota", lambda quota=quota: quota)
        assert pool.worker_count() == expected
    monkeypatch.setenv("AUTOFUSION_NUM_THREADS", "5")
    assert pool.worker_count() == 5
    monkeypatch.setenv("AUTOFUSION_NUM_THREADS", "none")
    with pytest.raises(AutofusionError, match="AUTOFUSION_NUM_THREADS"):
        pool.worker_count()


def test_worker_count_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOFUSION_NUM_THREADS", raising=False)
    assert 1 <= pool.worker_count() <= (os.cpu_count() or 1)


V1 = {"cpu.cfs_quota_us": "250000\n", "cpu.cfs_period_us": "100000\n"}
V1_NONE = {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}
CGROUPS: list[tuple[str, dict[str, dict[str, str]], list[float]]] = [
    ("0::/\n", {"": {"cpu.max": "150000 100000\n"}}, [1.5]),
    ("0::/\n", {"": {"cpu.max": "max 100000\n"}}, []),
    ("0::/a/b\n", {"a/b": {"cpu.max": "max 100000\n"}, "a": {"cpu.max": "200000 100000\n"}}, [2.0]),
    ("0::/gone\n", {"": {"cpu.max": "50000 100000\n"}}, [0.5]),
    ("4:memory:/x\n3:cpu,cpuacct:/x\n0::/\n", {"cpu,cpuacct/x": V1, "cpu,cpuacct": V1_NONE}, [2.5]),
    ("1:cpuset:/\n2:cpu:/\n", {"cpu": V1_NONE}, []),
    ("0::/u\n", {"unified/u": {"cpu.max": "100000 100000"}}, [1.0]),
    ("0::/../..\n", {"": {"cpu.max": "garbage"}}, []),
    ("", {}, []),
]


@pytest.mark.parametrize(("membership", "folders", "expected"), CGROUPS)
def test_cgroup_quotas(
    tmp_path: Path, membership: str, folders: dict[str, dict[str, str]], expected: list[float]
) -> None:
    root = tmp_path / "one" / "two" / "cgroup"
    root.mkdir(parents=True)
    for folder, files in folders.items():
        for name, text in files.items():
            (root / folder).mkdir(parents=True, exist_ok=True)
            (root / folder / name).write_text(text)
    (tmp_path / "membership").write_text(membership)
    assert list(pool._quotas(root, tmp_path / "membership")) == expected
