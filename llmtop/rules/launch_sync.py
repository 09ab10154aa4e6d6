"""Rules about hosts that cannot keep the GPU at work: they launch too slowly, or wait for it again and again.

Both use the idle share of `llmtop.model.gpu_busy`. The host decides which of the two it is: if it is mostly in
calls that wait for the GPU, or in a phase named so, it is synchronization.
"""

from __future__ import annotations

from typing import Final

from llmtop import format as fmt
from llmtop.model.snapshot import Cause
from llmtop.naming.phase_names import Role
from llmtop.rules.inference import next_step, step_noun
from llmtop.rules.recent_steps import (
    INPUT_PCT,
    POWER_LAUNCH,
    SM_LAUNCH,
    SYNC_PCT,
    UTIL_LAUNCH,
    WINDOW_STEPS,
    activity_text,
    estimate_idle,
    idle_or_activity_text,
    idle_text,
    is_copying,
    is_in_most_steps,
    is_little_used,
    outside_pct,
    pick_threshold,
    rank_name,
    role_evidence,
    short_activity_text,
    short_idle_text,
    steps_to_evaluate,
    timed_steps,
    total_seconds,
)
from llmtop.rules.rule import AlertText, Rule, RuleText, complete_clauses
from llmtop.rules.state.rank import RankState
from llmtop.rules.state.step_costs import LAUNCHING, StepCosts, gpu_share_pct, host_share_pct, idle_share_pct
from llmtop.rules.state.windows import finite_or_none

IDLE_PCT: Final = (10.0, 8.5)
"""Percent of the time, to raise and to stay raised. A capture's verdict is gpu_bound below ten, too. GPU-Util
made 8.5 of 3.2 idle per cent, and 11 of 13.6."""
SAMPLED_PCT: Final = SYNC_PCT
"""Percent of the time, in calls that wait for the GPU; the threshold in use elsewhere for synchronising."""
SAMPLED_LEAST_PCT: Final = (SYNC_PCT[0] / 2, SYNC_PCT[0] * 0.35)
"""Where that is half or more of what the GPU works at all: then host and GPU take turns."""
LAUNCHING_PCT: Final = 60.0
MOSTLY_LAUNCHING_PCT: Final = 50.0
"""Percent of the step, where the host's other work is known and does not explain how idle the GPU is."""
_WAITING: Final[tuple[Role, ...]] = ("input", "h2d", "comm", "sync")


def _is_waiting_for_gpu(state: RankState, is_raised: bool) -> bool:
    """Return True if the host stands in waiting calls for so long that they are what keeps it from launching
    ahead."""
    waits, busy = finite_or_none(state.rank.gpu_wait_pct), finite_or_none(state.rank.gpu_busy_pct)
    if waits is None:
        return False
    takes_turns = (
        busy is not None and waits >= 0.5 * busy and waits >= pick_threshold(SAMPLED_LEAST_PCT, is_raised)
    )
    return waits >= pick_threshold(SAMPLED_PCT, is_raised) or takes_turns


def _main_wait(state: RankState) -> Cause | None:
    return next(iter(state.rank.gpu_waits), None)


# ---- launching ----


def _unexplained_idle(state: RankState, steps: list[StepCosts]) -> float | None:
    """Return how idle the GPU is beyond what long steps that come now and then, and time outside of phases,
    explain.

    Between requests it has nothing to do.
    """
    idle, rank = estimate_idle(state), state.rank
    if idle is None:
        return None
    mean, usual = finite_or_none(rank.step_seconds_mean), finite_or_none(rank.step_seconds_p50)
    outside = finite_or_none(rank.outside_seconds)
    rare = 100.0 * (1.0 - usual / mean) if mean and usual else 0.0
    between = 100.0 * outside / mean if mean and outside is not None else 0.0
    waits = _outside_wait_pct(state)
    if rank.kind == "request":
        between, rare = 100.0 * (1.0 - (finite_or_none(rank.steps_per_s) or 0.0) * (usual or 0.0)), 0.0
    return idle - max(rare, between - waits, outside_pct(steps) - waits, 0.0)


def _outside_wait_pct(state: RankState) -> float:
    """Return the share of the time in which the host waits for the GPU in calls outside of phases. The GPU
    works in that time."""
    rank, found = state.rank, finite_or_none(state.rank.gpu_wait_pct)
    mean = finite_or_none(rank.step_seconds_mean)
    if not found or not mean:
        return 0.0
    outside = {cause.what for cause in rank.outside_causes}
    return min(found, 100.0 / mean * sum(wait.seconds for wait in rank.gpu_waits if wait.what in outside))


