"""A plan bound to code: checks the arguments, fills the pointer table, launches, and runs what the host has to run."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from autofusion import dtypes
from autofusion.dims import evaluate
from autofusion.dtypes import Array, DType
from autofusion.errors import ArgumentError
from autofusion.graph.evaluate import bind_symbols, run_node
from autofusion.graph.ir import Graph
from autofusion.runtime import binding, pool
from autofusion.runtime.failures import Failures
from autofusion.superkernel.plan import HostCall, Launch, Place, Plan, Storage

PAGE = 4096


@dataclass
class Counts:
    """What the runtime did: counted, not declared."""

    calls: int = 0
    launches: int = 0
    fallbacks: int = 0


@dataclass(frozen=True)
class Function:
    """A compiled step of a kernel."""

    address: int
    owner: Any = field(repr=False, compare=False)  # keeps the code in memory


@dataclass(frozen=True)
class Bound:
    """A launch for certain sizes: the table that the native runtime walks, and how many chunks each of its tasks
    has."""

    native: pool.Plan
    chunks: Array


class Executable:
    """Calls of one plan. Safe to call from several threads; a call's workspace is its own."""

    def __init__(self, plan: Plan, graph: Graph, functions: Mapping[tuple[str, int], Function], workers: int) -> None:
        self.plan = plan
        self.graph = graph
        self.functions = dict(functions)
        self.workers = workers
        self.failures = Failures(plan.checks)
        self._slow = Counts()  # of the calls that went through Python
        self.slots = {name: number for number, name in enumerate(plan.storages)}
        self.inputs = graph.inputs
        self._constants = {c.value.name: graph.data[c.digest] for c in graph.constants}
        self._checks = sorted({call.check for call in plan.calls})  # the pointer table ends with their numbers
        self._nodes = graph.producers
        self._spare: list[Array] = []
        self._lock = threading.Lock()
        made = [s for s in plan.storages.values() if s.place in (Place.RESULT, Place.WORKSPACE)]
        self._made = sorted(made, key=lambda s: s.within is not None)  # what lies in results comes after them
        self._shapes = None if plan.symbols else [v.shape for v in self.inputs]  # known before any call
        self._bound: dict[Any, Bound] = {}

    @cached_property
    def direct(self) -> Any:
        """The call for arguments of just the compiled shapes, in native code; None where there is none."""
        if len(self.plan.segments) != 1 or not self.plan.launches:
            return None
        native = pool.Plan(self._phases(self.plan.launches[0], None)).native
        checks, owner = self._checks, self.functions
        fail = self.failures.fail
        return binding.bind(self.plan, self.graph, native, self.slots, checks, self.workers, fail, owner)

    def use_workers(self, count: int) -> None:
        """Later calls have so many workers where they do not say another number."""
        if count == self.workers:
            return
        before = self.__dict__.pop("direct", None)
        with self._lock:
            self.workers = count
            if before is not None:
                self._slow.calls += before.calls
                self._slow.launches += before.calls

    @property
    def counts(self) -> Counts:
        """What ran so far."""
        made = self.__dict__.get("direct")
        direct, slow = made.calls if made is not None else 0, self._slow
        return Counts(slow.calls + direct, slow.launches + direct, slow.fallbacks)

    # -- the table that the native runtime walks ---------------------------------------------------------------------
    def _bind(self, number: int, launch: Launch, sizes: Mapping[str, int]) -> Bound:
        """The launch for these sizes; the last ones are kept."""
        key = (number, tuple(sizes.values()))
        found = self._bound.get(key)
        if found is None:
            if len(self._bound) >= 64 + len(self.plan.launches):
                self._bound.clear()  # by another thread, perhaps, between any two lines here
            found = self._bound[key] = self._table(launch, sizes)
        return found

    def _table(self, launch: Launch, sizes: Mapping[str, int]) -> Bound:
        chunks = [int(evaluate(call.chunks, sizes)) for phase in launch.body for call in phase.body]
        return Bound(pool.Plan(self._phases(launch, sizes)), np.array(chunks, np.int64))

    def _phases(self, launch: Launch, sizes: Mapping[str, int] | None) -> tuple[tuple[pool.Task, ...], ...]:
        """The launch's tasks; each has a chunk slot of its own. Without sizes, scratch memory that depends on them is
        left to the call."""
        phases: list[tuple[pool.Task, ...]] = []
        slot = 0
        for phase in launch.body:
            tasks = []
            for call in phase.body:
                buffers = [self.slots[name] for name in call.arguments]
                buffers.append(len(self.slots) + self._checks.index(call.check))
                function = self.functions[call.kernel, call.step]
                known = isinstance(call.scratch, int) or sizes is not None
                scratch = int(evaluate(call.scratch, sizes or {})) if known else 0
                tasks.append(pool.Task(function.address, tuple(buffers), slot, scratch))
                slot += 1
            phases.append(tuple(tasks))
        return tuple(phases)

    # -- one call ----------------------------------------------------------------------------------------------------
    def __call__(
        self, arrays: Sequence[Array], workers: int | None = None, out: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Run on arrays in the order of the graph's inputs; arrays in the order of its outputs, new ones, or those
        arguments that the graph writes and that could be written where they are. `out`: arrays to use for outputs.

        Raises ArgumentError where an argument does not fit, IndexOutOfRange where a kernel met a bad index; arguments
        are then as they were: what may fail writes them last.
        """
        given = {value.name: array for value, array in zip(self.inputs, arrays, strict=True)}
        for write in self.plan.writes:
            if not given[write.argument].flags.writeable:
                raise ArgumentError(f"{write.argument}: the array is read-only, and the graph writes it")
        sizes = self._sizes(arrays)
        arrays = [self._fit(value, array, sizes) for value, array in zip(self.inputs, arrays, strict=True)]
        values: dict[str, Array] = {v.name: a for v, a in zip(self.inputs, arrays, strict=True)}
        values |= self._constants
        workspace = self._workspace(int(evaluate(self.plan.workspace, sizes)))
        placed = {
            w.storage: given[w.argument] for w in self.plan.writes if w.in_place and _alone(w.argument, given, values)
        }
        wanted = self._wanted(out, sizes)
        for name, array in wanted.items():
            if array.flags.c_contiguous and not any(np.may_share_memory(array, a) for a in (*arrays, *placed.values())):
                placed.setdefault(name, array)
        for storage in self._made:
            known = placed.get(storage.name)
            values[storage.name] = known if known is not None else self._storage(storage, sizes, workspace, values)
        try:
            self._run(values, sizes, workers or self.workers, workspace)
        finally:
            with self._lock:
                self._spare.append(workspace)
        for write in self.plan.writes:
            if write.storage not in placed:
                np.copyto(given[write.argument], values[write.storage])
        for name, array in wanted.items():
            if placed.get(name) is not array:
                np.copyto(array, values[name])
        with self._lock:
            self._slow.calls += 1
        return [wanted.get(output.name, values[output.name]) for output in self.graph.outputs]

    def _wanted(self, out: Sequence[Array | None] | None, sizes: Mapping[str, int]) -> dict[str, Array]:
        """The caller's arrays by output. Raises ArgumentError for one that does not fit."""
        if out is None:
            return {}
        outputs = self.graph.outputs
        if len(out) != len(outputs):
            raise ArgumentError(f"out: {len(out)} arrays given, expected {len(outputs)}")
        wanted: dict[str, Array] = {}
        for output, array in zip(outputs, out, strict=True):
            value = self.graph.values[output.name]
            shape = tuple([int(evaluate(extent, sizes)) for extent in value.shape])
            if array is None:
                continue
            if not isinstance(array, np.ndarray) or array.shape != shape or dtypes.of(array) is not value.dtype:
                found = (
                    f"{dtypes.of(array)}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
                )
                raise ArgumentError(f"out: {output.name}: expected an array {value.dtype}{list(shape)}, found {found}")
            if not array.flags.writeable:
                raise ArgumentError(f"out: {output.name}: the array is read-only")
            if output.name in wanted or any(np.may_share_memory(array, other) for other in wanted.values()):
                raise ArgumentError(f"out: {output.name}: two results have one memory")
            wanted[output.name] = array
        return wanted

    def _run(self, values: dict[str, Array], sizes: dict[str, int], workers: int, workspace: Array) -> None:
        symbols = np.array([sizes[name] for name in self.plan.symbols], np.int64)
        addresses = [values[name].__array_interface__["data"][0] for name in self.slots]
        pointers = np.array(addresses + self._checks, np.uint64)
        number = 0
        for segment in self.plan.segments:
            if isinstance(segment, HostCall):
                self._host(segment, values, sizes)
                continue
            bound = self._bind(number, segment, sizes)
            number += 1
            failed = bound.native.launch(pointers, symbols, bound.chunks, workers)
            with self._lock:
                self._slow.launches += 1
            if failed is not None:
                self.failures.fail(*failed)

    def _host(self, call: HostCall, values: dict[str, Array], sizes: dict[str, int]) -> None:
        node = self._nodes[call.operator]
        values[call.output][...] = run_node(node, [self._value(name, values, sizes) for name in node.inputs], sizes)
        with self._lock:
            self._slow.fallbacks += 1

    def _value(self, name: str, values: Mapping[str, Array], sizes: Mapping[str, int]) -> Array:
        """A stored value, or a view or source made of stored ones."""
        if name in values:
            return values[name]
        node = self._nodes[name]
        return run_node(node, [self._value(each, values, sizes) for each in node.inputs], sizes)

    def _sizes(self, arrays: Sequence[Array]) -> dict[str, int]:
        """The values of the open dimensions. Raises ArgumentError where the arguments' shapes do not fit."""
        shapes = [a.shape for a in arrays]
        return {} if shapes == self._shapes else bind_symbols(self.inputs, shapes, self.graph.guards)

    # -- arguments and memory ----------------------------------------------------------------------------------------
    def _fit(self, value: Any, array: Any, sizes: Mapping[str, int]) -> Array:
        """The array as the code reads it: the right type, and the strides that were compiled in."""
        if dtypes.of(array) is not value.dtype:
            raise ArgumentError(f"{value.name}: element type {dtypes.of(array)}, expected {value.dtype}")
        if value.strides is not None:
            wanted = tuple([int(evaluate(s, sizes)) * value.dtype.size for s in value.strides])
            steps = zip(array.shape, array.strides, wanted, strict=True)
            if array.size and any(extent > 1 and step != want for extent, step, want in steps):
                raise ArgumentError(f"{value.name}: strides {array.strides}, compiled for {wanted} bytes")
            return array  # type: ignore[no-any-return]
        return array if array.flags.c_contiguous else np.array(array, order="C")

    def _workspace(self, size: int) -> Array:
        """Scratch global memory of at least `size` bytes; freed ones are used again."""
        with self._lock:
            for position, spare in enumerate(self._spare):
                if spare.size >= size + PAGE:
                    return self._spare.pop(position)
            self._spare.clear()
        return binding.empty((size + PAGE,), DType.UINT8)

    @staticmethod
    def _start(workspace: Array) -> int:
        """Where storages begin: at a page."""
        return -int(workspace.__array_interface__["data"][0]) % PAGE

    @staticmethod
    def _storage(storage: Storage, sizes: Mapping[str, int], workspace: Array, values: Mapping[str, Array]) -> Array:
        shape: Any = tuple([int(evaluate(d, sizes)) for d in storage.shape]) if sizes else storage.shape
        if storage.place is Place.RESULT:
            return binding.empty(shape, storage.dtype)
        start, memory = int(evaluate(storage.offset, sizes)), workspace
        if storage.within is None:
            start += Executable._start(workspace)
        else:
            memory = values[storage.within].reshape(-1).view(np.uint8)
        count = math.prod(shape) * storage.dtype.size
        return memory[start : start + count].view(storage.dtype.numpy).reshape(shape)


def _alone(argument: str, given: Mapping[str, Array], values: Mapping[str, Array]) -> bool:
    """Whether an argument is read where it lies and shares no memory with another."""
    array = given[argument]
    others = (other for name, other in given.items() if name != argument)
    return values[argument] is array and not any(np.may_share_memory(array, other) for other in others)
