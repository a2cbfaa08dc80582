"""Zero points in front of a product of bytes: multiplied out, so that the matrix unit multiplies the bytes themselves.

    [a:int32[m,k]] = sub [cast x, z]       z: one number, or one a row
    [y:int32[m,n]] = matmul [a, b]     →   matmul [cast x, b] - z * matmul [ones, b]

With zero points on both sides (x - z)(w - v) = xw - z·1w - x1·v + k·z·v, where the sums along the depth are products
with ones. All of it wraps at 32 bits as the product does, so it is exact. Bytes without a sign are moved by 128 first,
and their zero point with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autofusion.autofuse.widening import fitting
from autofusion.dims import Expr
from autofusion.dtypes import DType
from autofusion.graph.ir import Graph, Node, Value
from autofusion.kinds import Kind
from autofusion.passes.rewrite import Rewriter
from autofusion.target import Target

MOVED = 128  # from uint8 to int8


@dataclass(frozen=True)
class _Side:
    """An operand: its cast to int32, and what is to be subtracted from it."""

    cast: Value
    zero: Value | None


def multiply_out(graph: Graph, target: Target) -> Graph:
    """The graph with products of bytes for the target's matrix unit; the same where there is nothing to do."""
    unit = target.unit_for(Kind.CONTRACT)
    if unit is None or DType.INT8 not in unit.widens or not any(n.kind is Kind.CONTRACT for n in graph.nodes):
        return graph
    work = _Rewriter(graph)
    for original in graph.nodes:
        node = work.arrive(original)
        if not (is_matrix_product(graph, original) and work.product(node)):
            work.append(node)
    return work.finish()


def is_matrix_product(graph: Graph, node: Node) -> bool:
    """Whether it folds the last axis of the left and the last but one of the right operand, of int32."""
    if node.kind is not Kind.CONTRACT or node.output.dtype is not DType.INT32:
        return False
    shapes = [graph.values[name].shape for name in node.inputs]
    if any(len(shape) < 2 for shape in shapes) or len(node.output.shape) != max(map(len, shapes)):
        return False
    depth, rows, columns = shapes[0][-1], shapes[0][-2], shapes[1][-1]
    return isinstance(depth, int) and depth > 0 and shapes[1][-2] == depth and node.output.shape[-2:] == (rows, columns)


class _Rewriter(Rewriter):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.narrow = {c.value.name for c in graph.constants if fitting(graph, c, (DType.INT8,))}

    def product(self, node: Node) -> bool:
        """Emit a product with its zero points multiplied out. False where it has none."""
        left, right = (self._side(name, axis) for name, axis in zip(node.inputs, (-1, -2), strict=True))
        if left is None or right is None or (left.zero is None and right.zero is None):
            return False
        (depth,) = left.cast.shape[-1:]
        assert not isinstance(depth, Expr)
        result = self._times(node, left.cast, right.cast)
        terms = []
        if left.zero is not None:
            sums = self._times(node, self._ones((1, depth)), right.cast)
            if right.zero is not None:
                sums = self.sub(sums, self.mul(right.zero, self.scalar(depth, DType.INT32)))
            terms.append(self.mul(left.zero, sums))
        if right.zero is not None:
            terms.append(self.mul(self._times(node, left.cast, self._ones((depth, 1))), right.zero))
        for term in terms:
            result = self.sub(result, term)
        last = self.body.pop()
        assert isinstance(last, Node)
        self.append(replace(last, outputs=(node.output,)))
        return True

    def _times(self, node: Node, a: Value, b: Value) -> Value:
        return self.emit(node.op, [a, b], node.attrs)

    def _ones(self, shape: tuple[int, int]) -> Value:
        return self.cast(self.constant(np.ones(shape, np.int8), "ones"), dtype=DType.INT32)

    def _side(self, name: str, axis: int) -> _Side | None:
        """What an operand is made of, where its zero point is one along the axis that is folded."""
        value, zero = self.value(name), None
        maker = self.makers.get(name)
        if maker is not None and maker.op == "sub":
            inner, zero = (self.value(each) for each in maker.inputs)
            if inner.shape != value.shape or (len(zero.shape) >= -axis and zero.shape[axis] != 1):
                return None
            value, maker = inner, self.makers.get(inner.name)
        if maker is None or maker.op != "cast":
            return _Side(value, None) if zero is None and value.name in self.narrow else None
        narrow = self.value(maker.inputs[0])
        if narrow.dtype is DType.INT8:
            return _Side(value, zero)
        if narrow.dtype is not DType.UINT8:
            return None
        moved = self.sub(value, self.scalar(MOVED, DType.INT32))
        cast = self.cast(self.cast(moved, dtype=DType.INT8), dtype=DType.INT32)
        by = self.scalar(MOVED, DType.INT32)
        return _Side(cast, self.neg(by) if zero is None else self.sub(zero, by))
