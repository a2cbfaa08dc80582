"""The small functions that generated kernels share. A kernel's source has those that it uses, and what they use."""

from __future__ import annotations

import re

from autofusion.targets.ascend import prelude_rows

HEADER = """#include "kernel_operator.h"
using namespace AscendC;
"""

# name -> its text, in an order in which each only uses those before it.
FUNCTIONS: dict[str, str] = {
    "INFINITE": "constexpr float INFINITE = __builtin_inff();",
    "QUIET_NAN": 'constexpr float QUIET_NAN = __builtin_nanf("");',
    "Least": "__aicore__ inline int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }",
    "Greatest": "__aicore__ inline int64_t Greatest(int64_t a, int64_t b) { return a > b ? a : b; }",
    "FloorDivide": """__aicore__ inline int64_t FloorDivide(int64_t a, int64_t b) {
    return a / b - (a % b < 0 ? 1 : 0);
}""",
    "FloorRemainder": """__aicore__ inline int64_t FloorRemainder(int64_t a, int64_t b) {
    return a % b < 0 ? a % b + b : a % b;
}""",
    "RoundUp": """__aicore__ inline int32_t RoundUp(int32_t n, int32_t unit) {
    return (n + unit - 1) / unit * unit;
}""",
    "At": """// A part of a byte tensor, as elements of T.
template <typename T>
__aicore__ inline LocalTensor<T> At(const LocalTensor<uint8_t>& bytes, uint32_t offset) {
    return bytes[offset].ReinterpretCast<T>();
}""",
    "Load": """// rows x cols elements from global memory; pitches in elements. Rows on-chip are padded to 32 bytes.
template <typename T>
__aicore__ inline void Load(const LocalTensor<T>& to, const GlobalTensor<T>& from, int64_t rows, int64_t cols,
                            int64_t fromPitch, int64_t toPitch) {
    if (rows <= 0 || cols <= 0) {
        return;
    }
    const uint32_t bytes = static_cast<uint32_t>(cols * sizeof(T));
    const uint32_t filled = (bytes + 31) / 32 * 32;
    const DataCopyPadExtParams<T> pad{filled != bytes, 0, static_cast<uint8_t>((filled - bytes) / sizeof(T)),
                                      static_cast<T>(0)};
    const uint32_t gap = static_cast<uint32_t>((toPitch * sizeof(T) - filled) / 32);
    for (int64_t row = 0; row < rows; row += 4095) {
        const int64_t count = rows - row < 4095 ? rows - row : 4095;
        const uint32_t skip = count > 1 ? static_cast<uint32_t>((fromPitch - cols) * sizeof(T)) : 0;
        const DataCopyExtParams shape{static_cast<uint16_t>(count), bytes, skip, count > 1 ? gap : 0, 0};
        DataCopyPad(to[row * toPitch], from[row * fromPitch], shape, pad);
    }
}""",
    "Store": """// rows x cols elements to global memory; pitches in elements.
template <typename T>
__aicore__ inline void Store(const GlobalTensor<T>& to, const LocalTensor<T>& from, int64_t rows, int64_t cols,
                             int64_t toPitch, int64_t fromPitch) {
    if (rows <= 0 || cols <= 0) {
        return;
    }
    const uint32_t bytes = static_cast<uint32_t>(cols * sizeof(T));
    const uint32_t gap = static_cast<uint32_t>((fromPitch * sizeof(T) - (bytes + 31) / 32 * 32) / 32);
    for (int64_t row = 0; row < rows; row += 4095) {
        const int64_t count = rows - row < 4095 ? rows - row : 4095;
        const uint32_t skip = count > 1 ? static_cast<uint32_t>((toPitch - cols) * sizeof(T)) : 0;
        const DataCopyExtParams shape{static_cast<uint16_t>(count), bytes, count > 1 ? gap : 0, skip, 0};
        DataCopyPad(to[row * toPitch], from[row * fromPitch], shape);
    }
}""",
    "Spread": """// The element that fills the block `from`, n times: bit by bit, whatever it is.
__aicore__ inline void Spread(const LocalTensor<float>& to, const LocalTensor<float>& from, int32_t n) {
    const LocalTensor<uint16_t> bits = from.ReinterpretCast<uint16_t>(), goal = to.ReinterpretCast<uint16_t>();
    const int32_t repeats = n / 64, rest = n % 64;
    if (repeats > 0) {
        Or(goal, bits, bits, static_cast<uint64_t>(128), static_cast<uint8_t>(repeats), {1, 0, 0, 8, 0, 0});
    }
    if (rest > 0) {
        Or(goal[repeats * 128], bits, bits, static_cast<uint64_t>(rest * 2), 1, {1, 0, 0, 8, 0, 0});
    }
}""",
    "AnyOf": """// Whether one of the first n bits is set.
__aicore__ inline bool AnyOf(const LocalTensor<uint8_t>& mask, int32_t n) {
    const LocalTensor<uint64_t> words = mask.ReinterpretCast<uint64_t>();
    for (int32_t first = 0; first < n; first += 64) {
        const uint64_t word = words.GetValue(first / 64);
        if ((n - first < 64 ? word << (64 - (n - first)) : word) != 0) {
            return true;
        }
    }
    return false;
}""",
    "GreatestNumber": """// NaN if either is.
__aicore__ inline float GreatestNumber(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b; }""",
    "LeastNumber": """__aicore__ inline float LeastNumber(float a, float b) {
    return a != a ? a : b != b ? b : a < b ? a : b;
}""",
    "ToFloat": """// bfloat16 and half in scalar arithmetic.
template <typename T>
__aicore__ inline float ToFloat(T value) {
    if constexpr (sizeof(T) == 2) {
        return static_cast<float>(value);
    } else {
        return static_cast<float>(value != 0);
    }
}""",
    "FromFloat": """template <typename T>
__aicore__ inline T FromFloat(float value) { return static_cast<T>(value); }""",
    "Fill": """// One element into its whole block.
template <typename T>
__aicore__ inline void Fill(const LocalTensor<T>& to, int64_t address, T value) {
    for (int64_t lane = 0; lane < static_cast<int64_t>(32 / sizeof(T)); ++lane) {
        to.SetValue(address + lane, value);
    }
}""",
    "Bits": """// Integers wrap at their width.
template <typename T>
__aicore__ inline uint64_t Bits(T value) { return static_cast<uint64_t>(value); }""",
    "Wrapped": """template <typename T>
__aicore__ inline T Wrapped(uint64_t bits) { return static_cast<T>(bits); }""",
    "Magnitude": """template <typename T>
__aicore__ inline T Magnitude(T value) { return value < 0 ? Wrapped<T>(0 - Bits(value)) : value; }""",
    "FlooredQuotient": """// Rounded down; a division by zero is -1, and the least number by -1 wraps.
template <typename T>
__aicore__ inline T FlooredQuotient(T a, T b) {
    if (b == 0) {
        return static_cast<T>(-1);
    }
    if (static_cast<T>(-1) < 0 && b == static_cast<T>(-1)) {
        return Wrapped<T>(0 - Bits(a));
    }
    const T quotient = static_cast<T>(a / b), rest = static_cast<T>(a % b);
    return rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(quotient - 1) : quotient;
}""",
    "FlooredRemainder": """// With the divisor's sign; by zero it is the dividend.
template <typename T>
__aicore__ inline T FlooredRemainder(T a, T b) {
    if (b == 0) {
        return a;
    }
    if (static_cast<T>(-1) < 0 && b == static_cast<T>(-1)) {
        return 0;
    }
    const T rest = static_cast<T>(a % b);
    return rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
}""",
    "ShiftedLeft": """// By more than the width: 0.
template <typename T>
__aicore__ inline T ShiftedLeft(T a, T b) {
    return Bits(b) >= sizeof(T) * 8 ? static_cast<T>(0) : Wrapped<T>(Bits(a) << Bits(b));
}""",
    "ShiftedRight": """// By more than the width: all sign bits.
template <typename T>
__aicore__ inline T ShiftedRight(T a, T b) {
    const uint64_t most = sizeof(T) * 8 - 1;
    const bool over = Bits(b) > most;
    return over ? static_cast<T>(a < 0 ? -1 : 0) : static_cast<T>(a >> (over ? most : Bits(b)));
}""",
    "Truncated": """// Towards zero, to the nearest end where it does not fit; NaN to 0.
template <typename T>
__aicore__ inline T Truncated(float value) {
    constexpr T greatest = static_cast<T>(static_cast<T>(-1) < 0 ? ~(1ULL << (sizeof(T) * 8 - 1)) : ~0ULL);
    constexpr T least = static_cast<T>(static_cast<T>(-1) < 0 ? 1ULL << (sizeof(T) * 8 - 1) : 0);
    if (value != value) {
        return 0;
    }
    if (value >= static_cast<float>(greatest)) {
        return greatest;
    }
    return value <= static_cast<float>(least) ? least : static_cast<T>(value);
}""",
    "FractalForm": """// How the rows of an operand lie: as the product reads them; so, and a single row stays a row;
// along the other axis, to be turned on the way to L0.
enum class FractalForm { Plain, Single, Turned };""",
    "Fractals": """// A matrix of rows x cols in global memory to fractals in L1. What will be turned lies in squares:
// of 32-bit elements each 16 rows are a matrix of their own, of bytes the rows are filled up to 32.
template <FractalForm form, typename T>
__aicore__ inline void Fractals(const LocalTensor<T>& to, const GlobalTensor<T>& from, int64_t rows, int64_t cols,
                                int64_t pitch) {
    if (rows <= 0 || cols <= 0) {
        return;
    }
    constexpr int64_t lanes = 32 / sizeof(T);
    constexpr bool squares = form == FractalForm::Turned && sizeof(T) == 4;
    constexpr int32_t unit = form == FractalForm::Turned && sizeof(T) == 1 ? 32 : 16;
    const int64_t part = squares ? 16 : rows;
    for (int64_t first = 0; first < rows; first += part) {
        const int64_t count = Least(part, rows - first);
        const int64_t whole = squares ? 16 : RoundUp(static_cast<int32_t>(rows), unit);
        const int64_t blocks = form == FractalForm::Single && rows == 1 ? 1 : whole;
        const int64_t base = first * RoundUp(static_cast<int32_t>(cols), 16);
        const bool direct = pitch > 0 && pitch <= 65535;  // else a copy a row: the same one, or far apart
        Nd2NzParams shape;
        shape.ndNum = 1;
        shape.nValue = static_cast<uint16_t>(direct ? count : 1);
        shape.dValue = static_cast<uint16_t>(cols);
        shape.srcNdMatrixStride = 0;
        shape.srcDValue = static_cast<uint16_t>(direct ? pitch : cols);
        shape.dstNzC0Stride = static_cast<uint16_t>(blocks);
        shape.dstNzNStride = 1;
        shape.dstNzMatrixStride = 0;
        for (int64_t row = 0; row < count; row += direct ? count : 1) {
            DataCopy(to[base + row * lanes], from[(first + row) * pitch], shape);
        }
    }
}""",
    "FractalRun": """// Fractals from L1 to L0, `count` of them `stride` apart.
template <typename T>
__aicore__ inline void FractalRun(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t count, int64_t stride,
                                  bool turned) {
    constexpr int64_t elements = 512 / sizeof(T);
    for (int64_t first = 0; first < count; first += 255) {
        LoadData2DParams run;
        run.startIndex = 0;
        run.repeatTimes = static_cast<uint8_t>(Least(255, count - first));
        run.srcStride = static_cast<uint16_t>(stride);
        run.dstGap = 0;
        run.ifTranspose = turned;
        LoadData(to[first * elements], from[first * stride * elements], run);
    }
}""",
    "Left": """// m x k of the left operand to L0A: fractals row by row, on arch 3510 column by column. A single row
// stays a row.
template <typename T>
__aicore__ inline void Left(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t m, int64_t k) {
    constexpr int64_t lanes = 32 / sizeof(T), elements = 512 / sizeof(T);
    if (m == 1) {
        FractalRun(to, from, (k + elements - 1) / elements, 1, false);
        return;
    }
    const int64_t rows = (m + 15) / 16, depth = (k + lanes - 1) / lanes;
    if constexpr (__NPU_ARCH__ == 3510) {
        FractalRun(to, from, rows * depth, 1, false);
        return;
    }
    for (int64_t row = 0; row < rows; ++row) {
        FractalRun(to[row * depth * elements], from[row * elements], depth, rows, false);
    }
}""",
    "SquareRun": """// Squares of 16 x 16 of 32-bit elements, or of 32 x 32 bytes, `stride` apart, turned on their way
// from L1 to L0. Each becomes two fractals, with `halves` between them; `gap`: from the first of one to the first of
// the next.
template <typename T>
__aicore__ inline void SquareRun(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t count, int64_t stride,
                                 int64_t gap, int64_t halves) {
    LoadData2dTransposeParams run;
    run.startIndex = 0;
    run.repeatTimes = static_cast<uint8_t>(count);
    run.srcStride = static_cast<uint16_t>(stride);
    run.dstGap = static_cast<uint16_t>(gap);
    run.dstFracGap = static_cast<uint16_t>(halves);
    LoadDataWithTranspose(to, from, run);
}""",
    "ByteColumns": """// Bytes of k x n to fractals column by column. A square has two fractals along n. Where the last
// is one too many, it lands where the next step begins, which then writes over it.
template <typename T>
__aicore__ inline void ByteColumns(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t n, int64_t k) {
    const int64_t columns = (n + 15) / 16, depth = (k + 31) / 32;
    for (int64_t step = 0; step < depth; ++step) {
        SquareRun(to[step * columns * 512], from[step * 1024], (n + 31) / 32, depth, 1, 0);
        if (columns % 2 != 0 && step + 1 < depth) {
            PipeBarrier<PIPE_MTE1>();
        }
    }
}""",
    "LeftTurnedBytes": """// The same from k x m.
template <typename T>
__aicore__ inline void LeftTurnedBytes(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t m, int64_t k) {
    if constexpr (__NPU_ARCH__ == 3510) {
        ByteColumns(to, from, m, k);
        return;
    }
    const int64_t squares = (k + 31) / 32;
    for (int64_t row = 0; row < (m + 31) / 32; ++row) {
        SquareRun(to[row * squares * 1024], from[row * squares * 1024], squares, 1, 0, squares - 1);
    }
}""",
    "LeftTurned": """// The same from k x m.
template <typename T>
__aicore__ inline void LeftTurned(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t m, int64_t k) {
    const int64_t rows = (m + 15) / 16, depth = (k + 15) / 16;
    if constexpr (__NPU_ARCH__ == 3510) {
        for (int64_t step = 0; step < depth; ++step) {
            if constexpr (sizeof(T) == 4) {
                SquareRun(to[step * rows * 256], from[step * rows * 256], rows, 1, 0, rows - 1);
            } else {
                FractalRun(to[step * rows * 256], from[step * 256], rows, depth, true);
            }
        }
    } else if constexpr (sizeof(T) == 4) {
        // A square has two fractals along k. Where the last is one too many, it lands where the next row begins, and is
        // written over by the steps before, which come after it.
        const int64_t fractals = (k + 7) / 8;
        for (int64_t step = depth - 1; step >= 0; --step) {
            SquareRun(to[step * 256], from[step * rows * 256], rows, 1, fractals - 1, 0);
            if (fractals % 2 != 0 && step > 0) {
                PipeBarrier<PIPE_MTE1>();
            }
        }
    } else {
        FractalRun(to, from, rows * depth, 1, true);
    }
}""",
    "Right": """// k x n of the right operand to L0B, from n x k: the fractals as they are.
template <typename T>
__aicore__ inline void Right(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t n, int64_t k) {
    constexpr int64_t lanes = 32 / sizeof(T);
    FractalRun(to, from, (n + 15) / 16 * ((k + lanes - 1) / lanes), 1, false);
}""",
    "RightTurnedBytes": """// The same from k x n.
template <typename T>
__aicore__ inline void RightTurnedBytes(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t n, int64_t k) {
    ByteColumns(to, from, n, k);
}""",
    "RightTurned": """// The same from k x n: each fractal is turned.
template <typename T>
__aicore__ inline void RightTurned(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t n, int64_t k) {
    const int64_t columns = (n + 15) / 16, depth = (k + 15) / 16;
    for (int64_t step = 0; step < depth; ++step) {
        if constexpr (sizeof(T) == 4) {
            SquareRun(to[step * columns * 256], from[step * columns * 256], columns, 1, 0, columns - 1);
        } else {
            FractalRun(to[step * columns * 256], from[step * 256], columns, depth, true);
        }
    }
}""",
    "ToBiasTable": """// n numbers from L1 to the bias table, in blocks of 64 bytes, or of 32 on arch 3510; half becomes
// float.
template <typename A, typename T>
__aicore__ inline void ToBiasTable(const LocalTensor<A>& to, const LocalTensor<T>& from, int64_t n) {
    constexpr int64_t blocks = __NPU_ARCH__ == 2201 ? 1 : 2;
    DataCopy(to, from, DataCopyParams{1, static_cast<uint16_t>((n + 15) / 16 * blocks), 0, 0});
}""",
    "Ordered": """// Products onto one small tile are not kept in order by the hardware.
__aicore__ inline void Ordered(int64_t m, int64_t n) {
    if ((m / 16) * (n / 16) < 10) {
        PipeBarrier<PIPE_M>();
    }
}""",
    "ProductOf": """__aicore__ inline MmadParams ProductOf(int64_t m, int64_t n, int64_t k, bool fresh) {
    MmadParams shape;
    shape.m = static_cast<uint16_t>(m);
    shape.n = static_cast<uint16_t>(n);
    shape.k = static_cast<uint16_t>(k);
    shape.cmatrixInitVal = fresh;
    shape.cmatrixSource = false;
    shape.unitFlag = 0;
    return shape;
}""",
    "Multiply": """template <typename A, typename T>
__aicore__ inline void Multiply(const LocalTensor<A>& to, const LocalTensor<T>& left, const LocalTensor<T>& right,
                                int64_t m, int64_t n, int64_t k, bool fresh) {
    if (!fresh) {
        Ordered(m, n);
    }
    Mmad(to, left, right, ProductOf(m, n, k, fresh));
}""",
    "MultiplyOnto": """// The first product starts from the bias.
template <typename A, typename T>
__aicore__ inline void MultiplyOnto(const LocalTensor<A>& to, const LocalTensor<T>& left,
                                    const LocalTensor<T>& right, const LocalTensor<A>& bias, int64_t m, int64_t n,
                                    int64_t k, bool fresh) {
    if (fresh) {
        Mmad(to, left, right, bias, ProductOf(m, n, k, false));
        return;
    }
    Ordered(m, n);
    Mmad(to, left, right, ProductOf(m, n, k, false));
}""",
    "DrainShape": """// m x n results to global memory, row by row.
__aicore__ inline FixpipeParamsV220 DrainShape(int64_t m, int64_t n, int64_t pitch, bool relu) {
    FixpipeParamsV220 shape;
    shape.nSize = static_cast<uint16_t>(n);
    shape.mSize = static_cast<uint16_t>(m);
    shape.srcStride = static_cast<uint16_t>((m + 15) / 16 * 16);
    shape.dstStride = static_cast<uint32_t>(pitch);
    shape.quantPre = QuantMode_t::NoQuant;
    shape.reluEn = relu;
    shape.unitFlag = 0;
    shape.ndNum = 1;
    shape.srcNdStride = 0;
    shape.dstNdStride = 0;
    return shape;
}""",
    "Drain": """// ReLU and the rounding to T happen on the way.
template <typename T, typename A>
__aicore__ inline void Drain(const GlobalTensor<T>& to, const LocalTensor<A>& from, int64_t m, int64_t n,
                             int64_t pitch, bool relu) {
    FixpipeParamsV220 shape = DrainShape(m, n, pitch, relu);
    if constexpr (std::is_same_v<T, half>) {
        shape.quantPre = QuantMode_t::F322F16;
    } else if constexpr (std::is_same_v<T, bfloat16_t>) {
        shape.quantPre = QuantMode_t::F322BF16;
    }
    Fixpipe<T, A, CFG_ROW_MAJOR>(to, from, shape);
}""",
    "DrainScaled": """// int32 to half: multiplied by the float32 of these bits on the way.
__aicore__ inline void DrainScaled(const GlobalTensor<half>& to, const LocalTensor<int32_t>& from, int64_t m, int64_t n,
                                   int64_t pitch, bool relu, uint64_t scale) {
    FixpipeParamsV220 shape = DrainShape(m, n, pitch, relu);
    shape.quantPre = QuantMode_t::DEQF16;
    shape.deqScalar = scale;
    Fixpipe<half, int32_t, CFG_ROW_MAJOR>(to, from, shape);
}""",
    "Failures": """// The first failed check of this core: its number + 1, and the position.
struct Failures {
    GlobalTensor<int64_t> slots;
    int64_t number = 0, position = 0, core = 0;
    __aicore__ inline void Init(GM_ADDR status, int64_t index) {
        slots.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(status));
        core = index;
    }
    // A position counts from the end where it is negative; one outside is clamped and recorded.
    __aicore__ inline int64_t Checked(int64_t at, int64_t extent, int64_t check, int64_t ordinal) {
        const int64_t inside = at < 0 ? at + extent : at;
        if (inside >= 0 && inside < extent) {
            return inside;
        }
        if (number == 0 || check + 1 < number || (check + 1 == number && ordinal < position)) {
            number = check + 1;
            position = ordinal;
        }
        return inside < 0 ? 0 : extent - 1;
    }
    __aicore__ inline void Report(const LocalTensor<int64_t>& slot) {
        if (number == 0) {
            return;
        }
        slot.SetValue(0, number);
        slot.SetValue(1, position);
        slot.SetValue(2, 0);
        slot.SetValue(3, 0);
        DataCopy(slots[core * 4], slot, 4);
    }
};""",
    "Ring": """// Tiles from the cube to its two vector cores, through global memory: one is read while the next is
// written. Both vector cores pass every tile; the one that it is not for skips it.
template <typename T, int Ready, int Free>
struct Ring {
    static constexpr int64_t DEPTH = 2;
    GlobalTensor<T> slots;
    int64_t size = 0, passed = 0;
    __aicore__ inline void Init(GM_ADDR address, int64_t elements) {
        slots.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(address));
        size = elements;
    }
    __aicore__ inline GlobalTensor<T> ToFill() {
        if (passed >= DEPTH) {
            CrossCoreWaitFlag(Free);
        }
        return slots[passed % DEPTH * size];
    }
    __aicore__ inline void Filled() {
        CrossCoreSetFlag<2, PIPE_FIX>(Ready);
        ++passed;
    }
    __aicore__ inline void Close() {
        for (; passed > 0; passed = passed > DEPTH ? DEPTH - 1 : passed - 1) {
            CrossCoreWaitFlag(Free);
        }
    }
    __aicore__ inline GlobalTensor<T> ToRead() {
        CrossCoreWaitFlag(Ready);
        return slots[passed % DEPTH * size];
    }
    __aicore__ inline void Read() {
        CrossCoreSetFlag<2, PIPE_MTE2>(Free);
        ++passed;
    }
    __aicore__ inline void Skip() {
        CrossCoreWaitFlag(Ready);
        Read();
    }
};""",
    "DirectRing": """// Tiles from the cube into the unified buffer of one of its two vector cores, each of which has
// slots of its own: one is read while the next is written. The vector core gives both away when it
// opens the kernel, behind the barrier that completes what used their bytes. Flags of the second
// vector core are 16 further on the cube's side.
template <typename T, int Ready, int Free>
struct DirectRing {
    static constexpr int64_t DEPTH = 2, SECOND = 16;
    LocalTensor<T> slots;
    int64_t size = 0, passed[2] = {0, 0};
    TEventID scalarDone = 0;
    __aicore__ inline void Init(TPipe& pipe, const LocalTensor<uint8_t>& memory, int64_t elements) {
        slots = memory.ReinterpretCast<T>();
        size = elements;
        if ASCEND_IS_AIV {
            scalarDone = pipe.FetchEventID(HardEvent::S_V);
            for (int64_t slot = 0; slot < DEPTH; ++slot) {
                CrossCoreSetFlag<4, PIPE_V>(Free);
            }
        }
    }
    __aicore__ inline LocalTensor<T> ToFill(int64_t turn) {
        CrossCoreWaitFlag<4>(Free + turn * SECOND);
        return slots[passed[turn] % DEPTH * size];
    }
    __aicore__ inline void Filled(int64_t turn) {
        CrossCoreSetFlag<4, PIPE_FIX>(Ready + turn * SECOND);
        ++passed[turn];
    }
    __aicore__ inline void Close() {
        for (int64_t turn = 0; turn < 2; ++turn) {
            for (int64_t slot = 0; slot < DEPTH; ++slot) {
                CrossCoreWaitFlag<4>(Free + turn * SECOND);
            }
        }
    }
    __aicore__ inline LocalTensor<T> ToRead() {
        CrossCoreWaitFlag<4>(Ready);
        return slots[passed[0] % DEPTH * size];
    }
    __aicore__ inline void Read() {  // by whichever unit
        SetFlag<HardEvent::S_V>(scalarDone);
        WaitFlag<HardEvent::S_V>(scalarDone);
        CrossCoreSetFlag<4, PIPE_V>(Free);
        ++passed[0];
    }
};""",
    "DrainDirect": """// m x n results into the unified buffer of a vector core; rows are filled up to 32 bytes.
constexpr FixpipeConfig TO_UB = {CO2Layout::ROW_MAJOR, true};

template <typename T>
__aicore__ inline void DrainDirect(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t m, int64_t n,
                                   int64_t pitch, int64_t turn) {
    FixpipeParamsArch3510<CO2Layout::ROW_MAJOR> shape;
    shape.nSize = static_cast<uint16_t>(RoundUp(static_cast<int32_t>(n), 8));
    shape.mSize = static_cast<uint16_t>(m);
    shape.srcStride = static_cast<uint16_t>((m + 15) / 16 * 16);
    shape.dstStride = static_cast<uint32_t>(pitch);
    shape.quantPre = QuantMode_t::NoQuant;
    shape.reluEn = false;
    shape.unitFlag = 0;
    shape.params.ndNum = 1;
    shape.params.srcNdStride = 0;
    shape.params.dstNdStride = 0;
    shape.dualDstCtrl = 0;
    shape.subBlockId = static_cast<uint8_t>(turn);
    Fixpipe<T, T, TO_UB>(to, from, shape);
}""",
    "Share": """// The chunks of this core: a balanced part, cut where no two cores write one block of 32 bytes.
struct Share {
    int64_t first, last;
    __aicore__ inline Share(int64_t chunks, int64_t unit, int64_t core, int64_t cores) {
        const int64_t units = (chunks + unit - 1) / unit;
        first = Least(units * core / cores * unit, chunks);
        last = Least(units * (core + 1) / cores * unit, chunks);
    }
};""",
    **prelude_rows.FUNCTIONS,
}


def functions(text: str) -> str:
    """The functions that a text uses, directly or not, in the order of the table."""
    wanted: set[str] = set()
    search = [text]
    while search:
        words = set(re.findall(r"\w+", search.pop()))
        for name, body in FUNCTIONS.items():
            if name in words and name not in wanted:
                wanted.add(name)
                search.append(body)
    return "\n\n".join(body for name, body in FUNCTIONS.items() if name in wanted)
