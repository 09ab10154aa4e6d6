"""Docstrings of public functions say shapes, units, None and errors, and the counter of them cannot be misled."""

from __future__ import annotations

import ast

import pytest

from tests.support.docstring_sections import Function, counts, fault, stale_arguments

pytestmark = pytest.mark.shape

LEAST_SHARE = 0.9
"""Of the functions that need sections; all but two had them when this was written."""


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
