"""LayerNorm → GELU: a reduction fused with what precedes and follows it over the same rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import autofusion as af


def layernorm_gelu(x, scale, shift):
    """gelu(layer_norm(x)) over rows of 1024."""
    return af.gelu(af.layer_norm(x, scale, shift))


def build() -> tuple[Callable, dict[str, np.ndarray]]:
    """The function and example inputs."""
    rng = np.random.RandomState(0)
    return layernorm_gelu, {
        "x": rng.standard_normal((2048, 1024)).astype(np.float32),
        "scale": rng.standard_normal(1024).astype(np.float32),
        "shift": rng.standard_normal(1024).astype(np.float32),
    }


def main() -> None:
    function, inputs = build()
    compiled = af.jit(function)
    result = compiled(*inputs.values())
    print(f"gelu(layer_norm(x)): {result.dtype}{list(result.shape)}, mean {result.mean():.6f}")


if __name__ == "__main__":
    main()
