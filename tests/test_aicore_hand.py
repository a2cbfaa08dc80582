"""Ascend C kernels written by hand from the public documents run on the AI Core model as they stand.

They were written without a look at the generator or the model: what they rely on is the documented API.
"""

from __future__ import annotations

import functools
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from autofusion.runtime import aicore

KERNELS = Path(__file__).parent / "aicore" / "hand"
LENGTHS = (1, 7, 31, 33, 100, 127, 1000, 4096, 4097)
WIDTHS = (1, 7, 31, 33, 64, 100, 127, 1000, 4097)

Array = np.ndarray


@pytest.fixture(autouse=True)
def available() -> None:
    """Skips where the model cannot be built, and says why."""
    if reason := aicore.unavailable():
        pytest.skip(reason)


@functools.cache
def built(kernel: str) -> aicore.Model:
    """The model of `hand/<kernel>.cpp`, which defines the kernel of that name."""
    return aicore.build((KERNELS / f"{kernel}.cpp").read_text(), [kernel])


def run(kernel: str, buffers: list[Array], tiling: tuple[int | float, ...], blocks: int) -> None:
    """Runs a kernel in three orders of the cores; every field of a tiling is 4 bytes long. All runs must agree."""
    packed = b"".join(struct.pack("<f" if isinstance(field, float) else "<I", field) for field in tiling)
    first: list[Array] = []
    for seed in range(3):
        now = [buffer.copy() for buffer in buffers]
        built(kernel).run(kernel, now, packed, blocks, seed=seed)
        first = first or now
        for one, other in zip(first, now, strict=True):
            assert one.tobytes() == other.tobytes(), f"{kernel}: another order of the cores gives another result"
    for buffer, result in zip(buffers, first, strict=True):
        buffer[...] = result


