"""The benchmarks: workloads compute what PyTorch does, wrong numbers and disturbed rounds do not count."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ascend import CHIPS
from steady import grown

import autofusion
from autofusion import api
from autofusion.frontends import onnx
from autofusion.jit import pipeline
from autofusion.runtime import aicore
from benchmarks import __main__ as command
from benchmarks import ascend, cost, judge, measure, memory, native, probes, report
from benchmarks.export import Arithmetic, Case, case_of
from benchmarks.peers import EVERYONE, PEERS, YARDSTICKS, Peer
from benchmarks.probes import SHARE, Reading, Roofline
from benchmarks.workloads import ROWS, WORKLOADS
from benchmarks.yardsticks import HAND_C, NUMBA

QUICK = ("t_", "a_chain20_16K", "b_gelu", "c_rmsnorm", "d_mlp4", "e_", "g_llama_decode", "h_dlrm", "i_")
NAMES = [
    pytest.param(row.name, marks=() if row.name.startswith(QUICK) else pytest.mark.full, id=row.name) for row in ROWS
]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The benchmarks' cache, of these tests alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOFUSION_BENCHMARK_DIR", str(tmp_path_factory.mktemp("benchmarks")))
        yield


def small(name: str) -> Case:
    pytest.importorskip("torch", reason="the workloads are PyTorch modules; extra `bench`")
    pytest.importorskip("onnxscript", reason="PyTorch exports through it; extra `bench`")
    if name.startswith("j_"):
        pytest.importorskip("transformers", reason="the model's package; extra `bench`")
    return case_of(name, small=True)


# -- the workloads -----------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_a_workload_in_one_launch(name: str) -> None:
    """Against eager PyTorch in float64; nothing runs on the host."""
    case = small(name)
    model = autofusion.compile(str(case.model))
    assert judge.share(model.run(case.inputs), case.expected(), case.eager()) <= 1
    assert model.explain().fallbacks == ()
    assert model.stats["launches_per_call"] == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_a_workload_needs_no_more_memory_than_eager_pytorch(name: str) -> None:
    small(name)
    found = memory.measure(name, small=True)
    case = small(name)
    assert found.outputs == sum(each.nbytes for each in case.eager())
    assert found.eager >= found.outputs
    assert found.ratio <= 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_a_workload_allocates_nothing_in_steady_state(name: str) -> None:
    """Of arrays, of tensors, and with places of the caller's own."""
    case = small(name)
    torch = pytest.importorskip("torch")
    model, arrays = autofusion.compile(str(case.model)), case.inputs
    out = [np.empty_like(each) for each in model.run(arrays)]
    tensors = [torch.from_numpy(each) for each in arrays]
    calls = [lambda: model(*arrays), lambda: model(*arrays, out=out)]
    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        calls.append(lambda: model(*tensors))
    for call in calls:
        found = grown(call, 30)
        assert found.traced < 4096 and found.fresh == 0


@pytest.mark.filterwarnings("ignore")
def test_the_peak_of_eager_pytorch() -> None:
    """Two intermediates are alive at once, then one and the result; views and what is written in place are not made."""
    torch = pytest.importorskip("torch")

    def work(x: Any) -> Any:
        y = x + 1
        z = y.T * 2
        del y
        return z.add_(1)[:1].clone()

    assert memory.peak(work, (torch.ones(10, 10),)) == 2 * 400
    assert memory.peak(lambda x: x.add_(1).T, (torch.ones(4), torch.ones(4))[:1]) == 0


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", [row.name for row in ROWS if row.name[0] in "tabcdefgi"])
def test_a_workload_on_the_ai_core_model(name: str, chip: str) -> None:
    if reason := aicore.unavailable():
        pytest.skip(reason)
    small(name)
    found = ascend.measure(name, chip)
    assert found["ok"] and found["fallbacks"] == [] and found["fused"]["launches"] == 1
    assert found["ratio"] >= 1


