// gather_bfloat16 for ascend910b: 1 kernel, one launch. Generated; not for editing.
#include "kernel_operator.h"
using namespace AscendC;


__aicore__ inline int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

__aicore__ inline int64_t Greatest(int64_t a, int64_t b) { return a > b ? a : b; }

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

// The first failed check of this core: its number + 1, and the position.
struct Failures {
    GlobalTensor<int64_t> slots;
    int64_t number = 0, position = 0, core = 0;
    __aicore__ inline void Init(GM_ADDR status, int64_t index) {
        slots.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(status));
        core = index;
    }
    // A position counts from the end where it is negative; one outside is clamped and recorded.
    __aicore__ inline int64_t Checked(int64_t at, int64_t extent, int64_t check, int64_t ordinal) {
        const int64_t inside = at < 0 ? at + extent : at;
        if (inside >= 0 && inside < extent) {
            return inside;
        }
        if (number == 0 || check + 1 < number || (check + 1 == number && ordinal < position)) {
            number = check + 1;
            position = ordinal;
        }
        return inside < 0 ? 0 : extent - 1;
    }
    __aicore__ inline void Report(const LocalTensor<int64_t>& slot) {
        if (number == 0) {
            return;
        }
        slot.SetValue(0, number);
        slot.SetValue(1, position);
        slot.SetValue(2, 0);
        slot.SetValue(3, 0);
        DataCopy(slots[core * 4], slot, 4);
    }
};

// The chunks of this core: a balanced part, cut where no two cores write one block of 32 bytes.
struct Share {
    int64_t first, last;
    __aicore__ inline Share(int64_t chunks, int64_t unit, int64_t core, int64_t cores) {
        const int64_t units = (chunks + unit - 1) / unit;
        first = Least(units * core / cores * unit, chunks);
        last = Least(units * (core + 1) / cores * unit, chunks);
    }
};

// Copies into the work area after what the vector unit does there, and before it.
__aicore__ inline void AfterVector() {
    const auto event = GetTPipePtr()->FetchEventID(HardEvent::V_MTE2);
    SetFlag<HardEvent::V_MTE2>(event);
    WaitFlag<HardEvent::V_MTE2>(event);
}

__aicore__ inline void BeforeVector() {
    const auto event = GetTPipePtr()->FetchEventID(HardEvent::MTE2_V);
    SetFlag<HardEvent::MTE2_V>(event);
    WaitFlag<HardEvent::MTE2_V>(event);
}

// The open dimensions of this launch.
struct Tiling {
    int64_t unused;
};

// t_1: gather, mul
class K0 {
public:
    __aicore__ inline void Init(TPipe& pipe, GM_ADDR p0Address, GM_ADDR p1Address, GM_ADDR p2Address, const Tiling& tiling, Failures& all, int64_t check) {
        pipe.InitBuffer(load0, 1, 640);
        pipe.InitBuffer(store0, 1, 4480);
        pipe.InitBuffer(area, 33568);
        work = area.Get<uint8_t>();
        p0.SetGlobalBuffer(reinterpret_cast<__gm__ bfloat16_t*>(p0Address));
        p1.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(p1Address));
        p2.SetGlobalBuffer(reinterpret_cast<__gm__ bfloat16_t*>(p2Address));
        failures = &all;
        firstCheck = check;
    }

    __aicore__ inline void Step0(int64_t first, int64_t last) {
        const LocalTensor<float> v0 = At<float>(work, 0);  // t
        const LocalTensor<float> t0 = At<float>(work, 8960);
        const LocalTensor<float> reduction = At<float>(work, 25344);
        for (int64_t c = first; c < last; ++c) {
            const int64_t i0_o = 0;
            const int64_t i1_o = 0;
            LocalTensor<uint8_t> in0 = load0.AllocTensor<uint8_t>();
            Load(At<int64_t>(in0, 0)[0], p1[i0_o], 1, 70, 70, 72);
            const LocalTensor<int64_t> b1 = At<int64_t>(in0, 0);
            LocalTensor<uint8_t> out0 = store0.AllocTensor<uint8_t>();
            const LocalTensor<bfloat16_t> v1 = At<bfloat16_t>(out0, 0);
            // t
            for (int64_t part = 0; part < 70; part += 128) {
                const int64_t end = Least(70, part + 128);
                AfterVector();
                for (int64_t i0 = part; i0 < end; ++i0) {
                    const int64_t position =
                        failures->Checked(b1.GetValue(i0), 1000, firstCheck + 0, i0 + i0_o);
                    Load(reduction.ReinterpretCast<bfloat16_t>()[(i0 - part) * 32], p0[i1_o + position * 24], 1, 24, 24, 32);
                }
                BeforeVector();
                for (int64_t i0 = part; i0 < end; ++i0) {
                    Cast(v0[i0 * 32], reduction.ReinterpretCast<bfloat16_t>()[(i0 - part) * 32], RoundMode::CAST_NONE, 24);
                }
            }
            // t_1
            for (int64_t i0 = 0; i0 < 70; ++i0) {
                {
                    constexpr int64_t j = 0;
                    constexpr int32_t n = 24;
                    Muls(t0, v0[i0 * 32 + j], 0x1.0000000000000p-1f, n);
                    Cast(v1[i0 * 32 + j], t0, RoundMode::CAST_RINT, n);
                }
            }
            store0.EnQue(out0);
            out0 = store0.DeQue<uint8_t>();
            Store(p2[i0_o * 24 + i1_o], At<bfloat16_t>(out0, 0)[0], 70, 24, 24, 32);
            store0.FreeTensor(out0);
            load0.FreeTensor(in0);
        }
        failures->Report(At<int64_t>(work, 33536));
    }

private:
    TQue<TPosition::VECIN, 1> load0;
    TQue<TPosition::VECOUT, 1> store0;
    TBuf<TPosition::VECCALC> area;
    LocalTensor<uint8_t> work;
    GlobalTensor<bfloat16_t> p0;  // table [1000, 24]
    GlobalTensor<int64_t> p1;  // at [70]
    GlobalTensor<bfloat16_t> p2;  // t_1 [70, 24]
    Failures* failures;
    int64_t firstCheck;
};

extern "C" __global__ __aicore__ void gather_bfloat16_launch(GM_ADDR tableGm, GM_ADDR atGm, GM_ADDR t_1Gm, GM_ADDR status, Tiling tiling) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    TPipe pipe;
    const int64_t core = GetBlockIdx(), cores = GetBlockNum();
    Failures failures;
    failures.Init(status, core);
    {
        const Share share(1, Greatest(1, 1), core, cores);
        K0 kernel;
        kernel.Init(pipe, tableGm, atGm, t_1Gm, tiling, failures, 0);
        kernel.Step0(share.first, share.last);
    }
}
