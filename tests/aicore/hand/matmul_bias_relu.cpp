// c[m, n] = relu(a[m, k] * b[k, n] + bias[n]) in fp16, with an fp32 bias and fp32 sums: the bias table starts the sums,
// Fixpipe applies relu and rounds. Cube core only; queues order the pipes (A1, B1, C1: MTE2 -> MTE1; A2, B2, C2:
// MTE1 -> M; CO1: M -> FIX). The bias is allocated up to the next multiple of 16 floats.
#include "kernel_operator.h"

using namespace AscendC;

struct MatmulBiasReluTiling {
    uint32_t m;
    uint32_t n;                 // at most 65535: the row pitch of b
    uint32_t k;                 // at most 65535: the row pitch of a
    uint32_t biasLength;        // n rounded up to 16
    uint32_t baseM;             // a tile of c is baseM x baseN, a step of the K loop is baseK; multiples of 16
    uint32_t baseN;             // at most 256: the bias table has 1 KB
    uint32_t baseK;
    uint32_t tilesPerCore;      // of ceil(m / baseM) * ceil(n / baseN) tiles
    uint32_t coresWithOneMore;
};

constexpr int32_t BUFFERS = 2;
constexpr uint32_t SIDE = 16;
constexpr uint32_t FRACTAL = SIDE * SIDE;
constexpr uint32_t SELF_ORDERED_FRACTALS = 10;  // from so many fractals on, two Mmad to one tile need no barrier
constexpr uint32_t BIAS_BLOCK = 64 / sizeof(float);

__aicore__ inline uint32_t DivideUp(uint32_t value, uint32_t by)
{
    return (value + by - 1) / by;
}

class MatmulBiasRelu {
public:
    __aicore__ inline MatmulBiasRelu() {}

    __aicore__ inline void Init(GM_ADDR a, GM_ADDR b, GM_ADDR bias, GM_ADDR c, const MatmulBiasReluTiling &tiling)
    {
        t = tiling;
        aGm.SetGlobalBuffer((__gm__ half *)a, static_cast<uint64_t>(t.m) * t.k);
        bGm.SetGlobalBuffer((__gm__ half *)b, static_cast<uint64_t>(t.k) * t.n);
        biasGm.SetGlobalBuffer((__gm__ float *)bias, t.biasLength);
        cGm.SetGlobalBuffer((__gm__ half *)c, static_cast<uint64_t>(t.m) * t.n);
        pipe.InitBuffer(a1Queue, BUFFERS, t.baseM * t.baseK * sizeof(half));
        pipe.InitBuffer(b1Queue, BUFFERS, t.baseK * t.baseN * sizeof(half));
        pipe.InitBuffer(bias1Queue, 1, t.baseN * sizeof(float));
        pipe.InitBuffer(a2Queue, BUFFERS, t.baseM * t.baseK * sizeof(half));
        pipe.InitBuffer(b2Queue, BUFFERS, t.baseK * t.baseN * sizeof(half));
        pipe.InitBuffer(bias2Queue, 1, t.baseN * sizeof(float));
        pipe.InitBuffer(cQueue, 1, t.baseM * t.baseN * sizeof(float));
    }

    __aicore__ inline void Process()
    {
        const uint32_t core = GetBlockIdx();
        const bool oneMore = core < t.coresWithOneMore;
        const uint32_t first = core * t.tilesPerCore + (oneMore ? core : t.coresWithOneMore);
        const uint32_t last = first + t.tilesPerCore + (oneMore ? 1 : 0);
        const uint32_t tilesN = DivideUp(t.n, t.baseN);
        for (uint32_t tile = first; tile < last; ++tile) {
            ComputeTile(tile / tilesN * t.baseM, tile % tilesN * t.baseN);
        }
    }

private:
    __aicore__ inline void ComputeTile(uint32_t row, uint32_t column)
    {
        const uint32_t m = t.m - row < t.baseM ? t.m - row : t.baseM;
        const uint32_t n = t.n - column < t.baseN ? t.n - column : t.baseN;
        CopyInBias(column, n);
        LoadBias(n);
        LocalTensor<float> c = cQueue.AllocTensor<float>();
        for (uint32_t depth = 0; depth < t.k; depth += t.baseK) {
            const uint32_t k = t.k - depth < t.baseK ? t.k - depth : t.baseK;
            CopyIn(row, column, depth, m, n, k);
            LoadA(m, k);
            LoadB(n, k);
            Multiply(c, m, n, k, depth == 0);
        }
        cQueue.EnQue(c);
        CopyOut(row, column, m, n);
    }

    __aicore__ inline void CopyInBias(uint32_t column, uint32_t n)
    {
        LocalTensor<float> bias1 = bias1Queue.AllocTensor<float>();
        DataCopy(bias1, biasGm[column], DivideUp(n, BIAS_BLOCK) * BIAS_BLOCK);
        bias1Queue.EnQue(bias1);
    }

    __aicore__ inline void LoadBias(uint32_t n)
    {
        LocalTensor<float> bias1 = bias1Queue.DeQue<float>();
        LocalTensor<float> bias2 = bias2Queue.AllocTensor<float>();
        DataCopyParams params{1, static_cast<uint16_t>(DivideUp(n, BIAS_BLOCK)), 0, 0};  // blocks of 64 bytes
        DataCopy(bias2, bias1, params);
        bias2Queue.EnQue(bias2);
        bias1Queue.FreeTensor(bias1);
    }

