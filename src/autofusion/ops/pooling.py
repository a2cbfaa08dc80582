"""Pooling over [batch, channels, ...]: composites of `pad` and the window rows; resizing by the reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autofusion import dtypes
from autofusion.dims import Dim, Shape, show_shape
from autofusion.dtypes import Array, DType
from autofusion.errors import GraphError, ShapeError
from autofusion.kinds import Kind
from autofusion.ops.elementwise import FLOATS, NUMBERS
from autofusion.ops.folds import least
from autofusion.ops.rules import same
from autofusion.ops.table import REQUIRED, TABLE, Attrs, Builder, Op
from autofusion.ops.window import windows


class Geometry:
    """The trailing axes of a pooling: taps, steps, and how much is added at both ends so that every window fits.

    `beyond`: what the last window (ceil_mode) reaches past the declared padding, which no average counts.
    """

    def __init__(self, shape: Shape, attrs: Attrs) -> None:
        kernel = attrs["kernel"]
        if not isinstance(kernel, tuple) or len(kernel) != len(shape) - 2:
            raise GraphError(f"kernel={kernel!r}: expected one size for each axis of {show_shape(shape)} after two")
        rank = len(kernel)
        self.kernel = kernel
        self.strides = attrs["strides"] or (1,) * rank
        self.dilations = attrs.get("dilations") or (1,) * rank
        pads = attrs["pads"] or (0,) * (2 * rank)
        for name, values, count in (
            ("strides", self.strides, rank),
            ("dilations", self.dilations, rank),
            ("pads", pads, 2 * rank),
        ):
            if len(values) != count:
                raise GraphError(f"{name}={values!r}: expected {count} integers")
        self.before, self.after = pads[:rank], pads[rank:]
        self.beyond = (0,) * rank
        if attrs["ceil_mode"]:
            self.beyond = tuple(self._beyond(d, extent) for d, extent in enumerate(shape[2:]))

    def _beyond(self, axis: int, extent: Dim) -> int:
        """A window more where the last step leaves elements over, unless it would begin in the padding after."""
        if not isinstance(extent, int):
            raise GraphError(f"ceil_mode over the symbolic extent {extent}: give the extent as a number")
        span = (self.kernel[axis] - 1) * self.dilations[axis] + 1
        whole = extent + self.before[axis] + self.after[axis]
        count = -(-(whole - span) // self.strides[axis]) + 1
        if (count - 1) * self.strides[axis] >= extent + self.before[axis]:
            count -= 1
        return int(max((count - 1) * self.strides[axis] + span - whole, 0))

    def frame(self, beyond: bool = True) -> dict[str, tuple[int, ...]]:
        """`pad`'s attributes: the padding, and what the last window needs more."""
        more = self.beyond if beyond else (0,) * len(self.beyond)
        after = tuple(a + b for a, b in zip(self.after, more, strict=True))
        return {"before": (0, 0, *self.before), "after": (0, 0, *after)}

    def rest(self) -> dict[str, tuple[int, ...]]:
        return {"before": (0,) * (2 + len(self.beyond)), "after": (0, 0, *self.beyond)}

    @property
    def taps(self) -> dict[str, tuple[int, ...]]:
        return {"kernel": self.kernel, "strides": self.strides, "dilations": self.dilations}

    def padded(self, a: Array, value: Any) -> Array:
        frame = self.frame()
        widths = list(zip(frame["before"], frame["after"], strict=True))
        return np.pad(a, widths, constant_values=value)

    def view(self, a: Array, value: Any) -> Array:
        """All windows of the padded array, the taps flattened into the last axis."""
        found = windows(self.padded(a, value), self.kernel, self.strides, self.dilations)
        return found.reshape(*found.shape[: found.ndim - len(self.kernel)], -1)


def _pool_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    geometry = Geometry(shapes[0], attrs)
    shape = TABLE.get("pad").shape_rule(shapes, {**geometry.frame(), "mode": "constant", "value": 0.0})
    return TABLE.get("window_max").shape_rule([shape], geometry.taps)


def _max_pool(a: Array, **attrs: Any) -> Array:
    low = least(dtypes.of(a))
    return np.asarray(Geometry(a.shape, attrs).view(a, low).max(axis=-1))


def _max_pool_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    dtype, shape = F.type_of(a)
    geometry = Geometry(shape, attrs)
    return F.window_max(F.pad(a, **geometry.frame(), value=least(dtype)), **geometry.taps)


def _max_pool_indices(a: Array, **attrs: Any) -> Array:
    geometry = Geometry(a.shape, attrs)
    values = a.astype(np.float64) if dtypes.of(a).is_float else a
    where = geometry.view(np.arange(a.size).reshape(a.shape), -1)
    seen = geometry.view(values, least(dtypes.of(values)))
    # Padding never wins: among equals the first tap inside does.
    best = seen.max(axis=-1, keepdims=True)
    hit = ((seen == best) | (seen != seen)) & (where >= 0)
    return np.take_along_axis(where, hit.argmax(axis=-1)[..., None], -1)[..., 0].astype(np.int64)


_POOL: dict[str, Any] = {"kernel": REQUIRED, "strides": None, "pads": None, "dilations": None, "ceil_mode": False}


