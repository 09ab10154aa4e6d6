"""Two captures line by line: what moved by more than the noise."""

from __future__ import annotations

from rich.style import Style

from llmtop.compare.compare import compare_reports, render
from tui.core import keys
from tui.paint.rows import Row
from tui.screens.report_picker import Loaded
from tui.screens.scrolling import ScrollingScreen


class ComparisonScreen(ScrollingScreen):
    """What moved between a baseline and a later capture."""

    NAME = keys.COMPARISON
    CSS_PATH = "report.tcss"

    def __init__(self, before: Loaded, after: Loaded) -> None:
        super().__init__()
        self._command = f"llmtop compare {before.folder} {after.folder}"
        self.comparison = compare_reports(before.report, after.report)
        self._width = 0
        self._text: list[tuple[str, str]] = []

    def command(self) -> str:
        """What shows the same in a shell."""
        return self._command

    def lines(self, width: int) -> list[Row]:
        """Paint what moved, line by line."""
        if width != self._width:
            self._width, self._text = width, self._at(width - 2)
        palette = self.cell_theme.palette
        styles: dict[str, Style] = {"title": palette.strong, "dim": palette.dim, "warning": palette.warning}
        return [Row(width).add(f" {text}", styles.get(role, palette.text)) for text, role in self._text]

    def _at(self, width: int) -> list[tuple[str, str]]:
        """The lines and the role of each: a line of text has one throughout, and it comes out of the renderer
        beside the text."""
        found = []
        for line in render(self.comparison, lambda text, role: f"{role}\x00{text}", width).splitlines():
            role, zero, text = line.partition("\x00")
            found.append((text, role) if zero else (line, "info"))
        return found
