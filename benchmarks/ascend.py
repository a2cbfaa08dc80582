"""Fused against op by op on the AI Core model: `python -m benchmarks ascend [names ...] [--target ascend950] [--json]`.

Cases are the examples, small graphs that are built here, and the workloads at their reduced sizes, as PyTorch exports
them and the ONNX front end reads them (these need the extra `bench`). Each is compiled twice by the same compiler, as
it fuses and with every operator a launch of its own, run on the model, and the fused results are checked against the
reference. Times are modelled, for ranking; nothing here was measured on hardware. All cases take some minutes, most of
them in the C++ compiler, less once its results are cached.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autofusion import api
from autofusion.cli import check, compare, inputs, models
from autofusion.cli.run import fresh
from autofusion.cli.terminal import size
from autofusion.dtypes import DType
from autofusion.errors import AutofusionError
from autofusion.frontends import opseq
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph
from autofusion.jit.explain import explain
from autofusion.runtime.ascend import AscendExecutable, Counters
from benchmarks.command import Parser
from benchmarks.export import case_of
from benchmarks.workloads import WORKLOADS

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
F32 = DType.FLOAT32
ROWS, COLUMNS = 512, 1024


def chain(F: GraphBuilder) -> None:
    """Elementwise operators, one behind the other."""
    x, y = (F.input(name, F32, (ROWS, COLUMNS)) for name in "xy")
    for _ in range(3):
        x = F.mul(F.sigmoid(F.add(F.mul(x, 0.5), y)), F.tanh(x))
    F.output(x)


def softmax(F: GraphBuilder) -> None:
    F.output(F.softmax(F.input("x", F32, (ROWS, COLUMNS)), axis=-1))


def layernorm_gelu(F: GraphBuilder) -> None:
    x = F.input("x", F32, (ROWS, COLUMNS))
    F.output(F.gelu(F.layer_norm(x, F.input("scale", F32, (COLUMNS,)), F.input("shift", F32, (COLUMNS,)))))


def _linear(F: GraphBuilder) -> Any:
    x, w, b = F.input("x", F32, (256, 512)), F.input("w", F32, (512, 256)), F.input("b", F32, (256,))
    return F.add(F.matmul(x, w), b)


def matmul_bias_relu(F: GraphBuilder) -> None:
    F.output(F.relu(_linear(F)))


def matmul_gelu(F: GraphBuilder) -> None:
    F.output(F.gelu(_linear(F)))


def attention(F: GraphBuilder) -> None:
    """softmax(Q Kᵀ / sqrt(d)) V, from its plain formula."""
    heads, length, depth = 4, 128, 64
    q, v = (F.input(name, F32, (heads, length, depth)) for name in "qv")
    k = F.input("k", F32, (heads, depth, length))
    scores = F.softmax(F.mul(F.matmul(q, k), 1 / math.sqrt(depth)), axis=-1)
    F.output(F.matmul(scores, v))


def adamw(F: GraphBuilder) -> None:
    """One step of the optimizer: moments and parameters."""
    p, g, m, v = (F.input(name, F32, (1 << 20,)) for name in "pgmv")
    m = F.add(F.mul(m, 0.9), F.mul(g, 0.1))
    v = F.add(F.mul(v, 0.999), F.mul(F.mul(g, g), 0.001))
    step = F.div(F.mul(m, 10.0), F.add(F.sqrt(F.mul(v, 1000.0)), 1e-8))
    F.output(F.sub(F.mul(p, 1 - 1e-5), F.mul(step, 1e-3)))
    F.output(m)
    F.output(v)


def long_tail(F: GraphBuilder) -> None:
    """Small arithmetic, activations and row reductions, sixty of them."""
    x, y = (F.input(name, F32, (64, 256)) for name in "xy")
    for number in range(6):
        x = F.add(F.mul(x, 0.5), F.tanh(y))
        y = F.sub(y, F.mean(F.abs(x), axes=(1,), keepdims=True))
        x = F.maximum(F.minimum(F.mul(x, y), 4.0), -4.0 + number / 8)
        y = F.sigmoid(F.sub(y, x))
    F.output(x)
    F.output(y)


BUILT: dict[str, Callable[[GraphBuilder], None]] = {
    "small_chain": chain,
    "small_softmax": softmax,
    "small_layernorm_gelu": layernorm_gelu,
    "small_matmul_bias_relu": matmul_bias_relu,
    "small_matmul_gelu": matmul_gelu,
    "small_attention": attention,
    "small_adamw": adamw,
    "small_long_tail": long_tail,
}
FILES = {path.stem: path for path in sorted(EXAMPLES.glob("*.json"))}


def graph_of(name: str) -> Graph:
    """A case by name. Raises ImportError for a workload where PyTorch is missing."""
    if name in FILES:
        return opseq.read(FILES[name])
    if name in WORKLOADS:
        return models.read(str(case_of(name, small=True).model), [])
    builder = GraphBuilder(name)
    BUILT[name](builder)
    return builder.build()


def attempt(name: str, target: str) -> dict[str, Any]:
    """One case, or why it cannot be: `error`."""
    try:
        return measure(name, target)
    except ImportError as error:
        return {"name": name, "ok": True, "skipped": f"{error}; python -m pip install '.[bench]'"}
    except (AutofusionError, AssertionError, RuntimeError) as error:
        return {"name": name, "ok": False, "error": " ".join(f"{type(error).__name__}: {error}".split())[:400]}


def measure(name: str, target: str) -> dict[str, Any]:
    """One case: what the model counted fused and op by op, and the ratio of the modelled times."""
    graph = graph_of(name)
    arrays, sizes = inputs.prepare(graph, [], [], 0)
    if name in WORKLOADS:
        arrays = case_of(name, small=True).inputs  # its indices are those of rows that exist
    compiled = api.compile_graph(graph, target)
    assert compiled.compilation is not None
    results = compiled.run(fresh(graph, arrays))
    differences = check.compare(graph, arrays, results)
    _, separate = compare.unfused(graph, target, "default")
    separate(fresh(graph, arrays))
    fused, unfused = (_counters(each) for each in (compiled.executable, separate))
    explanation = explain(compiled.compilation, sizes)
    return {
        "name": name,
        "sizes": dict(WORKLOADS[name].small) if name in WORKLOADS else {},
        "ops": explanation.ops,
        "groups": len(explanation.groups),
        "fallbacks": list(explanation.fallbacks),
        "ok": all(difference.ok for difference in differences),
        "gm_bytes_compulsory": explanation.gm_bytes_compulsory,
        "fused": _row(fused),
        "unfused": _row(unfused),
        "ratio": unfused.microseconds / fused.microseconds,
    }


def _counters(executable: object) -> Counters:
    assert isinstance(executable, AscendExecutable)
    counters = executable.counters
    if counters is None:
        raise SystemExit("this case ran on a device: the model's figures are made where there is none")
    return counters


def _row(found: Counters) -> dict[str, Any]:
    return {
        "launches": found.launches,
        "barriers": found.barriers,
        "gm_bytes": found.gm_bytes,
        "workspace_bytes": found.workspace_bytes,
        "cores": found.cores,
        "model_us": found.microseconds,
    }


HEAD = (
    f"{'case':24s} {'launches':>9s} {'GM bytes: fused':>15s} {'compulsory':>11s} {'op by op':>11s} {'workspace':>11s} "
    f"{'barriers':>8s} {'fused us':>10s} {'op by op':>10s} {'ratio':>6s}"
)


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "fused" not in row:
        return f"{row['name']:24s} {row.get('error') or row['skipped']}"
    fused, unfused = row["fused"], row["unfused"]
    launches = f"{fused['launches']}/{unfused['launches']}"
    moved = f"{size(fused['gm_bytes']):>15s} {size(row['gm_bytes_compulsory']):>11s} {size(unfused['gm_bytes']):>11s}"
    times = f"{fused['model_us']:10,.1f} {unfused['model_us']:10,.1f} {row['ratio']:6.2f}"
    wrong = "" if row["ok"] else "  WRONG"
    hosted = f"  on the host: {len(row['fallbacks'])}" if row["fallbacks"] else ""
    workspace = size(fused["workspace_bytes"])
    return f"{row['name']:24s} {launches:>9s} {moved} {workspace:>11s} {fused['barriers']:8d} {times}{wrong}{hosted}"


def sizes() -> str:
    """The workloads' reduced sizes."""
    rows = (f"{row.name}: {', '.join(f'{k} {v}' for k, v in row.small.items())}" for row in WORKLOADS.values())
    return "reduced sizes\n  " + "\n  ".join(rows)


def main(arguments: Sequence[str]) -> int:
    known = [*FILES, *BUILT, *WORKLOADS]
    parser = Parser("ascend", __doc__, sizes())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"cases: {', '.join(known)} (all)")
    parser.add_argument("--target", default="ascend910b", choices=("ascend910b", "ascend950"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    for name in given.names:
        if name not in known:
            parser.error(f"{name}: expected one of {', '.join(known)}")
    rows = []
    if not given.json:
        print(f"{given.target} on the AI Core model; untested on hardware\n{HEAD}")
    for name in given.names or known:
        rows.append(attempt(name, given.target))
        if not given.json:
            print(line(rows[-1]), flush=True)
    if given.json:
        print(json.dumps({"target": given.target, "machine": "model", "cases": rows}, indent=2))
    elif any(row["name"] in WORKLOADS for row in rows):
        print(sizes())
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
