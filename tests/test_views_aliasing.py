"""Any strides in, fresh storages out, and mutation exactly as NumPy does it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from oracle import assert_bits, assert_close, random_array

import autofusion as af
from autofusion.dtypes import Array, DType
from autofusion.errors import ArgumentError, IndexOutOfRange

DTYPES = (DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.INT8, DType.BOOL)
ROOT = Path(__file__).resolve().parents[1]


# -- strides in ------------------------------------------------------------------------------------------------------
def unaligned(x: Array) -> Array:
    """The same values at an address that is odd for the element type, byte offset 1."""
    raw = np.empty(x.nbytes + 1, np.uint8)
    made = raw[1:].view(x.dtype).reshape(x.shape)
    made[...] = x
    return made


def in_records(x: Array) -> Array:
    """Elements of a packed record: strides are no multiple of the element's size."""
    made = np.zeros(x.shape, np.dtype([("tag", np.int8), ("value", x.dtype)]))["value"]
    made[...] = x
    return made


# name -> a [17, 20] view made from a [34, 60] array
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "rows": lambda x: x[:17, :20].copy(),
    "transposed": lambda x: x[:20, :17].T,
    "reversed columns": lambda x: x[:17, 19::-1],
    "reversed rows": lambda x: x[16::-1, :20],
    "both reversed": lambda x: x[33:16:-1, 59:39:-1],
    "steps": lambda x: x[::2, ::3],
    "backward steps": lambda x: x[::-2, ::-3],
    "offset": lambda x: x[1:18, 7:27],
    "one row repeated": lambda x: np.broadcast_to(x[3, :20], (17, 20)),
    "one column repeated": lambda x: np.broadcast_to(x[:17, 5:6], (17, 20)),
    "one element repeated": lambda x: np.broadcast_to(x[2, 2], (17, 20)),
    "overlapping windows": lambda x: as_strided(x, (17, 20), (x.itemsize, x.itemsize)),
    "overlapping rows": lambda x: as_strided(x, (17, 20), (3 * x.itemsize, x.itemsize)),
    "overlapping backwards": lambda x: as_strided(x[0, 40:], (17, 20), (-x.itemsize, x.itemsize)),
    "unaligned": lambda x: unaligned(x[:17, :20]),
    "unaligned transposed": lambda x: unaligned(x[:20, :17]).T,
    "fields of records": lambda x: in_records(x[:17, :20]),
    "a slice of a higher rank": lambda x: x.reshape(17, 2, 60)[:, 1, 10:30],
    "Fortran order": lambda x: np.asfortranarray(x[:17, :20]),
    "read-only": lambda x: frozen(x[:17, :20]),
}


def frozen(x: Array) -> Array:
    x = x.copy()
    x.flags.writeable = False
    return x


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "elementwise": lambda x, y: af.where(x > y, x, y),
    "row maximum": lambda x, y: af.max(x, axis=1),
    "column maximum": lambda x, y: af.max(x, axis=0, keepdims=True),
    "views": lambda x, y: af.concat([x.T[::-1, 1:], y.T[:, ::2]], axis=1),
    "reshape": lambda x, y: (af.maximum(x, y)).reshape(20, 17),
}
FLOAT_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, y: af.softmax(x - y, axis=-1),
    "column sum": lambda x, y: af.sum(x, axis=0),
    "matmul": lambda x, y: x @ y.T,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides_in(dtype: DType, layout: str) -> None:
    rng = np.random.default_rng(1)
    make = LAYOUTS[layout]
    x, y = make(random_array(rng, dtype, (34, 60))), make(random_array(rng, dtype, (34, 60)))
    for function in FUNCTIONS.values():
        found = af.jit(function)(x, y)
        assert_bits(found, function(np.array(x), np.array(y)))
    if dtype is not DType.FLOAT32:
        return
    for function in FLOAT_FUNCTIONS.values():
        assert_close(af.jit(function)(x, y), np.asarray(function(np.array(x), np.array(y))), 64)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_mixed_strides(layout: str) -> None:
    """One operand row-major, the other not, in either order; the second call with other strides compiles again."""
    rng = np.random.default_rng(2)
    x = LAYOUTS[layout](random_array(rng, DType.FLOAT32, (34, 60)))
    y = random_array(rng, DType.FLOAT32, (17, 20))
    run = af.jit(lambda a, b: a * 2 - b)
    assert_bits(run(x, y), np.array(x) * 2 - y)
    assert_bits(run(y, x), y * 2 - np.array(x))
    assert_bits(run(y, y), y * 2 - y)


def test_rank_0_and_8_and_unaligned_scalars() -> None:
    run = af.jit(lambda x: x + 1)
    scalar = unaligned(np.array(2.5))
    assert not scalar.flags.aligned and scalar.shape == ()
    assert_bits(run(scalar), np.array(3.5))
    x = np.arange(2**8, dtype=np.float32).reshape((2,) * 8)
    order = (3, 1, 7, 0, 2, 6, 5, 4)
    assert_bits(run(x.transpose(order)), np.ascontiguousarray(x.transpose(order)) + 1)
    assert_bits(run(x[::-1, :, ::-1, ..., ::-1]), np.ascontiguousarray(x[::-1, :, ::-1, ..., ::-1]) + 1)


