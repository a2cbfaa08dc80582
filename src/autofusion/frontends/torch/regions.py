"""Which operators of an FX graph are ours, and in which launch: the rest runs in PyTorch, in the order of the source.

Operators that run in PyTorch keep their order, but random draws that read no tensor come before others that draw
nothing. What is ours runs as early as its operands allow: what PyTorch runs of the arguments alone, region 0, then what
PyTorch runs and needs nothing later, then region 1 … so that there are at most as many launches as runs of other
operators, and one more. Views cost nothing and belong to no region: each reader makes its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from autofusion import dims
from autofusion.dims import Dim, Expr, Shape, symbols
from autofusion.dtypes import DType
from autofusion.errors import DivisionByZero, ExecutionError, IndexOutOfRange
from autofusion.frontends.torch import adapter
from autofusion.frontends.torch.adapter import Unmapped
from autofusion.frontends.torch.aten import ATEN
from autofusion.frontends.torch.call import DIVISOR, Call, Place
from autofusion.frontends.torch.defects import REFUSALS, Defect, survived
from autofusion.frontends.torch.reals import Real, real_of
from autofusion.frontends.torch.uncompiled import why
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph, Guard, Node, Value
from autofusion.ops import Kind, TensorType

Tell = Callable[[int], ExecutionError]
FROZEN = "frozen"  # in a placeholder's meta: an array, where the argument's value is compiled in


class Owner(Enum):
    """Who runs a node of an FX graph."""

    GIVEN = "given"  # an argument, or an attribute of the module
    SIZE = "size"  # computes a number of the host
    ITEM = "item"  # picks one of several results
    VIEW = "view"  # ours, and PyTorch's where a tensor is needed; also what picks one of several views
    OURS = "ours"
    EAGER = "eager"


@dataclass
class Region:
    """One launch. `reads` and `writes`: nodes whose tensors come in and go out; `sizes`: nodes of open sizes that no
    tensor that comes in has as an extent, passed as the extent of a tensor of one element."""

    number: int
    nodes: list[Any] = field(default_factory=list)
    reads: list[Any] = field(default_factory=list)
    writes: list[Any] = field(default_factory=list)
    sizes: list[str] = field(default_factory=list)
    failures: dict[str, Tell] = field(default_factory=dict)  # of checked values, the error for a position
    graph: Graph | None = None  # None where it could not be built: PyTorch runs its nodes
    defect: Defect | None = None


@dataclass
class Split:
    """An FX graph, divided. `owners` and `reasons` are by node; `defects`: what failed where it should not have."""

    owners: dict[Any, Owner]
    reasons: dict[Any, str]  # why PyTorch runs a node
    stages: dict[Any, int]
    regions: list[Region]
    defects: list[Defect]


# -- one node ----------------------------------------------------------------------------------------------------------
def overload(node: Any) -> str:
    """`add.Tensor`; with the namespace where it is not aten."""
    name = str(node.target)
    return name.removeprefix("aten.")


def results_of(node: Any) -> list[Any]:
    """What PyTorch's tracing says of a node's results: fake tensors, or None."""
    found = node.meta.get("val")
    return list(found) if isinstance(found, tuple | list) else [found]


def is_view(node: Any) -> bool:
    """Whether its results share memory with its operand: one, or several as those of split."""
    return bool(getattr(node.target, "is_view", False))


def translate(node: Any, builder: GraphBuilder, value_of: Callable[[Any], Any]) -> list[Value | None]:
    """The node's results as values of a graph. Raises Unmapped or another GraphError."""
    name = overload(node)
    maker = ATEN.get(name)
    if maker is None:
        raise Unmapped(why(node.target) if hasattr(node.target, "_schema") else f"{name} is no operator of PyTorch's")
    arguments = dict(adapter.arguments(node.target, node.args, node.kwargs))
    given = {key: _operand(each, value_of) for key, each in arguments.items()}
    fakes = results_of(node)
    types = [adapter.type_of(fake) if adapter.is_tensor(fake) else None for fake in fakes]
    made = maker(Call(builder, name, given, types, _used(node, len(fakes)), lambda each: _place(arguments[each])))
    listed = list(made) if isinstance(made, tuple | list) else [made]
    return [
        value if value is None or wanted is None else _checked(name, builder, value, wanted, fake)
        for value, wanted, fake in zip(listed, types, fakes, strict=True)
    ]


def _place(node: Any) -> Place:
    """How a tensor lies in its storage. No guard of PyTorch's holds where an argument begins in its own."""
    fake, base = results_of(node)[0], node
    while base.op == "call_function" and (is_view(base) or base.target is operator.getitem):
        base = base.args[0]
    if base.op != "call_function":
        return Place(fake.is_contiguous())
    return Place(fake.is_contiguous(), adapter.dim_of(fake.storage_offset()))


