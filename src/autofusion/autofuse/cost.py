"""What a group costs, in microseconds. Costs only rank: no result ever depends on them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from autofusion.autofuse.axes import PARALLEL, Use
from autofusion.autofuse.forms import Form
from autofusion.autofuse.space import Shares, Space
from autofusion.target import Target

ELEMENT = 4  # bytes
PART = 16384  # elements of a long fold that are worth a part of their own


def time_of(target: Target, work: float, products: float, parallel: int) -> float:
    """Microseconds of arithmetic on as many cores as there are independent tiles."""
    return (work / target.rate + products / target.contract_rate) / max(1, min(target.cores, parallel))


def tiles_alone(space: Space, form: Form) -> int:
    """The tiles that an operator by itself can be cut into."""
    use = space.axes.use
    tiles = space.tiles([axis for axis in space.placed[form.name].value.axes if PARALLEL[use[space.axes.find(axis)]]])
    if tiles >= space.target.cores:
        return tiles
    return group_us(space, space.share(form), [space.sink_axes(form.node)])[1]


def group_us(space: Space, shares: Shares, sinks: Iterable[tuple[int, ...]]) -> tuple[float, int, bool]:
    """Microseconds of a group's arithmetic, the tiles it is cut into, and whether like work only adds to it.

    Three cuts are weighed: along every parallel axis, where operators that lack one of them work again in each tile;
    along those only that all operators have; and, where that leaves cores idle, along a folded axis, whose partial
    states one more step merges.
    """
    target = space.target
    work = sum([each for each, _ in shares.values()])
    products = sum([each for _, each in shares.values()])
    cut = space.parallel_roots(sinks)
    if len(shares) == 1 or all(map(cut.issubset, shares)):
        tiles = space.tiles(cut)
        plain = time_of(target, work, products, tiles), tiles
        if tiles >= target.cores:
            return *plain, True
        return *min(plain, _folded_cut(space, shares, work, products)), not cut and not _foldable(space, shares)
    common, again, needed = set(cut), 0.0, _tiles_needed(space, sinks)
    for axes, share in shares.items():
        missing = cut - axes
        if missing:
            common -= missing
            times = min(needed, space.tiles(missing))
            again += time_of(target, *share, target.cores) * (times - 1)
    choices = [
        (time_of(target, work, products, tiles) + more, tiles)
        for tiles, more in ((space.tiles(cut), again), (space.tiles(common), 0.0))
    ]
    if choices[1][1] < target.cores:
        choices.append(_folded_cut(space, shares, work, products))
    return *min(choices), False


def _tiles_needed(space: Space, sinks: Iterable[tuple[int, ...]]) -> int:
    """The tiles that a group is cut into at least: one for each core, and as many as fit on-chip, each with its part of
    the largest value that leaves the group."""
    elements = max([space.tiles(axes) for axes in sinks], default=1)
    return max(space.target.cores, math.ceil(elements * ELEMENT / space.target.onchip_bytes))


def _foldable(space: Space, shares: Shares) -> bool:
    """Whether an axis is long enough, and only folded, that it might be cut into parts."""
    use, size = space.axes.use, space.axes.size
    return any(use[root] == Use.REDUCED.value and size[root] >= 2 * PART for axes in shares for root in axes)


def _folded_cut(space: Space, shares: Shares, work: float, products: float) -> tuple[float, int]:
    """A group whose folded axis is cut into parts: what every operator of weight has, and nothing but folds break."""
    heaviest = max(shares, key=lambda axes: shares[axes])
    extents = [space.axes.size[root] for root in heaviest if space.axes.use[root] == Use.REDUCED]
    parts = max(extents, default=1) // PART
    if parts < 2 or products:
        return math.inf, 1
    return time_of(space.target, work, 0.0, parts) + space.target.barrier_us, parts
