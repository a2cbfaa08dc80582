"""Resizing by interpolation, one axis after another: weighted gathers with ONNX's coordinate rules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from autofusion import dtypes
from autofusion.dims import Shape
from autofusion.dtypes import Array
from autofusion.errors import GraphError, ShapeError
from autofusion.kinds import Kind
from autofusion.ops.rules import same
from autofusion.ops.table import REQUIRED, TABLE, Attrs, Builder, Op

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class Taps:
    """One axis: out[o] = sum over k of weights[k, o] * in[positions[k, o]]; `outside`: where nothing is read."""

    positions: Array
    weights: Array
    outside: Array


def _floats(text: Any, name: str, count: int) -> list[float] | None:
    """Numbers written as text with commas; tuples of floats are no attribute."""
    if not text:
        return None
    try:
        values = [float(each) for each in text.split(",")]
    except (ValueError, AttributeError):
        raise GraphError(f"{name}={text!r}: expected numbers with commas between them") from None
    if len(values) != count:
        raise GraphError(f"{name}={text!r}: expected {count} numbers")
    return values


def _source(at: int, extent: int, made: int, scale: float, rule: str, region: tuple[float, float]) -> float:
    """Where an output position lies among the input positions (ONNX, Resize)."""
    width = scale * extent
    if rule == "align_corners":
        return 0.0 if width == 1 else at * (extent - 1) / (width - 1)
    if rule == "asymmetric":
        return at / scale
    if rule == "tf_crop_and_resize":
        span = region[1] - region[0]
        inside = span * (extent - 1) / 2 if width == 1 else at * span * (extent - 1) / (width - 1)
        return inside + region[0] * (extent - 1)
    if rule == "pytorch_half_pixel" and width == 1:
        return -0.5
    offset = extent / 2 * (1 - made / width) if rule == "half_pixel_symmetric" else 0.0
    return offset + (at + 0.5) / scale - 0.5


def _cubic(x: float, a: float) -> float:
    """Keys's kernel (1981)."""
    x = abs(x)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0


def _weights(ratio: float, scale: float, attrs: Attrs) -> tuple[int, list[float]]:
    """The first tap, counted from the position left of the source, and the weights; `ratio` is in (0, 1]."""
    mode = attrs["mode"]
    if mode == "nearest":
        rounding = attrs["nearest"]
        up = {"floor": False, "ceil": True, "round_prefer_floor": ratio > 0.5, "round_prefer_ceil": ratio >= 0.5}
        return (1 if ratio == 1 or up[rounding] else 0), [1.0]
    reach = 1 if mode == "linear" else 2
    scale = min(scale, 1.0) if attrs["antialias"] else 1.0
    first = math.floor(-reach / scale) + 1
    taps = [scale * (k - ratio) for k in range(first, 2 - first)]
    kernel = [max(1 - abs(t), 0.0) if mode == "linear" else _cubic(t, attrs["cubic"]) for t in taps]
    total = sum(kernel) if attrs["antialias"] else 1.0
    return first, [weight / total for weight in kernel]


def _taps(extent: int, made: int, scale: float, region: tuple[float, float], attrs: Attrs) -> Taps:
    rows, weights, outside = [], [], []
    for at in range(made):
        source = _source(at, extent, made, scale, attrs["coordinate"], region)
        outside.append(attrs["coordinate"] == "tf_crop_and_resize" and not 0 <= source <= extent - 1)
        left = math.ceil(source) - 1  # so that the ratio is in (0, 1]
        first, found = _weights(source - left, scale, attrs)
        positions = np.arange(left + first, left + first + len(found))
        each = np.asarray(found)
        if attrs["exclude_outside"]:
            each = np.where((positions < 0) | (positions >= extent), 0.0, each)
            each = each / each.sum()
        rows.append(np.clip(positions, 0, extent - 1))
        weights.append(each)
    shape = (made, -1)
    return Taps(
        np.asarray(rows, np.int64).reshape(shape).T, np.asarray(weights).reshape(shape).T, np.asarray(outside, bool)
    )


