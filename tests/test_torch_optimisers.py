"""Steps of optimisers and what they call: operators on lists of tensors, multiplication with addition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: python -m pip install torch")

from torch._inductor import inductor_prims  # noqa: E402

from autofusion.frontends.torch import foreach  # noqa: E402
from autofusion.torch import Backend  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh")]


# -- one operator ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_multiplication_with_addition(dtype: Any) -> None:
    """As PyTorch computes it on a CPU; what is narrow is rounded once, so it is nearer."""
    a, b, c = (torch.randn(4099, dtype=dtype) for _ in range(3))
    backend = Backend()
    found = torch.compile(inductor_prims.fma, backend=backend)(a, b, c)
    assert not backend.explain().fallbacks
    if dtype is torch.bfloat16:
        assert torch.equal(found, (a.float() * b.float() + c.float()).to(dtype))
    else:
        assert torch.equal(found, inductor_prims.fma(a, b, c))


def test_what_eager_mode_may_fuse_is_within_its_roundings() -> None:
    p, g = torch.randn(4099), torch.randn(4099)
    calls: list[Callable[[Any], Any]] = [
        lambda p: p.addcmul_(g, g, value=0.3),
        lambda p: p.addcdiv_(g, g.abs() + 1, value=-0.3),
        lambda p: p.add_(g, alpha=torch.tensor(0.3)),
    ]
    for call in calls:
        backend, ours, theirs = Backend(), p.clone(), p.clone()
        torch.compile(call, backend=backend)(ours)
        call(theirs)
        assert not backend.explain().fallbacks
        assert ((ours - theirs).abs() <= 2**-22 * (p.abs() + theirs.abs())).all()


def example(overload: Any) -> list[Any]:
    """Arguments for an operator on lists: two tensors in each, positive so that roots and logarithms have values."""

    def tensors() -> list[Any]:
        return [torch.rand(3, 4) * 0.8 + 0.1, torch.rand(4, 4) * 0.8 + 0.1]

    if "mm" in overload.name():
        return [[torch.rand(3, 4), torch.rand(4, 4)], [torch.rand(4, 2), torch.rand(4, 3)]]
    by_type = {
        "List[Tensor]": tensors,
        "List[number]": lambda: [0.25, 2],
        "Tensor": lambda: torch.tensor(0.7),
        "number": lambda: 1.5,
        "bool": lambda: False,
    }
    listed = [each for each in overload._schema.arguments if not each.has_default_value()]
    return [by_type[str(each.type)]() for each in listed]


@pytest.mark.parametrize("overload", foreach.decompositions(), ids=str)
def test_lists_are_taken_apart(overload: Any) -> None:
    arguments, backend = example(overload), Backend()
    if overload is torch.ops.aten._foreach_lgamma.default:
        pytest.skip("PyTorch 2.13 does not call it: it binds one argument too many")
    wanted = overload(*arguments)
    torch.testing.assert_close(torch.compile(lambda *given: overload(*given), backend=backend)(*arguments), wanted)
    report = backend.explain()
    assert not report.fallbacks and [len(program.launches) for program in report.programs] == [1]


@pytest.mark.parametrize("name", ["add", "sub"])
def test_factors_of_lists(name: str) -> None:
    function = getattr(torch, f"_foreach_{name}")
    a, b = [torch.randn(3), torch.randn(2, 2)], [torch.randn(3), torch.randn(2, 2)]
    backend = Backend()
    torch.testing.assert_close(
        torch.compile(lambda: function(a, b, alpha=0.5), backend=backend)(), function(a, b, alpha=0.5)
    )
    assert not backend.explain().fallbacks


def test_norms_of_lists() -> None:
    tensors = [torch.randn(3), torch.randn(2, 2).double(), torch.randn(0, 2)]
    for order in (1, 2, float("inf")):
        given = tensors[:2] if order == float("inf") else tensors
        backend = Backend()
        found = torch.compile(lambda x, order=order: torch._foreach_norm(x, order), backend=backend)(given)
        torch.testing.assert_close(found, list(torch._foreach_norm(given, order)))
        assert not backend.explain().fallbacks


# -- whole steps -------------------------------------------------------------------------------------------------------
OPTIMISERS: dict[str, Callable[..., Any]] = {
    "AdamW": lambda p, **more: torch.optim.AdamW(p, lr=0.01, **more),
    "Adam": lambda p, **more: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1, **more),
    "RMSprop": lambda p, **more: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True, **more),
    "Adagrad": lambda p, **more: torch.optim.Adagrad(p, lr=0.01, weight_decay=0.1, **more),
    "SGD": lambda p, **more: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1, **more),
}


def steps(optimiser: Callable[..., Any], together: bool, backend: Backend | None, clip: bool = False) -> list[Any]:
    """Parameters after three steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    chosen = optimiser(model.parameters(), foreach=together)

    def step() -> Any:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=together) if clip else None
        chosen.step()
        return norm

    called = step if backend is None else torch.compile(step, backend=backend)
    found = []
    for _ in range(3):
        chosen.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        found.append(called())
    return [*model.parameters(), *(each for each in found if each is not None)]


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "foreach"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_step_is_one_launch(name: str, together: bool) -> None:
    backend = Backend()
    found = steps(OPTIMISERS[name], together, backend)
    torch.testing.assert_close(found, steps(OPTIMISERS[name], together, None))
    report = backend.explain()
    assert not report.fallbacks
    assert all(len(program.launches) == 1 for program in report.programs)


def test_clipping_and_a_step_are_one_launch() -> None:
    backend = Backend()
    found = steps(OPTIMISERS["AdamW"], True, backend, clip=True)
    torch.testing.assert_close(found, steps(OPTIMISERS["AdamW"], True, None, clip=True))
    report = backend.explain()
    assert not report.fallbacks
    assert all(len(program.launches) == 1 for program in report.programs)
