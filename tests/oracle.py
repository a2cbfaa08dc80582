"""What all tests share: test values by element type, comparison by a row's tolerance, random valid graphs.

from oracle import assert_bits, assert_close, random_array, random_graph, unhurried
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from autofusion import dtypes
from autofusion.dtypes import Array, DType
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph, Value
from autofusion.ops import TABLE, Kind, Op, reference

EXTENTS = (0, 1, 2, 3, 5, 7, 8)
# Time is not what property tests look at, and a busy machine is not a failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


# -- values ----------------------------------------------------------------------------------------------------------
def random_array(
    rng: np.random.Generator, dtype: DType, shape: Any, domain: tuple[float, float] = (-4.0, 4.0)
) -> Array:
    """Values of the domain; integers from it too, so that products stay readable."""
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    low, high = domain
    values = rng.uniform(low, high, shape)
    if dtype.is_float:
        return np.asarray(values).astype(dtype.numpy)
    return np.asarray(np.trunc(values if dtype.is_signed else np.abs(values) * 20)).astype(dtype.numpy)


def edges_of(dtype: DType) -> Array:
    """The values that break kernels: NaN, infinities, both zeros, denormals, limits."""
    if dtype is DType.BOOL:
        return np.array([False, True])
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        small = [0, 1, 2, 3, 7] + ([-1, -2, -7] if dtype.is_signed else [])
        return np.array([limits.min, limits.min + 1, limits.max, limits.max - 1, *small], dtype.numpy)
    limits = ml_dtypes.finfo(dtype.numpy)
    tiny = [float(limits.smallest_subnormal), float(limits.smallest_normal), 1e-3]
    listed = [math.nan, math.inf, 0.0, 0.5, 1.0, 3.0, float(limits.max), *tiny]
    return np.array([sign * value for value in listed for sign in (1, -1)]).astype(dtype.numpy)


# -- comparison ------------------------------------------------------------------------------------------------------
def epsilon(dtype: DType) -> float:
    """Distance from 1 to the next value of a float type."""
    return float(ml_dtypes.finfo(dtype.numpy).eps)


def assert_bits(actual: Array, expected: Array) -> None:
    """The same type, shape and bits; any NaN equals any other."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if dtypes.of(actual).is_float:
        nan = np.isnan(expected.astype(np.float64))
        assert np.array_equal(np.isnan(actual.astype(np.float64)), nan)
        actual, expected = actual[~nan], expected[~nan]
    assert actual.tobytes() == expected.tobytes(), f"{actual} is not {expected}"


def assert_close(actual: Array, expected: Array, tolerance: float, scale: Any = None) -> None:
    """Within `tolerance` epsilons of the result's type; NaN and infinities in the same places; integers equal.

    Relative to `scale`, by default the expected value, or the largest of the array (at most 1) where that is more: near
    zero a composite cancels (gelu, log_softmax, norms). Give `error_scale(...)` for sums and contractions.
    """
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    dtype = dtypes.of(expected)
    if not dtype.is_float:
        assert np.array_equal(actual, expected), f"{actual} is not {expected}"
        return
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    special = ~np.isfinite(e)
    assert np.array_equal(a[special], e[special], equal_nan=True), f"{actual} is not {expected}"
    finite = np.abs(e[~special])
    given = None if scale is None else np.broadcast_to(np.asarray(scale, np.float64), e.shape)[~special]
    size = np.maximum(finite, min(1.0, finite.max(initial=0.0))) if given is None else np.maximum(given, finite)
    allowed = tolerance * epsilon(dtype) * size + float(ml_dtypes.finfo(dtype.numpy).smallest_subnormal)
    worst = np.abs(a[~special] - e[~special]) / allowed
    assert np.all(worst <= 1), f"off by {worst.max():.3g} times the tolerance: {actual} is not {expected}"


def error_scale(row: Op, arrays: list[Array], attrs: Any) -> Array:
    """The same sum or contraction over absolute values: what the rounding error of any order of it is relative to."""
    wide = [np.abs(a.astype(np.float64)) for a in arrays]
    return reference.apply(row, wide, attrs)


