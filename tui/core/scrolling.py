"""Base of text screens, which scroll; the last row counts the lines."""

from __future__ import annotations

from typing import ClassVar

from tui.core.board_screen import WHEEL_LINES, BoardScreen
from tui.core.canvas import Placed
from tui.core.layout import Rect
from tui.paint.rows import Row, highlighted


class Scrolling(BoardScreen):
    """Shows `lines()` from the first one scrolled to on. `keep_in_sight` may move that before each painting."""

    MARGIN: ClassVar[int] = 0
    """Columns left free on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.top = 0
        """The first line shown."""
        self.found_line: int | None = None
        """The line of the search's present match, until the text is scrolled."""
        self._texts: list[str] = []
        self._body = Rect(0, 0, 0, 0)

    def lines(self, width: int) -> list[Row]:
        """Paint all of the text, as many lines as it takes at that width."""
        raise NotImplementedError

    def keep_in_sight(self, room: int, count: int) -> None:
        """Move `top` so that what matters is among the `room` lines shown of `count`."""

    def header(self, width: int) -> Row:
        """Paint the first line."""
        raise NotImplementedError

    def header_and_footer(self, width: int, height: int) -> tuple[list[Placed], Rect]:
        """Paint header and footer.

        Returns:
            Both with their places, and the space between them.
        """
        placed = [
            Placed(Rect(0, 0, width, 1), [self.header(width)]),
            Placed(Rect(0, height - 1, width, 1), [self.paint_footer(width)]),
        ]
        return placed, Rect(0, 1, width, max(height - 2, 0))

    def parts(self, width: int, height: int) -> list[Placed]:
        """Header, the part of the text that is scrolled to, footer."""
        placed, body = self.header_and_footer(width, height)
        room = max(body.width - 2 * self.MARGIN, 0)
        self.page_lines = max(body.height - 1, 1)  # the last line may show how much more there is
        self._body = body
        rows = self.lines(room)
        self._texts = [row.plain() for row in rows]
        if self.found_line is None:
            self.keep_in_sight(body.height, len(rows))
        elif not self.top <= self.found_line < self.top + self.page_lines:
            self.top = self.found_line - body.height // 3
        self.top = max(min(self.top, len(rows) - body.height), 0)
        shown = rows[self.top : self.top + body.height]
        below = len(rows) - self.top - body.height
        if below > 0 and shown:
            text = f"   {below + 1} more lines {self.cell_theme.glyphs.more}"
            shown[-1] = Row(room).add(text, self.cell_theme.palette.dim)
        shown = [self._mark_matches(row, number) for number, row in enumerate(shown, self.top)]
        shown += [Row(room) for _ in range(body.height - len(shown))]
        ended = [row.end(self.cell_theme.palette.text) for row in shown]
        return [*placed, Placed(Rect(self.MARGIN, body.y, room, body.height), ended)]

    def _mark_matches(self, row: Row, number: int) -> Row:
        """Return the row with what is searched for marked in it, the present match most."""
        palette = self.cell_theme.palette
        style = palette.cursor if number == self.found_line else palette.selected
        return highlighted(row, self.searched.text, style) if self.searched.text else row

    def move(self, step: int) -> None:
        """Scroll by `step` lines."""
        self.scroll_lines(step)

    def scroll_lines(self, step: int) -> None:
        """Scroll by `step` lines, and stay at neither match nor cursor."""
        self.found_line = None
        self.top = max(min(self.top + step, len(self._texts) - self._body.height), 0)

    def wheel(self, direction: int, y: int) -> None:
        """Scroll the text."""
        self.scroll_lines(direction * WHEEL_LINES)
        self.redraw()

    def action_page(self, share: float) -> None:
        """Scroll by so many pages."""
        step = max(round(abs(share) * self.page_lines), 1)
        self.scroll_lines(step if share > 0 else -step)
        self.redraw()

    def action_edge(self, direction: int) -> None:
        """Scroll to the first line (-1) or to the last one (1)."""
        self.scroll_lines(direction * len(self._texts))
        self.redraw()

    def searchable(self) -> list[str]:
        """Return the text of each line."""
        return self._texts

    def position(self) -> int:
        """Return the line of the present match, else the first line shown."""
        return self.top if self.found_line is None else self.found_line

    def show_line(self, place: int) -> None:
        """Scroll to a line that was found; without a search, back to where it began."""
        self.found_line = place if self.searched.text else None
        self.top = self.top if self.searched.text else place

    def click(self, x: int, y: int) -> None:
        """Act on the line under the pointer; on the count of those below, go a page on."""
        place = y - self._body.y
        if place == self._body.height - 1 and self.top + self._body.height < len(self._texts):
            self.action_page(1)
        elif 0 <= place < min(self._body.height, len(self._texts) - self.top):
            self.click_line(self.top + place)

    def click_line(self, place: int) -> None:
        """Act on a click on a line of the text."""
