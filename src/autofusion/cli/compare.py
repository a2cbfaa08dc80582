"""Op by op against fused: the same compiler, every operator a group and a launch of its own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from autofusion import api
from autofusion.dims import evaluate
from autofusion.dtypes import Array
from autofusion.graph.ir import Graph
from autofusion.runtime.executable import Executable
from autofusion.superkernel.plan import Call, HostCall, Launch, Phase, Plan


class Runner(Protocol):
    """Runs on arrays, on that many workers."""

    def __call__(self, arrays: Sequence[Array], workers: int | None, /) -> list[Array]: ...


def op_by_op(plan: Plan) -> Plan:
    """The same plan with a launch for every kernel call.

    launch: [phase: k0, k1] [phase: k2]    →    launch: [k0]   launch: [k1]   launch: [k2]
    """
    body: list[object] = []
    for line in plan.body:
        body += _split(line) if isinstance(line, Launch) else [line]
    return replace(plan, body=tuple(body))  # type: ignore[arg-type]


def _split(launch: Launch) -> list[Launch]:
    """Steps of one kernel stay together: they are one operator."""
    launches: list[list[Call]] = []
    for phase in launch.body:
        for call in phase.body:
            if call.step == 0:
                launches.append([call])
            else:
                next(c for c in reversed(launches) if _is_next(c[-1], call)).append(call)
    return [Launch(tuple(Phase((call,)) for call in calls)) for calls in launches]


def _is_next(before: Call, call: Call) -> bool:
    return (before.kernel, before.arguments, before.step + 1) == (call.kernel, call.arguments, call.step)


class OpByOp(Executable):
    """An executable of many launches, which finds the addresses once a call: a launch costs what it must."""

    def _run(self, values: dict[str, Array], sizes: dict[str, int], workers: int) -> None:
        symbols = np.array([sizes[name] for name in self.plan.symbols], np.int64)
        addresses = [values[name].__array_interface__["data"][0] for name in self.slots]
        pointers = np.array(addresses, np.uint64)
        number = 0
        for segment in self.plan.segments:
            if isinstance(segment, HostCall):
                self._host(segment, values, sizes)
                continue
            native, chunks, checks = self._native[number]
            if native is None:
                native, chunks, checks = self._sized_table(number, segment, sizes)
            number += 1
            counts = np.array([int(evaluate(c, sizes)) for c in chunks], np.int64)
            native.launch(np.concatenate([pointers, np.array(checks, np.uint64)]), symbols, counts, workers)
            self.counts.launches += 1


def unfused(graph: Graph, target: str, numerics: str) -> tuple[api.Compiled, Executable]:
    """The graph compiled without fusion, and the executable that launches its operators one by one."""
    compiled = api.compile_graph(graph, target, numerics, fuse=False)
    whole = compiled.executable
    return compiled, OpByOp(op_by_op(whole.plan), compiled.graph, whole.functions, whole.workers)


def medians(
    runners: Sequence[Runner], arguments: Callable[[], Sequence[Array]], repeat: int, threads: int | None
) -> list[float]:
    """The median milliseconds of each, taken in turns so that they meet the same machine."""
    times: list[list[float]] = [[] for _ in runners]
    for _ in range(repeat):
        for runner, taken in zip(runners, times, strict=True):
            arrays = arguments()
            start = time.perf_counter()
            runner(arrays, threads)
            taken.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(taken) for taken in times]
