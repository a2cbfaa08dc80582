"""Which copies in need a wait of their own.

load0.AllocTensor, copies             the row of a bias, once
for …
    load1.AllocTensor, copies         a tile
    load1.EnQue, load1.DeQue          the vector unit waits for this copy, and so for all before it
    Add(v0, b1, b0, n)                nothing of load0 is read before: no EnQue, no DeQue
load0.FreeTensor                      the next AllocTensor waits for the vector unit, and so for the copies

Nor does a copy that is made once and read by the scalar unit alone: the compiler orders those two. Where it is made
again, something has to wait for the first before the second.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

WAIT = re.compile(r"in\d+ = (load\d+)\.DeQue<")
LOOP = re.compile(r"for \(int64_t (\w+) = (.+?); \1 < (.+?); ")


def awaited(lines: Sequence[str], names: Collection[str], early: Collection[str], repeated: bool) -> bool:
    """Whether C++ lines, indented by their blocks, read tensors that were just copied to before they wait for a later
    copy, or, where it is all `repeated`, may not wait for any. `early`: queues whose next tile may have been copied
    before."""
    read = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b(?!\.GetValue\()")
    behind: int | None = None  # the indentation of the block in which a later copy is there
    unsure: list[int] = []  # the indentation of blocks that may not be entered
    waits = False
    for line in lines:
        text = line.partition("//")[0].rstrip()
        depth = len(text) - len(text.lstrip())
        if not text:
            continue
        unsure = [each for each in unsure if each < depth]
        if text.endswith("{") and not _entered(text.lstrip()):
            unsure.append(depth)
        if behind is not None and depth >= behind:
            continue
        behind = None
        found = WAIT.match(text.lstrip())
        if found and found[1] not in early:
            behind = depth
            waits = waits or not unsure
        elif read.search(text):
            return True
    return repeated and not waits


def _entered(head: str) -> bool:
    """Whether a block is entered for sure: a loop from one number to a larger one, or over the tiles of a chunk."""
    found = LOOP.match(head)
    if found is None:
        return False
    var, begin, end = found.groups()
    return var == "t" or (begin.isdigit() and end.isdigit() and int(begin) < int(end))
