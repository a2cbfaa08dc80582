// Every number of the model that is not a rule of the language: capacities, core counts, cycle costs.
// "doc": from Ascend C documentation. "seen": seen in public cost models, for ranking only. "assumed": a default.
#ifndef AICORE_COSTS_H
#define AICORE_COSTS_H

#include "types.h"

namespace aicore {

constexpr bool k2201 = kArch == 2201;

// Capacities in bytes (doc). UB: what TPipe hands out by default.
constexpr int64_t kUbBytes = k2201 ? 192 * 1024 : 256 * 1024;
constexpr int64_t kUbUsable = k2201 ? 192 * 1024 - 256 - 8 * 1024 : 248 * 1024;
constexpr int64_t kL1Bytes = 512 * 1024, kL1Usable = kL1Bytes - 256;
constexpr int64_t kL0aBytes = 64 * 1024, kL0bBytes = 64 * 1024;
constexpr int64_t kL0cBytes = k2201 ? 128 * 1024 : 256 * 1024;
constexpr int64_t kBtBytes = k2201 ? 1024 : 4096;
constexpr int kMaxBuffers = 64;      // doc: InitBuffer, all together
constexpr int kMaxOutstanding = 8;   // doc: AllocTensor per TPosition; event ids of a pipe pair

// Cores (assumed: a 910B with 20 AI cores; a 950 with 32).
constexpr int kCubeCores = k2201 ? 20 : 32, kVectorCores = 2 * kCubeCores;

// Two cores that write one piece of GM of this many bytes, with nothing that orders them, are an error even if their
// bytes differ. 32: careful (assumed; no document says that DataCopyPad is exact to the byte between cores). 1: bytes.
constexpr int kGmWriteGrain = 32;

// Time, in cycles unless it says otherwise.
constexpr double kClockHz = 1.8e9;           // assumed
constexpr double kLaunchMicroseconds = 5.0;  // assumed ("a launch costs microseconds")
constexpr double kSyncAllCycles = 1800;      // assumed, 1 us: SyncAll, and a flag that all cores of a kind set
constexpr double kCrossFlagCycles = 200;     // assumed: a flag within a block
constexpr double kIssueCycles = 1;           // assumed: the scalar unit hands an instruction to a pipe
constexpr double kScalarCycles = 30;         // assumed: one GetValue or SetValue
constexpr double kFlagCycles = 10;           // assumed: SetFlag, WaitFlag, PipeBarrier

// Vector: k * elements + b per instruction.
constexpr double kVectorHead = 23.2;           // seen: fp32 Add
constexpr double kVectorPerByte = 0.0206 / 4;  // seen: fp32 Add; other widths by bytes (assumed)
constexpr double kTranscendental = 4;          // assumed: Exp, Ln, Sqrt, Div ... against Add
constexpr double kGatherPerElement = 1;        // assumed

// Copies. n = cores of the kind that run.
inline double load_rate(int n) { return 9.907 + 15.896 / n; }   // seen: bytes per cycle and core, GM -> chip
inline double store_rate(int n) { return 9.96 + 3.79 / n; }     // seen: bytes per cycle and core, chip -> GM
constexpr double kLoadHead = 27, kStoreHead = 12.1;             // seen: per instruction
inline double load_pipe_head(int n, double bytes) {             // seen: once per kernel
    return bytes >= 25000 ? 32.72 * n + 1575 : 15.89 * n + 882;
}
constexpr double kStorePipeHead = 497;                          // seen: once per kernel
constexpr double kOnChipRate = 128;                             // assumed: bytes per cycle, UB <-> UB, L1 -> L0, L0C -> L1

// Cube: a 16x16x16 half fractal per cycle; float a quarter, int8 twice of it (assumed).
constexpr double kCubeHead = 30;  // assumed

}  // namespace aicore

#endif
