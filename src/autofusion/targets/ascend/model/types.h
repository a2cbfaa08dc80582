// Element types and the names of the Ascend C vocabulary (positions, pipes, events, modes, parameter blocks).
//
// Modelled: `half` and `bfloat16_t` as storage types with correct rounding (to nearest even unless a RoundMode says
// otherwise). Arithmetic is done in float and rounded once, which is exact for + - * / of both formats.
// Assumed: `half` overflow gives infinity (the saturating mode of the control register is not modelled).
#ifndef AICORE_TYPES_H
#define AICORE_TYPES_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#ifndef __NPU_ARCH__
#define __NPU_ARCH__ 2201
#endif
static_assert(__NPU_ARCH__ == 2201 || __NPU_ARCH__ == 3510, "the AI Core model knows the arches 2201 and 3510");

#define __aicore__
#define __global__
#define __gm__
#define __ubuf__
#define __cbuf__
typedef uint8_t* GM_ADDR;

namespace aicore {

constexpr int kArch = __NPU_ARCH__;

template <typename T, typename... Us> constexpr bool one_of = (std::is_same_v<T, Us> || ...);

enum class Rounding : uint8_t { NearestEven, Floor, Ceil, NearestAway, Truncate, Odd };

inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

inline float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// `magnitude` without its low `drop` bits, rounded. The sign matters to Floor and Ceil only.
inline uint32_t drop_bits(uint32_t magnitude, int drop, bool negative, Rounding mode) {
    if (drop <= 0) return magnitude << -drop;
    if (drop > 31) { drop = 31; magnitude = magnitude ? 1 : 0; }  // far below half a unit
    uint32_t kept = magnitude >> drop, rest = magnitude & ((1u << drop) - 1), half = 1u << (drop - 1);
    switch (mode) {
        case Rounding::NearestEven: return kept + (rest > half || (rest == half && (kept & 1)));
        case Rounding::NearestAway: return kept + (rest >= half);
        case Rounding::Floor: return kept + (negative && rest);
        case Rounding::Ceil: return kept + (!negative && rest);
        case Rounding::Odd: return kept | (rest ? 1 : 0);
        case Rounding::Truncate: break;
    }
    return kept;
}

inline uint16_t half_bits(float value, Rounding mode = Rounding::NearestEven) {
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffu;
    bool negative = bits >> 31;
    uint16_t sign = negative ? 0x8000 : 0;
    if (magnitude > 0x7f800000u) return sign | 0x7e00;
    if (magnitude == 0x7f800000u) return sign | 0x7c00;
    int exponent = int(magnitude >> 23) - 127;
    uint32_t result;
    if (exponent >= -14) {
        result = drop_bits(magnitude - (112u << 23), 13, negative, mode);
    } else {  // subnormal: the hidden bit becomes explicit
        result = magnitude < 0x00800000u ? drop_bits(magnitude ? 1 : 0, 31, negative, mode)
                                         : drop_bits((magnitude & 0x7fffffu) | 0x800000u, -exponent - 1, negative, mode);
    }
    if (result >= 0x7c00) {
        bool infinite = mode == Rounding::NearestEven || mode == Rounding::NearestAway ||
                        (mode == Rounding::Floor && negative) || (mode == Rounding::Ceil && !negative);
        result = infinite ? 0x7c00 : 0x7bff;
    }
    return uint16_t(sign | result);
}

inline float half_value(uint16_t bits) {
    uint32_t sign = uint32_t(bits & 0x8000) << 16, exponent = (bits >> 10) & 31, mantissa = bits & 0x3ff;
    if (exponent == 31) return float_of(sign | 0x7f800000u | (mantissa << 13));
    if (exponent) return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
    float value = float(mantissa) * 5.9604644775390625e-08f;  // 2^-24
    return sign ? -value : value;
}

inline uint16_t bfloat_bits(float value, Rounding mode = Rounding::NearestEven) {
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffu;
    bool negative = bits >> 31;
    uint16_t sign = negative ? 0x8000 : 0;
    if (magnitude > 0x7f800000u) return sign | 0x7fc0;
    if (magnitude == 0x7f800000u) return sign | 0x7f80;
    uint32_t result = drop_bits(magnitude, 16, negative, mode);
    if (result == 0x7f80 && (mode == Rounding::Truncate || mode == Rounding::Odd)) result = 0x7f7f;
    return uint16_t(sign | result);
}

}  // namespace aicore

struct half {
    uint16_t bits;
    half() = default;
    half(float value) : bits(aicore::half_bits(value)) {}
    half(double value) : bits(aicore::half_bits(float(value))) {}
    template <typename I, std::enable_if_t<std::is_integral_v<I>, int> = 0> half(I value) : bits(aicore::half_bits(float(value))) {}
    operator float() const { return aicore::half_value(bits); }
};

