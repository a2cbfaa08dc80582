"""Rows over neighbourhoods: windows, convolutions and what is made of them. Padding is a join; the cores see none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autofusion import dims, dtypes
from autofusion.dims import Dim, Shape, require_equal, show_shape
from autofusion.dtypes import Array
from autofusion.errors import GraphError, ShapeError
from autofusion.kinds import Kind
from autofusion.ops.elementwise import NUMBERS
from autofusion.ops.folds import FOLDS
from autofusion.ops.rules import same
from autofusion.ops.table import REQUIRED, TABLE, Attrs, Axes, Op


def reach(extent: Dim, kernel: Dim, stride: int, dilation: int) -> Dim:
    """How many positions a window of `kernel` taps, `dilation` apart, has in `extent` at steps of `stride`."""
    span = dims.add(dims.multiply(dims.add(kernel, -1), dilation), 1)
    count = dims.add(dims.floordiv(dims.add(extent, dims.multiply(span, -1)), stride), 1)
    if isinstance(count, int) and count < 0:
        raise ShapeError(f"a window of {kernel} taps does not fit an extent of {extent}")
    return count


def _numbers(attrs: Attrs, name: str, rank: int) -> tuple[int, ...]:
    values = attrs[name] if attrs[name] is not None else (1,) * rank
    if not isinstance(values, tuple) or len(values) != rank or any(not isinstance(v, int) or v < 1 for v in values):
        raise GraphError(f"{name}={values!r}: expected {rank} positive integers")
    return values


# -- window: out[.., o] = fold over k of x[.., o * stride + k * dilation] --------------------------------------------
def _window_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    (shape,) = shapes
    kernel = attrs["kernel"]
    if not isinstance(kernel, tuple) or not 1 <= len(kernel) <= len(shape):
        raise GraphError(f"kernel={kernel!r}: expected 1 to {len(shape)} window sizes")
    rank = len(kernel)
    strides, dilations = _numbers(attrs, "strides", rank), _numbers(attrs, "dilations", rank)
    steps = zip(shape[-rank:], kernel, strides, dilations, strict=True)
    return (*shape[:-rank], *(reach(*each) for each in steps))


def _window_index(shapes: list[Shape], out: Shape, attrs: Attrs, axes: Axes) -> tuple[list[list[Dim]], list[Dim]]:
    rank = len(attrs["kernel"])
    index = [axes.out(extent) for extent in out]
    taps = [axes.fold(size) for size in attrs["kernel"]]
    return [[*index[:-rank], *_taps(index[-rank:], taps, attrs)]], index


def _taps(positions: list[Dim], taps: list[Dim], attrs: Attrs) -> list[Dim]:
    strides, dilations = _numbers(attrs, "strides", len(taps)), _numbers(attrs, "dilations", len(taps))
    return [
        dims.add(dims.multiply(o, stride), dims.multiply(k, dilation))
        for o, k, stride, dilation in zip(positions, taps, strides, dilations, strict=True)
    ]


def windows(a: Array, kernel: tuple[int, ...], strides: Any, dilations: Any) -> Array:
    """All windows as a view: the input's leading axes, window positions, then the taps."""
    rank = len(kernel)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    spans = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    if any(span > extent for span, extent in zip(spans, a.shape[-rank:], strict=True)):
        places = zip(a.shape[-rank:], kernel, strides, dilations, strict=True)
        return np.empty((*a.shape[:-rank], *(reach(*each) for each in places), *kernel), a.dtype)
    view = np.lib.stride_tricks.sliding_window_view(a, spans, axis=tuple(range(a.ndim - rank, a.ndim)))
    at = tuple(slice(None, None, s) for s in strides) + tuple(slice(None, None, d) for d in dilations)
    index: Any = (..., *at)
    return np.asarray(view[index])


def _window(a: Array, kernel: Any, strides: Any, dilations: Any, fold: str) -> Array:
    view = windows(a, kernel, strides, dilations)
    wide = view.astype(np.float64) if fold == "sum" and dtypes.of(a).is_float else view
    taps = tuple(range(view.ndim - len(kernel), view.ndim))
    return np.asarray(FOLDS[fold].reference(wide, axis=taps)).astype(a.dtype)


def _folding(fold: str) -> Callable[..., Array]:
    return lambda a, kernel, strides, dilations: _window(a, kernel, strides, dilations, fold)


for _fold in ("max", "min", "sum"):
    TABLE.register(
        Op(
            f"window_{_fold}",
            Kind.WINDOW,
            1,
            _window_shape,
            same,
            _folding(_fold),
            index=_window_index,
            fold=_fold,
            attributes={"kernel": REQUIRED, "strides": None, "dilations": None},
            dtypes=NUMBERS,
            tolerance=8,
            doc=f"{_fold} over windows of the trailing axes",
        )
    )


# -- convolution: out[n, g, o, ..] = sum over c, k of x[n, g, c, .. * stride + k * dilation] * w[g, o, c, k] ---------
def _conv_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    x, w = shapes
    rank = len(x) - 3
    if rank < 1 or len(w) != len(x):
        text = "expected [batch, groups, channels, ...] and [groups, out, channels, ...]"
        raise ShapeError(f"operands {show_shape(x)} and {show_shape(w)}: {text}")
    groups = require_equal(x[1], w[0], "groups")
    require_equal(x[2], w[2], "channels of a group")
    steps = zip(x[3:], w[3:], _numbers(attrs, "strides", rank), _numbers(attrs, "dilations", rank), strict=True)
    return (x[0], groups, w[1], *(reach(*each) for each in steps))


def _conv_index(shapes: list[Shape], out: Shape, attrs: Attrs, axes: Axes) -> tuple[list[list[Dim]], list[Dim]]:
    index = [axes.out(extent) for extent in out]
    batch, group, channel, *positions = index
    depth = axes.fold(shapes[0][2])
    taps = [axes.fold(size) for size in shapes[1][3:]]
    return [[batch, group, depth, *_taps(positions, taps, attrs)], [group, channel, depth, *taps]], index


def _conv(x: Array, w: Array, strides: Any, dilations: Any) -> Array:
    wide = np.float64 if np.issubdtype(x.dtype, np.floating) else x.dtype
    view = windows(x.astype(wide), tuple(w.shape[3:]), strides, dilations)
    rank = x.ndim - 3
    letters = "abcdefgh"
    positions, taps = letters[:rank], letters[rank : 2 * rank]
    with np.errstate(all="ignore"):
        result = np.einsum(f"ngi{positions}{taps},goi{taps}->ngo{positions}", view, w.astype(wide), optimize=True)
    return np.asarray(result).astype(x.dtype)


TABLE.register(
    Op(
        "grouped_conv",
        Kind.CONTRACT,
        2,
        _conv_shape,
        same,
        _conv,
        index=_conv_index,
        attributes={"strides": None, "dilations": None},
        dtypes=tuple(t for t in NUMBERS if t.is_float or t.size >= 4),
        flops=2,
        tolerance=float("inf"),
        doc="convolution without padding: x [batch, groups, in, ...] with w [groups, out, in, ...]",
    )
)
