"""ATen reductions, scans and norms."""

from __future__ import annotations

from typing import Any

from autofusion.dims import Dim, floordiv, product
from autofusion.dtypes import DType
from autofusion.frontends.torch.adapter import Unmapped
from autofusion.frontends.torch.call import Call, Maker, largest
from autofusion.frontends.torch.pointwise import truth
from autofusion.graph.ir import Value


def _keep(n: Call) -> bool:
    return bool(n.given.get("keepdim") or False)


def _axes(n: Call) -> tuple[int, ...]:
    return n.axes() if "dim" in n.given else tuple(range(len(n.x.shape)))


def fold(row: str) -> Maker:
    """A row over axes at the result's type; with no axes left the operand itself."""

    def make(n: Call) -> Value:
        dtype = n.result.dtype
        inner = dtype.compute if dtype.is_float else dtype
        x = n.cast(truth(n, n.x) if dtype is DType.BOOL else n.x, inner)
        axes = _axes(n)
        if not axes:
            return n.F.copy(n.cast(x, dtype))
        return n.cast(n.row(row)(x, axes=axes, keepdims=_keep(n)), dtype)

    return make


def mean(n: Call) -> Value:
    dtype = n.result.dtype
    x, axes = n.cast(n.x, dtype.compute), _axes(n)
    return n.cast(n.F.mean(x, axes=axes, keepdims=_keep(n)) if axes else n.F.copy(x), dtype)


def extreme(row: str) -> Maker:
    """amax, amin."""

    def make(n: Call) -> Value:
        axes = _axes(n)
        return n.row(row)(n.x, axes=axes, keepdims=_keep(n)) if axes else n.F.copy(n.x)

    return make


def truths(row: str) -> Maker:
    """any, all."""

    def make(n: Call) -> Value:
        axes = _axes(n)
        x = truth(n, n.x)
        made = n.row(row)(x, axes=axes, keepdims=_keep(n)) if axes else n.F.copy(x)
        return n.cast(made, n.result.dtype)

    return make


def extreme_with_index(row: str, position: str) -> Maker:
    """max, min along one axis: values and where they are."""

    def make(n: Call) -> list[Value]:
        if not n.x.shape:
            return [n.F.copy(n.x), n.full(0, (), DType.INT64)]
        axis, keep = n.axis(), _keep(n)
        values = n.row(row)(n.x, axes=(axis,), keepdims=keep)
        return [values, n.cast(n.row(position)(n.x, axis=axis, keepdims=keep), DType.INT64)]

    return make


def position(row: str) -> Maker:
    """argmax, argmin; without an axis of the flattened tensor."""

    def make(n: Call) -> Value:
        if n["dim"] is None or not n.x.shape:
            flat = n.reshape(n.x, (product(n.x.shape),))
            made = n.row(row)(flat, axis=0, keepdims=False)
            return n.reshape(n.cast(made, DType.INT64), n.result.shape)
        return n.cast(n.row(row)(n.x, axis=n.axis(), keepdims=_keep(n)), DType.INT64)

    return make


def _correction(n: Call) -> float:
    if "unbiased" in n.given:
        return 1.0 if n["unbiased"] else 0.0
    found = n.given.get("correction")
    return 1.0 if found is None else float(found)


def _variance(n: Call, row: str) -> Value:
    """Where the correction leaves nothing, PyTorch divides by zero; a tensor without axes is one element."""
    dtype = n.result.dtype
    x, axes = n.cast(n.x, dtype.compute), _axes(n)
    if not axes:
        x, axes = n.reshape(x, (1,)), (0,)
    correction, count = _correction(n), product([x.shape[a] for a in axes])
    keep = _keep(n) and bool(n.x.shape)
    if correction == 0 or (isinstance(count, int) and correction.is_integer() and correction < count):
        return n.cast(n.row(row)(x, axes=axes, keepdims=keep, correction=int(correction)), dtype)
    apart = n.F.sub(x, n.F.mean(x, axes=axes, keepdims=True))
    total = n.F.sum(n.F.mul(apart, apart), axes=axes, keepdims=keep)
    made = n.F.div(total, _left(n, count, correction, x.dtype))
    return n.cast(n.F.sqrt(made) if row == "std" else made, dtype)


def _left(n: Call, count: Dim, correction: float, dtype: DType) -> Value:
    """The count less the correction, at least 0."""
    if isinstance(count, int):
        return n.scalar(max(count - correction, 0.0), dtype)
    apart = n.F.sub(n.scalar(count, DType.FLOAT64), n.scalar(correction, DType.FLOAT64))
    return n.cast(n.F.maximum(apart, n.scalar(0.0, DType.FLOAT64)), dtype)


