// Compare and Select, gathers, broadcasts of a lane, transposition.
//
// Modelled: one bit per lane, low bit first. Compare by count takes whole 256 bytes (rule 2; on the chip the rest is
// not compared). Select's three modes. Offsets of Gather and Gatherb are bytes from the start of src.
// Assumed: every comparison with a NaN is false, NE too (undocumented; EQ is the way to find one).
#ifndef AICORE_VECTOR_SELECT_H
#define AICORE_VECTOR_SELECT_H

#include "vector_reduce.h"

namespace aicore {

template <typename T> bool compares(T a, T b, AscendC::CMPMODE mode) {
    if (is_nan(a) || is_nan(b)) return false;
    switch (mode) {
        case AscendC::CMPMODE::LT: return a < b;
        case AscendC::CMPMODE::GT: return a > b;
        case AscendC::CMPMODE::EQ: return a == b;
        case AscendC::CMPMODE::LE: return a <= b;
        case AscendC::CMPMODE::GE: return a >= b;
        default: return a != b;
    }
}

template <typename T> constexpr bool comparable() {
    return k2201 ? one_of<T, half, float, int32_t> : in<T>(Any16And32{}) || in<T>(Int8And64{});
}

template <typename T> void check_mode(const Instruction& i, AscendC::CMPMODE mode) {
    if (k2201 && std::is_same_v<T, int32_t> && mode != AscendC::CMPMODE::EQ)
        fail(3, i.api, i.line, "cmpMode", "int32 takes CMPMODE::EQ only");
}

// `n` lanes at the sources' ends; results go to consecutive bits of dst from bit `first`.
template <typename T, typename F> void put_bits(uint8_t* bits, int64_t first, int64_t n, F f) {
    for (int64_t k = 0; k < n; ++k) {
        uint8_t bit = uint8_t(1u << ((first + k) % 8));
        uint8_t& byte = bits[(first + k) / 8];
        byte = f(k) ? byte | bit : byte & uint8_t(~bit);
    }
}

template <typename T>
void compare_flat(const Instruction& i, const View& dst, const AscendC::LocalTensor<T>& a, const AscendC::LocalTensor<T>* b, T scalar,
                  AscendC::CMPMODE mode, int64_t count) {
    check_mode<T>(i, mode);
    Lanes lanes = lanes_count(i, count);
    if (count * int64_t(sizeof(T)) % 256)
        fail(2, i.api, i.line, "count", "%lld elements are %lld bytes, a multiple of 256 is needed", (long long)count,
             (long long)(count * int64_t(sizeof(T))));
    const View* sources[2] = {&a, b};
    for (int s = 0; s < (b ? 2 : 1); ++s) {
        check_space(i, *sources[s], Space::UB, "src");
        check_align(i, *sources[s], 0, 32, "src");
        read_local(i, *sources[s], 0, count * int64_t(sizeof(T)), "src");
        check_disjoint(i, dst, count / 8, *sources[s], count * int64_t(sizeof(T)));
    }
    check_space(i, dst, Space::UB, "dst");
    check_align(i, dst, 0, 32, "dst");
    write_local(i, dst, 0, count / 8, "dst");
    put_bits<T>(dst.raw(), 0, count, [&](int64_t k) {
        return compares(Wide<T>(a.data()[k]), Wide<T>(b ? b->data()[k] : scalar), mode);
    });
    vector_end(i, count, sizeof(T));
}

// Level 0: bits of all repeats follow one another. 2201 does not look at the mask (documentation).
template <typename T>
void compare_repeats(const Instruction& i, const View& dst, const Lane& a, const Lane* b, T scalar, AscendC::CMPMODE mode, Lanes lanes) {
    check_mode<T>(i, mode);
    if (k2201 && !lanes.tail) { lanes.mask[0] = ~0ull; lanes.mask[1] = lanes.per_repeat > 64 ? ~0ull : 0; }
    check_space(i, dst, Space::UB, "dst");
    check_align(i, dst, 0, 32, "dst");
    check_align(i, *a.view, 0, 32, "src0");
    read_lanes(i, lanes, a);
    if (b) { check_align(i, *b->view, 0, 32, "src1"); read_lanes(i, lanes, *b); }
    int64_t bytes = lanes.repeat * lanes.per_repeat / 8;
    write_local(i, dst, 0, bytes, "dst");
    for (int64_t r = 0; r < lanes.repeat; ++r)
        put_bits<T>(dst.raw(), r * lanes.per_repeat, lanes.per_repeat, [&](int64_t k) {
            if (!(lanes.word(r, int(k / 64)) >> (k % 64) & 1)) return false;
            T x = *(const T*)(a.view->raw() + a.at(r, k)), y = b ? *(const T*)(b->view->raw() + b->at(r, k)) : scalar;
            return compares(Wide<T>(x), Wide<T>(y), mode);
        });
    vector_end(i, lanes.repeat * lanes.per_repeat, sizeof(T));
}

inline bool bit_at(const View& mask, int64_t bit) { return mask.raw()[bit / 8] >> (bit % 8) & 1; }

template <typename T>
void select_lanes(const Instruction& i, const View& mask, const Lanes& lanes, const Lane (&o)[3], int sources, T scalar,
                  AscendC::SELMODE mode) {
    bool fixed = mode == AscendC::SELMODE::VSEL_CMPMASK_SPR;
    if ((mode == AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE) != (sources == 1))
        fail(4, i.api, i.line, "selMode", "the mode does not fit the operands: mode 1 takes a scalar, modes 0 and 2 two tensors");
    constexpr int64_t per_repeat = 256 / sizeof(T);
    int64_t bits = fixed ? per_repeat : lanes.count >= 0 ? lanes.count : lanes.repeat * per_repeat;
    check_space(i, mask, Space::UB, "selMask");
    check_align(i, mask, 0, 32, "selMask");
    read_local(i, mask, 0, (bits + 7) / 8, "selMask");
    vector_access(i, lanes, o, sources + 1);
    for_runs(lanes, sizeof(T), [&](int64_t r, int64_t lane, int64_t n) {
        bool flat = lanes.count >= 0;
        auto d = (T*)(o[0].view->raw() + (flat ? 0 : o[0].at(r, lane)));
        auto a = (const T*)(o[1].view->raw() + (flat ? 0 : o[1].at(r, lane)));
        auto b = sources == 2 ? (const T*)(o[2].view->raw() + (flat ? 0 : o[2].at(r, lane))) : nullptr;
        for (int64_t k = 0; k < n; ++k) {
            int64_t bit = fixed ? (lane + k) % per_repeat : r * per_repeat + lane + k;
            d[k] = bit_at(mask, bit) ? a[k] : b ? b[k] : scalar;
        }
    });
    vector_end(i, lanes_total(lanes), sizeof(T));
}

template <typename T> constexpr bool selectable() {
    return k2201 ? one_of<T, half, float> : in<T>(Any16And32{}) || in<T>(Int8And64{});
}

void gather_elements(const Instruction& i, const View& dst, const View& src, const View& offsets, int64_t base, const Lanes& lanes,
                     int64_t repeat_stride, int size);
void gather_blocks(const Instruction& i, const View& dst, const View& src, const View& offsets, int64_t repeat, int64_t block_stride,
                   int64_t repeat_stride, int size);
uint64_t gather_mask(const Instruction& i, const View& dst, const View& src, const View* pattern, int fixed, bool counter, int64_t mask,
                     const AscendC::GatherMaskParams& p, int size);
void broadcast_blocks(const Instruction& i, const View& dst, const View& src, int64_t repeat, int64_t block_stride,
                      int64_t repeat_stride, int size);
void transpose_16x16(const Instruction& i, const View& dst, const View& src);

}  // namespace aicore

