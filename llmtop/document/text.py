"""A document as lines of text for a terminal. The screen draws the same lines."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from llmtop.document.cells import clean, shorten, unclosed, wrap
from llmtop.document.model import (
    AreaChart,
    Block,
    Document,
    Finding,
    Heading,
    Listing,
    Paragraph,
    Role,
    Table,
)
from llmtop.document.table import aligned, layout
from llmtop.format import width_of

SIGNS = {"critical": "!!", "warning": "!", "info": "·"}
"""Before a finding; never colour alone."""
Paint = Callable[[str, str], str]
"""Colours a text by its role."""

_NARROWEST, _WIDEST = 40, 160
INDENT = "  "
_MOST_CELL_LINES = 3
"""Lines of a text that stands below its table."""
_EIGHTHS = " ▁▂▃▄▅▆▇█"


class Line(NamedTuple):
    """One line and its role."""

    text: str
    role: Role


def write_text(document: Document, width: int, paint: Paint | None = None) -> str:
    """Return the document as text, with the last line's end.

    Args:
        document: what to write.
        width: columns of the terminal.
        paint: adds colours; None: none.
    """

    def painted(line: Line) -> str:
        return line.text if paint is None or line.role == "text" else paint(line.text, line.role)

    return "".join(f"{painted(line)}\n" for line in document_lines(document, width))


def document_lines(document: Document, width: int) -> list[Line]:
    """Return the lines of a document; with `most_lines`, tables and listings lose rows until it fits."""
    width = max(_NARROWEST, min(width, _WIDEST))
    blocks, most = document.blocks, document.most_lines
    if document.warning:
        blocks = (Paragraph(document.warning, "warning", most_lines=3), *blocks)
    if most is None:
        return _join_blocks(blocks, [block_lines(block, width) for block in blocks])
    lines = _fit_blocks(blocks, width, most, whole=True) or _fit_blocks(blocks, width, most, whole=False)
    last = block_lines(blocks[-1], width)
    return lines if len(lines) <= most else [*lines[: most - len(last)], *last]


def _fit_blocks(blocks: Sequence[Block], width: int, most: int, *, whole: bool) -> list[Line]:
    """Return the lines of all blocks, with as many rows as there is room for.

    Args:
        blocks: of a document.
        width: cells of a line.
        most: lines.
        whole: with all columns of the tables, and some rows of each, or nothing; else without columns that do not
            fit, and without the last tables.
    """
    rows = [_row_count(block) for block in blocks]
    least = [block.least if isinstance(block, Table | Listing) else 0 for block in blocks]
    parts = [_few_rows(block, width, whole, count) for block, count in zip(blocks, rows, strict=True)]
    while len(lines := _join_blocks(blocks, parts)) > most and any(rows):
        # The longest goes first; of equal ones the last, which is the least important.
        longest, place = max(
            (max(count - few, 0), place) for place, (count, few) in enumerate(zip(rows, least, strict=True))
        )
        if longest:
            rows[place] -= 1
        elif whole:
            return []
        else:
            place = max(index for index, count in enumerate(rows) if count)
            rows[place] = 0
        parts[place] = _few_rows(blocks[place], width, whole, rows[place])
    return lines


def _few_rows(block: Block, width: int, whole: bool, count: int) -> list[Line]:
    """Return the lines of a block with so many rows; nothing of a table without rows."""
    if not isinstance(block, Table | Listing):
        return block_lines(block, width)
    if not count:
        return []
    return block_lines(replace(block, most=count), width, "--full", whole=whole, optional=False)


def _row_count(block: Block) -> int:
    """Return how many rows a block has that may be left out."""
    if isinstance(block, Table):
        return min(len(block.rows), block.most)
    return min(len(block.lines), block.most) if isinstance(block, Listing) else 0


def _join_blocks(blocks: Sequence[Block], parts: Sequence[list[Line]]) -> list[Line]:
    """Return the lines of all blocks, with blank lines where they stand apart."""
    lines: list[Line] = []
    before: Block | None = None
    for block, part in zip(blocks, parts, strict=True):
        if not part:
            continue
        tight = (
            isinstance(block, Paragraph)
            and isinstance(before, Paragraph)
            and not block.is_lead
            and block.is_item == before.is_item
        )
        if before is not None and not tight and not isinstance(before, Heading):
            lines.append(Line("", "text"))
        lines += part
        before = block
    return lines


def block_lines(
    block: Block, width: int, hint: str = "--json has all", *, whole: bool = True, optional: bool = True
) -> list[Line]:
    """Return the lines of one block.

    Args:
        block: what to write.
        width: cells of a line.
        hint: where all rows are, for a table that does not show all.
        whole: with columns of a table that do not fit beside the others, below these.
        optional: with the optional ones among these.
    """
    if isinstance(block, Heading):
        return _title(block.text, width)
    if isinstance(block, Paragraph):
        lines = wrap(clean(block.text), width, INDENT if block.is_item else "")
        return _lines(_first_lines(lines, block.most_lines, width), block.role)
    if isinstance(block, Finding):
        return finding_lines(block, width)
    if isinstance(block, Table | Listing):
        return _rows(block, width, hint, whole, optional)
    if isinstance(block, AreaChart):
        return [*_title(block.title, width), *_lines(_chart(block, width), "info")]
    return []  # what only a page can draw


def _rows(block: Table | Listing, width: int, hint: str, whole: bool, optional: bool) -> list[Line]:
    if isinstance(block, Table):
        lines, left_out = _lines_of_table(block, width, whole, optional), len(block.rows) - block.most
    else:
        shown = [shorten(clean(line), width) for line in block.lines[: block.most]]
        lines, left_out = _lines(shown, "text"), len(block.lines) - block.most
    more = [Line(f"{INDENT}… and {left_out} more ({hint})", "dim")] if left_out > 0 else []
    return [*_title(block.title, width), *lines, *more]


def _lines_of_table(table: Table, width: int, whole: bool, optional: bool) -> list[Line]:
    rows = [[clean(cell) for cell in row] for row in table.rows[: table.most]]
    heads = [replace(column, title=clean(column.title)) for column in table.columns]
    groups = layout(heads, rows, width - len(INDENT)) if rows else []
    lines = []
    for number, (places, widths) in enumerate(groups if whole else groups[:1]):
        columns = [heads[place] for place in places]
        if number and any(column.is_optional for column in columns):
            if not optional:
                continue
            # Beside the others a text is cut to its column; below them it has some lines.
            columns = [replace(column, cut="never") if column.is_optional else column for column in columns]
            for one, width_of_column in zip(places, widths, strict=True):
                if heads[one].is_optional and heads[one].is_text:
                    room = _MOST_CELL_LINES * width_of_column
                    rows = [_with_cell(row, one, shorten(row[one], room, heads[one].cut)) for row in rows]
        titles = aligned([column.title for column in columns], widths, columns)
        lines += _lines([INDENT + text for text in titles], "dim")
        for place, row in enumerate(rows):
            strong = place < len(table.strong) and table.strong[place]
            texts = aligned([row[one] for one in places], widths, columns)
            lines += _lines([INDENT + text for text in texts], "title" if strong else "text")
    return lines


def _with_cell(row: list[str], place: int, cell: str) -> list[str]:
    return [*row[:place], cell, *row[place + 1 :]]


def _lines(texts: Sequence[str], role: Role) -> list[Line]:
    return [Line(text, role) for text in texts]


def _title(text: str, width: int) -> list[Line]:
    return _lines(wrap(clean(text), width), "title") if text else []


def _first_lines(lines: list[str], most: int | None, width: int) -> list[str]:
    """Return the first lines; where there are more, the last one ends with "…" and closes brackets."""
    if most is None or len(lines) <= most:
        return lines
    before, shown = lines[: most - 1], lines[most - 1]
    while True:
        shown = shown.rpartition(" ")[0].rstrip() or shown[:-2]  # a word goes for the sign
        end = f" …{unclosed(' '.join([*before, shown]))}"
        if width_of(shown + end) <= width or not shown.strip():
            return [*before, f"{shown}{end}"]


def finding_lines(finding: Finding, width: int, *, with_sign: bool = True) -> list[Line]:
    """Return the sign and the sentence of a finding, then its parts."""
    sign = f"{SIGNS.get(finding.severity, '·')} " if with_sign else ""
    name = f"{clean(finding.name)} ({finding.severity}): " if finding.name else ""
    summary = wrap(f"{sign}{name}{clean(finding_sentence(finding))}", width, "", INDENT if with_sign else "")
    lines = _lines(_first_lines(summary, finding.most_lines, width), finding.severity)
    most = None if finding.most_lines is None else finding.most_lines - 1
    for label, text in finding_parts(finding):
        part = wrap(f"{label}: {clean(text)}", width, INDENT, INDENT * 3)
        lines += _lines(_first_lines(part, most, width), "text")
    return lines


def finding_sentence(finding: Finding) -> str:
    """Return the summary of a finding, and what can be saved."""
    return f"{finding.summary} Saves at most {finding.saving}." if finding.saving else finding.summary


def finding_parts(finding: Finding) -> list[tuple[str, str]]:
    """Return the parts of a finding that are not empty, each with its label."""
    parts = (
        ("evidence", finding.evidence),
        ("do", finding.todo),
        ("next", finding.next),
        ("confirm", finding.confirm),
    )
    return [(label, text) for label, text in parts if text]


def _chart(chart: AreaChart, width: int) -> list[str]:
    top = max(*chart.upper, *chart.lower, 1)
    scale, zero = chart.format_value(top), chart.format_value(0)
    label = max(len(scale), len(zero))
    columns = max(1, min(width - label - 5, 2 * len(chart.lower)))
    lower, upper = _spread(chart.lower, columns), _spread(chart.upper, columns)
    lines = []
    for row in range(chart.rows, 0, -1):
        pairs = zip(lower, upper, strict=True)
        cells = "".join(_cell(one, two, top, row, chart.rows) for one, two in pairs)
        lines.append(f"  {scale if row == chart.rows else '':>{label}} ┤{cells.rstrip()}")
    lines.append(f"  {zero:>{label}} └{'─' * max(0, columns - len(chart.end) - 1)} {chart.end}")
    return [*lines, f"  {'':>{label}}  █ {chart.names[0]}   ░ {chart.names[1]}"]


def _spread(values: Sequence[int], columns: int) -> list[int]:
    """Return the most of the values that fall into each column."""
    count = len(values)
    edges = [place * count // columns for place in range(columns + 1)]
    return [max(values[first : max(last, first + 1)]) for first, last in itertools.pairwise(edges)]


def _cell(lower: int, upper: int, top: int, row: int, rows: int) -> str:
    filled = min(8, max(0, round(8 * (lower / top * rows - (row - 1)))))
    if filled > 0:
        return _EIGHTHS[filled]
    return "░" if upper / top * rows > row - 0.5 else " "
