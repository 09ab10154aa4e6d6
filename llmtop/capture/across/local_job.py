"""The job of a multi-node capture, as known from the ranks on this node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmtop.capture.base.job import Target
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.format import printable
from llmtop.protocol import job_store, tcp_store, wire
from llmtop.protocol.job_store import Keys, NodeCard
from llmtop.protocol.tcp_store import StoreError, TcpStore

MAX_NODES = 100_000


@dataclass(frozen=True)
class LocalJob:
    """One job, by its ranks on this node."""

    targets: tuple[Target, ...]
    """Targets by rank."""
    world_size: int
    store: wire.JobStore | None

    @property
    def local_ranks(self) -> frozenset[int]:
        """Which of them are on this node."""
        return frozenset(target.rank for target in self.targets if target.rank is not None)

    def targets_of_ranks(self, ranks: Sequence[int]) -> tuple[Target, ...]:
        """Return those of these ranks that are on this node."""
        return tuple(target for target in self.targets if target.rank in ranks)


def find_job(known: Sequence[Target], pid: int | None = None) -> LocalJob:
    """Return the job that has ranks here.

    Args:
        known: the attached trainings of this node.
        pid: one of its processes, where several jobs run here.

    Raises:
        NotPossibleHere: none is attached here.
        UnusableInput: several are, or that process is none.
    """
    jobs: dict[object, list[Target]] = {}
    for target in known:
        if target.hello is not None and target.rank is not None:
            jobs.setdefault(_job(target), []).append(target)
    if pid is not None:
        jobs = {key: ranks for key, ranks in jobs.items() if any(target.pid == pid for target in ranks)}
        if not jobs:
            raise UnusableInput(f"process {pid} is not an attached rank of a job: llmtop --once lists the ranks")
    if not jobs:
        raise NotPossibleHere(
            "no rank of a job is attached on this node: run this command on a node of the job, with ranks under "
            "llmtop run"
        )
    if len(jobs) > 1:
        some = ", ".join(
            f"{ranks[0].pid} ({printable(ranks[0].command or '?', 40)})" for ranks in list(jobs.values())[:8]
        )
        raise UnusableInput(f"several jobs have ranks here: {some}; choose one with --pid")
    ranks = sorted(next(iter(jobs.values())), key=lambda target: target.rank or 0)
    hello = ranks[0].hello
    assert hello is not None
    return LocalJob(tuple(ranks), hello.world_size or len(ranks), hello.store)


def _job(target: Target) -> object:
    hello = target.hello
    assert hello is not None
    if hello.store is not None:
        return hello.store.address, hello.store.prefix
    launch = hello.launch
    return launch.master, launch.run_id, launch.slurm_job_id


def local_node_names(job: LocalJob) -> frozenset[str]:
    """Return the host names of the node of these ranks, with and without the domain."""
    names = {target.hello.host for target in job.targets if target.hello is not None}
    return frozenset({*names, *(name.partition(".")[0] for name in names)})


def list_nodes(store: TcpStore, prefix: str) -> dict[int, NodeCard]:
    """Return the listening nodes, by number.

    Raises:
        StoreError: the store has gone.
    """
    keys = Keys(prefix)
    found = {}
    for number in range(1, min(store.add(keys.nodes, 0), MAX_NODES) + 1):
        card = job_store.decode(NodeCard, store.get(keys.node(number)) or b"")
        if card is not None and card.names:
            found[number] = card
    return found


def open_store(job: LocalJob) -> TcpStore:
    """Return the job's store.

    Raises:
        NotPossibleHere: it has none, or it cannot be reached; the sentence names the alternative.
    """
    if job.store is None:
        raise NotPossibleHere(
            "the ranks of this job do not use a supported TCPStore "
            f"(torch before {'.'.join(map(str, tcp_store.FIRST_TORCH))}, a file, MPI, or all of them on this node)"
        )
    try:
        return TcpStore.open(job.store.address)
    except StoreError as error:
        raise NotPossibleHere(
            f"the TCPStore of the job is unreachable, perhaps because the job has ended: {error}"
        ) from None


def manual_command(job: LocalJob, step: int) -> str:
    """Return the commands that ask every node by itself, where the store cannot be had."""
    hello = job.targets[0].hello
    slurm = hello.launch.slurm_job_id if hello is not None else ""
    command = f"llmtop capture --at-step {step} --ranks here"
    return f"srun --overlap --jobid {slurm or 'JOB'} --ntasks-per-node 1 {command}; or: clush -w NODES {command}"
