"""What a call needs beside its inputs and parameters: `python -m benchmarks memory [--small] [NAME …]`.

eager      the largest sum of storages that are alive at once in eager PyTorch, inputs and parameters left out
workspace  between this package's kernels, as planned; lifetimes share bytes
outputs    new arrays for the results
ratio      workspace and outputs over eager's peak
scratch    of each worker, for one kernel at a time: what eager's operators have inside, too, and do not show
constants  held by the compiled model: parameters as the kernels read them, and others; originals of packed ones are not
packed     the part of them that was laid out for its readers at compile time
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.command import Parser
from benchmarks.export import as_tuple, case_of
from benchmarks.workloads import WORKLOADS


@dataclass(frozen=True)
class Memory:
    """Bytes."""

    eager: int
    workspace: int
    outputs: int
    scratch: int
    parameters: int
    constants: int
    packed: int

    @property
    def ratio(self) -> float:
        return (self.workspace + self.outputs) / self.eager


def measure(name: str, small: bool = False) -> Memory:
    """Raises ImportError where PyTorch is missing."""
    import autofusion
    from autofusion.runtime.executable import Executable
    from benchmarks import modules

    module, inputs = modules.make(WORKLOADS[name], small)
    model = autofusion.compile(str(case_of(name, small).model))
    executable: Executable = model.executable
    values, explanation = model.graph.values, model.explain()
    sizes = {each: math.prod(value.shape) * value.dtype.size for each, value in values.items()}
    return Memory(
        eager=peak(module, inputs),
        workspace=executable.plan.workspace,  # type: ignore[arg-type]  # no workload has open sizes
        outputs=sum(sizes[output.name] for output in model.graph.outputs),
        scratch=max(call.scratch for call in executable.plan.calls),  # type: ignore[type-var,arg-type]
        parameters=sum(each.nbytes for each in module.parameters()),
        constants=explanation.constant_bytes,
        packed=explanation.packed_bytes,
    )


def peak(module: Any, inputs: Any) -> int:
    """The most bytes that storages made by a call of the module have at once; inputs, parameters and
    what shares their memory are not made."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode

    held = module.state_dict().values() if isinstance(module, torch.nn.Module) else ()
    given = {each.untyped_storage().data_ptr() for each in (*inputs, *held)}
    alive: dict[int, tuple[Any, int]] = {}
    most = 0

    class Storages(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal most
            found = func(*args, **(kwargs or {}))
            for key in [key for key, (storage, _) in alive.items() if storage.expired()]:
                del alive[key]
            for each in as_tuple(found):
                if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() not in given:
                    storage = each.untyped_storage()
                    weak = StorageWeakRef(storage)
                    alive[weak.cdata] = weak, storage.nbytes()
            most = max(most, sum(size for _, size in alive.values()))
            return found

    with torch.no_grad(), Storages():
        module(*inputs)
    return most


def main(arguments: list[str]) -> int:
    parser = Parser("memory", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads (all)")
    parser.add_argument("--small", action="store_true", help="the reduced sizes")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in WORKLOADS]
    if unknown:
        parser.error(f"workload {unknown[0]!r}: expected one of {', '.join(WORKLOADS)}")
    columns = ("eager", "workspace", "outputs", "ratio", "scratch", "parameters", "constants", "packed")
    print(f"{'KiB':26s}" + "".join(f"{column:>12s}" for column in columns))
    more = []
    for name in given.names or WORKLOADS:
        try:
            found = measure(name, given.small)
        except ImportError as error:
            print(f"python -m benchmarks memory: error: {error}; python -m pip install '.[bench]'", file=sys.stderr)
            return 2
        cells = [f"{getattr(found, c) / 1024:12,.1f}" if c != "ratio" else f"{found.ratio:12.3f}" for c in columns]
        print(f"{name:26s}{''.join(cells)}", flush=True)
        more += [name] if found.ratio > 1 else []
    print(f"more than eager PyTorch: {', '.join(more) or 'none'}")
    return 1 if more else 0
