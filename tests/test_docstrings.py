"""Docstrings of public functions say shapes, units, None and errors, and the counter of them cannot be misled."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.docstring_sections import PACKAGES, ROOT, Function, counts, fault, stale_arguments

pytestmark = pytest.mark.shape

LEAST_SHARE = 0.9
"""Of the functions that need sections; all but two had them when this was written."""


UNCLEAR_STARTS = frozenset({
    "As", "By", "Have", "Let", "Of", "So", "That", "Those", "Told", "What", "Whether", "Who", "Whose",
})  # fmt: skip
"""First words that leave out the noun. A noun comes first, for a function a verb."""


def _function(docstring: str, signature: str = "seconds: float, path: Path") -> Function:
    body = "\n".join(f"    {line}" if line else "" for line in f'"""{docstring}"""'.splitlines())
    function = ast.parse(f"def wait({signature}) -> bool:\n{body}\n").body[0]
    assert isinstance(function, Function)
    return function


def test_most_functions_that_need_sections_have_them() -> None:
    faults = [why is None for _, _, why in counts()]
    assert sum(faults) >= LEAST_SHARE * len(faults), "python -m tests.support.docstring_sections --missing"


def test_args_of_every_function_name_its_parameters() -> None:
    assert not list(stale_arguments())


def first_words(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the first word of each docstring, those of fields and constants included."""
    for node in ast.walk(tree):
        for statement in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                words = str(statement.value.value).split(maxsplit=1)
                yield statement.lineno, words[0] if words else ""


def test_a_docstring_begins_with_a_noun_or_a_verb() -> None:
    planted = ast.parse('"""What is read."""\nA = 1\n"""Of a step."""\n')
    assert [word for _, word in first_words(planted)] == ["What", "Of"]
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    found = [
        f"{file.relative_to(ROOT)}:{line} {word}"
        for file in files
        for line, word in first_words(ast.parse(file.read_text()))
        if word in UNCLEAR_STARTS
    ]
    assert not found, "write a noun phrase, or an imperative for a function"


def test_a_section_with_unit_and_meaning_counts() -> None:
    text = "Wait.\n\nArgs:\n    seconds: the longest; negative\n        is 0.\n\nReturns:\n    True in time.\n"
    assert fault(_function(text)) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Wait for some seconds.", "no sections"),
        ("Wait.\n\nArgs:\n    seconds: the seconds.\n", "nothing said of seconds"),
        ("Wait.\n\nArgs:\n    seconds: a float value.\n", "nothing said of seconds"),
        ("Wait.\n\nArgs:\n    seconds: longest wait.\n    path: the Path.\n", "nothing said of path"),
        ("Wait.\n\nArgs:\n    path: of the socket.\n", "nothing said of seconds"),
        ("Wait.\n\nArgs:\n    seconds: longest wait.\n    lane: of the device.\n", "no parameter lane"),
        ("Wait.\n\nArgs:\n    seconds: longest wait.\n\nReturns:\n    A bool.\n", "nothing said in Returns"),
        ("Wait.\n\nArgs:\n", "nothing said of seconds"),
        ("Wait.\n\nRaises:\n", "nothing said of seconds"),
    ],
)  # fmt: skip
def test_empty_words_and_stale_names_do_not_count(text: str, why: str) -> None:
    assert fault(_function(text)) == why
