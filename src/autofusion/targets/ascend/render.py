"""A compilation's programs and plan as one Ascend C source: a class a kernel, one entry a launch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from autofusion import dims
from autofusion.dims import Dim, substitute
from autofusion.kernel.ir import Copy
from autofusion.superkernel.plan import Call, Launch, Plan
from autofusion.superkernel.plan import Place as Kept
from autofusion.target import GM, Target
from autofusion.targets.ascend import kernel as classes
from autofusion.targets.ascend import prelude
from autofusion.targets.ascend.dimension import coefficient_of, cxx, divides, steps_of
from autofusion.targets.ascend.kernel import CUBE, VECTOR, only_on
from autofusion.targets.ascend.kernel import Kernel as Kernel
from autofusion.targets.ascend.kernel import onchip_bytes as onchip_bytes
from autofusion.targets.ascend.layout import PARTIAL, Layout, layout, rounded, slot_elements
from autofusion.targets.ascend.vector import Writer
from autofusion.tile.ir import Guard, Let, Loop, Program, Step, checks


@dataclass(frozen=True)
class Source:
    """One launch as Ascend C. `arguments`: storages by position; `workspace`: bytes, as a dim of the symbols;
    `symbols`: the fields of the tiling data, in order; `blocks`: the most cores that have work; `checked`: whether the
    last pointer is to 32 bytes a vector core for the first failed check of each: (its number + 1, the position)."""

    text: str
    entry: str
    arguments: tuple[str, ...]
    symbols: tuple[str, ...]
    workspace: Dim
    blocks: int
    checked: bool = False


# -- the whole source ------------------------------------------------------------------------------------------------
def identifier(name: str) -> str:
    """A C++ name for a storage."""
    made = re.sub(r"\W", "_", name)
    return made if made and not made[0].isdigit() else f"v{made}"


def unit_of(program: Program, step: Step, found: Layout) -> int:
    """How many chunks belong together so that no two cores write one block; 0: all of them."""
    parallel = step.bodies[-1].body[0]
    env: dict[str, Dim] = {}
    units = [1]
    steps = steps_of([p for body in step.bodies for p in body.body])

    def visit(body: Sequence[Any]) -> None:
        for line in body:
            if isinstance(line, Let):
                env[line.name] = substitute(line.value, env)
            elif isinstance(line, Loop):
                if line.var == "t":
                    env["t"] = line.begin
                visit(line.body)
            elif isinstance(line, Guard):
                visit(line.body)
            elif (
                isinstance(line, Copy) and line.target.name in found.places and program.space_of(line.target.name) == GM
            ):
                units.append(_unit(line, found, env, parallel.var, steps))

    visit(parallel.body)
    if 0 in units:
        return 0
    total = 1
    for unit in units:
        total = total * unit // gcd(total, unit)
    return total


def _unit(line: Copy, found: Layout, env: Mapping[str, Dim], chunk: str, steps: Mapping[str, int]) -> int:
    place = found.places[line.target.name]
    address = place.address(line.target.index)
    inner = next((a.name for a in line.axes if coefficient_of(address, a.name) == 1), "")
    starts = substitute(substitute(address, {inner: 0}) if inner else address, env)
    if divides(place.lanes, starts, steps):
        return 1
    first = substitute(starts, {a.name: 0 for a in line.axes})
    factor = coefficient_of(first, chunk)
    rest = substitute(first, {chunk: 0})
    if factor is None or factor <= 0 or not divides(place.lanes, rest, steps):
        return 0
    around = [coefficient_of(address, a.name) for a in line.axes]  # parts of a chunk that lie beyond its neighbours
    if any(each is None or (each >= factor and each % place.lanes) for each in around):
        return 0
    return place.lanes // gcd(place.lanes, factor)


def render(
    name: str,
    plan: Plan,
    launch: Launch,
    kernels: Mapping[str, Kernel],
    symbols: Mapping[str, str],
    target: Target,
) -> Source:
    """The source of one launch. `symbols`: the graph's open dimensions -> their names in kernels."""
    used = {call.kernel for phase in launch.body for call in phase.body}
    written = {key: classes.write(kernels[key], target.spaces["UB"].bytes) for key in kernels if key in used}
    entry = f"{identifier(name)}_launch"
    body = Writer()
    checked = any(each.checked for each in written.values())
    arguments, workspace, blocks = _entry(body, entry, plan, launch, kernels, symbols, target, checked)
    bodies = ["\n".join(each.lines) for each in written.values()]
    code = "\n\n".join([_tiling(tuple(symbols.values())), *bodies, "\n".join(body.lines)])
    many = f"{len(used)} kernel{'s' if len(used) != 1 else ''}"
    head = f"// {name} for {target.name}: {many}, one launch. Generated; not for editing."
    text = "\n\n".join([f"{head}\n{prelude.HEADER}", prelude.functions(code), code]) + "\n"
    return Source(text, entry, arguments, tuple(symbols.values()), workspace, blocks, checked)


