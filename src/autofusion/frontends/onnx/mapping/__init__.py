"""The mapping: ONNX operator -> the function that makes it of rows. One file a family fills it."""

from autofusion.frontends.onnx.call import MAPPING
from autofusion.frontends.onnx.mapping import (
    elementwise,
    indexing,
    matrix,
    ml,
    recurrent,
    reduce,
    resize,
    shapes,
    windows,
)
from autofusion.frontends.onnx.mapping.shapes import shape_of

__all__ = [
    "MAPPING",
    "elementwise",
    "indexing",
    "matrix",
    "ml",
    "recurrent",
    "reduce",
    "resize",
    "shape_of",
    "shapes",
    "windows",
]
