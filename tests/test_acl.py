"""The Ascend device path against a stub of ACL that records every call and checks ownership; no hardware is needed."""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import re
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autofusion import api, dims
from autofusion.cli.main import main
from autofusion.dtypes import Array, DType
from autofusion.errors import ArgumentError, AutofusionError, DeviceError, TargetError
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.jit.cache import Cache
from autofusion.runtime import acl
from autofusion.runtime.ascend import AscendExecutable

pytestmark = pytest.mark.filterwarnings("ignore::autofusion.runtime.acl.HardwareWarning")

SOURCE = 'extern "C" __global__ __aicore__ void twice_kernel(GM_ADDR x, GM_ADDR y, GM_ADDR workspace, Tiling t) {}'
TWO = SOURCE + '\nextern "C" __global__ __aicore__ void idle_kernel(GM_ADDR workspace) {}'
X = np.arange(24, dtype=np.float32).reshape(4, 6)
Y = np.full((4, 6), -1, np.float32)
COUNT = np.int64(X.size).tobytes()
CLEAN = "live memory=0 stream=0 binary=0 program=0 device=0 init=0"


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/acl_stub/stub.c, under the names of both libraries."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler on this system: the Ascend device path was not checked")
    library = tmp_path_factory.mktemp("acl") / "libascendcl.so"
    source = Path(__file__).parent / "acl_stub" / "stub.c"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", str(library), str(source)], check=True)
    library.with_name("libacl_rtc.so").symlink_to(library.name)
    return library


class Stub:
    """The stub of one test: its log, and how to make it fail."""

    def __init__(self, library: Path, log: Path) -> None:
        self.path, self.log = library, log
        self.library = ctypes.CDLL(str(library))
        self.library.stub_reset(str(log).encode())

    def fail(self, name: str, nth: int = 1, code: int = 507899, text: str = "injected") -> None:
        """Make the `nth` call of `name` fail."""
        self.library.stub_fail(name.encode(), nth, code, text.encode())

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def names(self) -> list[str]:
        return [line.split()[0] for line in self.lines()]

    def wrong(self) -> list[str]:
        return [line for line in self.lines() if line.startswith("WRONG")]

    def live(self) -> str:
        self.library.stub_live()
        return self.lines()[-1]


