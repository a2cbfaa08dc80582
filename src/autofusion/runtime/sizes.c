/* Numbers that follow from open sizes: extents, strides, chunks, offsets. They stand in one table: the symbols first,
 * then constants and what the steps make of those before them. */
#include "native.h"

#include <string.h>

enum { ADD, MULTIPLY, FLOOR_DIVIDE, MODULO, MINIMUM, MAXIMUM, KINDS };

void *af_read_integers(PyObject *tuple, size_t *count, bool is_signed)
{
    *count = (size_t)PyTuple_GET_SIZE(tuple);
    int64_t *values = PyMem_Calloc(*count + 1, sizeof *values);
    for (size_t i = 0; values != NULL && i < *count; i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, (Py_ssize_t)i);
        values[i] = is_signed ? PyLong_AsLongLong(item) : (int64_t)PyLong_AsUnsignedLongLong(item);
        if (PyErr_Occurred()) {
            PyMem_Free(values);
            return NULL;
        }
    }
    return values != NULL ? (void *)values : (void *)PyErr_NoMemory();
}

void af_free_sizes(Sizes *sizes)
{
    PyMem_Free(sizes->first);
    PyMem_Free(sizes->sources);
    PyMem_Free(sizes->steps);
    PyMem_Free(sizes->guards);
}

bool af_read_sizes(PyObject *tuple, Sizes *sizes)
{
    PyObject *first, *sources, *steps, *guards;
    size_t source_count = 0, step_count = 0, guard_count = 0;
    if (!PyArg_ParseTuple(tuple, "O!O!O!O!", &PyTuple_Type, &first, &PyTuple_Type, &sources, &PyTuple_Type, &steps,
                          &PyTuple_Type, &guards) ||
        (sizes->first = af_read_integers(first, &sizes->count, true)) == NULL ||
        (sizes->sources = af_read_integers(sources, &source_count, false)) == NULL ||
        (sizes->steps = af_read_integers(steps, &step_count, false)) == NULL ||
        (sizes->guards = af_read_integers(guards, &guard_count, false)) == NULL)
        return false;
    sizes->symbol_count = source_count / 2;
    sizes->step_count = step_count / 4;
    sizes->guard_count = guard_count / 2;
    bool fine = sizes->symbol_count <= sizes->count;
    for (size_t i = 0; fine && i < sizes->step_count; i++) {
        const SizeStep *step = &sizes->steps[i];
        fine = step->kind < KINDS && step->left < sizes->count && step->right < sizes->count &&
               step->target < sizes->count;
    }
    for (size_t i = 0; fine && i < 2 * sizes->guard_count; i++)
        fine = sizes->guards[i] < sizes->count;
    if (!fine)
        PyErr_SetString(PyExc_ValueError, "create_call: a number that is not in the table of sizes");
    return fine;
}

/* Python's rule: towards minus infinity. False for a division by zero, and where the result is no int64. */
static bool divide(int64_t a, int64_t b, int64_t *quotient, int64_t *rest)
{
    if (b == 0 || (b == -1 && a == INT64_MIN))
        return false;
    *quotient = a / b;
    *rest = a % b;
    if (*rest != 0 && (*rest < 0) != (b < 0)) {
        *quotient -= 1;
        *rest += b;
    }
    return true;
}

bool af_evaluate_sizes(const Sizes *sizes, int64_t *numbers)
{
    bool fine = true;
    for (size_t i = 0; fine && i < sizes->step_count; i++) {
        const SizeStep *step = &sizes->steps[i];
        int64_t a = numbers[step->left], b = numbers[step->right], *made = &numbers[step->target], other;
        switch (step->kind) {
        case ADD:
            fine = !__builtin_add_overflow(a, b, made);
            break;
        case MULTIPLY:
            fine = !__builtin_mul_overflow(a, b, made);
            break;
        case FLOOR_DIVIDE:
            fine = divide(a, b, made, &other);
            break;
        case MODULO:
            fine = divide(a, b, &other, made);
            break;
        case MINIMUM:
            *made = a < b ? a : b;
            break;
        default:
            *made = a > b ? a : b;
        }
    }
    for (size_t i = 0; fine && i < sizes->guard_count; i++)
        fine = numbers[sizes->guards[2 * i]] == numbers[sizes->guards[2 * i + 1]];
    return fine;
}
