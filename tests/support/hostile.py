"""Values of any type whose every text holds what a terminal would obey, made from the type alone.

A field that is added to a type is in its values without a word here; so is each kind of control character in the
first letters of a text, where a narrow column does not cut it (`values` gives one value for each).
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import re
import sys
import typing
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
MARK = "QZ"
"""Follows each control sequence: on the screen it shows that the text was drawn, in the bytes how."""
PIECES = (
    "\x1b]52;c;UVo=\x07",
    "\x1b]2;",
    "\x1b[1337;1337H",
    "\x9b1337;1337H",
    "\x9d52;c;UVo=\x9c",
    "\x1bP",
    "\u202e",
    "\u2066",
    "\u200f",
    "\u061c",
    "\u2028",
    "\u2029",
    "\n",
    "\r",
    "\b",
    "\x07",
    "\x7f",
    "\x85",
)
_TITLE = re.compile(r"\x1b\]2;([^\x1b\x07]*)\x07")
_OURS = re.compile(
    r"\x1b\[[0-9;?<>=$]*[A-Za-z]|\x1b[=>]|\x1b\]22;[a-z-]+\x07|\x1b\]52;c;[A-Za-z0-9+/=]*\x07(?!QZ)|\x07(?!QZ)"
)
"""What Textual and llmtop write: modes, colours and places, the shape of the pointer, the clipboard, the bell."""
_AFTER_TEXT = rf"(?:(?<={MARK})|(?<=\n))"
"""Before a line end of the data stands what `text` puts there; elsewhere llmtop breaks a line that is too long."""
_ORDINARY = "\r\n\t"
_DEEPEST = 8
_KEPT = {("Ability", "engine"): "nsys"}
"""Texts that no file and no process gives, by type and field: llmtop's own tables are read with them."""


def text(first: int = 0) -> str:
    """All of `PIECES`, beginning with one of them."""
    turned = PIECES[first % len(PIECES) :] + PIECES[: first % len(PIECES)]
    return "".join(piece + MARK for piece in turned)


def values(wanted: type[T]) -> Iterator[T]:
    """One value of this type for each piece that its texts can begin with."""
    for first in range(len(PIECES)):
        yield value(wanted, first)


def value(wanted: Any, first: int = 0) -> Any:
    """A value of this type in which nothing is absent or empty, all free texts being `text(first)`.

    Of a union, of a `Literal` and of a bool, another alternative is taken for another `first`.
    """
    return _Maker(first).make(wanted, 0)


class _Maker:
    def __init__(self, first: int) -> None:
        self._first, self._text = first, text(first)

    def make(self, wanted: Any, depth: int) -> Any:
        if isinstance(wanted, typing.NewType):
            wanted = wanted.__supertype__
        origin, parts = typing.get_origin(wanted), typing.get_args(wanted)
        if origin is typing.Annotated:
            return self.make(parts[0], depth)
        if origin in (typing.Union, UnionType):
            return self.make(self._one_of([part for part in parts if part is not type(None)]), depth)
        if origin is typing.Literal:
            return self._one_of(parts)
        if origin is tuple and parts[-1:] != (...,):
            return tuple(self.make(part, depth + 1) for part in parts)
        if origin in (list, tuple, set, frozenset, Sequence):
            many = [self.make(parts[0], depth + 1) for _ in range(2)] if depth < _DEEPEST else []
            return (list if origin is Sequence else origin)(many)
        if origin in (dict, Mapping):
            return {self.make(parts[0], depth + 1): self.make(parts[1], depth + 1)}
        if isinstance(wanted, type) and (fields := _fields(wanted)):
            kept = {name: text for (kind, name), text in _KEPT.items() if kind == wanted.__name__}
            made = {name: self.make(hint, depth + 1) for name, hint in fields.items()}
            return wanted(**{**made, **kept})
        return self._plain(wanted)

    def _one_of(self, parts: Sequence[Any]) -> Any:
        return parts[self._first % len(parts)]

    def _plain(self, wanted: Any) -> Any:
        made = {str: self._text, Any: self._text, int: 3, float: 3.5, bool: self._first % 2 == 0, type(None): None}
        if wanted in made:
            return made[wanted]
        if wanted is bytes:
            return self._text.encode()
        if wanted is Path:
            return Path(self._text.replace("/", "_"))
        if issubclass(wanted, enum.Enum):
            return self._one_of(list(wanted))
        assert issubclass(wanted, Exception), f"how is a {wanted} made? Say so in tests/support/hostile.py"
        return wanted(self._text)


