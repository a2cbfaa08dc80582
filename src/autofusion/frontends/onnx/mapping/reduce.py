"""Reductions, scans, softmaxes and normalisations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from autofusion import dims
from autofusion.dtypes import DType
from autofusion.errors import GraphError
from autofusion.frontends.onnx.call import MAPPING, Call, Maker, maps
from autofusion.ops.folds import FOLDS
from autofusion.ops.rules import axes_of, axis_of, reduced


def _reduction(fold: Callable[[Call, Any, dict[str, Any]], Any]) -> Maker:
    def make(n: Call) -> Any:
        axes = n.listed("axes", 1)
        if not axes:
            axes = () if n.attr("noop_with_empty_axes", 0) else None
        dtype = n.dtype(0)
        listed = axes_of(axes, n.rank(0))
        return n.cast(fold(n, n[0], {"axes": listed, "keepdims": bool(n.attr("keepdims", 1))}), dtype)

    return make


def _extreme(row: str) -> Callable[[Call, Any, dict[str, Any]], Any]:
    """The largest or smallest; of nothing the identity."""

    def fold(n: Call, x: Any, attrs: dict[str, Any]) -> Any:
        shape, dtype = tuple(n.F.type_of(x).shape), n.F.type_of(x).dtype
        if any(shape[axis] == 0 for axis in attrs["axes"]):
            return n.F.full(shape=reduced([shape], attrs), value=FOLDS[row].identity(dtype), dtype=dtype)
        return getattr(n.F, row)(x, **attrs)

    return fold


def _log_sum_exp(n: Call, x: Any, attrs: dict[str, Any]) -> Any:
    if any(tuple(n.F.type_of(x).shape)[axis] == 0 for axis in attrs["axes"]):
        return n.F.log(n.F.sum(n.F.exp(x), **attrs))
    return n.F.logsumexp(_float(n, x), **attrs)


def _float(n: Call, x: Any) -> Any:
    return x if n.F.type_of(x).dtype.is_float else n.F.cast(x, dtype=DType.FLOAT64)


MAPPING.update(
    {
        "ReduceSum": _reduction(lambda n, x, attrs: n.F.sum(x, **attrs)),
        "ReduceProd": _reduction(lambda n, x, attrs: n.F.prod(x, **attrs)),
        "ReduceMax": _reduction(_extreme("max")),
        "ReduceMin": _reduction(_extreme("min")),
        "ReduceMean": _reduction(lambda n, x, attrs: n.F.mean(_float(n, x), **attrs)),
        "ReduceL1": _reduction(lambda n, x, attrs: n.F.sum(n.F.abs(x), **attrs)),
        "ReduceL2": _reduction(lambda n, x, attrs: n.F.sqrt(_float(n, n.F.sum(n.F.mul(x, x), **attrs)))),
        "ReduceSumSquare": _reduction(lambda n, x, attrs: n.F.sum(n.F.mul(x, x), **attrs)),
        "ReduceLogSum": _reduction(lambda n, x, attrs: n.F.log(_float(n, n.F.sum(x, **attrs)))),
        "ReduceLogSumExp": _reduction(_log_sum_exp),
    }
)


@maps("ArgMax", "ArgMin")
def arg_extreme(n: Call) -> Any:
    return n.row(n.op.lower())(
        n[0],
        axis=n.attr("axis", 0),
        keepdims=bool(n.attr("keepdims", 1)),
        select_last=bool(n.attr("select_last_index", 0)),
    )


@maps("CumSum", "CumProd")
def scan(n: Call) -> Any:
    shape, dtype = n.shape(0), n.dtype(0)
    axis = axis_of(int(n.known(1).reshape(())), len(shape))
    value = _flipped(n, n[0], axis) if n.attr("reverse", 0) else n[0]
    running = n.cast(getattr(n.F, n.op.lower())(value, axis=axis), dtype)
    if n.attr("exclusive", 0):
        first = n.F.full(shape=(*shape[:axis], 1, *shape[axis + 1 :]), value=int(n.op == "CumProd"), dtype=dtype)
        running = n.F.concat(first, n.cut(running, axis, 0, dims.add(shape[axis], -1)), axis=axis)
    return _flipped(n, running, axis) if n.attr("reverse", 0) else running


def _flipped(n: Call, value: Any, axis: int) -> Any:
    extent = n.F.type_of(value).shape[axis]
    return n.cut(value, axis, -1, -extent - 1 if isinstance(extent, int) else -(1 << 31), -1)


@maps("Softmax", "LogSoftmax", "Hardmax")
def softmax(n: Call) -> Any:
    """From opset 13 along one axis; before, over all axes from the given one on."""
    row = n.row({"Softmax": "softmax", "LogSoftmax": "log_softmax", "Hardmax": "hardmax"}[n.op])
    if n.op == "Softmax" and n.dtype(0).is_reduced:
        row = partial(_stepwise, n)
    if n.opset >= 13:
        return row(n[0], axis=n.attr("axis", -1))
    shape, axis = n.shape(0), n.attr("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    if axis == len(shape) - 1:
        return row(n[0], axis=axis)
    flat = n.reshape(n[0], (dims.product(shape[:axis]), dims.product(shape[axis:])))
    return n.reshape(row(flat, axis=1), shape)


def _stepwise(n: Call, x: Any, axis: int) -> Any:
    """ONNX's function body: strict numerics then round after each step of it, as ONNX does."""
    powers = n.F.exp(n.F.sub(x, n.F.max(x, axes=(axis,), keepdims=True)))
    return n.F.div(powers, n.F.sum(powers, axes=(axis,), keepdims=True))


