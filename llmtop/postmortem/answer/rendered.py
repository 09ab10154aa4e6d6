"""The answer in every form that a command prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmtop.postmortem.model import PostmortemReport, postmortem_json
from llmtop.report_kinds.kind import Rendered

if TYPE_CHECKING:
    from llmtop.document.model import Document
    from llmtop.postmortem.last_minutes import TailReport


class PostmortemDocument(Rendered):
    """A report that can be printed."""

    def __init__(self, report: PostmortemReport) -> None:
        self._report = report

    def json(self) -> bytes:
        """Return it as JSON."""
        return postmortem_json(self._report)

    def document(self, *, full: bool) -> Document:
        """Return it as a document.

        Args:
            full: all of it; else what is to be read first.
        """
        from llmtop.postmortem.answer.document import postmortem_document

        return postmortem_document(self._report, full=full)


class TailDocument(Rendered):
    """The last minutes of a run, which can be printed."""

    def __init__(self, report: TailReport, *, slowest: bool) -> None:
        self._report = report
        self._slowest = slowest

    def json(self) -> bytes:
        """Return it as JSON."""
        from llmtop.postmortem.last_minutes import tail_json

        return tail_json(self._report)

    def document(self, *, full: bool) -> Document:
        """Return it as a document.

        Args:
            full: the same either way: it is short.
        """
        from llmtop.postmortem.answer.tail_document import tail_document

        return tail_document(self._report, slowest=self._slowest)
