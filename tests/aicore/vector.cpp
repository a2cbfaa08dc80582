// Further ways of the vector core: VECIN bound to VECOUT, TPipe::Reset, event ids beside queues, scalar GM reads, a
// round trip through GM.
#include "kernel_operator.h"
using namespace AscendC;

extern "C" __global__ __aicore__ void vector(GM_ADDR x, GM_ADDR z, GM_ADDR index) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    GlobalTensor<float> xGm, zGm;
    GlobalTensor<int32_t> iGm;
    xGm.SetGlobalBuffer((__gm__ float*)x, 256);
    zGm.SetGlobalBuffer((__gm__ float*)z, 256);
    iGm.SetGlobalBuffer((__gm__ int32_t*)index, 8);

    TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> through;
    pipe.InitBuffer(through, 2, 512);
    for (int part = 0; part < 2; ++part) {
        LocalTensor<float> t = through.AllocTensor<float>();
        DataCopy(t, xGm[part * 128], 128);
        through.EnQue(t);
        t = through.DeQue<float>();
        DataCopy(zGm[part * 128], t, 128);
        through.FreeTensor(t);
    }
    PipeBarrier<PIPE_ALL>();
    pipe.Reset();

    // z[0:64] = z[index : index + 64] + 1, in place in GM
    TQue<TPosition::VECIN, 1> in;
    TBuf<TPosition::VECCALC> calc;
    pipe.InitBuffer(in, 1, 256);
    pipe.InitBuffer(calc, 256);
    int32_t at = iGm.GetValue(0);
    LocalTensor<float> t = in.AllocTensor<float>();
    DataCopy(t, zGm[at], 64);
    in.EnQue(t);
    t = in.DeQue<float>();
    LocalTensor<float> r = calc.Get<float>();
    Adds(r, t, 1.0f, 64);
    in.FreeTensor(t);
    event_t ready = static_cast<event_t>(pipe.AllocEventID<HardEvent::V_MTE3>());
    SetFlag<HardEvent::V_MTE3>(ready);
    WaitFlag<HardEvent::V_MTE3>(ready);
    pipe.ReleaseEventID<HardEvent::V_MTE3>(ready);
    event_t read = static_cast<event_t>(pipe.FetchEventID(HardEvent::MTE2_MTE3));
    SetFlag<HardEvent::MTE2_MTE3>(read);
    WaitFlag<HardEvent::MTE2_MTE3>(read);
    DataCopy(zGm, r, 64);
}
