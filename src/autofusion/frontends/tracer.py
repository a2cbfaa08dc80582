"""Tracing: run an ordinary Python function on `Tensor`s, which write down what is done to them as a Graph.

    trace(lambda x, w: af.relu(x @ w), [("x", F32, (n, 64)), ("w", F32, (64, 64))])

Element types. Tensors of different types meet at `dtypes.promote` (PyTorch's rule), by `cast` nodes. Python and NumPy
scalars are weak, as in PyTorch: they take the tensor's type unless theirs is of a higher kind (bool < int < float);
then an int makes int64 and a float float32. `/`, `mean` and functions of floats turn integers into float32.

Storage. As in NumPy, slices, transposes and reshapes are views: a write to one is seen by the tensor below and by every
other view of it. A tensor is therefore a storage and a chain of views; a write makes a new value of the storage, and a
view reads that value through its chain again. Where NumPy's reshape is a view or a copy depending on a memory layout
that is not known here, a write to one side makes reading the other an error.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np

from autofusion import dims, dtypes
from autofusion.dims import Dim, Expr, Shape, show_shape
from autofusion.dtypes import Array, DType
from autofusion.errors import AutofusionError, GraphError
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph, Guard, Value, digest_of
from autofusion.ops import TABLE, Kind, TensorType
from autofusion.ops.rules import axes_of, axis_of, broadcast
from autofusion.ops.structure import slice_bounds, strides_of


class TraceError(AutofusionError, TypeError):
    """The function does something that has no meaning before the data is known, or that no operator expresses."""


Spec: TypeAlias = Value | tuple[Any, ...]
_PACKAGE = str(Path(__file__).resolve().parents[1])
_FLOAT = DType.FLOAT32  # what integers become where a float is needed: PyTorch's default type

# Handlers of NumPy's own functions on tensors (`np.sum(x)`); functions.py, which defines them, fills it in.
NUMPY_FUNCTIONS: dict[Any, Callable[..., Any]] = {}

UFUNCS: dict[Any, str] = {
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.true_divide: "div",
    np.floor_divide: "floor_divide",
    np.remainder: "remainder",
    np.fmod: "fmod",
    np.power: "pow",
    np.matmul: "matmul",
    np.negative: "neg",
    np.absolute: "abs",
    np.maximum: "maximum",
    np.minimum: "minimum",
    np.equal: "eq",
    np.not_equal: "ne",
    np.less: "lt",
    np.less_equal: "le",
    np.greater: "gt",
    np.greater_equal: "ge",
    np.logical_and: "logical_and",
    np.logical_or: "logical_or",
    np.logical_xor: "logical_xor",
    np.logical_not: "logical_not",
    np.bitwise_and: "bitwise_and",
    np.bitwise_or: "bitwise_or",
    np.bitwise_xor: "bitwise_xor",
    np.invert: "bitwise_not",
    np.isnan: "isnan",
    np.exp: "exp",
    np.exp2: "exp2",
    np.expm1: "expm1",
    np.log: "log",
    np.log2: "log2",
    np.log1p: "log1p",
    np.tanh: "tanh",
    np.sin: "sin",
    np.cos: "cos",
    np.sqrt: "sqrt",
    np.floor: "floor",
    np.ceil: "ceil",
    np.trunc: "trunc",
    np.rint: "round",
    np.square: "square",
    np.reciprocal: "reciprocal",
}
_ON_BOOL = {"add": "logical_or", "mul": "logical_and"}  # what + and * of booleans mean in NumPy and PyTorch


def location() -> str:
    """` (at file:line)` of the innermost frame outside this package, for error texts."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return "" if frame is None else f" (at {Path(frame.f_code.co_filename).name}:{frame.f_lineno})"


def refuse(message: str) -> NoReturn:
    """Raise TraceError with the place in the user's code."""
    raise TraceError(message + location())


# -- views and storage -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class View:
    """One step of a chain of views: a row of the op table with a `view`, and its attributes."""

    op: str
    attrs: Mapping[str, Any]

    def put(self, builder: GraphBuilder, parent: Value, value: Value) -> Value:
        """The parent's new value once this view of it holds `value` (of the view's shape, or rank 0: broadcast)."""
        if self.op == "slice":
            bounds = slice_bounds(self.attrs, parent.shape)
            whole = all(b == (0, n, 1) for b, n in zip(bounds, parent.shape, strict=True))
            if whole and (value.shape == parent.shape or not value.shape):
                return value
            return builder.emit("slice_update", [parent, value], self.attrs, "slice_update")
        if self.op == "expand":
            refuse("assignment to a broadcast view: it is read-only, as in NumPy; copy() it first")
        if not value.shape:
            return value
        if self.op == "transpose":
            axes = tuple(int(a) for a in np.argsort(self.attrs["axes"]))
            return builder.emit("transpose", [value], {"axes": axes}, "transpose")
        return builder.emit("reshape", [value], {"shape": parent.shape}, "reshape")


class Storage:
    """What views share: the current value, a version that counts writes, and the memory layout where it is known."""

    __slots__ = ("input", "poison", "ties", "value", "version")

    def __init__(self, value: Value, input: str | None = None) -> None:
        self.value = value
        self.version = 0
        self.input = input
        self.ties: list[Storage] = []  # storages that may be this one: a reshape that may or may not have copied
        self.poison = ""  # why the value is not known any more

    def tied(self) -> list[Storage]:
        """The other storages that may be this one, directly or through one another."""
        found = [self]
        for each in found:
            found += [other for other in each.ties if all(other is not known for known in found)]
        return found[1:]


