"""Reports of engines that write them in a form of their own."""

from __future__ import annotations

from pathlib import Path

from llmtop.errors import UnusableInput


class OpaqueReport(UnusableInput):
    """Report of an engine that writes text only: there are no figures to compare."""

    def __init__(self, folder: Path, text: str, data: str) -> None:
        """Store the report of a capture.

        Args:
            folder: of the capture.
            text: its report.md.
            data: its report.json.
        """
        super().__init__(
            f"{folder} has a report in its engine's own form, without figures that llmtop knows; "
            f"llmtop report {folder} shows it"
        )
        self.folder, self.text, self.data = folder, text, data
