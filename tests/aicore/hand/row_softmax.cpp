// Softmax of every row of x[rows, width] in fp32; a row fits into UB. The maximum and the sum of a row stay in UB:
// Brcb spreads them over one 32-byte block, which the Sub and the Div read with stride 0.
#include "kernel_operator.h"

using namespace AscendC;

struct RowSoftmaxTiling {
    uint32_t rows;
    uint32_t width;
    uint32_t pitch;             // floats of a row in UB: width rounded up to 8
    uint32_t rowsPerTile;       // at most 4095
    uint32_t rowsPerCore;
    uint32_t coresWithOneMore;
    uint32_t workLength;        // floats that ReduceMax needs: two for every 64, rounded up to 8
    uint32_t buffers;           // of a queue: 2, or 1 where a row takes more than a quarter of UB
};

constexpr uint32_t LANES = 256 / sizeof(float);
constexpr uint32_t MAX_REPEATS = 255;
constexpr uint32_t FLOATS_PER_BLOCK = 32 / sizeof(float);

class RowSoftmax {
public:
    __aicore__ inline RowSoftmax() {}

    __aicore__ inline void Init(GM_ADDR x, GM_ADDR y, const RowSoftmaxTiling &tiling, TPipe *pipe)
    {
        t = tiling;
        const uint32_t core = GetBlockIdx();
        const bool oneMore = core < t.coresWithOneMore;
        const uint64_t first = core * t.rowsPerCore + (oneMore ? core : t.coresWithOneMore);
        rows = t.rowsPerCore + (oneMore ? 1 : 0);
        xGm.SetGlobalBuffer((__gm__ float *)x + first * t.width, static_cast<uint64_t>(rows) * t.width);
        yGm.SetGlobalBuffer((__gm__ float *)y + first * t.width, static_cast<uint64_t>(rows) * t.width);
        pipe->InitBuffer(inQueue, t.buffers, t.rowsPerTile * t.pitch * sizeof(float));
        pipe->InitBuffer(outQueue, t.buffers, t.rowsPerTile * t.pitch * sizeof(float));
        pipe->InitBuffer(workBuffer, t.workLength * sizeof(float));
        pipe->InitBuffer(valueBuffer, FLOATS_PER_BLOCK * sizeof(float));
        pipe->InitBuffer(spreadBuffer, 8 * FLOATS_PER_BLOCK * sizeof(float));
    }

    __aicore__ inline void Process()
    {
        for (uint32_t row = 0; row < rows; row += t.rowsPerTile) {
            const uint32_t n = rows - row < t.rowsPerTile ? rows - row : t.rowsPerTile;
            CopyIn(row, n);
            Compute(n);
            CopyOut(row, n);
        }
    }

private:
    __aicore__ inline void CopyIn(uint32_t row, uint32_t n)
    {
        LocalTensor<float> x = inQueue.AllocTensor<float>();
        DataCopyExtParams params{static_cast<uint16_t>(n), static_cast<uint32_t>(t.width * sizeof(float)), 0, 0, 0};
        DataCopyPadExtParams<float> noPad{false, 0, 0, 0.0f};
        DataCopyPad(x, xGm[static_cast<uint64_t>(row) * t.width], params, noPad);
        inQueue.EnQue(x);
    }

    __aicore__ inline void Compute(uint32_t n)
    {
        LocalTensor<float> x = inQueue.DeQue<float>();
        LocalTensor<float> y = outQueue.AllocTensor<float>();
        LocalTensor<float> work = workBuffer.Get<float>();
        LocalTensor<float> value = valueBuffer.Get<float>();
        LocalTensor<float> spread = spreadBuffer.Get<float>();
        Duplicate(value, 0.0f, FLOATS_PER_BLOCK);  // Brcb reads eight values; only the first is used
        for (uint32_t r = 0; r < n; ++r) {
            LocalTensor<float> xRow = x[r * t.pitch];
            LocalTensor<float> yRow = y[r * t.pitch];
            ReduceMax(value, xRow, work, static_cast<int32_t>(t.width), false);
            Brcb(spread, value, 1, {1, 8});
            SubtractSpread(yRow, xRow, spread);
            Exp(yRow, yRow, static_cast<int32_t>(t.width));
            ReduceSum(value, yRow, work, static_cast<int32_t>(t.width));
            Brcb(spread, value, 1, {1, 8});
            DivideBySpread(yRow, spread);
        }
        outQueue.EnQue(y);
        inQueue.FreeTensor(x);
    }

    __aicore__ inline void CopyOut(uint32_t row, uint32_t n)
    {
        LocalTensor<float> y = outQueue.DeQue<float>();
        DataCopyExtParams params{static_cast<uint16_t>(n), static_cast<uint32_t>(t.width * sizeof(float)), 0, 0, 0};
        DataCopyPad(yGm[static_cast<uint64_t>(row) * t.width], y, params);
        outQueue.FreeTensor(y);
    }

    __aicore__ inline void SubtractSpread(const LocalTensor<float> &dst, const LocalTensor<float> &src,
                                          const LocalTensor<float> &spread)
    {
        const BinaryRepeatParams strides{1, 1, 0, 8, 8, 0};
        const uint32_t repeats = t.width / LANES;
        for (uint32_t done = 0; done < repeats; done += MAX_REPEATS) {
            const uint32_t now = repeats - done < MAX_REPEATS ? repeats - done : MAX_REPEATS;
            Sub(dst[done * LANES], src[done * LANES], spread, static_cast<uint64_t>(LANES), static_cast<uint8_t>(now),
                strides);
        }
        const uint64_t tail = t.width % LANES;
        if (tail != 0) {
            Sub(dst[repeats * LANES], src[repeats * LANES], spread, tail, 1, strides);
        }
    }

    __aicore__ inline void DivideBySpread(const LocalTensor<float> &row, const LocalTensor<float> &spread)
    {
        const BinaryRepeatParams strides{1, 1, 0, 8, 8, 0};
        const uint32_t repeats = t.width / LANES;
        for (uint32_t done = 0; done < repeats; done += MAX_REPEATS) {
            const uint32_t now = repeats - done < MAX_REPEATS ? repeats - done : MAX_REPEATS;
            Div(row[done * LANES], row[done * LANES], spread, static_cast<uint64_t>(LANES), static_cast<uint8_t>(now),
                strides);
        }
        const uint64_t tail = t.width % LANES;
        if (tail != 0) {
            Div(row[repeats * LANES], row[repeats * LANES], spread, tail, 1, strides);
        }
    }

    TQue<TPosition::VECIN, 1> inQueue;
    TQue<TPosition::VECOUT, 1> outQueue;
    TBuf<TPosition::VECCALC> workBuffer, valueBuffer, spreadBuffer;
    GlobalTensor<float> xGm, yGm;
    RowSoftmaxTiling t;
    uint32_t rows;
};

extern "C" __global__ __aicore__ void row_softmax(GM_ADDR x, GM_ADDR y, RowSoftmaxTiling tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    RowSoftmax op;
    op.Init(x, y, tiling, &pipe);
    op.Process();
}
