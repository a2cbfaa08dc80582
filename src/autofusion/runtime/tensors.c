/* See tensors.h. */
#include "tensors.h"

#include <stdalign.h>
#include <stdlib.h>

enum {
    POOLED_BYTES = 1 << 16, /* results from here on come from blocks; smaller ones from NumPy's cache or malloc */
    SMALL_ALIGN = 64,
};

bool af_measure(Tensor *tensor)
{
    int64_t last = 0, step, bytes = tensor->itemsize;
    bool fine = true;
    for (int d = 0; d < tensor->rank; d++) {
        fine = fine && tensor->shape[d] >= 0 && !__builtin_mul_overflow(bytes, tensor->shape[d], &bytes) &&
               !__builtin_mul_overflow(tensor->shape[d] - 1, tensor->strides[d], &step) &&
               !__builtin_add_overflow(last, step, &last);
    }
    tensor->bytes = (size_t)bytes;
    tensor->empty = bytes == 0;
    tensor->span = tensor->empty ? 0 : (size_t)(last + 1) * (size_t)tensor->itemsize;
    return fine;
}

/* -- arguments ------------------------------------------------------------------------------------------------------ */

/* Types that are not one object may be one type: int64 is long or long long, and what is unpickled is a copy. */
static bool is_same_type(const ArrayType *found, const ArrayType *want, Py_ssize_t itemsize)
{
    bool native = found->byteorder == '=' || found->byteorder == '|';
    bool wide = itemsize == sizeof(long long) && sizeof(long) == sizeof(long long) && found->kind == want->kind &&
                (found->code == want->code + ('q' - 'l') || found->code == want->code);
    return native && (found->number == want->number || wide);
}

bool af_read_array(const Tensor *want, const NumPyArray *array, bool writable, Found *found)
{
    int flags = ARRAY_ALIGNED | (writable ? ARRAY_WRITABLE : 0);
    *found = (Found){(uint64_t)(uintptr_t)array->data, (const int64_t *)array->shape, (const int64_t *)array->strides,
                     want->itemsize};
    return (array->type == want->array_type || is_same_type(array->type, want->array_type, want->itemsize)) &&
           (array->flags & flags) == flags && array->rank == want->rank;
}

bool af_read_buffer(const Tensor *want, PyObject *object, bool writable, Py_buffer *view, Found *found)
{
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_RECORDS : PyBUF_RECORDS_RO) != 0) {
        PyErr_Clear();
        return false;
    }
    const char *format = view->format ? view->format : "B";
    const ArrayType type = {.kind = want->array_type->kind, .byteorder = '=', .code = format[0], .number = -1};
    bool typed = format[0] == want->array_type->code || is_same_type(&type, want->array_type, want->itemsize);
    *found = (Found){(uint64_t)(uintptr_t)view->buf, (const int64_t *)view->shape, (const int64_t *)view->strides,
                     want->itemsize};
    bool right = typed && format[1] == '\0' && view->itemsize == want->itemsize && view->ndim == want->rank &&
                 (uintptr_t)view->buf % (size_t)want->itemsize == 0;
    if (!right)
        PyBuffer_Release(view);
    return right;
}

/* Whether a tensor's elements are in its memory as they are. */
static bool is_ordinary(const Library *library, PyObject *object)
{
    if (library->marks == 0)
        return true;
    const char *tensor;
    uint64_t keys;
    memcpy(&tensor, (const char *)object + library->handle, sizeof tensor);
    if (tensor == NULL)
        return false;
    memcpy(&keys, tensor + library->keys, sizeof keys);
    return (keys & library->marks) == 0;
}

bool af_read_tensor(const Tensor *want, const Library *library, PyObject *object, Found *found)
{
    DLTensor tensor;
    if (!is_ordinary(library, object))
        return false;
    if (library->api->dltensor_from_py_object_no_sync(object, &tensor) != 0) {
        PyErr_Clear();
        return false;
    }
    *found = (Found){(uint64_t)(uintptr_t)tensor.data + tensor.byte_offset, tensor.shape, tensor.strides, 1};
    return tensor.device.device_type == DLPACK_CPU && tensor.ndim == want->rank &&
           memcmp(&tensor.dtype, &want->type, sizeof tensor.dtype) == 0;
}

/* Where tensors of the type have their dispatch keys; false where that is not known. */
static bool find_keys(Library *library)
{
    PyObject *module = PyImport_ImportModule("autofusion.runtime.dispatch_keys");
    PyObject *place = module ? PyObject_CallMethod(module, "place_of", "O", library->type) : NULL;
    unsigned long long handle = 0, keys = 0, marks = 0;
    bool found = place != NULL && place != Py_None && PyArg_ParseTuple(place, "KKK", &handle, &keys, &marks);
    library->handle = (size_t)handle;
    library->keys = (size_t)keys;
    library->marks = marks;
    PyErr_Clear();
    Py_XDECREF(place);
    Py_XDECREF(module);
    return found;
}

