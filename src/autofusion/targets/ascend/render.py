"""A compilation's programs and plan as one Ascend C source: a class a kernel, one entry a launch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from autofusion import dims, text
from autofusion.dims import Dim, substitute
from autofusion.errors import TargetError
from autofusion.kernel.ir import Access, Axis, Copy, Param, accesses
from autofusion.superkernel.plan import Call, Launch
from autofusion.superkernel.plan import Place as Kept
from autofusion.superkernel.plan import Plan
from autofusion.target import GM, Target
from autofusion.targets.ascend import prelude
from autofusion.targets.ascend.cube import QUEUES as QUEUES_OF_CUBE
from autofusion.targets.ascend.cube import Cube, CubeBudget
from autofusion.targets.ascend.dimension import coefficient_of, cxx, divides
from autofusion.targets.ascend.layout import BLOCK, Block, Layout, layout, rounded
from autofusion.targets.ascend.vector import CHUNK, ELEMENTS, Needs, Vector, Writer
from autofusion.tile.ir import Buffer, Guard, Let, Loop, Parallel, Program, Ring, Step, Take, checks, statements

QUEUES = ("VECIN", "VECOUT")
CUBE, VECTOR = "cube", "vector"
MEMORIES = ((VECTOR, ("OnChip", "onchip")), (CUBE, ("CubeMemory", "cube")))


@dataclass(frozen=True)
class Kernel:
    """A distinct kernel: the class's name, its program, and a line on what it computes."""

    name: str
    program: Program
    title: str
    names: Mapping[str, str]


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


@dataclass
class Budget:
    """The unified buffer: bytes of the queues' tiles by (queue, level), and of the work area."""

    tiles: dict[tuple[str, int], int] = field(default_factory=dict)
    work: int = 0

    def add(self, found: Layout) -> None:
        for block in found.blocks.values():
            for queue, size in zip(QUEUES, (block.load_bytes, block.store_bytes), strict=True):
                if size:
                    key = (queue, block.level)
                    self.tiles[key] = max(self.tiles.get(key, 0), size)
        self.work = max(self.work, found.work_bytes)

    def bytes(self, needs: Needs, depth: int) -> int:
        """In all; tiles inside loops have `depth` buffers."""
        tiles = sum(size * (depth if level else 1) for (_, level), size in self.tiles.items())
        return tiles + self.work + scratch(needs).size


@dataclass(frozen=True)
class Scratch:
    """Offsets in the work area's end: float temporaries, masks, a narrow one, room for reductions."""

    masks: int
    half: int
    staged: int
    reduction: int
    size: int


