"""Early start: the first tile of what no core of the launch writes is on its way before a phase's wait is over.

kernel.Init(…)                      buffers of its own, as the kernel before it is done on this core
kernel.EarlyRight1(first, last)     AllocTensor, copy, EnQue: the first tile of the right operand
CrossCoreWaitFlag(…)
kernel.Step0(first, last)           its first DeQue takes that tile
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autofusion.kernel.ir import Access, Contract, Copy
from autofusion.target import GM
from autofusion.targets.ascend.dimension import cxx
from autofusion.targets.ascend.vector import Writer
from autofusion.tile.ir import Guard, Let, Loop, Parallel, Program, Take, statements

VECTOR = "vector"


@dataclass(frozen=True)
class Early:
    """The first tile of a queue in a step. `params`: what it is copied from; `buffers`: what it is copied to."""

    step: int
    unit: str
    queue: str
    params: frozenset[str]
    buffers: frozenset[str]

    @property
    def method(self) -> str:
        return f"Early{self.queue.capitalize()}Of{self.step}"

    @property
    def flag(self) -> str:
        """The member that says whether the tile is on its way."""
        return f"{self.queue}Early"


def tiles(program: Program) -> Iterator[Early]:
    """The first tile of each queue from global memory that is filled by copies of parameters alone."""
    params = {p.name for p in program.params}
    for number, step in enumerate(program.steps):
        for body in step.bodies:
            (parallel,) = body.body
            seen: set[str] = set()
            for queue, lines in _fills(program, body.unit, parallel):
                if queue in seen:
                    continue
                seen.add(queue)
                if any(isinstance(line, Guard | Take) for line in lines):
                    continue  # another unit's, or of a variant that may not be the one that runs
                sources = {line.source.name if isinstance(line.source, Access) else "" for line in lines}
                if sources <= params:
                    targets = frozenset(s.target.name for s in lines)
                    yield Early(number, body.unit, queue, frozenset(sources), targets)


def _fills(program: Program, unit: str, parallel: Parallel) -> Iterator[tuple[str, list[Any]]]:
    """(queue, the statements that fill its tile) in the order in which tiles are filled, guards apart."""
    if unit == VECTOR:
        yield from _blocks(program, parallel.body, 0)
        return
    sides: dict[str, str] = {}
    copies = {s.target.name: s for s in statements(parallel.body) if isinstance(s, Copy)}
    for contract in (s for s in statements(parallel.body) if isinstance(s, Contract)):
        for side, access in (("left1", contract.left), ("right1", contract.right)):
            source = copies[access.name].source
            if isinstance(source, Access):
                sides[source.name] = side
    for line in statements(parallel.body):
        if isinstance(line, Copy) and line.target.name in sides:
            yield sides[line.target.name], [line]


def _blocks(program: Program, body: Sequence[Any], level: int) -> Iterator[tuple[str, list[Any]]]:
    loads = [line for line in body if isinstance(line, Take) or (isinstance(line, Copy) and _loads(program, line))]
    if loads:
        yield f"load{level}", loads
    for line in body:
        if isinstance(line, Loop):
            yield from _blocks(program, line.body, level + 1)
        elif isinstance(line, Guard):
            yield f"load{level + 1}", [line]


def _loads(program: Program, line: Copy) -> bool:
    return isinstance(line.source, Access) and program.space_of(line.source.name) == GM != program.space_of(
        line.target.name
    )


def write(
    w: Writer, parallel: Parallel, buffers: Collection[str], start: str, fill: Callable[[Sequence[Any]], None]
) -> None:
    """The first iteration of the loops around the statements that fill `buffers`, and then those statements."""
    w.line(f"const int64_t {parallel.var} = {start};")
    with w.block(f"if ({parallel.var} >= last)"):
        w.line("return;")
    body: Sequence[Any] = parallel.body
    while True:
        inner = next((line for line in body if isinstance(line, Loop) and _holds(line, buffers)), None)
        for line in body:
            if line is inner:
                break
            if isinstance(line, Let):
                w.line(f"const int64_t {line.name} = {cxx(line.value)};")
        if inner is None:
            fill(body)
            return
        w.line(f"const int64_t {inner.var} = {cxx(inner.begin)};")
        if not (isinstance(inner.begin, int) and isinstance(inner.end, int) and inner.begin < inner.end):
            with w.block(f"if ({inner.var} >= {cxx(inner.end)})"):
                w.line("return;")
        body = inner.body


def _holds(line: Loop, buffers: Collection[str]) -> bool:
    return any(s.target.name in buffers for s in statements(line.body))
