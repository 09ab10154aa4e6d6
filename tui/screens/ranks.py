"""All ranks, in a table that scrolls."""

from __future__ import annotations

from tui.core import keys
from tui.core.canvas import Placed
from tui.panes import rank_table
from tui.screens.base import LlmtopScreen


class RanksScreen(LlmtopScreen):
    """The table of ranks over the whole screen."""

    NAME = keys.RANKS
    CSS_PATH = "ranks.tcss"

    def __init__(self) -> None:
        super().__init__()
        self._top = 0

    def parts(self, width: int, height: int) -> list[Placed]:
        """The table from the first visible line on; its frame counts the lines."""
        placed, body = self.header_and_footer(width, height)
        room = max(body.height - 3, 1)
        self._top = max(min(self._top, len(rank_table.lines(self.view)) - room), 0)
        rows = rank_table.paint(self.view, *body[2:], self.cell_theme, framed=body.height >= 4, top=self._top)
        return [*placed, Placed(body, rows)]

    def action_scroll(self, step: int) -> None:
        """Scroll the table by `step` lines."""
        self._top += step
        self.redraw()
