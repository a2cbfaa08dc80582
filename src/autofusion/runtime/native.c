/* The native runtime of the CPU target: walks a SuperKernel plan with a pool of resident workers.
 *
 * A plan is phases of tasks; a launch gives each task a number of chunks. The chunks of a phase, its tasks laid end to
 * end, are cut into one contiguous share per worker. A worker claims ranges off the front of its own share, then off
 * the back of what others have left. The caller is worker 0 and walks the phases; a phase is over when its chunks are
 * finished, whoever ran them: a worker that sleeps through a phase costs nothing but its help.
 *
 * One invariant makes late workers harmless. A worker reads the phase in flight (`pool.work`) only while it holds
 * chunks that it claimed and has not reported as finished, and the caller changes the phase only when every chunk is
 * finished. A claim is a compare-and-swap on the share as it is now, so it cannot hand out a chunk of the past.
 */
#include "native.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

enum {
    MAX_WORKERS = 1024,
    PAGE = 4096,
    LINE = 128,          /* two cache lines: the adjacent-line prefetcher pairs them */
    SPIN_NS = 100000,    /* about the time that Python needs between two launches */
    EAGER_SPINS = 200,   /* looks without a pause: one takes up to 140 cycles, as long as a short barrier */
    CROWDED_SPIN_NS = 2000, /* more workers than CPUs: whoever spins holds up whoever works */
};

typedef void (*af_kernel)(void *const *buffers, const int64_t *symbols, int64_t begin, int64_t end, char *scratch,
                          int64_t *status);

/* ------------------------------------------------------------------------------------------------- what is launched */

typedef struct {
    af_kernel kernel;
    size_t first_buffer; /* into the plan's `indices` and the launch's `table` */
    size_t chunk_slot;
} Task;

typedef struct {
    PyObject_HEAD
    Task *tasks; /* all phases, in order */
    size_t task_count;
    size_t *phase_ends; /* phase p is tasks [phase_ends[p - 1], phase_ends[p]) */
    size_t phase_count;
    size_t *indices; /* all tasks' buffer indices, in order */
    size_t index_count;
    size_t least_pointers, least_chunks; /* the lengths that a launch's arrays need at least */
    size_t widest_phase;
    size_t scratch_bytes; /* of the task that needs most */
} Plan;

/* What a kernel runs with besides its arguments: private to one worker, kept between launches. */
typedef struct {
    char *scratch;
    size_t scratch_bytes;
    int64_t status[2]; /* operator + 1 (0: fine), position */
} Lane;

/* A calling thread's lane, and its launch's arrays in one block that is reused. */
typedef struct Caller {
    Lane lane;
    void *block;
    size_t block_bytes;
    struct Caller *next;
} Caller;

typedef struct {
    const Plan *plan;
    void **table;    /* [index_count] pointers, each task's side by side */
    int64_t *counts; /* [task_count] chunks; copied, for another thread may write the array meanwhile */
    int64_t *starts; /* [widest_phase + 1] the first chunk of each task of the phase in flight, and their total */
    const int64_t *symbols;
    size_t scratch_bytes, workers;
} Launch;

/* A phase, or the round of a very long one, in flight. */
typedef struct {
    const Task *tasks;
    size_t task_count;
    void *const *table;
    const int64_t *starts;
    const int64_t *symbols;
    int64_t base; /* chunk number that position 0 of the shares stands for */
} Work;

/* --------------------------------------------------------------------------------------------------------- the pool */

typedef struct {
    alignas(LINE) _Atomic uint64_t share; /* workers:16 | begin:24 | end:24 */
    _Atomic uint32_t calls;               /* counts up when there is work; the worker parks on it */
    _Atomic uint32_t parked;
    pthread_t thread;
    alignas(LINE) Lane lane;
} Slot;

#define FIELD ((UINT64_C(1) << 24) - 1)
#define ROUND ((int64_t)FIELD) /* chunks of one round: what a share's fields can count */

typedef struct {
    _Atomic bool busy; /* one launch at a time */
    _Atomic bool stopping;
    _Atomic uint32_t size;    /* resident threads, in slots 1..size */
    _Atomic uint32_t spin_ns; /* how long a worker or the caller spins before it parks */
    uint32_t cpus;
    Work work; /* see the invariant at the top */
    alignas(LINE) _Atomic uint32_t parked; /* how many workers are parked or about to */
    alignas(LINE) _Atomic uint32_t unfinished; /* chunks << 1 | the caller is parked */
    _Atomic bool failed;                       /* some lane's status is set */
    Slot slots[MAX_WORKERS + 1]; /* slot 0 is the caller's share, its lane is in its Caller; the last is never used */
} Pool;

static Pool pool;
static Caller *spare_callers; /* guarded by the GIL */

/* ---------------------------------------------------------------------------------------------------- spin and park */

