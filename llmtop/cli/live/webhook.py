"""Posts alerts, their ends and the ends of runs to an address (`[notify]` of the configuration).

The address is a secret: it is read from a file that only its user can read, and stands in no message, note, log or
error. Redirects are refused, so that no server can send it elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import queue
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from typing import Any

from msgspec.structs import replace

from collectors.run_notes.node_writer import TURN_SECONDS, locked
from llmtop.cli.live.alert_command import WAITING
from llmtop.config import NOTIFY_FIELDS, Notify, notify_body
from llmtop.errors import LlmtopError
from llmtop.format import counted
from llmtop.model.alerts import NewAlertFilter, match_previous
from llmtop.model.key_commands import without_keys
from llmtop.model.snapshot import Alert, Rank, Snapshot
from llmtop.protocol.socket_dir import runtime_dir
from llmtop.version import __version__

TIMEOUT_SECONDS = 10.0
"""Timeout of each wait for the server."""
RETRY_SECONDS = (2.0, 10.0)
"""Before the second and the third attempt; then the event is given up."""
LOCK = "notify.lock"
"""File in the folder of the trainings' sockets."""
LIMIT_SECONDS = 60.0
"""Window of `Notify.per_minute`."""
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_named: Any) -> None:
        """Refuse: the answer counts as an error."""


class Webhook:
    """A stage behind the rules. Requests are made one after another in a thread of their own."""

    def __init__(self, settings: Notify, address: str) -> None:
        """Post to `address`, which nothing here shows."""
        self._settings = settings
        self._address = address
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._raised = NewAlertFilter()
        self._runs: dict[tuple[str, str], Rank] = {}
        self._queue: queue.Queue[tuple[dict[str, Any], Rank | None] | None] = queue.Queue(WAITING)
        self._sent: deque[float] = deque(maxlen=settings.per_minute)
        self._skipped = 0
        self._note: str | None = None
        self._since: float | None = None
        self._lock: int | None = None
        self._lock_at = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="llmtop-notify", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return "the webhook"

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Pass the snapshot on; what is new in it is queued."""
        self._take_alerts(snapshot)
        self._take_runs(snapshot)
        notes = [note for note in (self._note, self._slow_note()) if note]
        if not notes:
            return snapshot
        return replace(snapshot, host=replace(snapshot.host, notes=(*snapshot.host.notes, *notes)))

    def close(self) -> None:
        """Stop within a second; events that wait are dropped."""
        self._closed.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(1.0)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ---- what is new ----

    def _take_alerts(self, snapshot: Snapshot) -> None:
        before = list(self._raised.up)
        new = self._raised.select_new(snapshot.alerts)
        continued = set(match_previous(before, snapshot.alerts))
        for place, alert in enumerate(before):
            if place not in continued:
                self._put("resolved", snapshot, alert)
        for alert in new:
            self._put("raised", snapshot, alert)

    def _take_runs(self, snapshot: Snapshot) -> None:
        """A run has ended once none of its processes on this node is there."""
        present: dict[tuple[str, str], Rank] = {}
        for rank in snapshot.ranks:
            if rank.state != "gone":
                present.setdefault((rank.host, rank.job), rank)
        for key, rank in self._runs.items():
            if key not in present:
                self._put("ended", snapshot, rank=rank)
        self._runs = present

    def _put(self, event: str, snapshot: Snapshot, alert: Alert | None = None, rank: Rank | None = None) -> None:
        if event not in self._settings.events or not self._has_turn():
            return
        now = time.monotonic()
        if len(self._sent) == self._sent.maxlen and now - self._sent[0] < LIMIT_SECONDS:
            self._skipped += 1
            return
        known = _event(event, snapshot, alert, rank, self._skipped)
        try:
            self._queue.put_nowait((known, rank))
        except queue.Full:
            self._skipped += 1
            return
        self._skipped = 0
        self._sent.append(now)

    def _has_turn(self) -> bool:
        """Return True if this monitor posts: of those of a user on a node one does, until it ends."""
        if self._lock is None and time.monotonic() >= self._lock_at:
            self._lock_at = time.monotonic() + TURN_SECONDS
            try:
                self._lock = locked(runtime_dir() / LOCK)
            except (OSError, LlmtopError):  # no training has made the folder, or it cannot be used
                return True
        return self._lock is not None

    def _slow_note(self) -> str | None:
        since = self._since
        waited = 0.0 if since is None else time.monotonic() - since
        if waited < 3 * TIMEOUT_SECONDS:
            return None
        return f"notify: the server has not taken an event for {waited:.0f} s"

    # ---- its own thread ----

    def _run(self) -> None:
        while not self._closed.is_set():
            waiting = self._queue.get()
            if waiting is None or self._closed.is_set():
                return
            event, rank = waiting
            if event["event"] == "ended" and rank is not None:
                event |= _how_ended(rank)
            self._since = time.monotonic()
            self._note = self._deliver(notify_body(self._settings.body, event))
            self._since = None

    def _deliver(self, body: bytes) -> str | None:
        """Post one event, three times at most; return what went wrong, in words without the address."""
        for wait in (*RETRY_SECONDS, None):
            trouble, is_final = self._post(body)
            if trouble is None:
                return None
            if wait is None or is_final or self._closed.wait(wait):
                break
        return f"notify: {trouble}; {counted(1, 'event')} was not delivered"

    def _post(self, body: bytes) -> tuple[str | None, bool]:
        """Return what failed, and True if another attempt is useless."""
        headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": f"llmtop/{__version__}"}
        try:
            request = urllib.request.Request(self._address, data=body, headers=headers, method="POST")
            with self._opener.open(request, timeout=TIMEOUT_SECONDS):
                return None, True
        except urllib.error.HTTPError as error:
            error.close()
            if 300 <= error.code < 400:
                return f"the server redirects ({error.code}), which is refused; write its final address", True
            return f"the server answered {error.code}", error.code not in _RETRIED
        except Exception as error:  # noqa: BLE001 - the text of any of these may hold the address
            return _trouble(error), False


def _trouble(error: BaseException) -> str:
    """Describe a failure by the kind of its error alone."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLError):
        return "the server's certificate is not accepted, or it does not speak TLS"
    if isinstance(reason, TimeoutError):
        return f"no answer within {TIMEOUT_SECONDS:.0f} s"
    if isinstance(reason, OSError) and reason.errno is not None and reason.errno > 0:
        return f"the server cannot be reached: {os.strerror(reason.errno)}"
    if isinstance(reason, OSError):
        return "the server cannot be reached: its name is not known"
    return f"the request failed ({type(error).__name__})"


