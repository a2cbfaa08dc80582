"""Operators of ai.onnx.ml that work on tensors of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from autofusion.dtypes import DType
from autofusion.frontends.onnx.call import Call, maps

_ML = "ai.onnx.ml"


def _row(n: Call, name: str) -> Any:
    values = np.array(n.attr(name), np.float32)
    return n.F.constant(values if values.size > 1 else values.reshape(()))


@maps(f"{_ML}.Scaler")
def scaler(n: Call) -> Any:
    return n.F.mul(n.F.sub(n.cast(n[0], DType.FLOAT32), _row(n, "offset")), _row(n, "scale"))


@maps(f"{_ML}.Binarizer")
def binarizer(n: Call) -> Any:
    return n.cast(n.F.gt(n[0], n.scalar(n.attr("threshold", 0.0), n[0])), n.dtype(0))


@maps(f"{_ML}.ArrayFeatureExtractor")
def array_feature_extractor(n: Call) -> Any:
    shape = n.shape(0)
    data = n[0] if len(shape) > 1 else n.reshape(n[0], (1, *shape))
    index = n.reshape(n.cast(n[1], DType.INT64), (-1,))
    return n.F.gather(data, index, axis=len(n.F.type_of(data).shape) - 1)


@maps(f"{_ML}.Normalizer")
def normalizer(n: Call) -> Any:
    x, attrs = n.cast(n[0], DType.FLOAT32), {"axes": (n.rank(0) - 1,), "keepdims": True}
    norms = {
        "MAX": lambda: n.F.max(x, **attrs),
        "L1": lambda: n.F.sum(n.F.abs(x), **attrs),
        "L2": lambda: n.F.sqrt(n.F.sum(n.F.mul(x, x), **attrs)),
    }
    return n.F.div(x, norms[n.attr("norm", "MAX")]())