# -- samples: what to try a row with -----------------------------------------------------------------------------------
# Attributes of elementwise rows, by the row's name; every row without an entry is tried with its defaults.
ATTRIBUTES_OF: dict[str, tuple[dict[str, Any], ...]] = {
    "cast": tuple({"dtype": dtype} for dtype in DType),
    "gelu": ({"approximate": "none"}, {"approximate": "tanh"}),
    "isinf": tuple({"detect_negative": n, "detect_positive": p} for n in (True, False) for p in (True, False)),
    "logit": ({"eps": None}, {"eps": 0.125}),
    "celu": ({"alpha": 1.0}, {"alpha": 0.75}),
    "shrink": ({"bias": 0.0, "lambd": 0.5}, {"bias": 1.5, "lambd": 1.5}),
}


def attributes_of(row: Op) -> tuple[dict[str, Any], ...]:
    """Attributes to try an elementwise row with."""
    return ATTRIBUTES_OF.get(row.name, ({},))


class At(NamedTuple):
    """An operand of its own element type: integers from `low` up to below `high`."""

    shape: tuple[int, ...]
    low: int
    high: int
    dtype: DType = DType.INT64


POOLS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    (((2, 3, 9),), {"kernel": (3,)}),
    (((2, 3, 7, 8),), {"kernel": (3, 2), "strides": (2, 3), "pads": (1, 0, 1, 1)}),
    (((1, 2, 8, 8),), {"kernel": (3, 3), "strides": (3, 2), "pads": (0, 1, 1, 1), "ceil_mode": True}),
    (((1, 1, 4, 5, 6),), {"kernel": (2, 2, 2), "dilations": (1, 2, 3)}),
)

