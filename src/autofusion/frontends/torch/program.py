"""A divided FX graph as a callable: launches of our regions, and PyTorch's own operators between them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autofusion import api, config, dims, dtypes
from autofusion.dims import Expr, product
from autofusion.dtypes import Array, DType
from autofusion.errors import ArgumentError, AutofusionError, DeviceError, TargetError
from autofusion.frontends.torch import adapter, draws
from autofusion.frontends.torch.conditions import Told, told_by
from autofusion.frontends.torch.defects import Defect, survived
from autofusion.frontends.torch.regions import (
    Owner,
    Region,
    Split,
    is_size,
    order_of,
    overload,
    results_of,
    size_of,
    split,
)
from autofusion.frontends.torch.report import FallbackReport, ProgramReport, shares
from autofusion.graph.evaluate import bind_symbols
from autofusion.graph.ir import Guard
from autofusion.jit.pipeline import Numerics
from autofusion.ops.structure import strides_of
from autofusion.runtime import dispatch_keys
from autofusion.target import Target

Environment = dict[Any, Any]  # by node of the FX graph; sizes by name
Layout = Callable[[Any, Environment], Any]  # of a launch's result and the sizes, the tensor that PyTorch has


@dataclass(frozen=True)
class Settings:
    """How regions are compiled. Raises ArgumentError for values that an option does not take, TargetError for a target
    that there is not."""

    target: str | Target = "cpu"
    numerics: str = "default"
    freeze: bool = False

    def __post_init__(self) -> None:
        if self.numerics not in tuple(Numerics):
            raise ArgumentError(f"numerics={self.numerics!r}: expected {' or '.join(Numerics)}")
        if not isinstance(self.freeze, bool):
            raise ArgumentError(f"freeze={self.freeze!r}: expected True or False")
        api.find_target(self.target)


@dataclass
class Fallback:
    """An operator that PyTorch runs: how often it stands in the graph, why, and the seconds that it took so far."""

    operator: str
    reason: str
    count: int = 0
    seconds: float = 0.0


@dataclass
class Launch:
    """One region, compiled. `layouts`: what makes each result the tensor that PyTorch has, None where it is that."""

    region: Region
    compiled: api.Compiled
    seconds: float = 0.0
    layouts: list[Layout | None] = field(default_factory=list)

    def __call__(self, tensors: Sequence[Any], sizes: Environment) -> list[Any]:
        """The results as tensors. `sizes`: what is open, by name."""
        executable = self.compiled.executable
        if executable.workers != (count := workers()):
            executable.use_workers(count)
        direct = executable.direct
        made = direct(*tensors) if direct is not None and tensors else None  # without arguments it makes arrays
        if made is None:
            made = run(self.compiled, tensors)
        elif not isinstance(made, tuple):
            made = (made,)
        return [layout(each, sizes) if layout else each for layout, each in zip(self.layouts, made, strict=True)]


def workers() -> int:
    """As many as PyTorch uses (`torch.set_num_threads`); at most `AUTOFUSION_NUM_THREADS` where that is set."""
    count = adapter.threads()
    return min(count, config.num_threads() or count)


def run(compiled: api.Compiled, tensors: Sequence[Any]) -> list[Any]:
    """A call for tensors that do not lie just as they were compiled for, or whose sizes are open."""
    inputs = compiled.graph.inputs
    arrays = [array_of(tensor) for tensor in tensors]
    sizes = bind_symbols(inputs, [a.shape for a in arrays], compiled.graph.guards)
    for position, (value, array) in enumerate(zip(inputs, arrays, strict=True)):
        if value.strides is None or array.size <= 1:
            continue
        steps = [int(dims.evaluate(step, sizes)) for step in value.strides]
        if tuple(step * array.itemsize for step in steps) != array.strides:
            arrays[position] = _restrided(array, steps)
    return [tensor_of(array) for array in compiled.executable(arrays)]


def _restrided(array: Array, steps: Sequence[int]) -> Array:
    """A copy with these strides, in elements."""
    reach = 1 + sum((n - 1) * step for n, step in zip(array.shape, steps, strict=True))
    base = np.empty(reach, array.dtype)
    made = np.lib.stride_tricks.as_strided(base, array.shape, [step * array.itemsize for step in steps])
    made[...] = array
    return made


def array_of(tensor: Any) -> Array:
    """An array over a tensor's memory, or that of a copy where its elements are not there as they are."""
    torch = adapter.torch()
    plain = dispatch_keys.ordinary(tensor).detach()
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(DType.BFLOAT16.numpy)  # type: ignore[no-any-return]
    return plain.numpy()  # type: ignore[no-any-return]


