// matmul_add_softmax_950 for ascend950: 1 kernel, one launch. Generated; not for editing.
#include "kernel_operator.h"
using namespace AscendC;


constexpr float INFINITE = __builtin_inff();

constexpr float QUIET_NAN = __builtin_nanf("");

__aicore__ inline int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

__aicore__ inline int64_t Greatest(int64_t a, int64_t b) { return a > b ? a : b; }

__aicore__ inline int32_t RoundUp(int32_t n, int32_t unit) {
    return (n + unit - 1) / unit * unit;
}

// A part of a byte tensor, as elements of T.
template <typename T>
__aicore__ inline LocalTensor<T> At(const LocalTensor<uint8_t>& bytes, uint32_t offset) {
    return bytes[offset].ReinterpretCast<T>();
}

// rows x cols elements from global memory; pitches in elements. Rows on-chip are padded to 32 bytes.
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
}

// rows x cols elements to global memory; pitches in elements.
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
}

// The chunks of this core: a balanced part, cut where no two cores write one block of 32 bytes.
struct Share {
    int64_t first, last;
    __aicore__ inline Share(int64_t chunks, int64_t unit, int64_t core, int64_t cores) {
        const int64_t units = (chunks + unit - 1) / unit;
        first = Least(units * core / cores * unit, chunks);
        last = Least(units * (core + 1) / cores * unit, chunks);
    }
};

// How the rows of an operand lie: as the product reads them; so, and a single row stays a row;
// along the other axis, to be turned on the way to L0.
enum class FractalForm { Plain, Single, Turned };

// A matrix of rows x cols in global memory to fractals in L1. What will be turned lies in squares:
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
}

// Fractals from L1 to L0, `count` of them `stride` apart.
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
}

// m x k of the left operand to L0A: fractals row by row, on arch 3510 column by column. A single row
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
}

// Squares of 16 x 16 of 32-bit elements, or of 32 x 32 bytes, `stride` apart, turned on their way
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
}

// The same from k x n: each fractal is turned.
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
}

// Products onto one small tile are not kept in order by the hardware.
__aicore__ inline void Ordered(int64_t m, int64_t n) {
    if ((m / 16) * (n / 16) < 10) {
        PipeBarrier<PIPE_M>();
    }
}

__aicore__ inline MmadParams ProductOf(int64_t m, int64_t n, int64_t k, bool fresh) {
    MmadParams shape;
    shape.m = static_cast<uint16_t>(m);
    shape.n = static_cast<uint16_t>(n);
    shape.k = static_cast<uint16_t>(k);
    shape.cmatrixInitVal = fresh;
    shape.cmatrixSource = false;
    shape.unitFlag = 0;
    return shape;
}

template <typename A, typename T>
__aicore__ inline void Multiply(const LocalTensor<A>& to, const LocalTensor<T>& left, const LocalTensor<T>& right,
                                int64_t m, int64_t n, int64_t k, bool fresh) {
    if (!fresh) {
        Ordered(m, n);
    }
    Mmad(to, left, right, ProductOf(m, n, k, fresh));
}

// Tiles from the cube into the unified buffer of one of its two vector cores, each of which has
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
};

// m x n results into the unified buffer of a vector core; rows are filled up to 32 bytes.
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
}

// How an operand lies along a row: its elements behind each other, or one block or vector again and
// again.
enum class Along { ROW, BLOCK, VECTOR };

