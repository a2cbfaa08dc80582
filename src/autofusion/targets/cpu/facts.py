"""What straight-line statements tell of their values: bounds, and where a NaN is sure to show.

    m = max x along a row       m need not be NaN where an x is: s is then, and with it all that is written
    d = x - m                   d <= 0, so that e^d cannot overflow
    e = exp d                   0 <= e <= 1
    s = sum e along the row
    y = e / s

All of it follows from the operators; a value that is NaN may be so in addition to its bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto

from autofusion import dims
from autofusion.kernel.ir import Access, Contract, Copy, Fold, Map, Statement, operands_of
from autofusion.targets.cpu.nans import PROPAGATING

EXTREMES = ("max", "min")
NAN_FOLDS = ("sum", "prod", *EXTREMES)  # NaN where an element is


@dataclass(frozen=True)
class Facts:
    """Names of values. `blind`: folds that may pass a NaN over; `falling`: at most 0; `fractions`: from 0 to 1."""

    blind: frozenset[str] = frozenset()
    falling: frozenset[str] = frozenset()
    fractions: frozenset[str] = frozenset()


NOTHING = Facts()


def facts_of(statements: Sequence[Statement], seen: Set[str]) -> Facts:
    """Of statements that run in this order, once for each tile; `seen`: what other statements read or write."""
    counts = Counter(s.target.name for s in statements)
    once = {name for name, count in counts.items() if count == 1}
    folds = {
        s.target: s
        for s in statements
        if isinstance(s, Fold) and not s.accumulate and s.target.name in once - seen and counts[_name(s.operand)] <= 1
    }
    if not folds:
        return NOTHING
    falling = {s.target.name for s in statements if isinstance(s, Map) and s.target.name in once and _falls(s, folds)}
    fractions = {
        s.target.name
        for s in statements
        if isinstance(s, Map) and s.op == "exp" and s.target.name in once and _name(s.operands[0]) in falling
    }
    blind: set[str] = set()
    for fold in folds.values():
        if fold.fold in EXTREMES and fold.dtype.is_float and _hidden(fold, statements, once, seen, blind):
            blind.add(fold.target.name)
    return Facts(frozenset(blind), frozenset(falling), frozenset(fractions))


def _name(operand: object) -> str:
    return operand.name if isinstance(operand, Access) else ""


def _falls(statement: Map, folds: dict[Access, Fold]) -> bool:
    """x - max x, or min x - x."""
    if statement.op != "sub" or not statement.dtype.is_float:
        return False
    a, b = statement.operands
    for x, extreme, kind in ((a, b, "max"), (b, a, "min")):
        fold = folds.get(extreme) if isinstance(extreme, Access) else None
        if fold is not None and fold.fold == kind and fold.operand == x and fold.dtype is statement.dtype:
            return {*fold.axes, *fold.reduced} <= set(statement.axes)
    return False


class _State(Enum):
    """How a value compares, over the rows that have a NaN, where the fold is NaN and where it passes that over."""

    DIRTY = auto()  # it may differ
    COVERED = auto()  # it is NaN both ways


class _Different(Exception):
    """Something that is seen differs."""


def _hidden(fold: Fold, statements: Sequence[Statement], once: Set[str], seen: Set[str], blind: Set[str]) -> bool:
    """Whether nothing that is seen tells if the fold is NaN where one of its elements is.

    `carriers` are NaN where the fold's element at their point is, both ways.
    """
    if not isinstance(fold.operand, Access):
        return False
    states: dict[Access, _State] = {fold.target: _State.DIRTY}
    carriers: set[Access] = {fold.operand}
    for statement in statements:
        if statement is fold:
            continue
        try:
            state = _state(statement, fold, states, carriers, blind)
        except _Different:
            return False
        if isinstance(statement, Map) and _passes(statement, blind) and carriers.intersection(statement.operands):
            carriers.add(statement.target)
        if state is None:
            continue
        if statement.target.name not in once or (state is _State.DIRTY and statement.target.name in seen):
            return False
        states[statement.target] = state
    return True


def _state(
    statement: Statement, fold: Fold, states: dict[Access, _State], carriers: Set[Access], blind: Set[str]
) -> _State | None:
    """The state of what a statement makes; None where it is the same both ways."""
    passes = _passes(statement, blind)
    along = isinstance(statement, Fold) and (statement.axes, statement.reduced) == (fold.axes, fold.reduced)
    shows = passes and along and not carriers.isdisjoint(operands_of(statement))
    names = {access.name for access in states}
    touched = [o for o in operands_of(statement) if isinstance(o, Access) and o.name in names]
    if not touched and not shows:
        return None
    if any(access not in states for access in touched):  # read at another point than it was made at
        raise _Different
    if not isinstance(statement, Map | Copy | Fold | Contract) or getattr(statement, "accumulate", False):
        raise _Different
    if shows:
        return _State.COVERED
    found = {states[access] for access in touched}
    if passes and _State.COVERED in found:
        return _State.COVERED
    if _State.DIRTY not in found:
        return None
    if isinstance(statement, Fold | Contract) and _rows(fold) & {axis.name for axis in statement.reduced}:
        raise _Different  # rows are mixed
    return _State.DIRTY


def _rows(fold: Fold) -> set[str]:
    return {name for index in fold.target.index for name in dims.symbols(index)}


def _passes(statement: Statement, blind: Set[str]) -> bool:
    """Whether the result is NaN where any operand is."""
    if isinstance(statement, Fold):
        return statement.fold in NAN_FOLDS and statement.dtype.is_float and statement.target.name not in blind
    if isinstance(statement, Map):
        return (statement.op in PROPAGATING or statement.op in ("copy", "cast")) and statement.dtype.is_float
    return isinstance(statement, Contract)
