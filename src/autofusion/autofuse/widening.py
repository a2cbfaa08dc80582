"""Casts that a matrix unit does itself: operands of a narrow integer type, multiplied and added up as int32.

    [a:int32[64,32]] = cast [x] [dtype=int32]
    [b:int32[32,48]] = cast [w] [dtype=int32]        x and w are int8
    [y:int32[64,48]] = matmul [a, b]             →   y reads x and w; nobody computes a and b

Decided from kinds and types, for whatever contraction it is; views may stand between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from autofusion.autofuse.forms import Widening
from autofusion.autofuse.space import runs_on_host
from autofusion.dtypes import DType
from autofusion.graph.index import see_through
from autofusion.graph.ir import Attribute, Constant, Graph, Node, Value, digest_of
from autofusion.kinds import Kind
from autofusion.target import Target


def find(graph: Graph, target: Target, hosted: Collection[str] = ()) -> Widening:
    """What the target's matrix unit widens by itself. `hosted`: nodes that run on the host."""
    unit = target.unit_for(Kind.CONTRACT)
    if unit is None or not unit.widens:
        return Widening()
    contractions: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.kind is not Kind.CONTRACT or node.output.dtype is not DType.INT32 or node.name in hosted:
            continue
        casts = [cast_behind(graph, name) for name in node.inputs]
        sources = {graph.values[cast.inputs[0]].dtype for cast in casts if cast is not None}
        fits = None not in casts and len(sources) == 1 and sources <= {*unit.widens}
        if fits and not runs_on_host(graph, target, node):
            contractions[node.name] = [cast.name for cast in casts if cast is not None]
    results = {output.name for output in graph.outputs}
    found = {cast for casts in contractions.values() for cast in casts}
    unread = {cast for cast in found if not _is_read(graph, cast, contractions, results)}
    return Widening(frozenset(contractions), frozenset(unread))


def cast_behind(graph: Graph, name: str) -> Node | None:
    """The cast to int32 that makes a value, past views."""
    source = graph.producers.get(source_of(graph, name))
    is_cast = source is not None and source.op == "cast" and source.output.dtype is DType.INT32
    return source if is_cast else None


def source_of(graph: Graph, name: str) -> str:
    """The value that holds the data of a value, past views."""
    return see_through(graph, name, [0] * len(graph.values[name].shape), {})[0]


def _is_read(graph: Graph, name: str, contractions: Collection[str], results: Collection[str]) -> bool:
    """Whether anything but the contractions needs a value, past views."""
    if name in results:
        return True
    return any(
        _is_read(graph, reader.name, contractions, results) if reader.is_view else reader.name not in contractions
        for reader in graph.consumers[name]
    )


# -- constants -------------------------------------------------------------------------------------------------------
def narrow_constants(graph: Graph, target: Target) -> Graph:
    """Constants that only such contractions read, and whose values all fit, in the narrow type.

    constant w:int32[32,48]    →    constant w_int8:int8[32,48]    [w:int32[32,48]] = cast [w_int8] [dtype=int32]
    """
    unit = target.unit_for(Kind.CONTRACT)
    if unit is None or not unit.widens or not any(node.kind is Kind.CONTRACT for node in graph.nodes):
        return graph
    found = {c.value.name: kind for c in graph.constants if (kind := fitting(graph, c, unit.widens))}
    products = {
        node.name: node
        for node in graph.nodes
        if node.kind is Kind.CONTRACT and node.output.dtype is DType.INT32 and _all_narrow(graph, node, found)
    }
    results = {output.name for output in graph.outputs}
    chosen = {name: kind for name, kind in found.items() if not _is_read(graph, name, products, results)}
    if not chosen:
        return graph
    taken, data = set(graph.values), dict(graph.data)
    body: list[Any] = []
    casts: list[Node] = []
    for line in graph.body:
        if isinstance(line, Constant) and line.value.name in chosen:
            kind = chosen[line.value.name]
            name = next(n for i in count() if (n := f"{line.value.name}_{kind}{i or ''}") not in taken)
            taken.add(name)
            array = graph.data[line.digest].astype(kind.numpy)
            array.flags.writeable = False
            body.append(Constant(Value(name, kind, line.value.shape), digest_of(array)))
            data[body[-1].digest] = array
            casts.append(Node((line.value,), "cast", (name,), (Attribute("dtype", DType.INT32),)))
            continue
        if isinstance(line, Node):
            body += casts
            casts = []
        body.append(line)
    read = {line.digest for line in body if isinstance(line, Constant)}
    return replace(graph, body=tuple(body), data={digest: array for digest, array in data.items() if digest in read})


def fitting(graph: Graph, constant: Constant, types: Collection[DType]) -> DType | None:
    """The narrow type that holds all values of an int32 constant."""
    if constant.value.dtype is not DType.INT32:
        return None
    array = graph.data[constant.digest]
    limits = ((kind, np.iinfo(kind.numpy)) for kind in types)
    fits = (kind for kind, limit in limits if not array.size or (limit.min <= array.min() and array.max() <= limit.max))
    return next(fits, None)


def _all_narrow(graph: Graph, node: Node, constants: Mapping[str, DType]) -> bool:
    """Whether all operands of a contraction are narrow, or constants that could be, of one type."""
    types = set()
    for name in node.inputs:
        source, cast = source_of(graph, name), cast_behind(graph, name)
        types.add(constants.get(source) if cast is None else graph.values[cast.inputs[0]].dtype)
    return None not in types and len(types) == 1
