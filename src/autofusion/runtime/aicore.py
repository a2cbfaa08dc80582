"""The AI Core model: compiles Ascend C source with the system's C++ compiler and runs it on the host.

The model itself is C++ headers (`targets/ascend/model`). `build` makes one executable from one source, once for its
content; `Model.run` starts it as a process of its own, so a kernel that crashes or hangs takes nothing with it.

    cache/aicore/ENGINE/    headers, precompiled header, engine.o        one folder per compiler, arch and headers
    cache/aicore/ENGINE/KEY the executable of one source, then its SHA-256

Both are written aside and renamed, so any number of processes may build at once. An executable is checked before it
runs and built again when damaged; the longest unused ones go when the folder outgrows `AUTOFUSION_CACHE_BYTES`.

A kernel that breaks a rule of the chip raises `ModelViolation`; source outside the model's subset does not compile.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autofusion import config
from autofusion.errors import ArgumentError, AutofusionError, ExecutionError

ARCHES = (2201, 3510)
HEADERS = Path(__file__).resolve().parents[1] / "targets" / "ascend" / "model"
RULES = (
    "model",
    "capacity",
    "alignment",
    "dtypes",
    "ranges",
    "bounds",
    "queue discipline",
    "unwritten memory",
    "pipe hazard",
    "flags",
    "cross-core",
    "operand overlap",
    "numerics",
)

_FLAGS = ("-std=c++17", "-O1", "-w", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off", "-DAICORE_DECLARATIONS_ONLY")
_DIGEST_BYTES = 32
_COMPILE_SECONDS = 120.0
_ALIGN = 4096
_KERNEL = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]kernel_operator\.h[">]', re.MULTILINE)


class ModelBuildError(AutofusionError):
    """The source does not compile against the model. Holds the compiler's first errors."""


class ModelViolation(AutofusionError, RuntimeError):
    """A kernel broke a rule of the chip.

    `rule` is 1 to 12 and `name` its name; `core` says which core, `line` the line of the source, `api` the call,
    `buffer` the operand, and `text` what was found against what is allowed.
    """

    def __init__(self, rule: int, name: str, core: str, line: int, api: str, buffer: str, text: str) -> None:
        super().__init__(f"rule {rule} ({name}), {core}, line {line}, {api}, {buffer}: {text}")
        self.rule, self.name, self.core, self.line = rule, name, core, line
        self.api, self.buffer, self.text = api, buffer, text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.rule, self.name, self.core, self.line, self.api, self.buffer, self.text)


@dataclass(frozen=True)
class Report:
    """What one launch did. Bytes are summed over cores, except `allocated` and `used`: of the core with the most.

    moved: bytes per path, such as "GM->UB". gm_read, gm_written: bytes per GM argument. instructions: per pipe.
    synchronisation: SyncAll (a barrier counts once), CrossCoreSetFlag, CrossCoreWaitFlag, PipeBarrier, SetFlag,
    WaitFlag. allocated: peak bytes per space; used: bytes of it that were both written and read. microseconds: of the
    modelled launch, for ranking only.
    """

    moved: Mapping[str, int]
    gm_read: tuple[int, ...]
    gm_written: tuple[int, ...]
    instructions: Mapping[str, int]
    synchronisation: Mapping[str, int]
    allocated: Mapping[str, int]
    used: Mapping[str, int]
    cores: Mapping[str, int]
    launches: int
    cycles: float
    microseconds: float

    @property
    def bytes_read(self) -> int:
        """Bytes read from GM."""
        return sum(self.gm_read)

    @property
    def bytes_written(self) -> int:
        """Bytes written to GM."""
        return sum(self.gm_written)


