"""Parts by themselves: `python -m benchmarks micro [gemm|math|launch|barrier|compile] [--threads 1,2]`.

gemm      products of float32 matrices in GFLOP/s, and as a share of what multiply-adds or reading allow
math      vector functions: nanoseconds an element, and the largest error in units of the last place, against mpmath
launch    one call that adds 16 floats, NumPy arrays in and out; calls with four tensors, by PyTorch's ways; both with
          sizes that are known and with open ones
barrier   a phase of a launch with nothing to do: the barrier between two phases
compile   the partition's time as graphs grow, and cold compile times
"""

from __future__ import annotations

import ctypes
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import autofusion as af
from autofusion.runtime import pool
from benchmarks import compile_time, partition, probes
from benchmarks.command import Parser
from benchmarks.export import Array
from benchmarks.native import Missing, library

SHAPES: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("512³", (512, 512), (512, 512)),
    ("1024³", (1024, 1024), (1024, 1024)),
    ("2048³", (2048, 2048), (2048, 2048)),
    ("tall 4096×64×512", (4096, 512), (512, 64)),
    ("wide 64×4096×512", (64, 512), (512, 4096)),
    ("deep 64×64×16384", (64, 16384), (16384, 64)),
    ("64×2048×2048", (64, 2048), (2048, 2048)),
    ("batch 12×128×128×64", (12, 128, 64), (12, 64, 128)),
    ("M=1 2048×2048", (1, 2048), (2048, 2048)),
)
FUNCTIONS: tuple[tuple[str, float, float], ...] = (  # name, and from where to where
    ("exp", -87, 88),
    ("log", 1e-30, 1e30),
    ("tanh", -9, 9),
    ("sigmoid", -20, 20),
    ("erf", -4, 4),
    ("sin", -100, 100),
    ("cos", -100, 100),
    ("sqrt", 0, 1e30),
    ("rsqrt", 1e-30, 1e30),
    ("log1p", -0.99, 1e10),
    ("expm1", -20, 80),
)
PHASES = 1000
NEAR = 0.93  # of the best probe: the machine was itself


def median(run: Callable[[], object], seconds: float = 0.3) -> float:
    """The median seconds of a call."""
    run()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples) < 5:
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def gemm(threads: int, seconds: float = 1.5) -> None:
    """Operands known at run time, which are packed within the time, and weights known at compile time.

    The bound of a product is the longer of its multiply-adds at the rate measured beside them, and of reading its
    operands. Calls count that have a probe near the best one before and after.
    """
    rng = np.random.default_rng(0)
    print(f"products, {threads} threads{'run time':>20s}{'constant':>26s}")
    print(f"{'':24s}" + f"{'GFLOP/s':>10s}{'best':>8s}{'median':>8s}" * 2 + "   of the bound")
    for name, left, right in SHAPES:
        a, b = rng.standard_normal(left, np.float32), rng.standard_normal(right, np.float32)
        flops = 2 * math.prod(left) * right[-1]
        reading = (a.nbytes + b.nbytes) / max(probes.read_rate(threads, a.nbytes + b.nbytes) for _ in range(5)) * 1e-9
        both = af.compile(lambda x, y: x @ y, [a, b])
        weights = af.compile(lambda x, y=b: x @ y, [a])
        line, bound = f"  {name:22s}", ""
        for run, given in ((both, (a, b)), (weights, (a,))):
            peak, times = undisturbed(partial(run, *given, threads=threads), threads, seconds)
            least = max(flops / (peak * 1e9), reading)
            bound = "reading" if least == reading else "multiply-adds"
            middle = statistics.median(times)
            line += f"{flops / middle * 1e-9:10.1f}{least / min(times):8.1%}{least / middle:8.1%}"
        print(f"{line}   {bound}")


def undisturbed(run: Callable[[], object], threads: int, seconds: float) -> tuple[float, list[float]]:
    """The best multiply-add rate, and the seconds of those calls that stand between two readings near it."""
    run()
    calls: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    before = probes.fma_rate(threads)
    while time.perf_counter() < end or len(calls) < 5:
        start = time.perf_counter()
        run()
        taken = time.perf_counter() - start
        after = probes.fma_rate(threads)
        calls.append((min(before, after), taken))
        before = after
    best = max(rate for rate, _ in calls)
    return best, [taken for rate, taken in calls if rate > NEAR * best]


