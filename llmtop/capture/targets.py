"""Targets of a capture: attached trainings, and processes that can be captured without being attached."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from llmtop.capture.base.job import Target
from llmtop.capture.engines import ENGINES
from llmtop.errors import LlmtopError, NotPossibleHere, UnusableInput
from llmtop.format import printable
from llmtop.protocol import client, socket_dir
from llmtop.system import procfs


def list_attached() -> tuple[Target, ...]:
    """Return all trainings that answer, by rank and pid; takes up to two seconds for each that is stopped."""
    try:
        files = client.discover(socket_dir.runtime_dir())
    except NotPossibleHere:
        return ()
    found = []
    for file in files:
        with (
            suppress(LlmtopError, client.ConnectionClosed),
            client.Connection.open(file.path, history=0) as connection,
        ):
            pid = connection.host_pid or file.pid
            found.append(Target(pid, connection.hello.rank, connection.hello, file.path))
    return tuple(sorted(found, key=lambda target: (target.rank is None, target.rank or 0, target.pid)))


def list_unattached(known: frozenset[int] = frozenset()) -> tuple[Target, ...]:
    """Processes of this user that were started for one of the engines, and are not in `known`."""
    pids = procfs.own_pids() - known
    said = [engine.find_unattached(pids) for engine in ENGINES.values()]
    return tuple(
        Target(pid)
        for pid in sorted(pids)
        if any(one.get(pid) for one in said) and all(one.get(pid, True) for one in said)
    )


def choose_targets(pids: Sequence[int] = (), ranks: Sequence[int] = ()) -> tuple[Target, ...]:
    """Return the processes that were named, or, if none was, those of the one training there is.

    Raises:
        UnusableInput: no such process or rank, or several trainings and none was named.
        NotPossibleHere: there is nothing to capture.
    """
    known = list_attached()
    if pids:
        return tuple(_by_pid(pid, known) for pid in pids)
    if ranks:
        return tuple(_by_rank(rank, known) for rank in ranks)
    if not known:
        known = list_unattached()
    if not known:
        raise NotPossibleHere(
            "no training to capture: none is attached (start it with llmtop run -- COMMAND), or name any Python "
            "process with --pid"
        )
    if len(known) > 1 and not _is_one_job(known):
        several = ", ".join(f"{target.pid} ({printable(target.command or '?', 40)})" for target in known[:8])
        raise UnusableInput(f"several trainings run here: {several}; choose with --pid or --rank")
    return known


def _by_pid(pid: int, known: Sequence[Target]) -> Target:
    for target in known:
        if target.pid == pid:
            return target
    if not procfs.is_alive(pid):
        raise UnusableInput(f"there is no process {pid} here: llmtop --once lists the trainings")
    return Target(pid)


def _by_rank(rank: int, known: Sequence[Target]) -> Target:
    same = [target for target in known if target.rank == rank]
    if len(same) == 1:
        return same[0]
    if same:
        raise UnusableInput(
            f"{len(same)} attached processes are rank {rank} of different trainings: choose with --pid "
            f"({', '.join(str(target.pid) for target in same)})"
        )
    there = ", ".join(str(target.rank) for target in known if target.rank is not None) or "none"
    raise UnusableInput(f"no attached process is rank {rank}; the attached ranks are: {there}")


def _is_one_job(known: Sequence[Target]) -> bool:
    """Return True if these are the ranks of one training: started by one parent, each rank once."""
    ranks = [target.rank for target in known]
    one_parent = len({procfs.parent(target.pid) for target in known}) == 1
    return one_parent and None not in ranks and len(set(ranks)) == len(ranks)
