"""What of the op table the chip computes, and how: asked of the generator, row by row and type by type.

Each row becomes a graph of one operator, then primitives; every primitive is put to the rules that write its code (the
tables of `elementwise`, `scalar` and `cube`, the choices of `Vector`), with operands that lie contiguously. A row is as
good as the worst of its primitives. Nothing about an operator is said here but what it needs to be tried (`SAMPLES`).

    gelu float32    mul native, erf composed, add native        composed
    gelu float16    the same between casts to float32           cast
    mul  int64      in no table of the vector unit              scalar
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from autofusion import dims
from autofusion.autofuse.space import runs_on_host
from autofusion.dtypes import DType
from autofusion.errors import TargetError
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph, Node
from autofusion.kernel.ir import Access, Axis, Fold, Literal, Scan
from autofusion.ops import TABLE, Kind, Op
from autofusion.ops.folds import FOLDS
from autofusion.passes import pipeline as passes
from autofusion.target import Target
from autofusion.targets.ascend import scalar
from autofusion.targets.ascend.cube import PRODUCTS
from autofusion.targets.ascend.elementwise import FLOATS, MASKS
from autofusion.targets.ascend.integers import INTEGERS, NARROW, TILED
from autofusion.targets.ascend.layout import Place
from autofusion.targets.ascend.rows import folded, scan
from autofusion.targets.ascend.tiles import FLOAT, INT, MASK, Tiles
from autofusion.targets.ascend.vector import Needs, Vector, Writer


class Way(StrEnum):
    """How something is computed, the best first."""

    NATIVE = "native"  # one instruction a tile, or none: views are addresses
    COMPOSED = "composed"  # several vector instructions
    CAST = "cast"  # as float32 or int32: conversions on the way in and on the way out
    SCALAR = "scalar"  # the scalar unit, an element at a time
    NOT = "not"  # the host computes it, between launches


ORDER = tuple(Way)


@dataclass(frozen=True)
class Support:
    """A row of the op table: the way for each element type that the row admits."""

    row: Op
    ways: Mapping[DType, Way]

    @property
    def best(self) -> Way:
        """The best of its types."""
        return min(self.ways.values(), key=ORDER.index, default=Way.NOT)


def matrix(target: Target, rows: Iterable[Op] = TABLE) -> list[Support]:
    """All rows, in the table's order."""
    return [Support(row, {dtype: way(row, dtype, target) for dtype in row.dtypes}) for row in rows]


def way(row: Op, dtype: DType, target: Target) -> Way:
    """How a row is computed on operands of a type; TargetError for a row that nobody said how to try."""
    graph = passes.run(example(row, dtype))
    ways = [_node(graph, node, target) for node in graph.nodes if node.kind is not Kind.SOURCE]
    worst = max(ways, key=ORDER.index, default=Way.NATIVE)
    if dtype.is_reduced and row.name != "cast" and any(node.op == "cast" for node in graph.nodes):
        worst = max(worst, Way.CAST, key=ORDER.index)  # a composite is float32 inside
    computing = [node for node in graph.nodes if node.kind in (Kind.ELEMENTWISE, Kind.REDUCE, Kind.SCAN, Kind.WINDOW)]
    return Way.COMPOSED if worst is Way.NATIVE and len(computing) > 1 else worst


# -- one operator ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Positions:
    """An operand of positions, whatever the row's type is."""

    shape: tuple[int, ...]


ROWS, COLUMNS = 8, 64
TABLED = (ROWS, COLUMNS)
IMAGE, FILTER = (1, 4, 8, 16), (4, 4, 1, 3)

