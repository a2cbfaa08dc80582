"""Modules that most programs never use, loaded when something of them is first asked for."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """Stands for a module by its full name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
