/* What the parts of the native runtime share: native.c runs plans, blocks.c keeps memory, tensors.c reads and makes
 * tensors (tensors.h), sizes.c computes with open sizes, call.c binds plans to arguments, callable.c is what users call. */
#ifndef AUTOFUSION_NATIVE_H
#define AUTOFUSION_NATIVE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* -- native.c: plans ---------------------------------------------------------------------------------------------- */
bool af_is_plan(PyObject *module, PyObject *object);

/* How many pointers and chunks a launch of the plan needs at least. */
void af_plan_needs(PyObject *plan, size_t *pointers, size_t *chunks);

/* Runs the plan, without the GIL unless `quick`; a worker's scratch memory is the plan's, and at least of so many
 * bytes. `status` becomes (operator + 1, position) of a failed check, or zeros. False with an exception set where
 * nothing ran. */
bool af_run_plan(PyObject *plan, const uint64_t *pointers, const int64_t *symbols, const int64_t *chunks,
                 size_t scratch_bytes, size_t workers, bool quick, int64_t status[2]);
int64_t af_now_ns(void);

/* -- blocks.c: memory that is used again -------------------------------------------------------------------------- */

/* A Python object with a writable buffer of `bytes` bytes at a page's start; NULL with an exception set. */
PyObject *af_take_block(size_t bytes);
void *af_block_memory(PyObject *block);
int af_add_blocks(PyObject *module);

/* -- tensors.c ------------------------------------------------------------------------------------------------------ */
int af_add_tensors(PyObject *module);

/* -- sizes.c: numbers that follow from open sizes ------------------------------------------------------------------ */
typedef struct {
    size_t kind, left, right, target;
} SizeStep;

typedef struct {
    size_t count;   /* of numbers in the table; 0 where all sizes are known */
    int64_t *first; /* the table before a call: constants in place, behind the symbols */
    size_t symbol_count, step_count, guard_count;
    size_t *sources; /* of each symbol the argument and the axis that tell it */
    SizeStep *steps;
    size_t *guards; /* pairs of numbers that have to be equal */
} Sizes;

/* From a tuple (first, sources, steps, guards) of flat tuples; false with an exception set. */
bool af_read_sizes(PyObject *tuple, Sizes *sizes);
void af_free_sizes(Sizes *sizes);

/* Fills the table, whose symbols are in place. False where a guard does not hold or something is no int64. */
bool af_evaluate_sizes(const Sizes *sizes, int64_t *numbers);

/* The integers of a tuple, in memory of their own; NULL with an exception set. */
void *af_read_integers(PyObject *tuple, size_t *count, bool is_signed);

/* -- call.c: calls of a plan -------------------------------------------------------------------------------------- */
bool af_is_call(PyObject *object);

/* Runs what create_call made. False where the arguments are not just as compiled, and then nothing ran; else `result`
 * is what a Python function returns. */
bool af_try_call(PyObject *call, PyObject *const *args, size_t count, PyObject **result);
int af_add_calls(PyObject *module);

/* -- callable.c: objects that are called ---------------------------------------------------------------------------- */
int af_add_callables(PyObject *module);

#endif
