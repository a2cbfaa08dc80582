"""The ONNX backend suite on this package: `python -m benchmarks onnx_suite` writes docs/onnx-support.md.

Every case runs in a worker process under a time limit: a case that crashes or hangs is a line of the report. Outputs
are compared with the shipped ones by the suite's own rule and tolerances.

    python -m benchmarks onnx_suite                      all 1,884 node cases, report written
    python -m benchmarks onnx_suite --match softmax      some cases, printed
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.pool import Pool

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

    def result(state: str, reason: str = "", **more: Any) -> Result:
        return Result(case.name, *_about(case), state, " ".join(reason.split())[:300], **more)

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


@functools.cache
def _known() -> dict[str, Any]:
    return {case.name: case for case in cases()}


def _run_named(name: str) -> Result:
    return run_case(_known()[name])


def _lost(name: str, state: str, reason: str) -> Result:
    return Result(name, *_about(_known()[name]), state, reason)


def _about(case: Any) -> tuple[str, tuple[str, ...]]:
    """A case's category and operators."""
    category = "expanded function" if "_expanded" in case.name else "operator"
    return category, tuple(sorted({node.op_type for node in case.model.graph.node}))


def run(names: Sequence[str], workers: int, seconds: float = SECONDS) -> list[Result]:
    """All results, in the order of the cases."""
    results: dict[str, Result] = {}
    for name, result in Pool(_run_named, _lost, workers, seconds, _known).stream(collections.deque(names)):
        results[name] = result
        if len(results) % 100 == 0:
            print(f"{len(results)} of {len(names)}", file=sys.stderr, flush=True)
    return [results[name] for name in names]


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
    chosen = [name for name in _known() if given.match in name]
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
