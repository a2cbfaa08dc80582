"""Index form of a node: which elements of its operands an output element needs, as expressions over the node's axes.

    transpose, then sum over the last axis of x[8,64]:   axes o0:64   reduced r0:8   x at [r0, o0]

Views are seen through: an operand is the value that holds the data, addressed past any chain of views.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from autofusion import dims
from autofusion.dims import Dim, Expr, Shape
from autofusion.graph.ir import Attribute, Graph, Node
from autofusion.ops import Kind
from autofusion.ops.rules import axes_of, axis_of
from autofusion.ops.structure import slice_bounds

Index = tuple[Dim, ...]


class Operand(NamedTuple):
    """A read: the value that holds the data, and the index. `gathered`: the axis whose position is a run-time value."""

    value: str
    index: Index  # type: ignore[assignment]  # a field, where tuples have a method that nobody calls here
    gathered: int | None = None


class Region(NamedTuple):
    """One piece of a node's output: the axes it runs over, what it reads, and where it writes."""

    axes: Mapping[str, Dim]
    operands: tuple[Operand, ...]
    output: Index
    reduced: Mapping[str, Dim] = MappingProxyType({})
    scanned: str | None = None


def _axis(prefix: str, position: int, extent: Dim, axes: dict[str, Dim]) -> Dim:
    """A fresh axis; an axis of one element is the constant 0."""
    if extent == 1:
        return 0
    name, symbol = _symbol(prefix, position)
    axes[name] = extent
    return symbol


@lru_cache(maxsize=256)
def _symbol(prefix: str, position: int) -> tuple[str, Expr]:
    name = f"{prefix}{position}"
    return name, dims.symbol(name)


def _iterate(shape: Shape, axes: dict[str, Dim], prefix: str = "o") -> list[Dim]:
    return [_axis(prefix, d, extent, axes) for d, extent in enumerate(shape)]


def see_through(graph: Graph, name: str, index: list[Dim], axes: Mapping[str, Dim]) -> tuple[str, Index]:
    """Follow views from value `name` at `index` to the value that holds the data."""
    while name in graph.producers and graph.producers[name].is_view:
        node = graph.producers[name]
        source = graph.values[node.inputs[0]]
        shapes = source.shape, node.output.shape
        index = list(_past(node.row.view, node.attributes, shapes, tuple(index), tuple(axes.items())))
        name = source.name
    return name, tuple(index)


@lru_cache(maxsize=1 << 12)
def _past(
    view: Any,
    attributes: tuple[Attribute, ...],
    shapes: tuple[Shape, Shape],
    index: Index,
    axes: tuple[tuple[str, Dim], ...],
) -> Index:
    """The index before a view. Models repeat their views, so answers are kept."""
    bounds = dict(axes)
    found = view(list(index), list(shapes), {a.name: a.value for a in attributes}, bounds)
    return tuple(0 if extent == 1 else dims.simplify(i, bounds) for i, extent in zip(found, shapes[0], strict=True))


def regions(graph: Graph, node: Node) -> tuple[Region, ...]:
    """The index form of a node (not of a view): one region, or several for a join."""
    builder = _FORMS[node.kind]
    return builder(graph, node)


def _read(graph: Graph, name: str, index: list[Dim], axes: Mapping[str, Dim]) -> Operand:
    value, resolved = see_through(graph, name, index, axes)
    return Operand(value, resolved)


def _broadcast(graph: Graph, name: str, index: list[Dim]) -> list[Dim]:
    shape = graph.values[name].shape
    tail = index[len(index) - len(shape) :]
    return [0 if extent == 1 else i for i, extent in zip(tail, shape, strict=True)]


@lru_cache(maxsize=1 << 12)
def _points(shape: Shape) -> tuple[dict[str, Dim], Index]:
    """The axes over a whole shape, and the index of a point; not to be changed by who gets them."""
    axes: dict[str, Dim] = {}
    return axes, tuple(_iterate(shape, axes))


def _elementwise(graph: Graph, node: Node) -> tuple[Region, ...]:
    shape = node.output.shape
    axes, index = _points(shape)
    operands = []
    for name in node.inputs:
        producer = graph.producers.get(name)
        if graph.values[name].shape == shape and (producer is None or not producer.is_view):
            operands.append(Operand(name, index))  # by far the most common: read at its own point
        else:
            operands.append(_read(graph, name, _broadcast(graph, name, list(index)), axes))
    return (Region(axes, tuple(operands), index),)


