"""PyTorch for users: the `torch.compile` backend, `fuse` for other compilers, and what became of the graphs.

    torch.compile(model, backend="autofusion")
    print(autofusion.torch.explain())

Nothing here imports PyTorch before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autofusion.frontends.torch import Backend, DefectWarning, Program, Report, fuse

__all__ = ["Backend", "DefectWarning", "Program", "backend", "explain", "fuse", "reset"]

_SHARED = Backend()


def backend(module: Any, inputs: Sequence[Any], mode: Any = None, options: Mapping[str, Any] | None = None) -> Any:
    """The backend "autofusion" of `torch.compile`. Options: `target`, `numerics`, `freeze`; see `Backend`."""
    return _SHARED(module, inputs, mode, options)


def explain(full: bool = False) -> Report:
    """What `torch.compile(…, backend="autofusion")` compiled so far: launches, fallbacks, recompiles. `full`: the
    report's text says all, however long it is."""
    return _SHARED.explain(full)


def reset() -> None:
    """Forget what was compiled so far, so that `explain` begins anew; `torch.compiler.reset` does that too."""
    _SHARED.reset()


backend.reset = reset  # type: ignore[attr-defined]  # Dynamo looks for it there
