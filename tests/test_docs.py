"""What the documents say of the repository is so."""

from __future__ import annotations

import re

import pytest

from tests.support.processes import REPOSITORY

NAMED = sorted(
    set(re.findall(r"(tests/[\w/]+\.py)(?:::(test_\w+))?", (REPOSITORY / "docs" / "reliability.md").read_text()))
)


@pytest.mark.parametrize(("file", "test"), NAMED, ids=lambda value: value or "file")
def test_a_test_that_holds_a_promise_is_there(file: str, test: str) -> None:
    source = (REPOSITORY / file).read_text()
    assert not test or re.search(rf"def {test}\b", source), f"{file} has no {test}"


def test_there_are_many() -> None:
    assert len(NAMED) > 100
