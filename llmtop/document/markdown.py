"""A document as Markdown."""

from __future__ import annotations

import re
from itertools import groupby

from llmtop.document.cells import clean, shorten
from llmtop.document.model import AreaChart, Block, Document, Finding, Heading, Listing, Paragraph, Table
from llmtop.document.text import block_lines, finding_parts, finding_sentence

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")
_WIDTH = 100
"""Cells of a listing and a chart."""
_WIDEST_CELL = 120


def write_markdown(document: Document) -> str:
    """Return the document as Markdown."""
    parts = [f"**{escape(document.warning)}**"] if document.warning else []
    parts.append(f"# {escape(document.title)}")
    for is_item, blocks in groupby(document.blocks, key=_is_item):
        made = [_block(block) for block in blocks]
        parts += ["\n".join(made)] if is_item else made
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """Return text that Markdown, and HTML within it, shows as it is: every text of a document passes here."""
    return _SPECIAL.sub(r"\\\1", clean(text).replace("&", "&amp;"))


def _is_item(block: Block) -> bool:
    return isinstance(block, Paragraph) and block.is_item


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"## {escape(block.text)}"
    if isinstance(block, Paragraph):
        return _paragraph(block)
    if isinstance(block, Finding):
        return _finding(block)
    if isinstance(block, Table):
        return _with_title(block.title, _table(block))
    if isinstance(block, Listing | AreaChart):
        lines = block_lines(block, _WIDTH)
        return _with_title(block.title, _code("\n".join(line.text for line in lines if line.role != "title")))
    return ""  # what only a page can draw


def _paragraph(block: Paragraph) -> str:
    text = escape(block.text)
    if block.is_item:
        return f"- {text}"
    return f"**{text}**" if block.role in ("title", "warning") else text


def _with_title(title: str, text: str) -> str:
    return f"## {escape(title)}\n\n{text}" if title else text


def _finding(finding: Finding) -> str:
    summary = escape(finding_sentence(finding))
    lines = [f"**{summary}**"]
    if finding.name:
        lines = [f"### {escape(finding.name)} ({finding.severity})", summary]
    items = [f"- {label}: {escape(text)}" for label, text in finding_parts(finding) if label != "next"]
    if items:
        lines.append("\n".join(items))
    if finding.next:
        lines.append(_code(clean(finding.next)))
    return "\n\n".join(lines)


def _code(text: str) -> str:
    """Return a fenced block; the fence is longer than any run of backticks in the text, so nothing can end it
    early."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def _table(table: Table) -> str:
    shown = table.rows[: table.most]
    lines = [_row([escape(column.title) for column in table.columns])]
    lines.append(_row(["---" if column.is_text else "---:" for column in table.columns]))
    for row in shown:
        cells = zip(table.columns, row, strict=True)
        lines.append(_row([escape(shorten(clean(cell), _WIDEST_CELL, column.cut)) for column, cell in cells]))
    if len(table.rows) > len(shown):
        lines += ["", f"… and {len(table.rows) - len(shown)} more"]
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