#ifdef __linux__
static void park(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void unpark(_Atomic uint32_t *word)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
#else
static pthread_mutex_t park_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t park_changed = PTHREAD_COND_INITIALIZER;

static void park(_Atomic uint32_t *word, uint32_t value)
{
    pthread_mutex_lock(&park_mutex);
    while (atomic_load_explicit(word, memory_order_acquire) == value)
        pthread_cond_wait(&park_changed, &park_mutex);
    pthread_mutex_unlock(&park_mutex);
}

static void unpark(_Atomic uint32_t *word)
{
    (void)word;
    pthread_mutex_lock(&park_mutex);
    pthread_cond_broadcast(&park_changed);
    pthread_mutex_unlock(&park_mutex);
}
#endif

static inline void pause_cpu(void)
{
#if defined(__SSE2__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

int64_t af_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Spins while waits(*word, value); false where the time to spin was up first. */
static bool spin_while(_Atomic uint32_t *word, bool (*waits)(uint32_t now, uint32_t value), uint32_t value)
{
    int64_t budget = atomic_load_explicit(&pool.spin_ns, memory_order_relaxed), deadline = 0;
    for (int i = 0; i < EAGER_SPINS; i++)
        if (!waits(atomic_load_explicit(word, memory_order_acquire), value))
            return true;
    for (;;) {
        for (int i = 0; i < 32; i++) {
            if (!waits(atomic_load_explicit(word, memory_order_acquire), value))
                return true;
            pause_cpu();
        }
        int64_t now = af_now_ns();
        if (deadline == 0)
            deadline = now + budget;
        else if (now >= deadline)
            return false;
    }
}

static bool is_same(uint32_t now, uint32_t value)
{
    return now == value;
}

static bool has_chunks(uint32_t now, uint32_t value)
{
    (void)value;
    return now >> 1 != 0;
}

/* ---------------------------------------------------------------------------------------------- floating-point mode */

/* Kernels run in the default mode on every worker: else a caller that flushes denormals, say, would make a result
 * depend on which worker ran which chunk. Workers inherit the mode, for a launch starts them. Returns what
 * leave_fp_mode restores. */
static uint64_t enter_fp_mode(void)
{
#if defined(__SSE2__)
    unsigned found = _mm_getcsr(), control = found & 0xffc0u;
    if (control != 0x1f80u) /* exceptions masked, round to nearest, denormals kept */
        _mm_setcsr((found & 0x3fu) | 0x1f80u);
    return control;
#elif defined(__aarch64__)
    uint64_t found;
    __asm__ volatile("mrs %0, fpcr" : "=r"(found));
    if (found != 0)
        __asm__ volatile("msr fpcr, %0" ::"r"(UINT64_C(0)));
    return found;
#else
    return 0;
#endif
}

static void leave_fp_mode(uint64_t found)
{
#if defined(__SSE2__)
    if (found != 0x1f80u)
        _mm_setcsr((_mm_getcsr() & 0x3fu) | (unsigned)found);
#elif defined(__aarch64__)
    if (found != 0)
        __asm__ volatile("msr fpcr, %0" ::"r"(found));
#else
    (void)found;
#endif
}

/* ----------------------------------------------------------------------------------------------- claim, run, report */

static uint64_t pack_share(uint64_t workers, uint64_t begin, uint64_t end)
{
    return workers << 48 | begin << 24 | end;
}

/* Takes a quarter of what is left, at least one chunk: few claims on the way, single chunks at the tail, and a worker
 * that loses its CPU holds up at most a quarter of a share. The owner takes the front, others the back. */
static bool claim(_Atomic uint64_t *share, size_t self, bool own, int64_t *begin, int64_t *end)
{
    uint64_t word = atomic_load_explicit(share, memory_order_relaxed);
    for (;;) {
        uint64_t first = (word >> 24) & FIELD, last = word & FIELD;
        if (first == last || self >= word >> 48)
            return false;
        uint64_t take = (last - first + 3) / 4;
        uint64_t rest = own ? word + (take << 24) : word - take;
        /* acquire: the phase was written before its shares */
        if (atomic_compare_exchange_weak_explicit(share, &word, rest, memory_order_acquire, memory_order_relaxed)) {
            *begin = (int64_t)(own ? first : last - take);
            *end = *begin + (int64_t)take;
            return true;
        }
    }
}

/* Runs the phase's chunks [begin, end), which may span tasks. */
static void run_chunks(const Work *work, Lane *lane, int64_t begin, int64_t end)
{
    size_t task = 0, above = work->task_count;
    while (above - task > 1) { /* the last task that starts at or before `begin`: the one that holds it */
        size_t middle = task + (above - task) / 2;
        if (work->starts[middle] <= begin)
            task = middle;
        else
            above = middle;
    }
    for (; begin < end; task++) {
        int64_t start = work->starts[task], stop = work->starts[task + 1];
        stop = stop < end ? stop : end;
        if (begin == stop)
            continue; /* no chunks in this launch */
        const Task *it = &work->tasks[task];
        it->kernel(work->table + it->first_buffer, work->symbols, begin - start, stop - start, lane->scratch,
                   lane->status);
        begin = stop;
    }
}

static void report_finished(const Lane *lane, uint32_t chunks)
{
    if (lane->status[0] != 0)
        atomic_store_explicit(&pool.failed, true, memory_order_relaxed);
    /* release: the chunks' stores, the flag, and our last look at pool.work, come before the end of the phase */
    uint32_t before = atomic_fetch_sub_explicit(&pool.unfinished, chunks << 1, memory_order_release);
    if (before - (chunks << 1) == 1)
        unpark(&pool.unfinished);
}

/* Own share first, then the others' leftovers, the neighbours' first. One pass is enough: shares only shrink. */
static void work_as(size_t self, Lane *lane)
{
    size_t workers = atomic_load_explicit(&pool.slots[self].share, memory_order_relaxed) >> 48;
    for (size_t step = 0; step < workers; step++) {
        _Atomic uint64_t *share = &pool.slots[(self + step) % workers].share;
        int64_t begin, end;
        uint32_t finished = 0; /* told once per share: the counter is the line that all workers fight for */
        while (claim(share, self, step == 0, &begin, &end)) {
            run_chunks(&pool.work, lane, pool.work.base + begin, pool.work.base + end);
            finished += (uint32_t)(end - begin);
        }
        if (finished != 0)
            report_finished(lane, finished);
    }
}

/* ------------------------------------------------------------------------------------------------------ the workers */

static uint32_t wait_for_call(Slot *slot, uint32_t seen)
{
    if (!spin_while(&slot->calls, is_same, seen)) {
        atomic_store_explicit(&slot->parked, 1, memory_order_relaxed);
        /* Either this comes before the caller's look at pool.parked, which then wakes us, or it reads what that look
         * wrote, and we see the call. */
        atomic_fetch_add_explicit(&pool.parked, 1, memory_order_acq_rel);
        while (atomic_load_explicit(&slot->calls, memory_order_acquire) == seen)
            park(&slot->calls, seen);
        atomic_store_explicit(&slot->parked, 0, memory_order_relaxed);
        atomic_fetch_sub_explicit(&pool.parked, 1, memory_order_relaxed);
    }
    return atomic_load_explicit(&slot->calls, memory_order_acquire);
}

static void *worker_main(void *argument)
{
    Slot *slot = argument;
    uint32_t seen = 0;
    for (;;) {
        seen = wait_for_call(slot, seen);
        if (atomic_load_explicit(&pool.stopping, memory_order_relaxed))
            return NULL;
        work_as((size_t)(slot - pool.slots), &slot->lane);
    }
}

/* Wakes workers 1..workers-1 where they are parked; those that spin see the call by themselves. */
static void call_workers(size_t workers)
{
    for (size_t i = 1; i < workers; i++) {
        uint32_t calls = atomic_load_explicit(&pool.slots[i].calls, memory_order_relaxed);
        atomic_store_explicit(&pool.slots[i].calls, calls + 1, memory_order_release);
    }
    /* a write that changes nothing: it orders the calls before a worker's decision to park (see wait_for_call) */
    if (atomic_fetch_add_explicit(&pool.parked, 0, memory_order_acq_rel) == 0)
        return;
    for (size_t i = 1; i < workers; i++)
        if (atomic_load_explicit(&pool.slots[i].parked, memory_order_relaxed))
            unpark(&pool.slots[i].calls);
}

static uint32_t count_cpus(void)
{
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return (uint32_t)CPU_COUNT(&set);
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

static bool start_worker(uint32_t index)
{
    Slot *slot = &pool.slots[index];
    atomic_store_explicit(&slot->calls, 0, memory_order_relaxed);
    sigset_t all, before; /* signals are for the threads that Python knows */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&slot->thread, NULL, worker_main, slot) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
#ifdef __linux__
    if (started) {
        char name[16];
        snprintf(name, sizeof name, "autofusion-%u", (unsigned)(index % 10000));
        pthread_setname_np(slot->thread, name);
    }
#endif
    return started;
}

static bool grow_scratch(Lane *lane, size_t bytes)
{
    if (bytes <= lane->scratch_bytes)
        return true;
    size_t rounded = (bytes + PAGE - 1) / PAGE * PAGE;
    free(lane->scratch);
    lane->scratch = aligned_alloc(PAGE, rounded);
    lane->scratch_bytes = lane->scratch ? rounded : 0;
    return lane->scratch != NULL;
}

/* Makes workers 1..workers-1 ready, as many as the system gives; returns how many there are, the caller included. */
static size_t gather_workers(size_t workers, size_t scratch_bytes)
{
    uint32_t size = atomic_load_explicit(&pool.size, memory_order_relaxed);
    if (size + 1 < workers)
        pool.cpus = count_cpus();
    atomic_store_explicit(&pool.spin_ns, workers > pool.cpus ? CROWDED_SPIN_NS : SPIN_NS, memory_order_relaxed);
    for (; size + 1 < workers && start_worker(size + 1); size++)
        atomic_store_explicit(&pool.size, size + 1, memory_order_relaxed);
    size_t ready = 1;
    /* idle workers do not look at their lanes, so the caller may */
    while (ready < workers && ready <= size && grow_scratch(&pool.slots[ready].lane, scratch_bytes))
        ready++;
    return ready;
}

/* The pool must be held. */
static void stop_workers(void)
{
    uint32_t size = atomic_load_explicit(&pool.size, memory_order_relaxed);
    atomic_store_explicit(&pool.stopping, true, memory_order_relaxed);
    call_workers((size_t)size + 1);
    for (uint32_t i = 1; i <= size; i++)
        pthread_join(pool.slots[i].thread, NULL);
    for (uint32_t i = 1; i <= size; i++) {
        free(pool.slots[i].lane.scratch);
        pool.slots[i].lane = (Lane){0};
    }
    atomic_store_explicit(&pool.size, 0, memory_order_relaxed);
    atomic_store_explicit(&pool.stopping, false, memory_order_relaxed);
}

/* Only the forking thread lives on in the child: it forgets the workers and whatever they or other callers held.
 * Their memory is left alone, for it may have been in the middle of a change. */
static void forget_pool(void)
{
    uint32_t size = atomic_load_explicit(&pool.size, memory_order_relaxed);
    memset((void *)pool.slots, 0, (size + 2) * sizeof pool.slots[0]); /* + the caller's, + one that was being started */
    memset((void *)&pool, 0, offsetof(Pool, slots));
    spare_callers = NULL;
#ifndef __linux__
    pthread_mutex_init(&park_mutex, NULL);
    pthread_cond_init(&park_changed, NULL);
#endif
}

/* ------------------------------------------------------------------------------------------------- walking the plan */

static void wait_for_chunks(void)
{
    if (spin_while(&pool.unfinished, has_chunks, 0))
        return;
    uint32_t word = atomic_fetch_or_explicit(&pool.unfinished, 1, memory_order_acquire) | 1;
    while (has_chunks(word, 0)) {
        park(&pool.unfinished, word);
        word = atomic_load_explicit(&pool.unfinished, memory_order_acquire);
    }
}

/* Shares out chunks [work->base, work->base + chunks), helps, and returns when all are finished. */
static void run_round(const Work *work, Lane *lane, int64_t chunks, size_t workers)
{
    pool.work = *work;
    atomic_store_explicit(&pool.unfinished, (uint32_t)chunks << 1, memory_order_relaxed);
    uint64_t begin = 0;
    for (size_t i = 0; i < workers; i++) {
        uint64_t end = (uint64_t)chunks * (i + 1) / workers;
        atomic_store_explicit(&pool.slots[i].share, pack_share(workers, begin, end), memory_order_release);
        begin = end;
    }
    call_workers(workers);
    work_as(0, lane);
    wait_for_chunks();
}

static void run_phase(Work *work, Lane *lane, int64_t total, size_t workers)
{
    if (workers == 1 || total <= 1) {
        if (total > 0)
            run_chunks(work, lane, 0, total);
        return;
    }
    for (work->base = 0; work->base < total; work->base += ROUND) {
        int64_t chunks = total - work->base < ROUND ? total - work->base : ROUND;
        run_round(work, lane, chunks, (int64_t)workers < chunks ? workers : (size_t)chunks);
    }
}

/* Moves the smallest (operator, position) of the workers into the caller's lane and clears the others. */
static void collect_status(int64_t status[2], size_t workers)
{
    for (size_t i = 1; i < workers; i++) {
        int64_t *other = pool.slots[i].lane.status;
        bool smaller = other[0] < status[0] || (other[0] == status[0] && other[1] < status[1]);
        if (other[0] != 0 && (status[0] == 0 || smaller))
            memcpy(status, other, sizeof pool.slots[i].lane.status);
        other[0] = other[1] = 0;
    }
}

/* Runs the phases in order on `workers` workers of the pool, which must be held where there are several. */
static void walk(const Launch *launch, Lane *lane, size_t workers)
{
    const Plan *plan = launch->plan;
    size_t first = 0;
    for (size_t p = 0; p < plan->phase_count; first = plan->phase_ends[p], p++) {
        size_t tasks = plan->phase_ends[p] - first;
        launch->starts[0] = 0;
        for (size_t t = 0; t < tasks; t++)
            launch->starts[t + 1] = launch->starts[t] + launch->counts[first + t];
        Work work = {plan->tasks + first, tasks, launch->table, launch->starts, launch->symbols, 0};
        run_phase(&work, lane, launch->starts[tasks], workers);
        if (lane->status[0] != 0 || (workers > 1 && atomic_load_explicit(&pool.failed, memory_order_relaxed)))
            break; /* later phases would read what a failed check left unspecified */
    }
}

static bool hold_pool(void)
{
    return !atomic_exchange_explicit(&pool.busy, true, memory_order_acquire);
}

static void let_go_of_pool(void)
{
    atomic_store_explicit(&pool.busy, false, memory_order_release);
}

static void run_launch(const Launch *launch, Lane *lane)
{
    uint64_t mode = enter_fp_mode();
    if (launch->workers == 1 || !hold_pool()) {
        walk(launch, lane, 1);
    } else {
        size_t workers = gather_workers(launch->workers, launch->scratch_bytes);
        atomic_store_explicit(&pool.failed, false, memory_order_relaxed);
        walk(launch, lane, workers);
        if (workers > 1 && atomic_load_explicit(&pool.failed, memory_order_relaxed))
            collect_status(lane->status, workers);
        let_go_of_pool();
    }
    leave_fp_mode(mode);
}

/* --------------------------------------------------------------------------------------------------- Python: a plan */

typedef struct {
    PyTypeObject *plan_type;
} State;

static void plan_dealloc(PyObject *self)
{
    Plan *plan = (Plan *)self;
    PyTypeObject *type = Py_TYPE(self);
    free(plan->tasks);
    free(plan->phase_ends);
    free(plan->indices);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Room for one more item in an array whose capacity is the power of two at or above its length. */
static bool grow_array(void **items, size_t count, size_t item_bytes)
{
    if (count != 0 && (count & (count - 1)) != 0)
        return true;
    void *grown = realloc(*items, (count ? 2 * count : 1) * item_bytes);
    if (grown == NULL) {
        PyErr_NoMemory();
        return false;
    }
    *items = grown;
    return true;
}

typedef struct {
    size_t phase, task;
} Place;

/* An integer of [least, most]; errors name the phase, the task and the field. */
static bool read_integer(PyObject *object, const char *field, Place place, uint64_t least, uint64_t most,
                         uint64_t *value)
{
    PyObject *integer = PyNumber_Index(object);
    if (integer == NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "create_plan: phase %zu, task %zu: %s: expected an int, found %s",
                         place.phase, place.task, field, Py_TYPE(object)->tp_name);
        return false;
    }
    *value = PyLong_AsUnsignedLongLong(integer);
    bool fits = !PyErr_Occurred() && *value >= least && *value <= most;
    if (!fits) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError,
                     "create_plan: phase %zu, task %zu: %s: expected an int of [%llu, %llu], found %S",
                     place.phase, place.task, field, (unsigned long long)least, (unsigned long long)most, integer);
    }
    Py_DECREF(integer);
    return fits;
}

