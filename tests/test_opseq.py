"""Op-sequence JSON: what is written reads back, and every error names its entry. Examples mean what NumPy says."""

from __future__ import annotations

import base64
import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofusion.dtypes import DType
from autofusion.errors import AutofusionError, ExecutionError, FormatError, GraphError
from autofusion.frontends import functions as af
from autofusion.frontends.opseq import dumps, loads, read, seeded
from autofusion.frontends.tracer import trace
from autofusion.graph.evaluate import run
from autofusion.graph.ir import Graph, verify
from autofusion.ops import TABLE

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.json"))

F = {"shape": ["n", 4], "dtype": "float32"}


def document(**changes: Any) -> dict[str, Any]:
    """relu(x @ w) * 2, with changes at the top level."""
    return {
        "format": "autofusion-opseq",
        "version": 1,
        "tensors": {"x": dict(F), "w": {"shape": [4, 4], "dtype": "float32"}},
        "inputs": ["x", "w"],
        "ops": [
            {"type": "matmul", "inputs": ["x", "w"], "outputs": ["y"]},
            {"type": "relu", "inputs": ["y"], "outputs": ["z"]},
            {"type": "mul", "inputs": ["z", 2], "outputs": ["out"]},
        ],
        "outputs": ["out"],
    } | changes


def tensors(**changes: Any) -> dict[str, Any]:
    return {"tensors": document()["tensors"] | changes}


def ops(position: int, **changes: Any) -> dict[str, Any]:
    listed = document()["ops"]
    listed[position] |= changes
    return {"ops": listed}


def load(**changes: Any) -> Graph:
    graph = loads(json.dumps(document(**changes)))
    verify(graph)
    return graph


# -- reading ---------------------------------------------------------------------------------------------------------
def test_the_documented_example_reads_and_runs() -> None:
    x = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(run(load(), [x, np.eye(4, dtype=np.float32)])[0], np.maximum(x, 0) * 2)


def test_the_documents_complete_example_reads_and_runs() -> None:
    text = (EXAMPLES.parent / "docs" / "op-sequence.md").read_text(encoding="utf-8")
    graph = loads(text.split("```json\n")[1].split("```")[0])
    verify(graph)
    inputs = [np.ones([2 if not isinstance(d, int) else d for d in v.shape], v.dtype.numpy) for v in graph.inputs]
    assert len(run(graph, inputs)) == len(graph.outputs)
    assert any(o.writes for o in graph.outputs) and graph.constants and graph.symbols


def test_every_row_is_named_in_the_document() -> None:
    text = (EXAMPLES.parent / "docs" / "op-sequence.md").read_text(encoding="utf-8")
    assert [row.name for row in TABLE if f"`{row.name}`" not in text] == []


@pytest.mark.parametrize("dtype", list(DType))
def test_constant_data_in_every_form(dtype: DType, tmp_path: Path) -> None:
    array = seeded((2, 3), 1, dtype=dtype, **({} if dtype.is_float else {"low": 0, "high": 2}))
    listed = array.astype(np.float64).tolist() if dtype.is_float else array.tolist()
    np.save(tmp_path / "c.npy", array)
    forms = (
        listed,
        {"base64": base64.b64encode(array.tobytes()).decode()},
        {"file": "c.npy"},
        {"random": {"seed": 1}},
    )
    for form in forms:
        change = tensors(c={"shape": [2, 3], "dtype": dtype.value, "data": form}) | {"outputs": ["out", "c"]}
        graph = loads(json.dumps(document(**change)), tmp_path)
        got = graph.constant_array("c")
        assert got.dtype == dtype.numpy
        np.testing.assert_array_equal(got, array)


def test_seeds_are_frozen() -> None:
    np.testing.assert_allclose(seeded((3,), 0), [1.7640524, 0.4001572, 0.978738], rtol=1e-6)
    np.testing.assert_allclose(seeded((2,), 3, scale=10.0), [17.886284, 4.365099], rtol=1e-6)
    narrow, wide = (seeded((4,), 5, dtype=dtype, low=-3, high=9).tolist() for dtype in ("int32", "int64"))
    assert narrow == wide == [0, 3, 3, -3]
    assert seeded((2,), 0, dtype="bfloat16").dtype == DType.BFLOAT16.numpy