@dataclass(frozen=True)
class Model:
    """An executable with the kernels of one source."""

    executable: Path
    kernels: tuple[str, ...]
    arch: int

    def run(
        self,
        kernel: str,
        buffers: Sequence[np.ndarray[Any, Any]],
        tiling: bytes,
        blocks: int,
        *,
        seed: int = 0,
        timeout: float = 120.0,
    ) -> Report:
        """Launch `kernel` on `blocks` blocks.

        `buffers`: C-contiguous, writable arrays, one per GM_ADDR parameter in order; updated in place when the launch
        ends well. One array may serve two parameters, which then hold one address. `tiling`: the bytes of the struct
        parameter, b"" where there is none. `seed` draws the order in which the cores run. Raises ModelViolation;
        ExecutionError where the process crashed or ran longer than `timeout` seconds; ArgumentError for arguments
        that do not fit.
        """
        if kernel not in self.kernels:
            raise ArgumentError(f"kernel {kernel!r}: this model was built with {', '.join(self.kernels)}")
        for position, array in enumerate(buffers):
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise ArgumentError(f"{kernel}: buffer {position} is not a C-contiguous, writable array")
            for other in buffers[:position]:
                if np.may_share_memory(array, other) and _place(array) != _place(other):
                    raise ArgumentError(f"{kernel}: buffer {position} overlaps another one in part")
        with tempfile.TemporaryDirectory(prefix="aicore-", dir=_fast_folder()) as name:
            folder = Path(name)
            offsets = _write_data(folder / "data", buffers)
            sizes = [array.nbytes for array in buffers]
            (folder / "request").write_bytes(_request(kernel, sizes, offsets, tiling, blocks, seed))
            status, stderr = _start([self.executable, folder / "request", folder / "data", folder / "report"], timeout)
            record = _record(folder / "report")
            if status == 0 and record is not None:
                _read_data(folder / "data", buffers, offsets)
                return _report(record)
            if status == 3 and record is not None:
                if record["rule"] == 0:
                    raise ArgumentError(f"{kernel}: {record['text']}")
                raise ModelViolation(**record)
            raise ExecutionError(f"{kernel}: the model {_ended(status)}{': ' + stderr if stderr else ''}")


def unavailable() -> str | None:
    """Why the model cannot be used here, or None where it can."""
    compiler = _compiler()
    if compiler is None:
        return "no C++ compiler found: set CXX, or install g++ or clang++"
    return None if _speaks_cpp17(compiler) else f"{compiler} does not compile C++17"


def build(source: str, kernels: Sequence[str], arch: int = 2201) -> Model:
    """Compile `source` (Ascend C) for the model, or find it in the cache.

    `kernels`: the names of its `extern "C" __global__ __aicore__` functions, with their namespaces. Raises
    ModelBuildError where it does not compile, ArgumentError where the arguments are no kernels or no arch.
    """
    reason, compiler = unavailable(), _compiler()
    if reason is not None or compiler is None:
        raise ModelBuildError(f"the AI Core model cannot be used: {reason}")
    if arch not in ARCHES:
        raise ArgumentError(f"arch {arch}: the AI Core model knows {', '.join(map(str, ARCHES))}")
    if not kernels or not all(_KERNEL.fullmatch(name) for name in kernels):
        raise ArgumentError(f"kernels {list(kernels)!r}: expected one or more C++ names")
    if not _INCLUDE.search(source):
        raise ModelBuildError('the source does not include "kernel_operator.h"')
    engine = _engine(compiler, arch)
    entries = ", ".join(f"AICORE_KERNEL({name})" for name in kernels)
    text = f'#line 1 "kernel.cpp"\n{source}\n#line 1 "entry.cpp"\nAICORE_MAIN({entries})\n'
    executable = engine / hashlib.sha256(text.encode()).hexdigest()
    if _intact(executable):
        with contextlib.suppress(OSError):
            os.utime(executable)
    else:
        with _aside(engine) as folder:
            (folder / "kernel.cpp").write_text(text, encoding="utf-8")
            header = engine / "kernel_operator.h"
            inputs: list[str | Path] = ["-I", engine, "-include", header, folder / "kernel.cpp", engine / "engine.o"]
            _compile(compiler, arch, [*inputs, "-o", folder / "kernel"])
            with (folder / "kernel").open("r+b") as file:
                digest = hashlib.sha256(file.read()).digest()
                file.write(digest)
            os.replace(folder / "kernel", executable)
        _trim(engine.parent, executable)
    return Model(executable, tuple(kernels), arch)


# The compiler and the cache


def _compiler() -> str | None:
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    return None


