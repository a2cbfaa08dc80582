// Definitions of machine.h: clocks, shadow cells, GM accesses, scheduling of the cores.
#ifndef AICORE_ENGINE_H
#define AICORE_ENGINE_H

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <ucontext.h>
#include <unistd.h>

#include "machine.h"

namespace aicore {

inline ucontext_t scheduler_context;
inline FILE* report_file = nullptr;

inline std::string json_text(const std::string& text) {
    std::string out = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += (unsigned char)c < 32 ? ' ' : c;
    }
    return out + "\"";
}

AICORE_ENGINE std::string core_name(const Core& core) {
    return (core.kind == CoreKind::AIV ? "AIV" : "AIC") + std::to_string(core.index) + " (block " +
           std::to_string(core.block) + ")";
}

AICORE_ENGINE std::string component_name(int component) {
    const Core& core = *machine->cores[(component - 1) / kPipes];
    return (core.kind == CoreKind::AIV ? "AIV" : "AIC") + std::to_string(core.index) + " " +
           kPipeNames[(component - 1) % kPipes];
}

AICORE_ENGINE void fail(int rule, const char* api, int line, const std::string& buffer, const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    std::string core = machine && machine->core ? core_name(*machine->core) : "host";
    fprintf(report_file ? report_file : stdout,
            "{\"rule\": %d, \"name\": %s, \"core\": %s, \"line\": %d, \"api\": %s, \"buffer\": %s, \"text\": %s}\n", rule,
            json_text(kRuleNames[rule]).c_str(), json_text(core).c_str(), line, json_text(api).c_str(),
            json_text(buffer).c_str(), json_text(text).c_str());
    if (report_file) fflush(report_file);
    fflush(stdout);
    _exit(3);
}

AICORE_ENGINE void refuse(const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fail(0, "model", 0, "", "%s", text);
}

AICORE_ENGINE int cores_of_kind(CoreKind kind) {
    int count = 0;
    for (auto& core : machine->cores) count += core->kind == kind;
    return count;
}

// ---- Clocks

AICORE_ENGINE void join(Clock& into, const Clock& from) {
    for (int p = 0; p < kPipes; ++p)
        if (from.own[p] > into.own[p]) into.own[p] = from.own[p];
    if (from.time > into.time) into.time = from.time;
    if (!from.others || from.others == into.others) return;
    if (!into.others) { into.others = from.others; return; }
    auto merged = std::make_shared<std::vector<uint32_t>>(*into.others);
    for (size_t i = 0; i < merged->size(); ++i)
        if ((*from.others)[i] > (*merged)[i]) (*merged)[i] = (*from.others)[i];
    into.others = merged;
}

AICORE_ENGINE Clock after(const Core& core, Pipe pipe) {
    Clock clock = core.known[pipe];
    clock.own[pipe] = core.issued[pipe];
    clock.time = core.free_at[pipe];
    return clock;
}

AICORE_ENGINE void wait_for(Core& core, Pipe pipe, const Clock& clock) {
    if (pipe == S) {  // S issues everything that comes later
        for (int p = 0; p < kPipes; ++p) join(core.known[p], clock);
    } else {
        join(core.known[pipe], clock);
    }
    if (clock.time > core.free_at[pipe]) core.free_at[pipe] = clock.time;
}

// The compiler's automatic synchronisation, and the hardware's: orders this pair and nothing else.
inline bool automatic(const Core& core, int first, int second) {
    if (first == S && second == S) return true;
    if (core.kind != CoreKind::AIV) return false;
    if (first == V && second == V) return true;
    auto moves = [](int p) { return p == V || p == MTE2 || p == MTE3; };
    return (first == S && moves(second)) || (second == S && moves(first));
}

inline bool ordered(const Instruction& i, int component, uint32_t index) {
    int core = (component - 1) / kPipes, pipe = (component - 1) % kPipes;
    if (core == i.core->id) {
        if (pipe == i.pipe && (index == i.index || i.in_order)) return true;
        return i.core->known[i.pipe].own[pipe] >= index || automatic(*i.core, pipe, i.pipe);
    }
    auto& others = i.core->known[i.pipe].others;
    return others && (*others)[component - 1] >= index;
}

// ---- Instructions

inline ucontext_t probe_context;

