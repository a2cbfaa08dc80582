"""One ONNX operator with its operands: what the functions of the mapping read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from autofusion.dims import Dim, Expr, Shape
from autofusion.dtypes import Array, DType
from autofusion.errors import GraphError
from autofusion.frontends.onnx.values import DataDependent, Dims, Operand, Unmapped
from autofusion.ops import TABLE

Maker: TypeAlias = "Callable[[Call], Any]"
MAPPING: dict[str, Maker] = {}


def maps(*names: str) -> Callable[[Maker], Maker]:
    """Decorator: the function makes these ONNX operators (`Add`, or `domain.Op`)."""

    def register(maker: Maker) -> Maker:
        MAPPING.update(dict.fromkeys(names, maker))
        return maker

    return register


@dataclass
class Call:
    """Operands come lifted for the builder `F` in `x`; what is known of them at import comes by `known` and `ints`.

    A maker returns a value or a list of them, in the order of the node's outputs.
    """

    F: Any
    op: str
    opset: int
    operands: Sequence[Operand | None]
    lifted: Sequence[Any]
    attributes: Mapping[str, Any]
    outputs: Sequence[str]
    scope: Any = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.operands)

    def __getitem__(self, position: int) -> Any:
        """An operand. Raises GraphError where it is left out."""
        found = self.get(position)
        if found is None:
            raise GraphError(f"input {position} is missing")
        return found

    def get(self, position: int) -> Any | None:
        """An operand, None where it is left out."""
        if position >= len(self.lifted):
            return None
        made = self.lifted[position]
        return made() if callable(made) else made

    def has(self, position: int) -> bool:
        return position < len(self.operands) and self.operands[position] is not None

    @property
    def inputs(self) -> list[Any]:
        return [self[i] for i in range(len(self.operands))]

    def shape(self, position: int) -> Shape:
        operand = self.operands[position] if position < len(self.operands) else None
        if operand is None:
            raise GraphError(f"input {position} is missing")
        return tuple(operand.shape)

    def rank(self, position: int) -> int:
        return len(self.shape(position))

    def dtype(self, position: int) -> DType:
        return self.F.type_of(self[position]).dtype  # type: ignore[no-any-return]

    def static(self, position: int) -> tuple[int, ...]:
        """The shape, all numbers. Raises Unmapped for an open one."""
        return numbers(self.shape(position), f"the shape of input {position}")

    # -- what is known at import ---------------------------------------------------------------------------------------
    def attr(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def known(self, position: int) -> Array:
        """The operand's value. Raises GraphError where it is computed when the graph runs."""
        operand = self.operands[position] if position < len(self.operands) else None
        if isinstance(operand, np.ndarray):
            return operand
        if isinstance(operand, Dims):
            return operand.array
        if operand is None:
            raise GraphError(f"input {position} is missing")
        text = f"input {position} decides a shape and is only known when the graph runs (data-dependent shape)"
        raise DataDependent(text, operand)

    def ints(self, position: int) -> tuple[Dim, ...]:
        """A known list of integers or dims."""
        return tuple(d if isinstance(d, Expr) else int(d) for d in self.known(position).reshape(-1))

    def listed(self, name: str, position: int) -> tuple[Dim, ...] | None:
        """Integers that older opsets give as an attribute and newer ones as an input; None where neither does."""
        if name in self.attributes:
            found = self.attributes[name]
            return tuple(found) if isinstance(found, tuple) else (int(found),)
        return self.ints(position) if self.has(position) else None

    # -- making --------------------------------------------------------------------------------------------------------
    def row(self, *names: str) -> Callable[..., Any]:
        """The first of these rows that the table has. Raises Unmapped where it has none."""
        for name in names:
            if name in TABLE:
                return getattr(self.F, name)  # type: ignore[no-any-return]
        raise Unmapped(f"there is no row {names[0]!r}")

    def cast(self, value: Any, dtype: DType) -> Any:
        return value if self.F.type_of(value).dtype is dtype else self.F.cast(value, dtype=dtype)

    def scalar(self, value: Any, like: Any) -> Any:
        """A rank-0 value of another value's element type."""
        return self.F.scalar(value, self.F.type_of(like).dtype)

    def reshape(self, value: Any, shape: Sequence[Dim]) -> Any:
        current = tuple(self.F.type_of(value).shape)
        return value if current == tuple(shape) else self.F.reshape(value, shape=tuple(shape))

    def cut(self, value: Any, axis: int, start: Dim, stop: Dim, step: int = 1) -> Any:
        """A slice along one axis."""
        shape = tuple(self.F.type_of(value).shape)
        axis %= len(shape)
        starts: list[Dim] = [0] * len(shape)
        stops, steps = list(shape), [1] * len(shape)
        starts[axis], stops[axis], steps[axis] = start, stop, step
        return self.F.slice(value, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def numbers(shape: Sequence[Dim], what: str) -> tuple[int, ...]:
    """A shape of numbers. Raises Unmapped for an open one."""
    if any(isinstance(d, Expr) for d in shape):
        raise Unmapped(f"{what} is open: {list(shape)}")
    return tuple(int(d) for d in shape)  # type: ignore[arg-type]
