"""Rules about what bounds a training's steps, from its phases by both clocks and its GPU's counters.

The host's clock alone never decides: CUDA is asynchronous, so a healthy run can spend most of a step "loading
data" while the GPU works. Each rule needs a witness from the GPU's side.
"""

from __future__ import annotations

from typing import Final

from llmtop import format as fmt
from llmtop.diagnosis.rank_state import RankState
from llmtop.diagnosis.rules.base import Rule, RuleText, Told
from llmtop.diagnosis.step_costs import (
    LAUNCHING,
    Role,
    StepCosts,
    gpu_share_pct,
    host_share_pct,
    idle_share_pct,
)
from llmtop.diagnosis.windows import finite

WINDOW_STEPS: Final = 8
"""Steps by which the host's clock is judged: few enough to tell within ten."""
TIMED_WITHIN: Final = 40
"""How many steps back a step may be that CUDA events timed: they are thinned."""
INPUT_PCT: Final = (10.0, 7.0)
"""Of the step, to raise and to stay raised. Others warn from 5 % of waiting or 15 % of idle time on."""
WAIT_PCT: Final = (20.0, 15.0)
"""Of the step, in a phase that waits or copies."""
SM_STARVED: Final = (50.0, 60.0)
"""DCGM's guide: below 50 % SM activity a GPU is likely used ineffectively."""
SM_LAUNCH: Final = (30.0, 40.0)
"""A launch-bound H200 had 1.6 % of its SMs active, at 22 % util and 18 % of its power limit."""
POWER_LAUNCH: Final = (40.0, 45.0)
UTIL_LAUNCH: Final = 90.0
RX_LOW_BYTES_PER_S: Final = (2.0e9, 1.5e9)
"""Pageable copies reached 8.3 GB/s on an H200; healthy trainings read 0.03."""


def _pick(pair: tuple[float, float], up: bool) -> float:
    return pair[1] if up else pair[0]


def _steps(state: RankState) -> list[StepCosts]:
    """The steps to judge by, or none: too few, or the last one is long ago."""
    if not state.stepping or not state.steps:
        return []
    usual = finite(state.rank.step_seconds_p50) or 0.0
    last = max(state.seen_at, finite(state.rank.last_step_at) or 0.0)
    if state.now - last > max(3.0, 3 * usual):
        return []
    steps = state.recent(WINDOW_STEPS)
    return steps if len(steps) >= WINDOW_STEPS // 2 and any(step.named for step in steps) else []


def timed(state: RankState, count: int = 2) -> list[StepCosts]:
    """The last steps that CUDA events timed, newest last; none when they are too long ago."""
    newest = state.steps[-1].index if state.steps else 0
    known = [step for step in state.steps if step.gpu is not None and newest - step.index <= TIMED_WITHIN]
    return known[-count:]


def _mostly(steps: list[StepCosts], role: Role, pct: float) -> bool:
    """Whether most single steps have that much of a role: one slow batch is no bottleneck."""
    heavy = sum(host_share_pct([step], (role,)) >= pct for step in steps)
    return heavy * 3 >= len(steps) * 2


def _sm(state: RankState) -> float | None:
    return None if state.gpu is None else state.gpu.mean("sm_active_pct")


def _gpu_is_idle(state: RankState, up: bool) -> bool | None:
    """Whether the GPU runs dry, by events where there are any, else by SM activity; None: nobody can tell."""
    idle = idle_share_pct(timed(state, 1))
    if idle is not None:
        return idle >= _pick(INPUT_PCT, up)
    sm, now = _sm(state), state.gpu.sm_active_pct if state.gpu else None
    # The latest value too: a mean still holds what was before the GPU began to work.
    return None if sm is None or now is None else max(sm, now) < _pick(SM_STARVED, up)


def _copies(state: RankState, up: bool) -> bool:
    """Whether much comes in over PCIe while the GPU does little else."""
    sm, rx = _sm(state), state.gpu.mean("pcie_rx_bytes_per_s") if state.gpu else None
    return rx is not None and sm is not None and rx >= _pick(RX_LOW_BYTES_PER_S, up) and sm < _pick(SM_LAUNCH, up)


def _evidence(state: RankState, role: Role) -> dict[str, float | int | None]:
    steps, known = state.recent(WINDOW_STEPS), timed(state)
    seconds = sum(step.total for step in steps) / len(steps) if steps else None
    name = {"input": "dataload", "comm": "communication"}.get(role, role)
    return {
        f"{name}_host_pct": host_share_pct(steps, (role,)),
        f"{name}_gpu_pct": gpu_share_pct(known, role),
        "gpu_idle_pct": idle_share_pct(known),
        "step_seconds": seconds,
        "util_pct": state.gpu.mean("util_pct") if state.gpu else None,
        "sm_active_pct": _sm(state),
        "power_watts": state.gpu.mean("power_watts") if state.gpu else None,
        "pcie_rx_bytes_per_s": state.gpu.mean("pcie_rx_bytes_per_s") if state.gpu else None,
    }