/* A tuple, so that nothing which runs while it is read can change it under us. New reference. */
static PyObject *read_sequence(PyObject *object, const char *what, Place place)
{
    PyObject *tuple = PySequence_Check(object) ? PySequence_Tuple(object) : NULL;
    if (tuple == NULL && !PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "create_plan: phase %zu, task %zu: expected a sequence of %s, found %s",
                     place.phase, place.task, what, Py_TYPE(object)->tp_name);
    return tuple;
}

static bool add_buffers(Plan *plan, PyObject *object, Place place)
{
    PyObject *indices = read_sequence(object, "buffer indices", place);
    if (indices == NULL)
        return false;
    bool fine = true;
    for (Py_ssize_t i = 0; fine && i < PyTuple_GET_SIZE(indices); i++) {
        uint64_t index = 0;
        fine = read_integer(PyTuple_GET_ITEM(indices, i), "buffer index", place, 0, INT32_MAX, &index) &&
               grow_array((void **)&plan->indices, plan->index_count, sizeof *plan->indices);
        if (!fine)
            break;
        plan->indices[plan->index_count++] = index;
        if (index >= plan->least_pointers)
            plan->least_pointers = index + 1;
    }
    Py_DECREF(indices);
    return fine;
}

/* One (kernel_address, buffer_indices, chunk_slot, scratch_bytes). */
static bool add_task(Plan *plan, PyObject *object, Place place)
{
    PyObject *fields = read_sequence(object, "(kernel_address, buffer_indices, chunk_slot, scratch_bytes)", place);
    if (fields == NULL)
        return false;
    uint64_t kernel = 0, slot = 0, scratch = 0;
    bool fine = PyTuple_GET_SIZE(fields) == 4;
    if (!fine)
        PyErr_Format(PyExc_ValueError,
                     "create_plan: phase %zu, task %zu: expected 4 fields (kernel_address, buffer_indices, chunk_slot, "
                     "scratch_bytes), found %zd",
                     place.phase, place.task, PyTuple_GET_SIZE(fields));
    size_t first_buffer = plan->index_count;
    fine = fine && read_integer(PyTuple_GET_ITEM(fields, 0), "kernel_address", place, 1, UINTPTR_MAX, &kernel) &&
           add_buffers(plan, PyTuple_GET_ITEM(fields, 1), place) &&
           read_integer(PyTuple_GET_ITEM(fields, 2), "chunk_slot", place, 0, INT32_MAX, &slot) &&
           read_integer(PyTuple_GET_ITEM(fields, 3), "scratch_bytes", place, 0, PTRDIFF_MAX - PAGE, &scratch) &&
           grow_array((void **)&plan->tasks, plan->task_count, sizeof *plan->tasks);
    Py_DECREF(fields);
    if (!fine)
        return false;
    plan->tasks[plan->task_count++] = (Task){(af_kernel)(uintptr_t)kernel, first_buffer, slot};
    if (slot >= plan->least_chunks)
        plan->least_chunks = slot + 1;
    if (scratch > plan->scratch_bytes)
        plan->scratch_bytes = scratch;
    return true;
}

