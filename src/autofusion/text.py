"""One printer, one parser and one verify driver for every IR.

An IR is a set of frozen dataclasses. Each says how it reads, once, as a template:

    @ir("copy {target} <- {source} over {axes}")
    class Copy: ...

A template that ends in `:` is a block: its last field holds child nodes, printed one a line and indented below. All
other nodes are inline. Values print by type: names bare, dims as expressions without spaces, tuples in brackets. A
field whose template part stands between `[[` and `]]` is left out where it has its default value.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, TypeVar, Union, get_args, get_origin

from autofusion import dims
from autofusion.errors import FormatError, VerifyError

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z_$%@.][\w$%@.\-]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMBER = re.compile(r"-?(?:inf|nan|\d+(?:\.\d*)?(?:e[+-]?\d+)?)(?!\w)")
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|  # .*')
_PIECE = re.compile(r"(\{\w+\}|\[\[.*?\]\])")


def ir(template: str) -> Callable[[type[T]], type[T]]:
    """Class decorator: give a frozen dataclass its text form."""

    def decorate(cls: type[T]) -> type[T]:
        cls._template = template  # type: ignore[attr-defined]
        return cls

    return decorate


@functools.cache
def _pieces(template: str) -> list[str]:
    return [piece for piece in _PIECE.split(template) if piece]


def _is_block(cls: type) -> bool:
    return bool(getattr(cls, "_template", "").endswith(":"))


@functools.cache
def _header(cls: type) -> tuple[list[str], str | None]:
    """The template's pieces, and the name of the block field where there is one."""
    template: str = cls._template  # type: ignore[attr-defined]
    block = dataclasses.fields(cls)[-1].name if template.endswith(":") else None
    return _pieces(template.removesuffix(":")), block


# -- printing --------------------------------------------------------------------------------------------------------
def show(node: Any, note: Callable[[Any], str] | None = None, depth: int = 0) -> str:
    """The text of a node. `note(node)` may add a comment to a line of its own node; comments are not read back."""
    pieces, block = _header(type(node))  # type: ignore[arg-type]
    line = "  " * depth + _fill(node, pieces)
    if block:
        line += ":"
    comment = note(node) if note else ""
    if comment:
        line += f"  # {comment}"
    lines = [line]
    if block:
        lines += [show(child, note, depth + 1) for child in getattr(node, block)]
    return "\n".join(lines)


def _fill(node: Any, pieces: list[str]) -> str:
    text = ""
    cls: type = type(node)
    for piece in pieces:
        if piece.startswith("[["):
            name = _field_in(piece)
            field = next(f for f in dataclasses.fields(node) if f.name == name)
            if getattr(node, name) != field.default:
                text += _fill(node, _pieces(piece[2:-2]))
        elif piece.startswith("{"):
            name = piece[1:-1]
            text += _value(getattr(node, name), bare=_hints(cls)[name] in (str, tuple[str, ...]))
        else:
            text += piece
    return text


def _field_in(piece: str) -> str:
    found = re.search(r"\{(\w+)\}", piece)
    assert found, f"an optional part names its field: {piece}"
    return found.group(1)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _value(value: Any, bare: bool) -> str:
    """`bare`: the field holds nothing but names, which then need no quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "none"
    if isinstance(value, str):
        if isinstance(value, StrEnum):
            return value.value
        return value if bare and _plain(value) else json.dumps(value)
    if isinstance(value, float):
        return repr(value) if not value.is_integer() or abs(value) > 1e15 else f"{value:.1f}"
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(item, bare) for item in value) + "]"
    if dataclasses.is_dataclass(value) and hasattr(value, "_template"):
        return _fill(value, _header(type(value))[0])  # type: ignore[arg-type]
    return str(value)


def _plain(text: str) -> bool:
    found = _NAME.fullmatch(text)
    return found is not None and text not in ("true", "false", "none", "inf", "nan")


# -- parsing ---------------------------------------------------------------------------------------------------------
class _Reader:
    """A cursor over one line."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, expected: str) -> FormatError:
        return FormatError(f"expected {expected} at column {self.at + 1} of {self.text.strip()!r}")

    def literal(self, text: str) -> None:
        wanted = text.strip()
        self.space()
        if not self.text.startswith(wanted, self.at):
            raise self.fail(repr(wanted))
        self.at += len(wanted)

    def space(self) -> None:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1

    def match(self, pattern: re.Pattern[str], expected: str) -> str:
        self.space()
        found = pattern.match(self.text, self.at)
        if not found:
            raise self.fail(expected)
        self.at = found.end()
        return found.group()

    def peek(self, text: str) -> bool:
        self.space()
        return self.text.startswith(text, self.at)

    def dim(self) -> dims.Dim:
        """The longest run of expression characters with balanced parentheses."""
        self.space()
        start, depth = self.at, 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "(":
                depth += 1
            elif char == ")":
                if depth == 0:
                    break
                depth -= 1
            elif not (char.isalnum() or char in "_+-*/%.$" or (depth and char == ",")):
                break
            self.at += 1
        if start == self.at:
            raise self.fail("a dimension")
        return dims.parse(self.text[start : self.at])


