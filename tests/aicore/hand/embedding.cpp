// out[i, :] = table[index[i], :] in fp16, with int32 indices. The scalar unit reads the indices from UB, so flags order
// it against the copies that bring them; the rows pass through UB in a queue that joins MTE2 and MTE3.
#include "kernel_operator.h"

using namespace AscendC;

struct EmbeddingTiling {
    uint32_t entries;           // rows of the table
    uint32_t width;             // elements of a row
    uint32_t count;             // indices
    uint32_t indicesPerCore;
    uint32_t coresWithOneMore;
    uint32_t chunk;             // indices in UB at a time
    uint32_t rowsPerTile;       // at most 4095
    uint32_t columnTile;        // elements of a row in UB at a time; a multiple of 16
};

constexpr int32_t BUFFERS = 2;
constexpr uint32_t HALVES_PER_BLOCK = 32 / sizeof(half);

class Embedding {
public:
    __aicore__ inline Embedding() {}

    __aicore__ inline void Init(GM_ADDR table, GM_ADDR index, GM_ADDR out, const EmbeddingTiling &tiling, TPipe *pipe)
    {
        t = tiling;
        const uint32_t core = GetBlockIdx();
        const bool oneMore = core < t.coresWithOneMore;
        first = core * t.indicesPerCore + (oneMore ? core : t.coresWithOneMore);
        mine = t.indicesPerCore + (oneMore ? 1 : 0);
        tableGm.SetGlobalBuffer((__gm__ half *)table, static_cast<uint64_t>(t.entries) * t.width);
        indexGm.SetGlobalBuffer((__gm__ int32_t *)index, t.count);
        outGm.SetGlobalBuffer((__gm__ half *)out, static_cast<uint64_t>(t.count) * t.width);
        pipe->InitBuffer(indexBuffer, t.chunk * sizeof(int32_t));
        pipe->InitBuffer(rowQueue, BUFFERS, t.rowsPerTile * t.columnTile * sizeof(half));
    }

    __aicore__ inline void Process()
    {
        LocalTensor<int32_t> index = indexBuffer.Get<int32_t>();
        for (uint32_t start = 0; start < mine; start += t.chunk) {
            const uint32_t n = mine - start < t.chunk ? mine - start : t.chunk;
            CopyInIndices(index, first + start, n);
            for (uint32_t row = 0; row < n; row += t.rowsPerTile) {
                const uint32_t rows = n - row < t.rowsPerTile ? n - row : t.rowsPerTile;
                for (uint32_t column = 0; column < t.width; column += t.columnTile) {
                    const uint32_t columns = t.width - column < t.columnTile ? t.width - column : t.columnTile;
                    CopyInRows(index, row, rows, column, columns);
                    CopyOutRows(first + start + row, rows, column, columns);
                }
            }
        }
    }

private:
    __aicore__ inline void CopyInIndices(const LocalTensor<int32_t> &index, uint32_t offset, uint32_t n)
    {
        // The scalar unit is done with the indices before the copy replaces them ...
        const TEventID readDone = GetTPipePtr()->FetchEventID(HardEvent::S_MTE2);
        SetFlag<HardEvent::S_MTE2>(readDone);
        WaitFlag<HardEvent::S_MTE2>(readDone);
        DataCopyExtParams params{1, static_cast<uint32_t>(n * sizeof(int32_t)), 0, 0, 0};
        DataCopyPadExtParams<int32_t> noPad{false, 0, 0, 0};
        DataCopyPad(index, indexGm[offset], params, noPad);
        // ... and reads the new ones after it.
        const TEventID copyDone = GetTPipePtr()->FetchEventID(HardEvent::MTE2_S);
        SetFlag<HardEvent::MTE2_S>(copyDone);
        WaitFlag<HardEvent::MTE2_S>(copyDone);
    }

    __aicore__ inline void CopyInRows(const LocalTensor<int32_t> &index, uint32_t row, uint32_t rows, uint32_t column,
                                      uint32_t columns)
    {
        LocalTensor<half> tile = rowQueue.AllocTensor<half>();
        const uint32_t pitch = (columns + HALVES_PER_BLOCK - 1) / HALVES_PER_BLOCK * HALVES_PER_BLOCK;
        DataCopyExtParams params{1, static_cast<uint32_t>(columns * sizeof(half)), 0, 0, 0};
        DataCopyPadExtParams<half> noPad{false, 0, 0, 0};
        for (uint32_t i = 0; i < rows; ++i) {
            const uint64_t entry = static_cast<uint64_t>(index.GetValue(row + i));
            DataCopyPad(tile[i * pitch], tableGm[entry * t.width + column], params, noPad);
        }
        rowQueue.EnQue(tile);
    }

    __aicore__ inline void CopyOutRows(uint32_t row, uint32_t rows, uint32_t column, uint32_t columns)
    {
        LocalTensor<half> tile = rowQueue.DeQue<half>();
        const uint32_t bytes = columns * sizeof(half);
        const uint32_t skip = (t.width - columns) * sizeof(half);
        DataCopyExtParams params{static_cast<uint16_t>(rows), bytes, 0, skip, 0};
        DataCopyPad(outGm[static_cast<uint64_t>(row) * t.width + column], tile, params);
        rowQueue.FreeTensor(tile);
    }

    TBuf<TPosition::VECIN> indexBuffer;
    TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> rowQueue;
    GlobalTensor<half> tableGm, outGm;
    GlobalTensor<int32_t> indexGm;
    EmbeddingTiling t;
    uint32_t first, mine;
};

extern "C" __global__ __aicore__ void embedding(GM_ADDR table, GM_ADDR index, GM_ADDR out, EmbeddingTiling tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    Embedding op;
    op.Init(table, index, out, tiling, &pipe);
    op.Process();
}