namespace AscendC {

#define AICORE_COMPARE_TYPE(Name) \
    static_assert(aicore::comparable<T>(), #Name ": this element type is not supported on this arch"); \
    static_assert(aicore::one_of<U, int8_t, uint8_t>, #Name ": the result is int8 or uint8");

template <typename T, typename U>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE mode, int64_t count, AICORE_WHERE) {
    AICORE_COMPARE_TYPE(Compare)
    auto i = aicore::begin(aicore::V, "Compare", where);
    aicore::compare_flat<T>(i, dst, src0, &src1, T(0), mode, count);
}
template <typename T, typename U, bool isSetMask = true, typename Mask>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE mode, Mask mask,
             int64_t repeatTime, const BinaryRepeatParams& p, AICORE_WHERE) {
    AICORE_COMPARE_TYPE(Compare)
    auto i = aicore::begin(aicore::V, "Compare", where);
    const aicore::Lane a{&src0, sizeof(T), p.src0BlkStride, p.src0RepStride, "src0"}, b{&src1, sizeof(T), p.src1BlkStride, p.src1RepStride, "src1"};
    aicore::compare_repeats<T>(i, dst, a, &b, T(0), mode, aicore::lanes_mask(i, sizeof(T), mask, repeatTime, isSetMask));
}
#define AICORE_COMPARE_SCALAR(Name)                                                                                              \
    template <typename T, typename U>                                                                                            \
    void Name(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const std::common_type_t<T>& scalar, CMPMODE mode,          \
              int64_t count, AICORE_WHERE) {                                                                                     \
        AICORE_COMPARE_TYPE(Name)                                                                                                \
        auto i = aicore::begin(aicore::V, #Name, where);                                                                         \
        aicore::compare_flat<T>(i, dst, src0, nullptr, scalar, mode, count);                                                     \
    }                                                                                                                            \
    template <typename T, typename U, bool isSetMask = true, typename Mask>                                                      \
    void Name(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const std::common_type_t<T>& scalar, CMPMODE mode,          \
              Mask mask, int64_t repeatTime, const UnaryRepeatParams& p, AICORE_WHERE) {                                         \
        AICORE_COMPARE_TYPE(Name)                                                                                                \
        auto i = aicore::begin(aicore::V, #Name, where);                                                                         \
        const aicore::Lane a{&src0, sizeof(T), p.srcBlkStride, p.srcRepStride, "src0"};                                          \
        aicore::compare_repeats<T>(i, dst, a, nullptr, scalar, mode,                                                             \
                                   aicore::lanes_mask(i, sizeof(T), mask, repeatTime, isSetMask));                               \
    }
AICORE_COMPARE_SCALAR(CompareScalar)
AICORE_COMPARE_SCALAR(Compares)

#define AICORE_SELECT_TYPE \
    static_assert(aicore::selectable<T>(), "Select: this element type is not supported on this arch"); \
    static_assert(aicore::one_of<U, uint8_t, uint16_t, uint32_t, uint64_t>, "Select: the mask is uint8 to uint64");

template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& mask, const LocalTensor<T>& src0, const LocalTensor<T>& src1, SELMODE mode,
            int64_t count, AICORE_WHERE) {
    AICORE_SELECT_TYPE
    auto i = aicore::begin(aicore::V, "Select", where);
    const aicore::Lane o[3] = {{&dst, sizeof(T), 1, 8, "dst"}, {&src0, sizeof(T), 1, 8, "src0"}, {&src1, sizeof(T), 1, 8, "src1"}};
    aicore::select_lanes<T>(i, mask, aicore::lanes_count(i, count), o, 2, T(0), mode);
}
template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& mask, const LocalTensor<T>& src0, const std::common_type_t<T>& src1,
            SELMODE mode, int64_t count, AICORE_WHERE) {
    AICORE_SELECT_TYPE
    auto i = aicore::begin(aicore::V, "Select", where);
    const aicore::Lane o[3] = {{&dst, sizeof(T), 1, 8, "dst"}, {&src0, sizeof(T), 1, 8, "src0"}, {&src0, sizeof(T), 1, 8, "src0"}};
    aicore::select_lanes<T>(i, mask, aicore::lanes_count(i, count), o, 1, src1, mode);
}
template <typename T, typename U, bool isSetMask = true, typename Mask>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& mask, const LocalTensor<T>& src0, const LocalTensor<T>& src1, SELMODE mode,
            Mask lanes, int64_t repeatTime, const BinaryRepeatParams& p, AICORE_WHERE) {
    AICORE_SELECT_TYPE
    auto i = aicore::begin(aicore::V, "Select", where);
    const aicore::Lane o[3] = {{&dst, sizeof(T), p.dstBlkStride, p.dstRepStride, "dst"},
                               {&src0, sizeof(T), p.src0BlkStride, p.src0RepStride, "src0"},
                               {&src1, sizeof(T), p.src1BlkStride, p.src1RepStride, "src1"}};
    aicore::select_lanes<T>(i, mask, aicore::lanes_mask(i, sizeof(T), lanes, repeatTime, isSetMask), o, 2, T(0), mode);
}
template <typename T, typename U, bool isSetMask = true, typename Mask>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& mask, const LocalTensor<T>& src0, const std::common_type_t<T>& src1,
            SELMODE mode, Mask lanes, int64_t repeatTime, const BinaryRepeatParams& p, AICORE_WHERE) {
    AICORE_SELECT_TYPE
    auto i = aicore::begin(aicore::V, "Select", where);
    const aicore::Lane o[3] = {{&dst, sizeof(T), p.dstBlkStride, p.dstRepStride, "dst"},
                               {&src0, sizeof(T), p.src0BlkStride, p.src0RepStride, "src0"},
                               {&src0, sizeof(T), p.src0BlkStride, p.src0RepStride, "src0"}};
    aicore::select_lanes<T>(i, mask, aicore::lanes_mask(i, sizeof(T), lanes, repeatTime, isSetMask), o, 1, src1, mode);
}

