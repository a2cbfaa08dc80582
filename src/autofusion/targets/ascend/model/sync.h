// Flags, barriers and the core's own numbers.
//
// Modelled: SetFlag/WaitFlag per pipe pair and id, PipeBarrier, CrossCoreSetFlag modes 0, 1, 2 with their counters, on
// 3510 also mode 4 between the Cube and one of its vector cores (ids of the second are 16 more on the Cube's side),
// SyncAll as a barrier over the cores of its kind (or all), the kernel types and what each permits.
// Assumed: SyncAll waits for all pipes of a core and delays all of them; a flag id that TQue could be using must come
// from AllocEventID or FetchEventID, so bare ids are refused once the kernel has a TQue.
#ifndef AICORE_SYNC_H
#define AICORE_SYNC_H

#include "machine.h"

namespace aicore {

constexpr Pipe kEventPipes[][2] = {
#define AICORE_EVENT(a, b) {a, b},
    AICORE_EVENTS(AICORE_EVENT)
#undef AICORE_EVENT
};

void set_flag(AscendC::HardEvent event, int64_t id, Where where);
void wait_flag(AscendC::HardEvent event, int64_t id, Where where);
void pipe_barrier(int pipe, Where where);
void cross_set(int mode, int pipe, int64_t id, Where where);
void cross_wait(int mode, int64_t id, Where where);
void sync_all(bool vector_only, Where where);
void declare_type(KernelMetaType type, int line);
int64_t block_idx(int line);
int64_t block_num(int line);

}  // namespace aicore

namespace AscendC {

template <HardEvent event> void SetFlag(int64_t id, aicore::Where where = {__builtin_LINE()}) {
    aicore::set_flag(event, id, where);
}
template <HardEvent event> void WaitFlag(int64_t id, aicore::Where where = {__builtin_LINE()}) {
    aicore::wait_flag(event, id, where);
}
template <pipe_t pipe> void PipeBarrier(aicore::Where where = {__builtin_LINE()}) {
    static_assert(pipe != PIPE_S, "PipeBarrier: PIPE_S is ordered by hardware");
    aicore::pipe_barrier(pipe, where);
}
template <uint8_t mode, pipe_t pipe> void CrossCoreSetFlag(int64_t id, aicore::Where where = {__builtin_LINE()}) {
    static_assert(mode <= 2 || (!aicore::k2201 && mode == 4), "CrossCoreSetFlag: modes are 0, 1 and 2, on 3510 also 4");
    static_assert(pipe != PIPE_S && pipe != PIPE_ALL, "CrossCoreSetFlag: not for PIPE_S or PIPE_ALL");
    aicore::cross_set(mode, pipe, id, where);
}
template <uint8_t mode = 0, pipe_t pipe = PIPE_S> void CrossCoreWaitFlag(int64_t id, aicore::Where where = {__builtin_LINE()}) {
    static_assert(mode <= 2 || (!aicore::k2201 && mode == 4), "CrossCoreWaitFlag: modes are 0, 1 and 2, on 3510 also 4");
    aicore::cross_wait(mode, id, where);
}
template <bool isAIVOnly = true> void SyncAll(aicore::Where where = {__builtin_LINE()}) { aicore::sync_all(isAIVOnly, where); }

inline int64_t GetBlockIdx(aicore::Where where = {__builtin_LINE()}) { return aicore::block_idx(where.line); }
inline int64_t GetBlockNum(aicore::Where where = {__builtin_LINE()}) { return aicore::block_num(where.line); }
inline int64_t GetSubBlockIdx(aicore::Where where = {__builtin_LINE()}) {
    aicore::need_core("GetSubBlockIdx", where.line);
    return aicore::core().sub_block;
}
int64_t GetTaskRation(aicore::Where where = {__builtin_LINE()});  // documented under both spellings
inline int64_t GetTaskRatio(aicore::Where where = {__builtin_LINE()}) { return GetTaskRation(where); }
inline int64_t GetSubBlockNum(aicore::Where where = {__builtin_LINE()}) { return GetTaskRation(where); }

}  // namespace AscendC

namespace aicore {
inline bool on(CoreKind kind) { need_core("ASCEND_IS", 0); return core().kind == kind; }
}  // namespace aicore
// Written both `if ASCEND_IS_AIC {` and `if (ASCEND_IS_AIC) {`.
#define ASCEND_IS_AIC (::aicore::on(::aicore::CoreKind::AIC))
#define ASCEND_IS_AIV (::aicore::on(::aicore::CoreKind::AIV))
#define KERNEL_TASK_TYPE_DEFAULT(type) ::aicore::declare_type(type, __LINE__)

#endif
