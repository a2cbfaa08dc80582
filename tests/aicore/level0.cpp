// One tile of 512 floats, worked on with masks, repeats, flags and scratch buffers:
// z[0:512] = (x + y) where x < y, else y; z[512] = max(x); z[520:528] = sums of blocks of the first 64 of x.
#include "kernel_operator.h"
using namespace AscendC;

extern "C" __global__ __aicore__ void level0(GM_ADDR x, GM_ADDR y, GM_ADDR z) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    TQue<QuePosition::VECIN, 1> in;
    TQue<QuePosition::VECOUT, 1> out;
    TBuf<TPosition::VECCALC> scratch, bits, small;
    pipe.InitBuffer(in, 1, 4096);
    pipe.InitBuffer(out, 1, 2048 + 64);
    pipe.InitBuffer(scratch, 2048);
    pipe.InitBuffer(bits, 64);
    pipe.InitBuffer(small, 64);
    GlobalTensor<float> xGm, yGm, zGm;
    xGm.SetGlobalBuffer((__gm__ float*)x, 512);
    yGm.SetGlobalBuffer((__gm__ float*)y, 512);
    zGm.SetGlobalBuffer((__gm__ float*)z, 528);

    LocalTensor<float> both = in.AllocTensor<float>();
    DataCopy(both, xGm, DataCopyParams{2, 32, 0, 0});
    DataCopy(both[512], yGm, 512);
    in.EnQue(both);
    both = in.DeQue<float>();
    LocalTensor<float> a = both, b = both[512];
    LocalTensor<float> result = out.AllocTensor<float>();
    LocalTensor<float> sum = scratch.Get<float>();
    LocalTensor<uint8_t> less = bits.Get<uint8_t>();
    LocalTensor<float> tmp = small.Get<float>();

    Add(sum, a, b, (uint64_t)64, 8, BinaryRepeatParams{1, 1, 1, 8, 8, 8});
    Compare(less, a, b, CMPMODE::LT, 512);
    Select(result, less, sum, b, SELMODE::VSEL_TENSOR_TENSOR_MODE, 512);
    ReduceMax(sum, a, tmp, 512);
    Duplicate(result[512], 0.0f, 16);
    float largest = sum.GetValue(0);
    result.SetValue(512, largest);
    BlockReduceSum(result[520], a, 1, 64, 1, 1, 8);
    out.EnQue(result);
    in.FreeTensor(both);
    result = out.DeQue<float>();
    DataCopy(zGm, result, 528);
    out.FreeTensor(result);
}
