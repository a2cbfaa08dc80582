"""Memory and calls as the native runtime has them; without it, NumPy's memory and calls through Python.

empty((1024, 1024), DType.FLOAT32)  an array over memory that is used again when nobody holds it
bind(plan, graph, …)                a callable for arguments of just the compiled shapes, or None
class Compiled(Callable)            an object that tries such callables first when it is called
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from autofusion import dtypes
from autofusion.dims import Dim, Expr, product
from autofusion.dtypes import Array, DType
from autofusion.graph.ir import Graph, Value
from autofusion.runtime import pool
from autofusion.runtime.sizes import Table
from autofusion.superkernel.plan import Launch, Place, Plan

MOST_RANK = 16  # of a tensor in a native call
POOLED_BYTES = 1 << 16  # from here on; NumPy has its own cache for small arrays


class PlainCallable:
    """What `_native.Callable` is, in Python: `direct` are native calls that are tried first, in this order; `_call` of
    the subclass does all else."""

    direct: tuple[Any, ...] = ()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if not options:
            for call in self.direct:
                result = call(*arguments)
                if result is not None:
                    return result
        return self._call(*arguments, **options)

    def _call(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


if TYPE_CHECKING:
    Callable = PlainCallable
else:
    Callable = PlainCallable if pool.native() is None else pool.native().Callable


def empty(shape: tuple[int, ...], dtype: DType) -> Array:
    """A new array of unspecified contents. Raises MemoryError."""
    size = math.prod(shape) * dtype.size
    native = pool.native()
    if size < POOLED_BYTES or native is None:
        return np.empty(shape, dtype.numpy)
    return np.ndarray(shape, dtype.numpy, native.take_block(size))


def free_memory() -> int:
    """Give the memory that is kept for later results back to the system; how many bytes that was."""
    native = pool.native()
    return native.free_blocks() if native else 0


def fresh_blocks() -> int:
    """How often memory for results and workspaces was asked of the system so far; 0 without the native runtime."""
    native = pool.native()
    return native.fresh_blocks() if native else 0


def like(example: Any, array: Array) -> Any:
    """The array as the example's library has it, over the same memory; the array itself where that has no exchange
    table of DLPack's."""
    native = pool.native()
    if native is None or isinstance(example, np.ndarray):
        return array
    dtype = dtypes.of(array)
    strides = tuple([step // dtype.size for step in array.strides])
    raw = array if dtype is not DType.BFLOAT16 else array.view(np.uint16)
    tensor = native.as_tensor(example, raw, (0, *_type(dtype), array.shape, strides, False))
    return array if tensor is None else tensor


def bind(
    plan: Plan,
    graph: Graph,
    native_plan: Any,
    slots: Mapping[str, int],
    checks: list[int],
    workers: int,
    fail: Any,
    owner: Any,
) -> Any:
    """A callable for arguments of just the compiled shapes, whatever the open sizes among them are; None where the plan
    is more than one launch, copies something when that is over, or a size is told by no argument.

    It returns a result, or a tuple of several; None where an argument is not just as compiled, or one that is written
    shares memory with another, and then nothing ran.
    """
    native = pool.native()
    simple = len(plan.segments) == 1 and isinstance(plan.segments[0], Launch)
    steps = [step for value in graph.inputs for step in value.strides or ()]
    forwards = all(isinstance(step, int) and step >= 0 for step in steps)
    simple = simple and all(write.in_place and forwards for write in plan.writes)
    small = len(slots) <= 4096 and all(len(value.shape) <= MOST_RANK for value in graph.values.values())
    if native is None or native_plan is None or not simple or not small:
        return None
    storages = plan.storages
    results = [output.name for output in graph.outputs]
    made = [s.name for s in storages.values() if s.place is Place.RESULT]
    if len(set(results)) != len(results) or set(made) != set(results) or not results:
        return None
    sources = _sources(plan.symbols, graph)
    if sources is None or any(value.name not in slots for value in graph.inputs):
        return None
    pointers = [0] * len(slots) + checks
    for constant in graph.constants:
        if constant.value.name in slots:
            pointers[slots[constant.value.name]] = graph.data[constant.digest].__array_interface__["data"][0]
    table = Table(plan.symbols) if plan.symbols else None
    place = table.place if table else _number
    values = graph.values
    inputs = tuple(_tensor(value, slots[value.name], table) for value in graph.inputs)
    outputs = tuple(_tensor(values[name], slots[name], table) for name in results)
    kept = [s for s in storages.values() if s.place is Place.WORKSPACE]
    lent = tuple((slots[s.name], slots[s.within], place(s.offset)) for s in kept if s.within is not None)
    within = tuple((slots[s.name], place(s.offset)) for s in kept if s.within is None)
    positions = {value.name: number for number, value in enumerate(graph.inputs)}
    written = {write.storage: positions[write.argument] for write in plan.writes}
    chunks = tuple(place(call.chunks) for call in plan.calls)
    scratch = tuple(place(call.scratch) for call in plan.calls if isinstance(call.scratch, Expr))
    workspace = place(plan.workspace)
    guards = tuple(place(side) for guard in graph.guards for side in (guard.left, guard.right)) if table else ()
    return native.create_call(
        native_plan,
        tuple(pointers),
        (tuple(table.first), sources, tuple(table.steps), guards) if table else (),
        chunks,
        scratch,
        workers,
        inputs,
        outputs,
        tuple(written.get(name, -1) for name in results),
        tuple(chain.from_iterable(within)),
        workspace,
        tuple(chain.from_iterable(lent)),
        fail,
        (owner, graph.data),
    )


def _sources(symbols: tuple[str, ...], graph: Graph) -> tuple[int, ...] | None:
    """Of each symbol, the argument and the axis that tell it; None where one is told by none."""
    found: dict[str, tuple[int, int]] = {}
    for number, value in enumerate(graph.inputs):
        for axis, extent in enumerate(value.shape):
            if isinstance(extent, Expr) and extent.name:
                found.setdefault(extent.name, (number, axis))
    if not all(name in found for name in symbols):
        return None
    return tuple(chain.from_iterable(found[name] for name in symbols))


def _tensor(value: Value, slot: int, table: Table | None) -> tuple[Any, ...]:
    """The value as `create_call` reads it; with open extents or strides as places in the table."""
    strides = value.strides
    if strides is None:
        strides = tuple(product(value.shape[d + 1 :]) for d in range(len(value.shape)))
    lengths = (value.shape, strides)
    open_ = any(isinstance(each, Expr) for shape in lengths for each in shape)
    shape, steps = [tuple(map(table.place if table and open_ else _number, each)) for each in lengths]
    return (slot, *_type(value.dtype), shape, steps, open_)


def _type(dtype: DType) -> tuple[Any, int, int]:
    """The type as NumPy has it, DLPack's code of its kind, and the bytes of an element."""
    if dtype is DType.BOOL:
        code = 6
    elif dtype is DType.BFLOAT16:
        code = 4
    else:
        code = 2 if dtype.is_float else int(not dtype.is_signed)
    return dtype.numpy, code, dtype.size


def _number(dim: Dim) -> int:
    assert isinstance(dim, int)
    return dim
