"""Making a graph one operator at a time. Names are unique; types come from the op table; undecidable dims guard."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autofusion import dtypes
from autofusion.dims import Dim, Expr, Shape, collect_guards, symbols
from autofusion.dtypes import Array, DType
from autofusion.errors import GraphError
from autofusion.graph.ir import Attribute, Constant, Graph, Guard, Input, Node, Output, Value, digest_of
from autofusion.ops import TABLE, TensorType

RESERVED = re.compile(r"[or]\d+")  # what index forms call their axes


class GraphBuilder:
    """Calls of op names append nodes: `F.add(x, 1.0)`. Python numbers become `full` nodes of the operands' type."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.body: list[Any] = []
        self.data: dict[str, Array] = {}
        self.names: set[str] = set()
        self.guards: dict[Guard, None] = {}
        self._scalars: dict[tuple[Any, DType], Value] = {}
        self._counters: dict[str, int] = {}

    # -- leaves ---------------------------------------------------------------------------------------------------
    def unique(self, wanted: str) -> str:
        """`wanted`, or with a number behind it where that name is taken."""
        name = wanted
        while name in self.names:
            self._counters[wanted] = self._counters.get(wanted, 0) + 1
            name = f"{wanted}_{self._counters[wanted]}"
        self.names.add(name)
        return name

    def input(self, name: str, dtype: DType, shape: Shape, strides: Shape | None = None) -> Value:
        """Raises GraphError where the name is taken."""
        if name in self.names:
            raise GraphError(f"input {name!r}: the name is taken")
        for symbol in sorted(set().union(*(symbols(d) for d in (*shape, *(strides or ()))))):
            if RESERVED.fullmatch(symbol):
                raise GraphError(f"input {name!r}: dimension {symbol!r} is a name kept for axes; choose another")
        value = Value(self.unique(name), dtype, shape, strides)
        self.body.append(Input(value))
        return value

    def constant(self, array: Array, name: str = "c") -> Value:
        """A constant holding a copy of the array."""
        array = np.array(array, order="C", copy=True)
        array.flags.writeable = False
        digest = digest_of(array)
        self.data[digest] = array
        value = Value(self.unique(name), dtypes.of(array), tuple(array.shape))
        self.body.append(Constant(value, digest))
        return value

    def scalar(self, value: float | int | bool | Dim, dtype: DType) -> Value:
        """A rank-0 value; equal ones are shared."""
        key = (repr(value), dtype)
        if key not in self._scalars:
            if not isinstance(value, Expr):
                value = float(value) if dtype.is_float else bool(value) if dtype is DType.BOOL else int(value)
            self._scalars[key] = self.emit("full", [], {"shape": (), "value": value, "dtype": dtype}, "k")
        return self._scalars[key]

    # -- operators --------------------------------------------------------------------------------------------------
    def emit(self, op: str, inputs: Sequence[Value], attrs: Mapping[str, Any], name: str = "t") -> Value:
        """Append an operator. Raises GraphError (with the op's name) where it does not fit."""
        row = TABLE.get(op)
        complete = row.complete(attrs)
        with collect_guards() as found:
            inferred = row.infer([v.type for v in inputs], complete)
        self.guards |= {Guard(left, right): None for left, right in found}
        value = Value(self.unique(name), inferred.dtype, inferred.shape)
        attributes = tuple(Attribute(key, each) for key, each in complete.items())
        self.body.append(Node((value,), op, tuple(v.name for v in inputs), attributes))
        return value

    def __getattr__(self, op: str) -> Callable[..., Value]:
        if op.startswith("_"):
            raise AttributeError(op)
        TABLE.get(op)

        def call(*operands: Any, name: str = "t", **attrs: Any) -> Value:
            known = [v for v in operands if isinstance(v, Value)]
            lifted = [v if isinstance(v, Value) else self.scalar(v, known[-1].dtype) for v in operands]
            return self.emit(op, lifted, attrs, name)

        return call

    def type_of(self, value: Value) -> TensorType:
        return value.type

    def copy_node(self, node: Node, inputs: Sequence[Value], outputs: Sequence[Value] | None = None) -> None:
        """Append a node of another graph as it is, reading `inputs`."""
        made = tuple(outputs if outputs is not None else node.outputs)
        self.names |= {v.name for v in made}
        self.body.append(Node(made, node.op, tuple(v.name for v in inputs), node.attributes))

    def output(self, value: Value | str, writes: str | None = None) -> None:
        self.body.append(Output(value if isinstance(value, str) else value.name, writes))

    def build(self) -> Graph:
        """The graph so far: inputs and constants first, then nodes in order, guards, outputs."""
        order = {Input: 0, Constant: 1, Node: 2, Output: 4}
        lines = sorted(self.body, key=lambda line: order[type(line)])
        first_output = next((i for i, line in enumerate(lines) if isinstance(line, Output)), len(lines))
        lines[first_output:first_output] = list(self.guards)
        return Graph(self.name, self.data, tuple(lines))
