"""Runs on disk, as `run:NAME`; two of them can be compared."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.format import encode_json, plain, printable
from llmtop.report_kinds.kind import ReadOptions, ReportComparison, ReportDocument, ReportKind
from llmtop.system.inputs import Limits

if TYPE_CHECKING:
    from llmtop.compare.model import Comparison
    from llmtop.document.model import Document
    from llmtop.runs.store import Run

SCHEME = "run:"


class RunKind(ReportKind):
    """Runs that trainings have left on this node."""

    name = "run"
    screen = "ReportScreen"

    def read(self, paths: Sequence[Path], options: ReadOptions) -> ReportDocument | None:
        """Return None: `llmtop runs show` prints a run.

        Raises:
            UnusableInput: a path is the name of a run.
        """
        for path in paths:
            if _is_run(path):
                raise UnusableInput(
                    f"{printable(str(path))} is a run, not a capture. Show it: "
                    f"llmtop runs show {printable(_run_name(path))}".rstrip()
                )
        return None

    def compare(
        self, before: Path, after: Path, limits: Limits, fail_over: float | None
    ) -> ReportComparison | None:
        """Compare two runs by step and by time.

        Args:
            before: `run:` with an id, the beginning of one, a name, or -1, -2, ... for the newest ones.
            after: the other one.
            limits: not used: files of runs are read up to a fixed size.
            fail_over: percent of the step time that the user wants checked; None: not asked for.

        Raises:
            UnusableInput: there is no such run, only one side is a run, both are the same, or no step time is
                known.
            NotPossibleHere: the folder of runs cannot be read.
        """
        are_runs = [_is_run(path) for path in (before, after)]
        if not any(are_runs):
            return None
        if not all(are_runs):
            other = printable(str(after if are_runs[0] else before))
            raise UnusableInput(f"{other} is no run: a run can be compared with a run only (run:ID, llmtop runs)")
        from llmtop.compare.run_comparison import compare_runs

        runs = [_find(path) for path in (before, after)]
        if (runs[0].folder, runs[0].id) == (runs[1].folder, runs[1].id):
            raise UnusableInput(f"Both names are of run {runs[0].id}. Name two runs of the list: llmtop runs")
        found = compare_runs(*runs)
        if fail_over is not None and found.step is None:
            raise UnusableInput(
                "--fail-over compares step times, and one of the two runs has none: remove --fail-over"
            )
        return _RunComparison(found)


class _RunComparison(ReportComparison):
    def __init__(self, found: Comparison) -> None:
        self._found = found

    def json(self) -> bytes:
        return encode_json(self._found)

    def document(self, *, full: bool) -> Document:
        from llmtop.compare.run_document import run_document

        assert self._found.runs is not None
        return run_document(self._found, self._found.runs, full=full)

    def is_slower_by(self, percent: float) -> bool:
        from llmtop.compare.compare import is_regression

        if self._found.unlike:
            raise NotPossibleHere(
                f"whether the step became slower by more than {plain(percent, 6)} % cannot be decided: the runs "
                f"differ ({'; '.join(self._found.unlike)}); compare runs of the same work on the same GPUs"
            )
        return is_regression(self._found, percent)


def _is_run(path: Path) -> bool:
    """A file of such a name is a file."""
    return str(path).startswith(SCHEME) and not os.path.lexists(path)


def _run_name(path: Path) -> str:
    return str(path)[len(SCHEME) :]


def _find(path: Path) -> Run:
    from llmtop.runs import folder, store

    runs = folder.runs_folder().path
    try:
        return store.find_run(runs, _run_name(path) or None)
    except OSError as error:
        raise NotPossibleHere(
            f"{error.filename or runs} cannot be read: {error.strerror}; check its permissions"
        ) from None
