"""Dims as LLVM index arithmetic, for one point or for every lane of a vector axis."""

from __future__ import annotations

from collections.abc import Mapping

from autofusion.dims import Compound, Dim, Symbol, range_of, terms_of
from autofusion.targets.cpu.emit import Emitter
from autofusion.targets.vecmath.values import V, lanes_of, vector


def emit_dim(e: Emitter, dim: Dim, values: Mapping[str, V]) -> V:
    """The value of a dim as `i64`, or as lanes of `i64` where a symbol's value has lanes."""
    total: V | None = None
    for atoms, coefficient in terms_of(dim):
        term = e.i64(abs(coefficient))
        for atom in atoms:
            factor = _atom(e, atom, values)
            term = _binary(e, "mul", term, factor)
        if total is None and coefficient > 0:
            total = term
        else:
            total = _binary(e, "add" if coefficient > 0 else "sub", total or e.i64(0), term)
    return total or e.i64(0)


def _atom(e: Emitter, atom: Symbol | Compound, values: Mapping[str, V]) -> V:
    if isinstance(atom, Symbol):
        return values[atom.name]
    left, right = emit_dim(e, atom.left, values), emit_dim(e, atom.right, values)
    if atom.kind in ("//", "%"):
        if range_of(atom.left)[0] >= 0:
            return _binary(e, "udiv" if atom.kind == "//" else "urem", left, right)
        return _floored(e, atom.kind, left, right)
    left, right = _together(e, left, right)
    return e.select(e.cmp("icmp slt" if atom.kind == "min" else "icmp sgt", left, right), left, right)


def _floored(e: Emitter, kind: str, left: V, right: V) -> V:
    """Floor division, or its remainder, of a value that may be negative by a positive one."""
    rest = _binary(e, "srem", left, right)
    below = e.cmp("icmp slt", rest, e.const(rest.type, 0))
    if kind == "%":
        return e.select(below, _binary(e, "add", rest, right), rest)
    quotient = _binary(e, "sdiv", left, right)
    return e.select(below, _binary(e, "sub", quotient, e.const(quotient.type, 1)), quotient)


def _together(e: Emitter, a: V, b: V) -> tuple[V, V]:
    lanes = max(lanes_of(a.type), lanes_of(b.type))
    spread = [x if lanes_of(x.type) == lanes else e.splat(x, lanes) for x in (a, b)]
    return spread[0], spread[1]


def _binary(e: Emitter, opcode: str, a: V, b: V) -> V:
    if a.type == b.type == "i64":
        folded = {"add": e.add, "sub": e.sub, "mul": e.mul}.get(opcode)
        if folded:
            return folded(a, b)
        return a if b.ref == "1" and opcode == "udiv" else e.op(opcode, a, b)
    a, b = _together(e, a, b)
    return e.op(opcode, a, b)


def lanes_along(e: Emitter, base: V, lanes: int) -> V:
    """<base, base+1, …> as `i64` lanes."""
    if lanes == 1:
        return base
    type_ = vector("i64", lanes)
    numbers = V(type_, "<" + ", ".join(f"i64 {n}" for n in range(lanes)) + ">")
    return e.op("add", e.splat(base, lanes), numbers)
