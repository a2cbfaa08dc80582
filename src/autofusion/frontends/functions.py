"""NumPy-like functions over traced tensors and over plain arrays: `exp(x)`, `softmax(x, axis=-1)`, `where(c, x, 0)`.

A row of the op table is a function of its name (and of NumPy's name for it, see ALIASES), made when it is first asked
for, so a registered row is one too. Those that take more than the row's operands and attributes are written out here.
Inside a trace a function appends to the graph; outside, on NumPy arrays, it is evaluated at once by the reference.
"""

from __future__ import annotations

import builtins
import difflib
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from autofusion import dims, dtypes
from autofusion.dims import Dim
from autofusion.dtypes import DType
from autofusion.frontends.tracer import (
    NUMPY_FUNCTIONS,
    Tracer,
    current,
    element_type,
    extent,
    is_scalar,
    refuse,
    scalar_type,
)
from autofusion.graph import evaluate
from autofusion.ops import TABLE, Kind, Op
from autofusion.ops.rules import axis_of
from autofusion.ops.table import REQUIRED

F = TypeVar("F", bound=Callable[..., Any])
# A tensor in a trace; else a NumPy array, a nested list or a number.
ArrayLike: TypeAlias = Any

ALIASES = {
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "power": "pow",
    "mod": "remainder",
    "negative": "neg",
    "absolute": "abs",
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "invert": "bitwise_not",
    "rint": "round",
    "amax": "max",
    "amin": "min",
    "concatenate": "concat",
    "expand": "broadcast_to",
    "permute": "transpose",
}
_OWN: dict[str, Callable[..., Any]] = {}  # the functions written out below, by name
_ROWS: dict[str, tuple[Op, Callable[..., Any]]] = {}  # those made from rows


# -- traced or at once -----------------------------------------------------------------------------------------------
def dual(body: F) -> F:
    """Decorator: `body` works on a trace; called outside of one, a trace of its own is made and evaluated."""

    @functools.wraps(body)
    def call(*args: Any, **options: Any) -> Any:
        return body(*args, **options) if current() is not None else _at_once(body, args, options)

    return call  # type: ignore[return-value]


def _at_once(body: Callable[..., Any], args: Any, options: dict[str, Any]) -> Any:
    tracer = Tracer("eager")
    arrays: list[Any] = []

    def wrap(item: Any) -> Any:
        if isinstance(item, np.ndarray):
            arrays.append(item)
            return tracer.input(f"x{len(arrays)}", dtypes.of(item), item.shape)
        if isinstance(item, list | tuple) and any(isinstance(each, np.ndarray) for each in item):
            return [wrap(each) for each in item]
        return item

    with tracer.active():
        result = body(*map(wrap, args), **{name: wrap(item) for name, item in options.items()})
        listed = result if isinstance(result, list) else [result]
        for each in listed:
            tracer.builder.output(each.value)
    values = evaluate.run(tracer.builder.build(), arrays)
    return values if isinstance(result, list) else values[0]


def _tracer() -> Tracer:
    tracer = current()
    assert tracer is not None, "functions of this module run in a trace: see `dual`"
    return tracer


def _own(body: F) -> F:
    """Decorator of the functions below: traced or at once, and found by name."""
    made = dual(body)
    _OWN[body.__name__] = made
    return made


# -- sources ---------------------------------------------------------------------------------------------------------
def _shape(shape: Any) -> tuple[Dim, ...]:
    return tuple(extent(d) for d in (shape if isinstance(shape, tuple | list) else (shape,)))


@_own
def full(shape: Any, value: Any, dtype: Any = None) -> Any:
    """A tensor of `shape` (an int or a tuple) with one value; by default of the value's type (floats: float32)."""
    if not is_scalar(value):
        refuse(f"full: value {value!r}: expected a number")
    element = element_type(dtype) if dtype is not None else scalar_type(value, None)
    scalar = _tracer().fresh(_tracer().scalar(value, element))
    return scalar.expand(_shape(shape)).copy() if _shape(shape) else scalar


@_own
def zeros(shape: Any, dtype: Any = DType.FLOAT32) -> Any:
    """Zeros of `shape`."""
    return full(shape, 0, dtype)


@_own
def ones(shape: Any, dtype: Any = DType.FLOAT32) -> Any:
    """Ones of `shape`."""
    return full(shape, 1, dtype)


@_own
def full_like(x: ArrayLike, value: Any, dtype: Any = None) -> Any:
    """One value in the shape, and by default the element type, of `x`."""
    x = _tracer().lift(x)
    return full(x.shape, value, x.type.dtype if dtype is None else dtype)


