"""Op by op against fused: the same compiler, every operator a group and a launch of its own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from autofusion import api
from autofusion.dtypes import Array
from autofusion.graph.ir import Graph
from autofusion.jit import ascend
from autofusion.runtime.executable import Executable


class Runner(Protocol):
    """Runs on arrays, on that many workers."""

    def __call__(self, arrays: Sequence[Array], workers: int | None, /) -> list[Array]: ...


def unfused(graph: Graph, target: str, numerics: str) -> tuple[api.Compiled, Executable]:
    """The graph compiled without fusion, and the executable that launches its operators one by one."""
    if api.find_target(target).family == "ascend":
        lowered = api.lower_graph(graph, target, numerics, fuse=False)
        executable = ascend.load(lowered, separate=True)
        return api.Compiled(lowered.graph, executable, lowered), executable
    compiled = api.compile_graph(graph, target, numerics, fuse=False)
    whole = compiled.executable
    return compiled, Executable(ascend.op_by_op(whole.plan), compiled.graph, whole.functions, whole.workers)


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
