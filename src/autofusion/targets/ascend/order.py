"""Which copies in need a wait of their own.

load0.AllocTensor, copies             the row of a bias, once
for …
    load1.AllocTensor, copies         a tile
    load1.EnQue, load1.DeQue          the vector unit waits for this copy, and so for all before it
    Add(v0, b1, b0, n)                nothing of load0 is read before: no EnQue, no DeQue
load0.FreeTensor                      the next AllocTensor waits for the vector unit

Nor does what only the scalar unit reads, element by element: the compiler orders it against copies.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

WAIT = re.compile(r"in\d+ = (load\d+)\.DeQue<")


def awaited(lines: Sequence[str], names: Collection[str], early: Collection[str]) -> bool:
    """Whether C++ lines, indented by their blocks, read tensors that were just copied to before they wait for a later
    copy. `early`: queues whose next tile may have been copied before."""
    read = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b(?!\.GetValue\()")
    behind: int | None = None  # the indentation of the block in which a later copy is there
    for line in lines:
        text = line.partition("//")[0]
        if not text.strip():
            continue
        depth = len(text) - len(text.lstrip())
        if behind is not None and depth >= behind:
            continue
        behind = None
        found = WAIT.match(text.lstrip())
        if found and found[1] not in early:
            behind = depth
        elif read.search(text):
            return True
    return False