def test_special_numbers() -> None:
    special = ["nan", "inf", "-inf", 1]
    graph = load(**tensors(c={"shape": [4], "dtype": "float16", "data": special}), outputs=["out", "c"])
    np.testing.assert_array_equal(graph.constant_array("c"), np.array([np.nan, np.inf, -np.inf, 1], np.float16))
    graph = load(**ops(2, inputs=["z", "-inf"]))
    assert any(node.attrs.get("value") == -math.inf for node in graph.nodes)
    assert loads(dumps(graph)).nodes == graph.nodes


def test_numbers_take_the_type_of_the_last_tensor_and_leave_names_alone() -> None:
    changes = ops(2, outputs=["k"]) | {"outputs": ["k"]}
    graph = load(**changes)
    assert graph.outputs[0].name == "k" and graph.producers["k"].op == "mul"
    assert graph.values[graph.producers["k"].inputs[1]].dtype is DType.FLOAT32


def test_symbolic_dimensions_and_declared_outputs() -> None:
    graph = load(**tensors(out={"shape": ["n", 4], "dtype": "float32"}))
    assert not graph.guards
    graph = load(**tensors(out={"shape": ["m", 4], "dtype": "float32"}))
    assert [(str(g.left), str(g.right)) for g in graph.guards] == [("n", "m")]


def test_a_write_and_a_communication_operator() -> None:
    change = ops(2, type="all_reduce", inputs=["z"]) | {"outputs": ["y", {"name": "out", "writes": "x"}]}
    graph = load(**change)
    assert [o.writes for o in graph.outputs] == [None, "x"]
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(run(graph, [x, np.eye(4, dtype=np.float32)])[1], x)
    many = load(**ops(2, type="all_reduce", inputs=["z"], attributes={"world_size": 2}))
    with pytest.raises(ExecutionError, match=r"^out: communication over 2 devices"):
        run(many, [x, np.eye(4, dtype=np.float32)])


# -- errors ----------------------------------------------------------------------------------------------------------
def data(shape: list[Any], dtype: str, content: Any) -> dict[str, Any]:
    return tensors(c={"shape": shape, "dtype": dtype, "data": content})


