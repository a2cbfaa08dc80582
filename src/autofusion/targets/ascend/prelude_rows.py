"""The functions of generated kernels that work on rows: many of them in one vector instruction, by repeat strides."""

from __future__ import annotations

# name -> its text, in an order in which each only uses those before it and those of `prelude.FUNCTIONS`.
FUNCTIONS: dict[str, str] = {
    "Along": """// How an operand lies along a row: its elements behind each other, or one block or vector again and
// again.
enum class Along { ROW, BLOCK, VECTOR };""",
    "Plus": """// Operations on rows. For folds: their identity, how many vectors are folded one after the other before
// halves are, and whether a NaN may get lost.
struct Plus {
    static constexpr float IDENTITY = 0.0f;
    static constexpr int64_t MOST = 16;
    static constexpr bool LOSES_NAN = false;
    template <typename T>
    static __aicore__ inline void Step(const LocalTensor<T>& to, const LocalTensor<T>& a, const LocalTensor<T>& b,
                                       uint64_t mask, int64_t repeats, const BinaryRepeatParams& form) {
        Add(to, a, b, mask, static_cast<uint8_t>(repeats), form);
    }
    static __aicore__ inline void Close(const LocalTensor<float>& to, const LocalTensor<float>& from, int64_t mask,
                                        int64_t repeats, int64_t blocks) {
        WholeReduceSum(to, from, static_cast<int32_t>(mask), static_cast<int32_t>(repeats), 1, 1,
                       static_cast<int32_t>(blocks));
    }
};""",
    **{
        name: f"""struct {name} {{
    static constexpr float IDENTITY = {identity};
    static constexpr int64_t MOST = 255;
    static constexpr bool LOSES_NAN = true;
    template <typename T>
    static __aicore__ inline void Step(const LocalTensor<T>& to, const LocalTensor<T>& a, const LocalTensor<T>& b,
                                       uint64_t mask, int64_t repeats, const BinaryRepeatParams& form) {{
        {step}(to, a, b, mask, static_cast<uint8_t>(repeats), form);
    }}
    static __aicore__ inline void Close(const LocalTensor<float>& to, const LocalTensor<float>& from, int64_t mask,
                                        int64_t repeats, int64_t blocks) {{
        WholeReduce{step}(to, from, static_cast<int32_t>(mask), static_cast<int32_t>(repeats), 1, 1,
                       static_cast<int32_t>(blocks), ReduceOrder::ORDER_ONLY_VALUE);
    }}
}};"""
        for name, step, identity in (("Larger", "Max", "-INFINITE"), ("Smaller", "Min", "INFINITE"))
    },
    **{
        name: f"""struct {name} {{
    template <typename T>
    static __aicore__ inline void Step(const LocalTensor<T>& to, const LocalTensor<T>& a, const LocalTensor<T>& b,
                                       uint64_t mask, int64_t repeats, const BinaryRepeatParams& form) {{
        {step}(to, a, b, mask, static_cast<uint8_t>(repeats), form);
    }}
}};"""
        for name, step in (("Minus", "Sub"), ("Times", "Mul"), ("Over", "Div"))
    },
    "ByRows": """// to = a op b for rows of n elements; the pitches of rows in elements. A repeat is a vector of each
// row, or the next vector of one row, whatever takes fewer instructions.
template <typename Op, Along To, Along A, Along B, typename T>
__aicore__ inline void ByRows(const LocalTensor<T>& to, const LocalTensor<T>& a, const LocalTensor<T>& b, int64_t rows,
                              int64_t n, int64_t toPitch, int64_t aPitch, int64_t bPitch) {
    constexpr int64_t lanes = 32 / sizeof(T), vector = 8 * lanes, most = 255;
    constexpr uint8_t toBlock = To != Along::BLOCK, aBlock = A != Along::BLOCK, bBlock = B != Along::BLOCK;
    constexpr int64_t toStep = To == Along::ROW, aStep = A == Along::ROW, bStep = B == Along::ROW;
    const int64_t whole = n / vector, rest = n % vector;
    const bool together = Greatest(toPitch, Greatest(aPitch, bPitch)) <= most * lanes;
    const BinaryRepeatParams along(toBlock, aBlock, bBlock, 8 * toStep, 8 * aStep, 8 * bStep);
    const BinaryRepeatParams down(toBlock, aBlock, bBlock, static_cast<uint8_t>(together ? toPitch / lanes : 0),
                                  static_cast<uint8_t>(together ? aPitch / lanes : 0),
                                  static_cast<uint8_t>(together ? bPitch / lanes : 0));
    const int64_t height = together ? most : 1;
    if (together && whole <= rows) {
        for (int64_t row = 0; row < rows; row += height) {
            for (int64_t k = 0; k < whole * vector; k += vector) {
                Op::Step(to[row * toPitch + k * toStep], a[row * aPitch + k * aStep], b[row * bPitch + k * bStep],
                         vector, Least(height, rows - row), down);
            }
        }
    } else {
        for (int64_t row = 0; row < rows; ++row) {
            for (int64_t k = 0; k < whole; k += most) {
                const int64_t at = k * vector;
                Op::Step(to[row * toPitch + at * toStep], a[row * aPitch + at * aStep], b[row * bPitch + at * bStep],
                         vector, Least(most, whole - k), along);
            }
        }
    }
    if (rest > 0) {
        const int64_t at = whole * vector;
        for (int64_t row = 0; row < rows; row += height) {
            Op::Step(to[row * toPitch + at * toStep], a[row * aPitch + at * aStep], b[row * bPitch + at * bStep], rest,
                     Least(height, rows - row), down);
        }
    }
}""",
    "FoldEach": """// The fold of each row, one behind the other: the vectors of a row onto one, then its lanes.
template <typename Op>
__aicore__ inline void FoldEach(const LocalTensor<float>& to, const LocalTensor<float>& rowsFrom, int64_t rows,
                                int64_t n, int64_t pitch, const LocalTensor<float>& room) {
    constexpr int64_t part = Op::MOST * 64;
    LocalTensor<float> from = rowsFrom, sums = room;
    while (n > 64) {
        const int64_t width = (n + part - 1) / part * 64;
        Duplicate(sums, Op::IDENTITY, static_cast<int32_t>(rows * width));
        for (int64_t first = 0; first < n; first += part) {
            const LocalTensor<float> sum = sums[first / Op::MOST];
            ByRows<Op, Along::VECTOR, Along::ROW, Along::VECTOR>(sum, from[first], sum, rows, Least(part, n - first),
                                                                 width, pitch, width);
        }
        from = sums;
        sums = sums[rows * width];
        n = width;
        pitch = width;
    }
    for (int64_t row = 0; row < rows; row += 255) {
        Op::Close(to[row], from[row * pitch], n, Least(255, rows - row), pitch / 8);
    }
}""",
    "SumOfAll": """// One sum of all rows.
__aicore__ inline void SumOfAll(const LocalTensor<float>& to, const LocalTensor<float>& from, int64_t rows, int64_t n,
                                int64_t pitch, const LocalTensor<float>& room) {
    const bool joined = n == pitch && n % 64 == 0;
    Duplicate(room, 0.0f, 64);
    ByRows<Plus, Along::VECTOR, Along::ROW, Along::VECTOR>(room, from, room, joined ? 1 : rows, joined ? rows * n : n,
                                                           0, pitch, 0);
    Plus::Close(to, room, 64, 1, 8);
}""",
    "HoldsNaN": """// A sum with NaN is NaN, and so is one of both infinities: only then are the elements looked at.
__aicore__ inline bool HoldsNaN(const LocalTensor<float>& row, int64_t n, const LocalTensor<float>& room) {
    SumOfAll(room[64], row, 1, n, n, room);
    const float sum = room.GetValue(64);
    for (int64_t i = 0; i < n && sum != sum; ++i) {
        const float value = row.GetValue(i);
        if (value != value) {
            return true;
        }
    }
    return false;
}""",
    "FoldRows": """// The folds of rows, each in a block of its own or one behind the other. Max and Min are not
// promised to keep a NaN: a sum tells whether there may be one.
template <typename Op, bool Blocks>
__aicore__ inline void FoldRows(const LocalTensor<float>& to, const LocalTensor<float>& from, int64_t rows, int64_t n,
                                int64_t pitch, const LocalTensor<float>& work, int64_t group) {
    const LocalTensor<float> folds = work[8], room = work[8 + (group + 7) / 8 * 8];
    if constexpr (Op::LOSES_NAN) {
        SumOfAll(work, from, rows, n, pitch, room);
    }
    for (int64_t row = 0; row < rows; row += group) {
        const int64_t count = Least(group, rows - row);
        if constexpr (Blocks) {
            FoldEach<Op>(folds, from[row * pitch], count, n, pitch, room);
            Brcb(to[row * 8], folds, static_cast<uint8_t>((count + 7) / 8), {1, 8});
        } else {
            FoldEach<Op>(to[row], from[row * pitch], count, n, pitch, room);
        }
    }
    if constexpr (Op::LOSES_NAN) {
        const float sum = work.GetValue(0);
        for (int64_t row = 0; row < rows && sum != sum; ++row) {
            if (HoldsNaN(from[row * pitch], n, room)) {
                if constexpr (Blocks) {
                    Duplicate(to[row * 8], QUIET_NAN, 8);
                } else {
                    to.SetValue(row, QUIET_NAN);
                }
            }
        }
    }
}""",
}
