"""Words of README and docs: spelled right, and none that the style forbids."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.cli.test_words import FORBIDDEN
from tests.support.doc_blocks import pages
from tests.support.installed import needs
from tests.support.processes import REPOSITORY

CHECKED = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs")
EXAMPLES = "intervall"
"""Misspelled words that a page shows as such."""
LEFT = {"docs/postmortem.md": 1}
"""How many forbidden words a page still has: only ever lowered."""


@pytest.mark.shape
def test_the_documents_are_spelled_right() -> None:
    needs("codespell_lib")
    command = [sys.executable, "-m", "codespell_lib", "-L", EXAMPLES, *CHECKED]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def forbidden_in(page: str) -> list[str]:
    """The forbidden words of a page, outside of code."""
    text = (REPOSITORY / page).read_text()
    text = re.sub(r"```.*?```|`[^`\n]+`", "", text, flags=re.DOTALL)
    return [match[0] for match in FORBIDDEN.finditer(text)]


@pytest.mark.shape
@pytest.mark.parametrize("page", [*pages(), "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_a_page_has_no_forbidden_words(page: str) -> None:
    found = forbidden_in(page)
    assert len(found) <= LEFT.get(page, 0), found
