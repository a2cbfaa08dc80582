"""Graph IR: operators and their data dependences, a DAG in SSA form.

graph mlp:
  input x:float32[n,64]
  constant w:float32[64,64] = 3f1c…
  [y:float32[n,64]] = matmul [x, w]
  [z:float32[n,64]] = maximum [y, c0]
  output z
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from autofusion import text
from autofusion.dims import Dim, Expr, Shape, collect_guards, product, symbols
from autofusion.dtypes import Array, DType
from autofusion.errors import GraphError
from autofusion.ops import TABLE, Kind, Op, TensorType
from autofusion.text import Rule, ir


@ir("{name}:{dtype}{shape}[[ strides={strides}]]")
@dataclass(frozen=True)
class Value:
    """A tensor: its name, element type, shape, and strides in elements where they are not row-major."""

    name: str
    dtype: DType
    shape: Shape
    strides: Shape | None = None

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    @property
    def size(self) -> Dim:
        """Number of elements."""
        return product(self.shape)

    @property
    def bytes(self) -> Dim:
        return self.size * self.dtype.size


@ir("{name}={value}")
@dataclass(frozen=True)
class Attribute:
    """One attribute of a node."""

    name: str
    value: bool | int | float | DType | Expr | tuple[Dim, ...] | str | None


@ir("input {value}")
@dataclass(frozen=True)
class Input:
    value: Value


@ir("constant {value} = {digest}")
@dataclass(frozen=True)
class Constant:
    """A tensor known at compile time; its data is kept beside the graph under its digest."""

    value: Value
    digest: str


@ir("{outputs} = {op} {inputs}[[ {attributes}]]")
@dataclass(frozen=True)
class Node:
    """One operator: its outputs, the op table's row, input names, and attributes in the row's order."""

    outputs: tuple[Value, ...]
    op: str
    inputs: tuple[str, ...]
    attributes: tuple[Attribute, ...] = ()

    @cached_property
    def row(self) -> Op:
        return TABLE.get(self.op)

    @cached_property
    def attrs(self) -> dict[str, Any]:
        return {a.name: a.value for a in self.attributes}

    @cached_property
    def output(self) -> Value:
        return self.outputs[0]

    @cached_property
    def name(self) -> str:
        """A node is named by its output."""
        return self.outputs[0].name

    @cached_property
    def kind(self) -> Kind:
        return self.row.kind

    @cached_property
    def is_view(self) -> bool:
        return self.row.view is not None


@ir("output {name}[[ writes {writes}]]")
@dataclass(frozen=True)
class Output:
    """A result. `writes` names the input whose storage it goes to (a mutation), after every read of that input."""

    name: str
    writes: str | None = None


@ir("guard {left} == {right}")
@dataclass(frozen=True)
class Guard:
    """An equality of dims that the graph assumes and each call checks."""

    left: Dim
    right: Dim


@ir("graph {name}:")
@dataclass(frozen=True)
class Graph:
    """The whole: inputs, constants, nodes in execution order, outputs, guards."""

    name: str
    data: Mapping[str, Array] = field(default_factory=dict, compare=False, repr=False)
    body: tuple[Input | Constant | Node | Output | Guard, ...] = ()

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        return tuple(line.value for line in self.body if isinstance(line, Input))

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        return tuple(line for line in self.body if isinstance(line, Constant))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(line for line in self.body if isinstance(line, Node))

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        return tuple(line for line in self.body if isinstance(line, Output))

    @cached_property
    def guards(self) -> tuple[Guard, ...]:
        return tuple(line for line in self.body if isinstance(line, Guard))

    @cached_property
    def values(self) -> dict[str, Value]:
        """Every value by name."""
        found = {v.name: v for v in self.inputs}
        found |= {c.value.name: c.value for c in self.constants}
        found |= {v.name: v for node in self.nodes for v in node.outputs}
        return found

    @cached_property
    def producers(self) -> dict[str, Node]:
        """The node that makes each value."""
        return {v.name: node for node in self.nodes for v in node.outputs}

    @cached_property
    def consumers(self) -> dict[str, list[Node]]:
        """The nodes that read each value, each once, in order."""
        found: dict[str, list[Node]] = {name: [] for name in self.values}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                found[name].append(node)
        return found

    @cached_property
    def constant_names(self) -> frozenset[str]:
        return frozenset(c.value.name for c in self.constants)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbolic dimensions, sorted."""
        found: set[str] = set()
        for value in self.values.values():
            for dim in value.shape + (value.strides or ()):
                found |= symbols(dim)
        return tuple(sorted(found))

    def constant_array(self, name: str) -> Array:
        digest = next(c.digest for c in self.constants if c.value.name == name)
        return self.data[digest]

    def with_body(self, body: list[Any]) -> Graph:
        return replace(self, body=tuple(body))

    def __str__(self) -> str:
        return show(self)