CYCLE = {
    "ops": [
        {"type": "add", "inputs": ["x", "p"], "outputs": ["q"]},
        {"type": "relu", "inputs": ["q"], "outputs": ["p"]},
    ],
    "outputs": ["p"],
}
ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"format": "onnx"}, 'format: expected "autofusion-opseq", found a string "onnx"'),
    ({"version": 2}, "version: expected 1, found a number 2"),
    ({"opps": []}, 'top level: unknown key "opps"; did you mean "ops"? (known: '),
    ({"name": 3}, "name: expected a name, found a number 3"),
    ({"name": "a b"}, 'name: "a b" is no name'),
    ({"tensors": []}, "tensors: expected an object of tensors, found a list []"),
    ({"ops": []}, "ops: is empty: expected at least one operator"),
    ({"ops": None}, "ops: expected a list of operators, found null"),
    ({"outputs": []}, "outputs: is empty: expected at least one tensor"),
    ({"inputs": "x"}, 'inputs: expected a list of tensor names, found a string "x"'),
    (tensors(x={"dtype": "float32"}), 'tensors["x"]: "shape" is missing'),
    (tensors(x={"shape": [4]}), 'tensors["x"]: "dtype" is missing'),
    (tensors(x=[4]), 'tensors["x"]: expected an object with "shape" and "dtype", found a list [4]'),
    (tensors(x=F | {"dtype": "float31"}), 'tensors["x"].dtype: unknown element type a string "float31"; did you mean'),
    (tensors(x=F | {"dtype": ["float32"]}), 'tensors["x"].dtype: unknown element type a list'),
    (tensors(x=F | {"shape": 4}), 'tensors["x"].shape: expected a list of ints and expressions'),
    (tensors(x=F | {"shape": [4, -1]}), 'tensors["x"].shape[1]: expected 0 to 2**48, found -1'),
    (tensors(x=F | {"shape": [4, 1.5]}), 'tensors["x"].shape[1]: expected an int or an expression'),
    (tensors(x=F | {"shape": [True]}), 'tensors["x"].shape[0]: expected an int or an expression'),
    (tensors(x=F | {"shape": ["2*"]}), "tensors[\"x\"].shape[0]: dimension '2*'"),
    (tensors(x=F | {"shape": ["n/2"]}), "tensors[\"x\"].shape[0]: dimension 'n/2': expected an integer expression"),
    (tensors(x=F | {"shape": ["n//0"]}), 'tensors["x"].shape[0]: '),
    (tensors(x=F | {"layout": "NCHW"}), 'tensors["x"].layout: a string "NCHW" is not supported; expected nd'),
    (tensors(x=F | {"strides": [1]}), 'tensors["x"].strides: 1 entries, expected 2, one an axis'),
    (tensors(x=F | {"sahpe": []}), 'tensors["x"]: unknown key "sahpe"; did you mean "shape"?'),
    (tensors(u=F), 'tensors["u"]: is no input, has no data, and no operator makes it'),
    (tensors(y=F | {"strides": [4, 1]}), 'tensors["y"].strides: only an input has strides of its own'),
    ({"inputs": ["x", "v"]}, 'inputs[1]: "v" is not in tensors'),
    ({"inputs": ["x", "w", "x"]}, 'inputs[2]: "x" is listed twice'),
    ({"inputs": ["x", 3]}, "inputs[1]: expected a tensor's name, found a number 3"),
    ({"inputs": ["x", "w", "y"]} | tensors(y=F), 'inputs[2]: "y" is also an output of ops[0]'),
    (data([2], "int32", [1]) | {"inputs": ["x", "w", "c"]}, 'inputs[2]: "c" has data, so it is a constant'),
    (tensors(y=F | {"shape": [1], "data": [1]}), 'tensors["y"]: has data, but ops[0] makes it'),
    (data(["n"], "int32", [1]), 'tensors["c"].data: a constant needs a shape of numbers, found [n]'),
    (data([1 << 40], "int32", [1]), 'tensors["c"].data: [1099511627776] of int32 is larger than'),
    (data([2], "int32", [1, 2, 3]), 'tensors["c"].data: expected a list of 2 (axis 0 of [2]), found a list of 3'),
    (data([2, 2], "int32", [[1, 2], 3]), 'tensors["c"].data[1]: expected a list of 2 (axis 1 of [2, 2])'),
    (data([2], "int32", [1, 2.5]), 'tensors["c"].data[1]: expected a number of type int32, found a number 2.5'),
    (data([2], "uint8", [1, 256]), 'tensors["c"].data[1]: expected a number of type uint8, found a number 256'),
    (data([2], "float32", [1, "x"]), 'tensors["c"].data[1]: expected a number of type float32'),
    (data([1], "float32", [10**400]), 'tensors["c"].data[0]: expected a number of type float32'),
    (data([1], "bool", [1]), 'tensors["c"].data[0]: expected a number of type bool, found a number 1'),
    (data([1], "bool", {"base64": "Ag=="}), 'tensors["c"].data.base64: a bool is a byte 0 or 1'),
    (data([1], "int32", {"base64": "AA=="}), 'tensors["c"].data.base64: 1 bytes, expected 4 for int32[1]'),
    (data([1], "int32", {"base64": "?"}), 'tensors["c"].data.base64: is no base64'),
    (data([1], "int32", {"base64": 1}), 'tensors["c"].data.base64: expected base64 text'),
    (data([1], "int32", {"bytes": ""}), 'tensors["c"].data: expected nested lists or one of'),
    (data([1], "int32", {"file": "../c.npy"}), 'tensors["c"].data.file: expected a .npy file beside or below'),
    (data([1], "int32", {"file": "missing.npy"}), 'tensors["c"].data.file: "missing.npy" cannot be read: No such file'),
    (data([1], "int32", {"random": 1}), 'tensors["c"].data.random: expected an object'),
    (data([1], "int32", {"random": {"scale": 1}}), 'tensors["c"].data.random: unknown key "scale"'),
    (data([1], "float32", {"random": {"seed": -1}}), 'tensors["c"].data.random.seed: expected 0 to 2**32-1'),
    (data([1], "float32", {"random": {"scale": "a"}}), 'tensors["c"].data.random.scale: expected a number'),
    (data([1], "int8", {"random": {"high": 300}}), 'tensors["c"].data.random: expected low < high within int8'),
    ({"ops": ["relu"]}, 'ops[0]: expected an object with "type", "inputs" and "outputs", found a string "relu"'),
    (ops(1, type=3), "ops[1].type: expected an operator's name, found a number 3"),
    (ops(1, type="reluu"), 'ops[1] (reluu): unknown operator; did you mean "relu"'),
    (ops(1, atributes={}), 'ops[1] (relu): unknown key "atributes"; did you mean "attributes"?'),
    (ops(1, outputs=[]), "ops[1] (relu).outputs: expected one name, found 0"),
    (ops(1, outputs=["z", "y"]), "ops[1] (relu).outputs: expected one name, found 2"),
    (ops(1, outputs="z"), 'ops[1] (relu).outputs: expected a list of one name, found a string "z"'),
    (ops(1, outputs=["y"]), 'ops[1] (relu): output "y" is made by ops[0] already'),
    (ops(1, outputs=["x"]), 'inputs[0]: "x" is also an output of ops[1]'),
    (ops(1, inputs="y"), "ops[1] (relu).inputs: expected a list of tensor names and numbers"),
    (ops(1, inputs=[["y"]]), "ops[1] (relu).inputs: expected a tensor's name or a number, found a list"),
    (ops(1, inputs=["yy"]), 'ops[1] (relu): input "yy" is not defined; did you mean "y"?'),
    (
        ops(0, inputs=["x", "z"]),
        'ops[0] (matmul): input "z" is defined later, by ops[1]: the sequence is cyclic or out',
    ),
    (CYCLE, 'ops[0] (add): input "p" is defined later, by ops[1]: the sequence is cyclic or out of order'),
    (ops(1, inputs=["z"]), 'ops[1] (relu): input "z" is defined later, by ops[1]'),
    (ops(1, inputs=["y", "y"]), "ops[1] (relu): takes 1 inputs, got 2"),
    (tensors(w={"shape": [5, 4], "dtype": "float32"}), "ops[0] (matmul): inner extents of [n,4] and [5,4]: 4 and 5"),
    (ops(2, inputs=[1, 2]), "ops[2] (mul): all inputs are numbers: expected at least one tensor"),
    (ops(1, attributes={"axis": 1}), "ops[1] (relu): unknown attribute 'axis'; it takes: none"),
    (ops(1, type="gelu", attributes={"aproximate": "tanh"}), "ops[1] (gelu): unknown attribute 'aproximate'"),
    (ops(1, type="softmax", attributes={"axis": 5}), "ops[1] (softmax): axis 5 is out of range for rank 2"),
    (ops(1, type="cumsum"), "ops[1] (cumsum): attribute 'axis' is missing"),
    (ops(1, type="cast", attributes={"dtype": "int"}), "ops[1] (cast).attributes.dtype: unknown element type"),
    (ops(1, type="sum", attributes={"axes": {}}), "ops[1] (sum).attributes.axes: expected a number, a string"),
    (ops(1, type="reshape", attributes={"shape": 3}), "ops[1] (reshape): attributes an object"),
    (ops(1, attributes=[]), "ops[1] (relu).attributes: expected an object, found a list []"),
    (tensors(z=F | {"dtype": "float16"}), 'ops[1] (relu): gives float32[n,4], but tensors["z"] declares float16[n,4]'),
    (tensors(z=F | {"shape": ["n", 5]}), 'ops[1] (relu): gives float32[n,4], but tensors["z"] declares float32[n,5]'),
    (tensors(w={"shape": [4, 4], "dtype": "float64"}), "ops[0] (matmul): element types float32, float64 differ"),
    ({"outputs": ["oot"]}, 'outputs[0]: "oot" is not defined; did you mean "out"?'),
    ({"outputs": [3]}, "outputs[0]: expected a tensor's name or"),
    ({"outputs": [{"name": "out", "write": "x"}]}, 'outputs[0]: unknown key "write"; did you mean "writes"?'),
    ({"outputs": [{"name": "out", "writes": "z"}]}, 'outputs[0]: writes a string "z": expected the name of an input'),
    (
        {"outputs": [{"name": "out", "writes": "w"}]},
        'outputs[0]: "out" is float32[n,4], but writes "w" of float32[4,4]',
    ),
    ({"outputs": [{"name": "out", "writes": "x"}] * 2}, 'outputs[1]: "x" is written by outputs[0] already'),
    ({"guards": [["n"]]}, "guards[0]: expected two sides, found 1"),
    ({"guards": {}}, "guards: expected a list of pairs"),
]


