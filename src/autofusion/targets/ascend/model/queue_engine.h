// Definitions of queue.h: the life of a buffer.
#ifndef AICORE_QUEUE_ENGINE_H
#define AICORE_QUEUE_ENGINE_H

#include "engine.h"
#include "queue.h"

namespace aicore {

inline std::string buffer_name(int buffer) {
    const Buffer& b = core().buffers[buffer];
    return "buffer " + std::to_string(buffer) + (b.queue >= 0 ? " of queue " + std::to_string(b.queue) : "");
}

// ---- Views

AICORE_ENGINE std::string View::name() const {
    if (buffer < 0) return "a tensor without buffer";
    const Buffer& b = owner->buffers[buffer];
    return "buffer " + std::to_string(buffer) + (b.queue >= 0 ? " of queue " + std::to_string(b.queue) : "");
}

AICORE_ENGINE void check_use(const Instruction& i, const View& t, int64_t offset, int64_t bytes, bool writes, const char* operand) {
    if (!t.owner || t.buffer < 0)
        fail(5, i.api, i.line, operand, "operand %s is a LocalTensor that nobody allocated", operand);
    Buffer& b = t.owner->buffers[t.buffer];
    if (b.generation != t.generation || b.state == BufferState::Free)
        fail(writes ? 6 : 7, i.api, i.line, t.name(), "operand %s was given back by FreeTensor in line %d", operand, b.line);
    if (offset < 0 || bytes < 0 || offset + bytes > t.bytes || t.bytes < 0)
        fail(5, i.api, i.line, t.name(), "operand %s: bytes %lld to %lld of a tensor of %lld bytes", operand,
             (long long)offset, (long long)(offset + bytes), (long long)(t.bytes < 0 ? 0 : t.bytes));
    if (t.address < b.address || t.address + offset + bytes > b.address + b.bytes)
        fail(5, i.api, i.line, t.name(), "operand %s: bytes %lld to %lld of a buffer of %lld bytes", operand,
             (long long)(t.address + offset - b.address), (long long)(t.address + offset + bytes - b.address),
             (long long)b.bytes);
}

AICORE_ENGINE void check_align(const Instruction& i, const View& t, int64_t offset, int64_t align, const char* operand) {
    if (t.owner && (t.address + offset) % align)
        fail(2, i.api, i.line, t.name(), "operand %s starts at %s byte %lld, which is not a multiple of %lld", operand,
             kSpaceNames[int(t.space())], (long long)(t.address + offset), (long long)align);
}

AICORE_ENGINE void check_space(const Instruction& i, const View& t, Space space, const char* operand) {
    if (t.owner && t.space() != space)
        fail(6, i.api, i.line, t.name(), "operand %s lies in %s, the instruction takes it from %s", operand,
             kSpaceNames[int(t.space())], kSpaceNames[int(space)]);
}

AICORE_ENGINE void read_local(const Instruction& i, const View& t, int64_t offset, int64_t bytes, const char* operand, bool strict) {
    check_use(i, t, offset, bytes, false, operand);
    read(i, *t.owner, t.memory(), t.address + offset, bytes, strict, t.name());
}

AICORE_ENGINE void write_local(const Instruction& i, const View& t, int64_t offset, int64_t bytes, const char* operand) {
    check_use(i, t, offset, bytes, true, operand);
    write(i, *t.owner, t.memory(), t.address + offset, bytes, t.name());
}

AICORE_ENGINE void wait_for_writer(const Instruction& i, const View& t, int64_t offset) {
    const Cell& cell = t.memory().cells[(t.address + offset) / 32];
    if (!cell.writer || (cell.writer - 1) / kPipes != i.core->id) return;
    double ready = i.core->free_at[(cell.writer - 1) % kPipes];
    if (i.core->free_at[i.pipe] < ready) i.core->free_at[i.pipe] = ready;
}

inline uint64_t gm_stamp(const void* pointer) {
    int number = gm_find(pointer, 1);
    if (number < 0) return 0;
    GmBuffer& buffer = machine->gm[number];
    int64_t line = ((const uint8_t*)pointer - buffer.base) / 64;
    uint64_t stamp = 0;
    for (int64_t c = line * 2; c < line * 2 + 2 && c * 32 < buffer.bytes; ++c)
        stamp = stamp * 1000003 + buffer.cells[c].write.component * 65537ull + buffer.cells[c].write.index;
    return stamp;
}

AICORE_ENGINE void scalar_cache(const Instruction& i, const void* pointer, bool writes) {
    uint64_t line = uint64_t(pointer) / 64, stamp = gm_stamp(pointer);
    for (auto& entry : i.core->cached)
        if (entry.first == line) {
            if (!writes && entry.second != stamp)
                fail(10, i.api, i.line, "GM", "the scalar unit's cache line was read before and written by others since; "
                     "DataCacheCleanAndInvalid is missing");
            entry.second = stamp;
            return;
        }
    i.core->cached.push_back({line, stamp});
}

AICORE_ENGINE void scalar_cache_drop(const void* pointer, bool all) {
    auto& cached = core().cached;
    if (all) { cached.clear(); return; }
    for (size_t n = 0; n < cached.size(); ++n)
        if (cached[n].first == uint64_t(pointer) / 64) { cached[n] = cached.back(); cached.pop_back(); return; }
}

// ---- TPipe and queues

AICORE_ENGINE void make_pipe(void* pipe, Where where) {
    need_core("TPipe", where.line);
    Core& c = core();
    if (++c.pipes_made > 1) fail(6, "TPipe", where.line, "TPipe", "a kernel has one TPipe, this is its second");
    c.pipe = pipe;
}

AICORE_ENGINE int make_queue(AscendC::TPosition position, Pipe producer, Pipe consumer, int depth) {
    Core& c = core();
    Queue queue;
    queue.position = position;
    queue.producer = producer;
    queue.consumer = consumer;
    queue.depth = depth;
    c.queues.push_back(queue);
    return int(c.queues.size()) - 1;
}

AICORE_ENGINE int make_buffers(int queue, AscendC::TPosition position, int64_t count, int64_t bytes, Where where) {
    need_core("InitBuffer", where.line);
    Core& c = core();
    const char* space = kSpaceNames[int(space_of(position))];
    Memory& memory = c.memories[int(space_of(position))];
    if (count < 1 || count > 255)
        fail(4, "InitBuffer", where.line, space, "num is %lld, InitBuffer takes 1 to 255", (long long)count);
    if (bytes < 1 || bytes > UINT32_MAX)
        fail(4, "InitBuffer", where.line, space, "len is %lld bytes", (long long)bytes);
    if (!memory.data) fail(6, "InitBuffer", where.line, space, "core %s has no %s", core_name(c).c_str(), space);
    int64_t rounded = (bytes + 31) / 32 * 32;
    int first = int(c.buffers.size());
    if (c.live_buffers + count > kMaxBuffers)
        fail(1, "InitBuffer", where.line, space, "%lld buffers, the limit is %d", (long long)(c.live_buffers + count), kMaxBuffers);
    if (memory.used + rounded * count > memory.usable)
        fail(1, "InitBuffer", where.line, space, "needs %lld bytes of %s, %lld are usable (%lld over)",
             (long long)(memory.used + rounded * count), space, (long long)memory.usable,
             (long long)(memory.used + rounded * count - memory.usable));
    for (int64_t b = 0; b < count; ++b) {
        Buffer buffer;
        buffer.memory = &memory;
        buffer.address = memory.used;
        buffer.bytes = rounded;
        buffer.queue = queue;
        buffer.state = queue < 0 ? BufferState::Scratch : BufferState::Free;
        buffer.line = where.line;
        memory.used += rounded;
        c.buffers.push_back(buffer);
    }
    c.live_buffers += int(count);
    if (memory.used > memory.peak) memory.peak = memory.used;
    if (queue >= 0) {
        c.queues[queue].first = first;
        c.queues[queue].count = int(count);
    }
    return first;
}

inline Queue& queue_at(int queue, const char* api, Where where) {
    need_core(api, where.line);
    if (queue < 0) fail(6, api, where.line, "TQue", "InitBuffer was not called for this queue");
    return core().queues[queue];
}

inline Buffer& own_buffer(int queue, int buffer, uint32_t generation, const char* api, Where where) {
    if (buffer < 0 || core().buffers[buffer].queue != queue)
        fail(6, api, where.line, buffer < 0 ? "a tensor without buffer" : buffer_name(buffer),
             "the tensor does not belong to queue %d", queue);
    Buffer& b = core().buffers[buffer];
    if (b.generation != generation || b.state == BufferState::Free)
        fail(6, api, where.line, buffer_name(buffer), "the tensor was given back by FreeTensor in line %d", b.line);
    return b;
}

AICORE_ENGINE int alloc_buffer(int queue, Where where) {
    Queue& q = queue_at(queue, "AllocTensor", where);
    Core& c = core();
    if (!q.count) fail(6, "AllocTensor", where.line, "queue " + std::to_string(queue), "TPipe::Reset took the queue's buffers away");
    int& outstanding = c.outstanding[int(q.position)];
    if (outstanding + 1 > kMaxOutstanding)
        fail(1, "AllocTensor", where.line, "queue " + std::to_string(queue),
             "%d tensors of this TPosition are allocated at once, the limit is %d", outstanding + 1, kMaxOutstanding);
    for (int n = 0; n < q.count; ++n) {
        int index = q.first + (q.next + n) % q.count;
        Buffer& b = c.buffers[index];
        if (b.state != BufferState::Free) continue;
        q.next = (index - q.first + 1) % q.count;
        ++outstanding;
        b.state = BufferState::Occupied;
        b.generation++;
        b.line = where.line;
        if (b.was_freed) wait_for(c, q.producer, b.clock);
        set_valid(*b.memory, b.address, b.bytes, false);
        return index;
    }
    fail(6, "AllocTensor", where.line, "queue " + std::to_string(queue),
         "deadlock: none of the queue's %d buffers is free; the first was %s in line %d", q.count,
         kStateNames[int(c.buffers[q.first].state)], c.buffers[q.first].line);
}

AICORE_ENGINE void enqueue(int queue, int buffer, uint32_t generation, Where where) {
    Queue& q = queue_at(queue, "EnQue", where);
    Buffer& b = own_buffer(queue, buffer, generation, "EnQue", where);
    if (b.state == BufferState::Queued)
        fail(6, "EnQue", where.line, buffer_name(buffer), "the tensor is in the queue already, since line %d", b.line);
    if (int(q.waiting.size()) >= q.depth)
        fail(6, "EnQue", where.line, buffer_name(buffer), "%d tensors wait in a queue of depth %d",
             int(q.waiting.size()) + 1, q.depth);
    b.state = BufferState::Queued;
    b.line = where.line;
    b.clock = after(core(), q.producer);
    q.waiting.push_back(buffer);
}

AICORE_ENGINE int dequeue(int queue, Where where) {
    Queue& q = queue_at(queue, "DeQue", where);
    if (q.waiting.empty())
        fail(6, "DeQue", where.line, "queue " + std::to_string(queue), "deadlock: the queue is empty, nobody called EnQue");
    int buffer = q.waiting.front();
    q.waiting.erase(q.waiting.begin());
    Buffer& b = core().buffers[buffer];
    b.state = BufferState::Dequeued;
    b.line = where.line;
    wait_for(core(), q.consumer, b.clock);
    return buffer;
}

AICORE_ENGINE void free_buffer(int queue, int buffer, uint32_t generation, Where where) {
    Queue& q = queue_at(queue, "FreeTensor", where);
    Buffer& b = own_buffer(queue, buffer, generation, "FreeTensor", where);
    if (b.state == BufferState::Queued)
        fail(6, "FreeTensor", where.line, buffer_name(buffer), "the tensor is in the queue since line %d, DeQue comes first", b.line);
    b.state = BufferState::Free;
    b.line = where.line;
    b.was_freed = true;
    b.clock = after(core(), q.consumer);
    set_valid(*b.memory, b.address, b.bytes, false);
    --core().outstanding[int(q.position)];
}

inline void check_queues_empty(const Core& c, const char* api, int line) {
    for (size_t b = 0; b < c.buffers.size(); ++b)
        if (c.buffers[b].queue >= 0 && c.buffers[b].state != BufferState::Free)
            fail(6, api, line ? line : c.buffers[b].line, buffer_name(int(b)), "still %s since line %d: FreeTensor is missing",
                 kStateNames[int(c.buffers[b].state)], c.buffers[b].line);
}

AICORE_ENGINE void reset_pipe(Where where) {
    need_core("TPipe::Reset", where.line);
    Core& c = core();
    check_queues_empty(c, "TPipe::Reset", where.line);
    // Old views become stale, the memories and the event ids start again. No document says that it waits for anything.
    if (!c.quiet)
        fail(8, "TPipe::Reset", where.line, "TPipe", "a pipe may still be using the memories and events that it gives "
             "away; PipeBarrier<PIPE_ALL> or SyncAll has to come before it");
    for (Buffer& b : c.buffers) {
        b.state = BufferState::Free;
        b.generation++;
        b.line = where.line;
        set_valid(*b.memory, b.address, b.bytes, false);
    }
    for (Memory& memory : c.memories) memory.used = 0;
    for (Queue& queue : c.queues) queue.count = 0;
    c.live_buffers = 0;
}

AICORE_ENGINE int fetch_event(AscendC::HardEvent event, bool own, Where where) {
    need_core(own ? "AllocEventID" : "FetchEventID", where.line);
    for (int id = 0; id < kEventIds; ++id) {
        Flag& flag = core().flags[int(event)][id];
        if (flag.owned || flag.set) continue;
        flag.owned = own;
        flag.fetched = true;
        flag.line = where.line;
        return id;
    }
    fail(9, own ? "AllocEventID" : "FetchEventID", where.line, "event", "all %d event ids of this pipe pair are in use", kEventIds);
}

AICORE_ENGINE void release_event(AscendC::HardEvent event, int id, Where where) {
    need_core("ReleaseEventID", where.line);
    if (id < 0 || id >= kEventIds || !core().flags[int(event)][id].owned)
        fail(9, "ReleaseEventID", where.line, "event", "id %d was not taken with AllocEventID", id);
    core().flags[int(event)][id].owned = false;
}

}  // namespace aicore

#endif
