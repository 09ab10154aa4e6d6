"""Rules that need a GPU's own values only, no attached training."""

from __future__ import annotations

import re
from typing import Final

from llmtop import format as fmt
from llmtop.hardware import clock_events
from llmtop.hardware.gpu_errors import is_program_error, severity_of
from llmtop.model.severity import Severity
from llmtop.model.snapshot import Gpu
from llmtop.rules import limits
from llmtop.rules.rule import AlertText, Rule, RuleText, complete_clauses, stack_advice
from llmtop.rules.state.gpu import WINDOW_SECONDS, GpuState

UTIL_FULL: Final = (95.0, 90.0)
"""GPU-Util from which a GPU counts as fully busy: to raise, and to stay raised."""
POWER_LOW: Final = limits.threshold_pair(limits.CONFIGURED.low_power_full_util.power_pct, (35.0, 45.0))
"""Per cent of the power limit. Hangs sit at 14 to 22; the lightest real work at full util measured here at 64."""
SM_LOW: Final = limits.threshold_pair(limits.CONFIGURED.low_power_full_util.sm_pct, (50.0, 60.0))
"""DCGM's guide: below 50 % SM activity a GPU is likely used ineffectively. Spin has 0.8, a hung all-reduce 18."""
DRAM_LOW: Final = (20.0, 25.0)
"""Memory-bound decoding draws as little as 20 % of the limit, so memory traffic must be absent too."""
MEM_UTIL_LOW: Final = (10.0, 15.0)
"""Stands in for SM activity where that is absent: 0 on spin and hang, 24 to 100 on every working state."""

MEASUREMENT_SOURCE: Final = "measured on H200s: a spinning kernel, a hung all-reduce, and six kinds of real work"


def _threshold(pair: tuple[float, float], is_raised: bool) -> float:
    return pair[1] if is_raised else pair[0]


def is_busy_but_idle(gpu: GpuState, is_raised: bool = False) -> bool:
    """Full util at idle power with hardly anything running; False where util or power is absent."""
    if gpu.util_pct is None or gpu.util_pct < _threshold(UTIL_FULL, is_raised):
        return False
    if gpu.power_share_pct is None or gpu.power_share_pct >= _threshold(POWER_LOW, is_raised):
        return False
    if gpu.sm_active_pct is None:
        return gpu.mem_util_pct is not None and gpu.mem_util_pct < _threshold(MEM_UTIL_LOW, is_raised)
    dram = gpu.mean("dram_active_pct")
    low = gpu.sm_active_pct < _threshold(SM_LOW, is_raised) and (
        dram is None or dram < _threshold(DRAM_LOW, is_raised)
    )
    if gpu.gpu.activity_source == "dcgm":  # it may be of before what runs now: the driver's own word must agree
        return low and gpu.mem_util_pct is not None and gpu.mem_util_pct < _threshold(MEM_UTIL_LOW, is_raised)
    return low


def values_missing_for_low_power(gpu: Gpu) -> tuple[str, ...]:
    """Return the names of the absent values without which a kernel that spins on a GPU is not recognized.

    Args:
        gpu: as the driver describes it now.

    Returns:
        Nothing where the present values decide: `LOW_POWER_FULL_UTIL` holds, or cannot hold whatever the absent
        ones are.
    """
    util, power, limit, sm = gpu.util_pct, gpu.power_watts, gpu.power_limit_watts, gpu.sm_active_pct
    witnesses = (
        ((gpu.mem_util_pct, MEM_UTIL_LOW),) if sm is None else ((sm, SM_LOW), (gpu.dram_active_pct, DRAM_LOW))
    )
    if util is not None and util < UTIL_FULL[0]:
        return ()
    if power is not None and limit and 100.0 * power / limit >= POWER_LOW[0]:
        return ()
    if any(value is not None and value >= low[0] for value, low in witnesses):
        return ()
    missing = {
        "utilization": util is None,
        "power": power is None,
        "power limit": power is not None and not limit,
        "SM activity": sm is None and gpu.mem_util_pct is None,
    }
    return tuple(name for name, is_missing in missing.items() if is_missing)


