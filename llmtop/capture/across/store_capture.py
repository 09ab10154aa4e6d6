"""Records ranks on several nodes: writes one request into the job's store, polls the nodes there, gathers the
files."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from llmtop.capture.across import local_job
from llmtop.capture.across.local_job import LocalJob
from llmtop.capture.base import traces
from llmtop.capture.base.engine import Engine, Refusal
from llmtop.capture.base.job import CapturedRank, CaptureJob, Recorded, Target
from llmtop.capture.base.wait_for_window import SILENCE_SECONDS
from llmtop.capture.in_process.engine import InProcessEngine, steps_to_record
from llmtop.errors import NotPossibleHere
from llmtop.format import printable
from llmtop.protocol import job_store, wire
from llmtop.protocol.job_store import (
    END,
    LOST_SECONDS,
    POLL_SECONDS,
    TOKEN,
    Keys,
    NodeStatus,
    RankStatus,
    StoreRequest,
)
from llmtop.protocol.tcp_store import StoreError, TcpStore
from llmtop.trace.files.file_kind import TRACES

ANSWER_SECONDS = 5.0
"""Time within which a listening node has answered: it polls once per second, and its ranks have 1.5 s."""
CANCEL_SECONDS = 4.0
"""How long a call waits at its end for the nodes to have taken it back."""
FILE_VISIBLE_SECONDS = 5.0
_MAX_NOTES = 20


@dataclass
class _Node:
    """State of one node."""

    status: NodeStatus
    changed_at: float


@dataclass
class _PendingRequest:
    """One request under way."""

    store: TcpStore
    keys: Keys
    number: int
    hosts: list[int]
    """The listening nodes, by number."""
    asked_at: float = field(default_factory=time.monotonic)
    nodes: dict[int, _Node] = field(default_factory=dict)
    beat: int = 0
    polled_at: float = float("-inf")

    def ranks(self) -> dict[int, tuple[RankStatus, NodeStatus]]:
        """State of each rank, as far as a node has reported it."""
        return {one.rank: (one, node.status) for node in self.nodes.values() for one in node.status.ranks}


class MultiNodeEngine(Engine):
    """An engine of attached trainings, for ranks that are not all on this node."""

    supports_start_step = True

    def __init__(
        self, engine: InProcessEngine, local_job: LocalJob, ranks: tuple[int, ...] | None, node: str | None
    ) -> None:
        """Prepare; no node is asked yet.

        Args:
            engine: what each rank records with.
            local_job: the job's processes on this node; gives the address of its store.
            ranks: global ranks to capture; None: all, or those of `node`.
            node: host name of the one node to capture; None: all.
        """
        self._engine = engine
        self._local_job = local_job
        self._ranks = ranks
        self._node = node
        self.name, self.description = engine.name, engine.description
        self.has_time_report, self.open_with = engine.has_time_report, engine.open_with

    def refusal(self, target: Target) -> Refusal | None:
        """See `Engine.refusal`."""
        return self._engine.refusal(target)

    def record(self, job: CaptureJob) -> Recorded:
        """See `Engine.record`."""
        job.stage("prepare", "asking all nodes")
        token = _write_token(job.folder)
        asked = None
        try:
            with local_job.open_store(self._local_job) as store:
                asked = self._ask(job, store, token)
                try:
                    self._follow(job, asked)
                finally:
                    _cancel(asked)
            return self._collect(job, asked)
        except StoreError as error:
            raise NotPossibleHere(
                f"the TCPStore of the job is unreachable, perhaps because the job has ended: {error}"
            ) from None
        finally:
            with suppress(OSError):
                (job.folder / TOKEN).unlink()

    def _ask(self, job: CaptureJob, store: TcpStore, token: str) -> _PendingRequest:
        assert self._local_job.store is not None
        assert job.plan.at_step is not None
        keys = Keys(self._local_job.store.prefix)
        cards = local_job.list_nodes(store, self._local_job.store.prefix)
        if not cards:
            raise NotPossibleHere(
                "no node of this job receives capture requests: update llmtop on the nodes, and restart the "
                "training"
            )
        self._check_node([name for card in cards.values() for name in card.names])
        folder = TRACES if self._engine.has_time_report else "."
        (job.folder / folder).mkdir(exist_ok=True)
        ask = StoreRequest(
            id=secrets.token_hex(4),
            at_step=job.plan.at_step,
            steps=steps_to_record(job, self._engine),
            engine=self.name,
            options=dict.fromkeys(sorted(job.plan.options), True),
            memory_bytes=job.plan.memory_bytes,
            ranks=None if self._ranks is None else list(self._ranks),
            node=self._node,
            folder=str(job.folder),
            file=os.path.join(folder, f"rank{{rank}}{self._engine.suffix}"),
            token=token,
        )
        number = 1
        while not store.put(keys.ask(number), job_store.encode(ask)):
            number += 1
        return _PendingRequest(store, keys, number, sorted(cards))

    def _check_node(self, names: list[str]) -> None:
        short = {name.partition(".")[0] for name in names}
        if self._node is None or self._node in {*names, *short}:
            return
        known = ", ".join(dict.fromkeys(printable(name, 60) for name in names[:_MAX_NOTES]))
        raise NotPossibleHere(
            f"no node named {printable(self._node, 60)} receives capture requests of this job; these nodes do: "
            f"{known}"
        )

    # --- following -----------------------------------------------------------------------------------

    def _follow(self, job: CaptureJob, asked: _PendingRequest) -> None:
        """Poll the nodes until every rank has finished or failed."""
        job.stage("start", f"it begins at step {job.plan.at_step}")
        silence = _SilenceTimeout(job)
        while not self._is_over(asked):
            job.raise_if_cancelled()
            silence.check()
            if time.monotonic() - asked.polled_at >= POLL_SECONDS:
                _poll(asked)
                self._report_progress(job, asked)
            job.sleep(0.1)
        if job.window is None:
            job.window = time.time_ns(), time.time_ns()
        else:
            job.window = job.window[0], time.time_ns()

    def _report_progress(self, job: CaptureJob, asked: _PendingRequest) -> None:
        states = [told.state for told, _ in asked.ranks().values()]
        if job.window is None and any(state in ("recording", "writing", "done") for state in states):
            job.window = time.time_ns(), time.time_ns()
            job.stage("record")
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        job.report_progress(counts or "no node has answered yet")

    def _is_over(self, asked: _PendingRequest) -> bool:
        """Return True if no rank is left to wait for."""
        now = time.monotonic()
        ranks = asked.ranks()
        late = now - asked.asked_at > ANSWER_SECONDS
        expected = self._expected_ranks()
        if not late and (expected is None or not expected <= ranks.keys()):
            return False
        for node in asked.nodes.values():
            if now - node.changed_at > LOST_SECONDS:
                for told in node.status.ranks:
                    if told.state not in wire.CAPTURE_ENDED:
                        told.state, told.detail = "failed", "its node has gone, or what hears for it there"
        return all(told.state in wire.CAPTURE_ENDED for told, _ in asked.ranks().values())

    def _expected_ranks(self) -> set[int] | None:
        if self._ranks is not None:
            return set(self._ranks)
        return None if self._node is not None else set(range(self._local_job.world_size))

    # --- the end -------------------------------------------------------------------------------------

    def _collect(self, job: CaptureJob, asked: _PendingRequest) -> Recorded:
        job.stage("stop", "gathering")
        ranks = asked.ranks()
        done = {rank: one for rank, one in sorted(ranks.items()) if one[0].state == "done"}
        notes = [*self._missing_notes(ranks), *_failures(asked)]
        if not done:
            raise NotPossibleHere(
                f"no rank was captured: {'; '.join(notes[:4]) or 'no node has received the request: try again'}"
            )
        found = Recorded(notes=_truncate(notes))
        found.ranks = [CapturedRank(rank, told.pid, node.host) for rank, (told, node) in done.items()]
        for rank, (told, node) in done.items():
            path = job.folder / (TRACES if self._engine.has_time_report else ".") / Path(told.path).name
            if node.shared and _wait_for_file(path):
                traces.write_label(path, rank, self._local_job.world_size)
                found.traces += [path] if self._engine.has_time_report else []
            else:
                found.notes.append(_remote_file_text(rank, told, node, job.folder))
        firsts = {told.first_step for told, _ in done.values()}
        if len(firsts) > 1:
            found.notes.append(f"they did not begin at the same step: {sorted(map(str, firsts))}")
        lasts = [told.last_step for told, _ in done.values() if told.last_step is not None]
        found.first_step = max((step for step in firsts if step is not None), default=None)
        found.last_step = min(lasts, default=None)
        found.seconds = min((told.seconds for told, _ in done.values() if told.seconds is not None), default=None)
        early = [told.stopped_early for told, _ in done.values() if told.stopped_early]
        job.stopped_early = printable(early[0], 300) if early else ""
        return found

    def _missing_notes(self, ranks: dict[int, tuple[RankStatus, NodeStatus]]) -> list[str]:
        missing = sorted((self._expected_ranks() or set()) - ranks.keys())
        if not missing:
            return []
        named = ", ".join(map(str, missing[:16])) + (f" and {len(missing) - 16} more" if len(missing) > 16 else "")
        many = len(missing) > 1
        return [
            f"rank{'s' if many else ''} {named} {'have' if many else 'has'} not answered: gone, not attached, or "
            "nobody on that node hears"
        ]


class _SilenceTimeout:
    """Ends the wait for a training that does not go on."""

    def __init__(self, job: CaptureJob) -> None:
        self._job = job
        self._seen = -1
        self._since = time.monotonic()
        self._patience = max(SILENCE_SECONDS, 3 * (job.watch.median_seconds() or 0.0))

    def check(self) -> None:
        """Raise once there is nothing to wait for.

        Raises:
            NotPossibleHere: the training has ended, or no step of it ends.
        """
        if not self._job.is_alive:
            raise NotPossibleHere("the training ended before it was captured: start it again to capture it")
        newest = [
            step.started_unix_ns for steps in self._job.watch.steps_within(0).values() for step in steps[-1:]
        ]
        if newest and max(newest) != self._seen:
            self._seen, self._since = max(newest), time.monotonic()
        elif time.monotonic() - self._since > self._patience:
            raise NotPossibleHere(
                f"no step has ended for {self._patience:.0f} s: the training may hang; see the alert HUNG in "
                "llmtop"
            )


def _poll(asked: _PendingRequest) -> None:
    """Write the requester's heartbeat, and poll the nodes."""
    asked.polled_at = now = time.monotonic()
    asked.beat += 1
    asked.store.set(asked.keys.beat(asked.number), str(asked.beat).encode())
    for number in asked.hosts:
        status = job_store.decode(NodeStatus, asked.store.get(asked.keys.status(asked.number, number)) or b"")
        known = asked.nodes.get(number)
        if status is not None and (known is None or status.beat != known.status.beat):
            asked.nodes[number] = _Node(status, now)


