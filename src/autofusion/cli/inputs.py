"""The inputs of a run: sizes of open dimensions, arrays from files, and seeded random ones for the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from autofusion import dtypes
from autofusion.dims import evaluate, show_shape, symbols
from autofusion.dtypes import Array, DType
from autofusion.errors import ArgumentError, FormatError
from autofusion.graph.evaluate import bind_symbols
from autofusion.graph.ir import Graph, Value
from autofusion.ops import Kind

SMALL_INTEGERS = 8  # random integers that index nothing are in [0, 8)


def sizes_of(graph: Graph, shapes: Sequence[str], arrays: Mapping[str, Array] | None = None) -> dict[str, int]:
    """Sizes of open dimensions, as --shape and the arrays of --input say. Raises ArgumentError where they disagree."""
    sizes: dict[str, int] = {}
    inputs = {value.name: value for value in graph.inputs}
    for text in shapes:
        name, numbers = _assignment(text)
        if name in inputs:
            _bind(sizes, inputs[name], numbers, f"--shape {text}")
        elif name in graph.symbols and len(numbers) == 1:
            _assign(sizes, name, numbers[0], f"--shape {text}")
        else:
            known = ", ".join([*inputs, *graph.symbols])
            raise ArgumentError(f"--shape {text}: {name!r} is no input or open dimension of one size; known: {known}")
    for name, array in (arrays or {}).items():
        _bind(sizes, inputs[name], array.shape, f"--input {name}")
    return sizes


def _assignment(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, listed = text.rpartition("=")
    words = [word.strip() for word in listed.split(",")] if listed else []
    if not equals or not name or not all(word.isdecimal() and len(word) < 16 for word in words):
        raise ArgumentError(f"--shape {text}: expected NAME=SIZES such as x=1,2048 or n=128")
    return name, tuple(int(word) for word in words)


def _bind(sizes: dict[str, int], value: Value, shape: Sequence[int], where: str) -> None:
    if len(shape) != len(value.shape):
        raise ArgumentError(
            f"{where}: {value.name} has {len(value.shape)} dimensions {show_shape(value.shape)}, found {list(shape)}"
        )
    for axis, (dim, extent) in enumerate(zip(value.shape, shape, strict=True)):
        if isinstance(dim, int) and dim != extent:
            raise ArgumentError(f"{where}: axis {axis} of {value.name} is {extent}, expected {dim}")
        if str(dim) in symbols(dim):
            _assign(sizes, str(dim), int(extent), where)


def _assign(sizes: dict[str, int], name: str, size: int, where: str) -> None:
    if sizes.setdefault(name, size) != size:
        raise ArgumentError(f"{where}: open dimension {name} is {size} here and {sizes[name]} before")


def load(graph: Graph, files: Sequence[str]) -> dict[str, Array]:
    """The arrays of --input NAME=FILE. Raises ArgumentError or FormatError with the file's name."""
    inputs = {value.name: value for value in graph.inputs}
    arrays: dict[str, Array] = {}
    for text in files:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise ArgumentError(f"--input {text}: expected NAME=FILE.npy")
        if name not in inputs:
            raise ArgumentError(f"--input {text}: {name!r} is no input; the inputs are {', '.join(inputs) or 'none'}")
        arrays[name] = _typed(_read(path), inputs[name], path)
    return arrays


def _read(path: str) -> Array:
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise FormatError(f"{path}: not a .npy file of numbers: {str(error).splitlines()[0]}") from None
    if not isinstance(array, np.ndarray):
        raise FormatError(f"{path}: holds several arrays, expected one (.npy)")
    return array


def _typed(array: Array, value: Value, path: str) -> Array:
    """The array in the machine's byte order; two raw bytes an element are taken for bfloat16 where that is wanted."""
    if value.dtype is DType.BFLOAT16 and array.dtype.kind == "V" and array.dtype.itemsize == 2:
        return array.view(value.dtype.numpy)
    if array.dtype != value.dtype.numpy.newbyteorder("S") and array.dtype != value.dtype.numpy:
        raise ArgumentError(f"--input {value.name}={path}: element type {array.dtype}, expected {value.dtype}")
    return array.astype(value.dtype.numpy, copy=False)