_SHARE_ADVICE: Final = (
    "give each process a GPU of its own, or start NVIDIA's MPS before them: nvidia-cuda-mps-control -d"
)
"""Two processes with steps of 12 ms, in which the GPU works 0.9 ms: 93 % by GPU-Util, 91 % graphics engine, 1.3 %
of the SMs (H100, `tests/gpu/check_busy.py shared`)."""


def _low_power_alert(gpu: GpuState) -> AlertText:
    util, power, sm = gpu.mean("util_pct"), gpu.mean("power_watts"), gpu.mean("sm_active_pct")
    witness = (
        f"{fmt.percent_text(sm, 1 if sm < 10 else 0)} of its SMs are active"
        if sm is not None
        else f"its memory controller is {fmt.percent_text(gpu.mem_util_pct)} busy (SM activity is unavailable)"
    )
    seen = (
        f"memory controller {fmt.percent_text(gpu.mem_util_pct)} busy"
        if sm is None
        else f"SM active {fmt.percent_text(sm)}"
    )
    sharers = max(gpu.computing, len(gpu.rank_pids))
    turns = sharers > 1 and len(gpu.step_pids) == sharers
    cause = f"its {sharers} processes take turns" if sharers > 1 else ""
    if not turns:
        cause = f"{cause}{', or ' if cause else ''}a kernel is spinning or stuck"
    return AlertText(
        severity="warning" if sm is None or turns else "critical",
        summary=f"{gpu.label} reports {fmt.percent_text(util)} utilization but draws {fmt.number(power)} of "
        f"{fmt.watts(gpu.gpu.power_limit_watts)}, and {witness}: {cause}.",
        evidence={
            "util_pct": util,
            "power_watts": power,
            "power_limit_watts": gpu.gpu.power_limit_watts,
            "power_share_pct": gpu.power_share_pct,
            "sm_active_pct": sm,
            "tensor_active_pct": gpu.mean("tensor_active_pct"),
            "dram_active_pct": gpu.mean("dram_active_pct"),
            "mem_util_pct": gpu.mean("mem_util_pct"),
            **({"processes": sharers} if sharers > 1 else {}),
        },
        next=_SHARE_ADVICE if turns else _next_step(gpu),
        points=complete_clauses(f"{_power_text(gpu)} at {fmt.percent_text(util)} util", cause, seen),
    )


def _next_step(gpu: GpuState) -> str:
    """Return how to see what runs there, by a pid that means something here."""
    pids, foreign = sorted(set(gpu.rank_pids or gpu.pids)), sorted(set(gpu.foreign_pids))
    if pids:
        return stack_advice(f"pid {pids[0]}", pids[0])
    if foreign:
        return (
            f"on the host, read the Python stacks of pid {foreign[0]} (it cannot be seen from here, perhaps "
            "it is in another container)"
        )
    return "find its process on the host with nvidia-smi, then run: py-spy dump --pid PID"


LOW_POWER_FULL_UTIL: Final = Rule[GpuState](
    id="low_power_full_util",
    holds=is_busy_but_idle,
    describe=_low_power_alert,
    covered_by=frozenset({"stalled", "hung_collective", "straggler"}),
    text=RuleText(
        meaning="Utilization counts any running kernel, even one that does no work: a hung collective, a "
        "spinning kernel, kernels far too small for the GPU, or processes that take turns on it.",
        condition=f"util at least {UTIL_FULL[0]:.0f} %, power under {POWER_LOW[0]:.0f} % of the limit, SM active "
        f"under {SM_LOW[0]:.0f} % and DRAM under {DRAM_LOW[0]:.0f} %; where SM activity is unavailable, memory "
        f"util under {MEM_UTIL_LOW[0]:.0f} % instead",
        source=f"{MEASUREMENT_SOURCE}; NVIDIA's DCGM guide: a GPU with SM activity under 50 % is likely badly "
        "used",
        hold_seconds=3.0,
        clear_seconds=5.0,
        fields=("util_pct", "power_watts", "sm_active_pct", "dram_active_pct", "mem_util_pct"),
    ),
)

