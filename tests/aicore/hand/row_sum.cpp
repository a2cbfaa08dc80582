// Sums of a few long rows of x[rows, width] in fp32. Every core adds up its share of a row and leaves the partial sum
// in a 32-byte slot of the workspace; after all cores have met, core 0 adds the partial sums.
#include "kernel_operator.h"

using namespace AscendC;

struct RowSumTiling {
    uint32_t rows;
    uint32_t width;
    uint32_t unit;              // elements of a share; a multiple of 8
    uint32_t unitsPerCore;
    uint32_t coresWithOneMore;
    uint32_t tile;              // elements of a buffer; a multiple of 8, at least 8 for every core
    uint32_t cores;             // number of blocks; the workspace is [rows, cores, 8] floats
    uint32_t workLength;        // floats that ReduceSum may need
};

constexpr int32_t BUFFERS = 2;
constexpr uint32_t SLOT = 32 / sizeof(float);

class RowSum {
public:
    __aicore__ inline RowSum() {}

    __aicore__ inline void Init(GM_ADDR x, GM_ADDR sums, GM_ADDR workspace, const RowSumTiling &tiling, TPipe *pipe)
    {
        t = tiling;
        core = GetBlockIdx();
        const bool oneMore = core < t.coresWithOneMore;
        const uint32_t firstUnit = core * t.unitsPerCore + (oneMore ? core : t.coresWithOneMore);
        begin = firstUnit * t.unit;
        const uint32_t end = begin + (t.unitsPerCore + (oneMore ? 1 : 0)) * t.unit;
        count = begin >= t.width ? 0 : (end < t.width ? end : t.width) - begin;
        xGm.SetGlobalBuffer((__gm__ float *)x, static_cast<uint64_t>(t.rows) * t.width);
        sumsGm.SetGlobalBuffer((__gm__ float *)sums, t.rows);
        partialGm.SetGlobalBuffer((__gm__ float *)workspace, static_cast<uint64_t>(t.rows) * t.cores * SLOT);
        pipe->InitBuffer(inQueue, BUFFERS, t.tile * sizeof(float));
        pipe->InitBuffer(sumQueue, BUFFERS, SLOT * sizeof(float));
        pipe->InitBuffer(totalBuffer, t.tile * sizeof(float));
        pipe->InitBuffer(workBuffer, t.workLength * sizeof(float));
    }

    __aicore__ inline void Process()
    {
        for (uint32_t row = 0; row < t.rows; ++row) {
            SumShare(row);
            CopyOutPartial(row);
        }
        SyncAll();
        if (core != 0) {
            return;
        }
        for (uint32_t row = 0; row < t.rows; ++row) {
            CopyInPartials(row);
            SumPartials();
            CopyOutSum(row);
        }
    }

private:
    __aicore__ inline void SumShare(uint32_t row)
    {
        LocalTensor<float> total = totalBuffer.Get<float>();
        LocalTensor<float> work = workBuffer.Get<float>();
        Duplicate(total, 0.0f, static_cast<int32_t>(t.tile));
        for (uint32_t offset = 0; offset < count; offset += t.tile) {
            const uint32_t n = count - offset < t.tile ? count - offset : t.tile;
            CopyIn(static_cast<uint64_t>(row) * t.width + begin + offset, n);
            LocalTensor<float> x = inQueue.DeQue<float>();
            Add(total, total, x, static_cast<int32_t>(n));
            inQueue.FreeTensor(x);
        }
        LocalTensor<float> sum = sumQueue.AllocTensor<float>();
        Duplicate(sum, 0.0f, static_cast<int32_t>(SLOT));  // the whole slot goes to GM and is added later
        ReduceSum(sum, total, work, static_cast<int32_t>(t.tile));
        sumQueue.EnQue(sum);
    }

    __aicore__ inline void CopyIn(uint64_t offset, uint32_t n)
    {
        LocalTensor<float> x = inQueue.AllocTensor<float>();
        DataCopyExtParams params{1, static_cast<uint32_t>(n * sizeof(float)), 0, 0, 0};
        DataCopyPadExtParams<float> noPad{false, 0, 0, 0.0f};
        DataCopyPad(x, xGm[offset], params, noPad);
        inQueue.EnQue(x);
    }

    __aicore__ inline void CopyOutPartial(uint32_t row)
    {
        LocalTensor<float> sum = sumQueue.DeQue<float>();
        DataCopy(partialGm[(static_cast<uint64_t>(row) * t.cores + core) * SLOT], sum, SLOT);
        sumQueue.FreeTensor(sum);
    }

    __aicore__ inline void CopyInPartials(uint32_t row)
    {
        LocalTensor<float> partial = inQueue.AllocTensor<float>();
        DataCopy(partial, partialGm[static_cast<uint64_t>(row) * t.cores * SLOT], t.cores * SLOT);
        inQueue.EnQue(partial);
    }

    __aicore__ inline void SumPartials()
    {
        LocalTensor<float> partial = inQueue.DeQue<float>();
        LocalTensor<float> sum = sumQueue.AllocTensor<float>();
        LocalTensor<float> work = workBuffer.Get<float>();
        ReduceSum(sum, partial, work, static_cast<int32_t>(t.cores * SLOT));
        sumQueue.EnQue(sum);
        inQueue.FreeTensor(partial);
    }

    __aicore__ inline void CopyOutSum(uint32_t row)
    {
        LocalTensor<float> sum = sumQueue.DeQue<float>();
        DataCopyExtParams params{1, static_cast<uint32_t>(sizeof(float)), 0, 0, 0};
        DataCopyPad(sumsGm[row], sum, params);
        sumQueue.FreeTensor(sum);
    }

    TQue<TPosition::VECIN, 1> inQueue;
    TQue<TPosition::VECOUT, 1> sumQueue;
    TBuf<TPosition::VECCALC> totalBuffer, workBuffer;
    GlobalTensor<float> xGm, sumsGm, partialGm;
    RowSumTiling t;
    uint32_t core, begin, count;
};

extern "C" __global__ __aicore__ void row_sum(GM_ADDR x, GM_ADDR sums, GM_ADDR workspace, RowSumTiling tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIV_1_0);  // SyncAll needs the hardware's synchronisation
    TPipe pipe;
    RowSum op;
    op.Init(x, sums, workspace, tiling, &pipe);
    op.Process();
}
