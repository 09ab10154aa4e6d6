"""The recent steps that rules use, GPU activity over them, and its wording."""

from __future__ import annotations

from typing import Any, Final

from llmtop import format as fmt
from llmtop.model import gpu_busy
from llmtop.naming.own_phases import DATALOAD
from llmtop.naming.phase_names import Role
from llmtop.rules import limits
from llmtop.rules.inference import has_enough_requests
from llmtop.rules.state.rank import SILENT_SECONDS, RankState
from llmtop.rules.state.step_costs import StepCosts, gpu_share_pct, host_share_pct, idle_share_pct
from llmtop.rules.state.windows import finite_or_none

WINDOW_STEPS: Final = 8
"""Steps used with the host's clock: few enough to raise an alert within ten."""
WINDOW_SECONDS: Final = 2.0
"""Window when steps are shorter: the workers of a loader may deliver in bursts, one a step each."""
TIMED_WITHIN: Final = 40
"""How many steps back a step may be that CUDA events timed: they are thinned."""
WAITED_PCT: Final = limits.threshold_pair(limits.CONFIGURED.input_bound.step_pct, (10.0, 7.0))
"""Percent of the step that waits for data, to raise and to stay raised."""
INPUT_PCT: Final = (10.0, 7.0)
"""Percent of the step, to raise and to stay raised. Others warn from 5 % of waiting or 15 % of idle time on."""
SYNC_PCT: Final = limits.threshold_pair(limits.CONFIGURED.sync_bound.step_pct, (20.0, 15.0))
COMM_PCT: Final = limits.threshold_pair(limits.CONFIGURED.communication_bound.step_pct, (20.0, 15.0))
"""Percent of the step, in a phase that waits for the GPU, or for other ranks."""
SM_STARVED: Final = (50.0, 60.0)
"""DCGM's guide: below 50 % SM activity a GPU is likely used ineffectively."""
UTIL_STARVED: Final = (60.0, 70.0)
"""Stands in for SM activity where that is absent: launch-bound 22, copying 20, trainings at work 99."""
SM_LAUNCH: Final = (30.0, 40.0)
"""A launch-bound H200 had 1.6 % of its SMs active, at 22 % util and 18 % of its power limit."""
POWER_LAUNCH: Final = (40.0, 45.0)
UTIL_LAUNCH: Final = 90.0
_ROLES: Final[tuple[Role, ...]] = ("input", "h2d", "comm", "sync", "compute", "backward", "optimizer")
RX_LOW_BYTES_PER_S: Final = (2.0e9, 1.5e9)
"""Pageable copies reached 8.3 GB/s on an H200; healthy trainings read 0.03."""
RX_OF_LINK: Final = gpu_busy.COPIES_OF_LINK
RX_POLLS_OF_LINK: Final = 0.5
"""The same where ranks wait for each other: a kernel of NCCL that waits reads the host's memory again and again.
Two H100s read 14 of 58.7 GB/s, and 0.02 while they worked."""
RX_WAIT_PCT: Final = (10.0, 7.0)
"""Percent of the time, in calls that wait, among them copies that block."""


def pick_threshold(pair: tuple[float, float], is_raised: bool) -> float:
    """Return the threshold of a pair: to stay raised where its alert is `up`, else to be raised."""
    return pair[1] if is_raised else pair[0]


def steps_to_evaluate(state: RankState) -> list[StepCosts]:
    """Return the steps to judge by, or none: too few, or the last one is long ago. The same for all rules of a
    round."""
    if state.judged_by is None:
        state.judged_by = _find_steps_to_evaluate(state)
    return state.judged_by


def _find_steps_to_evaluate(state: RankState) -> list[StepCosts]:
    if not state.is_working or not state.steps or not has_enough_requests(state):
        return []
    if not state.has_stepped_within(SILENT_SECONDS):
        return []
    steps = latest_steps(state)
    least = 1 if state.rank.kind == "request" else WINDOW_STEPS // 2  # a request has many forward passes
    return steps if len(steps) >= least and any(step.named for step in steps) else []


def latest_steps(state: RankState) -> list[StepCosts]:
    """Return the last eight steps, or as many as took two seconds; oldest first."""
    steps, seconds, count = state.recent(TIMED_WITHIN), 0.0, 0
    for step in reversed(steps):
        if count >= WINDOW_STEPS and seconds >= WINDOW_SECONDS:
            break
        seconds += step.total
        count += 1
    return steps[len(steps) - count :]


