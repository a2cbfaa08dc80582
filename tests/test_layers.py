"""The architecture: lower rooms never import higher ones, and nothing dodges that with an import inside a function."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import autofusion

ROOT = Path(autofusion.__file__).parent
LAYERS = (
    ("errors", "config", "kinds", "lazy", "version"),
    ("dtypes", "dims", "text", "placement"),
    ("target",),
    ("ops",),
    ("graph",),
    ("passes",),
    ("autofuse",),
    ("kernel",),
    ("tile",),
    ("superkernel",),
    ("targets",),
    ("runtime",),
    ("jit",),
    ("api",),
    ("frontends",),
    ("onnx", "report", "torch"),
    ("cli",),
    ("__init__", "__main__"),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
FILES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imported_rooms(tree: ast.AST) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "autofusion" else [f"autofusion.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Lazy":
            names = [ast.literal_eval(argument) for argument in node.args]
        for name in names:
            if name == "autofusion" or name.startswith("autofusion."):
                found.append((node.lineno, [*name.split("."), "__init__"][1]))
    return found


def test_every_room_has_a_level() -> None:
    assert {room_of(path) for path in FILES} <= set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for line, room in imported_rooms(tree):
        level = LEVEL.get(room, LEVEL["__init__"])
        assert level <= LEVEL[room_of(path)], f"{path.name}:{line} imports {room}, which lies above"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_imports_of_our_own_inside_functions(path: Path) -> None:
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef):
            assert not imported_rooms(function), f"{path.name}:{function.lineno} {function.name} imports inside"


def test_what_few_programs_use_is_loaded_when_it_is_used() -> None:
    """Importing the package and compiling a function load no other frontend, no other target, no optional package."""
    code = (
        "import sys, numpy as np, autofusion as af\n"
        "assert af.jit(lambda x: x + 1)(np.ones(3, np.float32)).tolist() == [2, 2, 2]\n"
        "rooms = ('autofusion.targets.ascend', 'autofusion.frontends.torch', 'autofusion.frontends.onnx')\n"
        "print([name for name in sys.modules if name.startswith((*rooms, 'autofusion.cli', 'torch', 'onnx'))])\n"
        "print(af.onnx.read.__name__, af.torch.fuse.__name__, 'onnx' in sys.modules, 'torch' in sys.modules)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert ran.stdout == "[]\nread fuse False False\n", ran.stderr
