"""A pattern that is compiled when it is first used does what a compiled one does."""

from __future__ import annotations

import re

import pytest

from llmtop.naming.lazy_pattern import lazy_pattern


def test_it_does_what_a_compiled_pattern_does() -> None:
    lazy, compiled = lazy_pattern(r"(\d+) (STEP)", re.IGNORECASE), re.compile(r"(\d+) (STEP)", re.IGNORECASE)
    text = "at 12 step, 13 Step"
    for _ in range(2):
        found, expected = lazy.search(text), compiled.search(text)
        assert found is not None
        assert expected is not None
        assert found.groups() == expected.groups() == ("12", "step")
        assert lazy.findall(text) == compiled.findall(text)
        assert lazy.sub("x", text) == compiled.sub("x", text) == "at x, x"
        assert lazy.match(text) is None
    assert lazy.pattern == compiled.pattern


def test_nothing_is_compiled_before_the_first_use() -> None:
    wrong = lazy_pattern("(")
    with pytest.raises(re.error):
        wrong.search("")