def _used(node: Any, count: int) -> tuple[bool, ...]:
    """Which results of a node are read."""
    if not isinstance(node.meta.get("val"), tuple | list):
        return (True,)
    picked = {user.args[1] for user in node.users if user.target is operator.getitem}
    return tuple(n in picked for n in range(count))


def _checked(name: str, builder: GraphBuilder, value: Value, wanted: TensorType, fake: Any) -> Value:
    """The value, with the extents that PyTorch says where its guards are what makes them so. Raises Unmapped where what
    was made is not what PyTorch says that the operator gives."""
    pairs = list(zip(value.shape, wanted.shape, strict=False))
    if value.dtype is wanted.dtype and len(value.shape) == len(wanted.shape):
        if all(_same(a, b, size) for (a, b), size in zip(pairs, fake.shape, strict=True)):
            return value
        if all(_same(a, b, size) or dims.may_be(a, b) for (a, b), size in zip(pairs, fake.shape, strict=True)):
            return builder.expand(value, shape=wanted.shape)  # a guard of the graph says that the extents agree
    raise Unmapped(f"{name}: made {_shown(value.type)}, PyTorch has {_shown(wanted)}")


def _shown(type_: TensorType) -> str:
    return f"{type_.dtype}{dims.show_shape(type_.shape)}"


def _same(made: Dim, wanted: Dim, size: Any) -> bool:
    """Whether an extent is what PyTorch says, for all sizes of at least what its guards let through: max(0, n-1) is n-1
    where n is at least 2. The value keeps its own, which is right without the guard too."""
    if dims.equal(made, wanted):
        return True
    above = {name: dims.symbol(name) + lower for name, lower in adapter.least(size).items()}
    return bool(above) and dims.equal(dims.substitute(made, above), dims.substitute(wanted, above))


def _operand(item: Any, value_of: Callable[[Any], Any]) -> Any:
    """An argument of a node in our words."""
    torch = adapter.torch()
    if isinstance(item, torch.fx.Node):
        return value_of(item)
    if isinstance(item, tuple | list):
        return [_operand(each, value_of) for each in item]
    if isinstance(item, torch.dtype):
        return adapter.dtype_of(item)
    if isinstance(item, torch.SymInt):
        return adapter.dim_of(item)
    if isinstance(item, torch.SymFloat):
        return real_of(item)
    if isinstance(item, complex):
        raise Unmapped("a complex number is not compiled")
    return item


def size_of(node: Any) -> Dim | float | bool | Real:
    """The value of a node that computes a number of the host. Raises Unmapped for one that sizes do not tell."""
    found = node.meta["val"]
    if isinstance(found, adapter.torch().SymFloat):
        return real_of(found)
    return found if isinstance(found, bool | float) else adapter.dim_of(found)


def is_size(node: Any) -> bool:
    """Whether it computes a number of the host."""
    torch = adapter.torch()
    return isinstance(node.meta.get("val"), int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)


def _is_read(node: Any) -> bool:
    """Whether it reads a tensor's elements to give a number."""
    return hasattr(node.target, "_schema") and not overload(node).startswith("sym_")


# -- the whole graph ---------------------------------------------------------------------------------------------------
def split(graph: Any, guards: Sequence[Guard] = ()) -> Split:
    """Who runs what, and in which launch; the regions' graphs are built. `guards`: of open sizes, for the launches that
    these come to."""
    owners: dict[Any, Owner] = {}
    reasons: dict[Any, str] = {}
    defects: list[Defect] = []
    for node in graph.nodes:
        if node.op != "output":
            owners[node] = _owner(node, owners, reasons, defects)
    stages = _stages(graph, owners)
    regions = _regions(graph, owners, stages, guards)
    defects += [region.defect for region in regions if region.defect is not None]
    return Split(owners, reasons, stages, regions, defects)


def _owner(node: Any, owners: dict[Any, Owner], reasons: dict[Any, str], defects: list[Defect]) -> Owner:
    if node.op in ("placeholder", "get_attr"):
        return Owner.GIVEN
    if is_size(node) and not _is_read(node):
        return Owner.SIZE
    if node.target is operator.getitem:
        return Owner.VIEW if owners[node.args[0]] is Owner.VIEW else Owner.ITEM
    try:
        _try(node)
    except REFUSALS as error:
        reasons[node] = str(error)
        return Owner.EAGER
    except Exception as error:
        defects.append(survived(f"{overload(node)} ({node.name})", error))
        reasons[node] = defects[-1].error
        return Owner.EAGER
    if is_view(node):
        return Owner.VIEW
    if any(adapter.is_tensor(fake) and overlaps(fake) for fake in results_of(node)):
        reasons[node] = f"{overload(node)}: several elements of a result lie in one place"
        return Owner.EAGER
    return Owner.OURS


