"""Which PyTorch tensors hold their elements in memory as they are: their dispatch keys tell.

Through DLPack's C exchange table a negative view, a tensor of zeros that has no memory, or a subclass that dispatches
by itself looks like any other. Each method that would tell takes PyTorch as long as a tenth of a call of ours; the keys
are one word of the tensor, so the native runtime reads that, where it was found to be what PyTorch says it is.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from typing import Any

from autofusion.errors import ArgumentError

WORD = ctypes.sizeof(ctypes.c_uint64)
MOST_BYTES = 512  # of a tensor's object: where the search for its keys ends


def place_of(kind: type) -> tuple[int, int, int] | None:
    """For tensors of this type: where an object has the address of its tensor, where that has its keys, in bytes, and
    the keys that mark what is not in memory as it is. Zeros for other libraries' types, which have no such keys; None
    where PyTorch keeps them elsewhere than looked for."""
    torch = sys.modules.get("torch")
    if torch is None or not issubclass(kind, torch.Tensor):
        return 0, 0, 0
    try:
        return _place()
    except (AttributeError, LookupError):
        return None


def ordinary(value: Any) -> Any:
    """The value; for a PyTorch tensor that is negative, conjugate or zero by its keys, one without these keys. Raises
    ArgumentError for one that has no memory of its own."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or not _keys(value) & _marks():
        return value
    made = value.resolve_conj().resolve_neg()
    if made._is_zerotensor():
        made = made.clone()
    if _keys(made) & _marks():
        keys = str(torch._C._dispatch_keys(made)).removeprefix("DispatchKeySet")
        raise ArgumentError(f"a tensor with the dispatch keys {keys}: expected a dense one with memory of its own")
    return made


def _keys(tensor: Any) -> int:
    return int(sys.modules["torch"]._C._dispatch_keys(tensor).raw_repr())


@functools.cache
def _marks() -> int:
    """The keys that ordinary tensors do not have."""
    return (1 << 64) - 1 & ~_keys(_samples()[0])


def _samples() -> list[Any]:
    """The first one is ordinary; their keys differ. Whatever mode the caller is in, they are no fake tensors."""
    torch = sys.modules["torch"]
    with torch.utils._python_dispatch._disable_current_modes(), torch.inference_mode(False):
        first = torch.zeros(1, device="cpu")
        return [
            first,
            torch._neg_view(first),
            torch._efficientzerotensor((2,), device="cpu"),
            torch.nn.Parameter(first),
        ]


@functools.cache
def _place() -> tuple[int, int, int]:
    """See `place_of`. Raises LookupError where nothing is in all samples what PyTorch says."""
    torch = sys.modules["torch"]
    samples = _samples()
    handle = _offset([(id(each), each._cdata) for each in samples], torch._C.TensorBase.__basicsize__)
    keys = _offset([(each._cdata, _keys(each)) for each in samples], MOST_BYTES)
    return handle, keys, _marks()


def _offset(wanted: Sequence[tuple[int, int]], end: int) -> int:
    """Where behind each of the addresses its word stands."""
    for offset in range(0, end, WORD):
        if all(ctypes.c_uint64.from_address(start + offset).value == word for start, word in wanted):
            return offset
    raise LookupError(f"no word of the {end} bytes is what PyTorch says")