_THROTTLE: Final = {
    clock_events.HW_THERMAL: "thermal limit of the hardware",
    clock_events.SW_THERMAL: "thermal limit of the driver",
    clock_events.HW_POWER_BRAKE: "power brake of the power supply",
    clock_events.HW_SLOWDOWN: "hardware slowdown",
}
_THROTTLE_ADVICE: Final = {
    frozenset({clock_events.HW_THERMAL, clock_events.SW_THERMAL}): "check the cooling and the "
    "temperature of other GPUs; run: nvidia-smi -q -d TEMPERATURE,PERFORMANCE",
    frozenset({clock_events.HW_POWER_BRAKE, clock_events.HW_SLOWDOWN}): "check the power supply and its cables; "
    "run: nvidia-smi -q -d POWER,PERFORMANCE",
}
_WORKING_UTIL: Final = 50.0
_NEAR_LIMIT, _STILL_NEAR_LIMIT = 0.9, 0.8
"""Shares of the limit. A starved GPU has the reason too, in the short bursts in which it works."""


def _is_capped(gpu: GpuState, is_raised: bool) -> bool:
    clock, most = gpu.mean("sm_clock_mhz"), gpu.gpu.sm_clock_max_mhz
    if not gpu.reasons or clock is None or most is None or clock >= most:
        return False
    power, limit = gpu.mean("power_watts"), gpu.gpu.power_limit_watts
    if power is None or not limit or power < limit * (_STILL_NEAR_LIMIT if is_raised else _NEAR_LIMIT):
        return False
    return clock_events.SW_POWER_CAP in gpu.reasons and gpu.util_pct is not None and gpu.util_pct >= _WORKING_UTIL


def _clock_evidence(gpu: GpuState) -> dict[str, float | int | None]:
    return {
        "sm_clock_mhz": gpu.mean("sm_clock_mhz"),
        "sm_clock_max_mhz": gpu.gpu.sm_clock_max_mhz,
        "power_watts": gpu.mean("power_watts"),
        "power_limit_watts": gpu.gpu.power_limit_watts,
        "temperature_c": gpu.temperature_c,
        "util_pct": gpu.mean("util_pct"),
    }


def _clock_range_text(gpu: GpuState) -> str:
    return f"{_clock_text(gpu)} at {_power_text(gpu)}"


def _power_text(gpu: GpuState) -> str:
    return f"{fmt.number(gpu.mean('power_watts'))} of {fmt.watts(gpu.gpu.power_limit_watts)}"


def _clock_text(gpu: GpuState) -> str:
    return f"{fmt.number(gpu.mean('sm_clock_mhz'))} of {fmt.number(gpu.gpu.sm_clock_max_mhz, 0, ' MHz')}"


def _power_capped_alert(gpu: GpuState) -> AlertText:
    return AlertText(
        severity="info",
        summary=f"{gpu.label} runs at its power limit: SM clock {_clock_range_text(gpu)}. This is normal for a "
        "busy GPU.",
        evidence=_clock_evidence(gpu),
        next="no action needed; if the limit was lowered, it can be raised: nvidia-smi -q -d POWER shows both",
        points=complete_clauses(_power_text(gpu), "normal for a busy GPU", f"SM clock {_clock_text(gpu)}"),
    )


