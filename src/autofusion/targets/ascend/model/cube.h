// The Cube: ND -> NZ copies into L1, LoadData into L0A and L0B, Mmad, Fixpipe.
//
// Modelled: fractals of 512 bytes; L0A is Zz on 2201 and Nz on 3510, L0B is Zn, L0C is Nz with 16x16 fractals of 1 KB.
// Copies inside the chip carry unwritten bytes along; Mmad fails only on one that lies inside m, n, k. With m = 1, A is
// read as a vector (GEMV). Mmad into a C of 10 fractals or more is kept in order by hardware, a smaller one needs
// PipeBarrier<PIPE_M> (documentation of Mmad). Fixpipe: bias comes with Mmad, ReLU and the casts F322F16 and F322BF16
// on the way out; DEQF16 multiplies int32 by a float32 whose low 13 bits are 0 (documented: the chip drops them) and stops
// at the greatest finite half.
// Assumed: DEQF16 rounds the product to float32, then to half, both to nearest even. Products of half, bfloat16 and float add up in float along k; ROW_MAJOR Fixpipe takes any nSize (the pages of
// the documentation differ), NZ a multiple of 16; Mmad with bias needs cmatrixInitVal = false. Not in the model:
// unitFlag, other quantisation with a scale, channel split, int4, copies of other types than half with conversion into the bias table.
#ifndef AICORE_CUBE_H
#define AICORE_CUBE_H

#include "copy.h"

namespace aicore {

void nd_to_nz(const Instruction& i, const View& dst, uint8_t* source, int64_t source_bytes, const AscendC::Nd2NzParams& p, int size);
void load_fractals(const View& dst, const View& src, const AscendC::LoadData2DParams& p, int size, Where where);
void load_fractals_gm(const View& dst, uint8_t* source, const AscendC::LoadData2DParams& p, Where where);
void load_transposed(const View& dst, const View& src, const AscendC::LoadData2dTransposeParams& p, int size, Where where);

enum class Unit { Half, Bfloat, Float, Int8 };
void multiply(const View& c, const View& a, const View& b, const View* bias, const AscendC::MmadParams& p, Unit unit, Where where);

struct Pipeout {  // Fixpipe, whatever its parameter block
    int64_t n, m, source_stride, target_stride, matrices, source_matrix_stride, target_matrix_stride;
    QuantMode_t quant;
    bool relu, row_major;
    int target_size;  // bytes of an element
    bool source_integer;
    int64_t sub_block;
    uint64_t scale = 0;  // bits of a float32
    int64_t split = 0;  // dualDstCtrl: 1 halves of the rows, 2 of the columns, one to each vector core
};
void check_pipeout(const Instruction& i, const Pipeout& p, int64_t unit_flag, bool channel_split);
void pipe_to_gm(const Instruction& i, uint8_t* target, const View& src, const Pipeout& p);
void pipe_to_chip(const Instruction& i, const View& dst, const View& src, const Pipeout& p);

template <typename T, typename U> constexpr bool fixes() {
    return (std::is_same_v<U, float> && one_of<T, float, half, bfloat16_t>) || (std::is_same_v<U, int32_t> && one_of<T, int32_t, half>);
}
template <typename T, typename U> void check_quant(const Instruction& i, QuantMode_t quant) {
    constexpr QuantMode_t halves = std::is_same_v<U, int32_t> ? DEQF16 : F322F16;
    QuantMode_t expected = std::is_same_v<T, half> ? halves : std::is_same_v<T, bfloat16_t> ? F322BF16 : NoQuant;
    if (quant != expected)
        fail(3, i.api, i.line, "quantPre", "the types of source and destination need quantPre = %s",
             expected == DEQF16 ? "DEQF16" : expected == F322F16 ? "F322F16" : expected == F322BF16 ? "F322BF16" : "NoQuant");
}

}  // namespace aicore

