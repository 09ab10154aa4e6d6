"""The rule for a training that does not move, and who holds it up."""

from __future__ import annotations

from typing import Final, NamedTuple

from llmtop import format as fmt
from llmtop.model.stall_thresholds import STALLED_SECONDS, STALLED_STEPS
from llmtop.rules.gpu import is_busy_but_idle
from llmtop.rules.rule import AlertText, Rule, RuleText, complete_clauses, stack_advice
from llmtop.rules.state.gpu import GpuState
from llmtop.rules.state.rank import JobState, RankState
from llmtop.rules.state.windows import finite_or_none


class BlockingRank(NamedTuple):
    """The rank that the others wait for, and how that is known."""

    state: RankState
    why: str


OTHER_WORK_MAX_AGE_SECONDS: Final = 60.0
"""Work seen within this time is current; a training at work reports it every 5 s."""


OTHER_WORK_REPORT_SECONDS: Final = 8.0
"""Work is reported every 5 s. After this time it is over, or one forward pass takes longer than 3 s."""
ACTIVE_CPU_PCT: Final = 20.0
"""Percent of a core; NCCL's and llmtop's own threads take a few in a rank that sleeps."""
ACTIVE_BYTES_PER_S: Final = 1e6


def stalled_ranks(job: JobState) -> list[RankState]:
    """Return the ranks without a step for too long; a server without requests is not stalled."""
    return [state for state in job.ranks if state.rank.state == "stalled" and state.rank.kind == "step"]


def _is_stalled(job: JobState, is_raised: bool) -> bool:
    if _has_stopped_rank(job):
        return True
    return bool(stalled_ranks(job)) and not _is_waiting_for_other_work(job)


def _has_stopped_rank(job: JobState) -> bool:
    """Return True if a signal holds one of several ranks: the others cannot finish their step."""
    return job.world_size > 1 and any(
        state.rank.state == "stopped" and state.rank.kind == "step" for state in job.ranks
    )


def _is_waiting_for_other_work(job: JobState) -> bool:
    """Return True if the stalled ranks wait for one that works at something else: the first often validates
    alone."""
    if any(state.rank.state in ("stopped", "gone") for state in job.ranks):
        return False
    return any(state.rank.state == "running" and is_doing_other_work(state) for state in job.ranks)


def is_doing_other_work(state: RankState) -> bool:
    """Return True if work that ends no step was seen since its last step, and lately."""
    worked = state.last_work_at
    return (
        worked is not None
        and worked > (state.last_step_at or 0.0)
        and state.now - worked <= OTHER_WORK_MAX_AGE_SECONDS
    )


def is_still_doing_other_work(state: RankState) -> bool:
    """Return True if a rank that was at other work still is: by its last report, or by its process and its GPU.

    A rank that hangs after its forward pass was at work as well, and then sleeps in a lock, a read or a wait.
    """
    if not is_doing_other_work(state):
        return False
    return state.now - (state.last_work_at or 0.0) <= OTHER_WORK_REPORT_SECONDS or _is_active(state)


def _is_active(state: RankState) -> bool:
    process = state.process
    if process is not None:
        written = (process.io_read_bytes_per_s or 0.0) + (process.io_write_bytes_per_s or 0.0)
        if (process.cpu_pct or 0.0) >= ACTIVE_CPU_PCT or written >= ACTIVE_BYTES_PER_S:
            return True
        if process.state == "disk-sleep":
            return True
    return _is_gpu_working(state)


def find_blocking_rank(job: JobState) -> BlockingRank | None:
    """Return the rank that holds a stalled job up; None where nothing distinguishes it.

    In this order: a rank that is stopped or has exited; the one whose step is behind all others'; the one whose
    GPU is idle while every other's spins in a collective at idle power.
    """
    for state in job.ranks:
        if state.rank.state == "stopped" and job.world_size > 1:
            return BlockingRank(state, "is stopped by a signal")
    if len(job.ranks) < 2:
        return None
    for state in job.ranks:
        if state.rank.state == "gone":
            return BlockingRank(state, "has exited")
    return _rank_behind_in_collectives(job) or _idle_rank_among_spinning(job)


def _rank_behind_in_collectives(job: JobState) -> BlockingRank | None:
    steps = [(state.rank.step, place) for place, state in enumerate(job.ranks) if state.rank.step is not None]
    if len(steps) < len(job.ranks):
        return None
    (last, place), (next_to_last, _) = sorted(steps)[:2]
    if last == next_to_last:
        return None
    return BlockingRank(job.ranks[place], f"is still at step {last}, the other ranks at {next_to_last} or later")


def _idle_rank_among_spinning(job: JobState) -> BlockingRank | None:
    idle = [state for state in job.ranks if state.gpu is not None and _is_idle(state.gpu)]
    spinning = [state for state in job.ranks if state.gpu is not None and is_busy_but_idle(state.gpu)]
    if len(idle) != 1 or not spinning or len(idle) + len(spinning) < len(job.ranks):
        return None
    return BlockingRank(idle[0], "has an idle GPU, other GPUs wait for it in a collective")


def _is_idle(gpu: GpuState) -> bool:
    return gpu.util_pct is not None and gpu.util_pct < 20.0


def seconds_without_step(state: RankState, now: float) -> float | None:
    """Since its last step ended, or since it attached; None where neither is known."""
    last = _last_progress_at(state)
    return None if last is None else max(now - last, 0.0)


def _last_progress_at(state: RankState) -> float | None:
    """Return when a process finished its last step, or attached, if it has not finished any; unix seconds."""
    return finite_or_none(state.rank.attached_at) if state.last_step_at is None else state.last_step_at


