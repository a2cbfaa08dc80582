"""The environment variables, read in one place. Each accessor reads afresh, so tests and users may change them."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from autofusion.errors import AutofusionError

VARIABLES = {
    "AUTOFUSION_NUM_THREADS": "workers of a launch; default: the process's CPU affinity and cgroup quota",
    "AUTOFUSION_CACHE_DIR": "folder of the compiled-kernel cache; empty string: memory only",
    "AUTOFUSION_CACHE_BYTES": "size bound of the disk cache in bytes; default 1 GiB",
    "AUTOFUSION_DEBUG": "0 quiet, 1 stage times, 2 also verdicts; default 0",
    "AUTOFUSION_DUMP": "folder for numbered stages; an edited NN-*.override.txt there is read back in",
    "AUTOFUSION_RAISE": "1: defects met in compiling a PyTorch graph are raised; 0: PyTorch runs that part; default 0",
    "AUTOFUSION_ACL_LIBRARY": "path of libascendcl.so, in place of the search; libacl_rtc.so is beside it",
}


def _integer(name: str, default: int | None, least: int) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdigit() or int(text) < least:
        raise AutofusionError(f"{name}={text!r}: expected an integer of at least {least}")
    return int(text)


def num_threads() -> int | None:
    """`AUTOFUSION_NUM_THREADS`, or None where it is not set."""
    return _integer("AUTOFUSION_NUM_THREADS", None, 1)


def cache_dir() -> Path | None:
    """The disk cache's folder, or None where it is switched off."""
    text = os.environ.get("AUTOFUSION_CACHE_DIR")
    if text is None:
        return Path(platformdirs.user_cache_dir("graph-autofusion"))
    return Path(text) if text else None


def cache_bytes() -> int:
    """The disk cache's bound in bytes."""
    return _integer("AUTOFUSION_CACHE_BYTES", 1 << 30, 0) or 0


def debug_level() -> int:
    """0, 1 or 2."""
    return _integer("AUTOFUSION_DEBUG", 0, 0) or 0


def raises_defects() -> bool:
    """Whether a defect of this package is raised where PyTorch could run the part of the graph instead."""
    return bool(_integer("AUTOFUSION_RAISE", 0, 0))


def dump_dir() -> Path | None:
    """Where the stages of a compile are written, or None."""
    text = os.environ.get("AUTOFUSION_DUMP", "")
    return Path(text) if text else None


def acl_library() -> Path | None:
    """The library of the Ascend runtime that is to be used, or None: it is searched for."""
    text = os.environ.get("AUTOFUSION_ACL_LIBRARY", "")
    return Path(text) if text else None