@pytest.mark.filterwarnings("ignore")
def test_the_arithmetic_of_a_workload() -> None:
    work = small("d_mm_add_relu_512").arithmetic
    m = k = n = 128
    assert work.bytes == 4 * (m * k + k * n + n + m * n)
    assert (work.flops, work.elements) == (2 * m * k * n, 2 * m * n)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("peer", ["jax", "hand-c", "numba", "in-place", "torch-fused"])
def test_a_peer_of_our_own_making_is_right(peer: str) -> None:
    """The translation to JAX and the loops by hand, on what they have of the small workloads."""
    try:
        EVERYONE[peer].start()
        native.compiler()
    except native.Missing as missing:
        pytest.skip(str(missing))
    names = {"jax": "g_llama_decode_s1_kv127", "hand-c": "c_rmsnorm_residual"}
    name = names.get(peer, "i_adamw_8M")
    case = small(name)
    found = EVERYONE[peer].load(WORKLOADS[name], case, 1)()
    assert judge.share([np.asarray(x) for x in found], case.expected(), case.eager()) <= 1


def test_rows_are_distinct_and_yardsticks_have_rows() -> None:
    assert len(WORKLOADS) == len(ROWS) == 21
    assert {*HAND_C, *NUMBA} <= {row.build for row in ROWS}
    assert {row.name[0] for row in ROWS} == set("tabcdefghij")
    assert all(row.small.keys() == row.full.keys() for row in ROWS)


# -- what counts -------------------------------------------------------------------------------------------------------
EXACT = np.array([1.0, -2.0, 3.0])


@pytest.mark.parametrize(
    ("found", "right"),
    [
        (EXACT + 1e-6, True),
        (EXACT + 1e-3, False),
        (EXACT * np.nan, False),
        (EXACT[:2], False),
        (EXACT.reshape(3, 1), False),
    ],
)
def test_right_numbers(found: Any, right: bool) -> None:
    assert (judge.share([found], [EXACT], [EXACT.astype(np.float32)]) <= 1) is right


def test_an_error_like_that_of_eager_is_right() -> None:
    """The mean of centred values is nothing but rounding."""
    exact, eager = np.array([1e-17, -2e-17]), np.array([3e-8, -1e-8])
    assert judge.share([eager * 2], [exact], [eager]) <= 1
    assert judge.share([eager * 50], [exact], [eager]) > 1


def measured(median: float, fma: float = 100.0, copy: float = 20.0) -> dict[str, Any]:
    return {"median_ms": median, "min_ms": median - 1, "probes": [[100.0, 20.0], [fma, copy]]}


def test_rounds_whose_probe_is_off_are_thrown_away() -> None:
    best = Reading(100.0, 20.0)
    rounds = [measured(4), measured(99, fma=100 * SHARE - 1), measured(6), measured(98, copy=20 * SHARE - 1)]
    found = judge.settle(rounds, best)
    assert [each["kept"] for each in rounds] == [True, False, True, False]
    assert found == {"median_ms": 5, "min_ms": 3, "settled": True}


def test_where_no_round_counts_the_result_says_so() -> None:
    found = judge.settle([measured(4, fma=10), measured(6, fma=10)], Reading(100.0, 20.0))
    assert found == {"median_ms": 5, "min_ms": 3, "settled": False}


def taken(*rounds: tuple[int, float, bool]) -> dict[str, Any]:
    """A result of rounds: number, milliseconds, whether it counts."""
    found = [{"number": number, "median_ms": ms, "kept": kept} for number, ms, kept in rounds]
    return {"rounds": found, "median_ms": float(np.median([ms for _, ms, _ in rounds]))}


def test_times_are_compared_round_by_round() -> None:
    """The machine gets three times slower; one of the two missed a round."""
    mine = taken((0, 1.0, True), (1, 2.0, True), (2, 3.0, True), (4, 3.0, True))
    other = taken((0, 2.0, True), (1, 4.0, True), (2, 6.0, True), (3, 6.0, True), (5, 6.0, True))
    assert mine["median_ms"] / other["median_ms"] != 0.5
    assert judge.over(mine, other) == pytest.approx(0.5) and judge.over(other, mine) == pytest.approx(2)
    mine, other = taken((0, 9.0, True), (1, 11.0, True)), taken((0, 10.0, True), (1, 10.0, True))
    assert judge.over(mine, other) * judge.over(other, mine) == pytest.approx(1)


