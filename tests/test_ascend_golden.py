"""The Ascend C of small kernels: a change of generated code shows in review; and every synchronisation in it is needed.

    python tests/test_ascend_golden.py

writes tests/golden/ascend/*.cpp again; read the difference before committing it, and keep the reading beside each file
(*.md: what the source alone says) true. Nothing in a file depends on this machine.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from ascend import CHIPS, TOGETHER, Machine, compiled, sources
from oracle import assert_close, random_array

from autofusion import dims
from autofusion.dtypes import Array, DType
from autofusion.errors import ExecutionError
from autofusion.graph import evaluate
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.jit.ascend import ARCHITECTURES
from autofusion.runtime import aicore
from autofusion.targets.ascend import order
from autofusion.targets.ascend.render import Source

FOLDER = Path(__file__).parent / "golden" / "ascend"
F32, F16, BF16 = DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16
B910, B950 = CHIPS
n = dims.symbol("n")
Build = Callable[[GraphBuilder], Any]


class Kernel(NamedTuple):
    """A graph, the chip, the extent of `n` in the run, and the tolerance of the comparison."""

    build: Build
    chip: str = B910
    size: int = 0
    tolerance: float = 64.0


def relu_add(F: GraphBuilder) -> None:
    x, b = F.input("x", F32, (1700, 33)), F.input("b", F32, (33,))
    F.output(F.relu(F.add(F.mul(x, 2.0), b)))


def softmax(F: GraphBuilder) -> None:
    F.output(F.softmax(F.input("x", F32, (640, 1000)), axis=-1))


def layer_norm(F: GraphBuilder) -> None:
    x, g, b = F.input("x", F16, (600, 100)), F.input("g", F16, (100,)), F.input("b", F16, (100,))
    F.output(F.layer_norm(x, g, b))


def total(F: GraphBuilder) -> None:
    F.output(F.sum(F.input("x", F32, (300, 1000))))


def gathered(F: GraphBuilder) -> None:
    table, at = F.input("table", BF16, (1000, 24)), F.input("at", DType.INT64, (70,))
    F.output(F.cast(F.mul(F.gather(table, at, axis=0), 0.5), dtype=BF16))


def open_rows(F: GraphBuilder) -> None:
    F.output(F.exp(F.mul(F.input("x", F32, (n, 20)), F.input("y", F32, (20,)))))


def integers(F: GraphBuilder) -> None:
    x, y = F.input("x", DType.INT32, (5000,)), F.input("y", DType.INT32, (5000,))
    F.output(F.where(F.lt(x, y), F.add(x, y), F.mul(x, 3)))


def product(F: GraphBuilder) -> None:
    x, w, b = F.input("x", F32, (33, 2000)), F.input("w", F32, (2000, 50)), F.input("b", F32, (50,))
    F.output(F.relu(F.add(F.matmul(x, w), b)))


def product_softmax(F: GraphBuilder) -> None:
    x, w, r = F.input("x", F32, (300, 1000)), F.input("w", F32, (1000, 50)), F.input("r", F32, (300, 50))
    F.output(F.softmax(F.add(F.matmul(x, w), r), axis=-1))


def two_products(F: GraphBuilder) -> None:
    x, w, v = F.input("x", F16, (100, 2000)), F.input("w", F16, (2000, 50)), F.input("v", F16, (50, 20))
    F.output(F.matmul(F.sqrt(F.abs(F.matmul(x, w))), v))


def bytes_product(F: GraphBuilder) -> None:
    x, w = F.input("x", DType.INT8, (33, 2000)), F.input("w", DType.INT8, (2000, 40))
    y = F.matmul(F.cast(x, dtype=DType.INT32), F.cast(w, dtype=DType.INT32))
    F.output(F.cast(F.mul(F.cast(y, dtype=F32), 2.0**-12), dtype=F16))


KERNELS: dict[str, Kernel] = {
    "relu_add": Kernel(relu_add),
    "softmax": Kernel(softmax),
    "layer_norm_float16": Kernel(layer_norm, tolerance=4),
    "sum_of_everything": Kernel(total),
    "gather_bfloat16": Kernel(gathered),
    "open_rows": Kernel(open_rows, size=777),
    "int32_where": Kernel(integers),
    "matmul_bias_relu": Kernel(product, tolerance=1024),
    "matmul_add_softmax": Kernel(product_softmax, tolerance=1024),
    "matmul_add_softmax_950": Kernel(product_softmax, B950, tolerance=1024),
    "matmul_int8": Kernel(bytes_product, tolerance=0),
    "two_matmuls_float16": Kernel(two_products, tolerance=16),
}


def graph_of(name: str) -> Graph:
    F = GraphBuilder(name)
    KERNELS[name].build(F)
    return F.build()


def texts(name: str) -> str:
    """The sources of a kernel's launches; there is one."""
    (source,) = sources(compiled(graph_of(name), KERNELS[name].chip))
    return source.text


# -- the text --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", KERNELS)
def test_golden(name: str) -> None:
    golden = (FOLDER / f"{name}.cpp").read_text()
    assert texts(name).splitlines() == golden.splitlines(), f"{name}.cpp differs; if it should: python {__file__}"


def test_no_golden_file_is_left_over_and_each_has_its_reading() -> None:
    assert {p.name for p in FOLDER.iterdir()} == {f"{name}.{kind}" for name in KERNELS for kind in ("cpp", "md")}


