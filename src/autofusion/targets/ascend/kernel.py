"""A kernel's program as a C++ class: its on-chip memories, a function a step."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from autofusion import text
from autofusion.dims import Dim, substitute
from autofusion.errors import TargetError
from autofusion.kernel.ir import Access, Axis, Copy, Param, accesses
from autofusion.target import GM
from autofusion.targets.ascend import early
from autofusion.targets.ascend.cube import QUEUES as CUBE_QUEUES
from autofusion.targets.ascend.cube import Cube, CubeBudget
from autofusion.targets.ascend.dimension import coefficient_of, cxx, divides, rounded_dim, steps_of
from autofusion.targets.ascend.early import Early
from autofusion.targets.ascend.layout import BLOCK, Block, Layout, layout, rounded, slot_elements
from autofusion.targets.ascend.order import awaited
from autofusion.targets.ascend.rows import BLOCKS, FOLDED
from autofusion.targets.ascend.tiles import WHOLE
from autofusion.targets.ascend.vector import CHUNK, ELEMENTS, Needs, Tiling, Vector, Writer
from autofusion.tile.ir import Buffer, Guard, Let, Loop, Parallel, Program, Ring, Step, Take, checks, statements

QUEUES = ("VECIN", "VECOUT")
CUBE, VECTOR = "cube", "vector"
CUBE_CAPACITY = {"left2": 65536, "right2": 65536, "result": 131072, "bias2": 1024}
L1_SHARE = 1 << 17  # bytes of L1 that two tiles of a queue may take


@dataclass(frozen=True)
class Kernel:
    """A distinct kernel: the class's name, its program, and a line on what it computes."""

    name: str
    program: Program
    title: str
    names: Mapping[str, str]


@dataclass
class Budget:
    """The unified buffer: bytes of the queues' tiles by (queue, level), of the work area, and of the slots that the
    cube writes into."""

    tiles: dict[tuple[str, int], int] = field(default_factory=dict)
    work: int = 0
    slots: int = 0

    def add(self, found: Layout) -> None:
        for block in found.blocks.values():
            for queue, size in zip(QUEUES, (block.load_bytes, block.store_bytes), strict=True):
                if size:
                    key = (queue, block.level)
                    self.tiles[key] = max(self.tiles.get(key, 0), size)
        self.work = max(self.work, found.work_bytes)

    def bytes(self, needs: Needs, depth: int, chunk: int = CHUNK) -> int:
        """In all; tiles inside loops have `depth` buffers, temporaries `chunk` elements."""
        tiles = sum(size * (depth if level else 1) for (_, level), size in self.tiles.items())
        return tiles + self.work + self.slots + scratch(needs, chunk).size


@dataclass(frozen=True)
class Scratch:
    """Offsets in the work area's end: float temporaries, masks, a narrow one, room for folds, blocks and states."""

    masks: int
    half: int
    staged: int
    reduction: int
    blocks: int
    folded: int
    size: int


