"""Launches of Ascend C kernels: on a device where there is one, else on the AI Core model.

AscendExecutable ── Machine ── OnDevice    ACL (runtime/acl.py); untested on hardware
                            └─ Modelled    the AI Core model (runtime/aicore.py)
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from autofusion.dims import evaluate
from autofusion.dtypes import Array
from autofusion.errors import ArgumentError
from autofusion.graph import evaluate as reference
from autofusion.graph import index
from autofusion.graph.ir import Graph
from autofusion.kinds import Kind
from autofusion.runtime import acl, aicore
from autofusion.runtime.executable import Executable
from autofusion.superkernel.plan import HostCall, Place, Plan
from autofusion.targets.ascend.host import STATUS, STATUS_BYTES, WORKSPACE, values_of
from autofusion.targets.ascend.render import Source


class Machine(Protocol):
    """What runs one launch. `arrays` has one array for each pointer of the entry, in its order; results are written in
    place. `tiling`: the bytes of the tiling data. `blocks`: cores. A model says what the launch did."""

    def launch(self, source: Source, arrays: Sequence[Array], tiling: bytes, blocks: int) -> aicore.Report | None: ...


class Modelled:
    """The AI Core model: every source is compiled once."""

    def __init__(self, arch: int) -> None:
        self.arch = arch
        self._models: dict[str, aicore.Model] = {}

    def prepare(self, source: Source) -> None:
        """Compile it. Raises ModelBuildError."""
        if source.text not in self._models:
            self._models[source.text] = aicore.build(source.text, [source.entry], self.arch)

    def launch(self, source: Source, arrays: Sequence[Array], tiling: bytes, blocks: int) -> aicore.Report:
        self.prepare(source)
        return self._models[source.text].run(source.entry, arrays, tiling, blocks)


class OnDevice:
    """A device through ACL. Binaries come from `store`; a loaded one stays loaded for as long as its device is open.

    The arrays are the host's, so every launch copies: arguments and constants to the device, results back, and both
    ways what later segments of the plan may need.
    """

    def __init__(self, arch: int, plan: Plan, store: acl.Store | None = None) -> None:
        self.arch, self.store = arch, store
        self.several = len(plan.segments) > 1
        self.places = {storage.name: storage.place for storage in plan.storages.values()}
        self._binaries: dict[str, bytes] = {}
        self._loaded: dict[str, acl.Kernel] = {}

    def prepare(self, source: Source) -> None:
        """Compile it. Raises DeviceError."""
        if source.text not in self._binaries:
            self._binaries[source.text] = acl.compile_kernel(source.text, [source.entry], self.arch, self.store)

    def launch(self, source: Source, arrays: Sequence[Array], tiling: bytes, blocks: int) -> None:
        """Raises DeviceError; whatever happens, the launch's memory is freed."""
        self.prepare(source)
        on = acl.device()
        with on.lock, ExitStack() as stack:
            kernel = self._kernel(source, on)
            buffers = [stack.enter_context(acl.Buffer(on, array.nbytes)) for array in arrays]
            moves = self._moves(source)
            for (given, _), array, buffer in zip(moves, arrays, buffers, strict=True):
                if given:
                    buffer.write(array)
            kernel.launch(min(blocks, _cores(source, on)), buffers, tiling)
            on.synchronize()
            for (_, kept), array, buffer in zip(moves, arrays, buffers, strict=True):
                if kept:
                    buffer.read(array)

    def _moves(self, source: Source) -> list[tuple[bool, bool]]:
        """For each pointer: whether it is copied to the device before the launch, and back after it."""
        values = values_of(source)
        places = [self.places[name] for name in values]
        moves = [
            (self.several or place in (Place.ARGUMENT, Place.CONSTANT), place in (Place.RESULT, Place.WORKSPACE))
            for place in places
        ]
        own = source.arguments[len(values) :]
        return [*moves, *((name == STATUS or self.several,) * 2 for name in own)]

    def _kernel(self, source: Source, on: acl.Device) -> acl.Kernel:
        found = self._loaded.get(source.text)
        if found is None or found.device is not on:
            found = self._loaded[source.text] = acl.Kernel(on, self._binaries[source.text], source.entry)
        return found


def _cores(source: Source, on: acl.Device) -> int:
    """The most blocks that run at once: a barrier never ends with more. Kernels take whatever number they get."""
    vector_alone = re.search(r"KERNEL_TASK_TYPE_DEFAULT\(KERNEL_TYPE_(AIV_ONLY|MIX_AIV_1_0)\)", source.text)
    return on.vector_cores if vector_alone else on.aicores


@dataclass(frozen=True)
class Counters:
    """What the launches of a call did, summed: counted by the AI Core model.

    `barriers`: how often all cores, or all of one kind, met. `moved`: bytes by path, such as "GM->UB". `gm_read`,
    `gm_written`: bytes between global memory and the chip. `workspace_bytes`: the part of them that goes through the
    workspace (rings between the units, partials, values between groups), read and written. `onchip_peak`: bytes by
    memory space, of the core and launch with the most.
    """

    launches: int
    barriers: int
    gm_read: int
    gm_written: int
    workspace_bytes: int
    moved: Mapping[str, int]
    onchip_peak: Mapping[str, int]
    cores: int
    microseconds: float

    @property
    def gm_bytes(self) -> int:
        """Bytes between global memory and the chip."""
        return self.gm_read + self.gm_written


