"""The table of ATen overloads, one by one against PyTorch: element types, edge values, layouts, broadcasting.

An overload's cases are one FX graph without decompositions, so that its row of the table is what is compiled.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the frontend is PyTorch's; extra `torch`")
pytest.importorskip("expecttest", reason="PyTorch's operator database needs it")
pytest.importorskip("torch._inductor.inductor_prims", reason="it declares prims.fma")

from autofusion.frontends.torch.aten import ATEN  # noqa: E402
from autofusion.frontends.torch.backend import DRAWN, KEPT, MORE, OF_THE_BATCH, decompositions  # noqa: E402
from autofusion.frontends.torch.program import Program, Settings  # noqa: E402
from benchmarks.op_db import wrong_tensor  # noqa: E402

Cases = list[tuple[Any, ...]]
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
EVERY = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool)
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.75, math.inf, -math.inf, math.nan, 1e-3, 7.0)
INTEGERS = (0, 1, -1, 2, -7, 100, 13, 3, -128, 127, 5, -4)


def tensor(dtype: Any, shift: int = 0) -> Any:
    """[3, 4] of values that matter; another order for another `shift`, and no zero among integers there."""
    values = NUMBERS if dtype.is_floating_point else INTEGERS
    turned = [*values[shift:], *values[:shift]]
    if shift and not dtype.is_floating_point:
        turned = [each or 6 for each in turned]
    return (
        torch.tensor(turned, dtype=torch.float64)
        .to(torch.int64 if dtype is torch.uint8 else dtype)
        .to(dtype)
        .reshape(3, 4)
    )


def tame(dtype: Any, *shape: int) -> Any:
    """Finite values of small size, all different where the type allows."""
    count = math.prod(shape)
    values = (torch.arange(count, dtype=torch.float64) * 7 % max(count, 1) - count // 2) / (
        8 if dtype.is_floating_point else 1
    )
    return (values.abs() if dtype is torch.uint8 else values).to(dtype).reshape(shape)


def index(*values: Any) -> Any:
    return torch.tensor(values if len(values) != 1 else values[0], dtype=torch.int64)


def unary(dtype: Any) -> Cases:
    x = tensor(dtype)
    return [(x,), (x.t(),), (x[:, ::2],), (x[:0],), (x[1, 2],), (x[0].expand(2, 4),)]


def binary(dtype: Any) -> Cases:
    x, y = tensor(dtype), tensor(dtype, 5)
    layouts = [(x, y), (x, y[1]), (x.t(), y.t()), (x, y[2, 1]), (x[0, 2], y), (x[:0], y[:0]), (x[:1], y[:, :1])]
    return [*layouts, (x[0].expand(3, 4), y)]


def with_number(dtype: Any) -> Cases:
    x = tensor(dtype)
    numbers = (2, -3, 2.5, True) if dtype.is_floating_point else (2, -3) if dtype is not torch.bool else (True, 2)
    return [(each, number) for number in numbers for each in (x, x.t(), x[:0], x[2, 3])]


def attended(q: Any, k: Any, v: Any, *more: Any, **named: Any) -> tuple[Any, ...]:
    """Arguments of attention's backward pass: a gradient, what was given, what came out."""
    out, logarithm = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, *more, **named)
    return (q + v, q, k, v, out, logarithm, *more, *([named] if named else []))


def where_given(*cases: Callable[[Any], tuple[Any, ...]], shape: tuple[int, ...] = (3, 4)) -> Callable[[Any], Cases]:
    """Cases from finite values of a shape."""
    return lambda dtype: [case(tame(dtype, *shape)) for case in cases]


def of_edges(*cases: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], Cases]:
    """Cases from the values that matter, [3, 4]."""
    return lambda dtype: [case(tensor(dtype)) for case in cases]


def of_two(*cases: Callable[[Any, Any], tuple[Any, ...]]) -> Callable[[Any], Cases]:
    return lambda dtype: [case(tensor(dtype), tensor(dtype, 5)) for case in cases]


def folds(*more: Any) -> Callable[[Any], Cases]:
    """One axis and what follows it."""

    def make(dtype: Any) -> Cases:
        x, y = tensor(dtype), tame(dtype, 3, 4)
        return [(x, 0, *more), (y, -1, *more), (y.t(), 0, *more), (y[1, 1], 0, *more), (y[:, :0], 0, *more)]

    return make


def lists(dtype: Any) -> Cases:
    x, y = tensor(dtype), tame(dtype, 3, 4)
    return [(x, [0]), (y, [0, 1]), (y, [-1], True), (y.t(), [0]), (y[:0], [1]), (y[1, 1], [0])]


