"""One step drawn in cells: for each stretch of time how much of it is filled, and a letter for what fills it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from msgspec import Struct
from rich.style import Style

from llmtop import format as fmt
from llmtop.naming.kernel_names import kind_text
from llmtop.report.model import Span, Timeline, TimelineRow
from tui.core.layout import Rect
from tui.paint.rows import CellTheme, Row, clip, pad
from tui.panes.phase_bars import colors_of

LABEL = 14
"""Cells at the left for the name of a row."""

LETTERS = {
    "GEMM": "G", "convolution": "V", "attention": "A", "normalisation": "N", "elementwise": "E", "reduction": "R",
    "embedding": "T", "NCCL": "C", "optimizer": "O", "copy": "M", "memset": "Z", "other": "K", "launch": "L",
    "queued": "q", "sync": "S", "input": "I", "allocation": "B", "host": "H", "os_wait": "W",
    "other_process": "P", "unknown": "?", "preempted": "p", "sleeping": "s", "waiting": "w", "off_cpu": "o",
}  # fmt: skip
"""Letters of kernels by kind of computation, of gaps by cause, of the host's calls by kind: color alone is not
enough."""
_COLORS = {
    "GEMM": 0, "convolution": 0, "attention": 1, "normalisation": 6, "elementwise": 3, "reduction": 5,
    "embedding": 6, "NCCL": 4, "optimizer": 2, "copy": 7, "launch": 3, "sync": 4, "input": 2, "queued": 7,
}  # fmt: skip


class ShownStretch(Struct, frozen=True):
    """The part of the step that is shown, in seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long the stretch is."""
        return self.end - self.start

    def moved(self, share: float, whole: float) -> ShownStretch:
        """Return the stretch shifted by a share of its length, within a step of `whole` seconds."""
        start = min(max(self.start + share * self.seconds, 0.0), whole - self.seconds)
        return ShownStretch(start, start + self.seconds)

    def zoomed(self, factor: float, whole: float) -> ShownStretch:
        """Longer or shorter about its middle, within the step; never under a microsecond."""
        length = min(max(self.seconds * factor, 1e-6), whole)
        middle = (self.start + self.end) / 2
        start = min(max(middle - length / 2, 0.0), whole - length)
        return ShownStretch(start, start + length)


class Cell(Struct, frozen=True):
    """One column of a row of the timeline."""

    filled: float = 0.0
    """Share of the cell's time in which something ran."""
    kind: str = ""
    """Kind of work that fills most of it."""


def cells(spans: Sequence[Span], window: ShownStretch, width: int) -> list[Cell]:
    """Return the pieces of a row that lie in the window, put into `width` columns."""
    length = window.seconds / width
    filled = [0.0] * width
    kinds: list[dict[str, float]] = [{} for _ in range(width)]
    for span in spans:
        begin, end = max(span.start, window.start), min(span.start + span.seconds, window.end)
        if end <= begin or length <= 0:
            continue
        first, last = int((begin - window.start) / length), int((end - window.start) / length)
        for column in range(max(first, 0), min(last, width - 1) + 1):
            left = window.start + column * length
            part = (min(end, left + length) - max(begin, left)) * span.fill
            if part > 0:
                filled[column] += part
                kinds[column][span.kind] = kinds[column].get(span.kind, 0.0) + part
    return [
        Cell(min(1.0, share / length), max(kind, key=lambda k: kind[k])) if kind else Cell()
        for share, kind in zip(filled, kinds, strict=True)
    ]


def paint(timeline: Timeline, window: ShownStretch, area: Rect, theme: CellTheme) -> list[Row]:
    """Paint a captured step: its rows, the axis, what is at the middle, and the legend of the letters in use.

    Args:
        timeline: of the step, in ns.
        window: the stretch of it that is shown, in ns.
        area: width in cells; the height is not used: the screen scrolls.
        theme: colours and glyphs of this terminal.
    """
    width = max(area.width - LABEL - 2, 8)
    rows = [_axis(window, width, theme)]
    used: dict[str, None] = {}
    for lane in timeline.rows:
        columns = cells(lane.spans, window, width)
        used |= dict.fromkeys(cell.kind for cell in columns if cell.kind and lane.lane != "phases")
        rows += _lane(lane, columns, window, width, theme)
    rows += [Row(area.width), *_middle(timeline, window, area.width, theme), Row(area.width)]
    return [*rows, *_legend([kind for kind in LETTERS if kind in used], area.width, theme)]


