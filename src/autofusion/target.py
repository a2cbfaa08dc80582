"""Targets: machines as data. Legality, lowering and cost ask these facts; nothing asks a target's name.

Sources of the Ascend figures: the public Ascend C documentation (arch 2201 and 3510); those marked "assumed" are
defaults where it gives a range or nothing. The CPU's are read from the machine or given by name.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property

from autofusion.dtypes import DType
from autofusion.errors import TargetError
from autofusion.kinds import Kind
from autofusion.text import ir


@ir("space {name} bytes={bytes} align={align}[[ onchip={onchip}]]")
@dataclass(frozen=True)
class Space:
    """A memory space. `bytes`: capacity of one core's part (0: unbounded). `align`: of a buffer's start, in bytes."""

    name: str
    bytes: int
    align: int
    onchip: bool = True


@ir("path {source} -> {target} by {unit}[[ performs {performs}]]")
@dataclass(frozen=True)
class CopyPath:
    """Data can be copied from `source` to `target` by that unit; `performs`: elementwise ops done on the way for
    free."""

    source: str
    target: str
    unit: str
    performs: tuple[str, ...] = ()


@ir("unit {name} takes {kinds} left={left} right={right} result={result}[[ widens={widens}]]")
@dataclass(frozen=True)
class Unit:
    """A compute unit: the kinds that it runs, and where its operands and results live. `widens`: integer types whose
    products it adds up in int32, so that a cast of its operands to int32 costs nothing."""

    name: str
    kinds: tuple[Kind, ...]
    left: str
    right: str
    result: str
    widens: tuple[DType, ...] = ()


VECTOR_KINDS = (
    Kind.SOURCE,
    Kind.ELEMENTWISE,
    Kind.REDUCE,
    Kind.SCAN,
    Kind.WINDOW,
    Kind.JOIN,
    Kind.GATHER,
    Kind.COMM,
)


@ir("target {name} {family} cores={cores} features={features}:")
@dataclass(frozen=True)
class Target:
    """A machine.

    `lane_bytes`: width of one vector operation. `near_bytes`: what a core reads again at no cost (a first-level
    cache). `panel_bytes`: a row of the panels that constant columns of a contraction are read in; 0 for none.
    `group_limit`: operators a group may hold (keeps the walk linear). `bandwidth`: bytes per microsecond between GM and
    the chip, one core; `near_bandwidth`: where what a kernel reads and writes fits on-chip. `rate`: elementwise
    operations per microsecond, one core; `row_ops`: vector operations that a statement's innermost loop takes to begin.
    `contract_rate`: multiply-adds per microsecond, one core. `barrier_us`, `launch_us`: microseconds. `dtypes`: element
    types that storage may have. `computes`: the elementwise primitives that it has; None for all. `grain`: elementwise
    operations that a part of a launch is worth, where a byte of large tensors counts as `byte_ops`; 0 counts statements
    alone.
    """

    name: str
    family: str
    cores: int
    features: tuple[str, ...] = ()
    lane_bytes: int = 32
    near_bytes: int = 32 * 1024
    grain: float = 4096.0
    byte_ops: int = 0
    panel_bytes: int = 0
    group_limit: int = 256
    bandwidth: float = 20_000.0
    near_bandwidth: float = 100_000.0
    row_ops: float = 2.0
    rate: float = 10_000.0
    contract_rate: float = 40_000.0
    barrier_us: float = 1.0
    launch_us: float = 1.0
    dtypes: tuple[DType, ...] = tuple(DType)
    computes: tuple[str, ...] | None = None
    facts: tuple[Space | CopyPath | Unit, ...] = field(default=())

    @cached_property
    def spaces(self) -> dict[str, Space]:
        return {f.name: f for f in self.facts if isinstance(f, Space)}

    @cached_property
    def paths(self) -> dict[tuple[str, str], CopyPath]:
        return {(f.source, f.target): f for f in self.facts if isinstance(f, CopyPath)}

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        return tuple(f for f in self.facts if isinstance(f, Unit))

    def unit_for(self, kind: Kind) -> Unit | None:
        """The unit that runs operators of that kind; None where none does."""
        return self._units_by_kind.get(kind)

    @cached_property
    def _units_by_kind(self) -> dict[Kind, Unit]:
        return {kind: unit for unit in reversed(self.units) for kind in unit.kinds}

    def route(self, source: str, target: str, through_gm: bool = False) -> tuple[str, ...] | None:
        """The shortest chain of spaces from `source` to `target` along copy paths; None where there is none."""
        ways: deque[tuple[str, ...]] = deque([(source,)])
        seen = {source}
        while ways:
            way = ways.popleft()
            if way[-1] == target:
                return way
            for start, end in self.paths:
                if start == way[-1] and end not in seen and (end == target or through_gm or self.spaces[end].onchip):
                    seen.add(end)
                    ways.append((*way, end))
        return None

    def lacks(self, op: str) -> bool:
        """Whether an elementwise primitive is one that the target does not have."""
        return self._computed is not None and op not in self._computed

    @cached_property
    def _computed(self) -> frozenset[str] | None:
        return None if self.computes is None else frozenset(self.computes)

    @cached_property
    def vector(self) -> Unit:
        """The unit of elementwise work."""
        unit = self.unit_for(Kind.ELEMENTWISE)
        if unit is None:
            raise TargetError(f"target {self.name} has no unit for elementwise operators")
        return unit

    @cached_property
    def onchip_bytes(self) -> int:
        """Capacity for the intermediates of vector work."""
        return self.spaces[self.vector.result].bytes


GM = "GM"


def cpu(
    name: str,
    cores: int,
    features: tuple[str, ...],
    lane_bytes: int,
    cache_bytes: int,
    computes: tuple[str, ...] | None = None,
) -> Target:
    """A CPU: one addressable space, and a budget for what should stay in the second-level cache. Rates are those of one
    core at about 2.6 GHz, measured: a vector unit's by the number of its lanes, memory's whatever they are."""
    lanes = lane_bytes / 4
    return Target(
        name,
        "cpu",
        cores,
        features,
        lane_bytes=lane_bytes,
        panel_bytes=2 * lane_bytes,
        bandwidth=20_000.0,
        near_bandwidth=lanes * 5_000.0,
        rate=lanes * 1_750.0,
        contract_rate=lanes * 4_400.0,
        barrier_us=1.5,
        launch_us=0.3,
        grain=lanes * 7_000.0,
        byte_ops=4,
        computes=computes,
        facts=(
            Space(GM, 0, 1, onchip=False),
            Space("CACHE", cache_bytes, 64),
            CopyPath(GM, "CACHE", "core"),
            CopyPath("CACHE", GM, "core"),
            CopyPath("CACHE", "CACHE", "core"),
            Unit("core", (*VECTOR_KINDS, Kind.CONTRACT), "CACHE", "CACHE", "CACHE"),
        ),
    )


_FIXPIPE = ("relu", "cast")  # in this order; that relu drops NaN is assumed
_FIXPIPE_OUT = ("scale", *_FIXPIPE)  # int32 by a number to float16, rounded to nearest even (assumed)


# What the vector unit has or composes of its instructions, or the scalar unit computes.
# fmt: off
_ASCEND_COMPUTES = (
    "add", "sub", "mul", "div", "neg", "abs", "copy", "cast", "where", "maximum", "minimum", "eq", "ne", "lt",
    "le", "gt", "ge", "copysign", "sqrt", "rsqrt", "floor", "ceil", "trunc", "round", "exp", "exp2", "expm1",
    "log", "log2", "log1p", "tanh", "sigmoid", "erf", "sinh", "cosh", "asin", "acos", "atan", "atan2",
    "sin", "cos", "tan", "pow", "fmod", "erfc", "cbrt", "lgamma",
    "int_floor_divide", "int_remainder", "logical_and", "logical_or", "logical_xor", "logical_not",
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "shift_left", "shift_right",
)
# fmt: on


def _ascend(name: str, cores: int, ub: int, l0c: int, bias_table: int, paths: tuple[CopyPath, ...]) -> Target:
    return Target(
        name,
        "ascend",
        cores,
        lane_bytes=256,
        near_bytes=ub,
        bandwidth=1.8e9 / 1e6 * (9.907 + 15.896 / cores),
        rate=1.8e9 / 1e6 / 0.0206,
        contract_rate=1.8e9 / 1e6 * 16 * 16 * 16 / 2,
        barrier_us=2.0,
        launch_us=5.0,
        dtypes=tuple(t for t in DType if t is not DType.FLOAT64),
        computes=_ASCEND_COMPUTES,
        facts=(
            Space(GM, 0, 1, onchip=False),
            Space("UB", ub, 32),
            Space("L1", 512 * 1024 - 256, 32),
            Space("L0A", 64 * 1024, 512),
            Space("L0B", 64 * 1024, 512),
            Space("L0C", l0c, 64),
            Space("BT", bias_table, 64),
            CopyPath(GM, "UB", "vector"),
            CopyPath("UB", GM, "vector"),
            CopyPath("UB", "UB", "vector"),
            CopyPath(GM, "L1", "cube"),
            CopyPath("L1", "L0A", "cube"),
            CopyPath("L1", "L0B", "cube"),
            CopyPath("L1", "BT", "cube"),
            CopyPath("BT", "L0C", "cube"),
            CopyPath("L0C", GM, "cube", _FIXPIPE_OUT),
            CopyPath("L0C", "L1", "cube", _FIXPIPE),
            *paths,
            Unit("vector", VECTOR_KINDS, "UB", "UB", "UB"),
            Unit("cube", (Kind.CONTRACT,), "L0A", "L0B", "L0C", widens=(DType.INT8,)),
        ),
    )


# 20 to 25 cores by model: 20 assumed. UB: 192 KB less what the framework reserves.
ASCEND_910B = _ascend("ascend910b", 20, 188_160, 128 * 1024, 1024, ())
# Cores and bandwidth assumed. The direct paths between the cube's results and the vector unit are this chip's own.
ASCEND_950 = _ascend(
    "ascend950",
    32,
    248 * 1024,
    256 * 1024,
    4096,
    (CopyPath("L0C", "UB", "cube", _FIXPIPE), CopyPath("UB", "L1", "vector")),
)
