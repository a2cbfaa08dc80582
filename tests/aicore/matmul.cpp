// C[m, n] = relu(A[m, k] B[k, n] + bias[n]) on one Cube: half in, TOut out, k in steps of 64, any m > 1, n, k.
#include "kernel_operator.h"
using namespace AscendC;

#ifndef TOUT
#define TOUT float
#define QUANT NoQuant
#endif

struct Tiling {
    uint32_t m, n, k;
};

__aicore__ inline uint32_t Up(uint32_t a, uint32_t b) { return (a + b - 1) / b * b; }

extern "C" __global__ __aicore__ void matmul(GM_ADDR a, GM_ADDR b, GM_ADDR bias, GM_ADDR c, Tiling t) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    const uint32_t step = 64, mUp = Up(t.m, 16), nUp = Up(t.n, 16);
    TPipe pipe;
    TBuf<TPosition::A1> a1Buf, b1Buf;
    TBuf<TPosition::C1> bias1Buf;
    TBuf<TPosition::A2> a2Buf;
    TBuf<TPosition::B2> b2Buf;
    TBuf<TPosition::C2> biasBuf;
    TBuf<TPosition::CO1> cBuf;
    pipe.InitBuffer(a1Buf, mUp * step * 2);
    pipe.InitBuffer(b1Buf, nUp * step * 2);
    pipe.InitBuffer(bias1Buf, nUp * 4);
    pipe.InitBuffer(a2Buf, mUp * step * 2);
    pipe.InitBuffer(b2Buf, nUp * step * 2);
    pipe.InitBuffer(biasBuf, nUp * 4);
    pipe.InitBuffer(cBuf, mUp * nUp * 4);
    LocalTensor<half> a1 = a1Buf.Get<half>(), b1 = b1Buf.Get<half>(), a2 = a2Buf.Get<half>(), b2 = b2Buf.Get<half>();
    LocalTensor<float> bias1 = bias1Buf.Get<float>(), biasTable = biasBuf.Get<float>(), c0 = cBuf.Get<float>();
    GlobalTensor<half> aGm, bGm;
    GlobalTensor<float> biasGm;
    GlobalTensor<TOUT> cGm;
    aGm.SetGlobalBuffer((__gm__ half*)a, t.m * t.k);
    bGm.SetGlobalBuffer((__gm__ half*)b, t.k * t.n);
    biasGm.SetGlobalBuffer((__gm__ float*)bias, nUp);
    cGm.SetGlobalBuffer((__gm__ TOUT*)c, t.m * t.n);

    DataCopy(bias1, biasGm, nUp);
    SetFlag<HardEvent::MTE2_MTE1>(EVENT_ID1);
    WaitFlag<HardEvent::MTE2_MTE1>(EVENT_ID1);
    DataCopy(biasTable, bias1, nUp);
    for (uint32_t at = 0; at < t.k; at += step) {
        uint32_t k = t.k - at < step ? t.k - at : step, kUp = Up(k, 16);
        Nd2NzParams nz;
        nz.ndNum = 1;
        nz.nValue = t.m;
        nz.dValue = k;
        nz.srcDValue = t.k;
        nz.dstNzC0Stride = mUp;
        nz.dstNzNStride = 1;
        DataCopy(a1, aGm[at], nz);
        nz.nValue = k;
        nz.dValue = t.n;
        nz.srcDValue = t.n;
        nz.dstNzC0Stride = kUp;
        DataCopy(b1, bGm[at * t.n], nz);
        SetFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
        WaitFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
        LoadData2DParams load;
        load.repeatTimes = kUp / 16;
        load.srcStride = mUp / 16;
        for (uint32_t row = 0; row < mUp / 16; ++row) LoadData(a2[row * kUp * 16], a1[row * 256], load);
        load.repeatTimes = nUp / 16;
        load.srcStride = kUp / 16;
        load.ifTranspose = true;
        for (uint32_t row = 0; row < kUp / 16; ++row) LoadData(b2[row * nUp * 16], b1[row * 256], load);
        SetFlag<HardEvent::MTE1_M>(EVENT_ID0);
        WaitFlag<HardEvent::MTE1_M>(EVENT_ID0);
        MmadParams mm;
        mm.m = t.m;
        mm.n = t.n;
        mm.k = k;
        mm.cmatrixInitVal = false;
        if (at == 0) {
            Mmad(c0, a2, b2, biasTable, mm);
        } else {
            Mmad(c0, a2, b2, mm);
        }
        SetFlag<HardEvent::M_MTE1>(EVENT_ID0);
        WaitFlag<HardEvent::M_MTE1>(EVENT_ID0);
        SetFlag<HardEvent::MTE1_MTE2>(EVENT_ID0);
        WaitFlag<HardEvent::MTE1_MTE2>(EVENT_ID0);
    }
    SetFlag<HardEvent::M_FIX>(EVENT_ID0);
    WaitFlag<HardEvent::M_FIX>(EVENT_ID0);
    FixpipeParamsV220 fix;
    fix.nSize = t.n;
    fix.mSize = t.m;
    fix.srcStride = mUp;
    fix.dstStride = t.n;
    fix.quantPre = QUANT;
    fix.reluEn = true;
    Fixpipe(cGm, c0, fix);
}