static bool add_phase(Plan *plan, PyObject *object, size_t phase)
{
    PyObject *tasks = read_sequence(object, "tasks", (Place){phase, 0});
    if (tasks == NULL)
        return false;
    size_t count = (size_t)PyTuple_GET_SIZE(tasks);
    bool fine = grow_array((void **)&plan->phase_ends, plan->phase_count, sizeof *plan->phase_ends);
    for (size_t t = 0; fine && t < count; t++)
        fine = add_task(plan, PyTuple_GET_ITEM(tasks, (Py_ssize_t)t), (Place){phase, t});
    Py_DECREF(tasks);
    if (!fine)
        return false;
    plan->phase_ends[plan->phase_count++] = plan->task_count;
    if (count > plan->widest_phase)
        plan->widest_phase = count;
    return true;
}

PyDoc_STRVAR(create_plan_doc,
             "create_plan(phases, /)\n--\n\n"
             "An immutable plan of a sequence of phases, each a sequence of tasks\n"
             "(kernel_address: int, buffer_indices: sequence of int, chunk_slot: int, scratch_bytes: int).\n"
             "The code at kernel_address must outlive the plan. Raises TypeError or ValueError.");

static PyObject *create_plan(PyObject *module, PyObject *phases_object)
{
    State *state = PyModule_GetState(module);
    PyObject *phases = PySequence_Check(phases_object) ? PySequence_Tuple(phases_object) : NULL;
    if (phases == NULL) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "create_plan: expected a sequence of phases, found %s",
                         Py_TYPE(phases_object)->tp_name);
        return NULL;
    }
    Plan *plan = (Plan *)state->plan_type->tp_alloc(state->plan_type, 0); /* zeroed */
    bool fine = plan != NULL;
    for (Py_ssize_t p = 0; fine && p < PyTuple_GET_SIZE(phases); p++)
        fine = add_phase(plan, PyTuple_GET_ITEM(phases, p), (size_t)p);
    Py_DECREF(phases);
    if (!fine)
        Py_CLEAR(plan);
    return (PyObject *)plan;
}