def variance(n: Call) -> Value:
    return _variance(n, "var")


def deviation(n: Call) -> Value:
    return _variance(n, "std")


def variance_and_mean(n: Call) -> list[Value]:
    return [_variance(n, "var"), mean(n)]


def scan(row: str) -> Maker:
    """cumsum, cumprod at the result's type."""

    def make(n: Call) -> Value:
        dtype = n.result.dtype
        x = n.cast(n.x, dtype.compute if dtype.is_float else dtype)
        if not n.x.shape:
            return n.F.copy(n.cast(x, dtype))
        return n.cast(n.row(row)(x, axis=n.axis()), dtype)

    return make


def running(row: str) -> Maker:
    """cummax, cummin: values, and the last position so far that holds one."""

    def make(n: Call) -> list[Value]:
        if not n.x.shape:
            return [n.F.copy(n.x), n.full(0, (), DType.INT64)]
        axis = n.axis()
        x = n.cast(n.x, DType.UINT8) if n.x.dtype is DType.BOOL else n.x
        values = n.row(row)(x, axis=axis)
        hit = n.F.eq(x, values)
        if x.dtype.is_float:
            hit = n.F.logical_or(hit, n.F.isnan(x))
        shape = tuple(e if a == axis else 1 for a, e in enumerate(n.x.shape))
        along = n.F.iota(shape=shape, axis=axis, dtype=DType.INT64)
        return [n.cast(values, n.x.dtype), n.F.cummax(n.F.where(hit, along, n.scalar(0, DType.INT64)), axis=axis)]

    return make


def log_running_sum(n: Call) -> Value:
    """logcumsumexp: of each position over those up to it."""
    x = n.cast(n.x, n.x.dtype.compute)
    if not x.shape or 0 in x.shape:
        return n.F.copy(n.x)
    axis, rank = n.axis(), len(x.shape)
    extent = x.shape[axis]
    if not isinstance(extent, int) or extent > 256:
        raise Unmapped("logcumsumexp of a long axis")
    order = [*(a for a in range(rank) if a != axis), axis]
    turned = n.transpose(x, order)
    rows = n.reshape(turned, (*turned.shape[:-1], 1, extent))
    here = n.F.iota(shape=(extent, extent), axis=0, dtype=DType.INT64)
    there = n.F.iota(shape=(extent, extent), axis=1, dtype=DType.INT64)
    made = n.F.where(n.F.le(there, here), rows, n.scalar(float("-inf"), x.dtype))
    made = n.F.logsumexp(made, axes=(rank,), keepdims=False)
    return n.cast(n.transpose(made, [order.index(a) for a in range(rank)]), n.x.dtype)


def softmax(row: str) -> Maker:
    """softmax, log_softmax; half_to_float is a matter of devices."""

    def make(n: Call) -> Value:
        if not n.x.shape:
            return n.reshape(n.row(row)(n.reshape(n.cast(n.x, n.result.dtype), (1,)), axis=0), ())
        return n.cast(n.row(row)(n.cast(n.x, n.result.dtype.compute), axis=n.axis()), n.result.dtype)

    return make


def shielded_softmax(n: Call, x: Value, axis: int) -> Value:
    """softmax, and 0 along an axis that holds nothing but -inf: powers of -inf less a finite number, over 1. Elsewhere
    the bounds change nothing: the largest element is at least that number, its power is 1. NaN stays NaN."""
    if x.shape[axis] == 0:
        return n.F.copy(x)
    top = n.F.max(x, axes=(axis,), keepdims=True)
    powers = n.F.exp(n.F.sub(x, n.F.maximum(top, n.scalar(-largest(x.dtype), x.dtype))))
    total = n.F.sum(powers, axes=(axis,), keepdims=True)
    return n.F.div(powers, n.F.maximum(total, n.scalar(1, x.dtype)))


def safe_softmax(n: Call) -> Value:
    """_safe_softmax: what attention's softmax is where it is not compiled as a whole."""
    if not n.result.dtype.is_float:
        raise Unmapped(f"softmax to {n.result.dtype}")
    x = n.cast(n.x, n.result.dtype.compute)
    made = shielded_softmax(n, n.reshape(x, x.shape or (1,)), n.axis())
    return n.cast(n.reshape(made, x.shape), n.result.dtype)


def softmax_backward(n: Call) -> Value:
    """g·y − y·sum(g·y)."""
    g, y, axis = _gradient(n)
    weighted = n.F.mul(g, y)
    made = n.F.sub(weighted, n.F.mul(y, n.F.sum(weighted, axes=(axis,), keepdims=True)))
    return n.cast(n.reshape(made, n.result.shape), n.result.dtype)


