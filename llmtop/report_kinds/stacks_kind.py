"""Python stacks: who works where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmtop.report_kinds.kind import Paint, ReadOptions, ReportDocument, ReportKind, refuse

if TYPE_CHECKING:
    from llmtop.stacks.model import StackReport


class StacksKind(ReportKind):
    """A tree of frames a thread."""

    name = "stacks"
    screen = "FlameScreen"

    def read(self, paths: Sequence[Path], options: ReadOptions) -> ReportDocument | None:
        """Read the stacks that paths lead to, as one report."""
        from llmtop.analysis.load_stacks import load_stacks

        stacks = load_stacks(paths, options.limits)
        if stacks is None:
            return None
        if options.html:
            reason = (
                "of which no page is made: drop the .speedscope.json beside them onto "
                "https://www.speedscope.app, or leave out --html"
            )
        else:
            reason = "which have no steps: leave out --steps"
        refuse(options, f"{paths[0]} holds Python stacks, {reason}", markdown=False)
        return _StacksDocument(stacks)


class _StacksDocument(ReportDocument):
    def __init__(self, report: StackReport) -> None:
        self._report = report

    def json(self) -> bytes:
        from llmtop.stacks.model import to_json

        return to_json(self._report)

    def text(self, width: int, paint: Paint | None, *, full: bool) -> str:
        from llmtop.stacks.text import brief, render

        return (render if full else brief)(self._report, width, paint)

    def markdown(self) -> str:
        from llmtop.stacks.text import markdown

        return markdown(self._report)
