"""PyTorch's operator database on this package: `python -m benchmarks op_db`.

Every entry's samples run in eager mode and by `torch.compile` with this package's backend, forward, and backward where
the entry has gradients. Results are compared by the tolerances of `torch.testing` and the entry's own; where they
differ, eager mode in float64 decides. A case is a part of an entry's samples in one element type: the first sample by
itself, then GRAPH at a time compiled in one graph, and each by itself where anything is wrong with that. Cases run in
worker processes under a time limit: first parts of all entries, then second ones.

    python -m benchmarks op_db                                  a sample an entry, in one element type each
    python -m benchmarks op_db --samples all --dtypes all --json FILE       everything; what FILE has is not run again
    python -m benchmarks op_db --entries softmax,nn.functional.gelu --samples all
"""

from __future__ import annotations

import collections
import copy
import functools
import gc
import itertools
import json
import math
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

SECONDS = 600.0  # a case
GRAPH = 16  # samples in one graph
PARTS = (1, GRAPH, 8 * GRAPH)  # samples of an entry's first case, its second one, all later ones
DTYPES = ("float32", "float64", "bfloat16", "int64", "bool")
WRONG = ("wrong", "crashed", "hung")
STATES = (*WRONG, "refused", "fell back", "compiled", "no sample")
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
    """Samples of an entry. `forward`, `backward`: the worst state of them; backward "" without gradients. `left`:
    samples after these. `fallbacks`, `backward_fallbacks`: overloads that PyTorch ran, and why."""

    name: str
    dtype: str = ""
    part: int = 0
    forward: str = "no sample"
    backward: str = ""
    reason: str = ""
    samples: int = 0
    left: int = 0
    fallbacks: dict[str, str] = field(default_factory=dict)
    backward_fallbacks: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def state(self) -> str:
        """The worse of both where something is wrong, else the forward one."""
        return next((s for s in WRONG if s in (self.forward, self.backward)), self.forward)

    def meet(self, direction: str, state: str, reason: str = "") -> None:
        before = getattr(self, direction) or "no sample"
        if STATES.index(state) < STATES.index(before):
            setattr(self, direction, state)
            if reason and (not self.reason or state in WRONG):
                self.reason = " ".join(reason.split())[:400]

    def add(self, other: Result) -> None:
        """Other samples of the same entry."""
        for direction in ("forward", "backward"):
            if state := getattr(other, direction):
                self.meet(direction, state, other.reason)
        self.samples += other.samples
        self.fallbacks.update(other.fallbacks)
        self.backward_fallbacks.update(other.backward_fallbacks)
        self.seconds += other.seconds


@functools.cache
def entries() -> dict[str, Any]:
    """The entries by their full names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as package
    package.wrapper_set_seed = _unseeded
    gc.freeze()  # PyTorch's own objects are many
    return {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in package.op_db}


def _unseeded(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What entries of random operators call: the database's own seeds the generator, which Dynamo does not trace; here
    each run is seeded from outside."""
    return function(*args, **kwargs)


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
    op: Any,
    ours: Sequence[Any],
    eager: Sequence[Any],
    exact: Callable[[], Sequence[Any]],
    defined: bool = True,
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
        text = wrong_tensor(
            a,
            b,
            lambda number=number: exact()[number],  # type: ignore[misc]
            *tolerance(op, b.dtype),
        )
        if text:
            return f"result {number} {b.dtype}{list(b.shape)}: {text}"
    return ""


