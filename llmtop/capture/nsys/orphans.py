"""Remains of a killed llmtop: a folder without an end, and at worst an nsys session that still collects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from llmtop.capture.base.folder import Info
from llmtop.capture.base.lock import CaptureLock, Holder, orphaned_captures, running_captures
from llmtop.capture.nsys.collection import stop_orphan
from llmtop.errors import LlmtopError, NotPossibleHere
from llmtop.format import duration
from llmtop.nsys_cli import tool as nsys


def capture_state(path: Path, info: Info) -> str:
    """Return a capture's state, where "running" is believed only while some llmtop really captures its
    processes."""
    if info.state != "running":
        return info.state
    busy = {holder.target for holder in running_captures()}
    return "running" if busy & set(info.pids) else "cut short"


def orphan_messages() -> list[str]:
    """Return the notes on captures that were cut short."""
    lines = []
    for _, holder in orphaned_captures():
        if not holder.session:
            continue
        since = duration(holder.held_seconds())
        if _collecting_nsys(holder) is not None:
            lines.append(
                f"the nsys session {holder.session} of pid {holder.target} still collects, {since} after it "
                "was asked for: its llmtop was killed; stop it with llmtop captures --stop"
            )
    return lines


def _collecting_nsys(holder: Holder) -> nsys.Nsys | None:
    """Return the nsys with which a leftover session can be stopped; None if it collects no more."""
    try:
        found, session = nsys.find_session(holder.target)
    except NotPossibleHere:
        return None
    return found if session.id == holder.session and session.collecting else None


def stop_orphans() -> Iterator[str | LlmtopError]:
    """Stop every leftover; yields what was done, or why not."""
    is_any_found = False
    for path, holder in orphaned_captures():
        is_any_found = True
        try:
            yield _stop_orphan(path, holder)
        except LlmtopError as error:
            yield error
    if not is_any_found:
        yield "nothing was left recording"


def _stop_orphan(path: Path, holder: Holder) -> str:
    key = path.stem.removeprefix("capture-")
    with CaptureLock(key, holder):  # no capture may begin meanwhile; its release removes the leftover
        tool = _collecting_nsys(holder)
        if tool is None:
            return f"pid {holder.target}: nothing records any more"
        reports = stop_orphan(tool, holder.session)
        where = f"; its report is {reports[0]}" if reports else ""
        return f"pid {holder.target}: the nsys session {holder.session} was stopped{where}"
