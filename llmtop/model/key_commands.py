"""Commands in place of the keys that the advice of an alert names, for outputs that have no keys."""

from __future__ import annotations

import re

from msgspec.structs import replace

from llmtop.model.snapshot import Snapshot

_OR_RUN = re.compile(r"press s for (the Python stacks? of [^;,]+), or run: ")
_LOADER = "press s for the Python stacks of the data loader"


def without_keys(advice: str, pid: int | None) -> str:
    """Return an advice with the command that does the same as each key.

    Args:
        advice: for a person at the screen: "press c to profile a few steps".
        pid: of the process that it is about; None: the command names none, or has PID in its place.
    """
    process = "PID" if pid is None else str(pid)
    advice = advice.replace(_LOADER, f"run llmtop doctor --loader {process} to see what the data loader does")
    advice = _OR_RUN.sub(r"for \1, run: ", advice)
    advice = advice.replace("press s ", f"run py-spy dump --pid {process} ")
    advice = advice.replace("press c on another rank", "run llmtop capture on another rank")
    return advice.replace("press c ", "run llmtop capture " + ("" if pid is None else f"--pid {pid} "))


def with_commands(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with alerts whose advice names commands instead of keys."""
    alerts = tuple(replace(alert, next=without_keys(alert.next, alert.pid)) for alert in snapshot.alerts)
    return replace(snapshot, alerts=alerts) if alerts else snapshot
