"""ONNX for users: `read` a file, `from_model`, `Backend`, an `onnx.backend.base.Backend`, and `Program`, a model whose
control flow depends on data.

Nothing here imports the onnx package before it is used.
"""

from __future__ import annotations

from typing import Any

from autofusion.frontends.onnx import Program, backend, from_model, read

__all__ = ["Backend", "Program", "from_model", "read"]  # noqa: F822


def __getattr__(name: str) -> Any:
    if name == "Backend":
        return backend.backend()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
