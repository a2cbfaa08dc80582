// out[m, n] = a[m, k] * b[k, n] + residual[m, n]: fp16 inputs, fp32 residual and result, one AIC with two AIVs. The AIC
// leaves its tiles in a ring of GM slots of its own; each AIV adds the residual to one half of the rows of a tile.
#include "kernel_operator.h"

using namespace AscendC;

struct MatmulResidualTiling {
    uint32_t m;
    uint32_t n;                 // at most 65535: the row pitch of b
    uint32_t k;                 // at most 65535: the row pitch of a
    uint32_t baseM;             // a tile of c is baseM x baseN, a step of the K loop is baseK; multiples of 16
    uint32_t baseN;
    uint32_t baseK;
    uint32_t tilesPerCore;      // of ceil(m / baseM) * ceil(n / baseN) tiles
    uint32_t coresWithOneMore;
    uint32_t slots;             // of the ring of one AI core, 1 to 15: the ring is [cores, slots, baseM, baseN] floats
    uint32_t rowsPerStep;       // rows of a tile in UB at a time, at most 4095
};

constexpr int32_t BUFFERS = 2;
constexpr uint32_t SIDE = 16;
constexpr uint32_t FRACTAL = SIDE * SIDE;
constexpr uint32_t STAGES = 2;
constexpr uint32_t SELF_ORDERED_FRACTALS = 10;  // from so many fractals on, two Mmad to one tile need no barrier
constexpr uint32_t FLOATS_PER_BLOCK = 32 / sizeof(float);
constexpr uint16_t TILE_READY = 0;              // AIC -> both AIVs
constexpr uint16_t SLOT_FREE = 1;               // both AIVs -> AIC

__aicore__ inline uint32_t DivideUp(uint32_t value, uint32_t by)
{
    return (value + by - 1) / by;
}

__aicore__ inline uint32_t Smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

// The tiles of one AI core, the same for its AIC and its AIVs.
struct Share {
    uint32_t first;
    uint32_t last;

    __aicore__ inline Share(const MatmulResidualTiling &t, uint32_t core)
    {
        first = core * t.tilesPerCore + Smaller(core, t.coresWithOneMore);
        last = first + t.tilesPerCore + (core < t.coresWithOneMore ? 1 : 0);
    }
};

class CubePart {
public:
    __aicore__ inline CubePart() {}

