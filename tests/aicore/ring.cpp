// Cube and Vector: C = A B (16x16 halves) on the Cube into a workspace, then z = 2 C on the two vector cores, for each of
// `steps` matrices. The two sides wait for each other through flags 0 (full) and 1 (empty).
#include "kernel_operator.h"
using namespace AscendC;

struct Tiling {
    uint32_t steps;
};

extern "C" __global__ __aicore__ void ring(GM_ADDR a, GM_ADDR b, GM_ADDR workspace, GM_ADDR z, Tiling t) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    TPipe pipe;
    GlobalTensor<half> aGm, bGm;
    GlobalTensor<float> wGm, zGm;
    aGm.SetGlobalBuffer((__gm__ half*)a);
    bGm.SetGlobalBuffer((__gm__ half*)b);
    wGm.SetGlobalBuffer((__gm__ float*)workspace);
    zGm.SetGlobalBuffer((__gm__ float*)z);
    if ASCEND_IS_AIC {
        TQue<TPosition::A1, 1> a1Que, b1Que;
        TQue<TPosition::A2, 1> a2Que;
        TQue<TPosition::B2, 1> b2Que;
        TQue<TPosition::CO1, 1> cQue;
        pipe.InitBuffer(a1Que, 1, 512);
        pipe.InitBuffer(b1Que, 1, 512);
        pipe.InitBuffer(a2Que, 1, 512);
        pipe.InitBuffer(b2Que, 1, 512);
        pipe.InitBuffer(cQue, 1, 1024);
        for (uint32_t s = 0; s < t.steps; ++s) {
            LocalTensor<half> a1 = a1Que.AllocTensor<half>(), b1 = b1Que.AllocTensor<half>();
            Nd2NzParams nz{1, 16, 16, 0, 16, 16, 1, 0};
            DataCopy(a1, aGm[s * 256], nz);
            DataCopy(b1, bGm[s * 256], nz);
            a1Que.EnQue(a1);
            b1Que.EnQue(b1);
            a1 = a1Que.DeQue<half>();
            b1 = b1Que.DeQue<half>();
            LocalTensor<half> a2 = a2Que.AllocTensor<half>(), b2 = b2Que.AllocTensor<half>();
            LoadData2DParams load;
            load.repeatTimes = 1;
            LoadData(a2, a1, load);
            load.ifTranspose = true;
            LoadData(b2, b1, load);
            a2Que.EnQue(a2);
            b2Que.EnQue(b2);
            a1Que.FreeTensor(a1);
            b1Que.FreeTensor(b1);
            a2 = a2Que.DeQue<half>();
            b2 = b2Que.DeQue<half>();
            LocalTensor<float> c = cQue.AllocTensor<float>();
            MmadParams mm;
            mm.m = mm.n = mm.k = 16;
            Mmad(c, a2, b2, mm);
            cQue.EnQue(c);
            a2Que.FreeTensor(a2);
            b2Que.FreeTensor(b2);
            c = cQue.DeQue<float>();
            if (s > 0) {
                CrossCoreWaitFlag(1);
            }
            FixpipeParamsV220 fix;
            fix.nSize = fix.mSize = fix.srcStride = fix.dstStride = 16;
            Fixpipe(wGm, c, fix);
            cQue.FreeTensor(c);
            CrossCoreSetFlag<2, PIPE_FIX>(0);
        }
    }
    if ASCEND_IS_AIV {
        TQue<TPosition::VECIN, 1> in;
        TQue<TPosition::VECOUT, 1> out;
        pipe.InitBuffer(in, 1, 512);
        pipe.InitBuffer(out, 1, 512);
        for (uint32_t s = 0; s < t.steps; ++s) {
            CrossCoreWaitFlag(0);
            LocalTensor<float> c = in.AllocTensor<float>();
            DataCopy(c, wGm[GetSubBlockIdx() * 128], 128);
            in.EnQue(c);
            if (s + 1 < t.steps) {
                CrossCoreSetFlag<2, PIPE_MTE2>(1);
            }
            c = in.DeQue<float>();
            LocalTensor<float> result = out.AllocTensor<float>();
            Muls(result, c, 2.0f, 128);
            out.EnQue(result);
            in.FreeTensor(c);
            result = out.DeQue<float>();
            DataCopy(zGm[s * 256 + GetSubBlockIdx() * 128], result, 128);
            out.FreeTensor(result);
        }
    }
}