def parse(root: type[T], text: str, nodes: tuple[type, ...]) -> T:
    """Read back what `show` printed: a `root` node whose blocks hold nodes of the given classes. Raises FormatError."""
    lines = [line for line in (_COMMENT.sub(r"\1", raw).rstrip() for raw in text.splitlines()) if line.strip()]
    if not lines:
        raise FormatError(f"empty text: expected a {root.__name__}")
    node, rest = _read_node((root,), lines, 0, nodes)
    if rest != len(lines):
        raise FormatError(f"text after the end: {lines[rest].strip()!r}")
    return typing.cast(T, node)


def _depth(line: str) -> int:
    return (len(line) - len(line.lstrip(" "))) // 2


def _read_node(choices: tuple[type, ...], lines: list[str], at: int, nodes: tuple[type, ...]) -> tuple[Any, int]:
    line, depth = lines[at], _depth(lines[at])
    problem: FormatError | None = None
    for cls in choices:
        reader = _Reader(line)
        pieces, block = _header(cls)
        try:
            values = _read_pieces(cls, pieces, reader)
            if block:
                reader.literal(":")
            reader.space()
            if reader.at != len(line):
                raise reader.fail("the end of the line")
        except FormatError as error:
            if problem is None or (_keyword(cls) and line.strip().startswith(_keyword(cls))):
                problem = error
            continue
        at += 1
        if block:
            children = []
            while at < len(lines) and _depth(lines[at]) > depth:
                child, at = _read_node(nodes, lines, at, nodes)
                children.append(child)
            values[block] = tuple(children)
        return cls(**values), at
    raise problem or FormatError(f"no node reads as {line.strip()!r}")


def _keyword(cls: type) -> str:
    first = _header(cls)[0][0]
    return "" if first.startswith("{") else first


def _read_pieces(cls: type, pieces: list[str], reader: _Reader) -> dict[str, Any]:
    hints = _hints(cls)
    values: dict[str, Any] = {}
    for piece in pieces:
        if piece.startswith("[["):
            inner = _pieces(piece[2:-2])
            start = reader.at
            if inner[0].startswith("{") or reader.peek(inner[0].strip()):
                try:
                    values |= _read_pieces(cls, inner, reader)
                except FormatError:
                    reader.at = start
        elif piece.startswith("{"):
            values[piece[1:-1]] = _read_value(hints[piece[1:-1]], reader)
        elif piece.strip():
            reader.literal(piece)
    return values