@pytest.fixture
def stub(stub_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """A fresh stub as the installation; at the end nothing may be left, and no call may have been wrong."""
    monkeypatch.setenv(acl.LIBRARY_VARIABLE, str(stub_library))
    made = Stub(stub_library, tmp_path / "calls.log")
    yield made
    for opened in list(acl._DEVICES.values()):
        opened.close()
    assert made.live() == CLEAN
    assert made.wrong() == []


def run_twice(device: acl.Device | None = None, x: Array = X, y: Array = Y) -> list[Array]:
    tiling = np.int64(x.size).tobytes()
    return acl.run(SOURCE, "twice_kernel", 2201, [x, y], tiling, 8, 64, outputs=[-1], on=device)


# Compiled graphs


def twice() -> Graph:
    """What the stub's kernel computes: its entry is `twice_launch`, its tiling data the one open dimension."""
    F = GraphBuilder("twice")
    F.output(F.mul(F.input("x", DType.FLOAT32, (dims.symbol("n"),)), 2.0))
    return F.build()


def test_a_compiled_graph_runs_on_the_device(stub: Stub) -> None:
    compiled = api.compile_graph(twice(), "ascend910b")
    executable = compiled.executable
    assert isinstance(executable, AscendExecutable) and executable.on_device and executable.why is None
    for size in (24, 40):
        x = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(compiled(x), 2 * x)
    assert executable.counters is None and compiled.stats["launches"] == 2
    found = Counter(stub.names())
    assert (found["aclrtcCompileProg"], found["aclrtBinaryLoadFromData"], found["aclrtLaunchKernelWithConfig"]) == (
        1,
        1,
        2,
    )
    first = stub.names().index("aclrtMalloc")
    assert [line for line in stub.lines()[first:] if "Memcpy" in line][:2] == [
        "aclrtMemcpy memory#1 96 host 96 1",
        "aclrtMemcpy host 96 memory#2 96 2",
    ]


def test_no_more_blocks_than_the_device_has_cores(stub: Stub) -> None:
    compiled = api.compile_graph(twice(), "ascend950")
    assert isinstance(compiled.executable, AscendExecutable) and compiled.executable.sources[0].blocks == 64
    np.testing.assert_array_equal(compiled(X.reshape(-1)), 2 * X.reshape(-1))
    F = GraphBuilder("mm")
    F.output(F.matmul(F.input("a", DType.FLOAT32, (1024, 64)), F.input("b", DType.FLOAT32, (64, 1024))))
    api.compile_graph(F.build(), "ascend950").run([np.ones((1024, 64), np.float32), np.ones((64, 1024), np.float32)])
    launches = [line.split()[2] for line in stub.lines() if line.startswith("aclrtLaunchKernelWithConfig")]
    assert launches == ["40", "20"]


def test_a_compiled_binary_comes_from_the_cache(stub: Stub) -> None:
    x = np.arange(8, dtype=np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(api.compile_graph(twice(), "ascend910b")(x), 2 * x)
    assert Counter(stub.names())["aclrtcCompileProg"] <= 1


def test_a_device_that_was_closed_gets_the_binary_again(stub: Stub) -> None:
    compiled, x = api.compile_graph(twice(), "ascend910b"), np.arange(8, dtype=np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(compiled(x), 2 * x)
        acl.device().close()
    assert Counter(stub.names())["aclrtBinaryLoadFromData"] == 2


@pytest.mark.parametrize(
    "name", ["aclrtMalloc", "aclrtMemcpy", "aclrtLaunchKernelWithConfig", "aclrtSynchronizeStream"]
)
def test_a_launch_that_fails_leaves_nothing(stub: Stub, name: str) -> None:
    compiled, x = api.compile_graph(twice(), "ascend910b"), np.arange(8, dtype=np.float32)
    stub.fail(name, nth=1)
    with pytest.raises(DeviceError, match=f"{name} returned 507899: injected"):
        compiled(x)
    np.testing.assert_array_equal(compiled(x), 2 * x)
    acl.device().close()
    assert stub.live() == CLEAN


def moves(stub: Stub) -> list[str]:
    """What is copied and launched, in order: `to SIZE`, `launch`, `from SIZE`."""
    found = []
    for line in stub.lines():
        name, *words = line.split()
        if name == "aclrtMemcpy":
            found.append(f"{'to' if words[-1] == '1' else 'from'} {words[3]}")
        elif name == "aclrtLaunchKernelWithConfig":
            found.append("launch")
    return found


def test_a_status_that_a_kernel_may_write(stub: Stub) -> None:
    F = GraphBuilder("lookup")
    F.output(F.gather(F.input("table", DType.FLOAT32, (8, 64)), F.input("ids", DType.INT64, (5,))))
    compiled = api.compile_graph(F.build(), "ascend910b")
    compiled.run([np.zeros((8, 64), np.float32), np.zeros(5, np.int64)])
    assert sorted(moves(stub)[:3]) == sorted([f"to {8 * 64 * 4}", "to 40", "to 4096"])
    assert sorted(moves(stub)[3:]) == sorted(["launch", f"from {5 * 64 * 4}", "from 4096"])


def test_values_that_cross_from_one_launch_to_the_next(stub: Stub) -> None:
    F = GraphBuilder("two")
    x = F.input("x", DType.FLOAT32, (8, 32))
    F.output(F.mul(F.sort_values(F.exp(x)), 2.0))
    compiled = api.compile_graph(F.build(), "ascend910b")
    compiled.run([np.ones((8, 32), np.float32)])
    done = moves(stub)
    assert done.count("launch") == 2
    sizes = [int(move.split()[1]) for move in done if move != "launch"]
    assert max(sizes) > 4096, "the workspace"
    assert done.count(f"to {max(sizes)}") == done.count(f"from {max(sizes)}") == 2


def test_a_run_on_the_command_line(stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "twice.json"
    entry = {"type": "add", "inputs": ["x", "x"], "outputs": ["y"]}
    model.write_text(
        json.dumps(
            {
                "format": "autofusion-opseq",
                "version": 1,
                "name": "twice",
                "tensors": {"x": {"shape": ["n"], "dtype": "float32"}},
                "inputs": ["x"],
                "ops": [entry],
                "outputs": ["y"],
            }
        )
    )
    words = ["run", str(model), "--shape", "n=24", "--target", "ascend910b", "--check", "--repeat", "3"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["machine"], found["no_device"], found["model_us"], found["counters"]) == ("device", None, None, None)
    assert found["ok"] and found["checked"] and found["repeat"] == 3 and found["workers"] is None
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "an Ascend device; this path is untested on hardware" in shown and "median of 3" in shown


# The happy path


def test_call_order_and_arguments(stub: Stub) -> None:
    with acl.Device() as device:
        (result,) = run_twice(device)
        assert (device.soc, device.aicores, device.vector_cores) == ("Ascend910B3", 20, 40)
    np.testing.assert_array_equal(result, 2 * X)
    assert stub.lines() == [
        "aclInit null",
        "aclrtGetDeviceCount",
        "aclrtSetDevice 0",
        "aclrtGetCurrentContext",
        "aclrtCreateStream",
        "aclrtGetDeviceInfo 0 101",
        "aclrtGetDeviceInfo 0 201",
        "aclrtcCreateProg twice_kernel.asc 0",
        "aclrtcCompileProg program#1 --npu-arch=dav-2201",
        "aclrtcGetBinDataSize program#1",
        "aclrtcGetBinData program#1",
        "aclrtcDestroyProg program#1",
        f"aclrtBinaryLoadFromData {len(SOURCE)} 2 0x43554245",
        "aclrtBinaryGetFunction binary#1 twice_kernel",
        "aclrtMalloc 96 0",
        "aclrtMemcpy memory#1 96 host 96 1",
        "aclrtMalloc 96 0",
        "aclrtMemcpy memory#2 96 host 96 1",
        "aclrtMalloc 64 0",
        "aclrtMemset memory#3 64 0 64",
        "aclrtKernelArgsInit function#1",
        "aclrtKernelArgsAppend args#1 8 memory#1",
        "aclrtKernelArgsAppend args#1 8 memory#2",
        "aclrtKernelArgsAppend args#1 8 memory#3",
        "aclrtKernelArgsAppend args#1 8 value",
        "aclrtKernelArgsFinalize args#1",
        "aclrtLaunchKernelWithConfig function#1 8 stream#1 null args#1 null",
        "aclrtSynchronizeStream stream#1",
        "aclrtMemcpy host 96 memory#2 96 2",
        "aclrtFree memory#3",
        "aclrtFree memory#2",
        "aclrtFree memory#1",
        "aclrtBinaryUnLoad binary#1",
        "aclrtDestroyStream stream#1",
        "aclrtResetDevice 0",
        "aclFinalize",
    ]


def test_the_callers_arrays_stay_as_they_are(stub: Stub) -> None:
    x, y = X.copy(), Y.copy()
    x.flags.writeable = False
    (result,) = run_twice(x=x, y=y)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)
    assert not np.shares_memory(result, y)


def test_a_kernel_without_workspace_and_tiling(stub: Stub) -> None:
    (result,) = acl.run(TWO, "idle_kernel", 2201, [X], b"", 1, outputs=[0])
    np.testing.assert_array_equal(result, X)
    assert [line for line in stub.lines() if "Append" in line] == ["aclrtKernelArgsAppend args#1 8 memory#1"]


def test_any_layout_goes_in_by_its_elements(stub: Stub) -> None:
    (result,) = run_twice(x=X.T)
    np.testing.assert_array_equal(result.reshape(X.T.shape), 2 * X.T)


def test_the_device_is_opened_once(stub: Stub) -> None:
    run_twice()
    run_twice()
    assert acl.device() is acl.device()
    assert stub.names().count("aclInit") == stub.names().count("aclrtCreateStream") == 1


def test_a_device_can_be_opened_again(stub: Stub) -> None:
    first = acl.device()
    first.close()
    first.close()
    assert acl.device() is not first
    run_twice()
    assert stub.names().count("aclInit") == 2


def test_two_devices_in_one_thread(stub: Stub) -> None:
    stub.library.stub_set_devices(2)
    with acl.Device(0) as zero, acl.Device(1) as one:
        for device in (zero, one, zero):
            np.testing.assert_array_equal(run_twice(device)[0], 2 * X)
    assert stub.names().count("aclInit") == stub.names().count("aclFinalize") == 1


def test_another_thread_works_in_the_devices_context(stub: Stub) -> None:
    results: list[Array] = []
    device = acl.device()
    thread = threading.Thread(target=lambda: results.extend(run_twice(device)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(results[0], 2 * X)
    assert "aclrtSetCurrentContext context#1" in stub.lines()


@pytest.mark.parametrize("nbytes", [[], [8]])
def test_a_thread_may_close_what_another_opened(stub: Stub, nbytes: list[int]) -> None:
    device = acl.Device()
    for each in nbytes:
        acl.Buffer(device, each)
    thread = threading.Thread(target=device.close)
    thread.start()
    thread.join()
    assert stub.live() == CLEAN


def test_two_kernels(stub: Stub) -> None:
    binary = acl.compile_kernel(TWO, ["twice_kernel", "idle_kernel"], 3510)
    with acl.Device() as device:
        first, second = acl.Kernel(device, binary, "twice_kernel"), acl.Kernel(device, binary, "idle_kernel")
        x, y = acl.Buffer(device, X.nbytes), acl.Buffer(device, X.nbytes)
        x.write(X)
        first.launch(4, [x, y], COUNT)
        second.launch(1, [x])
        result = np.empty_like(X)
        y.read(result)
        np.testing.assert_array_equal(result, 2 * X)
    assert stub.names().count("aclrtSynchronizeStream") == 1
    assert stub.names()[-7:] == [
        *("aclrtFree", "aclrtFree", "aclrtBinaryUnLoad", "aclrtBinaryUnLoad"),
        *("aclrtDestroyStream", "aclrtResetDevice", "aclFinalize"),
    ]
    assert "aclrtcCompileProg program#1 --npu-arch=dav-3510" in stub.lines()


def test_the_magic_number_follows_the_core(stub: Stub) -> None:
    with acl.Device() as device:
        acl.Kernel(device, b"twice_kernel", "twice_kernel", acl.Core.VECTOR)
    assert "aclrtBinaryLoadFromData 12 2 0x41415246" in stub.lines()


def test_zero_bytes(stub: Stub) -> None:
    empty = np.empty((0, 3), np.float32)
    (result,) = acl.run(TWO, "idle_kernel", 2201, [empty, empty], b"", 1, 0, outputs=[1])
    assert result.shape == (0, 3)
    assert stub.names().count("aclrtKernelArgsAppend") == 3
    assert stub.lines().count("aclrtMalloc 32 0") == 3
    assert not {"aclrtMemcpy", "aclrtMemset"} & set(stub.names())


def test_a_buffer_goes_only_after_the_launches_that_may_use_it(stub: Stub) -> None:
    with acl.Device() as device:
        kernel = acl.Kernel(device, SOURCE.encode(), "twice_kernel")
        x, y = acl.Buffer(device, X.nbytes), acl.Buffer(device, X.nbytes)
        kernel.launch(1, [x, y], COUNT)
        x.close()
        kernel.launch(1, [y, y], COUNT)
        kernel.close()
    names = stub.names()
    assert names.index("aclrtSynchronizeStream") < names.index("aclrtFree")
    assert names.count("aclrtSynchronizeStream") == 2


def test_somebody_elses_session_is_left_alone(stub: Stub) -> None:
    stub.library.stub_set_foreign_init(1)
    with acl.Device() as device:
        np.testing.assert_array_equal(run_twice(device)[0], 2 * X)
    assert "aclFinalize" not in stub.names()
    stub.library.stub_set_foreign_init(0)


# Failures

RELEASES = {
    "aclrtcDestroyProg",
    "aclrtFree",
    "aclrtBinaryUnLoad",
    "aclrtDestroyStream",
    "aclrtResetDevice",
    "aclFinalize",
}
HAPPY = {
    "aclrtKernelArgsAppend": 4,
    "aclrtMalloc": 3,
    "aclrtFree": 3,
    "aclrtMemcpy": 3,
    "aclrtGetDeviceInfo": 2,
    **dict.fromkeys(
        (
            *("aclInit", "aclFinalize", "aclrtGetDeviceCount", "aclrtSetDevice", "aclrtResetDevice"),
            *("aclrtGetCurrentContext", "aclrtCreateStream", "aclrtDestroyStream", "aclrtSynchronizeStream"),
            *("aclrtMemset", "aclrtBinaryLoadFromData", "aclrtBinaryGetFunction", "aclrtBinaryUnLoad"),
            *("aclrtKernelArgsInit", "aclrtKernelArgsFinalize", "aclrtLaunchKernelWithConfig"),
            *("aclrtcCreateProg", "aclrtcCompileProg", "aclrtcGetBinDataSize", "aclrtcGetBinData"),
            "aclrtcDestroyProg",
        ),
        1,
    ),
}
"""How often a run over two arrays, from opening the device to closing it, calls each function."""


def test_the_failures_below_are_all_there_are(stub: Stub) -> None:
    with acl.Device() as device:
        run_twice(device)
    assert Counter(stub.names()) == HAPPY
    bound = set(re.findall(r"(\w+)\(", acl._RUNTIME + acl._COMPILER))
    elsewhere = {"aclrtSetCurrentContext", "aclrtcGetCompileLogSize", "aclrtcGetCompileLog"}
    assert bound == set(HAPPY) | elsewhere


@pytest.mark.parametrize(("name", "nth"), [(name, nth + 1) for name, count in HAPPY.items() for nth in range(count)])
def test_each_call_that_fails(stub: Stub, name: str, nth: int) -> None:
    stub.fail(name, nth, 507011, f"{name} was made to fail")
    with pytest.raises(DeviceError) as caught, acl.Device() as device:
        run_twice(device)
    error = caught.value
    assert (error.call, error.code) == (name, 507011)
    assert error.text.startswith(f"{name} was made to fail")
    assert str(error).startswith(f"{name} returned 507011: {name} was made to fail")
    assert isinstance(error, AutofusionError)
    assert stub.live() == CLEAN
    if name not in RELEASES:
        failed = next(line for line in stub.lines() if line.endswith("-> 507011"))
        after = set(stub.names()[stub.lines().index(failed) + 1 :]) - {"live"}
        logs = {"aclrtcGetCompileLogSize", "aclrtcGetCompileLog"}
        assert after <= RELEASES | {"aclrtSynchronizeStream"} | (logs if name == "aclrtcCompileProg" else set())


@pytest.mark.parametrize("name", ["aclrtFree", "aclrtBinaryUnLoad", "aclrtDestroyStream"])
def test_a_release_that_fails_does_not_hide_the_error_before_it(stub: Stub, name: str) -> None:
    stub.fail("aclrtLaunchKernelWithConfig", text="too many blocks")
    stub.fail(name, text="and this too")
    with pytest.raises(DeviceError, match="too many blocks") as caught, acl.Device() as device:
        run_twice(device)
    assert caught.value.__notes__ == [f"and, while releasing: {name} returned 507899: and this too"]


def test_a_function_that_is_not_there_unloads_the_binary(stub: Stub) -> None:
    device = acl.device()
    stub.fail("aclrtBinaryGetFunction", text="no such kernel")
    with pytest.raises(DeviceError, match="no such kernel"):
        acl.Kernel(device, SOURCE.encode(), "twice_kernel")
    assert " binary=0 " in stub.live()


def test_a_copy_that_fails_frees_the_memory_of_the_run(stub: Stub) -> None:
    device = acl.device()
    stub.fail("aclrtMemcpy", 2)
    with pytest.raises(DeviceError, match="aclrtMemcpy"):
        run_twice(device)
    assert stub.live().startswith("live memory=0 stream=1 binary=0 program=0")
    np.testing.assert_array_equal(run_twice(device)[0], 2 * X)


def test_a_second_device_that_does_not_open_leaves_the_first_at_work(stub: Stub) -> None:
    stub.library.stub_set_devices(2)
    stub.fail("aclrtCreateStream", 2)
    with acl.Device(0) as device:
        with pytest.raises(DeviceError, match="aclrtCreateStream"):
            acl.Device(1)
        np.testing.assert_array_equal(run_twice(device)[0], 2 * X)


def test_an_error_of_the_caller_releases_everything(stub: Stub) -> None:
    with pytest.raises(KeyError), acl.Device() as device:
        acl.Buffer(device, 64)
        acl.Kernel(device, SOURCE.encode(), "twice_kernel").launch(1, [acl.Buffer(device, 64)] * 2, bytes(8))
        raise KeyError
    assert stub.live() == CLEAN


def test_a_thread_that_gets_no_context(stub: Stub) -> None:
    device, caught = acl.device(), list[DeviceError]()
    stub.fail("aclrtSetCurrentContext")

    def work() -> None:
        with pytest.raises(DeviceError) as info:
            acl.Buffer(device, 8)
        caught.append(info.value)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert caught[0].call == "aclrtSetCurrentContext"


def test_no_message(stub: Stub) -> None:
    stub.fail("aclrtMalloc", text="")
    with pytest.raises(DeviceError, match="aclrtMalloc returned 507899: no message"):
        run_twice()


def test_errors_cross_processes() -> None:
    error = pickle.loads(pickle.dumps(DeviceError("aclrtMalloc", 7, "no memory")))
    assert (error.call, error.code, error.text, str(error)) == (
        *("aclrtMalloc", 7, "no memory"),
        "aclrtMalloc returned 7: no memory",
    )


# What is refused before ACL is asked


def test_copies_beyond_a_buffer(stub: Stub) -> None:
    with acl.Device() as device, acl.Buffer(device, 95) as buffer:
        with pytest.raises(DeviceError, match="a copy of 96 bytes, the buffer has 95"):
            buffer.write(X)
        with pytest.raises(DeviceError, match="a copy of 96 bytes, the buffer has 95"):
            buffer.read(np.empty_like(X))
        with pytest.raises(ArgumentError, match="contiguous"):
            buffer.read(np.empty((4, 4), np.float32)[:, :2])
    with pytest.raises(ArgumentError, match="-1 bytes"):
        acl.Buffer(device, -1)


def test_use_after_release(stub: Stub) -> None:
    with acl.Device() as device:
        kernel, buffer = acl.Kernel(device, SOURCE.encode(), "twice_kernel"), acl.Buffer(device, 96)
        other = acl.Buffer(device, 96)
        buffer.close()
        buffer.close()
        for use in (lambda: buffer.address, lambda: buffer.write(X), buffer.zero, lambda: kernel.launch(1, [buffer])):
            with pytest.raises(DeviceError, match="used after its aclrtFree"):
                use()
        kernel.close()
        with pytest.raises(DeviceError, match="used after its aclrtBinaryUnLoad"):
            kernel.launch(1, [other])
    with pytest.raises(DeviceError, match="used after its aclrtFree"):
        other.read(np.empty_like(X))
    with pytest.raises(DeviceError, match="device 0 was closed"):
        acl.Buffer(device, 8)


def test_launches_that_make_no_sense(stub: Stub) -> None:
    stub.library.stub_set_devices(2)
    with acl.Device(0) as device, acl.Device(1) as other:
        kernel = acl.Kernel(device, SOURCE.encode(), "twice_kernel")
        for blocks in (0, -1, 1 << 32):
            with pytest.raises(ArgumentError, match="at least 1 block"):
                kernel.launch(blocks, [])
        with pytest.raises(ArgumentError, match="its device's buffers"):
            kernel.launch(1, [acl.Buffer(other, 8)])


def test_a_device_that_is_not_there(stub: Stub) -> None:
    with pytest.raises(DeviceError, match="found 1: there is no device 1"):
        acl.Device(1)
    with pytest.raises(DeviceError, match="there is no device -1"):
        acl.Device(-1)


# Compiling


def test_a_compile_error_shows_the_log(stub: Stub) -> None:
    with pytest.raises(DeviceError) as caught:
        acl.compile_kernel(SOURCE + "\n#error no such thing", ["twice_kernel"], 2201)
    error = caught.value
    assert (error.call, error.code) == ("aclrtcCompileProg", 507000)
    assert error.text == "the compiler found errors\nk.asc:1:1: error: #error no such thing"


@pytest.mark.parametrize("name", ["aclrtcGetCompileLogSize", "aclrtcGetCompileLog"])
def test_a_compile_error_without_a_log(stub: Stub, name: str) -> None:
    stub.fail(name, text="lost")
    with pytest.raises(DeviceError, match=f"no log: {name} returned 507899: lost"):
        acl.compile_kernel(SOURCE + "\n#error", ["twice_kernel"], 2201)


def test_a_binary_in_the_cache_is_not_compiled_again(stub: Stub, tmp_path: Path) -> None:
    for count in (1, 1):
        store = Cache(tmp_path / "cache", 1 << 20)  # as a new process has it
        assert acl.compile_kernel(SOURCE, ["twice_kernel"], 2201, store) == SOURCE.encode()
        assert stub.names().count("aclrtcCompileProg") == count
    acl.compile_kernel(SOURCE, ["twice_kernel"], 3510, store)
    acl.compile_kernel(SOURCE + "\n", ["twice_kernel"], 2201, store)
    assert stub.names().count("aclrtcCompileProg") == 3
    assert [entry.meta["target"] for entry in store.entries()].count("ascend|dav-2201") == 2


def test_another_compiler_has_other_entries(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Cache(tmp_path / "cache", 1 << 20)
    acl.compile_kernel(SOURCE, ["twice_kernel"], 2201, store)
    (tmp_path / "version.cfg").write_text("runtime_running_version=[9.0]")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    acl.compile_kernel(SOURCE, ["twice_kernel"], 2201, store)
    assert stub.names().count("aclrtcCompileProg") == 2


def test_a_damaged_binary_is_built_again(stub: Stub, tmp_path: Path) -> None:
    acl.compile_kernel(SOURCE, ["twice_kernel"], 2201, Cache(tmp_path / "cache", 1 << 20))
    (entry,) = (tmp_path / "cache").glob("*.afc")
    entry.write_bytes(entry.read_bytes()[:-1] + b"!")
    store = Cache(tmp_path / "cache", 1 << 20)
    assert acl.compile_kernel(SOURCE, ["twice_kernel"], 2201, store) == SOURCE.encode()
    assert (stub.names().count("aclrtcCompileProg"), store.stats.rebuilt) == (2, 1)


def test_sources_that_are_refused(stub: Stub) -> None:
    with pytest.raises(TargetError, match="910: expected one of 2201, 3510"):
        acl.compile_kernel(SOURCE, ["twice_kernel"], 910)
    for names in (["other"], ["twice"], ["../twice_kernel"], []):
        with pytest.raises(ArgumentError, match="expected the name of a function in the source"):
            acl.compile_kernel(SOURCE, names, 2201)


DEVICE_ELF = r"\177ELF\002\001\001\000\000\000\000\000\000\000\000\000\001\000\051\020"


@pytest.fixture
def bisheng(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation with that compiler alone; the test writes the script that plays it."""
    (tmp_path / "home" / "lib64").mkdir(parents=True)
    (tmp_path / "home" / "bin").mkdir()
    shutil.copy(stub.path, tmp_path / "home" / "lib64" / "libascendcl.so")
    monkeypatch.delenv(acl.LIBRARY_VARIABLE)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "home"))
    return tmp_path / "home" / "bin" / "bisheng"


def write_script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_bisheng_where_there_is_no_run_time_compiler(bisheng: Path, tmp_path: Path) -> None:
    note = tmp_path / "arguments"
    write_script(bisheng, f'echo "$@" > {note}; pwd >> {note}; cat "$2" >> {note}; printf "{DEVICE_ELF}" > "$4"')
    binary = acl.compile_kernel(SOURCE, ["twice_kernel"], 3510)
    assert binary.startswith(b"\x7fELF")
    arguments, folder, source = note.read_text().splitlines()
    assert arguments == "-c twice_kernel.asc -o kernel.o --npu-arch=dav-3510 --cce-aicore-only"
    assert source == SOURCE
    assert not Path(folder).exists()


def test_bisheng_that_fails(bisheng: Path) -> None:
    write_script(bisheng, "echo 'twice_kernel.asc:1: error: no' >&2; exit 3")
    with pytest.raises(DeviceError, match=r"(?s)bisheng returned 3: .*--npu-arch=dav-2201.*twice_kernel\.asc:1"):
        acl.compile_kernel(SOURCE, ["twice_kernel"], 2201)


@pytest.mark.parametrize("output", ["text", DEVICE_ELF.replace(r"\051\020", r"\076\000")])
def test_bisheng_that_gives_no_device_binary(bisheng: Path, output: str) -> None:
    write_script(bisheng, f'printf "{output}" > "$4"')
    with pytest.raises(DeviceError, match="its output is not a device binary"):
        acl.compile_kernel(SOURCE, ["twice_kernel"], 2201)


def test_no_compiler_at_all(bisheng: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DeviceError, match=r"bisheng: not found .* there is no .*libacl_rtc\.so"):
        acl.compile_kernel(SOURCE, ["twice_kernel"], 2201)


# Whether there is a device


def test_available(stub: Stub) -> None:
    assert acl.unavailable() is None
    assert stub.names() == ["aclInit", "aclrtGetDeviceCount", "aclFinalize"]
    with acl.Device():
        assert acl.unavailable() is None


def test_no_device(stub: Stub) -> None:
    stub.library.stub_set_devices(0)
    assert acl.unavailable() == "no Ascend device: aclrtGetDeviceCount found 0; see `npu-smi info`"


@pytest.mark.parametrize("name", ["aclInit", "aclrtGetDeviceCount", "aclFinalize"])
def test_a_driver_that_does_not_answer(stub: Stub, name: str) -> None:
    stub.fail(name, text="the driver is not running")
    assert acl.unavailable() == f"{name} returned 507899: the driver is not running"


def test_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (acl.LIBRARY_VARIABLE, "ASCEND_HOME_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(tmp_path))
    reason = acl.unavailable()
    assert reason is not None and reason.startswith("libascendcl.so: not found by ASCEND_HOME_PATH")
    with pytest.raises(DeviceError, match="set AUTOFUSION_ACL_LIBRARY"):
        acl.device()


@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "LD_LIBRARY_PATH"])
def test_where_the_library_is_found(variable: str, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (acl.LIBRARY_VARIABLE, "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "lib64"
    folder.mkdir()
    (folder / "libascendcl.so").write_text("not a library")
    monkeypatch.setenv(variable, f"{tmp_path}:{folder}" if variable == "LD_LIBRARY_PATH" else str(tmp_path))
    reason = acl.unavailable()
    assert reason is not None and reason.startswith("libascendcl.so: cannot be loaded: ")
    assert str(folder) in reason


def test_an_old_library(stub_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler
    (tmp_path / "old.c").write_text("int aclInit(const char *path) { return path != 0; }")
    old = tmp_path / "libascendcl.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(old), str(tmp_path / "old.c")], check=True)
    monkeypatch.setenv(acl.LIBRARY_VARIABLE, str(old))
    reason = acl.unavailable()
    assert reason is not None and "a newer CANN is needed" in reason and "aclFinalize" in reason


# Processes


def run_script(stub_library: Path, log: Path, text: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        acl.LIBRARY_VARIABLE: str(stub_library),
        "ACL_STUB_LOG": str(log),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    script = "from autofusion.runtime import acl\n" + textwrap.dedent(text)
    command = [sys.executable, "-W", "always", "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_exit_without_close(stub_library: Path, tmp_path: Path) -> None:
    log = tmp_path / "calls.log"
    done = run_script(
        stub_library,
        log,
        """
        device = acl.device()
        buffer = acl.Buffer(device, 64)
        kernel = acl.Kernel(device, b"idle_kernel", "idle_kernel")
        kernel.launch(1, [buffer])
        acl.Buffer(device, 32)
        """,
    )
    lines = log.read_text().splitlines()
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert lines[-8:] == [
        "aclrtSynchronizeStream stream#1",
        "aclrtFree memory#2",
        "aclrtBinaryUnLoad binary#1",
        "aclrtFree memory#1",
        "aclrtDestroyStream stream#1",
        "aclrtResetDevice 0",
        "aclFinalize",
        CLEAN,
    ]


def test_the_warning_comes_once(stub_library: Path, tmp_path: Path) -> None:
    text = """
        assert acl.unavailable() is None
        print("asked")
        acl.Device().close()
        acl.Device().close()
        acl.device()
        """
    done = run_script(stub_library, tmp_path / "calls.log", text)
    assert done.stdout == "asked\n"
    assert done.stderr.count("HardwareWarning: the Ascend device path is untested on hardware") == 1


def test_a_fork_does_not_inherit_the_device(stub_library: Path, tmp_path: Path) -> None:
    log = tmp_path / "calls.log"
    done = run_script(
        stub_library,
        log,
        """
        import os, sys
        device = acl.device()
        buffer = acl.Buffer(device, 64)
        child = os.fork()
        if child == 0:
            for use in (acl.unavailable, lambda: buffer.zero(), lambda: acl.Device()):
                try:
                    print("child:", use())
                except acl.DeviceError as error:
                    print("child:", error)
            device.close()
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        device.close()
        child = os.fork()
        if child == 0:
            print("a later child:", acl.unavailable())
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("before the fork: start this one with `spawn`") == 3
    assert "a later child: None" in done.stdout
    lines = log.read_text().splitlines()
    assert (lines.count("aclrtFree memory#1"), lines.count("aclFinalize")) == (1, 2)
    assert not [line for line in lines if line.startswith("WRONG")]
    assert lines[-1] == CLEAN


# The stub itself: each check of ownership can fail


@pytest.fixture
def bare(stub_library: Path, tmp_path: Path) -> Iterator[tuple[Stub, dict[str, int]]]:
    """The stub by itself, with a stream, a loaded function and 64 bytes."""
    stub = Stub(stub_library, tmp_path / "calls.log")
    functions = acl._bind(stub_library, acl._RUNTIME, ctypes.c_int32)
    places = {name: ctypes.c_void_p() for name in ("stream", "memory", "binary", "function", "arguments")}
    out = {name: ctypes.byref(place) for name, place in places.items()}
    option = acl._LoadOptions(ctypes.pointer(acl._LoadOption(2, (1,))), 1)
    functions["aclInit"](None)
    functions["aclrtSetDevice"](0)
    functions["aclrtCreateStream"](out["stream"])
    functions["aclrtMalloc"](out["memory"], 64, 0)
    functions["aclrtBinaryLoadFromData"](b"idle", 4, ctypes.byref(option), out["binary"])
    functions["aclrtBinaryGetFunction"](places["binary"], b"idle", out["function"])
    functions["aclrtKernelArgsInit"](places["function"], out["arguments"])
    functions["aclrtKernelArgsFinalize"](places["arguments"])
    yield stub, {name: place.value or 0 for name, place in places.items()}
    stub.library.stub_reset(b"/dev/null")


MISUSE: dict[str, list[tuple[Any, ...]]] = {
    "double free": [("aclrtFree", "memory"), ("aclrtFree", "memory")],
    "unknown pointer": [("aclrtFree", "stream")],
    "beyond any allocation": [("aclrtMemset", "memory", 65, 0, 65)],
    "aclrtMemcpy of 8 bytes into 4": [("aclrtMemcpy", "memory", 4, b"12345678", 8, 1)],
    "which was freed": [("aclrtFree", "memory"), ("aclrtMemset", "memory", 8, 0, 8)],
    "a function whose binary was unloaded": [
        ("aclrtBinaryUnLoad", "binary"),
        ("aclrtLaunchKernelWithConfig", "function", 1, "stream", None, "arguments", None),
    ],
    "a stream that is not live": [("aclrtDestroyStream", "stream"), ("aclrtSynchronizeStream", "stream")],
    "while a launch may use it": [
        ("aclrtLaunchKernelWithConfig", "function", 1, "stream", None, "arguments", None),
        ("aclrtFree", "memory"),
    ],
    "used up": [("aclrtLaunchKernelWithConfig", "function", 1, "stream", None, "arguments", None)] * 2,
    "of 0 bytes": [("aclrtMalloc", None, 0, 0)],
    "with a live stream#1": [("aclrtResetDevice", 0)],
    "with a device in use": [("aclFinalize",)],
    "aclInit twice": [("aclInit", None)],
}


@pytest.mark.parametrize("reason", MISUSE)
def test_the_stub_sees(bare: tuple[Stub, dict[str, int]], reason: str) -> None:
    stub, handles = bare
    functions = acl._bind(stub.path, acl._RUNTIME, ctypes.c_int32)
    for name, *arguments in MISUSE[reason]:
        code = functions[name](*(handles.get(each, each) if isinstance(each, str) else each for each in arguments))
    assert code == 900001
    assert [line for line in stub.wrong() if reason in line]


# The script for users with a device

SCRIPT = Path(__file__).parents[1] / "scripts" / "ascend_device_check.sh"


PLAYED_CLI = """#!/bin/sh
if [ "$1 $2 $3" = "-m autofusion run" ]; then
    echo "HardwareWarning: untested" >&2
    case $4 in
        *good*) echo '{"ok": true, "checked": true, "machine": "device", "compile_ms": 12.5, "median_ms": 0.25,
                       "launches": 1}' ;;
        *modelled*) echo '{"ok": true, "checked": true, "machine": "model", "launches": 1}' ;;
        *unchecked*) echo '{"ok": true, "checked": false, "machine": "device"}' ;;
        *wrong*) echo '{"ok": false, "checked": true, "machine": "device", "max_abs_err": 0.5, "launches": 1}'
                 exit 1 ;;
        *refused*) echo "autofusion: aclrtMalloc returned 207001: out of memory" >&2; exit 2 ;;
        *stuck*) echo started > "$MARKER"; sleep 60 ;;
    esac
    exit
fi
exec "$REAL_PYTHON" "$@"
"""


@pytest.fixture
def check(tmp_path: Path) -> Iterator[tuple[list[str], dict[str, str], Path]]:
    """A command line of the script, its environment, and the empty folder that its report goes to."""
    if shutil.which("bash") is None or shutil.which("timeout") is None:
        pytest.skip("no bash or no timeout on this system: the device script was not checked")
    reports = tmp_path / "reports"
    reports.mkdir()
    player = tmp_path / "python"
    player.write_text(PLAYED_CLI)
    player.chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("ASCEND", acl.LIBRARY_VARIABLE))
    }
    environment |= {
        "PYTHON": str(player),
        "REAL_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "LD_LIBRARY_PATH": "",
        "MARKER": str(tmp_path / "marker"),
    }
    yield [str(SCRIPT), "-o", str(reports / "report.txt")], environment, reports


def test_the_script_without_a_device(check: tuple[list[str], dict[str, str], Path]) -> None:
    command, environment, reports = check
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("ascend_device_check: no device to check: libascendcl.so: not found")
    assert not list(reports.iterdir())


@pytest.mark.parametrize("arguments", [["-x"], ["missing.json"], ["-o", "/nowhere/report.txt"]])
def test_the_script_with_wrong_arguments(check: tuple[list[str], dict[str, str], Path], arguments: list[str]) -> None:
    command, environment, reports = check
    done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr
    assert not list(reports.iterdir())


@pytest.mark.parametrize(
    ("names", "code"), [(["good"], 0), (["good", "wrong", "refused", "unchecked", "modelled", "two words good"], 1)]
)
def test_the_report(
    check: tuple[list[str], dict[str, str], Path], stub_library: Path, tmp_path: Path, names: list[str], code: int
) -> None:
    command, environment, reports = check
    files = [tmp_path / f"{name}.json" for name in names]
    for file in files:
        file.write_text("{}")
    environment |= {acl.LIBRARY_VARIABLE: str(stub_library), "ASCEND_NOTE": "noted"}
    done = subprocess.run([*command, *map(str, files)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[-1] == f"report: {reports / 'report.txt'}"
    assert [path.name for path in reports.iterdir()] == ["report.txt"]
    report = (reports / "report.txt").read_text()
    table = {
        "good": "OK     good: compile_ms 12.5, median_ms 0.25, launches 1",
        "wrong": "FAILED wrong: max_abs_err 0.5, launches 1",
        "refused": "FAILED refused: exit code 2",
        "unchecked": "FAILED unchecked: exit code 0",
        "modelled": "FAILED modelled: on the model, not on a device, launches 1",
        "two words good": "OK     two words good: compile_ms 12.5, median_ms 0.25, launches 1",
    }
    for name in names:
        assert table[name] in report.splitlines()
        assert table[name] in done.stdout.splitlines()
    failed = 4 if code else 0
    assert f"target ascend910b: {failed} of {len(names)} examples failed" in report.splitlines()[0]
    assert "soc Ascend910B3, 20 AI cores, 40 vector cores" in report
    assert "ASCEND_NOTE=noted" in report
    assert ("aclrtMalloc returned 207001: out of memory" in report) == bool(code)


def test_a_stopped_script_leaves_nothing(
    check: tuple[list[str], dict[str, str], Path], stub_library: Path, tmp_path: Path
) -> None:
    command, environment, reports = check
    stuck = tmp_path / "stuck.json"
    stuck.write_text("{}")
    environment |= {acl.LIBRARY_VARIABLE: str(stub_library), "TMPDIR": str(tmp_path / "scratch")}
    (tmp_path / "scratch").mkdir()
    with subprocess.Popen([*command, str(stuck)], env=environment, start_new_session=True) as script:
        deadline = time.monotonic() + 60
        while not (tmp_path / "marker").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(script.pid, signal.SIGINT)
        assert script.wait(30) == 130
    assert not list(reports.iterdir())
    assert not list((tmp_path / "scratch").iterdir())


def test_the_script_is_valid_bash() -> None:
    for tool, arguments in (("bash", ["-n"]), ("shellcheck", [])):
        if found := shutil.which(tool):
            subprocess.run([found, *arguments, str(SCRIPT)], check=True)
