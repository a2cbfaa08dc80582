// Vector instructions: how one is walked (mask, repeat, strides), and the element-wise ones.
//
// Modelled: level 2 (count) and level 0 (mask, repeat, block and repeat strides). Each instruction checks alignment,
// ranges, bounds, unwritten bytes, hazards and operand overlap, then computes lane by lane; half rounds once an
// instruction. Masked-off lanes are neither read nor written.
// Assumed: integer Add, Sub and Mul wrap; Max, Min, Relu return the operand that is no NaN; level-2 forms leave the mask
// register as it was; Exp, Ln, Sqrt and Div are the correctly rounded ones of the C++ library; Rsqrt and Reciprocal of
// 2201 are off by 2^-12 (documented to be inexact). And and Or of 32-bit types on 2201 count in 16-bit units (documented).
#ifndef AICORE_VECTOR_H
#define AICORE_VECTOR_H

#include "tensor.h"

namespace aicore {

// Element types per arch and form; the lists of the documentation.
template <typename...> struct Types {};
template <typename T, typename... Us> constexpr bool in(Types<Us...>) { return one_of<T, Us...>; }
template <typename T, typename A, typename B> constexpr bool listed() { return k2201 ? in<T>(A{}) : in<T>(B{}); }

using None = Types<>;
using HalfFloat = Types<half, float>;
using HalfFloatInt32 = Types<half, float, int32_t>;
using HalfFloatInt = Types<half, float, int16_t, int32_t>;
using Int16 = Types<int16_t, uint16_t>;
using Int16And32 = Types<int16_t, uint16_t, int32_t, uint32_t>;
using Any16And32 = Types<half, bfloat16_t, float, int16_t, uint16_t, int32_t, uint32_t>;
using DivTypes = Types<half, float, int16_t, uint16_t, int32_t, uint32_t>;
using ScalarTypes = Types<half, bfloat16_t, float, int16_t, int32_t>;
// Further ones of 3510's level-2 forms.
using Int8And64 = Types<int8_t, uint8_t, int64_t, uint64_t>;
using Int64 = Types<int64_t, uint64_t>;
using OnlyInt64 = Types<int64_t>;

// One operand of a vector instruction. Strides in blocks of 32 bytes.
struct Lane {
    const View* view;
    int size;  // bytes of an element
    int64_t block_stride = 1, repeat_stride = 8;
    const char* name = "src";
    int64_t align = 32;
    int64_t at(int64_t repeat, int64_t lane) const {
        int64_t byte = lane * size;
        return (repeat * repeat_stride + byte / 32 * block_stride) * 32 + byte % 32;
    }
};

// Which lanes: `count` contiguous ones, or `repeat` times those of `mask`.
struct Lanes {
    int64_t count = -1;
    int64_t repeat = 0;
    uint64_t mask[2] = {0, 0};
    int per_repeat = 64;  // lanes of one repeat
    int64_t tail = 0;     // lanes of the last repeat, where it has fewer (counter mode)
    uint64_t word(int64_t r, int w) const {
        if (!tail || r + 1 < repeat) return mask[w];
        int64_t left = tail - 64 * w;
        return left <= 0 ? 0 : left >= 64 ? ~0ull : (1ull << left) - 1;
    }
};

Lanes lanes_count(const Instruction& i, int64_t count);
Lanes lanes_mask(const Instruction& i, int size, uint64_t mask, int64_t repeat, bool set = true);
Lanes lanes_mask(const Instruction& i, int size, const uint64_t mask[2], int64_t repeat, bool set = true);

// Checks and registers all accesses of a destination and the sources that follow it. Where it `accumulates`, a repeat may
// read in the second source what an earlier one wrote, if one of the two repeat strides is 0 (documented).
void vector_access(const Instruction& i, const Lanes& lanes, const Lane* operands, int n, bool accumulates = false);
void vector_end(const Instruction& i, int64_t elements, int size, double factor = 1);
int64_t lanes_total(const Lanes& lanes);

// Calls f(repeat, first lane, lanes) for each run of lanes that is contiguous in all operands.
template <typename F> void for_runs(const Lanes& lanes, int widest, F f) {
    if (lanes.count >= 0) { f(0, 0, lanes.count); return; }
    int step = 32 / widest;
    for (int64_t r = 0; r < lanes.repeat; ++r)
        for (int first = 0; first < lanes.per_repeat; first += step) {
            uint64_t bits = lanes.word(r, first / 64) >> (first % 64);
            if (step < 64) bits &= (1ull << step) - 1;
            for (int lane = 0; bits;) {
                int skip = __builtin_ctzll(bits);
                bits >>= skip; lane += skip;
                int run = ~bits ? __builtin_ctzll(~bits) : 64;
                f(r, first + lane, run);
                bits = run == 64 ? 0 : bits >> run; lane += run;
            }
        }
}

// Computes in float where the type is a 16-bit float, else in the type itself.
template <typename T> using Wide = std::conditional_t<one_of<T, half, bfloat16_t>, float, T>;

template <typename T> bool is_nan(T value) {
    if constexpr (std::is_integral_v<T>) return false;
    else return value != value;
}

struct OpAdd { template <typename T> static T f(T a, T b) { if constexpr (std::is_integral_v<T>) return T(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b)); else return a + b; } };
struct OpSub { template <typename T> static T f(T a, T b) { if constexpr (std::is_integral_v<T>) return T(std::make_unsigned_t<T>(a) - std::make_unsigned_t<T>(b)); else return a - b; } };
struct OpMul { template <typename T> static T f(T a, T b) { if constexpr (std::is_integral_v<T>) return T(uint64_t(a) * uint64_t(b)); else return a * b; } };
struct OpDiv { template <typename T> static T f(T a, T b) { if constexpr (std::is_integral_v<T>) return b ? T(a / b) : T(0); else return a / b; } };
struct OpMax { template <typename T> static T f(T a, T b) { return is_nan(a) ? b : is_nan(b) ? a : a > b ? a : b; } };
struct OpMin { template <typename T> static T f(T a, T b) { return is_nan(a) ? b : is_nan(b) ? a : a < b ? a : b; } };
struct OpAnd { template <typename T> static T f(T a, T b) { return T(a & b); } };
struct OpOr { template <typename T> static T f(T a, T b) { return T(a | b); } };
struct OpLeakyRelu { template <typename T> static T f(T a, T b) { return a >= T(0) ? a : is_nan(a) ? T(0) : T(a * b); } };
struct OpShiftLeft { template <typename T> static T f(T a, T b) { return b >= T(8 * sizeof(T)) ? T(0) : T(std::make_unsigned_t<T>(a) << b); } };
struct OpShiftRight { template <typename T> static T f(T a, T b) { return b >= T(8 * sizeof(T)) ? T(a < 0 ? -1 : 0) : T(a >> b); } };

