"""Report on kernels that ncu measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmtop.format import encode_json
from llmtop.report_kinds.kind import ReadOptions, ReportDocument, ReportKind

if TYPE_CHECKING:
    from llmtop.document.model import Document
    from llmtop.ncu.judge import NcuReport


class KernelsKind(ReportKind):
    """Kernels by what limits each."""

    name = "kernels"
    screen = "KernelsScreen"
    command = "kernel"

    def read(self, paths: Sequence[Path], options: ReadOptions) -> ReportDocument | None:
        """Read .ncu-rep files."""
        from llmtop.ncu.judge import ncu_report
        from llmtop.ncu.read import SUFFIX, read

        if any(path.suffix != SUFFIX for path in paths):
            return None
        return KernelsDocument([ncu_report(path, *read(path)) for path in paths])


class KernelsDocument(ReportDocument):
    """One .ncu-rep or several, judged."""

    def __init__(self, reports: Sequence[NcuReport]) -> None:
        """Hold the reports in the order in which they are printed."""
        self._reports = reports

    def json(self) -> bytes:
        """Return the report; several as a list of them."""
        from llmtop.ncu.judge import NcuReports

        several = NcuReports(reports=list(self._reports))
        return encode_json(self._reports[0] if len(self._reports) == 1 else several)

    def document(self, *, full: bool) -> Document:
        """Return all of it; there is no shorter form."""
        from llmtop.ncu.document import kernels_document

        return kernels_document(self._reports)