# -- normalisations ----------------------------------------------------------------------------------------------------
def _stash(n: Call) -> DType:
    return DType.FLOAT32 if n.attr("stash_type", 1) == 1 and n.dtype(0) is not DType.FLOAT64 else n.dtype(0)


@maps("LayerNormalization")
def layer_normalization(n: Call) -> Any:
    """Normalised, the mean, and one over the deviation."""
    axes = tuple(range(axis_of(n.attr("axis", -1), n.rank(0)), n.rank(0)))
    wide = n.cast(n[0], _stash(n))
    mean = n.F.mean(wide, axes=axes, keepdims=True)
    centred = n.F.sub(wide, mean)
    variance = n.F.mean(n.F.mul(centred, centred), axes=axes, keepdims=True)
    inverse = n.F.reciprocal(n.F.sqrt(n.F.add(variance, n.scalar(n.attr("epsilon", 1e-5), variance))))
    made = n.F.mul(n.cast(n.F.mul(centred, inverse), n.dtype(0)), n[1])
    return [n.F.add(made, n[2]) if n.has(2) else made, mean, inverse][: max(len(n.outputs), 1)]


@maps("RMSNormalization")
def rms_normalization(n: Call) -> Any:
    axes = tuple(range(axis_of(n.attr("axis", -1), n.rank(0)), n.rank(0)))
    wide = n.cast(n[0], _stash(n))
    square = n.F.mean(n.F.mul(wide, wide), axes=axes, keepdims=True)
    scaled = n.F.div(wide, n.F.sqrt(n.F.add(square, n.scalar(n.attr("epsilon", 1e-5), square))))
    return n.F.mul(n.cast(scaled, n.dtype(0)), n[1])


def channels(n: Call, value: Any, rank: int) -> Any:
    """One value a channel, shaped to broadcast over [batch, channels, ...]."""
    return n.reshape(value, (n.F.type_of(value).shape[0], *(1,) * (rank - 2)))