def counters(sources: Sequence[Source], reports: Sequence[aicore.Report]) -> Counters:
    """The sum over the launches of a call; `sources` and `reports` in their order."""
    moved: Counter[str] = Counter()
    peak: dict[str, int] = {}
    through = 0
    for source, report in zip(sources, reports, strict=True):
        moved.update(report.moved)
        for space, size in report.allocated.items():
            peak[space] = max(peak.get(space, 0), size)
        at = len(values_of(source))
        if source.arguments[at : at + 1] == (WORKSPACE,):
            through += report.gm_read[at] + report.gm_written[at]
    return Counters(
        launches=sum(report.launches for report in reports),
        barriers=sum(report.synchronisation[kind] for report in reports for kind in ("SyncAll", "CrossCoreMeet")),
        gm_read=sum(report.bytes_read for report in reports),
        gm_written=sum(report.bytes_written for report in reports),
        workspace_bytes=through,
        moved=dict(moved),
        onchip_peak=peak,
        cores=max((sum(report.cores.values()) for report in reports), default=0),
        microseconds=sum(report.microseconds for report in reports),
    )


class AscendExecutable(Executable):
    """Calls of one plan, a launch by a launch; its workspace has room for what the sources add to it.

    `sources`: one a launch, in order. `reports`: what the model counted in the last call, a launch each; none on a
    device. `why`: why there is no device, where this is not one.
    """

    direct = None

    def __init__(
        self, plan: Plan, graph: Graph, sources: Sequence[Source], machine: Machine, why: str | None = None
    ) -> None:
        super().__init__(plan, graph, {}, 1)
        self.sources = list(sources)
        self.machine = machine
        self.why = why
        self.reports: list[aicore.Report] = []
        self._depths = [
            depth
            for node in graph.nodes
            if node.kind is Kind.CONTRACT
            for region in index.regions(graph, node)
            for depth in region.reduced.values()
            if not isinstance(depth, int)
        ]

    @property
    def counters(self) -> Counters | None:
        """Of the last call on the model; None on a device, and before a call."""
        return counters(self.sources, self.reports) if self.reports else None

    @property
    def on_device(self) -> bool:
        """Whether launches go to a device."""
        return isinstance(self.machine, OnDevice)

    def prepare(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Compile all sources now, not when they are first launched. `progress`: sources done, of all."""
        for number, source in enumerate(self.sources):
            progress(number, len(self.sources))
            if isinstance(self.machine, Modelled | OnDevice):
                self.machine.prepare(source)

    def _run(self, values: dict[str, Array], sizes: dict[str, int], workers: int, workspace: Array) -> None:
        empty = sum(evaluate(depth, sizes) == 0 for depth in self._depths)
        if empty:  # the cube has no sum of nothing: all of the call is the host's
            self.reports = []
            results = reference.run(self.graph, [values[value.name] for value in self.inputs])
            for output, result in zip(self.graph.outputs, results, strict=True):
                values[output.name][...] = result
            with self._lock:
                self._slow.fallbacks += empty
            return
        reports = []
        launches = iter(self.sources)
        for segment in self.plan.segments:
            if isinstance(segment, HostCall):
                self._host(segment, values, sizes)
                continue
            report = self._launch(next(launches), values, sizes, workspace)
            if report is not None:
                reports.append(report)
            with self._lock:
                self._slow.launches += 1
        self.reports = reports

    def _launch(
        self, source: Source, values: Mapping[str, Array], sizes: Mapping[str, int], workspace: Array
    ) -> aicore.Report | None:
        ordered = [sizes[name] for name in self.plan.symbols]
        tiling = struct.pack(f"<{max(1, len(ordered))}q", *(ordered or [0]))
        status = np.zeros(STATUS_BYTES // 8, np.int64)
        own = {WORKSPACE: workspace[self._start(workspace) :], STATUS: status}
        names = values_of(source)
        arrays = [np.require(self._memory(name, values[name]), requirements=["C", "W"]) for name in names]
        pointers = [*arrays, *(own[name] for name in source.arguments[len(names) :])]
        report = self.machine.launch(source, pointers, tiling, source.blocks)
        for name, array in zip(names, arrays, strict=True):
            written = self.plan.storages[name].place in (Place.RESULT, Place.WORKSPACE)
            if written and not np.shares_memory(array, values[name]):
                values[name][...] = array
        failed = [(int(check), int(at)) for check, at, *_ in status.reshape(-1, 4) if check]
        if failed:
            check, position = min(failed)
            self.failures.fail(check - 1, position)
        return report

    def _memory(self, name: str, array: Array) -> Array:
        """What a kernel addresses: the elements, or where strides were compiled in all that they span."""
        strided = self.plan.storages[name].strides is not None
        return _memory_of(name, array) if strided and array.size else array


def _memory_of(name: str, array: Array) -> Array:
    """What a strided array that is not empty spans, from its first element to its last. Raises ArgumentError for
    negative strides."""
    if any(stride < 0 for stride, extent in zip(array.strides, array.shape, strict=True) if extent > 1):
        raise ArgumentError(f"{name}: strides {array.strides}: an Ascend kernel reads forward only; give a copy")
    reach = sum(s * (e - 1) for s, e in zip(array.strides, array.shape, strict=True))
    return np.lib.stride_tricks.as_strided(array, (reach // array.itemsize + 1,), (array.itemsize,))
