"""CPUs as targets: this machine's, or one named for cross-emission."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from autofusion.errors import TargetError
from autofusion.target import Target, cpu
from autofusion.targets.cpu.primitives import PRIMITIVES

CACHE_BYTES = (
    1 << 20
)  # the part of the second-level cache that a core's intermediates may take; never the machine's own


@dataclass(frozen=True)
class Machine:
    """What LLVM needs to make code: triple, CPU, features."""

    triple: str
    cpu: str
    features: str


@cache
def initialise() -> None:
    """Make all of LLVM's code generators known."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def host() -> Machine:
    """This machine."""
    initialise()
    return Machine(llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


_WIDTHS = (("avx512f", 64), ("avx2", 32), ("avx", 32), ("sve", 16), ("neon", 16), ("sse2", 16))
_WANTED = ("avx512f", "avx512vl", "avx2", "avx", "fma", "f16c", "sse4.1", "neon", "sve", "fullfp16")


def _has(machine: Machine) -> tuple[str, ...]:
    on = {f[1:] for f in machine.features.split(",") if f.startswith("+")}
    if machine.triple.startswith("aarch64"):
        on |= {"neon", "fma", "f16c"}
    return tuple(f for f in _WANTED if f in on)


def target_of(machine: Machine) -> Target:
    """The machine as a target. Vector width and features come from it; the memory budget is one for all."""
    return _target_of(machine, tuple(sorted(PRIMITIVES)))


@cache
def _target_of(machine: Machine, computes: tuple[str, ...]) -> Target:
    on = _has(machine)
    lane_bytes = next((width for feature, width in _WIDTHS if feature in on), 16)
    cores = len(os.sched_getaffinity(0)) if machine == host() else 4
    name = f"cpu:{machine.triple.split('-')[0]}:{machine.cpu}"
    return cpu(name, min(max(cores, 2), 8), on, lane_bytes, CACHE_BYTES, computes)


_NAMED = {
    "sse2": Machine("x86_64-unknown-linux-gnu", "x86-64", "+sse2"),
    "avx2": Machine("x86_64-unknown-linux-gnu", "haswell", "+avx2,+fma,+f16c,+avx,+sse4.1"),
    "avx512": Machine(
        "x86_64-unknown-linux-gnu", "skylake-avx512", "+avx512f,+avx512vl,+avx512bw,+avx512dq,+avx2,+fma,+f16c"
    ),
}


def named(text: str) -> Machine:
    """`avx2`, `sse2`, `avx512`, or ARCH:CPU such as `aarch64:neoverse-v1`. Raises TargetError for anything else."""
    initialise()
    if text in ("host", ""):
        return host()
    if text in _NAMED:
        return _NAMED[text]
    arch, _, name = text.partition(":")
    if arch not in ("aarch64", "x86_64") or not name:
        known = ", ".join(_NAMED)
        raise TargetError(f"CPU {text!r}: expected host, {known}, or ARCH:CPU such as aarch64:neoverse-v1")
    triple = f"{arch}-unknown-linux-gnu"
    features = "+neon" if arch == "aarch64" else _features_of(name)
    return Machine(triple, name, features)


def levels() -> tuple[Machine, ...]:
    """The levels of x86-64 that have names."""
    return tuple(_NAMED.values())


def runs(machine: Machine) -> bool:
    """Whether this machine runs the code: it is this one, or a level of its architecture that it has."""
    here = host()
    if machine == here:
        return True
    level = machine in levels() and here.triple.startswith("x86_64")
    return level and set(machine.features.split(",")) <= set(here.features.split(","))


def _features_of(name: str) -> str:
    """The vector features of a named x86-64 CPU, by its level."""
    wide = (
        "skylake-avx512",
        "icelake",
        "sapphirerapids",
        "emeraldrapids",
        "znver4",
        "znver5",
        "x86-64-v4",
        "cascadelake",
    )
    if name.startswith(wide):
        return _NAMED["avx512"].features
    old = ("x86-64", "x86-64-v2", "core2", "nehalem", "westmere", "penryn")
    return "+sse2" if name in old else _NAMED["avx2"].features


def identity(machine: Machine) -> str:
    """What a compiled kernel depends on, for cache keys."""
    version = ".".join(map(str, llvm.llvm_version_info))
    return f"{machine.triple}|{machine.cpu}|{machine.features}|llvm {version}"
