"""The texts that an expression of the source can become, with examples for what only a run knows.

An f-string is followed through variables, constants, conditions and functions of the product to the strings
that it
is made of. What is left over has an example by the last name in it (`EXAMPLES`): "host" is node1, "url" an "
                                                                                  "address.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.processes import REPOSITORY
from tests.support.word_examples import EXAMPLES, FORMATTERS, MEANT
from tests.support.word_values import VALUES
from tui.paint import glyphs

_DEEPEST = 6
"""Variables, functions and conditions that are followed one into the other."""
_MOST = 48
"""Variants of one expression that are kept."""
_SAME_TEXT: Final = frozenset(
    (
        "printable",
        "escape",
        "str",
        "clean",
        "pad",
        "capitalize",
        "strip",
        "rstrip",
        "escaped",
        "clip",
        "cut",
        "shorten_middle",
    )
)
"""Functions whose first argument is the text that they return."""

_WRITTEN: Final = (ast.Constant, ast.JoinedStr, ast.BinOp, ast.IfExp)
"""Expressions that write a text down."""


class Variant(NamedTuple):
    """One text of an expression."""

    text: str
    strings: frozenset[int] = frozenset()
    """The `id` of the string nodes that it is made of."""


STRINGS: Final[dict[int, str]] = {}
"""The text of each string node that a variant was made of."""


@dataclass
class Module:
    """A parsed module of the product."""

    path: Path
    tree: ast.Module
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By its name here: the module, and the name there ("" for the module itself)."""
    nodes: list[ast.AST] = field(default_factory=list)
    """All nodes, in the order of `ast.walk`."""
    owner: dict[int, ast.FunctionDef] = field(default_factory=dict)
    """The innermost function around each node, by the node's id."""

    @property
    def place(self) -> str:
        """The path in the repository."""
        return self.path.relative_to(REPOSITORY).as_posix()


@cache
def module_of(path: Path) -> Module:
    """Parse a module."""
    module = Module(path, ast.parse(path.read_text()))
    waiting: deque[tuple[ast.AST, ast.FunctionDef | None]] = deque([(module.tree, None)])
    while waiting:
        node, function = waiting.popleft()
        if isinstance(node, ast.FunctionDef):
            function = node
            module.functions.setdefault(node.name, node)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                module.imported[one.asname or one.name] = (node.module, one.name)
        module.nodes.append(node)
        if function is not None:
            module.owner[id(node)] = function
        waiting.extend((child, function) for child in ast.iter_child_nodes(node))
    for statement in module.tree.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.expr):
            module.constants[target.id] = value
    return module


@cache
def _module_named(name: str) -> Module | None:
    base = REPOSITORY / name.replace(".", "/")
    file = next((one for one in (base.with_suffix(".py"), base / "__init__.py") if one.is_file()), None)
    return module_of(file) if file is not None else None


@dataclass(frozen=True)
class Scope:
    """Where an expression stands: its module, its function, and what the function was called with."""

    module: Module
    function: ast.FunctionDef | None = None
    arguments: Mapping[str, tuple[ast.expr, Scope]] = field(default_factory=dict)

    def around(self, node: ast.AST) -> Scope:
        """The scope of a node of the same module."""
        return Scope(self.module, self.module.owner.get(id(node)))


def variants(node: ast.AST, scope: Scope, deep: int = 0) -> list[Variant]:
    """Return the texts of an expression, the usual one first."""
    value = value_of(node, scope)
    found = [Variant(value)] if value is not None else _followed(node, scope, deep)
    return found[:_MOST] if found else [Variant(example(node, scope))]


def value_of(node: ast.AST, scope: Scope) -> str | None:
    """Return the value of an expression within its sentence; None where no entry has it."""
    if isinstance(node, ast.Constant | ast.JoinedStr) or scope.function is None:
        return None
    place, text = f"{scope.module.place}:{scope.function.name}", ast.unparse(node)
    return next((one for where, meant, one in _VALUES if where.match(place) and meant.fullmatch(text)), None)


def _followed(node: ast.AST, scope: Scope, deep: int) -> list[Variant]:
    """Its texts; empty where none is in the source."""
    if isinstance(node, ast.Constant):
        STRINGS[id(node)] = str(node.value)
        return [Variant(str(node.value), frozenset([id(node)]) if isinstance(node.value, str) else frozenset())]
    if isinstance(node, ast.JoinedStr):
        own = frozenset([id(node), *(id(part) for part in node.values)])
        return [one._replace(strings=one.strings | own) for one in _joined(node.values, scope, deep)]
    if isinstance(node, ast.FormattedValue):
        return [one._replace(text=_formatted(one.text, node)) for one in variants(node.value, scope, deep)]
    if deep > _DEEPEST:
        return []
    if isinstance(node, ast.IfExp):
        return [*_text(node.body, scope, deep), *_text(node.orelse, scope, deep)]
    if isinstance(node, ast.BoolOp):
        return [one for part in node.values for one in _followed(part, scope, deep + 1)]
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Add):
            return _joined([node.left, node.right], scope, deep)
        return _followed(node.left, scope, deep) if isinstance(node.op, ast.Mult) else []
    if isinstance(node, ast.Name):
        return _name(node, scope, deep)
    if isinstance(node, ast.Attribute):
        return _attribute(node, scope, deep)
    if isinstance(node, ast.Subscript):
        return _entries(node, scope, deep)
    return _call(node, scope, deep) if isinstance(node, ast.Call) else []