def total_seconds(steps: list[StepCosts]) -> str:
    """Return how much time these steps are of: a share of them is of another window than the figures of the
    rank, which stand beside it on the screen, and may differ from theirs. Rounded, so that it seldom
    changes."""
    seconds = sum(step.total for step in steps)
    return f"last {max(round(seconds, 1), 0.1) if seconds < 0.95 else round(seconds)} s"


def timed_steps(state: RankState, count: int = 2) -> list[StepCosts]:
    """Return the last steps that CUDA events timed, newest last; none when they are too long ago."""
    newest = state.steps[-1].index if state.steps else 0
    known: list[StepCosts] = []
    for step in reversed(state.steps):
        if step.gpu is not None and newest - step.index <= TIMED_WITHIN:
            known.append(step)
            if len(known) == count:
                break
    return known[::-1]


def is_in_most_steps(steps: list[StepCosts], role: Role, pct: float) -> bool:
    """Return True if most single steps have that share of a role: one slow batch is no bottleneck.

    Args:
        steps: oldest first.
        role: a role of phases, such as input.
        pct: least share of the step, in percent.
    """
    heavy = sum(host_share_pct([step], (role,)) >= pct for step in steps)
    return heavy * 3 >= len(steps) * 2


def mean_sm_active_pct(state: RankState) -> float | None:
    """Return the mean SM activity of the last seconds; None where it is absent."""
    return None if state.gpu is None else state.gpu.mean("sm_active_pct")


def is_little_used(state: RankState, is_raised: bool, sm_limit: tuple[float, float]) -> bool:
    """Return True if SM activity, or util where absent, shows that the GPU does little; False also if unknown."""
    gpu = state.gpu
    if gpu is None:
        return False
    # The latest value too: a mean still holds what was before the GPU began to work.
    if gpu.sm_active_pct is not None:
        return max(gpu.sm_active_pct, mean_sm_active_pct(state) or 0.0) < pick_threshold(sm_limit, is_raised)
    return gpu.util_pct is not None and max(gpu.util_pct, gpu.mean("util_pct") or 0.0) < pick_threshold(
        UTIL_STARVED, is_raised
    )


def estimate_idle(state: RankState) -> float | None:
    """Return the idle share of the rank's GPU in percent, by the most reliable source. Where that source gives a
    lower bound, a high value proves idleness and a low one proves nothing. None where unknown."""
    return finite_or_none(gpu_busy.idle_pct(state.rank))


def is_kept_busy(state: RankState, pct: float) -> bool:
    """Return True if the GPU is idle for less than a share, over the window and in the last seconds.

    Args:
        state: the rank whose GPU is meant.
        pct: idle share in percent.
    """
    idle, util = estimate_idle(state), state.gpu.mean("util_pct") if state.gpu else None
    if idle is None or state.rank.gpu_busy_bound or util is None:
        return False
    return idle < pct and util > 100.0 - pct


def outside_pct(steps: list[StepCosts]) -> float:
    """Return the share of the steps that no phase covers, by the host clock."""
    return max(0.0, 100.0 - host_share_pct(steps, _ROLES))


def is_copying(state: RankState, is_raised: bool) -> bool:
    """Return True if much comes in over PCIe while the GPU does little else."""
    rx = state.gpu.mean("pcie_rx_bytes_per_s") if state.gpu else None
    if state.gpu is None or rx is None or rx < pick_threshold(RX_LOW_BYTES_PER_S, is_raised):
        return False
    link, waits = state.gpu.link_bytes_per_s, finite_or_none(state.rank.gpu_wait_pct)
    if (state.rank.world_size or 1) > 1:
        part, waits = RX_POLLS_OF_LINK, waits or 0.0
    else:
        part = RX_OF_LINK
    if (
        link is not None
        and rx < part * link
        and waits is not None
        and waits < pick_threshold(RX_WAIT_PCT, is_raised)
    ):
        return False  # pinned memory on its way beside the work; a copy that blocks is a call that waits
    return is_little_used(state, is_raised, SM_LAUNCH)


def _idle_evidence(state: RankState, known: list[StepCosts]) -> dict[str, Any]:
    """Return how idle the GPU is: in the steps that it is about, where events saw more there than in the whole
    window."""
    rank, idle, events = state.rank, estimate_idle(state), idle_share_pct(known)
    if events is not None and (idle is None or events > idle + gpu_busy.AGREE_POINTS):
        return {"gpu_idle_pct": events, "gpu_idle_source": "events", "gpu_idle_is": None}
    return {
        "gpu_idle_pct": idle,
        "gpu_idle_source": rank.gpu_busy_source,
        "gpu_idle_is": "at least" if rank.gpu_busy_bound and idle is not None else None,
    }


