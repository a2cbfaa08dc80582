"""Collectives are boundaries between launches: two processes over gloo, and a recording stand-in for HCCL."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: python -m pip install torch")

import torch.distributed as dist  # noqa: E402

import autofusion  # noqa: E402
from autofusion.runtime import aicore  # noqa: E402
from autofusion.torch import Backend  # noqa: E402

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="PyTorch has no gloo"),
]


def test_two_processes_share_a_model() -> None:
    source = str(Path(autofusion.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(HERE / "tensor_parallel.py")], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(
        r"rank (\d): (\w+) ok, launches \[(\d+)\], PyTorch ran (_c10d_functional[^\n]*?)(?=rank|\n|$)", done.stdout
    )
    assert sorted((rank, name, launches) for rank, name, launches, _ in said) == [
        ("0", "block", "3"), ("0", "mlp", "1"), ("1", "block", "3"), ("1", "mlp", "1"),
    ]  # fmt: skip
    for _, _, _, ran in said:
        assert re.sub(r" x \d", "", ran.strip()).split(", ") == [
            "_c10d_functional.all_reduce.default",
            "_c10d_functional.wait_tensor.default",
        ]


class Done(dist.Work):
    """Work that is over at once."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(None)
        return future


class Recorder(dist.ProcessGroup):
    """Two ranks of which the other holds the same: sums are doubled, and calls written down."""

    calls: list[tuple[str, tuple[int, ...], Any]] = []  # noqa: RUF012

    def allreduce(self, tensors: Any, options: Any = None) -> Any:
        for each in tensors:
            Recorder.calls.append(("allreduce", tuple(each.shape), options.reduceOp))
            each.mul_(2)
        return Done()

    def getBackendName(self) -> str:
        return "hccl"

    def getGroupName(self) -> str:
        return next(iter(dist.distributed_c10d._world.pg_names.values()))  # type: ignore[no-any-return]


@pytest.mark.skipif(aicore.unavailable() is not None, reason=str(aicore.unavailable()))
def test_hccl_on_ascend_is_the_same_code(tmp_path: Path) -> None:
    """The backend of Huawei's library is called hccl: a recorder of that name gets what the program sends."""
    dist.Backend.register_backend("hccl", lambda store, rank, size, timeout: Recorder(rank, size), devices=["cpu"])
    dist.init_process_group("hccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=2)
    try:
        sys.path.insert(0, str(HERE))
        import tensor_parallel

        Recorder.calls.clear()
        w = tensor_parallel.part(tensor_parallel.weights(), 0, 2)
        x = torch.randn(10, tensor_parallel.HIDDEN)
        backend = Backend(target="ascend910b")
        with torch.no_grad():
            found = torch.compile(tensor_parallel.mlp, backend=backend)(x, w, dist.group.WORLD)
        torch.testing.assert_close(found, 2 * tensor_parallel.mlp(x, w, None), rtol=2e-3, atol=2e-3)
        assert [(name, shape) for name, shape, _ in Recorder.calls] == [("allreduce", (10, tensor_parallel.HIDDEN))]
        assert Recorder.calls[0][2] == dist.ReduceOp.SUM
        (program,) = backend.explain().programs
        assert [each.target for each in program.launches] == ["ascend910b"]
        assert {each.operator for each in program.fallbacks} == {
            "_c10d_functional.all_reduce.default",
            "_c10d_functional.wait_tensor.default",
        }
    finally:
        dist.destroy_process_group()
        torch._dynamo.reset()
