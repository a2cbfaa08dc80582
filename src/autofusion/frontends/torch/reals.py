"""Floating-point numbers of the host that are computed from open sizes: 1/sqrt(n), n/(n-1).

They are computed in the launch, in double precision as Python does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from autofusion.dims import Dim
from autofusion.dtypes import DType
from autofusion.frontends.torch import adapter
from autofusion.frontends.torch.adapter import Unmapped
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Value

Part: TypeAlias = "Real | Dim | float"


@dataclass(frozen=True)
class Real:
    """`row` of the parts: sizes, numbers, and more of these."""

    row: str
    parts: tuple[Part, ...]

    def __float__(self) -> float:
        raise Unmapped("a number that is computed from open sizes is not compiled there")

    def value(self, builder: GraphBuilder) -> Value:
        """As a double."""
        values = [
            each.value(builder) if isinstance(each, Real) else builder.scalar(each, DType.FLOAT64)
            for each in self.parts
        ]
        made = values[0]
        for each in values[1:]:
            made = builder.emit(self.row, [made, each], {})
        return made if len(values) > 1 else builder.emit(self.row, values, {})


_ROWS = {
    "Add": "add",
    "Mul": "mul",
    "FloatTrueDiv": "div",
    "IntTrueDiv": "div",
    "FloatPow": "pow",
    "Pow": "pow",
    "OpaqueUnaryFn_sqrt": "sqrt",
}


def real_of(number: Any) -> Real | float:
    """Of a SymFloat. Raises Unmapped for what rows of the table do not compute."""
    if adapter.from_data(number):
        raise Unmapped(f"{number.node.expr} is computed from what a tensor holds")
    made = _part(number.node.expr)
    return made if isinstance(made, Real) else Real("copy", (made,))


def _part(expression: Any) -> Part:
    if expression.is_Float or (expression.is_Rational and not expression.is_Integer):
        return float(expression)
    kind = type(expression).__name__
    if kind == "ToFloat":
        return _part(expression.args[0])
    if kind in _ROWS and not expression.is_integer:
        return Real(_ROWS[kind], tuple(_part(each) for each in expression.args))
    if not expression.is_integer:
        raise Unmapped(f"{expression} is not computed from sizes")
    return adapter.dim_of_expression(expression)
