"""The vector math on the AI Core model: bounds over all exponents, exact edge values, where the reductions cancel most.

Inputs, truth and edges are those of the CPU's functions (test_vecmath); here every function is single precision alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import mpmath
import numpy as np
import pytest
from ascend import CHIPS, compiled, fallbacks, together
from test_vecmath import EDGES, FLOAT64, INF, NAN, bit_patterns, errors_in_ulp, single_inputs

from autofusion import api
from autofusion.dtypes import DType
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.runtime import aicore
from autofusion.targets.ascend.elementwise import FLOATS
from autofusion.targets.vecmath.functions import FUNCTIONS, NARROW

ROWS = {name: row for name, row in (FUNCTIONS | NARROW).items() if name in FLOATS}
TRUTH: dict[str, Callable[..., np.ndarray]] = {
    **FLOAT64,
    "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
    "lgamma": np.vectorize(lambda x: float(mpmath.loggamma(x)), otypes=[np.float64]),
}
NARROW_EDGES: dict[str, list[tuple[float, ...]]] = {
    "fmod": [
        *((6.0, 4.0, 2.0), (-6.0, 4.0, -2.0), (6.0, -4.0, 2.0), (6.0, 3.0, 0.0), (-6.0, 3.0, -0.0), (0.0, 1.0, 0.0)),
        *((-0.0, 1.0, -0.0), (1.0, 0.0, NAN), (0.0, 0.0, NAN), (INF, 1.0, NAN), (1.0, INF, 1.0), (-1.0, -INF, -1.0)),
        *((INF, INF, NAN), (NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, NAN, NAN), (1e-45, 1e-45, 0.0), (1e-45, 1.0, 1e-45)),
        *((3e38, 1e-45, 0.0), (2.0**127, 3.0, 2.0), (2.0**-149 * 5, 2.0**-149 * 3, 2.0**-149 * 2)),
    ],
    "erfc": [(0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, 2.0), (11.0, 0.0), (-5.0, 2.0), (1e-45, 1.0), (3e38, 0.0)],
    "cbrt": [(0.0, 0.0), (-0.0, -0.0), (27.0, 3.0), (-8.0, -2.0), (INF, INF), (-INF, -INF), (2.0**-126, 2.0**-42)],
    "lgamma": [
        *((1.0, 0.0), (2.0, 0.0), (0.0, INF), (-0.0, INF), (-1.0, INF), (-7.0, INF), (-8.0, INF), (-9.0, INF)),
        *((INF, INF), (-INF, INF), (3e38, INF), (-3e38, INF)),
    ],
}


@pytest.fixture(autouse=True)
def available() -> None:
    if reason := aicore.unavailable():
        pytest.skip(reason)


def graph_of(name: str, size: int) -> Graph:
    F = GraphBuilder("one")
    F.output(F.emit(name, [F.input(f"x{k}", DType.FLOAT32, (size,)) for k in range(ROWS[name].arity)], {}))
    return F.build()


def computed(name: str, inputs: list[np.ndarray], run: api.Compiled | None = None) -> np.ndarray:
    """The row of the op table on the model."""
    run = run or compiled(graph_of(name, inputs[0].size))
    assert not fallbacks(run)
    with np.errstate(all="ignore"):
        return np.asarray(run.run(inputs)[0])


@cache
def runs(step: int) -> dict[str, api.Compiled]:
    """Every function for the inputs of a step."""
    graphs = [graph_of(name, single_inputs(name, step)[0].size) for name in ROWS]
    return dict(zip(ROWS, together(graphs), strict=True))


def check(name: str, inputs: list[np.ndarray], run: api.Compiled | None = None) -> None:
    with np.errstate(all="ignore"):
        truth = TRUTH.get(name, getattr(np, name, None))(*(x.astype(np.float64) for x in inputs))
    found = computed(name, inputs, run)
    errors = errors_in_ulp(found, truth)
    worst = int(np.argmax(errors))
    where = [float(x[worst]) for x in inputs]
    assert errors[worst] <= ROWS[name].narrow32, f"{name}{where}: {found[worst]!r}, should be {truth[worst]!r}"
    number = ~np.isnan(truth)
    assert np.array_equal(np.signbit(found[number]), np.signbit(truth[number]))


def test_every_function_is_here() -> None:
    assert NARROW.keys() == NARROW_EDGES.keys()
    assert NARROW.keys() <= ROWS.keys() and {"sin", "tan", "pow", "exp2"} <= ROWS.keys()


@pytest.mark.parametrize("name", [name for name in ROWS if name != "lgamma"])
def test_bound(name: str) -> None:
    check(name, single_inputs(name, 400009), runs(400009)[name])


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in ROWS if name != "lgamma"])
def test_bound_dense(name: str) -> None:
    check(name, single_inputs(name, 20011), runs(20011)[name])


def test_log_gamma() -> None:
    """Above zero to 5 ulp. Below, where its zeros are, to 2^-22, or 8 ulp of larger values."""
    rng = np.random.default_rng(3)
    every = np.abs(bit_patterns(2000003))
    above = np.concatenate([every[(every > 0) & (every < 1e36)], rng.uniform(0, 12, 2000), rng.uniform(0.9, 2.1, 2000)])
    check("lgamma", [above.astype(np.float32)])
    below = rng.uniform(-15, 0, 4000).astype(np.float32)
    below = below[below != np.floor(below)]
    truth = np.array([float(mpmath.loggamma(float(x)).real) for x in below])
    error = np.abs(computed("lgamma", [below]) - truth)
    assert (error <= np.maximum(2.0**-22, 2.0**-20 * np.abs(truth))).all()


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_arguments_next_to_multiples_of_half_pi(name: str) -> None:
    """The three floats around n * pi/2, on both sides of the bound between the reductions, and for some huge n."""
    n = np.concatenate([np.arange(1, 6000), 3.0 ** np.arange(8, 79)])
    nearest = (n * (math.pi / 2)).astype(np.float32)
    below, above = (np.nextafter(nearest, np.float32(end)) for end in (0, INF))
    check(name, [np.concatenate([nearest, below, above])])


@pytest.mark.parametrize("chip", [CHIPS[0], *(pytest.param(chip, marks=pytest.mark.full) for chip in CHIPS[1:])])
def test_edges(chip: str) -> None:
    columns = {}
    for name, row in ROWS.items():
        rows = (EDGES | NARROW_EDGES)[name] + ([(NAN, NAN)] if row.arity == 1 else [])
        columns[name] = [np.array(column, np.float32) for column in zip(*rows, strict=True)]
    made = together([graph_of(name, arrays[0].size) for name, arrays in columns.items()], chip)
    for (name, (*inputs, expected)), run in zip(columns.items(), made, strict=True):
        found = computed(name, inputs, run)
        for *values, got, want in zip(*inputs, found, expected, strict=True):
            assert np.array_equal(got, want, equal_nan=True), f"{name}{values} = {got!r}, should be {want!r}"
            assert np.isnan(want) or np.signbit(got) == np.signbit(want), f"{name}{values} has the wrong sign"


def test_huge_arguments_enter_the_branch_alone() -> None:
    """A tile without any is not slowed down, and one huge argument among small ones changes no other result."""
    x = np.linspace(-3, 3, 3000).astype(np.float32)
    mixed = x.copy()
    mixed[1234] = 1e30
    plain, with_huge = computed("sin", [x]), computed("sin", [mixed])
    assert abs(float(with_huge[1234]) - math.sin(float(np.float32(1e30)))) < 1e-6
    mixed[1234], with_huge[1234] = x[1234], plain[1234]
    assert np.array_equal(plain, with_huge)
