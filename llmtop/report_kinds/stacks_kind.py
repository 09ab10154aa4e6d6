"""Python stacks: who works where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmtop.errors import UnusableInput
from llmtop.report_kinds.kind import ReadOptions, ReportDocument, ReportKind

if TYPE_CHECKING:
    from llmtop.document.model import Document
    from llmtop.stacks.model import StackReport


class StacksKind(ReportKind):
    """Kind of report on stacks: a tree of frames per thread."""

    name = "stacks"
    screen = "FlameScreen"

    def read(self, paths: Sequence[Path], options: ReadOptions) -> ReportDocument | None:
        """Read the stacks that paths lead to, as one report."""
        from llmtop.analysis.load_stacks import load_stacks

        stacks = load_stacks(paths, options.limits)
        if stacks is None:
            return None
        if options.steps is not None:
            raise UnusableInput(f"{paths[0]} holds Python stacks, which have no steps: remove --steps")
        return _StacksDocument(stacks)


class _StacksDocument(ReportDocument):
    def __init__(self, report: StackReport) -> None:
        self._report = report

    def json(self) -> bytes:
        from llmtop.stacks.model import to_json

        return to_json(self._report)

    def document(self, *, full: bool) -> Document:
        from llmtop.stacks.document import brief_stacks, stacks_document

        return (stacks_document if full else brief_stacks)(self._report)
