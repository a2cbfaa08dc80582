// Vector instructions that are not plain element-wise: shifts, Axpy, Duplicate, CreateVecIndex, Cast, Copy, the mask
// register.
//
// Modelled: each Cast pair with the RoundModes that the documentation lists for it (rule 3 otherwise); float to integer
// saturates, a NaN becomes 0; int32 -> half multiplies by SetDeqScale's value.
// Assumed: Axpy rounds once (multiply and add fused); integer narrowing keeps the low bits.
#ifndef AICORE_VECTOR_MORE_H
#define AICORE_VECTOR_MORE_H

#include "vector.h"

namespace aicore {

constexpr int kModeNone = 1, kModeRound = 2, kModeOdd = 4;  // NONE; RINT, FLOOR, CEIL, ROUND and TRUNC; ODD

// The RoundModes that a pair takes; 0: no such pair.
template <typename To, typename From> constexpr int cast_modes() {
    using std::is_same_v;
    constexpr bool h = is_same_v<From, half>, f = is_same_v<From, float>, b = is_same_v<From, bfloat16_t>;
    if (one_of<From, int8_t, uint8_t> && is_same_v<To, half>) return kModeNone;
    if (is_same_v<From, int16_t> && is_same_v<To, half>) return k2201 ? kModeNone | kModeRound : kModeRound;
    if (is_same_v<From, int16_t> && is_same_v<To, float>) return kModeNone;
    if (h && one_of<To, int8_t, uint8_t>) return k2201 ? kModeNone | kModeRound : kModeRound;
    if (h && is_same_v<To, int16_t>) return kModeRound;
    if (h && is_same_v<To, int32_t>) return kModeNone | kModeRound;  // NONE: by the documentation's example
    if (h && is_same_v<To, float>) return kModeNone;
    if (b && is_same_v<To, float>) return kModeNone;
    if (b && is_same_v<To, int32_t>) return kModeRound;
    if (is_same_v<From, int32_t> && one_of<To, int16_t, int64_t>) return kModeNone;
    if (is_same_v<From, int32_t> && is_same_v<To, half>) return kModeNone | kModeRound | kModeOdd;  // not looked at
    if (is_same_v<From, int32_t> && is_same_v<To, float>) return k2201 ? kModeNone | kModeRound : kModeRound;
    if (f && is_same_v<To, half>) return kModeNone | kModeRound | kModeOdd;
    if (f && one_of<To, int16_t, bfloat16_t, int32_t, float, int64_t>) return kModeRound;
    if (is_same_v<From, int64_t> && is_same_v<To, int32_t>) return kModeNone;
    if (is_same_v<From, int64_t> && is_same_v<To, float>) return kModeRound;
    if (!k2201) {
        if (is_same_v<From, int8_t> && one_of<To, int16_t, int32_t>) return kModeNone;
        if (is_same_v<From, uint8_t> && one_of<To, uint16_t, uint32_t>) return kModeNone;
        if (is_same_v<From, int16_t> && one_of<To, uint8_t, int32_t, uint32_t>) return kModeNone;
        if (is_same_v<From, uint16_t> && one_of<To, uint8_t, uint32_t>) return kModeNone;
        if (is_same_v<From, int32_t> && one_of<To, uint8_t, uint16_t>) return kModeNone;
        if (is_same_v<From, uint32_t> && one_of<To, uint8_t, int16_t, uint16_t>) return kModeNone;
        if ((h && is_same_v<To, bfloat16_t>) || (b && is_same_v<To, half>)) return kModeRound;
    }
    return 0;
}

inline Rounding rounding_of(AscendC::RoundMode mode) {
    switch (mode) {
        case AscendC::RoundMode::CAST_FLOOR: return Rounding::Floor;
        case AscendC::RoundMode::CAST_CEIL: return Rounding::Ceil;
        case AscendC::RoundMode::CAST_ROUND: return Rounding::NearestAway;
        case AscendC::RoundMode::CAST_TRUNC: return Rounding::Truncate;
        case AscendC::RoundMode::CAST_ODD: return Rounding::Odd;
        default: return Rounding::NearestEven;
    }
}

void read_lanes(const Instruction& i, const Lanes& lanes, const Lane& src);
double round_to_integer(double value, Rounding mode);
float integer_to_float(int64_t value, Rounding mode);  // rounded once
void check_round_mode(const Instruction& i, int allowed, AscendC::RoundMode mode);

template <typename To, typename From> To cast_value(From value, Rounding mode, float scale) {
    if constexpr (std::is_integral_v<From>) {
        if constexpr (std::is_same_v<From, int32_t> && std::is_same_v<To, half>) {
            half result;
            result.bits = half_bits(float(double(value) * double(scale)), Rounding::NearestEven);
            return result;
        } else if constexpr (std::is_same_v<To, half>) {
            half result;
            result.bits = half_bits(float(value), mode);  // 16 bits or fewer: exact in float
            return result;
        } else if constexpr (std::is_same_v<To, float>) {
            return integer_to_float(int64_t(value), mode);
        } else {
            return To(value);
        }
    } else {
        float x = float(value);
        if constexpr (std::is_same_v<To, half>) {
            half result;
            result.bits = half_bits(x, mode);
            return result;
        } else if constexpr (std::is_same_v<To, bfloat16_t>) {
            bfloat16_t result;
            result.bits = bfloat_bits(x, mode);
            return result;
        } else if constexpr (std::is_same_v<To, float>) {
            return std::is_same_v<From, float> ? float(round_to_integer(double(x), mode)) : x;
        } else {
            if (x != x) return To(0);
            double rounded = round_to_integer(double(x), mode);
            constexpr double low = double(std::numeric_limits<To>::min()), high = double(std::numeric_limits<To>::max());
            if (rounded <= low) return std::numeric_limits<To>::min();
            if (rounded >= high) return std::numeric_limits<To>::max();
            return To(rounded);
        }
    }
}

template <typename To, typename From, typename F>
void convert(const Instruction& i, const Lanes& lanes, const Lane (&o)[2], double factor, F f) {
    vector_access(i, lanes, o, 2);
    constexpr int widest = sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From);
    for_runs(lanes, widest, [&](int64_t r, int64_t lane, int64_t n) {
        bool flat = lanes.count >= 0;
        auto d = (To*)(o[0].view->raw() + (flat ? 0 : o[0].at(r, lane)));
        auto a = (const From*)(o[1].view->raw() + (flat ? 0 : o[1].at(r, lane)));
        for (int64_t k = 0; k < n; ++k) d[k] = f(a[k], d[k]);
    });
    vector_end(i, lanes_total(lanes), widest, factor);
}

}  // namespace aicore

