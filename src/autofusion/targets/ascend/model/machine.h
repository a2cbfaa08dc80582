// The machine: cores with pipes, clocks, on-chip memories with shadow cells, global memory with shadow cells.
//
// Modelled
//  - Instructions execute at once and in program order; what may reorder on the chip is found by clocks. Each pipe
//    counts its instructions and knows, for each pipe of each core, how many are surely complete (`Clock`). EnQue and
//    DeQue, FreeTensor and AllocTensor, SetFlag and WaitFlag, PipeBarrier, CrossCore flags and SyncAll pass this
//    knowledge on; an access that conflicts with one that is not surely complete is an error (rule 8 inside a core,
//    rule 10 between cores).
//  - The compiler's automatic synchronisation on a vector core (V-V, S with V, MTE2, MTE3) orders a conflicting pair;
//    it is not transitive here: it excuses that pair only. S-S is ordered by hardware everywhere. A wait on S delays
//    all later instructions, because S issues them.
//  - On-chip memory has one shadow cell per 32 bytes: last writer, last reader per pipe, one bit per valid byte.
//    GM has one per 32 bytes with the byte masks of writers and readers.
// Assumed
//  - A cell is the grain of on-chip hazards: two pipes on different bytes of one 32-byte block conflict.
//  - Cores run in turn, each until it waits; the order is drawn from the seed.
#ifndef AICORE_MACHINE_H
#define AICORE_MACHINE_H

#include <memory>
#include <string>
#include <vector>

#include "costs.h"

#ifdef AICORE_DECLARATIONS_ONLY
#define AICORE_ENGINE
#else
#define AICORE_ENGINE inline
#endif

