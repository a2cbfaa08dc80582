"""A BERT-base encoder block: attention and a feed-forward network, each with a residual and a LayerNorm.

128 tokens, 768 wide, 12 heads, 3072 in the middle. The weights are constants, drawn from seeds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import autofusion as af
from autofusion.frontends.opseq import seeded

TOKENS, WIDTH, HEADS, MIDDLE = 128, 768, 12, 3072
LAYERS = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH)}
LAYERS |= {"up": (WIDTH, MIDDLE), "down": (MIDDLE, WIDTH)}


def constants() -> dict[str, tuple[tuple[int, ...], dict[str, float]]]:
    """name -> (shape, what to draw it from: the arguments of `seeded`)."""
    drawn: dict[str, tuple[tuple[int, ...], dict[str, float]]] = {}
    for name, (rows, columns) in LAYERS.items():
        drawn[f"w_{name}"] = ((rows, columns), {"seed": len(drawn), "scale": round(rows**-0.5, 6)})
        drawn[f"b_{name}"] = ((columns,), {"seed": len(drawn), "scale": 0.02})
    for name in ("scale1", "shift1", "scale2", "shift2"):
        drawn[name] = ((WIDTH,), {"seed": len(drawn), "scale": 1.0 if "scale" in name else 0.02})
    return drawn


def block(weights: dict[str, np.ndarray]) -> Callable:
    """The block with these weights."""

    def transformer_block(x):
        """[1, 128, 768] -> [1, 128, 768]."""
        batch, tokens, width = x.shape

        def linear(value, name):
            return value @ weights[f"w_{name}"] + weights[f"b_{name}"]

        def heads(value):
            return value.reshape(batch, tokens, HEADS, width // HEADS).transpose(0, 2, 1, 3)

        q, k, v = (heads(linear(x, name)) for name in ("q", "k", "v"))
        scores = af.softmax(q @ k.swapaxes(-1, -2) * (WIDTH // HEADS) ** -0.5, axis=-1)
        mixed = (scores @ v).transpose(0, 2, 1, 3).reshape(batch, tokens, width)
        x = af.layer_norm(x + linear(mixed, "o"), weights["scale1"], weights["shift1"])
        grown = linear(af.gelu(linear(x, "up")), "down")
        return af.layer_norm(x + grown, weights["scale2"], weights["shift2"])

    return transformer_block


def build() -> tuple[Callable, dict[str, np.ndarray]]:
    """The function and example inputs."""
    weights = {name: seeded(shape, **draw) for name, (shape, draw) in constants().items()}
    return block(weights), {"x": np.random.RandomState(0).standard_normal((1, TOKENS, WIDTH)).astype(np.float32)}


def main() -> None:
    function, inputs = build()
    compiled = af.jit(function)
    result = compiled(*inputs.values())
    print(f"transformer block: {result.dtype}{list(result.shape)}, mean {result.mean():.6f}")


if __name__ == "__main__":
    main()
