"""A model whose control flow depends on data, cut into sections: from a node as far as one graph goes.

A section is imported for the operands that arrive at its first node. It ends before the operator that needs a value
which is only known when the graph runs:

    If on a condition, Reshape to a shape   the section computes the value; the next one is made for it
    Loop, Scan, an If around one of these   the host runs the operator, its bodies are cut like the model
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from autofusion import dims, dtypes
from autofusion.api import Compiled
from autofusion.dims import Expr, Shape, evaluate
from autofusion.dtypes import Array
from autofusion.errors import ArgumentError, AutofusionError, GraphError
from autofusion.frontends.onnx.adapter import GraphDef, NodeDef
from autofusion.frontends.onnx.importer import Importer, Scope, plain
from autofusion.frontends.onnx.values import DataDependent, Dims, ImportBuilder, Undecided
from autofusion.graph.evaluate import bind_symbols
from autofusion.graph.ir import Graph, Guard, Value

SHORT = 64  # elements of a value that a section may be made for


# -- operands between sections -----------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Fixed:
    """A value that sections are made for: they may fold it, and serve no other."""

    array: Array


Held: TypeAlias = Array | Fixed


def array_of(held: Held) -> Array:
    """The value itself."""
    return held.array if isinstance(held, Fixed) else held


def kind_of(held: Held | None) -> Hashable:
    """What operands must have in common for one section to serve both, whatever their sizes. Fixed ones: the value,
    by content where it is short, else the very object."""
    if held is None:
        return None
    if not isinstance(held, Fixed):
        return held.dtype, held.ndim
    array = held.array
    return (array.dtype, array.shape, array.tobytes()) if array.size <= SHORT else held


def shapes_of(names: Sequence[str], env: Mapping[str, Held]) -> tuple[tuple[int, ...], ...]:
    """The shapes of operands in order."""
    return tuple([np.shape(array_of(env[name])) if name in env else () for name in names])


# -- what nodes read ---------------------------------------------------------------------------------------------------
def free_names(definition: GraphDef) -> tuple[str, ...]:
    """What a body reads from around it, in order."""
    inner = {each if isinstance(each, str) else each.name for each in definition.inputs} | set(definition.initialisers)
    found: dict[str, None] = {}
    for node in definition.nodes:
        found |= dict.fromkeys(name for name in reads_of(node) if name not in inner)
        inner |= set(node.outputs)
    found |= dict.fromkeys(name for name in definition.outputs if name not in inner)
    return tuple(found)


def reads_of(node: NodeDef) -> tuple[str, ...]:
    """The operands of a node and what its bodies read from around them, each once."""
    names = [name for name in node.inputs if name]
    for body in node.bodies.values():
        names += free_names(body)
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class Line:
    """The nodes of a graph or body. `reads`: by node. `live`: what is still read, before each node and at the end."""

    name: str
    definition: GraphDef
    reads: tuple[tuple[str, ...], ...]
    live: tuple[frozenset[str], ...]

    @classmethod
    def of(cls, name: str, definition: GraphDef) -> Line:
        reads = tuple(reads_of(node) for node in definition.nodes)
        live = [frozenset(definition.outputs)]
        for node, names in zip(reversed(definition.nodes), reversed(reads), strict=True):
            live.append(live[-1] - set(node.outputs) | set(names))
        return cls(name, definition, reads, tuple(reversed(live)))


# -- sections ----------------------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Section:
    """Nodes `start` to `stop` of a line as one graph, for the operands that `kinds` and `inputs` describe.

    `reason`: why the operator at `stop` is not in it, empty at the end of the line. `fixes`: operands whose values the
    next section is made for; none where the host runs that operator. `graph`: None where nothing is computed.
    `results`: the graph's outputs by name; `aliases`: names of operands as they arrived; `known`: values that were
    computed at import.
    """

    line: Line
    start: int
    stop: int
    reason: str
    fixes: tuple[str, ...]
    reads: tuple[str, ...]
    kinds: tuple[Hashable, ...]
    inputs: Mapping[str, Value]
    guards: tuple[Guard, ...]
    graph: Graph | None
    results: Mapping[str, int]
    aliases: Mapping[str, str]
    known: Mapping[str, Fixed | Dims]
    compiled: Compiled | None = None

    @property
    def name(self) -> str:
        return f"{self.line.name}.{self.start}"

    @property
    def nodes(self) -> tuple[NodeDef, ...]:
        return self.line.definition.nodes[self.start : self.stop]

    @property
    def next(self) -> NodeDef | None:
        """The operator that it ends before."""
        nodes = self.line.definition.nodes
        return nodes[self.stop] if self.stop < len(nodes) else None

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the inputs, where none is open."""
        return [tuple(d for d in value.shape if isinstance(d, int)) for value in self.inputs.values()]

    def takes(self, env: Mapping[str, Held]) -> bool:
        """Whether it serves these operands."""
        if self.kinds != tuple([kind_of(env.get(name)) for name in self.reads]):
            return False
        try:
            self.sizes(env)
        except ArgumentError:
            return False
        return True

    def sizes(self, env: Mapping[str, Held]) -> dict[str, int]:
        """The open dimensions. Raises ArgumentError where the shapes do not fit."""
        return bind_symbols(tuple(self.inputs.values()), shapes_of(tuple(self.inputs), env), self.guards)

    def values(self, env: Mapping[str, Held], run: Callable[[Section, list[Array]], list[Array]]) -> dict[str, Held]:
        """What later nodes read of it, by name. `run` gives the outputs of its graph."""
        found: dict[str, Held] = {}
        if self.graph is not None:
            outputs = run(self, [array_of(env[name]) for name in self.inputs])
            found = {name: outputs[at] for name, at in self.results.items()}
        found |= {name: env[source] for name, source in self.aliases.items()}
        for name, held in self.known.items():
            found[name] = held if isinstance(held, Fixed) else Fixed(_numbers(held, self.sizes(env)))
        for name in self.fixes:
            found[name] = Fixed(np.array(array_of(found.get(name, env.get(name)))))  # type: ignore[arg-type]
        return found


