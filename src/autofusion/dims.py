"""Dimensions and index expressions: an int, or a canonical integer expression over symbols.

A `Dim` is a plain `int` wherever its value is known, else an `Expr`: a sum of integer·product-of-atoms, where an atom
is a `Symbol`, a floor-division, a modulo, a minimum or a maximum. Expressions that are equal by these rules are equal
as objects. Symbols stand for sizes and positions: integers of at least 0. What is known beyond that comes as `bounds`.

    i*64 + j        (i*64 + j)//64 -> i where j < 64        (x//4)*4 + x%4 -> x
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

from autofusion.errors import FormatError, ShapeError


@dataclass(frozen=True)
class Symbol:
    """A named integer: a size or an axis."""

    name: str

    @property
    def text(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class Compound:
    """`left//right`, `left%right`, `min(left, right)` or `max(left, right)`, not reducible any further."""

    kind: str  # "//", "%", "min", "max"
    left: Dim
    right: Dim

    @cached_property
    def text(self) -> str:
        if self.kind in ("min", "max"):
            return f"{self.kind}({self.left},{self.right})"
        right = str(self.right) if isinstance(self.right, int) else f"({self.right})"
        return f"({self.left}){self.kind}{right}"

    @cached_property
    def _hash(self) -> int:
        return hash((self.kind, self.left, self.right))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return (Compound, (self.kind, self.left, self.right))  # a hash is good in its own process only


Atom: TypeAlias = Symbol | Compound
Term: TypeAlias = tuple[tuple[Atom, ...], int]


class Expr:
    """A canonical sum of terms. Build it with operators from `symbol(...)`; a constant result is an `int`.

    `name`: the symbol's, where the expression is nothing but a symbol.
    """

    __slots__ = ("_hash", "_text", "name", "terms")

    def __init__(self, terms: tuple[Term, ...]) -> None:
        self.terms = terms
        self.name: str | None = None
        if len(terms) == 1:
            atoms, coefficient = terms[0]
            if coefficient == 1 and len(atoms) == 1 and isinstance(atoms[0], Symbol):
                self.name = atoms[0].name
        self._text = ""
        self._hash = hash(terms)

    @property
    def text(self) -> str:
        """The expression as text; equal expressions have equal texts."""
        if not self._text:
            self._text = _show(self.terms)
        return self._text

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms

    def __repr__(self) -> str:
        return self.text

    def __add__(self, other: Dim) -> Dim:
        return add(self, other) if isinstance(other, int | Expr) else NotImplemented

    __radd__ = __add__

    def __mul__(self, other: Dim) -> Dim:
        return multiply(self, other) if isinstance(other, int | Expr) else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return multiply(self, -1)

    def __sub__(self, other: Dim) -> Dim:
        return add(self, multiply(other, -1)) if isinstance(other, int | Expr) else NotImplemented

    def __rsub__(self, other: Dim) -> Dim:
        return add(other, multiply(self, -1)) if isinstance(other, int | Expr) else NotImplemented

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other) if isinstance(other, int | Expr) else NotImplemented

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self) if isinstance(other, int | Expr) else NotImplemented

    def __mod__(self, other: Dim) -> Dim:
        return modulo(self, other) if isinstance(other, int | Expr) else NotImplemented

    def __rmod__(self, other: Dim) -> Dim:
        return modulo(other, self) if isinstance(other, int | Expr) else NotImplemented

    def __reduce__(self) -> tuple[Any, ...]:
        return (Expr, (self.terms,))


Dim: TypeAlias = int | Expr
Shape: TypeAlias = tuple[Dim, ...]
Bounds: TypeAlias = Mapping[str, Dim]  # axis name -> extent: 0 <= axis < extent

# Models repeat their extents, so nearly all that is asked here has been asked before. Answers are kept: this many.
_KEPT = 1 << 15


class _Known(Mapping[str, Dim]):
    """Bounds that stay as they are, so that answers can be kept by them."""

    def __init__(self, bounds: Bounds) -> None:
        self._extents = dict(bounds)
        self._hash = hash(frozenset(self._extents.items()))

    def __getitem__(self, name: str) -> Dim:
        return self._extents[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._extents)

    def __len__(self) -> int:
        return len(self._extents)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._hash == other._hash and self._extents == other._extents


def _known(bounds: Bounds | None) -> _Known | None:
    return bounds if bounds is None or isinstance(bounds, _Known) else _Known(bounds)


def _show(terms: tuple[Term, ...]) -> str:
    parts = []
    for atoms, coefficient in terms:
        # A division binds like a product and less than a sign: only in front may it stand without parentheses.
        factors = [_factor(atom, bare=coefficient > 0 and i == 0) for i, atom in enumerate(atoms)]
        if abs(coefficient) != 1 or not atoms:
            factors.append(str(abs(coefficient)))
        parts.append(("-" if coefficient < 0 else "+") + "*".join(factors))
    return "".join(parts).removeprefix("+")


def _factor(atom: Atom, bare: bool) -> str:
    divides = isinstance(atom, Compound) and atom.kind in ("//", "%")
    return f"({atom.text})" if divides and not bare else atom.text


def _make(collected: dict[tuple[Atom, ...], int]) -> Dim:
    terms = tuple((a, c) for a, c in collected.items() if c)
    if len(terms) > 1:
        terms = tuple(sorted(terms, key=_term_key))
    if not terms:
        return 0
    if len(terms) == 1 and not terms[0][0]:
        return terms[0][1]
    return Expr(terms)


def _atom_text(atom: Atom) -> str:
    return atom.text


def _term_key(term: Term) -> tuple[int, list[str]]:
    return -len(term[0]), [atom.text for atom in term[0]]


def terms_of(dim: Dim) -> tuple[Term, ...]:
    """The terms of a dim: products of atoms with their coefficients."""
    return dim.terms if isinstance(dim, Expr) else (((), dim),) if dim else ()


def symbol(name: str) -> Expr:
    """The symbol of that name."""
    return Expr((((Symbol(name),), 1),))


def alone(atom: Atom) -> Expr:
    """The expression that is nothing but an atom."""
    return Expr((((atom,), 1),))


def _atom(kind: str, left: Dim, right: Dim) -> Expr:
    return Expr((((Compound(kind, left, right),), 1),))


# -- arithmetic ----------------------------------------------------------------------------------------------------
def add(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return _add(a, b)


@lru_cache(maxsize=_KEPT)
def _add(a: Dim, b: Dim) -> Dim:
    if a == 0 or b == 0:
        return b if a == 0 else a
    collected = dict(terms_of(a))
    for atoms, coefficient in terms_of(b):
        collected[atoms] = collected.get(atoms, 0) + coefficient
    return _recombine(_make(collected))


def multiply(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return _multiply(a, b)


@lru_cache(maxsize=_KEPT)
def _multiply(a: Dim, b: Dim) -> Dim:
    if a == 1 or b == 1:
        return b if a == 1 else a
    collected: dict[tuple[Atom, ...], int] = {}
    for left, m in terms_of(a):
        for right, n in terms_of(b):
            atoms = left + right
            if left and right:
                atoms = tuple(sorted(atoms, key=_atom_text))
            collected[atoms] = collected.get(atoms, 0) + m * n
    return _make(collected)


def _recombine(dim: Dim) -> Dim:
    """(x//b)*b*c + (x%b)*c -> x*c."""
    for atoms, coefficient in terms_of(dim):
        for position, atom in enumerate(atoms):
            if not (isinstance(atom, Compound) and atom.kind == "%"):
                continue
            others = Expr(((atoms[:position] + atoms[position + 1 :], coefficient),)) if len(atoms) > 1 else coefficient
            divided = multiply(multiply(floordiv(atom.left, atom.right), atom.right), others)
            wanted = terms_of(divided)
            have = dict(terms_of(dim))
            if len(wanted) == 1 and have.get(wanted[0][0]) == wanted[0][1]:
                rest = add(dim, multiply(divided, -1))
                rest = add(rest, multiply(Expr(((atoms, coefficient),)), -1))
                return add(rest, multiply(atom.left, others))
    return dim


def _split(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """a = quotient * b + rest, taking out the terms that `b` (an int or one product) divides."""
    divisor = terms_of(b)
    if len(divisor) != 1:
        return (1, 0) if a == b else (0, a)
    factors, number = divisor[0]
    quotient: dict[tuple[Atom, ...], int] = {}
    rest: dict[tuple[Atom, ...], int] = {}
    for atoms, coefficient in terms_of(a):
        left = list(atoms)
        fits = coefficient % number == 0
        for factor in factors:
            if factor in left:
                left.remove(factor)
            else:
                fits = False
        if fits:
            quotient[tuple(left)] = quotient.get(tuple(left), 0) + coefficient // number
        else:
            rest[atoms] = rest.get(atoms, 0) + coefficient
    return _make(quotient), _make(rest)


def floordiv(a: Dim, b: Dim, bounds: Bounds | None = None) -> Dim:
    """Floor division by a positive dim."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return _floordiv(a, b, _known(bounds))


@lru_cache(maxsize=_KEPT)
def _floordiv(a: Dim, b: Dim, bounds: _Known | None) -> Dim:
    if b == 1 or a == 0:
        return a
    quotient, rest = _split(a, b)
    if rest == 0 or _within(rest, b, bounds):
        return quotient
    if isinstance(b, int):
        if isinstance(rest, int):
            return add(quotient, rest // b)
        common = math.gcd(b, *(c for atoms, c in terms_of(rest) if atoms))
        if common > 1:
            reduced = _make({atoms: c // common for atoms, c in terms_of(rest)})
            return add(quotient, floordiv(reduced, b // common, bounds))
        atoms, coefficient = terms_of(rest)[0]
        if len(terms_of(rest)) == 1 and coefficient == 1 and len(atoms) == 1:
            inner = atoms[0]
            if isinstance(inner, Compound) and inner.kind == "//" and isinstance(inner.right, int):
                return add(quotient, floordiv(inner.left, inner.right * b, bounds))
    return add(quotient, _atom("//", rest, b))


def modulo(a: Dim, b: Dim, bounds: Bounds | None = None) -> Dim:
    """The remainder of floor division by a positive dim: 0 <= result < b."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return _modulo(a, b, _known(bounds))


@lru_cache(maxsize=_KEPT)
def _modulo(a: Dim, b: Dim, bounds: _Known | None) -> Dim:
    if b == 1 or a == 0:
        return 0
    _, rest = _split(a, b)
    if rest == 0:
        return 0
    if isinstance(b, int):
        rest = _make({atoms: c % b for atoms, c in terms_of(rest)})
        if isinstance(rest, int):
            return rest % b
        common = math.gcd(b, *(c for _, c in terms_of(rest)))
        if common > 1:
            reduced = _make({atoms: c // common for atoms, c in terms_of(rest)})
            return multiply(modulo(reduced, b // common, bounds), common)
    if _within(rest, b, bounds):
        return rest
    return _atom("%", rest, b)


def minimum(a: Dim, b: Dim, bounds: Bounds | None = None) -> Dim:
    if at_least(b, a, bounds):
        return a
    if at_least(a, b, bounds):
        return b
    left, right = sorted((a, b), key=str)
    return _atom("min", left, right)


def maximum(a: Dim, b: Dim, bounds: Bounds | None = None) -> Dim:
    if at_least(b, a, bounds):
        return b
    if at_least(a, b, bounds):
        return a
    left, right = sorted((a, b), key=str)
    return _atom("max", left, right)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """Division rounded up, by a positive dim."""
    return floordiv(add(a, add(b, -1)), b)


def product(dims: Iterable[Dim]) -> Dim:
    result: Dim = 1
    for dim in dims:
        result = multiply(result, dim)
    return result


# -- what can be proven ----------------------------------------------------------------------------------------------
_UNKNOWN = -(1 << 62)  # the least value of what may be anything


def _atom_range(atom: Atom, bounds: Bounds | None) -> tuple[Dim, Dim | None]:
    """(least, greatest) of an atom, both inclusive; the greatest may be unknown."""
    if isinstance(atom, Symbol):
        if bounds is not None and atom.name in bounds:
            return 0, add(bounds[atom.name], -1)
        return 0, Expr((((atom,), 1),))
    low, high = range_of(atom.left, bounds)
    if atom.kind == "%":
        limit = add(atom.right, -1)
        return 0, high if high is not None and low >= 0 and at_least(limit, high, bounds) else limit
    if atom.kind == "//":
        if low < 0:  # floor division keeps order, so a known bound stays one
            known = low > _UNKNOWN and isinstance(atom.right, int)
            return (
                (low // atom.right, None if high is None else floordiv(high, atom.right)) if known else (_UNKNOWN, None)
            )
        return (low // atom.right if isinstance(atom.right, int) else 0), (
            None if high is None else floordiv(high, atom.right)
        )
    other_low, other_high = range_of(atom.right, bounds)
    if atom.kind == "min":
        return min(low, other_low), high if high is not None else other_high
    both = None if high is None or other_high is None else maximum(high, other_high)
    return max(low, other_low), both


def range_of(dim: Dim, bounds: Bounds | None = None) -> tuple[int, Dim | None]:
    """A least value (an int; very negative if unknown) and a greatest (a dim, or None if unknown), inclusive."""
    return (dim, dim) if isinstance(dim, int) else _range_of(dim, _known(bounds))


@lru_cache(maxsize=_KEPT)
def _range_of(dim: Expr, bounds: _Known | None) -> tuple[int, Dim | None]:
    low: int = 0
    high: Dim | None = 0
    for atoms, coefficient in terms_of(dim):
        least: int = 1
        greatest: Dim | None = 1
        for atom in atoms:
            atom_low, atom_high = _atom_range(atom, bounds)
            if isinstance(atom_low, int) and atom_low < 0 and (len(atoms) > 1 or atom_low <= _UNKNOWN):
                return _UNKNOWN, None  # of a product with a factor that may be negative, nothing is known
            least = least * atom_low if isinstance(atom_low, int) else 0
            greatest = None if greatest is None or atom_high is None else multiply(greatest, atom_high)
        if coefficient >= 0:
            low += coefficient * least
            high = None if high is None or greatest is None else add(high, multiply(greatest, coefficient))
        else:
            low = low + coefficient * greatest if isinstance(greatest, int) else _UNKNOWN
            high = None if high is None else add(high, coefficient * least)
    return low, high


def at_least(a: Dim, b: Dim, bounds: Bounds | None = None) -> bool:
    """Whether a >= b can be proven."""
    if isinstance(a, int) and isinstance(b, int):
        return a >= b
    return _at_least(a, b, _known(bounds))


@lru_cache(maxsize=_KEPT)
def _at_least(a: Dim, b: Dim, bounds: _Known | None) -> bool:
    difference = add(a, multiply(b, -1))
    if isinstance(difference, int):
        return difference >= 0
    if range_of(_weaken(difference, bounds), bounds)[0] >= 0:
        return True
    low, high = _extreme(a), _extreme(b)
    if high is not None and at_least(a, high.left, bounds) + at_least(a, high.right, bounds) >= 1 + (
        high.kind == "max"
    ):
        return True
    return low is not None and at_least(low.left, b, bounds) + at_least(low.right, b, bounds) >= 1 + (low.kind == "min")


def _extreme(dim: Dim) -> Compound | None:
    """The minimum or maximum that a dim is, or is a multiple of: 2*min(i,n) is min(2*i,2*n). None for anything else."""
    if isinstance(dim, Expr) and len(dim.terms) == 1 and dim.terms[0][1] > 0 and len(dim.terms[0][0]) == 1:
        (atom,), factor = dim.terms[0]
        if isinstance(atom, Compound) and atom.kind in ("min", "max"):
            return Compound(atom.kind, multiply(atom.left, factor), multiply(atom.right, factor))
    return None


def _weaken(dim: Dim, bounds: Bounds | None) -> Dim:
    """Replace atoms in negative terms by their greatest value, so that symbolic extents cancel: n*4 - i, i < n."""
    if not isinstance(dim, Expr):
        return dim
    result: Dim = 0
    for atoms, coefficient in dim.terms:
        term: Dim = coefficient
        ranges = [_atom_range(atom, bounds) for atom in atoms]
        # Factors that may be negative have no greatest product at their greatest values.
        replaceable = coefficient < 0 and all(isinstance(low, int) and low >= 0 for low, _ in ranges)
        for atom, (_, high) in zip(atoms, ranges, strict=True):
            term = multiply(term, high if replaceable and high is not None else Expr((((atom,), 1),)))
        result = add(result, term)
    return result


def _within(a: Dim, b: Dim, bounds: Bounds | None) -> bool:
    """Whether 0 <= a < b can be proven."""
    if range_of(a, bounds)[0] < 0:
        return False
    return at_least(add(b, -1), a, bounds)


def equal(a: Dim, b: Dim) -> bool:
    """Whether the two are provably equal (canonical forms coincide)."""
    return a == b


def may_be(a: Dim, b: Dim, limit: int = 16) -> bool:
    """Whether `a` is `b` where each minimum and maximum in it, of up to `limit` choices, is one of its sides: min(n,m)
    is n where n <= m. For which sizes it is, a guard has to say."""
    return any(each == b for each in _choices(a, limit))


def _choices(dim: Dim, limit: int) -> list[Dim]:
    """What a dim is where each of its minima and maxima is one of its sides."""
    made: list[Dim] = [0]
    for atoms, coefficient in terms_of(dim):
        products: list[Dim] = [coefficient]
        for atom in atoms:
            extreme = isinstance(atom, Compound) and atom.kind in ("min", "max")
            sides = [atom.left, atom.right] if extreme else [alone(atom)]  # type: ignore[union-attr]
            factors = [each for side in sides for each in (_choices(side, limit) if extreme else [side])]
            products = [multiply(each, factor) for each in products for factor in factors]
        made = [add(each, product) for each in made for product in products]
        if len(made) > limit:
            return []
    return made


_guards: ContextVar[list[tuple[Dim, Dim]] | None] = ContextVar("guards", default=None)


@contextmanager
def collect_guards() -> Iterator[list[tuple[Dim, Dim]]]:
    """Inside, undecidable equalities are assumed and collected instead of refused; the caller must check them."""
    found: list[tuple[Dim, Dim]] = []
    token = _guards.set(found)
    try:
        yield found
    finally:
        _guards.reset(token)


def require_equal(a: Dim, b: Dim, what: str) -> Dim:
    """The common value of two dims. Raises ShapeError where they differ; an undecidable pair becomes a guard."""
    if a == b:
        return a
    if isinstance(a, int) and isinstance(b, int):
        raise ShapeError(f"{what}: {a} and {b} differ")
    guards = _guards.get()
    if guards is None:
        raise ShapeError(f"{what}: cannot decide whether {a} equals {b}")
    if (a, b) not in guards:
        guards.append((a, b))
    return a if isinstance(a, int) else b if isinstance(b, int) else a


# -- rewriting and evaluating ----------------------------------------------------------------------------------------
_BUILDERS: dict[str, Callable[[Dim, Dim, Bounds | None], Dim]] = {
    "//": floordiv,
    "%": modulo,
    "min": minimum,
    "max": maximum,
}


def substitute(dim: Dim, values: Mapping[str, Dim], bounds: Bounds | None = None) -> Dim:
    """Replace symbols by name; simplify under `bounds`."""
    if isinstance(dim, int):
        return dim
    used = tuple([(name, values[name]) for name in symbols(dim) if name in values])
    return _substitute(dim, used, _known(bounds))


@lru_cache(maxsize=_KEPT)
def _substitute(dim: Expr, used: tuple[tuple[str, Dim], ...], bounds: _Known | None) -> Dim:
    values = dict(used)
    result: Dim = 0
    for atoms, coefficient in dim.terms:
        term: Dim = coefficient
        for atom in atoms:
            if isinstance(atom, Symbol):
                factor = values[atom.name] if atom.name in values else alone(atom)
            else:
                left, right = substitute(atom.left, values, bounds), substitute(atom.right, values, bounds)
                factor = _BUILDERS[atom.kind](left, right, bounds)
            term = multiply(term, factor)
        result = add(result, term)
    return result


def simplify(dim: Dim, bounds: Bounds) -> Dim:
    """The same value, using 0 <= axis < bounds[axis]."""
    return substitute(dim, {}, bounds)


def symbols(dim: Dim) -> frozenset[str]:
    """The names of all symbols in it."""
    return frozenset() if isinstance(dim, int) else _symbols(dim)


@lru_cache(maxsize=_KEPT)
def _symbols(dim: Expr) -> frozenset[str]:
    found: set[str] = set()
    for atoms, _ in dim.terms:
        for atom in atoms:
            if isinstance(atom, Symbol):
                found.add(atom.name)
            else:
                found |= symbols(atom.left) | symbols(atom.right)
    return frozenset(found)


def evaluate(dim: Dim, values: Mapping[str, Any]) -> Any:
    """The value under an assignment of ints (or NumPy integer arrays) to all symbols."""
    if isinstance(dim, int):
        return dim
    total: Any = 0
    for atoms, coefficient in dim.terms:
        term: Any = coefficient
        for atom in atoms:
            term = term * _evaluate_atom(atom, values)
        total = total + term
    return total


def _evaluate_atom(atom: Atom, values: Mapping[str, Any]) -> Any:
    if isinstance(atom, Symbol):
        return values[atom.name]
    left, right = evaluate(atom.left, values), evaluate(atom.right, values)
    if atom.kind == "//":
        return left // right
    if atom.kind == "%":
        return left % right
    # Written as arithmetic, so that arrays of positions work too.
    return left - (left - right) * (left > right) if atom.kind == "min" else left + (right - left) * (left < right)


def divisors(dim: Dim, axis: str) -> set[int]:
    """The numbers that an axis is divided by."""
    return {
        atom.right
        for atoms, _ in terms_of(dim)
        for atom in atoms
        if isinstance(atom, Compound) and isinstance(atom.right, int) and axis in symbols(alone(atom))
    }


def coefficient_of(dim: Dim, name: str) -> Dim | None:
    """The factor of axis `name` where the dim is `factor*name + rest` (rest free of it); None where not linear."""
    factor: Dim = 0
    for atoms, coefficient in terms_of(dim):
        plain = [a for a in atoms if isinstance(a, Symbol) and a.name == name]
        inside = any(isinstance(a, Compound) and name in symbols(Expr((((a,), 1),))) for a in atoms)
        if inside or len(plain) > 1:
            return None
        if plain:
            rest = tuple(a for a in atoms if a is not plain[0])
            factor = add(factor, _make({rest: coefficient}))
    return factor


# -- text ------------------------------------------------------------------------------------------------------------
class _NotNegative(_Known):
    """Bounds for symbols of which a text does not say whether they are sizes or axes: 0 <= s < s + 1."""

    def __init__(self) -> None:
        super().__init__({})

    def __getitem__(self, name: str) -> Dim:
        return add(symbol(name), 1)


_ANY = _NotNegative()


def parse(text: str) -> Dim:
    """Read a dim from its text. Raises FormatError."""
    try:
        return _read(ast.parse(text.strip(), mode="eval").body, text)
    except (SyntaxError, ValueError, ZeroDivisionError):
        raise FormatError(f"dimension {text!r}: expected an integer expression such as 4, n or 2*n+1") from None


def _read(node: ast.expr, text: str) -> Dim:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return symbol(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return multiply(_read(node.operand, text), -1)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        divisor = _read(node.right, text) if isinstance(node.op, ast.FloorDiv | ast.Mod) else 1
        if isinstance(divisor, int) and divisor <= 0:
            raise FormatError(f"dimension {text!r}: divides by {divisor}, expected a positive divisor")
        return _OPERATORS[type(node.op)](_read(node.left, text), _read(node.right, text))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
        if node.func.id == "min":
            return minimum(_read(node.args[0], text), _read(node.args[1], text), _ANY)
        if node.func.id == "max":
            return maximum(_read(node.args[0], text), _read(node.args[1], text), _ANY)
    raise FormatError(f"dimension {text!r}: only + - * // % min max over integers and symbols are allowed")


_OPERATORS: dict[type[ast.operator], Callable[[Dim, Dim], Dim]] = {
    ast.Add: add,
    ast.Sub: lambda a, b: add(a, multiply(b, -1)),
    ast.Mult: multiply,
    ast.FloorDiv: lambda a, b: floordiv(a, b, _ANY),
    ast.Mod: lambda a, b: modulo(a, b, _ANY),
}


def show_shape(shape: Shape) -> str:
    """`[64,n]`."""
    return "[" + ",".join(map(str, shape)) + "]"