/* ------------------------------------------------------------------------------------------------- Python: a launch */

/* A one-dimensional, contiguous, aligned array of 8-byte integers, whose format is one of `codes`. */
static bool read_array(PyObject *object, const char *name, const char *dtype, const char *codes, Py_buffer *view)
{
    if (!PyObject_CheckBuffer(object)) {
        PyErr_Format(PyExc_TypeError, "launch: %s: expected an array of %s, found %s", name, dtype,
                     Py_TYPE(object)->tp_name);
        return false;
    }
    if (PyObject_GetBuffer(object, view, PyBUF_ND | PyBUF_FORMAT) != 0) {
        if (PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_BufferError)) {
            PyErr_Clear();
            PyErr_Format(PyExc_ValueError, "launch: %s: expected a C-contiguous array of %s", name, dtype);
        }
        return false;
    }
    const char *format = view->format ? view->format : "B";
    const char *code = format + (*format == '@' || *format == '=' || (PY_LITTLE_ENDIAN && *format == '<'));
    bool typed = view->itemsize == 8 && *code != '\0' && strchr(codes, *code) != NULL && code[1] == '\0';
    bool placed = view->ndim == 1 && (view->len == 0 || (uintptr_t)view->buf % alignof(int64_t) == 0);
    if (typed && placed)
        return true;
    if (!typed)
        PyErr_Format(PyExc_TypeError, "launch: %s: expected dtype %s, found items of %zd bytes with format '%s'", name,
                     dtype, view->itemsize, format);
    else
        PyErr_Format(PyExc_ValueError,
                     "launch: %s: expected one dimension at an aligned address, found %d dimensions at %p", name,
                     view->ndim, view->buf);
    PyBuffer_Release(view);
    return false;
}

