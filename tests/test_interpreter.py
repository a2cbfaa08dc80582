"""The tile interpreter: what it computes, counts and refuses; and whole graphs through it on every machine."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from oracle import assert_close, random_graph, unhurried
from tiled import CPU, MACHINES, execute

from autofusion import dims
from autofusion.dtypes import DType
from autofusion.errors import ArgumentError, ExecutionError, IndexOutOfRange
from autofusion.frontends.tracer import trace
from autofusion.graph import evaluate
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.target import GM
from autofusion.tile import interpreter, ir, traffic

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK = ("softmax", "layernorm_gelu", "matmul_add_relu", "adamw", "longtail200")
SLOW = ("transformer_block", "model200")
F32 = DType.FLOAT32


def program(*lines: str) -> ir.Program:
    return ir.parse("program host:\n" + "\n".join("  " + line for line in lines))


def on_core(*lines: str) -> tuple[str, ...]:
    return ("step:", "  on core:", "    parallel c < 1:", *("      " + line for line in lines))


X4 = ("param p0:float32[4] in", "param p1:float32[4] out")


def run(source: ir.Program, **arguments: np.ndarray) -> interpreter.Run:
    return interpreter.run(source, arguments)


# -- single statements -----------------------------------------------------------------------------------------------
def test_unwritten_memory_shows() -> None:
    out = np.zeros(4, np.float32)
    lines = on_core("copy p1[i0] <- b0[i0] over [i0<4]")
    run(program(*X4, "buffer b0:float32[4] in CACHE", *lines), p0=np.ones(4, np.float32), p1=out)
    assert np.isnan(out).all()


def test_chunks_do_not_share_on_chip_memory() -> None:
    """A buffer that an earlier chunk filled is poisoned again for the next."""
    lines = (
        "step:",
        "  on core:",
        "    parallel c < 2:",
        "      copy b0[i0] <- p0[i0+c*2] over [i0<2-c*2]",
        "      copy p1[i0+c*2] <- b0[i0] over [i0<2]",
    )
    out = np.zeros(4, np.float32)
    run(program(*X4, "buffer b0:float32[2] in CACHE", *lines), p0=np.ones(4, np.float32), p1=out)
    assert np.array_equal(out, [1, 1, np.nan, np.nan], equal_nan=True)


@pytest.mark.parametrize("index", ["i0+1", "i0*2", "i0-1", "(i0*5)//3"])
def test_an_index_out_of_bounds_is_an_error_that_names_the_statement(index: str) -> None:
    lines = on_core(f"copy b0[i0] <- p0[{index}] over [i0<4]")
    with pytest.raises(ExecutionError, match=r"copy b0\[i0\] <- p0.*outside an axis of 4"):
        run(program(*X4, "buffer b0:float32[4] in CACHE", *lines), p0=np.ones(4, np.float32), p1=np.ones(4, np.float32))


@pytest.mark.parametrize(
    ("fold", "values", "expected"),
    [
        ("sum", [1e8, 1.0, -1e8, 0.5], 1.5),
        ("prod", [1e30, 1e30, 1e-30, 1e-30], 1.0),
        ("max", [1.0, np.nan, 3.0, 2.0], np.nan),
        ("min", [1.0, -3.0, 3.0, 2.0], -3.0),
    ],
)
def test_folds(fold: str, values: list[float], expected: float) -> None:
    """Sums and products round once, however large the terms are on the way."""
    out = np.zeros(4, np.float32)
    lines = on_core(
        "copy b0[i0] <- p0[i0] over [i0<4]",
        f"fold b1[]:float32 = {fold} b0[i0] over [] reduce [i0<4]",
        "copy p1[i0] <- b1[] over [i0<1]",
    )
    buffers = ("buffer b0:float32[4] in CACHE", "buffer b1:float32[] in CACHE")
    run(program(*X4, *buffers, *lines), p0=np.array(values, np.float32), p1=out)
    assert np.array_equal(out[0], np.float32(expected), equal_nan=True)


def test_accumulation_merges_with_the_state_that_is_held() -> None:
    out = np.zeros(4, np.float32)
    lines = on_core(
        "copy b1[] <- float32(10.0) over []",
        "for t from 0 to 4 step 2:",
        "  copy b0[i0] <- p0[i0+t] over [i0<2]",
        "  fold b1[]:float32 = sum b0[i0] over [] reduce [i0<2] accumulate=true",
        "copy p1[i0] <- b1[] over [i0<1]",
    )
    buffers = ("buffer b0:float32[2] in CACHE", "buffer b1:float32[] in CACHE")
    run(program(*X4, *buffers, *lines), p0=np.arange(4, dtype=np.float32), p1=out)
    assert out[0] == 16


def test_scans_and_casts_of_integers_wrap() -> None:
    out = np.zeros(4, np.int8)
    lines = on_core(
        "copy b0[i0] <- p0[i0] over [i0<4]",
        "scan b1[i0]:int64 = sum b0[i0] along i0 over [i0<4]",
        "map b2[i0]:int8 = cast [b1[i0]] over [i0<4]",
        "copy p1[i0] <- b2[i0] over [i0<4]",
    )
    buffers = [f"buffer b{i}:{t}[4] in CACHE" for i, t in enumerate(("int8", "int64", "int8"))]
    source = program("param p0:int8[4] in", "param p1:int8[4] out", *buffers, *lines)
    run(source, p0=np.array([100, 100, 1, 1], np.int8), p1=out)
    assert out.tolist() == [100, -56, -55, -54]


def test_gathered_positions_are_checked() -> None:
    def gathered(positions: list[int]) -> list[float]:
        lines = on_core(
            "copy b0[i0] <- p1[i0] over [i0<3]",
            "gather b1[i0]:float32 = p0[0] axis=0 at b0[i0] extent=4 over [i0<3]",
            "copy p2[i0] <- b1[i0] over [i0<3]",
        )
        params = ("param p0:float32[4] in", "param p1:int64[3] in", "param p2:float32[3] out")
        buffers = ("buffer b0:int64[3] in CACHE", "buffer b1:float32[3] in CACHE")
        out = np.zeros(3, np.float32)
        data = np.arange(4, dtype=np.float32)
        run(program(*params, *buffers, *lines), p0=data, p1=np.array(positions), p2=out)
        return out.tolist()

    assert gathered([0, -1, 3]) == [0, 3, 3]
    with pytest.raises(IndexOutOfRange, match=r"index 4 .*outside axis of 4"):
        gathered([0, 4, 3])
    with pytest.raises(IndexOutOfRange, match="index -5"):
        gathered([-5, 0, 0])


# -- rings -----------------------------------------------------------------------------------------------------------
def ringed(cube: tuple[str, ...], vector: tuple[str, ...]) -> ir.Program:
    lines = (
        "param p0:float32[8] in",
        "param p1:float32[8] out",
        "buffer a:float32[2] in UB",
        "buffer b:float32[2] in UB",
        "step:",
        "  ring r:float32[2] depth=2 in GM from cube to vector",
        "  on cube:",
        "    parallel c < 1:",
        *("      " + line for line in cube),
        "  on vector:",
        "    parallel c < 1:",
        *("      " + line for line in vector),
    )
    return program(*lines)


SEND = ("for t from 0 to 8 step 2:", "  copy a[i0] <- p0[t+i0] over [i0<2]", "  put r <- a")
RECEIVE = ("for t from 0 to 8 step 2:", "  take b <- r", "  copy p1[t+i0] <- b[i0] over [i0<2]")


def test_bodies_exchange_tiles_in_order() -> None:
    """Twice as many tiles as the ring has slots: both sides must wait for each other."""
    data, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    found = run(ringed(SEND, RECEIVE), p0=data, p1=out)
    assert np.array_equal(out, data)
    assert (found.gm_read, found.gm_written) == (2 * 32, 2 * 32)
    assert traffic.gm_bytes(ringed(SEND, RECEIVE)) == traffic.Traffic(64, 64, 64)


@pytest.mark.parametrize(
    ("cube", "vector", "problem"),
    [
        (SEND, (RECEIVE[0].replace("8", "10"), *RECEIVE[1:2]), "deadlock: vector"),
        ((SEND[0].replace("8", "10"), SEND[2]), RECEIVE, "still holds 1 tiles"),
        ((SEND[0].replace("8", "14"), SEND[2]), RECEIVE, "deadlock: cube"),
    ],
)
def test_unbalanced_rings_are_found(cube: tuple[str, ...], vector: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ExecutionError, match=problem):
        run(ringed(cube, vector), p0=np.zeros(8, np.float32), p1=np.zeros(8, np.float32))


# -- arguments -------------------------------------------------------------------------------------------------------
def test_arguments_must_fit() -> None:
    source = program(*X4, "buffer b0:float32[4] in CACHE", *on_core("copy b0[i0] <- p0[i0] over [i0<4]"))
    good = np.zeros(4, np.float32)
    for wrong in (np.zeros(5, np.float32), np.zeros(4), np.zeros((4, 1), np.float32)):
        with pytest.raises(ArgumentError, match="p0"):
            run(source, p0=wrong, p1=good)
    with pytest.raises(ArgumentError, match="p1: no argument"):
        run(source, p0=good)


def test_strided_arguments_are_read_where_they_lie() -> None:
    F = GraphBuilder("strided")
    x = F.input("x", F32, (6, 5))
    F.output(F.add(x, 1.0))
    array = np.arange(120, dtype=np.float32).reshape(10, 12)[::-2, 1:11:2].T[::-1].T[:5]
    wanted = np.vstack([array, array[:1]])
    assert np.array_equal(execute(F.build(), [wanted]).outputs[0], wanted + 1)


# -- whole graphs ----------------------------------------------------------------------------------------------------
def check(graph: Graph, inputs: list[np.ndarray], machine: str, tolerance: float = 64, strict: bool = False) -> None:
    """The interpreter agrees with the reference; what is counted statically is what moved; everything fits."""
    with np.errstate(all="ignore"):
        found = execute(graph, inputs, MACHINES[machine], strict=strict, order=interpreter.shuffled(1))
        expected = evaluate.run(graph, inputs)
    for launch in found.launches:
        counted = traffic.gm_bytes(launch.program, found.sizes)
        assert (counted.read, counted.written) == (launch.run.gm_read, launch.run.gm_written)
        assert launch.overflow is None, str(launch.overflow)
    for actual, wanted in zip(found.outputs, expected, strict=True):
        assert_close(np.asarray(actual), np.asarray(wanted), tolerance)


def example(name: str) -> tuple[Graph, list[np.ndarray]]:
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    function, inputs = importlib.import_module(name).build()
    traced = trace(function, [(key, array.dtype, array.shape) for key, array in inputs.items()], name)
    return traced.graph, list(inputs.values())


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.full) for n in SLOW)])
def test_examples(name: str, machine: str) -> None:
    graph, inputs = example(name)
    check(graph, inputs, machine, tolerance=256)


@pytest.mark.parametrize("name", ["softmax", "layernorm_gelu", "adamw"])
def test_rows_cross_global_memory_once(name: str) -> None:
    graph, inputs = example(name)
    found = execute(graph, inputs)
    (launch,) = found.launches
    assert found.traffic.total <= 1.05 * traffic.compulsory(launch.kernel, found.sizes)
    assert found.traffic.intermediate == 0


def test_a_contraction_with_its_epilogue_writes_its_output_once() -> None:
    graph, inputs = example("matmul_add_relu")
    found = execute(graph, inputs)
    assert found.traffic.written == found.outputs[0].nbytes
    assert found.traffic.intermediate == 0


@settings(unhurried, max_examples=60)
@given(random_graph(most=8))
def test_random_graphs(case: tuple[Graph, list[np.ndarray]]) -> None:
    for machine in MACHINES:
        check(*case, machine, tolerance=512, strict=True)


@pytest.mark.full
@unhurried
@given(random_graph(most=16))
def test_larger_random_graphs(case: tuple[Graph, list[np.ndarray]]) -> None:
    for machine in MACHINES:
        check(*case, machine, tolerance=512, strict=True)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
def test_open_extents(rows: int, machine: str) -> None:
    """One graph with open extents serves all sizes: elementwise, row softmax, a contraction with its epilogue."""
    m, n = dims.symbol("m"), dims.symbol("n")
    rng = np.random.default_rng(0)
    F = GraphBuilder("open")
    x, w, b = F.input("x", F32, (m, n)), F.input("w", F32, (n, 48)), F.input("b", F32, (48,))
    F.output(F.tanh(F.mul(x, 2.0)))
    F.output(F.softmax(x))
    F.output(F.relu(F.add(F.matmul(x, w), b)))
    for columns in (1, 7, 64, 1000) if rows < 1000 else (1, 70):
        arrays = [rng.standard_normal(s).astype(np.float32) for s in ((rows, columns), (columns, 48), (48,))]
        check(F.build(), arrays, machine, tolerance=4096)


def test_a_written_input_is_not_read_again() -> None:
    """The output's storage is the input's: no walk along the rows may read what an earlier one has stored."""
    n = dims.symbol("n")
    F = GraphBuilder("mutate")
    x = F.input("x", F32, (4, n))
    doubled = F.mul(x, 2.0)
    F.output(F.div(doubled, F.sum(doubled, axes=(1,), keepdims=True)))
    F.output(F.add(doubled, x), writes="x")
    array = np.random.default_rng(0).standard_normal((4, 9000)).astype(np.float32)
    graph = F.build()
    expected = evaluate.run(graph, [array])
    launch = execute(graph, [array]).launches[0]
    outputs = [p.name for p in launch.program.params if p.role == "out"]
    source = next(p.name for p in launch.program.params if p.role == "in")
    shared = array.copy()
    arguments = dict(zip(outputs, (np.zeros_like(array), shared), strict=True)) | {source: shared}
    interpreter.run(launch.program, arguments)
    for name, wanted in zip(outputs, expected, strict=True):
        assert_close(arguments[name], wanted, 64)


def test_the_order_of_chunks_does_not_matter() -> None:
    graph, inputs = example("softmax")
    first = execute(graph, inputs).outputs[0]
    for seed in range(3):
        assert np.array_equal(execute(graph, inputs, order=interpreter.shuffled(seed)).outputs[0], first)


def test_counts() -> None:
    F = GraphBuilder("count")
    x = F.input("x", F32, (100, 10))
    F.output(F.exp(x))
    (launch,) = execute(F.build(), [np.zeros((100, 10), np.float32)], CPU).launches
    assert launch.run.moved == {(GM, "CACHE"): 4000, ("CACHE", GM): 4000}
    assert launch.run.peak["CACHE"] <= CPU.spaces["CACHE"].bytes
    assert launch.run.executed["core"] >= 3
