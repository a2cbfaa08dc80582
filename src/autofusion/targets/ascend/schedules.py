"""Schedules for the AI Core: a chunk a vector core, and tiles that fill the unified buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autofusion.dims import product
from autofusion.errors import TargetError
from autofusion.kernel.ir import Kernel
from autofusion.kernel.schedule import Analysis, Schedule, Tile, estimate, propose
from autofusion.target import Target
from autofusion.targets.ascend import products
from autofusion.targets.ascend.kernel import onchip_bytes
from autofusion.tile import build

VECTOR_CORES = 2  # of an AI core
ROUNDS = 8  # tiles of a core at least, where there is work for them
HALVED = 2  # times that a tile is halved, so that there is room for larger temporaries
LINE = 64  # elements that a tile along contiguous elements is a multiple of


def choose(kernel: Kernel, target: Target) -> Schedule:
    """The first candidate whose tiles, temporaries and queues fit the unified buffer, its tiles then made as large as
    fit twice beside larger temporaries."""
    capacity = target.spaces["UB"].bytes

    def used(schedule: Schedule, ample: bool) -> int | None:
        try:
            return onchip_bytes(build.build(kernel, schedule, target), ample)
        except TargetError:
            return None  # said again, and to the user, when the source is written

    def fits(schedule: Schedule) -> bool:
        size = used(schedule, False)
        return size is None or size <= capacity

    analysis = Analysis(kernel)
    if analysis.contractions:
        of_products = next(filter(fits, products.candidates(analysis, target)), None)
        if of_products is not None:
            return of_products
    chosen = propose(kernel, target, fits)
    chosen = replace(chosen, chunks=VECTOR_CORES * target.cores)
    if analysis.contractions or not chosen.outer or chosen.parts > 1:
        return chosen
    chosen = next((s for s in _halves(chosen) if (used(s, True) or 0) <= capacity), chosen)
    for axis in reversed([tile.axis for tile in chosen.outer]):
        chosen = _grown(analysis, chosen, axis, target, lambda schedule: used(schedule, True), capacity)
    return chosen


def _halves(schedule: Schedule) -> Iterator[Schedule]:
    """The schedule, and with half its first tile that can be halved, and a quarter."""
    yield schedule
    for _ in range(HALVED):
        tile = next((t for t in schedule.outer if t.size > 1), None)
        if tile is None:
            return
        schedule = _with(schedule, tile.axis, tile.size // 2)
        yield schedule


def _grown(
    analysis: Analysis,
    schedule: Schedule,
    axis: str,
    target: Target,
    used: object,
    capacity: int,
) -> Schedule:
    """The schedule with the largest tile along an axis that fits: its bytes grow in proportion."""
    assert callable(used)
    tiles = {tile.axis: tile.size for tile in schedule.outer}
    size, extent = tiles[axis], estimate(analysis.extents[axis])
    others = product(-(-estimate(analysis.extents[n]) // s) for n, s in tiles.items() if n != axis)
    enough = ROUNDS * VECTOR_CORES * target.cores
    most = min(extent, max(size, extent * int(str(others)) // enough))
    if most <= size:
        return schedule
    here, twice = used(_with(schedule, axis, size)), used(_with(schedule, axis, 2 * size))
    if here is None or twice is None or twice <= here or here > capacity:
        return schedule
    wanted = min(most, size + (capacity - here) * size // (twice - here))
    step = LINE if wanted >= LINE and any(s.axes and s.axes[-1].name == axis for s in analysis.stores) else 1
    for attempt in (wanted // step * step, (wanted - step) // step * step):
        if attempt > size:
            found = _with(schedule, axis, attempt)
            needed = used(found)
            if needed is not None and needed <= capacity:
                return found
    return schedule


def _with(schedule: Schedule, axis: str, size: int) -> Schedule:
    outer = tuple(Tile(t.axis, size if t.axis == axis else t.size) for t in schedule.outer)
    return replace(schedule, outer=outer)