def _axes(shape: Shape, attrs: Attrs) -> list[tuple[int, Taps]]:
    """The axes that change, with their taps."""
    sizes, rank = attrs["sizes"], len(shape)
    scales, region = _floats(attrs["scales"], "scales", rank), _floats(attrs["roi"], "roi", 2 * rank)
    found = []
    for axis, (extent, made) in enumerate(zip(shape, sizes, strict=True)):
        if not isinstance(extent, int) or not isinstance(made, int):
            if extent == made:
                continue
            raise ShapeError(f"axis {axis}: {extent} to {made}: give the extents as numbers")
        scale = scales[axis] if scales else made / extent
        inside = (region[axis], region[rank + axis]) if region else (0.0, 1.0)
        if made != extent or scale != 1 or (attrs["coordinate"] == "tf_crop_and_resize" and inside != (0.0, 1.0)):
            found.append((axis, _taps(extent, made, scale, inside, attrs)))
    return found


def _shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    sizes = attrs["sizes"]
    if not isinstance(sizes, tuple) or len(sizes) != len(shapes[0]):
        raise GraphError(f"sizes={sizes!r}: expected {len(shapes[0])} extents")
    for name, known in (
        ("mode", ("nearest", "linear", "cubic")),
        ("coordinate", COORDINATES),
        ("nearest", ROUNDINGS),
    ):
        if attrs[name] not in known:
            raise GraphError(f"{name}={attrs[name]!r}, expected {', '.join(known)}")
    for axis, (extent, made) in enumerate(zip(shapes[0], sizes, strict=True)):
        if extent == 0 and made != 0:
            raise ShapeError(f"axis {axis} is empty: there is nothing to interpolate")
    return sizes


def _exact(attrs: Attrs) -> bool:
    return bool(attrs["mode"] == "nearest")


def _resize(a: Array, **attrs: Any) -> Array:
    made = a if _exact(attrs) else a.astype(np.float64)
    outside = np.zeros((), bool)
    for axis, taps in _axes(a.shape, attrs):
        along = [-1 if d == axis else 1 for d in range(a.ndim)]
        terms = [
            np.take(made, where, axis=axis)
            if _exact(attrs)
            else np.take(made, where, axis=axis) * weight.reshape(along)
            for where, weight in zip(taps.positions, taps.weights, strict=True)
        ]
        made = sum(terms[1:], terms[0])
        outside = outside | taps.outside.reshape(along)
    made = np.where(outside, np.asarray(attrs["extrapolation"]).astype(made.dtype), made)
    return np.asarray(made).astype(a.dtype)


def _resize_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    """Gathers at constant positions times constant weights."""
    dtype, shape = F.type_of(a)
    made = F.copy(a)
    everywhere: Any = None
    for axis, taps in _axes(shape, attrs):
        along = tuple(-1 if d == axis else 1 for d in range(len(shape)))
        total: Any = None
        for where, weight in zip(taps.positions, taps.weights, strict=True):
            term = F.gather(made, F.constant(where), axis=axis)
            if not _exact(attrs):
                term = F.mul(term, F.constant(weight.reshape(along).astype(dtype.numpy)))
            total = term if total is None else F.add(total, term)
        made = total
        if taps.outside.any():
            mask = F.constant(taps.outside.reshape(along))
            everywhere = mask if everywhere is None else F.logical_or(everywhere, mask)
    if everywhere is not None:
        made = F.where(everywhere, F.scalar(attrs["extrapolation"], dtype), made)
    return made


TABLE.register(
    Op(
        "resize",
        Kind.WINDOW,
        1,
        _shape,
        same,
        _resize,
        lower=_resize_lower,
        attributes={
            "sizes": REQUIRED,
            "scales": "",
            "roi": "",
            "mode": "nearest",
            "coordinate": "half_pixel",
            "nearest": "round_prefer_floor",
            "cubic": -0.75,
            "exclude_outside": False,
            "antialias": False,
            "extrapolation": 0.0,
        },
        dtypes=dtypes.FLOATS,
        tolerance=64,
        flops=8,
        doc="interpolation to `sizes`; scales and roi (numbers as text, by axis) where they are not what sizes say",
    )
)