class Sharing(Enum):
    """Whether a reshape is a view in NumPy, where it surely is not one."""

    COPY = "copy"
    UNKNOWN = "unknown"


def reshaped_strides(shape: Shape, strides: Shape | None, target: Shape) -> Shape | Sharing:
    """The strides of NumPy's reshape as a view, COPY where it copies, UNKNOWN where the layout does not tell."""
    old = [(n, s) for n, s in zip(shape, strides or shape, strict=True) if n != 1]
    if [n for n, _ in old] == [n for n in target if n != 1]:  # only axes of 1 come and go: always a view
        left = iter(s for _, s in old)
        return tuple(0 if n == 1 else next(left) for n in target)
    if strides is None:
        return Sharing.UNKNOWN
    if tuple(s for _, s in old) == strides_of(tuple(n for n, _ in old)):
        return strides_of(target)
    numbers = [(n, s) for n, s in old if isinstance(n, int) and isinstance(s, int)]
    wanted = [n for n in target if isinstance(n, int)]
    if len(numbers) < len(old) or len(wanted) < len(target):
        return Sharing.UNKNOWN
    return _regroup(numbers, wanted)


def _regroup(old: list[tuple[int, int]], target: list[int]) -> Shape | Sharing:
    """Cut both shapes into groups of equal size; a group of old axes must be contiguous among themselves."""
    if 0 in target:
        return strides_of(tuple(target))
    result = [0] * len(target)
    axes = [axis for axis, n in enumerate(target) if n != 1]
    while old:
        group, new = [old.pop(0)], [axes.pop(0)]
        while (have := math.prod(n for n, _ in group)) != (want := math.prod(target[a] for a in new)):
            if have < want:
                group.append(old.pop(0))
            else:
                new.append(axes.pop(0))
        if any(outer[1] != inner[0] * inner[1] for outer, inner in pairwise(group)):
            return Sharing.COPY
        stride = group[-1][1]
        for axis in reversed(new):
            result[axis] = stride
            stride *= target[axis]
    return tuple(result)


# -- the tracer ------------------------------------------------------------------------------------------------------
_current: ContextVar[Tracer | None] = ContextVar("tracer", default=None)


def current() -> Tracer | None:
    """The trace that is under way in this context, or None."""
    return _current.get()


