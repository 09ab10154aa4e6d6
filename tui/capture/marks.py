"""The captures in this folder as marks on the time line: time, engine and verdict."""

from __future__ import annotations

from pathlib import Path

from llmtop.capture.base import folder

MAX_MARKS = 200


def capture_marks(parent: Path) -> tuple[tuple[float, str], ...]:
    """Unix time and words of each capture, oldest first. What cannot be read is left out.

    Args:
        parent: the folder that captures are made in.
    """
    listed = folder.list_infos(parent)[-MAX_MARKS:]
    return tuple((info.started_at, _words(path, info)) for path, info in listed)


def _words(path: Path, info: folder.Info) -> str:
    steps = "" if info.steps is None else f", {info.steps} step{'' if info.steps == 1 else 's'}"
    said = folder.verdict_of(path) if info.state == "done" else info.state
    return f"{info.engine}{steps}" + (f": {said}" if said else "")
