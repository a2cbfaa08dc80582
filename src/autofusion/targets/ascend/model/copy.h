// Copies between GM and on-chip memory and inside it: DataCopy, DataCopyPad; the atomics of the copies to GM.
//
// Modelled: DataCopy takes whole 32-byte blocks only (on the chip a rest is dropped without a word; here rule 2).
// DataCopyPad fills each row up to 32 bytes. Lanes that the kernel asked to be padded hold the padding value; other
// filler is poisoned (on the chip: random, or the row's first element).
#ifndef AICORE_COPY_H
#define AICORE_COPY_H

#include "tensor.h"

namespace aicore {

// `count` rows of `bytes`; from row to row the addresses grow by these steps (bytes).
struct Rows { int64_t count, bytes, source_step, destination_step; };

void rows_in(const Instruction& i, const View& dst, uint8_t* source, const Rows& rows);   // GM -> UB, L1
void rows_out(const Instruction& i, uint8_t* destination, const View& src, const Rows& rows, int element);  // -> GM
void rows_across(const Instruction& i, const View& dst, const View& src, const Rows& rows);  // on chip
void widen_bias(const Instruction& i, const View& dst, const View& src, int64_t elements);   // half in L1 -> float in the bias table
void pad_rows(const Instruction& i, const View& dst, const Rows& rows, int64_t left, int64_t right, bool fill,
              const void* value, int element);
Rows block_rows(const Instruction& i, const AscendC::DataCopyParams& p);
Rows pad_params(const Instruction& i, int64_t count, int64_t bytes, int64_t gm_gap, int64_t ub_gap, int element, int64_t most,
                int64_t gap_most, int64_t padding, bool to_gm);
void copy_time(const Instruction& i, bool load, int64_t bytes);
Pipe copy_in_pipe(const char* api, const View& dst, Where where);
Pipe copy_across_pipe(const char* api, const View& dst, const View& src, Where where);
void set_atomic(int operation, int type, Where where);  // 0 none, 1 add, 2 max, 3 min; type: AtomicType

enum AtomicType { kAtomicNone, kAtomicFloat, kAtomicHalf, kAtomicBfloat, kAtomicInt8, kAtomicInt16, kAtomicInt32 };
template <typename T> constexpr int atomic_type() {
    return std::is_same_v<T, float> ? kAtomicFloat : std::is_same_v<T, half> ? kAtomicHalf
         : std::is_same_v<T, bfloat16_t> ? kAtomicBfloat : std::is_same_v<T, int8_t> ? kAtomicInt8
         : std::is_same_v<T, int16_t> ? kAtomicInt16 : std::is_same_v<T, int32_t> ? kAtomicInt32 : kAtomicNone;
}
void check_atomic(const Instruction& i, int type);

template <typename T> uint8_t* gm_rows(const Instruction& i, const AscendC::GlobalTensor<T>& t, const Rows& rows, int64_t step) {
    if (!t.pointer) fail(5, i.api, i.line, "GM", "a GlobalTensor without SetGlobalBuffer");
    int64_t last = (rows.count - 1) * step + rows.bytes;
    if (t.elements != t.kUndeclared && last > t.elements * int64_t(sizeof(T)))
        fail(5, i.api, i.line, "GM", "bytes to %lld of a GlobalTensor of %lld bytes", (long long)last,
             (long long)(t.elements * int64_t(sizeof(T))));
    return reinterpret_cast<uint8_t*>(t.pointer);
}

}  // namespace aicore

namespace AscendC {

// GM -> UB or L1
template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& p, aicore::Where where = {__builtin_LINE()}) {
    auto i = aicore::begin(aicore::copy_in_pipe("DataCopy", dst, where), "DataCopy", where);
    aicore::Rows rows = aicore::block_rows(i, p);
    aicore::rows_in(i, dst, aicore::gm_rows(i, src, rows, rows.source_step), rows);
}
template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, int64_t count, aicore::Where where = {__builtin_LINE()}) {
    auto i = aicore::begin(aicore::copy_in_pipe("DataCopy", dst, where), "DataCopy", where);
    int64_t bytes = count * int64_t(sizeof(T));
    if (bytes % 32) aicore::fail(2, "DataCopy", where.line, dst.name(), "copies %lld bytes, a multiple of 32 is needed", (long long)bytes);
    aicore::check_range(i, "count", count, 1, INT32_MAX);
    aicore::Rows rows{1, bytes, bytes, bytes};
    aicore::rows_in(i, dst, aicore::gm_rows(i, src, rows, 0), rows);
}

