// open_rows for ascend910b: 1 kernel, one launch. Generated; not for editing.
#include "kernel_operator.h"
using namespace AscendC;


__aicore__ inline int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

__aicore__ inline int64_t Greatest(int64_t a, int64_t b) { return a > b ? a : b; }

__aicore__ inline int64_t FloorDivide(int64_t a, int64_t b) {
    return a / b - (a % b < 0 ? 1 : 0);
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

// How an operand lies along a row: its elements behind each other, or one block or vector again and
// again.
enum class Along { ROW, BLOCK, VECTOR };

struct Times {
    static constexpr bool LOSES_NAN = false;
    template <typename T, typename Mask>
    static __aicore__ inline void Step(const LocalTensor<T>& to, const LocalTensor<T>& a, const LocalTensor<T>& b,
                                       Mask mask, int64_t repeats, const BinaryRepeatParams& form) {
        Mul(to, a, b, mask, static_cast<uint8_t>(repeats), form);
    }
    template <typename T>
    static __aicore__ inline void Each(const LocalTensor<T>& to, T state, int64_t n) {
        Muls(to, to, state, static_cast<int32_t>(n));
    }
};

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

// The open dimensions of this launch.
struct Tiling {
    int64_t s0;
};

// t_1: mul, exp
class K0 {
public:
    __aicore__ inline void Init(TPipe& pipe, GM_ADDR p0Address, GM_ADDR p1Address, GM_ADDR p2Address, const Tiling& tiling) {
        pipe.InitBuffer(load1, 2, 6240);
        pipe.InitBuffer(store1, 2, 6144);
        pipe.InitBuffer(area, 6144);
        work = area.Get<uint8_t>();
        Duplicate(work.ReinterpretCast<float>(), 0.0f, 1536);  // whole vectors are read
        p0.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p0Address));
        p1.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p1Address));
        p2.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p2Address));
        s0 = tiling.s0;
    }

    __aicore__ inline void Step0(int64_t first, int64_t last) {
        const LocalTensor<float> v0 = At<float>(work, 0);  // t
        for (int64_t c = first; c < last; ++c) {
            for (int64_t t = c * Greatest(((((s0 + 63) / 64) + 39) / 40), 1); t < Least(((s0 + 63) / 64), c * Greatest(((((s0 + 63) / 64) + 39) / 40), 1) + Greatest(((((s0 + 63) / 64) + 39) / 40), 1)); ++t) {
                const int64_t i0_o = t * 64;
                const int64_t i0_n = Least(s0 - i0_o, 64);
                const int64_t i1_o = 0;
                LocalTensor<uint8_t> in1 = load1.AllocTensor<uint8_t>();
                Load(At<float>(in1, 0)[0], p0[i0_o * 20 + i1_o], i0_n, 20, 20, 24);
                Load(At<float>(in1, 6144)[0], p1[i1_o], 1, 20, 20, 24);
                load1.EnQue(in1);
                in1 = load1.DeQue<uint8_t>();
                const LocalTensor<float> b1 = At<float>(in1, 0);
                const LocalTensor<float> b2 = At<float>(in1, 6144);
                LocalTensor<uint8_t> out1 = store1.AllocTensor<uint8_t>();
                const LocalTensor<float> v1 = At<float>(out1, 0);
                // t
                ByRows<Times, Along::ROW, Along::ROW, Along::ROW>(v0[0], b1[0], b2[0], i0_n, 20, 24, 24, 0);
                // t_1
                Exp(v1[0], v0[0], (i0_n * 24));
                store1.EnQue(out1);
                out1 = store1.DeQue<uint8_t>();
                Store(p2[i0_o * 20 + i1_o], At<float>(out1, 0)[0], i0_n, 20, 20, 24);
                store1.FreeTensor(out1);
                load1.FreeTensor(in1);
            }
        }
    }

private:
    TQue<TPosition::VECIN, 1> load1;
    TQue<TPosition::VECOUT, 1> store1;
    TBuf<TPosition::VECCALC> area;
    LocalTensor<uint8_t> work;
    GlobalTensor<float> p0;  // x [s0, 20]
    GlobalTensor<float> p1;  // y [20]
    GlobalTensor<float> p2;  // t_1 [s0, 20]
    int64_t s0;
};

extern "C" __global__ __aicore__ void open_rows_launch(GM_ADDR xGm, GM_ADDR yGm, GM_ADDR t_1Gm, Tiling tiling) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    const int64_t core = GetBlockIdx(), cores = GetBlockNum();
    const int64_t s0 = tiling.s0;
    {
        const Share share(FloorDivide(((s0 + 63) / 64) - 1, Greatest(((((s0 + 63) / 64) + 39) / 40), 1)) + 1, Greatest(FloorDivide(((s0 + 63) / 64) - 1, Greatest(((((s0 + 63) / 64) + 39) / 40), 1)) + 1, 1), core, cores);
        K0 kernel;
        kernel.Init(pipe, xGm, yGm, t_1Gm, tiling);
        kernel.Step0(share.first, share.last);
    }
}
