// sum_of_everything for ascend910b: 1 kernel, one launch. Generated; not for editing.
#include "kernel_operator.h"
using namespace AscendC;


__aicore__ inline int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

// A part of a byte tensor, as elements of T.
template <typename T>
__aicore__ inline LocalTensor<T> At(const LocalTensor<uint8_t>& bytes, uint32_t offset) {
    return bytes[offset].ReinterpretCast<T>();
}

// rows x cols elements from global memory; pitches in elements. Rows on-chip are padded to 32 bytes.
template <typename T>
__aicore__ inline void Load(const LocalTensor<T>& to, const GlobalTensor<T>& from, int64_t rows, int64_t cols,
                            int64_t fromPitch, int64_t toPitch) {
    if (rows <= 0 || cols <= 0) {
        return;
    }
    const uint32_t bytes = static_cast<uint32_t>(cols * sizeof(T));
    const uint32_t filled = (bytes + 31) / 32 * 32;
    const DataCopyPadExtParams<T> pad{filled != bytes, 0, static_cast<uint8_t>((filled - bytes) / sizeof(T)),
                                      static_cast<T>(0)};
    const uint32_t gap = static_cast<uint32_t>((toPitch * sizeof(T) - filled) / 32);
    for (int64_t row = 0; row < rows; row += 4095) {
        const int64_t count = rows - row < 4095 ? rows - row : 4095;
        const uint32_t skip = count > 1 ? static_cast<uint32_t>((fromPitch - cols) * sizeof(T)) : 0;
        const DataCopyExtParams shape{static_cast<uint16_t>(count), bytes, skip, count > 1 ? gap : 0, 0};
        DataCopyPad(to[row * toPitch], from[row * fromPitch], shape, pad);
    }
}

// rows x cols elements to global memory; pitches in elements.
template <typename T>
__aicore__ inline void Store(const GlobalTensor<T>& to, const LocalTensor<T>& from, int64_t rows, int64_t cols,
                             int64_t toPitch, int64_t fromPitch) {
    if (rows <= 0 || cols <= 0) {
        return;
    }
    const uint32_t bytes = static_cast<uint32_t>(cols * sizeof(T));
    const uint32_t gap = static_cast<uint32_t>((fromPitch * sizeof(T) - (bytes + 31) / 32 * 32) / 32);
    for (int64_t row = 0; row < rows; row += 4095) {
        const int64_t count = rows - row < 4095 ? rows - row : 4095;
        const uint32_t skip = count > 1 ? static_cast<uint32_t>((toPitch - cols) * sizeof(T)) : 0;
        const DataCopyExtParams shape{static_cast<uint16_t>(count), bytes, count > 1 ? gap : 0, skip, 0};
        DataCopyPad(to[row * toPitch], from[row * fromPitch], shape);
    }
}

__aicore__ inline float SumOfRow(const LocalTensor<float>& row, const LocalTensor<float>& work,
                                  int64_t n) {
    if (n <= 0) {
        return 0.0f;
    }
    ReduceSum(work, row, work[8], static_cast<int32_t>(n));
    return work.GetValue(0);
}

// One element into its whole block.
template <typename T>
__aicore__ inline void Fill(const LocalTensor<T>& to, int64_t address, T value) {
    for (int64_t lane = 0; lane < static_cast<int64_t>(32 / sizeof(T)); ++lane) {
        to.SetValue(address + lane, value);
    }
}

// The chunks of this core: a balanced part, cut where no two cores write one block of 32 bytes.
struct Share {
    int64_t first, last;
    __aicore__ inline Share(int64_t chunks, int64_t unit, int64_t core, int64_t cores) {
        const int64_t units = (chunks + unit - 1) / unit;
        first = Least(units * core / cores * unit, chunks);
        last = Least(units * (core + 1) / cores * unit, chunks);
    }
};

// The open dimensions of this launch.
struct Tiling {
    int64_t unused;
};

