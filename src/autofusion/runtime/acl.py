"""Ascend devices through ACL, the C interface of CANN: memory, kernels, launches, and the compilers of kernel sources.

Untested on hardware. Every function that is called is a row of `_RUNTIME` or `_COMPILER`; docs/ascend-device.md says
how the calls were checked without a device, and how to report from one.

    run ── compile_kernel ── aclrtc, or bisheng where there is none
     └──── Device ── Buffer, Kernel        each released once, the last made first, whatever fails

Nothing of CANN is needed to import this module; `unavailable` says what is missing.
"""

from __future__ import annotations

import atexit
import ctypes
import enum
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from ctypes import byref, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from autofusion import config
from autofusion.dtypes import Array
from autofusion.errors import ArgumentError, DeviceError, TargetError

LIBRARY_VARIABLE = "AUTOFUSION_ACL_LIBRARY"
"""The environment variable that names the library itself: see `config.VARIABLES`."""

ARCHES = {2201: "dav-2201", 3510: "dav-3510"}
"""Architectures by number, and what `--npu-arch` calls them."""

_REPEAT_INITIALIZE = 100002  # aclError: somebody else in this process called aclInit; documented as harmless
_HUGE_FIRST = 0  # aclrtMemMallocPolicy
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2  # aclrtMemcpyKind
_AICORE_COUNT, _VECTOR_COUNT = 101, 201  # aclrtDevAttr
_LOAD_MAGIC = 2  # aclrtBinaryLoadOptionType
_LEAST_BYTES = 32  # aclrtMalloc refuses 0; one block of the hardware's copies
_HOST_MACHINES = (3, 62, 183)  # e_machine of x86, x86-64 and AArch64 in ELF

# Functions by their parameters, as letters of _TYPES; p is also where a result goes. They return an aclError, 0 for
# success, but those of _TEXTS a string.
_TYPES: dict[str, Any] = {"p": c_void_p, "s": c_char_p, "n": c_size_t, "i": c_int32, "u": c_uint32}
_RUNTIME = """
    aclInit(s) aclFinalize() aclrtGetDeviceCount(p) aclrtSetDevice(i) aclrtResetDevice(i) aclrtGetDeviceInfo(uip)
    aclrtGetCurrentContext(p) aclrtSetCurrentContext(p)
    aclrtCreateStream(p) aclrtSynchronizeStream(p) aclrtDestroyStream(p)
    aclrtMalloc(pni) aclrtMemcpy(pnpni) aclrtMemset(pnin) aclrtFree(p)
    aclrtBinaryLoadFromData(pnpp) aclrtBinaryGetFunction(psp) aclrtBinaryUnLoad(p)
    aclrtKernelArgsInit(pp) aclrtKernelArgsAppend(ppnp) aclrtKernelArgsFinalize(p) aclrtLaunchKernelWithConfig(pupppp)
"""
_COMPILER = """
    aclrtcCreateProg(pssipp) aclrtcCompileProg(pip) aclrtcGetBinDataSize(pp) aclrtcGetBinData(pp)
    aclrtcGetCompileLogSize(pp) aclrtcGetCompileLog(pp) aclrtcDestroyProg(p)
"""
_TEXTS = "aclGetRecentErrMsg() aclrtGetSocName()"


class Core(enum.IntEnum):
    """What a binary is loaded as, by its magic number; CANN 8 documents VECTOR for kernels of that core."""

    AICORE = 0x43554245
    VECTOR = 0x41415246


class HardwareWarning(RuntimeWarning):
    """The device path was never run on a device by those who wrote it."""


class Store(Protocol):
    """Binaries by content; `autofusion.jit.cache.Cache` is one."""

    def get_or_build(self, key: str, build: Callable[[], bytes], meta: Mapping[str, str]) -> tuple[bytes, bool]:
        """The payload under `key` (64 hex digits), and whether it was there."""


# The libraries