namespace AscendC {

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const Nd2NzParams& p, aicore::Where where = {__builtin_LINE()}) {
    auto i = aicore::begin(aicore::MTE2, "DataCopy(Nd2Nz)", where);
    if (!src.pointer) aicore::fail(5, i.api, i.line, "GM", "a GlobalTensor without SetGlobalBuffer");
    int64_t bytes = src.elements == src.kUndeclared ? INT64_MAX : src.elements * int64_t(sizeof(T));
    aicore::nd_to_nz(i, dst, reinterpret_cast<uint8_t*>(src.pointer), bytes, p, sizeof(T));
}

template <typename T>
void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData2DParams& p, aicore::Where where = {__builtin_LINE()}) {
    aicore::load_fractals(dst, src, p, sizeof(T), where);
}
template <typename T>
void LoadData(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const LoadData2DParams& p, aicore::Where where = {__builtin_LINE()}) {
    static_assert(aicore::k2201 && sizeof(T) > 0, "LoadData from GM: not on 3510");
    aicore::load_fractals_gm(dst, reinterpret_cast<uint8_t*>(src.pointer), p, where);
}
template <typename T>
void LoadDataWithTranspose(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData2dTransposeParams& p,
                           aicore::Where where = {__builtin_LINE()}) {
    static_assert(sizeof(T) <= 4, "LoadDataWithTranspose: 8, 16 and 32 bits");
    aicore::load_transposed(dst, src, p, sizeof(T), where);
}

template <typename C, typename A, typename B> constexpr aicore::Unit aicore_unit() {
    static_assert(std::is_same_v<A, B>, "Mmad: A and B have one type");
    static_assert((aicore::one_of<A, half, bfloat16_t, float> && std::is_same_v<C, float>) ||
                      (std::is_same_v<A, int8_t> && std::is_same_v<C, int32_t>),
                  "Mmad: (C, A, B) is (float, half), (float, bfloat16), (float, float) or (int32, int8)");
    return std::is_same_v<A, half> ? aicore::Unit::Half : std::is_same_v<A, bfloat16_t> ? aicore::Unit::Bfloat
         : std::is_same_v<A, float> ? aicore::Unit::Float : aicore::Unit::Int8;
}
template <typename C, typename A, typename B>
void Mmad(const LocalTensor<C>& c, const LocalTensor<A>& a, const LocalTensor<B>& b, const MmadParams& p,
          aicore::Where where = {__builtin_LINE()}) {
    aicore::multiply(c, a, b, nullptr, p, aicore_unit<C, A, B>(), where);
}
template <typename C, typename A, typename B, typename D>
void Mmad(const LocalTensor<C>& c, const LocalTensor<A>& a, const LocalTensor<B>& b, const LocalTensor<D>& bias, const MmadParams& p,
          aicore::Where where = {__builtin_LINE()}) {
    static_assert(std::is_same_v<C, D>, "Mmad: the bias has C's type");
    aicore::multiply(c, a, b, &bias, p, aicore_unit<C, A, B>(), where);
}

