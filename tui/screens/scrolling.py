"""Base of text screens, which scroll; the last row counts the lines."""

from __future__ import annotations

from typing import ClassVar

from tui.core.canvas import Placed
from tui.core.layout import Rect
from tui.paint.rows import Row
from tui.screens.base import LlmtopScreen


class ScrollingScreen(LlmtopScreen):
    """Shows `lines()` from the first one scrolled to on. `keep_in_sight` may move that before each painting."""

    MARGIN: ClassVar[int] = 0
    """Columns left free on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.top = 0
        """The first line shown."""
        self._page = 1
        """Lines that one page goes on by."""

    def lines(self, width: int) -> list[Row]:
        """Paint all of the text, as many lines as it takes at that width."""
        raise NotImplementedError

    def keep_in_sight(self, room: int, count: int) -> None:
        """Move `top` so that what matters is among the `room` lines shown of `count`."""

    def parts(self, width: int, height: int) -> list[Placed]:
        """Header, the part of the text that is scrolled to, footer."""
        placed, body = self.header_and_footer(width, height)
        room = max(body.width - 2 * self.MARGIN, 0)
        self._page = max(body.height - 1, 1)  # the last line may say how much more there is
        rows = self.lines(room)
        self.keep_in_sight(body.height, len(rows))
        self.top = max(min(self.top, len(rows) - body.height), 0)
        shown = rows[self.top : self.top + body.height]
        below = len(rows) - self.top - body.height
        if below > 0 and shown:
            text = f"   {below + 1} more lines {self.cell_theme.glyphs.more}"
            shown[-1] = Row(room).add(text, self.cell_theme.palette.dim)
        shown += [Row(room) for _ in range(body.height - len(shown))]
        ended = [row.end(self.cell_theme.palette.text) for row in shown]
        return [*placed, Placed(Rect(self.MARGIN, body.y, room, body.height), ended)]

    def action_page(self, step: int) -> None:
        """Scroll by `step` pages."""
        self.action_scroll(step * self._page)

    def action_scroll(self, step: int) -> None:
        """Scroll by `step` lines."""
        self.top += step
        self.redraw()
