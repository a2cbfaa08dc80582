"""The public face of compiled graphs: compile, explain, save, load, and what users may register."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autofusion import dtypes
from autofusion import target as targets
from autofusion.dtypes import Array
from autofusion.errors import ArgumentError, FormatError, TargetError
from autofusion.graph import ir as graph_ir
from autofusion.graph.ir import Graph
from autofusion.jit import pipeline
from autofusion.jit.explain import Explanation, explain
from autofusion.jit.pipeline import Compilation, Numerics, Options
from autofusion.lazy import Lazy
from autofusion.ops import TABLE, Kind, Op
from autofusion.ops.library import LIBRARY, LibraryKernel
from autofusion.runtime import binding, dispatch_keys, pool
from autofusion.runtime.executable import Executable, Function
from autofusion.superkernel import plan as plans
from autofusion.superkernel.options import SuperKernelOptions
from autofusion.target import Target
from autofusion.targets.cpu import host, llvm, render
from autofusion.targets.cpu.primitives import PRIMITIVES, Emit

if TYPE_CHECKING:
    import zipfile

    from autofusion.jit import ascend
else:
    ascend, zipfile = Lazy("autofusion.jit.ascend"), Lazy("zipfile")

FORMAT = 1
STAGES = ("source", "graph", "groups", "kernel", "schedule", "tile", "plan", "llvm", "asm")


def find_target(name: str | Target) -> Target:
    """A target by name: `cpu` (this machine), `cpu:NAME` (`cpu:avx2`, `cpu:aarch64:neoverse-v1`), `ascend910b`,
    `ascend950`; a Target is returned as it is. Raises TargetError, ArgumentError for what is neither."""
    if isinstance(name, Target):
        return name
    if not isinstance(name, str):
        raise ArgumentError(f"target={name!r}: expected a name, such as 'cpu', or a Target")
    if name == "cpu":
        return host.target_of(host.host())
    if name.startswith("cpu:"):
        return host.target_of(host.named(name.removeprefix("cpu:")))
    known = {t.name: t for t in (targets.ASCEND_910B, targets.ASCEND_950)}
    if name in known:
        return known[name]
    raise TargetError(f"unknown target {name!r}; known: cpu, cpu:NAME, {', '.join(known)}")


@dataclass
class Compiled(binding.Callable):
    """A compiled graph. Call it with arrays in the order of the graph's inputs.

    Arguments may be NumPy arrays or anything with `__dlpack__`; results are of the first argument's kind where its
    library has DLPack's exchange table (PyTorch), else NumPy arrays. A graph with one output gives an array, one with
    several a tuple. A call takes two options. `threads`: its workers. `out`: an array for the result, or a sequence of
    as many as there are results, None for a new one; what it holds is not specified after an error. Calls raise
    ArgumentError, IndexOutOfRange.
    """

    graph: Graph
    executable: Executable
    compilation: Compilation | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.executable.direct is not None:
            self.direct = (self.executable.direct,)

    def __deepcopy__(self, memo: Any) -> Compiled:
        return self  # nothing of it changes

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ArgumentError("a compiled graph is not pickled: save(path) writes it, autofusion.load reads it")

    def _call(self, *arguments: Any, threads: int | None = None, out: Any = None) -> Any:
        """A call that is not just as compiled."""
        places = [out] if isinstance(out, np.ndarray) else out
        outputs = self.run(arguments, threads, places)
        given = [None] * len(outputs) if places is None else places
        listed = [
            each if place is not None or not arguments else binding.like(arguments[0], each)
            for each, place in zip(outputs, given, strict=True)
        ]
        return listed[0] if len(listed) == 1 else tuple(listed)

    def run(
        self, arguments: Sequence[Any], threads: int | None = None, out: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """All outputs as a list."""
        if len(arguments) != len(self.graph.inputs):
            names = ", ".join(v.name for v in self.graph.inputs)
            raise ArgumentError(f"{len(arguments)} arguments given, expected {len(self.graph.inputs)}: {names}")
        return self.executable([as_array(a) for a in arguments], threads, out)

    @property
    def stats(self) -> dict[str, Any]:
        """Counted by the runtime (calls, launches, fallbacks) and by the compiler."""
        counts = self.executable.counts
        found: dict[str, Any] = {
            "calls": counts.calls,
            "launches": counts.launches,
            "fallbacks": counts.fallbacks,
            "launches_per_call": len(self.executable.plan.launches),
        }
        if self.compilation:
            found |= {
                "groups": len(self.compilation.partition.groups),
                "kernels": len(self.compilation.codes),
                "cache_hits": self.compilation.cache_hits,
                "stages_ms": dict(self.compilation.milliseconds),
            }
        return found

    def explain(self) -> Explanation:
        """Groups, verdicts, bytes moved fused and unfused, launches; `str()` of it is for people."""
        return explain(self._compilation())

    def source(self, stage: str = "llvm") -> str:
        """The text of a stage: source, graph, groups, kernel, schedule, tile, plan, llvm, asm.

        For Ascend targets `source` is Ascend C, and llvm and asm raise TargetError.
        """
        compilation = self._compilation()
        if compilation.target.family == "ascend":
            return ascend.stage(compilation, stage)
        if stage == "asm":
            return pipeline.assembly(compilation)
        found = dict(pipeline.stages(compilation))
        if stage not in found:
            raise ArgumentError(f"stage {stage!r}: expected one of {', '.join(found)}, asm")
        return found[stage]

    def _compilation(self) -> Compilation:
        if self.compilation is None:
            raise ArgumentError("this one was loaded from a file: compile the graph to explain it")
        return self.compilation

    def save(self, path: str | Path) -> None:
        """Write plan, graph, constants and machine code to one file, whole or not at all. Raises TargetError for other
        machines than CPUs."""
        compilation = self._compilation()
        if compilation.target.family != "cpu":
            name = compilation.target.name
            raise TargetError(f"target {name}: only a CPU's code is saved; `autofusion emit --out` writes Ascend C")
        manifest = {
            "format": FORMAT,
            "machine": host.identity(host.named(compilation.options.cpu)),
            "functions": {code.name: list(code.functions) for code in compilation.codes.values()},
            "constants": {c.value.name: c.digest for c in compilation.graph.constants},
        }
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_entry("manifest.json"), json.dumps(manifest, indent=1, sort_keys=True))
            archive.writestr(_entry("graph.txt"), str(compilation.graph))
            archive.writestr(_entry("plan.txt"), str(compilation.plan))
            for code in compilation.codes.values():
                archive.writestr(_entry(f"kernels/{code.name}.o"), code.object)
            for digest in sorted({c.digest for c in compilation.graph.constants}):
                archive.writestr(_entry(f"constants/{digest}.npy"), _npy(compilation.graph.data[digest]))
        goal = Path(path)
        part = goal.with_name(goal.name + ".part")
        part.write_bytes(buffer.getvalue())
        part.replace(goal)


def _entry(name: str) -> zipfile.ZipInfo:
    """A fixed time stamp: equal graphs give equal files."""
    return zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))


def _npy(array: Array) -> bytes:
    """Raw bytes behind a line with type and shape: NumPy's own format does not know bfloat16."""
    head = json.dumps({"dtype": str(array.dtype), "shape": list(array.shape)})
    return head.encode() + b"\n" + np.ascontiguousarray(array).tobytes()