// UB or L1 -> GM
template <typename T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& p, aicore::Where where = {__builtin_LINE()}) {
    auto i = aicore::begin(aicore::MTE3, "DataCopy", where);
    aicore::check_atomic(i, aicore::atomic_type<T>());
    aicore::Rows rows = aicore::block_rows(i, p);
    aicore::rows_out(i, aicore::gm_rows(i, dst, rows, rows.destination_step), src, rows, sizeof(T));
}
template <typename T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, int64_t count, aicore::Where where = {__builtin_LINE()}) {
    auto i = aicore::begin(aicore::MTE3, "DataCopy", where);
    aicore::check_atomic(i, aicore::atomic_type<T>());
    int64_t bytes = count * int64_t(sizeof(T));
    if (bytes % 32) aicore::fail(2, "DataCopy", where.line, src.name(), "copies %lld bytes, a multiple of 32 is needed", (long long)bytes);
    aicore::check_range(i, "count", count, 1, INT32_MAX);
    aicore::Rows rows{1, bytes, bytes, bytes};
    aicore::rows_out(i, aicore::gm_rows(i, dst, rows, 0), src, rows, sizeof(T));
}

// UB -> UB; L1 -> bias table; on 3510 also UB -> L1
template <typename T, typename U>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const DataCopyParams& p, aicore::Where where = {__builtin_LINE()}) {
    static_assert(std::is_same_v<T, U> || (std::is_same_v<T, float> && std::is_same_v<U, half>),
                  "DataCopy: the only copy with conversion is half in L1 to float in the bias table");
    auto i = aicore::begin(aicore::copy_across_pipe("DataCopy", dst, src, where), "DataCopy", where);
    aicore::Rows rows = aicore::block_rows(i, p);
    if constexpr (!std::is_same_v<T, U>) {  // blockLen counts the bias table's blocks (assumed)
        if (rows.count != 1) aicore::fail(4, i.api, i.line, "blockCount", "one block into the bias table is in the model");
        aicore::widen_bias(i, dst, src, p.blockLen * (aicore::k2201 ? 16 : 8));
        return;
    }
    if (dst.owner && dst.space() == aicore::Space::BT) {  // blockLen counts 64 bytes there on 2201, pairs of 32 on 3510
        if (!aicore::k2201 && p.blockLen % 2) aicore::fail(4, i.api, i.line, "blockLen", "must be even into the bias table");
        if (aicore::k2201) rows.bytes *= 2;
    }
    aicore::rows_across(i, dst, src, rows);
}
template <typename T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, int64_t count, aicore::Where where = {__builtin_LINE()}) {
    auto i = aicore::begin(aicore::copy_across_pipe("DataCopy", dst, src, where), "DataCopy", where);
    int64_t bytes = count * int64_t(sizeof(T));
    if (bytes % 32) aicore::fail(2, "DataCopy", where.line, dst.name(), "copies %lld bytes, a multiple of 32 is needed", (long long)bytes);
    aicore::check_range(i, "count", count, 1, INT32_MAX);
    aicore::rows_across(i, dst, src, {1, bytes, bytes, bytes});
}

