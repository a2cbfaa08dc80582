// two_matmuls_float16 for ascend910b: 2 kernels, one launch. Generated; not for editing.
#include "kernel_operator.h"
using namespace AscendC;


__aicore__ inline int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

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

// m x n results to global memory, row by row.
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
}

// ReLU and the rounding to T happen on the way.
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
}

// Tiles from the cube to its two vector cores, through global memory: one is read while the next is
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
};

// The open dimensions of this launch.
struct Tiling {
    int64_t unused;
};

// t_2: matmul, abs, sqrt
class K0 {
public:
    __aicore__ inline void Init(TPipe& pipe, GM_ADDR p0Address, GM_ADDR p1Address, GM_ADDR p2Address, GM_ADDR rv0Address, const Tiling& tiling) {
        if ASCEND_IS_AIV {
            pipe.InitBuffer(load1, 2, 4096);
            pipe.InitBuffer(store1, 2, 2048);
            pipe.InitBuffer(area, 24576);
            work = area.Get<uint8_t>();
        }
        if ASCEND_IS_AIC {
            pipe.InitBuffer(result, 2, 4096);
            pipe.InitBuffer(left1, 2, 8192);
            pipe.InitBuffer(left2, 2, 8192);
            pipe.InitBuffer(right1, 2, 32768);
            pipe.InitBuffer(right2, 2, 32768);
        }
        rv0.Init(rv0Address, 896);
        p0.SetGlobalBuffer(reinterpret_cast<__gm__ half*>(p0Address));
        p1.SetGlobalBuffer(reinterpret_cast<__gm__ half*>(p1Address));
        p2.SetGlobalBuffer(reinterpret_cast<__gm__ half*>(p2Address));
    }

    __aicore__ inline void Products0(int64_t first, int64_t last) {
        for (int64_t c = first; c < last; ++c) {
            for (int64_t t = c; t < Least(7, c + 1); ++t) {
                const int64_t i0_o = t * 16;
                const int64_t i0_n = Least(100 - i0_o, 16);
                const int64_t i1_o = 0;
                LocalTensor<float> b4 = result.AllocTensor<float>();
                bool b4Fresh = true;
                for (int64_t i2_t = 0; i2_t < 2000; i2_t += 256) {
                    const int64_t i2_o = i2_t;
                    const int64_t i2_n = Least(2000 - i2_o, 256);
                    LocalTensor<half> b5 = left1.AllocTensor<half>();
                    Fractals<FractalForm::Single>(b5, p0[i0_o * 2000 + i2_o], i0_n, i2_n, 2000);
                    left1.EnQue(b5);
                    b5 = left1.DeQue<half>();
                    LocalTensor<half> b6 = left2.AllocTensor<half>();
                    Left(b6, b5, i0_n, i2_n);
                    left1.FreeTensor(b5);
                    LocalTensor<half> b7 = right1.AllocTensor<half>();
                    Fractals<FractalForm::Turned>(b7, p1[i1_o + i2_o * 50], i2_n, 50, 50);
                    right1.EnQue(b7);
                    b7 = right1.DeQue<half>();
                    LocalTensor<half> b8 = right2.AllocTensor<half>();
                    RightTurned(b8, b7, 50, i2_n);
                    right1.FreeTensor(b7);
                    left2.EnQue(b6);
                    b6 = left2.DeQue<half>();
                    Multiply(b4, b6, b8, i0_n, 50, i2_n, b4Fresh);
                    b4Fresh = false;
                    left2.FreeTensor(b6);
                    right2.FreeTensor(b8);
                }
                result.EnQue(b4);
                b4 = result.DeQue<float>();
                Drain(rv0.ToFill(), b4, i0_n, 50, 50, false);
                rv0.Filled();
                result.FreeTensor(b4);
            }
        }
        rv0.Close();
    }