    // GM -> L1, rows to fractals. A single row of a is kept as a row: Mmad reads it so when m is 1.
    __aicore__ inline void CopyIn(uint32_t row, uint32_t column, uint32_t depth, uint32_t m, uint32_t n, uint32_t k)
    {
        LocalTensor<half> a1 = a1Queue.AllocTensor<half>();
        LocalTensor<half> b1 = b1Queue.AllocTensor<half>();
        Nd2NzParams params;
        params.ndNum = 1;
        params.nValue = m;
        params.dValue = k;
        params.srcNdMatrixStride = 0;
        params.srcDValue = t.k;
        params.dstNzC0Stride = m == 1 ? 1 : DivideUp(m, SIDE) * SIDE;
        params.dstNzNStride = 1;
        params.dstNzMatrixStride = 0;
        DataCopy(a1, aGm[static_cast<uint64_t>(row) * t.k + depth], params);
        params.nValue = k;
        params.dValue = n;
        params.srcDValue = t.n;
        params.dstNzC0Stride = DivideUp(k, SIDE) * SIDE;
        DataCopy(b1, bGm[static_cast<uint64_t>(depth) * t.n + column], params);
        a1Queue.EnQue(a1);
        b1Queue.EnQue(b1);
    }

    __aicore__ inline void LoadA(uint32_t m, uint32_t k)
    {
        LocalTensor<half> a1 = a1Queue.DeQue<half>();
        LocalTensor<half> a2 = a2Queue.AllocTensor<half>();
        LoadData2DParams params;
        params.dstGap = 0;
        params.ifTranspose = false;
        if (m == 1) {
            params.repeatTimes = DivideUp(k, FRACTAL);
            params.srcStride = 1;
            LoadData(a2, a1, params);
        } else {
            const uint32_t mFractals = DivideUp(m, SIDE);
            const uint32_t kFractals = DivideUp(k, SIDE);
            params.repeatTimes = kFractals;
            params.srcStride = mFractals;
            for (uint32_t i = 0; i < mFractals; ++i) {
                LoadData(a2[i * kFractals * FRACTAL], a1[i * FRACTAL], params);
            }
        }
        a2Queue.EnQue(a2);
        a1Queue.FreeTensor(a1);
    }

    __aicore__ inline void LoadB(uint32_t n, uint32_t k)
    {
        LocalTensor<half> b1 = b1Queue.DeQue<half>();
        LocalTensor<half> b2 = b2Queue.AllocTensor<half>();
        const uint32_t nFractals = DivideUp(n, SIDE);
        const uint32_t kFractals = DivideUp(k, SIDE);
        LoadData2DParams params;
        params.repeatTimes = nFractals;
        params.srcStride = kFractals;
        params.dstGap = 0;
        params.ifTranspose = true;
        for (uint32_t i = 0; i < kFractals; ++i) {
            LoadData(b2[i * nFractals * FRACTAL], b1[i * FRACTAL], params);
        }
        b2Queue.EnQue(b2);
        b1Queue.FreeTensor(b1);
    }

    __aicore__ inline void Multiply(const LocalTensor<float> &c, uint32_t m, uint32_t n, uint32_t k, bool first)
    {
        LocalTensor<half> a2 = a2Queue.DeQue<half>();
        LocalTensor<half> b2 = b2Queue.DeQue<half>();
        MmadParams params;
        params.m = m;
        params.n = n;
        params.k = k;
        params.cmatrixInitVal = false;
        params.unitFlag = 0;
        if (first) {
            LocalTensor<float> bias2 = bias2Queue.DeQue<float>();
            Mmad(c, a2, b2, bias2, params);
            bias2Queue.FreeTensor(bias2);
        } else {
            Mmad(c, a2, b2, params);
        }
        if ((m / SIDE) * (n / SIDE) < SELF_ORDERED_FRACTALS) {
            PipeBarrier<PIPE_M>();
        }
        a2Queue.FreeTensor(a2);
        b2Queue.FreeTensor(b2);
    }

    __aicore__ inline void CopyOut(uint32_t row, uint32_t column, uint32_t m, uint32_t n)
    {
        LocalTensor<float> c = cQueue.DeQue<float>();
        FixpipeParamsV220 params;
        params.nSize = n;
        params.mSize = m;
        params.srcStride = DivideUp(m, SIDE) * SIDE;
        params.dstStride = t.n;
        params.quantPre = QuantMode_t::F322F16;
        params.reluEn = true;
        params.unitFlag = 0;
        params.ndNum = 1;
        params.srcNdStride = 0;
        params.dstNdStride = 0;
        Fixpipe<half, float, CFG_ROW_MAJOR>(cGm[static_cast<uint64_t>(row) * t.n + column], c, params);
        cQueue.FreeTensor(c);
    }

    TPipe pipe;
    TQue<TPosition::A1, 1> a1Queue;
    TQue<TPosition::B1, 1> b1Queue;
    TQue<TPosition::C1, 1> bias1Queue;
    TQue<TPosition::A2, 1> a2Queue;
    TQue<TPosition::B2, 1> b2Queue;
    TQue<TPosition::C2, 1> bias2Queue;
    TQue<TPosition::CO1, 1> cQueue;
    GlobalTensor<half> aGm, bGm, cGm;
    GlobalTensor<float> biasGm;
    MatmulBiasReluTiling t;
};

extern "C" __global__ __aicore__ void matmul_bias_relu(GM_ADDR a, GM_ADDR b, GM_ADDR bias, GM_ADDR c,
                                                       MatmulBiasReluTiling tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    MatmulBiasRelu op;
    op.Init(a, b, bias, c, tiling);
    op.Process();
}
