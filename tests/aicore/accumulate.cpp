// C[m, n] = 2 A[m, 16] B[16, n] by two Mmads into one accumulator; m and n are multiples of 16.
#include "kernel_operator.h"
using namespace AscendC;

struct Tiling {
    uint32_t m, n;
};

extern "C" __global__ __aicore__ void accumulate(GM_ADDR a, GM_ADDR b, GM_ADDR c, Tiling t) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    TPipe pipe;
    TBuf<TPosition::A1> a1Buf, b1Buf;
    TBuf<TPosition::A2> a2Buf;
    TBuf<TPosition::B2> b2Buf;
    TBuf<TPosition::CO1> cBuf;
    pipe.InitBuffer(a1Buf, t.m * 32);
    pipe.InitBuffer(b1Buf, t.n * 32);
    pipe.InitBuffer(a2Buf, t.m * 32);
    pipe.InitBuffer(b2Buf, t.n * 32);
    pipe.InitBuffer(cBuf, t.m * t.n * 4);
    LocalTensor<half> a1 = a1Buf.Get<half>(), b1 = b1Buf.Get<half>(), a2 = a2Buf.Get<half>(), b2 = b2Buf.Get<half>();
    LocalTensor<float> c0 = cBuf.Get<float>();
    GlobalTensor<half> aGm, bGm;
    GlobalTensor<float> cGm;
    aGm.SetGlobalBuffer((__gm__ half*)a, t.m * 16);
    bGm.SetGlobalBuffer((__gm__ half*)b, t.n * 16);
    cGm.SetGlobalBuffer((__gm__ float*)c, t.m * t.n);
    DataCopy(a1, aGm, Nd2NzParams(1, t.m, 16, 0, 16, t.m, 1, 0));
    DataCopy(b1, bGm, Nd2NzParams(1, 16, t.n, 0, t.n, 16, 1, 0));
    SetFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
    LoadData2DParams load;
    load.srcStride = 1;
    load.repeatTimes = t.m / 16;
    LoadData(a2, a1, load);
    load.repeatTimes = t.n / 16;
    load.ifTranspose = true;
    LoadData(b2, b1, load);
    SetFlag<HardEvent::MTE1_M>(EVENT_ID0);
    WaitFlag<HardEvent::MTE1_M>(EVENT_ID0);
    MmadParams mm;
    mm.m = t.m;
    mm.n = t.n;
    mm.k = 16;
    Mmad(c0, a2, b2, mm);
    PipeBarrier<PIPE_M>();
    mm.cmatrixInitVal = false;
    Mmad(c0, a2, b2, mm);
    SetFlag<HardEvent::M_FIX>(EVENT_ID0);
    WaitFlag<HardEvent::M_FIX>(EVENT_ID0);
    FixpipeParamsV220 fix;
    fix.nSize = t.n;
    fix.mSize = t.m;
    fix.srcStride = t.m;
    fix.dstStride = t.n;
    Fixpipe(cGm, c0, fix);
}
