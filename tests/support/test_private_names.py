"""No test uses a private name of the product or of another test: what is private may change, and no user sees it.

Names of other packages (torch, Textual, the standard library) are not looked at. A program that a test has as text
counts too, where it is Python.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.shape

OWNERS = ("llmtop", "tui", "collectors", "benchmarks", "screenshots", "tests/support", "tests/gpu")
PACKAGES = {owner.partition("/")[0] for owner in OWNERS}
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}
"""Documented methods, underscored so that no field has their name."""
NEEDED = {
    ("tests/instrument/record/test_torn_steps.py", "_of_thread"): "a forked child has no second thread that ends",
}
"""Uses that have no public way, by file and name, and why."""


def definitions(tree: ast.AST) -> set[str]:
    """The private names that a module and its classes have."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_of_self(node):
            found.add(node.attr)
    return {name for name in found if name.startswith("_") and not name.startswith("__")} - {"_", *NAMED_TUPLE}


def uses(tree: ast.AST, owned: set[str]) -> Iterator[tuple[int, str]]:
    """Line and name of each use of one of these names that the module does not define itself."""
    foreign, wanted = _foreign_names(tree), owned - definitions(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not _is_foreign(node.module or ""):
            yield from ((node.lineno, name.name) for name in node.names if name.name in owned)
        elif isinstance(node, ast.Attribute):
            if node.attr in wanted and not _is_of_self(node) and _root(node) not in foreign:
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and _called(node.func) in {"setattr", "getattr", "delattr", "hasattr"}:
            names = (_text(one).rpartition(".")[2] for one in node.args[:2])
            yield from ((node.lineno, name) for name in names if name in wanted)
        elif isinstance(node, (ast.Constant, ast.JoinedStr)) and "import " in _text(node):
            yield from ((node.lineno, name) for name in _used_in_program(_text(node), owned))


def _used_in_program(text: str, owned: set[str]) -> list[str]:
    try:
        return [name for _, name in uses(ast.parse(text), owned)]
    except SyntaxError:
        return []  # no program, or a part of one


def _foreign_names(tree: ast.AST) -> set[str]:
    """The names that are imported from other packages, and these packages."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named = (name.asname or name.name for name in node.names if _is_foreign(name.name))
            found |= {name.partition(".")[0] for name in named}
        elif isinstance(node, ast.ImportFrom) and _is_foreign(node.module or ""):
            found |= {name.asname or name.name for name in node.names}
    return found


def _is_foreign(module: str) -> bool:
    return module.partition(".")[0] not in PACKAGES


def _is_of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}


def _root(node: ast.expr) -> str:
    """The name that a chain of attributes begins with; "" where it begins with a call or the like."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else _root(function)


def _text(node: ast.AST) -> str:
    """The text of a literal, with 0 for each value that an f-string is given; "" of other nodes."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(one) or "0" for one in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _owned(files: Iterable[Path]) -> set[str]:
    return {name for file in files for name in definitions(ast.parse(file.read_text()))}


def test_tests_use_private_names_only_where_there_is_no_other_way() -> None:
    owned = _owned(file for owner in OWNERS for file in (REPOSITORY / owner).rglob("*.py"))
    found = {
        (file.relative_to(REPOSITORY).as_posix(), name): f"line {line}"
        for file in sorted((REPOSITORY / "tests").rglob("*.py"))
        for line, name in uses(ast.parse(file.read_text()), owned)
    }
    assert {use: line for use, line in found.items() if use not in NEEDED} == {}, "use what is public"
    assert NEEDED.keys() <= found.keys(), "this use is no more"


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("from llmtop.a import _some_limit", ["_some_limit"]),
        ("from llmtop import a\na._some_limit = 3", ["_some_limit"]),
        ("def test(store):\n    store.parts[0]._held_value.close()", ["_held_value"]),
        ("def test(self):\n    self.store._held_value.close()", ["_held_value"]),
        ("monkeypatch.setattr(a, '_some_limit', 3)", ["_some_limit"]),
        ("monkeypatch.setattr('llmtop.a._some_limit', 3)", ["_some_limit"]),
        ("script = 'from llmtop import a\\nprint(a._some_limit)'", ["_some_limit"]),
        ("script = f'from llmtop import a\\nfor n in range({n}): print(a._some_limit)'", ["_some_limit"]),
        ("class Own(Store):\n    def read(self):\n        return self._held_value", []),
        ("class Other:\n    def __init__(self):\n        self._held_value = 3\nOther()._held_value", []),
        ("import torch\ntorch.cuda._some_limit()", []),
        ("from os import _some_limit", []),
        ("row._replace(a=3)", []),
    ],
)
def test_a_use_is_found(test: str, found: list[str]) -> None:
    product = "_some_limit = 3\nclass Store:\n    def __init__(self):\n        self._held_value = 3\n"
    owned = definitions(ast.parse(product))
    assert owned == {"_some_limit", "_held_value"}
    assert [name for _, name in uses(ast.parse(test), owned)] == found
