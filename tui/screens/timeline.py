"""One step of a capture, drawn: the GPU, why it lay idle, what the host called, the phases. Zooms and pans."""

from __future__ import annotations

from tui.core import keys
from tui.core.canvas import Placed
from tui.core.layout import Rect
from tui.paint.rows import Row
from tui.panes import timeline
from tui.panes.timeline import ShownStretch
from tui.screens.base import LlmtopScreen
from tui.screens.report_picker import Loaded


class TimelineScreen(LlmtopScreen):
    """The step of median length of a capture, drawn over time."""

    NAME = keys.TIMELINE
    CSS_PATH = "report.tcss"

    def __init__(self, loaded: Loaded) -> None:
        super().__init__()
        assert loaded.report.timeline is not None
        self._capture_name = loaded.name
        self.timeline = loaded.report.timeline
        self.window = ShownStretch(0.0, self.timeline.seconds)
        self._top = 0

    def parts(self, width: int, height: int) -> list[Placed]:
        """Return a title, then the rows of the window."""
        placed, body = self.header_and_footer(width, height)
        theme = self.cell_theme
        step = "the beginning" if self.timeline.step is None else f"whole step {self.timeline.step}"
        title = Row(width).add(" Timeline ", theme.palette.strong)
        title.add(f"{self._capture_name} ", theme.palette.text)
        title.add(f"{theme.glyphs.dot} {step}, of median length", theme.palette.dim)
        rows = [title, Row(width), *timeline.paint(self.timeline, self.window, body, theme)]
        self.page_lines = max(body.height - 1, 1)
        self._top = max(min(self._top, len(rows) - body.height), 0)
        below = len(rows) - self._top - body.height
        rows = rows[self._top : self._top + body.height]
        if below > 0 and rows:
            rows[-1] = Row(width).add(f"   {below + 1} more lines {theme.glyphs.more}", theme.palette.dim)
        rows += [Row(width) for _ in range(body.height - len(rows))]
        ended = [row.end(theme.palette.text) for row in rows]
        return [*placed, Placed(Rect(0, body.y, width, body.height), ended)]

    def move(self, step: int) -> None:
        """Scroll by `step` lines, where there are more than fit."""
        self._top += step

    def wheel(self, direction: int, y: int) -> None:
        """Look closer, or at more of the step."""
        self.action_zoom(0.5 if direction < 0 else 2)

    def action_pan(self, share: float) -> None:
        """Move what is shown by a share of its length."""
        self.window = self.window.moved(share, self.timeline.seconds)
        self.redraw()

    def action_zoom(self, factor: float) -> None:
        """Show more or less of the step."""
        self.window = self.window.zoomed(factor, self.timeline.seconds)
        self.redraw()

    def action_whole(self) -> None:
        """Show the whole step."""
        self.window = ShownStretch(0.0, self.timeline.seconds)
        self.redraw()
