/* Tensors as calls take and make them: NumPy's arrays, what has a buffer, and tensors of libraries with DLPack's C
 * exchange table. */
#ifndef AUTOFUSION_TENSORS_H
#define AUTOFUSION_TENSORS_H
#include "arrays.h"
#include "dlpack.h"

#include <string.h>

enum { MOST_RANK = 16 };

typedef struct {
    size_t slot; /* of the pointer table */
    ArrayType *array_type;
    DLDataType type;
    Py_ssize_t itemsize;
    bool open; /* extents and strides are places in the table of sizes; what is measured is not known */
    bool empty;
    size_t bytes, span; /* of the elements; from the first byte to behind the last */
    int rank;
    int64_t shape[MOST_RANK], strides[MOST_RANK]; /* in elements */
} Tensor;

/* What is known of a type of tensors. */
typedef struct {
    PyTypeObject *type;
    const DLPackExchangeAPI *api; /* NULL for a type without one */
    size_t handle, keys;          /* where an object has the address of its tensor, and that its dispatch keys */
    uint64_t marks;               /* keys of what is not in memory as it is; none where there are no keys */
} Library;

/* False where the tensor has more bytes than there are, or an extent is negative. */
bool af_measure(Tensor *tensor);

/* The tensor with its numbers, in `room` where they are open; NULL where these make none. */
static inline const Tensor *sized(const Tensor *tensor, const int64_t *numbers, Tensor *room)
{
    if (!tensor->open)
        return tensor;
    memcpy(room, tensor, offsetof(Tensor, shape));
    for (int d = 0; d < tensor->rank; d++) {
        room->shape[d] = numbers[tensor->shape[d]];
        room->strides[d] = numbers[tensor->strides[d]];
    }
    return af_measure(room) ? room : NULL;
}

/* -- arguments ------------------------------------------------------------------------------------------------------ */

/* An argument of the right rank and element type, as it lies in memory. */
typedef struct {
    uint64_t pointer;
    const int64_t *shape, *strides; /* no strides: contiguous */
    int64_t unit;                   /* of the strides, in elements or bytes */
} Found;

static inline bool fits(const Tensor *want, const Found *found)
{
    for (int d = 0; d < want->rank; d++)
        if (found->shape[d] != want->shape[d])
            return false;
    if (want->empty || found->strides == NULL)
        return true;
    for (int d = 0; d < want->rank; d++)
        if (want->shape[d] > 1 && found->strides[d] != want->strides[d] * found->unit)
            return false;
    return true;
}

/* These give false where rank or element type is another, or memory does not do. */
bool af_read_array(const Tensor *want, const NumPyArray *array, bool writable, Found *found);

/* What has a buffer but is no array, a NumPy scalar say; `view` is then open. */
bool af_read_buffer(const Tensor *want, PyObject *object, bool writable, Py_buffer *view, Found *found);

/* Shape and strides are the tensor's own. */
bool af_read_tensor(const Tensor *want, const Library *library, PyObject *object, Found *found);

/* The library of a tensor's type; the types that were asked for are remembered. */
Library af_library_of(PyObject *object);

/* -- results -------------------------------------------------------------------------------------------------------- */

/* New ones; `pointer` becomes where they lie. NULL with an exception set. */
PyObject *af_new_array(const NumPy *numpy, const Tensor *tensor, uint64_t *pointer);
PyObject *af_new_tensor(const DLPackExchangeAPI *api, const Tensor *tensor, uint64_t *pointer);

/* -- descriptions --------------------------------------------------------------------------------------------------- */

/* From a tuple of tuples (slot, NumPy's type, DLPack's type code, bytes of an element, shape, strides in elements,
 * whether these are places in a table of `numbers`), for so many slots. NULL with an exception set. */
Tensor *af_read_tensors(PyObject *tuple, size_t slots, size_t numbers, size_t *count);
void af_free_tensors(Tensor *tensors, size_t count);

#endif
