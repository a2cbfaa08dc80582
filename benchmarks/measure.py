"""Measure workloads: `python -m benchmarks run`.

Every measurement has a process of its own. It is made ready twice, on empty caches and on the ones it left, which gives
the cold and the warm compile time. The second process stays: in each round every process of a workload is timed once,
between two readings of the probes.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autofusion.version import __version__
from benchmarks import export, judge, native, probes
from benchmarks.command import Parser
from benchmarks.peers import PEERS, YARDSTICKS, Peer
from benchmarks.probes import Reading
from benchmarks.workloads import WORKLOADS, Workload

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 600.0  # seconds for a peer to become ready
MORE = 3  # at most so many times the rounds asked for, while a measurement lacks rounds that count


@dataclass(frozen=True)
class Settings:
    workloads: tuple[Workload, ...]
    peers: tuple[Peer, ...]
    threads: tuple[int, ...]
    rounds: int
    seconds: float
    small: bool


class Process:
    """A worker: `benchmarks.worker`, with its threads and caches."""

    def __init__(self, peer: Peer, workload: Workload, case: export.Case, threads: int, caches: Path) -> None:
        self.peer = peer
        given = {
            "peer": peer.name,
            "workload": workload.name,
            "case": str(case.folder),
            "small": case.small,
            "threads": threads,
        }
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `end`)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.worker",
                json.dumps(given),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=_environment(threads, caches),
            cwd=ROOT,
        )

    def answer(self) -> dict[str, Any]:
        """The next answer; a process that died, or takes too long, has failed."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE):
                self.process.kill()
                return {"status": "failed", "reason": f"no answer after {PATIENCE:.0f} s"}
        line = self.process.stdout.readline()
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        code = self.process.wait()
        self.log.seek(0)
        last = (self.log.read().strip().splitlines() or [""])[-1]
        return {"status": "failed", "reason": f"exit code {code}: {last[:200]}"}

    def round(self, seconds: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"round {seconds}\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()


def _environment(threads: int, caches: Path) -> dict[str, str]:
    """Threads and cache folders as each peer takes them."""
    count = str(threads)
    return {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "AUTOFUSION_NUM_THREADS"), count),
        "AUTOFUSION_CACHE_DIR": str(caches / "autofusion"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "JAX_COMPILATION_CACHE_DIR": str(caches / "jax"),
        "JAX_PLATFORMS": "cpu",
        "OPENVINO_CACHE_DIR": str(caches / "openvino"),
        "NUMBA_CACHE_DIR": str(caches / "numba"),
        "HF_HUB_OFFLINE": "1",
    }


