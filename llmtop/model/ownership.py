"""Owners of processes and GPUs: on a shared machine, not all are the reader's own."""

from __future__ import annotations

from llmtop.model.snapshot import Process, Snapshot


def other_user(process: Process, snapshot: Snapshot) -> str | None:
    """Return the user of a process, if that is another than the monitor's; None also where either is not known."""
    me = snapshot.host.user
    return None if me is None or process.user in (None, me) else process.user


def other_users_on(gpu_uuid: str, snapshot: Snapshot) -> list[str]:
    """Return the other users who have processes on a GPU, each once."""
    found = (other_user(one, snapshot) for one in snapshot.processes if one.gpu_uuid == gpu_uuid)
    return [user for user in dict.fromkeys(found) if user is not None]


def owner_text(gpu_uuid: str, snapshot: Snapshot) -> str:
    """Return the users of a GPU: "used by ann, bob alone" or "used by ann too"; "" where no other user has it."""
    others = other_users_on(gpu_uuid, snapshot)
    if not others:
        return ""
    theirs = all(
        other_user(one, snapshot) is not None for one in snapshot.processes if one.gpu_uuid == gpu_uuid
    ) and not any(rank.gpu_uuid == gpu_uuid and _is_ours(rank.pid, snapshot) for rank in snapshot.ranks)
    return f"used by {', '.join(others)} {'alone' if theirs else 'too'}"


def _is_ours(pid: int, snapshot: Snapshot) -> bool:
    """Return True if a training may belong to the reader: it is not known to belong to another user."""
    return all(other_user(one, snapshot) is None for one in snapshot.processes if one.pid == pid)
