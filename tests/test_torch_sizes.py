"""A compiled module refuses open sizes for which `torch.export` did not trace it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: python -m pip install torch")

import autofusion  # noqa: E402
from autofusion.errors import ArgumentError, AutofusionError  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
]


AUTO, N = torch.export.Dim.AUTO, torch.export.Dim("n", min=3, max=9)
ONE: dict[
    str, tuple[Callable[[Any], Any], Any, list[int], list[int]]
] = {  # what is computed, the dim, sizes in and out
    "branch above": (lambda x: x * 2 if x.shape[0] > 4 else x * 3, AUTO, [5, 6, 40], [4, 3]),
    "branch below": (lambda x: x * 2 if x.shape[0] < 8 else x * 3, AUTO, [2, 5, 7], [8, 9]),
    "even": (lambda x: x * 2 if x.shape[0] % 2 == 0 else x * 3, AUTO, [2, 8, 12], [3, 7]),
    "not seven": (lambda x: x * 2 if x.shape[0] != 7 else x * 3, AUTO, [2, 6, 8], [7]),
    "slice": (lambda x: x[:5] * 2, AUTO, [5, 7, 20], [3]),
    "range": (lambda x: x * 2 + x.sum(), N, [3, 5, 9], [2, 10]),
    "divided": (lambda x: x.view(-1, 2, 4) * 2, AUTO, [4, 6, 20], [3, 7]),
    "PyTorch in between": (lambda x: torch.sort(x * 2 if x.shape[0] > 4 else x * 3)[0] + 1, AUTO, [5, 9], [3]),
    "a view alone": (lambda x: x.t() if x.shape[0] > 4 else x, AUTO, [5, 9], [3]),
}


class Of(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


@pytest.mark.parametrize("kind", ONE)
def test_sizes_are_those_of_the_path_that_was_traced(kind: str) -> None:
    function, dim, fine, wrong = ONE[kind]
    module = autofusion.compile(Of(function), (torch.randn(6, 4),), dynamic=(({0: dim},),))
    for n in (*fine, *wrong, *fine):
        x = torch.randn(n, 4)
        if n in fine:
            torch.testing.assert_close(module(x), function(x))
        else:
            with pytest.raises(ArgumentError, match=rf"compiled for sizes with .* is {n} \(argument 0, axis 0\)"):
                module(x)


def test_checks_of_sizes_are_native() -> None:
    module = autofusion.compile(Of(ONE["branch above"][0]), (torch.randn(6, 4),), dynamic=(({0: AUTO},),))
    for n in (5, 9, 30):
        module(torch.randn(n, 4))
    assert module.program.launches[0].compiled.executable.direct.calls == 3


TWO: dict[str, Callable[[Any, Any], Any]] = {
    "more": lambda x, y: x * 2 if x.shape[0] > y.shape[0] else x * 3,
    "other": lambda x, y: x * 2 if x.shape[0] != y.shape[0] else x * 3,
    "product": lambda x, y: x * 2 if x.shape[0] * y.shape[0] >= 20 else x * 3,
}


@pytest.mark.parametrize("kind", TWO)
def test_sizes_are_compared_as_in_the_trace(kind: str) -> None:
    function = TWO[kind]
    module = autofusion.compile(Of(function), (torch.ones(6, 2), torch.ones(5, 2)), dynamic=(({0: AUTO}, {0: AUTO}),))
    refused = 0
    for n in (3, 6, 9):
        for m in (2, 3, 5, 6, 10):
            x, y = torch.randn(n, 2), torch.randn(m, 2)
            try:
                found = module(x, y)
            except ArgumentError:
                refused += 1
            else:
                torch.testing.assert_close(found, function(x, y))
                torch.testing.assert_close(found, x * 2)
    assert 0 < refused < 15


def test_a_size_that_is_a_number() -> None:
    function = lambda x, k: x * k if k > 2 else x + k  # noqa: E731
    module = autofusion.compile(Of(function), (torch.ones(6, 2), 5), dynamic=(({0: AUTO}, AUTO),))
    x = torch.randn(3, 2)
    for k in (3, 9):
        torch.testing.assert_close(module(x, k), x * k)
    with pytest.raises(ArgumentError, match=r"compiled for sizes with .* is 1"):
        module(x, 1)


class Halves(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.reshape(2, -1, 4).sum(0)


class Shifted(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x[1:] + y


def test_an_extent_that_is_a_multiple() -> None:
    compiled = autofusion.compile(Halves(), (torch.ones(8, 4),), dynamic=({0: 2 * torch.export.Dim("h")},))
    for rows in (8, 2, 30):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), Halves()(x))
    with pytest.raises(ArgumentError, match=r"x: axis 0 is 7, expected s\d+\*2"):
        compiled(torch.randn(7, 4))


def test_an_extent_that_is_one_more() -> None:
    size = torch.export.Dim("h")
    given = torch.ones(9, 4), torch.ones(8, 4)
    compiled = autofusion.compile(Shifted(), given, dynamic=({0: size + 1}, {0: size}))
    for rows in (8, 4, 1):
        x, y = torch.randn(rows + 1, 4), torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x, y), Shifted()(x, y))
    with pytest.raises(ArgumentError):
        compiled(torch.randn(6, 4), torch.randn(4, 4))


def test_bounds_of_a_size_that_only_a_multiple_tells() -> None:
    compiled = autofusion.compile(
        Halves(), (torch.ones(8, 4),), dynamic=({0: 2 * torch.export.Dim("h", min=3, max=9)},)
    )
    for rows in (6, 18):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), Halves()(x))
    for rows in (4, 20):
        with pytest.raises(ArgumentError):
            compiled(torch.randn(rows, 4))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x if x.sum() > 0 else -x, "data-dependent"),
        (lambda x: x @ torch.ones(3, 3), r"\[2, 4\] X \[3, 3\]"),
    ],
    ids=["data decide", "shapes"],
)
def test_what_cannot_be_traced_is_one_clear_error(function: Any, why: str) -> None:
    with pytest.raises(AutofusionError, match=rf"^torch.export cannot trace Of: .*{why}") as found:
        autofusion.compile(Of(function), (torch.ones(2, 4),))
    assert "\n" not in str(found.value)
    assert found.value.__cause__ is not None
