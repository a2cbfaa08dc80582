"""PyTorch programs compiled by this package's backend, against eager PyTorch."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import re
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: python -m pip install torch")

import autofusion  # noqa: E402
from autofusion.errors import ArgumentError, AutofusionError, TargetError  # noqa: E402
from autofusion.runtime import dispatch_keys  # noqa: E402
from autofusion.torch import Backend, DefectWarning, fuse  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
]


def compiled(function: Callable[..., Any], backend: Backend, **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend=backend, fullgraph=True, **options)  # type: ignore[no-any-return]


def copies(arguments: Any) -> list[Any]:
    """Arguments of the same values and layout, each view in a storage of its own as it lies in the old one."""
    made = []
    for each in arguments:
        if not torch.is_tensor(each):
            made.append(each)
            continue
        storage = each.detach().untyped_storage()
        base = torch.empty(storage.nbytes(), dtype=torch.uint8).copy_(
            torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),))
        )
        again = torch.empty(0, dtype=each.dtype).set_(
            base.untyped_storage(), each.storage_offset(), each.shape, each.stride()
        )
        made.append(again.requires_grad_(each.requires_grad))
    return made


def check(function: Callable[..., Any], *arguments: Any, fallbacks: int = 0, **options: Any) -> Backend:
    """Results, their layouts and what the arguments hold afterwards are eager's; no result shares memory with another
    or an argument where eager's does not."""
    backend = Backend()
    ours, theirs = copies(arguments), copies(arguments)
    found = compiled(function, backend, **options)(*ours)
    wanted = function(*theirs)
    found = found if isinstance(found, tuple | list) else (found,)
    wanted = wanted if isinstance(wanted, tuple | list) else (wanted,)
    assert len(found) == len(wanted)
    for ours_each, theirs_each in zip((*found, *ours), (*wanted, *theirs), strict=True):
        if torch.is_tensor(theirs_each):
            torch.testing.assert_close(ours_each, theirs_each, equal_nan=True)
            assert ours_each.stride() == theirs_each.stride()
    assert shared(found, ours) == shared(wanted, theirs)
    assert sum(each.count for each in backend.explain().fallbacks) == fallbacks, backend.explain()
    return backend


def shared(results: Any, arguments: Any) -> list[list[int]]:
    """By result, which of results and arguments have its storage."""
    tensors = [each for each in (*results, *arguments) if torch.is_tensor(each)]
    places = [each.untyped_storage().data_ptr() if each.numel() else id(each) for each in tensors]
    return [[n for n, place in enumerate(places) if place == own] for own in places[: len(results)]]


# -- views, aliasing, mutation -----------------------------------------------------------------------------------------
STRIDED = {
    "transposed": lambda: torch.randn(7, 5).t(),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "stride 0": lambda: torch.randn(5, 1).expand(5, 7),
    "every second": lambda: torch.randn(9, 14)[::2, 1::2],
    "offset": lambda: torch.randn(64)[3:40],
    "overlapping": lambda: torch.randn(16).as_strided((5, 4), (2, 1)),
    "rank 8": lambda: torch.randn(2, 1, 2, 1, 2, 1, 2, 3).permute(7, 6, 5, 4, 3, 2, 1, 0),
    "0-d": lambda: torch.randn(()),
    "empty": lambda: torch.randn(3, 0, 2),
    "one element": lambda: torch.randn(1, 1, 1),
}


@pytest.mark.parametrize("kind", STRIDED)
def test_any_strides_come_in_and_eagers_go_out(kind: str) -> None:
    check(lambda x: (x.exp() * 2 + x, x.relu()), STRIDED[kind]())


@pytest.mark.parametrize("kind", ["transposed", "every second", "overlapping", "channels last"])
def test_folds_of_strided_tensors(kind: str) -> None:
    check(lambda x: (x.sum(-1), x.softmax(0), x - x.mean(dim=1, keepdim=True)), STRIDED[kind]())


@pytest.mark.parametrize(
    ("function", "fallbacks"),
    [
        (lambda x: x.as_strided((2,), (1,)) * 2, 0),
        (lambda x: x.as_strided((2,), (1,), 1) * 2, 1),
        (lambda x: torch.as_strided_copy(x, (2, 2), (1, 2), 3), 1),
        (lambda x: (x * 2)[2:].as_strided((2,), (1,), 3) * 3, 0),
        (lambda x: (x * 2)[2:].as_strided((2,), (1,)) * 3, 0),
        (lambda x: (x * 2)[2:].as_strided((2,), (1,), 0) * 3, 1),
        (lambda x: (x * 2).split(3)[1].as_strided((2,), (1,), 4) * 3, 0),
    ],
)
def test_offsets_count_from_where_a_storage_begins(function: Any, fallbacks: int) -> None:
    """No guard tells where an argument begins in its own: one compile serves all."""
    base, backend = torch.arange(20.0), Backend()
    call = compiled(function, backend)
    for first in (4, 2, 0):
        torch.testing.assert_close(call(base[first : first + 8]), function(base[first : first + 8]))
    assert sum(each.count for each in backend.explain().fallbacks) == fallbacks


def test_a_fresh_result_is_no_argument() -> None:
    check(lambda x: (x * 1, x + 0, x / 1, x.clone()), torch.randn(8))


def test_equal_results_are_two_tensors() -> None:
    check(lambda x: (x + 1, x + 1), torch.randn(8))


def test_results_that_are_views_of_arguments_and_of_each_other() -> None:
    check(lambda x: (x.t(), x[1:], x), torch.randn(4, 5))
    check(lambda x: ((y := x * 2), y.t(), y.view(-1)[3:]), torch.randn(4, 5))