# Rows that are not elementwise and fit no shape that others share: (operands, attributes), several a row. An operand is
# a shape (of the row's element type) or an `At`.
SAMPLES: dict[str, tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]] = {
    **{
        f"window_{fold}": (
            (((2, 9, 8),), {"kernel": (2, 3)}),
            (((2, 9, 8),), {"kernel": (3,), "strides": (2,), "dilations": (2,)}),
        )
        for fold in ("max", "min", "sum")
    },
    "grouped_conv": (
        (((2, 2, 3, 9), (2, 4, 3, 3)), {}),
        (((2, 2, 3, 9), (2, 4, 3, 3)), {"strides": (2,), "dilations": (3,)}),
    ),
    "glu": ((((5, 8),), {}), (((4, 3, 2),), {"axis": 0})),
    "argmax": tuple(
        (((5, 7),), {"axis": a, "keepdims": k, "select_last": s}) for a, k, s in ((0, False, False), (-1, True, True))
    ),
    "argmin": tuple(
        (((5, 7),), {"axis": a, "keepdims": k, "select_last": s}) for a, k, s in ((0, False, True), (1, True, False))
    ),
    "argsort": ((((5, 7),), {}), (((5, 7),), {"axis": 0, "descending": True})),
    "sort_values": ((((5, 7),), {}), (((5, 7),), {"axis": 0, "descending": True})),
    "topk_indices": ((((5, 7),), {"k": 3}), (((5, 7),), {"k": 2, "axis": 0, "largest": False})),
    "topk_values": ((((5, 7),), {"k": 3}), (((5, 7),), {"k": 0, "axis": 0, "largest": False})),
    "gather_elements": ((((5, 7), At((5, 4), -7, 7)), {"axis": 1}), (((3, 4), At((9, 2), -3, 3, DType.INT32)), {})),
    "gather_nd": (
        (((5, 7, 3), At((4, 2), -5, 5)), {}),
        (((5, 7), At((2, 2, 2), -5, 5, DType.INT32)), {}),
        (((2, 7, 3), At((2, 4, 1), -7, 7)), {"batch_dims": 1}),
    ),
    "one_hot": ((((4,), (), ()), {"depth": 5}), (((2, 3), (), ()), {"depth": 4, "axis": 0})),
    "flip": ((((5, 7),), {"axes": (0,)}), (((2, 3, 4),), {"axes": (-1, 0)})),
    "roll": ((((5, 7),), {"shifts": (2, -3), "axes": (0, 1)}), (((5, 7),), {"shifts": (9,), "axes": (-1,)})),
    "stack": ((((5, 7), (5, 7), (5, 7)), {}), (((5, 7), (5, 7)), {"axis": -1})),
    "tile": ((((5, 7),), {"repeats": (2, 3)}), (((5, 1),), {"repeats": (1, 4)}), (((5,),), {"repeats": (0,)})),
    "squeeze": ((((5, 1, 7, 1),), {}), (((5, 1, 7, 1),), {"axes": (-1,)})),
    "unsqueeze": ((((5, 7),), {"axes": (0, -1)}), (((),), {"axes": (0,)})),
    "unfold": ((((5, 9),), {"axis": 1, "size": 3, "step": 2}), (((5, 9),), {"axis": 0, "size": 2})),
    "as_strided": (
        (((5, 7),), {"shape": (3, 4), "strides": (2, 9)}),
        (((5, 7),), {"shape": (3, 2, 4), "strides": (-1, 0, 7), "offset": 6}),
    ),
    "diagonal": tuple((((2, 5, 7),), {"offset": k}) for k in (0, 2, -3)),
    "pad": tuple(
        (((5, 7),), {"before": b, "after": c, "mode": m, "value": 2.0})
        for m in ("constant", "reflect", "edge", "wrap")
        for b, c in (((2, 0), (1, 3)), ((-1, 4), (0, -2)), ((9, 0), (0, 8)))
    ),
    "trilu": tuple((((2, 5, 7),), {"upper": u, "k": k}) for u in (True, False) for k in (0, 2, -1)),
    "depth_to_space": tuple((((2, 8, 2, 3),), {"block": 2, "mode": m}) for m in ("DCR", "CRD")),
    "space_to_depth": ((((2, 3, 4, 6),), {"block": 2}),),
    "batch_norm": ((((2, 3, 5), (3,), (3,), (3,), (3,)), {}), (((2, 3), (3,), (3,), (3,), (3,)), {"epsilon": 0.1})),
    "instance_norm": ((((2, 3, 5, 4), (3,), (3,)), {}),),
    "group_norm": ((((2, 6, 5, 4), (6,), (6,)), {"num_groups": 3}),),
    "lrn": ((((2, 7, 3, 2),), {"size": 3}), (((2, 5, 3),), {"size": 4, "alpha": 0.5, "bias": 2.0})),
    "norm": tuple((((5, 7),), {"axes": (1,), "p": p}) for p in (0.0, 1.0, 2.0, 3.0, float("inf"), float("-inf"))),
    "log_sum": ((((5, 7),), {"axes": (1,)}), (((5, 7),), {"axes": (0,), "keepdims": True})),
    "max_pool": POOLS,
    "max_pool_indices": POOLS,
    "average_pool": tuple((o, a | {"count_include_pad": c}) for o, a in POOLS for c in (True, False)),
    "lp_pool": tuple((o, a | {"p": p}) for o, a in POOLS[:2] for p in (1, 2, 3)),
    "global_average_pool": ((((2, 3, 5),), {}), (((2, 3, 5, 4),), {})),
    "global_max_pool": ((((2, 3, 5),), {}), (((2, 3, 5, 4),), {})),
    "conv": (
        (((2, 3, 9), (4, 3, 3)), {}),
        (((2, 4, 9), (6, 2, 3), (6,)), {"groups": 2, "strides": (2,), "pads": (1, 2), "dilations": (2,)}),
        (((1, 4, 6, 7), (4, 1, 3, 2), (4,)), {"groups": 4, "strides": (1, 2), "pads": (1, 0, 1, 1)}),
        (((1, 2, 3, 4, 5), (3, 2, 2, 2, 2)), {"pads": (0, 1, 0, 0, 0, 1)}),
    ),
    "conv_transpose": (
        (((2, 3, 5), (3, 4, 3)), {}),
        (((2, 4, 5), (4, 3, 3), (6,)), {"groups": 2, "strides": (2,), "pads": (1, 0), "output_padding": (1,)}),
        (((1, 2, 3, 4), (2, 3, 2, 3)), {"strides": (2, 3), "dilations": (2, 1), "pads": (1, 2, 0, 1)}),
        (((1, 2, 3, 4), (2, 3, 1, 2)), {"pads": (1, 0, 0, 3)}),
    ),
    "gemm": (
        (((5, 7), (7, 3)), {}),
        (((7, 5), (3, 7), (3,)), {"alpha": 2.0, "beta": 3.0, "trans_a": True, "trans_b": True}),
        (((5, 7), (7, 3), (5, 1)), {"alpha": 4.0}),
    ),
    "linear": ((((2, 5, 7), (3, 7), (3,)), {}), (((7,), (3, 7)), {})),
    "einsum": (
        (((5, 7), (7, 3)), {"equation": "ij,jk->ik"}),
        (((2, 5, 7), (2, 4, 7)), {"equation": "bik,bjk->bij"}),
        (((2, 3, 5, 7), (5, 3, 4)), {"equation": "abcd,cbe->ead"}),
        (((5, 7),), {"equation": "ij->ji"}),
        (((5, 7),), {"equation": "ij->"}),
        (((4, 4),), {"equation": "ii"}),
        (((3, 4, 4),), {"equation": "aii->ai"}),
        (((5,), (7,)), {"equation": "i,j->ij"}),
        (((5,), (5,)), {"equation": "i,i"}),
        (((2, 1, 5, 7), (3, 7, 4)), {"equation": "...ij,...jk->...ik"}),
        (((2, 3), (3, 4), (4, 5)), {"equation": "ab,bc,cd->ad"}),
        (((5, 7), (5, 7)), {"equation": "ij,ij->ij"}),
        (((5, 7), (4,)), {"equation": "ij,k->i"}),
    ),
    "resize": (
        *(
            (((2, 3, 4),), {"sizes": (2, 3, 7), "coordinate": c, "mode": m, "scales": "1, 1, 1.8"})
            for c in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
            for m in ("nearest", "linear", "cubic")
        ),
        *((((1, 5, 8),), {"sizes": (1, 3, 3), "mode": m, "antialias": True}) for m in ("linear", "cubic")),
        *((((1, 1, 5),), {"sizes": (1, 1, 8), "nearest": n}) for n in ("floor", "ceil", "round_prefer_ceil")),
        (
            ((1, 4, 4),),
            {
                "sizes": (1, 3, 6),
                "mode": "linear",
                "coordinate": "tf_crop_and_resize",
                "roi": "0, 0.2, -0.3, 1, 0.8, 1.2",
                "extrapolation": 2.0,
            },
        ),
        (((1, 4, 4),), {"sizes": (1, 3, 6), "mode": "cubic", "exclude_outside": True, "cubic": -0.5}),
    ),
    "scatter_elements": tuple(
        (((5, 7), At((3, 7), -5, 5), (3, 7)), {"reduction": r}) for r in ("none", "add", "mul", "max", "min")
    ),
    "scatter_nd": tuple(
        (((5, 7), At((4, 1), -5, 5), (4, 7)), {"reduction": r}) for r in ("none", "add", "mul", "max", "min")
    ),
}