def _cancel(asked: _PendingRequest) -> None:
    """Make every node end its capture; waits a moment until they have."""
    with suppress(StoreError):
        asked.store.set(asked.keys.beat(asked.number), END)
        asked.store.set(asked.keys.ask(asked.number), b"{}")
        until = time.monotonic() + CANCEL_SECONDS
        now = time.monotonic()
        waiting = [number for number, node in asked.nodes.items() if now - node.changed_at < LOST_SECONDS]
        while waiting and time.monotonic() < until:
            waiting = [number for number in waiting if asked.store.check(asked.keys.status(asked.number, number))]
            time.sleep(0.1)
        for number in asked.hosts:
            asked.store.delete(asked.keys.status(asked.number, number))


def _failures(asked: _PendingRequest) -> list[str]:
    """Return sentences on ranks that were not captured, and on nodes that refused."""
    failed = [_failure_text(status, node) for status, node in asked.ranks().values() if status.state != "done"]
    nodes = [one.status for one in asked.nodes.values() if one.status.refused]
    return failed + [f"{printable(node.host, 60)}: {printable(node.refused)}" for node in nodes]


def _failure_text(status: RankStatus, node: NodeStatus) -> str:
    why = printable(status.detail or status.state)
    return f"rank {status.rank} on {printable(node.host, 60)} (pid {status.pid}) was not captured: {why}"


def _wait_for_file(path: Path) -> bool:
    """Return True if a file is there that another node has written; a shared folder may show it a moment later."""
    until = time.monotonic() + FILE_VISIBLE_SECONDS
    while not path.is_file():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def _remote_file_text(rank: int, status: RankStatus, node: NodeStatus, folder: Path) -> str:
    host, path = printable(node.host, 60), printable(status.path)
    return (
        f"the trace of rank {rank} is on {host}, which does not share this folder: "
        f"scp {host}:{path} {folder / TRACES}; then: llmtop report {folder}"
    )


def _truncate(notes: list[str]) -> list[str]:
    return notes if len(notes) <= _MAX_NOTES else [*notes[:_MAX_NOTES], f"and {len(notes) - _MAX_NOTES} more"]


def _write_token(folder: Path) -> str:
    """Write a token by which another node recognises this folder as the asker's own."""
    token = secrets.token_hex(16)
    path = folder / TOKEN
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(number, "w") as file:
        file.write(token)
    return token
