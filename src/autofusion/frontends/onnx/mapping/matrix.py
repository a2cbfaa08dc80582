"""Contractions: products of matrices, einsum, and the quantised ones."""

from __future__ import annotations

from typing import Any

from autofusion.dtypes import DType
from autofusion.frontends.onnx.call import Call, maps
from autofusion.frontends.onnx.mapping.elementwise import along, saturated


def matmul_of(n: Call, a: Any, b: Any) -> Any:
    """NumPy's matmul: vectors are rows on the left and columns on the right."""
    dtype = n.F.type_of(a).dtype
    if not dtype.is_float and dtype not in (DType.INT32, DType.INT64):
        wide = [n.cast(each, DType.INT64) for each in (a, b)]
        return n.cast(matmul_of(n, *wide), dtype)
    a_shape, b_shape = tuple(n.F.type_of(a).shape), tuple(n.F.type_of(b).shape)
    if len(a_shape) > 1 and len(b_shape) > 1:
        return n.F.matmul(a, b)
    left = n.reshape(a, (1, *a_shape)) if len(a_shape) == 1 else a
    right = n.reshape(b, (*b_shape, 1)) if len(b_shape) == 1 else b
    made = n.F.matmul(left, right)
    shape = list(n.F.type_of(made).shape)
    if len(b_shape) == 1:
        del shape[-1]
    if len(a_shape) == 1:
        del shape[-1 if len(b_shape) == 1 else -2]
    return n.reshape(made, shape)


@maps("MatMul")
def matmul(n: Call) -> Any:
    return matmul_of(n, n[0], n[1])


@maps("Gemm")
def gemm(n: Call) -> Any:
    a = n.F.transpose(n[0], axes=(1, 0)) if n.attr("transA", 0) else n[0]
    b = n.F.transpose(n[1], axes=(1, 0)) if n.attr("transB", 0) else n[1]
    made = matmul_of(n, a, b)
    if n.attr("alpha", 1.0) != 1.0:
        made = n.F.mul(made, n.scalar(n.attr("alpha"), made))
    if not n.has(2) or n.attr("beta", 1.0) == 0.0:
        return made
    bias = n[2] if n.attr("beta", 1.0) == 1.0 else n.F.mul(n[2], n.scalar(n.attr("beta"), n[2]))
    return n.F.add(made, bias)


@maps("Einsum")
def einsum(n: Call) -> Any:
    return n.row("einsum")(*n.inputs, equation=n.attr("equation"))


# -- quantised ---------------------------------------------------------------------------------------------------------
def _moved(n: Call, position: int, zero: int, dtype: DType, axis: int) -> Any:
    """An integer operand less its zero point (one value, or one a row or column)."""
    value = n.cast(n[position], dtype)
    if not n.has(zero):
        return value
    point = n.cast(n[zero], dtype)
    return n.F.sub(value, along(n, point, n.rank(position), axis))


@maps("MatMulInteger")
def matmul_integer(n: Call) -> Any:
    return matmul_of(n, _moved(n, 0, 2, DType.INT32, -2), _moved(n, 1, 3, DType.INT32, -1))


@maps("QLinearMatMul")
def qlinear_matmul(n: Call) -> Any:
    """y = (a - az)(b - bz) · (as · bs / ys) + yz, rounded and cut."""
    product = matmul_of(n, _moved(n, 0, 2, DType.INT32, -2), _moved(n, 3, 5, DType.INT32, -1))
    wide = DType.FLOAT32
    a_scale = along(n, n.cast(n[1], wide), n.rank(0), -2)
    b_scale = along(n, n.cast(n[4], wide), n.rank(3), -1)
    y_scale = along(n, n.cast(n[6], wide), n.rank(0), -2)
    scaled = n.F.mul(n.cast(product, wide), n.F.div(n.F.mul(a_scale, b_scale), y_scale))
    return saturated(n, scaled, along(n, n[7], n.rank(0), -2), n.dtype(7))
