"""Runs a command for each new alert (`--on-alert CMD`)."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading

from msgspec.structs import replace

from llmtop.format import encode_json, escaped_json, printable
from llmtop.model.alerts import NewAlertFilter
from llmtop.model.key_commands import without_keys
from llmtop.model.snapshot import Alert, Snapshot

TIMEOUT_SECONDS = 30.0
"""How long a command may run; then it and what it started are killed."""
WAITING = 64
"""Most queued alerts; more are dropped, and a note counts them."""


class AlertCommand:
    """A stage behind the rules: gives each new alert to the command, as JSON on its stdin.

    The commands run one after another in a thread of their own, in a session of their own, with nothing of the
    screen's terminal. The snapshots pass at once; if a command fails they carry a note until one succeeds.
    """

    def __init__(self, command: str) -> None:
        """Run `command` in a shell (sh -c)."""
        self._command = command
        self._raised = NewAlertFilter()
        self._queue: queue.Queue[bytes | None] = queue.Queue(WAITING)
        self._note: str | None = None
        self._left_out = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="llmtop-on-alert", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return "--on-alert"

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Pass the snapshot on; new alerts are queued."""
        for alert in self._raised.select_new(snapshot.alerts):
            self._enqueue(alert)
        notes = [note for note in (self._note, self._overflow()) if note]
        if not notes:
            return snapshot
        return replace(snapshot, host=replace(snapshot.host, notes=(*snapshot.host.notes, *notes)))

    def close(self) -> None:
        """Stop within a second; a command that still runs is killed, alerts that wait are dropped."""
        self._closed.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._kill()
        self._thread.join(1.0)

    def _enqueue(self, alert: Alert) -> None:
        try:
            alert = replace(alert, next=without_keys(alert.next, alert.pid))
            self._queue.put_nowait(escaped_json(encode_json(alert)))
        except queue.Full:
            self._left_out += 1

    def _overflow(self) -> str | None:
        if not self._left_out:
            return None
        return f"--on-alert: {self._left_out} alerts were skipped: the command is too slow"

    def _run(self) -> None:
        while not self._closed.is_set():
            reported_line = self._queue.get()
            if reported_line is None or self._closed.is_set():
                return
            self._note = self._run_command(reported_line)

    def _run_command(self, reported_line: bytes) -> str | None:
        """Run the command once; returns what went wrong, in words."""
        name = printable(self._command, 60)
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            return f"--on-alert: {name} cannot be started: {error.strerror}"
        try:
            self._process.communicate(reported_line + b"\n", timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(TIMEOUT_SECONDS)
            return f"--on-alert: {name} ran for over {TIMEOUT_SECONDS:.0f} s and was killed"
        code = self._process.returncode
        if code == 0:
            return None
        how = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
        return f"--on-alert: {name} {how}; alerts may not have reached anybody"

    def _kill(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
