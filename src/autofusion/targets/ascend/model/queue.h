// TPipe, TQue, TQueBind, TBuf: buffers, their four states, and the edges that they give.
//
// Modelled: buffers are laid out one after another per memory, each rounded up to 32 bytes; EnQue records what the
// producer's pipe has been given and DeQue makes the consumer's pipe wait for it; FreeTensor and the next AllocTensor
// do the same the other way round. A buffer's bytes are poisoned by AllocTensor and by FreeTensor. TBuf has no edges.
// FreeTensor also takes a tensor that was never in the queue (a scratch tensor, as documented examples have it).
// Assumed: AllocTensor takes the blocks of a queue in turn (a ring), and fails if the next one is not free and no
// other is: nothing else could free it, so it would wait for ever.
#ifndef AICORE_QUEUE_H
#define AICORE_QUEUE_H

#include "tensor.h"

namespace aicore {

// Who fills a block of the queue, and who takes it.
constexpr Pipe producer_of(AscendC::TPosition from, AscendC::TPosition) {
    using P = AscendC::TPosition;
    switch (from) {
        case P::VECIN: case P::A1: case P::B1: case P::C1: return MTE2;
        case P::VECOUT: return V;
        case P::A2: case P::B2: case P::C2: return MTE1;
        case P::CO1: return M;
        default: return S;
    }
}
constexpr Pipe consumer_of(AscendC::TPosition from, AscendC::TPosition to) {
    using P = AscendC::TPosition;
    if (from == P::VECIN && to == P::VECOUT) return MTE3;
    switch (to) {
        case P::VECIN: return V;
        case P::VECOUT: return MTE3;
        case P::A1: case P::B1: case P::C1: return MTE1;
        case P::A2: case P::B2: case P::C2: return M;
        case P::CO1: return FIX;
        default: return S;
    }
}

void make_pipe(void* pipe, Where where);
int make_queue(AscendC::TPosition position, Pipe producer, Pipe consumer, int depth);
int make_buffers(int queue, AscendC::TPosition position, int64_t count, int64_t bytes, Where where);  // the first one
int alloc_buffer(int queue, Where where);
void enqueue(int queue, int buffer, uint32_t generation, Where where);
int dequeue(int queue, Where where);
void free_buffer(int queue, int buffer, uint32_t generation, Where where);
void reset_pipe(Where where);
int fetch_event(AscendC::HardEvent event, bool own, Where where);
void release_event(AscendC::HardEvent event, int id, Where where);

template <typename T> AscendC::LocalTensor<T> view_of(int buffer, AscendC::TPosition position) {
    AscendC::LocalTensor<T> view;
    Buffer& b = core().buffers[buffer];
    static_cast<View&>(view) = {&core(), b.address, b.bytes, buffer, b.generation, position};
    return view;
}

}  // namespace aicore

