"""Queries NCCL RAS when a training is stuck, and adds the reply to the snapshot.

Never otherwise: a healthy job is not asked, and one that hangs every ten seconds at most. The port may belong to
another job, so an answer counts only if it has one of the processes that do not go on; or to another user, so it
counts only if root, llmtop's own user or the user of such a process listens there.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable

from msgspec.structs import replace

from collectors.base.listener import uids_of
from collectors.nccl_ras.client import DEFAULT, RasAnswer, ask
from collectors.nccl_ras.stuck import stuck_communicators
from llmtop.errors import NotPossibleHere
from llmtop.model.snapshot import Gpu, Rank, Snapshot, StuckCommunicator
from llmtop.model.stall_thresholds import quiet_seconds
from llmtop.rules.gpu import POWER_LOW, is_busy_but_idle
from llmtop.rules.state.gpu import STALE_SECONDS, GpuState, share_pct
from llmtop.system import procfs

QUERY_SECONDS = 10.0
SECOND_QUERY_SECONDS = 2.0
"""Time after the first answer: counts that are equal in two answers do not go on."""
VARIABLE = "NCCL_RAS_ADDR"


class NcclRas:
    """A stage of the live pipeline. Asking is done by a thread of its own that lives as long as the question."""

    def __init__(self, *, on_every_node: bool = False) -> None:
        """Nothing is asked yet.

        Args:
            on_every_node: whether every node of a job runs this stage, as exporters do: they query one by one
                then, the node with the first ranks first, since one answer is of all nodes and costs all of them.
        """
        self._on_every_node = on_every_node
        self._lock = threading.Lock()
        self._asking = False
        self._next = 0.0
        self._nodes = 1
        """How many take turns."""
        self._suspects: dict[int, int] = {}
        self._before: RasAnswer | None = None
        self._found: tuple[StuckCommunicator, ...] = ()

    def __repr__(self) -> str:
        return "NCCL's RAS"

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with what is known of communicators that do not go on."""
        suspects = suspect_processes(snapshot)
        here = known_processes(snapshot) if suspects else {}
        with self._lock:
            if suspects != self._suspects:
                self._suspects, self._before, self._found = suspects, None, ()
                node, self._nodes = node_position(snapshot, suspects) if self._on_every_node else (0, 1)
                self._next = max(self._next, time.monotonic() + node * QUERY_SECONDS)
            if suspects and not self._asking and time.monotonic() >= self._next:
                self._asking = True
                threading.Thread(target=self._ask, args=(suspects, here), name="llmtop-ras", daemon=True).start()
            found = self._found
        return replace(snapshot, stuck_communicators=found) if found else snapshot

    def _ask(self, suspects: dict[int, int], here: dict[int, int]) -> None:
        answer: RasAnswer | None = None
        try:
            answer = ask(_address(suspects.values()), owners=uids_of(suspects.values()))
        except NotPossibleHere:
            pass  # no NCCL, or an old one: `stalled` works without it
        finally:
            with self._lock:
                self._asking = False
                before = self._before
                soon = answer is not None and before is None
                self._next = time.monotonic() + (SECOND_QUERY_SECONDS if soon else QUERY_SECONDS * self._nodes)
                if suspects == self._suspects:
                    self._before = answer
                    if before is None or answer is None:
                        self._found = ()
                    else:
                        self._found = stuck_communicators(before, answer, suspects, here)


def suspect_processes(snapshot: Snapshot) -> dict[int, int]:
    """Processes that may hang in a collective: the pid in their own namespace, and outside, -> this host's."""
    pids = {rank.pid for rank in snapshot.ranks if _is_quiet(rank, snapshot.time)}
    attached = {rank.pid for rank in snapshot.ranks}
    spinning = {gpu.uuid for gpu in snapshot.gpus if _may_spin(gpu, snapshot.time)}
    pids |= {one.pid for one in snapshot.processes if one.gpu_uuid in spinning and one.pid not in attached}
    return _as_called(snapshot, pids)


def known_processes(snapshot: Snapshot) -> dict[int, int]:
    """Return all processes that are attached or on a GPU, likewise."""
    return _as_called(snapshot, {rank.pid for rank in snapshot.ranks} | {one.pid for one in snapshot.processes})


def _as_called(snapshot: Snapshot, pids: set[int]) -> dict[int, int]:
    inside = {one.pid: one.container_pid for one in snapshot.processes}
    return {seen: pid for pid in sorted(pids) for seen in (pid, inside.get(pid)) if seen is not None}


def node_position(snapshot: Snapshot, suspects: dict[int, int]) -> tuple[int, int]:
    """Return this node's number in the job, from 0, and the number of nodes, as far as attached ranks know."""
    pids = set(suspects.values())
    here = [rank for rank in snapshot.ranks if rank.pid in pids and rank.rank is not None]
    if not here:
        return 0, 1
    job = [rank for rank in snapshot.ranks if rank.job == here[0].job and rank.rank is not None]
    first = min(rank.rank or 0 for rank in job)
    return first // len(job), math.ceil((here[0].world_size or len(job)) / len(job))


def _may_spin(gpu: Gpu, now: float) -> bool:
    """Return True if its counters are those of a GPU that waits in a collective."""
    share = share_pct(gpu.power_watts, gpu.power_limit_watts)
    if share is None or share >= POWER_LOW[0]:
        return False  # as of nearly all: no more needs to be looked at
    if gpu.sampled_at is not None and now - gpu.sampled_at > STALE_SECONDS:
        return False  # the driver is silent: a working GPU keeps such values too
    state = GpuState(gpu, now)
    state.update(gpu, now)
    return is_busy_but_idle(state)


def _is_quiet(rank: Rank, now: float) -> bool:
    if rank.kind != "step" or rank.state not in ("running", "stalled") or (rank.world_size or 1) < 2:
        return False
    usual = rank.step_seconds_p50 or 0.0
    return rank.last_step_at is not None and now - rank.last_step_at > quiet_seconds(usual)


def _address(pids: Iterable[int]) -> tuple[str, int]:
    """Return the address configured for the processes, or NCCL's default."""
    for pid in pids:
        try:
            given = procfs.environ(pid).get(VARIABLE, "")
        except NotPossibleHere:
            continue
        host, colon, port = given.rpartition(":")
        if colon and port.isascii() and port.isdecimal():
            return host.strip("[]") or DEFAULT[0], int(port)
    return DEFAULT
