"""Groups in one launch on Ascend targets: who waits for whom, what starts early, and that each switch leaves results
alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from ascend import CHIPS

from autofusion import api
from autofusion.autofuse.verdicts import Code
from autofusion.cli.main import main
from autofusion.dtypes import DType
from autofusion.errors import ArgumentError
from autofusion.graph import evaluate
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.jit import ascend
from autofusion.jit.pipeline import Compilation
from autofusion.runtime import aicore
from autofusion.runtime.ascend import AscendExecutable, Counters
from autofusion.superkernel.options import SuperKernelOptions
from autofusion.superkernel.plan import Place
from autofusion.targets.ascend import waits
from autofusion.targets.ascend.entry import Entry
from autofusion.targets.ascend.kernel import Kernel
from autofusion.targets.ascend.waits import EVERYWHERE, Edge

F32 = DType.FLOAT32
NAMES = tuple(field.name for field in fields(SuperKernelOptions))


def graph_of(build: Callable[[GraphBuilder], Any]) -> Graph:
    F = GraphBuilder(build.__name__)
    build(F)
    return F.build()


def chain(F: GraphBuilder) -> None:
    """More elementwise operators than a group may hold."""
    x, y = F.input("x", F32, (80, 256)), F.input("y", F32, (80, 256))
    for _ in range(150):
        x = F.add(F.mul(x, 0.5), y)
    F.output(x)


def products(F: GraphBuilder) -> None:
    """A result of the cube that the cube reads."""
    x, w, v = F.input("x", F32, (96, 64)), F.input("w", F32, (64, 128)), F.input("v", F32, (128, 64))
    F.output(F.matmul(F.matmul(x, w), v))


def mixed(F: GraphBuilder) -> None:
    """Cube, vector, cube, vector; the last reads what two phases before it made."""
    x, w, v = F.input("x", F32, (64, 512)), F.input("w", F32, (512, 96)), F.input("v", F32, (96, 512))
    h = F.softmax(F.matmul(x, w), axis=-1)
    F.output(F.layer_norm(F.add(F.matmul(h, v), x), F.input("g", F32, (512,)), F.input("b", F32, (512,))))


def folded(F: GraphBuilder) -> None:
    """Partials of all vector cores that one of them merges."""
    F.output(F.sum(F.input("x", F32, (300, 1000))))


def lowered(build: Callable[[GraphBuilder], Any], chip: str = CHIPS[0], off: tuple[str, ...] = ()) -> Compilation:
    return api.lower_graph(graph_of(build), chip, superkernel=SuperKernelOptions.without(off))


def entry_of(compilation: Compilation) -> Entry:
    kernels: dict[str, Kernel] = ascend._kernels(compilation)
    plan = compilation.plan
    (launch,) = plan.launches
    return Entry(plan, launch, kernels, {}, compilation.target, compilation.options.superkernel)


def text_of(compilation: Compilation) -> str:
    (source,) = ascend.sources(compilation)
    return source.text


# -- who waits for whom ------------------------------------------------------------------------------------------------
def test_groups_that_cut_alike_wait_for_nobody() -> None:
    """Each core reads what it wrote itself: not even a kernel type whose cores can meet."""
    compilation = lowered(chain)
    assert len(compilation.plan.launches[0].body) == 2
    assert not any(wait.edges for wait in entry_of(compilation).waits)
    assert "KERNEL_TYPE_AIV_ONLY" in text_of(compilation)
    assert "CrossCore" not in text_of(compilation) and "SyncAll" not in text_of(compilation)


def test_groups_that_cut_differently_wait() -> None:
    """The same two groups, the first of them of half as many chunks: cores would read what others wrote."""
    entry = entry_of(lowered(chain))
    first, second = entry.launch.body
    together = {key: 2 if key[0] == first.body[0].kernel else unit for key, unit in entry.together.items()}
    found = waits.waits(entry.plan, entry.launch, entry.kernels, together)
    assert found[1].edges == {Edge("vector", "vector")}
    assert second.body[0].chunks == first.body[0].chunks


def test_cubes_wait_for_cubes_alone() -> None:
    entry = entry_of(lowered(products))
    assert [sorted(wait.edges) for wait in entry.waits] == [[], [("cube", "cube")]]
    assert entry.kind == "KERNEL_TYPE_MIX_AIC_1_0"


def test_vector_cores_wait_for_vector_cores_alone() -> None:
    entry = entry_of(lowered(folded))
    assert [sorted(wait.edges) for wait in entry.waits] == [[], [("vector", "vector")]]
    assert entry.kind == "KERNEL_TYPE_MIX_AIV_1_0"


def test_waits_have_a_direction() -> None:
    """A unit waits for the other where it reads what that made; nowhere do both."""
    entry = entry_of(lowered(mixed, off=("workspace_reuse",)))
    edges = [edge for wait in entry.waits for edge in sorted(wait.edges) if edge.first != edge.after]
    assert edges == [Edge("cube", "vector"), Edge("vector", "cube")]
    assert EVERYWHERE not in entry.waits


def test_without_narrow_waits_everybody_meets_between_phases() -> None:
    for build in (chain, products, mixed):
        compilation = lowered(build, off=("narrow-waits",))
        phases = len(compilation.plan.launches[0].body)
        assert text_of(compilation).count("SyncAll") == phases - 1 > 0
        assert "CrossCoreSetFlag<0" not in text_of(compilation)


# -- what starts early -------------------------------------------------------------------------------------------------
def test_only_what_no_core_writes_starts_early() -> None:
    entry = entry_of(lowered(mixed))
    written: set[str] = set()
    some = 0
    for phase, touched in zip(entry.launch.body, waits.touches(entry.launch, entry.kernels), strict=True):
        call = phase.body[0]
        program = entry.kernels[call.kernel].program
        storage = dict(zip((p.name for p in program.params), call.arguments, strict=False))
        for tile in entry.ahead.get(id(call), ()):
            some += 1
            assert written.isdisjoint(storage[name] for name in tile.params)
        written |= {name for touch in touched for name in touch.writes}
    assert some > 0


def test_early_tiles_come_before_the_wait() -> None:
    lines = [line.strip() for line in text_of(lowered(products)).splitlines()]
    early = lines.index("kernel.EarlyRight1Of0(share.first, share.last);")
    wait = next(n for n, line in enumerate(lines) if line.startswith("CrossCoreWaitFlag") and n > early)
    assert lines[wait + 1].startswith("kernel.Step0(")
    assert "Early" not in text_of(lowered(products, off=("early-start",)))


def scaled(F: GraphBuilder) -> None:
    """Rows and one number of theirs that comes from the launch's first phase."""
    total = F.sum(F.softmax(F.matmul(F.input("x", F32, (96, 64)), F.input("w", F32, (64, 50))), axis=-1), axes=(0, 1))
    y = F.mul(F.input("p", F32, (600, 800)), F.input("r", F32, (800,)))
    F.output(F.div(F.add(y, F.input("q", F32, (800,))), total))


