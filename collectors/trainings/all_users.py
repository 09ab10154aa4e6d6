"""The trainings of all users of this machine, for root: each user's own folder, and nothing beyond it.

What another user's processes say is hostile until shown otherwise. Each user has a separate source, so that one
who keeps it busy does not delay the others' trainings.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from pathlib import Path

from collectors.base.gpu_lookup import GpuLookup
from collectors.base.interruptible_sleep import InterruptibleSleep
from collectors.base.source import RanksReading
from collectors.trainings.source import UNATTENDED_EVERY_MS, StepsSource
from llmtop.protocol import socket_dir

DISCOVERY_SECONDS = 5.0
"""Seconds between searches for users who have come or gone."""
MAX_USERS = 1024
_FOLDER = re.compile(r"^llmtop-(0|[1-9]\d{0,9})$")


class AllUsersSource:
    """A `RankSource` over every ``/tmp/llmtop-<uid>`` that belongs to that uid alone."""

    def __init__(self, gpus: GpuLookup | None = None, parent: Path | None = None) -> None:
        """Prepare; `start()` begins the search.

        Args:
            gpus: what the driver lists, as for `StepsSource`.
            parent: where the users' folders are, /tmp by default; `$LLMTOP_DIR` is ignored.
        """
        self._gpus = gpus
        self._parent = socket_dir.user_folder(0).parent if parent is None else parent
        self._sources: dict[int, StepsSource] = {}
        self._lock = threading.Lock()
        self._wake = InterruptibleSleep()
        self._closed = False
        self._looked = False
        self._thread = threading.Thread(target=self._run, name="llmtop-users", daemon=True)

    def start(self) -> None:
        """Begin to search for users' folders."""
        self._thread.start()

    def set_interval(self, seconds: float) -> None:
        """Do nothing, as `StepsSource.set_interval`.

        Args:
            seconds: ignored; each message is read when it arrives.
        """

    def is_settled(self) -> bool:
        """True once each training found at the start has sent a message or has reached its time limit."""
        return self._looked and all(source.is_settled() for source in self._known_sources().values())

    def latest(self) -> RanksReading:
        """Return the trainings of all users, by uid."""
        readings = [source.latest() for _, source in sorted(self._known_sources().items())]
        return RanksReading(
            ranks=tuple(rank for reading in readings for rank in reading.ranks),
            notes=tuple(dict.fromkeys(note for reading in readings for note in reading.notes)),
        )

    def pids(self) -> tuple[int, ...]:
        """This host's pids of the trainings that have not ended."""
        return tuple(pid for source in self._known_sources().values() for pid in source.pids())

    def close(self) -> None:
        """Close all connections, and end the searching threads."""
        self._closed = True
        self._wake.set()
        for source in self._known_sources().values():
            source.close()

    def _known_sources(self) -> dict[int, StepsSource]:
        with self._lock:
            return dict(self._sources)

    def _run(self) -> None:
        while not self._closed:
            there = user_ids(self._parent)
            for uid in [uid for uid in self._known_sources() if uid not in there]:
                with self._lock:
                    gone = self._sources.pop(uid)
                gone.close()
            for uid in sorted(there - set(self._known_sources()))[: max(0, MAX_USERS - len(self._sources))]:
                folder = self._parent / f"llmtop-{uid}"
                source = StepsSource(folder, self._gpus, owner=uid, engines=False, every_ms=UNATTENDED_EVERY_MS)
                source.start()
                with self._lock:
                    self._sources[uid] = source
            self._looked = True
            self._wake.wait(DISCOVERY_SECONDS)
            self._wake.clear()


def user_ids(parent: Path) -> set[int]:
    """Return the uids with a folder of their own there: no link, owned by them, writable by no one else."""
    try:
        names = os.listdir(parent)
    except OSError:
        return set()
    return {
        int(found[1]) for name in names if (found := _FOLDER.match(name)) and _is_own(parent / name, int(found[1]))
    }


def _is_own(folder: Path, uid: int) -> bool:
    try:
        info = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == uid and not info.st_mode & 0o022
