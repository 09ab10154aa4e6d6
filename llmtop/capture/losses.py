"""Which nsys sessions have lost records, so that nothing more is captured from them.

nsys 2025.3.1 crashed eight of ten trainings that it collected from again and again on an H200 (`free(): invalid
pointer`, in the training). Seven of the eight had lost kernels in one of the collections before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from llmtop import wire
from llmtop.capture import proc

REFUSAL = "an nsys capture of it lacked kernels, and nsys has crashed trainings in the captures after such a one"


def remember(session: str, pids: Iterable[int]) -> None:
    """A capture in that session lacks kernels; it holds for as long as one of its processes lives."""
    path = _path(session)
    wire.make_dir(path.parent)
    path.write_bytes(msgspec.json.encode({pid: proc.started_ticks(pid) for pid in pids}))


def happened(session: str) -> bool:
    """Whether one did."""
    path = _path(session)
    try:
        known = msgspec.json.decode(path.read_bytes(), type=dict[int, int | None])
    except (OSError, msgspec.DecodeError):
        return False
    # The numbers of sessions and processes come again.
    if any(ticks is not None and proc.started_ticks(pid) == ticks for pid, ticks in known.items()):
        return True
    with suppress(OSError):
        path.unlink()
    return False


def _path(session: str) -> Path:
    return wire.runtime_dir() / f"nsys-{re.sub(r'[^A-Za-z0-9-]', '_', session)}.lost"