    __aicore__ inline void Step0(int64_t first, int64_t last, int64_t unit, int64_t turn) {
        const LocalTensor<float> v0 = At<float>(work, 0);  // t
        const LocalTensor<float> v1 = At<float>(work, 4096);  // t_1
        const LocalTensor<float> t0 = At<float>(work, 8192);
        for (int64_t c = first; c < last; ++c) {
            if ((c - first) / unit % 2 != turn) {
                for (int64_t t = c; t < Least(7, c + 1); ++t) {
                    const int64_t i0_o = t * 16;
                    const int64_t i0_n = Least(100 - i0_o, 16);
                    const int64_t i1_o = 0;
                    rv0.Skip();
                }
                continue;
            }
            for (int64_t t = c; t < Least(7, c + 1); ++t) {
                const int64_t i0_o = t * 16;
                const int64_t i0_n = Least(100 - i0_o, 16);
                const int64_t i1_o = 0;
                LocalTensor<uint8_t> in1 = load1.AllocTensor<uint8_t>();
                Load(At<float>(in1, 0), rv0.ToRead(), i0_n, 50, 50, 64);
                rv0.Read();
                load1.EnQue(in1);
                in1 = load1.DeQue<uint8_t>();
                const LocalTensor<float> b0 = At<float>(in1, 0);
                LocalTensor<uint8_t> out1 = store1.AllocTensor<uint8_t>();
                const LocalTensor<half> v2 = At<half>(out1, 0);
                // t
                for (int64_t i0 = 0; i0 < i0_n; ++i0) {
                    Muls(v0[i0 * 64], b0[i0 * 64], 1.0f, 50);
                }
                // t_1
                for (int64_t i0 = 0; i0 < i0_n; ++i0) {
                    Abs(v1[i0 * 64], v0[i0 * 64], 50);
                }
                // t_2
                for (int64_t i0 = 0; i0 < i0_n; ++i0) {
                    {
                        constexpr int64_t j = 0;
                        constexpr int32_t n = 50;
                        Sqrt(t0, v1[i0 * 64 + j], n);
                        Cast(v2[i0 * 64 + j], t0, RoundMode::CAST_RINT, n);
                    }
                }
                store1.EnQue(out1);
                out1 = store1.DeQue<uint8_t>();
                Store(p2[i0_o * 50 + i1_o], At<half>(out1, 0)[0], i0_n, 50, 50, 64);
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
    Ring<float, 0, 1> rv0;
    GlobalTensor<half> p0;  // x [100, 2000]
    GlobalTensor<half> p1;  // w [2000, 50]
    GlobalTensor<half> p2;  // t_2 [100, 50]
};

// t_3: matmul
class K1 {
public:
    __aicore__ inline void Init(TPipe& pipe, GM_ADDR p0Address, GM_ADDR p1Address, GM_ADDR p2Address, const Tiling& tiling) {
        pipe.InitBuffer(result, 2, 2048);
        pipe.InitBuffer(left1, 2, 2048);
        pipe.InitBuffer(left2, 2, 2048);
        pipe.InitBuffer(right1, 2, 4096);
        pipe.InitBuffer(right2, 2, 4096);
        p0.SetGlobalBuffer(reinterpret_cast<__gm__ half*>(p0Address));
        p1.SetGlobalBuffer(reinterpret_cast<__gm__ half*>(p1Address));
        p2.SetGlobalBuffer(reinterpret_cast<__gm__ half*>(p2Address));
    }

    __aicore__ inline void EarlyRight1Of0(int64_t first, int64_t last) {
        const int64_t c = first;
        if (c >= last) {
            return;
        }
        const int64_t t = c;
        if (t >= Least(7, c + 1)) {
            return;
        }
        const int64_t i0_o = t * 16;
        const int64_t i0_n = Least(100 - i0_o, 16);
        const int64_t i1_o = 0;
        const int64_t i2_t = 0;
        const int64_t i2_o = i2_t;
        LocalTensor<half> b3 = right1.AllocTensor<half>();
        Fractals<FractalForm::Turned>(b3, p1[i1_o + i2_o * 20], 50, 20, 20);
        right1.EnQue(b3);
        right1Early = true;
    }

    __aicore__ inline void Step0(int64_t first, int64_t last) {
        for (int64_t c = first; c < last; ++c) {
            for (int64_t t = c; t < Least(7, c + 1); ++t) {
                const int64_t i0_o = t * 16;
                const int64_t i0_n = Least(100 - i0_o, 16);
                const int64_t i1_o = 0;
                LocalTensor<float> b0 = result.AllocTensor<float>();
                bool b0Fresh = true;
                for (int64_t i2_t = 0; i2_t < 50; i2_t += 50) {
                    const int64_t i2_o = i2_t;
                    LocalTensor<half> b1 = left1.AllocTensor<half>();
                    Fractals<FractalForm::Single>(b1, p0[i0_o * 50 + i2_o], i0_n, 50, 50);
                    left1.EnQue(b1);
                    b1 = left1.DeQue<half>();
                    LocalTensor<half> b2 = left2.AllocTensor<half>();
                    Left(b2, b1, i0_n, 50);
                    left1.FreeTensor(b1);
                    LocalTensor<half> b3;
                    if (!right1Early) {
                        b3 = right1.AllocTensor<half>();
                        Fractals<FractalForm::Turned>(b3, p1[i1_o + i2_o * 20], 50, 20, 20);
                        right1.EnQue(b3);
                    }
                    right1Early = false;
                    b3 = right1.DeQue<half>();
                    LocalTensor<half> b4 = right2.AllocTensor<half>();
                    RightTurned(b4, b3, 20, 50);
                    right1.FreeTensor(b3);
                    left2.EnQue(b2);
                    b2 = left2.DeQue<half>();
                    Multiply(b0, b2, b4, i0_n, 20, 50, b0Fresh);
                    b0Fresh = false;
                    left2.FreeTensor(b2);
                    right2.FreeTensor(b4);
                }
                result.EnQue(b0);
                b0 = result.DeQue<float>();
                Drain(p2[i0_o * 20 + i1_o], b0, i0_n, 20, 20, false);
                result.FreeTensor(b0);
            }
        }
    }

private:
    TQue<TPosition::CO1, 1> result;
    TQue<TPosition::A1, 1> left1;
    TQue<TPosition::A2, 1> left2;
    TQue<TPosition::B1, 1> right1;
    TQue<TPosition::B2, 1> right2;
    GlobalTensor<half> p0;  // t_2 [100, 50]
    GlobalTensor<half> p1;  // v [50, 20]
    GlobalTensor<half> p2;  // t_3 [100, 20]
    bool right1Early = false;  // its first tile is on its way
};

extern "C" __global__ __aicore__ void two_matmuls_float16_launch(GM_ADDR xGm, GM_ADDR wGm, GM_ADDR vGm, GM_ADDR t_3Gm, GM_ADDR workspace, Tiling tiling) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    TPipe pipe;
    const int64_t ratio = GetTaskRation(), core = GetBlockIdx(), cores = GetBlockNum() * ratio;
    const int64_t block = core / ratio, blocks = GetBlockNum();
    {
        const Share share(7, 1, block, blocks);
        K0 kernel;
        kernel.Init(pipe, xGm, wGm, workspace + 0, workspace + 12288 + block * 7168, tiling);
        if ASCEND_IS_AIC {
            kernel.Products0(share.first, share.last);
        }
        if ASCEND_IS_AIV {
            kernel.Step0(share.first, share.last, 1, GetSubBlockIdx());
        }
    }
    if ASCEND_IS_AIV {
        CrossCoreSetFlag<0, PIPE_MTE3>(2);
    }
    if ASCEND_IS_AIV {
        CrossCoreWaitFlag(2);
        CrossCoreSetFlag<2, PIPE_MTE3>(4);
    }
    PipeBarrier<PIPE_ALL>();
    pipe.Reset();
    if ASCEND_IS_AIC {
        const Share share(7, 1, core, cores);
        K1 kernel;
        kernel.Init(pipe, workspace + 0, vGm, t_3Gm, tiling);
        kernel.EarlyRight1Of0(share.first, share.last);
        CrossCoreWaitFlag(4);
        kernel.Step0(share.first, share.last);
    }
}
