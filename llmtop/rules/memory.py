"""Rules about device memory: running out, and growing."""

from __future__ import annotations

import shlex
from typing import Final

from llmtop import format as fmt
from llmtop.model.severity import Severity
from llmtop.rules import limits
from llmtop.rules.rule import AlertText, Rule, RuleText, complete_clauses
from llmtop.rules.state.gpu import GpuState, share_pct
from llmtop.rules.state.memory_trend import BRIEF_LEAK, BUCKETS, FAST_LEAK, SLOW_LEAK, MemoryRise
from llmtop.rules.state.rank import RankState

_RETRY_SECONDS: Final = 60.0
GROWTH_PCT: Final = limits.CONFIGURED.memory_growth.memory_pct or 1.0
"""Percent of the GPU's memory: a floor that rises by less over the buckets is noise of the allocator."""
_GROWTH_BYTES: Final = 256 << 20
_SOON_SECONDS: Final = 600.0
_AT_ONCE_SECONDS: Final = 300.0
"""A rise of 20 s raises the alert if the GPU would be full within this time; else three minutes are observed."""
_PHASE_SHARE: Final = 0.75
_GROWTH_SHARE: Final = 0.5
"""Least parts of all kept memory, and of the growth, for which a phase is named. A leak of every second step is in
half of the sampled steps."""


def used_pct(gpu: GpuState | None) -> float | None:
    """Memory in use on the GPU, by all processes."""
    return None if gpu is None else share_pct(gpu.mem_used_bytes, gpu.gpu.mem_total_bytes)


def _has_retried(state: RankState) -> bool:
    failed = state.memory.allocator_failed_at
    return failed is not None and state.now - failed <= _RETRY_SECONDS


def _is_short(state: RankState, is_raised: bool) -> bool:
    return _has_run_out_of_memory(state) or (state.rank.state != "gone" and _has_retried(state))


def _has_run_out_of_memory(state: RankState) -> bool:
    return state.rank.memory_snapshot is not None


def _pressure_alert(state: RankState) -> AlertText:
    if _has_run_out_of_memory(state):
        return _out_of_memory_alert(state)
    used, gpu, failures = used_pct(state.gpu), state.gpu, state.memory.failures
    total = gpu.gpu.mem_total_bytes if gpu else None
    where = f" ({state.location})" if state.location else ""
    kind = "system" if gpu and gpu.gpu.memory_is_system else "GPU"
    held = "" if used is None else f"{fmt.percent_text(used, 1)} of {fmt.size(total)} {kind} memory in use"
    label = state.label[0].upper() + state.label[1:]
    return AlertText(
        severity="warning",
        summary=f"{label}{where}: {fmt.counted(failures, 'allocation')} of GPU memory failed or had to be "
        "repeated "
        f"since llmtop started{'; ' + held if held else ''}.",
        evidence={
            "mem_used_bytes": gpu.mem_used_bytes if gpu else None,
            "mem_total_bytes": total,
            "mem_used_pct": used,
            "memory_allocated_bytes": state.rank.memory_allocated_bytes,
            "memory_reserved_bytes": state.rank.memory_reserved_bytes,
            "memory_peak_bytes": state.rank.memory_peak_bytes,
            "allocator_failures": failures,
        },
        next="use a smaller batch or activation checkpointing, or set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        points=complete_clauses(
            f"{fmt.counted(failures, 'allocation')} failed or retried", held or "GPU memory is full"
        ),
    )


def _out_of_memory_alert(state: RankState) -> AlertText:
    where = f" ({state.location})" if state.location else ""
    label = state.label[0].upper() + state.label[1:]
    return AlertText(
        severity="critical",
        summary=f"{label}{where} ended with an out-of-memory error; the memory snapshot lists its allocations.",
        evidence={
            "memory_allocated_bytes": state.rank.memory_allocated_bytes,
            "memory_reserved_bytes": state.rank.memory_reserved_bytes,
            "memory_peak_bytes": state.rank.memory_peak_bytes,
            "memory_snapshot": state.rank.memory_snapshot,
        },
        next=f"read the snapshot, run: llmtop report {shlex.quote(state.rank.memory_snapshot or '')}",
        points=complete_clauses(
            "ended with an out-of-memory error",
            f"peak {fmt.size(state.rank.memory_peak_bytes)}",
            f"reserved {fmt.size(state.rank.memory_reserved_bytes)}",
        ),
    )


