"""Dropout and other random operators: eager mode's numbers, its generator's state afterwards, and few launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: python -m pip install torch")

from autofusion.torch import Backend  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh")]
F = torch.nn.functional


def agree(function: Callable[[Any], Any], x: Any, dynamic: bool | None = None) -> list[int]:
    """Results, gradients and the generator's state are eager's, twice; the launches of each graph."""
    backend = Backend()
    called = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
    found = []
    for each in (function, called):
        torch.manual_seed(3)
        rows: list[Any] = []
        for _ in range(2):
            given = x.detach().clone(memory_format=torch.preserve_format).requires_grad_(x.requires_grad)
            made = each(given)
            if x.requires_grad:
                made.float().square().sum().backward()
                rows.append(given.grad)
            rows += [made.detach(), torch.get_rng_state(), torch.rand(2)]
        found.append(rows)
    for ours, theirs in zip(found[1], found[0], strict=True):
        wide = (
            {"rtol": 0.05, "atol": 0.05} if ours.dtype is torch.bfloat16 else {}
        )  # layers that are not rounded between
        torch.testing.assert_close(ours, theirs, **wide)
    zeros = [[row == 0 for row in rows if row.is_floating_point()] for rows in found]
    assert all(torch.equal(a, b) for a, b in zip(*zeros, strict=True)), "other elements were dropped"
    return [len(program.launches) for program in backend.explain().programs]


def layers(x: Any, p: float = 0.3) -> Any:
    for _ in range(4):
        x = F.dropout((x @ x.new_ones(x.shape[-1], x.shape[-1]) / 16).tanh(), p)
    return x * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "training"])
def test_dropout_ends_no_launch(dtype: Any, gradient: bool) -> None:
    x = torch.randn(8, 16, dtype=dtype, requires_grad=gradient)
    assert agree(layers, x) == [1] * (1 + gradient)


def test_nearly_all_or_none_dropped() -> None:
    for p in (0.0, 0.01, 0.99):
        assert agree(lambda x, p=p: layers(x, p), torch.randn(8, 16, requires_grad=True))[0] == 1
        torch._dynamo.reset()


def test_dropout_of_another_memory_format() -> None:
    x = torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last).requires_grad_()
    assert agree(lambda x: F.dropout(F.dropout(x.tanh(), 0.4).sin(), 0.2) + 1, x) == [1, 1]
    x = torch.randn(6, 8).t()
    assert agree(lambda x: F.dropout(F.dropout(x.tanh(), 0.4).sin(), 0.2) + 1, x) == [1]


def test_dropout_of_open_sizes_and_of_nothing() -> None:
    agree(layers, torch.randn(8, 16, requires_grad=True), dynamic=True)
    agree(lambda x: F.dropout(x.exp(), 0.4).sum() + F.dropout(x, 0.4, training=False).sum(), torch.randn(0, 4))


def test_draws_keep_their_order_among_random_operators() -> None:
    """Some read tensors that are computed before them; whatever was drawn first is drawn first."""

    def function(x: Any) -> Any:
        a = F.dropout(x.sin(), 0.3)
        b = torch.rand_like((a * 2).exp()) + torch.randn(16)
        c = F.dropout(b.cos(), 0.5) + a
        d = torch.bernoulli(c.sigmoid())
        return F.dropout(d + c, 0.2) * torch.rand(8, 1)

    agree(function, torch.randn(8, 16))


def test_draws_pass_what_draws_nothing() -> None:
    def function(x: Any) -> Any:
        for _ in range(3):
            x = F.dropout(x.sort(-1)[0].sin(), 0.3) + 1
        return x

    x = torch.randn(8, 16)
    assert agree(function, x) == [3]
    assert agree(lambda x: x.sort(-1)[0].sin() + x.exp(), x) == [1], "what reads only arguments comes first"


def test_checkpoints_draw_again_what_they_drew() -> None:
    from torch.utils.checkpoint import checkpoint

    agree(lambda x: checkpoint(layers, x, use_reentrant=False).exp(), torch.randn(8, 16, requires_grad=True))