def role_evidence(
    state: RankState, role: Role, window: tuple[list[StepCosts], list[StepCosts]] | None = None
) -> dict[str, Any]:
    """Return the numbers of an alert about what a rank's steps spend on a role.

    Args:
        state: of the rank.
        role: of the phases that it is about.
        window: the steps by the host's clock and by the GPU's; the last few if not given.
    """
    steps, known = window or (state.recent(WINDOW_STEPS), timed_steps(state))
    seconds = sum(step.total for step in steps) / len(steps) if steps else None
    name = {"input": DATALOAD, "comm": "communication"}.get(role, role)
    return {
        f"{name}_host_pct": host_share_pct(steps, (role,)),
        f"{name}_gpu_pct": gpu_share_pct(known, role),
        **_idle_evidence(state, known),
        "step_seconds": seconds,
        "util_pct": state.gpu.mean("util_pct") if state.gpu else None,
        "sm_active_pct": mean_sm_active_pct(state),
        "power_watts": state.gpu.mean("power_watts") if state.gpu else None,
        "pcie_rx_bytes_per_s": state.gpu.mean("pcie_rx_bytes_per_s") if state.gpu else None,
    }


def rank_name(state: RankState) -> str:
    """Return the rank at the beginning of a sentence: "Rank 1 (pid 1446, GPU 1)"."""
    label = state.label[0].upper() + state.label[1:]
    return f"{label} ({state.location})" if state.location else label


def activity_text(state: RankState) -> str:
    """Return how many of its SMs work, or how often one does, as a part of a sentence."""
    sm = mean_sm_active_pct(state)
    if sm is not None:
        return f"{fmt.percent_text(sm, 1)} of its SMs are active"
    return f"a kernel runs {fmt.percent_text(state.gpu.mean('util_pct') if state.gpu else None)} of the time"


def idle_text(evidence: dict[str, Any]) -> str | None:
    """Return the idle share as part of a sentence, with its source; None where unknown.

    Args:
        evidence: as of `role_evidence`.
    """
    idle = _known_idle_pct(evidence)
    if idle is None:
        return None
    least = "at least " if evidence["gpu_idle_is"] else ""
    source = gpu_busy.source_name(evidence["gpu_idle_source"])
    return f"the GPU is idle {least}{fmt.percent_text(idle)} of the time ({source})"


def _known_idle_pct(evidence: dict[str, Any]) -> float | None:
    """Return the idle share in percent; None where unknown, and for a lower bound that rounds to 0."""
    idle: float | None = evidence["gpu_idle_pct"]
    return None if idle is None or (evidence["gpu_idle_is"] and idle <= 0.5) else idle


def short_idle_text(evidence: dict[str, Any], dry: float | None = None) -> str:
    """Return the same in a few words, for one row of the screen; arguments as of `idle_or_activity_text`."""
    idle, sm = _known_idle_pct(evidence), evidence["sm_active_pct"]
    if idle is not None:
        return f"GPU idle {'≥ ' if evidence['gpu_idle_is'] else ''}{fmt.percent_text(idle)}"
    if dry is not None:
        return f"GPU idle {fmt.percent_text(dry)}"
    return (
        f"SM active {fmt.percent_text(sm)}" if sm is not None else f"util {fmt.percent_text(evidence['util_pct'])}"
    )


def short_activity_text(state: RankState) -> str:
    """Return the SM activity in a few words; "" where unknown."""
    sm = mean_sm_active_pct(state)
    return f"SM active {fmt.percent_text(sm, 1)}" if sm is not None else ""


def idle_or_activity_text(evidence: dict[str, Any], dry: float | None = None) -> str:
    """Return how idle the GPU is, or else what is known of it, as a part of a sentence.

    Args:
        evidence: as of `role_evidence`.
        dry: for which part of the steps the GPU had run dry, by CUDA events, in percent.
    """
    known, sm = idle_text(evidence), evidence["sm_active_pct"]
    if known is not None:
        return known
    if dry is not None:
        return f"the GPU is idle {fmt.percent_text(dry)} of the time (CUDA events)"
    if sm is not None:
        return f"{fmt.percent_text(sm)} of the SMs are active"
    return f"the GPU is at {fmt.percent_text(evidence['util_pct'])} utilization"