AICORE_ENGINE void need_core(const char* api, int line) {
    if (!machine || !machine->core) refuse("%s in line %d is called outside a kernel", api, line);
    if (machine->probing) setcontext(&probe_context);
}

AICORE_ENGINE Instruction begin(Pipe pipe, const char* api, Where where) {
    need_core(api, where.line);
    Core& c = core();
    if (pipe != S) {
        bool vector_pipe = pipe == V, cube_pipe = pipe == M || pipe == MTE1 || pipe == FIX;
        if ((c.kind == CoreKind::AIC && vector_pipe) || (c.kind == CoreKind::AIV && cube_pipe))
            fail(9, api, where.line, kPipeNames[pipe], "%s runs on pipe %s, which core %s does not have", api,
                 kPipeNames[pipe], core_name(c).c_str());
        c.free_at[S] += kIssueCycles;
        if (c.free_at[pipe] < c.free_at[S]) c.free_at[pipe] = c.free_at[S];
    }
    machine->counters.instructions[pipe]++;
    c.quiet &= pipe == S;
    return {&c, pipe, ++c.issued[pipe], api, where.line, false};
}

AICORE_ENGINE void end(const Instruction& i, double cycles) { i.core->free_at[i.pipe] += cycles; }

// ---- On-chip memory

inline std::string cell_place(const Memory& memory, int64_t address, const std::string& buffer) {
    return buffer + " (" + kSpaceNames[int(memory.space)] + " byte " + std::to_string(address) + ")";
}

inline uint32_t byte_mask(int64_t cell, int64_t address, int64_t bytes) {
    int64_t from = address > cell * 32 ? address - cell * 32 : 0;
    int64_t to = address + bytes < cell * 32 + 32 ? address + bytes - cell * 32 : 32;
    return (to - from == 32) ? ~0u : ((1u << (to - from)) - 1) << from;
}

inline void unordered(const Instruction& i, const char* kind, int component, int line, const std::string& place) {
    bool other = (component - 1) / kPipes != i.core->id;
    std::string first = component_name(component);
    fail(other ? 10 : 8, i.api, i.line, place,
         "%s: %s on pipe %s is not ordered after line %d on %s; it needs an EnQue/DeQue, a flag, a barrier or SyncAll",
         kind, i.api, kPipeNames[i.pipe], line, first.c_str());
}

AICORE_ENGINE void read(const Instruction& i, Core& owner, Memory& memory, int64_t address, int64_t bytes, bool strict,
                        const std::string& buffer) {
    if (bytes <= 0) return;
    for (int64_t c = address / 32, last = (address + bytes - 1) / 32; c <= last; ++c) {
        Cell& cell = memory.cells[c];
        uint32_t mask = byte_mask(c, address, bytes);
        if (cell.writer && !ordered(i, cell.writer, cell.writer_index))
            unordered(i, "read after write", cell.writer, cell.writer_line, cell_place(memory, c * 32, buffer));
        if (strict && (cell.valid & mask) != mask) {
            int64_t byte = c * 32 + __builtin_ctz(~cell.valid & mask);
            fail(7, i.api, i.line, cell_place(memory, byte, buffer),
                 "reads byte %lld of the operand, which nothing has written since its buffer was allocated",
                 (long long)(byte - address));
        }
        if (&owner == i.core) {
            if (cell.readers[i.pipe] < i.index) cell.readers[i.pipe] = i.index;
            cell.reader_line = uint16_t(i.line);
        }
        if (!cell.counted && cell.valid) { cell.counted = 1; memory.touched += 32; }
    }
}

AICORE_ENGINE void write(const Instruction& i, Core& owner, Memory& memory, int64_t address, int64_t bytes,
                         const std::string& buffer) {
    if (bytes <= 0) return;
    int base = owner.id * kPipes + 1;
    for (int64_t c = address / 32, last = (address + bytes - 1) / 32; c <= last; ++c) {
        Cell& cell = memory.cells[c];
        if (cell.writer && !ordered(i, cell.writer, cell.writer_index))
            unordered(i, "write after write", cell.writer, cell.writer_line, cell_place(memory, c * 32, buffer));
        for (int p = 0; p < kPipes; ++p)
            if (cell.readers[p] && !ordered(i, base + p, cell.readers[p]))
                unordered(i, "write after read", base + p, cell.reader_line, cell_place(memory, c * 32, buffer));
        cell.writer = uint16_t(1 + i.core->id * kPipes + i.pipe);
        cell.writer_index = i.index;
        cell.writer_line = uint16_t(i.line);
        cell.valid |= byte_mask(c, address, bytes);
    }
}