def deviations(dtype: Any) -> Cases:
    """Variances; also of fewer elements than the correction, and of a tensor without axes."""
    x = tame(dtype, 3, 4)
    some = [(x, [0]), (x, [1], {"correction": 0}), (x, None, {"keepdim": True}), (x, [0], {"correction": 1.5})]
    few = [(x[:1], [0]), (x, [0], {"correction": 3}), (x, [0], {"correction": 4.5}), (x[:, :0], [1])]
    return [*some, *few, (x[1, 1], []), (x[1, 1], [0], {"correction": 0, "keepdim": True})]


def whole(dtype: Any) -> Cases:
    x = tame(dtype, 3, 4)
    return [(tensor(dtype),), (x,), (x.t(),), (x[1, 1],)]


def hidden(dtype: Any) -> Any:
    """[3, 3] to add to scores: some of the first row, all of the second, none of the third are hidden."""
    return torch.tensor([[0, -math.inf, 0.5], [-math.inf] * 3, [0.0, 1.0, -2.0]], dtype=dtype)


def image(rank: int, *more: Any) -> Callable[[Any], Cases]:
    """Images with and without a batch, and the arguments after them."""
    extents = (7, 6, 5)[:rank]
    return lambda dtype: [(tame(dtype, 2, 2, *extents), *more), (tame(dtype, 3, *extents), *more)]


def pooled(name: str, rank: int, *settings: tuple[Any, ...]) -> Callable[[Any], Cases]:
    """Gradients of an average pool of images with and without a batch, by its arguments."""

    def make(dtype: Any) -> Cases:
        forward, cases = getattr(torch.ops.aten, f"{name}{rank}d"), []
        for (given,), each in itertools.product(image(rank)(dtype), settings):
            gradient = tame(dtype, *forward(given, *each).shape)
            cases.append((gradient, given, *(each if name == "avg_pool" else ())))
        return cases

    return make


