"""Writing files: whole or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from autofusion.dtypes import Array, DType, of
from autofusion.errors import FormatError


def write(path: str, data: bytes) -> None:
    """Put `data` at `path` in one step: a reader finds the old file or the new one. Raises FormatError."""
    goal = Path(path)
    try:
        handle, part = tempfile.mkstemp(prefix=f".{goal.name}-", suffix=".part", dir=goal.parent)
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from None
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.chmod(part, 0o666 & ~_umask())
        os.replace(part, goal)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        if isinstance(error, OSError):
            raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from None
        raise


def write_folder(path: str, texts: Mapping[str, str]) -> None:
    """Make the folder `path` with these files, all or none; `.sh` files may be run. Raises FormatError, where something
    is there already too: nothing is written over."""
    goal = Path(path)
    if goal.is_symlink() or (goal.exists() and not (goal.is_dir() and not any(goal.iterdir()))):
        raise FormatError(f"{path}: is there already; give the name of a new folder")
    try:
        part = Path(tempfile.mkdtemp(prefix=f".{goal.name}-", suffix=".part", dir=goal.absolute().parent))
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from None
    mask = _umask()
    try:
        for name, text in texts.items():
            (part / name).write_text(text, encoding="utf-8")
            (part / name).chmod((0o777 if name.endswith(".sh") else 0o666) & ~mask)
        part.chmod(0o777 & ~mask)
        part.replace(goal)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError):
            raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from None
        raise


def _umask() -> int:
    """The process's file mode mask, which only setting it tells."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def npz(arrays: Mapping[str, Array]) -> bytes:
    """Arrays by name in NumPy's .npz form. bfloat16, which it does not know, becomes float32: no value changes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            plain = array.astype(np.float32) if of(array) is DType.BFLOAT16 else array
            entry = io.BytesIO()
            np.lib.format.write_array(entry, np.ascontiguousarray(plain).reshape(plain.shape), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), entry.getvalue())
    return buffer.getvalue()
