"""What the CPU target reads off a kernel's statements: bounds, where a NaN shows; and the code made shorter by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autofusion import api, dims, dtypes
from autofusion.dtypes import Array, DType
from autofusion.frontends import functions as af
from autofusion.frontends import tracer
from autofusion.frontends.python import element_strides
from autofusion.graph import evaluate
from autofusion.jit import cache
from autofusion.kernel.ir import Access, Axis, Copy, Fold, Map, Statement
from autofusion.targets.cpu import render
from autofusion.targets.cpu.facts import NOTHING, Facts, facts_of

ROWS, COLUMNS = Axis("i", 4), Axis("j", 300)
EXTREME, WHOLE = (ROWS,), (ROWS, COLUMNS)
exp, log, softmax, log_softmax, where = (af.lookup(name) for name in ("exp", "log", "softmax", "log_softmax", "where"))


# -- the rules ---------------------------------------------------------------------------------------------------------
def row(name: str) -> Access:
    return Access(name, (dims.symbol("i"),))


def point(name: str) -> Access:
    return Access(name, (dims.symbol("i"), dims.symbol("j")))


def of(name: str, op: str, *operands: Access, at: Callable[[str], Access] = point) -> Map:
    return Map(at(name), DType.FLOAT32, op, operands, WHOLE if at is point else EXTREME)


def fold(name: str, kind: str, operand: Access, accumulate: bool = False) -> Fold:
    return Fold(row(name), DType.FLOAT32, kind, operand, EXTREME, (COLUMNS,), accumulate)


TOP, LESS = fold("m", "max", point("x")), of("d", "sub", point("x"), row("m"))
POWER, TOTAL = of("e", "exp", point("d")), fold("s", "sum", point("e"))
SHARE, OUT = of("y", "div", point("e"), row("s")), Copy(point("out"), point("y"), WHOLE)
SOFTMAX: list[Statement] = [TOP, LESS, POWER, TOTAL, SHARE, OUT]


def test_softmax_tells_all() -> None:
    found = facts_of(SOFTMAX, {"out"})
    assert found == Facts(frozenset({"m"}), frozenset({"d"}), frozenset({"e"}))


@pytest.mark.parametrize(
    ("statements", "seen"),
    [
        (SOFTMAX, {"out", "m"}),
        (SOFTMAX, {"out", "d"}),
        (SOFTMAX, {"out", "e"}),
        ([TOP, LESS, POWER, TOTAL, Copy(point("out"), point("e"), WHOLE)], {"out"}),
        ([*SOFTMAX, of("greatest", "eq", point("x"), row("m"))], {"out", "greatest"}),
        ([TOP, LESS, POWER, fold("s", "sum", point("z")), SHARE, OUT], {"out"}),
        ([TOP, LESS, of("e", "maximum", point("d"), point("z")), fold("s", "any", point("e")), SHARE, OUT], {"out"}),
        ([TOP, LESS, POWER, TOTAL, of("y", "where", point("c"), point("e"), row("s")), OUT], {"out"}),
        ([TOP, LESS, of("e", "exp", Access("d", (dims.symbol("j"), dims.symbol("i")))), TOTAL, SHARE, OUT], {"out"}),
        ([fold("m", "max", point("x"), accumulate=True), LESS, POWER, TOTAL, SHARE, OUT], {"out"}),
    ],
)
def test_a_fold_whose_nan_shows_keeps_its_test(statements: list[Statement], seen: set[str]) -> None:
    assert not facts_of(statements, seen).blind


def test_one_blind_fold_does_not_cover_another() -> None:
    """Two maxima that a sum covers; and two of which the second shows what the first one passes over."""
    again = [fold("n", "max", point("e")), of("z", "div", point("y"), row("n")), Copy(point("out"), point("z"), WHOLE)]
    found = facts_of([TOP, LESS, POWER, TOTAL, SHARE, *again], {"out"})
    assert found.blind == {"m", "n"}
    shown = [TOP, LESS, fold("n", "max", point("d")), of("y", "sub", point("d"), row("n")), OUT]
    assert facts_of(shown, {"out"}).blind == {"m"}


def test_bounds_need_the_row_itself() -> None:
    other = of("d", "sub", point("z"), row("m"))
    assert facts_of([TOP, other, POWER, TOTAL, SHARE, OUT], {"out"}).falling == set()
    least = [fold("m", "min", point("x")), of("d", "sub", row("m"), point("x"))]
    assert facts_of([*least, POWER, TOTAL, SHARE, OUT], {"out"}).falling == {"d"}
    assert facts_of([], {"out"}) is NOTHING


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that another setting made is not found."""
    monkeypatch.setenv("AUTOFUSION_CACHE_DIR", "")
    cache.default_cache().clear()


# -- what it makes shorter, against the reference ----------------------------------------------------------------------
def _soft(x: Any) -> Any:
    return softmax(x, axis=-1)


def _log_sum(x: Any) -> Any:
    top = x.max(axis=-1, keepdims=True)
    return log(exp(x - top).sum(axis=-1, keepdims=True)) + top


