"""The text form of a graph reads back, whatever stands in it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import random_graph, unhurried

from autofusion.dims import symbol
from autofusion.dtypes import DType
from autofusion.errors import FormatError, VerifyError
from autofusion.graph import ir
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Attribute, Constant, Graph, Guard, Input, Node, Output, Value

n = symbol("n")


def read_back(graph: Graph) -> Graph:
    read = ir.parse(str(graph), graph.data)
    # The text too: Python says 0.0 == -0.0 == False.
    assert str(read) == str(graph)
    return read


@unhurried
@given(random_graph())
def test_random_graphs_read_back(drawn: tuple[Graph, list[np.ndarray]]) -> None:
    graph, _ = drawn
    read = read_back(graph)
    assert read == graph
    ir.verify(read)


def _one(attributes: tuple[Attribute, ...] = (), name: str = "y", shape: tuple[object, ...] = (4,)) -> Graph:
    made = Value(name, DType.FLOAT32, shape)  # type: ignore[arg-type]
    return Graph(
        "g", {}, (Input(Value("x", DType.FLOAT32, (4,))), Node((made,), "copy", ("x",), attributes), Output(name))
    )


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -7, 1 << 62, 0.0, -0.0, 1.5, 1e-5, 1e16, 1e300, 5e-324, math.inf, -math.inf,
        DType.BFLOAT16, DType.BOOL, n, n * 2 + 1, -(n % 4), -n + 3, (n // 4) * (n % 3), (), (1, -1, n), (n * 4 - 1,),
        "", "tanh", "two words", 'a "quoted" one', "a  # b", "back\\slash", "[1]", "none", "é\n\u2028",
        symbol("info"), symbol("nano") + 1, symbol("nonempty"), symbol("trueish"),
    ],
)  # fmt: skip
def test_every_attribute_value_reads_back(value: object) -> None:
    graph = _one((Attribute("a", value), Attribute("b", 1)))  # type: ignore[arg-type]
    read = read_back(graph)
    assert type(read.nodes[0].attrs["a"]) is type(value)
    assert read == graph


def test_nan_reads_back() -> None:
    assert math.isnan(read_back(_one((Attribute("a", math.nan),))).nodes[0].attrs["a"])


@unhurried
@given(st.text(max_size=12))
def test_any_string_reads_back(text: str) -> None:
    assert read_back(_one((Attribute("a", text),))).nodes[0].attrs["a"] == text


@unhurried
@given(st.text(min_size=1, max_size=8))
def test_any_name_reads_back(name: str) -> None:
    assert read_back(_one(name="_" + name)).nodes[0].name == "_" + name
    assert read_back(_one(name=name)).outputs[0].name == name


@unhurried
@given(st.floats(allow_nan=False))
def test_any_float_reads_back(value: float) -> None:
    assert read_back(_one((Attribute("a", value),))).nodes[0].attrs["a"] == value


def test_symbolic_shapes_strides_guards_writes_and_constants_read_back() -> None:
    F = GraphBuilder("model")
    x = F.input("x", DType.FLOAT32, (n, 4), strides=(1, n))
    y = F.input("y", DType.FLOAT32, (symbol("m"), 4))
    w = F.constant(np.arange(8, dtype=np.float32).reshape(4, 2))
    total = F.add(x, y)
    sliced = F.slice(x, starts=(0, 0), stops=(-1, 4), steps=(1, 1))
    F.output(F.matmul(F.reshape(total, shape=(n * 2, 2)), F.constant(np.eye(2, dtype=np.float32))))
    F.output(F.matmul(sliced, w))
    F.output(total, writes="x")
    graph = F.build()
    assert graph.guards == (Guard(n, symbol("m")),)
    read = read_back(graph)
    assert read == graph
    assert isinstance(read.constants[0], Constant)
    ir.verify(read)


def test_comments_and_blank_lines_are_skipped() -> None:
    graph = _one()
    text = str(graph).replace("\n  output", "  # a note [1] = 2\n\n  output") + "  # the end\n"
    assert ir.parse(text) == graph


@pytest.mark.parametrize(
    "text",
    [
        "",
        "graph g",
        "graph g:\n  nonsense",
        "graph g:\n  input x:float99[4]",
        "graph g:\n  input x:float32[4",
        "graph g:\n  input x:float32[n//0]",
        "graph g:\n  [y:float32[4]] = add [x",
        "graph g:\n  output y extra",
        'graph g:\n  [y:float32[4]] = copy [x] [a="open]',
        'graph g:\n  [y:float32[4]] = copy [x] [a="\\q"]',
        'graph "\\q":',
    ],
)
def test_bad_text_is_one_clear_error(text: str) -> None:
    with pytest.raises(FormatError):
        ir.parse(text)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("[y:float32[4]] = copy [z]\n  output y", "not defined before"),
        ("[x:float32[4]] = copy [x]\n  output x", "defined twice"),
        ("[y:float32[5]] = copy [x]\n  output y", "shape"),
        ("[y:int8[4]] = copy [x]\n  output y", "int8"),
        ("[y:float32[4]] = copi [x]\n  output y", "copy"),
        ("[y:float32[4]] = copy [x, x]\n  output y", "takes 1"),
        ("[y:float32[4]] = copy [x] [a=1]\n  output y", "unknown attribute"),
        ("[y:float32[]] = sum [x] [axes=[3]]\n  output y", "sum"),
        ("output z", "is not defined"),
        ("[y:float32[4]] = copy [x]\n  output y writes y", "no input"),
        ("[y:float32[]] = sum [x]\n  output y writes x", "written"),
        ("input w:float32[n]\n  [y:float32[4]] = add [x, w]\n  output y", "guard"),
    ],
)
def test_verify_names_the_broken_rule(body: str, says: str) -> None:
    with pytest.raises(VerifyError, match=says):
        ir.verify(ir.parse(f"graph g:\n  input x:float32[4]\n  {body}"))