ENDS = ((4.3, 50), (-3, 50.9), (7, -2.5), (2, 2))
ROWS: dict[str, Callable[[Any], Cases]] = {
    **dict.fromkeys(
        [
            f"{name}.default"
            for name in [
                "exp",
                "exp2",
                "expm1",
                "log",
                "log2",
                "log10",
                "log1p",
                "sqrt",
                "rsqrt",
                "sin",
                "cos",
                "tan",
                "asin",
                "acos",
                "atan",
                "sinh",
                "cosh",
                "tanh",
                "asinh",
                "acosh",
                "atanh",
                "sigmoid",
                "erf",
                "erfc",
                "erfinv",
                "lgamma",
                "digamma",
                "reciprocal",
                "sinc",
                "neg",
                "abs",
                "sign",
                "floor",
                "ceil",
                "trunc",
                "round",
                "logical_not",
                "bitwise_not",
                "isnan",
                "isinf",
                "isfinite",
                "signbit",
                "relu",
                "gelu",
                "silu",
                "mish",
                "leaky_relu",
                "elu",
                "softplus",
                "clone",
                "lift_fresh_copy",
                "alias",
                "detach",
                "zeros_like",
                "ones_like",
                "t",
                "nan_to_num",
                "angle",
                "logit",
                "hardtanh",
                "i0",
                "special_i0e",
                "special_i1",
                "special_i1e",
                "special_modified_bessel_i0",
                "special_modified_bessel_i1",
                "special_modified_bessel_k0",
                "special_modified_bessel_k1",
                "special_scaled_modified_bessel_k0",
                "special_scaled_modified_bessel_k1",
                "special_bessel_j0",
                "special_bessel_j1",
                "special_bessel_y0",
                "special_bessel_y1",
                "special_spherical_bessel_j0",
                "special_erfcx",
                "special_ndtri",
            ]
        ],
        unary,
    ),
    **dict.fromkeys(
        [
            "maximum.default",
            "minimum.default",
            "fmax.default",
            "fmin.default",
            "atan2.default",
            "hypot.default",
            "copysign.Tensor",
            "xlogy.Tensor",
            "logaddexp.default",
            "heaviside.default",
            "eq.Tensor",
            "ne.Tensor",
            "lt.Tensor",
            "le.Tensor",
            "gt.Tensor",
            "ge.Tensor",
            "bitwise_and.Tensor",
            "bitwise_or.Tensor",
            "bitwise_xor.Tensor",
            "remainder.Tensor",
            "floor_divide.default",
            "div.Tensor",
            "true_divide.Tensor",
            "add.Tensor",
            "sub.Tensor",
            "rsub.Tensor",
            "mul.Tensor",
            "fmod.Tensor",
            "pow.Tensor_Tensor",
            "logical_and.default",
            "logical_or.default",
            "logical_xor.default",
        ],
        binary,
    ),
    **dict.fromkeys(
        [
            "eq.Scalar",
            "ne.Scalar",
            "lt.Scalar",
            "le.Scalar",
            "gt.Scalar",
            "ge.Scalar",
            "bitwise_and.Scalar",
            "bitwise_or.Scalar",
            "bitwise_xor.Scalar",
            "remainder.Scalar",
            "div.Scalar",
            "true_divide.Scalar",
            "add.Scalar",
            "sub.Scalar",
            "rsub.Scalar",
            "mul.Scalar",
            "fmod.Scalar",
            "copysign.Scalar",
            "clamp.default",
            "clamp_min.default",
            "clamp_max.default",
            "fill.Scalar",
            "full_like.default",
        ],
        with_number,
    ),
    "div.Tensor_mode": of_two(
        lambda x, y: (x, y, {"rounding_mode": "floor"}), lambda x, y: (x, y, {"rounding_mode": "trunc"})
    ),
    "div.Scalar_mode": of_edges(
        lambda x: (x, 3, {"rounding_mode": "floor"}), lambda x: (x, -2, {"rounding_mode": "trunc"})
    ),
    "pow.Tensor_Scalar": of_edges(*(lambda x, e=e: (x, e) for e in (0, 1, 2, 3, 5, 0.5, -0.5, -1, -2, 1.7))),
    "pow.Scalar": of_edges(lambda x: (2.0, x), lambda x: (1, x)),
    "round.decimals": of_edges(
        lambda x: (x, {"decimals": 1}), lambda x: (x, {"decimals": 0}), lambda x: (x, {"decimals": -1})
    ),
    "clamp.Tensor": of_two(lambda x, y: (x, y, None), lambda x, y: (x, None, y), lambda x, y: (x, y[0], y[1])),
    "clamp_min.Tensor": binary,
    "clamp_max.Tensor": binary,
    "addcmul.default": of_two(lambda x, y: (x, y, x), lambda x, y: (x, y, y[0], {"value": 2})),
    "addcdiv.default": of_two(lambda x, y: (x, y, x), lambda x, y: (x, y, y[0], {"value": 2})),
    "prims.fma.default": of_two(lambda x, y: (x, y, x)),
    "lerp.Scalar": of_two(lambda x, y: (x, y, 0.25), lambda x, y: (x, y, 0.75)),
    "lerp.Tensor": of_two(lambda x, y: (x, y, x)),
    "polygamma.default": lambda dtype: [(k, torch.tensor([0.3, 2.0, 11.5, -0.7, 0.0]).to(dtype)) for k in (0, 1, 2, 3)],
    "bitwise_left_shift.Tensor": of_edges(lambda x: (x, tensor(x.dtype, 5).remainder(7))),
    "bitwise_left_shift.Tensor_Scalar": of_edges(lambda x: (x, 3)),
    "bitwise_right_shift.Tensor": of_edges(lambda x: (x, tensor(x.dtype, 5).remainder(7))),
    "bitwise_right_shift.Tensor_Scalar": of_edges(lambda x: (x, 3)),
    "where.self": of_two(lambda x, y: (x > y, x, y), lambda x, y: (x[0] > 1, x, y[1, 1])),
    "masked_fill.Scalar": of_edges(lambda x: (x, x > 1, 1), lambda x: (x, x[0] > 1, 0)),
    "masked_fill.Tensor": of_edges(lambda x: (x, x > 1, x[1, 1])),
    "copy.default": of_edges(lambda x: (x, x[0]), lambda x: (torch.zeros(3, 4), x)),
    "_to_copy.default": of_edges(*(lambda x, d=d: (x.nan_to_num(posinf=9, neginf=-9), {"dtype": d}) for d in EVERY)),
    "prims.convert_element_type.default": where_given(*(lambda x, d=d: (x, d) for d in EVERY)),
    "full.default": lambda dtype: [
        ([2, 3], 1, {"dtype": dtype}),
        ([], 0, {"dtype": dtype}),
        ([0, 2], 1, {"dtype": dtype}),
    ],
    "zeros.default": lambda dtype: [([2, 3], {"dtype": dtype}), ([], {"dtype": dtype})],
    "_efficientzerotensor.default": lambda dtype: [([2, 3], {"dtype": dtype})],
    "ones.default": lambda dtype: [([2, 3], {"dtype": dtype}), ([], {"dtype": dtype})],
    "scalar_tensor.default": lambda dtype: [(1, {"dtype": dtype})],
    "arange.start_step": lambda dtype: [
        (0, 5, 1, {"dtype": dtype}),
        (1, 9, 3, {"dtype": dtype}),
        (7, -2, -2, {"dtype": dtype}),
    ],
    "linspace.default": lambda dtype: [
        (*ends, steps, {"dtype": dtype}) for ends in ENDS for steps in (0, 1, 2, 7, 50) if dtype is not torch.bool
    ],
    **{
        f"linspace.{kind}": lambda dtype, kind=kind: [
            (
                *(torch.tensor(e) if k == "Tensor" else e for e, k in zip(ends, kind.split("_"), strict=True)),
                *(50, {"dtype": dtype}),
            )
            for ends in ENDS
        ]
        for kind in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
    },
    "prims.iota.default": lambda dtype: [
        (5, {"start": 2, "step": 3, "dtype": dtype, "device": torch.device("cpu"), "requires_grad": False})
    ],
    "eye.m": lambda dtype: [(2, 3, {"dtype": dtype})],
    "eye.default": lambda dtype: [(3, {"dtype": dtype})],
    # views
    "view.default": of_edges(lambda x: (x, [2, 6]), lambda x: (x, [-1])),
    "_unsafe_view.default": of_edges(lambda x: (x, [2, 6])),
    "reshape.default": of_edges(lambda x: (x, [4, 3])),
    "unsqueeze.default": of_edges(lambda x: (x, 0), lambda x: (x, -1), lambda x: (x[1, 1], 0)),
    "squeeze.default": of_edges(lambda x: (x[:1],)),
    "squeeze.dim": of_edges(lambda x: (x[:1], 0), lambda x: (x, 0)),
    "squeeze.dims": of_edges(lambda x: (x[:1, :1], [0, 1])),
    "permute.default": of_edges(lambda x: (x, [1, 0]), lambda x: (x, [-2, -1])),
    "transpose.int": of_edges(lambda x: (x, 0, -1)),
    "expand.default": of_edges(lambda x: (x[:1], [3, 4]), lambda x: (x[1], [2, -1])),
    "slice.Tensor": of_edges(lambda x: (x, 0, 1, 3), lambda x: (x, 1, -3, 9, 2), lambda x: (x, 0, 2, 1)),
    "select.int": of_edges(lambda x: (x, 0, 1), lambda x: (x, 1, -1)),
    "split_with_sizes.default": of_edges(lambda x: (x, [1, 3], 1)),
    "split.Tensor": of_edges(lambda x: (x, 3, 1)),
    "unbind.int": of_edges(lambda x: (x, 0), lambda x: (x, -1)),
    "unfold.default": of_edges(lambda x: (x, 1, 2, 1), lambda x: (x[1, 1], 0, 1, 1)),
    "as_strided.default": of_edges(lambda x: (x, [2, 3], [3, 2]), lambda x: (x[1:], [2, 2], [3, 2])),
    "as_strided_copy.default": of_edges(lambda x: (x, [2, 3], [3, 2]), lambda x: (x[1:], [2, 2], [3, 2])),
    "diagonal.default": of_edges(lambda x: (x,), lambda x: (x, 1), lambda x: (x, -1, 1, 0)),
    "diagonal_scatter.default": of_edges(
        lambda x: (x, x[0, :3]), lambda x: (x, x[0, :2], -1), lambda x: (x, x[0, :3], 1)
    ),
    # joins and positions
    "cat.default": of_edges(
        lambda x: ([x, x], 0), lambda x: ([x, x[:, :1], x.new_empty(0)], -1), lambda x: ([x[:0], x], 0)
    ),
    "stack.default": of_edges(lambda x: ([x, x], 0), lambda x: ([x, x], -1)),
    "constant_pad_nd.default": of_edges(lambda x: (x, [1, 2], 1), lambda x: (x, [-1, 1, 0, 2], 0)),
    "flip.default": of_edges(lambda x: (x, [0]), lambda x: (x, [0, -1])),
    "roll.default": of_edges(lambda x: (x, [5]), lambda x: (x, [1, -1], [0, 1])),
    "repeat.default": of_edges(lambda x: (x, [2, 1]), lambda x: (x[0], [2, 3])),
    "tril.default": of_edges(lambda x: (x,), lambda x: (x, 1)),
    "triu.default": of_edges(lambda x: (x,), lambda x: (x, -1)),
    "embedding.default": of_edges(lambda x: (x, index([[0, 2], [1, 1]]))),
    "index_select.default": of_edges(lambda x: (x, 1, index(3, 0, 0)), lambda x: (x[1, 1], 0, index([0]))),
    "gather.default": of_edges(
        lambda x: (x, 1, index([[0, 3], [1, 1]])),
        lambda x: (x[1, 1], 0, index([0])[0]),
        lambda x: (x[0], 0, index([[], []])),
    ),
    "take.default": of_edges(
        lambda x: (x, index([[0, -1], [7, 7]])), lambda x: (x.t(), index([5])[0]), lambda x: (x[1, 1], index([0])[0])
    ),
    "index.Tensor": of_edges(
        lambda x: (x, [index(2, 0), index(1, -1)]),
        lambda x: (x, [None, index([[3], [0]])]),
        lambda x: (x, [index(1, 2)]),
    ),
    "_unsafe_index.Tensor": of_edges(lambda x: (x, [index(2, 0), index(1, -1)])),
    "scatter.src": where_given(
        lambda x: (x, 1, index([[0, 3], [1, 1]]), x + x), lambda x: (x, 0, index([[2, 0, 1, 1]]), x.t().t())
    ),
    "scatter.value": where_given(
        lambda x: (x, 1, index([[0, 3], [1, 1]]), 1),
        lambda x: (x[0], 0, index([[], []]), 1),
        lambda x: (x[1, 1], 0, index([]), 1),
    ),
    "scatter.reduce": where_given(
        *(lambda x, r=r: (x, 1, index([[0, 3], [1, 1]]), x + x, {"reduce": r}) for r in ("add", "multiply"))
    ),
    "scatter.value_reduce": where_given(
        *(lambda x, r=r: (x, 1, index([[0, 3], [1, 1]]), 2, {"reduce": r}) for r in ("add", "multiply"))
    ),
    "scatter_add.default": where_given(
        lambda x: (x, 1, index([[0, 3, 0], [1, 1, 1]]), x), lambda x: (x[1, 1], 0, index([0])[0], x[2, 2])
    ),
    "scatter_reduce.two": where_given(
        *(
            lambda x, r=r, i=i: (x, 1, index([[0, 3, 0], [1, 1, 1], [2, 2, 2]]), x, r, {"include_self": i})
            for r in ("sum", "prod", "mean", "amax", "amin")
            for i in (True, False)
        )
    ),
    "index_reduce.default": where_given(
        *(
            lambda x, r=r, i=i: (x, 0, index(2, 0, 2), x, r, {"include_self": i})
            for r in ("prod", "mean", "amax", "amin")
            for i in (True, False)
        )
    ),
    "index_add.default": where_given(
        lambda x: (x, 0, index(2, 0, 2), x + x),
        lambda x: (x, 1, index(3, 0), x[:, :2], {"alpha": 3}),
        lambda x: (x[1, 1], 0, index([0])[0], x[1, 2]),
        lambda x: (x, 0, index([]), x[:0]),
    ),
    "index_copy.default": where_given(
        lambda x: (x, 0, index(2, 0), x[:2] + x[:2]),
        lambda x: (x, -1, index(3, 0), x[:, :2]),
        lambda x: (x[1, 1], 0, index([0])[0], x[1, 2]),
        lambda x: (x, 0, index([]), x[:0]),
    ),
    "index_fill.int_Scalar": where_given(
        lambda x: (x, 0, index(2, -3, 2), 2), lambda x: (x, -1, index([]), 2), lambda x: (x[1, 1], 0, index([0])[0], 2)
    ),
    "index_fill.int_Tensor": where_given(
        lambda x: (x, 1, index(2, -4), x[0, 3]), lambda x: (x[:0], 1, index(2), x[0, 3])
    ),
    "index_put.default": where_given(
        lambda x: (x, [index(2, 0, 2), index(1, -1, 1)], x[0, :3], True),
        lambda x: (x, [None, index(3, 0)], x[:, :2]),
        lambda x: (x, [index(1, 2)], x[0]),
        lambda x: (x, [x > 0], x[1, 1]),
    ),
    "_unsafe_index_put.default": where_given(lambda x: (x, [index(2, 0, 2), index(1, -1, 1)], x[0, :3], True)),
    "put.default": where_given(lambda x: (x, index(3, 7, 3), x[0, :3], True), lambda x: (x, index(3, -1), x[0, :2])),
    "masked_scatter.default": of_two(lambda x, y: (x, x > 0, y), lambda x, y: (x, x[0] > 0, y)),
    "searchsorted.Tensor": where_given(
        lambda x: (x.flatten().sort().values, x),
        lambda x: (x.sort().values, x[:, :2], {"right": True}),
        lambda x: (x[0].sort().values, x[1, 1], {"out_int32": True}),
    ),
    "searchsorted.Scalar": where_given(lambda x: (x.flatten().sort().values, 1)),
    "bucketize.Tensor": where_given(
        lambda x: (x, x.flatten().sort().values), lambda x: (x, x[0].sort().values, {"right": True})
    ),
    "bucketize.Scalar": where_given(lambda x: (1, x.flatten().sort().values)),
    "slice_scatter.default": of_edges(lambda x: (x, x[:2], 0, 1, 3), lambda x: (x, x[:, :2], 1, 0, 4, 2)),
    "select_scatter.default": of_edges(lambda x: (x, x[0], 0, -1)),
    # reductions
    **dict.fromkeys(
        ["sum.default", "prod.default", "mean.default", "max.default", "min.default", "any.default", "all.default"],
        whole,
    ),
    **dict.fromkeys(
        ["sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "any.dims", "all.dims", "logsumexp.default"],
        lists,
    ),
    **dict.fromkeys(
        ["prod.dim_int", "max.dim", "min.dim", "argmax.default", "argmin.default", "any.dim", "all.dim"], folds()
    ),
    **dict.fromkeys(
        ["cumsum.default", "cumprod.default", "cummax.default", "cummin.default", "logcumsumexp.default"], folds()
    ),
    **dict.fromkeys(["_softmax.default", "_log_softmax.default"], folds(False)),
    "_safe_softmax.default": lambda dtype: [
        *((x, dim) for dim in (0, -1) for x in (tensor(dtype), tame(dtype, 3, 4), hidden(dtype), hidden(dtype).t())),
        (tame(dtype, 3, 4), 0, torch.float64),
        (tame(dtype, 3, 4)[1, 1], 0),
        (tame(dtype, 3, 4)[:0], 0),
        (tame(dtype, 3, 4)[:0], 1),
    ],
    **dict.fromkeys(["var.correction", "std.correction", "var_mean.correction"], deviations),
    "var.dim": where_given(
        lambda x: (x, [0], False), lambda x: (x, [1]), lambda x: (x[:1], [0]), lambda x: (x[1, 1], [0])
    ),
    "_softmax_backward_data.default": where_given(
        lambda x: (x, x.float().softmax(1).to(x.dtype), 1, x.dtype),
        lambda x: (x[1, 1], torch.ones_like(x[1, 1]), 0, x.dtype),
    ),
    "_log_softmax_backward_data.default": where_given(
        lambda x: (x, x.float().log_softmax(1).to(x.dtype), 1, x.dtype),
        lambda x: (x[1, 1], torch.zeros_like(x[1, 1]), -1, x.dtype),
    ),
    "native_layer_norm.default": where_given(
        lambda x: (x, [4], x[0], x[1], 1e-5), lambda x: (x, [3, 4], None, None, 1e-3)
    ),
    "native_group_norm.default": where_given(
        lambda x: (x.reshape(2, 4, 6), x[0, 0, :4], x[1, 0, :4], 2, 4, 6, 2, 1e-5), shape=(2, 4, 6)
    ),
    "_native_batch_norm_legit_no_training.default": where_given(
        lambda x: (x, x[0], x[1], x[2], x[0].abs() + 1, 0.1, 1e-5),
        lambda x: (x, None, None, x[2], x[0].abs() + 1, 0.1, 1e-5),
    ),
    # products
    "mm.default": where_given(lambda x: (x, x.t()), lambda x: (x.t(), x), lambda x: (x[:0], x.t())),
    "bmm.default": where_given(lambda x: (x, x.transpose(1, 2)), shape=(2, 3, 4)),
    "mv.default": where_given(lambda x: (x, x[0])),
    "dot.default": where_given(lambda x: (x[0], x[1])),
    "addmm.default": where_given(
        lambda x: (x[:, :3], x, x.t()), lambda x: (x[0, :3], x, x.t(), {"alpha": 2, "beta": 3})
    ),
    "baddbmm.default": where_given(
        lambda x: (x[:, :, :3], x, x.transpose(1, 2), {"alpha": 2, "beta": 0}), shape=(2, 3, 4)
    ),
    "addmv.default": where_given(lambda x: (x[:, 0], x, x[0]), lambda x: (x[:, 0], x, x[0], {"alpha": 2, "beta": 3})),
    "addbmm.default": where_given(
        lambda x: (x[0, :, :3], x, x.transpose(1, 2), {"alpha": 2, "beta": 3}), shape=(2, 3, 4)
    ),
    "_cdist_forward.default": where_given(
        *(lambda x, p=p: (x, x[:2] + 1, p, None) for p in (0.0, 1.0, 2.0, 3.0, math.inf))
    ),
    "_pdist_forward.default": where_given(lambda x: (x, 2.0), lambda x: (x[:1], 1.0)),
    "convolution.default": where_given(
        lambda x: (x, x[:, :, :3, :2], None, [1, 1], [0, 1], [1, 1], False, [0, 0], 1),
        lambda x: (x, x[:, :1, :3, :2], x[0, 0, 0, :2], [2, 1], [0, 1], [1, 2], False, [0, 0], 2),
        lambda x: (x, x[:, :, :3, :2], None, [2, 1], [1, 0], [1, 1], True, [1, 0], 1),
        shape=(2, 2, 7, 6),
    ),
    "max_pool2d_with_indices.default": lambda dtype: [
        *image(2, [3, 2], [2, 1], [1, 0], [1, 2])(dtype),
        *image(2, [2, 2], [], [0, 0], [1, 1], True)(dtype),
        (tensor(dtype).reshape(1, 3, 4), [2, 2], [1, 1]),
    ],
    "avg_pool2d_backward.default": pooled(
        "avg_pool",
        2,
        ([3, 2], [2, 1], [1, 0], False, True, None),
        ([3, 2], [2, 1], [1, 1], True, False, None),
        ([2, 2], [3, 3], [1, 1], True, True, None),
        ([2, 3], [1, 2], [0, 0], False, True, 5),
    ),
    "avg_pool3d_backward.default": pooled("avg_pool", 3, ([2, 3, 2], [2, 1, 2], [1, 1, 0], True, False, None)),
    "_adaptive_avg_pool2d_backward.default": pooled("_adaptive_avg_pool", 2, ([3, 4],), ([7, 2],), ([9, 1],)),
    "_adaptive_avg_pool3d_backward.default": pooled("_adaptive_avg_pool", 3, ([3, 4, 2],)),
    "max_pool3d_with_indices.default": image(3, [2, 2, 2]),
    "avg_pool2d.default": lambda dtype: [
        *image(2, [3, 2], [2, 1], [1, 0])(dtype),
        *image(2, [2, 2], [], [1, 1], True, False)(dtype),
        *image(2, [2, 2], [], [0, 0], False, True, 3)(dtype),
        *image(2, [2, 3], [3, 2], [1, 1], True, False, 3)(dtype),
    ],
    "avg_pool3d.default": image(3, [2, 2, 2]),
    "_adaptive_avg_pool2d.default": lambda dtype: [*image(2, [3, 4])(dtype), *image(2, [7, 2])(dtype)],
    "_adaptive_avg_pool3d.default": image(3, [3, 4, 2]),
    "adaptive_max_pool2d.default": lambda dtype: [*image(2, [3, 4])(dtype), *image(2, [7, 2])(dtype)],
    "adaptive_max_pool3d.default": image(3, [3, 4, 2]),
    **{
        f"{kind}_pad{rank}d.default": image(rank, [1, 2] * rank)
        for kind in ("reflection", "replication")
        for rank in (1, 2, 3)
    },
    "_scaled_dot_product_flash_attention_for_cpu.default": where_given(
        lambda x: (x, x + 1, x * 2, 0.0, True),
        lambda x: (x, x + 1, x * 2),
        lambda x: (x, x + 1, x * 2, {"attn_mask": hidden(torch.float32).to(x.dtype).expand(1, 2, 3, 3)}),
        lambda x: (x, x + 1, x * 2, {"attn_mask": hidden(x.dtype)[:, :1], "scale": 0.3}),
        shape=(1, 2, 3, 4),
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": where_given(
        lambda x: attended(x, x + 1, x * 2, 0.0, True),
        lambda x: attended(x, x + 1, x * 2, 0.0, False),
        lambda x: attended(x, x + 1, x * 2, 0.0, False, scale=0.3, attn_mask=hidden(x.dtype)[:, :1]),
        shape=(1, 2, 3, 4),
    ),
}
# What memory holds decides their results: types and shapes are compared.
UNDEFINED: dict[str, Callable[[Any], Cases]] = {
    "empty.memory_format": lambda dtype: [([2, 3], {"dtype": dtype})],
    "empty_like.default": unary,
    "empty_permuted.default": lambda dtype: [([2, 3], [1, 0], {"dtype": dtype})],
    "empty_strided.default": lambda dtype: [([2, 3], [3, 1], {"dtype": dtype})],
    "new_empty_strided.default": of_edges(lambda x: (x, [2, 3], [3, 1])),
}
FEW = (torch.float32, torch.int64, torch.bool)  # the quick tier's


def overload_of(name: str) -> Any:
    space, _, rest = name.rpartition("prims.")
    packet, _, overload = rest.partition(".")
    return getattr(
        getattr(getattr(torch.ops, "prims" if space or name.startswith("prims.") else "aten"), packet), overload
    )


def test_every_row_is_an_overload_of_pytorch_and_has_cases() -> None:
    for name in ATEN:
        assert overload_of(name) is not None
    cases = {*ROWS, *UNDEFINED}
    assert set(ATEN) - cases == set()
    known = {str(each).removeprefix("aten.") for each in torch._decomp.decomposition_table}
    assert {*KEPT.split(), *MORE.split(), *DRAWN.split()} <= known | set(ATEN)
    assert set(OF_THE_BATCH.split()) <= set(MORE.split())


def flattened(listed: Sequence[tuple[Any, ...]]) -> tuple[list[Any], Any]:
    from torch.utils import _pytree

    leaves, spec = _pytree.tree_flatten(listed)
    tensors = [each for each in leaves if isinstance(each, torch.Tensor)]

    def rebuilt(given: Sequence[Any]) -> Any:
        rest = iter(given)
        return _pytree.tree_unflatten([next(rest) if isinstance(e, torch.Tensor) else e for e in leaves], spec)

    return tensors, rebuilt


def called(overload: Any, case: tuple[Any, ...]) -> list[Any]:
    kwargs = case[-1] if isinstance(case[-1], dict) else {}
    made = overload(*case[: len(case) - bool(kwargs)], **kwargs)
    listed = list(made) if isinstance(made, tuple | list) else [made]
    if "attention" in overload._name:
        listed = listed[:1]  # where the logarithms of the sums are read, PyTorch runs it
    return [each for each in listed if isinstance(each, torch.Tensor)]


def wide(case: Any) -> Any:
    from torch.utils import _pytree

    def each(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return item.double() if item.is_floating_point() else item
        return torch.float64 if item in FLOATS else item

    return _pytree.tree_map(each, case)


def compared(name: str, listed: Cases) -> bool | None:
    """Whether the overload was compiled; None where PyTorch itself has none of the cases."""
    from torch.fx.experimental.proxy_tensor import make_fx

    overload = overload_of(name)
    eager, kept = [], []
    for case in listed:
        try:
            eager.append(called(overload, case))
            kept.append(case)
        except (RuntimeError, NotImplementedError, IndexError, ZeroDivisionError, TypeError):
            continue
    if not kept:
        return None
    tensors, rebuilt = flattened(kept)

    def function(*given: Any) -> list[Any]:
        return [each for case in rebuilt(given) for each in called(overload, case)]

    try:
        graph = make_fx(function, decomposition_table={}, tracing_mode="fake")(*tensors)
    except RuntimeError:
        return None  # PyTorch's own shape rule refuses the type
    graph.graph.eliminate_dead_code()
    program = Program(graph, Settings())
    ours = iter(program(*tensors))
    for case, theirs in zip(kept, eager, strict=True):
        for number, wanted in enumerate(theirs):
            found = next(ours)
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), f"{name}{case}"
            if name in UNDEFINED:
                continue
            text = wrong_tensor(found, wanted, lambda case=case, number=number: called(overload, wide(case))[number])
            assert not text, f"{name}{case}: {text}\nours {found}\neager {wanted}"
    return overload._name not in {f"aten::{each}" for each, _ in program.fallbacks} and not program.fallbacks


@pytest.mark.parametrize("name", sorted(ROWS | UNDEFINED))
def test_a_row_gives_what_eager_mode_gives(name: str) -> None:
    _all_types(name, FEW)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(ROWS | UNDEFINED))
