"""Rules about what bounds a training's steps, from its phases by both clocks and its GPU's counters.

The host's clock alone never decides: CUDA is asynchronous, so a healthy run can spend most of a step "loading
data" while the GPU works. Each rule needs a witness from the GPU's side.
"""

from __future__ import annotations

from typing import Final

from llmtop import format as fmt
from llmtop.phase_names import Role
from llmtop.rules import limits
from llmtop.rules.rule import Rule, RuleText, Told, clauses
from llmtop.rules.state.rank import RankState
from llmtop.rules.state.step_costs import (
    LAUNCHING,
    StepCosts,
    gpu_share_pct,
    host_share_pct,
    idle_share_pct,
)
from llmtop.rules.state.windows import finite

WINDOW_STEPS: Final = 8
"""Steps by which the host's clock is judged: few enough to tell within ten."""
WINDOW_SECONDS: Final = 2.0
"""As far back when steps are shorter: the workers of a loader may deliver in bursts, one a step each."""
TIMED_WITHIN: Final = 40
"""How many steps back a step may be that CUDA events timed: they are thinned."""
WAITED_PCT: Final = limits.pair(limits.SET.input_bound.step_pct, (10.0, 7.0))
"""Of the step that waits for data, to raise and to stay raised."""
INPUT_PCT: Final = (10.0, 7.0)
"""Of the step, to raise and to stay raised. Others warn from 5 % of waiting or 15 % of idle time on."""
SYNC_PCT: Final = limits.pair(limits.SET.sync_bound.step_pct, (20.0, 15.0))
COMM_PCT: Final = limits.pair(limits.SET.communication_bound.step_pct, (20.0, 15.0))
"""Of the step, in a phase that waits for the GPU, or for other ranks."""
SM_STARVED: Final = (50.0, 60.0)
"""DCGM's guide: below 50 % SM activity a GPU is likely used ineffectively."""
UTIL_STARVED: Final = (60.0, 70.0)
"""Stands in for SM activity where that is absent: launch-bound 22, copying 20, trainings at work 99."""
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
    last = max(state.seen_at, state.last_step_at or 0.0)
    if state.now - last > max(3.0, 3 * usual):
        return []
    steps = _recent(state)
    return steps if len(steps) >= WINDOW_STEPS // 2 and any(step.named for step in steps) else []


def _recent(state: RankState) -> list[StepCosts]:
    """The last eight steps, or as many as took two seconds; oldest first."""
    steps, seconds, count = state.recent(TIMED_WITHIN), 0.0, 0
    for step in reversed(steps):
        if count >= WINDOW_STEPS and seconds >= WINDOW_SECONDS:
            break
        seconds += step.total
        count += 1
    return steps[len(steps) - count :]


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


def _does_little(state: RankState, up: bool, sm_limit: tuple[float, float]) -> bool:
    """Whether SM activity, or util where that is absent, says that the GPU does little; False: nobody knows."""
    gpu = state.gpu
    if gpu is None:
        return False
    # The latest value too: a mean still holds what was before the GPU began to work.
    if gpu.sm_active_pct is not None:
        return max(gpu.sm_active_pct, _sm(state) or 0.0) < _pick(sm_limit, up)
    return gpu.util_pct is not None and max(gpu.util_pct, gpu.mean("util_pct") or 0.0) < _pick(UTIL_STARVED, up)


def _copies(state: RankState, up: bool) -> bool:
    """Whether much comes in over PCIe while the GPU does little else."""
    rx = state.gpu.mean("pcie_rx_bytes_per_s") if state.gpu else None
    return rx is not None and rx >= _pick(RX_LOW_BYTES_PER_S, up) and _does_little(state, up, SM_LAUNCH)


def _evidence(
    state: RankState, role: Role, window: tuple[list[StepCosts], list[StepCosts]] | None = None
) -> dict[str, float | int | None]:
    steps, known = window or (state.recent(WINDOW_STEPS), timed(state))
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


def _active(state: RankState) -> str:
    sm = _sm(state)
    if sm is not None:
        return f"{fmt.percent(sm, 1)} of its SMs are active"
    return f"{fmt.percent(state.gpu.mean('util_pct') if state.gpu else None)} of the time a kernel runs"


def _clocks(evidence: dict[str, float | int | None], dry: float | int | None = None) -> str:
    idle, sm = evidence["gpu_idle_pct"], evidence["sm_active_pct"]
    if idle is not None:
        return f"the GPU is idle for {fmt.percent(idle)} of it by CUDA events"
    if dry is not None:
        return f"the GPU has nothing to do in {fmt.percent(dry)} of it by CUDA events"
    if sm is not None:
        return f"{fmt.percent(sm)} of the GPU's SMs are active"
    return f"the GPU is at {fmt.percent(evidence['util_pct'])} util"


