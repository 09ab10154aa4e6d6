"""Width, order and room of text; one place that cleans and escapes in each writer."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from llmtop.document.cells import shorten, wrap
from llmtop.document.html import write_html
from llmtop.document.markdown import write_markdown
from llmtop.document.model import Column, Document, Finding, Heading, Listing, Paragraph, Table, columns
from llmtop.document.text import document_lines, write_text
from llmtop.format import width_of

EVIL = "<i>&`|*\x1b[2J\u202e世界"
ALL = Document(
    EVIL,
    [
        Heading(EVIL),
        Paragraph(EVIL, is_lead=True),
        Paragraph(EVIL, is_item=True),
        Finding("warning", EVIL, EVIL, EVIL, EVIL, EVIL, EVIL, EVIL),
        Table(EVIL, columns((EVIL,), (EVIL,)), [(EVIL, EVIL)]),
        Listing(EVIL, [EVIL]),
    ],
    warning=EVIL,
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]) | st.just(" "), max_size=200)


@given(TEXTS, st.integers(20, 100))
def test_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    lines = wrap(text, width, "", "    ")
    assert all(width_of(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(TEXTS, st.integers(1, 60), st.sampled_from(["start", "middle", "end"]))
def test_a_cut_text_fits(text: str, width: int, cut: str) -> None:
    assert width_of(shorten(text, width, cut)) <= width  # type: ignore[arg-type]


def test_no_writer_passes_what_is_obeyed() -> None:
    for written in (write_text(ALL, 80), write_markdown(ALL), write_html(ALL)):
        assert written.replace("\n", "").isprintable()
        assert "世界" in written
    assert "<i>" not in write_html(ALL).partition("</style>")[2]
    fences = re.compile(r"^(```+)\n.*?\n\1$", re.MULTILINE | re.DOTALL)
    assert "<i>" not in fences.sub("", write_markdown(ALL))


def test_columns_that_do_not_fit_stand_below_with_their_key() -> None:
    numbers = tuple(f"number {place}" for place in range(8))
    rows = [("alike", "one", *numbers), ("alike", "two", *numbers)]
    lines = [
        line.text for line in document_lines(Document("", [Table("", columns(("a", "b"), numbers), rows)]), 60)
    ]
    assert all(width_of(line) <= 60 for line in lines)
    assert all(any(title in line for line in lines) for title in numbers)
    assert sum("alike  two" in line for line in lines) == 2


def test_an_optional_column_stands_below_and_whole_where_it_has_no_room() -> None:
    heads = (Column("name", is_text=True), Column("more", is_text=True, is_optional=True), Column("number"))
    shapes = "512x1024 bf16, 1024x4096 bf16, 1x4096 bf16"
    tables = [Table("", heads, [("n" * 20, shapes, "17"), ("o" * 20, "1x1 fp32", "3")])]
    lines = write_text(Document("", tables), 60).splitlines()
    assert lines[0].split() == ["name", "number"]
    assert lines[3].split() == ["name", "more"]
    below = " ".join(" ".join(line.split()) for line in lines[4:])
    assert below == f"{'n' * 20} 512x1024 bf16, 1024x4096 bf16, 1x4096 bf16 {'o' * 20} 1x1 fp32"
    assert all(width_of(line) <= 60 for line in lines)
    long = [Table("", heads, [("n" * 20, "std::function<" * 60, "17")])]
    assert len(write_text(Document("", long), 60).splitlines()) == 2 + 1 + 3, "some lines of a text are enough"
    assert "bf16" not in write_text(Document("", tables, most_lines=30), 60), "brief"
    assert write_text(Document("", tables), 90).splitlines()[1].split()[1:] == [*shapes.split(), "17"]
    assert shapes in write_markdown(Document("", tables))


def test_the_longest_table_loses_rows_first_and_the_last_goes_first() -> None:
    tables = [
        Table(f"table {number}", columns(("name",)), [(f"row {row}",) for row in range(20)], most=20)
        for number in range(4)
    ]
    text = write_text(Document("", [*tables, Paragraph("the end")], most_lines=30), 80)
    assert len(text.splitlines()) <= 30
    assert all(f"table {number}" in text for number in range(4))
    short = write_text(Document("", [*tables, Paragraph("the end")], most_lines=15), 80)
    assert len(short.splitlines()) <= 15
    assert "table 0" in short
    assert "table 3" not in short
    assert short.endswith("the end\n")
