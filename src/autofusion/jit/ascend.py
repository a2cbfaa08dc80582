"""From a lowered graph to Ascend C, and to something that can be called."""

from __future__ import annotations

from autofusion.errors import TargetError
from autofusion.jit import pipeline
from autofusion.jit.pipeline import Compilation, Options
from autofusion.kernel.ir import Kernel
from autofusion.kernel.schedule import Schedule, propose
from autofusion.graph.ir import Graph
from autofusion.runtime.ascend import AscendExecutable, Modelled
from autofusion.target import Target
from autofusion.targets.ascend import render
from autofusion.targets.ascend.render import Source
from autofusion.tile import build

ARCHITECTURES = {"ascend910b": 2201, "ascend950": 3510}


def schedule_for(kernel: Kernel, target: Target) -> Schedule:
    """The first candidate whose tiles, temporaries and queues fit the unified buffer."""

    def fits(schedule: Schedule) -> bool:
        try:
            needed = render.onchip_bytes(build.build(kernel, schedule, target))
        except TargetError:
            return True  # said again, and to the user, when the source is written
        return needed <= target.spaces["UB"].bytes

    return propose(kernel, target, fits)


def lower(graph: Graph, target: Target, options: Options) -> Compilation:
    """The stages down to the plan, with schedules for this target's memory."""
    options.schedules = schedule_for
    return pipeline.lower_graph(graph, target, options)


def sources(compilation: Compilation) -> list[Source]:
    """A source for each launch of the plan. Raises TargetError for what the target has no code for."""
    first = {group.code: group for group in reversed(compilation.groups)}
    kernels = {}
    for key, code in compilation.codes.items():
        group = first[key]
        title = f"{group.group.name}: {', '.join(node.op for node in group.group.nodes)}"
        kernels[code.name] = render.Kernel(code.name.upper(), code.program, title, group.lowered.names)
    symbols = pipeline.canonical_symbols(compilation.graph)
    launches = compilation.plan.launches
    made = []
    for number, launch in enumerate(launches):
        name = compilation.graph.name if len(launches) == 1 else f"{compilation.graph.name}_{number}"
        made.append(render.render(name, compilation.plan, launch, kernels, symbols, compilation.target))
    return made


def load(compilation: Compilation) -> AscendExecutable:
    """Bind the plan to the AI Core model."""
    machine = Modelled(ARCHITECTURES[compilation.target.name])
    return AscendExecutable(compilation.plan, compilation.graph, sources(compilation), machine)
