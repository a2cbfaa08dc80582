"""The axes of a contraction by what a kernel does along them."""

from __future__ import annotations

from dataclasses import dataclass

from autofusion.dims import Dim, coefficient_of
from autofusion.kernel.ir import Axis
from autofusion.targets.cpu.loops import Ref


@dataclass(frozen=True)
class Panels:
    """Columns in panels of `width` neighbours, `step` elements from one to the next."""

    width: int
    step: Dim


@dataclass(frozen=True)
class Roles:
    """The axes of a contraction by their role; `target` is contiguous along the columns, or along the rows where it is
    `turned`. `panels`: how the right operand's columns lie where its constants were put in panels; `cut`: the left
    operand's depth lies in panels of whole vectors."""

    rows: Axis | None
    columns: Axis
    depth: Axis
    taps: tuple[Axis, ...]
    others: tuple[Axis, ...]
    left: Ref
    right: Ref
    target: Ref
    panels: Panels | None = None
    cut: bool = False
    turned: bool = False

    @property
    def contiguous(self) -> Axis:
        """The axis that the target is contiguous along."""
        if not self.turned:
            return self.columns
        assert self.rows is not None
        return self.rows

    def step(self, ref: Ref, axis: Axis | None) -> Dim:
        """The step of an operand along an axis, in elements."""
        if axis is None:
            return 0
        if self.panels is not None and ref is self.right and axis is self.columns:
            return self.panels.step
        if self.cut and ref is self.left and axis is self.depth:
            return 1
        step = coefficient_of(ref.offset, axis.name)
        assert step is not None
        return step
