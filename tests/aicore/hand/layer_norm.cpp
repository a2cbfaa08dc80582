// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta over the rows of x[rows, width], in fp32.
// gamma and beta are loaded once for a core; mean and deviation pass through the scalar unit.
#include "kernel_operator.h"

using namespace AscendC;

struct RowNormTiling {
    uint32_t rows;
    uint32_t width;
    uint32_t pitch;             // floats of a row in UB: width rounded up to 8
    uint32_t rowsPerTile;       // at most 4095
    uint32_t rowsPerCore;
    uint32_t coresWithOneMore;
    uint32_t workLength;        // floats that ReduceSum may need
    float epsilon;
    float inverseWidth;         // 1 / width
};

constexpr int32_t BUFFERS = 2;
constexpr uint32_t FLOATS_PER_BLOCK = 32 / sizeof(float);

class LayerNormRows {
public:
    __aicore__ inline LayerNormRows() {}

    __aicore__ inline void Init(GM_ADDR x, GM_ADDR gamma, GM_ADDR beta, GM_ADDR y, const RowNormTiling &tiling,
                                TPipe *pipe)
    {
        t = tiling;
        const uint32_t core = GetBlockIdx();
        const bool oneMore = core < t.coresWithOneMore;
        const uint64_t first = core * t.rowsPerCore + (oneMore ? core : t.coresWithOneMore);
        rows = t.rowsPerCore + (oneMore ? 1 : 0);
        const uint64_t size = static_cast<uint64_t>(rows) * t.width;
        xGm.SetGlobalBuffer((__gm__ float *)x + first * t.width, size);
        yGm.SetGlobalBuffer((__gm__ float *)y + first * t.width, size);
        gammaGm.SetGlobalBuffer((__gm__ float *)gamma, t.width);
        betaGm.SetGlobalBuffer((__gm__ float *)beta, t.width);
        pipe->InitBuffer(xQueue, BUFFERS, t.rowsPerTile * t.pitch * sizeof(float));
        pipe->InitBuffer(yQueue, BUFFERS, t.rowsPerTile * t.pitch * sizeof(float));
        pipe->InitBuffer(gammaQueue, 1, t.pitch * sizeof(float));
        pipe->InitBuffer(betaQueue, 1, t.pitch * sizeof(float));
        pipe->InitBuffer(squareBuffer, t.pitch * sizeof(float));
        pipe->InitBuffer(workBuffer, t.workLength * sizeof(float));
        pipe->InitBuffer(valueBuffer, FLOATS_PER_BLOCK * sizeof(float));
    }

    __aicore__ inline void Process()
    {
        if (rows == 0) {
            return;
        }
        CopyInParameters();
        LocalTensor<float> gamma = gammaQueue.DeQue<float>();
        LocalTensor<float> beta = betaQueue.DeQue<float>();
        for (uint32_t row = 0; row < rows; row += t.rowsPerTile) {
            const uint32_t n = rows - row < t.rowsPerTile ? rows - row : t.rowsPerTile;
            CopyIn(row, n);
            Compute(n, gamma, beta);
            CopyOut(row, n);
        }
        gammaQueue.FreeTensor(gamma);
        betaQueue.FreeTensor(beta);
    }

private:
    __aicore__ inline void CopyInParameters()
    {
        LocalTensor<float> gamma = gammaQueue.AllocTensor<float>();
        LocalTensor<float> beta = betaQueue.AllocTensor<float>();
        DataCopyExtParams params{1, static_cast<uint32_t>(t.width * sizeof(float)), 0, 0, 0};
        DataCopyPadExtParams<float> noPad{false, 0, 0, 0.0f};
        DataCopyPad(gamma, gammaGm, params, noPad);
        DataCopyPad(beta, betaGm, params, noPad);
        gammaQueue.EnQue(gamma);
        betaQueue.EnQue(beta);
    }

    __aicore__ inline void CopyIn(uint32_t row, uint32_t n)
    {
        LocalTensor<float> x = xQueue.AllocTensor<float>();
        DataCopyExtParams params{static_cast<uint16_t>(n), static_cast<uint32_t>(t.width * sizeof(float)), 0, 0, 0};
        DataCopyPadExtParams<float> noPad{false, 0, 0, 0.0f};
        DataCopyPad(x, xGm[static_cast<uint64_t>(row) * t.width], params, noPad);
        xQueue.EnQue(x);
    }

    __aicore__ inline void Compute(uint32_t n, const LocalTensor<float> &gamma, const LocalTensor<float> &beta)
    {
        LocalTensor<float> x = xQueue.DeQue<float>();
        LocalTensor<float> y = yQueue.AllocTensor<float>();
        LocalTensor<float> square = squareBuffer.Get<float>();
        LocalTensor<float> work = workBuffer.Get<float>();
        LocalTensor<float> value = valueBuffer.Get<float>();
        const int32_t width = static_cast<int32_t>(t.width);
        for (uint32_t r = 0; r < n; ++r) {
            LocalTensor<float> xRow = x[r * t.pitch];
            LocalTensor<float> yRow = y[r * t.pitch];
            ReduceSum(value, xRow, work, width);
            const float mean = value.GetValue(0) * t.inverseWidth;
            Adds(yRow, xRow, -mean, width);
            Mul(square, yRow, yRow, width);
            ReduceSum(value, square, work, width);
            Muls(value, value, t.inverseWidth, 1);
            Adds(value, value, t.epsilon, 1);
            Sqrt(value, value, 1);
            const float deviation = value.GetValue(0);
            Muls(yRow, yRow, 1.0f / deviation, width);
            Mul(yRow, yRow, gamma, width);
            Add(yRow, yRow, beta, width);
        }
        yQueue.EnQue(y);
        xQueue.FreeTensor(x);
    }

    __aicore__ inline void CopyOut(uint32_t row, uint32_t n)
    {
        LocalTensor<float> y = yQueue.DeQue<float>();
        DataCopyExtParams params{static_cast<uint16_t>(n), static_cast<uint32_t>(t.width * sizeof(float)), 0, 0, 0};
        DataCopyPad(yGm[static_cast<uint64_t>(row) * t.width], y, params);
        yQueue.FreeTensor(y);
    }

    TQue<TPosition::VECIN, 1> xQueue, gammaQueue, betaQueue;
    TQue<TPosition::VECOUT, 1> yQueue;
    TBuf<TPosition::VECCALC> squareBuffer, workBuffer, valueBuffer;
    GlobalTensor<float> xGm, yGm, gammaGm, betaGm;
    RowNormTiling t;
    uint32_t rows;
};

extern "C" __global__ __aicore__ void layer_norm(GM_ADDR x, GM_ADDR gamma, GM_ADDR beta, GM_ADDR y,
                                                 RowNormTiling tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    LayerNormRows op;
    op.Init(x, gamma, beta, y, tiling, &pipe);
    op.Process();
}