@pytest.mark.parametrize("given", [True, False], ids=["of an argument", "of an intermediate"])
@pytest.mark.parametrize(
    "parts",
    [
        lambda y: y.split(2),
        lambda y: y.split([1, 3], 1),
        lambda y: y.chunk(2, -1),
        lambda y: y.unbind(0),
        lambda y: torch.tensor_split(y, 3, 1),
        lambda y: y.chunk(2)[1].unbind(1),
    ],
)
def test_several_views_share_memory(parts: Any, given: bool) -> None:
    def function(x: Any) -> Any:
        y = x if given else x * 2
        made = parts(y)
        return (y, *made, made[0].t() if made[0].dim() == 2 else made[0], made[-1] + 1)

    check(function, torch.randn(4, 4))
    x = torch.randn(4, 4)
    found, wanted = compiled(function, Backend())(x.clone()), function(x.clone())
    for results in (found, wanted):
        results[1].add_(100)
    torch.testing.assert_close(found, wanted)
    assert [each.storage_offset() for each in found] == [each.storage_offset() for each in wanted]


def test_several_views_cost_no_copy() -> None:
    """Of one product, the parts are read where they lie."""
    backend = check(
        lambda x, w: [each.transpose(0, 1) for each in (x @ w).chunk(3, -1)], torch.randn(4, 5), torch.randn(5, 6)
    )
    (program,) = backend.programs
    assert [len(launch.region.writes) for launch in program.launches] == [1]
    check(lambda x, w: sum(each.exp() for each in (x @ w).chunk(3, -1)), torch.randn(4, 5), torch.randn(5, 6))


def test_an_inner_value_is_a_result_too() -> None:
    def function(x: Any) -> Any:
        y = x.exp()
        return y, (y + 1).sqrt()

    check(function, torch.randn(33))


def test_mutation_in_the_order_of_the_source() -> None:
    def function(x: Any, y: Any) -> Any:
        before = x.clone()
        x.add_(1)
        y.copy_(x * 2)
        x.mul_(y)
        return before + x

    check(function, torch.randn(16), torch.randn(16))


def test_overlapping_copy_within_a_tensor() -> None:
    def function(x: Any) -> Any:
        x[1:] = x[:-1].clone()
        return x * 2

    check(function, torch.randn(16))


def test_mutation_through_a_view() -> None:
    def function(x: Any) -> Any:
        x[:, 1].zero_()
        x.t()[0].add_(3)
        return x.sum()

    check(function, torch.randn(4, 5))


def test_writes_to_a_strided_argument() -> None:
    def function(x: Any) -> Any:
        x.mul_(2)
        return x + 1

    check(function, torch.randn(9, 14)[::2, 1::2])


# -- tensors whose memory does not hold their elements as they are -----------------------------------------------------
def complex_of(x: Any) -> Any:
    return torch.complex(torch.zeros_like(x), x).conj()


STRANGE = {
    "negative": torch._neg_view,
    "negative, every second": lambda x: complex_of(x).imag,
    "negative, dense": lambda x: complex_of(x).imag.as_strided(x.shape, (1,)),
    "negative, one element": lambda x: complex_of(x[:1]).imag.expand(x.shape),
    "negative parameter": lambda x: torch.nn.Parameter(torch._neg_view(x)),
    "zero": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
}


class Affine(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any, y: Any) -> Any:
        return x * 2 + y


