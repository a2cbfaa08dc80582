/* A stand-in for libascendcl.so and libacl_rtc.so that records every call and checks who owns what.
 *
 * The log has a line a call, `name argument ...`, with ` -> code` where it failed. Handles and addresses are written as
 * kind#number, in the order in which they were made. A call that the documentation does not allow is written as
 * `WRONG reason` and returns WRONG_CODE. `live` lines say what is left, by stub_live() and at the process's exit.
 *
 * A launch runs at the next synchronisation, not before. The kernel whose name starts with `twice` reads its parameters
 * as (float *in, float *out, ..., int64_t count by value) and stores out[i] = 2 * in[i]; others do nothing.
 *
 * Device memory is host memory that is never given back while the process lives, so that an address has one owner ever.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WRONG_CODE = 900001, MOST = 4096, MOST_PARAMETERS = 16, MOST_RULES = 64 };
enum kind { CONTEXT, MEMORY, STREAM, BINARY, FUNCTION, ARGUMENTS, PROGRAM, KINDS };
enum state { LIVE, GONE, LOST }; /* LOST: an injected failure kept it from being released */

static const char *const KIND_NAMES[KINDS] = {"context", "memory", "stream", "binary", "function", "args", "program"};

struct object {
    enum kind kind;
    enum state state;
    int number;
    char *bytes; /* device memory, a binary's bytes or a program's source */
    size_t size;
    struct object *parent; /* a function's binary, or an argument list's function */
    char name[64];
    char *log;
    int compiled, finalized, used, parameters;
    char parameter[MOST_PARAMETERS][64];
    size_t parameter_size[MOST_PARAMETERS];
};

struct rule {
    char name[64], message[256];
    int nth, code;
};

static struct object OBJECTS[MOST];
static int object_count, numbers[KINDS];
static struct rule RULES[MOST_RULES];
static int rule_count;
static struct { char name[64]; int count; } CALLS[64];
static FILE *out;
static char recent[512];
static int devices = 1, initialised, finalize_lost, device_references, references_lost, foreign_init;
static struct object *contexts[8];
static _Thread_local struct object *current;
static struct object *pending[64];
static int pending_count;

static void put(const char *format, ...) {
    va_list list;
    if (!out) {
        const char *path = getenv("ACL_STUB_LOG");
        out = fopen(path ? path : "/dev/null", "a");
    }
    va_start(list, format);
    vfprintf(out, format, list);
    va_end(list);
    fputc('\n', out);
    fflush(out);
}

static int wrong(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(recent, sizeof recent, format, list);
    va_end(list);
    put("WRONG %s", recent);
    return WRONG_CODE;
}

/* The code to fail with, or 0. */
static int begin(const char *name, const char *format, ...) {
    char text[512];
    int call = 0, code = 0;
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    while (CALLS[call].name[0] && strcmp(CALLS[call].name, name))
        call++;
    snprintf(CALLS[call].name, sizeof CALLS[call].name, "%s", name);
    CALLS[call].count++;
    for (int i = 0; i < rule_count; i++)
        if (!strcmp(RULES[i].name, name) && RULES[i].nth == CALLS[call].count) {
            code = RULES[i].code;
            snprintf(recent, sizeof recent, "%s", RULES[i].message);
        }
    if (code)
        put("%s%s%s -> %d", name, text[0] ? " " : "", text, code);
    else
        put("%s%s%s", name, text[0] ? " " : "", text);
    return code;
}

static struct object *make(enum kind kind, size_t size) {
    struct object *made = &OBJECTS[object_count++];
    if (object_count >= MOST)
        abort();
    memset(made, 0, sizeof *made);
    made->kind = kind;
    made->number = ++numbers[kind];
    made->size = size;
    if (size)
        made->bytes = malloc(size);
    return made;
}

static struct object *find(enum kind kind, const void *handle) {
    for (int i = 0; i < object_count; i++)
        if (OBJECTS[i].kind == kind && (const void *)&OBJECTS[i] == handle)
            return &OBJECTS[i];
    return NULL;
}

static struct object *allocation(const void *address, size_t size) {
    const char *start = address;
    for (int i = 0; i < object_count; i++) {
        struct object *each = &OBJECTS[i];
        if (each->kind == MEMORY && start >= each->bytes && start + size <= each->bytes + each->size)
            return each;
    }
    return NULL;
}

