// Further ways of the Cube, on squares: float and int8 operands, LoadDataWithTranspose, NZ out, into L1 and back to L0A,
// several ND matrices at once.
#include "kernel_operator.h"
using namespace AscendC;

struct Buffers {
    TBuf<TPosition::A1> a1, b1, mid;
    TBuf<TPosition::A2> a2;
    TBuf<TPosition::B2> b2;
    TBuf<TPosition::CO1> c;
    __aicore__ inline void Init(TPipe& pipe) {
        pipe.InitBuffer(a1, 4096);
        pipe.InitBuffer(b1, 4096);
        pipe.InitBuffer(mid, 4096);
        pipe.InitBuffer(a2, 4096);
        pipe.InitBuffer(b2, 4096);
        pipe.InitBuffer(c, 4096);
    }
};

template <HardEvent event> __aicore__ inline void Sync() {
    SetFlag<event>(EVENT_ID0);
    WaitFlag<event>(EVENT_ID0);
}

// C = A B for 16 x K times K x 16, both K-contiguous fractals of one row; B transposed on the way in. K = 16 or 32.
template <typename T, typename C, int K> __aicore__ inline void Square(GM_ADDR a, GM_ADDR b, GM_ADDR c) {
    TPipe pipe;
    Buffers buf;
    buf.Init(pipe);
    GlobalTensor<T> aGm, bGm;
    GlobalTensor<C> cGm;
    aGm.SetGlobalBuffer((__gm__ T*)a, 16 * K);
    bGm.SetGlobalBuffer((__gm__ T*)b, K * (sizeof(T) == 1 ? 32 : 16));
    cGm.SetGlobalBuffer((__gm__ C*)c, 256);
    LocalTensor<T> a1 = buf.a1.Get<T>(), b1 = buf.b1.Get<T>(), a2 = buf.a2.Get<T>(), b2 = buf.b2.Get<T>();
    LocalTensor<C> c0 = buf.c.Get<C>();
    constexpr int width = 32 / sizeof(T), n = sizeof(T) == 1 ? 32 : 16;
    DataCopy(a1, aGm, Nd2NzParams{1, 16, K, 0, K, 16, 1, 0});
    DataCopy(b1, bGm, Nd2NzParams{1, K, n, 0, n, K, 1, 0});
    Sync<HardEvent::MTE2_MTE1>();
    LoadData2DParams load;
    load.repeatTimes = K / width;
    load.srcStride = 1;
    LoadData(a2, a1, load);
    LoadData2dTransposeParams turn;
    turn.repeatTimes = 1;
    turn.srcStride = 1;
    LoadDataWithTranspose(b2, b1, turn);
    Sync<HardEvent::MTE1_M>();
    MmadParams mm;
    mm.m = 16;
    mm.n = n;
    mm.k = K;
    Mmad(c0, a2, b2, mm);
    Sync<HardEvent::M_FIX>();
    FixpipeParamsV220 fix;
    fix.nSize = fix.mSize = fix.srcStride = fix.dstStride = 16;
    Fixpipe(cGm, c0, fix);
}

extern "C" __global__ __aicore__ void in_float(GM_ADDR a, GM_ADDR b, GM_ADDR c) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    Square<float, float, 16>(a, b, c);
}

extern "C" __global__ __aicore__ void in_int8(GM_ADDR a, GM_ADDR b, GM_ADDR c) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    Square<int8_t, int32_t, 32>(a, b, c);
}

// D = half(relu(A B)) B: the first product goes through L1. Out in NZ, which for 16 columns is row by row.
extern "C" __global__ __aicore__ void chain(GM_ADDR a, GM_ADDR b, GM_ADDR d) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    TPipe pipe;
    Buffers buf;
    buf.Init(pipe);
    GlobalTensor<half> aGm, bGm;
    GlobalTensor<float> dGm;
    aGm.SetGlobalBuffer((__gm__ half*)a, 256);
    bGm.SetGlobalBuffer((__gm__ half*)b, 256);
    dGm.SetGlobalBuffer((__gm__ float*)d, 256);
    LocalTensor<half> a1 = buf.a1.Get<half>(), b1 = buf.b1.Get<half>(), mid = buf.mid.Get<half>();
    LocalTensor<half> a2 = buf.a2.Get<half>(), b2 = buf.b2.Get<half>();
    LocalTensor<float> c = buf.c.Get<float>();
    DataCopy(a1, aGm, Nd2NzParams(1, 16, 16, 0, 16, 16, 1, 0));
    DataCopy(b1, bGm, Nd2NzParams(1, 16, 16, 0, 16, 16, 1, 0));
    Sync<HardEvent::MTE2_MTE1>();
    LoadData2DParams load;
    load.repeatTimes = 1;
    LoadData(a2, a1, load);
    load.ifTranspose = true;
    LoadData(b2, b1, load);
    load.ifTranspose = false;
    Sync<HardEvent::MTE1_M>();
    MmadParams mm;
    mm.m = mm.n = mm.k = 16;
    Mmad(c, a2, b2, mm);
    Sync<HardEvent::M_FIX>();
    FixpipeParamsV220 fix;
    fix.nSize = fix.mSize = fix.srcStride = 16;
    fix.dstStride = 16;
    fix.quantPre = F322F16;
    fix.reluEn = true;
    Fixpipe(mid, c, fix);
    Sync<HardEvent::FIX_MTE1>();
    Sync<HardEvent::M_MTE1>();
    LoadData(a2, mid, load);
    Sync<HardEvent::MTE1_M>();
    Sync<HardEvent::FIX_M>();
    Mmad(c, a2, b2, mm);
    Sync<HardEvent::M_FIX>();
    fix.quantPre = NoQuant;
    fix.reluEn = false;
    fix.dstStride = 32;
    Fixpipe<float, float, CFG_NZ>(dGm, c, fix);
}