namespace AscendC {

constexpr uint64_t MASK_PLACEHOLDER = 0;

inline float ToFloat(const bfloat16_t& value) { return float(value); }
inline bfloat16_t ToBfloat16(const float& value) { return bfloat16_t(value); }

template <typename To, typename From>
void Cast(const LocalTensor<To>& dst, const LocalTensor<From>& src, const RoundMode& mode, int64_t count, AICORE_WHERE) {
    static_assert(aicore::cast_modes<To, From>() != 0, "Cast: no such pair on this arch");
    auto i = aicore::begin(aicore::V, "Cast", where);
    aicore::check_round_mode(i, aicore::cast_modes<To, From>(), mode);
    const aicore::Lane o[2] = {{&dst, sizeof(To), 1, 8, "dst"}, {&src, sizeof(From), 1, 8, "src"}};
    auto rounding = aicore::rounding_of(mode);
    float scale = i.core->deq_scale;
    if (std::is_same_v<From, int32_t> && std::is_same_v<To, half> && !i.core->deq_scale_set)
        aicore::fail(3, "Cast", where.line, "int32 -> half", "needs SetDeqScale before it");
    aicore::convert<To, From>(i, aicore::lanes_count(i, count), o, 1,
                              [=](From x, To) { return aicore::cast_value<To, From>(x, rounding, scale); });
}

template <typename To, typename From, bool isSetMask = true, typename Mask,
          std::enable_if_t<std::is_integral_v<Mask> || std::is_pointer_v<Mask>, int> = 0>
void Cast(const LocalTensor<To>& dst, const LocalTensor<From>& src, const RoundMode& mode, Mask mask, int64_t repeatTime,
          const UnaryRepeatParams& p, AICORE_WHERE) {
    static_assert(aicore::cast_modes<To, From>() != 0, "Cast: no such pair on this arch");
    auto i = aicore::begin(aicore::V, "Cast", where);
    aicore::check_round_mode(i, aicore::cast_modes<To, From>(), mode);
    constexpr int widest = sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From);
    const aicore::Lane o[2] = {{&dst, sizeof(To), p.dstBlkStride, p.dstRepStride, "dst"},
                               {&src, sizeof(From), p.srcBlkStride, p.srcRepStride, "src"}};
    auto rounding = aicore::rounding_of(mode);
    float scale = i.core->deq_scale;
    if (std::is_same_v<From, int32_t> && std::is_same_v<To, half> && !i.core->deq_scale_set)
        aicore::fail(3, "Cast", where.line, "int32 -> half", "needs SetDeqScale before it");
    aicore::convert<To, From>(i, aicore::lanes_mask(i, widest, mask, repeatTime, isSetMask), o, 1,
                              [=](From x, To) { return aicore::cast_value<To, From>(x, rounding, scale); });
}

