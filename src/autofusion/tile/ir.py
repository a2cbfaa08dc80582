"""tile Program IR: one group as statements over buffers in memory spaces, with loops over tiles.

    program cpu:
      param p0:float32[4096, 1024] in
      buffer b0:float32[1, 1024] in CACHE
      step:
        on core:
          parallel c < 64:
            for t from c*64 to min(4096, c*64+64) step 1:
              let i0_o = t
              copy b0[i0, i1] <- p0[i0_o+i0, i1] over [i0<1, i1<1024]
              fold b1[i0]:float32 = max b0[i0, i1] over [i0<1] reduce [i1<1024]

A step has one body per unit; between steps only buffers in global memory live on. Bodies of one step exchange tiles
through rings. Chunks (`parallel`) are what cores claim; their number is the schedule's, never the machine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from autofusion import text
from autofusion.dims import Dim, Shape, maximum, minimum, symbols
from autofusion.dtypes import DType
from autofusion.kernel.ir import (
    STATEMENTS,
    Access,
    Contract,
    Copy,
    Fold,
    Gather,
    Map,
    Param,
    Scan,
    Statement,
    accesses,
    operands_of,
    reduced_of,
)
from autofusion.target import GM, Target
from autofusion.text import Rule, ir


@ir("buffer {name}:{dtype}{shape} in {space}")
@dataclass(frozen=True)
class Buffer:
    """A tensor in a memory space, row-major. In GM it is workspace that lives from step to step."""

    name: str
    dtype: DType
    shape: Shape
    space: str


@ir("ring {name}:{dtype}{shape} depth={depth} in {space} from {source} to {target}")
@dataclass(frozen=True)
class Ring:
    """Slots that pass tiles from one unit's body to another's, in order."""

    name: str
    dtype: DType
    shape: Shape
    depth: int
    space: str
    source: str
    target: str


@ir("put {ring} <- {buffer}")
@dataclass(frozen=True)
class Put:
    """Wait for a free slot and copy a whole buffer into it."""

    ring: str
    buffer: str


@ir("take {buffer} <- {ring}")
@dataclass(frozen=True)
class Take:
    """Wait for a filled slot, copy it into a whole buffer, and free it."""

    buffer: str
    ring: str


@ir("let {name} = {value}")
@dataclass(frozen=True)
class Let:
    """A scalar for the statements that follow in the same block and below."""

    name: str
    value: Dim


@ir("for {var} from {begin} to {end} step {step}:")
@dataclass(frozen=True)
class Loop:
    """A loop in order."""

    var: str
    begin: Dim
    end: Dim
    step: int
    body: tuple[Loop | Let | Put | Take | Map | Copy | Fold | Scan | Contract | Gather, ...]


@ir("when {smaller} <= {larger}:")
@dataclass(frozen=True)
class Guard:
    """What happens only where one size is not above another: one of several variants of the same work."""

    smaller: Dim
    larger: Dim
    body: tuple[Loop | Let | Put | Take | Map | Copy | Fold | Scan | Contract | Gather, ...]

    @property
    def count(self) -> Dim:
        """How often the body runs: once or never."""
        return minimum(1, maximum(0, self.larger - self.smaller + 1))


@ir("parallel {var} < {count}:")
@dataclass(frozen=True)
class Parallel:
    """Chunks that are independent of each other: any core, any order."""

    var: str
    count: Dim
    body: tuple[Loop | Guard | Let | Put | Take | Map | Copy | Fold | Scan | Contract | Gather, ...]


@ir("on {unit}:")
@dataclass(frozen=True)
class Body:
    """What one unit does."""

    unit: str
    body: tuple[Parallel, ...]


@ir("step:")
@dataclass(frozen=True)
class Step:
    body: tuple[Ring | Body, ...]

    @property
    def bodies(self) -> tuple[Body, ...]:
        return tuple(b for b in self.body if isinstance(b, Body))

    @property
    def rings(self) -> tuple[Ring, ...]:
        return tuple(r for r in self.body if isinstance(r, Ring))


@ir("program {target}:")
@dataclass(frozen=True)
class Program:
    """The whole of one group, for one target."""

    target: str
    body: tuple[Param | Buffer | Step, ...]

    @cached_property
    def params(self) -> tuple[Param, ...]:
        return tuple(p for p in self.body if isinstance(p, Param))

    @cached_property
    def buffers(self) -> dict[str, Buffer]:
        return {b.name: b for b in self.body if isinstance(b, Buffer)}

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        return tuple(s for s in self.body if isinstance(s, Step))

    @cached_property
    def tensors(self) -> dict[str, Param | Buffer | Ring]:
        """Parameters, buffers and rings by name."""
        found: dict[str, Param | Buffer | Ring] = {p.name: p for p in self.params}
        found |= self.buffers
        found |= {r.name: r for step in self.steps for r in step.rings}
        return found

    @cached_property
    def workspace(self) -> tuple[Buffer, ...]:
        """Buffers in GM: partials between steps."""
        return tuple(b for b in self.buffers.values() if b.space == GM)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Symbolic sizes, sorted: all names used that no loop, let or axis binds."""
        used: set[str] = set()
        bound: set[str] = set()
        for node in text.walk(self):
            used |= _names_used(node)
            if isinstance(node, Loop | Parallel):
                bound.add(node.var)
            elif isinstance(node, Let):
                bound.add(node.name)
            elif isinstance(node, STATEMENTS):
                bound |= {a.name for a in (*node.axes, *reduced_of(node))}  # type: ignore[attr-defined,arg-type]
        return tuple(sorted(used - bound))

    def space_of(self, name: str) -> str:
        """The memory space of a parameter, buffer or ring."""
        tensor = self.tensors[name]
        return GM if isinstance(tensor, Param) else tensor.space

    def __str__(self) -> str:
        return text.show(self)


