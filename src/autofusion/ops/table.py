"""The op table: one operator, one row. Shapes, element types, meaning and lowering stand here and nowhere else."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias

from autofusion.dims import Bounds, Dim, Expr, Shape
from autofusion.dtypes import Array, DType
from autofusion.errors import DTypeError, GraphError
from autofusion.kinds import Kind

Attr: TypeAlias = bool | int | float | str | DType | Expr | tuple[Dim, ...] | None
Attrs: TypeAlias = Mapping[str, Any]


class Missing(Enum):
    """The default of an attribute that must be given."""

    REQUIRED = "required"


REQUIRED = Missing.REQUIRED


class TensorType(NamedTuple):
    """Element type and shape."""

    dtype: DType
    shape: Shape


class Builder(Protocol):
    """What a lowering writes in: calling an op's name makes one more operator (or, in the evaluator, its value)."""

    def __getattr__(self, op: str) -> Callable[..., Any]: ...

    def type_of(self, value: Any) -> TensorType: ...


class Axes(Protocol):
    """Makes the axes of an index rule: an axis of one element is the constant 0."""

    def out(self, extent: Dim) -> Dim: ...

    def fold(self, extent: Dim) -> Dim: ...


IndexRule: TypeAlias = Callable[[list[Shape], Shape, Attrs, Axes], tuple[list[list[Dim]], list[Dim]]]
ShapeRule: TypeAlias = Callable[[list[Shape], Attrs], Shape]
DTypeRule: TypeAlias = Callable[[list[DType], Attrs], DType]


@dataclass(frozen=True)
class Op:
    """One row.

    `arity`: how many inputs, or (least, most); most None is any number. `attributes`: name -> default or REQUIRED.
    `shape_rule`, `dtype_rule`: the output's, from the inputs' and the attributes (with defaults filled in); they raise
    ShapeError or DTypeError saying what is wrong. `reference`: its meaning on NumPy arrays; reduced-precision inputs of
    elementwise rows arrive as float32 and the result is rounded once. `lower`: None for a primitive, else the same
    meaning in other rows. `view`: for views, the input index of an output index. `index`: for contractions and
    windows, from the operands' shapes and the output's: the index of each operand and of the output over the axes that
    the rule makes. `fold`: the Fold row of a reduction or scan. `dtypes`: element types admitted for the leading data
    operand. `domain`: the interval of sensible test inputs. `tolerance`: relative error in units of the result type's
    epsilon that an implementation may add. `flops`: operations an element costs, for ranking only.
    """

    name: str
    kind: Kind
    arity: int | tuple[int, int | None]
    shape_rule: ShapeRule
    dtype_rule: DTypeRule
    reference: Callable[..., Array]
    lower: Callable[..., Any] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    view: Callable[[list[Dim], list[Shape], Attrs, Bounds], list[Dim]] | None = None
    fold: str | None = None
    index: IndexRule | None = None
    dtypes: tuple[DType, ...] = tuple(DType)
    domain: tuple[float, float] = (-4.0, 4.0)
    tolerance: float = 4.0
    flops: float = 1.0
    doc: str = ""

    def check_arity(self, count: int) -> None:
        least, most = self.arity if isinstance(self.arity, tuple) else (self.arity, self.arity)
        if count < least or (most is not None and count > most):
            wanted = str(least) if most == least else f"{least} to {most}" if most is not None else f"at least {least}"
            raise GraphError(f"{self.name}: takes {wanted} inputs, got {count}")

    def complete(self, attrs: Attrs) -> dict[str, Any]:
        """The attributes with defaults filled in, in the row's order. Raises GraphError for unknown or missing ones."""
        unknown = sorted(set(attrs) - set(self.attributes))
        if unknown:
            known = ", ".join(self.attributes) or "none"
            raise GraphError(f"{self.name}: unknown attribute {unknown[0]!r}; it takes: {known}")
        complete = {name: attrs.get(name, default) for name, default in self.attributes.items()}
        for name, value in complete.items():
            if value is REQUIRED:
                raise GraphError(f"{self.name}: attribute {name!r} is missing")
        return complete

    def infer(self, inputs: list[TensorType], attrs: Attrs) -> TensorType:
        """The output's type. `attrs` are complete. Raises GraphError naming the operator."""
        self.check_arity(len(inputs))
        if inputs and inputs[0].dtype not in self.dtypes and self.kind is not Kind.COMM:
            raise DTypeError(
                f"{self.name}: element type {inputs[0].dtype} is not taken; takes {', '.join(self.dtypes)}"
            )
        try:
            dtype = self.dtype_rule([t.dtype for t in inputs], attrs)
            return TensorType(dtype, self.shape_rule([t.shape for t in inputs], attrs))
        except GraphError as error:
            raise type(error)(f"{self.name}: {error}") from None


class Table:
    """The rows by name. `register` adds one; nothing removes a built-in one."""

    def __init__(self) -> None:
        self._rows: dict[str, Op] = {}

    def register(self, op: Op) -> Op:
        """Add a row. Raises GraphError where the name is taken."""
        if op.name in self._rows:
            raise GraphError(f"operator {op.name!r} is registered already")
        if not op.name.isidentifier():
            raise GraphError(f"operator name {op.name!r}: expected an identifier")
        self._rows[op.name] = op
        return op

    def remove(self, name: str) -> None:
        """Take a registered row out again."""
        del self._rows[name]

    def get(self, name: str) -> Op:
        """The row. Raises GraphError for an unknown name, with the nearest known ones."""
        try:
            return self._rows[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._rows, 3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise GraphError(f"unknown operator {name!r}{hint}") from None

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[Op]:
        return iter(self._rows.values())


TABLE = Table()
