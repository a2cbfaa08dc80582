"""The worker pool of the CPU target: how many workers there are, and plans that run on them.

The work is done by `native.c`. Where that extension was not built, plans run on one worker through ctypes, with the
same results.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import math
import operator
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from autofusion import config

Status = tuple[int, int] | None
_MOST_INDEX = 2**31 - 1
_PAGE = 4096
_KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
)


class SlowRuntimeWarning(RuntimeWarning):
    """The native runtime is not there: launches run on one worker, through ctypes."""


@dataclass(frozen=True)
class Task:
    """One kernel of a phase, with what it runs on.

    `kernel` is the address of `void kernel(void *const *buffers, const int64_t *symbols, int64_t begin, int64_t end,
    char *scratch, int64_t *status)`, which runs chunks [begin, end); its code must outlive the plan. `buffers` are
    indices into the launch's pointers, `chunk_slot` is one into its chunks. `scratch_bytes` is what the kernel needs
    at `scratch`: private to the worker, 4096-aligned, unspecified contents; null where no task of the plan needs any.
    """

    kernel: int
    buffers: tuple[int, ...]
    chunk_slot: int
    scratch_bytes: int


class _Native(Protocol):
    def create_plan(self, phases: Sequence[Sequence[tuple[int, tuple[int, ...], int, int]]], /) -> object: ...
    def launch(self, plan: object, pointers: Any, symbols: Any, chunks: Any, workers: int, /) -> Status: ...
    def shutdown(self) -> None: ...
    def pool_size(self) -> int: ...
    def take_block(self, size: int, /) -> Any: ...
    def free_blocks(self) -> int: ...
    def fresh_blocks(self) -> int: ...
    def create_call(self, *parts: Any) -> Any: ...
    def as_tensor(self, example: Any, array: Any, tensor: tuple[Any, ...], /) -> Any: ...


@functools.cache
def native() -> _Native | None:
    """The extension module; None where it was not built."""
    try:
        module = cast(_Native, importlib.import_module("autofusion.runtime._native"))
    except ImportError:
        return None
    atexit.register(module.shutdown)
    return module


def native_available() -> bool:
    """Whether the native runtime was built for this Python."""
    return native() is not None


def pool_size() -> int:
    """How many worker threads are resident; the callers of launches do not count."""
    module = native()
    return module.pool_size() if module else 0


def shutdown() -> None:
    """Stops and joins the resident workers, after the launch in progress; a later launch creates new ones."""
    module = native()
    if module:
        module.shutdown()


class Plan:
    """A SuperKernel plan: phases in sequence, the tasks of a phase side by side. Immutable.

    `use_native=False` runs it through ctypes even where the native runtime is there. Raises TypeError or ValueError,
    naming the phase, the task and the field, where a task is not what `Task` says.
    """

    __slots__ = ("_implementation", "phases")

    def __init__(self, phases: tuple[tuple[Task, ...], ...], use_native: bool = True) -> None:
        self.phases = phases
        module = native() if use_native else None
        if use_native and module is None:
            _warn_slow()
        self._implementation = _NativePlan(module, phases) if module else _SlowPlan(phases)

    @property
    def native(self) -> Any:
        """The native runtime's plan; None without it."""
        return self._implementation.plan if isinstance(self._implementation, _NativePlan) else None

    def launch(
        self, pointers: NDArray[np.uint64], symbols: NDArray[np.int64], chunks: NDArray[np.int64], workers: int
    ) -> Status:
        """Runs every phase on at most `workers` workers, the calling thread included, and waits for the last.

        `pointers` are addresses, `symbols` go to every kernel, `chunks[slot]` is the number of chunks of the tasks
        with that slot, 0 for nothing to do. All are one-dimensional and contiguous. Returns None, or the smallest
        (operator, position) that kernels recorded in the first phase in which one did; later phases were then
        skipped. Raises TypeError or ValueError before anything runs. What the pointers point at is not checked.
        """
        return self._implementation.launch(pointers, symbols, chunks, workers)


class _NativePlan:
    __slots__ = ("_launch", "plan")

    def __init__(self, native: _Native, phases: tuple[tuple[Task, ...], ...]) -> None:
        self._launch = native.launch
        self.plan = native.create_plan([[_fields(task) for task in phase] for phase in phases])

    def launch(self, pointers: Any, symbols: Any, chunks: Any, workers: int) -> Status:
        return self._launch(self.plan, pointers, symbols, chunks, workers)


def _fields(task: Task) -> tuple[int, tuple[int, ...], int, int]:
    return (task.kernel, task.buffers, task.chunk_slot, task.scratch_bytes)


# ------------------------------------------------------------------------------------------ without the native runtime


@functools.cache
def _warn_slow() -> None:
    warnings.warn(
        "autofusion.runtime._native was not built: launches run on one worker, through ctypes. Install a C compiler "
        "and run `pip install --force-reinstall --no-cache-dir graph-autofusion`, or in a checkout "
        "`python setup.py build_ext --inplace`.",
        SlowRuntimeWarning,
        stacklevel=4,
    )


