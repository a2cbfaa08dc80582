"""Running a graph operator by operator with the rows' references: the oracle for everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autofusion.dims import Dim, Expr, evaluate, symbols
from autofusion.dtypes import Array
from autofusion.errors import ArgumentError, AutofusionError
from autofusion.graph.ir import Graph, Node, Value
from autofusion.ops import reference


def bind_symbols(
    inputs: Sequence[Value], shapes: Sequence[Sequence[int]], guards: Sequence[Any] = ()
) -> dict[str, int]:
    """The values of symbolic dims from actual shapes. Raises ArgumentError where shapes do not fit the signature."""
    values: dict[str, int] = {}
    pending: list[tuple[str, int, Dim, int]] = []
    for value, shape in zip(inputs, shapes, strict=True):
        if len(shape) != len(value.shape):
            raise ArgumentError(f"{value.name}: rank {len(shape)}, expected {len(value.shape)} {list(value.shape)}")
        for axis, (dim, extent) in enumerate(zip(value.shape, shape, strict=True)):
            if isinstance(dim, Expr) and dim.text.isidentifier():
                if values.setdefault(dim.text, int(extent)) != extent:
                    known = values[dim.text]
                    raise ArgumentError(f"{value.name}: axis {axis} is {extent}, but {dim.text} is {known} elsewhere")
            else:
                pending.append((value.name, axis, dim, int(extent)))
    for name, axis, dim, extent in pending:
        free = symbols(dim) - set(values)
        if free:
            raise ArgumentError(f"{name}: axis {axis} = {dim} leaves {sorted(free)[0]} unknown")
        if evaluate(dim, values) != extent:
            raise ArgumentError(f"{name}: axis {axis} is {extent}, expected {dim}")
    for guard in guards:
        left, right = evaluate(guard.left, values), evaluate(guard.right, values)
        if left != right:
            raise ArgumentError(f"the graph needs {guard.left} == {guard.right}, here {left} and {right}")
    return values


def concrete(attrs: Mapping[str, Any], values: Mapping[str, int]) -> dict[str, Any]:
    """Attributes with symbolic dims replaced by numbers."""

    def number(each: Any) -> Any:
        if isinstance(each, tuple):
            return tuple(number(item) for item in each)
        return evaluate(each, values) if isinstance(each, Expr) else each

    return {name: number(value) for name, value in attrs.items()}


def run_node(node: Node, arrays: list[Array], sizes: Mapping[str, int]) -> Array:
    """One node by its reference. Errors carry the node's name."""
    try:
        return reference.apply(node.row, arrays, concrete(node.attrs, sizes))
    except AutofusionError as error:
        raise type(error)(f"{node.name}: {error}") from None


def run(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The outputs for the inputs, in the graph's order. Written inputs are not changed: their new value is returned."""
    sizes = bind_symbols(graph.inputs, [np.shape(a) for a in inputs], graph.guards)
    values: dict[str, Array] = {v.name: np.asarray(a) for v, a in zip(graph.inputs, inputs, strict=True)}
    for constant in graph.constants:
        values[constant.value.name] = graph.data[constant.digest]
    for node in graph.nodes:
        values[node.name] = run_node(node, [values[name] for name in node.inputs], sizes)
    return [np.array(values[output.name]) for output in graph.outputs]
