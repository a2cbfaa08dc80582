"""Who runs a workload: this package, the peers that users would take instead, and the yardsticks.

Each row takes a case and a number of threads, and returns a function that runs it once, on inputs that are already in
the form the peer takes, and returns the outputs in the form it gives. Packages are imported by the row alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from benchmarks import yardsticks
from benchmarks.export import Array, Case, as_tuple
from benchmarks.native import Missing
from benchmarks.workloads import Workload

Run = Callable[[], Any]


@dataclass(frozen=True)
class Peer:
    """`modules` are imported before anything is measured. `packages` are the distributions whose versions are said.
    `builds`: the rows' builds that it has, where it is not all."""

    name: str
    load: Callable[[Workload, Case, int], Run]
    modules: tuple[str, ...]
    packages: tuple[str, ...]
    builds: tuple[str, ...] | None = None

    def has(self, workload: Workload) -> bool:
        return self.builds is None or workload.build in self.builds

    def start(self) -> None:
        """Import what the peer needs. Raises Missing."""
        for module in self.modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise Missing(f"{error.name or module} is not installed") from None

    def versions(self) -> dict[str, str]:
        """Of the packages that are installed."""
        found = {}
        for package in self.packages:
            try:
                found[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
        return found


def outputs_of(found: Any) -> list[Array]:
    """A run's outputs as NumPy arrays."""
    import numpy as np

    return [np.asarray(each) for each in as_tuple(found)]


# -- this package ------------------------------------------------------------------------------------------------------
def ours(workload: Workload, case: Case, threads: int) -> Run:
    """The public way: NumPy arrays in, NumPy arrays of the caller's own out."""
    import autofusion

    model, inputs = autofusion.compile(str(case.model)), case.inputs
    return lambda: model(*inputs)


def ours_torch(workload: Workload, case: Case, threads: int) -> Run:
    """The way of PyTorch's users: `torch.compile`, tensors in and out. Set beside Inductor."""
    import torch

    from autofusion.torch import Backend

    module, inputs = _module(workload, case, threads)
    compiled = torch.compile(module, backend=Backend())
    return lambda: compiled(*inputs)


# -- peers -------------------------------------------------------------------------------------------------------------
def _module(workload: Workload, case: Case, threads: int) -> tuple[Any, Sequence[Any]]:
    """The module with the weights of the case. Gradients are off in the whole process."""
    import torch

    from benchmarks import modules

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return modules.make(workload, case.small)


def eager(workload: Workload, case: Case, threads: int) -> Run:
    module, inputs = _module(workload, case, threads)
    return lambda: module(*inputs)


def inductor(workload: Workload, case: Case, threads: int) -> Run:
    import torch

    module, inputs = _module(workload, case, threads)
    compiled = torch.compile(module)
    return lambda: compiled(*inputs)


def onnxruntime(workload: Workload, case: Case, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(case.model), options, providers=["CPUExecutionProvider"])
    feed = {each.name: x for each, x in zip(session.get_inputs(), case.inputs, strict=True)}
    return lambda: session.run(None, feed)


def openvino(workload: Workload, case: Case, threads: int) -> Run:
    """In float32, which is not its default where the CPU has bfloat16; its outputs stay in its own memory."""
    import os

    import openvino

    options = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "CACHE_DIR": os.environ.get("OPENVINO_CACHE_DIR", ""),
    }
    model = openvino.Core().compile_model(str(case.model), "CPU", options)
    inputs = case.inputs
    return lambda: list(model(inputs, share_inputs=True, share_outputs=True).values())


def jax(workload: Workload, case: Case, threads: int) -> Run:
    import jax

    from benchmarks import onnx_jax

    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    function = jax.jit(onnx_jax.load(case.model))
    inputs = [jax.device_put(onnx_jax.narrow(x)) for x in case.inputs]
    return lambda: jax.block_until_ready(function(*inputs))


def iree(workload: Workload, case: Case, threads: int) -> Run:
    """By the StableHLO of the JAX peer's function."""
    import jax
    from iree import compiler, runtime

    from benchmarks import onnx_jax

    inputs = [onnx_jax.narrow(x) for x in case.inputs]
    exported = jax.export.export(jax.jit(onnx_jax.load(case.model)))(*inputs)
    binary = compiler.compile_str(
        exported.mlir_module_serialized,
        input_type="stablehlo",
        target_backends=["llvm-cpu"],
        extra_args=["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"],
    )
    runtime.flags.parse_flags(f"--task_topology_max_group_count={threads}")
    configuration = runtime.Config("local-task" if threads > 1 else "local-sync")
    module = runtime.load_vm_module(runtime.VmModule.copy_buffer(configuration.vm_instance, binary), configuration)
    held = [runtime.asdevicearray(configuration.device, x) for x in inputs]
    return lambda: module.main(*held)


TORCH_COMPILE = ("torch", "benchmarks.modules", "torch._inductor.compile_fx")  # brings Dynamo and AOTAutograd
PEERS = {
    row.name: row
    for row in (
        Peer("ours", ours, ("autofusion", "autofusion.onnx", "onnx"), ("llvmlite", "numpy")),
        Peer("ours-torch", ours_torch, (*TORCH_COMPILE, "autofusion.torch"), ("torch",)),
        Peer("eager", eager, ("torch", "benchmarks.modules"), ("torch",)),
        Peer("inductor", inductor, TORCH_COMPILE, ("torch",)),
        Peer("onnxruntime", onnxruntime, ("onnxruntime",), ("onnxruntime",)),
        Peer("openvino", openvino, ("openvino",), ("openvino",)),
        Peer("jax", jax, ("jax", "onnx"), ("jax", "jaxlib")),
        Peer("iree", iree, ("jax.export", "onnx", "iree.compiler", "iree.runtime"), ("iree-base-compiler",)),
    )
}
YARDSTICKS = {
    "numba": Peer("numba", yardsticks.numba, ("numba",), ("numba",), yardsticks.NUMBA),
    "hand-c": Peer("hand-c", yardsticks.hand_c, ("numpy",), (), yardsticks.HAND_C),
    "in-place": Peer("in-place", yardsticks.in_place, ("autofusion",), (), ("adamw",)),
    "torch-fused": Peer("torch-fused", yardsticks.torch_fused, ("torch.optim",), ("torch",), ("adamw",)),
}
EVERYONE = PEERS | YARDSTICKS
