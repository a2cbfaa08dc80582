"""The public API: compile, jit, save and load, registration, explanations, dumps."""

from __future__ import annotations

import runpy
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autofusion as af
from autofusion import api
from autofusion.errors import ArgumentError, FormatError, GraphError, TargetError
from autofusion.graph.builder import GraphBuilder
from autofusion.jit import pipeline
from autofusion.ops.rules import broadcast, same
from autofusion.runtime import aicore
from autofusion.targets.cpu import host
from autofusion.targets.cpu.emit import Emitter
from autofusion.targets.vecmath.values import V

RNG = np.random.default_rng(0)
X = RNG.standard_normal((33, 40)).astype(np.float32)
W = RNG.standard_normal((40, 24)).astype(np.float32)
B = RNG.standard_normal(24).astype(np.float32)


def layer(x: Any, w: Any, b: Any) -> Any:
    return af.relu(x @ w + b)


def expected_layer() -> Any:
    return np.maximum(X.astype(np.float64) @ W + B, 0)


def test_compile_a_function() -> None:
    compiled = af.compile(layer, [X, W, B])
    np.testing.assert_allclose(compiled(X, W, B), expected_layer(), rtol=1e-5, atol=1e-5)
    assert compiled.stats["launches"] == 1 and compiled.stats["fallbacks"] == 0


def test_explain_has_groups_verdicts_and_bytes() -> None:
    explanation = af.compile(layer, [X, W, B]).explain()
    assert len(explanation.groups) == 1 and explanation.launches == 1 and not explanation.fallbacks
    assert explanation.gm_bytes < explanation.gm_bytes_unfused
    assert explanation.groups[0].bytes_written == 33 * 24 * 4
    assert all(v.fused for v in explanation.verdicts)
    assert "1 launch" in str(explanation)
    assert explanation.to_json()["verdicts"][0]["code"] == "fused"


@pytest.mark.parametrize("stage", ["source", "graph", "groups", "kernel", "schedule", "tile", "plan", "llvm", "asm"])
def test_every_stage_has_a_source(stage: str) -> None:
    assert af.compile(layer, [X, W, B]).source(stage).strip()


def test_an_unknown_stage_is_one_clear_error() -> None:
    with pytest.raises(ArgumentError, match="expected one of source, graph"):
        af.compile(layer, [X, W, B]).source("nonsense")


def test_jit_compiles_once_per_signature_and_says_why() -> None:
    function = af.jit(layer)
    function(X, W, B)
    function(X, W, B)
    assert function.stats["variants"] == 1
    function(X[:8], W, B)
    assert function.recompiles == ["x: shape (8, 40), before (33, 40)"]
    function(X.astype(np.float64), W.astype(np.float64), B.astype(np.float64))
    assert "element type float64, before float32" in function.recompiles[1]


def test_dlpack_arguments() -> None:
    class Exported:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    compiled = af.compile(layer, [X, W, B])
    np.testing.assert_array_equal(compiled(Exported(X), W, B), compiled(X, W, B))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, W), "2 arguments given, expected 3"),
        ((X.astype(np.float64), W, B), "x: element type float64, expected float32"),
        ((X[0], W, B), "x: rank 1, expected 2"),
        ((X[:, :39], W, B), "axis 1 is 39"),
        ((X, W, "text"), "expected an array"),
    ],
)
def test_wrong_arguments_are_one_clear_error(arguments: Any, message: str) -> None:
    compiled = af.compile(layer, [X, W, B])
    with pytest.raises((ArgumentError, TypeError), match=message):
        compiled(*arguments)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(TargetError, match="unknown target 'gpu'"):
        af.compile(layer, [X, W, B], target="gpu")
    with pytest.raises(TargetError, match="cannot run on this machine"):
        af.compile(layer, [X, W, B], target="cpu:aarch64:neoverse-v1")
    with pytest.raises(ArgumentError, match="expected default or strict"):
        af.compile(layer, [X, W, B], numerics="fast")


