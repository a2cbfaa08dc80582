/* Calls of a plan whose shapes are all known: arguments are checked, results made and the plan run in one go.
 *
 * What does not fit exactly is not judged here: nothing runs, and Python converts or says what is wrong.
 */
#include "arrays.h"
#include "dlpack.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#if PY_VERSION_HEX < 0x030C0000 /* the members' types had other names */
#include <structmember.h>
#define Py_T_ULONGLONG T_ULONGLONG
#define Py_T_PYSSIZET T_PYSSIZET
#define Py_READONLY READONLY
#endif

enum {
    MOST_RANK = 16,
    POOLED_BYTES = 1 << 16, /* results from here on come from blocks; smaller ones from NumPy's cache or malloc */
    SMALL_ALIGN = 64,
    TIMED_RUNS = 8,
    QUICK_NS = 2000, /* a launch that is over sooner keeps the GIL: to let it go and take it back costs up to 100 */
};

typedef struct {
    size_t slot; /* of the pointer table */
    ArrayType *array_type;
    DLDataType type;
    Py_ssize_t itemsize;
    bool empty;
    size_t bytes, span; /* of the elements; from the first byte to behind the last */
    int rank;
    int64_t shape[MOST_RANK], strides[MOST_RANK]; /* in elements */
} Tensor;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *plan;
    uint64_t *pointers; /* as every call begins: constants and numbers in place */
    int64_t *chunks;
    size_t pointer_count, workers, workspace_bytes, workspace_count, input_count, output_count;
    size_t *workspace; /* pairs: slot, offset */
    size_t *lent;      /* slot, slot of a result, offset in that: what lies there before it is written */
    size_t lent_count;
    int64_t *places;   /* of each result: the argument that it is written to, or -1 */
    bool *written;     /* of each argument */
    Tensor *inputs, *outputs;
    PyObject *fail;    /* fail(operator, position) raises */
    PyObject *owner;   /* keeps code and constants */
    const NumPy *numpy;
    unsigned long long calls;
    int64_t quickest; /* of the first runs, in nanoseconds */
} Call;

static PyTypeObject *call_type;

/* What is known of a type of tensors. */
typedef struct {
    PyTypeObject *type;
    const DLPackExchangeAPI *api; /* NULL for a type without one */
    size_t handle, keys;          /* where an object has the address of its tensor, and that its dispatch keys */
    uint64_t marks;               /* keys of what is not in memory as it is; none where there are no keys */
} Library;

/* -- arguments ------------------------------------------------------------------------------------------------------ */

static bool strides_fit(const Tensor *want, const int64_t *strides, int64_t unit)
{
    for (int d = 0; d < want->rank; d++)
        if (want->shape[d] > 1 && strides[d] != want->strides[d] * unit)
            return false;
    return true;
}

static bool shape_fits(const Tensor *want, const int64_t *shape)
{
    for (int d = 0; d < want->rank; d++)
        if (shape[d] != want->shape[d])
            return false;
    return true;
}

/* Types that are not one object may be one type: int64 is long or long long, and what is unpickled is a copy. */
static bool is_same_type(const ArrayType *found, const ArrayType *want, Py_ssize_t itemsize)
{
    bool native = found->byteorder == '=' || found->byteorder == '|';
    bool wide = itemsize == sizeof(long long) && sizeof(long) == sizeof(long long) && found->kind == want->kind &&
                (found->code == want->code + ('q' - 'l') || found->code == want->code);
    return native && (found->number == want->number || wide);
}

static bool read_array(const Tensor *want, const NumPyArray *array, bool writable, uint64_t *pointer)
{
    int flags = ARRAY_ALIGNED | (writable ? ARRAY_WRITABLE : 0);
    *pointer = (uint64_t)(uintptr_t)array->data;
    return (array->type == want->array_type || is_same_type(array->type, want->array_type, want->itemsize)) &&
           (array->flags & flags) == flags && array->rank == want->rank &&
           shape_fits(want, (const int64_t *)array->shape) &&
           (want->empty || strides_fit(want, (const int64_t *)array->strides, want->itemsize));
}