@pytest.mark.parametrize("dynamic", [False, True], ids=["known", "open"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", STRANGE)
def test_signs_of_views_are_seen(kind: str, dtype: Any, dynamic: bool) -> None:
    if "negative, " in kind and dtype is torch.bfloat16:
        pytest.skip("there are no complex numbers of this type")
    plain = torch.arange(1, 17, dtype=dtype)
    sizes = {name: {0: torch.export.Dim("n")} for name in "xy"} if dynamic else None
    module = autofusion.compile(Affine(), (plain, plain), dynamic=sizes)
    with torch.no_grad():
        strange = STRANGE[kind](plain)
        for given in ((strange, plain), (plain, strange), (strange, strange)):
            assert torch.equal(module(*given), Affine()(*given))
            assert torch.equal(module(plain, plain), plain * 3)
        run = compiled(lambda x, y: x * 2 + y, Backend(), dynamic=dynamic)
        assert torch.equal(run(plain, plain), plain * 3)
        assert torch.equal(run(strange, plain), Affine()(strange, plain))
    assert module.stats["calls"] == 6


def test_signs_cost_no_call_of_pytorch() -> None:
    """PyTorch keeps a tensor's keys where they are looked for."""
    assert dispatch_keys.place_of(torch.Tensor) not in (None, (0, 0, 0))
    assert dispatch_keys.place_of(torch.nn.Parameter) == dispatch_keys.place_of(torch.Tensor)
    assert dispatch_keys.place_of(int) == (0, 0, 0)


def test_tensors_without_memory_are_refused() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.two_tensor import TwoTensor

    plain = torch.randn(16)
    module = autofusion.compile(Affine(), (plain, plain))
    with FakeTensorMode():
        fake = torch.empty(16)
    for strange in (fake, TwoTensor(plain, plain), plain.to_sparse(), torch.empty(16, device="meta")):
        with pytest.raises(ArgumentError, match="dispatch keys"):
            module(plain, strange)
    for complex_number in (torch.zeros(16, dtype=torch.complex64), complex_of(plain)):
        with pytest.raises(AutofusionError, match="element type 'complex64' is not supported"):
            module(plain, complex_number)


def test_inference_tensors_and_subclasses_are_ordinary() -> None:
    class Sub(torch.Tensor):  # type: ignore[misc]
        pass

    plain = torch.randn(16)
    module = autofusion.compile(Affine(), (plain, plain))
    with torch.inference_mode():
        inferred = torch.ones(16)
        found = module(inferred, plain)
    assert torch.equal(found, Affine()(inferred, plain))
    assert torch.equal(module(plain.as_subclass(Sub), plain), Affine()(plain, plain))
    assert module.program.launches[0].compiled.executable.direct.calls == 2


# -- integers, booleans, casts -----------------------------------------------------------------------------------------
def test_integers_wrap_at_their_width() -> None:
    check(lambda x: x + x, torch.tensor([200, 100, 255], dtype=torch.uint8))
    check(lambda x: (x * x, x - 1, -x), torch.tensor([-128, 127, 100], dtype=torch.int8))


def test_division_and_remainder_of_integers() -> None:
    x, y = torch.tensor([7, -7, 7, -7]), torch.tensor([2, 2, -2, -2])
    check(lambda x, y: (x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc"), x / y), x, y)


def test_floor_division_of_floats() -> None:
    check(lambda x, y: x // y, torch.tensor([1.0, 0.5, 6.0]), torch.tensor([0.1, 0.1, 0.2]))


def test_types_meet_as_in_pytorch() -> None:
    i, f, h, b = torch.arange(4), torch.randn(4), torch.randn(4).half(), torch.tensor([True, False, True, True])
    check(lambda i, f, h, b: (i + f, h + f, h * 0.1, b + b, b * i, i + 1.5, h + torch.tensor(2.0), i > 0.5), i, f, h, b)


def test_narrow_floats_meet_numbers_that_they_cannot_hold() -> None:
    x = torch.randn(100).bfloat16()
    check(lambda x: (x * 0.1, x + 1e-3, x / 3), x)


def test_casts_round_and_truncate() -> None:
    x = torch.tensor([1.7, -1.7, 3.5, 1e5, 70000.0])
    check(lambda x: (x.bfloat16().float(), x.half(), x.int(), x.bool()), x)


def test_indices_out_of_range_raise() -> None:
    with pytest.raises(IndexError):
        compiled(lambda x, i: x[i] + 1, Backend())(torch.randn(4), torch.tensor([0, 9]))


def test_negative_indices_count_from_the_end() -> None:
    check(lambda x, i: x[i], torch.randn(4, 3), torch.tensor([-1, 0, -4]))


# -- structure ---------------------------------------------------------------------------------------------------------
def test_what_is_not_compiled_runs_in_pytorch_between_launches() -> None:
    def function(x: Any) -> Any:
        y = x.exp() + 1
        z = torch.sort(y)[0]
        return (z * 2).relu() + y

    backend = check(function, torch.randn(5, 9), fallbacks=1)
    (program,) = backend.explain().programs
    assert len(program.launches) == 2
    (fallback,) = program.fallbacks
    assert (fallback.operator, fallback.count) == ("sort.default", 1)
    assert fallback.share is not None and 0 < fallback.share < 1
    assert "sort.default" in str(backend.explain())


WHY = {
    "PyTorch's kernel sorts": lambda x: torch.topk(x, 2)[0],
    "there are no complex element types": lambda x: torch.fft.rfft(x).abs(),
    "random numbers are those of PyTorch": lambda x: torch.rand_like(x),
    "an algorithm of a library": lambda x: torch.histc(x),
    "no rows of the op table": lambda x: torch.nextafter(x, x + 1),
    "docs/torch.md": lambda x: torch.segment_reduce(x[0], "sum", lengths=torch.tensor([2, 3])),
}


@pytest.mark.parametrize("text", WHY)
def test_reasons_are_of_the_operator(text: str) -> None:
    backend = Backend()
    compiled(WHY[text], backend)(torch.randn(4, 5))
    reasons = [each.reason for each in backend.explain().fallbacks]
    assert any(text in reason for reason in reasons), reasons


def test_operators_of_others_are_told() -> None:
    from autofusion.frontends.torch import uncompiled

    assert "an operator of prims" in uncompiled.why(torch.ops.prims.sin.default)


def test_no_merge_across_an_operator_outside() -> None:
    """a -> sort -> c and a -> c: the two of ours are two launches, in order."""

    def function(x: Any) -> Any:
        a = x * 2
        b = torch.sort(a)[0]
        return a + b, torch.sort(b + 1)[0] - a

    backend = check(function, torch.randn(17), fallbacks=2)
    (program,) = backend.explain().programs
    assert len(program.launches) <= 3


def test_long_chains_of_shared_values() -> None:
    def function(a: Any, b: Any) -> Any:
        for _ in range(60):
            a, b = a + b, a * b * 0.1
        return a, b

    check(function, torch.rand(4) * 0.1, torch.rand(4) * 0.1)


@pytest.mark.parametrize("count", [0, 1])
def test_results_of_no_argument_are_tensors(count: int) -> None:
    """The launch reads none of the arguments."""
    check(lambda *given: torch.arange(4) * 2, *[torch.ones(2)] * count)


def test_threads_at_once() -> None:
    function = compiled(lambda x: (x.sin() + 1).softmax(-1), Backend())
    inputs = [torch.randn(8, 100) for _ in range(8)]
    function(inputs[0])
    found: dict[int, Any] = {}

    def work(n: int) -> None:
        for _ in range(20):
            found[n] = function(inputs[n])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for n, x in enumerate(inputs):
        torch.testing.assert_close(found[n], (x.sin() + 1).softmax(-1))


# -- training ----------------------------------------------------------------------------------------------------------
def mlp() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4))


def test_forward_and_backward_are_compiled() -> None:
    ours, theirs = mlp(), mlp()
    theirs.load_state_dict(ours.state_dict())
    backend = Backend()
    step = torch.compile(ours, backend=backend)
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (ours, theirs)]
    for _ in range(5):
        x, y = torch.randn(6, 12), torch.randn(6, 4)
        losses = [(model(x) - y).square().mean() for model in (step, theirs)]
        torch.testing.assert_close(losses[0], losses[1])
        for loss, optimiser in zip(losses, optimisers, strict=True):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    report = backend.explain()
    assert [len(each.launches) for each in report.programs] == [1, 1]
    assert not report.fallbacks


def test_dropout_in_training_is_reproducible() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 4))
    step = torch.compile(model, backend=Backend())
    x = torch.randn(6, 12)
    grads = []
    for _ in range(2):
        torch.manual_seed(5)
        model.zero_grad()
        step(x).sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    torch.manual_seed(5)
    model.zero_grad()
    model(x).sum().backward()
    for first, again, p in zip(*grads, model.parameters(), strict=True):
        assert torch.equal(first, again)
        torch.testing.assert_close(first, p.grad)


