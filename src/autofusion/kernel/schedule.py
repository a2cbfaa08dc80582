"""Schedules: the decisions for one kernel, as data, and the heuristics that propose them.

A bad schedule is slow, never wrong: whatever `Schedule` names, building checks that it is legal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm

from autofusion import text
from autofusion.dims import Dim, Expr, divisors, evaluate, product, range_of, symbols
from autofusion.dtypes import DType
from autofusion.errors import FormatError
from autofusion.kernel.ir import (
    Access,
    Axis,
    Contract,
    Copy,
    Fold,
    Kernel,
    Map,
    Role,
    Scan,
    Statement,
    operands_of,
    reduced_of,
)
from autofusion.kinds import Kind
from autofusion.ops import TABLE
from autofusion.target import Target, Unit
from autofusion.text import ir

CHUNKS = 64  # parallel parts of a launch at most: enough for a balanced tail on many cores
FAR = 1 << 20  # bytes that no cache near a core is expected to hold
SIZE_HINT = 512
LINE = 64  # elements
FEW_ROWS = 8  # fewer independent rows than this leave cores idle
PART = 16384  # elements of a long fold that a part is worth
DEEP = 16  # times the longest side of a result: a depth that is summed in parts
DEPTH = 384  # of a block of a contraction: with two vectors of columns it stays near
TALLEST, WIDEST = 1024, 2048  # rows and columns of a tile of a product
VECTOR = 64  # elements, of the longest vectors' multiples
REPEATS = 16  # tiles that an axis is expected to be cut into
REPEATED_SHARE = 0.25  # of the work: more than this is not done again for the sake of smaller tiles


@ir("{axis}:{size}")
@dataclass(frozen=True)
class Tile:
    """A tile size along an axis."""

    axis: str
    size: int


@ir("schedule outer={outer} stream={stream} chunks={chunks} block={block}[[ parts={parts}]]")
@dataclass(frozen=True)
class Schedule:
    """`outer`: axes bound to cores, with tile sizes. `stream`: at most one axis walked in tiles inside, once per
    dependent fold. `chunks`: the most parallel parts. `block`: rows, columns and depth of a contraction's block; a
    depth of 0 is all of it.
    `parts`: cores share the streamed axis in so many parts, whose partial states the next step merges in order."""

    outer: tuple[Tile, ...]
    stream: tuple[Tile, ...]
    chunks: int
    block: tuple[int, ...] = (64, 256, 256)
    parts: int = 1

    def __str__(self) -> str:
        return text.show(self)


def parse(source: str) -> Schedule:
    """Read a schedule's text back. Raises FormatError."""
    schedule = text.parse(Schedule, source, ())
    if len(schedule.stream) > 1 or len(schedule.block) != 3:
        raise FormatError("a schedule streams one axis at most and blocks three extents")
    return schedule


def estimate(dim: Dim) -> int:
    """A number for a dim that may be symbolic."""
    return dim if isinstance(dim, int) else int(evaluate(dim, dict.fromkeys(symbols(dim), SIZE_HINT)))


