/* The layout of NumPy's arrays and the places in its table of functions, as its C interface fixes them for the ABI
 * versions 1 and 2 (https://numpy.org/doc/stable/reference/c-api). */
#ifndef AUTOFUSION_ARRAYS_H
#define AUTOFUSION_ARRAYS_H
#include "native.h"

_Static_assert(sizeof(intptr_t) == sizeof(int64_t), "extents of arrays are read as they lie");

typedef struct {
    PyObject_HEAD
    PyObject *type;
    char kind, code, byteorder, unused; /* code: as in the struct module; byteorder: '=' and '|' are this machine's */
    int number;
} ArrayType;

typedef struct {
    PyObject_HEAD
    void *data;
    int rank;
    intptr_t *shape, *strides; /* strides in bytes */
    PyObject *base;
    ArrayType *type;
    int flags;
} NumPyArray;

enum { ARRAY_CONTIGUOUS = 0x1, ARRAY_ALIGNED = 0x100, ARRAY_WRITABLE = 0x400 };
enum { ABI_VERSION = 0, ARRAY_CLASS = 2, NEW_FROM_TYPE = 94, SET_BASE = 282 };

typedef struct {
    PyTypeObject *array; /* numpy.ndarray */
    /* new_array(numpy.ndarray, type, rank, shape, strides, data, flags, NULL): takes the reference to the type */
    PyObject *(*new_array)(PyTypeObject *, PyObject *, int, const intptr_t *, const intptr_t *, void *, int, PyObject *);
    int (*set_base)(PyObject *array, PyObject *base); /* takes the reference to the base */
} NumPy;

/* Loaded at the first use; NULL with ImportError set where NumPy is missing or of another ABI. */
const NumPy *af_numpy(void);

#endif
