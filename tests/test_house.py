"""Names that stand for one thing, and functions that one can hold in the head."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import REPOSITORY

PACKAGES = ("llmtop", "collectors", "tui")
ONE_A_FOLDER = ("__init__.py", "command.py", "engine.py", "model.py", "source.py", "text.py")
"""File names of what there is one of in each folder of its kind."""
MOST_LINES = 60
MOST_CLASSES = 6
"""Names that may stand for two things: what is on the wire and in a snapshot, what times and what was timed."""
MOST_FILES = 5


def _files() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((REPOSITORY / package).rglob("*.py"))


def test_a_class_name_stands_for_one_thing() -> None:
    classes = Counter(
        node.name
        for file in _files()
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    several = sorted(name for name, count in classes.items() if count > 1)
    assert len(several) <= MOST_CLASSES, f"rename one of two each: {', '.join(several)}"
    assert all(classes[name] == 2 for name in several)


def test_a_file_name_says_which_file_it_is() -> None:
    names = Counter(file.name for file in _files())
    too_many = {name: count for name, count in names.items() if count > MOST_FILES and name not in ONE_A_FOLDER}
    assert not too_many
    assert names["steps.py"] <= 2
    assert names["phases.py"] <= 2


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{file.relative_to(REPOSITORY)}: {node.name}, {lines} lines"
        for file in _files()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > MOST_LINES
    ]
    assert not long
