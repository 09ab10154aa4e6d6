"""Facts that name no rank, given one by what other lines say: a launcher's map of ranks, a GPU's address."""

from __future__ import annotations

from llmtop.postmortem.evidence import Evidence, Mark, ProcessEnd, PythonError, StackDump

_APART_SECONDS = 1.0
"""Two failures of one host are one after the other where their times differ by more."""


def place_host_ranks(evidence: Evidence) -> None:
    """Give ends with a host and a local rank the rank from the launcher's map of hosts."""
    first = {mark.host: mark.second for mark in evidence.marks if mark.kind == "host_ranks"}
    for end in evidence.ends:
        if end.rank is not None or end.local_rank is None or end.pid is not None:
            continue
        offset = first.get(end.host) if end.host else next(iter(first.values())) if len(first) == 1 else None
        if offset is None and not first and not end.host:
            offset = 0
        if offset is not None:
            end.rank = offset + end.local_rank


def place_gpus(evidence: Evidence) -> None:
    """Give Xids the rank whose GPU has that address, by NCCL's lines of that host."""
    known = [mark for mark in evidence.marks if mark.kind == "process" and mark.pci and mark.rank is not None]
    hosts = {mark.host for mark in known}
    for mark in evidence.marks:
        if mark.kind != "xid" or mark.rank is not None or mark.pid is not None:
            continue
        address = _address(mark.gpu)
        found = {
            one.rank
            for one in known
            if one.pci == address
            and (_short(one.host) == _short(mark.host) or (not mark.host and len(hosts) == 1))
        }
        if len(found) == 1:
            mark.rank = found.pop()


def _address(text: str) -> str:
    """Return an address as NCCL writes it: "0000:44:00" or "0000:44:00.0" -> "44000"."""
    parts = text.split(".")
    return (parts[0].replace(":", "") + (parts[1] if len(parts) > 1 else "0")).lower().lstrip("0")


def _short(host: str) -> str:
    return host.partition(".")[0]


def keep_earliest_failures(evidence: Evidence) -> None:
    """Keep only the earliest of the first failures that several launchers of one host name."""
    by_host: dict[str, list[ProcessEnd]] = {}
    for end in evidence.ends:
        if end.is_first and end.host and end.time is not None:
            by_host.setdefault(end.host, []).append(end)
    for ends in by_host.values():
        earliest = min(end.time or 0.0 for end in ends)
        for end in ends:
            end.is_first = (end.time or 0.0) <= earliest + _APART_SECONDS


def place_single_process(evidence: Evidence) -> None:
    """Give the facts of a training of one process, whose run files name no rank, rank 0.

    A log beside its files is its own, so what the log says of no other process is given rank 0 too.
    """
    facts: list[PythonError | StackDump | ProcessEnd | Mark]
    facts = [*evidence.errors, *evidence.stacks, *evidence.ends, *evidence.marks]
    signs = [mark for mark in evidence.marks if mark.kind == "last_sign"]
    is_written = any(mark.number > 1 for mark in evidence.marks if mark.kind in ("world", "process"))
    if len(signs) != 1 or is_written or evidence.dumps or any(fact.rank is not None for fact in facts):
        return
    pid = signs[0].pid
    for fact in facts:
        if fact.pid == pid or (fact.pid is None and not isinstance(fact, Mark)):
            fact.rank = 0
    for file in evidence.files:
        file.rank = 0 if file.kind in ("run", "log") else file.rank


def place_errors(evidence: Evidence) -> None:
    """Give the one error of a log that names no rank the rank that the launcher names as the first failure.

    Only where that rank ended with code 1, as Python does after an exception, and no other error is in the log.
    """
    ends: dict[tuple[str, str], set[int]] = {}
    for end in evidence.ends:
        if end.is_first and end.rank is not None and end.code == 1:
            ends.setdefault((end.place.file, end.host), set()).add(end.rank)
            ends.setdefault((end.place.file, ""), set()).add(end.rank)
    errors: dict[tuple[str, str], list[PythonError]] = {}
    for error in evidence.errors:
        if error.kind != "stopped_by_launcher":
            errors.setdefault((error.place.file, error.host), []).append(error)
    for place, found in errors.items():
        first = ends.get(place, set())
        texts = {(error.name, error.message[:120]) for error in found}
        if len(first) == 1 and len(texts) == 1 and all(one.rank is None and one.pid is None for one in found):
            found[0].rank = next(iter(first))


def unplaced_failure(evidence: Evidence) -> Mark | PythonError | ProcessEnd | None:
    """Return the strongest sign of a failure that names no rank; None without one."""
    strong = ("oom_kill", "xid", "storage")
    marks = [mark for mark in evidence.marks if mark.kind in strong and mark.rank is None]
    marks = [mark for mark in marks if mark.kind != "xid" or mark.number != 45]
    if marks:
        return min(marks, key=lambda mark: strong.index(mark.kind))
    errors = (error for error in evidence.errors if error.rank is None and error.kind == "own")
    ends = (end for end in evidence.ends if end.rank is None and end.signal and not end.is_by_launcher)
    return next(errors, None) or next(ends, None)