def test_a_copy_has_a_wait_of_its_own_where_later_ones_start_early() -> None:
    """Tiles are copied after the row that they are used with, and waited for, but the first was copied before."""
    early, late = text_of(lowered(scaled)), text_of(lowered(scaled, off=("early-start",)))
    assert "kernel.EarlyLoad1Of0(" in early and "load0.EnQue" in early
    assert "load1.EnQue" in late and "load0.EnQue" not in late
    for off in ((), ("early-start",)):
        run(scaled, CHIPS[0], off)


# -- switches ----------------------------------------------------------------------------------------------------------
def test_without_reuse_the_workspace_shares_no_bytes() -> None:
    def spans(off: tuple[str, ...]) -> list[tuple[int, int]]:
        plan = lowered(mixed, off=off).plan
        kept = [s for s in plan.storages.values() if s.place is Place.WORKSPACE]
        return sorted((int(str(s.offset)), int(str(s.offset)) + int(str(s.bytes))) for s in kept)

    apart = spans(("workspace-reuse",))
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(apart))
    assert max(end for _, end in spans(())) < max(end for _, end in apart)


def test_without_double_buffering_queues_have_one_tile() -> None:
    buffers = [line for line in text_of(lowered(mixed, off=("double-buffering",))).splitlines() if "InitBuffer" in line]
    assert buffers and not any(", 2, " in line for line in buffers)
    assert any(", 2, " in line for line in text_of(lowered(mixed)).splitlines() if "InitBuffer" in line)