@_own
def zeros_like(x: ArrayLike, dtype: Any = None) -> Any:
    """Zeros in the shape, and by default the element type, of `x`."""
    return full_like(x, 0, dtype)


@_own
def ones_like(x: ArrayLike, dtype: Any = None) -> Any:
    """Ones in the shape, and by default the element type, of `x`."""
    return full_like(x, 1, dtype)


@_own
def iota(shape: Any, axis: int = 0, dtype: Any = DType.INT64) -> Any:
    """The position along `axis`, in a tensor of `shape`."""
    wanted = _shape(shape)
    attrs = {"shape": wanted, "axis": axis_of(axis, len(wanted)), "dtype": element_type(dtype)}
    return _tracer().fresh(_tracer().emit("iota", [], attrs))


@_own
def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = DType.INT64) -> Any:
    """start, start+step, … below stop (arange(n): from 0). Integers or symbolic dimensions; `step` a positive int."""
    first, last = (0, extent(start)) if stop is None else (extent(start), extent(stop))
    if not isinstance(step, int) or step < 1:
        refuse(f"arange: step {step!r}: expected a positive int")
    count = dims.maximum(dims.ceildiv(last - first, step), 0)
    positions = iota((count,), 0, DType.INT64)
    positions = positions if step == 1 else positions * step
    positions = positions if first == 0 else positions + first
    return positions.astype(dtype)


@_own
def asarray(x: ArrayLike, dtype: Any = None) -> Any:
    """A tensor of an array (a constant of the graph), a list or a number."""
    tensor = _tracer().lift(x)
    return tensor if dtype is None else _tracer().cast(tensor, element_type(dtype))


# -- shapes ----------------------------------------------------------------------------------------------------------
@_own
def reshape(x: ArrayLike, shape: Any) -> Any:
    """The same elements in row-major order; one -1 is inferred."""
    return _tracer().lift(x).reshape(_shape(shape))


@_own
def transpose(x: ArrayLike, axes: Any = None) -> Any:
    """Axes permuted; by default reversed."""
    return _tracer().lift(x).transpose(axes)


@_own
def swapaxes(x: ArrayLike, axis1: int, axis2: int) -> Any:
    """Two axes exchanged."""
    return _tracer().lift(x).swapaxes(axis1, axis2)


@_own
def moveaxis(x: ArrayLike, source: int, destination: int) -> Any:
    """One axis moved to another place."""
    x = _tracer().lift(x)
    order = list(range(x.ndim))
    order.insert(axis_of(destination, x.ndim), order.pop(axis_of(source, x.ndim)))
    return x.transpose(order)


@_own
def expand_dims(x: ArrayLike, axis: Any) -> Any:
    """Axes of 1 inserted at positions of the result."""
    return _tracer().lift(x).expand_dims(axis)


@_own
def squeeze(x: ArrayLike, axis: Any = None) -> Any:
    """Axes of 1 dropped: all, or those given."""
    return _tracer().lift(x).squeeze(axis)


@_own
def ravel(x: ArrayLike) -> Any:
    """All elements in one axis."""
    return _tracer().lift(x).ravel()


@_own
def broadcast_to(x: ArrayLike, shape: Any) -> Any:
    """Axes of 1 repeated, new leading axes."""
    return _tracer().lift(x).expand(_shape(shape))


@_own
def slice(x: ArrayLike, starts: Any, stops: Any, steps: Any = None) -> Any:
    """Python's slice along every axis."""
    steps = [1] * len(starts) if steps is None else steps
    spans = [builtins.slice(*span) for span in zip(starts, stops, steps, strict=True)]
    return _tracer().lift(x)[tuple(spans)]


@_own
def concat(arrays: Sequence[ArrayLike], axis: int = 0) -> Any:
    """One after another along an axis, at their common element type."""
    tracer = _tracer()
    if not isinstance(arrays, list | tuple) or not arrays:
        refuse("concat: expected a list of at least one tensor")
    tensors = [tracer.lift(each) for each in arrays]
    common = tracer.common(tensors)
    return tracer.raw("concat", [tracer.cast(each, common) for each in tensors], {"axis": axis})


@_own
def stack(arrays: Sequence[ArrayLike], axis: int = 0) -> Any:
    """Joined along a new axis."""
    return concat([_tracer().lift(each).expand_dims(axis) for each in arrays], axis)


@_own
def split(x: ArrayLike, sections: Any, axis: int = 0) -> Any:
    """A list of views: `sections` equal parts (an int), or parts between the positions given (a list)."""
    x = _tracer().lift(x)
    along = axis_of(axis, x.ndim)
    if isinstance(sections, int):
        length = x.shape[along]
        if isinstance(length, int) and (sections < 1 or length % sections):
            refuse(f"split: an axis of {length} has no {sections} equal parts")
        part = length // sections
        cuts: list[Any] = [part * k for k in range(1, sections)]
    else:
        cuts = list(sections)
    before = (builtins.slice(None),) * along
    return [x[(*before, builtins.slice(a, b))] for a, b in zip([None, *cuts], [*cuts, None], strict=True)]