def _try(node: Any) -> None:
    """Translate the node alone. Raises Unmapped."""
    builder = GraphBuilder("trial")

    def value_of(each: Any) -> Any:
        if is_size(each):
            return size_of(each)
        return _input(builder, each)

    translate(node, builder, _cached(value_of))


def _cached(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    found: dict[Any, Any] = {}

    def call(key: Any) -> Any:
        if key not in found:
            found[key] = function(key)
        return found[key]

    return call


def _input(builder: GraphBuilder, node: Any) -> Value:
    """A tensor that comes from outside, as it lies in memory."""
    fake = node.meta.get("val")
    if not adapter.is_tensor(fake):
        raise Unmapped(f"{node.name} is no tensor")
    if FROZEN in node.meta:
        return builder.constant(node.meta[FROZEN], node.name)
    dtype, shape = adapter.type_of(fake)
    strides = adapter.strides_of(fake)
    row_major = all(isinstance(d, int) for d in (*shape, *strides)) and fake.is_contiguous()
    return builder.input(node.name, dtype, shape, None if row_major or _is_row_major(shape, strides) else strides)


def _is_row_major(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    expected: Dim = 1
    for extent, step in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and step != expected:
            return False
        expected = dims.multiply(expected, extent)
    return True


def _stages(graph: Any, owners: dict[Any, Owner]) -> dict[Any, int]:
    """Of each node the region that makes it, or after which PyTorch does; −1 is before all regions."""
    stages: dict[Any, int] = {}
    ready: dict[Any, tuple[int, int]] = {}  # the first region that can read it, the stage after which PyTorch has it
    last = random = -1
    for node in graph.nodes:
        if node.op == "output":
            continue
        owner = owners[node]
        known = [ready[each] for each in node.all_input_nodes]
        region, after = max((r for r, _ in known), default=0), max((a for _, a in known), default=-1)
        if owner is Owner.OURS:
            after = region
        elif owner is Owner.EAGER:
            drawn, pure = _is_draw(node), _is_pure(node.target)
            after = max(random if drawn else last, after, -1 if pure else 0)
            region, last = after + 1, max(last, after)
            if not pure or _is_random(node.target):
                random = max(random, after)
        ready[node] = region, after
        stages[node] = after if owner is Owner.EAGER else region
    return stages


def _is_draw(node: Any) -> bool:
    """Whether it takes random numbers and reads no tensor: what it gives depends on those that were drawn before it."""
    return _is_random(node.target) and not node.all_input_nodes


def _is_random(target: Any) -> bool:
    return any(tag.name == "nondeterministic_seeded" for tag in getattr(target, "tags", ()))


def _is_pure(target: Any) -> bool:
    """Whether it does nothing but give results, and take random numbers."""
    schema = getattr(target, "_schema", None)
    return schema is not None and not schema.is_mutable and getattr(target, "namespace", "") in ("aten", "prims")


def _runner(node: Any, owners: dict[Any, Owner]) -> Owner:
    """Who computes a value: of a picked one, who made the several."""
    while owners[node] is Owner.ITEM:
        node = node.args[0]
    return owners[node]


def _regions(graph: Any, owners: dict[Any, Owner], stages: dict[Any, int], guards: Sequence[Guard]) -> list[Region]:
    by_stage: dict[int, Region] = {}
    for node in graph.nodes:
        if owners.get(node) is Owner.OURS:
            by_stage.setdefault(stages[node], Region(stages[node])).nodes.append(node)
    regions = [by_stage[number] for number in sorted(by_stage)]
    for region in regions:
        try:
            _build(region, owners, stages, guards)
        except Exception as error:
            region.graph, region.defect = None, survived(f"region{region.number}", error)
    return regions


def wanted(node: Any, owners: dict[Any, Owner]) -> Iterator[Any]:
    """Those who need a value as a tensor outside of the region that makes it, or in another one; through views and
    picked results, in the order of the source."""
    for user in node.users:
        owner = owners.get(user)  # None: the graph's output
        if owner is Owner.VIEW:
            yield from wanted(user, owners)
        elif owner is not Owner.SIZE:
            yield user


def _build(region: Region, owners: dict[Any, Owner], stages: dict[Any, int], guards: Sequence[Guard]) -> None:
    """The region's graph, with what comes in and goes out."""
    builder = GraphBuilder(f"region{region.number}")
    made: dict[Any, list[Value | None]] = {}
    checked: list[tuple[Any, Node]] = []

    def value_of(node: Any) -> Any:
        if is_size(node):
            return size_of(node)
        if owners[node] is Owner.ITEM and _runner(node, owners) is Owner.OURS and node.args[0] in made:
            value = made[node.args[0]][node.args[1]]
            if value is None:
                raise Unmapped(f"{node.name}: a result that is not made")
            return value
        if node not in made:
            if owners[node] is Owner.VIEW:
                made[node] = viewed(node)
            else:
                if FROZEN not in node.meta:
                    region.reads.append(node)
                made[node] = [_input(builder, node)]
        return made[node][0]

    def viewed(node: Any) -> list[Value | None]:
        if node.target is not operator.getitem:
            return translate(node, builder, value_of)
        value_of(node.args[0])
        return [made[node.args[0]][node.args[1]]]

    for node in region.nodes:
        before = len(builder.body)
        made[node] = translate(node, builder, value_of)
        checked += [(node, line) for line in builder.body[before:] if _is_checked(line)]
    for node in region.nodes:
        picked = [node] if not isinstance(node.meta["val"], tuple | list) else [u for u in node.users if u in owners]
        for each in picked:
            outside = any(owners.get(u) is not Owner.OURS or stages[u] != region.number for u in wanted(each, owners))
            if outside:
                region.writes.append(each)
                builder.output(_laid_out(builder, each, value_of(each)))
    _bind_sizes(region, builder)
    told = {d.name for value in builder.build().inputs for d in value.shape if isinstance(d, dims.Expr) and d.name}
    builder.guards |= {each: None for each in guards if symbols(each.left) | symbols(each.right) <= told}
    region.graph = graph = builder.build()
    region.failures = {line.name: _tell(node, line, graph.values[line.inputs[0]].shape) for node, line in checked}


def _is_checked(line: Any) -> bool:
    return isinstance(line, Node) and line.kind is Kind.GATHER


def _tell(node: Any, line: Node, shape: Shape) -> Tell:
    """What a node's check raises; `shape`: what is looked up."""
    who = f"{node.target} ({node.name})"
    if line.name.startswith(DIVISOR):
        return lambda at: DivisionByZero(f"ZeroDivisionError: {who}: element {at} of the divisor is 0")
    axis = line.attrs.get("axis")
    extent = "" if axis is None or isinstance(shape[axis], Expr) else f", an axis of {shape[axis]}"
    return lambda at: IndexOutOfRange(f"{who}: index at position {at} is out of range{extent}")


def _bind_sizes(region: Region, builder: GraphBuilder) -> None:
    """Sizes that the code needs and no tensor that comes in tells."""
    graph = builder.build()
    known = {d.name for value in graph.inputs for d in value.shape if isinstance(d, dims.Expr) and d.name}
    used: set[str] = set()
    for value in graph.values.values():
        used |= set().union(*(symbols(d) for d in (*value.shape, *(value.strides or ()))), frozenset())
    for node in graph.nodes:
        for attribute in node.attributes:
            listed = attribute.value if isinstance(attribute.value, tuple) else (attribute.value,)
            used |= set().union(*(symbols(d) for d in listed if isinstance(d, dims.Expr)), frozenset())
    for name in sorted(used - known):
        builder.input(f"size_{name}", DType.UINT8, (dims.symbol(name),), (0,))
        region.sizes.append(name)


# -- layouts -----------------------------------------------------------------------------------------------------------
def order_of(fake: Any) -> tuple[int, ...] | None:
    """The axes from the slowest to the fastest, where they are dense in another order than the tensor's; None for
    row-major. Raises Unmapped where the tensor is not dense."""
    shape, strides = [dim_hint(d) for d in fake.shape], [dim_hint(d) for d in fake.stride()]
    if 0 in shape:
        return None
    axes = sorted(range(len(shape)), key=lambda a: (-strides[a], a))
    expected = 1
    for axis in reversed(axes):
        if shape[axis] != 1 and strides[axis] != expected:
            raise Unmapped("the tensor is not dense")
        expected *= shape[axis]
    real = [a for a in axes if shape[a] != 1]
    return None if real == sorted(real) else tuple(axes)


def overlaps(fake: Any) -> bool:
    """Whether elements of a tensor may lie in one place."""
    shape, strides = [dim_hint(d) for d in fake.shape], [dim_hint(d) for d in fake.stride()]
    if 0 in shape:
        return False
    reach = 1
    for step, extent in sorted((s, e) for s, e in zip(strides, shape, strict=True) if e > 1):
        if step < reach:
            return True
        reach += step * (extent - 1)
    return False


def dim_hint(size: Any) -> int:
    """An example of a size."""
    return size if isinstance(size, int) else int(size.node.hint if size.node.hint is not None else 2)


def _laid_out(builder: GraphBuilder, node: Any, value: Value) -> Value:
    """The value as its tensor lies in memory: row-major over the axes from the slowest to the fastest."""
    fake = results_of(node)[0]
    if 0 in value.shape:
        return value
    try:
        order = order_of(fake)
    except Unmapped:
        order = None  # copied into its strides by the program
    return value if order is None else builder.transpose(value, axes=order)