template <typename T>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& offsets, uint32_t base, int64_t count,
            AICORE_WHERE) {
    AICORE_LEVEL2(Gather, Any16And32, Any16And32, Int64)
    auto i = aicore::begin(aicore::V, "Gather", where);
    aicore::gather_elements(i, dst, src, offsets, base, aicore::lanes_count(i, count), 8, sizeof(T));
}
template <typename T, typename Mask>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& offsets, uint32_t base, Mask mask,
            int64_t repeatTime, int64_t dstRepStride, AICORE_WHERE) {
    AICORE_LEVEL0(Gather, Any16And32, Any16And32)
    auto i = aicore::begin(aicore::V, "Gather", where);
    aicore::gather_elements(i, dst, src, offsets, base, aicore::lanes_mask(i, sizeof(T), mask, repeatTime), dstRepStride, sizeof(T));
}
template <typename T>
void Gatherb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& offsets, int64_t repeatTime,
             const GatherRepeatParams& p, AICORE_WHERE) {
    static_assert(!aicore::k2201 || aicore::one_of<T, uint16_t, uint32_t>, "Gatherb: uint16 and uint32 on 2201");
    auto i = aicore::begin(aicore::V, "Gatherb", where);
    aicore::gather_blocks(i, dst, src, offsets, repeatTime, p.dstBlkStride, p.dstRepStride, sizeof(T));
}
template <typename T, typename U>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<U>& pattern, bool reduceMode, uint32_t mask,
                const GatherMaskParams& p, uint64_t& rsvdCnt, AICORE_WHERE) {
    static_assert(sizeof(T) == sizeof(U) && std::is_unsigned_v<U> && sizeof(T) <= 4, "GatherMask: the pattern is unsigned, of T's width");
    auto i = aicore::begin(aicore::V, "GatherMask", where);
    rsvdCnt = aicore::gather_mask(i, dst, src, &pattern, 0, reduceMode, mask, p, sizeof(T));
}
template <typename T>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src, int64_t pattern, bool reduceMode, uint32_t mask,
                const GatherMaskParams& p, uint64_t& rsvdCnt, AICORE_WHERE) {
    static_assert(sizeof(T) <= 4, "GatherMask: 8 to 32 bits");
    auto i = aicore::begin(aicore::V, "GatherMask", where);
    aicore::check_range(i, "src1Pattern", pattern, 1, 7);
    rsvdCnt = aicore::gather_mask(i, dst, src, nullptr, int(pattern), reduceMode, mask, p, sizeof(T));
}
template <typename T>
void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, int64_t repeatTime, const BrcbRepeatParams& p, AICORE_WHERE) {
    AICORE_LEVEL2(Brcb, Any16And32, Any16And32, Int8And64)
    auto i = aicore::begin(aicore::V, "Brcb", where);
    aicore::broadcast_blocks(i, dst, src, repeatTime, p.dstBlkStride, p.dstRepStride, sizeof(T));
}
template <typename T> void Transpose(const LocalTensor<T>& dst, const LocalTensor<T>& src, AICORE_WHERE) {
    static_assert(aicore::one_of<T, half, int16_t, uint16_t>, "Transpose: half, int16, uint16");
    auto i = aicore::begin(aicore::V, "Transpose", where);
    aicore::transpose_16x16(i, dst, src);
}

}  // namespace AscendC

#endif
