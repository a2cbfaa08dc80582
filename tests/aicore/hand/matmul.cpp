// c[m, n] = a[m, k] * b[k, n], fp16 inputs, fp32 result, any m, n, k. Cube core only, buffers placed by TBuf and every
// order between pipes written as a flag:
//   MTE2 (GM -> L1, two buffers) -> MTE1 (L1 -> L0A/L0B, two buffers) -> M (L0C) -> FIX (L0C -> GM).
#include "kernel_operator.h"

using namespace AscendC;

struct Matmul16Tiling {
    uint32_t m;
    uint32_t n;                 // at most 65535: the row pitch of b
    uint32_t k;                 // at most 65535: the row pitch of a
    uint32_t baseM;             // a tile of c is baseM x baseN, a step of the K loop is baseK; multiples of 16
    uint32_t baseN;
    uint32_t baseK;
    uint32_t tilesPerCore;      // of ceil(m / baseM) * ceil(n / baseN) tiles
    uint32_t coresWithOneMore;
};

constexpr uint32_t SIDE = 16;
constexpr uint32_t FRACTAL = SIDE * SIDE;
constexpr uint32_t STAGES = 2;
constexpr uint32_t SELF_ORDERED_FRACTALS = 10;  // from so many fractals on, two Mmad to one tile need no barrier

__aicore__ inline uint32_t DivideUp(uint32_t value, uint32_t by)
{
    return (value + by - 1) / by;
}

class Matmul16 {
public:
    __aicore__ inline Matmul16() {}

    __aicore__ inline void Init(GM_ADDR a, GM_ADDR b, GM_ADDR c, const Matmul16Tiling &tiling, TPipe *tpipe)
    {
        t = tiling;
        pipe = tpipe;
        aGm.SetGlobalBuffer((__gm__ half *)a, static_cast<uint64_t>(t.m) * t.k);
        bGm.SetGlobalBuffer((__gm__ half *)b, static_cast<uint64_t>(t.k) * t.n);
        cGm.SetGlobalBuffer((__gm__ float *)c, static_cast<uint64_t>(t.m) * t.n);
        aSize = t.baseM * t.baseK;
        bSize = t.baseK * t.baseN;
        pipe->InitBuffer(a1Buffer, STAGES * aSize * sizeof(half));
        pipe->InitBuffer(b1Buffer, STAGES * bSize * sizeof(half));
        pipe->InitBuffer(a2Buffer, STAGES * aSize * sizeof(half));
        pipe->InitBuffer(b2Buffer, STAGES * bSize * sizeof(half));
        pipe->InitBuffer(c1Buffer, t.baseM * t.baseN * sizeof(float));
    }

    __aicore__ inline void Process()
    {
        const uint32_t core = GetBlockIdx();
        const bool oneMore = core < t.coresWithOneMore;
        const uint32_t first = core * t.tilesPerCore + (oneMore ? core : t.coresWithOneMore);
        const uint32_t last = first + t.tilesPerCore + (oneMore ? 1 : 0);
        const uint32_t tilesN = DivideUp(t.n, t.baseN);
        OpenFlags();
        for (uint32_t tile = first; tile < last; ++tile) {
            ComputeTile(tile / tilesN * t.baseM, tile % tilesN * t.baseN);
        }
        CloseFlags();
    }

private:
    __aicore__ inline void OpenFlags()
    {
        for (uint32_t s = 0; s < STAGES; ++s) {
            l1Full[s] = pipe->AllocEventID<HardEvent::MTE2_MTE1>();
            l1Free[s] = pipe->AllocEventID<HardEvent::MTE1_MTE2>();
            l0Full[s] = pipe->AllocEventID<HardEvent::MTE1_M>();
            l0Free[s] = pipe->AllocEventID<HardEvent::M_MTE1>();
            SetFlag<HardEvent::MTE1_MTE2>(l1Free[s]);
            SetFlag<HardEvent::M_MTE1>(l0Free[s]);
        }
        cFull = pipe->AllocEventID<HardEvent::M_FIX>();
        cFree = pipe->AllocEventID<HardEvent::FIX_M>();
        SetFlag<HardEvent::FIX_M>(cFree);
    }

