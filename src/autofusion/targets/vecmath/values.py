"""What the formulas of the vector math are written with: typed values, and the operations of an emitter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol


class V(NamedTuple):
    """A value: its type (`float`, `<16 x float>`, `i64`, `ptr`, as LLVM writes them) and its text (`%v3`, `7`)."""

    type: str
    ref: str

    def __str__(self) -> str:
        return f"{self.type} {self.ref}"


def scalar_of(type_: str) -> str:
    """`<16 x float>` -> `float`; a scalar type is returned as it is."""
    return type_.split(" x ")[1][:-1] if type_.startswith("<") else type_


def lanes_of(type_: str) -> int:
    """Lanes of a vector type; 1 for a scalar type."""
    return int(type_[1:].split(" x ")[0]) if type_.startswith("<") else 1


def vector(scalar: str, lanes: int) -> str:
    """The type of `lanes` values of `scalar`; one lane is the scalar itself."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def like(type_: str, scalar: str) -> str:
    """`scalar` with as many lanes as `type_` has."""
    return vector(scalar, lanes_of(type_))


class Emitter(Protocol):
    """Straight-line operations, named as LLVM names them; `pick` is the greater or the lesser, `b` where one is NaN;
    `scale` is a * 2^n for a whole number n, where `ldexp`; `choose` is table[index % 16] of 16 floats, where `chooses`.

    `fma`, `ldexp` and `chooses` say what the target does in one instruction. `wide`: it has double precision, 64-bit
    integers and branches by lane (a `WideEmitter`); without, a formula is float32 and int32 from end to end (a
    `NarrowEmitter`).
    """

    fma: bool
    ldexp: bool
    wide: bool

    @property
    def chooses(self) -> bool: ...

    def const(self, type_: str, value: float | int | bool) -> V: ...
    def bits(self, type_: str, pattern: int) -> V: ...
    def op(self, opcode: str, a: V, b: V | None = None) -> V: ...
    def cmp(self, predicate: str, a: V, b: V) -> V: ...
    def select(self, condition: V, a: V, b: V) -> V: ...
    def pick(self, greater: bool, a: V, b: V) -> V: ...
    def scale(self, a: V, n: V) -> V: ...
    def choose(self, table: Sequence[float], index: V) -> V: ...
    def cast(self, opcode: str, a: V, type_: str) -> V: ...
    def call(self, intrinsic: str, result: str, *arguments: V, overload: tuple[str, ...] | None = None) -> V: ...


class NarrowEmitter(Emitter, Protocol):
    """With a loop: `step` on the values, at most `most` times, while some lane of the mask is set."""

    def repeat(
        self, most: int, mask: V, values: Sequence[V], step: Callable[..., tuple[V, Sequence[V]]]
    ) -> list[V]: ...


class WideEmitter(Emitter, Protocol):
    """With branches over stack cells, constant tables and the C library."""

    def slot(self, type_: str) -> V: ...
    def get(self, slot: V, type_: str) -> V: ...
    def set(self, slot: V, value: V) -> None: ...
    def when(self, condition: V) -> AbstractContextManager[None]: ...
    def library(self, name: str, *arguments: V) -> V: ...
    def look_up(self, name: str, words: list[int], index: V) -> V: ...