def wrong_tensor(
    ours: Any,
    eager: Any,
    exact: Callable[[], Any],
    relative: float | None = None,
    absolute: float | None = None,
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
        try:
            reference = exact()
        except Exception:
            return said or "differs"
        return "" if _as_good(ours, eager, reference, relative, absolute) else said or "differs"
    return ""


def _as_good(a: Any, b: Any, reference: Any, relative: float, absolute: float) -> bool:
    """Whether our result is as near to float64's as eager mode's, or nearly."""
    import torch

    if not isinstance(reference, torch.Tensor) or reference.shape != a.shape:
        return False
    if not b.is_floating_point():
        return bool(torch.equal(a, reference.to(a.dtype)))
    wide, theirs, reference = a.double(), b.double(), reference.double()
    same = (wide == reference.to(a.dtype).double()) | (wide == theirs)
    same |= wide.isnan() & (theirs.isnan() | reference.isnan())
    own = _error(b, reference)
    near = (wide - reference).abs() <= absolute + relative * reference.abs() + SLACK * own
    return bool((same | near).all())


def _error(eager: Any, exact: Any) -> float:
    """The greatest finite one."""
    error = (eager.double() - exact.double()).abs()
    return float(error[error.isfinite()].max()) if error.isfinite().any() else 0.0


# -- one case ----------------------------------------------------------------------------------------------------------
def case_of(name: str, dtype: str, part: int) -> str:
    return f"{name} {dtype} {part}"


def run_case(case: str) -> Result:
    import torch

    name, kind, part = case.rsplit(" ", 2)
    op, result, start = entries()[name], Result(name, kind, int(part)), time.perf_counter()
    dtype = getattr(torch, kind)
    gradients = dtype.is_floating_point and op.supports_autograd
    torch.manual_seed(0)
    listed = list(_samples(op, dtype, gradients))
    chosen, result.left = part_of(len(listed), result.part)
    result.samples = len(chosen)
    for first in range(0, len(chosen), GRAPH):
        _run_samples(op, [listed[number] for number in chosen[first : first + GRAPH]], gradients, result)
    result.seconds = time.perf_counter() - start
    return result


def part_of(count: int, part: int) -> tuple[list[int], int]:
    """The positions of a part of `count` samples, and how many come after them. Parts hold samples from everywhere."""
    order = sorted(range(count), key=lambda number: number * 0.6180339887498949 % 1)
    last = _first_of(part + 1)
    return sorted(order[_first_of(part) : last]), max(count - last, 0)


def _first_of(part: int) -> int:
    """How many samples the parts before it have."""
    return sum(PARTS[:part]) + max(part - len(PARTS), 0) * PARTS[-1]


def types_of(op: Any, dtypes: Sequence[str]) -> list[str]:
    """The element types of `dtypes` that an entry has; without any, the first that it has."""
    import torch

    has = op.supported_dtypes("cpu")
    chosen = [name for name in dtypes or DTYPES if getattr(torch, name) in has]
    if dtypes:
        return chosen
    return (chosen or [str(each).removeprefix("torch.") for each in sorted(has, key=str)])[:1]


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


def _run_samples(op: Any, samples: Sequence[Any], gradients: bool, result: Result) -> None:
    """Forward, then forward and backward: all in one graph, and each by itself where that is wrong or refused, or where
    random numbers are drawn: what one sample draws is not for the next one to tell."""
    for direction in ("forward", "backward")[: 1 + gradients]:
        kept = [sample for sample in samples if _eager_takes(op, sample, direction)]
        if not kept:
            continue
        if len(kept) > 1 and _draws(op, kept, direction):
            for sample in kept:
                state, reason = _run_together(op, [sample], direction, result)
                result.meet(direction, state, reason and f"{direction} of {_said(sample)}: {reason}")
            continue
        state, reason = _run_together(op, kept, direction, result)
        if len(kept) > 1 and state in (*WRONG, "refused"):
            alone = [(sample, *_run_together(op, [sample], direction, result)) for sample in kept]
            for sample, each, why in alone:
                result.meet(direction, each, why and f"{direction} of {_said(sample)}: {why}")
            if state == "refused" or any(each in WRONG for _, each, _ in alone):
                continue
        about = _said(kept[0]) if len(kept) == 1 else f"{len(kept)} samples in one graph"
        result.meet(direction, state, reason and f"{direction} of {about}: {reason}")


def _said(sample: Any) -> str:
    """A sample in few words."""
    import torch
    from torch.utils import _pytree

    def each(item: Any) -> Any:
        return f"{str(item.dtype)[6:]}{list(item.shape)}" if isinstance(item, torch.Tensor) else item

    given, args, kwargs = _pytree.tree_map(each, (sample.input, sample.args, sample.kwargs))
    told = [str(given), *map(str, args), *(f"{key}={value}" for key, value in kwargs.items())]
    return f"({', '.join(told)})"[:160]


def _eager_takes(op: Any, sample: Any, direction: str) -> bool:
    """Whether eager mode gives results of a sample."""
    try:
        return bool(_results(op, [sample], direction))
    except Exception:
        return False


def _draws(op: Any, samples: Sequence[Any], direction: str) -> bool:
    """Whether eager mode draws random numbers."""
    import torch

    _results(op, samples, direction)
    return not torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(0).get_state())


