"""What compiling costs: `python -m benchmarks compile_time [--groups 1000]`.

Prints cold compile times in process (milliseconds by stage) for two small models, and the time for many distinct small
groups. The disk cache is switched off.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import autofusion as af
from autofusion import api
from autofusion.dtypes import DType
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph

os.environ["AUTOFUSION_CACHE_DIR"] = ""


def distinct_groups(count: int) -> Graph:
    """Independent chains of three to eight operators, each over another shape with other numbers."""
    F = GraphBuilder("distinct")
    for number in range(count):
        x = F.input(f"x{number}", DType.FLOAT32, (5 + number, 3 + number % 7))
        t = F.add(F.exp(F.mul(x, 0.5 + number)), x)
        F.output(F.softmax(t) if number % 3 == 0 else t)
    return F.build()


def cold(name: str, function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    start = time.perf_counter()
    compiled = af.compile(function, arrays)
    total = (time.perf_counter() - start) * 1e3
    stages = ", ".join(f"{k} {v:.1f}" for k, v in compiled.stats["stages_ms"].items())
    print(f"{name:24s} {total:8.1f} ms   ({stages})")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks compile_time", description=__doc__)
    parser.add_argument("--groups", type=int, default=1000)
    count = parser.parse_args(arguments).groups
    cold("warm-up", lambda x: x + 1.0, [(8,)])
    cold("matmul, add, relu", lambda x, w, b: af.relu(x @ w + b), [(512, 512), (512, 512), (512,)])
    cold(
        "layer norm, gelu",
        lambda x, w, b: af.gelu(af.layer_norm(x, w, b)),
        [(2048, 1024), (1024,), (1024,)],
    )
    start = time.perf_counter()
    compiled = api.compile_graph(distinct_groups(count))
    seconds = time.perf_counter() - start
    stats = compiled.stats
    print(
        f"{stats['groups']} groups, {stats['kernels']} distinct kernels: "
        f"{seconds:.1f} s, {seconds / count * 1e3:.1f} ms each"
    )


if __name__ == "__main__":
    main()
