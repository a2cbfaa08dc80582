"""Open sizes: what PyTorch's guards say of them reaches the shapes; what is compiled only where sizes are few."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: python -m pip install torch")

import autofusion  # noqa: E402
from autofusion.errors import ArgumentError  # noqa: E402
from autofusion.torch import Backend  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh")]


def agree(
    function: Callable[..., Any], make: Callable[[int], tuple[Any, ...]], sizes: tuple[int, ...], dynamic: Any = True
) -> None:
    """At each size as in eager mode, in one launch, and with fewer compiles than sizes. `dynamic=None`: only what
    changed between calls is open."""
    backend = Backend()
    called = torch.compile(function, backend=backend, dynamic=dynamic)
    with torch.no_grad():
        for size in sizes:
            given = make(size)
            torch.testing.assert_close(called(*given), function(*given))
    report = backend.explain()
    assert not report.fallbacks, report
    assert [len(program.launches) for program in report.programs] == [1] * len(report.programs), report
    assert len(report.programs) < len(sizes), report


class Positions(torch.nn.Module):
    """A buffer of positions, as many of them as there are tokens, as transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.arange(64)[None])
        self.embedding = torch.nn.Embedding(64, 8)

    def forward(self, x: Any) -> Any:
        return self.embedding(self.positions[:, : x.shape[1]]) + x


def test_a_part_of_a_buffer_has_the_extent_that_a_guard_says() -> None:
    agree(Positions(), lambda n: (torch.randn(2, n, 8),), (5, 7, 63, 31))


def test_a_part_of_an_argument_as_long_as_another() -> None:
    agree(
        lambda x, m: ((x.exp() * m[:, :, : x.shape[2]]).softmax(-1), m[:, :, : x.shape[2]].sum(2)),
        lambda n: (torch.randn(2, 3, n, 6), torch.randn(2, 3, 32, 6)),
        (5, 7, 31, 9),
    )


def test_several_parts_that_meet() -> None:
    agree(
        lambda x, a, b: a[: x.shape[0], : x.shape[1]] * b[1 : x.shape[0] + 1] + x,
        lambda n: (torch.randn(n, n + 2), torch.randn(40, 50), torch.randn(45, 1)),
        (5, 7, 31, 9),
    )


def test_what_a_guard_says_is_checked_where_a_module_is_compiled_alone() -> None:
    bound = torch.export.Dim("n", min=2, max=40)
    module = Positions()
    compiled = autofusion.compile(module, (torch.randn(2, 9, 8),), dynamic=({1: bound},))
    for size in (2, 40):
        x = torch.randn(2, size, 8)
        torch.testing.assert_close(compiled(x), module(x))
    with pytest.raises(ArgumentError):
        compiled(torch.randn(2, 65, 8))


# -- indices -----------------------------------------------------------------------------------------------------------
def put(x: Any, index: Any, value: Any) -> Any:
    made = x.clone()
    made[:, :, index] = value
    return made.exp(), x.index_copy(2, index, value) + 1


def test_a_cache_of_known_length_takes_any_number_of_tokens() -> None:
    agree(
        put,
        lambda n: (torch.randn(2, 3, 32, 4), torch.randperm(32)[:n], torch.randn(2, 3, n, 4)),
        (5, 7, 31, 9),
        dynamic=None,
    )


@pytest.mark.parametrize("accumulate", [False, True])
def test_few_indices_in_a_tensor_of_any_length(accumulate: bool) -> None:
    index = torch.tensor([2, 0, 2])
    agree(
        lambda x, v: torch.index_put(x, (index,), v, accumulate=accumulate) * 2,
        lambda n: (torch.randn(n, 4), torch.randn(4)),
        (5, 7, 31, 9),
        dynamic=None,
    )


@pytest.mark.parametrize("reduce", ["sum", "amax", "mean", None])
def test_scatters_of_any_length_over_few_places(reduce: str | None) -> None:
    def function(x: Any, index: Any, source: Any) -> Any:
        if reduce is None:
            return x.scatter(0, index[:3], source[:3])
        return x.scatter_reduce(0, index, source, reduce)

    agree(
        function,
        lambda n: (torch.randn(6, n), torch.randint(0, 6, (9, n)), torch.randn(9, n)),
        (5, 7, 31, 12),
        dynamic=None,
    )


