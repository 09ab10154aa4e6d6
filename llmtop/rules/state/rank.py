"""State of one attached training process, and of the processes that train together."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from llmtop.model.role_groups import roles_text
from llmtop.model.snapshot import Process, Rank, Step
from llmtop.rules.state.equal_losses import EqualLosses
from llmtop.rules.state.gpu import GpuState
from llmtop.rules.state.memory_trend import MemoryTrend
from llmtop.rules.state.step_costs import StepCosts
from llmtop.rules.state.training_health import TrainingHealth
from llmtop.rules.state.windows import finite_or_none
from llmtop.step_history.whole_steps import covered_seconds

RankKey = tuple[str, int, float]
"""Host, pid, and when it attached: the system gives a pid to another process once the first has ended."""

STEPS_KEPT: Final = 64
SILENT_SECONDS: Final = 3.0
"""Time without a step, and without three usual steps, after which no alert about steps is raised."""
WORKING_SECONDS: Final = 10.0
"""Time without a step after which active alerts end. A rank that evaluates for some seconds keeps them."""


def rank_key(rank: Rank) -> RankKey:
    """Return the key of a training process; it is unique for the process's lifetime."""
    return rank.host, rank.pid, finite_or_none(rank.attached_at) or 0.0


class RankState:
    """One rank over time, with its last steps after warm-up."""

    is_updated = True
    __slots__ = (
        "_idle_seconds",
        "_last",
        "_set_by",
        "_three_steps",
        "gpu",
        "health",
        "judged_by",
        "key",
        "load_per_cpu",
        "memory",
        "now",
        "process",
        "rank",
        "seen_at",
        "steps",
    )

    def __init__(self, rank: Rank, now: float) -> None:
        self.key = rank_key(rank)
        self.rank = rank
        self.gpu: GpuState | None = None
        self.process: Process | None = None
        """Process in the judged snapshot; None where the snapshot does not list it."""
        self.load_per_cpu: float | None = None
        """Threads of the machine that run or wait for a CPU, per CPU; None where unknown."""
        self.now = now
        """Time of the snapshot that is being judged."""
        self._set_by = 0.0
        self.steps: deque[StepCosts] = deque(maxlen=STEPS_KEPT)
        """Finished steps without warm-up, oldest first, with GPU times where they are known by now."""
        self.seen_at = now
        """Snapshot time at which the last new step came."""
        self.memory = MemoryTrend()
        self.health = TrainingHealth()
        self.judged_by: list[StepCosts] | None = None
        """Result of `recent_steps.judged` for this snapshot, for the next rule that needs it; None until it is
        computed."""
        self._last: Step | None = None
        self._idle_seconds = self._three_steps = 0.0
        """Since the last step, and what three usual steps take, as of the last update: each rule asks for both."""

    def update(self, rank: Rank, now: float, clock_shift: float = 0.0) -> None:
        """Take the rank as the snapshot at `now` has it, and its new steps.

        Args:
            rank: its times are by the wall clock.
            now: unix seconds without any setting of the wall clock.
            clock_shift: seconds by which the wall clock was set.
        """
        self._set_by = clock_shift
        self.judged_by = None
        if (rank.kind, rank.inference) != (self.rank.kind, self.rank.inference):
            self._restart()  # it computed without training so far, and trains now
        self.rank, self.now = rank, now
        if rank.new_steps:
            self.seen_at = now
            for step in rank.new_steps[-STEPS_KEPT:]:
                self._add(step)
        for step in rank.gpu_updates:
            self._fill_in(step)
        last = self.last_step_at
        self._idle_seconds = now - (self.seen_at if last is None else last)
        usual = finite_or_none(rank.step_seconds_p50) or finite_or_none(rank.step_seconds) or 0.0
        self._three_steps = 3 * usual
        self.memory.add(now, rank)
        self.health.add(now, rank)
        if rank.new_steps:
            self.rank = replace(rank, new_steps=(), gpu_updates=())  # a thousand steps, until the next snapshot

    @property
    def is_stepping(self) -> bool:
        """Return True if it trains now: it runs, and its last step is not long ago for steps of that length."""
        return self.is_working and not self.rank.inference

    @property
    def is_working(self) -> bool:
        """The same, or whether it computes without training: by requests or forward passes that hooks see."""
        rank = self.rank
        if rank.state != "running" or rank.step is None or (rank.kind != "step" and not rank.inference):
            return False
        return self.has_stepped_within(WORKING_SECONDS)

    def has_stepped_within(self, seconds: float) -> bool:
        """Return True if the last step ended within so many seconds, or within three usual steps where that is
        longer.

        History that a monitor reads late is not new: `seen_at` counts only where no step has a time.
        """
        return self._idle_seconds <= max(seconds, self._three_steps)

    def is_silent(self, is_raised: bool) -> bool:
        """Return True if it trained and lacks steps now; its figures are of before.

        Args:
            is_raised: whether an alert about its steps is up, which stays for `WORKING_SECONDS`.
        """
        rank = self.rank
        if rank.state != "running" or rank.step is None or rank.kind != "step" or rank.inference:
            return False
        return not self.has_stepped_within(WORKING_SECONDS if is_raised else SILENT_SECONDS)

    @property
    def last_step_at(self) -> float | None:
        """When the last step ended, by the clock of `now`; None before the first."""
        return self._steps_to_evaluate(self.rank.last_step_at)

    @property
    def last_work_at(self) -> float | None:
        """When it was last seen at other work than a step's, by the clock of `now`; None if it never was."""
        return self._steps_to_evaluate(self.rank.last_work_at)

    @property
    def changed_at(self) -> float | None:
        """When its steps last changed their length, by the clock of `now`; None if they never did."""
        return None if self.rank.change is None else self._steps_to_evaluate(self.rank.change.since)

    def _steps_to_evaluate(self, unix: float | None) -> float | None:
        unix = finite_or_none(unix)
        return None if unix is None else unix - self._set_by

    def unshifted(self, unix: float | None) -> float | None:
        """Return a time of the snapshot by the clock of `now`."""
        return self._steps_to_evaluate(unix)

    def recent(self, count: int) -> list[StepCosts]:
        """Return the last so many steps, oldest first.

        A stream without single steps (`new_steps`) still has their means: then those are the only step.
        """
        if self.steps:
            return list(self.steps)[-count:]
        rank = self.rank
        return self._means(finite_or_none(rank.step_seconds_p50) or finite_or_none(rank.step_seconds))

    def window_means(self) -> list[StepCosts]:
        """Return the mean step of the rank's window as the only step, to be compared with figures of that
        window."""
        return self._means(finite_or_none(self.rank.step_seconds_mean)) if self.rank.phases else []

    def _means(self, length: float | None) -> list[StepCosts]:
        rank = self.rank
        if length is None or rank.step is None:
            return []
        idle = finite_or_none(rank.gpu_idle_pct)
        means = Step(
            index=rank.step,
            started_at=0.0,
            seconds=max(length, sum(phase.host_seconds for phase in rank.phases if "/" not in phase.name)),
            phases=rank.phases,
            gpu_idle_seconds=None if idle is None else idle / 100.0 * length,
        )
        return [StepCosts(means, 0.0)]

    @property
    def label(self) -> str:
        """How a person calls it: "rank 1", or its pid when it has no rank."""
        return f"pid {self.rank.pid}" if self.rank.rank is None else f"rank {self.rank.rank}"

    @property
    def role_label(self) -> str:
        """The same with the rank's roles: "rank 13 (pp 1, tp 1)"."""
        roles = roles_text(self.rank.roles)
        return f"{self.label} ({roles})" if roles else self.label

    @property
    def location(self) -> str:
        """Roles, process and GPU, for a sentence: "pp 1, tp 1, pid 1446, GPU 1"."""
        parts = [roles_text(self.rank.roles)] if self.rank.roles else []
        parts += [] if self.rank.rank is None else [f"pid {self.rank.pid}"]
        if self.gpu is not None:
            parts.append(self.gpu.label)
        return ", ".join(parts)

    def concerned_keys(self) -> frozenset[Hashable]:
        """Return the keys that an alert about this process concerns: the process, and its GPU where that is
        known."""
        return frozenset((self.key,) if self.gpu is None else (self.key, self.gpu.key))

    def alert_target(self) -> tuple[str | None, int | None]:
        """Return the UUID of the process's GPU, and its pid."""
        return self.rank.gpu_uuid if self.gpu is None else self.gpu.gpu.uuid, self.rank.pid

    def _restart(self) -> None:
        self.steps.clear()
        self.memory = MemoryTrend()
        self._last = None

    def _add(self, step: Step) -> None:
        if step.kind != "step":
            if self.rank.inference and not step.warmup and step.phases:
                self.steps.append(_step_costs(step, 0.0))
            return
        last, gap = self._last, 0.0
        if last is not None:
            if step.index <= last.index:
                if step.started_at <= last.started_at:
                    return  # the same step again: history after a reconnect, or a replay that went back a little
                self._restart()  # the script counts anew: a second fit()
            elif step.index == last.index + 1:
                interval = finite_or_none(step.interval_seconds)
                gap = 0.0 if interval is None else max(interval - last.seconds, 0.0)
        self._last = step
        if not step.warmup and step.seconds > 0:
            self.steps.append(StepCosts(step, gap, self.steps[-1] if self.steps else None))

    def _fill_in(self, step: Step) -> None:
        """Add late GPU times to the step they belong to."""
        for place in range(len(self.steps) - 1, -1, -1):
            if self.steps[place].index == step.index:
                self.steps[place] = _step_costs(step, self.steps[place].gap)
                return
            if self.steps[place].index < step.index:
                return


