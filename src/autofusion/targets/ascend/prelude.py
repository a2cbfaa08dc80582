"""The small functions that generated kernels share. A kernel's source has those that it uses, and what they use."""

from __future__ import annotations

import re

from autofusion.targets.ascend import prelude_cube, prelude_rows

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
    "Share": """// The chunks of this core: a balanced part, cut where no two cores write one block of 32 bytes.
struct Share {
    int64_t first, last;
    __aicore__ inline Share(int64_t chunks, int64_t unit, int64_t core, int64_t cores) {
        const int64_t units = (chunks + unit - 1) / unit;
        first = Least(units * core / cores * unit, chunks);
        last = Least(units * (core + 1) / cores * unit, chunks);
    }
};""",
    **prelude_cube.FUNCTIONS,
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