def _numbers(operand: Dims, sizes: Mapping[str, int]) -> Array:
    flat = [int(evaluate(each, sizes)) for each in operand.array.flat]
    return np.array(flat, np.int64).reshape(operand.shape)


def opened(names: Sequence[str], before: Sequence[tuple[int, ...]], now: Sequence[tuple[int, ...]]) -> dict[str, Shape]:
    """Shapes with the dimensions open that differ, by name; those that are equal in both are one symbol. Empty where
    one is 0 or 1, which may broadcast here and not there."""
    symbols: dict[tuple[int, int], Expr] = {}
    found: dict[str, Shape] = {}
    for name, old, new in zip(names, before, now, strict=True):
        pairs = list(zip(old, new, strict=True))
        if any(a != b and min(a, b) < 2 for a, b in pairs):
            return {}
        for each in pairs:
            if each[0] != each[1]:
                symbols.setdefault(each, dims.symbol(f"n{len(symbols)}"))
        if old != new:
            found[name] = tuple(symbols.get(each, each[1]) for each in pairs)
    return found


# -- cutting -----------------------------------------------------------------------------------------------------------
def cut(
    line: Line, start: int, env: Mapping[str, Held], shapes: Mapping[str, Shape] | None = None, whole: bool = False
) -> Section:
    """The section that starts at a node. `shapes` replaces those of operands, by ones with open dimensions.

    Where all that an operator needs to know comes from short operands of the section, the section is empty and these
    are its `fixes`, so that what is made of them is folded; not so with `whole`. Raises GraphError naming the operator
    that is not supported for these operands.
    """
    return _Cut(line, start, env, shapes or {}, whole).section()