def test_an_unknown_switch_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"'early' cannot be switched off; these can: double-buffering, early-start"
    ):
        SuperKernelOptions.without(["early"])
    assert SuperKernelOptions.without(["early-start"]) == SuperKernelOptions(early_start=False)


def test_the_command_line_has_the_switches(capsys: pytest.CaptureFixture[str]) -> None:
    case = ["emit", "examples/transformer_block.json", "--target", "ascend910b", "--stage", "source"]
    assert main([*case, "--without", "narrow-waits", "--without", "early-start"]) == 0
    text = capsys.readouterr().out
    assert "SyncAll<false>();" in text and "Early" not in text and "CrossCoreSetFlag<0" not in text
    assert main([*case, "--without", "waits"]) != 0
    assert "'waits' cannot be switched off" in capsys.readouterr().err


def run(build: Callable[[GraphBuilder], Any], chip: str, off: tuple[str, ...]) -> Counters:
    """Run on the model and check the results."""
    if reason := aicore.unavailable():
        pytest.skip(reason)
    graph = graph_of(build)
    compiled = api.compile_graph(graph, chip, superkernel=SuperKernelOptions.without(off))
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, tuple(map(int, map(str, v.shape)))).astype(np.float32) for v in graph.inputs]
    for found, wanted in zip(compiled.run(arrays), evaluate.run(graph, arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)
    assert isinstance(compiled.executable, AscendExecutable)
    assert compiled.executable.counters is not None
    return compiled.executable.counters


@pytest.mark.parametrize("off", [(), *((name,) for name in NAMES), NAMES], ids=lambda off: "-".join(off) or "all")
@pytest.mark.parametrize(
    ("build", "chip"),
    [
        (mixed, CHIPS[0]),
        *(pytest.param(b, c, marks=pytest.mark.full) for b in (mixed, products, chain, folded) for c in CHIPS),
    ],
)
def test_results_are_the_same_without(build: Callable[[GraphBuilder], Any], chip: str, off: tuple[str, ...]) -> None:
    run(build, chip, off)


def test_switches_have_an_effect() -> None:
    plain, late = run(mixed, CHIPS[0], ()), run(mixed, CHIPS[0], ("early_start",))
    assert plain.microseconds < late.microseconds
    assert plain.gm_bytes == late.gm_bytes
    assert run(chain, CHIPS[0], ()).barriers == 0
    assert run(chain, CHIPS[0], ("narrow_waits",)).barriers == 1


# -- what is a group of its own ----------------------------------------------------------------------------------------
def behind(depth: int) -> Graph:
    """Whole rows behind a product of that depth."""
    F = GraphBuilder("behind")
    x, w = F.input("x", F32, (128, depth)), F.input("w", F32, (depth, 768))
    F.output(F.softmax(F.add(F.matmul(x, w), F.input("r", F32, (128, 768))), axis=-1))
    return F.build()


@pytest.mark.parametrize("chip", CHIPS)
def test_whole_rows_stay_apart_from_a_deep_product_and_the_verdict_has_the_numbers(chip: str) -> None:
    found = api.lower_graph(behind(3072), chip).partition
    (verdict,) = [v for v in found.verdicts if v.code is Code.PROFIT]
    numbers = dict(verdict.numbers)
    assert len(found.groups) == 2
    assert numbers["lost_us"] > numbers["won_us"] > 0 and numbers["bytes"] > numbers["bytes_apart"] > 0


@pytest.mark.parametrize(("target", "depth"), [*((chip, 16) for chip in CHIPS), ("cpu:avx2", 3072)])
def test_whole_rows_join_a_product_that_is_not_read_again_for_much(target: str, depth: int) -> None:
    assert len(api.lower_graph(behind(depth), target).partition.groups) == 1