/* What has a buffer but is no array, a NumPy scalar say; `view` is then open. */
static bool read_buffer(const Tensor *want, PyObject *object, bool writable, Py_buffer *view, uint64_t *pointer)
{
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_RECORDS : PyBUF_RECORDS_RO) != 0) {
        PyErr_Clear();
        return false;
    }
    const char *format = view->format ? view->format : "B";
    const ArrayType found = {.kind = want->array_type->kind, .byteorder = '=', .code = format[0], .number = -1};
    bool typed = format[0] == want->array_type->code || is_same_type(&found, want->array_type, want->itemsize);
    bool fits = typed && format[1] == '\0' && view->itemsize == want->itemsize && view->ndim == want->rank &&
                (uintptr_t)view->buf % (size_t)want->itemsize == 0;
    int64_t shape[MOST_RANK], strides[MOST_RANK];
    for (int d = 0; fits && d < want->rank; d++) {
        shape[d] = view->shape[d];
        strides[d] = view->strides[d];
    }
    fits = fits && shape_fits(want, shape) && (want->empty || strides_fit(want, strides, want->itemsize));
    *pointer = (uint64_t)(uintptr_t)view->buf;
    if (!fits)
        PyBuffer_Release(view);
    return fits;
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

static bool read_tensor(const Tensor *want, const Library *library, PyObject *object, uint64_t *pointer)
{
    DLTensor found;
    if (!is_ordinary(library, object))
        return false;
    if (library->api->dltensor_from_py_object_no_sync(object, &found) != 0) {
        PyErr_Clear();
        return false;
    }
    bool fits = found.device.device_type == DLPACK_CPU && found.ndim == want->rank &&
                (found.data != NULL || want->empty) &&
                memcmp(&found.dtype, &want->type, sizeof found.dtype) == 0 && shape_fits(want, found.shape) &&
                (found.strides == NULL || want->empty || strides_fit(want, found.strides, 1));
    *pointer = (uint64_t)(uintptr_t)found.data + found.byte_offset;
    return fits;
}

/* -- results -------------------------------------------------------------------------------------------------------- */

static PyObject *new_array(const Call *call, const Tensor *tensor, uint64_t *pointer)
{
    const NumPy *numpy = call->numpy;
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

static PyObject *new_tensor(const DLPackExchangeAPI *api, const Tensor *tensor, uint64_t *pointer)
{
    if (tensor->bytes < POOLED_BYTES)
        return tensor_over(api, tensor, NULL, NULL, pointer);
    PyObject *block = af_take_block(tensor->bytes);
    return block ? tensor_over(api, tensor, block, af_block_memory(block), pointer) : NULL;
}

/* -- a call ---------------------------------------------------------------------------------------------------------- */

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

/* The library of a tensor's type; the types that were asked for are remembered. */
static Library library_of(PyObject *object)
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

static PyObject *finish(const Call *call, PyObject **results)
{
    if (call->output_count == 1)
        return results[0];
    PyObject *tuple = PyTuple_New((Py_ssize_t)call->output_count);
    for (size_t i = 0; i < call->output_count; i++) {
        if (tuple != NULL)
            PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, results[i]);
        else
            Py_DECREF(results[i]);
    }
    return tuple;
}

/* Whether an argument that is written shares memory with another; strides are positive or the whole does not fit. */
static bool meet(const Call *call, const uint64_t *pointers)
{
    for (size_t w = 0; w < call->input_count; w++) {
        if (!call->written[w])
            continue;
        uint64_t first = pointers[call->inputs[w].slot], last = first + call->inputs[w].bytes;
        for (size_t i = 0; i < call->input_count; i++) {
            uint64_t start = pointers[call->inputs[i].slot];
            if (i != w && start < last && first < start + call->inputs[i].span)
                return true;
        }
    }
    return false;
}

