"""graph-autofusion: fuses tensor operators automatically and runs the result in one launch."""

from __future__ import annotations

from typing import Any

from autofusion.api import Compiled, load, register_op, unregister_op
from autofusion.errors import AutofusionError
from autofusion.frontends import functions as _functions
from autofusion.frontends.python import compile, jit
from autofusion.ops import Kind, Op
from autofusion.target import Target

__version__ = "0.1.0"
__all__ = [
    "AutofusionError",
    "Compiled",
    "Kind",
    "Op",
    "Target",
    "__version__",
    "compile",
    "jit",
    "load",
    "register_op",
    "unregister_op",
]


def __getattr__(name: str) -> Any:
    """Every operator of the table is a function of this module: `autofusion.softmax(x, axis=-1)`."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _functions.lookup(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_functions.names()})
