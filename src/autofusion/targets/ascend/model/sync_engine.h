// Definitions of sync.h.
#ifndef AICORE_SYNC_ENGINE_H
#define AICORE_SYNC_ENGINE_H

#include "engine.h"
#include "sync.h"

namespace aicore {

inline const char* event_name(AscendC::HardEvent event) {
#define AICORE_EVENT(a, b) #a "_" #b,
    static const char* names[] = {AICORE_EVENTS(AICORE_EVENT)};
#undef AICORE_EVENT
    return names[int(event)];
}

inline Flag& flag_at(AscendC::HardEvent event, int64_t id, const char* api, Where where) {
    need_core(api, where.line);
    if (id < 0 || id >= kEventIds)
        fail(9, api, where.line, event_name(event), "event id %lld, ids are 0 to %d", (long long)id, kEventIds - 1);
    Flag& flag = core().flags[int(event)][id];
    if (!core().queues.empty() && !flag.owned && !flag.fetched)
        fail(9, api, where.line, event_name(event), "id %lld was not taken with AllocEventID or FetchEventID, a TQue of the kernel may be using it",
             (long long)id);
    return flag;
}

AICORE_ENGINE void set_flag(AscendC::HardEvent event, int64_t id, Where where) {
    Flag& flag = flag_at(event, id, "SetFlag", where);
    Core& c = core();
    Pipe from = kEventPipes[int(event)][0];
    if (flag.set)
        fail(9, "SetFlag", where.line, event_name(event), "id %lld is set already, in line %d, and nobody waited for it",
             (long long)id, flag.line);
    flag.set = true;
    flag.line = where.line;
    c.free_at[from] += from == S ? 0 : kFlagCycles;
    flag.clock = after(c, from);
    machine->counters.set_flag++;
}

AICORE_ENGINE void wait_flag(AscendC::HardEvent event, int64_t id, Where where) {
    Flag& flag = flag_at(event, id, "WaitFlag", where);
    if (!flag.set)
        fail(9, "WaitFlag", where.line, event_name(event), "deadlock: nobody has set id %lld", (long long)id);
    flag.set = false;
    wait_for(core(), kEventPipes[int(event)][1], flag.clock);
    machine->counters.wait_flag++;
}

AICORE_ENGINE void pipe_barrier(int pipe, Where where) {
    need_core("PipeBarrier", where.line);
    Core& c = core();
    machine->counters.pipe_barrier++;
    if (pipe != PIPE_ALL) {
        wait_for(c, Pipe(pipe), after(c, Pipe(pipe)));
        c.free_at[pipe] += kFlagCycles;
        return;
    }
    Clock all;
    for (int p = 0; p < kPipes; ++p) join(all, after(c, Pipe(p)));
    for (int p = 0; p < kPipes; ++p) wait_for(c, Pipe(p), all);
    c.quiet = true;
}

// ---- Between cores

// What another core may know: the clock with this core's own part made explicit.
inline Clock exported(const Core& c, const Clock& clock) {
    auto all = clock.others ? std::make_shared<std::vector<uint32_t>>(*clock.others)
                            : std::make_shared<std::vector<uint32_t>>(machine->cores.size() * kPipes, 0);
    Clock out;
    for (int p = 0; p < kPipes; ++p)
        if ((*all)[c.id * kPipes + p] < clock.own[p]) (*all)[c.id * kPipes + p] = clock.own[p];
    out.others = all;
    out.time = clock.time;
    return out;
}

inline bool is_mix(KernelMetaType type) { return type != KERNEL_TYPE_AIV_ONLY && type != KERNEL_TYPE_AIC_ONLY; }
inline bool has_both(KernelMetaType type) { return type == KERNEL_TYPE_MIX_AIC_1_1 || type == KERNEL_TYPE_MIX_AIC_1_2; }

inline void check_blocks(const char* api, Where where) {
    int limit = machine->type == KERNEL_TYPE_MIX_AIV_1_0 ? kVectorCores : kCubeCores;
    if (machine->blocks > limit)
        fail(9, api, where.line, "blocks", "%d blocks, the chip has %d such cores (assumed): cores that have not started "
             "cannot arrive", machine->blocks, limit);
}

inline void check_cross_id(int mode, int64_t id, const char* api, Where where) {
    need_core(api, where.line);
    if (mode == 4 && core().kind == CoreKind::AIC && id >= 16 && id <= 26) return;  // the second vector core's
    if (id < 0 || id > 10)
        fail(9, api, where.line, "cross-core flag", "id %lld, ids are 0 to 10 (11 to 14 are SyncAll's)", (long long)id);
}

inline void arrive(Core& c, int id, const Clock& clock, const char* api, Where where) {
    if (c.cross[id].size() >= 15)
        fail(9, api, where.line, "cross-core flag", "flag %d of %s was set more than 15 times without a wait", id,
             core_name(c).c_str());
    c.cross[id].push_back(clock);
}

// Mode 4: from the Cube to one of its vector cores, or from one of them to the Cube.
inline void set_one(Core& c, int f, Clock clock, Where where) {
    int sub_block = c.kind == CoreKind::AIC ? f / 16 : c.sub_block;
    clock.time += kCrossFlagCycles;
    for (auto& other : machine->cores)
        if (other->block == c.block && other->kind != c.kind && (c.kind == CoreKind::AIV || other->sub_block == sub_block)) {
            arrive(*other, c.kind == CoreKind::AIC ? f % 16 : f + 16 * sub_block, clock, "CrossCoreSetFlag", where);
            return;
        }
    fail(9, "CrossCoreSetFlag", where.line, "cross-core flag", "flag %d: the block has no vector core %d", f, sub_block);
}

AICORE_ENGINE void cross_set(int mode, int pipe, int64_t id, Where where) {
    check_cross_id(mode, id, "CrossCoreSetFlag", where);
    Core& c = core();
    if (!is_mix(machine->type) || (mode > 0 && !has_both(machine->type)))
        fail(9, "CrossCoreSetFlag", where.line, "cross-core flag", "mode %d does not work in this kernel type", mode);
    if (mode == 0) check_blocks("CrossCoreSetFlag", where);
    if (mode == 1 && c.kind == CoreKind::AIC)
        fail(9, "CrossCoreSetFlag", where.line, "cross-core flag", "mode 1 is between the vector cores of a block");
    machine->counters.cross_set++;
    int f = int(id);
    Clock clock = exported(c, after(c, Pipe(pipe)));
    if (mode == 4) {
        set_one(c, f, clock, where);
        return;
    }
    std::vector<Core*> senders, receivers;
    for (auto& other : machine->cores) {
        bool same_block = other->block == c.block, same_kind = other->kind == c.kind;
        bool sends = mode == 0 ? same_kind : same_block && same_kind;
        bool receives = mode == 0 ? same_kind : same_block && (mode == 1 ? same_kind : !same_kind);
        if (sends) senders.push_back(other.get());
        if (receives) receivers.push_back(other.get());
    }
    if (++c.cross_sets[mode][f] > 15)
        fail(9, "CrossCoreSetFlag", where.line, "cross-core flag", "flag %d was set more than 15 times without a reverse wait", f);
    join(c.cross_clock[mode][f], clock);
    for (Core* s : senders)
        if (!s->cross_sets[mode][f]) return;
    Clock together;
    for (Core* s : senders) {
        --s->cross_sets[mode][f];
        join(together, s->cross_clock[mode][f]);
    }
    together.time += mode == 0 ? kSyncAllCycles : kCrossFlagCycles;  // over all cores, or within a block
    if (mode == 0) machine->counters.cross_meet++;
    for (Core* r : receivers) arrive(*r, f, together, "CrossCoreSetFlag", where);
}

// Delays whatever is issued from now on. What the clock knows of this core itself came back from others.
inline void pass_on(Core& c, const Clock& clock) {
    for (int p = 0; p < kPipes; ++p) {
        join(c.known[p], clock);
        for (int q = 0; clock.others && q < kPipes; ++q) {
            uint32_t own = (*clock.others)[size_t(c.id * kPipes + q)];
            if (c.known[p].own[q] < own) c.known[p].own[q] = own;
        }
        if (c.free_at[p] < clock.time) c.free_at[p] = clock.time;
    }
}

AICORE_ENGINE void cross_wait(int mode, int64_t id, Where where) {
    check_cross_id(mode, id, "CrossCoreWaitFlag", where);
    Core& c = core();
    if (!is_mix(machine->type))
        fail(9, "CrossCoreWaitFlag", where.line, "cross-core flag", "cross-core flags do not work in this kernel type");
    machine->counters.cross_wait++;
    pause(Wait::Cross, int(id), where.line);
    pass_on(c, c.cross[id].front());
    c.cross[id].erase(c.cross[id].begin());
}

AICORE_ENGINE void sync_all(bool vector_only, Where where) {
    need_core("SyncAll", where.line);
    Core& c = core();
    if (!is_mix(machine->type))
        fail(9, "SyncAll", where.line, "kernel type", "SyncAll hangs in an AIV_ONLY or AIC_ONLY kernel, it needs a mix type");
    if (!vector_only && !has_both(machine->type))
        fail(9, "SyncAll", where.line, "kernel type", "SyncAll<false> hangs in a kernel of one core kind");
    if (vector_only && c.kind == CoreKind::AIC)
        fail(9, "SyncAll", where.line, "kernel type", "SyncAll<true> is for vector cores");
    check_blocks("SyncAll", where);
    if (c.index == 0 && c.kind == CoreKind::AIV) machine->counters.sync_all++;
    // The last one to arrive lets all go on: a flag of its own, above the user's ids.
    int f = vector_only ? 15 : 14;
    Clock all;
    for (int p = 0; p < kPipes; ++p) join(all, after(c, Pipe(p)));
    join(c.cross_clock[0][f], exported(c, all));
    c.cross_sets[0][f]++;
    std::vector<Core*> members;
    bool complete = true;
    for (auto& other : machine->cores)
        if (!vector_only || other->kind == CoreKind::AIV) {
            members.push_back(other.get());
            complete &= other->cross_sets[0][f] > 0;
        }
    if (complete) {
        Clock together;
        for (Core* m : members) {
            --m->cross_sets[0][f];
            join(together, m->cross_clock[0][f]);
        }
        together.time += kSyncAllCycles;
        for (Core* m : members) m->cross[f].push_back(together);
    }
    Clock mine = all;
    pause(Wait::Cross, f, where.line);
    for (int p = 0; p < kPipes; ++p) wait_for(c, Pipe(p), mine);
    pass_on(c, c.cross[f].front());
    c.quiet = true;
    c.cross[f].erase(c.cross[f].begin());
}

// ---- The kernel's type and the core's numbers

AICORE_ENGINE void declare_type(KernelMetaType type, int line) {
    if (machine->probing) {
        machine->type = type;
        machine->declared = true;
        setcontext(&probe_context);
    }
    if (type != machine->type)
        refuse("KERNEL_TASK_TYPE_DEFAULT in line %d must come before every other call of the kernel", line);
}

AICORE_ENGINE int64_t block_idx(int line) { need_core("GetBlockIdx", line); return core().index; }
AICORE_ENGINE int64_t block_num(int line) { need_core("GetBlockNum", line); return machine->blocks; }

inline void check_flags_at_exit(const Core& c) {
    if (c.atomic)
        fail(9, "SetAtomicNone", c.atomic_line, "atomic", "the atomic operation is still on when the kernel ends: the next one finds it");
    for (int e = 0; e < kEvents; ++e)
        for (int id = 0; id < kEventIds; ++id)
            if (c.flags[e][id].set)
                fail(9, "SetFlag", c.flags[e][id].line, event_name(AscendC::HardEvent(e)),
                     "id %d is still set when the kernel ends: the next kernel finds it", id);
    for (int f = 0; f < kCrossFlags; ++f) {
        bool left = !c.cross[f].empty();
        for (int mode = 0; mode < 3; ++mode) left |= c.cross_sets[mode][f] > 0;
        if (left)
            fail(9, "CrossCoreSetFlag", c.wait_line, "cross-core flag",
                 "flag %d of %s is set when the kernel ends, and nobody waited for it", f, core_name(c).c_str());
    }
}

}  // namespace aicore

namespace AscendC {
AICORE_ENGINE int64_t GetTaskRation(aicore::Where where) {
    aicore::need_core("GetTaskRation", where.line);
    return aicore::core().kind == aicore::CoreKind::AIV && aicore::machine->type == KERNEL_TYPE_MIX_AIC_1_2 ? 2 : 1;
}
}  // namespace AscendC

#endif
