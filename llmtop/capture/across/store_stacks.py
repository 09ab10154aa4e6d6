"""Stacks of the main threads of ranks on other nodes of a job, asked for through the job's own store."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from llmtop.capture.across import local_job
from llmtop.capture.across.local_job import LocalJob
from llmtop.capture.base.job import Target
from llmtop.errors import LlmtopError, NotPossibleHere
from llmtop.protocol import job_store, wire
from llmtop.protocol.job_store import Keys, NodeStatus, RankStatus, StoreRequest
from llmtop.protocol.tcp_store import StoreError, TcpStore

ANSWER_SECONDS = 8.0
"""A node looks into the store once per second, greets its ranks (1.5 s) and waits 3 s for their stacks."""
_POLL_SECONDS = 0.2


@dataclass
class OtherNodes:
    """Replies of the other nodes."""

    ranks: dict[int, tuple[RankStatus, str]] = field(default_factory=dict)
    """State and host by rank."""
    silent: tuple[int, ...] = ()
    """Ranks of other nodes of which no node has answered."""
    problem: str = ""
    """Why no node could be asked."""


def stacks_of_other_nodes(known: Sequence[Target], pid: int) -> OtherNodes:
    """Return the stacks of all ranks that are not on this node.

    Args:
        known: the attached trainings of this node.
        pid: of a rank on this node.
    """
    try:
        job = local_job.find_job(known, pid)
        absent = tuple(sorted(set(range(job.world_size)) - job.local_ranks))
        if not absent:
            return OtherNodes()
        if job.store is None:
            return OtherNodes(silent=absent, problem="the ranks of this job use no store that llmtop reads")
        with local_job.open_store(job) as store:
            return _ask(store, job, absent)
    except StoreError as error:
        return OtherNodes(problem=f"the store of the job is unreachable: {error}")
    except LlmtopError as error:
        return OtherNodes(problem=str(error))


def _ask(store: TcpStore, job: LocalJob, absent: tuple[int, ...]) -> OtherNodes:
    assert job.store is not None
    keys = Keys(job.store.prefix)
    nodes = sorted(
        number
        for number, card in local_job.list_nodes(store, job.store.prefix).items()
        if card.rank not in job.local_ranks
    )
    if not nodes:
        raise NotPossibleHere("no other node of this job listens for requests: run its ranks under llmtop run")
    ask = StoreRequest(
        id=secrets.token_hex(4), at_step=0, steps=0, engine=job_store.SHOW_STACKS, ranks=list(absent)
    )
    number = 1
    while not store.put(keys.ask(number), job_store.encode(ask)):
        number += 1
    try:
        return _gather(store, keys, number, nodes, set(absent))
    finally:
        with suppress(StoreError):
            store.set(keys.beat(number), job_store.END)
            store.set(keys.ask(number), b"{}")


def _gather(store: TcpStore, keys: Keys, number: int, nodes: list[int], absent: set[int]) -> OtherNodes:
    """Poll the nodes until each rank has answered, or the time is over."""
    found = OtherNodes()
    until = time.monotonic() + ANSWER_SECONDS
    beat = 0
    while time.monotonic() < until:
        beat += 1
        store.set(keys.beat(number), str(beat).encode())
        for node in nodes:
            status = job_store.decode(NodeStatus, store.get(keys.status(number, node)) or b"")
            for reply in status.ranks if status is not None else ():
                if reply.rank in absent:
                    found.ranks[reply.rank] = reply, status.host if status is not None else ""
        if found.ranks.keys() >= absent and all(
            reply.state in wire.CAPTURE_ENDED for reply, _ in found.ranks.values()
        ):
            break
        time.sleep(_POLL_SECONDS)
    found.silent = tuple(sorted(absent - found.ranks.keys()))
    return found
