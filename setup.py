"""Builds the native runtime. It is optional: without a C compiler the package runs on one worker through ctypes."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "autofusion.runtime._native",
            sources=[f"src/autofusion/runtime/{name}.c" for name in ("native", "blocks", "arrays", "call", "callable")],
            depends=[f"src/autofusion/runtime/{name}.h" for name in ("native", "arrays", "dlpack")],
            extra_compile_args=["-O2", "-fvisibility=hidden", "-std=c11", "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ]
)