class Analysis:
    """What may be done with each axis of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.extents: dict[str, Dim] = {}
        self.broken: set[str] = set()
        self.reduced: set[str] = set()
        self.scanned: set[str] = set()
        self.definitions: dict[str, list[Statement]] = {}
        for statement in kernel.statements:
            self.definitions.setdefault(statement.target.name, []).append(statement)
            for axis in (*statement.axes, *reduced_of(statement)):
                self.extents[axis.name] = axis.extent
            self.reduced |= {a.name for a in reduced_of(statement)}
            if isinstance(statement, Scan):
                self.scanned.add(statement.along)
        self._find_broken()

    @cached_property
    def stores(self) -> tuple[Copy, ...]:
        """The copies to output parameters."""
        outputs = {p.name for p in self.kernel.params if p.role is Role.OUT}
        return tuple(s for s in self.kernel.statements if isinstance(s, Copy) and s.target.name in outputs)

    def value_axis(self, name: str, position: int) -> str | None:
        """The axis that a value's dimension is; None where its definitions do not agree on a plain one."""
        found = {str(d.target.index[position]) for d in self.definitions[name]}
        axis = next(iter(found))
        return axis if len(found) == 1 and axis in self.extents else None

    def _find_broken(self) -> None:
        for statement in self.kernel.statements:
            for operand in operands_of(statement):
                if not isinstance(operand, Access) or operand.name not in self.definitions:
                    continue
                for position, index in enumerate(operand.index):
                    axis = self.value_axis(operand.name, position)
                    if axis is None or str(index) != axis:
                        self._break(operand.name, position, index)

    def _break(self, name: str, position: int, index: Dim) -> None:
        for definition in self.definitions[name]:
            self.broken |= symbols(definition.target.index[position]) & set(self.extents)
        self.broken |= symbols(index) & set(self.extents)

    @cached_property
    def outer(self) -> list[str]:
        """Axes that tiles may be cut along: nothing crosses them, and every result has them; in the stores' order."""
        if not self.stores:
            return []
        order = [a.name for a in max(self.stores, key=lambda s: len(s.axes)).axes]
        shared = set(order).intersection(*({a.name for a in s.axes} for s in self.stores))
        return [n for n in order if n in shared and n not in self.broken | self.reduced | self.scanned]

    @cached_property
    def cut(self) -> list[str]:
        """The outer axes worth cutting: tiles along an axis that much of the work lacks would do that work again."""
        return [name for name in self.outer if not self.is_dear(name)] or self.outer[:1]

    def is_dear(self, axis: str) -> bool:
        """Whether tiles along an axis would do much of the work again, as it lacks the axis."""
        total = sum(_work(s) for s in self.kernel.statements)
        lacking = sum(_work(s) for s in self.kernel.statements if axis not in _axis_names(s))
        return lacking * (min(estimate(self.extents[axis]), REPEATS) - 1) > total * REPEATED_SHARE

    @cached_property
    def streamable(self) -> list[str]:
        """Axes that can be walked in tiles, recomputing once per fold along them; largest first."""
        return self.streamable_with(own_contractions=True)

    def streamable_with(self, own_contractions: bool) -> list[str]:
        """The same; without `own_contractions`, no axis of a contraction: another unit walks those."""
        results = {a.name for s in self.contractions for a in s.axes}  # recomputing a contraction is dear
        depths = {a.name for s in self.contractions for a in s.reduced}
        barred = self.broken | self.scanned | results | (set() if own_contractions else depths)
        free = [n for n in self.extents if n not in barred]
        folded = {n for n in free if self._owners(n) > 1 or n not in self.reduced}
        return sorted(folded, key=lambda n: (-estimate(self.extents[n]), n))

    def _owners(self, name: str) -> int:
        """How many statements have the axis; a contraction's own depth axis is walked by the contraction itself."""
        mine = [s for s in self.kernel.statements if name in {a.name for a in (*s.axes, *reduced_of(s))}]
        return 2 if any(not isinstance(s, Contract) for s in mine) else len(mine)

    @cached_property
    def depths(self) -> list[str]:
        """Axes that nothing but one contraction sums over: parts of them can be summed apart."""
        own = [a.name for s in self.contractions for a in s.reduced]
        return [n for n in own if n not in self.broken | self.scanned and self._owners(n) == 1]

    @cached_property
    def contractions(self) -> list[Contract]:
        return [s for s in self.kernel.statements if isinstance(s, Contract)]

    @cached_property
    def panels(self) -> dict[str, int]:
        """The axes that contractions read in panels of parameters, and how wide those are."""
        params, found = {p.name for p in self.kernel.params}, dict[str, int]()
        for operand in (a for s in self.contractions for a in (s.left, s.right) if a.name in params):
            for index, name in ((i, name) for i in operand.index for name in symbols(i)):
                found[name] = lcm(found.get(name, 1), *divisors(index, name))
        return found

    def half(self, axis: str, size: int) -> int:
        """About half of a tile: whole panels where it has several."""
        panel = self.panels.get(axis, 1)
        return -(-size // panel // 2) * panel if size >= 2 * panel else size // 2

    def value_bytes(self, tiles: dict[str, int]) -> Iterator[tuple[str, int]]:
        """Bytes of each value's tile."""
        for name, definitions in self.definitions.items():
            first = definitions[0]
            if any(p.name == name for p in self.kernel.params):
                continue
            size = _dtype_of(first).size
            for position in range(len(first.target.index)):
                size *= self._span(name, position, tiles)
            yield name, size

    def extent_in(self, axis: str, tiles: dict[str, int]) -> int:
        """The extent of an axis in a tile: what buffers are made for, so an open extent counts as its whole tile."""
        extent = self.extents[axis]
        if isinstance(extent, int):
            return min(tiles.get(axis, extent), extent)
        return tiles.get(axis, estimate(extent))

    def _span(self, name: str, position: int, tiles: dict[str, int]) -> int:
        axis = self.value_axis(name, position)
        if axis is not None:
            return self.extent_in(axis, tiles)
        spans = [range_of(d.target.index[position], self.extents)[1] for d in self.definitions[name]]
        return max(estimate(s) + 1 if s is not None else 1 for s in spans)

    def peak_bytes(self, tiles: dict[str, int]) -> int:
        """Bytes alive at once, parameter tiles included, when axes are cut to `tiles`."""
        sizes = dict(self.value_bytes(tiles))
        last: dict[str, int] = {}
        loads = 0
        seen: set[Access] = set()
        for position, statement in enumerate(self.kernel.statements):
            for operand in operands_of(statement):
                if not isinstance(operand, Access):
                    continue
                if operand.name in sizes:
                    last[operand.name] = position
                elif operand not in seen and not isinstance(statement, Contract):
                    seen.add(operand)
                    loads += self._load_bytes(operand, tiles)
        alive = peak = 0
        for position, statement in enumerate(self.kernel.statements):
            alive += sizes.get(statement.target.name, 0)
            peak = max(peak, alive)
            alive -= sum(sizes[n] for n, end in last.items() if end == position)
        return peak + loads

    def kept_bytes(self, tiles: dict[str, int]) -> int:
        """Bytes of the values that must be in memory when axes are cut to `tiles`: what folds, scans and contractions
        make or contract, and what is read at other positions than it is made."""
        kept = set()
        for statement in self.kernel.statements:
            if isinstance(statement, Fold | Scan | Contract):
                kept.add(statement.target.name)
            for operand in operands_of(statement):
                if isinstance(operand, Access) and operand.name in self.definitions:
                    made = {d.target.index for d in self.definitions[operand.name]}
                    if isinstance(statement, Contract) or made != {operand.index}:
                        kept.add(operand.name)
        return sum(size for name, size in self.value_bytes(tiles) if name in kept)

    def _load_bytes(self, operand: Access, tiles: dict[str, int]) -> int:
        size = next(p.dtype.size for p in self.kernel.params if p.name == operand.name)
        names = {n for index in operand.index for n in symbols(index)} & set(self.extents)
        for name in names:
            size *= self.extent_in(name, tiles)
        return size


def _axis_names(statement: Statement) -> set[str]:
    return {a.name for a in (*statement.axes, *reduced_of(statement))}


def _work(statement: Statement) -> float:
    """Elementwise operations of a statement; a multiply-add of a contraction is a fraction of one."""
    each = 0.25 if isinstance(statement, Contract) else 0.0 if isinstance(statement, Copy) else 1.0
    return each * estimate(product(a.extent for a in (*statement.axes, *reduced_of(statement))))


def _dtype_of(statement: Statement) -> DType:
    return statement.dtype if not isinstance(statement, Copy) else DType.FLOAT32


def propose(kernel: Kernel, target: Target, fits: Callable[[Schedule], bool] | None = None) -> Schedule:
    """The heuristic schedule: long contiguous tiles that fit on-chip, enough chunks to share, streaming where needed.

    `fits` says whether what a schedule builds fits on-chip: the first candidate that does is taken, else the smallest.
    """
    schedule = None
    for schedule in candidates(kernel, target):
        if fits is None or fits(schedule):
            break
    assert schedule is not None
    return schedule


def candidates(kernel: Kernel, target: Target) -> Iterator[Schedule]:
    """Schedules from the preferred one down to the smallest, each made for half the on-chip memory of the last."""
    analysis = Analysis(kernel)
    seen: set[Schedule] = set()
    budget = target.onchip_bytes * 3 // 4 if analysis.contractions else target.onchip_bytes // 2
    while True:
        make = _for_contraction if analysis.contractions else _for_vectors
        schedule = make(analysis, target, budget)
        if target.unit_for(Kind.CONTRACT) is target.vector:
            schedule = _unbroken(analysis, schedule)
        if schedule not in seen:
            seen.add(schedule)
            yield schedule
        if budget == 0:
            return
        budget //= 2


def _unbroken(analysis: Analysis, schedule: Schedule) -> Schedule:
    """The schedule with tiles that break no panel that a contraction reads: whole panels, or equal parts of one."""

    def whole(tile: Tile) -> Tile:
        panel = analysis.panels.get(tile.axis, 1)
        if tile.size >= panel:
            return Tile(tile.axis, tile.size // panel * panel)
        return Tile(tile.axis, max(part for part in range(1, tile.size + 1) if panel % part == 0))

    outer, stream = (tuple(map(whole, tiles)) for tiles in (schedule.outer, schedule.stream))
    return replace(schedule, outer=outer, stream=stream)


def passes_through(analysis: Analysis, target: Target) -> bool:
    """Whether a kernel is one contraction of parameters on the vector unit, and elementwise work on its result: all of
    it passes through the caches, in blocks of the contraction's own, whatever the tile."""
    unit = target.unit_for(Kind.CONTRACT)
    if unit is not target.vector or len(analysis.contractions) != 1:
        return False
    (main,) = analysis.contractions
    names = {a.name for a in main.axes}
    read = {main.left.name, main.right.name}
    return read <= {p.name for p in analysis.kernel.params} and all(
        s is main or (isinstance(s, Map | Copy) and {a.name for a in s.axes} == names)
        for s in analysis.kernel.statements
    )


def _total_work(analysis: Analysis) -> float:
    return float(
        sum(
            estimate(product(a.extent for a in (*s.axes, *reduced_of(s)))) * (8 if isinstance(s, Contract) else 2)
            for s in analysis.kernel.statements
        )
    )


def _parts(analysis: Analysis, target: Target) -> int:
    """How many parts the work is worth sharing out in."""
    work = _total_work(analysis) / 2
    for statement in analysis.kernel.statements:
        if isinstance(statement, Map) and target.byte_ops:
            work += _work(statement) * (max(1.0, TABLE.get(statement.op).flops) - 1)
    moved = sum(estimate(product(p.shape)) * p.dtype.size for p in analysis.kernel.params)
    if moved > FAR:
        work += moved * target.byte_ops
    return int(max(1, min(CHUNKS, work // target.grain)))


def _for_vectors(analysis: Analysis, target: Target, budget: int) -> Schedule:
    chunks = _parts(analysis, target)
    shared = _shared_axis(analysis, budget)
    if shared is not None:
        return shared
    outer = dict.fromkeys(analysis.cut, 1)
    stream = _stream(analysis, analysis.streamable, outer, budget)
    tiles = dict(outer) | {t.axis: t.size for t in stream}
    independent = product(estimate(analysis.extents[n]) for n in outer)
    limit = max(1, int(estimate(independent)) // chunks)  # elements of an outer tile, so that chunks have some each
    near = min(budget, target.near_bytes) if analysis.reduced or analysis.scanned else budget
    contiguous = {store.axes[-1].name for store in analysis.stores if store.axes}
    for name in reversed(analysis.cut):
        extent = analysis.extents[name]
        full = max(1, extent) if isinstance(extent, int) else 1 << 14
        line = min(full, LINE) if name in contiguous else 1  # parts of a cache line would be read in vain
        size = max(line, min(full, limit))
        while size > line and analysis.peak_bytes(tiles | {name: size}) > near:
            size = max(line, (size + 1) // 2)
        while size > 1 and analysis.peak_bytes(tiles | {name: size}) > budget:
            size = (size + 1) // 2
        tiles[name] = outer[name] = _rounded(size, full)
        limit = max(1, limit // tiles[name])
    return Schedule(tuple(Tile(n, s) for n, s in outer.items()), stream, chunks)


def _shared_axis(analysis: Analysis, budget: int) -> Schedule | None:
    """Few independent rows and a long fold: the folded axis itself is cut into parts."""
    rows = int(estimate(product(analysis.extents[n] for n in analysis.outer)))
    open_ended = any(isinstance(analysis.extents[n], Expr) for n in analysis.outer)
    if rows >= FEW_ROWS or open_ended or analysis.scanned:
        return None
    total = max(estimate(product(a.extent for a in (*s.axes, *reduced_of(s)))) for s in analysis.kernel.statements)
    folded = [a.name for s in analysis.kernel.statements for a in reduced_of(s) if a.name in analysis.streamable]
    for axis in dict.fromkeys(folded):
        parts = min(CHUNKS, total // PART, estimate(analysis.extents[axis]))
        if parts > 1 or isinstance(analysis.extents[axis], Expr):
            size = 4096
            while size > 1 and analysis.peak_bytes({axis: size}) > budget:
                size //= 2
            return Schedule((), (Tile(axis, size),), 1, parts=max(parts, 2))
    return None


def _rounded(size: int, full: int) -> int:
    """A tile size that wastes no part of a vector, where it is not the whole axis."""
    return size if size == full or size < 64 else size // 64 * 64


def _stream(analysis: Analysis, legal: list[str], outer: dict[str, int], budget: int) -> tuple[Tile, ...]:
    """The axis to stream, where rows do not fit or have an unknown length."""
    inner = [n for n in legal if n not in outer]
    open_ended = [n for n in inner if isinstance(analysis.extents[n], Expr)]
    if not open_ended and (not inner or analysis.peak_bytes(dict(outer)) <= budget):
        return ()
    axis = (open_ended or inner)[0]
    size = 4096
    while size > 16 and analysis.peak_bytes(dict(outer) | {axis: size}) > budget:
        size //= 2
    return (Tile(axis, size),)


def _for_contraction(analysis: Analysis, target: Target, budget: int) -> Schedule:
    """Square-ish tiles of the result; whole rows where something folds along them."""
    main = max(analysis.contractions, key=lambda s: estimate(product(a.extent for a in (*s.axes, *s.reduced))))
    unit = target.unit_for(Kind.CONTRACT)
    assert unit is not None
    divided = unit is not target.vector
    if passes_through(analysis, target):
        return _for_product(analysis, main, target)
    rows, columns = _roles(analysis, main, divided)
    most = {rows: 128, columns: 256} if divided else {rows: 512, columns: 512}
    tiles = {name: _even(analysis.extents[name], most[name]) if name in most else 1 for name in analysis.cut}
    whole = [] if divided else [n for n in tiles if analysis.is_dear(n) or (n not in most and not _is_batch(main, n))]
    for name in whole:
        extent = analysis.extents[name]
        tiles[name] = extent if isinstance(extent, int) and extent > 0 else 1
    enough = min(target.cores * (2 if divided else 1), int(_total_work(analysis) // 2e6))
    shares = [(name, 1) for name in whole if not analysis.is_dear(name)]
    for name, least in (*shares, (rows, 32), (columns, 128), (rows, 16), (columns, 64)):
        while name in tiles and tiles[name] >= 2 * least and _tiles(analysis, tiles) < enough:
            tiles[name] = analysis.half(name, tiles[name])

    def shrunk(streamed: dict[str, int]) -> tuple[dict[str, int], tuple[int, int, int]]:
        """The tiles as small as makes them fit, and the block for them. Where a budget is all that there is to fit
        into, tiles that are smaller in vain stay large."""
        found = dict(tiles)
        block = _block(analysis, main, target, unit, found, budget)
        fits = False
        for name, least in (*shares, (columns, 128), (rows, 16), (columns, 16), (rows, 1), (columns, 1)):
            while name in found and found[name] > least and not fits:
                fits = _held_bytes(analysis, target, unit, found | streamed, block) <= budget
                if not fits:
                    found[name] = max(least, analysis.half(name, found[name]))
                    block = _block(analysis, main, target, unit, found, budget)
        if not divided and not fits and _held_bytes(analysis, target, unit, found | streamed, block) > budget:
            return dict(tiles), _block(analysis, main, target, unit, tiles, budget)
        return found, block

    small, block = shrunk({})
    stream: tuple[Tile, ...] = ()
    if (analysis.peak_bytes(small) if divided else analysis.kept_bytes(small)) > budget:
        stream = _stream(analysis, analysis.streamable_with(own_contractions=not divided), small, budget)
        if stream and not divided:  # what did not fit is walked in tiles: the others may be larger again
            small, block = shrunk({tile.axis: tile.size for tile in stream})
    return Schedule(tuple(Tile(n, s) for n, s in small.items()), stream, CHUNKS, block)


def _is_batch(main: Contract, axis: str) -> bool:
    """Whether both operands of a contraction have an axis: its products along it have nothing in common."""
    return _reads(main.left, axis) and _reads(main.right, axis)


def _for_product(analysis: Analysis, main: Contract, target: Target) -> Schedule:
    """Tiles as large as leaves one for each core: operands are packed once a tile. Of a small result and a long depth,
    cores sum parts. Axes that the rows' operand lacks, the height of an image, say, belong to a tile as its columns do,
    and are the first that cores share."""
    rows, columns = _roles(analysis, main, divided=False)
    most = {rows: TALLEST, columns: WIDEST}
    tiles = {name: _even(analysis.extents[name], most[name]) if name in most else 1 for name in analysis.cut}
    still = [operand for operand in (main.left, main.right) if _reads(operand, rows)]
    again = [n for n in tiles if n not in most and len(still) == 1 and not _reads(still[0], n)]
    for name in again:
        extent = analysis.extents[name]
        tiles[name] = extent if isinstance(extent, int) and extent > 0 else 1
    enough = min(target.cores, int(_total_work(analysis) // 2e6))
    shared = _shared_depth(analysis, main, enough) if _tiles(analysis, tiles) < enough else None
    if shared is not None:
        return Schedule((), (shared,), 1, (128, 256, 0), enough)
    least = {rows: 16, columns: 64}
    while _tiles(analysis, tiles) < enough:
        image = next((n for n in again if tiles[n] > 1), "")
        if image:
            tiles[image] = -(-tiles[image] // 2)
            continue
        name = max((n for n in tiles if n in least), key=lambda n: (tiles[n], n == columns), default="")
        if not name or tiles[name] < 2 * least[name]:
            break
        tiles[name] = _half(tiles[name])
    return Schedule(tuple(Tile(n, s) for n, s in tiles.items()), (), CHUNKS, (128, 256, 0))


def _shared_depth(analysis: Analysis, main: Contract, parts: int) -> Tile | None:
    """The depth in as many parts, where the result is small beside it: its tiles would each read much of an operand
    again."""
    if len(analysis.depths) != 1 or main.dtype.is_reduced:  # partial sums are not rounded to few bits
        return None
    (axis,) = analysis.depths
    depth, sizes = analysis.extents[axis], [a.extent for a in main.axes]
    if not isinstance(depth, int) or any(not isinstance(size, int) or size * DEEP > depth for size in sizes):
        return None
    if main.dtype.size * estimate(product(sizes)) > FAR:
        return None
    return Tile(axis, -(-depth // parts // VECTOR) * VECTOR)


def _roles(analysis: Analysis, main: Contract, divided: bool) -> tuple[str, str]:
    """The axes that are rows and columns of a contraction's tiles; "0", no axis's name, where there is one element.

    The last two of the result's, as a unit of its own has them. A core tiles any axis that the columns' operand lacks:
    where the last but one is none (an image's height beside its width), the longest that is, the channels, say."""
    index = main.target.index if divided else tuple(i for i in main.target.index if isinstance(i, Expr))
    rows, columns = (str(i) for i in (0, 0, *index)[-2:])
    across = [operand for operand in (main.left, main.right) if _reads(operand, columns)]
    if divided or len(across) != 1 or not _reads(across[0], rows):
        return rows, columns
    free = [a for a in main.axes if not _reads(across[0], a.name)]
    return max(free, key=lambda a: estimate(a.extent)).name if free else rows, columns


def _reads(operand: Access, axis: str) -> bool:
    return any(axis in symbols(index) for index in operand.index)


def _half(size: int) -> int:
    """Half of a tile, rounded up to whole vectors where it has several."""
    return -(-size // 2 // VECTOR) * VECTOR if size >= 2 * VECTOR else -(-size // 2)


def _even(extent: Dim, most: int) -> int:
    """Equal parts of an extent, none larger than `most`, in whole vectors but for one that is all of it."""
    if not isinstance(extent, int):
        return most
    parts = max(1, -(-extent // most))
    return max(1, extent) if parts == 1 else -(-extent // parts // VECTOR) * VECTOR


def _held_bytes(
    analysis: Analysis, target: Target, unit: Unit, tiles: dict[str, int], block: tuple[int, int, int]
) -> int:
    """What a tile takes of the on-chip memory. Where one unit does it all, operands are read in place or through
    small copies, and elementwise values live in registers."""
    if unit is target.vector:
        return analysis.kept_bytes(tiles)
    return analysis.peak_bytes(tiles) + _passing_bytes(analysis, target, unit, tiles, block)


def _tiles(analysis: Analysis, tiles: dict[str, int]) -> int:
    count = 1
    for name, size in tiles.items():
        count *= -(-estimate(analysis.extents[name]) // max(1, size))
    return count


def _sides(analysis: Analysis, statement: Contract, tiles: dict[str, int]) -> tuple[int, int]:
    """Rows and columns of a tile of a contraction's result."""
    spans = [analysis.extent_in(str(i), tiles) if isinstance(i, Expr) else 1 for i in statement.target.index[-2:]]
    return (1, 1, *spans)[-2], (1, *spans)[-1]


def _operand_size(analysis: Analysis, main: Contract) -> int:
    """Bytes of an element of the operands as they come from global memory."""
    sizes = [p.dtype.size for p in analysis.kernel.params if p.name in (main.left.name, main.right.name)]
    return max(sizes, default=main.dtype.size)


def _block(
    analysis: Analysis, main: Contract, target: Target, unit: Unit, tiles: dict[str, int], budget: int
) -> tuple[int, int, int]:
    """Rows, columns and depth of a block. Its operands and result fit where the unit has them; on a unit of its own
    twice, so that one block is loaded while the other is computed."""
    own_rows, own_columns = _sides(analysis, main, tiles)
    size = _operand_size(analysis, main)
    rows, columns, depth = 128, 256, 512
    if unit is target.vector:
        depth = _even(max((a.extent for a in main.reduced), key=estimate, default=1), DEPTH)
        while depth > 16 and depth * (own_rows + own_columns) * size > 2 * budget:
            depth //= 2
        return rows, columns, depth
    spaces = target.spaces
    share = max(1, target.onchip_bytes * 3 // 4 // max(1, budget))  # a smaller budget asks for smaller blocks
    limits = [spaces[s].bytes // 2 // share for s in (unit.left, unit.right, unit.result)]
    while columns > 16 and min(rows, own_rows) * min(columns, own_columns) * max(main.dtype.size, 4) > limits[2]:
        columns //= 2
    while rows > 16 and min(rows, own_rows) * min(columns, own_columns) * max(main.dtype.size, 4) > limits[2]:
        rows //= 2
    while depth > 16 and (
        depth * min(rows, own_rows) * size > limits[0] or depth * min(columns, own_columns) * size > limits[1]
    ):
        depth //= 2
    return rows, columns, depth


def _passing_bytes(
    analysis: Analysis, target: Target, unit: Unit, tiles: dict[str, int], block: tuple[int, int, int]
) -> int:
    """What the vector unit's memory holds besides values: blocks that arrive from another unit."""
    total = 0
    for statement in analysis.contractions:
        rows, columns = _sides(analysis, statement, tiles)
        slots = 3 if (unit.result, target.vector.left) in target.paths else 1
        total += slots * min(rows, block[0]) * min(columns, block[1]) * max(4, statement.dtype.size)
    return total


__all__ = ["Analysis", "Axis", "Fold", "Schedule", "Tile", "parse", "propose", "replace"]
