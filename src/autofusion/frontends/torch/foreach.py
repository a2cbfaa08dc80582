"""Operators on lists of tensors, which optimisers and `clip_grad_norm_` call, as one operator on each tensor.

_foreach_add.List([a, b], [c, d], alpha=2)   →   [add(a, c, alpha=2), add(b, d, alpha=2)]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autofusion.frontends.torch import adapter

_PREFIX = "_foreach_"
_OTHERWISE_NAMED = {
    "norm": "linalg_vector_norm",
    "zero": "zeros_like",
    "maximum.Scalar": "clamp_min",
    "maximum.ScalarList": "clamp_min",
    "minimum.Scalar": "clamp_max",
    "minimum.ScalarList": "clamp_max",
}
_LISTS = ("List[Tensor]", "List[number]")
_BY_NAME = ("alpha", "value", "dtype", "memory_format")


def decompositions() -> dict[Any, Callable[..., list[Any]]]:
    """By overload, all that write nothing; not those whose scalars are the elements of a tensor, nor sums of powers."""
    torch = adapter.torch()
    made: dict[Any, Callable[..., list[Any]]] = {}
    for full in torch._C._dispatch_get_all_op_names():
        name, _, end = full.removeprefix("aten::").partition(".")
        if not full.startswith(f"aten::{_PREFIX}") or name.endswith("_") or end.endswith("out"):
            continue
        plain = name.removeprefix(_PREFIX)
        each = _OTHERWISE_NAMED.get(f"{plain}.{end}") or _OTHERWISE_NAMED.get(plain, plain)
        overload = getattr(getattr(torch.ops.aten, name), end or "default")
        if hasattr(torch.ops.aten, each) and not (end == "Tensor" and plain.startswith("addc")):
            made[overload] = _on_each(overload, getattr(torch.ops.aten, each))
    return made


def _on_each(overload: Any, operator: Any) -> Callable[..., list[Any]]:
    """`operator` on the tensors, and numbers, at each position of the lists; other arguments are for all."""
    listed = [str(argument.type) in _LISTS for argument in overload._schema.arguments]
    factors = "addc" in overload.name()

    def decompose(*arguments: Any, **options: Any) -> list[Any]:
        given = list(adapter.arguments(overload, arguments, options))
        lengths = {len(value) for (_, value), many in zip(given, listed, strict=True) if many}
        if len(lengths) != 1:
            raise ValueError(f"{overload}: lists of {sorted(lengths)} elements, expected equal lengths")
        made = []
        for position in range(lengths.pop()):
            ordered, named = [], {}
            for (name, value), many in zip(given, listed, strict=True):
                each = value[position] if many else value
                name = "value" if factors and name == "scalars" else name
                if name in _BY_NAME:
                    named[name] = each
                else:
                    ordered.append(each)
            made.append(operator(*ordered, **named))
        return made

    return decompose