def vector_math(threads: int, few: int = 1 << 16, many: int = 1 << 18, checked: int = 1500) -> None:
    """The time is that of many elements less that of few, which leaves out the call; both lie in a cache. Errors are of
    some points that are spread over the range."""
    import mpmath

    exact: dict[str, Callable[[Any], Any]] = {
        "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
        "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    }
    rng = np.random.default_rng(0)
    print(f"vector math, float32, {threads} threads{'ns/element':>12s}{'max ulp':>10s}")
    for name, low, high in FUNCTIONS:
        x = spread(low, high, many, rng)
        long, short = (af.compile(getattr(af, name), [given]) for given in (x, x[:few]))
        found = long(x, threads=threads)[:checked]
        reference = exact.get(name) or getattr(mpmath, name)
        with mpmath.workdps(30):
            worst = max(ulps(f, reference(mpmath.mpf(float(at)))) for f, at in zip(found, x[:checked], strict=True))
        seconds = median(partial(long, x, threads=threads))
        seconds -= median(partial(short, x[:few], threads=threads))
        print(f"  {name:28s}{seconds / (many - few) * 1e9:12.3f}{worst:10.2f}")


def spread(low: float, high: float, count: int, rng: np.random.Generator) -> Array:
    """Points by magnitude where the range is wide and positive, else evenly."""
    wide = low > 0 and high / low > 1e6
    points = np.exp(rng.uniform(np.log(low), np.log(high), count)) if wide else rng.uniform(low, high, count)
    return points.astype(np.float32)


def ulps(found: Any, exact: Any) -> float:
    """The distance in units of the last place of a float32 of the exact value's size."""
    _, exponent = math.frexp(float(exact))
    return float(abs(float(found) - exact) / math.ldexp(1.0, max(exponent, -125) - 24))


def launch(threads: int) -> None:
    """A call from Python to Python."""
    x, y = np.ones(16, np.float32), np.ones(16, np.float32)
    compiled = af.compile(lambda a, b: a + b, [x, y])
    opened = af.compile(lambda a, b: a + b, [x, y], dynamic={"a": ("n",), "b": ("n",)})
    traced = af.jit(lambda a, b: a + b)
    runs = {
        "numpy.add": np.add,
        "a compiled graph": compiled,
        "one of open sizes": opened,
        "a function of af.jit": traced,
    }

    def thousand(run: Callable[..., object], *more: Any) -> float:
        def calls() -> None:
            for _ in range(1000):
                run(x, y, *more)

        return median(calls) * 1e6

    print(f"a call that adds 16 floats, {threads} threads, ns")
    for name, run in runs.items():
        print(f"  {name:28s}{thousand(run):12.0f}")
    torch_launch(threads)


def torch_launch(threads: int) -> None:
    """Calls of PyTorch's with four tensors of 16 floats, in one operator and in a compiled module."""
    try:
        import torch
    except ImportError:
        print("  PyTorch is not installed")
        return
    from autofusion.torch import Backend

    def chain(a: Any, b: Any, c: Any, d: Any) -> Any:
        return (a * b + c).relu() * d

    class Chain(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *given: Any) -> Any:
            return chain(*given)

    torch.set_num_threads(threads)
    model, given = Chain(), [torch.randn(16) for _ in range(4)]
    runs: dict[str, Any] = {"eager PyTorch": model, "af.compile(module)": af.compile(model, given)}
    opened: Any = (tuple({0: torch.export.Dim("n")} for _ in given),)  # as torch.export takes it
    runs["the same, open sizes"] = af.compile(model, given, dynamic=opened)
    for name, backend in (("ours", Backend()), ("inductor", "inductor"), ("eager", "eager")):
        runs[f"torch.compile, {name}"] = torch.compile(chain, backend=backend)
    runs["torch.compile, no operator"] = torch.compile(lambda a, b, c, d: (a, b, c, d), backend="eager")
    print(f"a call with four tensors of 16 floats, {threads} threads, ns")
    with torch.no_grad():
        for name, run in runs.items():
            torch._dynamo.reset()  # of the same code, the compile of the last backend would be found

            def calls(run: Any = run) -> None:
                for _ in range(1000):
                    run(*given)

            print(f"  {name:28s}{median(calls) * 1e6:12.0f}")


def barrier(threads: int) -> None:
    """Phases of one empty chunk a worker, by the runtime alone."""
    nothing = ctypes.cast(library("probes").nothing, ctypes.c_void_p).value
    assert nothing is not None
    plans = [pool.Plan(((pool.Task(nothing, (), 0, 0),),) * phases) for phases in (1, PHASES + 1)]
    empty, chunks = np.zeros(0, np.int64), np.full(1, threads, np.int64)
    one, many = (median(partial(p.launch, empty.astype(np.uint64), empty, chunks, threads)) for p in plans)
    print(f"a phase and its barrier, {threads} threads: {(many - one) / PHASES * 1e9:.0f} ns")


def compiling(threads: int) -> None:
    """Threads take no part."""
    partition.main([])
    compile_time.main(["--groups", "200"])


PARTS: dict[str, Callable[[int], None]] = {
    "gemm": gemm,
    "math": vector_math,
    "launch": launch,
    "barrier": barrier,
    "compile": compiling,
}


def main(arguments: Sequence[str]) -> int:
    parser = Parser("micro", __doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (all)")
    parser.add_argument("--threads", default="1,2", metavar="N,…", help="each number of threads (1,2)")
    given = parser.parse_args(arguments)
    for name in given.parts:
        if name not in PARTS:
            parser.error(f"{name}: expected one of {', '.join(PARTS)}")
    if not all(text.isdigit() and int(text) > 0 for text in given.threads.split(",")):
        parser.error(f"--threads {given.threads!r}: expected numbers such as 1,2")
    counts = [int(text) for text in given.threads.split(",")]
    for name in given.parts or PARTS:
        for threads in counts[:1] if name == "compile" else counts:
            try:
                PARTS[name](threads)
            except (Missing, ImportError) as error:
                print(f"{name}: {error}")
    return 0


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