# Operands and attributes of rows that are not elementwise; one operand of `TABLED` where there is none.
SAMPLES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "cumsum": ((TABLED,), {"axis": 1}),
    "cumprod": ((TABLED,), {"axis": 1}),
    "cummax": ((TABLED,), {"axis": 1}),
    "cummin": ((TABLED,), {"axis": 1}),
    "argmax": ((TABLED,), {"axis": 1}),
    "argmin": ((TABLED,), {"axis": 1}),
    **{
        name: ((TABLED,), {"axes": (1,)})
        for name in (
            *("sum", "prod", "max", "min", "any", "all", "mean", "var", "std", "norm", "l1_norm", "l2_norm"),
            *("sum_square", "log_sum", "logsumexp", "count_nonzero"),
        )
    },
    "batch_norm": (((2, 4, 16), (4,), (4,), (4,), (4,)), {}),
    "instance_norm": (((2, 4, 16), (4,), (4,)), {}),
    "group_norm": (((2, 4, 16), (4,), (4,)), {"num_groups": 2}),
    "lrn": (((2, 8, 16),), {"size": 3}),
    "layer_norm": ((TABLED, (COLUMNS,), (COLUMNS,)), {}),
    "rms_norm": ((TABLED, (COLUMNS,)), {}),
    **{f"window_{fold}": ((TABLED,), {"kernel": (1, 3)}) for fold in ("max", "min", "sum")},
    "max_pool": ((IMAGE,), {"kernel": (1, 3)}),
    "max_pool_indices": ((IMAGE,), {"kernel": (1, 3)}),
    "average_pool": ((IMAGE,), {"kernel": (1, 3)}),
    "lp_pool": ((IMAGE,), {"kernel": (1, 3)}),
    "global_average_pool": ((IMAGE,), {}),
    "global_max_pool": ((IMAGE,), {}),
    "resize": (((1, 8, 16),), {"sizes": (1, 8, 32)}),
    "matmul": (((16, 32), (32, 16)), {}),
    "gemm": (((16, 32), (32, 16)), {}),
    "linear": (((16, 32), (16, 32)), {}),
    "einsum": (((16, 32), (32, 16)), {"equation": "ij,jk->ik"}),
    "grouped_conv": (((1, 2, 4, 16), (2, 4, 4, 3)), {}),
    "conv": ((IMAGE, FILTER), {}),
    "conv_transpose": ((IMAGE, FILTER), {}),
    "flip": ((TABLED,), {"axes": (0,)}),
    "roll": ((TABLED,), {"shifts": (2,), "axes": (0,)}),
    "stack": ((TABLED, TABLED), {}),
    "concat": ((TABLED, TABLED), {}),
    "tile": ((TABLED,), {"repeats": (2, 1)}),
    "expand": (((1, COLUMNS),), {"shape": TABLED}),
    "reshape": ((TABLED,), {"shape": (COLUMNS, ROWS)}),
    "squeeze": (((ROWS, 1, COLUMNS),), {}),
    "unsqueeze": ((TABLED,), {"axes": (0,)}),
    "unfold": ((TABLED,), {"axis": 0, "size": 2}),
    "as_strided": ((TABLED,), {"shape": TABLED, "strides": (COLUMNS, 1)}),
    "slice": ((TABLED,), {"starts": (2, 0), "stops": (6, COLUMNS), "steps": (1, 1)}),
    "slice_update": ((TABLED, (4, COLUMNS)), {"starts": (2, 0), "stops": (6, COLUMNS), "steps": (1, 1)}),
    "pad": ((TABLED,), {"before": (1, 0), "after": (1, 0)}),
    "depth_to_space": ((IMAGE,), {"block": 2}),
    "space_to_depth": ((IMAGE,), {"block": 2}),
    "full": ((), {"shape": TABLED, "value": 1}),
    "iota": ((), {"shape": TABLED, "axis": 1}),
    "eye": ((), {"rows": ROWS, "columns": COLUMNS}),
    "gather": ((TABLED, Positions((4,))), {}),
    "gather_elements": ((TABLED, Positions((4, COLUMNS))), {}),
    "gather_nd": ((TABLED, Positions((4, 1))), {}),
    "one_hot": (((ROWS,), (), ()), {"depth": 4}),
    "topk_indices": ((TABLED,), {"k": 3}),
    "topk_values": ((TABLED,), {"k": 3}),
    "scatter_elements": ((TABLED, Positions((4, COLUMNS)), (4, COLUMNS)), {}),
    "scatter_nd": ((TABLED, Positions((4, 1)), (4, COLUMNS)), {}),
}


def example(row: Op, dtype: DType) -> Graph:
    """A graph of one operator."""
    F = GraphBuilder("one")
    shapes, attrs = SAMPLES.get(row.name, ((TABLED,) * _least(row), {}))
    if row.kind is Kind.SOURCE:
        attrs = attrs | {"dtype": dtype}
    elif row.name == "cast":
        attrs = {"dtype": DType.INT32 if dtype is DType.FLOAT32 else DType.FLOAT32}
    inputs = []
    for number, shape in enumerate(shapes):
        kept = DType.INT64 if isinstance(shape, Positions) else dtype
        if row.name == "where" and number == 0:
            kept = DType.BOOL
        extents = shape.shape if isinstance(shape, Positions) else shape
        inputs.append(F.input(f"x{number}", kept, extents))
    F.output(F.emit(row.name, inputs, attrs, "y"))
    return F.build()


def _least(row: Op) -> int:
    return row.arity if isinstance(row.arity, int) else row.arity[0]