class _Acl:
    """The libraries of one installation, and this process's session with them, opened as often as it is closed."""

    def __init__(self, path: Path) -> None:
        self.compiler = path.with_name("libacl_rtc.so")
        self.warned = False
        self._sessions, self._process, self._ours = 0, 0, False
        self._lock = threading.Lock()
        self._functions = _bind(path, _RUNTIME, c_int32) | _bind(path, _TEXTS, c_char_p)
        if self.compiler.exists():
            self._functions |= _bind(self.compiler, _COMPILER, c_int32)

    def call(self, name: str, *arguments: object) -> None:
        """Raises DeviceError unless the function returns 0, and in the child of a fork."""
        if self.forked:
            text = f"ACL was initialised in process {self._process}, before the fork: start this one with `spawn`"
            raise DeviceError(name, None, text)
        if code := self._functions[name](*arguments):
            raise DeviceError(name, code, self.text("aclGetRecentErrMsg") or "no message")

    def text(self, name: str) -> str:
        return (self._functions[name]() or b"").decode(errors="replace").strip()

    @property
    def forked(self) -> bool:
        return self._process not in (0, os.getpid())

    def begin(self) -> None:
        """aclInit, where no session is open."""
        with self._lock:
            if self._sessions == 0:
                try:
                    self.call("aclInit", None)
                    self._ours = True
                except DeviceError as error:
                    if error.code != _REPEAT_INITIALIZE:
                        raise
                    self._ours = False
                self._process = os.getpid()
            self._sessions += 1

    def end(self) -> None:
        """aclFinalize with the last session, unless somebody else in this process had called aclInit before."""
        with self._lock:
            self._sessions -= 1
            if self._sessions == 0:
                self._process = 0
                if self._ours:
                    self.call("aclFinalize")

    def device_count(self) -> int:
        count = c_uint32()
        with ExitStack() as stack:
            self.begin()
            stack.push(_releasing(self.end))
            self.call("aclrtGetDeviceCount", byref(count))
        return count.value


def _bind(path: Path, table: str, result: Any) -> dict[str, Any]:
    functions = {}
    try:
        library = ctypes.CDLL(str(path))
        for name, letters in re.findall(r"(\w+)\((\w*)\)", table):
            functions[name] = function = library[name]
            function.argtypes, function.restype = [_TYPES[letter] for letter in letters], result
    except OSError as error:
        raise DeviceError(path.name, None, f"cannot be loaded: {error}") from None
    except AttributeError as error:
        raise DeviceError(path.name, None, f"a newer CANN is needed: {error}") from None
    return functions


_load = functools.cache(_Acl)


def _homes() -> list[Path]:
    return [Path(os.environ[name]) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if os.environ.get(name)]


