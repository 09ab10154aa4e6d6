"""Reports of captures, read in threads, and which capture is marked as the baseline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from llmtop.errors import LlmtopError
from llmtop.naming import file_names

if TYPE_CHECKING:
    from llmtop.report.model import Report


class Loaded(Struct, frozen=True):
    """A report that was read, and where it was read from."""

    path: Path
    report: Report

    @property
    def folder(self) -> Path:
        """The capture's folder, or the file that was read."""
        return self.path.parent if self.path.name == file_names.REPORT else self.path

    @property
    def name(self) -> str:
        """Return the name of the capture: its folder, or the file."""
        return self.folder.name


_baseline: list[Loaded] = []
"""The marked one, if it has been read; it outlives the screens."""


def baseline() -> Loaded | None:
    """Return the report that others are held against."""
    return _baseline[0] if _baseline else None


def mark(loaded: Loaded | None) -> None:
    """Hold other reports against this one from now on, for as long as this program runs; None: against none."""
    _baseline[:] = [] if loaded is None else [loaded]


def mark_path(parent: Path, capture: Path | None) -> None:
    """Mark a capture of a folder as its baseline, until another one is; None: none.

    Raises:
        NotPossibleHere: the folder cannot be written.
    """
    from llmtop.capture import capture_list as capture_store

    capture_store.mark_baseline(parent, capture)
    loaded = baseline()
    if loaded is not None and loaded.folder != capture:
        mark(None)  # the other one is read when a report is next held against it


def load(path: Path) -> Loaded:
    """Read or make the report of a capture; numpy and a big trace take a while.

    Raises:
        LlmtopError: it cannot be read.
    """
    from llmtop.analysis.load_report import load_report

    written = path / file_names.REPORT
    source = written if written.is_file() else path
    return Loaded(source, load_report(source))


def read_both(before: Path, after: Path) -> tuple[Loaded, Loaded] | LlmtopError:
    """Two reports to compare, or the sentence why one of them cannot be read."""
    try:
        return load(before), load(after)
    except LlmtopError as error:
        return error


def read(path: Path, done: Callable[[Loaded | LlmtopError], None]) -> None:
    """Read the report of a capture in a thread, which calls `done`; and the baseline of its folder, if any."""

    def work() -> None:
        try:
            _recall(path.parent)
            done(load(path))
        except LlmtopError as error:
            done(error)

    threading.Thread(target=work, name="llmtop-report", daemon=True).start()


def _recall(parent: Path) -> None:
    """Read the baseline that was marked in an earlier run of the program."""
    from llmtop.capture import capture_list as capture_store

    marked = capture_store.baseline(parent)
    if marked is None or baseline() is not None:
        return
    try:
        mark(load(marked))
    except LlmtopError:
        return  # its own report gives the reason; this one is shown anyway