static const char *label(enum kind kind, const void *handle) {
    static char texts[8][32];
    static int next;
    char *text = texts[next++ % 8];
    struct object *found = kind == MEMORY ? allocation(handle, 0) : find(kind, handle);
    if (found)
        snprintf(text, sizeof texts[0], "%s#%d", KIND_NAMES[kind], found->number);
    else
        snprintf(text, sizeof texts[0], "%s", handle ? "host" : "null");
    return text;
}

static int needs_device(const char *name) {
    if (!initialised)
        return wrong("%s before aclInit", name);
    if (!current || current->state != LIVE)
        return wrong("%s in a thread without a context", name);
    return 0;
}

#define BEGIN(...)                                \
    do {                                          \
        int injected = begin(__func__, __VA_ARGS__); \
        if (injected)                             \
            return injected;                      \
    } while (0)
#define BEGIN_ON_DEVICE(...)                \
    do {                                    \
        BEGIN(__VA_ARGS__);                 \
        if (needs_device(__func__))         \
            return WRONG_CODE;              \
    } while (0)
/* An object whose release was made to fail is out of the reckoning. */
#define BEGIN_RELEASE(object, ...)                   \
    do {                                             \
        int injected = begin(__func__, __VA_ARGS__); \
        if (injected) {                              \
            if (object)                              \
                (object)->state = LOST;              \
            return injected;                         \
        }                                            \
    } while (0)

/* Control, for the tests. */

void stub_reset(const char *path) {
    for (int i = 0; i < object_count; i++) {
        free(OBJECTS[i].bytes);
        free(OBJECTS[i].log);
    }
    object_count = rule_count = pending_count = 0;
    memset(numbers, 0, sizeof numbers);
    memset(CALLS, 0, sizeof CALLS);
    memset(contexts, 0, sizeof contexts);
    current = NULL;
    recent[0] = 0;
    devices = 1;
    initialised = finalize_lost = device_references = references_lost = foreign_init = 0;
    if (out)
        fclose(out);
    out = fopen(path, "w");
}

void stub_fail(const char *name, int nth, int code, const char *message) {
    struct rule *rule = &RULES[rule_count++];
    snprintf(rule->name, sizeof rule->name, "%s", name);
    snprintf(rule->message, sizeof rule->message, "%s", message);
    rule->nth = nth;
    rule->code = code;
}

void stub_set_devices(int count) { devices = count; }

void stub_set_foreign_init(int value) { foreign_init = initialised = value; }

void stub_live(void) {
    static const enum kind OWNED[] = {MEMORY, STREAM, BINARY, PROGRAM};
    char text[256] = "live";
    for (size_t i = 0; i < sizeof OWNED / sizeof *OWNED; i++) {
        int count = 0;
        for (int j = 0; j < object_count; j++)
            count += OBJECTS[j].kind == OWNED[i] && OBJECTS[j].state == LIVE;
        snprintf(text + strlen(text), sizeof text - strlen(text), " %s=%d", KIND_NAMES[OWNED[i]], count);
    }
    put("%s device=%d init=%d", text, device_references - references_lost, initialised && !finalize_lost);
}

__attribute__((destructor)) static void at_exit(void) {
    if (out || getenv("ACL_STUB_LOG"))
        stub_live();
}

/* The process, devices and contexts. */

int aclInit(const char *path) {
    BEGIN("%s", path ? path : "null");
    if (foreign_init)
        return 100002;
    if (initialised)
        return wrong("aclInit twice");
    initialised = 1;
    return 0;
}

int aclFinalize(void) {
    int injected = begin(__func__, "");
    if (injected) {
        finalize_lost = 1;
        return injected;
    }
    if (!initialised)
        return wrong("aclFinalize without aclInit");
    if (foreign_init)
        return wrong("aclFinalize of a session that somebody else opened");
    if (device_references > references_lost)
        return wrong("aclFinalize with a device in use");
    initialised = 0;
    return 0;
}

const char *aclGetRecentErrMsg(void) {
    static char given[512];
    if (!recent[0])
        return NULL;
    memcpy(given, recent, sizeof given);
    recent[0] = 0;
    return given;
}

const char *aclrtGetSocName(void) { return "Ascend910B3"; }

int aclrtGetDeviceCount(uint32_t *count) {
    BEGIN("");
    if (!initialised)
        return wrong("aclrtGetDeviceCount before aclInit");
    *count = (uint32_t)devices;
    return 0;
}

int aclrtSetDevice(int32_t device) {
    BEGIN("%d", device);
    if (!initialised || device < 0 || device >= devices)
        return wrong("aclrtSetDevice %d", device);
    if (!contexts[device] || contexts[device]->state != LIVE)
        contexts[device] = make(CONTEXT, 0);
    device_references++;
    current = contexts[device];
    return 0;
}