def _who(state: RankState) -> str:
    label = state.label[0].upper() + state.label[1:]
    return f"{label} ({state.where})" if state.where else label


def _clocks(evidence: dict[str, float | int | None]) -> str:
    idle, sm = evidence["gpu_idle_pct"], evidence["sm_active_pct"]
    if idle is not None:
        return f"the GPU is idle for {fmt.percent(idle)} of it by CUDA events"
    return f"{fmt.percent(sm)} of the GPU's SMs are active" if sm is not None else "the GPU waits"


# ---- waiting for data ----


def _input_bound(state: RankState, up: bool) -> bool:
    steps = _steps(state)
    if not steps or _copies(state, up):
        return False  # a copy that the loop counts as loading is h2d_bound
    return _mostly(steps, "input", _pick(INPUT_PCT, up)) and _gpu_is_idle(state, up) is True


def _tell_input(state: RankState) -> Told:
    evidence = _evidence(state, "input")
    return Told(
        severity="warning",
        summary=f"{_who(state)} waits for data in {fmt.percent(evidence['dataload_host_pct'])} of each step "
        f"(host's clock), and {_clocks(evidence)}.",
        evidence=evidence,
        next="more DataLoader workers, pin_memory and prefetch; press s for the stacks of the loading thread",
    )


INPUT_BOUND: Final = Rule[RankState](
    id="input_bound",
    holds=_input_bound,
    tell=_tell_input,
    covered_by=frozenset({"stalled"}),
    text=RuleText(
        title="waiting for data",
        meaning="The GPU runs dry because the next batch is not there.",
        condition=f"in most of the last {WINDOW_STEPS} steps waiting for data takes {INPUT_PCT[0]:.0f} % or more "
        f"by the host's clock, and the GPU is idle for {INPUT_PCT[0]:.0f} % or more of a step by CUDA events; "
        f"without events, under {SM_STARVED[0]:.0f} % of its SMs are active",
        source="checked on an H200 against planted waits of 30 and 60 %; a healthy run had 79 % by the host's "
        "clock and 0.1 % by the GPU's",
        clear_seconds=5.0,
        fields=("gpu_idle_pct", "util_pct", "sm_active_pct", "power_watts"),
    ),
)


# ---- copying from the host ----


def _h2d_bound(state: RankState, up: bool) -> bool:
    return bool(_steps(state)) and _copies(state, up)


def _tell_h2d(state: RankState) -> Told:
    evidence = _evidence(state, "h2d")
    link = state.gpu.link_bytes_per_s if state.gpu else None
    evidence["pcie_link_bytes_per_s"] = link
    of_link = f" of {fmt.rate(link)}" if link else ""
    return Told(
        severity="warning",
        summary=f"{_who(state)} copies {fmt.rate(evidence['pcie_rx_bytes_per_s'])}{of_link} to the GPU while only "
        f"{fmt.percent(evidence['sm_active_pct'], 1)} of its SMs are active.",
        evidence=evidence,
        next="pin_memory=True and .to(device, non_blocking=True); copy the next batch during this step's work",
    )


H2D_BOUND: Final = Rule[RankState](
    id="h2d_bound",
    holds=_h2d_bound,
    tell=_tell_h2d,
    covered_by=frozenset({"stalled"}),
    text=RuleText(
        title="copying from the host",
        meaning="The steps wait for data on its way over PCIe.",
        condition=f"PCIe receives {RX_LOW_BYTES_PER_S[0] / 1e9:g} GB/s or more while under {SM_LAUNCH[0]:.0f} % "
        "of the SMs are active and steps go on",
        source="measured on an H200: 8.3 GB/s at 0.4 % SM activity with pageable copies, 0.03 GB/s when healthy",
        hold_seconds=2.0,
        clear_seconds=5.0,
        fields=("pcie_rx_bytes_per_s", "sm_active_pct", "util_pct"),
    ),
)


# ---- launching ----


def _launch_bound(state: RankState, up: bool) -> bool:
    gpu, steps = state.gpu, _steps(state)
    if not steps or gpu is None or gpu.util_pct is None or gpu.power_share_pct is None:
        return False
    sm, power = _sm(state), gpu.power_share_pct
    if not 0 < gpu.util_pct < UTIL_LAUNCH or power >= _pick(POWER_LAUNCH, up):
        return False
    if sm is None or sm >= _pick(SM_LAUNCH, up):
        return False
    waits = host_share_pct(steps, ("input", "h2d", "comm", "sync"))
    return host_share_pct(steps, LAUNCHING) >= 60.0 and waits < INPUT_PCT[0]


