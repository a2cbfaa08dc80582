"""Why PyTorch runs an operator that no rule of `aten.py` makes of rows of the op table, for people."""

from __future__ import annotations

import functools
import re
from typing import Any

from autofusion.frontends.torch import adapter

# Patterns of names, without the overload; the first that fits tells. docs/torch.md has the same families.
REASONS = {
    "sort|msort|argsort|topk|kthvalue|(nan)?median": "PyTorch's kernel sorts; rows of the op table would on the host",
    "nonzero|masked_select|_?unique.*|repeat_interleave|argwhere": "data decides the result's shape",
    "_?fft.*|view_as_(complex|real)|complex|polar|_conj.*|real|imag": "there are no complex element types",
    ".*quantize.*|int_repr|q_.*": "there are no quantised element types",
    r"_?linalg.*|histc|histogram.*|_histogramdd.*|mode|cholesky.*|lu_.*|geqrf|ormqr|.*_solve|bincount": (
        "an algorithm of a library, not a loop over tensors"
    ),
    "(max_pool|adaptive_max_pool|fractional_max_pool|reflection_pad|replication_pad|grid_sampler|upsample|_prelu).*"
    "_backward|max_unpool.*|embedding.*_backward": "it scatters, which PyTorch's kernel does",
    "gcd|lcm|igammac?|nextafter|frexp|special_.*polynomial.*|special_zeta|zeta|polygamma": (
        "its loops or bits are no rows of the op table"
    ),
}

NO_RULE = "no rule makes it of rows of the op table (docs/torch.md, What is compiled)"


def why(target: Any) -> str:
    """For an overload that has no rule."""
    space, _, name = target._schema.name.partition("::")
    if "c10d" in space:
        return "a collective: each rank's compute on either side of it is compiled"
    if space != "aten":
        return f"an operator of {space}, not of PyTorch's ATen"
    if adapter.torch().Tag.nondeterministic_seeded in target.tags:
        return "its random numbers are those of PyTorch's generator"
    return next((reason for pattern, reason in _patterns() if pattern.fullmatch(name)), NO_RULE)


@functools.cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), reason) for pattern, reason in REASONS.items()]
