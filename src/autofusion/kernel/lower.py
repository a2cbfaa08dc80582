"""From a FusionGroup to its Kernel: name the axes, turn every operator into statements, copy results out.

Inside a group, values of reduced precision stay in float32 unless `strict`; what leaves the group is rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autofusion import dims
from autofusion.autofuse.forms import Form, Forms
from autofusion.autofuse.partition import FusionGroup
from autofusion.autofuse.space import Space
from autofusion.dims import Dim, Expr, symbols
from autofusion.dtypes import DType
from autofusion.graph.index import Operand as Read
from autofusion.graph.index import Region
from autofusion.graph.ir import Graph, Node, Value
from autofusion.kernel import ir
from autofusion.kernel.ir import Access, Axis, Copy, Kernel, Literal, Map, Operand, Param, Role
from autofusion.ops import Kind
from autofusion.ops.elementwise import cast_values
from autofusion.ops.rules import axis_of
from autofusion.ops.structure import linear
from autofusion.target import Target


@dataclass(frozen=True)
class Lowered:
    """A kernel, the graph values behind its parameters, and the graph's names for its canonical ones."""

    kernel: Kernel
    arguments: tuple[str, ...]
    names: Mapping[str, str]


def outputs_of(graph: Graph, group: FusionGroup) -> list[Value]:
    """The group's values that something outside reads, or that are results of the graph."""
    inside = {node.name for node in group.nodes}
    results = {o.name for o in graph.outputs}
    found = []
    for node in group.nodes:
        if node.name in results or _leaves(graph, node.name, inside):
            found.append(node.output)
    return found


def final_outputs(graph: Graph, group: FusionGroup) -> frozenset[str]:
    """The group's results of the graph that nothing in the graph reads and that no argument's memory takes."""
    inside = {node.name for node in group.nodes}
    written = {o.name for o in graph.outputs if o.writes is not None}
    return frozenset(
        v.name for v in outputs_of(graph, group) if not written & {v.name} and not _is_read(graph, v, inside)
    )


def _is_read(graph: Graph, value: Value, inside: set[str]) -> bool:
    """Whether a value has a reader outside or a view."""
    return any(c.is_view or c.name not in inside for c in graph.consumers[value.name])


def _leaves(graph: Graph, name: str, inside: set[str]) -> bool:
    """Whether a reader (past views) is outside, or a view of the value is a result."""
    for consumer in graph.consumers[name]:
        if consumer.is_view:
            if any(o.name == consumer.name for o in graph.outputs) or _leaves(graph, consumer.name, inside):
                return True
        elif consumer.name not in inside:
            return True
    return False