def _from_npy(raw: bytes) -> Array:
    head, _, body = raw.partition(b"\n")
    about = json.loads(head)
    array = np.frombuffer(body, dtypes.of(about["dtype"]).numpy).reshape(about["shape"])
    return array


def as_array(value: Any) -> Array:
    """A NumPy array over the value's memory where that is possible; a read-only copy of a tensor whose elements are not
    in memory as they are. Raises ArgumentError."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        plain = dispatch_keys.ordinary(value)
        try:
            array = np.from_dlpack(plain)
        except (BufferError, RuntimeError, TypeError) as error:
            raise ArgumentError(f"an argument of type {type(value).__name__}: {error}") from None
        if plain is not value:
            array.flags.writeable = False
        return array
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ArgumentError(
            f"an argument of type {type(value).__name__}: expected an array or anything with __dlpack__"
        )
    return array


def compile_graph(
    graph: Graph,
    target: str | Target = "cpu",
    numerics: str = "default",
    fuse: bool = True,
    progress: pipeline.Progress | None = None,
    superkernel: SuperKernelOptions | None = None,
) -> Compiled:
    """Compile a graph for this machine's CPU or a level of it (`cpu:avx2`), or for an Ascend chip: its kernels run on
    a device where there is one, else on the AI Core model, which needs a C++17 compiler. `superkernel`: what is
    switched off when groups are packed into launches.

    Raises TargetError for a target that cannot run here.
    """
    chosen = runnable(target)
    if chosen.family == "ascend":
        lowered = ascend.lower(graph, chosen, _options(numerics, fuse, superkernel), progress)
        return Compiled(lowered.graph, ascend.load(lowered), lowered)
    options = _options(numerics, fuse, superkernel)
    options.cpu = "host" if chosen == find_target("cpu") else _cpu_name(chosen)
    compilation = pipeline.compile_graph(graph, chosen, options, progress)
    return Compiled(compilation.graph, pipeline.load(compilation), compilation)


def runnable(target: str | Target) -> Target:
    """The target, where this machine's CPU runs its code or it has a model. Raises TargetError."""
    chosen = find_target(target)
    if chosen.family == "ascend":
        return chosen
    if chosen != find_target("cpu") and not host.runs(host.named(_cpu_name(chosen))):
        raise TargetError(f"target {chosen.name} cannot run on this machine; its stages can be emitted")
    return chosen


