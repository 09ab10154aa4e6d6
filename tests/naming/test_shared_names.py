"""Names of files, environment variables and profiler marks are written in one module each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmtop.naming import addresses, file_names, profiler_marks, variable_names
from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.shape

STAND_ALONE = REPOSITORY / "llmtop" / "launch" / "inject"
"""Run by a training's Python before it can import llmtop."""


def _texts(tree: ast.AST) -> Iterator[str]:
    """The texts of a module, parts of f-strings among them; docstrings and other bare texts left out."""
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


@pytest.mark.parametrize(
    "home", [addresses, file_names, profiler_marks, variable_names], ids=lambda home: home.__name__
)
def test_no_other_module_spells_the_name(home: object) -> None:
    names = {value for name, value in vars(home).items() if name.isupper() and isinstance(value, str)}
    assert names
    places = {
        str(file.relative_to(REPOSITORY)): found
        for package in ("llmtop", "tui", "collectors")
        for file in (REPOSITORY / package).rglob("*.py")
        if STAND_ALONE not in file.parents
        and file != Path(str(vars(home)["__file__"]))
        and (found := names & set(_texts(ast.parse(file.read_text()))))
    }
    assert not places


def test_a_planted_copy_is_found() -> None:
    tree = ast.parse('"""report.json"""\nopen("report.json")\nname = f"{stem}.folded"')
    assert set(_texts(tree)) == {"report.json", ".folded"}
