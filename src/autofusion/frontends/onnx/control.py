"""If, Loop and Scan: what is decided at import is unrolled; a condition of the data chooses between computed values.

Operators have no effects, so both branches of an `If` can be computed and the values of one kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autofusion.errors import GraphError
from autofusion.frontends.onnx.adapter import GraphDef, NodeDef
from autofusion.frontends.onnx.values import DataDependent, Operand
from autofusion.graph.ir import Value

UNROLLED = 1024  # iterations of one loop

Runner = Callable[[GraphDef, Mapping[str, Operand]], list[Operand]]
Control = Callable[[Any, NodeDef, Sequence[Any]], Sequence[Any]]


def _known(operand: Operand | None) -> Any | None:
    """The scalar that is known; None where it is not."""
    return operand.reshape(-1)[0] if isinstance(operand, np.ndarray) and operand.size == 1 else None


def _if(scope: Any, node: NodeDef, operands: Sequence[Operand]) -> Sequence[Operand]:
    chosen = _known(operands[0])
    branches = [node.attributes["then_branch"], node.attributes["else_branch"]]
    if chosen is not None:
        return scope.inner(branches[not chosen], {})  # type: ignore[no-any-return]
    if scope.importer.specialise and isinstance(operands[0], Value) and len(operands[0].shape) == 0:
        sources = scope.F.sources(operands[0])
        if sources and all(not scope.F.input_shape(name) for name in sources):
            raise DataDependent("a condition is only known when the graph runs", operands[0])
    yes, no = (scope.inner(branch, {}) for branch in branches)
    results: list[Operand] = []
    for name, a, b in zip(node.outputs, yes, no, strict=False):
        left, right = scope.F.lift(a), scope.F.lift(b)
        if left.type != right.type:
            kinds = f"{left.dtype}{list(left.shape)} and {right.dtype}{list(right.shape)}"
            raise GraphError(f"output {name!r} is {kinds} by a condition that is only known when the graph runs")
        condition = scope.F.reshape(scope.F.lift(operands[0]), shape=())
        results.append(scope.F.where(condition, left, right))
    return results


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
    if limit is None:
        raise _undecided(trips, "the number of iterations is")
    going = True if condition is None else _known(condition)
    if going is None:
        raise _undecided(condition, "the condition is")
    state: list[Any] = list(carried)
    scans: list[list[Operand]] = [[] for _ in range(len(body.outputs) - 1 - len(state))]
    names = [each if isinstance(each, str) else each.name for each in body.inputs]
    iteration = 0
    while going and iteration < limit:
        if iteration >= UNROLLED:
            raise GraphError(f"the loop has more than {UNROLLED} iterations")
        given = [np.array(iteration, np.int64), np.array(True), *state]
        results = scope.inner(body, dict(zip(names, given, strict=True)))
        going = _known(results[0])
        if going is None:
            raise _undecided(results[0], "the condition is")
        state = list(results[1 : 1 + len(state)])
        for scan, item in zip(scans, results[1 + len(state) :], strict=True):
            scan.append(item)
        iteration += 1
    if any(not scan for scan in scans):
        raise GraphError("a loop of no iterations that collects values")
    return [*state, *(_stacked(scope, scan, 0) for scan in scans)]


def _undecided(operand: Any, what: str) -> GraphError:
    text = f"{what} only known when the graph runs (data-dependent)"
    return DataDependent(text, operand) if isinstance(operand, Value) else GraphError(text)


def _scan(scope: Any, node: NodeDef, operands: Sequence[Operand | None]) -> Sequence[Operand]:
    body: GraphDef = node.attributes["body"]
    count = node.attributes["num_scan_inputs"]
    if scope.opsets.get("", 9) < 9:
        return _old_scan(scope, node, [each for each in operands[1:] if each is not None], count)
    values = [each for each in operands if each is not None]
    state, scanned = values[: len(values) - count], values[len(values) - count :]
    return _scanned(scope, node.attributes, body, state, scanned)


def _old_scan(scope: Any, node: NodeDef, values: list[Operand], count: int) -> Sequence[Operand]:
    """Opset 8: a batch axis in front of all. One batch is what is taken."""
    if any(each.shape[0] != 1 for each in values):
        raise GraphError("Scan of opset 8 over several batches is not supported")
    single = [_without_first(scope, each) for each in values]
    made = _scanned(scope, {}, node.attributes["body"], single[:-count], single[-count:])
    return [scope.F.reshape(scope.F.lift(each), shape=(1, *each.shape)) for each in made]


def _without_first(scope: Any, operand: Operand) -> Operand:
    return scope.F.reshape(scope.F.lift(operand), shape=tuple(operand.shape[1:]))  # type: ignore[no-any-return]


def _scanned(
    scope: Any, attributes: Mapping[str, Any], body: GraphDef, state: list[Operand], scanned: list[Operand]
) -> Sequence[Operand]:
    axes = attributes.get("scan_input_axes") or (0,) * len(scanned)
    backward = attributes.get("scan_input_directions") or (0,) * len(scanned)
    length = scanned[0].shape[axes[0]]
    if not isinstance(length, int) or length > UNROLLED:
        raise GraphError(f"a scan over {length} steps: expected a known number, at most {UNROLLED}")
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
