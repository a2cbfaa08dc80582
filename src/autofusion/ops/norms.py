"""Normalisations by channel, and norms over axes; all composites."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autofusion import dtypes
from autofusion.dims import Shape, floordiv, modulo, require_equal, show_shape
from autofusion.dtypes import Array, DType
from autofusion.errors import GraphError, ShapeError
from autofusion.kinds import Kind
from autofusion.ops.elementwise import FLOATS, NUMBERS
from autofusion.ops.rules import axes_of, reduced, same
from autofusion.ops.special import wide
from autofusion.ops.table import REQUIRED, TABLE, Attrs, Builder, Op


def _composite(name: str, arity: int, shape_rule: Any, reference: Any, lower: Any, attributes: Any, **row: Any) -> None:
    row.setdefault("dtypes", FLOATS)
    row.setdefault("dtype_rule", same)
    rule = row.pop("dtype_rule")
    TABLE.register(Op(name, Kind.REDUCE, arity, shape_rule, rule, reference, lower=lower, attributes=attributes, **row))


# -- by channel: axis 1 of [batch, channels, ...] ----------------------------------------------------------------------
def _channels(shapes: list[Shape], attrs: Attrs) -> Shape:
    x, *rest = shapes
    if len(x) < 2:
        raise ShapeError(f"operand {show_shape(x)}: expected [batch, channels, ...]")
    for shape in rest:
        if len(shape) != 1:
            raise ShapeError(f"parameter of shape {show_shape(shape)}, expected one value a channel")
        require_equal(x[1], shape[0], "channels")
    return x


def per_channel(F: Builder, parameter: Any, rank: int) -> Any:
    """[channels] as [channels, 1, ...], which broadcasts along axis 1."""
    return F.reshape(parameter, shape=(*F.type_of(parameter).shape, *(1,) * (rank - 2)))


def _channel(a: Array, rank: int) -> Array:
    return a.reshape(-1, *(1,) * (rank - 2))


def _batch_norm(x: Array, scale: Array, shift: Array, mean: Array, var: Array, epsilon: float) -> Array:
    scale, shift, mean, var = (_channel(a, x.ndim) for a in (scale, shift, mean, var))
    return (x - mean) / np.sqrt(var + epsilon) * scale + shift


def _batch_norm_lower(F: Builder, x: Any, scale: Any, shift: Any, mean: Any, var: Any, attrs: Attrs) -> Any:
    rank = len(F.type_of(x).shape)
    factor = F.mul(scale, F.rsqrt(F.add(var, attrs["epsilon"])))
    centred = F.sub(x, per_channel(F, mean, rank))
    return F.add(F.mul(centred, per_channel(F, factor, rank)), per_channel(F, shift, rank))


_composite(
    "batch_norm",
    5,
    _channels,
    wide(_batch_norm),
    _batch_norm_lower,
    {"epsilon": 1e-5},
    domain=(0.1, 4.0),
    tolerance=64,
    flops=4,
    doc="(x - mean) / sqrt(var + epsilon) · scale + shift, one of each a channel (Ioffe and Szegedy 2015)",
)


def _normalised(F: Builder, x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    centred = F.sub(x, F.mean(x, axes=axes, keepdims=True))
    variance = F.mean(F.mul(centred, centred), axes=axes, keepdims=True)
    return F.mul(centred, F.rsqrt(F.add(variance, epsilon)))


def _instance_norm(x: Array, scale: Array, shift: Array, epsilon: float) -> Array:
    axes = tuple(range(2, x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    result = centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + epsilon)
    return np.asarray(result * _channel(scale, x.ndim) + _channel(shift, x.ndim))


def _instance_norm_lower(F: Builder, x: Any, scale: Any, shift: Any, attrs: Attrs) -> Any:
    rank = len(F.type_of(x).shape)
    result = _normalised(F, x, tuple(range(2, rank)), attrs["epsilon"])
    return F.add(F.mul(result, per_channel(F, scale, rank)), per_channel(F, shift, rank))


_composite(
    "instance_norm",
    3,
    _channels,
    wide(_instance_norm),
    _instance_norm_lower,
    {"epsilon": 1e-5},
    tolerance=64,
    flops=8,
    doc="(x - mean) / sqrt(var + epsilon) over each channel of each sample, then scale and shift a channel",
)


def _group_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    shape, groups = _channels(shapes, attrs), attrs["num_groups"]
    if not isinstance(groups, int) or groups < 1 or modulo(shape[1], groups) != 0:
        raise GraphError(f"num_groups={groups!r} does not divide {shape[1]} channels")
    return shape


def _group_norm(x: Array, scale: Array, shift: Array, num_groups: int, epsilon: float) -> Array:
    grouped = x.reshape(x.shape[0], num_groups, -1)
    centred = grouped - grouped.mean(axis=-1, keepdims=True)
    result = (centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)).reshape(x.shape)
    return np.asarray(result * _channel(scale, x.ndim) + _channel(shift, x.ndim))


def _group_norm_lower(F: Builder, x: Any, scale: Any, shift: Any, attrs: Attrs) -> Any:
    shape, groups = F.type_of(x).shape, attrs["num_groups"]
    grouped = F.reshape(x, shape=(shape[0], groups, floordiv(shape[1], groups), *shape[2:]))
    result = F.reshape(_normalised(F, grouped, tuple(range(2, len(shape) + 1)), attrs["epsilon"]), shape=shape)
    rank = len(shape)
    return F.add(F.mul(result, per_channel(F, scale, rank)), per_channel(F, shift, rank))


_composite(
    "group_norm",
    3,
    _group_shape,
    wide(_group_norm),
    _group_norm_lower,
    {"num_groups": REQUIRED, "epsilon": 1e-5},
    tolerance=64,
    flops=8,
    doc="layer_norm over each group of channels of each sample, then scale and shift a channel (Wu and He 2018)",
)


def _lrn_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    if not isinstance(attrs["size"], int) or attrs["size"] < 1:
        raise GraphError(f"size={attrs['size']!r}: expected a positive number of channels")
    return _channels(shapes, attrs)


def _lrn(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = np.stack([(x[:, max(0, c - before) : c + after + 1] ** 2).sum(axis=1) for c in range(x.shape[1])], axis=1)
    return x / (bias + alpha / size * squares) ** beta


def _lrn_lower(F: Builder, x: Any, attrs: Attrs) -> Any:
    """A window over channels: the channel axis goes last, where windows are."""
    size, rank = attrs["size"], len(F.type_of(x).shape)
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    order = (0, *range(2, rank), 1)
    back = (0, rank - 1, *range(1, rank - 1))
    squares = F.transpose(F.mul(x, x), axes=order)
    padded = F.pad(squares, before=(0,) * (rank - 1) + (before,), after=(0,) * (rank - 1) + (after,))
    total = F.transpose(F.window_sum(padded, kernel=(size,)), axes=back)
    return F.div(x, F.pow(F.add(F.mul(total, attrs["alpha"] / size), attrs["bias"]), attrs["beta"]))


_composite(
    "lrn",
    1,
    _lrn_shape,
    wide(_lrn),
    _lrn_lower,
    {"size": REQUIRED, "alpha": 1e-4, "beta": 0.75, "bias": 1.0},
    tolerance=32,
    flops=40,
    doc="x / (bias + alpha/size · sum of squares over `size` neighbouring channels) ** beta",
)

# -- norms over axes ---------------------------------------------------------------------------------------------------
_AXES = {"axes": None, "keepdims": False}


def _folded(a: Array, axes: Any, keepdims: bool, function: Any = np.sum) -> Array:
    return np.asarray(function(a, axis=axes_of(axes, a.ndim), keepdims=keepdims))


def _double(a: Array) -> Array:
    return a.astype(np.float64) if dtypes.of(a).is_float else a


def _summed(F: Builder, a: Any, attrs: Attrs, dtype: DType) -> Any:
    """A sum of the operand's own type: sums of narrow integers are int64, and wrap back."""
    total = F.sum(a, axes=attrs["axes"], keepdims=attrs["keepdims"])
    return total if F.type_of(total).dtype is dtype else F.cast(total, dtype=dtype)