struct bfloat16_t {
    uint16_t bits;
    bfloat16_t() = default;
    bfloat16_t(float value) : bits(aicore::bfloat_bits(value)) {}
    bfloat16_t(double value) : bits(aicore::bfloat_bits(float(value))) {}
    template <typename I, std::enable_if_t<std::is_integral_v<I>, int> = 0>
    bfloat16_t(I value) : bits(aicore::bfloat_bits(float(value))) {}
    operator float() const { return aicore::float_of(uint32_t(bits) << 16); }
};
static_assert(sizeof(half) == 2 && sizeof(bfloat16_t) == 2, "storage types");

// Pipes carry the names of the hardware's queues.
enum pipe_t { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_FIX, PIPE_ALL };
enum event_t { EVENT_ID0, EVENT_ID1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5, EVENT_ID6, EVENT_ID7 };
enum class QuantMode_t { NoQuant, F322F16, F322BF16, DEQF16 };
constexpr QuantMode_t NoQuant = QuantMode_t::NoQuant, F322F16 = QuantMode_t::F322F16, F322BF16 = QuantMode_t::F322BF16,
                      DEQF16 = QuantMode_t::DEQF16;

enum KernelMetaType {
    KERNEL_TYPE_AIV_ONLY, KERNEL_TYPE_AIC_ONLY, KERNEL_TYPE_MIX_AIV_1_0,
    KERNEL_TYPE_MIX_AIC_1_0, KERNEL_TYPE_MIX_AIC_1_1, KERNEL_TYPE_MIX_AIC_1_2
};

