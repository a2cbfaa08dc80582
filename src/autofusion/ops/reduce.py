"""Reductions and scans, and the compositions made of them: mean, variance, softmax, norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autofusion import dtypes
from autofusion.dims import Dim, Shape, maximum, product
from autofusion.dtypes import Array, DType
from autofusion.errors import GraphError, ShapeError
from autofusion.kinds import Kind
from autofusion.ops.elementwise import FLOATS
from autofusion.ops.folds import FOLDS
from autofusion.ops.rules import axes_of, axis_of, reduced, same, unchanged
from autofusion.ops.table import REQUIRED, TABLE, Attrs, Builder, Op


def _wide_sum(types: list[DType], attrs: Attrs) -> DType:
    """Sums and products of booleans and narrow integers are int64, as in PyTorch."""
    return types[0] if types[0].is_float else DType.INT64


def _nonempty(shapes: list[Shape], attrs: Attrs) -> Shape:
    for axis in axes_of(attrs["axes"], len(shapes[0])):
        if shapes[0][axis] == 0:
            raise ShapeError(f"axis {axis} is empty: this fold of nothing has no value")
    return reduced(shapes, attrs)


def _folded(name: str) -> Callable[..., Array]:
    fold = FOLDS[name]

    def reference(a: Array, axes: Any, keepdims: bool) -> Array:
        dtype = dtypes.of(a)
        wide = a.astype(np.float64) if dtype.is_float and name in ("sum", "prod") else a
        if name in ("sum", "prod") and not dtype.is_float:
            wide = a.astype(np.int64)
        result = fold.reference(wide, axis=axes_of(axes, a.ndim), keepdims=keepdims)
        return np.asarray(result).astype(wide.dtype if not dtype.is_float else a.dtype)

    return reference


def _reduction(name: str, types: tuple[DType, ...], dtype_rule: Any, shape_rule: Any, doc: str) -> None:
    TABLE.register(
        Op(
            name,
            Kind.REDUCE,
            1,
            shape_rule,
            dtype_rule,
            _folded(name),
            fold=name,
            attributes={"axes": None, "keepdims": False},
            dtypes=types,
            doc=doc,
        )
    )


_reduction("sum", tuple(DType), _wide_sum, reduced, "sum over axes; of nothing 0")
_reduction("prod", tuple(DType), _wide_sum, reduced, "product over axes; of nothing 1")
_reduction("max", tuple(DType), same, _nonempty, "largest over axes; NaN if any is; of nothing an error")
_reduction("min", tuple(DType), same, _nonempty, "smallest over axes; NaN if any is; of nothing an error")
_reduction("any", (DType.BOOL,), same, reduced, "whether one is true")
_reduction("all", (DType.BOOL,), same, reduced, "whether all are true")


def _scan_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    axis_of(attrs["axis"], len(shapes[0]))
    return shapes[0]


def _running(name: str) -> Callable[..., Array]:
    def reference(a: Array, axis: int) -> Array:
        dtype = dtypes.of(a)
        wide = a.astype(np.float64) if dtype.is_float else a.astype(np.int64)
        return np.asarray(FOLDS[name].running(wide, axis=axis)).astype(a.dtype if dtype.is_float else np.int64)

    return reference


for _name, _fold in {"cumsum": "sum", "cumprod": "prod"}.items():
    TABLE.register(
        Op(
            _name,
            Kind.SCAN,
            1,
            _scan_shape,
            _wide_sum,
            _running(_fold),
            fold=_fold,
            attributes={"axis": REQUIRED},
            tolerance=64,
            doc=f"running {_fold} along an axis",
        )
    )


# -- compositions ----------------------------------------------------------------------------------------------------
def _count(F: Builder, a: Any, axes: Any) -> Dim:
    shape = F.type_of(a).shape
    return product(shape[d] for d in axes_of(axes, len(shape)))


def _mean_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    total = F.sum(a, axes=attrs["axes"], keepdims=attrs["keepdims"])
    return F.div(total, F.scalar(_count(F, a, attrs["axes"]), F.type_of(total).dtype))


def _mean(a: Array, axes: Any, keepdims: bool) -> Array:
    count = np.float64(np.prod([a.shape[d] for d in axes_of(axes, a.ndim)]))
    total = np.sum(a.astype(np.float64), axis=axes_of(axes, a.ndim), keepdims=keepdims)
    return np.asarray(total / count).astype(a.dtype)


def _var(a: Array, axes: Any, keepdims: bool, correction: int) -> Array:
    listed = axes_of(axes, a.ndim)
    wide = a.astype(np.float64)
    count = int(np.prod([a.shape[d] for d in listed]))
    mean = np.sum(wide, axis=listed, keepdims=True) / np.float64(count)
    squares = np.sum((wide - mean) ** 2, axis=listed, keepdims=keepdims)
    return np.asarray(squares / np.float64(max(count - correction, 0))).astype(a.dtype)


def _var_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    """Two passes: the mean of squared distances from the mean, never E[x²] - E[x]²."""
    centred = F.sub(a, F.mean(a, axes=attrs["axes"], keepdims=True))
    squares = F.sum(F.mul(centred, centred), axes=attrs["axes"], keepdims=attrs["keepdims"])
    count = _count(F, a, attrs["axes"])
    degrees = maximum(count - attrs["correction"], 0)
    return F.div(squares, F.scalar(degrees, F.type_of(squares).dtype))


_AXES = {"axes": None, "keepdims": False}


def _composite(name: str, shape_rule: Any, reference: Any, lower: Any, attributes: Any, **row: Any) -> None:
    """A row of kind REDUCE that only exists until `decompose`."""
    row.setdefault("arity", 1)
    row.setdefault("dtypes", FLOATS)
    arity = row.pop("arity")
    TABLE.register(Op(name, Kind.REDUCE, arity, shape_rule, same, reference, lower=lower, attributes=attributes, **row))


_composite("mean", reduced, _mean, _mean_lower, _AXES, doc="arithmetic mean; of nothing NaN")
_composite("var", reduced, _var, _var_lower, _AXES | {"correction": 1}, tolerance=16, doc="variance, two passes")


def _exponentials(F: Builder, a: Any, axis: int) -> Any:
    return F.exp(F.sub(a, F.max(a, axes=(axis,), keepdims=True)))


def _is_empty(F: Builder, a: Any, attrs: Attrs) -> bool:
    """A softmax along an axis of nothing is nothing; a maximum of nothing would be an error."""
    return bool(F.type_of(a).shape[attrs["axis"]] == 0)


def _softmax_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    if _is_empty(F, a, attrs):
        return F.copy(a)
    powers = _exponentials(F, a, attrs["axis"])
    return F.div(powers, F.sum(powers, axes=(attrs["axis"],), keepdims=True))


def _log_softmax_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    if _is_empty(F, a, attrs):
        return F.copy(a)
    shifted = F.sub(a, F.max(a, axes=(attrs["axis"],), keepdims=True))
    return F.sub(shifted, F.log(F.sum(F.exp(shifted), axes=(attrs["axis"],), keepdims=True)))


def _log_softmax(a: Array, axis: int) -> Array:
    wide = a.astype(np.float64)
    shifted = wide - np.max(wide, axis=axis, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))).astype(a.dtype)


def _softmax(a: Array, axis: int) -> Array:
    wide = a.astype(np.float64)
    powers = np.exp(wide - np.max(wide, axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray(powers / np.sum(powers, axis=axis, keepdims=True)).astype(a.dtype)


def _logsumexp(a: Array, axes: Any, keepdims: bool) -> Array:
    wide, listed = a.astype(np.float64), axes_of(axes, a.ndim)
    top = np.max(wide, axis=listed, keepdims=True)
    top = np.where(np.isinf(top), 0.0, top)
    result = np.log(np.sum(np.exp(wide - top), axis=listed, keepdims=True)) + top
    return np.asarray(result if keepdims else np.squeeze(result, axis=listed)).astype(a.dtype)


def _logsumexp_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    top = F.max(a, axes=attrs["axes"], keepdims=True)
    top = F.where(F.eq(F.abs(top), float("inf")), 0.0, top)
    total = F.log(F.sum(F.exp(F.sub(a, top)), axes=attrs["axes"], keepdims=True))
    result = F.add(total, top)
    return result if attrs["keepdims"] else F.reshape(result, shape=reduced([F.type_of(a).shape], attrs))


_composite("softmax", _scan_shape, _softmax, _softmax_lower, {"axis": -1}, tolerance=32, doc="exp(a - max) / sum")
_composite("log_softmax", _scan_shape, _log_softmax, _log_softmax_lower, {"axis": -1}, tolerance=32, doc="log softmax")
_composite("logsumexp", _nonempty, _logsumexp, _logsumexp_lower, _AXES, tolerance=16, doc="log of the sum of exp")


def _norm_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    rank = len(shapes[0])
    if not isinstance(attrs["rank"], int) or not 1 <= attrs["rank"] <= rank:
        raise GraphError(f"rank={attrs['rank']!r}: expected 1 to {rank} trailing axes")
    for shape in shapes[1:]:
        if shape != shapes[0][rank - attrs["rank"] :]:
            raise ShapeError(f"scale or shift of shape {shape}, expected {shapes[0][rank - attrs['rank'] :]}")
    return unchanged(shapes, attrs)


def _trailing(F: Builder, a: Any, attrs: Attrs) -> tuple[int, ...]:
    return tuple(range(-attrs["rank"], 0))


def _layer_norm_lower(F: Builder, a: Any, *rest: Any) -> Any:
    *affine, attrs = rest
    axes = _trailing(F, a, attrs)
    centred = F.sub(a, F.mean(a, axes=axes, keepdims=True))
    variance = F.mean(F.mul(centred, centred), axes=axes, keepdims=True)
    result = F.mul(centred, F.rsqrt(F.add(variance, attrs["epsilon"])))
    if affine:
        result = F.mul(result, affine[0])
    return F.add(result, affine[1]) if len(affine) > 1 else result


def _layer_norm(a: Array, *affine: Array, rank: int, epsilon: float) -> Array:
    axes = tuple(range(-rank, 0))
    wide = a.astype(np.float64)
    centred = wide - _mean(wide, axes, keepdims=True)
    result = centred / np.sqrt(_mean(centred**2, axes, keepdims=True) + epsilon)
    for array, combine in zip(affine, (np.multiply, np.add), strict=False):
        result = combine(result, array.astype(np.float64))
    return np.asarray(result).astype(a.dtype)


def _rms_norm_lower(F: Builder, a: Any, *rest: Any) -> Any:
    *affine, attrs = rest
    axes = _trailing(F, a, attrs)
    square = F.mean(F.mul(a, a), axes=axes, keepdims=True)
    result = F.mul(a, F.rsqrt(F.add(square, attrs["epsilon"])))
    return F.mul(result, affine[0]) if affine else result


def _rms_norm(a: Array, *affine: Array, rank: int, epsilon: float) -> Array:
    axes = tuple(range(-rank, 0))
    wide = a.astype(np.float64)
    result = wide / np.sqrt(_mean(wide**2, axes, keepdims=True) + epsilon)
    return np.asarray(result * affine[0].astype(np.float64) if affine else result).astype(a.dtype)


_NORM: dict[str, Any] = {"rank": 1, "epsilon": 1e-5}
_composite(
    "layer_norm",
    _norm_shape,
    _layer_norm,
    _layer_norm_lower,
    _NORM,
    arity=(1, 3),
    tolerance=64,
    doc="(a - mean) / sqrt(var + epsilon) over the trailing `rank` axes, then scale and shift (Ba et al. 2016)",
)
_composite(
    "rms_norm",
    _norm_shape,
    _rms_norm,
    _rms_norm_lower,
    _NORM,
    arity=(1, 2),
    tolerance=32,
    doc="a / sqrt(mean(a²) + epsilon) over the trailing `rank` axes, then scale (Zhang and Sennrich 2019)",
)
