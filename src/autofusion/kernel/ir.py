"""Kernel IR: one FusionGroup in index form. Views and broadcasts have become index expressions.

    kernel:
      param p0:float32[4096, 1024] in
      fold v0[i0]:float32 = max p0[i0, i1] over [i0<4096] reduce [i1<1024]
      map v1[i0, i1]:float32 = sub [p0[i0, i1], v0[i0]] over [i0<4096, i1<1024]
      copy p1[i0, i1] <- v1[i0, i1] over [i0<4096, i1<1024]

Names are canonical, so equal groups have equal text. The statements are also those of tile Programs, where the values
have become buffers and the axes run over one tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeAlias

from autofusion import text
from autofusion.dims import Dim, Expr, Shape, product, symbols
from autofusion.dtypes import DType
from autofusion.ops import TABLE
from autofusion.ops.folds import FOLDS
from autofusion.text import Rule, ir


class Role(StrEnum):
    """What a parameter is to the kernel."""

    IN = "in"
    OUT = "out"


@ir("param {name}:{dtype}{shape} {role}[[ strides={strides}]]")
@dataclass(frozen=True)
class Param:
    """A tensor in global memory. `strides` in elements; row-major where they are not given."""

    name: str
    dtype: DType
    shape: Shape
    role: Role
    strides: Shape | None = None


@ir("{name}<{extent}")
@dataclass(frozen=True)
class Axis:
    """An axis of a statement: 0 <= axis < extent."""

    name: str
    extent: Dim


@ir("{name}{index}")
@dataclass(frozen=True)
class Access:
    """An element of a parameter, a value or a buffer."""

    name: str
    index: tuple[Dim, ...]


@ir("{dtype}({value})")
@dataclass(frozen=True)
class Literal:
    """A constant, a symbolic size, or a position along an axis, as a number of a type."""

    dtype: DType
    value: bool | int | float | Expr


Operand: TypeAlias = Access | Literal


@ir("map {target}:{dtype} = {op} {operands} over {axes}")
@dataclass(frozen=True)
class Map:
    """One elementwise op at every point. The result is rounded to `dtype`."""

    target: Access
    dtype: DType
    op: str
    operands: tuple[Operand, ...]
    axes: tuple[Axis, ...]


@ir("copy {target} <- {source} over {axes}[[ scale={scale}]][[ through={through}]]")
@dataclass(frozen=True)
class Copy:
    """Move elements, changing nothing but their type to the target's. What the copy path does on the way, in order:
    `scale` multiplies them, as float32; `through`: elementwise ops."""

    target: Access
    source: Operand
    axes: tuple[Axis, ...]
    through: tuple[str, ...] = ()
    scale: float = 1.0


@ir("fold {target}:{dtype} = {fold} {operand} over {axes} reduce {reduced}[[ accumulate={accumulate}]]")
@dataclass(frozen=True)
class Fold:
    """Fold `operand` along `reduced`; `accumulate` merges into what the target holds."""

    target: Access
    dtype: DType
    fold: str
    operand: Operand
    axes: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    accumulate: bool = False


@ir("scan {target}:{dtype} = {fold} {operand} along {along} over {axes}")
@dataclass(frozen=True)
class Scan:
    """The running fold along one of the axes, that position included."""

    target: Access
    dtype: DType
    fold: str
    operand: Operand
    along: str
    axes: tuple[Axis, ...]


@ir(
    "contract {target}:{dtype} = {left} * {right} over {axes} reduce {reduced}[[ accumulate={accumulate}]]"
    "[[ library={library}]]"
)
@dataclass(frozen=True)
class Contract:
    """The sum of products along `reduced`; `accumulate` adds it to what the target holds. `library`: the hand-tuned
    kernel that computes it."""

    target: Access
    dtype: DType
    left: Access
    right: Access
    axes: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    accumulate: bool = False
    library: str = ""


@ir(
    "gather {target}:{dtype} = {source} axis={axis} at {position} extent={extent} over {axes}[[ ordinal={ordinal}]]"
    "[[ wraps={wraps}]]"
)
@dataclass(frozen=True)
class Gather:
    """`source` with its index at `axis` replaced by the run-time `position`, checked against `extent`. `wraps`: a
    negative position counts from the end.

    `ordinal`: which of the operator's positions it is, in row-major order: what a failed check reports.
    """

    target: Access
    dtype: DType
    source: Access
    axis: int
    position: Operand
    extent: Dim
    axes: tuple[Axis, ...]
    ordinal: Dim = 0
    wraps: bool = True


Statement: TypeAlias = Map | Copy | Fold | Scan | Contract | Gather
STATEMENTS: tuple[type, ...] = (Map, Copy, Fold, Scan, Contract, Gather)


@ir("kernel:")
@dataclass(frozen=True)
class Kernel:
    """Parameters, then statements in an order of execution."""

    body: tuple[Param | Map | Copy | Fold | Scan | Contract | Gather, ...]

    @cached_property
    def params(self) -> tuple[Param, ...]:
        return tuple(line for line in self.body if isinstance(line, Param))

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        return tuple(line for line in self.body if not isinstance(line, Param))

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Symbolic sizes, sorted."""
        found: set[str] = set()
        for param in self.params:
            for dim in param.shape + (param.strides or ()):
                found |= symbols(dim)
        for statement in self.statements:
            for axis in (*statement.axes, *reduced_of(statement)):
                found |= symbols(axis.extent)
            names = {a.name for a in (*statement.axes, *reduced_of(statement))}
            for dim in _dims_in(statement):
                found |= symbols(dim) - names
        return tuple(sorted(found))

    def __str__(self) -> str:
        return text.show(self)


