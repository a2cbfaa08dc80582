"""Attention by `torch.compile`, forward and backward, against eager mode."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the frontend is PyTorch's; extra `torch`")

from autofusion.frontends.torch import attention  # noqa: E402
from autofusion.torch import Backend  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")

F = torch.nn.functional
ROWS, COLUMNS, HEAD = 5, 7, 8


def operands(heads: int, groups: int, dtype: Any, rows: int = ROWS, columns: int = COLUMNS) -> list[Any]:
    torch.manual_seed(0)
    shapes = (2, heads, rows, HEAD), (2, groups, columns, HEAD), (2, groups, columns, HEAD)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def hidden(dtype: Any) -> Any:
    """A mask that hides one row whole, and some of another."""
    mask = torch.ones(ROWS, COLUMNS, dtype=torch.bool)
    mask[1], mask[2, 3:] = False, False
    return mask if dtype is torch.bool else torch.zeros(ROWS, COLUMNS, dtype=dtype).masked_fill(~mask, float("-inf"))


CASES: dict[str, Any] = {
    "plain": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "scaled": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
    "masked": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=hidden(torch.bool)),
    "added": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=hidden(q.dtype)),
    "groups": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    "groups, masked": lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, attn_mask=hidden(torch.bool), enable_gqa=True
    ),
    "groups, a mask for each head": lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, attn_mask=hidden(q.dtype).expand(2, 6, ROWS, COLUMNS), enable_gqa=True
    ),
    "one group": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
}
GROUPS = {"groups": 3, "groups, masked": 2, "groups, a mask for each head": 3, "one group": 1}
TOLERANCES = {torch.float32: (2e-6, 2e-5), torch.float64: (1e-14, 1e-13), torch.bfloat16: (2e-2, 6e-2)}


def without_fallback(backend: Backend) -> bool:
    return ", 0 operators in PyTorch" in str(backend.explain())


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(name: str, dtype: Any) -> None:
    """Also of rows that a mask hides whole: 0, and so are their gradients."""
    run, backend = CASES[name], Backend()
    fast = torch.compile(run, backend=backend)
    given = operands(6, GROUPS.get(name, 6), dtype)
    with torch.no_grad():
        expected, found = run(*given), fast(*given)
    forward, backward = TOLERANCES[dtype]
    torch.testing.assert_close(found, expected, rtol=forward, atol=forward)
    assert found.stride() == expected.stride()
    grad = torch.randn_like(expected)
    gradients = []
    for each in (run, fast):
        for operand in given:
            operand.grad = None
        each(*given).backward(grad)
        gradients.append([operand.grad for operand in given])
    for ours, eager in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours, eager, rtol=backward, atol=backward)
    assert without_fallback(backend)


def test_open_rows() -> None:
    """Of the queries and of the keys, with heads that share keys."""
    run, backend = CASES["groups"], Backend()
    fast = torch.compile(run, backend=backend, dynamic=True)
    for rows, columns in ((4, 9), (6, 3), (11, 12)):
        given = operands(6, 3, torch.float32, rows, columns)
        for each in given:
            for axis in (0, 1, 3):
                torch._dynamo.mark_static(each, axis)
        with torch.no_grad():
            torch.testing.assert_close(fast(*given), run(*given), rtol=2e-6, atol=2e-6)
    assert without_fallback(backend)
    assert "0 recompiles" in str(backend.explain())


def test_scores_that_would_fill_the_memory_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel for the backward pass holds no scores."""
    monkeypatch.setattr(attention, "STORED", 64)
    given = operands(6, 6, torch.float32)
    backend = Backend()
    torch.compile(CASES["plain"], backend=backend)(*given).sum().backward()
    text = str(backend.explain())
    assert "would be put into memory" in text
    assert "_scaled_dot_product_flash_attention_for_cpu_backward" in text