_composite(
    "l1_norm",
    1,
    reduced,
    lambda a, axes, keepdims: _folded(np.abs(_double(a)), axes, keepdims).astype(a.dtype),
    lambda F, a, attrs: _summed(F, F.abs(a), attrs, F.type_of(a).dtype),
    _AXES,
    dtypes=NUMBERS,
    tolerance=16,
    flops=2,
    doc="sum of absolute values",
)
_composite(
    "sum_square",
    1,
    reduced,
    lambda a, axes, keepdims: _folded(np.square(_double(a)), axes, keepdims).astype(a.dtype),
    lambda F, a, attrs: _summed(F, F.mul(a, a), attrs, F.type_of(a).dtype),
    _AXES,
    dtypes=NUMBERS,
    tolerance=16,
    flops=2,
    doc="sum of squares",
)
_composite(
    "l2_norm",
    1,
    reduced,
    lambda a, axes, keepdims: np.sqrt(_folded(np.square(_double(a)), axes, keepdims)).astype(a.dtype),
    lambda F, a, attrs: F.sqrt(F.sum(F.mul(a, a), axes=attrs["axes"], keepdims=attrs["keepdims"])),
    _AXES,
    tolerance=16,
    flops=3,
    doc="square root of the sum of squares",
)
_composite(
    "log_sum",
    1,
    reduced,
    lambda a, axes, keepdims: np.log(_folded(_double(a), axes, keepdims)).astype(a.dtype),
    lambda F, a, attrs: F.log(F.sum(a, axes=attrs["axes"], keepdims=attrs["keepdims"])),
    _AXES,
    domain=(0.1, 4.0),
    tolerance=math.inf,
    flops=2,
    doc="logarithm of the sum",
)
_composite(
    "count_nonzero",
    1,
    reduced,
    lambda a, axes, keepdims: _folded(a != 0, axes, keepdims).astype(np.int64),
    lambda F, a, attrs: F.sum(F.cast(a, dtype=DType.BOOL), axes=attrs["axes"], keepdims=attrs["keepdims"]),
    _AXES,
    dtypes=tuple(DType),
    dtype_rule=lambda types, attrs: DType.INT64,
    doc="how many elements are not zero; NaN is not",
)


