"""Compiling LLVM IR in process: text -> optimised object code -> loaded functions."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from autofusion.targets.cpu.host import Machine, host, initialise

_lock = threading.RLock()  # LLVM's own global state is not safe to enter twice


def _forget_lock() -> None:
    """In the child of a fork, a thread that held the lock is gone."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_lock)


# The code comes vectorised and unrolled: what is left is registers for stack cells, simpler arithmetic, and loops whose
# test is at the end. The default pipeline takes twice as long for the same speed; NewGVN aborts the process on some
# kernels (an assertion in LLVM 22), and the code generator finds most common subexpressions itself.
PASSES = ("sroa", "instruction_combine", "simplify_cfg", "loop_rotate", "simplify_cfg")


@cache
def _compiler(machine: Machine) -> Any:
    """LLVM's code generator for a machine; one serves all compiles, which the lock lets in one at a time."""
    return _machine(machine)


def _machine(machine: Machine) -> Any:
    initialise()
    target = llvm.Target.from_triple(machine.triple)
    return target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=3, reloc="pic", codemodel="small"
    )


def _optimised(text: str, machine: Machine) -> tuple[Any, Any]:
    compiler = _compiler(machine)
    module = llvm.parse_assembly(f'target triple = "{machine.triple}"\n' + text)
    module.data_layout = str(compiler.target_data)
    passes = llvm.create_pass_builder(compiler, llvm.create_pipeline_tuning_options(speed_level=2))
    manager = llvm.create_new_module_pass_manager()
    for name in PASSES:
        getattr(manager, f"add_{name}_pass")()
    manager.run(module, passes)
    return module, compiler


def compile_object(text: str, machine: Machine) -> bytes:
    """The machine code of a module, as an object file."""
    with _lock:
        module, compiler = _optimised(text, machine)
        return bytes(compiler.emit_object(module))


def assembly(text: str, machine: Machine) -> str:
    """The assembly of a module, for any machine."""
    with _lock:
        module, compiler = _optimised(text, machine)
        return str(compiler.emit_assembly(module))


@dataclass
class Loaded:
    """Functions in memory. They live as long as this object."""

    engine: Any
    addresses: dict[str, int]


def load(objects: Sequence[bytes], functions: Sequence[str]) -> Loaded:
    """Link object files into the process; the names of their functions differ."""
    with _lock:
        empty = llvm.parse_assembly(f'target triple = "{host().triple}"\n')
        engine = llvm.create_mcjit_compiler(empty, _machine(host()))
        for code in objects:
            engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return Loaded(engine, {name: engine.get_function_address(name) for name in functions})
