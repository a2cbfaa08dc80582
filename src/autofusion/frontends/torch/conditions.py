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
from autofusion.errors import ArgumentError, AutofusionError
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
    told = {each.name for each in sizes_of(exported)}
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


@dataclass(frozen=True)
class Told:
    """Where an open size is found: the extent (or the stride) of an argument along an axis, or the argument where it is
    a number, is factor * size + rest."""

    position: int
    axis: int | None
    name: str
    factor: int = 1
    rest: int = 0
    argument: str = ""

    @property
    def plain(self) -> bool:
        return (self.factor, self.rest) == (1, 0)

    def size(self, given: int) -> int:
        """The size. Raises ArgumentError where none gives this extent."""
        size, left = divmod(given - self.rest, self.factor)
        if left or size < 0:
            formula = dims.add(dims.multiply(dims.symbol(self.name), self.factor), self.rest)
            raise ArgumentError(f"{self.argument}: axis {self.axis} is {given}, expected {formula}")
        return size


def told_by(position: int, argument: str, sizes: Sequence[Any]) -> list[Told]:
    """What an argument's extents, or strides, tell."""
    found = []
    for axis, size in enumerate(sizes):
        try:
            dim = adapter.dim_of(size)
        except AutofusionError:
            continue
        names = dims.symbols(dim)
        if len(names) == 1:
            (name,) = names
            factor, rest = dims.coefficient_of(dim, name), dims.substitute(dim, {name: 0})
            if isinstance(factor, int) and factor > 0 and isinstance(rest, int):
                found.append(Told(position, axis, name, factor, rest, argument))
    return found


def sizes_of(exported: Any) -> list[Told]:
    """Where open sizes are told, those places first that say one as it is."""
    found: list[Told] = []
    given = [spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
    for place, name in enumerate(given):
        value = values.get(name)
        if value is not None and adapter.is_tensor(value):
            found += told_by(place, name, value.shape)
        elif isinstance(value, adapter.torch().SymInt) and value.node.expr.is_Symbol:
            found.append(Told(place, None, value.node.expr.name, argument=name))
    return sorted(found, key=lambda each: not each.plain)


def _open(exported: Any) -> list[Any]:
    """The open sizes of the arguments."""
    values = [node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"]
    sizes = [size for each in values for size in (each.shape if adapter.is_tensor(each) else (each,))]
    return [size for size in sizes if isinstance(size, adapter.torch().SymInt)]


def measured(places: Sequence[Told], leaves: Sequence[Any]) -> dict[str, int]:
    """The open sizes of a call. Raises LookupError or AttributeError for arguments that have not these axes."""
    found: dict[str, int] = {}
    for each in places:
        given = leaves[each.position]
        if each.name not in found:
            found[each.name] = given if each.axis is None else each.size(given.shape[each.axis])
    return found


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