# -- one primitive ---------------------------------------------------------------------------------------------------
def _node(graph: Graph, node: Node, target: Target) -> Way:
    """How a primitive is computed on its operands' types."""
    if node.kind in (Kind.VIEW, Kind.BROADCAST):
        return Way.NATIVE if node.output.dtype in target.dtypes else Way.NOT  # addresses of what reads it
    if runs_on_host(graph, target, node):
        return Way.NOT
    types = tuple(graph.values[name].dtype for name in node.inputs)
    dtype = node.output.dtype
    if node.kind is Kind.ELEMENTWISE:
        sources = {each.name for each in graph.nodes if each.kind is Kind.SOURCE}
        return _elementwise(node.op, types, dtype, made=sources.issuperset(node.inputs))
    if node.kind is Kind.CONTRACT:
        return Way.NATIVE if {PRODUCTS.get(each) for each in types} == {dtype.compute} else Way.NOT
    if node.kind is Kind.GATHER:
        return Way.SCALAR  # the positions; rows that lie in one piece are a copy each
    if node.kind is Kind.SCAN:
        assert node.row.fold is not None
        return _scan(node.row.fold, types[0], dtype)
    if node.kind is Kind.REDUCE or node.kind is Kind.WINDOW:
        assert node.row.fold is not None
        return _fold(node.row.fold, types[0], dtype, node.kind)
    return _elementwise("copy", (dtype,), dtype)


@cache
def _elementwise(op: str, types: tuple[DType, ...], dtype: DType, made: bool = False) -> Way:
    """`made`: of constants and positions, not of operands in memory."""
    vector = _vector({})
    operands = [Literal(each, 0) for each in types]
    kind = vector._computing(dtype, op, operands) if made else vector._kind(dtype, op, operands)
    if kind is None:
        return _by_element(op, types, dtype)
    if kind == "move":
        return Way.NATIVE
    if op != "cast" and any(each.is_reduced or each in NARROW for each in (dtype, *types)):
        return Way.CAST
    return Way.NATIVE if _instructions(vector, kind, op, types, dtype) <= 1 else Way.COMPOSED


def _by_element(op: str, types: Sequence[DType], dtype: DType) -> Way:
    try:
        scalar.compute(dtype, op, types, ["a", "b", "c"][: len(types)])
    except TargetError:
        return Way.NOT
    return Way.SCALAR


def _instructions(vector: Vector, kind: str, op: str, types: Sequence[DType], dtype: DType) -> int:
    """How many make the result of operands that are in tiles."""
    tiles = Tiles()
    if kind == "wide":
        return 2  # both halves are gathered
    values = [tiles.emit(_tile(each), f"given {number}") for number, each in enumerate(types)]
    if kind == "cast":
        result = vector._cast(tiles, values[0], types[0], dtype)
    elif kind == "integer":
        result = INTEGERS[op](tiles, types[-1], *values)
    else:
        result = {"float": FLOATS, "mask": MASKS}[kind][op](tiles, *values)
    lines, *_ = tiles.listing(result)
    return sum(not line.startswith("given") for line in lines)


def _tile(dtype: DType) -> str:
    return MASK if dtype is DType.BOOL else INT if dtype in TILED else FLOAT


@cache
def _fold(name: str, source: DType, dtype: DType, kind: Kind) -> Way:
    """A reduction of contiguous rows, or of the rows of a window; reduced types are folded as float32."""
    if source.is_reduced:
        inside = _fold(name, DType.FLOAT32, DType.FLOAT32, kind)
        return max(inside, Way.CAST, key=ORDER.index)
    i, j, k = (dims.symbol(each) for each in "ijk")
    step = FOLDS[name].step
    rows, columns = Axis("i", ROWS), Axis("j", COLUMNS)
    if kind is Kind.WINDOW:
        line = Fold(Access("y", (i, j)), dtype, name, Access("x", (i, j + k)), (rows, columns), (Axis("k", 3),))
        places = {"x": Place("x", source, (COLUMNS, 1), ROWS * COLUMNS), "y": Place("y", dtype, (COLUMNS, 1))}
        tiled = _vector(places)._tiled_fold(line)
        return _elementwise(step, (dtype, source), dtype) if tiled else _by_element(step, (dtype, dtype), dtype)
    line = Fold(Access("y", (i, 0)), dtype, name, Access("x", (i, j)), (rows,), (columns,))
    places = {"x": _table("x", source), "y": Place("y", dtype, (ROWS, 1), ROWS, True, (ROWS, 1))}
    whole = folded(_vector(places), line)
    return Way.COMPOSED if whole else _by_element(step, (dtype, dtype), dtype)


@cache
def _scan(name: str, source: DType, dtype: DType) -> Way:
    """A scan along contiguous rows; reduced types are scanned as float32."""
    if source.is_reduced:
        inside = _scan(name, DType.FLOAT32, DType.FLOAT32)
        return max(inside, Way.CAST, key=ORDER.index)
    at = (dims.symbol("i"), dims.symbol("j"))
    line = Scan(Access("y", at), dtype, name, Access("x", at), "j", (Axis("i", ROWS), Axis("j", COLUMNS)))
    return Way.COMPOSED if scan(_vector({"x": _table("x", source), "y": _table("y", dtype)}), line) else Way.SCALAR


def _table(name: str, dtype: DType) -> Place:
    return Place(name, dtype, (COLUMNS, 1), ROWS * COLUMNS, extents=(ROWS, COLUMNS))


def _vector(places: Mapping[str, Place]) -> Vector:
    return Vector(Writer(), places, Needs())
