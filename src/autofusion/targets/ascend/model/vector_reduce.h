// Reductions: ReduceSum/Max/Min of a tensor, per repeat (WholeReduce*, ReduceRepeat, RepeatReduceSum), per block
// (BlockReduce*, ReduceDataBlock).
//
// Modelled: sums are binary trees over neighbours, rounded to the type at each step. ReduceSum by count on 2201 adds the
// results of its repeats in order; its other forms add them as a tree (documentation of ReduceSum). Max and Min take the
// first of equal values; indices are stored with the bits of an integer. Temporaries: the documented sizes.
// Assumed: a masked-off lane counts as 0 in a sum. Max and Min drop a NaN unless all are NaN.
#ifndef AICORE_VECTOR_REDUCE_H
#define AICORE_VECTOR_REDUCE_H

#include "vector_more.h"

namespace AscendC {
enum class ReduceType { SUM, MAX, MIN };
}

namespace aicore {

using AscendC::ReduceOrder;
using AscendC::ReduceType;

template <typename T> T tree_sum(T* values, int64_t n) {  // destroys `values`
    for (; n > 1; n = (n + 1) / 2) {
        for (int64_t k = 0; k < n / 2; ++k) values[k] = T(OpAdd::f(Wide<T>(values[2 * k]), Wide<T>(values[2 * k + 1])));
        if (n % 2) values[n / 2] = values[n - 1];
    }
    return values[0];
}

template <typename T> bool better(T a, T b, bool maximum) {  // a replaces b
    if (is_nan(b)) return !is_nan(a);
    return maximum ? a > b : a < b;
}

// Stores value and index, as `order` says.
template <typename T> int store_extreme(T* to, T value, uint32_t index, ReduceOrder order) {
    using Index = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
    Index narrow = Index(index);
    switch (order) {
        case ReduceOrder::ORDER_VALUE_INDEX: to[0] = value; std::memcpy(to + 1, &narrow, sizeof(T)); return 2 * sizeof(T);
        case ReduceOrder::ORDER_INDEX_VALUE: std::memcpy(to, &narrow, sizeof(T)); to[1] = value; return 2 * sizeof(T);
        case ReduceOrder::ORDER_ONLY_VALUE: to[0] = value; return sizeof(T);
        default: std::memcpy(to, &index, 4); return 4;
    }
}
template <typename T> int extreme_bytes(ReduceOrder order) {
    return order == ReduceOrder::ORDER_ONLY_VALUE ? int(sizeof(T)) : order == ReduceOrder::ORDER_ONLY_INDEX ? 4 : 2 * int(sizeof(T));
}

// The lanes of repeat r into `values`, masked-off ones as `filler`.
template <typename T> void gather_repeat(const Lanes& lanes, const Lane& src, int64_t r, T* values, T filler) {
    for (int lane = 0; lane < lanes.per_repeat; ++lane) {
        bool on = lanes.word(r, lane / 64) >> (lane % 64) & 1;
        values[lane] = on ? *(const T*)(src.view->raw() + src.at(r, lane)) : filler;
    }
}

void check_disjoint(const Instruction& i, const View& a, int64_t a_bytes, const View& b, int64_t b_bytes);

template <typename T>
void reduce_repeats(const char* api, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, const Instruction& i,
                    const Lanes& lanes, int64_t dst_stride, int64_t block_stride, int64_t repeat_stride, ReduceType type,
                    ReduceOrder order) {
    (void)api;
    check_range(i, "dstRepStride", dst_stride, 0, 65535);
    check_range(i, "srcBlkStride", block_stride, 0, 65535);
    check_range(i, "srcRepStride", repeat_stride, 0, 65535);
    if (lanes.repeat == 0) return;
    int unit = type == ReduceType::SUM ? int(sizeof(T)) : extreme_bytes<T>(order);
    Lane from{&src, sizeof(T), block_stride, repeat_stride, "src"};
    check_space(i, src, Space::UB, "src");
    check_space(i, dst, Space::UB, "dst");
    check_align(i, src, 0, 32, "src");
    check_align(i, dst, 0, unit, "dst");
    read_lanes(i, lanes, from);
    T values[128];
    std::vector<uint8_t> results(size_t(lanes.repeat * unit));
    for (int64_t r = 0; r < lanes.repeat; ++r) {
        T* to = (T*)(results.data() + r * unit);
        if (type == ReduceType::SUM) {
            gather_repeat<T>(lanes, from, r, values, T(0));
            *to = tree_sum<T>(values, lanes.per_repeat);
            continue;
        }
        int best = -1;
        for (int lane = 0; lane < lanes.per_repeat; ++lane) {
            if (!(lanes.word(r, lane / 64) >> (lane % 64) & 1)) continue;
            values[lane] = *(const T*)(src.raw() + from.at(r, lane));
            if (best < 0 || better(Wide<T>(values[lane]), Wide<T>(values[best]), type == ReduceType::MAX)) best = lane;
        }
        if (best >= 0) store_extreme<T>(to, values[best], uint32_t(best), order);
    }
    for (int64_t r = 0; r < lanes.repeat; ++r) {
        write_local(i, dst, r * dst_stride * unit, unit, "dst");
        std::memcpy(dst.raw() + r * dst_stride * unit, results.data() + r * unit, size_t(unit));
    }
    vector_end(i, lanes.repeat * lanes.per_repeat, sizeof(T), 2);
}

template <typename T>
void reduce_blocks(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, const Instruction& i, const Lanes& lanes,
                   int64_t dst_stride, int64_t block_stride, int64_t repeat_stride, ReduceType type) {
    constexpr int per_block = 32 / sizeof(T), unit = 8 * sizeof(T);
    check_range(i, "dstRepStride", dst_stride, 0, 65535);
    check_range(i, "srcBlkStride", block_stride, 0, 65535);
    check_range(i, "srcRepStride", repeat_stride, 0, 65535);
    if (lanes.repeat == 0) return;
    Lane from{&src, sizeof(T), block_stride, repeat_stride, "src"};
    check_space(i, src, Space::UB, "src");
    check_space(i, dst, Space::UB, "dst");
    check_align(i, src, 0, 32, "src");
    check_align(i, dst, 0, unit, "dst");
    read_lanes(i, lanes, from);
    for (int64_t r = 0; r < lanes.repeat; ++r) {
        T results[8];
        bool any[8] = {};
        for (int b = 0; b < 8; ++b) {
            T values[per_block], best = T(0);
            for (int k = 0; k < per_block; ++k) {
                int lane = b * per_block + k;
                bool on = lanes.word(r, lane / 64) >> (lane % 64) & 1;
                values[k] = on ? *(const T*)(src.raw() + from.at(r, lane)) : T(0);
                if (on && (!any[b] || better(Wide<T>(values[k]), Wide<T>(best), type == ReduceType::MAX))) best = values[k];
                any[b] |= on;
            }
            results[b] = type == ReduceType::SUM ? tree_sum<T>(values, per_block) : best;
        }
        for (int b = 0; b < 8; ++b)
            if (any[b]) {
                int64_t at = r * dst_stride * unit + b * int64_t(sizeof(T));
                write_local(i, dst, at, sizeof(T), "dst");
                std::memcpy(dst.raw() + at, &results[b], sizeof(T));
            }
    }
    vector_end(i, lanes.repeat * lanes.per_repeat, sizeof(T), 2);
}

int64_t reduce_extreme_need(int64_t repeats, int size, bool index);

template <typename T>
void reduce_all(const char* api, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
                const AscendC::LocalTensor<T>& tmp, int64_t count, ReduceType type, bool index, Where where) {
    auto i = begin(V, api, where);
    Lanes lanes = lanes_count(i, count);
    if (!count) return;
    constexpr int64_t per_repeat = 256 / sizeof(T);
    check_space(i, dst, Space::UB, "dst");
    check_align(i, src, 0, 32, "src");
    int result = type == ReduceType::SUM ? int(sizeof(T)) : index ? 2 * int(sizeof(T)) : int(sizeof(T));
    check_align(i, dst, 0, type == ReduceType::SUM ? int64_t(sizeof(T)) : 2 * int64_t(sizeof(T)), "dst");
    read_local(i, src, 0, count * int64_t(sizeof(T)), "src");
    int64_t repeats = (count + per_repeat - 1) / per_repeat;
    if (type != ReduceType::SUM && k2201) {
        int64_t need = reduce_extreme_need(repeats, sizeof(T), index);
        check_align(i, tmp, 0, 32, "sharedTmpBuffer");
        if (need > tmp.bytes)
            fail(1, api, where.line, tmp.name(), "sharedTmpBuffer has %lld bytes, %lld are needed", (long long)tmp.bytes, (long long)need);
        write_local(i, tmp, 0, need, "sharedTmpBuffer");
        set_valid(tmp.memory(), tmp.address, need, false);
    }
    if (type == ReduceType::SUM) {
        std::vector<T> partial;
        for (int64_t r = 0; r < repeats; ++r) {
            T values[per_repeat];
            for (int64_t k = 0; k < per_repeat; ++k) values[k] = r * per_repeat + k < count ? src.data()[r * per_repeat + k] : T(0);
            partial.push_back(tree_sum<T>(values, per_repeat));
        }
        T total = partial[0];
        if (k2201) {
            for (size_t r = 1; r < partial.size(); ++r) total = T(OpAdd::f(Wide<T>(total), Wide<T>(partial[r])));
        } else {
            total = tree_sum<T>(partial.data(), int64_t(partial.size()));
        }
        write_local(i, dst, 0, result, "dst");
        dst.data()[0] = total;
    } else {
        int64_t best = 0;
        for (int64_t k = 1; k < count; ++k)
            if (better(Wide<T>(src.data()[k]), Wide<T>(src.data()[best]), type == ReduceType::MAX)) best = k;
        if (index && sizeof(T) == 2 && best > 65535) fail(4, api, where.line, "index", "an index of half holds 65535 at most");
        T value = src.data()[best];
        write_local(i, dst, 0, result, "dst");
        store_extreme<T>(dst.data(), value, uint32_t(best), index ? ReduceOrder::ORDER_VALUE_INDEX : ReduceOrder::ORDER_ONLY_VALUE);
    }
    vector_end(i, count, sizeof(T), 2);
}

// Level 0: per repeat, then over the repeats' results, as a tree. `repeat` may exceed 255 here (documentation).
template <typename T>
void reduce_masked(const char* api, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
                   const AscendC::LocalTensor<T>& tmp, Lanes lanes, const Instruction& i, int64_t repeat, int64_t stride, ReduceType type,
                   bool index) {
    check_range(i, "repeatTime", repeat, 0, INT32_MAX);
    check_range(i, "srcRepStride", stride, 0, 65535);
    if (!lanes.tail) lanes.repeat = repeat;
    if (!lanes.repeat) return;
    Lane from{&src, sizeof(T), 1, stride, "src"};
    check_align(i, src, 0, 32, "src");
    check_space(i, dst, Space::UB, "dst");
    check_align(i, dst, 0, (type == ReduceType::SUM ? 1 : 2) * int64_t(sizeof(T)), "dst");
    read_lanes(i, lanes, from);
    constexpr int64_t per_block = 32 / sizeof(T);
    int64_t need = type == ReduceType::SUM ? (lanes.repeat + per_block - 1) / per_block * 32 : reduce_extreme_need(lanes.repeat, sizeof(T), index);
    if (k2201) {
        check_align(i, tmp, 0, 32, "sharedTmpBuffer");
        if (need > tmp.bytes)
            fail(1, api, i.line, tmp.name(), "sharedTmpBuffer has %lld bytes, %lld are needed", (long long)tmp.bytes, (long long)need);
        write_local(i, tmp, 0, need, "sharedTmpBuffer");
    }
    T values[128], best = T(0);
    int64_t place = -1;
    std::vector<T> partial;
    for (int64_t r = 0; r < lanes.repeat; ++r) {
        gather_repeat<T>(lanes, from, r, values, T(0));
        if (type == ReduceType::SUM) { partial.push_back(tree_sum<T>(values, lanes.per_repeat)); continue; }
        for (int lane = 0; lane < lanes.per_repeat; ++lane)
            if ((lanes.word(r, lane / 64) >> (lane % 64) & 1) &&
                (place < 0 || better(Wide<T>(values[lane]), Wide<T>(best), type == ReduceType::MAX))) {
                best = values[lane];
                place = r * lanes.per_repeat + lane;
            }
    }
    if (k2201) set_valid(tmp.memory(), tmp.address, need, false);
    write_local(i, dst, 0, (index ? 2 : 1) * int64_t(sizeof(T)), "dst");
    if (type == ReduceType::SUM) dst.data()[0] = tree_sum<T>(partial.data(), int64_t(partial.size()));
    else store_extreme<T>(dst.data(), best, uint32_t(place), index ? ReduceOrder::ORDER_VALUE_INDEX : ReduceOrder::ORDER_ONLY_VALUE);
    vector_end(i, lanes.repeat * lanes.per_repeat, sizeof(T), 2);
}

}  // namespace aicore