# -- save and load ---------------------------------------------------------------------------------------------------
def test_save_and_load(tmp_path: Path) -> None:
    compiled = af.compile(layer, [X, W, B])
    compiled.save(tmp_path / "layer.af")
    loaded = af.load(tmp_path / "layer.af")
    np.testing.assert_array_equal(loaded(X, W, B), compiled(X, W, B))
    assert [p.name for p in tmp_path.iterdir()] == ["layer.af"]
    with pytest.raises(ArgumentError, match="compile the graph to explain it"):
        loaded.explain()


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        af.compile(layer, [X, W, B]).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_saved_constants_of_every_type(tmp_path: Path) -> None:
    F = GraphBuilder("constants")
    expected = []
    for dtype in ("bfloat16", "float16", "bool", "int64"):
        array = (RNG.standard_normal(5) * 3).astype(af.api.dtypes.of(dtype).numpy)
        F.output(F.copy(F.constant(array)))
        expected.append(array)
    api.compile_graph(F.build()).save(tmp_path / "c")
    for found, array in zip(af.load(tmp_path / "c")(), expected, strict=True):
        np.testing.assert_array_equal(found, array)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    af.compile(layer, [X, W, B]).save(path)
    whole = path.read_bytes()
    for broken in (b"", whole[: len(whole) // 2], b"not a zip"):
        path.write_bytes(broken)
        with pytest.raises(FormatError, match="not a file that save"):
            af.load(path)


def test_code_of_another_machine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    af.compile(layer, [X, W, B]).save(path)
    with zipfile.ZipFile(path) as old:
        entries = {n: old.read(n) for n in old.namelist()}
    entries["manifest.json"] = entries["manifest.json"].replace(host.host().cpu.encode(), b"some-other-cpu")
    with zipfile.ZipFile(path, "w") as new:
        for name, content in entries.items():
            new.writestr(name, content)
    with pytest.raises(TargetError, match="some-other-cpu"):
        af.load(path)


# -- registration ----------------------------------------------------------------------------------------------------
def test_a_registered_row_fuses_with_no_other_change() -> None:
    row = af.Op(
        "cube_of",
        af.Kind.ELEMENTWISE,
        1,
        broadcast,
        same,
        lambda a: a * a * a,
        lower=lambda F, a, attrs: F.mul(F.mul(a, a), a),
    )
    af.register_op(row)
    try:
        compiled = af.compile(lambda x: af.exp(af.cube_of(x)) + 1.0, [X])
        np.testing.assert_allclose(compiled(X), np.exp(X**3) + 1, rtol=1e-5)
        assert compiled.stats["groups"] == 1 and compiled.stats["fallbacks"] == 0
    finally:
        af.unregister_op("cube_of")


def test_a_registered_primitive_with_an_emitter_fuses() -> None:
    def emit(e: Emitter, x: list[V], source: Any, result: Any) -> V:
        return e.op("fsub", x[0], e.const(x[0].type, 3.0))

    af.register_op(af.Op("minus3", af.Kind.ELEMENTWISE, 1, broadcast, same, lambda a: a - 3), cpu=emit)
    try:
        compiled = af.compile(lambda x: af.minus3(x) * 2.0, [X])
        np.testing.assert_array_equal(compiled(X), (X - 3) * 2)
        assert compiled.stats["fallbacks"] == 0 and compiled.stats["groups"] == 1
    finally:
        af.unregister_op("minus3")


def test_an_op_without_code_runs_on_the_host_and_is_reported() -> None:
    af.register_op(af.Op("sorted_rows", af.Kind.OPAQUE, 1, lambda s, a: s[0], same, lambda a: np.sort(a, axis=-1)))
    try:
        compiled = af.compile(lambda x: af.sorted_rows(x * 2.0) + 1.0, [X])
        np.testing.assert_array_equal(compiled(X), np.sort(X * 2, axis=-1) + 1)
        assert compiled.stats["launches"] == 2 and compiled.stats["fallbacks"] == 1
        explanation = compiled.explain()
        assert len(explanation.fallbacks) == 1 and "sorted_rows" in explanation.fallbacks[0]
        assert any(v.code == "opaque" for v in explanation.refusals)
    finally:
        af.unregister_op("sorted_rows")


def test_a_name_is_registered_once() -> None:
    with pytest.raises(GraphError, match="'add' is registered already"):
        af.register_op(af.Op("add", af.Kind.ELEMENTWISE, 2, broadcast, same, np.add))


@pytest.fixture
def dot_rows() -> Any:
    example = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "library_kernel.py"))
    yield example
    for kernel in list(af.api.LIBRARY):
        af.unregister_library_kernel(kernel.name)


