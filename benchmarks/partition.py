"""How the time of the partition grows with the graph: `python -m benchmarks partition [sizes ...]`.

Random long-tail graphs: small arithmetic, activations, row and column reductions, broadcasts and transposes over a pool
of live tensors, so that operators have several consumers and groups meet again. Prints seconds for each size; linear
growth shows as a constant CPU time per operator.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence

from autofusion import target
from autofusion.autofuse.partition import greedy
from autofusion.dtypes import DType
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph

ROWS, COLUMNS, POOL = 32, 64, 16
UNARY = ("abs", "neg", "exp", "tanh", "sigmoid", "sqrt", "floor")
BINARY = ("add", "sub", "mul", "maximum", "minimum")


def long_tail(count: int, seed: int = 0) -> Graph:
    """A decomposed graph of about `count` operators; the same seed gives the same graph."""
    rng = random.Random(seed)
    F = GraphBuilder(f"longtail{count}")
    pool = [F.input(f"x{i}", DType.FLOAT32, (ROWS, COLUMNS)) for i in range(POOL)]
    made = 0
    while made < count:
        at, other = rng.randrange(POOL), rng.randrange(POOL)
        kind = rng.random()
        if kind < 0.4:
            pool[at] = F.emit(rng.choice(UNARY), [pool[at]], {})
            made += 1
        elif kind < 0.8:
            pool[at] = F.emit(rng.choice(BINARY), [pool[at], pool[other]], {})
            made += 1
        elif kind < 0.95:
            folded = F.sum(pool[at], axes=(rng.randrange(2),), keepdims=True)
            pool[at] = F.sub(pool[other], folded)
            made += 2
        else:
            turned = F.reshape(F.transpose(pool[other], axes=(1, 0)), shape=(ROWS, COLUMNS))
            pool[at] = F.add(pool[at], turned)
            made += 3
    for value in pool:
        F.output(value)
    return F.build()


def measure(count: int) -> tuple[float, float, int, int]:
    """(seconds, of which this process ran, operators, groups) of one partition, best of three for the small ones."""
    graph = long_tail(count)
    machine = target.cpu("host", 2, (), 64, 1 << 20)
    best = (float("inf"), float("inf"))
    for _ in range(3 if count <= 10_000 else 1):
        start, busy = time.perf_counter(), time.process_time()
        found = greedy(graph, machine)
        best = min(best, (time.perf_counter() - start, time.process_time() - busy))
    return *best, len(graph.nodes), len(found.groups)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks partition", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=[1_000, 10_000, 100_000])
    print(f"{'operators':>10s} {'groups':>7s} {'seconds':>8s} {'CPU s':>8s} {'CPU us/operator':>16s}")
    for size in parser.parse_args(arguments).sizes:
        seconds, busy, count, groups = measure(size)
        print(f"{count:10d} {groups:7d} {seconds:8.3f} {busy:8.3f} {busy / count * 1e6:16.1f}")


if __name__ == "__main__":
    main()
