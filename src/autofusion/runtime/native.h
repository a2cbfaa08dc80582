/* What the parts of the native runtime share: native.c runs plans, blocks.c keeps memory, call.c binds plans to
 * arguments, callable.c is what users call. */
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

/* Runs the plan, without the GIL unless `quick`. `status` becomes (operator + 1, position) of a failed check, or zeros. False with an
 * exception set where nothing ran. */
bool af_run_plan(PyObject *plan, const uint64_t *pointers, const int64_t *symbols, const int64_t *chunks,
                 size_t workers, bool quick, int64_t status[2]);
int64_t af_now_ns(void);

/* -- blocks.c: memory that is used again -------------------------------------------------------------------------- */

/* A Python object with a writable buffer of `bytes` bytes at a page's start; NULL with an exception set. */
PyObject *af_take_block(size_t bytes);
void *af_block_memory(PyObject *block);
int af_add_blocks(PyObject *module);

/* -- call.c: calls of a plan -------------------------------------------------------------------------------------- */
bool af_is_call(PyObject *object);

/* Runs what create_call made. False where the arguments are not just as compiled, and then nothing ran; else `result`
 * is what a Python function returns. */
bool af_try_call(PyObject *call, PyObject *const *args, size_t count, PyObject **result);
int af_add_calls(PyObject *module);

/* -- callable.c: objects that are called ---------------------------------------------------------------------------- */
int af_add_callables(PyObject *module);

#endif
