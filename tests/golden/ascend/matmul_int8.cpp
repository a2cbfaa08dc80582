// matmul_int8 for ascend910b: 1 kernel, one launch. Generated; not for editing.
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

// Bytes of k x n to fractals column by column. A square has two fractals along n. Where the last
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
}

// The same from k x n.
template <typename T>
__aicore__ inline void RightTurnedBytes(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t n, int64_t k) {
    ByteColumns(to, from, n, k);
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

// int32 to half: multiplied by the float32 of these bits on the way.
__aicore__ inline void DrainScaled(const GlobalTensor<half>& to, const LocalTensor<int32_t>& from, int64_t m, int64_t n,
                                   int64_t pitch, bool relu, uint64_t scale) {
    FixpipeParamsV220 shape = DrainShape(m, n, pitch, relu);
    shape.quantPre = QuantMode_t::DEQF16;
    shape.deqScalar = scale;
    Fixpipe<half, int32_t, CFG_ROW_MAJOR>(to, from, shape);
}

// The open dimensions of this launch.
struct Tiling {
    int64_t unused;
};

// t_5: matmul, cast, mul, cast
class K0 {
public:
    __aicore__ inline void Init(TPipe& pipe, GM_ADDR p0Address, GM_ADDR p1Address, GM_ADDR p2Address, const Tiling& tiling) {
        pipe.InitBuffer(result, 2, 3072);
        pipe.InitBuffer(left1, 2, 8192);
        pipe.InitBuffer(left2, 2, 8192);
        pipe.InitBuffer(right1, 2, 32768);
        pipe.InitBuffer(right2, 2, 32768);
        p0.SetGlobalBuffer(reinterpret_cast<__gm__ int8_t*>(p0Address));
        p1.SetGlobalBuffer(reinterpret_cast<__gm__ int8_t*>(p1Address));
        p2.SetGlobalBuffer(reinterpret_cast<__gm__ half*>(p2Address));
    }

    __aicore__ inline void Step0(int64_t first, int64_t last) {
        for (int64_t c = first; c < last; ++c) {
            for (int64_t t = c; t < Least(3, c + 1); ++t) {
                const int64_t i0_o = t * 16;
                const int64_t i0_n = Least(33 - i0_o, 16);
                const int64_t i1_o = 0;
                LocalTensor<int32_t> b0 = result.AllocTensor<int32_t>();
                bool b0Fresh = true;
                for (int64_t i2_t = 0; i2_t < 2000; i2_t += 512) {
                    const int64_t i2_o = i2_t;
                    const int64_t i2_n = Least(2000 - i2_o, 512);
                    LocalTensor<int8_t> b1 = left1.AllocTensor<int8_t>();
                    Fractals<FractalForm::Single>(b1, p0[i0_o * 2000 + i2_o], i0_n, i2_n, 2000);
                    left1.EnQue(b1);
                    b1 = left1.DeQue<int8_t>();
                    LocalTensor<int8_t> b2 = left2.AllocTensor<int8_t>();
                    Left(b2, b1, i0_n, i2_n);
                    left1.FreeTensor(b1);
                    LocalTensor<int8_t> b3 = right1.AllocTensor<int8_t>();
                    Fractals<FractalForm::Turned>(b3, p1[i1_o + i2_o * 40], i2_n, 40, 40);
                    right1.EnQue(b3);
                    b3 = right1.DeQue<int8_t>();
                    LocalTensor<int8_t> b4 = right2.AllocTensor<int8_t>();
                    RightTurnedBytes(b4, b3, 40, i2_n);
                    right1.FreeTensor(b3);
                    left2.EnQue(b2);
                    b2 = left2.DeQue<int8_t>();
                    Multiply(b0, b2, b4, i0_n, 40, i2_n, b0Fresh);
                    b0Fresh = false;
                    left2.FreeTensor(b2);
                    right2.FreeTensor(b4);
                }
                result.EnQue(b0);
                b0 = result.DeQue<int32_t>();
                DrainScaled(p2[i0_o * 40 + i1_o], b0, i0_n, 40, 40, false, 0x39800000);  // 0.000244140625
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
    GlobalTensor<int8_t> p0;  // x [33, 2000]
    GlobalTensor<int8_t> p1;  // w [2000, 40]
    GlobalTensor<half> p2;  // t_5 [33, 40]
};

extern "C" __global__ __aicore__ void matmul_int8_launch(GM_ADDR xGm, GM_ADDR wGm, GM_ADDR t_5Gm, Tiling tiling) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    TPipe pipe;
    const int64_t core = GetBlockIdx(), cores = GetBlockNum();
    {
        const Share share(3, 1, core, cores);
        K0 kernel;
        kernel.Init(pipe, xGm, wGm, t_5Gm, tiling);
        kernel.Step0(share.first, share.last);
    }
}
