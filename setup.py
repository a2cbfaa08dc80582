"""Builds the native runtime. It is optional: without a C compiler the package runs on one worker through ctypes."""

from setuptools import Extension, setup

NAMES = ("native", "blocks", "arrays", "tensors", "sizes", "call", "callable")

setup(
    ext_modules=[
        Extension(
            "autofusion.runtime._native",
            sources=[f"src/autofusion/runtime/{name}.c" for name in NAMES],
            depends=[f"src/autofusion/runtime/{name}.h" for name in ("native", "arrays", "dlpack", "tensors")],
            extra_compile_args=["-O2", "-fvisibility=hidden", "-std=c11", "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ]
)