    __aicore__ inline void CloseFlags()
    {
        for (uint32_t s = 0; s < STAGES; ++s) {
            WaitFlag<HardEvent::MTE1_MTE2>(l1Free[s]);
            WaitFlag<HardEvent::M_MTE1>(l0Free[s]);
            pipe->ReleaseEventID<HardEvent::MTE2_MTE1>(l1Full[s]);
            pipe->ReleaseEventID<HardEvent::MTE1_MTE2>(l1Free[s]);
            pipe->ReleaseEventID<HardEvent::MTE1_M>(l0Full[s]);
            pipe->ReleaseEventID<HardEvent::M_MTE1>(l0Free[s]);
        }
        WaitFlag<HardEvent::FIX_M>(cFree);
        pipe->ReleaseEventID<HardEvent::M_FIX>(cFull);
        pipe->ReleaseEventID<HardEvent::FIX_M>(cFree);
    }

    __aicore__ inline void ComputeTile(uint32_t row, uint32_t column)
    {
        const uint32_t m = t.m - row < t.baseM ? t.m - row : t.baseM;
        const uint32_t n = t.n - column < t.baseN ? t.n - column : t.baseN;
        LocalTensor<float> c = c1Buffer.Get<float>();
        WaitFlag<HardEvent::FIX_M>(cFree);
        for (uint32_t depth = 0; depth < t.k; depth += t.baseK) {
            const uint32_t k = t.k - depth < t.baseK ? t.k - depth : t.baseK;
            CopyIn(row, column, depth, m, n, k);
            Load(m, n, k);
            Multiply(c, m, n, k, depth == 0);
            stage = (stage + 1) % STAGES;
        }
        SetFlag<HardEvent::M_FIX>(cFull);
        WaitFlag<HardEvent::M_FIX>(cFull);
        CopyOut(c, row, column, m, n);
        SetFlag<HardEvent::FIX_M>(cFree);
    }

    // GM -> L1, rows to fractals. A single row of a is kept as a row: Mmad reads it so when m is 1.
    __aicore__ inline void CopyIn(uint32_t row, uint32_t column, uint32_t depth, uint32_t m, uint32_t n, uint32_t k)
    {
        LocalTensor<half> a1 = a1Buffer.Get<half>()[stage * aSize];
        LocalTensor<half> b1 = b1Buffer.Get<half>()[stage * bSize];
        WaitFlag<HardEvent::MTE1_MTE2>(l1Free[stage]);
        Nd2NzParams params;
        params.ndNum = 1;
        params.nValue = m;
        params.dValue = k;
        params.srcNdMatrixStride = 0;
        params.srcDValue = t.k;
        params.dstNzC0Stride = m == 1 ? 1 : DivideUp(m, SIDE) * SIDE;
        params.dstNzNStride = 1;
        params.dstNzMatrixStride = 0;
        DataCopy(a1, aGm[static_cast<uint64_t>(row) * t.k + depth], params);
        params.nValue = k;
        params.dValue = n;
        params.srcDValue = t.n;
        params.dstNzC0Stride = DivideUp(k, SIDE) * SIDE;
        DataCopy(b1, bGm[static_cast<uint64_t>(depth) * t.n + column], params);
        SetFlag<HardEvent::MTE2_MTE1>(l1Full[stage]);
    }

