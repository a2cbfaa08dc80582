"""A program of two processes, for `torchrun`: an MLP and a transformer block whose weights are shared between them.

Each rank compiles its part; the sums over ranks are PyTorch's collectives. Prints `ok` and, of each program, its
launches and what PyTorch ran; exits with 1 where a result is not that of the whole model in one process.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce

from autofusion.torch import Backend

HIDDEN, HEADS, WIDE = 32, 4, 64


def weights() -> dict[str, Any]:
    """The whole model's, the same in each process."""
    generator = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, generator=generator) / rows**0.5

    names = {"q": HIDDEN, "k": HIDDEN, "v": HIDDEN, "up": WIDE}
    made = {name: matrix(HIDDEN, columns) for name, columns in names.items()}
    return made | {"out": matrix(HIDDEN, HIDDEN), "down": matrix(WIDE, HIDDEN)}


def mlp(x: Any, w: dict[str, Any], group: Any) -> Any:
    return total(torch.nn.functional.gelu(x @ w["up"]) @ w["down"], group)


def block(x: Any, w: dict[str, Any], group: Any) -> Any:
    """Attention and MLP behind norms; heads and hidden columns are shared between ranks."""
    y = torch.nn.functional.layer_norm(x, (HIDDEN,))
    q, k, v = (split(y @ w[name]) for name in "qkv")
    mixed = (q @ k.transpose(-1, -2) * (HIDDEN // HEADS) ** -0.5).softmax(-1) @ v
    x = x + total(mixed.transpose(0, 1).reshape(x.shape[0], -1) @ w["out"], group)
    return x + mlp(torch.nn.functional.layer_norm(x, (HIDDEN,)), w, group)


def split(x: Any) -> Any:
    """[rows, heads · width] as [heads, rows, width]."""
    return x.reshape(x.shape[0], -1, HIDDEN // HEADS).transpose(0, 1)


def total(x: Any, group: Any) -> Any:
    return x if group is None else all_reduce(x, "sum", group)


def part(w: dict[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    """A rank's weights: columns of the first products, rows of the second."""
    return {n: each.chunk(ranks, 0 if n in ("out", "down") else 1)[rank].contiguous() for n, each in w.items()}


def main() -> int:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = weights()
    mine = part(whole, rank, ranks)
    x = torch.randn(10, HIDDEN, generator=torch.Generator().manual_seed(1))
    bad = 0
    for function in (mlp, block):
        backend = Backend()
        with torch.no_grad():
            found = torch.compile(function, backend=backend)(x, mine, dist.group.WORLD)
        wanted = function(x, whole, None)
        report = backend.explain()
        launches = [len(each.launches) for each in report.programs]
        right = torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)
        bad += not right
        ran = ", ".join(f"{each.operator} x {each.count}" for each in report.fallbacks)
        print(f"rank {rank}: {function.__name__} {'ok' if right else 'WRONG'}, launches {launches}, PyTorch ran {ran}")
    dist.destroy_process_group()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