// 2201's Rsqrt and Reciprocal are documented to be off by more than 1e-4 (float) and 1e-3 (half): Div is the exact way.
// The model is off by 2^-12 up or down (assumed), so that a kernel that needs more shows it.
inline float approximate(float exact) {
    if (!k2201 || !(std::fabs(exact) < 3e38f)) return exact;
    return exact * (bits_of(exact) & 4 ? 1 + 0x1p-12f : 1 - 0x1p-12f);
}

struct OpExp { static float f(float x) { return float(std::exp(double(x))); } };
struct OpLn { static float f(float x) { return float(std::log(double(x))); } };
struct OpSqrt { static float f(float x) { return std::sqrt(x); } };
struct OpRsqrt { static float f(float x) { return approximate(float(1 / std::sqrt(double(x)))); } };
struct OpReciprocal { static float f(float x) { return approximate(1 / x); } };
struct OpAbs { template <typename T> static T f(T x) { if constexpr (std::is_integral_v<T>) return x < 0 ? T(0 - x) : x; else return std::fabs(x); } };
struct OpRelu { template <typename T> static T f(T x) { return x > T(0) ? x : T(0); } };
struct OpNot { template <typename T> static T f(T x) { return T(~x); } };
struct OpNeg { template <typename T> static T f(T x) { return T(-x); } };
struct OpCopy { template <typename T> static T f(T x) { return x; } };

// The element that `count` counts: for And and Or of 32 bits on 2201 it is half of one, so the count must be doubled.
template <typename Op, typename T>
using CountedAs = std::conditional_t<k2201 && sizeof(T) == 4 && one_of<Op, OpAnd, OpOr>, uint16_t, T>;

template <typename Op, typename T>
void binary(const Instruction& i, const Lanes& lanes, const Lane (&o)[3], double factor) {
    constexpr bool accumulates = one_of<Op, OpAdd, OpSub, OpMul, OpMax, OpMin> && one_of<T, half, float, int32_t>;
    vector_access(i, lanes, o, 3, accumulates && lanes.count < 0);
    for_runs(lanes, sizeof(T), [&](int64_t r, int64_t lane, int64_t n) {
        auto d = (T*)(o[0].view->raw() + o[0].at(r, lane));
        auto a = (const T*)(o[1].view->raw() + o[1].at(r, lane));
        auto b = (const T*)(o[2].view->raw() + o[2].at(r, lane));
        if (lanes.count >= 0) { d = (T*)o[0].view->raw(); a = (const T*)o[1].view->raw(); b = (const T*)o[2].view->raw(); }
        for (int64_t k = 0; k < n; ++k) d[k] = T(Op::template f<Wide<T>>(Wide<T>(a[k]), Wide<T>(b[k])));
    });
    vector_end(i, lanes_total(lanes), sizeof(T), factor);
}

template <typename F, typename T>
void unary(const Instruction& i, const Lanes& lanes, const Lane (&o)[2], double factor, F f) {
    vector_access(i, lanes, o, 2);
    for_runs(lanes, sizeof(T), [&](int64_t r, int64_t lane, int64_t n) {
        bool flat = lanes.count >= 0;
        auto d = (T*)(o[0].view->raw() + (flat ? 0 : o[0].at(r, lane)));
        auto a = (const T*)(o[1].view->raw() + (flat ? 0 : o[1].at(r, lane)));
        for (int64_t k = 0; k < n; ++k) d[k] = T(f(Wide<T>(a[k])));
    });
    vector_end(i, lanes_total(lanes), sizeof(T), factor);
}