def _tiling(symbols: Sequence[str]) -> str:
    fields = "".join(f"    int64_t {symbol};\n" for symbol in symbols) or "    int64_t unused;\n"
    return f"// The open dimensions of this launch.\nstruct Tiling {{\n{fields}}};"


def _ring_call(
    w: Writer, made: Kernel, call: Call, chunks: str, unit: int, address: Mapping[str, str], rings: Mapping[Any, Dim]
) -> None:
    """Both units on one step: the cube a block's chunks, its two vector cores taking turns at them."""
    group = str(unit) if unit else f"Greatest({chunks}, 1)"
    with w.block(""):
        w.line(f"const Share share({chunks}, {group}, block, blocks);")
        w.line(f"{made.name} kernel;")
        given = "".join(f", {address[n]}" for n in call.arguments)
        all_rings = [ring for each in made.program.steps for ring in each.rings]
        for ring in (ring for ring in all_rings if ring.space == GM):
            per = 2 * slot_elements(ring) * 4
            given += f", workspace + {cxx(rings[call.kernel, ring.name])} + block * {per}"
        check = f", failures, {call.check}" if checks(made.program) else ""
        w.line(f"kernel.Init(pipe{given}, tiling{check});")
        with w.block(only_on(CUBE)):
            direct = any(ring.space != GM for ring in all_rings)  # the cube then has to know whose turn it is
            w.line(f"kernel.Products{call.step}(share.first, share.last{f', {group}' if direct else ''});")
        with w.block(only_on(VECTOR)):
            w.line(f"kernel.Step{call.step}(share.first, share.last, {group}, GetSubBlockIdx());")


def _kernel_type(units: set[str], phases: int) -> str:
    """By the units that have work; a barrier needs a mixed type, whose cores can meet."""
    if CUBE in units:
        return "KERNEL_TYPE_AIC_ONLY" if units == {CUBE} and phases == 1 else "KERNEL_TYPE_MIX_AIC_1_2"
    return "KERNEL_TYPE_MIX_AIV_1_0" if phases > 1 else "KERNEL_TYPE_AIV_ONLY"