def test_a_row_gives_what_eager_mode_gives_in_every_type(name: str) -> None:
    _all_types(name, tuple(dtype for dtype in EVERY if dtype not in FEW))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, dtype) for name in ("fmax.default", "fmin.default") for dtype in (torch.int64, torch.bool)),
        *((name, torch.bool) for name in ("cummax.default", "cummin.default")),
        *((f"{name}.correction", torch.float32) for name in ("var", "std", "var_mean")),
        *((f"{name}_backward_data.default", torch.float32) for name in ("_softmax", "_log_softmax")),
        ("avg_pool2d.default", torch.float32),
        ("_safe_softmax.default", torch.float32),
        ("_scaled_dot_product_flash_attention_for_cpu.default", torch.float32),
        ("_scaled_dot_product_flash_attention_for_cpu_backward.default", torch.float32),
        *(
            (f"{name}{rank}d_backward.default", torch.float32)
            for rank in (2, 3)
            for name in ("avg_pool", "_adaptive_avg_pool")
        ),
    ],
    ids=str,
)
def test_all_cases_of_a_row_are_compiled(name: str, dtype: Any) -> None:
    assert compared(name, ROWS[name](dtype)) is True


def _all_types(name: str, dtypes: Sequence[Any]) -> None:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in dtypes:
            try:
                listed = (ROWS | UNDEFINED)[name](dtype)
            except (RuntimeError, NotImplementedError):
                continue  # PyTorch cannot make the operands
            found.append(compared(name, listed))
    assert any(found), f"{name} was compiled in none of {dtypes}: {found}"


def test_decompositions_leave_what_has_a_row() -> None:
    names = {str(each).removeprefix("aten.") for each in decompositions()}
    assert not names & set(KEPT.split())
    assert set(MORE.split()) <= names
