"""llmtop record --daemon: a watcher without a screen that adds GPU signals, alerts and captures to runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from llmtop.cli.output import print_text
from llmtop.errors import EXIT_DONE, NotPossibleHere
from llmtop.model.snapshot import Snapshot
from llmtop.protocol import socket_dir

LOCK = "watcher.lock"
"""File in the folder of the trainings' sockets, held by the watcher, with its pid."""
LOG = "watcher.log"
"""Beside it: what the watcher wrote to stderr since it started."""
INTERVAL_SECONDS = 3.0
"""Time between samples where no interval is given: a minute has twenty."""
START_SECONDS = 30.0
STOP_SECONDS = 15.0
_POLL_SECONDS = 0.05
_DIGITS = re.compile(r"\d+")
_MOST_NOTES = 100
_END_IT = "llmtop record --daemon --stop ends it"


def start(options: Sequence[str]) -> int:
    """Start the watcher in the background, unless it runs.

    Args:
        options: of `llmtop record`, for the watcher.

    Raises:
        NotPossibleHere: it ended at once, or did not begin to watch in time.
    """
    folder = _folder()
    running = _holder(folder / LOCK)
    if running is not None:
        print_text(f"a watcher runs already, pid {running}; {_END_IT}", err=True)
        return EXIT_DONE
    log = folder / LOG
    with _new_file(log) as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "llmtop", "record", "--daemon", "--foreground", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while _holder(folder / LOCK) != process.pid:
        if process.poll() is not None:
            said = log.read_text(errors="replace").strip().rpartition("\n")[2].removeprefix("llmtop: ")
            raise NotPossibleHere(f"the watcher ended at once: {said or f'exit code {process.returncode}'}")
        if time.monotonic() > deadline:
            process.terminate()
            raise NotPossibleHere(f"the watcher did not begin within {START_SECONDS:.0f} s; see {log}")
        time.sleep(_POLL_SECONDS)
    print_text(f"a watcher runs in the background, pid {process.pid}; {_END_IT}", err=True)
    return EXIT_DONE


def stop() -> int:
    """End the watcher of this node and user, once what it knows is written.

    Raises:
        NotPossibleHere: it does not end.
    """
    lock = _folder() / LOCK
    pid = _holder(lock)
    if pid is None:
        print_text("no watcher runs", err=True)
        return EXIT_DONE
    deadline = time.monotonic() + STOP_SECONDS
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    while _holder(lock) == pid:
        if time.monotonic() > deadline:
            raise NotPossibleHere(f"the watcher, pid {pid}, does not end; end it with: kill -9 {pid}")
        time.sleep(_POLL_SECONDS)
    print_text(f"the watcher, pid {pid}, has ended", err=True)
    return EXIT_DONE


def watch(run: Callable[[], None]) -> int:
    """Watch in the foreground, as the only watcher of this node and user.

    Args:
        run: watches until a signal comes.

    Raises:
        NotPossibleHere: another watcher runs.
    """
    lock = _folder() / LOCK
    number = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not _try_lock(number):
            raise NotPossibleHere(f"another watcher runs, pid {_holder(lock)}; {_END_IT}")
        os.ftruncate(number, 0)
        os.pwrite(number, b"%d\n" % os.getpid(), 0)
        run()
    finally:
        os.close(number)
    return EXIT_DONE


class NoteLog:
    """Prints the notes of snapshots on stderr, each once: a watcher has no screen."""

    def __init__(self) -> None:
        """Begin without a note."""
        self._seen: set[str] = set()

    def __call__(self, snapshot: Snapshot) -> None:
        """Print the notes that are new but for their numbers."""
        for note in snapshot.host.notes:
            kind = _DIGITS.sub("0", note)
            if kind not in self._seen and len(self._seen) < _MOST_NOTES:
                self._seen.add(kind)
                print_text(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(snapshot.time))} {note}", err=True)


def _folder() -> Path:
    folder = socket_dir.runtime_dir()
    socket_dir.make_dir(folder)
    return folder


def _holder(lock: Path) -> int | None:
    """Return the pid of the watcher that holds the lock; None where none does."""
    try:
        number = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if _try_lock(number):
            return None
        text = os.pread(number, 20, 0).strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(number)


def _try_lock(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _new_file(path: Path) -> Iterator[int]:
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise NotPossibleHere(f"{path} cannot be written: {error.strerror}") from None
    try:
        yield number
    finally:
        os.close(number)
