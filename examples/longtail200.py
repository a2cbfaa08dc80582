"""A long tail of 204 small operators on [32, 64], drawn with a fixed seed: arithmetic, activations, means, transposes.

A pool of six live tensors; every operator replaces one of its own inputs, so nothing is dead.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

import autofusion as af

COUNT = 194  # operators drawn; four come before and six after
TWO = ("meansub", "maxsub", "colmean", "sumT", "sq")  # kinds that count as two operators
ONE = ("add", "sub", "mul", "max", "min", "relu", "abs", "neg", "sig", "tanh", "muls", "adds", "row", "col")


def program() -> list[tuple[str, int, int]]:
    """(kind, first operand and result, second operand) for each step."""
    rng = random.Random(7)
    kinds = [*ONE, *TWO]
    steps: list[tuple[str, int, int]] = []
    count = 0
    while count < COUNT:
        kind, first = rng.choice(kinds), rng.randrange(6)
        second = (first + rng.randrange(1, 6)) % 6
        cost = 2 if kind in TWO else 1
        if count + cost <= COUNT:
            steps.append((kind, first, second))
            count += cost
    return steps


STEPS: dict[str, Callable] = {
    "add": lambda u, v, row, col: u + v,
    "sub": lambda u, v, row, col: u - v,
    "mul": lambda u, v, row, col: u * v,
    "max": lambda u, v, row, col: af.maximum(u, v),
    "min": lambda u, v, row, col: af.minimum(u, v),
    "relu": lambda u, v, row, col: af.relu(u),
    "abs": lambda u, v, row, col: abs(u),
    "neg": lambda u, v, row, col: -u,
    "sig": lambda u, v, row, col: af.sigmoid(u),
    "tanh": lambda u, v, row, col: af.tanh(u),
    "muls": lambda u, v, row, col: u * 0.5,
    "adds": lambda u, v, row, col: u + 0.25,
    "row": lambda u, v, row, col: u + row,
    "col": lambda u, v, row, col: u * col,
    "meansub": lambda u, v, row, col: u - u.mean(axis=-1, keepdims=True),
    "maxsub": lambda u, v, row, col: u - u.max(axis=-1, keepdims=True),
    "colmean": lambda u, v, row, col: u - u.mean(axis=0, keepdims=True),
    "sumT": lambda u, v, row, col: u + v.T.reshape(32, 64),
    "sq": lambda u, v, row, col: af.tanh(u * u),
}


def longtail200(x, y, row, col):
    """Four results from x, y [32, 64], row [64] and col [32, 1]."""
    pool = [x, y, x + row, y * col, x - y, x * 0.3]
    for kind, first, second in program():
        pool[first] = STEPS[kind](pool[first], pool[second], row, col)
    return af.tanh(pool[0] + pool[1]), af.tanh(pool[2]), pool[3].mean(axis=-1), af.sigmoid(pool[4] - pool[5])


def build() -> tuple[Callable, dict[str, np.ndarray]]:
    """The function and example inputs."""
    rng = np.random.RandomState(0)
    shapes = {"x": (32, 64), "y": (32, 64), "row": (64,), "col": (32, 1)}
    return longtail200, {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def main() -> None:
    function, inputs = build()
    compiled = af.jit(function)
    for position, result in enumerate(compiled(*inputs.values())):
        print(f"result {position}: {result.dtype}{list(result.shape)}, mean {result.mean():.6f}")


if __name__ == "__main__":
    main()
