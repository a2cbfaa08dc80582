"""A model-like sequence of 200 operators: ten layers of 2 contractions, which take most of the time, and 18 others.

256 tokens, 512 wide, 1024 in the middle. The weights are constants, drawn from seeds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import autofusion as af
from autofusion.frontends.opseq import seeded

LAYERS, TOKENS, WIDTH, MIDDLE = 10, 256, 512, 1024


def constants() -> dict[str, tuple[tuple[int, ...], dict[str, float]]]:
    """name -> (shape, what to draw it from: the arguments of `seeded`)."""
    drawn: dict[str, tuple[tuple[int, ...], dict[str, float]]] = {}
    for layer in range(LAYERS):
        shapes = {"up": (WIDTH, MIDDLE), "up_bias": (MIDDLE,), "gate": (MIDDLE,), "down": (MIDDLE, WIDTH)}
        shapes |= {"down_bias": (WIDTH,), "scale": (WIDTH,), "shift": (WIDTH,)}
        for name, shape in shapes.items():
            scale = round(shape[0] ** -0.5, 6) if len(shape) == 2 else 0.1
            drawn[f"{name}{layer}"] = (shape, {"seed": len(drawn), "scale": scale})
    return drawn


def model(weights: dict[str, np.ndarray]) -> Callable:
    """The model with these weights."""

    def model200(x):
        """[256, 512] -> [256, 512]."""
        for layer in range(LAYERS):
            scale, shift = weights[f"scale{layer}"], weights[f"shift{layer}"]
            normed = af.layer_norm(x, scale, shift)
            grown = af.gelu(normed @ weights[f"up{layer}"] + weights[f"up_bias{layer}"])
            mixed = af.tanh(grown * weights[f"gate{layer}"]) + grown
            centred = mixed - mixed.mean(axis=-1, keepdims=True)
            power = (centred * centred).max(axis=-1, keepdims=True)
            scaled = centred * af.rsqrt(power + 1e-3)
            shrunk = scaled @ weights[f"down{layer}"] + weights[f"down_bias{layer}"]
            x = af.maximum(af.minimum(shrunk * 0.5 + x, 8.0), -8.0)
        return x

    return model200


def build() -> tuple[Callable, dict[str, np.ndarray]]:
    """The function and example inputs."""
    weights = {name: seeded(shape, **draw) for name, (shape, draw) in constants().items()}
    return model(weights), {"x": np.random.RandomState(0).standard_normal((TOKENS, WIDTH)).astype(np.float32)}


def main() -> None:
    function, inputs = build()
    compiled = af.jit(function)
    result = compiled(*inputs.values())
    print(f"model of 200 operators: {result.dtype}{list(result.shape)}, mean {result.mean():.6f}")


if __name__ == "__main__":
    main()
