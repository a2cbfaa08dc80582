"""One way to write each operator, and no operator that does nothing.

    [y] = sum [x] [axes=none, ...]                       [y] = sum [x] [axes=[0, 1], ...]
    [a] = reshape [x] [shape=[-1, 4]]              →     [b] = reshape [x] [shape=[8, 2]]
    [b] = reshape [a] [shape=[8, 2]]
    [c] = transpose [b] [axes=[0, 1]]                    (readers of c read b)

Values never change: no rule here knows what an operator computes, so none can turn 0·x into 0 or x+0 into x
(SEMANTICS: NaN, infinities and -0). A cast goes only where its input has its type already: no rounding is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from autofusion.dims import Dim, Shape, collect_guards, symbol
from autofusion.dtypes import DType
from autofusion.graph.ir import Attribute, Graph, Guard, Node, Value
from autofusion.ops import Kind
from autofusion.ops.rules import axes_of, axis_of
from autofusion.ops.structure import slice_bounds
from autofusion.passes.rewrite import Rewriter, rewrite


def run(graph: Graph) -> Graph:
    """The graph in canonical form."""
    return rewrite(graph, RULES)


# -- attributes: one normal form for each attribute name -------------------------------------------------------------
def _axes(node: Node, shape: Shape) -> tuple[int, ...]:
    axes, rank = node.attrs["axes"], len(shape)
    # A view's axes are a permutation: their order is what they say.
    if not node.is_view:
        return axes_of(axes, rank)
    return tuple(reversed(range(rank))) if axes is None else tuple(axis_of(a, rank) for a in axes)


def _stop(begin: Dim, count: Dim, step: int, extent: Dim) -> Dim:
    """The tight end of a slice; -1 would count from the back, so "before the first" is -extent - 1."""
    assert isinstance(begin, int) and isinstance(count, int) and isinstance(extent, int)
    last = begin + (count - 1) * step
    return last + 1 if step > 0 else last - 1 if last > 0 else -extent - 1


def _bounds(node: Node, shape: Shape) -> list[tuple[Dim, Dim, int]]:
    """(start, stop, step) by axis. Symbolic extents keep what is written, but for the whole axis."""
    result: list[tuple[Dim, Dim, int]] = []
    written = zip(node.attrs["starts"], node.attrs["stops"], node.attrs["steps"], strict=True)
    for extent, given, (begin, count, step) in zip(shape, written, slice_bounds(node.attrs, shape), strict=True):
        if begin == 0 and step == 1 and count == extent:
            result.append((0, extent, 1))
        elif count == 0:
            result.append((0, 0, 1))
        elif isinstance(begin, int) and isinstance(count, int) and isinstance(extent, int):
            result.append((begin, _stop(begin, count, step, extent), step if count > 1 or step < 0 else 1))
        else:
            result.append(given)
    return result


_NORMAL: dict[str, Callable[[Node, Shape], Any]] = {
    "axis": lambda node, shape: axis_of(node.attrs["axis"], len(shape)),
    "axes": _axes,
    "shape": lambda node, shape: node.output.shape,  # -1 resolved
    "dtype": lambda node, shape: DType(node.attrs["dtype"]),
    "starts": lambda node, shape: tuple(start for start, _, _ in _bounds(node, shape)),
    "stops": lambda node, shape: tuple(stop for _, stop, _ in _bounds(node, shape)),
    "steps": lambda node, shape: tuple(step for _, _, step in _bounds(node, shape)),
}


def _normal_attributes(rewriter: Rewriter, node: Node) -> Node | None:
    """Axes count from the front, none means all of them by number, slices have tight bounds, -1 is resolved."""
    if not node.attributes:
        return None
    shape = rewriter.value(node.inputs[0]).shape if node.inputs else node.output.shape
    made = tuple(Attribute(a.name, _NORMAL[a.name](node, shape)) if a.name in _NORMAL else a for a in node.attributes)
    # The text, as Python's equality takes the string "float32" for the element type.
    return None if repr(made) == repr(node.attributes) else replace(node, attributes=made)


# -- operators that do nothing ---------------------------------------------------------------------------------------
def _identity_view(rewriter: Rewriter, node: Node) -> Value | None:
    """A view that maps every index to itself: reshape to the same shape, the identity permutation, the whole slice."""
    if node.row.view is None:
        return None
    source, target = rewriter.value(node.inputs[0]), node.output
    if source.shape != target.shape:
        return None
    axes = {f"o{d}": extent for d, extent in enumerate(target.shape)}
    index: list[Dim] = [0 if extent == 1 else symbol(name) for name, extent in axes.items()]
    nothing = 0 in target.shape
    return source if nothing or node.row.view(index, [source.shape, target.shape], node.attrs, axes) == index else None


def _same_type_cast(rewriter: Rewriter, node: Node) -> Value | None:
    """cast of x to the type that x has."""
    if node.kind is not Kind.ELEMENTWISE or "dtype" not in node.attrs:
        return None
    source = rewriter.value(node.inputs[0])
    return source if source.type == node.output.type else None


# -- a view of a view, a copy of a copy ------------------------------------------------------------------------------
def _permuted(outer: Node, inner: Node, shape: Shape) -> dict[str, Any]:
    return {"axes": tuple(inner.attrs["axes"][a] for a in outer.attrs["axes"])}


def _slice_of_slice(outer: Node, inner: Node, shape: Shape) -> dict[str, Any] | None:
    starts, stops, steps = [], [], []
    for extent, (a, _, m), (b, count, n) in zip(
        shape, slice_bounds(inner.attrs, shape), slice_bounds(outer.attrs, inner.output.shape), strict=True
    ):
        if not (isinstance(extent, int) and isinstance(a, int) and isinstance(b, int) and isinstance(count, int)):
            return None
        begin = a + b * m if count else 0
        starts.append(begin)
        stops.append(_stop(begin, count, m * n, extent) if count else 0)
        steps.append(m * n if count else 1)
    return {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)}


# By the attributes that a view is written with.
_COMPOSE: dict[tuple[str, ...], Callable[[Node, Node, Shape], dict[str, Any] | None]] = {
    ("shape",): lambda outer, inner, shape: outer.attrs,  # the last shape says it all
    ("axes",): _permuted,
    ("starts", "stops", "steps"): _slice_of_slice,
}


def _view_of_view(rewriter: Rewriter, node: Node) -> Node | None:
    """Two views of one kind are one, where that needs no further assumption about symbolic extents."""
    inner = rewriter.makers.get(node.inputs[0]) if node.is_view else None
    compose = _COMPOSE.get(tuple(node.attrs))
    if inner is None or inner.op != node.op or compose is None:
        return None
    source = rewriter.value(inner.inputs[0])
    attrs = compose(node, inner, source.shape)
    if attrs is None:
        return None
    with collect_guards() as assumed:
        node.row.infer([source.type], attrs)
    if any(Guard(*pair) not in rewriter.guards for pair in assumed):
        return None
    return replace(node, inputs=(source.name,), attributes=tuple(Attribute(*item) for item in attrs.items()))


def _copy_of_copy(rewriter: Rewriter, node: Node) -> Node | None:
    """One copy is storage of its own already."""
    inner = rewriter.makers.get(node.inputs[0]) if node.op == "copy" else None
    return replace(node, inputs=inner.inputs) if inner is not None and inner.op == "copy" else None


RULES = (_normal_attributes, _view_of_view, _identity_view, _same_type_cast, _copy_of_copy)
