"""What the documents say of the repository is so."""

from __future__ import annotations

import re
from importlib import import_module
from typing import get_args

import click
import pytest

from llmtop.__main__ import COMMANDS
from llmtop.capture.engines import ENGINES
from llmtop.model.bottlenecks import AlertId
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
    "SECURITY.md",
    *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md") if path.name != "reliability.md"),
)
USED = (
    "README.md",
    "SECURITY.md",
    *(name for name in DOCUMENTS if name.startswith("docs/") and name != "docs/design.md"),
)
"""What a user reads."""
UNTRIED = ("kubernetes", "mig", "wsl")


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


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_anchors_of_a_page() -> None:
    assert anchors("# What `llmtop` does\n```text\n# no heading\n```\n## In CI") == {"what-llmtop-does", "in-ci"}


@pytest.mark.parametrize("document", [*DOCUMENTS, "docs/reliability.md", "CHANGELOG.md"])
def test_an_anchor_that_a_document_points_at_is_a_heading(document: str) -> None:
    path = REPOSITORY / document
    for page, anchor in re.findall(r"\]\(((?!http)[\w./-]*)#([\w-]+)\)", path.read_text()):
        target = path.parent / page if page else path
        assert anchor in anchors(target.read_text()), f"{page}#{anchor}"


@pytest.mark.shape
def test_a_comment_cites_documents_that_are_there() -> None:
    cited = set()
    for folder in ("llmtop", "collectors", "tui"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            cited |= set(re.findall(r"docs/\w+\.md", path.read_text()))
    assert cited
    assert not [name for name in cited if not (REPOSITORY / name).exists()]


def imported(place: str) -> click.Command:
    """The command at "module:attribute"."""
    module, _, attribute = place.partition(":")
    found = getattr(import_module(module), attribute)
    assert isinstance(found, click.Command)
    return found


def commands_in(text: str) -> list[list[str]]:
    """The words of each llmtop command in code, from the word llmtop on."""
    blocks = re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
    code = [block for language, block in blocks if language != "text"]  # text is output
    lines = [line for block in code for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    found = []
    for line in lines:
        words = line.partition("#")[0].split()
        if "llmtop" in words and "install" not in words[: words.index("llmtop")]:
            found.append(words[words.index("llmtop") :])
    return found


@pytest.mark.parametrize("document", USED)
def test_commands_and_options_that_a_page_names_are_there(document: str) -> None:
    known = {name: imported(place) for name, (place, _) in COMMANDS.items()}
    for words in commands_in((REPOSITORY / document).read_text()):
        rest = words[1:]
        if rest and rest[0].isidentifier() and rest[0].islower():
            assert rest[0] in known, f"{document}: {' '.join(words)}"
            command, rest = known[rest[0]], rest[1:]
        else:
            command, rest = known["live"], [word for word in rest if word != "--version"]
        options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {
            "-h",
            "--help",
        }
        for word in rest:
            if word in ("--", "|", "&", "&&"):
                break
            if re.match(r"--?[a-z]", word):
                assert word.partition("=")[0] in options, f"{document}: {' '.join(words)}"


def test_the_commands_of_the_pages_are_looked_at() -> None:
    pages = " ".join((REPOSITORY / name).read_text() for name in USED)
    assert len(commands_in(pages)) > 40
    assert ["llmtop", "capture", "--steps", "5"] in commands_in(pages)


@pytest.mark.parametrize("page", UNTRIED)
def test_what_nobody_tried_begins_with_that(page: str) -> None:
    title, _, text = (REPOSITORY / "docs" / f"{page}.md").read_text().partition("\n")
    assert title.startswith("# ")
    assert "**Untried" in text.strip().partition("\n\n")[0]


@pytest.mark.parametrize("page", sorted(path.name for path in (REPOSITORY / "docs").glob("*.md")))
def test_a_page_begins_with_what_its_reader_can_do(page: str) -> None:
    _, _, text = (REPOSITORY / "docs" / page).read_text().partition("\n")
    assert text.lstrip().startswith("After this page ")


def test_every_page_can_be_reached_from_the_readme() -> None:
    linked = set(re.findall(r"\]\(docs/([\w.]+)\)", (REPOSITORY / "README.md").read_text()))
    assert {path.name for path in (REPOSITORY / "docs").glob("*.md")} == linked


def test_the_readme_is_about_a_screen_and_has_the_moving_picture() -> None:
    text = (REPOSITORY / "README.md").read_text()
    assert len(text.splitlines()) <= 60
    assert "screenshots/demo.svg" in text
    assert (REPOSITORY / "screenshots" / "demo.svg").stat().st_size <= 1_500_000


@pytest.mark.parametrize("name", get_args(AlertId))
def test_every_alert_is_in_the_table_of_alerts(name: str) -> None:
    assert f"`{name}`" in (REPOSITORY / "docs" / "alerts.md").read_text()


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_is_in_the_page_on_captures_and_among_the_words(name: str) -> None:
    words = next(
        line for line in (REPOSITORY / "CONTRIBUTING.md").read_text().splitlines() if "| engine |" in line
    )
    assert name in words
    assert name in (REPOSITORY / "docs" / "captures.md").read_text()


def test_each_option_of_an_engine_is_in_the_table_of_what_it_adds() -> None:
    text = (REPOSITORY / "docs" / "captures.md").read_text()
    rows = text.split("## What an option adds to the report")[1].split("##")[0].splitlines()
    for engine in ENGINES.values():
        listed = {
            name for row in rows if row.startswith(f"| {engine.name} |") for name in re.findall(r"`([\w-]+)`", row)
        }
        assert {option.name for option in engine.options} <= listed, engine.name