namespace AscendC {

using TEventID = int8_t;

enum class TPosition : uint8_t { GM, A1, A2, B1, B2, C1, C2, CO1, CO2, VECIN, VECOUT, VECCALC };
using QuePosition = TPosition;

enum class RoundMode { CAST_NONE, CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC, CAST_ODD };
enum class CMPMODE { LT, GT, EQ, LE, GE, NE };
enum class SELMODE { VSEL_CMPMASK_SPR, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };
enum class ReduceOrder { ORDER_VALUE_INDEX, ORDER_INDEX_VALUE, ORDER_ONLY_VALUE, ORDER_ONLY_INDEX };
enum class MaskMode : uint8_t { NORMAL, COUNTER };
enum class CacheLine : uint64_t { SINGLE_CACHE_LINE, ENTIRE_DATA_CACHE };
enum class DcciDst : uint64_t { CACHELINE_ALL, CACHELINE_UB, CACHELINE_OUT, CACHELINE_ATOMIC };

// Source pipe _ destination pipe.
#define AICORE_EVENTS(X) \
    X(MTE2, MTE1) X(MTE1, MTE2) X(MTE1, M) X(M, MTE1) X(MTE2, V) X(V, MTE2) X(MTE3, V) X(V, MTE3) X(M, V) X(V, M) \
    X(V, V) X(MTE3, MTE1) X(MTE1, MTE3) X(MTE1, V) X(MTE2, M) X(M, MTE2) X(V, MTE1) X(M, FIX) X(FIX, M) \
    X(MTE3, MTE2) X(MTE2, MTE3) X(S, V) X(V, S) X(S, MTE2) X(MTE2, S) X(S, MTE3) X(MTE3, S) X(MTE2, FIX) \
    X(FIX, MTE2) X(FIX, S) X(M, S) X(FIX, MTE3) X(MTE1, FIX) X(FIX, MTE1) X(FIX, FIX) X(FIX, V) X(S, FIX) X(S, M) \
    X(S, MTE1) X(MTE1, S)
#define AICORE_EVENT(a, b) a##_##b,
enum class HardEvent : uint8_t { AICORE_EVENTS(AICORE_EVENT) MAX };
#undef AICORE_EVENT

// The parameter blocks take their fields wide, so that a value out of range is seen, not cut off. Each can be written
// T{...} and T(...).
struct UnaryRepeatParams {
    int64_t dstBlkStride = 1, srcBlkStride = 1, dstRepStride = 8, srcRepStride = 8;
    UnaryRepeatParams() = default;
    UnaryRepeatParams(int64_t a, int64_t b, int64_t c, int64_t d)
        : dstBlkStride(a), srcBlkStride(b), dstRepStride(c), srcRepStride(d) {}
};
struct BinaryRepeatParams {
    int64_t dstBlkStride = 1, src0BlkStride = 1, src1BlkStride = 1, dstRepStride = 8, src0RepStride = 8,
            src1RepStride = 8;
    BinaryRepeatParams() = default;
    BinaryRepeatParams(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e, int64_t f)
        : dstBlkStride(a), src0BlkStride(b), src1BlkStride(c), dstRepStride(d), src0RepStride(e),
          src1RepStride(f) {}
};
struct BrcbRepeatParams {
    int64_t dstBlkStride = 1, dstRepStride = 8;
    BrcbRepeatParams() = default;
    BrcbRepeatParams(int64_t a, int64_t b)
        : dstBlkStride(a), dstRepStride(b) {}
};
struct CopyRepeatParams {
    int64_t dstStride = 1, srcStride = 1, dstRepeatSize = 8, srcRepeatSize = 8;
    CopyRepeatParams() = default;
    CopyRepeatParams(int64_t a, int64_t b, int64_t c, int64_t d)
        : dstStride(a), srcStride(b), dstRepeatSize(c), srcRepeatSize(d) {}
};
struct GatherRepeatParams {
    int64_t dstBlkStride = 1, dstRepStride = 8;
    GatherRepeatParams() = default;
    GatherRepeatParams(int64_t a, int64_t b)
        : dstBlkStride(a), dstRepStride(b) {}
};
struct GatherMaskParams {
    int64_t src0BlockStride = 1, repeatTimes = 0, src0RepeatStride = 8, src1RepeatStride = 0;
    GatherMaskParams() = default;
    GatherMaskParams(int64_t a, int64_t b, int64_t c, int64_t d)
        : src0BlockStride(a), repeatTimes(b), src0RepeatStride(c), src1RepeatStride(d) {}
};
struct DataCopyExtParams {
    int64_t blockCount = 1, blockLen = 0, srcStride = 0, dstStride = 0, rsv = 0;
    DataCopyExtParams() = default;
    DataCopyExtParams(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e)
        : blockCount(a), blockLen(b), srcStride(c), dstStride(d), rsv(e) {}
};
struct Nd2NzParams {
    int64_t ndNum = 0, nValue = 0, dValue = 0, srcNdMatrixStride = 0, srcDValue = 0, dstNzC0Stride = 0,
            dstNzNStride = 0, dstNzMatrixStride = 0;
    Nd2NzParams() = default;
    Nd2NzParams(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e, int64_t f, int64_t g, int64_t h)
        : ndNum(a), nValue(b), dValue(c), srcNdMatrixStride(d), srcDValue(e), dstNzC0Stride(f),
          dstNzNStride(g), dstNzMatrixStride(h) {}
};
struct DataCopyParams {  // blockLen and gaps in blocks of 32 bytes (in DataCopyPad: blockLen and GM strides in bytes)
    int64_t blockCount = 1, blockLen = 0;
    union { int64_t srcGap = 0; int64_t srcStride; };
    union { int64_t dstGap = 0; int64_t dstStride; };
    DataCopyParams() = default;
    DataCopyParams(int64_t count, int64_t length, int64_t source, int64_t destination)
        : blockCount(count), blockLen(length), srcGap(source), dstGap(destination) {}
};
struct DataCopyPadParams {
    bool isPad = false;
    int64_t leftPadding = 0, rightPadding = 0;
    uint64_t paddingValue = 0;
    DataCopyPadParams() = default;
    DataCopyPadParams(bool pad, int64_t left, int64_t right, uint64_t value)
        : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
};
template <typename T> struct DataCopyPadExtParams {
    bool isPad = false;
    int64_t leftPadding = 0, rightPadding = 0;
    T paddingValue = T(0);
    DataCopyPadExtParams() = default;
    DataCopyPadExtParams(bool pad, int64_t left, int64_t right, T value)
        : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
};
struct LoadData2DParams {
    int64_t startIndex = 0, repeatTimes = 0, srcStride = 0, sid = 0, dstGap = 0;
    bool ifTranspose = false;
    int64_t addrMode = 0;
};
struct LoadData2dTransposeParams {
    int64_t startIndex = 0, repeatTimes = 0, srcStride = 0, dstGap = 0, dstFracGap = 0, addrMode = 0;
};
struct MmadParams {
    int64_t m = 0, n = 0, k = 0, unitFlag = 0;
    bool cmatrixSource = false, cmatrixInitVal = true, kDirectionAlign = false;
#if __NPU_ARCH__ == 3510
    bool disableGemv = false;
#endif
};
struct FixpipeParamsV220 {
    int64_t nSize = 0, mSize = 0, srcStride = 0, dstStride = 0;
    QuantMode_t quantPre = NoQuant;
    uint64_t deqScalar = 0;
    int64_t ndNum = 1, srcNdStride = 0, dstNdStride = 0;
    bool reluEn = false;
    int64_t unitFlag = 0;
    bool isChannelSplit = false;
};

enum class CO2Layout : uint8_t { NZ, ROW_MAJOR };
struct FixpipeConfig { CO2Layout format; bool isToUB = false; };
constexpr FixpipeConfig CFG_NZ = {CO2Layout::NZ};
constexpr FixpipeConfig CFG_ROW_MAJOR = {CO2Layout::ROW_MAJOR};
#if __NPU_ARCH__ == 3510
struct Nz2NdParams { int64_t ndNum = 1, srcNdStride = 0, dstNdStride = 0; };
template <CO2Layout format> struct FixpipeParamsArch3510 {
    int64_t nSize = 0, mSize = 0, srcStride = 0, dstStride = 0;
    QuantMode_t quantPre = NoQuant;
    uint64_t deqScalar = 0;
    bool reluEn = false;
    int64_t unitFlag = 0;
    std::conditional_t<format == CO2Layout::ROW_MAJOR, Nz2NdParams, uint8_t> params{};
    int64_t dualDstCtrl = 0;
    int64_t subBlockId = 0;
    bool isChannelSplit = false;
};
#endif

}  // namespace AscendC

#endif