def _is_gpu_starved(state: RankState, steps: list[StepCosts], is_raised: bool) -> bool:
    """Return True if the GPU has too little to do; by its SM activity alone where the idle share is unknown."""
    gpu, idle = state.gpu, _unexplained_idle(state, steps)
    if gpu is None or not gpu.util_pct:
        return False
    if idle is not None and (not state.rank.gpu_busy_bound or idle >= pick_threshold(IDLE_PCT, is_raised)):
        return idle >= pick_threshold(IDLE_PCT, is_raised)
    if gpu.power_share_pct is None or gpu.power_share_pct >= pick_threshold(POWER_LAUNCH, is_raised):
        return False
    return gpu.util_pct < UTIL_LAUNCH and is_little_used(state, is_raised, SM_LAUNCH)


def is_launching_dominant(state: RankState, steps: list[StepCosts], idle: float | None) -> bool:
    """Return True if most of the GPU's idle time is not the wait for data, and the host mostly launches.

    What the waits could explain is taken off the idle time; what is left must be twice the wait for data. The
    idle time is of the rank's window, so the host's is, too: the last steps may be 60 ms in all, or odd ones.

    Args:
        state: of the rank.
        steps: the last ones, for a rank without a window.
        idle: the idle time to explain, in percent of all time; None: not known.
    """
    steps = state.window_means() or steps
    if idle is None or host_share_pct(steps, LAUNCHING) < MOSTLY_LAUNCHING_PCT:
        return False
    # A copy from pageable memory holds the host for as long as the GPU works before it: by events where there are.
    copies_pct = gpu_share_pct(steps, "h2d")
    waits = host_share_pct(steps, ("input", "comm", "sync"))
    left = idle - waits - (host_share_pct(steps, ("h2d",)) if copies_pct is None else copies_pct)
    return left >= max(IDLE_PCT[0], 2 * host_share_pct(steps, ("input",)))


def _is_launch_bound(state: RankState, is_raised: bool) -> bool:
    steps = steps_to_evaluate(state)
    if (
        not steps
        or is_copying(state, is_raised)
        or _is_waiting_for_gpu(state, is_raised)
        or not _is_gpu_starved(state, steps, is_raised)
    ):
        return False
    if (
        state.rank.gpu_busy_pct is None
        and (finite_or_none(state.rank.gpu_wait_pct) or 0.0) >= SAMPLED_LEAST_PCT[0]
    ):
        return False  # it is not known yet whether they take turns
    if is_launching_dominant(state, steps, _unexplained_idle(state, steps)):
        return True
    return host_share_pct(steps, LAUNCHING) >= LAUNCHING_PCT and host_share_pct(steps, _WAITING) < INPUT_PCT[0]


def _noun(state: RankState) -> str:
    """Return the step in a clause that fits a narrow row."""
    noun = step_noun(state)
    return "the step" if noun == "step" else noun


def _launch_bound_alert(state: RankState) -> AlertText:
    evidence = role_evidence(state, "compute")
    del evidence["compute_host_pct"], evidence["compute_gpu_pct"]
    steps = state.recent(WINDOW_STEPS)
    launching = host_share_pct(steps, LAUNCHING)
    evidence["launching_host_pct"] = launching
    evidence["gpu_host_paced_pct"] = state.rank.gpu_host_paced_pct
    evidence["waiting_calls_pct"] = state.rank.gpu_wait_pct
    watts = state.gpu.mean("power_watts") if state.gpu else None
    seen = idle_text(evidence) or f"{activity_text(state)} at {fmt.watts(watts)}"
    return AlertText(
        severity="warning",
        summary=f"{rank_name(state)} launches kernels more slowly than the GPU runs them: launching takes "
        f"{fmt.percent_text(launching)} of the {step_noun(state)} ({total_seconds(steps)}), "
        f"and {seen}.",
        evidence=evidence,
        next=next_step(
            state,
            "launch_bound",
            "use torch.compile, CUDA graphs or larger batches, a fused optimizer; press c to profile the launches",
        ),
        points=complete_clauses(
            f"kernel launches take {fmt.percent_text(launching)} of {_noun(state)}",
            short_idle_text(evidence) if evidence["gpu_idle_pct"] is not None else short_activity_text(state),
            fmt.watts(watts),
        ),
    )