static bool check_length(const Py_buffer *view, const char *name, size_t least)
{
    size_t length = (size_t)view->len / 8;
    if (length < least)
        PyErr_Format(PyExc_ValueError, "launch: %s: the plan needs at least %zu, found %zu", name, least, length);
    return length >= least;
}

static Caller *take_caller(void)
{
    Caller *caller = spare_callers;
    if (caller == NULL)
        return calloc(1, sizeof *caller);
    spare_callers = caller->next;
    return caller;
}

static void give_back_caller(Caller *caller)
{
    caller->next = spare_callers;
    spare_callers = caller;
}

/* Lays the launch's arrays out in the caller's block: table, counts, starts. */
static bool lay_out(const Plan *plan, Caller *caller, Launch *launch)
{
    size_t pointers = plan->index_count * sizeof(void *), counts = plan->task_count * sizeof(int64_t);
    size_t bytes = pointers + counts + (plan->widest_phase + 1) * sizeof(int64_t) + sizeof(int64_t);
    if (bytes > caller->block_bytes) {
        free(caller->block);
        caller->block = malloc(bytes);
        caller->block_bytes = caller->block ? bytes : 0;
    }
    if (caller->block == NULL || !grow_scratch(&caller->lane, launch->scratch_bytes)) {
        PyErr_NoMemory();
        return false;
    }
    /* the int64 come first: they are aligned wherever pointers are narrower */
    launch->counts = caller->block;
    launch->starts = launch->counts + plan->task_count;
    launch->table = (void **)(launch->starts + plan->widest_phase + 1);
    return true;
}

