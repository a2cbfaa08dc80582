"""Which values are NaN wherever another one is: max and min then need no test for NaN of their own.

    t = x * y              t is NaN wherever x is
    maximum(t, x)          -> one machine instruction, of which x86 takes the second operand where either is NaN

A value's set holds itself and what its operands' sets hold, for the operators that never lose a NaN; as bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autofusion.kernel.ir import Literal, Operand
from autofusion.targets.vecmath.values import V

# fmt: off
# Float primitives that are NaN wherever any operand is. Not pow (pow(NaN, 0) is 1), copysign's second operand, where.
PROPAGATING = frozenset((
    "add", "sub", "mul", "div", "fmod", "maximum", "minimum", "neg", "abs", "sqrt", "rsqrt", "exp", "exp2", "expm1",
    "log", "log2", "log1p", "tanh", "erf", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "cbrt",
    "erfc", "lgamma", "sigmoid", "floor", "ceil", "trunc", "round",
))
# fmt: on


class NanFlow:
    """The sets of one function's values, by their text."""

    def __init__(self) -> None:
        self.sets: dict[str, int] = {}
        self.own: dict[str, int] = {}

    def of(self, value: V) -> int:
        """The set of a value; one that was not seen before holds itself."""
        if value.ref not in self.own:
            self.own[value.ref] = 1 << len(self.own)
        return self.sets.setdefault(value.ref, 0) | self.own[value.ref]

    def carry(self, operands: Sequence[V], result: V) -> None:
        """The result is NaN wherever one of the operands is."""
        found = self.of(result)
        for operand in operands:
            found |= self.of(operand)
        self.sets[result.ref] = found

    def covers(self, a: V, b: V) -> bool:
        """Whether b is NaN wherever a is."""
        return self.of(a) & ~self.of(b) & self.own[a.ref] == 0


def is_number(operand: Operand) -> bool:
    """Whether an operand is a constant that is not NaN."""
    return isinstance(operand, Literal) and isinstance(operand.value, int | float) and not math.isnan(operand.value)
