"""The `torch.compile` backend: AOTAutograd's graphs of ATen operators become Programs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from autofusion import api
from autofusion.dtypes import Array
from autofusion.errors import ArgumentError
from autofusion.frontends.torch import adapter, foreach, given_up
from autofusion.frontends.torch.freezing import Frozen, is_fit
from autofusion.frontends.torch.program import Program, Settings
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
    "_scaled_dot_product_flash_attention_for_cpu.default index_add.default index_copy.default "
    "index_fill.int_Scalar index_fill.int_Tensor"
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
    wanted, for the tensors and values of the first call; others are compiled again. `programs`: what was compiled so
    far, forward and backward.
    """

    def __init__(self, **options: Any) -> None:
        self.settings = settings_of(Settings(), options)
        self.programs: list[Program] = []
        self.began = given_up.now()
        self._numbers = itertools.count()

    def __call__(
        self, module: Any, inputs: Sequence[Any], mode: Any = None, options: Mapping[str, Any] | None = None
    ) -> Any:
        if mode not in (None, "default"):
            raise ArgumentError(f"mode={mode!r}: expected 'default'; what this backend has are options: {_options()}")
        return _Compile(self, module, inputs, settings_of(self.settings, options or {})).call()

    def __deepcopy__(self, memo: Any) -> Backend:
        return self  # of a copy of a model, too, it tells what was compiled

    def __reduce__(self) -> Any:
        options = {each.name: getattr(self.settings, each.name) for each in fields(Settings)}
        return functools.partial(Backend, **options), ()

    def explain(self, full: bool = False) -> Report:
        """Every graph compiled so far: launches, fallbacks with their share of the time, recompiles with Dynamo's
        reason; `str()` of it is for people: a screen or two, or, `full`, all of it."""
        return Report(tuple(program.explain(full) for program in self.programs), full, given_up.since(self.began))

    def reset(self) -> None:
        """Forget what was compiled so far; it stays callable."""
        self.programs.clear()
        self.began = given_up.now()
        self._numbers = itertools.count()

    def program(self, graph: Any, settings: Settings, kind: str) -> Program:
        """Compile a graph of AOTAutograd's, and keep it for `explain`."""
        made = Program(graph, settings, f"graph {next(self._numbers)} ({kind})")
        self.programs.append(made)
        return made

    def retire(self, program: Program) -> None:
        """Forget a program that is not called any more."""
        if program in self.programs:
            self.programs.remove(program)


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


