"""The host's side of a launch: a C++ launcher that links against the runtime, and the commands that build it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autofusion.dims import Dim, substitute, symbol
from autofusion.targets.ascend.dimension import cxx, identifier
from autofusion.targets.ascend.render import Source

TOOLCHAIN = {2201: "dav-2201", 3510: "dav-3510"}
STATUS_BYTES = 128 * 32  # 32 bytes a vector core, for more of them than a chip has
WORKSPACE, STATUS = "workspace", "status"  # what a source calls the pointers that are no storages


def files(sources: Sequence[Source], arch: int, names: Mapping[str, str]) -> dict[str, str]:
    """Kernel, tiling data and launcher of each launch, and the commands that build all of them, by file name. `names`:
    the graph's for the symbols in sources."""
    made = {}
    for source in sources:
        stem = stem_of(source)
        made[f"{stem}.asc"] = source.text
        made[f"{stem}_tiling.h"] = tiling(source, names)
        made[f"{stem}_launcher.cpp"] = launcher(source)
    made["build.sh"] = build([stem_of(source) for source in sources], arch)
    return made


def values_of(source: Source) -> tuple[str, ...]:
    """The storages behind the entry's first pointers; the launch's own workspace and status may follow."""
    names = source.arguments[:-1] if source.checked else source.arguments
    return names[:-1] if names and names[-1] == WORKSPACE and source.workspace != 0 else names


def stem_of(source: Source) -> str:
    """What a launch's files are called."""
    return source.entry.removesuffix("_launch")


def tiling(source: Source, names: Mapping[str, str]) -> str:
    """The struct that the entry takes by value."""
    fields = "".join(f"    int64_t {name};  // {names[name]}\n" for name in source.symbols)
    fields = fields or "    int64_t unused;\n"
    return f"""// The open dimensions of a launch of {source.entry}.
#pragma once
#include <cstdint>

struct Tiling {{
{fields}}};
"""


def launcher(source: Source) -> str:
    """A function that loads the binary once, launches it on a stream and waits. Pointers are the graph's values, in the
    kernel's order; the workspace and the status of checks are its own."""
    stem = stem_of(source)
    values = _parameters(values_of(source))
    own = source.arguments[len(values) :]
    parameters = "".join(f"    void* {name},\n" for name in values)
    pointers = [*values, *own]
    fields = "".join(f"        void* {name};\n" for name in pointers)
    given = ", ".join([*values, *(f"{name}.address" for name in own), "tiling"])
    return _LAUNCHER.format(
        entry=source.entry,
        stem=stem,
        names="\n".join(f"//   {name}: {shown}" for name, shown in zip(values, values_of(source), strict=True)),
        parameters=parameters,
        blocks=source.blocks,
        own="".join(_OWN[name].format(bytes=_workspace(source), status=STATUS_BYTES) for name in own),
        fields=fields,
        given=given,
        checked=_CHECKED.format(status=STATUS_BYTES) if STATUS in own else "",
    )


def _parameters(names: Sequence[str]) -> list[str]:
    """C++ names for values, each another one, and no keyword."""
    made: list[str] = []
    for name in names:
        wanted = f"{identifier(name)}Gm"
        found, number = wanted, 1
        while found in made:
            found, number = f"{wanted}{number}", number + 1
        made.append(found)
    return made


def _workspace(source: Source) -> str:
    """Bytes, as C++ of the tiling data."""
    fields: dict[str, Dim] = {name: symbol(f"tiling.{name}") for name in source.symbols}
    return cxx(substitute(source.workspace, fields))


_LAUNCHER = """\
// Launches {entry} on a stream and waits for it. Device pointers in this order:
{names}
// Untested on hardware.
#include <cstdint>
#include <cstdio>

#include "acl/acl.h"
#include "{stem}_tiling.h"

#define CHECK(call)                                                                       \\
    do {{                                                                                  \\
        const aclError code = (call);                                                     \\
        if (code != ACL_SUCCESS) {{                                                        \\
            const char* text = aclGetRecentErrMsg();                                      \\
            std::fprintf(stderr, "%s returned %d: %s\\n", #call, static_cast<int>(code), text ? text : ""); \\
            return code;                                                                  \\
        }}                                                                                 \\
    }} while (0)

namespace {{
// Device memory that is freed on every way out.
struct Memory {{
    void* address = nullptr;
    ~Memory() {{
        if (address != nullptr) {{
            aclrtFree(address);
        }}
    }}
}};

[[maybe_unused]] int64_t Least(int64_t a, int64_t b) {{
    return b < a ? b : a;
}}

[[maybe_unused]] int64_t Greatest(int64_t a, int64_t b) {{
    return a < b ? b : a;
}}
}}  // namespace

// `blocks`: cores, 0 for as many as have work.
extern "C" aclError {entry}_on(
{parameters}    const Tiling& tiling, uint32_t blocks, aclrtStream stream) {{
    static aclrtBinHandle binary = nullptr;
    static aclrtFuncHandle function = nullptr;
    if (function == nullptr) {{
        CHECK(aclrtBinaryLoadFromFile("{stem}.o", nullptr, &binary));
        CHECK(aclrtBinaryGetFunction(binary, "{entry}", &function));
    }}
{own}    struct Arguments {{
{fields}        Tiling tiling;
    }} arguments{{{given}}};
    const uint32_t cores = blocks == 0 ? {blocks} : blocks;
    CHECK(aclrtLaunchKernelV2(function, cores, &arguments, sizeof(arguments), nullptr, stream));
    CHECK(aclrtSynchronizeStream(stream));
{checked}    return ACL_SUCCESS;
}}
"""

_OWN = {
    WORKSPACE: """\
    Memory workspace;
    CHECK(aclrtMalloc(&workspace.address, {bytes}, ACL_MEM_MALLOC_HUGE_FIRST));
""",
    STATUS: """\
    Memory status;
    CHECK(aclrtMalloc(&status.address, {status}, ACL_MEM_MALLOC_HUGE_FIRST));
    CHECK(aclrtMemset(status.address, {status}, 0, {status}));
""",
}

_CHECKED = """\
    int64_t found[{status} / 8];
    CHECK(aclrtMemcpy(found, sizeof(found), status.address, sizeof(found), ACL_MEMCPY_DEVICE_TO_HOST));
    for (uint32_t core = 0; core < {status} / 32; ++core) {{
        if (found[4 * core] != 0) {{
            std::fprintf(stderr, "check %lld: index at position %lld is out of range\\n",
                         static_cast<long long>(found[4 * core]), static_cast<long long>(found[4 * core + 1]));
            return static_cast<aclError>(-1);
        }}
    }}
"""


def build(stems: Sequence[str], arch: int) -> str:
    """The commands where CANN is."""
    options = f"--npu-arch={TOOLCHAIN[arch]} --cce-aicore-only"  # only the device's half, as runtime/acl.py asks for
    kernels = "".join(f"bisheng -c {stem}.asc -o {stem}.o {options}\n" for stem in stems)
    launchers = "".join(
        f"""\
c++ -std=c++17 -O2 -fPIC -shared {stem}_launcher.cpp -o lib{stem}.so \\
    -I"$ASCEND_HOME_PATH/include" -L"$ASCEND_HOME_PATH/lib64" -lascendcl
"""
        for stem in stems
    )
    return f"""#!/bin/sh
# Builds the kernels and their launchers; needs CANN's environment (source set_env.sh). Untested on hardware.
set -eu
{kernels}{launchers}"""