def _standardised(n: Call, x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    mean = n.F.mean(x, axes=axes, keepdims=True)
    centred = n.F.sub(x, mean)
    variance = n.F.mean(n.F.mul(centred, centred), axes=axes, keepdims=True)
    return n.F.mul(centred, n.F.rsqrt(n.F.add(variance, n.scalar(epsilon, variance))))


@maps("InstanceNormalization")
def instance_normalization(n: Call) -> Any:
    rank = n.rank(0)
    made = _standardised(n, n[0], tuple(range(2, rank)), n.attr("epsilon", 1e-5))
    return n.F.add(n.F.mul(made, channels(n, n[1], rank)), channels(n, n[2], rank))


@maps("GroupNormalization")
def group_normalization(n: Call) -> Any:
    shape, groups = n.shape(0), n.attr("num_groups")
    each = dims.floordiv(shape[1], groups)
    apart = (shape[0], groups, each, *shape[2:])
    wide = n.cast(n.reshape(n[0], apart), _stash(n))
    made = _standardised(n, wide, tuple(range(2, len(apart))), n.attr("epsilon", 1e-5))
    made = n.cast(made, n.dtype(0))
    if n.opset < 21:  # scale and bias by group
        shaped = [n.reshape(n[i], (groups, *(1,) * (len(apart) - 2))) for i in (1, 2)]
        return n.reshape(n.F.add(n.F.mul(made, shaped[0]), shaped[1]), shape)
    made = n.reshape(made, shape)
    return n.F.add(n.F.mul(made, channels(n, n[1], len(shape))), channels(n, n[2], len(shape)))


@maps("BatchNormalization")
def batch_normalization(n: Call) -> Any:
    rank, epsilon = n.rank(0), n.attr("epsilon", 1e-5)
    training = bool(n.attr("training_mode", 0))
    if n.opset < 14 and len([o for o in n.outputs if o]) > 1:
        raise GraphError("training mode of this opset is not supported")
    if not training:
        centred = n.F.sub(n[0], channels(n, n.cast(n[3], n.dtype(0)), rank))
        variance = n.cast(n[4], n.dtype(0))
        inverse = n.F.rsqrt(n.F.add(variance, n.scalar(epsilon, variance)))
        made = n.F.mul(centred, channels(n, n.F.mul(n[1], inverse), rank))
        return [n.F.add(made, channels(n, n[2], rank))]
    axes = tuple(d for d in range(rank) if d != 1)
    mean = n.F.mean(n[0], axes=axes, keepdims=False)
    centred = n.F.sub(n[0], channels(n, mean, rank))
    variance = n.F.mean(n.F.mul(centred, centred), axes=axes, keepdims=False)
    inverse = n.F.rsqrt(n.F.add(variance, n.scalar(epsilon, variance)))
    made = n.F.mul(centred, channels(n, n.F.mul(n[1], inverse), rank))
    momentum = n.attr("momentum", 0.9)
    kept = [
        n.F.add(n.F.mul(old, n.scalar(momentum, old)), n.F.mul(new, n.scalar(1 - momentum, new)))
        for old, new in ((n[3], mean), (n[4], variance))
    ]
    return [n.F.add(made, channels(n, n[2], rank)), *kept]


@maps("LpNormalization")
def lp_normalization(n: Call) -> Any:
    """Of length 1 along an axis; what is 0 stays 0."""
    attrs = {"axes": (axis_of(n.attr("axis", -1), n.rank(0)),), "keepdims": True}
    squared = n.attr("p", 2) == 2
    total = n.F.sum(n.F.mul(n[0], n[0]) if squared else n.F.abs(n[0]), **attrs)
    norm = n.F.sqrt(total) if squared else total
    zero = n.scalar(0, norm)
    return n.F.where(n.F.eq(norm, zero), zero, n.F.div(n[0], norm))


@maps("MeanVarianceNormalization")
def mean_variance_normalization(n: Call) -> Any:
    axes = axes_of(n.attr("axes", (0, 2, 3)), n.rank(0))
    mean = n.F.mean(n[0], axes=axes, keepdims=True)
    centred = n.F.sub(n[0], mean)
    deviation = n.F.sqrt(n.F.mean(n.F.mul(centred, centred), axes=axes, keepdims=True))
    return n.F.div(centred, n.F.add(deviation, n.scalar(1e-9, deviation)))


@maps("LRN")
def lrn(n: Call) -> Any:
    defaults = {"alpha": 0.0001, "beta": 0.75, "bias": 1.0}
    return n.row("lrn")(n[0], size=n.attr("size"), **{k: n.attr(k, v) for k, v in defaults.items()})
