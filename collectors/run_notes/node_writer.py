"""The thread that writes what a monitor sees into the runs of this node's trainings.

One process of a node writes: it holds a lock in the folder of the trainings' sockets, which the system takes back
however the process ends. The others try again every few seconds.
"""

from __future__ import annotations

import fcntl
import os
import queue
import sys
import threading
import time
from pathlib import Path

from collectors.run_notes.notes import RunNotes, SeenSnapshot
from llmtop.errors import LlmtopError
from llmtop.model.snapshot import Rank, Snapshot
from llmtop.protocol.socket_dir import runtime_dir
from llmtop.runs.running import find_running

LOCK = "runs.lock"
"""File in the folder of the sockets: monitors that see the same trainings have the same one."""
TURN_SECONDS = 5.0
"""How often a monitor that has no turn tries to get it."""
FIND_SECONDS = 5.0
"""How often the run of a training is searched for that has none yet."""
PENDING = 64
"""Snapshots that may wait for the disk; those that come when it is so far behind are counted."""
EXIT_SECONDS = 1.0

_RankKey = tuple[int, float]
"""pid and when it attached."""


class NodeWriter:
    """Writes the node's file of each run. `put` and `close` are the monitor's, all else is its own thread's."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[SeenSnapshot | None] = queue.SimpleQueue()
        self._left_out = 0
        self.trouble = ""
        """Why something is not written, as a sentence; "" while all is."""
        self._lock: int | None = None
        self._turn_at = self._find_at = 0.0
        self._runs: dict[Path, RunNotes] = {}
        self._by_rank: dict[_RankKey, RunNotes] = {}
        self._monitor = _command()
        self._thread = threading.Thread(target=self._run, name="llmtop-runs", daemon=True)
        self._thread.start()

    @property
    def holds_turn(self) -> bool:
        """Return True if this process is the one that writes."""
        return self._lock is not None

    def put(self, snapshot: Snapshot, ranks: tuple[Rank, ...]) -> None:
        """Hand over what a snapshot shows of some trainings; never waits.

        While another process has the turn, nothing is handed over until it is time to try for it again: waking the
        thread costs more than all else here.
        """
        mono = time.monotonic() if snapshot.monotonic is None else snapshot.monotonic
        if self._lock is None and mono < self._turn_at:
            return
        if self._waiting.qsize() >= PENDING:
            self._left_out += 1
            self.trouble = f"{self._left_out} snapshots are in no run: the disk of the runs does not answer"
            return
        self._waiting.put(SeenSnapshot(snapshot.time, mono, snapshot.gpus, ranks, snapshot.alerts))

    def close(self) -> None:
        """Write the last minute and release the turn; waits a moment for it."""
        if self._waiting.qsize() < PENDING:  # else the disk hangs, and the thread with it
            self._waiting.put(None)
            self._thread.join(EXIT_SECONDS)

    def _run(self) -> None:
        last: SeenSnapshot | None = None
        while (seen := self._waiting.get()) is not None:
            last = seen
            if self._has_turn(seen.mono):
                self._take(seen)
        for run in self._runs.values():
            run.end(time.time() if last is None else last.at)
        if self._lock is not None:
            os.close(self._lock)

    def _has_turn(self, mono: float) -> bool:
        if self._lock is not None:
            return True
        if mono < self._turn_at:
            return False
        self._turn_at = mono + TURN_SECONDS
        try:
            self._lock = locked(runtime_dir() / LOCK)
        except (OSError, LlmtopError) as error:
            self.trouble = f"nothing of this screen is kept in runs: {error}"
        return self._lock is not None

    def _take(self, seen: SeenSnapshot) -> None:
        self._find(seen)
        left_out, self._left_out = self._left_out, 0
        for run in self._runs.values():
            run.take(seen, left_out)
        troubles = [run.trouble for run in self._runs.values() if run.trouble]
        self.trouble = troubles[0] if troubles else ""

    def _find(self, seen: SeenSnapshot) -> None:
        """Search for the runs of trainings that are new."""
        present = {(rank.pid, rank.attached_at or 0.0): rank for rank in seen.ranks}
        for key in [key for key in self._by_rank if key not in present]:
            del self._by_rank[key]
        used = set(map(id, self._by_rank.values()))
        for path in [path for path, run in self._runs.items() if id(run) not in used]:
            self._runs.pop(path).end(seen.at)
        new = [key for key in present if key not in self._by_rank]
        if not new or seen.mono < self._find_at:
            return
        self._find_at = seen.mono + FIND_SECONDS
        for key in new:
            rank = present[key]
            found = find_running(rank.pid, rank.attached_at or 0.0, rank.rank)
            if found is None:
                continue
            run = self._runs.get(found.path)
            if run is None:
                try:
                    run = self._runs[found.path] = RunNotes(found, self._monitor, seen.at, seen.mono)
                except (LlmtopError, OSError) as error:
                    self.trouble = f"nothing can be written to the run {found.path.name}: {error}"
                    continue
            run.pids.add(rank.pid)
            self._by_rank[key] = run


def locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock; None where another process holds it.

    Raises:
        OSError: the file cannot be opened.
    """
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(number)
        return None
    except OSError:
        os.close(number)
        raise
    return number


def _command() -> str:
    """Return which command of llmtop this process is; "" for another program."""
    words = [word for word in sys.argv[1:2] if not word.startswith("-")]
    return words[0] if words else "live"