class _SlowPlan:
    """What native.c does, on the calling thread."""

    def __init__(self, phases: tuple[tuple[Task, ...], ...]) -> None:
        for p, phase in enumerate(phases):
            for t, task in enumerate(phase):
                _check_task(task, f"create_plan: phase {p}, task {t}")
        self._phases = [[(task, _KERNEL(task.kernel)) for task in phase] for phase in phases]
        tasks = [task for phase in phases for task in phase]
        self._least_pointers = 1 + max((index for task in tasks for index in task.buffers), default=-1)
        self._least_chunks = 1 + max((task.chunk_slot for task in tasks), default=-1)
        self._scratch_bytes = max((task.scratch_bytes for task in tasks), default=0)

    def launch(self, pointers: Any, symbols: Any, chunks: Any, workers: int) -> Status:
        _check_array(pointers, "pointers", np.uint64, self._least_pointers)
        _check_array(symbols, "symbols", np.int64, 0)
        _check_array(chunks, "chunks", np.int64, self._least_chunks)
        if operator.index(workers) < 1:
            raise ValueError(f"launch: workers: expected at least 1, found {workers}")
        counts = [[int(chunks[task.chunk_slot]) for task, _ in phase] for phase in self._phases]
        self._check_counts(counts)
        scratch = np.empty(self._scratch_bytes + _PAGE, np.uint8)
        aligned = -(-scratch.ctypes.data // _PAGE) * _PAGE if self._scratch_bytes else None
        status = np.zeros(2, np.int64)
        for phase, phase_counts in zip(self._phases, counts, strict=True):
            for (task, kernel), count in zip(phase, phase_counts, strict=True):
                if count:
                    table = pointers[list(task.buffers)] if task.buffers else np.empty(0, np.uint64)
                    kernel(table.ctypes.data, symbols.ctypes.data, 0, count, aligned, status.ctypes.data)
            if status[0]:
                return int(status[0]) - 1, int(status[1])
        return None

    def _check_counts(self, counts: list[list[int]]) -> None:
        for phase, phase_counts in zip(self._phases, counts, strict=True):
            total = 0
            for (task, _), count in zip(phase, phase_counts, strict=True):
                total += count
                if count < 0 or total > 2**63 - 2**24:
                    raise ValueError(
                        f"launch: chunks[{task.chunk_slot}]: expected at least 0 and no overflow, found {count}"
                    )


def _check_task(task: Task, place: str) -> None:
    _check_integer(task.kernel, f"{place}: kernel_address", 1, 2**64 - 1)
    if not isinstance(task.buffers, Sequence):
        raise TypeError(f"{place}: expected a sequence of buffer indices, found {type(task.buffers).__name__}")
    for index in task.buffers:
        _check_integer(index, f"{place}: buffer index", 0, _MOST_INDEX)
    _check_integer(task.chunk_slot, f"{place}: chunk_slot", 0, _MOST_INDEX)
    _check_integer(task.scratch_bytes, f"{place}: scratch_bytes", 0, sys.maxsize - _PAGE)


def _check_integer(value: object, place: str, least: int, most: int) -> None:
    try:
        number = operator.index(cast(Any, value))
    except TypeError:
        raise TypeError(f"{place}: expected an int, found {type(value).__name__}") from None
    if not least <= number <= most:
        raise ValueError(f"{place}: expected an int of [{least}, {most}], found {number}")


def _check_array(array: object, name: str, dtype: type[np.generic], least: int) -> None:
    expected = np.dtype(dtype)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"launch: {name}: expected an array of {expected}, found {type(array).__name__}")
    if not array.flags.c_contiguous:
        raise ValueError(f"launch: {name}: expected a C-contiguous array of {expected}")
    if array.dtype != expected:
        raise TypeError(f"launch: {name}: expected dtype {expected}, found {array.dtype}")
    if array.ndim != 1 or not array.flags.aligned:
        raise ValueError(f"launch: {name}: expected one dimension at an aligned address, found {array.ndim} dimensions")
    if len(array) < least:
        raise ValueError(f"launch: {name}: the plan needs at least {least}, found {len(array)}")


# ------------------------------------------------------------------------------------------------------- worker count


def worker_count() -> int:
    """How many workers a launch should have: `AUTOFUSION_NUM_THREADS`, else the CPUs that this process may use.

    Those are the smaller of its affinity mask and its cgroup's CPU quota rounded up, and at least 1. Raises
    AutofusionError where the variable is not a positive integer.
    """
    asked = config.num_threads()
    if asked is not None:
        return asked
    return max(1, min(_affinity(), _quota()))


def _affinity() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def _quota() -> int:
    """The cgroup's quota in whole CPUs, read once: no launch should wait for a file."""
    quotas = list(_quotas(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")))
    return math.ceil(min(quotas)) if quotas else _MOST_INDEX


def _quotas(root: Path, membership: Path) -> Iterator[float]:
    """The CPU quotas, in CPUs, of this process's cgroups and of all above them, v1 and v2.

    `membership` holds lines `id:controllers:/path`, v2 without controllers. In a container the path may be the
    host's, which `root` does not show; the container's own group is then the root itself.
    """
    for line in (_read(membership) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts = [root, root / "unified"]
        elif "cpu" in controllers.split(","):
            mounts = [root / controllers, root / "cpu"]
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for mount in mounts:
            for folder in (group, *group.parents):
                quota = _folder_quota(mount / folder)
                if quota is not None:
                    yield quota


def _folder_quota(folder: Path) -> float | None:
    """v2: `cpu.max` is "max 100000" or "quota period"; v1: two files, a quota of -1 is none. Microseconds."""
    words = (_read(folder / "cpu.max") or "").split()
    if len(words) != 2:
        words = [(_read(folder / f"cpu.cfs_{name}_us") or "").strip() for name in ("quota", "period")]
    quota, period = words
    if not (quota.isdigit() and period.isdigit() and int(quota) and int(period)):
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None