def up(value: int, to: int) -> int:
    """`value` rounded up to a multiple of `to`."""
    return -(-value // to) * to


def split(units: int, blocks: int) -> tuple[int, int]:
    """Units of every core, and the number of cores that have one more."""
    return divmod(units, blocks)


def apart(blocks: int, row_bytes: int) -> int:
    """The cores that rows can be split between: two of them may not write one block of 32 bytes of global memory."""
    return blocks if row_bytes % 32 == 0 else 1


def unwritten(shape: int | tuple[int, ...], dtype: object = np.float32) -> Array:
    """A result that shows what a kernel left out."""
    return np.full(shape, np.nan, dtype)


def normal(shape: int | tuple[int, ...], dtype: object = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def assert_near(result: Array, expected: Array, rtol: float, atol: float | Array) -> None:
    """|result - expected| <= atol + rtol * |expected|, element by element; nothing may be NaN."""
    distance = np.abs(result.astype(np.float64) - expected)
    limit = atol + rtol * np.abs(expected)
    assert (distance <= limit).all(), f"worst excess {np.nanmax(distance - limit)}, NaN: {np.isnan(distance).any()}"


@pytest.mark.parametrize("blocks", [1, 3, 8])
@pytest.mark.parametrize("length", LENGTHS)
def test_vector_add(length: int, blocks: int) -> None:
    x, y, z = normal(length, np.float16), normal(length, np.float16, 1), unwritten(length, np.float16)
    unit, tile = 256, 384
    run("vector_add", [x, y, z], (length, unit, *split(-(-length // unit), blocks), tile), blocks)
    np.testing.assert_array_equal(z, x + y)


@pytest.mark.parametrize("scale, shift", [(1.0, 0.0), (-0.37, 0.25)])
@pytest.mark.parametrize("length", LENGTHS)
def test_axpy_relu(length: int, scale: float, shift: float) -> None:
    x, y = normal(length), unwritten(length)
    unit, tile, blocks = 128, 256, 5
    run("axpy_relu", [x, y], (length, unit, *split(-(-length // unit), blocks), tile, scale, shift), blocks)
    assert_near(y, np.maximum(x.astype(np.float64) * np.float32(scale) + np.float32(shift), 0), 1e-6, 1e-6)


@pytest.mark.parametrize("rows, blocks", [(1, 1), (5, 2), (33, 8)])
@pytest.mark.parametrize("width", [*WIDTHS, 255 * 64 + 64 + 3])
def test_row_softmax(width: int, rows: int, blocks: int) -> None:
    x, y = 4 * normal((rows, width)), unwritten((rows, width))
    blocks = apart(blocks, 4 * width)
    pitch, work = up(width, 8), up(2 * -(-width // 64), 8)
    buffers = 1 if width > 8192 else 2
    rows_per_tile = max(1, min(4, 40000 // (2 * buffers * 4 * pitch)))
    run("row_softmax", [x, y], (rows, width, pitch, rows_per_tile, *split(rows, blocks), work, buffers), blocks)
    power = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    assert_near(y, power / power.sum(1, keepdims=True), 1e-5, 1e-7)


@pytest.mark.parametrize("rows, blocks", [(1, 1), (5, 2), (33, 8)])
@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm(width: int, rows: int, blocks: int) -> None:
    x, y = 3 * normal((rows, width)) + 1, unwritten((rows, width))
    gamma, beta = normal(width, seed=1), normal(width, seed=2)
    blocks = apart(blocks, 4 * width)
    epsilon, pitch = 1e-3, up(width, 8)
    rows_per_tile = max(1, min(3, 40000 // (4 * 4 * pitch)))
    tiling = (rows, width, pitch, rows_per_tile, *split(rows, blocks), up(-(-width // 64), 8), epsilon, 1 / width)
    run("layer_norm", [x, gamma, beta, y], tiling, blocks)
    wide = x.astype(np.float64)
    deviation = np.sqrt(wide.var(1, keepdims=True) + epsilon)
    assert_near(y, (wide - wide.mean(1, keepdims=True)) / deviation * gamma + beta, 1e-5, 2e-5)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("blocks", [1, 4, 7])
@pytest.mark.parametrize("width", [*LENGTHS, 30011])
def test_row_sum(width: int, blocks: int, rows: int) -> None:
    x, sums, workspace = normal((rows, width)), unwritten(rows), unwritten((rows, blocks, 8))
    unit, tile = 128, 512
    tiling = (rows, width, unit, *split(-(-width // unit), blocks), tile, blocks, up(tile // 64, 8))
    run("row_sum", [x, sums, workspace], tiling, blocks)
    wide = x.astype(np.float64)
    assert_near(sums, wide.sum(1), 1e-6, 1e-6 * np.abs(wide).sum(1))


@pytest.mark.parametrize("blocks", [1, 6])
@pytest.mark.parametrize("m, n", [(16, 16), (16, 48), (128, 16), (112, 80), (48, 1008), (2064, 32)])
def test_transpose16(m: int, n: int, blocks: int) -> None:
    bits = np.random.default_rng(0).integers(0, 2**16, (m, n), dtype=np.uint16)
    y = np.zeros((n, m), np.uint16)
    tiles_per_step = 5
    steps_per_column = -(-m // 16 // tiles_per_step)
    tiling = (m, n, tiles_per_step, steps_per_column, *split(steps_per_column * n // 16, blocks))
    run("transpose16", [bits, y], tiling, blocks)
    np.testing.assert_array_equal(y, bits.T)


@pytest.mark.parametrize("count, blocks", [(1, 1), (7, 3), (100, 8)])
@pytest.mark.parametrize("width", [1, 7, 16, 31, 33, 100, 1000])
def test_embedding(width: int, count: int, blocks: int) -> None:
    entries, blocks = 37, apart(blocks, 2 * width)
    table, out = normal((entries, width), np.float16), unwritten((count, width), np.float16)
    index = np.random.default_rng(1).integers(0, entries, count).astype(np.int32)
    chunk, rows_per_tile, column_tile = 9, 4, 304
    tiling = (entries, width, count, *split(count, blocks), chunk, rows_per_tile, column_tile)
    run("embedding", [table, index, out], tiling, blocks)
    np.testing.assert_array_equal(out, table[index])


@pytest.mark.parametrize("length", LENGTHS)
def test_gelu_bf16(length: int) -> None:
    x, y = (4 * normal(length)).astype(ml_dtypes.bfloat16), unwritten(length, ml_dtypes.bfloat16)
    unit, tile, blocks = 128, 256, 5
    if length > 2:
        x[:3] = (-60, 60, 0)
    run("gelu_bf16", [x, y], (length, unit, *split(-(-length // unit), blocks), tile), blocks)
    wide = x.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    assert_near(y, wide / (1 + np.exp(np.minimum(-2 * inner, 700))), 2**-8, 1e-30)


@pytest.mark.parametrize("length", LENGTHS)
def test_where_clamp(length: int) -> None:
    condition, x, y = (normal(length, seed=seed) for seed in range(3))
    out = unwritten(length)
    unit, tile, blocks = 128, 512, 3
    limit, low, high = 0.1, -0.75, 1.5
    tiling = (length, unit, *split(-(-length // unit), blocks), tile, limit, low, high)
    run("where_clamp", [condition, x, y, out], tiling, blocks)
    chosen = np.where(condition > np.float32(limit), x, y)
    np.testing.assert_array_equal(out, np.clip(chosen, np.float32(low), np.float32(high)))


# m, n, k; base m, n, k; blocks. Rows that end in a tile of one row (33 by 32), K tails, more fractals than a barrier
# between two Mmad needs (64 by 64), and a single row of several fractals (1 by 1000).
PRODUCTS = (
    ((1, 1, 1), (16, 16, 16), 1),
    ((16, 16, 16), (16, 16, 16), 1),
    ((7, 31, 33), (16, 32, 16), 2),
    ((33, 100, 127), (32, 48, 32), 3),
    ((128, 128, 100), (64, 64, 32), 2),
    ((127, 33, 64), (64, 32, 64), 5),
    ((1, 100, 1000), (16, 48, 272), 2),
    ((7, 33, 4097), (16, 48, 128), 1),
    ((1000, 31, 7), (128, 32, 16), 4),
)


def operands(m: int, n: int, k: int) -> tuple[Array, Array, Array, Array]:
    """a, b, their product, and how far sums in fp32 may be from it."""
    a, b = normal((m, k), np.float16), normal((k, n), np.float16, 1)
    wide = a.astype(np.float64), b.astype(np.float64)
    return a, b, wide[0] @ wide[1], 1e-6 * (np.abs(wide[0]) @ np.abs(wide[1])) + 1e-7


def tiles(shape: tuple[int, int, int], base: tuple[int, int, int], blocks: int) -> tuple[int, int]:
    """Tiles of every core, and the number of cores that have one more."""
    return split(-(-shape[0] // base[0]) * -(-shape[1] // base[1]), blocks)


@pytest.mark.parametrize("shape, base, blocks", PRODUCTS)
def test_matmul(shape: tuple[int, int, int], base: tuple[int, int, int], blocks: int) -> None:
    m, n, k = shape
    a, b, product, error = operands(m, n, k)
    blocks = apart(blocks, 4 * n)
    c = unwritten((m, n))
    run("matmul", [a, b, c], (m, n, k, *base, *tiles(shape, base, blocks)), blocks)
    assert_near(c, product, 0, error)


@pytest.mark.parametrize("shape, base, blocks", PRODUCTS)
def test_matmul_bias_relu(shape: tuple[int, int, int], base: tuple[int, int, int], blocks: int) -> None:
    m, n, k = shape
    a, b, product, error = operands(m, n, k)
    blocks = apart(blocks, 2 * n)
    bias, c = np.zeros(up(n, 16), np.float32), unwritten((m, n), np.float16)
    bias[:n] = normal(n, seed=2)
    run("matmul_bias_relu", [a, b, bias, c], (m, n, k, up(n, 16), *base, *tiles(shape, base, blocks)), blocks)
    assert_near(c, np.maximum(product + bias[:n], 0), 2**-11, error + 2**-24)


# The two vector cores of a block split the rows of a tile, so these end on blocks of 32 bytes.
WHOLE_ROWS = (
    *(product for product in PRODUCTS if product[0][1] % 8 == 0),
    ((33, 104, 127), (32, 48, 32), 3),
    ((127, 40, 64), (64, 32, 64), 5),
    ((1, 104, 1000), (16, 48, 272), 2),
    ((1000, 32, 7), (128, 32, 16), 4),
)


@pytest.mark.parametrize("shape, base, blocks", WHOLE_ROWS)
def test_matmul_residual(shape: tuple[int, int, int], base: tuple[int, int, int], blocks: int) -> None:
    m, n, k = shape
    a, b, product, error = operands(m, n, k)
    residual, out = normal((m, n), seed=2), unwritten((m, n))
    slots, rows_per_step = 2, 9
    ring = unwritten((blocks, slots, base[0], base[1]))
    tiling = (m, n, k, *base, *tiles(shape, base, blocks), slots, rows_per_step)
    run("matmul_residual", [a, b, residual, out, ring], tiling, blocks)
    assert_near(out, product + residual, 1e-6, error)


# A kernel, the lines it loses, and a run that is right with them: each loss breaks a rule of the hardware.
BROKEN = {
    "no order between L1 to L0 and Mmad": (
        "matmul",
        ["SetFlag<HardEvent::MTE1_M>(l0Full[stage]);", "WaitFlag<HardEvent::MTE1_M>(l0Full[stage]);"],
        functools.partial(test_matmul, (32, 32, 48), (32, 32, 16), 1),
    ),
    "no barrier between two small Mmad to one tile": (
        "matmul",
        ["PipeBarrier<PIPE_M>();"],
        functools.partial(test_matmul, (32, 32, 48), (32, 32, 16), 1),
    ),
    "no order between Mmad and Fixpipe": (
        "matmul",
        ["SetFlag<HardEvent::M_FIX>(cFull);", "WaitFlag<HardEvent::M_FIX>(cFull);"],
        functools.partial(test_matmul, (32, 32, 48), (32, 32, 16), 1),
    ),
    "a flag left set": (
        "matmul",
        ["WaitFlag<HardEvent::M_MTE1>(l0Free[s]);"],
        functools.partial(test_matmul, (32, 32, 48), (32, 32, 16), 1),
    ),
    "no wait for a free slot of the ring": (
        "matmul_residual",
        ["CrossCoreWaitFlag(SLOT_FREE);  // both AIVs have read the tile that the slot held"],
        functools.partial(test_matmul_residual, (64, 64, 16), (16, 16, 16), 1),
    ),
    "no meeting of the cores": (
        "row_sum",
        ["SyncAll();"],
        functools.partial(test_row_sum, 1000, 4, 1),
    ),
    "lanes that nothing wrote": (
        "row_softmax",
        ["Duplicate(value, 0.0f, FLOATS_PER_BLOCK);  // Brcb reads eight values; only the first is used"],
        functools.partial(test_row_softmax, 64, 1, 1),
    ),
    "a tensor that is not freed": (
        "layer_norm",
        ["gammaQueue.FreeTensor(gamma);"],
        functools.partial(test_layer_norm, 64, 1, 1),
    ),
}


@pytest.mark.parametrize("loss", BROKEN)
def test_a_kernel_that_loses_a_line_is_refused(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, lines, launch = BROKEN[loss]
    launch()
    source = (KERNELS / f"{kernel}.cpp").read_text()
    for line in lines:
        assert source.count(line) == 1, f"{kernel}.cpp has no single {line!r}"
        source = source.replace(line, "")
    model = aicore.build(source, [kernel])
    monkeypatch.setitem(globals(), "built", lambda _: model)
    with pytest.raises(aicore.ModelViolation):
        launch()
