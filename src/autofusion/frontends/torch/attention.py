"""ATen attention on CPUs, forward and backward.

Queries may have a multiple of the keys' heads: those that share a key are rows of one product.

    q [batch, heads, rows, head]    k, v [batch, groups, columns, head]    mask: broadcasts to the scores
    scores [batch, heads, rows, columns] = q kᵀ · scale, and -inf where a mask hides
    out [batch, heads, rows, head] = softmax(scores) v

A row that the mask hides whole is 0 in the result and in all gradients, as it is in PyTorch's kernel.
"""

from __future__ import annotations

from autofusion.dims import Dim, multiply
from autofusion.dtypes import DType
from autofusion.frontends.torch.adapter import Unmapped
from autofusion.frontends.torch.call import Call, largest
from autofusion.frontends.torch.reductions import shielded_softmax
from autofusion.graph.ir import Value

STORED = 1 << 28  # bytes of scores that a backward pass may put into memory: PyTorch's kernel needs none


def attention(n: Call) -> list[Value | None]:
    """_scaled_dot_product_flash_attention_for_cpu without dropout: the result, and the logarithm of the sums."""
    scores = _scores(n)
    logarithm = None
    if n.used[1]:
        weights, logarithm = _with_logarithm(n, scores)
    elif n["attn_mask"] is None:
        weights = n.F.softmax(scores, axis=-1)
    else:
        weights = shielded_softmax(n, scores, -1)
    made = _apart(n, n.F.matmul(_together(n, weights), n.cast(n["value"], scores.dtype)))
    return [n.cast(made, n["query"].dtype), logarithm]


def attention_backward(n: Call) -> list[Value | None]:
    """Its gradients: the scores are computed again, and their powers from the logarithm of the sums."""
    scores = _scores(n)
    inner, size = scores.dtype, 1
    for extent in scores.shape:
        size = size * extent if isinstance(extent, int) else STORED + 1
    if size * inner.size > STORED:
        raise Unmapped(f"its scores {[str(extent) for extent in scores.shape]} would be put into memory")
    q, k, v, out, grad = (n.cast(n[name], inner) for name in ("query", "key", "value", "out", "grad_out"))
    weights = n.F.exp(n.F.sub(scores, n.reshape(n["logsumexp"], (*scores.shape[:-1], 1))))
    by_value = _apart(n, n.F.matmul(_together(n, grad), _turned(n, v)))
    along = n.F.sum(n.F.mul(grad, out), axes=(-1,), keepdims=True)
    slopes = n.F.mul(n.F.mul(weights, n.F.sub(by_value, along)), n.scalar(_scale(n), inner))
    slopes, weights = _together(n, slopes), _together(n, weights)
    found = (
        _apart(n, n.F.matmul(slopes, k)),
        n.F.matmul(_turned(n, slopes), _together(n, q)),
        n.F.matmul(_turned(n, weights), _together(n, grad)),
    )
    return [n.cast(each, n["query"].dtype) for each in found]


def _scores(n: Call) -> Value:
    q, k, mask = n["query"], n["key"], n["attn_mask"]
    if n["dropout_p"]:
        raise Unmapped("attention with dropout")
    inner = q.dtype.compute
    scores = _apart(n, n.F.matmul(_together(n, n.cast(q, inner)), _turned(n, n.cast(k, inner))))
    scores = n.F.mul(scores, n.scalar(_scale(n), inner))
    if n["is_causal"]:
        rows, columns = scores.shape[-2:]
        row = n.F.iota(shape=(rows, columns), axis=0, dtype=DType.INT64)
        column = n.F.iota(shape=(rows, columns), axis=1, dtype=DType.INT64)
        scores = n.F.where(n.F.le(column, row), scores, n.scalar(float("-inf"), inner))
    if mask is None:
        return scores
    if mask.dtype is DType.BOOL:
        return n.F.where(mask, scores, n.scalar(float("-inf"), inner))
    return n.F.add(scores, n.cast(mask, inner))


def _scale(n: Call) -> float:
    head = n["query"].shape[-1]
    if n["scale"] is not None:
        return float(n["scale"])
    if not isinstance(head, int):
        raise Unmapped("attention over heads of open size")
    return float(head**-0.5)


def _with_logarithm(n: Call, scores: Value) -> tuple[Value, Value]:
    """The softmax, and the logarithm of its sums: 0 for a row of nothing but -inf."""
    if scores.shape[-1] == 0:
        raise Unmapped("attention to nothing")
    top = n.F.max(scores, axes=(-1,), keepdims=True)
    top = n.F.maximum(top, n.scalar(-largest(scores.dtype), scores.dtype))
    powers = n.F.exp(n.F.sub(scores, top))
    total = n.F.sum(powers, axes=(-1,), keepdims=True)
    hidden = n.F.eq(total, n.scalar(0, scores.dtype))
    logarithm = n.F.where(hidden, total, n.F.add(top, n.F.log(total)))
    weights = n.F.div(powers, n.F.where(hidden, n.scalar(1, scores.dtype), total))
    return weights, n.reshape(logarithm, scores.shape[:-1])


# -- heads that share a key ------------------------------------------------------------------------------------------
def _shared(n: Call) -> int:
    """Heads of the queries for one of the keys."""
    heads, groups = n["query"].shape[1], n["key"].shape[1]
    if heads == groups:
        return 1
    if not isinstance(heads, int) or not isinstance(groups, int) or groups == 0 or heads % groups:
        raise Unmapped(f"attention of {heads} heads to {groups}")
    return heads // groups


def _together(n: Call, value: Value) -> Value:
    """[batch, heads, rows, …] as [batch, groups, shared · rows, …]."""
    batch, _, rows, last = value.shape
    return n.reshape(value, (batch, n["key"].shape[1], multiply(_shared(n), rows), last))


def _apart(n: Call, value: Value) -> Value:
    """[batch, groups, shared · rows, …] as [batch, heads, rows, …]."""
    batch, last = value.shape[0], value.shape[-1]
    rows: Dim = n["query"].shape[2]
    return n.reshape(value, (batch, n["query"].shape[1], rows, last))


def _turned(n: Call, value: Value) -> Value:
    return n.transpose(value, (0, 1, 3, 2))
