"""Dims: canonical forms keep values, and text reads back."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import unhurried

from autofusion import dims
from autofusion.dims import Dim, ceildiv, floordiv, maximum, minimum, modulo, parse, simplify, symbol
from autofusion.errors import FormatError, ShapeError

SIZES = ("n", "m")
AXES = {"i": 6, "j": 4, "k": symbol("n")}


@st.composite
def assignments(draw: st.DrawFn) -> dict[str, int]:
    values = {name: draw(st.integers(1, 9)) for name in SIZES}
    for axis, extent in AXES.items():
        values[axis] = draw(st.integers(0, dims.evaluate(extent, values) - 1))
    return values


def _positive(draw: st.DrawFn) -> Dim:
    """A divisor: an int, a size, or a product of them."""
    return draw(st.sampled_from([1, 2, 3, 4, 6, 64, symbol("n"), symbol("n") * 4, symbol("n") * symbol("m")]))


@st.composite
def expressions(draw: st.DrawFn, bounds: dims.Bounds | None = AXES, depth: int = 3) -> Dim:
    """Whatever operators make. Axes only with their bounds: a symbol without bounds is a size, at least 1."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        names = (*SIZES, *(bounds or ()))
        return draw(st.one_of(st.integers(-8, 70), st.sampled_from([symbol(name) for name in names])))
    below = expressions(bounds, depth - 1)
    left = draw(below)
    operation = draw(st.sampled_from(["+", "-", "*", "//", "%", "min", "max"]))
    if operation == "//":
        return floordiv(left, _positive(draw), bounds)
    if operation == "%":
        return modulo(left, _positive(draw), bounds)
    right = draw(below)
    if operation in ("min", "max"):
        return (minimum if operation == "min" else maximum)(left, right, bounds)
    return left + right if operation == "+" else left - right if operation == "-" else left * right


@unhurried
@given(expressions(None) | expressions(), assignments())
def test_simplify_keeps_the_value(dim: Dim, values: dict[str, int]) -> None:
    assert dims.evaluate(simplify(dim, AXES), values) == dims.evaluate(dim, values)


