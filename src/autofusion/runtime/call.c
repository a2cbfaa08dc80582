/* Calls of a plan whose shapes are all known: arguments are checked, results made and the plan run in one go.
 *
 * What does not fit exactly is not judged here: the call returns None, and Python converts or says what is wrong.
 */
#include "native.h"

#include "dlpack.h"

#include <string.h>
#if PY_VERSION_HEX < 0x030C0000 /* the members' types had other names */
#include <structmember.h>
#define Py_T_ULONGLONG T_ULONGLONG
#define Py_T_PYSSIZET T_PYSSIZET
#define Py_READONLY READONLY
#endif

enum {
    MOST_RANK = 16,
    POOLED_BYTES = 1 << 16, /* results from here on come from blocks; NumPy has its own cache for small ones */
};

typedef struct {
    size_t slot; /* of the pointer table */
    char code;   /* of the element type, as in the struct module */
    DLDataType type;
    Py_ssize_t itemsize;
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
    int64_t *places;   /* of each result: the argument that it is written to, or -1 */
    bool *written;     /* of each argument */
    Tensor *inputs, *outputs;
    PyObject *make;    /* ndarray(shape, dtype, buffer) */
    PyObject *empty;   /* empty(shape, dtype) */
    PyObject *shapes, *dtypes; /* of the results: tuples */
    PyObject *fail;    /* fail(operator, position) raises */
    PyObject *owner;   /* keeps code and constants */
    unsigned long long calls;
} Call;

static PyTypeObject *call_type;

/* -- arguments ------------------------------------------------------------------------------------------------------ */

static bool strides_fit(const Tensor *want, const int64_t *strides, int64_t unit)
{
    for (int d = 0; d < want->rank; d++)
        if (want->shape[d] > 1 && strides[d] != want->strides[d] * unit)
            return false;
    return true;
}

static bool is_empty(const Tensor *tensor)
{
    for (int d = 0; d < tensor->rank; d++)
        if (tensor->shape[d] == 0)
            return true;
    return false;
}

static bool shape_fits(const Tensor *want, const int64_t *shape)
{
    for (int d = 0; d < want->rank; d++)
        if (shape[d] != want->shape[d])
            return false;
    return true;
}

/* The address of a buffer that is just what the plan was compiled for; `view` is then open. */
static bool read_buffer(const Tensor *want, PyObject *object, bool writable, Py_buffer *view, uint64_t *pointer)
{
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_RECORDS : PyBUF_RECORDS_RO) != 0) {
        PyErr_Clear();
        return false;
    }
    const char *format = view->format ? view->format : "B";
    bool wide = want->itemsize == 8 && (want->code == 'l' || want->code == 'L'); /* int64 is l or q */
    bool code = format[0] == want->code || (wide && format[0] == want->code + ('q' - 'l'));
    bool fits = code && format[1] == '\0' && view->itemsize == want->itemsize && view->ndim == want->rank;
    int64_t shape[MOST_RANK], strides[MOST_RANK];
    for (int d = 0; fits && d < want->rank; d++) {
        shape[d] = view->shape[d];
        strides[d] = view->strides[d];
    }
    fits = fits && shape_fits(want, shape) && (is_empty(want) || strides_fit(want, strides, want->itemsize));
    *pointer = (uint64_t)(uintptr_t)view->buf;
    if (!fits)
        PyBuffer_Release(view);
    return fits;
}

static bool read_tensor(const Tensor *want, const DLPackExchangeAPI *api, PyObject *object, uint64_t *pointer)
{
    DLTensor found;
    if (api->dltensor_from_py_object_no_sync(object, &found) != 0) {
        PyErr_Clear();
        return false;
    }
    bool fits = found.device.device_type == DLPACK_CPU && found.ndim == want->rank &&
                memcmp(&found.dtype, &want->type, sizeof found.dtype) == 0 && shape_fits(want, found.shape) &&
                (found.strides == NULL || is_empty(want) || strides_fit(want, found.strides, 1));
    *pointer = (uint64_t)(uintptr_t)found.data + found.byte_offset;
    return fits;
}

/* -- results -------------------------------------------------------------------------------------------------------- */

