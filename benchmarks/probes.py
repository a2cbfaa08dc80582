"""How fast the machine is at this moment, and at best: the yardstick that measurements are bracketed and judged by."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

from benchmarks.export import Arithmetic
from benchmarks.native import library

SHARE = 0.85  # a probe below this share of the run's best is off
FOOTPRINTS = (1 << 15, 1 << 20, 1 << 24, 1 << 28)  # bytes: about L1, L2, L3, memory
PROBED = 1 << 26


@dataclass(frozen=True)
class Reading:
    """`fma` in GFLOP/s, `copy` in GB/s (read and written)."""

    fma: float
    copy: float

    def off(self, best: Reading) -> bool:
        return self.fma < SHARE * best.fma or self.copy < SHARE * best.copy


def best(readings: Sequence[Reading]) -> Reading:
    """The ninth decile of each, so that a moment of higher clocks is no measure."""
    fma, copy = (sorted(values)[len(values) * 9 // 10] for values in zip(*map(astuple, readings), strict=True))
    return Reading(fma, copy)


@dataclass(frozen=True)
class Roofline:
    """The limits of some threads: GFLOP/s, and GB/s by footprint in bytes."""

    fma: float
    copy: Mapping[int, float]

    def with_better(self, other: Roofline) -> Roofline:
        """The higher of each limit."""
        return Roofline(
            max(self.fma, other.fma), {size: max(rate, other.copy[size]) for size, rate in self.copy.items()}
        )

    def milliseconds(self, work: Arithmetic) -> float:
        """No less: all bytes moved once at the rate of a copy of that footprint, or all arithmetic, where an operation
        of an elementwise operator takes as long as a multiply-add, which counts as two."""
        footprint = min((f for f in self.copy if f >= work.bytes), default=max(self.copy))
        moving = work.bytes / (self.copy[footprint] * 1e9)
        computing = (work.flops + 2 * work.elements) / (self.fma * 1e9)
        return max(moving, computing) * 1e3


def cores(threads: int) -> set[int]:
    """The cores of `threads` threads: the last ones, as systems put their own work on the first."""
    return set(sorted(os.sched_getaffinity(0))[-threads:])


@contextlib.contextmanager
def bound(threads: int) -> Iterator[None]:
    """On these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores(threads))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def fma_rate(threads: int, steps: int = 100_000) -> float:
    """GFLOP/s of `threads` threads together. Raises Missing."""
    function = library("probes").fma_rate
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_long]
    with bound(threads):
        return float(function(threads, steps))


def copy_rate(threads: int, footprint: int) -> float:
    """GB/s of `threads` threads together. Raises Missing."""
    function = library("probes").copy_rate
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
    with bound(threads):
        return float(function(threads, footprint, max(2, (1 << 26) // footprint)))


def read_rate(threads: int, footprint: int) -> float:
    """GB/s of `threads` threads together. Raises Missing."""
    function = library("probes").read_rate
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
    with bound(threads):
        return float(function(threads, footprint, max(2, (1 << 27) // footprint)))


def take(threads: int) -> Reading:
    """A reading; some tens of milliseconds."""
    return Reading(fma_rate(threads), copy_rate(threads, PROBED))


def roofline(threads: int, rounds: int = 5) -> Roofline:
    """The best of some rounds."""
    fma = max(fma_rate(threads) for _ in range(rounds))
    return Roofline(fma, {f: max(copy_rate(threads, f) for _ in range(rounds)) for f in FOOTPRINTS})