def _with_tangents(compiled: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """The compiled graph, but PyTorch runs Dynamo's where an argument has a tangent: kernels give none."""
    unpack = adapter.module("torch.autograd.forward_ad").unpack_dual

    def call(*arguments: Any) -> Any:
        if any(adapter.is_tensor(each) and unpack(each).tangent is not None for each in arguments):
            return module(*arguments)
        return compiled(*arguments)

    return call


class _Compile:
    """One compile of a graph of Dynamo's: the programs of what AOTAutograd makes of it.

    `plain`: what Dynamo calls where AOTAutograd has nothing to do around a single native call, else None.
    """

    def __init__(self, backend: Backend, module: Any, inputs: Sequence[Any], settings: Settings) -> None:
        self.backend, self.module, self.inputs, self.settings = backend, module, inputs, settings
        self.plain: Callable[..., Any] | None = None
        self._reason = recompile_reason()

    def call(self) -> Callable[..., Any]:
        """What Dynamo calls. The example inputs are not kept: the backward graph may be compiled much later."""
        made = adapter.module("torch._dynamo.backends.common").aot_autograd(
            fw_compiler=self._compiler("forward"),
            bw_compiler=self._compiler("backward"),
            inference_compiler=self._compiler("inference"),
            decompositions=decompositions(),
            partition_fn=adapter.module("functorch.compile").min_cut_rematerialization_partition,
        )(self.module, self.inputs)
        module, self.module, self.inputs = self.module, None, ()
        made = self.plain or made
        return _with_tangents(made, module) if guarded_dual_level() >= 0 else made

    def _compiler(self, kind: str) -> Callable[[Any, Any], Any]:
        return lambda graph, _: adapter.module("functorch.compile").make_boxed_func(self._compile(graph, kind))

    def _compile(self, graph: Any, kind: str) -> Callable[..., Any]:
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        whole = kind == "inference" and len(placeholders) == len(self.inputs)
        positions = may_freeze(self.module, self.inputs) if whole and self.settings.freeze else ()
        if positions:
            make = _frozen_program(self.backend, graph, self.settings, placeholders, self._reason)
            frozen = Frozen(make, self.backend.retire, positions, names_of(self.module))
            if frozen.variant(self.inputs).program.direct is not None and is_plain():
                self.plain = frozen.run
            return frozen
        program = self.backend.program(graph, self.settings, kind)
        program.recompiled, self._reason = self._reason, ""  # forward and backward are one recompile
        if whole and is_plain():
            self.plain = _native(program)
        return program


def _frozen_program(
    backend: Backend, graph: Any, settings: Settings, placeholders: Sequence[Any], first: str
) -> Callable[[dict[int, Array], str], tuple[Program, Callable[..., Any]]]:
    """The maker of programs of a graph with arrays compiled in. `first`: why Dynamo compiled the graph again."""

    def make(arrays: dict[int, Array], reason: str) -> tuple[Program, Callable[..., Any]]:
        for position, array in arrays.items():
            placeholders[position].meta[FROZEN] = array
        try:
            program = backend.program(graph, settings, "inference")
        finally:
            for position in arrays:
                del placeholders[position].meta[FROZEN]
        program.recompiled = reason or first
        return program, _native(program) or adapter.torch().no_grad()(program)

    return make


def guarded_dual_level() -> int:
    """The level of forward-mode differentiation, below 0 outside of it; what Dynamo compiles now holds for that one
    only. It asks itself where the code enters a level, but not for arguments that come from one."""
    context = adapter.module("torch._guards").TracingContext.try_get()
    if context is not None:
        source = adapter.module("torch._dynamo.source").GlobalStateSource()
        context.guards_context.dynamo_guards.add(
            source.make_guard(adapter.module("torch._dynamo.guards").GuardBuilder.DUAL_LEVEL)
        )
    return int(adapter.module("torch.autograd.forward_ad")._current_level)


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


def may_freeze(module: Any, inputs: Sequence[Any]) -> list[int]:
    """The arguments of the graph that AOTAutograd compiles, by position, that are parameters or buffers of modules and
    that it does not write. `module`: Dynamo's graph, which tells buffers from other tensors."""
    about = adapter.module("torch._guards").TracingContext.get().fw_metadata
    written = [each.mutates_data or each.mutates_metadata for each in about.input_info]
    kind = getattr(adapter.module("torch._dynamo.source"), "UnspecializedParamBufferSource", ())
    parameter = adapter.torch().nn.Parameter
    sources = [getattr(node, "_dynamo_source", None) for node in module.graph.find_nodes(op="placeholder")]
    held = [
        isinstance(given, parameter) or isinstance(getattr(source, "base", None), kind)
        for given, source in zip(inputs, sources, strict=False)
    ]
    fixed = set(about.static_input_indices)
    own = [n for n, each in enumerate(held) if each and n in fixed and n < len(written) and not written[n]]
    return [n for n in own if is_fit(inputs[n])]


def names_of(module: Any) -> list[str]:
    """The arguments of Dynamo's graph in the words of the source."""
    made = []
    for node in module.graph.find_nodes(op="placeholder"):
        name = getattr(getattr(node, "_dynamo_source", None), "name", None)
        made.append(str(name() if callable(name) else name or node.name))
    return made


def recompile_reason() -> str:
    """Why Dynamo compiles the code again that it compiles now; empty where it does not."""
    metrics = adapter.module("torch._dynamo.utils").get_metrics_context()
    return getattr(metrics, "_metrics", {}).get("recompile_reason") or ""


def _options() -> str:
    return ", ".join(sorted(each.name for each in fields(Settings)))


def settings_of(base: Settings, options: Mapping[str, Any]) -> Settings:
    """`base` with options changed. Raises ArgumentError for an unknown one or a wrong value, TargetError for an
    unknown target."""
    if not isinstance(options, Mapping):
        raise ArgumentError(f"options={options!r}: expected a dict of {_options()}")
    unknown = sorted(set(options) - {each.name for each in fields(Settings)}, key=str)
    if unknown:
        raise ArgumentError(f"option {unknown[0]!r}: expected one of {_options()}")
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
