// z = x + y at level 0, with mask, repeat and strides from the tiling; 4096 elements each.
#include "kernel_operator.h"
using namespace AscendC;

struct Walk {
    uint64_t mask[2];
    int32_t repeat, dstBlk, src0Blk, src1Blk, dstRep, src0Rep, src1Rep;
};

template <typename T> __aicore__ inline void Masked(GM_ADDR x, GM_ADDR y, GM_ADDR z, Walk& w) {
    TPipe pipe;
    TBuf<> xBuf, yBuf, zBuf;
    pipe.InitBuffer(xBuf, 4096 * sizeof(T));
    pipe.InitBuffer(yBuf, 4096 * sizeof(T));
    pipe.InitBuffer(zBuf, 4096 * sizeof(T));
    GlobalTensor<T> xGm, yGm, zGm;
    xGm.SetGlobalBuffer((__gm__ T*)x, 4096);
    yGm.SetGlobalBuffer((__gm__ T*)y, 4096);
    zGm.SetGlobalBuffer((__gm__ T*)z, 4096);
    DataCopy(xBuf.Get<T>(), xGm, 4096);
    DataCopy(yBuf.Get<T>(), yGm, 4096);
    DataCopy(zBuf.Get<T>(), zGm, 4096);
    PipeBarrier<PIPE_ALL>();
    BinaryRepeatParams p(w.dstBlk, w.src0Blk, w.src1Blk, w.dstRep, w.src0Rep, w.src1Rep);
    Add(zBuf.Get<T>(), xBuf.Get<T>(), yBuf.Get<T>(), w.mask, w.repeat, p);
    PipeBarrier<PIPE_ALL>();
    DataCopy(zGm, zBuf.Get<T>(), 4096);
}

extern "C" __global__ __aicore__ void masked_half(GM_ADDR x, GM_ADDR y, GM_ADDR z, Walk w) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    Masked<half>(x, y, z, w);
}

extern "C" __global__ __aicore__ void masked_float(GM_ADDR x, GM_ADDR y, GM_ADDR z, Walk w) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    Masked<float>(x, y, z, w);
}
