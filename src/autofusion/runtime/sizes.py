"""Dims as places in the table of numbers that a native call fills from the sizes of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autofusion.dims import Compound, Dim, Expr, Symbol, terms_of

KINDS = {"+": 0, "*": 1, "//": 2, "%": 3, "min": 4, "max": 5}  # as sizes.c has them


class Table:
    """`first`: the numbers before a call, symbols (zeros) first, in the order given; `steps`: kind, left, right and
    target of each number that is computed, one after the other."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self.first = [0] * len(symbols)
        self.steps: list[int] = []
        self._places: dict[Any, int] = {Symbol(name): place for place, name in enumerate(symbols)}

    def place(self, dim: Dim) -> int:
        """Where the dim's number stands. Equal dims and equal parts of them stand once."""
        if not isinstance(dim, Expr):
            return self._number(dim)
        found = self._places.get(dim)
        if found is None:
            total: int | None = None
            for atoms, coefficient in terms_of(dim):
                term = self._number(coefficient) if coefficient != 1 or not atoms else None
                for atom in atoms:
                    made = self._atom(atom)
                    term = made if term is None else self._step("*", term, made)
                assert term is not None
                total = term if total is None else self._step("+", total, term)
            assert total is not None
            found = self._places[dim] = total
        return found

    def places(self, dims: Sequence[Dim]) -> tuple[int, ...]:
        return tuple(map(self.place, dims))

    def _number(self, value: int) -> int:
        return self._new(value, value)

    def _atom(self, atom: Symbol | Compound) -> int:
        if isinstance(atom, Compound) and atom not in self._places:
            self._places[atom] = self._step(atom.kind, self.place(atom.left), self.place(atom.right))
        return self._places[atom]

    def _step(self, kind: str, left: int, right: int) -> int:
        key = (kind, left, right)
        if key not in self._places:
            self.steps += (KINDS[kind], left, right, self._new(key, 0))
        return self._places[key]

    def _new(self, key: Any, value: int) -> int:
        if key not in self._places:
            self._places[key] = len(self.first)
            self.first.append(value)
        return self._places[key]
