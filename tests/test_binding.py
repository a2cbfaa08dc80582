"""Calls in native code: what they take, what they leave to Python, and whose memory the results are."""

from __future__ import annotations

import gc
import pickle
import threading
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autofusion as af
from autofusion import api, dims
from autofusion.dtypes import Array, DType
from autofusion.errors import ArgumentError, IndexOutOfRange
from autofusion.graph import evaluate
from autofusion.graph.builder import GraphBuilder
from autofusion.runtime import binding, pool
from autofusion.runtime.sizes import KINDS, Table

pytestmark = pytest.mark.skipif(not pool.native_available(), reason="the native runtime was not built")

A, B = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones(4, np.float32)


def summing(dtype: DType = DType.FLOAT32, shape: tuple[int, ...] = (3, 4)) -> api.Compiled:
    F = GraphBuilder("sum")
    x, y = F.input("x", dtype, shape), F.input("y", dtype, shape[-1:])
    F.output(F.add(x, y))
    F.output(F.mul(x, y))
    return api.compile_graph(F.build())


def place_of(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def direct(compiled: api.Compiled) -> Any:
    assert compiled.executable.direct is not None
    return compiled.executable.direct


def test_arguments_as_compiled_go_straight_through() -> None:
    compiled = summing()
    total, scaled = compiled(A, B)
    assert (total == A + B).all() and (scaled == A * B).all()
    assert direct(compiled).calls == compiled.stats["calls"] == compiled.stats["launches"] == 1
    assert total.flags.writeable and total.base is not A


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BOOL], ids=str)
def test_element_types(dtype: DType) -> None:
    compiled, a, b = summing(dtype), A.astype(dtype.numpy), B.astype(dtype.numpy)
    assert (compiled(a, b)[0] == a + b).all()
    assert direct(compiled).calls == 1
    read_only = a.copy()
    read_only.flags.writeable = False
    assert (compiled(read_only, b)[0] == a + b).all()
    assert direct(compiled).calls == 2


class Subclass(np.ndarray[Any, Any]):
    """An array of another class, with the same memory."""


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT64, DType.UINT64], ids=str)
def test_types_that_are_the_same_by_another_object(dtype: DType) -> None:
    compiled, a, b = summing(dtype), A.astype(dtype.numpy), B.astype(dtype.numpy)
    copied = pickle.loads(pickle.dumps(a))
    assert (compiled(copied, b)[0] == a + b).all()
    if dtype is not DType.FLOAT32:
        longer = a.astype("longlong" if dtype is DType.INT64 else "ulonglong")
        assert (compiled(longer, b)[0] == a + b).all()
        assert (compiled(memoryview(longer), b)[0] == a + b).all()
    found = compiled(a.view(Subclass), memoryview(b))[0]
    assert type(found) is np.ndarray and (found == a + b).all()
    assert direct(compiled).calls == compiled.stats["calls"] == (2 if dtype is DType.FLOAT32 else 4)


@pytest.mark.parametrize("other", ["other byte order", "float of as many bytes", "unsigned"])
def test_other_types_are_no_match(other: str) -> None:
    compiled, b = summing(DType.INT32), B.astype(np.int32)
    types = {"other byte order": ">i4", "float of as many bytes": "f4", "unsigned": "u4"}
    with pytest.raises(af.AutofusionError, match=r"dtype|element type"):
        compiled(A.astype(types[other]), b)
    assert direct(compiled).calls == 0


def test_misaligned_arrays_are_right() -> None:
    compiled = summing()
    apart = np.zeros(A.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(A.shape)
    apart[...] = A
    assert not apart.flags.aligned
    assert (compiled(apart, B)[0] == A + B).all()
    total = np.zeros(A.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(A.shape)
    assert compiled(A, B, out=(total, None))[0] is total and (total == A + B).all()
    assert direct(compiled).calls == 0


def test_other_layouts_are_converted_in_python() -> None:
    compiled = summing()
    turned, apart, backwards = np.asfortranarray(A), np.repeat(B, 2)[::2], A[:, ::-1][:, ::-1]
    assert (compiled(turned, B)[0] == A + B).all()
    assert (compiled(A, apart)[0] == A + B).all()
    assert direct(compiled).calls == 0 and compiled.stats["calls"] == 2
    assert (compiled(backwards, B)[0] == A + B).all()
    assert direct(compiled).calls == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((A,), "1 arguments given, expected 2"),
        ((A.astype(np.float64), B), "float64, expected float32"),
        ((A[:2], B), "axis 0"),
        ((A[0], B), "rank 1"),
    ],
)
def test_what_does_not_fit_is_the_same_error_as_ever(arguments: tuple[Array, ...], message: str) -> None:
    compiled = summing()
    with pytest.raises(ArgumentError, match=message):
        compiled(*arguments)
    assert direct(compiled).calls == 0


