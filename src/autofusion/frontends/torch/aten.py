"""The table: an ATen overload, and what makes it of the op table's rows.

An overload that is not here, or whose maker raises Unmapped, runs in PyTorch.
"""

from __future__ import annotations

from autofusion.frontends.torch import attention, scatters, special
from autofusion.frontends.torch import contractions as c
from autofusion.frontends.torch import pointwise as p
from autofusion.frontends.torch import pool_gradients as gradients
from autofusion.frontends.torch import pooling as pools
from autofusion.frontends.torch import reductions as r
from autofusion.frontends.torch import shapes as s
from autofusion.frontends.torch.call import Maker

# Rows of floats; integers become the default float type.
_FLOATS = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "sigmoid erf erfc erfinv lgamma digamma reciprocal sinc"
)
# Rows where two operands meet.
_BINARY = (
    "maximum minimum atan2:f hypot copysign.Tensor:f copysign.Scalar:f xlogy.Tensor:f logaddexp "
    "eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar "
    "ge.Tensor ge.Scalar bitwise_and.Tensor bitwise_and.Scalar bitwise_or.Tensor bitwise_or.Scalar bitwise_xor.Tensor "
    "bitwise_xor.Scalar"
)
_ENDS = ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")


def _rows() -> dict[str, Maker]:
    made: dict[str, Maker] = {f"{row}.default": p.unary(row) for row in _FLOATS.split()}
    for each in _BINARY.split():
        name, _, kind = each.partition(":")
        row, _, overload = name.partition(".")
        made[f"{row}.{overload or 'default'}"] = p.binary(row, floats=kind == "f")
    for mode in ("Tensor", "Scalar", "Tensor_mode", "Scalar_mode"):
        made[f"div.{mode}"] = p.divide
    for mode in ("Tensor", "Scalar"):
        made[f"true_divide.{mode}"] = p.divide
    return made


_SPECIAL: dict[str, special.Function] = {
    "i0": special.bessel_i(0, scaled=False),
    "special_i0e": special.bessel_i(0, scaled=True),
    "special_i1": special.bessel_i(1, scaled=False),
    "special_i1e": special.bessel_i(1, scaled=True),
    "special_modified_bessel_i0": special.bessel_i(0, scaled=False),
    "special_modified_bessel_i1": special.bessel_i(1, scaled=False),
    "special_modified_bessel_k0": special.bessel_k(0, scaled=False),
    "special_modified_bessel_k1": special.bessel_k(1, scaled=False),
    "special_scaled_modified_bessel_k0": special.bessel_k(0, scaled=True),
    "special_scaled_modified_bessel_k1": special.bessel_k(1, scaled=True),
    "special_spherical_bessel_j0": special.spherical_j,
    "special_erfcx": special.erfcx,
    "special_ndtri": special.quantile,
}