def test_library_kernel_fuses_its_epilogue(dot_rows: Any) -> None:
    x = X[:3]
    af.register_library_kernel(dot_rows["KERNEL"])
    compiled = af.compile(layer, [x, W, B])
    assert "library=dot_rows" in compiled.source("kernel") and "call void @dot_rows" in compiled.source("llvm")
    assert compiled.stats["groups"] == 1
    np.testing.assert_allclose(compiled(x, W, B), expected_layer()[:3], rtol=1e-5, atol=1e-5)


def test_library_kernel_takes_a_prologue_tile(dot_rows: Any) -> None:
    af.register_library_kernel(dot_rows["KERNEL"])
    x = X[:1]
    compiled = af.compile(lambda x, w: af.tanh(x) @ w, [x, W])
    np.testing.assert_allclose(compiled(x, W), np.tanh(x) @ W, rtol=1e-5, atol=1e-5)


def test_library_kernel_where_it_does_not_apply(dot_rows: Any) -> None:
    af.register_library_kernel(dot_rows["KERNEL"])
    assert "library" not in af.compile(layer, [X, W, B]).source("kernel")


def test_library_kernel_without_slots_is_a_boundary(dot_rows: Any) -> None:
    kernel = dot_rows["KERNEL"]
    af.register_library_kernel(
        af.LibraryKernel("dot_rows", kernel.op, kernel.source, kernel.applies, epilogue=False, prologue=False)
    )
    compiled = af.compile(lambda x, w, b: af.relu(af.tanh(x) @ w + b), [X[:2], W, B])
    assert compiled.stats["groups"] == 3 and compiled.stats["launches_per_call"] == 1
    reasons = [v.text for v in compiled.explain().refusals if v.code == "library"]
    assert any("no prologue slot" in r for r in reasons) and any("no epilogue slot" in r for r in reasons)
    np.testing.assert_allclose(compiled(X[:2], W, B), np.maximum(np.tanh(X[:2]) @ W + B, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "add"}, "add is no contraction"),
        ({"source": "define void @other() { ret void }"}, "does not define @dot_rows"),
    ],
)
def test_a_wrong_library_kernel_is_refused(dot_rows: Any, change: dict[str, str], message: str) -> None:
    kernel = dot_rows["KERNEL"]
    fields = {"name": "dot_rows", "op": kernel.op, "source": kernel.source, "applies": kernel.applies} | change
    with pytest.raises(GraphError, match=message):
        af.register_library_kernel(af.LibraryKernel(**fields))


# -- one compile for equal layers, communication, dumps --------------------------------------------------------------
def test_twelve_equal_layers_compile_once() -> None:
    F = GraphBuilder("layers")
    x = F.input("x", af.api.dtypes.of("float32"), (128, 512))
    for number in range(12):
        w = F.constant(RNG.standard_normal((512, 512)).astype(np.float32), f"w{number}")
        x = F.relu(F.matmul(x, w))
    F.output(x)
    compiled = api.compile_graph(F.build())
    assert compiled.stats["groups"] == 12 and compiled.stats["kernels"] == 1
    assert compiled.stats["launches_per_call"] == 1


def communicating(world: int) -> Any:
    F = GraphBuilder("comm")
    x = F.input("x", af.api.dtypes.of("float32"), (8,))
    F.output(F.exp(F.all_reduce(F.exp(x), world_size=world)))
    return F.build()


def test_communication_is_a_boundary_and_the_identity_alone() -> None:
    compiled = api.compile_graph(communicating(1))
    x = RNG.standard_normal(8).astype(np.float32)
    np.testing.assert_allclose(compiled(x), np.exp(np.exp(x)), rtol=1e-5)
    assert compiled.stats["groups"] == 3 and compiled.stats["launches"] == 1
    assert {v.code.value for v in compiled.explain().refusals} == {"communication"}


def test_communication_between_devices_is_refused_here() -> None:
    with pytest.raises(TargetError, match="communication over 8 devices"):
        api.compile_graph(communicating(8))


