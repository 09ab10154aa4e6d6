"""A document as rows of the screen: the lines that a terminal gets, in the colours of the theme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.style import Style

from llmtop.document.cells import clean, wrap
from llmtop.document.model import Block, Document, Finding, Role
from llmtop.document.text import Line, document_lines, finding_lines
from tui.paint import alert_style
from tui.paint.rows import CellTheme, Row, clip, pad

_INDENT = 5
"""Cells left of the parts of a finding."""


def document_rows(blocks: Sequence[Block], width: int, theme: CellTheme) -> list[Row]:
    """Return all of the blocks, one cell from the left end.

    Args:
        blocks: what to show.
        width: of the screen.
        theme: how to draw.
    """
    return _rows(document_lines(Document("", blocks), width - 1), width, theme)


def paragraph_rows(text: str, role: Role, width: int, theme: CellTheme) -> list[Row]:
    """Return one paragraph over as many rows as it takes."""
    return _rows([Line(line, role) for line in wrap(clean(text), max(width - 2, 20))], width, theme)


def finding_rows(
    finding: Finding, width: int, theme: CellTheme, *, is_chosen: bool, is_unfolded: bool
) -> list[Row]:
    """Return a finding of a list: one row, and where it is unfolded its parts below.

    Args:
        finding: what to show.
        width: of the screen.
        theme: how to draw.
        is_chosen: whether the cursor is on it.
        is_unfolded: whether its parts are shown.
    """
    palette, glyphs = theme.palette, theme.glyphs
    cursor = palette.cursor if is_chosen else palette.text
    style = alert_style.ink(finding, theme)
    row = Row(width).add(f" {glyphs.selected if is_chosen else ' '} ", cursor)
    if is_chosen:
        style += Style(bgcolor=cursor.bgcolor)
    row.add(f"{alert_style.mark(finding, theme)} {pad(finding.severity, 9)}", style)
    row.add(pad(clean(finding.name), 20), cursor if is_chosen else palette.strong)
    row.add(pad(finding.share, 6, right=True), cursor)
    if not is_unfolded:
        return [row.add("  " + clip(clean(finding.summary), row.free_cells - 2), cursor)]
    lines = finding_lines(replace(finding, name=""), width - _INDENT, with_sign=False)
    return [row, *_rows(lines, width, theme, _INDENT), Row(width)]


def _rows(lines: Sequence[Line], width: int, theme: CellTheme, indent: int = 1) -> list[Row]:
    palette = theme.palette
    styles: dict[Role, Style] = {
        "text": palette.text,
        "title": palette.strong,
        "critical": palette.critical,
        "warning": palette.warning,
        "info": palette.info,
        "dim": palette.dim,
    }
    return [Row(width).add(" " * indent + line.text, styles[line.role]) for line in lines]
