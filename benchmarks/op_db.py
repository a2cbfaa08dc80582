"""PyTorch's operator database on this package: `python -m benchmarks op_db`.

Every entry's samples run in eager mode and by `torch.compile` with this package's backend, forward, and backward where
the entry has gradients. Results are compared by the tolerances of `torch.testing` and the entry's own; where they
differ, eager mode in float64 decides. Every entry runs in a worker process under a time limit.

    python -m benchmarks op_db                                  a sample an entry, in one element type each
    python -m benchmarks op_db --samples all --dtypes all       everything
    python -m benchmarks op_db --entries softmax,nn.functional.gelu --samples all
"""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.command import Parser
from benchmarks.pool import Pool

SECONDS = 60.0  # an entry, a sample
DTYPES = ("float32", "float64", "bfloat16", "int64", "bool")
STATES = ("wrong", "crashed", "hung", "refused", "fell back", "compiled", "no sample")
# Entries whose results are what memory holds: only types, shapes and strides are compared.
UNDEFINED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}
SLACK = 2.0  # times eager mode's own error against float64


@dataclass
class Result:
    """An entry. `forward`, `backward`: the worst state over samples and element types; backward "" without gradients.
    `fallbacks`, `backward_fallbacks`: overloads that PyTorch ran, and why."""

    name: str
    forward: str = "no sample"
    backward: str = ""
    reason: str = ""
    samples: int = 0
    fallbacks: dict[str, str] = field(default_factory=dict)
    backward_fallbacks: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def state(self) -> str:
        """The worse of both where something is wrong, else the forward one."""
        return next((s for s in STATES[:3] if s in (self.forward, self.backward)), self.forward)

    def meet(self, direction: str, state: str, reason: str = "") -> None:
        before = getattr(self, direction) or "no sample"
        if STATES.index(state) < STATES.index(before):
            setattr(self, direction, state)
            if reason and (not self.reason or state == "wrong"):
                self.reason = " ".join(f"{direction}: {reason}".split())[:400]


@functools.cache
def entries() -> dict[str, Any]:
    """The entries by their full names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db}


# -- comparing ---------------------------------------------------------------------------------------------------------
def leaves(item: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree

    return [each for each in _pytree.tree_leaves(item) if isinstance(each, torch.Tensor | int | float | complex)]


def tolerance(op: Any, dtype: Any) -> tuple[float, float]:
    """Relative and absolute: of `torch.testing`, or the widest that the entry gives this type."""
    from torch.testing._comparison import default_tolerances
    from torch.testing._internal.common_device_type import toleranceOverride

    relative, absolute = default_tolerances(dtype)
    for decorator in itertools.chain.from_iterable(getattr(d, "decorators", [d]) for d in op.decorators):
        if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
            relative = max(relative, decorator.d[dtype].rtol)
            absolute = max(absolute, decorator.d[dtype].atol)
    return relative, absolute


def differences(
    op: Any, ours: Sequence[Any], eager: Sequence[Any], exact: Callable[[], Sequence[Any]], defined: bool = True
) -> str:
    """What is wrong with our results; empty where nothing is. `exact`: eager mode's in float64."""
    import torch

    if len(ours) != len(eager):
        return f"{len(ours)} results, eager has {len(eager)}"
    for number, (a, b) in enumerate(zip(ours, eager, strict=True)):
        if not isinstance(b, torch.Tensor):
            if a != b and not (a != a and b != b):
                return f"result {number} is {a}, eager has {b}"
            continue
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"result {number} is {a.dtype}{list(a.shape)}, eager has {b.dtype}{list(b.shape)}"
        if a.layout is not torch.strided or not defined:
            continue
        text = wrong_tensor(a, b, lambda number=number: exact()[number], *tolerance(op, b.dtype))  # type: ignore[misc]
        if text:
            return f"result {number} {b.dtype}{list(b.shape)}: {text}"
    return ""


def wrong_tensor(
    ours: Any, eager: Any, exact: Callable[[], Any], relative: float | None = None, absolute: float | None = None
) -> str:
    """What is wrong with a tensor; tolerances are by default those of `torch.testing`."""
    import torch

    if relative is None or absolute is None:
        relative, absolute = torch.testing._comparison.default_tolerances(eager.dtype)
    try:
        torch.testing.assert_close(ours, eager, rtol=relative, atol=absolute, equal_nan=True)
    except AssertionError as error:
        text = str(error).splitlines()
        said = " ".join(line for line in text if line and "Tensor-likes" not in line and "Expected" not in line)
        return "" if _as_good(ours, eager, exact, relative, absolute) else said or "differs"
    return ""


