"""What `torch.export` found out of open sizes on the way that it took: a call for which that does not hold is refused.

    if x.shape[0] > 4: …      s0 > 4        max(s0, 5) == s0
    Dim("n", min=3, max=9)    3 <= s0 <= 9  max(s0, 3) == s0, min(s0, 9) == s0
    x.shape[0] % 2 == 0       Mod(s0, 2)=0  s0%2 == 0

Equalities of dims are what native calls check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autofusion import dims
from autofusion.dims import Dim
from autofusion.errors import AutofusionError
from autofusion.frontends.torch import adapter
from autofusion.graph.ir import Guard

LEAST = 2  # a lower bound that PyTorch sets by itself, and does not check


@dataclass(frozen=True)
class Condition:
    """`expression`: PyTorch's, of sympy. `guard`: the same in our words, None where dims do not have it."""

    expression: Any = field(repr=False)
    guard: Guard | None

    def __str__(self) -> str:
        return str(self.expression)

    @property
    def symbols(self) -> set[str]:
        return {each.name for each in self.expression.free_symbols}

    def holds(self, sizes: Mapping[str, int]) -> bool:
        try:
            if self.guard is not None:
                return bool(dims.evaluate(self.guard.left, sizes) == dims.evaluate(self.guard.right, sizes))
            return bool(self.expression.subs({each: sizes[each.name] for each in self.expression.free_symbols}))
        except ZeroDivisionError:
            return False


def conditions_of(exported: Any) -> list[Condition]:
    """The bounds of open sizes and what the traced code asked of them, where arguments tell these sizes."""
    told = {name for _, _, name in sizes_of(exported)}
    sympy = adapter.module("sympy")
    found: dict[Any, None] = {}
    for expression, bounds in exported.range_constraints.items():
        if bounds.lower.is_Integer and bounds.lower > LEAST:
            found[sympy.Ge(expression, bounds.lower)] = None
        if bounds.upper.is_Integer:
            found[sympy.Le(expression, bounds.upper)] = None
    for size in _open(exported):
        for guard in size.node.shape_env.guards:
            parts = guard.expr.args if isinstance(guard.expr, sympy.And) else (guard.expr,)
            found |= dict.fromkeys(parts)
        break
    listed = [Condition(each, _guard(each)) for each in found if each != sympy.true]
    return [each for each in listed if each.symbols and each.symbols <= told]


def sizes_of(exported: Any) -> list[tuple[int, int | None, str]]:
    """Where open sizes are told: the number of the argument, its axis (None for a number), the symbol's name."""
    found = []
    given = [spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
    for place, name in enumerate(given):
        value = values.get(name)
        axes: list[tuple[int | None, Any]] = [(None, value)]
        if value is not None and adapter.is_tensor(value):
            axes = list(enumerate(value.shape))
        for axis, size in axes:
            if isinstance(size, adapter.torch().SymInt) and size.node.expr.is_Symbol:
                found.append((place, axis, size.node.expr.name))
    return found


def _open(exported: Any) -> list[Any]:
    """The open sizes of the arguments."""
    values = [node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"]
    sizes = [size for each in values for size in (each.shape if adapter.is_tensor(each) else (each,))]
    return [size for size in sizes if isinstance(size, adapter.torch().SymInt)]


def measured(places: Sequence[tuple[int, int | None, str]], leaves: Sequence[Any]) -> dict[str, int]:
    """The open sizes of a call. Raises LookupError or AttributeError for arguments that have not these axes."""
    return {name: leaves[n] if axis is None else leaves[n].shape[axis] for n, axis, name in places}


def _guard(expression: Any) -> Guard | None:
    """A relation of sizes as an equality of dims."""
    make = _RELATIONS.get(type(expression).__name__)
    try:
        left, right = map(adapter.dim_of_expression, expression.args) if make else (0, 0)
    except AutofusionError:
        return None
    return Guard(*make(left, right)) if make else None


def _unequal(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    apart = dims.add(dims.maximum(a, b), dims.product([-1, dims.minimum(a, b)]))
    return dims.maximum(apart, 1), apart


_RELATIONS: dict[str, Any] = {
    "Equality": lambda a, b: (a, b),
    "Unequality": _unequal,
    "GreaterThan": lambda a, b: (dims.maximum(a, b), a),
    "StrictGreaterThan": lambda a, b: (dims.maximum(a, dims.add(b, 1)), a),
    "LessThan": lambda a, b: (dims.maximum(a, b), b),
    "StrictLessThan": lambda a, b: (dims.maximum(dims.add(a, 1), b), b),
}