POWER_CAPPED: Final = Rule[GpuState](
    id="power_capped",
    holds=_is_capped,
    describe=_power_capped_alert,
    covered_by=frozenset({"throttled"}),
    text=RuleText(
        meaning="The driver lowers the SM clock to stay within the power limit. This is normal for dense matrix "
        "work on a healthy GPU.",
        condition=f"the driver lowers the clocks for the reason {clock_events.SW_POWER_CAP}; the SM clock is "
        f"below its maximum, the power draw at least {100 * _NEAR_LIMIT:.0f} % of the limit, and util at least "
        f"{_WORKING_UTIL:.0f} %",
        source="the driver reports why it lowers the clocks (NVML); a bf16 matrix product on a healthy H200 runs "
        "at 1455 of 1980 MHz for this reason",
        hold_seconds=3.0,
        clear_seconds=5.0,
        fields=("power_watts", "sm_clock_mhz", "util_pct"),
    ),
)


def _is_throttled(gpu: GpuState, is_raised: bool) -> bool:
    idle = gpu.util_pct is not None and gpu.util_pct <= 5.0
    return bool(gpu.reasons) and not idle and not _THROTTLE.keys().isdisjoint(gpu.reasons or ())


def _throttled_alert(gpu: GpuState) -> AlertText:
    reasons = gpu.reasons or frozenset()
    # HW_SLOWDOWN is set beside what caused it, and alone where the driver does not say which that was.
    named = reasons & _THROTTLE.keys() - {clock_events.HW_SLOWDOWN} or reasons & _THROTTLE.keys()
    why = [words for reason, words in _THROTTLE.items() if reason in named]
    advice = [words for causes, words in _THROTTLE_ADVICE.items() if named & causes]
    heat = f", {fmt.number(gpu.temperature_c, 0, ' °C')}" if gpu.temperature_c is not None else ""
    return AlertText(
        severity="warning",
        summary=f"{gpu.label} runs at reduced clocks ({' and '.join(why) or 'hardware slowdown'}): "
        f"SM clock {_clock_range_text(gpu)}{heat}.",
        evidence=_clock_evidence(gpu),
        next="; ".join(advice),
        points=complete_clauses(*why, heat.removeprefix(", "), f"SM clock {_clock_text(gpu)}", _power_text(gpu)),
    )


THROTTLED: Final = Rule[GpuState](
    id="throttled",
    holds=_is_throttled,
    describe=_throttled_alert,
    text=RuleText(
        meaning="The GPU or its driver lowers the clocks to protect it. In a synchronous job every other GPU "
        "waits for this one.",
        condition="the driver lowers the clocks of a working GPU for one of these reasons: "
        + ", ".join(_THROTTLE),
        source="the driver reports why it lowers the clocks (NVML clock-event reasons)",
        hold_seconds=2.0,
        clear_seconds=10.0,
        fields=("sm_clock_mhz", "temperature_c", "power_watts"),
    ),
)

DRAM_BOUND: Final = limits.threshold_pair(limits.CONFIGURED.memory_bound.dram_pct, (70.0, 60.0))
"""The practical peak is 88 %; a GPT's training takes 31 to 42."""
TENSOR_IDLE: Final = (20.0, 25.0)
MEMORY_BOUND_UTIL: Final = 90.0


def _is_memory_bound(gpu: GpuState, is_raised: bool) -> bool:
    dram, tensor, util = gpu.mean("dram_active_pct"), gpu.mean("tensor_active_pct"), gpu.mean("util_pct")
    if dram is None or tensor is None or util is None or util < MEMORY_BOUND_UTIL:
        return False
    return dram >= _threshold(DRAM_BOUND, is_raised) and tensor < _threshold(TENSOR_IDLE, is_raised)


def _memory_bound_alert(gpu: GpuState) -> AlertText:
    dram, tensor = gpu.mean("dram_active_pct"), gpu.mean("tensor_active_pct")
    return AlertText(
        severity="info",
        summary=f"{gpu.label} is limited by memory bandwidth: DRAM is active {fmt.percent_text(dram)} of the time "
        f"(88 % is the practical peak), the tensor cores are active {fmt.percent_text(tensor, 1)}.",
        evidence={
            "dram_active_pct": dram,
            "tensor_active_pct": tensor,
            "sm_active_pct": gpu.mean("sm_active_pct"),
            "util_pct": gpu.mean("util_pct"),
        },
        next="use torch.compile, bf16 and FlashAttention, which move less memory; press c to profile the kernels",
        points=complete_clauses(
            f"DRAM active {fmt.percent_text(dram)}", f"tensor cores active {fmt.percent_text(tensor, 1)}"
        ),
    )