// GM -> UB with padding
template <typename T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyExtParams& p,
                 const DataCopyPadExtParams<T>& pad, aicore::Where where = {__builtin_LINE()}) {
    auto i = aicore::begin(aicore::MTE2, "DataCopyPad", where);
    aicore::Rows rows = aicore::pad_params(i, p.blockCount, p.blockLen, p.srcStride, p.dstStride, sizeof(T), 2097151, UINT32_MAX,
                                           (pad.leftPadding + pad.rightPadding) * int64_t(sizeof(T)), false);
    aicore::gm_rows(i, src, rows, rows.source_step);
    if (sizeof(T) == 8 && pad.isPad && pad.paddingValue != T(0))
        aicore::fail(4, i.api, i.line, "paddingValue", "the padding value of a 64-bit type must be 0");
    LocalTensor<T> at = dst;
    aicore::pad_rows(i, dst, rows, pad.leftPadding, pad.rightPadding, pad.isPad, &pad.paddingValue, sizeof(T));
    at.address += pad.leftPadding * int64_t(sizeof(T));
    at.bytes -= pad.leftPadding * int64_t(sizeof(T));
    aicore::rows_in(i, at, reinterpret_cast<uint8_t*>(src.pointer), rows);
}
template <typename T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& p, const DataCopyPadParams& pad,
                 aicore::Where where = {__builtin_LINE()}) {
    if (p.blockLen > 65535 || p.srcStride > 65535)
        aicore::fail(4, "DataCopyPad", where.line, "blockLen", "blockLen %lld, srcStride %lld: DataCopyParams takes 0 to 65535 bytes",
                     (long long)p.blockLen, (long long)p.srcStride);
    T value = T(0);
    std::memcpy(&value, &pad.paddingValue, sizeof(T));
    DataCopyPadExtParams<T> wide{pad.isPad, pad.leftPadding, pad.rightPadding, value};
    DataCopyPad(dst, src, DataCopyExtParams{p.blockCount, p.blockLen, p.srcStride, p.dstStride, 0}, wide, where);
}

// UB -> GM, rows of any length
template <typename T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& p,
                 aicore::Where where = {__builtin_LINE()}) {
    auto i = aicore::begin(aicore::MTE3, "DataCopyPad", where);
    aicore::check_atomic(i, aicore::atomic_type<T>());
    aicore::Rows rows = aicore::pad_params(i, p.blockCount, p.blockLen, p.dstStride, p.srcStride, sizeof(T), 2097151, UINT32_MAX, 0, true);
    aicore::rows_out(i, aicore::gm_rows(i, dst, rows, rows.destination_step), src, rows, sizeof(T));
}
template <typename T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& p, aicore::Where where = {__builtin_LINE()}) {
    if (p.blockLen > 65535 || p.dstStride > 65535)
        aicore::fail(4, "DataCopyPad", where.line, "blockLen", "blockLen %lld, dstStride %lld: DataCopyParams takes 0 to 65535 bytes",
                     (long long)p.blockLen, (long long)p.dstStride);
    DataCopyPad(dst, src, DataCopyExtParams{p.blockCount, p.blockLen, p.srcStride, p.dstStride, 0}, where);
}

template <typename T> void SetAtomicAdd(aicore::Where where = {__builtin_LINE()}) {
    static_assert(aicore::atomic_type<T>() != 0, "SetAtomicAdd: float, half, bfloat16_t, int8, int16, int32");
    aicore::set_atomic(1, aicore::atomic_type<T>(), where);
}
template <typename T> void SetAtomicMax(aicore::Where where = {__builtin_LINE()}) {
    static_assert(aicore::atomic_type<T>() != 0, "SetAtomicMax: float, half, bfloat16_t, int8, int16, int32");
    aicore::set_atomic(2, aicore::atomic_type<T>(), where);
}
template <typename T> void SetAtomicMin(aicore::Where where = {__builtin_LINE()}) {
    static_assert(aicore::atomic_type<T>() != 0, "SetAtomicMin: float, half, bfloat16_t, int8, int16, int32");
    aicore::set_atomic(3, aicore::atomic_type<T>(), where);
}
inline void SetAtomicNone(aicore::Where where = {__builtin_LINE()}) { aicore::set_atomic(0, 0, where); }
inline void DisableDmaAtomic(aicore::Where where = {__builtin_LINE()}) { aicore::set_atomic(0, 0, where); }

template <typename T, CacheLine line, DcciDst dst = DcciDst::CACHELINE_OUT>
void DataCacheCleanAndInvalid(const GlobalTensor<T>& tensor, aicore::Where where = {__builtin_LINE()}) {
    aicore::need_core("DataCacheCleanAndInvalid", where.line);
    aicore::scalar_cache_drop(tensor.pointer, line == CacheLine::ENTIRE_DATA_CACHE);
}

}  // namespace AscendC

#endif