struct Plus {
    static constexpr float IDENTITY = 0;
    static constexpr int64_t MOST = 16;
    static constexpr bool LOSES_NAN = false;
    template <typename T, typename Mask>
    static __aicore__ inline void Step(const LocalTensor<T>& to, const LocalTensor<T>& a, const LocalTensor<T>& b,
                                       Mask mask, int64_t repeats, const BinaryRepeatParams& form) {
        Add(to, a, b, mask, static_cast<uint8_t>(repeats), form);
    }
    template <typename T>
    static __aicore__ inline void Each(const LocalTensor<T>& to, T state, int64_t n) {
        Adds(to, to, state, static_cast<int32_t>(n));
    }
    static __aicore__ inline void Close(const LocalTensor<float>& to, const LocalTensor<float>& from, int64_t mask,
                                        int64_t repeats, int64_t blocks) {
        WholeReduceSum(to, from, static_cast<int32_t>(mask), static_cast<int32_t>(repeats), 1, 1,
                       static_cast<int32_t>(blocks));
    }
};

struct Larger {
    static constexpr float IDENTITY = -INFINITE;
    static constexpr int64_t MOST = 255;
    static constexpr bool LOSES_NAN = true;
    template <typename T, typename Mask>
    static __aicore__ inline void Step(const LocalTensor<T>& to, const LocalTensor<T>& a, const LocalTensor<T>& b,
                                       Mask mask, int64_t repeats, const BinaryRepeatParams& form) {
        Max(to, a, b, mask, static_cast<uint8_t>(repeats), form);
    }
    template <typename T>
    static __aicore__ inline void Each(const LocalTensor<T>& to, T state, int64_t n) {
        Maxs(to, to, state, static_cast<int32_t>(n));
    }
    static __aicore__ inline void Close(const LocalTensor<float>& to, const LocalTensor<float>& from, int64_t mask,
                                        int64_t repeats, int64_t blocks) {
        WholeReduceMax(to, from, static_cast<int32_t>(mask), static_cast<int32_t>(repeats), 1, 1,
                       static_cast<int32_t>(blocks), ReduceOrder::ORDER_ONLY_VALUE);
    }
};

struct Minus {
    template <typename T, typename Mask>
    static __aicore__ inline void Step(const LocalTensor<T>& to, const LocalTensor<T>& a, const LocalTensor<T>& b,
                                       Mask mask, int64_t repeats, const BinaryRepeatParams& form) {
        Sub(to, a, b, mask, static_cast<uint8_t>(repeats), form);
    }
};

struct Over {
    template <typename T, typename Mask>
    static __aicore__ inline void Step(const LocalTensor<T>& to, const LocalTensor<T>& a, const LocalTensor<T>& b,
                                       Mask mask, int64_t repeats, const BinaryRepeatParams& form) {
        Div(to, a, b, mask, static_cast<uint8_t>(repeats), form);
    }
};

// Elements, each into a block of its own.
template <typename T>
__aicore__ inline void FillBlocks(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t n) {
    for (int64_t first = 0; first < n; first += 2040) {
        Brcb(to[first * 8], from[first], static_cast<uint8_t>((Least(2040, n - first) + 7) / 8), {1, 8});
    }
}

// to = a op b for rows of n elements; the pitches of rows in elements. A repeat is a vector of each
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
}

// The fold of each row, one behind the other: the vectors of a row onto one, then its lanes.
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
}

// One sum of all rows.
__aicore__ inline void SumOfAll(const LocalTensor<float>& to, const LocalTensor<float>& from, int64_t rows, int64_t n,
                                int64_t pitch, const LocalTensor<float>& room) {
    const bool joined = n == pitch && n % 64 == 0;
    Duplicate(room, 0.0f, 64);
    ByRows<Plus, Along::VECTOR, Along::ROW, Along::VECTOR>(room, from, room, joined ? 1 : rows, joined ? rows * n : n,
                                                           0, pitch, 0);
    Plus::Close(to, room, 64, 1, 8);
}

// A sum with NaN is NaN, and so is one of both infinities: only then are the elements looked at.
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
}

// The folds of rows, each in a block of its own or one behind the other. Max and Min are not
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
}

// The open dimensions of this launch.
struct Tiling {
    int64_t unused;
};

