"""The `torch.compile` backend: AOTAutograd's graphs of ATen operators become Programs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from autofusion import api
from autofusion.errors import ArgumentError
from autofusion.frontends.torch import adapter, foreach, given_up
from autofusion.frontends.torch.program import Program, Settings, array_of
from autofusion.frontends.torch.regions import FROZEN
from autofusion.frontends.torch.report import Report

# Decomposed by PyTorch otherwise, and rows of ours.
KEPT = (
    "addcmul.default addcdiv.default baddbmm.default gelu.default silu.default mish.default elu.default "
    "softplus.default leaky_relu.default native_layer_norm.default native_group_norm.default nan_to_num.default "
    "heaviside.default _softmax_backward_data.default _log_softmax_backward_data.default _unsafe_view.default "
    "eye.default eye.m xlogy.Tensor stack.default unbind.int masked_fill.Scalar masked_fill.Tensor rsub.Scalar "
    "rsub.Tensor lerp.Scalar lerp.Tensor logit.default roll.default tril.default triu.default "
    "reflection_pad1d.default reflection_pad2d.default reflection_pad3d.default replication_pad1d.default "
    "replication_pad2d.default replication_pad3d.default std.correction logsumexp.default mv.default dot.default "
    "take.default linspace.default linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor "
    "addmv.default floor_divide.default zeros_like.default ones_like.default "
    "_scaled_dot_product_flash_attention_for_cpu.default"
)

# Once decomposed, these take other random numbers than in eager mode.
DRAWN = "bernoulli.default"

# Left whole by PyTorch, and of rows of ours once decomposed.
MORE = (
    "linalg_vector_norm.default _native_batch_norm_legit_functional.default _native_batch_norm_legit.default "
    "_native_batch_norm_legit.no_stats _batch_norm_with_update_functional.default native_batch_norm.default "
    "_batch_norm_with_update.default _batch_norm_no_update.default batch_norm_backward.default "
    "view_copy.default permute_copy.default unbind_copy.int narrow_copy.default "
    "dist.default ldexp.Tensor "
    "tril_indices.default triu_indices.default grid_sampler_2d.default"
)


# Of these, those of MORE whose statistics are of the batch: in one reduced type throughout, eager mode computes from
# statistics rounded to that type, which a decomposition does not.
OF_THE_BATCH = (
    "_native_batch_norm_legit_functional.default _native_batch_norm_legit.default _native_batch_norm_legit.no_stats "
    "_batch_norm_with_update_functional.default native_batch_norm.default _batch_norm_with_update.default"
)


@functools.cache
def decompositions() -> dict[Any, Any]:
    """PyTorch's to its core operators, without those of operators that are rows of ours, and more."""
    batch = {f"aten.{name}" for name in OF_THE_BATCH.split()}
    package = adapter.module("torch._decomp")
    kept, more = ({f"aten.{name}" for name in names.split()} for names in (f"{KEPT} {DRAWN}", MORE))
    found = {each: made for each, made in package.core_aten_decompositions().items() if str(each) not in kept}
    found |= {each: made for each, made in package.decomposition_table.items() if str(each) in more}
    found = {each: _in_wide_types(made) if str(each) in batch else made for each, made in found.items()}
    return found | foreach.decompositions()


def _in_wide_types(decomposition: Any) -> Any:
    """A decomposition for all calls but those whose tensors are all of a reduced type: these stay whole."""
    torch = adapter.torch()

    @functools.wraps(decomposition)
    def decompose(*arguments: Any, **options: Any) -> Any:
        types = {each.dtype for each in (*arguments, *options.values()) if isinstance(each, torch.Tensor)}
        if types <= {torch.bfloat16, torch.float16}:
            return NotImplemented
        return decomposition(*arguments, **options)

    return decompose