template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsV220& p, aicore::Where where = {__builtin_LINE()}) {
    static_assert(aicore::fixes<T, U>(), "Fixpipe: float -> float, half, bfloat16; int32 -> int32, half");
    auto i = aicore::begin(aicore::FIX, "Fixpipe", where);
    aicore::Pipeout out{p.nSize, p.mSize, p.srcStride, p.dstStride, p.ndNum, p.srcNdStride * 16, p.dstNdStride, p.quantPre, p.reluEn,
                        config.format == CO2Layout::ROW_MAJOR, sizeof(T), std::is_same_v<U, int32_t>, 0, p.deqScalar};
    aicore::check_quant<T, U>(i, p.quantPre);
    aicore::check_pipeout(i, out, p.unitFlag, p.isChannelSplit);
    aicore::check_atomic(i, aicore::atomic_type<T>());
    if (!dst.pointer) aicore::fail(5, i.api, i.line, "GM", "a GlobalTensor without SetGlobalBuffer");
    int64_t rows = out.row_major ? out.m - 1 : 0;
    int64_t last = out.row_major ? (rows * out.target_stride + out.n) * int64_t(sizeof(T))
                                 : ((out.n / 16 - 1) * out.target_stride * 32 + out.m * 16 * int64_t(sizeof(T)));
    if (dst.elements != dst.kUndeclared && out.m && out.n && last > dst.elements * int64_t(sizeof(T)))
        aicore::fail(5, i.api, i.line, "GM", "bytes to %lld of a GlobalTensor of %lld bytes", (long long)last,
                     (long long)(dst.elements * int64_t(sizeof(T))));
    aicore::pipe_to_gm(i, reinterpret_cast<uint8_t*>(dst.pointer), src, out);
}
// L0C -> L1, in NZ. On 2201 there is no path to UB, and this one always casts.
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const LocalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsV220& p, aicore::Where where = {__builtin_LINE()}) {
    static_assert(std::is_same_v<U, float> && aicore::one_of<T, half, bfloat16_t>, "Fixpipe into L1: float -> half or bfloat16");
    auto i = aicore::begin(aicore::FIX, "Fixpipe", where);
    if (dst.owner && dst.space() != aicore::Space::L1)
        aicore::fail(6, i.api, i.line, dst.name(), "no path from L0C to %s with these parameters", aicore::kSpaceNames[int(dst.space())]);
    aicore::Pipeout out{p.nSize, p.mSize, p.srcStride, p.dstStride, 1, 0, 0, p.quantPre, p.reluEn, false, sizeof(T), false, 0, p.deqScalar};
    aicore::check_quant<T, U>(i, p.quantPre);
    aicore::check_pipeout(i, out, p.unitFlag, p.isChannelSplit);
    aicore::pipe_to_chip(i, dst, src, out);
}
#if __NPU_ARCH__ == 3510
// L0C -> UB of vector core `subBlockId` of the block, or L1.
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const LocalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsArch3510<config.format>& p,
             aicore::Where where = {__builtin_LINE()}) {
    static_assert(aicore::fixes<T, U>(), "Fixpipe: float -> float, half, bfloat16; int32 -> int32, half");
    static_assert(config.format == CO2Layout::ROW_MAJOR, "Fixpipe into UB: the model knows ROW_MAJOR");
    auto i = aicore::begin(aicore::FIX, "Fixpipe", where);
    if (dst.owner && config.isToUB != (dst.space() == aicore::Space::UB))
        aicore::fail(6, i.api, i.line, dst.name(), "the configuration says isToUB = %d, the destination is in %s", config.isToUB,
                     aicore::kSpaceNames[int(dst.space())]);
    aicore::check_range(i, "dualDstCtrl", p.dualDstCtrl, 0, 2);
    aicore::check_range(i, "subBlockId", p.subBlockId, 0, 1);
    aicore::Pipeout out{p.nSize, p.mSize, p.srcStride, p.dstStride, p.params.ndNum, p.params.srcNdStride, p.params.dstNdStride, p.quantPre,
                        p.reluEn, true, sizeof(T), std::is_same_v<U, int32_t>, p.subBlockId, p.deqScalar, p.dualDstCtrl};
    aicore::check_quant<T, U>(i, p.quantPre);
    aicore::check_pipeout(i, out, p.unitFlag, p.isChannelSplit);
    aicore::pipe_to_chip(i, dst, src, out);
}
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsArch3510<config.format>& p,
             aicore::Where where = {__builtin_LINE()}) {
    static_assert(config.format == CO2Layout::ROW_MAJOR, "Fixpipe with FixpipeParamsArch3510: the model knows ROW_MAJOR");
    FixpipeParamsV220 same;
    same.nSize = p.nSize; same.mSize = p.mSize; same.srcStride = p.srcStride; same.dstStride = p.dstStride;
    same.quantPre = p.quantPre; same.deqScalar = p.deqScalar; same.reluEn = p.reluEn; same.unitFlag = p.unitFlag;
    if (p.params.ndNum != 1) aicore::fail(4, "Fixpipe", where.line, "ndNum", "the model knows ndNum 1 here");
    Fixpipe<T, U, config>(dst, src, same, where);
}
#endif

}  // namespace AscendC

#endif
