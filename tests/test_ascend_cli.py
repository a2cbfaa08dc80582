"""Ascend targets on the command line: runs on the AI Core model, files for a device, the matrix of what is computed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autofusion import api, dims
from autofusion.cli import compare, files
from autofusion.cli.main import main
from autofusion.dtypes import DType
from autofusion.errors import FormatError, TargetError
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.evaluate import run as reference
from autofusion.graph.ir import Graph
from autofusion.jit import ascend
from autofusion.kinds import Kind
from autofusion.ops import TABLE
from autofusion.runtime import acl, aicore
from autofusion.runtime.ascend import AscendExecutable
from autofusion.targets.ascend import support
from autofusion.targets.ascend.support import Way

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
F32 = DType.FLOAT32
modelled = pytest.mark.skipif(aicore.unavailable() is not None, reason=f"{aicore.unavailable()}")
ADDED = {"machine": str, "no_device": str, "model_us": float, "counters": dict}
COUNTERS = {
    "launches": int,
    "barriers": int,
    "gm_read": int,
    "gm_written": int,
    "gm_bytes": int,
    "workspace_bytes": int,
    "moved": dict,
    "onchip_peak": dict,
    "cores": int,
}


class Output:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command in this process, on a machine without a device."""
    for name in (acl.LIBRARY_VARIABLE, "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str | Path) -> Output:
        capsys.readouterr()
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return Output(code, printed.out, printed.err)

    return run


def document(ops: list[dict[str, Any]], **tensors: list[Any]) -> dict[str, Any]:
    """An op-sequence whose inputs are the tensors and whose output is y."""
    return {
        "format": "autofusion-opseq",
        "version": 1,
        "name": "small",
        "tensors": {name: {"shape": shape, "dtype": "float32"} for name, shape in tensors.items()},
        "inputs": list(tensors),
        "ops": ops,
        "outputs": ["y"],
    }


@pytest.fixture
def model(tmp_path: Path) -> Any:
    """Write an op-sequence and give its path."""

    def write(content: dict[str, Any]) -> Path:
        path = tmp_path / "model.json"
        path.write_text(json.dumps(content))
        return path

    return write


def op(kind: str, *inputs: str, into: str = "y", **attributes: Any) -> dict[str, Any]:
    return {"type": kind, "inputs": list(inputs), "outputs": [into], "attributes": attributes}


SOFTMAX = document([op("softmax", "x", axis=-1)], x=[16, 64])


# -- run -------------------------------------------------------------------------------------------------------------
@modelled
def test_json_of_a_run(cli: Any, model: Any) -> None:
    path = model(SOFTMAX)
    shown = cli("run", path, "--target", "ascend910b", "--check", "--json")
    found = shown.json
    assert shown.code == 0 and found["ok"] and found["checked"]
    keys = set(cli("run", path, "--check", "--json").json)
    assert keys | set(ADDED) == set(found)
    assert {key: type(found[key]) for key in ADDED} == ADDED
    assert {key: type(found["counters"][key]) for key in found["counters"]} == COUNTERS
    assert (found["machine"], found["launches"], found["fallbacks"], found["repeat"]) == ("model", 1, [], 1)
    assert found["no_device"].startswith("libascendcl.so: not found")
    counters = found["counters"]
    assert counters["gm_bytes"] == found["gm_bytes"] == counters["gm_read"] + counters["gm_written"]
    assert counters["moved"] == {"GM->UB": counters["gm_read"], "UB->GM": counters["gm_written"]}
    assert 0 < counters["onchip_peak"]["UB"] <= api.find_target("ascend910b").spaces["UB"].bytes
    assert found["model_us"] > api.find_target("ascend910b").launch_us / 2


@modelled
def test_people_are_told_that_it_is_a_model(cli: Any, model: Any) -> None:
    shown = cli("run", model(SOFTMAX), "--target", "ascend910b", "--check", "--compare", "unfused")
    assert shown.code == 0
    for words in ("on the AI Core model; untested on hardware", "modelled", "5 launches", "times the fused run", "ok,"):
        assert words in shown.out
    assert "worker" not in shown.out and "median of" not in shown.out


@modelled
def test_repeat_times_more_runs(cli: Any, model: Any) -> None:
    found = cli("run", model(SOFTMAX), "--target", "ascend910b", "--repeat", "2", "--json").json
    assert found["repeat"] == 2 and found["median_ms"] > 0


@modelled
def test_op_by_op_is_compared_by_modelled_time_and_bytes(cli: Any, model: Any) -> None:
    found = cli("run", model(SOFTMAX), "--target", "ascend950", "--compare", "unfused", "--json").json
    unfused = found["unfused"]
    assert (unfused["launches"], unfused["groups"], unfused["counters"]["launches"]) == (5, 5, 5)
    assert unfused["counters"]["gm_bytes"] == unfused["gm_bytes"] == found["gm_bytes_unfused"]
    assert unfused["gm_bytes"] > found["gm_bytes"]
    assert unfused["ratio"] == pytest.approx(unfused["model_us"] / found["model_us"])


def fan_out() -> Graph:
    """Values that several operators read, equal operators on other values, a fold in parts, results in the middle."""
    F = GraphBuilder("fan")
    x, y = (F.input(name, F32, (4, 96)) for name in "xy")
    a, b = F.exp(x), F.exp(y)
    c = F.mul(a, b)
    F.output(F.sum(c, axes=(1,), keepdims=True))
    F.output(F.exp(F.sub(c, a)))
    F.output(c)
    return F.build()


@modelled
def test_op_by_op_computes_the_same() -> None:
    graph = fan_out()
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((4, 96)).astype(np.float32) for _ in "xy"]
    _, executable = compare.unfused(graph, "ascend910b", "default")
    assert isinstance(executable, AscendExecutable)
    assert len(executable.sources) == 6
    assert len({source.text for source in executable.sources}) == 4, "equal operators are one source"
    for found, expected in zip(executable(arrays), reference(graph, arrays), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def hosted() -> Graph:
    """The host sorts in the middle: two launches, and values that cross from one to the other."""
    F = GraphBuilder("two")
    x = F.input("x", F32, (4, 32))
    a = F.mul(x, 2.0)
    F.output(F.add(F.sort_values(F.exp(a)), F.neg(a)))
    return F.build()


@modelled
def test_a_fallback_between_two_launches() -> None:
    graph = hosted()
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    compiled = api.compile_graph(graph, "ascend910b")
    np.testing.assert_allclose(compiled(x), reference(graph, [x])[0], rtol=1e-5, atol=1e-4)
    assert (compiled.stats["launches"], compiled.stats["fallbacks"]) == (2, 1)
    counters = compiled.executable.counters  # type: ignore[attr-defined]
    assert counters.launches == 2 and counters.workspace_bytes > 0


@modelled
def test_a_graph_that_the_host_runs_alone(cli: Any, model: Any) -> None:
    content = document([op("matmul", "a", "b")], a=[4, 8], b=[8, 4])
    for tensor in content["tensors"].values():
        tensor["dtype"] = "int32"
    path = model(content)
    shown = cli("run", path, "--target", "ascend910b", "--check", "--compare", "unfused", "--json")
    found = shown.json
    assert shown.code == 0 and found["fallbacks"] == ["y (matmul)"]
    assert (found["launches"], found["gm_bytes"], found["gm_bytes_unfused"], found["counters"]) == (0, 0, 0, None)
    assert cli("run", path, "--target", "ascend910b").code == 0


@modelled
def test_strided_inputs_and_names_of_the_launchs_own() -> None:
    F = GraphBuilder("strided")
    x = F.input("workspace", F32, (4, 32), strides=(64, 2))
    F.output(F.add(x, F.input("status", F32, (32,))))
    graph = F.build()
    whole = np.arange(4 * 64, dtype=np.float32).reshape(4, 64)
    arrays = [whole[:, ::2], np.ones(32, np.float32)]
    np.testing.assert_array_equal(api.compile_graph(graph, "ascend910b")(*arrays), arrays[0] + 1)


def test_without_a_compiler_and_without_a_device(cli: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    shown = cli("run", model(SOFTMAX), "--target", "ascend910b", "--check")
    assert (shown.code, shown.out) == (2, "") and shown.err.count("\n") == 1
    for words in ("autofusion: error: target ascend910b", "no C++ compiler found", "libascendcl.so: not found"):
        assert words in shown.err
    assert cli("emit", model(SOFTMAX), "--stage", "source", "--target", "ascend910b").code == 0
    assert cli("env", "--json").json["aicore_model"].startswith("no C++ compiler")


def test_a_target_without_a_generator() -> None:
    target = api.find_target("ascend910b")
    with pytest.raises(TargetError, match="Ascend C is generated for ascend910b, ascend950"):
        ascend.architecture(type(target)("ascend1", "ascend", 1))


@modelled
def test_the_benchmark(tmp_path: Path) -> None:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    command = [sys.executable, "-m", "benchmarks", "ascend", "small_softmax", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=True)
    (found,) = json.loads(done.stdout)["cases"]
    assert found["ok"] and found["fused"]["launches"] == 1 and found["unfused"]["launches"] == 5
    assert found["fused"]["gm_bytes"] == found["gm_bytes_compulsory"] < found["unfused"]["gm_bytes"]
    assert found["ratio"] > 1


# -- files for a device ----------------------------------------------------------------------------------------------
HEADER = """
#pragma once
#include <cstddef>
#include <cstdint>
typedef int aclError;
typedef void* aclrtBinHandle;
typedef void* aclrtFuncHandle;
typedef void* aclrtStream;
struct aclrtBinaryLoadOptions;
struct aclrtLaunchKernelCfg;
enum aclrtMemMallocPolicy { ACL_MEM_MALLOC_HUGE_FIRST };
enum aclrtMemcpyKind { ACL_MEMCPY_HOST_TO_DEVICE = 1, ACL_MEMCPY_DEVICE_TO_HOST = 2 };
constexpr aclError ACL_SUCCESS = 0;
extern "C" {
const char* aclGetRecentErrMsg();
aclError aclrtBinaryLoadFromFile(const char*, aclrtBinaryLoadOptions*, aclrtBinHandle*);
aclError aclrtBinaryGetFunction(const aclrtBinHandle, const char*, aclrtFuncHandle*);
aclError aclrtLaunchKernelV2(aclrtFuncHandle, uint32_t, const void*, size_t, aclrtLaunchKernelCfg*, aclrtStream);
aclError aclrtMalloc(void**, size_t, aclrtMemMallocPolicy);
aclError aclrtMemset(void*, size_t, int32_t, size_t);
aclError aclrtMemcpy(void*, size_t, const void*, size_t, aclrtMemcpyKind);
aclError aclrtSynchronizeStream(aclrtStream);
aclError aclrtFree(void*);
}
"""


def open_chain() -> Graph:
    F = GraphBuilder("open")
    F.output(F.exp(F.add(F.input("int", F32, (dims.symbol("rows"), 64)), F.input("b.c", F32, (64,)))))
    return F.build()


def alike_names() -> Graph:
    F = GraphBuilder("alike")
    F.output(F.add(F.input("a.b", F32, (8, 16)), F.input("a_b", F32, (16,))), None)
    return F.build()


def product() -> Graph:
    F = GraphBuilder("product")
    F.output(F.gelu(F.matmul(F.input("a", F32, (64, 32)), F.input("b", F32, (32, 64)))))
    return F.build()


def lookup() -> Graph:
    F = GraphBuilder("lookup")
    F.output(F.gather(F.input("table", F32, (8, 64)), F.input("ids", DType.INT64, (5,))))
    return F.build()


@pytest.mark.parametrize("make", [open_chain, product, lookup, hosted], ids=lambda f: f.__name__)
@pytest.mark.parametrize("target", ["ascend910b", "ascend950"])
def test_the_launcher_compiles(make: Any, target: str, tmp_path: Path) -> None:
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        pytest.skip("no C++ compiler on this system: the launcher was not checked")
    (tmp_path / "acl").mkdir()
    (tmp_path / "acl" / "acl.h").write_text(HEADER)
    made = api.emit_files(make(), target)
    files.write_folder(str(tmp_path / "out"), made)
    launchers = [name for name in made if name.endswith("_launcher.cpp")]
    assert len(launchers) == (2 if make is hosted else 1)
    for name in launchers:
        flags = ["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", str(tmp_path)]
        done = subprocess.run([compiler, *flags, str(tmp_path / "out" / name)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_what_a_launcher_has() -> None:
    made = api.emit_files(open_chain(), "ascend950")
    assert set(made) == {"open.asc", "open_tiling.h", "open_launcher.cpp", "build.sh"}
    assert "int64_t s0;  // rows" in made["open_tiling.h"]
    assert "//   intGm: int\n//   b_cGm: b.c\n" in made["open_launcher.cpp"]
    assert "--npu-arch=dav-3510" in made["build.sh"] and "open.asc" in made["build.sh"]
    assert "aclrtMalloc(&workspace.address" in api.emit_files(product(), "ascend910b")["product_launcher.cpp"]
    assert "is out of range" in api.emit_files(lookup(), "ascend910b")["lookup_launcher.cpp"]


def test_values_of_alike_names_are_other_parameters() -> None:
    text = api.emit_files(alike_names(), "ascend910b")["alike_launcher.cpp"]
    assert "void* a_bGm,\n    void* a_bGm1,\n" in text


def test_emit_writes_a_folder(cli: Any, model: Any, tmp_path: Path) -> None:
    words = ("emit", model(SOFTMAX), "--stage", "source", "--target", "ascend910b")
    out = tmp_path / "out"
    shown = cli(*words, "--out", out)
    assert shown.code == 0
    names = ["small.asc", "small_tiling.h", "small_launcher.cpp", "build.sh"]
    assert shown.out.splitlines() == [str(out / name) for name in names]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    assert (out / "small.asc").read_text() == cli(*words).out
    assert (out / "build.sh").stat().st_mode & 0o100
    again = cli(*words, "--out", out)
    assert again.code == 2 and "is there already" in again.err
    assert "cannot be written" in cli(*words, "--out", "/no/such/folder/out").err


def test_a_folder_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Path.write_text

    def failing(path: Path, text: str, **options: Any) -> int:
        if path.name == "b":
            raise OSError(28, "No space left on device")
        return written(path, text, **options)

    monkeypatch.setattr(Path, "write_text", failing)
    with pytest.raises(FormatError, match="No space left"):
        files.write_folder(str(tmp_path / "out"), {"a": "1", "b": "2"})
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    (tmp_path / "empty").mkdir()
    files.write_folder(str(tmp_path / "empty"), {"a": "1"})
    assert (tmp_path / "empty" / "a").read_text() == "1"
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    with pytest.raises(FormatError, match="is there already"):
        files.write_folder(str(tmp_path / "link"), {"a": "1"})


# -- the matrix ------------------------------------------------------------------------------------------------------
def test_the_matrix_counts() -> None:
    matrix = support.matrix(api.find_target("ascend910b"))
    assert [each.row.name for each in matrix] == [row.name for row in TABLE]
    assert sum(each.best in (Way.NATIVE, Way.COMPOSED) for each in matrix) >= 120


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("add", "float32", Way.NATIVE),
        ("add", "float16", Way.CAST),
        ("add", "int64", Way.SCALAR),
        ("add", "float64", Way.NOT),
        ("gelu", "float32", Way.COMPOSED),
        ("softmax", "bfloat16", Way.CAST),
        ("matmul", "float16", Way.NATIVE),
        ("matmul", "int32", Way.NOT),
        ("transpose", "float32", Way.NATIVE),
        ("gather", "float32", Way.SCALAR),
        ("argsort", "float32", Way.NOT),
    ],
)
def test_ways(name: str, dtype: str, expected: Way) -> None:
    assert support.way(TABLE.get(name), DType(dtype), api.find_target("ascend910b")) is expected


ROWS = [row for row in TABLE if row.kind is not Kind.COMM]  # in a world of one device they are copies
SAMPLED = (DType.FLOAT32, DType.INT32, DType.BFLOAT16, DType.BOOL, DType.INT8)


@pytest.mark.parametrize("number", range(len(SAMPLED)), ids=lambda n: SAMPLED[n].value)
def test_the_matrix_says_what_compiling_does(number: int) -> None:
    """Every fifth row for each type, all of them for float32: what is not computed falls back, and nothing else."""
    dtype, target = SAMPLED[number], api.find_target("ascend910b")
    rows = ROWS if number == 0 else ROWS[number :: len(SAMPLED)]
    for row in (row for row in rows if dtype in row.dtypes):
        compilation = api.lower_graph(support.example(row, dtype), target)
        hosted = [node.op for group in compilation.partition.groups if group.host for node in group.nodes]
        way = support.way(row, dtype, target)
        assert bool(hosted) == (way is Way.NOT), f"{row.name} on {dtype}: {way}, but the host runs {hosted}"


def test_ops_of_a_target(cli: Any) -> None:
    found = cli("ops", "--target", "ascend910b", "--json").json
    rows = {row["name"]: row for row in found["rows"]}
    assert set(rows) == {row.name for row in TABLE}
    assert rows["exp"]["ways"]["float32"] == rows["exp"]["best"] == "native"
    assert sum(found["best"].values()) == len(rows)
    shown = cli("ops", "--target", "ascend950", "--kind", "scan").out
    assert "cumsum" in shown and "S scalar unit" in shown and "4 operators on ascend950" in shown
