// The AI Core model's `kernel_operator.h`: Ascend C source compiles against this, unmodified, and runs on the host.
//
// An independent implementation from documented behaviour. What it knows compiles; everything else of Ascend C does not.
//   types.h     element types, names         machine.h  cores, clocks, shadow cells       costs.h   every number
//   tensor.h    LocalTensor, GlobalTensor    queue.h    TPipe, TQue, TBuf                 sync.h    flags, barriers
//   copy.h      DataCopy, DataCopyPad        cube.h     Nd2Nz, LoadData, Mmad, Fixpipe    entry.h   main
//   vector.h    element-wise (vector_table.h), vector_more.h casts and fills, vector_reduce.h, vector_select.h
// The *_engine.h files hold what needs no templates: compiled once per cache folder (AICORE_DECLARATIONS_ONLY).
#ifndef KERNEL_OPERATOR_H
#define KERNEL_OPERATOR_H

#include "types.h"
#include "costs.h"
#include "machine.h"
#include "tensor.h"
#include "queue.h"
#include "sync.h"
#include "copy.h"
#include "cube.h"
#include "vector.h"
#include "vector_more.h"
#include "vector_reduce.h"
#include "vector_select.h"
#include "entry.h"

#ifndef AICORE_DECLARATIONS_ONLY
#include "all_engine.h"
#endif

#endif