TileStatement: TypeAlias = Loop | Guard | Let | Put | Take | Statement
NODES: tuple[type, ...] = (Param, Buffer, Step, Ring, Body, Parallel, Loop, Guard, Let, Put, Take, *STATEMENTS)


def _names_used(node: Any) -> set[str]:
    dims: list[Dim] = []
    if isinstance(node, Param | Buffer | Ring):
        dims += node.shape
        if isinstance(node, Param):
            dims += node.strides or ()
    elif isinstance(node, Loop):
        dims += [node.begin, node.end]
    elif isinstance(node, Guard):
        dims += [node.smaller, node.larger]
    elif isinstance(node, Parallel):
        dims.append(node.count)
    elif isinstance(node, Let):
        dims.append(node.value)
    elif isinstance(node, STATEMENTS):
        dims += [a.extent for a in (*node.axes, *reduced_of(node))]  # type: ignore[attr-defined,arg-type]
        for access in accesses(node):  # type: ignore[arg-type]
            dims += access.index
        for operand in operands_of(node):  # type: ignore[arg-type]
            if not isinstance(operand, Access) and not isinstance(operand.value, bool | int | float):
                dims.append(operand.value)
        if isinstance(node, Gather):
            dims.append(node.extent)
    return {name for dim in dims for name in symbols(dim)}


def parse(source: str) -> Program:
    """Read a program's text back. Raises FormatError."""
    return text.parse(Program, source, NODES)


def statements(body: tuple[Any, ...]) -> Iterator[Statement]:
    """All computing and copying statements in a body, loops and guards entered, in text order."""
    for line in body:
        if isinstance(line, Loop | Parallel | Guard):
            yield from statements(line.body)
        elif isinstance(line, STATEMENTS):
            yield line  # type: ignore[misc]


def checks(program: Program) -> list[str]:
    """The targets of the statements that may fail at run time, in order."""
    found = [
        s.target.name.partition("_")[0]
        for step in program.steps
        for b in step.bodies
        for s in statements(b.body)
        if isinstance(s, Gather)
    ]
    return list(dict.fromkeys(found))