    // L1 -> L0: columns of fractals become rows of fractals; those of b are transposed inside as well.
    __aicore__ inline void Load(uint32_t m, uint32_t n, uint32_t k)
    {
        LocalTensor<half> a1 = a1Buffer.Get<half>()[stage * aSize];
        LocalTensor<half> b1 = b1Buffer.Get<half>()[stage * bSize];
        LocalTensor<half> a2 = a2Buffer.Get<half>()[stage * aSize];
        LocalTensor<half> b2 = b2Buffer.Get<half>()[stage * bSize];
        const uint32_t mFractals = DivideUp(m, SIDE);
        const uint32_t nFractals = DivideUp(n, SIDE);
        const uint32_t kFractals = DivideUp(k, SIDE);
        WaitFlag<HardEvent::MTE2_MTE1>(l1Full[stage]);
        WaitFlag<HardEvent::M_MTE1>(l0Free[stage]);
        LoadData2DParams params;
        params.startIndex = 0;
        params.dstGap = 0;
        params.ifTranspose = false;
        if (m == 1) {
            params.repeatTimes = DivideUp(k, FRACTAL);
            params.srcStride = 1;
            LoadData(a2, a1, params);
        } else {
            params.repeatTimes = kFractals;
            params.srcStride = mFractals;
            for (uint32_t i = 0; i < mFractals; ++i) {
                LoadData(a2[i * kFractals * FRACTAL], a1[i * FRACTAL], params);
            }
        }
        params.repeatTimes = nFractals;
        params.srcStride = kFractals;
        params.ifTranspose = true;
        for (uint32_t i = 0; i < kFractals; ++i) {
            LoadData(b2[i * nFractals * FRACTAL], b1[i * FRACTAL], params);
        }
        SetFlag<HardEvent::MTE1_MTE2>(l1Free[stage]);
        SetFlag<HardEvent::MTE1_M>(l0Full[stage]);
    }

    __aicore__ inline void Multiply(const LocalTensor<float> &c, uint32_t m, uint32_t n, uint32_t k, bool first)
    {
        LocalTensor<half> a2 = a2Buffer.Get<half>()[stage * aSize];
        LocalTensor<half> b2 = b2Buffer.Get<half>()[stage * bSize];
        WaitFlag<HardEvent::MTE1_M>(l0Full[stage]);
        MmadParams params;
        params.m = m;
        params.n = n;
        params.k = k;
        params.cmatrixInitVal = first;
        params.cmatrixSource = false;
        params.unitFlag = 0;
        Mmad(c, a2, b2, params);
        if ((m / SIDE) * (n / SIDE) < SELF_ORDERED_FRACTALS) {
            PipeBarrier<PIPE_M>();
        }
        SetFlag<HardEvent::M_MTE1>(l0Free[stage]);
    }

    __aicore__ inline void CopyOut(const LocalTensor<float> &c, uint32_t row, uint32_t column, uint32_t m, uint32_t n)
    {
        FixpipeParamsV220 params;
        params.nSize = n;
        params.mSize = m;
        params.srcStride = DivideUp(m, SIDE) * SIDE;
        params.dstStride = t.n;
        params.quantPre = QuantMode_t::NoQuant;
        params.reluEn = false;
        params.unitFlag = 0;
        params.ndNum = 1;
        params.srcNdStride = 0;
        params.dstNdStride = 0;
        Fixpipe<float, float, CFG_ROW_MAJOR>(cGm[static_cast<uint64_t>(row) * t.n + column], c, params);
    }

    TPipe *pipe;
    TBuf<TPosition::A1> a1Buffer;
    TBuf<TPosition::B1> b1Buffer;
    TBuf<TPosition::A2> a2Buffer;
    TBuf<TPosition::B2> b2Buffer;
    TBuf<TPosition::CO1> c1Buffer;
    GlobalTensor<half> aGm, bGm;
    GlobalTensor<float> cGm;
    Matmul16Tiling t;
    TEventID l1Full[STAGES], l1Free[STAGES], l0Full[STAGES], l0Free[STAGES], cFull, cFree;
    uint32_t aSize, bSize;
    uint32_t stage = 0;
};

extern "C" __global__ __aicore__ void matmul(GM_ADDR a, GM_ADDR b, GM_ADDR c, Matmul16Tiling tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    TPipe pipe;
    Matmul16 op;
    op.Init(a, b, c, tiling, &pipe);
    op.Process();
}