namespace AscendC {

#define AICORE_REDUCE_TYPE(Name) static_assert(aicore::in<T>(aicore::HalfFloat{}), #Name ": half and float");

template <typename T, bool isSetMask = true>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& tmp, int64_t count, AICORE_WHERE) {
    AICORE_REDUCE_TYPE(ReduceSum)
    static_assert(isSetMask, "ReduceSum: isSetMask = false is not in the model");
    aicore::reduce_all("ReduceSum", dst, src, tmp, count, ReduceType::SUM, false, where);
}
template <typename T>
void ReduceMax(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& tmp, int64_t count, bool calIndex = false,
               AICORE_WHERE) {
    AICORE_REDUCE_TYPE(ReduceMax)
    aicore::reduce_all("ReduceMax", dst, src, tmp, count, ReduceType::MAX, calIndex, where);
}
template <typename T>
void ReduceMin(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& tmp, int64_t count, bool calIndex = false,
               AICORE_WHERE) {
    AICORE_REDUCE_TYPE(ReduceMin)
    aicore::reduce_all("ReduceMin", dst, src, tmp, count, ReduceType::MIN, calIndex, where);
}

template <typename T, typename Mask>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& tmp, Mask mask, int64_t repeatTime,
               int64_t srcRepStride, AICORE_WHERE) {
    AICORE_REDUCE_TYPE(ReduceSum)
    auto i = aicore::begin(aicore::V, "ReduceSum", where);
    aicore::reduce_masked("ReduceSum", dst, src, tmp, aicore::lanes_mask(i, sizeof(T), mask, 1), i, repeatTime, srcRepStride,
                          ReduceType::SUM, false);
}
#define AICORE_REDUCE_MASKED(Name, type)                                                                                         \
    template <typename T, typename Mask>                                                                                         \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& tmp, Mask mask, int64_t repeatTime,    \
              int64_t srcRepStride, bool calIndex = false, AICORE_WHERE) {                                                       \
        AICORE_REDUCE_TYPE(Name)                                                                                                 \
        auto i = aicore::begin(aicore::V, #Name, where);                                                                         \
        aicore::reduce_masked(#Name, dst, src, tmp, aicore::lanes_mask(i, sizeof(T), mask, 1), i, repeatTime, srcRepStride,      \
                              ReduceType::type, calIndex);                                                                       \
    }
AICORE_REDUCE_MASKED(ReduceMax, MAX)
AICORE_REDUCE_MASKED(ReduceMin, MIN)

#define AICORE_WHOLE_REDUCE(Name, type, defaultOrder)                                                                           \
    AICORE_MASKED                                                                                                                \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, Mask mask, int64_t repeatTime, int64_t dstRepStride,         \
              int64_t srcBlkStride, int64_t srcRepStride, ReduceOrder order = ReduceOrder::defaultOrder, AICORE_WHERE) {         \
        AICORE_REDUCE_TYPE(Name)                                                                                                 \
        auto i = aicore::begin(aicore::V, #Name, where);                                                                         \
        aicore::reduce_repeats<T>(#Name, dst, src, i, aicore::lanes_mask(i, sizeof(T), mask, repeatTime, isSetMask),             \
                                  dstRepStride, srcBlkStride, srcRepStride, ReduceType::type, order);                            \
    }
AICORE_WHOLE_REDUCE(WholeReduceMax, MAX, ORDER_VALUE_INDEX)
AICORE_WHOLE_REDUCE(WholeReduceMin, MIN, ORDER_VALUE_INDEX)
AICORE_MASKED
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, Mask mask, int64_t repeatTime, int64_t dstRepStride,
                    int64_t srcBlkStride, int64_t srcRepStride, AICORE_WHERE) {
    AICORE_REDUCE_TYPE(WholeReduceSum)
    auto i = aicore::begin(aicore::V, "WholeReduceSum", where);
    aicore::reduce_repeats<T>("WholeReduceSum", dst, src, i, aicore::lanes_mask(i, sizeof(T), mask, repeatTime, isSetMask), dstRepStride,
                              srcBlkStride, srcRepStride, ReduceType::SUM, ReduceOrder::ORDER_ONLY_VALUE);
}

