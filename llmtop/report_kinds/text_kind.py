"""Reports that an engine writes in a form of its own: text to be read, with no figure to compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmtop.document.model import Document, Paragraph
from llmtop.format import printable_lines
from llmtop.report.opaque_report import OpaqueReport
from llmtop.report_kinds.kind import ReadOptions, ReportDocument, ReportKind


class TextKind(ReportKind):
    """Text as its engine wrote it."""

    name = "text"
    screen = "ReportScreen"

    def read(self, paths: Sequence[Path], options: ReadOptions) -> ReportDocument | None:
        """Return None: that a capture has nothing but text is known only after the search for its trace.

        `StepsKind` does this, and returns a `TextDocument` where there is none.
        """
        return None


class TextDocument(ReportDocument):
    """Such a report, as it was written."""

    def __init__(self, own: OpaqueReport) -> None:
        """Hold what `llmtop.analysis.load_report` found."""
        self._own = own

    def json(self) -> bytes:
        """Return its report.json."""
        return self._own.data.encode()

    def document(self, *, full: bool) -> Document:
        """Return the lines of its report.md."""
        return Document(title=self._own.folder.name, blocks=list(map(Paragraph, self._own.text.splitlines())))

    def markdown(self) -> str:
        """Return its report.md."""
        return printable_lines("\n".join(self._own.text.splitlines())) + "\n"
