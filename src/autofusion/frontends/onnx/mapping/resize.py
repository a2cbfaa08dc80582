"""Resize and Upsample: each axis by itself, as a weighted sum of looked-up positions.

    out[.., o, ..] = sum over t of weight[o, t] · x[.., position[o, t], ..]

Positions and weights are known at import (ONNX, operator Resize: the formulas of `coordinate_transformation_mode`,
of the modes, of `antialias`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autofusion import dims
from autofusion.dims import Dim, Expr
from autofusion.dtypes import Array, DType
from autofusion.errors import GraphError
from autofusion.frontends.onnx.call import Call, maps
from autofusion.frontends.onnx.values import Unmapped

TAPS = 8  # more than these are a matrix product


def _known_floats(n: Call, position: int) -> list[float] | None:
    if not n.has(position) or n.shape(position) == (0,):
        return None
    return [float(each) for each in n.known(position).reshape(-1)]


def _coordinates(n: Call, out: int, size: int, scale: float, roi: tuple[float, float]) -> Array:
    """Where each output position lies in the input."""
    mode = n.attr(
        "coordinate_transformation_mode", "half_pixel" if n.op == "Resize" and n.opset >= 11 else "asymmetric"
    )
    at = np.arange(out, dtype=np.float64)
    if mode == "asymmetric":
        return at / scale
    if mode == "half_pixel":
        return (at + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return (at + 0.5) / scale - 0.5 if out > 1 else np.full(out, -0.5)
    if mode == "half_pixel_symmetric":
        adjustment = out / (scale * size)
        centre = size / 2
        return centre * (1 - adjustment) + (at + 0.5) / scale - 0.5
    if mode == "align_corners":
        length = scale * size  # not rounded where the scale was given
        return at * (size - 1) / (length - 1) if out > 1 and length > 1 else np.zeros(out)
    if mode == "tf_half_pixel_for_nn":
        return (at + 0.5) / scale
    if mode == "tf_crop_and_resize":
        start, end = roi
        if out > 1:
            return start * (size - 1) + at * (end - start) * (size - 1) / (out - 1)
        return np.full(out, 0.5 * (start + end) * (size - 1))
    raise Unmapped(f"coordinate_transformation_mode {mode}")


def _nearest(n: Call, at: Array) -> Array:
    rule = n.attr("nearest_mode", "round_prefer_floor" if n.op == "Resize" and n.opset >= 11 else "floor")
    rules: dict[str, Any] = {
        "round_prefer_floor": lambda v: np.ceil(v - 0.5),
        "round_prefer_ceil": lambda v: np.floor(v + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    return np.asarray(rules[rule](np.round(at, 9)))


def _cubic(distance: Array, a: float) -> Array:
    d = np.abs(distance)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def weights_of(n: Call, out: int, size: int, scale: float, roi: tuple[float, float]) -> Array:
    """The matrix [out, size] of one axis."""
    mode = n.attr("mode", "nearest")
    at = _coordinates(n, out, size, scale, roi)
    matrix = np.zeros((out, size))
    rows = np.arange(out)
    if mode == "nearest":
        matrix[rows, np.clip(_nearest(n, at), 0, size - 1).astype(np.int64)] = 1.0
        return matrix
    stretch = min(scale, 1.0) if n.attr("antialias", 0) else 1.0
    radius = (1 if mode == "linear" else 2) / stretch
    first = np.floor(at - radius).astype(np.int64)
    inside_only = bool(n.attr("exclude_outside", 0))
    for tap in range(math.ceil(2 * radius) + 2):
        position = first + tap
        distance = (position - at) * stretch
        if mode == "linear":
            weight = np.maximum(1 - np.abs(distance), 0.0)
        else:
            weight = _cubic(distance, n.attr("cubic_coeff_a", -0.75))
        outside = (position < 0) | (position >= size)
        if inside_only or n.attr("antialias", 0):
            weight = np.where(outside, 0.0, weight) if inside_only else weight
        np.add.at(matrix, (rows, np.clip(position, 0, size - 1)), weight)
    return np.asarray(matrix / matrix.sum(axis=1, keepdims=True))


def _along(n: Call, x: Any, axis: int, matrix: Array) -> Any:
    """The weighted sums along one axis."""
    shape = tuple(n.F.type_of(x).shape)
    dtype = n.F.type_of(x).dtype
    taps = int((matrix != 0).sum(axis=1).max())
    order = np.argsort(matrix == 0, axis=1, kind="stable")[:, :taps]
    chosen = np.take_along_axis(matrix, order, axis=1)
    if taps == 1 and (chosen == 1).all():
        return _looked_up(n, x, axis, order[:, 0])
    wide = DType.FLOAT32 if not dtype.is_float else dtype
    value = n.cast(x, wide)
    if taps > TAPS:
        value = n.F.transpose(value, axes=_swapped(len(shape), axis))
        made = n.F.matmul(value, n.F.constant(matrix.T.astype(wide.numpy)))
        return n.F.transpose(made, axes=_swapped(len(shape), axis))
    total = None
    for tap in range(taps):
        along = chosen[:, tap].astype(wide.numpy).reshape([-1 if d == axis else 1 for d in range(len(shape))])
        part = n.F.mul(_looked_up(n, value, axis, order[:, tap]), n.F.constant(along))
        total = part if total is None else n.F.add(total, part)
    return total


def _swapped(rank: int, axis: int) -> tuple[int, ...]:
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return tuple(order)


def _looked_up(n: Call, x: Any, axis: int, positions: Array) -> Any:
    """x at positions along an axis; whole repeats, and even steps, are views."""
    shape = tuple(n.F.type_of(x).shape)
    size, out = shape[axis], len(positions)
    if isinstance(size, int) and size and out % size == 0 and (positions == np.arange(out) // (out // size)).all():
        return _repeated(n, x, axis, out // size)
    steps = np.diff(positions)
    if out > 1 and (steps == steps[0]).all() and steps[0] > 0:
        return n.cut(x, axis, int(positions[0]), int(positions[-1]) + 1, int(steps[0]))
    return n.F.gather(x, n.F.constant(positions.astype(np.int64)), axis=axis)


def _repeated(n: Call, x: Any, axis: int, times: int) -> Any:
    """Each element `times` times."""
    shape = tuple(n.F.type_of(x).shape)
    if times == 1:
        return x
    apart = n.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    apart = n.F.expand(apart, shape=(*shape[: axis + 1], times, *shape[axis + 1 :]))
    return n.reshape(apart, (*shape[:axis], dims.multiply(shape[axis], times), *shape[axis + 1 :]))


def _plan(n: Call) -> list[tuple[int, Any, float, tuple[float, float]]]:
    """(axis, output size, scale, region) of every axis that is listed."""
    shape = n.shape(0)
    late = n.op == "Resize" and n.opset >= 11
    axes = [a % len(shape) for a in n.attr("axes", tuple(range(len(shape))))]
    scales = list(n.attr("scales", ())) or _known_floats(n, 2 if late else 1)
    sizes = _known_floats(n, 3) if late else None
    region = (_known_floats(n, 1) if late else None) or [0.0] * len(axes) + [1.0] * len(axes)
    if n.attr("coordinate_transformation_mode") != "tf_crop_and_resize":
        region = [0.0] * len(axes) + [1.0] * len(axes)
    wanted: list[Any]
    if sizes is not None:
        wanted, scales = _wanted(n, [shape[a] for a in axes], [int(s) for s in sizes])
    elif scales is not None:
        crop = [region[i + len(axes)] - region[i] for i in range(len(axes))]
        wanted = [
            dims.multiply(shape[a], int(s)) if isinstance(shape[a], Expr) and s == int(s) else _size(shape[a], s * c)
            for a, s, c in zip(axes, scales, crop, strict=True)
        ]
    else:
        raise GraphError("neither scales nor sizes are given")
    return [(a, wanted[i], scales[i], (region[i], region[i + len(axes)])) for i, a in enumerate(axes)]


def _size(extent: Dim, scale: float) -> int:
    if isinstance(extent, Expr):
        raise Unmapped(f"an axis of {extent} by {scale}")
    return math.floor(extent * scale + 1e-9)


def _wanted(n: Call, shape: Sequence[Any], sizes: list[int]) -> tuple[list[int], list[float]]:
    if any(isinstance(d, Expr) for d in shape):
        raise Unmapped("sizes for open dimensions")
    scales = [size / extent if extent else 1.0 for size, extent in zip(sizes, shape, strict=True)]
    policy = n.attr("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        scale = min(scales) if policy == "not_larger" else max(scales)
        scales = [scale] * len(scales)
        sizes = [math.floor(scale * extent + 0.5) for extent in shape]
    return sizes, scales


@maps("Resize", "Upsample")
def resize(n: Call) -> Any:
    value, dtype = n[0], n.dtype(0)
    mode = n.attr("coordinate_transformation_mode", "")
    for axis, out, scale, roi in _plan(n):
        size = n.shape(0)[axis]
        if scale == 1.0 and out == size and mode != "tf_crop_and_resize":
            continue
        if isinstance(size, Expr):
            at = _coordinates(n, 16 * int(scale), 16, scale, roi)
            whole = (np.clip(_nearest(n, at), 0, 15) == np.arange(16 * int(scale)) // int(scale)).all()
            if n.attr("mode", "nearest") != "nearest" or not whole:
                raise Unmapped(f"axis {axis} of {size} by interpolation")
            value = _repeated(n, value, axis, int(scale))
            continue
        value = _along(n, value, axis, weights_of(n, out, size, scale, roi))
        if mode == "tf_crop_and_resize":
            at = _coordinates(n, out, size, scale, roi)
            outside = ((at < 0) | (at > size - 1)).reshape([-1 if d == axis else 1 for d in range(n.rank(0))])
            if outside.any():
                fill = n.scalar(n.attr("extrapolation_value", 0.0), value)
                value = n.F.where(n.F.constant(outside), fill, value)
    if dtype.is_integer and not n.F.type_of(value).dtype.is_integer:
        value = n.F.round(value)
    return n.cast(value, dtype)