// t: sum
class K0 {
public:
    __aicore__ inline void Init(TPipe& pipe, GM_ADDR p0Address, GM_ADDR p1Address, GM_ADDR v0_partsAddress, const Tiling& tiling) {
        pipe.InitBuffer(load0, 1, 576);
        pipe.InitBuffer(load1, 2, 64000);
        pipe.InitBuffer(store0, 1, 32);
        pipe.InitBuffer(area, 2080);
        work = area.Get<uint8_t>();
        Duplicate(work.ReinterpretCast<float>(), 0.0f, 520);  // whole vectors are read
        p0.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p0Address));
        p1.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p1Address));
        v0_parts.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(v0_partsAddress));
    }

    __aicore__ inline void Step0(int64_t first, int64_t last) {
        const LocalTensor<float> v0 = At<float>(work, 0);  // t
        const LocalTensor<float> reduction = At<float>(work, 32);
        for (int64_t c = first; c < last; ++c) {
            LocalTensor<uint8_t> out0 = store0.AllocTensor<uint8_t>();
            // t
            Duplicate(v0[0], 0.0f, 8);
            for (int64_t i0_t = c * 32; i0_t < Least(300, c * 32 + 32); i0_t += 16) {
                const int64_t i0_o = i0_t;
                const int64_t i0_n = Least(300 - i0_o, 16);
                LocalTensor<uint8_t> in1 = load1.AllocTensor<uint8_t>();
                Load(At<float>(in1, 0)[0], p0[i0_o * 1000], i0_n, 1000, 1000, 1000);
                load1.EnQue(in1);
                in1 = load1.DeQue<uint8_t>();
                const LocalTensor<float> b1 = At<float>(in1, 0);
                // t
                {
                    float state = v0.GetValue(0);
                    for (int64_t i0 = 0; i0 < i0_n; ++i0) {
                        state = state + SumOfRow(b1[i0 * 1000], reduction, 1000);
                    }
                    Duplicate(v0[0], state, 8);
                }
                load1.FreeTensor(in1);
            }
            Or(At<uint16_t>(out0, 0), v0.ReinterpretCast<uint16_t>(), v0.ReinterpretCast<uint16_t>(), 16);
            store0.EnQue(out0);
            out0 = store0.DeQue<uint8_t>();
            Store(v0_parts[c * 128], At<float>(out0, 0)[0], 1, 1, 1, 8);
            store0.FreeTensor(out0);
        }
    }

    __aicore__ inline void Step1(int64_t first, int64_t last) {
        const LocalTensor<float> v0 = At<float>(work, 0);  // t
        for (int64_t c = first; c < last; ++c) {
            LocalTensor<uint8_t> in0 = load0.AllocTensor<uint8_t>();
            Load(At<float>(in0, 0)[0], v0_parts[0], 18, 1, 128, 8);
            load0.EnQue(in0);
            in0 = load0.DeQue<uint8_t>();
            const LocalTensor<float> b4 = At<float>(in0, 0);
            LocalTensor<uint8_t> out0 = store0.AllocTensor<uint8_t>();
            // t
            {
                float state = static_cast<float>(0x0.0p+0f);
                for (int64_t part = 0; part < 18; ++part) {
                    state = (state + b4.GetValue(part * 8));
                }
                Fill(v0, 0, static_cast<float>(state));
            }
            Or(At<uint16_t>(out0, 0), v0.ReinterpretCast<uint16_t>(), v0.ReinterpretCast<uint16_t>(), 16);
            store0.EnQue(out0);
            out0 = store0.DeQue<uint8_t>();
            Store(p1[0], At<float>(out0, 0)[0], 1, 1, 1, 8);
            store0.FreeTensor(out0);
            load0.FreeTensor(in0);
        }
    }

private:
    TQue<TPosition::VECIN, 1> load0;
    TQue<TPosition::VECIN, 1> load1;
    TQue<TPosition::VECOUT, 1> store0;
    TBuf<TPosition::VECCALC> area;
    LocalTensor<uint8_t> work;
    GlobalTensor<float> p0;  // x [300, 1000]
    GlobalTensor<float> p1;  // t []
    GlobalTensor<float> v0_parts;
};

extern "C" __global__ __aicore__ void sum_of_everything_launch(GM_ADDR xGm, GM_ADDR tGm, GM_ADDR workspace, Tiling tiling) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIV_1_0);
    TPipe pipe;
    const int64_t core = GetBlockIdx(), cores = GetBlockNum();
    {
        const Share share(18, 1, core, cores);
        K0 kernel;
        kernel.Init(pipe, xGm, tGm, workspace + 4096, tiling);
        kernel.Step0(share.first, share.last);
    }
    CrossCoreSetFlag<0, PIPE_MTE3>(0);
    CrossCoreWaitFlag(0);
    PipeBarrier<PIPE_ALL>();
    pipe.Reset();
    {
        const Share share(1, 1, core, cores);
        K0 kernel;
        kernel.Init(pipe, xGm, tGm, workspace + 4096, tiling);
        kernel.Step1(share.first, share.last);
    }
}