namespace aicore {

struct Where { int line; };  // of the kernel's statement; always the last, defaulted argument

enum Pipe : int { S, V, M, MTE1, MTE2, MTE3, FIX, kPipes };
enum class Space : uint8_t { GM, UB, L1, L0A, L0B, L0C, BT };
constexpr int kSpaces = 7;
constexpr const char* kPipeNames[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX", "ALL"};
constexpr const char* kSpaceNames[] = {"GM", "UB", "L1", "L0A", "L0B", "L0C", "BT"};

// Rule 8 and friends: the list at the end of ASCENDC.md.
constexpr const char* kRuleNames[] = {"model", "capacity", "alignment", "dtypes", "ranges", "bounds", "queue discipline",
                                      "unwritten memory", "pipe hazard", "flags", "cross-core", "operand overlap",
                                      "numerics"};

struct Clock {
    uint32_t own[kPipes] = {};
    std::shared_ptr<const std::vector<uint32_t>> others;  // by core * kPipes + pipe; of cores that a flag came from
    double time = 0;                                      // cycles, for the modelled time
};

struct Cell {
    uint32_t valid = 0;         // a bit per byte: written since the last Alloc or Free
    uint32_t writer_index = 0;  // instruction number in `writer`
    uint16_t writer = 0;        // 1 + core * kPipes + pipe; 0: none
    uint16_t writer_line = 0, reader_line = 0;
    uint16_t counted = 0;       // counted once as both written and read
    uint32_t readers[kPipes] = {};
};

struct Memory {
    Space space = Space::UB;
    int64_t bytes = 0, usable = 0, used = 0, peak = 0, touched = 0;
    uint8_t* data = nullptr;
    Cell* cells = nullptr;
};

enum class BufferState : uint8_t { Free, Occupied, Queued, Dequeued, Scratch };
constexpr const char* kStateNames[] = {"FREE", "OCCUPIED", "ENQUE", "DEQUE", "TBUF"};

struct Buffer {  // one block of a TQue, or a TBuf
    Memory* memory = nullptr;
    int64_t address = 0, bytes = 0;
    int queue = -1;
    BufferState state = BufferState::Free;
    uint32_t generation = 0;
    bool was_freed = false;
    Clock clock;  // what EnQue or FreeTensor knew
    int line = 0;
};

struct Queue {
    AscendC::TPosition position{};
    Pipe producer = S, consumer = S;
    int depth = 1, first = 0, count = 0, next = 0;
    std::vector<int> waiting;  // buffers in state Queued, in order
};

struct GmAccess {
    uint16_t component = 0, line = 0;  // component: 1 + core * kPipes + pipe
    uint32_t index = 0, mask = 0;
    bool atomic = false;
};
struct GmCell { GmAccess write, read; uint32_t more = 0; };
struct GmMore { std::vector<GmAccess> writes, reads; };

struct GmBuffer {
    uint8_t* base = nullptr;
    int64_t bytes = 0, bytes_read = 0, bytes_written = 0;
    GmCell* cells = nullptr;
};

struct Flag { bool set = false, owned = false, fetched = false; Clock clock; int line = 0; };
constexpr int kEventIds = 8, kEvents = int(AscendC::HardEvent::MAX), kCrossFlags = 32;

enum class CoreKind : uint8_t { AIV, AIC };
enum class Wait : uint8_t { None, Cross, SyncAll };

struct Core {
    CoreKind kind = CoreKind::AIV;
    int id = 0, block = 0, sub_block = 0, index = 0;  // index: what GetBlockIdx returns
    uint32_t issued[kPipes] = {};
    Clock known[kPipes];
    double free_at[kPipes] = {};
    bool pipe_started[kPipes] = {};
    bool quiet = true;  // no instruction but the scalar unit's since all pipes were waited for
    Memory memories[kSpaces];
    std::vector<Buffer> buffers;
    std::vector<Queue> queues;
    int live_buffers = 0;
    int outstanding[16] = {};
    Flag flags[kEvents][kEventIds];
    std::vector<Clock> cross[kCrossFlags];  // arrived and not yet waited for
    int cross_sets[3][kCrossFlags] = {};    // sets not yet matched by the other cores, per mode
    Clock cross_clock[3][kCrossFlags];
    uint64_t cross_mode[kCrossFlags] = {};
    int synced = 0;                         // SyncAll passed
    void* pipe = nullptr;                   // the kernel's TPipe
    int pipes_made = 0;
    // Vector state
    uint64_t mask[2] = {~0ull, ~0ull};
    bool mask_counts = false;
    int atomic = 0, atomic_type = 0, atomic_line = 0;
    float deq_scale = 1.0f;
    bool deq_scale_set = false;
    uint8_t compare_mask[32] = {};
    int64_t reduce_count = 0;
    std::vector<std::pair<uint64_t, uint64_t>> cached;  // GM lines that S has in its cache: address, version
    // Scheduling
    Wait wait = Wait::None;
    int wait_flag = 0, wait_line = 0;
    bool done = false;
    void* context = nullptr;
};

struct Counters {
    int64_t moved[kSpaces][kSpaces] = {};
    int64_t instructions[kPipes] = {};
    int64_t sync_all = 0, cross_set = 0, cross_wait = 0, cross_meet = 0, pipe_barrier = 0, set_flag = 0, wait_flag = 0, launches = 0;
};

struct Machine {
    std::vector<std::unique_ptr<Core>> cores;
    std::vector<GmBuffer> gm;
    std::vector<GmMore> more{1};
    Counters counters;
    KernelMetaType type = KERNEL_TYPE_AIV_ONLY;
    int blocks = 1, running = 0;
    bool probing = false, declared = false;
    uint64_t random = 1;
    Core* core = nullptr;
};
inline Machine* machine = nullptr;  // the one of this process

inline Core& core() { return *machine->core; }

// An instruction in flight: begin() counts it, the accesses are checked against it, end() gives it its time.
struct Instruction {
    Core* core;
    Pipe pipe;
    uint32_t index;
    const char* api;
    int line;
    bool in_order = false;  // hardware keeps it behind the earlier ones of its pipe
};

[[noreturn]] void fail(int rule, const char* api, int line, const std::string& buffer, const char* format, ...)
    __attribute__((format(printf, 5, 6)));
[[noreturn]] void refuse(const char* format, ...) __attribute__((format(printf, 1, 2)));  // not a rule: wrong use of the model

void need_core(const char* api, int line);  // ends a probe; every entry of the API calls it or begin()
Instruction begin(Pipe pipe, const char* api, Where where);
void end(const Instruction& instruction, double cycles);

// `memory` of `owner`; bytes from `address`. Bounds have been checked. A strict read refuses unwritten bytes.
void read(const Instruction& instruction, Core& owner, Memory& memory, int64_t address, int64_t bytes, bool strict,
          const std::string& buffer);
void write(const Instruction& instruction, Core& owner, Memory& memory, int64_t address, int64_t bytes,
           const std::string& buffer);
void set_valid(Memory& memory, int64_t address, int64_t bytes, bool valid);
bool all_valid(const Memory& memory, int64_t address, int64_t bytes);
void copy_valid(Memory& to, int64_t to_address, const Memory& from, int64_t from_address, int64_t bytes);

// A GM access of `bytes` at `pointer`. Fails unless it lies in one buffer. Returns that buffer's number.
int gm_access(const Instruction& instruction, const void* pointer, int64_t bytes, bool writes, bool atomic);
int gm_find(const void* pointer, int64_t bytes);  // -1: in none

void join(Clock& into, const Clock& from);
Clock after(const Core& core, Pipe pipe);  // what is complete once all that `pipe` was given is complete
void wait_for(Core& core, Pipe pipe, const Clock& clock);  // the next instructions of `pipe` start after `clock`
std::string component_name(int component);  // "AIV3 MTE2"
std::string core_name(const Core& core);
void pause(Wait wait, int flag, int line);  // lets others run until this core may go on

inline void count_moved(Space from, Space to, int64_t bytes) {
    machine->counters.moved[int(from)][int(to)] += bytes;
}
int cores_of_kind(CoreKind kind);

// A value of the API in the instruction's own width. Rule 4.
inline void check_range(const Instruction& i, const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most)
        fail(4, i.api, i.line, name, "%s is %lld, the instruction takes %lld to %lld", name, (long long)value,
             (long long)least, (long long)most);
}

}  // namespace aicore

#endif
