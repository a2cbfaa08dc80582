/* Memory of results and workspaces. Fresh pages cost more than most kernels: what nobody holds any more is kept, up to
 * a limit, and given out again. The GIL guards all of it. */
#include "native.h"

#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

enum {
    SHELF = 64, /* free pieces kept at most */
    PAGE_BYTES = 4096,
};

#define HUGE_BYTES ((size_t)2 << 20)
#define KEPT_BYTES ((size_t)1 << 30) /* free bytes kept at most */

typedef struct {
    void *memory;
    size_t bytes;
} Piece;

typedef struct {
    PyObject_HEAD
    Piece piece;
    size_t bytes; /* asked for */
} Block;

static Piece shelf[SHELF]; /* the piece that was freed last comes last */
static size_t shelved, shelved_bytes, fresh;
static PyTypeObject *block_type;

static Piece fresh_piece(size_t bytes)
{
    bool huge = bytes >= HUGE_BYTES;
    size_t align = huge ? HUGE_BYTES : PAGE_BYTES, rounded = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    void *memory = NULL;
    fresh++;
    if (rounded < bytes || posix_memalign(&memory, align, rounded) != 0)
        return (Piece){NULL, 0};
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (huge)
        madvise(memory, rounded / HUGE_BYTES * HUGE_BYTES, MADV_HUGEPAGE);
#endif
    return (Piece){memory, rounded};
}

static Piece unshelve(size_t at)
{
    Piece piece = shelf[at];
    shelved--;
    shelved_bytes -= piece.bytes;
    memmove(shelf + at, shelf + at + 1, (shelved - at) * sizeof *shelf);
    return piece;
}

/* The piece freed last that is large enough and wastes little, or a fresh one. */
static Piece take_piece(size_t bytes)
{
    for (size_t at = shelved; at-- > 0;)
        if (shelf[at].bytes >= bytes && shelf[at].bytes - bytes <= bytes / 4 + PAGE_BYTES)
            return unshelve(at);
    Piece piece = fresh_piece(bytes);
    while (piece.memory == NULL && shelved > 0) { /* what is kept may be what is missing */
        free(unshelve(0).memory);
        piece = fresh_piece(bytes);
    }
    return piece;
}

static void give_piece_back(Piece piece)
{
    while (shelved > 0 && (shelved == SHELF || shelved_bytes + piece.bytes > KEPT_BYTES))
        free(unshelve(0).memory);
    if (piece.bytes > KEPT_BYTES) {
        free(piece.memory);
        return;
    }
    shelf[shelved++] = piece;
    shelved_bytes += piece.bytes;
}

PyObject *af_take_block(size_t bytes)
{
    Block *block = PyObject_New(Block, block_type);
    if (block == NULL)
        return NULL;
    block->bytes = bytes;
    block->piece = take_piece(bytes ? bytes : 1);
    if (block->piece.memory == NULL) {
        Py_DECREF(block);
        return PyErr_NoMemory();
    }
    return (PyObject *)block;
}

void *af_block_memory(PyObject *block)
{
    return ((Block *)block)->piece.memory;
}

static void block_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Piece piece = ((Block *)self)->piece;
    if (piece.memory != NULL)
        give_piece_back(piece);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int block_buffer(PyObject *self, Py_buffer *view, int flags)
{
    Block *block = (Block *)self;
    return PyBuffer_FillInfo(view, self, block->piece.memory, (Py_ssize_t)block->bytes, 0, flags);
}

PyDoc_STRVAR(take_doc, "take_block(bytes, /)\n--\n\n"
                       "Memory of so many bytes, at a page's start, with whatever it held; a writable buffer. It is\n"
                       "used again when nothing refers to it. Raises ValueError, MemoryError.");

static PyObject *take_block(PyObject *module, PyObject *argument)
{
    (void)module;
    Py_ssize_t bytes = PyNumber_AsSsize_t(argument, PyExc_OverflowError);
    if (bytes == -1 && PyErr_Occurred())
        return NULL;
    if (bytes < 0)
        return PyErr_Format(PyExc_ValueError, "take_block: expected at least 0 bytes, found %zd", bytes);
    return af_take_block((size_t)bytes);
}

PyDoc_STRVAR(free_doc, "free_blocks()\n--\n\nGives the kept memory back to the system; how many bytes it was.");

static PyObject *free_blocks(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    size_t bytes = shelved_bytes;
    while (shelved > 0)
        free(unshelve(shelved - 1).memory);
    return PyLong_FromSize_t(bytes);
}

PyDoc_STRVAR(fresh_doc, "fresh_blocks()\n--\n\nHow often memory was asked of the system so far, none that was kept being right.");

static PyObject *fresh_blocks(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyLong_FromSize_t(fresh);
}

static PyType_Slot block_slots[] = {
    {Py_tp_dealloc, block_dealloc},
    {Py_bf_getbuffer, block_buffer},
    {Py_tp_doc, "Memory of the runtime, made by take_block."},
    {0, NULL},
};

static PyType_Spec block_spec = {
    .name = "autofusion.runtime._native.Block",
    .basicsize = sizeof(Block),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = block_slots,
};

static PyMethodDef methods[] = {
    {"take_block", take_block, METH_O, take_doc},
    {"free_blocks", free_blocks, METH_NOARGS, free_doc},
    {"fresh_blocks", fresh_blocks, METH_NOARGS, fresh_doc},
    {NULL, NULL, 0, NULL},
};

int af_add_blocks(PyObject *module)
{
    if (block_type == NULL)
        block_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &block_spec, NULL);
    return block_type == NULL ? -1 : PyModule_AddFunctions(module, methods);
}
