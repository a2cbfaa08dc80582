"""Op-sequence JSON: operators in execution order, one an entry. `docs/op-sequence.md` documents the form.

    {"format": "autofusion-opseq", "version": 1, "name": "mar",
     "tensors": {"x": {"shape": ["n", 64], "dtype": "float32"}, …},
     "inputs": ["x", "w"],
     "ops": [{"type": "matmul", "inputs": ["x", "w"], "outputs": ["y"]}, …],
     "outputs": ["y", {"name": "z", "writes": "x"}]}

Every error names the entry and what was expected there: `ops[3] (softmax): input "p" is defined later, by ops[5]: …`.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from autofusion import dims, dtypes
from autofusion.dims import Dim, Expr, Shape, show_shape
from autofusion.dtypes import Array, DType
from autofusion.errors import AutofusionError, FormatError, GraphError, ShapeError
from autofusion.graph.builder import GraphBuilder
from autofusion.graph.ir import Graph, Guard, Node, Output, Value
from autofusion.ops import TABLE, Kind, Op

FORMAT, VERSION = "autofusion-opseq", 1
LAYOUTS = ("nd",)
LIMIT = 2 << 30  # bytes of one constant: a typing error in a shape must not fill the machine's memory
INLINE = 32  # constants of up to this many elements are written as nested lists
_NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}  # what JSON has no token for


def read(path: str | Path) -> Graph:
    """The graph of an op-sequence file. Raises FormatError (GraphError where operators do not fit), with the path."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: is not UTF-8 text: byte {error.start}") from None
    try:
        return loads(text, file.parent)
    except AutofusionError as error:
        raise type(error)(f"{path}: {error}") from None


def loads(text: str, base_dir: str | Path = ".") -> Graph:
    """The graph of an op-sequence text; `base_dir` is where its constants' files are. Raises as `read` does."""
    return _Reader(_document(text), Path(base_dir)).graph()


def seeded(
    shape: Iterable[int], seed: int, scale: float = 1.0, dtype: str | DType = DType.FLOAT32, low: int = 0, high: int = 2
) -> Array:
    """The constant that {"random": …} stands for: the same bytes on every machine and NumPy version.

    Floats are normal with deviation `scale`; integers and booleans uniform in [low, high). NumPy's RandomState is used
    because its streams are frozen (NEP 19).
    """
    generator, element = np.random.RandomState(seed), dtypes.of(dtype)
    if element.is_float:
        return np.asarray(generator.standard_normal(tuple(shape)) * scale).astype(element.numpy)
    return np.asarray(generator.randint(low, high, tuple(shape), dtype=np.int64)).astype(element.numpy)


