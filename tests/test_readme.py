"""README and docs are run: commands, Python blocks, pasted output. `python tests/test_readme.py` pastes it anew.

A comment above a block says where its text comes from:

    <!-- output of: autofusion emit FILE --stage kernel -->       the whole output
    <!-- output of: autofusion explain FILE | What fusion did -->  the part that starts with that line
    <!-- output of: the Python block above -->
    <!-- examples -->                                             the table of examples
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from autofusion import api
from autofusion.runtime import acl, aicore

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "docs/architecture.md",
    "docs/ascend.md",
    "docs/cli.md",
    "docs/python-api.md",
    "docs/cache.md",
    "docs/semantics.md",
    *(["docs/torch.md"] if importlib.util.find_spec("torch") and entry_points(group="torch_dynamo_backends") else []),
)
EXAMPLES = ("matmul_add_relu", "layernorm_gelu", "softmax", "longtail200", "adamw", "transformer_block", "model200")
LANE_BYTES = 64  # of the machine that the README's table was measured on
PASTED = re.compile(r"<!-- output of: (?P<source>[^\n]*) -->\n```text\n(?P<text>.*?)```\n", re.DOTALL)
TABLE = re.compile(r"(<!-- examples -->\n\|[^\n]*\n\|[^\n]*\n)(?P<rows>(?:\|[^\n]*\n)*)")
PYTHON = re.compile(r"```python\n(.*?)```\n", re.DOTALL)
SHELL = re.compile(r"```sh\n(.*?)```\n", re.DOTALL)


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def run(command: str) -> str:
    """Standard output of an `autofusion …` command, or of Python text."""
    words = ["-m", *shlex.split(command)] if command.startswith("autofusion ") else ["-c", command]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


def output_of(source: str, before: str) -> str:
    """What belongs into a block; `before` is the page up to it."""
    if source == "the Python block above":
        return run(PYTHON.findall(before)[-1])
    command, _, start = source.partition(" | ")
    text = run(command)
    if start:
        text = text[text.index(start) :]
        text = text.split("\n\n\n", 1)[0] if start == "launch" else re.split(r"\n\n(?=Not fused)", text)[0] + "\n"
        text = text.rstrip("\n") + "\n"
    return text.strip("\n") + "\n"


def pasted(name: str) -> list[tuple[str, str, str]]:
    """(source, text, page before it) of every block with pasted output."""
    text = page(name)
    return [(m["source"], m["text"], text[: m.start()]) for m in PASTED.finditer(text)]


def measured(name: str) -> str:
    """A row of the table of examples."""
    found = json.loads(run(f"autofusion run examples/{name}.json --check --repeat 1 --json"))
    assert found["ok"] and found["fallbacks"] == []
    ratio = found["gm_bytes_unfused"] / found["gm_bytes"]
    return f"| `{name}` | {found['ops']} | {found['groups']} | {found['launches']} | {ratio:.2f} |"


def shape_of(text: str) -> str:
    """The words of a text: numbers, the machine and spacing differ from run to run and machine to machine."""
    text = re.sub(r"cpu:[\w.:-]+:?", "CPU", text)
    text = re.sub(r"\d[\d.,]*(e-?\d+)?", "N", text)
    return re.sub(r"─+|\s+", " ", text)


def skip_without_model(command: str) -> None:
    """Runs of Ascend targets need a C++17 compiler, and are pasted from a machine without a device."""
    if " run " in command and "ascend" in command:
        if reason := aicore.unavailable():
            pytest.skip(reason)
        if acl.unavailable() is None:
            pytest.skip("there is an Ascend device, and the page shows the model")


CASES = [(name, number) for name in PAGES for number in range(len(pasted(name)))]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_pasted_output_is_what_is_printed(name: str, number: int) -> None:
    source, text, before = pasted(name)[number]
    skip_without_model(source)
    found = output_of(source, before)
    if " emit " in source:
        assert text == found, "run `python tests/test_readme.py` to paste it anew"
    else:
        assert shape_of(text) == shape_of(found), "run `python tests/test_readme.py` to paste it anew"


@pytest.mark.parametrize("example", EXAMPLES)
def test_table_of_examples_is_measured(example: str) -> None:
    match = TABLE.search(page("README.md"))
    assert match is not None
    (row,) = [line for line in match["rows"].splitlines() if f"`{example}`" in line]
    stated, found = row.split("|")[1:-1], measured(example).split("|")[1:-1]
    here = api.find_target("cpu").lane_bytes == LANE_BYTES  # other machines may cut and tile otherwise
    columns = (0, 1, 2, 3) if here else (0, 1, 3)
    assert [stated[c] for c in columns] == [found[c] for c in columns], "run `python tests/test_readme.py`"
    if here:
        assert float(stated[4]) == pytest.approx(float(found[4]), rel=0.1), "run `python tests/test_readme.py`"


@pytest.mark.parametrize("name", PAGES)
def test_python_blocks_run(name: str) -> None:
    blocks = PYTHON.findall(page(name))
    if blocks:
        run("\n".join(blocks))


def test_commands_of_the_readme_run() -> None:
    lines = [line for block in SHELL.findall(page("README.md")) for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("autofusion ")]
    assert len(commands) >= 2
    for command in commands:
        if "$MODEL" in command or (" run " in command and "ascend" in command and aicore.unavailable()):
            continue  # the real model: below
        assert "launch" in run(command)


def test_the_first_command_runs_a_real_model() -> None:
    magika = pytest.importorskip("magika")
    pytest.importorskip("onnx")
    (command,) = [line for line in page("README.md").splitlines() if line.startswith('autofusion run "$MODEL"')]
    model = Path(magika.__path__[0]) / "models/standard_v3_3/model.onnx"
    printed = run(command.replace('"$MODEL"', str(model)))
    assert "1 launch" in printed and "fallbacks           none" in printed and "check               ok" in printed


@pytest.mark.parametrize(
    "name", [*PAGES, "docs/ascend-device.md", "docs/op-sequence.md", "docs/performance.md", "CHANGELOG.md"]
)
def test_links_lead_somewhere(name: str) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", page(name)):
        assert ((ROOT / name).parent / link).exists(), link


def refresh() -> None:
    """Paste all output anew."""
    for name in PAGES:
        text, done = page(name), 0
        while match := PASTED.search(text, done):
            block = output_of(match["source"], text[: match.start()])
            new = f"<!-- output of: {match['source']} -->\n```text\n{block}```\n"
            text, done = text[: match.start()] + new + text[match.end() :], match.start() + len(new)
        if match := TABLE.search(text):
            rows = "".join(measured(example) + "\n" for example in EXAMPLES)
            text = text[: match.start("rows")] + rows + text[match.end("rows") :]
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    refresh()
