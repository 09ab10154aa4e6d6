"""Interface of a kind of report. Each kind is one module here and one entry in `llmtop.report_kinds.kinds`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llmtop.system.inputs import DEFAULT, Limits

if TYPE_CHECKING:
    from llmtop.document.model import Document
    from llmtop.document.text import Paint


class ReadOptions(NamedTuple):
    """Options for reading a report, besides its text."""

    limits: Limits = DEFAULT
    steps: int | tuple[int, int] | None = None
    """Only the first so many whole steps, or those of a range."""
    html: bool = False
    markdown: bool = False


class Rendered(ABC):
    """Something that was read and can be printed."""

    @abstractmethod
    def json(self) -> bytes:
        """Return it as JSON."""

    @abstractmethod
    def document(self, *, full: bool) -> Document:
        """Return it as a document.

        Args:
            full: all of it; else what is to be read first.
        """

    def text(self, width: int, paint: Paint | None, *, full: bool) -> str:
        """Return it as lines for a terminal, with the last line's end.

        Args:
            width: columns of the terminal.
            paint: adds colours; None: no colours.
            full: all of it; else what is to be read first.
        """
        from llmtop.document.text import write_text

        return write_text(self.document(full=full), width, paint)

    def markdown(self) -> str:
        """Return it as Markdown."""
        from llmtop.document.markdown import write_markdown

        return write_markdown(self.document(full=True))

    def html(self) -> str:
        """Return it as one page."""
        from llmtop.document.html import write_html

        return write_html(self.document(full=True))


class ReportDocument(Rendered):
    """One report that was read."""


class ReportComparison(Rendered):
    """Differences between two reports."""

    def is_slower_by(self, percent: float) -> bool:
        """Return True if the median step became slower by more than that.

        Raises:
            NotPossibleHere: it cannot be decided.
        """
        raise NotImplementedError


class ReportKind(ABC):
    """One kind of report."""

    name: str
    """Name in `Engine.report_kind` and in the list of captures."""
    screen: str
    """Class of the screen that shows it (`tui.screens.registry`)."""
    command: str = "report"
    """The command that reads it."""

    @abstractmethod
    def read(self, paths: Sequence[Path], options: ReadOptions) -> ReportDocument | None:
        """Read what paths lead to; None where that is of another kind.

        Raises:
            UnusableInput: it cannot be read, kinds are mixed, or this kind does not support one of the options.
            NotPossibleHere: it needs a program that is not here.
        """

    def compare(
        self, before: Path, after: Path, limits: Limits, fail_over: float | None
    ) -> ReportComparison | None:
        """Compare two; None where neither is of this kind, or the kind cannot be compared.

        Args:
            before: a capture, a recording or a report.
            after: the other one.
            limits: how much of memory and time the files may ask for.
            fail_over: percent of the step time that the user wants checked; None: not asked for.

        Raises:
            UnusableInput: one cannot be read, kinds are mixed, or there is no step time to check.
        """
        return None