class _Cut:
    def __init__(
        self, line: Line, start: int, env: Mapping[str, Held], shapes: Mapping[str, Shape], whole: bool
    ) -> None:
        self.line, self.start, self.env, self.shapes, self.whole = line, start, env, shapes, whole
        self.importer = Importer(line.definition, plain(f"{line.name}.{start}"), specialise=True)
        self.F: ImportBuilder = self.importer.F
        self.scope = Scope(self.importer, line.definition.opsets)
        self.reads: dict[str, None] = {}
        self.inputs: dict[str, Value] = {}

    def section(self) -> Section:
        nodes = self.line.definition.nodes
        for position in range(self.start, len(nodes)):
            node = nodes[position]
            before, new = self.F.mark(), self._arrive(node, self.line.reads[position])
            mark = self.F.mark()
            try:
                self.scope.node(node)
            except (DataDependent, Undecided) as error:
                self.F.undo(mark)
                fixes, early = self._deciding(node, error)
                if not fixes and not node.bodies:
                    self._as_it_is(node)
                    continue
                self.F.undo(before)
                self._leave(new)
                fixed = [name for name in node.inputs if isinstance(self.env.get(name), Fixed)]
                self._arrive(node, [name for name in new if name in fixes or name in fixed])
                return self._made(self.start if early else position, _reason(node, error), fixes)
        return self._made(len(nodes), "", ())

    def _as_it_is(self, node: NodeDef) -> None:
        """An operator whose values are too long to make sections for: perhaps the host can run it."""
        self.importer.specialise = False
        try:
            self.scope.node(node)
        except DataDependent as error:
            raise GraphError(str(error)) from None
        finally:
            self.importer.specialise = True

    def _arrive(self, node: NodeDef, names: Sequence[str]) -> list[str]:
        """Operands from before the section become inputs or known values when they are first read; gives these."""
        new = [name for name in names if name not in self.scope.names and name not in self.reads]
        for name in new:
            self.reads[name] = None
            held = self.env.get(name)
            try:
                if isinstance(held, Fixed):
                    self.scope.define(name, held.array)
                elif held is not None:
                    shape = self.shapes.get(name, held.shape)
                    value = self.F.input(self._input_name(name), dtypes.of(held), shape)
                    self.inputs[name] = value
                    self.scope.define(name, value)
            except AutofusionError as error:
                raise type(error)(f"{node.label}: {name!r}: {error}") from None
        return new

    def _leave(self, names: Sequence[str]) -> None:
        """Undo `_arrive`: that an operator is not in the section does not depend on all that it reads."""
        for name in names:
            del self.reads[name]
            self.inputs.pop(name, None)
            self.scope.names.pop(name, None)

    def _input_name(self, name: str) -> str:
        wanted = plain(name)
        free = self.F.unique(wanted)
        self.F.names.discard(free)
        return free

    def _deciding(self, node: NodeDef, error: DataDependent | Undecided) -> tuple[tuple[str, ...], bool]:
        """The operands whose values let the operator be imported, none where the host has to run it; and whether they
        are operands of the section that all the rest comes from."""
        names = [name for name in node.inputs if name]
        runs = {name: v for name in names if isinstance(v := self.scope.names.get(name), Value)}
        if node.op == "If" and names[0] in runs:
            return (names[0],), False
        if isinstance(error, Undecided) or node.op in ("Loop", "Scan"):
            return (), False
        arrived = {value.name: name for name, value in self.inputs.items()}
        sources = tuple(arrived[each] for each in error.inputs)
        if sources and not self.whole and all(_is_short(self.inputs[name]) for name in sources):
            return sources, True
        if node.op == "If":
            return (), False
        exact = [name for name, value in runs.items() if value == error.value]
        return tuple(name for name in exact or runs if _is_short(runs[name])), False

    def _made(self, stop: int, reason: str, fixes: tuple[str, ...]) -> Section:
        results: dict[str, int] = {}
        aliases: dict[str, str] = {}
        known: dict[str, Fixed | Dims] = {}
        arrived = {value.name: name for name, value in self.inputs.items()}
        outputs: dict[str, int] = {}
        if stop > self.start:
            for name in sorted(self.line.live[stop] - set(self.reads)):
                operand = self.scope.names.get(name)
                if isinstance(operand, Value) and operand.name in arrived:
                    aliases[name] = arrived[operand.name]
                elif isinstance(operand, Value):
                    results[name] = outputs.setdefault(operand.name, len(outputs))
                elif operand is not None:
                    known[name] = operand if isinstance(operand, Dims) else Fixed(operand)
        for each in outputs:
            self.F.output(each)
        return Section(
            self.line,
            self.start,
            stop,
            reason,
            fixes,
            tuple(self.reads),
            tuple(kind_of(self.env.get(name)) for name in self.reads),
            self.inputs,
            tuple(self.F.guards),
            self.F.build() if outputs else None,
            results,
            aliases,
            known,
        )


def _is_short(value: Value) -> bool:
    return isinstance(value.size, int) and value.size <= SHORT


def _reason(node: NodeDef, error: Exception) -> str:
    return str(error).removeprefix(f"{node.label}: ")
