"""The oracle: one operator on NumPy arrays, rounding as the source framework's eager mode does."""

from __future__ import annotations

from typing import Any

import numpy as np

from autofusion import dtypes
from autofusion.dtypes import Array
from autofusion.kinds import Kind
from autofusion.ops.table import TABLE, Attrs, Op, TensorType


def apply(op: Op, arrays: list[Array], attrs: Attrs) -> Array:
    """The value of `op` on arrays; `attrs` are complete. Reduced floats are computed wider and rounded once."""
    wide_kinds = (Kind.ELEMENTWISE, Kind.REDUCE, Kind.SCAN, Kind.CONTRACT)
    with np.errstate(all="ignore"):
        if op.kind in wide_kinds and any(dtypes.of(a).is_reduced for a in arrays) and "dtype" not in attrs:
            result_type = op.infer([type_of(a) for a in arrays], attrs).dtype
            wide = [a.astype(np.float32) if dtypes.of(a).is_reduced else a for a in arrays]
            return np.asarray(op.reference(*wide, **attrs)).astype(result_type.numpy)
        return np.asarray(op.reference(*arrays, **attrs))


def type_of(array: Array) -> TensorType:
    """The tensor type of an array."""
    return TensorType(dtypes.of(array), tuple(array.shape))


class Evaluator:
    """A `Builder` whose operators compute at once: a lowering run through it must agree with its row's reference."""

    def __getattr__(self, name: str) -> Any:
        op = TABLE.get(name)

        def call(*operands: Any, **attrs: Any) -> Array:
            arrays = [a for a in operands if isinstance(a, np.ndarray)]
            lifted = [a if isinstance(a, np.ndarray) else self.scalar(a, operand_type(op, arrays)) for a in operands]
            return apply(op, lifted, op.complete(attrs))

        return call

    def type_of(self, value: Array) -> TensorType:
        return type_of(value)

    def scalar(self, value: Any, dtype: dtypes.DType) -> Array:
        return np.asarray(value).astype(dtype.numpy)

    def constant(self, array: Array) -> Array:
        return array


def operand_type(op: Op, arrays: list[Array]) -> dtypes.DType:
    """The element type that a bare Python number takes beside these operands."""
    return dtypes.of(arrays[-1])
