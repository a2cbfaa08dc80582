"""Elementwise operators: arithmetic, comparison, logic, casts, functions, activations, quantisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from autofusion.dtypes import DType
from autofusion.errors import GraphError
from autofusion.frontends.onnx import adapter
from autofusion.frontends.onnx.call import MAPPING, Call, Maker, maps

# ONNX's name -> our row, with the attributes that it takes: ONNX's name, ours, ONNX's default.
DIRECT: dict[str, tuple[str, tuple[tuple[str, str, Any], ...]]] = {
    "Add": ("add", ()),
    "Sub": ("sub", ()),
    "Mul": ("mul", ()),
    "Neg": ("neg", ()),
    "Abs": ("abs", ()),
    "Sign": ("sign", ()),
    "Exp": ("exp", ()),
    "Log": ("log", ()),
    "Sqrt": ("sqrt", ()),
    "Reciprocal": ("reciprocal", ()),
    "Floor": ("floor", ()),
    "Ceil": ("ceil", ()),
    "Round": ("round", ()),
    "Sin": ("sin", ()),
    "Cos": ("cos", ()),
    "Tan": ("tan", ()),
    "Asin": ("asin", ()),
    "Acos": ("acos", ()),
    "Atan": ("atan", ()),
    "Sinh": ("sinh", ()),
    "Cosh": ("cosh", ()),
    "Tanh": ("tanh", ()),
    "Asinh": ("asinh", ()),
    "Acosh": ("acosh", ()),
    "Atanh": ("atanh", ()),
    "Erf": ("erf", ()),
    "Sigmoid": ("sigmoid", ()),
    "Relu": ("relu", ()),
    "Softplus": ("softplus", ()),
    "Softsign": ("softsign", ()),
    "Mish": ("mish", ()),
    "PRelu": ("prelu", ()),
    "LeakyRelu": ("leaky_relu", (("alpha", "alpha", 0.01),)),
    "Elu": ("elu", (("alpha", "alpha", 1.0),)),
    "Celu": ("celu", (("alpha", "alpha", 1.0),)),
    "Selu": ("selu", (("alpha", "alpha", 1.67326319217681884765625), ("gamma", "gamma", 1.05070102214813232421875))),
    "ThresholdedRelu": ("thresholded_relu", (("alpha", "alpha", 1.0),)),
    "HardSigmoid": ("hardsigmoid", (("alpha", "alpha", 0.2), ("beta", "beta", 0.5))),
    "Swish": ("swish", (("alpha", "alpha", 1.0),)),
    "Shrink": ("shrink", (("bias", "bias", 0.0), ("lambd", "lambd", 0.5))),
    "Equal": ("eq", ()),
    "Less": ("lt", ()),
    "LessOrEqual": ("le", ()),
    "Greater": ("gt", ()),
    "GreaterOrEqual": ("ge", ()),
    "And": ("logical_and", ()),
    "Or": ("logical_or", ()),
    "Xor": ("logical_xor", ()),
    "Not": ("logical_not", ()),
    "BitwiseAnd": ("bitwise_and", ()),
    "BitwiseOr": ("bitwise_or", ()),
    "BitwiseXor": ("bitwise_xor", ()),
    "BitwiseNot": ("bitwise_not", ()),
    "IsNaN": ("isnan", ()),
    "Where": ("where", ()),
}


def _direct(row: str, attributes: tuple[tuple[str, str, Any], ...]) -> Maker:
    return lambda n: n.row(row)(*n.inputs, **{ours: n.attr(theirs, default) for theirs, ours, default in attributes})


MAPPING.update({name: _direct(*entry) for name, entry in DIRECT.items()})


# -- several operands, or attributes that choose -----------------------------------------------------------------------
def _chain(row: str) -> Maker:
    def make(n: Call) -> Any:
        result, *rest = n.inputs
        for each in rest:
            result = getattr(n.F, row)(result, each)
        return result

    return make


MAPPING.update({"Max": _chain("maximum"), "Min": _chain("minimum"), "Sum": _chain("add")})


@maps("Mean")
def mean(n: Call) -> Any:
    total = _chain("add")(n)
    return n.F.div(total, n.scalar(float(len(n)), total))


@maps("Div")
def div(n: Call) -> Any:
    if n.dtype(0).is_float:
        return n.F.div(n[0], n[1])
    if type(n.F).__name__ == "Symbolic":
        return n.F.int_floor_divide(n[0], n[1])  # sizes are not negative
    return n.row("int_truncate_divide")(n[0], n[1])


@maps("Mod")
def mod(n: Call) -> Any:
    if not n.attr("fmod", 0):
        return n.F.remainder(n[0], n[1])
    return n.F.fmod(n[0], n[1]) if n.dtype(0).is_float else n.row("int_truncate_remainder")(n[0], n[1])


@maps("Pow")
def power(n: Call) -> Any:
    """The base's element type. Squares and cubes are products, as they are in PyTorch."""
    base, exponent, dtype = n[0], n[1], n.dtype(0)
    known = n.operands[1]
    if isinstance(known, np.ndarray) and known.size == 1 and known.ndim <= n.rank(0):
        if known.item() == 2:
            return n.F.mul(base, base)
        if known.item() == 3:
            return n.F.mul(n.F.mul(base, base), base)
    if dtype.is_float:
        return n.F.pow(base, n.cast(exponent, dtype))
    wide = n.F.pow(n.cast(base, DType.FLOAT64), n.cast(exponent, DType.FLOAT64))
    return n.F.cast(n.F.round(wide) if n.dtype(1).is_integer else wide, dtype=dtype)