_PRESSURE: Final = RuleText(
    meaning="The next allocation may fail. PyTorch first frees its cache and retries, which stops the GPU each "
    "time, and then raises an out-of-memory error.",
    condition=f"the allocator of PyTorch retried or raised an out-of-memory error within the last "
    f"{_RETRY_SECONDS:.0f} s, or an out-of-memory error has ended the process. Nearly full memory alone raises no "
    "alert: many trainings and servers use it as planned",
    source="counters of PyTorch's allocator (torch.cuda.memory_stats: num_alloc_retries, num_ooms), and the "
    "memory in use by NVML",
    clear_seconds=5.0,
    fields=("mem_used_bytes", "memory_allocated_bytes", "memory_reserved_bytes"),
)

MEMORY_PRESSURE: Final = Rule[RankState](
    id="memory_pressure",
    holds=_is_short,
    describe=_pressure_alert,
    text=_PRESSURE,
)


def _growth(state: RankState) -> MemoryRise | None:
    """Return the growth of the memory in tensors."""
    enough = _least_growth(state)
    for growth in state.memory.growths():
        left = _seconds_left(state, growth, state.rank.memory_allocated_bytes)
        if growth.last_bytes - growth.first_bytes < enough:
            continue
        if not growth.is_brief or (left is not None and left < _AT_ONCE_SECONDS):
            return growth
    return None


def _unused_growth(state: RankState) -> MemoryRise | None:
    """Return the growth of the memory that the allocator has reserved and that tensors have never used at once."""
    enough = _least_growth(state)
    found = (one for one in state.memory.unused_growths() if one.last_bytes - one.first_bytes >= enough)
    return next(found, None)


def _least_growth(state: RankState) -> float:
    total = state.gpu.gpu.mem_total_bytes if state.gpu else None
    return _GROWTH_BYTES if total is None else total * GROWTH_PCT / 100


def _seconds_left(state: RankState, growth: MemoryRise | None, held: int | None) -> float | None:
    """Return the seconds until the GPU is full at this rate; None where unknown."""
    total = state.gpu.gpu.mem_total_bytes if state.gpu else None
    rate = growth.bytes_per_second if growth else None
    return max(total - held, 0) / rate if total is not None and held is not None and rate else None


def _is_growing(state: RankState, is_raised: bool) -> bool:
    if state.rank.state != "running":
        return False
    return _growth(state) is not None or _unused_growth(state) is not None


def growing_phase(kept: dict[str, int], step_bytes: float | None) -> str | None:
    """Return the phase that explains the growth of allocated memory; None if the phase is unknown.

    Args:
        kept: bytes that each phase keeps in a step (`Rank.memory_kept_bytes`).
        step_bytes: growth in a step over the whole observed period; None where unknown.

    Returns:
        The phase with `_PHASE_SHARE` of what is kept or more, if that is `_GROWTH_SHARE` of the growth or more.
        Else several phases share the growth, or the sampled steps are not those in which the memory grows.
    """
    phase = max(kept, key=lambda one: kept[one], default=None)
    if phase is None or not step_bytes:
        return None
    explains = kept[phase] >= _PHASE_SHARE * sum(kept.values()) and kept[phase] >= _GROWTH_SHARE * step_bytes
    return phase if explains else None


def _growth_alert(state: RankState) -> AlertText:
    growth = _growth(state)
    if growth is None:
        return _fragmentation_alert(state)
    rise = growth.last_bytes - growth.first_bytes
    a_step = rise / growth.steps if growth.steps else None
    kept = state.rank.memory_kept_bytes
    phase = growing_phase(kept, a_step)
    keeper = "" if phase is None else f"{_phase_words(phase)} keeps {fmt.size(kept[phase])} per step"
    left = _seconds_left(state, growth, state.rank.memory_allocated_bytes)
    until = _until_full(left)
    when = f"; the {until.replace(' full', ' is full')} at this rate" if until else ""
    which = keeper or "the phase that keeps it is unknown"
    return AlertText(
        severity=_severity(left),
        summary=f"{_subject(state)} allocates {fmt.size(a_step)} more GPU memory in each step, now "
        f"{fmt.size(state.rank.memory_allocated_bytes)}{when}; {which}.",
        evidence={
            "memory_allocated_bytes": state.rank.memory_allocated_bytes,
            **_growth_evidence(state, growth, left),
            "growing_phase": None if phase is None else _phase_words(phase),
            "kept_bytes_per_step": None if phase is None else kept[phase],
        },
        next="find tensors kept over steps: add loss.item(), not loss, to totals; store no outputs in lists",
        since=growth.since,
        points=complete_clauses(
            until,
            f"+{fmt.size(a_step)} per step",
            keeper,
            f"now {fmt.size(state.rank.memory_allocated_bytes)}",
        ),
    )