def digest_of(array: Array) -> str:
    """The content address of a constant: element type, shape and bytes."""
    head = f"{array.dtype}{array.shape}".encode()
    return "h" + hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()[:24]


NODES: tuple[type, ...] = (Input, Constant, Output, Guard, Node)


def show(graph: Graph) -> str:
    """The graph's text. Constants print as digests."""
    return text.show(graph)


def parse(source: str, data: Mapping[str, Array] | None = None) -> Graph:
    """Read a graph's text back; `data` holds the constants by digest. Raises FormatError."""
    return replace(text.parse(Graph, source, NODES), data=data or {})


# -- what is legal ---------------------------------------------------------------------------------------------------
def _types_agree(graph: Graph, node: Node) -> str | None:
    """The declared output type is the row's. Equalities of dims may rest on guards."""
    try:
        with collect_guards() as assumed:
            inferred = node.row.infer([graph.values[name].type for name in node.inputs], node.row.complete(node.attrs))
    except GraphError as error:
        return str(error)
    if assumed:
        stated = {(g.left, g.right) for g in graph.guards}
        missing = [pair for pair in assumed if pair not in stated and pair[::-1] not in stated]
        if missing:
            return f"assumes {missing[0][0]} == {missing[0][1]}, which no guard states"
    if inferred.dtype is not node.output.dtype:
        return f"declares {node.output.dtype}, the row gives {inferred.dtype}"
    if inferred.shape != node.output.shape and not assumed:
        return f"declares shape {node.output.shape}, the row gives {inferred.shape}"
    return None


def _defined_before(graph: Graph, root: Graph) -> str | None:
    seen: set[str] = set()
    for line in root.body:
        if isinstance(line, Node):
            for name in line.inputs:
                if name not in seen:
                    return f"{line.name}: input {name!r} is not defined before it"
        for value in _defines(line):
            if value.name in seen:
                return f"{value.name!r} is defined twice"
            seen.add(value.name)
        if isinstance(line, Output):
            if line.name not in seen:
                return f"output {line.name!r} is not defined"
            if line.writes is not None and line.writes not in {v.name for v in root.inputs}:
                return f"output {line.name!r} writes {line.writes!r}, which is no input"
    return None


def _defines(line: Any) -> Iterator[Value]:
    if isinstance(line, Input | Constant):
        yield line.value
    elif isinstance(line, Node):
        yield from line.outputs


def _same_storage(graph: Graph, output: Output) -> str | None:
    if output.writes is None:
        return None
    source, target = graph.values[output.name], graph.values[output.writes]
    if source.type == target.type:
        return None
    return f"{source.type} cannot be written to {output.writes!r} of {target.type}"


RULES = (
    Rule("values are defined once, before their use", Graph, _defined_before),
    Rule("output types follow the op table", Node, _types_agree),
    Rule("an output fits the input that it writes", Output, _same_storage),
)


def verify(graph: Graph) -> None:
    """Raises VerifyError with the first broken rule."""
    text.verify(graph, RULES)
