// y = gelu(x) in bf16, computed in fp32: x / (1 + exp(-2 u)) with u = sqrt(2 / pi) * (x + 0.044715 * x^3), which is the
// tanh form 0.5 * x * (1 + tanh(u)).
#include "kernel_operator.h"

using namespace AscendC;

struct GeluBf16Tiling {
    uint32_t length;            // elements of x and y
    uint32_t unit;              // elements of a share; a multiple of 16
    uint32_t unitsPerCore;
    uint32_t coresWithOneMore;
    uint32_t tile;              // elements of a buffer; a multiple of 16
};

constexpr int32_t BUFFERS = 2;
constexpr float CUBIC = 0.044715f;
constexpr float MINUS_TWO_ROOT = -1.5957691216057308f;  // -2 * sqrt(2 / pi)
constexpr float LARGEST_EXPONENT = 80.0f;               // exp(80) is finite, and x / exp(80) rounds as x / inf does

class GeluBf16 {
public:
    __aicore__ inline GeluBf16() {}

    __aicore__ inline void Init(GM_ADDR x, GM_ADDR y, const GeluBf16Tiling &t, TPipe *pipe)
    {
        const uint32_t core = GetBlockIdx();
        const bool oneMore = core < t.coresWithOneMore;
        const uint32_t firstUnit = core * t.unitsPerCore + (oneMore ? core : t.coresWithOneMore);
        const uint32_t begin = firstUnit * t.unit;
        const uint32_t end = begin + (t.unitsPerCore + (oneMore ? 1 : 0)) * t.unit;
        count = begin >= t.length ? 0 : (end < t.length ? end : t.length) - begin;
        tile = t.tile;
        xGm.SetGlobalBuffer((__gm__ bfloat16_t *)x + begin, count);
        yGm.SetGlobalBuffer((__gm__ bfloat16_t *)y + begin, count);
        pipe->InitBuffer(inQueue, BUFFERS, tile * sizeof(bfloat16_t));
        pipe->InitBuffer(outQueue, BUFFERS, tile * sizeof(bfloat16_t));
        pipe->InitBuffer(wideBuffer, tile * sizeof(float));
        pipe->InitBuffer(innerBuffer, tile * sizeof(float));
    }

    __aicore__ inline void Process()
    {
        for (uint32_t offset = 0; offset < count; offset += tile) {
            const uint32_t n = count - offset < tile ? count - offset : tile;
            CopyIn(offset, n);
            Compute(static_cast<int32_t>(n));
            CopyOut(offset, n);
        }
    }

private:
    __aicore__ inline void CopyIn(uint32_t offset, uint32_t n)
    {
        LocalTensor<bfloat16_t> x = inQueue.AllocTensor<bfloat16_t>();
        DataCopyExtParams params{1, static_cast<uint32_t>(n * sizeof(bfloat16_t)), 0, 0, 0};
        DataCopyPadExtParams<bfloat16_t> noPad;
        noPad.isPad = false;
        DataCopyPad(x, xGm[offset], params, noPad);
        inQueue.EnQue(x);
    }

    __aicore__ inline void Compute(int32_t n)
    {
        LocalTensor<bfloat16_t> x = inQueue.DeQue<bfloat16_t>();
        LocalTensor<bfloat16_t> y = outQueue.AllocTensor<bfloat16_t>();
        LocalTensor<float> wide = wideBuffer.Get<float>();
        LocalTensor<float> inner = innerBuffer.Get<float>();
        Cast(wide, x, RoundMode::CAST_NONE, n);
        Mul(inner, wide, wide, n);
        Muls(inner, inner, CUBIC, n);
        Adds(inner, inner, 1.0f, n);
        Mul(inner, inner, wide, n);
        Muls(inner, inner, MINUS_TWO_ROOT, n);
        Mins(inner, inner, LARGEST_EXPONENT, n);
        Exp(inner, inner, n);
        Adds(inner, inner, 1.0f, n);
        Div(wide, wide, inner, n);
        Cast(y, wide, RoundMode::CAST_RINT, n);
        outQueue.EnQue(y);
        inQueue.FreeTensor(x);
    }

    __aicore__ inline void CopyOut(uint32_t offset, uint32_t n)
    {
        LocalTensor<bfloat16_t> y = outQueue.DeQue<bfloat16_t>();
        DataCopyExtParams params{1, static_cast<uint32_t>(n * sizeof(bfloat16_t)), 0, 0, 0};
        DataCopyPad(yGm[offset], y, params);
        outQueue.FreeTensor(y);
    }

    TQue<TPosition::VECIN, 1> inQueue;
    TQue<TPosition::VECOUT, 1> outQueue;
    TBuf<TPosition::VECCALC> wideBuffer, innerBuffer;
    GlobalTensor<bfloat16_t> xGm, yGm;
    uint32_t count, tile;
};

extern "C" __global__ __aicore__ void gelu_bf16(GM_ADDR x, GM_ADDR y, GeluBf16Tiling tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    GeluBf16 op;
    op.Init(x, y, tiling, &pipe);
    op.Process();
}