namespace AscendC {

template <TPosition src, TPosition dst, int32_t depth, auto mask = 0> class TQueBind {
    static_assert(src == dst || (src == TPosition::VECIN && dst == TPosition::VECOUT),
                  "TQueBind: the model knows VECIN to VECOUT");
    static_assert(src != TPosition::GM && src != TPosition::VECCALC && src != TPosition::CO2,
                  "TQue: positions are VECIN, VECOUT, A1, A2, B1, B2, C1, C2, CO1");
    static_assert(depth >= 1, "TQue: depth 0 (tensors in place) is not in the model");
    static_assert(mask == 0, "TQue: format conversion in the queue is not in the model");

public:
    int queue = -1;

    template <typename T> LocalTensor<T> AllocTensor(aicore::Where where = {__builtin_LINE()}) {
        return aicore::view_of<T>(aicore::alloc_buffer(queue, where), src);
    }
    template <typename T> bool EnQue(const LocalTensor<T>& tensor, aicore::Where where = {__builtin_LINE()}) {
        aicore::enqueue(queue, tensor.buffer, tensor.generation, where);
        return true;
    }
    template <typename T> LocalTensor<T> DeQue(aicore::Where where = {__builtin_LINE()}) {
        return aicore::view_of<T>(aicore::dequeue(queue, where), dst);
    }
    template <typename T> void FreeTensor(LocalTensor<T>& tensor, aicore::Where where = {__builtin_LINE()}) {
        aicore::free_buffer(queue, tensor.buffer, tensor.generation, where);
    }
    bool HasTensorInQue() const { return !aicore::core().queues[queue].waiting.empty(); }
    int32_t GetTensorCountInQue() const { return int32_t(aicore::core().queues[queue].waiting.size()); }
};

template <TPosition pos, int32_t depth, auto mask = 0> class TQue : public TQueBind<pos, pos, depth, mask> {};

template <TPosition pos = TPosition::VECCALC> class TBuf {
public:
    int buffer = -1;

    template <typename T> LocalTensor<T> Get(aicore::Where where = {__builtin_LINE()}) {
        if (buffer < 0) aicore::fail(6, "TBuf::Get", where.line, "TBuf", "InitBuffer was not called");
        return aicore::view_of<T>(buffer, pos);
    }
    template <typename T> LocalTensor<T> Get(uint32_t length, aicore::Where where = {__builtin_LINE()}) {
        return GetWithOffset<T>(length, 0, where);
    }
    template <typename T>
    LocalTensor<T> GetWithOffset(uint32_t length, uint32_t offset, aicore::Where where = {__builtin_LINE()}) {
        LocalTensor<T> view = Get<T>(where);
        if (int64_t(length) * int64_t(sizeof(T)) + offset > view.bytes)
            aicore::fail(5, "TBuf::Get", where.line, view.name(), "%u elements from byte %u of a buffer of %lld bytes",
                         length, offset, (long long)view.bytes);
        view.address += offset;
        view.bytes = int64_t(length) * int64_t(sizeof(T));
        return view;
    }
};

class TPipe {
public:
    explicit TPipe(aicore::Where where = {__builtin_LINE()}) { aicore::make_pipe(this, where); }
    TPipe(const TPipe&) = delete;

    template <TPosition src, TPosition dst, int32_t depth, auto mask>
    bool InitBuffer(TQueBind<src, dst, depth, mask>& queue, int64_t count, int64_t bytes,
                    aicore::Where where = {__builtin_LINE()}) {
        if (queue.queue >= 0 && aicore::core().queues[queue.queue].count) aicore::fail(6, "InitBuffer", where.line, "TQue", "the queue has its buffers already");
        queue.queue = aicore::make_queue(src, aicore::producer_of(src, dst), aicore::consumer_of(src, dst), depth);
        aicore::make_buffers(queue.queue, src, count, bytes, where);
        return true;
    }
    template <TPosition pos> bool InitBuffer(TBuf<pos>& buffer, int64_t bytes, aicore::Where where = {__builtin_LINE()}) {
        buffer.buffer = aicore::make_buffers(-1, pos, 1, bytes, where);
        return true;
    }
    void Reset(aicore::Where where = {__builtin_LINE()}) { aicore::reset_pipe(where); }
    template <HardEvent event> int8_t AllocEventID(aicore::Where where = {__builtin_LINE()}) {
        return int8_t(aicore::fetch_event(event, true, where));
    }
    template <HardEvent event> void ReleaseEventID(int8_t id, aicore::Where where = {__builtin_LINE()}) {
        aicore::release_event(event, id, where);
    }
    int8_t FetchEventID(HardEvent event, aicore::Where where = {__builtin_LINE()}) {
        return int8_t(aicore::fetch_event(event, false, where));
    }
    template <HardEvent event> int8_t FetchEventID(aicore::Where where = {__builtin_LINE()}) {
        return int8_t(aicore::fetch_event(event, false, where));
    }
};

inline TPipe* GetTPipePtr(aicore::Where where = {__builtin_LINE()}) {
    aicore::need_core("GetTPipePtr", where.line);
    if (!aicore::core().pipe) aicore::fail(6, "GetTPipePtr", where.line, "TPipe", "the kernel has no TPipe");
    return static_cast<TPipe*>(aicore::core().pipe);
}

}  // namespace AscendC

#endif
