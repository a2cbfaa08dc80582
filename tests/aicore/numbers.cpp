// Small kernels for the numeric tests: inputs whole into UB, one instruction, the result whole out.
#include "kernel_operator.h"
using namespace AscendC;

struct Options {
    uint32_t n, option;
};

// Copies, with flags, around one instruction; `Out` elements are all written back.
template <typename In, typename Out, int inputs, typename F>
__aicore__ inline void Around(GM_ADDR x, GM_ADDR y, GM_ADDR z, uint32_t n, uint32_t count, F f) {
    TPipe pipe;
    TBuf<TPosition::VECCALC> xBuf, yBuf, zBuf, tmpBuf;
    pipe.InitBuffer(xBuf, n * sizeof(In));
    pipe.InitBuffer(yBuf, n * 4);
    pipe.InitBuffer(zBuf, count * sizeof(Out));
    pipe.InitBuffer(tmpBuf, 8192);
    GlobalTensor<In> xGm;
    GlobalTensor<Out> zGm;
    xGm.SetGlobalBuffer((__gm__ In*)x, n);
    zGm.SetGlobalBuffer((__gm__ Out*)z, count);
    LocalTensor<In> a = xBuf.Get<In>();
    LocalTensor<Out> c = zBuf.Get<Out>();
    DataCopy(a, xGm, n);
    if (inputs == 2) {
        GlobalTensor<uint32_t> yGm;
        yGm.SetGlobalBuffer((__gm__ uint32_t*)y, n * sizeof(In) / 4);
        DataCopy(yBuf.Get<uint32_t>(), yGm, n * sizeof(In) / 4);
    }
    SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
    f(c, a, yBuf, tmpBuf);
    SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
    DataCopy(zGm, c, count);
}

#define KERNEL_OF(name, In, Out, count, ...)                                                                         \
    extern "C" __global__ __aicore__ void name(GM_ADDR x, GM_ADDR z, Options o) {                                    \
        KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);                                                              \
        Around<In, Out, 1>(x, x, z, o.n, count, [&](LocalTensor<Out> c, LocalTensor<In> a, TBuf<TPosition::VECCALC>& second, \
                                                    TBuf<TPosition::VECCALC>& tmp) { __VA_ARGS__; });                \
    }
#define KERNEL2_OF(name, In, Out, count, ...)                                                                        \
    extern "C" __global__ __aicore__ void name(GM_ADDR x, GM_ADDR y, GM_ADDR z, Options o) {                         \
        KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);                                                              \
        Around<In, Out, 2>(x, y, z, o.n, count, [&](LocalTensor<Out> c, LocalTensor<In> a, TBuf<TPosition::VECCALC>& second, \
                                                    TBuf<TPosition::VECCALC>& tmp) {                                 \
            LocalTensor<In> b = second.Get<In>();                                                                    \
            __VA_ARGS__;                                                                                             \
        });                                                                                                          \
    }

KERNEL2_OF(add_half, half, half, o.n, Add(c, a, b, o.n))
KERNEL2_OF(sub_half, half, half, o.n, Sub(c, a, b, o.n))
KERNEL2_OF(mul_half, half, half, o.n, Mul(c, a, b, o.n))
KERNEL2_OF(div_half, half, half, o.n, Div(c, a, b, o.n))
KERNEL2_OF(add_float, float, float, o.n, Add(c, a, b, o.n))
KERNEL2_OF(sub_float, float, float, o.n, Sub(c, a, b, o.n))
KERNEL2_OF(mul_float, float, float, o.n, Mul(c, a, b, o.n))
KERNEL2_OF(div_float, float, float, o.n, Div(c, a, b, o.n))
KERNEL2_OF(max_float, float, float, o.n, Max(c, a, b, o.n))
KERNEL2_OF(compare, float, uint8_t, o.n / 8, Compare(c, a, b, (CMPMODE)o.option, o.n))
KERNEL2_OF(and_u32, uint32_t, uint32_t, o.n, Duplicate(c, 0u, o.n); And(c, a, b, o.option))
KERNEL2_OF(choose, float, float, o.n, LocalTensor<uint8_t> bits = tmp.Get<uint8_t>();
           Compare(bits, a, b, CMPMODE::GT, o.n); Select(c, bits, a, b, SELMODE::VSEL_TENSOR_TENSOR_MODE, o.n))
KERNEL2_OF(choose_scalar, float, float, o.n, LocalTensor<uint8_t> bits = tmp.Get<uint8_t>();
           Compare(bits, a, b, CMPMODE::GT, o.n); Select(c, bits, a, -1.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, o.n))
KERNEL2_OF(gather_float, float, float, o.n, Gather(c, a, b.ReinterpretCast<uint32_t>(), 0, o.n))