def log_softmax_backward(n: Call) -> Value:
    """g − exp(y)·sum(g)."""
    g, y, axis = _gradient(n)
    made = n.F.sub(g, n.F.mul(n.F.exp(y), n.F.sum(g, axes=(axis,), keepdims=True)))
    return n.cast(n.reshape(made, n.result.shape), n.result.dtype)


def _gradient(n: Call) -> tuple[Value, Value, int]:
    """The gradient, the result and the axis; a tensor without axes is one element."""
    given = [n.cast(n[name], n.result.dtype.compute) for name in ("grad_output", "output")]
    g, y = given if n["output"].shape else [n.reshape(each, (1,)) for each in given]
    return g, y, n.axis()


def logsumexp(n: Call) -> Value:
    axes, dtype = _axes(n), n.result.dtype
    if not axes:
        return n.F.copy(n.cast(n.x, dtype))
    return n.cast(n.F.logsumexp(n.cast(n.x, dtype.compute), axes=axes, keepdims=_keep(n)), dtype)


# -- norms -------------------------------------------------------------------------------------------------------------
def layer_norm(n: Call) -> list[Value | None]:
    """native_layer_norm: the result, the mean and the reciprocal deviation, in float32 for narrow types."""
    x, rank = n["input"], len(n["normalized_shape"])
    wide = n.cast(x, x.dtype.compute)
    axes = tuple(range(len(x.shape) - rank, len(x.shape)))
    weight, bias = n["weight"], n["bias"]
    operands = [wide] + [n.cast(each, wide.dtype) for each in (weight, bias) if each is not None]
    if weight is None and bias is not None:
        raise Unmapped("a layer norm with a shift and no scale")
    made = n.cast(n.F.layer_norm(*operands, rank=rank, epsilon=float(n["eps"])), x.dtype)
    kept: list[Value | None] = [None, None]
    if any(n.used[1:]):
        mean = n.F.mean(wide, axes=axes, keepdims=True)
        variance = n.F.var(wide, axes=axes, keepdims=True, correction=0)
        rstd = n.F.rsqrt(n.F.add(variance, n.scalar(n["eps"], wide.dtype)))
        kept = [n.cast(each, t.dtype) for each, t in zip((mean, rstd), n.results[1:], strict=True) if t is not None]
    return [made, *kept]


def group_norm(n: Call) -> list[Value | None]:
    """native_group_norm of [N, C, …]: the result, mean and reciprocal deviation by sample and group."""
    x = n["input"]
    groups, eps = n["group"], float(n["eps"])
    wide = n.cast(x, x.dtype.compute)
    batch, channels = x.shape[0], x.shape[1]
    rest = product(x.shape[1:])
    if not isinstance(channels, int) or rest == 0 or channels % groups:
        raise Unmapped("a group norm of open or empty channels")
    apart = n.reshape(wide, (batch, groups, floordiv(rest, groups)))
    mean = n.F.mean(apart, axes=(2,), keepdims=True)
    rstd = n.F.rsqrt(n.F.add(n.F.var(apart, axes=(2,), keepdims=True, correction=0), n.scalar(eps, wide.dtype)))
    made = n.reshape(n.F.mul(n.F.sub(apart, mean), rstd), x.shape)
    ones = (1,) * (len(x.shape) - 2)
    for name, row in (("weight", "mul"), ("bias", "add")):
        if n[name] is not None:
            made = n.row(row)(made, n.reshape(n.cast(n[name], wide.dtype), (1, channels, *ones)))
    types = n.results[1:]
    kept = [n.cast(n.reshape(v, (batch, groups)), t.dtype) for v, t in zip((mean, rstd), types, strict=True) if t]
    return [n.cast(made, x.dtype), *kept]


def batch_norm_inference(n: Call) -> list[Value | None]:
    """_native_batch_norm_legit_no_training: statistics are given."""
    x = n["input"]
    wide = n.cast(x, x.dtype.compute)
    shape: Any = (1, x.shape[1], *(1,) * (len(x.shape) - 2))

    def spread(value: Value) -> Value:
        return n.reshape(n.cast(value, wide.dtype), shape)

    mean, variance = spread(n["running_mean"]), spread(n["running_var"])
    rstd = n.F.div(n.scalar(1.0, wide.dtype), n.F.sqrt(n.F.add(variance, n.scalar(n["eps"], wide.dtype))))
    made = n.F.mul(n.F.sub(wide, mean), rstd)
    if n["weight"] is not None:
        made = n.F.mul(made, spread(n["weight"]))
    if n["bias"] is not None:
        made = n.F.add(made, spread(n["bias"]))
    kept = [n.full(0, t.shape, t.dtype) if t is not None else None for t in n.results[1:]]
    return [n.cast(made, x.dtype), *kept]
