"""Library kernels: hand-tuned code for the hot few. Autofuse fuses around them and, where they have slots, into them.

A library kernel computes one tile of a contraction. It is LLVM IR that defines

    void NAME(ptr a, i64 a_row, i64 a_depth,            left operand, rows by depth
              ptr b, i64 b_depth, i64 b_column,         right operand, depth by columns
              ptr c, i64 c_row, i64 c_column,           result, rows by columns
              i64 rows, i64 columns, i64 depth, i64 accumulate)

with strides in elements of the operands' types; `accumulate` 1 adds to what `c` holds. The result tile is on-chip: what
consumes it (the epilogue) runs on it before the only write to global memory. With a prologue slot, the left operand may
be an on-chip tile that producers have just filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autofusion.errors import GraphError
from autofusion.kinds import Kind
from autofusion.ops.table import TABLE, TensorType


@dataclass(frozen=True)
class LibraryKernel:
    """One hand-tuned kernel. `applies(left, right)`: the operand types that it takes."""

    name: str
    op: str
    source: str
    applies: Callable[[TensorType, TensorType], bool]
    family: str = "cpu"
    epilogue: bool = True
    prologue: bool = False


class Library:
    """The kernels by name; the one registered last wins where several apply."""

    def __init__(self) -> None:
        self._kernels: dict[str, LibraryKernel] = {}

    def register(self, kernel: LibraryKernel) -> LibraryKernel:
        """Add a kernel. Raises GraphError for a taken name, a bad source or an op that is no contraction."""
        if kernel.name in self._kernels:
            raise GraphError(f"library kernel {kernel.name!r} is registered already")
        if TABLE.get(kernel.op).kind is not Kind.CONTRACT:
            raise GraphError(f"library kernel {kernel.name!r}: {kernel.op} is no contraction")
        if f"@{kernel.name}(" not in kernel.source:
            raise GraphError(f"library kernel {kernel.name!r}: its source does not define @{kernel.name}")
        self._kernels[kernel.name] = kernel
        return kernel

    def remove(self, name: str) -> None:
        """Take a kernel out again."""
        del self._kernels[name]

    def get(self, name: str) -> LibraryKernel:
        """The kernel. Raises GraphError."""
        try:
            return self._kernels[name]
        except KeyError:
            raise GraphError(f"unknown library kernel {name!r}") from None

    def find(self, op: str, family: str, operands: tuple[TensorType, ...]) -> LibraryKernel | None:
        """The kernel for an operator on these operands; None where the generated code is used."""
        for kernel in reversed(self._kernels.values()):
            if kernel.op == op and kernel.family == family and len(operands) == 2 and kernel.applies(*operands):
                return kernel
        return None

    def __iter__(self) -> Iterator[LibraryKernel]:
        return iter(self._kernels.values())


LIBRARY = Library()
