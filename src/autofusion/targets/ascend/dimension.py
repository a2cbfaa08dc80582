"""Dims as C++ expressions of `int64_t`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any

from autofusion.dims import Compound, Dim, Symbol, alone, ceildiv, range_of, symbols, terms_of
from autofusion.tile.ir import Guard, Let, Loop, Parallel


def cxx(dim: Dim) -> str:
    """The expression; safe to stand next to any operator of its own or lower precedence in parentheses."""
    if isinstance(dim, int):
        return str(dim)
    text = ""
    for atoms, coefficient in sorted(terms_of(dim), key=lambda term: term[1] < 0):
        factors = [_atom(atom) for atom in atoms]
        if abs(coefficient) != 1 or not factors:
            factors.append(str(abs(coefficient)))
        sign = ("-" if coefficient < 0 else "") if not text else (" - " if coefficient < 0 else " + ")
        text += sign + " * ".join(factors)
    return text or "0"


def enclosed(dim: Dim) -> str:
    """The expression as one operand of anything."""
    text = cxx(dim)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _atom(atom: Symbol | Compound) -> str:
    if isinstance(atom, Symbol):
        return atom.name
    if atom.kind in ("min", "max"):
        return f"{'Least' if atom.kind == 'min' else 'Greatest'}({cxx(atom.left)}, {cxx(atom.right)})"
    if range_of(atom.left)[0] >= 0:
        return f"({enclosed(atom.left)} {'/' if atom.kind == '//' else '%'} {enclosed(atom.right)})"
    return f"{'FloorDivide' if atom.kind == '//' else 'FloorRemainder'}({cxx(atom.left)}, {cxx(atom.right)})"


def coefficient_of(dim: Dim, axis: str) -> int | None:
    """What multiplies an axis in a dim that is linear in it, 0 where it does not occur; None where it is not linear or
    its factor is no constant."""
    found = 0
    for atoms, coefficient in terms_of(dim):
        if atoms == (Symbol(axis),):
            found += coefficient
        elif any(axis in symbols(alone(atom)) for atom in atoms):
            return None
    return found


def countable(dim: Dim, axis: str) -> bool:
    """Whether the values of a dim along an axis can be made by instructions: sums of it and of its quotients and
    remainders by numbers, none of them negative."""
    for atoms, _ in terms_of(dim):
        inside = [atom for atom in atoms if axis in symbols(alone(atom))]
        if not inside:
            continue
        if len(atoms) != 1:
            return False
        atom = atoms[0]
        if isinstance(atom, Compound) and not (
            atom.kind in ("//", "%")
            and isinstance(atom.right, int)
            and range_of(atom.left)[0] >= 0
            and countable(atom.left, axis)
        ):
            return False
    return True


def divides(number: int, dim: Dim, steps: Mapping[str, int] | None = None) -> bool:
    """Whether the dim is a multiple of the number, whatever its symbols are; `steps`: what some are multiples of."""
    return all(coefficient * _step(atoms, steps or {}) % number == 0 for atoms, coefficient in terms_of(dim))


def rounded_dim(dim: Dim, to: int) -> Dim:
    """The least multiple of a number that is not smaller."""
    return -(-dim // to) * to if isinstance(dim, int) else ceildiv(dim, to) * to


def _step(atoms: tuple[Symbol | Compound, ...], steps: Mapping[str, int]) -> int:
    product = 1
    for atom in atoms:
        product *= steps.get(atom.name, 1) if isinstance(atom, Symbol) else 1
    return product


def steps_of(body: Sequence[Any]) -> dict[str, int]:
    """What loop variables and lets are multiples of: the greatest number that is sure. A name has one meaning a loop,
    and in different loops the smaller step counts. 0, which all numbers divide, is a loop of one round from 0."""
    found: dict[str, int] = {}

    def note(name: str, step: int) -> None:
        found[name] = gcd(found[name], step) if name in found else step

    def visit(lines: Sequence[Any]) -> None:
        for line in lines:
            if isinstance(line, Let):
                note(line.name, multiple_of(line.value, found))
            elif isinstance(line, Loop):
                once = isinstance(line.begin, int) and isinstance(line.end, int) and line.end - line.begin <= line.step
                note(line.var, gcd(0 if once else line.step, multiple_of(line.begin, found)))
                visit(line.body)
            elif isinstance(line, Parallel | Guard):
                visit(line.body)

    visit(body)
    return found


def multiple_of(dim: Dim, steps: Mapping[str, int]) -> int:
    """A number that divides the dim; 0 divides nothing but 0."""
    return gcd(0, *(coefficient * _step(atoms, steps) for atoms, coefficient in terms_of(dim)))


def identifier(name: str) -> str:
    """A C++ name for a storage."""
    made = re.sub(r"\W", "_", name)
    return made if made and not made[0].isdigit() else f"v{made}"
