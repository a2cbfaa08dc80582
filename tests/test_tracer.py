"""Tracing: what a traced function computes is what it computes on NumPy arrays, and what cannot be traced says so."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofusion import dims
from autofusion.dtypes import DType
from autofusion.errors import ArgumentError, AutofusionError, DTypeError, GraphError
from autofusion.frontends import functions as af
from autofusion.frontends.tracer import Leaf, Sharing, Tensor, TraceError, reshaped_strides, trace
from autofusion.graph.evaluate import run
from autofusion.graph.ir import Value, parse, show, verify
from autofusion.ops import TABLE
from autofusion.ops.structure import strides_of


def specs(arrays: list[np.ndarray]) -> list[tuple[Any, ...]]:
    return [(f"a{n}", a.dtype, a.shape) for n, a in enumerate(arrays)]


def call(function: Callable[..., Any], *arrays: np.ndarray) -> tuple[Any, list[np.ndarray]]:
    """The traced function's result, and the inputs after it: changed where the graph writes them."""
    traced = trace(function, specs(list(arrays)))
    verify(traced.graph)
    assert parse(show(traced.graph), traced.graph.data) == traced.graph
    values = run(traced.graph, arrays)
    after = [np.array(a) for a in arrays]
    names = [v.name for v in traced.graph.inputs]
    for output, value in zip(traced.graph.outputs, values, strict=True):
        if output.writes is not None:
            after[names.index(output.writes)] = value
    return traced.rebuild(values), after


def same(function: Callable[..., Any], *arrays: np.ndarray, exact: bool = True) -> None:
    """The function gives the same traced and on NumPy arrays, and leaves the same in its inputs."""
    mine = [np.array(a) for a in arrays]
    expected = function(*mine)
    result, after = call(function, *arrays)
    flat = (result,) if isinstance(result, np.ndarray) or result is None else result
    wanted = (expected,) if isinstance(expected, np.ndarray | np.generic) or expected is None else expected
    for got, want in zip(flat, wanted, strict=True):
        if want is None:
            assert got is None
        elif exact:
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
        else:
            assert got.shape == np.shape(want)
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    for got, want in zip(after, mine, strict=True):
        np.testing.assert_array_equal(got, want)


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
M = np.arange(12, dtype=np.float32).reshape(3, 4)
I = np.arange(-6, 6, dtype=np.int32).reshape(3, 4)
B = I % 2 == 0


