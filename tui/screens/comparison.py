"""Two captures line by line: what moved by more than the noise."""

from __future__ import annotations

from rich.style import Style

from llmtop.report.compare import compare_reports, render
from tui import keys
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
        # A line of text has one role throughout; it comes out of the renderer beside the text.
        self._text: list[tuple[str, str]] = []
        for line in render(self.comparison, lambda text, role: f"{role}\x00{text}").splitlines():
            role, zero, text = line.partition("\x00")
            self._text.append((text, role) if zero else (line, "info"))

    def command(self) -> str:
        """What shows the same in a shell."""
        return self._command

    def lines(self, width: int) -> list[Row]:
        """Paint what moved, line by line."""
        palette = self.look.palette
        styles: dict[str, Style] = {"title": palette.strong, "dim": palette.dim}
        return [Row(width).add(f" {text}", styles.get(role, palette.text)) for text, role in self._text]
