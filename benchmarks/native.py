"""C sources of this folder as shared libraries: built once by the machine's C compiler, for the machine's own CPU."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.export import cache

FLAGS = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC")
WIDE = ("-mprefer-vector-width=512",)  # where the compiler knows it


class Missing(Exception):
    """What is asked for is not installed."""


def compiler() -> str:
    """The C compiler's path: `CC`, cc or gcc. Raises Missing."""
    for name in (os.environ.get("CC", ""), "cc", "gcc"):
        if name and (path := shutil.which(name)):
            return path
    raise Missing("a C compiler is not installed")


def version() -> str:
    shown = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True)
    return shown.stdout.partition("\n")[0]


@functools.cache
def library(name: str) -> ctypes.CDLL:
    """The library of `NAME.c`. Raises Missing where there is no C compiler, or none with OpenMP."""
    source = Path(__file__).with_name(f"{name}.c")
    model = Path("/proc/cpuinfo").read_text().partition("\n\n")[0] if Path("/proc/cpuinfo").exists() else ""
    flags = next((line for line in model.splitlines() if line.startswith(("flags", "Features"))), "")
    digest = hashlib.sha256(f"{source.read_text()}{FLAGS}{flags}{version()}".encode()).hexdigest()[:12]
    goal = cache() / "native" / f"{name}-{digest}.so"
    if not goal.exists():
        goal.parent.mkdir(parents=True, exist_ok=True)
        part = goal.with_name(f"{goal.stem}.{os.getpid()}.part")
        last = ""
        for more in (WIDE, ()):
            command = [compiler(), *FLAGS, *more, str(source), "-o", str(part), "-lm"]
            built = subprocess.run(command, capture_output=True, text=True, check=False)
            last = built.stderr
            if built.returncode == 0:
                break
        else:
            raise Missing(f"{compiler()} does not build {source.name}: {last.strip()[-300:]}")
        part.replace(goal)
    return ctypes.CDLL(str(goal))
