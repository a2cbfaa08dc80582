/* The layout of DLPack's tensors and of its C exchange table, major version 1 (https://dmlc.github.io/dlpack). */
#ifndef AUTOFUSION_DLPACK_H
#define AUTOFUSION_DLPACK_H
#include <stdint.h>

enum { DLPACK_MAJOR = 1, DLPACK_MINOR = 1, DLPACK_CPU = 1 };

typedef struct {
    uint32_t major, minor;
} DLPackVersion;

typedef struct {
    int32_t device_type, device_id;
} DLDevice;

typedef struct {
    uint8_t code, bits; /* code: 0 int, 1 unsigned, 2 float, 4 bfloat, 6 bool */
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides; /* strides in elements; NULL for contiguous */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

typedef struct {
    struct {
        DLPackVersion version;
        void *previous;
    } header;
    void *managed_tensor_allocator;
    int (*managed_tensor_from_py_object_no_sync)(void *object, DLManagedTensorVersioned **out);
    int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned *tensor, void **object);
    int (*dltensor_from_py_object_no_sync)(void *object, DLTensor *out);
    void *current_work_stream;
} DLPackExchangeAPI;

#endif