template <typename F> F unary_function(F f) { return f; }

}  // namespace aicore

namespace AscendC {

#define AICORE_WHERE aicore::Where where = {__builtin_LINE()}
// Level 2 (first list of 2201, both of 3510), level 0 (first list only).
#define AICORE_LEVEL2(Name, A, B, C) \
    static_assert(aicore::listed<T, aicore::A, aicore::B>() || (!aicore::k2201 && aicore::in<T>(aicore::C{})), \
                  #Name ": this element type is not supported on this arch");
#define AICORE_LEVEL0(Name, A, B) \
    static_assert(aicore::listed<T, aicore::A, aicore::B>(), #Name ": this element type is not supported at level 0 on this arch");
#define AICORE_MASKED \
    template <typename T, bool isSetMask = true, typename Mask, \
              std::enable_if_t<std::is_integral_v<Mask> || std::is_pointer_v<Mask>, int> = 0>

#define AICORE_BINARY(Name, Op, A, A0, B, C, factor)                                                                        \
    template <typename T>                                                                                                \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, int64_t count,          \
              AICORE_WHERE) {                                                                                            \
        AICORE_LEVEL2(Name, A, B, C)                                                                                     \
        using E = aicore::CountedAs<aicore::Op, T>;                                                                      \
        auto i = aicore::begin(aicore::V, #Name, where);                                                                 \
        const aicore::Lane o[3] = {{&dst, sizeof(E), 1, 8, "dst"}, {&src0, sizeof(E), 1, 8, "src0"},                     \
                                   {&src1, sizeof(E), 1, 8, "src1"}};                                                    \
        aicore::binary<aicore::Op, E>(i, aicore::lanes_count(i, count), o, factor);                                      \
    }                                                                                                                    \
    AICORE_MASKED                                                                                                        \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, Mask mask,              \
              int64_t repeatTime, const BinaryRepeatParams& p, AICORE_WHERE) {                                           \
        AICORE_LEVEL0(Name, A0, B)                                                                                       \
        auto i = aicore::begin(aicore::V, #Name, where);                                                                 \
        const aicore::Lane o[3] = {{&dst, sizeof(T), p.dstBlkStride, p.dstRepStride, "dst"},                             \
                                   {&src0, sizeof(T), p.src0BlkStride, p.src0RepStride, "src0"},                         \
                                   {&src1, sizeof(T), p.src1BlkStride, p.src1RepStride, "src1"}};                        \
        aicore::binary<aicore::Op, T>(i, aicore::lanes_mask(i, sizeof(T), mask, repeatTime, isSetMask), o, factor);      \
    }

#define AICORE_UNARY_FORMS(Name, A, B, C, factor, ScalarParameter, body)                                                \
    template <typename T>                                                                                                \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src ScalarParameter, int64_t count, AICORE_WHERE) {       \
        AICORE_LEVEL2(Name, A, B, C)                                                                                     \
        auto i = aicore::begin(aicore::V, #Name, where);                                                                 \
        const aicore::Lane o[2] = {{&dst, sizeof(T), 1, 8, "dst"}, {&src, sizeof(T), 1, 8, "src"}};                      \
        auto f = [&](aicore::Wide<T> x) { return body; };                                                                \
        aicore::unary<decltype(f), T>(i, aicore::lanes_count(i, count), o, factor, f);                                   \
    }                                                                                                                    \
    AICORE_MASKED                                                                                                        \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src ScalarParameter, Mask mask, int64_t repeatTime,       \
              const UnaryRepeatParams& p, AICORE_WHERE) {                                                                \
        AICORE_LEVEL0(Name, A, B)                                                                                        \
        auto i = aicore::begin(aicore::V, #Name, where);                                                                 \
        const aicore::Lane o[2] = {{&dst, sizeof(T), p.dstBlkStride, p.dstRepStride, "dst"},                             \
                                   {&src, sizeof(T), p.srcBlkStride, p.srcRepStride, "src"}};                            \
        auto f = [&](aicore::Wide<T> x) { return body; };                                                                \
        aicore::unary<decltype(f), T>(i, aicore::lanes_mask(i, sizeof(T), mask, repeatTime, isSetMask), o, factor, f);   \
    }

#define AICORE_NOTHING
#define AICORE_SCALAR , std::common_type_t<T> scalar
#define AICORE_UNARY(Name, Op, A, B, C, factor) AICORE_UNARY_FORMS(Name, A, B, C, factor, AICORE_NOTHING, aicore::Op::f(x))
#define AICORE_SCALAR_OP(Name, Op, A, B, C)              \
    AICORE_UNARY_FORMS(Name, A, B, C, 1, AICORE_SCALAR,  \
                       (aicore::Op::template f<aicore::Wide<T>>(x, aicore::Wide<T>(scalar))))

#include "vector_table.h"


}  // namespace AscendC

#endif