@pytest.mark.parametrize("row", range(len(ERRORS)))
def test_errors_name_the_entry(row: int) -> None:
    change, message = ERRORS[row]
    with pytest.raises((FormatError, GraphError)) as caught:
        loads(json.dumps(document(**change)), Path("/nonexistent"))
    assert str(caught.value).startswith(message), str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_that_do_not_fit_beside_their_tensor() -> None:
    change = tensors(x={"shape": ["n", 4], "dtype": "int32"}, w={"shape": [4, 4], "dtype": "int32"})
    with pytest.raises(
        FormatError, match=r'ops\[2\] \(mul\): input a number 2.5 beside "z": expected a number of type int32'
    ):
        loads(json.dumps(document(**change, **ops(2, inputs=["z", 2.5]))))


CORRUPT = [
    ("", "corrupt JSON at line 1, column 1: Expecting value"),
    ('{"format": "autofusion-opseq",\n "version" 1}', "corrupt JSON at line 2, column 12: "),
    ("[1]", "expected an object at the top, found a list [1]"),
    ('{"tensors": {"x": 1, "x": 2}}', 'key "x" appears twice in one object'),
    ("[" * 100000, "corrupt JSON: nested too deeply"),
    ('{"version": ' + "1" * 5000 + "}", "corrupt JSON: "),
]


