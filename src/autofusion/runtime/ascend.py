"""Launches of Ascend C kernels: on a device where there is one, else on the AI Core model."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from autofusion.dims import evaluate
from autofusion.dtypes import Array
from autofusion.errors import IndexOutOfRange
from autofusion.graph.ir import Graph
from autofusion.runtime import aicore
from autofusion.runtime.executable import Executable
from autofusion.superkernel.plan import HostCall, Plan
from autofusion.targets.ascend.render import Source


STATUS_CORES = 128  # vector cores that may report a failed check


class Machine(Protocol):
    """What runs one launch. `arrays` has one array for each pointer of the entry, in its order; results are written in
    place. `tiling`: the bytes of the tiling data. `blocks`: cores."""

    def launch(self, source: Source, arrays: Sequence[Array], tiling: bytes, blocks: int) -> aicore.Report | None: ...


class Modelled:
    """The AI Core model: every source is compiled once."""

    def __init__(self, arch: int) -> None:
        self.arch = arch
        self._models: dict[str, aicore.Model] = {}

    def launch(self, source: Source, arrays: Sequence[Array], tiling: bytes, blocks: int) -> aicore.Report:
        if source.text not in self._models:
            self._models[source.text] = aicore.build(source.text, [source.entry], self.arch)
        return self._models[source.text].run(source.entry, arrays, tiling, blocks)


class AscendExecutable(Executable):
    """Calls of one plan, a launch by a launch. `reports`: what the model counted in the last call."""

    def __init__(self, plan: Plan, graph: Graph, sources: Sequence[Source], machine: Machine) -> None:
        super().__init__(plan, graph, {}, 1)
        self.sources = list(sources)
        self.machine = machine
        self.reports: list[aicore.Report] = []

    def _run(self, values: dict[str, Array], sizes: dict[str, int], workers: int, workspace: Array) -> None:
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
                self.counts.launches += 1
        self.reports = reports

    def _launch(
        self, source: Source, values: Mapping[str, Array], sizes: Mapping[str, int], workspace: Array
    ) -> aicore.Report | None:
        ordered = [sizes[name] for name in self.plan.symbols]
        tiling = struct.pack(f"<{max(1, len(ordered))}q", *(ordered or [0]))
        start = self._start(workspace)
        arrays = []
        status = np.zeros(STATUS_CORES * 4, np.int64)
        own = {"workspace": workspace[start:], "status": status}
        for name in source.arguments:
            arrays.append(own[name] if name in own else np.require(values[name], requirements=["C", "W"]))
        report = self.machine.launch(source, arrays, tiling, source.blocks)
        for name, array in zip(source.arguments, arrays, strict=True):
            if name in values and values[name].flags.writeable and not np.shares_memory(array, values[name]):
                values[name][...] = array
        failed = [(int(check), int(at)) for check, at, *_ in status.reshape(-1, 4) if check]
        if failed:
            check, position = min(failed)
            raise IndexOutOfRange(f"{self.plan.checks[check - 1]}: index at position {position} is out of range")
        return report

    def _workspace(self, size: int) -> Array:
        """Room for the partials that the kernels add to the plan's workspace."""
        return super()._workspace(max([size, *(int(evaluate(s.workspace, {})) for s in self.sources)]))