/* Fills the table and the counts, and trims the workers to what the widest phase can use. */
static bool fill(const Plan *plan, const uint64_t *pointers, const int64_t *chunks, Launch *launch)
{
    for (size_t i = 0; i < plan->index_count; i++)
        launch->table[i] = (void *)(uintptr_t)pointers[plan->indices[i]];
    int64_t most = 0;
    for (size_t p = 0, t = 0; p < plan->phase_count; p++) {
        int64_t total = 0;
        for (; t < plan->phase_ends[p]; t++) {
            int64_t count = launch->counts[t] = chunks[plan->tasks[t].chunk_slot];
            if (count < 0 || __builtin_add_overflow(total, count, &total) || total > INT64_MAX - ROUND) {
                PyErr_Format(PyExc_ValueError, "launch: chunks[%zu]: expected at least 0 and no overflow, found %lld",
                             plan->tasks[t].chunk_slot, (long long)count);
                return false;
            }
        }
        most = total > most ? total : most;
    }
    if (most < (int64_t)launch->workers)
        launch->workers = most > 1 ? (size_t)most : 1;
    return true;
}

bool af_is_plan(PyObject *module, PyObject *object)
{
    return PyObject_TypeCheck(object, ((State *)PyModule_GetState(module))->plan_type);
}

void af_plan_needs(PyObject *plan, size_t *pointers, size_t *chunks)
{
    *pointers = ((Plan *)plan)->least_pointers;
    *chunks = ((Plan *)plan)->least_chunks;
}

bool af_run_plan(PyObject *object, const uint64_t *pointers, const int64_t *symbols, const int64_t *chunks,
                 size_t scratch_bytes, size_t workers, bool quick, int64_t status[2])
{
    const Plan *plan = (const Plan *)object;
    Caller *caller = take_caller();
    if (caller == NULL) {
        PyErr_NoMemory();
        return false;
    }
    Launch launch = {.plan = plan,
                     .symbols = symbols,
                     .scratch_bytes = scratch_bytes > plan->scratch_bytes ? scratch_bytes : plan->scratch_bytes,
                     .workers = workers < MAX_WORKERS ? workers : MAX_WORKERS};
    bool fine = lay_out(plan, caller, &launch) && fill(plan, pointers, chunks, &launch);
    if (fine) {
        PyThreadState *thread = quick ? NULL : PyEval_SaveThread();
        run_launch(&launch, &caller->lane);
        if (thread != NULL)
            PyEval_RestoreThread(thread);
        memcpy(status, caller->lane.status, sizeof caller->lane.status);
        caller->lane.status[0] = caller->lane.status[1] = 0;
    }
    give_back_caller(caller);
    return fine;
}

/* Validates the arrays against the plan and runs; false with an exception set where it did not. */
static bool launch_arrays(PyObject *object, Py_buffer views[3], size_t workers, int64_t status[2])
{
    const Plan *plan = (const Plan *)object;
    return check_length(&views[0], "pointers", plan->least_pointers) &&
           check_length(&views[2], "chunks", plan->least_chunks) &&
           af_run_plan(object, views[0].buf, views[1].buf, views[2].buf, 0, workers, false, status);
}

