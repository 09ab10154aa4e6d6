"""Triggered captures, for the rare slow step that is over before a key is pressed."""

from __future__ import annotations

import dataclasses
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from llmtop.capture import take
from llmtop.capture.base import folder
from llmtop.capture.base.job import Cancelled, OnProgress, Plan
from llmtop.capture.base.step_listener import StepListener, step_seconds
from llmtop.errors import LlmtopError, NotPossibleHere, UnusableInput
from llmtop.format import duration as in_words
from llmtop.format import size
from llmtop.model.alerts import NewAlertFilter
from llmtop.model.snapshot import Alert, Snapshot
from llmtop.system import procfs

BASELINE_STEPS = 10
"""Steps that must be known before a step can be called slow."""
POLL_SECONDS = 0.05
DEFAULT_MAX = 1
DEFAULT_COOLDOWN_SECONDS = 60.0
DEFAULT_DISK_BYTES = 2 << 30
"""All captures in the folder together; an armed capture stops before it goes over."""
_STEP = re.compile(r"^step\s*>\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>x|ms|s)$")
_ALERT = re.compile(r"^alert(?::(?P<id>[a-z0-9_]+))?$")


@dataclass(frozen=True)
class SlowStep:
    """A step longer than so many medians of the steps before it, or than so many seconds."""

    medians: float | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        return f"step > {self.medians:g}x" if self.medians is not None else f"step > {self.seconds:g}s"


@dataclass(frozen=True)
class AlertCondition:
    """An alert that was not there when the trigger was armed."""

    id: str | None = None

    def __str__(self) -> str:
        return f"alert:{self.id}" if self.id else "alert"


Condition = SlowStep | AlertCondition


def parse(text: str) -> Condition:
    """Read a condition: "step > 2x", "step > 800ms", "step > 1.5s", "alert", "alert:input_bound".

    Raises:
        UnusableInput: none of these.
    """
    step = _STEP.match(text.strip())
    if step:
        number = float(step["number"])
        if step["unit"] == "x":
            if number <= 1:
                raise UnusableInput(f"{text!r} would fire immediately: use a factor above 1, as in 'step > 2x'")
            return SlowStep(medians=number)
        return SlowStep(seconds=number / 1000 if step["unit"] == "ms" else number)
    alert = _ALERT.match(text.strip())
    if alert:
        return AlertCondition(alert["id"])
    raise UnusableInput(
        f"{text!r} is not a condition: use 'step > 2x' (medians), 'step > 800ms', 'alert', or 'alert:ID' "
        "(llmtop --json shows the ids)"
    )


class SlowSteps:
    """Compares each step once with the median of those before it."""

    def __init__(self, condition: SlowStep, watch: StepListener) -> None:
        self._condition = condition
        self._watch = watch
        self._armed_ns = time.monotonic_ns()
        self._seen: dict[int, int] = {}

    def check(self) -> str | None:
        """Return why the condition fires now, in a sentence; None while it does not."""
        for pid, steps in self._watch.steps_within(0).items():
            seen, offset = self._seen.get(pid, self._armed_ns), self._watch.unix_offset_ns(pid)
            for index, step in enumerate(steps):
                began = step.started_unix_ns - offset  # the wall clock may be set while this waits
                if began <= seen:
                    continue
                self._seen[pid] = began
                before = [step_seconds(earlier) for earlier in steps[max(0, index - 50) : index]]
                took = step_seconds(step)
                limit = self._limit(before)
                if limit is not None and took > limit:
                    usual = (
                        f", the {len(before)} before it {in_words(statistics.median(before))}" if before else ""
                    )
                    return f"{self._condition}: step {step.index} of pid {pid} took {in_words(took)}{usual}"
        return None

    def _limit(self, before: list[float]) -> float | None:
        if self._condition.medians is None:
            return self._condition.seconds
        if len(before) < BASELINE_STEPS:
            return None
        return self._condition.medians * statistics.median(before)


