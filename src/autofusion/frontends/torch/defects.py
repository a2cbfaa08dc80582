"""Errors inside this package: reported and survived, or raised where `AUTOFUSION_RAISE` asks for that."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from autofusion import config
from autofusion.errors import GraphError

REFUSALS = (GraphError, NotImplementedError)  # of a maker: the operator, as it is called, is no row


class DefectWarning(UserWarning):
    """This package failed where it should not have, and PyTorch runs what it should have compiled."""


@dataclass(frozen=True)
class Defect:
    """`where`: the operator or the region; `error`: its type and text."""

    where: str
    error: str

    def __str__(self) -> str:
        return f"{self.where}: {self.error}"


def survived(where: str, error: Exception) -> Defect:
    """What is left of an error that nothing but a fault of this package explains; it is warned of. Raises it again
    where `AUTOFUSION_RAISE` is set, and where memory is what was missing."""
    if config.raises_defects() or isinstance(error, MemoryError):
        raise error
    found = Defect(where, f"{type(error).__name__}: {error}")
    warnings.warn(
        f"{found}. This is a defect of graph-autofusion; PyTorch runs that part instead. Please report it, with the "
        "traceback that AUTOFUSION_RAISE=1 gives and the graph that AUTOFUSION_DUMP=FOLDER writes.",
        DefectWarning,
        stacklevel=2,
    )
    return found
