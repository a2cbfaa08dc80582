"""`Program`: a model whose control flow depends on data, as launches with decisions of the host between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from autofusion import api, dtypes
from autofusion.autofuse.verdicts import Code, Verdict
from autofusion.dims import show_shape
from autofusion.dtypes import Array
from autofusion.errors import ArgumentError, AutofusionError, GraphError
from autofusion.frontends.onnx import adapter, hosted
from autofusion.frontends.onnx.adapter import GraphDef, NodeDef
from autofusion.frontends.onnx.importer import Importer, Shapes, naming, read
from autofusion.frontends.onnx.sections import (
    Fixed,
    Held,
    Line,
    Section,
    array_of,
    cut,
    kind_of,
    opened,
    shapes_of,
)
from autofusion.frontends.onnx.values import Undecided
from autofusion.graph.evaluate import bind_symbols
from autofusion.jit.explain import Explanation, explain
from autofusion.jit.pipeline import Compilation, Progress
from autofusion.runtime.executable import Counts
from autofusion.superkernel.options import SuperKernelOptions
from autofusion.target import Target

KEPT = 1024  # sets of types, shapes and fixed values by node that sections are kept for
SPECIALISED = 32  # sections that start at one node before the host runs the operators that ask for more values
Observer = Callable[[Section, list[Array], list[Array]], None]


def compile_file(
    path: str | Path,
    shapes: Shapes | None = None,
    target: str | Target = "cpu",
    numerics: str = "default",
    superkernel: SuperKernelOptions | None = None,
) -> api.Compiled | Program:
    """An .onnx file as one SuperKernel, or as a Program where its control flow depends on data. Raises AutofusionError
    with the path."""
    try:
        graph = read(path, shapes)
    except Undecided:
        return read_program(path, shapes, target, numerics, superkernel=superkernel)
    return api.compile_graph(graph, target, numerics, superkernel=superkernel)


def read_program(
    path: str | Path,
    shapes: Shapes | None = None,
    target: str | Target = "cpu",
    numerics: str = "default",
    progress: Progress | None = None,
    superkernel: SuperKernelOptions | None = None,
) -> Program:
    """An .onnx file as a Program. Raises FormatError or GraphError with the path."""
    with naming(path):
        return Program(adapter.load(path), shapes, Path(path).stem, target, numerics, progress, superkernel)


@dataclass
class Call:
    """One call: what it was told, and what it did."""

    threads: int | None
    observe: Observer | None
    launches: int = 0


class Program:
    """A compiled ONNX model with data-dependent control flow. Called like `api.Compiled`, with arrays in the order of
    the model's inputs.

    Sections are compiled when they are first reached, for the shapes that arrive; where sizes change they are made once
    more, for any size. Safe to call from several threads.
    """

    def __init__(
        self,
        model: Any,
        shapes: Shapes | None = None,
        name: str | None = None,
        target: str | Target = "cpu",
        numerics: str = "default",
        progress: Progress | None = None,
        superkernel: SuperKernelOptions | None = None,
    ) -> None:
        definition = adapter.graph_of(model)
        importer = Importer(definition, name or definition.name, specialise=True)
        self._names = list(importer.inputs(shapes or {}))
        self.graph = importer.F.build()
        self.outputs = definition.outputs
        self.target = api.runnable(target)
        self.numerics = numerics
        self.progress = progress
        self.superkernel = superkernel
        self.sections: list[Section] = []
        self.lock = threading.RLock()
        self.counts = Counts()  # calls, what the host ran, and what sections did that are kept no more
        self.by_reference: set[str] = set()
        self._launches_per_call = 0
        self._body = Body(self, Line.of(self.graph.name, definition))

    # -- calls -----------------------------------------------------------------------------------------------------
    def __call__(self, *arguments: Any, threads: int | None = None) -> Any:
        """Run. `threads`: workers of this call. Raises ArgumentError, IndexOutOfRange, and GraphError where a section
        is reached that cannot be compiled for what arrives there."""
        outputs = self.run(arguments, threads)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, arguments: Sequence[Any], threads: int | None = None, observe: Observer | None = None) -> list[Array]:
        """All outputs as a list. `observe` is told of each launch: the section, its inputs, its outputs."""
        inputs = self.graph.inputs
        if len(arguments) != len(inputs):
            names = ", ".join(v.name for v in inputs)
            raise ArgumentError(f"{len(arguments)} arguments given, expected {len(inputs)}: {names}")
        arrays = [api.as_array(each) for each in arguments]
        for value, array in zip(inputs, arrays, strict=True):
            if dtypes.of(array) is not value.dtype:
                raise ArgumentError(f"{value.name}: element type {dtypes.of(array)}, expected {value.dtype}")
        bind_symbols(inputs, [a.shape for a in arrays])
        call = Call(threads, observe)
        held = self._body.run(dict(zip(self._names, arrays, strict=True)), call)
        with self.lock:
            self.counts.calls += 1
            self._launches_per_call = call.launches
        return _fresh([array_of(each) for each in held], [*arrays, *(e.array for e in held if isinstance(e, Fixed))])

    def compiled(self, section: Section) -> api.Compiled:
        """A section's code. Raises GraphError and what else a compile raises."""
        assert section.graph is not None
        with self.lock:
            if section.compiled is None:
                section.compiled = api.compile_graph(
                    section.graph, self.target, self.numerics, progress=self.progress, superkernel=self.superkernel
                )
            return section.compiled

    def drop(self, sections: Sequence[Section]) -> None:
        """Forget sections; what they did still counts."""
        for section in sections:
            self.sections.remove(section)
            if section.compiled is not None:
                self.counts.launches += section.compiled.executable.counts.launches
                self.counts.fallbacks += section.compiled.executable.counts.fallbacks

    # -- what happened ---------------------------------------------------------------------------------------------
    @property
    def _code(self) -> list[api.Compiled]:
        with self.lock:
            return [section.compiled for section in self.sections if section.compiled is not None]

    @property
    def stats(self) -> dict[str, Any]:
        """As `Compiled.stats`, over the sections so far: `sections` of them. `launches_per_call`: of the last call."""
        each = [made.stats for made in self._code]
        stages: dict[str, float] = {}
        for found in each:
            for name, spent in found["stages_ms"].items():
                stages[name] = stages.get(name, 0.0) + spent
        return {
            "calls": self.counts.calls,
            "launches": self.counts.launches + sum(found["launches"] for found in each),
            "fallbacks": self.counts.fallbacks + sum(found["fallbacks"] for found in each),
            "launches_per_call": self._launches_per_call,
            "sections": len(each),
            "groups": sum(found["groups"] for found in each),
            "kernels": sum(found["kernels"] for found in each),
            "cache_hits": sum(found["cache_hits"] for found in each),
            "stages_ms": stages,
        }

    def explain(self) -> SectionedExplanation:
        """The sections that were reached so far, why each ends where it does, and what `Compiled.explain` says."""
        with self.lock:
            sections = list(self.sections)
        return explained(self, sections, [s.compiled.compilation if s.compiled is not None else None for s in sections])

    def source(self, stage: str = "llvm") -> str:
        """The text of a stage, of all sections so far. Raises ArgumentError before the first call."""
        with self.lock:
            made = [(s.name, s.compiled) for s in self.sections if s.compiled is not None]
        if not made:
            raise ArgumentError("nothing is compiled yet: sections are made when a call reaches them")
        return "\n".join(f"# section {name}\n{compiled.source(stage)}" for name, compiled in made)

    def save(self, path: str | Path) -> NoReturn:
        """Raises GraphError: sections are only known when a call reaches them."""
        raise GraphError(f"{path}: a model with data-dependent control flow cannot be saved, as calls compile it")


