/* Calls of a plan: arguments are checked, results made and the plan run in one go. Where sizes are open, what follows
 * from them is computed at each call, in a table of numbers; extents, strides, chunks and offsets are then places in it.
 *
 * What does not fit exactly is not judged here: nothing runs, and Python converts or says what is wrong.
 */
#include "tensors.h"

#if PY_VERSION_HEX < 0x030C0000 /* the members' types had other names */
#include <structmember.h>
#define Py_T_ULONGLONG T_ULONGLONG
#define Py_T_PYSSIZET T_PYSSIZET
#define Py_READONLY READONLY
#endif

enum { QUICK_NS = 2000 }; /* a run that is over sooner keeps the GIL: to let it go and take it back costs up to 100 */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *plan;
    uint64_t *pointers; /* as every call begins: constants and numbers in place */
    Sizes sizes; /* where some are open, chunks, bytes and offsets here are places in its table */
    int64_t *chunks;
    size_t pointer_count, chunk_count, workers, input_count, output_count;
    int64_t workspace_bytes;
    size_t *workspace; /* pairs: slot, offset */
    size_t *lent;      /* slot, slot of a result, offset in that: what lies there before it is written */
    size_t *scratch;   /* bytes that a worker needs beside what the plan says: the most of these */
    size_t workspace_count, lent_count, scratch_count;
    int64_t *places;   /* of each result: the argument that it is written to, or -1 */
    bool *written;     /* of each argument */
    Tensor *inputs, *outputs;
    PyObject *fail;    /* fail(operator, position) raises */
    PyObject *owner;   /* keeps code and constants */
    const NumPy *numpy;
    unsigned long long calls;
    int64_t quick_bytes; /* runs of arguments and results of so many bytes of open sizes were quick; -1: none was yet */
} Call;

static PyTypeObject *call_type;

/* -- a call ---------------------------------------------------------------------------------------------------------- */