def test_disturbed_rounds_are_compared_only_where_there_is_no_other() -> None:
    mine = taken((0, 1.0, True), (1, 9.0, False), (2, 9.0, True))
    assert judge.over(mine, taken((0, 2.0, True), (1, 9.0, True), (2, 9.0, False))) == pytest.approx(0.5)
    assert judge.over(mine, taken((1, 3.0, False))) == pytest.approx(3)
    assert judge.over({"rounds": [], "median_ms": 1.0}, {"rounds": [], "median_ms": 4.0}) == pytest.approx(0.25)


def test_a_round_in_place_of_a_disturbed_one_is_this_packages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer's first two rounds are disturbed; this package has enough, and takes more beside it."""

    class Fake:
        def __init__(self, *given: Any) -> None:
            pass

        def answer(self) -> dict[str, Any]:
            return {"status": "right", "ready_s": 0.1}

        def round(self, seconds: float) -> dict[str, Any]:
            return {"median_ms": 1.0, "min_ms": 1.0}

        def end(self) -> None:
            pass

    def enough(result: dict[str, Any], settings: Any, readings: Any) -> bool:
        return result["peer"] == "ours" or len(result["rounds"]) >= 4

    monkeypatch.setattr(measure, "Process", Fake)
    monkeypatch.setattr(measure, "_enough", enough)
    monkeypatch.setattr(probes, "take", lambda threads: Reading(100.0, 20.0))
    settings = measure.Settings((), (PEERS["ours"], PEERS["eager"]), (1,), 2, 0.1, True)
    results = measure.measure(WORKLOADS["t_tiny_add16"], None, 1, settings, [])  # type: ignore[arg-type]
    assert [[each["number"] for each in r["rounds"]] for r in results] == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_a_moment_of_higher_clocks_is_no_measure() -> None:
    assert probes.best([Reading(100.0, 20.0)] * 18 + [Reading(50.0, 10.0), Reading(180.0, 60.0)]) == Reading(
        100.0, 20.0
    )


def test_the_roofline_is_of_bytes_or_of_arithmetic() -> None:
    limits = Roofline(100.0, {1 << 20: 50.0, 1 << 28: 10.0})
    assert limits.milliseconds(Arithmetic(bytes=1_000_000, flops=0, elements=10)) == pytest.approx(0.02)
    assert limits.milliseconds(Arithmetic(bytes=100_000_000, flops=0, elements=10)) == pytest.approx(10)
    assert limits.milliseconds(Arithmetic(bytes=8, flops=10**9, elements=10**9)) == pytest.approx(30)


# -- results -----------------------------------------------------------------------------------------------------------
def result(peer: str, median: float, status: str = "right", settled: bool = True) -> dict[str, Any]:
    return {
        "workload": "c_softmax",
        "peer": peer,
        "threads": 1,
        "status": status,
        "median_ms": median,
        "min_ms": median * 0.9,
        "cold_s": 1.5,
        "warm_s": 0.5,
        "peak_bytes": 3 << 20,
        "settled": settled,
        "rounds": [],
    }


RESULTS: dict[str, Any] = {
    "format": 1,
    "machine": {"cpu": "a CPU", "cores": 2, "memory_bytes": 8 << 30, "system": "Linux"},
    "versions": {"python": "3.12"},
    "settings": {"rounds": 3, "seconds": 0.1, "small": False},
    "rooflines": {"1": {"fma": 100.0, "copy": {"32768": 99.0}, "ms": {"c_softmax": 2.0}}},
    "arithmetic": {"c_softmax": {"bytes": 1, "flops": 1, "elements": 1}},
    "results": [
        result("ours", 4.0),
        result("eager", 8.0, settled=False),
        result("inductor", 1.0, "wrong"),
        result("onnxruntime", 5.0),
        result("hand-c", 2.0),
        {
            "workload": "c_softmax",
            "peer": "jax",
            "threads": 1,
            "status": "not installed",
            "reason": "jax is not installed",
        },
    ],
}


