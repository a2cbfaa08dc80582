// Definitions of vector.h: ranges, alignment, bounds, overlap and shadow cells of a vector instruction.
#ifndef AICORE_VECTOR_ENGINE_H
#define AICORE_VECTOR_ENGINE_H

#include "engine.h"
#include "vector_select.h"

namespace aicore {

AICORE_ENGINE Lanes lanes_count(const Instruction& i, int64_t count) {
    if (count < 0) fail(4, i.api, i.line, "count", "count is %lld", (long long)count);
    if (count == 0 && !k2201) fail(4, i.api, i.line, "count", "count is 0, which 3510 does not promise to ignore");
    check_range(i, "count", count, 0, INT32_MAX);
    Lanes lanes;
    lanes.count = count;
    return lanes;
}

inline void repeat_range(const Instruction& i, int64_t repeat) { check_range(i, "repeatTime", repeat, 0, 255); }

// In counter mode the mask is the number of lanes of all repeats, and repeatTime is not looked at.
inline Lanes lanes_counter(int size, uint64_t count) {
    Lanes lanes;
    lanes.per_repeat = 256 / size > 128 ? 128 : 256 / size;
    lanes.repeat = (int64_t(count) + lanes.per_repeat - 1) / lanes.per_repeat;
    lanes.tail = int64_t(count) - (lanes.repeat - 1) * lanes.per_repeat;
    lanes.mask[0] = lanes.per_repeat >= 64 ? ~0ull : (1ull << lanes.per_repeat) - 1;
    lanes.mask[1] = lanes.per_repeat > 64 ? ~0ull : 0;
    return lanes;
}

AICORE_ENGINE Lanes lanes_mask(const Instruction& i, int size, const uint64_t mask[2], int64_t repeat, bool set) {
    Core& c = *i.core;
    uint64_t from[2] = {set ? mask[0] : c.mask[0], set ? mask[1] : c.mask[1]};
    if (c.mask_counts) return lanes_counter(size, from[0]);
    repeat_range(i, repeat);
    Lanes lanes;
    lanes.per_repeat = 256 / size > 128 ? 128 : 256 / size;
    lanes.repeat = repeat;
    for (int w = 0; w < 2; ++w) lanes.mask[w] = from[w];
    if (lanes.per_repeat <= 64) {
        if (set && from[1]) fail(4, i.api, i.line, "mask", "mask[1] is not 0, a repeat of this type has 64 lanes or fewer");
        lanes.mask[1] = 0;
        if (lanes.per_repeat < 64) {
            if (set && from[0] >> lanes.per_repeat)
                fail(4, i.api, i.line, "mask", "mask has bits beyond the %d lanes of a repeat", lanes.per_repeat);
            lanes.mask[0] &= (1ull << lanes.per_repeat) - 1;
        }
    }
    if (set) { c.mask[0] = mask[0]; c.mask[1] = mask[1]; }
    if (set && !lanes.mask[0] && !lanes.mask[1]) fail(4, i.api, i.line, "mask", "the mask is empty");
    return lanes;
}

AICORE_ENGINE Lanes lanes_mask(const Instruction& i, int size, uint64_t mask, int64_t repeat, bool set) {
    if (!set || i.core->mask_counts) {
        uint64_t bits[2] = {mask, 0};
        return lanes_mask(i, size, bits, repeat, set);
    }
    int64_t most = 256 / size > 128 ? 128 : 256 / size;
    check_range(i, "mask", int64_t(mask), 1, most);
    uint64_t bits[2] = {mask >= 64 ? ~0ull : (1ull << mask) - 1,
                        mask <= 64 ? 0 : mask >= 128 ? ~0ull : (1ull << (mask - 64)) - 1};
    return lanes_mask(i, size, bits, repeat, set);
}

AICORE_ENGINE int64_t lanes_total(const Lanes& lanes) {
    if (lanes.count >= 0) return lanes.count;
    if (lanes.tail) return (lanes.repeat - 1) * lanes.per_repeat + lanes.tail;
    return lanes.repeat * (__builtin_popcountll(lanes.mask[0]) + __builtin_popcountll(lanes.mask[1]));
}

// Equal or disjoint (rule 11). Blocks of a strided operand are told apart by their repeat and place.
inline void check_overlap(const Instruction& i, const Lanes& lanes, const Lane& dst, const Lane& src, int widest) {
    if (dst.view->owner != src.view->owner || dst.view->space() != src.view->space()) return;
    int64_t a = dst.view->address, b = src.view->address;
    auto bad = [&](int64_t byte) {
        fail(11, i.api, i.line, dst.view->name() + " and " + src.view->name(),
             "operands %s and %s overlap in part, first at UB byte %lld: they must be equal or disjoint", dst.name, src.name,
             (long long)byte);
    };
    if (lanes.count >= 0) {
        int64_t n = lanes.count * dst.size, m = lanes.count * src.size;
        if (a < b + m && b < a + n && !(a == b && dst.size == src.size)) bad(a > b ? a : b);
        return;
    }
    auto top = [&](const Lane& l) {
        return (((lanes.repeat - 1) * l.repeat_stride) + (lanes.per_repeat * l.size / 32 - 1) * l.block_stride + 1) * 32;
    };
    if (!lanes.repeat || a + top(dst) <= b || b + top(src) <= a) return;
    bool same = a == b && dst.size == src.size && dst.block_stride == src.block_stride && dst.repeat_stride == src.repeat_stride;
    std::vector<int32_t> written(size_t(kUbBytes / 32), -1);
    for_runs(lanes, widest, [&](int64_t r, int64_t lane, int64_t) {
        int32_t& at = written[size_t((a + dst.at(r, lane)) / 32)];
        if (same && at >= 0 && at != int32_t(r * 128 + lane * dst.size / 32)) bad(a + dst.at(r, lane));
        at = int32_t(r * 128 + lane * dst.size / 32);
    });
    if (same) return;
    for_runs(lanes, widest, [&](int64_t r, int64_t lane, int64_t) {
        int64_t byte = b + src.at(r, lane);
        int32_t at = written[size_t(byte / 32)];
        if (at >= 0 && !(dst.size == src.size && at == int32_t(r * 128 + lane * dst.size / 32) && a + dst.at(r, lane) == byte))
            bad(byte);
    });
}

AICORE_ENGINE void vector_access(const Instruction& i, const Lanes& lanes, const Lane* o, int n, bool accumulates) {
    int widest = 1;
    for (int k = 0; k < n; ++k) {
        if (o[k].size > widest) widest = o[k].size;
        check_range(i, "block stride", o[k].block_stride, 0, 65535);
        check_range(i, "repeat stride", o[k].repeat_stride, 0, 255);
        check_use(i, *o[k].view, 0, 0, k == 0, o[k].name);
        check_space(i, *o[k].view, Space::UB, o[k].name);
        check_align(i, *o[k].view, 0, o[k].align, o[k].name);
    }
    for (int k = 1; k <= n; ++k) {  // sources first
        const Lane& l = o[k % n];
        bool writes = k == n;
        if (lanes.count >= 0) {
            int64_t bytes = lanes.count * l.size;
            if (writes) write_local(i, *l.view, 0, bytes, l.name); else read_local(i, *l.view, 0, bytes, l.name);
        } else if (l.block_stride == 1 && l.repeat_stride * 32 == lanes.per_repeat * l.size &&
                   lanes_total(lanes) == lanes.repeat * lanes.per_repeat) {
            int64_t bytes = lanes.repeat * lanes.per_repeat * l.size;
            if (writes) write_local(i, *l.view, 0, bytes, l.name); else read_local(i, *l.view, 0, bytes, l.name);
        } else {
            for_runs(lanes, widest, [&](int64_t r, int64_t lane, int64_t run) {
                if (writes) write_local(i, *l.view, l.at(r, lane), run * l.size, l.name);
                else read_local(i, *l.view, l.at(r, lane), run * l.size, l.name);
            });
        }
    }
    for (int k = 1; k < n; ++k) {
        bool running = accumulates && k == 2 && o[0].view->address == o[2].view->address &&
                       o[0].block_stride == o[2].block_stride && (!o[0].repeat_stride || !o[2].repeat_stride);
        if (!running) check_overlap(i, lanes, o[0], o[k], widest);
    }
}

AICORE_ENGINE void vector_end(const Instruction& i, int64_t elements, int size, double factor) {
    end(i, kVectorHead + double(elements) * size * kVectorPerByte * factor);
}

// ---- Casts

AICORE_ENGINE double round_to_integer(double value, Rounding mode) {
    switch (mode) {
        case Rounding::Floor: return std::floor(value);
        case Rounding::Ceil: return std::ceil(value);
        case Rounding::NearestAway: return std::round(value);
        case Rounding::Truncate: return std::trunc(value);
        case Rounding::Odd: {
            double whole = std::trunc(value);
            if (whole != value && std::fmod(whole, 2) == 0) whole += std::signbit(value) ? -1 : 1;
            return whole;
        }
        default: return std::nearbyint(value);
    }
}

AICORE_ENGINE float integer_to_float(int64_t value, Rounding mode) {
    bool negative = value < 0;
    uint64_t magnitude = negative ? 0 - uint64_t(value) : uint64_t(value);
    if (magnitude < (1u << 24)) return float(value);
    int drop = 40 - __builtin_clzll(magnitude);
    uint64_t kept = magnitude >> drop, rest = magnitude & ((1ull << drop) - 1), half_unit = 1ull << (drop - 1);
    switch (mode) {
        case Rounding::NearestEven: kept += rest > half_unit || (rest == half_unit && (kept & 1)); break;
        case Rounding::NearestAway: kept += rest >= half_unit; break;
        case Rounding::Floor: kept += negative && rest; break;
        case Rounding::Ceil: kept += !negative && rest; break;
        case Rounding::Odd: kept |= rest ? 1 : 0; break;
        case Rounding::Truncate: break;
    }
    float result = std::ldexp(float(kept), drop);
    return negative ? -result : result;
}

AICORE_ENGINE void check_round_mode(const Instruction& i, int allowed, AscendC::RoundMode mode) {
    int bit = mode == AscendC::RoundMode::CAST_NONE ? kModeNone : mode == AscendC::RoundMode::CAST_ODD ? kModeOdd : kModeRound;
    static const char* names[] = {"CAST_NONE", "CAST_RINT", "CAST_FLOOR", "CAST_CEIL", "CAST_ROUND", "CAST_TRUNC", "CAST_ODD"};
    if (!(allowed & bit))
        fail(3, i.api, i.line, "roundMode", "this pair of types does not take %s; it takes%s%s%s", names[int(mode)],
             allowed & kModeNone ? " NONE" : "", allowed & kModeRound ? " RINT FLOOR CEIL ROUND TRUNC" : "",
             allowed & kModeOdd ? " ODD" : "");
}

// ---- Reductions, gathers

AICORE_ENGINE void read_lanes(const Instruction& i, const Lanes& lanes, const Lane& src) {
    check_use(i, *src.view, 0, 0, false, src.name);
    check_space(i, *src.view, Space::UB, src.name);
    for_runs(lanes, src.size, [&](int64_t r, int64_t lane, int64_t run) {
        read_local(i, *src.view, src.at(r, lane), run * src.size, src.name);
    });
}

AICORE_ENGINE void check_disjoint(const Instruction& i, const View& a, int64_t a_bytes, const View& b, int64_t b_bytes) {
    if (a.owner != b.owner || a.space() != b.space()) return;
    if (a.address < b.address + b_bytes && b.address < a.address + a_bytes)
        fail(11, i.api, i.line, a.name() + " and " + b.name(), "source and destination overlap at byte %lld, they must be apart",
             (long long)(a.address > b.address ? a.address : b.address));
}

AICORE_ENGINE int64_t reduce_extreme_need(int64_t repeats, int size, bool index) {
    int64_t per_block = 32 / size, per_repeat = 256 / size;
    auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    int64_t first = repeats * 2, need = up(first, per_block) * per_block;
    if (index) {
        int64_t second = up(first, per_repeat) * 2, second_end = up(second, per_block) * per_block;
        need += second_end;
        if (second > 2) need += up(up(second, per_repeat) * 2, per_block) * per_block;
    }
    return need * size;
}

inline void check_operands(const Instruction& i, const View& dst, const View& src) {
    check_use(i, dst, 0, 0, true, "dst");
    check_use(i, src, 0, 0, false, "src");
    check_space(i, dst, Space::UB, "dst");
    check_space(i, src, Space::UB, "src");
    check_align(i, dst, 0, 32, "dst");
    check_align(i, src, 0, 32, "src");
}

AICORE_ENGINE void gather_elements(const Instruction& i, const View& dst, const View& src, const View& offsets, int64_t base,
                                   const Lanes& lanes, int64_t repeat_stride, int size) {
    check_operands(i, dst, src);
    check_align(i, offsets, 0, 32, "srcOffset");
    check_range(i, "dstRepStride", repeat_stride, 0, 65535);
    if (base % size) fail(4, i.api, i.line, "srcBaseAddr", "%lld is not a multiple of the element's %d bytes", (long long)base, size);
    int64_t total = lanes.count >= 0 ? lanes.count : lanes.repeat * lanes.per_repeat;
    if (!total) return;
    Lane to{&dst, size, 1, repeat_stride, "dst"};
    std::vector<std::pair<int64_t, int64_t>> moves;
    for_runs(lanes, size > 4 ? size : 4, [&](int64_t r, int64_t lane, int64_t run) {
        int64_t first = r * lanes.per_repeat + lane;
        read_local(i, offsets, first * 4, run * 4, "srcOffset");
        for (int64_t k = 0; k < run; ++k) {
            uint32_t offset;
            std::memcpy(&offset, offsets.raw() + (first + k) * 4, 4);
            int64_t from = base + offset, at = lanes.count >= 0 ? (first + k) * size : to.at(r, lane + k);
            if (from % size) fail(2, i.api, i.line, offsets.name(), "offset %lld is not a multiple of the element's %d bytes", (long long)from, size);
            read_local(i, src, from, size, "src");
            moves.push_back({at, from});
        }
    });
    int64_t low = INT64_MAX, high = 0;
    for (auto& m : moves) {
        write_local(i, dst, m.first, size, "dst");
        if (m.first < low) low = m.first;
        if (m.first + size > high) high = m.first + size;
    }
    if (dst.space() == src.space())
        for (auto& m : moves) {
            int64_t from = src.address + m.second;
            if (from < dst.address + high && dst.address + low < from + size)
                fail(11, i.api, i.line, dst.name(), "Gather's source and destination overlap at UB byte %lld", (long long)from);
        }
    for (auto& m : moves) std::memcpy(dst.raw() + m.first, src.raw() + m.second, size_t(size));
    end(i, kVectorHead + double(moves.size()) * kGatherPerElement);
}

AICORE_ENGINE void gather_blocks(const Instruction& i, const View& dst, const View& src, const View& offsets, int64_t repeat,
                                 int64_t block_stride, int64_t repeat_stride, int) {
    check_operands(i, dst, src);
    check_align(i, offsets, 0, 32, "offset");
    check_range(i, "repeatTime", repeat, 0, 255);
    check_range(i, "dstBlkStride", block_stride, 0, 255);
    check_range(i, "dstRepStride", repeat_stride, 0, 255);
    if (block_stride == 0) block_stride = 1;
    read_local(i, offsets, 0, repeat * 32, "offset");
    for (int64_t k = 0; k < repeat * 8; ++k) {
        uint32_t from;
        std::memcpy(&from, offsets.raw() + k * 4, 4);
        int64_t at = (k / 8 * repeat_stride + k % 8 * block_stride) * 32;
        if ((src.address + from) % 32) fail(2, i.api, i.line, offsets.name(), "offset %u does not lead to a multiple of 32 bytes", from);
        read_local(i, src, from, 32, "src");
        write_local(i, dst, at, 32, "dst");
        if (src.address + from < dst.address + at + 32 && dst.address + at < src.address + from + 32)
            fail(11, i.api, i.line, dst.name(), "Gatherb's source and destination overlap");
        std::memcpy(dst.raw() + at, src.raw() + from, 32);
    }
    end(i, kVectorHead + double(repeat) * 8 * kGatherPerElement);
}

AICORE_ENGINE uint64_t gather_mask(const Instruction& i, const View& dst, const View& src, const View* pattern, int fixed, bool counter,
                                   int64_t mask, const AscendC::GatherMaskParams& p, int size) {
    check_operands(i, dst, src);
    check_range(i, "src0BlockStride", p.src0BlockStride, 0, 255);
    check_range(i, "repeatTimes", p.repeatTimes, 0, 65535);
    check_range(i, "src0RepeatStride", p.src0RepeatStride, 0, 65535);
    check_range(i, "src1RepeatStride", p.src1RepeatStride, 0, 255);
    if (counter && mask < 1) fail(4, i.api, i.line, "mask", "counter mode takes a mask of 1 or more");
    int64_t per_repeat = counter ? mask : 256 / size, per_block = 32 / size;
    std::vector<int64_t> chosen;
    if (pattern) check_align(i, *pattern, 0, 32, "src1Pattern");
    for (int64_t r = 0; r < p.repeatTimes; ++r) {
        if (pattern) read_local(i, *pattern, r * p.src1RepeatStride * 32, (per_repeat + 7) / 8, "src1Pattern");
        for (int64_t e = 0; e < per_repeat; ++e) {
            bool take;
            if (pattern) take = pattern->raw()[r * p.src1RepeatStride * 32 + e / 8] >> (e % 8) & 1;
            else take = fixed == 7 || (fixed <= 2 ? e % 2 == fixed - 1 : e % 4 == fixed - 3);
            if (take) chosen.push_back((r * p.src0RepeatStride + e / per_block * p.src0BlockStride) * 32 + e % per_block * size);
        }
    }
    std::vector<uint8_t> values(chosen.size() * size_t(size));
    for (size_t k = 0; k < chosen.size(); ++k) {
        read_local(i, src, chosen[k], size, "src0");
        std::memcpy(values.data() + k * size_t(size), src.raw() + chosen[k], size_t(size));
    }
    int64_t bytes = int64_t(values.size());
    if (bytes && dst.address != src.address) {
        int64_t span = chosen.back() + size;
        check_disjoint(i, dst, bytes, src, span);
    }
    write_local(i, dst, 0, bytes, "dst");
    std::memcpy(dst.raw(), values.data(), values.size());
    if (counter) i.core->mask_counts = false;
    vector_end(i, p.repeatTimes * per_repeat, size);
    return chosen.size();
}

AICORE_ENGINE void broadcast_blocks(const Instruction& i, const View& dst, const View& src, int64_t repeat, int64_t block_stride,
                                    int64_t repeat_stride, int size) {
    check_operands(i, dst, src);
    check_range(i, "repeatTime", repeat, 0, 255);
    check_range(i, "dstBlkStride", block_stride, 1, 65535);
    check_range(i, "dstRepStride", repeat_stride, 0, 65535);
    read_local(i, src, 0, repeat * 8 * size, "src");
    for (int64_t k = 0; k < repeat * 8; ++k) {
        int64_t at = (k / 8 * repeat_stride + k % 8 * block_stride) * 32;
        write_local(i, dst, at, 32, "dst");
        if (src.address < dst.address + at + 32 && dst.address + at < src.address + repeat * 8 * size)
            fail(11, i.api, i.line, dst.name(), "Brcb's source and destination overlap");
        for (int64_t b = 0; b < 32; b += size) std::memcpy(dst.raw() + at + b, src.raw() + k * size, size_t(size));
    }
    vector_end(i, repeat * 256 / size, size);
}

AICORE_ENGINE void transpose_16x16(const Instruction& i, const View& dst, const View& src) {
    check_operands(i, dst, src);
    read_local(i, src, 0, 512, "src");
    if (dst.address != src.address) check_disjoint(i, dst, 512, src, 512);
    write_local(i, dst, 0, 512, "dst");
    uint16_t from[256];
    std::memcpy(from, src.raw(), 512);
    for (int k = 0; k < 256; ++k) std::memcpy(dst.raw() + k * 2, &from[k % 16 * 16 + k / 16], 2);
    vector_end(i, 256, 2);
}

}  // namespace aicore

#endif
