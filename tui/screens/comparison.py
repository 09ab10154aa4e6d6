"""Two captures line by line: what moved by more than the noise."""

from __future__ import annotations

from llmtop.compare.compare import compare_reports
from llmtop.compare.document import comparison_document
from tui.core import keys
from tui.paint.document import document_rows
from tui.paint.rows import Row
from tui.screens.report_picker import Loaded
from tui.screens.scrolling import ScrollingScreen


class ComparisonScreen(ScrollingScreen):
    """Differences between a baseline and a later capture."""

    NAME = keys.COMPARISON
    CSS_PATH = "report.tcss"

    def __init__(self, before: Loaded, after: Loaded) -> None:
        super().__init__()
        self._command = f"llmtop compare {before.folder} {after.folder}"
        self.comparison = compare_reports(before.report, after.report)
        self._painted: tuple[object, list[Row]] | None = None

    def command(self) -> str:
        """Return the command that shows the same in a shell."""
        return self._command

    def lines(self, width: int) -> list[Row]:
        """Paint all of it; anew only for another width or look."""
        key = (width, self.cell_theme)
        if self._painted is None or self._painted[0] != key:
            blocks = comparison_document(self.comparison).blocks
            self._painted = key, document_rows(blocks, width, self.cell_theme)
        return list(self._painted[1])
