"""The text of four small kernels, stage by stage, for one named CPU: a change of generated code shows in review.

    python tests/test_golden.py

writes tests/golden/*.txt again; read the difference before committing it. Nothing in a file depends on this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import autofusion as af
from autofusion import dims
from autofusion.dtypes import DType
from autofusion.frontends.tracer import trace
from autofusion.jit import pipeline
from autofusion.jit.pipeline import Options
from autofusion.targets.cpu import host

FOLDER = Path(__file__).parent / "golden"
CPU = "avx2"
STAGES = ("kernel", "tile", "llvm")
F32 = DType.FLOAT32

# name -> function, argument types and shapes
KERNELS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "relu_add": (lambda x, b: af.relu(x * 2 + b), [("x", F32, (17, 33)), ("b", F32, (33,))]),
    "softmax": (lambda x: af.softmax(x, axis=-1), [("x", F32, (64, 100))]),
    "gather_bfloat16": (
        lambda table, i: (table[i] * 0.5).astype("bfloat16"),
        [("table", DType.BFLOAT16, (1000, 24)), ("i", DType.INT64, (7,))],
    ),
    "matmul_bias_relu": (
        lambda x, w, b: af.relu(x @ w + b),
        [("x", F32, ("n", 32)), ("w", F32, (32, 24)), ("b", F32, (24,))],
    ),
}


def texts(name: str) -> Iterator[tuple[str, str]]:
    """(stage, text) of a kernel."""
    function, specs = KERNELS[name]
    listed = [(n, t, tuple(dims.parse(d) if isinstance(d, str) else d for d in shape)) for n, t, shape in specs]
    graph = trace(function, listed).graph
    target = host.target_of(host.named(CPU))
    stages = dict(pipeline.stages(pipeline.compile_graph(graph, target, Options(cpu=CPU))))
    for stage in STAGES:
        yield stage, stages[stage] + "\n"


def path(name: str, stage: str) -> Path:
    return FOLDER / f"{name}.{stage}.txt"


@pytest.mark.parametrize("name", KERNELS)
def test_golden(name: str) -> None:
    for stage, text in texts(name):
        golden = path(name, stage).read_text()
        assert text.splitlines() == golden.splitlines(), f"{path(name, stage)} differs; if it should: python {__file__}"


def test_no_golden_file_is_left_over() -> None:
    assert {p.name for p in FOLDER.iterdir() if p.is_file()} == {path(n, s).name for n in KERNELS for s in STAGES}


def test_golden_texts_do_not_depend_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another number of cores, other features of the host: the named CPU's text is the same."""
    before = list(texts("softmax"))
    other = host.Machine("aarch64-unknown-linux-gnu", "neoverse-v1", "+neon")
    monkeypatch.setattr(host, "host", lambda: other)
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: set(range(64)))
    host._target_of.cache_clear()
    try:
        assert list(texts("softmax")) == before
    finally:
        host._target_of.cache_clear()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for name in KERNELS:
        for stage, text in texts(name):
            path(name, stage).write_text(text)


if __name__ == "__main__":
    sys.exit(main())
