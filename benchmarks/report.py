"""Print, draw and compare results: `python -m benchmarks report FILE`, `python -m benchmarks compare OLD NEW`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import Parser
from benchmarks.judge import geometric_mean, over
from benchmarks.peers import EVERYONE, PEERS

Result = dict[str, Any]
OURS = "ours"
PACKAGE = (OURS, "ours-torch")  # the rows that are this package
NOISE = 0.1  # a ratio within this of 1 is no change


def read(path: str) -> dict[str, Any]:
    """Results that `run --output` wrote. Exits with one line where they are not."""
    try:
        found = json.loads(Path(path).read_text())
        if found["format"] != 1:
            raise ValueError(f"format {found['format']}, expected 1")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path}: not results of `python -m benchmarks run --output`: {error}") from None
    return dict(found)


def best_peer(results: Sequence[Result]) -> Result | None:
    """The fastest of a workload's peers with right numbers, in the rounds that this package took too; this package and
    the yardsticks are none."""
    right = [r for r in results if r["peer"] in PEERS and r["peer"] not in PACKAGE and r["status"] == "right"]
    mine = ours(results)
    return min(right, key=lambda r: over(r, mine) if mine else float(r["median_ms"]), default=None)


def ours(results: Sequence[Result]) -> Result | None:
    """This package's result of a workload, where its numbers are right."""
    return next((r for r in results if r["peer"] == OURS and r["status"] == "right"), None)


def cells(results: dict[str, Any]) -> dict[tuple[str, int], list[Result]]:
    """The results of each workload and number of threads."""
    found: dict[tuple[str, int], list[Result]] = {}
    for each in results["results"]:
        found.setdefault((each["workload"], each["threads"]), []).append(each)
    return found


def ratios(results: dict[str, Any], threads: int) -> dict[str, float]:
    """This package's time over that of the best peer with right numbers, by workload."""
    found = {}
    for (workload, count), row in cells(results).items():
        mine, best = ours(row), best_peer(row)
        if count == threads and mine and best:
            found[workload] = over(mine, best)
    return found


# -- text --------------------------------------------------------------------------------------------------------------
def text(results: dict[str, Any]) -> str:
    """Tables for people."""
    machine, settings = results["machine"], results["settings"]
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}",
        ", ".join(f"{name} {version}" for name, version in results["versions"].items()),
        f"{settings['rounds']} rounds of {settings['seconds']} s{', reduced sizes' if settings['small'] else ''}; "
        "milliseconds; ✗ wrong numbers, ~ no round on an undisturbed machine, * best peer with right numbers",
    ]
    for threads, roofline in results["rooflines"].items():
        rates = ", ".join(f"{rate:.0f} to {int(size) >> 10:,} KiB" for size, rate in roofline["copy"].items())
        lines.append(f"{plural(int(threads))}: {roofline['fma']:.0f} GFLOP/s; copies, GB/s: {rates}")
    for (workload, threads), row in cells(results).items():
        lines += ["", *_table(workload, threads, row, results["rooflines"][str(threads)]["ms"][workload])]
    for threads in results["rooflines"]:
        found = list(ratios(results, int(threads)).values())
        if found:
            faster = sum(r < 1 for r in found)
            mean = f"geometric mean of {OURS} over the best peer {geometric_mean(found):.3f}"
            lines += ["", f"{plural(int(threads))}: {mean}, faster in {faster} of {len(found)}"]
            lines += [f"  over {name} {mean:.3f} ({count})" for name, mean, count in _against(results, int(threads))]
    return "\n".join(lines)