def lower_graph(
    graph: Graph,
    target: str | Target = "cpu",
    numerics: str = "default",
    fuse: bool = True,
    superkernel: SuperKernelOptions | None = None,
) -> Compilation:
    """Every stage before code generation, for any target as data: nothing is compiled, cached or run.

    The result can be explained and its stages printed down to the plan. Raises TargetError, ArgumentError.
    """
    chosen = find_target(target)
    options = _options(numerics, fuse, superkernel)
    if chosen.family == "ascend":
        return ascend.lower(graph, chosen, options)
    if chosen.family == "cpu":
        options.cpu = "host" if chosen == find_target("cpu") else _cpu_name(target)
    return pipeline.lower_graph(graph, chosen, options)


def emit(
    graph: Graph,
    stage: str,
    target: str | Target = "cpu",
    numerics: str = "default",
    fuse: bool = True,
    superkernel: SuperKernelOptions | None = None,
) -> str:
    """The text of a stage for any target: source, graph, groups, kernel, schedule, tile, plan, llvm or asm.

    Code of another machine's kernels is made here and never run; an Ascend target's source is Ascend C. Raises
    TargetError for a stage that the target does not have, ArgumentError for an unknown one.
    """
    if stage not in STAGES:
        raise ArgumentError(f"stage {stage!r}: expected one of {', '.join(STAGES)}")
    compilation = lower_graph(graph, target, numerics, fuse, superkernel)
    if compilation.target.family == "cpu":
        symbols = tuple(pipeline.canonical_symbols(compilation.graph).values())
        for code in compilation.codes.values():
            rendered = render.render(code.program, compilation.target, "kernel", symbols, code.final)
            code.functions, code.scratch, code.text = rendered.functions, rendered.scratch, rendered.text
        compilation.plan = pipeline.plan_of(
            compilation.graph, compilation.partition, compilation.groups, compilation.codes, superkernel
        )
    else:
        return ascend.stage(compilation, stage)
    return pipeline.assembly(compilation) if stage == "asm" else dict(pipeline.stages(compilation))[stage]


