"""Rules about GPUs that work for processes that report no steps, mostly because they are not attached.

Their own counters are all there is then, so they do not show what a step waits for: only that the GPU could do
more, and whether its kernels are too small or too few.
"""

from __future__ import annotations

from typing import Final

from llmtop import format as fmt
from llmtop.rules.recent_steps import RX_LOW_BYTES_PER_S, SM_LAUNCH, UTIL_LAUNCH, pick_threshold
from llmtop.rules.rule import AlertText, Rule, RuleText, complete_clauses
from llmtop.rules.state.gpu import GpuState

WORKS_UTIL: Final = 5.0
"""GPU-Util from which a GPU has work."""
SM_PER_UTIL: Final = (0.35, 0.45)
"""SM activity over GPU-Util is what kernels fill of the GPU while they run. Launch-bound programs had 0.02 to
0.24, those that wait for data or launch large kernels too slowly 0.66 and more."""
POWER_SMALL: Final = (40.0, 45.0)
"""Percent of the power limit, to raise and to stay raised."""
UTIL_LITTLE: Final = (60.0, 70.0)
SM_LITTLE: Final = (40.0, 50.0)
"""DCGM's guide: below 50 % SM activity a GPU is likely used ineffectively."""


def _works_without_steps(gpu: GpuState) -> bool:
    """Return True if none of the GPU's processes reports steps, and little arrives over PCIe."""
    if gpu.step_pids or not (gpu.pids or gpu.foreign_pids):
        return False
    util, rx = gpu.mean("util_pct"), gpu.mean("pcie_rx_bytes_per_s")
    if util is None or util < WORKS_UTIL:
        return False
    return rx is None or rx < RX_LOW_BYTES_PER_S[1]


def _has_small_kernels(gpu: GpuState, is_raised: bool) -> bool:
    util, sm = gpu.mean("util_pct"), gpu.mean("sm_active_pct")
    if not util or sm is None or gpu.power_share_pct is None:
        return False
    small = sm / util < pick_threshold(SM_PER_UTIL, is_raised) and sm < pick_threshold(SM_LAUNCH, is_raised)
    return small and util < UTIL_LAUNCH and gpu.power_share_pct < pick_threshold(POWER_SMALL, is_raised)


def _is_launching_slowly(gpu: GpuState, is_raised: bool) -> bool:
    return _works_without_steps(gpu) and _has_small_kernels(gpu, is_raised)


def _is_little_used(gpu: GpuState, is_raised: bool) -> bool:
    util, sm = gpu.mean("util_pct"), gpu.mean("sm_active_pct")
    if not _works_without_steps(gpu) or util is None or _has_small_kernels(gpu, True):
        return False
    return util < pick_threshold(UTIL_LITTLE, is_raised) or (
        sm is not None and sm < pick_threshold(SM_LITTLE, is_raised)
    )


def _evidence(gpu: GpuState) -> dict[str, float | int | str | None]:
    names = ("util_pct", "sm_active_pct", "tensor_active_pct", "dram_active_pct", "power_watts")
    return {**{name: gpu.mean(name) for name in names}, "power_limit_watts": gpu.gpu.power_limit_watts}


def _owner_text(gpu: GpuState) -> str:
    pids = sorted({*gpu.pids, *gpu.foreign_pids})
    return f"process {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes"


_ATTACH: Final = "start the process with llmtop run to time its steps"
_CAPTURE: Final = "press c to profile the process"


def _slow_launch_alert(gpu: GpuState) -> AlertText:
    return AlertText(
        severity="info",
        summary=f"On {gpu.label}, the kernels of {_owner_text(gpu)} are small, with idle gaps between them: a "
        "kernel runs "
        f"{fmt.percent_text(gpu.mean('util_pct'))} of the time, and "
        f"{fmt.percent_text(gpu.mean('sm_active_pct'), 1)} "
        f"of the SMs are active, at {fmt.watts(gpu.mean('power_watts'))}.",
        evidence=_evidence(gpu),
        next=f"use torch.compile or CUDA graphs, or larger batches; {_CAPTURE if gpu.rank_pids else _ATTACH}",
        points=complete_clauses(
            f"small kernels with gaps, util {fmt.percent_text(gpu.mean('util_pct'))}",
            f"SM active {fmt.percent_text(gpu.mean('sm_active_pct'), 1)}",
            fmt.watts(gpu.mean("power_watts")),
        ),
    )


def _low_activity_alert(gpu: GpuState) -> AlertText:
    util, sm = gpu.mean("util_pct"), gpu.mean("sm_active_pct")
    active = "" if sm is None else f", and {fmt.percent_text(sm)} of its SMs are active"
    return AlertText(
        severity="info",
        summary=f"On {gpu.label}, the work of {_owner_text(gpu)} uses little of the GPU: a kernel runs "
        f"{fmt.percent_text(util)} of the "
        f"time{active}.",
        evidence=_evidence(gpu),
        next=f"use larger batches; {_CAPTURE if gpu.rank_pids else _ATTACH}",
        points=complete_clauses(f"util {fmt.percent_text(util)}", f"SM active {fmt.percent_text(sm)}"),
    )


LAUNCHES_SLOWLY: Final = Rule[GpuState](
    id="launch_bound",
    holds=_is_launching_slowly,
    describe=_slow_launch_alert,
    covered_by=frozenset({"low_power_full_util", "gpu_error"}),
    text=RuleText(
        meaning="The kernels of this process are so short that the host cannot launch them fast enough.",
        condition=f"no process on it reports steps, a kernel runs in {WORKS_UTIL:.0f} to {UTIL_LAUNCH:.0f} % "
        f"of the time, and SM activity is under {100 * SM_PER_UTIL[0]:.0f} % of that, at under "
        f"{POWER_SMALL[0]:.0f} % of the power limit",
        source="measured with six programs on an H100, and on an H200 at known loads (docs/measurements.md)",
        hold_seconds=10.0,
        clear_seconds=10.0,
        fields=("util_pct", "sm_active_pct", "power_watts"),
    ),
)
LOW_ACTIVITY: Final = Rule[GpuState](
    id="low_activity",
    holds=_is_little_used,
    describe=_low_activity_alert,
    covered_by=frozenset({"low_power_full_util", "gpu_error", "memory_bound", "throttled", "launch_bound"}),
    text=RuleText(
        meaning="The GPU often waits for its process, or the kernels use only a small part of the GPU.",
        condition=f"no process on the GPU is attached, and GPU-Util is between {WORKS_UTIL:.0f} and "
        f"{UTIL_LITTLE[0]:.0f} %, or under {SM_LITTLE[0]:.0f} % of the SMs are active",
        source="NVIDIA's DCGM guide: a GPU with SM activity under 50 % is likely badly used; trainings without a "
        "bottleneck have 99 % util",
        hold_seconds=15.0,
        clear_seconds=15.0,
        fields=("util_pct", "sm_active_pct", "power_watts"),
    ),
)
UNATTACHED_RULES: Final = (LAUNCHES_SLOWLY, LOW_ACTIVITY)
