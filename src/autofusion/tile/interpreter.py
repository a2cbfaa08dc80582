"""Runs a tile Program with NumPy: the oracle between the reference evaluator and compiled code.

Memory is as a core has it: on-chip buffers belong to a chunk and start poisoned, workspace lives from step to step, and
bodies of one step run side by side, exchanging tiles through rings. What moves between spaces is counted.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from autofusion import dims, text
from autofusion.dims import Dim, Expr
from autofusion.dtypes import Array, DType, of
from autofusion.errors import ArgumentError, ExecutionError, IndexOutOfRange
from autofusion.kernel.ir import (
    Access,
    Axis,
    Contract,
    Copy,
    Fold,
    Gather,
    Literal,
    Map,
    Operand,
    Param,
    Role,
    Scan,
    reduced_of,
)
from autofusion.ops import TABLE
from autofusion.ops.elementwise import cast_values
from autofusion.ops.folds import FOLDS
from autofusion.target import GM
from autofusion.tile.ir import Buffer, Guard, Let, Loop, Parallel, Program, Put, Ring, Step, Take

Order: TypeAlias = Callable[[int], Iterable[int]]
_EXACT_FOLDS = ("sum", "prod")  # rounding depends on the order: these accumulate in double precision


@dataclass
class Run:
    """What a run did.

    `moved`: bytes by (source space, target space). `gm_read`, `gm_written`: the part that touches global memory.
    `peak`: bytes of the buffers and ring slots that one chunk touched, by on-chip space, the largest chunk's.
    `executed`: statements by unit.
    """

    moved: Counter[tuple[str, str]] = field(default_factory=Counter)
    peak: dict[str, int] = field(default_factory=dict)
    executed: Counter[str] = field(default_factory=Counter)

    @property
    def gm_read(self) -> int:
        return sum(count for (source, _), count in self.moved.items() if source == GM)

    @property
    def gm_written(self) -> int:
        return sum(count for (_, target), count in self.moved.items() if target == GM)


def shuffled(seed: int) -> Order:
    """An order of chunks that no core would choose."""

    def order(count: int) -> Iterable[int]:
        chunks = list(range(count))
        random.Random(seed).shuffle(chunks)
        return chunks

    return order


def run(
    program: Program,
    arguments: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    order: Order | None = None,
) -> Run:
    """Execute `program` on arrays by parameter name, writing the OUT ones in place.

    Arrays have their parameter's shape and element type; their NumPy strides are what addresses go by, so a strided
    parameter is a strided array. `sizes`: symbolic extents that no parameter's shape gives. `order`: from the number of
    chunks of a parallel loop, the order to run them in. Raises ArgumentError for arguments that do not fit,
    IndexOutOfRange for a gathered position, ExecutionError for any other access outside its tensor and for deadlock.
    """
    bound = bind_sizes(program.params, arguments, sizes or {})
    machine = _Machine(program, arguments, bound, order or range)
    with np.errstate(all="ignore"):
        for step in program.steps:
            machine.step(step)
    return machine.run


def bind_sizes(params: Sequence[Param], arguments: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, int]:
    """The symbolic extents, from the arguments' shapes and `sizes`. Raises ArgumentError."""
    bound = dict(sizes)
    for param in params:
        if param.name not in arguments:
            raise ArgumentError(f"{param.name}: no argument is given")
        array = arguments[param.name]
        if of(array) is not param.dtype or array.ndim != len(param.shape):
            raise ArgumentError(f"{param.name}: {of(array)}{list(array.shape)}, expected {text.show(param)}")
        for dim, extent in zip(param.shape, array.shape, strict=True):
            if isinstance(dim, Expr) and dim.text.isidentifier():
                bound.setdefault(dim.text, extent)
    for param in params:
        wanted = tuple(int(dims.evaluate(dim, bound)) for dim in param.shape)
        if arguments[param.name].shape != wanted:
            raise ArgumentError(f"{param.name}: shape {list(arguments[param.name].shape)}, expected {list(wanted)}")
        if param.role is Role.OUT and not arguments[param.name].flags.writeable:
            raise ArgumentError(f"{param.name}: the array is read-only, but the program writes it")
    return bound


def poisoned(shape: tuple[int, ...], dtype: DType) -> Array:
    """A fresh array that shows when it is read unwritten."""
    if dtype.is_float:
        return np.full(shape, np.nan, dtype.numpy)
    return np.full(shape, True if dtype is DType.BOOL else 0x5A, dtype.numpy)