def _as_good(a: Any, b: Any, exact: Callable[[], Any], relative: float, absolute: float) -> bool:
    """Whether our result is as near to float64's as eager mode's, or nearly."""
    import torch

    try:
        reference = exact()
    except Exception:
        return False
    if not isinstance(reference, torch.Tensor) or reference.shape != a.shape:
        return False
    if not b.is_floating_point():
        return bool(torch.equal(a, reference.to(a.dtype)))
    wide, theirs, reference = a.double(), b.double(), reference.double()
    same = (wide == reference.to(a.dtype).double()) | (wide == theirs)
    same |= wide.isnan() & (theirs.isnan() | reference.isnan())
    error = (theirs - reference).abs()
    own = error[error.isfinite()].max() if error.isfinite().any() else 0.0
    near = (wide - reference).abs() <= absolute + relative * reference.abs() + SLACK * own
    return bool((same | near).all())


# -- one entry ---------------------------------------------------------------------------------------------------------
def run_entry(name: str, samples: int | None, dtypes: Sequence[str]) -> Result:
    """Samples of an entry: `samples` of them from the first on, or all; no `dtypes`: the first type that it has."""
    import torch

    op = entries()[name]
    result = Result(name)
    start = time.perf_counter()
    for dtype in _types_of(op, dtypes):
        torch.manual_seed(0)
        gradients = dtype.is_floating_point and op.supports_autograd
        for sample in _spread(list(_samples(op, dtype, gradients)), samples):
            result.samples += 1
            _run_sample(op, sample, gradients, result)
    result.seconds = time.perf_counter() - start
    return result


def _types_of(op: Any, dtypes: Sequence[str]) -> list[Any]:
    import torch

    has = op.supported_dtypes("cpu")
    chosen = [getattr(torch, name) for name in dtypes or DTYPES if getattr(torch, name) in has]
    if dtypes:
        return chosen
    return (chosen or sorted(has, key=str))[:1]


