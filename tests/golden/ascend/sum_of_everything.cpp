// sum_of_everything for ascend910b: 1 kernel, one launch. Generated; not for editing.
#include "kernel_operator.h"
using namespace AscendC;


constexpr float QUIET_NAN = __builtin_nanf("");

__aicore__ inline int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

__aicore__ inline int64_t Greatest(int64_t a, int64_t b) { return a > b ? a : b; }

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

// One element into its whole block.
template <typename T>
__aicore__ inline void Fill(const LocalTensor<T>& to, int64_t address, T value) {
    for (int64_t lane = 0; lane < static_cast<int64_t>(32 / sizeof(T)); ++lane) {
        to.SetValue(address + lane, value);
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

// t: sum
class K0 {
public:
    __aicore__ inline void Init(TPipe& pipe, GM_ADDR p0Address, GM_ADDR p1Address, GM_ADDR v0_partsAddress, const Tiling& tiling) {
        pipe.InitBuffer(load0, 1, 800);
        pipe.InitBuffer(load1, 2, 64000);
        pipe.InitBuffer(store0, 1, 256);
        pipe.InitBuffer(area, 4928);
        work = area.Get<uint8_t>();
        Duplicate(work.ReinterpretCast<float>(), 0.0f, 1232);  // whole vectors are read
        p0.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p0Address));
        p1.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p1Address));
        v0_parts.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(v0_partsAddress));
    }

    __aicore__ inline void Step0(int64_t first, int64_t last) {
        const LocalTensor<float> v0 = At<float>(work, 0);  // t
        const LocalTensor<float> reduction = At<float>(work, 256);
        const LocalTensor<float> folded = At<float>(work, 4672);
        for (int64_t c = first; c < last; ++c) {
            LocalTensor<uint8_t> out0 = store0.AllocTensor<uint8_t>();
            // t
            Duplicate(v0[0], 0.0f, 8);
            for (int64_t i0_t = c * 32; i0_t < Least(300, c * 32 + 32); i0_t += 16) {
                const int64_t i0_o = i0_t;
                const int64_t i0_n = Least(300 - i0_o, 16);
                LocalTensor<uint8_t> in1 = load1.AllocTensor<uint8_t>();
                Load(At<float>(in1, 0)[0], p0[i0_o * 1000], i0_n, 1000, 1000, 1000);
                load1.EnQue(in1);
                in1 = load1.DeQue<uint8_t>();
                const LocalTensor<float> b1 = At<float>(in1, 0);
                // t
                FoldRows<Plus, true>(folded[0], b1[0], 1, i0_n * 1000, 0, reduction, 1);
                Add(v0[0], v0[0], folded[0], 8);
                load1.FreeTensor(in1);
            }
            Or(At<uint16_t>(out0, 0), v0.ReinterpretCast<uint16_t>(), v0.ReinterpretCast<uint16_t>(), 128);
            store0.EnQue(out0);
            out0 = store0.DeQue<uint8_t>();
            Store(v0_parts[c * 128], At<float>(out0, 0)[0], 1, 1, 1, 8);
            store0.FreeTensor(out0);
        }
    }

    __aicore__ inline void Step1(int64_t first, int64_t last) {
        const LocalTensor<float> v0 = At<float>(work, 0);  // t
        for (int64_t c = first; c < last; ++c) {
            LocalTensor<uint8_t> in0 = load0.AllocTensor<uint8_t>();
            Load(At<float>(in0, 0)[0], v0_parts[0], 18, 1, 128, 8);
            const LocalTensor<float> b4 = At<float>(in0, 0);
            LocalTensor<uint8_t> out0 = store0.AllocTensor<uint8_t>();
            // t
            {
                float state = static_cast<float>(0x0.0p+0f);
                for (int64_t part = 0; part < 18; ++part) {
                    state = (state + b4.GetValue(part * 8));
                }
                Fill(v0, 0, static_cast<float>(state));
            }
            Or(At<uint16_t>(out0, 0), v0.ReinterpretCast<uint16_t>(), v0.ReinterpretCast<uint16_t>(), 128);
            store0.EnQue(out0);
            out0 = store0.DeQue<uint8_t>();
            Store(p1[0], At<float>(out0, 0)[0], 1, 1, 1, 8);
            store0.FreeTensor(out0);
            load0.FreeTensor(in0);
        }
    }

private:
    TQue<TPosition::VECIN, 1> load0;
    TQue<TPosition::VECIN, 1> load1;
    TQue<TPosition::VECOUT, 1> store0;
    TBuf<TPosition::VECCALC> area;
    LocalTensor<uint8_t> work;
    GlobalTensor<float> p0;  // x [300, 1000]
    GlobalTensor<float> p1;  // t []
    GlobalTensor<float> v0_parts;
};

extern "C" __global__ __aicore__ void sum_of_everything_launch(GM_ADDR xGm, GM_ADDR tGm, GM_ADDR workspace, Tiling tiling) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIV_1_0);
    TPipe pipe;
    const int64_t core = GetBlockIdx(), cores = GetBlockNum();
    {
        const Share share(18, 1, core, cores);
        K0 kernel;
        kernel.Init(pipe, xGm, tGm, workspace + 4096, tiling);
        kernel.Step0(share.first, share.last);
    }
    CrossCoreSetFlag<0, PIPE_MTE3>(0);
    CrossCoreWaitFlag(0);
    PipeBarrier<PIPE_ALL>();
    pipe.Reset();
    {
        const Share share(1, 1, core, cores);
        K0 kernel;
        kernel.Init(pipe, xGm, tGm, workspace + 4096, tiling);
        kernel.Step1(share.first, share.last);
    }
}
