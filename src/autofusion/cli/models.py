"""Reading FILE: the reader is chosen by the suffix. A new format is a row here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autofusion.errors import FormatError
from autofusion.frontends import onnx, opseq
from autofusion.graph.ir import Graph

READERS: dict[str, tuple[str, Callable[[str | Path], Graph]]] = {
    ".json": ("an op-sequence", opseq.read),
    ".onnx": ("an ONNX model", onnx.read),
}


def read(path: str) -> Graph:
    """The graph of a file. Raises FormatError with the path, and with what is accepted for an unknown suffix."""
    suffix = Path(path).suffix.lower()
    if suffix not in READERS:
        accepted = ", ".join(f"{known} ({what})" for known, (what, _) in READERS.items())
        raise FormatError(f"{path}: a file of type {suffix or 'unknown'!r} is not read; accepted: {accepted}")
    return READERS[suffix][1](path)
