"""From a workload to files: the ONNX model, its inputs, what eager PyTorch computes in float64, and its arithmetic.

A case is made once, in a folder of the cache that is named by the workloads' sources and the versions of the packages.
Whoever measures one then needs no PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import logging
import os
import sys
import tempfile
import warnings
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from benchmarks.command import Parser
from benchmarks.workloads import WORKLOADS, Workload

Array = NDArray[Any]
OPSET = 18


@dataclass(frozen=True)
class Arithmetic:
    """What a workload cannot do without: bytes of inputs, parameters that are read, and outputs; floating-point
    operations of products and convolutions; and elements that elementwise operators and reductions work on."""

    bytes: int
    flops: int
    elements: int


@dataclass(frozen=True)
class Case:
    """An exported workload."""

    folder: Path
    small: bool

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    @property
    def arithmetic(self) -> Arithmetic:
        return Arithmetic(**json.loads((self.folder / "arithmetic.json").read_text()))

    @functools.cached_property
    def inputs(self) -> list[Array]:
        """Read once."""
        return self._arrays("inputs")

    def expected(self) -> list[Array]:
        """The outputs of eager PyTorch in float64."""
        return self._arrays("expected")

    def eager(self) -> list[Array]:
        """The outputs of eager PyTorch in float32."""
        return self._arrays("eager")

    def parameters(self) -> list[Array]:
        """The module's parameters, in the order in which it holds them."""
        return self._arrays("parameters")

    def _arrays(self, name: str) -> list[Array]:
        with np.load(self.folder / f"{name}.npz") as archive:
            return [archive[str(number)] for number in range(len(archive.files))]


def cache() -> Path:
    """The folder of all that is made once: `AUTOFUSION_BENCHMARK_DIR`, or in the user's cache."""
    given = os.environ.get("AUTOFUSION_BENCHMARK_DIR")
    return Path(given) if given else Path(platformdirs.user_cache_dir("graph-autofusion")) / "benchmarks"


def case_of(name: str, small: bool = False) -> Case:
    """The case by a workload's name; exported if it is not there yet. Raises ImportError where PyTorch is missing."""
    digest = hashlib.sha256()
    for source in ("workloads.py", "modules.py", "export.py"):
        digest.update((Path(__file__).parent / source).read_bytes())
    for package in ("torch", "onnxscript", "onnx", "transformers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            digest.update(metadata.version(package).encode())
    goal = cache() / "cases" / f"{name}{'.small' if small else ''}-{digest.hexdigest()[:12]}"
    if not goal.exists():
        goal.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=goal.parent) as part:
            export(WORKLOADS[name], small, Path(part) / "case")
            with contextlib.suppress(OSError):  # another process was faster
                (Path(part) / "case").rename(goal)
    return Case(goal, small)


def export(workload: Workload, small: bool, folder: Path) -> None:
    """Write the files of a case to a new folder."""
    import torch

    from benchmarks import modules

    folder.mkdir()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    module, inputs = modules.make(workload, small)
    with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, inputs, dynamo=True, opset_version=OPSET, verbose=False)
        assert program is not None
        program.save(str(folder / "model.onnx"))
        arithmetic, eager = count(module, inputs)
        parameters = [each.clone() for each in module.parameters()]
        exact = module.double()(*[x.double() if x.is_floating_point() else x for x in inputs])
    groups = {"inputs": inputs, "parameters": parameters, "eager": eager, "expected": as_tuple(exact)}
    for name, arrays in groups.items():
        np.savez(folder / f"{name}.npz", **{str(i): each.numpy() for i, each in enumerate(arrays)})
    (folder / "arithmetic.json").write_text(json.dumps(asdict(arithmetic)))


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


def count(module: Any, inputs: Any) -> tuple[Arithmetic, tuple[Any, ...]]:
    """The arithmetic of a module, as eager PyTorch dispatches it, and its outputs.

    An operator over elements counts once for each element of its largest operand or result, whatever it computes.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    aten = torch.ops.aten
    counted = {torch.Tag.pointwise, getattr(torch.Tag, "reduction", torch.Tag.pointwise)}
    composite = {aten.native_layer_norm.default: 4, aten._softmax.default: 4, aten.native_batch_norm.default: 2}
    totals = {"elements": 0, "embedded": 0}
    embedded: set[int] = set()

    class Elements(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            tensors = [t for t in (*args, *as_tuple(found)) if isinstance(t, torch.Tensor)]
            if tensors and (func in composite or not counted.isdisjoint(func.tags)):
                totals["elements"] += composite.get(func, 1) * max(t.numel() for t in tensors)
            if func is aten.embedding.default:
                embedded.add(args[0].data_ptr())
                totals["embedded"] += found.nbytes
            return found

    with FlopCounterMode(display=False) as flops, Elements():
        outputs = as_tuple(module(*inputs))
    held = [t for t in module.state_dict().values() if t.is_floating_point() and t.data_ptr() not in embedded]
    moved = sum(t.nbytes for t in (*inputs, *outputs, *held)) + totals["embedded"]
    return Arithmetic(moved, flops.get_total_flops(), totals["elements"]), outputs


def main(arguments: list[str]) -> int:
    parser = Parser("export", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads (all)")
    parser.add_argument("--small", action="store_true", help="the reduced sizes")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.names if name not in WORKLOADS]
    if unknown:
        parser.error(f"workload {unknown[0]!r}: expected one of {', '.join(WORKLOADS)}")
    for name in chosen.names or WORKLOADS:
        print(f"{name:26s} {case_of(name, chosen.small).model}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
