"""Which capture's report a screen shows, read in a thread, and which one is marked as baseline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from llmtop.errors import LlmtopError, UnusableInput

if TYPE_CHECKING:
    from llmtop.report.model import Report


class Loaded(Struct, frozen=True):
    """A report that was read, and where it was read from."""

    path: Path
    report: Report

    @property
    def name(self) -> str:
        """What the capture is called: its folder, or the file."""
        return self.path.parent.name if self.path.name == "report.json" else self.path.name


_baseline: list[Loaded] = []
"""The marked one, if any; it outlives the screens."""


def baseline() -> Loaded | None:
    """The report that others are held against."""
    return _baseline[0] if _baseline else None


def mark(loaded: Loaded | None) -> None:
    """Hold other reports against this one from now on; None: against none."""
    _baseline[:] = [] if loaded is None else [loaded]


def newest(parent: Path | None = None) -> Path:
    """The newest capture here that says something: its folder.

    Raises:
        UnusableInput: there is none.
    """
    from llmtop.capture.folder import PARENT

    folder = parent or Path(PARENT)
    found = sorted(folder.glob("*/report.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UnusableInput(
            f"there is no capture with a report in {folder.absolute()}: press c, or run llmtop capture there"
        )
    return found[-1].parent


def read(path: Path, done: Callable[[Loaded | LlmtopError], None]) -> None:
    """Read or make the report of a capture in a thread, which calls `done`: numpy and a big trace take a while."""

    def work() -> None:
        from llmtop.analysis.load_report import load_report

        written = path / "report.json"
        source = written if written.is_file() else path
        try:
            done(Loaded(source, load_report(source)))
        except LlmtopError as error:
            done(error)

    threading.Thread(target=work, name="llmtop-report", daemon=True).start()
