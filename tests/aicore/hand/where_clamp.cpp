// out = clamp(condition > limit ? x : y, low, high) in fp32, by Compare and Select. Compares take whole repeats of
// 64 floats, so the lanes behind the tail are filled first.
#include "kernel_operator.h"

using namespace AscendC;

struct WhereClampTiling {
    uint32_t length;            // elements of every tensor
    uint32_t unit;              // elements of a share; a multiple of 8
    uint32_t unitsPerCore;
    uint32_t coresWithOneMore;
    uint32_t tile;              // elements of a buffer; a multiple of 256: a bit each fills whole blocks of 32 bytes
    float limit;
    float low;
    float high;
};

constexpr int32_t BUFFERS = 2;
constexpr uint32_t LANES = 256 / sizeof(float);
constexpr uint32_t FLOATS_PER_BLOCK = 32 / sizeof(float);

class WhereClamp {
public:
    __aicore__ inline WhereClamp() {}

    __aicore__ inline void Init(GM_ADDR condition, GM_ADDR x, GM_ADDR y, GM_ADDR out, const WhereClampTiling &tiling,
                                TPipe *pipe)
    {
        t = tiling;
        const uint32_t core = GetBlockIdx();
        const bool oneMore = core < t.coresWithOneMore;
        const uint32_t firstUnit = core * t.unitsPerCore + (oneMore ? core : t.coresWithOneMore);
        const uint32_t begin = firstUnit * t.unit;
        const uint32_t end = begin + (t.unitsPerCore + (oneMore ? 1 : 0)) * t.unit;
        count = begin >= t.length ? 0 : (end < t.length ? end : t.length) - begin;
        conditionGm.SetGlobalBuffer((__gm__ float *)condition + begin, count);
        xGm.SetGlobalBuffer((__gm__ float *)x + begin, count);
        yGm.SetGlobalBuffer((__gm__ float *)y + begin, count);
        outGm.SetGlobalBuffer((__gm__ float *)out + begin, count);
        pipe->InitBuffer(conditionQueue, BUFFERS, t.tile * sizeof(float));
        pipe->InitBuffer(xQueue, BUFFERS, t.tile * sizeof(float));
        pipe->InitBuffer(yQueue, BUFFERS, t.tile * sizeof(float));
        pipe->InitBuffer(outQueue, BUFFERS, t.tile * sizeof(float));
        pipe->InitBuffer(lowBuffer, t.tile * sizeof(float));
        pipe->InitBuffer(bitBuffer, t.tile / 8);
    }

    __aicore__ inline void Process()
    {
        LocalTensor<float> low = lowBuffer.Get<float>();
        Duplicate(low, t.low, static_cast<int32_t>(t.tile));
        for (uint32_t offset = 0; offset < count; offset += t.tile) {
            const uint32_t n = count - offset < t.tile ? count - offset : t.tile;
            CopyIn(offset, n);
            Compute(n, low);
            CopyOut(offset, n);
        }
    }

private:
    __aicore__ inline void CopyIn(uint32_t offset, uint32_t n)
    {
        LocalTensor<float> condition = conditionQueue.AllocTensor<float>();
        LocalTensor<float> x = xQueue.AllocTensor<float>();
        LocalTensor<float> y = yQueue.AllocTensor<float>();
        const uint32_t behind = (FLOATS_PER_BLOCK - n % FLOATS_PER_BLOCK) % FLOATS_PER_BLOCK;
        DataCopyExtParams params{1, static_cast<uint32_t>(n * sizeof(float)), 0, 0, 0};
        DataCopyPadExtParams<float> zeros{true, 0, static_cast<uint8_t>(behind), 0.0f};
        DataCopyPad(condition, conditionGm[offset], params, zeros);
        DataCopyPad(x, xGm[offset], params, zeros);
        DataCopyPad(y, yGm[offset], params, zeros);
        conditionQueue.EnQue(condition);
        xQueue.EnQue(x);
        yQueue.EnQue(y);
    }

    __aicore__ inline void Compute(uint32_t n, const LocalTensor<float> &low)
    {
        LocalTensor<float> condition = conditionQueue.DeQue<float>();
        LocalTensor<float> x = xQueue.DeQue<float>();
        LocalTensor<float> y = yQueue.DeQue<float>();
        LocalTensor<float> out = outQueue.AllocTensor<float>();
        LocalTensor<uint8_t> bits = bitBuffer.Get<uint8_t>();
        const uint32_t filled = (n + FLOATS_PER_BLOCK - 1) / FLOATS_PER_BLOCK * FLOATS_PER_BLOCK;
        const uint32_t whole = (n + LANES - 1) / LANES * LANES;
        if (filled < whole) {
            Duplicate(condition[filled], 0.0f, static_cast<int32_t>(whole - filled));
            Duplicate(x[filled], 0.0f, static_cast<int32_t>(whole - filled));
            Duplicate(y[filled], 0.0f, static_cast<int32_t>(whole - filled));
        }
        CompareScalar(bits, condition, t.limit, CMPMODE::GT, whole);
        Select(out, bits, x, y, SELMODE::VSEL_TENSOR_TENSOR_MODE, whole);
        Compare(bits, out, low, CMPMODE::GE, whole);
        Select(out, bits, out, t.low, SELMODE::VSEL_TENSOR_SCALAR_MODE, whole);
        Mins(out, out, t.high, static_cast<int32_t>(n));
        outQueue.EnQue(out);
        conditionQueue.FreeTensor(condition);
        xQueue.FreeTensor(x);
        yQueue.FreeTensor(y);
    }

    __aicore__ inline void CopyOut(uint32_t offset, uint32_t n)
    {
        LocalTensor<float> out = outQueue.DeQue<float>();
        DataCopyExtParams params{1, static_cast<uint32_t>(n * sizeof(float)), 0, 0, 0};
        DataCopyPad(outGm[offset], out, params);
        outQueue.FreeTensor(out);
    }

    TQue<TPosition::VECIN, 1> conditionQueue, xQueue, yQueue;
    TQue<TPosition::VECOUT, 1> outQueue;
    TBuf<TPosition::VECCALC> lowBuffer, bitBuffer;
    GlobalTensor<float> conditionGm, xGm, yGm, outGm;
    WhereClampTiling t;
    uint32_t count;
};

extern "C" __global__ __aicore__ void where_clamp(GM_ADDR condition, GM_ADDR x, GM_ADDR y, GM_ADDR out,
                                                  WhereClampTiling tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    WhereClamp op;
    op.Init(condition, x, y, out, tiling, &pipe);
    op.Process();
}