MEMORY_BOUND: Final = Rule[GpuState](
    id="memory_bound",
    holds=_is_memory_bound,
    describe=_memory_bound_alert,
    covered_by=frozenset({"stalled"}),
    text=RuleText(
        meaning="The kernels wait for GPU memory. More arithmetic per byte helps; a GPU with more FLOP/s does "
        "not.",
        condition=f"DRAM active at least {DRAM_BOUND[0]:.0f} %, tensor active under {TENSOR_IDLE[0]:.0f} %, "
        f"util at least {MEMORY_BOUND_UTIL:.0f} %, as means over {WINDOW_SECONDS:.0f} s",
        source=f"{MEASUREMENT_SOURCE}; in a memory-bound elementwise kernel, DRAM was active 88 % of the time, "
        "the tensor cores 0.3 %",
        hold_seconds=3.0,
        clear_seconds=6.0,
        fields=("dram_active_pct", "tensor_active_pct", "sm_active_pct"),
    ),
)


_CLAUSES: Final = re.compile(r": | \(|\)| (?=since |for \d)")
"""Where the sentence of a GPU's error is split into clauses."""


def _has_error(gpu: GpuState, is_raised: bool) -> bool:
    return gpu.gpu.error is not None


_ERROR_ADVICE: Final[dict[Severity, str]] = {
    "critical": "end the job on this GPU, then reset it or reboot; read the kernel log: "
    "dmesg | grep -i -e xid -e nvrm; if the error returns, have the GPU replaced",
    "warning": "no action if the job continues; if the error returns, reset the GPU; the kernel log has more: "
    "dmesg | grep -i -e xid -e nvrm",
    "info": "no action needed; the kernel log has more: dmesg | grep -i -e xid -e nvrm",
}
"""Advice on an error that no program caused."""
_POWER_CABLE_ADVICE: Final = (
    "have the power cables of this GPU checked; the kernel log has more: dmesg | grep -i xid"
)


def _error_alert(gpu: GpuState) -> AlertText:
    error = gpu.error_text
    return AlertText(
        severity=severity_of(error),
        summary=f"{gpu.label} reports a driver error: {fmt.printable(error, 160)}.",
        evidence={"temperature_c": gpu.temperature_c, "power_watts": gpu.mean("power_watts")},
        next="read the output of the program that failed; to find the kernel, run the program under "
        "compute-sanitizer or with CUDA_LAUNCH_BLOCKING=1. The program caused the error, not the GPU"
        if is_program_error(error)
        else _POWER_CABLE_ADVICE
        if "power cable" in error
        else _ERROR_ADVICE[severity_of(error)],
        points=complete_clauses(*(one for one in _CLAUSES.split(fmt.printable(error, 160)) if one)),
    )


GPU_ERROR: Final = Rule[GpuState](
    id="gpu_error",
    holds=_has_error,
    describe=_error_alert,
    text=RuleText(
        meaning="The driver reported an Xid or ECC event, or refused a call in a way that shows an error. The "
        "alert is critical if the GPU, or work or data on it, is lost. An Xid caused by a program and a repair "
        "that waits for a reset are warnings.",
        condition="the driver reports an error of the GPU",
        source="NVML; NVIDIA's Xid catalogue (required action: reset, restart of the program, or none)",
        clear_seconds=5.0,
    ),
)

GPU_RULES: Final = (GPU_ERROR, LOW_POWER_FULL_UTIL, THROTTLED, POWER_CAPPED, MEMORY_BOUND)
