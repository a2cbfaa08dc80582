"""What calls leave behind.

grown(call, 500)   memory that 500 calls took beyond what they gave back, once some went before
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import NamedTuple

from autofusion.runtime import binding

WARM = 50  # calls until what is kept is there
BATCHES = 3  # the interpreter's own tables grow now and then, whoever calls: the least of some batches counts


class Grown(NamedTuple):
    """`traced`: bytes of Python and NumPy that are alive after the calls and were not before; `peak`: that were at any
    moment between; `fresh`: requests of the runtime to the system for memory, in all batches."""

    traced: int
    peak: int
    fresh: int


def grown(call: Callable[[], object], calls: int = 500) -> Grown:
    tracemalloc.start()
    try:
        for _ in range(WARM):
            call()
        fresh = binding.fresh_blocks()
        batches = [_batch(call, calls) for _ in range(BATCHES)]
        return Grown(*map(min, zip(*batches, strict=True)), binding.fresh_blocks() - fresh)
    finally:
        tracemalloc.stop()


def _batch(call: Callable[[], object], calls: int) -> tuple[int, int]:
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    for _ in range(calls):
        call()
    after, peak = tracemalloc.get_traced_memory()
    return after - before, peak - before