int aclrtResetDevice(int32_t device) {
    int injected = begin(__func__, "%d", device);
    if (injected) {
        references_lost++;
        return injected;
    }
    if (device < 0 || device >= devices || !contexts[device] || contexts[device]->state != LIVE)
        return wrong("aclrtResetDevice %d, which is not set", device);
    for (int i = 0; i < object_count; i++)
        if (OBJECTS[i].state == LIVE && OBJECTS[i].parent == contexts[device])
            return wrong("aclrtResetDevice %d with a live %s#%d", device, KIND_NAMES[OBJECTS[i].kind], OBJECTS[i].number);
    device_references--;
    contexts[device]->state = GONE;
    return 0;
}

int aclrtGetCurrentContext(void **context) {
    BEGIN_ON_DEVICE("");
    *context = current;
    return 0;
}

int aclrtSetCurrentContext(void *context) {
    BEGIN("%s", label(CONTEXT, context));
    struct object *found = find(CONTEXT, context);
    if (!found || found->state != LIVE)
        return wrong("aclrtSetCurrentContext of a context that is not live");
    current = found;
    return 0;
}

int aclrtGetDeviceInfo(uint32_t device, int attribute, int64_t *value) {
    BEGIN_ON_DEVICE("%u %d", device, attribute);
    *value = attribute == 101 ? 20 : attribute == 201 ? 40 : -1;
    return *value < 0 ? wrong("attribute %d", attribute) : 0;
}

/* Streams. */

int aclrtCreateStream(void **stream) {
    BEGIN_ON_DEVICE("");
    struct object *made = make(STREAM, 0);
    made->parent = current;
    *stream = made;
    return 0;
}

