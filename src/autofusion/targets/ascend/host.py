"""The host's side of a launch: a C++ launcher that links against the runtime, and the commands that build it."""

from __future__ import annotations

from autofusion.targets.ascend.dimension import cxx
from autofusion.targets.ascend.render import Source, identifier

TOOLCHAIN = {2201: "dav-2201", 3510: "dav-3510"}


def files(source: Source, arch: int) -> dict[str, str]:
    """Kernel, tiling data, launcher and build commands of one launch, by file name."""
    stem = source.entry.removesuffix("_launch")
    return {
        f"{stem}.asc": source.text,
        f"{stem}_tiling.h": tiling(source),
        f"{stem}_launcher.cpp": launcher(source, f"{stem}.o", f"{stem}_tiling.h"),
        "build.sh": build(stem, arch),
    }


def tiling(source: Source) -> str:
    """The struct that the entry takes by value."""
    fields = "".join(f"    int64_t {symbol};\n" for symbol in source.symbols) or "    int64_t unused;\n"
    return f"// The open dimensions of a launch of {source.entry}.\n#pragma once\n#include <cstdint>\n\nstruct Tiling {{\n{fields}}};\n"


def launcher(source: Source, binary: str, header: str) -> str:
    """A function that loads the binary once and launches it on a stream."""
    names = [identifier(name) for name in source.arguments if name != "workspace"]
    parameters = "".join(f"void* {name}, " for name in names)
    pointers = [*names, *(["workspace"] if "workspace" in source.arguments else [])]
    fields = "".join(f"        void* {name};\n" for name in pointers)
    given = ", ".join(pointers)
    workspace = ""
    if "workspace" in source.arguments:
        renamed = cxx(source.workspace)
        for symbol in sorted(source.symbols, key=len, reverse=True):
            renamed = renamed.replace(symbol, f"tiling.{symbol}")
        workspace = (
            f"    void* workspace = nullptr;\n    CHECK(aclrtMalloc(&workspace, {renamed}, ACL_MEM_MALLOC_HUGE_FIRST));\n"
        )
    release = "    CHECK(aclrtSynchronizeStream(stream));\n    CHECK(aclrtFree(workspace));\n" if workspace else ""
    return f"""// Launches {source.entry}: one launch on a stream, device pointers in the order of the graph's values.
// Untested on hardware.
#include <cstdint>
#include <cstdio>

#include "acl/acl.h"
#include "{header}"

#define CHECK(call)                                                                     \\
    do {{                                                                                \\
        const aclError code = (call);                                                   \\
        if (code != ACL_SUCCESS) {{                                                      \\
            std::fprintf(stderr, "%s: %d: %s\\n", #call, code, aclGetRecentErrMsg());   \\
            return code;                                                                \\
        }}                                                                               \\
    }} while (0)

extern "C" aclError {source.entry}_on({parameters}const Tiling& tiling, uint32_t blocks, aclrtStream stream) {{
    static aclrtBinHandle binary = nullptr;
    static aclrtFuncHandle function = nullptr;
    if (function == nullptr) {{
        CHECK(aclrtBinaryLoadFromFile("{binary}", nullptr, &binary));
        CHECK(aclrtBinaryGetFunction(binary, "{source.entry}", &function));
    }}
{workspace}    struct Arguments {{
{fields}        Tiling tiling;
    }} arguments{{{given}{', ' if given else ''}tiling}};
    CHECK(aclrtLaunchKernelV2(function, blocks == 0 ? {source.blocks} : blocks, &arguments, sizeof(arguments), nullptr,
                              stream));
{release}    return ACL_SUCCESS;
}}
"""


def build(stem: str, arch: int) -> str:
    """The commands where CANN is."""
    return f"""#!/bin/sh
# Builds the kernel and its launcher; needs CANN's environment (source set_env.sh).
set -eu
bisheng {stem}.asc -o {stem}.o --npu-arch={TOOLCHAIN[arch]}
c++ -std=c++17 -O2 -fPIC -shared {stem}_launcher.cpp -o lib{stem}.so \\
    -I"$ASCEND_HOME_PATH/include" -L"$ASCEND_HOME_PATH/lib64" -lascendcl
"""