class NewAlerts:
    """Waits for an alert that begins after the arming."""

    def __init__(self, condition: AlertCondition, snapshot: Callable[[], Snapshot | None]) -> None:
        self._condition = condition
        self._snapshot = snapshot
        self._raised = NewAlertFilter(self._alerts())

    def _alerts(self) -> tuple[Alert, ...]:
        snapshot = self._snapshot()
        alerts = snapshot.alerts if snapshot else ()
        return tuple(alert for alert in alerts if self._condition.id in (None, alert.id))

    def check(self) -> str | None:
        """Return why the condition fires now, in a sentence; None while it does not."""
        new = self._raised.select_new(self._alerts())
        return f"{self._condition}: {new[0].summary}" if new else None


@dataclass(frozen=True)
class TriggerLimits:
    """How often an armed capture may fire."""

    captures: int = DEFAULT_MAX
    cooldown_seconds: float = DEFAULT_COOLDOWN_SECONDS
    disk_bytes: int = DEFAULT_DISK_BYTES


@dataclass(frozen=True)
class Firing:
    """One firing: what for, and what came of it."""

    reason: str
    result: take.Result | None = None
    error: str = ""


def capture_on_conditions(
    plan: Plan,
    conditions: list[Condition],
    limits: TriggerLimits,
    *,
    on_progress: OnProgress = lambda progress: None,
    cancelled: threading.Event | None = None,
    snapshot: Callable[[], Snapshot | None] = lambda: None,
) -> Iterator[Firing]:
    """Wait for a condition and capture, again and again; ends when a limit is reached, or when cancelled.

    A capture that fails is reported and counted, and the trigger stays armed.

    Raises:
        NotPossibleHere: the disk limit is reached, the training has ended, or its steps cannot be received.
    """
    cancelled = cancelled or threading.Event()
    for number in range(limits.captures):
        _check_room(plan.parent, limits)
        reason = _wait(plan, conditions, cancelled, snapshot)
        if reason is None:
            return
        try:
            result = take.take(_with_reason(plan, reason), on_progress, cancelled, snapshot)
        except Cancelled:
            return
        except LlmtopError as error:
            yield Firing(reason, error=str(error))
        else:
            yield Firing(reason, result)
        if number + 1 < limits.captures and cancelled.wait(limits.cooldown_seconds):
            return


def _check_room(parent: Path, limits: TriggerLimits) -> None:
    used = folder.total_bytes(parent) if parent.is_dir() else 0
    if used >= limits.disk_bytes:
        raise NotPossibleHere(
            f"the captures in {parent} take {size(used)}, the limit is {size(limits.disk_bytes)}: remove some "
            "(llmtop captures --remove NAME) or raise --disk-limit"
        )
    folder.check_disk(parent)


def _wait(
    plan: Plan, conditions: list[Condition], cancelled: threading.Event, snapshot: Callable[[], Snapshot | None]
) -> str | None:
    """Return the reason, or None when cancelled."""
    watch = StepListener([(target.pid, target.socket) for target in plan.targets if target.socket])
    try:
        if not watch.publishing_pids and any(isinstance(condition, SlowStep) for condition in conditions):
            raise NotPossibleHere(
                f"{plan.targets[0].name} reports no steps, so slow steps cannot be found; start it with: "
                "llmtop run -- COMMAND"
            )
        checks = [
            SlowSteps(condition, watch) if isinstance(condition, SlowStep) else NewAlerts(condition, snapshot)
            for condition in conditions
        ]
        while not cancelled.wait(POLL_SECONDS):
            for check in checks:
                reason = check.check()
                if reason is not None:
                    return reason
            if not any(procfs.is_alive(target.pid) for target in plan.targets):
                raise NotPossibleHere("the training ended before the condition held, so no capture was taken")
    finally:
        watch.close()
    return None


def _with_reason(plan: Plan, reason: str) -> Plan:
    return dataclasses.replace(plan, reason=reason)
