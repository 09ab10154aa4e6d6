"""Rows of cells under construction, and the theme that painters use.

A painter is a function from data to a list of rows. It touches no widget and no device, so it can be tested
without an app.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import isfinite

from msgspec import Struct
from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from llmtop import format as fmt
from tui.paint.glyphs import ASCII, UNICODE, Box, Glyphs, to_ascii
from tui.paint.palette import Palette
from tui.paint.strips import CompactStrip
from tui.paint.text_width import cell_len


class CellTheme(Struct, frozen=True):
    """How things are drawn now: colours and characters."""

    palette: Palette
    glyphs: Glyphs
    hues: dict[str, Style]
    """The style of a history, by the kind of figure (tui/paint/gpu_metrics.py, Hue)."""
    lines: dict[str, Style]
    """Styles of thin lines, by the kind of figure."""
    areas: dict[str, Style]
    """Styles of histories several rows high, by the kind of figure."""
    spikes: dict[str, Style]
    """Styles of what stands out in a history, by the kind of figure."""

    @classmethod
    def for_palette(cls, palette: Palette, *, ascii_only: bool) -> CellTheme:
        """Return the cell theme of a palette, with or without characters beyond ASCII."""
        hues = {"compute": palette.compute, "energy": palette.energy, "transfer": palette.transfer}
        lines = {
            "compute": palette.compute_line,
            "energy": palette.energy_line,
            "transfer": palette.transfer_line,
        }
        areas = {
            "compute": palette.compute_area,
            "energy": palette.energy_area,
            "transfer": palette.transfer_area,
        }
        spikes = {hue: line + Style(bold=True) for hue, line in lines.items()}
        return cls(palette, ASCII if ascii_only else UNICODE, hues, lines, areas, spikes)


_new_tuple = tuple.__new__
"""Constructor that `Segment` calls, without the call of a Python function for each piece of a row."""


class Row:
    """One line, built from left to right at a known width; nothing is added past it."""

    __slots__ = ("limit", "segments", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.segments: list[Segment] = []

    @property
    def free_cells(self) -> int:
        """How many cells of the row are still free."""
        return self.limit - self.used

    def add(self, text: str, style: Style) -> Row:
        """Append text; what does not fit is cut with an ellipsis, and control characters become dots."""
        if not text.isprintable():
            text = fmt.printable(text)
        width = cell_len(text)
        if width > self.limit - self.used:
            text, width = clip(text, self.limit - self.used), self.limit - self.used
        if width > 0:
            self.segments.append(_new_tuple(Segment, (text, style, None)))
            self.used += width
        return self

    def put(self, text: str, style: Style, width: int) -> Row:
        """Append text whose width is known and known to fit: the quick way, for what every frame draws often."""
        self.segments.append(_new_tuple(Segment, (text, style, None)))
        self.used += width
        return self

    def join(self, other: Row) -> Row:
        """Append another row, which is known to fit."""
        self.segments += other.segments
        self.used += other.used
        return self

    def cut(self, width: int, limit: int | None = None) -> Row:
        """Return a row with the first `width` cells of this one, and of the same limit if no other is given."""
        row = Row(self.limit if limit is None else limit)
        for text, style, _ in self.segments:
            fitting = set_cell_size(text, min(cell_len(text), width - row.used))
            row.segments.append(Segment(fitting, style))
            row.used += cell_len(fitting)
            if row.used >= width:
                break
        return row

    def fill_to(self, column: int, style: Style, char: str = " ") -> Row:
        """Fill up to a column with `char`."""
        missing = min(column, self.limit) - self.used
        if missing > 0:
            self.segments.append(_new_tuple(Segment, (char * missing, style, None)))
            self.used += missing
        return self

    def add_right(self, text: str, style: Style, fill: Style, char: str = " ") -> Row:
        """Append text so that it ends at the right end of the row.

        Args:
            text: cut where it is wider than the free cells; terminal escapes in it are made visible.
            style: of the text.
            fill: style of the cells between the last text and this one.
            char: what these cells hold.
        """
        text = fmt.printable(text)
        width = cell_len(text)
        return self.fill_to(self.limit - width, fill, char).add(text, style)

    def end(self, style: Style) -> Row:
        """Fill the rest with blanks."""
        return self.fill_to(self.limit, style)

    def plain(self) -> str:
        """Return the text of the row without its styles."""
        return "".join(segment.text for segment in self.segments)

    def strip(self, *, ascii_only: bool) -> Strip:
        """Return the row as Textual draws it."""
        if ascii_only:
            return CompactStrip([Segment(to_ascii(text), style) for text, style, _ in self.segments], self.used)
        return CompactStrip(self.segments, self.used)


_LEAST_FRAME = 8
"""Columns below which a frame would leave nothing to frame."""


def clip(text: str, width: int) -> str:
    """`text` in at most `width` cells, with an ellipsis where something is missing."""
    if width <= 0:
        return ""
    text = fmt.printable(text)
    if cell_len(text) <= width:
        return text
    return "…" if width == 1 else set_cell_size(text, width - 1) + "…"


def pad(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` cells; `add_right` puts it at the right end, as numbers are."""
    if len(text) <= width and text.isascii() and text.isprintable():
        return text.rjust(width) if right else text.ljust(width)
    text = fmt.printable(text)
    missing = width - cell_len(text)
    if missing < 0:
        return clip(text, width)
    return " " * missing + text if right else text + " " * missing