def _dims_in(statement: Statement) -> Iterator[Dim]:
    yield from statement.target.index
    for operand in operands_of(statement):
        if isinstance(operand, Access):
            yield from operand.index
        elif isinstance(operand.value, Expr):
            yield operand.value
    if isinstance(statement, Gather):
        yield statement.ordinal


def operands_of(statement: Statement) -> tuple[Operand, ...]:
    """What a statement reads, in order."""
    if isinstance(statement, Map):
        return statement.operands
    if isinstance(statement, Copy):
        return (statement.source,)
    if isinstance(statement, Contract):
        return (statement.left, statement.right)
    if isinstance(statement, Gather):
        return (statement.source, statement.position)
    return (statement.operand,)


def reduced_of(statement: Statement) -> tuple[Axis, ...]:
    """The axes that it folds."""
    return statement.reduced if isinstance(statement, Fold | Contract) else ()


def points(statement: Statement) -> Dim:
    """The size of its iteration space."""
    return product(a.extent for a in (*statement.axes, *reduced_of(statement)))


def accesses(statement: Statement) -> Iterator[Access]:
    """Its target and every element that it reads."""
    yield statement.target
    for operand in operands_of(statement):
        if isinstance(operand, Access):
            yield operand


def parse(source: str) -> Kernel:
    """Read a kernel's text back. Raises FormatError."""
    return text.parse(Kernel, source, (Param, *STATEMENTS))


# -- what is legal ---------------------------------------------------------------------------------------------------
def _axes_bound(kernel: Any, statement: Any) -> str | None:
    """Index expressions use the statement's own axes and sizes."""
    names = [a.name for a in (*statement.axes, *reduced_of(statement))]
    if len(set(names)) != len(names):
        return f"an axis is named twice: {names}"
    allowed = set(names) | set(kernel.symbols)
    for dim in _dims_in(statement):
        free = symbols(dim) - allowed
        if free:
            return f"index {dim} uses {sorted(free)[0]}, which is no axis of the statement"
    folded = {a.name for a in reduced_of(statement)}
    for dim in statement.target.index:
        if symbols(dim) & folded:
            return f"the target's index {dim} uses a folded axis"
    return None


def _ops_known(kernel: Any, statement: Any) -> str | None:
    if isinstance(statement, Map):
        row = TABLE.get(statement.op) if statement.op in TABLE else None
        if row is None or row.lower is not None:
            return f"{statement.op!r} is no primitive of the op table"
        row.check_arity(len(statement.operands))
    if isinstance(statement, Fold | Scan) and statement.fold not in FOLDS:
        return f"{statement.fold!r} is no row of the fold table"
    return None


def _defined(root: Any, kernel: Any) -> str | None:
    known = {p.name for p in kernel.params}
    outputs = {p.name for p in kernel.params if p.role is Role.OUT}
    for statement in kernel.statements:
        for operand in operands_of(statement):
            if isinstance(operand, Access) and operand.name not in known:
                return f"{operand.name} is read before it is defined"
        if statement.target.name in known and statement.target.name not in outputs:
            if isinstance(statement, Copy | Map) and statement.target.index:
                continue  # one more region of a joined value
            return f"{statement.target.name} is defined twice"
        known.add(statement.target.name)
    return None


RULES = (
    Rule("index expressions are over the statement's axes", STATEMENTS, _axes_bound),
    Rule("ops and folds are primitives", (Map, Fold, Scan), _ops_known),
    Rule("values are defined before they are read", Kernel, _defined),
)


def verify(kernel: Kernel) -> None:
    """Raises VerifyError with the first broken rule."""
    text.verify(kernel, RULES)
