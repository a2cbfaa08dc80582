"""ATen products, convolutions and attention."""

from __future__ import annotations

from typing import Any

from autofusion.dtypes import DType
from autofusion.frontends.torch.adapter import Unmapped
from autofusion.frontends.torch.call import Call
from autofusion.graph.ir import Value


def _product(n: Call, a: Value, b: Value) -> Value:
    if a.dtype not in (DType.INT32, DType.INT64) and not a.dtype.is_float:
        raise Unmapped(f"{n.op} of {a.dtype}")
    return n.F.matmul(a, b)


def matmul(n: Call) -> Value:
    """mm, bmm."""
    a, b = list(n.given.values())[:2]
    return _product(n, a, b)


def matrix_vector(n: Call) -> Value:
    a, b = n["self"], n["vec"]
    return n.reshape(_product(n, a, n.reshape(b, (*b.shape, 1))), a.shape[:1])


def dot(n: Call) -> Value:
    a, b = n["self"], n["tensor"]
    return n.reshape(_product(n, n.reshape(a, (1, *a.shape)), n.reshape(b, (*b.shape, 1))), ())


def addmm(n: Call) -> Value:
    """beta · self + alpha · mat1 mat2; with beta 0 what self holds does not matter."""
    a, b = list(n.given.values())[1:3]
    alpha, beta = n["alpha"], n["beta"]
    dtype = n.result.dtype
    inner = dtype.compute if dtype.is_float else dtype
    made = n.cast(_product(n, a, b), inner)
    if alpha != 1:
        made = n.F.mul(made, n.scalar(alpha, inner))
    if beta != 0:
        shift = n.cast(n["self"], inner)
        made = n.F.add(made, shift if beta == 1 else n.F.mul(shift, n.scalar(beta, inner)))
    return n.cast(made, dtype)


def addmv(n: Call) -> Value:
    a, b = n["mat"], n["vec"]
    dtype = n.result.dtype
    inner = dtype.compute if dtype.is_float else dtype
    made = n.cast(n.reshape(_product(n, a, n.reshape(b, (*b.shape, 1))), a.shape[:1]), inner)
    if n["alpha"] != 1:
        made = n.F.mul(made, n.scalar(n["alpha"], inner))
    if n["beta"] != 0:
        shift = n.cast(n["self"], inner)
        made = n.F.add(made, shift if n["beta"] == 1 else n.F.mul(shift, n.scalar(n["beta"], inner)))
    return n.cast(made, dtype)


def convolution(n: Call) -> Value:
    """convolution.default, both directions."""
    x, w, bias = n["input"], n["weight"], n["bias"]
    rank = len(x.shape) - 2
    operands = [x, w] + ([bias] if bias is not None else [])
    stride, padding, dilation = (_each(n[name], rank) for name in ("stride", "padding", "dilation"))
    common: dict[str, Any] = {
        "strides": stride,
        "pads": (*padding, *padding),
        "dilations": dilation,
        "groups": n["groups"],
    }
    if n["transposed"]:
        return n.F.conv_transpose(*operands, **common, output_padding=_each(n["output_padding"], rank))
    return n.F.conv(*operands, **common)


def _each(listed: Any, rank: int) -> tuple[int, ...]:
    found = tuple(listed)
    return found * rank if len(found) == 1 else found


def max_pool(n: Call) -> list[Value | None]:
    """max_pool2d_with_indices where nothing reads the positions."""
    if n.used[1]:
        raise Unmapped("the positions of a max pool's values are not compiled")
    x = n["self"]
    kernel = tuple(n["kernel_size"])
    rank = len(kernel)
    lead = x.shape[: len(x.shape) - rank]
    batched = n.reshape(x, (1, *x.shape)) if len(lead) == 1 else x
    padding = _each(n["padding"], rank)
    made = n.F.max_pool(
        batched,
        kernel=_each(kernel, rank),
        strides=_each(n["stride"] or kernel, rank),
        pads=(*padding, *padding),
        dilations=_each(n["dilation"], rank),
        ceil_mode=bool(n["ceil_mode"]),
    )
    return [n.reshape(made, made.shape[1:]) if len(lead) == 1 else made, None]


def average_pool(n: Call) -> Value:
    """avg_pool2d, avg_pool3d."""
    x = n["self"]
    kernel = tuple(n["kernel_size"])
    rank = 2 if "2d" in n.op else 3
    kernel = _each(kernel, rank)
    lead = x.shape[: len(x.shape) - rank]
    if n["divisor_override"] is not None:
        raise Unmapped("a pool with a divisor of its own")
    wide = n.cast(x, x.dtype.compute)
    batched = n.reshape(wide, (1, *x.shape)) if len(lead) == 1 else wide
    padding = _each(n["padding"], rank)
    made = n.F.average_pool(
        batched,
        kernel=kernel,
        strides=_each(n["stride"] or kernel, rank),
        pads=(*padding, *padding),
        ceil_mode=bool(n["ceil_mode"]),
        count_include_pad=bool(n["count_include_pad"]),
    )
    return n.cast(n.reshape(made, made.shape[1:]) if len(lead) == 1 else made, x.dtype)


def attention(n: Call) -> list[Value | None]:
    """_scaled_dot_product_flash_attention_for_cpu without dropout: softmax(q kᵀ · scale + mask) v."""
    q, k, v = n["query"], n["key"], n["value"]
    if n["dropout_p"]:
        raise Unmapped("attention with dropout")
    if n.used[1]:
        raise Unmapped("the logarithm of attention's sums is not compiled")
    inner = q.dtype.compute
    head = q.shape[-1]
    if not isinstance(head, int):
        raise Unmapped("attention over heads of open size")
    scale = float(n["scale"]) if n["scale"] is not None else head**-0.5
    rank = len(k.shape)
    axes = [*range(rank - 2), rank - 1, rank - 2]
    scores = n.F.matmul(n.cast(q, inner), n.transpose(n.cast(k, inner), axes))
    scores = n.F.mul(scores, n.scalar(scale, inner))
    if n["is_causal"]:
        rows, columns = scores.shape[-2:]
        row = n.F.iota(shape=(rows, columns), axis=0, dtype=DType.INT64)
        column = n.F.iota(shape=(rows, columns), axis=1, dtype=DType.INT64)
        scores = n.F.where(n.F.le(column, row), scores, n.scalar(float("-inf"), inner))
    mask = n["attn_mask"]
    if mask is not None:
        if mask.dtype is DType.BOOL:
            scores = n.F.where(mask, scores, n.scalar(float("-inf"), inner))
        else:
            scores = n.F.add(scores, n.cast(mask, inner))
    weights = n.F.softmax(scores, axis=-1)
    return [n.cast(n.F.matmul(weights, n.cast(v, inner)), q.dtype), None]
