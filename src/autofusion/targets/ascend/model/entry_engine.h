// Definitions of entry.h: reads the request, builds the cores, runs them, writes the report as JSON.
//
// Request file: "AFMODEL1", then little-endian int64: blocks, seed, buffers, their bytes and offsets in the data file,
// tiling bytes; the tiling; the kernel's name. The data file is mapped, so what the kernel writes is in it at once.
#ifndef AICORE_ENTRY_ENGINE_H
#define AICORE_ENTRY_ENGINE_H

#include <fcntl.h>
#include <sys/mman.h>

#include "engine.h"
#include "entry.h"
#include "queue_engine.h"
#include "sync_engine.h"

namespace aicore {

constexpr size_t kStackBytes = 512 * 1024, kGuardBytes = 1 << 20;

inline void add_memory(Core& core, Space space, int64_t bytes, int64_t usable) {
    Memory& m = core.memories[int(space)];
    m.space = space;
    m.bytes = bytes;
    m.usable = usable;
    m.data = (uint8_t*)calloc(size_t(bytes) + 64, 1);
    m.cells = (Cell*)calloc(size_t(bytes / 32) + 2, sizeof(Cell));
    if (!m.data || !m.cells) refuse("out of host memory");
}

inline void add_core(CoreKind kind, int block, int sub_block, int index) {
    auto core = std::make_unique<Core>();
    core->kind = kind;
    core->id = int(machine->cores.size());
    core->block = block;
    core->sub_block = sub_block;
    core->index = index;
    if (kind == CoreKind::AIV) {
        add_memory(*core, Space::UB, kUbBytes, kUbUsable);
        // On 3510 each side names places in the other's memory; the bytes are the owner's.
        if (!k2201) add_memory(*core, Space::L1, kL1Bytes, kL1Usable);
    } else {
        if (!k2201) add_memory(*core, Space::UB, kUbBytes, kUbUsable);
        add_memory(*core, Space::L1, kL1Bytes, kL1Usable);
        add_memory(*core, Space::L0A, kL0aBytes, kL0aBytes);
        add_memory(*core, Space::L0B, kL0bBytes, kL0bBytes);
        add_memory(*core, Space::L0C, kL0cBytes, kL0cBytes);
        add_memory(*core, Space::BT, kBtBytes, kBtBytes);
    }
    machine->cores.push_back(std::move(core));
}

inline void make_cores() {
    for (int b = 0; b < machine->blocks; ++b) {
        KernelMetaType t = machine->type;
        bool cube = t != KERNEL_TYPE_AIV_ONLY && t != KERNEL_TYPE_MIX_AIV_1_0;
        int vectors = t == KERNEL_TYPE_MIX_AIC_1_2 ? 2 : (t == KERNEL_TYPE_AIC_ONLY || t == KERNEL_TYPE_MIX_AIC_1_0) ? 0 : 1;
        if (cube) add_core(CoreKind::AIC, b, 0, b);
        for (int v = 0; v < vectors; ++v) add_core(CoreKind::AIV, b, v, b * vectors + v);
    }
}

inline const Entry* running_entry = nullptr;
inline const Arguments* running_arguments = nullptr;

inline void core_main() {
    Core& c = core();
    running_entry->call(*running_arguments);
    check_queues_empty(c, "FreeTensor", 0);
    c.done = true;
    setcontext(&scheduler_context);
}

inline void probe_main() {
    running_entry->call(*running_arguments);
    setcontext(&probe_context);
}

inline ucontext_t* make_context(void (*body)()) {
    auto context = new ucontext_t;
    getcontext(context);
    void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) refuse("out of host memory");
    mprotect(stack, 4096, PROT_NONE);
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = kStackBytes;
    context->uc_link = nullptr;
    makecontext(context, body, 0);
    return context;
}