def run(settings: Settings, say: Any = print, keep: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
    """Everything that was measured, as data. `keep` gets what there is after each workload."""
    rooflines = {threads: probes.roofline(threads) for threads in settings.threads}
    readings: dict[int, list[Reading]] = {threads: [] for threads in settings.threads}
    results: list[dict[str, Any]] = []
    arithmetic = {}
    for workload in settings.workloads:
        case = export.case_of(workload.name, settings.small)
        arithmetic[workload.name] = case.arithmetic
        for threads in settings.threads:
            found = measure(workload, case, threads, settings, readings[threads])
            results += found
            for each in found:
                say(f"{workload.name:26s} {threads}  {each['peer']:12s} {_short(each)}")
        if keep is not None:
            keep(_summary(settings, results, arithmetic, rooflines, readings))
    rooflines = {threads: limits.with_better(probes.roofline(threads)) for threads, limits in rooflines.items()}
    return _summary(settings, results, arithmetic, rooflines, readings)


def _summary(
    settings: Settings,
    results: Sequence[dict[str, Any]],
    arithmetic: Mapping[str, export.Arithmetic],
    rooflines: Mapping[int, probes.Roofline],
    readings: Mapping[int, Sequence[Reading]],
) -> dict[str, Any]:
    """Results with what is to be known about them, and with medians over the rounds that count so far."""
    for each in results:
        if each.get("rounds"):
            each |= judge.settle(each["rounds"], probes.best(readings[each["threads"]]))
    return {
        "format": 1,
        "machine": machine(),
        "versions": versions(results),
        "settings": {"rounds": settings.rounds, "seconds": settings.seconds, "small": settings.small},
        "rooflines": {
            str(threads): {
                **asdict(roofline),
                "ms": {name: roofline.milliseconds(work) for name, work in arithmetic.items()},
            }
            for threads, roofline in rooflines.items()
        },
        "arithmetic": {name: asdict(work) for name, work in arithmetic.items()},
        "results": [{key: value for key, value in each.items() if key != "versions"} for each in results],
    }


def measure(
    workload: Workload, case: export.Case, threads: int, settings: Settings, readings: list[Reading]
) -> list[dict[str, Any]]:
    """One workload on some threads, by every peer that has it."""
    results, processes = [], []
    with tempfile.TemporaryDirectory() as folder:
        for peer in settings.peers:
            if not peer.has(workload):
                continue
            result: dict[str, Any] = {"workload": workload.name, "peer": peer.name, "threads": threads}
            results.append(result)
            cold = Process(peer, workload, case, threads, Path(folder) / peer.name)
            found = cold.answer()
            cold.end()
            if found["status"] in ("right", "wrong"):
                result["cold_s"] = found["ready_s"]
                warm = Process(peer, workload, case, threads, Path(folder) / peer.name)
                found = warm.answer()
                processes.append((warm, result))
            result |= found
            if "ready_s" in result:
                result["warm_s"] = result.pop("ready_s")
                result["rounds"] = []
        before = probes.take(threads)
        for number in range(settings.rounds * MORE):
            lacking = [
                r["peer"] for _, r in processes if number < settings.rounds or not _enough(r, settings, readings)
            ]
            if not lacking:
                break
            turn = processes[number % len(processes) :] + processes[: number % len(processes)]
            for process, result in turn:  # this package too, wherever there is a round: others are compared with it
                if result["status"] == "failed" or result["peer"] not in (*lacking, "ours"):
                    continue
                found = process.round(settings.seconds)
                after = probes.take(threads)
                readings += [before, after]
                if "status" in found:
                    result |= found
                else:
                    found |= {"number": number, "probes": [[each.fma, each.copy] for each in (before, after)]}
                    result["rounds"].append(found)
                before = after
        for process, _ in processes:
            process.end()
    return results


def _enough(result: dict[str, Any], settings: Settings, readings: Sequence[Reading]) -> bool:
    """Whether as many rounds count as were asked for, or there will be no more."""
    if result["status"] == "failed":
        return True
    judge.settle(result["rounds"], probes.best(readings))
    return [each["kept"] for each in result["rounds"]].count(True) >= settings.rounds


def _short(result: dict[str, Any]) -> str:
    rounds = result.get("rounds")
    if not rounds:
        return f"{result['status']}: {result.get('reason', '')}"
    times = ", ".join(f"{each['median_ms']:.4g}" for each in rounds)
    return f"{result['status']}  {times} ms; ready in {result['cold_s']:.2f} s, then {result['warm_s']:.2f} s"


def machine() -> dict[str, Any]:
    """CPU model, cores, memory; no names of hosts or users."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return {
        "cpu": facts.get("model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
    }


def versions(results: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Of all packages that took part."""
    found = {
        "graph-autofusion": __version__,
        "python": platform.python_version(),
        "C compiler": native.version(),
    }
    for each in results:
        found |= each.get("versions", {})
    return dict(sorted(found.items()))


# -- the command -------------------------------------------------------------------------------------------------------
def chosen(parser: Parser, text: str, kind: str, known: Any) -> tuple[Any, ...]:
    """The rows that a comma-separated list names: `all`, names, or beginnings of names such as `a_`."""
    rows: dict[str, Any] = {}
    for name in filter(None, text.split(",")):
        matching = {k: v for k, v in known.items() if name in ("all", k) or (name.endswith("_") and k.startswith(name))}
        if not matching:
            parser.error(f"{kind} {name!r}: expected one of {', '.join(known)}")
        rows |= matching
    return tuple(rows.values())


def settings_of(arguments: Sequence[str]) -> tuple[Settings, Path | None]:
    parser = Parser("run", "measure workloads")
    parser.add_argument("--workloads", default="all", metavar="NAME,…", help="names or beginnings such as a_ (all)")
    parser.add_argument("--peers", default="all", metavar="NAME,…", help=f"of {', '.join(PEERS)} (all)")
    parser.add_argument("--yardsticks", default="all", metavar="NAME,…", help=f"of {', '.join(YARDSTICKS)} (all)")
    parser.add_argument("--threads", default="1,2", metavar="N,…", help="each number of threads (1,2)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds that count (5)")
    parser.add_argument("--seconds", type=float, default=0.3, metavar="S", help="of a peer in a round (0.3)")
    parser.add_argument("--small", action="store_true", help="the reduced sizes of the AI Core model")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="results as JSON, for report and compare; FILE.part until all is measured",
    )
    given = parser.parse_args(arguments)
    threads, cores = [], len(os.sched_getaffinity(0))
    for text in given.threads.split(","):
        if not text.isdigit() or not 1 <= int(text) <= cores:
            parser.error(f"--threads {text!r}: expected numbers from 1 to {cores}, the cores here")
        threads.append(int(text))
    if given.rounds < 1:
        parser.error(f"--rounds {given.rounds}: expected at least 1")
    peers = chosen(parser, given.peers, "peer", PEERS) + chosen(parser, given.yardsticks, "yardstick", YARDSTICKS)
    workloads = chosen(parser, given.workloads, "workload", WORKLOADS)
    found = Settings(workloads, peers, tuple(threads), given.rounds, given.seconds, given.small)
    return found, given.output


def _write(path: Path, results: dict[str, Any]) -> None:
    made = path.with_name(path.name + ".new")
    made.write_text(json.dumps(results, indent=1) + "\n")
    made.replace(path)


def main(arguments: Sequence[str]) -> int:
    from benchmarks import report

    settings, output = settings_of(arguments)
    os.environ["OMP_WAIT_POLICY"] = "passive"  # the probes' threads, between two readings
    try:
        part = None if output is None else output.with_name(output.name + ".part")
        keep = None if part is None else partial(_write, part)
        results = run(settings, lambda line: print(line, file=sys.stderr, flush=True), keep)
    except (ImportError, native.Missing) as error:
        print(f"python -m benchmarks run: error: {error}; python -m pip install '.[bench]'", file=sys.stderr)
        return 2
    if output is not None and part is not None:
        _write(part, results)
        part.replace(output)
    print(report.text(results))
    wrong = [r for r in results["results"] if r["peer"] in report.PACKAGE and r["status"] != "right"]
    return 1 if wrong else 0
