"""Snapshot of the allocator at an out-of-memory error of a process, kept only if the process ends by it.

torch has observers for that, any number of them, so none of the user's is taken. They are called in the thread
that asked for memory, before the error is raised and with no lock held; what one raises would come in the error's
place, so this one raises nothing of its own. A script that answers the error, by a smaller batch, may meet
another: then the snapshot is taken anew, `MOST_TAKEN` times in all.

Attaching makes torch initialise CUDA. So it is left to torch to call us when CUDA is initialised anyway.
"""

from __future__ import annotations

import atexit
import os
import pickle
import shutil
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from llmtop.errors import NotPossibleHere
from llmtop.instrument.control.allocator_snapshot import KEY
from llmtop.instrument.guest import guard, sanitize
from llmtop.naming import file_names, variable_names
from llmtop.protocol import socket_dir
from llmtop.system import procfs

MOST_BYTES = 256 << 20
MOST_SECONDS = 5.0
MOST_TAKEN = 3
"""A search for the largest batch that fits meets many errors, and shall not wait at each."""
HISTORY_ENTRIES = 100_000
"""Most entries of the history that ``llmtop run --memory-history`` records all the time; the oldest go first."""
MOST_KEPT = 8
"""Snapshots in the folder: one a GPU of a node, of its last run."""
_ENDING = socket_dir.MEMORY_SNAPSHOT
_FRAMES = 64

_watching = False
_taken: _Taken | None = None
_errors = 0
_busy = threading.Lock()
"""Held while a snapshot is taken: errors of other threads meanwhile have none."""
_history_is_ours = False


def watch() -> None:
    """Attach once CUDA is initialised, if torch has CUDA; where it is already, at once."""
    global _watching
    torch = sys.modules["torch"]
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is None or _watching:
        return
    _watching = True

    def when_initialised() -> None:
        try:
            if os.environ.get(variable_names.MEMORY_HISTORY):
                _record_history(torch)
            attach(_on_out_of_memory)
        except Exception as error:  # noqa: BLE001 - to the one door, which passes on what is the script's
            guard.report_internal_error("out-of-memory errors", error)

    torch.cuda._lazy_call(when_initialised)


def keeps_history() -> bool:
    """Return True if the allocator's history is recorded all the time because the user asked llmtop for it."""
    return _history_is_ours


def _record_history(torch: Any) -> None:
    global _history_is_ours
    if torch._C._cuda_isHistoryEnabled():
        return  # the script's own
    torch.cuda.memory._record_memory_history(
        enabled="all", context="all", stacks="python", max_entries=HISTORY_ENTRIES
    )
    _history_is_ours = True


def _on_out_of_memory(device: int, wanted: int, _allowed: int, device_free: int) -> None:
    """Called by torch at every out-of-memory error."""
    global _errors, _taken
    if not _busy.acquire(blocking=False):
        return
    try:
        _errors += 1
        if _taken is not None:
            _taken.discard()
            _taken = None
        if _errors > MOST_TAKEN:
            return
        error = {
            "device": device,
            "wanted_bytes": wanted,
            "device_free_bytes": device_free,
            "frames": _frames(sys._getframe().f_back),
        }
        _taken = _Taken(os.getpid(), _snapshot(sys.modules["torch"]), error)
        atexit.register(_taken.end)
    except Exception as failed:  # noqa: BLE001 - as above
        guard.report_internal_error("the snapshot at an out-of-memory error", failed)
    finally:
        _busy.release()


def _snapshot(torch: Any) -> dict[str, Any]:
    """Return the allocator's state; with its history where that is ours, and so of a known size."""
    if _history_is_ours or not torch._C._cuda_isHistoryEnabled():
        found: dict[str, Any] = torch.cuda.memory._snapshot()
        return found
    return {"segments": torch.cuda.memory.memory_snapshot(include_traces=False), "device_traces": []}


def _frames(frame: FrameType | None) -> list[dict[str, Any]]:
    """Return the stack that asked for memory; autograd's own threads have none, and the main thread waits for
    them."""
    if frame is None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
    found: list[dict[str, Any]] = []
    while frame is not None and len(found) < _FRAMES:
        code = frame.f_code
        found.append({"filename": code.co_filename, "line": frame.f_lineno or 0, "name": code.co_name})
        frame = frame.f_back
    return found


class _TooMuchError(Exception):
    """The file has become too large, or has taken too long."""


class _Bounded:
    """A file that takes so many bytes in so many seconds."""

    def __init__(self, file: Any, until: float) -> None:
        self._file = file
        self._left = MOST_BYTES
        self._until = until

    def write(self, data: Any) -> int:
        """Write, as a file does."""
        self._left -= len(data)
        if self._left < 0 or time.monotonic() > self._until:
            raise _TooMuchError(f"more than {MOST_BYTES >> 20} MiB or {MOST_SECONDS:.0f} s")
        return int(self._file.write(data))


class _Taken:
    """The snapshot of this process, in a file that goes again unless the process ends by the error."""

    def __init__(self, pid: int, snapshot: dict[str, Any], error: dict[str, Any]) -> None:
        self._pid = pid
        self.path = socket_dir.memory_snapshot(pid)
        self.partial = self.path.with_name(self.path.name + file_names.PARTIAL)
        snapshot[KEY] = {"out_of_memory": [error]}
        socket_dir.make_dir(self.path.parent)
        _clear(self.path.parent)
        if shutil.disk_usage(self.path.parent).free < 2 * MOST_BYTES:
            raise NotPossibleHere(f"less than {2 * MOST_BYTES >> 20} MiB are free at {self.path.parent}")
        number = os.open(self.partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(number, "wb") as file:
                pickle.dump(snapshot, _Bounded(file, time.monotonic() + MOST_SECONDS), protocol=4)
        except BaseException:
            with suppress(OSError):
                os.unlink(self.partial)
            raise

    def discard(self) -> None:
        """It is of an error that did not end the process."""
        atexit.unregister(self.end)
        with suppress(OSError):
            os.unlink(self.partial)

    def end(self) -> None:
        """At the exit: keep the snapshot if an out-of-memory error ended the process."""
        if os.getpid() != self._pid:
            return  # a forked child: it is its parent's
        with suppress(OSError):
            if not ended_by_error(sys.modules["torch"].cuda.OutOfMemoryError):
                os.unlink(self.partial)
                return
            os.replace(self.partial, self.path)
            watch_of_run = sanitize.launcher()
            if watch_of_run is not None:
                watch_of_run.kept(os.fspath(self.path))


def ended_by_error(kind: type[BaseException]) -> bool:
    """Return True if the exception that ends this process is of that kind, or was raised because of one."""
    error: BaseException | None = getattr(sys, "last_value", None)
    seen = 0
    while error is not None and seen < 100:
        if isinstance(error, kind):
            return True
        error, seen = error.__cause__ or (None if error.__suppress_context__ else error.__context__), seen + 1
    return False


def _clear(folder: Path) -> None:
    """Remove what killed processes have left, and all but the newest kept ones."""
    kept = []
    for path in folder.iterdir():
        pid = path.name.partition("-")[0]
        if path.name.endswith(_ENDING + file_names.PARTIAL) and pid.isdigit() and not procfs.is_alive(int(pid)):
            with suppress(OSError):
                path.unlink()
        elif path.name.endswith(_ENDING):
            with suppress(OSError):
                kept.append((path.stat().st_mtime, path))
    for _, path in sorted(kept)[: max(0, len(kept) - MOST_KEPT + 1)]:
        with suppress(OSError):
            path.unlink()