@maps("Clip")
def clip(n: Call) -> Any:
    result = n[0]
    low = n[1] if n.has(1) else n.attr("min")
    high = n[2] if n.has(2) else n.attr("max")
    if low is not None:
        result = n.F.maximum(result, low if n.has(1) else n.scalar(low, result))
    if high is not None:
        result = n.F.minimum(result, high if n.has(2) else n.scalar(high, result))
    return result


@maps("BitShift")
def bit_shift(n: Call) -> Any:
    return n.row("shift_left" if n.attr("direction") == "LEFT" else "shift_right")(n[0], n[1])


@maps("IsInf")
def is_inf(n: Call) -> Any:
    flags = {name: bool(n.attr(name, 1)) for name in ("detect_negative", "detect_positive")}
    return n.row("isinf")(n[0], **flags)


@maps("Gelu")
def gelu(n: Call) -> Any:
    return n.F.gelu(n[0], approximate=n.attr("approximate", "none"))


@maps("HardSwish")
def hard_swish(n: Call) -> Any:
    return n.F.mul(n[0], n.row("hardsigmoid")(n[0], alpha=1 / 6, beta=0.5))


@maps("Identity")
def identity(n: Call) -> Any:
    return n[0]


@maps("Cast")
def cast(n: Call) -> Any:
    return n.cast(n[0], adapter.dtype_of(n.attr("to")))


@maps("CastLike")
def cast_like(n: Call) -> Any:
    return n.cast(n[0], n.dtype(1))


@maps("Dropout")
def dropout(n: Call) -> Any:
    """Inference: what goes in comes out, and nothing was dropped."""
    training = n.has(2) and bool(n.known(2).reshape(()))
    ratio = float(n.known(1).reshape(())) if n.has(1) else n.attr("ratio", 0.5)
    if training and ratio:
        raise GraphError("random operators are not supported: dropout in training mode")
    dtype = DType.BOOL if n.opset >= 10 else n.dtype(0)
    mask = n.F.full(shape=n.shape(0), value=dtype is DType.BOOL or 1.0, dtype=dtype) if len(n.outputs) > 1 else None
    return [n[0], mask]


# -- quantisation ------------------------------------------------------------------------------------------------------
def along(n: Call, value: Any, rank: int, axis: int) -> Any:
    """A scale or zero point of one axis, shaped to broadcast."""
    shape = tuple(n.F.type_of(value).shape)
    if len(shape) != 1 or rank <= 1 or shape == (1,):
        return n.reshape(value, ()) if shape == (1,) else value
    return n.reshape(value, [shape[0] if d == axis % rank else 1 for d in range(rank)])


def _blocked(n: Call, value: Any, axis: int, block: int) -> Any:
    """One value a block: each repeated over its block."""
    shape, wanted = list(n.F.type_of(value).shape), n.static(0)
    axis %= len(shape)
    apart = n.reshape(value, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
    apart = n.F.expand(apart, shape=(*shape[: axis + 1], block, *shape[axis + 1 :]))
    whole = n.reshape(apart, [*shape[:axis], shape[axis] * block, *shape[axis + 1 :]])
    return whole if shape[axis] * block == wanted[axis] else n.cut(whole, axis, 0, wanted[axis])


def _parameter(n: Call, value: Any) -> Any:
    axis, block = n.attr("axis", 1), n.attr("block_size", 0)
    return _blocked(n, value, axis, block) if block else along(n, value, n.rank(0), axis)


def saturated(n: Call, value: Any, zero: Any | None, dtype: DType) -> Any:
    """A float rounded to the nearest even, moved by the zero point, cut to an integer type."""
    result = n.F.round(value)
    if zero is not None:
        result = n.F.add(result, n.cast(zero, n.F.type_of(result).dtype))
    limits = np.iinfo(dtype.numpy)
    result = n.F.minimum(n.F.maximum(result, n.scalar(limits.min, result)), n.scalar(limits.max, result))
    return n.F.cast(result, dtype=dtype)


@maps("QuantizeLinear")
def quantize(n: Call) -> Any:
    code = n.attr("output_dtype", 0)
    dtype = n.dtype(2) if n.has(2) else adapter.dtype_of(code) if code else DType.UINT8
    wide = n.cast(n[0], DType.FLOAT32)
    scaled = n.F.div(wide, n.cast(_parameter(n, n[1]), DType.FLOAT32))
    return saturated(n, scaled, _parameter(n, n[2]) if n.has(2) else None, dtype)


@maps("DequantizeLinear")
def dequantize(n: Call) -> Any:
    scale = _parameter(n, n[1])
    code = n.attr("output_dtype", 0)
    dtype = adapter.dtype_of(code) if code else n.F.type_of(scale).dtype
    wide = n.cast(n[0], DType.FLOAT32)
    if n.has(2):
        wide = n.F.sub(wide, n.cast(_parameter(n, n[2]), DType.FLOAT32))
    return n.cast(n.F.mul(wide, n.cast(scale, DType.FLOAT32)), dtype)
