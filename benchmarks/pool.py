"""Cases in worker processes: one that crashes or hangs loses only itself."""

from __future__ import annotations

import collections
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

R = TypeVar("R")


def _serve(connection: Connection, run: Callable[[str], Any], prepare: Callable[[], object]) -> None:
    warnings.simplefilter("ignore")
    prepare()
    connection.send(None)
    while True:
        name = connection.recv()
        if name is None:
            return
        connection.send(run(name))


class _Worker:
    """A process that runs one case at a time, once it is prepared; replaced where it dies or takes too long."""

    def __init__(self, run: Callable[[str], Any], prepare: Callable[[], object]) -> None:
        self.connection, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=_serve, args=(other, run, prepare), daemon=True)
        self.process.start()
        other.close()
        self.ready = False
        self.case: str | None = None
        self.since = time.monotonic()

    def give(self, case: str) -> None:
        self.case, self.since = case, time.monotonic()
        self.connection.send(case)

    def stop(self) -> None:
        """At once, with what it works on; where that is nothing, in the process's own way."""
        if self.ready and self.case is None and self.process.is_alive():
            self.connection.send(None)
            self.process.join(5)
        self.process.kill()
        self.process.join()


class Pool(Generic[R]):
    """`run`: one case by its name, in a worker; `lost`: the result of a case whose worker crashed or hung, from its
    name, which of the two, and why; `seconds`: a case's time; `prepare`: what a worker does before its first one."""

    def __init__(
        self,
        run: Callable[[str], R],
        lost: Callable[[str, str, str], R],
        workers: int,
        seconds: float,
        prepare: Callable[[], object] = int,
    ) -> None:
        self.run, self.lost, self.workers, self.seconds, self.prepare = run, lost, workers, seconds, prepare

    def results(self, names: Sequence[str]) -> dict[str, R]:
        return dict(self.stream(collections.deque(names)))

    def stream(self, left: collections.deque[str]) -> Iterator[tuple[str, R]]:
        """Names and results as they come. `left`: names to do; more may be added while this runs."""
        pool = [_Worker(self.run, self.prepare) for _ in range(min(self.workers, len(left)))]
        try:
            while left or any(worker.case is not None for worker in pool):
                yield from self._round(pool, left)
        finally:
            for worker in pool:
                worker.stop()

    def _round(self, pool: list[_Worker], left: collections.deque[str]) -> Iterator[tuple[str, R]]:
        for number, worker in enumerate(pool):
            if worker.ready and worker.case is None and left:
                worker.give(left.popleft())
            died = not worker.process.is_alive() and not worker.connection.poll()
            if died and not worker.ready:
                raise RuntimeError(f"a worker ended before its first case: exit code {worker.process.exitcode}")
            if worker.case is not None and (died or time.monotonic() - worker.since > self.seconds):
                reason = f"exit code {worker.process.exitcode}" if died else f"unfinished after {self.seconds:.0f} s"
                worker.stop()
                pool[number] = _Worker(self.run, self.prepare)
                yield worker.case, self.lost(worker.case, "crashed" if died else "hung", reason)
        for connection in wait([worker.connection for worker in pool], timeout=0.5):
            worker = next(each for each in pool if each.connection is connection)
            try:
                made = worker.connection.recv()
            except EOFError:
                continue  # it died: seen above in the next round
            if not worker.ready:
                worker.ready = True
                continue
            assert worker.case is not None
            case, worker.case = worker.case, None
            yield case, made