def _reduce(graph: Graph, node: Node) -> tuple[Region, ...]:
    shape = graph.values[node.inputs[0]].shape
    folded = axes_of(node.attrs["axes"], len(shape))
    axes: dict[str, Dim] = {}
    reduced: dict[str, Dim] = {}
    inside = [_axis("r", d, n, reduced) if d in folded else _axis("o", d, n, axes) for d, n in enumerate(shape)]
    output = [0 if d in folded else i for d, i in enumerate(inside) if node.attrs["keepdims"] or d not in folded]
    return (Region(axes, (_read(graph, node.inputs[0], inside, axes | reduced),), tuple(output), reduced),)


def _scan(graph: Graph, node: Node) -> tuple[Region, ...]:
    axes: dict[str, Dim] = {}
    index = _iterate(node.output.shape, axes)
    along = index[axis_of(node.attrs["axis"], len(index))]
    scanned = along.text if isinstance(along, Expr) else None
    return (Region(axes, (_read(graph, node.inputs[0], index, axes),), tuple(index), scanned=scanned),)


def _gather(graph: Graph, node: Node) -> tuple[Region, ...]:
    """The row's rule addresses data and positions; the position replaces the data's index along `axis`."""
    (region,) = _ruled(graph, node, look_through=(False, True))
    data, where = region.operands
    gathered = axis_of(node.attrs["axis"], len(data.index))
    return (region._replace(operands=(data._replace(gathered=gathered), where)),)


class _Axes:
    """Collects the axes that an index rule makes."""

    def __init__(self) -> None:
        self.axes: dict[str, Dim] = {}
        self.reduced: dict[str, Dim] = {}

    def out(self, extent: Dim) -> Dim:
        return _axis("o", len(self.axes), extent, self.axes)

    def fold(self, extent: Dim) -> Dim:
        return _axis("r", len(self.reduced), extent, self.reduced)


def _ruled(graph: Graph, node: Node, look_through: tuple[bool, ...] = (True, True)) -> tuple[Region, ...]:
    """Contractions, windows and gathers: their rows say how operands are addressed."""
    made = _Axes()
    shapes = [graph.values[name].shape for name in node.inputs]
    assert node.row.index is not None
    operands, output = node.row.index(shapes, node.output.shape, node.attrs, made)
    everything = made.axes | made.reduced
    reads = tuple(
        _read(graph, name, index, everything) if through else Operand(name, tuple(index))
        for name, index, through in zip(node.inputs, operands, look_through, strict=False)
    )
    return (Region(made.axes, reads, tuple(output), made.reduced),)


def _join(graph: Graph, node: Node) -> tuple[Region, ...]:
    if "axis" in node.attrs:
        return _concat(graph, node)
    base = _elementwise(graph, Node(node.outputs, "copy", node.inputs[:1]))[0]
    axes: dict[str, Dim] = {}
    bounds = slice_bounds(node.attrs, node.output.shape)
    inside = [_axis("o", d, count, axes) for d, (_, count, _) in enumerate(bounds)]
    target = [dims.add(first, dims.multiply(i, step)) for i, (first, _, step) in zip(inside, bounds, strict=True)]
    value = _read(graph, node.inputs[1], _broadcast(graph, node.inputs[1], inside), axes)
    return (base, Region(axes, (value,), tuple(target)))


def _concat(graph: Graph, node: Node) -> tuple[Region, ...]:
    along = axis_of(node.attrs["axis"], len(node.output.shape))
    pieces, offset = [], 0
    for name in node.inputs:
        axes: dict[str, Dim] = {}
        shape = graph.values[name].shape
        inside = _iterate(shape, axes)
        target = [dims.add(i, offset) if d == along else i for d, i in enumerate(inside)]
        pieces.append(Region(axes, (_read(graph, name, inside, axes),), tuple(target)))
        offset = dims.add(offset, shape[along])  # type: ignore[assignment]
    return tuple(pieces)


def _source(graph: Graph, node: Node) -> tuple[Region, ...]:
    axes: dict[str, Dim] = {}
    return (Region(axes, (), tuple(_iterate(node.output.shape, axes))),)


def _opaque(graph: Graph, node: Node) -> tuple[Region, ...]:
    """Any element of the output may need any element of the inputs."""
    axes: dict[str, Dim] = {}
    index = _iterate(node.output.shape, axes)
    reads = []
    for name in node.inputs:
        value, source = see_through(graph, name, [0] * len(graph.values[name].shape), {})
        reads.append(Operand(value, source))
    return (Region(axes, tuple(reads), tuple(index)),)


_FORMS = {
    Kind.OPAQUE: _opaque,
    Kind.WINDOW: _ruled,
    Kind.SCATTER: _opaque,
    Kind.SOURCE: _source,
    Kind.ELEMENTWISE: _elementwise,
    Kind.REDUCE: _reduce,
    Kind.SCAN: _scan,
    Kind.GATHER: _gather,
    Kind.CONTRACT: _ruled,
    Kind.JOIN: _join,
    Kind.COMM: _elementwise,
}