def _formatted(text: str, node: ast.FormattedValue) -> str:
    """A number as the f-string writes it; what is no number where one is written has an example."""
    spec = ast.unparse(node.format_spec).strip("f'\"") if node.format_spec is not None else ""
    if not spec or spec[-1] not in "dfg,":
        return text
    try:
        return format(float(text), spec) if spec[-1] in "fg" else format(int(float(text)), spec)
    except ValueError:
        return text if re.search(r"\d", text) else "12"


def _text(node: ast.AST, scope: Scope, deep: int) -> list[Variant]:
    value = value_of(node, scope)
    if value is not None:
        return [Variant(value)]
    return _followed(node, scope, deep + 1) or [Variant(example(node, scope))]


def _joined(parts: Sequence[ast.AST], scope: Scope, deep: int, between: str = "") -> list[Variant]:
    """Texts of parts in a row: the usual one of each, then each other one of each in the place of its usual "
    "one."""
    each = [variants(part, scope, deep + 1) for part in parts]
    rows = [[one[0] for one in each]]
    for place, one in enumerate(each):
        rows += [[*rows[0][:place], other, *rows[0][place + 1 :]] for other in one[1:]]
    return [
        Variant(between.join(one.text for one in row if one.text or not between), _strings(row))
        for row in rows[:_MOST]
    ]


def _strings(row: Sequence[Variant]) -> frozenset[int]:
    return frozenset().union(*(one.strings for one in row))


def _name(node: ast.Name, scope: Scope, deep: int) -> list[Variant]:
    if node.id in scope.arguments:
        value, where = scope.arguments[node.id]
        return _followed(value, where, deep + 1)
    if scope.function is not None:
        assigned = list(_assigned(node.id, scope.function))
        found = [one for value in assigned for one in _followed(value, scope, deep + 1)]
        if assigned or any(one.arg == node.id for one in ast.walk(scope.function) if isinstance(one, ast.arg)):
            return found
    return _global(node.id, scope.module, deep)


def _global(name: str, module: Module, deep: int) -> list[Variant]:
    if name in module.constants:
        return _followed(module.constants[name], Scope(module), deep + 1)
    where, there = module.imported.get(name, ("", ""))
    other = _module_named(where) if where else None
    return _global(there, other, deep + 1) if other is not None and deep < _DEEPEST else []


