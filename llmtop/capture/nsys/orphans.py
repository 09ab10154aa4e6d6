"""What a killed llmtop left behind: a folder without an end, and at worst an nsys session still collecting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from llmtop.capture.base.folder import Info
from llmtop.capture.base.lock import CaptureLock, Holder, current, leftovers
from llmtop.capture.nsys.collection import stop_leftover
from llmtop.errors import LlmtopError, NotPossibleHere
from llmtop.format import duration
from llmtop.nsys_cli import tool as nsys


def state_of(path: Path, info: Info) -> str:
    """A capture's state, where "running" is believed only while some llmtop really captures its processes."""
    if info.state != "running":
        return info.state
    busy = {holder.target for holder in current()}
    return "running" if busy & set(info.pids) else "cut short"


def sentences() -> list[str]:
    """What to tell about captures that were cut short."""
    lines = []
    for _, holder in leftovers():
        if not holder.session:
            continue
        since = duration(holder.held_seconds())
        if _collecting(holder) is not None:
            lines.append(
                f"the nsys session {holder.session} of pid {holder.target} still collects, {since} after it "
                "was asked for: its llmtop was killed; stop it with llmtop captures --stop"
            )
    return lines


def _collecting(holder: Holder) -> nsys.Nsys | None:
    """The nsys with which a leftover session can be stopped; None if it collects no more."""
    try:
        found, session = nsys.find_session(holder.target)
    except NotPossibleHere:
        return None
    return found if session.id == holder.session and session.collecting else None


def stop_all() -> Iterator[str | LlmtopError]:
    """Stop every leftover; yields what was done, or why not."""
    any_left = False
    for path, left in leftovers():
        any_left = True
        try:
            yield _stop(path, left)
        except LlmtopError as error:
            yield error
    if not any_left:
        yield "nothing was left recording"


def _stop(path: Path, left: Holder) -> str:
    key = path.stem.removeprefix("capture-")
    with CaptureLock(key, left):  # nobody may begin meanwhile; its release removes the leftover
        tool = _collecting(left)
        if tool is None:
            return f"pid {left.target}: nothing records any more"
        reports = stop_leftover(tool, left.session)
        where = f"; its report is {reports[0]}" if reports else ""
        return f"pid {left.target}: the nsys session {left.session} was stopped{where}"
