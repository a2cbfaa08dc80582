"""The entry of a launch in Ascend C: phases of kernel calls, the workspace, and who waits for whom between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any

from autofusion import dims
from autofusion.dims import Dim, substitute
from autofusion.kernel.ir import Copy
from autofusion.superkernel.options import SuperKernelOptions
from autofusion.superkernel.plan import Call, Launch, Phase, Place, Plan
from autofusion.target import GM, Target
from autofusion.targets.ascend import early, waits
from autofusion.targets.ascend.dimension import coefficient_of, cxx, divides, identifier, steps_of
from autofusion.targets.ascend.early import Early
from autofusion.targets.ascend.kernel import CUBE, VECTOR, Kernel, only_on
from autofusion.targets.ascend.layout import PARTIAL, Layout, layout, rounded, slot_elements
from autofusion.targets.ascend.vector import Writer
from autofusion.targets.ascend.waits import EVERYWHERE, Flags, Wait
from autofusion.tile.ir import Guard, Let, Loop, Program, Ring, Step, checks


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


def _kernel_type(units: set[str], meet: bool) -> str:
    """By the units that have work; cores that meet need a mixed type."""
    if len(units) > 1:
        return "KERNEL_TYPE_MIX_AIC_1_2"
    if CUBE in units:
        return "KERNEL_TYPE_MIX_AIC_1_0" if meet else "KERNEL_TYPE_AIC_ONLY"
    return "KERNEL_TYPE_MIX_AIV_1_0" if meet else "KERNEL_TYPE_AIV_ONLY"


@dataclass(frozen=True)
class Signature:
    """The entry's pointers by storage, its workspace in bytes, and the most cores that have work."""

    arguments: tuple[str, ...]
    workspace: Dim
    blocks: int