template <ReduceType type, typename T, typename U, bool isSetMask = true, typename Mask>
void ReduceRepeat(const LocalTensor<T>& dst, const LocalTensor<U>& src, Mask mask, int64_t repeatTime, int64_t dstRepStride,
                  int64_t srcBlkStride, int64_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX, AICORE_WHERE) {
    AICORE_REDUCE_TYPE(ReduceRepeat)
    static_assert(std::is_same_v<T, U>, "ReduceRepeat: dst and src have one type");
    auto i = aicore::begin(aicore::V, "ReduceRepeat", where);
    aicore::reduce_repeats<T>("ReduceRepeat", dst, src, i, aicore::lanes_mask(i, sizeof(T), mask, repeatTime, isSetMask), dstRepStride,
                              srcBlkStride, srcRepStride, type, order);
}
template <ReduceType type, typename T, typename U, bool isSetMask = true, typename Mask>
void ReduceDataBlock(const LocalTensor<T>& dst, const LocalTensor<U>& src, Mask mask, int64_t repeatTime, int64_t dstRepStride,
                     int64_t srcBlkStride, int64_t srcRepStride, AICORE_WHERE) {
    AICORE_REDUCE_TYPE(ReduceDataBlock)
    static_assert(std::is_same_v<T, U>, "ReduceDataBlock: dst and src have one type");
    auto i = aicore::begin(aicore::V, "ReduceDataBlock", where);
    aicore::reduce_blocks<T>(dst, src, i, aicore::lanes_mask(i, sizeof(T), mask, repeatTime, isSetMask), dstRepStride, srcBlkStride,
                             srcRepStride, type);
}

