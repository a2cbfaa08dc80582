"""`compile` and `jit`: from a graph, a file or an ordinary function to a callable."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofusion import api, dims, dtypes
from autofusion.dims import Shape
from autofusion.errors import ArgumentError
from autofusion.frontends import opseq, tracer
from autofusion.graph.ir import Graph
from autofusion.lazy import Lazy
from autofusion.runtime import binding
from autofusion.superkernel.options import SuperKernelOptions
from autofusion.target import Target

if TYPE_CHECKING:
    from autofusion.frontends import onnx
    from autofusion.frontends import torch as pytorch
else:
    onnx, pytorch = Lazy("autofusion.frontends.onnx"), Lazy("autofusion.frontends.torch")

Dynamic = Mapping[str, Sequence[int | str]]
TRIED = 8  # variants of a function, the last ones, that a call is tried on in native code


@dataclass
class Function(binding.Callable):
    """A compiled Python function: called like it, with arrays; results come in its own structure. `threads=` of a call
    are its workers."""

    compiled: api.Compiled
    traced: tracer.Traced

    def __post_init__(self) -> None:
        if self.traced.is_plain:
            self.direct = self.compiled.direct

    def _call(self, *arguments: Any, threads: int | None = None) -> Any:
        result = self.compiled(*arguments, threads=threads)
        return self.traced.rebuild(result if len(self.graph.outputs) > 1 else (result,))

    @property
    def stats(self) -> dict[str, Any]:
        return self.compiled.stats

    @property
    def graph(self) -> Graph:
        return self.compiled.graph

    def explain(self) -> Any:
        return self.compiled.explain()

    def source(self, stage: str = "llvm") -> str:
        return self.compiled.source(stage)

    def save(self, path: str | Path) -> None:
        """Write the compiled graph; a loaded one gives its outputs as a tuple."""
        self.compiled.save(path)


def compile(
    what: Graph | Callable[..., Any] | str | Path,
    example_inputs: Sequence[Any] | None = None,
    target: str | Target = "cpu",
    numerics: str = "default",
    dynamic: Dynamic | None = None,
    superkernel: SuperKernelOptions | None = None,
    freeze: bool = False,
) -> Any:
    """Compile a graph, a file (an op-sequence or an ONNX model), or a function or a PyTorch module with example inputs.

    `dynamic`: open dimensions by argument name, `{"x": ("n", 64)}`; one compile then serves all sizes. For an ONNX
    model it replaces the declared dimensions, by sizes where numbers are given. `superkernel`: what to switch off when
    groups are packed into launches, to measure its effect. Returns an
    `api.Compiled` for a graph or file, a `Function` for a function; both are callable and have `.explain()`,
    `.source(stage)`, `.stats` and `.save(path)`. An ONNX model whose control flow depends on data gives an
    `onnx.Program`, which has the same but cannot be saved. Raises AutofusionError with one clear line.

    A PyTorch module gives a `Module`, called as the module is, without gradients: `dynamic` is then what `torch.export`
    takes as `dynamic_shapes`, and `freeze` compiles parameters and buffers in, so that a change of them is not seen.
    """
    if "torch" in sys.modules and pytorch.is_module(what):
        if example_inputs is None:
            raise ArgumentError("compile of a module needs example_inputs: a tuple of its arguments")
        settings = pytorch.Settings(target, numerics, freeze)
        return pytorch.Module(what, tuple(_listed(example_inputs)), settings, dynamic)
    if freeze:
        raise ArgumentError("freeze=True: only a PyTorch module has parameters to compile in")
    if isinstance(what, str | Path):
        if Path(what).suffix.lower() == ".onnx":
            return onnx.compile_file(what, dynamic, target, numerics, superkernel)
        return api.compile_graph(opseq.read(what), target, numerics, superkernel=superkernel)
    if isinstance(what, Graph):
        return api.compile_graph(what, target, numerics, superkernel=superkernel)
    if not callable(what):
        raise ArgumentError(f"compile takes a graph, a file or a function, got {type(what).__name__}")
    if example_inputs is None:
        raise ArgumentError("compile of a function needs example_inputs: arrays of its argument types and shapes")
    arrays = [api.as_array(a) for a in _listed(example_inputs)]
    names = argument_names(what, len(arrays))
    traced = tracer.trace(what, [_spec(n, a, dynamic) for n, a in zip(names, arrays, strict=True)])
    return _function(api.compile_graph(traced.graph, target, numerics, superkernel=superkernel), traced)


def _listed(example_inputs: Any) -> Sequence[Any]:
    """Example inputs as a sequence of arguments; an array or a tensor by itself is the only one. Raises ArgumentError
    for what is neither."""
    if hasattr(example_inputs, "__dlpack__"):
        return (example_inputs,)
    if isinstance(example_inputs, str) or not isinstance(example_inputs, Sequence):
        raise ArgumentError(f"example_inputs: expected a tuple of arguments, found {type(example_inputs).__name__}")
    return example_inputs


def _function(compiled: api.Compiled, traced: tracer.Traced) -> Function:
    """The compiled function; what was traced is kept without data that only it has."""
    assert compiled.compilation is not None
    return Function(compiled, replace(traced, graph=compiled.compilation.source))


def argument_names(function: Callable[..., Any], count: int) -> list[str]:
    """The names of a function's first `count` positional parameters; `x0`, `x1` … where it has none."""
    code = getattr(function, "__code__", None)
    names = list(code.co_varnames[: code.co_argcount]) if code is not None else []
    if names and names[0] == "self" and hasattr(function, "__self__"):
        names = names[1:]
    return [names[i] if i < len(names) else f"x{i}" for i in range(count)]