# -- JSON ------------------------------------------------------------------------------------------------------------
def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise FormatError(f"key {_quote(key)} appears twice in one object")
        found[key] = value
    return found


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text, object_pairs_hook=_pairs)
    except json.JSONDecodeError as error:
        raise FormatError(f"corrupt JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise FormatError("corrupt JSON: nested too deeply") from None
    except FormatError:
        raise
    except ValueError as error:  # an integer of more digits than Python reads
        raise FormatError(f"corrupt JSON: {error}") from None
    if not isinstance(document, dict):
        raise FormatError(f"expected an object at the top, found {_found(document)}")
    return document


def _quote(name: str) -> str:
    return json.dumps(name)


def _found(item: Any) -> str:
    """A short description of a JSON value for error texts."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    kind = kinds.get(type(item), "a number")
    shown = json.dumps(item)
    return f"{kind} {shown}" if len(shown) <= 40 and item is not None else kind


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(dict.fromkeys(known)), 3)
    return f"; did you mean {' or '.join(map(_quote, near))}?" if near else ""


# -- reading ---------------------------------------------------------------------------------------------------------
_TOP = ("format", "version", "name", "comment", "tensors", "inputs", "ops", "outputs", "guards")
_TENSOR = ("shape", "dtype", "layout", "strides", "data", "comment")
_OP = ("type", "inputs", "outputs", "attributes", "comment")


class _Reader:
    """One document on its way to a graph. Entries are checked in the order in which a person reads them."""

    def __init__(self, document: dict[str, Any], base_dir: Path) -> None:
        self.document = document
        self.base_dir = base_dir
        self.builder = GraphBuilder()
        self.values: dict[str, Value] = {}
        self.declared: dict[str, tuple[DType, Shape, Shape | None]] = {}
        self.made_by: dict[str, int] = {}  # tensor -> the entry of ops that makes it

    def graph(self) -> Graph:
        self._header()
        tensors = self._expect("tensors", self.document.get("tensors", {}), dict, "an object of tensors")
        for name, entry in tensors.items():
            self._tensor(name, entry)
        ops = self._expect("ops", self.document.get("ops"), list, "a list of operators")
        if not ops:
            raise FormatError("ops: is empty: expected at least one operator")
        for position, op in enumerate(ops):
            self._outline(position, op)
        self._inputs()
        self._constants(tensors)
        # Numbers become values with names of their own, which must not take the names of this file.
        self.builder.names |= set(self.made_by)
        for position, op in enumerate(ops):
            self._op(position, op)
        self._guards()
        self._outputs()
        return self.builder.build()

    # -- the frame ---------------------------------------------------------------------------------------------------
    def _expect(self, where: str, item: Any, kind: type, expected: str) -> Any:
        if not isinstance(item, kind):
            raise FormatError(f"{where}: expected {expected}, found {_found(item)}")
        return item

    def _keys(self, where: str, entry: dict[str, Any], known: tuple[str, ...]) -> None:
        for key in entry:
            if key not in known:
                raise FormatError(f"{where}: unknown key {_quote(key)}{_near(key, known)} (known: {', '.join(known)})")

    def _header(self) -> None:
        form, version = self.document.get("format"), self.document.get("version")
        if form != FORMAT:
            raise FormatError(f"format: expected {_quote(FORMAT)}, found {_found(form)}")
        if version != VERSION or isinstance(version, bool):
            raise FormatError(f"version: expected {VERSION}, found {_found(version)}")
        self._keys("top level", self.document, _TOP)
        name = self._name("name", self.document.get("name", "graph"))
        self.builder.name = name

    def _name(self, where: str, name: Any) -> str:
        self._expect(where, name, str, "a name")
        if not name or not name.isprintable() or any(c in name for c in ' "\\'):
            raise FormatError(f"{where}: {_quote(name)} is no name: expected printable characters but space, quote, \\")
        return str(name)

    # -- tensors -----------------------------------------------------------------------------------------------------
    def _tensor(self, name: str, entry: Any) -> None:
        where = f"tensors[{_quote(name)}]"
        self._name(where, name)
        self._expect(where, entry, dict, 'an object with "shape" and "dtype"')
        self._keys(where, entry, _TENSOR)
        for key in ("shape", "dtype"):
            if key not in entry:
                raise FormatError(f"{where}: {_quote(key)} is missing")
        layout = entry.get("layout", "nd")
        if layout not in LAYOUTS:
            raise FormatError(f"{where}.layout: {_found(layout)} is not supported; expected {' or '.join(LAYOUTS)}")
        shape = self._dims(f"{where}.shape", entry["shape"], 0)
        strides = None
        if entry.get("strides") is not None:
            strides = self._dims(f"{where}.strides", entry["strides"], None)
            if len(strides) != len(shape):
                raise FormatError(f"{where}.strides: {len(strides)} entries, expected {len(shape)}, one an axis")
        self.declared[name] = (self._dtype(f"{where}.dtype", entry["dtype"]), shape, strides)

    def _dtype(self, where: str, item: Any) -> DType:
        if item not in dtypes.ALL:
            near = _near(item, dtypes.ALL) if isinstance(item, str) else ""
            raise FormatError(f"{where}: unknown element type {_found(item)}{near} (known: {', '.join(dtypes.ALL)})")
        return DType(item)

    def _dims(self, where: str, items: Any, least: int | None) -> Shape:
        self._expect(where, items, list, 'a list of ints and expressions such as "n" or "2*n"')
        return tuple(self._dim(f"{where}[{axis}]", item, least) for axis, item in enumerate(items))

    def _dim(self, where: str, item: Any, least: int | None) -> Dim:
        if isinstance(item, str):
            try:
                item = dims.parse(item)
            except (AutofusionError, RecursionError, ZeroDivisionError) as error:
                raise FormatError(f"{where}: {error}") from None
            if isinstance(item, Expr):
                return item
        if not isinstance(item, int) or isinstance(item, bool):
            raise FormatError(f'{where}: expected an int or an expression such as "n" or "2*n", found {_found(item)}')
        if least is not None and not least <= item < 1 << 48:
            raise FormatError(f"{where}: expected {least} to 2**48, found {item}")
        return item

    def _inputs(self) -> None:
        names = self._expect("inputs", self.document.get("inputs", []), list, "a list of tensor names")
        tensors = self.document.get("tensors", {})
        for position, name in enumerate(names):
            where = f"inputs[{position}]"
            self._expect(where, name, str, "a tensor's name")
            if name not in self.declared:
                raise FormatError(f"{where}: {_quote(name)} is not in tensors{_near(name, self.declared)}")
            if name in self.values:
                raise FormatError(f"{where}: {_quote(name)} is listed twice")
            if name in self.made_by:
                raise FormatError(f"{where}: {_quote(name)} is also an output of ops[{self.made_by[name]}]")
            if tensors[name].get("data") is not None:
                raise FormatError(f"{where}: {_quote(name)} has data, so it is a constant: drop one of the two")
            self.values[name] = self.builder.input(name, *self.declared[name])

    def _constants(self, tensors: dict[str, Any]) -> None:
        for name, entry in tensors.items():
            where = f"tensors[{_quote(name)}]"
            dtype, shape, strides = self.declared[name]
            if strides is not None and name not in self.values:
                raise FormatError(f"{where}.strides: only an input has strides of its own")
            if entry.get("data") is not None:
                if name in self.made_by:
                    raise FormatError(f"{where}: has data, but ops[{self.made_by[name]}] makes it")
                array = self._data(f"{where}.data", entry["data"], dtype, shape)
                self.values[name] = self.builder.constant(array, name)
            elif name not in self.values and name not in self.made_by:
                raise FormatError(f"{where}: is no input, has no data, and no operator makes it")

    # -- constant data -----------------------------------------------------------------------------------------------
    def _data(self, where: str, data: Any, dtype: DType, shape: Shape) -> Array:
        numbers = tuple(d for d in shape if isinstance(d, int))
        if len(numbers) != len(shape):
            raise FormatError(f"{where}: a constant needs a shape of numbers, found {show_shape(shape)}")
        if math.prod(numbers) * dtype.size > LIMIT:
            raise FormatError(f"{where}: {show_shape(shape)} of {dtype} is larger than {LIMIT} bytes")
        if not isinstance(data, dict):
            return self._listed(where, data, dtype, numbers)
        if len(data) != 1 or next(iter(data)) not in ("base64", "file", "random"):
            expected = 'nested lists or one of "base64", "file", "random"'
            raise FormatError(f"{where}: expected {expected}, found {_found(data)}")
        (kind, content), *_ = data.items()
        if kind == "random":
            return self._random(f"{where}.random", content, dtype, numbers)
        if kind == "file":
            return self._file(f"{where}.file", content, dtype, numbers)
        return self._base64(f"{where}.base64", content, dtype, numbers)

    def _listed(self, where: str, data: Any, dtype: DType, shape: tuple[int, ...]) -> Array:
        flat: list[Any] = []

        def visit(item: Any, axis: int, path: str) -> None:
            if axis == len(shape):
                flat.append(self._number(path, item, dtype))
                return
            if not isinstance(item, list) or len(item) != shape[axis]:
                found = f"a list of {len(item)}" if isinstance(item, list) else _found(item)
                expected = f"a list of {shape[axis]} (axis {axis} of {list(shape)})"
                raise FormatError(f"{path}: expected {expected}, found {found}")
            for position, each in enumerate(item):
                visit(each, axis + 1, f"{path}[{position}]")

        visit(data, 0, where)
        with np.errstate(over="ignore"):
            wide = np.array(flat, np.float64 if dtype.is_float else None if dtype.is_integer and flat else dtype.numpy)
            return wide.astype(dtype.numpy).reshape(shape)

    def _number(self, where: str, item: Any, dtype: DType) -> bool | int | float:
        """A number of an element type: booleans for bool, ints in range for integers, any number for floats."""
        if dtype.is_float and isinstance(item, str) and item in _NUMBERS:
            return _NUMBERS[item]
        if dtype is DType.BOOL:
            fits = isinstance(item, bool)
        elif dtype.is_integer:
            limits = np.iinfo(dtype.numpy)
            fits = isinstance(item, int) and not isinstance(item, bool) and limits.min <= item <= limits.max
        else:
            fits = isinstance(item, int | float) and not isinstance(item, bool) and _is_finite(item)
        if not fits:
            raise FormatError(f"{where}: expected a number of type {dtype}, found {_found(item)}")
        return item  # type: ignore[no-any-return]

    def _random(self, where: str, content: Any, dtype: DType, shape: tuple[int, ...]) -> Array:
        self._expect(where, content, dict, 'an object {"seed": 0, "scale": 1.0}')
        allowed = ("seed", "scale") if dtype.is_float else ("seed", "low", "high")
        self._keys(where, content, allowed)
        options = dict(content)
        seed = self._expect(f"{where}.seed", options.get("seed", 0), int, "an int")
        if isinstance(seed, bool) or not 0 <= seed < 1 << 32:
            raise FormatError(f"{where}.seed: expected 0 to 2**32-1, found {_found(seed)}")
        for key in allowed[1:]:
            if key in options:
                self._number(f"{where}.{key}", options[key], DType.FLOAT64 if key == "scale" else dtypes.DType.INT64)
        if not dtype.is_float:
            low, high = options.get("low", 0), options.get("high", 2)
            top = 1 if dtype is DType.BOOL else int(np.iinfo(dtype.numpy).max)
            least = 0 if dtype is DType.BOOL else int(np.iinfo(dtype.numpy).min)
            if not least <= low < high <= top + 1:
                raise FormatError(f"{where}: expected low < high within {dtype}, found {low} and {high}")
        return seeded(shape, **(options | {"seed": seed}), dtype=dtype)

    def _file(self, where: str, content: Any, dtype: DType, shape: tuple[int, ...]) -> Array:
        self._expect(where, content, str, "the name of a .npy file")
        relative = PurePosixPath(content)
        if relative.is_absolute() or ".." in relative.parts or relative.suffix != ".npy":
            raise FormatError(f"{where}: expected a .npy file beside or below the JSON file, found {_quote(content)}")
        try:
            array = np.load(self.base_dir / relative, allow_pickle=False)
        except OSError as error:
            raise FormatError(f"{where}: {_quote(content)} cannot be read: {error.strerror or error}") from None
        except (ValueError, EOFError) as error:
            raise FormatError(f"{where}: {_quote(content)} is no NumPy file: {error}") from None
        # NumPy writes bfloat16 as two opaque bytes.
        array = array.view(dtype.numpy) if array.dtype == np.dtype("V2") and dtype is DType.BFLOAT16 else array
        if array.shape != shape or array.dtype != dtype.numpy:
            found = f"{array.dtype}{list(array.shape)}"
            raise FormatError(f"{where}: {_quote(content)} holds {found}, expected {dtype}{list(shape)}")
        return np.asarray(array)

    def _base64(self, where: str, content: Any, dtype: DType, shape: tuple[int, ...]) -> Array:
        self._expect(where, content, str, "base64 text of the little-endian elements")
        try:
            raw = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise FormatError(f"{where}: is no base64: {error}") from None
        expected = math.prod(shape) * dtype.size
        if len(raw) != expected:
            raise FormatError(f"{where}: {len(raw)} bytes, expected {expected} for {dtype}{list(shape)}")
        if dtype is DType.BOOL and any(byte > 1 for byte in raw):
            raise FormatError(f"{where}: a bool is a byte 0 or 1")
        return np.frombuffer(raw, dtype.numpy.newbyteorder("<") if dtype.size > 1 else dtype.numpy).reshape(shape)

    # -- operators ---------------------------------------------------------------------------------------------------
    def _outline(self, position: int, op: Any) -> None:
        """The entry's form and the tensor it makes: known of all before any is built, to tell a cycle from a typo."""
        where = f"ops[{position}]"
        self._expect(where, op, dict, 'an object with "type", "inputs" and "outputs"')
        kind = self._expect(f"{where}.type", op.get("type"), str, "an operator's name")
        where = f"{where} ({kind})"
        self._keys(where, op, _OP)
        if kind not in TABLE:
            raise FormatError(f"{where}: unknown operator{_near(kind, (row.name for row in TABLE))}")
        outputs = self._expect(f"{where}.outputs", op.get("outputs"), list, "a list of one name")
        if len(outputs) != 1:
            raise FormatError(f"{where}.outputs: expected one name, found {len(outputs)}")
        name = self._name(f"{where}.outputs[0]", outputs[0])
        if name in self.made_by:
            raise FormatError(f"{where}: output {_quote(name)} is made by ops[{self.made_by[name]}] already")
        self.made_by[name] = position

    def _op(self, position: int, op: dict[str, Any]) -> None:
        row, name = TABLE.get(op["type"]), op["outputs"][0]
        where = f"ops[{position}] ({row.name})"
        inputs = self._expect(f"{where}.inputs", op.get("inputs", []), list, "a list of tensor names and numbers")
        attributes = self._expect(f"{where}.attributes", op.get("attributes", {}), dict, "an object")
        found = [self._operand(where, each) for each in inputs]
        known = [v for v in found if isinstance(v, Value)]
        operands = [v if isinstance(v, Value) else self._scalar(where, v, known) for v in found]
        attrs = {key: self._attribute(f"{where}.attributes.{key}", row, key, v) for key, v in attributes.items()}
        self.builder.names.discard(name)
        try:
            value = self.builder.emit(row.name, operands, attrs, name)
        except GraphError as error:
            raise type(error)(f"{where}: {str(error).removeprefix(row.name + ': ')}") from None
        except (TypeError, ValueError, KeyError, AttributeError) as error:  # an attribute of a kind no rule expects
            raise GraphError(f"{where}: attributes {_found(attributes)} do not fit: {error}") from None
        self.values[name] = value
        if name in self.declared:
            self._agrees(where, value)

    def _operand(self, where: str, item: Any) -> Value | bool | int | float:
        if isinstance(item, bool | int | float):
            return item
        if not isinstance(item, str):
            raise FormatError(f"{where}.inputs: expected a tensor's name or a number, found {_found(item)}")
        if item in self.values:
            return self.values[item]
        if item in self.made_by:
            later = self.made_by[item]
            why = "the sequence is cyclic or out of order"
            raise FormatError(f"{where}: input {_quote(item)} is defined later, by ops[{later}]: {why}")
        if item in _NUMBERS:
            return _NUMBERS[item]
        near = _near(item, [*self.values, *self.made_by])
        raise FormatError(f"{where}: input {_quote(item)} is not defined{near}")

    def _scalar(self, where: str, number: bool | int | float, known: list[Value]) -> Value:
        """A number beside tensors has the last tensor's element type."""
        if not known:
            raise FormatError(f"{where}: all inputs are numbers: expected at least one tensor; `full` makes one")
        dtype = known[-1].dtype
        if not (isinstance(number, float) and dtype.is_float):
            self._number(f"{where}: input {_found(number)} beside {_quote(known[-1].name)}", number, dtype)
        return self.builder.scalar(number, dtype)

    def _attribute(self, where: str, row: Op, key: str, item: Any) -> Any:
        """A JSON value as the row takes it: lists are tuples of dims, strings are dims unless the default is a text."""
        default = row.attributes.get(key)
        if key == "dtype":
            return self._dtype(where, item)
        if isinstance(item, list):
            return self._dims(where, item, None)
        if isinstance(item, str) and not isinstance(default, str):
            return _NUMBERS[item] if item in _NUMBERS else self._dim(where, item, None)
        if isinstance(item, dict):
            raise FormatError(f"{where}: expected a number, a string, a boolean or a list, found {_found(item)}")
        return float(item) if type(default) is float and type(item) is int else item

    def _agrees(self, where: str, value: Value) -> None:
        """A declared output must be what was inferred. Dims that cannot be compared become guards."""
        dtype, shape, _ = self.declared[value.name]
        told = f"tensors[{_quote(value.name)}] declares {dtype}{show_shape(shape)}"
        if dtype is not value.dtype or len(shape) != len(value.shape):
            raise ShapeError(f"{where}: gives {value.dtype}{show_shape(value.shape)}, but {told}")
        for declared, inferred in zip(shape, value.shape, strict=True):
            if isinstance(declared, int) and isinstance(inferred, int) and declared != inferred:
                raise ShapeError(f"{where}: gives {value.dtype}{show_shape(value.shape)}, but {told}")
            if declared != inferred:
                self.builder.guards[Guard(inferred, declared)] = None

    # -- the end -----------------------------------------------------------------------------------------------------
    def _guards(self) -> None:
        guards = self._expect("guards", self.document.get("guards", []), list, 'a list of pairs such as ["n", "2*m"]')
        for position, pair in enumerate(guards):
            where = f"guards[{position}]"
            sides = self._dims(where, pair, None)
            if len(sides) != 2:
                raise FormatError(f"{where}: expected two sides, found {len(sides)}")
            self.builder.guards[Guard(*sides)] = None

    def _outputs(self) -> None:
        entries = self._expect("outputs", self.document.get("outputs"), list, "a list of tensor names")
        if not entries:
            raise FormatError("outputs: is empty: expected at least one tensor")
        inputs = self.document.get("inputs", [])
        written: dict[str, int] = {}
        for position, entry in enumerate(entries):
            where = f"outputs[{position}]"
            if isinstance(entry, dict):
                self._keys(where, entry, ("name", "writes"))
            name, writes = (entry.get("name"), entry.get("writes")) if isinstance(entry, dict) else (entry, None)
            name = str(self._expect(where, name, str, 'a tensor\'s name or {"name": …, "writes": …}'))
            if name not in self.values:
                raise FormatError(f"{where}: {_quote(name)} is not defined{_near(name, self.values)}")
            if writes is not None:
                self._writes(where, self.values[name], writes, inputs)
                if writes in written:
                    raise FormatError(f"{where}: {_quote(writes)} is written by outputs[{written[writes]}] already")
                written[writes] = position
            self.builder.output(name, writes)

    def _writes(self, where: str, value: Value, writes: Any, inputs: list[str]) -> None:
        if writes not in inputs:
            near = _near(writes, inputs) if isinstance(writes, str) else ""
            raise FormatError(f"{where}: writes {_found(writes)}: expected the name of an input{near}")
        target = self.values[writes]
        if target.type != value.type:
            found = f"{value.dtype}{show_shape(value.shape)}"
            expected = f"{target.dtype}{show_shape(target.shape)}"
            raise ShapeError(f"{where}: {_quote(value.name)} is {found}, but writes {_quote(writes)} of {expected}")


def _is_finite(item: int | float) -> bool:
    """Whether it is a number that a double can hold; NaN and infinity tokens of Python's JSON are fine."""
    return isinstance(item, float) or abs(item) < 1 << 1023


# -- writing ---------------------------------------------------------------------------------------------------------
def dumps(graph: Graph, sources: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """The op-sequence text of a graph; `loads` gives an equal graph up to the names of inlined numbers.

    `sources`: by a constant's digest, the data entry to write for it (`{"random": {"seed": 3}}`). Others are written as
    nested lists where small, else as base64.
    """
    return _Writer(graph, sources or {}).text()


class _Writer:
    def __init__(self, graph: Graph, sources: Mapping[str, Mapping[str, Any]]) -> None:
        self.graph = graph
        self.sources = sources
        self.inlined = self._inlined()

    def text(self) -> str:
        """One entry a line: it reads, it diffs, and it stays small."""
        graph = self.graph
        tensors = {v.name: self._tensor(v) for v in graph.inputs}
        for constant in graph.constants:
            tensors[constant.value.name] = self._tensor(constant.value) | {"data": self._data(constant.digest)}
        ops = [self._op(node) for node in graph.nodes if node.name not in self.inlined]
        parts = [
            f'"format": {json.dumps(FORMAT)}, "version": {VERSION}, "name": {json.dumps(graph.name)}',
            _block("tensors", [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in tensors.items()], "{}"),
            f'"inputs": {json.dumps([v.name for v in graph.inputs])}',
            _block("ops", [json.dumps(op, ensure_ascii=False) for op in ops], "[]"),
        ]
        if graph.guards:
            parts.append(f'"guards": {json.dumps([[_plain(g.left), _plain(g.right)] for g in graph.guards])}')
        parts.append(f'"outputs": {json.dumps([self._output(o) for o in graph.outputs])}')
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def _tensor(self, value: Value) -> dict[str, Any]:
        entry: dict[str, Any] = {"shape": [_plain(d) for d in value.shape], "dtype": value.dtype.value}
        if value.strides is not None:
            entry["strides"] = [_plain(d) for d in value.strides]
        return entry

    def _data(self, digest: str) -> Any:
        if digest in self.sources:
            return dict(self.sources[digest])
        array = self.graph.data[digest]
        if array.size <= INLINE:
            dtype = dtypes.of(array)
            wide = array.astype(np.float64) if dtype.is_float else array
            return _listed(wide.tolist())
        little = np.ascontiguousarray(array)
        if array.dtype.itemsize > 1 and array.dtype.byteorder == ">":
            little = little.byteswap()
        return {"base64": base64.b64encode(little.tobytes()).decode("ascii")}

    def _inlined(self) -> dict[str, bool | int | float]:
        """Rank-0 `full` nodes that stand as numbers in every entry that reads them."""
        found: dict[str, bool | int | float] = {}
        results = {output.name for output in self.graph.outputs}
        for node in self.graph.nodes:
            value = node.attrs.get("value")
            if node.op == "full" and not node.output.shape and isinstance(value, bool | int | float):
                found[node.name] = _as_type(value, node.output.dtype)
        for node in self.graph.nodes:
            tensors = [self.graph.values[name] for name in node.inputs if name not in found]
            for name in node.inputs:
                fits = node.kind is Kind.ELEMENTWISE and tensors
                if name in found and not (fits and tensors[-1].dtype is self.graph.values[name].dtype):
                    results.add(name)
        return {name: value for name, value in found.items() if name not in results}

    def _op(self, node: Node) -> dict[str, Any]:
        inputs = [_plain(self.inlined[n]) if n in self.inlined else n for n in node.inputs]
        entry: dict[str, Any] = {"type": node.op, "inputs": inputs, "outputs": [node.name]}
        defaults = node.row.attributes
        attributes = {k: _plain(v) for k, v in node.attrs.items() if k not in defaults or defaults[k] != v}
        return entry | ({"attributes": attributes} if attributes else {})

    def _output(self, output: Output) -> Any:
        return output.name if output.writes is None else {"name": output.name, "writes": output.writes}


def _as_type(value: bool | int | float, dtype: DType) -> bool | int | float:
    return float(value) if dtype.is_float else bool(value) if dtype is DType.BOOL else int(value)


def _block(key: str, lines: list[str], brackets: str) -> str:
    body = "".join(f"\n  {line}," for line in lines).removesuffix(",")
    return f'"{key}": {brackets[0]}{body}\n{brackets[1]}'


def _plain(item: Any) -> Any:
    """An attribute or dim as JSON holds it."""
    if isinstance(item, tuple):
        return [_plain(each) for each in item]
    if isinstance(item, Expr):
        return item.text
    if isinstance(item, DType):
        return item.value
    if isinstance(item, float) and not math.isfinite(item):
        return "nan" if math.isnan(item) else "inf" if item > 0 else "-inf"
    return item


def _listed(item: Any) -> Any:
    return [_listed(each) for each in item] if isinstance(item, list) else _plain(item)