RANDOM: dict[str, Callable[[Any], Any]] = {
    "several": lambda x: torch.nn.functional.dropout(x * 2, 0.5) + torch.rand_like(x),
    "dropout": lambda x: torch.nn.functional.dropout(x * 2, 0.3) + 1,
    "alpha dropout": lambda x: torch.nn.functional.alpha_dropout(x * 2, 0.3) + 1,
    "feature dropout": lambda x: torch.nn.functional.dropout2d(x * 2, 0.3) + 1,
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()) + x,
    "bernoulli of one": lambda x: x.bernoulli(0.3) + x,
    "bernoulli in place": lambda x: x.clone().bernoulli_(0.3) + x,
    "uniform": lambda x: torch.rand_like(x) + x.clone().uniform_(-1, 1),
    "normal": lambda x: torch.randn_like(x) + x.clone().normal_(1, 2),
    "normal of tensors": lambda x: torch.normal(x, x.exp()) + 1,
    "exponential": lambda x: x.clone().exponential_(2) + 1,
    "randomised relu": lambda x: torch.nn.functional.rrelu(x - 0.5, training=True) + 1,
    "integers": lambda x: x + torch.randint(0, 9, x.shape),
    "permutation": lambda x: x[torch.randperm(x.shape[0])] + 1,
    "gumbel": lambda x: torch.nn.functional.gumbel_softmax(x) + 1,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", RANDOM)
def test_random_numbers_are_eagers(kind: str, dtype: Any) -> None:
    """From the same state of the generator, which is left in the same state; sizes on both sides of what PyTorch draws
    in vectors."""
    for shape in ((2, 3, 2), (7, 5, 33)):
        x = torch.randn(shape).to(dtype)
        found, states = [], []
        for function in (RANDOM[kind], compiled(RANDOM[kind], Backend(numerics="strict"))):
            torch.manual_seed(3)
            found.append(function(x))
            states.append(torch.get_rng_state())
        torch.testing.assert_close(found[1], found[0])
        assert torch.equal(*states)


@pytest.mark.parametrize("first", ["inside", "outside"])
def test_tangents_are_eagers(first: str) -> None:
    """Of the level in which the code is called, wherever it was compiled."""
    forward_mode, backend = torch.autograd.forward_ad, Backend()
    step = torch.compile(lambda x, y: ((x.sin() * y).sum(), y.exp()), backend=backend)
    x, y, tangent = torch.randn(5), torch.randn(5), torch.randn(5)
    if first == "outside":
        step(x, y)
    for _ in range(2):
        with forward_mode.dual_level():
            found = [forward_mode.unpack_dual(each) for each in step(forward_mode.make_dual(x, tangent), y)]
            assert found[1].tangent is None
            torch.testing.assert_close(found[0].tangent, (x.cos() * y * tangent).sum())
            torch.testing.assert_close([each.primal for each in found], [(x.sin() * y).sum(), y.exp()])
            torch.testing.assert_close(step(x, y)[1], y.exp())
    torch.testing.assert_close(step(x, y)[0], (x.sin() * y).sum())
    assert sum(each.calls for each in backend.explain().programs) == 3 + (first == "outside")
    primal, tangents = torch.func.jvp(lambda x: step(x, y)[0], (x,), (tangent,))
    torch.testing.assert_close((primal, tangents), ((x.sin() * y).sum(), (x.cos() * y * tangent).sum()))


def test_autocast() -> None:
    model, x = mlp().eval(), torch.randn(6, 12)
    step = torch.compile(model, backend=Backend())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, wanted = step(x), model(x)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("given", ["bfloat16", "mixed", "float32"])
def test_batch_norm_in_training(given: str) -> None:
    """In bfloat16 throughout, eager mode normalises by statistics rounded to that type: PyTorch does that, and its
    result is eager's to the bit, and so is the gradient of few elements. Elsewhere it is compiled."""
    wide = torch.float32 if given == "mixed" else getattr(torch, given)
    narrow = torch.bfloat16 if given == "mixed" else wide
    model = torch.nn.BatchNorm1d(3).to(wide)
    other = copy.deepcopy(model)
    backend = Backend()
    step = torch.compile(model, backend=backend)
    x = torch.tensor([[-7.9375, 1.0, 3.0], [3.609375, 1.0, -2.0]], dtype=narrow)
    first, second = x.clone().requires_grad_(), x.clone().requires_grad_()
    weights = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 4.0]], dtype=narrow)
    found, wanted = step(first), other(second)
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    exact = given == "bfloat16"
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 0.016, "atol": 0.02} if given == "mixed" else {}
    torch.testing.assert_close(found, wanted, **tolerance)
    torch.testing.assert_close(first.grad, second.grad, **tolerance)
    for one, two in zip((*model.parameters(), *model.buffers()), (*other.parameters(), *other.buffers()), strict=True):
        torch.testing.assert_close(one, two)
    fallbacks = [each.operator for each in backend.explain().fallbacks]
    assert fallbacks == ["_native_batch_norm_legit_functional.default"] * exact