inline void SetDeqScale(half scale, AICORE_WHERE) {
    aicore::need_core("SetDeqScale", where.line);
    aicore::core().deq_scale = float(scale);
    aicore::core().deq_scale_set = true;
}

// dst += scalar * src
#define AICORE_AXPY_TYPE                                                                                                            \
    static_assert((std::is_same_v<T, U> && aicore::one_of<T, half, float>) || (std::is_same_v<T, float> && std::is_same_v<U, half>), \
                  "Axpy: half, float, or half into float");
template <typename T, typename U, bool isSetMask = true, typename Mask>
void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const std::common_type_t<U>& scalar, Mask mask, int64_t repeatTime,
          const UnaryRepeatParams& p, AICORE_WHERE) {
    AICORE_AXPY_TYPE
    auto i = aicore::begin(aicore::V, "Axpy", where);
    const aicore::Lane o[2] = {{&dst, sizeof(T), p.dstBlkStride, p.dstRepStride, "dst"},
                               {&src, sizeof(U), p.srcBlkStride, p.srcRepStride, "src"}};
    auto lanes = aicore::lanes_mask(i, sizeof(T), mask, repeatTime, isSetMask);
    aicore::read_lanes(i, lanes, o[0]);
    aicore::convert<T, U>(i, lanes, o, 1, [=](U x, T old) { return T(float(double(scalar) * double(x) + double(old))); });
}
template <typename T, typename U>
void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const std::common_type_t<U>& scalar, int64_t count, AICORE_WHERE) {
    AICORE_AXPY_TYPE
    auto i = aicore::begin(aicore::V, "Axpy", where);
    const aicore::Lane o[2] = {{&dst, sizeof(T), 1, 8, "dst"}, {&src, sizeof(U), 1, 8, "src"}};
    auto lanes = aicore::lanes_count(i, count);
    aicore::read_local(i, dst, 0, lanes.count * int64_t(sizeof(T)), "dst");
    aicore::convert<T, U>(i, lanes, o, 1, [=](U x, T old) { return T(float(double(scalar) * double(x) + double(old))); });
}