# -- which copies are waited for --------------------------------------------------------------------------------------
TILES = ("for (int64_t t = c * 2; t < Least(9, c * 2 + 2); ++t) {", "    in1 = load1.DeQue<uint8_t>();")
READ, ELEMENT = "Add(v0[0], v0[0], b3[0], 8);", "const float x = b3.GetValue(0);"
SOME = ("for (int64_t i1_t = 0; i1_t < i1_n; i1_t += 8) {", "    in1 = load1.DeQue<uint8_t>();")


@pytest.mark.parametrize(
    ("lines", "early", "repeated", "wanted"),
    [
        ([READ], (), False, True),
        ([*TILES, f"    {READ}", "}"], (), True, False),
        ([*TILES, f"    {READ}", "}"], ("load1",), True, True),
        ([READ, *TILES, "}"], (), True, True),
        ([*TILES, "}", READ], (), True, True),
        ([*SOME, f"    {READ}", "}"], (), True, True),  # no tile: the next copy would not be ordered after this one
        ([*SOME, f"    {READ}", "}"], (), False, False),
        ([ELEMENT, f"// {READ}"], (), False, False),
        ([ELEMENT], (), True, True),
        ([ELEMENT, *TILES, "}"], (), True, False),
    ],
)
def test_a_copy_is_waited_for_where_nothing_else_orders_it(
    lines: list[str], early: tuple[str, ...], repeated: bool, wanted: bool
) -> None:
    assert order.awaited(lines, ["b3"], early, repeated) == wanted


# -- what is lost when a synchronisation is ----------------------------------------------------------------------------
CALL = re.compile(
    r"^(?P<indent> *)(?:(?P<tensor>\w+) = )?(?:LocalTensor<\w+> \w+ = |const LocalTensor<\w+> \w+ = )?"
    r"(?P<object>[\w>.-]*?)(?P<call>EnQue|DeQue<|SetFlag<|WaitFlag<|PipeBarrier<|SyncAll[<(]|CrossCoreSetFlag<|CrossCoreWaitFlag)"
)


class Loss(NamedTuple):
    """Lines that a source loses, by position."""

    lines: tuple[int, ...]
    text: str


def losses(text: str) -> Iterator[Loss]:
    """Each synchronising statement alone; an EnQue with the DeQue of the same queue behind it."""
    lines = text.splitlines()
    for position, line in enumerate(lines):
        found = CALL.match(line)
        if found is None:
            continue
        call, queue = found["call"].strip("<("), found["object"]
        if call == "DeQue":
            continue  # the tensor would not be declared, or the next would be another's
        if call == "EnQue":
            reads = re.compile(rf"^ *\w+ = {re.escape(queue)}DeQue<")
            for later in range(position + 1, len(lines)):
                if reads.match(lines[later]):
                    yield Loss((position, later), f"{line.strip()} {lines[later].strip()}")
                    break
            else:
                yield Loss((position,), line.strip())
            continue
        yield Loss((position,), line.strip())


def without(source: Source, loss: Loss) -> str:
    lines = source.text.splitlines()
    for position in loss.lines:
        lines[position] = ""
    return "\n".join(lines) + "\n"


def arrays_of(name: str) -> list[Array]:
    rng = np.random.default_rng(1)
    made = []
    for value in graph_of(name).inputs:
        shape = tuple(int(dims.evaluate(d, {"n": KERNELS[name].size})) for d in value.shape)
        made.append(random_array(rng, value.dtype, shape, (0.0, 1000.0) if value.name == "at" else (-1.0, 1.0)))
    return made


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("softmax", "matmul_bias_relu") else pytest.mark.full) for name in KERNELS],
)
def test_every_synchronisation_is_needed(name: str) -> None:
    """The kernel is right; without any one of these statements the model refuses it, whatever it computes."""
    if reason := aicore.unavailable():
        pytest.skip(reason)
    kernel, graph, arrays = KERNELS[name], graph_of(name), arrays_of(name)
    run = compiled(graph, kernel.chip)
    (source,) = sources(run)
    listed = list(losses(source.text))
    assert listed
    mutants = [replace(source, text=without(source, loss)) for loss in listed]
    machine = Machine(ARCHITECTURES[kernel.chip])
    for first in range(0, len(mutants), TOGETHER):
        machine.build([source, *mutants[first : first + TOGETHER]])

    def accepted(changed: Source) -> bool:
        run.executable.machine = Losing(machine, changed)  # type: ignore[attr-defined]
        try:
            results = run.run(arrays)
        except (aicore.ModelViolation, ExecutionError):
            return False
        for found, wanted in zip(results, evaluate.run(graph, arrays), strict=True):
            assert_close(found, wanted, kernel.tolerance)
        return True

    assert accepted(source)
    kept = [loss for loss, mutant in zip(listed, mutants, strict=True) if accepted(mutant)]
    shown = "\n".join(f"line {loss.lines[0] + 1}: {loss.text}" for loss in kept)
    assert not kept, f"the model accepts the kernel without\n{shown}"


class Losing(NamedTuple):
    """Launches another source than it is given, on two cores at most, so that each has several tiles."""

    machine: Machine
    mutant: Source

    def launch(self, source: Source, arrays: Any, tiling: bytes, blocks: int) -> aicore.Report:
        return self.machine.launch(self.mutant, arrays, tiling, min(blocks, 2))


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.cpp"):
        old.unlink()
    for name in KERNELS:
        (FOLDER / f"{name}.cpp").write_text(texts(name))


if __name__ == "__main__":
    sys.exit(main())