Library af_library_of(PyObject *object)
{
    static Library table[8];
    PyTypeObject *type = Py_TYPE(object);
    Library *known = &table[(uintptr_t)type / alignof(max_align_t) % 8];
    if (known->type == type)
        return *known;
    Library library = {.type = type};
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    if (capsule != NULL && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        library.api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    PyErr_Clear();
    Py_XDECREF(capsule);
    const DLPackExchangeAPI *api = library.api;
    if (api != NULL && (api->header.version.major != DLPACK_MAJOR || api->dltensor_from_py_object_no_sync == NULL ||
                        !find_keys(&library)))
        library.api = NULL;
    Py_INCREF(type); /* so that no other type takes its address */
    PyTypeObject *before = known->type;
    *known = library;
    Py_XDECREF((PyObject *)before);
    return library;
}

/* -- results -------------------------------------------------------------------------------------------------------- */

PyObject *af_new_array(const NumPy *numpy, const Tensor *tensor, uint64_t *pointer)
{
    const intptr_t *shape = (const intptr_t *)tensor->shape;
    PyObject *block = NULL, *type = Py_NewRef(tensor->array_type);
    if (tensor->bytes >= POOLED_BYTES) {
        block = af_take_block(tensor->bytes);
        if (block == NULL) {
            Py_DECREF(type);
            return NULL;
        }
    }
    void *memory = block ? af_block_memory(block) : NULL;
    int flags = block ? ARRAY_CONTIGUOUS | ARRAY_ALIGNED | ARRAY_WRITABLE : 0;
    PyObject *array = numpy->new_array(numpy->array, type, tensor->rank, shape, NULL, memory, flags, NULL);
    if (array == NULL) {
        Py_XDECREF(block);
        return NULL;
    }
    if (block != NULL && numpy->set_base(array, block) != 0)
        Py_CLEAR(array);
    else
        *pointer = (uint64_t)(uintptr_t)((NumPyArray *)array)->data;
    return array;
}

typedef struct {
    DLManagedTensorVersioned managed;
    int64_t lengths[]; /* shape, then strides; behind them the elements of small results */
} Managed;

static void free_managed(DLManagedTensorVersioned *managed)
{
    if (managed->manager_ctx != NULL) {
        PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF((PyObject *)managed->manager_ctx);
        PyGILState_Release(state);
    }
    free(managed);
}

/* A tensor of the exchange table's library over memory that `owner` keeps, whose reference it takes; without an owner,
 * over memory of its own. `pointer` becomes where it lies. */
static PyObject *tensor_over(const DLPackExchangeAPI *api, const Tensor *tensor, PyObject *owner, void *memory,
                             uint64_t *pointer)
{
    size_t lengths = (size_t)tensor->rank * sizeof(int64_t);
    size_t own = owner ? 0 : tensor->bytes + SMALL_ALIGN;
    Managed *made = malloc(sizeof *made + 2 * lengths + own);
    if (made == NULL) {
        Py_XDECREF(owner);
        return PyErr_NoMemory();
    }
    int64_t *shape = made->lengths, *strides = shape + tensor->rank;
    memcpy(shape, tensor->shape, lengths);
    memcpy(strides, tensor->strides, lengths);
    for (int d = tensor->rank - 1; tensor->empty && d >= 0; d--) { /* as PyTorch has it: an extent of 0 counts as 1 */
        bool last = d == tensor->rank - 1;
        strides[d] = last ? 1 : strides[d + 1] * (shape[d + 1] > 1 ? shape[d + 1] : 1);
    }
    if (owner == NULL)
        memory = (void *)(((uintptr_t)(strides + tensor->rank) + SMALL_ALIGN - 1) / SMALL_ALIGN * SMALL_ALIGN);
    *pointer = (uint64_t)(uintptr_t)memory;
    made->managed = (DLManagedTensorVersioned){
        .version = {DLPACK_MAJOR, DLPACK_MINOR},
        .manager_ctx = owner,
        .deleter = free_managed,
        .dl_tensor = {.data = memory, .device = {DLPACK_CPU, 0}, .ndim = tensor->rank, .dtype = tensor->type,
                      .shape = shape, .strides = strides},
    };
    void *result = NULL;
    if (api->managed_tensor_to_py_object_no_sync(&made->managed, &result) != 0)
        return NULL; /* the tensor is the callee's to free */
    return result;
}

PyObject *af_new_tensor(const DLPackExchangeAPI *api, const Tensor *tensor, uint64_t *pointer)
{
    if (tensor->bytes < POOLED_BYTES)
        return tensor_over(api, tensor, NULL, NULL, pointer);
    PyObject *block = af_take_block(tensor->bytes);
    return block ? tensor_over(api, tensor, block, af_block_memory(block), pointer) : NULL;
}

/* -- descriptions --------------------------------------------------------------------------------------------------- */

void af_free_tensors(Tensor *tensors, size_t count)
{
    for (size_t i = 0; tensors != NULL && i < count; i++)
        Py_XDECREF((PyObject *)tensors[i].array_type);
    PyMem_Free(tensors);
}

static bool read_lengths(PyObject *tuple, int64_t *values, int *count)
{
    Py_ssize_t rank = PyTuple_GET_SIZE(tuple);
    if (rank > MOST_RANK) {
        PyErr_Format(PyExc_ValueError, "create_call: rank %zd, expected %d at most", rank, (int)MOST_RANK);
        return false;
    }
    *count = (int)rank;
    for (Py_ssize_t d = 0; d < rank; d++)
        values[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, d));
    return !PyErr_Occurred();
}