PyDoc_STRVAR(launch_doc,
             "launch(plan, pointers, symbols, chunks, workers, /)\n--\n\n"
             "Runs the plan: pointers uint64[p], symbols int64[s], chunks int64[c] (chunks[slot] of each task, 0:\n"
             "nothing to do), on at most `workers` >= 1 workers, the caller included. Returns None, or the smallest\n"
             "(operator, position) of the checks that failed in the first phase where one did. Raises TypeError or\n"
             "ValueError before any work is done. Releases the GIL.");

static PyObject *launch(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *state = PyModule_GetState(module);
    if (count != 5)
        return PyErr_Format(PyExc_TypeError, "launch: expected 5 arguments, found %zd", count);
    if (!PyObject_TypeCheck(args[0], state->plan_type))
        return PyErr_Format(PyExc_TypeError, "launch: plan: expected a Plan, found %s", Py_TYPE(args[0])->tp_name);
    Py_ssize_t workers = PyNumber_AsSsize_t(args[4], NULL);
    if (workers == -1 && PyErr_Occurred())
        return NULL;
    if (workers < 1)
        return PyErr_Format(PyExc_ValueError, "launch: workers: expected at least 1, found %zd", workers);
    Py_buffer views[3];
    int open = 0;
    bool fine = read_array(args[1], "pointers", "uint64", "LQ", &views[0]) && ++open &&
                read_array(args[2], "symbols", "int64", "lq", &views[1]) && ++open &&
                read_array(args[3], "chunks", "int64", "lq", &views[2]) && ++open;
    int64_t status[2] = {0, 0};
    fine = fine && launch_arrays(args[0], views, (size_t)workers, status);
    while (open > 0)
        PyBuffer_Release(&views[--open]);
    if (!fine)
        return NULL;
    if (status[0] == 0)
        Py_RETURN_NONE;
    return Py_BuildValue("(LL)", (long long)status[0] - 1, (long long)status[1]);
}

/* ----------------------------------------------------------------------------------------------- Python: the module */

PyDoc_STRVAR(shutdown_doc, "shutdown()\n--\n\nStops and joins the resident workers; a later launch creates new ones.");

static PyObject *shutdown_pool(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    Py_BEGIN_ALLOW_THREADS
    while (!hold_pool()) { /* another thread's launch ends by itself */
        struct timespec nap = {0, 50000};
        nanosleep(&nap, NULL);
    }
    stop_workers();
    let_go_of_pool();
    Py_END_ALLOW_THREADS
    while (spare_callers != NULL) {
        Caller *caller = take_caller();
        free(caller->lane.scratch);
        free(caller->block);
        free(caller);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(pool_size_doc, "pool_size()\n--\n\nHow many threads are resident; callers do not count.");

static PyObject *pool_size(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyLong_FromUnsignedLong(atomic_load_explicit(&pool.size, memory_order_relaxed));
}

static PyType_Slot plan_slots[] = {
    {Py_tp_dealloc, plan_dealloc},
    {Py_tp_doc, "A SuperKernel plan, made by create_plan."},
    {0, NULL},
};

static PyType_Spec plan_spec = {
    .name = "autofusion.runtime._native.Plan",
    .basicsize = sizeof(Plan),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = plan_slots,
};

static int module_exec(PyObject *module)
{
    static bool handles_fork; /* guarded by the GIL */
    State *state = PyModule_GetState(module);
    state->plan_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &plan_spec, NULL);
    if (state->plan_type == NULL || PyModule_AddType(module, state->plan_type) != 0)
        return -1;
    if (PyModule_AddIntConstant(module, "MAX_WORKERS", MAX_WORKERS) != 0 || af_add_blocks(module) != 0 ||
        af_add_tensors(module) != 0 || af_add_calls(module) != 0 || af_add_callables(module) != 0)
        return -1;
    if (!handles_fork && pthread_atfork(NULL, NULL, forget_pool) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    handles_fork = true;
    return 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->plan_type);
    return 0;
}

static int module_clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->plan_type);
    return 0;
}

static PyMethodDef module_methods[] = {
    {"create_plan", create_plan, METH_O, create_plan_doc},
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL, launch_doc},
    {"shutdown", shutdown_pool, METH_NOARGS, shutdown_doc},
    {"pool_size", pool_size, METH_NOARGS, pool_size_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000 /* the pool is the process's, and the GIL guards a part of it */
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "autofusion.runtime._native",
    .m_doc = "Walks SuperKernel plans on the CPU; autofusion.runtime.pool is its face.",
    .m_size = sizeof(State),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&module_definition);
}