static void execute(struct object *arguments) {
    float *in, *result;
    int64_t count;
    int last = arguments->parameters - 1;
    if (strncmp(arguments->parent->name, "twice", 5))
        return;
    memcpy(&in, arguments->parameter[0], sizeof in);
    memcpy(&result, arguments->parameter[1], sizeof result);
    memcpy(&count, arguments->parameter[last], sizeof count);
    if (arguments->parameter_size[last] != sizeof count || !allocation(in, (size_t)count * 4) ||
        !allocation(result, (size_t)count * 4)) {
        wrong("kernel %s leaves its memory", arguments->parent->name);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        result[i] = 2 * in[i];
}

int aclrtSynchronizeStream(void *stream) {
    int injected = begin(__func__, "%s", label(STREAM, stream));
    if (injected) {
        pending_count = 0; /* a launch that failed is over */
        return injected;
    }
    if (needs_device(__func__))
        return WRONG_CODE;
    struct object *found = find(STREAM, stream);
    if (!found || found->state != LIVE || found->parent != current)
        return wrong("aclrtSynchronizeStream of a stream that is not live in this thread's context");
    for (int i = 0; i < pending_count; i++)
        execute(pending[i]);
    pending_count = 0;
    return 0;
}

int aclrtDestroyStream(void *stream) {
    struct object *found = find(STREAM, stream);
    BEGIN_RELEASE(found, "%s", label(STREAM, stream));
    if (needs_device(__func__))
        return WRONG_CODE;
    if (!found || found->state != LIVE || found->parent != current)
        return wrong("aclrtDestroyStream of a stream that is not live in this thread's context");
    found->state = GONE;
    return 0;
}

/* Memory. */

int aclrtMalloc(void **address, size_t size, int policy) {
    BEGIN_ON_DEVICE("%zu %d", size, policy);
    if (!size)
        return wrong("aclrtMalloc of 0 bytes");
    struct object *made = make(MEMORY, size);
    made->parent = current;
    memset(made->bytes, 0xA5, size);
    *address = made->bytes;
    return 0;
}

int aclrtFree(void *address) {
    struct object *found = allocation(address, 0);
    BEGIN_RELEASE(found, "%s", label(MEMORY, address));
    if (needs_device(__func__))
        return WRONG_CODE;
    if (!found || found->bytes != address)
        return wrong("aclrtFree of an unknown pointer");
    if (found->state != LIVE)
        return wrong("double free of memory#%d", found->number);
    if (found->parent != current)
        return wrong("aclrtFree of memory#%d in another device's context", found->number);
    if (pending_count)
        return wrong("aclrtFree of memory#%d while a launch may use it", found->number);
    found->state = GONE;
    return 0;
}

static int check_device_range(const void *address, size_t size, const char *verb) {
    struct object *found = allocation(address, size);
    if (!found)
        return wrong("%s of %zu bytes beyond any allocation", verb, size);
    if (found->state != LIVE)
        return wrong("%s of memory#%d, which was freed", verb, found->number);
    if (pending_count)
        return wrong("%s of memory#%d while a launch may use it", verb, found->number);
    return 0;
}

int aclrtMemcpy(void *to, size_t most, const void *from, size_t size, int kind) {
    BEGIN_ON_DEVICE("%s %zu %s %zu %d", label(MEMORY, to), most, label(MEMORY, from), size, kind);
    if (size > most)
        return wrong("aclrtMemcpy of %zu bytes into %zu", size, most);
    if (kind != 1 && kind != 2)
        return wrong("aclrtMemcpy of kind %d", kind);
    if (check_device_range(kind == 1 ? to : from, kind == 1 ? most : size, __func__))
        return WRONG_CODE;
    if (allocation(kind == 1 ? from : to, 0))
        return wrong("aclrtMemcpy of kind %d between two places on the device", kind);
    memcpy(to, from, size);
    return 0;
}

int aclrtMemset(void *address, size_t most, int32_t value, size_t size) {
    BEGIN_ON_DEVICE("%s %zu %d %zu", label(MEMORY, address), most, value, size);
    if (size > most || check_device_range(address, most, __func__))
        return size > most ? wrong("aclrtMemset of %zu bytes in %zu", size, most) : WRONG_CODE;
    memset(address, value, size);
    return 0;
}

/* Binaries, functions and launches. */

struct load_options {
    struct { int type; uint32_t value[4]; } *options;
    size_t count;
};

int aclrtBinaryLoadFromData(const void *data, size_t size, const struct load_options *options, void **binary) {
    BEGIN_ON_DEVICE("%zu %d 0x%x", size, options->options[0].type, options->options[0].value[0]);
    if (!data || !size || options->count != 1)
        return wrong("aclrtBinaryLoadFromData of nothing");
    struct object *made = make(BINARY, size + 1);
    memcpy(made->bytes, data, size);
    made->bytes[size] = 0;
    made->parent = current;
    *binary = made;
    return 0;
}

int aclrtBinaryGetFunction(void *binary, const char *name, void **function) {
    BEGIN_ON_DEVICE("%s %s", label(BINARY, binary), name);
    struct object *found = find(BINARY, binary);
    if (!found || found->state != LIVE)
        return wrong("aclrtBinaryGetFunction of a binary that is not loaded");
    if (!strstr(found->bytes, name))
        return wrong("binary#%d has no function %s", found->number, name);
    struct object *made = make(FUNCTION, 0);
    made->parent = found;
    snprintf(made->name, sizeof made->name, "%s", name);
    *function = made;
    return 0;
}

int aclrtBinaryUnLoad(void *binary) {
    struct object *found = find(BINARY, binary);
    BEGIN_RELEASE(found, "%s", label(BINARY, binary));
    if (needs_device(__func__))
        return WRONG_CODE;
    if (!found || found->state != LIVE)
        return wrong("aclrtBinaryUnLoad of a binary that is not loaded");
    if (pending_count)
        return wrong("aclrtBinaryUnLoad of binary#%d while a launch may run it", found->number);
    found->state = GONE;
    return 0;
}

int aclrtKernelArgsInit(void *function, void **arguments) {
    BEGIN_ON_DEVICE("%s", label(FUNCTION, function));
    struct object *found = find(FUNCTION, function);
    if (!found || found->parent->state != LIVE)
        return wrong("aclrtKernelArgsInit of a function that is not loaded");
    struct object *made = make(ARGUMENTS, 0);
    made->parent = found;
    *arguments = made;
    return 0;
}

int aclrtKernelArgsAppend(void *arguments, const void *value, size_t size, void **place) {
    void *pointer = NULL;
    if (size == sizeof pointer)
        memcpy(&pointer, value, size);
    int is_memory = pointer && allocation(pointer, 0);
    BEGIN_ON_DEVICE("%s %zu %s", label(ARGUMENTS, arguments), size, is_memory ? label(MEMORY, pointer) : "value");
    struct object *found = find(ARGUMENTS, arguments);
    if (!found || found->finalized || found->parameters == MOST_PARAMETERS || size > sizeof found->parameter[0])
        return wrong("aclrtKernelArgsAppend of %zu bytes", size);
    if (is_memory && allocation(pointer, 0)->state != LIVE)
        return wrong("aclrtKernelArgsAppend of memory that was freed");
    memcpy(found->parameter[found->parameters], value, size);
    found->parameter_size[found->parameters] = size;
    *place = found->parameter[found->parameters++];
    return 0;
}

int aclrtKernelArgsFinalize(void *arguments) {
    BEGIN_ON_DEVICE("%s", label(ARGUMENTS, arguments));
    struct object *found = find(ARGUMENTS, arguments);
    if (!found || found->finalized)
        return wrong("aclrtKernelArgsFinalize of no open list");
    found->finalized = 1;
    return 0;
}

int aclrtLaunchKernelWithConfig(
    void *function, uint32_t blocks, void *stream, void *configuration, void *arguments, void *reserved
) {
    BEGIN_ON_DEVICE(
        "%s %u %s %s %s %s", label(FUNCTION, function), blocks, label(STREAM, stream), configuration ? "cfg" : "null",
        label(ARGUMENTS, arguments), reserved ? "reserved" : "null"
    );
    struct object *callee = find(FUNCTION, function), *list = find(ARGUMENTS, arguments), *on = find(STREAM, stream);
    if (!callee || callee->parent->state != LIVE)
        return wrong("launch of a function whose binary was unloaded");
    if (!on || on->state != LIVE || on->parent != current || callee->parent->parent != current)
        return wrong("launch on a stream that is not live in this thread's context, or of another's binary");
    if (!list || !list->finalized || list->used || list->parent != callee)
        return wrong("launch with an argument list that is not this function's, not finalized, or used up");
    if (!blocks || reserved)
        return wrong("launch of %u blocks", blocks);
    list->used = 1;
    pending[pending_count++ % 64] = list;
    return 0;
}

/* The run-time compiler. A source that contains `#error` does not compile; the binary is the source. */

int aclrtcCreateProg(void **program, const char *source, const char *name, int count, void **headers, void **includes) {
    BEGIN("%s %d", name, count);
    if (count || headers || includes)
        return wrong("aclrtcCreateProg with headers");
    struct object *made = make(PROGRAM, strlen(source) + 1);
    strcpy(made->bytes, source);
    *program = made;
    return 0;
}

static struct object *live_program(void *program) {
    struct object *found = find(PROGRAM, program);
    return found && found->state == LIVE ? found : NULL;
}

int aclrtcCompileProg(void *program, int count, const char **options) {
    BEGIN("%s %s", label(PROGRAM, program), count == 1 ? options[0] : "?");
    struct object *found = live_program(program);
    if (!found || count != 1)
        return wrong("aclrtcCompileProg of no program");
    const char *fault = strstr(found->bytes, "#error");
    if (fault) {
        char text[256];
        snprintf(text, sizeof text, "k.asc:1:1: error: %.200s", fault);
        found->log = strdup(text);
        snprintf(recent, sizeof recent, "the compiler found errors");
        return 507000;
    }
    found->compiled = 1;
    return 0;
}

int aclrtcGetBinDataSize(void *program, size_t *size) {
    BEGIN("%s", label(PROGRAM, program));
    struct object *found = live_program(program);
    if (!found || !found->compiled)
        return wrong("aclrtcGetBinDataSize of what was not compiled");
    *size = found->size - 1;
    return 0;
}

int aclrtcGetBinData(void *program, char *data) {
    BEGIN("%s", label(PROGRAM, program));
    struct object *found = live_program(program);
    if (!found || !found->compiled)
        return wrong("aclrtcGetBinData of what was not compiled");
    memcpy(data, found->bytes, found->size - 1);
    return 0;
}

int aclrtcGetCompileLogSize(void *program, size_t *size) {
    BEGIN("%s", label(PROGRAM, program));
    struct object *found = live_program(program);
    if (!found)
        return wrong("aclrtcGetCompileLogSize of no program");
    *size = found->log ? strlen(found->log) : 0;
    return 0;
}

int aclrtcGetCompileLog(void *program, char *log) {
    BEGIN("%s", label(PROGRAM, program));
    struct object *found = live_program(program);
    if (!found)
        return wrong("aclrtcGetCompileLog of no program");
    if (found->log)
        memcpy(log, found->log, strlen(found->log));
    return 0;
}

int aclrtcDestroyProg(void **program) {
    struct object *found = live_program(*program);
    BEGIN_RELEASE(found, "%s", label(PROGRAM, *program));
    if (!found)
        return wrong("aclrtcDestroyProg of no program");
    found->state = GONE;
    return 0;
}