def _read_value(hint: Any, reader: _Reader) -> Any:
    origin = get_origin(hint)
    if hint == dims.Dim:
        return reader.dim()
    if hint is dims.Expr:
        return _read_expression(reader)
    if origin in (Union, types.UnionType):
        return _read_union(get_args(hint), reader)
    if origin is tuple:
        return _read_tuple(get_args(hint), reader)
    if dataclasses.is_dataclass(hint):
        made = typing.cast(Any, hint)
        return made(**_read_pieces(made, _header(made)[0], reader))
    if hint is bool:
        return {"true": True, "false": False}[reader.match(re.compile(r"(?:true|false)(?!\w)"), "true or false")]
    if hint is type(None):
        reader.match(re.compile(r"none(?![\w.$%@\-])"), "none")
        return None
    if hint is int:
        return int(reader.match(re.compile(r"-?\d+(?![.\de])"), "an integer"))
    if hint is float:
        return float(reader.match(_NUMBER, "a number"))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        wanted = f"one of {', '.join(hint)}"
        word = reader.match(_NAME, wanted)
        if word not in list(hint):
            reader.at -= len(word)
            raise reader.fail(wanted)
        return hint(word)
    if reader.peek('"'):
        written = reader.match(_STRING, "a string")
        try:
            return json.loads(written)
        except ValueError:
            raise reader.fail(f"a string with JSON's escapes, not {written},") from None
    return reader.match(_NAME, "a name")


def _read_expression(reader: _Reader) -> dims.Expr:
    dim = reader.dim()
    if isinstance(dim, int):
        raise reader.fail("an expression with a symbol")
    return dim


def _read_union(choices: tuple[Any, ...], reader: _Reader) -> Any:
    start = reader.at
    for choice in sorted(choices, key=_union_rank):
        reader.at = start
        # Beside types that read as words, a string is quoted.
        if choice is str and not reader.peek('"') and set(choices) != {str, type(None)}:
            continue
        try:
            return _read_value(choice, reader)
        except (FormatError, ValueError):
            continue
    reader.at = start
    raise reader.fail("one of " + ", ".join(getattr(c, "__name__", str(c)) for c in choices))


def _union_rank(choice: Any) -> int:
    order: tuple[Any, ...] = (type(None), bool, int, float)
    if choice in order:
        return order.index(choice)
    return 6 if choice is str else 5 if choice is dims.Expr else 4


def _read_tuple(arguments: tuple[Any, ...], reader: _Reader) -> tuple[Any, ...]:
    reader.literal("[")
    items: list[Any] = []
    fixed = None if len(arguments) == 2 and arguments[1] is Ellipsis else arguments
    while not reader.peek("]"):
        if items:
            reader.literal(",")
        items.append(_read_value(arguments[0] if fixed is None else fixed[len(items)], reader))
    reader.literal("]")
    return tuple(items)


# -- walking and verifying -------------------------------------------------------------------------------------------
@functools.cache
def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def children(node: Any) -> Iterator[Any]:
    """The nodes in a node's fields, in order."""
    cls: type = type(node)
    for name in _field_names(cls):
        value = getattr(node, name)
        for item in value if isinstance(value, tuple) else (value,):
            if hasattr(item, "_template"):
                yield item


def map_dims(node: T, change: Callable[[dims.Expr], dims.Dim]) -> T:
    """The same node with `change` applied to every expression in it."""

    def visit(value: Any) -> Any:
        if isinstance(value, dims.Expr):
            return change(value)
        if isinstance(value, tuple):
            return tuple(visit(item) for item in value)
        if dataclasses.is_dataclass(value) and hasattr(value, "_template"):
            changed = {f.name: visit(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return dataclasses.replace(value, **changed)  # type: ignore[type-var]
        return value

    return typing.cast(T, visit(node))


def walk(node: Any) -> Iterator[Any]:
    """The node and all below it, in text order."""
    yield node
    for child in children(node):
        yield from walk(child)


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rule of an IR, as data: what it says, which lines it looks at, and `check(root, node) -> problem or None`."""

    says: str
    node: type | tuple[type, ...]
    check: Callable[[Any, Any], str | None]


def lines(node: Any) -> Iterator[Any]:
    """The node and all that stand on lines of their own below it, in text order."""
    yield node
    block = _header(type(node))[1]  # type: ignore[arg-type]
    if block is not None:
        for child in getattr(node, block):
            yield from lines(child)


def verify(root: Any, rules: tuple[Rule, ...]) -> None:
    """Check every rule on every line of `root`. Raises VerifyError with the first offending one."""
    for node in lines(root):
        for rule in rules:
            if isinstance(node, rule.node):
                problem = rule.check(root, node)
                if problem:
                    line = show(node).splitlines()[0]
                    raise VerifyError(f"{line!r}: {problem} (rule: {rule.says})")
