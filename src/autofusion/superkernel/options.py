"""What may be switched off when groups are packed into launches, so that the effect of each can be measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from autofusion.errors import ArgumentError


@dataclass(frozen=True)
class SuperKernelOptions:
    """All are on by default; results are the same without any of them.

    `early_start`: what a phase reads that no other core writes is fetched before the wait for the phase before it.
    `workspace_reuse`: values between groups share bytes of the workspace where their lifetimes do not meet; on CPUs,
    where that saves bytes, some lie in results that are not written yet.
    `narrow_waits`: cores wait only where a dependence crosses cores, and only those that it concerns; otherwise all
    cores meet between phases. `double_buffering`: queues inside loops have two tiles where they fit. But for
    `workspace_reuse`, which every target has, they are switches of Ascend targets.
    """

    early_start: bool = True
    workspace_reuse: bool = True
    narrow_waits: bool = True
    double_buffering: bool = True

    @staticmethod
    def without(names: Iterable[str]) -> SuperKernelOptions:
        """All but those, by name, with dashes or underscores. Raises ArgumentError."""
        known = {field.name for field in fields(SuperKernelOptions)}
        off = {name: name.replace("-", "_") for name in names}
        for name, field in off.items():
            if field not in known:
                expected = ", ".join(sorted(known)).replace("_", "-")
                raise ArgumentError(f"{name!r} cannot be switched off; these can: {expected}")
        return SuperKernelOptions(**dict.fromkeys(off.values(), False))