// t_2: matmul, add, max, sub, exp, sum, div
class K0 {
public:
    __aicore__ inline void Init(TPipe& pipe, GM_ADDR p0Address, GM_ADDR p1Address, GM_ADDR p2Address, GM_ADDR p3Address, const Tiling& tiling) {
        pipe.InitBuffer(slots, 7168);
        rv0.Init(pipe, slots.Get<uint8_t>()[0], 896);
        if ASCEND_IS_AIV {
            pipe.InitBuffer(load1, 2, 3584);
            pipe.InitBuffer(store1, 2, 3584);
            pipe.InitBuffer(area, 11360);
            work = area.Get<uint8_t>();
            Duplicate(work.ReinterpretCast<float>(), 0.0f, 2840);  // whole vectors are read
        }
        if ASCEND_IS_AIC {
            pipe.InitBuffer(result, 2, 4096);
            pipe.InitBuffer(left1, 2, 8192);
            pipe.InitBuffer(left2, 2, 8192);
            pipe.InitBuffer(right1, 2, 32768);
            pipe.InitBuffer(right2, 2, 32768);
        }
        p0.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p0Address));
        p1.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p1Address));
        p2.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p2Address));
        p3.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p3Address));
    }

    __aicore__ inline void Products0(int64_t first, int64_t last, int64_t unit) {
        for (int64_t c = first; c < last; ++c) {
            const int64_t turn = (c - first) / unit % 2;
            for (int64_t t = c; t < Least(19, c + 1); ++t) {
                const int64_t i0_o = t * 16;
                const int64_t i0_n = Least(300 - i0_o, 16);
                LocalTensor<float> b9 = result.AllocTensor<float>();
                bool b9Fresh = true;
                for (int64_t i2_t = 0; i2_t < 1000; i2_t += 128) {
                    const int64_t i2_o = i2_t;
                    const int64_t i2_n = Least(1000 - i2_o, 128);
                    LocalTensor<float> b10 = left1.AllocTensor<float>();
                    Fractals<FractalForm::Single>(b10, p0[i0_o * 1000 + i2_o], i0_n, i2_n, 1000);
                    left1.EnQue(b10);
                    b10 = left1.DeQue<float>();
                    LocalTensor<float> b11 = left2.AllocTensor<float>();
                    Left(b11, b10, i0_n, i2_n);
                    left1.FreeTensor(b10);
                    LocalTensor<float> b12 = right1.AllocTensor<float>();
                    Fractals<FractalForm::Turned>(b12, p1[i2_o * 50], i2_n, 50, 50);
                    right1.EnQue(b12);
                    b12 = right1.DeQue<float>();
                    LocalTensor<float> b13 = right2.AllocTensor<float>();
                    RightTurned(b13, b12, 50, i2_n);
                    right1.FreeTensor(b12);
                    left2.EnQue(b11);
                    b11 = left2.DeQue<float>();
                    Multiply(b9, b11, b13, i0_n, 50, i2_n, b9Fresh);
                    b9Fresh = false;
                    left2.FreeTensor(b11);
                    right2.FreeTensor(b13);
                }
                result.EnQue(b9);
                b9 = result.DeQue<float>();
                DrainDirect(rv0.ToFill(turn), b9, i0_n, 50, 56, turn);
                rv0.Filled(turn);
                result.FreeTensor(b9);
            }
        }
        rv0.Close();
    }

    __aicore__ inline void Step0(int64_t first, int64_t last, int64_t unit, int64_t turn) {
        const LocalTensor<float> v0 = At<float>(work, 0);  // t
        const LocalTensor<float> v1 = At<float>(work, 3584);  // t_1
        const LocalTensor<float> v2 = At<float>(work, 0);  // t_2.max
        const LocalTensor<float> v3 = At<float>(work, 7168);  // t_2.sub
        const LocalTensor<float> v4 = At<float>(work, 0);  // t_2.exp
        const LocalTensor<float> v5 = At<float>(work, 3584);  // t_2.sum
        const LocalTensor<float> reduction = At<float>(work, 10752);
        for (int64_t c = first; c < last; ++c) {
            if ((c - first) / unit % 2 != turn) {
                continue;
            }
            for (int64_t t = c; t < Least(19, c + 1); ++t) {
                const int64_t i0_o = t * 16;
                const int64_t i0_n = Least(300 - i0_o, 16);
                LocalTensor<uint8_t> in1 = load1.AllocTensor<uint8_t>();
                Load(At<float>(in1, 0)[0], p2[i0_o * 50], i0_n, 50, 50, 56);
                load1.EnQue(in1);
                in1 = load1.DeQue<uint8_t>();
                const LocalTensor<float> b3 = At<float>(in1, 0);
                const LocalTensor<float> b0 = rv0.ToRead();
                LocalTensor<uint8_t> out1 = store1.AllocTensor<uint8_t>();
                const LocalTensor<float> v6 = At<float>(out1, 0);
                // t
                for (int64_t i0 = 0; i0 < i0_n; ++i0) {
                    Muls(v0[i0 * 56], b0[i0 * 56], 1.0f, 50);
                }
                // t_1
                Add(v1[0], v0[0], b3[0], (i0_n * 56));
                // t_2.max
                FoldRows<Larger, true>(v2[0], v1[0], i0_n, 50, 56, reduction, 16);
                // t_2.sub
                ByRows<Minus, Along::ROW, Along::ROW, Along::BLOCK>(v3[0], v1[0], v2[0], i0_n, 50, 56, 56, 8);
                // t_2.exp
                Exp(v4[0], v3[0], (i0_n * 56));
                // t_2.sum
                FoldRows<Plus, true>(v5[0], v4[0], i0_n, 50, 56, reduction, 16);
                // t_2
                ByRows<Over, Along::ROW, Along::ROW, Along::BLOCK>(v6[0], v4[0], v5[0], i0_n, 50, 56, 56, 8);
                rv0.Read();
                store1.EnQue(out1);
                out1 = store1.DeQue<uint8_t>();
                Store(p3[i0_o * 50], At<float>(out1, 0)[0], i0_n, 50, 50, 56);
                store1.FreeTensor(out1);
                load1.FreeTensor(in1);
            }
        }
    }

