"""Report on a capture: findings first, enter shows the evidence; keys lead to the timeline and the comparison."""

from __future__ import annotations

from pathlib import Path

from textual.message import Message

from llmtop.compare.compare import Comparison, compare_reports
from llmtop.document.model import Role
from llmtop.errors import LlmtopError
from llmtop.report.opaque_report import OpaqueReport
from tui.core import keys
from tui.paint.document import paragraph_rows
from tui.paint.rows import Row
from tui.panes import report as report_pane
from tui.screens import report_picker
from tui.screens.report_picker import Loaded
from tui.screens.scrolling import ScrollingScreen


class Read(Message):
    """The report is there, or a sentence why not."""

    def __init__(self, result: Loaded | LlmtopError) -> None:
        super().__init__()
        self.result = result


class ReportScreen(ScrollingScreen):
    """The report of one capture, with the findings to choose from."""

    NAME = keys.REPORT
    CSS_PATH = "report.tcss"

    def __init__(self, path: Path) -> None:
        """Show the report of a capture.

        Args:
            path: a capture's folder or file.
        """
        super().__init__()
        self.path = path
        self._loaded: Loaded | None = None
        self._compared: tuple[Loaded, Comparison] | None = None
        """Baseline and comparison that were computed last."""
        self._refusal = ""
        self._text: list[str] = []
        """The lines of a report in its engine's own form."""
        self._chosen = 0
        self._unfolded: set[int] = set()
        self._places: list[int] = []
        """The line at which each finding begins."""
        self._findings_end = 0
        """The line after the last finding."""
        self._follow = True

    def on_mount(self) -> None:
        """Read the report in a thread."""
        report_picker.read(self.path, self._post)

    def _post(self, result: Loaded | LlmtopError) -> None:
        """Called in the thread that reads: hand over what came of it."""
        self.post_message(Read(result))

    def on_read(self, message: Read) -> None:
        """Show the report, or the sentence why there is none."""
        if isinstance(message.result, LlmtopError):
            self._refusal = str(message.result)
            if isinstance(message.result, OpaqueReport):
                self._text = message.result.text.splitlines()
        else:
            self._loaded = message.result
        self.redraw()

    def keep_in_sight(self, room: int, count: int) -> None:
        """Scroll to the chosen finding, unless the person has scrolled on."""
        places = self._places
        if self._follow and places:
            end = places[self._chosen + 1] if self._chosen + 1 < len(places) else places[self._chosen] + 1
            self.top = max(min(self.top, places[self._chosen]), end - room)

    def lines(self, width: int) -> list[Row]:
        """Return the verdict, the findings, the tables."""
        if self._text:
            rows = [Row(width)]
            for line in self._text:
                rows += paragraph_rows(line, "text", width, self.cell_theme)
            return rows
        if self._loaded is None:
            said = self._refusal or f"reading {self.path} …"
            role: Role = "warning" if self._refusal else "dim"
            return [Row(width), *paragraph_rows(said, role, width, self.cell_theme)]
        report = self._loaded.report
        against, comparison = self._comparison()
        rows = report_pane.verdict(report, self._loaded.name, against, comparison, width, self.cell_theme)
        found, places = report_pane.findings(report, self._chosen, self._unfolded, width, self.cell_theme)
        self._places = [place + len(rows) for place in places]
        self._findings_end = len(rows) + len(found)
        return [*rows, *found, *report_pane.details(report, width, self.cell_theme)]

    def _comparison(self) -> tuple[str, Comparison | None]:
        before = report_picker.baseline()
        if before is None or self._loaded is None:
            return "", None
        if before.path == self._loaded.path:
            return before.name, None
        if self._compared is None or self._compared[0] is not before:
            # Once, not at each painting: it goes through all kernels of both.
            self._compared = before, compare_reports(before.report, self._loaded.report)
        return before.name, self._compared[1]

    def move(self, step: int) -> None:
        """Choose the finding that is `step` places further; a report without findings scrolls."""
        self.found_line = None
        if self._loaded is not None and self._loaded.report.findings:
            self._chosen = min(max(self._chosen + step, 0), len(self._loaded.report.findings) - 1)
            self._follow = True
        else:
            self.scroll_lines(step)

    def action_go(self) -> None:
        """Show the evidence and the advice of the chosen finding, or fold them away."""
        self._unfolded ^= {self._chosen}
        self._follow = True
        self.redraw()

    def command(self) -> str:
        """Return the next command of the chosen finding; else the command that shows this report in a shell."""
        findings = () if self._loaded is None else self._loaded.report.findings
        following = findings[self._chosen].next if self._chosen < len(findings) else ""
        return following or f"llmtop report {self.path}"

    def scroll_lines(self, step: int) -> None:
        """Scroll by `step` lines, and follow the chosen finding no longer."""
        self._follow = False
        super().scroll_lines(step)

    def click_line(self, place: int) -> None:
        """Choose the finding under the pointer; on the chosen one, show its evidence or hide it."""
        ends = [*self._places[1:], self._findings_end]
        for number, (start, end) in enumerate(zip(self._places, ends, strict=True)):
            if start <= place < end:
                if number == self._chosen:
                    self.action_go()
                self._chosen, self._follow = number, True
                self.redraw()

    def action_baseline(self) -> None:
        """Mark this capture as baseline; at the second press, none."""
        before = report_picker.baseline()
        if self._loaded is not None:
            same = before is not None and before.path == self._loaded.path
            self._mark(None if same else self._loaded)
            self.redraw()

    def _mark(self, loaded: Loaded | None) -> None:
        folder = self.path if self.path.is_dir() else None
        try:
            if folder is not None:
                report_picker.mark_path(folder.parent, None if loaded is None else folder)
        except LlmtopError as error:
            self.notify(str(error), severity="warning", markup=False)
        report_picker.mark(loaded)

    def action_timeline(self) -> None:
        """Show one step of the capture, drawn."""
        from tui.screens.timeline import TimelineScreen

        if self._loaded is None:
            return
        if self._loaded.report.timeline is None:
            self.notify("This capture has no GPU activity, so no step can be drawn.", severity="warning")
            return
        self.app.push_screen(TimelineScreen(self._loaded))

    def action_compare(self) -> None:
        """Show what moved from the baseline to this report."""
        from tui.screens.comparison import ComparisonScreen

        before = report_picker.baseline()
        if before is None or self._loaded is None or before.path == self._loaded.path:
            self.notify("Mark another capture as the baseline first: b on its report, or in the list.")
            return
        self.app.push_screen(ComparisonScreen(before, self._loaded))
