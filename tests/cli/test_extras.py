"""Commands that install an extra, held against `pyproject.toml`."""

from __future__ import annotations

import re

from llmtop.extras import EXTRAS, how_to_install
from tests.support.processes import REPOSITORY

FOR_DEVELOPERS = {"test", "bench", "mutants", "dev"}


def test_each_extra_names_the_packages_of_the_distribution() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    table = text.split("[project.optional-dependencies]")[1].split("\n[")[0]
    found = {
        name: {re.split(r"[><=]", package)[0] for package in re.findall(r'^    "([^"]+)"', body, re.MULTILINE)}
        for name, body in re.findall(r"^(\w+) = \[\n(.*?)^\]", table, re.MULTILINE | re.DOTALL)
    }
    assert {name: set(packages.split()) for name, packages in EXTRAS.items()} == {
        name: packages for name, packages in found.items() if name not in FOR_DEVELOPERS
    }


def test_no_text_tells_pip_to_fetch_llmtop_from_an_index() -> None:
    assert how_to_install("mcp") == "in a checkout of llmtop: pip install '.[mcp]'; elsewhere: pip install mcp"
    places = ("llmtop/**/*.py", "collectors/**/*.py", "tui/**/*.py", "docs/*.md", "README.md", "deploy/*")
    files = {path for place in places for path in REPOSITORY.glob(place) if path.is_file()}
    assert len(files) > 100
    assert not [str(path) for path in files if re.search(r"pip install[^\n]*llmtop-monitor", path.read_text())]