@pytest.mark.parametrize("bounds", [None, AXES])
@unhurried
@given(data=st.data(), values=assignments())
def test_operators_compute_what_they_say(
    bounds: dims.Bounds | None, data: st.DataObject, values: dict[str, int]
) -> None:
    a, b = (data.draw(expressions(bounds=bounds)) for _ in range(2))
    divisor = _positive(data.draw)
    x, y, d = (dims.evaluate(each, values) for each in (a, b, divisor))
    assert dims.evaluate(floordiv(a, divisor, bounds), values) == x // d
    assert dims.evaluate(modulo(a, divisor, bounds), values) == x % d
    assert dims.evaluate(minimum(a, b, bounds), values) == min(x, y)
    assert dims.evaluate(maximum(a, b, bounds), values) == max(x, y)
    assert dims.evaluate(ceildiv(a, divisor), values) == -(-x // d)
    assert dims.evaluate(a + b, values) == x + y
    assert dims.evaluate(a - b, values) == x - y
    assert dims.evaluate(a * b, values) == x * y


@unhurried
@given(expressions(), assignments())
def test_range_holds(dim: Dim, values: dict[str, int]) -> None:
    low, high = dims.range_of(dim, AXES)
    value = dims.evaluate(dim, values)
    assert low <= value
    assert high is None or value <= dims.evaluate(high, values)


@pytest.mark.parametrize("bounds", [None, AXES])
@unhurried
@given(data=st.data(), values=assignments())
def test_what_is_proven_is_true(bounds: dims.Bounds | None, data: st.DataObject, values: dict[str, int]) -> None:
    a, b = (data.draw(expressions(bounds=bounds)) for _ in range(2))
    if dims.at_least(a, b, bounds):
        assert dims.evaluate(a, values) >= dims.evaluate(b, values)


@unhurried
@given(expressions(None) | expressions())
def test_text_reads_back(dim: Dim) -> None:
    assert parse(str(dim)) == dim


def test_multiples_of_extremes_are_compared() -> None:
    i, n = dims.symbol("i"), dims.symbol("n")
    least, most = dims.minimum(i, n), dims.maximum(i, n)
    assert dims.minimum(i * 2, least * 2) == least * 2
    assert dims.maximum(i * 2, most * 2) == most * 2
    assert not dims.at_least(least * 2, i * 2)


@unhurried
@given(expressions(), assignments())
def test_text_of_bounded_forms_has_the_same_value(dim: Dim, values: dict[str, int]) -> None:
    assert dims.evaluate(parse(str(dim)), values) == dims.evaluate(dim, values)


@unhurried
@given(expressions(), st.integers(1, 9), assignments())
def test_substitute(dim: Dim, size: int, values: dict[str, int]) -> None:
    expected = dims.evaluate(dim, values | {"m": size})
    assert dims.evaluate(dims.substitute(dim, {"m": size}, AXES), values) == expected


@unhurried
@given(expressions(), assignments())
def test_coefficient_is_the_slope(dim: Dim, values: dict[str, int]) -> None:
    slope = dims.coefficient_of(dim, "i")
    if slope is not None:
        step = dims.evaluate(dim, values | {"i": 3}) - dims.evaluate(dim, values | {"i": 2})
        assert step == dims.evaluate(slope, values)


# -- answers that are kept -------------------------------------------------------------------------------------------
def forget() -> None:
    """Drop all answers."""
    for each in vars(dims).values():
        if hasattr(each, "cache_clear"):
            each.cache_clear()


def answers(a: Dim, b: Dim, divisor: Dim, bounds: dims.Bounds | None) -> list[object]:
    """All that is kept, with the terms: equal expressions have theirs in one order."""
    made: list[Dim] = [a + b, a * b, floordiv(a, divisor, bounds), modulo(a, divisor, bounds)]
    made += [minimum(a, b, bounds), maximum(a, b, bounds), dims.substitute(a, {"i": b, "m": 3}, bounds)]
    known = [dims.range_of(a, bounds), dims.at_least(a, b, bounds), sorted(dims.symbols(a))]
    return [*map(dims.terms_of, made), *map(str, made), *known]


@unhurried
@given(data=st.data())
def test_what_is_kept_is_what_would_be_found(data: st.DataObject) -> None:
    a, b = (data.draw(expressions(bounds=None) | expressions()) for _ in range(2))
    divisor = _positive(data.draw)
    narrow = data.draw(st.dictionaries(st.sampled_from(sorted(AXES)), st.integers(1, 80)))
    each = [None, AXES, narrow]  # one after another, so that an answer for other bounds would be found out
    kept = [answers(a, b, divisor, bounds) for bounds in each]
    for bounds, before in zip(each, kept, strict=True):
        forget()
        assert answers(a, b, divisor, bounds) == before


def test_bounds_may_change_behind_an_answer() -> None:
    bounds: dict[str, Dim] = {"i": 4}
    assert floordiv(i, 4, bounds) == 0
    bounds["i"] = 5
    assert str(floordiv(i, 4, bounds)) == "(i)//4"


i, j, n, x = map(symbol, "ijnx")


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (lambda: floordiv(i * 64 + j, 64, {"j": 64}), i),
        (lambda: modulo(i * 64 + j, 64, {"j": 64}), j),
        (lambda: (x // 4) * 4 + x % 4, x),
        (lambda: (x // n) * n + x % n, x),
        (lambda: (n * 4) // 4, n),
        (lambda: (n * 4) // n, 4),
        (lambda: (x // 4) // 8, x // 32),
        (lambda: n - n, 0),
        (lambda: minimum(n, n + 1), n),
        (lambda: maximum(n + 1, 0), n + 1),
        (lambda: minimum(maximum(n - 1, 0), n), maximum(n - 1, 0)),
        (lambda: floordiv(i * n + j, n, {"j": n}), i),
        (lambda: ceildiv(n * 4, 4), n),
    ],
)
def test_canonical_forms(dim: object, expected: Dim) -> None:
    assert dim() == expected  # type: ignore[operator]


def test_a_pickled_dim_is_the_same_in_another_process() -> None:
    """Hashes of names differ from process to process."""
    dim = minimum((n + 3) // 4 * 2 + j % n, i)
    assert hash(dim)
    code = (
        "import pickle, sys; from autofusion.dims import parse; kept = {parse(sys.argv[1]): 1};"
        "print(kept[pickle.loads(bytes.fromhex(sys.argv[2]))])"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(dim), pickle.dumps(dim).hex()]
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout == "1\n"


def test_evaluate_takes_arrays() -> None:
    positions = np.arange(6)
    found = dims.evaluate(minimum(i, n) + maximum(i % 4, n), {"i": positions, "n": 2})
    assert found.tolist() == [min(p, 2) + max(p % 4, 2) for p in range(6)]


@pytest.mark.parametrize("text", ["", "n+", "n/2", "f(n)", "2.5", "n//0", "4%0", "min(n)", "n;m", "(n", "import os"])
def test_bad_text_is_one_clear_error(text: str) -> None:
    with pytest.raises(FormatError):
        parse(text)


def test_undecidable_equalities_become_guards() -> None:
    with pytest.raises(ShapeError):
        dims.require_equal(n, 4, "axis 0")
    with dims.collect_guards() as guards:
        assert dims.require_equal(n, 4, "axis 0") == 4
        dims.require_equal(n, 4, "axis 1")
    assert guards == [(n, 4)]


def test_choices_of_minima_and_maxima() -> None:
    """Whether an extent may be another, for sizes that a guard names."""
    n, m = dims.symbol("n"), dims.symbol("m")
    least, most = dims.minimum(n, m), dims.maximum(dims.add(n, -1), 0)
    assert dims.may_be(least, n) and dims.may_be(least, m) and not dims.may_be(least, dims.add(n, m))
    assert dims.may_be(dims.add(dims.multiply(least, 2), most), dims.add(dims.multiply(n, 3), -1))
    assert not dims.may_be(n, m) and not dims.may_be(n, least)
    assert dims.may_be(dims.minimum(least, 512), 512)
    assert not dims.may_be(dims.multiply(dims.multiply(least, least), least), n, limit=4)