def scratch(needs: Needs, chunk: int) -> Scratch:
    masks = needs.floats * chunk * 4
    half = masks + needs.masks * rounded(chunk // 8)
    staged = half + (chunk * 2 if needs.half else 0)
    reduction = staged + (chunk * 4 if needs.staged else 0)
    blocks = reduction + rounded(needs.reduce * 4)
    folded = blocks + rounded(needs.blocks * 4)
    return Scratch(masks, half, staged, reduction, blocks, folded, folded + rounded(needs.folded * 4))


@dataclass
class Written:
    """A kernel's class, the least bytes of the unified buffer that it takes, those with two buffers a tile and
    temporaries of 2 * CHUNK, and whether it may fail."""

    lines: list[str]
    onchip: int
    ample: int
    checked: bool


def write(kernel: Kernel, capacity: int, double: bool = True, early: Sequence[Early] = ()) -> Written:
    """The class. `capacity`: bytes of the unified buffer; `double`: two tiles a queue inside loops, where they fit;
    `early`: first tiles that have a function of their own. Raises TargetError where it does not fit."""
    made = _Class(kernel, capacity, double, early).run()
    if made.onchip > capacity:
        raise TargetError(f"{kernel.title}: UB holds {capacity} bytes, the kernel needs {made.onchip}")
    return made


def onchip_bytes(program: Program, ample: bool = False) -> int:
    """What a program takes of the unified buffer at least, or where it has what makes it faster."""
    made = _Class(Kernel("Probe", program, "", {}), 0).run()
    return made.ample if ample else made.onchip


class _Class:
    """A kernel's class being written. The steps come first, as they say what memory is needed."""

    def __init__(self, kernel: Kernel, capacity: int, double: bool = True, early: Sequence[Early] = ()) -> None:
        self.kernel = kernel
        self.capacity = capacity
        self.double = double
        self.early = early
        self.flags = {name: each.flag for each in early for name in each.buffers}
        self.program = kernel.program
        self.layout = layout(self.program)
        self.needs = Needs()
        self.cube = CubeBudget()
        self.w = Writer()
        self.checks = checks(self.program)
        self.tensors: tuple[Param | Buffer, ...] = (*self.program.params, *self.program.workspace)
        outside = frozenset(tensor.name for tensor in self.tensors)
        loaded = {name for block in self.layout.blocks.values() for name in block.loads}
        stored = {n for block in self.layout.blocks.values() for n in block.stores if n not in self.layout.work}
        stored |= {take.buffer for take in self._takes() if self.program.space_of(take.ring) != GM}
        self.steps = steps_of([p for step in self.program.steps for body in step.bodies for p in body.body])
        tiles = Tiling(frozenset(loaded), frozenset(stored), self.steps, frozenset(self.program.symbols), outside)
        self.vector = Vector(self.w, self.layout.places, self.needs, self.checks, tiles)
        for tensor in self.tensors:
            if tensor.dtype not in ELEMENTS:
                raise TargetError(f"{tensor.name}: {tensor.dtype} is no type of this target")
        self.units = {b.unit for step in self.program.steps for b in step.bodies}
        rings = [ring for step in self.program.steps for ring in step.rings]
        self.rings = [ring for ring in rings if ring.space == GM]
        self.direct = [ring for ring in rings if ring.space != GM]
        self.budget = Budget(slots=sum(slot_bytes(ring) for ring in self.direct))

    def _takes(self) -> list[Take]:
        return [node for node in text.walk(self.program) if isinstance(node, Take)]

    def run(self) -> Written:
        self.w.depth = 1
        for number, step in enumerate(self.program.steps):
            if number:
                self.w.line("")
            self._step(number, step)
        steps, self.w.lines = self.w.lines, []
        self.budget.add(self.layout)
        steps = self._scratched(steps)
        lines = [f"// {self.kernel.title}"] if self.kernel.title else []
        self._init(self.needs.zeros or any(WHOLE in line for line in steps))
        init, self.w.lines = self.w.lines, []
        if any("CHUNK" in line for line in steps):
            self.w.line(f"static constexpr int64_t CHUNK = {self.chunk};  // elements of a temporary")
        self._members()
        lines += [f"class {self.kernel.name} {{", "public:", *init, "", *steps, "", "private:", *self.w.lines, "};"]
        return Written(
            lines, self.budget.bytes(self.needs, 1), self.budget.bytes(self.needs, 2, 2 * CHUNK), bool(self.checks)
        )

    # -- members -----------------------------------------------------------------------------------------------------
    @property
    def depth(self) -> int:
        """Tiles of a queue inside loops: two where they fit, so that one moves while the other is computed."""
        return 2 if self.double and self.budget.bytes(self.needs, 2) <= self.capacity else 1

    @property
    def chunk(self) -> int:
        """Elements of a temporary: more where they fit, as an instruction costs as much as some thousand of them."""
        sizes = (4 * CHUNK, 2 * CHUNK, CHUNK)
        return next((s for s in sizes if self.budget.bytes(self.needs, 2, s) <= self.capacity), CHUNK)

    @property
    def area(self) -> int:
        """Bytes of the work area."""
        return self.budget.work + scratch(self.needs, self.chunk).size + (BLOCK if self.checks else 0)

    def _init(self, whole: bool) -> None:
        parameters = "".join(f", GM_ADDR {t.name}Address" for t in self.tensors)
        rings = "".join(f", GM_ADDR {ring.name}Address" for ring in self.rings)
        checked = ", Failures& all, int64_t check" if self.checks else ""
        with self.w.block(
            f"__aicore__ inline void Init(TPipe& pipe{parameters}{rings}, const Tiling& tiling{checked})"
        ):
            mixed = len(self.units) > 1
            self._open_slots()
            for unit in (VECTOR, CUBE):
                if unit in self.units and mixed:
                    with self.w.block(only_on(unit)):
                        self._open(unit, whole)
                elif unit in self.units:
                    self._open(unit, whole)
            for ring in self.rings:
                self.w.line(f"{ring.name}.Init({ring.name}Address, {slot_elements(ring)});")
            for tensor in self.tensors:
                kind = ELEMENTS[tensor.dtype]
                self.w.line(f"{tensor.name}.SetGlobalBuffer(reinterpret_cast<__gm__ {kind}*>({tensor.name}Address));")
            for symbol in self.program.symbols:
                self.w.line(f"{symbol} = tiling.{symbol};")
            if self.checks:
                self.w.line("failures = &all;")
                self.w.line("firstCheck = check;")

    def _open_slots(self) -> None:
        """First of all, so that they lie at the same addresses for the cube, which writes them."""
        if not self.direct:
            return
        self.w.line(f"pipe.InitBuffer(slots, {self.budget.slots});")
        offset = 0
        for ring in self.direct:
            self.w.line(f"{ring.name}.Init(pipe, slots.Get<uint8_t>()[{offset}], {slot_elements(ring)});")
            offset += slot_bytes(ring)

    def _open(self, unit: str, whole: bool) -> None:
        """The unit's memories."""
        if unit == CUBE:
            self._open_cube()
            return
        for (queue, level), tile in sorted(self.budget.tiles.items()):
            name = f"{'load' if queue == 'VECIN' else 'store'}{level}"
            self.w.line(f"pipe.InitBuffer({name}, {self.depth if level else 1}, {tile});")
        if self.area:
            self.w.line(f"pipe.InitBuffer(area, {self.area});")
            self.w.line("work = area.Get<uint8_t>();")
            if whole:
                self.w.line(
                    f"Duplicate(work.ReinterpretCast<float>(), 0.0f, {self.area // 4});  // whole vectors are read"
                )

    def _open_cube(self) -> None:
        for queue, size in self.cube.tiles.items():
            depth = 2 if self.double and 2 * size <= CUBE_CAPACITY.get(queue, L1_SHARE) else 1
            self.w.line(f"pipe.InitBuffer({queue}, {depth}, {size});")

    def _members(self) -> None:
        for queue, level in sorted(self.budget.tiles):
            self.w.line(f"TQue<TPosition::{queue}, 1> {'load' if queue == 'VECIN' else 'store'}{level};")
        for queue in self.cube.tiles:
            self.w.line(f"TQue<TPosition::{CUBE_QUEUES[queue]}, 1> {queue};")
        if self.area and VECTOR in self.units:
            self.w.line("TBuf<TPosition::VECCALC> area;")
            self.w.line("LocalTensor<uint8_t> work;")
        if self.direct:
            self.w.line("TBuf<TPosition::VECIN> slots;")
        for number, ring in enumerate((*self.rings, *self.direct)):
            kind = "Ring" if ring.space == GM else "DirectRing"
            self.w.line(f"{kind}<{ELEMENTS[ring.dtype]}, {2 * number}, {2 * number + 1}> {ring.name};")
        for tensor in self.tensors:
            note = self.kernel.names.get(tensor.name, "")
            shape = ", ".join(map(str, tensor.shape))
            comment = f"  // {note} [{shape}]" if note else ""
            self.w.line(f"GlobalTensor<{ELEMENTS[tensor.dtype]}> {tensor.name};{comment}")
        for flag in dict.fromkeys(each.flag for each in self.early):
            self.w.line(f"bool {flag} = false;  // its first tile is on its way")
        for symbol in self.program.symbols:
            self.w.line(f"int64_t {symbol};")
        if self.checks:
            self.w.line("Failures* failures;")
            self.w.line("int64_t firstCheck;")

    def _scratched(self, lines: Sequence[str]) -> list[str]:
        """The steps with their temporaries declared where they are used."""
        result: list[str] = []
        chunk = self.chunk
        where = scratch(self.needs, chunk)
        declared = [(f"t{n}", "float", n * chunk * 4) for n in range(self.needs.floats)]
        declared += [(f"m{n}", "uint8_t", where.masks + n * rounded(chunk // 8)) for n in range(self.needs.masks)]
        declared += [("h0", "half", where.half), ("staged", "float", where.staged)]
        declared += [("reduction", "float", where.reduction), (BLOCKS, "float", where.blocks)]
        declared += [(FOLDED, "float", where.folded)]
        for position, line in enumerate(lines):
            if line.strip() != "SCRATCH":
                result.append(line.replace("SLOT", str(self.area - BLOCK)))
                continue
            indent = line[: len(line) - len(line.lstrip())]
            rest = lines[position:]
            end = next((n for n, other in enumerate(rest) if other.startswith(indent[:-4] + "}")), len(rest))
            words = set(re.findall(r"\w+", "\n".join(rest[:end])))
            for name, kind, offset in declared:
                if name in words:
                    start = self.budget.work + offset
                    result.append(f"{indent}const LocalTensor<{kind}> {name} = At<{kind}>(work, {start});")
        return result

    def _step(self, number: int, step: Step) -> None:
        by_unit = {body.unit: body.body[0] for body in step.bodies}
        if CUBE in by_unit:
            self._cube_step(number, by_unit[CUBE], step.rings)
        if len(by_unit) > 1:
            self.w.line("")
            self._taking_step(number, by_unit[VECTOR])
            return
        if CUBE in by_unit:
            return
        parallel = by_unit[VECTOR]
        self._early(number, VECTOR, parallel, "first", self._first)
        with self.w.block(f"__aicore__ inline void Step{number}(int64_t first, int64_t last)"):
            self._declared(parallel)
            with self.w.block(f"for (int64_t {parallel.var} = first; {parallel.var} < last; ++{parallel.var})"):
                self._body(parallel.body, parallel.count != 1)
            self._report()

    def _report(self) -> None:
        if self.checks:
            self.w.line("failures->Report(At<int64_t>(work, SLOT));")

    def _early(
        self, number: int, unit: str, parallel: Parallel, start: str, fill: Callable[[Sequence[Any], Early], None]
    ) -> None:
        """A function for the first tile of each queue that may start before the step does."""
        given = "int64_t first, int64_t last" + (", int64_t unit, int64_t turn" if "turn" in start else "")
        for each in self.early:
            if (each.step, each.unit) == (number, unit):
                with self.w.block(f"__aicore__ inline void {each.method}({given})"):
                    early.write(self.w, parallel, each.buffers, start, partial(_given, fill, each))
                    self.w.line(f"{each.flag} = true;")
                self.w.line("")

    def _first(self, body: Sequence[Any], each: Early) -> None:
        """A block's loads."""
        loads = [line for line in body if isinstance(line, Copy) and line.target.name in each.buffers]
        self._load(self.layout.blocks[id(body)], loads, body)

    def _cube_step(self, number: int, parallel: Parallel, rings: Sequence[Ring]) -> None:
        ahead = Cube(self.w, self.program, self.layout.places, parallel)
        self._early(number, CUBE, parallel, "first", lambda body, each: ahead.first(body, each.buffers))
        cube = Cube(self.w, self.program, self.layout.places, parallel, self.flags)
        name = f"Products{number}" if rings else f"Step{number}"
        var, direct = parallel.var, any(ring.space != GM for ring in rings)
        with self.w.block(
            f"__aicore__ inline void {name}(int64_t first, int64_t last{', int64_t unit' if direct else ''})"
        ):
            with self.w.block(f"for (int64_t {var} = first; {var} < last; ++{var})"):
                if direct:
                    self.w.line(f"const int64_t turn = ({var} - first) / unit % 2;")
                cube.body(parallel.body)
            for ring in rings:
                self.w.line(f"{ring.name}.Close();")
        self.cube.merge(cube.budget)

    def _taking_step(self, number: int, parallel: Parallel) -> None:
        """The vector cores' share of a step with a ring: groups of `unit` chunks in turns."""
        var = parallel.var
        self._early(number, VECTOR, parallel, "first + turn * unit", self._first)
        head = f"__aicore__ inline void Step{number}(int64_t first, int64_t last, int64_t unit, int64_t turn)"
        with self.w.block(head):
            self._declared(parallel)
            with self.w.block(f"for (int64_t {var} = first; {var} < last; ++{var})"):
                with self.w.block(f"if (({var} - first) / unit % 2 != turn)"):
                    self._skipped(parallel.body)
                    self.w.line("continue;")
                self._body(parallel.body, parallel.count != 1)
            self._report()

    def _skipped(self, body: Sequence[Any]) -> None:
        """Only the tiles that are for the other core."""
        needed = any(isinstance(node, Take) for line in body for node in text.walk(line))
        for line in body if needed and self.rings else ():
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
                self.w.line(f"const LocalTensor<{kind}> {name} = At<{kind}>(work, {offset});{comment}")
        self.w.line("SCRATCH")

    @staticmethod
    def _touched(statement: Any) -> set[str]:
        return {access.name for access in accesses(statement)}

    # -- bodies ------------------------------------------------------------------------------------------------------
    def _body(self, body: Sequence[Any], repeated: bool = True) -> None:
        """`repeated`: a core may do it more than once."""
        block = self.layout.blocks[id(body)]
        rest = []
        for line in body:
            if isinstance(line, Let):
                self.w.line(f"const int64_t {line.name} = {cxx(line.value)};")
            else:
                rest.append(line)
        loads = [s for s in rest if self._is_load(s)]
        stores = [s for s in rest if self._is_store(s)]
        taken = [s for s in rest if isinstance(s, Take) and s not in loads]
        if loads:
            self._copy_in(block, loads, rest)
        opened = len(self.w.lines)
        for line in taken:
            kind = ELEMENTS[self.layout.places[line.buffer].dtype]
            self.w.line(f"const LocalTensor<{kind}> {line.buffer} = {line.ring}.ToRead();")
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
            elif line not in loads and line not in stores and line not in taken:
                self._note(line)
                self.vector.statement(line)
        for line in taken:
            self.w.line(f"{line.ring}.Read();")
        if stores:
            self._copy_out(block, stores)
        if loads:
            self._drop_wait(block, opened, repeated)
            self.w.line(f"load{block.level}.FreeTensor(in{block.level});")

    def _drop_wait(self, block: Block, opened: int, repeated: bool) -> None:
        """The copy's EnQue and DeQue, where no line from `opened` on needs them."""
        ahead = {each.queue for each in self.early}
        lines = self.w.lines[opened:]
        if any(name in self.flags for name in block.loads) or awaited(lines, block.loads, ahead, repeated):
            return
        waits = f"load{block.level}.EnQue(", f"load{block.level}.DeQue<"
        head = self.w.lines[:opened]
        last = {call: max(n for n, line in enumerate(head) if call in line) for call in waits}
        for position in sorted(last.values(), reverse=True):
            del self.w.lines[position]

    def _note(self, line: Any) -> None:
        note = self.kernel.names.get(line.target.name.partition("_")[0], "")
        if note:
            self.w.line(f"// {note}")

    def _is_load(self, line: Any) -> bool:
        if isinstance(line, Take):
            return self.program.space_of(line.ring) == GM
        return isinstance(line, Copy) and isinstance(line.source, Access) and self._in_gm(line.source.name)

    def _is_store(self, line: Any) -> bool:
        return isinstance(line, Copy) and self._in_gm(line.target.name)

    def _in_gm(self, name: str) -> bool:
        return any(name == tensor.name for tensor in self.tensors)

    def _copy_in(self, block: Block, loads: Sequence[Copy | Take], body: Sequence[Any]) -> None:
        level = block.level
        queue = f"load{level}"
        names = [line.buffer if isinstance(line, Take) else line.target.name for line in loads]
        flag = self.flags.get(names[0])
        if flag is None:
            self._load(block, loads, body)
        else:
            self.w.line(f"LocalTensor<uint8_t> in{level};")
            with self.w.block(f"if (!{flag})"):
                self._load(block, loads, body, declared=True)
            self.w.line(f"{flag} = false;")
        self.w.line(f"in{level} = {queue}.DeQue<uint8_t>();")
        for name in names:
            kind = ELEMENTS[self.layout.places[name].dtype]
            self.w.line(f"const LocalTensor<{kind}> {name} = At<{kind}>(in{level}, {block.loads[name]});")

    def _load(self, block: Block, loads: Sequence[Copy | Take], body: Sequence[Any], declared: bool = False) -> None:
        """A tile of a block's load queue on its way."""
        level = block.level
        queue = f"load{level}"
        tensor = f"in{level}" if declared else f"LocalTensor<uint8_t> in{level}"
        self.w.line(f"{tensor} = {queue}.AllocTensor<uint8_t>();")
        for line in loads:
            name = line.buffer if isinstance(line, Take) else line.target.name
            kind = ELEMENTS[self.layout.places[name].dtype]
            place = f"At<{kind}>(in{level}, {block.loads[name]})"
            if isinstance(line, Take):
                self._taken(line, place, body)
                continue
            assert isinstance(line.source, Access)
            self._transfer(line, line.source, line.target, place, load=True)
        self.w.line(f"{queue}.EnQue(in{level});")

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
        self.w.line(f"LocalTensor<uint8_t> out{level} = store{level}.AllocTensor<uint8_t>();")
        for name, offset in block.stores.items():
            if name not in self.layout.work:
                kind = ELEMENTS[self.layout.places[name].dtype]
                self.w.line(f"const LocalTensor<{kind}> {name} = At<{kind}>(out{level}, {offset});")

    def _copy_out(self, block: Block, stores: Sequence[Copy]) -> None:
        level = block.level
        queue = f"store{level}"
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
        self.needs.zeros = True
        count = rounded(place.elements * place.dtype.size) // 2
        goal = f"At<uint16_t>(out{level}, {offset})"
        bits = f"{name}.ReinterpretCast<uint16_t>()"
        self.w.line(f"Or({goal}, {bits}, {bits}, {count});")

    def _transfer(self, line: Copy, outside: Access, inside: Access, tensor: str, load: bool) -> None:
        """A copy between global memory and a queue tile, as rows."""
        far, near = self.layout.places[outside.name], self.layout.places[inside.name]
        far_address, near_address = far.address(outside.index), near.address(inside.index)
        factors = {
            a.name: (coefficient_of(far_address, a.name), coefficient_of(near_address, a.name)) for a in line.axes
        }
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
        if not divides(lanes, near_start, self.steps):
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


def _given(fill: Callable[[Sequence[Any], Early], None], each: Early, body: Sequence[Any]) -> None:
    fill(body, each)


def slot_bytes(ring: Ring) -> int:
    """Of all slots of a ring."""
    return ring.depth * slot_elements(ring) * 4


def only_on(unit: str) -> str:
    """The condition for a unit's cores in a mixed kernel."""
    return f"if {'ASCEND_IS_AIC' if unit == CUBE else 'ASCEND_IS_AIV'}"