static bool read_description(PyObject *tuple, size_t slots, size_t numbers, Tensor *tensor)
{
    PyObject *type, *shape, *strides;
    Py_ssize_t slot;
    int code, steps = 0, open;
    if (!PyArg_ParseTuple(tuple, "nOinO!O!p", &slot, &type, &code, &tensor->itemsize, &PyTuple_Type, &shape,
                          &PyTuple_Type, &strides, &open) ||
        !read_lengths(shape, tensor->shape, &tensor->rank) || !read_lengths(strides, tensor->strides, &steps))
        return false;
    bool placed = true;
    for (int d = 0; open && placed && d < tensor->rank && d < steps; d++)
        placed = (uint64_t)tensor->shape[d] < numbers && (uint64_t)tensor->strides[d] < numbers;
    if (slot < 0 || (size_t)slot >= slots || steps != tensor->rank || !placed) {
        PyErr_Format(PyExc_ValueError, "create_call: slot %zd of %zu, %d extents and %d strides", slot, slots,
                     tensor->rank, steps);
        return false;
    }
    tensor->slot = (size_t)slot;
    tensor->type = (DLDataType){(uint8_t)code, (uint8_t)(8 * tensor->itemsize), 1};
    tensor->array_type = (ArrayType *)Py_NewRef(type);
    tensor->open = open;
    if (open || af_measure(tensor))
        return true;
    PyErr_SetString(PyExc_ValueError, "create_call: a tensor of more bytes than there are");
    return false;
}

Tensor *af_read_tensors(PyObject *tuple, size_t slots, size_t numbers, size_t *count)
{
    *count = (size_t)PyTuple_GET_SIZE(tuple);
    Tensor *tensors = PyMem_Calloc(*count + 1, sizeof *tensors);
    if (tensors == NULL)
        return (Tensor *)PyErr_NoMemory();
    for (size_t i = 0; i < *count; i++) {
        if (!read_description(PyTuple_GET_ITEM(tuple, (Py_ssize_t)i), slots, numbers, &tensors[i])) {
            af_free_tensors(tensors, *count);
            return NULL;
        }
    }
    return tensors;
}

/* Whether slots are in the pointer table, and places in the table of sizes; offsets that are known, in the workspace. */

PyDoc_STRVAR(as_tensor_doc, "as_tensor(example, array, tensor, /)\n--\n\n"
                            "`array` as the example's library has it, over the same memory: for libraries with DLPack's\n"
                            "exchange table. None for others. `tensor` describes the array as for create_call.");

static PyObject *as_tensor(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *example, *array, *description;
    if (!PyArg_ParseTuple(args, "OOO!", &example, &array, &PyTuple_Type, &description))
        return NULL;
    const DLPackExchangeAPI *api = af_library_of(example).api;
    if (api == NULL)
        Py_RETURN_NONE;
    PyObject *single = PyTuple_Pack(1, description);
    size_t count = 0;
    Tensor *tensor = single ? af_read_tensors(single, 1, 0, &count) : NULL;
    Py_XDECREF(single);
    PyObject *view = tensor ? PyMemoryView_FromObject(array) : NULL;
    PyObject *result = NULL;
    uint64_t pointer;
    if (view != NULL)
        result = tensor_over(api, tensor, view, PyMemoryView_GET_BUFFER(view)->buf, &pointer);
    af_free_tensors(tensor, count);
    return result;
}

static PyMethodDef methods[] = {
    {"as_tensor", as_tensor, METH_VARARGS, as_tensor_doc},
    {NULL, NULL, 0, NULL},
};

int af_add_tensors(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
