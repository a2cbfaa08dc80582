"""ATen products and convolutions."""

from __future__ import annotations

from typing import Any

from autofusion.dtypes import DType
from autofusion.frontends.torch.adapter import Unmapped
from autofusion.frontends.torch.call import Call, each_axis, static
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


def addbmm(n: Call) -> Value:
    """beta · self + alpha · the sum of the products."""
    a, b = n["batch1"], n["batch2"]
    dtype = n.result.dtype
    inner = dtype.compute if dtype.is_float else dtype
    made = n.F.sum(n.cast(_product(n, a, b), inner), axes=(0,), keepdims=False)
    if n["alpha"] != 1:
        made = n.F.mul(made, n.scalar(n["alpha"], inner))
    if n["beta"] != 0:
        shift = n.cast(n["self"], inner)
        made = n.F.add(made, shift if n["beta"] == 1 else n.F.mul(shift, n.scalar(n["beta"], inner)))
    return n.cast(n.expand(made, n.result.shape), dtype)


def distances(n: Call) -> Value:
    """_cdist_forward: the p-norm of the difference of each two rows."""
    a, b = n["x1"], n["x2"]
    left = n.reshape(a, (*a.shape[:-1], 1, a.shape[-1]))
    right = n.reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
    return _norm(n, n.F.sub(left, right), float(n["p"]))


def pair_distances(n: Call) -> Value:
    """_pdist_forward: the p-norm of the difference of each row and each later one."""
    (rows,) = static(n.x.shape[:1], "pdist's rows")
    if rows < 2:
        return n.full(0, n.result.shape, n.result.dtype)
    if rows > 64:
        raise Unmapped("pdist of more than 64 rows")
    columns = [n.F.iota(shape=(rows - 1 - i,), axis=0, dtype=DType.INT64) for i in range(rows - 1)]
    second = n.F.concat(*(n.F.add(c, n.scalar(i + 1, DType.INT64)) for i, c in enumerate(columns)), axis=0)
    first = n.F.concat(*(n.full(i, c.shape, DType.INT64) for i, c in enumerate(columns)), axis=0)
    return _norm(n, n.F.sub(n.F.gather(n.x, first, axis=0), n.F.gather(n.x, second, axis=0)), float(n["p"]))


def _norm(n: Call, x: Value, p: float) -> Value:
    """Along the last axis."""
    size, dtype = n.F.abs(x), x.dtype
    if x.shape[-1] == 0:
        return n.full(0.0, x.shape[:-1], dtype)
    if p == 0:
        size = n.cast(n.F.ne(size, n.scalar(0, dtype)), dtype)
    elif p == float("inf"):
        return n.F.max(size, axes=(-1,), keepdims=False)
    elif p == 2:
        size = n.F.mul(size, size)
    elif p != 1:
        size = n.F.pow(size, n.scalar(p, dtype))
    total = n.F.sum(size, axes=(-1,), keepdims=False)
    if p in (0, 1):
        return total
    return n.F.sqrt(total) if p == 2 else n.F.pow(total, n.scalar(1 / p, dtype))


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
    stride, padding, dilation = (each_axis(n[name], rank) for name in ("stride", "padding", "dilation"))
    common: dict[str, Any] = {
        "strides": stride,
        "pads": (*padding, *padding),
        "dilations": dilation,
        "groups": n["groups"],
    }
    if n["transposed"]:
        return n.F.conv_transpose(*operands, **common, output_padding=each_axis(n["output_padding"], rank))
    return n.F.conv(*operands, **common)