static size_t bytes_of(const Tensor *tensor)
{
    size_t bytes = (size_t)tensor->itemsize;
    for (int d = 0; d < tensor->rank; d++)
        bytes *= (size_t)tensor->shape[d];
    return bytes;
}

static PyObject *new_array(const Call *call, size_t number, uint64_t *pointer)
{
    const Tensor *tensor = &call->outputs[number];
    PyObject *arguments[4] = {NULL, PyTuple_GET_ITEM(call->shapes, number), PyTuple_GET_ITEM(call->dtypes, number)};
    if (bytes_of(tensor) < POOLED_BYTES) {
        PyObject *array = PyObject_Vectorcall(call->empty, arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        Py_buffer view;
        if (array == NULL || PyObject_GetBuffer(array, &view, PyBUF_WRITABLE) != 0) {
            Py_XDECREF(array);
            return NULL;
        }
        *pointer = (uint64_t)(uintptr_t)view.buf;
        PyBuffer_Release(&view);
        return array;
    }
    PyObject *block = af_take_block(bytes_of(tensor));
    if (block == NULL)
        return NULL;
    *pointer = (uint64_t)(uintptr_t)af_block_memory(block);
    arguments[3] = block;
    PyObject *array = PyObject_Vectorcall(call->make, arguments + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_DECREF(block);
    return array;
}

/* From the first byte of a tensor to behind its last. */
static size_t span_of(const Tensor *tensor)
{
    int64_t last = 0;
    for (int d = 0; d < tensor->rank; d++)
        last += (tensor->shape[d] - 1) * tensor->strides[d];
    return is_empty(tensor) ? 0 : (size_t)(last + 1) * (size_t)tensor->itemsize;
}

typedef struct {
    DLManagedTensorVersioned managed;
    int64_t shape[MOST_RANK], strides[MOST_RANK];
} Managed;

static void free_managed(DLManagedTensorVersioned *managed)
{
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF((PyObject *)managed->manager_ctx);
    PyMem_RawFree(managed);
    PyGILState_Release(state);
}

/* A tensor of the exchange table's library over memory that `owner` keeps; takes the reference to `owner`. */
static PyObject *tensor_over(const DLPackExchangeAPI *api, const Tensor *tensor, PyObject *owner, void *memory)
{
    Managed *made = PyMem_RawMalloc(sizeof *made);
    if (made == NULL) {
        Py_DECREF(owner);
        return PyErr_NoMemory();
    }
    memcpy(made->shape, tensor->shape, sizeof made->shape);
    memcpy(made->strides, tensor->strides, sizeof made->strides);
    made->managed = (DLManagedTensorVersioned){
        .version = {DLPACK_MAJOR, DLPACK_MINOR},
        .manager_ctx = owner,
        .deleter = free_managed,
        .dl_tensor = {.data = memory, .device = {DLPACK_CPU, 0}, .ndim = tensor->rank, .dtype = tensor->type,
                      .shape = made->shape, .strides = made->strides},
    };
    void *result = NULL;
    if (api->managed_tensor_to_py_object_no_sync(&made->managed, &result) != 0)
        return NULL; /* the tensor is the callee's to free */
    return result;
}

static PyObject *new_tensor(const Call *call, size_t number, const DLPackExchangeAPI *api, uint64_t *pointer)
{
    const Tensor *tensor = &call->outputs[number];
    PyObject *block = af_take_block(bytes_of(tensor));
    if (block == NULL)
        return NULL;
    *pointer = (uint64_t)(uintptr_t)af_block_memory(block);
    return tensor_over(api, tensor, block, af_block_memory(block));
}

/* -- a call ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyTypeObject *type;
    const DLPackExchangeAPI *api; /* NULL for a type without one */
} Known;

/* The exchange functions of a tensor's type; the last type that was asked for is remembered. */
static const DLPackExchangeAPI *exchange_of(PyObject *object)
{
    static Known known;
    PyTypeObject *type = Py_TYPE(object);
    if (known.type == type)
        return known.api;
    const DLPackExchangeAPI *api = NULL;
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    if (capsule != NULL && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    PyErr_Clear();
    Py_XDECREF(capsule);
    if (api != NULL && (api->header.version.major != DLPACK_MAJOR || api->dltensor_from_py_object_no_sync == NULL))
        api = NULL;
    Py_INCREF(type); /* so that no other type takes its address */
    Py_XDECREF((PyObject *)known.type);
    known = (Known){type, api};
    return api;
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
        uint64_t first = pointers[call->inputs[w].slot], last = first + bytes_of(&call->inputs[w]);
        for (size_t i = 0; i < call->input_count; i++) {
            uint64_t start = pointers[call->inputs[i].slot];
            if (i != w && start < last && first < start + span_of(&call->inputs[i]))
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
        uint64_t *pointer = &pointers[call->outputs[i].slot];
        if (call->places[i] >= 0) {
            *pointer = pointers[call->inputs[call->places[i]].slot];
            results[i] = Py_NewRef(args[call->places[i]]);
            continue;
        }
        results[i] = api ? new_tensor(call, i, api, pointer) : new_array(call, i, pointer);
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
    int64_t status[2] = {0, 0};
    bool fine = af_run_plan(call->plan, pointers, NULL, call->chunks, call->workers, status);
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

static PyObject *call_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Call *call = (Call *)self;
    if ((size_t)PyVectorcall_NARGS(nargsf) != call->input_count || names != NULL)
        Py_RETURN_NONE;
    uint64_t pointers[call->pointer_count];
    Py_buffer views[call->input_count + 1];
    PyObject *results[call->output_count];
    memset(results, 0, sizeof results);
    memcpy(pointers, call->pointers, sizeof pointers);
    const DLPackExchangeAPI *api = call->input_count ? exchange_of(args[0]) : NULL;
    size_t open = 0;
    bool fits = true;
    for (size_t i = 0; fits && i < call->input_count; i++) {
        const Tensor *want = &call->inputs[i];
        if (api != NULL) {
            fits = Py_TYPE(args[i]) == Py_TYPE(args[0]) && read_tensor(want, api, args[i], &pointers[want->slot]);
        } else {
            fits = read_buffer(want, args[i], call->written[i], &views[i], &pointers[want->slot]);
            open += fits;
        }
    }
    fits = fits && !meet(call, pointers);
    bool ran = fits && run(call, args, pointers, api, results);
    while (open > 0)
        PyBuffer_Release(&views[--open]);
    if (ran)
        return finish(call, results);
    for (size_t i = 0; i < call->output_count; i++)
        Py_XDECREF(results[i]);
    if (!fits)
        Py_RETURN_NONE;
    return NULL;
}

/* -- making one ------------------------------------------------------------------------------------------------------ */

static void call_dealloc(PyObject *self)
{
    Call *call = (Call *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(call->pointers);
    PyMem_Free(call->chunks);
    PyMem_Free(call->workspace);
    PyMem_Free(call->places);
    PyMem_Free(call->written);
    PyMem_Free(call->inputs);
    PyMem_Free(call->outputs);
    Py_XDECREF(call->plan);
    Py_XDECREF(call->make);
    Py_XDECREF(call->empty);
    Py_XDECREF(call->shapes);
    Py_XDECREF(call->dtypes);
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

/* Tuples (slot, code, DLPack's type code, bytes of an element, shape, strides in elements). */
static Tensor *read_tensors(PyObject *tuple, size_t slots, size_t *count)
{
    *count = (size_t)PyTuple_GET_SIZE(tuple);
    Tensor *tensors = PyMem_Calloc(*count + 1, sizeof *tensors);
    if (tensors == NULL)
        return (Tensor *)PyErr_NoMemory();
    for (size_t i = 0; i < *count; i++) {
        Tensor *tensor = &tensors[i];
        PyObject *shape, *strides;
        Py_ssize_t slot;
        int code, rank;
        bool fine = PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, (Py_ssize_t)i), "nCinO!O!", &slot, &code, &rank,
                                     &tensor->itemsize, &PyTuple_Type, &shape, &PyTuple_Type, &strides);
        tensor->slot = (size_t)slot;
        tensor->code = (char)code;
        tensor->type = (DLDataType){(uint8_t)rank, (uint8_t)(8 * tensor->itemsize), 1};
        int steps = 0;
        fine = fine && read_lengths(shape, tensor->shape, &tensor->rank) &&
               read_lengths(strides, tensor->strides, &steps);
        if (fine && (slot < 0 || tensor->slot >= slots || steps != tensor->rank)) {
            PyErr_Format(PyExc_ValueError, "create_call: tensor %zu: slot %zd of %zu, %d extents and %d strides", i,
                         slot, slots, tensor->rank, steps);
            fine = false;
        }
        if (!fine) {
            PyMem_Free(tensors);
            return NULL;
        }
    }
    return tensors;
}

PyDoc_STRVAR(create_call_doc,
             "create_call(plan, pointers, chunks, workers, inputs, outputs, places, shapes, dtypes, workspace,\n"
             "            workspace_bytes, make, empty, fail, owner, /)\n--\n\n"
             "A callable for arguments of known shapes. It returns the result, or a tuple of several; None where the\n"
             "arguments are not just what `inputs` says, and nothing ran. Its `calls` counts what ran.\n"
             "Raises TypeError or ValueError.");

static PyObject *create_call(PyObject *module, PyObject *args)
{
    PyObject *plan, *pointers, *chunks, *inputs, *outputs, *places, *shapes, *dtypes, *workspace, *make, *empty, *fail, *owner;
    Py_ssize_t workers, workspace_bytes;
    if (!PyArg_ParseTuple(args, "OO!O!nO!O!O!O!O!O!nOOOO", &plan, &PyTuple_Type, &pointers, &PyTuple_Type, &chunks,
                          &workers, &PyTuple_Type, &inputs, &PyTuple_Type, &outputs, &PyTuple_Type, &places,
                          &PyTuple_Type, &shapes, &PyTuple_Type, &dtypes, &PyTuple_Type, &workspace, &workspace_bytes, &make, &empty, &fail,
                          &owner))
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
    call->workers = workers > 0 ? (size_t)workers : 1;
    call->workspace_bytes = (size_t)workspace_bytes;
    size_t chunk_count = 0, pairs = 0, placed = 0, needed = 0, needed_chunks = 0;
    af_plan_needs(plan, &needed, &needed_chunks);
    bool fine = (call->pointers = read_integers(pointers, &call->pointer_count, false)) != NULL &&
                (call->chunks = read_integers(chunks, &chunk_count, true)) != NULL &&
                (call->workspace = read_integers(workspace, &pairs, false)) != NULL &&
                (call->inputs = read_tensors(inputs, call->pointer_count, &call->input_count)) != NULL &&
                (call->outputs = read_tensors(outputs, call->pointer_count, &call->output_count)) != NULL &&
                (call->places = read_integers(places, &placed, true)) != NULL &&
                (call->written = PyMem_Calloc(call->input_count + 1, sizeof(bool))) != NULL;
    call->workspace_count = pairs / 2;
    for (size_t i = 0; fine && i < call->workspace_count; i++)
        fine = call->workspace[2 * i] < call->pointer_count && call->workspace[2 * i + 1] <= call->workspace_bytes;
    for (size_t i = 0; fine && i < placed; i++) {
        fine = call->places[i] < (int64_t)call->input_count;
        if (fine && call->places[i] >= 0)
            call->written[call->places[i]] = true;
    }
    fine = fine && placed == call->output_count && call->pointer_count >= needed && chunk_count >= needed_chunks && call->output_count > 0 &&
           (size_t)PyTuple_GET_SIZE(shapes) == call->output_count &&
           (size_t)PyTuple_GET_SIZE(dtypes) == call->output_count;
    if (!fine) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "create_call: the parts do not fit each other");
        Py_DECREF(call);
        return NULL;
    }
    call->plan = Py_NewRef(plan);
    call->make = Py_NewRef(make);
    call->empty = Py_NewRef(empty);
    call->shapes = Py_NewRef(shapes);
    call->dtypes = Py_NewRef(dtypes);
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
    const DLPackExchangeAPI *api = exchange_of(example);
    if (api == NULL)
        Py_RETURN_NONE;
    PyObject *single = PyTuple_Pack(1, description);
    size_t count = 0;
    Tensor *tensor = single ? read_tensors(single, 1, &count) : NULL;
    Py_XDECREF(single);
    PyObject *view = tensor ? PyMemoryView_FromObject(array) : NULL;
    PyObject *result = NULL;
    if (view != NULL)
        result = tensor_over(api, tensor, view, PyMemoryView_GET_BUFFER(view)->buf);
    PyMem_Free(tensor);
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