class Entry:
    """Writes one entry. `symbols`: the graph's open dimensions -> their names in kernels."""

    def __init__(
        self,
        plan: Plan,
        launch: Launch,
        kernels: Mapping[str, Kernel],
        symbols: Mapping[str, str],
        target: Target,
        options: SuperKernelOptions,
    ) -> None:
        self.plan, self.launch, self.kernels = plan, launch, kernels
        self.symbols, self.target, self.options = symbols, target, options
        self.w = Writer()
        self.renamed: dict[str, Dim] = {old: dims.symbol(new) for old, new in symbols.items()}
        names = [n for call in self._calls() for n in call.arguments]
        self.storages = {n: plan.storages[n] for n in dict.fromkeys(names)}
        self.values = tuple(n for n, s in self.storages.items() if s.place is not Place.WORKSPACE)
        self.places: dict[str, Dim] = {}
        self.rings: dict[tuple[str, str], Dim] = {}
        self.size = self._placed()
        self.units = {body.unit for call in self._calls() for body in self._step(call).bodies}
        self.waits = self._waits()
        meet = any(wait.edges for wait in self.waits)
        if EVERYWHERE in self.waits and CUBE in self.units:
            self.units = {CUBE, VECTOR}  # SyncAll has no form for the cubes alone
        self.kind = _kernel_type(self.units, meet)
        self.opened = False  # whether a kernel has used the pipe before
        self.busy: set[str] = set()  # units whose pipes may still be at work

    def _calls(self) -> Iterator[Call]:
        return (call for phase in self.launch.body for call in phase.body)

    def _step(self, call: Call) -> Step:
        return self.kernels[call.kernel].program.steps[call.step]

    def _rings(self, call: Call) -> list[Ring]:
        return [ring for step in self.kernels[call.kernel].program.steps for ring in step.rings]

    def _shared(self, call: Call) -> list[Ring]:
        """The rings in global memory; others lie in a vector core's own."""
        return [ring for ring in self._rings(call) if ring.space == GM]

    @cached_property
    def together(self) -> dict[tuple[str, int], int]:
        """By kernel and step: how many chunks no two cores may share."""
        found = {}
        for call in self._calls():
            if (call.kernel, call.step) not in found:
                program = self.kernels[call.kernel].program
                found[call.kernel, call.step] = unit_of(program, self._step(call), layout(program))
        return found

    def _placed(self) -> Dim:
        """Places of rings and partials behind the plan's workspace; the bytes of all of it."""
        size = substitute(self.plan.workspace, self.renamed)
        for call in self._calls():
            program = self.kernels[call.kernel].program
            found = layout(program)
            for ring in self._shared(call):
                if (call.kernel, ring.name) not in self.rings:
                    self.rings[call.kernel, ring.name] = size
                    size = size + 2 * slot_elements(ring) * 4 * self.target.cores
            for storage, buffer in zip(call.arguments[len(program.params) :], program.workspace, strict=True):
                if storage not in self.places:
                    place = found.places[buffer.name]
                    self.places[storage] = size
                    size = size + rounded(place.elements * place.dtype.size, PARTIAL)
        for name, kept in self.storages.items():
            if kept.place is Place.WORKSPACE and name not in self.places:
                self.places[name] = substitute(kept.offset, self.renamed)
        return size

    # -- who waits for whom ------------------------------------------------------------------------------------------
    @cached_property
    def flags(self) -> Flags:
        """Behind those of the rings."""
        return Flags(2 * max((len(self._rings(call)) for call in self._calls()), default=0))

    def _waits(self) -> list[Wait]:
        """What stands before each phase: narrow, or the whole launch meeting between all of them."""
        if self.options.narrow_waits and self.flags.enough:
            return waits.waits(self.plan, self.launch, self.kernels, self.together)
        return [EVERYWHERE if number else Wait() for number in range(len(self.launch.body))]

    def _unit_lines(self, unit: str, lines: Sequence[str]) -> None:
        if lines:
            with self.w.block(only_on(unit)) if len(self.units) > 1 else nullcontext():
                for text in lines:
                    self.w.line(text)

    def _arrive(self, wait: Wait) -> None:
        for unit in sorted(self.units):
            if wait != EVERYWHERE:
                self._unit_lines(unit, self.flags.arrive(unit, wait))

    def _proceed(self, wait: Wait, units: Sequence[str]) -> None:
        if wait == EVERYWHERE and units:
            self.w.line(*self._passing(units[0], wait))
            return
        for unit in units:
            self._unit_lines(unit, self.flags.proceed(unit, wait))

    # -- the text ----------------------------------------------------------------------------------------------------
    def write(self, name: str, checked: bool) -> Signature:
        """The function."""
        w = self.w
        own = bool(self.places or self.rings)
        parameters = [f"GM_ADDR {identifier(n)}Gm" for n in self.values]
        parameters += ["GM_ADDR workspace"] * own + ["GM_ADDR status"] * checked
        with w.block(f'extern "C" __global__ __aicore__ void {name}({", ".join([*parameters, "Tiling tiling"])})'):
            w.line(f"KERNEL_TASK_TYPE_DEFAULT({self.kind});")
            w.line("TPipe pipe;")
            if len(self.units) > 1:
                w.line("const int64_t ratio = GetTaskRation(), core = GetBlockIdx(), cores = GetBlockNum() * ratio;")
                w.line("const int64_t block = core / ratio, blocks = GetBlockNum();")
            else:
                w.line("const int64_t core = GetBlockIdx(), cores = GetBlockNum();")
            for symbol in self.symbols.values():
                w.line(f"const int64_t {symbol} = tiling.{symbol};")
            if checked:
                w.line("Failures failures;")
                w.line("failures.Init(status, core);")
            for phase, wait in zip(self.launch.body, self.waits, strict=True):
                self._phase(phase, wait)
        extra = (*(("workspace",) if own else ()), *(("status",) if checked else ()))
        return Signature((*self.values, *extra), (self.size or PARTIAL) if own else 0, self._blocks())

    def _blocks(self) -> int:
        """The most cores that have work."""
        cores = self.target.cores if CUBE in self.units else self.target.cores * 2  # two vector cores an AI core
        most = 1
        for call in self._calls():
            chunks, unit = call.chunks, self.together[call.kernel, call.step]
            most = max(most, cores if not isinstance(chunks, int) else -(-chunks // unit) if unit else 1)
        return min(most, cores)

    def _phase(self, phase: Phase, wait: Wait) -> None:
        """A wait comes behind the first kernel's `Init`, and behind what of it may start early."""
        self._arrive(wait)
        first = phase.body[0]
        inside = {body.unit for body in self._step(first).bodies} if self.ahead.get(id(first)) else set()
        if wait == EVERYWHERE:
            inside = inside if inside == self.units else set()
        self._proceed(wait, sorted(self.units - inside))
        if wait == EVERYWHERE and not inside:
            self.busy = set()
        for call in phase.body:
            self._reset()
            self._call(call, wait if call is first and inside else Wait())
            self.busy |= {body.unit for body in self._step(call).bodies}

    def _reset(self) -> None:
        """The next kernel takes the memories of the one before, all of whose pipes have to be done with them."""
        if not self.opened:
            self.opened = True
            return
        if self.busy == self.units:
            self.w.line("PipeBarrier<PIPE_ALL>();")
        else:
            for unit in sorted(self.busy):
                self._unit_lines(unit, ["PipeBarrier<PIPE_ALL>();"])
        self.busy = set()
        self.w.line("pipe.Reset();")

    def _call(self, call: Call, wait: Wait) -> None:
        step = self._step(call)
        unit = step.bodies[0].unit
        ringed, mixed = bool(step.rings), len(self.units) > 1
        w = self.w
        with w.block(only_on(unit) if mixed and not ringed else ""):
            chunks, together = cxx(substitute(call.chunks, self.renamed)), self.together[call.kernel, call.step]
            group = str(together) if together else f"Greatest({chunks}, 1)"
            w.line(f"const Share share({chunks}, {group}, {'block, blocks' if ringed else 'core, cores'});")
            self._init(call)
            given = "share.first, share.last"
            if not ringed:
                for text in (*self._ahead(call, unit, given), *self._passing(unit, wait)) if wait.edges else ():
                    w.line(text)
                w.line(f"kernel.Step{call.step}({given});")
                return
            taken = f"{given}, {group}, GetSubBlockIdx()"
            if wait == EVERYWHERE:
                for each, arguments in ((CUBE, given), (VECTOR, taken)):
                    self._unit_lines(each, self._ahead(call, each, arguments))
                w.line("SyncAll<false>();")
                wait = Wait()
            made = given if all(ring.space == GM for ring in step.rings) else f"{given}, {group}"  # whose turn it is
            for each, arguments, name in ((CUBE, made, "Products"), (VECTOR, taken, "Step")):
                with w.block(only_on(each)):
                    early = self._ahead(call, each, given if each == CUBE else arguments) if wait.edges else []
                    for text in (*early, *self._passing(each, wait), f"kernel.{name}{call.step}({arguments});"):
                        w.line(text)

    def _ahead(self, call: Call, unit: str, arguments: str) -> list[str]:
        """What starts before the wait."""
        return [f"kernel.{each.method}({arguments});" for each in self.ahead.get(id(call), ()) if each.unit == unit]

    def _passing(self, unit: str, wait: Wait) -> list[str]:
        if wait == EVERYWHERE:
            return ["SyncAll<false>();" if len(self.units) > 1 else "SyncAll();"]
        return self.flags.proceed(unit, wait)

    @cached_property
    def ahead(self) -> dict[int, list[Early]]:
        """First tiles that may be fetched before a phase's wait, by the identity of its first call: what they are
        copied from is written by no core of this launch before."""
        if not self.options.early_start:
            return {}
        overlaps = waits.overlaps_in(self.plan)
        written: set[str] = set()
        found = {}
        for phase, touches, wait in zip(
            self.launch.body, waits.touches(self.launch, self.kernels), self.waits, strict=True
        ):
            call = phase.body[0]
            program = self.kernels[call.kernel].program
            storage = dict(zip((p.name for p in program.params), call.arguments, strict=False))
            if wait.edges:
                tiles = (each for each in early.tiles(program) if each.step == call.step)
                found[id(call)] = [t for t in tiles if not any(storage[p] in written for p in t.params)]
            for touch in touches:
                written |= touch.writes.union(*(overlaps.get(name, ()) for name in touch.writes))
        return found

    def early_of(self, kernel: str) -> list[Early]:
        """The first tiles of a kernel that any call of it fetches early."""
        calls = {id(call) for call in self._calls() if call.kernel == kernel}
        return list(dict.fromkeys(each for key, tiles in self.ahead.items() if key in calls for each in tiles))

    def _init(self, call: Call) -> None:
        """The kernel with its tensors; a ring of a block has its own place."""
        kernel = self.kernels[call.kernel]
        given = "".join(f", {self._address(n)}" for n in call.arguments)
        for ring in self._shared(call):
            per = 2 * slot_elements(ring) * 4
            given += f", workspace + {cxx(self.rings[call.kernel, ring.name])} + block * {per}"
        check = f", failures, {call.check}" if checks(kernel.program) else ""
        self.w.line(f"{kernel.name} kernel;")
        self.w.line(f"kernel.Init(pipe{given}, tiling{check});")

    def _address(self, storage: str) -> str:
        return f"{identifier(storage)}Gm" if storage in self.values else f"workspace + {cxx(self.places[storage])}"