AICORE_ENGINE void set_valid(Memory& memory, int64_t address, int64_t bytes, bool valid) {
    if (bytes <= 0) return;
    for (int64_t c = address / 32, last = (address + bytes - 1) / 32; c <= last; ++c) {
        uint32_t mask = byte_mask(c, address, bytes);
        memory.cells[c].valid = valid ? memory.cells[c].valid | mask : memory.cells[c].valid & ~mask;
    }
}

AICORE_ENGINE bool all_valid(const Memory& memory, int64_t address, int64_t bytes) {
    if (bytes <= 0) return true;
    for (int64_t c = address / 32, last = (address + bytes - 1) / 32; c <= last; ++c) {
        uint32_t mask = byte_mask(c, address, bytes);
        if ((memory.cells[c].valid & mask) != mask) return false;
    }
    return true;
}

AICORE_ENGINE void copy_valid(Memory& to, int64_t to_address, const Memory& from, int64_t from_address, int64_t bytes) {
    if (all_valid(from, from_address, bytes)) { set_valid(to, to_address, bytes, true); return; }
    for (int64_t b = 0; b < bytes; ++b) {
        bool valid = from.cells[(from_address + b) / 32].valid >> ((from_address + b) % 32) & 1;
        set_valid(to, to_address + b, 1, valid);
    }
}

// ---- Global memory

AICORE_ENGINE int gm_find(const void* pointer, int64_t bytes) {
    auto p = (const uint8_t*)pointer;
    for (size_t b = 0; b < machine->gm.size(); ++b) {
        GmBuffer& buffer = machine->gm[b];
        if (p >= buffer.base && p + bytes <= buffer.base + buffer.bytes) return int(b);
    }
    return -1;
}

inline std::string gm_name(int buffer, int64_t offset) {
    return "GM argument " + std::to_string(buffer) + " byte " + std::to_string(offset);
}

inline void gm_check(const Instruction& i, const GmAccess& before, uint32_t mask, bool atomic, bool both_write,
                     const char* kind, int buffer, int64_t offset) {
    if (!before.mask || (atomic && before.atomic) || ordered(i, before.component, before.index)) return;
    bool other = (before.component - 1) / kPipes != i.core->id;
    if ((before.mask & mask) == 0 && !(kGmWriteGrain == 32 && both_write && other)) return;
    std::string name = component_name(before.component);
    if (other)
        fail(10, i.api, i.line, gm_name(buffer, offset),
             "%s: %s touches %s 32 bytes that line %d of %s %s, with nothing that orders the two", kind, i.api,
             (before.mask & mask) ? "bytes of the" : "other bytes of the same", before.line, name.c_str(),
             both_write || kind[0] == 'r' ? "wrote" : "read");
    unordered(i, kind, before.component, before.line, gm_name(buffer, offset));
}

inline void gm_record(GmAccess& slot, std::vector<GmAccess>* more, const Instruction& i, uint32_t mask, bool atomic,
                      uint32_t& more_index, bool writes) {
    uint16_t component = uint16_t(1 + i.core->id * kPipes + i.pipe);
    GmAccess now{component, uint16_t(i.line), i.index, mask, atomic};
    bool same = slot.component == component && (!writes || slot.index == i.index || (atomic && slot.atomic));
    if (!slot.mask || same) {
        now.mask |= slot.mask;
        slot = now;
        return;
    }
    if (more)
        for (GmAccess& entry : *more)
            if (entry.component == component && (!writes || entry.index == i.index || (atomic && entry.atomic))) {
                now.mask |= entry.mask;
                entry = now;
                return;
            }
    if (!more_index) {
        more_index = uint32_t(machine->more.size());
        machine->more.emplace_back();
    }
    GmMore& list = machine->more[more_index];
    (writes ? list.writes : list.reads).push_back(now);
}

inline void gm_forget(GmAccess& slot, std::vector<GmAccess>* more, uint32_t mask) {
    slot.mask &= ~mask;
    if (!more) return;
    size_t kept = 0;
    for (GmAccess& entry : *more)
        if (entry.mask &= ~mask) (*more)[kept++] = entry;
    more->resize(kept);
}

