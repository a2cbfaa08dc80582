"""If, Loop and Scan inside one graph: what is decided at import is unrolled, a cheap choice is a selection.

All else is Undecided here, and run from the host (`program.py`). A choice is cheap where both branches together make at
most SELECTED operators, all of them elementwise or views: such cannot fail, whichever branch is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autofusion.errors import AutofusionError, GraphError
from autofusion.frontends.onnx.adapter import GraphDef, NodeDef
from autofusion.frontends.onnx.values import DataDependent, Operand, Undecided
from autofusion.graph.ir import Node
from autofusion.kinds import Kind

UNROLLED = 1024  # iterations of one loop
SELECTED = 16  # operators of both branches of an If that is a selection
_CANNOT_FAIL = (Kind.SOURCE, Kind.ELEMENTWISE, Kind.VIEW, Kind.BROADCAST)

Control = Callable[[Any, NodeDef, Sequence[Any]], Sequence[Any]]


def _known(operand: Operand | None) -> Any | None:
    """The scalar that is known; None where it is not."""
    return operand.reshape(-1)[0] if isinstance(operand, np.ndarray) and operand.size == 1 else None


def _if(scope: Any, node: NodeDef, operands: Sequence[Operand]) -> Sequence[Operand]:
    chosen = _known(operands[0])
    branches = [node.attributes["then_branch"], node.attributes["else_branch"]]
    if chosen is not None:
        return scope.inner(branches[not chosen], {})  # type: ignore[no-any-return]
    mark = scope.F.mark()
    made = _selection(scope, operands[0], branches) if sum(len(b.nodes) for b in branches) <= SELECTED else None
    if made is None:
        scope.F.undo(mark)
        raise Undecided("the condition is only known when the graph runs")
    return made


def _selection(scope: Any, condition: Operand, branches: Sequence[GraphDef]) -> list[Operand] | None:
    """Both branches and a `where` over their outputs; None where that is not cheap, or does not fit."""
    start = len(scope.F.body)
    try:
        yes, no = ([scope.F.lift(each) for each in scope.inner(branch, {})] for branch in branches)
    except AutofusionError:
        return None  # a branch that does not fit these operands may be the one that is not taken
    made = [line for line in scope.F.body[start:] if isinstance(line, Node)]
    if len(made) > SELECTED or any(line.kind not in _CANNOT_FAIL for line in made):
        return None
    if len(yes) != len(no) or any(a.type != b.type for a, b in zip(yes, no, strict=True)):
        return None
    flag = scope.F.reshape(scope.F.lift(condition), shape=())
    return [scope.F.where(flag, a, b) for a, b in zip(yes, no, strict=True)]


def _stacked(scope: Any, items: Sequence[Operand], axis: int) -> Operand:
    if all(isinstance(item, np.ndarray) for item in items):
        return np.stack([np.asarray(item) for item in items], axis=axis)
    parts = []
    for item in items:
        value = scope.F.lift(item)
        rank = len(value.shape) + 1
        at = axis % rank
        parts.append(scope.F.reshape(value, shape=(*value.shape[:at], 1, *value.shape[at:])))
    return scope.F.concat(*parts, axis=axis % (len(parts[0].shape))) if len(parts) > 1 else parts[0]  # type: ignore[no-any-return]


def _loop(scope: Any, node: NodeDef, operands: Sequence[Operand | None]) -> Sequence[Operand]:
    body: GraphDef = node.attributes["body"]
    trips, condition, *carried = operands
    limit = _known(trips) if trips is not None else UNROLLED + 1
    going = True if condition is None else _known(condition)
    if limit is None or going is None:
        what = "condition" if going is None else "number of iterations"
        raise Undecided(f"the {what} is only known when the graph runs")
    state: list[Any] = list(carried)
    scans: list[list[Operand]] = [[] for _ in range(len(body.outputs) - 1 - len(state))]
    names = [each if isinstance(each, str) else each.name for each in body.inputs]
    iteration = 0
    while going and iteration < limit:
        if iteration >= UNROLLED:
            raise Undecided(f"more than {UNROLLED} iterations")
        given = [np.array(iteration, np.int64), np.array(True), *state]
        results = scope.inner(body, dict(zip(names, given, strict=True)))
        going = _known(results[0])
        if going is None:
            raise Undecided("the condition is only known when the graph runs")
        state = list(results[1 : 1 + len(state)])
        for scan, item in zip(scans, results[1 + len(state) :], strict=True):
            scan.append(item)
        iteration += 1
    if any(not scan for scan in scans):
        raise Undecided("no iterations, and values to collect")
    return [*state, *(_stacked(scope, scan, 0) for scan in scans)]


def _scan(scope: Any, node: NodeDef, operands: Sequence[Operand | None]) -> Sequence[Operand]:
    body: GraphDef = node.attributes["body"]
    count = node.attributes["num_scan_inputs"]
    if scope.opsets.get("", 9) < 9:
        return _old_scan(scope, node, [each for each in operands[1:] if each is not None], count)
    values = [each for each in operands if each is not None]
    state, scanned = values[: len(values) - count], values[len(values) - count :]
    return _scanned(scope, node.attributes, body, state, scanned)


def _old_scan(scope: Any, node: NodeDef, values: list[Operand], count: int) -> Sequence[Operand]:
    """Opset 8: a batch axis in front of all. One batch is what is taken, and only here: the host does not run it."""
    if any(each.shape[0] != 1 for each in values):
        raise GraphError("Scan of opset 8 over several batches is not supported")
    single = [_without_first(scope, each) for each in values]
    try:
        made = _scanned(scope, {}, node.attributes["body"], single[:-count], single[-count:])
    except (Undecided, DataDependent) as error:
        raise GraphError(f"Scan of opset 8: {error}") from None
    return [scope.F.reshape(scope.F.lift(each), shape=(1, *each.shape)) for each in made]


def _without_first(scope: Any, operand: Operand) -> Operand:
    return scope.F.reshape(scope.F.lift(operand), shape=tuple(operand.shape[1:]))  # type: ignore[no-any-return]


def _scanned(
    scope: Any, attributes: Mapping[str, Any], body: GraphDef, state: list[Operand], scanned: list[Operand]
) -> Sequence[Operand]:
    axes = attributes.get("scan_input_axes") or (0,) * len(scanned)
    backward = attributes.get("scan_input_directions") or (0,) * len(scanned)
    length = scanned[0].shape[axes[0]]
    if not isinstance(length, int) or not 0 < length <= UNROLLED:
        raise Undecided(f"a scan over {length} steps: unrolled are 1 to {UNROLLED}")
    names = [each if isinstance(each, str) else each.name for each in body.inputs]
    collected: list[list[Operand]] = [[] for _ in range(len(body.outputs) - len(state))]
    for time in range(length):
        items = [
            _item(scope, each, axis, length - 1 - time if back else time)
            for each, axis, back in zip(scanned, axes, backward, strict=True)
        ]
        results = scope.inner(body, dict(zip(names, [*state, *items], strict=True)))
        state = list(results[: len(state)])
        for scan, item in zip(collected, results[len(state) :], strict=True):
            scan.append(item)
    out_axes = attributes.get("scan_output_axes") or (0,) * len(collected)
    reverse = attributes.get("scan_output_directions") or (0,) * len(collected)
    ends = [
        _stacked(scope, scan[::-1] if back else scan, axis)
        for scan, axis, back in zip(collected, out_axes, reverse, strict=True)
    ]
    return [*state, *ends]


def _item(scope: Any, operand: Operand, axis: int, time: int) -> Operand:
    if isinstance(operand, np.ndarray):
        return np.asarray(np.take(operand, time, axis=axis))
    value = scope.F.lift(operand)
    rank = len(value.shape)
    axis %= rank
    starts, stops = [0] * rank, list(value.shape)
    starts[axis], stops[axis] = time, time + 1
    part = scope.F.slice(value, starts=tuple(starts), stops=tuple(stops), steps=(1,) * rank)
    return scope.F.reshape(part, shape=(*value.shape[:axis], *value.shape[axis + 1 :]))  # type: ignore[no-any-return]


CONTROL: dict[str, Control] = {"If": _if, "Loop": _loop, "Scan": _scan}
