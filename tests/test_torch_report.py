"""The text of `explain()`: what is alike is said once, long lists are cut, and `full` says all."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: python -m pip install torch")

import autofusion  # noqa: E402
from autofusion.frontends.torch import summary  # noqa: E402
from autofusion.frontends.torch.aten import ATEN  # noqa: E402
from autofusion.frontends.torch.report import Report  # noqa: E402
from autofusion.torch import Backend  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh")]


class Sort(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.sort(-1)[0]


def layers(count: int, cut: bool) -> Any:
    """Alike; `cut`: with an operator between them that PyTorch runs."""

    def layer() -> Any:
        return torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), *([Sort()] if cut else [])
        )

    return torch.nn.Sequential(*(layer() for _ in range(count)))


def test_regions_that_are_alike_are_said_once() -> None:
    backend = Backend()
    with torch.no_grad():
        torch.compile(layers(7, cut=True), backend=backend)(torch.randn(4, 8))
    short, full = str(backend.explain()), str(backend.explain(full=True))
    (line,) = [line for line in short.splitlines() if "alike, on" in line]
    assert line.strip().startswith("region0 to region6, alike, on cpu:") and line.endswith("1 launch each")
    assert short.endswith("explain(full=True) says all") and len(short) < len(full) / 2
    assert [f"region{number} on" in full for number in range(7)] == [True] * 7 and "alike" not in full


def test_groups_and_refusals_that_are_alike_are_said_once() -> None:
    backend = Backend()
    with torch.no_grad():
        torch.compile(lambda *given: [x.flip(0) @ x.t() for x in given], backend=backend)(
            *(torch.randn(64, 64) for _ in range(9))
        )
    (region,) = backend.explain().programs[0].launches
    groups = [line for line in str(backend.explain()).splitlines() if line.strip().startswith("group ")]
    assert len(region.groups) >= 9 > len(groups)
    assert any("8 more alike" in line for line in groups)


def test_a_recompile_is_said_once() -> None:
    backend = Backend()
    function = torch.compile(layers(1, cut=False), backend=backend, dynamic=False)
    for size in (3, 4):
        function(torch.randn(size, 8)).sum().backward()
    report = backend.explain()
    assert len(report.programs) == 4 and len(report.recompiles) == 1
    assert str(report).count("compiled again") == 1


def test_graphs_that_are_alike_are_said_once() -> None:
    backend = Backend()
    functions = [lambda x: x.exp() + 1, lambda y: y.exp() + 1, lambda z: 1 + z.exp()]
    for function in functions:
        torch.compile(function, backend=backend)(torch.randn(5))
    lines = str(backend.explain()).splitlines()
    assert sum("region0" in line for line in lines) == 1
    assert sum(line.endswith("; alike graph 0 (inference)") for line in lines) == 2


def test_a_long_report_is_cut_and_says_so() -> None:
    """However many groups and kinds of fallbacks there are, the text has at most about two screens; nothing is cut in
    the full one."""
    backend = Backend()
    torch.compile(lambda x: x.exp() + 1, backend=backend)(torch.randn(5))
    (program,) = backend.explain().programs
    (region,) = program.launches
    groups = tuple(
        dataclasses.replace(region.groups[0], name=f"g{n}", bytes_read=n, operators=("exp",) * (n + 1))
        for n in range(90)
    )
    region = dataclasses.replace(region, groups=groups)
    many = Report((dataclasses.replace(program, launches=(region,) * 5),))
    lines = str(many).splitlines()
    assert len(lines) <= summary.LINES and max(map(len, lines)) < 200
    assert any("84 groups" in line for line in lines) and "full=True" in lines[-1]
    whole = str(dataclasses.replace(many, full=True))
    assert all(f" g{n}: " in whole for n in range(90)) and whole.count("region0 on") == 5


def test_a_short_report_is_whole() -> None:
    module = autofusion.compile(torch.nn.Softmax(-1), (torch.randn(3, 4),))
    assert str(module.explain()) == str(module.explain(full=True))
    assert "schedule" in str(module.explain()) and "shortened" not in str(module.explain())


def reasons(function: Any, *arguments: Any, **options: Any) -> str:
    backend = Backend()
    torch.compile(function, backend=backend, **options)(*arguments)
    return "; ".join(each.reason for each in backend.explain().fallbacks)


def test_reasons_are_sentences() -> None:
    """What decides is named, numbers are grouped, and nothing of this package's inside shows."""
    x, index = torch.randn(600), torch.randint(0, 600, (600,))
    assert reasons(lambda x, i: torch.index_put(x, (i,), x), x, index) == (
        "it would compare 600 places with 600 indices; at most 131,072 comparisons are compiled"
    )
    assert reasons(lambda x: torch.searchsorted(x.cumsum(0), x), x) == (
        "it would compare 600 values with 600 boundaries; at most 131,072 comparisons are compiled"
    )