def plural(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


def _against(results: dict[str, Any], threads: int) -> list[tuple[str, float, int]]:
    """Geometric means of this package's times over each peer's, where both are right."""
    found: dict[str, list[float]] = {}
    for (_, count), row in cells(results).items():
        mine = ours(row)
        if count == threads and mine:
            for each in row:
                if each["peer"] != OURS and each["status"] == "right":
                    found.setdefault(each["peer"], []).append(over(mine, each))
    return [(name, geometric_mean(values), len(values)) for name, values in found.items()]


COLUMNS = (("median", 10), ("min", 10), ("/best", 8), ("/roofline", 10), ("cold s", 9), ("warm s", 9), ("peak MiB", 10))
HEAD = f"{'peer':14s}" + "".join(name.rjust(width) for name, width in COLUMNS)


def _table(workload: str, threads: int, row: Sequence[Result], roofline: float) -> list[str]:
    best = best_peer(row)
    lines = [f"{workload}, {plural(threads)}, roofline {roofline:.4g} ms", HEAD]
    for each in row:
        if "median_ms" not in each:
            lines.append(f"{each['peer']:14s}{each['status']}: {each.get('reason', '')}")
            continue
        mark = "✗" if each["status"] == "wrong" else "*" if each is best else ""
        mark += "" if each["settled"] else "~"
        ratio = f"{over(each, best):.2f}" if best else "-"
        lines.append(
            f"{each['peer'] + mark:14s}{each['median_ms']:10.4g}{each['min_ms']:10.4g}{ratio:>8s}"
            f"{each['median_ms'] / roofline:10.2f}{each['cold_s']:9.2f}{each['warm_s']:9.2f}"
            f"{each['peak_bytes'] / 2**20:10.1f}"
        )
    return lines


# -- a drawing ---------------------------------------------------------------------------------------------------------
def plot(results: dict[str, Any], path: Path) -> None:
    """Times over the roofline, a panel for each number of threads: a mark for everyone whose numbers are right.

    Workloads with a roofline of less than a microsecond are left out: their time is that of the call.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    counts = [int(threads) for threads in results["rooflines"]]
    least = min((roofline["ms"] for roofline in results["rooflines"].values()), key=lambda ms: sum(ms.values()))
    names = [name for name, ms in least.items() if ms >= 1e-3]
    figure, panels = pyplot.subplots(
        1, len(counts), figsize=(1.5 + 6 * len(counts), 1.6 + 0.3 * max(len(names), 6)), sharey=True, squeeze=False
    )
    colours = dict(zip(EVERYONE, pyplot.get_cmap("tab20").colors, strict=False))
    marks: dict[str, Any] = {}
    for panel, threads in zip(panels[0], counts, strict=True):
        shown: dict[str, list[tuple[float, int]]] = {}
        for (workload, count), row in cells(results).items():
            for each in row if count == threads and workload in names else ():
                if each["status"] == "right":
                    over = each["median_ms"] / results["rooflines"][str(threads)]["ms"][workload]
                    shown.setdefault(each["peer"], []).append((over, names.index(workload)))
        for name, points in shown.items():
            style = {"marker": "D", "s": 46, "zorder": 3} if name == OURS else {"marker": "o", "s": 20, "alpha": 0.7}
            style["color"] = colours[name]
            marks[name] = panel.scatter([x for x, _ in points], [y for _, y in points], label=name, **style)
        panel.set(xscale="log", title=plural(threads), xlabel="time over the roofline")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter("")
        panel.set_yticks(range(len(names)), names)
        panel.grid(axis="x", alpha=0.3)
    panels[0][0].invert_yaxis()
    panels[0][-1].legend(
        handles=[marks[name] for name in EVERYONE if name in marks],
        fontsize=8,
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
    )
    figure.suptitle(f"{results['machine']['cpu']}, {results['machine']['cores']} cores")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def comparison(old: dict[str, Any], new: dict[str, Any]) -> str:
    """New times over old ones, of everything that both measured with right numbers."""
    known = {(r["workload"], r["threads"], r["peer"]): r for r in old["results"] if r["status"] == "right"}
    lines = []
    if old["machine"] != new["machine"]:
        lines.append(f"different machines: {old['machine']['cpu']} and {new['machine']['cpu']}")
    lines.append(f"{'workload':26s}{'threads':>8s}  {'peer':14s}{'old ms':>10s}{'new ms':>10s}{'new/old':>9s}")
    found: dict[str, list[float]] = {}
    for each in new["results"]:
        before = known.get((each["workload"], each["threads"], each["peer"]))
        if before is None or each["status"] != "right":
            continue
        ratio = each["median_ms"] / before["median_ms"]
        found.setdefault(each["peer"], []).append(ratio)
        word = "" if abs(ratio - 1) <= NOISE else "  faster" if ratio < 1 else "  slower"
        lines.append(
            f"{each['workload']:26s}{each['threads']:8d}  {each['peer']:14s}{before['median_ms']:10.4g}"
            f"{each['median_ms']:10.4g}{ratio:9.3f}{word}"
        )
    lines += [f"geometric mean, {name}: {geometric_mean(values):.3f}" for name, values in found.items()]
    return "\n".join(lines)


# -- the commands ------------------------------------------------------------------------------------------------------
def main(arguments: Sequence[str]) -> int:
    parser = Parser("report", "print and draw results")
    parser.add_argument("results", metavar="RESULTS", help="what `run --output` wrote")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a drawing, .png or .svg")
    parser.add_argument("--markdown", action="store_true", help="tables for a document")
    given = parser.parse_args(arguments)
    if given.plot is not None and given.plot.suffix not in (".png", ".svg"):
        parser.error(f"--plot {given.plot}: expected a name that ends in .png or .svg")
    results = read(given.results)
    if given.markdown:
        from benchmarks import markdown

        print(markdown.tables(results))
    else:
        print(text(results))
    if given.plot is not None:
        try:
            plot(results, given.plot)
        except ImportError as error:
            print(f"--plot: {error}; python -m pip install '.[bench]'", file=sys.stderr)
            return 2
    return 0


def compare(arguments: Sequence[str]) -> int:
    parser = Parser("compare", "two results side by side")
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("new", metavar="NEW")
    given = parser.parse_args(arguments)
    print(comparison(read(given.old), read(given.new)))
    return 0
