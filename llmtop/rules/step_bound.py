"""Rules about what bounds a training's steps, from its phases by both clocks and its GPU's counters.

The host's clock alone never decides: CUDA is asynchronous, so a healthy run can spend most of a step "loading
data" while the GPU works. Each rule needs a witness from the GPU's side.
"""

from __future__ import annotations

from typing import Final

from llmtop import format as fmt
from llmtop.model.loading_causes import cause_name
from llmtop.naming.phase_names import role_of
from llmtop.rules.inference import next_step, step_noun
from llmtop.rules.launch_sync import LAUNCH_BOUND, SYNC_BOUND, is_launching_dominant
from llmtop.rules.recent_steps import (
    COMM_PCT,
    RX_LOW_BYTES_PER_S,
    RX_OF_LINK,
    RX_POLLS_OF_LINK,
    RX_WAIT_PCT,
    SM_LAUNCH,
    SM_STARVED,
    UTIL_STARVED,
    WAITED_PCT,
    WINDOW_SECONDS,
    WINDOW_STEPS,
    activity_text,
    estimate_idle,
    idle_or_activity_text,
    is_copying,
    is_in_most_steps,
    is_kept_busy,
    is_little_used,
    latest_steps,
    mean_sm_active_pct,
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
from llmtop.rules.state.step_costs import StepCosts, gpu_share_pct, host_share_pct
from llmtop.rules.state.windows import finite_or_none

# ---- waiting for data ----

SOON_KNOWN_SECONDS: Final = 4.0
"""GPU-Util is believed once it was seen for 1.5 to 2.5 s of a window of steps, some rounds after it began."""


def _waiting_flags(steps: list[StepCosts], pct: float, by_gpu: bool) -> list[bool]:
    """For each step, whether at least `pct` percent of it went into waiting for data."""
    if by_gpu:
        return [(gpu_share_pct([step], "input") or 0.0) >= pct for step in steps]
    return [host_share_pct([step], ("input",)) >= pct for step in steps]


def _from_first_wait_to_last(steps: list[StepCosts], by_gpu: bool) -> list[StepCosts]:
    """Return the steps after the first that waited, to the last that did: whole periods of a loader that delivers
    in bursts.

    The first is left out since it began before the wait did.
    """
    places = [place for place, waited in enumerate(_waiting_flags(steps, WAITED_PCT[1], by_gpu)) if waited]
    return steps[places[0] + 1 : places[-1] + 1] if len(places) > 1 else steps


def _recent_timed_steps(state: RankState) -> list[StepCosts]:
    """Return the recent steps that CUDA events timed; the last two that they did where these are fewer."""
    known = [step for step in latest_steps(state) if step.gpu is not None]
    return known if len(known) > 1 else timed_steps(state)


def _rare_waits_pct(state: RankState) -> float:
    """Return the share of the time in long, rare waits for data, such as at each start of a short epoch."""
    rare = state.rank.rare
    if rare is None or rare.part is None or role_of(rare.part) != "input":
        return 0.0
    return 100.0 * rare.seconds_per_hour / 3600.0


def _is_input_bound(state: RankState, is_raised: bool) -> bool:
    steps, pct = steps_to_evaluate(state), pick_threshold(WAITED_PCT, is_raised)
    idle = estimate_idle(state)
    if state.is_working and idle is not None and idle >= pct and _rare_waits_pct(state) >= pct:
        return True
    if not steps or is_copying(state, is_raised):
        return False  # a copy that the loop counts as loading is h2d_bound
    # One slow batch is the start of an epoch; two within two seconds are a loader that cannot keep up.
    if host_share_pct(steps, ("input",)) < pct or sum(_waiting_flags(steps, pct, by_gpu=False)) < 2:
        return False
    if is_kept_busy(state, pct / 2) or is_launching_dominant(state, steps, idle):
        return False  # what the training's stream waits for, another does; or it waits for other things, mostly
    if idle is None and _is_soon_known(state):
        return False
    return _is_starved_of_data(state, steps, is_raised)


def _is_soon_known(state: RankState) -> bool:
    """Return True if the rank steps for too short a time yet for an idle share from GPU-Util."""
    seconds, gpu = finite_or_none(state.rank.window_seconds), state.gpu
    return seconds is not None and seconds < SOON_KNOWN_SECONDS and gpu is not None and gpu.util_pct is not None


def _uses_no_gpu(state: RankState) -> bool:
    """Return True if neither the driver, CUDA events nor the training know of a GPU."""
    return state.gpu is None and state.rank.gpu_uuid is None and not _recent_gpu_times(state)


def _recent_gpu_times(state: RankState) -> bool:
    return any(step.gpu is not None for step in [*latest_steps(state), *timed_steps(state)])


def _is_starved_of_data(state: RankState, steps: list[StepCosts], is_raised: bool) -> bool:
    """Return True if the GPU has nothing to do while the host waits for data, or there is no GPU that could
    work on."""
    if _uses_no_gpu(state):
        return True
    known, idle, pct = _recent_timed_steps(state), estimate_idle(state), pick_threshold(WAITED_PCT, is_raised)
    if idle is not None and idle >= (max(pct, host_share_pct(steps, ("input",))) if known else pct):
        return True  # of four steps the one that waits for four workers may never be among those with events
    if not known:
        return idle is None and is_little_used(state, is_raised, SM_STARVED)
    dry = _waiting_flags(known, pct, by_gpu=True)
    return (dry[-1] if len(dry) < 3 else sum(dry) > 1) and (gpu_share_pct(known, "input") or 0.0) >= pct


def _rare_input_alert(state: RankState, share_pct: float) -> AlertText:
    rare, evidence = state.rank.rare, role_evidence(state, "input")
    assert rare is not None, "told only where there are rare waits"
    often = f"once in {rare.every:.0f} steps" if rare.every else "in a rare step"
    evidence |= {"rare_wait_pct": share_pct, "rare_step_seconds": rare.seconds, "rare_every_steps": rare.every}
    return AlertText(
        severity="warning",
        summary=f"{rank_name(state)} waits for data {often} (such a step takes {fmt.duration(rare.seconds)}). "
        f"These waits take {fmt.percent_text(share_pct)} of the time (host clock), and "
        f"{idle_or_activity_text(evidence)}.",
        evidence=evidence,
        next=next_step(
            state,
            "input_bound",
            "set persistent_workers=True (needs num_workers of 1 or more); use more workers or longer epochs; "
            "press s for the Python stacks of the data loader",
        ),
        points=complete_clauses(
            f"waits for data {fmt.percent_text(share_pct)} of the time", often, short_idle_text(evidence)
        ),
    )


def _input_bound_alert(state: RankState) -> AlertText:
    share_pct = _rare_waits_pct(state)
    if share_pct >= max(WAITED_PCT[1], host_share_pct(latest_steps(state), ("input",))):
        return _rare_input_alert(state, share_pct)
    steps, known = latest_steps(state), _from_first_wait_to_last(_recent_timed_steps(state), by_gpu=True)
    if known:  # the host's clock may have called it loading long before the GPU ran dry
        steps = [step for step in steps if step.index >= known[0].index] or steps
    steps = _from_first_wait_to_last(steps, by_gpu=False)
    evidence = role_evidence(state, "input", (steps, known))
    cost = state.rank.loading
    if cost is not None:
        evidence |= {
            "loading_cause": cost.cause,
            "loading_cause_pct": cost.share_pct,
            "loading_place": cost.place,
            "workers": cost.workers,
            "workers_needed_at_least": cost.workers_needed,
            "workers_needed_at_most": cost.workers_needed_most,
            "saves_at_most_pct": cost.wait_pct,
        }
    return AlertText(
        severity="warning",
        summary=f"{rank_name(state)} waits for data {fmt.percent_text(evidence['dataload_host_pct'])} of each "
        f"{step_noun(state)} (host clock, {total_seconds(steps)}), "
        + (
            "and uses no GPU."
            if _uses_no_gpu(state)
            else f"and {idle_or_activity_text(evidence, evidence['dataload_gpu_pct'])}."
        )
        + (f" {cost.summary}" if cost is not None else ""),
        evidence=evidence,
        next=f"{cost.advice}; press s for the Python stacks"
        if cost is not None and cost.cause != "unknown"
        else next_step(
            state,
            "input_bound",
            (f"{cost.advice}; " if cost is not None and cost.advice else "")
            + "press s for the Python stacks of the data loader; set num_workers to 1 or more where it is 0, and "
            "persistent_workers=True where workers start anew in each epoch",
        ),
        points=complete_clauses(
            f"waits for data {fmt.percent_text(evidence['dataload_host_pct'])} of the {step_noun(state)}",
            "" if cost is None or cost.cause == "unknown" else f"loader: {cause_name(cost.cause)}",
            "no GPU" if _uses_no_gpu(state) else short_idle_text(evidence, evidence["dataload_gpu_pct"]),
        ),
    )


INPUT_BOUND: Final = Rule[RankState](
    id="input_bound",
    holds=_is_input_bound,
    describe=_input_bound_alert,
    covered_by=frozenset({"stalled", "hung_collective", "straggler", "h2d_bound", "low_power_full_util"}),
    text=RuleText(
        meaning="The GPU is idle until the data loader delivers the next batch.",
        condition=f"waiting for data takes {WAITED_PCT[0]:.0f} % or more of the step by the host clock and by "
        f"CUDA events, in two or more of the last {WINDOW_STEPS} steps. "
        f"If those are shorter than {WINDOW_SECONDS:.0f} s, the last {WINDOW_SECONDS:.0f} s count. "
        "The GPU is idle meanwhile. "
        f"Without CUDA events, the GPU is idle for {WAITED_PCT[0]:.0f} % of the time, "
        f"or under {SM_STARVED[0]:.0f} % of its SMs are active, or utilization is under {UTIL_STARVED[0]:.0f} %. "
        f"Rare long steps count if their waits for data take {WAITED_PCT[0]:.0f} % of the time. "
        "The alert does not hold if kernel launches leave the GPU idle for twice as long as these waits. "
        "Without a GPU, the host clock alone decides",
        source="checked on an H200 with planted waits of 30 % and 60 % of the step; in a healthy run, the waits "
        "took 79 % by the host clock, but 0.1 % by the GPU clock",
        clear_seconds=4.0,
        fields=("gpu_busy_pct", "util_pct", "sm_active_pct", "power_watts"),
    ),
)


# ---- copying from the host ----


def _is_h2d_bound(state: RankState, is_raised: bool) -> bool:
    return bool(steps_to_evaluate(state)) and is_copying(state, is_raised)


def _h2d_bound_alert(state: RankState) -> AlertText:
    evidence = role_evidence(state, "h2d")
    link = state.gpu.link_bytes_per_s if state.gpu else None
    evidence["pcie_link_bytes_per_s"] = link
    of_link = f" of {fmt.rate(link)}" if link else ""
    return AlertText(
        severity="warning",
        summary=f"{rank_name(state)} copies {fmt.rate(evidence['pcie_rx_bytes_per_s'])}{of_link} to the GPU "
        f"while {activity_text(state)}.",
        evidence=evidence,
        next=next_step(
            state,
            "h2d_bound",
            "set pin_memory=True; use .to(device, non_blocking=True); copy the next batch during the current step",
        ),
        points=complete_clauses(
            f"copies {fmt.rate(evidence['pcie_rx_bytes_per_s'])} to the GPU", short_activity_text(state)
        ),
    )


H2D_BOUND: Final = Rule[RankState](
    id="h2d_bound",
    holds=_is_h2d_bound,
    describe=_h2d_bound_alert,
    covered_by=frozenset({"stalled", "hung_collective"}),
    text=RuleText(
        meaning="The GPU waits for data that is copied from host memory over PCIe.",
        condition=f"the GPU receives {fmt.rate(RX_LOW_BYTES_PER_S[0])} or more over PCIe while under "
        f"{SM_LAUNCH[0]:.0f} % of the SMs are active and the training runs steps. Not if the rate is under "
        f"{100 * RX_OF_LINK:.0f} % of the link rate, and the host spends under {RX_WAIT_PCT[0]:.0f} % of the time "
        f"in waiting calls and copies. With several ranks the former limit is {100 * RX_POLLS_OF_LINK:.0f} %, "
        "because their kernels poll host memory while they wait",
        source="measured on an H200: a training with slow pageable copies receives 8.3 GB/s at 0.4 % SM "
        "activity, a healthy training needs only 0.03 GB/s",
        hold_seconds=2.0,
        clear_seconds=5.0,
        fields=("pcie_rx_bytes_per_s", "sm_active_pct", "util_pct"),
    ),
)


# ---- communicating ----


def _exposed_pct(state: RankState) -> float | None:
    """Return the share of the step in which even the rank that comes last waits for communication alone."""
    exposed, step = finite_or_none(state.rank.exposed_seconds), finite_or_none(state.rank.step_seconds_p50)
    return 100 * exposed / step if exposed is not None and step and state.is_stepping else None


def _is_communication_bound(state: RankState, is_raised: bool) -> bool:
    if (_exposed_pct(state) or 0.0) >= pick_threshold(COMM_PCT, is_raised):
        return True
    steps, sm = steps_to_evaluate(state), mean_sm_active_pct(state)
    if not steps or sm is None or sm >= pick_threshold(SM_STARVED, is_raised):
        return False
    share = gpu_share_pct(timed_steps(state, 1), "comm")
    if share is not None:
        return share >= pick_threshold(COMM_PCT, is_raised)
    return is_in_most_steps(steps, "comm", pick_threshold(COMM_PCT, is_raised))


def _communication_bound_alert(state: RankState) -> AlertText:
    steps, exposed = state.recent(WINDOW_STEPS), _exposed_pct(state)
    evidence = role_evidence(state, "comm", (steps, timed_steps(state)))
    if exposed is not None and exposed >= COMM_PCT[1]:
        evidence |= {"exposed_pct": exposed, "exposed_seconds": state.rank.exposed_seconds}
        return AlertText(
            severity="warning",
            summary=f"{rank_name(state)} waits for communication {fmt.percent_text(exposed)} of each step, "
            "without computing meanwhile; no "
            "rank is a straggler.",
            evidence=evidence,
            next="use larger batches, gradient accumulation or bf16 gradients; press c to profile the "
            "communication",
            points=complete_clauses(
                f"exposed communication {fmt.percent_text(exposed)} of step", "no rank is a straggler"
            ),
        )
    return AlertText(
        severity="warning",
        summary=f"{rank_name(state)} communicates {fmt.percent_text(evidence['communication_host_pct'])} of each "
        f"step ({total_seconds(steps)}) while {fmt.percent_text(evidence['sm_active_pct'])} of its SMs are "
        "active.",
        evidence=evidence,
        next="use larger buckets (bucket_cap_mb) and overlap them with backward; "
        "press c to profile the communication",
        points=complete_clauses(
            f"communicates {fmt.percent_text(evidence['communication_host_pct'])} of the step",
            short_activity_text(state),
        ),
    )


COMMUNICATION_BOUND: Final = Rule[RankState](
    id="communication_bound",
    holds=_is_communication_bound,
    describe=_communication_bound_alert,
    covered_by=frozenset(
        {"stalled", "hung_collective", "straggler", "input_bound", "h2d_bound", "low_power_full_util"}
    ),
    text=RuleText(
        meaning="The GPU does not compute during the collectives, because they do not overlap with backward.",
        condition=f"every rank, even the slowest, waits {COMM_PCT[0]:.0f} % of the step for collectives after "
        "its last gradient; or communication phases take that share of the step and under "
        f"{SM_STARVED[0]:.0f} % of the SMs are active",
        source="a common threshold for a profile: communication over 10 % of a step; the limit on SM activity is "
        "that of NVIDIA's DCGM guide",
        hold_seconds=2.0,
        clear_seconds=5.0,
        fields=("sm_active_pct", "util_pct", "power_watts"),
    ),
)

STEP_RULES: Final = (INPUT_BOUND, H2D_BOUND, LAUNCH_BOUND, SYNC_BOUND, COMMUNICATION_BOUND)

__all__ = ["STEP_RULES", "timed_steps"]
