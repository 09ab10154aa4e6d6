"""Facts about a capture besides its trace: capture.json, as far as a report needs it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from llmtop.analysis.steps.unprofiled_step import UNKNOWN_REASON, UnprofiledStep
from llmtop.errors import UnusableInput
from llmtop.naming import file_names
from llmtop.system.inputs import read_input
from llmtop.trace.files.file_kind import TRACES

UNKNOWN_COMMAND = "python train.py"
"""Placeholder for the command of a training where it is unknown."""
_PYTHON = re.compile(r"(?:^|/)(?:python|pypy|ipython|torchrun)[\d.]*(?:\s|$)")
_TIME_BASED = ("xla.profiler",)
"""Engines that record for a time, in which there may be more steps than were asked for."""
_MOST_STEPS = 1_000_000
_LONGEST = 86_400.0
"""Seconds; no step takes a day."""


@dataclass(frozen=True)
class CaptureInfo:
    """Facts about the training that was captured."""

    command: str = UNKNOWN_COMMAND
    """Its command line, quoted for a shell."""
    unprofiled_step: UnprofiledStep = UNKNOWN_REASON
    steps_wanted: int | None = None
    """How many whole steps were asked for; None where it was a time, or is not known."""
    ranks: dict[int, int] = field(default_factory=dict)
    """Rank by the pid on its host; empty where ranks of several hosts were captured, of which two may have one
    pid."""


def read_capture_info(path: Path) -> CaptureInfo:
    """Read capture.json of a capture; what it lacks, or has in another form, is not known.

    Args:
        path: the folder of the capture, or a file in it.
    """
    try:
        folder = path if path.is_dir() else path.parent
        if folder.name == TRACES:
            folder = folder.parent
        data = read_input(folder / file_names.CAPTURE_INFO)
        found = msgspec.json.decode(data, type=dict[str, Any])
    except (UnusableInput, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return CaptureInfo()
    command, steps = found.get("command"), found.get("step_seconds")
    quoted = " ".join(shlex.quote(word) for word in command.split()) if isinstance(command, str) else ""
    ranks = {} if found.get("hosts") else _ranks(found.get("pids"), found.get("ranks"))
    wanted = _steps_wanted(found)
    if not isinstance(steps, dict):
        return CaptureInfo(quoted or UNKNOWN_COMMAND, ranks=ranks, steps_wanted=wanted)
    before, after = (_seconds(steps.get(name)) for name in ("before_p50", "after_p50"))
    return CaptureInfo(
        quoted or UNKNOWN_COMMAND,
        UnprofiledStep(before, after, steps.get("profiler_stays") is True),
        wanted,
        ranks,
    )


def _steps_wanted(found: dict[str, Any]) -> int | None:
    """Return the steps that were asked for, but not of an engine that records a time whatever it is asked for."""
    wanted = found.get("steps_wanted")
    is_count = type(wanted) is int and 0 < wanted < _MOST_STEPS
    return wanted if is_count and found.get("engine") not in _TIME_BASED else None


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value < _LONGEST else None


def _ranks(pids: object, ranks: object) -> dict[int, int]:
    if not isinstance(pids, list) or not isinstance(ranks, list) or len(pids) != len(ranks):
        return {}
    pairs = zip(pids, ranks, strict=True)
    return {pid: rank for pid, rank in pairs if type(pid) is int and type(rank) is int and rank >= 0}


def is_python(process_name: str | None) -> bool | None:
    """Return True if a process of that name runs Python; None where it has no name."""
    return None if not process_name else bool(_PYTHON.search(process_name))


_COMM_CHARACTERS = 15
"""TASK_COMM_LEN of Linux, without the end of the text."""


def command_of_program(command: str, process_name: str | None, *, plain: bool) -> str:
    """Return the command line that suggestions start: of a CUDA program without Python its own file.

    Args:
        command: as the capture tells it, or UNKNOWN_COMMAND.
        process_name: of the judged process, as the tool recorded it.
        plain: whether no framework for machine learning took part.
    """
    words = process_name.split() if process_name else []
    if command != UNKNOWN_COMMAND or not plain or not words or is_python(process_name):
        return command
    # Linux keeps 15 characters of a name, and older nsys knows no more: that is no file's name.
    cut = len(process_name or "") == _COMM_CHARACTERS and "/" not in words[0]
    return "./PROGRAM" if cut else shlex.quote(f"./{Path(words[0]).name}")