def _std(a: Array, axes: Any, keepdims: bool, correction: int) -> Array:
    return np.sqrt(TABLE.get("var").reference(a.astype(np.float64), axes, keepdims, correction)).astype(a.dtype)


_composite(
    "std",
    1,
    reduced,
    _std,
    lambda F, a, attrs: F.sqrt(F.var(a, **attrs)),
    _AXES | {"correction": 1},
    tolerance=16,
    flops=5,
    doc="standard deviation, two passes",
)


def _norm(a: Array, axes: Any, keepdims: bool, p: float) -> Array:
    size = np.abs(a.astype(np.float64))
    if math.isinf(p):
        return _folded(size, axes, keepdims, np.max if p > 0 else np.min).astype(a.dtype)
    if p == 0:
        return _folded(size != 0, axes, keepdims).astype(a.dtype)
    return np.power(_folded(size**p, axes, keepdims), 1 / p).astype(a.dtype)


def _norm_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    p, size = float(attrs["p"]), F.abs(a)
    where = {"axes": attrs["axes"], "keepdims": attrs["keepdims"]}
    if math.isinf(p):
        return F.max(size, **where) if p > 0 else F.min(size, **where)
    if p == 0:
        return F.sum(F.cast(F.ne(a, 0.0), dtype=F.type_of(a).dtype), **where)
    if p == 1:
        return F.sum(size, **where)
    if p == 2:
        return F.sqrt(F.sum(F.mul(a, a), **where))
    return F.pow(F.sum(F.pow(size, p), **where), 1 / p)


_composite(
    "norm",
    1,
    reduced,
    _norm,
    _norm_lower,
    _AXES | {"p": 2.0},
    tolerance=32,
    flops=30,
    doc="the p-norm: (sum |a|^p)^(1/p); p of 0 counts, ±inf are the largest and smallest size",
)
