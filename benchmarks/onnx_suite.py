"""The ONNX backend suite on this package: `python -m benchmarks onnx_suite` writes docs/onnx-support.md.

Every case runs in a worker process under a time limit: a case that crashes or hangs is a line of the report. Outputs
are compared with the shipped ones by the suite's own rule and tolerances.

    python -m benchmarks onnx_suite                      all 1,884 node cases, report written
    python -m benchmarks onnx_suite --match softmax      some cases, printed
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

SECONDS = 60.0  # a case
REPORT = Path(__file__).resolve().parent.parent / "docs" / "onnx-support.md"


@dataclass(frozen=True)
class Result:
    """`state`: compiled, reference (passed with fallbacks), refused, wrong, crashed or hung."""

    name: str
    category: str
    ops: tuple[str, ...]
    state: str
    reason: str = ""
    fallbacks: tuple[str, ...] = ()
    launches: int = 0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.state in ("compiled", "reference")


def cases() -> list[Any]:
    """The node cases, sorted by name; the same in every process."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sorted(load_model_tests(kind="node"), key=lambda case: case.name)


def run_case(case: Any) -> Result:
    """One case by this package's backend."""
    from onnx.backend.test.runner import Runner, _normalize_tensor

    import autofusion.onnx
    from autofusion.errors import AutofusionError

    ops = tuple(sorted({node.op_type for node in case.model.graph.node}))
    category = "expanded function" if "_expanded" in case.name else "operator"

    def result(state: str, reason: str = "", **more: Any) -> Result:
        return Result(case.name, category, ops, state, " ".join(reason.split())[:300], **more)

    start = time.perf_counter()
    try:
        prepared = autofusion.onnx.Backend.prepare(case.model, "CPU")
        for inputs, expected in case.data_sets:
            found = prepared.run([_normalize_tensor(each) for each in inputs])
            wanted = [_normalize_tensor(each) for each in expected]
            try:
                if len(found) != len(wanted):
                    raise AssertionError(f"{len(found)} outputs, expected {len(wanted)}")
                Runner.assert_similar_outputs(wanted, list(found), rtol=case.rtol, atol=case.atol)
            except AssertionError as error:
                return result("wrong", str(error))
    except AutofusionError as error:
        return result("refused", str(error))
    except Exception as error:
        return result("crashed", f"{type(error).__name__}: {error}")
    fallbacks = prepared.compiled.explain().fallbacks
    stats = prepared.compiled.stats
    launches = stats["launches"] // max(stats["calls"], 1)
    state = "reference" if fallbacks else "compiled"
    seconds = time.perf_counter() - start
    return result(state, fallbacks=tuple(fallbacks), launches=launches, seconds=seconds)


def _worker(connection: Connection) -> None:
    warnings.simplefilter("ignore")
    known = {case.name: case for case in cases()}
    connection.send(None)
    while True:
        name = connection.recv()
        if name is None:
            return
        connection.send(asdict(run_case(known[name])))


class Worker:
    """A process that runs one case at a time; replaced where it dies or takes too long."""

    def __init__(self) -> None:
        self.connection, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=_worker, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.case: Any = None
        self.since = time.monotonic()
        self.ready = False

    def give(self, case: Any) -> None:
        self.case, self.since = case, time.monotonic()
        self.connection.send(case.name if case is not None else None)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def run(chosen: list[Any], workers: int, seconds: float = SECONDS) -> list[Result]:
    """All results, in the order of the cases."""
    left = collections.deque(chosen)
    results: dict[str, Result] = {}
    pool = [Worker() for _ in range(min(workers, len(chosen)))]
    while len(results) < len(chosen):
        for number, worker in enumerate(pool):
            if worker.ready and worker.case is None and left:
                worker.give(left.popleft())
            died = not worker.process.is_alive() and not worker.connection.poll()
            if worker.case is not None and (died or time.monotonic() - worker.since > seconds):
                case = worker.case
                ops = tuple(sorted({node.op_type for node in case.model.graph.node}))
                category = "expanded function" if "_expanded" in case.name else "operator"
                state = "crashed" if died else "hung"
                reason = f"exit code {worker.process.exitcode}" if died else f"not finished after {seconds:.0f} s"
                results[case.name] = Result(case.name, category, ops, state, reason)
                worker.stop()
                pool[number] = Worker()
        for connection in wait([worker.connection for worker in pool], timeout=0.5):
            worker = next(each for each in pool if each.connection is connection)
            try:
                found = worker.connection.recv()
            except EOFError:
                continue  # it died: seen above in the next round
            if found is None:
                worker.ready = True
            else:
                results[found["name"]] = Result(**found)
                worker.case = None
            if len(results) % 100 == 0 and found is not None:
                print(f"{len(results)} of {len(chosen)}", file=sys.stderr, flush=True)
    for worker in pool:
        worker.stop()
    return [results[case.name] for case in chosen]


# -- the report --------------------------------------------------------------------------------------------------------
def report(results: list[Result]) -> str:
    """docs/onnx-support.md."""
    import onnx

    passed = [r for r in results if r.passed]
    free = [r for r in results if r.state == "compiled"]
    lines = [
        "# ONNX support",
        "",
        f"Written by `python -m benchmarks onnx_suite` from the backend suite of onnx {onnx.__version__}: every node",
        "case runs in a process of its own under a time limit and is compared with the shipped outputs.",
        "",
        f"**{len(passed):,} of {len(results):,} cases pass, {len(free):,} of them with `fallbacks: []`.**",
        "",
        "| category | cases | compiled | reference | refused | wrong | crashed | hung |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for category in sorted({r.category for r in results}):
        counts = collections.Counter(r.state for r in results if r.category == category)
        states = ("compiled", "reference", "refused", "wrong", "crashed", "hung")
        lines.append(f"| {category} | {sum(counts.values())} | " + " | ".join(str(counts[s]) for s in states) + " |")
    lines += [
        "",
        "compiled: no operator ran on the host. reference: passes, some operators ran on the host by a reference.",
        "",
        "## Operators",
        "",
        "Over the cases of single operators.",
        "",
        "| operator | compiled | reference | refused | wrong or worse |",
        "|---|---|---|---|---|",
    ]
    by_operator: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for result in results:
        if result.category == "operator":
            for op in result.ops:
                by_operator[op][result.state] += 1
    for op, counts in sorted(by_operator.items()):
        bad = counts["wrong"] + counts["crashed"] + counts["hung"]
        cells = [counts["compiled"], counts["reference"], counts["refused"], bad]
        lines.append(f"| {op} | " + " | ".join(str(c or "") for c in cells) + " |")
    lines += ["", "## Cases that do not pass", "", "| case | state | reason |", "|---|---|---|"]
    for result in results:
        if not result.passed:
            reason = result.reason.replace("|", "\\|")
            lines.append(f"| {result.name} | {result.state} | {reason} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks onnx_suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--match", default="", help="only cases whose name contains this; printed, no report")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time limit of a case")
    parser.add_argument("--json", help="write all results to this file too")
    parser.add_argument("--output", default=str(REPORT), help="where the report goes")
    given = parser.parse_args(arguments)
    chosen = [case for case in cases() if given.match in case.name]
    results = run(chosen, given.workers, given.seconds)
    if given.json:
        Path(given.json).write_text(json.dumps([asdict(r) for r in results], indent=1))
    if given.match:
        for result in results:
            print(f"{result.state:10} {result.name} {result.reason}")
    else:
        Path(given.output).write_text(report(results))
    print(dict(collections.Counter(r.state for r in results)))


if __name__ == "__main__":
    main()