# -- operators and methods -------------------------------------------------------------------------------------------
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: (x + 1, 1 - x, x * 2, 2 / (x + 1), x // 3, 7 % (x + 1), -x, abs(x - 5), +x),
    "arrays": lambda x: (x + M, M - x, M * x, x / (M + 1), np.less(M, x), np.float32(2) * x),
    "compare": lambda x: (x == 3, x != 3, x < 3, x <= 3, x > 3, x >= 3, np.less(3, x)),
    "powers": lambda x: (x**2, x**0.5, (x + 1) ** -1, 2.0**x),
    "reduce": lambda x: (x.sum(), x.max(0), x.min(axis=1, keepdims=True), x.sum(axis=(0, 1)), x.prod(-1)),
    "statistics": lambda x: (x.mean(-1), x.var(axis=0), x.std(axis=1, ddof=1), x.cumsum(0), x.cumsum()),
    "logic": lambda x: ((x > 2).any(), (x > 2).all(axis=0), (x > 2) & (x < 5), (x > 2) | (x < 1), ~(x > 2)),
    "views": lambda x: (x.T, x.reshape(4, 3), x.reshape(2, -1), x.transpose(1, 0), x.swapaxes(0, 1), x.ravel()),
    "copies": lambda x: (x.copy(), x.flatten(), x.astype(np.float64), x.astype("int32"), x.astype(x.dtype)),
    "clip": lambda x: (x.clip(2, 5), np.clip(x, 1, None), x.take([2, 0], axis=1), x.take([5])),
    "matmul": lambda x: (x @ M.T, M.T @ x, x @ M[0], M[:, 0] @ x, x[0] @ x[1], np.dot(x, M.T)),
    "squeeze": lambda x: (x[None].squeeze(), x[:, None].squeeze(1), np.expand_dims(x, (0, 2))),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_and_methods_agree_with_numpy(name: str) -> None:
    same(OPERATORS[name], M, exact=name not in ("statistics", "powers"))


NUMPY: dict[str, Callable[[Any], Any]] = {
    "ufuncs": lambda x: (np.exp(x), np.add(x, 1), np.maximum(x, M), np.tanh(x), np.sqrt(x), np.isnan(x)),
    "reductions": lambda x: (np.sum(x, axis=1), np.mean(x, axis=0, keepdims=True), np.max(x), np.var(x, axis=1)),
    "joins": lambda x: (np.concatenate([x, M], axis=0), np.stack([x, x], axis=1), np.where(x > 3, x, 0)),
    "shapes": lambda x: (np.reshape(x, (4, 3)), np.transpose(x), np.swapaxes(x, 0, 1), np.moveaxis(x, 0, 1)),
    "products": lambda x: (np.matmul(x, M.T), np.outer(x[0], x[1])),
    "split": lambda x: tuple(np.split(x, 2, axis=1)) + tuple(np.split(x, [1], axis=0)),
    "likes": lambda x: (np.zeros_like(x), np.ones_like(x), np.full_like(x, 3.0), np.broadcast_to(x, (2, 3, 4))),
    "cumsum": lambda x: (np.cumsum(x, axis=1), np.take(x, np.array([1, 0]), axis=0), np.copy(x)),
}


@pytest.mark.parametrize("name", NUMPY)
def test_numpys_own_functions_work_on_tensors(name: str) -> None:
    same(NUMPY[name], M, exact=False)


INDICES: dict[str, Any] = {
    "int": 1,
    "negative": (slice(None), -1),
    "slices": (slice(1, None), slice(None, -1), slice(None, None, 2)),
    "reversed": (Ellipsis, slice(None, None, -1)),
    "reversed part": (slice(None), slice(2, 0, -1), slice(-2, None, -2)),
    "beyond": (slice(0, 99), slice(-99, 2), slice(5, 2)),
    "new axes": (None, 0, None, Ellipsis, None),
    "ellipsis": (Ellipsis, 2),
    "list": [1, 0, 1],
    "array": (slice(None), np.array([[2, 0], [1, -1]])),
    "int then array": (1, np.array([2, 0])),
    "int apart from array": (1, slice(None), np.array([3, 0, 1])),
    "array apart from int": (np.array([[1, 0]]), slice(None), 2),
    "array then ellipsis": (np.array([1, 0]), Ellipsis, 0),
    "ellipsis of nothing": (slice(None), 0, Ellipsis, np.array([1, 0])),
    "new axis apart": (0, None, np.array([1, 2])),
    "numpy int": (np.int64(1), slice(None)),
    "whole": (),
}


@pytest.mark.parametrize("name", INDICES)
def test_indexing_agrees_with_numpy(name: str) -> None:
    same(lambda x: x[INDICES[name]], X)


def test_gather_by_a_tensor() -> None:
    table, ids = np.arange(20, dtype=np.float32).reshape(5, 4), np.array([[4, 0], [-1, 2]], np.int32)
    same(lambda t, i: (t[i], t[:, i % 4], t[i.astype("uint8") % 5]), table, ids)
    with pytest.raises(IndexError, match="index 9"):
        call(lambda t, i: t[i], table, np.array([9]))


# -- element types ---------------------------------------------------------------------------------------------------
PROMOTIONS: list[tuple[Callable[[Any, Any], Any], str, str, str]] = [
    (lambda a, b: a + b, "int32", "float32", "float32"),
    (lambda a, b: a + b, "float16", "bfloat16", "float32"),
    (lambda a, b: a * b, "uint8", "int8", "int16"),
    (lambda a, b: a + 1.5, "int32", "int32", "float32"),
    (lambda a, b: a + 1, "float16", "int32", "float16"),
    (lambda a, b: a + 1, "bool", "int32", "int64"),
    (lambda a, b: a + 1.5, "bool", "int32", "float32"),
    (lambda a, b: a * np.float64(2), "float32", "int32", "float32"),
    (lambda a, b: a / b, "int32", "int32", "float32"),
    (lambda a, b: a.mean(), "int64", "int32", "float32"),
    (lambda a, b: af.exp(a), "int32", "int32", "float32"),
    (lambda a, b: a.sum(), "int8", "int32", "int64"),
    (lambda a, b: a + b, "bool", "bool", "bool"),
    (lambda a, b: af.where(a > 0, b, 1.5), "float32", "int32", "float32"),
    (lambda a, b: af.where(a, b, 0), "int32", "float16", "float16"),
    (lambda a, b: af.concat([a, b]), "int32", "float32", "float32"),
    (lambda a, b: a**3, "int32", "int32", "int32"),
    (lambda a, b: a < 2.5, "int32", "int32", "bool"),
]


@pytest.mark.parametrize("row", range(len(PROMOTIONS)))
def test_element_types_meet_as_documented(row: int) -> None:
    function, a, b, expected = PROMOTIONS[row]
    graph = trace(function, [("a", a, (3,)), ("b", b, (3,))]).graph
    verify(graph)
    assert graph.values[graph.outputs[0].name].dtype == expected


def test_integer_powers_and_booleans() -> None:
    same(lambda x: (x**3, x**1, x**5, x**2, x // 4, x % 3, x & 6, x | 1, x ^ 3, ~x), I)
    assert (call(lambda x: x**0, I)[0] == 1).all()
    same(lambda x: (x + x, x * x, x & True, x ^ x, ~x), B)


def test_scalars_that_do_not_fit() -> None:
    with pytest.raises(TraceError, match=r"300 does not fit uint8"):
        trace(lambda x: x + 300, [("x", "uint8", (3,))])
    with pytest.raises(TraceError, match="negative power"):
        trace(lambda x: x**-1, [("x", "int32", (3,))])
    with pytest.raises(TraceError, match="complex"):
        trace(lambda x: x + np.complex64(1), [("x", "float32", (3,))])
    with pytest.raises(DTypeError, match="uint64"):
        trace(lambda x, y: x + y, [("x", "uint64", (3,)), ("y", "int8", (3,))])


# -- mutation --------------------------------------------------------------------------------------------------------
def _shift(x: Any) -> Any:
    x[1:] = x[:-1].copy()


def _shift_overlapping(x: Any) -> Any:
    x[1:] = x[:-1]


def _copy_then_write(x: Any) -> Any:
    y = x.copy()
    x[...] = 0
    return y, x + 1


def _through_a_view(x: Any) -> Any:
    y = x[1:]
    y[...] = 7
    return x + 0, y * 2


def _view_sees_the_write(x: Any) -> Any:
    row = x[1]
    x[:, ::2] = -1
    return row + 0


def _chain(x: Any) -> Any:
    y = x.T[1:3].swapaxes(0, 1)
    y[0, ::-1] = x[2, :2] * 10
    x.reshape(-1)[5] = 100
    x[None][0, 1] += 1
    return y + 0


def _in_place(x: Any) -> Any:
    y = x[0]
    y += 1
    x *= 2
    x[2, 1:] -= x[2, :-1]
    np.add(x, 1, out=x)
    return y + 0


def _intermediate(x: Any) -> Any:
    y = x * 2
    z = y[1]
    y[1] = 5
    z[::2] = 6
    return y, z + 0


def _masked(x: Any) -> Any:
    x[x > 4] = 0
    x[0][x[0] == 2] = -9


def _broadcast_value(x: Any) -> Any:
    x[:, 1] = 3
    x[1:] = x[0]
    x[0] = x[:1, :] + 1


def _returned_input(x: Any) -> Any:
    x[0] = 1
    return x[1:], x


def _cast_on_write(x: Any) -> Any:
    x[0] = np.array([1.9, -1.9, 2.5, 3.0])
    x[1] = True


def _strided(x: Any) -> Any:
    y = x[::-1, ::-2]
    y[0] = 50
    y[-1, 0] = 60
    return y + 0


def _reshape_of_a_copy(x: Any) -> Any:
    flat = x.T.reshape(-1)
    flat[0] = 99
    return flat + x.ravel()


MUTATIONS = [
    _shift,
    _shift_overlapping,
    _copy_then_write,
    _through_a_view,
    _view_sees_the_write,
    _chain,
    _in_place,
    _intermediate,
    _masked,
    _broadcast_value,
    _returned_input,
    _cast_on_write,
    _strided,
    _reshape_of_a_copy,
]


@pytest.mark.parametrize("function", MUTATIONS, ids=lambda f: f.__name__)
def test_mutation_agrees_with_numpy(function: Callable[[Any], Any]) -> None:
    same(function, M)


def test_mutation_outputs_name_the_inputs_they_write_in_order() -> None:
    def function(x: Any, y: Any) -> Any:
        y[0] = 1
        x[...] = y
        return x.sum()

    traced = trace(function, [("x", "float32", (3,)), ("y", "float32", (3,))])
    assert [o.writes for o in traced.graph.outputs] == [None, "y", "x"]
    assert traced.results == 1 and traced.structure == Leaf(0)


def test_a_dtype_preserving_write_of_an_integer_input() -> None:
    same(_cast_on_write, I)


def _write_unknown_reshape(x: Any) -> Any:
    y = x * 2
    flat = y.T.reshape(-1)
    flat[0] = 1
    return y


def _read_unknown_reshape(x: Any) -> Any:
    y = x * 2
    flat = y.T.reshape(-1)
    y[0] = 1
    return flat


REFUSED_WRITES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "ambiguous reshape": (_write_unknown_reshape, "view or a copy"),
    "ambiguous reshape read": (_read_unknown_reshape, "view or a copy"),
    "ambiguous input": (lambda x: x.T.reshape(-1).__setitem__(0, 1), "whether input 'x' changes is not known"),
    "broadcast": (lambda x: af.broadcast_to(x, (2, "n", 4)).__setitem__(0, 1), "read-only"),
    "scatter": (lambda x: x.__setitem__([0, 1], 1), "scatter"),
    "mask": (lambda x: x.__setitem__(x > 0, x), "through a mask"),
    "shape": (lambda x: x.__setitem__(0, np.zeros(3)), r"shape \[3\] does not fit \[4\]"),
    "in place type": (lambda x: x.astype("int32").__iadd__(0.5), "cannot be stored in place"),
    "in place shape": (lambda x: x[0].__iadd__(x), "does not fit"),
}


@pytest.mark.parametrize("name", REFUSED_WRITES)
def test_writes_without_one_meaning_are_refused(name: str) -> None:
    function, message = REFUSED_WRITES[name]
    if name == "broadcast":
        function = lambda x: af.broadcast_to(x, (2, *x.shape)).__setitem__(0, 1)  # noqa: E731
    with pytest.raises(TraceError, match=message):
        trace(function, [("x", "float32", ("n", 4))])


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_reshaped_strides_is_numpys_reshape(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    base = np.zeros(shape, np.int8)
    order = data.draw(st.permutations(range(len(shape))))
    steps = tuple(slice(None, None, data.draw(st.sampled_from([1, 1, 2, -1]))) for _ in shape)
    view = base.transpose(order)[steps]
    target = data.draw(st.sampled_from([(-1,), (view.size, 1), (2, -1), (-1, 2), (-1, 3), view.shape[::-1], (6, -1)]))
    known = int(np.prod([d for d in target if d > 0]))
    if known == 0 or view.size % known:
        return
    result = view.reshape(target)
    found = reshaped_strides(view.shape, view.strides, result.shape)
    if np.shares_memory(result, base):
        assert not isinstance(found, Sharing)
        kept = [axis for axis, n in enumerate(result.shape) if n != 1]
        assert [found[a] for a in kept] == [result.strides[a] for a in kept]
    else:
        assert found is Sharing.COPY


# -- what a trace refuses --------------------------------------------------------------------------------------------
def _branch(x: Any) -> Any:
    return x if x.sum() > 0 else -x


def _loop(x: Any) -> Any:
    return [row for row in x]  # noqa: C416


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "branch": (_branch, "truth value"),
    "iteration": (_loop, "iteration"),
    "float": (lambda x: float(x[0, 0]), "the value of a traced tensor"),
    "index": (lambda x: [1, 2, 3][x[0, 0].astype("int64")], "the value of a traced tensor"),
    "range": (lambda x: list(range(x.shape[0] and x.sum())), "the value of a traced tensor"),
    "asarray": (lambda x: np.asarray(x), "the data of a traced tensor"),
    "array by tensor": (lambda x: M[x.astype("int64")], r"use take\(array, index, axis=0\)"),
    "item": (lambda x: x.sum().item(), "the value"),
    "in": (lambda x: 1 in x, "membership"),
    "mask": (lambda x: x[x > 0], "what a mask selects"),
    "two arrays": (lambda x: x[[0], [1]], "2 index arrays"),
    "out of range": (lambda x: x[3], r"index 3 is out of range for axis 0 of \[3,4\]"),
    "too many": (lambda x: x[0, 0, 0], "3 indices"),
    "float index": (lambda x: x[1.5], "expected an int"),
    "bool index": (lambda x: x[True], "a bool as index"),
    "zero step": (lambda x: x[::0], "step of axis 0 is 0"),
    "scalar result": (lambda x: {"a": [x, 2.0]}, r"result\['a'\]\[1\] is a float 2.0"),
    "string operand": (lambda x: x + "a", "found str"),
    "list of tensors": (lambda x: x.__add__([x]), "list of tensors"),
    "numpy function": (lambda x: np.linalg.norm(x), r"np\.norm is not supported"),
    "numpy keyword": (
        lambda x: np.sum(x, dtype=np.float64),
        r"sum: .*'dtype'; it is called as sum\(x, axis=None, keepdims=False\)",
    ),
    "ufunc": (lambda x: np.arctan2(x, x), r"np\.arctan2"),
    "ufunc method": (lambda x: np.add.reduce(x), r"np\.add\.reduce"),
    "out array": (lambda x: np.add(x, 1, out=np.zeros((3, 4), np.float32)), "out= is a NumPy array"),
    "length of a scalar": (lambda x: len(x.sum()), "rank 0"),
    "squeeze": (lambda x: x.squeeze(0), "is not 1"),
    "scalar product": (lambda x: af.matmul(x, 2.0), "use \\*"),
    "split": (lambda x: af.split(x, 2), "no 2 equal parts"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_what_and_where(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(TraceError, match=message) as caught:
        trace(function, [("x", "float32", (3, 4))])
    assert name == "scalar result" or "test_tracer.py:" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_errors_of_operators_name_the_operator_and_the_line() -> None:
    with pytest.raises(GraphError, match=r"^matmul: .*inner extents.*\(at test_tracer.py:\d+\)$"):
        trace(lambda x: x @ x, [("x", "float32", (3, 4))])
    with pytest.raises(GraphError, match=r"^sum: axis 2 is out of range for rank 2"):
        trace(lambda x: x.sum(2), [("x", "float32", (3, 4))])
    with pytest.raises(GraphError, match=r"^layer_norm: rank=3"):
        trace(lambda x: af.layer_norm(x, rank=3), [("x", "float32", (3, 4))])


def test_tensors_do_not_outlive_their_trace() -> None:
    kept: list[Tensor] = []
    trace(lambda x: kept.append(x), [("x", "float32", (3,))])
    with pytest.raises(TraceError, match="after its trace ended"):
        kept[0] + 1
    with pytest.raises(TraceError, match="another trace"):
        trace(lambda x: x + kept[0], [("x", "float32", (3,))])


# -- shapes, structure -----------------------------------------------------------------------------------------------
def test_symbolic_dimensions() -> None:
    def function(x: Any) -> Any:
        n, m = x.shape
        return x[-1], x[1:-1], x[:, None].reshape(n, m), x.sum(0) / n, x[n - 2 :], x[2], af.arange(n), x[-2:]

    traced = trace(function, [("x", "float32", ("n", 4))])
    verify(traced.graph)
    for n in (3, 7):
        x = np.arange(4 * n, dtype=np.float32).reshape(n, 4)
        result = traced.rebuild(run(traced.graph, [x]))
        wanted = (x[-1], x[1:-1], x, x.sum(0) / np.float32(n), x[n - 2 :], x[2], np.arange(n), x[-2:])
        for got, want in zip(result, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
    with pytest.raises(ArgumentError):
        run(traced.graph, [np.zeros((2, 4), np.float32)])


def test_a_symbolic_index_is_guarded_and_a_slice_is_clamped() -> None:
    last = trace(lambda x: x[-3], [("x", "float32", ("n", 4))]).graph
    with pytest.raises(ArgumentError):
        run(last, [np.zeros((2, 4), np.float32)])
    tail = trace(lambda x: x[-3:], [("x", "float32", ("n", 4))]).graph
    for n in (2, 5):
        x = np.arange(4 * n, dtype=np.float32).reshape(n, 4)
        np.testing.assert_array_equal(run(tail, [x])[0], x[-3:])
    with pytest.raises(TraceError, match="symbolic"):
        trace(lambda x: x[::-1], [("x", "float32", ("n", 4))])
    with pytest.raises(TraceError, match="symbolic"):
        trace(lambda x: len(x), [("x", "float32", ("n", 4))])


def test_structure_is_rebuilt() -> None:
    def function(x: Any) -> Any:
        return {"a": (x, [x + 1, None]), "b": M}

    result, _ = call(function, M)
    assert set(result) == {"a", "b"} and result["a"][1][1] is None
    np.testing.assert_array_equal(result["a"][1][0], M + 1)
    np.testing.assert_array_equal(result["b"], M)


def test_specs_may_be_values_with_strides() -> None:
    value = Value("x", DType.FLOAT32, (4, dims.symbol("n")), (1, 4))
    graph = trace(lambda x: x.T, [value]).graph
    assert graph.inputs == (value,)
    named = trace(lambda x: x, [("x", np.float32, (4, 3), (1, 4))], name="named").graph
    assert named.name == "named" and named.inputs[0].strides == (1, 4)


def test_constants_are_shared_by_content_and_lists_are_float32() -> None:
    graph = trace(lambda x: x + M + M.copy() + [1.0, 2.0, 3.0, 4.0], [("x", "float32", (3, 4))]).graph
    assert len(graph.constants) == 2
    assert {c.value.dtype for c in graph.constants} == {DType.FLOAT32}


def test_a_constant_is_what_it_was_when_it_was_met() -> None:
    def function(x: Any) -> Any:
        table = np.zeros(4, np.float32)
        y = x + table
        table[:] = 1
        return y + table

    np.testing.assert_array_equal(call(function, M)[0], M + 1)


# -- functions -------------------------------------------------------------------------------------------------------
def test_every_row_is_a_function_with_a_docstring_and_a_signature() -> None:
    for name in af.names():
        function = af.lookup(name)
        assert function.__doc__ and len(function.__doc__) > 10, name
        inspect.signature(function)
    assert {row.name for row in TABLE} <= set(af.names())
    assert af.exp is af.lookup("exp") and af.power is af.lookup("pow")


def test_unknown_functions_have_near_matches() -> None:
    with pytest.raises(AttributeError, match=r"'sofmax'; did you mean .*softmax"):
        af.sofmax  # noqa: B018


UNARY = [row.name for row in TABLE if row.kind == "elementwise" and row.arity == 1 and row.name != "cast"]


@pytest.mark.parametrize("name", UNARY)
def test_eager_functions_are_the_traced_ones(name: str) -> None:
    row = TABLE.get(name)
    x = B if row.dtypes == (DType.BOOL,) or DType.FLOAT32 not in row.dtypes else np.linspace(0.1, 0.9, 7).astype("f")
    function = af.lookup(name)
    eager = function(x)
    traced, _ = call(function, x)
    assert eager.dtype == traced.dtype
    np.testing.assert_array_equal(eager, traced)


def test_eager_functions_take_numpys_keywords() -> None:
    assert af.sum(M, axis=1, keepdims=True).shape == (3, 1)
    assert af.softmax(M).shape == M.shape
    np.testing.assert_allclose(af.layer_norm(M, M[0] * 0 + 1, M[0] * 0).mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(af.rms_norm(M).shape, M.shape)
    np.testing.assert_array_equal(af.arange(2, 9, 3), np.arange(2, 9, 3))
    np.testing.assert_array_equal(af.concat([M, I]), np.concatenate([M, I]).astype("f"))
    assert af.full((2,), 1.5).dtype == np.float32 and af.zeros(3, "int8").dtype == np.int8
    assert [a.shape for a in af.split(M, [1, 3], axis=1)] == [(3, 1), (3, 2), (3, 1)]
    assert af.all_reduce(M).shape == M.shape
    with pytest.raises(AutofusionError, match="2 devices"):
        af.all_reduce(M, world_size=2)


# -- random programs: traced equals eager ----------------------------------------------------------------------------
STEPS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a + b,
    lambda a, b: a * 0.5 - b,
    lambda a, b: af.maximum(a, b),
    lambda a, b: af.tanh(a),
    lambda a, b: a - a.mean(axis=-1, keepdims=True),
    lambda a, b: af.softmax(a, axis=0) + b,
    lambda a, b: af.where(a > b, a, 0.25),
    lambda a, b: af.reshape(a.T, (3, 4)) * b,
    lambda a, b: af.concat([a[1:], b[:1]], axis=0),
    lambda a, b: af.sigmoid(a @ b.T) @ a,
    lambda a, b: a[::-1] + b[:, ::-1],
    lambda a, b: af.cumsum(a, axis=1) / 4,
    lambda a, b: af.take(a, np.array([2, 0, 1]), axis=0),
    lambda a, b: af.minimum(a, b[0]),
    lambda a, b: af.clip(a.astype("int32"), -2, 2).astype("float32") + b,
]


def _mutate(a: Any, b: Any) -> Any:
    a = a.copy()
    a[1:, ::2] = b[:2, :2]
    a.T[0] += 1
    return a


@given(st.lists(st.tuples(st.integers(0, len(STEPS)), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_random_programs_trace_to_what_they_compute(program: list[tuple[int, int, int]]) -> None:
    def function(x: Any, y: Any) -> Any:
        pool = [x, y, x - y, af.tanh(x)]
        for kind, a, b in program:
            pool[a] = (STEPS[kind] if kind < len(STEPS) else _mutate)(pool[a], pool[b])
        return tuple(pool)

    rng = np.random.RandomState(0)
    x, y = (rng.standard_normal((3, 4)).astype("f") for _ in range(2))
    with np.errstate(all="ignore"):
        expected = function(x.copy(), y.copy())
    result, _ = call(function, x, y)
    for got, want in zip(result, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_layouts_of_intermediates_are_row_major_only_where_that_is_sure() -> None:
    seen: list[Any] = []

    def function(x: Any) -> None:
        seen.append([t.is_row_major for t in (x, x.T, x + 1, x.T + 1, x[1:], x[:, 1:])])

    trace(function, [("x", "float32", ("n", 4))])
    assert seen[0] == [True, False, True, False, True, False]
    assert strides_of((2, 3)) == (3, 1)