def tensor_of(array: Array) -> Any:
    """A tensor over an array's memory."""
    torch = adapter.torch()
    if dtypes.of(array) is DType.BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class Program:
    """An FX graph of ATen operators, compiled. Call it with tensors and sizes in the order of its placeholders; it
    gives what the graph's output lists."""

    def __init__(self, module: Any, settings: Settings, name: str = "graph", guards: Sequence[Guard] = ()) -> None:
        self.module = module
        self.settings = settings
        self.name = name
        self.recompiled = ""  # why, where the same code was compiled before
        self.held = 0  # how many arguments come first that no caller gives: what a module holds
        self.fallbacks: dict[tuple[str, str], Fallback] = {}
        self.launches: list[Launch] = []
        self.calls = 0
        self.graph = draws.apart(module.graph)
        self._split = split(self.graph, guards)
        self.defects: list[Defect] = self._split.defects
        self._steps = _Writer(self).steps()

    def __call__(self, *arguments: Any) -> list[Any]:
        self.calls += 1
        env: Environment = {}
        try:
            for step in self._steps:
                step(env, arguments)
        except AutofusionError:
            raise
        except Exception:
            self._check_kinds(arguments)
            raise
        return env["results"]  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: Any) -> Program:
        return self  # nothing of it changes

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ArgumentError("a compiled program holds machine code of this process: compile it again, do not pickle it")

    def _check_kinds(self, arguments: Sequence[Any]) -> None:
        """Raises ArgumentError for an argument that is no tensor where there should be one, and the other way round."""
        nodes = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        for position, (node, argument) in enumerate(zip(nodes, arguments, strict=True)):
            wanted = adapter.is_tensor(node.meta.get("val"))
            if wanted != adapter.is_tensor(argument) and (wanted or is_size(node)):
                kind = "tensor" if wanted else "number"
                found = type(argument).__name__
                place = f"argument {position - self.held} ({node.name})"
                raise ArgumentError(f"{place}: expected a {kind}, found {found}")

    @property
    def direct(self) -> Any:
        """The native call where the whole graph is one launch whose results lie as they are made: it takes the graph's
        arguments, and gives a tensor, a tuple of several, or None for the general call. None where the launch reads no
        tensor, for it would give arrays."""
        if len(self.launches) != 1 or self.fallbacks or len(self._steps) != 3:
            return None
        launch = self.launches[0]
        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        (output,) = [node for node in self.graph.nodes if node.op == "output"]
        results = list(output.args[0]) if isinstance(output.args[0], tuple | list) else [output.args[0]]
        positions = [placeholders.index(node) for node in launch.region.reads]
        if not positions or launch.region.sizes or results != launch.region.writes or any(launch.layouts):
            return None
        launch.compiled.executable.use_workers(workers())
        call = launch.compiled.executable.direct
        if call is None or positions == list(range(len(placeholders))):
            return call
        return lambda *given: call(*[given[position] for position in positions])

    def launch(self, region: Region) -> Launch | str:
        """The region compiled; why not, where the target refuses it or this package fails."""
        if region.graph is None:
            return str(region.defect)
        target = api.runnable(self.settings.target)
        try:
            compiled = api.compile_graph(region.graph, target, self.settings.numerics)
        except Exception as error:
            if isinstance(error, TargetError | DeviceError) and target.family != "cpu":
                return str(error)
            self.defects.append(survived(f"region{region.number} of {self.name}", error))
            return self.defects[-1].error
        compiled.executable.failures.told.update(region.failures)
        made = Launch(region, compiled, layouts=[_layout(node) for node in region.writes])
        self.launches.append(made)
        return made

    def explain(self, full: bool = False) -> ProgramReport:
        """Launches, fallbacks by operator with count and share of time."""
        fallbacks = list(self.fallbacks.values())
        spent = shares([each.seconds for each in fallbacks] + [each.seconds for each in self.launches])
        return ProgramReport(
            self.name,
            sum(node.op == "call_function" for node in self.module.graph.nodes),
            tuple(launch.compiled.explain() for launch in self.launches),
            tuple(
                FallbackReport(each.operator, each.count, each.reason, share)
                for each, share in zip(fallbacks, spent, strict=False)
            ),
            self.called,
            self.recompiled,
            tuple(map(str, self.defects)),
            full,
            self.kernels,
            self.cache_hits,
        )

    @property
    def kernels(self) -> int:
        """Of all launches; those that are equal within one are one."""
        return sum(launch.compiled.stats["kernels"] for launch in self.launches)

    @property
    def cache_hits(self) -> int:
        """Kernels that were not compiled, for the cache had them."""
        return sum(launch.compiled.stats["cache_hits"] for launch in self.launches)

    @property
    def called(self) -> int:
        """Calls of this object, and of the native call that stands for it: of a single launch, all of its calls."""
        if len(self.launches) != 1:
            return self.calls
        return max(self.calls, self.launches[0].compiled.executable.counts.calls)

    def fallback(self, node: Any, reason: str) -> Fallback:
        name = overload(node)
        found = self.fallbacks.setdefault((name, reason), Fallback(name, reason))
        found.count += 1
        return found


