"""Finds the run of a training that runs now, by what a monitor knows of its process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from llmtop.errors import NotPossibleHere
from llmtop.runs import folder
from llmtop.runs.folder import FileName, RunsFolder
from llmtop.system import procfs


class RunningProcess(NamedTuple):
    """Where a running training writes."""

    runs: RunsFolder
    path: Path
    """Folder of its run."""
    name: FileName


def find_running(pid: int, attached_at: float, rank: int | None) -> RunningProcess | None:
    """Return where a training writes; None where it does not, not yet, or elsewhere than this process can see.

    Args:
        pid: of the training, as this host numbers it.
        attached_at: unix time at which it attached, as it says itself.
        rank: None for a process that is no rank.
    """
    runs = _runs_of(pid)
    stamp = int(attached_at * 1000)
    found: list[RunningProcess] = []
    try:
        folders = [entry for entry in os.scandir(runs.path) if entry.is_dir(follow_symlinks=False)]
        for entry in sorted(folders, key=lambda one: one.stat().st_mtime, reverse=True):
            for name in os.listdir(entry.path):
                parsed = folder.parsed_name(name)
                if parsed is not None and parsed[1] == folder.RUN and parsed[0].started_ms == stamp:
                    found.append(RunningProcess(runs, Path(entry.path), parsed[0]))
            if any(one.name.pid == pid for one in found):
                break
    except OSError:
        return None
    # In a container it has another pid, by its own account.
    same = [one for one in found if one.name.pid == pid] or [one for one in found if one.name.rank == rank]
    return same[0] if same else None


def _runs_of(pid: int) -> RunsFolder:
    try:
        return folder.runs_folder(procfs.environ(pid))
    except NotPossibleHere:
        return folder.runs_folder()
