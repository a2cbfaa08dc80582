// Two phases over all vector cores: each writes 64 of 2x into the workspace, then each adds up the others'.
// z[core] (a block of 8 floats) = sum over cores of 2x[core][0:8]; total += all of x, atomically.
#include "kernel_operator.h"
using namespace AscendC;

extern "C" __global__ __aicore__ void phases(GM_ADDR x, GM_ADDR workspace, GM_ADDR z, GM_ADDR total) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIV_1_0);
    TPipe pipe;
    TBuf<TPosition::VECIN> buffer;
    pipe.InitBuffer(buffer, 1024);
    LocalTensor<float> mine = buffer.Get<float>(64), sum = buffer.GetWithOffset<float>(64, 256);
    GlobalTensor<float> xGm, wGm, zGm, tGm;
    int64_t core = GetBlockIdx();
    xGm.SetGlobalBuffer((__gm__ float*)x);
    wGm.SetGlobalBuffer((__gm__ float*)workspace);
    zGm.SetGlobalBuffer((__gm__ float*)z);
    tGm.SetGlobalBuffer((__gm__ float*)total);

    DataCopy(mine, xGm[core * 64], 64);
    SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
    Adds(sum, mine, 0.0f, 64);
    Muls(mine, mine, 2.0f, 64);
    SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
    DataCopy(wGm[core * 64], mine, 64);
    SetAtomicAdd<float>();
    DataCopy(tGm, sum, 64);
    SetAtomicNone();
    SyncAll();
    Duplicate(sum, 0.0f, 64);
    for (int64_t other = 0; other < GetBlockNum(); ++other) {
        SetFlag<HardEvent::V_MTE2>(EVENT_ID1);
        WaitFlag<HardEvent::V_MTE2>(EVENT_ID1);
        DataCopy(mine, wGm[other * 64], 64);
        SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
        WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
        Add(sum, sum, mine, 64);
    }
    SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
    DataCopy(zGm[core * 8], sum, 8);
}