@functools.cache
def _speaks_cpp17(compiler: str) -> bool:
    command = [compiler, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    code = "template <auto value> constexpr int twice = 2 * value; static_assert(twice<2> == 4);"
    return subprocess.run(command, input=code, capture_output=True, text=True, check=False).returncode == 0


@functools.cache
def _version(compiler: str) -> str:
    """What the compiler says of itself: part of the key."""
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout


@functools.cache
def _memory_only() -> Path:
    """The folder of this process where the disk cache is switched off."""
    return Path(tempfile.mkdtemp(prefix="autofusion-aicore-"))


def _engine(compiler: str, arch: int) -> Path:
    """The folder with the headers, the precompiled header and the engine's object for one compiler and arch."""
    digest = hashlib.sha256(repr((compiler, _version(compiler), arch, _FLAGS)).encode())
    headers = sorted(HEADERS.glob("*.h"))
    for header in headers:
        digest.update(header.name.encode() + b"\0" + header.read_bytes())
    root = (config.cache_dir() or _memory_only()) / "aicore"
    engine = root / digest.hexdigest()[:32]
    if (engine / "engine.o").is_file():
        return engine
    with _aside(root) as folder:
        for header in headers:
            shutil.copyfile(header, folder / header.name)
        (folder / "engine.cpp").write_text('#include "kernel_operator.h"\n#include "all_engine.h"\n')
        _compile(compiler, arch, ["-O2", "-c", folder / "engine.cpp", "-o", folder / "engine.o"])
        if "clang" not in _version(compiler):  # clang's would not stand being moved
            header = folder / "kernel_operator.h"
            _compile(compiler, arch, ["-x", "c++-header", header, "-o", f"{header}.gch"])
        with contextlib.suppress(OSError):  # somebody else was first: theirs is as good
            os.replace(folder, engine)
    return engine


def _intact(executable: Path) -> bool:
    """Whether the file is there and ends with the digest of what comes before."""
    try:
        data = executable.read_bytes()
    except OSError:
        return False
    return len(data) > _DIGEST_BYTES and hashlib.sha256(data[:-_DIGEST_BYTES]).digest() == data[-_DIGEST_BYTES:]


def _trim(root: Path, newest: Path) -> None:
    """Remove the longest unused executables, but not `newest`, if all take more than the cache may."""
    found = []
    for path in root.glob("*/*"):
        with contextlib.suppress(OSError):  # gone by now
            if len(path.name) == 2 * _DIGEST_BYTES:
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= config.cache_bytes():
            return
        if path != newest:
            total -= size
            with contextlib.suppress(OSError):
                path.unlink()


@contextlib.contextmanager
def _aside(parent: Path) -> Iterator[Path]:
    """A new folder beside what will be renamed out of it."""
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".new-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compile(compiler: str, arch: int, arguments: Sequence[str | Path]) -> None:
    command = [compiler, *_FLAGS, f"-D__NPU_ARCH__={arch}", *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ModelBuildError(f"{compiler} took longer than {_COMPILE_SECONDS:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines()
        raise ModelBuildError("\n".join(lines[:8]) or f"{compiler} failed with status {done.returncode}")


# One launch


def _fast_folder() -> str | None:
    shared = "/dev/shm"
    return shared if os.access(shared, os.W_OK) else None


def _write_data(path: Path, buffers: Sequence[np.ndarray[Any, Any]]) -> list[int]:
    """Write the buffers one after another, each from a multiple of a page; return where."""
    offsets: list[int] = []
    written: dict[tuple[int, int], int] = {}
    with path.open("wb") as file:
        for array in buffers:
            if array.nbytes and _place(array) in written:
                offsets.append(written[_place(array)])
                continue
            file.seek(-(-file.tell() // _ALIGN) * _ALIGN)
            offsets.append(file.tell())
            if array.nbytes:
                written[_place(array)] = offsets[-1]
            file.write(_bytes(array) if array.nbytes else b"\0")  # one of no bytes has an address of its own too
        file.truncate(-(-file.tell() // _ALIGN) * _ALIGN)
    return offsets


def _read_data(path: Path, buffers: Sequence[np.ndarray[Any, Any]], offsets: Sequence[int]) -> None:
    with path.open("rb") as file:
        for array, offset in zip(buffers, offsets, strict=True):
            file.seek(offset)
            file.readinto(_bytes(array))


def _place(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    return int(array.ctypes.data), array.nbytes


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat)


def _request(kernel: str, sizes: Sequence[int], offsets: Sequence[int], tiling: bytes, blocks: int, seed: int) -> bytes:
    numbers = (blocks, seed, len(sizes), *sizes, *offsets, len(tiling))
    name = kernel.encode()
    return b"AFMODEL1" + struct.pack(f"<{len(numbers)}q", *numbers) + tiling + struct.pack("<q", len(name)) + name


def _start(command: Sequence[Path], timeout: float) -> tuple[int | None, str]:
    """The exit status, None after a time-out, and what was said on stderr."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, errors="replace")
    except subprocess.TimeoutExpired:
        return None, f"it ran for {timeout:g} s"
    return done.returncode, done.stderr.strip()[:500]


def _record(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(errors="replace"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _report(record: dict[str, Any]) -> Report:
    return Report(**{**record, "gm_read": tuple(record["gm_read"]), "gm_written": tuple(record["gm_written"])})


def _ended(status: int | None) -> str:
    if status is None:
        return "was stopped"
    if status < 0:
        return f"crashed with {signal.Signals(-status).name}"
    return f"ended with status {status}"
