"""The one file that imports `torch`, when it is first needed: tensors' types and sizes in our words."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any

from autofusion import dims
from autofusion.dims import Dim, Shape
from autofusion.dtypes import DType
from autofusion.errors import ArgumentError, GraphError
from autofusion.ops import TensorType


class Unmapped(GraphError):
    """This package does not compile it; PyTorch runs it."""


@functools.cache
def torch() -> Any:
    """The module. Raises ArgumentError where it is not installed."""
    return module("torch")


@functools.cache
def module(name: str) -> Any:
    """A module of PyTorch. Raises ArgumentError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ArgumentError(f"PyTorch is not installed ({error}): python -m pip install torch") from None


@functools.cache
def _dtypes() -> dict[Any, DType]:
    return {getattr(torch(), str(dtype)): dtype for dtype in DType if hasattr(torch(), str(dtype))}


def dtype_of(dtype: Any) -> DType:
    """Ours for a `torch.dtype`. Raises Unmapped for one that we do not have (complex, quantised …)."""
    try:
        return _dtypes()[dtype]
    except KeyError:
        raise Unmapped(f"element type {str(dtype).removeprefix('torch.')} is not compiled") from None


def torch_dtype(dtype: DType) -> Any:
    """PyTorch's for ours."""
    return getattr(torch(), str(dtype))


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch().Tensor)


def type_of(fake: Any) -> TensorType:
    """Element type and shape of a tensor. Raises Unmapped for one that is not an ordinary dense tensor in memory."""
    if fake.layout is not torch().strided or fake.device.type != "cpu" or fake.is_quantized:
        raise Unmapped(f"a tensor of layout {fake.layout} on {fake.device} is not compiled")
    if fake.is_conj() or fake.is_neg():
        raise Unmapped("a conjugate or negative view is not compiled")
    return TensorType(dtype_of(fake.dtype), tuple(dim_of(size) for size in fake.shape))


def strides_of(fake: Any) -> Shape:
    """The strides of a tensor, in elements."""
    return tuple(dim_of(step) for step in fake.stride())


def dim_of(size: Any) -> Dim:
    """An int or a SymInt as a dim. Raises Unmapped for an expression that dims do not have."""
    if isinstance(size, int):
        return size
    if isinstance(size, torch().SymInt):
        return dim_of_expression(size.node.expr)
    raise Unmapped(f"{size} is no integer, and a size is expected")


def from_data(size: Any) -> bool:
    """Whether a number of the host follows from what tensors hold, not only from their extents."""
    return bool(module("torch.fx.experimental.symbolic_shapes").free_unbacked_symbols(size))


def least(size: Any) -> dict[str, int]:
    """The smallest values that PyTorch's guards leave to the symbols of a size, where these are positive."""
    if isinstance(size, int):
        return {}
    ranges = size.node.shape_env.var_to_range
    found = {each.name: ranges[each].lower for each in size.node.expr.free_symbols if each in ranges}
    return {name: int(lower) for name, lower in found.items() if lower.is_Integer and lower > 0}


def dim_of_expression(expression: Any) -> Dim:
    """The dim of a sympy expression over sizes."""
    kind = type(expression).__name__
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return dims.symbol(expression.name)
    if kind == "Pow" and expression.args[1].is_Integer and int(expression.args[1]) > 0:
        return dims.product([dim_of_expression(expression.args[0])] * int(expression.args[1]))
    made = [dim_of_expression(argument) for argument in expression.args]
    if kind == "Add":
        return functools.reduce(dims.add, made)
    if kind == "Mul":
        return dims.product(made)
    if kind in _BINARY and len(made) > 1:
        return functools.reduce(_BINARY[kind], made)
    raise Unmapped(f"size {expression} is no sum, product, quotient, remainder, minimum or maximum")


_BINARY: dict[str, Any] = {
    "FloorDiv": dims.floordiv,
    "CleanDiv": dims.floordiv,
    "Mod": dims.modulo,
    "PythonMod": dims.modulo,
    "Max": dims.maximum,
    "Min": dims.minimum,
}


def arguments(target: Any, args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    """An overload's arguments by name, defaults filled in."""
    for position, argument in enumerate(target._schema.arguments):
        if position < len(args):
            yield argument.name, args[position]
        elif argument.name in kwargs:
            yield argument.name, kwargs[argument.name]
        else:
            yield argument.name, argument.default_value if argument.has_default_value() else None


def threads() -> int:
    """How many PyTorch would use."""
    return int(torch().get_num_threads())
