"""The functions of generated kernels that work on rows: many of them in one vector instruction, by repeat strides."""

from __future__ import annotations

# Structs of operations on rows: name, instruction, the same with a scalar, the identity and the reduction of folds, how
# many vectors are folded one after the other before halves are, and whether a NaN may get lost.
OPERATIONS: tuple[tuple[str, ...], ...] = (
    ("Plus", "Add", "Adds", "0", "WholeReduceSum", "16", "false"),
    ("Times", "Mul", "Muls", "1", "", "", "false"),
    ("Larger", "Max", "Maxs", "-INFINITE", "WholeReduceMax", "255", "true"),
    ("Smaller", "Min", "Mins", "INFINITE", "WholeReduceMin", "255", "true"),
    ("Minus", "Sub"),
    ("Over", "Div"),
)


def _operation(step: str, each: str = "", identity: str = "", close: str = "", most: str = "", loses: str = "") -> str:
    text = f"""
    template <typename T, typename Mask>
    static __aicore__ inline void Step(const LocalTensor<T>& to, const LocalTensor<T>& a, const LocalTensor<T>& b,
                                       Mask mask, int64_t repeats, const BinaryRepeatParams& form) {{
        {step}(to, a, b, mask, static_cast<uint8_t>(repeats), form);
    }}"""
    if each:
        text = f"""
    static constexpr bool LOSES_NAN = {loses};{text}
    template <typename T>
    static __aicore__ inline void Each(const LocalTensor<T>& to, T state, int64_t n) {{
        {each}(to, to, state, static_cast<int32_t>(n));
    }}"""
    if close:
        order = "" if close == "WholeReduceSum" else ", ReduceOrder::ORDER_ONLY_VALUE"
        text = f"""
    static constexpr float IDENTITY = {identity};
    static constexpr int64_t MOST = {most};{text}
    static __aicore__ inline void Close(const LocalTensor<float>& to, const LocalTensor<float>& from, int64_t mask,
                                        int64_t repeats, int64_t blocks) {{
        {close}(to, from, static_cast<int32_t>(mask), static_cast<int32_t>(repeats), 1, 1,
                       static_cast<int32_t>(blocks){order});
    }}"""
    return text


