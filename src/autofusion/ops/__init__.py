"""The op table. Importing this package fills it with the built-in rows."""

from autofusion.kinds import Kind
from autofusion.ops import (
    activation,
    convolution,
    elementwise,
    norms,
    pooling,
    reduce,
    reshaping,
    resizing,
    selection,
    special,
    structure,
    window,
)
from autofusion.ops.table import TABLE, Attr, Attrs, Builder, Op, TensorType

__all__ = [
    "TABLE",
    "Attr",
    "Attrs",
    "Builder",
    "Kind",
    "Op",
    "TensorType",
    "activation",
    "convolution",
    "elementwise",
    "norms",
    "pooling",
    "reduce",
    "reshaping",
    "resizing",
    "selection",
    "special",
    "structure",
    "window",
]
