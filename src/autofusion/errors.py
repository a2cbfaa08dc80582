"""Every error that the package raises on purpose. Each is one line that says what, where and what was expected."""

from __future__ import annotations


class AutofusionError(Exception):
    """Base of all errors of this package: bad input, never a fault inside the compiler."""


class GraphError(AutofusionError, ValueError):
    """A graph, an operator's arguments or attributes are wrong. Names the operator and the argument."""


class FormatError(AutofusionError, ValueError):
    """A file or a text does not have the documented form. Names the entry or the line."""


class ShapeError(GraphError):
    """Shapes do not fit together."""


class DTypeError(GraphError, TypeError):
    """An element type that an operator or a target does not take."""


class VerifyError(AutofusionError):
    """An IR breaks one of its own rules: a fault of a pass, or of a hand-edited dump."""


class TargetError(AutofusionError):
    """A target is unknown, or cannot do what it is asked for."""


class ArgumentError(AutofusionError, TypeError):
    """A call's arguments do not fit the compiled signature."""


class ExecutionError(AutofusionError, RuntimeError):
    """A kernel recorded a failed check (an index out of range, say): names the operator and the position."""


class DeviceError(AutofusionError, RuntimeError):
    """A device, its memory or a compiler refused. `code` is what the call returned, None where it was not reached."""

    def __init__(self, call: str, code: int | None, text: str) -> None:
        super().__init__(call, code, text)
        self.call, self.code, self.text = call, code, text

    def __str__(self) -> str:
        return f"{self.call}: {self.text}" if self.code is None else f"{self.call} returned {self.code}: {self.text}"


class IndexOutOfRange(ExecutionError, IndexError):
    """An index operand addressed outside its axis."""


class DivisionByZero(ExecutionError, ZeroDivisionError):
    """An integer divisor is zero, where the source says that this is an error."""