@pytest.mark.parametrize("row", range(len(CORRUPT)))
def test_corrupt_text_gives_the_place(row: int) -> None:
    text, message = CORRUPT[row]
    with pytest.raises(FormatError) as caught:
        loads(text)
    assert str(caught.value).startswith(message)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"missing\.json: cannot be read: No such file"):
        read(tmp_path / "missing.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match=r"bytes\.json: is not UTF-8 text"):
        read(tmp_path / "bytes.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(FormatError, match=r"bad\.json: format: expected"):
        read(tmp_path / "bad.json")
    np.save(tmp_path / "c.npy", np.zeros(3))
    text = json.dumps(document(**data([1], "int32", {"file": "c.npy"})))
    with pytest.raises(FormatError, match=r'"c.npy" holds float64\[3\], expected int32\[1\]'):
        loads(text, tmp_path)
    (tmp_path / "c.npy").write_bytes(b"no numpy file")
    with pytest.raises(FormatError, match=r'"c.npy" is no NumPy file'):
        loads(text, tmp_path)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_documents_never_give_another_error(draw: st.DataObject) -> None:
    """Replace any part of a document by anything: it reads, or there is one clear error."""
    whole: Any = document(**data([2, 2], "float32", [[1, 2], [3, 4]]), **ops(1, type="softmax", attributes={"axis": 1}))
    root: Any = {"": json.loads(json.dumps(whole))}
    at, key = root, ""
    while isinstance(at[key], dict | list) and at[key] and draw.draw(st.booleans()):
        at = at[key]
        key = draw.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
    junk = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(["x", "n"])
    at[key] = draw.draw(junk | st.lists(junk, max_size=3) | st.dictionaries(st.text(max_size=3), junk, max_size=2))
    try:
        verify(loads(json.dumps(root[""])))
    except AutofusionError as error:
        assert "\n" not in str(error)


# -- writing ---------------------------------------------------------------------------------------------------------
def round_trip(graph: Graph) -> Graph:
    text = dumps(graph)
    again = loads(text)
    verify(again)
    assert dumps(again) == text
    return again


def test_a_traced_graph_round_trips() -> None:
    table = np.arange(40, dtype=np.float32).reshape(10, 4)

    def function(x: Any, i: Any, b: Any) -> Any:
        y = af.where(b, af.gelu(x, approximate="tanh"), -np.inf)
        x[1:] = x[:-1] * 2
        return af.softmax(y + af.take(table, i, axis=0)), x[-2], af.iota((3, 2), 1), x // 2

    inputs = [("x", "float32", ("n", 4)), ("i", "int64", ("n",)), ("b", "bool", ("n", 4))]
    graph = trace(function, inputs).graph
    again = round_trip(graph)
    assert again.guards == graph.guards and again.outputs == graph.outputs
    rng = np.random.RandomState(0)
    arrays = [rng.standard_normal((3, 4)).astype("f"), rng.randint(0, 10, 3), np.arange(12).reshape(3, 4) % 2 == 0]
    for got, want in zip(run(again, arrays), run(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", list(DType))
def test_constants_and_numbers_of_every_type_round_trip(dtype: DType) -> None:
    small, large = (seeded(shape, 2, dtype=dtype) for shape in ((3,), (40, 3)))
    number = True if dtype is DType.BOOL else 3

    def function(x: Any) -> Any:
        return af.maximum(x, number), af.maximum(x, small), af.asarray(large)

    graph = trace(function, [("x", dtype, ("n", 3), (3, 1))]).graph
    again = round_trip(graph)
    assert again.inputs == graph.inputs
    for name in graph.constant_names:
        np.testing.assert_array_equal(again.constant_array(name), graph.constant_array(name))


def test_numbers_stay_values_where_the_entry_would_not_say_their_type() -> None:
    def function(x: Any, i: Any) -> Any:
        return af.where(x > 0, 1, i), af.full((), 2.0), af.where(x > 0, 1.0, 2.0)

    graph = trace(function, [("x", "float32", (3,)), ("i", "int64", (3,))]).graph
    again = round_trip(graph)
    x = np.array([1, -1, np.nan], np.float32)
    for got, want in zip(run(again, [x, np.arange(3)]), run(graph, [x, np.arange(3)]), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


STEPS = [
    lambda a, b: a + b,
    lambda a, b: af.maximum(a, 0.5),
    lambda a, b: (a.T + 1).T,
    lambda a, b: a[::-1] * b,
    lambda a, b: a - af.mean(b, axis=0),
    lambda a, b: af.concat([a[:1], b[1:]]),
    lambda a, b: af.where(a < b, a, b),
    lambda a, b: af.layer_norm(a, epsilon=1e-3),
    lambda a, b: a.astype("int8").astype("float32"),
]


@given(
    st.lists(st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=10)
)
@settings(max_examples=40, deadline=None)
def test_random_graphs_round_trip(program: list[tuple[int, int, int]]) -> None:
    def function(x: Any, y: Any) -> Any:
        pool = [x, y]
        for kind, a, b in program:
            pool[a] = STEPS[kind](pool[a], pool[b])
        return pool

    graph = trace(function, [("x", "float32", (3, 4)), ("y", "float32", (3, 4))]).graph
    if not graph.nodes:
        return
    arrays = [seeded((3, 4), seed) for seed in (1, 2)]
    for got, want in zip(run(round_trip(graph), arrays), run(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, want)


# -- examples --------------------------------------------------------------------------------------------------------
def example(name: str) -> Any:
    """The Python module of an example."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def norm(x: Any, scale: Any, shift: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + shift


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def longtail(x: Any, y: Any, row: Any, col: Any) -> Any:
    one = {
        "add": lambda u, v: u + v,
        "sub": lambda u, v: u - v,
        "mul": lambda u, v: u * v,
        "max": np.maximum,
        "min": np.minimum,
        "relu": lambda u, v: np.maximum(u, 0),
        "abs": lambda u, v: np.abs(u),
        "neg": lambda u, v: -u,
        "sig": lambda u, v: sigmoid(u),
        "tanh": lambda u, v: np.tanh(u),
        "muls": lambda u, v: u * 0.5,
        "adds": lambda u, v: u + 0.25,
        "row": lambda u, v: u + row,
        "col": lambda u, v: u * col,
        "meansub": lambda u, v: u - u.mean(-1, keepdims=True),
        "maxsub": lambda u, v: u - u.max(-1, keepdims=True),
        "colmean": lambda u, v: u - u.mean(0, keepdims=True),
        "sumT": lambda u, v: u + v.T.reshape(32, 64),
        "sq": lambda u, v: np.tanh(u * u),
    }
    p = [x, y, x + row, y * col, x - y, x * 0.3]
    for kind, a, b in example("longtail200").program():
        p[a] = one[kind](p[a], p[b])
    return np.tanh(p[0] + p[1]), np.tanh(p[2]), p[3].mean(-1), sigmoid(p[4] - p[5])


def adamw(p: Any, g: Any, m: Any, v: Any) -> Any:
    m2, v2 = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = 1e-3 * (m2 / (1 - 0.9**10)) / (np.sqrt(v2 / (1 - 0.999**10)) + 1e-8)
    return p * (1 - 1e-5) - step, m2, v2


def drawn(name: str) -> dict[str, Any]:
    return {k: seeded(s, **d).astype(np.float64) for k, (s, d) in example(name).constants().items()}


def transformer_block(x: Any) -> Any:
    w = drawn("transformer_block")

    def linear(t: Any, name: str) -> Any:
        return t @ w[f"w_{name}"] + w[f"b_{name}"]

    q, k, v = (linear(x, n).reshape(1, 128, 12, 64).swapaxes(1, 2) for n in "qkv")
    mixed = (softmax(np.einsum("bhid,bhjd->bhij", q, k) / 8) @ v).swapaxes(1, 2).reshape(1, 128, 768)
    x = norm(x + linear(mixed, "o"), w["scale1"], w["shift1"])
    return norm(x + linear(gelu(linear(x, "up")), "down"), w["scale2"], w["shift2"])


def model200(x: Any) -> Any:
    w = drawn("model200")
    for n in range(10):
        grown = gelu(norm(x, w[f"scale{n}"], w[f"shift{n}"]) @ w[f"up{n}"] + w[f"up_bias{n}"])
        mixed = np.tanh(grown * w[f"gate{n}"]) + grown
        mixed = mixed - mixed.mean(-1, keepdims=True)
        scaled = mixed / np.sqrt((mixed**2).max(-1, keepdims=True) + 1e-3)
        x = np.clip((scaled @ w[f"down{n}"] + w[f"down_bias{n}"]) * 0.5 + x, -8, 8)
    return x


FORMULAS = {
    "matmul_add_relu": lambda x, w, b: np.maximum(x @ w + b, 0),
    "layernorm_gelu": lambda x, scale, shift: gelu(norm(x, scale, shift)),
    "softmax": softmax,
    "longtail200": longtail,
    "adamw": adamw,
    "transformer_block": transformer_block,
    "model200": model200,
}


def test_every_example_has_its_twin_and_its_formula() -> None:
    assert set(NAMES) == set(FORMULAS)
    assert all((EXAMPLES / f"{name}.py").exists() for name in NAMES)


@pytest.mark.parametrize("name", FORMULAS)
def test_examples_compute_what_their_formula_says(name: str) -> None:
    graph = read(EXAMPLES / f"{name}.json")
    verify(graph)
    inputs = example(name).build()[1]
    assert [v.name for v in graph.inputs] == list(inputs)
    expected = FORMULAS[name](*(a.astype(np.float64) for a in inputs.values()))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, want in zip(run(graph, list(inputs.values())), expected, strict=True):
        assert got.dtype == np.float32 and np.isfinite(want).all()
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", FORMULAS)
def test_example_files_are_what_their_python_exports(name: str) -> None:
    text = (EXAMPLES / f"{name}.json").read_text(encoding="utf-8")
    assert example("export").export(name) == text
    assert len(text) < 100_000
    assert dumps(loads(text), example_sources(name)) == text


def example_sources(name: str) -> dict[str, Any]:
    from autofusion.graph.ir import digest_of

    drawn_from = example(name).constants() if hasattr(example(name), "constants") else {}
    return {digest_of(seeded(shape, **draw)): {"random": draw} for shape, draw in drawn_from.values()}


def test_the_model_has_200_operators_of_which_20_are_contractions() -> None:
    entries = json.loads((EXAMPLES / "model200.json").read_text())["ops"]
    assert len(entries) == 200
    assert sum(entry["type"] == "matmul" for entry in entries) == 20