class Tracer:
    """One trace: the graph being built, and the inputs written so far, in the order of their first write."""

    def __init__(self, name: str) -> None:
        self.builder = GraphBuilder(name)
        self.written: dict[str, Storage] = {}
        self._constants: dict[str, Value] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Functions called inside belong to this trace."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def input(self, name: str, dtype: DType, shape: Shape, strides: Shape | None = None) -> Tensor:
        value = self.builder.input(name, dtype, shape, strides)
        return Tensor(self, Storage(value, name), strides=strides or strides_of(shape))

    def fresh(self, value: Value, row_major: bool = True) -> Tensor:
        """A tensor in storage of its own. `row_major`: NumPy would surely lay it out so."""
        return Tensor(self, Storage(value), strides=strides_of(value.shape) if row_major else None)

    def emit(self, op: str, inputs: Sequence[Value], attrs: Mapping[str, Any]) -> Value:
        """One node. Errors of the op table get the place in the user's code."""
        try:
            return self.builder.emit(op, inputs, attrs, op)
        except GraphError as error:
            raise type(error)(f"{error}{location()}") from None

    # -- operands ----------------------------------------------------------------------------------------------------
    def lift(self, item: Any, dtype: DType | None = None) -> Tensor:
        """A tensor of anything that can be one: arrays and lists become constants, scalars are of type `dtype`."""
        if isinstance(item, Tensor):
            if item.tracer is not self:
                refuse("a tensor of another trace was used: traced functions must not keep tensors between calls")
            return item
        if is_scalar(item):
            return self.fresh(self.scalar(item, dtype or scalar_type(item, None)))
        if isinstance(item, list | tuple):
            item = self._listed(item)
        if not isinstance(item, np.ndarray):
            refuse(f"expected a tensor, an array or a number, found {type(item).__name__}")
        digest = digest_of(item)
        if digest not in self._constants:
            self._constants[digest] = self.builder.constant(item)
        return self.fresh(self._constants[digest])

    def _listed(self, item: Sequence[Any]) -> Array:
        if any(isinstance(each, Tensor) for each in item):
            refuse("a list of tensors is no tensor: use stack or concat")
        array = np.array(item)
        return array.astype(_FLOAT.numpy) if array.dtype == np.float64 else array

    def scalar(self, item: Any, dtype: DType) -> Value:
        """A rank-0 value. Raises TraceError where an integer does not fit the type."""
        if isinstance(item, np.generic):
            item = item.item()
        if dtype.is_integer and isinstance(item, int):
            limits = np.iinfo(dtype.numpy)
            if not limits.min <= item <= limits.max:
                refuse(f"the number {item} does not fit {dtype}: cast the tensor to a wider type")
        return self.builder.scalar(item, dtype)

    def common(self, operands: Sequence[Any]) -> DType:
        """The type at which operands meet."""
        lifted = [self.lift(o) if not is_scalar(o) else o for o in operands]
        found: DType | None = None
        for each in lifted:
            if isinstance(each, Tensor):
                found = each.type.dtype if found is None else dtypes.promote(found, each.type.dtype)
        for each in lifted:
            if not isinstance(each, Tensor):
                found = scalar_type(each, found)
        assert found is not None
        return found

    def cast(self, item: Any, dtype: DType) -> Tensor:
        tensor = self.lift(item, dtype)
        if tensor.type.dtype is dtype:
            return tensor
        return self.fresh(self.emit("cast", [tensor.value], {"dtype": dtype}), tensor.is_row_major)

    # -- operators ---------------------------------------------------------------------------------------------------
    def apply(self, op: str, *operands: Any, **attrs: Any) -> Tensor:
        """One row on operands that meet at one type (for `where`, all but the condition)."""
        row = TABLE.get(op)
        operands = tuple(o if is_scalar(o) else self.lift(o) for o in operands)
        row.check_arity(len(operands))
        leading: list[Tensor] = []
        if row.dtypes == (DType.BOOL,) and len(operands) == 3:
            leading, operands = [self.cast(operands[0], DType.BOOL)], operands[1:]
        dtype = self.common(operands)
        if dtype is DType.BOOL and op in _ON_BOOL:
            return self.apply(_ON_BOOL[op], *operands)
        if row.kind in (Kind.ELEMENTWISE, Kind.REDUCE) and not leading:
            if row.dtypes == dtypes.FLOATS and not dtype.is_float:
                dtype = _FLOAT
            elif row.dtypes == (DType.BOOL,):
                dtype = DType.BOOL
        return self.raw(op, leading + [self.cast(o, dtype) for o in operands], attrs)

    def raw(self, op: str, operands: Sequence[Tensor], attrs: Mapping[str, Any], row_major: bool = True) -> Tensor:
        """One row on tensors as they are, into fresh storage."""
        known = row_major and all(o.is_row_major for o in operands)
        return self.fresh(self.emit(op, [o.value for o in operands], attrs), known)

    def call(self, op: str, *operands: Any) -> Tensor:
        """An operator as Python and NumPy write it: powers and products with vectors have rules of their own."""
        special = {"pow": self.power, "matmul": self.matmul}.get(op)
        return special(*operands) if special else self.apply(op, *operands)

    def power(self, base: Any, exponent: Any) -> Tensor:
        """a ** b. Like PyTorch and NumPy: 2 squares, 0.5 is the square root, -1 the reciprocal; integers multiply."""
        if isinstance(exponent, int | float) and not isinstance(exponent, bool) and not is_scalar(base):
            tensor = self.lift(base)
            if exponent == 2:
                return self.apply("square", tensor)
            if isinstance(exponent, int) and tensor.type.dtype.is_integer:
                return self._integer_power(tensor, exponent)
            if exponent in (0.5, -1):
                return self.apply("sqrt" if exponent == 0.5 else "reciprocal", tensor)
        return self.apply("pow", base, exponent)

    def _integer_power(self, base: Tensor, exponent: int) -> Tensor:
        if exponent < 0:
            refuse(f"integers to the negative power {exponent}: cast the tensor to a float type")
        if exponent == 0:
            return self.fresh(self.scalar(1, base.type.dtype)).expand(base.shape).copy()
        result, square = None, base
        while exponent:
            if exponent & 1:
                result = square if result is None else self.apply("mul", result, square)
            exponent >>= 1
            square = self.apply("mul", square, square) if exponent else square
        assert result is not None
        return result.copy()

    def matmul(self, a: Any, b: Any) -> Tensor:
        """a @ b. A vector stands for a row on the left and a column on the right, and its axis is dropped again."""
        left, right = self.lift(a), self.lift(b)
        if not left.shape or not right.shape:
            refuse("matmul: an operand is a scalar; use * instead")
        row, column = len(left.shape) == 1, len(right.shape) == 1
        left = left.reshape(1, left.shape[0]) if row else left
        right = right.reshape(right.shape[0], 1) if column else right
        result = self.apply("matmul", left, right)
        kept = result.shape[:-2] + (() if row else result.shape[-2:-1]) + (() if column else result.shape[-1:])
        return result.reshape(kept) if row or column else result


def is_scalar(item: Any) -> bool:
    """Whether it is a weakly typed number: Python's, NumPy's, or a symbolic dimension."""
    return isinstance(item, bool | int | float | Expr | np.bool_ | np.number)


def element_type(item: Any) -> DType:
    """The DType of a name, a NumPy dtype or one of NumPy's scalar classes. Raises DTypeError."""
    return dtypes.of(np.dtype(item) if isinstance(item, type) else item)


def scalar_type(item: Any, beside: DType | None) -> DType:
    """The type at which a scalar meets a tensor's type (None: no tensor)."""
    if isinstance(item, float | np.floating):
        return beside if beside is not None and beside.is_float else _FLOAT
    if isinstance(item, bool | np.bool_):
        return beside or DType.BOOL
    if isinstance(item, np.complexfloating):
        refuse(f"complex numbers are not supported, found {item!r}")
    return DType.INT64 if beside is None or beside is DType.BOOL else beside


