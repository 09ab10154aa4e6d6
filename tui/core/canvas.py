"""The widget that shows painted rows: one a screen, so a frame costs one pass and nothing is laid out again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from tui.core.layout import Rect
from tui.paint.glyphs import UNICODE, to_ascii
from tui.paint.rows import CellTheme, Row
from tui.paint.strips import rendered
from tui.paint.text_width import cell_len
from tui.terminal.textual_private import (
    CompositorUpdate,
    display,
    has_background_screens,
    is_update_pending,
    visible_widgets,
)


class Placed(NamedTuple):
    """A painted part and where it goes; there are as many rows as the rectangle is high."""

    rect: Rect
    rows: Sequence[Row]


class Board(Widget):
    """Shows painted parts and repaints only the rows that differ from those shown before."""

    ALLOW_SELECT = False

    def __init__(self, on_size: Callable[[], None]) -> None:
        """Make an empty board.

        Args:
            on_size: called when the size has changed, to paint anew.
        """
        super().__init__()
        self._on_size = on_size
        self._rects: list[Rect] = []
        self._rows: list[list[list[Segment]]] = []
        self._lines: list[Row | None] = []
        """Lines of the screen; None where nothing was painted."""
        self._drawn_with: CellTheme | None = None
        self._painted_size = Size()
        self._is_rendering = False

    def show(self, parts: Iterable[Placed], theme: CellTheme, size: Size) -> None:
        """Replace what is shown by these parts.

        Args:
            parts: painted for `size`.
            theme: colours and glyphs that they were painted with.
            size: of the board now, which Textual computes anew each time.
        """
        placed = list(parts)
        rects = [part.rect for part in placed]
        rows = [[row.segments for row in part.rows] for part in placed]
        self._painted_size = size
        width, height = size
        if rects == self._rects and theme is self._drawn_with and len(self._lines) == height:
            lines = _changed_lines(rects, self._rows, rows)
        else:
            lines = set(range(height))
            self._lines = [None] * height
        self._rects, self._rows, self._drawn_with = rects, rows, theme
        parts_of_lines: list[_LinePart] = []
        for y, line in _whole_lines(placed, lines, width, theme):
            if y < height:
                parts_of_lines.append(_changed_part(y, self._lines[y], line))
                self._lines[y] = line
        if not lines or self._is_rendering:
            return
        if self._is_all_there_is():
            display(self.app, self.screen, _LineParts(sorted(parts_of_lines), ascii_only=theme.glyphs.ascii))
        else:
            self.refresh(*_regions(lines, width))

    def _is_all_there_is(self) -> bool:
        """Return True if nothing else is on the terminal, nor about to be: then lines may go there at once.

        Textual would wait for up to 16 ms, wake up three times and put them together with what lies below and
        above them: a sixth of what a frame took, and keys are answered later by as much.
        """
        app, screen = self.app, self.screen
        if not self.is_mounted or screen is not app.screen or has_background_screens(app) or app.is_inline:
            return False
        if is_update_pending(screen):
            return False
        shown = visible_widgets(screen)
        return shown.keys() == {screen, self} and shown[self][0] == app.size.region

    def on_resize(self) -> None:
        """Paint everything for the new size."""
        self._on_size()

    def render_line(self, y: int) -> Strip:
        """Return one line, as it was painted; one of another size, cut or filled."""
        return self._line(y, self.size.width)

    def _line(self, y: int, width: int) -> Strip:
        row = self._lines[y] if y < len(self._lines) else None
        if row is None or self._drawn_with is None:
            return Strip.blank(width)
        return row.strip(ascii_only=self._drawn_with.glyphs.ascii).adjust_cell_length(width)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the lines as they were painted: they have all their styles, so none of Textual's is laid over
        them."""
        size = self.size  # which Textual works out anew each time
        if size != self._painted_size and size:
            self._paint_for_size()
        width = size.width
        lines = [self._line(y, width) for y in crop.line_range]
        if crop.column_span == (0, width):
            return lines
        return [line.crop(*crop.column_span) for line in lines]

    def _paint_for_size(self) -> None:
        """Paint for a size that Textual draws before it tells it.

        The first frame is out some 30 ms sooner, and none of another size is seen.
        """
        self._is_rendering = True
        try:
            self._on_size()
        finally:
            self._is_rendering = False


class _LinePart(NamedTuple):
    """Cells of one line that are next to each other."""

    y: int
    x: int
    segments: list[Segment]


class _LineParts(CompositorUpdate):
    """Parts of lines of the terminal, with their places."""

    def __init__(self, parts: list[_LinePart], *, ascii_only: bool) -> None:
        self._parts, self._ascii_only = parts, ascii_only

    def render_segments(self, console: Console) -> str:
        """Return the bytes for the terminal."""
        if self._ascii_only:
            self._parts = [
                _LinePart(y, x, [Segment(to_ascii(text), style) for text, style, _ in segments])
                for y, x, segments in self._parts
            ]
        return "".join([f"\x1b[{y + 1};{x + 1}H{rendered(segments, console)}" for y, x, segments in self._parts])


def _changed_part(y: int, before: Row | None, row: Row) -> _LinePart:
    """Return the segments of a line from the first to the last that differ from those before; all without any.

    A line is mostly a label, a chart and a scale: to write all of it anew is most of what a frame sends.
    """
    new = row.segments
    if before is None or before.used != row.used:
        return _LinePart(y, 0, new)
    old = before.segments
    shorter = min(len(old), len(new))
    first = 0
    while first < shorter and old[first] == new[first]:
        first += 1
    last = 0
    while last < shorter - first and old[-1 - last] == new[-1 - last]:
        last += 1
    x = sum([_cells_of(text) for text, _, _ in new[:first]])
    return _LinePart(y, x, new[first : len(new) - last])


def _cells_of(text: str) -> int:
    """Return the cells of a text; at once for a chart's, which differs in each frame."""
    return len(text) if text.isascii() or not text.strip(UNICODE.levels) else cell_len(text)


def _changed_lines(
    rects: list[Rect], before: list[list[list[Segment]]], after: list[list[list[Segment]]]
) -> set[int]:
    """Return the lines of the screen on which something differs."""
    return {
        rect.y + index
        for rect, old, new in zip(rects, before, after, strict=True)
        for index, (one, other) in enumerate(zip(old, new, strict=True))
        if one is not other and one != other
    }


def _regions(lines: set[int], width: int) -> list[Region]:
    """Return the lines as regions over the whole width, neighbours put together."""
    regions: list[Region] = []
    for y in sorted(lines):
        if regions and regions[-1].bottom == y:
            last = regions.pop()
            regions.append(Region(0, last.y, width, last.height + 1))
        else:
            regions.append(Region(0, y, width, 1))
    return regions


def _whole_lines(placed: list[Placed], lines: set[int], width: int, theme: CellTheme) -> Iterable[tuple[int, Row]]:
    """Yield the lines asked for, each put together from the parts that lie on it."""
    across: dict[int, list[tuple[int, Row]]] = {y: [] for y in lines}
    for rect, rows in placed:
        for index, row in enumerate(rows):
            if rect.y + index in across:
                across[rect.y + index].append((rect.x, row))
    ground: Style = theme.palette.text
    for y, parts in across.items():
        if len(parts) == 1 and parts[0][0] == 0 and parts[0][1].used == width:  # as nearly all are
            yield y, parts[0][1]
            continue
        line = Row(width)
        for x, row in sorted(parts, key=lambda part: part[0]):
            line.fill_to(x, ground)
            line.segments += row.segments
            line.used += row.used
        yield y, line.end(ground)
