"""`autofusion env`: versions, the CPU, workers, the cache: what a bug report needs."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
from typing import Any

import llvmlite.binding as llvm

from autofusion import api, config
from autofusion.cli import command, terminal
from autofusion.cli.command import Arguments, Command
from autofusion.runtime import acl, aicore, pool
from autofusion.version import __version__

PACKAGES = ("numpy", "llvmlite", "ml_dtypes", "platformdirs", "rich")


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    command.add_json(parser)


def run(arguments: Arguments) -> int:
    """Print it."""
    found = as_json()
    if arguments.json:
        terminal.print_json(found)
        return 0
    cache = found["cache"]
    rows = [
        ("autofusion", found["autofusion"]),
        ("Python", f"{found['python']}, {found['system']}"),
        ("packages", ", ".join(f"{name} {version}" for name, version in found["packages"].items())),
        ("LLVM", found["llvm"]),
        ("CPU", found["cpu"]),
        ("vectors", f"{found['vector_bits']} bit; {', '.join(found['features'])}"),
        ("workers", f"{found['workers']} of {found['cpus']} CPUs"),
        ("native runtime", "built" if found["native_runtime"] else "not built: one worker, through ctypes"),
        ("AI Core model", found["aicore_model"] or "can be built"),
        ("Ascend device", found["ascend_device"] or "here; untested on hardware"),
        ("cache", f"{cache['folder'] or 'memory only'}, at most {terminal.size(cache['limit_bytes'])}"),
    ]
    console = terminal.console()
    console.print(terminal.facts([(name, str(value)) for name, value in rows]))
    made = terminal.table("Environment variables", "name", "value", "meaning", wide=("meaning",))
    for name, meaning in config.VARIABLES.items():
        made.add_row(name, os.environ.get(name, ""), meaning)
    console.print(made)
    return 0


def as_json() -> dict[str, Any]:
    """All of it as data."""
    target = api.find_target("cpu")
    folder = config.cache_dir()
    return {
        "autofusion": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "cpu": target.name.removeprefix("cpu:"),
        "vector_bits": target.lane_bytes * 8,
        "features": list(target.features),
        "cpus": os.cpu_count(),
        "workers": pool.worker_count(),
        "native_runtime": pool.native_available(),
        "aicore_model": aicore.unavailable(),
        "ascend_device": acl.unavailable(),
        "cache": {"folder": None if folder is None else str(folder), "limit_bytes": config.cache_bytes()},
        "variables": {name: os.environ[name] for name in config.VARIABLES if name in os.environ},
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


COMMAND = Command("env", "versions, CPU, workers, native runtime, cache folder", configure, run)
