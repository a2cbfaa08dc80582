"""What the Ascend tests share: many graphs compiled for the AI Core model at once, and run on it.

from ascend import CHIPS, Machine, check, compiled, together

The C++ compiler takes a second for a source and a tenth more for each further one beside it. So the sources of several
graphs become one, each in a namespace of its own: `together` does that to compiled graphs before their first call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autofusion import api
from autofusion.dtypes import Array
from autofusion.graph import evaluate
from autofusion.graph.ir import Graph
from autofusion.jit.ascend import ARCHITECTURES
from autofusion.runtime import aicore
from autofusion.runtime.ascend import AscendExecutable
from autofusion.targets.ascend.render import Source

CHIPS = tuple(ARCHITECTURES)
TOGETHER = 12  # graphs in one source: a compiler run of about three seconds
HEADER = '#include "kernel_operator.h"\nusing namespace AscendC;\n'


@dataclass
class Machine:
    """Launches on the model; `seed` draws the order of the cores. Sources found in no model are built alone."""

    arch: int
    seed: int = 0
    models: dict[str, tuple[aicore.Model, str]] = field(default_factory=dict)
    reports: list[aicore.Report] = field(default_factory=list)

    def launch(self, source: Source, arrays: Sequence[Array], tiling: bytes, blocks: int) -> aicore.Report:
        if source.text not in self.models:
            self.models[source.text] = aicore.build(source.text, [source.entry], self.arch), source.entry
        model, entry = self.models[source.text]
        return model.run(entry, arrays, tiling, blocks, seed=self.seed)

    def build(self, sources: Sequence[Source]) -> None:
        """All sources in one executable. A source with an error gets its own, so that only its graph fails."""
        distinct = list({source.text: source for source in sources if source.text not in self.models}.values())
        parts, entries = [HEADER], []
        for number, source in enumerate(distinct):
            assert HEADER in source.text
            entry = f"{source.entry}_{number}"  # of equal names with C linkage there can be one, whatever the namespace
            body = source.text.replace(HEADER, "").replace(f" {source.entry}(", f" {entry}(")
            parts.append(f"namespace n{number} {{\n{body}}}\n")
            entries.append(f"n{number}::{entry}")
        if len(distinct) < 2:
            return
        try:
            model = aicore.build("".join(parts), entries, self.arch)
        except aicore.ModelBuildError:
            half = len(distinct) // 2
            self.build(distinct[:half])
            self.build(distinct[half:])
            return
        for source, entry in zip(distinct, entries, strict=True):
            self.models[source.text] = model, entry


def compiled(graph: Graph, chip: str = "ascend910b", machine: Machine | None = None, **options: Any) -> api.Compiled:
    """A graph for the model; `machine`: shared with other graphs."""
    found = api.compile_graph(graph, chip, **options)
    executable = found.executable
    assert isinstance(executable, AscendExecutable)
    executable.machine = machine or Machine(ARCHITECTURES[chip])
    return found


def sources(found: api.Compiled) -> list[Source]:
    assert isinstance(found.executable, AscendExecutable)
    return found.executable.sources


def reports(found: api.Compiled) -> list[aicore.Report]:
    """What the model counted in the last call."""
    assert isinstance(found.executable, AscendExecutable)
    return found.executable.reports


def fallbacks(found: api.Compiled) -> list[str]:
    """The operators that the host computes."""
    assert found.compilation is not None
    return [node.op for group in found.compilation.partition.groups if group.host for node in group.nodes]


def together(graphs: Sequence[Graph], chip: str = "ascend910b", **options: Any) -> list[api.Compiled]:
    """Compiled graphs that share as few executables as possible."""
    machine = Machine(ARCHITECTURES[chip])
    found = [compiled(graph, chip, machine, **options) for graph in graphs]
    for first in range(0, len(found), TOGETHER):
        machine.build([source for each in found[first : first + TOGETHER] for source in sources(each)])
    return found


def reference(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    with np.errstate(all="ignore"):
        return evaluate.run(graph, list(arrays))


Compare = Callable[[Array, Array], None]


def check(found: api.Compiled, graph: Graph, arrays: Sequence[Array], compare: Compare) -> None:
    """One call against the reference: every output. Copies go in, so that a graph that writes may be called again."""
    expected = reference(graph, [a.copy() for a in arrays])
    with np.errstate(all="ignore"):  # what the host computes
        results = found.run([a.copy() for a in arrays])
    for result, wanted in zip(results, expected, strict=True):
        compare(result, wanted)