def _fragmentation_alert(state: RankState) -> AlertText:
    growth = _unused_growth(state)
    rise = growth.last_bytes - growth.first_bytes if growth else 0
    a_step = rise / growth.steps if growth and growth.steps else None
    left = _seconds_left(state, growth, state.gpu.gpu.mem_used_bytes if state.gpu else None)
    reserved, peak = state.rank.memory_reserved_bytes, state.rank.memory_peak_bytes
    until = _until_full(left)
    when = f"; the {until.replace(' full', ' is full')} at this rate" if until else ""
    return AlertText(
        severity=_severity(left),
        summary=f"{_subject(state)} reserves {fmt.size(a_step)} more GPU memory in each step that no tensor uses "
        f"(fragmentation). It has {fmt.size(reserved)} now, beside a peak of {fmt.size(peak)} in tensors{when}.",
        evidence={
            "memory_reserved_bytes": reserved,
            "memory_peak_bytes": peak,
            **_growth_evidence(state, growth, left),
        },
        next="set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or pad the batches to a few fixed lengths",
        since=growth.since if growth else None,
        points=complete_clauses(
            until,
            f"fragmentation, +{fmt.size(a_step)} per step",
            f"reserved {fmt.size(reserved)}, tensor peak {fmt.size(peak)}",
        ),
    )


def _subject(state: RankState) -> str:
    where = f" ({state.location})" if state.location else ""
    return f"{state.label[0].upper()}{state.label[1:]}{where}"


def _severity(left: float | None) -> Severity:
    return "critical" if left is not None and left < _SOON_SECONDS else "warning"


def _until_full(left: float | None) -> str:
    return "" if left is None else f"GPU full in about {fmt.duration(float(round(left)))}"


def _phase_words(phase: str) -> str:
    return phase or "code outside of phases"


def _growth_evidence(
    state: RankState, growth: MemoryRise | None, left: float | None
) -> dict[str, float | int | str | None]:
    rise = growth.last_bytes - growth.first_bytes if growth else None
    return {
        "growth_bytes": rise or None,
        "growth_bytes_per_step": rise / growth.steps if rise and growth and growth.steps else None,
        "growth_steps": growth.steps if growth else None,
        "growth_seconds": growth.seconds if growth else None,
        "seconds_until_full": left,
        "mem_total_bytes": state.gpu.gpu.mem_total_bytes if state.gpu else None,
    }


MEMORY_GROWTH: Final = Rule[RankState](
    id="memory_growth",
    holds=_is_growing,
    describe=_growth_alert,
    covered_by=frozenset({"memory_pressure"}),
    text=RuleText(
        meaning="The memory that tensors use never falls back to its earlier minimum: the script keeps tensors "
        "that it should free, most often a loss with its graph. Or the allocator reserves more and more memory "
        "that tensors do not use: fragmentation, by tensors of ever different sizes.",
        condition="after warm-up, the minimum of the allocated memory rises from each period to the next, "
        f"{BUCKETS} periods in a row, by {GROWTH_PCT:.0f} % of the GPU memory in total. A period has at least "
        f"{FAST_LEAK[0]} steps and {FAST_LEAK[1]:.0f} s; for slow growth {SLOW_LEAK[0]} steps and "
        f"{SLOW_LEAK[1] / 60:.0f} minutes. If the GPU would be full within {_AT_ONCE_SECONDS / 60:.0f} minutes: "
        f"{BRIEF_LEAK[0]} steps and {BRIEF_LEAK[1]:.0f} s, and the maximum rises too. Fragmentation: reserved "
        "memory minus the peak in tensors rises in this way, over the longer periods. A phase is named if "
        f"it allocated {100 * _PHASE_SHARE:.0f} % of the bytes that sampled steps leave allocated, and these are "
        f"{100 * _GROWTH_SHARE:.0f} % of the growth",
        source="torch.cuda.memory_stats, and in sampled steps torch.cuda.memory_snapshot, as published by the "
        "training",
        clear_seconds=5.0,
        fields=(
            *("memory_allocated_bytes", "memory_reserved_bytes", "memory_peak_bytes", "memory_kept_bytes"),
            "mem_used_bytes",
        ),
    ),
)