class Backend:
    """What `torch.compile(model, backend=…)` takes; the name "autofusion" is one that all share.

    `target`, `numerics`: as `autofusion.compile`. `freeze`: parameters and buffers are compiled in where no gradient is
    wanted; a change of them is not seen then. `programs`: what was compiled so far, forward and backward.
    """

    def __init__(self, **options: Any) -> None:
        self.settings = settings_of(Settings(), options)
        self.programs: list[Program] = []
        self.began = given_up.now()

    def __call__(
        self, module: Any, inputs: Sequence[Any], mode: Any = None, options: Mapping[str, Any] | None = None
    ) -> Any:
        settings = settings_of(self.settings, options or {})
        common = adapter.module("torch._dynamo.backends.common")
        partition = adapter.module("functorch.compile").min_cut_rematerialization_partition

        plain: list[Program] = []

        def compiler(kind: str) -> Any:
            return lambda graph, _: self._compile(graph, settings, kind, inputs, plain)

        call = common.aot_autograd(
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            decompositions=decompositions(),
            partition_fn=partition,
        )(module, inputs)
        return (plain and _native(plain[0])) or call

    def _compile(self, module: Any, settings: Settings, kind: str, inputs: Sequence[Any], plain: list[Program]) -> Any:
        """`plain` gets the program where AOTAutograd has nothing to do around it."""
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        if settings.freeze and kind == "inference" and len(placeholders) == len(inputs):
            for position, array in frozen_arguments(inputs).items():
                placeholders[position].meta[FROZEN] = array
        program = Program(module, settings, f"graph {len(self.programs)} ({kind})")
        program.compile_id = str(compile_id())
        self.programs.append(program)
        if kind == "inference" and is_plain() and len(placeholders) == len(inputs):
            plain.append(program)
        return adapter.module("functorch.compile").make_boxed_func(program)

    def explain(self, full: bool = False) -> Report:
        """Every graph compiled so far: launches, fallbacks with their share of the time, recompiles with Dynamo's
        reason; `str()` of it is for people: a screen or two, or, `full`, all of it."""
        reasons = recompile_reasons()
        for program in self.programs:
            program.recompiled = reasons.get(program.compile_id, "")
        return Report(tuple(program.explain(full) for program in self.programs), full, given_up.since(self.began))

    def reset(self) -> None:
        """Forget what was compiled so far; it stays callable."""
        self.programs.clear()
        self.began = given_up.now()


def _native(program: Program) -> Any:
    """The program as Dynamo calls it, where all of it is one native call; else None."""
    direct, general = program.direct, adapter.torch().no_grad()(program)
    if direct is None:
        return None

    def call(*arguments: Any) -> Any:
        made = direct(*arguments)
        if made is None:
            return general(*arguments)
        return made if type(made) is tuple else (made,)

    return call


def is_plain() -> bool:
    """Whether the graph that AOTAutograd compiles takes and gives what Dynamo's does, as it is: nothing is written,
    results share memory with nothing, no argument is a subclass or a token."""
    about = adapter.module("torch._guards").TracingContext.get().fw_metadata
    fresh = adapter.module("torch._functorch._aot_autograd.schemas").OutputType.non_alias
    return (
        not any(each.mutates_data or each.mutates_metadata for each in about.input_info)
        and all(each.output_type is fresh for each in about.output_info)
        and not about.tokens
        and not about.num_intermediate_bases
        and all(type(each).__name__ == "PlainTensorMeta" for each in about.subclass_inp_meta)
    )


def frozen_arguments(inputs: Sequence[Any]) -> dict[int, Any]:
    """The arguments of the graph that AOTAutograd compiles, by position, that are parameters or buffers of modules and
    that it does not write, as arrays."""
    about = adapter.module("torch._guards").TracingContext.get().fw_metadata
    written = [each.mutates_data or each.mutates_metadata for each in about.input_info]
    fixed = [n for n in about.static_input_indices if n < len(written) and not written[n]]
    with adapter.module("torch._subclasses.fake_tensor").unset_fake_temporarily():
        return {n: array_of(inputs[n]) for n in fixed if adapter.is_tensor(inputs[n])}


def compile_id() -> Any:
    """Dynamo's number of the compile that is under way."""
    return adapter.module("torch._guards").CompileContext.current_compile_id()


def recompile_reasons() -> dict[Any, str]:
    """Why Dynamo compiled again, by the compile's number."""
    metrics = adapter.module("torch._dynamo.utils").get_compilation_metrics()
    return {str(each.compile_id): each.recompile_reason for each in metrics if each.recompile_reason}


def settings_of(base: Settings, options: Mapping[str, Any]) -> Settings:
    """`base` with options changed. Raises ArgumentError for an unknown one or a wrong value, TargetError for an
    unknown target."""
    known = {each.name for each in fields(Settings)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise ArgumentError(f"option {unknown[0]!r}: expected one of {', '.join(sorted(known))}")
    made = replace(base, **options)
    if "target" in options:
        api.runnable(made.target)
    return made


def fuse(module: Any, **options: Any) -> Program:
    """An `fx.GraphModule` of functional ATen operators with fake tensors in `meta["val"]` (what AOTAutograd and
    `make_fx` give) as a callable of tensors and sizes that gives a list of results: for use inside another compiler.

    Raises ArgumentError for an unknown option or a graph without meta data.
    """
    for node in module.graph.nodes:
        if node.op == "call_function" and "val" not in node.meta:
            raise ArgumentError(f"{node.name}: the graph has no meta['val']; trace it with fake tensors")
    return Program(module, settings_of(Settings(), options))
