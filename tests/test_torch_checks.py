"""What kernels check while they run: indices out of range raise what eager mode raises, where eager mode does."""

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
