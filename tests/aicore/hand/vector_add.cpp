// z = x + y in fp16, of any length. The cores share `unit`s of elements; the last unit of the vector may be short.
#include "kernel_operator.h"

using namespace AscendC;

struct VectorAddTiling {
    uint32_t length;            // elements of x, y and z
    uint32_t unit;              // elements of a share; a multiple of 16
    uint32_t unitsPerCore;      // every core has this many units ...
    uint32_t coresWithOneMore;  // ... and the first cores one more
    uint32_t tile;              // elements of a buffer; a multiple of 16
};

constexpr int32_t BUFFERS = 2;
constexpr uint32_t BLOCK_BYTES = 32;

class VectorAdd {
public:
    __aicore__ inline VectorAdd() {}

    __aicore__ inline void Init(GM_ADDR x, GM_ADDR y, GM_ADDR z, const VectorAddTiling &tiling)
    {
        const uint32_t core = GetBlockIdx();
        const uint32_t earlier = core < tiling.coresWithOneMore ? core : tiling.coresWithOneMore;
        const uint32_t units = tiling.unitsPerCore + (core < tiling.coresWithOneMore ? 1 : 0);
        const uint32_t begin = (core * tiling.unitsPerCore + earlier) * tiling.unit;
        const uint32_t end = begin + units * tiling.unit;
        count = begin >= tiling.length ? 0 : (end < tiling.length ? end : tiling.length) - begin;
        tile = tiling.tile;
        xGm.SetGlobalBuffer((__gm__ half *)x + begin, count);
        yGm.SetGlobalBuffer((__gm__ half *)y + begin, count);
        zGm.SetGlobalBuffer((__gm__ half *)z + begin, count);
        pipe.InitBuffer(xQueue, BUFFERS, tile * sizeof(half));
        pipe.InitBuffer(yQueue, BUFFERS, tile * sizeof(half));
        pipe.InitBuffer(zQueue, BUFFERS, tile * sizeof(half));
    }

    __aicore__ inline void Process()
    {
        for (uint32_t offset = 0; offset < count; offset += tile) {
            const uint32_t n = count - offset < tile ? count - offset : tile;
            CopyIn(offset, n);
            Compute(n);
            CopyOut(offset, n);
        }
    }

private:
    __aicore__ inline void CopyIn(uint32_t offset, uint32_t n)
    {
        LocalTensor<half> x = xQueue.AllocTensor<half>();
        LocalTensor<half> y = yQueue.AllocTensor<half>();
        if (n * sizeof(half) % BLOCK_BYTES == 0) {
            DataCopy(x, xGm[offset], n);
            DataCopy(y, yGm[offset], n);
        } else {
            DataCopyExtParams params{1, static_cast<uint32_t>(n * sizeof(half)), 0, 0, 0};
            DataCopyPadExtParams<half> noPad{false, 0, 0, 0};
            DataCopyPad(x, xGm[offset], params, noPad);
            DataCopyPad(y, yGm[offset], params, noPad);
        }
        xQueue.EnQue(x);
        yQueue.EnQue(y);
    }

    __aicore__ inline void Compute(uint32_t n)
    {
        LocalTensor<half> x = xQueue.DeQue<half>();
        LocalTensor<half> y = yQueue.DeQue<half>();
        LocalTensor<half> z = zQueue.AllocTensor<half>();
        Add(z, x, y, n);
        zQueue.EnQue<half>(z);
        xQueue.FreeTensor(x);
        yQueue.FreeTensor(y);
    }

    __aicore__ inline void CopyOut(uint32_t offset, uint32_t n)
    {
        LocalTensor<half> z = zQueue.DeQue<half>();
        if (n * sizeof(half) % BLOCK_BYTES == 0) {
            DataCopy(zGm[offset], z, n);
        } else {
            DataCopyExtParams params{1, static_cast<uint32_t>(n * sizeof(half)), 0, 0, 0};
            DataCopyPad(zGm[offset], z, params);
        }
        zQueue.FreeTensor(z);
    }

    TPipe pipe;
    TQue<TPosition::VECIN, 1> xQueue, yQueue;
    TQue<TPosition::VECOUT, 1> zQueue;
    GlobalTensor<half> xGm, yGm, zGm;
    uint32_t count = 0;
    uint32_t tile = 0;
};

extern "C" __global__ __aicore__ void vector_add(GM_ADDR x, GM_ADDR y, GM_ADDR z, VectorAddTiling tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    VectorAdd op;
    op.Init(x, y, z, tiling);
    op.Process();
}
