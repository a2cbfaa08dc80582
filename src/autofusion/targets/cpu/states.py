"""The running value of a fold while its loops run: several independent states, so that additions do not wait for each
other, and for long float sums a compensated pair that takes the states up, block by block.
"""

from __future__ import annotations

from autofusion.kernel.ir import Fold
from autofusion.ops.folds import FOLDS
from autofusion.targets.cpu.emit import Emitter
from autofusion.targets.cpu.lanes import REGISTER
from autofusion.targets.cpu.primitives import PRIMITIVES
from autofusion.targets.vecmath.values import V, lanes_of, vector


class State:
    """Of one fold, in vectors of `lanes`. `blind`: it may pass a NaN over."""

    def __init__(self, e: Emitter, fold: Fold, blind: bool) -> None:
        self.e = e
        self.fold = fold
        self.blind = blind

    def open(self, lanes: int, count: int, long: bool) -> None:
        """`count` states; `long`: each would take more terms than a block has."""
        e, fold = self.e, self.fold
        self.type = vector(REGISTER[fold.dtype], lanes)
        self.identity = e.const(self.type, FOLDS[fold.fold].identity(fold.dtype))
        self.slots = [e.slot(self.type) for _ in range(count)]
        for slot in self.slots:
            e.set(slot, self.identity)
        self.pair: tuple[V, V] | None = None
        if long and FOLDS[fold.fold].compensated and fold.dtype.is_float:
            self.pair = (e.slot(self.type), e.slot(self.type))
            for slot in self.pair:
                e.set(slot, self.identity)

    def step(self, a: V, b: V) -> V:
        """Two values, or two states, as one."""
        if self.blind:
            return self.e.pick(self.fold.fold == "max", a, b)
        return PRIMITIVES[FOLDS[self.fold.fold].step](self.e, [a, b], self.fold.dtype, self.fold.dtype)

    def take(self, value: V, number: int, mask: V | None) -> None:
        """Fold a value into the state of a number; not its lanes that the mask leaves out."""
        e = self.e
        slot = self.slots[number % len(self.slots)]
        held = e.get(slot, value.type)
        stepped = self.step(held, value)
        if mask is not None:
            stepped = e.select(mask, stepped, held)
        e.set(slot, stepped)

    def flush(self) -> None:
        """Move the states into the compensated pair: s + x = t exactly with error, by Knuth's TwoSum."""
        if self.pair is None:
            return
        e, x = self.e, self._merged()
        high, low = self.pair
        s = e.get(high, x.type)
        t = e.op("fadd", s, x)
        z = e.op("fsub", t, s)
        error = e.op("fadd", e.op("fsub", s, e.op("fsub", t, z)), e.op("fsub", x, z))
        e.set(high, t)
        e.set(low, e.op("fadd", e.get(low, x.type), error))
        for slot in self.slots:
            e.set(slot, self.identity)

    def _merged(self) -> V:
        values = [self.e.get(slot, self.type) for slot in self.slots]
        while len(values) > 1:
            values = [self.step(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        return values[0]

    def total(self) -> V:
        """All states as one."""
        merged = self._merged()
        if self.pair is None:
            return merged
        e = self.e
        high, low = (e.get(slot, merged.type) for slot in self.pair)
        finite = e.cmp("fcmp oeq", e.op("fsub", low, low), e.const(low.type, 0.0))
        return e.select(finite, e.op("fadd", high, low), high)

    def across(self, state: V) -> V:
        """The lanes of a state as one, halves onto each other."""
        e = self.e
        while lanes_of(state.type) > 2:
            half = lanes_of(state.type) // 2
            low, high = (e.shuffle(state, None, range(start, start + half)) for start in (0, half))
            state = self.step(low, high)
        return self.step(e.extract(state, 0), e.extract(state, 1)) if lanes_of(state.type) == 2 else state