def _short_clocks(evidence: dict[str, float | int | None], dry: float | int | None = None) -> str:
    """The same in a few words."""
    idle, sm = evidence["gpu_idle_pct"], evidence["sm_active_pct"]
    if idle is not None or dry is not None:
        return f"GPU idle {fmt.percent(dry if idle is None else idle)}"
    return f"SM {fmt.percent(sm)}" if sm is not None else f"util {fmt.percent(evidence['util_pct'])}"


def _short_active(state: RankState) -> str:
    sm = _sm(state)
    return f"SM {fmt.percent(sm, 1)}" if sm is not None else ""


# ---- waiting for data ----


def _waited(steps: list[StepCosts], pct: float, by_gpu: bool) -> list[bool]:
    """For each step, whether at least `pct` percent of it went into waiting for data."""
    if by_gpu:
        return [(gpu_share_pct([step], "input") or 0.0) >= pct for step in steps]
    return [host_share_pct([step], ("input",)) >= pct for step in steps]


def _since_it_began(steps: list[StepCosts], by_gpu: bool) -> list[StepCosts]:
    """From after the first step that waited to the last that did: whole periods of a loader that comes in bursts.

    The first is left out since it began before the wait did.
    """
    places = [place for place, waited in enumerate(_waited(steps, WAITED_PCT[1], by_gpu)) if waited]
    return steps[places[0] + 1 : places[-1] + 1] if len(places) > 1 else steps


def _timed_lately(state: RankState) -> list[StepCosts]:
    """The recent steps that CUDA events timed; the last two that they did where these are fewer."""
    known = [step for step in _recent(state) if step.gpu is not None]
    return known if len(known) > 1 else timed(state)


def _input_bound(state: RankState, up: bool) -> bool:
    steps, pct = _steps(state), _pick(WAITED_PCT, up)
    if not steps or _copies(state, up):
        return False  # a copy that the loop counts as loading is h2d_bound
    # One slow batch is the start of an epoch; two within two seconds are a loader that cannot keep up.
    if sum(_waited(steps, pct, by_gpu=False)) < 2 or host_share_pct(steps, ("input",)) < pct:
        return False
    known = _timed_lately(state)
    if not known:
        return _does_little(state, up, SM_STARVED)
    dry = _waited(known, pct, by_gpu=True)
    return (dry[-1] if len(dry) < 3 else sum(dry) > 1) and (gpu_share_pct(known, "input") or 0.0) >= pct


def _tell_input(state: RankState) -> Told:
    steps, known = _recent(state), _since_it_began(_timed_lately(state), by_gpu=True)
    if known:  # the host's clock may have called it loading long before the GPU ran dry
        steps = [step for step in steps if step.index >= known[0].index] or steps
    evidence = _evidence(state, "input", (_since_it_began(steps, by_gpu=False), known))
    return Told(
        severity="warning",
        summary=f"{_who(state)} waits for data in {fmt.percent(evidence['dataload_host_pct'])} of each step "
        f"(host's clock), and {_clocks(evidence, evidence['dataload_gpu_pct'])}.",
        evidence=evidence,
        next="more DataLoader workers, pin_memory and prefetch; press s for the stacks of the loading thread",
        points=clauses(
            f"waits for data {fmt.percent(evidence['dataload_host_pct'])} of each step",
            _short_clocks(evidence, evidence["dataload_gpu_pct"]),
        ),
    )