// Runs the kernel up to its first call of the API, which is KERNEL_TASK_TYPE_DEFAULT if it has one.
inline void probe() {
    Core dummy;
    machine->core = &dummy;
    machine->probing = true;
    ucontext_t* context = make_context(probe_main);
    swapcontext(&probe_context, context);
    machine->probing = false;
    machine->core = nullptr;
    munmap(context->uc_stack.ss_sp, kStackBytes);
    delete context;
}

inline double slowest(CoreKind kind, int limit) {
    std::vector<double> slots(size_t(limit), 0.0);
    double longest = 0;
    size_t next = 0;
    for (auto& c : machine->cores) {
        if (c->kind != kind) continue;
        double mine = 0;
        for (double t : c->free_at) mine = t > mine ? t : mine;
        double& slot = slots[next++ % slots.size()];
        slot += mine;
        longest = slot > longest ? slot : longest;
    }
    return longest;
}

inline void write_report() {
    FILE* f = report_file;
    Counters& n = machine->counters;
    fprintf(f, "{\"moved\": {");
    const char* comma = "";
    for (int a = 0; a < kSpaces; ++a)
        for (int b = 0; b < kSpaces; ++b)
            if (n.moved[a][b]) {
                fprintf(f, "%s\"%s->%s\": %lld", comma, kSpaceNames[a], kSpaceNames[b], (long long)n.moved[a][b]);
                comma = ", ";
            }
    fprintf(f, "}, \"gm_read\": [");
    for (size_t b = 0; b < machine->gm.size(); ++b) fprintf(f, "%s%lld", b ? ", " : "", (long long)machine->gm[b].bytes_read);
    fprintf(f, "], \"gm_written\": [");
    for (size_t b = 0; b < machine->gm.size(); ++b) fprintf(f, "%s%lld", b ? ", " : "", (long long)machine->gm[b].bytes_written);
    fprintf(f, "], \"instructions\": {");
    for (int p = 0; p < kPipes; ++p) fprintf(f, "%s\"%s\": %lld", p ? ", " : "", kPipeNames[p], (long long)n.instructions[p]);
    fprintf(f, "}, \"synchronisation\": {\"SyncAll\": %lld, \"CrossCoreSetFlag\": %lld, \"CrossCoreWaitFlag\": %lld, "
               "\"CrossCoreMeet\": %lld, \"PipeBarrier\": %lld, \"SetFlag\": %lld, \"WaitFlag\": %lld}",
            (long long)n.sync_all, (long long)n.cross_set, (long long)n.cross_wait, (long long)n.cross_meet, (long long)n.pipe_barrier,
            (long long)n.set_flag, (long long)n.wait_flag);
    int64_t peak[kSpaces] = {}, touched[kSpaces] = {};
    for (auto& c : machine->cores)
        for (int s = 0; s < kSpaces; ++s) {
            if (c->memories[s].peak > peak[s]) peak[s] = c->memories[s].peak;
            if (c->memories[s].touched > touched[s]) touched[s] = c->memories[s].touched;
        }
    for (int which = 0; which < 2; ++which) {
        fprintf(f, which ? "}, \"used\": {" : ", \"allocated\": {");
        for (int s = 1; s < kSpaces; ++s)
            fprintf(f, "%s\"%s\": %lld", s > 1 ? ", " : "", kSpaceNames[s], (long long)(which ? touched : peak)[s]);
    }
    double vector = slowest(CoreKind::AIV, kVectorCores), cube = slowest(CoreKind::AIC, kCubeCores);
    double cycles = vector > cube ? vector : cube;
    fprintf(f, "}, \"launches\": 1, \"cores\": {\"AIC\": %d, \"AIV\": %d}, \"cycles\": %.1f, \"microseconds\": %.4f}\n",
            cores_of_kind(CoreKind::AIC), cores_of_kind(CoreKind::AIV), cycles, kLaunchMicroseconds + cycles / kClockHz * 1e6);
    fflush(f);
}

inline int64_t take(FILE* f) {
    int64_t value = 0;
    if (fread(&value, 8, 1, f) != 1) refuse("the request file is short");
    return value;
}