def _how_ended(rank: Rank) -> dict[str, Any]:
    """Return the fields that say more than that a run has ended, by what it wrote itself; none where it kept
    nothing."""
    from llmtop.runs.running import find_running
    from llmtop.runs.store import FAILED, KILLED, RankProcess

    try:
        found = find_running(rank.pid, rank.attached_at or 0.0, rank.rank)
        process = None if found is None else RankProcess(found.path, found.name)
        how = None if process is None else process.how
    except (OSError, LlmtopError):
        return {}
    if process is None or how not in (FAILED, KILLED):
        return {}
    steps = "" if rank.step is None else f" after step {rank.step}"
    if how == KILLED:
        return {"severity": "warning", "summary": f"The run {rank.job} was killed{steps}: it wrote no end."}
    error = "" if process.end is None or not process.end.error else f": {process.end.error}"
    return {"severity": "warning", "summary": f"The run {rank.job} has failed{steps}{error}."}


def _event(event: str, snapshot: Snapshot, alert: Alert | None, rank: Rank | None, skipped: int) -> dict[str, Any]:
    """Return all fields that a body may name (`NOTIFY_FIELDS`); None where there is none."""
    if alert is not None:
        rank = next((one for one in snapshot.ranks if one.pid == alert.pid), None)
    job = None if rank is None else rank.job
    if alert is not None:
        summary = alert.summary if event == "raised" else f"Resolved: {alert.summary}"
    else:
        steps = "" if rank is None or rank.step is None else f" after step {rank.step}"
        summary = f"The run {job} has ended{steps}."
    found = {
        "event": event,
        "time": snapshot.time,
        "host": snapshot.host.name,
        "job": job,
        "step": None if rank is None else rank.step,
        "id": None if alert is None else alert.id,
        "severity": "info" if alert is None or event == "resolved" else alert.severity,
        "summary": summary,
        "next": without_keys(alert.next, alert.pid) if alert is not None and event == "raised" else None,
        "since": None if alert is None else alert.since,
        "gpu": None if alert is None else alert.gpu,
        "pid": (rank.pid if rank is not None else None) if alert is None else alert.pid,
        "skipped": skipped,
    }
    assert tuple(found) == NOTIFY_FIELDS
    return found