ATEN: dict[str, Maker] = {
    **_rows(),
    **{f"{name}.default": special.unary(function) for name, function in _SPECIAL.items()},
    "special_bessel_j0.default": special.unary(special.bessel_j(0), doubles=False),
    "special_bessel_j1.default": special.unary(special.bessel_j(1), doubles=False),
    "special_bessel_y0.default": special.unary(special.bessel_y(0), doubles=False),
    "special_bessel_y1.default": special.unary(special.bessel_y(1), doubles=False),
    # arithmetic
    "add.Tensor": p.scaled("add", on_bool="logical_or"),
    "add.Scalar": p.scaled("add", on_bool="logical_or"),
    "sub.Tensor": p.scaled("sub"),
    "sub.Scalar": p.scaled("sub"),
    "rsub.Scalar": p.reversed_scaled,
    "rsub.Tensor": p.reversed_scaled,
    "mul.Tensor": p.binary("mul", on_bool="logical_and"),
    "mul.Scalar": p.binary("mul", on_bool="logical_and"),
    "fmax.default": p.binary("fmax", on_integers="maximum"),
    "fmin.default": p.binary("fmin", on_integers="minimum"),
    "floor_divide.default": p.floor_divide,
    "remainder.Tensor": p.remainder,
    "remainder.Scalar": p.remainder,
    "fmod.Tensor": p.c_remainder,
    "fmod.Scalar": p.c_remainder,
    "pow.Tensor_Tensor": p.power,
    "pow.Tensor_Scalar": p.power,
    "pow.Scalar": p.power,
    "neg.default": p.negate,
    "abs.default": p.magnitude,
    "sign.default": p.sign,
    "floor.default": p.rounding("floor"),
    "ceil.default": p.rounding("ceil"),
    "trunc.default": p.rounding("trunc"),
    "round.default": p.rounding("round"),
    "round.decimals": p.round_to,
    "clamp.default": p.clamp,
    "clamp.Tensor": p.clamp,
    "clamp_min.default": p.clamp,
    "clamp_max.default": p.clamp,
    "clamp_min.Tensor": p.clamp,
    "clamp_max.Tensor": p.clamp,
    "addcmul.default": p.addcmul,
    "addcdiv.default": p.addcdiv,
    "prims.fma.default": p.multiply_add,
    "lerp.Scalar": p.lerp,
    "lerp.Tensor": p.lerp,
    "logit.default": p.logit,
    "polygamma.default": special.polygamma,
    "angle.default": p.angle,
    "heaviside.default": p.heaviside,
    "nan_to_num.default": p.nan_to_num,
    # logic
    "logical_and.default": p.logical("logical_and"),
    "logical_or.default": p.logical("logical_or"),
    "logical_xor.default": p.logical("logical_xor"),
    "logical_not.default": p.logical("logical_not"),
    "bitwise_not.default": p.unary("bitwise_not", floats=False),
    "bitwise_left_shift.Tensor": p.shift("shift_left"),
    "bitwise_left_shift.Tensor_Scalar": p.shift("shift_left"),
    "bitwise_right_shift.Tensor": p.shift("shift_right"),
    "bitwise_right_shift.Tensor_Scalar": p.shift("shift_right"),
    "isnan.default": p.predicate("isnan", integers=False),
    "isinf.default": p.predicate("isinf", integers=False),
    "isfinite.default": p.predicate("isfinite", integers=True),
    "signbit.default": p.signbit,
    "where.self": p.where,
    "masked_fill.Scalar": p.masked_fill,
    "masked_fill.Tensor": p.masked_fill,
    # activations
    "relu.default": p.relu,
    "hardtanh.default": p.hardtanh,
    "gelu.default": p.gelu,
    "silu.default": p.unary("silu"),
    "mish.default": p.unary("mish"),
    "leaky_relu.default": p.leaky_relu,
    "elu.default": p.elu,
    "softplus.default": p.softplus,
    # copies and constants
    "_to_copy.default": p.convert,
    "prims.convert_element_type.default": p.convert,
    "clone.default": p.copy,
    "copy.default": p.copy_into,
    "lift_fresh_copy.default": p.copy,
    # what memory holds does not matter
    "empty.memory_format": p.constant(0),
    "empty_like.default": p.constant(0),
    "empty_permuted.default": p.constant(0),
    "empty_strided.default": p.constant(0),
    "new_empty_strided.default": p.constant(0),
    "full.default": p.full,
    "full_like.default": p.full,
    "fill.Scalar": lambda n: n.full(n["value"], n.x.shape, n.x.dtype),
    "zeros.default": p.constant(0),
    "zeros_like.default": p.constant(0),
    "_efficientzerotensor.default": p.constant(0),
    "ones.default": p.constant(1),
    "ones_like.default": p.constant(1),
    "scalar_tensor.default": lambda n: n.F.copy(n.scalar(n["s"], n.result.dtype)),
    "arange.start_step": s.arange,
    "prims.iota.default": s.arange,
    **{f"linspace.{kind}": s.linspace for kind in _ENDS},
    "eye.m": s.eye,
    "eye.default": s.eye,
    # views
    "view.default": s.view,
    "_unsafe_view.default": s.view,
    "reshape.default": s.view,
    "unsqueeze.default": s.squeeze,
    "squeeze.default": s.squeeze,
    "squeeze.dim": s.squeeze,
    "squeeze.dims": s.squeeze,
    "permute.default": s.permute,
    "transpose.int": s.swap,
    "t.default": s.matrix_transpose,
    "expand.default": s.expand,
    "alias.default": s.alias,
    "detach.default": s.alias,
    "slice.Tensor": s.slice_,
    "select.int": s.select,
    "split_with_sizes.default": s.split,
    "split.Tensor": s.split,
    "unbind.int": s.unbind,
    "unfold.default": s.unfold,
    "as_strided.default": s.as_strided,
    "diagonal.default": s.diagonal,
    # joins and positions
    "cat.default": s.concat,
    "stack.default": s.stack,
    "constant_pad_nd.default": s.pad,
    "reflection_pad1d.default": s.mirrored("reflect"),
    "reflection_pad2d.default": s.mirrored("reflect"),
    "reflection_pad3d.default": s.mirrored("reflect"),
    "replication_pad1d.default": s.mirrored("edge"),
    "replication_pad2d.default": s.mirrored("edge"),
    "replication_pad3d.default": s.mirrored("edge"),
    "flip.default": s.flip,
    "roll.default": s.roll,
    "repeat.default": s.repeat,
    "tril.default": s.triangle(upper=False),
    "triu.default": s.triangle(upper=True),
    "embedding.default": s.embedding,
    "index_select.default": s.index_select,
    "gather.default": s.gather,
    "take.default": s.take,
    "index.Tensor": s.index,
    "scatter.src": scatters.scatter(),
    "scatter.value": scatters.scatter(),
    "scatter.reduce": scatters.scatter(),
    "scatter.value_reduce": scatters.scatter(),
    "scatter_add.default": scatters.scatter("sum"),
    "scatter_reduce.two": scatters.scatter(),
    "index_reduce.default": scatters.index_reduce,
    "index_add.default": scatters.index_add,
    "index_copy.default": scatters.index_copy,
    "index_fill.int_Scalar": scatters.index_fill,
    "index_fill.int_Tensor": scatters.index_fill,
    "index_put.default": scatters.index_put,
    "_unsafe_index_put.default": scatters.index_put,
    "_unsafe_index.Tensor": s.index,
    "put.default": scatters.put,
    "masked_scatter.default": scatters.masked_scatter,
    "searchsorted.Tensor": scatters.searchsorted,
    "searchsorted.Scalar": scatters.searchsorted,
    "bucketize.Tensor": scatters.bucketize,
    "bucketize.Scalar": scatters.bucketize,
    "diagonal_scatter.default": s.put_diagonal,
    "as_strided_copy.default": lambda n: n.F.copy(s.as_strided(n)),
    "slice_scatter.default": s.put_slice,
    "select_scatter.default": s.put_select,
    # reductions
    "sum.default": r.fold("sum"),
    "sum.dim_IntList": r.fold("sum"),
    "prod.default": r.fold("prod"),
    "prod.dim_int": r.fold("prod"),
    "mean.default": r.mean,
    "mean.dim": r.mean,
    "amax.default": r.extreme("max"),
    "amin.default": r.extreme("min"),
    "max.default": r.extreme("max"),
    "min.default": r.extreme("min"),
    "max.dim": r.extreme_with_index("max", "argmax"),
    "min.dim": r.extreme_with_index("min", "argmin"),
    "argmax.default": r.position("argmax"),
    "argmin.default": r.position("argmin"),
    "any.default": r.truths("any"),
    "any.dim": r.truths("any"),
    "any.dims": r.truths("any"),
    "all.default": r.truths("all"),
    "all.dim": r.truths("all"),
    "all.dims": r.truths("all"),
    "var.correction": r.variance,
    "std.correction": r.deviation,
    "var.dim": r.variance,
    "var_mean.correction": r.variance_and_mean,
    "cumsum.default": r.scan("cumsum"),
    "cumprod.default": r.scan("cumprod"),
    "cummax.default": r.running("cummax"),
    "cummin.default": r.running("cummin"),
    "logcumsumexp.default": r.log_running_sum,
    "_softmax.default": r.softmax("softmax"),
    "_log_softmax.default": r.softmax("log_softmax"),
    "_safe_softmax.default": r.safe_softmax,
    "_softmax_backward_data.default": r.softmax_backward,
    "_log_softmax_backward_data.default": r.log_softmax_backward,
    "logsumexp.default": r.logsumexp,
    "native_layer_norm.default": r.layer_norm,
    "native_group_norm.default": r.group_norm,
    "_native_batch_norm_legit_no_training.default": r.batch_norm_inference,
    # products
    "mm.default": c.matmul,
    "bmm.default": c.matmul,
    "mv.default": c.matrix_vector,
    "dot.default": c.dot,
    "addmm.default": c.addmm,
    "baddbmm.default": c.addmm,
    "addmv.default": c.addmv,
    "addbmm.default": c.addbmm,
    "_cdist_forward.default": c.distances,
    "_pdist_forward.default": c.pair_distances,
    "convolution.default": c.convolution,
    "max_pool2d_with_indices.default": pools.max_pool,
    "max_pool3d_with_indices.default": pools.max_pool,
    "avg_pool2d.default": pools.average_pool,
    "avg_pool3d.default": pools.average_pool,
    "_adaptive_avg_pool2d.default": pools.adaptive_average_pool,
    "_adaptive_avg_pool3d.default": pools.adaptive_average_pool,
    "adaptive_max_pool2d.default": pools.adaptive_max_pool,
    "adaptive_max_pool3d.default": pools.adaptive_max_pool,
    "avg_pool2d_backward.default": gradients.average_pool_gradient,
    "avg_pool3d_backward.default": gradients.average_pool_gradient,
    "_adaptive_avg_pool2d_backward.default": gradients.adaptive_average_pool_gradient,
    "_adaptive_avg_pool3d_backward.default": gradients.adaptive_average_pool_gradient,
    "_scaled_dot_product_flash_attention_for_cpu.default": attention.attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": attention.attention_backward,
}