def test_dumped_stages_can_be_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFUSION_DUMP", str(tmp_path))
    x = np.ones(4, np.float32)
    assert af.compile(lambda x: x * 2.0, [x])(x)[0] == 2
    dumped = sorted(p.name for p in tmp_path.iterdir())
    assert dumped[0] == "00-source.txt" and "05-tile-k0.txt" in dumped and "07-plan.txt" in dumped
    text = (tmp_path / "05-tile-k0.txt").read_text()
    (tmp_path / "05-tile-k0.override.txt").write_text(text.replace("float32(2.0)", "float32(5.0)"))
    assert af.compile(lambda x: x * 2.0, [x])(x)[0] == 5
    (tmp_path / "05-tile-k0.override.txt").write_text("nonsense")
    with pytest.raises(FormatError, match=r"05-tile-k0\.override\.txt"):
        af.compile(lambda x: x * 2.0, [x])


def test_a_graph_dump_can_be_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFUSION_DUMP", str(tmp_path))
    x = np.full(4, 0.5, np.float32)
    af.compile(lambda x: af.exp(x), [x])
    text = (tmp_path / "01-graph.txt").read_text()
    (tmp_path / "01-graph.override.txt").write_text(text.replace("= exp", "= tanh"))
    np.testing.assert_allclose(af.compile(lambda x: af.exp(x), [x])(x), np.tanh(x), rtol=1e-6)


def product(activation: str) -> Any:
    F = GraphBuilder("mm")
    a, b = (F.input(n, af.api.dtypes.of("float32"), (64, 64)) for n in "ab")
    F.output(getattr(F, activation)(F.matmul(a, b)))
    return F.build()


def test_lowering_for_two_units() -> None:
    text = dict(pipeline.stages(api.lower_graph(product("gelu"), "ascend910b")))["tile"]
    assert "on cube" in text and "on vector" in text and "ring" in text
    assert "Fixpipe" in api.emit(product("gelu"), "source", "ascend910b")


def test_what_an_ascend_target_does_not_have() -> None:
    for stage in ("llvm", "asm"):
        with pytest.raises(TargetError, match=rf"ascend910b: no stage {stage}, its code is Ascend C"):
            api.emit(product("relu"), stage, "ascend910b")
    with pytest.raises(TargetError, match="files with a launcher are written for Ascend targets"):
        api.emit_files(product("relu"), "cpu")


@pytest.mark.skipif(aicore.unavailable() is not None, reason=f"{aicore.unavailable()}")
def test_a_compiled_ascend_graph(tmp_path: Path) -> None:
    compiled = af.compile(product("relu"), target="ascend910b")
    assert compiled.source("source") == api.emit(product("relu"), "source", "ascend910b")
    with pytest.raises(TargetError, match="no stage llvm"):
        compiled.source()
    with pytest.raises(ArgumentError, match="expected one of source, graph"):
        compiled.source("blueprint")
    with pytest.raises(TargetError, match="only a CPU's code is saved"):
        compiled.save(tmp_path / "mm.af")
    assert not list(tmp_path.iterdir())


def sharing_chain(steps: int) -> Any:
    """c = a + b; d = a * b, again and again: every value is read twice, none may be computed twice."""
    F = GraphBuilder("sharing")
    a, b = (F.input(n, af.api.dtypes.of("float32"), (16,)) for n in "ab")
    for _ in range(steps):
        a, b = F.mul(F.add(a, b), 0.5), F.minimum(F.mul(a, b), 1.0)
    F.output(a)
    F.output(b)
    return F.build()


def test_sharing_is_not_duplicated() -> None:
    """A thousand steps take one statement an operator, and their code grows as the chain does."""
    sizes = {}
    for steps in (250, 1000):
        compiled = api.compile_graph(sharing_chain(steps))
        compilation = compiled.compilation
        assert compilation is not None
        maps = [s for g in compilation.groups for s in g.lowered.kernel.statements if type(s).__name__ == "Map"]
        assert len(maps) == 4 * steps
        sizes[steps] = sum(len(code.text) for code in compilation.codes.values())
        assert compiled.stats["launches_per_call"] == 1
    assert sizes[1000] <= 4.5 * sizes[250]