def _ends(node: Any) -> tuple[str, str] | None:
    """(source, target) of a node that moves tiles as they are."""
    if isinstance(node, Copy):
        return (node.source.name, node.target.name) if isinstance(node.source, Access) else None
    if isinstance(node, Put):
        return node.buffer, node.ring
    return (node.ring, node.buffer) if isinstance(node, Take) else None


# -- what is legal ---------------------------------------------------------------------------------------------------
def _rules(target: Target) -> tuple[Rule, ...]:
    def paths_exist(root: Any, body: Any) -> str | None:
        for statement in text.walk(body):
            ends = _ends(statement)
            if ends is None:
                continue
            source, goal = map(root.space_of, ends)
            path = target.paths.get((source, goal))
            if path is None or path.unit != body.unit:
                return f"{target.name} has no copy path {source} -> {goal} on {body.unit}: {text.show(statement)}"
            scaled = ("scale",) if getattr(statement, "scale", 1.0) != 1.0 else ()
            absent = [op for op in (*scaled, *getattr(statement, "through", ())) if op not in path.performs]
            if absent:
                return f"{target.name}: the path {source} -> {goal} does not perform {absent[0]}"
        return None

    def operands_placed(root: Any, body: Any) -> str | None:
        unit = next((u for u in target.units if u.name == body.unit), None)
        if unit is None:
            return f"{target.name} has no unit {body.unit}"
        for statement in statements(body.body):
            if isinstance(statement, Copy):
                continue
            wanted = [(statement.target, unit.result)]
            sources = [o for o in operands_of(statement) if isinstance(o, Access)]
            if isinstance(statement, Contract):
                wanted += [(statement.left, unit.left), (statement.right, unit.right)]
            elif isinstance(statement, Gather):
                wanted += [(o, unit.left) for o in sources if o is not statement.source]
            else:
                wanted += [(o, unit.left) for o in sources]
            for access, space in wanted:
                if root.space_of(access.name) != space:
                    return f"{access.name} is in {root.space_of(access.name)}, {body.unit} needs it in {space}"
        return None

    def buffers_known(root: Any, body: Any) -> str | None:
        for node in text.walk(body):
            if isinstance(node, Put | Take):
                for name in (node.ring, node.buffer):
                    if name not in root.tensors:
                        return f"{name} is not declared"
        for statement in statements(body.body):
            for access in accesses(statement):
                if access.name not in root.tensors:
                    return f"{access.name} is not declared"
                if len(access.index) != len(root.tensors[access.name].shape):
                    return f"{text.show(statement)}: {access.name} has rank {len(root.tensors[access.name].shape)}"
        return None

    def rings_balance(root: Any, step: Any) -> str | None:
        for ring in step.rings:
            if ring.depth < 2:
                return f"ring {ring.name} has depth {ring.depth}, expected at least 2"
            nodes = [(b.unit, n) for b in step.bodies for n in text.walk(b) if getattr(n, "ring", None) == ring.name]
            puts = list(dict.fromkeys(unit for unit, node in nodes if isinstance(node, Put)))
            takes = list(dict.fromkeys(unit for unit, node in nodes if isinstance(node, Take)))
            if puts != [ring.source] or takes != [ring.target]:
                return f"ring {ring.name} goes from {ring.source} to {ring.target}, put on {puts}, taken on {takes}"
        return None

    return (
        Rule("tensors are declared and indexed by their rank", Body, buffers_known),
        Rule("copies follow the target's paths", Body, paths_exist),
        Rule("operands are where the unit reads them", Body, operands_placed),
        Rule("rings are put and taken by their two units", Step, rings_balance),
    )


def verify(program: Program, target: Target) -> None:
    """Check a program against its target. Raises VerifyError with the first broken rule."""
    text.verify(program, _rules(target))
