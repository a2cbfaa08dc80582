"""One peer on one workload, in a process of its own: `python -m benchmarks.worker SPECIFICATION`.

It answers in lines of JSON: first what making it ready cost and whether its numbers are right, then, for every line
`round SECONDS` of its standard input, the times of one round. It ends with its input.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.export import Case
from benchmarks.judge import share
from benchmarks.native import Missing
from benchmarks.peers import EVERYONE, outputs_of
from benchmarks.probes import cores
from benchmarks.workloads import WORKLOADS

SAMPLE = 50e-6  # seconds that a sample lasts at least: shorter calls are repeated within one
FEWEST = 5  # samples a round


def main() -> int:
    specification = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what peers print is not an answer

    def answer(**found: Any) -> None:
        print(json.dumps(found), file=answers, flush=True)

    try:
        run = _ready(specification, answer)
    except Missing as error:
        answer(status="not installed", reason=str(error))
        return 0
    except Exception as error:
        answer(status="failed", reason=" ".join(f"{type(error).__name__}: {error}".split())[:300])
        return 0
    for line in sys.stdin:
        answer(**timed(run, float(line.split()[1])))
    return 0


def _ready(specification: dict[str, Any], answer: Callable[..., None]) -> Callable[[], Any]:
    """Load, call, check; the costs are said. Memory is what is used beyond imports and inputs."""
    peer, workload = EVERYONE[specification["peer"]], WORKLOADS[specification["workload"]]
    os.sched_setaffinity(0, cores(specification["threads"]))
    case = Case(Path(specification["case"]), specification["small"])
    peer.start()
    assert case.inputs  # read here, outside of what is measured
    before = _memory("VmRSS")
    _forget_peak()
    start = time.perf_counter()
    run = peer.load(workload, case, specification["threads"])
    found = run()
    ready = time.perf_counter() - start
    for _ in range(2):
        found = run()
    peak = _memory("VmHWM") - before
    wrong = share(outputs_of(found), case.expected(), case.eager())
    status = "right" if wrong <= 1 else "wrong"
    answer(status=status, share=wrong, ready_s=ready, peak_bytes=max(peak, 0), versions=peer.versions())
    return run


def timed(run: Callable[[], Any], seconds: float) -> dict[str, float]:
    """Median and smallest time of a call in milliseconds, over samples that take `seconds` together."""
    clock = time.perf_counter
    samples: list[float] = []
    gc.disable()
    inner = 1
    while True:  # the first call of a round finds cold caches, so one says little
        start = clock()
        for _ in range(inner):
            run()
        if clock() - start >= SAMPLE:
            break
        inner *= 2
    end = clock() + seconds
    while clock() < end or len(samples) < FEWEST:
        start = clock()
        for _ in range(inner):
            run()
        samples.append((clock() - start) / inner * 1e3)
    gc.enable()
    return {"median_ms": statistics.median(samples), "min_ms": min(samples)}


def _memory(key: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def _forget_peak() -> None:
    """Start the high-water mark afresh."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        print("the peak of memory includes the imports", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