def scratch(needs: Needs) -> Scratch:
    masks = needs.floats * CHUNK * 4
    half = masks + needs.masks * rounded(CHUNK // 8)
    staged = half + (CHUNK * 2 if needs.half else 0)
    reduction = staged + (CHUNK * 4 if needs.staged else 0)
    elements = 8 + rounded(2 * -(-needs.reduce // 64), 8) if needs.reduce else 0  # a value and an index a repeat
    return Scratch(masks, half, staged, reduction, reduction + rounded(elements * 4))


def onchip_bytes(program: Program) -> int:
    """What a program takes of the unified buffer, single-buffered."""
    return _written(Kernel("Probe", program, "", {})).budget.bytes(_written(Kernel("Probe", program, "", {})).needs, 1)


@dataclass
class _Written:
    """A kernel's class, and what it asks of the unified buffer."""

    lines: list[str]
    budget: Budget
    needs: Needs
    cube: CubeBudget
    checked: bool


def _written(kernel: Kernel) -> _Written:
    return _Class(kernel).run()


class _Class:
    """A kernel's class being written."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.program = kernel.program
        self.layout = layout(self.program)
        self.needs = Needs()
        self.cube = CubeBudget()
        self.w = Writer()
        onchip = [b.name for b in self.program.buffers.values() if b.space != GM]
        self.checks = checks(self.program)
        self.vector = Vector(self.w, self.layout.places, onchip, self.needs, self.checks)
        self.tensors: tuple[Param | Buffer, ...] = (*self.program.params, *self.program.workspace)

        units = {b.unit for step in self.program.steps for b in step.bodies}
        self.memories = [(each, chip) for each, chip in MEMORIES if each in units]
        self.rings = [ring for step in self.program.steps for ring in step.rings]

    def run(self) -> _Written:
        w = self.w
        if self.kernel.title:
            w.line(f"// {self.kernel.title}")
        with w.block(f"class {self.kernel.name}", "};"):
            w.depth -= 1
            w.line("public:")
            w.depth += 1
            self._init()
            for number, step in enumerate(self.program.steps):
                w.line("")
                self._step(number, step)
            w.line("")
            w.depth -= 1
            w.line("private:")
            w.depth += 1
            self._members()
        budget = Budget()
        budget.add(self.layout)
        return _Written(w.lines, budget, self.needs, self.cube, bool(self.checks))

    # -- members -----------------------------------------------------------------------------------------------------
    def _init(self) -> None:
        parameters = "".join(f", GM_ADDR {t.name}Address" for t in self.tensors)
        first = ", int64_t check" if self.checks else ""
        chips = ", ".join(f"{memory}& {chip}Memory" for _, (memory, chip) in self.memories)
        rings = "".join(f", GM_ADDR {ring.name}Address" for ring in self.rings)
        with self.w.block(f"__aicore__ inline void Init({chips}{parameters}{rings}, const Tiling& tiling{first})"):
            for _, (_, chip) in self.memories:
                self.w.line(f"{chip} = &{chip}Memory;")
            for ring in self.rings:
                self.w.line(f"{ring.name}.Init({ring.name}Address, {ring_elements(ring)});")
            for tensor in self.tensors:
                kind = ELEMENTS[tensor.dtype]
                self.w.line(f"{tensor.name}.SetGlobalBuffer(reinterpret_cast<__gm__ {kind}*>({tensor.name}Address));")
            for symbol in self.program.symbols:
                self.w.line(f"{symbol} = tiling.{symbol};")
            if self.checks:
                self.w.line("firstCheck = check;")

    def _members(self) -> None:
        for _, (memory, chip) in self.memories:
            self.w.line(f"{memory}* {chip};")
        for number, ring in enumerate(self.rings):
            self.w.line(f"Ring<{2 * number}, {2 * number + 1}> {ring.name};")
        for tensor in self.tensors:
            note = self.kernel.names.get(tensor.name, "")
            shape = ", ".join(map(str, tensor.shape))
            comment = f"  // {note} [{shape}]" if note else ""
            self.w.line(f"GlobalTensor<{ELEMENTS[tensor.dtype]}> {tensor.name};{comment}")
        for symbol in self.program.symbols:
            self.w.line(f"int64_t {symbol};")
        if self.checks:
            self.w.line("int64_t firstCheck;")

    def _step(self, number: int, step: Step) -> None:
        by_unit = {body.unit: body.body[0] for body in step.bodies}
        if CUBE in by_unit:
            self._cube_step(number, by_unit[CUBE], [ring.name for ring in step.rings])
        if len(by_unit) > 1:
            self.w.line("")
            self._taking_step(number, by_unit[VECTOR])
            return
        if CUBE in by_unit:
            return
        parallel = by_unit[VECTOR]
        with self.w.block(f"__aicore__ inline void Step{number}(int64_t first, int64_t last)"):
            self._declared(parallel)
            with self.w.block(
                f"for (int64_t {parallel.var} = first; {parallel.var} < last; ++{parallel.var})"
            ):
                self._body(parallel.body)

    def _cube_step(self, number: int, parallel: Parallel, rings: Sequence[str]) -> None:
        cube = Cube(self.w, self.program, self.layout.places, parallel)
        name = f"Products{number}" if rings else f"Step{number}"
        with self.w.block(f"__aicore__ inline void {name}(int64_t first, int64_t last)"):
            with self.w.block(f"for (int64_t {parallel.var} = first; {parallel.var} < last; ++{parallel.var})"):
                cube.body(parallel.body)
            for ring in rings:
                self.w.line(f"{ring}.Close();")
        self.cube.merge(cube.budget)

    def _taking_step(self, number: int, parallel: Parallel) -> None:
        """The vector cores' share of a step with a ring: groups of `unit` chunks in turns."""
        var = parallel.var
        head = f"__aicore__ inline void Step{number}(int64_t first, int64_t last, int64_t unit, int64_t turn)"
        with self.w.block(head):
            self._declared(parallel)
            with self.w.block(f"for (int64_t {var} = first; {var} < last; ++{var})"):
                with self.w.block(f"if (({var} - first) / unit % 2 != turn)"):
                    self._skipped(parallel.body)
                    self.w.line("continue;")
                self._body(parallel.body)

    def _skipped(self, body: Sequence[Any]) -> None:
        """Only the tiles that are for the other core."""
        needed = any(isinstance(node, Take) for line in body for node in text.walk(line))
        for line in body if needed else ():
            if isinstance(line, Let):
                self.w.line(f"const int64_t {line.name} = {cxx(line.value)};")
            elif isinstance(line, Take):
                self.w.line(f"{line.ring}.Skip();")
            elif isinstance(line, Loop) and any(isinstance(node, Take) for node in text.walk(line)):
                head = f"for (int64_t {line.var} = {cxx(line.begin)}; {line.var} < {cxx(line.end)}; "
                with self.w.block(head + (f"++{line.var})" if line.step == 1 else f"{line.var} += {line.step})")):
                    self._skipped(line.body)

    def _declared(self, parallel: Parallel) -> None:
        """Names for the work area's parts that a step uses."""
        used = {n for s in statements(parallel.body) for n in self._touched(s)}
        for name, offset in self.layout.work.items():
            if name in used:
                place = self.layout.places[name]
                kind = ELEMENTS[place.dtype]
                note = self.kernel.names.get(name.partition("_")[0], "")
                comment = f"  // {note}" if note else ""
                self.w.line(f"const LocalTensor<{kind}> {name} = At<{kind}>(onchip->work, {offset});{comment}")
        self.w.line("SCRATCH")

    @staticmethod
    def _touched(statement: Any) -> set[str]:
        return {access.name for access in accesses(statement)}

    # -- bodies ------------------------------------------------------------------------------------------------------
    def _body(self, body: Sequence[Any]) -> None:
        block = self.layout.blocks[id(body)]
        rest = []
        for line in body:
            if isinstance(line, Let):
                self.w.line(f"const int64_t {line.name} = {cxx(line.value)};")
            else:
                rest.append(line)
        loads = [s for s in rest if self._is_load(s)]
        stores = [s for s in rest if self._is_store(s)]
        if loads:
            self._copy_in(block, loads, rest)
        if stores:
            self._open_store(block)
        for line in rest:
            if isinstance(line, Loop):
                head = f"for (int64_t {line.var} = {cxx(line.begin)}; {line.var} < {cxx(line.end)}; "
                with self.w.block(head + (f"++{line.var})" if line.step == 1 else f"{line.var} += {line.step})")):
                    self._body(line.body)
            elif isinstance(line, Guard):
                with self.w.block(f"if ({cxx(line.smaller)} <= {cxx(line.larger)})"):
                    self._body(line.body)
            elif line not in loads and line not in stores:
                self._note(line)
                self.vector.statement(line)
        if stores:
            self._copy_out(block, stores)
        if loads:
            self.w.line(f"onchip->load{block.level}.FreeTensor(in{block.level});")

    def _note(self, line: Any) -> None:
        note = self.kernel.names.get(line.target.name.partition("_")[0], "")
        if note:
            self.w.line(f"// {note}")

    def _is_load(self, line: Any) -> bool:
        return isinstance(line, Take) or isinstance(line, Copy) and isinstance(line.source, Access) and self._in_gm(line.source.name)

    def _is_store(self, line: Any) -> bool:
        return isinstance(line, Copy) and self._in_gm(line.target.name)

    def _in_gm(self, name: str) -> bool:
        return any(name == tensor.name for tensor in self.tensors)

    def _copy_in(self, block: Block, loads: Sequence[Copy | Take], body: Sequence[Any]) -> None:
        level = block.level
        queue = f"onchip->load{level}"
        self.w.line(f"LocalTensor<uint8_t> in{level} = {queue}.AllocTensor<uint8_t>();")
        names = [line.buffer if isinstance(line, Take) else line.target.name for line in loads]
        for line, name in zip(loads, names, strict=True):
            kind = ELEMENTS[self.layout.places[name].dtype]
            declared = f"At<{kind}>(in{level}, {block.loads[name]})"
            if isinstance(line, Take):
                self._taken(line, declared, body)
                continue
            assert isinstance(line.source, Access)
            self._transfer(line, line.source, line.target, declared, load=True)
        self.w.line(f"{queue}.EnQue(in{level});")
        self.w.line(f"in{level} = {queue}.DeQue<uint8_t>();")
        for name in names:
            kind = ELEMENTS[self.layout.places[name].dtype]
            self.w.line(f"const LocalTensor<{kind}> {name} = At<{kind}>(in{level}, {block.loads[name]});")

    def _taken(self, line: Take, tensor: str, body: Sequence[Any]) -> None:
        """A ring's tile: the part of it that is read."""
        ring, place = self.program.tensors[line.ring], self.layout.places[line.buffer]
        reader = next(s for s in body if isinstance(s, Copy) and getattr(s.source, "name", "") == line.buffer)
        assert isinstance(reader.source, Access)
        extents = {a.name: a.extent for a in reader.axes}
        rows, columns = (extents.get(str(i), 1) for i in (0, 0, *reader.source.index)[-2:])
        near = place.strides[-2] if len(place.strides) > 1 and ring.shape[-1] != 1 else place.lanes
        sizes = f"{cxx(rows)}, {cxx(columns)}, {ring.shape[-1]}, {near}"
        self.w.line(f"Load({tensor}, {line.ring}.ToRead(), {sizes});")
        self.w.line(f"{line.ring}.Read();")

    def _open_store(self, block: Block) -> None:
        level = block.level
        self.w.line(f"LocalTensor<uint8_t> out{level} = onchip->store{level}.AllocTensor<uint8_t>();")
        for name, offset in block.stores.items():
            if name not in self.layout.work:
                kind = ELEMENTS[self.layout.places[name].dtype]
                self.w.line(f"const LocalTensor<{kind}> {name} = At<{kind}>(out{level}, {offset});")

    def _copy_out(self, block: Block, stores: Sequence[Copy]) -> None:
        level = block.level
        queue = f"onchip->store{level}"
        for name, offset in block.stores.items():
            if name in self.layout.work:
                self._moved(name, level, offset)
        self.w.line(f"{queue}.EnQue(out{level});")
        self.w.line(f"out{level} = {queue}.DeQue<uint8_t>();")
        for line in stores:
            assert isinstance(line.source, Access)
            name = line.source.name
            kind = ELEMENTS[self.layout.places[name].dtype]
            tensor = f"At<{kind}>(out{level}, {block.stores[name]})"
            self._transfer(line, line.target, line.source, tensor, load=False)
        self.w.line(f"{queue}.FreeTensor(out{level});")

    def _moved(self, name: str, level: int, offset: int) -> None:
        """A value that lives longer than its store: copied to the store's tile, bit by bit."""
        place = self.layout.places[name]
        count = rounded(place.elements * place.dtype.size) // 2
        goal = f"At<uint16_t>(out{level}, {offset})"
        bits = f"{name}.ReinterpretCast<uint16_t>()"
        self.w.line(f"Or({goal}, {bits}, {bits}, {count});")

    def _transfer(self, line: Copy, outside: Access, inside: Access, tensor: str, load: bool) -> None:
        """A copy between global memory and a queue tile, as rows."""
        far, near = self.layout.places[outside.name], self.layout.places[inside.name]
        far_address, near_address = far.address(outside.index), near.address(inside.index)
        factors = {a.name: (coefficient_of(far_address, a.name), coefficient_of(near_address, a.name)) for a in line.axes}
        inner = next((a for a in reversed(line.axes) if factors[a.name] == (1, 1)), None)
        columns: Dim = 1 if inner is None else inner.extent
        left = [a for a in line.axes if a is not inner]
        lanes = near.lanes

        def is_row(axis: Axis) -> bool:
            away, here = factors[axis.name]
            if away is None or here is None or away <= 0 or here <= 0 or here % lanes:
                return False
            return away >= (int(columns) if isinstance(columns, int) else near.elements)

        row = next((a for a in reversed(left) if is_row(a)), None)
        loops = [a for a in left if a is not row]
        taken: dict[str, Dim] = {a.name: 0 for a in (inner, row) if a is not None}
        far_start, near_start = substitute(far_address, taken), substitute(near_address, taken)
        if not divides(lanes, near_start):
            raise TargetError(f"{inside.name}: a copy starts inside a block of {BLOCK} bytes")
        rows: Dim = 1 if row is None else row.extent
        pitches = (columns, rounded_dim(columns, lanes)) if row is None else factors[row.name]
        far_pitch, near_pitch = (pitch or 0 for pitch in pitches)
        a, b = f"{tensor}[{cxx(near_start)}]", f"{far.name}[{cxx(far_start)}]"
        with self.vector._loops(loops):
            if load:
                self.w.line(f"Load({a}, {b}, {cxx(rows)}, {cxx(columns)}, {cxx(far_pitch)}, {cxx(near_pitch)});")
            else:
                self.w.line(f"Store({b}, {a}, {cxx(rows)}, {cxx(columns)}, {cxx(far_pitch)}, {cxx(near_pitch)});")

def rounded_dim(columns: Dim, lanes: int) -> Dim:
    return rounded(columns, lanes) if isinstance(columns, int) else dims.ceildiv(columns, lanes) * lanes


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
            elif isinstance(line, Copy) and line.target.name in found.places and program.space_of(
                line.target.name) == GM:
                units.append(_unit(line, found, env, parallel.var))

    visit(parallel.body)
    if 0 in units:
        return 0
    total = 1
    for unit in units:
        total = total * unit // gcd(total, unit)
    return total


def _unit(line: Copy, found: Layout, env: Mapping[str, Dim], chunk: str) -> int:
    place = found.places[line.target.name]
    address = place.address(line.target.index)
    inner = next((a.name for a in line.axes if coefficient_of(address, a.name) == 1), "")
    starts = substitute(substitute(address, {inner: 0}) if inner else address, env)
    if divides(place.lanes, starts):
        return 1
    first = substitute(starts, {a.name: 0 for a in line.axes})
    factor = coefficient_of(first, chunk)
    rest = substitute(first, {chunk: 0})
    if factor is None or factor <= 0 or not divides(place.lanes, rest):
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
    written = {key: _written(kernel) for key, kernel in kernels.items()}
    used = {call.kernel for phase in launch.body for call in phase.body}
    needs, budget, cube = Needs(), Budget(), CubeBudget()
    for key in used:
        each = written[key]
        needs.floats = max(needs.floats, each.needs.floats)
        needs.masks = max(needs.masks, each.needs.masks)
        needs.half |= each.needs.half
        needs.staged |= each.needs.staged
        needs.reduce = max(needs.reduce, each.needs.reduce)
        cube.merge(each.cube)
        for tile, size in each.budget.tiles.items():
            budget.tiles[tile] = max(budget.tiles.get(tile, 0), size)
        budget.work = max(budget.work, each.budget.work)
    units = {b.unit for key in used for step in kernels[key].program.steps for b in step.bodies}
    capacity = target.spaces["UB"].bytes
    depth = 2 if budget.bytes(needs, 2) <= capacity else 1
    if budget.bytes(needs, depth) > capacity:
        raise TargetError(f"UB holds {capacity} bytes, the launch needs {budget.bytes(needs, depth)}")
    entry = f"{identifier(name)}_launch"
    body = Writer()
    checked = any(written[key].checked for key in used)
    arguments, workspace, blocks = _entry(body, entry, plan, launch, kernels, symbols, target, checked)
    classes = []
    for key in kernels:
        if key in used:
            classes.append("\n".join(_scratched(written[key].lines, needs, budget)))
    code = "\n\n".join([_tiling(tuple(symbols.values())), *_memories(budget, needs, depth, cube, checked, units), *classes, "\n".join(body.lines)])
    head = f"// {name} for {target.name}: {len(used)} kernels, one launch. Generated; not for editing."
    helpers = prelude.functions(code)
    return Source(
        "\n\n".join([f"{head}\n{prelude.HEADER}", helpers, code]) + "\n",
        entry, arguments, tuple(symbols.values()), workspace, blocks, checked,
    )


def _tiling(symbols: Sequence[str]) -> str:
    fields = "".join(f"    int64_t {symbol};\n" for symbol in symbols) or "    int64_t unused;\n"
    return f"// The open dimensions of this launch.\nstruct Tiling {{\n{fields}}};"


def _onchip(budget: Budget, needs: Needs, depth: int, checked: bool) -> str:
    """The unified buffer's queues and work area, shared by all kernels of the launch."""
    w = Writer()
    w.line("// The unified buffer: tiles that are copied in and out, by the depth of their loop, and the work area.")
    size = budget.work + scratch(needs).size + (BLOCK if checked else 0)
    with w.block("struct OnChip", "};"):
        for queue, level in sorted(budget.tiles):
            kind = "load" if queue == "VECIN" else "store"
            w.line(f"TQue<TPosition::{queue}, 1> {kind}{level};")
        if size:
            w.line("TBuf<TPosition::VECCALC> area;")
            w.line("LocalTensor<uint8_t> work;")
        with w.block("__aicore__ inline void Init(TPipe& pipe)"):
            for (queue, level), tile in sorted(budget.tiles.items()):
                kind = "load" if queue == "VECIN" else "store"
                w.line(f"pipe.InitBuffer({kind}{level}, {depth if level else 1}, {tile});")
            if size:
                w.line(f"pipe.InitBuffer(area, {size});")
                w.line("work = area.Get<uint8_t>();")
                w.line(f"Duplicate(work.ReinterpretCast<float>(), 0.0f, {size // 4});  // whole vectors may be read")
        if checked:
            w.line("int64_t failed = 0, failedAt = 0;  // the first failed check: its number + 1, and the position")
            w.lines += [("    " + text).rstrip() for text in CHECKED.format(slot=size - BLOCK).split("\n")]
    return "\n".join(w.lines)


def _memories(
    budget: Budget, needs: Needs, depth: int, cube: CubeBudget, checked: bool, units: set[str]
) -> list[str]:
    """The on-chip memories that the launch uses."""
    vector = [_onchip(budget, needs, depth, checked)] if VECTOR in units else []
    return [*vector, *([_cube_memory(cube)] if cube.tiles else [])]


def _cube_memory(cube: CubeBudget) -> str:
    """The cube's queues: two tiles each, so that one is filled while the other is used, where they fit."""
    w = Writer()
    w.line("// L1, L0A, L0B, L0C and the bias table, as queues between the pipes.")
    capacity = {"left2": 65536, "right2": 65536, "result": 131072, "bias2": 1024}
    with w.block("struct CubeMemory", "};"):
        for queue in cube.tiles:
            w.line(f"TQue<TPosition::{QUEUES_OF_CUBE[queue]}, 1> {queue};")
        with w.block("__aicore__ inline void Init(TPipe& pipe)"):
            for queue, size in cube.tiles.items():
                depth = 2 if 2 * size <= capacity.get(queue, 1 << 17) else 1
                w.line(f"pipe.InitBuffer({queue}, {depth}, {size});")
    return "\n".join(w.lines)


def _scratched(lines: Sequence[str], needs: Needs, budget: Budget) -> list[str]:
    """A class with its temporaries declared where they are used."""
    result = []
    for position, line in enumerate(lines):
        if line.strip() != "SCRATCH":
            result.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())]
        end = next((n for n in range(position + 1, len(lines)) if lines[n].startswith(indent[:-4] + "}")), len(lines))
        words = set(re.findall(r"\w+", "\n".join(lines[position:end])))
        where = scratch(needs)
        declared = [(f"t{n}", "float", n * CHUNK * 4) for n in range(needs.floats)]
        declared += [(f"m{n}", "uint8_t", where.masks + n * rounded(CHUNK // 8)) for n in range(needs.masks)]
        declared += [("h0", "half", where.half), ("s0", "float", where.staged), ("reduction", "float", where.reduction)]
        for name, kind, offset in declared:
            if name in words:
                result.append(f"{indent}const LocalTensor<{kind}> {name} = At<{kind}>(onchip->work, {budget.work + offset});")
    return result


def ring_elements(ring: Ring) -> int:
    """Elements of a slot."""
    total = 1
    for extent in ring.shape:
        total *= int(str(extent))
    return total


def _ring_call(
    w: Writer, kernel: Kernel, call: Call, chunks: str, unit: int, address: Mapping[str, str], rings: Mapping[Any, Dim]
) -> None:
    """Both units on one step: the cube a block's chunks, its two vector cores taking turns at them."""
    group = str(unit) if unit else f"Greatest({chunks}, 1)"
    with w.block(""):
        w.line(f"const Share share({chunks}, {group}, block, blocks);")
        w.line(f"{kernel.name} kernel;")
        given = "".join(f", {address[n]}" for n in call.arguments)
        for ring in (ring for each in kernel.program.steps for ring in each.rings):
            per = rounded(2 * ring_elements(ring) * 4, 512)
            given += f", workspace + {cxx(rings[call.kernel, ring.name])} + block * {per}"
        check = f", {call.check}" if checks(kernel.program) else ""
        w.line(f"kernel.Init(onchip, cube{given}, tiling{check});")
        with w.block(_only_on(CUBE)):
            w.line(f"kernel.Products{call.step}(share.first, share.last);")
        with w.block(_only_on(VECTOR)):
            w.line(f"kernel.Step{call.step}(share.first, share.last, {group}, GetSubBlockIdx());")


def _only_on(unit: str) -> str:
    return f"if {'ASCEND_IS_AIC' if unit == CUBE else 'ASCEND_IS_AIV'}"


CHECKED = """// A position counts from the end where it is negative; one outside is clamped and recorded.
__aicore__ inline int64_t Checked(int64_t position, int64_t extent, int64_t check, int64_t ordinal) {{
    const int64_t inside = position < 0 ? position + extent : position;
    if (inside >= 0 && inside < extent) {{
        return inside;
    }}
    if (failed == 0 || check + 1 < failed || (check + 1 == failed && ordinal < failedAt)) {{
        failed = check + 1;
        failedAt = ordinal;
    }}
    return inside < 0 ? 0 : extent - 1;
}}
__aicore__ inline void Report(GM_ADDR status, int64_t core) {{
    if (failed == 0) {{
        return;
    }}
    GlobalTensor<int64_t> slots;
    slots.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(status));
    const LocalTensor<int64_t> slot = At<int64_t>(work, {slot});
    slot.SetValue(0, failed);
    slot.SetValue(1, failedAt);
    DataCopy(slots[core * 4], slot, 4);
}}"""


def _kernel_type(units: set[str], phases: int) -> str:
    """By the units that have work; a barrier between vector cores alone needs a mixed type too."""
    if units == {CUBE}:
        return "KERNEL_TYPE_AIC_ONLY" if phases == 1 else "KERNEL_TYPE_MIX_AIC_1_0"
    if CUBE in units:
        return "KERNEL_TYPE_MIX_AIC_1_2"
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
            for ring in (ring for each in program.steps for ring in each.rings):
                if (call.kernel, ring.name) not in rings:
                    rings[call.kernel, ring.name] = size
                    size = size + rounded(2 * ring_elements(ring) * 4, 512) * target.cores
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
    units = {
        unit.unit for p in launch.body for call in p.body for unit in kernels[call.kernel].program.steps[call.step].bodies
    }
    cores = target.cores if CUBE in units else target.cores * 2  # two vector cores an AI core
    kind = _kernel_type(units, phases)
    mixed = len(units) > 1
    with w.block(f'extern "C" __global__ __aicore__ void {entry}({", ".join([*parameters, "Tiling tiling"])})'):
        w.line(f"KERNEL_TASK_TYPE_DEFAULT({kind});")
        w.line("TPipe pipe;")
        for each, (memory, chip) in MEMORIES:
            if each in units:
                w.line(f"{memory} {chip};")
                if mixed:
                    with w.block(_only_on(each)):
                        w.line(f"{chip}.Init(pipe);")
                else:
                    w.line(f"{chip}.Init(pipe);")
        if mixed:
            w.line("const int64_t ratio = GetTaskRation(), core = GetBlockIdx(), cores = GetBlockNum() * ratio;")
            w.line("const int64_t block = core / ratio, blocks = GetBlockNum();")
        else:
            w.line("const int64_t core = GetBlockIdx(), cores = GetBlockNum();")
        for number, phase in enumerate(launch.body):
            if number:
                w.line("SyncAll<false>();" if mixed else "SyncAll();")
            for call in phase.body:
                kernel = kernels[call.kernel]
                step = kernel.program.steps[call.step]
                chunks = substitute(call.chunks, renamed)
                unit = unit_of(kernel.program, step, layout(kernel.program))
                most = max(most, cores if not isinstance(chunks, int) else -(-chunks // unit) if unit else 1)
                if step.rings:
                    _ring_call(w, kernel, call, cxx(chunks), unit, address, rings)
                    continue
                unit_name = step.bodies[0].unit
                with w.block(_only_on(unit_name) if mixed else ""):
                    share = cxx(chunks)
                    w.line(f"const Share share({share}, {unit or f'Greatest({share}, 1)'}, core, cores);")
                    w.line(f"{kernel.name} kernel;")
                    given = "".join(f", {address[n]}" for n in call.arguments)
                    w.line(f"kernel.Init({'cube' if unit_name == CUBE else 'onchip'}{given}, tiling{f', {call.check}' if checks(kernel.program) else ''});")
                    w.line(f"kernel.Step{call.step}(share.first, share.last);")
        if checked:
            w.line("onchip.Report(status, core);")
    extra = (*(("workspace",) if places or rings else ()), *(("status",) if checked else ()))
    return (*arguments, *extra), size if places or rings else 0, min(most, cores)
