// 3510: C = A B (16x16 halves) on the Cube, straight into the vector core's UB; z = 2 C.
#include "kernel_operator.h"
using namespace AscendC;

constexpr FixpipeConfig TO_UB = {CO2Layout::ROW_MAJOR, true};

extern "C" __global__ __aicore__ void ub3510(GM_ADDR a, GM_ADDR b, GM_ADDR z) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_1);
    TPipe pipe;
    TBuf<TPosition::VECIN> ubBuf;
    pipe.InitBuffer(ubBuf, 1024);
    LocalTensor<float> ub = ubBuf.Get<float>();
    if ASCEND_IS_AIC {
        GlobalTensor<half> aGm, bGm;
        aGm.SetGlobalBuffer((__gm__ half*)a, 256);
        bGm.SetGlobalBuffer((__gm__ half*)b, 256);
        TBuf<TPosition::A1> a1Buf, b1Buf;
        TBuf<TPosition::A2> a2Buf;
        TBuf<TPosition::B2> b2Buf;
        TBuf<TPosition::CO1> cBuf;
        pipe.InitBuffer(a1Buf, 512);
        pipe.InitBuffer(b1Buf, 512);
        pipe.InitBuffer(a2Buf, 512);
        pipe.InitBuffer(b2Buf, 512);
        pipe.InitBuffer(cBuf, 1024);
        LocalTensor<half> a1 = a1Buf.Get<half>(), b1 = b1Buf.Get<half>(), a2 = a2Buf.Get<half>(), b2 = b2Buf.Get<half>();
        LocalTensor<float> c = cBuf.Get<float>();
        Nd2NzParams nz{1, 16, 16, 0, 16, 16, 1, 0};
        DataCopy(a1, aGm, nz);
        DataCopy(b1, bGm, nz);
        SetFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
        WaitFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
        LoadData2DParams load;
        load.repeatTimes = 1;
        LoadData(a2, a1, load);
        load.ifTranspose = true;
        LoadData(b2, b1, load);
        SetFlag<HardEvent::MTE1_M>(EVENT_ID0);
        WaitFlag<HardEvent::MTE1_M>(EVENT_ID0);
        MmadParams mm;
        mm.m = mm.n = mm.k = 16;
        Mmad(c, a2, b2, mm);
        SetFlag<HardEvent::M_FIX>(EVENT_ID0);
        WaitFlag<HardEvent::M_FIX>(EVENT_ID0);
        FixpipeParamsArch3510<CO2Layout::ROW_MAJOR> fix;
        fix.nSize = fix.mSize = fix.srcStride = fix.dstStride = 16;
        Fixpipe<float, float, TO_UB>(ub, c, fix);
        CrossCoreSetFlag<2, PIPE_FIX>(0);
    }
    if ASCEND_IS_AIV {
        GlobalTensor<float> zGm;
        zGm.SetGlobalBuffer((__gm__ float*)z, 256);
        CrossCoreWaitFlag(0);
        Muls(ub, ub, 2.0f, 256);
        SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
        WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
        DataCopy(zGm, ub, 256);
    }
}
