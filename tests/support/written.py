"""A report in each form in which a user gets it."""

from __future__ import annotations

from llmtop.compare.document import brief_comparison, comparison_document
from llmtop.compare.model import Comparison
from llmtop.document.html import write_html
from llmtop.document.markdown import write_markdown
from llmtop.document.text import Paint, write_text
from llmtop.report.document import brief_document, report_document
from llmtop.report.model import Report
from llmtop.stacks.document import brief_stacks, stacks_document
from llmtop.stacks.model import StackReport


def text(report: Report, width: int = 100, style: Paint | None = None) -> str:
    """Return all of it as a terminal gets it."""
    return write_text(report_document(report), width, style)


def brief(report: Report, width: int = 100, style: Paint | None = None) -> str:
    """Return what is to be read first."""
    return write_text(brief_document(report), width, style)


def markdown(report: Report) -> str:
    """Return it as Markdown."""
    return write_markdown(report_document(report))


def html(report: Report) -> str:
    """Return it as a page."""
    return write_html(report_document(report))


def comparison(found: Comparison, width: int = 140) -> str:
    """Return all of a comparison as a terminal gets it."""
    return write_text(comparison_document(found), width)


def short_comparison(found: Comparison, width: int = 100) -> str:
    """Return what is to be read first of a comparison."""
    return write_text(brief_comparison(found), width)


def stacks(report: StackReport) -> str:
    """Return all of a report on stacks as text and as Markdown."""
    document = stacks_document(report)
    return write_text(document, 100) + write_markdown(document)


def short_stacks(report: StackReport, width: int = 100) -> str:
    """Return what is to be read first of a report on stacks."""
    return write_text(brief_stacks(report), width)