def _spec(name: str, array: Any, dynamic: Dynamic | None, strided: bool = False) -> tuple[Any, ...]:
    shape: Shape = tuple(int(n) for n in array.shape)
    if dynamic and name in dynamic:
        declared = dynamic[name]
        if len(declared) != len(shape):
            raise ArgumentError(f"dynamic[{name!r}]: {len(declared)} dimensions given, the array has {len(shape)}")
        shape = tuple(dims.parse(d) if isinstance(d, str) else int(d) for d in declared)
        for axis, (given, actual) in enumerate(zip(shape, array.shape, strict=True)):
            if isinstance(given, int) and given != actual:
                raise ArgumentError(f"dynamic[{name!r}]: axis {axis} is {given}, the example has {actual}")
    spec = (name, dtypes.of(array), shape)
    return (*spec, element_strides(array)) if strided else spec


def element_strides(array: Any) -> tuple[int, ...] | None:
    """Strides in elements; None for row-major arrays, and for those that a call copies: strides of broken elements."""
    if array.flags.c_contiguous or array.size <= 1 or any(s % array.itemsize for s in array.strides):
        return None
    return tuple(s // array.itemsize for s in array.strides)


@dataclass
class Jit(binding.Callable):
    """A function that is compiled when it is called, once for each set of shapes, types and strides.

    `recompiles` lists why each further compile was made. Open dimensions (`dynamic`) share one compile. `threads=` of a
    call are its workers.
    """

    function: Callable[..., Any]
    target: str | Target = "cpu"
    numerics: str = "default"
    dynamic: Dynamic | None = None
    recompiles: list[str] = field(default_factory=list)
    _variants: dict[Any, Function] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.function)

    def _call(self, *arguments: Any, threads: int | None = None) -> Any:
        made = self.specialise([api.as_array(a) for a in arguments])
        self.direct = (*made.direct, *(call for call in self.direct if call not in made.direct))[:TRIED]
        return made(*arguments, threads=threads)

    def specialise(self, arrays: Sequence[Any]) -> Function:
        """The compiled variant for these arguments."""
        specs = [_spec(n, a, self.dynamic, strided=True) for n, a in zip(self._names(arrays), arrays, strict=True)]
        key = tuple((str(s[1]), str(s[2]), s[3]) for s in specs)
        found = self._variants.get(key)
        if found is None:
            with self._lock:
                found = self._variants.get(key) or self._compile(key, specs)
        return found

    def _names(self, arrays: Sequence[Any]) -> list[str]:
        return argument_names(self.function, len(arrays))

    def _compile(self, key: Any, specs: list[tuple[Any, ...]]) -> Function:
        if self._variants:
            last = next(reversed(self._variants))
            self.recompiles.append(_difference(specs, last, key))
        traced = tracer.trace(self.function, specs)
        made = _function(api.compile_graph(traced.graph, self.target, self.numerics), traced)
        self._variants[key] = made
        return made

    def _only(self) -> Function:
        if not self._variants:
            raise ArgumentError("nothing is compiled yet: call the function first")
        return next(reversed(self._variants.values()))

    @property
    def stats(self) -> dict[str, Any]:
        """Of the variant compiled last, with the number of variants."""
        return self._only().stats | {"variants": len(self._variants), "recompiles": list(self.recompiles)}

    def explain(self) -> Any:
        """Of the variant compiled last."""
        return self._only().explain()

    def source(self, stage: str = "llvm") -> str:
        """Of the variant compiled last."""
        return self._only().source(stage)

    def save(self, path: str | Path) -> None:
        """The variant compiled last."""
        self._only().save(path)


def _difference(specs: list[tuple[Any, ...]], old: Any, new: Any) -> str:
    if len(old) != len(new):
        return f"{len(new)} arguments, before {len(old)}"
    parts = []
    for spec, before, after in zip(specs, old, new, strict=True):
        for what, a, b in zip(("element type", "shape", "strides"), before, after, strict=True):
            if a != b:
                parts.append(f"{spec[0]}: {what} {b}, before {a}")
    return "; ".join(parts)


def jit(
    function: Callable[..., Any] | None = None,
    *,
    target: str | Target = "cpu",
    numerics: str = "default",
    dynamic: Dynamic | None = None,
) -> Any:
    """Decorator: compile a function of arrays on its first call with each set of shapes and types."""
    if function is None:
        return lambda f: Jit(f, target, numerics, dynamic)
    return Jit(function, target, numerics, dynamic)
