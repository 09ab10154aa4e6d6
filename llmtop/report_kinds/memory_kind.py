"""Snapshots of PyTorch's allocator: who holds GPU memory, and what grew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmtop.errors import UnusableInput
from llmtop.report_kinds.kind import ReadOptions, ReportComparison, ReportDocument, ReportKind
from llmtop.system.inputs import Limits

if TYPE_CHECKING:
    from llmtop.document.model import Document
    from llmtop.memory.model import LeakReport, MemoryReport


class MemoryKind(ReportKind):
    """Memory by who holds it."""

    name = "memory"
    screen = "MemoryScreen"

    def read(self, paths: Sequence[Path], options: ReadOptions) -> ReportDocument | None:
        """Analyse the snapshots that paths lead to."""
        from llmtop.memory.files import memory_files

        files = memory_files(paths)
        if files is None:
            return None
        if options.steps is not None:
            raise UnusableInput("a memory snapshot has no steps to choose from: remove --steps")
        from llmtop.memory.analyze import analyze_memory

        return _MemoryDocument(analyze_memory(files, options.limits))

    def compare(
        self, before: Path, after: Path, limits: Limits, fail_over: float | None
    ) -> ReportComparison | None:
        """Find what grew from one memory snapshot to the other.

        Args:
            before: a snapshot.
            after: a later one of the same program.
            limits: how much memory and time the files may take.
            fail_over: must be None: a memory snapshot has no step time.

        Returns:
            None where neither is a memory snapshot.

        Raises:
            UnusableInput: only one is a memory snapshot, one is damaged, or `fail_over` is given.
        """
        from llmtop.memory.files import memory_files

        first, second = memory_files([before]), memory_files([after])
        if first is None and second is None:
            return None
        if fail_over is not None:
            raise UnusableInput(
                "--fail-over compares step times, and a memory snapshot has none: remove --fail-over"
            )
        if first is None or second is None:
            raise UnusableInput(
                "a memory snapshot can only be compared with another memory snapshot of the same program"
            )
        from llmtop.memory.leaks import compare_memory

        return _MemoryGrowth(compare_memory(first, second, limits))


class _MemoryDocument(ReportDocument):
    def __init__(self, report: MemoryReport) -> None:
        self._report = report

    def json(self) -> bytes:
        from llmtop.memory.model import to_json

        return to_json(self._report)

    def document(self, *, full: bool) -> Document:
        from llmtop.memory.document import brief_memory, memory_document

        return (memory_document if full else brief_memory)(self._report)


class _MemoryGrowth(ReportComparison):
    def __init__(self, found: LeakReport) -> None:
        self._found = found

    def json(self) -> bytes:
        from llmtop.memory.model import to_json

        return to_json(self._found)

    def document(self, *, full: bool) -> Document:
        from llmtop.memory.document import brief_growth, growth_document

        return (growth_document if full else brief_growth)(self._found)