def _tell_launch(state: RankState) -> Told:
    evidence = _evidence(state, "compute")
    del evidence["compute_host_pct"], evidence["compute_gpu_pct"]
    evidence["launching_host_pct"] = host_share_pct(state.recent(WINDOW_STEPS), LAUNCHING)
    evidence["gpu_host_paced_pct"] = state.rank.gpu_host_paced_pct
    return Told(
        severity="warning",
        summary=f"{_who(state)} launches its kernels more slowly than the GPU runs them: "
        f"{fmt.percent(evidence['launching_host_pct'])} of a step goes into launching, "
        f"{fmt.percent(_sm(state), 1)} of the SMs are active at {fmt.watts(evidence['power_watts'])}.",
        evidence=evidence,
        next="torch.compile or CUDA graphs, a fused optimizer, larger batches; press c to count the launches",
    )


LAUNCH_BOUND: Final = Rule[RankState](
    id="launch_bound",
    holds=_launch_bound,
    tell=_tell_launch,
    covered_by=frozenset(
        {"stalled", "straggler", "input_bound", "h2d_bound", "sync_bound", "low_power_full_util"}
    ),
    text=RuleText(
        title="launching too slowly",
        meaning="The kernels are so short that the host cannot launch them as fast as the GPU runs them.",
        condition=f"steps go on, the host spends 60 % or more of them in phases that launch and under "
        f"{INPUT_PCT[0]:.0f} % waiting, yet under {SM_LAUNCH[0]:.0f} % of the SMs are active, at under "
        f"{POWER_LAUNCH[0]:.0f} % of the power limit and under {UTIL_LAUNCH:.0f} % util",
        source="measured on an H200: 22 % util, 1.6 % SM activity, 125 of 700 W",
        hold_seconds=3.0,
        clear_seconds=5.0,
        fields=("util_pct", "sm_active_pct", "power_watts"),
    ),
)


# ---- waiting for the GPU, or for other ranks, in a phase that says so ----


def _sync_bound(state: RankState, up: bool) -> bool:
    steps = _steps(state)
    if not steps or not _mostly(steps, "sync", _pick(WAIT_PCT, up)):
        return False
    idle = idle_share_pct(timed(state, 1))
    return idle is not None and idle >= _pick(INPUT_PCT, up)


def _tell_sync(state: RankState) -> Told:
    evidence = _evidence(state, "sync")
    return Told(
        severity="warning",
        summary=f"{_who(state)} waits for the GPU in {fmt.percent(evidence['sync_host_pct'])} of each step, and "
        f"{_clocks(evidence)}: each wait lets it run dry.",
        evidence=evidence,
        next="take .item(), .cpu() and print(loss) out of the loop; press c to capture where it waits",
    )


SYNC_BOUND: Final = Rule[RankState](
    id="sync_bound",
    holds=_sync_bound,
    tell=_tell_sync,
    covered_by=frozenset({"stalled", "input_bound"}),
    text=RuleText(
        title="waiting for the GPU",
        meaning="The host stops for the GPU within the step, and the GPU then waits for the next launches.",
        condition=f"a phase named for waiting (sync, item) takes {WAIT_PCT[0]:.0f} % of most steps, "
        f"and CUDA events show the GPU idle for {INPUT_PCT[0]:.0f} % or more. Waits outside it show in a "
        "capture only",
        source="thresholds in use elsewhere: 20 % of wall time in synchronisation, 15 % idle",
        clear_seconds=5.0,
        fields=("gpu_idle_pct", "util_pct", "sm_active_pct"),
    ),
)


def _communication_bound(state: RankState, up: bool) -> bool:
    steps, sm = _steps(state), _sm(state)
    if not steps or sm is None or sm >= _pick(SM_STARVED, up):
        return False
    share = gpu_share_pct(timed(state, 1), "comm")
    if share is not None:
        return share >= _pick(WAIT_PCT, up)
    return _mostly(steps, "comm", _pick(WAIT_PCT, up))


def _tell_communication(state: RankState) -> Told:
    evidence = _evidence(state, "comm")
    return Told(
        severity="warning",
        summary=f"{_who(state)} spends {fmt.percent(evidence['communication_host_pct'])} of each step "
        f"communicating while {fmt.percent(evidence['sm_active_pct'])} of its SMs are active.",
        evidence=evidence,
        next="larger buckets, gradient_as_bucket_view, overlap with backward; press c to see what is exposed",
    )


COMMUNICATION_BOUND: Final = Rule[RankState](
    id="communication_bound",
    holds=_communication_bound,
    tell=_tell_communication,
    covered_by=frozenset({"stalled", "straggler"}),
    text=RuleText(
        title="waiting for other ranks",
        meaning="The steps wait for collectives that are not hidden behind computing.",
        condition=f"phases of communication take {WAIT_PCT[0]:.0f} % of the steps (GPU's clock where it is there) "
        f"and under {SM_STARVED[0]:.0f} % of the SMs are active",
        source="threshold in use elsewhere: communication over 10 % of a step; SM activity as DCGM's guide has it",
        hold_seconds=2.0,
        clear_seconds=5.0,
        fields=("sm_active_pct", "util_pct", "power_watts"),
    ),
)

STEP_RULES: Final = (INPUT_BOUND, H2D_BOUND, LAUNCH_BOUND, SYNC_BOUND, COMMUNICATION_BOUND)
