"""Rows that have a lowering become it, until only primitives remain.

    [y:float32[8,n]] = softmax [x] [axis=1]
    →
    [y.max:float32[8,1]] = max [x] [axes=[1], keepdims=true]
    [y.sub:float32[8,n]] = sub [x, y.max]
    [y.exp:float32[8,n]] = exp [y.sub]
    [y.sum:float32[8,1]] = sum [y.exp] [axes=[1], keepdims=true]
    [y:float32[8,n]] = div [y.exp, y.sum]

A composite of a reduced type (float16, bfloat16) is float32 inside and rounded once, as eager mode computes it:

    [y:float16[8]] = gelu [x]    →    cast x to float32, the lowering in float32, [y:float16[8]] = cast to float16
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autofusion.dtypes import DType
from autofusion.graph.ir import Graph, Node, Value
from autofusion.ops import TABLE, Kind
from autofusion.passes.rewrite import Rewriter


def run(graph: Graph) -> Graph:
    """The graph in primitives."""
    lowering = _Lowering(graph)
    for original in graph.nodes:
        node = lowering.arrive(original)
        if node.row.lower is None:
            lowering.append(node)
        else:
            lowering.stand(node.name, lowering.expand_into(node))
    return lowering.finish()


class _Lowering(Rewriter):
    """A builder in which a composite is never emitted: its lowering is, and so on down."""

    within = ""  # the name of the composite that is being lowered

    def expand_into(self, node: Node) -> Value:
        """The primitives of a composite; the last one takes the composite's name."""
        self.within = node.name
        result = self.emit(node.op, [self.value(name) for name in node.inputs], node.attrs)
        last = self.body[-1]
        if not (isinstance(last, Node) and last.output == result) or last.kind is Kind.SOURCE:
            return result  # the lowering returned one of its inputs, or a shared scalar
        self.body.pop()
        return self.append(replace(last, outputs=(replace(result, name=node.name),)))

    def emit(self, op: str, inputs: Sequence[Value], attrs: Mapping[str, Any], name: str = "t") -> Value:
        row = TABLE.get(op)
        if row.lower is not None:
            return self._lowered(op, inputs, row.complete(attrs))
        # Scalars are shared between composites, so they keep a neutral name.
        wanted = name if row.kind is Kind.SOURCE else f"{self.within}.{op}"
        value = super().emit(op, inputs, attrs, wanted)
        self.known[value.name] = value
        return value

    def _lowered(self, op: str, inputs: Sequence[Value], attrs: dict[str, Any]) -> Value:
        row = TABLE.get(op)
        assert row.lower is not None
        result = row.dtype_rule([v.dtype for v in inputs], attrs)
        if not result.is_reduced:
            made: Value = row.lower(self, *inputs, attrs)
            return made
        wide = [self._cast(v, DType.FLOAT32) if v.dtype.is_reduced else v for v in inputs]
        return self._cast(row.lower(self, *wide, attrs), result)

    def _cast(self, value: Value, dtype: DType) -> Value:
        return self.emit("cast", [value], {"dtype": dtype})
