"""`compile` of a module, through `torch.export`: the lowest cost of a call, with no guards around it."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from autofusion.errors import ArgumentError, ExecutionError
from autofusion.frontends.torch import adapter
from autofusion.frontends.torch.backend import decompositions
from autofusion.frontends.torch.conditions import conditions_of, measured, sizes_of
from autofusion.frontends.torch.program import Program, Settings, array_of
from autofusion.frontends.torch.regions import FROZEN
from autofusion.frontends.torch.report import ProgramReport


def is_module(what: Any) -> bool:
    """Whether it is a PyTorch module; PyTorch is not imported to find out."""
    found = sys.modules.get("torch")
    return found is not None and isinstance(what, found.nn.Module)


def _distinct(arguments: Sequence[Any], held: Sequence[Any]) -> Sequence[Any]:
    """The arguments, no tensor twice and none that the module holds: `torch.export` takes one that it meets again for
    the same argument at every call."""
    seen = {id(each) for each in held}

    def once(tensor: Any) -> Any:
        made = tensor.detach() if id(tensor) in seen else tensor
        seen.add(id(tensor))
        return made

    tree_map_only = adapter.module("torch.utils._pytree").tree_map_only
    return tree_map_only(adapter.torch().Tensor, once, arguments)  # type: ignore[no-any-return]


def _held(module: Any, exported: Any) -> dict[str, Any]:
    """What an exported program takes besides the arguments, by each of its names: one tensor may have several."""
    parameters, buffers = (
        dict(named(remove_duplicate=False)) for named in (module.named_parameters, module.named_buffers)
    )
    return {**exported.constants, **parameters, **buffers}


def _constants(signature: Any) -> list[tuple[int, str, Any]]:
    """Arguments that are no tensors and no open sizes, whose values are compiled in: position, name and value."""
    given = [spec.arg for spec in signature.input_specs if spec.kind.name == "USER_INPUT"]
    return [(n, arg.name, arg.value) for n, arg in enumerate(given) if type(arg).__name__ == "ConstantArgument"]


def _exported(module: Any, examples: tuple[Any, ...], dynamic: Any) -> Any:
    """What `torch.export` makes of a module. Raises ExecutionError where it cannot trace it."""
    try:
        return adapter.module("torch.export").export(module, examples, dynamic_shapes=dynamic)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = lines[0] if lines else type(error).__name__
        raise ExecutionError(f"torch.export cannot trace {type(module).__name__}: {why}") from error


class Module:
    """A compiled module: called as the module is. Sizes and types are those that it was compiled for, but for open
    dimensions; no gradients.

    Parameters and buffers are read at every call, so an optimiser's step is seen, unless they are frozen; buffers that
    the module writes are written.
    """

    def __init__(self, module: Any, arguments: Sequence[Any], settings: Settings, dynamic: Any = None) -> None:
        torch = adapter.torch()
        with torch.no_grad():
            examples = tuple(_distinct(arguments, [*module.parameters(), *module.buffers()]))
            exported = _exported(module, examples, dynamic)
            with warnings.catch_warnings():  # PyTorch warns of how it copies a structure of its own
                warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
                exported = exported.run_decompositions(decompositions())
        signature = exported.graph_signature
        self._pytree = adapter.module("torch.utils._pytree")
        self._input, self._output = exported.call_spec.in_spec, exported.call_spec.out_spec
        self._plain = self._pytree.tree_flatten((tuple(arguments), {}))[1] == self._input and all(
            adapter.is_tensor(each) for each in arguments
        )
        self._count = len(arguments)
        held = _held(module, exported)
        targets = [spec.target for spec in signature.input_specs if spec.target is not None]
        if missing := [target for target in targets if target not in held]:
            raise ArgumentError(f"{type(module).__name__} has no parameter, buffer or constant {missing[0]!r}")
        written = {id(held[target]) for target in signature.buffers_to_mutate.values()}
        placeholders = [node for node in exported.graph.nodes if node.op == "placeholder"]
        self._state: list[Any] = []
        for node, spec in zip(placeholders, signature.input_specs, strict=True):
            if spec.target is None:
                continue
            state = held[spec.target]
            if settings.freeze and id(state) not in written and adapter.is_tensor(state):
                node.meta[FROZEN] = array_of(state)
            self._state.append(state)
        self._writes = [
            (position, held[signature.buffers_to_mutate[spec.arg.name]])
            if spec.arg.name in signature.buffers_to_mutate
            else (position, None)
            for position, spec in enumerate(signature.output_specs)
        ]
        if signature.user_inputs_to_mutate:
            raise ArgumentError(
                f"the module writes its argument {next(iter(signature.user_inputs_to_mutate.values()))}"
            )
        self._mutates = any(goal is not None for _, goal in self._writes)
        self._conditions, self._sizes = conditions_of(exported), sizes_of(exported)
        guards = [each.guard for each in self._conditions if each.guard is not None]
        self.program = Program(exported.graph_module, settings, type(module).__name__, guards)
        self.program.held = len(self._state)
        self._constants = _constants(signature)
        checked = {guard for each in self.program.launches for guard in each.compiled.graph.guards}
        native = all(each.guard in checked for each in self._conditions)
        self._simple = self._plain and not self._mutates and self._output.is_leaf() and native
        self._count_threads = torch.get_num_threads
        self._bind()

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        """The same code for copies of what the module holds."""
        made = copy.copy(self)
        made._state = copy.deepcopy(self._state, memo)
        made._writes = [(position, copy.deepcopy(goal, memo)) for position, goal in self._writes]
        return made

    def __copy__(self) -> Module:
        made = object.__new__(type(self))
        made.__dict__ |= self.__dict__
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ArgumentError("a compiled module holds machine code of this process: compile it again, do not pickle it")

    def _bind(self) -> None:
        """The native call, for as many workers as PyTorch has threads now."""
        self._threads = self._count_threads()
        self._direct = self.program.direct if self._simple else None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self._count_threads() != self._threads:
            self._bind()
        if self._direct is not None and len(arguments) == self._count and not named:
            made = self._direct(*self._state, *arguments)
            if made is not None:
                return made
        leaves, spec = self._pytree.tree_flatten((arguments, named))
        if spec != self._input:
            raise ArgumentError(f"the arguments have the structure {spec}, compiled for {self._input}")
        for place, name, value in self._constants:
            if type(leaves[place]) is not type(value) or repr(leaves[place]) != repr(value):
                raise ArgumentError(f"argument {place} ({name}): {leaves[place]!r} given, compiled for {value!r}")
        self._check_sizes(leaves)
        with adapter.torch().no_grad():
            results = self.program(*self._state, *leaves)
            kept = []
            for (_, goal), result in zip(self._writes, results, strict=True):
                if goal is None:
                    kept.append(result)
                else:
                    goal.copy_(result)
        return self._pytree.tree_unflatten(kept, self._output)

    def _check_sizes(self, leaves: Sequence[Any]) -> None:
        """Raises ArgumentError where open sizes are not those for which the module was traced."""
        if not self._conditions:
            return
        try:
            sizes = measured(self._sizes, leaves)
        except (AttributeError, LookupError):
            return  # the program tells what is wrong with such an argument
        for condition in self._conditions:
            if not condition.holds(sizes):
                found = ", ".join(
                    f"{each.name} is {sizes[each.name]}"
                    + (f" (argument {each.position}, axis {each.axis})" if each.axis is not None else "")
                    for each in self._sizes
                    if each.name in condition.symbols
                )
                raise ArgumentError(f"compiled for sizes with {condition}; {found}")

    @property
    def stats(self) -> Mapping[str, Any]:
        """Calls, launches a call, how many operators of the graph run in PyTorch, kernels, and how many of these the
        cache had."""
        return {
            "calls": self.program.called,
            "launches_per_call": len(self.program.launches),
            "fallbacks": sum(each.count for each in self.program.fallbacks.values()),
            "kernels": self.program.kernels,
            "cache_hits": self.program.cache_hits,
        }

    def explain(self, full: bool = False) -> ProgramReport:
        """Launches, and what PyTorch runs with its share of the time; `str()` of it is for people: a screen or two, or,
        `full`, all of it."""
        return self.program.explain(full)