KERNEL_OF(float_to_half, float, half, o.n, Cast(c, a, (RoundMode)o.option, o.n))
KERNEL_OF(float_to_bf16, float, bfloat16_t, o.n, Cast(c, a, (RoundMode)o.option, o.n))
KERNEL_OF(float_to_i32, float, int32_t, o.n, Cast(c, a, (RoundMode)o.option, o.n))
KERNEL_OF(float_to_i16, float, int16_t, o.n, Cast(c, a, (RoundMode)o.option, o.n))
KERNEL_OF(float_to_i64, float, int64_t, o.n, Cast(c, a, (RoundMode)o.option, o.n))
KERNEL_OF(half_to_float, half, float, o.n, Cast(c, a, RoundMode::CAST_NONE, o.n))
KERNEL_OF(bf16_to_float, bfloat16_t, float, o.n, Cast(c, a, RoundMode::CAST_NONE, o.n))
KERNEL_OF(i32_to_float, int32_t, float, o.n, Cast(c, a, (RoundMode)o.option, o.n))
KERNEL_OF(sum_half, half, half, 16, Duplicate(c, (half)0.0f, 16); ReduceSum(c, a, tmp.Get<half>(), o.option))
KERNEL_OF(sum_float, float, float, 16, Duplicate(c, 0.0f, 16); ReduceSum(c, a, tmp.Get<float>(), o.option))
KERNEL_OF(reciprocal, float, float, o.n, Reciprocal(c, a, o.n))
KERNEL_OF(transpose, half, half, 256, Transpose(c, a))
KERNEL_OF(whole_max, float, float, 64, Duplicate(c, 0.0f, 64); WholeReduceMax(c, a, 64, 16, 1, 1, 8))

// n rows of `option` floats, padded with -9 to whole blocks: y = 2 x; z[row * 8] = the row's maximum.
extern "C" __global__ __aicore__ void pad_rows(GM_ADDR x, GM_ADDR y, GM_ADDR z, Options o) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    uint32_t width = (o.option + 7) / 8 * 8;
    TPipe pipe;
    TQue<TPosition::VECIN, 1> in;
    TQue<TPosition::VECOUT, 1> out, most;
    TBuf<TPosition::VECCALC> tmpBuf;
    pipe.InitBuffer(in, 1, o.n * width * 4);
    pipe.InitBuffer(out, 1, o.n * width * 4);
    pipe.InitBuffer(most, 1, o.n * 32);
    pipe.InitBuffer(tmpBuf, 256);
    GlobalTensor<float> xGm, yGm, zGm;
    xGm.SetGlobalBuffer((__gm__ float*)x, o.n * o.option);
    yGm.SetGlobalBuffer((__gm__ float*)y, o.n * o.option);
    zGm.SetGlobalBuffer((__gm__ float*)z, o.n * 8);
    LocalTensor<float> a = in.AllocTensor<float>();
    DataCopyPad(a, xGm, {(uint16_t)o.n, o.option * 4, 0, 0, 0}, {true, 0, (uint8_t)(width - o.option), -9.0f});
    in.EnQue(a);
    a = in.DeQue<float>();
    LocalTensor<float> b = out.AllocTensor<float>();
    LocalTensor<float> best = most.AllocTensor<float>();
    LocalTensor<float> tmp = tmpBuf.Get<float>();
    Muls(b, a, 2.0f, o.n * width);
    Duplicate(best, 0.0f, o.n * 8);
    for (uint32_t row = 0; row < o.n; ++row) ReduceMax(best[row * 8], a[row * width], tmp, width);
    out.EnQue(b);
    most.EnQue(best);
    in.FreeTensor(a);
    b = out.DeQue<float>();
    best = most.DeQue<float>();
    DataCopyPad(yGm, b, {(uint16_t)o.n, o.option * 4, 0, 0, 0});
    DataCopy(zGm, best, o.n * 8);
    out.FreeTensor(b);
    most.FreeTensor(best);
}

