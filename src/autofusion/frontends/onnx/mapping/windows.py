"""Convolution, pooling, and resizing of [batch, channels, ...]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autofusion.dtypes import DType
from autofusion.errors import GraphError
from autofusion.frontends.onnx.call import Call, maps, numbers
from autofusion.frontends.onnx.mapping.elementwise import along, saturated
from autofusion.frontends.onnx.mapping.reduce import channels
from autofusion.frontends.onnx.values import Unmapped


def _tuple(n: Call, name: str, rank: int, default: int = 1) -> tuple[int, ...]:
    found = n.attr(name)
    if found is not None and len(found) != rank:
        raise GraphError(f"{name} {list(found)}: expected {rank} entries")
    return tuple(found) if found is not None else (default,) * rank


def _pads(n: Call, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
    """(begin..., end...) as numbers, whatever `auto_pad` says."""
    rank, auto = len(kernel), n.attr("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        return _tuple(n, "pads", 2 * rank, 0)
    if auto == "VALID":
        return (0,) * (2 * rank)
    totals = []
    for extent, taps, stride, dilation in zip(n.shape(0)[2:], kernel, strides, dilations, strict=True):
        span = (taps - 1) * dilation + 1
        if stride == 1:
            totals.append(span - 1)
            continue
        (size,) = numbers([extent], f"auto_pad={auto} of an axis that")
        totals.append(max((-(-size // stride) - 1) * stride + span - size, 0))
    less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (*less, *more) if auto == "SAME_UPPER" else (*more, *less)


def _conv(n: Call, x: Any, w: Any, bias: Sequence[Any], weights: int = 1) -> Any:
    shape = tuple(n.F.type_of(w).shape)
    kernel = n.attr("kernel_shape") or numbers(shape[2:], "the kernel's shape")
    rank = len(kernel)
    strides, dilations = _tuple(n, "strides", rank), _tuple(n, "dilations", rank)
    pads = _pads(n, kernel, strides, dilations)
    groups = n.attr("group", 1)
    return n.row("conv")(x, w, *bias, strides=strides, pads=pads, dilations=dilations, groups=groups)


@maps("Conv")
def conv(n: Call) -> Any:
    return _conv(n, n[0], n[1], [n[2]] if n.has(2) else [])


@maps("ConvInteger")
def conv_integer(n: Call) -> Any:
    x, w = n.cast(n[0], DType.INT32), n.cast(n[1], DType.INT32)
    if n.has(2):
        x = n.F.sub(x, n.reshape(n.cast(n[2], DType.INT32), ()))
    if n.has(3):
        zero = n.cast(n[3], DType.INT32)
        w = n.F.sub(w, along(n, zero, n.rank(1), 0))
    return _conv(n, x, w, [])


@maps("QLinearConv")
def qlinear_conv(n: Call) -> Any:
    """x, scale, zero; w, scale, zero; y scale, zero; bias in units of both scales."""
    x = n.F.sub(n.cast(n[0], DType.INT32), n.reshape(n.cast(n[2], DType.INT32), ()))
    w = n.F.sub(n.cast(n[3], DType.INT32), along(n, n.cast(n[5], DType.INT32), n.rank(3), 0))
    made = _conv(n, x, w, [n[8]] if n.has(8) else [])
    rank = n.rank(0)
    w_scale = n[4] if n.rank(4) == 0 else channels(n, n[4], rank)
    factor = n.F.div(n.F.mul(n.reshape(n[1], ()), w_scale), n.reshape(n[6], ()))
    scaled = n.F.mul(n.cast(made, DType.FLOAT32), factor)
    return saturated(n, scaled, n.reshape(n[7], ()), n.dtype(7))


@maps("ConvTranspose")
def conv_transpose(n: Call) -> Any:
    w = n.static(1)
    kernel = n.attr("kernel_shape") or w[2:]
    rank = len(kernel)
    strides, dilations = _tuple(n, "strides", rank), _tuple(n, "dilations", rank)
    extra = _tuple(n, "output_padding", rank, 0)
    auto, wanted = n.attr("auto_pad", "NOTSET"), n.attr("output_shape")
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(e * s for e, s in zip(n.static(0)[2:], strides, strict=True))
    if wanted is not None:
        wanted = wanted[-rank:]
        totals = []
        for extent, taps, stride, dilation, more, size in zip(
            n.static(0)[2:], kernel, strides, dilations, extra, wanted, strict=True
        ):
            totals.append(stride * (extent - 1) + more + (taps - 1) * dilation + 1 - size)
        # A negative total makes the result larger: that is output padding.
        extra = tuple(more + max(-t, 0) for more, t in zip(extra, totals, strict=True))
        totals = [max(t, 0) for t in totals]
        less, more_ = [t // 2 for t in totals], [t - t // 2 for t in totals]
        pads = (*less, *more_) if auto == "SAME_UPPER" else (*more_, *less)
    else:
        pads = (0,) * (2 * rank) if auto == "VALID" else _tuple(n, "pads", 2 * rank, 0)
    bias = [n[2]] if n.has(2) else []
    return n.row("conv_transpose")(
        n[0],
        n[1],
        *bias,
        strides=strides,
        pads=pads,
        dilations=dilations,
        groups=n.attr("group", 1),
        output_padding=extra,
    )


# -- pooling -----------------------------------------------------------------------------------------------------------
def _pool(n: Call, row: str, **more: Any) -> Any:
    kernel = tuple(n.attr("kernel_shape"))
    rank = len(kernel)
    strides, dilations = _tuple(n, "strides", rank), _tuple(n, "dilations", rank)
    attrs = {
        "kernel": kernel,
        "strides": strides,
        "pads": _pads(n, kernel, strides, dilations),
        "dilations": dilations,
        "ceil_mode": bool(n.attr("ceil_mode", 0)),
    }
    return n.row(row)(n[0], **attrs, **more)


@maps("MaxPool")
def max_pool(n: Call) -> Any:
    indices = len(n.outputs) > 1 and n.outputs[1]
    if indices and n.attr("storage_order", 0):
        raise Unmapped("indices in column-major order")
    return [_pool(n, "max_pool"), *([_pool(n, "max_pool_indices")] if indices else [])]


@maps("AveragePool")
def average_pool(n: Call) -> Any:
    return _pool(n, "average_pool", count_include_pad=bool(n.attr("count_include_pad", 0)))


@maps("LpPool")
def lp_pool(n: Call) -> Any:
    return _pool(n, "lp_pool", p=n.attr("p", 2))


@maps("GlobalAveragePool")
def global_average_pool(n: Call) -> Any:
    return n.F.mean(n[0], axes=tuple(range(2, n.rank(0))), keepdims=True)


@maps("GlobalMaxPool")
def global_max_pool(n: Call) -> Any:
    return n.F.max(n[0], axes=tuple(range(2, n.rank(0))), keepdims=True)


@maps("GlobalLpPool")
def global_lp_pool(n: Call) -> Any:
    p, axes = n.attr("p", 2), tuple(range(2, n.rank(0)))
    size = n.F.abs(n[0])
    if p == 1:
        return n.F.sum(size, axes=axes, keepdims=True)
    if p == 2:
        return n.F.sqrt(n.F.sum(n.F.mul(size, size), axes=axes, keepdims=True))
    total = n.F.sum(n.F.pow(size, n.scalar(float(p), size)), axes=axes, keepdims=True)
    return n.F.pow(total, n.scalar(1.0 / p, total))