def _fresh(results: list[Array], taken: Sequence[Array]) -> list[Array]:
    """Results in memory of their own: neither an argument's nor a constant's, nor each other's."""
    known = {id(array) for array in taken}
    made = []
    for array in results:
        made.append(np.array(array, order="C") if id(array) in known else array)
        known.add(id(array))
    return made


# -- bodies ------------------------------------------------------------------------------------------------------------
@dataclass
class Place:
    """The sections that start at one node, by what they read and how that arrives. `concrete`: by kinds the one for
    known sizes that the next sizes are compared with, None where they were or cannot be opened."""

    found: dict[tuple[str, ...], dict[Any, Section]] = field(default_factory=dict)
    concrete: dict[Any, Section | None] = field(default_factory=dict)
    made: int = 0

    def lookup(self, env: Mapping[str, Held]) -> Section | None:
        for reads, table in list(self.found.items()):
            section = table.get(_key(reads, env))
            if section is not None:
                return section
        return None

    @property
    def sections(self) -> list[Section]:
        return list(dict.fromkeys(section for table in self.found.values() for section in table.values()))

    @property
    def full(self) -> bool:
        return sum(map(len, self.found.values())) >= KEPT


class Body:
    """The main graph or a body: its sections, found by what arrives at their first node."""

    def __init__(self, program: Program, line: Line) -> None:
        self.program = program
        self.line = line
        self.initialisers = {name: Fixed(array) for name, array in line.definition.initialisers.items()}
        self._bodies: dict[tuple[int, str], Body] = {}
        self._places: dict[tuple[int, bool], Place] = {}

    def run(self, given: Mapping[str, Held], call: Call) -> list[Held]:
        """The outputs. Raises AutofusionError naming the operator."""
        env: dict[str, Held] = {**self.initialisers, **given}
        nodes = self.line.definition.nodes
        at = 0
        while at < len(nodes):
            section = self._section(at, env)
            if section.stop == at and section.fixes and self._is_crowded(at):
                section = self._section(at, env, whole=True)
            env |= section.values(env, lambda made, arrays: self._launch(made, arrays, call))
            at = section.stop
            if at < len(nodes) and (not section.fixes or (nodes[at].op != "If" and self._is_crowded(at))):
                env |= self._hosted(at, env, call)
                at += 1
            env = {name: env[name] for name in self.line.live[at] if name in env}
        missing = [name for name in self.line.definition.outputs if name not in env]
        if missing:
            raise GraphError(f"value {missing[0]!r} is not defined")
        return [env[name] for name in self.line.definition.outputs]

    def _launch(self, section: Section, arrays: list[Array], call: Call) -> list[Array]:
        compiled = section.compiled or self.program.compiled(section)
        outputs = compiled.run(arrays, call.threads)
        call.launches += len(compiled.executable.plan.launches)
        if call.observe is not None:
            call.observe(section, arrays, outputs)
        return outputs

    # -- the host's part -------------------------------------------------------------------------------------------
    def _hosted(self, at: int, env: Mapping[str, Held], call: Call) -> dict[str, Held]:
        """The outputs of an If, a Loop or a Scan; of any other operator by ONNX's reference."""
        node = self.line.definition.nodes[at]
        around = {name: env[name] for name in self.line.reads[at] if name in env}

        def run(attribute: str, given: Mapping[str, Held]) -> list[Held]:
            return self._body(at, node, attribute).run({**around, **given}, call)

        try:
            made = hosted.HOSTED[node.op](node, env, run) if node.bodies else self._by_reference(node, env)
        except AutofusionError as error:
            raise _located(error, node) from None
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            text = f"its inputs or attributes do not fit: {type(error).__name__}: {error}"
            raise GraphError(f"{node.label}: {text}") from error
        return {name: held for name, held in zip(node.outputs, made, strict=False) if name}

    def _by_reference(self, node: NodeDef, env: Mapping[str, Held]) -> list[Held]:
        packed = adapter.pack(node, self.line.definition.opsets.get(node.domain, 1))
        found = adapter.run_reference(packed, [array_of(env[name]) for name in dict.fromkeys(node.inputs) if name])
        with self.program.lock:
            self.program.by_reference.add(node.label)
            self.program.counts.fallbacks += 1
        return [np.asarray(found[name]) if name else np.empty(0) for name in node.outputs]

    def _body(self, at: int, node: NodeDef, attribute: str) -> Body:
        found = self._bodies.get((at, attribute))
        if found is None:
            definition: GraphDef = node.attributes[attribute]
            name = (
                f"{self.line.name}.{node.name or next(iter(node.outputs), node.op)}.{attribute.removesuffix('_branch')}"
            )
            made = Body(self.program, Line.of(name, definition))
            found = self._bodies.setdefault((at, attribute), made)
        return found

    # -- finding and making sections -------------------------------------------------------------------------------
    def _is_crowded(self, at: int) -> bool:
        place = self._places.get((at, False))
        return place is not None and place.made >= SPECIALISED

    def _section(self, at: int, env: Mapping[str, Held], whole: bool = False) -> Section:
        """The section for what arrives; made where there is none."""
        found = self._places.setdefault((at, whole), Place()).lookup(env)
        if found is None:
            with self.program.lock:
                found = self._places[at, whole].lookup(env) or self._make(at, env, whole)
        return found

    def _make(self, at: int, env: Mapping[str, Held], whole: bool) -> Section:
        place = self._places[at, whole]
        if place.full:
            self.program.drop(place.sections)
            place = self._places[at, whole] = Place(made=place.made)
        section = next((each for each in place.sections if each.takes(env)), None)
        if section is None:
            section = self._opened(place, at, env, whole) or self._closed(place, at, env, whole)
            place.made += 1
            self.program.sections.append(section)
        place.found.setdefault(section.reads, {})[_key(section.reads, env)] = section
        return section

    def _closed(self, place: Place, at: int, env: Mapping[str, Held], whole: bool) -> Section:
        """For these sizes."""
        section = cut(self.line, at, env, whole=whole)
        if section.graph is not None:
            self.program.compiled(section)
        place.concrete.setdefault((section.reads, section.kinds), section)
        return section

    def _opened(self, place: Place, at: int, env: Mapping[str, Held], whole: bool) -> Section | None:
        """For all sizes, where there is a section for other ones; None where that does not work."""
        for reads in place.found:
            key = (reads, tuple(kind_of(env.get(name)) for name in reads))
            before = place.concrete.get(key)
            if before is None:
                continue
            names = tuple(before.inputs)
            shapes = opened(names, before.shapes, shapes_of(names, env))
            if not shapes:
                del place.concrete[key]  # the next two may do
                continue
            place.concrete[key] = None
            try:
                section = cut(self.line, at, env, shapes, whole)
                same = (section.stop, section.fixes, section.reads) == (before.stop, before.fixes, reads)
                if same and section.takes(env):
                    if section.graph is not None:
                        self.program.compiled(section)
                    return section
            except AutofusionError:
                continue  # an operator may need to know sizes
        return None


