"""What is known at compile time is computed at compile time, by the reference, to the bit.

    constant w:float32[64,32]
    [t:float32[32,64]] = transpose [w] [axes=[1, 0]]     →     constant t:float32[32,64]
    [a:float32[]] = full [] [shape=[], value=2.0, ...]
    [b:float32[]] = mul [a, a]                           →     [b:float32[]] = full [] [shape=[], value=4.0, ...]

A view of a constant becomes a constant in the layout that is read; a view that repeats elements stays a view, as it
costs nothing where it is read. Positions (`iota`) are not known here: a kernel has them for free.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autofusion.dtypes import Array
from autofusion.errors import AutofusionError
from autofusion.graph.ir import Attribute, Constant, Graph, Node, digest_of
from autofusion.ops import TABLE, Kind, reference
from autofusion.passes.rewrite import Rewriter

LIMIT = 64 << 20  # bytes: a larger result is kept only where it is less than GROWTH times what it is made of
GROWTH = 4
_EFFECTS = (Kind.COMM, Kind.OPAQUE)


def run(graph: Graph) -> Graph:
    """The graph with known values as constants, or as `full` where they are one value."""
    known = {c.value.name: graph.data[c.digest] for c in graph.constants}
    folded: dict[str, Node] = {}
    for node in graph.nodes:
        value = _known_value(node, known)
        if value is not None and (value.nbytes <= LIMIT or not _is_uniform(value) or _full(node, value)):
            known[node.name] = value
            folded[node.name] = node
    return _emit(graph, known, folded)


def _known_value(node: Node, known: dict[str, Array]) -> Array | None:
    """The node's value where all of its inputs are known. `full` is one value, held once whatever its shape."""
    if not all(isinstance(extent, int) for extent in node.output.shape):
        return None
    if node.kind is Kind.SOURCE:
        return _one_value(node)
    if node.kind in _EFFECTS or not all(name in known for name in node.inputs):
        return None
    arrays = [known[name] for name in node.inputs]
    shape = tuple(int(extent) for extent in node.output.shape if isinstance(extent, int))
    if all(map(_is_uniform, arrays)) and (node.kind is Kind.ELEMENTWISE or node.is_view) and 0 not in shape:
        if node.is_view:
            return np.broadcast_to(_first(arrays[0]), shape)
        return np.broadcast_to(_apply(node, [_first(a) for a in arrays]), shape)
    if max(_kept_bytes(node), *(a.nbytes for a in arrays)) > max(LIMIT, GROWTH * sum(map(_stored, arrays))):
        return None
    try:
        return _apply(node, arrays)
    except AutofusionError:
        return None  # it raises when it runs, if it runs: an index out of range, say


def _apply(node: Node, arrays: list[Array]) -> Array:
    return reference.apply(node.row, arrays, node.attrs)


def _one_value(node: Node) -> Array | None:
    value = node.attrs.get("value")
    if not isinstance(value, bool | int | float):
        return None  # positions, or a symbolic dimension
    scalar = reference.apply(node.row, [], {**node.attrs, "shape": ()})
    return np.broadcast_to(scalar, tuple(node.attrs["shape"]))


def _is_uniform(array: Array) -> bool:
    """Whether it is one value, by construction."""
    return array.size == 1 or (array.size > 1 and not any(array.strides))  # strides of nothing say nothing


def _first(array: Array) -> Array:
    return np.asarray(array[(0,) * array.ndim]) if array.size else np.zeros((), array.dtype)


def _stored(array: Array) -> int:
    return array.itemsize if _is_uniform(array) else array.nbytes


def _kept_bytes(node: Node) -> int:
    size = node.output.bytes
    assert isinstance(size, int)
    return size


def _emit(graph: Graph, known: dict[str, Array], folded: dict[str, Node]) -> Graph:
    """Known values that something unknown reads become constants; what only known values read disappears."""
    rewriter = Rewriter(graph)
    kept = [node for node in graph.nodes if node.name not in folded or _stays(node, known[node.name])]
    read = {name for node in kept for name in node.inputs} | {output.name for output in graph.outputs}
    for node in graph.nodes:
        if node.name not in folded or _stays(node, known[node.name]):
            rewriter.append(node)
        elif node.name in read:
            _emit_value(rewriter, node, known[node.name])
    return rewriter.finish()


def _stays(node: Node, value: Array) -> bool:
    """Known, but best left as it is: one value already, or a repetition of something smaller."""
    return node.kind is Kind.SOURCE or (node.kind is Kind.BROADCAST and not _is_uniform(value))


def _emit_value(rewriter: Rewriter, node: Node, value: Array) -> None:
    full = _full(node, value)
    if full is not None:
        rewriter.append(full)
        return
    array = np.array(value, order="C", copy=True)
    array.flags.writeable = False
    digest = digest_of(array)
    rewriter.data[digest] = array
    rewriter.body.append(Constant(node.output, digest))
    rewriter.known[node.name] = node.output


def _full(node: Node, value: Array) -> Node | None:
    """The `full` that gives this value to the bit. None for a NaN whose sign and payload no number tells."""
    if not value.size or not _is_uniform(value):
        return None
    row, first = TABLE.get("full"), _first(value)
    attrs = row.complete({"shape": node.output.shape, "value": first.item(), "dtype": node.output.dtype})
    if reference.apply(row, [], attrs | {"shape": ()}).tobytes() != first.tobytes():
        return None
    return replace(node, op="full", inputs=(), attributes=tuple(Attribute(*item) for item in attrs.items()))
