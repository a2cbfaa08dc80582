/* The base of what users call: tries native calls first, and leaves all else to a method in Python. */
#include "native.h"

#include <string.h>
#if PY_VERSION_HEX < 0x030C0000 /* the members' types had other names */
#include <structmember.h>
#define Py_T_PYSSIZET T_PYSSIZET
#define Py_READONLY READONLY
#endif

enum { FEW = 8 };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *direct; /* a tuple of what create_call made; NULL for none */
} Callable;

static PyTypeObject *callable_type;
static PyObject *rest_name;

/* self._call(*arguments, **options) */
static PyObject *call_rest(PyObject *self, PyObject *const *args, size_t count, PyObject *names)
{
    size_t all = count + (names ? (size_t)PyTuple_GET_SIZE(names) : 0);
    PyObject *few[FEW + 1], **moved = all <= FEW ? few : PyMem_Malloc((all + 1) * sizeof *moved);
    if (moved == NULL)
        return PyErr_NoMemory();
    moved[0] = self;
    if (all > 0)
        memcpy(moved + 1, args, all * sizeof *moved);
    PyObject *result = PyObject_VectorcallMethod(rest_name, moved, count + 1, names);
    if (moved != few)
        PyMem_Free(moved);
    return result;
}

static PyObject *callable_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    size_t count = (size_t)PyVectorcall_NARGS(nargsf);
    PyObject *direct = names == NULL ? ((Callable *)self)->direct : NULL;
    if (direct != NULL) {
        PyObject *result = NULL;
        bool ran = false;
        Py_INCREF(direct); /* another thread may set other ones while this one runs */
        for (Py_ssize_t i = 0; !ran && i < PyTuple_GET_SIZE(direct); i++)
            ran = af_try_call(PyTuple_GET_ITEM(direct, i), args, count, &result);
        Py_DECREF(direct);
        if (ran)
            return result;
    }
    return call_rest(self, args, count, names);
}

static PyObject *callable_new(PyTypeObject *type, PyObject *args, PyObject *options)
{
    (void)args, (void)options;
    PyObject *self = type->tp_alloc(type, 0); /* zeroed */
    if (self != NULL)
        ((Callable *)self)->vectorcall = callable_vectorcall;
    return self;
}

static int callable_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Callable *)self)->direct);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int callable_clear(PyObject *self)
{
    Py_CLEAR(((Callable *)self)->direct);
    return 0;
}

static void callable_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)callable_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *get_direct(PyObject *self, void *unused)
{
    (void)unused;
    PyObject *direct = ((Callable *)self)->direct;
    return direct ? Py_NewRef(direct) : PyTuple_New(0);
}

static int set_direct(PyObject *self, PyObject *value, void *unused)
{
    (void)unused;
    bool fine = value != NULL && PyTuple_Check(value);
    for (Py_ssize_t i = 0; fine && i < PyTuple_GET_SIZE(value); i++)
        fine = af_is_call(PyTuple_GET_ITEM(value, i));
    if (!fine) {
        PyErr_SetString(PyExc_TypeError, "direct: expected a tuple of what create_call made");
        return -1;
    }
    Py_XSETREF(((Callable *)self)->direct, Py_NewRef(value));
    return 0;
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(Callable, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"direct", get_direct, set_direct, "The native calls that are tried, in this order.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, callable_new},         {Py_tp_dealloc, callable_dealloc}, {Py_tp_traverse, callable_traverse},
    {Py_tp_clear, callable_clear},     {Py_tp_call, PyVectorcall_Call},   {Py_tp_members, members},
    {Py_tp_getset, properties},
    {Py_tp_doc, "Called with arguments that one of the calls in `direct` takes, its result; else what the subclass's\n"
                "`_call` returns."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "autofusion.runtime._native.Callable",
    .basicsize = sizeof(Callable),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = slots,
};

int af_add_callables(PyObject *module)
{
    if (callable_type == NULL) {
        rest_name = PyUnicode_InternFromString("_call");
        callable_type = rest_name ? (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL) : NULL;
    }
    return callable_type == NULL ? -1 : PyModule_AddType(module, callable_type);
}
