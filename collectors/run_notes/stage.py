"""A stage behind the rules that has GPU signals, alerts and captures written beside the runs of trainings.

As long as no training of this user is attached it does nothing, and nothing of what writes is loaded.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from collectors.base.pipeline import with_note
from llmtop.model.snapshot import Rank, Snapshot

if TYPE_CHECKING:
    from collectors.run_notes.node_writer import NodeWriter


class KeepRuns:
    """Passes snapshots on, and hands what belongs into runs to a thread."""

    def __init__(self) -> None:
        self._uid = os.geteuid()
        self._writer: NodeWriter | None = None

    def __repr__(self) -> str:
        return "what is written to runs"

    @property
    def is_writing(self) -> bool:
        """Return True if this process is the one of this node that writes."""
        return self._writer is not None and self._writer.holds_turn

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Pass the snapshot on, with a note while the disk does not take what is written."""
        ranks = tuple(rank for rank in snapshot.ranks if self._is_own(rank))
        if not ranks:
            self.close()
            return snapshot
        if self._writer is None:
            from collectors.run_notes.node_writer import NodeWriter

            self._writer = NodeWriter()
        self._writer.put(snapshot, ranks)
        trouble = self._writer.trouble
        return with_note(snapshot, trouble) if trouble else snapshot

    def close(self) -> None:
        """Write the present data; waits a moment for it."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _is_own(self, rank: Rank) -> bool:
        return rank.uid == self._uid and bool(rank.attached_at)