#define AICORE_BLOCK_REDUCE(Name, type)                                                                                         \
    AICORE_MASKED                                                                                                                \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, int64_t repeat, Mask mask, int64_t dstRepStride,             \
              int64_t srcBlkStride, int64_t srcRepStride, AICORE_WHERE) {                                                        \
        AICORE_REDUCE_TYPE(Name)                                                                                                 \
        auto i = aicore::begin(aicore::V, #Name, where);                                                                         \
        aicore::reduce_blocks<T>(dst, src, i, aicore::lanes_mask(i, sizeof(T), mask, repeat, isSetMask), dstRepStride,           \
                                 srcBlkStride, srcRepStride, ReduceType::type);                                                  \
    }
AICORE_BLOCK_REDUCE(BlockReduceSum, SUM)
AICORE_BLOCK_REDUCE(BlockReduceMax, MAX)
AICORE_BLOCK_REDUCE(BlockReduceMin, MIN)

template <typename T, bool isSetMask = true>
void RepeatReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, int64_t repeatTime, int64_t mask, int64_t dstBlkStride,
                     int64_t srcBlkStride, int64_t dstRepStride, int64_t srcRepStride, AICORE_WHERE) {
    AICORE_REDUCE_TYPE(RepeatReduceSum)
    (void)dstBlkStride;
    auto i = aicore::begin(aicore::V, "RepeatReduceSum", where);
    aicore::reduce_repeats<T>("RepeatReduceSum", dst, src, i, aicore::lanes_mask(i, sizeof(T), uint64_t(mask), repeatTime, isSetMask),
                              dstRepStride, srcBlkStride, srcRepStride, ReduceType::SUM, ReduceOrder::ORDER_ONLY_VALUE);
}

}  // namespace AscendC

#endif
