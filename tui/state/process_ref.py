"""Which process a key is about: that of an alert, or the one whose steps are shown."""

from __future__ import annotations

from typing import NamedTuple

from llmtop.model.snapshot import Alert, Rank, Snapshot
from tui.paint import gpu_names


class ProcessRef(NamedTuple):
    """A process to capture, or to ask for its stacks."""

    pid: int | None = None
    name: str = ""
    """"rank 3" or "pid 4711"."""
    why: str = ""
    """Why there is none, as a clause; "" where there is one or none is needed."""
    by_alert: bool = False
    """True if an alert named it: then it is meant, and not the whole job."""


def rank_process(rank: Rank | None) -> ProcessRef:
    """Return the process whose steps are shown."""
    return ProcessRef() if rank is None else ProcessRef(rank.pid, name(rank))


def name(rank: Rank) -> str:
    """ "rank 3", or the pid of a process that is no rank."""
    return f"pid {rank.pid}" if rank.rank is None else f"rank {rank.rank}"


def alert_process(alert: Alert, snapshot: Snapshot) -> ProcessRef:
    """Return the process that an alert is about: the one it names, else a training on its GPU, else a process
    on it."""
    if alert.pid is not None:
        rank = next((one for one in snapshot.ranks if one.pid == alert.pid), None)
        if rank is not None and rank.state == "gone":
            return ProcessRef(why=f"{name(rank)} has ended", by_alert=True)
        return ProcessRef(alert.pid, f"pid {alert.pid}" if rank is None else name(rank), by_alert=True)
    if alert.gpu is None:
        return ProcessRef(why="this alert concerns no single process: choose a process with p", by_alert=True)
    for one in snapshot.ranks:
        if one.gpu_uuid == alert.gpu and one.state != "gone":
            return ProcessRef(one.pid, name(one), by_alert=True)
    for process in snapshot.processes:
        if process.gpu_uuid == alert.gpu and process.command is not None:
            return ProcessRef(process.pid, f"pid {process.pid}", by_alert=True)
    gpu = next((one for one in snapshot.gpus if one.uuid == alert.gpu), None)
    where = "that GPU" if gpu is None else f"GPU {gpu_names.label(gpu, snapshot.gpus)}"
    return ProcessRef(why=f"no process on {where} is visible from here", by_alert=True)