# -- index grids -----------------------------------------------------------------------------------------------------
class _Term(NamedTuple):
    """One index: `base + factor * axis`; no axis where `position` is None."""

    base: Dim
    position: int | None
    factor: int


@lru_cache(maxsize=1 << 14)
def _slices(index: tuple[Dim, ...], names: tuple[str, ...]) -> tuple[_Term, ...] | None:
    """The index as slices, which NumPy reads without a copy; None where it needs a grid of positions."""
    terms: list[_Term] = []
    for dim in index:
        used = sorted(dims.symbols(dim) & set(names)) if isinstance(dim, Expr) else []
        if not used:
            terms.append(_Term(dim, None, 0))
            continue
        factor = dims.coefficient_of(dim, used[0])
        position = names.index(used[0])
        if len(used) > 1 or not isinstance(factor, int) or factor < 1 or any(t.position == position for t in terms):
            return None
        terms.append(_Term(dims.substitute(dim, {used[0]: 0}), position, factor))
    return tuple(terms)


class _Grid:
    """The points of a statement: its axes with their extents now, and the scalars around it."""

    def __init__(self, axes: Sequence[Axis], scalars: Mapping[str, int]) -> None:
        self.names = tuple(a.name for a in axes)
        self.shape = tuple(max(0, int(dims.evaluate(a.extent, scalars))) for a in axes)
        self.points = math.prod(self.shape)
        self.scalars = scalars

    def value(self, dim: Dim) -> Any:
        """A dim at every point: an int, or an array that broadcasts to the grid."""
        if isinstance(dim, int):
            return dim
        used = dims.symbols(dim)
        along: dict[str, Any] = dict(self.scalars)
        for position, (name, extent) in enumerate(zip(self.names, self.shape, strict=True)):
            if name in used:
                around = [1] * len(self.names)
                around[position] = extent
                along[name] = np.arange(extent, dtype=np.int64).reshape(around)
        return dims.evaluate(dim, along)

    def keys(self, index: tuple[Dim, ...], shape: tuple[int, ...]) -> tuple[Any, ...] | None:
        """Slices and ints for a sliceable index, after the bounds check; None for others."""
        terms = _slices(index, self.names)
        if terms is None:
            return None
        found: list[Any] = []
        for term, extent in zip(terms, shape, strict=True):
            base = int(dims.evaluate(term.base, self.scalars))
            count = 1 if term.position is None else self.shape[term.position]
            last = base + term.factor * (count - 1)
            if self.points and (base < 0 or last >= extent):
                raise _Outside(base if base < 0 else last, extent)
            if term.position is None:
                found.append(base if self.points else slice(0, 0))
            else:
                found.append(slice(base, last + 1, term.factor) if self.points else slice(0, 0))
        return tuple(found)

    def positions(self, index: Sequence[Any], shape: tuple[int, ...]) -> tuple[Any, ...]:
        """Arrays of positions (given ones stay as they are), after the bounds check."""
        found = []
        for each, extent in zip(index, shape, strict=True):
            at = self.value(each) if isinstance(each, int | Expr) else each
            values = np.asarray(at)
            if values.size and self.points and (values.min() < 0 or values.max() >= extent):
                raise _Outside(int(values.min() if values.min() < 0 else values.max()), extent)
            found.append(at)
        return tuple(found)


class _Outside(Exception):
    """A position outside its axis."""

    def __init__(self, position: int, extent: int) -> None:
        super().__init__(f"position {position} is outside an axis of {extent}")


def _fetch(array: Array, index: tuple[Dim, ...], grid: _Grid) -> Array:
    """The elements at every point of the grid; broadcasts to its shape."""
    if not grid.points:
        return np.empty(grid.shape, array.dtype)
    keys = grid.keys(index, array.shape)
    if keys is None:
        return np.asarray(array[grid.positions(index, array.shape)])
    found = np.asarray(array[keys])
    order = [t.position for t in _slices(index, grid.names) or () if t.position is not None]
    found = found.transpose(np.argsort(order)) if order else found
    return found[tuple(slice(None) if p in order else None for p in range(len(grid.names)))]


def _store(array: Array, index: tuple[Dim, ...], grid: _Grid, values: Array) -> None:
    """Write values (broadcasting to the grid) to the elements at every point."""
    if not grid.points:
        return
    values = np.broadcast_to(values, grid.shape)
    keys = grid.keys(index, array.shape)
    if keys is None:
        array[grid.positions(index, array.shape)] = values
        return
    order = [t.position for t in _slices(index, grid.names) or () if t.position is not None]
    for position, extent in reversed(tuple(enumerate(grid.shape))):
        if position not in order:
            if extent > 1:
                raise ExecutionError(f"the target does not depend on axis {grid.names[position]}")
            values = values.take(0, axis=position)
    ranks = [sorted(order).index(position) for position in order]
    array[keys] = values.transpose(ranks) if ranks else values


