"""Marks nsys sessions that have lost records, so that nothing more is captured from them.

Ten trainings on an H200 were collected from by nsys 2025.3.1 again and again, and each collection checked. It
crashed eight (`free(): invalid pointer`, in the training), seven of which had lost kernels in a collection before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from llmtop.protocol import socket_dir
from llmtop.system import procfs

REFUSAL = "the last nsys capture of the process lacked kernels, and another one could crash the training"


def note_loss(session: str, pids: Iterable[int]) -> None:
    """A capture in that session lacks kernels; it holds for as long as one of its processes lives."""
    path = _path(session)
    socket_dir.make_dir(path.parent)
    known = _read_pids(path)
    path.write_bytes(msgspec.json.encode(known | {pid: procfs.started_ticks(pid) for pid in pids}))


def has_loss(session: str) -> bool:
    """Return True if a capture in that nsys session has lost kernels."""
    path = _path(session)
    known = _read_pids(path)
    if not known:
        return False
    # The numbers of sessions and processes come again.
    if any(ticks is not None and procfs.started_ticks(pid) == ticks for pid, ticks in known.items()):
        return True
    with suppress(OSError):
        path.unlink()
    return False


def _read_pids(path: Path) -> dict[int, int | None]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[int, int | None])
    except (OSError, msgspec.DecodeError):
        return {}


def _path(session: str) -> Path:
    return socket_dir.runtime_dir() / f"nsys-{re.sub(r'[^A-Za-z0-9-]', '_', session)}.lost"