    __aicore__ inline void Init(GM_ADDR a, GM_ADDR b, GM_ADDR ring, const MatmulResidualTiling &tiling, TPipe *tpipe)
    {
        t = tiling;
        pipe = tpipe;
        const uint64_t slotSize = static_cast<uint64_t>(t.baseM) * t.baseN;
        aGm.SetGlobalBuffer((__gm__ half *)a, static_cast<uint64_t>(t.m) * t.k);
        bGm.SetGlobalBuffer((__gm__ half *)b, static_cast<uint64_t>(t.k) * t.n);
        ringGm.SetGlobalBuffer((__gm__ float *)ring + GetBlockIdx() * t.slots * slotSize, t.slots * slotSize);
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
        const Share share(t, GetBlockIdx());
        const uint32_t tilesN = DivideUp(t.n, t.baseN);
        OpenFlags();
        for (uint32_t tile = share.first; tile < share.last; ++tile) {
            const uint32_t turn = tile - share.first;
            ComputeTile(tile / tilesN * t.baseM, tile % tilesN * t.baseN, turn);
            CrossCoreSetFlag<2, PIPE_FIX>(TILE_READY);
        }
        CloseFlags();
        // The AIVs free every slot; no count may be left for the next kernel.
        for (uint32_t i = 0; i < Smaller(share.last - share.first, t.slots); ++i) {
            CrossCoreWaitFlag(SLOT_FREE);
        }
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

    __aicore__ inline void ComputeTile(uint32_t row, uint32_t column, uint32_t turn)
    {
        const uint32_t m = Smaller(t.m - row, t.baseM);
        const uint32_t n = Smaller(t.n - column, t.baseN);
        LocalTensor<float> c = c1Buffer.Get<float>();
        WaitFlag<HardEvent::FIX_M>(cFree);
        for (uint32_t depth = 0; depth < t.k; depth += t.baseK) {
            const uint32_t k = Smaller(t.k - depth, t.baseK);
            CopyIn(row, column, depth, m, n, k);
            Load(m, n, k);
            Multiply(c, m, n, k, depth == 0);
            stage = (stage + 1) % STAGES;
        }
        SetFlag<HardEvent::M_FIX>(cFull);
        WaitFlag<HardEvent::M_FIX>(cFull);
        if (turn >= t.slots) {
            CrossCoreWaitFlag(SLOT_FREE);  // both AIVs have read the tile that the slot held
        }
        CopyOut(c, turn % t.slots, m, n);
        SetFlag<HardEvent::FIX_M>(cFree);
    }

    // GM -> L1, rows to fractals. A single row of a is kept as a row: Mmad reads it so when m is 1.
    __aicore__ inline void CopyIn(uint32_t row, uint32_t column, uint32_t depth, uint32_t m, uint32_t n, uint32_t k)
    {
        LocalTensor<half> a1 = a1Buffer.Get<half>()[stage * aSize];
        LocalTensor<half> b1 = b1Buffer.Get<half>()[stage * bSize];
        WaitFlag<HardEvent::MTE1_MTE2>(l1Free[stage]);
        const uint32_t aPitch = m == 1 ? 1 : DivideUp(m, SIDE) * SIDE;
        const uint32_t bPitch = DivideUp(k, SIDE) * SIDE;
        Nd2NzParams aParams{1, static_cast<uint16_t>(m), static_cast<uint16_t>(k), 0, static_cast<uint16_t>(t.k),
                            static_cast<uint16_t>(aPitch), 1, 0};
        Nd2NzParams bParams{1, static_cast<uint16_t>(k), static_cast<uint16_t>(n), 0, static_cast<uint16_t>(t.n),
                            static_cast<uint16_t>(bPitch), 1, 0};
        DataCopy(a1, aGm[static_cast<uint64_t>(row) * t.k + depth], aParams);
        DataCopy(b1, bGm[static_cast<uint64_t>(depth) * t.n + column], bParams);
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
        Mmad(c, a2, b2, params);
        if ((m / SIDE) * (n / SIDE) < SELF_ORDERED_FRACTALS) {
            PipeBarrier<PIPE_M>();
        }
        SetFlag<HardEvent::M_MTE1>(l0Free[stage]);
    }

    __aicore__ inline void CopyOut(const LocalTensor<float> &c, uint32_t slot, uint32_t m, uint32_t n)
    {
        FixpipeParamsV220 params;
        params.nSize = n;
        params.mSize = m;
        params.srcStride = DivideUp(m, SIDE) * SIDE;
        params.dstStride = t.baseN;
        params.ndNum = 1;
        params.srcNdStride = 0;
        params.dstNdStride = 0;
        Fixpipe(ringGm[static_cast<uint64_t>(slot) * t.baseM * t.baseN], c, params);
    }

    TPipe *pipe;
    TBuf<TPosition::A1> a1Buffer;
    TBuf<TPosition::B1> b1Buffer;
    TBuf<TPosition::A2> a2Buffer;
    TBuf<TPosition::B2> b2Buffer;
    TBuf<TPosition::CO1> c1Buffer;
    GlobalTensor<half> aGm, bGm;
    GlobalTensor<float> ringGm;
    MatmulResidualTiling t;
    TEventID l1Full[STAGES], l1Free[STAGES], l0Full[STAGES], l0Free[STAGES], cFull, cFree;
    uint32_t aSize, bSize;
    uint32_t stage = 0;
};

class VectorPart {
public:
    __aicore__ inline VectorPart() {}

    __aicore__ inline void Init(GM_ADDR residual, GM_ADDR out, GM_ADDR ring, const MatmulResidualTiling &tiling,
                                TPipe *pipe)
    {
        t = tiling;
        core = GetBlockIdx() / GetTaskRatio();
        const uint64_t size = static_cast<uint64_t>(t.m) * t.n;
        const uint64_t slotSize = static_cast<uint64_t>(t.baseM) * t.baseN;
        residualGm.SetGlobalBuffer((__gm__ float *)residual, size);
        outGm.SetGlobalBuffer((__gm__ float *)out, size);
        ringGm.SetGlobalBuffer((__gm__ float *)ring + core * t.slots * slotSize, t.slots * slotSize);
        pipe->InitBuffer(productQueue, BUFFERS, t.rowsPerStep * t.baseN * sizeof(float));
        pipe->InitBuffer(residualQueue, BUFFERS, t.rowsPerStep * t.baseN * sizeof(float));
        pipe->InitBuffer(outQueue, BUFFERS, t.rowsPerStep * t.baseN * sizeof(float));
    }