def _fields(wanted: type) -> dict[str, Any]:
    """The types of what this one is made of, by name; empty where it is no record."""
    if dataclasses.is_dataclass(wanted):
        names: Sequence[str] = [field.name for field in dataclasses.fields(wanted)]
    else:
        names = getattr(wanted, "__struct_fields__", getattr(wanted, "_fields", ()))
    found = hints(wanted) if names else {}
    return {name: found[name] for name in names}


def hints(thing: Any) -> dict[str, Any]:
    """The types that a class or a function names, those that its module imports for the type checker included."""
    classes = reversed(thing.__mro__) if isinstance(thing, type) else [thing]
    found: dict[str, Any] = {}
    for one in classes:
        if one is not object and getattr(one, "__annotations__", None):
            known = _names(one.__module__)
            found |= typing.get_type_hints(one, known, known, include_extras=True) if one is thing else hints(one)
    return found


@functools.cache
def _names(module: str) -> dict[str, Any]:
    found = dict(vars(sys.modules[module]))
    source = inspect.getsource(sys.modules[module]) if hasattr(sys.modules[module], "__file__") else ""
    for node in ast.parse(source).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(ast.unparse(ast.Module(node.body, [])), found)
    return found


def spoilt(known: T, first: int = 0) -> T:
    """`known` with `text(first)` before each free text in it; texts that were equal still are."""
    maker = _Maker(first)
    return typing.cast("T", _spoilt(known, type(known), maker))


def _spoilt(known: Any, wanted: Any, maker: _Maker) -> Any:
    origin, parts = typing.get_origin(wanted), typing.get_args(wanted)
    if known is None or origin is typing.Literal:
        return known
    if origin is typing.Annotated:
        return _spoilt(known, parts[0], maker)
    if origin in (typing.Union, UnionType):
        if any(typing.get_origin(part) is typing.Literal for part in parts):
            return known
        kinds = [part for part in parts if isinstance(known, typing.get_origin(part) or part)]
        return _spoilt(known, kinds[0], maker) if kinds else known
    if isinstance(known, msgspec.Struct):
        return type(known)(
            **{name: _spoilt(getattr(known, name), hint, maker) for name, hint in _fields(type(known)).items()}
        )
    if isinstance(known, tuple | list) and parts:
        return type(known)(_spoilt(one, parts[0], maker) for one in known)
    if isinstance(known, dict):
        return {
            _spoilt(name, parts[0] if parts else Any, maker): _spoilt(one, parts[1] if parts else Any, maker)
            for name, one in known.items()
        }
    return maker.make(str, 0) + known if isinstance(known, str) else known


def obeyed(written: bytes) -> list[str]:
    """What a terminal obeys in these bytes that is none of llmtop's own sequences, each with what follows it."""
    shown = written.decode("utf-8", "backslashreplace")
    found = [
        shown[at.start() - 20 : at.end() + 12]
        for piece in PIECES
        for at in re.finditer((_AFTER_TEXT if piece == "\n" else "") + re.escape(piece + MARK), shown)
    ]
    titles = [title for title in _TITLE.findall(shown) if not title.isprintable()]
    rest = _OURS.sub("", _TITLE.sub("", shown))
    left = [
        rest[max(at - 20, 0) : at + 12]
        for at, char in enumerate(rest)
        if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") and char not in _ORDINARY
    ]
    return [*map(ascii, found), *map(ascii, titles), *map(ascii, left)]