INPUT_BOUND: Final = Rule[RankState](
    id="input_bound",
    holds=_input_bound,
    tell=_tell_input,
    covered_by=frozenset({"stalled", "straggler", "h2d_bound", "low_power_full_util"}),
    text=RuleText(
        meaning="It runs dry because the next batch is not there.",
        condition=f"over the last {WINDOW_STEPS} steps (or {WINDOW_SECONDS:.0f} s), in two of them at least, "
        f"waiting for data takes {WAITED_PCT[0]:.0f} % or more by the host's clock and by CUDA events, in which "
        f"the GPU runs dry; without events, under {SM_STARVED[0]:.0f} % of its SMs are active (without these, "
        f"under {UTIL_STARVED[0]:.0f} % util)",
        source="checked on an H200 against planted waits of 30 and 60 %; a healthy run had 79 % by the host's "
        "clock and 0.1 % by the GPU's",
        clear_seconds=4.0,
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
        f"{_active(state)}.",
        evidence=evidence,
        next="pin_memory=True and .to(device, non_blocking=True); copy the next batch during this step's work",
        points=clauses(f"copies {fmt.rate(evidence['pcie_rx_bytes_per_s'])} to the GPU", _short_active(state)),
    )


H2D_BOUND: Final = Rule[RankState](
    id="h2d_bound",
    holds=_h2d_bound,
    tell=_tell_h2d,
    covered_by=frozenset({"stalled"}),
    text=RuleText(
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
    if not 0 < gpu.util_pct < UTIL_LAUNCH or gpu.power_share_pct >= _pick(POWER_LAUNCH, up):
        return False
    if _copies(state, up) or not _does_little(state, up, SM_LAUNCH):
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
        f"{_active(state)} at {fmt.watts(evidence['power_watts'])}.",
        evidence=evidence,
        next="torch.compile or CUDA graphs, a fused optimizer, larger batches; press c to count the launches",
        points=clauses(
            f"{fmt.percent(evidence['launching_host_pct'])} of a step launches",
            _short_active(state),
            fmt.watts(evidence["power_watts"]),
        ),
    )


LAUNCH_BOUND: Final = Rule[RankState](
    id="launch_bound",
    holds=_launch_bound,
    tell=_tell_launch,
    covered_by=frozenset(
        {
            "stalled",
            "straggler",
            "input_bound",
            "h2d_bound",
            "sync_bound",
            "communication_bound",
            "low_power_full_util",
        }
    ),
    text=RuleText(
        meaning="The kernels are so short that the host cannot launch them as fast as the GPU runs them.",
        condition=f"steps go on, the host spends 60 % or more of them in phases that launch and under "
        f"{INPUT_PCT[0]:.0f} % waiting, yet under {SM_LAUNCH[0]:.0f} % of the SMs are active, at under "
        f"{POWER_LAUNCH[0]:.0f} % of the power limit and under {UTIL_LAUNCH:.0f} % util",
        source="measured on an H200: 22 % util, 1.6 % SM activity, 125 of 700 W",
        hold_seconds=2.0,
        clear_seconds=5.0,
        fields=("util_pct", "sm_active_pct", "power_watts"),
    ),
)


# ---- waiting for the GPU, or for other ranks, in a phase that says so ----


def _sync_bound(state: RankState, up: bool) -> bool:
    steps = _steps(state)
    if not steps or not _mostly(steps, "sync", _pick(SYNC_PCT, up)):
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
        points=clauses(
            f"waits for the GPU {fmt.percent(evidence['sync_host_pct'])} of a step", _short_clocks(evidence)
        ),
    )


SYNC_BOUND: Final = Rule[RankState](
    id="sync_bound",
    holds=_sync_bound,
    tell=_tell_sync,
    covered_by=frozenset({"stalled", "straggler", "input_bound", "h2d_bound"}),
    text=RuleText(
        meaning="Each wait lets the GPU run dry until the next launches reach it.",
        condition=f"a phase named for waiting (sync, item) takes {SYNC_PCT[0]:.0f} % of most steps, "
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
        return share >= _pick(COMM_PCT, up)
    return _mostly(steps, "comm", _pick(COMM_PCT, up))


def _tell_communication(state: RankState) -> Told:
    evidence = _evidence(state, "comm")
    return Told(
        severity="warning",
        summary=f"{_who(state)} spends {fmt.percent(evidence['communication_host_pct'])} of each step "
        f"communicating while {fmt.percent(evidence['sm_active_pct'])} of its SMs are active.",
        evidence=evidence,
        next="larger buckets, gradient_as_bucket_view, overlap with backward; press c to see what is exposed",
        points=clauses(
            f"communicates {fmt.percent(evidence['communication_host_pct'])} of each step", _short_active(state)
        ),
    )


COMMUNICATION_BOUND: Final = Rule[RankState](
    id="communication_bound",
    holds=_communication_bound,
    tell=_tell_communication,
    covered_by=frozenset({"stalled", "straggler", "input_bound", "h2d_bound", "low_power_full_util"}),
    text=RuleText(
        meaning="The collectives are not hidden behind computing.",
        condition=f"phases of communication take {COMM_PCT[0]:.0f} % of the steps (GPU's clock where it is there) "
        f"and under {SM_STARVED[0]:.0f} % of the SMs are active",
        source="threshold in use elsewhere: communication over 10 % of a step; SM activity as DCGM's guide has it",
        hold_seconds=2.0,
        clear_seconds=5.0,
        fields=("sm_active_pct", "util_pct", "power_watts"),
    ),
)

STEP_RULES: Final = (INPUT_BOUND, H2D_BOUND, LAUNCH_BOUND, SYNC_BOUND, COMMUNICATION_BOUND)
