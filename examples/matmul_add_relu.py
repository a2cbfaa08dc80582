"""MatMul → Add → ReLU: one kernel that writes its output once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import autofusion as af


def matmul_add_relu(x, w, b):
    """relu(x @ w + b): [512, 512]."""
    return af.relu(x @ w + b)


def build() -> tuple[Callable, dict[str, np.ndarray]]:
    """The function and example inputs."""
    rng = np.random.RandomState(0)
    return matmul_add_relu, {
        "x": rng.standard_normal((512, 512)).astype(np.float32),
        "w": (rng.standard_normal((512, 512)) / np.sqrt(512)).astype(np.float32),
        "b": rng.standard_normal(512).astype(np.float32),
    }


def main() -> None:
    function, inputs = build()
    compiled = af.jit(function)
    result = compiled(*inputs.values())
    print(f"relu(x @ w + b): {result.dtype}{list(result.shape)}, mean {result.mean():.6f}")


if __name__ == "__main__":
    main()