# -- tensors ---------------------------------------------------------------------------------------------------------
def _binary(op: str) -> Callable[[Tensor, Any], Tensor]:
    return lambda self, other: self.tracer.call(op, self, other)


def _reflected(op: str) -> Callable[[Tensor, Any], Tensor]:
    return lambda self, other: self.tracer.call(op, other, self)


def _unary(op: str) -> Callable[[Tensor], Tensor]:
    return lambda self: self.tracer.apply(op, self)


def _in_place(op: str) -> Callable[[Tensor, Any], Tensor]:
    return lambda self, other: self.store(self.tracer.call(op, self, other))


def _unknown(what: str, hint: str = ": use where() in place of control flow on data") -> Callable[..., Any]:
    def method(self: Tensor, *args: Any, **options: Any) -> NoReturn:
        refuse(f"{what} of a traced tensor is not known while tracing{hint}")

    return method


class Tensor:
    """An array whose elements are not known yet. It behaves as a NumPy array does; see the module's text."""

    __slots__ = ("_value", "_version", "storage", "strides", "tracer", "views")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, tracer: Tracer, storage: Storage, views: tuple[View, ...] = (), strides: Shape | None = None
    ) -> None:
        self.tracer = tracer
        self.storage = storage
        self.views = views
        self.strides = strides  # in elements; None where NumPy's layout is not known
        self._version = -1
        self._value = storage.value

    @property
    def value(self) -> Value:
        """The graph value that holds the elements now. Raises TraceError after the trace, or where it is ambiguous."""
        if current() is not self.tracer:
            refuse("a tensor was used after its trace ended (or in another one): return results instead")
        if self.storage.poison:
            refuse(self.storage.poison)
        if self._version != self.storage.version:
            self._value = self._through(self.views)[-1]
            self._version = self.storage.version
        return self._value

    def _through(self, views: tuple[View, ...]) -> list[Value]:
        """The storage's value, and what each view makes of it."""
        values = [self.storage.value]
        for view in views:
            values.append(self.tracer.emit(view.op, [values[-1]], view.attrs))
        return values

    @property
    def type(self) -> TensorType:
        return self.value.type

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's dtype."""
        return self.storage.value.dtype.numpy

    @property
    def shape(self) -> Shape:
        """Ints, and expressions over the symbolic dimensions."""
        return self.value.shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Dim:
        return dims.product(self.shape)

    @property
    def is_row_major(self) -> bool:
        """Whether NumPy would surely hold it in row-major order without gaps."""
        if self.strides is None:
            return False
        kept = [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n != 1]
        return tuple(s for _, s in kept) == strides_of(tuple(n for n, _ in kept))

    def __repr__(self) -> str:
        return f"Tensor({self.storage.value.dtype}{show_shape(self.shape)})"

    def __len__(self) -> int:
        if not self.shape:
            refuse("len() of a tensor of rank 0")
        if isinstance(self.shape[0], Expr):
            refuse(f"len() of a tensor whose first extent {self.shape[0]} is symbolic: use .shape[0]")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        refuse("iteration over a traced tensor: write it with whole-array operators, or index it (x[0], x[1])")

    __bool__ = _unknown("the truth value")
    __int__ = _unknown("the value")
    __float__ = _unknown("the value")
    __complex__ = _unknown("the value")
    __index__ = _unknown("the value")
    __array__ = _unknown("the data", "; to index a NumPy array by a tensor, use take(array, index, axis=0)")
    __contains__ = _unknown("membership")
    item = _unknown("the value")
    tolist = _unknown("the data")

    __add__, __radd__, __iadd__ = _binary("add"), _reflected("add"), _in_place("add")
    __sub__, __rsub__, __isub__ = _binary("sub"), _reflected("sub"), _in_place("sub")
    __mul__, __rmul__, __imul__ = _binary("mul"), _reflected("mul"), _in_place("mul")
    __truediv__, __rtruediv__, __itruediv__ = _binary("div"), _reflected("div"), _in_place("div")
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _reflected("floor_divide")
    __ifloordiv__ = _in_place("floor_divide")
    __mod__, __rmod__, __imod__ = _binary("remainder"), _reflected("remainder"), _in_place("remainder")
    __pow__, __rpow__, __ipow__ = _binary("pow"), _reflected("pow"), _in_place("pow")
    __matmul__, __rmatmul__, __imatmul__ = _binary("matmul"), _reflected("matmul"), _in_place("matmul")
    __and__, __rand__, __iand__ = _binary("bitwise_and"), _reflected("bitwise_and"), _in_place("bitwise_and")
    __or__, __ror__, __ior__ = _binary("bitwise_or"), _reflected("bitwise_or"), _in_place("bitwise_or")
    __xor__, __rxor__, __ixor__ = _binary("bitwise_xor"), _reflected("bitwise_xor"), _in_place("bitwise_xor")
    __lt__, __le__, __gt__, __ge__ = _binary("lt"), _binary("le"), _binary("gt"), _binary("ge")
    __eq__, __ne__ = _binary("eq"), _binary("ne")  # type: ignore[assignment]
    __neg__, __abs__, __invert__ = _unary("neg"), _unary("abs"), _unary("bitwise_not")

    def __pos__(self) -> Tensor:
        return self.copy()

    # -- NumPy's protocols -------------------------------------------------------------------------------------------
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Tensor:
        if ufunc not in UFUNCS or method != "__call__" or options:
            detail = f".{method}" if method != "__call__" else f" with {', '.join(options)}" if options else ""
            refuse(f"np.{ufunc.__name__}{detail} is not supported on traced tensors")
        result = self.tracer.call(UFUNCS[ufunc], *inputs)
        if out is None:
            return result
        if not isinstance(out[0], Tensor):
            refuse(f"np.{ufunc.__name__}: out= is a NumPy array, which a trace cannot write; pass it to the function")
        return out[0].store(result)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in NUMPY_FUNCTIONS:
            refuse(f"np.{function.__name__} is not supported on traced tensors")
        try:
            return NUMPY_FUNCTIONS[function](*args, **kwargs)
        except TypeError as error:
            if isinstance(error, AutofusionError):
                raise
            refuse(f"np.{function.__name__} on traced tensors: {error}")

    # -- views -------------------------------------------------------------------------------------------------------
    def view(self, op: str, attrs: Mapping[str, Any], strides: Shape | None) -> Tensor:
        """A tensor over the same storage."""
        made = Tensor(self.tracer, self.storage, (*self.views, View(op, attrs)), strides)
        made._value = self.tracer.emit(op, [self.value], attrs)
        made._version = self.storage.version
        return made

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in row-major order; one -1 is inferred. A view where it is one in NumPy."""
        listed = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        wanted = tuple(extent(d) for d in listed)
        value = self.tracer.emit("reshape", [self.value], {"shape": wanted})
        found = reshaped_strides(self.shape, self.strides, value.shape)
        if isinstance(found, Sharing):
            made = self.tracer.fresh(value, found is Sharing.COPY)
            if found is Sharing.UNKNOWN:
                made.storage.ties.append(self.storage)
                self.storage.ties.append(made.storage)
            return made
        made = Tensor(self.tracer, self.storage, (*self.views, View("reshape", {"shape": wanted})), found)
        made._value, made._version = value, self.storage.version
        return made

    def transpose(self, *axes: Any) -> Tensor:
        """Axes permuted; by default reversed."""
        listed = axes[0] if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], tuple | list)) else axes
        order = tuple(reversed(range(self.ndim))) if not listed else tuple(_axis(a, self.ndim) for a in listed)
        strides = None
        if self.strides is not None and len(order) == self.ndim:
            strides = tuple(self.strides[a] for a in order)
        return self.view("transpose", {"axes": order}, strides)

    @property
    def T(self) -> Tensor:
        """All axes reversed."""
        return self.transpose()

    @property
    def mT(self) -> Tensor:
        """The last two axes swapped."""
        return self.swapaxes(-1, -2)

    def swapaxes(self, first: int, second: int) -> Tensor:
        order = list(range(self.ndim))
        a, b = _axis(first, self.ndim), _axis(second, self.ndim)
        order[a], order[b] = order[b], order[a]
        return self.transpose(order)

    def expand(self, shape: Sequence[Any]) -> Tensor:
        """Broadcast to a shape: a read-only view."""
        wanted = tuple(extent(d) for d in shape)
        strides = None
        if self.strides is not None:
            new = len(wanted) - self.ndim
            own = zip(self.shape, self.strides, strict=True)
            strides = (0,) * new + tuple(0 if n == 1 else s for n, s in own)
        return self.view("expand", {"shape": wanted}, strides)

    def squeeze(self, axis: Any = None) -> Tensor:
        """Axes of 1 dropped: all, or those given."""
        if axis is None:
            dropped = {d for d, n in enumerate(self.shape) if n == 1}
        else:
            dropped = {_axis(a, self.ndim) for a in (axis if isinstance(axis, tuple | list) else (axis,))}
        for d in sorted(dropped):
            if self.shape[d] != 1:
                refuse(f"squeeze: axis {d} of {show_shape(self.shape)} is not 1")
        return self.reshape(tuple(n for d, n in enumerate(self.shape) if d not in dropped))

    def expand_dims(self, axis: Any) -> Tensor:
        """Axes of 1 inserted, at positions of the result."""
        axes = axis if isinstance(axis, tuple | list) else (axis,)
        rank = self.ndim + len(axes)
        new, left = {_axis(a, rank) for a in axes}, iter(self.shape)
        if len(new) != len(axes):
            refuse(f"expand_dims: axis={axis!r} names one axis twice")
        return self.reshape(tuple(1 if d in new else next(left) for d in range(rank)))

    def ravel(self) -> Tensor:
        """All elements in one axis; a view where it is one in NumPy."""
        return self.reshape(-1)

    def flatten(self) -> Tensor:
        """All elements in one axis, in storage of their own."""
        return self.reshape(-1).copy()

    # -- copies, reductions, scans -----------------------------------------------------------------------------------
    def copy(self) -> Tensor:
        """The same elements in storage of their own, which needs no node: values never change."""
        return self.tracer.fresh(self.value)

    def astype(self, dtype: Any) -> Tensor:
        """Elements converted (float to int truncates and saturates, NaN to 0), always in storage of their own."""
        cast = self.tracer.cast(self, element_type(dtype))
        return cast.copy() if cast is self else cast

    def reduce(self, op: str, axis: Any, keepdims: bool, **attrs: Any) -> Tensor:
        """A row of kind REDUCE over `axis`: an int, a tuple, or None for all."""
        try:
            axes = axes_of(tuple(axis) if isinstance(axis, list) else axis, self.ndim) if axis is not None else None
        except GraphError as error:
            raise type(error)(f"{op}: {error}{location()}") from None
        return self.tracer.apply(op, self, axes=axes, keepdims=bool(keepdims), **attrs)

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> Tensor:
        return self.reduce("sum", axis, keepdims)

    def prod(self, axis: Any = None, *, keepdims: bool = False) -> Tensor:
        return self.reduce("prod", axis, keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Tensor:
        return self.reduce("max", axis, keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Tensor:
        return self.reduce("min", axis, keepdims)

    def any(self, axis: Any = None, *, keepdims: bool = False) -> Tensor:
        return self.reduce("any", axis, keepdims)

    def all(self, axis: Any = None, *, keepdims: bool = False) -> Tensor:
        return self.reduce("all", axis, keepdims)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> Tensor:
        return self.reduce("mean", axis, keepdims)

    def var(self, axis: Any = None, *, ddof: int = 0, keepdims: bool = False) -> Tensor:
        """Variance. `ddof` is subtracted from the count; 0 as in NumPy (PyTorch's default is 1)."""
        return self.reduce("var", axis, keepdims, correction=ddof)

    def std(self, axis: Any = None, *, ddof: int = 0, keepdims: bool = False) -> Tensor:
        """The square root of `var`."""
        return self.tracer.apply("sqrt", self.var(axis, ddof=ddof, keepdims=keepdims))

    def scan(self, op: str, axis: int | None) -> Tensor:
        """A row of kind SCAN along `axis`; None: over all elements in order."""
        source = self.ravel() if axis is None else self
        return self.tracer.apply(op, source, axis=_axis(axis or 0, source.ndim))

    def cumsum(self, axis: int | None = None) -> Tensor:
        return self.scan("cumsum", axis)

    def cumprod(self, axis: int | None = None) -> Tensor:
        return self.scan("cumprod", axis)

    def clip(self, least: Any = None, most: Any = None) -> Tensor:
        """Values below `least` or above `most` replaced by them; NaN stays."""
        result = self if least is None else self.tracer.apply("maximum", self, least)
        result = result if most is None else self.tracer.apply("minimum", result, most)
        return result.copy() if result is self else result

    def take(self, index: Any, axis: int | None = None) -> Tensor:
        """Elements at integer positions along an axis (None: of all elements in order)."""
        source = self.ravel() if axis is None else self
        return source.gather(index, _axis(axis or 0, source.ndim))

    def gather(self, index: Any, axis: int, row_major: bool = True) -> Tensor:
        positions = self.tracer.lift(index, DType.INT64)
        if not positions.type.dtype.is_integer:
            found = positions.type.dtype
            refuse(f"index of type {found}: expected integers; what a mask selects has no size here: use where")
        if positions.type.dtype not in (DType.INT32, DType.INT64):
            positions = self.tracer.cast(positions, DType.INT64)
        return self.tracer.raw("gather", [self, positions], {"axis": axis}, row_major)

    # -- indexing ----------------------------------------------------------------------------------------------------
    def __getitem__(self, key: Any) -> Tensor:
        keys = _normalised(key, self.shape)
        arrays = [position for position, each in enumerate(keys) if _is_array(each)]
        if not arrays:
            return self._basic(keys)
        if len(arrays) > 1:
            refuse(f"{len(arrays)} index arrays: a gather goes along one axis; index one axis at a time")
        at = arrays[0]
        plain = [*keys[:at], slice(None), *keys[at + 1 :]]
        axis = sum(not isinstance(each, _Whole) and each is not Ellipsis for each in keys[:at])
        result = self._basic(plain).gather(keys[at], axis, row_major=False)
        # NumPy counts an int beside an array as one more index array: apart from each other, their axes come first.
        advanced = [p for p, each in enumerate(keys) if p == at or isinstance(each, _Whole)]
        if advanced[-1] - advanced[0] + 1 != len(advanced):
            rank = self.tracer.lift(keys[at]).ndim
            rest = [d for d in range(result.ndim) if not axis <= d < axis + rank]
            result = result.transpose([*range(axis, axis + rank), *rest])
        return result

    def _basic(self, keys: list[Any]) -> Tensor:
        """Ints, slices and new axes: a slice, then a reshape that drops or adds axes of 1. A view of the storage."""
        axes = [each for each in keys if each is not None and each is not Ellipsis]
        spans = [self._span(each, d) for d, each in enumerate(axes)]
        attrs = {
            "starts": tuple(s[0] for s in spans),
            "stops": tuple(s[1] for s in spans),
            "steps": tuple(s[2] for s in spans),
        }
        result = Tensor(self.tracer, self.storage, self.views, self.strides)
        result._value, result._version = self.value, self.storage.version
        if any(span != (0, n, 1) for span, n in zip(spans, self.shape, strict=True)):
            strides = self.strides and tuple(dims.multiply(s, t[2]) for s, t in zip(self.strides, spans, strict=True))
            result = self.view("slice", attrs, strides)
        if len(axes) == len(keys) and not any(isinstance(each, _Whole) for each in axes):
            return result
        extents = iter(result.shape)
        shape: list[Dim] = []
        for each in keys:
            if each is None:
                shape.append(1)
            elif each is not Ellipsis:
                n = next(extents)
                if not isinstance(each, _Whole):
                    shape.append(n)
        return result.reshape(tuple(shape))

    def _span(self, key: Any, axis: int) -> tuple[Dim, Dim, int]:
        """(start, stop, step) of one axis, such that `slice_bounds` reads Python's meaning out of it."""
        n = self.shape[axis]
        if isinstance(key, _Whole):
            return self._one(key.position, n, axis)
        step = 1 if key.step is None else operator.index(key.step)
        if step == 0:
            refuse(f"index: the step of axis {axis} is 0")
        start = None if key.start is None else extent(key.start)
        stop = None if key.stop is None else extent(key.stop)
        if isinstance(n, int) and not isinstance(start, Expr) and not isinstance(stop, Expr):
            return self._static_span(slice(start, stop, step), n)
        if step < 0:
            refuse(f"index: a negative step over the symbolic axis {axis} ({n}); give that extent as a number")
        if isinstance(start, int) and start < 0:
            start = dims.maximum(dims.add(n, start), 0)
        if isinstance(stop, int) and stop < 0:
            stop = dims.maximum(dims.add(n, stop), 0)
        return start or 0, n if stop is None else stop, step

    @staticmethod
    def _static_span(key: slice, n: int) -> tuple[int, int, int]:
        begin, end, step = key.indices(n)
        if step > 0:
            return begin, max(end, begin), step
        return begin, end if end >= 0 else -n - 1, step  # -1 would count from the end

    def _one(self, position: Dim, n: Dim, axis: int) -> tuple[Dim, Dim, int]:
        """One position of an axis; where its extent is symbolic, a guard says that it is long enough."""
        if isinstance(n, int) and isinstance(position, int):
            if not -n <= position < n:
                refuse(f"index {position} is out of range for axis {axis} of {show_shape(self.shape)}")
            position %= n
        elif isinstance(position, int):
            needed = position + 1 if position >= 0 else -position
            longest = dims.maximum(n, needed)
            if longest != n:
                self.tracer.builder.guards[Guard(longest, n)] = None
            if position < 0:
                position = dims.add(n, position)
        return position, dims.add(position, 1), 1

    def __setitem__(self, key: Any, item: Any) -> None:
        mask = key if isinstance(key, Tensor | np.ndarray) and dtypes.of(key) is DType.BOOL else None
        if mask is not None:
            self._write_masked(mask, item)
            return
        keys = _normalised(key, self.shape)
        if any(_is_array(each) for each in keys):
            refuse("assignment through an index array (a scatter) is not supported; use where, or slices")
        target = self._basic(keys)
        value = self.tracer.cast(item, self.storage.value.dtype)
        while value.ndim > target.ndim and value.shape[0] == 1:
            value = value.reshape(value.shape[1:])
        target._assign(value)

    def _write_masked(self, mask: Any, item: Any) -> None:
        """x[mask] = number: a number alone has a place for every element whatever their count."""
        condition = self.tracer.lift(mask)
        value = self.tracer.cast(item, self.storage.value.dtype)
        if value.ndim or condition.shape != self.shape:
            refuse("assignment through a mask: expected a mask of the tensor's shape and a number; use where")
        self._assign(self.tracer.apply("where", condition, value, self))

    def _assign(self, item: Tensor) -> None:
        """Put a value into the storage through the chain of views, and let every other view see it."""
        fits = False
        with suppress(GraphError):
            fits = broadcast([self.shape, item.shape]) == self.shape
        if not fits:
            refuse(f"a value of shape {show_shape(item.shape)} does not fit {show_shape(self.shape)}")
        tracer, storage = self.tracer, self.storage
        value = item.value
        if value.shape and value.shape != self.shape:
            value = tracer.emit("expand", [value], {"shape": self.shape})
        parents = self._through(self.views[:-1])
        for view, parent in zip(reversed(self.views), reversed(parents), strict=False):
            value = view.put(tracer.builder, parent, value)
        if value.shape != storage.value.shape:
            value = tracer.emit("expand", [value], {"shape": storage.value.shape})
        storage.value = value
        storage.version += 1
        self._report_write()

    def _report_write(self) -> None:
        storage = self.storage
        reason = "a reshape may be a view or a copy, depending on the memory layout, and one side was written"
        for tied in storage.tied():
            tied.poison = f"{reason}: copy() before reshaping"
            if tied.input is not None:
                refuse(f"{reason}, so whether input {tied.input!r} changes is not known: copy() before reshaping")
        if storage.input is not None:
            self.tracer.written.setdefault(storage.input, storage)

    def store(self, result: Tensor) -> Tensor:
        """In-place operators and out=: this tensor's elements become the result's, in its own element type."""
        source, target = result.type.dtype, self.type.dtype
        if _KIND[source] > _KIND[target]:
            refuse(f"a result of type {source} cannot be stored in place in a tensor of type {target}; cast it")
        self[...] = result
        return self


_KIND = {dtype: 2 if dtype.is_float else 1 if dtype.is_integer else 0 for dtype in DType}


@dataclass(frozen=True)
class _Whole:
    """An int in an index: one position, its axis dropped."""

    position: Dim


def _is_array(key: Any) -> bool:
    return isinstance(key, Tensor | np.ndarray | list)


def extent(item: Any) -> Dim:
    """An int or a symbolic dimension. Raises TraceError for anything else."""
    if isinstance(item, Expr):
        return item
    try:
        return operator.index(item)
    except TypeError as error:
        if isinstance(error, AutofusionError):
            raise
        refuse(f"expected an int or a symbolic dimension, found {item!r}")


def _axis(axis: Any, rank: int) -> int:
    try:
        return axis_of(int(axis) if isinstance(axis, np.integer) else axis, rank)
    except GraphError as error:
        raise type(error)(f"{error}{location()}") from None


def _normalised(key: Any, shape: Shape) -> list[Any]:
    """The index as one entry an axis (slice, _Whole, array) plus None for new axes and the Ellipsis that was written.

    The Ellipsis stays in front of the full slices it stands for: it keeps index arrays apart, as in NumPy.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    result: list[Any] = []
    for each in keys:
        if each is None or each is Ellipsis or isinstance(each, slice) or _is_array(each):
            result.append(each)
        elif isinstance(each, bool | np.bool_):
            refuse("a bool as index: use None for a new axis, or where for a mask")
        else:
            result.append(_Whole(extent(each)))
    used = sum(each is not None and each is not Ellipsis for each in result)
    ellipses = [p for p, each in enumerate(result) if each is Ellipsis]
    if len(ellipses) > 1 or used > len(shape):
        found = "two Ellipses" if len(ellipses) > 1 else f"{used} indices"
        refuse(f"index: {found} for a tensor of shape {show_shape(shape)}")
    at = ellipses[0] + 1 if ellipses else len(result)
    result[at:at] = [slice(None)] * (len(shape) - used)
    return result


# -- results ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Leaf:
    """A result's place in the graph's outputs."""

    output: int


@dataclass(frozen=True)
class Traced:
    """A graph and how the function's results are put together from its outputs.

    The first `results` outputs are the function's; then comes one output with `writes` for every input that it changed.
    `structure` is the results' nesting of tuples, lists and dicts with a `Leaf` for each tensor.
    """

    graph: Graph
    structure: Any
    results: int

    @property
    def is_plain(self) -> bool:
        """Whether the result is the graph's only output, or the tuple of all its outputs in order."""
        if isinstance(self.structure, Leaf):
            return len(self.graph.outputs) == 1
        return self.structure == tuple(Leaf(n) for n in range(len(self.graph.outputs))) and self.results > 1

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """The function's result from values of the graph's outputs."""
        return _map(self.structure, lambda leaf, _: outputs[leaf.output], "")


def _map(item: Any, leaf: Callable[[Any, str], Any], path: str) -> Any:
    """Replace the leaves of nested tuples, lists and dicts; `leaf` gets the item and where it stands."""
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*(_map(each, leaf, f"{path}.{n}") for n, each in zip(item._fields, item, strict=True)))
    if isinstance(item, tuple | list):
        return type(item)(_map(each, leaf, f"{path}[{n}]") for n, each in enumerate(item))
    if isinstance(item, dict):
        return {name: _map(each, leaf, f"{path}[{name!r}]") for name, each in item.items()}
    return None if item is None else leaf(item, path)


