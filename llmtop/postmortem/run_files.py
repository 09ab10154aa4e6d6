"""Files that attached ranks leave on disk (`llmtop.runs`) -> facts: last sign, last step, phase, stacks, end."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path

from llmtop.postmortem.error_kinds import error_kind
from llmtop.postmortem.evidence import (
    RUN_FILE,
    CodeLine,
    Evidence,
    InputFile,
    Mark,
    Place,
    ProcessEnd,
    PythonError,
    StackDump,
    ThreadTrace,
)
from llmtop.postmortem.last_minutes import RankTail, StackSeen, rank_tail
from llmtop.postmortem.stack_meaning import without_own
from llmtop.runs import folder, store

_AMBIGUOUS = ("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "ConnectionError")
"""Classes that a lost peer raises as well: without a message they are no failure of the rank's own."""


def is_run_file(name: str) -> bool:
    """Return True for the name of a file that a rank writes."""
    parsed = folder.parsed_name(name)
    return parsed is not None and parsed[1] in (folder.RUN, folder.EXIT, *folder.LAST)


def read_run_files(files: Iterable[tuple[Path, str]], evidence: Evidence) -> None:
    """Add the content of the files of ranks to the evidence.

    Args:
        files: path and shown name of each.
        evidence: what is added to.
    """
    known: dict[tuple[Path, folder.FileName], str] = {}
    for path, name in files:
        parsed = folder.parsed_name(path.name)
        if parsed is not None:
            known.setdefault((path.parent, parsed[0]), name.removesuffix(parsed[1]))
    newest: dict[int | None, tuple[float, RankTail, store.RankProcess, str]] = {}
    for (place, named), name in known.items():
        process = store.RankProcess(place, named)
        tail = rank_tail(process)
        if tail.rank not in newest or tail.last_sign > newest[tail.rank][0]:
            newest[tail.rank] = tail.last_sign, tail, process, name
    for _, tail, process, name in newest.values():
        _add(tail, process, name, evidence)


def _add(tail: RankTail, process: store.RankProcess, name: str, evidence: Evidence) -> None:
    place, rank = Place(name), tail.rank
    evidence.files.append(InputFile(name, "run", rank, is_certain=True))
    world = process.start.world_size if process.start is not None else None
    evidence.marks.append(Mark("process", place, rank=rank, pid=tail.pid, host=tail.host, number=world or 0))
    evidence.marks.append(Mark("last_sign", place, tail.how, rank, tail.pid, tail.host, time=tail.last_sign))
    if tail.phase:
        evidence.marks.append(Mark("phase", place, tail.phase, rank, tail.pid, tail.host))
    if tail.last_step is not None:
        evidence.marks.append(Mark("step", place, rank=rank, pid=tail.pid, number=tail.last_step))
    if (ended := process.exit) is not None:
        is_signal = ended.code < 0
        by_launcher = ended.code == -signal.SIGTERM and not ended.is_first
        evidence.ends.append(
            ProcessEnd(
                Place(name + folder.EXIT),
                rank,
                tail.pid,
                tail.host,
                code=None if is_signal else ended.code,
                signal=-ended.code if is_signal else None,
                is_first=ended.is_first,
                is_by_launcher=by_launcher,
            )
        )
    if tail.error:
        kind = error_kind(tail.error, tail.message)
        error = PythonError(place, tail.error, tail.message, rank, tail.pid, tail.host, kind=kind)
        if process.end is not None:
            error.frames = without_own(CodeLine(*frame) for frame in process.end.frames)
        if not tail.message and tail.error in _AMBIGUOUS:
            error.kind = "peer_lost"
        evidence.errors.append(error)
    if tail.running:
        evidence.stacks.append(_dump(tail.running[-1], tail, place))


def _dump(stack: StackSeen, tail: RankTail, place: Place) -> StackDump:
    thread = ThreadTrace(stack.frames, "MainThread", is_main=True)
    return StackDump(place, RUN_FILE, tail.rank, tail.pid, [thread], tail.last_sign)