def _axis(window: ShownStretch, width: int, theme: CellTheme) -> Row:
    row = Row(LABEL + 1 + width).add(" " * (LABEL + 1), theme.palette.dim)
    middle = (window.start + window.end) / 2
    left, right = fmt.duration(window.start), fmt.duration(window.end)
    text = f"{theme.glyphs.more} {fmt.duration(middle)}"
    row.add(left, theme.palette.dim)
    row.fill_to(LABEL + 1 + width // 2, theme.palette.dim).add(text, theme.palette.strong)
    return row.add_right(right, theme.palette.dim, theme.palette.dim)


def _lane(lane: TimelineRow, columns: list[Cell], window: ShownStretch, width: int, theme: CellTheme) -> list[Row]:
    if lane.lane == "phases":
        return [_phases(lane, window, width, theme)]
    label = pad(f" {fmt.printable(lane.label)}", LABEL) + " "
    heights = Row(LABEL + 1 + width).add(label, theme.palette.text)
    letters = Row(LABEL + 1 + width).add(" " * (LABEL + 1), theme.palette.text)
    for text, letter, style in _runs(columns, theme):
        heights.add(text, style)
        letters.add(letter, style)
    return [heights, letters]


def _runs(columns: list[Cell], theme: CellTheme) -> list[tuple[str, str, Style]]:
    """Neighbours of a kind as one piece of text: (levels, letters, style)."""
    levels = theme.glyphs.levels
    runs: list[tuple[str, str, Style]] = []
    before: str | None = None
    for cell in columns:
        level = levels[0] if cell.filled <= 0 else levels[min(8, max(1, round(8 * cell.filled)))]
        letter = LETTERS.get(cell.kind, " ") if cell.filled > 0 else " "
        if runs and cell.kind == before:
            text, marks, style = runs[-1]
            runs[-1] = (text + level, marks + letter, style)
        else:
            runs.append((level, letter, _style(cell.kind, theme)))
        before = cell.kind
    return runs


def _style(kind: str, theme: CellTheme) -> Style:
    palette = theme.palette
    return palette.phases[_COLORS[kind]] if kind in _COLORS else palette.text


def _phases(lane: TimelineRow, window: ShownStretch, width: int, theme: CellTheme) -> Row:
    """Return the row of bars with the phases' names in them."""
    palette, glyphs = theme.palette, theme.glyphs
    row = Row(LABEL + 1 + width).add(pad(f" {fmt.printable(lane.label)}", LABEL) + " ", palette.text)
    colors = colors_of([span.kind for span in lane.spans])
    filled = palette.depth != "mono" and not glyphs.ascii
    for span in lane.spans:
        begin, end = max(span.start, window.start), min(span.start + span.seconds, window.end)
        if end <= begin:
            continue
        first = LABEL + 1 + int((begin - window.start) / window.seconds * width)
        last = LABEL + 1 + max(round((end - window.start) / window.seconds * width), 0)
        row.fill_to(first, palette.text)
        length = max(last - row.used, 1 if row.used <= first else 0)
        name = clip(fmt.printable(span.text), length - 2).center(length) if length >= 4 else " " * length
        color = colors[span.kind]
        if filled:
            row.add(name, palette.phase_bars[color])
        else:
            row.add(
                name.replace(" ", glyphs.fills[color]) if length < 4 else f"[{name[1:-1]}]", palette.phases[color]
            )
    return row


def _middle(timeline: Timeline, window: ShownStretch, width: int, theme: CellTheme) -> list[Row]:
    """Return the rows that name the work of each row at the middle of the window."""
    middle = (window.start + window.end) / 2
    rows = []
    for lane in timeline.rows:
        at = bisect_right([span.start for span in lane.spans], middle) - 1
        span = lane.spans[at] if at >= 0 else None
        inside = span is not None and span.start + span.seconds > middle
        text = (
            f"{fmt.printable(span.text)} ({fmt.duration(span.seconds)})"
            if span is not None and inside
            else fmt.DASH
        )
        row = Row(width).add(pad(f" {fmt.printable(lane.label)}", LABEL) + " ", theme.palette.dim)
        rows.append(row.add(text, theme.palette.text))
    return rows


def _legend(kinds: list[str], width: int, theme: CellTheme) -> list[Row]:
    rows = [Row(width).add(" ", theme.palette.dim)]
    for kind in kinds:
        words = f"{kind_text(kind).replace('_', ' ')}   "
        if len(words) + 2 > rows[-1].free_cells:
            rows.append(Row(width).add(" ", theme.palette.dim))
        rows[-1].add(f"{LETTERS[kind]} ", _style(kind, theme)).add(words, theme.palette.dim)
    return rows
