"""The command line: every command, every bad input, exit codes, what is printed where."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import autofusion
from autofusion import api
from autofusion.cli import check, compare, files, inputs, terminal
from autofusion.cli.main import COMMANDS, main
from autofusion.dtypes import DType
from autofusion.frontends import opseq
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.evaluate import run as reference_run
from autofusion.jit import cache as caching
from autofusion.ops import TABLE
from autofusion.runtime import aicore
from autofusion.tile import traffic

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
GROUPS = {  # the most groups that an example may have
    "softmax": 1,
    "layernorm_gelu": 1,
    "matmul_add_relu": 1,
    "adamw": 1,
    "longtail200": 3,
    "transformer_block": 12,
    "model200": 60,
}


class Output:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command in this process."""

    def run(*words: str | Path) -> Output:
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:  # argparse's way out
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return Output(code, printed.out, printed.err)

    return run


def document(**changes: Any) -> dict[str, Any]:
    """A small valid op-sequence, with entries replaced."""
    return {
        "format": "autofusion-opseq",
        "version": 1,
        "name": "small",
        "tensors": {"x": {"shape": [4, 8], "dtype": "float32"}},
        "inputs": ["x"],
        "ops": [{"type": "exp", "inputs": ["x"], "outputs": ["y"]}],
        "outputs": ["y"],
    } | changes


def typed(shape: list[Any], dtype: str = "float32", **more: Any) -> dict[str, Any]:
    return {"x": {"shape": shape, "dtype": dtype, **more}}


GATHER = document(
    tensors={
        "table": {"shape": [10, 16], "dtype": "float32", "data": {"random": {"seed": 1}}},
        "ids": {"shape": ["n"], "dtype": "int64"},
    },
    inputs=["ids"],
    ops=[{"type": "gather", "inputs": ["table", "ids"], "outputs": ["rows"]}],
    outputs=["rows"],
)


@pytest.fixture
def model(tmp_path: Path) -> Any:
    """Write an op-sequence and give its path."""

    def write(content: Any = None, name: str = "model.json") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content or document()))
        return path

    return write


def array(folder: Path, values: Any, name: str = "x.npy") -> Path:
    np.save(folder / name, values)
    return folder / name


