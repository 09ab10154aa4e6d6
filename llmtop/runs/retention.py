"""Deletes old runs, by the times and sizes of their files; none is opened."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import NamedTuple

from llmtop.runs.folder import parsed_name

_RUNNING_SECONDS = 3600.0
"""A run that was written to within is left alone."""


class _Taken(NamedTuple):
    newest: float
    """Unix time of the last write."""
    size: int
    """Bytes of all files."""
    path: Path


def delete_old_runs(path: Path, *, days: float, most_bytes: int) -> list[Path]:
    """Delete runs that are too old, then the oldest until the others take few enough bytes.

    Args:
        path: folder of all runs.
        days: since the last write.
        most_bytes: of all runs together.

    Returns:
        The folders that were deleted.
    """
    taken = sorted(_runs(path))
    now, total = time.time(), sum(one.size for one in taken)
    gone: list[Path] = []
    for one in taken:
        is_old = now - one.newest > days * 86400
        if now - one.newest < _RUNNING_SECONDS or not (is_old or total > most_bytes):
            continue
        shutil.rmtree(one.path, ignore_errors=True)
        total -= one.size
        gone.append(one.path)
    return gone


def _runs(path: Path) -> list[_Taken]:
    """Folders that hold files of runs and nothing else."""
    found: list[_Taken] = []
    for run_folder in path.iterdir() if path.is_dir() else ():
        if not run_folder.is_dir() or run_folder.is_symlink():
            continue
        try:
            files = list(run_folder.iterdir())
        except PermissionError:
            continue  # another user's
        if not files or any(parsed_name(file.name) is None for file in files):
            continue
        infos = [file.lstat() for file in files]
        found.append(_Taken(max(info.st_mtime for info in infos), sum(info.st_size for info in infos), run_folder))
    return found