def emit_files(
    graph: Graph,
    target: str | Target,
    numerics: str = "default",
    fuse: bool = True,
    superkernel: SuperKernelOptions | None = None,
) -> dict[str, str]:
    """What is built where CANN is, by file name: of each launch the kernel, its tiling data and a launcher, and the
    commands. Raises TargetError for other targets than Ascend's."""
    chosen = find_target(target)
    if chosen.family != "ascend":
        raise TargetError(f"target {chosen.name}: files with a launcher are written for Ascend targets")
    return ascend.files(lower_graph(graph, chosen, numerics, fuse, superkernel))


def _options(numerics: str, fuse: bool, superkernel: SuperKernelOptions | None = None) -> Options:
    try:
        return Options(Numerics(numerics), fuse, superkernel=superkernel or SuperKernelOptions())
    except ValueError:
        raise ArgumentError(f"numerics={numerics!r}: expected default or strict") from None


def _cpu_name(target: str | Target) -> str:
    """What `host.named` takes for a CPU target."""
    return (target if isinstance(target, str) else target.name).removeprefix("cpu:")


def load(path: str | Path) -> Compiled:
    """Read what `save` wrote. Raises FormatError for a damaged file, TargetError for code of another machine."""
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read("manifest.json"))
            if manifest.get("format") != FORMAT:
                raise FormatError(f"{path}: format {manifest.get('format')}, expected {FORMAT}")
            here = host.host()
            if manifest["machine"] not in {host.identity(m) for m in (here, *host.levels()) if host.runs(m)}:
                raise TargetError(f"{path}: compiled for {manifest['machine']}, this machine is {host.identity(here)}")
            data = {d: _from_npy(archive.read(f"constants/{d}.npy")) for d in set(manifest["constants"].values())}
            graph = graph_ir.parse(archive.read("graph.txt").decode(), data)
            plan = plans.parse(archive.read("plan.txt").decode())
            plans.verify(plan)
            objects = [archive.read(f"kernels/{name}.o") for name in manifest["functions"]]
            listed = {(k, n): f for k, names in manifest["functions"].items() for n, f in enumerate(names)}
            loaded = llvm.load(objects, list(listed.values()))
            functions = {place: Function(loaded.addresses[name], loaded) for place, name in listed.items()}
    except (zipfile.BadZipFile, KeyError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: not a file that save() wrote ({error})") from None
    return Compiled(graph, Executable(plan, graph, functions, pool.worker_count()))


def register_op(op: Op, cpu: Emit | None = None) -> Op:
    """Add a row to the op table. It fuses like any other, with no other change.

    A row with a `lower` needs nothing else. A primitive elementwise row needs `cpu`, a function that emits it as LLVM
    IR (see `autofusion.targets.cpu.primitives`); without one it runs by its reference on the host and is reported.
    """
    TABLE.register(op)
    if cpu is not None:
        if op.kind is not Kind.ELEMENTWISE or op.lower is not None:
            TABLE.remove(op.name)
            raise TargetError(f"{op.name}: only an elementwise primitive takes an emitter")
        PRIMITIVES[op.name] = cpu
    return op


def register_library_kernel(kernel: LibraryKernel) -> LibraryKernel:
    """Use hand-tuned code for a contraction where `kernel.applies`; see `LibraryKernel` for the signature of its
    source.

    What produces its left operand fuses into it where it has a `prologue` slot, what consumes its result where it has
    an `epilogue` slot; otherwise autofuse refuses with the verdict `library`.
    """
    return LIBRARY.register(kernel)


def unregister_library_kernel(name: str) -> None:
    """Take a library kernel out again."""
    LIBRARY.remove(name)


def unregister_op(name: str) -> None:
    """Take a registered row out again."""
    TABLE.remove(name)
    PRIMITIVES.pop(name, None)