def test_types_in_reasons_are_written_as_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATEN, "exp.default", lambda n: n.F.transpose(n.F.exp(n.x), axes=(1, 0)))
    found = reasons(lambda x: x.exp(), torch.randn(2, 3))
    assert found == "exp.default: made float32[3,2], PyTorch has float32[2,3]"


def test_one_operator_is_not_several() -> None:
    module = autofusion.compile(torch.nn.Sigmoid(), (torch.randn(3),))
    assert str(module.explain()).startswith("Sigmoid: 1 operator -> 1 launch, 0 calls; 1 kernel, ")


def test_what_the_cache_had_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFUSION_CACHE_DIR", str(tmp_path))
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1)), torch.randn(3, 8)
    for hits in (0, 1):
        backend = Backend()
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(model, backend=backend)(x)
        module = autofusion.compile(model, (x,))
        report = backend.explain()
        assert report.kernels == report.programs[0].kernels >= 1
        assert report.cache_hits == hits * report.kernels
        assert f"kernel, {hits} from the cache" in str(report).splitlines()[0] or report.kernels > 1
        assert module.stats["cache_hits"] == module.stats["kernels"] >= 1, "the backend compiled them"


# -- what Dynamo does not trace ----------------------------------------------------------------------------------------
class Tagger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(10, 4)
        self.layer, self.head = torch.nn.LSTM(4, 5, batch_first=True), torch.nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(self.words(x))[0])


def test_a_function_that_dynamo_leaves_is_named_with_its_hint() -> None:
    backend, model, x = Backend(), Tagger(), torch.randint(0, 10, (2, 3))
    with torch.no_grad():
        torch.compile(model, backend=backend)(x)
    report = backend.explain()
    (found,) = [each for each in report.given_up if each.function.startswith("forward (test_torch_report.py:")]
    assert found.whole and "allow_rnn=True" in found.reason
    assert str(found) in str(report) and str(found).startswith("Dynamo left forward (")


def test_recurrent_layers_are_one_launch_where_dynamo_may_trace_them() -> None:
    backend, model, x = Backend(), Tagger(), torch.randint(0, 10, (2, 3))
    with torch._dynamo.config.patch(allow_rnn=True):
        torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
    report = backend.explain()
    assert [len(program.launches) for program in report.programs] == [1]
    assert not report.fallbacks and not report.given_up


def test_where_graphs_end_is_named() -> None:
    def function(x: Any) -> Any:
        made = x + 1
        torch._dynamo.graph_break()
        return made * 2

    backend = Backend()
    torch.compile(function, backend=backend)(torch.randn(3))
    report = backend.explain()
    (found,) = report.given_up
    assert not found.whole and found.function.startswith("function (") and "graph_break" in found.reason


def test_the_limit_of_recompiles_is_told() -> None:
    def function(x: Any) -> Any:
        return x.exp() + 1

    backend = Backend()
    with torch._dynamo.config.patch(recompile_limit=2):
        called = torch.compile(function, backend=backend, dynamic=False)
        for length in range(3, 8):
            called(torch.randn(length))
    (found,) = backend.explain().given_up
    assert found.whole and found.function.startswith("function (") and "recompile limit" in found.reason


def test_what_was_given_up_before_is_not_told() -> None:
    def function(x: Any) -> Any:
        torch._dynamo.graph_break()
        return x * 2

    torch.compile(function, backend=Backend())(torch.randn(3))
    assert not Backend().explain().given_up
