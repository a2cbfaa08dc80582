"""The passes in order: from any valid graph to one in canonical primitives, whose outputs own their memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from autofusion.errors import VerifyError
from autofusion.graph.ir import Graph, verify
from autofusion.passes import assign_layouts, canonicalise, cse, dce, decompose, fold_constants, materialise_outputs
from autofusion.target import Target


class Pass(NamedTuple):
    """A step: its name, its function, and why it stands where it stands."""

    name: str
    run: Callable[[Graph], Graph]
    why: str


PASSES: tuple[Pass, ...] = (
    Pass("decompose", decompose.run, "first, so that all that follows meets primitives only"),
    Pass("canonicalise", canonicalise.run, "lowerings write axes as they like; equal things must look equal"),
    Pass("fold_constants", fold_constants.run, "before cse, which then merges equal results by their content"),
    Pass("cse", cse.run, "after all that makes operators equal"),
    Pass("materialise_outputs", materialise_outputs.run, "after all that makes outputs one value or takes copies away"),
    Pass("dce", dce.run, "last: the others leave what nobody reads any more"),
)


Observer = Callable[[str, Graph, float], None]


def run(graph: Graph, observe: Observer | None = None) -> Graph:
    """The graph after all passes. Each result is verified, then shown to `observe(name, graph, seconds)`.

    Raises VerifyError, naming the pass, where a pass broke the graph; without a pass, the graph given was broken.
    """
    verify(graph)
    for step in PASSES:
        start = time.perf_counter()
        made = step.run(graph)
        seconds = time.perf_counter() - start
        if made is not graph:  # a pass that had nothing to do gives back what it got
            _verify_after(step.name, made)
        graph = made
        if observe is not None:
            observe(step.name, graph, seconds)
    return graph


def lay_out(graph: Graph, target: Target) -> Graph:
    """The graph with its constants as the target reads them best; after `run`, which would fold them back."""
    laid = assign_layouts.run(graph, target.panel_bytes)
    if laid is not graph:
        laid = dce.run(laid)
        _verify_after("assign_layouts", laid)
    return laid


def _verify_after(name: str, graph: Graph) -> None:
    try:
        verify(graph)
    except VerifyError as error:
        raise VerifyError(f"after {name}: {error}") from None
