"""The stations on a snapshot's way from the sources to what shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from msgspec.structs import replace

from llmtop.model.snapshot import Snapshot

Stage = Callable[[Snapshot], Snapshot]
"""Takes a snapshot and returns it, with something added perhaps: the rules, a recorder, a command on alerts."""


@runtime_checkable
class EndingStage(Protocol):
    """A stage that has started something of its own."""

    def end(self) -> None:
        """End it: a thread, a process. Called once, after the last snapshot."""


def with_note(snapshot: Snapshot, note: str) -> Snapshot:
    """Return the snapshot with one more sentence for the person at the screen."""
    return replace(snapshot, host=replace(snapshot.host, notes=(*snapshot.host.notes, encodable(note))))


def encodable(text: str) -> str:
    """`text` without what UTF-8, and so JSON, cannot hold: a path may have bytes that are no text at all."""
    return text.encode("utf-8", "replace").decode("utf-8")


def run(stages: Iterable[Stage], snapshot: Snapshot) -> Snapshot:
    """Send the snapshot through the stages, in order. A stage that fails is skipped, and a note reports it."""
    for stage in stages:
        snapshot = _run_one(stage, snapshot)
    return snapshot


def _run_one(stage: Stage, snapshot: Snapshot) -> Snapshot:
    try:
        return stage(snapshot)
    except Exception as error:  # noqa: BLE001  a fault in a rule must not end the monitor: a note reports it
        return with_note(
            snapshot, f"a fault in llmtop itself ({stage!r}: {error!r}); what it would have added is missing"
        )