# name -> its text, in an order in which each only uses those before it and those of `prelude.FUNCTIONS`.
FUNCTIONS: dict[str, str] = {
    "Along": """// How an operand lies along a row: its elements behind each other, or one block or vector again and
// again.
enum class Along { ROW, BLOCK, VECTOR };""",
    **{name: f"struct {name} {{{_operation(*rest)}\n}};" for name, *rest in OPERATIONS},
    "FillBlocks": """// Elements, each into a block of its own.
template <typename T>
__aicore__ inline void FillBlocks(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t n) {
    for (int64_t first = 0; first < n; first += 2040) {
        Brcb(to[first * 8], from[first], static_cast<uint8_t>((Least(2040, n - first) + 7) / 8), {1, 8});
    }
}""",
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
                         static_cast<uint64_t>(vector), Least(height, rows - row), down);
            }
        }
    } else {
        for (int64_t row = 0; row < rows; ++row) {
            for (int64_t k = 0; k < whole; k += most) {
                const int64_t at = k * vector;
                Op::Step(to[row * toPitch + at * toStep], a[row * aPitch + at * aStep], b[row * bPitch + at * bStep],
                         static_cast<uint64_t>(vector), Least(most, whole - k), along);
            }
        }
    }
    if (rest > 0) {
        const int64_t at = whole * vector;
        for (int64_t row = 0; row < rows; row += height) {
            Op::Step(to[row * toPitch + at * toStep], a[row * aPitch + at * aStep], b[row * bPitch + at * bStep],
                     static_cast<uint64_t>(rest), Least(height, rows - row), down);
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
            FillBlocks(to[row * 8], folds, count);
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
    "CopyOf": """// Of float or int32.
template <typename T>
__aicore__ inline void CopyOf(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t n) {
    Muls(to, from, static_cast<T>(1), static_cast<int32_t>(n));
}""",
    "Scan": """// The running fold of rows, in place: each element with the one `step` before it, for steps 1, 2, 4 …
// Steps inside a block of 32 bytes go through Gather. `other`: as large as the rows; `offsets`: 2 x 1024.
template <typename Op, typename T>
__aicore__ inline void Scan(const LocalTensor<T>& row, const LocalTensor<T>& other, int64_t rows, int64_t n,
                            int64_t pitch, const LocalTensor<int32_t>& offsets) {
    constexpr int64_t part = 1024;
    const int64_t total = (rows - 1) * pitch + n;
    const LocalTensor<int32_t> early = offsets[part];
    const uint8_t blocks = static_cast<uint8_t>(rows > 1 ? pitch / 8 : 0);
    const BinaryRepeatParams down(1, 1, 1, blocks, blocks, blocks);
    CreateVecIndex(offsets, 0, part);
    Muls(offsets, offsets, 4, part);
    for (int64_t step = 1; step < n; step *= 2) {
        if (step >= 8) {
            CopyOf(other, row, total);
            ByRows<Op, Along::ROW, Along::ROW, Along::ROW>(row[step], row[step], other, rows, n - step, pitch, pitch,
                                                           pitch);
            continue;
        }
        Adds(early, offsets, static_cast<int32_t>(-4 * step), part);
        Maxs(early, early, 0, part);
        for (int64_t first = 0; first < total; first += part) {
            const LocalTensor<uint32_t> from = (first == 0 ? early : offsets).template ReinterpretCast<uint32_t>();
            Gather(other[first], row, from, static_cast<uint32_t>(first == 0 ? 0 : (first - step) * 4),
                   static_cast<uint32_t>(Least(part, total - first)));
        }
        const uint64_t lanes = n < 64 ? (1ULL << n) - 1 : ~0ULL;
        uint64_t mask[2] = {lanes >> step << step, 0};
        for (int64_t first = 0; first < rows; first += 255) {
            const int64_t at = first * pitch;
            Op::Step(row[at], row[at], other[at], static_cast<uint64_t*>(mask), Least(255, rows - first), down);
        }
        if (n > 64) {
            ByRows<Op, Along::ROW, Along::ROW, Along::ROW>(row[64], row[64], other[64], rows, n - 64, pitch, pitch,
                                                           pitch);
        }
    }
}""",
    "ScanRows": """// The running folds of rows: `group` of them at once, parts of at most `width` elements in turn.
template <typename Op, typename T>
__aicore__ inline void ScanRows(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t rows, int64_t n,
                                int64_t toPitch, int64_t pitch, const LocalTensor<float>& work, int64_t group,
                                int64_t width) {
    const LocalTensor<int32_t> offsets = work.template ReinterpretCast<int32_t>();
    const LocalTensor<T> row = work[2048].template ReinterpretCast<T>();
    const LocalTensor<T> other = row[group * width];
    for (int64_t first = 0; first < rows; first += group) {
        const int64_t count = Least(group, rows - first);
        for (int64_t start = 0; start < n; start += width) {
            const int64_t length = Least(width, n - start);
            for (int64_t k = 0; k < count; ++k) {
                CopyOf(row[k * width], from[(first + k) * pitch + start], length);
            }
            Scan<Op>(row, other, count, length, width, offsets);
            if (start > 0) {
                Op::Each(row, to.GetValue(first * toPitch + start - 1), length);
            }
            for (int64_t k = 0; k < count; ++k) {
                CopyOf(to[(first + k) * toPitch + start], row[k * width], length);
            }
        }
    }
    if constexpr (Op::LOSES_NAN && std::is_same_v<T, float>) {
        SumOfAll(work, from, rows, n, pitch, work[8]);
        const float sum = work.GetValue(0);
        for (int64_t k = 0; k < rows && sum != sum; ++k) {
            bool lost = false;
            for (int64_t i = 0; i < n; ++i) {
                const float value = from.GetValue(k * pitch + i);
                lost = lost || value != value;
                if (lost) {
                    to.SetValue(k * toPitch + i, QUIET_NAN);
                }
            }
        }
    }
}""",
    "AfterVector": """// Copies into the work area after what the vector unit does there, and before it.
__aicore__ inline void AfterVector() {
    const auto event = GetTPipePtr()->FetchEventID(HardEvent::V_MTE2);
    SetFlag<HardEvent::V_MTE2>(event);
    WaitFlag<HardEvent::V_MTE2>(event);
}""",
    "BeforeVector": """__aicore__ inline void BeforeVector() {
    const auto event = GetTPipePtr()->FetchEventID(HardEvent::MTE2_V);
    SetFlag<HardEvent::MTE2_V>(event);
    WaitFlag<HardEvent::MTE2_V>(event);
}""",
}
