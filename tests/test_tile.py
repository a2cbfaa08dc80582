"""Tile programs: text that reads back, rules that refuse, schedules that never change a result, on-chip memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import assert_close, random_graph, unhurried
from tiled import CPU, MACHINES, execute, only_group

from autofusion import dims, text
from autofusion.autofuse.partition import greedy
from autofusion.dtypes import DType
from autofusion.errors import ArgumentError, TargetError, VerifyError
from autofusion.graph import evaluate
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.kernel import ir as kernel_ir
from autofusion.kernel import lower, schedule
from autofusion.kernel.ir import Kernel, reduced_of
from autofusion.kernel.schedule import Analysis, Schedule, Tile
from autofusion.ops import Kind
from autofusion.passes import pipeline
from autofusion.target import ASCEND_910B, ASCEND_950, Target
from autofusion.tile import build, choose, interpreter, ir, memory, traffic

F32 = DType.FLOAT32


def softmax(rows: dims.Dim = 50, columns: dims.Dim = 70) -> Graph:
    F = GraphBuilder("softmax")
    F.output(F.softmax(F.input("x", F32, (rows, columns))))
    return F.build()


def linear(rows: dims.Dim = 70, depth: dims.Dim = 90, columns: int = 50, norm: bool = False) -> Graph:
    F = GraphBuilder("linear")
    x, w = F.input("x", F32, (rows, depth)), F.input("w", F32, (depth, columns))
    value = F.relu(F.add(F.matmul(x, w), F.input("b", F32, (columns,))))
    F.output(F.layer_norm(value) if norm else value)
    return F.build()


def arrays_for(graph: Graph, **sizes: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [tuple(int(dims.evaluate(d, sizes)) for d in v.shape) for v in graph.inputs]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def program(text: str, target: Target = ASCEND_910B) -> ir.Program:
    return ir.parse(f"program {target.name}:\n" + text)


# -- text ------------------------------------------------------------------------------------------------------------
@settings(unhurried, max_examples=50)
@given(random_graph(most=10))
def test_programs_and_kernels_read_back(case: tuple[Graph, list[np.ndarray]]) -> None:
    graph, inputs = case
    for target in MACHINES.values():
        with np.errstate(all="ignore"):
            launches = execute(graph, inputs, target).launches
        for launch in launches:
            # As texts: a NaN literal is not equal to itself.
            assert str(ir.parse(str(launch.program))) == str(launch.program)
            assert str(kernel_ir.parse(str(launch.kernel))) == str(launch.kernel)
            ir.verify(launch.program, target)


KNOWN = {"softmax": softmax(), "open": softmax(dims.symbol("m"), dims.symbol("n")), "normed": linear(norm=True)}


@pytest.mark.parametrize("graph", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("machine", MACHINES)
def test_known_programs_read_back(graph: Graph, machine: str) -> None:
    choice = choose.choose(only_group(graph, MACHINES[machine]), MACHINES[machine])
    assert ir.parse(str(choice.program)) == choice.program
    assert schedule.parse(str(choice.schedule)) == choice.schedule


# -- rules -----------------------------------------------------------------------------------------------------------
CUBE_TO_VECTOR = """\
  param p0:float32[16, 16] in
  buffer c:float32[16, 16] in L0C
  buffer u:float32[16, 16] in UB
  step:
    on cube:
      parallel t < 1:
        copy u[i, j] <- c[i, j] over [i<16, j<16]
"""


def test_an_absent_copy_path_is_refused() -> None:
    """910B: the cube's results reach the vector unit through global memory only; 950 has the path."""
    with pytest.raises(VerifyError, match="no copy path L0C -> UB on cube"):
        ir.verify(program(CUBE_TO_VECTOR), ASCEND_910B)
    ir.verify(program(CUBE_TO_VECTOR, ASCEND_950), ASCEND_950)