/* Makes the results and the workspace and runs. `results` are filled in order; false with an exception set. */
static bool run(Call *call, PyObject *const *args, uint64_t *pointers, const DLPackExchangeAPI *api,
                PyObject **results)
{
    for (size_t i = 0; i < call->output_count; i++) {
        const Tensor *tensor = &call->outputs[i];
        uint64_t *pointer = &pointers[tensor->slot];
        if (call->places[i] >= 0) {
            *pointer = pointers[call->inputs[call->places[i]].slot];
            results[i] = Py_NewRef(args[call->places[i]]);
            continue;
        }
        results[i] = api ? new_tensor(api, tensor, pointer) : new_array(call, tensor, pointer);
        if (results[i] == NULL)
            return false;
    }
    PyObject *workspace = NULL;
    if (call->workspace_bytes) {
        workspace = af_take_block(call->workspace_bytes);
        if (workspace == NULL)
            return false;
        uint64_t start = (uint64_t)(uintptr_t)af_block_memory(workspace);
        for (size_t i = 0; i < call->workspace_count; i++)
            pointers[call->workspace[2 * i]] = start + call->workspace[2 * i + 1];
    }
    for (size_t i = 0; i < call->lent_count; i++)
        pointers[call->lent[3 * i]] = pointers[call->lent[3 * i + 1]] + call->lent[3 * i + 2];
    int64_t status[2] = {0, 0};
    bool timed = call->calls < TIMED_RUNS, quick = !timed && call->quickest < QUICK_NS;
    int64_t start = timed ? af_now_ns() : 0;
    bool fine = af_run_plan(call->plan, pointers, NULL, call->chunks, call->workers, quick, status);
    int64_t spent = timed ? af_now_ns() - start : 0;
    if (timed && (call->calls == 0 || spent < call->quickest))
        call->quickest = spent;
    Py_XDECREF(workspace);
    if (fine && status[0] != 0) {
        PyObject *nothing =
            PyObject_CallFunction(call->fail, "LL", (long long)status[0] - 1, (long long)status[1]);
        Py_XDECREF(nothing);
        fine = false;
    }
    call->calls += fine;
    return fine;
}

typedef struct {
    const DLPackExchangeAPI *api; /* of the first argument; NULL where its type has none */
    Py_buffer *views;
    size_t open;
} Reading;

static bool read_argument(const Call *call, size_t number, PyObject *argument, Reading *reading, uint64_t *pointer)
{
    const Tensor *want = &call->inputs[number];
    bool written = call->written[number];
    if (Py_IS_TYPE(argument, call->numpy->array))
        return read_array(want, (NumPyArray *)argument, written, pointer);
    const Library library = library_of(argument);
    if (number == 0)
        reading->api = library.api;
    if (library.api != NULL)
        return read_tensor(want, &library, argument, pointer);
    if (PyObject_TypeCheck(argument, call->numpy->array))
        return read_array(want, (NumPyArray *)argument, written, pointer);
    bool fits = read_buffer(want, argument, written, &reading->views[reading->open], pointer);
    reading->open += fits;
    return fits;
}

bool af_try_call(PyObject *self, PyObject *const *args, size_t count, PyObject **result)
{
    Call *call = (Call *)self;
    *result = NULL;
    if (count != call->input_count)
        return false;
    uint64_t pointers[call->pointer_count];
    memcpy(pointers, call->pointers, sizeof pointers);
    Py_buffer views[count + 1];
    Reading reading = {.views = views};
    bool fits = true;
    for (size_t i = 0; fits && i < count; i++)
        fits = read_argument(call, i, args[i], &reading, &pointers[call->inputs[i].slot]);
    fits = fits && !meet(call, pointers);
    if (fits) {
        PyObject *results[call->output_count];
        memset(results, 0, sizeof results);
        if (run(call, args, pointers, reading.api, results)) {
            *result = finish(call, results);
        } else {
            for (size_t i = 0; i < call->output_count; i++)
                Py_XDECREF(results[i]);
        }
    }
    while (reading.open > 0)
        PyBuffer_Release(&views[--reading.open]);
    return fits;
}

static PyObject *call_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    PyObject *result = NULL;
    if (names == NULL && af_try_call(self, args, (size_t)PyVectorcall_NARGS(nargsf), &result))
        return result;
    Py_RETURN_NONE;
}

bool af_is_call(PyObject *object)
{
    return Py_IS_TYPE(object, call_type);
}

/* -- making one ------------------------------------------------------------------------------------------------------ */

static void free_tensors(Tensor *tensors, size_t count)
{
    for (size_t i = 0; tensors != NULL && i < count; i++)
        Py_XDECREF((PyObject *)tensors[i].array_type);
    PyMem_Free(tensors);
}

