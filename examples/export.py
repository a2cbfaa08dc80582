"""Write the op-sequence twin (`NAME.json`) of every example here: `python examples/export.py [--check]`.

The same Python gives the same file, byte for byte; `--check` only compares, and fails where a file is stale.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from autofusion.frontends.opseq import dumps, seeded
from autofusion.frontends.tracer import trace
from autofusion.graph.ir import digest_of

HERE = Path(__file__).resolve().parent
NAMES = ("matmul_add_relu", "layernorm_gelu", "softmax", "longtail200", "adamw", "transformer_block", "model200")


def export(name: str) -> str:
    """The op-sequence text of an example; drawn constants are written as their seeds."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    example = importlib.import_module(name)
    function, inputs = example.build()
    traced = trace(function, [(key, array.dtype, array.shape) for key, array in inputs.items()], name)
    drawn = example.constants() if hasattr(example, "constants") else {}
    sources = {digest_of(seeded(shape, **draw)): {"random": draw} for shape, draw in drawn.values()}
    return dumps(traced.graph, sources)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 where a file is stale")
    check = parser.parse_args().check
    stale = []
    for name in NAMES:
        path, text = HERE / f"{name}.json", export(name)
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            stale.append(path.name)
        elif not check:
            path.write_text(text, encoding="utf-8", newline="\n")
            print(f"{path.name}: {len(text)} bytes")
    if stale:
        print(f"stale: {', '.join(stale)}; run examples/export.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