# Edge values only in the first operand (the zeros that conv_transpose puts between elements meet infinite weights), or
# nowhere (einsum sums before it multiplies).
CALM = {"conv_transpose": 1, "einsum": 0}


def sample(
    row: Op, dtype: DType, operands: tuple[Any, ...], rng: np.random.Generator, edges: bool = False
) -> list[Array]:
    """Arrays for the operands of a sample; with `edges`, some elements are edge values that do not overflow."""
    made = []
    for operand in operands:
        if isinstance(operand, At):
            made.append(rng.integers(operand.low, operand.high, operand.shape).astype(operand.dtype.numpy))
            continue
        values = random_array(rng, dtype, operand, row.domain)
        if edges and values.size and len(made) < CALM.get(row.name, 9):
            listed = edges_of(dtype)
            if dtype.is_float:
                listed = listed[np.isinf(listed) | ~(np.abs(listed.astype(np.float64)) > 1e4)]
            values = np.where(rng.random(operand) < 0.2, rng.choice(listed, operand), values)
        made.append(np.asarray(values))
    return made


# -- random graphs ---------------------------------------------------------------------------------------------------
class _Drawing:
    """A graph that grows by drawn steps; every step is valid by construction."""

    def __init__(self, draw: Callable[[Any], Any], composites: bool) -> None:
        self.draw = draw
        self.composites = composites
        self.F = GraphBuilder("random")
        self.rng = np.random.default_rng(draw(st.integers(0, 2**31)))
        self.pool: list[Value] = []
        self.arrays: list[Array] = []

    def pick(self, choices: Any) -> Any:
        return self.draw(st.sampled_from(list(choices)))

    def shape(self, least: int = 0) -> tuple[int, ...]:
        return tuple(self.pick(EXTENTS) for _ in range(self.draw(st.integers(least, 3))))

    def leaf(self, dtype: DType, shape: Any) -> Value:
        array = random_array(self.rng, dtype, shape)
        if self.pick((True, True, False)):
            value = self.F.input(f"x{len(self.arrays)}", dtype, tuple(shape))
            self.arrays.append(array)
        else:
            value = self.F.constant(array)
        self.pool.append(value)
        return value

    def operand(self, row: Op, least_rank: int = 0) -> Value:
        """A value that the row admits, new where there is none."""
        known = [v for v in self.pool if v.dtype in row.dtypes and len(v.shape) >= least_rank]
        return self.pick(known) if known else self.leaf(self.pick(row.dtypes), self.shape(least_rank))

    def beside(self, value: Value, dtype: DType | None = None) -> Value:
        """A second operand of the same type that broadcasts with the first."""
        dtype = dtype or value.dtype
        known = [v for v in self.pool if v.dtype is dtype and _broadcasts(v.shape, value.shape)]
        if known and self.pick((True, True, False)):
            return self.pick(known)
        shape = tuple(self.pick((extent, 1)) for extent in value.shape)
        return self.leaf(dtype, shape[self.draw(st.integers(0, len(shape))) :])

    def rows(self, *kinds: Kind) -> list[Op]:
        return [r for r in TABLE if r.kind in kinds and (self.composites or r.lower is None)]

    # -- steps ----------------------------------------------------------------------------------------------------
    def elementwise(self) -> Value:
        row = self.pick(self.rows(Kind.ELEMENTWISE))
        first = self.operand(row)
        if row.name == "where":
            second = self.beside(first, self.pick(DType))
            return self.F.where(first, second, second if not _fits(first, second) else self.beside(second))
        attrs = self.pick(attributes_of(row))
        others: list[Value] = []
        for _ in range(int(row.arity) - 1):  # type: ignore[call-overload]
            other = self.beside(first)
            others.append(other if all(_broadcasts(other.shape, o.shape) for o in others) else others[0])
        return self.F.emit(row.name, [first, *others], attrs)

    def reduce(self) -> Value:
        row = self.pick([r for r in self.rows(Kind.REDUCE) if "axes" in r.attributes])
        value = self.operand(row)
        chosen = [d for d in range(len(value.shape)) if self.draw(st.booleans())]
        axes = None if self.draw(st.booleans()) else tuple(d - len(value.shape) * self.pick((0, 1)) for d in chosen)
        attrs = {"axes": axes, "keepdims": self.draw(st.booleans())}
        folded = range(len(value.shape)) if axes is None else chosen
        if any(value.shape[d] == 0 for d in folded):
            return value  # a maximum of nothing is an error
        return self.F.emit(row.name, [value], attrs)

    def along(self) -> Value:
        """Scans, softmax, norms: whatever takes one axis or trailing axes."""
        rows = [r for r in self.rows(Kind.REDUCE, Kind.SCAN) if set(r.attributes) & {"axis", "rank"}]
        row = self.pick(rows)
        value = self.operand(row, 1)
        rank = len(value.shape)
        attrs = {"axis": self.draw(st.integers(-rank, rank - 1))} if "axis" in row.attributes else {}
        if "axis" in attrs and "keepdims" in row.attributes and value.shape[attrs["axis"]] == 0:
            return value  # the position of the largest of nothing is an error
        return self.F.emit(row.name, [value], attrs)

    def view(self) -> Value:
        value = self.pick(self.pool)
        rank = len(value.shape)
        which = self.pick(("reshape", "transpose", "expand", "slice"))
        if which == "transpose":
            order = self.draw(st.permutations(range(rank)))
            return self.F.transpose(value, axes=tuple(a - rank * self.pick((0, 1)) for a in order))
        if which == "expand":
            lead = tuple(self.pick((1, 2)) for _ in range(self.draw(st.integers(0, 1))))
            return self.F.expand(
                value, shape=lead + tuple(3 if e == 1 and self.pick((0, 1)) else e for e in value.shape)
            )
        if which == "slice":
            return self.F.slice(value, **self.slices(value))
        size = math.prod(value.shape)
        first = self.pick([d for d in range(1, size + 1) if size % d == 0] or [1])
        return self.F.reshape(value, shape=self.pick([(first, -1), (size,), (-1,) if size else (0,), (1, first, -1)]))

    def slices(self, value: Value) -> dict[str, Any]:
        bound = st.integers(-9, 9)
        made = [(self.draw(bound), self.draw(bound), self.pick((1, 1, 2, 3, -1, -2))) for _ in value.shape]
        starts, stops, steps = zip(*made, strict=True) if made else ((), (), ())
        return {"starts": starts, "stops": stops, "steps": steps}

    def join(self) -> Value:
        value = self.operand(TABLE.get("concat"), 1)
        if self.draw(st.booleans()):
            attrs = self.slices(value)
            region = TABLE.get("slice").infer([value.type], attrs).shape
            return self.F.slice_update(value, self.leaf(value.dtype, region), **attrs)
        axis = self.draw(st.integers(-len(value.shape), len(value.shape) - 1))
        other = list(value.shape)
        other[axis] = self.pick(EXTENTS)
        return self.F.concat(value, self.leaf(value.dtype, other), value, axis=axis)

    def matmul(self) -> Value:
        left = self.operand(TABLE.get("matmul"), 2)
        return self.F.matmul(left, self.leaf(left.dtype, (left.shape[-1], self.pick(EXTENTS))))

    def gather(self) -> Value:
        data = self.operand(TABLE.get("gather"), 1)
        axis = self.draw(st.integers(0, len(data.shape) - 1))
        extent = data.shape[axis]
        if extent == 0:
            return data
        wanted = self.leaf(self.pick((DType.INT32, DType.INT64)), self.shape())
        wraps = self.draw(st.booleans())
        return self.F.gather(data, self.F.int_remainder(wanted, extent), axis=axis, wraps=wraps)

    def source(self) -> Value:
        shape = self.shape(1)
        if self.draw(st.booleans()):
            return self.F.iota(
                shape=shape, axis=self.draw(st.integers(-len(shape), len(shape) - 1)), dtype=self.pick(DType)
            )
        return self.F.full(shape=shape, value=self.pick((0, 1.5, -0.0, True)), dtype=self.pick(DType))


