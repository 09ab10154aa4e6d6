"""The last steps of one training, and what they come to.

Sums are kept as steps come and go: with eight trainings, adding up two hundred steps and their phases for every
snapshot was the dearest thing that the hub did.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from llmtop.snapshot import Phase, Step

RECENT_STEPS = 200
"""Percentiles, rates and phase means are taken over the last so many steps after warm-up."""


class _Sum:
    """Adds up values that may be absent, or not a number: one NaN would never leave the sum again."""

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0

    def add(self, value: float | None, sign: int) -> None:
        if value is not None and math.isfinite(value):
            self.total += sign * value
            self.count += sign


class StepWindow:
    """The last `RECENT_STEPS` steps of a training, and the means over them."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque()
        self._interval = _Sum()
        self._seconds = _Sum()
        self._tokens = _Sum()
        self._samples = _Sum()
        self._gpu = _Sum()
        self._idle = _Sum()
        self._host_paced = _Sum()
        self._gpu_of_idle = _Sum()  # GPU time of the steps of which the idle time is known
        self._phases: dict[str, tuple[_Sum, _Sum]] = {}  # host's clock, GPU's clock

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: Step) -> None:
        """Take in the newest step; the oldest goes when there are too many."""
        self._steps.append(step)
        self._count(step, 1)
        if len(self._steps) > RECENT_STEPS:
            self._count(self._steps.popleft(), -1)

    def update(self, step: Step) -> None:
        """Put GPU times to a step that is here already; another step is passed over."""
        for place in range(len(self._steps) - 1, -1, -1):
            known = self._steps[place]
            if known.index == step.index and known.started_at == step.started_at:
                self._count(known, -1)
                self._steps[place] = replace(step, interval_seconds=known.interval_seconds)
                self._count(self._steps[place], 1)
                return

    def interval(self) -> float | None:
        """Mean seconds from the start of one step to the start of the next, so that time between steps counts.

        With a single step there is no interval yet: its own length is the best that is known.
        """
        known = self._interval if self._interval.count else self._seconds
        return known.total / known.count if known.count else None

    def figures(self) -> dict[str, Any]:
        """Fields of `Rank`: percentiles, rates, phases, the GPU's idle share."""
        if not self._steps:
            return {}
        ordered = sorted(step.seconds for step in self._steps)
        interval = self.interval()
        return {
            "step_seconds_p50": percentile(ordered, 50),
            "step_seconds_p95": percentile(ordered, 95),
            "step_seconds_p99": percentile(ordered, 99),
            "steps_per_s": 1 / interval if interval else None,
            "tokens_per_s": self._per_second(self._tokens, interval),
            "samples_per_s": self._per_second(self._samples, interval),
            "phases": self._mean_phases(),
            "gpu_idle_pct": self._idle_pct(),
            "gpu_host_paced_pct": self._host_paced_pct(),
        }

    def _per_second(self, amount: _Sum, interval: float | None) -> float | None:
        return amount.total / len(self._steps) / interval if amount.count and interval else None

    def _idle_pct(self) -> float | None:
        """Share of GPU time in which the training's stream had nothing to do, if most measured steps tell it."""
        if self._idle.count * 2 < max(1, self._gpu.count) or self._gpu_of_idle.total <= 0:
            return None
        return 100 * max(0.0, self._idle.total) / self._gpu_of_idle.total

    def _host_paced_pct(self) -> float | None:
        if self._gpu.total <= 0:
            return None
        return 100 * max(0.0, self._host_paced.total) / self._gpu.total

    def _mean_phases(self) -> tuple[Phase, ...]:
        """Mean seconds of each phase a step, in the order in which they first came.

        On the host's clock a step without the phase counts as 0, so that the means add up to the mean step; on the
        GPU's clock the mean is over the steps that were measured.
        """
        return tuple(
            Phase(
                name=name,
                host_seconds=max(0.0, host.total) / len(self._steps),
                gpu_seconds=max(0.0, gpu.total) / self._gpu.count if gpu.count and self._gpu.count else None,
            )
            for name, (host, gpu) in self._phases.items()
        )

    def _count(self, step: Step, sign: int) -> None:
        self._interval.add(step.interval_seconds, sign)
        self._seconds.add(step.seconds, sign)
        self._tokens.add(step.tokens, sign)
        self._samples.add(step.samples, sign)
        self._idle.add(step.gpu_idle_seconds, sign)
        self._gpu.add(step.gpu_seconds, sign)
        self._host_paced.add(step.gpu_host_paced_seconds, sign)
        self._gpu_of_idle.add(None if step.gpu_idle_seconds is None else step.gpu_seconds, sign)
        for phase in step.phases:
            sums = self._phases.get(phase.name)
            if sums is None:
                sums = self._phases[phase.name] = (_Sum(), _Sum())
            sums[0].add(phase.host_seconds, sign)
            sums[1].add(phase.gpu_seconds, sign)
            if not sums[0].count:
                del self._phases[phase.name]


def percentile(ordered: Sequence[float], pct: float) -> float | None:
    """The percentile of values in ascending order, linear between neighbours (numpy's default method)."""
    if not ordered:
        return None
    place = (len(ordered) - 1) * pct / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
