// y = relu(x * scale + shift) in fp32; scale and shift are known when the kernel starts.
#include "kernel_operator.h"

using namespace AscendC;

struct AxpyReluTiling {
    uint32_t length;            // elements of x and y
    uint32_t unit;              // elements of a share; a multiple of 8
    uint32_t unitsPerCore;
    uint32_t coresWithOneMore;
    uint32_t tile;              // elements of a buffer; a multiple of 8
    float scale;
    float shift;
};

constexpr int32_t BUFFERS = 2;

class AxpyRelu {
public:
    __aicore__ inline AxpyRelu() {}

    __aicore__ inline void Init(GM_ADDR x, GM_ADDR y, const AxpyReluTiling &t, TPipe *pipe)
    {
        const uint32_t core = GetBlockIdx();
        const bool oneMore = core < t.coresWithOneMore;
        const uint32_t firstUnit = core * t.unitsPerCore + (oneMore ? core : t.coresWithOneMore);
        const uint32_t begin = firstUnit * t.unit;
        const uint32_t end = begin + (t.unitsPerCore + (oneMore ? 1 : 0)) * t.unit;
        count = begin >= t.length ? 0 : (end < t.length ? end : t.length) - begin;
        tile = t.tile;
        scale = t.scale;
        shift = t.shift;
        xGm.SetGlobalBuffer((__gm__ float *)x + begin, count);
        yGm.SetGlobalBuffer((__gm__ float *)y + begin, count);
        pipe->InitBuffer(inQueue, BUFFERS, tile * sizeof(float));
        pipe->InitBuffer(outQueue, BUFFERS, tile * sizeof(float));
    }

    __aicore__ inline void Process()
    {
        const uint32_t tiles = (count + tile - 1) / tile;
        for (uint32_t i = 0; i < tiles; ++i) {
            const uint32_t n = i + 1 < tiles ? tile : count - i * tile;
            CopyIn(i * tile, n);
            Compute(n);
            CopyOut(i * tile, n);
        }
    }

private:
    __aicore__ inline void CopyIn(uint32_t offset, uint32_t n)
    {
        LocalTensor<float> x = inQueue.AllocTensor<float>();
        DataCopyExtParams params{1, static_cast<uint32_t>(n * sizeof(float)), 0, 0, 0};
        DataCopyPadExtParams<float> noPad{false, 0, 0, 0.0f};
        DataCopyPad(x, xGm[offset], params, noPad);
        inQueue.EnQue(x);
    }

    __aicore__ inline void Compute(uint32_t n)
    {
        LocalTensor<float> x = inQueue.DeQue<float>();
        LocalTensor<float> y = outQueue.AllocTensor<float>();
        Muls(y, x, scale, n);
        Adds(y, y, shift, n);
        Relu(y, y, n);
        outQueue.EnQue(y);
        inQueue.FreeTensor(x);
    }

    __aicore__ inline void CopyOut(uint32_t offset, uint32_t n)
    {
        LocalTensor<float> y = outQueue.DeQue<float>();
        DataCopyExtParams params{1, static_cast<uint32_t>(n * sizeof(float)), 0, 0, 0};
        DataCopyPad(yGm[offset], y, params);
        outQueue.FreeTensor(y);
    }

    TQue<TPosition::VECIN, 1> inQueue;
    TQue<TPosition::VECOUT, 1> outQueue;
    GlobalTensor<float> xGm, yGm;
    uint32_t count, tile;
    float scale, shift;
};

extern "C" __global__ __aicore__ void axpy_relu(GM_ADDR x, GM_ADDR y, AxpyReluTiling tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    AxpyRelu op;
    op.Init(x, y, tiling, &pipe);
    op.Process();
}