def elapsed(seconds: float) -> str:
    """Return a running time in whole seconds, so that it does not flicker: "8 s", "3m 12s", "2h 05m".

    Args:
        seconds: negative ones count as 0; NaN and infinity are a dash.
    """
    if not isfinite(seconds):
        return fmt.DASH
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}m {whole % 60:02d}s" if whole < 3600 else fmt.duration(float(whole))


def highlighted(row: Row, text: str, style: Style) -> Row:
    """Return a row with each occurrence of a text in another style; capital letters count only where `text` has
    some."""
    plain = row.plain()
    shown = plain.lower() if text == text.lower() else plain
    if not text or text not in shown or len(shown) != len(plain):
        return row
    inside, at = set[int](), shown.find(text)
    while at >= 0:
        inside.update(range(at, at + len(text)))
        at = shown.find(text, at + len(text))
    marked, place = Row(row.limit), 0
    for said, own, _ in row.segments:
        for found, letters in groupby(enumerate(said, place), key=lambda one: one[0] in inside):
            marked.segments.append(Segment("".join(letter for _, letter in letters), style if found else own))
        place += len(said)
    marked.used = row.used
    return marked


def blank(width: int, theme: CellTheme) -> Row:
    """Return a row of blanks in the screen's own style."""
    return Row(width).end(theme.palette.text)


def frame(
    content: Sequence[Row],
    width: int,
    theme: CellTheme,
    *,
    title: Sequence[tuple[str, Style]] = (),
    right: Sequence[tuple[str, Style]] = (),
    foot: Sequence[tuple[str, Style]] = (),
    box: Box | None = None,
    style: Style | None = None,
    bar: Style | None = None,
) -> list[Row]:
    """Content rows in a frame; each content row is `width - 4` wide.

    Args:
        title: set into the top edge, at its left.
        right: set into the top edge, at its right, while there is room beside the title.
        foot: set into the bottom edge.
        box: the frame's shape; thin if not given.
        style: of the frame.
        bar: paints the whole top edge, for an alert.
    """
    if width < _LEAST_FRAME:
        bare = [Row(width), *(row.cut(width, width) for row in content), Row(width)]
        return [row.end(theme.palette.text) for row in bare]
    shape = box or theme.glyphs.thin
    line = style or theme.palette.faint
    edge = bar or line
    inner = width - 4
    top = Row(width).add(shape.top_left + shape.across, edge)
    room = width - 3
    _insert(top, title, room, edge, bar)
    right_width = sum(cell_len(fmt.printable(text)) for text, _ in right) + 2
    if right and top.used + right_width + 2 <= width:
        top.fill_to(width - 2 - right_width, edge, shape.across)
        _insert(top, right, room + 1, edge, bar)
    top.fill_to(width - 1, edge, shape.across).add(shape.top_right, edge)
    rows = [top]
    left_edge, right_edge = Segment(shape.down + " ", line), Segment(" " + shape.down, line)
    for row in content:
        framed = Row(width)
        missing = [Segment(" " * (inner - row.used), theme.palette.text)] if row.used < inner else []
        framed.segments = [left_edge, *row.segments, *missing, right_edge]
        framed.used = width
        rows.append(framed)
    bottom = Row(width).add(shape.bottom_left + shape.across, line)
    _insert(bottom, foot, room, line, None)
    rows.append(bottom.fill_to(width - 1, line, shape.across).add(shape.bottom_right, line))
    return rows


def rule(
    width: int, theme: CellTheme, title: Sequence[tuple[str, Style]], right: Sequence[tuple[str, Style]] = ()
) -> Row:
    """Return the top edge of a frame, for panes without room for a whole frame.

    Args:
        width: cells of the row.
        theme: colours and glyphs of this terminal.
        title: texts and their styles, at the left.
        right: texts and their styles, at the right; left out where both do not fit.
    """
    palette, across = theme.palette, theme.glyphs.thin.across
    row = Row(width).add(across, palette.faint)
    _insert(row, title, width, palette.faint, None)
    right_width = sum(cell_len(fmt.printable(text)) for text, _ in right) + 2
    if right and row.used + right_width + 2 <= width:
        row.fill_to(width - 1 - right_width, palette.faint, across)
        _insert(row, right, width, palette.faint, None)
    return row.fill_to(width, palette.faint, across)


def _insert(row: Row, parts: Sequence[tuple[str, Style]], limit: int, edge: Style, bar: Style | None) -> None:
    """Set text into an edge with a blank at either end, cut before `limit`."""
    room = limit - row.used - 2
    if not parts or room < 1:
        return
    row.add(" ", edge)
    for text, style in parts:
        fitting = clip(text, room)
        room -= cell_len(fitting)
        row.add(fitting, bar or style)
    row.add(" ", edge)
