"""An ONNX model as a JAX function: a row for each operator that the workloads' models hold.

Small integer operands (shapes, axes, slice bounds) must be known when the function is traced, so initializers stay
NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
from jax import lax
from jax import numpy as jnp
from onnx import numpy_helper

Attributes = dict[str, Any]


def load(path: Path) -> Callable[..., tuple[Any, ...]]:
    """The function of a model's inputs. Raises NotImplementedError for an operator that has no row."""
    model = onnx.load(str(path))
    graph = model.graph
    for node in graph.node:
        if node.op_type not in OPS:
            raise NotImplementedError(f"operator {node.op_type} has no row in onnx_jax")
    known = {each.name: narrow(numpy_helper.to_array(each)) for each in graph.initializer}
    names = [each.name for each in graph.input if each.name not in known]

    def function(*inputs: Any) -> tuple[Any, ...]:
        values: dict[str, Any] = {**known, **dict(zip(names, inputs, strict=True)), "": None}
        for node in graph.node:
            attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
            values[node.output[0]] = OPS[node.op_type](attributes, *(values[name] for name in node.input))
        return tuple(values[each.name] for each in graph.output)

    return function


def narrow(array: Any) -> Any:
    """JAX computes indices in 32 bits by default. The bound of an open slice is the largest int64: of int32 then."""
    limits = np.iinfo(np.int32)
    return np.clip(array, limits.min, limits.max).astype(np.int32) if array.dtype == np.int64 else array


def _axes(attributes: Attributes, axes: Any) -> tuple[int, ...] | None:
    found = attributes.get("axes") if axes is None else axes.tolist()
    return tuple(found) if found else None


def _mean(attributes: Attributes, x: Any, axes: Any = None) -> Any:
    return jnp.mean(x, _axes(attributes, axes), keepdims=bool(attributes.get("keepdims", 1)))


def _largest(attributes: Attributes, x: Any, axes: Any = None) -> Any:
    return jnp.max(x, _axes(attributes, axes), keepdims=bool(attributes.get("keepdims", 1)))


def _gemm(attributes: Attributes, a: Any, b: Any, c: Any = None) -> Any:
    a, b = (x.T if attributes.get(f"trans{n}") else x for x, n in ((a, "A"), (b, "B")))
    found = attributes.get("alpha", 1.0) * jnp.matmul(a, b)
    return found if c is None else found + attributes.get("beta", 1.0) * c


def _layer_norm(attributes: Attributes, x: Any, scale: Any, bias: Any = None) -> Any:
    axes = tuple(range(attributes.get("axis", -1) % x.ndim, x.ndim))
    centred = x - jnp.mean(x, axes, keepdims=True)
    variance = jnp.mean(centred * centred, axes, keepdims=True)
    found = centred * lax.rsqrt(variance + attributes.get("epsilon", 1e-5)) * scale
    return found if bias is None else found + bias


def _conv(attributes: Attributes, x: Any, w: Any, bias: Any = None) -> Any:
    spatial = x.ndim - 2
    pads = attributes.get("pads", [0] * 2 * spatial)
    found = lax.conv_general_dilated(
        x,
        w,
        attributes.get("strides", [1] * spatial),
        list(zip(pads[:spatial], pads[spatial:], strict=True)),
        rhs_dilation=attributes.get("dilations"),
        feature_group_count=attributes.get("group", 1),
    )
    return found if bias is None else found + bias.reshape(-1, *[1] * spatial)


def _reshape(attributes: Attributes, x: Any, shape: Any) -> Any:
    keep = not attributes.get("allowzero", 0)
    return jnp.reshape(x, [x.shape[i] if n == 0 and keep else int(n) for i, n in enumerate(shape)])


def _expand(attributes: Attributes, x: Any, shape: Any) -> Any:
    return jnp.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist())))


def _slice(attributes: Attributes, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    places = range(len(starts)) if axes is None else axes.tolist()
    index = [slice(None)] * x.ndim
    for place, start, end, step in zip(
        places, starts, ends, [1] * len(starts) if steps is None else steps, strict=True
    ):
        index[place] = slice(int(start), int(end), int(step))
    return x[tuple(index)]


OPS: dict[str, Callable[..., Any]] = {
    "Abs": lambda a, x: jnp.abs(x),
    "Add": lambda a, x, y: x + y,
    "Concat": lambda a, *xs: jnp.concatenate(xs, a["axis"]),
    "Conv": _conv,
    "Div": lambda a, x, y: x / y,
    "Erf": lambda a, x: lax.erf(x),
    "Expand": _expand,
    "Gather": lambda a, x, i: jnp.take(x, i, a.get("axis", 0)),
    "GatherElements": lambda a, x, i: jnp.take_along_axis(x, i, a.get("axis", 0)),
    "Gemm": _gemm,
    "LayerNormalization": _layer_norm,
    "MatMul": lambda a, x, y: jnp.matmul(x, y),
    "Max": lambda a, x, y: jnp.maximum(x, y),
    "Min": lambda a, x, y: jnp.minimum(x, y),
    "Mul": lambda a, x, y: x * y,
    "Neg": lambda a, x: -x,
    "Pow": lambda a, x, y: jnp.power(x, y),
    "Reciprocal": lambda a, x: 1 / x,
    "ReduceMax": _largest,
    "ReduceMean": _mean,
    "Relu": lambda a, x: jax.nn.relu(x),
    "Reshape": _reshape,
    "Sigmoid": lambda a, x: jax.nn.sigmoid(x),
    "Slice": _slice,
    "Softmax": lambda a, x: jax.nn.softmax(x, a.get("axis", -1)),
    "Sqrt": lambda a, x: jnp.sqrt(x),
    "Sub": lambda a, x, y: x - y,
    "Tanh": lambda a, x: jnp.tanh(x),
    "Transpose": lambda a, x: jnp.transpose(x, a.get("perm")),
    "Unsqueeze": lambda a, x, axes: jnp.expand_dims(x, tuple(axes.tolist())),
    "Where": lambda a, c, x, y: jnp.where(c, x, y),
}
