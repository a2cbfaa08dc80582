"""If, Loop and Scan: what is decided at import is unrolled; a condition of the data chooses between computed values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

CONTROL: dict[str, Callable[[Any, Any, Sequence[Any]], Sequence[Any]]] = {}