# -- the machine -----------------------------------------------------------------------------------------------------
Task: TypeAlias = Generator[None, None, None]


class _Core:
    """A chunk's own memory: on-chip buffers by name, made poisoned when first touched, and rings."""

    def __init__(self, rings: Sequence[Ring]) -> None:
        self.arrays: dict[str, Array] = {}
        self.queues: dict[str, deque[Array]] = {ring.name: deque() for ring in rings}


class _Machine:
    def __init__(self, program: Program, arguments: Mapping[str, Array], sizes: dict[str, int], order: Order) -> None:
        self.program = program
        self.sizes = sizes
        self.order = order
        self.run = Run()
        self.progress = 0
        self.rings = {ring.name: ring for step in program.steps for ring in step.rings}
        self.spaces = {name: program.space_of(name) for name in program.tensors}
        self.memory: dict[str, Array] = {p.name: arguments[p.name] for p in program.params}
        for buffer in program.workspace:
            self.memory[buffer.name] = poisoned(self._shape(buffer), buffer.dtype)

    def _shape(self, tensor: Buffer | Ring) -> tuple[int, ...]:
        return tuple(int(dims.evaluate(dim, self.sizes)) for dim in tensor.shape)

    def _bytes(self, tensor: Buffer | Ring) -> int:
        return math.prod(self._shape(tensor)) * tensor.dtype.size

    def array(self, name: str, core: _Core) -> Array:
        """The array behind a name, for one core."""
        if name in self.memory:
            return self.memory[name]
        if name not in core.arrays:
            buffer = self.program.buffers.get(name)
            if buffer is None:
                raise ExecutionError(f"{name} is not declared")
            core.arrays[name] = poisoned(self._shape(buffer), buffer.dtype)
        return core.arrays[name]

    def moved(self, source: str, target: str, count: int) -> None:
        self.run.moved[source, target] += count

    # -- control -----------------------------------------------------------------------------------------------------
    def step(self, step: Step) -> None:
        """All chunks of a step. Chunk c of every body runs on one core, side by side."""
        bodies = step.bodies
        for position in range(max((len(b.body) for b in bodies), default=0)):
            loops = [(b.unit, b.body[position]) for b in bodies if position < len(b.body)]
            counts = {int(dims.evaluate(loop.count, self.sizes)) for _, loop in loops}
            if len(counts) != 1:
                raise ExecutionError(f"bodies of one step have different numbers of chunks: {sorted(counts)}")
            for chunk in self.order(max(0, counts.pop())):
                self._chunk(step, loops, chunk)

    def _chunk(self, step: Step, loops: list[tuple[str, Parallel]], chunk: int) -> None:
        core = _Core(step.rings)
        tasks = [(u, self._lines(u, p.body, {**self.sizes, p.var: chunk}, core)) for u, p in loops]
        while tasks:
            before = self.progress
            tasks = [(unit, task) for unit, task in tasks if self._advance(task)]
            if tasks and self.progress == before:
                raise ExecutionError(f"deadlock: {' and '.join(unit for unit, _ in tasks)} wait for each other's tiles")
        left = [name for name, queue in core.queues.items() if queue]
        if left:
            raise ExecutionError(f"ring {left[0]} still holds {len(core.queues[left[0]])} tiles at the end of a chunk")
        self._measure(step, core)

    def _advance(self, task: Task) -> bool:
        """Run until the task must wait. False where it has ended."""
        try:
            next(task)
        except StopIteration:
            self.progress += 1
            return False
        return True

    def _measure(self, step: Step, core: _Core) -> None:
        used: Counter[str] = Counter()
        for name, array in core.arrays.items():
            used[self.spaces[name]] += array.nbytes
        for ring in step.rings:
            if ring.space != GM:
                used[ring.space] += ring.depth * self._bytes(ring)
        for space, size in used.items():
            self.run.peak[space] = max(self.run.peak.get(space, 0), size)

    def _lines(self, unit: str, body: Sequence[Any], scalars: dict[str, int], core: _Core) -> Task:
        for line in body:
            if isinstance(line, Let):
                scalars[line.name] = int(dims.evaluate(line.value, scalars))
            elif isinstance(line, Loop):
                begin, end = (int(dims.evaluate(d, scalars)) for d in (line.begin, line.end))
                for value in range(begin, end, line.step):
                    yield from self._lines(unit, line.body, {**scalars, line.var: value}, core)
            elif isinstance(line, Guard):
                if dims.evaluate(line.smaller, scalars) <= dims.evaluate(line.larger, scalars):
                    yield from self._lines(unit, line.body, dict(scalars), core)
            elif isinstance(line, Put | Take):
                yield from self._exchange(line, core)
                self.run.executed[unit] += 1
            else:
                self._execute(line, scalars, core)
                self.run.executed[unit] += 1
                self.progress += 1

    def _exchange(self, line: Put | Take, core: _Core) -> Task:
        ring, queue = self.rings[line.ring], core.queues[line.ring]
        array = self.array(line.buffer, core)
        while len(queue) >= ring.depth if isinstance(line, Put) else not queue:
            yield
        if array.shape != self._shape(ring):
            raise ExecutionError(f"{text.show(line)}: the buffer is {list(array.shape)}, a slot {list(ring.shape)}")
        if isinstance(line, Put):
            queue.append(cast_values(array, ring.dtype).copy())
            self.moved(self.spaces[line.buffer], ring.space, self._bytes(ring))
        else:
            array[...] = cast_values(queue.popleft(), of(array))
            self.moved(ring.space, self.spaces[line.buffer], self._bytes(ring))
        self.progress += 1

    # -- statements --------------------------------------------------------------------------------------------------
    def _execute(self, line: Any, scalars: Mapping[str, int], core: _Core) -> None:
        try:
            _RULES[type(line)](self, line, scalars, core)
        except _Outside as error:
            raise ExecutionError(f"{text.show(line)}: {error}") from None
        except IndexOutOfRange as error:
            raise IndexOutOfRange(f"{text.show(line)}: {error}") from None
        except ExecutionError as error:
            raise ExecutionError(f"{text.show(line)}: {error}") from None

    def read(self, operand: Operand, grid: _Grid, core: _Core) -> Array:
        """An operand at every point of the grid."""
        if isinstance(operand, Literal):
            value = operand.value
            return cast_values(np.asarray(grid.value(value) if isinstance(value, Expr) else value), operand.dtype)
        return _fetch(self.array(operand.name, core), operand.index, grid)

    def write(self, target: Access, grid: _Grid, values: Array, core: _Core) -> None:
        """Store values, rounded to the type of the tensor."""
        array = self.array(target.name, core)
        _store(array, target.index, grid, cast_values(values, of(array)))

    def map(self, line: Map, scalars: Mapping[str, int], core: _Core) -> None:
        grid = _Grid(line.axes, scalars)
        row = TABLE.get(line.op)
        operands = [_wide(self.read(o, grid, core)) for o in line.operands]
        attributes = {"dtype": line.dtype} if "dtype" in row.attributes else {}
        self.write(line.target, grid, cast_values(np.asarray(row.reference(*operands, **attributes)), line.dtype), core)

    def copy(self, line: Copy, scalars: Mapping[str, int], core: _Core) -> None:
        grid = _Grid(line.axes, scalars)
        values = self.read(line.source, grid, core)
        if line.scale != 1.0:
            values = values.astype(np.float32) * np.float32(line.scale)
        for op in line.through:
            values = np.asarray(TABLE.get(op).reference(values))
        self.write(line.target, grid, values, core)
        if isinstance(line.source, Access):
            source, target = self.spaces[line.source.name], self.spaces[line.target.name]
            counted = line.source.name if source == GM else line.target.name
            self.moved(source, target, grid.points * self.program.tensors[counted].dtype.size)

    def fold(self, line: Fold, scalars: Mapping[str, int], core: _Core) -> None:
        whole = _Grid((*line.axes, *line.reduced), scalars)
        grid = _Grid(line.axes, scalars)
        row = FOLDS[line.fold]
        values = _state(np.broadcast_to(self.read(line.operand, whole, core), whole.shape), line)
        folded = tuple(range(len(line.axes), len(whole.shape)))
        if any(whole.shape[axis] == 0 for axis in folded):
            result = np.full(grid.shape, row.identity(line.dtype), values.dtype)
        else:
            result = np.asarray(row.reference(values, axis=folded))
        if line.accumulate:
            held = _state(self.read(line.target, grid, core), line)
            result = TABLE.get(row.step).reference(held, result)
        self.write(line.target, grid, cast_values(result, line.dtype), core)

    def scan(self, line: Scan, scalars: Mapping[str, int], core: _Core) -> None:
        grid = _Grid(line.axes, scalars)
        values = _state(np.broadcast_to(self.read(line.operand, grid, core), grid.shape), line)
        result = FOLDS[line.fold].running(values, axis=grid.names.index(line.along))
        self.write(line.target, grid, cast_values(np.asarray(result), line.dtype), core)

    def contract(self, line: Contract, scalars: Mapping[str, int], core: _Core) -> None:
        grid = _Grid(line.axes, scalars)
        left, right = (self._factor(access, line, scalars, core) for access in (line.left, line.right))
        result = _products(left, right, line, grid)
        if line.accumulate:
            result = result + self.read(line.target, grid, core).astype(result.dtype)
        self.write(line.target, grid, cast_values(result, line.dtype), core)

    def _factor(
        self, access: Access, line: Contract, scalars: Mapping[str, int], core: _Core
    ) -> tuple[Array, list[str]]:
        """An operand over the axes that it uses and the depth, in double precision, and these axes' names."""
        used = {name for index in access.index for name in dims.symbols(index)}
        axes = [*(a for a in line.axes if a.name in used), *line.reduced]
        grid = _Grid(axes, scalars)
        values = np.broadcast_to(self.read(access, grid, core), grid.shape)
        wide = np.float64 if line.dtype.is_float else line.dtype.numpy
        return values.astype(wide), list(grid.names)

    def gather(self, line: Gather, scalars: Mapping[str, int], core: _Core) -> None:
        grid = _Grid(line.axes, scalars)
        source = self.array(line.source.name, core)
        extent = int(dims.evaluate(line.extent, scalars))
        at = np.broadcast_to(self.read(line.position, grid, core).astype(np.int64), grid.shape)
        bad = (at < (-extent if line.wraps else 0)) | (at >= extent)
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            position = int(np.broadcast_to(grid.value(line.ordinal), grid.shape).flat[first])
            raise IndexOutOfRange(f"index {at.flat[first]} at position {position} is outside axis of {extent}")
        index: list[Any] = list(line.source.index)
        index[line.axis] = np.where(at < 0, at + extent, at)
        values = source[grid.positions(index, source.shape)] if grid.points else np.empty(grid.shape, source.dtype)
        self.write(line.target, grid, cast_values(values, line.dtype), core)
        space, target = self.spaces[line.source.name], self.spaces[line.target.name]
        self.moved(space, target, grid.points * of(source).size)


