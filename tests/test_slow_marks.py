"""A mark `slow` has one reason, and a test that the reason names is run by `make test`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.shape


def slow_marks(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield each `pytest.mark.slow(...)` of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.slow":
            yield node


def wholly_slow(tree: ast.AST) -> set[str]:
    """Return the names of the tests that `make test` runs no parameter of."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {
        node.name
        for node in functions
        for mark in node.decorator_list
        if ast.unparse(mark).startswith("pytest.mark.slow") and "kept=" not in ast.unparse(mark)
    }


def faults(texts: list[str]) -> list[str]:
    """Return marks without a reason, and tests that a reason names but that `make test` does not run."""
    trees = [ast.parse(text) for text in texts if "mark.slow" in text]
    names = {name for text in texts for name in re.findall(r"\bdef (test_\w+)", text)}
    run = names - {name for tree in trees for name in wholly_slow(tree)}
    found = []
    for mark in (mark for tree in trees for mark in slow_marks(tree)):
        if not mark.args:
            found.append(ast.unparse(mark))
        reason = mark.args[0].value if mark.args and isinstance(mark.args[0], ast.Constant) else ""
        found += [name for name in re.findall(r"\btest_\w+\b(?!\.py)", str(reason)) if name not in run]
    return found


def test_each_mark_has_a_reason_and_names_tests_that_are_run() -> None:
    assert not faults([path.read_text() for path in (REPOSITORY / "tests").rglob("*.py")])


def test_a_stale_reason_is_found() -> None:
    text = (
        "@pytest.mark.slow('test_b and test_c find it')\ndef test_a(): ...\n"
        "@pytest.mark.slow('test_a finds it')\ndef test_b(): ...\n"
        "@pytest.mark.slow('a matrix', kept=('1',))\ndef test_c(): ...\n"
        "@pytest.mark.slow()\ndef test_d(): ...\n"
    )
    assert faults([text]) == ["test_b", "test_a", "pytest.mark.slow()"]
