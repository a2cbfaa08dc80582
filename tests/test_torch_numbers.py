"""Numbers that meet narrow floats which cannot hold them: eager mode rounds some and keeps others, or refuses them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the frontend is PyTorch's; extra `torch`")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from autofusion.frontends.torch.program import Program, Settings  # noqa: E402

aten = torch.ops.aten
NARROW = (torch.bfloat16, torch.float16)
NUMBERS = (0.1, 0.3, 2.7, 1e-7, 70000.0)
# Their results are rounded once, so they are eager's to the bit.
EXACT: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(aten, name).Scalar for name in ("eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod")},
    **{name: getattr(aten, name).Scalar for name in ("add", "sub", "mul", "div", "rsub", "copysign")},
    "floor": lambda x, s: aten.div.Tensor_mode(x, s, rounding_mode="floor"),
    "trunc": lambda x, s: aten.div.Tensor_mode(x, s, rounding_mode="trunc"),
    "floor_divide": aten.floor_divide.default,
    "clamp": aten.clamp.default,
    "clamp_max": lambda x, s: aten.clamp.default(x, None, s),
    "hardtanh": lambda x, s: aten.hardtanh.default(x, -s, s),
    "masked_fill": lambda x, s: aten.masked_fill.Scalar(x, x > 0, s),
    "full_like": aten.full_like.default,
    "fill": aten.fill.Scalar,
    "pad": lambda x, s: aten.constant_pad_nd.default(x, [1, 1], s),
    "index_fill": lambda x, s: aten.index_fill.int_Scalar(x, 0, torch.tensor([1]), s),
}
CLOSE: dict[str, Callable[[Any, Any], Any]] = {
    "pow": aten.pow.Tensor_Scalar,
    "rpow": lambda x, s: aten.pow.Scalar(s, x),
    "alpha": lambda x, s: aten.add.Tensor(x, x.flip(0), alpha=s),
    "alpha of rsub": lambda x, s: aten.rsub.Tensor(x, x.flip(0), alpha=s),
    "logit": aten.logit.default,
}
# Of a tensor without dimensions: the first operand is rounded, the second as if it were a number.
ZERO_D = ("eq.Tensor", "lt.Tensor", "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "remainder.Tensor",
          "fmod.Tensor", "maximum.default", "floor_divide.default")  # fmt: skip


def values(dtype: Any) -> Any:
    held = [torch.tensor(each).to(dtype).double() for each in NUMBERS]
    rest = [0.0, -0.1, 1.0, -2.7, 0.7, 100.0, 33.0, -5.5, torch.inf, -torch.inf, torch.nan]
    return torch.tensor([*held, *rest], dtype=dtype)


def outcome(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except RuntimeError:
        return "refused"


def ours(function: Any, *arguments: Any, numerics: str = "default") -> list[Any]:
    graph = make_fx(function, decomposition_table={}, tracing_mode="fake")(*arguments)
    return Program(graph, Settings(numerics=numerics))(*arguments)


def compared(function: Callable[[Any, Any], Any], dtype: Any, numerics: str, **tolerance: Any) -> None:
    """With each number; where eager mode refuses one, so must we."""
    x = values(dtype)
    expected = [outcome(function, x, number) for number in NUMBERS]
    kept = [number for number, each in zip(NUMBERS, expected, strict=True) if not isinstance(each, str)]
    found = ours(lambda x: [function(x, number) for number in kept], x, numerics=numerics)
    wanted = [each for each in expected if not isinstance(each, str)]
    for number, each, other in zip(kept, found, wanted, strict=True):
        torch.testing.assert_close(each, other, equal_nan=True, **tolerance, msg=lambda m, n=number: f"{n}: {m}")
    for number in set(NUMBERS) - set(kept):
        with pytest.raises(RuntimeError):
            ours(functools.partial(_alone, function, number), x)


def _alone(function: Callable[[Any, Any], Any], number: float, x: Any) -> list[Any]:
    return [function(x, number)]


@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_numbers_are_rounded_and_kept_as_in_eager_mode(name: str, dtype: Any, numerics: str) -> None:
    compared(EXACT[name], dtype, numerics, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", CLOSE)
def test_numbers_of_what_rounds_twice(name: str, dtype: Any) -> None:
    compared(CLOSE[name], dtype, "default", rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", ZERO_D)
def test_tensors_without_dimensions(name: str, dtype: Any) -> None:
    packet, _, overload = name.partition(".")
    function, x = getattr(getattr(aten, packet), overload), values(dtype)
    for number in NUMBERS:
        for operands in ((x, torch.tensor(number)), (torch.tensor(number, dtype=torch.float64), x)):
            (found,) = ours(lambda a, b: [function(a, b)], *operands)
            torch.testing.assert_close(found, function(*operands), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", (*NARROW, torch.float32, torch.float64), ids=str)
def test_signs_of_zeros(dtype: Any) -> None:
    """Of remainders the dividend's; of roots by pow those of eager mode in the type."""
    x = torch.tensor([0.0, -0.0, 5.0, -5.0, torch.inf, -torch.inf, torch.nan, 1.5], dtype=dtype)

    def function(x: Any) -> list[Any]:
        divided = [aten.remainder.Scalar(x, number) for number in (2.5, -2.5, torch.inf, -torch.inf)]
        swapped = [aten.remainder.Tensor(x.flip(0), x)]
        return [*divided, *swapped, *(aten.pow.Tensor_Scalar(x, number) for number in (0.5, -0.5, 2, -1))]

    for found, expected in zip(ours(function, x), function(x), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)
        real = ~expected.isnan()
        assert torch.equal(found[real].signbit(), expected[real].signbit())