static inline int64_t number(const int64_t *numbers, int64_t known)
{
    return numbers ? numbers[known] : known;
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
static bool meet(const Call *call, const uint64_t *pointers, const int64_t *numbers)
{
    Tensor room, other_room;
    for (size_t w = 0; w < call->input_count; w++) {
        if (!call->written[w])
            continue;
        const Tensor *written = sized(&call->inputs[w], numbers, &room);
        uint64_t first = pointers[written->slot], last = first + written->bytes;
        for (size_t i = 0; i < call->input_count; i++) {
            const Tensor *other = sized(&call->inputs[i], numbers, &other_room);
            uint64_t start = pointers[other->slot];
            if (i != w && start < last && first < start + other->span)
                return true;
        }
    }
    return false;
}

/* One call's arguments as the plan takes them. */
typedef struct {
    PyObject *const *args;
    uint64_t *pointers;
    const int64_t *numbers; /* NULL where all sizes are known */
    size_t open_bytes;      /* of arguments and results of open sizes */
    const DLPackExchangeAPI *api; /* of the first argument; NULL where its type has none */
} Arguments;

/* Runs the plan. Small runs keep the GIL: those of no more bytes than one that was quick. */
static bool launch(Call *call, const Arguments *given, int64_t status[2])
{
    const int64_t *numbers = given->numbers, *chunks = call->chunks;
    int64_t open_chunks[numbers ? call->chunk_count + 1 : 1], scratch = 0;
    for (size_t i = 0; numbers != NULL && i < call->chunk_count; i++)
        open_chunks[i] = numbers[call->chunks[i]];
    for (size_t i = 0; numbers != NULL && i < call->scratch_count; i++)
        scratch = numbers[call->scratch[i]] > scratch ? numbers[call->scratch[i]] : scratch;
    if (numbers != NULL)
        chunks = open_chunks;
    bool quick = (int64_t)given->open_bytes <= call->quick_bytes;
    int64_t start = quick ? 0 : af_now_ns();
    bool fine = af_run_plan(call->plan, given->pointers, numbers, chunks, (size_t)scratch, call->workers, quick, status);
    if (!quick && fine && af_now_ns() - start < QUICK_NS)
        call->quick_bytes = (int64_t)given->open_bytes;
    return fine;
}

/* Puts the workspace's pieces into the pointer table. */
static bool place_workspace(const Call *call, const Arguments *given, PyObject **workspace)
{
    int64_t bytes = number(given->numbers, call->workspace_bytes);
    if (bytes > 0) {
        *workspace = af_take_block((size_t)bytes);
        if (*workspace == NULL)
            return false;
        uint64_t start = (uint64_t)(uintptr_t)af_block_memory(*workspace);
        for (size_t i = 0; i < call->workspace_count; i++)
            given->pointers[call->workspace[2 * i]] =
                start + (uint64_t)number(given->numbers, (int64_t)call->workspace[2 * i + 1]);
    }
    for (size_t i = 0; i < call->lent_count; i++)
        given->pointers[call->lent[3 * i]] = given->pointers[call->lent[3 * i + 1]] +
                                             (uint64_t)number(given->numbers, (int64_t)call->lent[3 * i + 2]);
    return true;
}

/* Makes the results and the workspace and runs. `results` are filled in order; false with an exception set. */
static bool run(Call *call, Arguments *given, PyObject **results)
{
    uint64_t *pointers = given->pointers;
    for (size_t i = 0; i < call->output_count; i++) {
        Tensor room;
        const Tensor *tensor = sized(&call->outputs[i], given->numbers, &room);
        uint64_t *pointer = &pointers[tensor->slot];
        given->open_bytes += tensor->open ? tensor->bytes : 0;
        if (call->places[i] >= 0) {
            *pointer = pointers[call->inputs[call->places[i]].slot];
            results[i] = Py_NewRef(given->args[call->places[i]]);
            continue;
        }
        results[i] = given->api ? af_new_tensor(given->api, tensor, pointer) : af_new_array(call->numpy, tensor, pointer);
        if (results[i] == NULL)
            return false;
    }
    PyObject *workspace = NULL;
    int64_t status[2] = {0, 0};
    bool fine = place_workspace(call, given, &workspace) && launch(call, given, status);
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

/* Buffers that are open while the plan runs. */
typedef struct {
    Py_buffer *views;
    size_t open;
} Buffers;

static bool read_argument(const Call *call, size_t index, Arguments *given, Buffers *buffers, Found *found)
{
    const Tensor *want = &call->inputs[index];
    PyObject *argument = given->args[index];
    bool written = call->written[index];
    if (Py_IS_TYPE(argument, call->numpy->array))
        return af_read_array(want, (NumPyArray *)argument, written, found);
    const Library library = af_library_of(argument);
    if (index == 0)
        given->api = library.api;
    if (library.api != NULL)
        return af_read_tensor(want, &library, argument, found);
    if (PyObject_TypeCheck(argument, call->numpy->array))
        return af_read_array(want, (NumPyArray *)argument, written, found);
    bool right = af_read_buffer(want, argument, written, &buffers->views[buffers->open], found);
    buffers->open += right;
    return right;
}

/* The table of numbers for the sizes that the arguments tell; false where they do not agree. */
static bool fill_numbers(const Call *call, const Found *found, int64_t *numbers)
{
    const Sizes *sizes = &call->sizes;
    memcpy(numbers, sizes->first, sizes->count * sizeof *numbers);
    for (size_t i = 0; i < sizes->symbol_count; i++)
        numbers[i] = found[sizes->sources[2 * i]].shape[sizes->sources[2 * i + 1]];
    if (!af_evaluate_sizes(sizes, numbers))
        return false;
    Tensor room; /* what cannot be is left to Python, before anything is made */
    bool fine = true;
    for (size_t i = 0; fine && i < call->output_count; i++)
        fine = sized(&call->outputs[i], numbers, &room) != NULL;
    for (size_t i = 0; fine && i < call->chunk_count; i++)
        fine = numbers[call->chunks[i]] >= 0;
    int64_t bytes = numbers[call->workspace_bytes];
    for (size_t i = 0; fine && i < call->workspace_count; i++) {
        int64_t offset = numbers[call->workspace[2 * i + 1]];
        fine = offset >= 0 && offset <= bytes;
    }
    return fine;
}

static bool read_arguments(const Call *call, Arguments *given, Buffers *buffers, int64_t *numbers)
{
    size_t count = call->input_count;
    Found found[count + 1];
    for (size_t i = 0; i < count; i++)
        if (!read_argument(call, i, given, buffers, &found[i]))
            return false;
    if (call->sizes.count > 0) {
        if (!fill_numbers(call, found, numbers))
            return false;
        given->numbers = numbers;
    }
    for (size_t i = 0; i < count; i++) {
        Tensor room;
        const Tensor *want = sized(&call->inputs[i], numbers, &room);
        if (want == NULL || !fits(want, &found[i]) || (found[i].pointer == 0 && !want->empty))
            return false;
        given->open_bytes += want->open ? want->bytes : 0;
        given->pointers[want->slot] = found[i].pointer;
    }
    return !meet(call, given->pointers, numbers);
}

bool af_try_call(PyObject *self, PyObject *const *args, size_t count, PyObject **result)
{
    Call *call = (Call *)self;
    *result = NULL;
    if (count != call->input_count)
        return false;
    uint64_t pointers[call->pointer_count];
    memcpy(pointers, call->pointers, sizeof pointers);
    int64_t numbers[call->sizes.count + 1];
    Py_buffer views[count + 1];
    Buffers buffers = {.views = views};
    Arguments given = {.args = args, .pointers = pointers};
    bool right = read_arguments(call, &given, &buffers, numbers);
    if (right) {
        PyObject *results[call->output_count];
        memset(results, 0, sizeof results);
        if (run(call, &given, results)) {
            *result = finish(call, results);
        } else {
            for (size_t i = 0; i < call->output_count; i++)
                Py_XDECREF(results[i]);
        }
    }
    while (buffers.open > 0)
        PyBuffer_Release(&views[--buffers.open]);
    return right;
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

static void call_dealloc(PyObject *self)
{
    Call *call = (Call *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(call->pointers);
    PyMem_Free(call->chunks);
    PyMem_Free(call->workspace);
    PyMem_Free(call->lent);
    PyMem_Free(call->scratch);
    af_free_sizes(&call->sizes);
    PyMem_Free(call->places);
    PyMem_Free(call->written);
    af_free_tensors(call->inputs, call->input_count);
    af_free_tensors(call->outputs, call->output_count);
    Py_XDECREF(call->plan);
    Py_XDECREF(call->fail);
    Py_XDECREF(call->owner);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Whether slots are in the pointer table, and places in the table of sizes; known offsets lie in the workspace. */
static bool numbers_fit(const Call *call)
{
    const Sizes *sizes = &call->sizes;
    size_t limit = sizes->count ? sizes->count : SIZE_MAX;
    bool fine = call->workspace_bytes >= 0 && (size_t)call->workspace_bytes < limit;
    size_t end = sizes->count ? limit - 1 : (size_t)call->workspace_bytes;
    for (size_t i = 0; fine && i < call->workspace_count; i++)
        fine = call->workspace[2 * i] < call->pointer_count && call->workspace[2 * i + 1] <= end;
    for (size_t i = 0; fine && i < call->lent_count; i++)
        fine = call->lent[3 * i] < call->pointer_count && call->lent[3 * i + 1] < call->pointer_count &&
               call->lent[3 * i + 2] < limit;
    for (size_t i = 0; fine && sizes->count && i < call->chunk_count; i++)
        fine = call->chunks[i] >= 0 && (size_t)call->chunks[i] < limit;
    for (size_t i = 0; fine && i < call->scratch_count; i++)
        fine = call->scratch[i] < sizes->count;
    for (size_t i = 0; fine && i < sizes->symbol_count; i++) {
        size_t input = sizes->sources[2 * i];
        fine = input < call->input_count && sizes->sources[2 * i + 1] < (size_t)call->inputs[input].rank;
    }
    return fine;
}

PyDoc_STRVAR(create_call_doc,
             "create_call(plan, pointers, sizes, chunks, scratch, workers, inputs, outputs, places, workspace,\n"
             "            workspace_bytes, lent, fail, owner, /)\n--\n\n"
             "A callable for arguments of known shapes, or of open ones where `sizes` is not empty: the numbers are then\n"
             "places in its table. It returns the result, or a tuple of several; None where the arguments are not just\n"
             "what `inputs` says, and nothing ran. Its `calls` counts what ran.\n"
             "Raises TypeError, ValueError, or ImportError where NumPy's ABI is not known.");

static PyObject *create_call(PyObject *module, PyObject *args)
{
    PyObject *plan, *pointers, *sizes, *chunks, *scratch, *inputs, *outputs, *places, *workspace, *lent, *fail, *owner;
    Py_ssize_t workers, workspace_bytes;
    if (!PyArg_ParseTuple(args, "OO!O!O!O!nO!O!O!O!nO!OO", &plan, &PyTuple_Type, &pointers, &PyTuple_Type, &sizes,
                          &PyTuple_Type, &chunks, &PyTuple_Type, &scratch, &workers, &PyTuple_Type, &inputs,
                          &PyTuple_Type, &outputs, &PyTuple_Type, &places, &PyTuple_Type, &workspace, &workspace_bytes,
                          &PyTuple_Type, &lent, &fail, &owner))
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
    call->workspace_bytes = workspace_bytes;
    call->quick_bytes = -1;
    size_t pairs = 0, triples = 0, placed = 0, needed = 0, needed_chunks = 0;
    af_plan_needs(plan, &needed, &needed_chunks);
    bool fine = (call->pointers = af_read_integers(pointers, &call->pointer_count, false)) != NULL &&
                (PyTuple_GET_SIZE(sizes) == 0 || af_read_sizes(sizes, &call->sizes)) &&
                (call->chunks = af_read_integers(chunks, &call->chunk_count, true)) != NULL &&
                (call->scratch = af_read_integers(scratch, &call->scratch_count, false)) != NULL &&
                (call->workspace = af_read_integers(workspace, &pairs, false)) != NULL &&
                (call->lent = af_read_integers(lent, &triples, false)) != NULL &&
                (call->inputs = af_read_tensors(inputs, call->pointer_count, call->sizes.count, &call->input_count)) !=
                    NULL &&
                (call->outputs = af_read_tensors(outputs, call->pointer_count, call->sizes.count,
                                              &call->output_count)) != NULL &&
                (call->places = af_read_integers(places, &placed, true)) != NULL &&
                (call->written = PyMem_Calloc(call->input_count + 1, sizeof(bool))) != NULL;
    call->workspace_count = pairs / 2;
    call->lent_count = triples / 3;
    fine = fine && placed == call->output_count && call->pointer_count >= needed && call->output_count > 0 &&
           call->chunk_count >= needed_chunks && numbers_fit(call);
    for (size_t i = 0; fine && i < placed; i++) {
        fine = call->places[i] < (int64_t)call->input_count;
        if (fine && call->places[i] >= 0)
            call->written[call->places[i]] = true;
    }
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

static PyMemberDef members[] = {
    {"calls", Py_T_ULONGLONG, offsetof(Call, calls), Py_READONLY, "How many calls ran."},
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(Call, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot call_slots[] = {
    {Py_tp_dealloc, call_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, members},
    {Py_tp_doc, "A plan bound to what its arguments look like, made by create_call."},
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
    {NULL, NULL, 0, NULL},
};

int af_add_calls(PyObject *module)
{
    if (call_type == NULL)
        call_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &call_spec, NULL);
    return call_type == NULL ? -1 : PyModule_AddFunctions(module, methods);
}
