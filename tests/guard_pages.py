"""Kernels on buffers that touch forbidden pages: a read or a write past either end kills this process.

Run by test_views_aliasing.py as a script; prints the number of kernels that it ran. Every input, result and workspace
storage lies in pages of its own, once against the page behind it and once against the page before it.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

import autofusion as af
from autofusion.dims import evaluate
from autofusion.runtime.executable import Executable
from autofusion.superkernel.plan import Place

PAGE = mmap.PAGESIZE
POISON = 0xA5
_libc = ctypes.CDLL(None, use_errno=True)
_kept: list[Any] = []


class Region:
    """Whole pages between two forbidden ones."""

    def __init__(self, size: int) -> None:
        self.bytes = -(-max(size, 1) // PAGE) * PAGE
        self.map = mmap.mmap(-1, self.bytes + 2 * PAGE)
        self.all = np.frombuffer(self.map, np.uint8)
        start = self.all.ctypes.data
        self.inside = self.all[PAGE : PAGE + self.bytes]
        self.inside[...] = POISON
        for forbidden in (start, start + PAGE + self.bytes):
            if _libc.mprotect(ctypes.c_void_p(forbidden), ctypes.c_size_t(PAGE), 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, shape: tuple[int, ...], dtype: np.dtype[Any], at_end: bool) -> np.ndarray[Any, Any]:
        """An array whose last byte, or whose first, is beside a forbidden page."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        first = self.bytes - size if at_end else 0
        self.used = slice(first, first + size)
        return self.inside[self.used].view(dtype).reshape(shape)

    def check(self) -> None:
        """The bytes around the array are as they were."""
        around = np.delete(self.inside, self.used)
        if not (around == POISON).all():
            raise AssertionError(f"{(around != POISON).sum()} bytes around an array were written")


def guarded(array: np.ndarray[Any, Any], at_end: bool) -> np.ndarray[Any, Any]:
    """A copy of the array in a region."""
    region = Region(array.nbytes)
    _kept.append(region)
    made = region.place(array.shape, array.dtype, at_end)
    made[...] = array
    return made


def use_guarded_storage(at_end: bool) -> None:
    """Results and workspace storages of every executable go to regions of their own."""

    def storage(each: Any, sizes: Any, workspace: Any, values: Any) -> np.ndarray[Any, Any]:
        shape = tuple(int(evaluate(d, sizes)) for d in each.shape)
        assert each.place in (Place.RESULT, Place.WORKSPACE)
        dtype = each.dtype.numpy
        region = Region(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        _kept.append(region)
        return region.place(shape, dtype, at_end)

    Executable._storage = staticmethod(storage)  # type: ignore[method-assign]


BF16 = np.dtype(ml_dtypes.bfloat16)
TYPES = [np.dtype(t) for t in ("float32", "float64", "float16", "int8", "int64", "bool")] + [BF16]
WIDTHS = (1, 2, 3, 7, 15, 16, 17, 31, 33, 65)
CASTS = (("float32", "bfloat16"), ("float32", "int8"), ("int64", "int8"), ("float64", "float16"), ("int32", "bool"))
Call = tuple[Callable[..., Any], tuple[Any, ...]]


def values(dtype: np.dtype[Any], *shape: int) -> np.ndarray[Any, Any]:
    return (np.arange(int(np.prod(shape))) % 7).reshape(shape).astype(dtype)


def elementwise() -> Iterator[Call]:
    for width in WIDTHS:
        for dtype in TYPES:
            yield lambda x: af.maximum(x, x), (values(dtype, 2, width),)
        for source, result in CASTS:
            yield lambda x, result=result: x.astype(result), (values(np.dtype(source), 2, width),)
        yield lambda x, y: x * y, (values(np.dtype("f4"), 3, width), values(np.dtype("f4"), 3, 1))


def others() -> Iterator[Call]:
    f4 = np.dtype("f4")
    for n in (1, 5, 16, 17, 65):
        for dtype in (f4, BF16):
            x = values(dtype, 3, n)
            yield lambda x: af.sum(x, axis=1), (x,)
            yield lambda x: af.sum(x, axis=0), (x,)
            yield lambda x: af.softmax(x, axis=-1), (x,)
            yield lambda x: x.T + 1, (x,)
            yield lambda x: x[:, ::-1] * 2, (x,)
            yield lambda x: af.cumsum(x, axis=1), (x,)
            yield lambda x, y: af.concat([x, y], axis=1), (x, values(dtype, 3, 2))
            for m, k in ((1, 1), (3, 5), (7, 17), (13, 3)):
                yield lambda a, b: a @ b, (values(dtype, m, k), values(dtype, k, n))
                yield lambda a, b: a.T @ b, (values(dtype, k, m), values(dtype, k, n))
                yield lambda a, b: a @ b.T, (values(dtype, m, k), values(dtype, n, k))
            yield lambda x, i: af.gather(x, i, axis=0), (x, np.array([2, -1, 0]))
            yield lambda x, i: af.gather(x, i, axis=1), (x, np.array([0, -1, n - 1]))
    for side in (5, 16, 17, 33, 400):
        for strides in ((1, 1), (2, 2), (1, 3)):
            weights = values(f4, 20, 3, 3, 3)
            yield lambda x, w, s=strides: af.conv(x, w, strides=s), (values(f4, 2, 3, 6, side), weights)
    for shape in ((0,), (3, 0), (0, 3)):
        x = values(f4, *shape)
        yield lambda x: x + 1, (x,)
        yield lambda x: af.sum(x, axis=-1), (x,)
        yield lambda x: af.sum(x.reshape(2, -1, 3), axis=(1, 2)), (x,)
        yield lambda x: af.sum(x.reshape(1, -1) + 1, axis=1), (x,)
        yield lambda x, y: x.sum(axis=0) + y, (x, values(f4, 1))
        yield lambda x, y: x * y, (x, values(f4, *shape[:-1], 1))
    yield lambda a, b: a @ b, (values(f4, 3, 0), values(f4, 0, 5))


def bits(result: Any) -> bytes:
    return np.ascontiguousarray(result).tobytes()


def main() -> None:
    count = 0
    ordinary = Executable._storage
    for at_end in (True, False):
        for function, arrays in (*elementwise(), *others()):
            Executable._storage = staticmethod(ordinary)  # type: ignore[method-assign]
            run = af.jit(function)
            expected = run(*arrays, threads=1)
            use_guarded_storage(at_end)
            found = run(*[guarded(a, at_end) for a in arrays], threads=1)
            if bits(found) != bits(expected):
                raise AssertionError(f"{found} is not {expected}")
            for region in _kept:
                region.check()
            del found
            _kept.clear()
            count += 1
    print(count)


if __name__ == "__main__":
    sys.exit(main())