def process(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "autofusion", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


# -- run -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", GROUPS)
def test_examples_are_one_checked_launch(cli: Any, name: str) -> None:
    shown = cli("run", EXAMPLES / f"{name}.json", "--check", "--repeat", "1", "--json")
    assert (shown.code, shown.err) == (0, "")
    found = shown.json
    assert found["ok"] and found["checked"]
    assert (found["launches"], found["fallbacks"]) == (1, [])
    assert 1 <= found["groups"] <= GROUPS[name]
    assert found["gm_bytes_compulsory"] <= found["gm_bytes"] <= found["gm_bytes_unfused"]
    assert 0 <= found["max_rel_err"] < 1e-3 and found["tolerance_used"] <= 1


@pytest.mark.parametrize("name", ["softmax", "layernorm_gelu", "adamw"])
def test_bytes_are_near_compulsory(cli: Any, name: str) -> None:
    found = cli("explain", EXAMPLES / f"{name}.json", "--json").json
    assert found["gm_bytes"] <= 1.05 * found["gm_bytes_compulsory"]


def test_matmul_writes_its_output_once() -> None:
    compilation = api.lower_graph(opseq.read(EXAMPLES / "matmul_add_relu.json"))
    (group,) = compilation.groups
    moved = traffic.gm_bytes(group.program)
    output = compilation.graph.values[compilation.graph.outputs[0].name]
    assert (moved.written, moved.intermediate) == (output.bytes, 0)


JSON_KEYS = {
    "model": str,
    "target": str,
    "ops": int,
    "groups": int,
    "launches": int,
    "fallbacks": list,
    "compile_ms": float,
    "cache_hits": int,
    "median_ms": float,
    "gm_bytes": int,
    "gm_bytes_unfused": int,
    "constant_bytes": int,
    "packed_bytes": int,
    "max_abs_err": float,
    "max_rel_err": float,
    "stages_ms": dict,
    "ok": bool,
}


def test_json_schema(cli: Any, model: Any) -> None:
    found = cli("run", model(), "--check", "--json").json
    assert {key: type(found[key]) for key in JSON_KEYS} == JSON_KEYS
    stages = found["stages_ms"]
    assert list(stages) == ["read", "passes", "autofuse", "lower", "codegen", "build", "first launch"]
    assert all(spent >= 0 for spent in stages.values())
    inner = sum(stages[name] for name in ("passes", "autofuse", "lower", "codegen", "build"))
    assert found["compile_ms"] == pytest.approx(inner)


def test_unchecked_run_claims_no_error(cli: Any, model: Any) -> None:
    found = cli("run", model(), "--json").json
    assert (found["checked"], found["max_abs_err"], found["max_rel_err"]) == (False, None, None)


def test_second_run_hits_the_cache(cli: Any, model: Any) -> None:
    path = model(document(ops=[{"type": "tanh", "inputs": ["x"], "outputs": ["y"]}]))
    cli("cache", "clear")
    first, second = cli("run", path, "--json").json, cli("run", path, "--json").json
    assert (first["cache_hits"], second["cache_hits"], second["kernels"]) == (0, 1, 1)


def test_wrong_results_exit_1(cli: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = api.Compiled.run
    monkeypatch.setattr(
        api.Compiled, "run", lambda self, a, t=None: [r * np.float32(1.0001) for r in right(self, a, t)]
    )
    shown = cli("run", model(), "--check")
    assert shown.code == 1 and "failed" in shown.out and "times the tolerance" in shown.out
    found = cli("run", model(), "--check", "--json")
    assert found.code == 1 and found.json["ok"] is False


def test_people_see_groups_and_the_check(cli: Any) -> None:
    shown = cli("run", EXAMPLES / "softmax.json", "--check", "--repeat", "1")
    assert "1 operator → 1 group → 1 launch" in shown.out
    assert "max, sub, exp, sum, div" in shown.out and "ok, max abs error" in shown.out


def test_compare_launches_every_operator(cli: Any) -> None:
    found = cli("run", EXAMPLES / "softmax.json", "--compare", "unfused", "--repeat", "2", "--json").json["unfused"]
    assert (found["groups"], found["launches"]) == (5, 5)
    assert found["median_ms"] > 0 and found["ratio"] > 0


def test_op_by_op_computes_the_same(model: Any) -> None:
    graph = opseq.read(EXAMPLES / "layernorm_gelu.json")
    arrays, _ = inputs.prepare(graph, [], [], 0)
    compiled, executable = compare.unfused(graph, "cpu", "default")
    for whole, single in zip(compiled.run(arrays), executable(arrays), strict=True):
        np.testing.assert_array_equal(whole, single)
    assert executable.counts.launches == len(executable.plan.calls) > compiled.executable.counts.launches == 1


def test_inputs_from_files_and_results_to_a_file(cli: Any, model: Any, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    out = tmp_path / "out.npz"
    shown = cli("run", model(), "--input", f"x={array(tmp_path, values)}", "--save", out)
    assert shown.code == 0
    with np.load(out) as saved:
        assert list(saved) == ["y"]
        np.testing.assert_allclose(saved["y"], np.exp(values), rtol=1e-6)


def test_seed_decides_the_inputs(cli: Any, model: Any, tmp_path: Path) -> None:
    def result(seed: int) -> Any:
        cli("run", model(), "--seed", str(seed), "--save", tmp_path / "out.npz")
        return np.load(tmp_path / "out.npz")["y"]

    assert np.array_equal(result(1), result(1)) and not np.array_equal(result(1), result(2))


@pytest.mark.parametrize("shape", ["n=3", "x=3,8"])
def test_open_dimensions_take_sizes(cli: Any, model: Any, shape: str) -> None:
    path = model(document(tensors=typed(["n", 8])))
    found = cli("run", path, "--shape", shape, "--check", "--json").json
    assert found["ok"] and found["outputs"] == {"y": "float32[3, 8]"} and found["sizes"] == {"n": 3}
    assert found["gm_bytes"] == 2 * 3 * 8 * 4


def test_writes_start_from_the_same_values(cli: Any, model: Any, tmp_path: Path) -> None:
    path = model(
        document(ops=[{"type": "mul", "inputs": ["x", 2], "outputs": ["y"]}], outputs=[{"name": "y", "writes": "x"}])
    )
    values = array(tmp_path, np.ones((4, 8), np.float32))
    shown = cli("run", path, "--input", f"x={values}", "--check", "--repeat", "5", "--save", tmp_path / "out.npz")
    assert shown.code == 0
    assert np.all(np.load(tmp_path / "out.npz")["y"] == 2) and np.all(np.load(values) == 1)


@pytest.mark.parametrize(
    "tensors",
    [
        typed([4, 8], "bfloat16"),
        typed([4, 8], "float16"),
        typed([4, 8], "float64"),
        typed([], "float32"),
        typed([0, 8]),
        typed([4, 8], strides=[1, 4]),
        typed([4, 8], strides=[-8, 1]),
        typed([4, 8], strides=[0, 1]),
    ],
    ids=lambda t: "-".join(str(v) for v in t["x"].values()),
)
def test_types_and_layouts(cli: Any, model: Any, tmp_path: Path, tensors: Any) -> None:
    shown = cli("run", model(document(tensors=tensors)), "--check", "--save", tmp_path / "o.npz")
    assert shown.code == 0, shown.err + shown.out


def test_communication_splits_groups(cli: Any, model: Any) -> None:
    ops = [
        {"type": "exp", "inputs": ["x"], "outputs": ["a"]},
        {"type": "all_reduce", "inputs": ["a"], "outputs": ["b"]},
        {"type": "exp", "inputs": ["b"], "outputs": ["y"]},
    ]
    shown = cli("explain", model(document(ops=ops)), "--json")
    assert len(shown.json["groups"]) == 3
    assert cli("run", model(document(ops=ops)), "--check").code == 0
    ops[1]["attributes"] = {"world_size": 2}
    assert_refused(cli("run", model(document(ops=ops))), "world")


def test_threads_change_nothing(cli: Any, tmp_path: Path) -> None:
    results = []
    for threads in ("1", "2"):
        cli(
            "run", EXAMPLES / "layernorm_gelu.json", "--threads", threads, "--repeat", "1", "--save", tmp_path / "o.npz"
        )
        results.append(np.load(tmp_path / "o.npz")["gelu"])
    np.testing.assert_array_equal(*results)


# -- the check -------------------------------------------------------------------------------------------------------
def cancelling() -> Any:
    """sum(x) - sum(y): what is left is small beside what was added."""
    f = GraphBuilder("cancelling")
    x, y = f.input("x", DType.FLOAT32, (4096,)), f.input("y", DType.FLOAT32, (4096,))
    f.output(f.sub(f.sum(x, axes=(0,)), f.sum(y, axes=(0,)), name="z"))
    return f.build()


def test_tolerances_follow_cancellation() -> None:
    graph = cancelling()
    x = np.random.default_rng(0).uniform(1, 2, 4096).astype(np.float32)
    y = (x + np.float32(1e-3)).astype(np.float32)
    (exact,) = reference_run(graph, [x, y])
    (right,) = check.compare(graph, [x, y], [exact])
    (near,) = check.compare(graph, [x, y], [exact + np.float32(2**-10)])  # an ulp or two of the sums
    (wrong,) = check.compare(graph, [x, y], [exact + np.float32(1.0)])
    assert right.share == 0 and near.ok and not wrong.ok


def test_integers_are_compared_exactly() -> None:
    f = GraphBuilder("integers")
    f.output(f.add(f.input("x", DType.INT64, (3,)), f.input("y", DType.INT64, (3,)), name="z"))
    graph = f.build()
    x = np.array([1 << 60, 2, 3])
    right = x + x
    wrong = right + np.array([1, 0, 0])
    assert check.compare(graph, [x, x], [right])[0].ok
    assert not check.compare(graph, [x, x], [wrong])[0].ok


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_must_agree(value: float) -> None:
    f = GraphBuilder("specials")
    f.output(f.neg(f.input("x", DType.FLOAT32, (2,)), name="y"))
    graph = f.build()
    x = np.array([value, 1], np.float32)
    assert check.compare(graph, [x], [-x])[0].ok
    assert not check.compare(graph, [x], [np.array([0, -1], np.float32)])[0].ok
    assert not check.compare(graph, [np.ones(2, np.float32)], [np.array([value, -1], np.float32)])[0].ok


# -- bad input -------------------------------------------------------------------------------------------------------
def assert_refused(shown: Output, *words: str) -> None:
    """Exit code 2, one line on standard error that holds the words, nothing else."""
    assert shown.code == 2, shown.out + shown.err
    assert shown.out == ""
    assert shown.err.startswith("autofusion: error: ") and shown.err.count("\n") == 1, shown.err
    for word in words:
        assert word in shown.err, shown.err


BAD_MODELS = {
    "corrupt": ('{"format": "autofusion-opseq", ', "corrupt JSON at line 1"),
    "no text": ("", "corrupt JSON"),
    "not an op-sequence": ("{}", "format"),
    "unknown op": (document(ops=[{"type": "expp", "inputs": ["x"], "outputs": ["y"]}]), "ops[0] (expp)"),
    "empty graph": (document(ops=[]), "ops: is empty"),
    "cyclic": (
        document(
            ops=[
                {"type": "add", "inputs": ["x", "y"], "outputs": ["a"]},
                {"type": "exp", "inputs": ["a"], "outputs": ["y"]},
            ]
        ),
        "cyclic",
    ),
    "element type": (document(tensors=typed([4, 8], "float31")), "float31"),
    "element type of an op": (document(tensors=typed([4, 8], "int32")), "ops[0] (exp)"),
    "shape": (document(tensors=typed([-4, 8])), "shape[0]"),
    "shapes that do not fit": (
        document(ops=[{"type": "matmul", "inputs": ["x", "x"], "outputs": ["y"]}]),
        "ops[0] (matmul)",
    ),
    "attribute": (
        document(ops=[{"type": "softmax", "inputs": ["x"], "outputs": ["y"], "attributes": {"axes": 1}}]),
        "axes",
    ),
}


@pytest.mark.parametrize("command", ["run", "explain", "partition", "emit"])
@pytest.mark.parametrize("case", BAD_MODELS)
def test_bad_models(cli: Any, model: Any, command: str, case: str) -> None:
    content, word = BAD_MODELS[case]
    more = ["--stage", "graph"] if command == "emit" else []
    assert_refused(cli(command, model(content), *more), "model.json", word)


@pytest.mark.parametrize("name", ["none.json", "model.bin", "model", "model.json/"])
def test_bad_files(cli: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    assert_refused(cli("run", f"{tmp_path}/{name}"), name.rstrip("/"))
    if not name.startswith(("none", "model.json")):
        assert ".json (an op-sequence)" in cli("run", f"{tmp_path}/{name}").err


def test_bad_inputs(cli: Any, model: Any, tmp_path: Path) -> None:
    path = model()
    wrong_shape = array(tmp_path, np.ones((5, 8), np.float32), "shape.npy")
    wrong_type = array(tmp_path, np.ones((4, 8)), "type.npy")
    (tmp_path / "junk.npy").write_text("junk")
    np.savez(tmp_path / "two.npz", a=np.ones(2))
    assert_refused(cli("run", path, "--input", f"x={wrong_shape}"), "axis 0 of x is 5, expected 4")
    assert_refused(cli("run", path, "--input", f"x={wrong_type}"), "float64", "float32")
    assert_refused(cli("run", path, "--input", f"z={wrong_type}"), "'z' is no input")
    assert_refused(cli("run", path, "--input", f"x={tmp_path / 'junk.npy'}"), "not a .npy file")
    assert_refused(cli("run", path, "--input", f"x={tmp_path / 'two.npz'}"), "several arrays")
    assert_refused(cli("run", path, "--input", f"x={tmp_path / 'none.npy'}"), "No such file")
    assert_refused(cli("run", path, "--input", "x"), "NAME=FILE")


def test_bad_shapes(cli: Any, model: Any, tmp_path: Path) -> None:
    path = model(document(tensors=typed(["n", 8])))
    assert_refused(cli("run", path), "open dimension n", "--shape n=SIZE")
    for shape, word in (("n", "NAME=SIZES"), ("n=a", "NAME=SIZES"), ("n=-1", "NAME=SIZES"), ("q=3", "'q'")):
        assert_refused(cli("run", path, "--shape", shape), word)
    assert_refused(cli("run", path, "--shape", "x=3"), "2 dimensions")
    assert_refused(cli("run", path, "--shape", "x=3,9"), "axis 1 of x is 9, expected 8")
    assert_refused(cli("run", path, "--shape", "n=3", "--shape", "x=4,8"), "n is 4 here and 3 before")
    values = array(tmp_path, np.ones((4, 8), np.float32))
    assert_refused(cli("run", path, "--shape", "n=3", "--input", f"x={values}"), "n is 4 here and 3 before")
    assert_refused(cli("run", path, "--shape", f"n={1 << 46}"), "this machine has")


def test_index_out_of_range_at_run_time(cli: Any, model: Any, tmp_path: Path) -> None:
    path = model(GATHER)
    good, bad = array(tmp_path, np.array([0, -10, 9]), "good.npy"), array(tmp_path, np.array([0, 1, 10]), "bad.npy")
    assert cli("run", path, "--input", f"ids={good}", "--check").code == 0
    assert cli("run", path, "--shape", "n=100", "--check").code == 0  # random indices are in range
    assert_refused(cli("run", path, "--input", f"ids={bad}"), "rows", "position 2", "out of range")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "COMMAND"),
        (("frob",), "frob"),
        (("run",), "FILE"),
        (("run", "MODEL", "--repeat", "0"), "--repeat"),
        (("run", "MODEL", "--threads", "x"), "--threads"),
        (("run", "MODEL", "--seed", "-1"), "--seed"),
        (("run", "MODEL", "--compare", "x"), "--compare"),
        (("run", "MODEL", "--numerics", "loose"), "default or strict"),
        (("run", "MODEL", "--target", "pdp11"), "unknown target 'pdp11'"),
        (("run", "MODEL", "--target", "cpu:aarch64:neoverse-v1"), "cannot run on this machine"),
        (("run", "MODEL", "--target", "ascend910b", "--threads", "2"), "workers are a CPU's"),
        (("run", "MODEL", "--save", "out.txt"), ".npz"),
        (("run", "MODEL", "--save", "/no/such/folder/out.npz"), "cannot be written"),
        (("partition", "MODEL", "-o", "/no/such/folder/plan.json"), "cannot be written"),
        (("emit", "MODEL"), "--stage"),
        (("emit", "MODEL", "--stage", "blueprint"), "blueprint"),
        (("emit", "MODEL", "--stage", "asm", "--cpu", "pdp11"), "pdp11"),
        (("emit", "MODEL", "--stage", "asm", "--cpu", "avx2", "--target", "ascend910b"), "one of the two"),
        (("emit", "MODEL", "--stage", "llvm", "--target", "ascend910b"), "Ascend C: stage source"),
        (("emit", "MODEL", "--stage", "asm", "--target", "ascend950"), "Ascend C: stage source"),
        (("emit", "MODEL", "--stage", "source", "--out", "d"), "for --stage source and an Ascend target"),
        (("emit", "MODEL", "--stage", "tile", "--target", "ascend950", "--out", "d"), "not for --stage tile"),
        (("emit", "MODEL", "--stage", "source", "--target", "ascend950", "--out", "d", "-o", "f"), "one of the two"),
        (("ops", "--kind", "magic"), "magic"),
        (("ops", "--target", "cpu"), "the matrix is of Ascend targets"),
        (("cache",), "ACTION"),
        (("cache", "eat"), "eat"),
    ],
    ids=" ".join,
)
def test_bad_arguments(cli: Any, model: Any, words: tuple[str, ...], expected: str) -> None:
    path = str(model())
    assert_refused(cli(*(path if word == "MODEL" else word for word in words)), expected)


def test_faults_are_one_line_too(cli: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(api, "compile_graph", broken)
    assert_refused(cli("run", model()), "internal fault, RuntimeError: two lines", "--debug")
    shown = cli("run", model(), "--debug")
    assert shown.code == 2 and "Traceback" in shown.err


# -- the other commands ----------------------------------------------------------------------------------------------
def test_explain(cli: Any) -> None:
    shown = cli("explain", EXAMPLES / "transformer_block.json")
    assert shown.code == 0
    for word in ("30 operators", "1 launch", "Not fused, and why", "What fusion did", "contractions", "compulsory"):
        assert word in shown.out
    assert "fused " in cli("explain", EXAMPLES / "softmax.json", "--all").out


def test_explain_counts_parts(cli: Any) -> None:
    hot, tail = cli("explain", EXAMPLES / "model200.json", "--json").json["parts"]
    assert (hot["name"], hot["operators"]) == ("contractions", 20)
    assert tail["operators"] >= 180 and tail["onchip"] > 0.8 * tail["operators"]


@pytest.mark.parametrize("target", ["cpu", "ascend910b", "ascend950"])
@pytest.mark.parametrize("name", GROUPS)
def test_partition(cli: Any, tmp_path: Path, name: str, target: str) -> None:
    out = tmp_path / "plan.json"
    shown = cli("partition", EXAMPLES / f"{name}.json", "-o", out, "--target", target)
    assert shown.code == 0 and str(out.name) in shown.out.replace("\n", "")
    plan = json.loads(out.read_text())
    assert (plan["format"], plan["version"]) == ("autofusion-partition", 1)
    grouped = [operator for group in plan["groups"] for operator in group["operators"]]
    made = {operator["name"] for operator in plan["operators"]}
    assert len(set(grouped)) == len(grouped) and set(grouped) <= made
    known = {t["name"] for t in plan["inputs"] + plan["constants"] + plan["scalars"]}
    ready: set[str] = set()
    for group in plan["groups"]:  # in an order of execution
        assert set(group["reads"]) <= known | ready | {o["name"] for o in plan["operators"] if o["type"] in VIEWS}
        assert all(earlier < group["group"] for earlier in group["after"])
        ready |= set(group["writes"])
    ordered = [number for entry in plan["order"] for phase in entry["launch"] for number in phase]
    assert set(ordered) == set(range(len(plan["groups"])))


VIEWS = {row.name for row in TABLE if row.view is not None}


def test_partition_names_the_source_operators(cli: Any) -> None:
    plan = cli("partition", EXAMPLES / "softmax.json").json
    assert plan["groups"][0]["sources"] == ["softmax"]
    assert {operator["source"] for operator in plan["operators"]} == {"softmax"}


@pytest.mark.parametrize("stage", ["graph", "kernel", "tile", "plan"])
@pytest.mark.parametrize("target", ["cpu", "ascend910b"])
def test_emit_stages(cli: Any, stage: str, target: str) -> None:
    shown = cli("emit", EXAMPLES / "softmax.json", "--stage", stage, "--target", target)
    assert shown.code == 0
    assert {"graph": "exp", "kernel": "fold v0", "tile": "copy", "plan": "call k0"}[stage] in shown.out


@pytest.mark.parametrize(
    ("cpu", "register"),
    [("aarch64:neoverse-v1", "v0.4s"), ("avx2", "ymm"), ("sse2", "xmm"), ("avx512", "zmm"), ("host", "ret")],
)
@pytest.mark.parametrize("name", ["softmax", "matmul_add_relu", "longtail200"])
def test_emit_assembly_for_other_cpus(cli: Any, name: str, cpu: str, register: str) -> None:
    shown = cli("emit", EXAMPLES / f"{name}.json", "--stage", "asm", "--cpu", cpu)
    assert shown.code == 0 and register in shown.out
    if cpu == "sse2":
        assert "ymm" not in shown.out
    if cpu == "avx2":
        assert "zmm" not in shown.out


def test_emit_to_a_file(cli: Any, tmp_path: Path) -> None:
    shown = cli("emit", EXAMPLES / "softmax.json", "--stage", "llvm", "-o", tmp_path / "k.ll")
    assert (shown.code, shown.out) == (0, "") and "define" in (tmp_path / "k.ll").read_text()


def test_ops(cli: Any) -> None:
    rows = cli("ops", "--json").json
    assert {row["name"] for row in rows} == {row.name for row in TABLE}
    assert "softmax" in cli("ops").out
    assert {row["kind"] for row in cli("ops", "--kind", "scan", "--json").json} == {"scan"}


def test_targets(cli: Any) -> None:
    rows = {row["name"]: row for row in cli("targets", "--json").json}
    assert (rows["cpu"]["does"], rows["cpu:aarch64:neoverse-v1"]["does"]) == ("runs", "emits")
    assert rows["ascend910b"]["does"] == ("emits" if aicore.unavailable() else "modelled")
    assert any(space["name"] == "UB" for space in rows["ascend910b"]["spaces"])
    assert "neoverse-v1" in cli("targets").out


def test_env(cli: Any) -> None:
    found = cli("env", "--json").json
    assert found["autofusion"] == autofusion.__version__ and found["workers"] >= 1
    assert found["cache"]["folder"] == os.environ["AUTOFUSION_CACHE_DIR"]
    assert "AUTOFUSION_NUM_THREADS" in cli("env").out


def test_cache(cli: Any, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFUSION_CACHE_DIR", str(tmp_path / "cache"))
    assert cli("cache", "ls", "--json").json["entries"] == []
    cli("run", model())
    (entry,) = cli("cache", "ls", "--json").json["entries"]
    assert entry["key"][:16] in cli("cache", "ls").out
    assert cli("cache", "verify").code == 0
    path = tmp_path / "cache" / f"{entry['key']}.afc"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    shown = cli("cache", "verify")
    assert shown.code == 1 and "removed" in shown.out and not path.exists()
    caching.default_cache().clear()
    cli("run", model())
    assert cli("cache", "clear", "--json").json == {"removed": 1}
    assert cli("cache", "ls", "--json").json["entries"] == []


def test_cache_in_memory_only(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFUSION_CACHE_DIR", "")
    assert "memory only" in cli("cache", "ls").out and cli("cache", "verify").code == 0


def test_every_command_explains_itself(cli: Any) -> None:
    for command in COMMANDS:
        shown = cli(command.name, "--help")
        assert shown.code == 0 and "usage: autofusion" in shown.out
    assert cli("--version").out == f"autofusion {autofusion.__version__}\n"


# -- files, pipes, signals -------------------------------------------------------------------------------------------
def test_no_half_written_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goal = tmp_path / "out.npz"
    goal.write_bytes(b"before")

    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(autofusion.AutofusionError, match="No space left"):
        files.write(str(goal), b"after")
    assert goal.read_bytes() == b"before" and [p.name for p in tmp_path.iterdir()] == ["out.npz"]


def test_a_failed_run_saves_nothing(cli: Any, model: Any, tmp_path: Path) -> None:
    bad = array(tmp_path, np.array([99]), "bad.npy")
    assert_refused(cli("run", model(GATHER), "--input", f"ids={bad}", "--save", tmp_path / "out.npz"))
    assert not (tmp_path / "out.npz").exists()


def test_bfloat16_is_saved_as_float32(tmp_path: Path) -> None:
    values = np.array([1.5, -2.25], ml_dtypes.bfloat16)
    (tmp_path / "o.npz").write_bytes(files.npz({"a": values, "s": np.float32(3).reshape(())}))
    with np.load(tmp_path / "o.npz") as saved:
        assert saved["a"].dtype == np.float32 and saved["a"].tolist() == [1.5, -2.25]
        assert saved["s"].shape == ()


def test_module_entry_point(model: Any) -> None:
    done = process("run", model(), "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["ok"] and done.stderr == ""
    done = process("run", "none.json")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_broken_pipe() -> None:
    command = f"{sys.executable} -m autofusion ops --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[", "")


def test_interrupt_exits_130(tmp_path: Path) -> None:
    path = EXAMPLES / "softmax.json"
    command = [sys.executable, "-m", "autofusion", "run", str(path), "--repeat", "100000000"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(3)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (130, "", "")


def test_progress_is_for_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress("compiling") as advance:
        advance("kernels", 1, 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1,023 B"), (1024, "1.00 KiB"), (1 << 20, "1.00 MiB"), (3 << 40, "3.00 TiB")]
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert terminal.size(count) == text