def _acl() -> _Acl:
    if override := config.acl_library():
        return _load(override)
    folders = [home / "lib64" for home in _homes()]
    folders += [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
    for folder in folders:
        if (folder / "libascendcl.so").is_file():
            return _load(folder / "libascendcl.so")
    places = "ASCEND_HOME_PATH, ASCEND_TOOLKIT_HOME or LD_LIBRARY_PATH"
    text = f"not found by {places}: source CANN's set_env.sh, or set {LIBRARY_VARIABLE}"
    raise DeviceError("libascendcl.so", None, text)


def unavailable() -> str | None:
    """Why kernels cannot run on a device here, or None where they can."""
    try:
        count = _acl().device_count()
    except DeviceError as error:
        return str(error)
    return None if count else "no Ascend device: aclrtGetDeviceCount found 0; see `npu-smi info`"


# A device and what it holds


def _releasing(release: Callable[[], object]) -> Callable[[Any, BaseException | None, Any], None]:
    """An exit for an `ExitStack`: a failure of `release` becomes a note of the error that is already on its way."""

    def leave(kind: object, error: BaseException | None, trace: object) -> None:
        try:
            release()
        except DeviceError as fault:
            if error is None:
                raise
            error.add_note(f"and, while releasing: {fault}")

    return leave


class _Closing:
    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _releasing(self.close)(kind, error, trace)


class Device(_Closing):
    """Device `number` with one stream, open until `close`, at the latest the process's exit.

    Every method raises DeviceError where ACL refuses, and after `close`. Any thread may call, one at a time: hold
    `lock` for calls that belong together. `soc` is the model's name, as Ascend910B3; cores are as the device counts.
    """

    def __init__(self, number: int = 0) -> None:
        self.number, self.lock, self.closed = number, threading.RLock(), False
        self._acl = _acl()
        self._live: dict[int, _Owned] = {}
        self._launched = False
        self._stream, self._context = c_void_p(), c_void_p()
        if not self._acl.warned:
            self._acl.warned = True
            text = "the Ascend device path is untested on hardware: check its results (docs/ascend-device.md)"
            warnings.warn(text, HardwareWarning, stacklevel=2)
        with ExitStack() as stack:
            self._open(stack)
            self._exits = stack.pop_all()
        atexit.register(self.close)

    def _open(self, stack: ExitStack) -> None:
        call = self._acl.call
        self._acl.begin()
        stack.push(_releasing(self._acl.end))
        count = self._acl.device_count()
        if not 0 <= self.number < count:
            raise DeviceError("aclrtGetDeviceCount", None, f"found {count}: there is no device {self.number}")
        _CURRENT.device = None
        call("aclrtSetDevice", self.number)
        stack.push(_releasing(lambda: call("aclrtResetDevice", self.number)))
        call("aclrtGetCurrentContext", byref(self._context))
        call("aclrtCreateStream", byref(self._stream))
        stack.push(_releasing(lambda: call("aclrtDestroyStream", self._stream)))
        self.soc = self._acl.text("aclrtGetSocName")
        counts = c_int64(), c_int64()
        for attribute, place in zip((_AICORE_COUNT, _VECTOR_COUNT), counts, strict=True):
            call("aclrtGetDeviceInfo", self.number, attribute, byref(place))
        self.aicores, self.vector_cores = (place.value for place in counts)
        _CURRENT.device = self

    def call(self, name: str, *arguments: object) -> None:
        """An ACL function, with this device as the calling thread's."""
        if self.closed:
            raise DeviceError(name, None, f"device {self.number} was closed")
        self._bind()
        self._acl.call(name, *arguments)

    def _bind(self) -> None:
        if _CURRENT.device is not self:
            self._acl.call("aclrtSetCurrentContext", self._context)
            _CURRENT.device = self

    def synchronize(self) -> None:
        """Wait for every launch that was not waited for yet. Raises what a kernel did wrong."""
        if self._launched:
            self._launched = False
            self.call("aclrtSynchronizeStream", self._stream)

    def close(self) -> None:
        """Release what is left, the last made first, then the stream and the device. A second call does nothing.

        In the child of a fork it only forgets them: they are the parent's.
        """
        if self._acl.forked:
            self.closed = True
            return
        with self.lock, self._exits.pop_all() as exits:
            atexit.unregister(self.close)
            if not self.closed:
                exits.callback(setattr, self, "closed", True)
                for owned in self._live.values():
                    exits.push(owned)
                exits.push(_releasing(self._bind))


class _Current(threading.local):
    device: Device | None = None


_CURRENT = _Current()
_DEVICES: dict[int, Device] = {}
_DEVICES_LOCK = threading.Lock()


def device(number: int = 0) -> Device:
    """This process's device of that number, opened by the first call. Raises DeviceError."""
    with _DEVICES_LOCK:
        if number not in _DEVICES or _DEVICES[number].closed:
            _DEVICES[number] = Device(number)
        return _DEVICES[number]


class _Owned(_Closing):
    """Something on a device that the function `_release` gives back: by `close`, or with the device."""

    _release: str

    def __init__(self, device: Device) -> None:
        self.device, self._handle = device, c_void_p()

    def _acquire(self, name: str, *arguments: object) -> None:
        self.device.call(name, *arguments)
        self.device._live[id(self)] = self

    def _held(self) -> int:
        if self._handle.value is None:
            raise DeviceError(type(self).__name__, None, f"used after its {self._release}")
        return self._handle.value

    def close(self) -> None:
        """Release it, after the launches that may use it. A second call does nothing."""
        if self.device._live.pop(id(self), None):
            handle, self._handle = self._handle, c_void_p()
            with ExitStack() as stack:
                stack.push(_releasing(lambda: self.device.call(self._release, handle)))
                self.device.synchronize()


class Buffer(_Owned):
    """Device memory of `nbytes`, its contents unspecified. Copies are refused beyond it, and after `close`."""

    _release = "aclrtFree"

    def __init__(self, device: Device, nbytes: int) -> None:
        super().__init__(device)
        if nbytes < 0:
            raise ArgumentError(f"a buffer of {nbytes} bytes: expected 0 or more")
        self.nbytes = nbytes
        self._acquire("aclrtMalloc", byref(self._handle), max(nbytes, _LEAST_BYTES), _HUGE_FIRST)

    @property
    def address(self) -> int:
        """Where it is on the device; never 0, even for 0 bytes."""
        return self._held()

    def write(self, array: Array) -> None:
        """Copy the elements of `array`, in C order, to the start."""
        source = np.ascontiguousarray(array)
        self._copy(self.address, self.nbytes, source.ctypes.data, source.nbytes, _HOST_TO_DEVICE)

    def read(self, array: Array) -> None:
        """Copy the start over all of `array`, which is writable and contiguous in C order."""
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise ArgumentError("a read from a device needs an array that is writable and contiguous in C order")
        self._copy(array.ctypes.data, array.nbytes, self.address, array.nbytes, _DEVICE_TO_HOST)

    def zero(self) -> None:
        """Set every byte to 0."""
        address = self.address
        self.device.synchronize()
        if self.nbytes:
            self.device.call("aclrtMemset", address, self.nbytes, 0, self.nbytes)

    def _copy(self, to: int, room: int, start: int, nbytes: int, kind: int) -> None:
        if nbytes > self.nbytes:
            raise DeviceError("aclrtMemcpy", None, f"a copy of {nbytes} bytes, the buffer has {self.nbytes}")
        self.device.synchronize()
        if nbytes:
            self.device.call("aclrtMemcpy", to, room, start, nbytes, kind)


class _LoadOption(ctypes.Structure):
    _fields_ = (("type", c_int32), ("value", c_uint32 * 4))


class _LoadOptions(ctypes.Structure):
    _fields_ = (("options", ctypes.POINTER(_LoadOption)), ("count", c_size_t))


class Kernel(_Owned):
    """The function `name` of a device binary, loaded until `close`. Raises DeviceError where there is none."""

    _release = "aclrtBinaryUnLoad"

    def __init__(self, device: Device, binary: bytes, name: str, core: Core = Core.AICORE) -> None:
        super().__init__(device)
        self.name, self._function = name, c_void_p()
        self._binary = binary  # ACL may read it for as long as it is loaded
        options = _LoadOptions(ctypes.pointer(_LoadOption(_LOAD_MAGIC, (core,))), 1)
        self._acquire("aclrtBinaryLoadFromData", binary, len(binary), byref(options), byref(self._handle))
        with ExitStack() as stack:
            stack.push(self)
            device.call("aclrtBinaryGetFunction", self._handle, name.encode(), byref(self._function))
            stack.pop_all()

    def launch(self, blocks: int, buffers: Sequence[Buffer], tiling: bytes = b"") -> None:
        """Start `blocks` blocks; `Device.synchronize` waits for them.

        The kernel's parameters are the addresses of `buffers`, in order, then the bytes of `tiling` by value.
        """
        self._held()
        if not 0 < blocks < 1 << 32 or any(buffer.device is not self.device for buffer in buffers):
            raise ArgumentError(
                f"kernel {self.name}: expected at least 1 block, not {blocks}, and its device's buffers"
            )
        parameters: list[tuple[Any, int]] = [(byref(c_void_p(buffer.address)), 8) for buffer in buffers]
        parameters += [(tiling, len(tiling))] if tiling else []
        call, arguments, place = self.device.call, c_void_p(), c_void_p()
        call("aclrtKernelArgsInit", self._function, byref(arguments))
        for start, nbytes in parameters:
            call("aclrtKernelArgsAppend", arguments, start, nbytes, byref(place))
        call("aclrtKernelArgsFinalize", arguments)
        self.device._launched = True
        call("aclrtLaunchKernelWithConfig", self._function, blocks, self.device._stream, None, arguments, None)


def run(
    source: str,
    kernel: str,
    arch: int,
    arrays: Sequence[Array],
    tiling: bytes,
    blocks: int,
    workspace_bytes: int | None = None,
    *,
    outputs: Sequence[int],
    on: Device | None = None,
    core: Core = Core.AICORE,
    store: Store | None = None,
) -> list[Array]:
    """Run one kernel over NumPy arrays, and return those at positions `outputs` as new arrays.

    The kernel's parameters are the arrays' addresses, in order, that of `workspace_bytes` zeroed bytes unless it is
    None, and `tiling` by value. The arrays themselves stay as they are, and may hold what outputs start from. Raises
    DeviceError; whatever happens, all memory is freed.
    """
    binary = compile_kernel(source, [kernel], arch, store)
    on = on or device()
    with on.lock, ExitStack() as stack:
        loaded = stack.enter_context(Kernel(on, binary, kernel, core))
        buffers, workspace = [], []
        for array in arrays:
            buffers.append(stack.enter_context(Buffer(on, array.nbytes)))
            buffers[-1].write(array)
        if workspace_bytes is not None:
            workspace.append(stack.enter_context(Buffer(on, workspace_bytes)))
            workspace[0].zero()
        loaded.launch(blocks, [*buffers, *workspace], tiling)
        on.synchronize()
        results = [np.empty(arrays[position].shape, arrays[position].dtype) for position in outputs]
        for position, result in zip(outputs, results, strict=True):
            buffers[position].read(result)
    return results


# Compilers


def compile_kernel(source: str, names: Sequence[str], arch: int, store: Store | None = None) -> bytes:
    """The device binary of a source that defines the `extern "C"` kernels `names`, for an architecture of `ARCHES`.

    Taken from `store` where the same source, architecture and compiler have been there. Raises TargetError for
    another architecture, and DeviceError with the compiler's log, or where there is no compiler.
    """
    if arch not in ARCHES:
        raise TargetError(f"Ascend architecture {arch!r}: expected one of {', '.join(map(str, ARCHES))}")
    for name in names or [""]:
        if not name.isidentifier() or not re.search(rf"\b{name}\b", source):
            raise ArgumentError(f"kernel {name!r}: expected the name of a function in the source")
    tool, compiler = _compiler()
    build = functools.partial(compiler, source, f"{names[0]}.asc", ARCHES[arch])
    if store is None:
        return build()
    parts = ("ascend kernel 1", source, *names, ARCHES[arch], _identity(tool))
    key = hashlib.sha256(b"".join(b"%d:%b" % (len(data := part.encode()), data) for part in parts)).hexdigest()
    return store.get_or_build(key, build, {"target": f"ascend|{ARCHES[arch]}", "name": names[0]})[0]


def _compiler() -> tuple[Path, Callable[[str, str, str], bytes]]:
    """A compiler's file, and what builds with it: from a source, a file name for it, and a name of `--npu-arch`."""
    try:
        acl = _acl()
        if acl.compiler.exists():
            return acl.compiler, functools.partial(_build_by_aclrtc, acl)
        reason = f"there is no {acl.compiler}"
    except DeviceError as error:
        reason = str(error)
    folders = [str(home / "bin") for home in _homes()]
    tool = shutil.which("bisheng", path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))
    if tool is None:
        text = f"not found by ASCEND_HOME_PATH or PATH, and no run-time compiler either: {reason}"
        raise DeviceError("bisheng", None, text)
    return Path(tool), functools.partial(_build_by_bisheng, tool)