static void call_dealloc(PyObject *self)
{
    Call *call = (Call *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(call->pointers);
    PyMem_Free(call->chunks);
    PyMem_Free(call->workspace);
    PyMem_Free(call->lent);
    PyMem_Free(call->places);
    PyMem_Free(call->written);
    free_tensors(call->inputs, call->input_count);
    free_tensors(call->outputs, call->output_count);
    Py_XDECREF(call->plan);
    Py_XDECREF(call->fail);
    Py_XDECREF(call->owner);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* The integers of a tuple, in memory of their own; NULL with an exception set. */
static void *read_integers(PyObject *tuple, size_t *count, bool is_signed)
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

static void measure(Tensor *tensor)
{
    int64_t last = 0;
    tensor->bytes = (size_t)tensor->itemsize;
    for (int d = 0; d < tensor->rank; d++) {
        tensor->bytes *= (size_t)tensor->shape[d];
        last += (tensor->shape[d] - 1) * tensor->strides[d];
    }
    tensor->empty = tensor->bytes == 0;
    tensor->span = tensor->empty ? 0 : (size_t)(last + 1) * (size_t)tensor->itemsize;
}

/* A tuple (slot, NumPy's type, DLPack's type code, bytes of an element, shape, strides in elements). */
static bool read_description(PyObject *tuple, size_t slots, Tensor *tensor)
{
    PyObject *type, *shape, *strides;
    Py_ssize_t slot;
    int code, steps = 0;
    if (!PyArg_ParseTuple(tuple, "nOinO!O!", &slot, &type, &code, &tensor->itemsize, &PyTuple_Type, &shape,
                          &PyTuple_Type, &strides) ||
        !read_lengths(shape, tensor->shape, &tensor->rank) || !read_lengths(strides, tensor->strides, &steps))
        return false;
    if (slot < 0 || (size_t)slot >= slots || steps != tensor->rank) {
        PyErr_Format(PyExc_ValueError, "create_call: slot %zd of %zu, %d extents and %d strides", slot, slots,
                     tensor->rank, steps);
        return false;
    }
    tensor->slot = (size_t)slot;
    tensor->type = (DLDataType){(uint8_t)code, (uint8_t)(8 * tensor->itemsize), 1};
    tensor->array_type = (ArrayType *)Py_NewRef(type);
    measure(tensor);
    return true;
}

static Tensor *read_tensors(PyObject *tuple, size_t slots, size_t *count)
{
    *count = (size_t)PyTuple_GET_SIZE(tuple);
    Tensor *tensors = PyMem_Calloc(*count + 1, sizeof *tensors);
    if (tensors == NULL)
        return (Tensor *)PyErr_NoMemory();
    for (size_t i = 0; i < *count; i++) {
        if (!read_description(PyTuple_GET_ITEM(tuple, (Py_ssize_t)i), slots, &tensors[i])) {
            free_tensors(tensors, *count);
            return NULL;
        }
    }
    return tensors;
}

PyDoc_STRVAR(create_call_doc,
             "create_call(plan, pointers, chunks, workers, inputs, outputs, places, workspace, workspace_bytes, lent,\n"
             "            fail, owner, /)\n--\n\n"
             "A callable for arguments of known shapes. It returns the result, or a tuple of several; None where the\n"
             "arguments are not just what `inputs` says, and nothing ran. Its `calls` counts what ran.\n"
             "Raises TypeError, ValueError, or ImportError where NumPy's ABI is not known.");

static PyObject *create_call(PyObject *module, PyObject *args)
{
    PyObject *plan, *pointers, *chunks, *inputs, *outputs, *places, *workspace, *lent, *fail, *owner;
    Py_ssize_t workers, workspace_bytes;
    if (!PyArg_ParseTuple(args, "OO!O!nO!O!O!O!nO!OO", &plan, &PyTuple_Type, &pointers, &PyTuple_Type, &chunks, &workers,
                          &PyTuple_Type, &inputs, &PyTuple_Type, &outputs, &PyTuple_Type, &places, &PyTuple_Type,
                          &workspace, &workspace_bytes, &PyTuple_Type, &lent, &fail, &owner))
        return NULL;
    const NumPy *numpy = af_numpy();
    if (numpy == NULL)
        return NULL;
    if (!af_is_plan(module, plan))
        return PyErr_Format(PyExc_TypeError, "create_call: expected a Plan, found %s", Py_TYPE(plan)->tp_name);
    Call *call = PyObject_New(Call, call_type);
    if (call == NULL)
        return NULL;
    PyObject head = call->ob_base;
    memset(call, 0, sizeof *call);
    call->ob_base = head;
    call->vectorcall = call_vectorcall;
    call->numpy = numpy;
    call->workers = workers > 0 ? (size_t)workers : 1;
    call->workspace_bytes = (size_t)workspace_bytes;
    size_t chunk_count = 0, pairs = 0, triples = 0, placed = 0, needed = 0, needed_chunks = 0;
    af_plan_needs(plan, &needed, &needed_chunks);
    bool fine = (call->pointers = read_integers(pointers, &call->pointer_count, false)) != NULL &&
                (call->chunks = read_integers(chunks, &chunk_count, true)) != NULL &&
                (call->workspace = read_integers(workspace, &pairs, false)) != NULL &&
                (call->lent = read_integers(lent, &triples, false)) != NULL &&
                (call->inputs = read_tensors(inputs, call->pointer_count, &call->input_count)) != NULL &&
                (call->outputs = read_tensors(outputs, call->pointer_count, &call->output_count)) != NULL &&
                (call->places = read_integers(places, &placed, true)) != NULL &&
                (call->written = PyMem_Calloc(call->input_count + 1, sizeof(bool))) != NULL;
    call->workspace_count = pairs / 2;
    for (size_t i = 0; fine && i < call->workspace_count; i++)
        fine = call->workspace[2 * i] < call->pointer_count && call->workspace[2 * i + 1] <= call->workspace_bytes;
    call->lent_count = triples / 3;
    for (size_t i = 0; fine && i < call->lent_count; i++)
        fine = call->lent[3 * i] < call->pointer_count && call->lent[3 * i + 1] < call->pointer_count;
    for (size_t i = 0; fine && i < placed; i++) {
        fine = call->places[i] < (int64_t)call->input_count;
        if (fine && call->places[i] >= 0)
            call->written[call->places[i]] = true;
    }
    fine = fine && placed == call->output_count && call->pointer_count >= needed && chunk_count >= needed_chunks &&
           call->output_count > 0;
    if (!fine) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "create_call: the parts do not fit each other");
        Py_DECREF(call);
        return NULL;
    }
    call->plan = Py_NewRef(plan);
    call->fail = Py_NewRef(fail);
    call->owner = Py_NewRef(owner);
    return (PyObject *)call;
}

