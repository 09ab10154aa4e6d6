"""Recording what passes, in a thread of its own: a slow or full disk never holds up what is being watched."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

from collectors.base.pipeline import with_note
from llmtop.errors import LlmtopError
from llmtop.model.snapshot import Snapshot
from llmtop.recording.reader_writer import Writer

PENDING_SNAPSHOTS = 100
"""How many may wait for the disk; those that come when it is so far behind are left out, and counted."""


class RecordStage:
    """A stage for the hub that writes each snapshot to a recording and passes it on."""

    def __init__(
        self, path: str | Path, *, host: str, overwrite: bool = False, environment: dict[str, Any] | None = None
    ) -> None:
        """Create the file at once, so that a bad path is known before anything is watched.

        Arguments as of `llmtop.recording.reader_writer.Writer`.

        Raises:
            LlmtopError: as `llmtop.recording.reader_writer.Writer`.
        """
        self._writer = Writer(path, host=host, overwrite=overwrite, environment=environment)
        self._waiting: queue.Queue[Snapshot | None] = queue.Queue(PENDING_SNAPSHOTS)
        self.error: LlmtopError | None = None
        """Why recording ended early."""
        self.written = 0
        self.left_out = 0
        """Snapshots that the disk was too slow for."""
        self._thread = threading.Thread(target=self._write, name="llmtop-recorder", daemon=True)
        self._thread.start()

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Hand the snapshot to the disk's thread and return it, with a note when recording does not go on."""
        if self.error is not None:
            return with_note(snapshot, str(self.error))
        try:
            self._waiting.put_nowait(snapshot)
        except queue.Full:
            self.left_out += 1
            return with_note(
                snapshot, f"{self._writer.path}: the disk is too slow; {self.left_out} snapshots were not recorded"
            )
        return snapshot

    def close(self, seconds: float = 5.0) -> None:
        """Write the queued snapshots and end the recording.

        Args:
            seconds: the longest wait, once for room in the queue and once for the disk; what is not written by
                then is lost.
        """
        try:
            self._waiting.put(None, timeout=seconds)
        except queue.Full:
            return
        self._thread.join(seconds)

    def _write(self) -> None:
        try:
            while (snapshot := self._waiting.get()) is not None:
                self._writer.write(snapshot)
                self.written += 1
        except LlmtopError as error:
            self.error = error
        try:
            self._writer.close()
        except LlmtopError as error:
            self.error = self.error or error