LAUNCH_BOUND: Final = Rule[RankState](
    id="launch_bound",
    holds=_is_launch_bound,
    describe=_launch_bound_alert,
    # Not by low_power_full_util: of ranks whose hosts are too slow, now one's GPU spins and now the other's.
    covered_by=frozenset(
        {
            "stalled",
            "hung_collective",
            "straggler",
            "input_bound",
            "h2d_bound",
            "sync_bound",
            "communication_bound",
        }
    ),
    text=RuleText(
        meaning="The kernels are too short: the host cannot launch them as fast as the GPU runs them.",
        condition=f"the host spends {LAUNCHING_PCT:.0f} % or more of the step in phases that launch kernels, "
        f"under {INPUT_PCT[0]:.0f} % in phases that wait, "
        "and little in calls that wait for the GPU; and the GPU is idle "
        f"{IDLE_PCT[0]:.0f} % of the time for no other known reason. If the idle share is "
        f"unknown (several processes on the GPU): under {SM_LAUNCH[0]:.0f} % of the SMs are active, at under "
        f"{POWER_LAUNCH[0]:.0f} % of the power limit and under {UTIL_LAUNCH:.0f} % util",
        source="measured with six programs on an H100 whose idle time two profilers recorded "
        "(docs/measurements.md); an "
        "H200: 22 % util, 1.6 % SM activity, 125 of 700 W",
        hold_seconds=2.0,
        clear_seconds=5.0,
        fields=("util_pct", "sm_active_pct", "power_watts"),
    ),
)


# ---- waiting for the GPU ----


def _is_sync_bound(state: RankState, is_raised: bool) -> bool:
    steps = steps_to_evaluate(state)
    if not steps or not (
        _is_waiting_for_gpu(state, is_raised)
        or is_in_most_steps(steps, "sync", pick_threshold(SYNC_PCT, is_raised))
    ):
        return False
    idle = estimate_idle(state)
    if idle is None:
        idle = idle_share_pct(timed_steps(state, 1))
    return idle is not None and idle >= pick_threshold(IDLE_PCT, is_raised)


def _sync_bound_alert(state: RankState) -> AlertText:
    evidence = role_evidence(state, "sync")
    wait, found = _main_wait(state), finite_or_none(state.rank.gpu_wait_pct)
    steps = state.recent(WINDOW_STEPS)
    named = host_share_pct(steps, ("sync",))
    evidence["waiting_calls_pct"] = found
    where, share = f" (over the {total_seconds(steps)})", max(named, found or 0.0)
    if found is not None and found >= named:  # by stack samples over the window of the rank's figures
        where = ""
        if wait is not None:
            evidence |= {"call": wait.what, "call_seconds": wait.seconds}
            where = f", most in {wait.what}"
    return AlertText(
        severity="warning",
        summary=f"{rank_name(state)} waits for the GPU in {fmt.percent_text(share)} of each "
        f"{step_noun(state)}{where} instead of launching work; {idle_or_activity_text(evidence)}.",
        evidence=evidence,
        next=next_step(
            state,
            "sync_bound",
            "remove .item(), .cpu() and print(loss) from the loop, or read the values every 50 steps; "
            "press c to profile the waits",
        ),
        points=complete_clauses(
            f"host waits for GPU {fmt.percent_text(share)} of {step_noun(state)}",
            f"most in {fmt.shorten_middle(wait.what, 40)}" if "call" in evidence and wait is not None else "",
            short_idle_text(evidence),
        ),
    )


SYNC_BOUND: Final = Rule[RankState](
    id="sync_bound",
    holds=_is_sync_bound,
    describe=_sync_bound_alert,
    covered_by=frozenset({"stalled", "hung_collective", "straggler", "input_bound", "h2d_bound"}),
    text=RuleText(
        meaning="After each wait, the GPU is idle until the next kernels are launched.",
        condition=f"the GPU is idle {IDLE_PCT[0]:.0f} % of the time or more; and calls that wait for it (.item(), "
        f".cpu(), `if tensor`) are in {SAMPLED_PCT[0]:.0f} % of the samples of the host stack. "
        f"{SAMPLED_LEAST_PCT[0]:.0f} % are enough if that is half of the busy time of the GPU. Or a phase named "
        f"for waiting (sync, item) takes {SYNC_PCT[0]:.0f} % of most steps",
        source="common thresholds for a profile: 20 % of the time in synchronization, 15 % idle",
        hold_seconds=3.0,
        clear_seconds=5.0,
        fields=("gpu_busy_pct", "util_pct", "sm_active_pct"),
    ),
)