PyDoc_STRVAR(as_tensor_doc, "as_tensor(example, array, tensor, /)\n--\n\n"
                            "`array` as the example's library has it, over the same memory: for libraries with DLPack's\n"
                            "exchange table. None for others. `tensor` describes the array as for create_call.");

static PyObject *as_tensor(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *example, *array, *description;
    if (!PyArg_ParseTuple(args, "OOO!", &example, &array, &PyTuple_Type, &description))
        return NULL;
    const DLPackExchangeAPI *api = library_of(example).api;
    if (api == NULL)
        Py_RETURN_NONE;
    PyObject *single = PyTuple_Pack(1, description);
    size_t count = 0;
    Tensor *tensor = single ? read_tensors(single, 1, &count) : NULL;
    Py_XDECREF(single);
    PyObject *view = tensor ? PyMemoryView_FromObject(array) : NULL;
    PyObject *result = NULL;
    uint64_t pointer;
    if (view != NULL)
        result = tensor_over(api, tensor, view, PyMemoryView_GET_BUFFER(view)->buf, &pointer);
    free_tensors(tensor, count);
    return result;
}

static PyMemberDef members[] = {
    {"calls", Py_T_ULONGLONG, offsetof(Call, calls), Py_READONLY, "How many calls ran."},
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(Call, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot call_slots[] = {
    {Py_tp_dealloc, call_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, members},
    {Py_tp_doc, "A plan bound to known shapes, made by create_call."},
    {0, NULL},
};

static PyType_Spec call_spec = {
    .name = "autofusion.runtime._native.Call",
    .basicsize = sizeof(Call),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = call_slots,
};

static PyMethodDef methods[] = {
    {"create_call", create_call, METH_VARARGS, create_call_doc},
    {"as_tensor", as_tensor, METH_VARARGS, as_tensor_doc},
    {NULL, NULL, 0, NULL},
};

int af_add_calls(PyObject *module)
{
    if (call_type == NULL)
        call_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &call_spec, NULL);
    return call_type == NULL ? -1 : PyModule_AddFunctions(module, methods);
}
