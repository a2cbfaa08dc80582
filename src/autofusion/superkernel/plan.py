"""The SuperKernel plan, as data: storages, phases of kernel calls, and what the host does between launches.

    plan mlp:
      storage x:float32[64, 512] argument
      storage t:float32[64, 512] workspace offset=0
      launch:
        phase:
          call k0.0 [x, t] chunks=16 scratch=65536 check=0
        phase:
          call k1.0 [t, y] chunks=4 scratch=0 check=0

Calls of one phase are independent; a barrier stands between phases. A whole graph is one launch unless an operator has
to run on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from autofusion import text
from autofusion.dims import Dim, Shape, product
from autofusion.dtypes import DType
from autofusion.text import Rule, ir


class Place(StrEnum):
    """Where a storage comes from."""

    ARGUMENT = "argument"
    CONSTANT = "constant"
    RESULT = "result"
    WORKSPACE = "workspace"


@ir("storage {name}:{dtype}{shape} {place}[[ strides={strides}]][[ within={within}]][[ offset={offset}]]")
@dataclass(frozen=True)
class Storage:
    """A tensor in global memory. `offset`: bytes from the start of the workspace, or of the result that it lies
    `within` before that is written. `strides` in elements."""

    name: str
    dtype: DType
    shape: Shape
    place: Place
    strides: Shape | None = None
    within: str | None = None
    offset: Dim = 0

    @property
    def bytes(self) -> Dim:
        return product(self.shape) * self.dtype.size


@ir("call {kernel} step={step} {arguments} chunks={chunks} scratch={scratch} check={check}")
@dataclass(frozen=True)
class Call:
    """One step of a kernel over all its chunks. `scratch`: bytes a worker needs. `check`: its first check's number."""

    kernel: str
    step: int
    arguments: tuple[str, ...]
    chunks: Dim
    scratch: Dim
    check: int


@ir("phase:")
@dataclass(frozen=True)
class Phase:
    body: tuple[Call, ...]


@ir("launch:")
@dataclass(frozen=True)
class Launch:
    """One launch: phases in order, a barrier between them."""

    body: tuple[Phase, ...]


@ir("host {operator} {inputs} -> {output}")
@dataclass(frozen=True)
class HostCall:
    """An operator that the host runs by its reference."""

    operator: str
    inputs: tuple[str, ...]
    output: str


@ir("check {operator}")
@dataclass(frozen=True)
class Check:
    """An operator that may fail at run time; its place in the list is its number."""

    operator: str


@ir("write {argument} <- {storage}[[ in_place={in_place}]]")
@dataclass(frozen=True)
class WriteBack:
    """After everything, an argument's memory takes a new value (a mutation in the source). `in_place`: whether the
    argument's memory may be the storage, so that there is nothing to copy: its old value is read before, or at the same
    positions by the kernel that writes it."""

    argument: str
    storage: str
    in_place: bool = False


@ir("plan {name} workspace={workspace} symbols={symbols}:")
@dataclass(frozen=True)
class Plan:
    """The whole. `workspace`: bytes of scratch global memory that all calls share."""

    name: str
    workspace: Dim
    symbols: tuple[str, ...]
    body: tuple[Storage | Launch | HostCall | Check | WriteBack, ...]

    @cached_property
    def storages(self) -> dict[str, Storage]:
        return {s.name: s for s in self.body if isinstance(s, Storage)}

    @cached_property
    def segments(self) -> tuple[Launch | HostCall, ...]:
        """Launches and host calls, in order."""
        return tuple(s for s in self.body if isinstance(s, Launch | HostCall))

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(s for s in self.body if isinstance(s, Launch))

    @cached_property
    def checks(self) -> tuple[str, ...]:
        return tuple(c.operator for c in self.body if isinstance(c, Check))

    @cached_property
    def writes(self) -> tuple[WriteBack, ...]:
        return tuple(w for w in self.body if isinstance(w, WriteBack))

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        return tuple(c for launch in self.launches for phase in launch.body for c in phase.body)

    def __str__(self) -> str:
        return text.show(self)


NODES: tuple[type, ...] = (Storage, Launch, HostCall, Check, WriteBack, Phase, Call)


def parse(source: str) -> Plan:
    """Read a plan's text back. Raises FormatError."""
    return text.parse(Plan, source, NODES)


def _known(plan: Any, call: Any) -> str | None:
    for name in call.arguments:
        if name not in plan.storages:
            return f"{name} is no storage"
    return None


def _no_shared_bytes(root: Any, plan: Any) -> str | None:
    """Workspace storages that are alive in one phase share no bytes."""
    clock = 0
    alive: dict[str, list[int]] = {}
    for segment in plan.segments:
        for names in _names_by_phase(segment):
            clock += 1
            for name in names:
                alive.setdefault(name, [clock, clock])[1] = clock
    placed = [s for s in plan.storages.values() if s.place is Place.WORKSPACE and s.name in alive]
    for result in {s.within for s in placed}:
        lent = [s for s in placed if s.within == result]
        if result is not None:
            lender = plan.storages.get(result)
            if (
                lender is None
                or lender.place is not Place.RESULT
                or any(s.offset + s.bytes > lender.bytes for s in lent)
            ):
                return f"{lent[0].name} does not lie within {result}"
            lent.append(lender)
        found = _overlap(lent, alive)
        if found:
            return found
    return None


def _overlap(placed: list[Storage], alive: dict[str, list[int]]) -> str | None:
    fixed = [(s, s.offset, s.bytes) for s in placed]
    ranges = sorted((o, o + b, s.name) for s, o, b in fixed if isinstance(o, int) and isinstance(b, int) and b)
    open_ranges: list[tuple[int, int, str]] = []
    for low, high, name in ranges:
        open_ranges = [r for r in open_ranges if r[1] > low]
        for _, _, other in open_ranges:
            if alive[name][0] <= alive[other][1] and alive[other][0] <= alive[name][1]:
                return f"{name} and {other} share workspace bytes while both are alive"
        open_ranges.append((low, high, name))
    return None


def _names_by_phase(segment: Launch | HostCall) -> list[list[str]]:
    if isinstance(segment, HostCall):
        return [[*segment.inputs, segment.output]]
    return [[name for call in phase.body for name in call.arguments] for phase in segment.body]


RULES = (
    Rule("arguments of calls are storages", Call, _known),
    Rule("storages alive at once share no bytes", Plan, _no_shared_bytes),
)


def verify(plan: Plan) -> None:
    """Raises VerifyError with the first broken rule."""
    text.verify(plan, RULES)
