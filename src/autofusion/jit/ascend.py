"""From a lowered graph to Ascend C, and to something that can be called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autofusion import dims
from autofusion.dims import Dim
from autofusion.errors import ArgumentError, TargetError
from autofusion.graph.ir import Graph
from autofusion.jit import hosting, pipeline
from autofusion.jit.cache import default_cache
from autofusion.jit.pipeline import Clock, Compilation, Options, Progress
from autofusion.runtime import acl, aicore
from autofusion.runtime.ascend import AscendExecutable, Machine, Modelled, OnDevice
from autofusion.superkernel.plan import Call, Launch, Phase, Place, Plan
from autofusion.target import Target
from autofusion.targets.ascend import host, render, schedules
from autofusion.targets.ascend import kernel as classes
from autofusion.targets.ascend.render import Source

ARCHITECTURES = {"ascend910b": 2201, "ascend950": 3510}


def architecture(target: Target) -> int:
    """The number that compilers and the model know a chip's architecture by. Raises TargetError."""
    if target.name not in ARCHITECTURES:
        raise TargetError(f"target {target.name}: Ascend C is generated for {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[target.name]


def lower(graph: Graph, target: Target, options: Options, progress: Progress | None = None) -> Compilation:
    """The stages down to the plan, with schedules for this target's memory; what the generator refuses runs on the
    host."""
    options.schedules = schedules.choose
    return hosting.lower(graph, target, options, lambda group: render.onchip_bytes(group.program), progress)


# -- sources ---------------------------------------------------------------------------------------------------------
def sources(compilation: Compilation) -> list[Source]:
    """A source for each launch of the plan. Raises TargetError for what the target has no code for."""
    plan, kernels = compilation.plan, _kernels(compilation)
    made = []
    for number, launch in enumerate(plan.launches):
        name = compilation.graph.name if len(plan.launches) == 1 else f"{compilation.graph.name}_{number}"
        made.append(_source(compilation, name, plan, launch, kernels))
    return made


def files(compilation: Compilation) -> dict[str, str]:
    """What is built where CANN is: kernel, tiling data and launcher of each launch, and the commands; by file name."""
    names = {short: name for name, short in pipeline.canonical_symbols(compilation.graph).items()}
    return host.files(sources(compilation), architecture(compilation.target), names)


def _kernels(compilation: Compilation) -> dict[str, classes.Kernel]:
    first = {group.code: group for group in reversed(compilation.groups)}
    kernels = {}
    for key, code in compilation.codes.items():
        group = first[key]
        title = f"{group.group.name}: {', '.join(node.op for node in group.group.nodes)}"
        kernels[code.name] = classes.Kernel(code.name.upper(), code.program, title, group.lowered.names)
    return kernels


def _source(
    compilation: Compilation, name: str, plan: Plan, launch: Launch, kernels: Mapping[str, classes.Kernel]
) -> Source:
    called = {call.kernel for phase in launch.body for call in phase.body}
    symbols = pipeline.canonical_symbols(compilation.graph)
    used = {key: kernel for key, kernel in kernels.items() if key in called}
    return render.render(name, plan, launch, used, symbols, compilation.target, compilation.options.superkernel)


# -- op by op --------------------------------------------------------------------------------------------------------
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


def _separate_sources(compilation: Compilation, plan: Plan) -> list[Source]:
    """A source for each launch of one kernel. Values have no names of their own in it, so that launches of one kernel
    are one text and are compiled once."""
    kernels = _kernels(compilation)
    made = []
    for launch in plan.launches:
        (kernel,) = {call.kernel for phase in launch.body for call in phase.body}
        own = len(kernels[kernel].program.workspace)
        values = dict.fromkeys(
            name for phase in launch.body for call in phase.body for name in call.arguments[: len(call.arguments) - own]
        )
        short = {name: f"a{number}" for number, name in enumerate(values)}
        storages = {
            name: replace(storage, name=short[name], place=Place.ARGUMENT) if name in short else storage
            for name, storage in plan.storages.items()
        }
        calls = [
            Phase(tuple(replace(c, arguments=tuple(short.get(n, n) for n in c.arguments)) for c in phase.body))
            for phase in launch.body
        ]
        alone = replace(plan, body=tuple(storages.values()))
        source = _source(compilation, kernel, alone, Launch(tuple(calls)), kernels)
        names = {number: name for name, number in short.items()}
        made.append(replace(source, arguments=tuple(names.get(name, name) for name in source.arguments)))
    return made


# -- executables -----------------------------------------------------------------------------------------------------
def machine_for(target: Target, plan: Plan) -> tuple[Machine, str | None]:
    """What runs a plan's launches here: a device, or the AI Core model and why there is no device. Raises TargetError
    where neither can be used."""
    arch = architecture(target)
    missing = acl.unavailable()
    if missing is None:
        return OnDevice(arch, plan, default_cache()), None
    unusable = aicore.unavailable()
    if unusable is not None:
        text = f"the AI Core model cannot be used ({unusable}), and there is no device ({missing})"
        raise TargetError(f"target {target.name}: {text}; its stages can be emitted")
    return Modelled(arch), missing


def load(compilation: Compilation, separate: bool = False) -> AscendExecutable:
    """Write the sources and bind them to the plan; they are compiled when they are first launched, or by `prepare`.

    `separate`: a launch for every kernel call. Raises TargetError where nothing here can run them.
    """
    plan = op_by_op(compilation.plan) if separate else compilation.plan
    machine, missing = machine_for(compilation.target, plan)
    with Clock(compilation.milliseconds).stage("codegen"):
        written = _separate_sources(compilation, plan) if separate else sources(compilation)
    names = pipeline.canonical_symbols(compilation.graph)
    back: dict[str, Dim] = {short: dims.symbol(name) for name, short in names.items()}
    size = plan.workspace
    for source in written:
        size = dims.maximum(size, dims.substitute(source.workspace, back))
    return AscendExecutable(replace(plan, workspace=size), compilation.graph, written, machine, missing)


def stage(compilation: Compilation, name: str) -> str:
    """The text of a stage; `source` is Ascend C, a launch behind the other. Raises TargetError for stages of CPUs,
    ArgumentError for others."""
    if name in ("llvm", "asm"):
        raise TargetError(f"target {compilation.target.name}: no stage {name}, its code is Ascend C: stage source")
    if name == "source":
        return "\n".join(source.text for source in sources(compilation))
    found = dict(pipeline.stages(compilation))
    if name not in found:
        raise ArgumentError(f"stage {name!r}: expected one of {', '.join(n for n in found if n != 'llvm')}")
    return found[name]