def _identity(tool: Path) -> str:
    """A compiler as it is installed, and what the installation says of its version."""
    found = tool.resolve()
    status = found.stat()
    files = [home / name for home in _homes() for name in ("version.cfg", "version.info", "compiler/version.info")]
    versions = [file.read_text(errors="replace") for file in files if file.is_file()]
    return "\n".join([str(found), str(status.st_size), str(status.st_mtime_ns), *versions])


def _build_by_aclrtc(acl: _Acl, source: str, name: str, arch: str) -> bytes:
    program, size = c_void_p(), c_size_t()
    with ExitStack() as stack:
        acl.call("aclrtcCreateProg", byref(program), source.encode(), name.encode(), 0, None, None)
        stack.push(_releasing(lambda: acl.call("aclrtcDestroyProg", byref(program))))
        try:
            acl.call("aclrtcCompileProg", program, 1, (c_char_p * 1)(f"--npu-arch={arch}".encode()))
        except DeviceError as error:
            raise DeviceError(error.call, error.code, f"{error.text}\n{_compile_log(acl, program)}") from None
        acl.call("aclrtcGetBinDataSize", program, byref(size))
        binary = ctypes.create_string_buffer(size.value)
        acl.call("aclrtcGetBinData", program, binary)
    return binary.raw


