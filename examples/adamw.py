"""The AdamW update (Loshchilov and Hutter 2019): parameter and both moments in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

import autofusion as af

LEARNING_RATE, BETA1, BETA2, EPSILON, DECAY, STEP = 1e-3, 0.9, 0.999, 1e-8, 0.01, 10


def adamw(parameter, gradient, first, second):
    """The new parameter and moments."""
    new_first = first * BETA1 + gradient * (1 - BETA1)
    new_second = second * BETA2 + gradient * gradient * (1 - BETA2)
    root = af.sqrt(new_second) / math.sqrt(1 - BETA2**STEP) + EPSILON
    decayed = parameter * (1 - LEARNING_RATE * DECAY)
    return decayed - (LEARNING_RATE / (1 - BETA1**STEP)) * new_first / root, new_first, new_second


def build() -> tuple[Callable, dict[str, np.ndarray]]:
    """The function and example inputs."""
    rng = np.random.RandomState(0)
    inputs = {name: rng.standard_normal(1 << 20).astype(np.float32) for name in ("parameter", "gradient", "first")}
    return adamw, inputs | {"second": np.abs(rng.standard_normal(1 << 20)).astype(np.float32)}


def main() -> None:
    function, inputs = build()
    compiled = af.jit(function)
    parameter, first, second = compiled(*inputs.values())
    print(f"parameter mean {parameter.mean():.6f}, moments {first.mean():.6f} and {second.mean():.6f}")


if __name__ == "__main__":
    main()