def test_axes_of_one_have_any_stride() -> None:
    run = af.jit(lambda x: x + 1)
    x = np.arange(12, dtype=np.float32).reshape(3, 1, 4)
    odd = as_strided(x, (3, 1, 4), (16, 12345, 4))
    assert_bits(run(odd), x + 1)


def test_a_compiled_graph_takes_any_strides() -> None:
    """`compile` fixes no strides: row-major code reads a copy."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    run = af.compile(lambda x: x * 2, [x])
    assert_bits(run(x.copy().T.copy().T), x * 2)
    assert_bits(run(np.asfortranarray(x)), x * 2)


def test_no_byte_outside_the_storages_is_touched() -> None:
    """More than 700 kernels on buffers between forbidden pages, in a process of their own: see guard_pages.py."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ran = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "guard_pages.py")], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, f"exit code {ran.returncode}\n{ran.stderr[-2000:]}"
    assert int(ran.stdout) > 500


# -- fresh storages out ----------------------------------------------------------------------------------------------
FRESH: dict[str, Callable[[Any], Any]] = {
    "x * 1": lambda x: x * 1,
    "x + 0": lambda x: x + 0,
    "x / 1": lambda x: x / 1,
    "x itself": lambda x: x,
    "x twice": lambda x: (x, x),
    "one result twice": lambda x: (lambda y: (y, y))(x + 1),
    "a view": lambda x: x.T,
    "a view and its source": lambda x: (lambda y: (y, y.T, y[1:]))(x * 2),
    "a slice": lambda x: x[1:3],
    "a reshape": lambda x: x.reshape(-1),
    "a copy": lambda x: af.copy(x),
    "a cast to its own type": lambda x: x.astype("float32"),
    "a broadcast": lambda x: af.broadcast_to(x[:1], (5, 6)),
    "an inner value too": lambda x: (lambda y: (y, y * 2))(x + 1),
    "a constant": lambda x: (af.ones((2, 3)), af.ones((2, 3))),
    "equal expressions": lambda x: (x + 1, x + 1),
}


@pytest.mark.parametrize("name", FRESH)
def test_outputs_alias_nothing(name: str) -> None:
    function = FRESH[name]
    x = np.arange(30, dtype=np.float32).reshape(5, 6)
    run = af.jit(function)
    listed = lambda result: list(result) if isinstance(result, tuple) else [result]  # noqa: E731
    first, second = listed(run(x)), listed(run(x))
    expected = [np.array(e) for e in listed(function(x.copy()))]
    for found, wanted in zip(first, expected, strict=True):
        assert_close(found, wanted.astype(found.dtype), 0)
    everything = [x, *first, *second]
    for i, a in enumerate(everything):
        for b in everything[:i]:
            assert not np.may_share_memory(a, b)
    before = [a.copy() for a in second]
    for array in (x, *first):
        assert array.flags.writeable
        array[...] = -7
    for array, kept in zip(second, before, strict=True):
        assert_bits(array, kept)
    x[...] = np.arange(30).reshape(5, 6)
    for found, wanted in zip(listed(run(x)), expected, strict=True):
        assert_close(found, wanted.astype(found.dtype), 0)  # a constant that was handed out is not the kernel's own


# -- mutation --------------------------------------------------------------------------------------------------------
def put(x: Any, key: Any, value: Any) -> Any:
    x[key] = value
    return x


def then(*steps: Any) -> Any:
    return steps[-1]