def _compile_log(acl: _Acl, program: c_void_p) -> str:
    size = c_size_t()
    try:
        acl.call("aclrtcGetCompileLogSize", program, byref(size))
        log = ctypes.create_string_buffer(size.value + 1)
        acl.call("aclrtcGetCompileLog", program, log)
    except DeviceError as error:
        return f"no log: {error}"
    return log.value.decode(errors="replace").strip()


def _build_by_bisheng(tool: str, source: str, name: str, arch: str) -> bytes:
    """Only the device's half, as ELF: what ACL loads. Without that option there is a program of the host around it."""
    with tempfile.TemporaryDirectory(prefix="autofusion-") as folder:
        Path(folder, name).write_text(source)
        output = Path(folder, "kernel.o")
        command = [tool, "-c", name, "-o", output.name, f"--npu-arch={arch}", "--cce-aicore-only"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        log = f"{' '.join(command)}\n{done.stderr}{done.stdout}".strip()
        if done.returncode or not output.is_file():
            raise DeviceError("bisheng", done.returncode, log)
        binary = output.read_bytes()
    if binary[:4] != b"\x7fELF" or int.from_bytes(binary[18:20], "little") in _HOST_MACHINES:
        raise DeviceError("bisheng", None, f"its output is not a device binary: {log}")
    return binary
