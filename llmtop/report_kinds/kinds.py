"""All kinds of report. A new kind is one module of this folder and one line of `KINDS`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmtop.errors import UnusableInput
from llmtop.report_kinds.kernels_kind import KernelsKind
from llmtop.report_kinds.kind import ReadOptions, ReportComparison, ReportDocument, ReportKind
from llmtop.report_kinds.memory_kind import MemoryKind
from llmtop.report_kinds.run_kind import RunKind
from llmtop.report_kinds.stacks_kind import StacksKind
from llmtop.report_kinds.steps_kind import StepsKind
from llmtop.report_kinds.text_kind import TextKind
from llmtop.system.inputs import Limits

KINDS: tuple[ReportKind, ...] = (RunKind(), MemoryKind(), StacksKind(), KernelsKind(), TextKind(), StepsKind())
"""Kinds in the order in which they examine a path. `StepsKind` refuses a path that none of them knows."""
_BY_NAME = {kind.name: kind for kind in KINDS}


def kind_named(name: str) -> ReportKind:
    """Return the kind with this name.

    Raises:
        KeyError: there is none.
    """
    return _BY_NAME[name]


def read_document(paths: Sequence[Path], options: ReadOptions, command: str = "report") -> ReportDocument:
    """Read what paths lead to, as the first kind that knows it.

    Args:
        paths: files, or folders of captures.
        options: what the user asks for.
        command: which of llmtop's commands reads it.

    Raises:
        UnusableInput: as `ReportKind.read`; or no kind that this command reads knows it.
        NotPossibleHere: as `ReportKind.read`.
    """
    for kind in KINDS:
        document = kind.read(paths, options) if kind.command == command else None
        if document is not None:
            return document
    raise UnusableInput(f"{paths[0]} is no file that llmtop {command} can read")


def compare_documents(before: Path, after: Path, limits: Limits, fail_over: float | None) -> ReportComparison:
    """Compare two documents of one kind.

    Args:
        before: a capture, a recording or a report.
        after: the other one.
        limits: how much memory and time the files may take.
        fail_over: percent of the step time that the user wants checked; None: not asked for.

    Returns:
        The comparison by the first kind that knows the two.

    Raises:
        UnusableInput: one cannot be read, kinds are mixed or cannot be compared, or there is no step time to
            check.
    """
    for kind in KINDS:
        found = kind.compare(before, after, limits, fail_over)
        if found is not None:
            return found
    raise UnusableInput(f"{before} and {after} cannot be compared: reports of this kind have no comparison")
