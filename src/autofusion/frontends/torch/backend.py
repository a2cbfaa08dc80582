"""The `torch.compile` backend: AOTAutograd's graphs of ATen operators become Programs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from autofusion.errors import ArgumentError
from autofusion.frontends.torch import adapter
from autofusion.frontends.torch.program import Program, Settings

# Decomposed by PyTorch otherwise, and rows of ours.
KEPT = (
    "addcmul.default addcdiv.default baddbmm.default gelu.default silu.default mish.default elu.default "
    "softplus.default leaky_relu.default native_layer_norm.default native_group_norm.default nan_to_num.default "
    "heaviside.default _softmax_backward_data.default _log_softmax_backward_data.default _unsafe_view.default "
    "eye.default eye.m xlogy.Tensor stack.default unbind.int masked_fill.Scalar masked_fill.Tensor rsub.Scalar "
    "rsub.Tensor lerp.Scalar lerp.Tensor logit.default roll.default tril.default triu.default "
    "reflection_pad1d.default reflection_pad2d.default reflection_pad3d.default replication_pad1d.default "
    "replication_pad2d.default replication_pad3d.default std.correction logsumexp.default mv.default dot.default "
    "addmv.default floor_divide.default zeros_like.default ones_like.default "
    "_scaled_dot_product_flash_attention_for_cpu.default"
)


@functools.cache
def decompositions() -> dict[Any, Any]:
    """PyTorch's, without those of operators that are rows of ours."""
    found: dict[Any, Any] = dict(adapter.module("torch._decomp").core_aten_decompositions())
    kept = {f"aten.{name}" for name in KEPT.split()}
    return {overload: function for overload, function in found.items() if str(overload) not in kept}


class Backend:
    """What `torch.compile(model, backend=…)` takes. `programs`: what was compiled so far, forward and backward."""

    def __init__(self, **options: Any) -> None:
        self.settings = _settings(Settings(), options)
        self.programs: list[Program] = []

    def __call__(
        self, module: Any, inputs: Sequence[Any], mode: Any = None, options: Mapping[str, Any] | None = None
    ) -> Any:
        settings = _settings(self.settings, options or {})
        compiler = functools.partial(self._compile, settings)
        aot_autograd = adapter.module("torch._dynamo.backends.common").aot_autograd
        partition = adapter.module("functorch.compile").min_cut_rematerialization_partition
        return aot_autograd(
            fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions(), partition_fn=partition
        )(module, inputs)

    def _compile(self, settings: Settings, module: Any, inputs: Sequence[Any]) -> Any:
        program = Program(module, settings)
        self.programs.append(program)
        return adapter.module("functorch.compile").make_boxed_func(program)


def _settings(base: Settings, options: Mapping[str, Any]) -> Settings:
    known = {each.name for each in fields(Settings)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise ArgumentError(f"option {unknown[0]!r}: expected one of {', '.join(sorted(known))}")
    return replace(base, **options)