def _pool(name: str, shape_rule: Any, reference: Any, lower: Any, attributes: Any, doc: str, **row: Any) -> None:
    row.setdefault("dtypes", FLOATS)
    row.setdefault("kind", Kind.REDUCE)
    row.setdefault("dtype_rule", same)
    TABLE.register(
        Op(
            name=name,
            arity=1,
            shape_rule=shape_rule,
            reference=reference,
            lower=lower,
            attributes=attributes,
            doc=doc,
            **row,
        )
    )


_pool(
    "max_pool",
    _pool_shape,
    _max_pool,
    _max_pool_lower,
    _POOL,
    "largest of each window; padding never wins; NaN does",
    dtypes=NUMBERS,
)
_pool(
    "max_pool_indices",
    _pool_shape,
    _max_pool_indices,
    None,
    _POOL,
    "where max_pool's values stand: row-major positions in the whole input",
    kind=Kind.OPAQUE,
    dtypes=NUMBERS,
    dtype_rule=lambda types, attrs: DType.INT64,
)


def _average_pool(a: Array, count_include_pad: bool, **attrs: Any) -> Array:
    geometry = Geometry(a.shape, attrs)
    total = geometry.view(a.astype(np.float64), 0).sum(axis=-1)
    frame = geometry.frame(beyond=False)
    counted = np.ones(a.shape[2:])
    if count_include_pad:
        counted = np.pad(counted, list(zip(frame["before"][2:], frame["after"][2:], strict=True)), constant_values=1)
        outside = np.pad(counted, [(0, b) for b in geometry.beyond])
        view = windows(outside[None, None], geometry.kernel, geometry.strides, geometry.dilations)
        count = view.reshape(*view.shape[: 2 + len(geometry.kernel)], -1).sum(axis=-1)
    else:
        count = geometry.view(counted[None, None], 0).sum(axis=-1)
    return np.asarray(total / count).astype(a.dtype)


def _average_pool_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    """Sums over windows; how many elements each counts does not depend on the data and is summed the same way."""
    dtype, shape = F.type_of(a)
    geometry = Geometry(shape, attrs)
    total = F.window_sum(F.pad(a, **geometry.frame()), **geometry.taps)
    padding = any(geometry.before) or any(geometry.after)
    if not any(geometry.beyond) and (attrs["count_include_pad"] or not padding):
        return F.div(total, float(math.prod(geometry.kernel)))
    counted = F.expand(F.scalar(1.0, dtype), shape=(1, 1, *shape[2:]))
    if attrs["count_include_pad"]:
        counted = F.pad(counted, **geometry.frame(beyond=False), value=1.0)
        counted = F.pad(counted, **geometry.rest())
    else:
        counted = F.pad(counted, **geometry.frame())
    return F.div(total, F.window_sum(counted, **geometry.taps))


_pool(
    "average_pool",
    _pool_shape,
    _average_pool,
    _average_pool_lower,
    _POOL | {"count_include_pad": False},
    "mean of each window; padding counts where asked",
    tolerance=math.inf,
)


def _lp_pool(a: Array, p: int, **attrs: Any) -> Array:
    view = Geometry(a.shape, attrs).view(np.abs(a.astype(np.float64)), 0)
    return np.asarray((view**p).sum(axis=-1) ** (1 / p)).astype(a.dtype)


def _lp_pool_lower(F: Builder, a: Any, attrs: Attrs) -> Any:
    geometry, p = Geometry(F.type_of(a).shape, attrs), attrs["p"]
    size = F.mul(a, a) if p == 2 else F.abs(a) if p == 1 else F.pow(F.abs(a), float(p))
    total = F.window_sum(F.pad(size, **geometry.frame()), **geometry.taps)
    return total if p == 1 else F.sqrt(total) if p == 2 else F.pow(total, 1 / p)


_pool(
    "lp_pool",
    _pool_shape,
    _lp_pool,
    _lp_pool_lower,
    _POOL | {"p": 2},
    "(sum |a|^p)^(1/p) of each window",
    tolerance=32,
)


def _global_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    if len(shapes[0]) < 3:
        raise ShapeError(f"operand {show_shape(shapes[0])}: expected [batch, channels, ...]")
    if 0 in shapes[0][2:]:
        raise ShapeError(f"operand {show_shape(shapes[0])}: a pooling of nothing has no value")
    return (*shapes[0][:2], *(1,) * (len(shapes[0]) - 2))


def _space(rank: int) -> tuple[int, ...]:
    return tuple(range(2, rank))


_pool(
    "global_average_pool",
    _global_shape,
    lambda a: np.mean(a.astype(np.float64), axis=_space(a.ndim), keepdims=True).astype(a.dtype),
    lambda F, a, attrs: F.mean(a, axes=_space(len(F.type_of(a).shape)), keepdims=True),
    {},
    "mean over all axes after batch and channels",
    tolerance=math.inf,
)
_pool(
    "global_max_pool",
    _global_shape,
    lambda a: np.max(a, axis=_space(a.ndim), keepdims=True),
    lambda F, a, attrs: F.max(a, axes=_space(len(F.type_of(a).shape)), keepdims=True),
    {},
    "largest over all axes after batch and channels",
    dtypes=NUMBERS,
)
