"""Control flow that depends on data: sections, host-run If, Loop and Scan, against ONNX's reference and its runtime."""

from __future__ import annotations

import importlib.util
import itertools
import json
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autofusion
from autofusion import api
from autofusion.cli.main import main
from autofusion.errors import ArgumentError, AutofusionError, GraphError, IndexOutOfRange, TargetError

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, parser  # noqa: E402

RNG = np.random.default_rng(0)
HEAD = '<ir_version: 8, opset_import: ["": 17]> '


def model_of(text: str) -> Any:
    """A model in ONNX's text form. Outputs are declared without shapes, so that every size is right."""
    model = parser.parse_model(HEAD + text)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def count(number: int) -> Any:
    return np.array(number, np.int64)


def by_reference(model: Any, feeds: list[Any]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    named = dict(zip((each.name for each in model.graph.input), feeds, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(ReferenceEvaluator(model).run(None, named))


def by_runtime(model: Any, feeds: list[Any]) -> list[Any] | None:
    """None where ONNX Runtime is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    named = dict(zip((each.name for each in model.graph.input), feeds, strict=True))
    return list(session.run(None, named))


def same(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a.dtype, a.shape) == (np.asarray(b).dtype, np.shape(b))
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def program(model: Any) -> autofusion.onnx.Program:
    """The program of a model that no one graph is."""
    with pytest.raises(GraphError, match=r"data-dependent control flow is no one graph"):
        autofusion.onnx.from_model(model)
    return autofusion.onnx.Program(model)


def check(text: str, *calls: list[Any], reference: bool = True) -> autofusion.onnx.Program:
    """Each call's outputs are those of ONNX's reference and of ONNX Runtime; nothing ran on the host."""
    model = model_of(text)
    made = program(model)
    for feeds in calls:
        given = [np.copy(each) for each in feeds]
        found = made.run(feeds)
        if reference:
            same(found, by_reference(model, feeds))
        runtime = by_runtime(model, feeds)
        if runtime is not None:
            same(found, runtime)
        assert all(np.array_equal(a, b) for a, b in zip(given, feeds, strict=True))
        assert not any(np.shares_memory(a, b) for a in found for b in feeds)
    assert made.stats["fallbacks"] == 0 and made.stats["calls"] == len(calls)
    return made


# -- If ----------------------------------------------------------------------------------------------------------------
SHAPES_DIFFER = """
test (bool c, float[3, 4] x) => (float y) {
  a = Exp(x)
  b = If (c) <
    then_branch = yes () => (t) { t = Add(a, a) },
    else_branch = no () => (f) { axes = Constant <value_ints = [1]> ()  f = ReduceSum <keepdims = 0> (a, axes) }
  >
  y = Neg(b)
}"""
FAILS_UNTAKEN = """
test (bool c, float[4] x, int64[2] at, int64[4] d) => (float y, int64 z) {
  y, z = If (c) <
    then_branch = yes () => (t, u) { t = Gather(x, at)  ones = Abs(d)  n = Cast <to = 7> (x)  u = Div(n, ones) },
    else_branch = no () => (f, g) { f = Neg(x)  g = Identity(d) }
  >
}"""
COMPUTED = """
test (float[N] x) => (float y, float z) {
  total = ReduceSum <keepdims = 0> (x)
  zero = Constant <value = float {0}> ()
  positive = Greater(total, zero)
  y = If (positive) <
    then_branch = yes () => (t) { small = Greater(zero, x)  t = If (positive) <
        then_branch = a () => (p) { q = Softmax <axis = 0> (x)  p = Mul(q, x) },
        else_branch = b () => (r) { r = Concat <axis = 0> (x, x) }> },
    else_branch = no () => (f) { g = Concat <axis = 0> (x, x)  f = Neg(g) }
  >
  z = Mul(total, total)
}"""


def test_branches_of_different_shapes() -> None:
    x = floats(3, 4)
    made = check(SHAPES_DIFFER, [np.array(True), x], [np.array(False), x], [np.array(True), x])
    assert made.stats["launches_per_call"] == 2  # what comes before the choice, and the branch with what follows it


def test_only_the_taken_branch_runs() -> None:
    """A position out of range is an error only where it is read."""
    outside, zeros = np.array([0, 9]), np.zeros(4, np.int64)
    made = check(FAILS_UNTAKEN, [np.array(False), floats(4), outside, zeros])
    with pytest.raises(IndexOutOfRange, match="out of range"):
        made(np.array(True), floats(4), outside, zeros + 1)
    same(made.run([np.array(True), np.ones(4, np.float32), np.array([0, 3]), zeros + 1])[:1], [np.ones(2, np.float32)])
    assert made.stats["launches_per_call"] == 1  # the condition arrives: there is nothing to compute before it


def test_a_computed_condition_and_nested_choices() -> None:
    made = check(COMPUTED, [np.ones(5, np.float32)], [-np.ones(5, np.float32)], [np.ones(7, np.float32)])
    sections = made.stats["sections"]
    made(np.ones(7, np.float32))
    made(np.ones(5, np.float32))
    assert made.stats["sections"] == sections


def test_cheap_branches_are_a_selection() -> None:
    """Elementwise operators and views of one type, few of them: one launch, as such cannot fail."""
    cheap = "a = Exp(x)  b = Transpose(a)  t = Neg(b)"
    text = """test (bool c, float[3, 3] x) => (float y) {{ y = If (c) <
      then_branch = yes () => (t) {{ {} }}, else_branch = no () => (f) {{ f = Relu(x) }}> }}"""
    made = api.compile_graph(autofusion.onnx.from_model(model_of(text.format(cheap))))
    assert made.executable.plan.launches and made.stats["launches_per_call"] == 1
    for costly in (
        "t = MatMul(x, x)",
        "i = Constant <value_ints = [2, 1, 0]> ()  t = Gather(x, i)",
        many(),
    ):
        assert isinstance(program(model_of(text.format(costly))), autofusion.onnx.Program)


def many() -> str:
    names = ["x", *(f"e{n}" for n in range(20)), "t"]
    return "  ".join(f"{b} = Sin({a})" for a, b in itertools.pairwise(names))


# -- Loop --------------------------------------------------------------------------------------------------------------
COUNTED = """
test (int64 n, float[3] x, float[3] w) => (float last, float each) {
  scaled = Mul(x, w)
  true = Constant <value = bool {1}> ()
  end, each = Loop (n, true, scaled) <body = step (int64 i, bool go, float[3] s) => (bool on, float[3] t, float[3] u)
    { on = Identity(go)  k = Cast <to = 1> (i)  p = Mul(s, w)  t = Add(p, k)  u = Exp(t) }>
  last = Neg(end)
}"""
GROWING = """
test (int64 n, float[1, 2] x) => (float rows, float total) {
  true = Constant <value = bool {1}> ()
  rows = Loop (n, true, x) <body = step (int64 i, bool go, float[K, 2] s) => (bool on, float[L, 2] t)
    { on = Identity(go)  d = Add(s, s)  m = ReduceMax <axes = [0]> (d)  t = Concat <axis = 0> (s, m) }>
  total = ReduceSum <keepdims = 0> (rows)
}"""
WHILE = """
test (float[2] x) => (float y, int64 steps) {
  limit = Constant <value = float {100}> ()
  one = Constant <value = int64 {1}> ()
  zero = Constant <value = int64 {0}> ()
  sum = ReduceSum <keepdims = 0> (x)
  start = Less(sum, limit)
  y, steps = Loop (, start, x, zero)
    <body = step (int64 i, bool go, float[2] s, int64 c) => (bool on, float[2] t, int64 e)
      { t = Add(s, s)  e = Add(c, one)  total = ReduceSum <keepdims = 0> (t)  on = Less(total, limit) }>
}"""
CHOICE_IN_LOOP = """
test (int64 n, float[4] x, float[4] w) => (float y, float all) {
  true = Constant <value = bool {1}> ()
  two = Constant <value = int64 {2}> ()
  zero = Constant <value = int64 {0}> ()
  y, all = Loop (n, true, x) <body = step (int64 i, bool go, float[4] s) => (bool on, float[4] t, float[4] u)
    { on = Identity(go)
      r = Mod(i, two)
      even = Equal(r, zero)
      t = If (even) <
        then_branch = yes () => (a) { b = Softmax <axis = 0> (s)  a = Add(b, w) },
        else_branch = no () => (d) { d = Loop (two, true, s)
            <body = inner (int64 j, bool h, float[4] p) => (bool k, float[4] q)
              { k = Identity(h)  m = ReduceMax <keepdims = 1> (p)  q = Sub(p, m) }> }>
      u = Neg(t) }>
}"""


@pytest.mark.parametrize("n", [1, 2, 9])
def test_a_loop_of_a_given_number_of_iterations(n: int) -> None:
    x, w = floats(3), floats(3)
    made = check(COUNTED, [count(n), x, w], [count(n + 3), x, w])
    assert made.stats["launches_per_call"] == n + 3 + 2  # an iteration each, and what is around the loop
    assert made.stats["sections"] == 3


def test_no_iterations() -> None:
    """The state as it came; collected values of the declared type, of which the reference has none to tell from."""
    x, w = floats(3), floats(3)
    made = check(COUNTED, [count(0), x, w], reference=False)
    assert made.run([count(-1), x, w])[1].shape == (0, 3)
    known = COUNTED.replace("int64 n, ", "").replace("scaled =", "n = Constant <value = int64 {0}> ()  scaled =")
    assert check(known, [x, w], reference=False).stats["launches_per_call"] == 2


def test_a_state_that_grows_is_compiled_once_for_all_sizes() -> None:
    made = check(GROWING, [count(30), floats(1, 2)], [count(60), floats(1, 2)])
    assert made.stats["launches_per_call"] == 61
    assert made.stats["sections"] < 12


def test_while() -> None:
    made = check(WHILE, [floats(2) ** 2], [np.full(2, 80, np.float32)], [np.full(2, 1e-3, np.float32)])
    assert made.stats["sections"] == 2 and made.stats["launches_per_call"] > 10


@pytest.mark.parametrize("n", [1, 2, 5])
def test_choices_and_loops_in_a_loop(n: int) -> None:
    check(CHOICE_IN_LOOP, [count(n), floats(4), floats(4)])


def test_a_known_loop_that_is_too_long_to_unroll() -> None:
    text = COUNTED.replace("int64 n, ", "").replace("scaled =", "n = Constant <value = int64 {1500}> ()  scaled =")
    made = check(
        text.replace("Exp(t)", "Neg(t)").replace("Mul(s, w)", "Mul(s, s)").replace("Add(p, k)", "Sin(p)"),
        [floats(3), floats(3)],
    )
    assert made.stats["launches_per_call"] == 1502


SLICED = """
test (int64 n, float[N, 2] x) => (float y, float z) {
  true = Constant <value = bool {1}> ()
  axis = Constant <value_ints = [0]> ()
  one = Constant <value_ints = [1]> ()
  start = Constant <value_floats = [0.0, 0.0]> ()
  y, z = Loop (n, true, start) <body = step (int64 i, bool go, float[2] s) => (bool on, float[2] t, float[2] u)
    { on = Identity(go)  f = Unsqueeze(i, axis)  e = Add(f, one)  r = Slice(x, f, e, axis)
      q = Squeeze(r, axis)  t = Add(s, q)  u = Exp(t) }>
}"""


def test_a_position_that_is_the_iteration() -> None:
    """A Slice from the iteration's number: its section is made for the number."""
    made = check(SLICED, [count(4), floats(6, 2)], [count(6), floats(6, 2)])
    assert made.stats["launches_per_call"] == 6


def test_positions_of_many_iterations() -> None:
    """From some number of sections on, the host runs the Slice, and says so."""
    made, model = program(model_of(SLICED)), model_of(SLICED)
    feeds = [count(100), floats(100, 2) * np.float32(0.1)]
    for _ in range(2):
        same(made.run(feeds), by_reference(model, feeds))
    stats = made.stats
    assert stats["sections"] < 50 and 60 < stats["fallbacks"] // 2 < 100
    assert made.explain().fallbacks == ("Slice (r)",)


def test_a_shape_by_a_computed_value() -> None:
    text = """
    test (int64 n, float[6] x) => (float y, float z) {
      true = Constant <value = bool {1}> ()
      axis = Constant <value_ints = [0]> ()
      two = Constant <value = int64 {2}> ()
      minus = Constant <value_ints = [-1]> ()
      k = Loop (n, true, two) <body = step (int64 i, bool go, int64 s) => (bool on, int64 t)
        { on = Identity(go)  t = Add(s, i) }>
      f = Unsqueeze(k, axis)
      shape = Concat <axis = 0> (f, minus)
      r = Reshape(x, shape)
      y = Transpose(r)
      z = Identity(x)
    }"""
    check(text, [count(0), floats(6)], [count(2), floats(6)])


SCAN = """
test (float[2] s, float[N, 2] x) => (float y, float z) {
  y, z = Scan (s, x) <num_scan_inputs = 1, body = step (float[2] s, float[2] v) => (float[2] t, float[2] u)
    { t = Add(s, v)  u = Exp(t) }>
}"""


def test_scan_over_an_open_number_of_steps() -> None:
    made = check(SCAN, [floats(2), floats(4, 2)])
    assert made.stats["launches_per_call"] == 1  # four steps are unrolled
    made = check(SCAN, [floats(2), floats(1200, 2) * np.float32(0.01)])
    assert made.stats["launches_per_call"] == 1200
    none = made.run([floats(2), floats(0, 2)])[1]  # neither the reference nor ONNX Runtime takes an empty sequence
    assert none.shape == (0, 2) and none.dtype == np.float32


@pytest.mark.parametrize("extra", ["", "scan_input_directions = [1],", "scan_output_directions = [1],"])
def test_scan_along_other_axes(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host as unrolled. ONNX's reference knows none of these attributes."""
    options = f"{extra} scan_input_axes = [1], scan_output_axes = [-1], num_scan_inputs = 1"
    text = SCAN.replace("num_scan_inputs = 1", options).replace("[N, 2]", "[2, N]")
    feeds = [floats(2), floats(2, 5)]
    unrolled = check(text, feeds, reference=False)
    monkeypatch.setattr("autofusion.frontends.onnx.control.UNROLLED", 2)
    hosted = check(text, feeds, reference=False)
    same(hosted.run(feeds), unrolled.run(feeds))
    assert (unrolled.stats["launches_per_call"], hosted.stats["launches_per_call"]) == (1, 5)


# -- what later calls find ---------------------------------------------------------------------------------------------
def test_a_second_call_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = program(model_of(CHOICE_IN_LOOP))
    feeds = [count(4), floats(4), floats(4)]
    first, before = made.run(feeds), made.stats

    def refuse(*given: Any, **options: Any) -> Any:
        raise AssertionError("compiled again")

    monkeypatch.setattr(api, "compile_graph", refuse)
    monkeypatch.setattr("autofusion.frontends.onnx.program.cut", refuse)
    same(made.run(feeds), first)
    after = made.stats
    assert after["sections"] == before["sections"] and after["launches"] == 2 * before["launches"]
    assert (after["calls"], after["launches_per_call"]) == (2, before["launches_per_call"])


def test_many_threads() -> None:
    made = program(model_of(COUNTED))
    wanted = {
        n: by_reference(model_of(COUNTED), [count(n), np.ones(3, np.float32), np.ones(3, np.float32)]) for n in (1, 5)
    }
    failed: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for _ in range(20):
                same(made.run([count(n), np.ones(3, np.float32), np.ones(3, np.float32)], threads=1), wanted[n])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 5, 1, 5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed
    assert made.stats["calls"] == 80 and made.stats["launches"] == 40 * (1 + 2) + 40 * (5 + 2)


def test_results_are_nobody_elses() -> None:
    """A value that passes through, one that is known, and one that is given out twice."""
    text = """
    test (bool c, float[2] x) => (float a, float b, float d, float e) {
      a, b, d, e = If (c) <
        then_branch = yes () => (p, q, r, s)
          { p = Identity(x)  q = Constant <value_floats = [1.0, 2.0]> ()  r = Exp(x)  s = Identity(r) },
        else_branch = no () => (k, l, m, n)
          { k = Concat <axis = 0> (x, x)  l = Identity(x)  m = Identity(x)  n = Identity(x) }>
    }"""
    made = check(text, [np.array(True), floats(2)], [np.array(False), floats(2)])
    for c in (True, False):
        first = made.run([np.array(c), np.ones(2, np.float32)])
        kept = [np.copy(each) for each in first]
        first[0][...] = 7
        first[1][...] = 8
        same(first[2:], kept[2:])
        same(made.run([np.array(c), np.ones(2, np.float32)]), kept)


def test_weights_in_branches_and_around_them() -> None:
    def body(name: str, outer: str) -> Any:
        inner = onnx.numpy_helper.from_array(floats(4, 4), f"w_{name}")
        nodes = [
            helper.make_node("MatMul", [outer, f"w_{name}"], [f"{name}_m"]),
            helper.make_node("Add", [f"{name}_m", "bias"], [name]),
        ]
        return helper.make_graph(nodes, name, [], [helper.make_empty_tensor_value_info(name)], [inner])

    choice = helper.make_node("If", ["c"], ["h"], then_branch=body("yes", "x"), else_branch=body("no", "x"))
    graph = helper.make_graph(
        [choice, helper.make_node("Relu", ["h"], ["y"])],
        "weights",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, [1]), helper.make_tensor_value_info("x", 1, ["n", 4])],
        [helper.make_empty_tensor_value_info("y")],
        [onnx.numpy_helper.from_array(floats(4), "bias")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = program(model)
    for c, n in ((True, 3), (False, 3), (True, 8), (False, 11)):
        feeds = [np.array([c]), floats(n, 4)]
        same(made.run(feeds), by_reference(model, feeds))
    assert made.stats["launches_per_call"] == 1


# -- its face ----------------------------------------------------------------------------------------------------------
def test_explain_source_and_save(tmp_path: Path) -> None:
    made = program(model_of(COUNTED))
    with pytest.raises(ArgumentError, match="nothing is compiled yet"):
        made.source("graph")
    assert "0 sections" in str(made.explain())
    made(count(2), floats(3), floats(3))
    found = made.explain()
    boundary = next(v for v in found.verdicts if v.code.value == "control")
    assert boundary.consumer.startswith("Loop (") and "number of iterations" in boundary.text and not boundary.fused
    text = str(found)
    assert "3 sections" in text and "section test.0 (x:float32[3], w:float32[3])" in text and boundary.text in text
    assert [section.launches for section in found.sections] == [1, 1, 1]
    assert json.loads(json.dumps(found.to_json()))["sections"][0]["then"].startswith("Loop")
    assert made.source("graph").count("# section test") == 3
    with pytest.raises(GraphError, match="cannot be saved"):
        made.save(tmp_path / "m.af")
    assert not list(tmp_path.iterdir())


def test_compile_and_the_backend(tmp_path: Path) -> None:
    model = model_of(COUNTED)
    onnx.save(model, str(tmp_path / "m.onnx"))
    feeds = [count(3), floats(3), floats(3)]
    made = autofusion.compile(tmp_path / "m.onnx")
    assert isinstance(made, autofusion.onnx.Program)
    same(made(*feeds), by_reference(model, feeds))
    prepared = autofusion.onnx.Backend.prepare(model)
    assert list(prepared.run(feeds)._fields) == ["last", "each"]
    same(list(prepared.run(feeds)), by_reference(model, feeds))
    assert prepared.compiled.stats["calls"] == 2
    with pytest.raises(TargetError):
        autofusion.compile(tmp_path / "m.onnx", target="cpu:aarch64:neoverse-v1")


def test_open_dimensions_of_the_model(tmp_path: Path) -> None:
    onnx.save(model_of(COMPUTED), str(tmp_path / "m.onnx"))
    made = autofusion.compile(tmp_path / "m.onnx", dynamic={"x": (4,)})
    assert made.graph.inputs[0].shape == (4,)
    with pytest.raises(ArgumentError, match="axis 0 is 5, expected 4"):
        made(floats(5))


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "m.onnx")
    onnx.save(model_of(COUNTED), path)
    np.save(tmp_path / "n.npy", count(4))
    arguments = [path, "--input", f"n={tmp_path / 'n.npy'}", "--repeat", "2"]
    assert main(["run", *arguments, "--check", "--json", "--save", str(tmp_path / "o.npz")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] and found["checked"] and found["launches"] == 6 and found["fallbacks"] == []
    assert found["outputs"]["each"] == "float32[4, 3]"
    assert np.load(tmp_path / "o.npz")["each"].shape == (4, 3)
    assert main(["run", *arguments, "--check"]) == 0
    shown = capsys.readouterr().out
    assert "control" in shown and "check" in shown
    assert main(["explain", path]) == 0
    assert "Loop" in capsys.readouterr().out
    for refused in (["run", path, "--compare", "unfused"], ["emit", path, "--stage", "graph"], ["partition", path]):
        assert main(refused) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "control flow" in line


# -- errors ------------------------------------------------------------------------------------------------------------
def loop_of(body: str, outputs: str = "y", state: str = "x") -> str:
    types = ", ".join(f"float[K{n}] s{n}" for n, _ in enumerate(state.split(",")))
    return f"""test (int64 n, float[3] x) => (float y) {{ true = Constant <value = bool {{1}}> ()
      {outputs} = Loop (n, true, {state}) <body = step (int64 i, bool go, {types}) => {body}> }}"""


ERRORS: dict[str, tuple[str, list[Any], str]] = {
    "shapes": (
        loop_of(
            "(bool on, float t) { on = Identity(go)  w = Constant <value_floats = [1.0, 2.0]> ()  t = Add(s0, w) }"
        ),
        [count(1), floats(3)],
        r"Loop \(y\): Add \(t\)",
    ),
    "collected shapes": (
        loop_of(
            "(bool on, float t, float u) { on = Identity(go)  t = Concat <axis = 0> (s0, s0)  u = Exp(t) }", "e, y"
        ),
        [count(2), floats(3)],
        r"Loop \(e\): collected values have the shapes \[6\] and \[12\]",
    ),
    "condition": (
        loop_of("(bool on, float t) { on = Cast <to = 9> (s0)  t = Exp(s0) }"),
        [count(2), floats(3)],
        r"Loop \(y\): the condition has the shape \[3\]",
    ),
    "undefined": (
        loop_of("(bool on, float t) { on = Identity(go)  t = Add(s0, nowhere) }"),
        [count(2), floats(3)],
        "'nowhere' is not defined",
    ),
    "outputs": (
        loop_of("(bool on) { on = Identity(go) }"),
        [count(2), floats(3)],
        r"Loop \(y\)",
    ),
    "inputs": (
        loop_of("(bool on, float t) { on = Identity(go)  t = Exp(s0) }", "y", "x").replace("true, x)", "true, x, x)"),
        [count(2), floats(3)],
        r"Loop \(y\)",
    ),
    "data-dependent shape": (
        loop_of("(bool on, float t) { on = Identity(go)  m = NonZero(s0)  t = Cast <to = 1> (m) }").replace(
            "3]", "100]"
        ),
        [count(2), floats(100)],
        r"Loop \(y\): NonZero \(m\)",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error(name: str) -> None:
    text, feeds, wanted = ERRORS[name]
    made = program(model_of(text))
    for _ in range(2):
        with pytest.raises(AutofusionError, match=wanted) as caught:
            made.run(feeds)
        assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_changed_bytes_give_one_clear_error(tmp_path: Path) -> None:
    """Whatever a changed byte makes of a model, it runs or is refused. The number of iterations is an input."""
    rng, path = np.random.default_rng(11), tmp_path / "m.onnx"
    whole = model_of(COUNTED).SerializeToString()
    ran = 0
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            autofusion.compile(path).run([count(2), floats(3), floats(3)])
            ran += 1
        except AutofusionError as error:
            assert "\n" not in str(error)
    assert 0 < ran < 150


def test_arguments() -> None:
    made = program(model_of(COUNTED))
    for feeds, wanted in (
        ([count(1), floats(3)], "2 arguments given, expected 3: n, x, w"),
        ([count(1), floats(3), floats(4)], "w: axis 0 is 4, expected 3"),
        ([count(1), floats(3), np.ones(3)], "w: element type float64, expected float32"),
        ([np.array([1]), floats(3), floats(3)], "n: rank 1, expected 0"),
    ):
        with pytest.raises(ArgumentError, match=wanted):
            made.run(feeds)
    assert made.stats["calls"] == 0


def test_a_failed_call_leaves_the_program_as_it_was() -> None:
    text = """
    test (int64 n, float[4] x) => (float y) {
      true = Constant <value = bool {1}> ()
      y = Loop (n, true, x) <body = step (int64 i, bool go, float[4] s) => (bool on, float[4] t)
        { on = Identity(go)  v = Gather(s, i)  t = Add(s, v) }>
    }"""
    made = check(text, [count(4), floats(4)])
    with pytest.raises(IndexOutOfRange, match=r"Loop \(y\)"):
        made(count(5), floats(4))
    x = floats(4)
    same([made(count(3), x)], by_reference(model_of(text), [count(3), x]))


def test_a_loop_without_end_is_interrupted() -> None:
    code = f"""
import sys, numpy as np
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_onnx_control as t, autofusion
text = t.WHILE.replace("on = Less(total, limit)", "on = Identity(go)")
made = autofusion.onnx.Program(t.model_of(text))
print("started", flush=True)
made(np.zeros(2, np.float32))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    time.sleep(1.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert errors.rstrip().endswith("KeyboardInterrupt")


# -- a real file -------------------------------------------------------------------------------------------------------
def test_silero_vad() -> None:
    """Speech detection at two sample rates, chosen by an input: each a network of its own, in two launches."""
    runtime = pytest.importorskip("onnxruntime")
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("silero_vad is not installed: pip install --no-deps -r tests/models.txt")
    path = Path(next(iter(spec.submodule_search_locations))) / "data" / "silero_vad.onnx"
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(path), options)
    made = autofusion.compile(path)
    for rate, samples in ((16000, 512), (8000, 256), (16000, 512)):
        state = np.zeros((2, 1, 128), np.float32)
        for _ in range(3):
            feeds = [floats(1, samples) * np.float32(0.1), state, np.array(rate)]
            wanted = session.run(None, dict(zip(("input", "state", "sr"), feeds, strict=True)))
            found = made.run(feeds)
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
            state = found[1]
    assert made.stats["launches_per_call"] == 2 and made.stats["fallbacks"] == 0
    assert made.stats["sections"] == 3
