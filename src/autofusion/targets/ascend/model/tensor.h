// LocalTensor and GlobalTensor: typed views. Each view knows its bounds, its buffer and that buffer's generation, so
// that a use after FreeTensor or outside the tensor is found.
#ifndef AICORE_TENSOR_H
#define AICORE_TENSOR_H

#include "machine.h"

namespace aicore {

constexpr Space space_of(AscendC::TPosition position) {
    using P = AscendC::TPosition;
    switch (position) {
        case P::A1: case P::B1: case P::C1: return Space::L1;
        case P::A2: return Space::L0A;
        case P::B2: return Space::L0B;
        case P::C2: return Space::BT;
        case P::CO1: return Space::L0C;
        case P::GM: return Space::GM;
        default: return Space::UB;
    }
}

template <typename T> constexpr bool is_element =
    std::is_same_v<T, half> || std::is_same_v<T, bfloat16_t> || std::is_same_v<T, float> ||
    (std::is_integral_v<T> && !std::is_same_v<T, bool>);

// A piece of on-chip memory: where it lies, and whose it was when the view was taken.
struct View {
    Core* owner = nullptr;
    int64_t address = 0, bytes = 0;
    int buffer = -1;
    uint32_t generation = 0;
    AscendC::TPosition position = AscendC::TPosition::VECCALC;

    Space space() const { return space_of(position); }
    Memory& memory() const { return owner->memories[int(space())]; }
    uint8_t* raw() const { return memory().data + address; }
    std::string name() const;
};

}  // namespace aicore

namespace AscendC {

template <typename T> class LocalTensor : public aicore::View {
    static_assert(aicore::is_element<T>, "LocalTensor: element types are half, bfloat16_t, float and (u)int8..(u)int64");

public:
    using PrimType = T;
    T* data() const { return reinterpret_cast<T*>(raw()); }

    uint32_t GetSize() const { return uint32_t(bytes / int64_t(sizeof(T))); }
    void SetSize(uint32_t size) { bytes = int64_t(size) * int64_t(sizeof(T)); }
    TPosition GetPosition() const { return position; }
    LocalTensor operator[](int64_t offset) const {
        LocalTensor view = *this;
        view.address += offset * int64_t(sizeof(T));
        view.bytes -= offset * int64_t(sizeof(T));
        return view;
    }
    template <typename U> LocalTensor<U> ReinterpretCast() const {
        LocalTensor<U> view;
        static_cast<aicore::View&>(view) = *this;
        return view;
    }
    T GetValue(int64_t offset, aicore::Where where = {__builtin_LINE()}) const;
    void SetValue(int64_t offset, T value, aicore::Where where = {__builtin_LINE()}) const;
};

}  // namespace AscendC

namespace aicore {

// The view may be used now: it has a buffer, and that buffer is still its own. Offsets are from the start of the view.
void check_use(const Instruction& i, const View& t, int64_t offset, int64_t bytes, bool writes, const char* operand);
void check_align(const Instruction& i, const View& t, int64_t offset, int64_t align, const char* operand);
void check_space(const Instruction& i, const View& t, Space space, const char* operand);
void read_local(const Instruction& i, const View& t, int64_t offset, int64_t bytes, const char* operand, bool strict = true);
void write_local(const Instruction& i, const View& t, int64_t offset, int64_t bytes, const char* operand);
void wait_for_writer(const Instruction& i, const View& t, int64_t offset);  // in time: S stands until the value is there

// S has a data cache over GM: a line that it has read stays as it was until DataCacheCleanAndInvalid.
void scalar_cache(const Instruction& i, const void* pointer, bool writes);
void scalar_cache_drop(const void* pointer, bool all);

}  // namespace aicore