private:
    TQue<TPosition::VECIN, 1> load1;
    TQue<TPosition::VECOUT, 1> store1;
    TQue<TPosition::CO1, 1> result;
    TQue<TPosition::A1, 1> left1;
    TQue<TPosition::A2, 1> left2;
    TQue<TPosition::B1, 1> right1;
    TQue<TPosition::B2, 1> right2;
    TBuf<TPosition::VECCALC> area;
    LocalTensor<uint8_t> work;
    TBuf<TPosition::VECIN> slots;
    DirectRing<float, 0, 1> rv0;
    GlobalTensor<float> p0;  // x [300, 1000]
    GlobalTensor<float> p1;  // w [1000, 50]
    GlobalTensor<float> p2;  // r [300, 50]
    GlobalTensor<float> p3;  // t_2 [300, 50]
};

extern "C" __global__ __aicore__ void matmul_add_softmax_950_launch(GM_ADDR xGm, GM_ADDR wGm, GM_ADDR rGm, GM_ADDR t_2Gm, Tiling tiling) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    TPipe pipe;
    const int64_t ratio = GetTaskRation(), core = GetBlockIdx(), cores = GetBlockNum() * ratio;
    const int64_t block = core / ratio, blocks = GetBlockNum();
    {
        const Share share(19, 1, block, blocks);
        K0 kernel;
        kernel.Init(pipe, xGm, wGm, rGm, t_2Gm, tiling);
        if ASCEND_IS_AIC {
            kernel.Products0(share.first, share.last, 1);
        }
        if ASCEND_IS_AIV {
            kernel.Step0(share.first, share.last, 1, GetSubBlockIdx());
        }
    }
}
