// The entry: finds out a kernel's parameters by templates, runs it on all cores, writes the report.
//
// A kernel's parameters are GM_ADDR (the next buffer) and at most one struct (the tiling bytes, whose size is checked).
// The executable holds any number of kernels: `AICORE_MAIN(AICORE_KERNEL(a), AICORE_KERNEL(space::b))`.
#ifndef AICORE_ENTRY_H
#define AICORE_ENTRY_H

#include "machine.h"

namespace aicore {

struct Arguments {
    std::vector<uint8_t*> buffers;
    const uint8_t* tiling = nullptr;
};

struct Entry {
    const char* name;
    void (*call)(const Arguments&);
    int buffers;
    int64_t tiling;  // bytes of the struct, -1: none
};

template <typename T> T argument(const Arguments& from, int& next) {
    if constexpr (std::is_same_v<T, GM_ADDR>) {
        return from.buffers[size_t(next++)];
    } else {
        static_assert(std::is_class_v<T> && std::is_trivially_copyable_v<T>,
                      "a kernel takes GM_ADDR parameters and one plain struct by value");
        T value;
        std::memcpy(&value, from.tiling, sizeof(T));
        return value;
    }
}

template <typename> struct Signature;
template <typename... A> struct Signature<void (*)(A...)> {
    static constexpr int buffers = (0 + ... + int(std::is_same_v<A, GM_ADDR>));
    static constexpr int64_t structs = int64_t(sizeof...(A)) - buffers;
    static_assert(structs <= 1, "a kernel takes at most one struct");
    static constexpr int64_t tiling = structs ? (int64_t(0) + ... + (std::is_same_v<A, GM_ADDR> ? 0 : int64_t(sizeof(A)))) : -1;
    template <void (*kernel)(A...)> static void call(const Arguments& from) {
        int next = 0;
        (void)next; (void)from;
        struct Call { Call(A... a) { kernel(a...); } };
        Call{argument<A>(from, next)...};  // braces: left to right
    }
};

template <auto kernel> constexpr Entry entry(const char* name) {
    using S = Signature<decltype(kernel)>;
    return {name, &S::template call<kernel>, S::buffers, S::tiling};
}

int run_main(int argc, char** argv, const Entry* entries, int count);

}  // namespace aicore

#define AICORE_KERNEL(name) ::aicore::entry<&name>(#name)
#define AICORE_MAIN(...)                                                            \
    int main(int argc, char** argv) {                                               \
        static const ::aicore::Entry entries[] = {__VA_ARGS__};                     \
        return ::aicore::run_main(argc, argv, entries, int(sizeof entries / sizeof *entries)); \
    }

#endif