// Each buffer is mapped on its own, with a gap before and after it that nothing may touch.
inline void map_buffers(const char* path, const std::vector<int64_t>& bytes, const std::vector<int64_t>& offsets) {
    size_t total = kGuardBytes;
    for (int64_t b : bytes) total += (size_t(b) + 4095) / 4096 * 4096 + kGuardBytes;
    auto arena = (uint8_t*)mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int file = open(path, O_RDWR);
    if (arena == MAP_FAILED || file < 0) refuse("the buffers cannot be mapped");
    uint8_t* at = arena + kGuardBytes;
    for (size_t b = 0; b < bytes.size(); ++b) {
        size_t same = 0;
        while (same < b && !(bytes[b] && offsets[same] == offsets[b])) ++same;
        if (same < b) {  // one array for two parameters: one address, counted at the first
            GmBuffer alias = machine->gm[same];
            alias.bytes_read = alias.bytes_written = 0;
            machine->gm.push_back(alias);
            continue;
        }
        GmBuffer buffer;
        buffer.base = at;
        buffer.bytes = bytes[b];
        buffer.cells = (GmCell*)calloc(size_t(bytes[b] / 32 + 2), sizeof(GmCell));
        if (bytes[b] && mmap(at, size_t(bytes[b]), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, offsets[b]) == MAP_FAILED)
            refuse("buffer %d cannot be mapped", int(b));
        machine->gm.push_back(buffer);
        at += (size_t(bytes[b]) + 4095) / 4096 * 4096 + kGuardBytes;
    }
    close(file);
}

AICORE_ENGINE int run_main(int argc, char** argv, const Entry* entries, int count) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s REQUEST DATA REPORT\n", argv[0]);
        return 2;
    }
    machine = new Machine;
    report_file = fopen(argv[3], "w");
    FILE* f = fopen(argv[1], "rb");
    char magic[9] = {};
    if (!report_file || !f || fread(magic, 8, 1, f) != 1 || std::string(magic) != "AFMODEL1") refuse("no request file");
    machine->blocks = int(take(f));
    machine->random = uint64_t(take(f)) * 2654435761u + 88172645463325252ull;
    size_t buffers = size_t(take(f));
    std::vector<int64_t> bytes(buffers), offsets(buffers);
    for (auto& b : bytes) b = take(f);
    for (auto& o : offsets) o = take(f);
    std::vector<uint8_t> tiling(size_t(take(f)));
    if (!tiling.empty() && fread(tiling.data(), tiling.size(), 1, f) != 1) refuse("the request file is short");
    std::string name(size_t(take(f)), ' ');
    if (!name.empty() && fread(&name[0], name.size(), 1, f) != 1) refuse("the request file is short");
    fclose(f);

    for (int e = 0; e < count; ++e)
        if (name == entries[e].name) running_entry = &entries[e];
    if (!running_entry) refuse("no kernel %s in this executable", name.c_str());
    if (running_entry->buffers != int(buffers))
        refuse("kernel %s takes %d GM_ADDR, %d buffers were given", name.c_str(), running_entry->buffers, int(buffers));
    int64_t expected = running_entry->tiling < 0 ? 0 : running_entry->tiling;
    if (expected != int64_t(tiling.size()))
        refuse("kernel %s takes %lld bytes of tiling, %lld were given", name.c_str(), (long long)expected, (long long)tiling.size());
    if (machine->blocks < 1 || machine->blocks > 4096) refuse("blocks is %d: 1 to 4096", machine->blocks);

    map_buffers(argv[2], bytes, offsets);
    Arguments arguments;
    for (auto& b : machine->gm) arguments.buffers.push_back(b.base);
    arguments.tiling = tiling.data();
    running_arguments = &arguments;

    probe();
    make_cores();
    for (auto& c : machine->cores) c->context = make_context(core_main);
    machine->counters.launches = 1;
    run_cores();
    for (auto& c : machine->cores) {
        machine->core = c.get();
        check_flags_at_exit(*c);
    }
    machine->core = nullptr;
    write_report();
    _exit(0);
}

}  // namespace aicore

#endif