def _key(reads: tuple[str, ...], env: Mapping[str, Held]) -> Any:
    return tuple([kind_of(env.get(name)) for name in reads]), shapes_of(reads, env)


def _located(error: AutofusionError, node: NodeDef) -> AutofusionError:
    """The error with the operator around it."""
    return type(error)(f"{node.label}: {error}")


# -- explanations ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SectionReport:
    """One section. `operators`: of ONNX; `inputs`: what it was made for; `then`: why it ends, empty at the end."""

    name: str
    operators: tuple[str, ...]
    inputs: tuple[str, ...]
    launches: int
    then: str


@dataclass(frozen=True)
class SectionedExplanation(Explanation):
    """Of a Program: sums over its sections. Bytes are of one run of each."""

    sections: tuple[SectionReport, ...] = ()

    def __str__(self) -> str:
        lines = [f"{len(self.sections)} sections, as control flow depends on data"]
        for section in self.sections:
            lines.append(f"  section {section.name} ({', '.join(section.inputs)}): {', '.join(section.operators)}")
            if section.then:
                lines.append(f"    then {section.then}")
        return "\n".join([*lines, super().__str__()])


def explained(
    program: Program, sections: Sequence[Section], compilations: Sequence[Compilation | None]
) -> SectionedExplanation:
    """Of sections and how each was compiled, for the program's target or another; None where nothing is computed."""
    found = [explain(each) for each in compilations if each is not None]
    target = next((each.target for each in found), program.target.name)
    return SectionedExplanation(
        program.graph.name,
        target,
        sum(each.ops for each in found),
        tuple(group for each in found for group in each.groups),
        (*_boundaries(sections), *(verdict for each in found for verdict in each.verdicts)),
        sum(each.launches for each in found),
        (*sorted(program.by_reference), *(name for each in found for name in each.fallbacks)),
        sum(each.gm_bytes for each in found),
        sum(each.gm_bytes_unfused for each in found),
        sum(each.gm_bytes_compulsory for each in found),
        sum(each.constant_bytes for each in found),
        sum(each.packed_bytes for each in found),
        {},
        tuple(_report(*pair) for pair in zip(sections, compilations, strict=True)),
    )


def _report(section: Section, compilation: Compilation | None) -> SectionReport:
    inputs = tuple(f"{name}:{value.dtype}{show_shape(value.shape)}" for name, value in section.inputs.items())
    launches = len(compilation.plan.launches) if compilation is not None else 0
    then = f"{section.next.label}: {section.reason}" if section.next is not None else ""
    return SectionReport(section.name, tuple(node.op for node in section.nodes), inputs, launches, then)


def _boundaries(sections: Sequence[Section]) -> list[Verdict]:
    """Why there are several launches: each place once."""
    found = {(section.name, section.next.label): section.reason for section in sections if section.next is not None}
    return [Verdict(Code.CONTROL, name, label, reason) for (name, label), reason in found.items()]