def test_a_failed_check_raises() -> None:
    F = GraphBuilder("gather")
    x, at = F.input("x", DType.FLOAT32, (4,)), F.input("at", DType.INT64, (2,))
    F.output(F.gather(x, at, axis=0))
    compiled = api.compile_graph(F.build())
    data = np.arange(4, dtype=np.float32)
    assert (compiled(data, np.array([3, 1])) == [3, 1]).all()
    with pytest.raises(IndexOutOfRange, match="position 1"):
        compiled(data, np.array([0, 4]))
    assert direct(compiled).calls == 1


def test_no_extents_and_nothing_at_all() -> None:
    F = GraphBuilder("points")
    x, y = F.input("x", DType.FLOAT32, ()), F.input("y", DType.FLOAT32, (0, 3))
    F.output(F.add(x, 1.0))
    F.output(F.add(y, x))
    compiled = api.compile_graph(F.build())
    one, none = compiled(np.float32(2).reshape(()), np.empty((0, 3), np.float32))
    assert one == 3 and none.shape == (0, 3)
    assert direct(compiled).calls == 1


# -- memory ----------------------------------------------------------------------------------------------------------
LARGE = (512, 128)  # 256 KiB of float32: from the pool


def test_results_are_used_again_once_nobody_holds_them() -> None:
    compiled, a, b = summing(shape=LARGE), np.ones(LARGE, np.float32), np.ones(LARGE[1:], np.float32)
    first = compiled(a, b)
    places = {place_of(r) for r in first}
    kept = first[0]
    view = kept[3:5]
    del first
    second = compiled(a, b)
    assert place_of(kept) not in {place_of(r) for r in second}
    del kept
    third = compiled(a, b)  # the view still holds the memory
    assert view.base is not None and (view == 2).all()
    assert not {place_of(r) for r in third} & {place_of(r) for r in second}
    del second, third, view
    gc.collect()
    assert {place_of(r) for r in compiled(a, b)} & places


def test_steady_state_allocates_nothing() -> None:
    compiled, a, b = summing(shape=LARGE), np.ones(LARGE, np.float32), np.ones(LARGE[1:], np.float32)
    tracemalloc.start()
    try:
        for _ in range(100):
            compiled(a, b)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(10_000):
            compiled(a, b)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < 4096
    places = {place_of(r) for _ in range(100) for r in compiled(a, b)}
    assert len(places) <= 4


def test_kept_memory_can_be_given_back() -> None:
    binding.empty((1 << 20,), DType.FLOAT32)
    assert binding.free_memory() >= 4 << 20
    assert binding.free_memory() == 0


def test_blocks_are_aligned_and_writable() -> None:
    for size in (1 << 16, 100_001, 3 << 20):
        array = binding.empty((size,), DType.UINT8)
        assert place_of(array) % 4096 == 0
        array[:] = 7
        assert array.flags.writeable and array.size == size


def test_threads_share_a_compiled_graph() -> None:
    one, other = summing(), summing(shape=LARGE)
    large, row = np.ones(LARGE, np.float32), np.arange(LARGE[1], dtype=np.float32)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for step in range(200):
            a = A + seed * step
            if not (one(a, B)[0] == a + B).all() or not (other(large, row + seed)[0][7] == row + seed + 1).all():
                wrong.append((seed, step))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert direct(one).calls == 1600