def prepare(graph: Graph, shapes: Sequence[str], files: Sequence[str], seed: int) -> tuple[list[Array], dict[str, int]]:
    """Arrays for all inputs in order, and the sizes of the open dimensions. Raises ArgumentError."""
    loaded = load(graph, files)
    sizes = sizes_of(graph, shapes, loaded)
    for value in graph.inputs:
        for dim in value.shape:
            missing = sorted(symbols(dim) - set(sizes))
            if missing:
                raise ArgumentError(
                    f"{value.name}: the open dimension {missing[0]} has no size; give --shape {missing[0]}=SIZE"
                )
    _check_memory(graph, sizes)
    generator = np.random.default_rng(seed)
    limits = index_limits(graph, sizes)
    arrays = []
    for value in graph.inputs:
        shape = tuple(int(evaluate(dim, sizes)) for dim in value.shape)
        drawn = loaded.get(value.name)
        if drawn is None:
            drawn = draw(generator, value.dtype, shape, limits.get(value.name, SMALL_INTEGERS))
        arrays.append(_strided(value, drawn, sizes))
    return arrays, bind_symbols(graph.inputs, [a.shape for a in arrays], graph.guards)


def _check_memory(graph: Graph, sizes: Mapping[str, int]) -> None:
    """A typing error in a size must not fill the machine's memory."""
    names = [value.name for value in graph.inputs] + [output.name for output in graph.outputs]
    wanted = sum(int(evaluate(graph.values[name].bytes, sizes)) for name in names)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if wanted > there:
        raise ArgumentError(f"inputs and outputs take {wanted:,} bytes; this machine has {there:,}")


def draw(generator: np.random.Generator, dtype: DType, shape: tuple[int, ...], limit: int) -> Array:
    """Random values: floats are normal with deviation 1, integers in [0, limit), booleans even."""
    if dtype.is_float:
        wide = np.float64 if dtype is DType.FLOAT64 else np.float32
        return np.asarray(generator.standard_normal(shape, wide)).astype(dtype.numpy, copy=False)
    top = 2 if dtype is DType.BOOL else min(limit, int(np.iinfo(dtype.numpy).max))
    return np.asarray(generator.integers(0, max(top, 1), shape)).astype(dtype.numpy)


def index_limits(graph: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    """For each input that is used as positions, straight or through views: the least extent that it indexes."""
    limits: dict[str, int] = {}
    for node in reversed(graph.nodes):
        if node.kind is Kind.GATHER:
            data = graph.values[node.inputs[0]].shape
            axis = node.attrs.get("axis") or 0
            extent = int(evaluate(data[axis], sizes)) if data else 1
            limits[node.inputs[1]] = min(extent, limits.get(node.inputs[1], extent))
        elif node.kind in (Kind.VIEW, Kind.BROADCAST, Kind.JOIN) and node.name in limits:
            for name in node.inputs:
                limits[name] = min(limits[node.name], limits.get(name, limits[node.name]))
    return limits


def _strided(value: Value, array: Array, sizes: Mapping[str, int]) -> Array:
    """The same values at the strides that the signature asks for."""
    if value.strides is None or not array.size:
        return array
    strides = [int(evaluate(stride, sizes)) for stride in value.strides]
    reach = [(extent - 1) * stride for extent, stride in zip(array.shape, strides, strict=True)]
    first = -sum(min(each, 0) for each in reach)
    memory = np.zeros(first + sum(max(each, 0) for each in reach) + 1, array.dtype)
    steps = tuple(stride * array.itemsize for stride in strides)
    made = np.lib.stride_tricks.as_strided(memory[first:], array.shape, steps)
    made[...] = array
    return made


def types_of(arrays: Sequence[Array]) -> list[str]:
    """`float32[4, 8]`, one an array."""
    return [f"{dtypes.of(array)}{list(array.shape)}" for array in arrays]
