"""Convolutions with padding, their transposes, gemm, linear and einsum: composites of the contraction rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autofusion.dims import Dim, Shape, add, floordiv, modulo, multiply, product, require_equal, show_shape
from autofusion.dtypes import Array, DType
from autofusion.errors import GraphError, ShapeError
from autofusion.kinds import Kind
from autofusion.ops.elementwise import NUMBERS
from autofusion.ops.norms import per_channel
from autofusion.ops.rules import broadcast, same
from autofusion.ops.table import TABLE, Attrs, Builder, Op
from autofusion.ops.window import reach

PRODUCTS = tuple(t for t in NUMBERS if t.is_float or t in (DType.INT32, DType.INT64))  # those of matmul


def _contraction(name: str, arity: Any, shape_rule: Any, reference: Any, lower: Any, attributes: Any, doc: str) -> None:
    TABLE.register(
        Op(
            name,
            Kind.CONTRACT,
            arity,
            shape_rule,
            same,
            reference,
            lower=lower,
            attributes=attributes,
            dtypes=PRODUCTS,
            tolerance=math.inf,
            flops=2,
            doc=doc,
        )
    )


def _wide(a: Array) -> Array:
    return a.astype(np.float64) if a.dtype.kind not in "biu" else a


# -- convolution -------------------------------------------------------------------------------------------------------
class _Steps:
    """The attributes of a convolution over `rank` trailing axes, with defaults. Raises GraphError naming a bad one."""

    def __init__(self, attrs: Attrs, rank: int) -> None:
        self.strides = self._numbers(attrs, "strides", rank, 1, 1)
        self.dilations = self._numbers(attrs, "dilations", rank, 1, 1)
        pads = self._numbers(attrs, "pads", 2 * rank, 0, None)
        self.before, self.after = pads[:rank], pads[rank:]
        self.extra = self._numbers(attrs, "output_padding", rank, 0, 0)
        self.groups = attrs["groups"]
        if not isinstance(self.groups, int) or self.groups < 1:
            raise GraphError(f"groups={self.groups!r}: expected a positive integer")

    @staticmethod
    def _numbers(attrs: Attrs, name: str, count: int, default: int, least: int | None) -> tuple[int, ...]:
        values = attrs.get(name)
        values = (default,) * count if values is None else values
        fits = isinstance(values, tuple) and len(values) == count and all(isinstance(v, int) for v in values)
        if not fits or (least is not None and any(v < least for v in values)):
            bound = "" if least is None else f" of at least {least}"
            raise GraphError(f"{name}={values!r}: expected {count} integers{bound}")
        return values


def _operands(shapes: list[Shape], attrs: Attrs) -> tuple[Shape, Shape, _Steps]:
    x, w = shapes[:2]
    if len(x) < 3 or len(w) != len(x):
        raise ShapeError(f"operands {show_shape(x)} and {show_shape(w)}: expected [batch, channels, ...] and one rank")
    steps = _Steps(attrs, len(x) - 2)
    for name, channels in (("input channels", x[1]), ("the weights' first axis", w[0])):
        if modulo(channels, steps.groups) != 0:
            raise ShapeError(f"groups={steps.groups} does not divide {name} ({channels})")
    return x, w, steps


def _bias(shapes: list[Shape], channels: Dim) -> None:
    if len(shapes) > 2:
        if len(shapes[2]) != 1:
            raise ShapeError(f"bias {show_shape(shapes[2])}: expected one value for each of {channels} channels")
        require_equal(shapes[2][0], channels, "bias")


def _conv_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    x, w, steps = _operands(shapes, attrs)
    require_equal(floordiv(x[1], steps.groups), w[1], "channels of a group")
    _bias(shapes, w[0])
    padded = [add(add(n, b), c) for n, b, c in zip(x[2:], steps.before, steps.after, strict=True)]
    places = zip(padded, w[2:], steps.strides, steps.dilations, strict=True)
    return (x[0], w[0], *(reach(*each) for each in places))


def _grouped(F: Builder, x: Any, w: Any, steps: _Steps) -> Any:
    """[n, c, ...] with weights [o, c/g, ...], no padding, by way of the group axis."""
    shape, taps, groups = F.type_of(x).shape, F.type_of(w).shape, steps.groups
    x = F.reshape(x, shape=(shape[0], groups, floordiv(shape[1], groups), *shape[2:]))
    w = F.reshape(w, shape=(groups, floordiv(taps[0], groups), *taps[1:]))
    y = F.grouped_conv(x, w, strides=steps.strides, dilations=steps.dilations)
    made = F.type_of(y).shape
    return F.reshape(y, shape=(made[0], multiply(made[1], made[2]), *made[3:]))


def _biased(F: Builder, y: Any, bias: list[Any]) -> Any:
    return F.add(y, per_channel(F, bias[0], len(F.type_of(y).shape))) if bias else y


def _conv_lower(F: Builder, x: Any, w: Any, *rest: Any) -> Any:
    *bias, attrs = rest
    steps = _Steps(attrs, len(F.type_of(x).shape) - 2)
    if any(steps.before) or any(steps.after):
        x = F.pad(x, before=(0, 0, *steps.before), after=(0, 0, *steps.after))
    return _biased(F, _grouped(F, x, w, steps), bias)


def _conv(x: Array, w: Array, *bias: Array, **attrs: Any) -> Array:
    steps, groups = _Steps(attrs, x.ndim - 2), attrs["groups"]
    x = TABLE.get("pad").reference(x, (0, 0, *steps.before), (0, 0, *steps.after), "constant", 0)
    x = _wide(x).reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    grouped = _wide(w).reshape(groups, w.shape[0] // groups, *w.shape[1:])
    y = TABLE.get("grouped_conv").reference(x, grouped, steps.strides, steps.dilations)
    y = y.reshape(y.shape[0], y.shape[1] * y.shape[2], *y.shape[3:])
    if bias:
        y = y + _wide(bias[0]).reshape(-1, *(1,) * (y.ndim - 2))
    return np.asarray(y).astype(w.dtype)


_CONV: dict[str, Any] = {"strides": None, "pads": None, "dilations": None, "groups": 1}
_contraction(
    "conv",
    (2, 3),
    _conv_shape,
    _conv,
    _conv_lower,
    _CONV,
    "convolution of [n, c, ...] with [o, c/groups, ...] and a bias [o]; pads: all befores, then all afters",
)


def _transposed_extent(extent: Dim, taps: Dim, steps: _Steps, axis: int) -> Dim:
    span = multiply(add(taps, -1), steps.dilations[axis])
    whole = add(multiply(add(extent, -1), steps.strides[axis]), add(span, 1))
    return add(whole, steps.extra[axis] - steps.before[axis] - steps.after[axis])


def _conv_transpose_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    x, w, steps = _operands(shapes, attrs)
    require_equal(x[1], w[0], "channels")
    _bias(shapes, multiply(w[1], steps.groups))
    made = [_transposed_extent(n, k, steps, d) for d, (n, k) in enumerate(zip(x[2:], w[2:], strict=True))]
    if any(isinstance(extent, int) and extent < 0 for extent in made):
        raise ShapeError(f"pads={attrs['pads']!r} take more than there is: {made}")
    return (x[0], multiply(w[1], steps.groups), *made)


def _number(extent: Dim, taps: Shape) -> int:
    if not isinstance(extent, int):
        raise GraphError(f"weights {show_shape(taps)}: give the extents of the taps as numbers")
    return extent


def _conv_transpose_lower(F: Builder, x: Any, w: Any, *rest: Any) -> Any:
    """Zeros between the elements and around them, then a convolution with the weights turned around."""
    *bias, attrs = rest
    dtype, shape = F.type_of(x)
    taps, rank = F.type_of(w).shape, len(shape) - 2
    steps = _Steps(attrs, rank)
    groups = steps.groups
    spans = [multiply(add(k, -1), d) for k, d in zip(taps[2:], steps.dilations, strict=True)]
    lead = [_number(s, taps) - b for s, b in zip(spans, steps.before, strict=True)]
    trail = [_number(s, taps) + e - c for s, c, e in zip(spans, steps.after, steps.extra, strict=True)]
    stuffed = [add(multiply(add(n, -1), s), 1) for n, s in zip(shape[2:], steps.strides, strict=True)]
    first, last = [max(each, 0) for each in lead], [max(each, 0) for each in trail]
    whole = [add(n, b + c) for n, b, c in zip(stuffed, first, last, strict=True)]
    if any(whole[d] != shape[2 + d] for d in range(rank)):
        x = F.slice_update(
            F.expand(F.scalar(0, dtype), shape=(*shape[:2], *whole)),
            x,
            starts=(0, 0, *first),
            stops=(*shape[:2], *(add(n, b) for n, b in zip(stuffed, first, strict=True))),
            steps=(1, 1, *steps.strides),
        )
    if any(each < 0 for each in (*lead, *trail)):
        crop = [tuple(min(each, 0) for each in ends) for ends in (lead, trail)]
        x = F.pad(x, before=(0, 0, *crop[0]), after=(0, 0, *crop[1]))
    w = F.reshape(w, shape=(groups, floordiv(taps[0], groups), *taps[1:]))
    w = F.flip(F.transpose(w, axes=(0, 2, 1, *range(3, 3 + rank))), axes=tuple(range(3, 3 + rank)))
    w = F.reshape(w, shape=(multiply(taps[1], groups), floordiv(taps[0], groups), *taps[2:]))
    plain = _Steps({"dilations": steps.dilations, "groups": groups}, rank)
    return _biased(F, _grouped(F, x, w, plain), bias)


def _conv_transpose(x: Array, w: Array, *bias: Array, **attrs: Any) -> Array:
    """Every element adds its multiple of the weights to the place where they stand."""
    rank, groups = x.ndim - 2, attrs["groups"]
    steps = _Steps(attrs, rank)
    made = [_transposed_extent(n, k, steps, d) for d, (n, k) in enumerate(zip(x.shape[2:], w.shape[2:], strict=True))]
    room = [int(m) + b + c for m, b, c in zip(made, steps.before, steps.after, strict=True)]  # type: ignore[arg-type]
    wide_x = _wide(x).reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    wide_w = _wide(w).reshape(groups, w.shape[0] // groups, *w.shape[1:])
    y = np.zeros((x.shape[0], groups, w.shape[1], *room), wide_x.dtype)
    for tap in np.ndindex(*w.shape[2:]):
        term = np.einsum("ngi...,gio->ngo...", wide_x, wide_w[(slice(None),) * 3 + tap])
        where = [
            slice(k * d, k * d + (n - 1) * s + 1, s)
            for k, d, s, n in zip(tap, steps.dilations, steps.strides, x.shape[2:], strict=True)
        ]
        y[(..., *where)] += term  # type: ignore[arg-type]
    inside = [slice(b, n - c) for b, c, n in zip(steps.before, steps.after, room, strict=True)]
    y = y[(..., *inside)]  # type: ignore[arg-type]
    y = y.reshape(y.shape[0], y.shape[1] * y.shape[2], *y.shape[3:])
    if bias:
        y = y + _wide(bias[0]).reshape(-1, *(1,) * rank)
    return np.asarray(y).astype(w.dtype)


_contraction(
    "conv_transpose",
    (2, 3),
    _conv_transpose_shape,
    _conv_transpose,
    _conv_transpose_lower,
    _CONV | {"output_padding": None},
    "the transpose of conv: [n, c, ...] with [c, o/groups, ...] and a bias [o]; pads are taken off the result",
)


# -- gemm and linear ---------------------------------------------------------------------------------------------------
def _swapped(shape: Shape, swap: bool) -> Shape:
    return (shape[1], shape[0]) if swap else shape


def _gemm_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    for shape in shapes[:2]:
        if len(shape) != 2:
            raise ShapeError(f"operand {show_shape(shape)}: expected rank 2")
    a, b = _swapped(shapes[0], attrs["trans_a"]), _swapped(shapes[1], attrs["trans_b"])
    require_equal(a[1], b[0], f"inner extents of {show_shape(a)} and {show_shape(b)}")
    made = (a[0], b[1])
    if len(shapes) > 2 and broadcast([made, shapes[2]]) != made:
        raise ShapeError(f"c {show_shape(shapes[2])} does not broadcast to {show_shape(made)}")
    return made


def _gemm_lower(F: Builder, a: Any, b: Any, *rest: Any) -> Any:
    *more, attrs = rest
    a = F.transpose(a) if attrs["trans_a"] else a
    b = F.transpose(b) if attrs["trans_b"] else b
    y = F.matmul(a, b)
    y = y if attrs["alpha"] == 1 else F.mul(y, attrs["alpha"])
    if not more:
        return y
    return F.add(y, more[0] if attrs["beta"] == 1 else F.mul(more[0], attrs["beta"]))


def _gemm(a: Array, b: Array, *more: Array, alpha: float, beta: float, trans_a: bool, trans_b: bool) -> Array:
    wide = [_wide(each) for each in (a, b, *more)]
    factors = (alpha, beta) if a.dtype.kind not in "biu" else (int(alpha), int(beta))
    y = np.matmul(wide[0].T if trans_a else wide[0], wide[1].T if trans_b else wide[1]) * factors[0]
    return np.asarray(y + wide[2] * factors[1] if more else y).astype(a.dtype)


_contraction(
    "gemm",
    (2, 3),
    _gemm_shape,
    _gemm,
    _gemm_lower,
    {"alpha": 1.0, "beta": 1.0, "trans_a": False, "trans_b": False},
    "alpha · a b + beta · c, either matrix transposed before; c broadcasts",
)


def _linear_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    x, w = shapes[:2]
    if not x or len(w) != 2:
        raise ShapeError(f"operands {show_shape(x)} and {show_shape(w)}: expected [..., in] and [out, in]")
    require_equal(x[-1], w[1], "inputs")
    _bias(shapes, w[0])
    return (*x[:-1], w[0])


def _linear_lower(F: Builder, x: Any, w: Any, *rest: Any) -> Any:
    *bias, _ = rest
    shape = F.type_of(x).shape
    rows = F.reshape(x, shape=(1, *shape)) if len(shape) == 1 else x
    y = F.matmul(rows, F.transpose(w))
    y = F.add(y, bias[0]) if bias else y
    return F.reshape(y, shape=F.type_of(y).shape[1:]) if len(shape) == 1 else y


def _linear(x: Array, w: Array, *bias: Array) -> Array:
    y = np.matmul(_wide(x), _wide(w).T)
    return np.asarray(y + _wide(bias[0]) if bias else y).astype(x.dtype)


_contraction(
    "linear", (2, 3), _linear_shape, _linear, _linear_lower, {}, "x wᵀ + bias: [..., in] with [out, in] and [out]"
)


# -- einsum ------------------------------------------------------------------------------------------------------------
Labels = tuple[str, ...]


def _parse(equation: Any, ranks: list[int]) -> tuple[list[Labels], Labels]:
    """The labels of every operand and of the output; an ellipsis becomes labels counted from the right: .0, .1, …"""
    if not isinstance(equation, str):
        raise GraphError(f"equation={equation!r}: expected text")
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise GraphError(f"equation={equation!r} names {len(terms)} operands, got {len(ranks)}")
    operands = [_labels(term, rank, equation) for term, rank in zip(terms, ranks, strict=True)]
    widest = max((sum(each.startswith(".") for each in labels) for labels in operands), default=0)
    dots = tuple(f".{d}" for d in reversed(range(widest)))
    everything = [each for labels in operands for each in labels]
    if arrow:
        before, found, after = right.partition("...")
        output = (*before, *(dots if found else ()), *after)
    else:
        output = (*dots, *sorted(e for e in set(everything) if everything.count(e) == 1 and not e.startswith(".")))
    for each in output:
        if each not in everything or output.count(each) > 1:
            raise GraphError(f"equation={equation!r}: output label {each!r} is unknown or stands twice")
    return operands, output


def _labels(term: str, rank: int, equation: str) -> Labels:
    before, found, after = term.partition("...")
    dots = rank - len(before) - len(after)
    named = before + after
    if (named and not named.isalpha()) or dots < 0 or (dots and not found):
        raise GraphError(f"equation={equation!r}: {term!r} does not fit an operand of rank {rank}")
    return (*before, *(f".{d}" for d in reversed(range(dots))), *after)


def _extents(shapes: list[Shape], operands: list[Labels]) -> dict[str, Dim]:
    extents: dict[str, Dim] = {}
    for shape, labels in zip(shapes, operands, strict=True):
        for label, extent in zip(labels, shape, strict=True):
            known = extents.get(label, 1)
            if known == 1 or extent == 1:
                extents[label] = extent if known == 1 else known
            else:
                extents[label] = require_equal(known, extent, f"label {label!r}")
    return extents


def _einsum_shape(shapes: list[Shape], attrs: Attrs) -> Shape:
    operands, output = _parse(attrs["equation"], [len(shape) for shape in shapes])
    extents = _extents(shapes, operands)
    return tuple(extents[label] for label in output)


class _Contraction:
    """Pairwise contraction, left to right: transposes, reshapes and one matmul (or product) a pair."""

    def __init__(self, F: Builder, extents: dict[str, Dim]) -> None:
        self.F = F
        self.extents = extents

    def single(self, a: Any, labels: Labels) -> tuple[Any, Labels]:
        """Labels that stand twice become one, by diagonals."""
        for label in dict.fromkeys(labels):
            while labels.count(label) > 1:
                first = labels.index(label)
                second = labels.index(label, first + 1)
                rest = [d for d in range(len(labels)) if d not in (first, second)]
                a = self.F.diagonal(self.F.transpose(a, axes=(*rest, first, second)))
                labels = (*(labels[d] for d in rest), label)
        return a, labels

    def without(self, a: Any, labels: Labels, keep: set[str]) -> tuple[Any, Labels]:
        """Labels that nobody else needs are summed."""
        gone = tuple(d for d, label in enumerate(labels) if label not in keep)
        if not gone:
            return a, labels
        dtype = self.F.type_of(a).dtype
        total = self.F.sum(a, axes=gone)
        total = total if self.F.type_of(total).dtype is dtype else self.F.cast(total, dtype=dtype)
        return total, tuple(label for label in labels if label in keep)

    def ordered(self, a: Any, labels: Labels, order: Labels) -> Any:
        axes = tuple(labels.index(label) for label in order)
        return a if axes == tuple(range(len(axes))) else self.F.transpose(a, axes=axes)

    def full(self, a: Any, labels: Labels, which: Labels) -> Any:
        """Extents of 1 that broadcast, repeated along these labels."""
        shape = self.F.type_of(a).shape
        wanted = tuple(self.extents[x] if x in which else n for x, n in zip(labels, shape, strict=True))
        return a if wanted == shape else self.F.expand(a, shape=wanted)

    def pair(self, a: Any, left: Labels, b: Any, right: Labels, keep: set[str]) -> tuple[Any, Labels]:
        F = self.F
        a, left = self.without(a, left, keep | set(right))
        b, right = self.without(b, right, keep | set(left))
        shared = tuple(label for label in left if label in right)
        batch = tuple(label for label in shared if label in keep)
        inner = tuple(label for label in shared if label not in keep)
        own, other = tuple(x for x in left if x not in shared), tuple(x for x in right if x not in shared)
        a, b = self.full(a, left, inner), self.full(b, right, inner)
        a, b = self.ordered(a, left, (*batch, *own, *inner)), self.ordered(b, right, (*batch, *inner, *other))
        lead_a, lead_b = F.type_of(a).shape[: len(batch)], F.type_of(b).shape[: len(batch)]
        sizes = [product(self.extents[x] for x in group) for group in (own, inner, other)]
        made = tuple(self.extents[x] for x in (*own, *other))
        if not inner:
            a = F.reshape(a, shape=(*lead_a, sizes[0], 1))
            b = F.reshape(b, shape=(*lead_b, 1, sizes[2]))
            y = F.mul(a, b)
        else:
            a = F.reshape(a, shape=(*lead_a, sizes[0], sizes[1]))
            b = F.reshape(b, shape=(*lead_b, sizes[1], sizes[2]))
            y = F.matmul(a, b)
        return F.reshape(y, shape=(*F.type_of(y).shape[: len(batch)], *made)), (*batch, *own, *other)


def _einsum_lower(F: Builder, *given: Any) -> Any:
    *arrays, attrs = given
    shapes = [F.type_of(a).shape for a in arrays]
    operands, output = _parse(attrs["equation"], [len(shape) for shape in shapes])
    work = _Contraction(F, _extents(shapes, operands))
    pending = [work.single(a, labels) for a, labels in zip(arrays, operands, strict=True)]
    a, left = pending[0]
    a = work.full(a, left, left)
    for number, (b, right) in enumerate(pending[1:], 2):
        b = work.full(b, right, right)
        keep = set(output).union(*(labels for _, labels in pending[number:]))
        a, left = work.pair(a, left, b, right, keep)
    a, left = work.without(a, left, set(output))
    y = work.ordered(a, left, output)
    return F.copy(y) if y is arrays[0] else y


def _einsum(*arrays: Array, equation: str) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(np.einsum(equation, *(_wide(a) for a in arrays))).astype(arrays[0].dtype)


_contraction(
    "einsum",
    (1, None),
    _einsum_shape,
    _einsum,
    _einsum_lower,
    {"equation": ""},
    "Einstein's summation, as NumPy's: labels shared are multiplied, those not in the output summed",
)