def trace(function: Callable[..., Any], inputs: Sequence[Spec], name: str | None = None) -> Traced:
    """The graph of `function`, called with one tensor for each input.

    `inputs`: graph Values, or tuples (name, element type, shape[, strides in elements]); a dimension is an int, an
    expression, or its text ("n"). Results may be a tensor, an array (a constant), or tuples, lists and dicts of them.
    An input that the function writes (`x[...] = v`, `x += v`, also through views) gives one more output that `writes`
    it. Raises TraceError for what cannot be traced, GraphError for operators that do not fit.
    """
    tracer = Tracer(name or _name_of(function))
    with tracer.active():
        result = function(*[tracer.input(*_spec(each)) for each in inputs])
        count = 0

        def leaf(item: Any, path: str) -> Leaf:
            nonlocal count
            if not isinstance(item, Tensor | np.ndarray):
                found = f"{type(item).__name__} {item!r}"
                raise TraceError(f"result{path} is a {found}: expected a tensor; full((), value, dtype) makes one")
            tracer.builder.output(tracer.lift(item).value)
            count += 1
            return Leaf(count - 1)

        structure = _map(result, leaf, "")
        for written, storage in tracer.written.items():
            tracer.builder.output(storage.value, writes=written)
    return Traced(tracer.builder.build(), structure, count)


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() else "graph"


def _spec(each: Spec) -> tuple[str, DType, Shape, Shape | None]:
    if isinstance(each, Value):
        return each.name, each.dtype, each.shape, each.strides
    name, dtype, shape, *rest = each
    strides = rest[0] if rest and rest[0] is not None else None

    def read(part: Sequence[Any]) -> Shape:
        return tuple(dims.parse(d) if isinstance(d, str) else extent(d) for d in part)

    return name, element_type(dtype), read(shape), None if strides is None else read(strides)