def _shown(x: Any) -> Any:
    top = x.max(axis=-1, keepdims=True)
    return softmax(x, axis=-1), top, x >= top


def _chosen(x: Any) -> Any:
    power = exp(x - x.max(axis=-1, keepdims=True))
    return where(x > 0.0, power, power / power.sum(axis=-1, keepdims=True))


def _least(x: Any) -> Any:
    power = exp(x.min(axis=-1, keepdims=True) - x)
    return power / power.sum(axis=-1, keepdims=True)


def _twice(x: Any) -> Any:
    y = softmax(x * 3.0, axis=-1)
    return y / y.max(axis=-1, keepdims=True)


def _columns(x: Any) -> Any:
    return softmax(x, axis=0)


FUNCTIONS = (_soft, _log_sum, _shown, _chosen, _least, _twice, _columns, lambda x: log_softmax(x, axis=-1))


def rows(kind: str, dtype: Any = np.float32) -> Array:
    x = np.random.default_rng(2).normal(0, 3, (9, 333)).astype(dtype)
    if kind == "nan":
        x[1, 17], x[2, 0], x[3, -1], x[4] = np.nan, np.nan, np.nan, np.nan
    elif kind == "infinite":
        x[1, 5], x[2], x[3, 7:200], x[4, 9] = np.inf, -np.inf, -np.inf, -np.inf
        x[5, 3], x[5, 4] = np.inf, np.nan
    elif kind == "far":
        x[1:4] *= 40
        x[5], x[6] = -3e38, 1e-41
        x[7, 20] = 3e38
    return x


def compiled(function: Callable[..., Any], x: Array) -> tuple[Any, Any]:
    graph = tracer.trace(function, [("x", dtypes.of(x), x.shape, element_strides(x))]).graph
    return graph, api.compile_graph(graph)


@pytest.mark.parametrize("kind", ["plain", "nan", "infinite", "far"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_against_the_reference(
    function: Callable[..., Any], kind: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = rows(kind, dtype)
    graph, run = compiled(function, x)
    found = run(x)
    with np.errstate(all="ignore"):
        wanted = evaluate.run(graph, [x])
    monkeypatch.setattr(render, "facts_of", lambda *_: NOTHING)
    cache.default_cache().clear()
    plain = compiled(function, x)[1](x)
    many = lambda values: values if isinstance(values, tuple | list) else (values,)  # noqa: E731
    for one, two, reference in zip(many(found), many(plain), many(wanted), strict=True):
        assert np.array_equal(one, two, equal_nan=one.dtype.kind == "f")
        assert np.array_equal(np.isnan(one), np.isnan(reference))
        np.testing.assert_allclose(one, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [256, 300, 1024, 1031])
def test_rows_at_any_place_of_a_line(width: int) -> None:
    """The elements before the first cache line are taken apart: the same bits for any address of the array."""
    values = np.random.default_rng(4).normal(0, 3, (5, width)).astype(np.float32)
    values[2, 0], values[3, -1], values[4, 11] = 50, 50, np.nan
    run = compiled(_soft, values)[1]
    wanted = run(values)
    raw = np.full(values.nbytes + 256, 0xFF, np.uint8)  # NaN around
    start = -raw.ctypes.data % 64
    for shift in (*range(0, 64, 4), 1, 2, 35):
        moved = raw[start + 64 + shift : start + 64 + shift + values.nbytes].view(np.float32).reshape(values.shape)
        moved[...] = values
        assert np.array_equal(run(moved), wanted, equal_nan=True), shift


def test_quotients_are_rounded_as_division_rounds() -> None:
    """Row by row, by the reciprocal and its rest: every bit, for divisors and dividends of all sizes and edges."""
    rng = np.random.default_rng(6)
    x = (rng.integers(1, 2**24, (4000, 64)) * 2.0 ** rng.integers(-149, 100, (4000, 64))).astype(np.float32)
    x[:, :24] = rng.uniform(0, 1, (4000, 24))
    x[::7, 3], x[::5, 9], x[::11, 30], x[::13, 31], x[::17, 32] = 0.0, -0.0, np.nan, np.inf, 1e-45
    s = (rng.integers(2**23, 2**24, (4000, 1)) * 2.0 ** rng.integers(-60, 10, (4000, 1))).astype(np.float32)
    s[:64, 0] = 1 + np.arange(64) * np.float32(2.0**-23)
    s[64:128, 0] = 2 - (1 + np.arange(64)) * np.float32(2.0**-23)
    s[128:134, 0] = [0.0, np.inf, np.nan, -3.0, 1e-40, -0.0]
    specs = [(n, dtypes.of(a), a.shape, element_strides(a)) for n, a in (("x", x), ("s", s))]
    run = api.compile_graph(tracer.trace(lambda x, s: x / s, specs).graph)
    with np.errstate(all="ignore"):
        assert np.array_equal(run(x, s), x / s, equal_nan=True)
