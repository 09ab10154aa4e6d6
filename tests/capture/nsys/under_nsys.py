"""What tests of nsys captures ask: of the plan, of the export, of the session."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from llmtop.capture.base.job import Plan, Progress, Target
from llmtop.capture.base.lock import CaptureLock, Holder
from llmtop.capture.take import Result
from llmtop.nsys_cli import tool as nsys

_BUSY = ("since the capture a step takes ", "nsys took longer to start than a training is paused ")
"""Notes that are true on a machine with other work: steps become longer, nsys takes seconds to start."""


def plan(target: Target, parent: Path, **more: object) -> Plan:
    """An nsys capture of five steps of one process."""
    return Plan(**{"engine": "nsys", "targets": (target,), "parent": parent, "steps": 5, **more})  # type: ignore[arg-type]


def ranges(sqlite: Path, name: str) -> int:
    """How many closed NVTX ranges of that name the export has."""
    with closing(sqlite3.connect(sqlite)) as database:
        (count,) = database.execute(
            "SELECT count(*) FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = id "
            "WHERE coalesce(text, value) = ? AND end IS NOT NULL",
            (name,),
        ).fetchone()
        return int(count)


def odd_notes(result: Result) -> list[str]:
    """Return the notes of a capture that other work on the machine does not explain."""
    return [note for note in result.info.notes if not note.startswith(_BUSY)]


def touch_within(file: Path) -> Callable[[Progress], None]:
    """Return a listener that makes a file once two steps of the window have been recorded."""

    def listen(progress: Progress) -> None:
        if progress.stage == "record" and (progress.steps or 0) >= 2:
            file.touch()

    return listen


def session_state(target: Target) -> str:
    """What the nsys session of a process is doing, in nsys's word."""
    return nsys.find_session(target.pid)[1].state


def abandon(tool: nsys.Nsys, session: nsys.Session, target: Target, folder: Path) -> None:
    """Leave a session collecting as a `kill -9` of llmtop and all that it started would."""
    lock = CaptureLock(
        f"nsys-{session.id}",
        Holder(pid=os.getpid(), engine="nsys", since=0.0, began=0.0, session=session.id, target=target.pid),
    )
    text = lock.path.read_bytes()
    lock.release()
    lock.path.write_bytes(text)
    started = tool.run("start", f"--session={session.id}", "-o", str(folder / "left"), "-f", "true")
    assert started.returncode == 0, started.stderr
    assert nsys.find_session(target.pid)[1].collecting
