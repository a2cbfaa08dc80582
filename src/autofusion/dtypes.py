"""Element types: one row each."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from autofusion.errors import DTypeError

Array = NDArray[Any]


class DType(StrEnum):
    """An element type; its text is NumPy's name."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(ml_dtypes.bfloat16) if self is DType.BFLOAT16 else np.dtype(self.value)

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return _SIZES[self]

    @property
    def is_float(self) -> bool:
        return self in FLOATS

    @property
    def is_reduced(self) -> bool:
        """A float that is computed in float32 and rounded when stored."""
        return self in (DType.FLOAT16, DType.BFLOAT16)

    @property
    def is_signed(self) -> bool:
        return self in SIGNED or self in FLOATS

    @property
    def is_integer(self) -> bool:
        return self in INTEGERS

    @property
    def compute(self) -> DType:
        """The type that arithmetic on this one is done in."""
        return DType.FLOAT32 if self.is_reduced else self


FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)
SIGNED = (DType.INT8, DType.INT16, DType.INT32, DType.INT64)
UNSIGNED = (DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64)
INTEGERS = SIGNED + UNSIGNED
ALL = tuple(DType)
_SIZES = {dtype: dtype.numpy.itemsize for dtype in DType}
_BY_NUMPY = {dtype.numpy: dtype for dtype in DType}


def of(value: Any) -> DType:
    """The DType of a name, a NumPy dtype or an array. Raises DTypeError for anything else."""
    if isinstance(value, DType):
        return value
    found = getattr(value, "dtype", value)
    try:
        return DType(found) if isinstance(found, str) else _BY_NUMPY[np.dtype(found)]
    except (TypeError, KeyError, ValueError):
        known = ", ".join(ALL)
        raise DTypeError(f"element type {str(found)!r} is not supported; known: {known}") from None


_KIND_ORDER = {"b": 0, "u": 1, "i": 2, "f": 3, "V": 3}


def promote(a: DType, b: DType) -> DType:
    """The common type of two arrays: PyTorch's rule (the wider kind wins; float16 with bfloat16 gives float32)."""
    if a is b:
        return a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if DType.BOOL in (a, b):
        return b if a is DType.BOOL else a
    if a.is_float:
        if a.is_reduced and b.is_reduced:
            return DType.FLOAT32
        return max(a, b, key=lambda t: t.size)
    if a.is_signed == b.is_signed:
        return max(a, b, key=lambda t: t.size)
    signed, unsigned = (a, b) if a.is_signed else (b, a)
    if signed.size > unsigned.size:
        return signed
    wider = {1: DType.INT16, 2: DType.INT32, 4: DType.INT64}
    if unsigned.size not in wider:
        raise DTypeError(f"{a} with {b} has no common integer type; cast one of them")
    return wider[unsigned.size]