Step = Callable[[Environment, Sequence[Any]], None]


class _Writer:
    """Writes a program's steps."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.graph = program.graph
        self.split: Split = program._split
        self.made: set[Any] = set()
        self.out: list[Step] = []

    def steps(self) -> list[Step]:
        owners, stages = self.split.owners, self.split.stages
        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        self.out.append(_arguments(placeholders))
        self.made |= set(placeholders)
        regions = {region.number: region for region in self.split.regions}
        eager: dict[int, list[Any]] = {}
        for node in self.graph.nodes:
            if owners.get(node) is Owner.EAGER:
                eager.setdefault(stages[node], []).append(node)
        for stage in range(-1, max([*regions, *eager], default=-1) + 1):
            if stage in regions:
                self._region(regions[stage])
            for node in eager.get(stage, ()):
                self._eager(node, self.split.reasons[node])
        (output,) = [node for node in self.graph.nodes if node.op == "output"]
        self._need(output.args)
        listed = output.args[0]
        single = not isinstance(listed, tuple | list)
        self.out.append(_results([listed] if single else list(listed)))
        return _releasing(self.out)

    def _need(self, item: Any) -> None:
        """Make what an argument reads: views, picked results, sizes and attributes are made when they are needed."""
        if isinstance(item, tuple | list):
            for each in item:
                self._need(each)
        elif isinstance(item, dict):
            self._need(list(item.values()))
        elif isinstance(item, slice):
            self._need([item.start, item.stop, item.step])
        elif isinstance(item, adapter.torch().fx.Node) and item not in self.made:
            self.made.add(item)
            owner = self.split.owners[item]
            if item.op == "get_attr":
                self.out.append(_attribute(item, self.program.module))
            elif owner is Owner.SIZE and _is_known(item.meta["val"]) and _dim(item.meta["val"]) is not None:
                self.out.append(_size(item))
            else:
                self._need([item.args, item.kwargs])
                self.out.append(_call(item, None))

    def _eager(self, node: Any, reason: str) -> None:
        self._need([node.args, node.kwargs])
        self.made.add(node)
        self.out.append(_call(node, self.program.fallback(node, reason)))

    def _region(self, region: Region) -> None:
        launch = self.program.launch(region)
        if isinstance(launch, str):
            for node in region.nodes:
                self._eager(node, launch)
            return
        self._need(region.reads)
        self.made |= set(region.writes)
        self.out.append(_launch(launch))


def _arguments(placeholders: Sequence[Any]) -> Step:
    """Arguments by placeholder, and the open sizes that they tell: as numbers, by extents and by strides."""
    sizes = [(n, dim.name) for n, dim in enumerate(map(_size_of, placeholders)) if isinstance(dim, Expr) and dim.name]
    shaped: list[Told] = []
    strided: list[Told] = []
    for position, node in enumerate(placeholders):
        fake = node.meta.get("val")
        if adapter.is_tensor(fake):
            shaped += told_by(position, node.name, fake.shape)
            strided += told_by(position, node.name, fake.stride())
    named = {name for _, name in sizes}
    plain = sorted(shaped, key=lambda each: each.plain)  # the last of a name is taken: one that says it as it is
    shaped = [each for each in {each.name: each for each in plain}.values() if each.name not in named]
    told = named | {each.name for each in shaped}
    strided = [each for each in strided if each.name not in told and each.plain]

    def step(env: Environment, arguments: Sequence[Any]) -> None:
        if len(arguments) != len(placeholders):
            raise ArgumentError(f"{len(arguments)} arguments given, expected {len(placeholders)}")
        env.update(zip(placeholders, arguments, strict=True))
        for position, name in sizes:
            env[name] = arguments[position]
        for each in shaped:
            env[each.name] = each.size(arguments[each.position].shape[each.axis])
        for each in strided:
            env[each.name] = arguments[each.position].stride(each.axis)

    step.reads = step.writes = ()  # type: ignore[attr-defined]
    return step


def _dim(size: Any) -> Any:
    """The size as a dim; None for an expression that dims do not have: one by way of a float, say."""
    try:
        return adapter.dim_of(size)
    except AutofusionError:
        return None


def _size_of(node: Any) -> Any:
    """The dim that a placeholder is, else None."""
    return _dim(node.meta["val"]) if is_size(node) else None


def _is_known(size: Any) -> bool:
    """Whether a size follows from the arguments' extents, as a dim: not from what a tensor holds."""
    if not isinstance(size, int | adapter.torch().SymInt):
        return False
    return not adapter.from_data(size) and _dim(size) is not None