AICORE_ENGINE int gm_access(const Instruction& i, const void* pointer, int64_t bytes, bool writes, bool atomic) {
    int number = gm_find(pointer, bytes);
    if (number < 0) {
        for (size_t b = 0; b < machine->gm.size(); ++b) {
            GmBuffer& g = machine->gm[b];
            int64_t offset = (const uint8_t*)pointer - g.base;
            if (offset > -(1 << 20) && offset < g.bytes + (1 << 16))
                fail(5, i.api, i.line, gm_name(int(b), offset), "%lld bytes from byte %lld of a GM buffer of %lld bytes",
                     (long long)bytes, (long long)offset, (long long)g.bytes);
        }
        fail(5, i.api, i.line, "GM", "%lld bytes at an address outside every GM buffer", (long long)bytes);
    }
    GmBuffer& buffer = machine->gm[number];
    int64_t address = (const uint8_t*)pointer - buffer.base;
    (writes ? buffer.bytes_written : buffer.bytes_read) += bytes;
    if (bytes <= 0) return number;
    for (int64_t c = address / 32, last = (address + bytes - 1) / 32; c <= last; ++c) {
        GmCell& cell = buffer.cells[c];
        uint32_t mask = byte_mask(c, address, bytes);
        std::vector<GmAccess>* more_writes = cell.more ? &machine->more[cell.more].writes : nullptr;
        std::vector<GmAccess>* more_reads = cell.more ? &machine->more[cell.more].reads : nullptr;
        const char* kind = writes ? "write after write" : "read after write";
        gm_check(i, cell.write, mask, atomic, writes, kind, number, c * 32);
        if (more_writes)
            for (GmAccess& entry : *more_writes) gm_check(i, entry, mask, atomic, writes, kind, number, c * 32);
        if (!writes) {
            gm_record(cell.read, more_reads, i, mask, false, cell.more, false);
            continue;
        }
        gm_check(i, cell.read, mask, false, false, "write after read", number, c * 32);
        if (more_reads)
            for (GmAccess& entry : *more_reads) gm_check(i, entry, mask, false, false, "write after read", number, c * 32);
        gm_forget(cell.read, more_reads, mask);
        if (!atomic) gm_forget(cell.write, more_writes, mask);
        gm_record(cell.write, more_writes, i, mask, atomic, cell.more, true);
    }
    return number;
}

// ---- Scheduling

AICORE_ENGINE void pause(Wait wait, int flag, int line) {
    Core& c = core();
    c.wait = wait;
    c.wait_flag = flag;
    c.wait_line = line;
    swapcontext((ucontext_t*)c.context, &scheduler_context);
}

inline uint64_t next_random() {
    machine->random ^= machine->random << 13;
    machine->random ^= machine->random >> 7;
    machine->random ^= machine->random << 17;
    return machine->random;
}

inline bool may_run(const Core& c) {
    if (c.done) return false;
    return c.wait != Wait::Cross || !c.cross[c.wait_flag].empty();
}

// Runs all cores to their end, each until it waits; the next one is drawn from the seed.
inline void run_cores() {
    std::vector<Core*> ready;
    for (;;) {
        ready.clear();
        bool left = false;
        for (auto& c : machine->cores) {
            left |= !c->done;
            if (may_run(*c)) ready.push_back(c.get());
        }
        if (!left) return;
        if (ready.empty()) {
            std::string who;
            int line = 0;
            for (auto& c : machine->cores)
                if (!c->done) {
                    if (who.size() < 600)
                        who += (who.empty() ? "" : "; ") + core_name(*c) + " waits in line " + std::to_string(c->wait_line) +
                               (c->wait_flag == 14 || c->wait_flag == 15 ? " at SyncAll" : " for cross-core flag " + std::to_string(c->wait_flag));
                    line = c->wait_line;
                }
            machine->core = nullptr;
            fail(9, "CrossCoreWaitFlag", line, "", "deadlock, no core can go on: %s", who.c_str());
        }
        Core* next = ready[next_random() % ready.size()];
        next->wait = Wait::None;
        machine->core = next;
        swapcontext(&scheduler_context, (ucontext_t*)next->context);
    }
}

}  // namespace aicore

#endif
