"""Communicators that do not go on, and the ranks that are behind, from two answers of NCCL's RAS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from collectors.nccl_ras.client import RasAnswer, RasCommunicator
from llmtop.model.snapshot import CommunicatorRank, StuckCommunicator

MAX_NAMED = 8
"""Ranks listed per kind; beyond that only their number is reported, as when a rack of a large job is lost."""


def stuck_communicators(
    before: RasAnswer, now: RasAnswer, pids: Mapping[int, int], here: Mapping[int, int] | None = None
) -> tuple[StuckCommunicator, ...]:
    """Communicators with one of those processes in which no rank has called anything between two answers.

    A rank that is behind may wait in another communicator: those in which ranks are missing or behind come first.

    Args:
        before: an earlier answer.
        now: a later one.
        pids: of the processes that do not go on, as NCCL may call them -> this host's.
        here: of all that may be in one on this machine, likewise: the rank that is behind leaves its GPU idle, and
            so is none of those. A process is here if NCCL has it on the same host as one of them.
    """
    earlier = {_key(one): _counts(one) for one in before.communicators}
    found = [
        _stuck_communicator(one, pids, here or {})
        for one in now.communicators
        if one.size > 1
        and _key(one) in earlier
        and earlier[_key(one)] == _counts(one)
        and _includes_any(one, pids)
    ]
    return tuple(sorted(found, key=lambda one: (not one.missing_count, not one.behind_count, -one.size)))


def _key(one: RasCommunicator) -> str:
    return f"{one.hash} {one.secondary_hash}"


def _counts(one: RasCommunicator) -> dict[int, dict[str, int]]:
    return {rank.rank: rank.collective_counts for rank in one.ranks}


def _includes_any(one: RasCommunicator, pids: Mapping[int, int]) -> bool:
    return not _pids(one).isdisjoint(pids)


def _pids(one: RasCommunicator) -> set[int]:
    return {rank.pid for rank in one.ranks} | {rank.pid for rank in one.missing_ranks}


def _stuck_communicator(
    one: RasCommunicator, pids: Mapping[int, int], here: Mapping[int, int]
) -> StuckCommunicator:
    operation, most = _differing_operation(one)
    ours = _local_processes(one, pids, here)
    behind = [
        replace(rank, pid=ours.get((rank.host, rank.pid), rank.pid))
        for rank in _ranks_behind(one, operation, most)
    ]
    missing = [
        CommunicatorRank(rank=gone.rank, host=gone.host, pid=ours.get((gone.host, gone.pid), gone.pid))
        for gone in one.missing_ranks
    ]
    return StuckCommunicator(
        id=one.hash,
        size=one.size,
        operation=operation,
        number=most,
        waiting_count=len(one.ranks) - len(behind),
        behind_count=len(behind),
        behind=tuple(behind[:MAX_NAMED]),
        missing_count=len(missing),
        missing=tuple(missing[:MAX_NAMED]),
        pids=tuple(sorted(set(ours.values()))),
    )


def _local_processes(
    one: RasCommunicator, pids: Mapping[int, int], here: Mapping[int, int]
) -> dict[tuple[str | None, int], int]:
    """Its processes on this machine, by host and pid as NCCL has them -> this host's pid."""
    all_of_it = [(rank.host, rank.pid) for rank in one.ranks] + [
        (gone.host, gone.pid) for gone in one.missing_ranks
    ]
    hosts = {host for host, pid in all_of_it if pid in pids}
    known = {**here, **pids}
    return {(host, pid): known[pid] for host, pid in all_of_it if host in hosts and pid in known}


def _differing_operation(one: RasCommunicator) -> tuple[str | None, int | None]:
    """Return the operation that not all have called equally often, and how often most have; the first such."""
    for operation in dict.fromkeys(name for rank in one.ranks for name in rank.collective_counts):
        counts = [rank.collective_counts.get(operation, 0) for rank in one.ranks]
        if min(counts) < max(counts):
            return operation, max(counts)
    return None, None


def _ranks_behind(one: RasCommunicator, operation: str | None, most: int | None) -> Iterator[CommunicatorRank]:
    """Yield the ranks that have called it less often, the furthest behind first."""
    if operation is None or most is None:
        return
    for rank in sorted(one.ranks, key=lambda rank: rank.collective_counts.get(operation, 0)):
        called = rank.collective_counts.get(operation, 0)
        if called < most:
            yield CommunicatorRank(rank=rank.rank, host=rank.host, pid=rank.pid, called=called)