# -- dynamic shapes ----------------------------------------------------------------------------------------------------
def test_one_compile_serves_all_lengths() -> None:
    backend = Backend()
    function = compiled(lambda x, y: (x @ y.transpose(1, 2)).softmax(-1).sum(1), backend, dynamic=True)
    for length in range(3, 33):
        x, y = torch.randn(2, length, 8), torch.randn(2, length, 8)
        torch.testing.assert_close(function(x, y), (x @ y.transpose(1, 2)).softmax(-1).sum(1))
    report = backend.explain()
    assert len(report.programs) == 1 and not report.recompiles and not report.fallbacks


def test_recompiles_are_counted_and_say_why() -> None:
    backend = Backend()
    function = torch.compile(lambda x: x.exp() + 1, backend=backend, dynamic=False)
    for length in (3, 4, 5):
        function(torch.randn(length))
    report = backend.explain()
    assert len(report.programs) == 3
    assert len(report.recompiles) == 2
    assert all("size mismatch" in reason for reason in report.recompiles)
    assert "expected 3, actual 4" in str(report)


def test_reasons_are_kept_and_equal_ones_are_several() -> None:
    backend = Backend()
    for function in (lambda x: x.exp() + 1, lambda x: x.exp() + 2):
        torch._dynamo.reset_code_caches()
        step = torch.compile(function, backend=backend, dynamic=False)
        for length in (3, 4):
            step(torch.randn(length))
        torch._dynamo.convert_frame.FRAME_COUNTER = 0
    before = backend.explain().recompiles
    assert len(before) == 2 and "expected 3, actual 4" in before[0]
    torch._dynamo.utils.clear_compilation_metrics()
    assert backend.explain().recompiles == before


def test_forward_and_backward_are_one_recompile() -> None:
    backend = Backend()
    step = torch.compile(lambda x: x.exp() + 1, backend=backend, dynamic=False)
    for length in (3, 4):
        step(torch.randn(length, requires_grad=True)).sum().backward()
    report = backend.explain()
    assert len(report.programs) == 4 and len(report.recompiles) == 1


def test_two_sizes_that_are_equal_are_not_one() -> None:
    backend = Backend()
    function = compiled(lambda x, y: (x.sum(0) * 2, y + 1), backend, dynamic=True)
    for a, b in ((5, 5), (3, 7), (8, 2)):
        x, y = torch.randn(a, 4), torch.randn(b, 4)
        torch.testing.assert_close(function(x, y)[0], x.sum(0) * 2)
        assert function(x, y)[1].shape == (b, 4)
    assert len(backend.programs) <= 2  # Dynamo takes sizes that are equal at first for one, behind a guard


OPEN = {
    "row-major": lambda n: torch.randn(n, n + 1, 4),
    "transposed": lambda n: torch.randn(n + 1, n).t(),
    "permuted": lambda n: torch.randn(n + 1, n, 4).permute(2, 0, 1),
    "channels last": lambda n: torch.randn(2, 3, n, n + 1).to(memory_format=torch.channels_last),
    "channels last, open channels": lambda n: torch.randn(2, n, 7, 4).to(memory_format=torch.channels_last),
    "channels last 3d": lambda n: torch.randn(2, 3, n, n + 1, 2).to(memory_format=torch.channels_last_3d),
    "expanded": lambda n: torch.randn(n, 1).expand(n, n + 2),
    "expanded in front": lambda n: torch.randn(n).expand(3, n),
    "every second": lambda n: torch.randn(2 * n + 1, 2 * n + 3)[::2, 1::2],
    "sliced": lambda n: torch.randn(n, n + 3)[:, :n],
    "sliced and transposed": lambda n: torch.randn(n, 9)[:, 2:6].t(),
}


def check_sizes(function: Callable[..., Any], make: Callable[[int], Any]) -> Backend:
    """Values, strides and writes are eager's for one compile of all sizes."""
    backend = Backend()
    run = compiled(function, backend, dynamic=True)
    for n in (5, 8, 3, 21):
        ours, theirs = (copies([x]) for x in [make(n)] * 2)
        found, wanted = run(*ours), function(*theirs)
        for ours_each, theirs_each in zip((*found, *ours), (*wanted, *theirs), strict=True):
            torch.testing.assert_close(ours_each, theirs_each)
            assert ours_each.stride() == theirs_each.stride()
        assert shared(found, ours) == shared(wanted, theirs)
    report = backend.explain()
    assert len(report.programs) == 1 and not report.fallbacks
    return backend


@pytest.mark.parametrize("kind", OPEN)
def test_layouts_of_open_sizes_are_eagers(kind: str) -> None:
    def function(x: Any) -> Any:
        y = x * 2
        return x.exp() + x, x.clone(), x.contiguous() + 1, x.softmax(0), y.transpose(0, 1), y[1:], x.sum(-1), y

    check_sizes(function, OPEN[kind])


@pytest.mark.parametrize("kind", ["transposed", "channels last", "every second"])
def test_arguments_of_open_sizes_are_written_where_they_lie(kind: str) -> None:
    check_sizes(lambda x: (x.mul_(2).relu() + 1,), OPEN[kind])


@pytest.mark.parametrize("kind", ["transposed", "channels last", "every second"])
def test_a_module_of_open_sizes_keeps_layouts(kind: str) -> None:
    example = OPEN[kind](6)
    sizes = dict.fromkeys(range(example.dim()), torch.export.Dim.AUTO)
    module = autofusion.compile(torch.nn.Sigmoid(), (example,), dynamic=(sizes,))
    for n in (6, 3, 20):
        x = OPEN[kind](n)
        torch.testing.assert_close(module(x), x.sigmoid())
        assert module(x).stride() == x.sigmoid().stride()