def _broadcasts(a: Any, b: Any) -> bool:
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True


def _fits(first: Value, second: Value) -> bool:
    """Whether what broadcasts with `second` must broadcast with `first` as well."""
    return len(first.shape) == 0 or first.shape == second.shape


@st.composite
def random_graph(
    draw: Any, most: int = 12, composites: bool = True, least_outputs: int = 1
) -> tuple[Graph, list[Array]]:
    """A valid graph of up to `most` drawn operators from the op table, and arrays for its inputs.

    Extents are small (0, 1, primes), element types are mixed, slices go both ways, outputs may repeat, and may be
    inputs, constants or views. Without `composites`, primitives only.
    """
    d = _Drawing(draw, composites)
    d.leaf(d.pick(DType), d.shape())
    steps = (d.elementwise, d.elementwise, d.reduce, d.along, d.view, d.view, d.join, d.matmul, d.gather, d.source)
    for _ in range(draw(st.integers(1, most))):
        made = d.pick(steps)()
        # Joins and expands of joins must not grow without end.
        if math.prod(made.shape) < 4096:
            d.pool.append(made)
    for _ in range(draw(st.integers(least_outputs, 3))):
        d.F.output(d.pick(d.pool))
    d.F.output(d.pool[-1])
    return d.F.build(), d.arrays
