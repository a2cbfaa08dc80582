"""What kernels check while they run: indices out of range and integer divisors of zero raise what eager mode raises,
where eager mode does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the frontend is PyTorch's; extra `torch`")

from autofusion.torch import Backend  # noqa: E402

ROWS = 5
# Of a table of ROWS rows and a vector of indices.
REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i[:, None], 0),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 7.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], torch.ones(len(i), 1)),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i[:, None], torch.ones(len(i), 1), "amax"),
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(len(i), 3)),
    "index_copy": lambda x, i: x.index_copy(0, i, torch.ones(len(i), 3)),
    "index_reduce": lambda x, i: x.index_reduce(0, i, torch.ones(len(i), 3), "mean"),
    "nll_loss": lambda x, i: torch.nn.functional.nll_loss(x.t()[:1].expand(len(i), ROWS).log_softmax(-1), i),
    "cross_entropy": lambda x, i: torch.nn.functional.cross_entropy(x.t()[:1].expand(len(i), ROWS), i),
}
WRAPPED: dict[str, Callable[[Any, Any], Any]] = {
    "index": lambda x, i: x[i],
    "two indices": lambda x, i: x[i, i * 0 - 1],
    "take": lambda x, i: torch.take(x, i * 3),
    "index_put": lambda x, i: x.index_put((i,), torch.tensor(3.0)),
    "index_put_accumulate": lambda x, i: x.index_put((i,), torch.tensor(3.0), accumulate=True),
    "index_fill": lambda x, i: x.index_fill(0, i, 5.0),
    "put": lambda x, i: x.put(i * 3, torch.ones(len(i))),
}


def outcome(function: Any, *arguments: Any) -> Any:
    """What it gives, or the exception."""
    try:
        return function(*arguments)
    except (IndexError, RuntimeError) as error:
        return error


@pytest.mark.parametrize("dynamic", [False, True], ids=["known sizes", "open sizes"])
@pytest.mark.parametrize("at", [[-1], [0, 4, -5], [5], [1, -6]], ids=str)
@pytest.mark.parametrize("name", [*REFUSED, *WRAPPED])
def test_indices_are_refused_where_eager_mode_refuses_them(name: str, at: list[int], dynamic: bool) -> None:
    function = {**REFUSED, **WRAPPED}[name]
    x, index = torch.arange(15.0).reshape(ROWS, 3), torch.tensor(at)
    torch._dynamo.reset()
    expected = outcome(function, x, index)
    found = outcome(torch.compile(function, backend=Backend(), dynamic=dynamic), x, index)
    if isinstance(expected, Exception):
        assert isinstance(found, type(expected)), repr(found)
    else:
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("ignored", [-100, -1, 1])
def test_targets_that_are_ignored_may_be_negative(ignored: int) -> None:
    def loss(x: Any, i: Any) -> Any:
        return torch.nn.functional.cross_entropy(x, i, ignore_index=ignored)

    x, target = torch.randn(4, 3, requires_grad=True), torch.tensor([0, ignored, 2, ignored])
    torch._dynamo.reset()
    expected, found = loss(x, target), torch.compile(loss, backend=Backend())(x, target)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(each, x)[0] for each in (found, expected)))


DIVISIONS: dict[str, Callable[[Any, Any], Any]] = {
    "floor_divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "fmod": torch.fmod,
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", DIVISIONS)
def test_integers_divided_by_zero_raise(name: str, dtype: Any) -> None:
    function, backend = DIVISIONS[name], Backend()
    a, b = torch.tensor([[7, 5, 100], [1, 0, 3]], dtype=dtype), torch.tensor([2, 3, 5], dtype=dtype)
    torch._dynamo.reset()
    call = torch.compile(function, backend=backend)
    torch.testing.assert_close(call(a, b), function(a, b))
    bad = torch.tensor([2, 0, 5], dtype=dtype)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        function(a, bad)
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError: aten\..*element 1 of the divisor is 0"):
        call(a, bad)
    torch.testing.assert_close(call(a, b), function(a, b))
    assert not backend.explain().fallbacks


@pytest.mark.parametrize("name", DIVISIONS)
def test_divisors_that_are_numbers(name: str) -> None:
    function, a = DIVISIONS[name], torch.tensor([7, -5, 100])
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(lambda a: function(a, -3), backend=Backend())(a), function(a, -3))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.compile(lambda a: function(a, 0), backend=Backend())(a)
    nothing = torch.zeros(0, dtype=torch.int64)
    torch.testing.assert_close(torch.compile(function, backend=Backend())(nothing, a[:1] * 0), nothing)


def test_a_failed_check_names_the_operator_the_position_and_the_extent() -> None:
    torch._dynamo.reset()
    call = torch.compile(lambda x, i: torch.nn.functional.embedding(i, x) * 2, backend=Backend())
    with pytest.raises(IndexError, match=r"aten\.embedding\.default .*index at position 2 is .* an axis of 5"):
        call(torch.zeros(5, 3), torch.tensor([0, 1, 7]))
    call = torch.compile(lambda x, i: x.gather(1, i) * 2, backend=Backend())
    with pytest.raises(RuntimeError, match=r"aten\.gather\.default .*index at position 3 is .* an axis of 3"):
        call(torch.zeros(5, 3), torch.tensor([[0, 1], [2, -1]]))