# -- open sizes --------------------------------------------------------------------------------------------------------
N, M = dims.symbol("n"), dims.symbol("m")
DERIVED: tuple[dims.Dim, ...] = (
    N,
    N * M,
    2 * N + 3,
    N * N * M + 5 * N + 7,
    N // 3,
    dims.modulo(N, 3),
    (N * M + 5) // 4 + dims.modulo(M * 3, N + 1),
    dims.minimum(N, M),
    dims.maximum(N * 2, M + 4),
    dims.maximum(N - M, 0),
    dims.maximum((N - 9) // 2, -3) + 3,
    dims.modulo(dims.maximum(N - M, -40) + 5 * N, 7),
)


def row_major(rows: dims.Dim = N, columns: dims.Dim = M) -> api.Compiled:
    F = GraphBuilder("sum")
    x, y = F.input("x", DType.FLOAT32, (rows, columns)), F.input("y", DType.FLOAT32, (columns,))
    F.output(F.add(x, y))
    F.output(F.sum(F.exp(x), axes=(0,)))
    return api.compile_graph(F.build())


def test_numbers_that_follow_from_sizes() -> None:
    F = GraphBuilder("derived")
    x = F.input("x", DType.FLOAT32, (N, M))
    for dim in DERIVED:
        F.output(F.expand(F.reshape(F.sum(x, axes=(0, 1)), shape=(1,)), shape=(dim,)))
    compiled = api.compile_graph(F.build())
    sizes = [(1, 1), (3, 7), (8, 2), (40, 1), (2, 19), (5, 5), (1, 30)]
    for n, m in sizes:
        found = compiled(np.ones((n, m), np.float32))
        wanted = [int(dims.evaluate(dim, {"n": n, "m": m})) for dim in DERIVED]
        assert [each.shape for each in found] == [(size,) for size in wanted]
        assert all((each == n * m).all() for each in found)
    assert direct(compiled).calls == len(sizes)


@given(st.data())
def test_the_table_of_numbers_is_what_dims_are(data: st.DataObject) -> None:
    sizes = {"n": data.draw(st.integers(0, 50)), "m": data.draw(st.integers(1, 50))}
    table = Table(("n", "m"))
    made: list[dims.Dim] = [N, M, 1, 2, 7, -3]
    operators = {"+": dims.add, "*": dims.multiply, "//": dims.floordiv, "%": dims.modulo}
    operators |= {"min": dims.minimum, "max": dims.maximum}
    for _ in range(data.draw(st.integers(1, 6))):
        kind = data.draw(st.sampled_from(sorted(operators)))
        left, right = data.draw(st.sampled_from(made)), data.draw(st.sampled_from(made))
        if kind in ("//", "%"):
            right = data.draw(st.sampled_from([2, 3, 7, M]))
        made.append(operators[kind](left, right))
    places = table.places(made)
    numbers = [*sizes.values(), *table.first[2:]]
    by_number = {number: operators[kind] for kind, number in KINDS.items()}
    for step in range(0, len(table.steps), 4):
        kind_number, left_place, right_place, target = table.steps[step : step + 4]
        numbers[target] = by_number[kind_number](numbers[left_place], numbers[right_place])
    assert [numbers[place] for place in places] == [dims.evaluate(dim, sizes) for dim in made]
    assert len({tuple(table.steps[i : i + 3]) for i in range(0, len(table.steps), 4)}) == len(table.steps) // 4


def test_one_native_call_serves_all_sizes() -> None:
    compiled, rng = row_major(), np.random.default_rng(0)
    sizes = [(n, m) for n in (0, 1, 2, 17, 300) for m in (0, 1, 5, 64, 1030)]
    for n, m in sizes:
        x, y = rng.standard_normal((n, m), np.float32), rng.standard_normal(m, np.float32)
        total, summed = compiled(x, y)
        assert (total == x + y).all() and total.shape == (n, m)
        assert np.allclose(summed, np.exp(x).sum(0), rtol=1e-4, atol=1e-6)
    assert direct(compiled).calls == compiled.stats["calls"] == len(sizes)
    turned = np.asfortranarray(rng.standard_normal((4, 6), np.float32))
    assert (compiled(turned, np.zeros(6, np.float32))[0] == turned).all()
    assert direct(compiled).calls == len(sizes) and compiled.stats["calls"] == len(sizes) + 1


def test_tensors_of_open_sizes() -> None:
    torch = pytest.importorskip("torch")
    compiled = row_major()
    for n, m in ((3, 4), (1, 1), (200, 300), (5, 0)):
        x, y = torch.randn(n, m), torch.randn(m)
        found = compiled(x, y)[0]
        assert torch.equal(found, x + y) and found.stride() == (x + y).stride()
        assert torch.equal(compiled(x, torch._neg_view(y))[0], x - y)
    assert direct(compiled).calls == 4 and compiled.stats["calls"] == 8


def test_sizes_that_do_not_agree_are_the_same_error_as_ever() -> None:
    compiled = row_major()
    x = np.ones((3, 4), np.float32)
    for wrong, message in ((np.ones(5, np.float32), "elsewhere"), (np.ones((4, 1), np.float32), "rank 2")):
        with pytest.raises(ArgumentError, match=message):
            compiled(x, wrong)
    F = GraphBuilder("guarded")
    F.output(F.add(F.input("x", DType.FLOAT32, (N * 2, 3)), F.input("y", DType.FLOAT32, (M, 3))))
    F.output(F.mul(F.input("z", DType.FLOAT32, (N,)), 2.0))
    guarded = api.compile_graph(F.build())
    assert guarded.graph.guards
    given = [np.ones((6, 3), np.float32), np.ones((6, 3), np.float32), np.ones(3, np.float32)]
    assert (guarded(*given)[0] == 2).all() and direct(guarded).calls == 1
    for position in (0, 1, 2):
        changed = list(given)
        changed[position] = np.ones((4, *given[position].shape[1:]), np.float32)
        with pytest.raises(ArgumentError):
            guarded(*changed)
    assert direct(guarded).calls == 1


def test_sizes_that_make_no_tensor_are_errors() -> None:
    F = GraphBuilder("many")
    x, y = F.input("x", DType.UINT8, (N,), (0,)), F.input("y", DType.UINT8, (1,))
    F.output(F.expand(F.reshape(y, shape=(1, 1)), shape=(N, N)))
    F.output(F.expand(y, shape=(N * N * N,)))
    F.output(F.add(x, y))
    compiled = api.compile_graph(F.build())
    one = np.ones(1, np.uint8)
    assert compiled(np.broadcast_to(one, (3,)), one)[1].shape == (27,) and direct(compiled).calls == 1
    for size in (1 << 21, 1 << 22, 1 << 31, 1 << 32, 1 << 62):
        with pytest.raises((MemoryError, ValueError, OverflowError)):
            compiled(np.broadcast_to(one, (size,)), one)
    assert direct(compiled).calls == 1


def test_open_sizes_that_are_written() -> None:
    F = GraphBuilder("step")
    p, g = (F.input(name, DType.FLOAT32, (N,)) for name in "pg")
    F.output(F.sub(p, F.mul(g, 0.5)), writes="p")
    compiled = api.compile_graph(F.build())
    for size in (1, 16, 1000):
        p, g = np.arange(size, dtype=np.float32), np.ones(size, np.float32)
        assert compiled(p, g) is p and (p == np.arange(size) - 0.5).all()
    assert direct(compiled).calls == 3
    base = np.arange(100, dtype=np.float32)
    compiled(base[:64], base[8:72])
    assert direct(compiled).calls == 3
    assert (base[:64] == np.arange(64) - 0.5 * np.arange(8, 72)).all()


def test_threads_share_a_call_of_open_sizes() -> None:
    compiled, wrong = row_major(), []

    def work(seed: int) -> None:
        for step in range(200):
            x = np.full((1 + (seed * 7 + step) % 40, 1 + (seed + step * 3) % 90), seed, np.float32)
            if not (compiled(x, np.full(x.shape[1], step, np.float32))[0] == seed + step).all():
                wrong.append((seed, step))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and direct(compiled).calls == 1600


# -- arguments that are written ----------------------------------------------------------------------------------------
def stepping(size: int) -> api.Compiled:
    """p, m <- p - 0.1 (0.9 m + g), 0.9 m + g"""
    F = GraphBuilder("step")
    p, g, m = (F.input(name, DType.FLOAT32, (size,)) for name in "pgm")
    moment = F.add(F.mul(m, 0.9), g)
    F.output(F.sub(p, F.mul(moment, 0.1)), writes="p")
    F.output(moment, writes="m")
    return api.compile_graph(F.build())


@pytest.mark.parametrize("size", [1, 15, 16, 17, 1000, 100_003])
def test_arguments_are_written_where_they_are(size: int) -> None:
    compiled = stepping(size)
    assert all(write.in_place for write in compiled.executable.plan.writes)
    p, g, m = (np.arange(size, dtype=np.float32) + n for n in range(3))
    wanted_m = m * np.float32(0.9) + g
    wanted_p = p - wanted_m * np.float32(0.1)
    results = compiled(p, g, m)
    assert results[0] is p and results[1] is m and direct(compiled).calls == 1
    assert (p == wanted_p).all() and (m == wanted_m).all() and (g == np.arange(size) + 1).all()


def test_arguments_that_share_memory_are_written_last() -> None:
    compiled = stepping(64)
    base = np.arange(100, dtype=np.float32)
    p, m, g = base[:64], base[8:72], np.ones(64, np.float32)
    moment = base[8:72] * np.float32(0.9) + g
    stepped = base[:64] - moment * np.float32(0.1)
    compiled(p, g, m)
    assert direct(compiled).calls == 0
    assert (base[:8] == stepped[:8]).all() and (base[8:72] == moment).all()
    fixed = np.ones(64, np.float32)
    fixed.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        compiled(fixed, g, m)


def whole_rows(F: GraphBuilder, x: Any) -> None:
    F.output(F.softmax(x, axis=-1), writes="x")


def crossing(F: GraphBuilder, x: Any) -> None:
    F.output(F.add(x, F.transpose(x, axes=(1, 0))), writes="x")


def read_again(F: GraphBuilder, x: Any) -> None:
    F.output(F.mul(x, 2.0), writes="x")
    F.output(F.sum(F.exp(x), axes=(0,)))
    F.output(F.matmul(x, x))


@pytest.mark.parametrize(("write", "in_place"), [(whole_rows, True), (crossing, False), (read_again, None)])
@pytest.mark.parametrize("size", [5, 70, 300])
@pytest.mark.parametrize("fuse", [True, False])
def test_old_values_are_read_before_they_go(write: Any, in_place: bool | None, size: int, fuse: bool) -> None:
    F = GraphBuilder("writes")
    write(F, F.input("x", DType.FLOAT32, (size, size)))
    graph = F.build()
    compiled = api.compile_graph(graph, fuse=fuse)
    if in_place is not None and fuse:
        assert compiled.executable.plan.writes[0].in_place is in_place
    x = np.random.default_rng(1).standard_normal((size, size)).astype(np.float32)
    wanted = evaluate.run(graph, [x])
    found = compiled.run([x])
    for one, other in zip(found, wanted, strict=True):
        assert np.allclose(one, other, rtol=1e-4, atol=1e-3)
    assert np.allclose(x, wanted[0], rtol=1e-4, atol=1e-3)


def test_results_go_where_they_are_wanted() -> None:
    compiled = summing()
    total, scaled = np.empty((3, 4), np.float32), np.empty((4, 3), np.float32).T
    results = compiled(A, B, out=(total, scaled))
    assert results[0] is total and results[1] is scaled
    assert (total == A + B).all() and (scaled == A * B).all()
    own = A.copy()
    assert compiled(own, B, out=(own, None))[0] is own  # shares memory with an argument: copied at the end
    assert (own == A + B).all()
    single = api.compile_graph(matmul_graph())
    x, out = np.eye(4, dtype=np.float32), np.empty((4, 4), np.float32)
    assert single(x, out=out) is out and (out == x).all()


def matmul_graph() -> Any:
    F = GraphBuilder("square")
    x = F.input("x", DType.FLOAT32, (4, 4))
    F.output(F.matmul(x, x))
    return F.build()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ((np.empty((3, 4), np.float32),), "1 arrays given, expected 2"),
        ((np.empty((4, 3), np.float32), None), "expected an array"),
        ((np.empty((3, 4)), None), "expected an array"),
        (([1.0], None), "found list"),
        ((np.broadcast_to(np.float32(0), (3, 4)), None), "read-only"),
        ((SHARED := np.empty((3, 4), np.float32), SHARED), "one memory"),
    ],
)
def test_wrong_places_are_one_clear_error(out: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        summing()(A, B, out=out)


# -- tensors of other libraries ----------------------------------------------------------------------------------------
def test_tensors_in_tensors_out() -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has no exchange table")
    compiled, a, b = summing(), torch.from_numpy(A), torch.from_numpy(B)
    total, scaled = compiled(a, b)
    assert torch.equal(total, a + b) and torch.equal(scaled, a * b)
    assert direct(compiled).calls == 1
    turned = compiled(a.t().contiguous().t(), b)[0]  # through Python
    assert direct(compiled).calls == 1 and torch.equal(turned, a + b)
    kept = total.numpy()
    del total
    compiled(a + 1, b)
    assert (kept == A + B).all()


def test_tensors_beside_arrays() -> None:
    torch = pytest.importorskip("torch")
    compiled, a, b = summing(), torch.from_numpy(A), torch.from_numpy(B)
    kinds = [type(compiled(*given)[0]) for given in ((a, B), (A, b), (torch.nn.Parameter(a, False), b))]
    assert kinds == [torch.Tensor, np.ndarray, torch.Tensor]
    large = summing(shape=LARGE)
    x, y = torch.ones(LARGE), torch.ones(LARGE[1])
    first = large(x, y)[0]
    assert first.is_contiguous() and torch.equal(first, x + y)
    assert direct(compiled).calls == 3 and direct(large).calls == 1


def test_bfloat16_tensors() -> None:
    torch = pytest.importorskip("torch")
    compiled, a, b = summing(DType.BFLOAT16), torch.from_numpy(A).bfloat16(), torch.from_numpy(B).bfloat16()
    assert torch.equal(compiled(a, b)[0], a + b) and direct(compiled).calls == 1


def test_tensors_that_are_negative_by_a_mark() -> None:
    torch = pytest.importorskip("torch")
    compiled, a, b = summing(), torch.from_numpy(A), torch.from_numpy(B)
    for strange in (torch._neg_view(a), torch._efficientzerotensor((3, 4))):
        assert torch.equal(compiled(strange, b)[0], strange + b)
    turned = af.compile(lambda x, y: x + y, [A, B])
    assert torch.equal(turned(torch._neg_view(a), b), b - a)
    assert direct(compiled).calls == 0 and compiled.stats["calls"] == 2
    step, moment = stepping(12), torch.zeros(12)
    with pytest.raises(ArgumentError, match="read-only"):
        step(torch._neg_view(torch.ones(12)), torch.ones(12), moment)
    assert not moment.any()


# -- objects that are called -------------------------------------------------------------------------------------------
def test_functions_go_straight_through() -> None:
    """Where the result is as the graph has it; other structures are put together in Python."""
    one, two = af.compile(lambda x, y: x + y, [A, B]), af.compile(lambda x, y: (x + y, x * y), [A, B])
    assert (one(A, B) == A + B).all() and (two(A, B)[1] == A * B).all()
    named = af.compile(lambda x, y: {"sum": [x + y]}, [A, B])
    turned = af.compile(lambda x, y: [x + y, x * y], [A, B])
    assert (named(A, B)["sum"][0] == A + B).all() and type(turned(A, B)) is list
    assert [len(each.direct) for each in (one, two, named, turned)] == [1, 1, 0, 0]
    assert [each.stats["calls"] for each in (one, two, named, turned)] == [1] * 4
    assert (one(A, B, threads=2) == A + B).all()
    with pytest.raises(TypeError, match="thread"):
        one(A, B, thread=2)


def test_variants_of_a_function_are_tried_in_turn() -> None:
    run = af.jit(lambda x: x * 2)
    arrays = [np.arange(n, dtype=dtype) for n in range(1, 8) for dtype in ("f4", "f8")]
    for _ in range(3):
        for x in arrays:
            found = run(x)
            assert found.dtype == x.dtype and (found == x * 2).all()
    assert run.stats["variants"] == len(arrays) and len(run.direct) == 8
    transposed = np.arange(12, dtype=np.float32).reshape(3, 4).T
    assert (run(transposed) == transposed * 2).all() and (run(transposed.copy()) == transposed * 2).all()


def test_the_type_in_python_does_the_same() -> None:
    class Doubling(binding.PlainCallable):
        def _call(self, *arguments: Any, **options: Any) -> Any:
            return "rest", arguments, options

    compiled, plain = summing(), Doubling()
    assert plain(A) == ("rest", (A,), {})
    plain.direct = compiled.direct
    assert (plain(A, B)[0] == A + B).all()
    assert plain(1, 2) == ("rest", (1, 2), {}) and plain(A, B, threads=1)[2] == {"threads": 1}


def test_what_is_called_is_checked_and_freed() -> None:
    compiled = summing()
    for wrong in (None, [], (1,), (compiled,)):
        with pytest.raises(TypeError, match="create_call"):
            compiled.direct = wrong  # type: ignore[assignment]
    assert (compiled(*[A, B])[0] == A + B).all()
    with pytest.raises(ArgumentError, match="30 arguments given"):
        compiled(*[A] * 30)
    watched = weakref.ref(compiled)
    compiled.direct += compiled.direct
    circle: list[Any] = [compiled]
    circle.append(circle)
    del compiled, circle, wrong
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("parts", [(), (1, 2, 3), (object(), *[()] * 12)], ids=["none", "few", "no plan"])
def test_a_wrong_binding_is_an_error(parts: tuple[Any, ...]) -> None:
    native: Any = pool.native()
    with pytest.raises((TypeError, ValueError)):
        native.create_call(*parts)
    with pytest.raises(ValueError, match="at least 0"):
        native.take_block(-1)