class _Lowering:
    def __init__(self, graph: Graph, group: FusionGroup, forms: Forms, target: Target, strict: bool) -> None:
        self.graph = graph
        self.forms = forms
        self.strict = strict
        self.space = Space(graph, target, forms)
        self.nodes = group.nodes
        self.outputs = outputs_of(graph, group)
        self.leaving = {v.name for v in self.outputs}
        self.inside = {node.name for node in group.nodes}
        self.params: dict[str, Param] = {}
        self.values: dict[str, str] = {}
        self.axis_names: dict[int, str] = {}
        self.statements: list[ir.Statement] = []

    def run(self) -> Lowered:
        for node in self.nodes:
            form = self.forms.of(node)
            self.space.add(form)
            self.space.connect(form, self.inside)
        for node in self.nodes:  # after all that must agree: these only may
            self.space.align_reads(self.forms.of(node), self.inside)
        for node in self.nodes:
            self.values[node.name] = f"v{len(self.values)}"
        for node in self.nodes:
            form = self.forms.of(node)
            for number in _written(form):
                self.statements += self._rounded(self._statement(form, number, form.regions[number]))
        for value in self.outputs:
            self._copy_out(value)
        names = {short: name for name, short in self.values.items()}
        names |= {param.name: name for name, param in self.params.items()}
        kernel = Kernel((*self.params.values(), *self.statements))
        return Lowered(kernel, tuple(self.params), names)

    # -- names -------------------------------------------------------------------------------------------------------
    def _axis(self, axis: int) -> str:
        root = self.space.axes.find(axis)
        if root not in self.axis_names:
            self.axis_names[root] = f"i{len(self.axis_names)}"
        return self.axis_names[root]

    def _param(self, value: Value, role: Role) -> str:
        if value.name not in self.params:
            self.params[value.name] = Param(f"p{len(self.params)}", value.dtype, value.shape, role, value.strides)
        return self.params[value.name].name

    def _dtype(self, node: Node) -> DType:
        """The type that the node's value is rounded to."""
        dtype = node.output.dtype
        explicit = "dtype" in node.attrs
        return dtype if self.strict or explicit or node.name in self.leaving else dtype.compute

    # -- statements --------------------------------------------------------------------------------------------------
    def _statement(self, form: Form, number: int, region: Region) -> ir.Statement:
        node = form.node
        local = self.space.placed[node.name].local[number]
        renamed: dict[str, Dim] = {name: dims.symbol(self._axis(axis)) for name, axis in local.items()}
        axes = tuple(Axis(str(renamed[name]), extent) for name, extent in region.axes.items())
        reduced = tuple(Axis(str(renamed[name]), extent) for name, extent in region.reduced.items())
        target = Access(self.values[node.name], _rename(region.output, renamed))
        reads = [self._operand(operand, renamed) for operand in region.operands]
        dtype = self._dtype(node)
        return self._make(node, region, target, dtype, reads, axes, reduced, renamed)

    def _rounded(self, statement: ir.Statement) -> list[ir.Statement]:
        """Folds and contractions accumulate in float32; a reduced result is rounded by a statement of its own."""
        if not isinstance(statement, ir.Fold | ir.Scan | ir.Contract) or not statement.dtype.is_reduced:
            return [statement]
        wide = Access(statement.target.name + "w", statement.target.index)
        folding = replace(statement, target=wide, dtype=statement.dtype.compute)
        return [folding, Map(statement.target, statement.dtype, "cast", (wide,), statement.axes)]

    def _make(
        self,
        node: Node,
        region: Region,
        target: Access,
        dtype: DType,
        reads: list[Operand],
        axes: tuple[Axis, ...],
        reduced: tuple[Axis, ...],
        renamed: Mapping[str, Dim],
    ) -> ir.Statement:
        if node.kind in (Kind.REDUCE, Kind.WINDOW):
            assert node.row.fold
            return ir.Fold(target, dtype, node.row.fold, reads[0], axes, reduced)
        if node.kind is Kind.SCAN:
            assert node.row.fold
            if region.scanned is None:
                return Map(target, dtype, "cast" if dtype is not node.output.dtype else "copy", tuple(reads), axes)
            return ir.Scan(target, dtype, node.row.fold, reads[0], str(renamed[region.scanned]), axes)
        if node.kind is Kind.CONTRACT:
            left, right = (self._in_storage(read, (*axes, *reduced)) for read in reads)
            tuned = self.space.library(node)
            return ir.Contract(target, dtype, left, right, axes, reduced, library=tuned.name if tuned else "")
        if node.kind is Kind.GATHER:
            source, position = reads
            axis = region.operands[0].gathered
            assert axis is not None
            extent = self.graph.values[region.operands[0].value].shape[axis]
            if isinstance(source, Literal):
                source, axis = self._gathered_literal(region.operands[0], extent, axes, renamed)
            ordinal = dims.substitute(self._ordinal(node, region), renamed)
            wraps = bool(node.attrs.get("wraps", True))
            return ir.Gather(target, dtype, source, axis, position, extent, axes, ordinal, wraps)
        if node.kind in (Kind.JOIN, Kind.COMM):
            return Map(target, dtype, "copy", tuple(reads), axes)
        return Map(target, dtype, node.op, tuple(reads), axes)

    def _ordinal(self, node: Node, region: Region) -> Dim:
        """Which of a gather's positions is read, counted in row-major order."""
        data, positions = (self.graph.values[name] for name in node.inputs)
        axis = axis_of(node.attrs["axis"], len(data.shape))
        return linear(list(region.output[axis : axis + len(positions.shape)]), positions.shape)

    def _gathered_literal(
        self, read: Read, extent: Dim, axes: tuple[Axis, ...], renamed: Mapping[str, Dim]
    ) -> tuple[Access, int]:
        """A gather's data that is a literal, as a value over the gathered axis (last) and the axes that it uses."""
        assert read.gathered is not None
        along = Axis(f"g{len(self.statements)}", extent)
        index = list(read.index)
        index[read.gathered] = dims.symbol(along.name)
        literal = self._operand(read._replace(index=tuple(index)), renamed)
        assert isinstance(literal, Literal)
        used = symbols(literal.value) if isinstance(literal.value, Expr) else frozenset()
        own = (*(a for a in axes if a.name in used), along)
        place = self._stored(literal, own)
        return Access(place.name, (*place.index[:-1], 0)), len(own) - 1

    def _in_storage(self, read: Operand, axes: tuple[Axis, ...]) -> Access:
        """An operand that must be a tensor: a literal becomes a value over those of the axes that it uses."""
        if isinstance(read, Access):
            return read
        used = symbols(read.value) if isinstance(read.value, Expr) else frozenset()
        own = tuple(a for a in axes if a.name in used)
        return self._stored(read, own)

    def _stored(self, literal: Literal, axes: tuple[Axis, ...]) -> Access:
        """A value of its own that holds a literal at every point."""
        place = Access(f"c{len(self.statements)}", tuple(dims.symbol(a.name) for a in axes))
        self.statements.append(Map(place, literal.dtype, "copy", (literal,), axes))
        return place

    def _operand(self, read: Read, renamed: Mapping[str, Dim]) -> Operand:
        index = _rename(read.index, renamed)
        source = self.graph.producers.get(read.value)
        if source is not None and source.kind is Kind.SOURCE:
            return _literal(source, index)
        if source is not None and source.name in self.inside:
            return Access(self.values[read.value], index)
        return Access(self._param(self.graph.values[read.value], Role.IN), index)

    def _copy_out(self, value: Value) -> None:
        axes, index = [], []
        for axis, extent in zip(self.space.placed[value.name].outputs, value.shape, strict=True):
            if axis is None:
                index.append(0)
                continue
            name = self._axis(axis)
            axes.append(Axis(name, extent))
            index.append(dims.symbol(name))  # type: ignore[arg-type]
        source = Access(self.values[value.name], tuple(index))
        self.statements.append(Copy(Access(self._param(value, Role.OUT), tuple(index)), source, tuple(axes)))


