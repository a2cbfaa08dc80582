"""Parameters and buffers that are compiled in: for which tensors a program holds, and what follows where it does not.

Dynamo gives parameters as arguments and does not ask at a call whether they are those of the compile. A program with
values of them compiled in is therefore asked itself: it holds for the very tensors that it was made of, as long as
nobody wrote them. Others get a program of their own, and what was written once is an argument from then on.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from autofusion.dtypes import Array
from autofusion.errors import AutofusionError
from autofusion.frontends.torch import adapter
from autofusion.frontends.torch.program import Program, array_of
from autofusion.runtime import dispatch_keys

MOST_SETS = 16  # of tensors that one graph has programs for; further ones are arguments

_version = attrgetter("_version")


@dataclass(eq=False)
class Variant:
    """A program, and the arguments that are compiled in, by position: which tensors, their counts of writes, where
    their elements lie, and the memory itself, so that no other tensor comes to lie there. `run`: the program as Dynamo
    calls it."""

    program: Program
    run: Callable[..., Any]
    positions: tuple[int, ...]
    tensors: list[int]
    versions: list[int]
    addresses: list[int]
    storages: list[Any]
    references: list[Any] = field(default_factory=list)  # weak ones; as long as they live, ids are of these tensors

    def holds(self, arguments: Sequence[Any]) -> bool:
        """Whether what is compiled in is what the arguments hold."""
        if self.positions and id(arguments[self.positions[0]]) != self.tensors[0]:
            return False
        given = [arguments[position] for position in self.positions]
        return (
            list(map(id, given)) == self.tensors
            and versions_of(given) == self.versions
            and addresses_of(given) == self.addresses
        )

    def changed(self, arguments: Sequence[Any]) -> set[int] | None:
        """The positions of what was written since; None where the arguments are other tensors."""
        given = [arguments[position] for position in self.positions]
        if list(map(id, given)) != self.tensors:
            return None
        now = zip(versions_of(given), addresses_of(given), strict=True)
        before = zip(self.versions, self.addresses, strict=True)
        return {place for place, a, b in zip(self.positions, now, before, strict=True) if a != b}


def versions_of(tensors: Sequence[Any]) -> list[int]:
    """How often each was written, as PyTorch counts it for automatic differentiation; it does not count for inference
    tensors."""
    try:
        return list(map(_version, tensors))
    except RuntimeError:
        return [-1 if each.is_inference() else each._version for each in tensors]


def addresses_of(tensors: Sequence[Any]) -> list[int]:
    """Where the elements of each begin: `tensor.data = other` changes that and does not count as a write."""
    return list(map(adapter.torch().Tensor.data_ptr, tensors))


def is_fit(tensor: Any) -> bool:
    """Whether a tensor can be compiled in: it lies in memory as it is, of a type that we have; where writes of it are
    not counted, only a parameter."""
    if not adapter.is_tensor(tensor) or isinstance(tensor, adapter.module("torch._subclasses.fake_tensor").FakeTensor):
        return False
    try:
        adapter.type_of(tensor)
        ordinary = dispatch_keys.ordinary(tensor) is tensor
    except AutofusionError:
        return False
    return ordinary and (not tensor.is_inference() or isinstance(tensor, adapter.torch().nn.Parameter))


class Frozen:
    """A graph with parameters and buffers compiled in, callable as the graph is: each set of them has a program.

    `make` gives the program for arrays by position, as itself and as Dynamo calls it, and takes why, where another one
    was made before; `retire` takes a program whose tensors are gone or were written. `names`: of the arguments, for
    people.
    """

    def __init__(
        self,
        make: Callable[[dict[int, Array], str], tuple[Program, Callable[..., Any]]],
        retire: Callable[[Program], None],
        positions: Sequence[int],
        names: Sequence[str],
    ) -> None:
        self._make, self._retire, self._names = make, retire, names
        self._positions = tuple(positions)
        self._variants: list[Variant] = []
        self._general: Variant | None = None  # nothing is compiled in
        self._began = False  # whether anything was compiled
        self._lock = threading.RLock()

    def __call__(self, *arguments: Any) -> Any:
        return self.variant(arguments).program(*arguments)

    def run(self, *arguments: Any) -> Any:
        """As `__call__`, for a graph that Dynamo calls with nothing in between."""
        return self.variant(arguments).run(*arguments)

    def variant(self, arguments: Sequence[Any]) -> Variant:
        """The program that holds for these arguments, compiled where there is none."""
        for each in self._variants:  # one that is passed over because another one goes is found once more
            if each.holds(arguments):
                return each
        if self._general is not None and self._is_final(arguments):
            return self._general
        with self._lock:
            found = next((each for each in tuple(self._variants) if each.holds(arguments)), None)
            return found or self._another(arguments)

    def _is_final(self, arguments: Sequence[Any]) -> bool:
        """Whether nothing can be compiled in for these arguments that no program holds for."""
        known = self._variants
        full = len(known) >= MOST_SETS and all(id(arguments[each.positions[0]]) != each.tensors[0] for each in known)
        return full or not self._positions

    def _another(self, arguments: Sequence[Any]) -> Variant:
        reason, self._began = self._reason(arguments), True
        fit = tuple(place for place in self._positions if is_fit(arguments[place]))
        if not fit or len(self._variants) >= MOST_SETS:
            if self._general is None:
                most = f"; programs for {MOST_SETS} sets are the most, now they are arguments" if fit else ""
                self._general = Variant(*self._make({}, reason + most), (), [], [], [], [])
            return self._general
        given = [arguments[position] for position in fit]
        versions, addresses = versions_of(given), addresses_of(given)  # before the values: a write in between is seen
        with adapter.module("torch._subclasses.fake_tensor").unset_fake_temporarily():
            arrays = dict(zip(fit, map(array_of, given), strict=True))
            storages = [each.untyped_storage() for each in given]
        program, run = self._make(arrays, reason)
        made = Variant(program, run, fit, list(map(id, given)), versions, addresses, storages)
        gone = _dropping(weakref.ref(self), weakref.ref(made))
        made.references = [weakref.ref(each, gone) for each in given]
        self._variants.insert(0, made)
        return made

    def _reason(self, arguments: Sequence[Any]) -> str:
        """Why no program holds. Those of tensors that were written go, and these are arguments from now on."""
        written: set[int] = set()
        other = ""
        for each in tuple(self._variants):
            changed = each.changed(arguments)
            if changed is None:
                pairs = zip(each.positions, each.tensors, strict=True)
                place = next(place for place, known in pairs if id(arguments[place]) != known)
                other = f"frozen: {self._names[place]} is another tensor"
            else:
                written |= changed
                self.drop(each)
        if not written:
            return other or ("frozen: the tensors that were compiled in are gone" if self._began else "")
        self._positions = tuple(place for place in self._positions if place not in written)
        names = ", ".join(self._names[place] for place in sorted(written))
        return f"frozen, and written since: {names}; an argument from now on"

    def drop(self, variant: Variant) -> None:
        """Forget a program; by any thread, and while another one is compiled."""
        if variant in self._variants:
            self._variants.remove(variant)
            self._retire(variant.program)


def _dropping(owner: Any, variant: Any) -> Callable[[Any], None]:
    """What to do when a tensor that is compiled in is gone: another one may take its id."""

    def gone(_: Any) -> None:
        frozen, program = owner(), variant()
        if frozen is not None and program is not None:
            frozen.drop(program)

    return gone
