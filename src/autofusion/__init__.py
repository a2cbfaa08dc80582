"""graph-autofusion: fuses tensor operators automatically and runs the result in one launch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autofusion.api import (
    Compiled,
    load,
    register_library_kernel,
    register_op,
    unregister_library_kernel,
    unregister_op,
)
from autofusion.errors import AutofusionError
from autofusion.frontends import functions as _functions
from autofusion.frontends.python import compile, jit
from autofusion.frontends.tracer import Tensor
from autofusion.ops import Kind, Op, TensorType
from autofusion.ops.library import LibraryKernel
from autofusion.target import Target
from autofusion.version import __version__

if TYPE_CHECKING:
    from autofusion import onnx, torch

__all__ = [
    "AutofusionError",
    "Compiled",
    "Kind",
    "LibraryKernel",
    "Op",
    "Target",
    "Tensor",
    "TensorType",
    "__version__",
    "compile",
    "jit",
    "load",
    "onnx",
    "register_library_kernel",
    "register_op",
    "torch",
    "unregister_library_kernel",
    "unregister_op",
]


def __getattr__(name: str) -> Any:
    """Every operator of the table is a function of this module: `autofusion.softmax(x, axis=-1)`. `onnx` and `torch`
    are loaded when they are first asked for."""
    if name in ("onnx", "torch"):
        return importlib.import_module(f"{__name__}.{name}")
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _functions.lookup(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_functions.names()})
