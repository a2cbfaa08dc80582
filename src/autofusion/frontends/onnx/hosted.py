"""If, Loop and Scan run from the host: conditions are looked at, and only what is taken is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autofusion.dtypes import Array
from autofusion.errors import GraphError
from autofusion.frontends.onnx.adapter import GraphDef, NodeDef, TensorInfo
from autofusion.frontends.onnx.sections import Fixed, Held, array_of

Run = Callable[[str, Mapping[str, Held]], "list[Held]"]
"""Runs the body of an attribute with the operands of these names."""
Env = Mapping[str, Held]


def _scalar(env: Env, name: str, what: str) -> Any:
    array = array_of(env[name])
    if array.size != 1:
        raise GraphError(f"{what} has the shape {list(array.shape)}, expected one element")
    return array.reshape(-1)[0]


def _if(node: NodeDef, env: Env, run: Run) -> Sequence[Held]:
    chosen = bool(_scalar(env, node.inputs[0], "the condition"))
    return run("then_branch" if chosen else "else_branch", {})


def _loop(node: NodeDef, env: Env, run: Run) -> Sequence[Held]:
    """State and iteration numbers are never Fixed: one section serves all iterations. Runs until its condition says so,
    or for ever; Ctrl-C ends it between two launches."""
    body: GraphDef = node.attributes["body"]
    trips, condition, *carried = (*node.inputs, "", "")[: max(2, len(node.inputs))]
    limit = int(_scalar(env, trips, "the number of iterations")) if trips else None
    going = bool(_scalar(env, condition, "the condition")) if condition else True
    state: list[Held] = [array_of(env[name]) for name in carried]
    scans: list[list[Array]] = [[] for _ in range(len(body.outputs) - 1 - len(state))]
    names = input_names(body)
    iteration = 0
    while going and (limit is None or iteration < limit):
        given: list[Held] = [np.array(iteration, np.int64), Fixed(np.array(True)), *state]
        results = run("body", dict(zip(names, given, strict=True)))
        going = bool(_scalar({"": results[0]}, "", "the condition"))
        state = [array_of(held) for held in results[1 : 1 + len(state)]]
        for scan, held in zip(scans, results[1 + len(state) :], strict=True):
            scan.append(array_of(held))
        iteration += 1
    types = body.output_types[1 + len(state) :]
    return [*state, *(stacked(items, 0, declared) for items, declared in zip(scans, types, strict=True))]


def _scan(node: NodeDef, env: Env, run: Run) -> Sequence[Held]:
    """Opset 9 and later."""
    body: GraphDef = node.attributes["body"]
    attributes = node.attributes
    count = attributes["num_scan_inputs"]
    split = len(node.inputs) - count
    state: list[Held] = [array_of(env[name]) for name in node.inputs[:split]]
    axes = attributes.get("scan_input_axes") or (0,) * count
    backward = attributes.get("scan_input_directions") or (0,) * count
    moved = [np.moveaxis(array_of(env[name]), axis, 0) for name, axis in zip(node.inputs[split:], axes, strict=True)]
    sequences = [each[::-1] if back else each for each, back in zip(moved, backward, strict=True)]
    if len({len(each) for each in sequences}) != 1:
        raise GraphError(f"its inputs have {[len(each) for each in sequences]} steps, expected the same number")
    scans: list[list[Array]] = [[] for _ in range(len(body.outputs) - split)]
    names = input_names(body)
    for items in zip(*sequences, strict=True):
        results = run("body", dict(zip(names, [*state, *(np.array(item) for item in items)], strict=True)))
        state = [array_of(held) for held in results[:split]]
        for scan, held in zip(scans, results[split:], strict=True):
            scan.append(array_of(held))
    out_axes = attributes.get("scan_output_axes") or (0,) * len(scans)
    reverse = attributes.get("scan_output_directions") or (0,) * len(scans)
    ends = [
        stacked(items[::-1] if back else items, axis, declared)
        for items, axis, back, declared in zip(scans, out_axes, reverse, body.output_types[split:], strict=True)
    ]
    return [*state, *ends]


def input_names(body: GraphDef) -> list[str]:
    return [each if isinstance(each, str) else each.name for each in body.inputs]


def stacked(items: Sequence[Array], axis: int, declared: TensorInfo | None) -> Array:
    """The values of all iterations along a new axis. Of none: what the body declares, 0 for what it leaves open."""
    if items:
        shapes = dict.fromkeys(item.shape for item in items)
        if len(shapes) > 1:
            found = " and ".join(str(list(shape)) for shape in list(shapes)[:2])
            raise GraphError(f"collected values have the shapes {found}, expected one shape in all iterations")
        return np.stack(items, axis)
    if declared is None:
        raise GraphError("no iterations, and the body declares no type of the values to collect")
    shape = [extent if isinstance(extent, int) else 0 for extent in declared.shape]
    shape.insert(axis % (len(shape) + 1), 0)
    return np.empty(shape, declared.dtype.numpy)


HOSTED: dict[str, Callable[[NodeDef, Env, Run], Sequence[Held]]] = {"If": _if, "Loop": _loop, "Scan": _scan}
