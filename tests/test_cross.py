"""Kernels for other CPUs: emitted anywhere; those of the host's own architecture also run and give the same values."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import assert_close

from autofusion import dtypes
from autofusion.dtypes import DType
from autofusion.frontends import opseq
from autofusion.graph import evaluate
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.jit import pipeline
from autofusion.ops.elementwise import cast_values
from autofusion.targets.cpu import host

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.json"))
CPUS = ("aarch64:neoverse-v1", "avx512", "avx2", "sse2")


def compiled_for(graph: Graph, cpu: str) -> pipeline.Compilation:
    return pipeline.compile_graph(graph, host.target_of(host.named(cpu)), pipeline.Options(cpu=cpu))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_has_assembly_for_every_cpu(path: Path, cpu: str) -> None:
    text = pipeline.assembly(compiled_for(opseq.read(path), cpu))
    wanted = {"aarch64:neoverse-v1": "fmla", "avx512": "zmm", "avx2": "ymm", "sse2": "xmm"}[cpu]
    assert wanted in text or path.stem == "adamw"
    wider = {"avx512": (), "avx2": ("zmm",)}.get(cpu, ("ymm", "zmm"))
    assert not any(register in text for register in wider)


def mixed() -> tuple[Graph, list[Any]]:
    """Folds, a contraction, casts and transcendental functions over odd extents."""
    F = GraphBuilder("mixed")
    x, w = F.input("x", DType.FLOAT32, (7, 37)), F.input("w", DType.FLOAT32, (37, 21))
    h, n = F.input("h", DType.FLOAT16, (5, 33)), F.input("n", DType.INT64, (6,))
    F.output(F.relu(F.matmul(F.tanh(x), w)))
    F.output(F.softmax(x))
    F.output(F.mul(h, h))
    F.output(F.cast(F.exp(F.cast(h, dtype=DType.FLOAT32)), dtype=DType.BFLOAT16))
    F.output(F.gather(x, n, axis=0))
    F.output(F.cumsum(x, axis=1))
    rng = np.random.default_rng(3)
    arrays: list[Any] = [rng.standard_normal(s).astype(np.float32) for s in ((7, 37), (37, 21))]
    arrays += [rng.standard_normal((5, 33)).astype(np.float16), np.array([0, 6, -1, 3, -7, 2])]
    return F.build(), arrays


def runnable(cpu: str) -> bool:
    features = host.host().features
    needs = {"avx2": ("avx2", "fma"), "avx512": ("avx512vl", "avx512bw")}.get(cpu, ())
    return platform.machine() == "x86_64" and all(f"+{need}" in features for need in needs)


@pytest.mark.parametrize("cpu", ["avx512", "avx2", "sse2"])
def test_code_for_older_cpus_runs_here(cpu: str) -> None:
    if not runnable(cpu):
        pytest.skip(f"this machine does not run {cpu}")
    graph, arrays = mixed()
    results = pipeline.load(compiled_for(graph, cpu))(arrays)
    for found, wanted in zip(results, evaluate.run(graph, arrays), strict=True):
        assert_close(found, wanted, 64)


@pytest.mark.parametrize("cpu", ["sse2"])
def test_half_precision_without_conversion_instructions(cpu: str) -> None:
    """Every float16 as a float, and floats around every rounding boundary as float16, bit for bit."""
    if not runnable(cpu):
        pytest.skip(f"this machine does not run {cpu}")
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        wide = every.astype(np.float32)
        around = np.concatenate(
            [np.nextafter(wide, np.float32(side)) for side in (-np.inf, np.inf)] + [wide * 1.00048828125]
        )
    F = GraphBuilder("half")
    h, f = F.input("h", DType.FLOAT16, every.shape), F.input("f", DType.FLOAT32, around.shape)
    F.output(F.cast(h, dtype=DType.FLOAT32))
    F.output(F.cast(f, dtype=DType.FLOAT16))
    widened, narrowed = pipeline.load(compiled_for(F.build(), cpu))([every, around])
    np.testing.assert_array_equal(widened, wide)
    np.testing.assert_array_equal(narrowed, cast_values(around, DType.FLOAT16))
    assert dtypes.of(narrowed) is DType.FLOAT16