def _results(op: Any, samples: Sequence[Any], direction: str, run: Any = None, dtype: Any = None) -> list[Any]:
    """What samples give; `run`: a function of all of them, by default eager mode."""
    import torch

    torch.manual_seed(0)
    run = run or _together(op)
    if direction == "forward":
        with torch.no_grad():
            return leaves(run([_copied(sample, dtype, False) for sample in samples]))
    return _gradients(run, [_copied(sample, dtype, True) for sample in samples], samples)


def _together(op: Any) -> Any:
    function = op.get_op()

    def forward(samples: Any) -> Any:
        return [function(given, *args, **kwargs) for given, args, kwargs in samples]

    return forward


def _run_together(op: Any, samples: Sequence[Any], direction: str, result: Result) -> tuple[str, str]:
    """State and reason of samples in one graph."""
    import torch

    eager = _results(op, samples, direction)
    fallbacks = result.fallbacks if direction == "forward" else result.backward_fallbacks
    state, reason, found = _attempt(_together(op), functools.partial(_results, op, samples, direction), fallbacks)
    if not reason:
        exact = functools.cache(lambda: _results(op, samples, direction, dtype=torch.float64))

        reason = differences(op, found, eager, exact, op.name not in UNDEFINED)
        state = "wrong" if reason else state
    return state, reason


def _gradients(run: Any, given: Sequence[Any], samples: Sequence[Any]) -> list[Any]:
    """Gradients of the inputs, of the sum of the outputs weighted by what is near to one."""
    import torch
    from torch.utils import _pytree

    inputs = [t for t in _pytree.tree_leaves(given) if isinstance(t, torch.Tensor) and t.requires_grad]
    made = [
        leaf
        for sample, found in zip(samples, run(given), strict=True)
        for leaf in leaves(sample.output_process_fn_grad(found))
    ]
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
        ours = type(error).__name__ == "BackendCompilerFailed" and _pytorch_compiles(forward, way)
        return ("crashed" if ours else "refused"), f"{type(inner or error).__name__}: {inner or error}", []
    except Exception as error:
        state = "crashed" if _pytorch_compiles(forward, way) else "refused"
        return state, f"{type(error).__name__}: {error}", []
    ran = {each.operator: each.reason for program in backend.programs for each in program.fallbacks.values()}
    fallbacks.update(ran)
    return ("fell back" if ran else "compiled"), "", found


def _pytorch_compiles(forward: Any, way: Any) -> bool:
    """Whether PyTorch compiles it where no backend of anyone's is involved."""
    import torch

    torch._dynamo.reset()
    try:
        way(torch.compile(forward, backend="aot_eager", fullgraph=True, dynamic=False))
    except Exception:
        return False
    return True


# -- the report --------------------------------------------------------------------------------------------------------
def report(results: Sequence[Result]) -> str:
    """A line an entry, by state and name, then the overloads that PyTorch ran and the totals."""
    lines = []
    merged = sums(results)
    for each in sorted(merged, key=lambda r: (STATES.index(r.state), r.name)):
        ran = sorted({*each.fallbacks, *each.backward_fallbacks})
        detail = each.reason or ", ".join(ran)
        lines.append(f"{each.name:44s} {each.forward:10s} {each.backward or '-':10s} {detail}".rstrip())
    for direction, read in (("forward", "fallbacks"), ("backward", "backward_fallbacks")):
        counted = collections.Counter(name for each in merged for name in getattr(each, read))
        lines += ["", f"overloads that PyTorch ran {direction}, and in how many entries:"]
        lines += [f"  {name:56s} {count}" for name, count in counted.most_common()]
    return "\n".join([*lines, "", totals(results)])