    __aicore__ inline void Process()
    {
        const Share share(t, core);
        const uint32_t tilesN = DivideUp(t.n, t.baseN);
        for (uint32_t tile = share.first; tile < share.last; ++tile) {
            const uint32_t row = tile / tilesN * t.baseM;
            const uint32_t column = tile % tilesN * t.baseN;
            const uint32_t m = Smaller(t.m - row, t.baseM);
            const uint32_t n = Smaller(t.n - column, t.baseN);
            const uint32_t middle = DivideUp(m, 2);
            const uint32_t begin = GetSubBlockIdx() == 0 ? 0 : middle;
            const uint32_t end = GetSubBlockIdx() == 0 ? middle : m;
            CrossCoreWaitFlag(TILE_READY);
            for (uint32_t r = begin; r < end; r += t.rowsPerStep) {
                const uint32_t rows = Smaller(end - r, t.rowsPerStep);
                CopyIn((tile - share.first) % t.slots, r, row + r, column, rows, n);
                Compute(rows, n);
                CopyOut(row + r, column, rows, n);
            }
            CrossCoreSetFlag<2, PIPE_MTE2>(SLOT_FREE);  // also for an empty half: the AIC waits for both
        }
    }

private:
    __aicore__ inline void CopyIn(uint32_t slot, uint32_t slotRow, uint32_t row, uint32_t column, uint32_t rows,
                                  uint32_t n)
    {
        LocalTensor<float> product = productQueue.AllocTensor<float>();
        LocalTensor<float> residual = residualQueue.AllocTensor<float>();
        const uint32_t behind = (FLOATS_PER_BLOCK - n % FLOATS_PER_BLOCK) % FLOATS_PER_BLOCK;
        DataCopyPadExtParams<float> zeros{true, 0, static_cast<uint8_t>(behind), 0.0f};
        DataCopyExtParams params{static_cast<uint16_t>(rows), static_cast<uint32_t>(n * sizeof(float)),
                                 static_cast<uint32_t>((t.baseN - n) * sizeof(float)), 0, 0};
        DataCopyPad(product, ringGm[(static_cast<uint64_t>(slot) * t.baseM + slotRow) * t.baseN], params, zeros);
        params.srcStride = (t.n - n) * sizeof(float);
        DataCopyPad(residual, residualGm[static_cast<uint64_t>(row) * t.n + column], params, zeros);
        productQueue.EnQue(product);
        residualQueue.EnQue(residual);
    }

    __aicore__ inline void Compute(uint32_t rows, uint32_t n)
    {
        LocalTensor<float> product = productQueue.DeQue<float>();
        LocalTensor<float> residual = residualQueue.DeQue<float>();
        LocalTensor<float> out = outQueue.AllocTensor<float>();
        const uint32_t pitch = DivideUp(n, FLOATS_PER_BLOCK) * FLOATS_PER_BLOCK;
        Add(out, product, residual, static_cast<int32_t>(rows * pitch));
        outQueue.EnQue(out);
        productQueue.FreeTensor(product);
        residualQueue.FreeTensor(residual);
    }

    __aicore__ inline void CopyOut(uint32_t row, uint32_t column, uint32_t rows, uint32_t n)
    {
        LocalTensor<float> out = outQueue.DeQue<float>();
        DataCopyExtParams params{static_cast<uint16_t>(rows), static_cast<uint32_t>(n * sizeof(float)), 0,
                                 static_cast<uint32_t>((t.n - n) * sizeof(float)), 0};
        DataCopyPad(outGm[static_cast<uint64_t>(row) * t.n + column], out, params);
        outQueue.FreeTensor(out);
    }

    TQue<TPosition::VECIN, 1> productQueue, residualQueue;
    TQue<TPosition::VECOUT, 1> outQueue;
    GlobalTensor<float> residualGm, outGm, ringGm;
    MatmulResidualTiling t;
    uint32_t core;
};

extern "C" __global__ __aicore__ void matmul_residual(GM_ADDR a, GM_ADDR b, GM_ADDR residual, GM_ADDR out,
                                                      GM_ADDR ring, MatmulResidualTiling tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    TPipe pipe;
    if ASCEND_IS_AIC {
        CubePart op;
        op.Init(a, b, ring, tiling, &pipe);
        op.Process();
    }
    if ASCEND_IS_AIV {
        VectorPart op;
        op.Init(residual, out, ring, tiling, &pipe);
        op.Process();
    }
}
