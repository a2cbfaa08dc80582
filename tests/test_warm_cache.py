"""The disk cache under whole compiles: warm processes, damaged and foreign entries, many processes, killed ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from autofusion.jit.cache import Cache

SCRIPT = """
import json, sys
import numpy as np
import autofusion as af
x = np.linspace(-2, 2, 96, dtype=np.float32).reshape(8, 12)
compiled = af.compile(lambda x: (af.softmax(x, axis=-1), af.tanh(x).sum(axis=0)), [x])
soft, total = compiled(x)
power = np.exp(x - x.max(-1, keepdims=True))
good = np.allclose(soft, power / power.sum(-1, keepdims=True), atol=1e-6)
good = good and np.allclose(total, np.tanh(x).sum(0), atol=1e-5)
print(json.dumps({"hits": compiled.stats["cache_hits"], "kernels": compiled.stats["kernels"], "good": bool(good)}))
"""


def start(folder: Path, script: str = SCRIPT) -> subprocess.Popen[str]:
    environment = os.environ | {"AUTOFUSION_CACHE_DIR": str(folder)}
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)


def compile_once(folder: Path) -> dict[str, Any]:
    process = start(folder)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(output)
    assert found["good"]
    return found


def entries(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def warm(tmp_path: Path) -> Path:
    assert compile_once(tmp_path)["hits"] == 0
    return tmp_path


def test_a_second_process_compiles_nothing(warm: Path) -> None:
    found = compile_once(warm)
    assert found["hits"] == found["kernels"] > 0


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))


def make_foreign(path: Path) -> None:
    cache = Cache(path.parent, 1 << 30)
    (entry,) = [e for e in cache.entries() if e.key in path.name]
    payload = cache.get(entry.key)
    assert payload is not None
    cache.put(entry.key, payload, {"target": "another machine"})


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, make_foreign])
def test_a_bad_entry_is_detected_and_rebuilt(warm: Path, damage: Any) -> None:
    victims = [
        e
        for e in entries(warm)
        if any(e.name.startswith(k.key) or k.key in e.name for k in Cache(warm, 1 << 30).entries())
    ]
    damage(victims[0])
    found = compile_once(warm)
    assert found["hits"] == found["kernels"] - 1
    assert compile_once(warm)["hits"] == found["kernels"]


def test_eight_processes_on_an_empty_cache(tmp_path: Path) -> None:
    processes = [start(tmp_path) for _ in range(8)]
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0 and json.loads(output)["good"]
    found = compile_once(tmp_path)
    assert found["hits"] == found["kernels"]


def test_a_killed_process_leaves_a_usable_cache(tmp_path: Path) -> None:
    for delay in (0.6, 0.9, 1.2):
        process = start(tmp_path)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    compile_once(tmp_path)
    found = compile_once(tmp_path)
    assert found["hits"] == found["kernels"]
    assert Cache(tmp_path, 1 << 30).verify() == []