def test_calls_of_open_sizes_are_native() -> None:
    module = autofusion.compile(Affine(), (torch.ones(4, 3),) * 2, dynamic=({0: torch.export.Dim("n")},) * 2)
    for n in (4, 2, 100):
        x, y = torch.randn(n, 3), torch.randn(n, 3)
        assert torch.equal(module(x, y), x * 2 + y)
    assert module.program.launches[0].compiled.executable.direct.calls == 3
    backend = Backend()
    run = compiled(lambda x, y: x * 2 + y, backend, dynamic=True)
    with torch.no_grad():
        for n in (4, 2, 100):
            x, y = torch.randn(n, 3), torch.randn(n, 3)
            assert torch.equal(run(x, y), x * 2 + y)
    (program,) = backend.programs
    assert program.launches[0].compiled.executable.direct.calls == 3 and program.calls == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.interpolate(x[None, None], scale_factor=1.5) * 2,
        lambda x: torch.nn.functional.interpolate(x[None, None], scale_factor=1.5, mode="bilinear") * 2,
        lambda x: x[: int(x.shape[0] * 0.5)] * 2,
        lambda x: x[: round(x.shape[0] / 3)] * 2,
        lambda x: x[: math.ceil(x.shape[0] / 3)] * 2,
        lambda x: torch.zeros(int(math.sqrt(x.shape[0]))) + 1,
        lambda x: torch.arange(2 ** x.shape[0]) * 2,
        lambda x: x * (x.shape[0] * 0.5),
    ],
)
def test_sizes_by_way_of_floats(function: Any) -> None:
    call = compiled(function, Backend(), dynamic=True)
    for rows in (6, 9, 4):
        x = torch.randn(rows, rows + 1)
        torch.testing.assert_close(call(x), function(x))


def _moved(x: Any) -> Any:
    y = x.clone()
    y[1:] = x[:-1]
    return y * 2


@pytest.mark.parametrize(
    "function",
    [
        _moved,
        lambda x: torch.nn.functional.pad(x, (0, (4 - x.shape[1] % 4) % 4)) * 2,
        lambda x: torch.nn.functional.pad(x, (0, x.shape[0])) * 2,
        lambda x: torch.nn.functional.pad(x[None], (0, x.shape[1] - 1), mode="replicate") * 2,
    ],
)
def test_extents_that_guards_make_equal(function: Any) -> None:
    call = compiled(function, Backend(), dynamic=True)
    for rows in (5, 2, 8):
        x = torch.randn(rows, rows + 1)
        torch.testing.assert_close(call(x), function(x))


def test_a_size_that_no_tensor_has() -> None:
    check(lambda x, n: x + torch.arange(n).sum(), torch.randn(4), 7, dynamic=True)


# -- freezing, modules, graphs -----------------------------------------------------------------------------------------
def test_weights_are_arguments_unless_frozen() -> None:
    model, x = mlp().eval(), torch.randn(6, 12)
    for freeze in (False, True):
        torch._dynamo.reset()
        backend = Backend()
        step = torch.compile(model, backend=backend, options={"freeze": freeze})
        with torch.no_grad():
            for reads in ([1], [2]):  # the weight that was written is an argument
                torch.testing.assert_close(step(x), model(x))
                assert [len(each.launches[0].region.reads) for each in backend.programs] == (reads if freeze else [7])
                model[0].weight.mul_(2)


