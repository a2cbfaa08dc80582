"""Dropout taken apart: the random draw, which reads only a shape, and the products, which are compiled.

    y, mask = native_dropout(x, p, True)    →    mask = draw([32, 16], [16, 1], p);  y = x * mask * (1 / (1 - p))

The draws are what eager mode draws, from the same generator and in the same order. As they wait for no tensor, they run
before the launches, and end none. Of a graph that AOTAutograd has divided already: a mask that backward needs is kept,
never drawn again.
"""

from __future__ import annotations

import operator
from typing import Any

from autofusion.frontends.torch import adapter


class Draw:
    """The mask of `native_dropout` for a shape; to the rest it looks like that overload."""

    __name__ = "native_dropout"

    def __init__(self, overload: Any) -> None:
        self.overload = overload

    def __call__(self, shape: Any, strides: Any, p: float) -> Any:
        torch = adapter.torch()
        return torch.empty_strided(shape, strides, dtype=torch.bool).bernoulli_(1.0 - p)

    def __str__(self) -> str:
        return str(self.overload)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "overload":
            raise AttributeError(name)
        return getattr(self.overload, name)


def apart(graph: Any) -> Any:
    """The graph, or a copy where there is dropout of known sizes in it."""
    torch = adapter.torch()
    if not any(_is_dropout(node) for node in graph.nodes):
        return graph
    draw, mul = Draw(torch.ops.aten.native_dropout.default), torch.ops.aten.mul.Tensor
    made = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    parts: dict[Any, tuple[Any, Any]] = {}
    for node in graph.nodes:
        if _is_dropout(node):
            x, p = copies[node.args[0]], node.args[1]
            result, fake = node.meta["val"]
            mask = made.call_function(draw, (list(fake.shape), list(fake.stride()), p))
            kept = made.call_function(mul, (x, mask))
            scaled = made.call_function(mul, (kept, 1.0 / (1.0 - p)))
            mask.meta["val"], kept.meta["val"], scaled.meta["val"] = fake, result, result
            parts[node] = scaled, mask
        elif node.op == "call_function" and node.target is operator.getitem and node.args[0] in parts:
            copies[node] = parts[node.args[0]][node.args[1]]
        else:
            copies[node] = made.node_copy(node, copies.__getitem__)
    return made


def _is_dropout(node: Any) -> bool:
    """Whether a node is dropout of some and not all, over sizes that are known, whose results are picked."""
    if node.op != "call_function" or str(node.target) != "aten.native_dropout.default":
        return False
    if len(node.args) != 3 or node.args[2] is False or not isinstance(node.args[1], float) or not 0 < node.args[1] < 1:
        return False
    result, mask = node.meta["val"]
    sizes = (*mask.shape, *mask.stride())
    known = all(isinstance(size, int) for size in sizes) and mask.dtype is adapter.torch().bool
    return known and 0 not in mask.shape and result.shape == mask.shape and _are_picked(node)


def _are_picked(node: Any) -> bool:
    return all(user.target is operator.getitem for user in node.users)