def _written(form: Form) -> list[int]:
    """The regions of a join that write something which no later one writes again, but one at least."""
    numbers = [n for n, region in enumerate(form.regions) if 0 not in region.axes.values()]
    if all(extent == 1 for extent in form.node.output.shape):
        numbers = numbers[-1:]
    return numbers or [0]


def _rename(index: tuple[Dim, ...], renamed: Mapping[str, Dim]) -> tuple[Dim, ...]:
    return tuple(dims.substitute(i, renamed) for i in index)


def _literal(source: Node, index: tuple[Dim, ...]) -> Literal:
    attrs: dict[str, Any] = source.attrs
    dtype = source.output.dtype
    if "value" in attrs:
        value = attrs["value"]
        return Literal(dtype, value if isinstance(value, Expr) else _number(value, dtype))
    position = index[attrs["axis"]]
    return Literal(dtype, position if isinstance(position, Expr) else int(position))


def _number(value: bool | int | float, dtype: DType) -> bool | int | float:
    """What the type holds of a number: rounded, wrapped or saturated as a cast would."""
    held = cast_values(np.asarray(value), dtype)
    return float(held) if dtype.is_float else bool(held) if dtype is DType.BOOL else int(held)


def lower(
    graph: Graph, group: FusionGroup, target: Target, forms: Forms | None = None, strict: bool = False
) -> Lowered:
    """The group's kernel. `strict`: every operator rounds to its declared type."""
    lowered = _Lowering(graph, group, forms or Forms(graph), target, strict).run()
    ir.verify(lowered.kernel)
    return lowered
