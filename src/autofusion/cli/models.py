"""Reading FILE: the reader is chosen by the suffix. A new format is a row here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from autofusion.errors import FormatError
from autofusion.frontends import onnx, opseq
from autofusion.graph.ir import Graph

READERS: dict[str, tuple[str, Callable[[str | Path], Graph]]] = {
    ".json": ("an op-sequence", opseq.read),
    ".onnx": ("an ONNX model", onnx.read),
}


def read(path: str, shapes: Sequence[str] = ()) -> Graph:
    """The graph of a file. Raises FormatError with the path, and with what is accepted for an unknown suffix;
    `onnx.Undecided` where control flow depends on data.

    `shapes`: the texts of --shape; what they say of an ONNX model's inputs is fixed, as that makes the better kernels
    (and some operators need it). A size by its dimension's name (`n=7`) leaves the dimension open.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in READERS:
        accepted = ", ".join(f"{known} ({what})" for known, (what, _) in READERS.items())
        raise FormatError(f"{path}: a file of type {suffix or 'unknown'!r} is not read; accepted: {accepted}")
    graph = READERS[suffix][1](path)
    fixed = _fixed(graph, shapes) if suffix == ".onnx" else {}
    return onnx.read(path, fixed) if fixed else graph


def read_program(path: str, shapes: Sequence[str] = (), target: str = "cpu", numerics: str = "default") -> onnx.Program:
    """The model that `read` raised Undecided for. Its sections are compiled for the sizes that arrive."""
    program = onnx.read_program(path, None, target, numerics)
    fixed = _fixed(program.graph, shapes)
    return onnx.read_program(path, fixed, target, numerics) if fixed else program


def _fixed(graph: Graph, shapes: Sequence[str]) -> dict[str, list[int]]:
    """Sizes by input; malformed texts are left to those who bind sizes, and say what is wrong."""
    ranks = {value.name: len(value.shape) for value in graph.inputs}
    found: dict[str, list[int]] = {}
    for text in shapes:
        name, _, listed = text.rpartition("=")
        words = listed.split(",") if listed else []
        if ranks.get(name) == len(words) and all(word.strip().isdecimal() for word in words):
            found[name] = [int(word) for word in words]
    return found
