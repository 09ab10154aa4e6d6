"""When a run has ended. Only the standard library: the keepers import this in a bare interpreter."""

from __future__ import annotations

import secrets
import time

from llmtop.system.procfs import has_variable, is_alive, pids

MARKER = "LLMTOP_RUN_ID"
"""Variable of every process of one run, by which background processes of the run are found too."""
POLL_SECONDS = 0.25
BACKGROUND_POLL_SECONDS = 1.0


def new_marker() -> str:
    """Return a value for `MARKER` that no other run has."""
    return secrets.token_hex(8)


def wait_for_end(pid: int, marker: str) -> None:
    """Return once the process, and then all others that carry the run's marker, have ended."""
    while is_alive(pid):
        time.sleep(POLL_SECONDS)
    while _any_carries(f"{MARKER}={marker}".encode()):
        time.sleep(BACKGROUND_POLL_SECONDS)


def _any_carries(entry: bytes) -> bool:
    return any(has_variable(pid, entry) for pid in pids())
