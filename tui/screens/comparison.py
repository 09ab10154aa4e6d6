"""Two captures line by line: what moved by more than the noise."""

from __future__ import annotations

from rich.style import Style

from llmtop.diagnosis.compare import compare_reports, render
from tui import keys
from tui.layout import Rect
from tui.reports import Loaded
from tui.rows import Row
from tui.screens.base import LlmtopScreen
from tui.widgets.board import Placed


class ComparisonScreen(LlmtopScreen):
    """A baseline and a later capture; scrolls."""

    NAME = keys.COMPARISON
    CSS_PATH = "report.tcss"

    def __init__(self, before: Loaded, after: Loaded) -> None:
        super().__init__()
        self.comparison = compare_reports(before.report, after.report)
        # A line of text has one role throughout; it comes out of the renderer beside the text.
        self._lines: list[tuple[str, str]] = []
        for line in render(self.comparison, lambda text, role: f"{role}\x00{text}").splitlines():
            role, zero, text = line.partition("\x00")
            self._lines.append((text, role) if zero else (line, "info"))
        self._top = 0

    def parts(self, width: int, height: int) -> list[Placed]:
        """The lines from the first shown on."""
        placed, body = self.around(width, height)
        palette = self.look.palette
        styles: dict[str, Style] = {"title": palette.strong, "dim": palette.dim}
        rows = [Row(width).add(f" {text}", styles.get(role, palette.text)) for text, role in self._lines]
        self._top = max(min(self._top, len(rows) - body.height), 0)
        shown = rows[self._top : self._top + body.height]
        below = len(rows) - self._top - body.height
        if below > 0 and shown:
            shown[-1] = Row(width).add(f" {below + 1} more lines {self.look.glyphs.more}", palette.dim)
        shown += [Row(width) for _ in range(body.height - len(shown))]
        return [*placed, Placed(Rect(0, body.y, width, body.height), [row.end(palette.text) for row in shown])]

    def action_scroll(self, step: int) -> None:
        """Move the text."""
        self._top += step
        self.redraw()
