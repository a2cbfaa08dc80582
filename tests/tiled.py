"""What the tile tests share: a graph through passes, partition, lowering and schedule, run by the tile interpreter.

from tiled import MACHINES, execute
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autofusion import dims
from autofusion.autofuse.forms import Forms
from autofusion.autofuse.partition import FusionGroup, Partition, greedy
from autofusion.dtypes import Array
from autofusion.graph import evaluate
from autofusion.graph.ir import Graph
from autofusion.kernel import lower
from autofusion.kernel.ir import Kernel, Role
from autofusion.kernel.schedule import Schedule
from autofusion.passes import pipeline
from autofusion.target import ASCEND_910B, ASCEND_950, Target, cpu
from autofusion.tile import build, choose, interpreter, memory, traffic
from autofusion.tile.ir import Program

CPU = cpu("host", 2, ("avx512f",), 64, 1 << 20)
MACHINES = {"cpu": CPU, "ascend910b": ASCEND_910B, "ascend950": ASCEND_950}
Planner = Callable[[Kernel, Target], Schedule]


@dataclass
class Launch:
    """A group's kernel and program, and what its run did."""

    kernel: Kernel
    program: Program
    run: interpreter.Run
    overflow: memory.Overflow | None


@dataclass
class Executed:
    """The graph's outputs, and a launch for each group that is not the host's."""

    outputs: list[Array]
    launches: list[Launch]
    partition: Partition
    sizes: dict[str, int]

    @property
    def traffic(self) -> traffic.Traffic:
        return sum((traffic.gm_bytes(each.program, self.sizes) for each in self.launches), traffic.Traffic())


def execute(
    graph: Graph,
    inputs: Sequence[Array],
    target: Target = CPU,
    planner: Planner | None = None,
    partition: Callable[[Graph, Target], Partition] = greedy,
    strict: bool = False,
    order: interpreter.Order | None = None,
) -> Executed:
    """Run a graph group by group with the tile interpreter. `planner`: the schedule to use; the chosen one without."""
    graph = pipeline.run(graph)
    found = partition(graph, target)
    sizes = evaluate.bind_symbols(graph.inputs, [np.shape(a) for a in inputs], graph.guards)
    values = {v.name: np.asarray(a) for v, a in zip(graph.inputs, inputs, strict=True)}
    values |= {c.value.name: graph.data[c.digest] for c in graph.constants}
    forms, launches = Forms(graph), []
    for group in found.groups:
        if group.host:
            for node in group.nodes:
                _by_reference(graph, node.name, values, sizes)
            continue
        lowered = lower.lower(graph, group, target, forms, strict)
        launches.append(_launch(lowered, target, planner, sizes, values, order))
    return Executed([values[o.name] for o in graph.outputs], launches, found, sizes)


def _by_reference(graph: Graph, name: str, values: dict[str, Array], sizes: dict[str, int]) -> Array:
    """A value as the host computes it; views and sources that it reads are made where they are missing."""
    if name not in values:
        node = graph.producers[name]
        values[name] = evaluate.run_node(node, [_by_reference(graph, n, values, sizes) for n in node.inputs], sizes)
    return values[name]


def _launch(
    lowered: lower.Lowered,
    target: Target,
    planner: Planner | None,
    sizes: dict[str, int],
    values: dict[str, Array],
    order: interpreter.Order | None,
) -> Launch:
    kernel = lowered.kernel
    if planner is None:
        choice = choose.choose(kernel, target, sizes)
        program, overflow = choice.program, choice.overflow
    else:
        program = build.build(kernel, planner(kernel, target), target)
        overflow = memory.fits(program, target, sizes)
    arguments = {}
    for param, name in zip(kernel.params, lowered.arguments, strict=True):
        if param.role is Role.OUT:
            shape = tuple(int(dims.evaluate(d, sizes)) for d in param.shape)
            values[name] = interpreter.poisoned(shape, param.dtype)
        arguments[param.name] = values[name]
    run = interpreter.run(program, arguments, sizes, order)
    return Launch(kernel, program, run, overflow)


def only_group(graph: Graph, target: Target = CPU, strict: bool = False) -> Kernel:
    """The kernel of a graph that is to be one group."""
    graph = pipeline.run(graph)
    found = greedy(graph, target)
    assert len(found.groups) == 1, [str(v) for v in found.verdicts if not v.fused]
    group: FusionGroup = found.groups[0]
    return lower.lower(graph, group, target, strict=strict).kernel
