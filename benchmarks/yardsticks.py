"""What a loop written by hand reaches: C in one pass (`yardsticks.c`), and Numba. Output buffers are given.

And an optimiser's step that writes where the parameters and moments are: this package's, and PyTorch's fused one.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.export import Array, Case
from benchmarks.native import library
from benchmarks.workloads import Workload

HAND_C = ("chain20", "gelu_bias_mul", "silu_gate", "softmax", "layernorm_gelu", "rmsnorm_residual", "adamw")
NUMBA = ("chain20", "adamw")


def _outputs(case: Case) -> list[Array]:
    return [np.zeros_like(x) for x in case.eager()]


def hand_c(workload: Workload, case: Case, threads: int) -> Callable[[], Any]:
    """For the workloads of HAND_C. Raises Missing where there is no C compiler."""
    function = getattr(library("yardsticks"), workload.build)
    function.restype = None
    operands, outputs = [*case.inputs, *case.parameters()], _outputs(case)
    sizes = tuple(workload.sizes(case.small).values())
    inputs_at, outputs_at = (
        (ctypes.c_void_p * len(arrays))(*(x.ctypes.data for x in arrays)) for arrays in (operands, outputs)
    )
    sizes_at = (ctypes.c_long * len(sizes))(*sizes)

    def run(keep: Any = operands) -> list[Array]:  # the addresses are those of `operands`
        function(inputs_at, outputs_at, sizes_at)
        return outputs

    return run


def numba(workload: Workload, case: Case, threads: int) -> Callable[[], Any]:
    """For the workloads of NUMBA."""
    import numba

    loop = {"chain20": chain20, "adamw": adamw}[workload.build]
    numba.set_num_threads(threads)
    function = numba.njit(parallel=threads > 1, fastmath={"contract", "nsz"})(loop(numba.prange))
    inputs, outputs = case.inputs, _outputs(case)

    def run() -> list[Array]:
        function(*inputs, *outputs)
        return outputs

    return run


RATE, BETAS, EPSILON, DECAY, STEP = 1e-3, (0.9, 0.999), 1e-8, 0.01, 10  # of `modules.adamw`


def in_place(workload: Workload, case: Case, threads: int) -> Callable[[], Any]:
    """This package's step, which writes into its arguments. What is given back is the first call's, for checking."""
    import autofusion
    from autofusion import sqrt

    @autofusion.jit
    def step(p: Any, g: Any, m: Any, v: Any) -> None:
        m[...] = m * BETAS[0] + g * (1 - BETAS[0])
        v[...] = v * BETAS[1] + g * g * (1 - BETAS[1])
        root = sqrt(v) / math.sqrt(1 - BETAS[1] ** STEP) + EPSILON
        p[...] = p * (1 - RATE * DECAY) - (RATE / (1 - BETAS[0] ** STEP)) * m / root

    p, g, m, v = (np.array(x) for x in case.inputs)
    step(p, g, m, v)
    first = [x.copy() for x in (p, m, v)]

    def run() -> list[Array]:
        step(p, g, m, v)
        return first

    return run


def torch_fused(workload: Workload, case: Case, threads: int) -> Callable[[], Any]:
    """PyTorch's, on tensors; likewise."""
    import torch

    torch.set_num_threads(threads)
    p, g, m, v = (torch.from_numpy(np.array(x)) for x in case.inputs)
    p.requires_grad_()
    p.grad = g
    optimiser = torch.optim.AdamW([p], lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY, fused=True)
    optimiser.state[p] = {"step": torch.tensor(STEP - 1.0), "exp_avg": m, "exp_avg_sq": v}
    optimiser.step()
    first = [x.detach().clone().numpy() for x in (p, m, v)]

    def run() -> list[Array]:
        optimiser.step()
        return first

    return run


def chain20(prange: Any) -> Callable[..., None]:
    half, quarters, low, high, zero = (np.float32(n) for n in (0.5, 0.75, 1.25, 0.125, 0))

    def loop(x: Array, y: Array, out: Array) -> None:
        for i in prange(x.size):
            t = (x[i] + y[i]) * half - y[i]
            t = abs(max(t, zero) + x[i])
            t = max(t, y[i]) * x[i] - low
            t = min(t, x[i]) * y[i] + high
            t = x[i] - max(t, zero)
            t = abs(t * quarters) - x[i]
            out[i] = max(t, y[i]) + y[i]

    return loop


def adamw(prange: Any) -> Callable[..., None]:
    one, beta1, beta2, epsilon = (np.float32(n) for n in (1, 0.9, 0.999, 1e-8))
    step, root = np.float32(1e-3 / (1 - 0.9**10)), np.float32(1 / math.sqrt(1 - 0.999**10))
    keep = np.float32(1 - 1e-3 * 0.01)

    def loop(p: Array, g: Array, m: Array, v: Array, p2: Array, m2: Array, v2: Array) -> None:
        for i in prange(p.size):
            a = m[i] * beta1 + g[i] * (one - beta1)
            b = v[i] * beta2 + g[i] * g[i] * (one - beta2)
            p2[i] = p[i] * keep - step * a / (np.sqrt(b) * root + epsilon)
            m2[i] = a
            v2[i] = b

    return loop