def totals(results: Sequence[Result]) -> str:
    """Of each element type, and of all, how many entries are in which state."""
    lines = []
    kinds = [kind for kind in DTYPES if any(each.dtype == kind for each in results)]
    kinds += sorted({each.dtype for each in results} - {*DTYPES, ""})
    for kind in [*kinds, "all types"]:
        merged = sums([each for each in results if kind in (each.dtype, "all types")])
        samples, left = sum(each.samples for each in merged), sum(each.left for each in merged)
        lines.append(f"{kind}: {len(merged)} entries, {samples} samples" + (f", {left} left out" if left else ""))
        for direction in ("forward", "backward"):
            counted = collections.Counter(getattr(each, direction) or "no gradients" for each in merged)
            told = ", ".join(f"{state} {counted[state]}" for state in (*STATES, "no gradients") if counted[state])
            lines.append(f"  {direction}: {told}")
    return "\n".join(lines)


def sums(results: Sequence[Result]) -> list[Result]:
    """Of each entry all its results in one."""
    found: dict[str, Result] = {}
    left: dict[tuple[str, str], int] = {}
    for each in sorted(results, key=lambda r: r.part):
        left[each.name, each.dtype] = each.left
        if each.name in found:
            found[each.name].add(each)
        else:
            found[each.name] = copy.deepcopy(each)
    for name, result in found.items():
        result.left = sum(count for (entry, _), count in left.items() if entry == name)
    return list(found.values())


def run(
    names: Sequence[str],
    samples: int | None,
    dtypes: Sequence[str],
    workers: int = 2,
    seconds: float = math.inf,
    record: Path | None = None,
) -> list[Result]:
    """The results of entries, by case. `samples`: how many of an entry and element type, at least; None for all.
    `seconds`: what is not begun by then is left out. `record`: a file of results; its own are not made again."""
    found = _recorded(record)
    kinds = [(name, dtype) for name in names for dtype in types_of(entries()[name], dtypes)]

    def following(name: str, dtype: str, part: int = 0) -> str | None:
        """The next case of an entry that has no result, if any is wanted."""
        while (case := case_of(name, dtype, part)) in found:
            if not found[case].left or (samples is not None and _first_of(part + 1) >= samples):
                return None
            part += 1
        return case

    first = [case for kind in kinds if (case := following(*kind)) is not None]
    left = collections.deque(sorted(first, key=lambda case: int(case.rsplit(" ", 1)[1])))
    start = time.monotonic()
    for done, (case, result) in enumerate(Pool(run_case, _lost, workers, SECONDS).stream(left), 1):
        before = found.get(case_of(result.name, result.dtype, result.part - 1))
        if not result.samples and before is not None:  # lost: those after it go on
            result.left = max(before.left - PARTS[min(result.part, 2)], 0)
        found[case] = result
        if record is not None:
            with record.open("a") as file:
                print(json.dumps(asdict(result)), file=file)
        if (more := following(result.name, result.dtype, result.part)) is not None:
            left.append(more)
        if time.monotonic() - start > seconds:
            left.clear()
        if done % 50 == 0:
            print(f"{done} cases done, {len(left)} known left", file=sys.stderr, flush=True)
    wanted = set(kinds)
    return [each for each in found.values() if (each.name, each.dtype) in wanted]


def _lost(case: str, state: str, reason: str) -> Result:
    name, dtype, part = case.rsplit(" ", 2)
    return Result(name, dtype, int(part), forward=state, reason=reason)


def _recorded(record: Path | None) -> dict[str, Result]:
    """The results of a file, by case."""
    lines = record.read_text().splitlines() if record is not None and record.exists() else []
    made = [Result(**json.loads(line)) for line in lines]
    return {case_of(each.name, each.dtype, each.part): each for each in made}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser("op_db", __doc__)
    parser.add_argument("--samples", default="1", help="how many of an entry and element type at least, or all")
    parser.add_argument(
        "--dtypes", default="", help=f"by default the first that an entry has; all: {', '.join(DTYPES)}"
    )
    parser.add_argument("--entries", default="", help="only these, by full name or by name without the variant")
    parser.add_argument("--match", default="", help="only entries whose name contains this")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing after so long")
    parser.add_argument("--json", type=Path, help="a file of a line a case; cases that it has are not run again")
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
    samples = None if given.samples == "all" else int(given.samples)
    os.environ.setdefault("AUTOFUSION_RAISE", "1")  # of the workers: a defect is a crash
    results = run(names, samples, dtypes, given.workers, given.minutes * 60, given.json)
    print(report(results))
    return int(any(each.state in WRONG for each in results))