def stored(tmp_path: Path, results: Any, name: str = "results.json") -> str:
    path = tmp_path / name
    path.write_text(json.dumps(results))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["benchmarks", *arguments])
        try:
            code = command.main()
        except SystemExit as exit:
            if isinstance(exit.code, str):
                return 1, "", exit.code
            code = int(exit.code or 0)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_best_peer_is_right_and_no_yardstick() -> None:
    best = report.best_peer(RESULTS["results"])
    assert best is not None and best["peer"] == "onnxruntime"
    assert report.ratios(RESULTS, 1) == {"c_softmax": 0.8}
    assert report.best_peer([result("ours", 1.0), result("eager", 1.0, "wrong")]) is None


def test_report_as_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = {**RESULTS, "results": [*RESULTS["results"], result("ours-torch", 4.5)]}
    code, out, _ = run(capsys, "report", stored(tmp_path, both), "--markdown")
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("|")]
    head, _, row, torch_head, _, torch_row = table
    assert code == 0 and len(head) == len(row) and len(torch_head) == len(torch_row)
    shown = dict(zip(head, row, strict=True))
    assert (shown["ours"], shown["eager"], shown["Inductor"], shown["JAX"]) == ("4", "8 ~", "1 ✗", "")
    assert (shown["gain"], shown["roofline"], shown["MiB"]) == ("1.25", "2.00", "3")
    assert torch_row[1:4] == ["4.5", "1 ✗", ""]
    assert "Geometric mean of the gains 1.25; ahead in 1 of 1." in out


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "report", stored(tmp_path, RESULTS))
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert code == 0
    assert rows["ours"] == ["4", "3.6", "0.80", "2.00", "1.50", "0.50", "3.0"]
    assert rows["onnxruntime*"][2] == "1.00"
    assert {"inductor✗", "eager~", "hand-c"} <= rows.keys()
    assert "jax           not installed: jax is not installed" in out
    assert "1 thread: geometric mean of ours over the best peer 0.800, faster in 1 of 1" in out
    assert "over hand-c 2.000 (1)" in out and "over inductor" not in out


