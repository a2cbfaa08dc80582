"""Softmax over rows: two reductions and the elementwise work between them in one kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import autofusion as af


def softmax(x):
    """Softmax along the last axis."""
    return af.softmax(x, axis=-1)


def build() -> tuple[Callable, dict[str, np.ndarray]]:
    """The function and example inputs."""
    return softmax, {"x": np.random.RandomState(0).standard_normal((2048, 1024)).astype(np.float32)}


def main() -> None:
    function, inputs = build()
    compiled = af.jit(function)
    result = compiled(*inputs.values())
    print(f"softmax(x): {result.dtype}{list(result.shape)}, rows sum to {result.sum(axis=-1).mean():.6f}")


if __name__ == "__main__":
    main()
