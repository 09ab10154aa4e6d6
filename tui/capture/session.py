"""The capture that the screen has under way: one at a time, in a thread of its own, and it outlives its dialog."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Literal
from weakref import WeakKeyDictionary

from textual.app import App

from llmtop.capture import take, trigger
from llmtop.capture.base.job import Cancelled, Plan, Progress
from llmtop.capture.prepared import PreparedCaptures
from llmtop.capture.take import Result
from llmtop.capture.trigger import Condition, TriggerLimits
from llmtop.errors import LlmtopError
from llmtop.model.snapshot import Snapshot

State = Literal["idle", "running", "armed", "done", "failed", "cancelled"]

ARMED_LIMITS = TriggerLimits(captures=3)
"""How often a capture that was armed on the screen fires; the command line has options for it."""
REDRAW_SECONDS = 0.1
LEAVE_SECONDS = 10.0
"""How long leaving the program waits for a capture to be undone; nsys ends a collection in about three seconds."""

_of_apps: WeakKeyDictionary[App[int], Capturing] = WeakKeyDictionary()


def capture_of(
    app: App[int], snapshot: Callable[[], Snapshot | None], prepared: PreparedCaptures | None = None
) -> Capturing:
    """Return the one of this app, which opens prepared captures where there are some."""
    found = _of_apps.get(app)
    if found is None:
        found = _of_apps[app] = Capturing(app, snapshot, prepared)
    return found


class Capturing:
    """State that the dialog paints; the capture's thread changes it and schedules a redraw."""

    def __init__(
        self, app: App[int], snapshot: Callable[[], Snapshot | None], prepared: PreparedCaptures | None = None
    ) -> None:
        self.state: State = "idle"
        self.plan: Plan | None = None
        self.condition: Condition | None = None
        self.progress: Progress | None = None
        self.stages: dict[str, float] = {}
        """Seconds after the key at which each stage began."""
        self.result: Result | None = None
        self.error = ""
        self.fired: list[str] = []
        self.watching: Callable[[], None] | None = None
        """Called in the app's loop when something has changed; set by the dialog while it is on top."""
        self._app = app
        self._snapshot = snapshot
        self._take_one = take.take if prepared is None else prepared.take
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        self._redrawn_at = 0.0

    @property
    def busy(self) -> bool:
        """Return True if one runs or is armed."""
        return self.state in ("running", "armed")

    def begin(self, plan: Plan, condition: Condition | None = None) -> None:
        """Take a capture, now or when the condition comes true."""
        if self.busy:
            return
        self.plan, self.condition = plan, condition
        self.progress, self.result, self.error, self.fired, self.stages = None, None, "", [], {}
        self.state = "running" if condition is None else "armed"
        self._cancelled = threading.Event()
        work = self._take if condition is None else self._wait
        self._thread = threading.Thread(target=self._guard, args=(work,), name="llmtop-capture", daemon=True)
        self._thread.start()
        atexit.register(self.end)

    def cancel(self) -> None:
        """Cancel or disarm it; `state` changes when that is done."""
        self._cancelled.set()

    def end(self) -> None:
        """When the program is left: call it off and wait for that, so that no training goes on being traced."""
        self._cancelled.set()
        if self._thread is not None:
            self._thread.join(LEAVE_SECONDS)

    def _guard(self, work: Callable[[], None]) -> None:
        """Run in the thread: no error of a capture may end the monitor."""
        try:
            work()
        except Cancelled as cancelled:
            self._finish("cancelled", str(cancelled))
        except LlmtopError as error:
            self._finish("failed", str(error))
        except Exception as error:  # noqa: BLE001 - shown, with its type, where a person can read it
            self._finish("failed", f"{type(error).__name__}: {error}")

    def _take(self) -> None:
        assert self.plan is not None
        self.result = self._take_one(self.plan, self._on_progress, self._cancelled, self._snapshot)
        self._finish("done", "")

    def _wait(self) -> None:
        assert self.plan is not None
        assert self.condition is not None
        fired = trigger.capture_on_conditions(
            self.plan,
            [self.condition],
            ARMED_LIMITS,
            on_progress=self._on_progress,
            cancelled=self._cancelled,
            snapshot=self._snapshot,
        )
        for one in fired:
            self.fired.append(one.reason)
            self.error, self.progress = one.error, None
            self.result = one.result or self.result
            self._schedule_notice(one.error or f"captured: {one.reason}")
            self._schedule_redraw()
        if self._cancelled.is_set():
            raise Cancelled("the capture is disarmed; the training continues")
        self._finish("done", "")

    def _finish(self, state: State, error: str) -> None:
        self.state, self.error = state, error
        if state == "failed":
            self._schedule_notice(error)
        self._schedule_redraw()

    def _on_progress(self, progress: Progress) -> None:
        self.progress = progress
        new = progress.stage not in self.stages
        self.stages.setdefault(progress.stage, progress.elapsed)
        if new or time.monotonic() - self._redrawn_at >= REDRAW_SECONDS:
            self._redrawn_at = time.monotonic()
            self._schedule_redraw()

    def _schedule_redraw(self) -> None:
        self._app.call_later(self._on_change)

    def _on_change(self) -> None:
        """Redraw what shows the capture; runs in the app's loop."""
        if self.watching is not None:
            self.watching()

    def _schedule_notice(self, text: str) -> None:
        """For a person who has left the dialog."""
        self._app.call_later(self._notify, text)

    def _notify(self, text: str) -> None:
        if self.watching is None:
            self._app.notify(text, markup=False)
