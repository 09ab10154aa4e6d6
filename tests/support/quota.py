"""A disk quota for child processes (tests/quota_stub), built with gcc."""

from __future__ import annotations

from pathlib import Path

from tests.support import clock

_SOURCE = Path(__file__).resolve().parents[1] / "quota_stub" / "quota.c"


def environment(folder: Path, most_bytes: int) -> dict[str, str]:
    """Return what a child process needs in its environment.

    Args:
        folder: below which the quota holds.
        most_bytes: how much the process may write there.
    """
    return {
        "LD_PRELOAD": str(clock.build(_SOURCE)),
        "LLMTOP_QUOTA_FOLDER": str(folder.resolve()),
        "LLMTOP_QUOTA_BYTES": str(most_bytes),
    }