def _attribute(node: Any, module: Any) -> Step:
    value = module
    for name in node.target.split("."):
        value = getattr(value, name)

    def step(env: Environment, arguments: Sequence[Any]) -> None:
        env[node] = value

    step.reads, step.writes = (), (node,)  # type: ignore[attr-defined]
    return step


def _size(node: Any) -> Step:
    dim = size_of(node)

    def step(env: Environment, arguments: Sequence[Any]) -> None:
        env[node] = dim if isinstance(dim, int) else int(dims.evaluate(dim, env))  # type: ignore[arg-type]

    step.reads, step.writes = (), (node,)  # type: ignore[attr-defined]
    return step


def _call(node: Any, fallback: Fallback | None) -> Step:
    """PyTorch runs the node."""
    map_arg = adapter.torch().fx.map_arg
    found = node.meta.get("val")
    symbols: list[tuple[tuple[int, int] | None, Any]] = [(None, _dim(found))] if is_size(node) else []
    for number, fake in enumerate(results_of(node)):
        if adapter.is_tensor(fake):
            symbols += [((number, axis), _dim(size)) for axis, size in enumerate(fake.shape)]
    fresh = [(place, dim.name) for place, dim in symbols if isinstance(dim, Expr) and dim.name]
    several = isinstance(found, tuple | list)

    def step(env: Environment, arguments: Sequence[Any]) -> None:
        begin = time.perf_counter()
        args, kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
        made = env[node] = node.target(*args, **kwargs)
        for place, name in fresh:
            env[name] = made if place is None else (made[place[0]] if several else made).shape[place[1]]
        if fallback is not None:
            fallback.seconds += time.perf_counter() - begin

    step.reads, step.writes = tuple(node.all_input_nodes), (node,)  # type: ignore[attr-defined]
    return step


