"""Results as the tables of a document: `python -m benchmarks report RESULTS --markdown`."""

from __future__ import annotations

from typing import Any

from benchmarks.judge import geometric_mean, over
from benchmarks.peers import EVERYONE
from benchmarks.report import OURS, Result, best_peer, cells, plural, ratios

TITLES = {
    "ours-torch": "ours, PyTorch",
    "inductor": "Inductor",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "jax": "JAX",
    "iree": "IREE",
    "hand-c": "C by hand",
    "numba": "Numba",
    "in-place": "in place",
    "torch-fused": "PyTorch's step",
}


def tables(results: dict[str, Any]) -> str:
    """For each number of threads: everyone's times, and PyTorch's two ways with what they take to be ready."""
    lines: list[str] = []
    for threads, roofline in results["rooflines"].items():
        rows = {name: row for (name, count), row in cells(results).items() if count == int(threads)}
        lines += [f"### {plural(int(threads)).capitalize()}", "", *_everyone(rows, roofline["ms"]), ""]
        gains = [1 / ratio for ratio in ratios(results, int(threads)).values()]
        if gains:
            ahead = sum(gain > 1 for gain in gains)
            lines += [f"Geometric mean of the gains {geometric_mean(gains):.2f}; ahead in {ahead} of {len(gains)}.", ""]
        if any(each["peer"] == "ours-torch" for row in rows.values() for each in row):
            lines += [*_pytorch(rows), ""]
    return "\n".join(lines)


def _everyone(rows: dict[str, list[Result]], limits: dict[str, float]) -> list[str]:
    found = {each["peer"] for row in rows.values() for each in row}
    names = [name for name in EVERYONE if name in found]
    head = ["workload", *(TITLES.get(name, name) for name in names), "gain", "roofline", "cold / warm", "MiB"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for workload, row in rows.items():
        by_name = {each["peer"]: each for each in row}
        mine, best = by_name.get(OURS), best_peer(row)
        line = [f"`{workload}`", *(_time(by_name.get(name)) for name in names)]
        if mine and "median_ms" in mine:
            line += [f"{over(best, mine):.2f}" if best else ""]
            line += [f"{mine['median_ms'] / limits[workload]:.2f}", f"{mine['cold_s']:.2f} / {mine['warm_s']:.2f}"]
            line += [f"{mine['peak_bytes'] / 2**20:.0f}"]
        else:
            line += [""] * 4
        lines.append("| " + " | ".join(line) + " |")
    return lines


def _pytorch(rows: dict[str, list[Result]]) -> list[str]:
    """`torch.compile` by this package and by Inductor: times, their ratio, seconds until ready."""
    head = ["workload", "ours, PyTorch", "Inductor", "gain", "cold s", "Inductor", "warm s", "Inductor"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    gains = []
    for workload, row in rows.items():
        by_name = {each["peer"]: each for each in row}
        mine, other = by_name.get("ours-torch"), by_name.get("inductor")
        line = [f"`{workload}`", _time(mine), _time(other)]
        both = [each for each in (mine, other) if each is not None and "median_ms" in each]
        if len(both) == 2 and all(each["status"] == "right" for each in both):
            gains.append(over(both[1], both[0]))
            line.append(f"{gains[-1]:.2f}")
        else:
            line.append("")
        for key in ("cold_s", "warm_s"):
            line += [f"{each[key]:.2f}" if each and key in each else "" for each in (mine, other)]
        lines.append("| " + " | ".join(line) + " |")
    if gains:
        lines += ["", f"Geometric mean of the gains over Inductor {geometric_mean(gains):.2f}."]
    return lines


def _time(each: Result | None) -> str:
    """Milliseconds with their mark; empty where there are none."""
    if each is None or "median_ms" not in each:
        return ""
    value = each["median_ms"]
    text = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return text + (" ✗" if each["status"] == "wrong" else "") + ("" if each["settled"] else " ~")