# name -> a function of (x [6, 8], y [6, 8]) that works on NumPy arrays and on traced tensors alike
MUTATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "whole": lambda x, y: then(put(x, ..., y), None),
    "whole by a number": lambda x, y: then(put(x, ..., 3.0), None),
    "own value": lambda x, y: then(put(x, ..., x * 2 + y), None),
    "a row": lambda x, y: then(put(x, 2, y[0]), None),
    "one element": lambda x, y: then(put(x, (1, 2), 9.0), None),
    "the last element": lambda x, y: then(put(x, (-1, -1), y[0, 0]), None),
    "a step": lambda x, y: then(put(x, (slice(None), slice(1, None, 3)), 0.0), None),
    "backwards": lambda x, y: then(put(x, slice(None, None, -1), y), None),
    "shift": lambda x, y: then(put(x, slice(1, None), x[:-1].copy()), None),
    "shift back": lambda x, y: then(put(x, slice(None, -1), x[1:].copy()), None),
    "swap": lambda x, y: (lambda old: then(put(x, ..., y), put(y, ..., old), None))(x.copy()),
    "read before": lambda x, y: (lambda old: then(put(x, ..., y), old))(x + 1),
    "read after": lambda x, y: then(put(x, ..., y), x + 1),
    "read between": lambda x, y: (lambda a: then(put(x, 0, y[1]), put(x, ..., x + 1), (a, x * 3)))(x + 1),
    "two writes": lambda x, y: then(put(x, ..., y), put(x, slice(1, 3), 5.0), None),
    "two writes of one place": lambda x, y: then(put(x, 0, 1.0), put(x, 0, 2.0), x.sum()),
    "both arguments": lambda x, y: then(put(x, 0, y[1]), put(y, 1, x[0] * 2), None),
    "through a slice": lambda x, y: then(put(x[1:4], slice(1, None), y[:2]), None),
    "through a transpose": lambda x, y: then(put(x.T, 2, 4.0), None),
    "through a view of a view": lambda x, y: then(put(x.T[2:5][::-1], 0, y[:, 1]), x * 1),
    "a view sees it": lambda x, y: (lambda view: then(put(x, ..., y), view * 2))(x[1:3]),
    "a copy does not": lambda x, y: (lambda copy: then(put(x, ..., y), copy * 2))(x[1:3].copy()),
    "of a copy": lambda x, y: put(x.copy(), 0, 1.0) + y,
    "of nothing": lambda x, y: then(put(x, slice(3, 3), 1.0), None),
    "after a reduction": lambda x, y: then(put(x, ..., x - x.max(axis=1, keepdims=True)), x.sum()),
    "transposed of itself": lambda x, y: then(put(x, (slice(None), slice(0, 6)), x[:, :6].T.copy()), None),
    "returned": lambda x, y: put(x, 1, 2.0),
}


def outcome(function: Any, x: Array, y: Array) -> list[Array]:
    """What it returns and what it leaves in its arguments."""
    result = function(x, y)
    listed = list(result) if isinstance(result, tuple) else [] if result is None else [result]
    return [np.array(each) for each in (*listed, x, y)]


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize("layout", ("rows", "transposed", "steps", "backward steps", "unaligned", "fields of records"))
def test_mutation_is_numpy_s(name: str, layout: str) -> None:
    function = MUTATIONS[name]
    rng = np.random.default_rng(3)
    whole = random_array(rng, DType.FLOAT32, (34, 60))
    run = af.jit(function)
    for _ in range(2):
        y = random_array(rng, DType.FLOAT32, (6, 8))
        found, expected = (outcome(f, LAYOUTS[layout](whole.copy())[:6, :8], y.copy()) for f in (run, function))
        for a, b in zip(found, expected, strict=True):
            assert_close(a, b, 8)
        whole += 1


def test_a_compiled_function_writes_the_caller_s_array_whatever_its_strides() -> None:
    x = np.zeros((3, 4), np.float32)
    run = af.compile(lambda x, y: then(put(x, ..., x + y), None), [x, x])
    y = np.arange(12, dtype=np.float32).reshape(3, 4)
    zeros = np.zeros((12, 12), np.float32)
    for target in (zeros[:3, :4].copy(), zeros[:4, :3].T, zeros[4:10:2, 4::2], zeros[11:8:-1, 3::-1]):
        run(target, y)
        assert_bits(np.array(target), y)


def test_only_what_is_written_changes() -> None:
    """A slice of a larger array is updated in place, and nothing around it."""
    whole = np.full((10, 10), -1, np.float32)
    af.jit(lambda x: then(put(x, ..., 5.0), None))(whole[2:5, 3:8:2])
    expected = np.full((10, 10), -1, np.float32)
    expected[2:5, 3:8:2] = 5
    assert_bits(whole, expected)


def test_overlapping_arguments_are_read_before_any_write() -> None:
    base = np.arange(10, dtype=np.float32)
    af.jit(lambda x, y: then(put(x, ..., y * 2), None))(base[1:], base[:-1])
    assert base.tolist() == [0, 0, 2, 4, 6, 8, 10, 12, 14, 16]


def test_a_read_only_array_is_not_written() -> None:
    x = frozen(np.zeros(4, np.float32))
    with pytest.raises(ArgumentError, match="x: the array is read-only"):
        af.jit(lambda x: then(put(x, ..., 1.0), None))(x)
    assert x.tolist() == [0, 0, 0, 0]


def test_an_error_leaves_no_half_written_state() -> None:
    """The failed check is in one operator, the write in another: the argument is as it was, and the next call works."""
    run = af.jit(lambda x, i, y: then(put(x, ..., x + 1), af.gather(y, i)))
    x, y = np.zeros(1000, np.float32), np.arange(10, dtype=np.float32)
    for workers in (1, 2):
        with pytest.raises(IndexOutOfRange):
            run(x, np.array([1, 10, 2]), y, threads=workers)
        assert not x.any()
    assert run(x, np.array([1, -10, 2]), y).tolist() == [1, 0, 2]
    assert (x == 1).all()
