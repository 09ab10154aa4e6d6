"""Where the time of steps goes: traces, recordings of llmtop, and reports of either."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.format import encode_json, plain
from llmtop.report.opaque_report import OpaqueReport
from llmtop.report_kinds.kind import ReadOptions, ReportComparison, ReportDocument, ReportKind
from llmtop.report_kinds.text_kind import TextDocument
from llmtop.system.inputs import Limits

if TYPE_CHECKING:
    from llmtop.compare.compare import Comparison
    from llmtop.document.model import Document
    from llmtop.report.model import Report


class StepsKind(ReportKind):
    """Steps with a verdict and findings. It reads last, and refuses what no kind knows."""

    name = "steps"
    screen = "ReportScreen"

    def read(self, paths: Sequence[Path], options: ReadOptions) -> ReportDocument:
        """Analyse a trace or a recording, or read a report of one."""
        from llmtop.analysis.load_report import load_reports

        try:
            report = load_reports(paths, options.steps, options.limits, page=options.html)
        except OpaqueReport as own:
            if options.steps is not None:
                raise
            return TextDocument(own)
        return _StepsDocument(report, page=options.html)

    def compare(self, before: Path, after: Path, limits: Limits, fail_over: float | None) -> ReportComparison:
        """Compare two runs step by step; the last kind, so it refuses what no other knows.

        Args:
            before: a capture, a recording or a report.
            after: the other one.
            limits: how much memory and time the files may take.
            fail_over: percent of the step time that the user wants checked; None: not asked for.

        Raises:
            UnusableInput: one cannot be read, or `fail_over` is given and one has no whole steps.
        """
        from llmtop.analysis.load_report import load_report
        from llmtop.compare.compare import compare_reports

        found = compare_reports(load_report(before, limits=limits), load_report(after, limits=limits))
        if fail_over is not None and found.step is None:
            raise UnusableInput(
                "--fail-over compares step times, and one capture has no whole step: capture more steps"
            )
        return _StepsComparison(found)


class _StepsDocument(ReportDocument):
    def __init__(self, report: Report, *, page: bool) -> None:
        self._whole = self._report = report
        if page:
            from msgspec import structs

            self._report = structs.replace(report, whole_timeline=None)

    def json(self) -> bytes:
        from llmtop.report.model import to_json

        return to_json(self._report)

    def document(self, *, full: bool) -> Document:
        from llmtop.report.document import brief_document, report_document

        return (report_document if full else brief_document)(self._whole)


class _StepsComparison(ReportComparison):
    def __init__(self, found: Comparison) -> None:
        self._found = found

    def json(self) -> bytes:

        return encode_json(self._found)

    def document(self, *, full: bool) -> Document:
        from llmtop.compare.document import brief_comparison, comparison_document

        return (comparison_document if full else brief_comparison)(self._found)

    def is_slower_by(self, percent: float) -> bool:
        from llmtop.compare.compare import is_regression, is_undecided

        undecided = f"whether the step became slower by more than {plain(percent, 6)} % cannot be decided"
        if self._found.unlike:
            raise NotPossibleHere(
                f"{undecided}: the two captures differ ({'; '.join(self._found.unlike)}); compare captures of the "
                "same work on the same GPU"
            )
        if is_regression(self._found, percent):
            return True
        if is_undecided(self._found, percent):
            raise NotPossibleHere(
                f"{undecided}: two different profilers made the captures, and their overhead is unknown; "
                f"capture both "
                "with one engine (llmtop capture --engine)"
            )
        return False