# -- elementwise beyond the rows -------------------------------------------------------------------------------------
@_own
def pow(x: ArrayLike, y: ArrayLike) -> Any:
    """x ** y; an integer tensor takes non-negative Python ints."""
    return _tracer().power(x, y)


@_own
def cast(x: ArrayLike, dtype: Any) -> Any:
    """Elements converted; float to int truncates and saturates, NaN to 0."""
    return _tracer().lift(x).astype(dtype)


@_own
def copy(x: ArrayLike) -> Any:
    """The same elements in storage of their own."""
    return _tracer().lift(x).copy()


@_own
def clip(x: ArrayLike, least: Any = None, most: Any = None) -> Any:
    """Values below `least` or above `most` replaced by them; NaN stays."""
    return _tracer().lift(x).clip(least, most)


@_own
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> Any:
    """x where the condition (non-zero counts as true) holds, else y; x and y meet at their common element type."""
    return _tracer().apply("where", condition, x, y)


# -- folds beyond the rows -------------------------------------------------------------------------------------------
@_own
def var(x: ArrayLike, axis: Any = None, *, ddof: int = 0, keepdims: bool = False) -> Any:
    """Variance over axes; `ddof` is subtracted from the count (0 as in NumPy; PyTorch's default is 1)."""
    return _tracer().lift(x).var(axis, ddof=ddof, keepdims=keepdims)


@_own
def std(x: ArrayLike, axis: Any = None, *, ddof: int = 0, keepdims: bool = False) -> Any:
    """The square root of `var`."""
    return _tracer().lift(x).std(axis, ddof=ddof, keepdims=keepdims)


@_own
def layer_norm(
    x: ArrayLike, scale: ArrayLike = None, shift: ArrayLike = None, *, rank: int = 1, epsilon: float = 1e-5
) -> Any:
    """(x - mean) / sqrt(var + epsilon) over the trailing `rank` axes, then scale and shift of those axes' shape."""
    if scale is None and shift is not None:
        refuse("layer_norm: shift without scale")
    operands = [each for each in (x, scale, shift) if each is not None]
    return _tracer().apply("layer_norm", *operands, rank=rank, epsilon=float(epsilon))


@_own
def rms_norm(x: ArrayLike, scale: ArrayLike = None, *, rank: int = 1, epsilon: float = 1e-5) -> Any:
    """x / sqrt(mean(x²) + epsilon) over the trailing `rank` axes, then scale of those axes' shape."""
    operands = [x] if scale is None else [x, scale]
    return _tracer().apply("rms_norm", *operands, rank=rank, epsilon=float(epsilon))


# -- gathers and products --------------------------------------------------------------------------------------------
@_own
def gather(x: ArrayLike, index: ArrayLike, axis: int = 0) -> Any:
    """x at integer positions along an axis; negative ones count from the end, others out of range raise."""
    return _tracer().lift(x).take(index, axis)


@_own
def take(x: ArrayLike, index: ArrayLike, axis: int | None = None) -> Any:
    """x at integer positions along an axis (None: of all elements in order)."""
    return _tracer().lift(x).take(index, axis)


@_own
def matmul(x: ArrayLike, y: ArrayLike) -> Any:
    """Matrix product over the last two axes, leading axes broadcast; vectors as in NumPy."""
    return _tracer().matmul(x, y)


@_own
def dot(x: ArrayLike, y: ArrayLike) -> Any:
    """The product of vectors and matrices, as NumPy's dot for up to two axes; a number scales."""
    x, y = _tracer().lift(x), _tracer().lift(y)
    if x.ndim > 2 or y.ndim > 2:
        refuse("dot: more than two axes; use matmul")
    return _tracer().apply("mul", x, y) if not x.ndim or not y.ndim else _tracer().matmul(x, y)


@_own
def outer(x: ArrayLike, y: ArrayLike) -> Any:
    """All products of an element of x with one of y: [size of x, size of y]."""
    left, right = _tracer().lift(x).ravel(), _tracer().lift(y).ravel()
    return left.expand_dims(1) * right.expand_dims(0)