namespace AscendC {

template <typename T> T LocalTensor<T>::GetValue(int64_t offset, aicore::Where where) const {
    auto i = aicore::begin(aicore::S, "GetValue", where);
    aicore::check_space(i, *this, aicore::Space::UB, "src");
    aicore::read_local(i, *this, offset * int64_t(sizeof(T)), sizeof(T), "src");
    aicore::wait_for_writer(i, *this, offset * int64_t(sizeof(T)));
    aicore::end(i, aicore::kScalarCycles);
    return data()[offset];
}

template <typename T> void LocalTensor<T>::SetValue(int64_t offset, T value, aicore::Where where) const {
    auto i = aicore::begin(aicore::S, "SetValue", where);
    aicore::check_space(i, *this, aicore::Space::UB, "dst");
    aicore::write_local(i, *this, offset * int64_t(sizeof(T)), sizeof(T), "dst");
    aicore::end(i, aicore::kScalarCycles);
    data()[offset] = value;
}

template <typename T> class GlobalTensor {
    static_assert(aicore::is_element<T>, "GlobalTensor: element types are half, bfloat16_t, float and (u)int8..(u)int64");

public:
    using PrimType = T;
    T* pointer = nullptr;
    static constexpr int64_t kUndeclared = INT64_MIN;
    int64_t elements = kUndeclared;

    void SetGlobalBuffer(__gm__ T* buffer, uint64_t size, aicore::Where where = {__builtin_LINE()}) {
        aicore::need_core("SetGlobalBuffer", where.line);
        pointer = buffer;
        elements = int64_t(size);
    }
    void SetGlobalBuffer(__gm__ T* buffer) {
        pointer = buffer;
        elements = kUndeclared;
    }
    GlobalTensor operator[](int64_t offset) const {
        GlobalTensor view = *this;
        view.pointer += offset;
        if (elements != kUndeclared) view.elements -= offset;
        return view;
    }
    const __gm__ T* GetPhyAddr() const { return pointer; }
    __gm__ T* GetPhyAddr(int64_t offset) const { return pointer + offset; }
    uint64_t GetSize() const { return elements < 0 ? 0 : uint64_t(elements); }
    T GetValue(int64_t offset, aicore::Where where = {__builtin_LINE()}) const;
    void SetValue(int64_t offset, T value, aicore::Where where = {__builtin_LINE()}) const;
};

}  // namespace AscendC

namespace aicore {

// Bounds inside the view (offsets in bytes), then inside the GM buffer.
template <typename T>
void gm_use(const Instruction& i, const AscendC::GlobalTensor<T>& t, int64_t offset, int64_t bytes, bool writes, bool atomic) {
    if (!t.pointer) fail(5, i.api, i.line, "GM", "a GlobalTensor without SetGlobalBuffer");
    if (t.elements != t.kUndeclared && (offset < 0 || offset + bytes > t.elements * int64_t(sizeof(T))))
        fail(5, i.api, i.line, "GM", "bytes %lld to %lld of a GlobalTensor of %lld bytes", (long long)offset,
             (long long)(offset + bytes), (long long)(t.elements * int64_t(sizeof(T))));
    gm_access(i, reinterpret_cast<uint8_t*>(t.pointer) + offset, bytes, writes, atomic);
}

}  // namespace aicore

namespace AscendC {

template <typename T> T GlobalTensor<T>::GetValue(int64_t offset, aicore::Where where) const {
    auto i = aicore::begin(aicore::S, "GlobalTensor::GetValue", where);
    aicore::gm_use(i, *this, offset * int64_t(sizeof(T)), sizeof(T), false, false);
    aicore::scalar_cache(i, pointer + offset, false);
    aicore::end(i, aicore::kScalarCycles);
    return pointer[offset];
}

template <typename T> void GlobalTensor<T>::SetValue(int64_t offset, T value, aicore::Where where) const {
    auto i = aicore::begin(aicore::S, "GlobalTensor::SetValue", where);
    aicore::gm_use(i, *this, offset * int64_t(sizeof(T)), sizeof(T), true, false);
    aicore::scalar_cache(i, pointer + offset, true);
    aicore::end(i, aicore::kScalarCycles);
    pointer[offset] = value;
}

}  // namespace AscendC

#endif