#define AICORE_SHIFT(Name)                                                                                                       \
    template <typename T, std::enable_if_t<std::is_integral_v<T>, int> = 0>                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, std::common_type_t<T> scalar, int64_t count, AICORE_WHERE) { \
        AICORE_LEVEL2(Name, Int16And32, Int16And32, Int8And64)                                                                   \
        auto i = aicore::begin(aicore::V, #Name, where);                                                                         \
        aicore::check_range(i, "scalarValue", int64_t(scalar), 0, 8 * int64_t(sizeof(T)));                                       \
        const aicore::Lane o[2] = {{&dst, sizeof(T), 1, 8, "dst"}, {&src, sizeof(T), 1, 8, "src"}};                              \
        aicore::convert<T, T>(i, aicore::lanes_count(i, count), o, 1, [=](T x, T) { return aicore::Op##Name::f<T>(x, scalar); }); \
    }                                                                                                                            \
    AICORE_MASKED                                                                                                                \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, std::common_type_t<T> scalar, Mask mask, int64_t repeatTime, \
              const UnaryRepeatParams& p, AICORE_WHERE) {                                                                        \
        AICORE_LEVEL0(Name, Int16And32, Int16And32)                                                                              \
        auto i = aicore::begin(aicore::V, #Name, where);                                                                         \
        aicore::check_range(i, "scalarValue", int64_t(scalar), 0, 8 * int64_t(sizeof(T)));                                       \
        const aicore::Lane o[2] = {{&dst, sizeof(T), p.dstBlkStride, p.dstRepStride, "dst"},                                     \
                                   {&src, sizeof(T), p.srcBlkStride, p.srcRepStride, "src"}};                                    \
        aicore::convert<T, T>(i, aicore::lanes_mask(i, sizeof(T), mask, repeatTime, isSetMask), o, 1,                            \
                              [=](T x, T) { return aicore::Op##Name::f<T>(x, scalar); });                                        \
    }
AICORE_SHIFT(ShiftLeft)
AICORE_SHIFT(ShiftRight)

template <typename T> void Duplicate(const LocalTensor<T>& dst, const std::common_type_t<T>& scalar, int64_t count, AICORE_WHERE) {
    AICORE_LEVEL2(Duplicate, Any16And32, Any16And32, Int8And64)
    auto i = aicore::begin(aicore::V, "Duplicate", where);
    auto lanes = aicore::lanes_count(i, count);
    const aicore::Lane o[1] = {{&dst, sizeof(T), 1, 8, "dst"}};
    aicore::vector_access(i, lanes, o, 1);
    for (int64_t k = 0; k < lanes.count; ++k) dst.data()[k] = scalar;
    aicore::vector_end(i, lanes.count, sizeof(T));
}
AICORE_MASKED
void Duplicate(const LocalTensor<T>& dst, const std::common_type_t<T>& scalar, Mask mask, int64_t repeatTime, int64_t dstBlockStride,
               int64_t dstRepeatStride, AICORE_WHERE) {
    AICORE_LEVEL0(Duplicate, Any16And32, Any16And32)
    auto i = aicore::begin(aicore::V, "Duplicate", where);
    auto lanes = aicore::lanes_mask(i, sizeof(T), mask, repeatTime, isSetMask);
    const aicore::Lane o[1] = {{&dst, sizeof(T), dstBlockStride, dstRepeatStride, "dst"}};
    aicore::vector_access(i, lanes, o, 1);
    aicore::for_runs(lanes, sizeof(T), [&](int64_t r, int64_t lane, int64_t n) {
        auto d = (T*)(dst.raw() + o[0].at(r, lane));
        for (int64_t k = 0; k < n; ++k) d[k] = scalar;
    });
    aicore::vector_end(i, aicore::lanes_total(lanes), sizeof(T));
}

template <typename T> void CreateVecIndex(LocalTensor<T> dst, const std::common_type_t<T>& first, uint32_t count, AICORE_WHERE) {
    static_assert(aicore::one_of<T, half, float, int16_t, int32_t>, "CreateVecIndex: half, float, int16, int32");
    auto i = aicore::begin(aicore::V, "CreateVecIndex", where);
    auto lanes = aicore::lanes_count(i, count);
    const aicore::Lane o[1] = {{&dst, sizeof(T), 1, 8, "dst"}};
    aicore::vector_access(i, lanes, o, 1);
    for (int64_t k = 0; k < lanes.count; ++k) dst.data()[k] = T(aicore::Wide<T>(first) + aicore::Wide<T>(k));
    aicore::vector_end(i, lanes.count, sizeof(T));
}

AICORE_MASKED
void CreateVecIndex(LocalTensor<T>& dst, const std::common_type_t<T>& first, Mask mask, int64_t repeatTime, int64_t dstBlkStride,
                    int64_t dstRepStride, AICORE_WHERE) {
    static_assert(aicore::one_of<T, half, float, int16_t, int32_t>, "CreateVecIndex: half, float, int16, int32");
    auto i = aicore::begin(aicore::V, "CreateVecIndex", where);
    auto lanes = aicore::lanes_mask(i, sizeof(T), mask, repeatTime, isSetMask);
    const aicore::Lane o[1] = {{&dst, sizeof(T), dstBlkStride, dstRepStride, "dst"}};
    aicore::vector_access(i, lanes, o, 1);
    aicore::for_runs(lanes, sizeof(T), [&](int64_t r, int64_t lane, int64_t n) {
        auto d = (T*)(dst.raw() + o[0].at(r, lane));
        for (int64_t k = 0; k < n; ++k) d[k] = T(aicore::Wide<T>(first) + aicore::Wide<T>(r * lanes.per_repeat + lane + k));
    });
    aicore::vector_end(i, aicore::lanes_total(lanes), sizeof(T));
}

AICORE_MASKED
void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, Mask mask, int64_t repeatTime, const CopyRepeatParams& p, AICORE_WHERE) {
    AICORE_LEVEL0(Copy, Any16And32, Any16And32)
    auto i = aicore::begin(aicore::V, "Copy", where);
    const aicore::Lane o[2] = {{&dst, sizeof(T), p.dstStride, p.dstRepeatSize, "dst"},
                               {&src, sizeof(T), p.srcStride, p.srcRepeatSize, "src"}};
    auto lanes = aicore::lanes_mask(i, sizeof(T), mask, repeatTime, isSetMask);
    aicore::convert<T, T>(i, lanes, o, 1, [](T x, T) { return x; });
    aicore::count_moved(aicore::Space::UB, aicore::Space::UB, aicore::lanes_total(lanes) * int64_t(sizeof(T)));
}

// The mask register.
inline void SetMaskCount(AICORE_WHERE) { aicore::need_core("SetMaskCount", where.line); aicore::core().mask_counts = true; }
inline void SetMaskNorm(AICORE_WHERE) { aicore::need_core("SetMaskNorm", where.line); aicore::core().mask_counts = false; }
template <typename T, MaskMode mode = MaskMode::NORMAL> void SetVectorMask(uint64_t high, uint64_t low, AICORE_WHERE) {
    aicore::need_core("SetVectorMask", where.line);
    aicore::core().mask[0] = low;
    aicore::core().mask[1] = high;
}
template <typename T, MaskMode mode = MaskMode::NORMAL> void SetVectorMask(int64_t lanes, AICORE_WHERE) {
    aicore::need_core("SetVectorMask", where.line);
    uint64_t* mask = aicore::core().mask;
    if (mode == MaskMode::COUNTER) { mask[0] = uint64_t(lanes); mask[1] = 0; return; }
    if (lanes < 0 || lanes > 128)
        aicore::fail(4, "SetVectorMask", where.line, "mask", "%lld lanes, a repeat has 128 at most", (long long)lanes);
    mask[0] = lanes >= 64 ? ~0ull : (1ull << lanes) - 1;
    mask[1] = lanes <= 64 ? 0 : lanes == 128 ? ~0ull : (1ull << (lanes - 64)) - 1;
}
inline void ResetMask(AICORE_WHERE) {
    aicore::need_core("ResetMask", where.line);
    aicore::core().mask[0] = aicore::core().mask[1] = ~0ull;
}

}  // namespace AscendC

#endif