# -- the rows as functions -------------------------------------------------------------------------------------------
def lookup(name: str) -> Callable[..., Any]:
    """The function of that name: one of this module's, a row's, or an alias. Raises AttributeError with near names."""
    target = ALIASES.get(name, name)
    if target in _OWN:
        return _OWN[target]
    if target in TABLE:
        row = TABLE.get(target)
        if target not in _ROWS or _ROWS[target][0] is not row:  # a name may be registered anew
            _ROWS[target] = (row, _made(row))
        return _ROWS[target][1]
    near = difflib.get_close_matches(name, names(), 3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise AttributeError(f"no function {name!r}{hint}")


def names() -> list[str]:
    """All function names, sorted."""
    return sorted({row.name for row in TABLE} | set(ALIASES) | set(_OWN))


def __getattr__(name: str) -> Callable[..., Any]:
    return lookup(name)


def __dir__() -> list[str]:
    return names()


def _made(row: Op) -> Callable[..., Any]:
    """A row as a function: its operands in order, then its attributes (`axes` is spelled `axis`, as in NumPy)."""
    signature = _signature(row)
    rename = {"axis": "axes"} if "axes" in row.attributes else {}
    operands = [p.name for p in signature.parameters.values() if p.name not in row.attributes and p.name not in rename]

    def body(*args: Any, **options: Any) -> Any:
        try:
            bound = signature.bind(*args, **options)
        except TypeError as error:
            refuse(f"{row.name}: {error}; it is called as {row.name}{signature}")
        bound.apply_defaults()
        given = bound.arguments
        tensors: list[Any] = []
        for name in operands:
            tensors += given[name] if isinstance(given[name], tuple) else [given[name]]
        attrs = {rename.get(k, k): _attribute(v) for k, v in given.items() if k not in operands}
        tracer = _tracer()
        if "axes" in attrs and row.kind is Kind.REDUCE:
            axes = attrs.pop("axes")
            return tracer.lift(tensors[0]).reduce(row.name, axes, attrs.pop("keepdims", False), **attrs)
        if row.kind is Kind.SCAN:
            return tracer.lift(tensors[0]).scan(row.name, attrs["axis"])
        return tracer.apply(row.name, *tensors, **attrs)

    body.__name__ = body.__qualname__ = row.name
    body.__doc__ = _document(row)
    made = dual(body)
    made.__signature__ = signature  # type: ignore[attr-defined]
    return made


def _attribute(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _signature(row: Op) -> inspect.Signature:
    least, most = row.arity if isinstance(row.arity, tuple) else (row.arity, row.arity)
    kind = inspect.Parameter
    if most != least:
        parameters = [kind("operands", kind.VAR_POSITIONAL)]
    else:
        letters = ["x", "y", "z", *(f"x{n}" for n in range(4, least + 1))]
        parameters = [kind(letters[n], kind.POSITIONAL_OR_KEYWORD) for n in range(least)]
    for name, default in row.attributes.items():
        required = default is REQUIRED and row.kind is not Kind.SCAN
        spelled = "axis" if name == "axes" else name
        value = kind.empty if required else None if row.kind is Kind.SCAN else default
        keyword_only = most != least or name not in ("axis", "axes", "keepdims")
        how = kind.KEYWORD_ONLY if keyword_only else kind.POSITIONAL_OR_KEYWORD
        parameters.append(kind(spelled, how, default=value))
    return inspect.Signature(sorted(parameters, key=lambda p: p.kind))


def _document(row: Op) -> str:
    lines = [f"{row.doc or row.name}.", ""]
    if row.kind is Kind.ELEMENTWISE:
        lines.append("Elementwise; operands broadcast and meet at their common element type.")
    if row.fold is not None or "axes" in row.attributes:
        lines.append("`axis`: an int or a tuple; None for all." if "axes" in row.attributes else "`axis`: an int.")
    taken = "any" if row.dtypes == tuple(DType) else ", ".join(row.dtypes)
    lines.append(f"Element types: {taken}." + (" Integers become float32." if row.dtypes == dtypes.FLOATS else ""))
    if row.tolerance != 4.0 and math.isfinite(row.tolerance):
        lines.append(f"Accuracy: within {row.tolerance:g} units in the last place of the reference.")
    lines.append("Raises GraphError where shapes, element types or attributes do not fit.")
    return "\n".join(lines)


# -- NumPy's own functions on tensors --------------------------------------------------------------------------------
_NUMPY = (
    "sum prod max min any all mean var std cumsum cumprod where concatenate stack split reshape transpose swapaxes "
    "moveaxis expand_dims squeeze ravel broadcast_to take dot outer clip copy zeros_like ones_like full_like"
)
NUMPY_FUNCTIONS |= {getattr(np, name): lookup(name) for name in _NUMPY.split()}
NUMPY_FUNCTIONS |= {np.shape: lambda x: x.shape, np.ndim: lambda x: x.ndim, np.size: lambda x: x.size}
