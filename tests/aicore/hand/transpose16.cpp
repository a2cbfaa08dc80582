// y[n, m] = x[m, n] transposed, 16-bit elements, m and n multiples of 16. A step takes a column of 16×16 tiles: one
// copy brings their rows of 32 bytes, which lie in UB as whole tiles; the tiles leave one by one.
#include "kernel_operator.h"

using namespace AscendC;

struct Transpose16Tiling {
    uint32_t m;
    uint32_t n;
    uint32_t tilesPerStep;      // at most 255: a copy has at most 4095 blocks
    uint32_t stepsPerColumn;    // ceil(m / 16 / tilesPerStep)
    uint32_t stepsPerCore;      // of stepsPerColumn * n / 16 steps
    uint32_t coresWithOneMore;
};

constexpr int32_t BUFFERS = 2;
constexpr uint32_t SIDE = 16;
constexpr uint32_t TILE = SIDE * SIDE;

class Transpose16 {
public:
    __aicore__ inline Transpose16() {}

    __aicore__ inline void Init(GM_ADDR x, GM_ADDR y, const Transpose16Tiling &tiling, TPipe *pipe)
    {
        t = tiling;
        const uint64_t size = static_cast<uint64_t>(t.m) * t.n;
        xGm.SetGlobalBuffer((__gm__ half *)x, size);
        yGm.SetGlobalBuffer((__gm__ half *)y, size);
        pipe->InitBuffer(inQueue, BUFFERS, t.tilesPerStep * TILE * sizeof(half));
        pipe->InitBuffer(outQueue, BUFFERS, t.tilesPerStep * TILE * sizeof(half));
    }

    __aicore__ inline void Process()
    {
        const uint32_t core = GetBlockIdx();
        const bool oneMore = core < t.coresWithOneMore;
        const uint32_t first = core * t.stepsPerCore + (oneMore ? core : t.coresWithOneMore);
        const uint32_t last = first + t.stepsPerCore + (oneMore ? 1 : 0);
        const uint32_t tileRows = t.m / SIDE;
        for (uint32_t step = first; step < last; ++step) {
            const uint32_t column = step / t.stepsPerColumn;
            const uint32_t row = step % t.stepsPerColumn * t.tilesPerStep;
            const uint32_t tiles = tileRows - row < t.tilesPerStep ? tileRows - row : t.tilesPerStep;
            CopyIn(row, column, tiles);
            Compute(tiles);
            CopyOut(row, column, tiles);
        }
    }

private:
    __aicore__ inline void CopyIn(uint32_t row, uint32_t column, uint32_t tiles)
    {
        LocalTensor<half> x = inQueue.AllocTensor<half>();
        DataCopyParams params{static_cast<uint16_t>(tiles * SIDE), 1, static_cast<uint16_t>(t.n / SIDE - 1), 0};
        DataCopy(x, xGm[static_cast<uint64_t>(row) * SIDE * t.n + column * SIDE], params);
        inQueue.EnQue(x);
    }

    __aicore__ inline void Compute(uint32_t tiles)
    {
        LocalTensor<half> x = inQueue.DeQue<half>();
        LocalTensor<half> y = outQueue.AllocTensor<half>();
        for (uint32_t i = 0; i < tiles; ++i) {
            Transpose(y[i * TILE], x[i * TILE]);
        }
        outQueue.EnQue(y);
        inQueue.FreeTensor(x);
    }

    __aicore__ inline void CopyOut(uint32_t row, uint32_t column, uint32_t tiles)
    {
        LocalTensor<half> y = outQueue.DeQue<half>();
        DataCopyParams params{static_cast<uint16_t>(SIDE), 1, 0, static_cast<uint16_t>(t.m / SIDE - 1)};
        for (uint32_t i = 0; i < tiles; ++i) {
            DataCopy(yGm[static_cast<uint64_t>(column) * SIDE * t.m + (row + i) * SIDE], y[i * TILE], params);
        }
        outQueue.FreeTensor(y);
    }

    TQue<TPosition::VECIN, 1> inQueue;
    TQue<TPosition::VECOUT, 1> outQueue;
    GlobalTensor<half> xGm, yGm;
    Transpose16Tiling t;
};

extern "C" __global__ __aicore__ void transpose16(GM_ADDR x, GM_ADDR y, Transpose16Tiling tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    Transpose16 op;
    op.Init(x, y, tiling, &pipe);
    op.Process();
}
