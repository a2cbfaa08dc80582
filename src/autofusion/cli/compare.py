"""Op by op against fused: the same compiler, every operator a group and a launch of its own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from autofusion import api
from autofusion.dtypes import Array
from autofusion.graph.ir import Graph
from autofusion.runtime.executable import Executable
from autofusion.superkernel.plan import Call, Launch, Phase, Plan


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


def unfused(graph: Graph, target: str, numerics: str) -> tuple[api.Compiled, Executable]:
    """The graph compiled without fusion, and the executable that launches its operators one by one."""
    compiled = api.compile_graph(graph, target, numerics, fuse=False)
    whole = compiled.executable
    return compiled, Executable(op_by_op(whole.plan), compiled.graph, whole.functions, whole.workers)


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