@functools.cache
def _one() -> Any:
    """A tensor whose expansions tell sizes. It is made when a program runs: while one is written, tensors are fake."""
    return adapter.torch().zeros(1, dtype=adapter.torch().uint8)


def _launch(launch: Launch) -> Step:
    """Tensors that PyTorch made on the way are of the types that were traced: its batch norm in bfloat16 gives
    statistics of that type where its rule for tracing says float32."""
    region = launch.region
    made = [(i, node.meta.get("val")) for i, node in enumerate(region.reads) if node.op == "call_function"]
    types = [(i, traced.dtype) for i, traced in made if adapter.is_tensor(traced)]

    def step(env: Environment, arguments: Sequence[Any]) -> None:
        begin = time.perf_counter()
        tensors = [env[node] for node in region.reads]
        for position, dtype in types:
            if tensors[position].dtype is not dtype:
                tensors[position] = tensors[position].to(dtype)
        tensors += [_one().expand(env[name]) for name in region.sizes]
        env.update(zip(region.writes, launch(tensors, env), strict=True))
        launch.seconds += time.perf_counter() - begin

    step.reads, step.writes = tuple(region.reads), tuple(region.writes)  # type: ignore[attr-defined]
    return step


def _results(listed: Sequence[Any]) -> Step:
    node_class = adapter.torch().fx.Node

    def step(env: Environment, arguments: Sequence[Any]) -> None:
        env["results"] = [env[each] if isinstance(each, node_class) else each for each in listed]

    step.reads, step.writes = tuple(each for each in listed if isinstance(each, node_class)), ()  # type: ignore[attr-defined]
    return step


def _releasing(steps: Sequence[Step]) -> list[Step]:
    """The steps, each letting go of what nothing after it reads."""
    last: dict[Any, int] = {}
    for number, step in enumerate(steps):
        for node in (*step.reads, *step.writes):  # type: ignore[attr-defined]
            last[node] = number
    made = list(steps)
    for number, step in enumerate(steps):
        gone = [node for node, end in last.items() if end == number]
        if gone and number < len(steps) - 1:
            made[number] = _then_release(step, gone)
    return made


def _then_release(step: Step, gone: Sequence[Any]) -> Step:
    def both(env: Environment, arguments: Sequence[Any]) -> None:
        step(env, arguments)
        for node in gone:
            env.pop(node, None)

    return both


def _layout(node: Any) -> Layout | None:
    """What makes a region's result the tensor that PyTorch has: another view of it, a copy where it is not dense."""
    (fake,) = results_of(node)
    shape, steps = tuple(map(_dim, fake.shape)), tuple(map(_dim, fake.stride()))
    try:
        order, dense = order_of(fake), True
    except AutofusionError:
        order, dense = None, False
    if None in (*shape, *steps):  # no dims: the order of the axes is what is known
        return None if order is None else _permuting(order)
    is_open = any(isinstance(each, Expr) for each in (*shape, *steps))
    wanted = tuple(product(shape[axis + 1 :]) for axis in range(len(shape))) if is_open else strides_of(shape)
    if dense and steps == wanted:
        return None

    def layout(tensor: Any, sizes: Environment) -> Any:
        extents, strides = [tuple(int(dims.evaluate(dim, sizes)) for dim in each) for each in (shape, steps)]
        if dense:
            return tensor.as_strided(extents, strides)
        return adapter.torch().empty_strided(extents, strides, dtype=tensor.dtype).copy_(tensor)

    return layout


def _permuting(order: Sequence[int]) -> Layout:
    inverse = tuple(int(axis) for axis in np.argsort(order))
    return lambda tensor, _: tensor.permute(inverse)
