"""The rules about what is lost if a training ends now, and about the disk that its checkpoints need.

The optimum between two checkpoints is Daly's (Future Generation Computer Systems 22, 2006), which follows Young's
(Communications of the ACM 17, 1974): sqrt(2 x cost x mean time between failures) - cost. Without a setting the
mean time is that of Llama 3 (arXiv 2407.21783, section 3.3.4): 419 unexpected interruptions in 54 days on
16,384 GPUs, hence 50,000 hours of one GPU.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from llmtop import format as fmt
from llmtop.model.health import Checkpoint
from llmtop.rules import limits
from llmtop.rules.rule import SAVE_LESS_OFTEN, AlertText, Rule, RuleText, complete_clauses
from llmtop.rules.state.rank import JobState, RankState

RISK_HOURS: Final = limits.CONFIGURED.work_at_risk.hours or 2.0
GPU_HOURS_PER_FAILURE: Final = 50_000.0
FAILURE_HOURS: Final = limits.CONFIGURED.checkpoint_interval.failure_hours
FAR_FACTOR: Final = (4.0, 3.0)
"""Times the optimum, or a share of it: the time lost is then twice that at the optimum."""
WASTE_PCT: Final = 1.0
"""Percent of the time, in checkpoints and in work that is done again: less does not justify a change."""
DISK_SECONDS: Final = (12 * 3600.0, 18 * 3600.0)
"""A night: old checkpoints are deleted by day."""


class LastCheckpoint(NamedTuple):
    """The last checkpoint of a job, and the rank that wrote it."""

    state: RankState
    saved: Checkpoint


def last_checkpoint(job: JobState) -> LastCheckpoint | None:
    """Return the last complete checkpoint of any rank; None where none is known."""
    found = [LastCheckpoint(state, one) for state in job.ranks if (one := state.rank.checkpoint) is not None]
    return max(found, key=lambda one: (one.saved.step, one.saved.at), default=None)


class _Risk(NamedTuple):
    """Work that is lost if the job ends now."""

    seconds: float
    steps: int | None
    last: LastCheckpoint | None


def _steps_done(job: JobState) -> int | None:
    return min((state.rank.step for state in job.ranks if state.rank.step is not None), default=None)


def _risk(job: JobState) -> _Risk | None:
    """Return the work at risk; None where a checkpoint would not be seen, and while nothing runs."""
    if not any(state.rank.state == "running" and not state.rank.inference for state in job.ranks):
        return None
    step, last = _steps_done(job), last_checkpoint(job)
    if step is None:
        return None
    if last is not None:
        at = last.state.unshifted(last.saved.at)
        return None if at is None else _Risk(max(job.now - at, 0.0), max(step - last.saved.step, 0), last)
    since = min((state.rank.attached_at for state in job.ranks if state.rank.attached_at), default=None)
    if since is None or not all(state.rank.sees_checkpoints for state in job.ranks):
        return None
    begun = job.ranks[0].unshifted(since)
    return None if begun is None else _Risk(max(job.now - begun, 0.0), None, None)


def _is_much_at_risk(job: JobState, _is_raised: bool) -> bool:
    risk = _risk(job)
    return risk is not None and risk.seconds >= RISK_HOURS * 3600.0


def _risk_alert(job: JobState) -> AlertText:
    risk = _risk(job)
    assert risk is not None, "called only while the rule holds"
    age, last = fmt.duration(float(round(risk.seconds))), risk.last
    if last is None:
        summary = f"No checkpoint since llmtop attached to the training {age} ago: all its work is at risk."
        first = f"no checkpoint for {age}"
    else:
        summary = (
            f"The last complete checkpoint of {last.state.role_label} is {age} old (step {last.saved.step:,}): if "
            f"the training ends now, {fmt.counted(risk.steps or 0, 'step')} are lost."
        )
        first = f"{fmt.counted(risk.steps or 0, 'step')} at risk, {age}"
    return AlertText(
        severity="warning",
        summary=summary,
        evidence={
            "age_seconds": risk.seconds,
            "steps_at_risk": risk.steps,
            "checkpoint_step": None if last is None else last.saved.step,
            "path": None if last is None or last.saved.path is None else fmt.printable(last.saved.path, 200),
            "limit_hours": RISK_HOURS,
        },
        next="save a checkpoint now, and more often; check that the last save did not fail; "
        "the threshold is alerts.work_at_risk.hours in config.toml",
        subject_rank=None if last is None else last.state,
        points=complete_clauses(first, "" if last is None else f"last after step {last.saved.step:,}"),
    )


class _Interval(NamedTuple):
    """How often checkpoints are taken, beside how often they should be; seconds."""

    last: LastCheckpoint
    actual: float
    optimum: float
    failure_seconds: float

    @property
    def factor(self) -> float:
        """How many times the optimum the interval is; below 1 it is shorter."""
        return self.actual / self.optimum

    def waste_pct(self, interval: float) -> float:
        """Return the share of the time that goes into checkpoints and into work that is done again."""
        blocked = self.last.saved.blocked_seconds
        return 100.0 * (blocked / interval + interval / (2 * self.failure_seconds))


def _interval(job: JobState) -> _Interval | None:
    last = last_checkpoint(job)
    if last is None or last.saved.interval_seconds is None or last.saved.blocked_seconds <= 0:
        return None
    hours = FAILURE_HOURS or GPU_HOURS_PER_FAILURE / job.world_size
    failure, cost = hours * 3600.0, last.saved.blocked_seconds
    optimum = max(math.sqrt(2 * cost * failure) - cost, cost)
    return _Interval(last, last.saved.interval_seconds, optimum, failure)


def _is_far_from_optimum(job: JobState, is_raised: bool) -> bool:
    found = _interval(job)
    if found is None or found.actual <= 0:
        return False
    far = FAR_FACTOR[1 if is_raised else 0]
    return max(found.factor, 1 / found.factor) >= far and found.waste_pct(found.actual) >= WASTE_PCT


def _interval_alert(job: JobState) -> AlertText:
    found = _interval(job)
    assert found is not None, "called only while the rule holds"
    saved, too_often = found.last.saved, found.factor < 1
    actual, optimum = (fmt.duration(found.actual), fmt.duration(float(round(found.optimum))))
    waste, least = found.waste_pct(found.actual), found.waste_pct(found.optimum)
    days = found.failure_seconds / 86400.0
    failure = fmt.counted(round(days), "day") if days >= 2.0 else fmt.duration(float(round(found.failure_seconds)))
    return AlertText(
        severity="info",
        summary=f"Checkpoints, of {fmt.duration(saved.blocked_seconds)} each, are saved every {actual}: that "
        "costs "
        f"{fmt.percent_text(waste, 1)} of the time. The optimum is every {optimum}, at "
        f"{fmt.percent_text(least, 1)} "
        f"(for one failure every {failure}).",
        evidence={
            "interval_seconds": found.actual,
            "optimum_seconds": found.optimum,
            "checkpoint_seconds": saved.blocked_seconds,
            "failure_seconds": found.failure_seconds,
            "lost_pct": waste,
            "least_lost_pct": least,
        },
        next=(SAVE_LESS_OFTEN if too_often else "save checkpoints more often")
        + "; if failures are rarer or more frequent, set alerts.checkpoint_interval.failure_hours in config.toml",
        subject_rank=found.last.state,
        points=complete_clauses(
            f"a checkpoint every {actual}",
            f"optimum {optimum}",
            f"{fmt.percent_text(waste, 1)} of the time is lost",
        ),
    )


class _Disk(NamedTuple):
    """The disk of the last checkpoint."""

    last: LastCheckpoint
    free: int
    full_in: float | None
    """Seconds until it is full at this rate; None where it does not fill."""
    fits_next: bool


def _disk(job: JobState) -> _Disk | None:
    last = last_checkpoint(job)
    if last is None or last.saved.disk_free_bytes is None:
        return None
    saved, free = last.saved, last.saved.disk_free_bytes
    rate = saved.disk_bytes_per_s
    return _Disk(last, free, free / rate if rate else None, saved.size_bytes is None or free >= saved.size_bytes)


def _fills(job: JobState, is_raised: bool) -> bool:
    disk = _disk(job)
    if disk is None:
        return False
    left = [state.rank.eta_seconds for state in job.ranks if state.rank.eta_seconds is not None]
    until = DISK_SECONDS[1 if is_raised else 0]
    fills = disk.full_in is not None and disk.full_in <= until and (not left or disk.full_in < max(left))
    return fills or not disk.fits_next


def _disk_alert(job: JobState) -> AlertText:
    disk = _disk(job)
    assert disk is not None, "called only while the rule holds"
    saved = disk.last.saved
    when = None if disk.full_in is None else fmt.duration(float(round(disk.full_in)))
    if disk.fits_next:
        summary = (
            f"The disk of the checkpoints is full in about {when} at the rate of the last ones: "
            f"{fmt.size(disk.free)} free."
        )
        first = f"checkpoint disk full in {when}"
    else:
        summary = (
            f"The next checkpoint does not fit on the disk: {fmt.size(disk.free)} free, the last one has "
            f"{fmt.size(saved.size_bytes)}."
        )
        first = "the next checkpoint does not fit"
    return AlertText(
        severity="warning" if disk.fits_next else "critical",
        summary=summary,
        evidence={
            "disk_free_bytes": disk.free,
            "disk_total_bytes": saved.disk_total_bytes,
            "size_bytes": saved.size_bytes,
            "full_in_seconds": disk.full_in,
            "path": None if saved.path is None else fmt.printable(saved.path, 200),
        },
        next="delete old checkpoints, keep fewer, or save to another disk",
        subject_rank=disk.last.state,
        points=complete_clauses(first, f"{fmt.size(disk.free)} free", f"last one {fmt.size(saved.size_bytes)}"),
    )


WORK_AT_RISK: Final = Rule[JobState](
    id="work_at_risk",
    holds=_is_much_at_risk,
    describe=_risk_alert,
    text=RuleText(
        meaning="If the training fails now, all work since the last checkpoint is lost.",
        condition=f"the last complete checkpoint is {RISK_HOURS:g} h old, or the training has saved none since it "
        "began (only where llmtop sees the checkpoints)",
        source="the hours are alerts.work_at_risk.hours in config.toml; Llama 3 was interrupted every 3 h on "
        "16,384 GPUs (arXiv 2407.21783)",
        clear_seconds=2.0,
    ),
)
CHECKPOINT_INTERVAL: Final = Rule[JobState](
    id="checkpoint_interval",
    holds=_is_far_from_optimum,
    describe=_interval_alert,
    text=RuleText(
        meaning="Checkpoints are saved too often and cost time, or too rarely, so that a failure costs more work.",
        condition=f"the interval is {FAR_FACTOR[0]:g} times the optimum or longer, or 1/{FAR_FACTOR[0]:g} of it "
        f"or shorter, and at least {WASTE_PCT:g} % of the time is lost",
        source="the optimum is that of Young and Daly: sqrt(2 x cost of a checkpoint x mean time between "
        "failures) - cost; the mean time is alerts.checkpoint_interval.failure_hours in config.toml, else "
        f"{GPU_HOURS_PER_FAILURE:,.0f} h of one GPU (Llama 3)",
        hold_seconds=5.0,
        clear_seconds=10.0,
    ),
)
CHECKPOINT_DISK_FULL: Final = Rule[JobState](
    id="checkpoint_disk_full",
    holds=_fills,
    describe=_disk_alert,
    text=RuleText(
        meaning="A checkpoint that does not fit on the disk stops most trainings, or is incomplete.",
        condition=f"less space is free than the last checkpoint took; or the disk is full within "
        f"{DISK_SECONDS[0] / 3600:.0f} h at the rate of the last checkpoints, and before the training ends",
        source="the free space of the file system (statvfs), read on this machine after each checkpoint and every "
        "30 s",
        clear_seconds=10.0,
    ),
)
RISK_RULES: Final = (WORK_AT_RISK, CHECKPOINT_INTERVAL, CHECKPOINT_DISK_FULL)