def _is_gpu_working(state: RankState) -> bool:
    """Return True if the rank's GPU does real work all the same: an evaluation, a checkpoint, a compilation."""
    gpu = state.gpu
    return gpu is not None and (gpu.util_pct or 0.0) >= 50.0 and (gpu.power_share_pct or 0.0) >= 50.0


def _stalled_since(stalled: list[RankState]) -> float | None:
    """Return when the stalled ranks finished their last step, in unix seconds."""
    times = [_last_progress_at(state) for state in stalled]
    return min((time for time in times if time is not None), default=None)


def _stalled_alert(job: JobState) -> AlertText:
    stalled = stalled_ranks(job) or list(job.ranks)
    found = find_blocking_rank(job)
    named = found.state if found else stalled[0]
    waiting = [state for state in stalled if state is not named]
    works = found is None and all(_is_gpu_working(state) for state in stalled)
    seconds = max(
        (s for state in stalled if (s := seconds_without_step(state, job.now)) is not None), default=None
    )
    gpu = named.gpu
    return AlertText(
        severity="warning" if works else "critical",
        summary=_stalled_summary(named, found, waiting, seconds, works),
        evidence={
            "seconds_without_step": seconds,
            "step": named.rank.step,
            "step_seconds_p50": named.rank.step_seconds_p50,
            "stalled_ranks": len(stalled),
            "waiting_ranks": len(waiting) if found else None,
            "culprit_rank": named.rank.rank if found else None,
            "util_pct": gpu.util_pct if gpu else None,
            "power_watts": gpu.mean("power_watts") if gpu else None,
            "waiting_util_pct": _mean_over(waiting, "util_pct"),
            "waiting_power_watts": _mean_over(waiting, "power_watts"),
            "waiting_sm_active_pct": _mean_over(waiting, "sm_active_pct"),
        },
        next=_stalled_next_step(named, found),
        subject_rank=named,
        since=_stalled_since(stalled),
        points=_stalled_points(named, found, waiting, seconds, works),
    )


def _stalled_summary(
    named: RankState, found: BlockingRank | None, waiting: list[RankState], seconds: float | None, works: bool
) -> str:
    where = f" ({named.location})" if named.location else ""
    since = "No step yet" if seconds is None else f"No step for {fmt.duration(float(round(seconds)))}"
    if found:
        others = f"{fmt.counted(len(waiting), 'other rank')} waiting" if waiting else ""
        return f"{since}: {named.label}{where} {found.why}{'; ' + others if others else ''}."
    if waiting:
        return (
            f"{since} in {len(waiting) + 1} ranks, {named.label}{where} among them. All wait at the same "
            "place, so the cause is unknown."
        )
    if works:
        return (
            f"{since} in {named.label}{where}, but its GPU is working: probably an evaluation, checkpoint or "
            f"compilation."
        )
    return f"{since} in {named.label}{where}{_gpu_words(named.gpu)}."


def _stalled_points(
    named: RankState, found: BlockingRank | None, waiting: list[RankState], seconds: float | None, works: bool
) -> tuple[str, ...]:
    since = "no step yet" if seconds is None else f"no step for {fmt.duration(float(round(seconds)))}"
    if found:
        return complete_clauses(
            *found.why.split(", "), since, f"{fmt.counted(len(waiting), 'other rank')} waiting"
        )
    if waiting:
        return complete_clauses(
            since, f"in {len(waiting) + 1} ranks", "all wait at the same place: the cause is unknown"
        )
    gpu = named.gpu
    if works:
        return complete_clauses(since, "its GPU is working", "probably an evaluation, checkpoint or compilation")
    if gpu is None:
        return complete_clauses(since)
    return complete_clauses(
        since, f"GPU at {fmt.percent_text(gpu.util_pct)} util", fmt.watts(gpu.mean("power_watts"))
    )


def _gpu_words(gpu: GpuState | None) -> str:
    if gpu is None or gpu.util_pct is None:
        return ""
    return f"; its GPU is at {fmt.percent_text(gpu.util_pct)} utilization and {fmt.watts(gpu.mean('power_watts'))}"


def _mean_over(states: list[RankState], measure: str) -> float | None:
    values = [v for state in states if state.gpu is not None and (v := state.gpu.mean(measure)) is not None]
    return sum(values) / len(values) if values else None


def _stalled_next_step(named: RankState, found: BlockingRank | None) -> str:
    pid = named.rank.pid
    if named.rank.state == "stopped":
        return f"continue the process, run: kill -CONT {pid}"
    if named.rank.state == "gone":
        return f"read the log of {named.label}, then end the job: it cannot continue without this rank"
    return stack_advice(named.label, pid)


STALLED: Final = Rule[JobState](
    id="stalled",
    holds=_is_stalled,
    describe=_stalled_alert,
    covered_by=frozenset({"hung_collective"}),
    text=RuleText(
        meaning="The training process runs, but has not finished a step, requested a batch or begun a phase "
        "for a long time. In a job of several ranks, the alert names the blocking rank if it is known: the rank "
        "is stopped or has exited, its step is behind, or its GPU is idle while the other GPUs spin.",
        condition=f"no step ends, and no other work is observed, for {STALLED_SECONDS:.0f} s and for "
        f"{STALLED_STEPS:.0f} times the median step; at once if a signal has stopped one of several ranks. "
        "Not for a single process that a signal has stopped, nor while one rank does other work",
        source="the end of each step by the host clock; the blocking rank is found by comparing the steps and the "
        "GPUs of all ranks",
        clear_seconds=0.0,
        fields=("step_seconds", "util_pct", "power_watts"),
    ),
)
