// z = x + y over all cores: queues, double buffering, a tail of any length.
#include "kernel_operator.h"
using namespace AscendC;

struct Tiling {
    uint32_t perCore;  // elements of a core
    uint32_t tile;     // elements of a tile, whole 32-byte blocks
};

class Add3 {
public:
    __aicore__ inline void Init(GM_ADDR x, GM_ADDR y, GM_ADDR z, const Tiling& tiling) {
        perCore = tiling.perCore;
        tile = tiling.tile;
        xGm.SetGlobalBuffer((__gm__ float*)x + GetBlockIdx() * perCore, perCore);
        yGm.SetGlobalBuffer((__gm__ float*)y + GetBlockIdx() * perCore, perCore);
        zGm.SetGlobalBuffer((__gm__ float*)z + GetBlockIdx() * perCore, perCore);
        pipe.InitBuffer(inX, 2, tile * sizeof(float));
        pipe.InitBuffer(inY, 2, tile * sizeof(float));
        pipe.InitBuffer(out, 2, tile * sizeof(float));
        pipe.InitBuffer(rest, 188160 - 6 * tile * sizeof(float));
    }
    __aicore__ inline void Process() {
        for (uint32_t at = 0; at < perCore; at += tile) {
            uint32_t count = perCore - at < tile ? perCore - at : tile;
            CopyIn(at, count);
            Compute(count);
            CopyOut(at, count);
        }
    }

private:
    __aicore__ inline void CopyIn(uint32_t at, uint32_t count) {
        LocalTensor<float> x = inX.AllocTensor<float>();
        LocalTensor<float> y = inY.AllocTensor<float>();
        DataCopyExtParams row{1, count * 4, 0, 0, 0};
        DataCopyPadExtParams<float> pad{true, 0, (8 - count % 8) % 8, 0.0f};
        DataCopyPad(x, xGm[at], row, pad);
        DataCopyPad(y, yGm[at], row, pad);
        inX.EnQue(x);
        inY.EnQue(y);
    }
    __aicore__ inline void Compute(uint32_t count) {
        LocalTensor<float> x = inX.DeQue<float>();
        LocalTensor<float> y = inY.DeQue<float>();
        LocalTensor<float> z = out.AllocTensor<float>();
        Add(z, x, y, count);
        out.EnQue<float>(z);
        inX.FreeTensor(x);
        inY.FreeTensor(y);
    }
    __aicore__ inline void CopyOut(uint32_t at, uint32_t count) {
        LocalTensor<float> z = out.DeQue<float>();
        DataCopyPad(zGm[at], z, DataCopyExtParams{1, count * 4, 0, 0, 0});
        out.FreeTensor(z);
    }

    TPipe pipe;
    TQue<QuePosition::VECIN, 1> inX, inY;
    TQue<QuePosition::VECOUT, 1> out;
    TBuf<TPosition::VECCALC> rest;
    GlobalTensor<float> xGm, yGm, zGm;
    uint32_t perCore, tile;
};

extern "C" __global__ __aicore__ void add(GM_ADDR x, GM_ADDR y, GM_ADDR z, Tiling tiling) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    Add3 op;
    op.Init(x, y, z, tiling);
    op.Process();
}