def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra `bench` draws with it")
    for name in ("drawing.svg", "drawing.png"):
        assert run(capsys, "report", stored(tmp_path, RESULTS), "--plot", str(tmp_path / name))[0] == 0
        assert (tmp_path / name).stat().st_size > 1000


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = copy.deepcopy(RESULTS)
    newer["results"][0]["median_ms"] = 2.0
    newer["results"][3]["median_ms"] = 5.1
    code, out, _ = run(capsys, "compare", stored(tmp_path, RESULTS, "old"), stored(tmp_path, newer, "new"))
    rows = {line.split()[2]: line.split()[3:] for line in out.splitlines() if line.startswith("c_softmax")}
    assert code == 0
    assert rows["ours"] == ["4", "2", "0.500", "faster"]
    assert rows["onnxruntime"] == ["5", "5.1", "1.020"]
    assert "inductor" not in out and "geometric mean, ours: 0.500" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--workloads", "z_nothing"), ("workload 'z_nothing'", "t_tiny_add16")),
        (("run", "--peers", "tvm"), ("peer 'tvm'", "onnxruntime")),
        (("run", "--yardsticks", "fortran"), ("yardstick 'fortran'", "hand-c")),
        (("run", "--threads", "0"), ("--threads '0'",)),
        (("run", "--rounds", "0"), ("--rounds 0",)),
        (("micro", "cache"), ("cache", "gemm, math, launch, barrier, compile")),
        (("ascend", "z_nothing"), ("z_nothing", "c_softmax")),
        (("export", "z_nothing"), ("workload 'z_nothing'",)),
        (("cost", "z_nothing"), ("workload 'z_nothing'", "c_softmax")),
        (("measure",), ("command 'measure'", "run, report, compare")),
        (("report", "results.txt", "--plot", "x.pdf"), ("--plot x.pdf", ".png or .svg")),
        (("report", "/nowhere/results.json"), ("/nowhere/results.json", "No such file")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_errors_are_one_line(
    arguments: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code != 0 and out == ""
    assert len(err.strip().splitlines()) == 1
    assert all(word in err for word in words)


@pytest.mark.parametrize("content", ["{}", "[1]", '{"format": 7}', "no JSON"])
def test_other_files_are_no_results(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file.json"
    path.write_text(content)
    code, _, err = run(capsys, "report", str(path))
    assert code != 0 and str(path) in err and "not results" in err


# -- measuring ---------------------------------------------------------------------------------------------------------
def test_beginnings_of_names() -> None:
    settings, output = measure.settings_of(["--workloads", "a_,c_softmax", "--peers", "ours", "--threads", "1"])
    assert [row.name for row in settings.workloads] == ["a_chain20_4M", "a_chain20_16K", "c_softmax"]
    assert [peer.name for peer in settings.peers] == ["ours", *YARDSTICKS]
    assert output is None


def test_a_peer_that_is_not_installed() -> None:
    peer = dataclasses.replace(PEERS["jax"], modules=("json", "no_such_package_here"))
    with pytest.raises(native.Missing, match="no_such_package_here is not installed"):
        peer.start()
    assert Peer("nobody", peer.load, (), ("no-such-package-here",)).versions() == {}


@pytest.mark.filterwarnings("ignore")
def test_ways_to_compute_a_workload() -> None:
    """Groupings and schedules other than the compiler's give the same numbers, and each has a prediction."""
    case = small("c_layernorm_gelu")
    made = cost.compilations(onnx.read(str(case.model)), api.find_target("cpu"))
    assert {"partition", "unfused", "streamed"} <= made.keys()
    for each in made.values():
        run = autofusion.Compiled(each.graph, pipeline.load(each), each)
        assert judge.share(run.run(case.inputs), case.expected(), case.eager()) <= 1
    found = cost.measure("c_layernorm_gelu", small=True, rounds=1)
    assert [way.name for way in found] == list(made)
    assert all(way.predicted > 0 and way.measured > 0 for way in found)


@pytest.mark.filterwarnings("ignore")
def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In processes of their own, eager PyTorch beside this package."""
    small("t_tiny_add16")
    try:
        native.compiler()
    except native.Missing as missing:
        pytest.skip(str(missing))
    given = "run --workloads t_ --peers ours,eager --yardsticks= --threads 1 --rounds 1 --seconds 0.02 --small --output"
    code, out, _ = run(capsys, *given.split(), str(tmp_path / "results.json"))
    results = report.read(str(tmp_path / "results.json"))
    assert code == 0 and report.text(results) == out.rstrip("\n")
    assert [each["peer"] for each in results["results"]] == ["ours", "eager"]
    for each in results["results"]:
        assert each["status"] == "right" and each["share"] <= 1
        assert 0 < each["min_ms"] <= each["median_ms"] < 100
        assert each["cold_s"] > 0 and each["warm_s"] > 0 and each["peak_bytes"] >= 0
    assert results["machine"]["cores"] >= 1 and "torch" in results["versions"]
    assert math.isfinite(results["rooflines"]["1"]["ms"]["t_tiny_add16"])


def test_a_run_that_is_interrupted_leaves_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second of two workloads is interrupted: FILE.part has the first one's, and an older FILE stays."""
    small("t_tiny_add16"), small("a_chain20_16K")
    try:
        native.compiler()
    except native.Missing as missing:
        pytest.skip(str(missing))
    whole = measure.measure

    def interrupted(workload: Any, *given: Any) -> Any:
        if workload.name != "t_tiny_add16":
            raise KeyboardInterrupt
        return whole(workload, *given)

    given = "run --workloads t_,a_chain20_16K --peers ours --yardsticks= --threads 1 --rounds 1 --seconds 0.02 --small"
    path = tmp_path / "results.json"
    path.write_text("older")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(measure, "measure", interrupted)
        run(capsys, *given.split(), "--output", str(path))
    code, out, _ = run(capsys, "report", f"{path}.part")
    assert path.read_text() == "older" and code == 0 and "t_tiny_add16, 1 thread" in out and "a_chain20_16K" not in out
