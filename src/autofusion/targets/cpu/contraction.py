"""Contractions on register tiles."""
from __future__ import annotations
def emit(e, memory, statement, values, target):
    return False