// Each further instruction once; c[0] is 1, or minus the number of the check that failed.
#define CHECK(number, condition) if (good == 1.0f && !(condition)) good = -(number)
KERNEL_OF(everything, float, float, o.n, float good = 1.0f; LocalTensor<float> t = tmp.Get<float>();
    LocalTensor<float> s = second.Get<float>(); LocalTensor<uint16_t> w = tmp.Get<uint16_t>(); LocalTensor<uint32_t> u = tmp.Get<uint32_t>();
    Duplicate(c, 0.0f, o.n);
    CreateVecIndex(t, 5.0f, 64); CHECK(1, t.GetValue(63) == 68.0f);
    Axpy(t, t, 2.0f, 64); CHECK(2, t.GetValue(1) == 18.0f);
    Brcb(s, t, 1, {1, 8}); CHECK(3, s.GetValue(8) == 18.0f && s.GetValue(15) == 18.0f);
    uint64_t kept = 0; GatherMask(s, t, 2, false, 0, {1, 1, 8, 0}, kept); CHECK(4, kept == 32 && s.GetValue(0) == 18.0f);
    Copy(s, t, 64, 1, {1, 1, 8, 8}); CHECK(5, s.GetValue(63) == t.GetValue(63));
    Relu(s, a, 64); Abs(s, s, 64); Sqrt(s, s, 64); CHECK(6, s.GetValue(0) >= 0.0f);
    Exp(s, s, 64); Ln(s, s, 64); Maxs(s, s, 1.0f, 64); Mins(s, s, 2.0f, 64); LeakyRelu(s, s, 0.1f, 64); CHECK(7, s.GetValue(0) >= 1.0f);
    Rsqrt(s, s, 64); CHECK(8, s.GetValue(0) <= 1.01f);
    Duplicate(u, 12u, 64); ShiftLeft(u, u, 2u, 64); ShiftRight(u, u, 3u, 64); CHECK(9, u.GetValue(5) == 6u);
    Duplicate(w, (uint16_t)15, 128); Not(w, w, 128); CHECK(10, w.GetValue(7) == 0xfff0);
    uint64_t mask[2] = {0xff, 0}; Duplicate(t, 1.0f, 64); Duplicate(t, 3.0f, mask, 1, 1, 8); CHECK(11, t.GetValue(7) == 3.0f && t.GetValue(8) == 1.0f);
    WholeReduceSum(s, t, 64, 1, 1, 1, 8); CHECK(12, s.GetValue(0) == 80.0f);
    RepeatReduceSum(s, t, 1, 64, 0, 1, 1, 8); CHECK(13, s.GetValue(0) == 80.0f);
    BlockReduceMax(s, t, 1, 64, 1, 1, 8); CHECK(14, s.GetValue(0) == 3.0f && s.GetValue(1) == 1.0f);
    WholeReduceMin(s, t, 64, 1, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE); CHECK(15, s.GetValue(0) == 1.0f);
    ReduceRepeat<ReduceType::SUM>(s, t, 64, 1, 1, 1, 8); CHECK(16, s.GetValue(0) == 80.0f);
    ReduceDataBlock<ReduceType::MIN>(s, t, 64, 1, 1, 1, 8); CHECK(17, s.GetValue(0) == 3.0f);
    SetMaskCount(); SetVectorMask<float, MaskMode::COUNTER>(100); Duplicate(s, 0.0f, 128);
    Add<float, false>(s, a, a, MASK_PLACEHOLDER, 1, {1, 1, 1, 8, 8, 8}); SetMaskNorm(); ResetMask();
    CHECK(18, s.GetValue(99) == 2 * a.GetValue(99) && s.GetValue(100) == 0.0f);
    Duplicate(u, 0u, 64); for (int k = 0; k < 8; ++k) u.SetValue(k, 32u * (7 - k));
    Gatherb(s.ReinterpretCast<uint32_t>(), a.ReinterpretCast<uint32_t>(), u, 1, {1, 8}); CHECK(19, s.GetValue(0) == a.GetValue(56));
    CompareScalar(w.ReinterpretCast<uint8_t>(), a, 0.0f, CMPMODE::GT, 64); CHECK(20, (w.GetValue(0) & 1) == (a.GetValue(0) > 0.0f));
    DataCopy(s, a, 64); CHECK(21, s.GetValue(63) == a.GetValue(63));
    ReduceMin(t, a, s, 1024, true); CHECK(22, t.ReinterpretCast<uint32_t>().GetValue(1) < 1024u);
    SetDeqScale((half)0.5f); LocalTensor<int32_t> i32 = tmp.Get<int32_t>(); LocalTensor<half> h = second.Get<half>();
    Duplicate(i32, 6, 64); Cast(h, i32, RoundMode::CAST_NONE, 64); CHECK(23, (float)h.GetValue(3) == 3.0f);
    LocalTensor<int8_t> i8 = tmp.Get<int8_t>(); Duplicate(h, (half)-2.5f, 64); Cast(i8, h, RoundMode::CAST_RINT, 64); CHECK(24, i8.GetValue(0) == -2);
    Cast(t, h, RoundMode::CAST_NONE, 64, 1, {1, 1, 8, 4}); CHECK(25, t.GetValue(63) == -2.5f);
    ReduceSum(s, a, tmp.Get<float>(), 64, 4, 8); ReduceSum(t, a, t, 256); float byTree = s.GetValue(0); Duplicate(t, 1.0f, 512);
    ReduceSum(s, t, second.Get<float>()[64], 32, 8, 8); CHECK(26, s.GetValue(0) == 256.0f && byTree == byTree);
    ReduceMax(s, a, tmp.Get<float>(), (uint64_t)64, 16, 8, true); CHECK(27, s.ReinterpretCast<uint32_t>().GetValue(1) < 1024u);
    Duplicate(u, 5u, 64); ShiftLeft(u, u, 1u, (uint64_t)64, 1, {1, 1, 8, 8}); CHECK(28, u.GetValue(63) == 10u);
    Duplicate(t, 1.0f, 64); Axpy(t, t, 2.0f, (uint64_t)64, 1, UnaryRepeatParams(1, 1, 8, 8)); CHECK(29, t.GetValue(9) == 3.0f);
    CreateVecIndex(t, 1.0f, (uint64_t)64, 2, 1, 8); CHECK(30, t.GetValue(127) == 128.0f);
    Duplicate(t, 1.5f, 512); Duplicate(s, 0.0f, 64); Add(s, t, s, (uint64_t)64, 8, {1, 1, 1, 0, 8, 0}); CHECK(31, s.GetValue(63) == 12.0f);
    c.SetValue(0, good))