def _step_costs(step: Step, gap: float) -> StepCosts:
    """Return the step time; of a request without the time up to the next one, in which the server is idle."""
    if step.kind == "request" and step.phases:
        step = replace(step, seconds=covered_seconds(step.phases))
    return StepCosts(step, gap)


class JobState:
    """The ranks of one training that are visible here; a training of one process is a job too."""

    is_updated = True
    __slots__ = ("imbalance", "key", "losses", "memo", "now", "ranks", "works")

    def __init__(self, ranks: Sequence[RankState]) -> None:
        self.ranks = tuple(ranks)
        self.now = 0.0
        """Time of the snapshot that is being judged."""
        self.key = min(rank.key for rank in ranks)
        self.memo: object = None
        """Result of the straggler rule when its condition last held: the alert stays longer than the condition."""
        self.imbalance: object = None
        """The same of the rule for unequal work."""
        self.works: object = None
        """Result of `imbalance.work_of` for this snapshot, for the next rule that needs it; None until it is
        computed."""
        self.losses = EqualLosses()

    def keep(self, before: JobState) -> None:
        """Continue from the state of the same job when it had other ranks, or they were in another state."""
        self.memo, self.imbalance, self.losses = before.memo, before.imbalance, before.losses

    def is_silent(self, is_raised: bool) -> bool:
        """Return True if one of its ranks is (`RankState.is_silent`): the others wait for it."""
        return any(state.is_silent(is_raised) for state in self.ranks)

    def compare_losses(self) -> None:
        """Compare what its ranks logged in this snapshot."""
        if len(self.ranks) > 1:
            for state in self.ranks:
                self.losses.add(state.key, state.health.new_losses)
            self.losses.compare()

    def concerned_keys(self) -> frozenset[Hashable]:
        """Return the keys that an alert about this job concerns: all its ranks and their GPUs."""
        return frozenset().union(*(state.concerned_keys() for state in self.ranks))

    def alert_target(self) -> tuple[str | None, int | None]:
        """Return the GPU's UUID and the pid of the job's first rank, which stand for the job in an alert."""
        return self.ranks[0].alert_target()

    @property
    def world_size(self) -> int:
        """How many ranks the training has in all, on every node."""
        return max(len(self.ranks), *(state.rank.world_size or 1 for state in self.ranks))


def group_jobs(states: Iterable[RankState]) -> list[JobState]:
    """Group ranks into jobs, in each of which a rank number is there once.

    Those that have exited come last, so that they join a job only for a rank number that it lacks: a restarted run
    has the name of the one before, and the time of attaching tells them apart.
    """
    groups: dict[Hashable, list[list[RankState]]] = {}
    ordered = sorted(
        states,
        key=lambda state: (state.rank.state == "gone", state.rank.attached_at or 0.0, state.rank.pid),
    )
    for state in ordered:
        if state.rank.rank is None or (state.rank.world_size or 1) < 2:
            groups.setdefault(state.key, []).append([state])
            continue
        jobs = groups.setdefault(state.rank.job, [])
        for job in jobs:
            if all(other.rank.rank != state.rank.rank for other in job):
                job.append(state)
                break
        else:
            jobs.append([state])
    return [JobState(job) for jobs in groups.values() for job in jobs]
