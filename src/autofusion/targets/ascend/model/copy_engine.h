// Definitions of copy.h.
#ifndef AICORE_COPY_ENGINE_H
#define AICORE_COPY_ENGINE_H

#include "copy.h"
#include "engine.h"
#include "vector.h"

namespace aicore {

AICORE_ENGINE Pipe copy_in_pipe(const char* api, const View& dst, Where where) {
    need_core(api, where.line);
    if (dst.owner && dst.space() != Space::UB && dst.space() != Space::L1)
        fail(6, api, where.line, dst.name(), "no path from GM to %s", kSpaceNames[int(dst.space())]);
    return MTE2;
}

AICORE_ENGINE Pipe copy_across_pipe(const char* api, const View& dst, const View& src, Where where) {
    need_core(api, where.line);
    if (!dst.owner || !src.owner) fail(5, api, where.line, dst.owner ? "src" : "dst", "a LocalTensor that nobody allocated");
    Space from = src.space(), to = dst.space();
    if (from == Space::UB && to == Space::UB) return V;
    if (from == Space::L1 && to == Space::BT) return MTE1;
    if (!k2201 && from == Space::UB && to == Space::L1) return MTE3;
    fail(6, api, where.line, dst.name(), "no path from %s to %s", kSpaceNames[int(from)], kSpaceNames[int(to)]);
}

AICORE_ENGINE Rows block_rows(const Instruction& i, const AscendC::DataCopyParams& p) {
    check_range(i, "blockCount", p.blockCount, 1, 4095);
    check_range(i, "blockLen", p.blockLen, 1, 65535);
    check_range(i, "srcGap", p.srcGap, 0, 65535);
    check_range(i, "dstGap", p.dstGap, 0, 65535);
    return {p.blockCount, p.blockLen * 32, (p.blockLen + p.srcGap) * 32, (p.blockLen + p.dstGap) * 32};
}

// Gaps are end to start: bytes in GM, blocks of 32 bytes in UB, where a row takes whole blocks.
AICORE_ENGINE Rows pad_params(const Instruction& i, int64_t count, int64_t bytes, int64_t gm_gap, int64_t ub_gap, int element,
                              int64_t most, int64_t gap_most, int64_t padding, bool to_gm) {
    check_range(i, "blockCount", count, 1, 4095);
    check_range(i, "blockLen", bytes, 1, most);
    if (bytes % element)
        fail(4, i.api, i.line, "blockLen", "blockLen is %lld bytes, a multiple of the element's %d is needed", (long long)bytes, element);
    if (k2201) {
        check_range(i, "GM stride", gm_gap, 0, gap_most);
        check_range(i, "UB stride", ub_gap, 0, gap_most);
    } else {
        check_range(i, "GM stride", gm_gap, to_gm ? 0 : -bytes, (1ll << 40) - 1);
        check_range(i, "UB stride", ub_gap, 0, 65535);
    }
    int64_t gm = bytes + gm_gap, ub = ((bytes + padding + 31) / 32 + ub_gap) * 32;
    return to_gm ? Rows{count, bytes, ub, gm} : Rows{count, bytes, gm, ub};
}

AICORE_ENGINE void copy_time(const Instruction& i, bool load, int64_t bytes) {
    int limit = i.core->kind == CoreKind::AIV ? kVectorCores : kCubeCores, n = cores_of_kind(i.core->kind);
    if (n > limit) n = limit;
    double cycles = (load ? kLoadHead : kStoreHead) + double(bytes) / (load ? load_rate(n) : store_rate(n));
    if (!i.core->pipe_started[i.pipe]) {
        i.core->pipe_started[i.pipe] = true;
        cycles += load ? load_pipe_head(n, double(bytes)) : kStorePipeHead;
    }
    end(i, cycles);
}

AICORE_ENGINE void rows_in(const Instruction& i, const View& dst, uint8_t* source, const Rows& rows) {
    check_use(i, dst, 0, 0, true, "dst");
    if (i.api[8] != 'P') check_align(i, dst, 0, 32, "dst");
    if (rows.source_step == rows.bytes && rows.destination_step == rows.bytes) {
        gm_access(i, source, rows.count * rows.bytes, false, false);
        write_local(i, dst, 0, rows.count * rows.bytes, "dst");
        std::memcpy(dst.raw(), source, size_t(rows.count * rows.bytes));
    } else {
        for (int64_t r = 0; r < rows.count; ++r) {
            gm_access(i, source + r * rows.source_step, rows.bytes, false, false);
            write_local(i, dst, r * rows.destination_step, rows.bytes, "dst");
            std::memcpy(dst.raw() + r * rows.destination_step, source + r * rows.source_step, size_t(rows.bytes));
        }
    }
    count_moved(Space::GM, dst.space(), rows.count * rows.bytes);
    copy_time(i, true, rows.count * rows.bytes);
}

template <typename T> void accumulate(uint8_t* to, const uint8_t* from, int64_t bytes, int operation) {
    auto d = (T*)to;
    auto s = (const T*)from;
    for (int64_t k = 0; k < bytes / int64_t(sizeof(T)); ++k) {
        auto a = Wide<T>(d[k]), b = Wide<T>(s[k]);
        d[k] = T(operation == 1 ? OpAdd::f(a, b) : operation == 2 ? OpMax::f(a, b) : OpMin::f(a, b));
    }
}

inline void put(const Instruction& i, uint8_t* to, const uint8_t* from, int64_t bytes) {
    Core& c = *i.core;
    gm_access(i, to, bytes, true, c.atomic != 0);
    switch (c.atomic ? c.atomic_type : 0) {
        case kAtomicFloat: return accumulate<float>(to, from, bytes, c.atomic);
        case kAtomicHalf: return accumulate<half>(to, from, bytes, c.atomic);
        case kAtomicBfloat: return accumulate<bfloat16_t>(to, from, bytes, c.atomic);
        case kAtomicInt8: return accumulate<int8_t>(to, from, bytes, c.atomic);
        case kAtomicInt16: return accumulate<int16_t>(to, from, bytes, c.atomic);
        case kAtomicInt32: return accumulate<int32_t>(to, from, bytes, c.atomic);
        default: std::memcpy(to, from, size_t(bytes));
    }
}

AICORE_ENGINE void rows_out(const Instruction& i, uint8_t* destination, const View& src, const Rows& rows, int) {
    check_use(i, src, 0, 0, false, "src");
    if (src.space() != Space::UB && src.space() != Space::L1)
        fail(6, i.api, i.line, src.name(), "no path from %s to GM but Fixpipe", kSpaceNames[int(src.space())]);
    check_align(i, src, 0, 32, "src");
    bool flat = rows.source_step == rows.bytes && rows.destination_step == rows.bytes;
    Rows todo = flat ? Rows{1, rows.count * rows.bytes, 0, 0} : rows;
    for (int64_t r = 0; r < todo.count; ++r) {
        read_local(i, src, r * todo.source_step, todo.bytes, "src");
        put(i, destination + r * todo.destination_step, src.raw() + r * todo.source_step, todo.bytes);
    }
    count_moved(src.space(), Space::GM, rows.count * rows.bytes);
    copy_time(i, false, rows.count * rows.bytes);
}

AICORE_ENGINE void rows_across(const Instruction& i, const View& dst, const View& src, const Rows& given) {
    Rows rows = given;
    if (dst.space() == Space::BT && rows.count > 1) fail(4, i.api, i.line, "blockCount", "one block into the bias table is in the model");
    Core* owner = dst.owner;
    if (dst.space() == Space::L1)  // from a vector core into the L1 of its block's Cube
        for (auto& c : machine->cores)
            if (c->kind == CoreKind::AIC && c->block == i.core->block) owner = c.get();
    Memory& memory = owner->memories[int(dst.space())];
    check_use(i, dst, 0, 0, true, "dst");
    check_use(i, src, 0, 0, false, "src");
    check_align(i, dst, 0, dst.space() == Space::BT ? 64 : 32, "dst");
    check_align(i, src, 0, 32, "src");
    int64_t span = (rows.count - 1) * (rows.source_step > rows.destination_step ? rows.source_step : rows.destination_step) + rows.bytes;
    if (dst.space() == src.space() && dst.address < src.address + span && src.address < dst.address + span)
        for (int64_t a = 0; a < rows.count; ++a)
            for (int64_t b = 0; b < rows.count; ++b) {
                int64_t d = dst.address + a * rows.destination_step, s = src.address + b * rows.source_step;
                if (d < s + rows.bytes && s < d + rows.bytes)
                    fail(11, i.api, i.line, dst.name(), "the copy's source and destination overlap at byte %lld", (long long)(d > s ? d : s));
            }
    for (int64_t r = 0; r < rows.count; ++r) read_local(i, src, r * rows.source_step, rows.bytes, "src", false);
    for (int64_t r = 0; r < rows.count; ++r) {
        int64_t to = r * rows.destination_step, from = r * rows.source_step;
        check_use(i, dst, to, rows.bytes, true, "dst");
        write(i, *owner, memory, dst.address + to, rows.bytes, dst.name());
        std::memcpy(memory.data + dst.address + to, src.raw() + from, size_t(rows.bytes));
        copy_valid(memory, dst.address + to, src.memory(), src.address + from, rows.bytes);
    }
    count_moved(src.space(), dst.space(), rows.count * rows.bytes);
    end(i, kVectorHead + double(rows.count * rows.bytes) / kOnChipRate);
}

AICORE_ENGINE void widen_bias(const Instruction& i, const View& dst, const View& src, int64_t elements) {
    if (dst.space() != Space::BT || src.space() != Space::L1)
        fail(6, i.api, i.line, dst.name(), "half becomes float on the way from L1 to the bias table, not from %s to %s",
             kSpaceNames[int(src.space())], kSpaceNames[int(dst.space())]);
    check_use(i, dst, 0, elements * 4, true, "dst");
    check_use(i, src, 0, 0, false, "src");
    check_align(i, dst, 0, 64, "dst");
    check_align(i, src, 0, 32, "src");
    Memory& memory = dst.owner->memories[int(Space::BT)];
    read_local(i, src, 0, elements * 2, "src", false);
    write(i, *dst.owner, memory, dst.address, elements * 4, dst.name());
    for (int64_t e = 0; e < elements; ++e) {
        uint16_t bits;
        std::memcpy(&bits, src.raw() + e * 2, 2);
        float value = half_value(bits);
        std::memcpy(memory.data + dst.address + e * 4, &value, 4);
        set_valid(memory, dst.address + e * 4, 4, all_valid(src.memory(), src.address + e * 2, 2));
    }
    count_moved(Space::L1, Space::BT, elements * 4);
    end(i, kVectorHead + double(elements * 4) / kOnChipRate);
}

AICORE_ENGINE void pad_rows(const Instruction& i, const View& dst, const Rows& rows, int64_t left, int64_t right, bool fill,
                            const void* value, int element) {
    check_use(i, dst, 0, 0, true, "dst");
    check_space(i, dst, Space::UB, "dst");
    check_align(i, dst, 0, 32, "dst");
    check_range(i, "leftPadding", left * element, 0, 32);
    check_range(i, "rightPadding", right * element, 0, 32);
    int64_t total = (rows.bytes + (left + right) * element + 31) / 32 * 32;
    if (total == rows.bytes) return;
    bool padded = left || right;
    for (int64_t r = 0; r < rows.count; ++r) {
        int64_t row = r * rows.destination_step;
        write_local(i, dst, row, total, "dst");
        set_valid(dst.memory(), dst.address + row, total, fill && padded);
        if (fill && padded)
            for (int64_t b = 0; b < total; b += element) std::memcpy(dst.raw() + row + b, value, size_t(element));
    }
}

AICORE_ENGINE void set_atomic(int operation, int type, Where where) {
    need_core("SetAtomic", where.line);
    core().atomic = operation;
    core().atomic_type = type;
    core().atomic_line = where.line;
}

AICORE_ENGINE void check_atomic(const Instruction& i, int type) {
    if (i.core->atomic && i.core->atomic_type != type)
        fail(3, i.api, i.line, "GM", "the atomic operation was set for another element type");
}

}  // namespace aicore

#endif
