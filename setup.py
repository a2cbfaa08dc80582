"""Builds the native runtime. It is optional: without a C compiler the package runs on one worker through ctypes."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "autofusion.runtime._native",
            sources=["src/autofusion/runtime/native.c"],
            extra_compile_args=["-O2", "-std=c11", "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ]
)
