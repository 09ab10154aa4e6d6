"""Exit codes of the ranks that torchrun saw, kept beside the files of the ranks.

A rank that a signal ends writes no end. torchrun raises an exception with the exit code of each rank, and under
`llmtop run` its process comes here at its own end. Nothing of torchrun is changed.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

from llmtop.instrument.run_log.disk import OwnDisk
from llmtop.recording.members import pack
from llmtop.runs import folder, records

_MOST_FOLDERS = 64
"""The ranks of this torchrun wrote a moment ago: theirs is one of the newest folders."""
_MOST_RANKS = 256


class _RankFiles(NamedTuple):
    """Files of one rank."""

    run_folder: str
    name: folder.FileName


def keep_exits(error: Any) -> None:
    """Write the exit code of each failed rank of this node into the folder of its run.

    Args:
        error: torchrun's ChildFailedError.

    Raises:
        OSError: the folder cannot be read or written. Other exceptions: torch has changed.
    """
    runs = folder.runs_folder()
    if not runs.is_local:
        return  # a network disk may hang, and torchrun would not end
    first, _ = error.get_first_failure()
    failures = dict(list(error.failures.items())[:_MOST_RANKS])
    found = _files_of({int(one.pid): int(rank) for rank, one in failures.items()}, runs)
    at = time.time()
    for rank, one in failures.items():
        files = found.get(int(rank))
        if files is not None:
            record = records.Exit(at=at, code=int(one.exitcode), is_first=rank == first)
            data = pack(records.lines_of([record]), at, at, 1)
            OwnDisk(runs.path / files.run_folder).append(files.name.text + folder.EXIT, data, anew=True)


def _files_of(ranks: dict[int, int], runs: folder.RunsFolder) -> dict[int, _RankFiles]:
    """Return the newest files of ranks by rank.

    Args:
        ranks: by pid.
        runs: folder of all runs.
    """
    with os.scandir(runs.path) as entries:
        folders = [one for one in entries if one.is_dir(follow_symlinks=False)]
    folders.sort(key=lambda one: one.stat().st_mtime, reverse=True)
    for entry in folders[:_MOST_FOLDERS]:
        found: dict[int, _RankFiles] = {}
        for name in os.listdir(entry.path):
            parsed = folder.parsed_name(name)
            if parsed is None or parsed[1] != folder.RUN or ranks.get(parsed[0].pid) != parsed[0].rank:
                continue
            known = found.get(ranks[parsed[0].pid])
            if known is None or known.name.started_ms < parsed[0].started_ms:
                found[ranks[parsed[0].pid]] = _RankFiles(entry.name, parsed[0])
        if found:
            return found
    return {}
