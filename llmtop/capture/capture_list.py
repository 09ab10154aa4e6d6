"""The captures of a folder as a list: verdict, size on disk, and the baseline."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from llmtop import config
from llmtop.capture import engines
from llmtop.capture.base import folder
from llmtop.capture.base.folder import INFO, Info
from llmtop.capture.nsys import orphans
from llmtop.capture.take import copy_command, open_command
from llmtop.errors import LlmtopError, UnusableInput
from llmtop.naming import file_names
from llmtop.system.inputs import Limits, read_input

REPORT = file_names.REPORT
_MARK = "baseline"
"""The file beside the captures that names the baseline: it outlives the program, and goes when its folder does."""
_RAW = file_names.FOLDED_STACKS
"""Stacks as they were sampled: what a viewer shows lies beside them."""
_NO_TRACE = frozenset({INFO, REPORT, file_names.REPORT_TEXT, file_names.ENVIRONMENT})


class _Steps(msgspec.Struct):
    seconds_p50: float | None = None


class _ListedReport(msgspec.Struct):
    """Part of a report that the list shows; all else in it is skipped."""

    engine: str = ""
    verdict: str = ""
    steps: _Steps | int | None = None
    """Steps; for memory only their number."""


_decoder = msgspec.json.Decoder(_ListedReport)


class StoredCapture(msgspec.Struct, frozen=True, kw_only=True):
    """One capture of the list."""

    path: Path
    taken_at: float
    """Unix time."""
    engine: str
    bytes: int
    info: Info | None = None
    """None where capture.json is missing or damaged: then only the report is known."""
    state: str = "done"
    verdict: str = ""
    """Empty where it has none: stacks, memory, no report."""
    step_seconds: float | None = None
    """The median step in it."""
    has_report: bool = False

    @property
    def name(self) -> str:
        """Its folder's name."""
        return self.path.name

    @property
    def target_text(self) -> str:
        """Which ranks, else which pids."""
        if self.info is None:
            return ""
        ranks = [str(rank) for rank in self.info.ranks if rank is not None]
        return f"rank {','.join(ranks)}" if ranks else f"pid {','.join(map(str, self.info.pids))}"

    @property
    def report_kind(self) -> str:
        """The kind of its report; of an engine that this version does not know, steps."""
        known = engines.ENGINES.get(self.engine)
        return "steps" if known is None else known.report_kind

    @property
    def copy_command(self) -> str:
        """The command that brings it to another machine, to be called there."""
        return copy_command(self.path)

    @property
    def open_command(self) -> str:
        """Which program shows it, once it is copied."""
        traces = [one.name for one in self.info.files if one.name not in _NO_TRACE] if self.info else []
        traces.sort(key=lambda name: name.endswith(_RAW))
        try:
            engine = engines.engine_named(self.engine)
        except LlmtopError:  # of a newer version
            return f"llmtop report {self.path.name}"
        if not traces or not engine.open_with:
            return f"llmtop report {self.path.name}"
        shown = [engine.viewer_file(self.path / name) for name in traces]
        there = next((path for path in shown if path.is_file()), None)
        if there is None and any((self.path / name).is_file() for name in traces):
            return f"llmtop report {self.path.name}"  # what the program would open is not among them
        return open_command(there or shown[0], engine.open_with)


def list_captures(parent: Path) -> list[StoredCapture]:
    """Return the captures of a folder, the newest first: each subfolder with a report or a capture.json."""
    try:
        paths = [path for path in parent.iterdir() if path.is_dir()]
    except OSError:
        return []
    found = [capture for path in paths if (capture := _read_capture(path)) is not None]
    return sorted(found, key=lambda one: (-one.taken_at, one.name))


def _read_capture(path: Path) -> StoredCapture | None:
    try:
        info: Info | None = folder.read_info(path)
    except UnusableInput:
        info = None
    written = _read_report_head(path / REPORT)
    if info is None and written is None:
        return None
    try:
        taken_at = info.started_at if info else (path / REPORT).stat().st_mtime
    except OSError:  # removed a moment ago
        return None
    step = written.steps.seconds_p50 if written and isinstance(written.steps, _Steps) else None
    if step is None and info is not None:
        step = info.step_seconds.before_p50
    return StoredCapture(
        path=path,
        taken_at=taken_at,
        engine=info.engine if info else (written.engine if written else ""),
        bytes=folder.total_bytes(path),
        info=info,
        state=orphans.capture_state(path, info) if info else "done",
        verdict=written.verdict if written else "",
        step_seconds=step,
        has_report=written is not None,
    )


def _read_report_head(path: Path) -> _ListedReport | None:
    if not path.is_file():
        return None
    try:
        return _decoder.decode(read_input(path, Limits()))
    except (UnusableInput, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def removable_captures(
    captures: list[StoredCapture], keep: int, marked_baseline: Path | None
) -> list[StoredCapture]:
    """Return the captures to remove when the newest `keep` stay: finished ones only, and never the baseline.

    Args:
        captures: the newest first.
        keep: how many stay, the baseline not counted where it is older.
        marked_baseline: the folder that is marked; None: none is.
    """
    return [one for one in captures[keep:] if one.state != "running" and one.path != marked_baseline and one.info]


def baseline(parent: Path) -> Path | None:
    """Return the capture that is marked as baseline; None where none is, or it has been removed."""
    try:
        name = (parent / _MARK).read_text(errors="replace").strip()
    except OSError:
        return None
    path = parent / name
    return path if name and Path(name).name == name and path.is_dir() else None


def mark_baseline(parent: Path, capture: Path | None) -> None:
    """Mark a capture of this folder as the baseline; None: none.

    Raises:
        NotPossibleHere: the folder cannot be written.
    """
    if capture is None:
        (parent / _MARK).unlink(missing_ok=True)
    else:
        folder.write(parent / _MARK, f"{capture.name}\n".encode())


def default_parent() -> Path:
    """Return the default folder of captures; relative where the working directory is gone."""
    chosen = Path(config.current().capture.out or folder.PARENT).expanduser()
    try:
        return chosen.absolute()
    except OSError:
        return chosen


def taken_at_text(taken_at: float) -> str:
    """Return when a capture was taken: the time of the day, with the day before it where that is another."""
    then = time.localtime(taken_at)
    same_day = time.strftime("%F", then) == time.strftime("%F")
    return time.strftime("%H:%M:%S" if same_day else "%m-%d %H:%M", then)
