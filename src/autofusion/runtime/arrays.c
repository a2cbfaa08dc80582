/* Where NumPy's functions are. */
#include "arrays.h"

static NumPy numpy;

static void *const *function_table(void)
{
    PyObject *module = PyImport_ImportModule("numpy._core._multiarray_umath"); /* of NumPy 2 */
    if (module == NULL) {
        PyErr_Clear();
        module = PyImport_ImportModule("numpy.core._multiarray_umath");
    }
    PyObject *capsule = module ? PyObject_GetAttrString(module, "_ARRAY_API") : NULL;
    void *const *table = capsule ? PyCapsule_GetPointer(capsule, NULL) : NULL;
    Py_XDECREF(capsule);
    Py_XDECREF(module); /* the table is the module's, which nobody unloads */
    return table;
}

const NumPy *af_numpy(void)
{
    if (numpy.array != NULL)
        return &numpy;
    void *const *table = function_table();
    if (table == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_ImportError))
            PyErr_SetString(PyExc_ImportError, "NumPy's table of functions is not where it is expected");
        return NULL;
    }
    unsigned abi = ((unsigned (*)(void))table[ABI_VERSION])() >> 24;
    if (abi != 1 && abi != 2)
        return (const NumPy *)PyErr_Format(PyExc_ImportError, "NumPy's ABI is of version %u, expected 1 or 2", abi);
    numpy.new_array = (__typeof__(numpy.new_array))table[NEW_FROM_TYPE];
    numpy.set_base = (__typeof__(numpy.set_base))table[SET_BASE];
    numpy.array = (PyTypeObject *)table[ARRAY_CLASS];
    return &numpy;
}