def _spread(listed: list[Any], count: int | None) -> list[Any]:
    """`count` of them, from the first on at even steps."""
    if count is None or len(listed) <= count:
        return listed
    return [listed[number * len(listed) // count] for number in range(count)]


def _samples(op: Any, dtype: Any, gradients: bool) -> Iterator[Any]:
    try:
        yield from op.sample_inputs("cpu", dtype, requires_grad=gradients)
    except Exception as error:  # the database's own fault, as a missing library
        print(f"{op.name}: {type(error).__name__}: {error}", file=sys.stderr)


def _copied(sample: Any, dtype: Any = None, gradients: bool = False) -> Any:
    """Input, arguments and keywords of a sample, of their own memory; floats as `dtype`."""
    import torch
    from torch.utils import _pytree

    def each(item: Any) -> Any:
        if dtype is not None and item in (torch.float32, torch.bfloat16, torch.float16):
            return dtype
        if not isinstance(item, torch.Tensor):
            return item if isinstance(item, type | torch.Generator) else copy.copy(item)
        made = item.detach()
        if dtype is not None and made.is_floating_point():
            made = made.to(dtype)
        elif made.layout is torch.strided:
            made = (
                torch.empty_strided(made.shape, made.stride(), dtype=made.dtype).copy_(made) if _dense(made) else made
            )
        return made.requires_grad_(gradients and item.requires_grad)

    return _pytree.tree_map(each, (sample.input, sample.args, sample.kwargs))


def _dense(tensor: Any) -> bool:
    """Whether no two elements lie in one place."""
    reach = 1
    for step, extent in sorted((s, e) for s, e in zip(tensor.stride(), tensor.shape, strict=True) if e > 1):
        if step < reach:
            return False
        reach = step * (extent - 1) + reach
    return not (tensor.is_conj() or tensor.is_neg())


def _run_sample(op: Any, sample: Any, gradients: bool, result: Result) -> None:
    """Forward, then forward and backward."""
    import torch

    function, defined = op.get_op(), op.name not in UNDEFINED

    def forward(given: Any, args: Any, kwargs: Any) -> Any:
        return function(given, *args, **kwargs)

    def plain(run: Any, dtype: Any = None) -> list[Any]:
        torch.manual_seed(0)
        with torch.no_grad():
            return leaves(run(*_copied(sample, dtype)))

    def trained(run: Any, dtype: Any = None) -> list[Any]:
        torch.manual_seed(0)
        return _gradients(run, _copied(sample, dtype, gradients=True), sample)

    for direction, way in (("forward", plain), ("backward", trained))[: 1 + gradients]:
        try:
            eager = way(forward)
        except Exception:
            return  # eager mode refuses the sample
        if not eager:
            return
        fallbacks = result.fallbacks if direction == "forward" else result.backward_fallbacks
        state, reason, found = _attempt(forward, way, fallbacks)
        if not reason:
            reason = differences(op, found, eager, functools.partial(way, forward, torch.float64), defined)
            state = "wrong" if reason else state
        result.meet(direction, state, reason)


def _gradients(run: Any, given: Any, sample: Any) -> list[Any]:
    """Gradients of the inputs, of the sum of the outputs weighted by what is near to one."""
    import torch
    from torch.utils import _pytree

    inputs = [t for t in _pytree.tree_leaves(given) if isinstance(t, torch.Tensor) and t.requires_grad]
    made = leaves(sample.output_process_fn_grad(run(*given)))
    outputs = [t for t in made if isinstance(t, torch.Tensor) and t.requires_grad]
    if not inputs or not outputs:
        return []
    weights = [_weights(t) for t in outputs]
    return [t for t in torch.autograd.grad(outputs, inputs, weights, allow_unused=True) if t is not None]


def _weights(tensor: Any) -> Any:
    import torch

    made = torch.linspace(0.75, 1.25, max(tensor.numel(), 2), dtype=torch.float64)[: tensor.numel()]
    return made.reshape(tensor.shape).to(tensor.dtype)


def _attempt(forward: Any, way: Any, fallbacks: dict[str, str]) -> tuple[str, str, list[Any]]:
    """State, reason and results of a compiled run; what PyTorch ran is noted."""
    import torch
    from torch._dynamo.exc import TorchDynamoException

    from autofusion.frontends.torch.backend import Backend

    torch._dynamo.reset()
    backend = Backend()
    try:
        found = way(torch.compile(forward, backend=backend, fullgraph=True, dynamic=False))
    except TorchDynamoException as error:
        inner = getattr(error, "inner_exception", None)
        crashed = type(error).__name__ == "BackendCompilerFailed"
        return ("crashed" if crashed else "refused"), f"{type(inner or error).__name__}: {inner or error}", []
    except Exception as error:
        return "crashed", f"{type(error).__name__}: {error}", []
    ran = {each.operator: each.reason for program in backend.programs for each in program.fallbacks.values()}
    fallbacks.update(ran)
    return ("fell back" if ran else "compiled"), "", found


# -- the report --------------------------------------------------------------------------------------------------------
def report(results: Sequence[Result]) -> str:
    """A line an entry, by state and name, then the overloads that PyTorch ran and the totals."""
    lines = []
    for each in sorted(results, key=lambda r: (STATES.index(r.state), r.name)):
        ran = sorted({*each.fallbacks, *each.backward_fallbacks})
        detail = each.reason or ", ".join(ran)
        lines.append(f"{each.name:44s} {each.forward:10s} {each.backward or '-':10s} {detail}".rstrip())
    for direction, read in (("forward", "fallbacks"), ("backward", "backward_fallbacks")):
        counted = collections.Counter(name for each in results for name in getattr(each, read))
        lines += ["", f"overloads that PyTorch ran {direction}, and in how many entries:"]
        lines += [f"  {name:56s} {count}" for name, count in counted.most_common()]
    for direction in ("forward", "backward"):
        counted = collections.Counter(getattr(each, direction) or "no gradients" for each in results)
        told = ", ".join(f"{state} {counted[state]}" for state in (*STATES, "no gradients") if counted[state])
        lines += [*([""] if direction == "forward" else []), f"{direction}: {told}"]
    return "\n".join(lines)


def _lost(name: str, state: str, reason: str) -> Result:
    return Result(name, forward=state, reason=reason)


def run(names: Sequence[str], samples: int | None, dtypes: Sequence[str], workers: int = 2) -> list[Result]:
    """The entries' results, in the order of the names."""
    one = functools.partial(run_entry, samples=samples, dtypes=tuple(dtypes))
    limit = SECONDS if samples == 1 else 10 * SECONDS
    found = Pool(one, _lost, workers, limit).results(names)
    return [found[name] for name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser("op_db", __doc__)
    parser.add_argument("--samples", default="1", help="how many of an entry and element type, or all")
    parser.add_argument(
        "--dtypes", default="", help=f"by default the first that an entry has; all: {', '.join(DTYPES)}"
    )
    parser.add_argument("--entries", default="", help="only these, by full name or by name without the variant")
    parser.add_argument("--match", default="", help="only entries whose name contains this")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", help="write all results to this file too")
    given = parser.parse_args(arguments)
    wanted = set(filter(None, given.entries.split(",")))
    names = [
        name
        for name, op in entries().items()
        if given.match in name and (not wanted or name in wanted or op.name in wanted)
    ]
    if not names:
        parser.error(f"no entry {given.entries or given.match!r}")
    dtypes = DTYPES if given.dtypes == "all" else tuple(filter(None, given.dtypes.split(",")))
    os.environ.setdefault("AUTOFUSION_RAISE", "1")  # of the workers: a defect is a crash
    results = run(names, None if given.samples == "all" else int(given.samples), dtypes, given.workers)
    if given.json:
        Path(given.json).write_text(json.dumps([asdict(each) for each in results], indent=1))
    print(report(results))
    return int(any(each.state in ("wrong", "crashed", "hung") for each in results))
