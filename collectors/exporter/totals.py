"""Counters of one training's steps since the exporter started, from which Prometheus computes any window.

Steps that ended before are not counted, though a training sends its history. Else a restarted exporter would count
them twice: to Prometheus a counter that falls was reset, and its whole value is an increase.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from collectors.exporter.names import MAX_PHASES, OTHER
from llmtop.format import printable
from llmtop.model.snapshot import Rank, StampedWait, Step
from llmtop.rules.state.step_costs import StepCosts
from llmtop.step_history.whole_steps import WholeStepBuilder

_LATE_STEPS = 1024
"""How many steps back GPU times may come."""
_MAX_STEPS_BETWEEN = 4096
"""Steps between two stamped ones."""
_LONGEST = 200
"""Characters of a name."""

_Key = tuple[int, float]


@lru_cache(maxsize=4096)
def label(text: str) -> str:
    """Return untrusted text as a label value: one line without control characters."""
    return printable(text, _LONGEST)


class PhaseNames:
    """The first so many names of one rank's phases; the rest are one."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def label_of(self, name: str) -> str | None:
        """Return the exported name of a phase; None for one whose time is part of its parent's."""
        known = label(name)
        if known in self._known:
            return known
        if len(self._known) < MAX_PHASES:
            self._known.add(known)
            return known
        return None if "/" in known else OTHER


class RankTotals:
    """Counters of one process; None while the training has not reported a value."""

    def __init__(self, since: float) -> None:
        """Begin at zero.

        Args:
            since: unix time; steps that ended before are not counted.
        """
        self.steps = 0
        self.step_seconds = 0.0
        self.outside_seconds: float | None = None
        self.tokens: float | None = None
        self.comm_wait_seconds: float | None = None
        self.comm_wait_gpu_seconds: float | None = None
        self.gpu_timed_steps: int | None = None
        self.host_phases: dict[str, float] = {}
        self.gpu_phases: dict[str, float] = {}
        """Seconds by phase."""
        self._names = PhaseNames()
        self._since: float | None = since
        self._following = WholeStepBuilder()
        self._first: int | None = None
        """The index of the first step that counts."""
        self._stamped: int | None = None
        """Last step whose wait was computed from stamps; phases are then no longer used for it."""
        self._gpu_counted: dict[_Key, bool] = {}
        """For the last steps, True if their GPU times are in the counters."""

    def add(self, rank: Rank) -> None:
        """Take in what is new since the snapshot before."""
        for step in rank.new_steps:
            self._add(step)
        self._add_waits(rank.new_waits)
        self._add_gpu_times(rank.new_steps)
        self._add_gpu_times(rank.gpu_updates)

    def _add(self, step: Step) -> None:
        whole = self._following.add(step)
        if self._since is not None:
            if step.started_at + step.seconds < self._since:
                return
            self._first = step.index
            self._since = None  # what comes after a step that counts does, wherever the wall clock is set to
        self._gpu_counted[step.index, step.started_at] = False
        if len(self._gpu_counted) > _LATE_STEPS:
            del self._gpu_counted[next(iter(self._gpu_counted))]
        if step.kind == "request":
            self._count(step, step.seconds, None)
        elif whole is not None and (whole.step.index, whole.step.started_at) in self._gpu_counted:
            self._count(whole.step, whole.seconds, whole.outside if whole.step.phases else None)

    def _count(self, step: Step, seconds: float, outside: float | None) -> None:
        self.steps += 1
        self.step_seconds += seconds
        self.outside_seconds = _sum(self.outside_seconds, outside)
        self.tokens = _sum(self.tokens, step.tokens)
        if not step.phases:
            return
        if self._stamped is None:
            self.comm_wait_seconds = _sum(self.comm_wait_seconds, StepCosts(step, 0.0).host.get("comm"))
        for phase in step.phases:
            self._count_phase(self.host_phases, phase.name, phase.host_seconds)

    def _add_waits(self, waits: Iterable[StampedWait]) -> None:
        """Count the waits from stamps; a stamped step stands for those since the one before it too."""
        for one in waits:
            if self._first is None or one.index < self._first:
                continue  # of before the steps that count
            since = 1 if self._stamped is None else one.index - self._stamped
            self._stamped = one.index
            # A count that begins anew, or has a hole: of what lies between nothing is known.
            steps = since if 0 < since <= _MAX_STEPS_BETWEEN else 1
            self.comm_wait_seconds = _sum(self.comm_wait_seconds, steps * one.seconds)
            self.comm_wait_gpu_seconds = None

    def _count_phase(self, into: dict[str, float], name: str, seconds: float | None) -> None:
        known = None if seconds is None else self._names.label_of(name)
        if known is not None and seconds is not None:
            into[known] = into.get(known, 0.0) + max(0.0, seconds)

    def _add_gpu_times(self, steps: Iterable[Step]) -> None:
        for step in steps:
            key = step.index, step.started_at
            if step.gpu_seconds is None or self._gpu_counted.get(key, True):
                continue
            self._gpu_counted[key] = True
            self.gpu_timed_steps = (self.gpu_timed_steps or 0) + 1
            if self._stamped is None:
                self.comm_wait_gpu_seconds = _sum(
                    self.comm_wait_gpu_seconds, (StepCosts(step, 0.0).gpu or {}).get("comm")
                )
            for phase in step.phases:
                self._count_phase(self.gpu_phases, phase.name, phase.gpu_seconds)


def _sum(total: float | None, more: float | None) -> float | None:
    return total if more is None else (total or 0.0) + max(0.0, more)