def test_compile_takes_modules() -> None:
    model, x = mlp().eval(), torch.randn(6, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        compiled_model = autofusion.compile(model, (x,))
    torch.testing.assert_close(compiled_model(x), model(x).detach())
    with torch.no_grad():
        model[0].weight.mul_(2)
    torch.testing.assert_close(compiled_model(x), model(x).detach())
    assert compiled_model.stats["launches_per_call"] == 1
    assert compiled_model.stats["calls"] == 2
    assert compiled_model.stats["fallbacks"] == 0
    assert "1 launch" in str(compiled_model.explain())


class Tied(torch.nn.Module):  # type: ignore[misc]
    """One parameter and one buffer under two names each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.rand(4))
        self.register_buffer("again", self.scale)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x) * self.scale) + self.again


@pytest.mark.parametrize("freeze", [False, True])
def test_what_has_two_names_is_one_tensor(freeze: bool) -> None:
    model, x = Tied(), torch.randn(2, 4)
    step = autofusion.compile(model, (x,), freeze=freeze)
    torch.testing.assert_close(step(x), model(x).detach())
    assert step.stats["launches_per_call"] == 1


def test_what_a_module_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autofusion.frontends.torch.exported._held", lambda *_: {"first.weight": None})
    with pytest.raises(ArgumentError, match=r"Tied has no parameter, buffer or constant 'first\.bias'"):
        autofusion.compile(Tied(), (torch.randn(2, 4),))


def test_a_tensor_that_is_given_twice_is_two_arguments() -> None:
    class Held(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4))

        def forward(self, x: Any, listed: Any) -> Any:
            return x * 2 + listed[0] * 3 + listed[1] * 5 + self.weight * 7

    model, x = Held(), torch.randn(4)
    step = autofusion.compile(model, (x, [x, model.weight]))
    y, z, w = torch.randn(4), torch.randn(4), torch.randn(4)
    torch.testing.assert_close(step(y, [z, w]), model(y, [z, w]).detach())


def test_a_module_that_writes_its_buffers() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.seen.add_(x)
            return {"total": self.seen.sum(), "x": [x * 2]}

    model = Counter()
    step = autofusion.compile(model, (torch.ones(3),))
    assert float(step(torch.ones(3))["total"]) == 3
    assert float(step(torch.ones(3))["total"]) == 6
    assert torch.equal(model.seen, torch.full((3,), 2.0))
    assert torch.equal(step(torch.ones(3))["x"][0], torch.full((3,), 2.0))


def test_open_sizes_of_a_module() -> None:
    class Scores(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return (x @ x.t()).softmax(-1)

    step = autofusion.compile(Scores(), (torch.randn(5, 4),), dynamic={"x": {0: torch.export.Dim("n", min=2)}})
    for n in (2, 5, 31):
        x = torch.randn(n, 4)
        torch.testing.assert_close(step(x), (x @ x.t()).softmax(-1))


def test_wrong_arguments_of_a_module_are_told() -> None:
    step = autofusion.compile(mlp().eval(), (torch.randn(6, 12),))
    with pytest.raises(ArgumentError, match="expected"):
        step(torch.randn(6, 13))
    with pytest.raises(ArgumentError, match="structure"):
        step(torch.randn(6, 12), torch.randn(1))


class Scaled(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Any, listed: Any, scale: Any = 2.0) -> Any:
        self.seen.add_(1)
        return torch.sort(self.linear(x) * scale)[0] + listed[0]


def test_kinds_of_arguments_are_told() -> None:
    x = torch.randn(4)
    modules = [
        autofusion.compile(torch.nn.ReLU(), (x,), dynamic=sizes) for sizes in (None, ({0: torch.export.Dim("n")},))
    ]
    step = autofusion.compile(Scaled(), (x, [x], 2.0))
    for wrong in (3, None, "a", True):
        kind = type(wrong).__name__
        for module in modules:
            with pytest.raises(ArgumentError, match=rf"argument 0 \(input\): expected a tensor, found {kind}"):
                module(wrong)
        with pytest.raises(ArgumentError, match=rf"argument 0 \(x\): expected a tensor, found {kind}"):
            step(wrong, [x], 2.0)
        with pytest.raises(ArgumentError, match=rf"argument 1 \(listed_0\): expected a tensor, found {kind}"):
            step(x, [wrong], 2.0)
    for wrong in (3.0, 2, -2.0, x, None):
        with pytest.raises(ArgumentError, match=r"argument 2 \(scale\): .* given, compiled for 2.0"):
            step(x, [x], wrong)
    assert step(x, [x], 2.0).shape == (4,)


def test_kinds_of_arguments_of_a_graph_are_told() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    for function in (lambda x: (x.sin() + 1,), lambda x: (torch.sort(x)[0],)):
        program = fuse(make_fx(function, tracing_mode="fake")(torch.randn(4)))
        with pytest.raises(ArgumentError, match=r"argument 0 \(x_1\): expected a tensor, found int"):
            program(3)


def test_example_inputs_are_a_tuple_or_one_tensor() -> None:
    x = torch.randn(4)
    assert torch.equal(autofusion.compile(torch.nn.ReLU(), x)(x), x.relu())
    assert autofusion.compile(lambda x: x + 1, x.numpy())(x.numpy()).tolist() == (x.numpy() + 1).tolist()
    for wrong, kind in (({"x": x}, "dict"), (3, "int"), ("x", "str")):
        with pytest.raises(ArgumentError, match=f"example_inputs: expected a tuple of arguments, found {kind}"):
            autofusion.compile(torch.nn.ReLU(), wrong)


def test_a_copy_of_a_module_has_its_own_state() -> None:
    x = torch.randn(4)
    step = autofusion.compile(Scaled(), (x, [x], 2.0))
    first = step(x, [x], 2.0)
    other = copy.deepcopy(step)
    assert torch.equal(other(x, [x], 2.0), first)
    with torch.no_grad():
        other._state[0].mul_(2)  # the weight
    assert not torch.equal(other(x, [x], 2.0), first)
    assert torch.equal(step(x, [x], 2.0), first)
    assert [float(each._state[2][0]) for each in (step, other)] == [2, 3]  # what the module counts in its buffer
    for each in (step, step.program, step.program.launches[0].compiled):
        with pytest.raises(ArgumentError, match="pickle"):
            pickle.dumps(each)


def test_a_copy_of_a_compiled_model_shares_the_backend() -> None:
    backend, x = Backend(numerics="strict"), torch.randn(2, 12)
    step = torch.compile(mlp(), backend=backend)
    step(x)
    other = copy.deepcopy(step)
    torch.testing.assert_close(other(x), step(x))
    assert pickle.loads(pickle.dumps(backend)).settings == backend.settings


def test_fuse_takes_a_graph_of_aten() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(4, 5)
    graph = make_fx(lambda x: (x.sin() + 1, x.sum()), tracing_mode="fake")(x)
    program = fuse(graph)
    for found, wanted in zip(program(x), (x.sin() + 1, x.sum()), strict=True):
        torch.testing.assert_close(found, wanted)
    assert len(program.explain().launches) == 1


def test_arguments_of_open_strides() -> None:
    backend = Backend()
    step = torch.compile(lambda x: ((x.t() * 2).sum(0), x.t().clone()), backend=backend, dynamic=True)
    for shape in ((3, 5), (4, 9), (2, 8), (6, 2)):
        for x in (torch.randn(*shape), torch.randn(*reversed(shape)).t()):
            for ours, eager in zip(step(x), ((x.t() * 2).sum(0), x.t().clone()), strict=True):
                torch.testing.assert_close(ours, eager)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        where = torch.compile(
            lambda x: [each + 1 for each in x.nonzero(as_tuple=True)], backend=backend, fullgraph=True
        )
        found = where(torch.eye(3))  # columns of a tensor that lies by columns
    assert [each.tolist() for each in found] == [[1, 2, 3], [1, 2, 3]]
    assert sum(program.explain().launches != () for program in backend.programs) >= 2


def test_a_result_that_overlaps_itself_is_pytorchs() -> None:
    backend = Backend()
    step = compiled(lambda x: (x + 1, torch.empty_strided((3, 4), (0, 1))), backend)
    added, empty = step(torch.zeros(2))
    assert (added.tolist(), tuple(empty.shape), empty.stride()) == ([1, 1], (3, 4), (0, 1))
    (report,) = backend.explain().programs
    assert [each.operator for each in report.fallbacks] == ["empty_strided.default"]


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ArgumentError, match="option 'frees': expected one of freeze, numerics, target"):
        Backend(frees=True)


WRONG = {
    "target=5": {"target": 5},
    "target=None": {"target": None},
    r"target=\['cpu'\]": {"target": ["cpu"]},
    "numerics=None": {"numerics": None},
    "freeze='no'": {"freeze": "no"},
    "freeze=1: expected True or False": {"freeze": 1},
}


@pytest.mark.parametrize("text", WRONG)
def test_types_of_options_are_checked(text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        Backend(**WRONG[text])
    with pytest.raises(ArgumentError, match=text):
        autofusion.compile(torch.nn.ReLU(), (torch.ones(2),), **WRONG[text])
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=text):
        torch.compile(lambda x: x + 1, backend=Backend(), options=WRONG[text])(torch.ones(2))


def test_there_is_one_mode() -> None:
    assert torch.compile(lambda x: x + 1, backend=Backend(), mode="default")(torch.ones(2)).tolist() == [2, 2]
    for mode in ("max-autotune", "nonsense"):
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=f"mode='{mode}': expected 'default'"):
            torch.compile(lambda x: x + 2, backend=Backend(), mode=mode)(torch.ones(2))


def test_values_of_options_are_checked() -> None:
    with pytest.raises(ArgumentError, match="numerics='exact': expected default or strict"):
        Backend(numerics="exact")
    with pytest.raises(TargetError, match="unknown target 'abacus'"):
        Backend(target="abacus")
    for wrong, kind in (({"target": "abacus"}, TargetError), ({"numerics": "exact"}, ArgumentError)):
        with pytest.raises(kind):
            autofusion.compile(torch.nn.ReLU(), (torch.ones(2),), **wrong)


# -- defects -----------------------------------------------------------------------------------------------------------
def failing(*_: Any, **__: Any) -> Any:
    raise KeyError("a fault")


DEFECTS = {
    "compile": ("autofusion.frontends.torch.program.api.compile_graph", "region0 of graph 0 (inference): KeyError"),
    "region": ("autofusion.frontends.torch.regions._bind_sizes", "region0: KeyError"),
    "operator": ("autofusion.frontends.torch.regions._used", r"exp.default (exp): KeyError"),
}


@pytest.mark.parametrize("kind", DEFECTS)
def test_defects_are_warned_of_listed_and_survived(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, text = DEFECTS[kind]
    monkeypatch.setattr(place, failing)
    monkeypatch.setenv("AUTOFUSION_RAISE", "0")
    function, x, backend = (lambda x: (x.exp() + 1, x.t())), torch.randn(3, 5), Backend()
    with pytest.warns(DefectWarning, match=re.escape(text)) as caught:
        found = compiled(function, backend)(x)
    assert "AUTOFUSION_DUMP" in str(caught[0].message)
    for ours, theirs in zip(found, function(x), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()
    report = backend.explain()
    assert text in report.defects[0] and text in str(report) and "defect" in str(report).splitlines()[0]
    assert {each.operator for each in report.fallbacks} >= {"exp.default"}


@pytest.mark.parametrize("kind", DEFECTS)
def test_defects_are_raised_where_that_is_asked_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DEFECTS[kind][0], failing)
    with pytest.raises(KeyError, match="a fault"):
        autofusion.compile(torch.nn.Sigmoid(), (torch.randn(3),))


def test_the_name_works_after_an_install() -> None:
    from importlib.metadata import entry_points

    found = [each for each in entry_points(group="torch_dynamo_backends") if each.name == "autofusion"]
    if not found:
        pytest.skip("the package is not installed")
    assert found[0].load() is autofusion.torch.backend
    function = torch.compile(lambda x: x + 1, backend="autofusion")
    autofusion.torch.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(function(torch.zeros(3)), torch.ones(3))
    assert len(autofusion.torch.explain().programs) == 1


def test_the_name_forgets_with_pytorch() -> None:
    """`torch.compiler.reset` frees what was compiled."""
    function = torch.compile(lambda x: x + 1, backend=autofusion.torch.backend)
    function(torch.zeros(3))
    launch = weakref.ref(autofusion.torch._SHARED.programs[-1].launches[0])
    del function
    torch.compiler.reset()
    gc.collect()
    assert not autofusion.torch.explain().programs and launch() is None


@pytest.mark.filterwarnings("ignore")
def test_threads_are_pytorchs() -> None:
    before = torch.get_num_threads()
    backend, x = Backend(), torch.randn(64, 64)
    step = compiled(lambda x: x.exp().sum(1), backend)
    module = autofusion.compile(torch.nn.Softmax(-1), (x,))
    try:
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            torch.testing.assert_close(step(x), x.exp().sum(1))
            torch.testing.assert_close(module(x), x.softmax(-1))
            assert module.program.launches[0].compiled.executable.workers == count
            assert count in [each.launches[0].compiled.executable.workers for each in backend.programs]
        assert module.program.launches[0].compiled.executable.counts.calls == 3
    finally:
        torch.set_num_threads(before)