def _assigned(name: str, function: ast.FunctionDef) -> Iterator[ast.expr]:
    """What a variable of a function can be; through tuples too."""
    for node in ast.walk(function):
        if isinstance(node, ast.NamedExpr) and node.target.id == name:
            yield node.value
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id == name:
                yield node.value
            elif isinstance(target, ast.Tuple):
                names = [getattr(one, "id", "") for one in target.elts]
                values = (
                    [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
                )
                for value in values if name in names else []:
                    if isinstance(value, ast.Tuple) and len(value.elts) == len(names):
                        yield value.elts[names.index(name)]


def _attribute(node: ast.Attribute, scope: Scope, deep: int) -> list[Variant]:
    """A constant of another module of the product."""
    where = scope.module.imported.get(getattr(node.value, "id", ""))
    other = _module_named(".".join(where)) if where else None
    return _global(node.attr, other, deep) if other is not None else []


def _entries(node: ast.Subscript, scope: Scope, deep: int) -> list[Variant]:
    """All texts of a table."""
    table = node.value
    if isinstance(node.slice, ast.Slice):
        return _followed(table, scope, deep)
    if isinstance(table, ast.Name):
        table = scope.module.constants.get(table.id, table)
    if isinstance(table, ast.Dict):
        return [one for value in table.values for one in _followed(value, scope, deep + 1)]
    return []


def _call(node: ast.Call, scope: Scope, deep: int) -> list[Variant]:
    name = called(node)
    if isinstance(node.func, ast.Attribute) and name == "join" and isinstance(node.func.value, ast.Constant):
        return _list(node.args[0], str(node.func.value.value), scope, deep)
    of = node.func.value if isinstance(node.func, ast.Attribute) else None
    if name in _SAME_TEXT | {"format", "ljust", "partition"} and isinstance(of, _WRITTEN):
        return _followed(of, scope, deep)
    if name in _SAME_TEXT and node.args:
        return _text(node.args[0], scope, deep)
    if name in FORMATTERS:
        return []
    module, function = _function(node, scope)
    if function is None or module is None:
        return []
    given = [
        one.arg for one in (*function.args.posonlyargs, *function.args.args) if one.arg not in ("self", "cls")
    ]
    arguments = dict(zip(given, ((one, scope) for one in node.args), strict=False))
    arguments |= {one.arg: (one.value, scope) for one in node.keywords if one.arg}
    inner = Scope(module, function, arguments)
    returned = [one.value for one in ast.walk(function) if isinstance(one, ast.Return) and one.value is not None]
    return [one for value in returned for one in _followed(value, inner, deep + 1)]


def _list(node: ast.expr, between: str, scope: Scope, deep: int) -> list[Variant]:
    if isinstance(node, ast.Tuple | ast.List):
        known = [one for one in node.elts if not isinstance(one, ast.Starred) or value_of(one, scope) is not None]
        return _joined(known, scope, deep, between)
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        return _text(node.elt, scope, deep)
    return []


def _function(node: ast.Call, scope: Scope) -> tuple[Module | None, ast.FunctionDef | None]:
    """The function of the product that is called."""
    name = called(node)
    if isinstance(node.func, ast.Name) or (
        isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") in ("self", "cls")
    ):
        if name in scope.module.functions:
            return scope.module, scope.module.functions[name]
        where, there = scope.module.imported.get(name, ("", ""))
        other = _module_named(where) if where else None
        return other, other.functions.get(there) if other else None
    if isinstance(node.func, ast.Attribute):
        where = scope.module.imported.get(getattr(node.func.value, "id", ""))
        other = _module_named(".".join(where)) if where else None
        return other, other.functions.get(name) if other else None
    return None, None


def called(node: ast.Call) -> str:
    """The name of what is called, without what it belongs to."""
    return ast.unparse(node.func).rpartition(".")[2]


def example(node: ast.AST, scope: Scope) -> str:
    """An example of a value that only a run knows, by its names and its type."""
    return _example(node, scope)


_VALUES: Final = [(re.compile(place), re.compile(meant), one) for place, meant, one in VALUES]
_MEANT: Final = [(re.compile(file), re.compile(meant), one) for file, meant, one in MEANT]
_NAMES: Final = [(re.compile(pattern), one) for pattern, one in EXAMPLES]


def _example(node: ast.AST, scope: Scope, deep: int = 0) -> str:
    text = ast.unparse(node)
    place = scope.module.place
    special = next(
        (one for file, meant, one in MEANT if re.match(file, place) and re.fullmatch(meant, text)), None
    )
    if special is not None:
        return special
    if isinstance(node, ast.Attribute) and node.attr in _GLYPHS and "glyphs" in text:
        return str(_GLYPHS[node.attr])
    if isinstance(node, ast.Name) and deep < _DEEPEST:
        if node.id in scope.arguments:
            value, where = scope.arguments[node.id]
            return _example(value, where, deep + 1)
        assigned = list(_assigned(node.id, scope.function)) if scope.function is not None else []
        if assigned and not isinstance(assigned[0], ast.Constant):
            found = _example(assigned[0], scope, deep + 1)
            if found != "NAME":
                return found
    for call in (one for one in ast.walk(node) if isinstance(one, ast.Call)):
        if called(call) == "counted" and isinstance(call.args[1], ast.Constant):
            return f"3 {call.args[1].value}s"
        if called(call) == "number" and isinstance(call.args[-1], ast.Constant):
            return f"640{call.args[-1].value}" if isinstance(call.args[-1].value, str) else "640"
        if called(call) in FORMATTERS:
            return FORMATTERS[called(call)]
    names = [one for one in re.findall(r"[A-Za-z_]+", text) if one not in _PLAIN]
    for name in reversed(names):
        found = next((one for pattern, one in _NAMES if pattern.fullmatch(name)), "")
        if found:
            return found
    return _by_type(node, scope)


_PLAIN: Final = frozenset(
    ("self", "fmt", "str", "printable", "one", "get", "value", "or", "and", "not", "int", "len")
)
_GLYPHS: Final = {
    name: value for name in dir(glyphs.UNICODE) if isinstance(value := getattr(glyphs.UNICODE, name), str)
}


def _by_type(node: ast.AST, scope: Scope) -> str:
    if scope.function is not None and isinstance(node, ast.Name):
        for argument in (one for one in ast.walk(scope.function) if isinstance(one, ast.arg)):
            if argument.arg == node.id and argument.annotation is not None:
                kind = ast.unparse(argument.annotation)
                return {"int": "3", "float": "2.5", "Path": "run/trace.json"}.get(kind.partition(" ")[0], "NAME")
    return "NAME"
