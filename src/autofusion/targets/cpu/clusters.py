"""Which statements share one loop nest: the CPU keeps a value in registers between statements of one cluster.

A statement joins a cluster where both run over the same axes, what it reads from the cluster it reads at its own point,
and what folds there folds along the same axes. Statements may move to an earlier cluster, never before what they need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autofusion import dims
from autofusion.dims import Dim
from autofusion.kernel.ir import (
    Access,
    Axis,
    Contract,
    Copy,
    Fold,
    Gather,
    Scan,
    Statement,
    operands_of,
    reduced_of,
)

LIMIT = 96  # statements in one loop body: past this, register pressure and compile time win nothing


@dataclass
class Cluster:
    """Statements in one loop nest over `axes`; `reduced`: those that its folds fold."""

    axes: tuple[Axis, ...]
    reduced: frozenset[str]
    statements: list[Statement] = field(default_factory=list)
    alone: bool = False  # a scan or a contraction
    epilogue: Cluster | None = None  # of a contraction: it may run on each tile of the result as soon as that is there

    @property
    def folds(self) -> list[Fold]:
        return [s for s in self.statements if isinstance(s, Fold)]


@dataclass(frozen=True)
class Alias:
    """A buffer that is read in place: its axes, and the access behind it."""

    axes: tuple[str, ...]
    source: Access


class Aliases:
    """Copies from parameters that keep each element's value need no memory: readers read the parameter itself."""

    def __init__(self) -> None:
        self.table: dict[str, Alias] = {}

    def add(self, copy: Copy) -> bool:
        """Note a copy as in place, where its target is addressed by plain axes."""
        names = {a.name for a in copy.axes}
        index = tuple(str(i) for i in copy.target.index)
        if not isinstance(copy.source, Access) or any(i not in names for i in index) or len(set(index)) != len(index):
            return False
        self.table[copy.target.name] = Alias(index, self.resolve(copy.source))
        return True

    def resolve(self, access: Access) -> Access:
        """The access that a read goes to."""
        alias = self.table.get(access.name)
        if alias is None:
            return access
        values: Mapping[str, Dim] = dict(zip(alias.axes, access.index, strict=True))
        return Access(alias.source.name, tuple(dims.substitute(i, values) for i in alias.source.index))


def _iteration(statement: Statement) -> tuple[Axis, ...]:
    return (*statement.axes, *reduced_of(statement))


def cluster(statements: Sequence[Statement]) -> list[Cluster]:
    """Clusters in an order of execution."""
    clusters: list[Cluster] = []
    written: dict[str, list[tuple[int, Statement]]] = {}
    read: dict[str, int] = {}
    for statement in statements:
        home = _place(statement, clusters, written, read)
        clusters[home].statements.append(statement)
        written.setdefault(statement.target.name, []).append((home, statement))
        for operand in operands_of(statement):
            if isinstance(operand, Access):
                read[operand.name] = max(read.get(operand.name, 0), home)
    return clusters


def with_epilogues(clusters: Sequence[Cluster]) -> list[Cluster]:
    """Clusters that follow a contraction on the same axes, and read its result at their own point, go with it."""
    paired: list[Cluster] = []
    for each in clusters:
        if paired and paired[-1].epilogue is None and _follows(paired[-1].statements[0], each):
            paired[-1].epilogue = each
        else:
            paired.append(each)
    return paired


def _follows(first: Statement, each: Cluster) -> bool:
    if not isinstance(first, Contract) or each.alone or each.reduced or set(each.axes) != set(first.axes):
        return False
    reads = [o for s in each.statements for o in operands_of(s) if isinstance(o, Access)]
    own = [o for o in reads if o.name == first.target.name]
    written = {s.target.name for s in each.statements}
    gathers = any(isinstance(s, Gather) for s in each.statements)
    read = {first.left.name, first.right.name, first.target.name}
    return bool(own) and all(o == first.target for o in own) and not gathers and not written & read


def _place(
    statement: Statement,
    clusters: list[Cluster],
    written: Mapping[str, list[tuple[int, Statement]]],
    read: Mapping[str, int],
) -> int:
    """The first cluster that the statement may run in; a new one at the end if there is none."""
    earliest = 0
    for operand in operands_of(statement):
        if not isinstance(operand, Access):
            continue
        for home, writer in written.get(operand.name, ()):
            same_point = not isinstance(writer, Fold | Scan | Contract) and writer.target.index == operand.index
            same_point = same_point and len(written[operand.name]) == 1 and not _is_data(statement, operand)
            earliest = max(earliest, home if same_point else home + 1)
    for home, _ in written.get(statement.target.name, ()):
        earliest = max(earliest, home + 1)
    if statement.target.name in read:
        earliest = max(earliest, read[statement.target.name] + 1)
    axes = _iteration(statement)
    reduced = frozenset(a.name for a in reduced_of(statement))
    alone = isinstance(statement, Scan | Contract)
    for number in range(earliest, len(clusters)):
        if not alone and _fits(clusters[number], axes, reduced, isinstance(statement, Fold)):
            if isinstance(statement, Fold):
                clusters[number].reduced = reduced
            return number
    clusters.append(Cluster(axes, reduced, alone=alone))
    return len(clusters) - 1


def _is_data(statement: Statement, operand: Access) -> bool:
    """Whether a gather reads it at run-time positions, not at its own point."""
    return isinstance(statement, Gather) and operand is statement.source


def _fits(cluster: Cluster, axes: tuple[Axis, ...], reduced: frozenset[str], folds: bool) -> bool:
    if cluster.alone or len(cluster.statements) >= LIMIT or set(cluster.axes) != set(axes):
        return False
    return not folds or not cluster.folds or cluster.reduced == reduced