def _entry(
    w: Writer,
    entry: str,
    plan: Plan,
    launch: Launch,
    kernels: Mapping[str, Kernel],
    symbols: Mapping[str, str],
    target: Target,
    checked: bool,
) -> tuple[tuple[str, ...], Dim, int]:
    names = [n for phase in launch.body for call in phase.body for n in call.arguments]
    storages = {n: plan.storages[n] for n in dict.fromkeys(names)}
    arguments = tuple(n for n, s in storages.items() if s.place is not Kept.WORKSPACE)
    renamed: dict[str, Dim] = {old: dims.symbol(new) for old, new in symbols.items()}
    places: dict[str, Dim] = {}
    rings: dict[tuple[str, str], Dim] = {}
    size = substitute(plan.workspace, renamed)
    for phase in launch.body:
        for call in phase.body:
            program = kernels[call.kernel].program
            found = layout(program)
            for ring in (ring for each in program.steps for ring in each.rings if ring.space == GM):
                if (call.kernel, ring.name) not in rings:
                    rings[call.kernel, ring.name] = size
                    size = size + 2 * slot_elements(ring) * 4 * target.cores
            for storage, buffer in zip(call.arguments[len(program.params) :], program.workspace, strict=True):
                if storage not in places:
                    place = found.places[buffer.name]
                    places[storage] = size
                    size = size + rounded(place.elements * place.dtype.size, 512)
    for name, kept in storages.items():
        if kept.place is Kept.WORKSPACE and name not in places:
            places[name] = substitute(kept.offset, renamed)
    parameters = [f"GM_ADDR {identifier(n)}Gm" for n in arguments]
    if places or rings:
        parameters.append("GM_ADDR workspace")
    if checked:
        parameters.append("GM_ADDR status")
    address = {n: f"{identifier(n)}Gm" if n in arguments else f"workspace + {cxx(places[n])}" for n in storages}
    phases = len(launch.body)
    most = 1
    calls = [call for phase in launch.body for call in phase.body]
    units = {body.unit for call in calls for body in kernels[call.kernel].program.steps[call.step].bodies}
    cores = target.cores if CUBE in units else target.cores * 2  # two vector cores an AI core
    kind = _kernel_type(units, phases)
    mixed = len(units) > 1 or (CUBE in units and phases > 1)  # all cores of a mixed kernel can meet
    with w.block(f'extern "C" __global__ __aicore__ void {entry}({", ".join([*parameters, "Tiling tiling"])})'):
        w.line(f"KERNEL_TASK_TYPE_DEFAULT({kind});")
        w.line("TPipe pipe;")
        if mixed:
            w.line("const int64_t ratio = GetTaskRation(), core = GetBlockIdx(), cores = GetBlockNum() * ratio;")
            w.line("const int64_t block = core / ratio, blocks = GetBlockNum();")
        else:
            w.line("const int64_t core = GetBlockIdx(), cores = GetBlockNum();")
        for symbol in symbols.values():
            w.line(f"const int64_t {symbol} = tiling.{symbol};")
        if checked:
            w.line("Failures failures;")
            w.line("failures.Init(status, core);")
        opened = False
        for number, phase in enumerate(launch.body):
            if number:
                w.line("SyncAll<false>();" if mixed else "SyncAll();")
            for call in phase.body:
                if opened:
                    w.line("pipe.Reset();")
                opened = True
                kernel = kernels[call.kernel]
                step = kernel.program.steps[call.step]
                chunks = substitute(call.chunks, renamed)
                unit = unit_of(kernel.program, step, layout(kernel.program))
                most = max(most, cores if not isinstance(chunks, int) else -(-chunks // unit) if unit else 1)
                if step.rings:
                    _ring_call(w, kernel, call, cxx(chunks), unit, address, rings)
                    continue
                unit_name = step.bodies[0].unit
                with w.block(only_on(unit_name) if mixed else ""):
                    share = cxx(chunks)
                    w.line(f"const Share share({share}, {unit or f'Greatest({share}, 1)'}, core, cores);")
                    w.line(f"{kernel.name} kernel;")
                    given = "".join(f", {address[n]}" for n in call.arguments)
                    check = f", failures, {call.check}" if checks(kernel.program) else ""
                    w.line(f"kernel.Init(pipe{given}, tiling{check});")
                    w.line(f"kernel.Step{call.step}(share.first, share.last);")
    extra = (*(("workspace",) if places or rings else ()), *(("status",) if checked else ()))
    return (*arguments, *extra), (size or PARTIAL) if places or rings else 0, min(most, cores)
