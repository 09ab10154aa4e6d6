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


DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/design.md",
    "docs/measurements.md",
    "docs/configuration.md",
    "docs/cluster.md",
    "docs/profilers.md",
)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_a_document_points_at_is_there(document: str) -> None:
    text = (REPOSITORY / document).read_text()
    named = set(re.findall(r"`((?:llmtop|collectors|tui|tests|docs|benchmarks|examples)/[\w./-]+)`", text))
    named |= set(re.findall(r"\]\(((?!http)[\w./-]+)", text))
    here = (REPOSITORY / document).parent
    missing = [
        path for path in named if not any((at / path).exists() for at in (REPOSITORY, here)) and "NAME" not in path
    ]
    assert not missing


def test_a_comment_cites_documents_that_are_there() -> None:
    cited = set()
    for folder in ("llmtop", "collectors", "tui"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            cited |= set(re.findall(r"docs/\w+\.md", path.read_text()))
    assert cited
    assert not [name for name in cited if not (REPOSITORY / name).exists()]