REFUSED = {
    "no copy path GM -> L0A": ("buffer a:float32[16] in L0A", "cube", "copy a[i] <- p0[i] over [i<16]"),
    "no copy path UB -> L1": (
        "buffer a:float32[16] in L1\n  buffer u:float32[16] in UB",
        "vector",
        "copy a[i] <- u[i] over [i<16]",
    ),
    "no copy path GM -> UB on cube": ("buffer a:float32[16] in UB", "cube", "copy a[i] <- p0[i] over [i<16]"),
    "vector needs it in UB": ("buffer a:float32[16] in L1", "vector", "map a[i]:float32 = exp [a[i]] over [i<16]"),
    "vector needs it in UB*": ("buffer a:float32[16] in UB", "vector", "map a[i]:float32 = exp [p0[i]] over [i<16]"),
    "no unit scalar": ("buffer a:float32[16] in UB", "scalar", "map a[i]:float32 = exp [a[i]] over [i<16]"),
    "x is not declared": ("buffer a:float32[16] in UB", "vector", "copy a[i] <- x[i] over [i<16]"),
    "a has rank 2": ("buffer a:float32[16, 1] in UB", "vector", "copy a[i] <- p0[i] over [i<16]"),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_what_verify_refuses(problem: str) -> None:
    buffers, unit, line = REFUSED[problem]
    text = f"  param p0:float32[16] in\n  {buffers}\n  step:\n    on {unit}:\n      parallel c < 1:\n        {line}\n"
    with pytest.raises(VerifyError, match=problem.rstrip("*")):
        ir.verify(program(text), ASCEND_910B)


RING = """\
  buffer a:float32[16] in L0C
  buffer u:float32[16] in UB
  step:
    ring r:float32[16] depth={depth} in GM from {source} to vector
    on cube:
      parallel c < 1:
        put r <- a
    on vector:
      parallel c < 1:
        take u <- r
"""


def test_rings_have_two_slots_and_two_ends() -> None:
    ir.verify(program(RING.format(depth=2, source="cube")), ASCEND_910B)
    with pytest.raises(VerifyError, match="depth 1, expected at least 2"):
        ir.verify(program(RING.format(depth=1, source="cube")), ASCEND_910B)
    with pytest.raises(VerifyError, match="put on"):
        ir.verify(program(RING.format(depth=2, source="vector")), ASCEND_910B)
    with pytest.raises(VerifyError, match="z is not declared"):
        ir.verify(program(RING.format(depth=2, source="cube").replace("r <- a", "r <- z")), ASCEND_910B)


def test_tiles_pass_through_rings_only_along_copy_paths() -> None:
    """A ring in the vector unit's memory needs the path that only the 950 has."""
    text = RING.format(depth=2, source="cube").replace("in GM", "in UB")
    with pytest.raises(VerifyError, match="no copy path L0C -> UB on cube"):
        ir.verify(program(text), ASCEND_910B)
    ir.verify(program(text, ASCEND_950), ASCEND_950)


KERNELS = ("softmax", "linear", "normed")


# -- schedules -------------------------------------------------------------------------------------------------------
def legal(kernel: Kernel, target: Target, draw: st.DataObject) -> Schedule:
    """Any schedule that building admits for the kernel."""
    analysis = Analysis(kernel)
    divided = bool(analysis.contractions) and target.unit_for(Kind.CONTRACT) is not target.vector
    sizes = st.sampled_from((1, 2, 3, 7, 16, 64, 100))
    outer = [n for n in analysis.outer if draw.draw(st.booleans())]
    streams = [n for n in analysis.streamable_with(own_contractions=not divided) if n not in outer]
    stream = [draw.draw(st.sampled_from(streams))] if streams and draw.draw(st.booleans()) else []
    return Schedule(
        tuple(Tile(n, draw.draw(sizes)) for n in outer),
        tuple(Tile(n, draw.draw(sizes)) for n in stream),
        draw.draw(st.sampled_from((1, 2, 5, 64))),
        tuple(draw.draw(st.sampled_from((1, 3, 16, 64))) for _ in range(3)),
    )


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("graph", [softmax(9, 20), linear(9, 11, 8), linear(9, 11, 8, norm=True)], ids=KERNELS)
@settings(unhurried, max_examples=25)
@given(st.data())
def test_any_legal_schedule_gives_the_same_result(graph: Graph, machine: str, data: st.DataObject) -> None:
    inputs = arrays_for(graph)
    found = execute(
        graph,
        inputs,
        MACHINES[machine],
        planner=lambda kernel, target: legal(kernel, target, data),
        order=interpreter.shuffled(3),
    )
    for launch in found.launches:
        counted = traffic.gm_bytes(launch.program, found.sizes)
        assert (counted.read, counted.written) == (launch.run.gm_read, launch.run.gm_written)
    for actual, expected in zip(found.outputs, evaluate.run(graph, inputs), strict=True):
        assert_close(actual, expected, 256)


@unhurried
@given(random_graph(most=6), st.data())
def test_random_graphs_under_random_schedules(case: tuple[Graph, list[np.ndarray]], data: st.DataObject) -> None:
    graph, inputs = case
    with np.errstate(all="ignore"):
        found = execute(graph, inputs, strict=True, planner=lambda k, t: legal(k, t, data))
        expected = evaluate.run(graph, inputs)
    for actual, wanted in zip(found.outputs, expected, strict=True):
        assert_close(np.asarray(actual), np.asarray(wanted), 512)


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("size", [1, 16, 64])
def test_streamed_resident_and_shared_rows_agree(size: int, parts: int) -> None:
    graph = softmax(3, 70)
    inputs = arrays_for(graph)
    resident = execute(graph, inputs, planner=lambda k, t: Schedule((), (), 1)).outputs[0]

    def streamed(kernel: Kernel, target: Target) -> Schedule:
        along = next(a.name for s in kernel.statements for a in reduced_of(s))
        return Schedule((), (Tile(along, size),), 1, parts=parts)

    assert_close(execute(graph, inputs, planner=streamed).outputs[0], resident, 16)


def test_illegal_schedules_are_refused() -> None:
    kernel = only_group(softmax())
    (row,) = Analysis(kernel).outer
    (column,) = {a.name for s in kernel.statements for a in reduced_of(s)}
    with pytest.raises(TargetError, match="cannot be bound to cores"):
        build.build(kernel, Schedule((Tile(column, 4),), (), 1), CPU)
    with pytest.raises(TargetError, match="cannot be streamed"):
        build.build(kernel, Schedule((Tile(row, 4),), (Tile(row, 4),), 1), CPU)


def test_candidates_end_with_the_smallest() -> None:
    kernel = only_group(softmax(64, 4096))
    listed = list(schedule.candidates(kernel, ASCEND_910B))
    assert len(listed) == len(set(listed)) > 1
    assert schedule.propose(kernel, ASCEND_910B) == listed[0]
    assert schedule.propose(kernel, ASCEND_910B, fits=lambda s: False) == listed[-1]
    sizes = [sum(memory.allocate(build.build(kernel, s, ASCEND_910B), ASCEND_910B).bytes.values()) for s in listed]
    assert sizes[-1] == min(sizes)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("columns", [48, 768, 3072, 8192])
def test_what_is_chosen_fits(columns: int, machine: str) -> None:
    """A whole row of the result must stay on-chip where it is normalised: also long ones, on small memories."""
    for graph in (softmax(64, columns), linear(64, 512, columns), linear(64, 512, columns, norm=True)):
        ready = pipeline.run(graph)
        for group in greedy(ready, MACHINES[machine]).groups:
            kernel = lower.lower(ready, group, MACHINES[machine]).kernel
            choice = choose.choose(kernel, MACHINES[machine])
            assert choice.overflow is None, f"{choice.overflow} under {choice.schedule}"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("extent", [1, 7, 64, 1000])
def test_symbolic_extents(extent: int, machine: str) -> None:
    m, n = dims.symbol("m"), dims.symbol("n")
    for graph in (softmax(m, n), linear(m, n)):
        inputs = arrays_for(graph, m=extent, n=1001 - extent)
        found = execute(graph, inputs, MACHINES[machine])
        for launch in found.launches:
            counted = traffic.gm_bytes(launch.program, found.sizes)
            assert (counted.read, counted.written) == (launch.run.gm_read, launch.run.gm_written)
            assert launch.overflow is None
        for actual, expected in zip(found.outputs, evaluate.run(graph, inputs), strict=True):
            assert_close(actual, expected, 4096)


@pytest.mark.parametrize("machine", MACHINES)
def test_an_open_row_is_resident_where_it_fits(machine: str) -> None:
    """One program, two variants behind a guard: up to a tile's length every byte moves once, beyond it once a walk."""
    n = dims.symbol("n")
    for graph, walks in ((softmax(9, n), 3), (linear(9, 16, n, norm=True), None)):
        tile = 0
        for extent in (1, 63, 64, 65, 700, 4096, 4097, 5000):
            inputs = arrays_for(graph, n=extent)
            found = execute(graph, inputs, MACHINES[machine])
            for launch in found.launches:
                counted = traffic.gm_bytes(launch.program, found.sizes)
                assert (counted.read, counted.written) == (launch.run.gm_read, launch.run.gm_written)
                assert launch.overflow is None
            if walks:
                (guard,) = {
                    node.larger for node in text.walk(found.launches[0].program) if isinstance(node, ir.Guard)
                } - {n}
                assert isinstance(guard, int)
                tile = guard
                row = 9 * extent * 4
                assert found.traffic.read == row * (1 if extent <= tile else walks) and found.traffic.written == row
            for actual, expected in zip(found.outputs, evaluate.run(graph, inputs), strict=True):
                assert_close(actual, expected, 4096)
        assert not walks or 64 <= tile < 5000  # both variants ran


# -- traffic ---------------------------------------------------------------------------------------------------------
def test_traffic_of_many_tiles_is_quick_and_exact() -> None:
    """A million tiles, most of them equal, are counted as a few rows; open extents must be given."""
    graph = softmax(dims.symbol("m"), 8)
    kernel = only_group(graph)
    (row,) = Analysis(kernel).outer
    made = build.build(kernel, Schedule((Tile(row, 3),), (), 64), CPU)
    rows = 3_000_001
    assert traffic.gm_bytes(made, {"m": rows}) == traffic.Traffic(rows * 32, rows * 32, 0)
    with pytest.raises(ArgumentError, match="open extent m"):
        traffic.gm_bytes(made)


# -- memory ----------------------------------------------------------------------------------------------------------
def allocated(lines: str, buffers: int = 3) -> dict[str, int]:
    declared = "".join(f"  buffer b{i}:float32[64] in UB\n" for i in range(buffers))
    head = "  param p0:float32[64] in\n  param p1:float32[64] out\n"
    body = "".join("        " + line + "\n" for line in lines.strip("\n").split("\n"))
    made = program(head + declared + "  step:\n    on vector:\n      parallel c < 1:\n" + body)
    return dict(memory.allocate(made, ASCEND_910B).offsets)


LOAD = "copy {} [i] <- p0[i] over [i<64]".replace(" [", "[")
MAP = "map {}[i]:float32 = exp [{}[i]] over [i<64]"
STORE = "copy p1[i] <- {}[i] over [i<64]"


def test_memory_is_used_again_after_the_last_use() -> None:
    lines = "\n".join([LOAD.format("b0"), MAP.format("b1", "b0"), MAP.format("b2", "b1"), STORE.format("b2")])
    assert allocated(lines) == {"b0": 0, "b1": 256, "b2": 0}


def test_what_a_loop_reads_from_before_lives_through_it() -> None:
    """b0 is last named early in the loop, but the next iteration reads it again."""
    loop = ["for t from 0 to 4 step 1:", *("  " + x for x in (MAP.format("b1", "b0"), MAP.format("b2", "b1")))]
    found = allocated("\n".join([LOAD.format("b0"), *loop, "  " + STORE.format("b2")]))
    assert found["b0"] not in (found["b1"], found["b2"])


def test_a_state_that_a_loop_carries_lives_through_it() -> None:
    """b1 is read before it is written in an iteration, and b2 is collected over iterations."""
    carried = "map b1[i]:float32 = add [b1[i], b0[i]] over [i<64]"
    part = "copy b2[i+t*16] <- b0[i] over [i<16]"
    loop = ["for t from 0 to 4 step 1:", *("  " + x for x in (LOAD.format("b0"), carried, LOAD.format("b3"), part))]
    found = allocated("\n".join([*loop, STORE.format("b2")]), buffers=4)
    assert len({found["b1"], found["b2"], found["b0"]}) == 3
    assert found["b3"] not in (found["b1"], found["b2"], found["b0"])


def test_starts_are_aligned_and_rings_count_all_slots() -> None:
    text = RING.format(depth=2, source="cube").replace("in GM", "in UB").replace("float32[16]", "float32[5]")
    found = memory.allocate(program(text, ASCEND_950), ASCEND_950)
    assert sorted(found.offsets.items()) == [("a", 0), ("r", 0), ("u", 64)]
    assert found.bytes["UB"] == 84


def test_overflow_says_what_does_not_fit() -> None:
    text = "  param p0:float32[60000] in\n  buffer b0:float32[60000] in UB\n  step:\n    on vector:\n"
    text += "      parallel c < 1:\n        copy b0[i] <- p0[i] over [i<60000]\n"
    assert memory.fits(program(text), ASCEND_910B) == memory.Overflow("UB", 240_000, 188_160)
    assert memory.fits(program(text.replace("60000", "600")), ASCEND_910B) is None
    small = replace(
        ASCEND_910B,
        facts=tuple(replace(f, bytes=16) if f == ASCEND_910B.spaces["UB"] else f for f in ASCEND_910B.facts),
    )
    assert memory.fits(program(text.replace("60000", "5")), small) is not None


@settings(unhurried, max_examples=50)
@given(random_graph(most=10))
def test_buffers_alive_together_do_not_overlap(case: tuple[Graph, list[np.ndarray]]) -> None:
    graph, inputs = case
    for target in MACHINES.values():
        with np.errstate(all="ignore"):
            found = execute(graph, inputs, target)
        for launch in found.launches:
            places = memory.allocate(launch.program, target, found.sizes).offsets
            lives = list(memory.lifetimes(launch.program, found.sizes))
            for number, a in enumerate(lives):
                assert places[a.name] % target.spaces[a.space].align == 0
                for b in lives[:number]:
                    if a.space == b.space and a.meets(b) and a.size and b.size:
                        apart = places[a.name] + a.size <= places[b.name] or places[b.name] + b.size <= places[a.name]
                        assert apart, f"{a} and {b}"
