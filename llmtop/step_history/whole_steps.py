"""Steps from start to start: a step is whole when the next has begun, and what no phase covers is `outside`."""

from __future__ import annotations

import math
from typing import NamedTuple

from llmtop.model.snapshot import Phase, Step

PREFILL, DECODE = "prefill", "decode"
"""The phases of a request to a language model: up to its first token, and after it."""


class WholeStep(NamedTuple):
    """A step with all that it took."""

    step: Step
    seconds: float
    """Time from its start to the start of the next step, by the host's monotonic clock."""

    @property
    def outside(self) -> float:
        """Seconds of it in no phase."""
        return max(0.0, self.seconds - covered_seconds(self.step.phases))


def request_latency(request: Step) -> float:
    """Time of a request as its client saw it, in seconds: without the wait for a batch before it."""
    if request.ttft_seconds is None:
        return request.seconds
    return sum(phase.host_seconds for phase in request.phases if phase.name in (PREFILL, DECODE))


def covered_seconds(phases: tuple[Phase, ...]) -> float:
    """Host seconds in phases; those within another are counted with it."""
    return sum(phase.host_seconds for phase in phases if "/" not in phase.name)


class WholeStepBuilder:
    """Makes whole steps of steps that come one after the other.

    A step whose successor was lost, or which the training was paused after, never gets whole.
    """

    def __init__(self) -> None:
        self._last: Step | None = None

    @property
    def open(self) -> Step | None:
        """The newest step, which is not whole yet."""
        return self._last

    def update(self, step: Step) -> None:
        """Take another form of the newest step, with its GPU times; of any other it is passed over."""
        last = self._last
        if last is not None and (last.index, last.started_at) == (step.index, step.started_at):
            self._last = step

    def add(self, step: Step) -> WholeStep | None:
        """Take the next step; returns the one before it if that is whole now."""
        last, self._last = self._last, step
        if last is None or step.kind == "request":
            return None
        seconds = step.interval_seconds
        if seconds is None or not math.isfinite(seconds) or seconds <= 0:
            return None
        if step.index != last.index + 1 and not _is_next(last, step, seconds):
            return None
        # A step's phases may reach past the next one's start by the clocks' last digit, never by more.
        return WholeStep(last, max(seconds, last.seconds))


_SLACK = 0.01, 0.1
"""Seconds, and the share of the interval, by which the unix times of two steps may be off."""


def _is_next(last: Step, step: Step, seconds: float) -> bool:
    """Return True if `step` began `seconds` after `last`: scripts count as they like, and lost steps leave a
    hole."""
    fixed, share = _SLACK
    return abs(step.started_at - last.started_at - seconds) <= fixed + share * seconds
