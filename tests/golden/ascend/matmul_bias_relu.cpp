// matmul_bias_relu for ascend910b: 1 kernel, one launch. Generated; not for editing.
#include "kernel_operator.h"
using namespace AscendC;


__aicore__ inline int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

__aicore__ inline int32_t RoundUp(int32_t n, int32_t unit) {
    return (n + unit - 1) / unit * unit;
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

// n numbers from L1 to the bias table, in blocks of 64 bytes, or of 32 on arch 3510; half becomes
// float.
template <typename A, typename T>
__aicore__ inline void ToBiasTable(const LocalTensor<A>& to, const LocalTensor<T>& from, int64_t n) {
    constexpr int64_t blocks = __NPU_ARCH__ == 2201 ? 1 : 2;
    DataCopy(to, from, DataCopyParams{1, static_cast<uint16_t>((n + 15) / 16 * blocks), 0, 0});
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

// The first product starts from the bias.
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

// The open dimensions of this launch.
struct Tiling {
    int64_t unused;
};

// t_2: matmul, add, maximum
class K0 {
public:
    __aicore__ inline void Init(TPipe& pipe, GM_ADDR p0Address, GM_ADDR p1Address, GM_ADDR p2Address, GM_ADDR p3Address, const Tiling& tiling) {
        pipe.InitBuffer(bias1, 2, 256);
        pipe.InitBuffer(bias2, 2, 256);
        pipe.InitBuffer(result, 2, 4096);
        pipe.InitBuffer(left1, 2, 8192);
        pipe.InitBuffer(left2, 2, 8192);
        pipe.InitBuffer(right1, 2, 32768);
        pipe.InitBuffer(right2, 2, 32768);
        p0.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p0Address));
        p1.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p1Address));
        p2.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p2Address));
        p3.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p3Address));
    }

    __aicore__ inline void Step0(int64_t first, int64_t last) {
        for (int64_t c = first; c < last; ++c) {
            for (int64_t t = c; t < Least(3, c + 1); ++t) {
                const int64_t i0_o = t * 16;
                const int64_t i0_n = Least(33 - i0_o, 16);
                const int64_t i1_o = 0;
                LocalTensor<float> b1 = bias1.AllocTensor<float>();
                Fractals<FractalForm::Single>(b1, p2[i1_o], 1, 50, 50);
                bias1.EnQue(b1);
                b1 = bias1.DeQue<float>();
                LocalTensor<float> b2 = bias2.AllocTensor<float>();
                ToBiasTable(b2, b1, 50);
                bias1.FreeTensor(b1);
                LocalTensor<float> b0 = result.AllocTensor<float>();
                bool b0Fresh = true;
                for (int64_t i2_t = 0; i2_t < 2000; i2_t += 128) {
                    const int64_t i2_o = i2_t;
                    const int64_t i2_n = Least(2000 - i2_o, 128);
                    LocalTensor<float> b3 = left1.AllocTensor<float>();
                    Fractals<FractalForm::Single>(b3, p0[i0_o * 2000 + i2_o], i0_n, i2_n, 2000);
                    left1.EnQue(b3);
                    b3 = left1.DeQue<float>();
                    LocalTensor<float> b4 = left2.AllocTensor<float>();
                    Left(b4, b3, i0_n, i2_n);
                    left1.FreeTensor(b3);
                    LocalTensor<float> b5 = right1.AllocTensor<float>();
                    Fractals<FractalForm::Turned>(b5, p1[i1_o + i2_o * 50], i2_n, 50, 50);
                    right1.EnQue(b5);
                    b5 = right1.DeQue<float>();
                    LocalTensor<float> b6 = right2.AllocTensor<float>();
                    RightTurned(b6, b5, 50, i2_n);
                    right1.FreeTensor(b5);
                    left2.EnQue(b4);
                    b4 = left2.DeQue<float>();
                    MultiplyOnto(b0, b4, b6, b2, i0_n, 50, i2_n, b0Fresh);
                    b0Fresh = false;
                    left2.FreeTensor(b4);
                    right2.FreeTensor(b6);
                }
                bias2.FreeTensor(b2);
                result.EnQue(b0);
                b0 = result.DeQue<float>();
                Drain(p3[i0_o * 50 + i1_o], b0, i0_n, 50, 50, true);
                result.FreeTensor(b0);
            }
        }
    }

private:
    TQue<TPosition::C1, 1> bias1;
    TQue<TPosition::C2, 1> bias2;
    TQue<TPosition::CO1, 1> result;
    TQue<TPosition::A1, 1> left1;
    TQue<TPosition::A2, 1> left2;
    TQue<TPosition::B1, 1> right1;
    TQue<TPosition::B2, 1> right2;
    GlobalTensor<float> p0;  // x [33, 2000]
    GlobalTensor<float> p1;  // w [2000, 50]
    GlobalTensor<float> p2;  // b [50]
    GlobalTensor<float> p3;  // t_2 [33, 50]
};

extern "C" __global__ __aicore__ void matmul_bias_relu_launch(GM_ADDR xGm, GM_ADDR wGm, GM_ADDR bGm, GM_ADDR t_2Gm, Tiling tiling) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    TPipe pipe;
    const int64_t core = GetBlockIdx(), cores = GetBlockNum();
    {
        const Share share(3, 1, core, cores);
        K0 kernel;
        kernel.Init(pipe, xGm, wGm, bGm, t_2Gm, tiling);
        kernel.Step0(share.first, share.last);
    }
}
