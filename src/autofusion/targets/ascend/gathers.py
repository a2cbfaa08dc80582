"""Gathers of whole rows: a copy a row from global memory, at the position that the scalar unit reads and checks once.

    gather v0[i0, i1] = p0 axis=0 at b1[i0] over [i0<64, i1<100]
        for i0: Load(v0[i0 * 104], p0[position * 100], 1, 100, 100, 104)

The copies are ordered against the vector unit by flags, as their target is no queue's tile. Rows of reduced types that
are used as float32 come to a work area first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autofusion import dims
from autofusion.dims import Dim, substitute, symbols
from autofusion.dtypes import DType
from autofusion.kernel.ir import Access, Axis, Gather
from autofusion.targets.ascend import scalar
from autofusion.targets.ascend.dimension import coefficient_of, cxx, divides, enclosed, rounded_dim
from autofusion.targets.ascend.layout import Place, rounded
from autofusion.targets.ascend.rows import join, most

if TYPE_CHECKING:
    from autofusion.targets.ascend.vector import Vector

STAGED = 4096  # elements of rows that are converted at once, where there is more than one


def gather(v: Vector, line: Gather, check: int) -> bool:
    """Whether the statement was written as copies of rows."""
    source, place = v.places[line.source.name], v.places[line.target.name]
    widened = source.dtype.is_reduced and place.dtype is DType.FLOAT32
    if source.name not in v.outside or place.spread or not (widened or source.dtype is place.dtype):
        return False
    if any(axis.extent == 0 for axis in line.axes) or not isinstance(line.position, Access):
        return False
    index = list(line.source.index)
    index[line.axis] = dims.symbol("position")
    asked = v.places[line.position.name].address(line.position.index)
    joined = join(line.axes, [place.address(line.target.index), source.address(index), asked, line.ordinal])
    goal, start, asked, ordinal = joined.addresses
    if not joined.axes:
        return False
    *outer, along = joined.axes
    if (coefficient_of(goal, along.name), coefficient_of(start, along.name)) != (1, 1):
        return False
    goal, start = (substitute(each, {along.name: 0}) for each in (goal, start))
    if along.name in symbols(asked) | symbols(ordinal) or not divides(place.lanes, goal, v.steps):
        return False
    rows = Rows(
        v, line, along, start, f"{v.places[line.position.name].name}.GetValue({cxx(asked)})", cxx(ordinal), check
    )
    if widened:
        rows.widened(place, goal, outer)
        return True
    v.w.line("AfterVector();")
    with v._loops(outer), v.w.block(""):
        rows.load(f"{place.name}[{cxx(goal)}]")
    v.w.line("BeforeVector();")
    return True


@dataclass(frozen=True)
class Rows:
    """The rows of a gather: `start` in the source by `position`, which is read by `asked`."""

    v: Vector
    line: Gather
    along: Axis
    start: Dim
    asked: str
    ordinal: str
    check: int

    def load(self, target: str) -> None:
        """One row, in the body of its loops."""
        where = f"firstCheck + {self.check}, {self.ordinal}"
        columns = enclosed(self.along.extent)
        pitch = cxx(rounded_dim(self.along.extent, self.v.places[self.line.source.name].lanes))
        for each in scalar.checked(self.line, self.asked, where):
            self.v.w.line(each)
        source = f"{self.line.source.name}[{cxx(self.start)}]"
        self.v.w.line(f"Load({target}, {source}, 1, {columns}, {columns}, {pitch});")

    def widened(self, place: Place, goal: Dim, outer: Sequence[Axis]) -> None:
        """Rows of a reduced type, as many as there is room for, then converted to float32."""
        v, kind = self.v, scalar.STORED[self.v.places[self.line.source.name].dtype]
        lanes = v.places[self.line.source.name].lanes
        width = rounded(most(place, self.line.target, (self.along.name,)), lanes)
        group = max(1, STAGED // width)
        v.needs.reduce = max(v.needs.reduce, rounded(group * width, 2) // 2)
        staged = f"reduction.ReinterpretCast<{kind}>()"
        *loops, row = outer or [Axis("row", 1)]
        with v._loops(loops):
            head = f"for (int64_t part = 0; part < {cxx(row.extent)}; part += {group})"
            with v.w.block(head):
                v.w.line(f"const int64_t end = Least({cxx(row.extent)}, part + {group});")
                v.w.line("AfterVector();")
                each = f"for (int64_t {row.name} = part; {row.name} < end; ++{row.name})"
                with v.w.block(each):
                    self.load(f"{staged}[({row.name} - part) * {width}]")
                v.w.line("BeforeVector();")
                with v.w.block(each):
                    target = f"{place.name}[{cxx(goal)}], {staged}[({row.name} - part) * {width}]"
                    v.w.line(f"Cast({target}, RoundMode::CAST_NONE, {cxx(self.along.extent)});")
