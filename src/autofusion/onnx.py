"""ONNX for users: `read` a file, `from_model`, and `Backend`, an `onnx.backend.base.Backend`.

Nothing here imports the onnx package before it is used.
"""

from __future__ import annotations

from typing import Any

from autofusion.frontends.onnx import backend, from_model, read

__all__ = ["Backend", "from_model", "read"]  # noqa: F822


def __getattr__(name: str) -> Any:
    if name == "Backend":
        return backend.backend()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