def test_open_indices_of_open_places_are_pytorchs() -> None:
    """Comparing all with all would be quadratic; the reason says what of."""
    backend = Backend()
    called = torch.compile(lambda x, i, v: x.scatter_add(0, i, v), backend=backend, dynamic=True)
    for n in (5, 7):
        x, index, value = torch.randn(n), torch.randint(0, n, (3 * n + 1,)), torch.randn(3 * n + 1)
        torch.testing.assert_close(called(x, index, value), x.scatter_add(0, index, value))
    (found,) = backend.explain().fallbacks
    assert "places with" in found.reason and "open sizes" in found.reason


# -- numbers that are computed from sizes ------------------------------------------------------------------------------
NUMBERS: dict[str, Callable[[Any], Any]] = {
    "quotient": lambda x: x * (x.shape[0] / x.shape[1]),
    "root": lambda x: x / math.sqrt(x.shape[0]),
    "power": lambda x: (x @ x.t()) * x.shape[1] ** -0.5,
    "of doubles": lambda x: x.double() * (x.shape[0] / (x.shape[0] - 1.0)),
    "of bfloat16": lambda x: x.bfloat16() * (x.shape[0] / 3),
    "of integers": lambda x: (x * 9).long() * (x.shape[0] / 4),
    "exponent": lambda x: x.abs() ** (1 / x.shape[0]),
    "bounds": lambda x: x.clamp(-1 / x.shape[0], 2 / x.shape[1]),
    "factor of a summand": lambda x: torch.add(x, x.exp(), alpha=1 / x.shape[0]),
    "constant": lambda x: torch.full((3,), 1 / x.shape[0]) + x.sum(),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_that_are_computed_from_sizes(kind: str) -> None:
    agree(NUMBERS[kind], lambda n: (torch.randn(n, n + 2),), (5, 8, 13, 7))


def test_a_number_that_no_row_computes_is_pytorchs() -> None:
    backend = Backend()
    called = torch.compile(lambda x: x * round(x.shape[0] / 3) + 1, backend=backend, dynamic=True)
    for n in (5, 8):
        x = torch.randn(n, 3)
        torch.testing.assert_close(called(x), x * round(n / 3) + 1)
    assert backend.explain().fallbacks


def test_a_number_that_a_tensor_holds_is_pytorchs() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        called = torch.compile(lambda x, t: x * (t.item() / 3), backend=Backend(), dynamic=True)
        for n in (5, 8):
            x, t = torch.randn(n, 3), torch.tensor(n + 1)
            torch.testing.assert_close(called(x, t), x * (t.item() / 3))


# -- folds and pools ---------------------------------------------------------------------------------------------------
FOLDS: dict[str, Callable[[Any], Any]] = {
    "variance and mean": lambda x: torch.var_mean(x, (2, 3)),
    "deviation": lambda x: x.std(-1),
    "with no correction": lambda x: x.var((0, 2), correction=0),
    "more correction than elements": lambda x: x.var(-1, correction=6),
    "of bfloat16": lambda x: x.bfloat16().var((2, 3)),
    "group norm": torch.nn.GroupNorm(2, 4).requires_grad_(False),
    "instance norm": torch.nn.InstanceNorm2d(4),
    "batch norm": lambda x: torch.nn.functional.batch_norm(x, x.new_zeros(4), x.new_ones(4), training=True),
    "average pool": lambda x: torch.nn.functional.adaptive_avg_pool2d(x, (3, 2)),
    "maximum pool": lambda x: torch.nn.functional.adaptive_max_pool2d(x, (3, 2)),
    "one window": lambda x: torch.nn.functional.adaptive_max_pool2d(x, 1),
    "more windows than elements": lambda x: torch.nn.functional.adaptive_avg_pool2d(x, (9, 1)),
}


@pytest.mark.parametrize("kind", FOLDS)
def test_folds_over_open_extents(kind: str) -> None:
    agree(FOLDS[kind], lambda n: (torch.randn(2, 4, n, n + 1),), (5, 8, 13, 7))