_RULES: dict[type, Callable[..., None]] = {
    Map: _Machine.map,
    Copy: _Machine.copy,
    Fold: _Machine.fold,
    Scan: _Machine.scan,
    Contract: _Machine.contract,
    Gather: _Machine.gather,
}


def _wide(values: Array) -> Array:
    """Reduced floats as float32, in which arithmetic on them is done."""
    return values.astype(np.float32) if of(values).is_reduced else values


def _state(values: Array, line: Fold | Scan) -> Array:
    """Elements in the fold's type; wider where each step would round."""
    typed = cast_values(values, line.dtype)
    if line.dtype.is_float and line.fold in _EXACT_FOLDS:
        return typed.astype(np.float64)
    return _wide(typed)


def _products(left: tuple[Array, list[str]], right: tuple[Array, list[str]], line: Contract, grid: _Grid) -> Array:
    """The sum of products as one (batched) matrix product, over the statement's axes in order."""
    (a, in_a), (b, in_b) = left, right
    batch = [n for n in grid.names if n in in_a and n in in_b]
    rows = [n for n in grid.names if n in in_a and n not in in_b]
    columns = [n for n in grid.names if n in in_b and n not in in_a]
    depth = [x.name for x in reduced_of(line)]
    extents = dict(zip(in_a, a.shape, strict=True)) | dict(zip(in_b, b.shape, strict=True))

    def shaped(values: Array, names: list[str], *groups: list[str]) -> Array:
        ordered = values.transpose([names.index(n) for group in groups for n in group])
        sizes = [extents[n] for n in groups[0]]
        return ordered.reshape(sizes + [math.prod(extents[n] for n in g) for g in groups[1:]])

    product = np.matmul(shaped(a, in_a, batch, rows, depth), shaped(b, in_b, batch, depth, columns))
    made = [*batch, *rows, *columns]
    product = product.reshape([extents[n] for n in made])
    product = product.transpose([made.index(n) for n in grid.names if n in made])
    around = tuple(slice(None) if n in made else None for n in grid.names)
    return np.broadcast_to(product[around], grid.shape)
